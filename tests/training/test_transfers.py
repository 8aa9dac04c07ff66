"""What crosses between a GPU and the CPU in a round, counted by a device that is none: tensors of torch's device "meta"
have a shape and no numbers, and an operation of one of them with a tensor of the CPU is an error, as on a GPU.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedpriv.client.build import make_client
from fedpriv.client.one_path import Participation
from fedpriv.config.compose import compose
from fedpriv.config.schema import LocalConfig
from fedpriv.engines import worker
from fedpriv.mechanisms.noise import HUGE, SeededNoise
from fedpriv.runs.session import Session
from fedpriv.runs.start import start_run
from fedpriv.training import vectorised
from fedpriv.training.evaluation import Score
from fedpriv.training.sequential import Clipping, FlatModel, LocalData, SequentialTrainer, Training
from fedpriv.training.stacked_gradients import Chain, block_for
from fedpriv.training.vectorised import VectorisedTrainer

DEVICE = torch.device("meta")
CLIENTS, EXAMPLES = 5, 12


class Crossings(TorchDispatchMode):
    """Numbers that left the device, and that came to it, transfer by transfer. What leaves is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.came = list[int](), list[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        if name == "_local_scalar_dense" and args[0].device == DEVICE:
            self.left.append(1)
            return 0.0
        if name in ("_to_copy", "copy_"):
            source = args[0] if name == "_to_copy" else args[1]
            target = (kwargs.get("device") or source.device) if name == "_to_copy" else args[0].device
            if DEVICE in (source.device, target) and source.device != target and source.numel():
                (self.left if source.device == DEVICE else self.came).append(source.numel())
                if source.device == DEVICE:
                    zeros = torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)
                    return zeros if name == "_to_copy" else args[0].copy_(zeros)
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vectorised.NUMBERS, "meta", vectorised.NUMBERS["cuda"])
    monkeypatch.setattr(worker, "FlatModel", lambda module, device, *others: FlatModel(module, DEVICE, *others))
    monkeypatch.setattr(worker, "fits", lambda part, device: True)
    monkeypatch.setattr(Chain, "block", lambda self, thetas, wanted: wanted)  # else seen by numbers
    monkeypatch.setattr(SequentialTrainer, "_by_hand", lambda self, data: True)
    score = Score({"accuracy": 0.5, "loss": 1.0}, "accuracy", True)
    monkeypatch.setattr(Session, "_evaluate", lambda self, theta: score)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def trainer_of(kind: type[SequentialTrainer], module: nn.Module, epochs: int) -> tuple[SequentialTrainer, int]:
    model = FlatModel(module, DEVICE)
    config = LocalConfig(epochs=epochs, batch_size=4, lr=0.1, momentum=0.5, sampler="shuffle")
    return kind(model, config), model.theta.numel()


def data() -> list[LocalData]:
    labels = torch.zeros(EXAMPLES, dtype=torch.int64, device=DEVICE)
    return [LocalData(torch.zeros(EXAMPLES, 1, 4, 4, device=DEVICE), labels) for _ in range(CLIENTS)]


@pytest.mark.parametrize("kind", [SequentialTrainer, VectorisedTrainer])
@pytest.mark.parametrize("module", [perceptron, convolution])
def test_training_moves_losses_alone_however_many_steps_it_has(kind: type[SequentialTrainer], module: Any) -> None:
    left, came = set(), set()
    for epochs in (1, 3):
        with Crossings() as crossings:
            trainer, size = trainer_of(kind, module(), epochs)
            start = torch.zeros(size, device=DEVICE)
            crossings.left.clear(), crossings.came.clear()
            found = trainer.train_all([Training(start, own, np.random.default_rng(0)) for own in data()])
        assert all(one.update.device == DEVICE and one.update.shape == (size,) for one in found)
        left.add(tuple(crossings.left))
        came.add(len(crossings.came))
    assert left in ({(1,) * CLIENTS}, {(CLIENTS,)})  # each client's mean loss
    assert came in ({CLIENTS}, {2})  # places of the batches, and their weights where clients are one batch


