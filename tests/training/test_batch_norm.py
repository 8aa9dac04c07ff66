"""BatchNorm where nothing is private: running statistics are coordinates that batches move, and gradients do not."""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run, rows_of, summary_of
from reference.federation import client_data
from safetensors.numpy import load_file
from torch import nn

import fedpriv
from fedpriv.common.errors import OptionError
from fedpriv.common.seeds import generator
from fedpriv.config.compose import compose
from fedpriv.config.method_pairs import target
from fedpriv.config.methods import METHODS
from fedpriv.config.schema import LocalConfig
from fedpriv.engines.worker import Worker
from fedpriv.training.distillation import DistillationOptions, Distiller
from fedpriv.training.models import with_running_statistics
from fedpriv.training.sequential import FlatModel, LocalData, SequentialTrainer, Training, draw_batches

#: Methods whose clients send what they have trained as it is.
OPEN = ("fedavg", "fedprox", "fedper", "lgfedavg", "fedvf", "pfl")
STATISTICS = ("running_mean", "running_var")


def network(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Blocks as torchvision's ResNets have them: in-place activations, BatchNorm, a head."""
    torch.manual_seed(7)
    layers = nn.Conv2d(shape[0], 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)
    model = nn.Sequential(*layers, nn.Flatten())
    return model.append(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))).append(nn.Linear(8, classes))


def without_momentum(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, momentum=None), nn.Linear(64, classes))


def without_statistics(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, classes))


def without_norms(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Linear(16, classes))


class Counting(nn.Module):
    """Keeps a mean of all that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls.add_(inputs.detach().abs().mean())
        return inputs


def counting(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Counting(), nn.Linear(64, classes))


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("models_with_norms")
    for function in (network, without_momentum, without_statistics, without_norms, counting):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def options(name: str, *more: str, model: str = "network") -> tuple[str, ...]:
    small = ("num_clients=3", "clients_per_round=3", "num_rounds=2", "engine=inprocess", "dataset.train_examples=200")
    return (f"strategy={name}", "model=custom", f"model.path=models_with_norms.{model}", *small, *more)


def pictures(examples: int = 21) -> LocalData:
    data, random = client_data(1, examples), torch.Generator().manual_seed(3)
    return LocalData(torch.randn(examples, 1, 8, 8, generator=random) * 2 + 1, data.targets)


def trained(data: LocalData, mu: float = 0.0, momentum: float = 0.0) -> tuple[dict[str, torch.Tensor], nn.Module]:
    """(what our trainer makes of the state, the network after torch's own loop with the same batches)."""
    config = LocalConfig(epochs=2, batch_size=5, lr=0.1, momentum=momentum, sampler="shuffle")
    model = FlatModel(with_running_statistics(network((1, 8, 8), 10), "custom"))
    start = model.theta.clone()
    rng = lambda: np.random.Generator(np.random.Philox(1))  # noqa: E731
    found = start + SequentialTrainer(model, config).train(Training(start, data, rng(), mu)).update
    twin = network((1, 8, 8), 10).train()
    before = [parameter.detach().clone() for parameter in twin.parameters()]
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=momentum)
    for rows in draw_batches(config, len(data), rng()):
        if len(rows) == 1:
            continue  # as a loader with drop_last: nothing can be said of one example's variance
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(twin(data.inputs[rows]), data.targets[rows])
        for parameter, origin in zip(twin.parameters(), before, strict=True):
            loss = loss + mu / 2 * (parameter - origin).square().sum()
        loss.backward()
        optimiser.step()
    return dict(model.layout.split(found)), twin


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_parameters_and_statistics_are_those_of_torchs_loop(mu: float, momentum: float) -> None:
    ours, twin = trained(pictures(), mu, momentum)
    theirs = {name: value for name, value in twin.state_dict().items() if "num_batches" not in name}
    assert ours.keys() == theirs.keys() and sum(name.endswith(STATISTICS) for name in ours) == 4
    for name, value in theirs.items():
        assert torch.allclose(ours[name], value, atol=2e-5), name


def test_a_client_with_a_single_example_sends_the_model_that_it_got() -> None:
    ours, _ = trained(pictures(1))
    assert all(torch.equal(ours[name], value) for name, value in network((1, 8, 8), 10).named_parameters())


@pytest.mark.parametrize("name", OPEN)
def test_methods_without_privacy_train_average_and_load_it(name: str, run: Run) -> None:
    folder = run(*options(name, *(["strategy.client.head_period=2"] if name == "fedvf" else [])))
    state = load_file(folder / "model.safetensors")
    assert all(math.isfinite(row["loss"]) for row in rows_of(folder)) and (state["1.running_var"] > 0).all()
    moved = {layer for layer in ("1", "5.1") if np.abs(state[f"{layer}.running_mean"]).max() > 1e-3}
    assert moved == {"fedper": {"1"}, "pfl": {"1"}, "lgfedavg": {"5.1"}}.get(name, {"1", "5.1"})  # with their layers
    fedpriv.load(folder).model.probabilities(np.zeros((1, 1, 8, 8), np.uint8))


