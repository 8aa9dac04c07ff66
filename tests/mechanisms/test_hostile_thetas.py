"""Whatever theta a server sends, one example moves the computed sum of clipped gradients by no more than the bound.

What is measured is what is released: the sum itself, not a norm that somebody believed. Thetas are searched for:
gradient ascent on how far a layer's terms cancel, then a climb over the scales of the layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.mechanisms.bookkeeping import DRIFT, Trace, gamma
from fedpriv.mechanisms.clipped_sums import excess
from fedpriv.mechanisms.noise import KEPT_BACK
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.training.models import build_model
from fedpriv.training.sequential import Clipping, FlatModel, LocalData
from fedpriv.training.vectorised import VectorisedTrainer

CHANNELS, SIDE = 64, 4

Build = Callable[[], nn.Module]


def ghost(kernel: int = 1, bias: bool = False) -> nn.Module:
    """The second convolution's norm comes from Gram matrices; its GroupNorm makes its terms cancel."""
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 1),
        nn.Conv2d(CHANNELS, CHANNELS, kernel, padding=kernel // 2, bias=bias),
        nn.GroupNorm(8, CHANNELS),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(CHANNELS, 3),
    )


def explicit() -> nn.Module:
    """Few channels: the convolution's gradients are formed, its bias sums over positions."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(1, 4), nn.Flatten(), nn.Linear(64, 3)
    )


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 32), nn.ReLU(), nn.Linear(32, 3))


def custom() -> nn.Module:
    """LayerNorm is not known to book-keeping: vmap."""
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.LayerNorm([8, 2, 2]), nn.Flatten(), nn.Linear(32, 3))


NETWORKS: dict[str, tuple[Build, int | None]] = {  # and the layer whose terms are to cancel
    "ghost 1x1": (ghost, 1),
    "ghost 3x3 with a bias": (partial(ghost, 3, True), 1),
    "explicit": (explicit, 1),
    "group norm": (explicit, 2),
    "linear": (linear, 1),
    "custom": (custom, 0),
}


def pictures(examples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(examples, 1, SIDE, SIDE, generator=random), torch.arange(examples) % 3


def cancelling(module: nn.Module, layer: int, images: Tensor, labels: Tensor, steps: int) -> nn.Module:
    """Gradient ascent on log(sum of the terms' lengths) - log(length of the gradient), in float64: how far the terms
    of one layer cancel in the first example's gradient.
    """
    module, seen = module.double(), []
    hook = module[layer].register_forward_hook(lambda _, inputs, outputs: seen.append((inputs[0], outputs)))
    ascent = torch.optim.Adam(module.parameters(), lr=0.03)
    for _ in range(steps):
        seen.clear()
        loss = functional.cross_entropy(module(images[:1].double()), labels[:1])
        inputs, outputs = seen[0]
        of_outputs, *gradient = torch.autograd.grad(loss, [outputs, *module.parameters()], create_graph=True)
        terms = of_outputs.square().sum() * inputs.square().sum()
        own = list(module[layer].parameters())
        places = [k for k, p in enumerate(module.parameters()) if any(p is q for q in own)]
        length = sum(gradient[k].square().sum() for k in places)
        ascent.zero_grad()
        (length.clamp(min=1e-60).log() - terms.clamp(min=1e-60).log()).backward()
        ascent.step()
    hook.remove()
    return module.float()


def moved_by_one(
    module: nn.Module, images: Tensor, labels: Tensor, mode: str | None = None, alone: bool = True
) -> float:
    """How far the first example moves the released sum, in units of the bound; alone, or beside all others."""
    way = PerExampleGradients(module, mode, physical=8)
    with_one = way.clipped_sum(images[: 1 if alone else None], labels[: 1 if alone else None], 1.0).total.double()
    return float(with_one.norm() if alone else (with_one - way.clipped_sum(images[1:], labels[1:], 1.0).total).norm())


def scaled(module: nn.Module, scales: np.ndarray) -> nn.Module:
    """A copy with each parameter times 10^scale, and with channels that differ by 10^scale (of the second half) within
    each group of 8, on the way in and out.
    """
    found, count = copy.deepcopy(module), len(scales) // 2
    with torch.no_grad():
        for parameter, scale, share in zip(found.parameters(), scales[:count], scales[count:], strict=True):
            value = parameter.detach().clone()
            for dim in range(min(2, value.ndim)):
                if value.shape[dim] % 8 == 0:
                    groups = value.unflatten(dim, (-1, 8))
                    mean = groups.mean(dim + 1, keepdim=True)
                    value = (mean + (groups - mean) * 10.0 ** min(0.0, share)).flatten(dim, dim + 1)
            parameter.copy_(value * 10.0**scale)
    return found


#: Small pictures, on a large constant, into small weights with equal channels: the climb begins there, and anywhere.
STEEP = (0.5, 5.0, -2.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0)


def climb(module: nn.Module, measure: Callable[[nn.Module], float], tries: int, seed: int) -> float:
    """The largest measure that a random climb over the scales of the layers finds."""
    random, count = np.random.default_rng(seed), len(list(module.parameters()))
    place = np.array([*STEEP[:count], *[-9.0] * count])
    if seed % 2:
        place = np.concatenate([random.uniform(-2, 4, count), random.uniform(-9, 0, count)])
    best = measure(scaled(module, place))
    for _ in range(tries):
        moved = place + random.standard_normal(2 * count) * random.choice([0.0, 0.1, 0.3])
        found = measure(scaled(module, np.clip(moved, -9, 9)))
        if found >= best:
            place, best = moved, found
    return best


def worst(name: str, restarts: int, steps: int, tries: int) -> float:
    build, layer = NETWORKS[name]
    found = 0.0
    for seed in range(restarts):
        torch.manual_seed(seed)
        images, labels = pictures(9, seed)
        module = build()
        measure = partial(moved_by_one, images=images, labels=labels)
        found = max(found, climb(module, measure, tries, seed))
        if layer is not None:
            module = cancelling(module, layer, images, labels, steps)
            together = moved_by_one(module, images, labels, alone=False)
            found = max(found, measure(module), together, climb(module, measure, tries // 2, seed + 100))
    return found


@pytest.mark.rotates(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_no_theta_that_a_search_finds_makes_an_example_longer_than_the_bound(name: str) -> None:
    assert 0 < worst(name, restarts=2, steps=15, tries=10) <= 1


def hostile_resnet(name: str, constant: float, small: float, images: Tensor) -> nn.Module:
    """Large constant inputs to the second stage's 1x1 shortcut, whose channels are the same within each group of its
    GroupNorm, on the way in too; the main paths of the blocks are silent.
    """
    module = build_model(ModelConfig(name=name), tuple(images.shape[1:]), 10, 1)  # type: ignore[arg-type, call-arg]
    blocks = dict(module.named_children())
    last = max(block for block in blocks if block.startswith("stage1"))
    with torch.no_grad():
        for block in blocks:
            if block.startswith("stage"):
                blocks[block][0].main[4].weight.zero_()
        blocks[last][0].main[4].bias.fill_(constant)
        first, norm = blocks["stage2_1"][0].shortcut
        size = norm.num_channels // norm.num_groups
        rows = first.weight.unflatten(0, (-1, size))
        first.weight.copy_(small * rows[:, :1].expand_as(rows).flatten(0, 1))
        following = blocks["stage3_1"][0].shortcut[0].weight
        columns = following.unflatten(1, (-1, size))
        following.copy_(columns[:, :, :1].expand_as(columns).flatten(1, 2))
    return module


@pytest.mark.rotates(2)
@pytest.mark.parametrize("name", ["resnet18", "resnet34"])
def test_resnets_under_large_constants_and_equal_channels(name: str) -> None:
    random = torch.Generator().manual_seed(0)
    images, labels = torch.randn(1, 3, 8, 8, generator=random), torch.tensor([0])
    for constant, small in ((1e5, 0.01), (1e6, 0.001)):
        module = hostile_resnet(name, constant, small, images)
        assert 0 < moved_by_one(module, images, labels, "bookkeeping") <= 1, (constant, small)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-7, 7), min_size=14, max_size=14), st.sampled_from(sorted(NETWORKS)), st.booleans())
def test_any_scales_of_the_layers(scales: list[float], name: str, alone: bool) -> None:
    torch.manual_seed(1)
    module = NETWORKS[name][0]()
    count = len(list(module.parameters()))
    images, labels = pictures(5)
    assert moved_by_one(scaled(module, np.array(scales[:count] + scales[-count:])), images, labels, None, alone) <= 1


# --- who else is in the batch ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bookkeeping", "vmap", "opacus", "cohort"])
def test_an_example_changes_nothing_of_the_others(mode: str) -> None:
    """Another number of rows is another kernel; weights that cancel on a constant picture make its last bits all that
    there is, so that every other example's gradient would turn.
    """
    worst = 0.0
    for seed in range(40):
        random = torch.Generator().manual_seed(seed)
        module = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
        with torch.no_grad():
            for layer in (module[1], module[3]):
                layer.weight.normal_(generator=random)
                layer.weight -= layer.weight.double().mean(1, keepdim=True).float() if layer is module[1] else 0
                layer.weight *= 1e7
                layer.bias.zero_()
        shade = float(torch.rand(1, generator=random))
        local = LocalConfig(epochs=1, batch_size=8, lr=0.1, momentum=0.0, sampler="poisson")
        trainer = VectorisedTrainer(FlatModel(module), local)
        theta, way = (
            trainer.model.theta.clone(),
            PerExampleGradients(module, None if mode == "cohort" else mode, block=8),
        )
        for examples in (1, 3, 7, 8, 11):
            images = torch.full((examples + 1, 1, 28, 28), shade)
            labels = torch.randint(0, 10, (examples + 1,), generator=random)
            totals = []
            for count in (examples, examples + 1):
                some = LocalData(images[:count], labels[:count])
                if mode == "cohort":
                    pair = (some, LocalData(images[:2], labels[:2]))
                    totals.append(trainer.clipped_sums([Clipping(theta, data, 1.0) for data in pair])[0].total)
                else:
                    totals.append(way.clipped_sum(some.inputs, some.targets, 1.0).total)
            worst = max(worst, float((totals[1] - totals[0]).norm()))
    assert 0.99 < worst <= 1


# --- the sum's own rounding ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bookkeeping", "vmap", "opacus", "cohort"])
def test_one_among_thousands_moves_the_sum_by_no_more_than_the_bound(mode: str) -> None:
    """All gradients point the same way, so that the sum is long and its last bits are coarse."""
    module, examples = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), 6000
    with torch.no_grad():
        module[1].weight.zero_()
        module[1].bias.copy_(torch.tensor([50.0, 0.0]))
    random = torch.Generator().manual_seed(1)
    images = 1 + 1e-3 * torch.randn(examples, 1, 2, 2, generator=random)
    labels = torch.ones(examples, dtype=torch.long)
    if mode == "cohort":
        local = LocalConfig(epochs=1, batch_size=2, lr=0.1, momentum=0.0, sampler="poisson")
        trainer = VectorisedTrainer(FlatModel(module), local)
        theta = trainer.model.theta.clone()

        def total(start: int) -> Tensor:
            data = LocalData(images[start:], labels[start:])
            return trainer.clipped_sums([Clipping(theta, data, 1.0)])[0].total.double()
    else:
        way = PerExampleGradients(module, mode, physical=500)

        def total(start: int) -> Tensor:
            return way.clipped_sum(images[start:], labels[start:], 1.0).total.double()

    apart = [float((longer - shorter).norm()) for longer, shorter in pairwise(map(total, range(11)))]
    assert min(apart) > 0.998 and max(apart) <= 1


# --- what is proved, against numbers of more digits --------------------------------------------------------


def test_measured_lengths_are_never_too_short_and_drift_stays_in_its_share() -> None:
    """The norm, the mass and the sum of a ghost-clipped layer against long doubles, where terms cancel more and more:
    inputs on a large constant, whose output gradients sum to nearly nothing over the positions.
    """
    cancelled = 0.0
    for seed in range(4):
        torch.manual_seed(seed)
        images, labels = pictures(3, seed)
        module = ghost()
        trace = Trace(module, 3)
        trace.run(images, labels)
        seen = trace.seen[1]
        seen.inputs = seen.inputs + 100.0**seed
        seen.gradient = seen.gradient - seen.gradient.mean((2, 3), keepdim=True)
        norms = trace.squared_norms().sqrt().numpy()
        g, x = (t.detach().flatten(2).numpy().astype(np.longdouble) for t in (seen.gradient, seen.inputs))
        gradients = np.einsum("bop,bip->boi", g, x)
        lengths = np.sqrt((gradients**2).sum((1, 2)))
        mass = (np.sqrt((g**2).sum(1)) * np.sqrt((x**2).sum(1))).sum(1)
        cancelled = max(cancelled, float((mass / lengths).max()))
        assert (norms >= lengths).all()
        assert (gamma(3 * SIDE**2 + 8) * mass / norms <= DRIFT).all()
        weights = torch.tensor(1 / norms)
        total = torch.zeros(sum(p.numel() for p in module.parameters()), dtype=torch.float64)
        trace.add_weighted_sum(weights, total)
        start = 2 * CHANNELS
        found = total[start : start + CHANNELS**2].view(CHANNELS, CHANNELS).numpy()
        expected = (gradients * weights.numpy().astype(np.longdouble)[:, None, None]).sum(0)
        assert np.sqrt(((found - expected) ** 2).sum()) <= 3 * DRIFT
    assert cancelled > 1e4  # or nothing was tried


def test_the_share_kept_back_covers_the_rounding_of_the_largest_batch() -> None:
    largest = 2**16
    assert excess(largest) == 0 < excess(largest + 1)
    assert (1 - KEPT_BACK) * (1 + 2**-20) + 2 * largest * (DRIFT + 2**-33) < 1 - 2**-12
    assert gamma(2**33) * 2**16 < 2**-3  # what is summed in one product, even for the largest batches


@pytest.mark.rotates(3)
@pytest.mark.parametrize(("name", "shape"), [("cnn", (1, 28, 28)), ("resnet18", (3, 16, 16)), ("mlp", (1, 28, 28))])
def test_an_honest_theta_loses_a_thousandth_of_the_bound_at_most(name: str, shape: tuple[int, int, int]) -> None:
    module = build_model(ModelConfig(name=name), shape, 10, 1)  # type: ignore[arg-type, call-arg]
    random = torch.Generator().manual_seed(0)
    images = torch.randn(3, *shape, generator=random)
    way = PerExampleGradients(module, "bookkeeping", physical=32)
    for k in range(3):
        total = way.clipped_sum(images[k : k + 1], torch.tensor([k]), 1e-3).total
        assert 0.999 * 1e-3 <= float(total.double().norm()) <= 1e-3
