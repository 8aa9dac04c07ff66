"""Sums over persons against what a person could try: many rows, huge rows, broken rows, rows that cancel."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpriv.config.schema import LocalConfig
from fedpriv.data.partition import at_most_each
from fedpriv.mechanisms.clipped_sums import ClippedSum, Members, measured
from fedpriv.mechanisms.noise import KEPT_BACK
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.training.sequential import Clipping, FlatModel, LocalData, SequentialTrainer
from fedpriv.training.stacked_gradients import Chain
from fedpriv.training.vectorised import VectorisedTrainer

BOUND = 0.3
LOCAL = LocalConfig(epochs=1, batch_size=64, lr=0.1, momentum=0.0, sampler="poisson")


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "tanh":  # no chain: gradients of rows are formed
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def people(rows: int = 40, persons: int = 11) -> LocalData:
    """Negative numbers among them, and not in a row."""
    random = torch.Generator().manual_seed(3)
    unit = torch.randint(-5, persons - 5, (rows,), generator=random) * 1_000_003
    inputs, targets = torch.randn(rows, 6, generator=random), torch.randint(0, 2, (rows,), generator=random)
    return LocalData(inputs, targets, unit)


def sum_of(
    kind: str, data: LocalData, trainer: type[SequentialTrainer] = VectorisedTrainer, scale: float = 1.0
) -> ClippedSum:
    made = trainer(FlatModel(model_of(kind)), LOCAL)
    return made.clipped_sums([Clipping(made.model.theta.clone() * scale, data, BOUND)])[0]


def joined(data: LocalData, inputs: Tensor, unit: int, targets: Tensor | None = None) -> LocalData:
    """With further rows of one person between the others'."""
    assert data.unit is not None
    targets = torch.zeros(len(inputs), dtype=torch.int64) if targets is None else targets
    parts = ((data.inputs, inputs), (data.targets, targets), (data.unit, torch.full((len(inputs),), unit)))
    return LocalData(*(torch.cat([own[:7], more, own[7:]]) for own, more in parts))


@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorisedTrainer])
@pytest.mark.parametrize("kind", ["relu", "tanh"])
def test_the_sum_is_of_each_persons_mean_gradient_clipped_once(kind: str, trainer: type[SequentialTrainer]) -> None:
    data, model = people(), model_of(kind)
    assert data.unit is not None
    expected, norms = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64), []
    for person in data.unit.unique():
        rows = data.unit == person
        loss = nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows])
        own = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))]).double()
        norms.append(float(own.norm()))
        expected += own * min(1.0, BOUND * (1 - KEPT_BACK) / norms[-1])
    found = sum_of(kind, data, trainer)
    assert torch.allclose(found.total, expected, atol=1e-6) and found.norms.tolist() == pytest.approx(norms, rel=1e-4)
    assert found.loss == pytest.approx(nn.functional.cross_entropy(model(data.inputs), data.targets).item(), rel=1e-5)


HOSTILE = {
    "a thousand huge rows": torch.full((1000, 6), 1e18),
    "one huge row": torch.full((1, 6), 3e4),
    "rows that repeat": torch.ones(64, 6).mul(50),
    "rows that cancel": torch.cat([torch.full((33, 6), 1e12), torch.full((33, 6), -1e12), torch.ones(3, 6)]),
    "rows of many sizes": torch.logspace(-30, 30, 61).unsqueeze(1).expand(61, 6).contiguous(),
    "nan in one row of twenty": torch.ones(20, 6).index_fill(0, torch.tensor([13]), math.nan),
    "infinite": torch.full((3, 6), math.inf),
    "beyond float32": torch.full((5, 6), 3e38),
}


@pytest.mark.parametrize(("kind", "scale"), [("relu", 1.0), ("relu", 1e6), ("tanh", 1e6)])
def test_no_person_moves_the_sum_by_more_than_the_bound(kind: str, scale: float) -> None:
    """Whatever its rows are and however many, the others' parts stay; a person with a broken row adds nothing."""
    data = people()
    without = sum_of(kind, data, scale=scale).total
    moved = {}
    for name, rows in HOSTILE.items():
        labels = torch.arange(len(rows)) % 2
        found = sum_of(kind, joined(data, rows, 77, labels), scale=scale)
        moved[name] = float((found.total - without).norm())
        assert moved[name] <= BOUND * (1 - 2.0**-12), name
    assert max(moved[name] for name in ("nan in one row of twenty", "infinite")) < 1e-12
    assert moved["a thousand huge rows"] > 0.9 * BOUND or scale > 1  # the bound is not far away


def test_adversarial_rows_that_cancel_do_not_hide_behind_rounding() -> None:
    """Of rows a million times as long as their mean the float64 sum depends on its order: it is measured too long."""
    count = torch.tensor([2**20])
    exact, mass = torch.tensor([1e-12], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)
    length = float(measured(exact, mass, count))
    error = 2**20 * 2.0**-53  # how far the computed mean may be from the exact one
    assert error / length <= 2.0**-30  # DRIFT / 4, in units of the bound after clipping


def test_what_others_hold_changes_no_bit_of_a_person() -> None:
    """Beside one or many, of like or unlike numbers of rows: the sum without the others is the same up to 1e-12."""
    data = people(60, 25)
    assert data.unit is not None
    alone = data.unit == data.unit[0]
    own = sum_of("relu", LocalData(data.inputs[alone], data.targets[alone], data.unit[alone])).total
    rest = sum_of("relu", LocalData(data.inputs[~alone], data.targets[~alone], data.unit[~alone])).total
    assert float((sum_of("relu", data).total - own - rest).norm()) < 1e-12


WIDTHS = [(6, 8, 2), (30, 2), (30, 8), (13, 128, 2), (61, 7, 5)]


