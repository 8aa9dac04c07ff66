"""The account of binomial noise against exact laws: of one coordinate, of small vectors, of the sum that tells most."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace
from typing import Any

import making
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from clients.cpsgd import CpSGDClient
from fedpriv.client.contract import PublicFacts
from fedpriv.mechanisms import laws
from fedpriv.privacy import events
from fedpriv.privacy.composition import ORDERS, Budget, compose, release_epsilon, renyi_curve
from fedpriv.privacy.integer_laws import binomial_curvature, binomial_renyi, binomial_window, rounded_square
from fedpriv.privacy.sum_grid import BinomialGrid, delta_share

DELTA = 1e-5


def client(**options: Any) -> CpSGDClient:
    facts = PublicFacts(600, 100, 128, 20, options.pop("rounds", 1), 80_202, 100)
    common = {"epsilon": 20.0, "claimed_delta": DELTA, "clip_norm": 1.0, "facts": facts, "levels": 1024}
    return making.client(CpSGDClient, **common | options)


def shifted_delta(trials: int, shift: int, epsilon: float) -> float:
    """delta at epsilon of Z + shift against Z, Z ~ Binomial(trials, 1/2): the likelihood ratio is monotone, so the
    worst set lies beyond a threshold; the best of many is a lower bound for the exact one, and close.
    """
    sd = math.sqrt(trials) / 2
    middle = trials / 2 + sd * (epsilon * sd / shift + shift / sd / 2)
    places = np.floor(middle + sd * np.linspace(-2, 2, 401))
    with np.errstate(divide="ignore"):
        beyond = epsilon + stats.binom.logsf(places, trials, 0.5)
    return float((stats.binom.sf(places - shift, trials, 0.5) - np.exp(np.minimum(beyond, 1.0))).max())


def worst_delta(cpsgd: CpSGDClient, epsilon: float, releases: int = 1, clients: int = 1) -> float:
    """Of the signed sum of all numbers of a vector of norm C that lies on levels, against its negative."""
    many, offset = cpsgd.widest()
    return shifted_delta(clients * releases * many * cpsgd.grid.trials, releases * round(2 * many * offset), epsilon)


# --- at large epsilon ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "trials", "theorem", "exact"),
    [
        (1024, 1_013_000_000, 20.0, 24.1),
        (1024, 254_100_000, 40.0, 64.7),
        (1024, 63_950_000, 80.0, 192.0),
        (64, 1_242_000, 40.0, 41.3),
        (64, 337_300, 80.0, 109.9),
    ],
)
def test_what_is_verified_covers_the_sum_where_theorem_1_does_not(
    levels: int, trials: int, theorem: float, exact: float
):
    """d = 80,202, one release: the theorem at half of delta, as printed, against an exact shifted binomial."""
    cpsgd = client(levels=levels, trials=trials)
    grid = cpsgd.grid
    printed = laws.binomial_epsilon(grid.step, trials, grid.padded, *grid.sensitivities(), DELTA / 2)
    assert printed == pytest.approx(theorem, rel=1e-3)
    assert worst_delta(cpsgd, printed) > 1.5 * DELTA
    assert worst_delta(cpsgd, 0.99 * exact) > DELTA
    verified = compose(cpsgd.planned_events(1), DELTA).epsilon
    assert worst_delta(cpsgd, verified) <= DELTA and verified > exact
    if levels == 1024:
        assert verified < 1.1 * exact  # and is not far


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 40.0, 80.0, 500.0])
@pytest.mark.parametrize("levels", [2, 16, 64, 1024])
def test_the_repaired_noise_keeps_its_round(levels: int, epsilon: float):
    started = time.process_time()
    cpsgd = client(levels=levels, epsilon=epsilon, rounds=20)
    assert time.process_time() - started < 5
    assert release_epsilon(cpsgd.planned_events(1)[0], DELTA) <= epsilon
    assert worst_delta(cpsgd, epsilon) <= DELTA


@pytest.mark.parametrize("releases", [1, 20, 300])
def test_rounds_and_a_secure_sum_compose(releases: int):
    cpsgd = client(trials=10**10, rounds=releases, min_replies=9, colluders=1)
    own, together = (replace(charge.event, count=releases) for charge in cpsgd.charges(None))
    for event, clients in ((own, 1), (together, 8)):
        total = compose([event], DELTA).epsilon
        assert (
            worst_delta(cpsgd, total, releases, clients) <= DELTA < worst_delta(cpsgd, 0.85 * total, releases, clients)
        )


def test_a_budget_counts_on_the_same_bound():
    cpsgd = client(trials=254_093_076)
    release = cpsgd.planned_events(1)
    need = compose(release, DELTA).epsilon
    assert not Budget(40.0, DELTA).admits([], release) and not Budget(0.99 * need, DELTA).admits([], release)
    assert Budget(1.05 * need, DELTA).admits([], release)


# --- one coordinate, exactly -----------------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [20, 51, 300, 4001])
def test_one_coordinates_moments_stay_below_the_bound(trials: int):
    """Every order, every shift, inside the window: the sum of P^alpha Q^(1-alpha) against the proof's bound."""
    law = stats.binom.logpmf(np.arange(trials + 1), trials, 0.5)
    orders = ORDERS[ORDERS < 300]
    closest, tried = 0.0, 0
    for delta, shift in itertools.product((0.3, 1e-2, 1e-5, 1e-9), (1, 2, 3, 5, 10, 30, 100)):
        bound = binomial_renyi(trials, 1, shift, shift, math.inf, delta, orders)
        if np.isinf(bound).any():
            continue
        window = binomial_window(trials, 1, delta)
        inside = np.flatnonzero(np.abs(np.arange(trials + 1) - trials / 2) <= window)
        assert 1 - np.exp(law[inside]).sum() <= delta
        terms = orders[:, None] * law[inside] + (1 - orders[:, None]) * law[inside + shift]
        ratio = logsumexp(terms, axis=1) / ((orders - 1) * bound)
        closest, tried = max(closest, float(ratio.max())), tried + 1
    assert tried > 2 and closest <= 1
    assert closest > {20: 0.4, 51: 0.6, 300: 0.9, 4001: 0.98}[trials]  # a factor forgotten would show


