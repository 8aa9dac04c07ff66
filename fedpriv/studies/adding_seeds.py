"""Which looks a paper's cells take: seeds are added where they may decide something (`fedpriv.studies.evidence`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from fedpriv.studies.carrying_out import Failure, Runs
from fedpriv.studies.experiments import Best, Place, Planned
from fedpriv.studies.jobs import Job
from fedpriv.studies.reproduction import Measured, best_of_searches
from fedpriv.studies.results import RunRecord
from fedpriv.studies.spec import Reproduction, Scale

#: Cell -> the look that it takes, counted from 1.
Looks = Mapping[Place, int]


@dataclass
class Study:
    """A paper's cells, each at the look that it has come to: every one that is there, and further ones of the cells of
    a claim that waits. What is decided, and what comes next, follows from the runs that are there and from nothing
    else: a study that was killed goes on as one that was not, and a second call finds the same.

    why: claim -> what ended its looks, where it still waits.
    """

    paper: Reproduction
    scale: Scale
    make_plan: Callable[..., Planned]
    runs: Runs
    seeds: int | None
    taken: dict[Place, int] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    planned: Planned = field(init=False)
    best: Best = field(init=False)

    def go(self) -> None:
        self.planned = self.make_plan()
        self._do(self.planned.searches, " search")
        self.best = best_of_searches(self.measured)
        self._take({})
        while more := self._next():
            self._take(more)

    @property
    def measured(self) -> Measured:
        return Measured(self.paper, self.planned, self.runs.made, self.scale, self.seeds)

    def _take(self, more: Looks) -> None:
        """Carries these looks out. A look counts where all of its runs are there, whoever asked for them: cells may
        share runs, and another call, or one that was killed, has made some.
        """
        self._do(self._plan(more).all_jobs)
        for place, jobs in self._plan(self._last_looks()).jobs.items():
            there = len(list(takewhile(self._is_there, jobs)))
            self.taken[place] = max(1, sum(seeds <= there for seeds in self.measured.looks(place[0])))
        self.planned = self._plan({})
        self._do(self.planned.all_jobs)

    def _plan(self, more: Looks) -> Planned:
        return self.make_plan(best=self.best, taken=self.taken | dict(more))

    def _last_looks(self) -> Looks:
        return {place: len(self.measured.looks(place[0])) for place in self.planned.jobs}

    def _do(self, jobs: Sequence[Job], stage: str = "") -> None:
        self.runs.do(f"{self.paper.paper}{stage} scale={self.scale}", jobs)

    def _is_there(self, job: Job) -> bool:
        return isinstance(self.runs.made.get(job), RunRecord) or self.runs.find(job) is not None

    def _next(self) -> Looks:
        """The next look of the cells of those claims that wait, may have it, and have the fewest seeds: what these find
        may decide the others, which are corrected together with them.
        """
        self.why, wanted = {}, dict[str, dict[Place, int]]()
        for claim, cells in self.measured.waiting().items():
            look = 1 + min(self.taken[cell] for cell in cells)
            looks = {cell: look for cell in cells if self.taken[cell] < look}
            if why := self._why_not(looks):
                self.why[claim] = why
            else:
                wanted[claim] = looks
        least = min((look for looks in wanted.values() for look in looks.values()), default=0)
        more: dict[Place, int] = {}
        for claim, looks in wanted.items():
            if least in looks.values():
                if why := self._too_dear(more | dict(looks)):
                    self.why[claim] = why
                else:
                    more |= looks
        return more

    def _why_not(self, more: Looks) -> str:
        """Why these looks, which are not there, are not taken, in words; empty where they are."""
        if any(look > len(self.measured.looks(table)) for (table, _, _), look in more.items()):
            return "all looks are taken"
        jobs = (job for place, planned in self._plan(more).jobs.items() if place in more for job in planned)
        if failed := next((one for job in jobs if isinstance(one := self.runs.made.get(job), Failure)), None):
            return f"the next look failed ({failed.words})"
        return self._too_dear(more) or ("" if self.runs.may_run else "the next look has not been run")

    def _too_dear(self, more: Looks) -> str:
        """Words, where at the pace of the runs before a table does not have the core-minutes for these looks."""
        for table in dict.fromkeys(table for table, _, _ in more):
            looks, budget = self.measured.looks(table), self.paper.budget(table, self.scale)
            cells = [place for place in self.planned.jobs if place[0] == table]
            factors = {job: 1.0 for cell in cells for job in self.planned.jobs[cell]}
            for cell in set(cells) & more.keys():
                growth = looks[more[cell] - 1] / looks[more[cell] - 2]
                factors |= {job: max(factors[job], growth) for job in self.planned.jobs[cell]}
            known = ((one, factor) for job, factor in factors.items() if (one := self.runs.made.get(job)))
            needed = sum(one.seconds * factor for one, factor in known if isinstance(one, RunRecord))
            if needed > budget:
                return f"with the next it would use {needed / 60:.3g} core-minutes, and {budget / 60:.3g} are allowed"
        return ""

    def stopped_words(self) -> dict[str, str]:
        """Table -> at which looks it was, and why it takes no other."""
        found, waiting = {}, self.measured.waiting()
        for table in self.paper.tables:
            looks = self.measured.looks(table)
            reached = {self.taken[place] for place in self.planned.jobs if place[0] == table}
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
