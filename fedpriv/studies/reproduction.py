"""From the records of a paper's jobs to tables, figures and verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Literal

from fedpriv.report.words import figure, number, pick
from fedpriv.studies.carrying_out import NOT_RUN, Failure
from fedpriv.studies.claim_spec import Better, ClaimSpec, Ordered, Printed, Similar
from fedpriv.studies.deciding import is_moved, outcome
from fedpriv.studies.experiments import Best, Place, Planned, planned_looks, total_epochs
from fedpriv.studies.fair_case import fair_case
from fedpriv.studies.jobs import Job
from fedpriv.studies.provenance import provenance
from fedpriv.studies.results import OTHER_SETTING, Cell, Claim, Figure, PaperResults, RunRecord, Table, TableRow
from fedpriv.studies.spec import MEASURES, PERCENT, Reproduction, Scale, TableSpec
from fedpriv.studies.verdicts import (
    CANNOT,
    OPEN,
    Kind,
    Outcome,
    Values,
    confirmed_by,
    is_phrase,
    ordering,
    p_words,
    settle,
    shown,
)


def evaluate(
    found: Measured,
    figures: Sequence[Figure],
    stopped: Mapping[str, str],
    why: Mapping[str, str],
    core_minutes: int | None,
) -> PaperResults:
    """Tables, figures and verdicts of what has been run. stopped: table -> its looks and why it takes no other, in
    words. why: claim -> what ended its looks while it waited. core_minutes: as the person asked.
    """
    paper, scale, planned = found.paper, found.scale, found.planned
    asked = {"seeds": found.seeds, "core_minutes": core_minutes}
    options = "".join(f" {name}={value}" for name, value in asked.items() if value)
    outcomes = found.outcomes()
    records = found.records
    made = (job for job in planned.all_jobs if isinstance(found.results.get(job), RunRecord))
    return PaperResults(
        paper=paper.paper,
        title=paper.title,
        authors=paper.authors,
        scale=scale,
        command=f"python -m fedpriv.reproduce paper={paper.paper} scale={scale}{options}",
        idea=paper.idea,
        leak=paper.leak,
        repair=paper.repair,
        methods=paper.methods,
        case=tuple(fair_case(paragraph, found) for paragraph in paper.case),
        provenance=provenance(records, total_epochs(made), paper.client_epochs[scale]),
        seeds=max((len(jobs) for jobs in planned.jobs.values()), default=0),
        tables=tuple(_table(name, table, found, stopped.get(name, "")) for name, table in paper.tables.items()),
        figures=tuple(figures),
        claims=tuple(
            _claim(name, claim, found, outcomes[name], why.get(name, "")) for name, claim in paper.claims.items()
        ),
    )


class Measured:
    """What the jobs gave, cell by cell."""

    def __init__(
        self,
        paper: Reproduction,
        planned: Planned,
        results: Mapping[Job, RunRecord | Failure],
        scale: Scale,
        seeds: int | None = None,
    ) -> None:
        self.paper, self.planned, self.results, self.scale, self.seeds = paper, planned, results, scale, seeds

    def looks(self, table: str) -> tuple[int, ...]:
        """Seeds in all at each of its looks."""
        return planned_looks(self.paper, table, self.scale, self.seeds)

    def outcomes(self) -> dict[str, Outcome]:
        """What became of each claim, all of them decided together, and of each finding beyond the paper. Verdicts that
        the rules moved are held against fresh seeds, these together too.
        """
        claims = {name: claim for name, claim in self.paper.claims.items() if not claim.beyond}
        found = settle({name: outcome(claim, self) for name, claim in claims.items()})
        moved = {name: claims[name] for name, one in found.items() if is_moved(claims[name], one, self.paper)}
        again = {name: fresh for name, claim in moved.items() if (fresh := claim.confirming()) is not None}
        confirmed = settle({name: outcome(fresh, self) for name, fresh in again.items()})
        found |= {name: confirmed_by(found[name], confirmed.get(name)) for name in moved}
        beyond = {name: outcome(claim, self) for name, claim in self.paper.claims.items() if claim.beyond}
        return {name: (found | beyond)[name] for name in self.paper.claims}

    def waiting(self) -> dict[str, list[Place]]:
        """Claims that more seeds may decide -> the cells that they rest on."""
        found = self.outcomes()
        return {
            name: claim.cells for name, claim in self.paper.claims.items() if _waits(found[name]) and not claim.beyond
        }

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
            inside = f", {table.columns[column].label})"
            label = label[:-1] + inside if label.endswith(")") else f"{label} ({inside[2:]}"
        kinds = {_kind(record, measure) for record in self.of(place)}
        guess = GUESSING.get(table.dataset or "") if measure in ("accuracy", *OVER) else None
        intervals = ((record.seed, _interval(record, measure)) for record in self.of(place))
        return Values(
            label,
            by_seed,
            tuple(dict.fromkeys(reasons)),
            "%" if measure in PERCENT else "",
            kind=next((kind for kind in ("estimate", "lower", "refuting", "upper") if kind in kinds), "exact"),
            intervals={seed: one for seed, one in intervals if one is not None},
            guessing=guess,
            looks=self.looks(table_name),
            blocks={one.seed: (one.machine and one.machine.processor, one.date) for one in self.of(place)},
        )

    def why_missing(self, place: Place) -> str | None:
        if place in self.planned.missing:
            return self.planned.missing[place]
        failed = [
            r.words for job in self.planned.jobs.get(place, ()) if isinstance(r := self.results.get(job), Failure)
        ]
        if failed:
            return failed[0] if failed[0] == NOT_RUN else f"refused: {failed[0]}"
        return None if self.values(place).by_seed else "nothing was measured"


def _waits(outcome: Outcome) -> bool:
    """Whether more seeds may change it: not a level that is missed in another setting than the paper's."""
    return outcome.verdict == OPEN and outcome.sides is not None and not outcome.blocked


