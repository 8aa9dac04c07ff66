"""Statistical lower bounds on epsilon: a distinguisher is run against the code that makes the releases.

`audit` draws many releases for each of two neighbouring inputs ("worlds"). On the first half of the draws it learns a
score (high says world 1) and picks a threshold; on the second half it counts the errors of that one rule, bounds both
error rates (Clopper and Pearson, 1934) and turns them into a lower bound on epsilon (Kairouz, Oh and Viswanath,
"The composition theorem for differential privacy", ICML 2015; used for audits since Jagielski, Ullman and Oprea,
NeurIPS 2020). Because learning and measuring use different draws, overfitting to the first half costs power,
never validity.

Shapes: n trials, k features (small: worst-case inputs in low dimension). Epsilon is natural, at the given delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedpriv.common.doing import doing
from fedpriv.privacy.composition import compose
from fedpriv.privacy.events import Event, PoissonGaussian
from fedpriv.privacy.trade_offs import (
    Family,
    SharperBound,
    binomial_log_chances,
    binomial_quantile,
    rate_bounds,
    sharper_bound,
    strength_bound,
)

Array = NDArray[np.float64]
Score = Callable[[Array], Array]
Fit = Callable[[Array, Array], Score]
Sample = Callable[[bool, int, int], np.ndarray]

BINS = 256  # candidate thresholds per score, and bins per feature of the histogram score
ATOM = 1e-3  # a value that makes up this share of a feature's draws gets its own bin
CAUTION = 100  # thresholds are compared by bounds with this many times less error, so that luck rarely decides
MOST_SINGLE = 12  # with no more features than this, each is tried alone as well
RIDGE = 1e-12  # share of a feature's variance that is assumed for a direction without any noise


@dataclass(frozen=True)
class Audit:
    """A lower bound on epsilon at `delta`, true with probability `confidence` over the audit's draws.

    `trials` are the draws per world, half of which were used to learn the `rule`. `structural` gives the reason where
    the bound is infinite by the mechanism's structure; `epsilon_sampled` is the bound from sampling alone. `looks`:
    bounds of which this may be the largest; the error 1 - `confidence` is divided among them, so that all of them hold.
    sharper: bounds under assumptions (`fedpriv.privacy.trade_offs`), each of which holds with `confidence` by itself.
    """

    epsilon_lower: float
    confidence: float
    trials: int
    delta: float
    fpr_upper: float
    tpr_lower: float
    rule: str
    epsilon_sampled: float
    structural: str | None = None
    looks: int = 1
    sharper: tuple[SharperBound, ...] = ()

    @property
    def measured(self) -> int:
        """Draws per world on which the rule was counted."""
        return self.trials - self.trials // 2

    @property
    def attainable(self) -> float:
        """The bound of a rule without a single error: the largest that this many trials can show."""
        if self.structural is not None:
            return math.inf
        sure = 1 - (1 - self.confidence) / self.looks
        return float(epsilon_bound(0, self.measured, self.measured, self.delta, sure)[0])

    def __str__(self) -> str:
        said = f"epsilon >= {self.epsilon_sampled:.3g} at delta {self.delta:g} "
        said += f"({100 * self.confidence:g}% confidence, {self.trials:,} trials, {self.rule})"
        return said if self.structural is None else f"epsilon is infinite: {self.structural}; by sampling alone {said}"


def audit(
    sample: Sample,
    *,
    delta: float,
    trials: int,
    confidence: float,
    seed: int,
    structural: str | None = None,
    chunk: int = 2**20,
    looks: int = 1,
    families: Sequence[Family] = (),
    scores: Mapping[str, Fit] | None = None,
) -> Audit:
    """Audit a mechanism from `trials` releases in each of two neighbouring worlds.

    Args:
        sample: `sample(world, n, seed)` returns n independent releases of that world, finite numbers [n, k]. Called
            once per world and `chunk` trials, always with another seed; the two worlds must differ in one unit.
        delta: at which epsilon is bounded.
        trials: draws per world.
        confidence: probability that the bound holds; the error is split between false positives and negatives.
        structural: why epsilon is infinite whatever the trials show. Pass it only where the ledger's own event
            records a coordinate without noise or a deterministic function of the data, with that event's reason.
        chunk: trials held in memory at a time.
        looks: audits, fixed beforehand, of which the largest bound will be kept (Bonferroni).
        families: for each, a bound under its assumption is given as well, from a rule of its own on the same draws.
        scores: further ones to try, by name, as in `SCORES`. What they know of the mechanism may be wrong: that costs
            power, never validity.

    Raises:
        ValueError: an argument is out of range, or `sample` returns the wrong shape or something not finite.
    """
    if not (0 <= delta < 1 and 0 < confidence < 1 and trials >= 4 and chunk >= 2 and looks >= 1):
        raise ValueError("audit needs 0 <= delta < 1, 0 < confidence < 1, trials >= 4, chunk >= 2, looks >= 1")
    sure = 1 - (1 - confidence) / looks
    half = trials // 2
    learning = [_draws(sample, world, half, chunk, (seed, 0)) for world in (False, True)]
    rules = _learn_rules(learning, half, delta, sure, families, SCORES | dict(scores or {}))
    measured, rule = trials - half, rules[0]
    positives = np.zeros((2, len(rules)), np.int64)
    for world in (False, True):
        for features in _draws(sample, world, measured, chunk, (seed, 1)):
            known: dict[str, Array] = {}
            for index, one in enumerate(rules):
                if one.name not in known:
                    known[one.name] = one.score(features)
                positives[int(world), index] += np.count_nonzero(known[one.name] > one.threshold)
    bound, fpr_upper, tpr_lower = epsilon_bound(positives[0, 0], positives[1, 0], measured, delta, sure)
    found = Audit(
        epsilon_lower=float(bound),
        confidence=confidence,
        trials=trials,
        delta=delta,
        fpr_upper=float(fpr_upper),
        tpr_lower=float(tpr_lower),
        rule=f"{rule.name} score above {rule.threshold:.4g}",
        epsilon_sampled=float(bound),
        looks=looks,
        sharper=tuple(
            sharper_bound(int(fp), int(tp), measured, delta=delta, confidence=confidence, looks=looks, family=family)
            for family, (fp, tp) in zip(families, positives[:, 1:].T, strict=True)
        ),
    )
    return found if structural is None else replace(found, epsilon_lower=math.inf, structural=structural)


#: Relative difference between a claim and a verified epsilon that comes of the accountants' arithmetic alone.
ROUNDING = 1e-3

#: What an audit says of a claim.
REFUTED, CONSISTENT, UNDECIDED = "refutes the claim", "consistent with the claim", "cannot tell"
#: What it says of the code: more leaves than is booked.
BROKEN, NOTHING_CLAIMED = "contradicts the verified epsilon", "nothing is claimed"


def verdict(
    found: Audit,
    claimed_epsilon: float | None,
    same_scope: bool,
    *,
    verified: float,
    expected: float,
    attainable: float | None = None,
) -> str:
    """What an audit says, in words: of the code where it shows more than is ``verified``, else of the claim.

    Only an audit at the claim's own scope, unit, adjacency and observer (`same_scope`) and at its delta may refute it.
    It is consistent with it only if it could have refuted it, and if the claim would have been refuted were the
    mechanism as bad as its verified epsilon allows: that epsilon is no larger than the claim, or such a mechanism would
    have shown more than the claim (``expected``, of `fedpriv.privacy.auditor.expected_bound`). attainable: of the
    largest of several looks; None: of ``found``.
    """
    if found.epsilon_sampled > verified:
        return BROKEN
    if claimed_epsilon is None:
        return NOTHING_CLAIMED
    if not same_scope:
        return UNDECIDED
    if found.epsilon_lower > claimed_epsilon:
        return REFUTED
    proved = verified <= claimed_epsilon * (1 + ROUNDING)
    could_refute = (found.attainable if attainable is None else attainable) >= claimed_epsilon
    return CONSISTENT if could_refute and (proved or expected > claimed_epsilon) else UNDECIDED


def epsilon_bound(
    false_positives: np.ndarray | int, true_positives: np.ndarray | int, trials: int, delta: float, confidence: float
) -> tuple[Array, Array, Array]:
    """Lower bound on epsilon from a rule's errors, with the bounds on its rates: (epsilon, fpr_upper, tpr_lower).

    Counts are out of `trials` in each world, any shape. Each rate gets half of 1 - confidence. (epsilon, delta)-DP
    implies tpr <= e^epsilon fpr + delta, and the same for the complements [Kairouz et al. 2015, Theorem 2.1].
    """
    fpr_upper, tpr_lower = rate_bounds(np.asarray(false_positives), np.asarray(true_positives), trials, confidence)
    with np.errstate(invalid="ignore", divide="ignore"):
        positive = np.log(np.maximum(tpr_lower - delta, 0) / fpr_upper)
        negative = np.log(np.maximum(1 - fpr_upper - delta, 0) / (1 - tpr_lower))
    return np.maximum(0.0, np.maximum(positive, negative)), fpr_upper, tpr_lower


@dataclass(frozen=True)
class _Rule:
    """Decides for world 1 when a release's score exceeds the threshold."""

    name: str
    score: Score
    threshold: float