@pytest.mark.parametrize("widths", WIDTHS)
def test_a_row_more_leaves_all_others_as_they_were(widths: tuple[int, ...]) -> None:
    """Of single examples too: one that contributes nothing, before all others, moves their places by one."""
    random = torch.Generator().manual_seed(0)
    layers = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
    trainer = VectorisedTrainer(FlatModel(nn.Sequential(nn.Flatten(), *layers[:-1])), LOCAL)
    theta = torch.randn(trainer.model.theta.shape, generator=random)
    inputs, targets = torch.randn(50, widths[0], generator=random), torch.randint(0, 2, (50,), generator=random)
    nothing = torch.full((1, widths[0]), math.nan)
    for unit in (None, torch.arange(51) // 3):
        plain = LocalData(inputs, targets, None if unit is None else unit[:50])
        beside = None if unit is None else torch.cat([torch.tensor([99]), unit[:50]])
        more = LocalData(torch.cat([nothing, inputs]), torch.cat([targets[:1], targets]), beside)
        one, two = (trainer.clipped_sums([Clipping(theta, data, BOUND)])[0] for data in (plain, more))
        assert float((one.total - two.total).norm()) < 1e-12


def test_a_block_is_halved_until_its_rows_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain.of(model_of("relu"))
    assert chain is not None
    thetas = [part.unsqueeze(0) for part in model_of("relu").parameters()]
    assert chain.block(thetas, 32) == 32
    monkeypatch.setattr(Chain, "_computes_apart", lambda self, shapes, clients, size, device: size <= 8)
    assert chain.block(thetas, 64) == 8


@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorisedTrainer])
@pytest.mark.parametrize("kind", ["relu", "tanh"])
@pytest.mark.parametrize("unit", [None, torch.zeros(0, dtype=torch.int64)])
def test_a_sample_that_nobody_is_in_is_zero(kind: str, trainer: type[SequentialTrainer], unit: Tensor | None) -> None:
    """No client may fail at it: a reply that does not come says that nobody was drawn."""
    data = people()
    found = sum_of(kind, LocalData(data.inputs[:0], data.targets[:0], unit), trainer)
    assert len(found.norms) == 0 and float(found.total.norm()) == 0 and found.loss == 0
    assert found.total.dtype == torch.float64 and len(found.total) == sum(
        p.numel() for p in model_of(kind).parameters()
    )


def test_one_person_with_all_rows_and_nobody() -> None:
    data = people()
    one = sum_of("relu", LocalData(data.inputs, data.targets, torch.zeros(len(data), dtype=torch.int64)))
    assert len(one.norms) == 1 and float(one.total.norm()) <= BOUND * (1 - 2.0**-12)
    nobody = sum_of("relu", LocalData(data.inputs[:0], data.targets[:0], torch.zeros(0, dtype=torch.int64)))
    assert len(nobody.norms) == 0 and float(nobody.total.norm()) == 0


def test_several_clients_at_once_get_what_each_gets_alone() -> None:
    data, trainer = people(), VectorisedTrainer(FlatModel(model_of("relu")), LOCAL)
    theta = trainer.model.theta.clone()
    assert data.unit is not None
    few = LocalData(data.inputs[:9], data.targets[:9], data.unit[:9])
    rows = LocalData(data.inputs[:9], data.targets[:9])  # another unit beside them
    asked = [Clipping(theta, data, BOUND), Clipping(theta * 1.5, few, 0.1), Clipping(theta, rows, BOUND)]
    for one, beside in zip(asked, trainer.clipped_sums(asked), strict=True):
        (alone,) = trainer.clipped_sums([one])
        assert torch.allclose(alone.total, beside.total, atol=1e-7) and len(alone.norms) == len(beside.norms)


def test_the_median_bound_is_of_persons() -> None:
    data = people()
    plain = PerExampleGradients(model_of("relu"), "vmap")
    norms = plain.clipped_sum(data.inputs, data.targets, BOUND, unit=data.unit).norms
    found = plain.clipped_sum(data.inputs, data.targets, BOUND, "median", data.unit)
    again = plain.clipped_sum(data.inputs, data.targets, float(norms.median()), unit=data.unit)
    assert torch.equal(found.total, again.total)


def test_members_are_grouped_by_like_numbers_of_rows() -> None:
    unit = torch.tensor([5, 5, -1, 9, 9, 9, -1, 9, 9, 3])
    members = Members.of(unit)
    seen = {}
    for persons, rows in members.alike():
        for person, own in zip(persons.tolist(), rows, strict=True):
            seen[person] = sorted(own[own >= 0].tolist())
            assert rows.shape[1] in (1, 2, 8)
    assert seen == {0: [2, 6], 1: [9], 2: [0, 1], 3: [3, 4, 5, 7, 8]}


# --- the cap on rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3, 100])
def test_a_cap_keeps_so_many_rows_and_looks_at_nobody_else(most: int) -> None:
    """Without any one person, every other keeps the same of its own rows: neighbours stay neighbours."""
    rng = np.random.default_rng(0)
    unit = rng.integers(0, 12, 90)
    kept = at_most_each(unit, most, seed=4)
    assert (np.diff(kept) > 0).all()
    for person in range(12):
        own = np.flatnonzero(unit == person)
        assert len(np.intersect1d(kept, own)) == min(most, len(own))
        others = np.flatnonzero(unit != person)
        assert np.array_equal(others[at_most_each(unit[others], most, seed=4)], np.setdiff1d(kept, own))
        renamed = np.where(unit == person, -(10**12), unit * 7)
        assert np.array_equal(at_most_each(renamed, most, seed=4), kept)
    if most == 3:
        assert not np.array_equal(at_most_each(unit, most, seed=5), kept)
