"""DP-FedEXP: the step by hand, what its second release costs, and that neither form sees D without noise."""

from __future__ import annotations

import math
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import Run, ledger_of, summary_of
from scipy.stats import norm

from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError
from fedpriv.common.replies import Reply
from fedpriv.config.compose import compose
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.mechanisms.trusted_sums import NUMBERS, split_for_number, square
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import CLIENT_TO_SERVER, Gaussian
from fedpriv.runs.planning import with_target
from fedpriv.server.round import Population, Round
from strategies.dpfedexp import DPFedEXP

CENTRAL = (
    *("strategy=dpfedexp", "strategy.client.form=central", "strategy.server.client_sampling=poisson"),
    *("num_clients=20", "clients_per_round=5", "num_rounds=3"),
)
DIMENSION = 40


class Told(DPFedEXP):
    """Keeps the D and the m that the step is made of."""

    def extrapolate(self, square: float, mean: np.ndarray) -> None:
        super().extrapolate(square, mean)
        self.told = square, mean


def server(seed: int = 3, clients: int = 20, size: int = 5, **changes: Any) -> Told:
    given = {"form": "central", "noise_multiplier": 2.0, "clip_norm": 1.0, "learning_rate": 0.5, "norm_share": 0.1}
    if changes.get("form") != "local":
        given["client_sampling"] = "poisson"
    made = making.server(Told, Population(seed, clients, size, lambda client: 10), **given | changes)
    made.current = Round(1, np.zeros(DIMENSION, np.float32))
    return made


def replies(*vectors: np.ndarray) -> list[Reply]:
    return [Reply(client, vector.astype(np.float32), 10, {}, 0) for client, vector in enumerate(vectors)]


def axis(place: int, length: float = 1.0) -> np.ndarray:
    return np.eye(DIMENSION)[place] * length


def silent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SeededNoise, "normal", lambda self, shape, std=1.0: torch.zeros(shape))


