"""Many clients' histories in little time, and filters that say when a budget is spent."""

import math
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from test_privacy_composition import DELTA, gaussian, poisson

from fedpriv.privacy import composition
from fedpriv.privacy.composition import (
    Budget,
    compose,
    compose_clients,
    contains,
    gaussian_epsilon,
)
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    ZCDP,
    ApproximateDP,
    Event,
    GumbelTopK,
    NoBound,
    PoissonGaussian,
    RandomisedResponse,
    Threat,
)

# --- populations -------------------------------------------------------------------------------------------------


def test_population_of_gaussians():
    found = compose_clients(
        {1: [gaussian(2.0)] * 4, 2: [gaussian(2.0, 4)], 3: [gaussian(1.0)], 4: [gaussian(4.0)], 5: []}, DELTA
    )
    assert found.maximum == found.median == compose([gaussian(1.0)], DELTA).epsilon
    assert (found.num_histories, found.accountant) == (4, "gaussian")
    even = compose_clients({1: [gaussian(1.0)], 2: [gaussian(2.0)]}, DELTA)
    assert even.median == pytest.approx((gaussian_epsilon(1.0, DELTA) + gaussian_epsilon(0.5, DELTA)) / 2)
    assert compose_clients({}, DELTA).maximum == 0.0


def test_population_with_one_leak_is_infinite_at_the_top_only():
    leak = NoBound(threat=CLIENT_TO_SERVER, reason="sent as it is")
    found = compose_clients({1: [gaussian(1.0)], 2: [gaussian(1.0)], 3: [gaussian(1.0), leak]}, DELTA)
    assert (found.maximum, found.reasons) == (math.inf, ("sent as it is",))
    assert found.median == gaussian_epsilon(1.0, DELTA)


def test_population_of_poisson_histories_bounds_each_of_them():
    histories = {client: [poisson(1.0, count=50 + client), poisson(2.0, count=100)] for client in range(5)}
    found = compose_clients(histories, DELTA)
    each = sorted(compose(history, DELTA).epsilon for history in histories.values())
    assert found.accountant == "pld"
    assert found.maximum == pytest.approx(each[-1], rel=1e-9) and found.median == pytest.approx(each[2], rel=1e-9)


def test_incomparable_histories_are_still_bounded():
    sigmas = [2.0 + 0.1 * index for index in range(4)]
    histories = {i: [poisson(sigma, count=round(20 * sigma**2)), poisson(sigma + 7)] for i, sigma in enumerate(sigmas)}
    found = compose_clients(histories, DELTA).maximum
    assert found >= max(compose(history, DELTA).epsilon for history in histories.values()) - 1e-9


def test_a_history_that_was_not_refined_keeps_its_cheaper_bound(monkeypatch):
    """Three incomparable histories, of which PLD would improve two: the third one's bound is the maximum."""
    monkeypatch.setattr(composition, "refine", lambda history, bound, delta: replace(bound, epsilon=bound.epsilon / 2))
    histories = {index: [ZCDP(threat=CLIENT_TO_SERVER, rho=1 + index / 100)] for index in range(3)}
    third = compose(histories[0], DELTA).epsilon * 2
    assert compose_clients(histories, DELTA).maximum == third
    assert compose_clients(histories, DELTA).median < third


def test_coarsened_sigmas_are_never_larger(monkeypatch):
    monkeypatch.setattr(composition, "_PLD_KINDS", 8)
    sampled = [(poisson(2.0 * 0.99**step, rate=0.01 + step / 1e4), 1 + step) for step in range(37)]
    coarse = composition.coarsened(sampled)
    assert len(coarse) <= 8 and sum(count for _, count in coarse) == sum(count for _, count in sampled)
    spread = sorted(event.multiplier for event, count in coarse for _ in range(count))
    true = sorted(event.multiplier for event, count in sampled for _ in range(count))
    assert all(ours <= theirs for ours, theirs in zip(spread, true, strict=True))
    assert min(true) == min(spread)
    rates = sorted(event.sampling_rate for event, count in coarse for _ in range(count))
    assert all(
        ours >= theirs
        for ours, theirs in zip(rates, sorted(e.sampling_rate for e, n in sampled for _ in range(n)), strict=True)
    )