def _learn_rules(
    learning: list[Iterator[Array]],
    trials: int,
    delta: float,
    confidence: float,
    families: Sequence[Family],
    fits: Mapping[str, Fit],
) -> list[_Rule]:
    """The rules with the best bounds on the learning draws: on epsilon, and on the strength of each family. Scores are
    fitted to half of each world's first chunk, and compared on the others: a score with many parts would flatter
    itself.
    """
    first = [next(draws) for draws in learning]
    fitted = len(first[0]) // 2
    pilot, first = [part[:fitted] for part in first], [part[fitted:] for part in first]
    scores: dict[str, Score] = {name: fit(*pilot) for name, fit in fits.items()}
    if 1 < pilot[0].shape[1] <= MOST_SINGLE:
        for index in range(pilot[0].shape[1]):
            alone = [part[:, [index]] for part in pilot]
            scores[f"linear {index}"] = _only(index, _linear(*alone))
            scores[f"histogram {index}"] = _only(index, _histogram(*alone))
    ordered = {name: [np.sort(score(part)) for part in first] for name, score in scores.items()}
    thresholds = {name: _candidates(_merged(*ordered[name])) for name in scores}
    positives = {name: np.zeros((2, len(thresholds[name])), np.int64) for name in scores}
    for world, draws in enumerate(learning):
        for name in scores:
            positives[name][world] += _above(ordered[name][world], thresholds[name])
        for features in draws:
            for name, score in scores.items():
                positives[name][world] += _above(np.sort(score(features)), thresholds[name])
    confidence, many = 1 - (1 - confidence) / CAUTION, trials - fitted

    def best(bound: Callable[[NDArray[np.int64], NDArray[np.int64]], Array]) -> _Rule:
        bounds = {name: bound(*errors) for name, errors in positives.items()}
        name = max(bounds, key=lambda name: bounds[name].max())
        return _Rule(name, scores[name], float(thresholds[name][bounds[name].argmax()]))

    return [
        best(lambda fp, tp: epsilon_bound(fp, tp, many, delta, confidence)[0]),
        *(best(lambda fp, tp, f=family: strength_bound(fp, tp, many, confidence, f)) for family in families),  # type: ignore[misc]
    ]


