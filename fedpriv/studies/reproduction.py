"""A paper's jobs run, and their records turned into tables, figures and verdicts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from fedpriv.report.words import figure, number, pick
from fedpriv.studies.jobs import Job
from fedpriv.studies.papers import (
    MEASURES,
    NEEDS,
    PERCENT,
    Best,
    ClaimSpec,
    Paper,
    Place,
    Scale,
    TableSpec,
    places,
    plan,
)
from fedpriv.studies.results import Cell, Claim, PaperResults, RunRecord, Table, TableRow, provenance
from fedpriv.studies.runner import NOT_RUN, Failure, Found, Runs
from fedpriv.studies.statistics import estimate, paired
from fedpriv.studies.verdicts import (
    CANNOT,
    FAILS,
    HOLDS,
    Kind,
    Outcome,
    Values,
    decide,
    ordering,
    outcomes,
    p_words,
    shown,
)


@dataclass(frozen=True)
class Measured:
    """What the jobs of a paper gave. jobs: of every cell, seed by seed; missing: why others have none."""

    paper: Paper
    scale: Scale
    jobs: Mapping[Place, Sequence[Job]]
    missing: Mapping[Place, str]
    results: Found
    seeds: int | None = None

    def __hash__(self) -> int:
        return id(self)

    @property
    def records(self) -> list[RunRecord]:
        jobs = dict.fromkeys(job for jobs in self.jobs.values() for job in jobs)
        return [record for job in jobs if isinstance(record := self.results.get(job), RunRecord)]

    def of(self, place: Place) -> list[RunRecord]:
        found = (self.results.get(job) for job in self.jobs.get(place, ()))
        return [record for record in found if isinstance(record, RunRecord)]

    @cache  # noqa: B019 - lives as long as an evaluation
    def values(self, place: Place) -> Values:
        """Accuracies in percent. Without a record: no values."""
        name, row, column = place
        table, runs = self.paper.tables[name], self.of(place)
        measure = table.measure_of(row, column)
        known = {run.seed: value for run in runs if (value := measured(run, measure)) is not None}
        reasons = [why for run in runs for why in pick(run.summary, "privacy", "reasons") or ()]
        kinds = {_kind(run, measure) for run in runs}
        of_classes = measure in ("accuracy", "over_rounds", "over_first_third")
        intervals = ((run.seed, _interval(run, measure)) for run in runs)
        return Values(
            table.rows[row].label,
            known,
            table.columns[column].label if len(table.columns) > 1 else "",
            tuple(dict.fromkeys(reasons)),
            "%" if measure in PERCENT else "",
            kind=next((kind for kind in ("estimate", "lower", "refuting", "upper") if kind in kinds), "exact"),
            intervals={seed: one for seed, one in intervals if one is not None},
            guessing=GUESSING.get(table.dataset or "") if of_classes else None,
            looks=self.paper.looks(name, self.scale, self.seeds),
            blocks={run.seed: (run.machine and run.machine.processor, run.date) for run in runs},
        )

    def why_missing(self, place: Place) -> str | None:
        if place in self.missing:
            return self.missing[place]
        failed = [r.words for job in self.jobs.get(place, ()) if isinstance(r := self.results.get(job), Failure)]
        if failed:
            return failed[0] if failed[0] == NOT_RUN else f"refused: {failed[0]}"
        return None if self.values(place).by_seed else "nothing was measured"

    def best_column(self, table: str, row: str) -> str | None:
        """The column with the highest value in a row of a search, the first of equals."""
        columns = self.paper.tables[table].columns
        means = {column: self.values((table, row, column)).estimate.mean for column in columns}
        known = {column: mean for column, mean in means.items() if mean is not None}
        return max(known, key=lambda column: known[column]) if known else None

    def best(self) -> Best:
        found: dict[tuple[str, str], tuple[str, ...]] = {}
        for name, table in self.paper.tables.items():
            for row in table.rows if table.held is not None else ():
                if (column := self.best_column(name, row)) is not None:
                    line = table.columns[column]
                    found[name, row] = (*line.options, *getattr(line, self.scale))
        return found


# --- one figure of a record --------------------------------------------------------------------------------

#: Percent right by guessing.
GUESSING = {"mnist": 10.0, "fashion_mnist": 10.0, "cifar10": 10.0, "cifar100": 1.0}


def measured(record: RunRecord, measure: str) -> float | None:
    """A record's figure by its name; accuracies in percent. A speed is the mean accuracy over the evaluated ones of all
    rounds or of their first third, the area below the curve over the number of rounds; None for fewer than three.
    """
    if measure.startswith("figure:"):
        return record.figures.get(measure.removeprefix("figure:"))
    if measure in ("over_rounds", "over_first_third"):
        last = max((i for i, _, _ in record.curve), default=0) * (1.0 if measure == "over_rounds" else 1 / 3)
        known = [accuracy for i, accuracy, _ in record.curve if accuracy is not None and i <= last]
        return 100 * sum(known) / len(known) if len(known) > 2 else None
    if measure in ("norm_first_third", "norm_last_third"):
        lengths, third = [length for _, length in record.norms], max(1, len(record.norms) // 3)
        return fmean(lengths[:third] if measure == "norm_first_third" else lengths[-third:]) if lengths else None
    value = number(pick(record.summary, *MEASURES[measure]))
    return 100 * value if value is not None and measure in PERCENT else value


def _kind(record: RunRecord, measure: str) -> Kind:
    """What a record's figure says of the truth."""
    if "audited" in measure:
        return "refuting" if record.figures.get("refuted") else "lower"
    return "estimate" if measure == "figure:attack_accuracy" else "upper" if "verified" in measure else "exact"


