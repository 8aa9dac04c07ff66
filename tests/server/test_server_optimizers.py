"""The server's optimizer: the papers' formulas by hand, what is told of it, resumed runs, and who refuses it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run, result_of
from fake_grid import SIZE, FakeGrid, build
from flwr.app import ConfigRecord, Message

from fedpriv.common.errors import OptionError
from fedpriv.common.messages import pack_vector, reply_content, unpack_vector
from fedpriv.config.checks import OWN_STEP
from fedpriv.config.compose import CONF, compose
from fedpriv.config.own_options import group_choices
from fedpriv.server.optimizers import Optimizer
from fedpriv.server.strategy import FederatedStrategy
from strategies.fedavg import FedAvg
from strategies.fedvf import FedVF
from strategies.nbafl import NbAFL

METHODS = group_choices(CONF / "strategy")
#: Of each of three rounds, one number for each coordinate: large, small, of changing sign, and none.
UPDATES = np.array([[1.0, 0.01, -2.0, 0.0, 0.5, 3.0], [1.0, -0.01, 2.0, 0.0, -4.0, 3.0], [-0.5, 0.01, 1.0, 0.0, 1, 1]])


def rounds(kind: type[FederatedStrategy] = FedAvg, updates: np.ndarray = UPDATES, **options: Any) -> list[np.ndarray]:
    """theta after each round in which every client's release is the round's row."""
    strategy, theta, found = build(kind, **options), np.zeros(SIZE, np.float32), []
    for number, update in enumerate(updates, 1):
        grid = FakeGrid()
        grid.answer = lambda message, client, update=update: answered(message, update)
        messages = strategy.configure_train(number, pack_vector(theta), ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        assert arrays is not None
        theta = unpack_vector(arrays)
        found.append(theta)
    return found


def answered(message: Message, update: np.ndarray) -> Message:
    return Message(reply_content(update.astype(np.float32), 10, {}), reply_to=message)


# --- the formulas ------------------------------------------------------------------------------------------------


def by_hand(name: str, updates: list[float], lr: float) -> list[float]:
    """One coordinate, number by number, from the papers' pages."""
    x, m, v, places = 0.0, 0.0, 0.001**2, []
    for delta in updates:
        if name == "momentum":
            v = delta if not places else 0.9 * v + delta
            x += lr * v
        else:
            m = 0.9 * m + 0.1 * delta
            if name == "adam":
                v = 0.99 * v + 0.01 * delta**2
            else:
                v = v - 0.01 * delta**2 * math.copysign(1.0, v - delta**2) * (v != delta**2)
            x += lr * m / (math.sqrt(v) + 0.001)
        places.append(x)
    return places


@pytest.mark.parametrize("name", ["momentum", "adam", "yogi"])
def test_three_rounds_by_hand(name: str) -> None:
    found = np.array(rounds(optimizer=name, lr=0.3))
    for coordinate in range(SIZE):
        expected = by_hand(name, UPDATES[:, coordinate].tolist(), 0.3)
        np.testing.assert_allclose(found[:, coordinate], expected, rtol=1e-6)


def test_figures_of_two_rounds_worked_out_on_paper() -> None:
    """An update of 1, twice. Momentum: 1, then 1.9 more. Adam: m = 0.1, v = 0.01 + 0.99e-6; m = 0.19."""
    ones = np.ones((2, SIZE))
    assert rounds(updates=ones, optimizer="momentum")[1][0] == pytest.approx(2.9)
    first = 0.1 / (math.sqrt(0.01 + 0.99e-6) + 0.001)
    assert first == pytest.approx(0.99005, abs=1e-5)
    assert rounds(updates=ones[:1], optimizer="adam", lr=1.0)[0][0] == pytest.approx(first)
    yogi = rounds(updates=ones, optimizer="yogi", lr=1.0)  # v = 1e-6 + 0.01, then + 0.01
    assert yogi[1][0] == pytest.approx(0.1 / (math.sqrt(0.010001) + 0.001) + 0.19 / (math.sqrt(0.020001) + 0.001))


def test_a_yogi_of_shrinking_updates_comes_down_slower_than_adam() -> None:
    """v falls by (1 - beta2) Delta^2 in place of (1 - beta2) v, so its steps stay shorter."""
    updates = np.repeat([[10.0], [0.1], [0.1], [0.1]], SIZE, axis=1)
    adam, yogi = (rounds(updates=updates, optimizer=name, beta1=0.0, lr=1.0) for name in ("adam", "yogi"))
    assert adam[3][0] - adam[0][0] > yogi[3][0] - yogi[0][0] > 0


def test_sgd_at_one_adds_the_update_itself() -> None:
    plain = rounds()
    for given in ({"lr": 1.0}, {"optimizer": "momentum", "momentum": 0.0}):
        assert all(np.array_equal(one, other) for one, other in zip(rounds(**given), plain, strict=True))
    np.testing.assert_allclose(np.array(rounds(lr=0.25)), 0.25 * np.array(plain))


def test_a_null_rate_is_the_optimizers_own() -> None:
    for name, usual in (("sgd", 1.0), ("momentum", 1.0), ("adam", 0.01), ("yogi", 0.01)):
        null, given = rounds(optimizer=name), rounds(optimizer=name, lr=usual)
        assert all(np.array_equal(one, other) for one, other in zip(null, given, strict=True))


# --- where the mean is no update, and where theta is a part --------------------------------------------------------


