"""Figures that are computed: against the mechanism itself, closed forms, and brute force."""

from __future__ import annotations

import itertools
import math

import making
import numpy as np
import pytest
import torch
from scipy.stats import chi2

from clients.fedcad import FedCADClient
from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.studies import computations
from fedpriv.studies.computations import adaptive_diff, compute, exact_mean, least_correlation, main, worst_variance

SIGMA, DELTA, GAMMA = 0.3, 1e-5, 0.4


def third_releases(dimension: int, moves: bool, trials: int) -> np.ndarray:
    """y_3 - r_A y_2 of Fed-CAD's own client as published, [trials, d]; r_A: its coefficient on the line without change.
    The lines: 0, 0 or a step of D along the first axis, 0.
    """
    client = making.client(
        FedCADClient, variant="published", noise_multiplier=SIGMA, obsolete_factor=GAMMA, diff=0.5, clip_norm=1.0
    )
    step = torch.zeros(dimension)
    step[0] = 0.5 * moves
    found = []
    for trial in range(trials):
        noise = SeededNoise(trial, int(moves), "third release")
        state, releases = None, []
        for update in (torch.zeros(dimension), step, torch.zeros(dimension)):
            release = client.perturb(update, state, noise)
            state = release.state
            releases.append(release.value.numpy().astype(np.float64))
        found.append(releases)
    values = np.array(found)
    r_a = 0.7 / (0.7**2 + 0.8)  # v_2 = 0.8 and D = 0.3
    return np.asarray(values[:, 2] - r_a * values[:, 1])


def test_the_adaptive_diff_shows_in_the_noise_of_the_mechanism() -> None:
    """The statistic of the proof on real releases: its variance per coordinate on each line, and who is above t."""
    dimension, trials = 2_000, 60
    still, moved = (third_releases(dimension, moves, trials)[:, 1:] for moves in (False, True))
    bound = adaptive_diff(dimension, SIGMA, DELTA, 0.5, GAMMA)
    ratio = still.var() / moved.var()
    assert ratio == pytest.approx(bound["variance_ratio"], rel=0.02)
    assert still.std() == pytest.approx(bound["noise"], rel=0.01)
    wide = bound["noise"] ** 2 / bound["variance_ratio"]
    t = wide * (dimension - 4 * math.sqrt(2 * dimension))
    assert (np.square(moved).sum(1) > 0.99 * t).all() and not (np.square(still).sum(1) > t).any()


def test_the_bound_is_one() -> None:
    """Chernoff's bound lies above the exact tail where that is a number, and the bound grows with the coordinates; at
    the size of a network it is far above Fed-LDP's 257.
    """
    for dimension in (50, 400, 1500):
        found = adaptive_diff(dimension, SIGMA, DELTA, 0.5, GAMMA)
        edge = dimension - 4 * math.sqrt(2 * dimension)
        exact = math.log(chi2.sf(edge, dimension) - DELTA) - chi2.logsf(edge / found["variance_ratio"], dimension)
        assert found["epsilon_lower"] <= max(exact, 0.0) + 1e-9
    assert adaptive_diff(80_202, SIGMA, DELTA, 0.5, GAMMA)["epsilon_lower"] == pytest.approx(3635, abs=1)
    assert adaptive_diff(80_202, SIGMA, DELTA, 0.5, 0.0)["epsilon_lower"] == 0.0  # constant: both lines are alike


@pytest.mark.parametrize("clients", [2, 3, 4])
def test_the_linear_programme_finds_the_least(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least is known in closed form: as many are high as the sum of the chances says, rounded down or up."""
    least: list[tuple[float, float]] = []
    real = computations.linprog

    def spy(cost: np.ndarray, **rest: np.ndarray) -> object:
        found = real(cost, **rest)
        total = sum(rest["b_eq"][:-1])
        low = math.floor(total + 1e-9)
        part = max(total - low, 0.0)
        least.append((found.fun, (1 - part) * math.comb(low, 2) + part * math.comb(low + 1, 2)))
        return found

    monkeypatch.setattr(computations, "linprog", spy)
    found = least_correlation(clients, 1.0, 8)
    assert len(least) == math.comb(5 + clients - 1, clients)
    assert all(one == pytest.approx(other, abs=1e-7) for one, other in least)
    assert (found["pairs_excess"] < 1e-9) is (clients == 2) and found["group_excess"] > 0.1


def test_independent_answers_are_not_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    products = lambda p, bits: sum(a * b for a, b in itertools.combinations(p, 2))  # noqa: E731
    monkeypatch.setattr(computations, "_paired", products)
    assert least_correlation(2, 1.0, 8)["pairs_excess"] > 0.5


@pytest.mark.parametrize("epsilon", [0.25, 1.0, math.log(3), 2.0, 4.0])
def test_the_worst_variance_of_a_pair(epsilon: float) -> None:
    """Half of the independent one from ln 3 on, 4 (e^eps - 1) / (e^eps + 1)^2 of it below."""
    power = math.exp(epsilon)
    expected = 0.5 if epsilon >= math.log(3) else 4 * (power - 1) / (power + 1) ** 2
    assert worst_variance(epsilon)["ratio"] == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("bits", [0, 1, 4, 8])
def test_a_pair_is_unbiased_for_any_number_of_shared_bits(bits: int) -> None:
    found = exact_mean(1.0, bits)
    assert found["bias"] < 1e-12 and found["lemma_excess"] <= 1 + 1e-9


def test_a_computation_by_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what=worst_variance", "epsilon=4"]) == 0
    assert "ratio = 0.49999" in capsys.readouterr().out
    for wrong, words in (
        (["what=nothing"], "what=nothing: allowed: adaptive_diff, least_correlation"),
        (["what=exact_mean", "epsilon=1"], "needs epsilon, bits"),
        (["what=worst_variance", "epsilon=x"], "could not convert"),
    ):
        with pytest.raises(OptionError, match=words):
            compute(wrong)
    assert main(["what=nothing"]) == 2
