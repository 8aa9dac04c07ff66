"""Noise sources: addressing, statistics, and what makes the secure one safe."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import forks
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedpriv.attacks.release_audit import _SmoothNoise
from fedpriv.mechanisms import secure_noise
from fedpriv.mechanisms.noise import (
    DITHER,
    LAPLACE_BITS,
    KeyRegistry,
    NoiseSource,
    SeededNoise,
    add_laplace,
    add_normal,
    add_normal_each,
    add_normal_finely,
    encode_key,
    fine_step,
    grid_step,
)
from fedpriv.mechanisms.secure_noise import SecureNoise

DRAWS = 1_000_000
# A true null is refused once in 10^4 per test; all streams below are fixed, so none fails by chance.
LEVEL = 1e-4


@pytest.fixture
def fixed_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operating system whose keys repeat from test to test, but differ from each other."""
    keys = (hashlib.sha256(b"%d" % i).digest() for i in itertools.count())
    monkeypatch.setattr(secure_noise.os, "urandom", lambda size: next(keys)[:size])


@pytest.fixture(params=["seeded", "secure"])
def noise(request: pytest.FixtureRequest, fixed_keys: None) -> NoiseSource:
    return SeededNoise(2024, "statistics") if request.param == "seeded" else SecureNoise()


# --- keys ---------------------------------------------------------------------------------------------------------

parts = st.lists(st.integers(-(2**70), 2**70) | st.text(max_size=6), min_size=1, max_size=5)


@settings(deadline=None, derandomize=True)
@given(parts, parts)
def test_different_keys_have_different_encodings(one: list, other: list) -> None:
    same = one == other
    assert (encode_key(*one) == encode_key(*other)) == same


def test_keys_that_print_alike_or_join_alike_differ() -> None:
    keys = [(1, 23), (12, 3), (123,), ("1", 23), ("1", "23"), ("12", "3"), ("", "123"), ("123",), (123, ""), (-123,)]
    keys += [("asb",), ("a", "b"), ("a", "sb"), ("as", "b")]
    assert len({encode_key(*key) for key in keys}) == len(keys)
    assert encode_key(np.int64(7), "a") == encode_key(7, "a")  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [(), (1.0,), (True,), (None,), (b"a",), ((1, 2),)])
def test_a_key_of_anything_else_is_refused(key: tuple) -> None:
    with pytest.raises(TypeError, match="noise key"):
        SeededNoise(*key)


def test_seeded_noise_repeats_and_each_draw_continues_the_stream() -> None:
    one, other = SeededNoise(1, 2, 3, 0, "update"), SeededNoise(1, 2, 3, 0, "update")
    first, second = one.normal(64), one.normal(64)
    assert torch.equal(first, other.normal(64)) and torch.equal(second, other.normal(64))
    assert not torch.equal(first, second)
    assert not torch.equal(first, SeededNoise(1, 2, 3, 1, "update").normal(64))


def test_the_whole_key_reaches_the_generator() -> None:
    """torch's own seeding keeps 32 bits; ours fills the Mersenne twister's 624 words, as numpy's twin shows."""
    words = np.frombuffer(hashlib.shake_256(encode_key(5, "x")).digest(2496), "<u4")
    twin = np.random.MT19937()
    twin.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    high, low = twin.random_raw(40).reshape(20, 2).T
    expected = (high << np.uint64(32) | low) & np.uint64(2**53 - 1)
    assert np.array_equal(SeededNoise(5, "x").uniform(20).numpy() * 2**53, expected)


def test_registry_refuses_a_second_use_of_a_key() -> None:
    with KeyRegistry() as registry:
        SeededNoise(1, 2, 3, 0, "update")
        SeededNoise(1, 2, 3, 1, "update")
        with pytest.raises(ValueError, match="used twice"):
            SeededNoise(1, 2, 3, 0, "update")
    assert registry.keys == [(1, 2, 3, 0, "update"), (1, 2, 3, 1, "update")]
    SeededNoise(1, 2, 3, 0, "update")  # not recorded any more
    with registry:
        SeededNoise(1, 2, 3, 0, "update")
    assert len(registry.keys) == 1


