"""Runs a paper's jobs with a person looking on, look after look, and writes what they gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path

from fedpriv.common.files import locked
from fedpriv.studies.carrying_out import Failure, carry_out_all, find, restore
from fedpriv.studies.experiments import Best, Place, Planned, plan
from fedpriv.studies.figures import draw_figures
from fedpriv.studies.jobs import Job
from fedpriv.studies.reproduction import Measured, best_of_searches, evaluate
from fedpriv.studies.results import RunRecord, read_runs, write_results
from fedpriv.studies.spec import Reproduction, Scale
from fedpriv.studies.study_progress import StudyProgress
from fedpriv.studies.study_words import counted, write_words

RUNS = "runs"
#: Kinds that take a second and train nothing: made also where nothing is to be run.
NO_RUNS = ("plan", "computed")

#: Jobs in, what became of each out; the words say which stage of the study they are.
Do = Callable[[str, Sequence[Job]], Mapping[Job, RunRecord | Failure]]


def reproduce(
    paper: Reproduction,
    scale: Scale,
    data: Path,
    folder: Path,
    *,
    download: bool = False,
    workers: int = 0,
    seeds: int | None = None,
    core_minutes: int | None = None,
    run: bool = True,
) -> list[Failure]:
    """Runs what is missing, writes tables, figures, verdicts and records into ``folder``; returns what failed. run:
    False evaluates what runs.jsonl holds, also what is marked there to be made anew, and what is only computed.
    """
    if core_minutes is not None:
        paper = paper.with_core_minutes(core_minutes)
    make_plan = partial(plan, paper, scale, data, folder, download=download, seeds=seeds)
    with locked(folder / RUNS), StudyProgress() as progress:

        def do(what: str, jobs: Sequence[Job]) -> Mapping[Job, RunRecord | Failure]:
            return carry_out_all(jobs, folder / RUNS, workers, partial(progress.told, f"{what} scale={scale}"))

        if run:
            restore(folder, folder / RUNS)
            study = _Study(paper, scale, make_plan, do, lambda job: find(job, folder / RUNS) is not None, seeds)
        else:
            records = {record.name: record for record in read_runs(folder)}
            study = _Study(
                paper, scale, make_plan, _kept(records, folder), lambda job: job.name in records, seeds, False
            )
        study.go()
    measured = study.measured
    found = evaluate(
        paper,
        scale,
        study.planned,
        study.results,
        draw_figures(measured, folder),
        seeds,
        study.stopped_words(),
        study.why,
        core_minutes,
    )
    write_results(folder, found, measured.records)
    write_words(found, folder)
    for claim in found.claims:
        print(f"  {claim.verdict}: {claim.claim} ({claim.words})")
    print(f"{paper.paper}: {counted(found.claims)}", flush=True)
    return [result for result in study.results.values() if run and isinstance(result, Failure)]


def _kept(records: Mapping[str, RunRecord], folder: Path) -> Do:
    def do(what: str, jobs: Sequence[Job]) -> Mapping[Job, RunRecord | Failure]:
        new = [job for job in jobs if job.name not in records and job.kind in NO_RUNS]
        made = carry_out_all(new, folder / RUNS, workers=1)
        return {job: records.get(job.name) or made.get(job) or Failure(job, "it has not been run yet") for job in jobs}

    return do


@dataclass
class _Study:
    """A paper's cells, each at the look that it has come to: all that are there, and further ones of the cells of a
    claim that waits. made: whether a job's run is there already. may_run: whether others are made. why: claim -> what
    ended it, where it still waits.
    """

    paper: Reproduction
    scale: Scale
    make_plan: Callable[..., Planned]
    do: Do
    made: Callable[[Job], bool]
    seeds: int | None
    may_run: bool = True
    taken: dict[Place, int] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    planned: Planned = field(init=False)
    results: Mapping[Job, RunRecord | Failure] = field(init=False)

    def go(self) -> None:
        self.planned = self.make_plan()
        searched = self.do(f"{self.paper.paper} search", self.planned.searches)
        self.results = searched
        best = best_of_searches(self.measured)
        self._take(best, self._there(best))
        while more := self._more(best):
            before = set(self.results)
            self._take(best, more)
            if not any(isinstance(self.results[job], RunRecord) for job in set(self.results) - before):
                self.why |= dict.fromkeys(self.measured.waiting(), "the next look gave nothing")

    @property
    def measured(self) -> Measured:
        return Measured(self.paper, self.planned, self.results, self.scale, self.seeds)

    def _there(self, best: Best) -> dict[Place, int]:
        """Cells of which more than the first look is there."""
        every = {place: len(self.measured.looks(place[0])) for place in self.planned.jobs}
        found = {}
        for place, jobs in self.make_plan(best=best, taken=every).jobs.items():
            there = len(list(takewhile(self.made, jobs)))
            found[place] = sum(seeds <= there for seeds in self.measured.looks(place[0]))
        return {place: look for place, look in found.items() if look > 1}

    def _more(self, best: Best) -> dict[Place, int]:
        """The next look of the cells of every claim that waits and may have it."""
        more: dict[Place, int] = {}
        for claim, cells in self.measured.waiting().items():
            if claim not in self.why:
                look = 1 + min(self.taken.get(cell, 1) for cell in cells)
                wanted = more | {cell: look for cell in cells if self.taken.get(cell, 1) < look}
                if why := self._why_not(wanted, best):
                    self.why[claim] = why
                else:
                    more = wanted
        return more

    def _take(self, best: Best, more: Mapping[Place, int]) -> None:
        self.taken |= more
        self.planned = self.make_plan(best=best, taken=self.taken)
        self.results = self.do(self.paper.paper, self.planned.all_jobs)

    def _why_not(self, more: Mapping[Place, int], best: Best) -> str:
        """Why these looks are not taken, in words; empty where they are: they are there already, or may be run."""
        if any(look > len(self.measured.looks(table)) for (table, _, _), look in more.items()):
            return "all looks are taken"
        planned = self.make_plan(best=best, taken=self.taken | dict(more))
        if all(self.made(job) for cell in more for job in planned.jobs[cell]):
            return ""
        return self._too_dear(more) or ("" if self.may_run else "the next look has not been run")

    def _too_dear(self, more: Mapping[Place, int]) -> str:
        """Words, where at the pace of the runs before a table does not have the core-minutes for these looks."""
        for table in dict.fromkeys(table for table, _, _ in more):
            looks, budget = self.measured.looks(table), self.paper.budget(table, self.scale)
            cells = [place for place in self.planned.jobs if place[0] == table]
            factors = {job: 1.0 for cell in cells for job in self.planned.jobs[cell]}
            for cell in set(cells) & more.keys():
                growth = looks[more[cell] - 1] / looks[more[cell] - 2]
                factors |= {job: max(factors[job], growth) for job in self.planned.jobs[cell]}
            known = ((one, factor) for job, factor in factors.items() if (one := self.results.get(job)))
            needed = sum(one.seconds * factor for one, factor in known if isinstance(one, RunRecord))
            if needed > budget:
                return f"with the next it would use {needed / 60:.3g} core-minutes, and {budget / 60:.3g} are allowed"
        return ""

    def stopped_words(self) -> dict[str, str]:
        """Table -> at which looks it was, and why it takes no other."""
        found, waiting = {}, self.measured.waiting()
        for table in self.paper.tables:
            looks = self.measured.looks(table)
            reached = {self.taken.get(place, 1) for place in self.planned.jobs if place[0] == table}
            if len(looks) > 1 and reached:
                names = [claim for claim, cells in waiting.items() if any(cell[0] == table for cell in cells)]
                here = {self.why[name].partition(" would use")[0]: self.why[name] for name in reversed(names)}
                found[table] = (
                    f"Looked at after {_listed(looks[: max(reached)])} seeds, of {_listed(looks)} that were planned"
                    f"{' (the later ones not of all cells)' if len(reached) > 1 else ''}: "
                    f"{'; '.join(reversed(here.values())) or 'no claim waits for more'}."
                )
        return found


def _listed(looks: Sequence[int]) -> str:
    return f"{', '.join(map(str, looks[:-1]))} and {looks[-1]}" if len(looks) > 1 else str(looks[0])