def _interval(record: RunRecord, measure: str) -> tuple[float, float] | None:
    """Of an attack's accuracy: its own 95 % interval, over the examples that it was tried on."""
    low, high = (record.figures.get(f"{measure.removeprefix('figure:')}_{end}") for end in ("low", "high"))
    return None if low is None or high is None else (low, high)


# --- tables and claims -------------------------------------------------------------------------------------


def measure(
    paper: Paper,
    scale: Scale,
    data: Path,
    folder: Path,
    runs: Runs,
    *,
    download: bool = False,
    seeds: int | None = None,
    look: int = 1,
    fresh: bool = False,
) -> Measured:
    """Carries out what is missing of every cell up to a look, and takes each cell at the look whose runs are all there,
    whoever asked for them. What is decided follows from the runs that are there and from nothing else. fresh: also the
    tables with fresh seeds.
    """
    stage = f"{paper.paper} scale={scale}"

    def planned(best: Best | None = None) -> tuple[dict[Place, list[Job]], dict[Place, str]]:
        return plan(paper, scale, data, folder, download=download, seeds=seeds, best=best)

    jobs, missing = planned()
    searches = [job for place, some in jobs.items() if paper.tables[place[0]].held is not None for job in some]
    found = runs.do(f"{stage} search", searches)
    jobs, missing = planned(Measured(paper, scale, jobs, missing, found, seeds).best())
    looks = {place: paper.looks(place[0], scale, seeds) for place in jobs}
    for place in list(jobs):
        of_fresh = paper.tables[place[0]].first_seed and not fresh and runs.may_run
        if of_fresh and not all(map(runs.done, jobs[place][: looks[place][0]])):
            del jobs[place]
            missing[place] = "fresh seeds are run with fresh=true"
    asked = {place: looks[place][min(look, len(looks[place])) - 1] for place in jobs}
    runs.do(stage, [job for place, some in jobs.items() for job in some[: asked[place]]])
    for place, some in jobs.items():
        there = len(list(takewhile(runs.done, some)))
        jobs[place] = some[: max([looks[place][0], *(seeds for seeds in looks[place] if seeds <= there)])]
    results = runs.do(stage, list(dict.fromkeys(job for some in jobs.values() for job in some)))
    return Measured(paper, scale, jobs, missing, results, seeds)


