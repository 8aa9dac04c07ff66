"""What a person sees while a study goes on: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedpriv.common.printing import say
from fedpriv.report.live.progress import SECONDS_BETWEEN_LINES
from fedpriv.report.words import number, percent, pick
from fedpriv.studies.carrying_out import Failure
from fedpriv.studies.jobs import Job
from fedpriv.studies.results import RunRecord


class StudyProgress:
    """Counts the jobs of each stage (``told``)."""

    def __init__(self) -> None:
        self.console = Console()
        self.bar: Progress | None = None
        self.tasks: dict[str, object] = {}
        self._shown = 0.0
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=self.console)

    def __enter__(self) -> StudyProgress:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def told(self, stage: str, job: Job, result: RunRecord | Failure, done: int, of: int) -> None:
        """A job of a stage is done."""
        if self.bar:
            if stage not in self.tasks:
                self.tasks[stage] = self.bar.add_task(stage, total=of)
            self.bar.update(self.tasks[stage], completed=done)  # type: ignore[arg-type]
            return
        now = time.monotonic()
        if now - self._shown < SECONDS_BETWEEN_LINES and done < of:
            return
        self._shown = now
        accuracy = None if isinstance(result, Failure) else number(pick(result.summary, "accuracy", "final"))
        words = result.words if isinstance(result, Failure) else percent(accuracy, absent="planned")
        say(f"{stage} {done}/{of}  {job.name}  {words}", flush=True)
