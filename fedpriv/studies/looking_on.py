"""What a person sees of many runs: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedpriv.report.words import number, percent, pick, seconds
from fedpriv.studies.jobs import Failure, Job
from fedpriv.studies.results import RunRecord


class Looker:
    """``told`` is given to `fedpriv.studies.jobs.carry_out_all`."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.console = name, Console()
        self.bar: Progress | None = None
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=self.console)
            self.task = self.bar.add_task(name, total=total)

    def __enter__(self) -> Looker:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def told(self, job: Job, result: RunRecord | Failure, done: int, of: int) -> None:
        if self.bar:
            self.bar.update(self.task, completed=done)
        if isinstance(result, Failure):
            words = f"failed: {result.words}"
        else:
            accuracy = number(pick(result.summary, "accuracy", "final"))
            words = f"{percent(accuracy, 'done')}, {seconds(result.seconds)}"
        if not self.bar or isinstance(result, Failure):
            print(f"{self.name}: {done} of {of}: {job.name}: {words}", flush=True)
