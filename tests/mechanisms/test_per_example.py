"""Per-example gradients: equal to a loop of batch-size-1 gradients, by every way of computing them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from reference.per_example import clipped_sum
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.common.errors import OptionError
from fedpriv.config.schema import ModelConfig
from fedpriv.mechanisms.bookkeeping import unfolded
from fedpriv.mechanisms.clipped_sums import block_on_gpu
from fedpriv.mechanisms.film import Film
from fedpriv.mechanisms.noise import KEPT_BACK, clip_factors
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.training.models import build_model
from fedpriv.training.sequential import FlatModel

MODELS = [
    ("linear", (1, 8, 8), 7),
    ("mlp", (1, 8, 8), 7),
    ("cnn", (1, 28, 28), 5),
    ("cnn_agn", (3, 32, 32), 3),
    ("resnet18", (3, 8, 8), 3),
]


def batch(shape: tuple[int, int, int], examples: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(5)
    return torch.randn(examples, *shape, generator=random), torch.arange(examples) % 10


def module(name: str, shape: tuple[int, int, int]) -> nn.Module:
    return build_model(ModelConfig(name=name), shape, 10, seed=1)  # type: ignore[arg-type, call-arg]


@pytest.mark.rotates(4)
@pytest.mark.parametrize("mode", [None, "vmap"])
@pytest.mark.parametrize(("name", "shape", "examples"), MODELS, ids=[model[0] for model in MODELS])
def test_equal_to_a_loop_of_single_gradients(name: str, shape: tuple, examples: int, mode: str | None) -> None:
    model, (images, labels) = module(name, shape), batch(shape, examples)
    _, norms = clipped_sum(model, images, labels, 1.0)
    bound = sorted(norms)[examples // 2]  # some are clipped, some are not
    expected, _ = clipped_sum(model, images, labels, bound * (1 - KEPT_BACK))
    way = PerExampleGradients(model, mode)
    found = way.clipped_sum(images, labels, bound)
    assert way.mode == (mode or "bookkeeping")  # every shipped model gets the fast way
    assert torch.allclose(found.norms, torch.tensor(norms, dtype=torch.float64), rtol=1e-5)
    assert float((found.total - expected).norm() / expected.norm()) < 1e-4
    assert float(found.total.double().norm()) <= examples * bound
    assert found.loss == pytest.approx(nn.functional.cross_entropy(model(images), labels).item(), rel=1e-5)


def test_physical_batches_change_nothing() -> None:
    model, (images, labels) = module("cnn", (1, 28, 28)), batch((1, 28, 28), 7)
    whole = PerExampleGradients(model).clipped_sum(images, labels, 1.0)
    parts = PerExampleGradients(model, physical=3).clipped_sum(images, labels, 1.0)
    assert torch.allclose(whole.total, parts.total, atol=1e-6) and torch.allclose(whole.norms, parts.norms)


def test_no_example_is_longer_than_the_bound() -> None:
    model, (images, labels) = module("cnn", (1, 28, 28)), batch((1, 28, 28), 20)
    way = PerExampleGradients(model)
    for k in range(20):
        total = way.clipped_sum(images[k : k + 1], labels[k : k + 1], 0.01).total
        assert 0.00999 < float(total.double().norm()) <= 0.01


def test_an_empty_batch_is_zero() -> None:
    found = PerExampleGradients(module("mlp", (1, 8, 8))).clipped_sum(*batch((1, 8, 8), 0), 1.0)
    assert not found.total.any() and len(found.norms) == 0


@cache
def settled(mode: str | None) -> PerExampleGradients:
    """Of a convolutional network. To settle takes longer than a sum, and always ends the same."""
    return PerExampleGradients(module("cnn", (1, 28, 28)), mode)


@pytest.mark.parametrize("mode", [None, "vmap"])
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 1e30])
def test_a_broken_example_contributes_nothing_and_spoils_nothing(mode: str | None, broken: float) -> None:
    images, labels = batch((1, 28, 28), 4)
    spoilt = images.clone()
    spoilt[2] = broken
    keep = torch.tensor([0, 1, 3])
    way = settled(mode)
    found = way.clipped_sum(spoilt, labels, 1.0)
    expected = way.clipped_sum(images[keep], labels[keep], 1.0).total
    if broken == 1e30:  # finite pictures may give finite gradients; what counts is the bound
        assert float((found.total - expected).norm()) <= 1.0
    else:
        assert torch.allclose(found.total, expected, atol=1e-6)
    assert torch.isnan(spoilt[2]).all() or not torch.isfinite(spoilt[2]).any() or broken == 1e30  # input untouched


def test_clip_factors() -> None:
    norms = torch.tensor([0.0, 0.5, 1.0, 4.0, float("nan"), float("inf")], dtype=torch.float64)
    expected = torch.tensor([1.0, 1.0, 1.0, 0.25, 0.0, 0.0], dtype=torch.float64)
    expected[2:4] *= 1 - KEPT_BACK
    assert torch.allclose(clip_factors(norms, 1.0), expected, rtol=1e-12)
    assert (clip_factors(norms, 1.0) * norms)[:4].max() <= 1.0


# --- what book-keeping must not be used for --------------------------------------------------------------


class Tied(nn.Module):
    """Uses one layer's weight a second time, behind the layer's back."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(images.flatten(1)))
        return self.head(torch.tanh(hidden @ self.body.weight))


