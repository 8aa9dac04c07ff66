"""What papers state in closed form: against other formulas, brute force, and the mechanisms themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedpriv.studies import paper_bounds
from fedpriv.studies.computations import compute

DELTA = 1e-5


def gaussian(mu: float) -> float:
    """The exact epsilon of one Gaussian, by scipy."""

    def slack(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - DELTA)

    return float(brentq(slack, 0.0, 50 * (1 + mu) ** 2))


def test_the_noise_of_consecutive_releases_is_that_of_their_sum() -> None:
    """Of Fed-CAD's constant Diff by matrices: mu_i = s_i z_i + r_i mu_(i-1), as lines 14 to 16 have it."""
    found = paper_bounds.fedcad_variance(30)
    assert found["gap"] < 1e-12 and found["largest"] < 1 and found["order"] < 1
    diff, rows = 0.3, [np.eye(12)[0]]
    v = 1.0
    for i in range(1, 12):
        r = (1 - diff) / ((1 - diff) ** 2 + v)
        rows.append(((1 - r) + r * diff) * np.eye(12)[i] + r * rows[-1])
        v = v / ((1 - diff) ** 2 + v)
        stated = (2 * diff - diff**2) / (1 - (1 - diff) ** (2 * (i + 1)))
        assert float(rows[-1] @ rows[-1]) == pytest.approx(stated, rel=1e-12)


def test_a_release_is_unbiased_and_fed_ldps_error_is_that_of_its_noise() -> None:
    found = paper_bounds.fedcad_release(30)
    assert 0 <= found["bias"] < 1e-12 and 0 <= found["error"] < 1e-12
    rng, diff = np.random.default_rng(2), 0.3  # V-A by draws: noise on x_1 and on phi, put together again
    alpha, beta = 1 + (1 - diff) ** 2, 1 - diff
    x, z = np.array([0.6, -0.2]), rng.standard_normal((2, 400_000))
    sent = (alpha * x[1] - beta * x[0] + z[1]) / alpha + beta / alpha * (x[0] + z[0])
    assert sent.mean() == pytest.approx(x[1], abs=0.01) and sent.var() == pytest.approx(1 / alpha, rel=0.01)


def test_a_mean_of_clipped_updates_moves_by_two_over_n() -> None:
    for clients in (1, 3, 10):
        assert abs(paper_bounds.adpfl_sensitivity(clients)["excess"]) < 1e-12


def test_an_upload_costs_the_price_of_its_gaussian() -> None:
    """Ten clients at epsilon 3: sensitivity 2 C against noise of 2 C/10 times 1.7005."""
    scale = math.sqrt(3 + 2 * math.log(1e5)) / 3
    assert scale == pytest.approx(1.7005, abs=1e-4)
    one = paper_bounds.adpfl_upload(3, 10, 1, DELTA)
    assert one["exact"] == pytest.approx(gaussian(10 / scale), rel=1e-6) == pytest.approx(41.6, abs=0.05)
    assert 3 < one["least"] < one["exact"]
    assert paper_bounds.adpfl_upload(3, 10, 100, DELTA)["exact"] == pytest.approx(gaussian(100 / scale), rel=1e-6)
    assert paper_bounds.adpfl_upload(3, 1, 1, DELTA)["exact"] < 3  # with the sensitivity of one client it is true


def test_equation_8_has_the_clip_norm_once_more() -> None:
    """At C = 1 it is the upload of equation 13, and at C = 4 a fourth of its shift."""
    for share in ("exact", "least"):
        one = paper_bounds.adpfl_upload(3, 10, 1, DELTA)[share]
        assert paper_bounds.adpfl_equation8(3, 10, 1, DELTA)[share] == one
    scale = math.sqrt(2.4 + 2 * math.log(1e5)) / 2.4
    found = paper_bounds.adpfl_equation8(3, 10, 4, DELTA)["least"]
    assert found == pytest.approx(gaussian(10 / (4 * scale)), rel=1e-6) == pytest.approx(5.360, abs=1e-3)
    assert paper_bounds.adpfl_equation8(3, 10, 8, DELTA)["least"] < 3


def test_theorem_2s_noise_is_too_little_at_ten() -> None:
    assert paper_bounds.adpfl_constant(10, DELTA)["exact"] == pytest.approx(10.518, abs=1e-3)
    assert paper_bounds.adpfl_constant(3, DELTA)["exact"] < 3


