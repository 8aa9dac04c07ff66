"""What a release of a unit vector costs: the pair that dominates, by brute force; composition; audits of real code."""

from __future__ import annotations

import itertools
import math
from typing import Any

import making
import numpy as np
import pytest
import torch

import fedpriv.mechanisms.privunit as privunit
from clients.privunit import PrivUnitClient
from fedpriv.attacks.release_audit import audit_mechanism
from fedpriv.client.contract import PublicFacts
from fedpriv.mechanisms import laws
from fedpriv.mechanisms.privunit import CapLaw, charged, direction, private_unit
from fedpriv.mechanisms.unit_cap import best_cap
from fedpriv.mechanisms.unit_vectors import UnitMechanism, unit_mechanism
from fedpriv.privacy.auditor import epsilon_bound
from fedpriv.privacy.composition import ORDERS, Budget, compose, renyi_curve
from fedpriv.privacy.events import CLIENT_TO_SERVER, RandomisedResponse, UnitCap

THRESHOLDS = np.linspace(-12.0, 12.0, 97)


def hockey_stick(first: np.ndarray, second: np.ndarray, t: float) -> float:
    """sup_S P(S) - e^t Q(S) of probability vectors."""
    return float(np.maximum(first - math.exp(t) * second, 0).sum())


def curve(law: CapLaw, t: float) -> float:
    """The dominating law's, in closed form."""
    if t < 0:
        return 1 - math.exp(t) + math.exp(t) * curve(law, -t)
    return law.inside * max(0.0, 1 - math.exp(t - law.epsilon))


def cap_event(law: CapLaw, count: int = 1) -> UnitCap:
    return UnitCap(threat=CLIENT_TO_SERVER, epsilon=law.epsilon, inside=law.inside, delta=law.delta, count=count)


# --- the pair that dominates -------------------------------------------------------------------------------


