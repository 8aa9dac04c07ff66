"""The verdict on a claim: one function of its row and of the values that its cells have, by docs/results/protocol.md.

How sure a verdict is: `fedpriv.studies.statistics`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal, Protocol, TypeVar

from fedpriv.report.words import figure, plus_minus, two_digits
from fedpriv.studies.papers import MOVES_LEVELS, ClaimSpec, Paper, Place, Scale, Test, places
from fedpriv.studies.results import Estimate, Ordering, Verdict
from fedpriv.studies.statistics import (
    FAMILY_ERROR,
    GUESSING,
    Sides,
    below,
    blocks_that_differ,
    both_sides,
    estimate,
    paired,
    sequential,
    together,
)

HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
OPEN: Verdict = "not decided"
CANNOT: Verdict = "cannot be tested here"

#: A printed accuracy counts as reached down to so many points below it; and what counts as an effect where a paper
#: prints no gain (docs/results/protocol.md).
LEVEL = EFFECT = 1.0

#: What a figure says of the quantity that a claim is about. exact: it is that quantity (a claim's own, a count). upper,
#: lower: a bound on it, which decides on one side only. refuting: a lower bound that the auditor holds against the
#: claim, at its scope and delta. estimate: with an interval of its own.
Kind = Literal["exact", "upper", "lower", "refuting", "estimate"]


@dataclass(frozen=True)
class Values:
    """What was measured in one cell: seed -> value, in the unit of its table; column: "" where the table has one;
    reasons: why a bound is not finite; intervals: seed -> the value's own interval (`Kind` estimate); guessing: the
    accuracy of it; looks: at how many seeds is looked, all that are planned (none: once); blocks: seed -> where and
    when it was made.
    """

    row: str
    by_seed: Mapping[int, float]
    column: str = ""
    reasons: Sequence[str] = ()
    unit: str = ""
    kind: Kind = "exact"
    intervals: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    guessing: float | None = None
    looks: Sequence[int] = ()
    blocks: Mapping[int, Hashable] = field(default_factory=dict)

    @property
    def label(self) -> str:
        if not self.column:
            return self.row
        return f"{self.row[:-1]}, {self.column})" if self.row.endswith(")") else f"{self.row} ({self.column})"

    @property
    def estimate(self) -> Estimate:
        return estimate(self.by_seed.values())

    @property
    def guesses(self) -> bool:
        """Whether it is nearer to guessing than to half as much again."""
        mean = self.estimate.mean
        return self.guessing is not None and mean is not None and mean < GUESSING * self.guessing

    @property
    def learning(self) -> int:
        """Runs that learn."""
        return sum(value >= GUESSING * (self.guessing or 0.0) for value in self.by_seed.values())

    @property
    def two_kinds(self) -> bool:
        """Whether it learns or guesses by its seed: at least a tenth of the runs on each side of 1.5 times guessing."""
        runs = len(self.by_seed)
        return self.guessing is not None and runs > 0 and 0.1 <= (runs - self.learning) / runs <= 0.9


class Study(Protocol):
    """What runs gave, cell by cell (`fedpriv.studies.reproduction.Measured`)."""

    @property
    def paper(self) -> Paper: ...

    @property
    def scale(self) -> Scale: ...

    @property
    def missing(self) -> Mapping[Place, str]: ...

    def values(self, place: Place) -> Values: ...

    def why_missing(self, place: Place) -> str | None: ...


@dataclass(frozen=True)
class Outcome:
    """estimated: whether anything was measured for it. sides: how sure it is, before Holm's correction, where it was
    measured over seeds or is an estimate; p: after it. level: whether a failure decides, or only tells that the setting
    is another one. late: it is open for want of fresh seeds alone. A verdict `CANNOT` stays whatever the sides are.
    """

    verdict: Verdict
    words: str
    difference: Estimate | None = None
    estimated: bool = True
    sides: Sides | None = None
    p: float | None = None
    level: bool = True
    late: bool = False


Name = TypeVar("Name", bound=Hashable)


def outcomes(study: Study) -> dict[str, Outcome]:
    """Of each claim, all of them decided together, and of each finding beyond the paper. A verdict that a rule gave
    after its data counts if fresh seeds, these decided together too, give it as well.
    """
    claims, found = study.paper.claims, {name: decide(claim, study) for name, claim in study.paper.claims.items()}
    settled = settle({name: one for name, one in found.items() if not claims[name].beyond})
    moved = [name for name, one in settled.items() if _is_moved(claims[name], one, study.paper)]
    asked = [name for name in moved if claims[name].confirm_pair is None or settled[name].verdict == FAILS]
    fresh = {name: again for name in asked if (again := claims[name].confirming()) is not None}
    confirmed = settle({name: decide(claim, study) for name, claim in fresh.items()})
    changed = {name: _confirmed(settled[name], confirmed.get(name)) for name in moved}
    return found | settled | changed


def settle(found: Mapping[Name, Outcome]) -> dict[Name, Outcome]:
    """The outcomes of a family (a paper's claims), decided together: those that rest on chance by Holm's procedure."""
    corrected = both_sides({name: one.sides for name, one in found.items() if one.sides is not None})
    return {name: _settled(one, corrected[name]) if name in corrected else one for name, one in found.items()}


def _settled(outcome: Outcome, sides: Sides) -> Outcome:
    verdict = CANNOT if outcome.verdict == CANNOT else decided(sides)
    if verdict != HOLDS and not outcome.level:
        verdict = CANNOT
    return replace(outcome, verdict=verdict, p=min(sides.holds, sides.fails if outcome.level else 1.0))


def decided(sides: Sides) -> Verdict:
    """sides: adjusted. Looks that contradict each other decide nothing."""
    holds, fails = sides.holds <= FAMILY_ERROR, sides.fails <= FAMILY_ERROR
    return OPEN if holds == fails else HOLDS if holds else FAILS


def _is_moved(claim: ClaimSpec, outcome: Outcome, paper: Paper) -> bool:
    """Whether the protocol gives a verdict on runs that the list before it did not have, and on seeds of that time."""
    strong = outcome.verdict in (HOLDS, FAILS) and outcome.sides is not None
    fresh = all(paper.tables[table].first_seed for table, _, _ in claim.test.cells)
    return strong and not fresh and claim.before is not None and (claim.late or claim.before != outcome.verdict)


def _confirmed(outcome: Outcome, fresh: Outcome | None) -> Outcome:
    late = f"{outcome.words}. By a rule made after these seeds it {outcome.verdict}"
    if fresh is None or not fresh.estimated:
        return replace(outcome, verdict=OPEN, late=True, words=f"{late}; open until fresh seeds say so as well")
    if fresh.verdict == outcome.verdict:
        return replace(outcome, words=f"{late}, and fresh seeds say so as well: {fresh.words}")
    words = f"{late}, which fresh seeds do not confirm: {fresh.words}"
    return replace(outcome, verdict=OPEN, late=True, words=words)


def decide(claim: ClaimSpec, study: Study) -> Outcome:
    """Before the correction for the other claims of the paper. Of two readings the better one counts: the claim holds
    if it does by one of them (Bonferroni), and fails if it does by both.
    """
    if claim.otherwise is not None:
        one, other = (
            decide(claim.model_copy(update={"test": test, "otherwise": None}), study)
            for test in (claim.test, claim.otherwise)
        )
        told = [found.sides for found in (one, other) if found.sides is not None and found.verdict != CANNOT]
        if not told:
            return one
        fails = max(sides.fails for sides in told) if len(told) == 2 else 1.0
        better_of = Sides(min(1.0, 2 * min(sides.holds for sides in told)), fails)
        words = f"{one.words}. By the other reading: {other.words}"
        return settle({0: Outcome(OPEN, words, sides=better_of, level=one.level and other.level)})[0]
    test = claim.test
    if test.kind == "cannot":
        return Outcome(CANNOT, test.why, estimated=False)
    if test.kind in ("printed", "ordered"):
        return (_printed if test.kind == "printed" else _ordered)(test, study.paper)
    if missing := [why for cell in test.cells if (why := study.why_missing(cell))]:
        # Runs that failed leave their claim among those that are corrected together; what was never to be run does not.
        sides = Sides() if test.kind != "at_most" and not study.missing.keys() & test.cells else None
        return Outcome(CANNOT, missing[0][0].upper() + missing[0][1:], estimated=False, sides=sides)
    if test.kind == "at_most":
        bound = study.values(test.bound) if isinstance(test.bound, tuple) else float(test.bound or 0.0)
        return at_most(study.values(test.cells[0]), bound, test.decides)
    own = own_levels(claim, study)
    if test.kind == "at_least":
        return at_least(study.values(test.cells[0]), float(test.bound), own)  # type: ignore[arg-type]
    if test.kind == "grows":
        return grows([[(study.values(a), study.values(b)) for a, b in gain] for gain in test.pairs])
    pairs = [(_mean(a, study), _mean(b, study)) for a, b in test.pairs]
    if test.kind == "similar":
        return similar(pairs, test.within, not test.size or own)
    return better(pairs, test.reported, _margins(test, pairs, own))


def _mean(cell: Any, study: Study) -> Values:
    """Of one cell its values, of several their mean, seed by seed."""
    first, *others = (study.values(place) for place in places(cell))
    if not others:
        return first
    seeds = set(first.by_seed).intersection(*(one.by_seed for one in others))
    means = {seed: fmean([first.by_seed[seed], *(one.by_seed[seed] for one in others)]) for seed in sorted(seeds)}
    return replace(first, by_seed=means, column=f"mean of {len(others) + 1}", intervals={})


def own_levels(claim: ClaimSpec, study: Study) -> bool:
    """Whether levels can be held against the paper: in its own setting, where nothing that moves them is open."""
    tables = [study.paper.tables[table] for table, _, _ in claim.test.cells]
    return not any(table.differences(study.scale) or MOVES_LEVELS & table.open.keys() for table in tables)


def _margins(test: Test, pairs: Sequence[tuple[Values, Values]], own: bool) -> list[float]:
    """M of each pair: the printed gain, else the smallest of these methods elsewhere, else 1 point of accuracy; in
    another setting than the paper's own at most 1 point. Quantities that are no accuracies have a printed one alone.
    """
    effects = [EFFECT if one.unit == "%" else 0.0 for one, _ in pairs]
    printed = dict(enumerate(test.reported))
    gains = [printed.get(number, test.smallest or effect) for number, effect in enumerate(effects)]
    return [max(0.0, gain if own else min(gain, effect)) for gain, effect in zip(gains, effects, strict=True)]


# --- what is measured over seeds ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """One comparison of a claim. nothing: it decides nothing with any number of seeds, since somebody guesses."""

    sides: Sides
    words: str
    difference: Estimate
    nothing: bool = False


def better(
    pairs: Sequence[tuple[Values, Values]], reported: Sequence[float] = (), margins: Sequence[float] = ()
) -> Outcome:
    """Holds where every difference is above 0, fails where one is below 0 or no effect (Bonferroni over the pairs).
    ``reported`` sizes are quoted; margins: M of each pair, what counts as an effect (none: the sign alone). A
    rival that guesses decides nothing: where all of them do, the claim cannot be tested here.
    """
    parts = []
    for number, (one, other) in enumerate(pairs):
        margin = margins[number] if number < len(margins) else 0.0
        low, high = bounds(estimate(paired(one.by_seed, other.by_seed)))
        notes = []
        if number < len(reported):
            size = reported[number]
            missed = " (not reached)" if high < size else " (exceeded)" if low > size else ""
            notes.append(f"reported {size:+.3g}{missed if math.isfinite(low) else ''}")
        if -margin < low and high < margin:
            notes.append(f"within {margin:g}: no effect" if low <= 0 else f"a gain below {margin:g}")
        sides = _compared(one, other, margin=margin)
        parts.append(_part(one, other, sides, notes, nothing=other.guesses))
    return _together(parts)


def similar(pairs: Sequence[tuple[Values, Values]], within: float, level: bool = True) -> Outcome:
    """Equivalence: holds where every difference lies within the margin by two one-sided tests (Schuirmann 1987), fails
    where one lies outside (Bonferroni over the pairs and the two ends). Two that guess are alike for no reason.
    """
    parts = []
    for one, other in pairs:
        over, under = (_compared(one, other, shift) for shift in (-within, within))
        outside = min(1.0, 2 * min(over.holds, under.fails)) if level else 1.0
        sides = Sides(max(over.fails, under.holds), outside)
        parts.append(_part(one, other, sides, [f"wanted within {within:g}"], nothing=one.guesses or other.guesses))
    return _together(parts, level)


def grows(gains: Sequence[Sequence[tuple[Values, Values]]]) -> Outcome:
    """Of each pair of differences the first is larger than the second. A rival that guesses makes no difference that
    counts.
    """
    parts = []
    for gain in gains:
        one, other = (_difference(*pair) for pair in gain)
        by_sign = any(values.two_kinds for pair in gain for values in pair)
        sides = sequential(paired(one.by_seed, other.by_seed), gain[0][0].looks, by_sign=by_sign)
        parts.append(_part(one, other, sides, [], nothing=any(rival.guesses for _, rival in gain)))
    return _together(parts)


def at_least(value: Values, bound: float, level: bool) -> Outcome:
    """A mean against a printed value: reached at no more than `LEVEL` below it. level: whether less contradicts it."""
    slack = LEVEL if value.unit == "%" else 0.0
    missing = [value.by_seed[seed] - bound + slack for seed in sorted(value.by_seed)]
    sides = sequential(missing, value.looks, by_sign=value.two_kinds)
    words = f"{value.label}: {shown(value.estimate, value.unit)}; reported {bound:g}"
    outcome = Outcome(OPEN, words, sides=sides if level else Sides(sides.holds), level=level)
    return settle({0: outcome})[0]


def _compared(one: Values, other: Values, shift: float = 0.0, margin: float = 0.0) -> Sides:
    differences = [difference + shift for difference in paired(one.by_seed, other.by_seed)]
    return sequential(differences, one.looks, margin, by_sign=one.two_kinds or other.two_kinds)


def _difference(one: Values, other: Values) -> Values:
    seeds = one.by_seed.keys() & other.by_seed.keys()
    gap = {seed: one.by_seed[seed] - other.by_seed[seed] for seed in seeds}
    blocks = {seed: (one.blocks.get(seed), other.blocks.get(seed)) for seed in seeds}
    return Values(f"({_against(one, other)})", gap, unit=one.unit, blocks=blocks)


def _part(one: Values, other: Values, sides: Sides, notes: Sequence[str], nothing: bool) -> _Part:
    gap, more = _difference(one, other), list(notes)
    if nothing:
        who = "a rival guesses"
        if one.guessing or other.guessing:
            who = (
                "neither learns"
                if one.guesses and other.guesses
                else f"{(one if one.guesses else other).label} guesses"
            )
            who += f" (guessing gives {one.guessing or other.guessing:g} %)"
        more.append(f"decides nothing: {who}")
    elif one.two_kinds or other.two_kinds:
        learn = " against ".join(f"{values.learning} of {len(values.by_seed)}" for values in (one, other))
        more.append(f"by the sign test: {learn} runs learn")
    found = gap.estimate
    words = f"{_against(one, other)}: {', '.join([_with_interval(found, one.unit), *more])}"
    return _Part(Sides() if nothing else sides, words + blocks_that_differ(gap.by_seed, gap.blocks), found, nothing)


def _together(parts: Sequence[_Part], level: bool = True) -> Outcome:
    nothing = [part.nothing for part in parts]
    least_sure_first = sorted(parts, key=lambda part: (part.nothing, part.sides.fails))
    words = [part.words for part in least_sure_first]
    if any(nothing) and not all(nothing):
        words.append("So it can fail here, and not hold")
    verdict, only = CANNOT if all(nothing) else OPEN, parts[0].difference if len(parts) == 1 else None
    sides = together([part.sides for part in parts])
    return settle({0: Outcome(verdict, ". ".join(words), only, sides=sides, level=level)})[0]


# --- what is computed, audited or printed ------------------------------------------------------------------

_ONE_SIDED: Mapping[Kind, str] = {
    "upper": "An upper bound: the truth may be less",
    "lower": "The auditor does not hold this against the claim",
    "refuting": "The auditor does not hold this against the claim",
    "estimate": "The interval holds both",
    "exact": "",
}


def at_most(value: Values, bound: float | Values, decides: str = "") -> Outcome:
    """Of a figure that is computed, not sampled over seeds: its largest counts, against a number or another cell's
    least. A bound decides on its side only: an upper bound above the claim refutes nothing, and an attack that finds
    less than the claim confirms nothing, unless ``decides`` says why it does here.
    """
    rival = bound if isinstance(bound, Values) else None
    limit = min(bound.by_seed.values()) if isinstance(bound, Values) else bound
    largest, sides = max(value.by_seed.values()), None
    words = f"{value.label}: {figure(largest)}"
    if value.kind == "estimate":
        low, high = (max((one[end] for one in value.intervals.values()), default=math.nan) for end in (0, 1))
        sides = below(largest, low, high, limit)
        verdict = decided(both_sides({0: sides})[0])
        words += f" [{figure(low)}, {figure(high)}]"
    elif largest <= limit:
        unsure = value.kind in ("lower", "refuting") or (rival is not None and rival.kind == "upper" and not decides)
        verdict = OPEN if unsure else HOLDS
    else:
        verdict = OPEN if value.kind in ("upper", "lower") and not decides else FAILS
    named = f" ({rival.label})" if rival else ""
    words += f", {'at most' if largest <= limit else 'more than'} {figure(limit)}{named}"
    if math.isinf(largest) and value.reasons:
        words += f". No bound: {value.reasons[0]}"
    if verdict == OPEN:
        words += f". {_ONE_SIDED[rival.kind if value.kind == 'exact' and rival else value.kind]}"
    elif decides:
        words += f". {decides}"
    return Outcome(verdict, words, sides=sides)


def _printed(test: Test, paper: Paper) -> Outcome:
    """What a paper says of its tables, against them. Nothing was measured."""
    gains = [_gain(gain, paper) for gain in test.gains]
    right = [abs(found - said) <= test.within for found, said in zip(gains, test.says, strict=True)]
    verdict = HOLDS if all(right) else FAILS
    if len(gains) > 9:
        words = f"Of {len(gains)} printed figures {sum(right)} are as the text says, within {test.within:g}"
    elif not any(test.says):  # the text says that they are alike
        words = f"By the printed figures: {', '.join(f'{gain:+.4g}' for gain in gains)}"
    else:
        pairs = (f"{said:+.4g} and {gain:+.4g}" for said, gain in zip(test.says, gains, strict=True))
        words = f"By the text and by the tables: {'; '.join(pairs)}"
    return Outcome(verdict, words, estimated=False)


def _ordered(test: Test, paper: Paper) -> Outcome:
    """What a paper says of the order of its printed figures, largest first. Nothing was measured."""
    tables = paper.tables
    rows = [[(tables[t].rows[r].label, tables[t].reported[r][c]) for t, r, c in row] for row in test.rows]
    rows += [[(_gain_label(gain, paper), round(_gain(gain, paper), 9)) for gain in gaps] for gaps in test.gaps]
    steps = [step for row in rows for step in pairwise(row)]
    wrong = [
        f"{one} {figure(first)}, {other} {figure(second)}"
        for (one, first), (other, second) in steps
        if first < second or (first == second and not test.equal)
    ]
    words = f"Comparisons of printed figures that are as the text says: {len(steps) - len(wrong)} of {len(steps)}"
    if len(steps) <= 4 and not wrong:
        words += f" ({', '.join(' over '.join(figure(value) for _, value in row) for row in rows)})"
    return Outcome(FAILS if wrong else HOLDS, words + (f"; not {'; '.join(wrong)}" if wrong else ""), estimated=False)


def _gain(gain: Any, paper: Paper) -> float:
    """By how much the first cells' mean printed figure is above that of the others."""
    one, other = (fmean(paper.tables[t].reported[r][c] for t, r, c in cells) for cells in gain)
    return one - other


def _gain_label(gain: Any, paper: Paper) -> str:
    (t, r, c), (u, s, _) = gain[0][0], gain[1][0]
    column = f"“{paper.tables[t].columns[c].label}”"
    if len(gain[0]) > 1:
        return f"the mean gain of {column} and {len(gain[0]) - 1} more"
    return f"{paper.tables[t].rows[r].label} over {paper.tables[u].rows[s].label} in {column}"


def ordering(column: str, rows: Mapping[str, Values], reported: Mapping[str, float]) -> Ordering | None:
    """The reported order of a column's rows against the measured one, pair by pair (Holm over the pairs); None for
    fewer than two rows. Whoever is above a rival that guesses is not above it for sure.
    """
    names = [name for name in sorted(reported, key=lambda name: -reported[name]) if name in rows]
    pairs = [(a, b) for place, a in enumerate(names) for b in names[place + 1 :] if reported[a] != reported[b]]
    if not pairs:
        return None
    sides = {(a, b): Sides() if rows[b].guesses else _compared(rows[a], rows[b]) for a, b in pairs}
    counts = Counter(decided(one) for one in both_sides(sides).values())
    return Ordering(column=column, agreeing=counts[HOLDS], contradicted=counts[FAILS], open=counts[OPEN])


# --- in figures --------------------------------------------------------------------------------------------


def bounds(found: Estimate) -> tuple[float, float]:
    """The ends of the 95 % t-interval; without one (a single seed) everything is possible."""
    if found.mean is None or found.half_width is None:
        return -math.inf, math.inf
    return found.mean - found.half_width, found.mean + found.half_width


def shown(found: Estimate, unit: str = "", seeds: bool = True) -> str:
    if found.mean is None:
        return "nothing"
    width = f" ± {two_digits(found.half_width)}" if found.half_width is not None else ""
    text = plus_minus(found.mean, found.half_width) if unit == "%" else f"{figure(found.mean)}{width}"
    count = f" ({found.n} seed{'s' if found.n > 1 else ''})" if seeds else ""
    return f"{text}{f' {unit}' if unit else ''}{count}"


def _against(one: Values, other: Values) -> str:
    if one.column == other.column and one.column:
        return f"{one.row} − {replace(other, column=one.column).label}"
    return f"{one.label} − {other.label}"


def _with_interval(found: Estimate, unit: str) -> str:
    """ "+3.07 points [+2.79, +3.34]": the interval with two digits of its half width."""
    if found.mean is None:
        return "no seed in common"
    size = f"{found.mean:+.3g}".replace("inf", "∞") + (" points" if unit == "%" else f" {unit}" if unit else "")
    low, high = bounds(found)
    half = found.half_width
    if half is None or not math.isfinite(half):
        return f"{size} (one seed: no interval)"
    digits = min(6, max(0, 1 - math.floor(math.log10(half)))) if half > 0 else 1
    return f"{size} [{low:+.{digits}f}, {high:+.{digits}f}]"


def p_words(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else "p = 1" if p >= 1.0 else f"p = {p:.2g}"