def test_only_the_part_that_goes_up_moves_on() -> None:
    """Three rounds about the first half, then one about all: the other half's momentum begins there."""
    half = Optimizer(build(FedAvg, optimizer="momentum").options)
    for _ in range(3):
        half.step(np.ones(2), slice(0, 2), 4)
    np.testing.assert_allclose(half.step(np.ones(4), slice(0, 4), 4), [3.439, 3.439, 1.0, 1.0])


def test_weights_become_the_update_that_leads_to_them() -> None:
    """`move` with ``whole``: a mean of weights 5 from theta 2 is an update of 3."""
    strategy = build(FedVF, optimizer="sgd", lr=0.5)
    theta, mean = np.array([2.0, 2.0], np.float32), np.array([5.0, 5.0])
    strategy.begin(1, pack_vector(theta))
    assert strategy.move(theta, mean, whole=slice(0, 1)).tolist() == [3.5, 4.5]
    plain = build(FedVF)
    plain.begin(1, pack_vector(theta))
    assert plain.move(theta, mean, whole=slice(0, 1)).tolist() == [5.0, 7.0]


def test_noise_of_the_server_is_there_before_the_step() -> None:
    """Otherwise theta would show it: with lr=0.5 the noise that outsiders count on would be twice the data's share."""
    noise = {"exposures": 1, "rounds": 10, "epsilon": 50.0}
    full, half = (rounds(NbAFL, UPDATES[:1], **noise, lr=lr)[0] for lr in (1.0, 0.5))
    assert abs(full - UPDATES[0]).min() > 1e-3
    np.testing.assert_allclose(half, 0.5 * full, rtol=1e-5)


class OwnStep(FedAvg):
    """A user's method that adds the mean by itself."""

    def aggregate(self, theta: np.ndarray, replies: Any) -> np.ndarray:
        return (theta + self.mean(theta.size, replies)).astype(np.float32)


def test_a_method_that_would_ignore_the_option_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "aggregate", OwnStep.aggregate)
    rounds()
    with pytest.raises(OptionError, match=r"strategy\.server\.optimizer=adam: FedAvg\.aggregate takes a step of its"):
        rounds(optimizer="adam")


# --- whole runs ----------------------------------------------------------------------------------------------------


@pytest.mark.rotates(3)
@pytest.mark.parametrize("method", sorted(set(METHODS) - set(OWN_STEP)))
def test_every_method_takes_its_step_by_the_optimizer_or_refuses_it(method: str, run: Run) -> None:
    """Half the rate gives another model in the first round; nobody ignores it."""
    options = (f"strategy={method}", "num_rounds=1")
    assert result_of(run(*options, "strategy.server.lr=0.5"))["model"] != result_of(run(*options))["model"]


@pytest.mark.parametrize(
    "options",
    [
        ("strategy=fedavg", "strategy.server.optimizer=yogi"),
        ("strategy=fedvf", "strategy.client.head_period=2", "strategy.server.optimizer=adam"),
        ("strategy=fedcad", "strategy.server.clipping=quantile", "strategy.server.optimizer=momentum"),
    ],
    ids=" ".join,
)
def test_a_resumed_run_ends_bit_identical(options: tuple[str, ...], run: Run, resumed: Callable[..., Path]) -> None:
    rest = ("num_rounds=4", "checkpoint.every=2")
    whole = result_of(run(*rest, *options))
    assert result_of(resumed(*rest, *options, after=3)) == whole
    assert result_of(run(*rest, *options[:-1]))["model"] != whole["model"]


def test_it_costs_no_privacy(run: Run) -> None:
    plain, moved = (
        result_of(run("strategy=fedldp", *more))["summary"]["privacy"]
        for more in ((), ("strategy.server.optimizer=adam",))
    )
    assert plain == moved


# --- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("optimizer=lion", "optimizer=lion: allowed: sgd, momentum, adam or yogi"),
        ("lr=0", "lr=0: must be more than 0"),
        ("lr=-1.0", r"lr=-1\.0: must be more than 0"),
        ("momentum=1.0", r"momentum=1\.0: must be less than 1"),
        ("beta1=-0.1", r"beta1=-0\.1: must be at least 0"),
        ("beta2=1.5", r"beta2=1\.5: must be less than 1"),
        ("tau=0.0", r"tau=0\.0: must be more than 0"),
    ],
)
def test_a_wrong_option_says_what_is_allowed(option: str, words: str) -> None:
    with pytest.raises(OptionError, match=rf"strategy\.server\.{words}"):
        compose(["strategy=fedavg", f"strategy.server.{option}"])


@pytest.mark.parametrize("method", sorted(OWN_STEP))
def test_a_step_of_its_own_is_refused_by_name(method: str) -> None:
    with pytest.raises(OptionError, match=r"strategy\.server\.optimizer=adam: the .* (rule|sum) .*; allowed: sgd"):
        compose([f"strategy={method}", "strategy.server.optimizer=adam"])
    with pytest.raises(OptionError, match=r"strategy\.server\.lr=0\.5: .*; allowed: null or 1"):
        compose([f"strategy={method}", "strategy.server.lr=0.5"])


def test_it_is_part_of_the_digest() -> None:
    plain = compose(["strategy=fedavg"])
    for other in ("optimizer=adam", "lr=0.5"):
        assert compose(["strategy=fedavg", f"strategy.server.{other}"]).digest() != plain.digest()
