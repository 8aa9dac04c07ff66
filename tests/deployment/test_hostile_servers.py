"""Nodes with a policy: what they refuse, whatever a server asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployed import MACHINES, Grid, Machines, asker, codes, context, refused
from flwr.app import Message

from clients.fedldp import FedLDPClient
from fedpriv.app import client_app
from fedpriv.client.base import Client
from fedpriv.client.memory import read_memory
from fedpriv.common.messages import RUN, Outgoing, Refusal, Request, pack_vector, unpack_vector
from fedpriv.common.replies import train_content
from fedpriv.config.remote import compose_remote_text
from fedpriv.config.schema import Config
from fedpriv.deployment.gate import Node
from fedpriv.deployment.policy import read_policy
from fedpriv.engines.grid import stamp
from fedpriv.server.nodes import find_partitions


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


@pytest.mark.parametrize("dataset", ["digits", "mnist", "image_folder", "custom", "huggingface"])
def test_another_data_set_is_refused_before_anything_is_read(
    dataset: str, machines: MACHINES, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a data set nor the ledger is looked at, nor does the message wait for one that is being answered."""
    network = machines(1)

    def read(*given: object, **named: object) -> None:
        raise AssertionError("something was read")

    for name in ("fedpriv.engines.worker.worker_for", "fedpriv.deployment.gate.DataLedger"):
        monkeypatch.setattr(name, read)
    for more in ("", " num_rounds=100000000", " experiment=private_digits", " engine=ray"):
        grid = Grid(network, f"dataset={dataset}{more}", None)
        message = Message(
            train_content(pack_vector(np.zeros(51, np.float32)), Request(1, 0, {RUN: 32 * "c"})), 700, "train"
        )
        stamp(message, "asked")
        reply = grid.deliver(0, message)
        assert reply.has_error() and reply.error.code in (Refusal.POLICY, Refusal.FAILED)
        assert reply.error.reason in ("policy", "failed")


def test_a_machine_without_a_policy_answers_no_deployment(machines: MACHINES) -> None:
    network = machines(2)
    message = Message(train_content(pack_vector(np.zeros(51, np.float32)), Request(1)), 700, "train")
    reply = client_app(message, context(700, {"partition-id": 0}, network.overrides()))
    assert (reply.error.code, reply.error.reason) == (Refusal.POLICY, "policy")


def test_the_budget_is_over_all_runs_on_the_data(machines: MACHINES) -> None:
    """Two rounds cost 6.573, three 8.384 (8.426 at 0.9 delta): the second run gets one of two, the third gets none."""
    budget = {"unit": "client", "delta": 1e-5, "max_epsilon": 8.5}
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
    monkeypatch.setattr("fedpriv.deployment.gate.MOST_STATES", 3)
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
    monkeypatch.setattr("fedpriv.training.sequential.SequentialTrainer.train", lambda *_: pytest.fail("it was trained"))
    reply = asker(network, network.overrides())(1)
    assert (reply.error.code, network.booked(0)) == (Refusal.BUDGET_SPENT, 0)


