"""A paper's experiments, from ``conf/reproduction`` to jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.common.errors import OptionError
from fedpriv.studies.cost import size
from fedpriv.studies.data import held_out, where
from fedpriv.studies.jobs import Job
from fedpriv.studies.spec import Reproduction, Scale, TableSpec

Place = tuple[str, str, str]  # table, row, column


@dataclass(frozen=True)
class Planned:
    """The jobs of every cell, seed by seed, and why others have none. search_tables: names of those in which an option
    is chosen.
    """

    jobs: Mapping[Place, Sequence[Job]]
    missing: Mapping[Place, str]
    search_tables: Sequence[str] = ()

    @property
    def all_jobs(self) -> list[Job]:
        return list(dict.fromkeys(job for jobs in self.jobs.values() for job in jobs))

    @property
    def searches(self) -> list[Job]:
        """Those on which other jobs' options wait."""
        found = [jobs for (table, _, _), jobs in self.jobs.items() if table in self.search_tables]
        return list(dict.fromkeys(job for jobs in found for job in jobs))


#: Table and row of a search -> the options of its best column.
Best = Mapping[tuple[str, str], tuple[str, ...]]

#: Seeds of the runs among which is chosen: none of them is a seed of the runs that are shown as results.
SEARCH_SEED = 1000


def plan(
    paper: Reproduction,
    scale: Scale,
    data: Path,
    folder: Path,
    *,
    download: bool = False,
    seeds: int | None = None,
    best: Best | None = None,
    taken: Mapping[Place, int] | None = None,
    fresh: bool = False,
) -> Planned:
    """Every cell's jobs. fresh: also of tables with fresh seeds, which a study that is repeated does not need. taken:
    how many looks each cell has taken (one where it is not named). best: what the searches found; before they have run
    (None) each stands at its first column. folder: where the files lie that divide pictures for searches. Raises
    `OptionError` where the first looks train more than the paper's budget.
    """
    jobs: dict[Place, list[Job]] = {}
    missing: dict[Place, str] = {}
    for name, table in paper.tables.items():
        found = () if table.dataset is None else where(table.dataset, data, download)
        why = ""
        if table.kind == "printed":
            why = table.only_small
        elif scale not in table.scales:
            why = table.only_small or f"at scale={' or '.join(table.scales)} only"
        elif table.first_seed and not fresh:
            why = "fresh seeds are run with fresh=true"
        elif found is None:
            why = f"the pictures of {table.dataset} were not there (data=FOLDER, or download=true)"
        elif table.held is not None:
            split, _ = held_out(
                found or ("dataset=digits",), table.dataset or "digits", table.held, SEARCH_SEED, folder
            )
            found = (*found, f"dataset.split={split}")
        for row, column in ((row, column) for row in table.rows for column in table.columns):
            if (row, column) in table.left_out:
                continue
            searches = [line.best_of for line in (table.rows[row], table.columns[column]) if line.best_of]
            if best is not None and any(search not in best for search in searches):
                missing[name, row, column] = "its search found nothing"
            elif why:
                missing[name, row, column] = why
            else:
                chosen = [(best or _first(paper, scale))[search] for search in searches]
                options = _options(table, row, column, scale, found or (), [o for some in chosen for o in some])
                look = (taken or {}).get((name, row, column), 1)
                count = planned_looks(paper, name, scale, seeds)[look - 1]
                first = SEARCH_SEED if table.held is not None else table.first_seed
                jobs[name, row, column] = [
                    Job(table.kind, options, seed, table.extra) for seed in range(first, first + count)
                ]
    planned = Planned(jobs, missing, [name for name, table in paper.tables.items() if table.held is not None])
    if not taken:
        check_budget(paper, scale, planned)
    return planned


def planned_looks(paper: Reproduction, table: str, scale: Scale, wanted: int | None = None) -> tuple[int, ...]:
    """Seeds in all at each look. wanted: of the person who calls: one look, at so many, where a table has not fewer of
    its own.
    """
    looks = paper.looks(table, scale)
    if wanted is None or looks == (1,):
        return looks
    return (min(wanted, looks[-1]) if paper.tables[table].seeds else wanted,)


def _first(paper: Reproduction, scale: Scale) -> Best:
    """Stands for a search that has not run."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for name, table in paper.tables.items():
        line = next(iter(table.columns.values()))
        found |= {(name, row): (*line.options, *getattr(line, scale)) for row in table.rows}
    return found


def _options(
    table: TableSpec, row: str, column: str, scale: Scale, pictures: Sequence[str], chosen: Sequence[str] = ()
) -> tuple[str, ...]:
    """General before special: a later override of an option takes the place of an earlier one; `scale=small` among
    those for scale=literal keeps a table small.
    """
    lines = (table, table.rows[row], table.columns[column])
    given = [*(option for line in lines for option in (*line.options, *getattr(line, scale))), *chosen]
    named = {option.partition("=")[0]: option for option in pictures} | {o.partition("=")[0]: o for o in given}
    experiment = [named.pop("experiment"), named.pop("scale", f"scale={scale}")] if "experiment" in named else []
    return (*experiment, *named.values())


def check_budget(paper: Reproduction, scale: Scale, planned: Planned) -> None:
    """Raises `OptionError` where more client-epochs are planned than the paper may have."""
    needed, budget = total_epochs(planned.all_jobs), paper.client_epochs[scale]
    if needed > budget:
        words = f"{needed:,.0f} client-epochs are planned, more than the budget of {budget:,.0f} in its file"
        raise OptionError("paper", paper.paper, words)


def total_epochs(jobs: Iterable[Job]) -> float:
    return sum(size(job.without_seed).epochs for job in jobs if job.kind in ("train", "attack"))
