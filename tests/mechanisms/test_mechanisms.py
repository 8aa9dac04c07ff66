"""Clipping and the correlated Gaussian's coefficients, as mathematics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.fed_cad import constant_diff_variance, plain_clip, variance_of_sum

from clients.fedcad import FedCADClient, replace_one_multiplier
from fedpriv.mechanisms.noise import ROUNDING, clip, clip_change, finite_or_zero, l2_norm

published_coefficients = FedCADClient.published_coefficients
repaired_coefficients = FedCADClient.repaired_coefficients
LARGEST = float(np.finfo(np.float32).max)
coordinates = st.floats(-LARGEST, LARGEST, width=32)
vectors = st.one_of(
    st.lists(coordinates, min_size=1, max_size=40),
    st.tuples(coordinates, st.integers(1, 20_000)).map(lambda filled: [filled[0]] * filled[1]),
).map(lambda values: torch.tensor(values, dtype=torch.float32))
bounds = st.sampled_from([1e-3, 0.1, 1.0, 3.7, 100.0])
diffs = st.floats(1e-3, 1 - 1e-3)
invariants = settings(derandomize=True, deadline=None, max_examples=300)


def norm(x: torch.Tensor) -> float:
    return math.sqrt(math.fsum(float(value) ** 2 for value in x.double()))


# --- clipping --------------------------------------------------------------------------------------------


@invariants
@given(vectors, bounds)
def test_a_clipped_vector_is_never_longer_than_its_bound(x: torch.Tensor, bound: float) -> None:
    clipped = clip(x, bound)
    assert norm(clipped) <= bound
    if norm(x) > bound:  # and no shorter than rounding makes it
        assert norm(clipped) >= bound * (1 - 3 * ROUNDING)
    elif norm(x) < bound * (1 - 2 * ROUNDING):
        assert torch.equal(clipped, x)


@invariants
@given(vectors, bounds)
def test_clipping_agrees_with_its_plain_twin(x: torch.Tensor, bound: float) -> None:
    expected = plain_clip(x.double().numpy(), bound)
    assert np.linalg.norm(clip(x, bound).double().numpy() - expected) <= 3 * ROUNDING * bound


@pytest.mark.parametrize("dimension", [4, 80_202])
@pytest.mark.parametrize("bound", [1e-3, 1.0])
def test_the_longest_updates_of_all_are_clipped_too(dimension: int, bound: float) -> None:
    """C / ||x|| is a subnormal float32 here: multiplying by it gave norms up to 1.00006 C."""
    for size in (1e37, 1e38, 3.4e38):
        clipped = clip(torch.full((dimension,), size), bound)
        assert bound * (1 - 2 * ROUNDING) <= norm(clipped) <= bound


def test_zero_stays_zero_and_tiny_stays_itself() -> None:
    tiny = torch.full((5,), 1e-44)
    assert torch.equal(clip(torch.zeros(5), 1.0), torch.zeros(5))
    assert torch.equal(clip(tiny, 1.0), tiny)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_an_impossible_bound_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        clip(torch.ones(2), bound)


def test_leading_dimensions_are_clipped_one_by_one() -> None:
    x = torch.tensor([[[3.0, 4.0], [0.3, 0.4]], [[0.0, 0.0], [0.0, 2.0]]])
    expected = torch.tensor([[[0.6, 0.8], [0.3, 0.4]], [[0.0, 0.0], [0.0, 1.0]]])
    assert torch.allclose(clip(x, 1.0), expected, atol=2e-6)
    assert l2_norm(x).tolist() == pytest.approx(np.array([[5, 0.5], [0, 2]]))


@invariants
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 64, 5000]), st.floats(1e-3, 1.0), bounds)
def test_a_clipped_change_keeps_both_bounds(seed: int, dimension: int, diff: float, bound: float) -> None:
    """From a point of the ball to a point of the ball: within D*C of the first, and still in the ball."""
    rng = np.random.default_rng(seed)
    ends = rng.normal(size=(2, dimension)) * 10.0 ** rng.uniform(-3, 3, size=(2, 1))
    previous, x = (clip(torch.tensor(end, dtype=torch.float32) * bound, bound) for end in ends)
    moved = clip_change(x, previous, torch.tensor(diff * bound, dtype=torch.float64), slack=ROUNDING * bound)
    assert norm(moved.double() - previous.double()) <= diff * bound
    assert norm(moved) <= bound
    if norm(x.double() - previous.double()) <= (diff - 2 * ROUNDING) * bound:
        assert torch.equal(moved, x)
    else:  # on the segment, and as far along it as allowed
        whole = (x.double() - previous.double()).numpy()
        share = (diff - ROUNDING) * bound / np.linalg.norm(whole)
        expected = previous.double().numpy() + min(share, 1.0) * whole
        assert np.linalg.norm(moved.double().numpy() - expected) <= 1e-6 * bound


def test_what_is_not_finite_becomes_zero_row_by_row() -> None:
    x = torch.tensor([[1.0, 2.0], [math.nan, 1.0], [math.inf, 0.0], [-math.inf, math.nan]])
    assert finite_or_zero(x).tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert finite_or_zero(torch.tensor([0.0, math.nan])).tolist() == [0.0, 0.0]


# --- coefficients ----------------------------------------------------------------------------------------


def tensors(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(value, dtype=torch.float64) for value in values]


@invariants
@given(diffs, st.floats(1e-6, 1.0))
def test_variance_is_what_the_two_parts_of_the_noise_add_up_to(diff: float, variance: float) -> None:
    for formula in (published_coefficients, repaired_coefficients):
        reuse, fresh, new = (float(value) for value in formula(*tensors(diff, variance)))
        assert new == pytest.approx(fresh**2 + reuse**2 * variance, rel=1e-9)
        assert fresh == pytest.approx(1 - reuse * (1 - diff), rel=1e-9)
        assert fresh > 0


@invariants
@given(diffs, st.floats(1e-6, 1.0))
def test_the_repair_changes_nothing_until_reuse_exceeds_one(diff: float, variance: float) -> None:
    published, repaired = (f(*tensors(diff, variance)) for f in (published_coefficients, repaired_coefficients))
    assert float(repaired.reuse) == pytest.approx(min(1.0, float(published.reuse)), rel=1e-12)
    if published.reuse <= 1:
        assert float(repaired.variance) == pytest.approx(float(published.variance), rel=1e-9)


@invariants
@given(diffs, st.floats(1e-6, 1.0), st.floats(0, 1))
def test_the_repaired_reuse_gives_the_least_variance_of_all_that_keep_the_multiplier(
    diff: float, variance: float, other: float
) -> None:
    """For r in [0, 1] and s = 1 - r(1-D), which keeps sigma/2, the variance s^2 + r^2 v is least at the repair's r."""
    best = repaired_coefficients(*tensors(diff, variance))
    assert float(best.variance) <= (1 - other * (1 - diff)) ** 2 + other**2 * variance + 1e-12


