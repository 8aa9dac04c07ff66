"""Noise for a whole planned run, within 1% of the target from below, or a reason in words."""

import math

import pytest

from fedpriv.common.errors import OptionError
from fedpriv.privacy.calibration import calibrate
from fedpriv.privacy.composition import compose
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    Binomial,
    Gaussian,
    GumbelTopK,
    NoBound,
    PoissonGaussian,
    RandomisedResponse,
    Threat,
)

DELTA = 1e-5
EXAMPLE = Threat("example", "add-or-remove-one", "server")


def gaussians(noise):
    return [Gaussian(threat=CLIENT_TO_SERVER, multiplier=noise / 2, count=30)]


def sampled(noise):
    return [PoissonGaussian(threat=EXAMPLE, multiplier=noise, sampling_rate=0.01, count=500)]


def with_selection(noise):
    return [*gaussians(noise), GumbelTopK(threat=CLIENT_TO_SERVER, k=100, epsilon=0.01, count=30)]


def bits(noise):
    return [RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=1 / noise, dimension=20_000)]


@pytest.mark.parametrize(
    ("plan", "target"),
    [
        *((gaussians, target) for target in (0.01, 0.5, 2.0, 8.0, 100.0, 1e5)),
        *((sampled, target) for target in (0.3, 2.0, 300.0)),
        *((with_selection, target) for target in (2.0, 20.0)),
        *((bits, target) for target in (1.0, 50.0)),
    ],
)
def test_within_one_percent_from_below(plan, target):
    found = calibrate(plan, target, DELTA)
    assert 0.99 * target <= found.epsilon <= target
    assert compose(plan(found.noise_multiplier), DELTA).epsilon == found.epsilon


def test_never_above_the_target():
    for step in range(120):
        target = 0.05 * 1.1**step
        assert 0.99 * target <= calibrate(gaussians, target, DELTA).epsilon <= target


def test_a_leak_cannot_be_calibrated_away():
    def leaking(noise):
        return [*gaussians(noise), NoBound(threat=CLIENT_TO_SERVER, reason="the loss is sent in clear")]

    with pytest.raises(OptionError) as error:
        calibrate(leaking, 2.0, DELTA)
    assert error.value.option == "privacy.target_epsilon"
    assert "no noise level reaches it: the loss is sent in clear" in str(error.value)


def test_what_the_noise_does_not_cover_sets_a_floor():
    floor = compose(with_selection(1e12), DELTA).epsilon
    with pytest.raises(OptionError, match=f"still costs epsilon {floor:.4g}"):
        calibrate(with_selection, 0.9 * floor, DELTA)


def test_a_bound_that_begins_to_hold_at_some_noise_only():
    def trials(noise):
        return [
            Binomial(
                threat=CLIENT_TO_SERVER,
                step=1.0,
                trials=round(noise),
                dimension=1,
                l1=1.0,
                l2=1.0,
                linf=1.0,
                delta=DELTA,
            )
        ]

    found = calibrate(trials, 0.3, DELTA)
    assert found.epsilon <= 0.3 < compose(trials(0.9 * found.noise_multiplier), DELTA).epsilon


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan])
def test_an_impossible_target_is_refused(target):
    with pytest.raises(OptionError):
        calibrate(gaussians, target, DELTA)
