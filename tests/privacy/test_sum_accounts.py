"""Sums of discrete Gaussian and Skellam noise: the accounts against exact laws and published formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Outcome, Run, page_of
from dp_accounting.pld.privacy_loss_distribution import from_discrete_gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pytest import approx
from scipy import special
from scipy.optimize import brentq

from fedpriv.certificates import statement
from fedpriv.client.base import Client
from fedpriv.client.build import make_client
from fedpriv.client.gaussian import GaussianClient
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import CLIP_BIT
from fedpriv.config.compose import compose as compose_options
from fedpriv.config.compose import read_config
from fedpriv.mechanisms.laws import skellam_exponent
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.mechanisms.whole_numbers import Law
from fedpriv.privacy.auditor import audit
from fedpriv.privacy.calibration import calibrate
from fedpriv.privacy.composition import RunningTotals, at_other_adjacency, compose
from fedpriv.privacy.dp_library import composed_epsilon, gaussian_pld
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    SECURE_SUM,
    DiscreteGaussianSum,
    Event,
    Gaussian,
    PoissonGaussian,
    RandomisedResponse,
    ReplacedGaussian,
    SkellamSum,
    Threat,
)
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, shifted_epsilon
from fedpriv.privacy.integer_laws import closeness, skellam_curvature, skellam_renyi, skellam_window, sum_rho
from fedpriv.privacy.sum_grid import BinomialGrid, SumGrid
from fedpriv.report.words import figure
from fedpriv.runs.planning import plan_elsewhere, with_target
from fedpriv.runs.preparation import plan_rows, resolve

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


# --- nearly Gaussian ---------------------------------------------------------------------------------------------


def losses(law: Floats, vector: Sequence[int]) -> tuple[Floats, Floats]:
    """(losses, probabilities) of noise with this law on every coordinate against itself shifted by a vector."""
    values, masses = np.zeros(1), np.ones(1)
    for shift in vector:
        first, second = law[shift:], law[: len(law) - shift]
        kept = first > -42
        values = (values[:, None] + (first - second)[kept]).ravel()
        masses = (masses[:, None] * np.exp(first[kept])).ravel()
    return values, masses


def composed(one: tuple[Floats, Floats], times: int) -> tuple[Floats, Floats]:
    values, masses = one
    for _ in range(times - 1):
        values, masses = (values[:, None] + one[0]).ravel(), (masses[:, None] * one[1]).ravel()
        values, place = np.unique(np.round(values, 9), return_inverse=True)
        masses = np.bincount(place, masses)
    return values, masses


def told(law: tuple[Floats, Floats], epsilon: float) -> float:
    """delta at epsilon."""
    return float((law[1] * np.maximum(-np.expm1(epsilon - law[0]), 0)).sum())


#: Along a coordinate, across all, and short: whole vectors of a length are not alike.
VECTORS: list[tuple[int, ...]] = [(1,), (2,), (7,), (1, 1), (3, 1), (2, 2)]


@pytest.mark.parametrize(("sigma", "noises"), [(0.8, 4), (1.0, 1), (1.0, 5), (2.0, 1), (2.0, 4), (4.0, 3), (12.0, 1)])
@pytest.mark.parametrize("vector", VECTORS)
def test_no_vector_is_told_apart_better_than_its_gaussian_says(
    sigma: float, noises: int, vector: tuple[int, ...]
) -> None:
    """The exact law of one and two coordinates, of several noises and over rounds; within 1 % once noise is 8 steps."""
    one, l2, std = (
        losses(gaussian_sum(sigma, noises), vector),
        math.dist(vector, (0,) * len(vector)),
        sigma * noises**0.5,
    )
    for rounds in (1, 2, 3) if len(vector) == 1 else (1,):
        law = composed(one, rounds)
        event = DiscreteGaussianSum(threat=SECURE_SUM, sigma=sigma, noises=noises, dimension=len(vector), l2=l2)
        for delta in (1e-2, DELTA, 1e-8):
            multiplier, shift = event.nearly_gaussian or (0.0, 0.0)
            bound = shifted_epsilon(math.sqrt(rounds) / multiplier, rounds * shift, delta)
            assert told(law, bound) <= delta
            found = compose([replace(event, count=rounds)], delta).epsilon
            assert told(law, found) <= delta and found <= bound * (1 + 1e-12)
            exact = gaussian_epsilon(math.sqrt(rounds) * l2 / std, delta)
            assert std < 8 or found <= 1.01 * exact + 1e-9


@pytest.mark.parametrize("variance", [4.0, 16.0, 144.0, 1600.0])
@pytest.mark.parametrize("vector", VECTORS)
def test_no_vector_is_told_apart_better_than_skellams_gaussian_says(variance: float, vector: tuple[int, ...]) -> None:
    one, l2 = losses(skellam_law(variance), vector), math.dist(vector, (0,) * len(vector))
    for rounds in (1, 2) if len(vector) == 1 else (1,):
        law = composed(one, rounds)
        for delta in (1e-2, DELTA, 1e-8):
            shape = {"variance": variance, "noises": 1, "dimension": len(vector), "l2": l2, "delta": delta / 1000}
            event = SkellamSum(threat=SECURE_SUM, count=rounds, **shape)  # type: ignore[arg-type]
            multiplier, shift = event.nearly_gaussian or (0.0, 0.0)
            left = delta * (1 - rounds / 1000)
            assert told(law, shifted_epsilon(math.sqrt(rounds) / multiplier, rounds * shift, left)) <= delta
            found = compose([event], delta)
            assert told(law, found.epsilon) <= delta
            exact = gaussian_epsilon(math.sqrt(rounds * l2**2 / variance), delta)
            assert variance < 1600 or exact < 0.01 or found.epsilon <= 1.02 * exact


@pytest.mark.parametrize("variance", [3.0, 10.0, 300.0, 1e5])
def test_the_steps_of_skellams_law_are_less_spread_than_the_gaussian(variance: float) -> None:
    """sum_(x>=n) e(x) P(x) <= sqrt(G) phi(Phi^-1(P[X >= n])) for all n of the window, and K below all differences."""
    law = skellam_law(variance)
    middle, reach = len(law) // 2, round(6 * math.sqrt(variance))
    e, p = ((law[:-2] - law[2:]) / 2), np.exp(law[1:-1])
    places = slice(middle, middle + reach)
    sums, tails = (np.cumsum(part[::-1])[::-1][places] for part in (e * p, p))
    allowed = np.exp(-(special.ndtri(tails) ** 2) / 2) / math.sqrt(2 * math.pi)
    most = -math.log1p(-1 / math.sqrt(variance**2 - 1))
    bound = most * (math.exp(most / 2) + math.asinh((reach + 1) / variance) ** 2 / 3)
    assert (sums <= math.sqrt(bound) * allowed).all()
    assert (sums[: reach // 3] > 0.9 * math.sqrt(1 / variance) * allowed[: reach // 3]).all() or variance < 100
    differences = (2 * law[1:-1] - law[:-2] - law[2:])[places]
    x = np.arange(1, reach + 1)
    assert (-np.expm1(-differences) >= ((x + 1.0) ** 2 + variance**2 + 3) ** -0.5 * (1 - 1e-8)).all()


def test_whole_numbers_compose_with_gaussians_and_samples_of_them() -> None:
    """Adaptively, and as one history: the shifts add up, and a sample's loss distribution takes in the Gaussian."""
    threat = replace(SECURE_SUM, unit="example", adjacency="add-or-remove-one")
    whole = DiscreteGaussianSum(threat=threat, sigma=400.0, noises=4, dimension=1000, l2=500.0, count=3)
    near = Gaussian(threat=threat, multiplier=800 / 500, count=3)
    skellam = SkellamSum(threat=threat, variance=4e4, noises=4, dimension=9, l2=300.0, delta=1e-9)
    sampled = PoissonGaussian(threat=threat, multiplier=1.0, sampling_rate=0.1, count=20)
    for events, alike in (
        ([whole], [near]),
        ([whole, Gaussian(threat=threat, multiplier=3.0)], [near, Gaussian(threat=threat, multiplier=3.0)]),
        ([whole, sampled], [near, sampled]),
        ([whole, skellam], [near, Gaussian(threat=threat, multiplier=400 / 300)]),
    ):
        found, exact = compose(events, DELTA), compose(alike, DELTA)
        assert exact.epsilon < found.epsilon < 1.01 * exact.epsilon and found.accountant == exact.accountant
        running = RunningTotals(DELTA)
        running.add([([0], list(events))])
        assert found.epsilon <= running.maximum() < 1.2 * found.epsilon


