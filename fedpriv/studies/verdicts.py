"""What becomes of a claim: values over seeds in, a verdict and its words out. No files, no runs.

How sure a verdict is: `fedpriv.studies.evidence`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from fedpriv.report.words import figure, plus_minus, two_digits
from fedpriv.studies.evidence import FAMILY_ERROR, Sides, above, both_sides, estimate, paired, sequential, together
from fedpriv.studies.results import Estimate, Ordering, Verdict
from fedpriv.studies.seed_blocks import block_words

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
    """What was measured in one cell: seed -> value, in the unit of its table; reasons: why a bound is not finite;
    intervals: seed -> the value's own interval, where it has one (`Kind` estimate); guessing: the accuracy of it;
    looks: at how many seeds is looked, all that are planned (none: once); blocks: seed -> where and when it was made.
    """

    label: str
    by_seed: Mapping[int, float]
    reasons: Sequence[str] = field(default=())
    unit: str = ""
    kind: Kind = "exact"
    intervals: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    guessing: float | None = None
    looks: Sequence[int] = ()
    blocks: Mapping[int, Hashable] = field(default_factory=dict)

    @property
    def guesses(self) -> bool:
        """Whether it is nearer to guessing than to half as much again."""
        mean = self.estimate.mean
        return self.guessing is not None and mean is not None and mean < 1.5 * self.guessing

    @property
    def two_kinds(self) -> bool:
        """Whether it learns or guesses by its seed: at least a tenth of the runs on each side of 1.5 times guessing."""
        if self.guessing is None or not self.by_seed:
            return False
        share = sum(value < 1.5 * self.guessing for value in self.by_seed.values()) / len(self.by_seed)
        return 0.1 <= share <= 0.9

    @property
    def estimate(self) -> Estimate:
        return estimate(self.by_seed.values())


@dataclass(frozen=True)
class Outcome:
    """estimated: whether anything was measured for it. sides: how sure it is, before Holm's correction, where it was
    measured over seeds or is an estimate; p: after it. blocked: more seeds would not decide it, though it is open.
    level: whether a failure decides, or only tells that the setting is another one. A verdict `CANNOT` stays whatever
    the sides are.
    """

    verdict: Verdict
    words: str
    difference: Estimate | None = None
    estimated: bool = True
    sides: Sides | None = None
    p: float | None = None
    blocked: bool = False
    level: bool = True


Family = TypeVar("Family", bound=Hashable)


def settle(outcomes: Mapping[Family, Outcome]) -> dict[Family, Outcome]:
    """The outcomes of a family (a paper's claims), decided together: those that rest on chance by Holm's procedure."""
    corrected = both_sides({name: one.sides for name, one in outcomes.items() if one.sides is not None})
    return {name: _settled(one, corrected[name]) if name in corrected else one for name, one in outcomes.items()}


def _settled(outcome: Outcome, sides: Sides) -> Outcome:
    verdict = CANNOT if outcome.verdict == CANNOT else decided(sides)
    if verdict != HOLDS and not outcome.level:
        verdict = CANNOT
    return replace(outcome, verdict=verdict, p=min(sides.holds, sides.fails if outcome.level else 1.0))


def decided(sides: Sides) -> Verdict:
    """sides: adjusted. Looks that contradict each other decide nothing."""
    holds, fails = sides.holds <= FAMILY_ERROR, sides.fails <= FAMILY_ERROR
    return OPEN if holds == fails else HOLDS if holds else FAILS


def confirmed_by(outcome: Outcome, fresh: Outcome | None) -> Outcome:
    """A verdict that a rule made after its data gives: it counts if fresh seeds give it as well."""
    late = f"{outcome.words}. By a rule made after these seeds it {SAYS[outcome.verdict]}"
    if fresh is None or not fresh.estimated:
        words = f"{late}; open until fresh seeds say so as well"
    elif fresh.verdict == outcome.verdict:
        return replace(outcome, words=f"{late}, and fresh seeds say so as well: {fresh.words}")
    else:
        words = f"{late}, which fresh seeds do not confirm: {fresh.words}"
    return replace(outcome, verdict=OPEN, words=words, blocked=True)


SAYS: Mapping[Verdict, str] = {HOLDS: "holds", FAILS: "does not hold"}


def _alone(words: str, sides: Sides, verdict: Verdict = OPEN, **more: Any) -> Outcome:
    """An outcome as the only one of its family."""
    return settle({0: Outcome(verdict, words, sides=sides, **more)})[0]


def paired_difference(first: Values, second: Values) -> Estimate:
    return estimate(_differences(first, second))


def _differences(first: Values, second: Values) -> list[float]:
    return paired(first.by_seed, second.by_seed)


def bounds(found: Estimate) -> tuple[float, float]:
    """The ends of the 95 % t-interval; without one (a single seed) everything is possible."""
    if found.mean is None or found.half_width is None:
        return -math.inf, math.inf
    return found.mean - found.half_width, found.mean + found.half_width


def better(
    pairs: Sequence[tuple[Values, Values]], reported: Sequence[float] = (), margins: Sequence[float] = ()
) -> Outcome:
    """Holds where every difference is above 0, fails where one is below 0 or no effect (Bonferroni over the pairs).
    ``reported`` sizes are quoted; margins: M of each pair, what counts as an effect (none: the sign alone). A
    rival that guesses decides nothing: where all of them do, the claim cannot be tested here.
    """
    sides, words = [], []
    for number, (one, other) in enumerate(pairs):
        found = paired_difference(one, other)
        low, high = bounds(found)
        printed = f"; reported {reported[number]:+.3g}" if number < len(reported) else ""
        if printed and math.isfinite(low) and not low <= reported[number] <= high:
            printed += ", which is not reached" if high < reported[number] else ", which is exceeded"
        margin = margins[number] if number < len(margins) else 0.0
        if -margin < low and high < margin:
            printed += f"; within {margin:g}, which counts as no effect" if low <= 0 else f"; a gain below {margin:g}"
        nothing = guess_words(one, other) if other.guesses else ""
        sides.append(Sides() if nothing else _compared_sides(one, other, margin=margin))
        words.append(compared(one, other, found, printed) + nothing + _seeds_words(one, other))
    return _of_pairs(pairs, sides, words, [other.guesses for _, other in pairs])


def similar(pairs: Sequence[tuple[Values, Values]], within: float, decided: bool = True) -> Outcome:
    """Equivalence: holds where every difference lies within the margin by two one-sided tests (Schuirmann 1987), fails
    where one lies outside (Bonferroni over the pairs and the two ends). Two that guess are alike for no reason.
    decided: as of `at_least`.
    """
    sides, words = [], []
    for one, other in pairs:
        over, under = (_compared_sides(one, other, shift) for shift in (-within, within))
        nothing = guess_words(one, other) if one.guesses or other.guesses else ""
        inside, outside = max(over.fails, under.holds), min(1.0, 2 * min(over.holds, under.fails)) if decided else 1.0
        sides.append(Sides() if nothing else Sides(inside, outside))
        found = paired_difference(one, other)
        words.append(compared(one, other, found, f"; wanted within {within:g}") + nothing + _seeds_words(one, other))
    return _of_pairs(pairs, sides, words, [one.guesses or other.guesses for one, other in pairs], level=decided)


def grows(gains: Sequence[tuple[tuple[Values, Values], tuple[Values, Values]]]) -> Outcome:
    """Of each pair of differences the first is larger than the second. A rival that guesses makes no difference that
    counts.
    """
    pairs = [(_difference(*first), _difference(*second)) for first, second in gains]
    words, sides = [], []
    nothing = [first[1].guesses or second[1].guesses for first, second in gains]
    for (one, other), none, gain in zip(pairs, nothing, gains, strict=True):
        found = paired_difference(one, other)
        by_sign = any(values.two_kinds for pair in gain for values in pair)
        sides.append(Sides() if none else sequential(_differences(one, other), gain[0][0].looks, by_sign=by_sign))
        said = ", which decides nothing: a rival guesses" if none else ""
        words.append(compared(one, other, found) + said + _blocks_words(one, other))
    return _of_pairs(pairs, sides, words, nothing)


def _difference(one: Values, other: Values) -> Values:
    seeds = one.by_seed.keys() & other.by_seed.keys()
    label = f"the gain of {one.label} over {other.label}"
    blocks = {seed: (one.blocks.get(seed), other.blocks.get(seed)) for seed in seeds}
    return Values(
        label, {seed: one.by_seed[seed] - other.by_seed[seed] for seed in seeds}, unit=one.unit, blocks=blocks
    )


def _compared_sides(one: Values, other: Values, shift: float = 0.0, margin: float = 0.0) -> Sides:
    differences = [difference + shift for difference in _differences(one, other)]
    return sequential(differences, one.looks, margin, by_sign=one.two_kinds or other.two_kinds)


def _seeds_words(one: Values, other: Values) -> str:
    """The share of runs that learn, where a cell learns or guesses by its seed; and blocks of seeds that differ."""
    learn = [f"{_learning(values)} of {len(values.by_seed)}" for values in (one, other)]
    kinds = f", by the sign test: {learn[0]} runs learn, against {learn[1]}" if one.two_kinds or other.two_kinds else ""
    return kinds + _blocks_words(one, other)


def _blocks_words(one: Values, other: Values) -> str:
    gap = _difference(one, other)
    return block_words(gap.by_seed, gap.blocks)


def _learning(values: Values) -> int:
    return sum(value >= 1.5 * (values.guessing or 0.0) for value in values.by_seed.values())


def _of_pairs(
    pairs: Sequence[tuple[Values, Values]],
    sides: Sequence[Sides],
    words: list[str],
    nothing: Sequence[bool],
    level: bool = True,
) -> Outcome:
    """nothing: of each pair whether it decides nothing, with any number of seeds. level: `Outcome.level`."""
    only = paired_difference(*pairs[0]) if len(pairs) == 1 else None
    if any(nothing) and not all(nothing):
        words.append("So it can fail here, and not hold")
    verdict = CANNOT if all(nothing) else OPEN
    return _alone(". ".join(words), together(sides), verdict, difference=only, level=level)


def guess_words(one: Values, other: Values) -> str:
    who = "neither learns" if one.guesses and other.guesses else f"{(one if one.guesses else other).label} guesses"
    return f", which decides nothing: {who} (guessing gives {one.guessing or other.guessing:g} %)"


def at_most(
    value: Values, bound: float, bound_label: str = "", bound_kind: Kind = "exact", decides: str = ""
) -> Outcome:
    """Of a figure that is computed, not sampled over seeds: its largest counts. A bound decides on its side only: an
    upper bound above the claim refutes nothing, and an attack that finds less than the claim confirms nothing, unless
    ``decides`` says why it does here.
    """
    largest = max(value.by_seed.values())
    named = f", “{bound_label}”" if "(" in bound_label else f" ({bound_label})" if bound_label else ""
    over = f"{figure(bound)}{named}"
    found = figure(largest)
    sides = None
    if value.kind == "estimate":
        low, high = (max((one[end] for one in value.intervals.values()), default=math.nan) for end in (0, 1))
        sides = above(largest, low, high, bound)
        verdict = decided(both_sides({0: sides})[0])
        found += f" [{figure(low)}, {figure(high)}]"
    elif largest <= bound:
        verdict = OPEN if value.kind in ("lower", "refuting") or (bound_kind == "upper" and not decides) else HOLDS
    else:
        verdict = OPEN if value.kind in ("upper", "lower") and not decides else FAILS
    words = f"{value.label}: {found}, {'at most' if largest <= bound else 'more than'} {over}"
    if math.isinf(largest) and value.reasons:
        words += f". No bound: {value.reasons[0]}"
    if verdict == OPEN:
        words += f". {_ONE_SIDED[value.kind if value.kind != 'exact' else bound_kind]}"
    elif decides:
        words += f". {decides}"
    return Outcome(verdict, words, sides=sides, blocked=True)


_ONE_SIDED: Mapping[Kind, str] = {
    "upper": "An upper bound: the truth may be less",
    "lower": "The auditor does not hold this against the claim",
    "refuting": "The auditor does not hold this against the claim",
    "estimate": "The interval holds both",
    "exact": "",
}


def at_least(value: Values, bound: float, decided: bool) -> Outcome:
    """A mean against a printed value: reached at no more than `LEVEL` below it. decided: whether the setting is the
    paper's and nothing in it is open that moves a level, so that less is a contradiction.
    """
    words = f"{value.label}: {shown(value.estimate, value.unit)}; reported {bound:g}"
    seeds = sorted(value.by_seed)
    missing = [value.by_seed[seed] - bound + (LEVEL if value.unit == "%" else 0.0) for seed in seeds]
    sides = sequential(missing, value.looks, by_sign=value.two_kinds)
    return _alone(words, sides if decided else Sides(sides.holds), level=decided)


def shown(found: Estimate, unit: str = "") -> str:
    if found.mean is None:
        return "nothing"
    sign = f" {unit}" if unit else ""
    width = f" ± {two_digits(found.half_width)}" if found.half_width is not None else ""
    if unit == "%":
        return f"{plus_minus(found.mean, found.half_width)}{sign} ({found.n} seed{'s' if found.n > 1 else ''})"
    return f"{figure(found.mean)}{width}{sign} ({found.n} seed{'s' if found.n > 1 else ''})"


def p_words(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else "p = 1" if p >= 1.0 else f"p = {p:.2g}"


def compared(one: Values, other: Values, found: Estimate, more: str = "") -> str:
    """A paired difference as a sentence, with where both are, the interval and ``more`` in brackets; in points where
    the unit is percent.
    """
    first, second, where = _names(one.label, other.label)
    if found.mean is None:
        return f"{first} and {second} have no seed in common"
    unit = "points " if one.unit == "%" else f"{one.unit} " if one.unit else ""
    size = "∞" if math.isinf(found.mean) else f"{abs(found.mean):.3g}"
    side = "above" if found.mean > 0 else "below"
    low, high = bounds(found)
    digits = _decimals(found.half_width)
    interval = (
        f"95 % interval {low:+.{digits}f} to {high:+.{digits}f}" if digits is not None else "one seed: no interval"
    )
    inside = "; ".join(part for part in (where, interval) if part) + more
    level = f"is {size} {unit}{side}" if found.mean else "equals"
    comma = "," if ", " in first.partition(" (")[0] and not first.startswith("“") else ""
    said = f"{first}{comma} {level} {second}"
    return f"{said}: {inside}" if said.endswith(")") else f"{said} ({inside})"


def _decimals(half_width: float | None) -> int | None:
    """With which a half width has two digits; None where there is none."""
    if half_width is None or not math.isfinite(half_width):
        return None
    return min(6, max(0, 1 - math.floor(math.log10(half_width)))) if half_width > 0 else 1


def _names(one: str, other: str) -> tuple[str, str, str]:
    """Two labels, "row (column)", and the column where both have the same; what begins like a phrase is quoted."""
    first, second = one.rpartition(" ("), other.rpartition(" (")
    where = ""
    if first[0] and second[0] and first[2] == second[2]:
        one, other, where = first[0], second[0], first[2].removesuffix(")")
    return _quoted(one), _quoted(other), where


def _quoted(label: str) -> str:
    return f"“{label}”" if is_phrase(label) else label


def is_phrase(label: str) -> bool:
    """Whether it begins with a common word, and not with a name or a symbol."""
    first = label.partition(" ")[0]
    return first.isascii() and first.islower()


def _order_of(higher: Values, lower: Values) -> Sides:
    return Sides() if lower.guesses else _compared_sides(higher, lower)


def ordering(column: str, rows: Mapping[str, Values], reported: Mapping[str, float]) -> Ordering | None:
    """The reported order of a column's rows against the measured one, pair by pair (Holm over the pairs); None for
    fewer than two rows. Whoever is above a rival that guesses is not above it for sure.
    """
    names = [name for name in sorted(reported, key=lambda name: -reported[name]) if name in rows]
    if len(names) < 2:
        return None
    pairs = [
        (higher, lower)
        for place, higher in enumerate(names)
        for lower in names[place + 1 :]
        if reported[higher] != reported[lower]
    ]
    corrected = both_sides({(a, b): _order_of(rows[a], rows[b]) for a, b in pairs})
    counts = Counter(decided(sides) for sides in corrected.values())
    if not counts:
        return None  # all reported alike: there is no order
    shared = set.intersection(*(set(rows[name].by_seed) for name in names))  # others' luck is no order
    seeds = {name: sorted(shared) or list(rows[name].by_seed) for name in names}
    means = {name: sum(rows[name].by_seed[seed] for seed in own) / len(own) for name, own in seeds.items()}
    measured = sorted(names, key=lambda name: -means[name])
    return Ordering(
        column=column,
        reported=tuple(rows[name].label for name in names),
        measured=tuple(rows[name].label for name in measured),
        agreeing=counts[HOLDS],
        contradicted=counts[FAILS],
        open=counts[OPEN],
        holds=not counts[FAILS] and not counts[OPEN],
    )
