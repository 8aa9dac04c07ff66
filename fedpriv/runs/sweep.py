"""What a sweep says at its end. A module of its own: Hydra makes the callback by its name."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

from hydra.core.override_parser.types import Override
from hydra.experimental.callback import Callback

from fedpriv.common.command_line import DONE, FAILED, shown
from fedpriv.common.errors import FedprivError, OptionError
from fedpriv.common.files import write_atomic
from fedpriv.common.places import CONFIG_DIR
from fedpriv.common.printing import say
from fedpriv.common.run_files import mapping_in, refuse_links, text_in
from fedpriv.common.stopping import stop
from fedpriv.common.systems import lock
from fedpriv.common.verbosity import is_quiet
from fedpriv.config.compose import parse, read_config
from fedpriv.config.owner import is_own, mark_own
from fedpriv.config.schema import Config
from fedpriv.report.reading import SWEEP_FILE, leaves, options_of_sweep


class SweepOutcome(Callback):
    """Hydra's callback: which jobs failed, whichever process they ran in, and what to do with the others."""

    def on_multirun_start(self, config: Any, **_: Any) -> None:
        """Failures of an earlier sweep are not those of this one; runs of another are not here (`refuse_used`)."""
        folder = Path(config.hydra.sweep.dir)
        if under_way.folder is not None:  # a further pass of the same sweep
            return
        for path in (*folder.glob(f"*/{FAILURE_FILE}"), folder / PASS_FILE):
            path.unlink(missing_ok=True)
        under_way.folder = folder
        if under_way.jobs is not None:
            folder.mkdir(parents=True, exist_ok=True)
            said = {"jobs": under_way.jobs, "options": under_way.options, "config_dir": os.environ.get(CONFIG_DIR)}
            write_atomic(folder / SWEEP_FILE, json.dumps(said, indent=1) + "\n")
            mark_own(folder, SWEEP_FILE)

    def on_multirun_end(self, config: Any, **_: Any) -> None:
        if not under_way.in_passes:
            sweep_ended(Path(config.hydra.sweep.dir))


def launch_in_passes(launch: Callable[[], object]) -> None:
    """Launches a sweep's jobs in other processes, of which one that dies takes all jobs that run with it.

    The others are launched anew without those that were under way, and then each of these alone. A job that kills its
    process even so has failed; no other job is lost. Of a search, whose jobs depend on each other, the first pass is
    the only one, and after a signal no further one begins.
    """
    under_way.in_passes = True
    broken, suspects = _broken(launch), set[int]()
    folder = under_way.folder
    if folder is None:
        raise BrokenExecutor(broken)
    if not broken or under_way.jobs is None:
        return sweep_ended(folder, broken)
    while broken and not stop.requested:
        waiting, before = _waiting(folder), len(suspects)
        suspects |= waiting & _numbers(folder, "config.yaml")
        if len(suspects) == before or waiting <= suspects:
            break
        broken = _broken(launch, waiting - suspects)
    for number in sorted(_waiting(folder)):
        if not stop.requested and (why := _broken(launch, {number})):
            job = next(folder.glob(f"{number}-*"), folder / f"{number}-killed")
            job.mkdir(exist_ok=True)
            write_atomic(job / FAILURE_FILE, f"exit code {FAILED}: {KILLED} ({why})\n", mode=0o600)
    sweep_ended(folder, broken if _waiting(folder) else None)


def _broken(launch: Callable[[], object], only: Collection[int] | None = None) -> str | None:
    """Why a pass ended before its last job; None for one that did not. only: the numbers of its jobs; None: all."""
    if only is not None and under_way.folder is not None:
        write_atomic(under_way.folder / PASS_FILE, json.dumps(sorted(only)))
    try:
        launch()
    except BrokenExecutor as error:
        return " ".join(str(error).split())[:200] or "a process died"
    return None


def take_gpu(folder: Path) -> None:
    """Gives this process, one of several that run a sweep's jobs, one of the machine's GPUs (or of those that
    CUDA_VISIBLE_DEVICES names) for as long as it lives: the one that fewest of the others have. To be called before
    torch touches a GPU.
    """
    import torch

    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = list(map(str, range(torch.cuda.device_count()))) if said is None else [one for one in said.split(",") if one]
    if _taken or len(gpus) < 2:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for share, (number, gpu) in ((share, one) for share in count(1) for one in enumerate(gpus)):
        file = (folder / f".gpu-{number}-{share}").open("w")
        try:
            lock(file)
        except OSError:
            file.close()
            continue
        _taken.append(file)
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        return


