"""The shared base of all server halves: whose replies count, in which order, with which weight."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import making
import numpy as np
import pytest
from fake_grid import SIZE, THETA, FakeGrid, build, cohort, honest, play, release_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.local_sgd import plain_average

from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import FIRST_NODE, Refusal, most_bytes, pack_vector, refusal, unpack_vector
from fedpriv.common.replies import Reply
from fedpriv.common.seeds import draw_cohort
from fedpriv.mechanisms.noise import KeyRegistry, grid_step
from fedpriv.server import nodes as foreign_grid
from fedpriv.server import strategy as server
from fedpriv.server.round import BudgetsSpent, Hooks, Population, Round
from fedpriv.server.strategy import FederatedStrategy
from strategies.dpfedavg import DPFedAvg
from strategies.dpftrl import DPFTRL
from strategies.fedavg import FedAvg
from strategies.fedcad import FedCAD
from strategies.fedldp import FedLDP
from strategies.fedprox import FedProx
from strategies.nbafl import NbAFL

# --- the mean --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedAvg, FedProx, FedLDP, FedCAD])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_a_round_is_the_weighted_mean_of_plain_averaging(kind: type[FederatedStrategy], weighting: str) -> None:
    strategy = build(kind, weighting=weighting)
    found = play(strategy, FakeGrid())
    weights = [1.0 if weighting == "uniform" else 10.0 + client for client in cohort()]  # declared, not the 999 replied
    assert np.allclose(found, plain_average(THETA, [release_of(c) for c in cohort()], weights), atol=1e-6)
    assert not np.allclose(found, THETA, atol=1e-2)


def test_order_of_arrival_changes_nothing() -> None:
    """float32 sums depend on their order: sorted by client, every order gives the same bits."""
    grid, results, numbers = FakeGrid(), set(), set()
    strategy = build()
    messages = list(strategy.configure_train(1, pack_vector(THETA), ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages))
    for order in itertools.permutations(replies):
        strategy.configure_train(1, pack_vector(THETA), ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(1, order)
        assert arrays is not None
        results.add(unpack_vector(arrays).tobytes())
        numbers.add(tuple(reply.client for reply in strategy.current.replies))
    assert len(results) == 1 and numbers == {tuple(cohort())}


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50), st.sampled_from(["uniform", "examples"]))
def test_weights_sum_to_one(examples: list[int], weighting: str) -> None:
    replies = [Reply(client, release_of(client), count, {}, 0) for client, count in enumerate(examples)]
    weights = build(weighting=weighting).weights(replies)
    assert math.fsum(weights) == pytest.approx(1, abs=1e-12) and min(weights) > 0
    if weighting == "examples":
        assert weights == pytest.approx([count / sum(examples) for count in examples])
    same = [Reply(reply.client, THETA, reply.num_examples, {}, 0) for reply in replies]
    assert np.allclose(build(weighting=weighting).aggregate(np.zeros(SIZE, np.float32), same), THETA, rtol=1e-6)


def test_weights_are_those_of_the_replies_that_arrived() -> None:
    grid, lost = FakeGrid(), cohort()[1]
    grid.answer = lambda m, c: refusal(Refusal.LOST, m) if c == lost else honest(m, c)
    left = [client for client in cohort() if client != lost]
    found = play(build(weighting="uniform"), grid)
    assert np.allclose(found, plain_average(THETA, [release_of(c) for c in left], [1.0] * 3), atol=1e-6)


# --- replies that do not count ---------------------------------------------------------------------------


def raw(message: Message, content: RecordDict) -> Message:
    return Message(content, reply_to=message)


def vector(values: np.ndarray) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord({"vector": Array(values)}), "metrics": MetricRecord({"num-examples": 1})})


BAD = {
    "too short": vector(np.zeros(SIZE - 1, np.float32)),
    "too long": vector(np.zeros(SIZE + 1, np.float32)),
    "empty": vector(np.zeros(0, np.float32)),
    "matrix": vector(np.zeros((1, SIZE), np.float32)),
    "float64": vector(np.zeros(SIZE, np.float64)),
    "integers": vector(np.zeros(SIZE, np.int32)),
    "NaN": vector(np.array([0, 0, 0, 0, 0, np.nan], np.float32)),
    "infinite": vector(np.array([np.inf, 0, 0, 0, 0, 0], np.float32)),
    "no arrays": RecordDict({"metrics": MetricRecord({"num-examples": 1})}),
    "arrays of the wrong kind": RecordDict({"arrays": MetricRecord({"vector": 1.0})}),
    "another name": RecordDict({"arrays": ArrayRecord({"weights": Array(np.zeros(SIZE, np.float32))})}),
    "two arrays": RecordDict(
        {"arrays": ArrayRecord({"vector": Array(np.zeros(SIZE, np.float32)), "b": Array(np.zeros(1, np.float32))})}
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_reply_is_refused_and_counted(name: str) -> None:
    grid, bad = FakeGrid(), cohort()[2]
    grid.answer = lambda m, c: raw(m, BAD[name]) if c == bad else honest(m, c)
    strategy = build(weighting="uniform")
    left = [client for client in cohort() if client != bad]
    found = play(strategy, grid)
    assert np.allclose(found, plain_average(THETA, [release_of(c) for c in left], [1.0] * 3), atol=1e-6)
    assert strategy.current.lost == [bad] and strategy.current.errors[bad].startswith("refused: arrays")
    assert [reply.client for reply in strategy.current.replies] == left


def test_a_replayed_reply_counts_once() -> None:
    grid = FakeGrid()
    grid.answer = lambda m, c: [honest(m, c)] * 3
    strategy = build(weighting="uniform")
    assert np.array_equal(play(strategy, grid), play(build(weighting="uniform"), FakeGrid()))
    assert len(strategy.current.replies) == 4 and strategy.current.lost == []
    assert strategy.current.refused == {"duplicate": 8}


def test_a_replayed_refusal_counts_once() -> None:
    """One client that says twice that it has stopped must not look like two, nor turn a failure into a quiet end."""
    grid, (spent, *_) = FakeGrid(), cohort()
    grid.answer = lambda m, c: (
        [refusal(Refusal.BUDGET_SPENT, m)] * 4 if c == spent else refusal(Refusal.FAILED, m, "died")
    )
    strategy = build(min_replies=2)
    with pytest.raises(RunFailed, match="0 usable replies of 4"):
        play(strategy, grid)
    assert strategy.current.stopped == [spent] and strategy.current.refused == {"duplicate": 3}


def test_the_first_answer_counts_even_if_it_is_an_error() -> None:
    grid, (torn, *rest) = FakeGrid(), cohort()
    grid.answer = lambda m, c: [refusal(Refusal.FAILED, m, "died"), honest(m, c)] if c == torn else honest(m, c)
    strategy = build()
    play(strategy, grid)
    assert [reply.client for reply in strategy.current.replies] == rest
    assert strategy.current.lost == [torn] and strategy.current.errors == {torn: "died"}


def test_a_second_reply_never_replaces_the_first() -> None:
    grid, greedy = FakeGrid(), cohort()[0]
    grid.answer = lambda m, c: [honest(m, c)] + [raw(m, vector(np.full(SIZE, 9, np.float32)))] * (c == greedy)
    assert np.array_equal(play(build(), grid), play(build(), FakeGrid()))


def test_a_reply_from_a_client_that_was_not_asked_does_not_count() -> None:
    grid = FakeGrid()
    stranger = next(client for client in range(8) if client not in cohort())
    strategy = build()
    messages = list(strategy.configure_train(1, pack_vector(THETA), ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages))
    here = messages[0].metadata.group_id
    unasked = Message(messages[0].content, stranger + FIRST_NODE, "train", group_id=here)
    foreign = Message(messages[0].content, 10**9, "train", group_id=here)
    extra = list(grid.send_and_receive([unasked]))
    grid.answer = lambda m, c: raw(m, vector(np.ones(SIZE, np.float32)))
    extra += list(grid.send_and_receive([foreign]))
    arrays, _ = strategy.aggregate_train(1, [*extra, *replies])
    assert arrays is not None and np.array_equal(unpack_vector(arrays), play(build(), FakeGrid()))
    assert [reply.client for reply in strategy.current.replies] == cohort()
    assert strategy.current.refused == {"unasked": 2}


def test_the_declared_number_of_examples_is_used_whatever_the_reply_says() -> None:
    strategy = build(weighting="examples")
    play(strategy, FakeGrid())
    assert [reply.num_examples for reply in strategy.current.replies] == [10 + client for client in cohort()]


def test_a_reply_of_another_round_or_exchange_is_refused_and_the_right_one_still_counts() -> None:
    """Whether it was late or is played back; it does not take its client's turn."""
    grid, (early, *_) = FakeGrid(), cohort()

    def other(message: Message, group: str) -> Message:
        reply = raw(message, vector(np.full(SIZE, 9, np.float32)))
        reply.metadata.group_id = group
        return reply

    for group in ("0/0/train", "1/1/train", "1/0/statistics", ""):
        strategy = build()
        grid.answer = lambda m, c, group=group: [other(m, group)] * (c == early) + [honest(m, c)]
        assert np.array_equal(play(strategy, grid), play(build(), FakeGrid()))
        assert strategy.current.refused == {"stale": 1} and strategy.current.lost == []
    grid.answer = lambda m, c: other(m, "0/0/train") if c == early else honest(m, c)
    strategy = build()
    assert not np.array_equal(play(strategy, grid), play(build(), FakeGrid()))
    assert strategy.current.refused == {"stale": 1} and strategy.current.lost == [early]


