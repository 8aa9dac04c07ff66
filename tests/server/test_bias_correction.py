"""FedAdam with Adam's correction of its first steps, beside Flower's own code."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg

from fedpriv.config.compose import compose
from fedpriv.server.optimizers import Optimizer

OPTIONS = ["strategy=fedavg", "strategy.server.optimizer=adam", "strategy.server.lr=0.1", "strategy.server.tau=0.001"]


def made(*options: str) -> Optimizer:
    return Optimizer(compose([*OPTIONS, *options]).strategy.options)


def test_steps_are_those_of_flowers_fedadam_which_counts_one_round_more(monkeypatch: pytest.MonkeyPatch) -> None:
    random, peer = np.random.default_rng(0), FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=0.001)
    own = flower = np.zeros(5)
    optimizer = made("strategy.server.bias_correction=true")
    for number in range(1, 6):
        update = random.standard_normal(5)
        mean = ArrayRecord({"x": Array(flower + update)})
        monkeypatch.setattr(FedAvg, "aggregate_train", lambda *_, mean=mean: (mean, None))
        peer.current_arrays = {"x": flower}
        arrays, _ = peer.aggregate_train(number - 1, [])  # its exponent is the round's number plus 1
        assert arrays is not None
        flower, own = arrays["x"].numpy(), own + optimizer.step(update, slice(0, 5), 5)
        np.testing.assert_allclose(own, flower, rtol=1e-6)


def test_a_resumed_run_goes_on_with_its_count() -> None:
    updates = np.random.default_rng(1).standard_normal((4, 3))
    whole, first, rest = (made("strategy.server.bias_correction=true") for _ in range(3))
    expected = [whole.step(update, slice(0, 3), 3) for update in updates]
    for update in updates[:2]:
        first.step(update, slice(0, 3), 3)
    rest.load_vectors(first.vectors())
    found = [rest.step(update, slice(0, 3), 3) for update in updates[2:]]
    np.testing.assert_array_equal(found, expected[2:])


def test_without_it_steps_and_digests_are_as_before() -> None:
    optimizer = made()
    assert set(optimizer.vectors()) == set()
    step = optimizer.step(np.ones(2), slice(0, 2), 2)
    np.testing.assert_allclose(step, 0.1 * 0.1 / (np.sqrt(0.99e-6 + 0.01) + 0.001))
    assert "bias_correction" not in compose(OPTIONS).deciding()["strategy"]["server"]
    changed = compose([*OPTIONS, "strategy.server.bias_correction=true"])
    assert changed.digest() != compose(OPTIONS).digest()
