"""The command line of runs: `fedpriv [run] option=value ...`, `fedpriv plan ...`.

Everything is composed and checked once before Hydra starts, so that a mistake gives one line and exit code 2
(`EXIT_CODES` lists all of them).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from fedpriv.commands import guard_costs, table
from fedpriv.commands.table import flags_and_overrides, with_config_dir
from fedpriv.common.command_line import (
    DISK_FULL,
    DONE,
    FAILED,
    SIGNALLED,
    check_place,
    guarded,
    how_it_stopped,
    importing,
    outcome,
    path_of,
    refuse_no_path,
    shown,
    take,
)
from fedpriv.common.errors import OptionError, RunFailed, RunFolderError
from fedpriv.common.files import write_atomic
from fedpriv.common.places import use_own_methods
from fedpriv.common.printing import say
from fedpriv.common.stopping import Stopped, end_with_parent, signal_of, stop
from fedpriv.common.verbosity import is_quiet
from fedpriv.config.checks import doubts
from fedpriv.config.compose import COMMANDS, at_home, compose, key_and_value
from fedpriv.config.owner import PLACES, is_own
from fedpriv.config.schema import Config
from fedpriv.engines.keeping import kept_between_runs
from fedpriv.report.reading import SWEEP_FILE, flags_of_sweep
from fedpriv.runs.other_options import MOVES
from fedpriv.runs.sweep import (
    FAILURE_FILE,
    Different,
    exit_codes,
    job_ended,
    launch_in_passes,
    left_out,
    options_of_sweep,
    planned,
    refuse_used,
    run_job,
    take_gpu,
    which,
)

#: In a larger sweep, only this many jobs and those with a new value are checked before the first job starts.
CHECKED_JOBS = 200


def plan_main(arguments: Sequence[str]) -> int:
    """`fedpriv plan ...`."""
    return main([*arguments, "plan=true"])


def main(arguments: Sequence[str]) -> int:
    use_own_methods()
    with stop.handled():
        return guarded(lambda: _dispatch(list(arguments)))


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """Context of an active run: an interruption, a full disk or memory is reported with the folder to resume from."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        words = f"{how_it_stopped(interruption)}{_how_to_go_on(folder)}"
        raise Stopped(signal_of(interruption), words) from None
    except OSError as error:
        if error.errno in DISK_FULL or error.errno is None:
            where = f" ({error.filename})" if error.filename else ""
            reason = error.strerror or str(error)
            raise RunFailed(f"{reason}{where}{_how_to_go_on(folder)}") from error
        raise
    except (MemoryError, RuntimeError) as error:
        from fedpriv.mechanisms.device_errors import out_of_memory

        if out_of_memory(error):
            words = "out of memory: engine.trainer=sequential, a smaller engine.client_memory_mib, model or"
            raise RunFailed(f"{words} local.batch_size need less{_how_to_go_on(folder)}") from error
        raise
    finally:
        from fedpriv.runs.folder import remove_if_unused  # what has run has imported it

        remove_if_unused(folder)


def _how_to_go_on(folder: Path) -> str:
    if options_of_sweep(folder.parent) is not None:
        return f"; resume={shown(folder.parent)} goes on with the sweep"
    if (folder / "summary.json").exists():
        return f"; the result is there, fedpriv report {shown(folder)} writes its report"
    if (folder / "config.yaml").exists():
        kept = any(folder.glob("checkpoints/round-*"))
        return f"; resume={shown(folder)} " + (
            "goes on from the last checkpoint" if kept else "begins anew: no checkpoint"
        )
    return ""


