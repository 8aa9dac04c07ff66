"""Nodes with a policy: what they answer, what they refuse whatever a server asks, and what a restart leaves."""

from __future__ import annotations

import copy
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployed import POLICY, Grid, Machines, context
from flwr.app import Message
from prometheus_client import generate_latest

from fedpriv.app import client_app
from fedpriv.compose import compose_remote_text
from fedpriv.deployment import Node, model_size
from fedpriv.engines.grid import stamp
from fedpriv.errors import RunFailed, RunFolderError
from fedpriv.foreign_grid import find_partitions
from fedpriv.methods import METHODS
from fedpriv.node import snapshot
from fedpriv.operations.metrics import NodeMetrics
from fedpriv.policy import read_policy
from fedpriv.records import METRICS, RUN, Instructions, Refusal, pack_vector, train_content, unpack_vector
from fedpriv.server import BudgetsSpent

MACHINES = Callable[..., Machines]


@pytest.fixture
def machines(tmp_path: Path) -> MACHINES:
    """``machines(count, {"limits": {...}, ...})``: nodes whose policy differs from `POLICY` in these entries."""

    def make(count: int = 2, changes: dict[str, Any] | None = None) -> Machines:
        policy = copy.deepcopy(POLICY)
        for name, value in (changes or {}).items():
            policy[name] = policy[name] | value if isinstance(value, dict) else value
        return Machines(tmp_path, count, policy)

    return make


def codes(grid: Grid) -> list[str]:
    """Of every answer to a train message: the refusal, or ``sent``."""
    return [
        Refusal(reply.error.code).name if reply.has_error() else "sent"
        for _, reply in grid.answers
        if reply.metadata.message_type == "train"
    ]


def refused(network: Machines, overrides: str) -> set[str]:
    """The codes of a run that every node refuses; nothing is booked by it, and a code is all that leaves."""
    before = [network.booked(number) for number in range(network.count)]
    told: list[Message] = []

    def listen(node: int, deliver: Callable[[], Message]) -> Message:
        told.append(deliver())
        return told[-1]

    with pytest.raises((RunFailed, BudgetsSpent)):
        network.serve(overrides, listen)
    answers = [reply for reply in told if reply.metadata.message_type == "train"]
    assert len(answers) in (network.count, 2 * network.count) and all(reply.has_error() for reply in answers)
    assert [network.booked(number) for number in range(network.count)] == before
    assert all(reply.error.reason == Refusal(reply.error.code).name.lower() for reply in answers)
    return {Refusal(reply.error.code).name for reply in answers}


# --- what goes well --------------------------------------------------------------------------------------


def test_a_run_is_booked_by_every_node_before_it_leaves(machines: MACHINES) -> None:
    network = machines(3)
    seen: list[tuple[int, int]] = []

    def listen(node: int, deliver: Callable[[], Message]) -> Message:
        reply = deliver()
        seen.append((node, network.booked(node)))
        return reply

    grid = network.serve(network.overrides(), listen)
    assert codes(grid) == ["sent"] * 6
    assert seen[3:] == [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)]
    summary = json.loads((network.folder / "run" / "summary.json").read_text())
    assert summary["privacy"]["verified_epsilon"] == pytest.approx(6.57297, abs=1e-4)


