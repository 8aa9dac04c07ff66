"""The project's own mechanisms as targets of a check: no fault is found, and half of the noise is found out."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from fedpriv.api.calls import check
from fedpriv.checking.functions import recognises_update
from fedpriv.checking.subject import Question
from fedpriv.mechanisms.noise import NoiseSource, add_laplace, add_normal, add_normal_finely, clip, finite_or_zero
from fedpriv.mechanisms.quantisation import high_probability, independent_bits
from fedpriv.mechanisms.unit_vectors import UnitMechanism, unit_mechanism
from fedpriv.mechanisms.whole_numbers import WholeGrid, rotate_blocks
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

Target = Callable[[Tensor, NoiseSource], Tensor]
DIMENSION, DELTA, STD = 8, 1e-5, 4.0
MILLISECONDS_OF_A_PLAY = 0.8


@cache
def unit(name: str) -> UnitMechanism:
    return unit_mechanism(name, DIMENSION, 4.0, projections=4, std=2 * STD)


@cache
def grid() -> WholeGrid:
    return WholeGrid("gaussian", DIMENSION, clients=1, bits=16, multiplier=STD)


def of_units(name: str) -> Target:
    def release(update: Tensor, noise: NoiseSource) -> Tensor:
        return unit(name).release(update, ("a test", 1), noise)

    return release


def gaussian(update: Tensor, noise: NoiseSource) -> Tensor:
    return add_normal(clip(finite_or_zero(update), 1.0), STD, noise)


def fine_gaussian(update: Tensor, noise: NoiseSource) -> Tensor:
    return add_normal_finely(clip(finite_or_zero(update), 1.0), STD, noise)


def laplace(update: Tensor, noise: NoiseSource) -> Tensor:
    finite = finite_or_zero(update).double()
    return add_laplace((finite / finite.abs().sum().clamp(min=1.0)).float(), 0.5, noise)


def whole_numbers(update: Tensor, noise: NoiseSource) -> Tensor:
    vector = clip(finite_or_zero(update[:DIMENSION]), 1.0)  # the forms of an update are tried with other lengths
    return grid().noisy(rotate_blocks(vector, torch.ones(grid().padded)) / grid().step, noise)


def one_bit(update: Tensor, noise: NoiseSource) -> Tensor:
    p = high_probability(finite_or_zero(update), 0.0, 1.0, 4.0 / DIMENSION)
    return independent_bits(p, noise.uniform(tuple(p.shape)))


#: Target -> the epsilon at delta 1e-5 that its own proof gives.
OWN: dict[str, tuple[Target, float]] = {
    "gaussian": (gaussian, gaussian_epsilon(1 / STD, DELTA)),
    "fine gaussian": (fine_gaussian, gaussian_epsilon(1 / STD, DELTA)),
    "laplace": (laplace, 4.0),
    "whole numbers": (whole_numbers, gaussian_epsilon(math.sqrt(grid().most_square) / grid().sigma, DELTA)),
    "one bit": (one_bit, 4.0),
    "unit gaussian": (of_units("gaussian"), gaussian_epsilon(1 / STD, DELTA)),
    **{name: (of_units(name), 4.0) for name in ("privunit", "projunit", "sqkr")},
}


@pytest.mark.rotates(6)
@pytest.mark.parametrize("name", OWN)
def test_an_own_mechanism_has_no_fault_under_its_own_claim(name: str) -> None:
    target, epsilon = OWN[name]
    found = check(target, epsilon=epsilon * 1.02, dims=(DIMENSION,), trials=400, seconds=5)
    assert [(one.name, one.text) for one in found.findings if one.severity == "fault"] == []
    assert found.verdict == "no fault found"
    assert (found.audited or 0.0) < epsilon  # none where the replays took the time


@pytest.mark.parametrize("target", [gaussian, laplace, one_bit])
def test_a_generator_of_the_annotated_type_is_passed(target: Target) -> None:
    """NumPy's own takes the same calls, with other arguments in the same places."""
    found = recognises_update(target, Question(dims=(DIMENSION,)))
    assert found is not None
    assert "a noise source" in found.name


@pytest.mark.rotates(2)
def test_half_of_the_noise_is_found_out() -> None:
    found = check(gaussian, epsilon=gaussian_epsilon(0.5 / STD, DELTA), dims=(DIMENSION,), trials=400, seconds=5)
    assert "moves-more-than-claimed" in {one.name for one in found.findings if one.severity == "fault"}
