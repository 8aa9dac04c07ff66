"""Whole numbers for a secure sum: residues and their packing, rotation in blocks, rounding, and exact noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from mpmath import besseli, mp, mpf, nsum
from numpy.typing import NDArray
from scipy import stats

from fedpriv.common.seeds import public_signs
from fedpriv.mechanisms import integer_noise, whole_numbers
from fedpriv.mechanisms.cohort_noise import CohortNoise
from fedpriv.mechanisms.noise import NoiseSource, SeededNoise
from fedpriv.mechanisms.secure_noise import SecureNoise

# --- residues ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [6, 7, 8, 16, 18, 24, 31, 32, 33, 47, 56])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 1001])
def test_packed_residues_are_a_stream_of_bits(bits: int, count: int) -> None:
    rng = np.random.default_rng((bits, count))
    numbers = integer_noise.as_residues(rng.integers(0, 2**bits, count, dtype=np.uint64), bits)
    packed = integer_noise.pack_residues(numbers, bits)
    assert packed.dtype == np.uint8 and len(packed) == integer_noise.packed_size(count, bits) == math.ceil(
        count * bits / 8
    )
    stream = sum(int(number) << (bits * place) for place, number in enumerate(numbers))
    assert int.from_bytes(packed.tobytes(), "little") == stream
    assert (integer_noise.unpack_residues(packed, bits, count) == numbers).all()


def test_longer_vectors_than_are_packed_at_a_time() -> None:
    numbers = integer_noise.as_residues(np.random.default_rng(1).integers(0, 2**18, 2**18 + 5, dtype=np.uint64), 18)
    assert (integer_noise.unpack_residues(integer_noise.pack_residues(numbers, 18), 18, len(numbers)) == numbers).all()


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (np.zeros(4, np.uint8), "expected uint8 "),
        (np.zeros(3, np.float32), "expected uint8 "),
        (np.array([0, 0, 128], np.uint8), "the last 3 bits are not zero"),
    ],
)
def test_other_bytes_are_refused(packed: NDArray[np.uint8], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        integer_noise.unpack_residues(packed, 7, 3)


@pytest.mark.parametrize("bits", [8, 20, 32, 40])
def test_a_sum_of_residues_is_the_sum_as_long_as_that_is_held(bits: int) -> None:
    half = 2 ** (bits - 1)
    numbers = np.random.default_rng(bits).integers(-half // 8, half // 8, (7, 300))
    total = np.zeros(300, np.uint64)
    for row in numbers:
        integer_noise.add_residues(total, integer_noise.to_residues(row, bits), bits)
    assert (integer_noise.centred(total, bits) == numbers.sum(0)).all()
    ends = np.array([-half, half - 1, half, -half - 1, 2**bits * 3 + 5])
    assert integer_noise.centred(integer_noise.to_residues(ends, bits), bits).tolist() == [
        -half,
        half - 1,
        -half,
        half - 1,
        5,
    ]


# --- rotation ------------------------------------------------------------------------------------------------


def test_blocks_pad_little() -> None:
    assert [whole_numbers.blocks(d) for d in (1, 650, 4096, 4097, 7850)] == [(1,), (1024,), (4096,), (8192,), (8192,)]
    assert whole_numbers.blocks(80_202) == (65_536, 16_384) and whole_numbers.blocks(8193) == (8192, 4096)
    for dimension in (5000, 80_202, 1_000_000, 11_173_962):
        found = whole_numbers.blocks(dimension)
        assert set(found) <= {2**power for power in range(12, 17)} and 0 <= sum(found) - dimension < 4096


def test_a_rotation_in_blocks_spreads_and_comes_back() -> None:
    dimension = 12_500
    signs = torch.from_numpy(public_signs(1, 2, whole_numbers.rotated_size(dimension))).double()
    values = torch.zeros(2, dimension, dtype=torch.float64)
    values[0, 3], values[1, 9000:] = 1.0, torch.randn(3500, generator=torch.Generator().manual_seed(1)).double()
    turned = whole_numbers.rotate_blocks(values, signs)
    assert turned.shape == (2, 16_384) and whole_numbers.blocks(dimension) == (16_384,)
    assert torch.allclose(turned.norm(dim=-1), values.norm(dim=-1), rtol=1e-12)
    assert float(turned[0].abs().max()) < 1.01 / 128
    assert torch.allclose(whole_numbers.rotate_blocks_back(turned, signs, dimension), values, atol=1e-12)
    several = whole_numbers.rotate_blocks(torch.ones(9000), torch.ones(12_288, dtype=torch.float64))
    assert float(several[0]) == pytest.approx(8192 / math.sqrt(8192))  # of the first block alone


# --- rounding --------------------------------------------------------------------------------------------------


def test_rounding_keeps_the_norm_whatever_it_is_given() -> None:
    most = whole_numbers.rounded_square(10.0, 64)
    noise, values = SeededNoise("rounding"), torch.full((200, 64), 10 / 8.0, dtype=torch.float64)
    found = whole_numbers.conditional_round(values, most, noise)
    assert set(found.unique().tolist()) == {1, 2} and int(found.square().sum(-1).max()) <= most
    for longer in (2.0, 100.0):  # longer than it may be: no rounding of it fits, and what leaves fits all the same
        for hostile in (longer * values, longer * values[0]):
            assert int(whole_numbers.conditional_round(hostile, most, noise).square().sum(-1).max()) <= most


def test_rounding_is_unbiased_where_it_is_rarely_repeated() -> None:
    values = torch.tensor([0.25, -0.6, 3.0, -7.875]).double()
    most = whole_numbers.rounded_square(float(values.norm()), 4, beta=1e-6)
    found = whole_numbers.conditional_round(values.expand(40_000, 4), most, SeededNoise("unbiased")).double()
    assert torch.allclose(found.mean(0), values, atol=5 * 0.5 / 200)
    assert torch.equal(found[:, 2], torch.full((40_000,), 3.0).double())


@pytest.mark.parametrize(("norm", "dimension"), [(0.5, 3), (3.0, 50), (40.0, 1000)])
def test_a_rounding_is_accepted_as_often_as_promised(norm: float, dimension: int) -> None:
    """The bound on the norm is a bound on a probability: with beta at most it is exceeded before it is drawn again."""
    direction = torch.randn(dimension, generator=torch.Generator().manual_seed(dimension)).double()
    values = direction * (norm / direction.norm())
    noise = SeededNoise("accepted", dimension)
    low = values.floor()
    drawn = low + (noise.uniform((4000, dimension)) < values - low)
    beyond = float((drawn.square().sum(-1) > whole_numbers.rounded_square(norm, dimension)).double().mean())
    assert beyond <= whole_numbers.BETA
    assert whole_numbers.rounded_square(norm, dimension) <= (norm + math.sqrt(dimension)) ** 2


# --- noise: the borders against the law --------------------------------------------------------------------------


def gaussian_law(sigma: float, reach: int) -> list[mpf]:
    weights = [mp.exp(-(mpf(x) ** 2) / (2 * mpf(sigma) ** 2)) for x in range(reach + 1)]
    total = 2 * nsum(lambda x: mp.exp(-(x**2) / (2 * mpf(sigma) ** 2)), [1, mp.inf]) + 1
    return [weight / total for weight in weights]


def skellam_law(variance: float, reach: int) -> list[mpf]:
    return [mp.exp(-mpf(variance)) * besseli(x, mpf(variance)) for x in range(reach + 1)]


@pytest.mark.parametrize(
    ("table", "law", "value"),
    [(integer_noise.gaussian_table, gaussian_law, value) for value in (0.3, 1.0, 7.7)]
    + [(integer_noise.skellam_table, skellam_law, value) for value in (0.05, 1.0, 30.3)],
)
def test_borders_are_those_of_the_law_to_the_last_bit(
    table: Callable[[float], integer_noise.Table], law: Callable[[float, int], list[mpf]], value: float
) -> None:
    """Against forty digits of an arithmetic library: F in units of 2^-64, off by less than two."""
    with mp.workdps(40):
        made = table(value)
        exact = law(value, made.reach)
        below = mpf(1) / 2 - exact[0] / 2 - sum(exact[1:])
        found = made._borders
        for place, border in enumerate(found.tolist()):
            below += exact[abs(place - made.reach)]
            assert abs(mpf(border) - below * 2**64) < 2, place - made.reach


@pytest.mark.parametrize("source", [lambda: SeededNoise(7), SecureNoise], ids=["seeded", "secure"])
@pytest.mark.parametrize("kind", ["gaussian", "skellam"])
def test_draws_follow_the_law(source: Callable[[], NoiseSource], kind: str) -> None:
    draw, value = (integer_noise.discrete_gaussian, 2.5) if kind == "gaussian" else (integer_noise.skellam, 6.25)
    found = draw(value, (200, 200), source())
    assert found.dtype == torch.int64 and found.shape == (200, 200)
    weights = gaussian_law(2.5, 40) if kind == "gaussian" else skellam_law(6.25, 40)
    expected = np.array([float(weights[abs(x)]) for x in range(-7, 8)])
    counts = np.array([int((found == x).sum()) for x in range(-7, 8)])
    observed = np.r_[counts, 40_000 - counts.sum()]
    assert stats.chisquare(observed, 40_000 * np.r_[expected, 1 - expected.sum()]).pvalue > 1e-5


@pytest.mark.parametrize(
    "ratios",
    [lambda bits: integer_noise.gaussian_ratios(2.0, bits), lambda bits: integer_noise.skellam_ratios(4.0, bits)],
)
def test_words_that_do_not_decide_are_made_longer(ratios: Callable[[int], list[int]]) -> None:
    """First words of six bits, most of which lie beside a border: the law is the same."""
    table = integer_noise.Table(ratios, word=6)
    asked = []

    class Counting(SeededNoise):
        def words(self, count: int) -> NDArray[np.uint64]:
            asked.append(count)
            return super().words(count)

    found = table.draw(4000, Counting("short words"))
    assert asked.count(1) > 2000
    reference = integer_noise.Table(ratios).draw(40_000, SeededNoise("long words"))
    places = np.arange(-4, 5)
    counts = [np.array([(np.clip(drawn, -4, 4) == x).sum() for x in places]) for drawn in (found, reference)]
    assert stats.chi2_contingency(np.stack(counts)).pvalue > 1e-5


@pytest.mark.parametrize("sigma", [0.3, 300.0, 1759.0])
@pytest.mark.parametrize("word", [20, 64])
def test_the_first_bits_of_a_word_decide_what_all_of_them_decide(sigma: float, word: int) -> None:
    """Also beside borders, where they must not decide: every word of 20 bits, and those of 64 that may be hard."""
    table = integer_noise.Table(lambda bits: integer_noise.gaussian_ratios(sigma, bits), word=word)
    borders, rng = table._borders, np.random.default_rng(1)
    words = np.arange(2**20, dtype=np.uint64)
    if word == 64:
        beside = (borders[:, None] + np.arange(-4, 5).astype(np.uint64)).reshape(-1)
        ends = np.array([0, 1, 2, 3, 2**64 - 4, 2**64 - 3, 2**64 - 2, 2**64 - 1], np.uint64)
        words = np.concatenate([beside, ends, rng.integers(0, 2**64, 50_000, dtype=np.uint64)])
    found, close = table._places(words)
    place = np.searchsorted(borders, words, side="right")
    below, above = borders[np.maximum(place, 1) - 1], borders[np.minimum(place, len(borders) - 1)]
    near = (words >= below) & (words - below <= 2) | (above >= words) & (above - words <= 2)
    near |= (words <= 2) | (words >= np.uint64(2**word - 3))
    assert near.sum() > 5 and np.array_equal(np.flatnonzero(near), np.sort(close))
    assert np.array_equal(found, place - table.reach)
    assert sigma > 1 or np.mean(table._by_first_bits == integer_noise.UNDECIDED) < 0.01


@pytest.mark.parametrize("word", [6, 64])
def test_several_clients_draw_what_each_draws_alone(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, and with further words of the same client where the first do not decide."""
    monkeypatch.setattr("fedpriv.mechanisms.integer_noise.CHUNK", 50)
    table = integer_noise.Table(lambda bits: integer_noise.gaussian_ratios(2.0, bits), word=word)
    together = table.draw(120, CohortNoise([SeededNoise("cohort", client) for client in range(4)]))
    alone = [table.draw(120, SeededNoise("cohort", client)) for client in range(4)]
    assert np.array_equal(together, np.stack(alone))