#: The open file whose lock is this process's GPU.
_taken: list[IO[str]] = []


def left_out(job: Path) -> bool:
    """Whether the launcher's pass is not about the job with this folder."""
    path = job.parent / PASS_FILE
    return path.exists() and _number(job.name) not in json.loads(path.read_text())


def _numbers(folder: Path, kind: str) -> set[int]:
    return {_number(path.parent.name) for path in folder.glob(f"*/{kind}")}


def _waiting(folder: Path) -> set[int]:
    """The jobs that have neither finished nor failed."""
    return set(range(under_way.jobs or 0)) - _numbers(folder, "summary.json") - _numbers(folder, FAILURE_FILE)


def sweep_ended(folder: Path, broken: str | None = None) -> None:
    """Says which jobs finished, failed, were left half-done and never began, and compares those that finished. broken:
    why the launcher ended before the last job.
    """
    for path in (folder / PASS_FILE, *folder.glob(".gpu-*")):
        path.unlink(missing_ok=True)
    failures = {
        path.parent.name: text_in(path.parent, path.name).strip() for path in sorted(folder.glob(f"*/{FAILURE_FILE}"))
    }
    finished = list(folder.glob("*/summary.json"))
    begun = sorted((path.parent.name for path in folder.glob("*/config.yaml")), key=_number)
    half = [name for name in begun if name not in failures and not (folder / name / "summary.json").is_file()]
    known = _numbers(folder, "config.yaml") | _numbers(folder, FAILURE_FILE)
    never = [number for number in range(under_way.jobs or 0) if number not in known]
    job_ended(FAILED if failures or broken or half or never else DONE)
    if broken:
        say(f"fedpriv: the launcher ended early: {broken}", file=sys.stderr, flush=True)
    if not is_quiet():
        say(f"sweep: {len(finished)} runs finished, {len(failures)} failed")
        for name, reason in failures.items():
            say(f"  {name}: {reason}")
        for path in sorted(finished):
            if diverged := mapping_in(path.parent, path.name).get("diverged"):
                say(f"  {path.parent.name}: {diverged}")
        for name in half:
            say(f"  {name}: not finished")
        if never:
            say(f"  never begun: {', '.join(f'job {number + 1}' for number in never)} of {under_way.jobs}")
    if (half or never) and under_way.jobs is not None:
        say(f"fedpriv: fedpriv resume={shown(folder)} goes on with the sweep", file=sys.stderr, flush=True)
    if finished:
        say(f"compare: {_compared(folder)}", flush=True)


def _number(name: str) -> int:
    """Hydra's number of a job, with which its folder's name begins."""
    first = name.partition("-")[0]
    return int(first) if first.isdecimal() else -1


def _compared(folder: Path) -> str:
    """Writes the sweep's page and says where it is; where that does not work, the command that tells why."""
    from fedpriv.report.compare import compare_folders
    from fedpriv.report.page import write_comparison
    from fedpriv.report.reading import find_runs

    command = f"fedpriv compare {shown(folder)}"
    try:
        found = compare_folders(find_runs([folder]))
        return shown(write_comparison(found, folder)[0]) if found.groups else command
    except (FedprivError, OSError):
        return command


#: A sweep's job writes its failure here: exit code and reason. Jobs may run in other processes, folders are common.
FAILURE_FILE = "failed.txt"
#: In a sweep's folder: the numbers of the jobs that the launcher's pass is about; without it, all.
PASS_FILE = "pass.json"
KILLED = "it ran alone, and its process was killed: is there too little memory?"


def refuse_used(folder: str, options: Sequence[str]) -> None:
    """Raises `OptionError` where hydra.sweep.dir holds runs of other options: they would be counted and compared with
    the new ones. The same options go on with the sweep.
    """
    if "${" not in folder and Path(folder).is_dir() and not is_own(Path(folder), SWEEP_FILE):
        refuse_links(Path(folder))
    used = sorted(path.parent.name for path in Path(folder).glob("*/config.yaml")) if "${" not in folder else []
    before = options_of_sweep(Path(folder)) if used else None
    if used and (before is None or _of_runs(before) != _of_runs(options)):
        began = "" if before is None else ", or the command that began them"  # a search cannot be gone on with
        words = f"holds runs already ({used[0]}); allowed: a folder without runs{began}"
        raise OptionError("hydra.sweep.dir", folder, words)