def test_the_curvature_is_that_of_the_law():
    for trials, reach in ((40, 9.0), (41, 9.5), (1000, 100.0)):
        place = trials / 2 + reach
        logs = stats.binom.logpmf([place - 1, place, place + 1], trials, 0.5)
        second, steepest = 2 * logs[1] - logs[0] - logs[2], logs[1] - logs[2]
        assert binomial_curvature(trials, reach) == pytest.approx(second * math.cosh(steepest / 2), rel=1e-9)
    assert binomial_curvature(10**12, 1.0) == pytest.approx(4e-12, rel=1e-6)  # the Gaussian's 1/variance
    assert math.isinf(binomial_curvature(20, 9.5))


def test_too_few_trials_or_no_grid_have_no_bound():
    event = BinomialGrid(200, 1.0, 16, 1000).event(events.CLIENT_TO_SERVER, 1e-7)
    assert math.isfinite(compose([event], DELTA).epsilon)
    for without in (replace(event, trials=0), replace(event, trials=50), replace(event, step=0.0)):
        found = compose([without], DELTA)
        words = "no noise is added" if without.trials == 0 else "does not hold for so few trials"
        assert math.isinf(found.epsilon) and words in found.reasons[0]


# --- rounding --------------------------------------------------------------------------------------------------


def test_rounding_costs_no_more_than_its_square():
    random = np.random.default_rng(5)
    for _ in range(3000):
        dimension = int(random.integers(1, 40))
        apart = random.exponential(random.choice([0.02, 0.3, 1.0, 4.0]), dimension)
        whole = np.floor(apart)
        square = (whole**2 + (apart - whole) * (2 * whole + 1)).sum()
        assert square <= rounded_square(float(np.linalg.norm(apart)), dimension) * (1 + 1e-12)
    assert rounded_square(0.3 * math.sqrt(7), 7) == pytest.approx(7 * 0.3)  # equal parts below 1/2: as far as it goes
    assert rounded_square(2.5 * math.sqrt(7), 7) == pytest.approx(7 * (4 + 0.5 * 5))


@pytest.mark.parametrize(("levels", "trials"), [(2, 600), (3, 600), (5, 200), (9, 700)])
def test_small_vectors_rounded_and_noised_keep_their_epsilon(levels: int, trials: int):
    """The exact joint law of two coordinates, every level and every number of successes, for vectors of norm C."""
    grid, delta = BinomialGrid(2, 1.0, levels, trials), 1e-3
    event = grid.event(events.CLIENT_TO_SERVER, 1e-5)
    verified = compose([event], delta).epsilon
    noise = stats.binom.pmf(np.arange(trials + 1), trials, 0.5)

    def law(value: float) -> np.ndarray:
        place = (min(max(value, -grid.bound), grid.bound) + grid.bound) / grid.step
        low = min(math.floor(place), levels - 2)
        weights = np.zeros(levels)
        weights[low], weights[low + 1] = low + 1 - place, place - low
        return np.convolve(weights, noise)

    def spent(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
        one, other = (np.outer(law(a), law(b)) for a, b in (first, second))
        return float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum())

    random, worst = np.random.default_rng(levels), 0.0
    for angle in [0.0, math.pi / 4, *random.uniform(0, math.pi, 30)]:
        end = np.array([math.cos(angle), math.sin(angle)])
        other = -end if angle < 1 else random.uniform(-0.7, 0.7, 2)
        assert spent(end, other, verified) <= delta
        worst = max(worst, spent(end, other, 0.4 * verified))
    assert worst > delta  # no idle bound


# --- ledgers ---------------------------------------------------------------------------------------------------


def test_a_line_without_a_distance_is_read_and_costs_no_less():
    event = BinomialGrid(200, 1.0, 16, 10_000).event(events.CLIENT_TO_SERVER, delta_share(DELTA, 10))
    line = {
        "round": 1,
        "client": 0,
        "sequence": 0,
        "attempt": 0,
        "mechanism": "binomial",
        "count": 1,
        "step": event.step,
    }
    line |= {
        "trials": 10_000,
        "dimension": 256,
        "l1": event.l1,
        "l2": event.l2,
        "linf": event.linf,
        "delta": event.delta,
    }
    line |= {"unit": "client", "adjacency": "replace-one", "observer": "server"}
    old = events.entry_from_json(line).event
    assert isinstance(old, events.Binomial) and math.isinf(old.distance)
    assert compose([event], DELTA).epsilon < compose([old], DELTA).epsilon < math.inf
    assert events.entry_from_json(events.entry_to_json(events.entry_from_json(line))).event == old
    assert events.event_from_json(events.event_to_json(event)) == event


def test_a_release_may_use_up_all_of_delta_by_itself():
    event = BinomialGrid(200, 1.0, 16, 10_000).event(events.CLIENT_TO_SERVER, DELTA)
    assert compose([event], DELTA).accountant == "basic"
    assert release_epsilon(replace(event, delta=DELTA / 100), DELTA) < compose([event], DELTA).epsilon < math.inf
    assert (np.diff(renyi_curve(event)[ORDERS < 100]) >= 0).all()
