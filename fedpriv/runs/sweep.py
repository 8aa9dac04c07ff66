"""What a sweep says at its end. A module of its own: Hydra makes the callback by its name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.experimental.callback import Callback

from fedpriv.common.command_line import DONE, FAILED, shown
from fedpriv.common.errors import FedprivError, OptionError
from fedpriv.common.verbosity import is_quiet
from fedpriv.config.compose import parse


class SweepOutcome(Callback):
    """Hydra's callback: which jobs failed, whichever process they ran in, and what to do with the others."""

    def on_multirun_start(self, config: Any, **_: Any) -> None:
        """Failures of an earlier sweep are not those of this one; runs of one are not here (`refuse_used`)."""
        for path in Path(config.hydra.sweep.dir).glob(f"*/{FAILURE_FILE}"):
            path.unlink()

    def on_multirun_end(self, config: Any, **_: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        failures = {path.parent.name: path.read_text().strip() for path in sorted(folder.glob(f"*/{FAILURE_FILE}"))}
        finished = list(folder.glob("*/summary.json"))
        job_ended(FAILED if failures else DONE)
        if not is_quiet():
            print(f"sweep: {len(finished)} runs finished, {len(failures)} failed")
            for name, reason in failures.items():
                print(f"  {name}: {reason}")
        if finished:
            print(f"compare: {_compared(folder)}", flush=True)


def _compared(folder: Path) -> str:
    """Writes the sweep's page and says where it is; where that does not work, the command that tells why."""
    from fedpriv.report.compare import compare
    from fedpriv.report.page import write_comparison
    from fedpriv.report.reading import find_runs, read_run

    command = f"fedpriv compare {shown(folder)}"
    try:
        found = compare([read_run(run) for run in find_runs([folder])])
        return shown(write_comparison(found, folder)[0]) if found.groups else command
    except (FedprivError, OSError):
        return command


#: A sweep's job writes its failure here: exit code and reason. Jobs may run in other processes, folders are common.
FAILURE_FILE = "failed.txt"


def refuse_used(folder: str) -> None:
    """Raises `OptionError` where hydra.sweep.dir holds runs: they would be counted and compared with the new ones."""
    used = sorted(path.parent.name for path in Path(folder).glob("*/config.yaml")) if "${" not in folder else []
    if used:
        words = f"holds runs already ({used[0]}); allowed: a folder without runs"
        raise OptionError("hydra.sweep.dir", folder, words)


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


_jobs_of_sweep: list[int] = []  # how many there are, where this process has counted them


def planned(jobs: int | None) -> None:
    """A sweep of so many jobs begins; None: of as many as a search takes."""
    _jobs_of_sweep[:] = [] if jobs is None else [jobs]


def which(number: int) -> str:
    """Which job of the sweep the one with Hydra's number is: "job 3 of 12", or "job 3" in a process of a launcher's."""
    return f"job {number + 1}" + (f" of {_jobs_of_sweep[0]}" if _jobs_of_sweep else "")


exit_codes: list[int] = []  # of the jobs that ran in this process, and of the sweep as a whole


def job_ended(code: int) -> None:
    """Counts towards the exit code of `_run_hydra`."""
    exit_codes.append(code)