def evaluate(found: Measured) -> PaperResults:
    """Tables and verdicts of what has been run."""
    paper, scale, settled = found.paper, found.scale, outcomes(found)
    seeds = f" seeds={found.seeds}" if found.seeds else ""
    return PaperResults(
        **{name: getattr(paper, name) for name in ("paper", "title", "authors", "idea", "leak")},
        repair=_with_figures(paper.repair, found),
        scale=scale,
        command=f"python -m fedpriv.reproduce paper={paper.paper} scale={scale}{seeds}",
        case=tuple(_with_figures(paragraph, found) for paragraph in paper.case),
        provenance=provenance(found.records),
        tables=tuple(_table(name, table, found) for name, table in paper.tables.items()),
        figures=(),
        claims=tuple(_claim(name, claim, found, settled[name]) for name, claim in paper.claims.items()),
    )


def _table(name: str, table: TableSpec, found: Measured) -> Table:
    rows = tuple(
        TableRow(
            name=row,
            label=line.label,
            cells=tuple(_cell((name, row, column), table, found) for column in table.columns),
        )
        for row, line in table.rows.items()
    )
    orderings = []
    for column, line in table.columns.items() if table.orderings else ():
        printed = {row: cells[column] for row, cells in table.reported.items() if column in cells}
        values = {row: one for row in printed if (one := found.values((name, row, column))).by_seed}
        orderings.append(ordering(line.label, values, printed))
    return Table(
        name=name,
        title=table.title,
        source=table.source,
        unit="%" if all(table.measure_of(*place) in PERCENT for place in table.places) else "",
        columns=tuple(line.label for line in table.columns.values()),
        rows=rows,
        orderings=tuple(one for one in orderings if one is not None),
        notes=(*_notes(name, table, found), *table.notes),
        kind=table.kind,
        another=bool(table.differences(found.scale)),
        looks=found.paper.looks(name, found.scale, found.seeds),
    )


def _notes(name: str, table: TableSpec, found: Measured) -> list[str]:
    notes = [f"At both scales: {'; '.join(table.differs)}."] if table.differs else []
    small = found.scale == "small" and table.small_differs
    notes += [f"At scale=small: {table.small_differs}."] if small else []
    chosen_here = "; ".join(f"{item}: {words}" for item, words in table.open.items())
    notes += [f"Not printed, so chosen here: {chosen_here}."] if chosen_here else []
    if table.held is not None:
        best = {line.label: found.best_column(name, row) for row, line in table.rows.items()}
        chosen = [f"{label}: {table.columns[column].label}" for label, column in best.items() if column]
        words = f"Accuracy on {table.held:,} pictures of the training set that were kept from training; one seed."
        notes += [f"{words} Chosen: {'; '.join(chosen)}." if chosen else words]
    looks = found.paper.looks(name, found.scale, found.seeds)
    taken = sorted({len(jobs) for place, jobs in found.jobs.items() if place[0] == name})
    if len(looks) > 1 and taken:
        seen = [seeds for seeds in looks if seeds <= taken[-1]]
        some = " (the later ones not of all cells)" if len(taken) > 1 else ""
        notes += [f"Looked at after {_listed(seen)} seeds, of {_listed(looks)} that were planned{some}."]
    return notes


def _listed(looks: Sequence[int]) -> str:
    return f"{', '.join(map(str, looks[:-1]))} and {looks[-1]}" if len(looks) > 1 else str(looks[0])


def _cell(place: Place, table: TableSpec, found: Measured) -> Cell:
    (_, row, column), values, runs = place, found.values(place), found.of(place)
    return Cell(
        measured=values.estimate if values.by_seed else None,
        reported=table.reported.get(row, {}).get(column),
        runs=tuple(record.name for record in runs),
        superseded=next((record.superseded for record in runs if record.superseded), None),
        missing=None if (row, column) in table.left_out else found.why_missing(place),
    )


