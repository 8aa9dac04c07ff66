"""What floating point is charged for, constant by constant: each price against the same sum written from its proof."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from pytest import approx

import fedpriv.mechanisms.privunit as privunit
import fedpriv.mechanisms.secure_noise as secure_noise
from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.bookkeeping import _ghost_norms
from fedpriv.mechanisms.laws import cap_response
from fedpriv.mechanisms.matrix_factors import MatrixMechanism, coefficients, moves
from fedpriv.mechanisms.noise import DITHER, NoiseSource, SeededNoise, fine_step, grid_step
from fedpriv.mechanisms.unit_cap import best_cap

mp.dps = 40


def closeness(dimension: int, epsilon: float, outside: float) -> mpf:
    """s0 = t + 3 d 2^-28 + 2^-40, t = mu (z + mu/2), from lengths: a blur of s a coordinate, half a step of its grid
    (at most s 2^-19) in each coordinate, W and float64 below 2^-34, T below 2e-8/sqrt(d).
    """
    root = mpmath.sqrt(dimension)
    s = mpf(2) ** -7 / root
    mu = (root * s * mpf(2) ** -20 + mpf(2) ** -34 + mpf("2e-8") / root) / s
    z = mpmath.sqrt(-2 * mpmath.log(mpf(10) ** -13 * mpmath.exp(-(epsilon + 1)) * outside))
    assert mpmath.ncdf(-z) <= mpf(10) ** -13 * mpmath.exp(-(epsilon + 1)) * outside
    return mu * (z + mu / 2) + 3 * dimension * mpf(2) ** -28 + mpf(2) ** -40


@pytest.mark.parametrize("dimension", [2, 64, 1000, 80_000])
@pytest.mark.parametrize("epsilon", [0.5, 4.0, 30.0])
def test_the_price_of_floating_point_is_the_proofs(dimension: int, epsilon: float) -> None:
    setting = privunit.private_unit(dimension, epsilon)
    wanted = closeness(dimension, epsilon, setting.cap.outside)
    assert privunit._closeness(dimension, epsilon, setting.cap.outside) == approx(float(wanted), rel=1e-9)
    paid = (mpf(epsilon) - mpf(setting.cap.epsilon)) / 2
    assert wanted <= paid <= wanted * (1 + mpf(10) ** -4) + mpf(10) ** -15
    assert setting.law.epsilon == epsilon and setting.law.delta == privunit.DELTA


@pytest.mark.parametrize("dimension", [3, 500])
@pytest.mark.parametrize("epsilon", [0.3, 2.0, 9.0])
def test_what_is_inside_is_charged_with_its_price(dimension: int, epsilon: float) -> None:
    """p' = e^s0 (p + (1 - p) (1 - e^(-2 s0))/(1 - e^-eps')), with eps' = eps + 2 s0."""
    cap = best_cap(dimension, epsilon)
    for added in (1e-6, 1e-3, 0.02):
        s0, after = mpf(added) / 2, mpf(epsilon) + mpf(added)
        law = privunit.charged(cap, epsilon + added)
        share = (1 - mpmath.exp(-2 * s0)) / (1 - mpmath.exp(-after))
        inside = mpmath.exp(s0) * (mpf(cap.inside) + mpf(cap.outside) * share)
        if 1 - inside < cap.outside / 2:
            assert law.inside == approx(float(1 / (1 + mpmath.exp(-after))), rel=1e-12)
        else:
            assert law.inside == approx(float(inside), rel=1e-9)
        assert law.epsilon == epsilon + added and law.delta == privunit.DELTA
        # what it says covers the laws of the proof at every t: in the cap, and where the ratio is 1
        first, second = cap_response(law.epsilon, law.inside)
        for t in (0.0, added / 2, added, epsilon / 2):
            charged = sum(max(0.0, a - math.exp(t) * b) for a, b in zip(first, second, strict=True))
            in_cap = mpmath.exp(s0) * cap.inside * max(0, 1 - mpmath.exp(t - after))
            between = mpmath.exp(s0) * cap.outside * max(0, 1 - mpmath.exp(t - 2 * s0))
            assert charged >= float(in_cap + between) * (1 - 1e-9) - 1e-15


@pytest.mark.parametrize("dimension", [2, 300, 80_202, 2**20, 2**32])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 8.0, 100.0, 500.0])
@pytest.mark.parametrize("outside", [0.5, 1e-3, 1e-6, 1e-30])
def test_words_are_as_many_as_all_uniforms_of_a_release_need(dimension: int, epsilon: float, outside: float) -> None:
    """4 d + 4 uniforms, each of which loses 2^-(32 words): together at most 1e-13 e^-(eps + 2) max(1 - p, 1e-6)."""
    allowed = mpf(10) ** -13 * mpmath.exp(-mpf(epsilon) - 2) * max(mpf(outside), mpf(10) ** -6)
    lost = [(4 * dimension + 4) * mpf(2) ** (-32 * (privunit._words(dimension, epsilon, outside) - k)) for k in (0, 1)]
    assert lost[0] <= allowed * (1 + mpf(10) ** -9) and lost[1] > allowed * (1 - mpf(10) ** -9)


def test_one_coordinate_pays_for_its_threshold() -> None:
    setting = privunit.private_unit(1, 2.0)
    assert setting.cap.epsilon == 2.0 - 2.0**-38
    assert (setting.law.epsilon, setting.law.inside, setting.law.delta) == (2.0, setting.cap.inside, 0.0)


