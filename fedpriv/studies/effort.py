"""What a paper's or the boards' runs would cost, before any of them is made."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from fedpriv.common.errors import RunFolderError
from fedpriv.studies.board_jobs import Prepared
from fedpriv.studies.carrying_out import Runs
from fedpriv.studies.claim_spec import AtLeast, Better, Similar
from fedpriv.studies.cost import Size, size
from fedpriv.studies.experiments import plan
from fedpriv.studies.jobs import Job
from fedpriv.studies.leaderboard import planned, reachable
from fedpriv.studies.reproduction import Measured, best_of_searches
from fedpriv.studies.results import RunRecord, read_runs
from fedpriv.studies.search import begin
from fedpriv.studies.spec import Reproduction, Scale

#: Core-seconds for 600 pictures of a small network, where nothing like it has been measured.
SECONDS_PER_EPOCH = 0.1


@dataclass(frozen=True)
class Effort:
    """Runs in all, those to be made, and their core-seconds."""

    runs: int = 0
    left: int = 0
    seconds: float = 0.0

    def __add__(self, other: Effort) -> Effort:
        return Effort(self.runs + other.runs, self.left + other.left, self.seconds + other.seconds)

    def __str__(self) -> str:
        runs = f"{self.runs:,} run{'s' if self.runs > 1 else ''}"
        return f"{runs}, {self.left:,} of them to be made (about {self.seconds / 60:.1f} core-minutes)"


@dataclass
class Known:
    """What a study's folder holds: names of runs, and the mean seconds of those of one method, model and length."""

    done: dict[str, RunRecord]
    _seconds: dict[tuple[str, str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for one in self.done.values():
            if one.kind in ("train", "attack"):
                names = (str(one.summary.get("strategy")), str(one.summary.get("model")), one.summary.get("rounds", 0))
                self._seconds[names].append(one.seconds)

    @classmethod
    def of(cls, folder: Path) -> Known:
        try:
            return cls({one.name: one for one in read_runs(folder) if one.superseded is None})
        except RunFolderError:
            return cls({})

    def seconds(self, run: Size) -> float:
        known = self._seconds.get((run.strategy, run.model, run.rounds))
        return fmean(known) if known else 1.0 + run.epochs * SECONDS_PER_EPOCH

    def effort(self, jobs: Iterable[Job]) -> Effort:
        jobs = set(jobs)
        left = [job for job in jobs if job.name not in self.done]
        trained = (job for job in left if job.kind in ("train", "attack"))
        others = sum(job.kind not in ("train", "attack") for job in left)
        return Effort(len(jobs), len(left), 2.0 * others + sum(self.seconds(size(job.without_seed)) for job in trained))


def paper_words(paper: Reproduction, scale: Scale, data: Path, folder: Path, seeds: int | None = None) -> list[str]:
    """Lines: runs and core-minutes of the first looks and of all of them, by table, what of it is done, and how much a
    table may use for looks beyond the first.
    """
    known = Known.of(folder)
    first = plan(paper, scale, data, folder, seeds=seeds)
    searched = {job: known.done[job.name] for job in first.searches if job.name in known.done}
    # Before a search is complete its options stand at its first column.
    whole = len(searched) == len(first.searches)
    best = best_of_searches(Measured(paper, first, searched, scale, seeds)) if whole else None
    first = plan(paper, scale, data, folder, seeds=seeds, best=best)
    tests = (claim for claim in paper.claims.values() if isinstance(claim.test, Better | Similar | AtLeast))
    wanted = {cell for claim in tests for cell in claim.cells} & first.jobs.keys()  # no other gets more seeds
    lasts = {} if seeds else {place: len(paper.looks(place[0], scale)) for place in wanted}
    last = plan(paper, scale, data, folder, seeds=seeds, best=best, taken=lasts)
    lines = [
        f"{paper.paper}: {known.effort(first.all_jobs)}; all looks, at most: {known.effort(last.all_jobs)}",
    ]
    for table in paper.tables:
        now, all_looks = (
            known.effort(job for place, jobs in planned.jobs.items() if place[0] == table for job in jobs)
            for planned in (first, last)
        )
        if now.runs:
            budget = paper.budget(table, scale) / 60
            most = f", made while it uses at most {budget:.3g}" if math.isfinite(budget) else ""
            more = f"; all looks: {all_looks}{most}" if all_looks.runs > now.runs else ""
            lines.append(f"  {table}: {now}{more}")
    return lines


def board_words(boards: Sequence[Prepared], runs: Runs) -> Iterator[str]:
    """A line for each board, and one for all, without and with all widenings. Carries out the plans alone. What a
    search chooses is not known: a final run counts as one to be made.
    """
    plans, known = runs.do("plan", planned(boards)), Known({one.name: one for one in runs.lines})
    sums = Effort(), Effort()
    for board in boards:
        own, seeds, first, most = board.plan.tuning, len(board.plan.seeds), Effort(), Effort()
        keys = reachable([board], plans)
        for key in keys:
            search = begin(key.space, own.trials, own.seed)
            each = known.seconds(size(Job("train", key.options(search.trials[0]), own.seed).without_seed))
            trials = own.trials * seeds if key.private else 0
            now = Effort(trials, trials, trials * each) if trials else known.effort(key.tuning(search.trials))
            now += Effort(seeds, seeds, seeds * each)
            wider = 0 if key.private else own.further * own.widenings
            first, most = first + now, most + now + Effort(wider, wider, wider * each)
        sums = sums[0] + first, sums[1] + most
        yield f"{board.name}: {sum(key.target is not None for key in keys)} entries, {first}; at most: {most}"
    yield f"in all: {sums[0]}; at most: {sums[1]}"