def test_several_clients_round_and_redraw_each_for_itself() -> None:
    """Some are rounded again, with their own draws; one cannot be rounded within the bound at all."""
    values = torch.full((6, 16), 0.5, dtype=torch.float64)
    values[3] = 9.0
    together = whole_numbers.conditional_round(
        values, 7, CohortNoise([SeededNoise("round", client) for client in range(6)])
    )
    alone = [whole_numbers.conditional_round(row, 7, SeededNoise("round", client)) for client, row in enumerate(values)]
    assert torch.equal(together, torch.stack(alone)) and int(together.square().sum(-1).max()) <= 7


@pytest.mark.parametrize("draw", [integer_noise.discrete_gaussian, integer_noise.skellam])
def test_large_noise_and_its_limits(draw: Callable[..., torch.Tensor]) -> None:
    std = 3000.0
    found = (
        draw(std if draw is integer_noise.discrete_gaussian else std**2, 20_000, SeededNoise("large")).double().numpy()
    )
    assert stats.kstest(found / std, "norm").pvalue > 1e-5
    assert torch.equal(draw(0.0, 3, SeededNoise("none")), torch.zeros(3, dtype=torch.int64))
    for impossible in (-1.0, 2.0**40, math.nan):
        with pytest.raises(ValueError, match="standard deviation from 0 to 2"):
            draw(impossible, 3, SeededNoise("impossible"))