class Unknown(nn.Module):
    """A layer that book-keeping does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.norm: nn.Module = nn.PReLU(64)
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(images.flatten(1)))


class Mixing(Unknown):
    """Subtracts the batch's mean: alone, an example's gradient is another."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Linear(64, 64)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        return self.head(torch.tanh(self.norm(flat - flat.mean(0))))


@pytest.mark.parametrize("kind", [Tied, Unknown, Mixing])
def test_unsuitable_models_take_the_general_way_and_stay_exact(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, (images, labels) = kind(), batch((1, 8, 8), 4)
    way = PerExampleGradients(model)
    found = way.clipped_sum(images, labels, 0.5)
    expected, norms = clipped_sum(model, images, labels, 0.5 * (1 - KEPT_BACK))
    assert way.mode == "vmap"
    assert torch.allclose(found.norms, torch.tensor(norms, dtype=torch.float64), rtol=1e-4)
    assert torch.allclose(found.total.double(), expected, atol=1e-5)


def test_the_model_is_left_alone() -> None:
    model = FlatModel(module("cnn", (1, 28, 28)))
    before = model.theta.clone()
    for mode in (None, "vmap"):
        PerExampleGradients(model.module, mode).clipped_sum(*batch((1, 28, 28), 3), 1.0)
    assert torch.equal(model.theta, before) and not model.grad.any()
    assert not any(layer._forward_hooks for layer in model.module.modules())


LAYERS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5, bias=False), nn.Tanh(), nn.Linear(5, 10)),
    "conv": lambda: nn.Sequential(nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(48, 10)),
    "conv of many channels": lambda: nn.Sequential(
        nn.Conv2d(1, 64, 5, dilation=1, bias=False), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(256, 10)
    ),
    "group norm": lambda: nn.Sequential(nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(256, 10)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_opacus_formulas_give_our_sums_for_every_kind_of_layer(name: str) -> None:
    torch.manual_seed(3)
    model, (images, labels) = LAYERS[name](), batch((1, 8, 8), 11)
    ours = PerExampleGradients(model, "bookkeeping").clipped_sum(images, labels, 1.0)
    theirs = PerExampleGradients(model, "opacus").clipped_sum(images, labels, 1.0)
    assert int((ours.norms > 1).sum()) > 0, "something is clipped"
    assert torch.allclose(ours.norms, theirs.norms, rtol=1e-5) and theirs.loss == pytest.approx(ours.loss, rel=1e-6)
    assert float((ours.total - theirs.total).norm()) <= 1e-5 * float(ours.total.norm())
    assert not any(layer._forward_hooks for layer in model.modules())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            lambda: nn.Sequential(
                nn.Conv2d(1, 2, 1), nn.InstanceNorm2d(2, affine=True), nn.Flatten(), nn.Linear(128, 10)
            ),
            "1 is",
        ),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(128, 10)), "BatchNorm2d"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.EmbeddingBag(3, 10)), "2 is EmbeddingBag"),
        (lambda: nn.Sequential(nn.Flatten(), nn.RMSNorm(64), nn.Linear(64, 10)), "no formula for RMSNorm"),
        (lambda: nn.Sequential(nn.Flatten(), Film(64, -1), nn.Linear(64, 10)), "no formula for Film"),
        (lambda: Mixing(), "mean.* keep to its rows"),
        (lambda: Tied(), "body.weight is used outside"),
    ],
)
def test_opacus_formulas_are_refused_where_independence_is_not_proved(
    kind: Callable[[], nn.Module], words: str
) -> None:
    with pytest.raises(OptionError, match=f"local.clipping=opacus.*{words}.*allowed: fedpriv"):
        PerExampleGradients(kind(), "opacus").clipped_sum(*batch((1, 8, 8), 2), 1.0)