def test_what_is_booked_is_checked_even_where_a_method_does_not_ask(
    machines: MACHINES, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = machines(2, {"budgets": [{"unit": "client", "delta": 1e-5, "max_epsilon": 4.0}]})
    monkeypatch.setattr("fedpriv.client.method.Method.check_budget", lambda *_: None)
    reply = asker(network, network.overrides())(1)
    assert (reply.error.code, network.booked(0)) == (Refusal.BUDGET_SPENT, 0)


def effective(network: Machines, config: Config) -> Config:
    """As node 0 carries it out."""
    with network.ledger(0).seen() as ledger:
        return Node(0, network.policy(0), network.data(0)).effective(config, ledger.declared())


def test_a_node_forces_noise_that_nobody_can_repeat(machines: MACHINES) -> None:
    """Whatever a configuration says that comes from elsewhere."""
    network = machines(2)
    seeded = compose_remote_text(network.overrides())
    assert seeded.privacy.rng == "seeded"
    own = effective(network, seeded)
    assert (own.privacy.rng, own.dataset.root, own.dataset.test_root) == ("secure", str(network.data(0)), None)


def test_a_server_does_not_choose_the_code_that_clips_on_a_node(machines: MACHINES) -> None:
    network = machines(2)
    told = compose_remote_text(network.overrides("engine.trainer=vectorised"))
    assert told.engine.trainer == "vectorised"
    assert effective(network, told).engine.trainer == "sequential"


def test_a_rule_that_moves_the_clip_norm_is_held_to_the_bound(machines: MACHINES) -> None:
    budget = {"unit": "example", "adjacency": "add-or-remove-one", "delta": 1e-5, "max_epsilon": 1e6}
    network = machines(2, {"budgets": [budget], "strategies": ["dpsgd"], "accountant": "renyi"})
    for more, refused_here in (("fixed", False), ("adaptive", True)):
        options = f"strategy=dpsgd strategy.client.clipping={more} strategy.client.clip_norm=1"
        reply = asker(network, network.overrides(options), name=f"{len(more):032x}")(1)
        assert reply.has_error() == refused_here, more


def test_a_node_cannot_take_the_place_of_another(machines: MACHINES) -> None:
    network = machines(2)
    grid = Grid(network, network.overrides(), None)
    assert find_partitions(grid, 2, 5.0, {0: 9999}, Counter()) == {0: 9999, 1: 711}  # type: ignore[arg-type]


def test_data_that_are_two_clients_are_counted_once(machines: MACHINES, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would send the first one's bytes again, and a server that adds up would take them for its noise."""
    network = machines(2)
    for name, place in {"data": network.data(0), "policy": network.policy(0)}.items():
        monkeypatch.setattr(network, name, lambda number, place=place: place)
    grid = network.serve(network.overrides("strategy.server.min_replies=1"))
    assert codes(grid) == ["sent", "POLICY"] * 2 and network.booked(0) == 2


def test_another_name_for_the_run_is_another_charge(asked: tuple[Machines, Callable[..., Message]]) -> None:
    network, ask = asked
    assert not ask(1, **{RUN: 32 * "0"}).has_error()
    assert network.booked(0) == 3


def test_a_method_that_does_not_book_is_not_heard(machines: MACHINES, monkeypatch: pytest.MonkeyPatch) -> None:
    network = machines(2)
    monkeypatch.setattr("fedpriv.client.method.Method.entries", lambda *_: [])
    assert refused(network, network.overrides()) == {"POLICY"}


def test_only_the_very_request_that_was_booked_is_repeated_without_a_booking(
    machines: MACHINES, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt of a booked round is another release."""
    network = machines(2)
    ask = asker(network, network.overrides("num_rounds=2"))
    assert not ask(1).has_error()
    monkeypatch.setattr("fedpriv.client.method.Method.entries", lambda *_: [])
    assert not ask(1).has_error()
    for place in ((1, 1), (2, 0)):
        assert ask(*place).error.code == Refusal.POLICY
    assert network.booked(0) == 1


def test_two_releases_of_one_message_are_one_round(machines: MACHINES, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that books twice before it replies: the second release finds the first one in its round."""
    real = Client.answer

    def twice(self: FedLDPClient, request: Request, received: np.ndarray | None) -> Outgoing:
        found, memory = real(self, request, received), read_memory(self._site().store)
        more = self.entries(memory.account, request, self.all_charges(), self._site().client)
        self._site().store.keep(memory.after(None, more, memory.answer))
        return found

    network = machines(2, {"limits": {"max_round_epsilon": 5.0}})  # one costs 4.377, two 6.573
    monkeypatch.setattr(Client, "answer", twice)
    ask = asker(network, network.overrides())
    assert ask(1).error.code == Refusal.BUDGET_SPENT and network.booked(0) == 1
