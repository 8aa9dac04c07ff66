"""Models: sizes, blocks, what is forbidden under differential privacy, and the flat vector."""

from __future__ import annotations

import copy
import itertools
import sys
import types
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedpriv.common.errors import OptionError
from fedpriv.config.schema import ModelConfig
from fedpriv.training.flat_model import Layout, layout_of
from fedpriv.training.models import build_model, refuse_batch_norm, resolve_model
from fedpriv.training.sequential import FlatModel, prefers_channels_last
from fedpriv.training.vectorisable import obstacle

GREY = (1, 28, 28)
COLOUR = (3, 32, 32)
ALL = ["linear", "mlp", "cnn", "cnn_agn", "resnet18", "resnet34"]


def build(
    name: str, shape: tuple[int, int, int] = GREY, classes: int = 10, seed: int = 0, **options: object
) -> nn.Module:
    return build_model(ModelConfig(name=name, **options), shape, classes, seed)  # type: ignore[arg-type]


# --- sizes and blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("linear", GREY, 7_850),
        ("mlp", GREY, 784 * 64 + 64 + 64 * 10 + 10),
        ("cnn", GREY, 80_202),
        ("cnn_agn", GREY, 993_098),
        # He et al.'s networks with a 3x3 stem: torchvision's 11,689,512 and 21,797,672 less their 1000-class heads and
        # 7x7 stems; a GroupNorm has as many parameters as the BatchNorm it replaces.
        ("resnet18", COLOUR, 11_689_512 - 513_000 - 9_408 + 1_728 + 5_130),
        ("resnet34", COLOUR, 21_797_672 - 513_000 - 9_408 + 1_728 + 5_130),
    ],
)
def test_numbers_of_parameters(name: str, shape: tuple[int, int, int], parameters: int) -> None:
    model = build(name, shape)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert layout_of(model).num_parameters == parameters


@pytest.mark.parametrize("name", ["cnn", "cnn_agn"])
def test_relu_after_pooling_gives_the_bits_that_it_gives_before(name: str) -> None:
    """The textbook's order is ReLU first."""

    swapped = []

    def textbook(module: nn.Module) -> nn.Module:
        parts = [textbook(part) for part in module] if isinstance(module, nn.Sequential) else []
        for place, (one, other) in enumerate(itertools.pairwise(parts)):
            if isinstance(one, nn.MaxPool2d):
                assert isinstance(other, nn.ReLU)
                parts[place : place + 2] = [other, one]
                swapped.append(place)
        return nn.Sequential(*parts) if parts else module

    ours, inputs = build(name), torch.randn(8, *GREY, generator=torch.Generator().manual_seed(0))
    found = []
    for model in (ours, textbook(copy.deepcopy(ours))):
        loss = nn.functional.cross_entropy(model(inputs), torch.arange(8))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        found.append(torch.cat([loss.reshape(1), *(part.reshape(-1) for part in gradients)]))
    assert torch.equal(*found) and bool((found[0] != 0).any()) and len(swapped) == 2


BLOCKS = {
    "linear": ["head"],
    "mlp": ["hidden", "head"],
    "cnn": ["conv1", "conv2", "hidden", "head"],
    "cnn_agn": ["conv1", "conv2", "hidden", "head"],
    "resnet18": ["stem", *(f"stage{s}_{i}" for s in range(1, 5) for i in (1, 2)), "head"],
    "resnet34": ["stem", *(f"stage{s}_{i + 1}" for s, n in enumerate((3, 4, 6, 3), 1) for i in range(n)), "head"],
}


@pytest.mark.parametrize("name", ALL)
def test_blocks_are_named_in_order_and_cover_the_flat_vector(name: str) -> None:
    layout = layout_of(build(name, COLOUR))
    assert [block.name for block in layout.blocks] == BLOCKS[name]
    assert layout.blocks[0].start == 0 and layout.blocks[-1].stop == layout.num_parameters
    for before, after in zip(layout.blocks, layout.blocks[1:], strict=False):
        assert before.stop == after.start
    assert all(block.stop > block.start for block in layout.blocks)


@pytest.mark.parametrize("name", ALL)
def test_the_layout_finds_every_parameter_at_its_place(name: str) -> None:
    model = FlatModel(build(name, COLOUR))
    named = dict(model.module.named_parameters())
    pieces = list(model.layout.split(model.theta))
    assert [piece for piece, _ in pieces] == list(named)
    for piece, view in pieces:
        assert torch.equal(view, named[piece]) and view.data_ptr() == named[piece].data_ptr()
    for block in model.layout.blocks:
        own = torch.cat([p.reshape(-1) for p in dict(model.module.named_children())[block.name].parameters()])
        assert torch.equal(model.theta[block.start : block.stop], own)