def seconds(work: Callable[[], object]) -> float:
    """Of the processor, the least of three: what other processes of the machine do counts little."""
    spent = []
    for _ in range(3):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return min(spent)


def times_as_long_as_counting(histories: dict[int, list[Event]]) -> float:
    """How much longer `compose_clients` takes than counting the events of each client."""
    counting = seconds(lambda: [frozenset(Counter(map(id, events)).items()) for events in histories.values()])
    return seconds(lambda: compose_clients(histories, DELTA)) / counting


def test_equal_histories_of_five_hundred_rounds_cost_little_more_than_counting_their_events():
    event = gaussian(2.0)
    histories = {client: [event] * 500 for client in range(2_000)}
    assert times_as_long_as_counting(histories) < 3
    assert compose_clients(histories, DELTA).maximum == compose([gaussian(2.0, 500)], DELTA).epsilon


def test_a_thousand_different_histories_cost_little_more_than_counting_their_events():
    draw = random.Random(0)
    events = [gaussian(1 + index / 100) for index in range(50)]
    different = [draw.choices(events, k=500) for _ in range(1000)]
    histories = {client: different[client % 1000] for client in range(10_000)}
    assert compose_clients(histories, DELTA).num_histories == 1000
    assert times_as_long_as_counting(histories) < 3


# --- filters -----------------------------------------------------------------------------------------------------


def test_gaussian_filter_admits_exactly_what_composes_below_the_budget():
    budget, spent = Budget(10.0, DELTA), []
    while budget.admits(spent, [gaussian(3.0)]):
        spent.append(gaussian(3.0))
    assert compose(spent, DELTA).epsilon <= 10.0 < compose([*spent, gaussian(3.0)], DELTA).epsilon
    assert not Budget(10.0, DELTA).admits([], [gaussian(0.0)])
    assert Budget(10.0, DELTA).admits([], [])
    assert Budget(10.0, DELTA, rule="rdp").admits([], [])


def test_a_filter_takes_no_longer_than_some_compositions():
    budget, spent, calls = Budget(10.0, DELTA), [gaussian(30.0)] * 100, range(100)
    assert budget.admits(spent, [gaussian(30.0)])
    filtered = seconds(lambda: [budget.admits(spent, [gaussian(30.0)]) for _ in calls])
    assert filtered < 5 * seconds(lambda: [compose(spent, DELTA) for _ in calls])


@pytest.mark.parametrize(
    "event",
    [
        poisson(1.0, rate=0.1),
        RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.1),
        GumbelTopK(threat=CLIENT_TO_SERVER, k=10, epsilon=0.1),
        ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=0.1, delta=1e-8),
    ],
    ids=lambda event: event.mechanism,
)
def test_renyi_filter_is_sound_and_useful(event):
    budget, count = Budget(5.0, DELTA), 0
    while budget.admits([replace(event, count=count)] if count else [], [event]):
        count += max(1, count // 20)
    best = compose([replace(event, count=count)], DELTA).epsilon
    assert 2.5 < best < 5.5
    within = replace(event, count=max(1, int(count / 1.05) - 1))
    assert compose([within], DELTA).epsilon <= 5.0


def test_renyi_filters_order_is_fixed_by_the_first_event_that_is_not_gaussian():
    """Whatever comes later, the order stays: the admitted total at that order never exceeds its limit."""
    first, later = poisson(1.0), poisson(0.5)
    budget = Budget(5.0, DELTA)
    curve = composition.renyi_curve(first)
    orders = composition.ORDERS
    limits = 5.0 - np.log1p(-1 / orders) + np.log(DELTA * orders) / (orders - 1)
    order = int(np.argmax(np.where(limits > 0, limits / curve, 0)))
    spent = [first]
    while budget.admits(spent, [later]):
        spent.append(later)
    total = sum(composition.renyi_curve(event)[order] for event in spent)
    assert total <= limits[order] < total + composition.renyi_curve(later)[order]


def test_filters_say_no_to_what_they_cannot_bound():
    leak = NoBound(threat=CLIENT_TO_SERVER, reason="sent as it is")
    assert not Budget(1e9, DELTA).admits([], [leak])
    assert not Budget(10.0, DELTA, rule="gaussian").admits([], [ZCDP(threat=CLIENT_TO_SERVER, rho=1e-6)])
    assert not Budget(10.0, DELTA).admits([], [ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=0.1, delta=6e-6)])


