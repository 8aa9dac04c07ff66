"""Opacus' epsilon: on a grid beside our exact figures, what it cannot express, and the adjacency it is for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedpriv.privacy.composition import compose
from fedpriv.privacy.events import (
    EVERY_CLIENT,
    Event,
    FixedSizeGaussian,
    Gaussian,
    Laplace,
    NoBound,
    PoissonGaussian,
    Threat,
    UnitCap,
)
from fedpriv.privacy.opacus_accounts import PRV_ERROR, OpacusFigure, OpacusTotals, why_not

DELTA = 1e-5
EXAMPLE = Threat("example", "add-or-remove-one", "server")
CLIENT = Threat("client", "replace-one", "server")


def figure_of(*events: Event, tight: bool = True) -> OpacusFigure:
    totals = OpacusTotals(DELTA)
    totals.add((0, event) for event in events)
    found = totals.figure(tight)
    assert found is not None
    return found


def step(multiplier: float, rate: float, count: int) -> Event:
    if rate == 1:
        return Gaussian(threat=EXAMPLE, multiplier=multiplier, count=count)
    return PoissonGaussian(threat=EXAMPLE, multiplier=multiplier, sampling_rate=rate, count=count)


GRID = [
    *((1.0, 1.0, 1), (4.0, 1.0, 3), (8.0, 1.0, 60), (0.5, 1.0, 10), (100.0, 1.0, 1)),
    *((1.0, 0.01, 1000), (1.0, 0.1, 100), (0.6, 0.05, 50), (4.0, 0.5, 60), (2.0, 0.2, 1), (3.0, 0.005, 10_000)),
]


@pytest.mark.parametrize(("multiplier", "rate", "count"), GRID)
def test_opacus_and_our_exact_figure_hold_each_other(multiplier: float, rate: float, count: int) -> None:
    """Closed form or privacy loss distributions against PRV's bound: no less, and no more than twice its stated error
    above; against RDP's: no less, and no more than a fifth and 0.1 above, its known looseness.
    """
    event = step(multiplier, rate, count)
    exact, found = compose([event], DELTA), figure_of(event)
    assert exact.accountant in ("gaussian", "pld") and found.rdp is not None and found.prv is not None
    assert exact.epsilon - 1e-4 <= found.prv <= exact.epsilon + 2 * PRV_ERROR
    assert exact.epsilon <= found.rdp <= 1.2 * exact.epsilon + 0.1
    assert found.adjacency == "add-or-remove-one" and not found.remarks


def test_rdp_is_what_opacus_own_accountant_says() -> None:
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    for multiplier, rate in [(1.0, 0.1)] * 7 + [(2.0, 0.3)] * 4:
        theirs.step(noise_multiplier=multiplier, sample_rate=rate)
    found = figure_of(step(1.0, 0.1, 7), step(2.0, 0.3, 4), tight=False)
    assert found.rdp == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-12) and found.prv is None


def test_of_replace_one_the_noise_is_given_relative_to_its_own_distance() -> None:
    """The figure can be set beside the verified one; add-or-remove-one at the same noise costs less, and it says so."""
    event = Gaussian(threat=CLIENT, multiplier=2.0, count=3)  # standard deviation 4 C, replaced at distance 2 C
    found, exact = figure_of(event), compose([event], DELTA).epsilon
    removed = compose([replace(event, multiplier=4.0)], DELTA).epsilon
    assert found.prv is not None and abs(found.prv - exact) < 2 * PRV_ERROR and found.prv > 1.9 * removed
    assert found.adjacency == "replace-one" and "smaller epsilon of add-or-remove-one" in found.remarks[0]
    zeroed = replace(event, threat=replace(CLIENT, adjacency="zero-out"))
    assert figure_of(zeroed).prv == found.prv and "zero-out" in figure_of(zeroed).remarks[0]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Laplace(threat=CLIENT, multiplier=1.0), "no laplace"),
        (UnitCap(threat=CLIENT, epsilon=8.0, inside=0.9), "no unit cap"),
        (NoBound(threat=CLIENT, reason="raw gradients"), "raw gradients"),
        (Gaussian(threat=CLIENT, multiplier=0.0), "no noise is added"),
        (
            FixedSizeGaussian(threat=replace(CLIENT, observer="public"), multiplier=1.0, sample_size=2, population=9),
            "no fixed size gaussian",
        ),
    ],
    ids=lambda value: value.mechanism if isinstance(value, Event) else "",
)
def test_what_opacus_cannot_express_has_no_figure_and_a_reason(event: Event, words: str) -> None:
    found = figure_of(Gaussian(threat=event.threat, multiplier=4.0), event)
    assert found.rdp is None and found.prv is None
    assert len(found.remarks) == 1 and words in found.remarks[0] and found.words.startswith("none: ")
    assert found.to_json()["rdp"] is None


def test_nothing_is_asked_of_what_is_always_or_never_sampled() -> None:
    everybody = FixedSizeGaussian(
        threat=replace(CLIENT, observer="public"), multiplier=2.0, sample_size=9, population=9
    )
    assert why_not(everybody) is None
    silent = PoissonGaussian(threat=EXAMPLE, multiplier=0.0, sampling_rate=0.0)
    assert figure_of(silent) == OpacusFigure(0.0, 0.0, "add-or-remove-one")
    assert figure_of(Gaussian(threat=EXAMPLE, multiplier=math.inf)).prv == 0.0


def test_it_is_of_the_costliest_client_with_what_was_released_about_all() -> None:
    totals = OpacusTotals(DELTA)
    assert totals.figure() is None
    totals.add([(3, step(4.0, 1.0, 2)), (5, step(4.0, 1.0, 1)), (EVERY_CLIENT, step(4.0, 1.0, 1))])
    totals.add([(5, step(4.0, 1.0, 4))])
    assert totals.figure() == figure_of(step(4.0, 1.0, 6))


def test_prv_is_not_asked_where_it_would_fill_the_memory() -> None:
    found = figure_of(step(0.01, 1.0, 1))
    assert found.rdp is not None and found.rdp > 100 and found.prv is None and "PRV is asked up to" in found.remarks[0]
    assert figure_of(step(1e4, 1.0, 1_000_001)).prv is None
