"""dpftrl with one secret round of each pass, the same in all: its cohorts, and its price against exact laws."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from conftest import Run, ledger_of, summary_of

from fedpriv.common.cohorts import cohort_of
from fedpriv.config.compose import compose
from fedpriv.mechanisms.matrix_factors import coefficients, overlaps
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import Gaussian
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.privacy.secret_cohorts import TO_OUTSIDERS, binned_events
from fedpriv.server.round import Population
from strategies.dpftrl import DPFTRL

BALLS = (
    *("strategy=dpftrl", "strategy.server.client_sampling=balls", "num_clients=12", "clients_per_round=3"),
    *("num_rounds=8", "strategy.client.noise_multiplier=1.0"),
)
#: (factor, bandwidth, T, b)
CASES: list[tuple[Any, Any, int, int]] = [
    ("identity", None, 6, 3),
    ("banded", 2, 6, 3),
    ("banded", 4, 8, 4),
    ("bisr", 2, 6, 2),
    ("sqrt", None, 4, 4),
    ("blt", None, 9, 3),
    ("banded", 2, 2, 5),  # the run ends within the first pass
]


def bins(name: Any, bandwidth: Any, rounds: int, apart: int) -> np.ndarray:
    """m_j [b, T], entry by entry; without a round for bins beyond the last one."""
    c = coefficients(name, rounds, -(-rounds // apart), apart, bandwidth)
    found = np.zeros((apart, rounds))
    for j, i, t in itertools.product(range(apart), range(rounds), range(rounds)):
        if i % apart == j and 0 <= t - i < len(c):
            found[j, t] += c[t - i]
    return found


def exact_delta(moved: np.ndarray, epsilon: float, swapped: bool, draws: int = 400_000) -> tuple[float, float]:
    """(E_Q of the hockey stick of the mixture over rows of ``moved`` against N(0, I), its standard error); by draws
    from the side that has the mass, with the exact density ratio.
    """
    rng = np.random.default_rng(1)
    z = rng.standard_normal((draws, moved.shape[1]))
    if not swapped:  # from the mixture: delta = E_P (1 - e^eps / L)_+
        z += moved[rng.integers(0, len(moved), draws)]
    ratio = np.exp(z @ moved.T - (moved**2).sum(1) / 2).mean(1)
    values = np.maximum(0, 1 - math.exp(epsilon) * (ratio if swapped else 1 / ratio))
    return float(values.mean()), float(values.std() / math.sqrt(draws))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_are_those_of_the_matrices(case: Any) -> None:
    moved = bins(*case)
    name, bandwidth, rounds, apart = case
    most = -(-rounds // apart)
    products = moved @ moved.T
    whole, shared = overlaps(coefficients(name, rounds, most, apart, bandwidth), rounds, most, apart)
    assert whole == pytest.approx(products.diagonal().max(), rel=1e-12)
    off = products - np.diag(products.diagonal())
    assert shared == pytest.approx(off[: min(apart, rounds), : min(apart, rounds)].max(), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("swapped", [False, True], ids=["with", "without"])
@pytest.mark.parametrize("sigma", [0.7, 2.0])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_price_is_above_the_exact_law_in_both_directions(case: Any, sigma: float, swapped: bool) -> None:
    """At the epsilon that is charged for a delta, the exact one is smaller: five standard errors are left."""
    name, bandwidth, rounds, apart = case
    events = binned_events(name, rounds, -(-rounds // apart), apart, sigma, bandwidth, 3)
    moved = bins(*case)
    moved /= sigma * math.sqrt((moved**2).sum(1).max())
    for delta in (1e-1, 1e-2, 1e-3):
        epsilon = compose_events(list(events), delta).epsilon
        found, error = exact_delta(moved, epsilon, swapped)
        assert found <= delta + 5 * error
    if name == "identity" and not swapped:  # then it is exact
        epsilon = compose_events(list(events), 1e-2).epsilon
        found, error = exact_delta(moved, epsilon * 0.97, swapped)
        assert found > 1e-2 - 5 * error


@pytest.mark.parametrize("seed", range(4))
def test_vectors_that_follow_earlier_rows_move_it_no_further(seed: int) -> None:
    """A client whose contributions of length 1 in two dimensions turn by what was released before; two bins, two
    passes, a band of two: the exact ratio along each path, against the price.
    """
    rng, draws, sigma, rounds, apart = np.random.default_rng(seed), 200_000, 1.0, 4, 2
    c = np.array([1.0, 0.5])
    turn = rng.normal(size=(rounds, rounds, 2)) * 2
    scale = sigma * math.sqrt(overlaps((1.0, 0.5), rounds, 2, apart)[0])

    def angle(t: int, rows: list[np.ndarray]) -> np.ndarray:
        return turn[t, 0, 0] + sum((row @ turn[t, s] for s, row in enumerate(rows)), np.zeros(draws))

    own = rng.integers(0, apart, draws)
    rows: list[np.ndarray] = []
    given: list[np.ndarray] = []
    logs = np.zeros((apart, draws))
    for t in range(rounds):
        turned = angle(t, rows)
        given.append(np.stack([np.cos(turned), np.sin(turned)], 1))
        moves = np.zeros((apart, draws, 2))
        for j in range(apart):
            for back in range(len(c)):
                if t - back >= 0 and (t - back) % apart == j:
                    moves[j] += c[back] * given[t - back] / scale
        row = rng.standard_normal((draws, 2)) + moves[own, np.arange(draws)]
        for j in range(apart):
            logs[j] += (row * moves[j]).sum(1) - (moves[j] ** 2).sum(1) / 2
        rows.append(row)
    ratio = np.exp(logs).mean(0)
    events = binned_events("banded", rounds, 2, apart, sigma, 2, 3)
    for delta in (1e-1, 1e-2, 1e-3):
        epsilon = compose_events(list(events), delta).epsilon
        values = np.maximum(0, 1 - math.exp(epsilon) / ratio)
        assert values.mean() <= delta + 5 * values.std() / math.sqrt(draws)


def test_it_amplifies_and_never_costs_more_than_known_rounds() -> None:
    for name, bandwidth, rounds, apart in CASES:
        events = binned_events(name, rounds, -(-rounds // apart), apart, 1.0, bandwidth, 3)
        assert compose_events(list(events), 1e-5).epsilon < gaussian_epsilon(1.0, 1e-5) * 1.001
    independent = binned_events("identity", 20, 2, 10, 1.0, None, 3)
    assert compose_events(list(independent), 1e-5).epsilon < 0.6 * gaussian_epsilon(1.0, 1e-5)
    assert binned_events("identity", 5, 5, 1, 1.0, None, 3) == (Gaussian(threat=TO_OUTSIDERS, multiplier=1.0),)


def test_every_client_has_one_place_of_its_own_in_all_passes() -> None:
    seen = [cohort_of(seed, number, 12, 3, "balls", "cyclic") for seed in (1,) for number in range(1, 13)]
    assert sorted(client for cohort in seen[:4] for client in cohort) == list(range(12))
    assert seen[:4] == seen[4:8] == seen[8:]
    assert len({tuple(cohort_of(seed, 1, 12, 3, "balls", "cyclic")) for seed in range(20)}) > 15
    firsts = np.mean([0 in cohort_of(seed, 1, 12, 3, "balls", "cyclic") for seed in range(2000)])
    assert abs(firsts - 1 / 4) < 5 * math.sqrt(3 / 16 / 2000)


def test_a_run_is_paid_with_its_first_round(run: Run) -> None:
    folder = run(*BALLS, "strategy.client.bandwidth=2")
    assert [(entry["round"], entry["mechanism"]) for entry in ledger_of(folder)] == [
        (1, "allocated_gaussian"),
        (1, "gaussian"),
    ]
    privacy, known = summary_of(folder)["privacy"], summary_of(run(*BALLS, "strategy.server.client_sampling=fixed"))
    assert 0 < privacy["verified_epsilon"] < known["privacy"]["verified_epsilon"]
    assert privacy["claimed_epsilon"] is None


def test_a_second_draw_is_charged_for_rounds_in_two_places() -> None:
    """By brute force: rows after the checkpoint, of one place before it and another after it."""
    options = compose([*BALLS, "strategy.client.bandwidth=2"]).strategy.options
    made = DPFTRL(Population(7, 12, 3, lambda client: 10, attempt=5), options)
    (event,) = made.price()
    assert event == Gaussian(threat=TO_OUTSIDERS, multiplier=0.5)
    moved, most = bins("banded", 2, 8, 4), 0.0
    c = np.array([1.0, 0.5])
    for start, old, new in itertools.product(range(1, 8), range(4), range(4)):
        there = [i % 4 == (old if i < start else new) for i in range(8)]
        rows = np.convolve(np.array(there, float), c)[:8]
        most = max(most, float(np.linalg.norm(rows[start:])))
    assert most <= 2 * math.sqrt((moved**2).sum(1).max())