def _above(ordered: Array, thresholds: Array) -> NDArray[np.int64]:
    """How many of the sorted scores exceed each threshold."""
    return len(ordered) - np.searchsorted(ordered, thresholds, side="right")


def _merged(first: Array, second: Array) -> Array:
    """Two sorted arrays as one; a stable sort merges what is sorted in parts."""
    return np.sort(np.concatenate([first, second]), kind="stable")


def _candidates(ordered: Array) -> Array:
    """Thresholds worth trying: evenly spaced ones for light tails, quantiles for everything else."""
    tails = 1 / (1 + np.exp(np.linspace(-1, 1, BINS) * math.log(len(ordered))))
    return np.unique(np.concatenate([np.linspace(ordered[0], ordered[-1], BINS), np.quantile(ordered, tails)]))


def _linear(world0: Array, world1: Array) -> Score:
    """Fisher's linear discriminant, optimal for Gaussians of one covariance; k = 1: the feature itself."""
    scale = _scale(world0, world1)
    means = [(world / scale).mean(0) for world in (world0, world1)]
    direction = np.linalg.solve(_covariance(world0 / scale) + _covariance(world1 / scale), means[1] - means[0])
    weights = direction / scale
    return lambda features: features @ weights


def _quadratic(world0: Array, world1: Array) -> Score:
    """Log-likelihood ratio of two Gaussians: also sees a leak in the noise's size or correlation."""
    scale = _scale(world0, world1)
    means = [(world / scale).mean(0) for world in (world0, world1)]
    precisions = [np.linalg.inv(_covariance(world / scale)) for world in (world0, world1)]

    def score(features: Array) -> Array:
        distances = []
        for mean, precision in zip(means, precisions, strict=True):
            centred = features / scale - mean
            distances.append(np.einsum("nk,nk->n", centred @ precision, centred))
        return distances[0] - distances[1]

    return score


