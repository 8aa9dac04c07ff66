"""A client's training has the same bits whoever is computed beside it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.training.models import build_model
from fedpriv.training.sequential import Clipping, FlatModel, LocalData, SequentialTrainer, Training
from fedpriv.training.vectorised import VectorisedTrainer, padded_width

SIZES = (12, 30, 7, 12, 1, 26, 12, 0, 33, 12)
SHAPE = (1, 16, 16)
#: Places of those who are computed together.
SLICES = ((0,), (4,), (1, 2), (9, 0), (2, 3, 4), (5, 6, 7, 8, 9), (8, 5, 1), (7,), (0, 1, 2, 3, 4, 5, 6, 7, 8))


def trainer_of(name: str, momentum: float = 0.0, sampler: str = "shuffle") -> VectorisedTrainer:
    config = ModelConfig(name=name, hidden=24)  # type: ignore[arg-type,call-arg]
    model = FlatModel(build_model(config, SHAPE, 10, 0), torch.device("cpu"))
    local = LocalConfig(epochs=2, batch_size=10, lr=0.1, momentum=momentum, sampler=sampler)  # type: ignore[arg-type]
    return VectorisedTrainer(model, local)


def data() -> list[LocalData]:
    random = torch.Generator().manual_seed(1)
    return [
        LocalData(torch.randn(size, *SHAPE, generator=random), torch.randint(0, 10, (size,), generator=random))
        for size in SIZES
    ]


def trained(
    trainer: VectorisedTrainer, some: tuple[int, ...], mu: float = 0.0, drifts: Tensor | None = None
) -> dict[int, tuple[Tensor, float]]:
    """Clients that bring their own pictures."""
    theta, clients = trainer.model.theta.clone(), data()
    own = [None] * len(SIZES) if drifts is None else list(drifts)
    asked = [Training(theta, clients[k], np.random.default_rng(k), mu, own[k]) for k in some]
    return {k: (found.update, found.loss) for k, found in zip(some, trainer.train_all(asked), strict=True)}


@pytest.mark.rotates(2)
@pytest.mark.parametrize("sampler", ["shuffle", "poisson"])
@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.3), (0.9, 0.3)])
@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_the_bits_do_not_depend_on_the_slice(name: str, momentum: float, mu: float, sampler: str) -> None:
    trainer = trainer_of(name, momentum, sampler)
    whole = trained(trainer, tuple(range(len(SIZES))), mu)
    for some in SLICES:
        for client, (update, loss) in trained(trainer, some, mu).items():
            assert torch.equal(update, whole[client][0]), (some, client)
            assert loss == whole[client][1] or np.isnan([loss, whole[client][1]]).all()
    assert all(update.any() for client, (update, _) in whole.items() if SIZES[client] > 2)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_the_bits_do_not_depend_on_the_slice_with_several_threads(name: str) -> None:
    """They would divide a product by how many clients there are, where those are few: here the last to train."""
    trainer, before = trainer_of(name), torch.get_num_threads()
    random, clients = torch.Generator().manual_seed(1), list[LocalData]()
    for size in (76, 73, 46, 82, 54, 87, 12, 61, 5, 90):
        images = torch.randn(size, *SHAPE, generator=random)
        clients.append(LocalData(images, torch.randint(0, 10, (size,), generator=random)))
    theta = trainer.model.theta.clone()

    def updates(some: Sequence[int]) -> dict[int, Tensor]:
        asked = [Training(theta, clients[k], np.random.default_rng(k)) for k in some]
        return {k: found.update for k, found in zip(some, trainer.train_all(asked), strict=True)}

    torch.set_num_threads(2)
    try:
        whole = updates(range(10))
        for some in ((0,), (1, 2), (3, 4, 5), (6, 7, 8, 9), (9, 5, 3, 0, 1)):
            assert all(torch.equal(update, whole[client]) for client, update in updates(some).items())
        assert torch.get_num_threads() == 2  # as many as before, for what comes next
    finally:
        torch.set_num_threads(before)


def drifts_of(trainer: VectorisedTrainer) -> Tensor:
    many = (len(SIZES), trainer.model.layout.num_parameters)
    return 0.1 * torch.randn(many, generator=torch.Generator().manual_seed(2))


def test_the_bits_do_not_depend_on_the_slice_with_drifts() -> None:
    trainer = trainer_of("linear")
    drifts = drifts_of(trainer)
    whole = trained(trainer, tuple(range(len(SIZES))), 0.0, drifts)
    for some in SLICES:
        for client, (update, _) in trained(trainer, some, 0.0, drifts).items():
            assert torch.equal(update, whole[client][0]), (some, client)


@pytest.mark.parametrize("drifting", [False, True])
@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_rows_are_what_the_clients_compute_apart(name: str, drifting: bool) -> None:
    trainer, clients = trainer_of(name, 0.9), data()
    drifts = drifts_of(trainer) if drifting else None
    images = torch.cat([one.inputs for one in clients])
    labels = torch.cat([one.targets for one in clients])
    rngs = [np.random.default_rng(k) for k in range(len(SIZES))]
    found = trainer.train_rows(
        trainer.model.theta.clone(),
        SIZES,
        lambda places: LocalData(images[places], labels[places]),
        256,
        rngs,
        drifts=drifts,
    )
    expected = trained(trainer, tuple(range(len(SIZES))), drifts=drifts)
    for client, (update, loss) in expected.items():
        assert torch.equal(found.updates[client], update) and float(found.losses[client]) == loss


@pytest.mark.parametrize("inner", [(784, 10), (784, 200), (64, 10), (33, 7), (64, 2), (64, 1), (5, 1)])
@pytest.mark.parametrize("batch", [2, 10, 60, 64])
def test_a_product_of_a_batch_has_the_bits_of_any_other_number_of_them(inner: tuple[int, int], batch: int) -> None:
    """What the rule rests on: the kernels of this library, on this processor."""
    random, (inputs, outputs), most = torch.Generator().manual_seed(0), inner, 40
    weights = torch.randn(most, outputs, inputs, generator=random) * 0.1
    bias = torch.randn(most, outputs, generator=random)
    images = torch.randn(most, batch, inputs, generator=random)
    slopes = torch.randn(most, batch, outputs, generator=random)

    def products(some: slice) -> list[Tensor]:
        moved = weights[some].clone()
        moved.baddbmm_(slopes[some].mT, images[some], alpha=-0.1)
        forward = torch.baddbmm(bias[some].unsqueeze(1), images[some], weights[some].mT)
        return [forward, moved, torch.bmm(slopes[some], weights[some])]

    whole = products(slice(None))
    for start, count in itertools.product((0, 1, 17), (2, 3, 8, 19)):
        some = slice(start, start + count)
        for found, expected in zip(products(some), whole, strict=True):
            assert torch.equal(found, expected[some])


WIDTHS = [
    (1, 10, 2),
    (3, 10, 4),
    (8, 10, 8),
    (9, 10, 10),
    (10, 10, 10),
    (13, 10, 14),
    (50, 1000, 50),
    (60, 1000, 60),
    (67, 1000, 68),
    (999, 1000, 1000),
]


@pytest.mark.parametrize(("widest", "batch_size", "width"), WIDTHS)
def test_a_width_follows_from_the_client_alone(widest: int, batch_size: int, width: int) -> None:
    assert padded_width(widest, batch_size) == width >= widest


@pytest.mark.parametrize("kind", [SequentialTrainer, VectorisedTrainer])
@pytest.mark.parametrize("hidden", [0, 7])
@pytest.mark.parametrize("inputs", [30, 32])
def test_a_row_does_not_change_what_others_add(kind: type[SequentialTrainer], hidden: int, inputs: int) -> None:
    """Under a theta that makes terms of 10^9 cancel, where the last bits decide: one row fewer moves all later rows
    up by a place, and the sum of clipped gradients by the bound at most.
    """
    name = "mlp" if hidden else "linear"
    config = ModelConfig(name=name, hidden=max(1, hidden))  # type: ignore[call-arg]
    model = FlatModel(build_model(config, (inputs,), 2, 0), torch.device("cpu"))
    local = LocalConfig(epochs=1, batch_size=10, lr=0.1, momentum=0.0, sampler="shuffle")
    trainer, random = kind(model, local), torch.Generator().manual_seed(2)
    rows, labels = torch.randn(37, inputs, generator=random), torch.randint(0, 2, (37,), generator=random)
    rows[:, 1] = rows[:, 0]
    theta = torch.randn(model.theta.numel(), generator=random)
    theta[0], theta[1] = 3e9, -3e9

    def total(kept: Tensor) -> Tensor:
        asked = [Clipping(theta, LocalData(rows[kept], labels[kept]), 1.0)] * 2
        return trainer.clipped_sums(asked)[0].total

    everybody = torch.arange(len(rows))
    whole = total(everybody)
    for row in range(len(rows)):
        assert float(torch.linalg.vector_norm(whole - total(everybody[everybody != row]))) < 1


@pytest.mark.parametrize("least", [4, 2])
def test_what_does_not_fit_into_a_devices_memory_is_halved(
    least: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """To the same bits, with a warning; what is left and does not fit is raised."""
    trainer, everybody = trainer_of("mlp", 0.9), tuple(range(len(SIZES)))
    expected = trained(trainer, everybody)
    real, sizes = VectorisedTrainer._train_chunk, list[int]()

    def full(self: VectorisedTrainer, starts: Tensor, work: Any, *more: Any) -> Any:
        sizes.append(len(work))
        if len(work) > least:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, starts, work, *more)

    monkeypatch.setattr(VectorisedTrainer, "_train_chunk", full)
    for _ in range(2):
        for client, (update, loss) in trained(trainer, everybody).items():
            assert torch.equal(update, expected[client][0]) and loss == expected[client][1]
    assert "do not fit into the device's memory" in caplog.text and max(sizes) > least
    assert max(sizes[-3:]) <= least  # it is remembered
    least = 0
    with pytest.raises(torch.OutOfMemoryError):
        trained(trainer, everybody)
