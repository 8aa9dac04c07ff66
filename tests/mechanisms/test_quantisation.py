"""One-bit quantisation: marginals and joint laws by enumeration of the shared and the private draws, and by chance."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from reference.coq_fl import pair_covariance
from scipy import stats
from torch import Tensor

from clients import coqfl
from fedpriv.mechanisms import laws
from fedpriv.mechanisms import quantisation as q

EPSILONS = [0.3, 1.0, math.log(3), 2.5, math.inf]


def grid(points: int) -> Tensor:
    """Middles of equal parts of (0, 1): the share of them below a multiple of 1/points is that multiple."""
    return (torch.arange(points, dtype=torch.float64) + 0.5) / points


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def all_cells(bits: int) -> Tensor:
    """Every cell once, as the generator's stream delivers them."""
    return q.cells_of(np.arange(2**bits, dtype="<u1" if bits <= 8 else "<u2").tobytes(), bits)


def high_given_cell(p: float, bits: int, first: bool, mu: float = 0.0) -> Tensor:
    """P(high | cell) [N] of a member with probability p (a multiple of 1/64, or of 1/(64 N) without coins)."""
    cells, own = all_cells(bits), grid(256 if mu else 64)
    made = coqfl.mixed_pair_bits(number(p), cells[:, None], own, bits, first, mu)
    return made.double().mean(1)


# --- one client ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_decoded_bits_are_unbiased_with_the_stated_variance_and_epsilon(epsilon: float) -> None:
    centre, radius = 0.3, 2.0
    w = centre + radius * torch.linspace(-1, 1, 41, dtype=torch.float64)
    p, step = q.high_probability(w, centre, radius, epsilon), q.step(radius, epsilon)
    high, low = (q.decode(number(bit), centre, radius, epsilon) for bit in (1.0, 0.0))
    torch.testing.assert_close(p * high + (1 - p) * low, w)
    torch.testing.assert_close(p * high**2 + (1 - p) * low**2 - w**2, step**2 - (w - centre) ** 2)
    if math.isfinite(epsilon):
        assert math.log(float(p.max() / p.min())) == pytest.approx(epsilon)


def test_values_outside_are_clamped_and_counted() -> None:
    w = torch.tensor([[-9.0, -1.0, 0.0, 1.0, 9.0]])
    p = q.high_probability(w, 0.0, 1.0, 1.0)[0]
    assert p[0] == p[1] and p[4] == p[3] and float(p[2]) == 0.5
    assert q.clamped_share(w, 0.0, 1.0).tolist() == [0.4]


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, torch.tensor([1.0, 0.0])])
def test_a_radius_that_is_not_positive_is_refused(radius: float | Tensor) -> None:
    with pytest.raises(ValueError, match="radius"):
        q.high_probability(torch.zeros(2), 0.0, radius, 1.0)


# --- pairs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [*range(9), 10])
def test_marginals_of_a_pair_are_exact_in_the_middle_of_a_cell_too(bits: int) -> None:
    cells = 2**bits
    drawn = np.random.default_rng(bits).integers(0, 64 * cells + 1, 8).tolist()
    for numerator in [*drawn, 0, 32 * cells, 64 * cells]:
        p = numerator / (64 * cells)
        for first in (True, False):
            assert float(high_given_cell(p, bits, first).mean()) == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("bits", range(9))
@pytest.mark.parametrize("mu", [0.0, 0.25, 1.0])
def test_joint_law_of_a_pair_is_the_formula(bits: int, mu: float) -> None:
    """Given the cell the two are independent: P(high, high) is the mean over cells of the product."""
    places = [3 / 64, 20 / 64, 0.5, 41 / 64, 63 / 64]
    alices, bobs = ([(p, high_given_cell(p, bits, first, mu)) for p in places] for first in (True, False))
    for (p_a, alice), (p_b, bob) in itertools.product(alices, bobs):
        both = float((alice * bob).mean())
        law = [both, float(alice.mean()) - both, float(bob.mean()) - both, 1 - float((alice + bob).mean()) + both]
        np.testing.assert_allclose(law, laws.pair_law(p_a, p_b, 1 - (1 - mu) ** 2, bits), atol=1e-12)