def _dispatch(arguments: list[str]) -> int:
    if guard_costs.asks_for_guard(arguments):
        if not {"plan=true", "-h", "--help"} & set(arguments):
            given = next(one.partition("=")[2] for one in arguments if one.startswith("guard="))
            raise OptionError("guard", given, "of fedpriv plan and fedpriv audit; a node takes it at its start")
        return guard_costs.plan(arguments)
    flags, overrides = flags_and_overrides(arguments)
    arguments = with_config_dir(flags.config_dir, arguments)
    if flags.shell_completion:
        from fedpriv.commands.help import complete

        return complete(flags.shell_completion)
    if flags.help:
        from fedpriv.commands.help import help_text

        say(help_text())
        return DONE
    if flags.version:
        from fedpriv import __version__

        say(__version__)
        return DONE
    multirun = flags.multirun
    said: dict[str, str] = {}
    for key, value in map(key_and_value, overrides):
        take(said, key, value)
    commands = {key: value for key, value in map(key_and_value, overrides) if key in COMMANDS}
    for command, work in (("resume", _resume), ("rerun", _rerun), ("extend", _extend)):
        if commands.get(command, "null") != "null":
            _refuse_others(command, commands[command], overrides, [word for word in arguments if word.startswith("-")])
            return work(path_of(commands[command]), overrides)
    plan = commands.get("plan", "false").lower()
    if plan not in ("true", "false"):
        raise OptionError("plan", commands["plan"], "allowed: true, false")
    if plan == "true" and multirun:
        raise OptionError("plan", "true", "plans one run: leave out -m")
    policy = commands.get("policy", "null")
    if policy != "null" and plan == "false":
        raise OptionError("policy", policy, "goes with plan=true: what a node with this policy would refuse")
    if (flags.cfg or flags.info) and multirun:
        raise OptionError("--cfg" if flags.cfg else "--info", "", "shows one run: leave out -m")
    if flags.cfg or flags.info:  # Hydra shows what it would compose
        from fedpriv.config.compose import model_by_name, parse

        shown_by = check(overrides, multirun)
        if shown_by is not None and shown_by.privacy.mechanism is not None:
            words = "its options are put in after Hydra has composed, so that --cfg and --info would not show them"
            raise OptionError("privacy.mechanism", shown_by.privacy.mechanism, f"{words}; allowed: plan=true")
        last = arguments.index(overrides[-1]) + 1 if overrides else 0  # options stand together
        arguments = [*arguments[:last], *model_by_name(parse(overrides)), *arguments[last:]]
        return _run_hydra(_at_home(arguments, overrides), multirun)
    config = check(overrides, multirun)
    if config is not None:
        warn(config)
    if plan == "true":
        return _plan(overrides, None if policy == "null" else Path(path_of(policy)).expanduser())
    if config is not None:
        _start_ray_early(config)
    return _run_hydra(_at_home(arguments, overrides), multirun)


