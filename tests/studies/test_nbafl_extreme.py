"""NbAFL against an example whose numbers have no bound: the proof's steps, tried on real training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.noise import clip
from fedpriv.studies.computations import compute, nbafl_extreme

CLASSES, PIXELS, CLIP = 10, 784, 1.0


def trained(received: torch.Tensor, extreme: bool, label: int = 3, batches: int = 5) -> torch.Tensor:
    """What a client sends, before noise [classes, pixels], after an epoch of NbAFL on zero pictures and, with
    ``extreme``, one long one in the third batch; softmax regression, its gradients by hand from the definition.
    """
    weights, bias = received.double().clone(), torch.zeros(CLASSES, dtype=torch.float64)
    long = torch.zeros(PIXELS, dtype=torch.float64)
    long[100] = 1e9
    for batch in range(batches):
        pictures = torch.zeros(10, PIXELS, dtype=torch.float64)
        labels = torch.arange(10)
        if extreme and batch == 2:
            pictures, labels = torch.cat([pictures, long[None]]), torch.cat([labels, torch.tensor([label])])
        wrong = torch.softmax(pictures @ weights.T + bias, 1) - torch.nn.functional.one_hot(labels, CLASSES)
        bias = bias - 0.1 * wrong.mean(0)
        weights = weights - 0.1 * (wrong.T @ pictures / len(labels) + 0.01 * (weights - received))
    return clip(weights.flatten(), CLIP).reshape(CLASSES, PIXELS)


def rounds_of(total: int, clients: int, noise: float, seed: int) -> tuple[list[bool], list[float]]:
    """For every round of a run with the long example: whether it moved the weights, and how far apart the client's two
    messages would be.
    """
    generator = torch.Generator().manual_seed(seed)
    received = torch.zeros(CLASSES, PIXELS, dtype=torch.float64)
    moving, apart = [], []
    for _ in range(total):
        without, with_it = trained(received, False), trained(received, True)
        at = received[:, 100]
        moving.append(bool(at[3] < at.max()))
        apart.append(float((with_it - without).norm()))
        mean = ((clients - 1) * without + with_it) / clients
        received = mean + noise / math.sqrt(clients) * torch.randn(mean.shape, generator=generator, dtype=torch.float64)
    return moving, apart


def test_the_long_example_moves_the_message_by_the_clip_norm_as_often_as_is_proved() -> None:
    moving, apart = rounds_of(300, 10, 0.808, 7)
    assert not moving[0]  # nothing is larger yet: the proof leaves out the first round
    assert min(length for length, moves in zip(apart, moving, strict=True) if moves) > CLIP * (1 - 1e-6)
    share = nbafl_extreme(10, 1000, 7840, 0.808, 1e-5)["moving_share"]
    assert 0.1 < share < np.mean(moving[1:])


def test_the_bound_is_the_tests_own_on_drawn_sums() -> None:
    """The two laws of the proof's statistic, drawn: no epsilon below the bound fits them."""
    noise, n, trials = 0.808, 6, 400_000
    generator = np.random.default_rng(3)
    sums = generator.normal(0, noise, (trials, n)).sum(1)
    edge = n * CLIP - 3 * noise * math.sqrt(n)
    without, with_it = np.mean(sums > edge), np.mean(sums + n * CLIP > edge)
    drawn = math.log((with_it - 1e-5) / without)
    exact = math.log(norm.cdf(3) - 1e-5) - norm.logsf(math.sqrt(n) / noise - 3)
    assert drawn == pytest.approx(exact, abs=0.15)


def test_more_noise_and_fewer_rounds_show_less() -> None:
    printed = nbafl_extreme(10, 1000, 7840, 0.808, 1e-5)["epsilon_lower"]
    assert printed > 20  # of a claimed 2
    assert nbafl_extreme(10, 100, 7840, 0.808, 1e-5)["epsilon_lower"] < printed
    assert nbafl_extreme(10, 1000, 7840, 80.0, 1e-5)["epsilon_lower"] < 0.01


def test_what_it_cannot_price_is_refused() -> None:
    with pytest.raises(OptionError, match="two rounds or more"):
        compute(["what=nbafl_extreme", "clients=10", "rounds=1", "dimension=7840", "noise=0.808", "delta=1e-5"])