def test_shifts_and_shares_of_delta_are_paid_in_every_total() -> None:
    """Noise of two steps, whose shift is a fifth of epsilon, beside a share of 0.4 of delta, and beside a sample."""
    threat = replace(SECURE_SUM, unit="example", adjacency="add-or-remove-one")
    few = DiscreteGaussianSum(threat=threat, sigma=1.0, noises=5, dimension=9, l2=3.0)
    skellam = SkellamSum(threat=threat, variance=4e4, noises=4, dimension=9, l2=300.0, delta=0.4 * DELTA)
    (one, own), (other, others) = few.nearly_gaussian or (0.0, 0.0), skellam.nearly_gaussian or (0.0, 0.0)
    assert own > 0.1 and others > 0
    wanted = shifted_epsilon(math.hypot(1 / one, 1 / other), own + others, 0.6 * DELTA)
    assert compose([few, skellam], DELTA).epsilon == pytest.approx(wanted, rel=1e-9)
    sampled = PoissonGaussian(threat=threat, multiplier=1.0, sampling_rate=0.1, count=20)
    parts = [(sampled.loss_distribution(1e-3), 20), (gaussian_pld(1 / one, 1e-3), 1)]
    wanted = own + composed_epsilon(parts, DELTA * math.exp(-own))
    assert compose([few, sampled], DELTA).epsilon == pytest.approx(wanted, rel=1e-9)


