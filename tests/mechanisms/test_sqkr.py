"""SQKR: Kashin's representation, the exact law of its releases, and what any two inputs' laws cost."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fedpriv.mechanisms.kashin import frame_size, kashin, level_of, synthesis
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.mechanisms.unit_projections import drawn_places
from fedpriv.mechanisms.unit_symbols import SQKR
from fedpriv.mechanisms.unit_vectors import unit_mechanism

KEY = (5, "key")


def units(dimension: int, many: int, seed: int = 1) -> Tensor:
    found = torch.randn(many, dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return found / found.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("dimension", [1, 2, 3, 5, 16, 31, 100, 256, 1500])
def test_no_coefficient_is_large_and_their_sum_is_exact(dimension: int) -> None:
    for vectors in (units(dimension, 200 if dimension < 300 else 20), torch.eye(dimension, dtype=torch.float64)[:20]):
        found = kashin(vectors, KEY)
        assert found.shape == (len(vectors), frame_size(dimension)) and 4 * dimension <= frame_size(dimension)
        assert float((synthesis(found, KEY, dimension) - vectors).abs().max()) < 1e-12
        assert float(found.abs().max()) * math.sqrt(frame_size(dimension)) <= level_of(dimension)


def test_without_projections_some_would_be() -> None:
    """The shortest coefficients grow with the logarithm of their number: the check above is no formality."""
    vectors = units(256, 20)
    shortest = torch.linalg.lstsq(synthesis(torch.eye(1024, dtype=torch.float64), KEY, 256).T, vectors.T).solution
    assert float(shortest.abs().max()) * 32 > 1.5 * level_of(256)


def law(sender: SQKR, vector: Tensor, key: tuple[int | str, ...] = KEY) -> np.ndarray:
    """The probability of each symbol [2^b], written down from the definition."""
    chosen = kashin(vector, key)[drawn_places(key, sender.bits, sender.size)] * math.sqrt(sender.size) / sender.level
    up = ((1 + chosen) / 2).numpy()
    e, many = math.exp(sender.epsilon), 2**sender.bits
    kept = (e - 1) / (e + many - 1)
    found = np.empty(many)
    for symbol, signs in enumerate(itertools.product((0, 1), repeat=sender.bits)):
        coins = np.prod(np.where(np.array(signs[::-1]) == 1, up, 1 - up))
        found[symbol] = kept * coins + (1 - kept) / many
    return found


def sqkr(dimension: int, epsilon: float, bits: int) -> SQKR:
    found = unit_mechanism("sqkr", dimension, epsilon, bits=bits)
    assert isinstance(found, SQKR)
    return found


@pytest.mark.parametrize(("dimension", "epsilon", "bits"), [(6, 1.0, 1), (6, 2.0, 3), (20, 4.0, 4)])
def test_releases_have_the_exact_law(dimension: int, epsilon: float, bits: int) -> None:
    sender, many = sqkr(dimension, epsilon, bits), 10_000
    vector = units(dimension, 1)[0]
    sent = sender.release(vector.expand(many, dimension), KEY, SeededNoise(3)).numpy()
    counts = np.bincount(sent[:, 0], minlength=2**bits)
    expected = law(sender, vector)
    assert expected.sum() == pytest.approx(1) and len(counts) == 2**bits
    assert stats.chisquare(counts, many * expected).pvalue > 1e-4
    other = law(sender, -vector)
    assert stats.chisquare(counts, many * other).pvalue < 1e-12  # the test would see another input's law


@pytest.mark.parametrize(("epsilon", "bits"), [(0.5, 1), (1.0, 2), (2.0, 3), (4.0, 4)])
def test_no_pair_of_inputs_costs_more_than_it_says(epsilon: float, bits: int) -> None:
    """Brute force over inputs, frames and symbols: sup_S P(S) - e^t P'(S), against that of the stated law."""
    sender = sqkr(5, epsilon, bits)
    inside, e = sender.law.inside, math.exp(epsilon)
    worst = 0.0
    for trial in range(4):
        vectors = [*units(5, 12, trial), *torch.eye(5, dtype=torch.float64), *-torch.eye(5, dtype=torch.float64)]
        laws = [law(sender, vector, (trial,)) for vector in vectors]
        for first, second in itertools.permutations(laws, 2):
            worst = max(worst, float(np.log(first / second).max()))
            for t in (0.0, 0.3 * epsilon, 0.8 * epsilon):
                assert np.maximum(first - math.exp(t) * second, 0).sum() <= inside * (1 - math.exp(t) / e) + 1e-12
    assert 0.3 * epsilon < worst <= epsilon


def test_the_mean_over_everything_but_the_key_is_exact() -> None:
    """Given the key the mean is N/b times the b coefficients' part of u; over all keys it is u."""
    sender, vector = sqkr(3, 2.0, 2), units(3, 1)[0]
    total = torch.zeros(3, dtype=torch.float64)
    for key in range(300):
        probabilities = torch.from_numpy(law(sender, vector, (key,)))
        decoded = sender.decode(torch.arange(4, dtype=torch.uint8).unsqueeze(1), (key,)).double()
        mean = probabilities @ decoded
        places = drawn_places((key,), 2, sender.size)
        part = torch.zeros(sender.size, dtype=torch.float64)
        part[places] = kashin(vector, (key,))[places] * sender.size / 2
        assert torch.allclose(mean, synthesis(part, (key,), 3), atol=1e-5)
        total += mean
    assert torch.allclose(total / 300, vector, atol=0.25)


def test_no_more_bits_than_coefficients() -> None:
    assert unit_mechanism("sqkr", 1, 8.0, bits=16).bits == 4 == unit_mechanism("sqkr", 1, 8.0).bits  # type: ignore[attr-defined]
    sender = sqkr(1, 8.0, 4)
    found = sender.decode(sender.release(torch.ones(4000, 1), KEY, SeededNoise(1)), KEY).double()
    assert float(found.mean()) == pytest.approx(1, abs=5 * float(found.std()) / math.sqrt(4000))
