"""Factors of the prefix sum: their sensitivity by brute force, their inverse, their error, and the noise they give."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.common.cohorts import cohort_of, limits
from fedpriv.mechanisms.matrix_factors import (
    BufferedPast,
    MatrixMechanism,
    Past,
    blt_pairs,
    coefficients,
    error,
    exact_sum,
    moves,
    recursion,
    sensitivity,
    square_root,
)
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.composition import compose
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.privacy.secret_cohorts import round_events

NAMES = ("identity", "sqrt", "banded", "bisr", "blt")
#: (T, k, b)
PATTERNS = [(6, 1, 1), (6, 3, 1), (7, 2, 3), (8, 3, 2), (9, 3, 4), (8, 8, 1), (5, 2, 9)]


def matrix(factor: Any, rounds: int) -> np.ndarray:
    """C, entry by entry."""
    found = np.zeros((rounds, rounds))
    for row, column in itertools.product(range(rounds), repeat=2):
        if 0 <= row - column < len(factor):
            found[row, column] = factor[row - column]
    return found


def patterns(rounds: int, most: int, apart: int) -> Iterator[tuple[int, ...]]:
    """All of them, also those with fewer participations."""
    for size in range(most + 1):
        for chosen in itertools.combinations(range(rounds), size):
            if all(later - earlier >= apart for earlier, later in itertools.pairwise(chosen)):
                yield chosen


# --- sensitivity ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_no_pattern_and_no_vectors_move_it_further(name: Any, pattern: tuple[int, int, int]) -> None:
    """Every pattern with every choice of signs, and with random vectors of length at most 1 in three dimensions; of
    every number of first rounds.
    """
    rounds, most, apart = pattern
    factor = coefficients(name, rounds, most, apart)
    whole, draw = matrix(factor, rounds), np.random.default_rng(0)
    v = moves(factor, rounds, most, apart)
    for first in range(1, rounds + 1):
        part, bound, found = whole[:first, :first], math.sqrt((v[:first] ** 2).sum()), 0.0
        for chosen in patterns(first, most, apart):
            for signs in itertools.product((-1, 1), repeat=len(chosen)):
                u = np.zeros(first)
                u[list(chosen)] = signs
                found = max(found, float(np.linalg.norm(part @ u)))
            vectors = np.zeros((first, 3))
            directions = draw.normal(size=(len(chosen), 3))
            vectors[list(chosen)] = directions / np.maximum(1, np.linalg.norm(directions, axis=1, keepdims=True))
            assert np.linalg.norm(part @ vectors) <= bound + 1e-12
        assert found == pytest.approx(bound, rel=1e-12)  # and it is reached


def test_known_sensitivities() -> None:
    """Independent noise: sqrt(k). A band of two, far participations: sqrt(k (1 + 1/4)); near ones overlap."""
    assert sensitivity((1.0,), 10, 4, 2) == 2.0
    assert sensitivity((1.0, 0.5), 10, 4, 2) == pytest.approx(math.sqrt(5))
    assert sensitivity((1.0, 0.5), 3, 3, 1) == pytest.approx(math.sqrt(1 + 1.5**2 + 1.5**2))
    assert square_root(5) == pytest.approx([1, 1 / 2, 3 / 8, 5 / 16, 35 / 128])


@pytest.mark.parametrize("name", NAMES)
def test_coefficients_fall_and_are_not_negative(name: Any) -> None:
    """What the proof rests on."""
    for rounds, most, apart in ((1, 1, 1), (2, 1, 1), (40, 4, 10), (100, 100, 1)):
        found = np.array(coefficients(name, rounds, most, apart))
        assert found[0] == 1 and (np.diff(found) <= 0).all() and (found >= 0).all() and len(found) <= rounds


@pytest.mark.parametrize("rounds", [2, 9, 40])
def test_a_banded_inverse_falls_at_every_width(rounds: int) -> None:
    """Its inverse has p diagonals, those of the root of 1 - x; exactly: in fractions, without rounding."""
    for width in range(1, rounds + 1):
        f = [Fraction(1, 2)] * (width > 1)
        for j in range(1, width - 1):
            f.append(f[-1] * Fraction(2 * j - 1, 2 * j + 2))
        assert recursion(width) == pytest.approx([float(one) for one in f], rel=1e-14)
        c = [Fraction(1)]
        for n in range(1, rounds):
            c.append(sum((f[j - 1] * c[n - j] for j in range(1, min(n, width - 1) + 1)), Fraction(0)))
        assert all(0 <= later <= earlier for earlier, later in itertools.pairwise(c))
        found = coefficients("bisr", rounds, 1, 1, width)
        assert found == pytest.approx([float(one) for one in c], rel=1e-12, abs=1e-15)
        assert c[:width] == [Fraction(math.comb(2 * n, n), 4**n) for n in range(width)]


@pytest.mark.parametrize("pattern", [(7, 2, 3), (8, 3, 2), (9, 9, 1)], ids=str)
@pytest.mark.parametrize("width", [2, 3, 5])
def test_no_separated_pattern_moves_a_banded_inverse_further(pattern: tuple[int, int, int], width: int) -> None:
    rounds, most, apart = pattern
    factor = coefficients("bisr", rounds, most, apart, width)
    whole = matrix(factor, rounds)
    found = max(np.linalg.norm(whole @ np.isin(np.arange(rounds), one)) for one in patterns(rounds, most, apart))
    assert found == pytest.approx(sensitivity(factor, rounds, most, apart), rel=1e-12)


def test_a_factor_that_does_not_fall_would_break_the_bound() -> None:
    """(0, 2, ...) is not always the worst pattern: the proof's condition is needed."""
    rising = (0.1, 1.0, 1.0)
    v = moves(rising, 5, 2, 2)
    found = max(np.linalg.norm(matrix(rising, 5) @ np.isin(np.arange(5), chosen)) for chosen in patterns(5, 2, 1))
    assert found > np.linalg.norm(v)