def _claim(name: str, claim: ClaimSpec, found: Measured, settled: Outcome) -> Claim:
    sure = settled.p if settled.verdict != CANNOT else None
    beside = (found.values(cell) for cell in claim.beside)
    quoted = (f"{one.label}: {shown(one.estimate, one.unit, seeds=False)}" for one in beside if one.by_seed)
    p = "" if sure is None else f"Corrected {p_words(sure)}"
    words = (settled.words, p, _unequal(claim, found), *quoted, claim.because)
    tables = [found.paper.tables[table] for table in dict.fromkeys(table for table, _, _ in claim.test.cells)]
    differences = [
        why for one in tables if one.kind in ("train", "attack") or one.differs for why in one.differences(found.scale)
    ]
    unit = found.values(claim.test.cells[0]).unit if claim.test.cells else ""
    return Claim(
        name=name,
        verdict=settled.verdict,
        words=". ".join(part.rstrip(".") for part in words if part) + ".",
        kind=found.paper.kind_of(claim),
        difference=settled.difference,
        unit="points" if unit == "%" else unit,
        p=sure,
        setting="; ".join(dict.fromkeys(differences)) if settled.estimated else "",
        needs="" if claim.beyond else _needs(claim, found, settled),
        **{one: getattr(claim, one) for one in ("claim", "source", "quote", "line", "before", "rule", "beyond")},
    )


def _needs(claim: ClaimSpec, found: Measured, settled: Outcome) -> str:
    """What would decide a claim that is not decided."""
    fresh = claim.confirming()
    asked = [one for one in (None if settled.late and fresh else claim, fresh) if one]
    cells = [cell for one in asked for test in (one.test, one.otherwise) if test for cell in test.cells]
    if settled.verdict in (HOLDS, FAILS):
        return ""
    if any("the pictures of" in found.missing.get(cell, "") for cell in cells):
        return NEEDS["pictures"]
    if claim.needs or settled.verdict == CANNOT:
        return NEEDS.get(claim.needs or "", "")
    left = [cell for cell in cells if len(found.values(cell).by_seed) < found.paper.looks(cell[0], found.scale)[-1]]
    return "seeds that its plan still has" if left else "more seeds than its plan has"


def _unequal(claim: ClaimSpec, found: Measured) -> str:
    """Of accuracies that are compared: the verified epsilons of their runs, where they are not the same."""

    def price(cell: Any) -> float | None:
        runs = [record for place in places(cell) for record in found.of(place)]
        verified = [number(pick(record.summary, "privacy", "verified_epsilon")) for record in runs]
        return max((one for one in verified if one is not None), default=None)

    pairs = claim.test.pairs if claim.test.kind in ("better", "similar") else ()
    prices = dict.fromkeys((price(one), price(other)) for one, other in pairs)
    unequal = [(a, b) for a, b in prices if a is not None and b is not None and not math.isclose(a, b, rel_tol=0.05)]
    listed = "; ".join(f"{figure(a)} against {figure(b)}" for a, b in unequal)
    return f"Not at equal privacy: the runs' verified ε is {listed}" if unequal else ""


#: {table/row/column}: what was measured there; {cell - cell}: a paired difference; {printed}, {printed that hold}: the
#: number of claims about the paper's own tables.
BRACES = re.compile(r"\{([^{}]+)\}")


def _with_figures(paragraph: str, found: Measured) -> str:
    def filled(match: re.Match[str]) -> str:
        if match[1].startswith("printed"):
            claims = [one for one in found.paper.claims.values() if one.test.kind in ("printed", "ordered")]
            return str(sum(match[1] == "printed" or decide(one, found).verdict == HOLDS for one in claims))
        one, *other = (found.values(tuple(part.strip().split("/"))) for part in match[1].split(" - "))  # type: ignore[arg-type]
        if not other:
            return shown(one.estimate, one.unit, seeds=False)
        gap = estimate(paired(one.by_seed, other[0].by_seed))
        words = shown(gap, "%" if one.unit == "%" else "", seeds=False).replace(" %", " points")
        return f"+{words}" if (gap.mean or 0.0) > 0 else words

    return BRACES.sub(filled, paragraph)