def test_noise_of_a_step_or_two_keeps_its_renyi_bound() -> None:
    event = DiscreteGaussianSum(threat=SECURE_SUM, sigma=0.22, noises=1, dimension=3, l2=1.0)
    assert compose([event], DELTA).accountant == "rdp"


@given(st.floats(0.3, 60), st.integers(1, 40), st.integers(1, 10**6), st.floats(0.5, 1e5), st.floats(1e-12, 0.3))
def test_a_gaussian_close_to_a_sum_is_never_below_the_gaussian_itself(
    sigma: float, noises: int, dimension: int, l2: float, delta: float
) -> None:
    event = DiscreteGaussianSum(threat=SECURE_SUM, sigma=sigma, noises=noises, dimension=dimension, l2=l2)
    if event.nearly_gaussian is not None:
        multiplier, shift = event.nearly_gaussian
        assert 0 < multiplier <= event.multiplier and shift >= 0
        assert shifted_epsilon(1 / multiplier, shift, delta) >= gaussian_epsilon(1 / event.multiplier, delta)


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

    for epsilon in (1.0, 8.0, 50.0):
        found, least = (calibrate(plan, epsilon, DELTA, 1e-3).noise_multiplier for plan in (whole, exact))
        assert 1 - 1e-3 < found / least <= 1.03


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


# --- both adjacencies of a sum of clients -----------------------------------------------------------------

ZEROED, OUTSIDE = replace(SECURE_SUM, adjacency="zero-out"), Threat("client", "zero-out", "trusted-server")


def other(event: Event) -> Event | None:
    return event.at_other_adjacency()


BOTH = [(0.5, 0.235), (1.0, 0.469), (2.0, 0.929), (8.0, 3.547)]


