"""A part of a Poisson sample that is another: the pair that dominates, its curve and its law, against other ways."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from fedpriv.privacy.composition import compose
from fedpriv.privacy.events import Gaussian, PoissonGaussian, ReplacedGaussian, Threat
from fedpriv.privacy.sampled_laws import hockey_stick, replaced_poisson_pld, replaced_poisson_renyi

ROWS = Threat("example", "add-or-remove-one", "server")


def densities(rate: float, shift: float):
    def normal(x, at):
        return mpmath.exp(-((x - at) ** 2) / 2) / mpmath.sqrt(2 * mpmath.pi)

    return (
        lambda x: (1 - rate) * normal(x, 0) + rate * normal(x, shift),
        lambda x: (1 - rate) * normal(x, 0) + rate * normal(x, -shift),
    )


@pytest.mark.parametrize(("rate", "multiplier", "order"), [(0.1, 1.0, 2.0), (0.5, 0.3, 7.5), (0.02, 0.5, 32.0)])
def test_the_curve_is_the_integral(rate: float, multiplier: float, order: float) -> None:
    shift = 1 / (2 * multiplier)
    first, second = densities(rate, shift)
    with mpmath.workdps(20):
        places = np.linspace(-shift - 12, order * shift + 12, 24)
        moment = mpmath.quad(lambda x: first(x) ** order * second(x) ** (1 - order), places)
        expected = float(mpmath.log(moment) / (order - 1))
    assert replaced_poisson_renyi(rate, multiplier, np.array([order]))[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("rate", "multiplier"), [(0.1, 1.0), (0.5, 0.3), (0.9, 2.0)])
def test_the_hockey_stick_is_the_integral(rate: float, multiplier: float) -> None:
    first, second = densities(rate, 1 / (2 * multiplier))
    x = np.linspace(-20, 20, 400_001)
    p, q = (np.array([float(f(value)) for value in x[::100]]) for f in (first, second))
    for loss in (-0.5, 0.0, 0.3, 1.0):
        rough = np.maximum(p - math.exp(loss) * q, 0).sum() * 100 * (x[1] - x[0])
        assert hockey_stick(rate, multiplier, np.array([loss]))[0] == pytest.approx(rough, abs=2e-4)


def test_no_pair_of_parts_is_further_apart() -> None:
    """Random v and w in a disc of radius C, sums over a grid of the plane: every hockey stick is below the pair's."""
    rng = np.random.default_rng(0)
    axis = np.linspace(-8, 8, 241)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2

    def normal(at: np.ndarray) -> np.ndarray:
        return np.exp(-((x - at[0]) ** 2 + (y - at[1]) ** 2) / 2) / (2 * math.pi)

    closest = math.inf
    for trial in range(40):
        rate, shift = rng.uniform(0.05, 0.95), rng.uniform(0.3, 2.0)
        v, w = (shift * rng.uniform(0, 1) ** 0.25 * np.array([math.cos(t), math.sin(t)]) for t in rng.uniform(0, 7, 2))
        if trial % 4 == 0:
            v, w = np.array([shift, 0.0]), np.array([-shift, 0.0])
        p, q = (1 - rate) * normal(np.zeros(2)) + rate * normal(v), (1 - rate) * normal(np.zeros(2)) + rate * normal(w)
        losses = np.array([-1.0, -0.2, 0.0, 0.2, 0.7, 1.5])
        found = np.array([np.maximum(p - math.exp(loss) * q, 0).sum() * cell for loss in losses])
        bound = hockey_stick(rate, 1 / (2 * shift), losses)
        assert (found <= bound + 3e-4).all()
        closest = min(closest, float(np.abs(bound - found).max()))
    assert closest < 3e-4  # and it is attained


def test_everybody_drawn_is_a_gaussian_of_twice_the_bound() -> None:
    everybody = ReplacedGaussian(threat=ROWS, multiplier=0.7, sampling_rate=1.0, count=5)
    assert compose([everybody], 1e-5) == compose([Gaussian(threat=ROWS, multiplier=0.7, count=5)], 1e-5)
    almost = ReplacedGaussian(threat=ROWS, multiplier=0.7, sampling_rate=1 - 1e-9, count=5)
    assert compose([almost], 1e-5).epsilon == pytest.approx(compose([everybody], 1e-5).epsilon, rel=1e-3)


def test_the_law_of_adding_a_part_would_be_too_little() -> None:
    """With noise s = C: what a unit costs that is drawn or not there (multiplier 1) is less than what this costs."""
    added = compose([PoissonGaussian(threat=ROWS, multiplier=1.0, sampling_rate=0.2, count=20)], 1e-5).epsilon
    replaced = compose([ReplacedGaussian(threat=ROWS, multiplier=0.5, sampling_rate=0.2, count=20)], 1e-5).epsilon
    assert replaced > 1.2 * added


def test_the_distribution_agrees_with_the_curve_of_one_release() -> None:
    law = replaced_poisson_pld(0.2, 0.8, 1e-4)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        exact = hockey_stick(0.2, 0.8, np.array([epsilon]))[0]
        assert exact - 1e-12 <= law.get_delta_for_epsilon(epsilon) <= exact + 1e-6


def test_parts_are_of_a_client() -> None:
    for threat in (Threat("client", "add-or-remove-one", "server"), Threat("example", "replace-one", "server")):
        with pytest.raises(ValueError, match="unit example or person"):
            ReplacedGaussian(threat=threat, multiplier=1.0, sampling_rate=0.5)