def _histogram(world0: Array, world1: Array) -> Score:
    """Sum over features of the log-likelihood ratio of binned values: atoms, exact matches, any law of one feature."""
    tables = []
    for feature0, feature1 in zip(world0.T, world1.T, strict=True):
        ordered = [np.sort(feature) for feature in (feature0, feature1)]
        edges = _edges(_merged(*ordered))
        counts = [np.diff(np.searchsorted(o, edges, "left"), prepend=0, append=len(o)) for o in ordered]
        tables.append((edges, np.log((counts[1] + 0.5) / (counts[0] + 0.5))))

    def score(features: Array) -> Array:
        pairs = zip(features.T, tables, strict=True)
        return np.sum([table[np.searchsorted(edges, feature, "right")] for feature, (edges, table) in pairs], axis=0)

    return score


def _only(index: int, score: Score) -> Score:
    """The score of one feature alone: others that tell the same would be counted twice, or blur it."""
    return lambda features: score(features[:, [index]])


SCORES: dict[str, Fit] = {
    "linear": _linear,
    "quadratic": _quadratic,
    "histogram": _histogram,
}


def _edges(ordered: Array) -> Array:
    """Bin edges of sorted values: quantiles, and a separate bin for every value that recurs bit for bit."""
    starts = np.flatnonzero(np.diff(ordered, prepend=np.nan) != 0)
    counts = np.diff(starts, append=len(ordered))
    atoms = ordered[starts[counts > max(1, ATOM * len(ordered))]]
    quantiles = np.quantile(ordered, np.linspace(0, 1, BINS + 1))
    return np.unique(np.concatenate([quantiles, atoms, np.nextafter(atoms, np.inf)]))


def _scale(world0: Array, world1: Array) -> Array:
    """A positive unit for each feature [k]: its spread in either world, or how far apart the worlds are, or 1."""
    spread = np.maximum(world0.std(0), world1.std(0))
    spread = np.where(spread > 0, spread, np.abs(world1.mean(0) - world0.mean(0)))
    return np.where(spread > 0, spread, 1.0)