@pytest.mark.parametrize("name", ALL[:-1])
@pytest.mark.parametrize("shape", [GREY, COLOUR, (3, 48, 30)])
def test_models_take_the_pictures_they_were_built_for(name: str, shape: tuple[int, int, int]) -> None:
    model = build(name, shape, classes=7)
    model.eval()
    with torch.no_grad():
        assert model(torch.zeros(2, *shape)).shape == (2, 7)


def test_a_second_hidden_layer_is_a_block_of_its_own() -> None:
    layout = layout_of(build("cnn_agn", GREY, second_hidden=100))
    assert [block.name for block in layout.blocks] == ["conv1", "conv2", "hidden", "hidden2", "head"]


@pytest.mark.parametrize(("side", "name"), [(8, "linear"), (15, "linear"), (16, "cnn"), (28, "cnn")])
def test_auto_depends_on_the_pictures(side: int, name: str) -> None:
    assert resolve_model(ModelConfig(name="auto"), (1, side, 40)).name == name


@pytest.mark.parametrize(("name", "shape"), [("cnn", (1, 15, 28)), ("cnn_agn", (1, 27, 27)), ("resnet18", (3, 7, 7))])
def test_pictures_that_are_too_small_are_refused(name: str, shape: tuple[int, int, int]) -> None:
    with pytest.raises(OptionError, match=f"{shape[1]}x{shape[2]}"):
        build(name, shape)


def test_groups_must_divide_the_first_stage() -> None:
    with pytest.raises(OptionError, match=r"model\.groups"):
        build("resnet18", COLOUR, groups=7)


@pytest.mark.parametrize("name", ALL[:-1])
def test_the_seed_alone_decides_the_start(name: str) -> None:
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    one = FlatModel(build(name, COLOUR, seed=4)).theta
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(one, FlatModel(build(name, COLOUR, seed=4)).theta)
    assert not torch.equal(one, FlatModel(build(name, COLOUR, seed=5)).theta)


# --- what is forbidden -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_no_activation_works_in_place_and_no_batch_norm(name: str) -> None:
    model = build(name, COLOUR)
    for module in model.modules():
        assert not getattr(module, "inplace", False)
        assert not isinstance(module, nn.modules.batchnorm._BatchNorm)
        assert not getattr(module, "track_running_stats", False)
    assert not list(model.buffers())
    x = torch.randn(2, *COLOUR, generator=torch.Generator().manual_seed(0))
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    for module in model.modules():  # each module's input is the same after its forward pass (relu_ included)
        module.register_forward_pre_hook(lambda _, args: seen.append((args[0], args[0].clone())))
    model(x)
    assert len(seen) > 2 and all(torch.equal(given, kept) for given, kept in seen)


def custom(monkeypatch: pytest.MonkeyPatch, function: Callable[..., object]) -> str:
    module = types.ModuleType("someones_models")
    module.build = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "someones_models", module)
    return "someones_models.build"


def sequential(**layers: nn.Module) -> nn.Sequential:
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model


def test_batch_norm_is_refused_with_the_layers_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statistics would carry data past clipping and noise, and they do not travel."""

    def with_norm(shape: tuple[int, int, int], classes: int) -> nn.Module:
        norm = nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        return sequential(first=norm, head=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)))

    config = ModelConfig(name="custom", path=custom(monkeypatch, with_norm))
    with pytest.raises(OptionError, match=r"first\.1 is BatchNorm2d"):
        build_model(config, GREY, 10, 0)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.BatchNorm3d(4),
        nn.SyncBatchNorm(4),
        nn.LazyBatchNorm2d(),
        nn.InstanceNorm2d(4, track_running_stats=True),
    ],
)
def test_every_layer_with_running_statistics_is_refused(layer: nn.Module) -> None:
    with pytest.raises(OptionError, match=rf"layer deep\.0 is {type(layer).__name__}"):
        refuse_batch_norm(sequential(deep=nn.Sequential(layer), head=nn.Linear(4, 2)), "custom")


def test_norms_without_statistics_are_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_norm(shape: tuple[int, int, int], classes: int) -> nn.Module:
        norm = nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4))
        return sequential(first=norm, head=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)))

    build_model(ModelConfig(name="custom", path=custom(monkeypatch, with_norm)), GREY, 10, 0)


class _Loose(nn.Module):
    """A parameter outside any block."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.scale = nn.Linear(784, 10), nn.Parameter(torch.ones(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.flatten(1)) * self.scale


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda shape, classes: "a model", "torch.nn.Module, not str"),
        (lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(784, classes + 1)), "logits"),
        (lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(783, classes)), "RuntimeError"),
        (lambda shape, classes: nn.Embedding(9, classes), r"float32 \[n, 1, 28, 28\]: convert them \(x\.long"),
        (lambda shape: nn.Linear(1, 1), "TypeError"),
    ],
)
def test_a_custom_model_that_cannot_work_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., object], words: str
) -> None:
    with pytest.raises(OptionError, match=words) as refused:
        build_model(ModelConfig(name="custom", path=custom(monkeypatch, function)), GREY, 10, 0)
    assert "someones_models.build" in str(refused.value)