def test_nothing_but_the_release_leaves_a_node(machines: MACHINES) -> None:
    """No diagnostics, and the declared count: all replies have the same form, whatever the pictures are."""
    network = machines(2)
    grid = network.serve(network.overrides())
    trained = [reply.content for _, reply in grid.answers if reply.metadata.message_type == "train"]
    assert {tuple(content) for content in trained} == {("arrays", METRICS)}
    assert {content[METRICS]["num-examples"] for content in trained} == {12}
    rows = [json.loads(line) for line in (network.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["train_loss"] for row in rows] == [None, None]


def test_noise_and_batches_are_not_repeatable(machines: MACHINES) -> None:
    network = machines(2)
    releases = [
        unpack_vector(reply.content).tolist()
        for run in ("one", "two")
        for _, reply in network.serve(network.overrides("num_rounds=1", run=run)).answers
        if reply.metadata.message_type == "train"
    ]
    assert len({tuple(release) for release in releases}) == 4


#: Methods with a finite price under a client-level budget of the server's, and under an example-level one.
CLIENT_LEVEL = {"adpfl", "coqfl", "cpsgd", "dpfedavg", "dpfedsnlc", "fedags", "fedcad", "fedldp", "ldpfl"}
EXAMPLE_LEVEL = {"agn", "anr", "dpfl_agn", "dpsgd", "nbafl"}
WITHOUT_PRICE = {"corrquant", "fedavg", "fedper", "fedprox", "fedvf", "lgfedavg", "pfl"}


@pytest.mark.parametrize("strategy", sorted(METHODS))
def test_every_method_keeps_to_the_policy_or_is_refused(strategy: str, machines: MACHINES) -> None:
    assert set(METHODS) == CLIENT_LEVEL | EXAMPLE_LEVEL | WITHOUT_PRICE
    unit = "example" if strategy in EXAMPLE_LEVEL else "client"
    adjacency = "add-or-remove-one" if unit == "example" else "replace-one"
    budget = {"unit": unit, "adjacency": adjacency, "delta": 1e-3, "max_epsilon": 1e6}
    limits = {"max_round_epsilon": 1e5, "min_noise_multiplier": 1e-3, "max_clip_norm": 1e3}
    lenient = {"budgets": [budget], "limits": limits, "strategies": [strategy], "accountant": "renyi", "order": 1.1}
    network = machines(2, lenient)
    network.introduce()
    own = [f"strategy={strategy}", "privacy.delta=0.001"]
    text = network.overrides(*own).replace("model=linear", "model=mlp")
    if strategy not in ("fedldp", "fedcad"):
        text = text.replace("strategy.client.noise_multiplier=2.0", "")
    if strategy in ("anr", "dpfl_agn", "adpfl", "pfl"):  # these want public pictures of the server's
        text += " dataset.auxiliary=4"
    if strategy in WITHOUT_PRICE:
        with pytest.raises(RunFailed, match="policy"):
            network.serve(text)
        assert [network.booked(number) for number in range(2)] == [0, 0]
        return
    grid = network.serve(text)
    assert set(codes(grid)) == {"sent"}
    exchanges = 2 if strategy == "adpfl" else 1
    assert [network.booked(number) for number in range(2)] == [2 * exchanges] * 2


def test_shared_secrets_need_identities(machines: MACHINES) -> None:
    """Unsigned keys show the shared bits to a server in the middle, whom a budget's observer `server` must not be."""
    limits = {"max_round_epsilon": 1e5}
    changes = {"strategies": ["coqfl"], "accountant": "renyi", "limits": limits}
    budget = {"unit": "client", "delta": 1e-5, "max_epsilon": 1e6}
    network = machines(2, changes | {"budgets": [budget]})
    text = network.overrides("strategy=coqfl").replace("strategy.client.noise_multiplier=2.0", "")
    assert refused(network, text) == {"POLICY"}
    network.introduce()
    assert codes(network.serve(text.replace("/run ", "/two "))).count("sent") > 0


# --- a server that asks for too much ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        "strategy.client.noise_multiplier=0",
        "strategy.client.noise_multiplier=0.9",
        "strategy.client.clip_norm=1e9",
        "strategy=fedcad local.batch_size=8",  # q = 2/3
        "strategy=fedcad local.batch_size=12",  # q = 1
        "strategy=dpsgd",
        "privacy.variant=published",
        "local.epochs=100",
        "local.steps=11",
        "num_rounds=11",
        "local.batch_size=9 local.sampler=shuffle",
        "dataset.size=8",
        "dataset.channels=3",
        "dataset.classes=[a,c,b]",
        "dataset.examples=[13,11]",
        "strategy.server.clipping=quantile strategy.server.norm_bound=1e6",
        "strategy.client.clip_norm=10",
    ],
)
def test_more_than_the_policy_allows_is_refused(overrides: str, machines: MACHINES) -> None:
    network = machines(2)
    assert refused(network, network.overrides(overrides)) == {"POLICY"}


