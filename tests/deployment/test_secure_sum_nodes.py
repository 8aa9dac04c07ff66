"""A secure sum among real policies, folders and ledgers: what a node takes part in, and what it never answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from deployed import MACHINES, Grid, Machines, asker, codes, context, refused
from flwr.app import ConfigRecord, Message, RecordDict

from fedpriv.app import server_app
from fedpriv.client.memory import ClientMemory
from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import (
    ATTEMPT,
    CLIP_NORM,
    CONFIRM,
    EXCHANGE,
    KEYS,
    ROUND,
    SHARES,
    SURVIVORS,
    TRAIN,
    UNMASK,
    Refusal,
    pack_vector,
    unpack_array,
    unpack_vector,
)
from fedpriv.deployment.policy import read_policy
from fedpriv.engines.grid import stamp
from fedpriv.secure_sum.member import Member, join
from fedpriv.secure_sum.sum_session import SumSession

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


def at_node_0(hear: Callable[[Message, Callable[..., Message]], Message | None]) -> Callable[..., Any]:
    """A network in which train messages to node 0 go to ``hear``, with what delivers them; None: as they are."""

    def send(node: int, deliver: Callable[..., Message]) -> Message:
        message = deliver.__defaults__[0]  # type: ignore[index]
        changed = hear(message, deliver) if node == 0 and message.metadata.message_type == "train" else None
        return deliver() if changed is None else changed

    return send


def losing(node: int, exchanges: tuple[str, ...], number: int = 2) -> Callable[..., Any]:
    """A network that loses one node's answers to these exchanges of a round."""

    def send(asked: int, deliver: Callable[[], Message]) -> Message | None:
        reply = deliver()
        if asked != node or reply.metadata.message_type != "train":
            return reply
        lost = {f"{number}/0/{exchange}" for exchange in exchanges}
        return None if reply.metadata.group_id in lost else reply

    return send