def test_opacus_leaves_a_padding_token_as_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 4, padding_idx=40), nn.Flatten(), nn.Linear(12, 2))
    ids, targets = torch.tensor([[40, 1, 2], [3, 40, 40]]), torch.tensor([0, 1])
    ways = [PerExampleGradients(model, mode, vocabulary=50) for mode in ("opacus", "bookkeeping")]
    sums = [way.clipped_sum(ids, targets, 100.0).total for way in ways]
    assert ways[0].mode == "opacus" and torch.allclose(sums[0], sums[1], atol=1e-6)


def test_a_model_that_raises_for_made_up_examples_is_refused_by_its_option() -> None:
    model = nn.Sequential(nn.Embedding(10, 3), nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(OptionError, match=r"^model=Sequential: raises IndexError .*index out of range.*; allowed: "):
        PerExampleGradients(model, vocabulary=1000).settle((4,), torch.device("cpu"))


def test_opacus_says_the_same() -> None:
    from opacus.grad_sample import GradSampleModule

    model, (images, labels) = module("cnn", (1, 28, 28)), batch((1, 28, 28), 6)
    found = PerExampleGradients(model).clipped_sum(images, labels, 1e9)
    wrapped = GradSampleModule(model, loss_reduction="sum")
    nn.functional.cross_entropy(wrapped(images), labels, reduction="sum").backward()
    samples = torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], 1)
    assert torch.allclose(found.norms, samples.double().norm(dim=1), rtol=1e-5)
    assert torch.allclose(found.total, samples.sum(0).double(), atol=1e-5)


@cache
def small(mode: str) -> PerExampleGradients:
    """Settled before a server's parameters come, as in a run."""
    way = PerExampleGradients(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)), mode, physical=4
    )
    way.settle((1, 2, 2), torch.device("cpu"))
    return way


def _extreme(module: Any, scale_in: float, logit: float) -> None:
    """The network's output layer sees inputs of ``scale_in`` and answers class 1 beyond doubt."""
    first, last = module[1], module[3]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        first.bias.fill_(scale_in)
        last.bias.copy_(torch.tensor([0.0, logit, 0.0]))


@pytest.mark.rotates(4)
@pytest.mark.parametrize("mode", ["bookkeeping", "vmap", "opacus"])
@pytest.mark.parametrize("bound", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e17, 1e30, 1e38])
def test_no_parameters_make_an_example_longer_than_the_bound(scale: float, label: int, bound: float, mode: str) -> None:
    """A server chooses theta. Gradients whose squares vanish in float32, and inputs that make up for it, have a length
    all the same (with float32 squares this one came to 3,997 bounds).
    """
    for logit in (0.0, 30.0, 54.0, 80.0, 87.0, 100.0):
        gradients = small(mode)
        _extreme(gradients.module, scale, logit)
        found = gradients.clipped_sum(torch.ones(1, 1, 2, 2), torch.tensor([label]), bound)
        assert float(found.total.double().norm()) <= bound, (logit, float(found.norms[0]))


def test_the_mode_is_settled_before_a_servers_parameters_are_loaded() -> None:
    """At parameters under which all gradients vanish, any computation agrees with any other."""
    from fedpriv.config.schema import LocalConfig
    from fedpriv.training.sequential import FlatModel, LocalData, SequentialTrainer

    seen: list[float] = []
    config = LocalConfig(epochs=1, steps=None, batch_size=2, lr=0.1, momentum=0.0, sampler="poisson")
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), torch.device("cpu"))
    initial = float(model.theta.norm())
    trainer = SequentialTrainer(model, config)
    real = PerExampleGradients._settle

    def watched(self: PerExampleGradients, *given: object) -> None:
        seen.append(float(model.theta.norm()))
        real(self, *given)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PerExampleGradients, "_settle", watched)
        trainer.clipped_sum(torch.zeros_like(model.theta), LocalData(torch.ones(2, 1, 2, 2), torch.tensor([0, 1])), 1.0)
    assert seen == [initial] and initial > 0