def test_a_simulation_does_not_run_on_a_nodes_pictures(machines: MACHINES, tmp_path: Path) -> None:
    """Options that would make noise repeatable reach no data, and their reason stays at home."""
    network = machines(2)
    options = "strategy=fedldp num_clients=2 clients_per_round=2 num_rounds=1"
    assert refused(network, f"{options} run_dir={tmp_path / 'digits'}") == {"POLICY"}


def test_a_machine_without_a_policy_answers_no_deployment(machines: MACHINES) -> None:
    network = machines(2)
    message = Message(train_content(pack_vector(np.zeros(51, np.float32)), Instructions(1)), 700, "train")
    reply = client_app(message, context(700, {"partition-id": 0}, network.overrides()))
    assert (reply.error.code, reply.error.reason) == (Refusal.POLICY, "policy")


def test_the_budget_is_over_all_runs_on_the_data(machines: MACHINES) -> None:
    """Two rounds cost 6.573, three 8.384: the second run gets one round of its two, the third gets none."""
    budget = {"unit": "client", "delta": 1e-5, "max_epsilon": 8.4}
    network = machines(2, {"budgets": [budget]})
    assert codes(network.serve(network.overrides(run="one"))) == ["sent"] * 4
    second = network.serve(network.overrides("strategy=fedcad", run="two"))
    assert codes(second) == ["sent"] * 2 + ["BUDGET_SPENT"] * 2  # the round before is kept
    assert [network.booked(number) for number in range(2)] == [3, 3]
    assert codes(network.serve(network.overrides(run="three"))) == ["BUDGET_SPENT"] * 2
    assert [network.booked(number) for number in range(2)] == [3, 3]
    with network.ledger(0).held() as ledger:
        (spent,) = read_policy(network.policy(0)).spent(ledger.releases()).values()
    assert spent == pytest.approx(8.384, abs=1e-2)


def asker(network: Machines, overrides: str, name: str = 32 * "c") -> Callable[..., Message]:
    """``ask(round, attempt, **options)``: what a server may send to node 0 in a run, and the answer."""
    grid = Grid(network, overrides, None)
    size = model_size(Node(0, network.policy(0), network.data(0)).effective(compose_remote_text(overrides)))

    def ask(server_round: int, attempt: int = 0, **options: Any) -> Message:
        theta = pack_vector(np.zeros(min(size, 1000), np.float32))
        content = train_content(theta, Instructions(server_round, attempt, {RUN: name} | options))
        message = Message(content, 700, "train", group_id="1")
        stamp(message, "asked")
        return grid.deliver(0, message)

    return ask


@pytest.fixture
def asked(machines: MACHINES) -> tuple[Machines, Callable[..., Message]]:
    """A node that has answered rounds 1 and 2 of a run, and whatever else a server may ask it in that run."""
    network, calls = machines(2), iter(range(100))
    text = network.overrides("strategy.server.clipping=quantile strategy.server.norm_bound=5 num_rounds=3")

    def stopped(node: int, deliver: Callable[[], Message]) -> Message:
        if next(calls) == 6:  # behind 2 queries and 2 rounds
            raise SystemExit(9)
        return deliver()

    with pytest.raises(SystemExit):
        network.serve(text, stopped)
    return network, asker(network, text, (network.folder / "run" / "run-name").read_text().strip())


def test_a_request_made_again_gets_the_same_bytes_and_costs_nothing(
    asked: tuple[Machines, Callable[..., Message]],
) -> None:
    network, ask = asked
    twice = [unpack_vector(ask(2).content).tobytes() for _ in range(2)]
    assert twice[0] == twice[1] and network.booked(0) == 2
    assert not ask(3).has_error() and network.booked(0) == 3