@pytest.mark.parametrize("path", [None, "build", "no.such.module.build", "fedpriv.training.models.no_such_function"])
def test_a_custom_path_that_leads_nowhere_is_refused(path: str | None) -> None:
    with pytest.raises(OptionError, match=r"model\.path"):
        build_model(ModelConfig(name="custom", path=path), GREY, 10, 0)


def test_parameters_at_the_top_of_a_model_are_blocks_of_their_own() -> None:
    """As a transformer's token and positions; also trained, alone and with others."""
    layout = layout_of(_Loose())
    assert [(block.name, block.start, block.stop) for block in layout.blocks] == [("scale", 0, 10), ("head", 10, 7860)]
    assert (layout.names, layout.shapes) == (("scale", "head.weight", "head.bias"), ((10,), (10, 784), (10,)))
    model = FlatModel(_Loose())
    assert obstacle(model, GREY) is None
    theta = torch.arange(7860.0)
    model.load(theta)
    found = dict(model.module.named_parameters())
    assert torch.equal(found["scale"], theta[:10]) and torch.equal(found["head.bias"], theta[-10:])


def test_a_weight_that_two_blocks_share_is_one_coordinate_of_the_first() -> None:
    tied = sequential(first=nn.Linear(4, 4), head=nn.Linear(4, 4))
    tied.head.weight = tied.first.weight  # type: ignore[union-attr]
    layout = layout_of(tied)
    assert layout.names == ("first.weight", "first.bias", "head.bias") and layout.num_parameters == 24
    assert layout.tied == (("first.weight", "head.weight"),)


# --- the flat vector -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linear", "cnn", "resnet18"])
def test_views_stay_views_after_backward_and_step(name: str) -> None:
    model = FlatModel(build(name, COLOUR))
    labels = torch.tensor([0, 1])
    for _ in range(2):
        model.grad.zero_()
        nn.functional.cross_entropy(model(torch.ones(2, *COLOUR)), labels).backward()
        model.theta.add_(model.grad, alpha=-0.1)
    for flat, of in ((model.theta, lambda p: p.data), (model.grad, lambda p: p.grad)):
        start = 0
        for parameter in model.module.parameters():
            view = of(parameter)
            assert view.data_ptr() == flat.data_ptr() + 4 * start and view.shape == parameter.shape
            start += parameter.numel()
        assert start == flat.numel()
    assert float(model.grad.norm()) > 0


def test_a_flat_step_is_the_optimisers_step() -> None:
    flat, plain = FlatModel(build("cnn", GREY)), build("cnn", GREY)
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1)
    images, labels = torch.rand(4, *GREY, generator=torch.Generator().manual_seed(3)), torch.tensor([1, 2, 3, 4])
    for model in (flat, plain):
        nn.functional.cross_entropy(model(images), labels).backward()
    flat.theta.add_(flat.grad, alpha=-0.1)
    optimiser.step()
    assert torch.allclose(flat.theta, nn.utils.parameters_to_vector(plain.parameters()), atol=1e-7)


def test_loading_sets_the_modules_parameters_and_checks_the_length() -> None:
    model = FlatModel(build("linear", GREY))
    model.load(torch.arange(7_850, dtype=torch.float32))
    assert torch.equal(nn.utils.parameters_to_vector(model.module.parameters()), torch.arange(7_850.0))
    with pytest.raises(ValueError, match="7849 parameters for a model of 7850"):
        model.load(torch.zeros(7_849))


def test_an_empty_layout_has_no_parameters() -> None:
    assert Layout((), (), ()).num_parameters == 0


def innermost_in(images: torch.Tensor) -> bool:
    return images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_channels_innermost_are_the_same_network_and_reach_every_layer(shape: tuple[int, int, int]) -> None:
    images, labels = torch.randn(8, *shape), torch.arange(8)
    found = []
    for innermost in (False, True):
        model = FlatModel(build_model(ModelConfig(name="cnn"), shape, 10, 0), channels_last=innermost)
        seen: list[bool] = []
        for layer in model.module.modules():
            if isinstance(layer, nn.MaxPool2d):
                layer.register_forward_hook(
                    lambda _, given, __, seen=seen: seen.append(
                        given[0].is_contiguous(memory_format=torch.channels_last)
                    )
                )
        logits = model(images)
        nn.functional.cross_entropy(logits, labels).backward()
        assert seen == 2 * [innermost]
        found.append((logits.detach(), model.grad.clone()))
    for usual, innermost_too in zip(*found, strict=True):
        torch.testing.assert_close(usual, innermost_too, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"), [("cnn", True), ("cnn_agn", True), ("resnet18", False), ("custom", False)]
)
def test_only_networks_known_to_gain_get_channels_innermost(name: str, expected: bool) -> None:
    assert prefers_channels_last(name, torch.device("cpu")) is expected
    assert not prefers_channels_last(name, torch.device("cuda"))