# --- statistics of both sources -----------------------------------------------------------------------------------


def test_gaussians_have_the_moments_and_the_law_of_gaussians(noise: NoiseSource) -> None:
    draws = noise.normal(DRAWS, std=0.3).double().numpy() / 0.3
    margin = stats.norm.isf(LEVEL / 2) / np.sqrt(DRAWS)
    assert abs(draws.mean()) < margin
    assert abs((draws**2).mean() - 1) < np.sqrt(2) * margin
    assert abs((draws**3).mean()) < np.sqrt(15) * margin
    assert abs((draws**4).mean() - 3) < np.sqrt(96) * margin
    assert stats.kstest(draws, "norm").pvalue > LEVEL
    beyond = np.count_nonzero(np.abs(draws) > 4)
    assert stats.binomtest(beyond, DRAWS, 2 * stats.norm.sf(4)).pvalue > LEVEL


def test_draws_are_not_correlated(noise: NoiseSource) -> None:
    draws = noise.normal(DRAWS).double().numpy()
    margin = stats.norm.isf(LEVEL / 2) / np.sqrt(DRAWS)
    halves = secure_noise.CHUNK  # Box and Muller's two Gaussians of one pair lie this far apart
    for lag in (1, 2, 8, halves, 2 * halves):
        assert abs(np.mean(draws[lag:] * draws[:-lag])) < margin * 1.1
        assert abs(np.mean((draws[lag:] ** 2 - 1) * (draws[:-lag] ** 2 - 1))) < 2 * margin * 1.1


def test_streams_of_neighbouring_keys_are_not_correlated() -> None:
    size = 10_000
    streams = torch.stack(
        [SeededNoise(0, client, round_, 0, "u").normal(size) for client in range(10) for round_ in range(10)]
    )
    correlation = np.corrcoef(streams.numpy()) - np.eye(100)
    assert np.abs(correlation).max() < stats.norm.isf(LEVEL / 9900) / np.sqrt(size)


def test_two_secure_sources_are_not_correlated(fixed_keys: None) -> None:
    one, other = SecureNoise().normal(DRAWS), SecureNoise().normal(DRAWS)
    assert abs(torch.mean(one.double() * other).item()) < stats.norm.isf(LEVEL / 2) / np.sqrt(DRAWS)


def test_the_other_laws(noise: NoiseSource) -> None:
    size = 200_000
    uniform = noise.uniform(size).numpy()
    assert uniform.dtype == np.float64 and uniform.min() > 0 and uniform.max() < 1
    assert stats.kstest(uniform, "uniform").pvalue > LEVEL
    bits = (uniform * 2**53).astype(np.uint64)
    assert all(abs(np.mean(bits >> np.uint64(k) & np.uint64(1)) - 0.5) < 2.2 / np.sqrt(size) for k in range(53))
    assert stats.kstest(noise.laplace(size, 2.5).numpy(), stats.laplace(scale=2.5).cdf).pvalue > LEVEL
    assert stats.kstest(noise.gumbel(size, 0.5).numpy(), stats.gumbel_r(scale=0.5).cdf).pvalue > LEVEL
    integers = noise.integers(-3, 8, size).numpy()
    assert integers.min() == -3 and integers.max() == 7
    assert stats.chisquare(np.bincount(integers + 3)).pvalue > LEVEL
    orders = [tuple(noise.permutation(3).tolist()) for _ in range(3000)]
    assert stats.chisquare([orders.count(order) for order in itertools.permutations(range(3))]).pvalue > LEVEL