def test_a_reply_that_is_larger_than_any_can_be_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    grid, huge = FakeGrid(), cohort()[1]
    decoded: list[int] = []
    read = server.read_reply
    monkeypatch.setattr(server, "read_reply", lambda m, c, *rest: decoded.append(c) or read(m, c, *rest))
    big = vector(np.zeros(SIZE, np.float32))
    big["more"] = ConfigRecord({"more": bytes(most_bytes(SIZE))})
    grid.answer = lambda m, c: raw(m, big) if c == huge else honest(m, c)
    strategy = build()
    play(strategy, grid)
    assert strategy.current.refused == {"oversized": 1} and strategy.current.lost == [huge] and huge not in decoded


# --- over-selection ------------------------------------------------------------------------------------------


def over_selecting(**options: Any) -> FedAvg:
    population = Population(7, 8, 4, lambda client: 10 + client, clients_asked=6)
    return making.server(FedAvg, population, **{"weighting": "uniform"} | options)


def test_a_round_closes_at_the_first_usable_replies_and_all_who_were_asked_still_train() -> None:
    """Chance, not the client's number, says who comes first on our own grids."""
    last = set[int]()
    for server_round in range(1, 30):
        grid, strategy = FakeGrid(), over_selecting(weighting="uniform")
        found = play(strategy, grid, server_round)
        order = [message.metadata.dst_node_id - FIRST_NODE for message in grid.asked]
        assert sorted(order) == strategy.current.cohort and len(order) == 6
        assert [reply.client for reply in strategy.current.replies] == sorted(order[:4])
        assert strategy.current.late == order[4:] and strategy.current.lost == sorted(order[4:])
        assert np.allclose(found, plain_average(THETA, [release_of(c) for c in sorted(order[:4])], [1.0] * 4))
        last |= set(order[4:])
    assert last == set(range(8))