@pytest.mark.parametrize("kind", [SequentialTrainer, VectorisedTrainer])
@pytest.mark.parametrize("stays", [True, False])
def test_sums_of_clipped_gradients_stay_where_noise_is_added(kind: type[SequentialTrainer], stays: bool) -> None:
    """Of one client (the sequential trainer) or a cohort; in however many blocks, lengths and losses leave once."""
    left = []
    for rows in (4, EXAMPLES):
        with Crossings() as crossings:
            trainer, size = trainer_of(kind, perceptron(), 1)
            start = torch.zeros(size, device=DEVICE)
            crossings.left.clear()
            sums = trainer.clipped_sums([Clipping(start, own, 1.0, stays=stays, expected=rows) for own in data()])
        assert {one.total.device for one in sums} == {DEVICE if stays else torch.device("cpu")}
        assert crossings.left.count(size) == (0 if stays else CLIENTS)
        alone, blocks = kind is SequentialTrainer, -(-EXAMPLES // block_for(rows))
        # whether a row of a block is broken; a single client's loss
        assert crossings.left.count(1) == (CLIENTS * (blocks + 1) if alone else blocks)
        left.append(len([number for number in crossings.left if number not in (1, size)]))
    assert left == [CLIENTS if alone else 2] * 2


def crossed(path: Path, strategy: str, *options: str) -> tuple[Crossings, int]:
    """What crosses in two rounds of three clients, and d."""
    common = ["dataset=digits", "num_clients=3", "clients_per_round=3", "num_rounds=2", "evaluate.every=0"]
    apart = ["checkpoint.every=0", "operations.report=false", "partition=iid"]
    with Crossings() as crossings:
        start_run(compose([*common, *apart, f"strategy={strategy}", *options]), path / "run")
    return crossings, json.loads((path / "run" / "summary.json").read_text())["num_parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["vectorised", "sequential"])
@pytest.mark.parametrize(
    "strategy",
    [*("fedavg", "fedprox", "fedldp", "dpfedavg", "dpfedexp", "dpfedsam"), "dpfedsam strategy.client.form=local"],
)
def test_updates_leave_once_as_releases(strategy: str, trainer: str, tmp_path: Path) -> None:
    """Of each client d numbers a round, in one transfer of all where they are one computation, or one of each."""
    name, *options = strategy.split()
    crossings, size = crossed(tmp_path, name, f"engine.trainer={trainer}", "model=mlp", "model.hidden=9", *options)
    vectors = [number // size for number in crossings.left if number % size == 0]
    own_model = vectors.count(1) if trainer == "vectorised" else vectors.count(1) - 2 * 3
    assert sum(vectors) - own_model == 2 * 3 and own_model <= 4, Counter(crossings.left)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedldp", "dpfedavg", "dpfedexp", "dpfedsam"])
def test_noise_of_a_long_update_is_drawn_where_the_update_is(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[str, int]] = []

    def counted(self: SeededNoise, shape: Any, std: float, device: torch.device) -> Tensor:
        drawn.append((device.type, math.prod(shape)))
        return torch.empty(shape, device=device)

    monkeypatch.setattr(SeededNoise, "on_device", counted)
    local = [] if strategy == "fedldp" else ["strategy.client.form=local", "strategy.server.client_sampling=fixed"]
    options = ["engine.trainer=vectorised", *local]
    crossings, size = crossed(tmp_path, strategy, *options, "model=mlp", "model.hidden=60000")
    assert size > HUGE and drawn == [("meta", size)] * 2 * 3
    assert max(crossings.came) <= size  # theta, and not the noise of three clients
    crossings, size = crossed(tmp_path / "short", strategy, *options, "model=linear")
    assert crossings.came.count(3 * size) == 2  # the noise of a short one, drawn on the CPU, and no update


def test_a_class_derived_from_one_that_follows_the_device_does_not() -> None:
    """What it computes may be on the CPU, so its updates come there first."""
    base = make_client(compose(["strategy=fedldp"]))
    derived = type("Derived", (type(base),), {"in_rows": True})(base.options, base.run)
    for method, follows in ((base, True), (derived, False), (make_client(compose(["strategy=fedcad"])), False)):
        assert Participation(method, *[lambda *_: pytest.fail("not asked")] * 4).on_device is follows