def test_an_epsilon_is_refused_from_twice_its_price_on() -> None:
    """Half of epsilon at least is the cap's own."""
    dimension, least = 10**6, None
    for epsilon in [0.5**k for k in range(1, 16)]:
        try:
            setting = privunit.private_unit(dimension, epsilon)
        except OptionError:
            least = epsilon
            break
        assert setting.cap.epsilon >= epsilon / 2
    assert least is not None and 2 * float(closeness(dimension, least, 0.5)) > 0.4 * least


@pytest.mark.parametrize("log", [-1e-3, -1.0, -50.0, -709.0])
def test_the_far_tail_is_that_of_a_normal_law(log: float) -> None:
    (found,) = secure_noise._beyond(7.25, np.array([log]))
    assert float(mpmath.log(mpmath.ncdf(-mpf(found)) / mpmath.ncdf(-mpf(7.25)))) == approx(log, rel=1e-11)
    assert secure_noise.FAR == 7.0  # up to here a draw is within its factor


@pytest.mark.parametrize("scale", [1.0, 0.7, 1.999, 3e-5, 2.0**-30, 1e9])
def test_steps_of_the_grids(scale: float) -> None:
    """Powers of two: of a Gaussian in (s/2^20, s/2^19], of the fine one in (s/2^37, s/2^36]."""
    for step, bits in ((grid_step(scale), 19), (grid_step(scale, 16), 16), (fine_step(scale), 36)):
        assert math.frexp(step)[0] == 0.5 and scale / 2 ** (bits + 1) < step <= scale / 2**bits
    assert grid_step(0.0) == fine_step(0.0) == 0.0 and DITHER == 4.0


class Still(SeededNoise):
    """Gaussians that are all of one standard deviation: what a fine one is made of shows."""

    def normal(self, shape: int | tuple[int, ...], std: float = 1.0) -> torch.Tensor:  # type: ignore[override]
        return torch.full((shape,) if isinstance(shape, int) else shape, std)


def test_a_fine_gaussian_is_two() -> None:
    found = NoiseSource.fine_normal(Still(1), (2,), 3.0)
    assert found.tolist() == approx([3.0 + 4 * grid_step(3.0)] * 2, abs=0)


@pytest.mark.parametrize(("rounds", "most", "apart"), [(16, 1, 16), (40, 4, 10), (30, 30, 1)])
@pytest.mark.parametrize("clients", [1, 20, 100_000])
@pytest.mark.parametrize("name", ["identity", "sqrt", "banded", "bisr", "blt"])
def test_a_matrix_mechanisms_noise_is_worth_its_multiplier(
    name: str, clients: int, rounds: int, most: int, apart: int
) -> None:
    """std / (C ||v|| + 2 gamma(2 T + 10) n C ||A|| + sqrt(d T) steps) is the multiplier: v and A by a loop."""
    given: dict[str, Any] = {"noise_multiplier": 1.7, "clip_norm": 0.3, "clients": clients}
    mechanism = MatrixMechanism(name, rounds, most, apart, **given)  # type: ignore[arg-type]
    factor = coefficients(name, rounds, most, apart)  # type: ignore[arg-type]
    when = list(range(0, rounds, apart))[:most]
    rows = [sum(factor[i - j] for j in when if 0 <= i - j < len(factor)) for i in range(rounds)]
    assert moves(factor, rounds, most, apart).tolist() == approx(rows)
    length = 0.3 * math.sqrt(math.fsum(row * row for row in rows))
    assert mechanism.std == approx(1.7 * length)
    reached = [mpmath.fsum(factor[: i + 1]) for i in range(rounds)]
    if name == "bisr":
        reached = [mpmath.fsum(factor[j] * reached[i - j] for j in range(i + 1)) for i in range(rounds)]
    gamma = (2 * rounds + 10) * mpf(2) ** -53 / (1 - (2 * rounds + 10) * mpf(2) ** -53)
    rounding = 2 * gamma * clients * mpf(0.3) * mpmath.norm(reached)
    assert mechanism.rounding == approx(float(rounding), rel=1e-9)
    for dimension in (1, 80_202, 11_000_000):
        std = mechanism.std_for(dimension)
        moved = length + rounding + mpmath.sqrt(dimension * rounds) * std / 2**36  # `fine_step` is at most that
        assert std == approx(float(1.7 * moved), rel=1e-12)
    with pytest.raises(OptionError, match="noise_multiplier"):  # the grid would be coarser than what it hides
        MatrixMechanism(name, rounds, most, apart, **given | {"noise_multiplier": 1e9}).std_for(10**6)  # type: ignore[arg-type]


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (25, 3), (3, 40)])
@pytest.mark.parametrize("positions", [2, 36, 784])
@pytest.mark.parametrize("most", [1, 32])
def test_a_ghosts_length_has_the_slack_of_its_mass(inputs: int, outputs: int, positions: int, most: int) -> None:
    """2 gamma(i + o + p^2 + 8) + (gamma(m p + 8) 2^28)^2 of the square of the mass A, where all of c_k cancels."""

    def gamma(terms: int) -> mpf:
        return terms * mpf(2) ** -53 / (1 - terms * mpf(2) ** -53)

    columns = torch.ones(1, inputs, positions, dtype=torch.float64)
    gradient = torch.ones(1, outputs, positions, dtype=torch.float64)
    gradient[..., ::2] = -1.0  # exactly as many as ones: every sum of products is 0
    slack = 2 * gamma(inputs + outputs + positions**2 + 8) + (gamma(most * positions + 8) * 2**28) ** 2
    mass = positions * mpmath.sqrt(inputs * outputs)
    assert float(_ghost_norms(gradient, columns, most)[0]) == approx(float(slack * mass**2), rel=1e-12)