@pytest.mark.parametrize("form", ["central", "local"])
def test_the_step_is_longer_by_how_far_gradients_point_apart(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of n gradients at right angles the mean of squares is n times the square of their mean, of equal ones once."""
    silent(monkeypatch)
    for vectors, longer in (([axis(k) for k in range(5)], 5.0), ([axis(0)] * 5, 1.0)):
        made = server(form=form, noise_multiplier=0.0 if form == "local" else 2.0)
        moved = made.aggregate(np.zeros(DIMENSION, np.float32), replies(*vectors))
        np.testing.assert_allclose(moved, -0.5 * longer * np.mean(vectors, 0), rtol=1e-5, atol=1e-7)
        assert made.current.figures["extrapolation"] == pytest.approx(longer, rel=1e-5)


def test_a_step_is_never_shorter_and_nothing_has_no_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    made = server(form="local", noise_multiplier=3.0)  # d sigma^2 is taken off: below zero here
    made.aggregate(np.zeros(DIMENSION, np.float32), replies(axis(0), axis(0)))
    assert made.current.figures["extrapolation"] == 1.0
    silent(monkeypatch)
    empty = server()
    assert not empty.aggregate(np.zeros(DIMENSION, np.float32), []).any()


def test_the_local_d_is_unbiased() -> None:
    """Mean of ||c_k||^2 - d sigma^2 over 2,000 releases of length 0.8: within five standard errors."""
    std, rng = 0.7, np.random.default_rng(1)
    made = server(form="local", noise_multiplier=std)
    noisy = axis(0, 0.8) + rng.normal(0, std, (2000, DIMENSION))
    made.aggregate(np.zeros(DIMENSION, np.float32), replies(*noisy))
    error = math.sqrt((2 * DIMENSION * std**4 + 4 * std**2 * 0.64) / 2000)
    assert abs(made.told[0] - 0.64) < 5 * error


@pytest.mark.parametrize("multiplier", [0.3, 2.0])
@pytest.mark.parametrize("share", [0.01, 0.5])
@pytest.mark.parametrize("most", [0.5, 1.0])
def test_sum_and_number_cost_what_the_sum_would(multiplier: float, share: float, most: float) -> None:
    of_sum, std = split_for_number(multiplier, share, most)
    assert of_sum**-2 + (most / std) ** 2 == pytest.approx(multiplier**-2, rel=1e-12)


@pytest.mark.parametrize("name", NUMBERS)
def test_no_vector_has_a_number_beyond_its_bound(name: str) -> None:
    """Lengths around C, long and broken ones; and the bound is met, so that nothing smaller would do."""
    number, rng = NUMBERS[name], torch.Generator().manual_seed(1)
    vectors = torch.randn(500, 7, generator=rng) * torch.logspace(-3, 3, 500).unsqueeze(1)
    broken = torch.tensor([[math.inf] * 7, [math.nan] * 7, [0.0] * 7, [1e38] * 7])
    found = number.of(torch.cat([vectors, broken]), 0.7)
    assert float(found.abs().max()) <= number.most
    assert float(found.abs().max()) == pytest.approx(number.most, rel=1e-5)


def test_no_client_moves_both_releases_further_than_their_price(monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    of_sum, std = split_for_number(2.0, 0.1, 1.0)
    seen = []
    hostile = [None, 0.0, 1e-30, 0.1, 0.99999, 1.0, 1e30, -7.0, *np.random.default_rng(5).normal(0, 2, 20)]
    for sent in hostile:
        made = server()
        more = [] if sent is None else [np.full(DIMENSION, sent)]
        made.aggregate(np.zeros(DIMENSION, np.float32), replies(axis(0, 0.2), axis(1, 5.0), *more))
        seen.append((made.told[0] * 5, made.told[1] * 5))
    (number, total), *rest = seen
    away = [math.hypot(np.linalg.norm(t - total) / of_sum, (n - number) / std) for n, t in rest]
    assert max(away) <= 0.5 * (1 + 1e-6) and max(away) == pytest.approx(0.5, rel=1e-3)  # 1/sigma


def test_a_round_costs_what_dpfedavgs_does(run: Run) -> None:
    folder, plain = run(*CENTRAL), run(*CENTRAL, "strategy=dpfedavg")
    assert [entry["mechanism"] for entry in ledger_of(folder)] == ["poisson_gaussian"] * 3
    bills = [summary_of(one)["privacy"]["verified_epsilon"] for one in (folder, plain)]
    assert bills[0] == bills[1] > 0


def test_a_step_by_squares_has_no_account_of_sums_alone() -> None:
    """Of two releases in one dimension the model tells sum and sum of squares, so both releases: to tell the worlds
    apart is easier than by their sum under the noise of two.
    """
    own, other = np.meshgrid(grid := np.linspace(-9, 9, 601), grid)  # sigma C = C = 1; the other client's data are -1

    def density(mean: float) -> np.ndarray:
        ordered = norm.pdf(own, mean) * norm.pdf(other, -1)
        return (ordered + ordered.T) / 2

    true = np.clip(density(1) - math.exp(6.6) * density(-1), 0, None).sum() * (grid[1] - grid[0]) ** 2
    event = Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.5)
    in_sum = compose_events([event.in_sum(2)], 1e-5).epsilon
    assert in_sum < 6.6 and true > 1e-3  # delta at 6.6 is 100 times that of a sum
    config = ["strategy=dpfedexp", "strategy.server.min_replies=2"]
    assert [threat.observer for threat in make_client(compose(config)).accounts()] == ["server"]
    with pytest.raises(OptionError, match="squared norms of single releases"):
        with_target(compose([*config, "privacy.target_epsilon=6", "privacy.target_observer=secure-sum"]))


def test_the_square_is_of_the_clipped_vector() -> None:
    assert float(square(torch.full((4,), 0.25), 1.0)) == pytest.approx(0.25)
    assert float(square(torch.full((4,), 25.0), 2.0)) == pytest.approx(1.0, rel=1e-5)
