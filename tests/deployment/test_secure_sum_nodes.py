"""A secure sum among real policies, folders and ledgers: what a node takes part in, and what it never answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml
from deployed import MACHINES, Machines, codes, refused
from flwr.app import ConfigRecord, Message, RecordDict

from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import ATTEMPT, CONFIRM, EXCHANGE, KEYS, ROUND, SHARES, SURVIVORS, TRAIN, UNMASK, Refusal
from fedpriv.common.vectors import pack_vector, unpack_array, unpack_vector
from fedpriv.deployment.policy import read_policy
from fedpriv.engines.grid import stamp

NODES = 4
BUDGET = {"unit": "client", "delta": 1e-5, "max_epsilon": 60.0, "observer": "secure-sum"}
POLICY = {
    "budgets": [BUDGET],
    "strategies": ["ddgauss"],
    "accountant": "renyi",
    "limits": {"min_survivors": 3, "min_noise_multiplier": 0.1},
}
#: Options of the run: in `Machines.overrides` the method is another one.
RUN = (
    "strategy=ddgauss strategy.secure_sum=protocol strategy.server.min_replies=3 strategy.server.threshold=3 "
    "strategy.client.noise_multiplier=1.0 num_rounds=2"
)


@pytest.fixture
def network(machines: MACHINES) -> Machines:
    found = machines(NODES, POLICY)
    found.introduce()
    return found


def told(message: Message) -> tuple[str, int]:
    """(exchange, round) of a train message."""
    config: Any = message.content["config"]
    return str(config.get(EXCHANGE, TRAIN)), int(config[ROUND])


def losing(node: int, exchanges: tuple[str, ...], number: int = 2) -> Callable[..., Any]:
    """A network that loses one node's answers to these exchanges of a round."""

    def send(asked: int, deliver: Callable[[], Message]) -> Message | None:
        reply = deliver()
        if asked != node or reply.metadata.message_type != "train":
            return reply
        lost = {f"{number}/0/{exchange}" for exchange in exchanges}
        return None if reply.metadata.group_id in lost else reply

    return send


def test_nodes_open_a_sum_and_book_it_for_the_observer_of_sums(network: Machines) -> None:
    grid = network.serve(network.overrides(f"{RUN} model=auto"))
    assert codes(grid) == ["sent"] * (NODES * 5 * 2)
    vectors = [unpack_array(reply.content) for _, reply in grid.answers if "arrays" in reply.content]
    assert len(vectors) == NODES * 2
    spent = set()
    for number in range(NODES):
        assert network.booked(number) == 2
        with network.ledger(number).held() as ledger:
            spent |= set(read_policy(network.policy(number)).spent(ledger.releases()).values())
    assert len(spent) == 1 and 0 < spent.pop() < 60


@pytest.mark.parametrize("exchanges", [(TRAIN, CONFIRM, UNMASK), (CONFIRM, UNMASK), (UNMASK,)], ids=" ".join)
def test_a_node_that_is_lost_after_its_shares_does_not_end_the_round(
    exchanges: tuple[str, ...], network: Machines
) -> None:
    """What had left is booked on its side; the others open the sum."""
    text = network.overrides(f"{RUN} engine.round_timeout=1")
    network.serve(text, losing(2, exchanges))
    assert [network.booked(number) for number in range(NODES)] == [2] * NODES


def test_below_the_floor_nothing_opens(network: Machines) -> None:
    def send(node: int, deliver: Callable[[], Message]) -> Message | None:
        reply = losing(2, (TRAIN, CONFIRM, UNMASK))(node, deliver)
        return reply if reply is None else losing(1, (UNMASK,))(node, lambda: reply)

    with pytest.raises(RunFailed, match="2 of 4 clients have opened their shares, 3 are needed"):
        network.serve(network.overrides(f"{RUN} engine.round_timeout=1"), send)
    assert [network.booked(number) for number in range(NODES)] == [2] * NODES


@pytest.mark.parametrize(
    "more",
    [
        "strategy.secure_sum=ideal",
        "strategy.server.min_replies=2",  # fewer than the policy's min_survivors
    ],
)
def test_runs_that_would_show_more_than_a_sum_are_refused(more: str, network: Machines) -> None:
    assert refused(network, network.overrides(f"{RUN} {more}")) == {"POLICY"}


def test_without_identities_no_node_takes_part(machines: MACHINES) -> None:
    network = machines(NODES, POLICY)
    assert refused(network, network.overrides(RUN)) == {"POLICY"}


