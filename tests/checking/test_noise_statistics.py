"""The statistics of replays: laws of noise, correlated noise, noise on a grid, long trials in parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_laplace_mechanism

from fedpriv.checking.reading import Played
from fedpriv.checking.sampled import Parts
from fedpriv.checking.statistics import Two, distance_of, doubled, laplace_epsilon, law_of, remainders
from fedpriv.checking.subject import Budget, Claim
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

Draw = Callable[[Any, tuple[int, int]], Any]
LAWS: dict[str, Draw] = {
    "gauss": lambda rng, size: rng.normal(0, 3, size),
    "laplace": lambda rng, size: rng.laplace(0, 3, size),
    "uniform": lambda rng, size: rng.uniform(-1, 1, size),
    "student": lambda rng, size: rng.standard_t(4, size),
}


def two(left: Any, right: Any) -> Two:
    return Two("a pair", left, right, np.array(["released"] * left.shape[1]), True)


@pytest.mark.parametrize("size", [(192, 8), (600, 1), (150, 4)])
@pytest.mark.parametrize("law", LAWS)
def test_laws_are_told_apart(law: str, size: tuple[int, int]) -> None:
    """Hardly ever wrongly; sometimes not at all."""
    seen = []
    for seed in range(60):
        noise = LAWS[law](np.random.default_rng(seed), size)
        seen.append(law_of(noise - noise.mean(0)))
    right = {"gauss": "Gaussian", "laplace": "Laplace"}.get(law)
    wrong = {"Gaussian", "Laplace"} - {right} - ({"Laplace"} if law == "student" else set())
    assert not wrong & set(seen)
    assert right is None or seen.count(right) >= 45


def test_too_few_numbers_have_no_law() -> None:
    noise = np.random.default_rng(0).normal(size=(96, 4))
    assert law_of(noise) is None


def moved(noise: Any, distance: float) -> Two:
    return two(noise, noise + distance / np.sqrt(noise.shape[1]))


def test_distances_in_deviations_and_in_scales() -> None:
    rng = np.random.default_rng(1)
    gauss = distance_of(moved(rng.normal(0, 2, (200, 16)), 2.0), lambda many: np.zeros((0, 0)), Budget(5))
    assert gauss.law == "Gaussian" and gauss.size == pytest.approx(1.0, rel=0.1)
    assert gauss.epsilon(1e-5, least=True) < gaussian_epsilon(1.0, 1e-5) < 1.1 * gauss.epsilon(1e-5)
    laplace = distance_of(moved(rng.laplace(0, 2, (200, 16)), 2.0), lambda many: np.zeros((0, 0)), Budget(5))
    assert laplace.law == "Laplace" and laplace.epsilon(0.0) == pytest.approx(4.0, rel=0.15)  # 16 moved by 1/2, scale 2
    assert laplace.epsilon(0.0, least=True) < 4.0
    assert laplace.epsilon(1e-5, least=True) < laplace_epsilon((0.25,) * 16, 1e-5) < 1.1 * laplace.epsilon(1e-5)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0, 50.0])
def test_one_laplace_number_has_its_closed_form(ratio: float, delta: float) -> None:
    truth = max(0.0, ratio + 2 * np.log1p(-delta))  # delta = 1 - exp((epsilon - ratio) / 2)
    assert 0.995 * truth - 1e-4 <= laplace_epsilon((ratio,), delta) <= truth


def whole(parts: list[tuple[float, int]], interval: float) -> Any:
    """Of so many numbers of each ratio together, by another library, from above."""
    made = [from_laplace_mechanism(1 / one, value_discretization_interval=interval) for one, _ in parts]
    each = [law.self_compose(many) for law, (_, many) in zip(made, parts, strict=True)]
    return reduce(lambda one, other: one.compose(other), each)


@pytest.mark.parametrize(
    "parts", [[(1 / 16, 256)], [(0.5, 3)], [(3.0, 40)], [(1.0, 2), (0.1, 50), (0.037, 700)], [(1 / 64, 4096)]]
)
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_many_laplace_numbers_are_priced_from_below(parts: list[tuple[float, int]], delta: float) -> None:
    ratios = tuple(one for one, many in parts for _ in range(many))
    above = whole(parts, min(one for one, _ in parts) / 300).get_epsilon_for_delta(delta)
    assert 0.98 * above < laplace_epsilon(ratios, delta) < above
    assert laplace_epsilon(ratios, delta, calls=2) == pytest.approx(laplace_epsilon(ratios * 2, delta), rel=1e-6)


def test_laplace_numbers_that_draw_together_are_priced_by_one_of_them() -> None:
    rng = np.random.default_rng(4)
    one, scales = rng.laplace(0, 2, (400, 1)), np.sqrt(rng.exponential(size=(400, 1)))
    for noise in (np.repeat(one, 16, axis=1), scales * rng.normal(0, 2, (400, 16))):
        seen = distance_of(moved(noise, 2.0), lambda many: np.zeros((0, 0)), Budget(5))
        assert seen.law == "Laplace" and 0.2 < seen.epsilon(0.0) < 0.4  # one number moved by 1/2


def test_copies_of_a_number_tell_nothing_more() -> None:
    noise = np.random.default_rng(2).normal(0, 2, (200, 1))
    copied = distance_of(moved(np.repeat(noise, 16, axis=1), 2.0), lambda many: np.zeros((0, 0)), Budget(5))
    assert copied.law == "Gaussian" and copied.size == pytest.approx(0.25, rel=0.15)  # each moved by 1/2, noise 2


def test_further_plays_are_asked_for_where_the_law_is_not_told_by_these() -> None:
    rng, asked = np.random.default_rng(3), []

    def more(many: int) -> Any:
        asked.append(many)
        return rng.normal(0, 2, (many, 2))

    found = distance_of(moved(rng.normal(0, 2, (12, 2)), 2.0), more, Budget(5))
    assert found.law == "Gaussian" and sum(asked) >= 190 and 0.6 < found.least * found.size < 1.0


def test_a_claim_about_one_and_none_holds_twice_for_one_and_another() -> None:
    """Two steps of (epsilon, delta): a Gaussian of mu claimed exactly obeys the doubled claim at 2 mu."""
    for mu in (0.3, 1.0, 3.0):
        held = doubled(Claim(gaussian_epsilon(mu, 1e-5), 1e-5, adjacency="zero-out"))
        assert gaussian_epsilon(2 * mu, held.delta) <= held.epsilon and held.adjacency == "replace-one"
    assert doubled(Claim(800.0, 1e-5)).delta < 1


# --- grids --------------------------------------------------------------------------------------------------------


def on_a_grid(data: float, seed: int, kind: str) -> Any:
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 2, (24, 8))
    if kind == "noise of 16 bits":
        return data + noise.astype(np.float16).astype(np.float64)
    if kind == "whole noise":
        return data + np.rint(noise)
    if kind == "rounded after":
        return np.rint((data + noise) * 16) / 16
    if kind == "sent in 16 bits":
        return (data + noise).astype(np.float16).astype(np.float64)
    if kind == "noise of 32 bits":
        return data + noise.astype(np.float32).astype(np.float64)
    if kind == "sent in 32 bits":
        return (np.float32(data) + noise.astype(np.float32)).astype(np.float64)
    return data + noise


@pytest.mark.parametrize("kind", ["noise of 16 bits", "whole noise"])
def test_what_is_finer_than_the_noise_is_found(kind: str) -> None:
    columns, _ = remainders(two(on_a_grid(0.1234567, 1, kind), on_a_grid(0.7345678, 1, kind)))
    assert columns.any()


@pytest.mark.parametrize("kind", ["rounded after", "sent in 16 bits", "sent in 32 bits", "noise of 32 bits", "floats"])
def test_what_is_rounded_after_the_noise_is_not(kind: str) -> None:
    for seed in range(10):
        columns, _ = remainders(two(on_a_grid(0.1234567, seed, kind), on_a_grid(0.7345678, seed, kind)))
        assert not columns.any()


# --- parts --------------------------------------------------------------------------------------------------------


def test_the_noise_of_a_step_is_alone_in_a_difference() -> None:
    """Models after each of twelve steps: where step 11 has other noise is told by its own feature alone."""
    rng, count = np.random.default_rng(4), 300
    names = [f"released.{step}" for step in range(12)]
    one = Played({name: np.zeros(50) for name in names} | {"form.released": np.zeros(1)})
    kept = np.array([False] + [True] * 600)
    order = sorted(one.numbers)  # as trials have it: 0, 1, 10, 11, 2, ...

    def trials(scale: float) -> Any:
        steps = rng.normal(size=(count, 12, 50))
        steps[:, 11] *= scale
        models = steps.cumsum(1)
        return np.concatenate([models[:, int(name.rpartition(".")[2])] for name in order[1:]], axis=1)

    sides = [trials(1.0), trials(0.5)]
    parts = Parts.of(one, sides, kept)
    first, second = (parts(side) for side in sides)
    assert first.shape[1] <= 64
    apart = np.abs(first.mean(0) - second.mean(0)) / np.maximum(first.std(0) + second.std(0), 1e-12)
    assert apart.max() > 3 and np.sum(apart > 1) == 2  # of it, and the least of all steps


def test_one_draw_that_is_sent_in_many_columns_is_measured_once() -> None:
    """Its deviation is as unsure as that of one number, however often it is repeated."""

    def of(seed: int, k: int = 200, plays: int = 96) -> float:
        def draw(count: int) -> Any:
            return np.repeat(np.random.default_rng((seed, count)).laplace(size=(count, 1)), k, 1)

        noise = draw(plays)
        seen = distance_of(two(noise, noise + 2), draw, Budget(1e9))
        return seen.epsilon(1e-6, least=True) if seen.law == "Laplace" else 0.0

    found = [of(seed) for seed in range(60)]
    assert max(found) <= 2 and max(found) > 1