@invariants
@given(diffs, st.floats(1e-6, 1.0), st.floats(0.01, 10))
def test_the_repaired_multiplier_is_exactly_half_of_sigma(diff: float, variance: float, sigma: float) -> None:
    found = replace_one_multiplier(sigma, tensors(diff)[0], repaired_coefficients(*tensors(diff, variance)))
    assert float(found) == pytest.approx(sigma / 2, rel=1e-12)


def test_the_published_multiplier_falls_far_below_when_diff_rises() -> None:
    """v has shrunk to 2D - D^2 at a small D, then D = 0.5; by hand at D = 0.001: r = 1.984, s = 0.008, shift 2.97."""
    shares = []
    for small in (1e-3, 0.05):
        v = 2 * small - small**2
        r = 0.5 / (0.25 + v)
        expected = (1 - r / 2) / (2 * (r - 0.5))
        found = replace_one_multiplier(1.0, *tensors(0.5), published_coefficients(*tensors(0.5, v)))
        assert float(found) == pytest.approx(expected, rel=1e-9)
        shares.append(float(found) / 0.5)
    assert shares == pytest.approx([0.00535, 0.2989], rel=2e-3)


@pytest.mark.parametrize("diff", [1e-3, 0.1, 0.5, 0.9, 0.999])
def test_theorem_vi_2_and_the_recursion_agree(diff: float) -> None:
    for formula in (published_coefficients, repaired_coefficients):
        (variance,) = tensors(1.0)
        for participation in range(1, 200):
            assert constant_diff_variance(diff, participation) == pytest.approx(float(variance), rel=1e-9)
            reuse, _, variance = formula(torch.tensor(diff, dtype=torch.float64), variance)
            assert reuse <= 1


@pytest.mark.parametrize(
    ("diff", "figures"), [(0.5, (1.50, 1.99, 2.22)), (0.1, (1.45, 2.05, 3.35)), (0.9, (1.13, 1.19, 1.21))]
)
def test_accumulated_noise_is_the_pages_figures(diff: float, figures: tuple[float, ...]) -> None:
    """Fed-CAD's page: variance of the sum of 3, 10 and 100 noises, relative to independent noise of sigma^2 C^2."""
    assert [round(variance_of_sum(diff, count), 2) for count in (3, 10, 100)] == list(figures)
