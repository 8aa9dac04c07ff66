"""Who is first, who is tied with the first, and which difference is one: pure functions of accuracies over seeds.

The duels of a board, every paper's idea against every plain method at every target where both are ranked, are one
family: their p-values (paired t-tests over seeds) are adjusted by Holm's rule, so that with 95 % none of a board's
"beats" and "loses to" is due to chance. The family follows from the board's file and from who is ranked, not from what
is found.

Runs at a smaller target keep a larger one too, so nobody loses by a search at the larger one that chose badly: "beats"
is over the loser's runs at this and at every smaller target, with the largest of their p-values (an intersection-union
test, which is valid as it is), and so is "loses to".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fedpriv.report.words import figure, plus_minus
from fedpriv.studies.evidence import FAMILY_ERROR, estimate, holm, paired, two_sided
from fedpriv.studies.results import Duel, Estimate

Outcome = Literal["beats", "loses to", "not decided"]

#: Below so many times the accuracy of guessing a method has not learned.
GUESSING = 1.5


@dataclass(frozen=True)
class Contender:
    """A method at one target. accuracies: seed -> percent. against: an idea's opponents in place of the plain ones."""

    method: str
    label: str
    idea: str
    accuracies: Mapping[int, float]
    against: tuple[str, ...] = ()

    @cached_property
    def accuracy(self) -> Estimate:
        return estimate(self.accuracies.values())

    @property
    def mean(self) -> float:
        return self.accuracy.mean or 0.0


#: Target -> its contenders, by the name of their method.
Contenders = Mapping[float, Mapping[str, Contender]]


def _best_first(one: Contender) -> tuple[float, str]:
    return -one.mean, one.method


def ranked(contenders: Sequence[Contender]) -> list[tuple[int, bool, Contender]]:
    """(rank, whether it is tied with the best, contender) by mean accuracy, the best first; equal means share a rank.
    Tied: the 95 % interval of the paired difference to the best holds 0 (of a single seed, everybody is tied).
    """
    order = sorted(contenders, key=_best_first)
    found: list[tuple[int, bool, Contender]] = []
    for place, one in enumerate(order, 1):
        rank = found[-1][0] if found and found[-1][2].mean == one.mean else place
        found.append((rank, outcome(difference(order[0], one)) == "not decided", one))
    return found


def difference(one: Contender, other: Contender) -> Estimate:
    """one minus other, seed by seed."""
    return estimate(paired(one.accuracies, other.accuracies))


def outcome(found: Estimate) -> Outcome:
    """What a difference's 95 % interval says of the first of the two."""
    if found.mean is None or found.half_width is None or abs(found.mean) <= found.half_width:
        return "not decided"
    return "beats" if found.mean > 0 else "loses to"


def duels(contenders: Contenders, chance: float) -> list[Duel]:
    """Every paper's idea against every plain method, target by target, the best plain method (by mean accuracy) first.
    A plain method that guesses while another plain one learns is no opponent. Ideas with opponents of their own (on
    public features: the baseline on the same features) meet those alone. Decided together, by Holm's rule. p:
    two-sided, of the paired difference, the largest over all runs that the one who is behind may have.
    """
    found = []
    for target, here in contenders.items():
        plain = sorted((one for one in here.values() if one.idea == "plain"), key=_best_first)
        plain = [one for one in plain if one.mean >= GUESSING * chance] or plain[:1]
        ideas = [one for one in here.values() if one.idea == "paper"]
        pairs = [(one, other) for other in plain for one in ideas if not one.against]
        pairs += [(one, here[name]) for one in ideas for name in one.against if name in here]
        found += [_duel(target, one, other, contenders) for one, other in pairs]
    return [
        duel.model_copy(update={"adjusted": p} | ({} if p is not None and p <= FAMILY_ERROR else {"outcome": OPEN}))
        for duel, p in zip(found, holm([duel.p for duel in found]), strict=True)
    ]


OPEN: Outcome = "not decided"


def _duel(target: float, one: Contender, other: Contender, contenders: Contenders) -> Duel:
    """Whoever is behind at this target has its runs at the smaller ones too: the best of them are shown, and p is the
    largest of all; 1 for runs that are ahead, so that nobody wins by them.
    """
    ahead = (difference(one, other).mean or 0.0) > 0
    behind = other if ahead else one
    runs = {target: behind} | {
        at: here[behind.method] for at, here in contenders.items() if at < target and behind.method in here
    }
    best = max(runs, key=lambda at: runs[at].mean)
    values = []
    for again in runs.values():
        gaps = paired(one.accuracies, again.accuracies) if ahead else paired(again.accuracies, other.accuracies)
        p = two_sided(gaps)
        values.append(p if p is None or (sum(gaps) > 0) == ahead else 1.0)
    gap = difference(one, runs[best]) if ahead else difference(runs[best], other)
    return Duel(
        target=target,
        method=one.method,
        against=other.method,
        difference=gap,
        outcome=outcome(gap),
        p=None if None in values else max(value for value in values if value is not None),
        method_at=best if not ahead and best != target else None,
        against_at=best if ahead and best != target else None,
    )