@pytest.mark.parametrize(
    ("server_round", "options", "code"),
    [
        (1, {}, Refusal.STALE),
        (0, {}, Refusal.POLICY),
        (4, {}, Refusal.POLICY),  # num_rounds=3
        (3, {"clip_norm": 1e9}, Refusal.UNSAFE_CLIP_NORM),
        (3, {"clip_norm": float("nan")}, Refusal.UNSAFE_CLIP_NORM),
        (3, {"clip_norm": "5"}, Refusal.UNSAFE_CLIP_NORM),
        (3, {RUN: "../../etc/passwd"}, Refusal.FAILED),
        (3, {RUN: ""}, Refusal.FAILED),
        (3, {"exchange": "statistics"}, Refusal.FAILED),
        (3, {"exchange": "__init__"}, Refusal.FAILED),
    ],
)
def test_hostile_messages_get_a_code(
    server_round: int, options: dict[str, Any], code: Refusal, asked: tuple[Machines, Callable[..., Message]]
) -> None:
    network, ask = asked
    reply = ask(server_round, **options)
    assert (reply.error.code, reply.error.reason) == (code, code.name.lower())
    assert network.booked(0) == 2


def test_all_attempts_of_a_round_are_one_round(machines: MACHINES) -> None:
    """One attempt costs 4.377, two 6.573, three 8.384: a server that goes on asking gets a code."""
    network = machines(2, {"limits": {"max_round_epsilon": 7.0}})
    ask = asker(network, network.overrides())
    assert [ask(1, attempt).has_error() for attempt in (0, 2, 4, 6)] == [False, False, True, True]
    assert network.booked(0) == 2
    assert not ask(2, 6).has_error()  # another round


def test_messages_are_counted(machines: MACHINES) -> None:
    """Noise that costs next to nothing fills a disk all the same."""
    network = machines(2, {"limits": {"max_messages": 3}})
    cheap = network.overrides("strategy.client.noise_multiplier=1e12")
    replies = [asker(network, cheap, name=f"{number:032x}")(1) for number in range(5)]
    assert [reply.has_error() for reply in replies] == [False, False, False, True, True]
    assert replies[-1].error.code == Refusal.BUDGET_SPENT