@pytest.mark.parametrize("participation", ["once", "balanced", "cyclic"])
@pytest.mark.parametrize(("clients", "size"), [(12, 3), (10, 4), (5, 5), (11, 2)])
def test_plans_of_participation_keep_to_their_pattern(participation: str, clients: int, size: int) -> None:
    rounds = clients // size if participation == "once" else 23
    most, apart = limits(participation, None, clients, size, rounds)
    cohorts = [cohort_of(3, number, clients, size, "fixed", participation) for number in range(1, rounds + 1)]
    seen: set[tuple[int, int]] = set()
    for client in range(clients):
        own = [number for number, cohort in enumerate(cohorts) if client in cohort]
        assert len(own) <= most
        seen.add((len(own), min((b - a for a, b in itertools.pairwise(own)), default=apart)))
    assert all(len(set(cohort)) == size for cohort in cohorts)
    assert max(count for count, _ in seen) == most and min(gap for _, gap in seen) >= apart
    if participation == "cyclic":
        assert min(gap for _, gap in seen) == apart == clients // size


# --- error ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_error_is_that_of_the_matrices(name: Any) -> None:
    rounds, most, apart = 12, 3, 4
    factor = coefficients(name, rounds, most, apart)
    c = matrix(factor, rounds)
    plain = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(c)
    expected = np.linalg.norm(plain) / math.sqrt(rounds) * sensitivity(factor, rounds, most, apart)
    assert error(factor, rounds, most, apart) == pytest.approx(expected)


@pytest.mark.parametrize("pattern", [(100, 1, 100), (100, 10, 10), (50, 50, 1)], ids=str)
def test_the_best_band_is_no_worse_than_its_ends_and_all_beat_independent_noise(pattern: tuple[int, int, int]) -> None:
    found = {name: error(coefficients(name, *pattern), *pattern) for name in NAMES}  # type: ignore[arg-type]
    assert found["banded"] <= min(found["identity"], found["sqrt"]) + 1e-12
    assert found["bisr"] <= min(found["identity"], found["sqrt"]) + 1e-9
    if pattern[1] == 1:  # log(T) against sqrt(T)
        assert max(found["sqrt"], found["blt"]) < 0.4 * found["identity"]
        assert found["blt"] < 1.01 * found["sqrt"]
    if pattern[1] == 50:  # everybody in every round: little is to be had
        assert found["sqrt"] > found["identity"] >= found["banded"]


def test_buffers_are_better_the_more_they_are() -> None:
    errors = [error(coefficients("blt", 100, 5, 20, None, buffers), 100, 5, 20) for buffers in (1, 2, 4)]
    assert errors[0] > errors[1] > errors[2] * 0.9999


# --- the mechanism --------------------------------------------------------------------------------------


def mechanism(name: Any, rounds: int = 12, **changes: Any) -> MatrixMechanism:
    given: dict[str, Any] = {"noise_multiplier": 1.5, "clip_norm": 0.5} | changes
    return MatrixMechanism(name, rounds, 3, 4, **given)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_used_is_the_inverse_of_what_is_released(name: Any) -> None:
    """w = C s + z with z of the right size, and C times what is used is w."""
    rounds, trials = 12, 2000
    sums, noise, made = torch.randn(rounds, 1, 3).double(), SeededNoise(5, "noise"), mechanism(name)
    pairs = [made.release(row.expand(trials, 3).clone(), noise) for row in sums]
    released, used = (torch.stack(found).numpy() for found in zip(*pairs, strict=True))
    c = matrix(coefficients(name, rounds, 3, 4), rounds)
    np.testing.assert_allclose(np.einsum("ij,jnd->ind", c, used), released, atol=1e-9)
    z = released - np.einsum("ij,jnd->ind", c, sums.numpy())
    std = 1.5 * 0.5 * sensitivity(coefficients(name, rounds, 3, 4), rounds, 3, 4)
    assert z.std() == pytest.approx(std, rel=0.01) and abs(z.mean()) < 0.02 * std
    flat = z.transpose(0, 2, 1).reshape(rounds * 3, trials)
    correlation = np.corrcoef(flat) - np.eye(rounds * 3)
    assert abs(correlation).max() < 5 / math.sqrt(trials)