def better_at(one: Contender, target: float, contenders: Contenders) -> float | None:
    """The smaller target at which a method is more accurate, by the 95 % interval of the paired difference."""
    smaller = {at: here[one.method] for at, here in contenders.items() if at < target and one.method in here}
    gaps = {at: difference(again, one) for at, again in smaller.items()}
    surely = {at: gap.mean or 0.0 for at, gap in gaps.items() if outcome(gap) == "beats"}
    return max(surely, key=lambda at: surely[at], default=None)


# --- in words ----------------------------------------------------------------------------------------------


def _points(gap: Estimate) -> str:
    return plus_minus(abs(gap.mean or 0.0), gap.half_width)


def _sides(duel: Duel, contenders: Contenders) -> tuple[tuple[str, float], tuple[str, float]]:
    """(label, with where its runs are from; mean accuracy) of both."""
    found = []
    for method, at in ((duel.method, duel.method_at), (duel.against, duel.against_at)):
        one = contenders[duel.target if at is None else at][method]
        found.append((one.label + ("" if at is None else f" (with its runs at epsilon {figure(at)})"), one.mean))
    return found[0], found[1]


def sentence(duel: Duel, contenders: Contenders) -> str:
    """In words, with the figures that it rests on."""
    (one, mine), (other, its) = _sides(duel, contenders)
    gap, at, sides = duel.difference, f"At epsilon {figure(duel.target)}", f"{mine:.1f} against {its:.1f} %"
    if duel.outcome == OPEN:
        sign = "-" if (gap.mean or 0.0) < 0 else "+"
        alone = duel.adjusted is not None and outcome(gap) != OPEN
        beside = f"; p = {duel.adjusted:.2g} among all pairwise tests of the board" if alone else ""
        return f"{at}, {one} against {other} is not decided: {sign}{_points(gap)} points ({sides}{beside})."
    return f"{at}, {one} {duel.outcome} {other} by {_points(gap)} points ({sides})."


def verdicts(target: float, contenders: Contenders, fought: Sequence[Duel], chance: float) -> list[str]:
    """What a target says of the papers' ideas: each against the best plain method, and how the other duels ended."""
    at, here = f"At epsilon {figure(target)}", contenders[target].values()
    if not here:
        return [f"{at} no method can be calibrated, or all guess."]
    best = min(here, key=_best_first)
    if best.mean < GUESSING * chance:
        return [f"{at} nothing learns: the best, {best.label}, has {best.mean:.1f} %, and guessing {chance:.1f} %."]
    if not any(one.idea == "paper" for one in here):
        return [f"{at} no paper's idea is ranked."]
    found = [duel for duel in fought if duel.target == target]
    if not found:
        return [f"{at} no plain method is ranked, so nothing is compared."]
    rest = [one for one in found if one.against != found[0].against]
    against_it = [sentence(one, contenders) for one in found if one.against == found[0].against]
    return [*against_it, *([_counted(at, rest, contenders)] if rest else [])]


def _counted(at: str, rest: Sequence[Duel], contenders: Contenders) -> str:
    """Wins by name and with their size, since they are few, and how many there are of the others."""
    won = [one for one in rest if one.outcome == "beats"]
    lost = sum(one.outcome == "loses to" for one in rest)
    names = [(contenders[one.target][one.method].label, _sides(one, contenders)[1][0]) for one in won]
    named = [f"{mine} against {its} by {_points(d.difference)}" for (mine, its), d in zip(names, won, strict=True)]
    which = f" ({'; '.join(named)})" if won else ""
    return (
        f"{at}, against the other plain methods: {len(won)} of {len(rest)} won{which}, {lost} lost, "
        f"{len(rest) - len(won) - lost} not decided."
    )


def against_alone(target: float, contenders: Sequence[Contender], alone: Mapping[int, float]) -> str:
    """Whether the most accurate of a target is worth more to clients than what each has by itself, at no epsilon."""
    at = f"At epsilon {figure(target)}"
    if not contenders:
        return f"{at} nothing is ranked, and every client has {estimate(alone.values()).mean or 0.0:.1f} % by itself."
    best = max(contenders, key=lambda contender: contender.mean)
    gap = estimate(paired(best.accuracies, alone))
    if gap.mean is None:
        return f"{at}, no seed of the best, {best.label}, is one of what every client has by itself."
    size = f"{_points(gap)} points"
    end = {
        "beats": f"is better by {size} than what every client has by itself.",
        "loses to": f"is worse by {size} than what every client has by itself: taking part does not pay.",
        "not decided": f"is not told apart from what every client has by itself ({size}).",
    }[outcome(gap)]
    return f"{at}, the best, {best.label}, {end}"
