"""A paper's claim against what was measured, by the rules of docs/results/protocol.md."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Protocol

from fedpriv.studies.claim_spec import (
    AtLeast,
    AtMost,
    Better,
    Cannot,
    ClaimSpec,
    Grows,
    Ordered,
    Printed,
    Reference,
    Similar,
)
from fedpriv.studies.evidence import Sides
from fedpriv.studies.experiments import Place, Planned
from fedpriv.studies.printed_claims import ordered, printed
from fedpriv.studies.spec import MOVES_LEVELS, Reproduction, Scale
from fedpriv.studies.verdicts import (
    CANNOT,
    EFFECT,
    FAILS,
    HOLDS,
    Outcome,
    Values,
    at_least,
    at_most,
    better,
    grows,
    similar,
)


class Measured(Protocol):
    """What runs gave, cell by cell (`fedpriv.studies.reproduction.Measured`)."""

    paper: Reproduction
    planned: Planned
    scale: Scale

    def values(self, place: Place) -> Values: ...

    def why_missing(self, place: Place) -> str | None: ...


def is_moved(claim: ClaimSpec, found: Outcome, paper: Reproduction) -> bool:
    """Whether the protocol gives a verdict on runs that the list before it did not have, and on seeds of that time."""
    strong = found.verdict in (HOLDS, FAILS) and found.sides is not None
    fresh = all(paper.tables[table].first_seed for table, _, _ in claim.cells)
    return strong and not fresh and claim.before is not None and (claim.late or claim.before != found.verdict)


def outcome(claim: ClaimSpec, found: Measured) -> Outcome:
    """Before the correction for the other claims of the paper."""
    test, tables = claim.test, found.paper.tables
    if isinstance(test, Cannot):
        return Outcome(CANNOT, test.why, estimated=False)
    if isinstance(test, Printed):
        gains = [[_printed_mean(side, found) for side in gain] for gain in test.gains]
        return printed([one - other for one, other in gains], test.says, test.within)
    if isinstance(test, Ordered):
        rows = [[(tables[t].rows[r].label, tables[t].reported[r][c]) for t, r, c in row] for row in test.rows]
        return ordered(rows + [[_gap(gain, found) for gain in gaps] for gaps in test.gaps], test.equal)
    missing = [why for cell in claim.cells if (why := found.why_missing(cell))]
    if missing:
        # Runs that failed leave their claim among those that are corrected together; what was never to be run does not.
        planned = not isinstance(test, AtMost) and not found.planned.missing.keys() & claim.cells
        return Outcome(
            CANNOT, missing[0][0].upper() + missing[0][1:], estimated=False, sides=Sides() if planned else None
        )
    match test:
        case Better(pairs=pairs, reported=reported):
            values = [(found.values(a), found.values(b)) for a, b in pairs]
            return better(values, reported, _margins(test, values, own_levels(claim, found)))
        case Grows(pairs=quadruples):
            pair = [
                ((found.values(a), found.values(b)), (found.values(c), found.values(d)))
                for (a, b), (c, d) in quadruples
            ]
            return grows(pair)
        case Similar(pairs=pairs, within=within, size=size):
            values = [(found.values(a), found.values(b)) for a, b in pairs]
            return similar(values, within, decided=not size or own_levels(claim, found))
        case AtMost(cell=cell, bound=bound, decides=decides):
            if isinstance(bound, tuple):
                other = found.values(bound)
                return at_most(found.values(cell), min(other.by_seed.values()), other.label, other.kind, decides)
            return at_most(found.values(cell), bound, decides=decides)
        case AtLeast(cell=cell, bound=bound):
            return at_least(found.values(cell), bound, decided=own_levels(claim, found))
    raise AssertionError(test)


def _printed_mean(cells: Sequence[Reference], found: Measured) -> float:
    return fmean(found.paper.tables[table].reported[row][column] for table, row, column in cells)


def _gap(gain: tuple[Sequence[Reference], Sequence[Reference]], found: Measured) -> tuple[str, float]:
    """(words, by how much the first cells' mean printed figure is above that of the others)."""
    tables, (one, other) = found.paper.tables, gain
    (t, r, c), (u, s, _) = one[0], other[0]
    column = f"“{tables[t].columns[c].label}”"
    words = f"{tables[t].rows[r].label} over {tables[u].rows[s].label} in {column}"
    if len(one) > 1:
        words = f"the mean gain of {column} and {len(one) - 1} more"
    return words, round(_printed_mean(one, found) - _printed_mean(other, found), 9)


def _margins(test: Better, values: Sequence[tuple[Values, Values]], own: bool) -> list[float]:
    """M of each pair: the printed gain, else the smallest of these methods elsewhere, else 1 point of accuracy; in
    another setting than the paper's own at most 1 point. Quantities that are no accuracies have a printed one alone.
    """
    effect = EFFECT if values[0][0].unit == "%" else 0.0
    printed_gains = dict(enumerate(test.reported))
    gains = [printed_gains.get(number, test.smallest or effect) for number in range(len(values))]
    return [max(0.0, gain if own else min(gain, effect)) for gain in gains]


def own_levels(claim: ClaimSpec, found: Measured) -> bool:
    """Whether levels can be held against the paper: in its own setting, where nothing that moves them is open."""
    tables = [found.paper.tables[table] for table, _, _ in claim.cells]
    return not any(table.differences(found.scale) or MOVES_LEVELS & table.open.keys() for table in tables)
