"""The calls of `import fedpriv`: what the command line does, as functions that return objects and raise exceptions.

A call changes nothing of the process in which it runs: working directory, logging, signal handlers, number of torch's
threads and import path are as before when it returns. It can run where an event loop runs or Ray does.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.api.arguments import checked
from fedpriv.api.comparison import Comparison
from fedpriv.api.findings import Attacks, Audit, Plan
from fedpriv.api.run_object import Run, folder_of
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.places import with_own_methods
from fedpriv.common.run_files import mapping_in
from fedpriv.common.stopping import stop
from fedpriv.common.verbosity import speaking
from fedpriv.config.compose import COMMANDS, compose, parse, read_config
from fedpriv.config.owner import trust
from fedpriv.config.schema import Config
from fedpriv.report.views import PRIVATE

if TYPE_CHECKING:
    from fedpriv.certificates.making import Certificate

#: Calls for what the command line has an option for.
INSTEAD = {
    "resume": "fedpriv.resume_run(FOLDER)",
    "extend": "fedpriv.extend_run(FOLDER, [...])",
    "rerun": "fedpriv.rerun(FOLDER, [...])",
    "plan": "fedpriv.plan_run([...])",
    "policy": "`fedpriv plan policy=FILE ...` in a terminal",
}


@checked
def run(options: Sequence[str] = (), *, folder: str | Path | None = None, quiet: bool = False) -> Run:
    """Trains. options: as on the command line, ``["strategy=fedcad", "num_rounds=10"]``. folder: where the run is
    written; None: ``outputs/<date>/<time>-<strategy>-<dataset>``. quiet: no progress.

    Raises `OptionError` for a wrong option, `DataError` for data that cannot be read, `RunFolderError` for a folder in
    use, `RunFailed` where the run cannot go on. After KeyboardInterrupt (once: at the end of the round, twice: at once)
    and after `RunFailed` the folder is there: `resume_run` goes on from its last checkpoint.
    """
    with _guest(quiet):
        config = _one_run(options)
        target = folder_of(folder) if folder is not None else _new_folder(config)
        from fedpriv.runs.start import start_run

        with _resumable(target):
            start_run(config, target)
        return Run(target)


@checked
def resume_run(run: Run | str | Path, options: Sequence[str] = (), *, quiet: bool = False) -> Run:
    """Goes on with an interrupted run from its newest checkpoint; it ends as if nothing had happened, bit for bit.
    options: of operations.*, tracking.* and of places on this machine (``dataset.root``).

    Raises `RunFolderError` for a run that has finished, or whose code, options or versions are others now.
    """
    path = folder_of(run)
    with _guest(quiet), _resumable(path):
        from fedpriv.runs.start import resume_run as resumed

        resumed(path, options)
    return Run(path)


@checked
def extend_run(run: Run | str | Path, options: Sequence[str], *, quiet: bool = False) -> Run:
    """More rounds for a run that has finished: ``["num_rounds=120"]``. They are priced, with all that was released
    before, before the first of them begins.

    Raises `OptionError` for an option that an extension cannot change, a method that cannot be extended, or an epsilon
    beyond `privacy.target_epsilon`; `RunFolderError` for a run that has not finished.
    """
    path = folder_of(run)
    _check_overrides(options)
    with _guest(quiet), _resumable(path):
        from fedpriv.runs.extension import extend_run as extended
        from fedpriv.runs.start import resume_run as resumed

        extended(path, list(options))
        resumed(path)
    return Run(path)


@checked
def rerun(
    run: Run | str | Path, options: Sequence[str] = (), *, folder: str | Path | None = None, quiet: bool = False
) -> Run:
    """Repeats a run, finished or not, in a folder of its own, with other values where options say so:
    ``["local.lr=0.05", "seed=1"]``. folder: as in `run`.

    Raises as `run` does, and `RunFolderError` where there is no run.
    """
    _check_overrides(options)
    with _guest(quiet):
        from fedpriv.runs.changed import config_for_rerun
        from fedpriv.runs.start import start_run

        config = config_for_rerun(folder_of(run), list(options))
        target = folder_of(folder) if folder is not None else _new_folder(config)
        with _resumable(target):
            start_run(config, target)
        return Run(target)


@checked
def plan_run(options: Sequence[str] = ()) -> Plan:
    """What a run would cost: epsilons, bytes, time. Trains nothing, releases nothing, writes nothing.

    Raises `OptionError`, `DataError`.
    """
    with _guest(quiet=False):
        from fedpriv.runs.preparation import resolve

        config, _, plan = resolve(_one_run(options), None)
        return Plan(
            config,
            None if plan.claim is None else plan.claim.epsilon,
            plan.verified_epsilon,
            plan.verified_median,
            plan.accountant,
            plan.reasons,
            plan.participations,
            plan.bytes_up,
            plan.bytes_down,
            plan.seconds,
        )


@checked
def audit_run(
    run: Run | str | Path | Sequence[str],
    *,
    level: str = "mechanism",
    trials: int = 200_000,
    confidence: float = 0.95,
    participations: int | None = None,
    seed: int = 0,
    places: Sequence[str] = (),
) -> Audit:
    """Attacks the release code (``level="mechanism"``), or a real run with canaries (``"training"``).

    run: a finished run, whose summary and report get the result, or options. trials: releases of each kind. confidence:
    of the lower bounds. participations: only so many releases; the result is then not written. places: of a run,
    where things are on this machine, ``["dataset.root=/data"]``. Raises `OptionError`, `RunFolderError`.
    """
    with _guest(quiet=False):
        from fedpriv.attacks import auditing
        from fedpriv.attacks.contract_check import check_contract
        from fedpriv.runs.changed import said, with_operations
        from fedpriv.runs.folder import RunFolder
        from fedpriv.runs.planning import with_target

        options = auditing.AuditOptions(trials, confidence, seed, level, participations)
        if isinstance(run, Run | str | Path):
            folder = RunFolder(_finished(run))
            config = with_operations(read_config(folder.path, said(places)), places)
        else:
            folder, config = None, with_target(_one_run(run))
        if level == "training":
            found = auditing.audit_training_of(config, options)
            if folder is not None:
                auditing.write_training_audit(folder, found)
            return Audit(training=found.canaries, fits=found.fits)
        contract = check_contract(config)
        scopes = auditing.audit_releases(config, options, folder)
        if folder is not None and participations is None:
            auditing.write_release_audit(folder, config, scopes, contract)
        return Audit(tuple(scopes), contract=contract)


@checked
def attack_run(
    run: Run | str | Path, attack: str = "all", *, quiet: bool = False, places: Sequence[str] = (), **options: Any
) -> Attacks:
    """Membership inference against a finished run, with controls. attack: names with commas, or ``all`` that the run
    allows. places: as of `audit_run`. options: members, known_share, shadows, workers, seed, control_models,
    control_examples, control_epochs.

    Results go into the run's attacks/, summary and report. Raises `OptionError`, `RunFolderError`, and `RunFailed`
    where a control fails: then what was found is not shown.
    """
    with _guest(quiet):
        from fedpriv.attacks.run import attack_run as attacked
        from fedpriv.attacks.run import check_names

        check_names(options)
        path = _finished(run)
        attacked(str(path), attack, options, places)
        names = sorted(Run(path).summary.get("attacks", {})) if attack == "all" else attack.split(",")
        return Attacks({name: mapping_in(path, f"{PRIVATE}/attacks/{name}.json") for name in names})


@checked
def certify_run(
    run: Run | str | Path, *, key: str | Path = "", out: str | Path = "", verifier: bool = False
) -> Certificate:
    """A signed file from which anybody can compute the run's epsilon again (docs/certificates.md). key: a file with the
    Ed25519 key that signs; the user's own where none is given. out: a folder; the run's own where none is given.
    verifier: the program that checks it goes there too.

    Raises `RunFolderError` for a run that has not finished, or whose ledger is not the one that it wrote.
    """
    from fedpriv.certificates.making import of_any

    with with_own_methods():
        return of_any(_finished(run), key=str(key), out=str(out), verifier=verifier)


@checked
def certify_node(
    data: str | Path, *, policy: str | Path, credentials: str | Path, out: str | Path = "", verifier: bool = False
) -> Certificate:
    """As `certify_run`, of a node's data folder, signed by its identity. out: a folder outside the data folder;
    ``certificate`` where none is given.

    Raises `LedgerRefused` where what was spent is not known.
    """
    from fedpriv.certificates.making import of_any

    return of_any(folder_of(data), policy=str(policy), credentials=str(credentials), out=str(out), verifier=verifier)


@checked
def load(folder: str | Path, *, trust_code: str = "") -> Run:
    """A run from its folder: finished, interrupted, or going on elsewhere. trust_code: code that a folder of somebody
    else's names and that you have read, ``package.module.name@SHA256`` of its file; several with commas. Raises
    `RunFolderError`, `OptionError`.
    """
    if trust_code:
        trust(trust_code)
    return Run(folder_of(folder))


@checked
def compare_runs(runs: Sequence[Run | str | Path]) -> Comparison:
    """Runs, or folders that hold some, side by side: grouped over seeds, one table for each threat model.

    Raises `RunFolderError` where there is nothing to compare.
    """
    from fedpriv.report.compare import compare_folders
    from fedpriv.report.reading import find_runs

    found = compare_folders(find_runs([folder_of(run) for run in runs]))
    if not found.groups:
        reasons = "; ".join(f"{path.name}: {why}" for path, why in found.left_out)
        raise RunFolderError(f"none of these runs can be compared ({reasons or 'there are none'})")
    return Comparison(found)


# --- parts -----------------------------------------------------------------------------------------------


def _one_run(options: Sequence[str]) -> Config:
    _check_overrides(options)
    return compose(list(options))


def _check_overrides(options: Sequence[str]) -> None:
    """One value for each option, and nothing that is for the command line. Raises `OptionError`."""
    for override in parse(options):
        key, value = override.key_or_group, override.get_value_string() if not override.is_delete() else ""
        if key in INSTEAD:
            raise OptionError(key, value, f"is a call of its own: {INSTEAD[key]}")
        if override.is_sweep_override():
            raise OptionError(key, value, "one run has one value: call fedpriv.run for each")
        if key in COMMANDS or key.split(".")[0].split("/")[0] == "hydra":
            raise OptionError(key, value, "is for the command line; where a run is written says folder=")


def _new_folder(config: Config) -> Path:
    """A folder that is not there yet: several runs may begin within a second."""
    now = datetime.now()
    name = f"{now:%H-%M-%S}-{config.strategy.name}-{config.dataset.name}"
    folder = first = Path("outputs").absolute() / f"{now:%Y-%m-%d}" / name
    number = 1
    while folder.exists():
        number += 1
        folder = first.with_name(f"{name}-{number}")
    return folder


def _finished(run: Run | str | Path) -> Path:
    _ = (found := Run(folder_of(run))).summary
    return found.folder


@contextmanager
def _guest(quiet: bool) -> Iterator[None]:
    """In somebody else's process: what a run sets for itself is put back."""
    import torch

    threads, flower = torch.get_num_threads(), logging.getLogger("flwr")
    level = flower.level
    with ExitStack() as stack:
        stack.enter_context(with_own_methods())
        stack.enter_context(stop.handled())
        if quiet:
            stack.enter_context(speaking("quiet"))
            stack.enter_context(redirect_stdout(io.StringIO()))
            stack.enter_context(redirect_stderr(io.StringIO()))
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            flower.setLevel(level)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """An interruption, or a failure of the run, says how to go on; a refused run leaves no folder."""
    from fedpriv.runs.folder import remove_if_unused

    try:
        yield
    except BaseException as error:
        if (folder / "config.yaml").is_file() and not (folder / "summary.json").exists():
            error.add_note(f"fedpriv.resume_run({str(folder)!r}) goes on from the last checkpoint")
        raise
    finally:
        remove_if_unused(folder)
