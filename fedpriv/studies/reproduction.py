"""A paper's experiments: from ``conf/reproduction`` to jobs, from the jobs' records to tables, figures and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.errors import OptionError
from fedpriv.report.words import number, pick
from fedpriv.studies.cost import client_epochs
from fedpriv.studies.data import where
from fedpriv.studies.jobs import Failure, Job
from fedpriv.studies.provenance import provenance
from fedpriv.studies.results import Cell, Claim, Figure, PaperResults, RunRecord, Table, TableRow
from fedpriv.studies.spec import (
    MEASURES,
    PERCENT,
    AtLeast,
    AtMost,
    Better,
    Cannot,
    ClaimSpec,
    Reproduction,
    Scale,
    Similar,
    TableSpec,
)
from fedpriv.studies.verdicts import CANNOT, Outcome, Values, at_least, at_most, better, ordering, similar

Place = tuple[str, str, str]  # table, row, column


@dataclass(frozen=True)
class Planned:
    """The jobs of every cell, seed by seed, and why others have none."""

    jobs: Mapping[Place, Sequence[Job]]
    missing: Mapping[Place, str]

    @property
    def all_jobs(self) -> list[Job]:
        return list(dict.fromkeys(job for jobs in self.jobs.values() for job in jobs))


def plan(paper: Reproduction, scale: Scale, data: Path, download: bool = False, seeds: int | None = None) -> Planned:
    """Every cell's jobs. Raises `OptionError` where they train more than the paper's budget."""
    jobs: dict[Place, list[Job]] = {}
    missing: dict[Place, str] = {}
    for name, table in paper.tables.items():
        found = () if table.dataset is None else where(table.dataset, data, download)
        why = ""
        if scale not in table.scales:
            why = table.only_small or f"at scale={' or '.join(table.scales)} only"
        elif found is None:
            why = f"the pictures of {table.dataset} are not in {data.name}/ (data=FOLDER, or download=true)"
        places = [(row, column) for row in table.rows for column in table.columns]
        for row, column in places:
            if (row, column) in table.left_out:
                continue
            if why:
                missing[name, row, column] = why
                continue
            options = _options(table, row, column, scale, found or ())
            number_of_seeds = 1 if table.kind == "plan" else table.seeds or seeds or paper.seeds[scale]
            numbers = range(min(number_of_seeds, seeds or number_of_seeds))
            jobs[name, row, column] = [Job(table.kind, options, seed, table.extra) for seed in numbers]
    planned = Planned(jobs, missing)
    check_budget(paper, scale, planned)
    return planned


def _options(table: TableSpec, row: str, column: str, scale: Scale, pictures: tuple[str, ...]) -> tuple[str, ...]:
    """General before special: a later override of an option takes the place of an earlier one."""
    lines = (table, table.rows[row], table.columns[column])
    given = [option for line in lines for option in (*line.options, *getattr(line, scale))]
    chosen = {option.partition("=")[0]: option for option in pictures} | {o.partition("=")[0]: o for o in given}
    experiment = [chosen.pop("experiment"), f"scale={scale}"] if "experiment" in chosen else []
    return (*experiment, *chosen.values())


def check_budget(paper: Reproduction, scale: Scale, planned: Planned) -> None:
    """Raises `OptionError` where more client-epochs are planned than the paper may have."""
    needed, budget = total_epochs(planned), paper.client_epochs[scale]
    if needed > budget:
        words = f"{needed:,.0f} client-epochs are planned, more than the budget of {budget:,.0f} in its file"
        raise OptionError("paper", paper.paper, words)


def total_epochs(planned: Planned) -> float:
    return sum(client_epochs(job.without_seed) for job in planned.all_jobs if job.kind in ("train", "attack"))


# --- from records to results -----------------------------------------------------------------------------------


def evaluate(
    paper: Reproduction,
    scale: Scale,
    planned: Planned,
    results: Mapping[Job, RunRecord | Failure],
    figures: Sequence[Figure] = (),
) -> PaperResults:
    """Tables, figures and verdicts of what has been run."""
    found = Measured(paper, planned, results)
    records = found.records
    return PaperResults(
        paper=paper.paper,
        title=paper.title,
        authors=paper.authors,
        scale=scale,
        idea=paper.idea,
        leak=paper.leak,
        repair=paper.repair,
        methods=paper.methods,
        provenance=provenance(records, total_epochs(planned), paper.client_epochs[scale]),
        seeds=max((len(jobs) for jobs in planned.jobs.values()), default=0),
        tables=tuple(_table(name, table, found) for name, table in paper.tables.items()),
        figures=tuple(figures),
        claims=tuple(_claim(name, claim, found, scale) for name, claim in paper.claims.items()),
    )


class Measured:
    """What the jobs gave, cell by cell."""

    def __init__(self, paper: Reproduction, planned: Planned, results: Mapping[Job, RunRecord | Failure]) -> None:
        self.paper, self.planned, self.results = paper, planned, results

    @property
    def records(self) -> list[RunRecord]:
        return [r for job in self.planned.all_jobs if isinstance(r := self.results.get(job), RunRecord)]

    def of(self, place: Place) -> list[RunRecord]:
        found = (self.results.get(job) for job in self.planned.jobs.get(place, ()))
        return [record for record in found if isinstance(record, RunRecord)]

    def values(self, place: Place) -> Values:
        """Accuracies in percent. Without a record: no values."""
        table_name, row, column = place
        table = self.paper.tables[table_name]
        measure = table.measure_of(row, column)
        by_seed = {record.seed: value for record in self.of(place) if (value := measured(record, measure)) is not None}
        reasons = [why for record in self.of(place) for why in pick(record.summary, "privacy", "reasons") or ()]
        label = table.rows[row].label
        if len(table.columns) > 1:
            label = f"{label} ({table.columns[column].label})"
        return Values(label, by_seed, tuple(dict.fromkeys(reasons)), "%" if measure in PERCENT else "")

    def why_missing(self, place: Place) -> str | None:
        if place in self.planned.missing:
            return self.planned.missing[place]
        failed = [
            r.words for job in self.planned.jobs.get(place, ()) if isinstance(r := self.results.get(job), Failure)
        ]
        if failed:
            return f"refused: {failed[0]}"
        return None if self.values(place).by_seed else "nothing was measured"


def measured(record: RunRecord, measure: str) -> float | None:
    """A record's figure by its name; accuracies in percent."""
    if measure.startswith("figure:"):
        return record.figures.get(measure.removeprefix("figure:"))
    value = number(pick(record.summary, *MEASURES[measure]))
    return 100 * value if value is not None and measure in PERCENT else value


