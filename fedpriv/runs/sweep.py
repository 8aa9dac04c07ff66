"""What a sweep says at its end. A module of its own: Hydra makes the callback by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

from fedpriv.common.command_line import DONE, FAILED, shown
from fedpriv.common.verbosity import is_quiet


class SweepOutcome(Callback):
    """Hydra's callback: which jobs failed, whichever process they ran in, and what to do with the others."""

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
            print(f"compare: fedpriv compare {shown(folder)}", flush=True)


#: A sweep's job writes its failure here: exit code and reason. Jobs may run in other processes, folders are common.
FAILURE_FILE = "failed.txt"


_jobs_of_sweep: list[int] = []  # how many there are, where this process has counted them


def planned(jobs: int) -> None:
    """A sweep of so many jobs begins."""
    _jobs_of_sweep[:] = [jobs]


def which(number: int) -> str:
    """Which job of the sweep the one with Hydra's number is: "job 3 of 12", or "job 3" in a process of a launcher's."""
    return f"job {number + 1}" + (f" of {_jobs_of_sweep[0]}" if _jobs_of_sweep else "")


exit_codes: list[int] = []  # of the jobs that ran in this process, and of the sweep as a whole


def job_ended(code: int) -> None:
    """Counts towards the exit code of `_run_hydra`."""
    exit_codes.append(code)
