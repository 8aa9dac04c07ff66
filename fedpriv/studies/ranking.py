"""Who is first, who is tied with the first, and which difference is one: pure functions of accuracies over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedpriv.report.compare import spread
from fedpriv.report.words import figure
from fedpriv.studies.results import Estimate

Outcome = Literal["beats", "loses to", "not decided"]


@dataclass(frozen=True)
class Contender:
    """A method at one target. accuracies: seed -> percent."""

    method: str
    label: str
    idea: str
    accuracies: Mapping[int, float]

    @property
    def accuracy(self) -> Estimate:
        return estimate(self.accuracies.values())

    @property
    def mean(self) -> float:
        return self.accuracy.mean or 0.0


def estimate(values: object) -> Estimate:
    """Mean with its 95 % t-interval over seeds."""
    found = spread(values)  # type: ignore[arg-type]
    return Estimate(n=found.n, mean=found.mean, std=found.std, half_width=found.half_width)


def ranked(contenders: Sequence[Contender]) -> list[tuple[int, bool, Contender]]:
    """(rank, whether it is tied with the best, contender) by mean accuracy, the best first; equal means share a rank.
    Tied: the 95 % interval of the paired difference to the best holds 0 (of a single seed, everybody is tied).
    """
    order = sorted(contenders, key=lambda contender: (-contender.mean, contender.method))
    if not order:
        return []
    best = order[0].accuracies
    found: list[tuple[int, bool, Contender]] = []
    for place, contender in enumerate(order, 1):
        rank = found[-1][0] if found and found[-1][2].mean == contender.mean else place
        found.append((rank, outcome(difference(best, contender.accuracies)) == "not decided", contender))
    return found


def difference(one: Mapping[int, float], other: Mapping[int, float]) -> Estimate:
    """one minus other, seed by seed: equal seeds have the same clients, cohorts and initial model."""
    return estimate([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])


def outcome(found: Estimate) -> Outcome:
    """What a difference's 95 % interval says of the first of the two."""
    if found.mean is None or found.half_width is None or abs(found.mean) <= found.half_width:
        return "not decided"
    return "beats" if found.mean > 0 else "loses to"


@dataclass(frozen=True)
class Comparison:
    one: Contender
    other: Contender
    difference: Estimate
    outcome: Outcome


def compared(contenders: Sequence[Contender]) -> list[Comparison]:
    """Every paper's idea against every plain method, the best of these (by mean accuracy) first."""
    plain = sorted((c for c in contenders if c.idea == "plain"), key=lambda c: (-c.mean, c.method))
    ideas = [contender for contender in contenders if contender.idea == "paper"]
    found = []
    for other in plain:
        for one in ideas:
            gap = difference(one.accuracies, other.accuracies)
            found.append(Comparison(one, other, gap, outcome(gap)))
    return found


def sentence(target: float, found: Comparison) -> str:
    """In words, with the figures that it rests on."""
    one, other, gap = found.one, found.other, found.difference
    sides = f"{one.mean:.1f} against {other.mean:.1f} %"
    spread_words = "" if gap.half_width is None else f" ± {gap.half_width:.1f}"
    points = f"{abs(gap.mean or 0.0):.1f}{spread_words} points"
    at = f"At epsilon {figure(target)}"
    if found.outcome == "not decided":
        sign = "-" if (gap.mean or 0.0) < 0 else "+"
        return f"{at}, {one.label} against {other.label} is not decided: {sign}{points} ({sides})."
    return f"{at}, {one.label} {found.outcome} {other.label} by {points} ({sides})."


def nothing_learns(contenders: Sequence[Contender], chance: float) -> bool:
    """Whether even the best is nearer to guessing than to twice that."""
    return bool(contenders) and max(contender.mean for contender in contenders) < 1.5 * chance


def verdicts(target: float, contenders: Sequence[Contender], chance: float) -> list[str]:
    """What a target says of the papers' ideas: each against the best plain method, and whatever else they beat."""
    at = f"At epsilon {figure(target)}"
    if not contenders:
        return [f"{at} no method can be calibrated."]
    if nothing_learns(contenders, chance):
        best = max(contenders, key=lambda contender: contender.mean)
        return [f"{at} nothing learns: the best, {best.label}, has {best.mean:.1f} %, and guessing {chance:.1f} %."]
    ideas = [contender for contender in contenders if contender.idea == "paper"]
    if not ideas:
        return [f"{at} no paper's idea is ranked: none is calibrated for this observer."]
    found = compared(contenders)
    if not found:
        return [f"{at} no plain method is ranked, so nothing is compared."]
    best = found[0].other
    return [sentence(target, one) for one in found if one.other is best or one.outcome == "beats"]
