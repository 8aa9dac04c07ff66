"""Canaries in one run: the published figures, never more than the truth, and planted faults."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedpriv.mechanisms.noise import NoiseSource, SeededNoise
from fedpriv.privacy.canaries import (
    CanaryAudit,
    audit_canaries,
    coin_flips,
    dirac_updates,
    mislabel,
    one_run_epsilon,
    one_run_p_value,
)
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

DELTA = 1e-5
CONFIDENCE = 0.999


# --- the estimator -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "delta", "published"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
)
def test_published_figures(canaries: int, guesses: int, correct: int, delta: float, published: float) -> None:
    """Steinke et al. (2023), Appendix D (rounded) and section 7 (cut off), at 95% confidence."""
    assert one_run_epsilon(canaries, guesses, correct, delta, 0.05) == pytest.approx(published, abs=1e-3)


def test_p_value_agrees_with_a_plain_twin() -> None:
    def plain(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
        q = math.exp(epsilon) / (1 + math.exp(epsilon))
        mass = [math.comb(r, w) * q**w * (1 - q) ** (r - w) for w in range(r + 1)]
        slack = max([sum(mass[v - i : v]) / i for i in range(1, v + 1)], default=0.0)
        return min(1.0, sum(mass[v:]) + 2 * m * delta * slack)

    rng = np.random.default_rng(0)
    for _ in range(100):
        m = int(rng.integers(1, 60))
        r = int(rng.integers(1, m + 1))
        v, epsilon, delta = int(rng.integers(0, r + 1)), rng.uniform(0, 3), rng.choice([0.0, 1e-3])
        assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(plain(m, r, v, epsilon, delta), rel=1e-9)


def test_limits() -> None:
    assert one_run_epsilon(1000, 100, 50, DELTA, 0.05) == 0  # no better than chance
    assert one_run_epsilon(100, 100, 100, 0.0, 0.05) == pytest.approx(-math.log(0.05 ** (-1 / 100) - 1), abs=1e-6)
    p_values = [one_run_p_value(1000, 400, 300, epsilon, DELTA) for epsilon in np.linspace(0, 3, 31)]
    assert p_values == sorted(p_values)


def test_the_clearest_canaries_are_guessed() -> None:
    took_part = np.array([True, False, True, False, True, False])
    scores = np.array([9.0, -9.0, 8.0, -8.0, -0.1, 0.1])  # right at both ends, wrong in the middle
    assert audit_canaries(took_part, scores, delta=0, confidence=0.6, guesses=[4]).correct == 4
    assert audit_canaries(took_part, scores, delta=0, confidence=0.6, guesses=[6]).correct == 4
    both = audit_canaries(took_part, scores, delta=0, confidence=0.6, guesses=[6, 4])
    assert both.guesses == 4
    assert both.epsilon_lower == one_run_epsilon(6, 4, 4, 0, 0.2)  # the error is shared between the two tries
    assert "4 of 4 guesses right, 6 coins; a perfect attack would have shown 1.18" in str(both)


@pytest.mark.parametrize(
    ("coins", "scores", "guesses"),
    [([True], [1.0, 2.0], [1]), ([True, False], [1.0, math.nan], [1]), ([True], [1.0], [2]), ([True], [1.0], [])],
)
def test_unusable_input_is_refused(coins: list[bool], scores: list[float], guesses: list[int]) -> None:
    with pytest.raises(ValueError, match=r"canaries|canary"):
        audit_canaries(np.array(coins), np.array(scores), delta=DELTA, confidence=0.95, guesses=guesses)


def test_canaries_are_what_they_say() -> None:
    noise = SeededNoise(0)
    updates = dirac_updates(torch.tensor([2, 0]), 4, 0.5)
    assert torch.equal(updates, torch.tensor([[0, 0, 0.5, 0], [0.5, 0, 0, 0]]))
    labels = noise.integers(0, 10, 9000)
    wrong = mislabel(labels, 10, noise)
    assert (wrong != labels).all() and wrong.min() == 0 and wrong.max() == 9
    assert torch.bincount((wrong - labels) % 10, minlength=10)[1:].float().std() < 60  # 1000 each, give or take 30
    assert abs(coin_flips(10_000, noise).float().mean().item() - 0.5) < 0.02


# --- client level: Dirac updates in a noisy sum --------------------------------------------------------------------


def noisy_sum(multiplier: float, seed: int, *, broken: bool = False) -> CanaryAudit:
    """A trusted server's sum of clipped updates: 500 canaries among 20 ordinary clients, unit sensitivity.

    `broken`: the noise is a tenth of what the multiplier says.
    """
    canaries, size, noise = 500, 2000, SeededNoise(seed, "noisy sum")
    took_part = coin_flips(canaries, noise)
    coordinates = noise.permutation(size)[:canaries]
    honest = noise.normal((20, size), 1 / math.sqrt(size))
    total = (dirac_updates(coordinates, size, 1.0) * took_part[:, None]).sum(0) + honest.sum(0)
    released = total + noise.normal(size, multiplier / 10 if broken else multiplier)
    scores = released[coordinates].numpy()
    return audit_canaries(took_part.numpy(), scores, delta=DELTA, confidence=CONFIDENCE, guesses=[200, 400])


@pytest.mark.parametrize("multiplier", [0.25, 0.5, 1.0, 4.0])
def test_client_canaries_never_exceed_the_truth(multiplier: float) -> None:
    bounds = [noisy_sum(multiplier, seed).epsilon_lower for seed in range(20)]
    assert max(bounds) <= gaussian_epsilon(1 / multiplier, DELTA)
    assert multiplier > 0.25 or min(bounds) > 1.5  # not by being empty


def test_client_canaries_find_noise_that_is_too_small() -> None:
    claimed = gaussian_epsilon(1 / 2.5, DELTA)  # 1.6
    assert noisy_sum(2.5, 0).epsilon_lower <= claimed < noisy_sum(2.5, 0, broken=True).epsilon_lower


# --- example level: mislabelled examples in a DP-SGD step ----------------------------------------------------------


def dp_sgd_step(multiplier: float, seed: int, fault: str | None = None) -> CanaryAudit:
    """One full-batch step of a linear softmax model; the observer sees the noisy sum of clipped gradients.

    400 canaries with wrong labels and 100 ordinary examples, 1000 features, 10 classes, clip norm 1.
    """
    canaries, features, classes = 400, 1000, 10
    noise: NoiseSource = SeededNoise(seed, "dp-sgd")
    model = torch.nn.Linear(features, classes, bias=False)
    torch.nn.init.zeros_(model.weight)
    inputs = noise.normal((canaries + 100, features))
    labels = noise.integers(0, classes, canaries + 100)
    labels[:canaries] = mislabel(labels[:canaries], classes, noise)
    took_part = coin_flips(canaries, noise)

    def loss(weight: torch.Tensor, example: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(torch.nn.functional.linear(example, weight), label)

    per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    gradients = per_example(model.weight.detach(), inputs, labels).flatten(1)
    clipped = gradients / gradients.norm(dim=1, keepdim=True).clamp(min=1.0)
    contributions = gradients if fault == "clip skipped" else clipped
    std = multiplier / 20 if fault == "noise too small" else multiplier
    present = torch.cat([took_part, torch.ones(100, dtype=torch.bool)])
    released = contributions[present].sum(0) + noise.normal(gradients.shape[1], std)
    scores = (clipped[:canaries] @ released).numpy()
    return audit_canaries(took_part.numpy(), scores, delta=DELTA, confidence=CONFIDENCE, guesses=[200])


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 4.0])
def test_example_canaries_never_exceed_the_truth(multiplier: float) -> None:
    bounds = [dp_sgd_step(multiplier, seed).epsilon_lower for seed in range(5)]
    assert max(bounds) <= gaussian_epsilon(1 / multiplier, DELTA)
    assert multiplier > 0.3 or min(bounds) > 1.0


@pytest.mark.parametrize("fault", ["noise too small", "clip skipped"])
def test_example_canaries_find_planted_faults(fault: str) -> None:
    claimed = gaussian_epsilon(1 / 4.0, DELTA)  # 0.93
    assert dp_sgd_step(4.0, 1).epsilon_lower <= claimed < dp_sgd_step(4.0, 1, fault).epsilon_lower