def test_the_printed_theorem_is_false_and_the_proved_one_is_not() -> None:
    tiny = paper_bounds.agn_theorem(1e-6, 0.01, 1000, DELTA)
    assert tiny["printed"] == pytest.approx(13.919, abs=1e-3) and tiny["lower"] > 1e10 < tiny["proved"]
    for noise in (0.05, 0.2, 1.0):
        found = paper_bounds.agn_theorem(noise, 0.01, 1000, DELTA)
        assert found["lower"] <= found["logged"] <= found["proved"]
    by_hand = 1000 * (0.99**64 + 64 * 0.01 * 0.99**63) / 63 + math.log(1e5) / 63  # at order 64 nothing else is left
    assert tiny["printed"] == pytest.approx(by_hand, rel=1e-9)


def test_the_lower_bound_is_kept_by_a_server_that_looks() -> None:
    """Its two chances by simulation, at a noise at which both are seen."""
    noise, rate, rounds = 0.2, 0.05, 20
    rng = np.random.default_rng(0)
    there = rng.random((40_000, rounds)) < rate
    noises = noise * rng.standard_normal((2, 40_000, rounds))
    with_, without = (there + noises[0] > 0.5).any(1).mean(), (noises[1] > 0.5).any(1).mean()
    seen = (1 - (1 - rate) ** rounds) * norm.cdf(0.5 / noise)
    assert with_ >= seen - 0.01 and without <= rounds * norm.sf(0.5 / noise) + 0.01
    found = paper_bounds.agn_theorem(noise, rate, rounds, DELTA)["lower"]
    assert found == pytest.approx(math.log(seen - DELTA) - math.log(rounds * norm.sf(0.5 / noise)), rel=1e-9)


def test_laplace_noise_on_what_differs_keeps_epsilon() -> None:
    assert paper_bounds.partial_laplace(0.5, 7)["largest"] == pytest.approx(0.5)
    assert paper_bounds.partial_laplace(0.2, 3)["largest"] == pytest.approx(0.2)


def test_weights_by_losses_sum_to_one() -> None:
    assert 0 <= paper_bounds.weight_sum(10)["gap"] < 1e-12


def test_one_bit_keeps_epsilon_and_uses_it() -> None:
    for epsilon in (0.25, 1.0, 4.0):
        assert abs(paper_bounds.one_bit(epsilon)["excess"]) < 1e-12
    p = [0.5 + weight / (2 * math.cosh(1 / 2) / math.sinh(1 / 2)) for weight in (-1, 1)]  # equation 2 by hand
    assert math.log(p[1] / p[0]) == pytest.approx(1.0)


def test_the_split_of_the_budget_by_brute_force() -> None:
    shares = np.linspace(0.001, 0.999, 99_901)
    for queries in (8.0, 64.0):
        found = paper_bounds.budget_ratio(queries)
        for name, factor in (("printed", queries), ("vectors", 1.0)):
            best = shares[np.argmin((queries / shares) ** 2 + (factor / (1 - shares)) ** 2)]
            assert found[name] == pytest.approx(queries ** (2 / 3) * (1 - best) / best, rel=1e-2)
        assert found["vectors"] == pytest.approx(1.0, rel=1e-4) and found["printed"] == pytest.approx(
            queries ** (2 / 3)
        )


def test_shared_bits_against_draws_of_the_pair() -> None:
    none, four = paper_bounds.shared_bits(1, 0), paper_bounds.shared_bits(1, 4)
    assert abs(none["magnitude"]) < 1e-12 and none["centre"] == pytest.approx(1)
    assert four["covariance"] < 0 and four["centre"] == pytest.approx(0, abs=1e-12) and 0 < four["gain"] <= 1
    rng = np.random.default_rng(1)  # both weights at the centre: p = 1/2, the largest covariance in absolute value
    u, coins = rng.integers(0, 16, 200_000), rng.random((2, 200_000))
    alice = coins[0] < np.clip(8 - u, 0, 1)
    bob = coins[1] < np.clip(u + 1 - 8, 0, 1)
    assert 4 * (np.mean(alice & bob) - np.mean(alice) * np.mean(bob)) == pytest.approx(-four["magnitude"], abs=0.02)


@pytest.mark.pictures
def test_consecutive_updates_are_counted(pictures: object) -> None:
    found = compute(
        ["what=fedcad_consecutive", "dataset=mnist", f"dataset.root={pictures}", "clients=2", "rounds=3", "seed=0"]
    )
    assert found["cases"] == 4 and 0 <= found["below"] <= 4
    assert found["mean_ratio"] <= found["ratio"]
    assert (found["ratio"] < 1) is (found["below"] == 4)
    assert found["ends"] == max(found["first"], found["last"]) / found["peak"]
    assert 0 < found["first"] <= found["peak"] and found["last"] <= found["peak"] and found["peak"] <= found["change"]
