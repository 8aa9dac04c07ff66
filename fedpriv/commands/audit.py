"""`fedpriv audit`: attacks a method's real release code and compares the result with its claim.

    fedpriv audit run=RUN_FOLDER [trials=200000] [confidence=0.95] [level=mechanism|training]
    fedpriv audit strategy=fedcad strategy.client.noise_multiplier=4 [participations=1] [audit_seed=0] ...

`fedpriv audit guard=POLICY parameters=NUMBER` attacks the guard of foreign apps (docs/guard.md).

trials: releases of each kind. confidence: of the lower bound. participations: only so many of a client (default: as in
the run). audit_seed: of the audit's own noise. Any option of a run goes with a call without run=.

mechanism: the client's `release`, the same object that training uses, at the run's own dimension, on worst-case pairs
of neighbouring update sequences, many independent trials in one vectorised call; keys, batches and per-example clipping
are the auditor's. And the noise contract: real rounds of a few clients that all hold the same examples, with their own
keys, training and messages: every number has noise of its own, which data do not seed, switch off or outgrow. Of a
trusted server the models are looked at.
training: a real run whose clients (or, where the unit is one example, some of whose examples) are canaries; the
attacker has the server's view of every message. In addition, up to 2000 real participations of one client with its
own training, batches, clipping and noise keys, on worst-case data. With ``run=`` the result goes into
the run's summary and report.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from fedpriv.attacks.auditing import (
    OWN_FIT,
    READERS,
    AuditOptions,
    audit_releases,
    audit_training_of,
    write_release_audit,
    write_training_audit,
)
from fedpriv.attacks.contract_check import check_contract
from fedpriv.attacks.release_audit import AuditedScope, threat_in_words
from fedpriv.commands import guard_costs
from fedpriv.common.command_line import DONE, FAILED, command, nearest, path_of, read_option
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.places import use_own_methods
from fedpriv.common.printing import say
from fedpriv.config.compose import compose, read_config
from fedpriv.config.owner import PLACES
from fedpriv.config.schema import Config
from fedpriv.privacy.auditor import BROKEN
from fedpriv.report.live.task import task
from fedpriv.report.tables import plain_table
from fedpriv.runs.changed import said, with_operations
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.planning import with_target


def parse_options(arguments: Sequence[str]) -> tuple[AuditOptions, str | None, list[str]]:
    """(audit options, run folder, the other overrides); `OptionError` for a value that is not allowed."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    options = {name: read_option(name, given[name], reader) for name, reader in READERS.items() if name in given}
    run = path_of(given["run"]) if "run" in given else None
    others = [argument for argument in arguments if argument.partition("=")[0] not in ("run", *READERS)]
    if run is not None and (wrong := [one for one in others if one.partition("=")[0] not in PLACES]):
        (key, _, value), own = wrong[0].partition("="), ("run", *READERS)
        words = f"run= takes the run's own options; beside it: {', '.join(own)}{nearest(key, own)}"
        raise OptionError(key, value, words)
    return AuditOptions(**options), run, others


@command(needs_arguments=True)
def main(arguments: Sequence[str]) -> int:
    if guard_costs.asks_for_guard(arguments):
        return guard_costs.audit(arguments)
    use_own_methods()
    options, run, overrides = parse_options(arguments)
    if run is not None:
        config = with_operations(read_config(run, said(overrides)), overrides)
    else:
        config = with_target(compose(overrides))
    folder = RunFolder(Path(run)) if run is not None else None
    if folder is not None and not folder.finished:
        raise RunFolderError(f"{run}: the run has not finished, it has no summary.json to write into")
    if options.level == "training":
        return _audit_training(config, options, folder)
    with task("audit"):
        contract = check_contract(config)
        scopes = audit_releases(config, options, folder)
    _print(config, scopes)
    say(contract)
    if folder is not None and options.participations is None:
        write_release_audit(folder, config, scopes, contract)
        say(f"written into {folder.path / 'summary.json'} and report.html")
    broken = contract.findings or any(scope.verdict == BROKEN for scope in scopes)
    return FAILED if broken else DONE


def _audit_training(config: Config, options: AuditOptions, folder: RunFolder | None) -> int:
    with task("audit"):
        found = audit_training_of(config, options)
    say(
        f"canaries in a real run, {threat_in_words(config)}:\n{found.canaries}; "
        f"verified epsilon <= {_shown(found.verified)}: {found.verdicts[0]}"
    )
    for bound in found.canaries.sharper:
        say(f"under an assumption: {bound}")
    fits = found.fits
    say(
        f"the {OWN_FIT}, {fits.scope}: {fits.audit}; verified epsilon <= {_shown(fits.verified)}: {found.verdicts[1]}; "
        f"{at_most(fits.audit.attainable)}"
    )
    if folder is not None:
        write_training_audit(folder, found)
        say(f"written into {folder.path / 'summary.json'} and report.html")
    return FAILED if BROKEN in found.verdicts else DONE


def _print(config: Config, scopes: Sequence[AuditedScope]) -> None:
    say(f"{config.method} ({config.privacy.variant}), {threat_in_words(config)}, delta {config.privacy.delta:g}")
    header = ("scope", "audited >=", "claimed", "verified <=", "verdict")
    rows = [
        (scope.name, _shown(scope.audit.epsilon_lower), _shown(scope.claimed), _shown(scope.verified), scope.verdict)
        for scope in scopes
    ]
    say("\n".join(plain_table(header, rows)))
    for scope in scopes:
        say(
            f"{scope.name}: {scope.audit}; {scope.dimension:,} numbers of {scope.path}; worst pair: {scope.pair}; "
            f"looked at {scope.looked_at} in each world; "
            f"at the verified epsilon it would have shown {_shown(scope.expected)}, {at_most(scope.attainable)}"
        )
        for bound in scope.sharper:
            say(f"{scope.name}, under an assumption: {bound}")


def at_most(attainable: float) -> str:
    """The most that this many trials could have shown, in words: beyond it, finding nothing means nothing."""
    return f"a perfect attack would have shown {_shown(attainable)} at most"


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return "infinite" if math.isinf(value) else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