def test_refused_and_lost_replies_are_replaced_by_spare_ones() -> None:
    grid, strategy = FakeGrid(), over_selecting()
    wanted = list(strategy.configure_train(1, pack_vector(THETA), ConfigRecord(), grid))
    bad, dead, *good = (message.metadata.dst_node_id - FIRST_NODE for message in wanted)
    grid.answer = lambda m, c: (
        raw(m, BAD["NaN"]) if c == bad else refusal(Refusal.FAILED, m, "died") if c == dead else honest(m, c)
    )
    play(strategy, grid)
    assert [reply.client for reply in strategy.current.replies] == sorted(good)
    assert strategy.current.late == [] and strategy.current.lost == sorted([bad, dead])


class ForeignGrid(FakeGrid):
    """Nodes numbered by somebody else, replies one a look, on a clock of its own; ``silent`` nodes never reply."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, silent: Sequence[int] = ()) -> None:
        super().__init__()
        self.seconds, self.silent, self.waiting = 0.0, silent, dict[str, Message]()
        monkeypatch.setattr(foreign_grid, "time", SimpleNamespace(monotonic=lambda: self.seconds, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        self.waiting = {str(place): message for place, message in enumerate(sent)}
        for name, message in self.waiting.items():
            message.metadata.__dict__["_message_id"] = name
        return list(self.waiting)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for name in sorted(set(message_ids) & self.waiting.keys()):
            node = self.waiting[name].metadata.dst_node_id
            if node not in self.silent:
                return [honest(self.waiting.pop(name), node - 100)]
        return []


def on_foreign(strategy: FederatedStrategy, grid: ForeignGrid, timeout: float) -> None:
    known = {client: client + 100 for client in range(8)}
    strategy.run_rounds(
        foreign_grid.FlowerGrid(grid, strategy.population, known), pack_vector(THETA), 1, timeout=timeout
    )


def test_on_flowers_grids_a_silent_client_costs_no_more_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed = list[bool]()
    strategy = build(hooks=Hooks(on_disturbance=lambda: disturbed.append(True)))
    grid = ForeignGrid(monkeypatch, silent=[cohort()[0] + 100])
    on_foreign(strategy, grid, timeout=60.0)
    assert 60.0 <= grid.seconds < 60.5 and strategy.current.lost == cohort()[:1] and disturbed


def test_on_flowers_grids_nobody_waits_for_more_than_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed = list[bool]()
    strategy = over_selecting(hooks=Hooks(on_disturbance=lambda: disturbed.append(True)))
    grid = ForeignGrid(monkeypatch, silent=[draw_cohort(7, 1, 8, 6, "fixed")[0] + 100])
    on_foreign(strategy, grid, timeout=60.0)
    assert grid.seconds < 5.0 and len(strategy.current.replies) == 4 and len(strategy.current.lost) == 2
    assert disturbed  # the clock decided who is in the round


# --- too few ---------------------------------------------------------------------------------------------


def test_too_few_replies_end_the_run_with_every_clients_error() -> None:
    grid, (raising, silent, malformed, fine) = FakeGrid(), cohort()
    answers = {
        raising: lambda m, c: refusal(Refusal.FAILED, m, "ValueError: no such label"),
        silent: lambda m, c: [],
        malformed: lambda m, c: raw(m, BAD["NaN"]),
        fine: honest,
    }
    grid.answer = lambda m, c: answers[c](m, c)
    with pytest.raises(RunFailed) as failed:
        play(build(min_replies=2), grid)
    words = str(failed.value)
    assert "round 1: 1 usable replies of 4, strategy.server.min_replies=2" in words
    assert f"client {raising}: ValueError: no such label" in words
    assert f"client {silent}: no reply" in words
    assert f"client {malformed}: refused: arrays.vector: not finite" in words
    assert f"client {fine}" not in words


def test_machines_that_nobody_could_ask_are_not_said_to_be_silent() -> None:
    """Two nodes did not approve of the app, and so did not say which clients they are; a third replied."""
    exchange = build().exchange
    exchange.grid = SimpleNamespace(unnamed=Counter(bundle=2))  # type: ignore[assignment]
    current = Round(1, THETA, cohort=[0, 1, 2, 3], lost=[0, 1, 2, 3], answered={2}, away=[0, 1])
    with pytest.raises(RunFailed) as failed:
        exchange.give_up(current, 1, 3)
    words = str(failed.value)
    assert "of nodes that did not say which client they are: 2 x bundle (they have not approved this app" in words
    assert all(f"client {client}: no connected node has said that it is this client" in words for client in (0, 1))
    assert "client 3: no reply" in words and "client 2" not in words and words.count("no reply") == 1


def test_enough_replies_go_on_without_the_others() -> None:
    grid, lost = FakeGrid(), cohort()[:3]
    grid.answer = lambda m, c: refusal(Refusal.FAILED, m, "died") if c in lost else honest(m, c)
    strategy = build(min_replies=1)
    play(strategy, grid)
    assert strategy.current.lost == lost and sorted(strategy.current.errors) == lost


def test_clients_whose_budget_is_spent_stop_and_are_no_losses() -> None:
    grid, spent = FakeGrid(), cohort()[:2]
    grid.answer = lambda m, c: refusal(Refusal.BUDGET_SPENT, m) if c in spent else honest(m, c)
    strategy = build(min_replies=2)
    play(strategy, grid)
    assert strategy.current.stopped == spent and strategy.current.lost == [] and strategy.current.errors == {}
    with pytest.raises(BudgetsSpent, match="2 of 4 clients have spent"):
        play(build(min_replies=3), grid)


def test_too_few_for_another_reason_is_a_failure_even_if_some_have_stopped() -> None:
    grid, (spent, *dead) = FakeGrid(), cohort()
    grid.answer = lambda m, c: refusal(Refusal.BUDGET_SPENT if c == spent else Refusal.FAILED, m, "died")
    with pytest.raises(RunFailed, match=f"client {dead[0]}: died"):
        play(build(min_replies=2), grid)


# --- rounds ----------------------------------------------------------------------------------------------


def test_everybody_in_the_cohort_is_asked_once_with_the_same_parameters() -> None:
    grid, strategy = FakeGrid(), build()
    play(strategy, grid, server_round=5)
    assert [message.metadata.dst_node_id - FIRST_NODE for message in grid.asked] == cohort(5)
    assert all(np.array_equal(unpack_vector(message.content), THETA) for message in grid.asked)
    assert all(message.content["config"]["round"] == 5 for message in grid.asked)  # type: ignore[call-overload, index]
    assert strategy.current.bytes_down % 4 == 0 and strategy.current.bytes_down > 4 * SIZE * 4
    assert strategy.current.bytes_up > 4 * SIZE * 4


def test_an_empty_poisson_cohort_changes_nothing() -> None:
    strategy = build(client_sampling="poisson", clients_per_round=1)
    empty = next(r for r in range(1, 200) if not draw_cohort(7, r, 8, 1, "poisson"))
    assert np.array_equal(play(strategy, FakeGrid(), empty), THETA) and strategy.current.lost == []


def test_a_resumed_run_continues_at_its_round() -> None:
    """Rounds 3 to 5 after a restart are the last three of five."""
    seen: list[int] = []

    def note(current: Round) -> None:
        seen.append(current.number)

    whole, parts = build(), build()
    arrays = whole.run_rounds(FakeGrid(), pack_vector(THETA), 5)
    half = parts.run_rounds(FakeGrid(), pack_vector(THETA), 2)
    rest = build().run_rounds(FakeGrid(), half, 5, first_round=3, on_round=note)
    assert np.array_equal(unpack_vector(arrays), unpack_vector(rest)) and seen == [3, 4, 5]


def test_fed_cad_shows_means_of_its_own_figures_where_it_has_them() -> None:
    def replies(figures: Sequence[dict[str, float]]) -> list[Reply]:
        return [Reply(client, THETA, 1, one, 0) for client, one in enumerate(figures)]

    figures = [{"diff": 0.5, "noise_variance": 1.0, "reuse": 0.0}, {"diff": 0.3, "noise_variance": 0.5, "reuse": 0.4}]
    strategy = build(FedCAD)
    assert strategy.figures(replies(figures)) == pytest.approx({"diff": 0.4, "noise_variance": 0.75, "reuse": 0.2})
    assert strategy.figures(replies([{}, figures[0]])) == {}  # a deployment sends no diagnostics


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (NbAFL, {"rounds": 30, "exposures": 1, "epsilon": 1.0}),
        (DPFedAvg, {"form": "central", "noise_multiplier": 1.0}),
        (DPFTRL, {"rounds": 4, "participation": "cyclic"}),
    ],
)
def test_no_two_rounds_or_attempts_of_a_server_have_noise_in_common(
    kind: type[FederatedStrategy], options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sums under the same noise show their difference."""
    monkeypatch.setattr(FederatedStrategy, "mean", lambda self, size, replies: np.zeros(size))
    with KeyRegistry() as used:
        for attempt in (0, 1):
            made = making.server(kind, Population(0, 4, 2, lambda client: 10, attempt=attempt), **options)
            for made.current.number in (1, 2):
                made.aggregate(np.zeros(5, np.float32), [])
    assert len(used.keys) == 4