def test_shapes_types_and_scales(noise: NoiseSource) -> None:
    for shape, size in (((), ()), (3, (3,)), ((2, 0), (2, 0)), ((2, 3), (2, 3)), (torch.Size([1, 5]), (1, 5))):
        assert noise.normal(shape).shape == size and noise.normal(shape).dtype == torch.float32
        assert noise.uniform(shape).shape == size and noise.uniform(shape).dtype == torch.float64
        assert noise.laplace(shape).shape == size and noise.laplace(shape).dtype == torch.float32
        assert noise.gumbel(shape).shape == size
        assert noise.integers(0, 2, shape).shape == size and noise.integers(0, 2, shape).dtype == torch.int64
    assert torch.equal(noise.normal(5, std=0.0), torch.zeros(5))
    with pytest.raises(ValueError, match="high"):
        noise.integers(3, 3, 1)


# --- what makes the secure source safe -----------------------------------------------------------------------------


@pytest.mark.parametrize("std", [1e-20, 0.3, 1.0, 7.0, 1e6])
def test_secure_gaussians_lie_on_the_grid_and_use_all_of_it(std: float, fixed_keys: None) -> None:
    step = grid_step(std)
    assert std / 2**20 < step <= std / 2**19 and np.log2(step) % 1 == 0
    multiples = SecureNoise().normal(DRAWS, std).double().numpy() / step
    assert np.array_equal(multiples, np.round(multiples))
    low_bits = np.bincount(multiples.astype(np.int64) & 15, minlength=16)
    assert stats.chisquare(low_bits).pvalue > LEVEL
    assert not np.signbit(multiples[multiples == 0]).any()


def test_secure_noise_has_no_end_that_another_input_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Box and Muller's ends at 9.4: at multiplier 0.12 and epsilon 69 a seventh of all outputs lay where the opposite
    input never came. Every 64-bit word is reachable, so what the extreme words give is reachable.
    """
    monkeypatch.setattr(SecureNoise, "_words", lambda self, count: torch.zeros(count, dtype=torch.int64))
    first, second = add_normal(torch.zeros(2), 1.0, SecureNoise())
    assert first > 35 and second == 0 and first.dtype == torch.float32
    assert SecureNoise().laplace(1)[0] < -500
    words = torch.tensor([2**63 - 1, 2**63 - 1])
    monkeypatch.setattr(SecureNoise, "_words", lambda self, count: words.clone())
    assert torch.equal(SecureNoise().normal(2), torch.zeros(2))  # the other end: no infinity, no NaN


@pytest.mark.parametrize(("kind", "far"), [("normal", "FAR"), ("laplace", "FAR_LAPLACE")])
def test_secure_tails_follow_their_law(kind: str, far: str, fixed_keys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_noise, far, 1.0)
    draws = getattr(SecureNoise(), kind)(20_000, 3.0).numpy()
    law = stats.norm(scale=3) if kind == "normal" else stats.laplace(scale=3)
    assert stats.kstest(draws, law.cdf).pvalue > 0.01
    tail = abs(draws[abs(draws) > 3]) / 3
    assert tail.max() > 3.5 and stats.kstest(tail, lambda x: 1 - law.sf(3 * x) / law.sf(3)).pvalue > 0.01


@pytest.mark.parametrize("far", [1.0, 1.2])
@pytest.mark.parametrize(("kind", "name"), [("normal", "FAR"), ("laplace", "FAR_LAPLACE")])
def test_where_secure_tails_begin_no_multiple_has_more_than_its_share(
    kind: str, name: str, far: float, fixed_keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secure_noise, name, far)
    monkeypatch.setattr(secure_noise, "grid_step", lambda *_: 1.0)
    draws = getattr(SecureNoise(), kind)(20_000, 3.0).abs().clamp(max=8).long()
    law = stats.norm(scale=3) if kind == "normal" else stats.laplace(scale=3)
    above = 2 * law.sf(np.arange(9) - 0.5)
    above[0] = 1
    assert stats.chisquare(torch.bincount(draws, minlength=9), -20_000 * np.diff(above, append=0)).pvalue > 0.01


def test_laplace_draws_are_made_of_enough_bits_up_to_their_tails() -> None:
    """A uniform below u of 53 bits has a probability of up to u + 2^-53: at 30 scales a tail had 2^-11 too much."""
    assert 2.0**-53 * np.exp(secure_noise.FAR_LAPLACE) < 2.0**-29


@pytest.mark.parametrize("std", [-1.0, float("nan"), float("inf"), 1e-40])
def test_secure_noise_refuses_a_scale_that_is_none(std: float) -> None:
    for draw in (SecureNoise().normal, SecureNoise().laplace):
        with pytest.raises(ValueError, match="scale"):
            draw(3, std)


def test_secure_noise_never_repeats() -> None:
    assert not torch.equal(SecureNoise().normal(8), SecureNoise().normal(8))
    source = SecureNoise()
    for duplicate in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            duplicate(source)


#: A source from before the fork draws on both sides.
BOTH_SIDES = """
import os
from fedpriv.mechanisms.secure_noise import SecureNoise

