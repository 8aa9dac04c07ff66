"""The one-shot estimate of Andrew et al.: its formula against numerical integration and closed forms."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.privacy.one_shot import Normal, estimated_epsilon, gaussians_delta, gaussians_epsilon


def by_integration(p0: Normal, p1: Normal, epsilon: float) -> float:
    """The integral of max(0, p_1 - e^epsilon p_0)."""

    def excess(x: float) -> float:
        return float(max(0.0, norm.pdf(x, p1.mean, p1.std) - math.exp(epsilon) * norm.pdf(x, p0.mean, p0.std)))

    ends = [p.mean + sign * 12 * p.std for p in (p0, p1) for sign in (-1, 1)]
    points = np.linspace(min(ends), max(ends), 101)
    return sum(quad(excess, low, high, limit=200)[0] for low, high in pairwise(points))


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(
    ("p0", "p1"),
    [
        (Normal(0, 1), Normal(1, 1.2)),  # outside of an interval
        (Normal(0, 1), Normal(1, 0.8)),  # inside
        (Normal(0.3, 2), Normal(-1, 1.5)),
        (Normal(0, 1), Normal(0, 0.5)),  # no shift
        (Normal(0, 1), Normal(0, 1.05)),
    ],
)
def test_delta_is_the_integral_of_the_excess(p0: Normal, p1: Normal, epsilon: float) -> None:
    assert gaussians_delta(p0, p1, epsilon) == pytest.approx(by_integration(p0, p1, epsilon), abs=1e-7)


def test_epsilon_is_where_both_directions_have_delta() -> None:
    p0, p1 = Normal(0, 1), Normal(1.5, 1.3)
    found = gaussians_epsilon(p0, p1, 1e-4)
    assert max(by_integration(p0, p1, found), by_integration(p1, p0, found)) == pytest.approx(1e-4, rel=1e-3)
    assert (
        found == gaussians_epsilon(p1, p0, 1e-4) == pytest.approx(gaussians_epsilon(Normal(5, 2), Normal(8, 2.6), 1e-4))
    )


def test_of_equal_deviations_it_is_the_gaussian_mechanisms() -> None:
    exact = gaussian_epsilon(1.5, 1e-5)
    assert gaussians_epsilon(Normal(0, 2), Normal(3, 2), 1e-5) == pytest.approx(exact)
    assert gaussians_epsilon(Normal(0, 2), Normal(3, 2 + 1e-6), 1e-5) == pytest.approx(exact, rel=1e-4)


def test_the_null_of_the_source_is_what_unseen_directions_score() -> None:
    """Cosines of d = 2,500 unseen directions with any vector are N(0, 1/d); canaries at mean c give mu = c sqrt(d)."""
    rng, d, n = np.random.default_rng(0), 2500, 4000
    vector = rng.standard_normal(d)
    directions = rng.standard_normal((n, d))
    cosines = directions @ vector / np.linalg.norm(directions, axis=1) / np.linalg.norm(vector)
    assert cosines.std() == pytest.approx(1 / math.sqrt(d), rel=0.05)
    found = estimated_epsilon(cosines, cosines + 0.03, 1e-5)
    assert found == pytest.approx(gaussian_epsilon(0.03 * math.sqrt(d), 1e-5), rel=0.05)


@pytest.mark.parametrize(("scores", "bias"), [(500, 0.13), (5000, 0.04)])
def test_the_estimate_is_near_the_truth_and_too_large_by_what_the_page_says(scores: int, bias: float) -> None:
    rng, errors = np.random.default_rng(3), []
    for _ in range(40):
        found = estimated_epsilon(rng.standard_normal(scores), 1.5 + rng.standard_normal(scores), 1e-5)
        assert found is not None
        errors.append(found / gaussian_epsilon(1.5, 1e-5) - 1)
    assert np.mean(errors) == pytest.approx(bias, abs=0.04) and min(errors) < 0.01


def test_too_few_or_constant_scores() -> None:
    assert estimated_epsilon(np.zeros(7), np.ones(100), 1e-5) is None
    assert estimated_epsilon(np.zeros(8), np.ones(8), 1e-5) == math.inf
    assert estimated_epsilon(np.zeros(8), np.zeros(8), 1e-5) == 0.0