@pytest.mark.parametrize("bits", range(9))
def test_frequencies_of_a_pair_are_its_law(bits: int) -> None:
    rng, draws, mu = np.random.default_rng(bits), 40_000, 0.2
    for p_a, p_b in ((0.3, 0.4), (0.55, 0.47), (0.73, 0.6)):
        cell = q.cells_of(rng.bytes(q.cell_bytes(draws, bits)), bits)
        own = torch.from_numpy(rng.random((2, draws)))
        alice = coqfl.mixed_pair_bits(number(p_a), cell, own[0], bits, True, mu)
        bob = coqfl.mixed_pair_bits(number(p_b), cell, own[1], bits, False, mu)
        seen = np.bincount((3 - 2 * alice.int() - bob.int()).numpy(), minlength=4)
        expected = draws * laws.pair_law(p_a, p_b, 1 - (1 - mu) ** 2, bits)
        assert (np.abs(seen - expected) <= 4.5 * np.sqrt(expected * (1 - expected / draws)) + 1e-9).all()


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_lemma_2_is_the_limit_and_finite_m_exceeds_it_by_at_most_a_cell(epsilon: float) -> None:
    step = float(q.step(1.0, epsilon))
    p = q.high_probability(torch.linspace(-1, 1, 61, dtype=torch.float64), 0.0, 1.0, epsilon)
    p_a, p_b = p[:, None], p[None, :]
    lemma = pair_covariance(p_a, p_b, step).numpy()
    product = (p_a * p_b).numpy()

    def covariance(bits: int | None) -> np.ndarray:
        return 4 * step**2 * (laws.both_high(p_a.numpy(), p_b.numpy(), 0.0, bits) - product)

    np.testing.assert_allclose(lemma, covariance(None), atol=1e-12 * step**2)
    for bits in range(9):
        above = covariance(bits) - lemma
        assert above.min() >= -1e-12 * step**2 and above.max() <= step**2 / 2**bits * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 0.7, math.log(3), 2.0, math.inf])
