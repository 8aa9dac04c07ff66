"""Runs a paper's jobs with a person looking on, look after look, and writes what they gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fedpriv.common.files import locked
from fedpriv.studies.carrying_out import Failure, carry_out_all, find, restore
from fedpriv.studies.experiments import Best, Planned, plan
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
        made = partial(_is_made, folder / RUNS)
        study = _Study(paper, scale, make_plan, do if run else _kept(folder), made, seeds, whole=not run)
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
        core_minutes,
    )
    write_results(folder, found, measured.records)
    write_words(found, folder)
    for claim in found.claims:
        print(f"  {claim.verdict}: {claim.claim} ({claim.words})")
    print(f"{paper.paper}: {counted(found.claims)}", flush=True)
    return [result for result in study.results.values() if run and isinstance(result, Failure)]


def _is_made(folder: Path, job: Job) -> bool:
    return find(job, folder) is not None


def _kept(folder: Path) -> Do:
    records = {record.name: record for record in read_runs(folder)}

    def do(what: str, jobs: Sequence[Job]) -> Mapping[Job, RunRecord | Failure]:
        new = [job for job in jobs if job.name not in records and job.kind in NO_RUNS]
        made = carry_out_all(new, folder / RUNS, workers=1)
        return {job: records.get(job.name) or made.get(job) or Failure(job, "it has not been run yet") for job in jobs}

    return do


@dataclass
class _Study:
    """A paper's tables, each at the look that it has come to. Seeds are added while they may decide something. made:
    whether a job's run is there already. whole: a look counts only where all of it is there. why: table -> what ended
    it, where a claim still waits.
    """

    paper: Reproduction
    scale: Scale
    make_plan: Callable[..., Planned]
    do: Do
    made: Callable[[Job], bool]
    seeds: int | None
    whole: bool = False
    taken: dict[str, int] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    planned: Planned = field(init=False)
    results: Mapping[Job, RunRecord | Failure] = field(init=False)

    def go(self) -> None:
        self.planned = self.make_plan()
        searched = self.do(f"{self.paper.paper} search", self.planned.searches)
        best = best_of_searches(Measured(self.paper, self.planned, searched, self.scale, self.seeds))
        self._take(best)
        while wanting := sorted(self.measured.wanting() - self.why.keys()):
            self.why |= {table: reason for table in wanting if (reason := self._why_not(table, best))}
            more = {table: self.taken.get(table, 1) + 1 for table in wanting if table not in self.why}
            for part in [{table: look} for table, look in more.items()] if self.whole else [more] if more else []:
                if not self._take(best, part):
                    why = "the next look has not been run"
                    self.why |= {table: self._too_dear(table) or why for table in part}

    @property
    def measured(self) -> Measured:
        return Measured(self.paper, self.planned, self.results, self.scale, self.seeds)

    def _take(self, best: Best, more: Mapping[str, int] | None = None) -> bool:
        """Carries out the next look of some tables; False where it is not there: they stay as they were."""
        taken = self.taken | dict(more or {})
        planned = self.make_plan(best=best, taken=taken)
        results = self.do(self.paper.paper, planned.all_jobs)
        if more:
            new = [isinstance(results[job], RunRecord) for job in planned.all_jobs if job not in self.results]
            if not (all(new) if self.whole else any(new)):
                return False
        self.taken, self.planned, self.results = taken, planned, results
        return True

    def _why_not(self, table: str, best: Best) -> str:
        """Why a table takes no further look, in words; empty where it does: there is one, which has been run already,
        or may be.
        """
        look = self.taken.get(table, 1) + 1
        if look > len(self.measured.looks(table)):
            return "all looks are taken"
        if not self.whole and (why := self._too_dear(table)):
            planned = self.make_plan(best=best, taken=self.taken | {table: look})
            jobs = [job for place, found in planned.jobs.items() if place[0] == table for job in found]
            return "" if all(map(self.made, jobs)) else why
        return ""

    def _too_dear(self, table: str) -> str:
        """Words, where at the pace of the runs before a table's next look does not fit into its core-minutes."""
        looks, at = self.measured.looks(table), self.taken.get(table, 1)
        jobs = {job for place, found in self.planned.jobs.items() if place[0] == table for job in found}
        spent = sum(one.seconds for job in jobs if isinstance(one := self.results.get(job), RunRecord))
        needed, budget = spent * looks[at] / looks[at - 1], self.paper.budget(table, self.scale)
        if needed <= budget:
            return ""
        return f"with the next it would use {needed / 60:.3g} core-minutes, and {budget / 60:.3g} are allowed"

    def stopped_words(self) -> dict[str, str]:
        """Table -> at which looks it was, and why it takes no other."""
        found = {}
        for table in self.paper.tables:
            looks, at = self.measured.looks(table), self.taken.get(table, 1)
            if len(looks) > 1 and any(place[0] == table for place in self.planned.jobs):
                why = self.why.get(table, "no claim waits for more")
                found[table] = (
                    f"Looked at after {_listed(looks[:at])} seeds, of {_listed(looks)} that were planned: {why}."
                )
        return found


def _listed(looks: Sequence[int]) -> str:
    return f"{', '.join(map(str, looks[:-1]))} and {looks[-1]}" if len(looks) > 1 else str(looks[0])
