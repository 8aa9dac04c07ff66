"""The layer *sampled*: the project's auditor (`fedpriv.privacy.auditor`) on the first pairs of a subject.

Each pair is a look; the error of the bounds is divided among the looks, which are fixed before anything is measured. A
bound above the claim is a fault only if it is above it at an error of once in `SURE` checks as well; where it is not,
a second audit with draws of its own may show it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fedpriv.attacks.trial_features import MOST_FEATURES
from fedpriv.checking.findings import Finding, finding, words_of
from fedpriv.checking.reading import Numbers, Played
from fedpriv.checking.statistics import Distance, repeated_rows
from fedpriv.checking.subject import Budget, Pair, Question, Subject, stopwatch
from fedpriv.privacy.auditor import Audit, Fit, audit, epsilon_bound, sampled_score
from fedpriv.privacy.events import PoissonGaussian
from fedpriv.privacy.scaled_noise import family_of
from fedpriv.privacy.trade_offs import GAUSSIAN, Family, SharperBound, rate_bounds

# --- parts ------------------------------------------------------------------------------------------------------------
# Trials of many numbers as few features: by the records that leave, such as the models after each step of a loop.

#: Parts that are looked at one by one, at most; numbers of a part at least.
MOST_PARTS, FEWEST_NUMBERS = 12, 2


@dataclass(frozen=True)
class Parts:
    """Of every part the weighted sum that separates the worlds best if numbers are independent, and the log of the sum
    of squares; of every two parts of one size that follow each other the log of that of their difference, in which a
    step of a loop is alone with its noise, and the least and the largest of these. Of all numbers the weighted sum, and
    the one that tells most.

    parts: places [size] of each; weights [k].
    """

    parts: tuple[NDArray[np.int64], ...]
    weights: Numbers
    best: int

    def __call__(self, values: Numbers) -> Numbers:
        """[n, features] of trials [n, k]."""
        found = [values @ self.weights, values[:, self.best]]
        before, steps = None, []
        for places in self.parts:
            part = values[:, places]
            found += [part @ self.weights[places], _log_squares(part)]
            if before is not None and before.shape == part.shape:
                steps.append(_log_squares(part - before))
            before = part
        if steps:
            found += [*steps, np.min(steps, axis=0), np.max(steps, axis=0)]
        return np.column_stack(found)

    @classmethod
    def of(cls, one: Played, pilots: Sequence[Numbers], kept: NDArray[np.bool_]) -> Parts:
        """pilots: trials of both worlds [n, k], of the ``kept`` ones of the numbers of a play."""
        first, second = pilots
        distance, spread = second.mean(0) - first.mean(0), (first.var(0) + second.var(0)) / 2
        spread = np.maximum(spread, 1e-9 * max(float(spread.max()), float(distance @ distance), 1e-300))
        weights = distance / spread
        weights /= max(float(np.abs(weights).max()), 1e-300)
        return cls(_places(one, kept), weights, int((np.abs(distance) / np.sqrt(spread)).argmax()))


def _log_squares(part: Numbers) -> Numbers:
    return np.asarray(np.log((part**2).sum(1) + 1e-300))


def _places(one: Played, kept: NDArray[np.bool_]) -> tuple[NDArray[np.int64], ...]:
    """Places of each record among the kept numbers, in the order of the numbers in their names; too many: joined."""
    names = sorted(one.numbers)
    ends = np.cumsum([one.numbers[name].size for name in names])
    if not len(ends) or ends[-1] != len(kept):
        return (np.arange(int(kept.sum())),)
    place = np.cumsum(kept) - 1
    found = {}
    for name, end in zip(names, ends, strict=True):
        inside = np.arange(end - one.numbers[name].size, end)
        if kept[inside].sum() >= FEWEST_NUMBERS:
            found[name] = place[inside[kept[inside]]]
    ordered = [found[name] for name in sorted(found, key=_natural)]
    if len(ordered) > MOST_PARTS:
        ordered = [*ordered[: MOST_PARTS - 1], np.concatenate(ordered[MOST_PARTS - 1 :])]
    return tuple(ordered)


def _natural(name: str) -> list[tuple[int, str]]:
    """Records 2 and 10 in this order."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


#: Pairs that are audited, at most; fewer where there would not be so many trials for each.
MOST_LOOKS, WANTED_TRIALS = 6, 2000
#: With fewer trials nothing could be learned.
FEWEST_TRIALS = 400
#: Plays from which it is learned which numbers never change, and where to look among many: at most, at least, and a
#: share of the trials.
PILOT, LEAST_PILOT, PILOT_SHARE = 512, 96, 0.1
#: One in so many sound targets is called faulty by sampling.
SURE = 1e5
#: Inputs that are told apart as well as so many trials can show are sampled again, more often; at most so often.
APART, MOST_TRIALS = 0.97, 400_000
#: Sampled noise of a smaller multiplier has no curves: they would take minutes, and end far below what it costs.
LEAST_MULTIPLIER = 0.25
#: A number beyond this counts as infinite.
LARGEST = 1e30