def test_largest_variance_of_a_pair_against_the_independent_one(epsilon: float) -> None:
    step = float(q.step(1.0, epsilon))
    p = q.high_probability(torch.linspace(-1, 1, 801, dtype=torch.float64), 0.0, 1.0, epsilon)
    single = 4 * step**2 * p * (1 - p)
    independent = (single[:, None] + single) / 4
    pair = independent + pair_covariance(p[:, None], p, step) / 2
    grown = math.exp(min(epsilon, 600))
    expected = 0.5 if epsilon >= math.log(3) else 4 * (grown - 1) / (grown + 1) ** 2
    assert float(pair.max() / independent.max()) == pytest.approx(expected, rel=1e-5)
    assert bool((pair <= independent).all()) and float(pair[400, 400]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("bits", range(1, 9))
def test_at_one_half_the_two_bits_are_always_opposite(bits: int) -> None:
    cells, half = all_cells(bits)[:, None], number(0.5)
    assert bool(
        (coqfl.pair_bits(half, cells, grid(16), bits, True) ^ coqfl.pair_bits(half, cells, grid(16), bits, False)).all()
    )


def test_without_shared_bits_a_pair_is_independent() -> None:
    p, own, cells = torch.rand(100).double(), torch.rand(100).double(), torch.zeros(100, dtype=torch.uint8)
    for first in (True, False):
        assert torch.equal(coqfl.pair_bits(p, cells, own, 0, first), q.independent_bits(p, own))


# --- groups ----------------------------------------------------------------------------------------------


def high_given_rank(p: float, size: int, mu: float) -> Tensor:
    ranks = torch.arange(size)[:, None]
    return coqfl.mixed_group_bits(number(p), ranks, grid(1024), size, mu).double().mean(1)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("mu", [0.0, 0.25])
def test_groups_have_exact_marginals_and_the_derived_covariance(size: int, mu: float) -> None:
    """Enumeration: ranks of two members are any two different ones; given them the bits are independent."""
    places = [0, 1 / 8, 11 / 64, 3 / 8, 29 / 64, 1 / 2, 40 / 64, 1]
    step, apart = 1.7, ~torch.eye(size, dtype=torch.bool)
    for p_a, p_b in itertools.product(places, repeat=2):
        first, second = high_given_rank(p_a, size, mu), high_given_rank(p_b, size, mu)
        assert float(first.mean()) == pytest.approx(p_a, abs=1e-12)
        both = float((first[:, None] * second)[apart].mean())
        derived = q.group_covariance(number(p_a), number(p_b), size, step, mu)
        assert float(derived) == pytest.approx(4 * step**2 * (both - p_a * p_b), abs=1e-12)
        assert float(derived) <= 1e-15


def test_the_covariance_of_a_group_is_never_positive_and_symmetric() -> None:
    p = torch.rand(2, 20_000, generator=torch.Generator().manual_seed(0)).double()
    for size in (2, 3, 5, 8, 64):
        found = q.group_covariance(p[0], p[1], size, 1.0)
        assert float(found.max()) <= 1e-15
        torch.testing.assert_close(found, q.group_covariance(p[1], p[0], size, 1.0))


def test_equal_members_of_a_group_vary_by_the_fraction_of_a_cell_only() -> None:
    """The number of high bits is floor(g p) or one more: variance f (1 - f)."""
    for size, p in ((3, 0.4), (4, 0.5), (8, 0.77)):
        covariance = float(q.group_covariance(number(p), number(p), size, 0.5))
        fraction = size * p % 1
        assert size * p * (1 - p) + size * (size - 1) * covariance == pytest.approx(fraction * (1 - fraction))


def test_a_pair_is_a_better_law_than_a_permutation_of_two() -> None:
    p = torch.rand(2, 5000, generator=torch.Generator().manual_seed(1)).double()
    assert bool((pair_covariance(p[0], p[1], 1.0) <= q.group_covariance(p[0], p[1], 2, 1.0) + 1e-15).all())


# --- private coins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.05, 0.5, 0.9])
def test_given_the_coin_the_fresh_uniform_is_uniform(mu: float) -> None:
    own = torch.from_numpy(np.random.default_rng(7).random(50_000))
    p = number(0.3)
    coin, alone, fresh = coqfl.with_private_coins(p, own, mu)
    assert stats.binomtest(int(coin.sum()), 50_000, mu).pvalue > 1e-4
    assert stats.kstest(fresh[~coin].numpy(), "uniform").pvalue > 1e-4
    scaled = own[coin] / mu
    assert stats.kstest(scaled.numpy(), "uniform").pvalue > 1e-4
    assert torch.equal(alone[coin], scaled < p)


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_a_coin_that_always_falls_the_same_way_leaves_the_uniform_alone(mu: float) -> None:
    own = torch.rand(100).double()
    coin, alone, fresh = coqfl.with_private_coins(number(0.3), own, mu)
    assert bool((coin == bool(mu)).all()) and torch.equal(fresh, own)
    assert mu == 0 or torch.equal(alone, own < 0.3)


# --- shared streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0, 1, 5, 8, 9, 16])
def test_cells_are_uniform(bits: int) -> None:
    size = 60_000
    stream = np.random.default_rng(bits).bytes(q.cell_bytes(size, bits))
    cells = q.cells_of(stream, bits).numpy()
    assert cells.shape == (size,) and cells.min() >= 0 and cells.max() < 2**bits
    top = cells.astype(int) >> max(0, bits - 5)
    assert bits == 0 or stats.chisquare(np.bincount(top, minlength=min(2**bits, 32))).pvalue > 1e-4


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_ranks_are_a_uniform_permutation_across_members(size: int) -> None:
    stream = np.random.default_rng(size).bytes(8 * size * 20_000)
    ranks = torch.stack([q.ranks_of(stream, size, member) for member in range(size)])
    assert torch.equal(ranks.sort(0).values, torch.arange(size, dtype=torch.int32)[:, None].expand(size, 20_000))
    for row in ranks.numpy():
        assert stats.chisquare(np.bincount(row, minlength=size)).pvalue > 1e-4
    joint = np.bincount((ranks[0] * size + ranks[1]).numpy(), minlength=size**2)
    assert stats.chisquare(joint[joint > 0]).pvalue > 1e-4 and (joint > 0).sum() == size * (size - 1)


def test_equal_numbers_still_give_a_permutation() -> None:
    ranks = [q.ranks_of(bytes(8 * 5 * 3), 5, member).tolist() for member in range(5)]
    assert ranks == [[member] * 3 for member in range(5)]


# --- long vectors and the wire ---------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 7, 8, 9, 1000])
def test_bits_survive_the_wire(dimension: int) -> None:
    bits = torch.rand(dimension) < 0.5
    packed = q.pack(bits)
    assert packed.nbytes == math.ceil(dimension / 8) and torch.equal(q.unpack(packed, dimension), bits)


@pytest.mark.parametrize(
    ("packed", "dimension", "words"),
    [
        (np.zeros(1, np.uint8), 9, "expected 2 bytes"),
        (np.zeros(3, np.uint8), 9, "expected 2 bytes"),
        (np.zeros(2, np.int64), 9, "int64"),
        (np.zeros((2, 1), np.uint8), 9, "expected 2 bytes"),
        (np.array([0, 2], np.uint8), 9, "after the last"),
    ],
)
def test_a_wrong_packet_is_refused(packed: np.ndarray, dimension: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        q.unpack(packed, dimension)