def test_layers_that_normalise_stay_with_their_client(run: Run) -> None:
    """FedBN: all else travels, and what the server has of them is what everybody began with."""
    folder = run(*options("fedper", "model.buffers=local", "strategy.client.personal_layers=1"))
    state, begun = load_file(folder / "model.safetensors"), network((1, 8, 8), 10).state_dict()
    for place, layer in enumerate(("1", "5.1")):
        for name in ("weight", "bias", *STATISTICS):
            assert np.array_equal(state[f"local_norms.{place}.{name}"], begun[f"{layer}.{name}"].numpy()), name
    assert all(not np.array_equal(state[name], begun[name].numpy()) for name in ("0.weight", "5.0.weight", "6.bias"))
    assert summary_of(folder)["num_parameters"] - summary_of(folder)["num_shared"] == 4 * 6 + 4 * 8
    assert fedpriv.load(folder).model.probabilities(np.zeros((1, 1, 8, 8), np.uint8)).shape == (1, 10)


def test_a_place_of_a_layer_elsewhere_computes_what_the_layer_computes() -> None:
    own, images = network((1, 8, 8), 10), pictures(8).inputs
    moved = with_running_statistics(network((1, 8, 8), 10), "custom", local=True)
    for _ in range(2):
        assert torch.equal(own.train()(images), moved.train()(images))
    assert torch.equal(own.eval()(images), moved.eval()(images))
    assert [name for name, _ in moved.named_children()][-1] == "local_norms"


@pytest.mark.parametrize(
    ("name", "model", "words"),
    [
        ("fedavg", "network", "model.buffers=local: fedavg sends all layers, or others; allowed: averaged, or fedper"),
        ("fedldp", "network", "model.buffers=local: fedldp sends all layers"),
        ("adpfl", "network", "layer 1 is BatchNorm2d.*without clipping and noise"),
        ("fedper", "without_norms", "the model has no BatchNorm"),
        ("fedavg", "counting", "a call moves 1.calls, a buffer of Counting, and nothing says how.*BatchNorm's"),
        ("fedldp", "counting", "a call moves 1.calls"),
        ("dpsgd", "counting", "a call moves 1.calls"),
    ],
)
def test_buffers_of_no_declared_kind_are_refused(name: str, model: str, words: str, run: Run) -> None:
    local = () if model == "counting" else ("model.buffers=local",)
    with pytest.raises(OptionError, match=words) as refused:
        run(*options(name, *local, model=model))
    assert len(str(refused.value).splitlines()) == 1


def test_the_servers_statistics_are_the_mean_of_the_clients(run: Run) -> None:
    worker = Worker(compose(options("fedavg", "num_rounds=1")))
    start, states = worker.initial_model, []
    for client in range(3):
        rng = generator(0, client, 1, 0, "batches")
        update = worker.trainer.train(Training(start, worker.local_data(client), rng)).update
        states.append((len(worker.local_data(client)), start + update))
    total = sum(count for count, _ in states)
    mean = sum(count / total * state for count, state in states)
    found = load_file(run(*options("fedavg", "num_rounds=1")) / "model.safetensors")
    for name, value in worker.model.layout.split(mean):  # type: ignore[arg-type]
        assert np.allclose(found[name], value.numpy(), atol=1e-6), name


@pytest.mark.parametrize("name", sorted(set(METHODS) - {*OPEN, "ask", "fedonce", "moments"}))
def test_it_is_refused_with_the_reason_where_something_is_private(name: str) -> None:
    assert target(name, "client")
    with pytest.raises(OptionError, match=r"layer 1 is BatchNorm2d.*without clipping and noise.*GroupNorm"):
        Worker(compose(options(name))).model  # noqa: B018


def test_a_pair_has_its_mechanisms_privacy() -> None:
    with pytest.raises(OptionError, match="BatchNorm2d"):
        Worker(compose(options("fedprox", "privacy.mechanism=fedldp"))).model  # noqa: B018


@pytest.mark.parametrize(
    ("more", "model", "words"),
    [
        (["strategy.server.optimizer=adam"], "network", "strategy.server.optimizer=adam.*variance below 0"),
        (["strategy.server.lr=1.5"], "network", "strategy.server.lr=1.5.*variance below 0"),
        (["engine.trainer=vectorised"], "network", "vectorised"),
        ([], "without_momentum", "momentum=None"),
        ([], "without_statistics", "no running statistics"),
    ],
)
def test_what_would_not_be_an_average_is_refused(more: list[str], model: str, words: str, run: Run) -> None:
    with pytest.raises(OptionError, match=words):
        run(*options("fedavg", *more, model=model))


def test_a_student_takes_its_teachers_statistics() -> None:
    """Distillation moves what gradients move: without this, the global model would keep those it began with."""
    worker = Worker(compose(options("pfl")))
    model, step = worker.model, DistillationOptions(epochs=1, batch_size=64, lr=0.1, loss="kl", temperature=2.0)
    student, teacher = model.theta.numpy().copy(), model.theta.numpy().copy() + 0.25
    shared = slice(0, model.layout.num_parameters - 100)
    found = Distiller(worker, step)(teacher, student, shared, 1)
    statistics = model.statistics.numpy()  # type: ignore[union-attr]
    inside = statistics[statistics < shared.stop]
    assert len(inside) == 18 and np.array_equal(found[inside], teacher[inside])
    assert np.array_equal(found[shared.stop :], student[shared.stop :])


def test_building_a_model_does_not_move_its_statistics() -> None:
    parts: dict[str, Any] = dict(Worker(compose(options("fedavg"))).model.module.named_parameters())
    assert parts["1.running_mean"].eq(0).all() and parts["1.running_var"].eq(1).all()