def test_a_budget_against_the_server_counts_a_clients_own_noise_alone(machines: MACHINES) -> None:
    """What it would cost if the masks came off: more than the sum."""
    own = {**BUDGET, "observer": "server"}
    network = machines(NODES, POLICY | {"budgets": [BUDGET, own]})
    network.introduce()
    assert set(codes(network.serve(network.overrides(f"{RUN} num_rounds=1")))) == {"sent"}
    with network.ledger(0).held() as ledger:
        sums, alone = read_policy(network.policy(0)).spent(ledger.releases()).values()
    assert 1.5 * sums < alone < 60
    tight = {"budgets": [BUDGET, {**own, "max_epsilon": 0.9 * alone}]}
    for number in range(NODES):
        network.write_policy(number, yaml.safe_load(network.policy(number).read_text()) | tight)
    second = codes(network.serve(network.overrides(f"{RUN} num_rounds=1", run="second")))
    assert second == ["sent"] * 2 * NODES + ["BUDGET_SPENT"] * NODES  # before the sum, in TRAIN
    assert network.booked(0) == 1


# --- a server that lies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exchange", "change", "code"),
    [
        (KEYS, {ATTEMPT: 2}, Refusal.UNSAFE_SUM),  # the context says attempt 0
        (KEYS, {"model-digest": bytes(31)}, Refusal.UNSAFE_SUM),
        (KEYS, {"members": [1, 2, 3]}, Refusal.UNSAFE_SUM),
        (KEYS, {"members": [0]}, Refusal.UNSAFE_SUM),
        (KEYS, {"key-attempt": "0"}, Refusal.UNSAFE_SUM),
        (SHARES, {"roster": [0, 1, 2, 9]}, Refusal.UNSAFE_SUM),
        (SHARES, {"public-keys": [bytes(160)] * 3}, Refusal.UNSAFE_SUM),
        (SHARES, {"public-keys": [1, 2, 3]}, Refusal.UNSAFE_SUM),
        (TRAIN, {"sealed": [b""] * 3}, Refusal.UNSAFE_SUM),
        (TRAIN, {"sealed": "text"}, Refusal.UNSAFE_SUM),
        (TRAIN, {"theta": 1.0}, Refusal.UNSAFE_SUM),  # another model for this node
        (CONFIRM, {"survivors": [0, 1]}, Refusal.UNSAFE_SUM),
        (CONFIRM, {"survivors": [1, 2, 3]}, Refusal.UNSAFE_SUM),
        (UNMASK, {"signatures": [bytes(64)] * 2}, Refusal.UNSAFE_SUM),
        (UNMASK, {"signers": [1]}, Refusal.UNSAFE_SUM),
        (UNMASK, {"key-attempt": 1}, Refusal.UNSAFE_SUM),
    ],
)
def test_a_changed_request_gets_a_code_and_the_others_go_on(
    exchange: str, change: dict[str, Any], code: Refusal, network: Machines
) -> None:
    """Node 0 is told something else in round 1; it answers with a code, and no text."""
    heard: list[Message] = []

    def send(node: int, deliver: Callable[[], Message]) -> Message | None:
        message = deliver.__defaults__[0]  # type: ignore[attr-defined]
        if node == 0 and message.metadata.message_type == "train" and told(message) == (exchange, 1):
            heard.append(deliver(tampered(message, change)))  # type: ignore[call-arg]
            return heard[-1]
        return deliver()

    network.serve(network.overrides(f"{RUN} num_rounds=1"), send)
    assert [(reply.error.code, reply.error.reason) for reply in heard] == [(code, code.name.lower())]
    assert network.booked(0) == (1 if exchange in (CONFIRM, UNMASK) else 0)


def tampered(message: Message, change: dict[str, Any]) -> Message:
    """The same message with other content; the others share theirs."""
    content = RecordDict(dict(message.content))
    if "theta" in change:
        content["arrays"] = pack_vector(unpack_vector(content) + np.float32(change["theta"]))
    else:
        content["config"] = ConfigRecord(dict(content["config"]) | change)
    changed = Message(content, message.metadata.dst_node_id, "train", group_id=message.metadata.group_id)
    stamp(changed, message.metadata.message_id)
    return changed


def test_a_node_signs_one_survivor_set_and_keeps_it_on_its_disk(network: Machines) -> None:
    """Asked again from a fresh process it says the same, and nothing to a second set."""
    answers: list[Message] = []

    def send(node: int, deliver: Callable[[], Message]) -> Message | None:
        message = deliver.__defaults__[0]  # type: ignore[attr-defined]
        reply = deliver()
        if node == 0 and message.metadata.message_type == "train" and told(message) == (CONFIRM, 1):
            answers.append(reply)
            for survivors in ([0, 1, 2, 3], [0, 1, 2]):
                answers.append(deliver(tampered(message, {SURVIVORS: survivors})))  # type: ignore[call-arg]
        return reply

    network.serve(network.overrides(f"{RUN} num_rounds=1"), send)
    first, again, second = answers
    assert bytes(first.content[CONFIRM]["0"]) == bytes(again.content[CONFIRM]["0"])  # type: ignore[index, call-overload, arg-type]
    assert second.error.code == Refusal.UNSAFE_SUM