@pytest.mark.parametrize(("replaced", "zeroed"), BOTH)
def test_a_gaussian_sums_epsilon_of_a_replaced_client_is_that_of_twice_the_distance(
    replaced: float, zeroed: float
) -> None:
    """By the closed form in both ways: mu of replace-one, and half of it."""
    multiplier = brentq(lambda m: gaussian_epsilon(1 / m, DELTA) - replaced, 0.1, 50)
    event = Gaussian(threat=SECURE_SUM, multiplier=multiplier * math.sqrt(3), count=1)  # type: ignore[operator]
    events = {0: [event] * 2, 1: [replace(event, multiplier=event.multiplier)] * 3}
    found = at_other_adjacency(events, DELTA, other)
    assert found is not None and found[0] == "zero-out" and found[1] == pytest.approx(zeroed, abs=6e-4)
    back = {
        0: [replace(event.at_other_adjacency(), threat=Threat("client", "add-or-remove-one", "trusted-server"))] * 3
    }
    again = at_other_adjacency(back, DELTA, other)
    assert again is not None and again[0] == "replace-one" and again[1] == pytest.approx(replaced, rel=1e-9)


def test_of_each_mechanism_the_distance_is_halved_and_nothing_else() -> None:
    whole = DiscreteGaussianSum(threat=SECURE_SUM, sigma=30.0, noises=5, dimension=64, l2=61.0, count=2)
    skellam = SkellamSum(threat=SECURE_SUM, variance=900.0, noises=5, dimension=64, l2=61.0, delta=1e-9)
    for event in (whole, skellam):
        assert event.at_other_adjacency() == replace(event, threat=ZEROED, l2=30.5)
        bit = replace(event, dimension=1)  # beside a vector: from one end of its range to the other, either way
        assert bit.at_other_adjacency() == replace(bit, threat=ZEROED)
        assert replace(event, threat=ZEROED).at_other_adjacency() is None
    grid = BinomialGrid(dimension=60, clip_norm=0.5, levels=16, trials=10**5)
    binomial = grid.event(SECURE_SUM, 1e-9)
    half = grid.event(SECURE_SUM, 1e-9, clip_norm=0.25)
    found = binomial.at_other_adjacency()
    assert found is not None and found.threat == ZEROED
    for name in ("l1", "l2", "linf", "distance", "step", "trials", "dimension", "delta"):
        assert getattr(found, name) == pytest.approx(getattr(half, name), rel=1e-12)
    sampled = PoissonGaussian(threat=OUTSIDE, multiplier=1.4, sampling_rate=0.1, count=7)
    replaced = replace(OUTSIDE, adjacency="replace-one")
    assert sampled.at_other_adjacency() == ReplacedGaussian(threat=replaced, multiplier=0.7, sampling_rate=0.1, count=7)
    rows = Threat("example", "add-or-remove-one", "secure-sum")
    assert replace(sampled, threat=rows).at_other_adjacency() is None
    assert at_other_adjacency({0: [replace(whole, threat=rows)]}, DELTA, lambda event: event) is None
    assert at_other_adjacency({0: [replace(whole, threat=CLIENT_TO_SERVER)]}, DELTA, lambda event: event) is None
    assert (
        at_other_adjacency({0: [whole], 1: [RandomisedResponse(threat=SECURE_SUM, epsilon=1.0)]}, DELTA, other) is None
    )


@pytest.mark.parametrize("law", ["gaussian", "skellam"])
def test_a_vector_becomes_zero_by_half_of_what_replaces_it(law: Law) -> None:
    """Through the grid's own rounding: longest vectors, in the directions that rounding likes."""
    grid, rng = SumGrid(law, 200, 5, 16, 0.0, ()), np.random.default_rng(0)
    event = SumGrid(law, 200, 5, 16, 2.0, ()).event(SECURE_SUM, 5, 1e-9)
    signs, longest = torch.ones(grid.padded, dtype=torch.float64), 0.0
    zero = grid.whole_numbers(torch.zeros(200, dtype=torch.float64), [], signs, SeededNoise(0))
    assert not zero.any()
    for trial in range(50):
        vector = torch.from_numpy(rng.normal(size=200) if trial % 2 else np.eye(200)[trial])
        vector = vector / torch.linalg.vector_norm(vector)
        numbers = grid.whole_numbers(vector, [], signs, SeededNoise(trial)).double()
        longest = max(longest, float(torch.linalg.vector_norm(numbers)))
    assert longest <= math.sqrt(grid.most_square)
    assert longest > 0.97 * math.sqrt(grid.most_square)
    half = event.at_other_adjacency()
    assert half is not None and half.l2 == pytest.approx(event.l2 / 2)


