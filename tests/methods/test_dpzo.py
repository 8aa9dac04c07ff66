"""DP-ZO: K numbers leave and are what is clipped, noised and priced; the model moves along public directions alone."""

from __future__ import annotations

from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import Run, ledger_of, rows_of, summary_of

from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError
from fedpriv.common.replies import Reply
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.mechanisms.step_gradients import probes_of
from fedpriv.server.round import Population, Round
from strategies.dpzo import DPZO

CENTRAL = (
    *("strategy=dpzo", "strategy.client.form=central", "strategy.server.client_sampling=poisson", "num_clients=20"),
    *("clients_per_round=5", "num_rounds=3", "strategy.client.noise_multiplier=2.0"),
)
SIZE, COUNT = 60, 4


def server(seed: int = 3, **changes: Any) -> DPZO:
    given = {"form": "central", "client_sampling": "poisson", "noise_multiplier": 2.0, "clip_norm": 1.0}
    given |= {"directions": COUNT, "learning_rate": 0.5, "smoothing": 0.1}
    made = making.server(DPZO, Population(seed, 20, 5, lambda client: 10), **given | changes)
    made.current = Round(1, np.zeros(SIZE, np.float32))
    return made


def moved(made: DPZO, *numbers: np.ndarray) -> np.ndarray:
    """The K numbers [K] that the model moved by, over eta, of clients that send these."""
    replies = [Reply(k, made.decoded(k, one.astype(np.float32)), 10, {}, 0) for k, one in enumerate(numbers)]
    step = made.aggregate(np.zeros(SIZE, np.float32), replies)
    return made.directions(SIZE).coordinates(torch.from_numpy(step)).numpy() / -0.5


def test_the_model_moves_along_the_directions_by_the_mean_of_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeededNoise, "normal", lambda self, shape, std=1.0: torch.zeros(shape))
    numbers = [np.array([0.1, 0.2, -0.3, 0.4]), np.array([0.5, 0.0, 0.0, -0.5])]
    np.testing.assert_allclose(moved(server(), *numbers), sum(numbers) / 5, atol=1e-5)
    local = server(form="local", client_sampling="fixed", noise_multiplier=0.0)
    np.testing.assert_allclose(moved(local, *numbers), sum(numbers) / 2, atol=1e-5)


def test_noise_is_of_the_numbers_and_of_nothing_else() -> None:
    """Of 3,000 empty rounds: each number has sigma C / (q N), and d - K dimensions have none."""
    made, found = server(), []
    for number in range(1, 3001):
        made.current = Round(number, np.zeros(SIZE, np.float32))
        step = torch.from_numpy(made.aggregate(np.zeros(SIZE, np.float32), []))
        probes = made.directions(SIZE)
        numbers = probes.coordinates(step) / -0.5
        torch.testing.assert_close(probes.vector(numbers) * -0.5, step, rtol=1e-4, atol=1e-6)
        found.append(numbers.numpy())
    np.testing.assert_allclose(np.std(found, axis=0), 2.0 / 5, rtol=5 * (2 * 3000) ** -0.5)


def test_no_client_moves_the_numbers_further_than_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server clips what a hostile client sends, in K dimensions."""
    monkeypatch.setattr(SeededNoise, "normal", lambda self, shape, std=1.0: torch.zeros(shape))
    others = [np.array([0.1, 0.2, -0.3, 0.4])]
    base = moved(server(), *others)
    hostile = [np.full(COUNT, value) for value in (0.0, 0.4, 0.5, 1.0, 1e20, -7.0)]
    away = [float(np.linalg.norm(moved(server(), *others, one) - base)) * 5 for one in hostile]
    assert max(away) <= 1 + 1e-5 and max(away) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("sent", [np.zeros(COUNT), np.zeros(COUNT + 1, np.float32), np.zeros((2, 2), np.float32)])
def test_anything_else_than_k_numbers_is_refused(sent: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"expected float32 \[4\]"):
        server().decoded(0, sent)


def test_a_client_sends_its_clipped_numbers() -> None:
    config = compose(
        ["strategy=dpzo", "num_rounds=2", "strategy.client.clip_norm=0.3", "strategy.client.noise_multiplier=0"]
    )
    worker = Worker(config)
    client = worker.client(0, None)  # type: ignore[arg-type]
    size = worker.model.theta.numel()
    numbers = torch.randn(16, generator=torch.Generator().manual_seed(2))
    update = probes_of(config.seed, 1, size, 16, 1e-3).vector(numbers)
    found = client.release(update, None, SeededNoise(0)).value
    torch.testing.assert_close(found, 0.3 * numbers / numbers.norm(), rtol=1e-3, atol=1e-5)
    assert client.release_bytes(size) == 64


def test_a_finite_gradient_whose_numbers_overflow_counts_as_zero() -> None:
    """It had been sent as not-a-numbers, which tells the client's data from nearly all others'."""
    config = compose(["strategy=dpzo", "num_rounds=2", "strategy.client.noise_multiplier=1"])
    worker = Worker(config)
    client = worker.client(0, None)  # type: ignore[arg-type]
    update = probes_of(config.seed, 1, worker.model.theta.numel(), 16, 1e-3).vector(torch.full((16,), 1e37))
    assert torch.isfinite(update).all()
    for given in (update, torch.stack([update, torch.zeros_like(update)])):
        silent = client.release(torch.zeros_like(given), None, SeededNoise(0)).value
        assert torch.isfinite(silent).all()
        torch.testing.assert_close(client.release(given, None, SeededNoise(0)).value, silent, rtol=0, atol=0)


def test_more_directions_than_parameters_are_refused() -> None:
    with pytest.raises(OptionError, match=r"strategy\.client\.directions=4000: .*allowed: 1 to \d+"):
        make_client(compose(["strategy=dpzo", "strategy.client.directions=4000"]))


def test_few_bytes_go_up_and_a_round_costs_what_dpfedavgs_does(run: Run) -> None:
    folder, plain = run(*CENTRAL), run(*CENTRAL, "strategy=dpfedavg")
    assert [entry["event"] if "event" in entry else entry["mechanism"] for entry in ledger_of(folder)] == [
        "poisson_gaussian"
    ] * 3
    bills = [summary_of(one)["privacy"]["verified_epsilon"] for one in (folder, plain)]
    assert bills[0] == bills[1] > 0 and len(rows_of(folder)) == 3


def test_with_little_noise_it_learns(run: Run) -> None:
    """Chance is 10 %."""
    folder = run(
        *CENTRAL[:4],
        "clients_per_round=20",
        "num_rounds=15",
        "strategy.client.noise_multiplier=0.01",
        "strategy.client.clip_norm=30.0",
        "strategy.client.directions=64",
    )
    assert rows_of(folder)[-1]["accuracy"] > 0.3