def test_states_of_old_runs_go(machines: MACHINES, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.deployment.MOST_STATES", 3)
    network = machines(2)
    for number in range(6):
        asker(network, network.overrides(), name=f"{number:032x}")(1)
    assert len(list((network.data(0) / ".fedpriv" / "runs").iterdir())) == 3
    assert network.booked(0) == 6


def test_state_belongs_to_the_options_of_its_run(machines: MACHINES) -> None:
    """Correlated noise is in units of the run's own noise multiplier: under another one it starts anew."""
    network = machines(2, {"limits": {"max_rounds": 5}})
    first, second = ("strategy=fedcad", "strategy=fedcad strategy.client.noise_multiplier=3")
    assert not asker(network, network.overrides(first))(1).has_error()
    assert not asker(network, network.overrides(second))(1).has_error()
    assert len(list((network.data(0) / ".fedpriv" / "runs").iterdir())) == 2 and network.booked(0) == 2


def test_a_model_too_large_is_not_built(machines: MACHINES) -> None:
    network = machines(2)
    reply = asker(network, network.overrides("model=mlp model.hidden=100000000"))(1)
    assert (reply.error.code, network.booked(0)) == (Refusal.POLICY, 0)


def test_nothing_is_trained_for_a_release_that_may_not_leave(
    machines: MACHINES, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = machines(2, {"budgets": [{"unit": "client", "delta": 1e-5, "max_epsilon": 4.0}]})
    monkeypatch.setattr("fedpriv.training.SequentialTrainer.train", lambda *_: pytest.fail("it was trained"))
    reply = asker(network, network.overrides())(1)
    assert (reply.error.code, network.booked(0)) == (Refusal.BUDGET_SPENT, 0)


def test_what_is_booked_is_checked_even_where_a_method_does_not_ask(
    machines: MACHINES, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = machines(2, {"budgets": [{"unit": "client", "delta": 1e-5, "max_epsilon": 4.0}]})
    monkeypatch.setattr("fedpriv.client.Client._check_budget", lambda *_: None)
    reply = asker(network, network.overrides())(1)
    assert (reply.error.code, network.booked(0)) == (Refusal.BUDGET_SPENT, 0)


def test_a_node_forces_noise_that_nobody_can_repeat(machines: MACHINES) -> None:
    """Whatever a configuration says that comes from elsewhere."""
    network = machines(2)
    seeded = compose_remote_text(network.overrides())
    assert seeded.privacy.rng == "seeded"
    own = Node(0, network.policy(0), network.data(0)).effective(seeded)
    assert (own.privacy.rng, own.dataset.root, own.dataset.test_root) == ("secure", str(network.data(0)), None)


def test_a_rule_that_moves_the_clip_norm_is_held_to_the_bound(machines: MACHINES) -> None:
    budget = {"unit": "example", "adjacency": "add-or-remove-one", "delta": 1e-5, "max_epsilon": 1e6}
    network = machines(2, {"budgets": [budget], "strategies": ["dpsgd"], "accountant": "renyi"})
    for more, refused_here in (("fixed", False), ("adaptive", True)):
        options = f"strategy=dpsgd strategy.client.clipping={more} strategy.client.clip_norm=1"
        reply = asker(network, network.overrides(options), name=f"{len(more):032x}")(1)
        assert reply.has_error() == refused_here, more


def test_killed_before_the_counter_the_ledger_is_vouched_for_before_anything_leaves(machines: MACHINES) -> None:
    network = machines(2)
    ask, counter = asker(network, network.overrides()), network.folder / "counters" / "0.json"
    ask(1)
    before = counter.read_bytes()
    ask(2)
    counter.write_bytes(before)  # as if the process had been killed there
    assert not ask(2).has_error()  # the same bytes again
    assert json.loads(counter.read_text())["bytes"] > json.loads(before)["bytes"]
    (network.data(0) / ".fedpriv" / "ledger.jsonl").write_bytes(
        b"".join((network.data(0) / ".fedpriv" / "ledger.jsonl").read_bytes().splitlines(keepends=True)[:-1])
    )
    assert ask(2).error.code == Refusal.LEDGER


@pytest.mark.parametrize("content", ["", "[]", "{", '{"policy": "x"}', "\x00"])
def test_damaged_counts_of_refusals_are_no_reason_to_say_more(content: str, machines: MACHINES) -> None:
    network = machines(2)
    path = network.data(0) / ".fedpriv" / "refusals.json"
    path.write_text(content)
    reply = asker(network, network.overrides("num_rounds=11"))(1)
    assert (reply.error.code, reply.error.reason) == (Refusal.POLICY, "policy")
    assert json.loads(path.read_text()) == {"policy": 1} and network.command("status", 0) == 0


def test_a_node_cannot_take_the_place_of_another(machines: MACHINES) -> None:
    network = machines(2)
    grid = Grid(network, network.overrides(), None)
    assert find_partitions(grid, 2, 5.0, {0: 9999}) == {0: 9999, 1: 711}  # type: ignore[arg-type]


def test_another_name_for_the_run_is_another_charge(asked: tuple[Machines, Callable[..., Message]]) -> None:
    network, ask = asked
    assert not ask(1, **{RUN: 32 * "0"}).has_error()
    assert network.booked(0) == 3


def test_a_method_that_does_not_book_is_not_heard(machines: MACHINES, monkeypatch: pytest.MonkeyPatch) -> None:
    network = machines(2)
    monkeypatch.setattr("clients.fedldp.FedLDPClient._entries", lambda *_: [])
    assert refused(network, network.overrides()) == {"POLICY"}


def test_changed_pictures_must_be_declared_again(machines: MACHINES) -> None:
    network = machines(2)
    for number in range(2):
        (network.data(number) / "a" / "0.png").unlink()
    assert refused(network, network.overrides(run="one")) == {"FAILED"}
    for number in range(2):
        assert network.command("declare", number) == 0
    assert refused(network, network.overrides(run="two")) == {"POLICY"}  # the server has to declare the new number
    now = network.overrides(run="three").replace("[12,12]", "[11,11]")
    assert codes(network.serve(now)) == ["sent"] * 4


def test_the_operator_sees_reasons_and_counts(
    machines: MACHINES, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    network = machines(2)
    refused(network, network.overrides("num_rounds=11"))
    assert "num_rounds=11: at most 10" in caplog.text
    capsys.readouterr()
    assert network.command("status", 0) == 0
    assert capsys.readouterr().out.splitlines() == [
        "0 messages left, 0 entries",
        "client, replace-one, server, delta 1e-05: epsilon 0 of 100",
        "refused: policy 1",
    ]


def test_metrics_and_health_are_what_the_files_say(machines: MACHINES) -> None:
    network = machines(2)
    network.serve(network.overrides())
    registry = NodeMetrics(lambda: snapshot(network.policy(0), network.data(0))).registry
    text = generate_latest(registry).decode()
    assert "fedpriv_node_releases_total 2.0" in text and "fedpriv_node_readable 1.0" in text
    assert 'fedpriv_node_epsilon_spent{budget="client, replace-one, server, delta 1e-05"} 6.57' in text
    (network.data(0) / ".fedpriv" / "ledger.jsonl").unlink()
    assert "fedpriv_node_readable 0.0" in generate_latest(registry).decode()


# --- faults ---------------------------------------------------------------------------------------------------


def test_a_killed_server_goes_on_and_its_clients_with_it(machines: MACHINES) -> None:
    """Killed behind the messages of round 2: round 2 is asked anew with fresh noise, and both releases are booked."""
    network = machines(2)
    text = network.overrides("num_rounds=3 checkpoint.every=1")
    calls = iter(range(100))

    def killed(node: int, deliver: Callable[[], Message]) -> Message:
        reply = deliver()
        if next(calls) == 5:  # 2 queries, 2 of round 1, 2 of round 2
            raise SystemExit(9)
        return reply

    with pytest.raises(SystemExit):
        network.serve(text, killed)
    assert [network.booked(number) for number in range(2)] == [2, 2]
    assert codes(network.serve(text)) == ["sent"] * 4
    assert [network.booked(number) for number in range(2)] == [4, 4]
    rows = [json.loads(line) for line in (network.folder / "run" / "ledger.jsonl").read_text().splitlines()]
    assert sorted((row["client"], row["round"], row["attempt"]) for row in rows) == [
        (client, *place) for client in range(2) for place in ((1, 0), (2, 0), (2, 2), (3, 2))
    ]


@pytest.mark.parametrize("strategy", ["fedcad", "adpfl", "coqfl"])
def test_a_server_goes_back_further_than_its_clients(strategy: str, machines: MACHINES) -> None:
    """Its newest checkpoint is its start, and the clients have answered two rounds since: all three are asked anew."""
    budget = {"unit": "client", "delta": 1e-3, "max_epsilon": 1e6}
    limits = {"max_round_epsilon": 1e6, "min_noise_multiplier": 1e-3, "max_clip_norm": 1e3}
    changes = {"budgets": [budget], "limits": limits, "strategies": [strategy], "accountant": "renyi", "order": 1.1}
    network, calls = machines(2, changes), iter(range(1000))
    network.introduce()
    options = f"strategy={strategy} privacy.delta=0.001 num_rounds=3 checkpoint.every=0 dataset.auxiliary=4 model=mlp"
    text = network.overrides(options).replace("model=linear", "")
    if strategy != "fedcad":
        text = text.replace("strategy.client.noise_multiplier=2.0", "")
    exchanges = {"fedcad": 1, "adpfl": 2, "coqfl": 2}[strategy]

    def killed(node: int, deliver: Callable[[], Message]) -> Message:
        if next(calls) == 2 + 2 * 2 * exchanges:  # behind the queries and two rounds
            raise SystemExit(9)
        return deliver()

    with pytest.raises(SystemExit):
        network.serve(text, killed)
    before = network.booked(0)
    assert set(codes(network.serve(text))) == {"sent"}
    assert network.booked(0) - before == 3 * before // 2


def test_an_interrupted_run_with_other_options_is_left_alone(machines: MACHINES) -> None:
    network = machines(2)

    def killed(node: int, deliver: Callable[[], Message]) -> Message:
        raise SystemExit(9)

    with pytest.raises(SystemExit):
        network.serve(network.overrides(), killed)
    with pytest.raises(RunFolderError, match="other options"):
        network.serve(network.overrides("local.lr=0.2"))


def test_lost_replies_are_booked_on_both_sides(machines: MACHINES) -> None:
    network = machines(3)
    calls = iter(range(100))

    def lossy(node: int, deliver: Callable[[], Message]) -> Message | None:
        reply = deliver()
        return None if node == 1 and next(calls) == 2 else reply  # in round 2

    network.serve(network.overrides("engine.round_timeout=1"), lossy)
    rows = [json.loads(line) for line in (network.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["participants"], row["dropped"]) for row in rows] == [(3, 0), (2, 1)]
    assert [network.booked(number) for number in range(3)] == [2, 2, 2]
    ledger = (network.folder / "run" / "ledger.jsonl").read_text().splitlines()
    assert len(ledger) == 6


def test_a_machine_that_is_away_is_not_charged_and_may_come_back(
    machines: MACHINES, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.foreign_grid.PATIENCE", 0.1)
    network = machines(3)
    text = network.overrides("num_rounds=3")
    grids: list[Grid] = []

    def back_in_round_2(node: int, deliver: Callable[[], Message]) -> Message:
        reply = deliver()
        grids[0].away.clear()
        return reply

    monkeypatch.setattr(Grid, "__init__", _keeping(grids, Grid.__init__))
    network.serve(text, back_in_round_2, away=[1])
    rows = [json.loads(line) for line in (network.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["participants"], row["dropped"]) for row in rows] == [(2, 1), (3, 0), (3, 0)]
    assert [network.booked(number) for number in range(3)] == [3, 2, 3]
    ledger = [json.loads(line) for line in (network.folder / "run" / "ledger.jsonl").read_text().splitlines()]
    assert [row["client"] for row in ledger if row["round"] == 1] == [0, 2]


def _keeping(grids: list[Grid], real: Any) -> Any:
    def made(self: Grid, *given: Any) -> None:
        real(self, *given)
        grids.append(self)

    return made


def test_clocks_decide_nothing(machines: MACHINES, monkeypatch: pytest.MonkeyPatch) -> None:
    network = machines(2)
    clock = iter([1e9, 5e9, 1.0, 3e9] * 1000)
    monkeypatch.setattr("time.time", lambda: next(clock))
    assert codes(network.serve(network.overrides())) == ["sent"] * 4


def test_a_full_disk_lets_nothing_out(machines: MACHINES, monkeypatch: pytest.MonkeyPatch) -> None:
    network = machines(2)

    def full(self: Any, row: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    with monkeypatch.context() as patch:
        patch.setattr("fedpriv.data_ledger.JsonLines.append", full)
        assert refused(network, network.overrides(run="one")) == {"FAILED"}
    assert codes(network.serve(network.overrides(run="two"))) == ["sent"] * 4