def test_a_replaced_clients_epsilon_is_above_the_exact_law_and_that_of_its_absence_is_not() -> None:
    """Five discrete Gaussians in a sum, one coordinate: from -C to C, and from C to nothing."""
    event = DiscreteGaussianSum(threat=SECURE_SUM, sigma=20.0, noises=5, dimension=1, l2=60.0)
    zeroed = replace(event, threat=ZEROED, l2=30.0)
    law = np.exp(gaussian_sum(20.0, 5))
    for moved, of in ((60, event), (30, zeroed)):
        epsilon = compose([of], DELTA).epsilon
        exact = np.maximum(law[:-moved] - math.exp(epsilon) * law[moved:], 0).sum() + law[-moved:].sum()
        assert 0.8 * DELTA < exact <= DELTA
    beyond = np.maximum(law[:-60] - math.exp(compose([zeroed], DELTA).epsilon) * law[60:], 0).sum()
    assert beyond > 100 * DELTA


# --- Fed-LDP and DP-FedAvg against whoever sees a round's sum only, and `privacy.target_observer` ------------------


SIZE = ("num_clients=6", "clients_per_round=6", "num_rounds=3", "model=linear")
FORMS = {
    "fedldp": ("strategy=fedldp", "strategy.client.noise_multiplier=3.0"),
    "dpfedavg": ("strategy=dpfedavg", "strategy.server.weighting=uniform", "strategy.client.noise_multiplier=3.0"),
}


def client_of(*options: str) -> Client:
    return make_client(compose_options([*SIZE, *options]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("replies", "colluders", "noises"), [(4, 0, 4), (5, 2, 3)])
def test_the_noises_that_nobody_knows_add_up(form: str, replies: int, colluders: int, noises: int) -> None:
    client = client_of(*FORMS[form], f"strategy.server.min_replies={replies}", f"strategy.client.colluders={colluders}")
    assert client.accounts() == (CLIENT_TO_SERVER, SECURE_SUM)
    own, in_sum = (charge.event for charge in client.all_charges())
    assert own == Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.5)
    assert in_sum == Gaussian(threat=SECURE_SUM, multiplier=math.sqrt(noises) * 1.5)
    # T rounds of a vector that moves by 2C under N(0, noises sigma^2 C^2): mu = 2 sqrt(T) / (sqrt(noises) sigma).
    planned = compose(client.planned_events(7, SECURE_SUM), DELTA).epsilon
    assert planned == approx(gaussian_epsilon(2 * math.sqrt(7) / (math.sqrt(noises) * 3.0), DELTA), rel=1e-6)
    assert client.planned_events(0, SECURE_SUM) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options",
    [
        ("strategy.server.min_replies=1",),
        ("strategy.server.min_replies=5", "strategy.client.colluders=4"),
        ("strategy.server.min_replies=5", "strategy.server.weighting=examples"),
    ],
    ids=str,
)
def test_a_client_with_its_own_noise_alone_has_the_servers_account(form: str, options: tuple[str, ...]) -> None:
    """By examples: a release of weight w among others of weight 0 has nobody else's noise."""
    client = client_of(*FORMS[form], *options)
    assert client.accounts() == (CLIENT_TO_SERVER,)
    (own,) = (charge.event for charge in client.all_charges())
    assert own == Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.5)
    chosen = ("privacy.target_epsilon=30", "privacy.target_observer=secure-sum")
    with pytest.raises(OptionError, match=r"a single unknown noise .* strategy\.server\.min_replies"):
        with_target(compose_options([*SIZE, *FORMS[form][:-1], *options, *chosen]))


