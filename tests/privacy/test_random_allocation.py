"""Random allocation: the law of a pass against exact small cases, other ways, and clients who would beat it."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from scipy.special import ndtr

from fedpriv.config import participation
from fedpriv.privacy import events, sampled_laws
from fedpriv.privacy.calibration import calibrate
from fedpriv.privacy.composition import ORDERS, compose, renyi_curve
from fedpriv.privacy.events import AllocatedGaussian, Gaussian, PoissonGaussian, Threat
from fedpriv.privacy.sampled_laws import (
    BEYOND,
    CUT,
    MORE_VARIANCE,
    ROUNDING,
    Sum,
    added,
    allocated_renyi,
    allocated_sum,
    hockey_sticks,
    lognormal,
    spacing,
    unbounded_share,
)

OUTSIDE = Threat("client", "add-or-remove-one", "trusted-server")
LOSSES = np.array([-1.5, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0])
DELTA = 1e-5


def passes(multiplier: float, rounds: int, count: int) -> AllocatedGaussian:
    return AllocatedGaussian(threat=OUTSIDE, multiplier=multiplier, rounds=rounds, count=count)


@cache
def plane() -> tuple[np.ndarray, np.ndarray, float]:
    axis = np.linspace(-9, 11, 801)
    return *np.meshgrid(axis, axis, indexing="ij"), (axis[1] - axis[0]) ** 2


def normal(x: np.ndarray, at: np.ndarray | float = 0.0) -> np.ndarray:
    return np.exp(-((x - at) ** 2) / 2) / math.sqrt(2 * math.pi)


def both_ways(p: np.ndarray, q: np.ndarray, cell: float) -> tuple[np.ndarray, np.ndarray]:
    """Hockey sticks of densities on a grid."""
    return tuple(
        np.array([np.maximum(one - math.exp(loss) * other, 0).sum() * cell for loss in LOSSES])
        for one, other in ((p, q), (q, p))
    )


# --- one pass ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 7.0])
def test_a_pass_of_one_round_is_the_gaussian(multiplier: float) -> None:
    mean = 1 / multiplier
    exact = ndtr(mean / 2 - LOSSES / mean) - np.exp(LOSSES) * ndtr(-mean / 2 - LOSSES / mean)
    for found in hockey_sticks(1, multiplier, LOSSES):
        assert (found >= exact * (1 - 1e-9) - 1e-15).all()
        assert found == pytest.approx(exact, rel=2e-3, abs=1e-9)
    assert compose([passes(multiplier, 1, 3)], DELTA) == compose(
        [Gaussian(threat=OUTSIDE, multiplier=multiplier, count=3)], DELTA
    )


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.0])
def test_a_pass_of_two_rounds_is_the_integral_over_the_plane(multiplier: float) -> None:
    x, y, cell = plane()
    p = (normal(x, 1 / multiplier) * normal(y) + normal(x) * normal(y, 1 / multiplier)) / 2
    for found, exact in zip(
        hockey_sticks(2, multiplier, LOSSES), both_ways(p, normal(x) * normal(y), cell), strict=True
    ):
        assert (found >= exact * (1 - 1e-4) - 1e-7).all()  # what the sum over the plane may be wrong by
        assert found == pytest.approx(exact, rel=2e-3, abs=1e-6)


def test_a_pass_of_ten_rounds_is_what_is_drawn() -> None:
    drawn = np.exp(np.random.default_rng(0).standard_normal((400_000, 10)) - 0.5).mean(1)
    for loss, removed, gone in zip(LOSSES, *hockey_sticks(10, 1.0, LOSSES), strict=True):
        for found, parts in (
            (removed, np.maximum(drawn - math.exp(loss), 0)),
            (gone, np.maximum(1 - math.exp(loss) * drawn, 0)),
        ):
            error = parts.std() / math.sqrt(len(parts))
            assert abs(found - parts.mean()) <= 4.5 * error + 1e-3 * found + 1e-6


def test_no_client_is_told_apart_better_by_what_it_sends() -> None:
    """Vectors of two rounds on a line, of any length and sign, the second chosen by what the first round released."""
    rng, (x, y, cell) = np.random.default_rng(1), plane()
    bounds, closest = hockey_sticks(2, 1.0, LOSSES), math.inf
    q = normal(x) * normal(y)
    for trial in range(12):
        first = 1.0 if trial % 3 == 0 else rng.uniform(-1, 1)
        second = np.sin(rng.uniform(1, 3) * x + rng.uniform(0, 6)) * rng.uniform(0, 1) if trial % 3 else np.sign(x - 1)
        p = (normal(x, first) * normal(y) + normal(x) * normal(y, second)) / 2
        for found, bound in zip(both_ways(p, q, cell), bounds, strict=True):
            assert (found <= bound * (1 + 1e-4) + 1e-7).all()
            closest = min(closest, float((bound - found)[2:7].max()))
    assert closest < 6e-4  # signs that follow what was seen cost as much as the pair


# --- a pass that the run's end cuts -------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [2, 3, 10])
@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.0])
def test_a_pass_cut_after_its_first_round_is_one_poisson_sample(rounds: int, multiplier: float) -> None:
    """With probability 1/t the client is in it: (1 - 1/t) N(0, 1) + (1/t) N(m, 1), on a line."""
    x = np.linspace(-14, 14 + 1 / multiplier, 400_001)
    p, cell = (1 - 1 / rounds) * normal(x) + normal(x, 1 / multiplier) / rounds, x[1] - x[0]
    found = hockey_sticks(rounds, multiplier, LOSSES, 1)
    for bound, exact in zip(found, both_ways(p, normal(x), cell), strict=True):
        assert (bound >= exact * (1 - 1e-6) - 1e-9).all()
        assert bound == pytest.approx(exact, rel=4e-3, abs=1e-6)
    one = AllocatedGaussian(threat=OUTSIDE, multiplier=multiplier, rounds=rounds, released=1, count=3)
    sampled = PoissonGaussian(threat=OUTSIDE, multiplier=multiplier, sampling_rate=1 / rounds, count=3)
    assert 0.9995 <= compose([one], DELTA).epsilon / compose([sampled], DELTA).epsilon < 1.003


@pytest.mark.parametrize(("rounds", "multiplier"), [(3, 0.5), (3, 1.0), (7, 1.0)])
def test_a_cut_pass_is_the_integral_over_the_rounds_it_has(rounds: int, multiplier: float) -> None:
    x, y, cell = plane()
    both = normal(x, 1 / multiplier) * normal(y) + normal(x) * normal(y, 1 / multiplier)
    p = (1 - 2 / rounds) * normal(x) * normal(y) + both / rounds
    found = hockey_sticks(rounds, multiplier, LOSSES, 2)
    for bound, exact in zip(found, both_ways(p, normal(x) * normal(y), cell), strict=True):
        assert (bound >= exact * (1 - 1e-4) - 1e-7).all()
        assert bound == pytest.approx(exact, rel=4e-3, abs=1e-6)


def test_a_client_that_answers_what_it_saw_is_told_apart_no_better_in_a_cut_pass() -> None:
    rng, (x, y, cell) = np.random.default_rng(2), plane()
    bounds, q = hockey_sticks(5, 1.0, LOSSES, 2), normal(x) * normal(y)
    for trial in range(9):
        second = np.sign(x - rng.uniform(-1, 2)) if trial % 2 else np.sin(rng.uniform(1, 3) * x) * rng.uniform(0, 1)
        p = 0.6 * q + 0.2 * (normal(x, rng.uniform(-1, 1)) * normal(y) + normal(x) * normal(y, second))
        for found, bound in zip(both_ways(p, q, cell), bounds, strict=True):
            assert (found <= bound * (1 + 1e-4) + 1e-7).all()


def test_a_cut_pass_costs_more_with_every_round_and_no_more_than_the_whole() -> None:
    events = [AllocatedGaussian(threat=OUTSIDE, multiplier=1.0, rounds=10, released=n) for n in (1, 4, 7, 9, 10, 0)]
    costs = [compose([event], DELTA).epsilon for event in events]
    assert costs[4] == costs[5] and all(less < more for less, more in itertools.pairwise(costs[:5]))
    curves = np.stack([renyi_curve(event) for event in events])
    assert (np.diff(curves[:5], axis=0)[:, ORDERS < 60] > 0).all() and events[4] == events[5]
    assert events[0].delta_share < 1e-15
    with pytest.raises(ValueError, match="released=11"):
        AllocatedGaussian(threat=OUTSIDE, multiplier=1.0, rounds=10, released=11)


def test_the_renyi_divergences_of_a_cut_pass_are_the_moments() -> None:
    """E S^2 = 1 + (n/t^2) (exp(m^2) - 1), S = 1 - n/t + (W_1 + ... + W_n)/t."""
    for rounds, released, multiplier in ((10, 3, 1.0), (4, 1, 0.8), (100, 99, 2.0)):
        square = 1 + released / rounds**2 * math.expm1(1 / multiplier**2)
        found = allocated_renyi(rounds, multiplier, np.array([2.0]), released)[0]
        assert math.log(square) <= found <= math.log(square) * 1.002 + 1e-8


# --- passes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("multiplier", "rounds", "count", "epsilon"),
    [(1.0, 10, 10, 6.12), (3.8, 10, 10, 0.998), (0.5, 100, 1, 5.40), (0.6, 1000, 3, 1.784)],
)
def test_passes_cost_less_than_poisson_samples_of_as_many(
    multiplier: float, rounds: int, count: int, epsilon: float
) -> None:
    """The figures of another computation, and of Poisson samples."""
    found = compose([passes(multiplier, rounds, count)], DELTA)
    assert found.accountant == "pld" and found.epsilon == pytest.approx(epsilon, rel=2e-3)
    sampled = PoissonGaussian(threat=OUTSIDE, multiplier=multiplier, sampling_rate=1 / rounds, count=rounds * count)
    assert found.epsilon < compose([sampled], DELTA).epsilon


def test_passes_compose_to_what_is_drawn() -> None:
    """delta(epsilon) of three passes, by losses that are drawn under P and, for the other direction, under Q."""
    rng, many = np.random.default_rng(2), 200_000
    losses = {True: np.zeros(many), False: np.zeros(many)}
    for _ in range(3):
        for present, total in losses.items():
            x = rng.standard_normal((many, 5))
            x[:, 0] += present
            total += np.log(np.exp(x - 0.5).mean(1)) * (1 if present else -1)
    law = passes(1.0, 5, 1).loss_distribution(1e-3).self_compose(3)
    for epsilon in (0.5, 1.5, 3.0):
        worst = 0.0
        for total in losses.values():
            parts = np.maximum(-np.expm1(epsilon - total), 0)
            worst = max(worst, parts.mean())
        error = math.sqrt(worst / many)
        assert abs(law.get_delta_for_epsilon(epsilon) - worst) <= 4.5 * error


def test_the_noise_for_epsilon_one_lies_below_that_of_poisson_samples() -> None:
    chosen = calibrate(lambda noise: [passes(noise, 10, 10)], 1.0, DELTA, 1e-3).noise_multiplier
    assert chosen == pytest.approx(3.80, rel=3e-3)
    known = calibrate(lambda noise: [Gaussian(threat=OUTSIDE, multiplier=noise, count=10)], 1.0, DELTA, 1e-3)
    assert known.noise_multiplier == pytest.approx(11.8, rel=1e-2)


# --- every step of the computation ---------------------------------------------------------------------------------


def mean_and_variance(law: Sum) -> tuple[float, float]:
    points = np.exp(law.logs)
    mean = float((law.masses * points).sum())
    return mean + law.rest, float((law.masses * points**2).sum()) - mean**2


@pytest.mark.parametrize(("multiplier", "rounds"), [(0.4, 3), (1.0, 10), (1.0, 37), (5.0, 1000), (30.0, 256)])
def test_mass_and_mean_stay_and_the_variance_grows_by_little(multiplier: float, rounds: int) -> None:
    law = allocated_sum(rounds, multiplier)
    assert law.masses.sum() + law.zero == pytest.approx(1, abs=ROUNDING / 10)
    mean, variance = mean_and_variance(law)
    true = rounds * math.expm1(multiplier**-2)
    assert mean == pytest.approx(rounds, rel=ROUNDING / 10)
    assert true * (1 - 1e-5) <= variance <= true * (1 + 2.5 * MORE_VARIANCE)
    assert 0 <= law.rest < 8 * rounds * CUT * 64 and 0 <= law.zero < 64 * CUT


def test_a_lognormal_on_the_grid_lies_above_it_in_the_convex_order() -> None:
    mean, step = 0.8, 0.05
    law = lognormal(mean, step)
    points = np.exp(law.logs)
    for c in np.exp(np.arange(-3, 4, 0.02)):
        exact = ndtr(mean / 2 - math.log(c) / mean) - c * ndtr(-mean / 2 - math.log(c) / mean)
        found = float((law.masses * np.maximum(points - c, 0)).sum()) + law.rest
        assert exact * (1 - 1e-12) - 1e-16 <= found
        assert found <= exact + (c * step) ** 2 / 2  # E (W - c)_+ has a second derivative, W's density, below 1
    assert 2 * ndtr(-BEYOND) < CUT


def test_a_sum_is_what_all_pairs_of_points_add_up_to() -> None:
    rng = np.random.default_rng(3)
    step = 0.125
    one = Sum(step, -3, rng.dirichlet(np.ones(7)) * 0.9, 0.1, 1e-3)
    other = Sum(step / 2, 2, rng.dirichlet(np.ones(11)) * 0.8, 0.2, 2e-3)
    found, fine = added(one, other), one.finer(step / 2)
    left = list(zip(np.append(0, np.exp(fine.logs)), np.append(fine.zero, fine.masses), strict=True))
    right = list(zip(np.append(0, np.exp(other.logs)), np.append(other.zero, other.masses), strict=True))
    expected: dict[int, float] = {}
    for (a, p), (b, q) in itertools.product(left, right):
        if a + b > 0:
            k = math.floor(math.log(a + b) / (step / 2) + 1e-9)
            low, high = math.exp(k * step / 2), math.exp((k + 1) * step / 2)
            share = (a + b - low) / (high - low)
            expected[k] = expected.get(k, 0) + p * q * (1 - share)
            expected[k + 1] = expected.get(k + 1, 0) + p * q * share
    for k, mass in zip(range(found.first, found.first + len(found.masses)), found.masses, strict=True):
        assert mass == pytest.approx(expected.get(k, 0.0), abs=1e-15)
    assert found.zero == pytest.approx(0.02) and found.rest == pytest.approx(3e-3)


def test_cut_ends_are_counted() -> None:
    law = Sum(0.5, -110, np.array([1e-22, *[0.0] * 99, 0.6, 0.4, *[0.0] * 20, 1e-30]), 0.0, 0.0)
    kept = law.cut()
    assert len(kept.masses) == 2
    assert kept.masses.sum() + kept.zero == pytest.approx(1, abs=1e-15) and kept.zero == pytest.approx(1e-22, abs=0)
    lost = mean_and_variance(law)[0] - (mean_and_variance(kept)[0] - kept.rest)
    assert kept.rest == pytest.approx(1e-30 * (math.exp(6) - math.exp(-4.5)), rel=1e-9, abs=0) and lost < 1e-15


def test_grids_nest() -> None:
    """h of fewer terms is h of all times a power of two, and all of these together add what the docstring says."""
    for rounds in (1, 2, 10, 1000, 10**6):
        steps = [spacing(0.01, rounds, terms) for terms in (1, max(1, rounds // 16), rounds)]
        assert all(math.log2(step / steps[-1]).is_integer() for step in steps)
        assert steps[-1] ** 2 / 2 <= MORE_VARIANCE * math.expm1(1e-4) / rounds * (1 + 1e-12)
        assert steps[0] <= steps[-1] * rounds**0.25


# --- curves, and what an event is ------------------------------------------------------------------------------------


def test_the_curve_is_that_of_exact_moments() -> None:
    for rounds, multiplier in ((10, 1.0), (100, 0.7)):
        second, third = (math.exp(k * (k - 1) / 2 / multiplier**2) for k in (2, 3))
        n = rounds
        cube = (n * third + 3 * n * (n - 1) * second + n * (n - 1) * (n - 2)) / n**3
        exact = [math.log(1 + (second - 1) / n), math.log(cube) / 2]
        found = allocated_renyi(rounds, multiplier, np.array([2.0, 3.0]))
        assert (found >= exact).all() and found == pytest.approx(exact, rel=2e-3)
    x, y, cell = plane()  # the other direction, where it is larger than nothing: E_Q S^-1 of two rounds
    inverse = float((normal(x) * normal(y) / ((np.exp(x - 0.5) + np.exp(y - 0.5)) / 2)).sum() * cell)
    law = allocated_sum(2, 1.0)
    assert float((law.masses / np.exp(law.logs)).sum() * 2) == pytest.approx(inverse, rel=2e-3)
    assert allocated_renyi(2, 1.0, np.array([2.0]))[0] >= math.log(inverse)


def test_the_curve_and_the_distribution_bound_each_other() -> None:
    curve, one = renyi_curve(passes(0.6, 20, 1)), passes(0.6, 20, 1)
    assert (curve <= ORDERS / (2 * 0.36) * (1 + 1e-12)).all()
    assert 0 < one.delta_share == unbounded_share(20, 0.6) < 1e-16
    by_renyi = float((curve + np.log1p(-1 / ORDERS) - np.log(DELTA * ORDERS) / (ORDERS - 1)).min())
    assert compose([one], DELTA).epsilon <= by_renyi


def test_noise_beyond_the_grid_counts_as_the_gaussian_of_its_round() -> None:
    for multiplier in (0.09, 2e6):
        event = passes(multiplier, 50, 1)
        assert event.loss_distribution(1e-3) is None and event.delta_share == 0
        orders = np.array([1.5, 8.0])
        assert event.renyi(orders) == pytest.approx(Gaussian(threat=OUTSIDE, multiplier=multiplier).renyi(orders))
    assert passes(0.0, 50, 1).why_unbounded()


@pytest.mark.parametrize(
    ("threat", "rounds", "words"),
    [
        (Threat("client", "add-or-remove-one", "server"), 5, "knows who took part"),
        (Threat("client", "zero-out", "secure-sum"), 5, "knows who took part"),
        (Threat("client", "replace-one", "trusted-server"), 5, "not replace-one"),
        (OUTSIDE, 0, "at least 1"),
        (OUTSIDE, 10**6 + 1, "at most 1000000 rounds"),
    ],
)
def test_what_is_no_secret_allocation_is_refused(threat: Threat, rounds: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AllocatedGaussian(threat=threat, multiplier=1.0, rounds=rounds)
    assert participation.MOST_ROUNDS == events.MOST_ROUNDS == 10**6
    assert sampled_laws.ROUNDING >= 4 * 2.2e-16 * events.MOST_ROUNDS


@pytest.mark.parametrize(("rounds", "multiplier"), [(1000, 1.0), (100, 2.0)])
def test_the_grid_adds_little_to_the_variance_of_the_sum(rounds: int, multiplier: float) -> None:
    """Of S, whose mean is 1 and whose variance is (exp(1/sigma^2) - 1)/t: 4e-4 of it, by `spacing`."""
    law = allocated_sum(rounds, multiplier)
    values = np.exp(law.logs) / rounds
    mean, exact = float(law.masses @ values) + law.rest / rounds, math.expm1(multiplier**-2) / rounds
    variance = float(law.masses @ (values - 1) ** 2) + law.zero
    assert mean == pytest.approx(1, abs=1e-9) and exact <= variance <= exact * (1 + 4e-4)