def _of_runs(options: Sequence[str]) -> list[str]:
    """A command's options without those that change no run: where, and how many at a time."""
    elsewhere = ("hydra.sweep.dir=", "hydra/launcher", "hydra.launcher")
    return [option for option in options if not option.startswith(elsewhere)]


def run_job(config: Config, folder: Path, given: Sequence[str]) -> dict[str, Any]:
    """The summary of a sweep's job: as it is where the job has finished, otherwise from its checkpoint or from the
    start. given: the job's overrides of places, operations and tracking.
    """
    from fedpriv.runs.folder import RunFolder
    from fedpriv.runs.start import resume_run, start_run

    if (folder / "config.yaml").is_file():
        _refuse_other(config, folder)
    if (finished := RunFolder(folder).read_summary()) is not None:
        return finished
    return resume_run(folder, given) if (folder / "config.yaml").is_file() else start_run(config, folder)


def _refuse_other(config: Config, folder: Path) -> None:
    """Raises `OptionError` where a job's folder holds a run of other options: of an experiment's file that has changed
    since, or of a sweep that began in the same folder at the same time. What a run chooses for itself is not compared.
    """
    kept = dict(leaves(read_config(folder).to_dict()))
    calibrated = config.privacy.target_epsilon is not None
    for name, asked in leaves(config.to_dict()):
        elsewhere = name == "run_dir" or name.startswith(("engine.", "operations.", "tracking.", "dataset."))
        own = asked is None or asked == "auto" or (calibrated and name.startswith("strategy."))
        if not elsewhere and not own and kept.get(name, asked) != asked:
            words = f"{folder} holds a run with {kept[name]}; allowed: that value, or another hydra.sweep.dir"
            raise OptionError(name, asked, words)


class Different:
    """Refuses a job of a sweep that has been there before: it would count as one more seed, and narrow an interval."""

    def __init__(self, swept: Sequence[Override]) -> None:
        self.swept = swept
        self._values: dict[str, tuple[str, str]] = {}
        self._seen: dict[str, list[str]] = {}

    def check(self, job: list[str]) -> None:
        sign = json.dumps(sorted(map(self._value, job)))
        if sign in self._seen:
            self._refuse(self._seen[sign], job)
        self._seen[sign] = job

    def _value(self, text: str) -> tuple[str, str]:
        """(option, its value in one form): 1, 1.0 and 1.00 are one number."""
        if text not in self._values:
            (override,) = parse([text])
            value = override.value()
            if isinstance(value, int | float) and not isinstance(value, bool):
                value = float(value) if abs(value) < 2**53 else value
            self._values[text] = (override.key_or_group, json.dumps(value, default=str))
        return self._values[text]

    def _refuse(self, before: list[str], job: list[str]) -> None:
        twice = [text for one, text in zip(before, job, strict=True) if one != text]
        for override in self.swept:
            values = [f"{override.key_or_group}={value}" for value in override.sweep_string_iterator()]
            repeated = [text for place, text in enumerate(values) if text in values[:place]]
            named = [text for text in twice or repeated if text.partition("=")[0] == override.key_or_group]
            if named:
                words = f"names the same run twice ({named[0]}); allowed: each value once"
                raise OptionError(override.key_or_group, override.get_value_string(), words)


@dataclass
class UnderWay:
    """The sweep that this process began. jobs: how many; None: as many as a search takes, or begun elsewhere.
    in_passes: the end of a launcher's pass is not yet the sweep's.
    """

    jobs: int | None = None
    options: Sequence[str] = ()
    folder: Path | None = None
    in_passes: bool = False


under_way = UnderWay()


def planned(jobs: int | None, options: Sequence[str] = ()) -> None:
    """A sweep of so many jobs begins; None: of as many as a search takes."""
    kept = [option for option in options if not option.startswith("hydra.sweep.dir=")]
    under_way.jobs, under_way.options, under_way.folder, under_way.in_passes = jobs, kept, None, False


def which(number: int) -> str:
    """Which job of the sweep the one with Hydra's number is: "job 3 of 12", or "job 3" in a process of a launcher's."""
    return f"job {number + 1}" + (f" of {under_way.jobs}" if under_way.jobs else "")


exit_codes: list[int] = []  # of the jobs that ran in this process, and of the sweep as a whole


def job_ended(code: int) -> None:
    """Counts towards the exit code of `_run_hydra`."""
    exit_codes.append(code)