def test_a_rule_on_sums_is_priced_in_the_sum_and_one_on_single_clients_one_by_one() -> None:
    four = "strategy.server.min_replies=4"
    bits = client_of(*FORMS["fedldp"], "strategy.server.clipping=quantile", "strategy.client.count_noise=2.0", four)
    update = Gaussian(threat=SECURE_SUM, multiplier=3.0, count=2)
    assert bits.planned_events(2, SECURE_SUM) == [update, Gaussian(threat=SECURE_SUM, multiplier=4.0, count=2)]
    norms = client_of(*FORMS["fedldp"], "strategy.server.clipping=adp", "strategy.client.norm_noise=2.0", four)
    assert norms.planned_events(2, SECURE_SUM) == [update, Gaussian(threat=SECURE_SUM, multiplier=2.0, count=2)]


def test_with_its_own_noise_the_bit_takes_a_tenth_of_the_budget_in_the_sum_as_alone() -> None:
    client = client_of(*FORMS["fedldp"], "strategy.server.clipping=quantile", "strategy.server.min_replies=4")
    for threat in (CLIENT_TO_SERVER, SECURE_SUM):
        update, bit = (event.multiplier**-2 for event in client.planned_events(1, threat))  # type: ignore[attr-defined]
        assert 0.08 < bit / (update + bit) <= 0.1


def test_the_sum_of_real_bits_keeps_to_its_account() -> None:
    """Four clients' own statistics, of which one update lies within C in one world and beyond it in the other."""
    options = ("strategy.server.clipping=quantile", "strategy.client.count_noise=0.5", "strategy.server.min_replies=4")
    client = client_of(*FORMS["fedldp"], *options)
    assert isinstance(client, GaussianClient)

    def sums(world: int, trials: int, seed: int) -> np.ndarray:
        total = torch.zeros(trials)
        for member in range(4):
            length = (0.5, 3.0)[world] if member == 0 else 0.7
            update = torch.zeros(trials, 2)
            update[:, 0] = length
            total += client.measure(update, None, SeededNoise(seed, int(world), member, "bits")).statistics[CLIP_BIT]
        return total[:, None].numpy()

    (event,) = client.statistic.events_in_sum(4)
    verified = compose([event], DELTA).epsilon
    found = audit(sums, delta=DELTA, trials=200_000, confidence=0.999, seed=1).epsilon_lower
    assert 0.3 * verified < found <= verified < compose(client.statistic.events(SECURE_SUM), DELTA).epsilon


@pytest.mark.parametrize("form", FORMS)
def test_the_sum_of_real_releases_keeps_to_its_account(form: str) -> None:
    """The sum of four clients' own release code, one client's update C or -C: its law is the account's, and an audit
    finds no more than is verified, and most of it.
    """
    client = client_of(*FORMS[form], "strategy.server.min_replies=4")

    def sums(world: int, trials: int, seed: int) -> np.ndarray:
        total = torch.zeros(trials, 2)
        for member in range(4):  # the others' updates are what they are, in both worlds
            length = (1.0, -1.0)[world] if member == 0 else 0.5
            noise = SeededNoise(seed, int(world), member, form)
            total += client.audit_release(length, None, (trials, 2), noise).value
        return total.numpy()

    first, second = sums(0, 100_000, 7), sums(1, 100_000, 7)
    assert (first - second).mean(axis=0) == approx([2 / math.sqrt(2)] * 2, abs=0.1)  # 2 C on all axes alike, C = 1
    assert first.std(axis=0) == approx([6.0, 6.0], rel=0.02)  # sqrt(4) sigma
    verified = compose(client.planned_events(1, SECURE_SUM), DELTA).epsilon
    alone = compose(client.planned_events(1, CLIENT_TO_SERVER), DELTA).epsilon
    found = audit(sums, delta=DELTA, trials=200_000, confidence=0.999, seed=1).epsilon_lower
    assert 0.3 * verified < found <= verified < alone


