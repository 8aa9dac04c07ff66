"""Releases added one by one come to the same bits as all of them composed at once."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fedpriv.privacy import events
from fedpriv.privacy.composition import RunningTotals, compose_clients, make_history

EXAMPLE = events.Threat("example", "add-or-remove-one", "server")


def gaussian(multiplier: float, count: int = 1) -> events.Event:
    return events.Gaussian(threat=EXAMPLE, multiplier=multiplier, count=count)


def sampled(multiplier: float) -> events.Event:
    return events.PoissonGaussian(threat=EXAMPLE, multiplier=multiplier, sampling_rate=0.1)


KINDS = some.one_of(
    some.builds(gaussian, some.floats(0.5, 8), some.integers(1, 3)),
    some.sampled_from([gaussian(1.0), gaussian(1.0 / 3), gaussian(1e-9), gaussian(1e9)]),
)
OTHERS = some.sampled_from([sampled(1.0), sampled(2.0), events.RandomisedResponse(threat=EXAMPLE, epsilon=0.5)])


def rounds_of(kinds: some.SearchStrategy[events.Event]) -> some.SearchStrategy[list[list[tuple[int, events.Event]]]]:
    return some.lists(some.lists(some.tuples(some.integers(-2, 5), kinds), max_size=12), max_size=30)


def check(rounds: list[list[tuple[int, events.Event]]]) -> RunningTotals:
    running, whole = RunningTotals(1e-5), dict[int, list[events.Event]]()
    for releases in rounds:
        running.add(([client], [event]) for client, event in releases)
        for client, event in releases:
            whole.setdefault(client, []).append(event)
        expected = compose_clients(whole, 1e-5, refined=False).maximum if whole else 0.0
        assert running.maximum() == expected
    return running


@settings(deadline=None)
@given(rounds=rounds_of(KINDS))
def test_gaussians_of_many_kinds(rounds):
    check(rounds)


@settings(deadline=None)
@given(rounds=rounds_of(some.one_of(KINDS, OTHERS)))
def test_gaussians_and_others(rounds):
    running = check(rounds)
    others = {}
    for releases in rounds:
        for client, event in releases:
            others.setdefault(client, []).append(event)
    mixed = [
        make_history(own) for own in others.values() if not all(isinstance(event, events.Gaussian) for event in own)
    ]
    assert sorted(running._others.values()) == sorted(mixed.count(history) for history in set(mixed))


def test_a_client_with_many_kinds_takes_one_more_of_another_kind():
    check([[(0, gaussian(1.0 + number)), (1, gaussian(2.0))] for number in range(20)] + [[(0, sampled(1.0))]] * 2)


def test_kinds_that_come_again_count_once_more_and_not_twice():
    check([[(0, gaussian(1.0 + number % 30))] for number in range(75)])


def test_a_release_without_a_bound_is_infinite_for_good():
    running = check([[(0, gaussian(1.0)), (1, sampled(1.0))], [(0, events.NoBound(threat=EXAMPLE, reason="none"))]])
    running.add([([3], [gaussian(1.0)])])
    assert running.maximum() == math.inf


def test_nothing_released_is_nothing_spent():
    assert RunningTotals(1e-5).maximum() == 0.0


def test_a_round_late_in_a_run_of_changing_noise_looks_at_no_earlier_one(monkeypatch: pytest.MonkeyPatch):
    seen = []
    counted = property(lambda event: seen.append(event) or event.multiplier)
    monkeypatch.setattr(events.Gaussian, "gaussian_multiplier", counted)
    running, looked = RunningTotals(1e-5), []
    for number in range(200):
        seen.clear()
        running.add([(range(10), [events.Gaussian(threat=events.CLIENT_TO_SERVER, multiplier=1.0 + number / 7)])])
        running.maximum()
        looked.append(len(seen))
    assert looked[20] == looked[199] <= 50