def test_low_bits_of_a_model_do_not_tell_the_mean_under_a_servers_noise() -> None:
    """Updates of +-0.01 in 16 coordinates under noise of 0.19 in their mean: 54 % of guesses are to be right. What is
    left of a weight beyond the noise's own grid was the mean's: 100 % were.
    """
    options = {"rounds": 20, "exposures": 1, "epsilon": 5.0, "clip_norm": 1.0, "noise_multiplier": 0.0}
    people, right, size = Population(3, 2, 2, lambda client: 100, rng="secure"), 0, 16
    for trial in range(200):
        made, true = making.server(NbAFL, people, **options), 0.01 * (-1) ** trial
        made.current = Round(1, np.zeros(size, np.float32))
        sent = (np.full(size, true, np.float32), np.zeros(size, np.float32))
        seen = made.aggregate(np.zeros(size, np.float32), [Reply(k, one, 100, {}, 0) for k, one in enumerate(sent)])
        step, fine = grid_step(made.std), np.abs(seen) < 0.2  # beyond it a float32 is no finer than the grid
        away = [(seen[fine].astype(np.float64) - float(np.float32(guess / 2))) / step for guess in (0.01, -0.01)]
        off = [np.abs(one - np.round(one)).mean() for one in away]
        right += (off[0] < off[1]) == (true > 0)
    assert 60 < right < 150