# --- the option ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ("strategy=fedldp",),
        ("strategy=fedldp", "strategy.server.clipping=adp"),
        ("strategy=dpfedavg", "strategy.server.weighting=uniform"),
        ("strategy=cpsgd",),
        ("strategy=adpfl", "model=mlp"),
    ],
    ids=str,
)
def test_the_target_is_met_for_the_observer_named(options: tuple[str, ...], run: Run) -> None:
    """By the plan, and the same by the finished run's ledger; against the server it costs more than that."""
    chosen = ("privacy.target_epsilon=30", "privacy.target_observer=secure-sum", "strategy.server.min_replies=6")
    given = (*SIZE, *options, *chosen, "evaluate.every=0")
    config, _, plan = resolve(compose_options([*given, "engine=inprocess"]), None)
    (elsewhere,) = plan_elsewhere(config)
    assert elsewhere.threat == SECURE_SUM and 29.6 <= elsewhere.verified_epsilon <= 30 < plan.verified_epsilon
    summary = json.loads((run(*given) / "summary.json").read_text())
    (other,) = summary["privacy"]["others"]
    assert other["observer"] == "secure-sum" and other["verified_epsilon"] == approx(elsewhere.verified_epsilon)
    assert summary["privacy"]["verified_epsilon"] == approx(plan.verified_epsilon)


def test_the_methods_own_observer_is_what_null_means() -> None:
    own = with_target(compose_options([*SIZE, "strategy=fedcad", "privacy.target_epsilon=30"]))
    named = with_target(
        compose_options([*SIZE, "strategy=fedcad", "privacy.target_epsilon=30", "privacy.target_observer=server"])
    )
    assert own.strategy == named.strategy


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("strategy=fedcad",), "fedcad has an account for server: a client reuses the noise of its own last release"),
        (("strategy=fedags",), "fedags has an account for server"),
        (("strategy=dpsgd",), "dpsgd has an account for server"),
        (
            ("strategy=dpfedavg", "strategy.client.form=central", "strategy.server.client_sampling=poisson"),
            "dpfedavg has an account for trusted-server",
        ),
    ],
)
def test_an_observer_without_an_account_is_refused(options: tuple[str, ...], words: str) -> None:
    chosen = ("privacy.target_epsilon=30", "privacy.target_observer=secure-sum")
    with pytest.raises(OptionError) as error:
        with_target(compose_options([*SIZE, *options, *chosen]))
    assert error.value.option == "privacy.target_observer" and words in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("privacy.target_observer=secure-sum",),
            "privacy.target_observer=secure-sum: requires privacy.target_epsilon",
        ),
        (("privacy.target_epsilon=3", "privacy.target_observer=nobody"), "privacy.target_observer=nobody: allowed"),
        (("strategy=fedldp", "strategy.client.weighting=some"), "weighting=some: allowed: uniform or examples"),
        (("strategy=fedldp", "strategy.client.colluders=1"), "must be less than strategy.server.min_replies=1"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: tuple[str, ...], words: str) -> None:
    with pytest.raises(OptionError) as error:
        compose_options(list(options))
    assert words in str(error.value)


def test_a_plan_shows_every_observer(cli: Callable[..., Outcome]) -> None:
    said = cli("plan=true", *SIZE, *FORMS["fedldp"], "strategy.server.min_replies=4")
    assert said.code == 0 and "and against secure-sum" in said.out, said.err


def test_the_folder_says_who_added_up(run: Run) -> None:
    folder: Path = run("strategy=fedldp", "strategy.server.min_replies=2", "num_rounds=1")
    assert "Secure summation is assumed: nothing in this run" in page_of(folder)
    folder = run("strategy=ddgauss", "strategy.server.min_replies=2", "num_rounds=1")
    assert "The secure sum is ideal: the server added whole numbers in plaintext" in page_of(folder)
    assert json.loads((folder / "summary.json").read_text())["privacy"]["secure_sum"] == "ideal"