def best_of_searches(found: Measured) -> Best:
    """The column with the highest value in each row of a search, the first of equals."""
    best: dict[tuple[str, str], tuple[str, ...]] = {}
    for name, table in found.paper.tables.items():
        for row in table.rows if table.held is not None else ():
            if (column := best_column(found, name, row)) is not None:
                line = table.columns[column]
                best[name, row] = (*line.options, *getattr(line, found.scale))
    return best


def best_column(found: Measured, table: str, row: str) -> str | None:
    values = {column: found.values((table, row, column)).estimate.mean for column in found.paper.tables[table].columns}
    known = {column: mean for column, mean in values.items() if mean is not None}
    return max(known, key=lambda column: known[column]) if known else None


def measured(record: RunRecord, measure: str) -> float | None:
    """A record's figure by its name; accuracies in percent."""
    if measure.startswith("figure:"):
        return record.figures.get(measure.removeprefix("figure:"))
    if measure in OVER:
        return mean_over_rounds(record, OVER[measure])
    if measure in NORMS:
        third = max(1, len(record.norms) // 3)
        lengths = [length for _, length in record.norms]
        return fmean(lengths[NORMS[measure](third)]) if lengths else None
    value = number(pick(record.summary, *MEASURES[measure]))
    return 100 * value if value is not None and measure in PERCENT else value


#: Measures of length -> which of the rounds' means.
NORMS: Mapping[str, Callable[[int], slice]] = {
    "norm_first_third": lambda third: slice(0, third),
    "norm_last_third": lambda third: slice(-third, None),
}
#: Measures of speed -> of which share of the rounds, from the first one.
OVER = {"over_rounds": 1.0, "over_first_third": 1 / 3}


def mean_over_rounds(record: RunRecord, share: float = 1.0) -> float | None:
    """How fast a run converges: its mean accuracy in percent over the evaluated ones of its first ``share`` of rounds,
    the area below its curve over the number of rounds. None where fewer than three were evaluated.
    """
    last = max((number for number, _, _ in record.curve), default=0)
    known = [accuracy for number, accuracy, _ in record.curve if accuracy is not None and number <= share * last]
    return 100 * sum(known) / len(known) if len(known) > 2 else None


#: Percent right by guessing.
GUESSING = {"mnist": 10.0, "fashion_mnist": 10.0, "cifar10": 10.0, "cifar100": 1.0}


def _kind(record: RunRecord, measure: str) -> Kind:
    """What a record's figure says of the truth."""
    if "audited" in measure:
        return "refuting" if record.figures.get("refuted") else "lower"
    if measure == "figure:attack_accuracy":
        return "estimate"
    return "upper" if "verified" in measure else "exact"


def _interval(record: RunRecord, measure: str) -> tuple[float, float] | None:
    """Of an attack's accuracy: its own 95 % interval, over the examples that it was tried on."""
    low, high = (record.figures.get(f"{measure.removeprefix('figure:')}_{end}") for end in ("low", "high"))
    return None if low is None or high is None else (low, high)


def _table(name: str, table: TableSpec, found: Measured, stopped: str) -> Table:
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
        notes=(*_notes(name, table, found, stopped), *table.notes),
        kind=table.kind,
        computed=table.kind in ("plan", "computed"),
        looks=found.looks(name),
    )