def test_buffers_hold_what_all_rounds_would() -> None:
    alphas, lambdas = blt_pairs(20, 2, 10, 3)
    full, short = Past(coefficients("blt", 20, 2, 10)), BufferedPast(alphas, lambdas)
    draw = torch.Generator().manual_seed(1)
    for _ in range(20):
        vector = torch.randn(4, dtype=torch.float64, generator=draw)
        torch.testing.assert_close(short.sum(vector), full.sum(vector), rtol=1e-10, atol=1e-10)
        full.push(vector)
        short.push(vector)
    assert len(short.vectors()) == 3 and len(full.vectors()) == 19


def test_a_banded_inverse_remembers_as_many_vectors_as_its_band() -> None:
    made = mechanism("bisr", 40, bandwidth=3)
    for number in range(9):
        made.release(torch.full((5,), float(number), dtype=torch.float64), SeededNoise(1, number))
    assert len(made.vectors()) == 2 * 2


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_from_a_checkpoint_bit_for_bit(name: Any) -> None:
    whole, before = mechanism(name), mechanism(name)

    def row(made: MatrixMechanism, number: int) -> torch.Tensor:
        return made.release(torch.full((5,), float(number), dtype=torch.float64), SeededNoise(1, number))[1]

    expected = [row(whole, number) for number in range(12)]
    for number in range(7):
        row(before, number)
    after = mechanism(name)
    after.load_vectors({key: value.copy() for key, value in before.vectors().items()})
    assert all(torch.equal(row(after, number), expected[number]) for number in range(7, 12))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_leaving_out_a_part_moves_the_sum_by_exactly_that_part(scale: float) -> None:
    """In exact arithmetic, and by no more than its length: of any size beside the others, and of many."""
    draw, like = np.random.default_rng(2), torch.zeros(50)
    parts = [torch.from_numpy(draw.normal(size=50).astype(np.float32)) for _ in range(3000)]
    parts.append(torch.from_numpy(draw.normal(size=50).astype(np.float32) * np.float32(scale)))
    most = math.fsum(float(part.double().norm()) for part in parts)
    moved = exact_sum(parts, like, most) - exact_sum(parts[:-1], like, most)
    assert torch.equal(exact_sum(parts[-1:], like, most), moved) and moved.norm() <= parts[-1].double().norm()


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_many_clients_move_by_no_more_than_the_noise_is_for(name: Any) -> None:
    """Rows as they are computed, with and without one of 100,000 clients that all send the same."""
    rounds, most, clients = 300, 3, 100_000
    made = [mechanism(name, rounds, noise_multiplier=0.0, clip_norm=1.0, clients=clients) for _ in range(2)]
    factor, square = coefficients(name, rounds, most, 4), 0.0
    for number in range(rounds):
        here = float(number in (0, 4, 8))
        sums = [torch.full((1,), clients / 3 - gone, dtype=torch.float64) for gone in (0.0, here)]
        rows = [float(one.release(value, SeededNoise(0))[0]) for one, value in zip(made, sums, strict=True)]
        square += (rows[0] - rows[1]) ** 2
    assert 0 < abs(math.sqrt(square) - sensitivity(factor, rounds, most, 4)) <= made[0].rounding or name == "identity"


# --- the account ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_rounds_compose_to_one_release_of_the_whole(name: Any) -> None:
    events = round_events(name, 30, 3, 10, 0.8, None, 3)
    assert len(events) == 30
    assert compose(events, 1e-5).epsilon == pytest.approx(gaussian_epsilon(1 / 0.8, 1e-5), rel=1e-12)
    costs = [compose(events[:count], 1e-5).epsilon for count in range(1, 31)]
    assert costs == sorted(costs) and costs[0] > 0


def test_independent_noise_costs_what_its_participations_cost() -> None:
    """factor=identity: k Gaussians, each of multiplier sigma sqrt(k), in rounds 0, b, 2b; no other round costs."""
    events = round_events("identity", 9, 3, 4, 2.0, None, 3)
    assert [event.multiplier for event in events if math.isfinite(event.multiplier)] == pytest.approx(
        [2 * math.sqrt(3)] * 3
    )
    assert [place for place, event in enumerate(events) if math.isfinite(event.multiplier)] == [0, 4, 8]