def _covariance(features: Array) -> Array:
    covariance = np.atleast_2d(np.cov(features, rowvar=False))
    return covariance + RIDGE * np.eye(len(covariance))


def _draws(sample: Sample, world: bool, trials: int, chunk: int, purpose: tuple[int, int]) -> Iterator[Array]:
    """Releases of one world in chunks [<= chunk, k], each from a seed that no other call uses."""
    for start in range(0, trials, chunk):
        size = min(chunk, trials - start)
        seed = np.random.SeedSequence((*purpose, int(world), start)).generate_state(1, np.uint64)[0]
        features = np.asarray(sample(world, size, int(seed) >> 1), np.float64)
        if features.ndim != 2 or len(features) != size or not np.isfinite(features).all():
            raise ValueError(f"sample must return finite numbers [{size}, k], got shape {features.shape}")
        yield features
        doing("trials", _before(world, trials, purpose) + start + size, 4 * trials)


def _before(world: bool, trials: int, purpose: tuple[int, int]) -> int:
    """Trials of the halves before this one: both worlds are learned from, then measured."""
    return (2 * purpose[1] + int(world)) * trials


# --- audit power ------------------------------------------------------------------------------------------------------

"""What an audit would show of a mechanism that is exactly at its verified epsilon: below that, silence is no news.

A mechanism that is (e, d)-private for every point of a curve admits no rule with tpr > e^e fpr + d, nor with
1 - fpr > e^e (1 - tpr) + d [Kairouz, Oh and Viswanath, ICML 2015, Theorem 2.1]. The best rule of a mechanism that has
no more privacy than its curve meets the least of these bounds at every fpr [Dong, Roth and Su, JRSS-B 2022, Proposition
6]. `expected_bound` gives that rule an unlucky draw, and the auditor's own arithmetic.
"""


#: (epsilon, delta), each of which the mechanism satisfies.
Curve = Sequence[tuple[float, float]]

#: Points of a curve: of Gaussians alone in closed form, else each by every accountant, which takes up to half a second.
MANY, FEW = 64, 9
#: Thresholds tried.
THRESHOLDS = 512


def verified_curve(events: Sequence[Event], delta: float) -> list[tuple[float, float]]:
    """The verified epsilon of ``events`` at ``delta`` and at other deltas; empty where it is infinite."""
    closed = all(event.gaussian_multiplier is not None for event in events)
    deltas = sorted({delta, *np.geomspace(min(1e-7, delta or 1e-7), 0.5, MANY if closed else FEW).tolist()})
    found = [(compose(events, point).epsilon, point) for point in deltas]
    return [point for point in found if math.isfinite(point[0])]


