"""Private selection against the exact law of its output, for mechanisms small enough to write it down."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from pytest import approx

from fedpriv.privacy.composition import ORDERS, renyi_curve
from fedpriv.privacy.events import CLIENT_TO_SERVER, ApproximateDP, Gaussian, NoBound, RandomisedResponse, UnitCap
from fedpriv.privacy.private_selection import (
    NegativeBinomial,
    Poisson,
    Trials,
    composed_epsilon,
    selection_epsilon,
    with_mean,
)

DELTA = 1e-5
LAWS: list[Trials] = [
    with_mean(law, mean) for law in ("poisson", "geometric", "logarithmic") for mean in (1.5, 8.0, 100.0)
] + [NegativeBinomial(-0.5, 0.01), NegativeBinomial(3.0, 0.1), Poisson(0.3), Poisson(0.01)]


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Renyi divergence at each of `ORDERS`, the larger of the two directions, of exact laws with the same support."""

    def one(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        kept = a > 0
        logs = ORDERS[:, None] * np.log(a[kept]) + (1 - ORDERS[:, None]) * np.log(b[kept])
        top = logs.max(axis=1)
        return (top + np.log(np.exp(logs - top[:, None]).sum(axis=1))) / (ORDERS - 1)

    return np.maximum(one(p, q), one(q, p))


def chosen(law: np.ndarray, trials: Trials) -> np.ndarray:
    """Law of the best of K outputs, of which later ones are better; K = 0 (nothing) first."""
    upto = np.clip(np.concatenate([[0.0], np.cumsum(law)]), 0.0, 1.0)
    upto[-1] = 1.0
    found = trials.generating(upto)
    if not isinstance(trials, Poisson):
        return np.diff(found)
    return np.concatenate([[found[0]], found[:-1] * np.expm1(trials.mean * law)])  # tails keep their digits


def response(epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    high = 1 / (1 + math.exp(-epsilon))
    return np.array([1 - high, high]), np.array([high, 1 - high])


def rounded_gaussian(mu: float) -> tuple[np.ndarray, np.ndarray]:
    """A normal score on a fine grid, in two worlds ``mu`` deviations apart."""
    from scipy import stats

    edges = np.linspace(-7, 7 + mu, 400)
    return tuple(np.diff(np.concatenate([[0], stats.norm.cdf(edges, at), [1]])) for at in (0.0, mu))  # type: ignore[return-value]


BASES = {
    "a bit of 0.1": response(0.1),
    "a bit of 1": response(1.0),
    "a rare best": (np.array([0.99, 0.01]), np.array([0.99 + 0.01 * (1 - math.e / 3), 0.01 * math.e / 3])),
    "two far apart": (np.array([0.171, 0.829]), np.array([0.065, 0.935])),
    "three": (np.array([0.6, 0.3, 0.1]), np.array([0.7, 0.25, 0.05])),
    "a score with noise": rounded_gaussian(0.5),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("trials", LAWS, ids=str)
def test_the_exact_law_keeps_to_the_bound(base: str, trials: Trials) -> None:
    p, q = BASES[base]
    exact = divergence(chosen(p, trials), chosen(q, trials))
    bound = trials.curve(divergence(p, q))
    assert (exact <= bound * (1 + 1e-9) + 1e-9).all()


@pytest.mark.parametrize("trials", [with_mean(law, 100.0) for law in ("poisson", "geometric", "logarithmic")], ids=str)
def test_the_bound_is_not_vacuous(trials: Trials) -> None:
    """At middle orders within a small factor of what really leaks, and far below a hundred trials' composition."""
    p, q = rounded_gaussian(0.5)
    base = divergence(p, q)
    exact, bound = divergence(chosen(p, trials), chosen(q, trials)), trials.curve(base)
    middle = np.flatnonzero((ORDERS >= 4) & (ORDERS <= 10))
    ratio = (bound / exact)[middle]
    assert ratio.max() < (2 if isinstance(trials, Poisson) else 4.5), ratio
    assert (bound[middle] < 100 * base[middle] / 2).all()


def test_a_known_number_of_trials_costs_each_of_them() -> None:
    """The best of five bits is the worse value only where all five are: the logarithm of its odds moves fivefold. With
    a random number, of the same mean, it costs less than any mean would.
    """
    p, q = response(0.1)
    five = [np.diff(np.concatenate([[0.0], np.cumsum(law)]) ** 5) for law in (p, q)]
    assert divergence(*five)[-1] == approx(0.5, rel=1e-3)
    for mean in (5.0, 1000.0):
        geometric = with_mean("geometric", mean)
        assert divergence(chosen(p, geometric), chosen(q, geometric))[-1] <= 0.3
        assert geometric.curve(divergence(p, q))[-1] == approx(0.3, rel=1e-3)  # (2 + eta) epsilon


def test_the_laws_are_laws() -> None:
    k = np.arange(1, 200_000)
    for trials in LAWS:
        if isinstance(trials, NegativeBinomial):
            weights = trials.probability(k)
            assert weights.sum() == approx(1, abs=1e-6) and (k * weights).sum() == approx(trials.mean, rel=1e-3)
            assert trials.generating(np.array([0.3])) == approx((weights * 0.3**k).sum(), rel=1e-6)
        assert trials.generating(np.array([1.0])) == approx(1.0)
        drawn = [trials.draw(np.random.default_rng(seed)) for seed in range(4000)]
        assert np.mean(drawn) == approx(trials.mean, rel=0.2, abs=0.01)
        assert min(drawn) >= int(not isinstance(trials, Poisson))
    for law in ("poisson", "geometric", "logarithmic"):
        assert with_mean(law, 7.0).mean == approx(7.0)
    for wrong in (("uniform", 3.0), ("geometric", 1.0), ("poisson", 0.0)):
        with pytest.raises(ValueError, match="mean="):
            with_mean(*wrong)
    with pytest.raises(ValueError, match="gamma"):
        NegativeBinomial(1.0, 1.0)


@pytest.mark.parametrize("mu", [0.05, 0.3])
def test_many_trials_cost_less_than_their_composition(mu: float) -> None:
    run = [Gaussian(threat=CLIENT_TO_SERVER, multiplier=1 / mu)]
    one = composed_epsilon(run, DELTA, 1)
    for law in ("poisson", "geometric", "logarithmic"):
        found = selection_epsilon(run, DELTA, with_mean(law, 100.0))
        assert one < found < composed_epsilon(run, DELTA, 100)
    assert composed_epsilon(run, DELTA, 4) == approx(composed_epsilon([replace(run[0], count=4)], DELTA, 1))


def test_shares_of_delta_are_paid_for_every_trial() -> None:
    trials = with_mean("geometric", 10.0)
    pure = selection_epsilon([RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=1.0)], DELTA, trials)
    rounding = UnitCap(threat=CLIENT_TO_SERVER, epsilon=1.0, inside=0.7, delta=1e-12)
    assert pure == approx(3.0, rel=1e-3) and selection_epsilon([rounding], DELTA, trials) < 3.5
    much = ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=1.0, delta=1e-6)
    assert selection_epsilon([much], DELTA, trials) == math.inf
    assert selection_epsilon([NoBound(threat=CLIENT_TO_SERVER, reason="none")], DELTA, trials) == math.inf
    assert selection_epsilon([], DELTA, trials) == 0.0
    assert renyi_curve(rounding).shape == ORDERS.shape