@dataclass
class Sampled:
    """audits: the bound of each pair, and the one of the largest. why_not: in words, where nothing was sampled."""

    audits: list[tuple[Pair, Audit]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    why_not: str | None = None

    def best(self, of: Question | None = None) -> tuple[Pair, Audit] | None:
        """The largest bound; of pairs that a question covers, where there are such."""
        covered = [one for one in self.audits if of is not None and of.covers(one[0])]
        return max(covered or self.audits, key=lambda one: one[1].epsilon_lower, default=None)

    @property
    def sharper(self) -> SharperBound | None:
        """The largest of the bounds that assume a law of the noise; like the others, it shares the error with them."""
        bounds = [one for _, found in self.audits for one in found.sharper]
        return max(bounds, key=lambda one: one.epsilon_lower, default=None)

    @property
    def attainable(self) -> float | None:
        """The largest bound that these trials could have shown."""
        return max((found.attainable for _, found in self.audits), default=None)


class _Features:
    """Trials [n, k] without the numbers that never changed in the pilot: how many of those do counts as one feature."""

    def __init__(self, pilots: list[Numbers]) -> None:
        both = np.concatenate(pilots)
        self.usual = both[0]
        self.kept = ~(both == self.usual).all(0)

    def __call__(self, values: Numbers) -> Numbers:
        changed = (values[:, ~self.kept] != self.usual[~self.kept]).sum(1)
        kept = values[:, self.kept]
        broken = (~np.isfinite(kept)).sum(1)
        whole = np.clip(np.nan_to_num(kept, nan=0.0, posinf=LARGEST, neginf=-LARGEST), -LARGEST, LARGEST)
        return np.column_stack([whole, changed, broken])


def sample(
    subject: Subject,
    question: Question,
    budget: Budget,
    faulty: bool = False,
    distances: Mapping[str, Distance] = MappingProxyType({}),
) -> Sampled:
    """Audits the first pairs. What a target raises becomes `Sampled.why_not`. faulty: replays have found a fault, so
    that no further trials are needed to refute a claim. distances: of the pairs that replays have seen.
    """
    found = Sampled()
    pairs = sorted(subject.pairs[:MOST_LOOKS], key=lambda pair: not question.covers(pair))
    try:
        subject.trials(pairs[0].left, 2, question.seed)
        with stopwatch() as taken:
            subject.trials(pairs[0].left, 8, question.seed)
        one = max(taken[0] / 8, 1e-6)
        looks = max(1, min(len(pairs), int(budget.left / one / (2.6 * WANTED_TRIALS))))
        if looks < len(pairs):
            budget.made("pairs that are sampled", looks, len(pairs))
            pairs = _chosen(subject, question, distances)[:looks]
        affordable = int(budget.left / one / (2.6 * len(pairs)))
        trials = budget.allowed("calls of each input for the audit", affordable, question.trials)
        if trials < FEWEST_TRIALS:
            if budget.left > 0:
                found.why_not = f"a call takes {one:.2g} s: too few trials for an audit in the time of the check"
            return found
        for number, pair in enumerate(pairs):
            if budget.left <= 0:
                budget.made("pairs that are sampled", number, len(pairs))
                break
            try:
                one_audit = _audit(subject, question, pair, trials, number, question.confidence, len(pairs), distances)
            except Exception as error:  # of the target's own, with this pair
                found.why_not = words_of(error)
                continue
            found.audits.append((pair, one_audit))
            if len(found.audits) == 1:
                _repeated(subject, question, pair, trials, found)
            limit = question.claim.epsilon if question.claim else math.inf
            if faulty or any(one.name == "claim-refuted" and one.severity == "fault" for one in found.findings):
                continue
            apart, above = one_audit.epsilon_lower > APART * one_audit.attainable, one_audit.epsilon_lower > limit
            if not above and not (apart and math.isfinite(limit)):
                continue
            if _refuted(question, pair, one_audit, 2 * len(pairs), found) or not question.covers(pair):
                continue
            most = int(budget.left / one / 2.6)
            more = max(trials if apart else min(trials, most), min(MOST_TRIALS, int(0.4 * most)))
            second = more >= FEWEST_TRIALS and _refuted(
                question, pair, _audit(subject, question, pair, more, number, 1 - 1 / SURE, 1, distances),
                2 * len(pairs),
                found,
            )  # fmt: skip
            if not second and above:
                figures = {"percent": 100 * question.confidence, "limit": limit}
                found.findings.append(finding("claim-perhaps-refuted", pair=pair, seen=one_audit, **figures))
    except Exception as error:
        found.why_not = words_of(error)
    return found


def _chosen(subject: Subject, question: Question, distances: Mapping[str, Distance]) -> list[Pair]:
    """The pairs that may refute the claim first, of these those whose noise has no law that replays know, and of these
    those that replays saw move most.
    """

    def order(pair: Pair) -> tuple[bool, bool, float, float]:
        seen, covered = distances.get(pair.name, Distance()), question.claim is None or question.claim.covers(pair)
        return not covered, seen.law is not None, -seen.epsilon(question.at_delta), -seen.size

    return sorted(subject.pairs, key=order)


def sampler(subject: Subject, pair: Pair, seed: int, pilot: int = PILOT) -> Callable[[bool, int, int], Numbers]:
    """(world, n, seed) -> features [n, f] of n independent calls with either input. pilot: plays to learn from."""
    pilots = [subject.trials(data, pilot, seed + n) for n, data in enumerate((pair.left, pair.right))]
    features = _Features(pilots)
    if int(features.kept.sum()) + 2 <= MOST_FEATURES:
        return lambda world, n, seed: features(subject.trials(pair.right if world else pair.left, n, seed))
    parts = Parts.of(subject.play(pair.left, seed)[0], [features(one)[:, :-2] for one in pilots], features.kept)

    def draw(world: bool, n: int, seed: int) -> Numbers:
        seen = features(subject.trials(pair.right if world else pair.left, n, seed))
        return np.column_stack([parts(seen[:, :-2]), seen[:, -2:]])

    return draw


def _audit(
    subject: Subject,
    question: Question,
    pair: Pair,
    trials: int,
    number: int,
    confidence: float,
    looks: int,
    distances: Mapping[str, Distance],
) -> Audit:
    seed = (question.seed * 1000 + number) * 2 + 1_000_003 * (confidence != question.confidence)
    families, scores = known_laws(subject, pair, distances)
    pilot = min(PILOT, max(LEAST_PILOT, int(PILOT_SHARE * trials)))
    return audit(
        sampler(subject, pair, seed, pilot),
        delta=question.at_delta,
        trials=trials,
        confidence=confidence,
        seed=seed,
        looks=looks,
        families=families,
        scores=scores,
    )


def known_laws(subject: Subject, pair: Pair, distances: Mapping[str, Distance]) -> tuple[list[Family], dict[str, Fit]]:
    """(families of trade-off curves, scores) of what is known of the noise: what the recognised part releases, as many
    times as a trial has numbers; or the Gaussian that replays saw. A wrong family spoils its own bound alone, which is
    given beside the one that assumes nothing; a wrong score costs power.
    """
    events = [one.event for one in subject.recognised if one.event is not None]
    if len(events) == 1 == len(subject.recognised) and isinstance(events[0], PoissonGaussian):
        width = subject.trials(pair.left, 2, 1).shape[1]
        part = replace(events[0], count=min(width, events[0].count))
        family = family_of([part]) if part.multiplier >= LEAST_MULTIPLIER else None
        return ([family] if family is not None else []), dict(sampled_score([part], part.count))
    return ([GAUSSIAN] if distances.get(pair.name, Distance()).law == "Gaussian" else []), {}


def _refuted(question: Question, pair: Pair, seen: Audit, looks: int, found: Sampled) -> bool:
    """Whether an audit shows more than is claimed, also where it is wrong once in `SURE` checks at most."""
    claim = question.claim
    assert claim is not None
    least = bound_at(seen, 1 - 1 / (SURE * looks))
    if least <= claim.epsilon:
        return False
    covered = claim.covers(pair)
    doubt = "" if covered else " (the claim may be about one update against none, which is told apart less well)"
    scope = "one call" if claim.scope == "call" else "one call of the run"
    figures = {"least": least, "delta": question.at_delta, "scope": scope, "doubt": doubt}
    found.findings.append(
        finding(
            "claim-refuted", "fault" if covered else "doubt", pair=pair, seen=seen, claim=claim, checks=SURE, **figures
        )
    )
    return True


def bound_at(found: Audit, confidence: float) -> float:
    """The audit's bound, of the same errors of the same rule, at another confidence."""
    sure = 1 - (1 - found.confidence) / found.looks
    counts = np.arange(found.measured + 1)
    fpr_upper, tpr_lower = rate_bounds(counts, counts, found.measured, sure)
    errors = [int(np.abs(rates - one).argmin()) for rates, one in
              ((fpr_upper, found.fpr_upper), (tpr_lower, found.tpr_lower))]  # fmt: skip
    return float(epsilon_bound(errors[0], errors[1], found.measured, found.delta, confidence)[0])


def _repeated(subject: Subject, question: Question, pair: Pair, trials: int, found: Sampled) -> None:
    """Noise from so few seeds that it comes again among the trials."""
    values = subject.trials(pair.left, trials, question.seed + 77)
    values = values[:, ~(values == values[0]).all(0)]
    repeated = repeated_rows(values[:, :64]) if values.shape[1] > 1 else 0
    if repeated:
        found.findings.append(finding("noise-repeats:trials", trials=trials, repeated=repeated))