def _at_home(arguments: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The arguments, the method's options spelled as in its YAML file, for Hydra."""
    known = dict(zip(overrides, at_home(overrides), strict=True))
    return [known.get(argument, argument) for argument in arguments]


def check(overrides: Sequence[str], multirun: bool) -> Config | None:
    """Composes every job once; the first mistake raises `OptionError`. Returns a single run's configuration."""
    from fedpriv.config.compose import check_hydra, parse

    if late := next((word for word in overrides if word in table.COMMANDS), None):
        raise OptionError(late, "", f"a command comes first: fedpriv {late} ...")
    parsed = parse(overrides)
    for override in parsed:
        key = override.key_or_group
        if override.is_sweep_override() and not multirun:
            raise OptionError(key, override.get_value_string(), "several values need -m (a sweep)")
        if key == "run_dir":
            raise OptionError(key, override.get_value_string(), "is for `flwr run`: here it is hydra.run.dir")
    check_hydra([o.input_line or "" for o in parsed if _is_hydras(o.key_or_group)])
    for override in parsed:
        if override.key_or_group in ("hydra.run.dir", "hydra.sweep.dir") and not override.is_sweep_override():
            place = str(override.value())
            check_place(override.key_or_group, place)
            if multirun and override.key_or_group == "hydra.sweep.dir":
                refuse_used(place, overrides)
    given, parsed = parsed, [o for o in parsed if not _is_hydras(o.key_or_group)]
    if not multirun:
        return compose([o.input_line or "" for o in parsed])
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    if any(o.key_or_group == "hydra/sweeper" and o.value() != "basic" for o in given):
        planned(None)  # a search chooses its jobs one after the other: each is checked when it is chosen
        compose([o.input_line or "" for o in parsed if not o.is_sweep_override()])
        return None
    (jobs,) = BasicSweeper.split_arguments(parsed, max_batch_size=None) or [[[]]]
    planned(len(jobs), overrides)
    seen: set[str] = set()
    different = Different([o for o in parsed if o.is_sweep_override()])
    for number, job in enumerate(jobs):
        if number < CHECKED_JOBS or not seen.issuperset(job):
            compose([str(override) for override in job])
        different.check(job)
        seen.update(job)
    return None


def _start_ray_early(config: Config) -> None:
    """With ``engine=ray`` its workers start while this process imports torch, reads data and plans."""
    if config.engine.name == "ray":
        from fedpriv.engines.ray_pool import prestart

        prestart(config.engine, config.clients_per_round)


def warn(config: Config) -> None:
    """Says on stderr what is allowed and probably not meant."""
    for words in doubts(config):
        say(f"fedpriv: warning: {words}", file=sys.stderr, flush=True)


def _is_hydras(key: str) -> bool:
    return key.split(".")[0].split("/")[0] == "hydra"


# --- commands --------------------------------------------------------------------------------------------


def _run_hydra(arguments: list[str], multirun: bool) -> int:
    """One run or a sweep in Hydra's folders; the worst exit code of all jobs."""
    import hydra
    from hydra.errors import HydraException
    from hydra.plugins.sweeper import Sweeper

    from fedpriv.config.own_options import CONF, find_own_methods

    exit_codes.clear()
    find_own_methods()
    Sweeper.validate_batch_is_legal = _checked_before  # type: ignore[method-assign, assignment]
    searches = any(o.startswith("hydra/sweeper=optuna") for o in arguments)
    if searches and not any(o.startswith("hydra.sweeper.direction=") for o in arguments):
        arguments = [*arguments, "hydra.sweeper.direction=maximize"]  # of what `job` returns
    elsewhere = any(o.startswith("hydra/launcher=") and o != "hydra/launcher=basic" for o in arguments)
    given, sys.argv = sys.argv, [sys.argv[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra would print several lines and exit; `outcome` prints one
    try:
        launch = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)
        with stop.forwarded() if elsewhere else kept_between_runs() if multirun else nullcontext():
            if multirun and elsewhere:
                launch_in_passes(launch)
                stop.check()  # jobs in other processes ended as if they had failed
            else:
                launch()
    except HydraException as error:
        raise OptionError("hydra", "", " ".join(str(error).split())) from None
    finally:
        sys.argv = given
    return max(exit_codes, default=DONE)


def _checked_before(*_: Any) -> None:
    """In place of Hydra's composition of every job before the first, a quarter of a small run: `check` made it."""


def job(_: Any) -> float | None:
    """One Hydra job: composed again by `compose`, run in the folder that Hydra made for it. Returns the final
    leading metric (accuracy, or an error with its sign turned), which a sweeper that searches makes larger.

    A job that fails records that in its folder, and the other jobs of a sweep continue.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from fedpriv.report.live.progress import plain_output

    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    overrides = list(hydra_config.overrides.task)
    sweep = hydra_config.mode == RunMode.MULTIRUN
    parallel = sweep and "basic" not in hydra_config.launcher._target_
    if parallel and left_out(folder):
        return None

    def work() -> int:
        stop.check()  # the job before this one may have ended with the signal
        config = compose(overrides)
        if parallel:  # a worker whose parent was killed would wait for its next job for ever
            end_with_parent(config.operations.stop_grace)
            take_gpu(folder.parent)
        if sweep:
            warn(config)
            _start_ray_early(config)
        with importing():
            from fedpriv.report.words import leading_metric
            from fedpriv.runs.start import start_run
        if sweep and not is_quiet():
            say(f"--- {which(hydra_config.job.num)}, {folder.name}: {' '.join(overrides)}", flush=True)
        with running(folder):
            given = list(filter(_operates, overrides))
            summary = run_job(config, folder, given) if sweep else start_run(config, folder)
        _, value, more_is_better = leading_metric(summary)
        reached.append(value if value is None or more_is_better else -value)
        finish(summary, folder)
        return DONE

    reached: list[float | None] = []
    with plain_output(f"{folder.name}: " if parallel else None):
        code, message = outcome(work)
    if code > SIGNALLED and not parallel:
        raise Stopped(code - SIGNALLED, message)
    if message:
        say(f"fedpriv: {folder.name + ': ' if sweep else ''}{message}", file=sys.stderr, flush=True)
    job_ended(code)
    if code and sweep:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / FAILURE_FILE, f"exit code {code}: {message}\n", mode=0o600)  # may quote data
    return reached[-1] if reached else None


def finish(summary: dict[str, Any], folder: Path) -> None:
    from fedpriv.report.tables import print_end  # rich

    print_end(summary, folder)


def _refuse_others(command: str, folder: str, overrides: Sequence[str], flags: Sequence[str]) -> None:
    place = Path(path_of(folder))
    if not folder:
        raise OptionError(command, "", "must be the folder of a run")
    others = [*flags, *(o for o in overrides if key_and_value(o)[0] in COMMANDS and key_and_value(o)[0] != command)]
    if command == "resume":
        kept = (command, "hydra.run.dir", *MOVES)
        others += [o for o in overrides if key_and_value(o)[0] not in kept and not _operates(o)]
    if others:
        (key, value), where = key_and_value(others[0]), shown(Path(path_of(folder)))
        words = (
            f"{command}= takes the run's own options; extend={where} num_rounds=... gives a finished run more rounds, "
            f"rerun={where} option=value repeats a run with other options"
        )
        raise OptionError(key, value, words)
    refuse_no_path(command, place)
    if not place.is_dir():
        words = "a file, not a run folder" if place.exists() else "there is no such run folder"
        raise OptionError(command, folder, f"{words}; it must hold a run's config.yaml")


def _own(overrides: Sequence[str]) -> list[str]:
    """Without commands and what Hydra itself is told."""
    named = [(one, key_and_value(one)[0]) for one in overrides]
    return [one for one, name in named if name not in COMMANDS and not _is_hydras(name.lstrip("+~"))]


def _operates(override: str) -> bool:
    return override.startswith(("operations.", "tracking.")) or key_and_value(override)[0] in PLACES


def _resume(folder: str, overrides: Sequence[str]) -> int:
    from fedpriv.runs.start import resume_run

    path = Path(folder)
    if (options := options_of_sweep(path)) is not None:
        for key, value in (key_and_value(one) for one in overrides if not one.startswith("resume=")):
            raise OptionError(key, value, "a sweep goes on with its own options: leave it out")
        if not is_own(path, SWEEP_FILE):  # they may name any code
            words = f"this user's commands did not begin this sweep; {SWEEP_FILE} has its options: where you have read"
            raise RunFolderError(f"{folder}: {words} them, give them yourself, to fedpriv -m, in a new folder")
        return _dispatch(["-m", *flags_of_sweep(path), *options, f"hydra.sweep.dir={folder}"])
    with running(path):
        summary = resume_run(path, [one for one in overrides if _operates(one) or key_and_value(one)[0] in MOVES])
    finish(summary, path)
    return DONE


def _rerun(folder: str, overrides: Sequence[str]) -> int:
    from fedpriv.runs.other_options import config_for_rerun
    from fedpriv.runs.start import start_run

    config = config_for_rerun(Path(folder), _own(overrides))
    now = datetime.now()
    name = f"{now:%H-%M-%S}-{config.strategy.name}-{config.dataset.name}"
    chosen = [value for key, value in map(key_and_value, overrides) if key == "hydra.run.dir"]
    if chosen:
        check_place("hydra.run.dir", path_of(chosen[0]))
    target = Path(path_of(chosen[0])) if chosen else Path("outputs") / f"{now:%Y-%m-%d}" / name
    with running(target):
        summary = start_run(config, target)
    finish(summary, target)
    return DONE


def _extend(folder: str, overrides: Sequence[str]) -> int:
    from fedpriv.runs.extension import extend_run

    path = Path(folder)
    with running(path):
        extend_run(path, _own(overrides))
    return _resume(folder, [])


def _plan(overrides: Sequence[str], policy: Path | None) -> int:
    """policy: a file; exit code 1 where a node with it would refuse the run."""
    from fedpriv.deployment.policy import read_policy
    from fedpriv.report.live.task import task
    from fedpriv.runs.preparation import REFUSED, plan_rows

    with task("plan"):
        config = compose([o for o in overrides if not _is_hydras(key_and_value(o)[0].lstrip("+~"))])
        rows = plan_rows(config, None if policy is None else read_policy(policy))
    width = max(map(len, rows))
    say("\n".join(f"{name:<{width}}  {value}" for name, value in rows.items()))
    return FAILED if any(name.startswith(REFUSED) for name in rows) else DONE