def _notes(name: str, table: TableSpec, found: Measured, stopped: str) -> list[str]:
    scale = found.scale
    notes = [f"At both scales: {'; '.join(table.differs)}."] if table.differs else []
    notes += [f"At scale=small: {table.small_differs}."] if scale == "small" and table.small_differs else []
    chosen_here = "; ".join(f"{item}: {words}" for item, words in table.open.items())
    notes += [f"Not printed, so chosen here: {chosen_here}."] if chosen_here else []
    if table.held is not None:
        best = {line.label: best_column(found, name, row) for row, line in table.rows.items()}
        chosen = [f"{label}: {table.columns[column].label}" for label, column in best.items() if column]
        words = f"Accuracy on {table.held:,} pictures of the training set that were kept from training; one seed."
        notes += [f"{words} Chosen: {'; '.join(chosen)}." if chosen else words]
    return [*notes, stopped] if stopped else notes


def _cell(name: str, table: TableSpec, row: str, column: str, found: Measured) -> Cell:
    place = (name, row, column)
    values = found.values(place)
    return Cell(
        measured=values.estimate if values.by_seed else None,
        reported=table.reported.get(row, {}).get(column),
        runs=tuple(record.name for record in found.of(place)),
        superseded=next((record.superseded for record in found.of(place) if record.superseded), None),
        missing=None if (row, column) in table.left_out else found.why_missing(place),
    )


def _claim(name: str, claim: ClaimSpec, found: Measured, settled: Outcome, why: str) -> Claim:
    sure = settled.p if settled.verdict != CANNOT else None
    corrected = "" if sure is None else f"Corrected {p_words(sure)}"
    ended = f"No further seeds: {why}" if why and settled.verdict == OPEN else ""
    parts = (settled.words, corrected, ended, _unequal(claim, found), *_beside(claim, found), claim.because)
    words = ". ".join(_begun(part.rstrip(".")) for part in parts if part) + "."
    tables = [found.paper.tables[table] for table in dict.fromkeys(table for table, _, _ in claim.cells)]
    differences = dict.fromkeys(
        why for one in tables if one.trains or one.differs for why in one.differences(found.scale)
    )
    setting = "; ".join(differences) if settled.estimated else ""
    unit = found.values(claim.cells[0]).unit if claim.cells else ""
    return Claim(
        name=name,
        claim=claim.claim,
        source=claim.source,
        verdict=settled.verdict,
        words=words + (f" {OTHER_SETTING.format(setting)}" if setting else ""),
        setting=setting,
        basis=_basis(claim, any(one.kind == "train" for one in tables))
        if settled.estimated or settled.verdict != CANNOT
        else "",
        difference=settled.difference,
        unit="points" if unit == "%" else unit,
        p=sure,
        quote=claim.quote,
        line=claim.line,
        before=claim.before,
        rule=claim.rule,
        beyond=claim.beyond,
    )


def _basis(claim: ClaimSpec, trained: bool) -> Literal["printed", "computed", "runs"]:
    return "printed" if isinstance(claim.test, Printed | Ordered) else "runs" if trained else "computed"


def _unequal(claim: ClaimSpec, found: Measured) -> str:
    """Of accuracies that are compared: the verified epsilons of their runs, where they are not the same."""
    if not isinstance(claim.test, Better | Similar):
        return ""
    prices = dict.fromkeys((_price(one, found), _price(other, found)) for one, other in claim.test.pairs)
    unequal = [(a, b) for a, b in prices if a is not None and b is not None and not math.isclose(a, b, rel_tol=0.05)]
    listed = "; ".join(f"{figure(a)} against {figure(b)}" for a, b in unequal)
    return f"Not at equal privacy: the runs' verified ε is {listed}" if unequal else ""


def _price(place: Place, found: Measured) -> float | None:
    verified = [number(pick(record.summary, "privacy", "verified_epsilon")) for record in found.of(place)]
    return max((one for one in verified if one is not None), default=None)


def _begun(words: str) -> str:
    """With a capital, where it begins with a common word."""
    return words[:1].upper() + words[1:] if is_phrase(words) else words


def _beside(claim: ClaimSpec, found: Measured) -> list[str]:
    """What the verdict does not rest on, in words."""
    quoted = [found.values(cell) for cell in claim.beside]
    return [f"{one.label}: {shown(one.estimate, one.unit).split(' (')[0]}" for one in quoted if one.by_seed]