@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
def test_unfolding_in_one_copy_is_torchs(padding: Any, stride: Any, dilation: Any) -> None:
    """As a GPU does it: for any strides of the inputs, and for a part of a larger tensor."""
    whole = torch.randn(5, 3, 10, 8)
    for inputs in (whole, whole[1:4], whole.transpose(2, 3), whole.contiguous(memory_format=torch.channels_last)):
        arguments = (inputs, (3, 2), dilation, padding, stride)
        assert torch.equal(unfolded(*arguments), functional.unfold(*arguments))


def test_a_gpus_block_holds_most_poisson_batches() -> None:
    assert [block_on_gpu(expected) for expected in (1, 32, 60, 64, 250, 10_000)] == [16, 48, 80, 80, 288, 512]
    random = torch.Generator().manual_seed(0)
    drawn = torch.poisson(torch.full((10_000,), 60.0), generator=random)
    assert float((drawn <= block_on_gpu(60)).float().mean()) > 0.99


def test_kernels_that_repeat_are_asked_for_while_sums_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients, asked = PerExampleGradients(module("cnn", (1, 28, 28))), list[bool]()
    real = PerExampleGradients._add_by_bookkeeping

    def watched(self: PerExampleGradients, *arguments: Any) -> Any:
        asked.append(torch.backends.cudnn.deterministic)
        return real(self, *arguments)

    monkeypatch.setattr(PerExampleGradients, "_add_by_bookkeeping", watched)
    gradients.clipped_sum(*batch((1, 28, 28), 3), 1.0)
    assert set(asked) == {True} and not torch.backends.cudnn.deterministic


class OwnTable(nn.Module):
    """Reads, in a table of its own states, the row that its first number names."""

    def __init__(self) -> None:
        super().__init__()
        self.states, self.out = nn.Linear(8, 12), nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        tables, named = self.states(inputs).tanh().view(-1, 4, 3), (inputs[:, 0] / 2).round().abs().long()
        rows = [functional.embedding(one, table) for one, table in zip(named, tables, strict=True)]
        return self.out(torch.stack(rows))


class Solving(nn.Module):
    """Raises for blank examples where the server sends zero for ``ridge``."""

    def __init__(self) -> None:
        super().__init__()
        self.ridge, self.out = nn.Parameter(torch.ones(1)), nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        square = inputs.view(-1, 3, 3)
        gram = square @ square.mT + self.ridge * torch.eye(3)
        return self.out(torch.linalg.solve(gram, square[:, 0]))


def test_a_number_beyond_its_own_table_reads_no_other_examples() -> None:
    """vmap lays examples' tables behind one another: all but the last example read in the last one's table."""
    torch.manual_seed(0)
    gradients, targets = PerExampleGradients(OwnTable(), block=32), torch.arange(32) % 2
    inputs = torch.randn(32, 8).clamp(-1, 1)
    inputs[:, 0] = 8.0 * torch.arange(31, -1, -1)
    gradients.settle((8,), torch.device("cpu"))
    try:
        sums = [gradients.clipped_sum(inputs[:many], targets[:many], 1.0).total for many in (32, 31)]
    except IndexError:
        return  # no such row: a participation leaves out who raises
    assert float((sums[0] - sums[1]).norm()) <= 1


def test_blank_examples_raise_only_where_an_example_does() -> None:
    """Else a batch that fills its blocks has a sum, and one example more leaves nothing of it."""
    torch.manual_seed(0)
    model = Solving()
    gradients, inputs, targets = PerExampleGradients(model, block=4), torch.randn(5, 9), torch.arange(5) % 2
    gradients.settle((9,), torch.device("cpu"))
    with torch.no_grad():
        model.ridge.zero_()
    sums = [gradients.clipped_sum(inputs[:many], targets[:many], 1.0).total for many in (4, 5)]
    assert gradients.physical == 4 and float((sums[1] - sums[0]).norm()) <= 1