def test_nodes_open_a_sum_and_book_it_for_the_observer_of_sums(
    network: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose masks nobody can repeat."""
    seeds: list[bytes | None] = []

    def joined(session: SumSession, own: int, seed: bytes | None) -> Member:
        seeds.append(seed)
        return join(session, own, seed)

    monkeypatch.setattr("fedpriv.client.masked_sum.join", joined)
    grid = network.serve(network.overrides(f"{RUN} model=auto"))
    assert codes(grid) == ["sent"] * (NODES * 5 * 2)
    vectors = [unpack_array(reply.content) for _, reply in grid.answers if "arrays" in reply.content]
    assert len(vectors) == NODES * 2 and seeds == [None] * (NODES * 2)
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
    ("exchange", "change"),
    [
        (KEYS, {ATTEMPT: 2}),  # the context says attempt 0
        (KEYS, {"model-digest": bytes(31)}),
        (KEYS, {"members": [1, 2, 3]}),
        (KEYS, {"members": [0]}),
        (KEYS, {"members": [0, 1, 2, 7]}),  # 7 is nobody's peer
        (KEYS, {"members": [0, 1, 2, 3, *range(4, 205)]}),  # a sparse graph of strangers
        (KEYS, {"members": [0, 1, 1, 3]}),
        (KEYS, {"members": [0, 1, 2, True]}),
        (KEYS, {"key-attempt": "0"}),
        (SHARES, {"roster": [0, 1, 2, 9]}),
        (SHARES, {"public-keys": [bytes(160)] * 3}),
        (SHARES, {"public-keys": [1, 2, 3]}),
        (TRAIN, {"sealed": [b""] * 3}),
        (TRAIN, {"sealed": "text"}),
        (TRAIN, {"theta": 1.0}),  # another model for this node
        (CONFIRM, {"survivors": [0, 1]}),
        (CONFIRM, {"survivors": [1, 2, 3]}),
        (UNMASK, {"signatures": [bytes(64)] * 2}),
        (UNMASK, {"signers": [1]}),
        (UNMASK, {"signers": [1, 1]}),  # counted once
        (UNMASK, {"key-attempt": 1}),
    ],
)
def test_a_changed_request_gets_a_code_and_the_others_go_on(
    exchange: str, change: dict[str, Any], network: Machines
) -> None:
    """Node 0 is told something else in round 1; it answers with a code, and no text."""
    heard: list[Message] = []

    def hear(message: Message, deliver: Callable[..., Message]) -> Message | None:
        if told(message) != (exchange, 1):
            return None
        heard.append(deliver(tampered(message, change)))
        return heard[-1]

    network.serve(network.overrides(f"{RUN} num_rounds=1"), at_node_0(hear))
    assert [(reply.error.code, reply.error.reason) for reply in heard] == [(Refusal.UNSAFE_SUM, "unsafe_sum")]
    assert network.booked(0) == (1 if exchange in (CONFIRM, UNMASK) else 0)


def test_whoever_is_told_another_clip_norm_of_the_round_uploads_nothing(network: Machines) -> None:
    """Where C moves it is signed with the model: within the run's bounds it would pass otherwise."""
    heard: list[Message] = []

    def hear(message: Message, deliver: Callable[..., Message]) -> None:
        if told(message)[0] == TRAIN:
            config: Any = message.content["config"]
            heard.append(deliver(tampered(message, {CLIP_NORM: 0.9 * config[CLIP_NORM]})))

    moving = "num_rounds=1 strategy.server.clipping=quantile strategy.server.norm_bound=5.0"
    network.serve(network.overrides(f"{RUN} {moving}"), at_node_0(hear))
    assert [reply.error.code for reply in heard] == [Refusal.UNSAFE_SUM]
    assert [network.booked(number) for number in range(NODES)] == [1] * NODES


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


@pytest.mark.parametrize(
    "told_otherwise",
    [
        "clients_per_round=3 over_selection=1.3",  # another grid, with another noise
        "num_rounds=3",
        "strategy.client.noise_multiplier=2.0",
        "strategy.server.clip_norm=0.5 strategy.client.clip_norm=0.5",
        "strategy.client.colluders=1",
        "local.lr=0.9",
        "local.epochs=3",
        "seed=1",
        "privacy.delta=1.0e-6",
        "strategy=skellam strategy.secure_sum=protocol strategy.server.min_replies=3 strategy.server.threshold=3",
    ],
)
def test_whoever_is_told_other_options_is_in_no_sum_with_the_others(told_otherwise: str, network: Machines) -> None:
    """Node 0 alone: its announcement is signed over other options, so nobody shares with it, nor it with them."""
    allow(network, strategies=["ddgauss", "skellam"])
    grid = Grid(network, network.overrides(f"{RUN} num_rounds=1"), None)
    honest, other = grid.overrides, f"{grid.overrides} {told_otherwise}"
    codes_of: dict[str, set[str]] = {}

    def send(node: int, deliver: Callable[[], Message]) -> Message:
        grid.overrides = other if node == 0 else honest
        reply = deliver()
        if reply.metadata.message_type == "train":
            exchange = reply.metadata.group_id.split("/")[-1]
            codes_of.setdefault(exchange, set()).add(Refusal(reply.error.code).name if reply.has_error() else "sent")
        return reply

    grid.send = send
    with pytest.raises(RunFailed, match="0 of 4 clients have sealed their shares"):
        server_app(grid, context(0, {}, honest))  # type: ignore[arg-type]
    assert codes_of == {KEYS: {"sent"}, SHARES: {"UNSAFE_SUM"}}
    assert [network.booked(number) for number in range(NODES)] == [0] * NODES


def test_no_option_makes_a_second_set_of_keys(network: Machines) -> None:
    """What members do not sign does not lead to another state of the same run either."""
    overrides = network.overrides(f"{RUN} num_rounds=1")
    asked = {"exchange": KEYS, "members": [0, 1, 2, 3], "model-digest": bytes(32), "key-attempt": 0}
    said = [
        bytes(asker(network, f"{overrides} {more}")(1, **asked).content[KEYS]["0"])  # type: ignore[index, call-overload, arg-type]
        for more in (
            "",
            "evaluate.every=7",
            "engine.round_timeout=5",
            "operations.log_level=error",
            "checkpoint.keep=3",
        )
    ]
    assert len(set(said)) == 1
    for other in ({"members": [0, 1, 2]}, {"model-digest": bytes([1] * 32)}):  # in the same round and attempt
        assert asker(network, overrides)(1, **(asked | other)).error.code == Refusal.UNSAFE_SUM


@pytest.mark.parametrize("later", [[], [2]], ids=["at once", "after the keys of a later round"])
def test_a_node_that_is_made_to_forget_a_sum_does_not_join_it_again(
    later: list[int], network: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of other runs cost nothing. Who joins twice answers twice: a member that was named a survivor and uploaded
    nothing could be left out the second time, its key opens, and so does a first sum of fewer than the floor.
    """
    monkeypatch.setattr("fedpriv.deployment.gate.MOST_STATES", 2)
    overrides = network.overrides(f"{RUN} num_rounds=2 engine.round_timeout=1")
    asked = {"exchange": KEYS, "members": [0, 1, 2, 3], "model-digest": bytes(32), "key-attempt": 0}
    heard: list[Message] = []
    again: list[Message] = []

    def hear(message: Message, deliver: Callable[..., Message]) -> Message | None:
        if told(message)[0] == KEYS:
            heard.append(message)
        if told(message)[0] == CONFIRM and not again:
            run = str(message.content["config"]["run"])  # type: ignore[index,call-overload]
            for server_round in later:
                assert not asker(network, overrides, name=run)(server_round, **asked).has_error()
            for number in range(3):
                assert not asker(network, overrides, name=f"{number:032x}")(1, **asked).has_error()
            again.append(deliver(heard[0]))
        return None

    network.serve(overrides, at_node_0(hear))
    assert [reply.error.code for reply in again] == [Refusal.STALE]
    assert len([*(network.data(0) / ".fedpriv" / "runs").glob("*.safetensors")]) == 2


def test_no_graph_is_sought_for_members_that_nobody_knows(network: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost grows with their number, which a server would choose."""
    sought: list[int] = []

    def seek(clients: int, threshold: int | None, colluders: int) -> tuple[int, int]:
        sought.append(clients)
        return 0, 3

    monkeypatch.setattr("fedpriv.secure_sum.sum_session.graph_of", seek)
    ask = asker(network, network.overrides(f"{RUN} num_rounds=1"))
    for members in ([0, 1, 2, 8], range(5), range(20_000)):
        said = {"exchange": KEYS, "members": list(members), "model-digest": bytes(32), "key-attempt": 0}
        assert ask(1, **said).error.code == Refusal.UNSAFE_SUM
    assert sought == []


def test_two_clients_of_one_key_are_no_two_peers(network: Machines) -> None:
    peers = json.loads((network.folder / "peers.json").read_text())
    (network.folder / "peers.json").write_text(json.dumps(peers | {"9": peers["1"]}))
    assert refused(network, network.overrides(RUN)) == {"FAILED"}


def test_a_run_counts_on_as_many_colluders_as_the_policy_does(network: Machines) -> None:
    limits = yaml.safe_load(network.policy(0).read_text())["limits"]
    allow(network, limits=limits | {"min_colluders": 1})
    assert refused(network, network.overrides(RUN)) == {"POLICY"}
    grid = network.serve(network.overrides(f"{RUN} num_rounds=1 strategy.client.colluders=1", run="second"))
    assert set(codes(grid)) == {"sent"} and kept(network)["session"]["colluders"] == 1


def test_after_its_shares_a_node_keeps_its_answer_alone(network: Machines) -> None:
    """The same request gets the same bytes, every other exchange of the sum a code; no secret is left on the disk."""
    heard: dict[str, Message] = {}
    again: list[Message] = []

    def hear(message: Message, deliver: Callable[..., Message]) -> Message:
        reply, exchange = deliver(), told(message)[0]
        assert bool(secrets_of(network)) or exchange != CONFIRM
        heard[exchange] = message
        if exchange == UNMASK:
            assert not secrets_of(network)
            written = state_of(network).stat().st_ino
            again.extend([reply, *(deliver(heard[name]) for name in (UNMASK, KEYS, SHARES, CONFIRM))])
            assert state_of(network).stat().st_ino == written, "what only repeats writes nothing"
        return reply

    network.serve(network.overrides(f"{RUN} num_rounds=1"), at_node_0(hear))
    first, repeated, *others = again
    assert not first.has_error() and first.content[UNMASK] == repeated.content[UNMASK]
    assert [reply.error.code for reply in others] == [Refusal.STALE, Refusal.UNSAFE_SUM, Refusal.UNSAFE_SUM]


def test_what_a_killed_process_had_written_is_gone_when_the_secrets_are(network: Machines) -> None:
    """Killed before its bytes become the state: beside it lies a file with all keys of the sum."""
    secrets: list[bytes] = []
    replace = os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(target).parent.name == "runs":
            raise OSError
        replace(source, target)

    def hear(message: Message, deliver: Callable[..., Message]) -> Message:
        if told(message)[0] == TRAIN:
            secrets.append(kept(network)["secret"].encode())
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(os, "replace", killed)
                patched.setattr(Path, "unlink", lambda *given, **named: None)
                assert deliver().has_error()
        return deliver()

    network.serve(network.overrides(f"{RUN} num_rounds=1"), at_node_0(hear))
    files = [path for path in network.data(0).rglob("*") if path.is_file()]
    assert not [path for path in files if secrets[0] in path.read_bytes()]


def allow(network: Machines, **changes: Any) -> None:
    """From here on all policies have these entries."""
    for number in range(NODES):
        network.write_policy(number, yaml.safe_load(network.policy(number).read_text()) | changes)


def secrets_of(network: Machines) -> list[str]:
    """What node 0 keeps of a sum that would open masks."""
    state = kept(network)
    return [name for name in ("secret", "announced", "shares", "survivors") if state[name]]


def state_of(network: Machines) -> Path:
    """Node 0's file."""
    (path,) = (network.data(0)).glob("**/runs/*.safetensors")
    return path


def kept(network: Machines) -> dict[str, Any]:
    """What node 0 keeps of a sum."""
    memory = ClientMemory.from_bytes(state_of(network).read_bytes())
    assert memory.waiting is not None
    state: dict[str, Any] = json.loads(memory.waiting.tensors["sum"].numpy().tobytes())
    return state


def test_a_node_signs_one_survivor_set_and_keeps_it_on_its_disk(network: Machines) -> None:
    """Asked again from a fresh process it says the same, and nothing to a second set."""
    answers: list[Message] = []

    def hear(message: Message, deliver: Callable[..., Message]) -> Message | None:
        if told(message) != (CONFIRM, 1):
            return None
        named = ([0, 1, 2, 3], [0, 1, 2])
        answers.extend([deliver(), *(deliver(tampered(message, {SURVIVORS: survivors})) for survivors in named)])
        return answers[0]

    network.serve(network.overrides(f"{RUN} num_rounds=1"), at_node_0(hear))
    first, again, second = answers
    assert bytes(first.content[CONFIRM]["0"]) == bytes(again.content[CONFIRM]["0"])  # type: ignore[index, call-overload, arg-type]
    assert second.error.code == Refusal.UNSAFE_SUM
