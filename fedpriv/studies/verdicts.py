"""What becomes of a claim: values over seeds in, a verdict and its words out. No files, no runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scipy import stats

from fedpriv.report.compare import spread
from fedpriv.report.words import figure
from fedpriv.studies.results import Estimate, Ordering, Verdict

HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
OPEN: Verdict = "not decided"
CANNOT: Verdict = "cannot be tested here"


#: What a figure says of the quantity that a claim is about. exact: it is that quantity (a claim's own, a count). upper,
#: lower: a bound on it, which decides on one side only. refuting: a lower bound that the auditor holds against the
#: claim, at its scope and delta. estimate: with an interval of its own.
Kind = Literal["exact", "upper", "lower", "refuting", "estimate"]


@dataclass(frozen=True)
class Values:
    """What was measured in one cell: seed -> value, in the unit of its table; reasons: why a bound is not finite;
    intervals: seed -> the value's own interval, where it has one (`Kind` estimate); guessing: the accuracy of it.
    """

    label: str
    by_seed: Mapping[int, float]
    reasons: Sequence[str] = field(default=())
    unit: str = ""
    kind: Kind = "exact"
    intervals: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    guessing: float | None = None

    @property
    def estimate(self) -> Estimate:
        return estimate(list(self.by_seed.values()))


@dataclass(frozen=True)
class Outcome:
    """estimated: whether anything was measured for it."""

    verdict: Verdict
    words: str
    difference: Estimate | None = None
    estimated: bool = True


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, standard deviation and half width of the 95 % t-interval."""
    found = spread(values)
    return Estimate(n=found.n, mean=found.mean, std=found.std, half_width=found.half_width)


def paired_difference(first: Values, second: Values) -> Estimate:
    """first - second, seed by seed: what the seed decides (data, cohorts, initial model) is the same in both."""
    seeds = sorted(first.by_seed.keys() & second.by_seed.keys())
    return estimate([first.by_seed[seed] - second.by_seed[seed] for seed in seeds])


def bounds(found: Estimate, confidence: float = 0.95) -> tuple[float, float]:
    """The ends of the t-interval; without one (a single seed) everything is possible."""
    if found.mean is None or found.half_width is None or found.std is None:
        return -math.inf, math.inf
    half = float(stats.t.ppf((1 + confidence) / 2, found.n - 1)) * found.std / math.sqrt(found.n)
    return found.mean - half, found.mean + half


def better(pairs: Sequence[tuple[Values, Values]], reported: Sequence[float] = ()) -> Outcome:
    """Holds where every difference is above 0 (95 % each), fails where one is below 0 (95 % for all pairs together,
    Bonferroni). A verdict on the sign: whether the ``reported`` size is reached is said in words.
    """
    verdicts, words = [], []
    for number, (one, other) in enumerate(pairs):
        found = paired_difference(one, other)
        low, high = bounds(found)
        printed = f"; reported {reported[number]:+.3g}" if number < len(reported) else ""
        if printed and math.isfinite(low) and not low <= reported[number] <= high:
            printed += ", which is not reached" if high < reported[number] else ", which is exceeded"
        nothing = _nothing_learns(one, other)
        _, surely = bounds(found, 1 - 0.05 / len(pairs))
        verdicts.append(OPEN if nothing else HOLDS if low > 0 else FAILS if surely < 0 else OPEN)
        words.append(f"{one.label} against {other.label}: {difference(found, one.unit)}{printed}{nothing}")
    return Outcome(_joint(verdicts), ". ".join(words), paired_difference(*pairs[0]) if len(pairs) == 1 else None)


def similar(pairs: Sequence[tuple[Values, Values]], within: float) -> Outcome:
    """Holds where every difference lies within bounds (95 % each), fails where one lies outside (95 % for all pairs
    together, Bonferroni).
    """
    verdicts, words = [], []
    for one, other in pairs:
        found = paired_difference(one, other)
        low, high = bounds(found)
        nothing = _nothing_learns(one, other)
        surely_low, surely_high = bounds(found, 1 - 0.05 / len(pairs))
        outside = surely_low > within or surely_high < -within
        inside = -within <= low and high <= within
        verdicts.append(OPEN if nothing else HOLDS if inside else FAILS if outside else OPEN)
        words.append(
            f"{one.label} against {other.label}: {difference(found, one.unit)}, wanted within {within:g}{nothing}"
        )
    return Outcome(_joint(verdicts), ". ".join(words), paired_difference(*pairs[0]) if len(pairs) == 1 else None)


