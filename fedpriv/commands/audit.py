"""`fedpriv audit`: attacks a method's real release code and compares the result with its claim.

    fedpriv audit run=RUN_FOLDER [trials=200000] [confidence=0.95] [level=mechanism|training]
    fedpriv audit strategy=fedcad strategy.client.noise_multiplier=4 [participations=1] [audit_seed=0] ...

`fedpriv audit guard=POLICY parameters=NUMBER [delta=]` attacks the guard of foreign apps (docs/guard.md).

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

from fedpriv.attacks import auditing
from fedpriv.attacks.auditing import OWN_FIT, Audited, AuditOptions
from fedpriv.attacks.release_audit import threat_in_words
from fedpriv.commands import guard_costs
from fedpriv.common.command_line import DONE, FAILED, command, hints_of, nearest
from fedpriv.common.errors import OptionError
from fedpriv.common.places import use_own_methods
from fedpriv.common.printing import say
from fedpriv.config.owner import PLACES
from fedpriv.privacy.auditor import BROKEN
from fedpriv.report.live.task import task
from fedpriv.report.tables import plain_table


def main(arguments: Sequence[str]) -> int:
    return (guard_costs.audit if guard_costs.asks_for_guard(arguments) else audit)(arguments)


@command
def audit(*overrides: str, run: Path | None = None, options: AuditOptions) -> int:
    use_own_methods()
    if run is not None and (wrong := [one for one in overrides if one.partition("=")[0] not in PLACES]):
        (key, _, value), own = wrong[0].partition("="), ("run", *hints_of(AuditOptions))
        words = f"run= takes the run's own options; beside it: {', '.join(own)}{nearest(key, own)}"
        raise OptionError(key, value, words)
    with task("audit"):
        audited = auditing.audit_run(run, overrides, options)
    broken = _print_training(audited) if audited.training else _print(audited)
    if run is not None and (audited.training or options.participations is None):
        say(f"written into {run / 'summary.json'} and report.html")
    return FAILED if broken else DONE


def _print_training(audited: Audited) -> bool:
    """Returns whether a verdict is that the verified epsilon does not hold."""
    assert audited.training is not None
    canaries, fits, verdicts = audited.training.canaries, audited.training.fits, audited.training.verdicts
    say(
        f"canaries in a real run, {threat_in_words(audited.config)}:\n{canaries}; "
        f"verified epsilon <= {_shown(audited.training.verified)}: {verdicts[0]}"
    )
    for bound in canaries.sharper:
        say(f"under an assumption: {bound}")
    say(
        f"the {OWN_FIT}, {fits.scope}: {fits.audit}; verified epsilon <= {_shown(fits.verified)}: {verdicts[1]}; "
        f"{at_most(fits.audit.attainable)}"
    )
    return BROKEN in verdicts


def _print(audited: Audited) -> bool:
    config, scopes, contract = audited.config, audited.scopes, audited.contract
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
            f"at the verified epsilon it would have shown {_shown(scope.expected)} or more, {at_most(scope.attainable)}"
        )
        for bound in scope.sharper:
            say(f"{scope.name}, under an assumption: {bound}")
    say(contract)
    return bool(contract and contract.findings) or any(scope.verdict == BROKEN for scope in scopes)


def at_most(attainable: float) -> str:
    """The most that this many trials could have shown, in words: beyond it, finding nothing means nothing."""
    return f"a perfect attack would have shown {_shown(attainable)} at most"


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return "infinite" if math.isinf(value) else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