def test_pairs_pay_from_their_own_half_of_delta():
    step, budget = ZCDP(threat=CLIENT_TO_SERVER, rho=0.002), Budget(5.0, DELTA)
    spent = [step, ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=1e-6, delta=4.9e-6)]
    while budget.admits(spent, [step]):
        spent.append(step)
    assert 4.8 < compose(spent, DELTA).epsilon <= 5.0


def test_a_plan_is_admitted_to_its_end_and_nothing_beyond():
    plan = (poisson(1.0, count=500),)
    total = compose(plan, DELTA).epsilon
    assert not Budget(total, DELTA).admits([poisson(1.0, count=400)], [poisson(1.0)])  # a filter pays for its freedom
    budget = Budget(total, DELTA, plan=plan)
    assert budget.admits([poisson(1.0, count=499)], [poisson(1.0)])
    assert not budget.admits([poisson(1.0, count=500)], [poisson(1.0)])
    assert not budget.admits([], [poisson(0.9)])
    assert not Budget(total / 2, DELTA, plan=plan).admits([poisson(1.0, count=400)], [poisson(1.0)])


def test_more_of_a_plan_is_admitted_as_far_as_the_budget_goes():
    """As a resumed run releases it again: of the same, in the same proportions, and nothing else."""
    plan, other = (poisson(1.0, count=4), poisson(2.0, count=2)), poisson(0.9)
    once = [poisson(1.0, count=2), poisson(2.0)]
    budget = Budget(compose([*plan, *once], DELTA).epsilon, DELTA, plan=plan)
    assert budget.admits(plan, once) and not budget.admits([*plan, *once], once)
    assert not budget.admits(plan, [poisson(1.0)]) and not Budget(100.0, DELTA, plan=plan).admits(plan, [other])
    assert not budget.admits([poisson(1.0, count=4)], [poisson(1.0)])


def test_clients_of_other_sizes_cost_what_the_smallest_does() -> None:
    """Whose rate is largest: the cheap bound of the others, of which only two are refined, is above its own."""
    threat = Threat("example", "add-or-remove-one", "server")
    rates = [0.4, 0.395, 0.39, 0.385, 0.38]
    events = [PoissonGaussian(threat=threat, multiplier=6.0, sampling_rate=rate, count=20) for rate in rates]
    each = [compose([event], 1e-4) for event in events]
    assert [one.epsilon for one in each] == sorted((one.epsilon for one in each), reverse=True)
    found = compose_clients({client: [event] for client, event in enumerate(events)}, 1e-4)
    assert (found.maximum, found.accountant) == (each[0].epsilon, "pld")
    # No order: one has the larger rate, the other the larger multiplier, or more rounds.
    larger, smaller = (frozenset({(replace(event, count=1), 20)}) for event in events[:2])
    assert contains(larger, smaller) and not contains(smaller, larger)
    louder = frozenset({(replace(events[1], count=1, multiplier=5.9), 20)})
    longer = frozenset({(replace(events[1], count=1), 21)})
    assert not contains(larger, louder) and not contains(louder, larger) and not contains(larger, longer)