def sphere(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of the sphere [n, d] that stand for cells of the probabilities [n]."""
    if dimension == 2:
        angle = (np.arange(200_000) + 0.5) * 2 * math.pi / 200_000
        return np.stack([np.cos(angle), np.sin(angle)], axis=1), np.full(200_000, 1 / 200_000)
    height = (np.arange(1500) + 0.5) / 750 - 1  # uniform: Archimedes
    angle = (np.arange(600) + 0.5) * 2 * math.pi / 600
    z, turn = (part.ravel() for part in np.meshgrid(height, angle))
    side = np.sqrt(1 - z * z)
    return np.stack([side * np.cos(turn), side * np.sin(turn), z], axis=1), np.full(len(z), 1 / len(z))


@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0, 8.0])
def test_opposite_inputs_dominate_every_pair(dimension: int, epsilon: float) -> None:
    """The hockey-stick divergence of the exact law between two inputs at many angles, on a fine grid of the sphere."""
    cap, (points, measure) = best_cap(dimension, epsilon), sphere(dimension)
    law = CapLaw(epsilon, cap.inside)

    def release(unit: np.ndarray) -> np.ndarray:
        inside = points @ unit >= cap.gamma
        assert measure[inside].sum() == pytest.approx(cap.measure, rel=0.04)  # the grid's own error
        return measure * np.where(inside, cap.inside / cap.measure, cap.outside / (1 - cap.measure))

    start = np.eye(dimension)[-1]
    for angle in (0.0, 0.05, 0.4, 1.0, math.pi / 2, 2.0, 2.8, math.pi):
        other = math.cos(angle) * start + math.sin(angle) * np.eye(dimension)[0]
        first, second = release(start), release(other)
        for t in np.linspace(0, 1.1 * epsilon, 12):  # below 0 it follows by exchanging the inputs
            for pair in ((first, second), (second, first)):
                found, bound = hockey_stick(*pair, t), curve(law, t)
                assert found <= bound * 1.04 + 1e-12, (angle, t)
                if angle == math.pi:
                    assert found == pytest.approx(bound, rel=0.04)


@pytest.mark.parametrize(("epsilon", "inside"), [(1.0, 0.59), (8.0, 0.9), (0.1, 0.5)])
def test_the_three_values_have_that_curve_in_both_directions(epsilon: float, inside: float) -> None:
    first, second = laws.cap_response(epsilon, inside)
    assert first.sum() == pytest.approx(1) and (first >= 0).all()
    for t in THRESHOLDS:
        for pair in ((first, second), (second, first)):
            assert hockey_stick(*pair, t) == pytest.approx(curve(CapLaw(epsilon, inside), t), abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_what_is_charged_covers_every_law_that_close(epsilon: float) -> None:
    """Laws within e^s of the exact ones everywhere, all corners of them, against the charge."""
    cap, s = best_cap(50, epsilon), 0.02
    law = charged(cap, epsilon + 2 * s)
    assert law.inside < 1 / (1 + math.exp(-law.epsilon))
    exact = laws.cap_response(epsilon, cap.inside)
    # each value of the ratio split into two outcomes, so that a perturbation may treat them unlike
    first, second = (np.repeat(part / 2, 2) for part in exact)

    def perturbed(probabilities: np.ndarray, high: np.ndarray) -> np.ndarray:
        """High outcomes as likely as allowed, the others less, of total 1."""
        moved = probabilities * np.where(high, math.exp(s), 1.0)
        rest = 1 - moved[high].sum()
        if rest < probabilities[~high].sum() * math.exp(-s):  # too much for the others: raise less
            raised = 1 - probabilities[~high].sum() * math.exp(-s)
            moved[high] = probabilities[high] * raised / probabilities[high].sum()
            rest = 1 - raised
        moved[~high] = probabilities[~high] * rest / probabilities[~high].sum()
        assert np.abs(np.log(moved / probabilities)).max() <= s * (1 + 1e-9)
        return moved

    corners = [np.array(high) for high in itertools.product([True, False], repeat=6) if 0 < sum(high) < 6]
    ones = np.array([perturbed(first, high) for high in corners])[:, None]
    twos = np.array([perturbed(second, low) for low in corners])
    worst = 0.0
    for t in THRESHOLDS:
        found = np.maximum(ones - math.exp(t) * twos, 0).sum(-1)
        assert found[3, 5] == pytest.approx(hockey_stick(ones[3, 0], twos[5], t), abs=1e-15)
        assert (found <= curve(law, t) + 1e-12).all()
        worst = max(worst, float(found.max()) - curve(CapLaw(epsilon, cap.inside), t))
    assert worst > s / 2  # the exact law's own price would not have covered them


def test_floating_point_is_charged_for() -> None:
    setting = private_unit(7850, 8.0)
    assert setting.law.epsilon == 8.0 and 7.99 < setting.cap.epsilon < 7.9995
    assert setting.law.inside > setting.cap.inside and setting.law.delta == 1e-12
    assert 2.0 ** (-32 * setting.words) * math.exp(9) * 4 * 7851 / setting.cap.outside < 1e-13
    prices = [8.0 - private_unit(d, 8.0).cap.epsilon for d in (100, 10_000, 1_000_000)]
    assert prices == sorted(prices) and prices[0] < 5e-4


# --- composition -------------------------------------------------------------------------------------------


def exact_epsilon(law: CapLaw, count: int, delta: float) -> float:
    """epsilon at delta of so many releases, by all outcomes of the three-valued law."""
    first, second = np.array([1.0]), np.array([1.0])
    one, two = laws.cap_response(law.epsilon, law.inside)
    for _ in range(count):
        first, second = np.outer(first, one).ravel(), np.outer(second, two).ravel()
    low, high = 0.0, count * law.epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if hockey_stick(first, second, middle) <= delta else (middle, high)
    return high


@pytest.mark.parametrize(("epsilon", "count"), [(0.5, 1), (0.5, 8), (2.0, 3), (1.0, 10)])
def test_composition_is_that_of_the_exact_law(epsilon: float, count: int) -> None:
    cap = best_cap(500, epsilon)
    law = CapLaw(epsilon, cap.inside)
    for delta in (1e-5, 1e-2):
        exact = exact_epsilon(law, count, delta)
        found = compose([cap_event(law, count)], delta)
        assert exact - 1e-9 <= found.epsilon <= exact + 2e-3
        assert found.epsilon <= count * epsilon


def test_many_releases_cost_less_than_their_sum_and_than_randomised_response() -> None:
    law = CapLaw(1.0, best_cap(7850, 1.0).inside, 1e-12)
    found = compose([cap_event(law, 64)], 1e-5).epsilon
    pure = compose([RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=1.0, count=64)], 1e-5).epsilon
    assert found < 0.9 * pure < 0.9 * 64
    assert compose([cap_event(law, 64)], 63e-12).epsilon == math.inf  # more delta than there is


def test_the_renyi_curve_is_the_laws() -> None:
    law = CapLaw(3.0, 0.7)
    first, second = laws.cap_response(3.0, 0.7)
    found = renyi_curve(cap_event(law))
    for order, value in zip(ORDERS, found, strict=True):
        if order < 50:
            expected = math.log((first**order * second ** (1 - order)).sum()) / (order - 1)
            assert value == pytest.approx(expected, rel=1e-9)
    assert found.max() <= 3.0


@pytest.mark.parametrize(
    "values", [{"epsilon": -1.0}, {"inside": 1.1}, {"inside": 0.99}, {"delta": 1.0}, {"epsilon": math.nan}]
)
def test_impossible_events_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        UnitCap(threat=CLIENT_TO_SERVER, **{"epsilon": 2.0, "inside": 0.6} | values)


def test_a_budget_admits_what_it_can_pay_for() -> None:
    event = cap_event(CapLaw(2.0, 0.67, 1e-12))
    budget = Budget(6.1, 1e-5)
    assert budget.admits([], [event]) and budget.admits([event], [event])
    assert not budget.admits([event] * 3, [event])


# --- audits of the real release ----------------------------------------------------------------------------


def client(epsilon: float, mechanism: str = "privunit", **options: Any) -> PrivUnitClient:
    facts = PublicFacts(60, 60, 10, 1, 10, num_parameters=650)
    asked = {"mechanism": mechanism, "epsilon": epsilon, "claimed_delta": 1e-5}
    return making.client(PrivUnitClient, facts=facts, **asked | options)


def audited(subject: PrivUnitClient, trials: int = 200_000) -> tuple[float, float]:
    found = audit_mechanism(subject, 1, delta=1e-5, trials=trials, confidence=0.95, seed=3)
    return found.audit.epsilon_lower, found.verified


def attainable(epsilon: float, inside: float, trials: int) -> float:
    """What the best rule shows if the counts of the worst event are as expected."""
    measured = trials // 2
    counts = measured * inside * math.exp(-epsilon), measured * inside
    return float(epsilon_bound(round(counts[0]), round(counts[1]), measured, 1e-5, 0.95)[0])


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_an_audit_comes_near(epsilon: float) -> None:
    found, verified = audited(client(epsilon))
    most = attainable(epsilon, best_cap(8, epsilon).inside, 200_000)
    assert 0.95 * most <= found <= verified and most > 0.9 * epsilon


@pytest.mark.parametrize(("mechanism", "share"), [("projunit", 0.9), ("sqkr", 0.5), ("gaussian", 0.5)])
def test_so_it_does_for_the_other_mechanisms(mechanism: str, share: float) -> None:
    """The Gaussian's loss at delta 1e-5 lies in its far tail, which few trials see."""
    found, verified = audited(client(2.0, mechanism), 100_000)
    assert share * verified <= found <= verified


def test_twice_the_epsilon_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mechanism releases at twice the epsilon that the client books."""
    whole = PrivUnitClient.mechanism_for

    def loud(self: PrivUnitClient, dimension: int) -> UnitMechanism:
        return unit_mechanism("privunit", dimension, 2 * self.options.epsilon)

    subject = client(2.0)
    assert subject.mechanism.law is not None  # what it books is of epsilon 2
    monkeypatch.setattr(PrivUnitClient, "mechanism_for", loud)
    found, verified = audited(subject)
    assert found > verified + 1
    monkeypatch.setattr(PrivUnitClient, "mechanism_for", whole)
    assert audited(subject)[0] <= 2.0


def test_a_cap_of_half_its_measure_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    heights = privunit._heights
    monkeypatch.setattr(
        privunit, "_heights", lambda inside, tail, *rest: heights(inside, np.where(inside, tail / 2, tail), *rest)
    )
    found, verified = audited(client(3.0))
    assert found > verified + 0.3


def test_the_opposite_of_a_direction_is_its_own() -> None:
    unit = direction(torch.ones(8))
    assert torch.equal(direction(-torch.ones(8)), -unit)
