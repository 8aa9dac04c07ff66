"""Sums of discrete Gaussian and Skellam noise: the accounts against exact laws and published formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_discrete_gaussian_mechanism
from numpy.typing import NDArray
from scipy import special

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.laws import skellam_exponent
from fedpriv.mechanisms.whole_numbers import Law
from fedpriv.privacy.calibration import calibrate
from fedpriv.privacy.composition import compose
from fedpriv.privacy.discrete_gaussian import closeness, sum_rho
from fedpriv.privacy.events import CLIENT_TO_SERVER, SECURE_SUM, DiscreteGaussianSum, Event, Gaussian, SkellamSum
from fedpriv.privacy.skellam import skellam_curvature, skellam_renyi, skellam_window
from fedpriv.privacy.sum_grid import SumGrid

Floats = NDArray[np.float64]
ORDERS = np.array([1.001, 1.1, 1.5, 2.0, 4.0, 8.0, 16.0, 64.0])
DELTA = 1e-5


def gaussian_sum(sigma: float, noises: int) -> Floats:
    """Logarithms of the law of a sum of discrete Gaussians, by convolution, where float64 holds it."""
    x = np.arange(-math.ceil(40 * sigma) - 5, math.ceil(40 * sigma) + 6)
    one = np.exp(-(x**2) / (2 * sigma**2))
    total = one = one / one.sum()
    for _ in range(noises - 1):
        total = np.convolve(total, one)
    middle, reach = len(total) // 2, math.ceil(9 * sigma * math.sqrt(noises)) + 3
    return np.log(total[max(0, middle - reach) : middle + reach + 1])


def skellam_law(variance: float) -> Floats:
    reach = math.ceil(14 * math.sqrt(variance)) + 20
    return np.log(special.ive(np.abs(np.arange(-reach, reach + 1)), variance))


def renyi_of_shift(law: Floats, shift: int) -> Floats:
    """D_a of a law on whole numbers (its logarithms) shifted, at `ORDERS`; without the tails, which only lowers it."""
    moved, still = law[:-shift], law[shift:]
    return np.array([special.logsumexp(a * moved + (1 - a) * still) / (a - 1) for a in ORDERS])


# --- the discrete Gaussian ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.5, 0.6, 0.8, 1.0, 2.0])
@pytest.mark.parametrize("noises", [1, 2, 3, 10])
def test_no_shift_of_a_sum_of_discrete_gaussians_tells_more_than_is_charged(sigma: float, noises: int) -> None:
    law = gaussian_sum(sigma, noises)
    for shift in (1, 2, 3):
        exact = float(np.max(renyi_of_shift(law, shift) / ORDERS))
        charged = sum_rho(sigma, noises, 1, shift)
        assert exact <= charged * (1 + 1e-9)
        if sigma >= 1:  # and not much more: the exact divergence of one discrete Gaussian
            assert charged <= 1.01 * shift**2 / (2 * noises * sigma**2)


def test_the_closeness_of_a_sum_to_one_discrete_gaussian_is_one() -> None:
    """Where it is charged for, a sum differs from its Gaussian in fact, and by no more than that."""
    for sigma, noises in ((0.5, 2), (0.5, 10), (0.7, 5)):
        law = gaussian_sum(sigma, noises)
        x = np.arange(len(law)) - len(law) // 2
        gaussian = -(x**2) / (2 * noises * sigma**2)
        gaussian -= special.logsumexp(gaussian)
        off = float(np.abs(law - gaussian)[np.abs(x) <= 4 * sigma * math.sqrt(noises)].max())
        assert 0.04 * closeness(sigma, noises) < off <= closeness(sigma, noises) / 2
    assert closeness(3.0, 1000) < 1e-30 and closeness(0.2, 5) == math.inf and closeness(0.2, 1) == 0


@pytest.mark.parametrize(("sigma", "noises"), [(0.75, 10), (1.0, 100), (1.5, 30)])
def test_the_published_theorem_charges_no_less(sigma: float, noises: int) -> None:
    """Kairouz, Liu, Steinke 2021, Theorem 1, whose constant is 10."""
    tau = 10 * sum(math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, noises))
    l2, dimension = 30.0, 50
    l1, std = min(l2 * math.sqrt(dimension), l2 * l2), math.sqrt(noises) * sigma
    published = (l2 / std) ** 2 + 2 * tau * l1 / std + tau**2 * dimension
    published = min(published, (l2 / std + math.sqrt(dimension) * tau) ** 2) / 2
    assert 0.6 * published < sum_rho(sigma, noises, dimension, l2) <= published


def test_google_s_privacy_loss_of_one_discrete_gaussian_is_below_and_near() -> None:
    event = DiscreteGaussianSum(threat=SECURE_SUM, sigma=4.0, noises=1, dimension=1, l2=10.0)
    exact = from_discrete_gaussian_mechanism(4.0, 10, value_discretization_interval=1e-3).get_epsilon_for_delta(DELTA)
    assert 0.9 < exact / compose([event], DELTA).epsilon < 1


def test_a_sum_is_worth_the_noise_of_those_who_cannot_be_subtracted() -> None:
    grid = SumGrid("gaussian", 650, 100, 18, 0.5)
    alone, some, many = (grid.event(SECURE_SUM, noises, 1e-9) for noises in (1, 80, 100))
    assert some.multiplier == pytest.approx(math.sqrt(80) * alone.multiplier)
    assert grid.event(CLIENT_TO_SERVER, 100, 1e-9) == replace(alone, threat=CLIENT_TO_SERVER)
    assert compose([many], DELTA).epsilon < compose([some], DELTA).epsilon < compose([alone], DELTA).epsilon


# --- Skellam -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [3.0, 4.0, 10.0, 100.0, 1e4])
def test_no_shift_of_skellam_noise_tells_more_than_is_charged(variance: float) -> None:
    law = skellam_law(variance)
    for shift in (1, 2, 5):
        charged = skellam_renyi(variance, 1, shift, 1e-12, ORDERS)
        exact = renyi_of_shift(law, shift)
        assert (exact <= charged * (1 + 1e-9)).all()
        if variance == 1e4:
            assert (charged < 1.002 * exact).all()


@pytest.mark.parametrize("variance", [3.0, 3.5, 5.0, 47.3, 1000.0])
def test_second_differences_of_skellam_are_below_the_proven_bound(variance: float) -> None:
    law = skellam_law(variance)
    differences = 2 * law[1:-1] - law[:-2] - law[2:]
    x = np.arange(len(law))[1:-1] - len(law) // 2
    core = np.abs(x) <= 8 * math.sqrt(variance)
    bound = 1 / np.sqrt(x**2 + variance**2 - 1)
    assert (-np.expm1(-differences[core]) <= bound[core] * (1 + 1e-9)).all() and (differences[core] > 0).all()
    assert skellam_curvature(variance, 0.0) >= differences.max()
    steps = law[:-1] - law[1:]
    reach = round(4 * math.sqrt(variance))
    assert steps[len(law) // 2 + reach] <= math.asinh((reach + 1) / variance)


def test_the_window_holds_all_coordinates() -> None:
    for variance in (5.0, 300.0):
        reach = skellam_window(variance, 1000, 1e-3)
        law = np.exp(skellam_law(variance))
        outside = law[np.abs(np.arange(len(law)) - len(law) // 2) > reach].sum()
        assert 1000 * outside <= 1e-3 and skellam_exponent(reach - 2.0, variance) < math.log(2e6)


@pytest.mark.parametrize("variance", [1e4, 1e6])
def test_the_published_bound_of_skellam_is_met_within_a_thousandth(variance: float) -> None:
    """Agarwal, Kairouz, Liu 2021: whole orders, no share of delta."""
    orders, l2, dimension = np.array([2.0, 3.0, 8.0, 20.0]), 40.0, 100
    l1 = min(math.sqrt(dimension) * l2, l2 * l2)
    gap = np.minimum(((2 * orders - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    published = orders * l2**2 / (2 * variance) + gap
    found = skellam_renyi(variance, dimension, l2, 1e-9, orders)
    assert (found < published * (1 + (1e-2 if variance == 1e4 else 1e-3))).all()


def test_too_little_noise_has_no_account() -> None:
    for event, words in (
        (DiscreteGaussianSum(threat=SECURE_SUM, sigma=0.1, noises=9, dimension=5, l2=3.0), "too little: bits"),
        (DiscreteGaussianSum(threat=SECURE_SUM, sigma=0.0, noises=9, dimension=5, l2=3.0), "no noise is added"),
        (SkellamSum(threat=SECURE_SUM, variance=0.3, noises=9, dimension=5, l2=3.0, delta=1e-9), "too little: bits"),
        (SkellamSum(threat=SECURE_SUM, variance=0.0, noises=9, dimension=5, l2=3.0, delta=1e-9), "no noise is added"),
    ):
        found = compose([event], DELTA)
        assert found.epsilon == math.inf and words in found.reasons[0]


def test_skellam_uses_up_its_share_of_delta() -> None:
    event = SkellamSum(threat=SECURE_SUM, variance=1e4, noises=10, dimension=5, l2=30.0, delta=4e-6)
    assert math.isfinite(compose([event, event], DELTA).epsilon)
    assert "more than the target" in compose([event] * 3, DELTA).reasons[0]


# --- the figures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["gaussian", "skellam"])
def test_whole_numbers_of_18_bits_cost_little_more_noise_than_the_exact_gaussian(law: Law) -> None:
    """80,202 parameters, 100 clients, 20 participations, delta 1e-5, replace-one: ratio of standard deviations."""

    def whole(multiplier: float) -> list[Event]:
        event = SumGrid(law, 80_202, 100, 18, multiplier).event(SECURE_SUM, 100, 0.01 * DELTA / 20)
        return [replace(event, count=20)]

    def exact(multiplier: float) -> list[Event]:
        return [Gaussian(threat=SECURE_SUM, multiplier=10 * multiplier / 2, count=20)]

    for epsilon, most in ((1.0, 1.12), (8.0, 1.07), (50.0, 1.04)):
        found, least = (calibrate(plan, epsilon, DELTA, 1e-3).noise_multiplier for plan in (whole, exact))
        assert 1.03 < found / least <= most


def test_the_grid_follows_the_noise_and_the_modulus() -> None:
    coarse, fine = (SumGrid("gaussian", 7850, 100, bits, 1.0) for bits in (16, 18))
    assert coarse.step == pytest.approx(4 * fine.step, rel=1e-3)
    spread = math.sqrt(100**2 / 8192 + 100 * 1.0 + 100 * fine.step**2 / 4)
    assert 2**17 * fine.step == pytest.approx(5 * spread)
    assert SumGrid("gaussian", 7850, 100, 50, 1.0).sigma == pytest.approx(2**16)  # finer gains nothing
    assert fine.most_square >= fine.step**-2
    with pytest.raises(OptionError, match=r"strategy\.server\.bits=6: sums of 1000 clients need more"):
        _ = SumGrid("gaussian", 7850, 1000, 6, 1.0).step
    with pytest.raises(OptionError, match=r"strategy\.server\.bits=9: what is told beside a vector needs more"):
        SumGrid("gaussian", 7850, 1000, 9, 1.0, (1.6,)).statistic_steps(1.6)
