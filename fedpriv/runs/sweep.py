"""What a sweep says at its end. A module of its own: Hydra makes the callback by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

from fedpriv.common.command_line import DONE, FAILED, shown
from fedpriv.common.errors import FedprivError
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