source = SecureNoise()
child = os.fork()
print(source._words(4).tolist(), flush=True)
if child:
    os.waitpid(child, 0)
"""


def test_a_forked_process_has_a_key_of_its_own(tmp_path: Path) -> None:
    with forks(tmp_path, "fedpriv.mechanisms.secure_noise") as forked:
        code, printed = forked.run(BOTH_SIDES, folder=tmp_path)
    one, two = printed.splitlines()
    assert code == 0 and one != two


def test_low_bits_of_a_release_do_not_tell_the_value(fixed_keys: None) -> None:
    """Haney et al. (2022): plain float32 sums tell 0 from 0.7 by their low bits; sums on a grid do not."""
    size, fine = 100_000, 2.0**-26

    def near_a_tenth(released: torch.Tensor) -> torch.Tensor:
        return released[(released > 0.0625) & (released < 0.125)]  # where a float32 is a multiple of 2^-27

    plain = [near_a_tenth(secret + SeededNoise(0, "plain").normal(size)) for secret in (0.0, 0.7)]
    assert _on_grid(plain[0], fine) < 0.6 and _on_grid(plain[1], fine) == 1.0
    for secret in (0.0, 0.7, -1e-9, 1e-30):
        released = add_normal(torch.full((size,), secret), 1.0, SecureNoise())
        assert _on_grid(released, grid_step(1.0)) == 1.0
        released = add_laplace(torch.full((size,), secret), 1.0, SecureNoise())
        assert _on_grid(released, grid_step(1.0, LAPLACE_BITS)) == 1.0


def test_negative_zero_never_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecureNoise, "_gaussian_pairs", lambda *_: (torch.tensor([-0.3]), torch.tensor([-0.0])))
    assert not torch.signbit(SecureNoise().normal(2)).any()
    assert not torch.signbit(add_normal(torch.tensor([-1e-9, -0.0]), 1.0, SecureNoise())).any()


def _on_grid(values: torch.Tensor, step: float) -> float:
    """Share of the values that are multiples of `step`."""
    steps = values.double() / step
    return (steps == steps.round()).double().mean().item()


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20), st.sampled_from([1e-3, 0.05, 1.0, 300.0]))
def test_moving_onto_the_grid_never_lengthens_a_vector(numbers: list[float], std: float) -> None:
    class NoNoise(SeededNoise):
        def normal(self, shape: object, std: float = 1.0) -> torch.Tensor:
            return torch.zeros(len(numbers))

    values = torch.tensor(numbers)
    moved = add_normal(values, std, NoNoise(0))
    assert (moved.abs() <= values.abs()).all()
    assert ((moved - values).abs() < grid_step(std)).all()
    assert torch.equal(add_normal(values, 0.0, NoNoise(0)), values)


# --- sums whose parts nobody has ---------------------------------------------------------------------------


class NoNoise(SeededNoise):
    def normal(self, shape: Any, std: float = 1.0) -> torch.Tensor:
        return torch.zeros(shape)


@pytest.mark.parametrize("secure", [False, True])
def test_noises_of_many_trials_at_once_are_on_the_grid_of_each(secure: bool, fixed_keys: None) -> None:
    """Of one scale and of several: what is between two numbers of a grid would tell the values, as it told auditors,
    whose noise is on the grid of standard deviation 1.
    """
    std, values = torch.tensor([0.3, 0.0, 5.0]), torch.rand(3, 4000)
    found = add_normal_each(values, std, SecureNoise() if secure else _SmoothNoise(1))
    assert torch.equal(found[1], values[1]) and found.dtype == torch.float32
    for row in (0, 2):
        steps = found[row].double() / grid_step(float(std[row]))
        near = steps[steps.abs() < 2**24]
        assert len(near) > 1000 and torch.equal(near, near.round())
        assert float((found[row] - values[row]).std()) == pytest.approx(float(std[row]), rel=0.05)


def test_a_sum_on_the_fine_grid_moves_by_hardly_more_than_one_part() -> None:
    """Each part moves every coordinate over a border of the coarse grid: there it would count as sqrt(d) steps."""
    size, std = 80_202, 64.0
    others = torch.full((size,), grid_step(std), dtype=torch.float64) * (1 - 2.0**-10)
    part = torch.full((size,), 1 / math.sqrt(size), dtype=torch.float64)
    for add, most in ((add_normal_finely, 1 + 1e-6), (add_normal, 1.02)):
        moved = add(others + part, std, NoNoise(0)).double() - add(others, std, NoNoise(0)).double()
        assert float(moved.norm()) <= most
    assert float(moved.norm()) > 1 + 1e-3  # the coarse grid: the pair is one that tells them apart
    assert math.sqrt(size) * fine_step(std) < 1e-6


def test_fine_secure_noise_is_on_its_grid_and_a_little_more_than_asked_for() -> None:
    std, size = 3.0, 200_000
    drawn = SecureNoise().fine_normal(size, std)
    assert drawn.dtype == torch.float64 and _on_grid(drawn, fine_step(std)) == 1.0
    assert _on_grid(drawn, grid_step(std)) < 1e-3  # its low bits are noise, not zeros
    assert float(drawn.std()) == pytest.approx(std, rel=0.01)
    sums = add_normal_finely(torch.full((size,), 0.1), std, SecureNoise())
    assert _on_grid(sums, fine_step(std)) == 1.0


def test_the_law_of_two_rounded_gaussians_is_one_finely_rounded() -> None:
    """`NoiseSource.fine_normal`'s proof in exact sums: steps 1 (std 5) and 1/8 (std ``DITHER``), every point within 6
    deviations, against the Gaussian with both variances smoothed by both steps.
    """
    from scipy.integrate import quad
    from scipy.stats import norm

    std, fine, both = 5.0, 1 / 8, math.hypot(5.0, DITHER)
    coarse = np.arange(-60, 61)
    first = norm.cdf((coarse + 0.5) / std) - norm.cdf((coarse - 0.5) / std)
    for place in np.arange(-6 * both, 6 * both, 1.375):
        place = round(place / fine) * fine
        upper, lower = (place - coarse + fine / 2) / DITHER, (place - coarse - fine / 2) / DITHER
        law = float((first * (norm.cdf(upper) - norm.cdf(lower))).sum())

        def smoothed(u: float, place: float = place) -> float:
            return float(norm.cdf((place + u + fine / 2) / both) - norm.cdf((place + u - fine / 2) / both))

        assert law == pytest.approx(quad(smoothed, -0.5, 0.5, epsabs=0, epsrel=1e-9)[0], rel=1e-6)