def _table(name: str, table: TableSpec, found: Measured) -> Table:
    columns = list(table.columns)
    rows = tuple(
        TableRow(name=row, label=line.label, cells=tuple(_cell(name, table, row, column, found) for column in columns))
        for row, line in table.rows.items()
    )
    orderings = []
    for column in columns if table.orderings else ():
        reported = {row: table.reported[row][column] for row in table.reported if column in table.reported[row]}
        values = {row: found.values((name, row, column)) for row in reported}
        known = {row: one for row, one in values.items() if one.by_seed}
        if (order := ordering(table.columns[column].label, known, reported)) is not None:
            orderings.append(order)
    units = {table.percent(row, column) for row in table.rows for column in columns}
    return Table(
        name=name,
        title=table.title,
        source=table.source,
        unit="%" if units == {True} else "",
        columns=tuple(line.label for line in table.columns.values()),
        rows=rows,
        orderings=tuple(orderings),
        notes=table.notes,
    )


def _cell(name: str, table: TableSpec, row: str, column: str, found: Measured) -> Cell:
    place = (name, row, column)
    values = found.values(place)
    return Cell(
        measured=values.estimate if values.by_seed else None,
        reported=table.reported.get(row, {}).get(column),
        runs=tuple(record.name for record in found.of(place)),
        missing=None if (row, column) in table.left_out else found.why_missing(place),
    )


def _claim(name: str, claim: ClaimSpec, found: Measured, scale: Scale) -> Claim:
    outcome = _outcome(claim, found, scale)
    words = ". ".join(part.rstrip(".") for part in (outcome.words, claim.because) if part) + "."
    unit = found.values(claim.cells[0]).unit if claim.cells else ""
    return Claim(
        name=name,
        claim=claim.claim,
        source=claim.source,
        verdict=outcome.verdict,
        words=words,
        difference=outcome.difference,
        unit="points" if unit == "%" else unit,
    )


def _outcome(claim: ClaimSpec, found: Measured, scale: Scale) -> Outcome:
    if isinstance(claim.test, Cannot):
        return Outcome(CANNOT, claim.test.why)
    missing = [why for cell in claim.cells if (why := found.why_missing(cell))]
    if missing:
        return Outcome(CANNOT, missing[0][0].upper() + missing[0][1:])
    match claim.test:
        case Better(pairs=pairs, reported=reported):
            return better([(found.values(a), found.values(b)) for a, b in pairs], reported)
        case Similar(pairs=pairs, within=within):
            return similar([(found.values(a), found.values(b)) for a, b in pairs], within)
        case AtMost(cell=cell, bound=bound):
            if isinstance(bound, tuple):
                other = found.values(bound)
                return at_most(found.values(cell), min(other.by_seed.values()), other.label)
            return at_most(found.values(cell), bound)
        case AtLeast(cell=cell, bound=bound, small_too=small_too):
            return at_least(found.values(cell), bound, scale == "literal" or small_too)
    raise AssertionError(claim.test)