def test_seeded_words_repeat_and_secure_ones_do_not() -> None:
    first, again, other = (
        integer_noise.discrete_gaussian(50.0, 100, SeededNoise(*key)) for key in ((1, "a"), (1, "a"), (1, "b"))
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(
        integer_noise.discrete_gaussian(50.0, 100, SecureNoise()),
        integer_noise.discrete_gaussian(50.0, 100, SecureNoise()),
    )
    for source in (SeededNoise("bits"), SecureNoise()):
        bits = np.unpackbits(source.words(4000).view(np.uint8)).reshape(4000, 64).mean(0)
        assert abs(bits - 0.5).max() < 5 * 0.5 / math.sqrt(4000)


def test_a_source_of_uniforms_alone_has_words() -> None:
    """A noise source of one's own need not know of words."""

    class Uniforms(NoiseSource):
        def normal(self, shape: object, std: float = 1.0) -> torch.Tensor:
            raise AssertionError

        def uniform(self, shape: object) -> torch.Tensor:
            return torch.rand(shape, dtype=torch.float64, generator=GENERATOR)  # type: ignore[call-overload,no-any-return]

    bits = np.unpackbits(Uniforms().words(4000).view(np.uint8)).reshape(4000, 64).mean(0)
    assert abs(bits - 0.5).max() < 5 * 0.5 / math.sqrt(4000)


GENERATOR = torch.Generator().manual_seed(4)