def test_noises_of_other_sizes_hide_nobody() -> None:
    """Published with 2C/n_k every client's sigma is its own: a small client's times sqrt(K) would be no guarantee."""
    options = ("privacy.variant=published", "strategy.client.sensitivity=per_example", "strategy.server.min_replies=5")
    own = client_of("strategy=dpfedavg", "strategy.server.weighting=uniform", *options)
    assert own.accounts() == (CLIENT_TO_SERVER,)
    fixed = client_of(*FORMS["dpfedavg"], *options)  # one sigma for all, given
    assert fixed.accounts() == (CLIENT_TO_SERVER, SECURE_SUM)


@pytest.mark.parametrize("form", ["fedldp", "ddgauss", "central"])
def test_a_sum_of_clients_shows_both_adjacencies(form: str, run: Run) -> None:
    """In plan, summary, report and certificate: the closed forms of one noise at both distances."""
    options = {
        "fedldp": ("strategy=fedldp", "strategy.server.min_replies=2", "strategy.client.noise_multiplier=8"),
        "ddgauss": ("strategy=ddgauss", "strategy.server.min_replies=2", "strategy.client.noise_multiplier=8"),
        "central": (
            "strategy=dpfedavg", "strategy.client.form=central", "strategy.client.noise_multiplier=2",
            "strategy.server.client_sampling=poisson",
        ),
    }[form]  # fmt: skip
    folder: Path = run(*options, "num_rounds=2", "num_clients=2", "clients_per_round=2")
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    found = privacy["others"][0] if form == "fedldp" else privacy
    # std/C of a round's sum: sqrt(2) * 8, or 2; a replaced client moves it by 2C; two rounds
    mu = math.sqrt(2) / (2.0 if form == "central" else math.sqrt(2) * 8)
    ends = {"replace-one": gaussian_epsilon(2 * mu, 1e-5), "zero-out": gaussian_epsilon(mu, 1e-5)}
    ends["add-or-remove-one"] = ends["zero-out"]
    named = ("zero-out", "replace-one")[form == "central"]
    assert (found["adjacency"] == "replace-one") == (named == "zero-out") == (found["other_adjacency"] == "zero-out")
    assert found["verified_epsilon"] == pytest.approx(ends[found["adjacency"]], rel=0.02)
    assert found["other_epsilon"] == pytest.approx(ends[found["other_adjacency"]], rel=0.02)
    assert ("other_epsilon" in privacy) == (form != "fedldp")  # against the server there is no sum
    rows = plan_rows(read_config(folder))
    line = rows["and against secure-sum" if form == "fedldp" else "verified epsilon"]
    assert line.endswith(f"); {named} {found['other_epsilon']:.4g}")
    page = page_of(folder)
    assert f"verified, {named}" in page and f"{figure(found['other_epsilon'])}" in page
    said = [one for one in statement.of_run(folder)["assumptions"] if f"neighbours are {named}" in one]
    assert len(said) == 1 and f"{found['other_epsilon']:.4g}" in said[0]


def test_a_bit_beside_an_update_moves_as_far_where_the_update_becomes_zero() -> None:
    """One round of six noises: mu^2 of the update's half distance, and of the bit's whole range."""
    client = client_of("strategy=fedldp", "strategy.server.clipping=quantile", "strategy.server.min_replies=6")
    update, bit = (one.event for one in client.all_charges() if one.event.threat == SECURE_SUM)
    assert isinstance(update, Gaussian) and isinstance(bit, Gaussian) and update.multiplier != bit.multiplier
    found = at_other_adjacency({0: [update, bit]}, DELTA, client.at_other_adjacency)
    mu = math.hypot(1 / (2 * update.multiplier), 1 / bit.multiplier)
    assert found == ("zero-out", approx(gaussian_epsilon(mu, DELTA), rel=1e-9))
    assert at_other_adjacency({0: [replace(update, count=4)]}, DELTA, client.at_other_adjacency) == (
        "zero-out",
        approx(gaussian_epsilon(1 / update.multiplier, DELTA), rel=1e-9),
    )