def _nothing_learns(one: Values, other: Values) -> str:
    """Words where both are nearer to guessing than to half as much again: their order says nothing."""
    means = [values.estimate.mean for values in (one, other)]
    if one.guessing is None or any(mean is None or mean >= 1.5 * one.guessing for mean in means):
        return ""
    return f", but neither learns (guessing gives {one.guessing:g} %)"


def at_most(
    value: Values, bound: float, bound_label: str = "", bound_kind: Kind = "exact", decides: str = ""
) -> Outcome:
    """Of a figure that is computed, not sampled over seeds: its largest counts. A bound decides on its side only: an
    upper bound above the claim refutes nothing, and an attack that finds less than the claim confirms nothing, unless
    ``decides`` says why it does here.
    """
    largest = max(value.by_seed.values())
    over = f"{figure(bound)}{f' ({bound_label})' if bound_label else ''}"
    found = figure(largest)
    if value.kind == "estimate":
        low, high = (max((one[end] for one in value.intervals.values()), default=math.nan) for end in (0, 1))
        verdict = HOLDS if high <= bound else FAILS if low > bound else OPEN
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
    return Outcome(verdict, words)


_ONE_SIDED: Mapping[Kind, str] = {
    "upper": "An upper bound: the truth may be less",
    "lower": "The auditor does not hold this against the claim",
    "refuting": "The auditor does not hold this against the claim",
    "estimate": "The interval holds both",
    "exact": "",
}


def at_least(value: Values, bound: float, decided: bool) -> Outcome:
    """A mean against a printed value. decided: whether the setting is the paper's, so that less is a contradiction."""
    found = value.estimate
    low, high = bounds(found)
    words = f"{value.label}: {shown(found, value.unit)}; reported {bound:g}"
    if low >= bound:
        return Outcome(HOLDS, words)
    if not decided:
        return Outcome(CANNOT, words)
    return Outcome(FAILS if high < bound else OPEN, words)


def _joint(verdicts: Sequence[Verdict]) -> Verdict:
    if FAILS in verdicts:
        return FAILS
    return HOLDS if all(verdict == HOLDS for verdict in verdicts) else OPEN


def shown(found: Estimate, unit: str = "") -> str:
    if found.mean is None:
        return "nothing"
    sign = f" {unit}" if unit else ""
    width = f" ± {found.half_width:.2g}" if found.half_width is not None else ""
    mean = f"{found.mean:.1f}" if unit == "%" else figure(found.mean)
    return f"{mean}{width}{sign} ({found.n} seed{'s' if found.n > 1 else ''})"


def difference(found: Estimate, unit: str = "") -> str:
    """A paired difference with its interval, in points where the unit is percent."""
    if found.mean is None:
        return "no seed in common"
    unit = "points" if unit == "%" else unit
    low, high = bounds(found)
    interval = f" [{low:+.2g}, {high:+.2g}]" if math.isfinite(low) else " (one seed: no interval)"
    return f"{found.mean:+.3g}{interval} {unit}".rstrip()


def ordering(column: str, rows: Mapping[str, Values], reported: Mapping[str, float]) -> Ordering | None:
    """The reported order of a column's rows against the measured one, pair by pair; None for fewer than two rows."""
    names = [name for name in sorted(reported, key=lambda name: -reported[name]) if name in rows]
    if len(names) < 2:
        return None
    counts = {HOLDS: 0, FAILS: 0, OPEN: 0}
    for place, higher in enumerate(names):
        for lower in names[place + 1 :]:
            if reported[higher] == reported[lower]:
                continue
            low, high = bounds(paired_difference(rows[higher], rows[lower]))
            counts[HOLDS if low > 0 else FAILS if high < 0 else OPEN] += 1
    if not any(counts.values()):
        return None  # all reported alike: there is no order
    means = {name: rows[name].estimate.mean or 0.0 for name in names}
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