def best_rates(curve: Curve, fpr: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest true positive rates that the curve allows at these false positive rates."""
    most = np.ones_like(fpr)
    for epsilon, delta in curve:
        if epsilon < 700:  # beyond, e^epsilon is no number, and the line bounds nothing
            most = np.minimum(most, math.exp(epsilon) * fpr + delta)
        most = np.minimum(most, 1 - math.exp(-epsilon) * (1 - delta - fpr))
    return np.maximum(most, fpr)


def expected_bound(curve: Curve, trials: int, delta: float, confidence: float, looks: int = 1) -> float:
    """The audited epsilon that the best rule reaches in at least ``confidence`` of audits of a mechanism that has no
    more privacy than ``curve``; 0 for an empty curve, of which nothing is known.

    trials: measured in each world. looks: bounds among which the error 1 - confidence is divided.
    """
    if not curve:
        return 0.0
    ends = np.geomspace(0.01 / trials, 0.5, THRESHOLDS // 2)
    fpr = np.concatenate([ends, 1 - ends])
    unlucky = (1 - confidence) / 2  # for each of two rates
    false = binomial_quantile(1 - unlucky, trials, fpr)
    true = binomial_quantile(unlucky, trials, best_rates(curve, fpr))
    bounds, _, _ = epsilon_bound(false, true, trials, delta, 1 - (1 - confidence) / looks)
    return float(bounds.max())


# --- sampled score ----------------------------------------------------------------------------------------------------

"""The likelihood-ratio score of sampled Gaussian releases, for `fedpriv.privacy.auditor.audit`.

In round t of T the unit is in the sample with probability q_t, and then moves the release by 1 / m_t of its noise. Let
x_t be the release along that direction, in units of its noise. World 0 has x_t ~ N(0, 1), world 1 the mixture
(1 - q_t) N(0, 1) + q_t N(1 / m_t, 1), independently, so the log of the likelihood ratio is

    sum_t log(1 - q_t + q_t exp(x_t / m_t - 1 / (2 m_t^2))),

the best score there is [Neyman and Pearson 1933]. A sum of the x_t (a linear score) counts the many rounds without the
unit at full weight. The q_t and m_t come from the ledger's events and are only a choice of score: were they wrong, the
bound would be smaller and still hold. Location and scale of the x_t are learned. Shapes: n trials, k >= T features, of
which the first T are the x_t up to location and scale.
"""


#: The score's name in an audit's rule.
NAME = "likelihood ratio"


def sampled_score(events: Sequence[Event], releases: int) -> dict[str, Fit]:
    """{name: fit} for so many releases that cost these events, in their order; empty where one of them is no sampled
    Gaussian, or has several steps, or where all units are in every sample.
    """
    if not events or not all(isinstance(event, PoissonGaussian) for event in events):
        return {}
    found = [one for one in events if isinstance(one, PoissonGaussian)]
    if all(one.takes_all for one in found) or any(one.multiplier <= 0 for one in found):
        return {}
    if sum(one.count for one in found) != releases:
        return {}
    rates = np.concatenate([[one.sampling_rate] * one.count for one in found])
    shifts = np.concatenate([[1 / one.multiplier] * one.count for one in found])
    return {NAME: likelihood_ratio(rates, shifts)}


def likelihood_ratio(rates: Array, shifts: Array) -> Fit:
    """rates, shifts: [T], q_t and 1 / m_t."""

    def fit(world0: Array, world1: Array) -> Score:
        many = len(rates)
        centre, scale = world0[:, :many].mean(0), world0[:, :many].std(0)
        scale = np.where(scale > 0, scale, 1.0) * np.where(world1[:, :many].mean(0) < centre, -1, 1)

        def score(features: Array) -> Array:
            total = np.zeros(len(features))
            for t in range(many):
                exponent = (features[:, t] - centre[t]) * (shifts[t] / scale[t]) - shifts[t] ** 2 / 2
                with np.errstate(divide="ignore"):
                    total += np.logaddexp(np.log1p(-rates[t]), np.log(rates[t]) + exponent)
            return total

        return score

    return fit


def log_ratio(seen: NDArray[np.float64], sigma: float, rate: float, steps: int) -> NDArray[np.float64]:
    """log sum_j Pr[j] exp(j m x - j^2 m^2 / 2), j ~ Binomial(steps, rate), m = 1 / (sigma sqrt(steps)): of values x, in
    units of their noise, whether the unit was there [...].
    """
    times, m = np.arange(steps + 1), 1 / (sigma * np.sqrt(steps))
    exponents = _weights(sigma, rate, steps) + times * m * seen[..., None]
    largest = exponents.max(-1, keepdims=True)
    found: NDArray[np.float64] = np.log(np.exp(exponents - largest).sum(-1)) + largest[..., 0]
    return found


@lru_cache(maxsize=8)
def _weights(sigma: float, rate: float, steps: int) -> Array:
    """log Pr[j] - j^2 m^2 / 2 of every j, [steps + 1]."""
    times = np.arange(steps + 1)
    return binomial_log_chances(times, steps, rate) - times**2 / (2 * sigma**2 * steps)
