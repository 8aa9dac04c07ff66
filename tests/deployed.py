"""A deployment in one process: real policies, folders, ledgers and messages, and no Flower runtime between them.

Every message meets a fresh context, as from a SuperNode whose ClientApp is a new process each time.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key
from flwr.app import Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from PIL import Image

from deploy.rehearsal import free_ports
from fedpriv.app import client_app, server_app
from fedpriv.commands.node import main as node_command
from fedpriv.common.errors import RunFailed
from fedpriv.common.identities import new_identity
from fedpriv.common.messages import RUN, Refusal, Request, pack_vector
from fedpriv.common.replies import train_content
from fedpriv.config.remote import compose_remote_text
from fedpriv.deployment.data_ledger import DataLedger
from fedpriv.deployment.gate import Node, model_size
from fedpriv.deployment.policy import read_policy
from fedpriv.deployment.superlink_gate import Gate, Limits
from fedpriv.engines.grid import RUN_ID, identify_server, stamp
from fedpriv.server.round import BudgetsSpent

CLASSES = ("a", "b", "c")
#: Of a policy for these tests; `Machines` fills in the counter.
POLICY: dict[str, Any] = {
    "budgets": [{"unit": "client", "delta": 1e-5, "max_epsilon": 100.0}],
    "strategies": ["fedcad", "fedldp"],
    "bundles": [],
    "limits": {
        "min_noise_multiplier": 0.5,
        "max_round_epsilon": 50.0,
        "max_clip_norm": 5.0,
        "max_sampling_rate": 0.6,
        "max_batch_size": 8,
        "max_local_steps": 10,
        "max_rounds": 10,
    },
}
#: A message from the server to a node; returns the answer, or None for one that is lost.
Send = Callable[[int, Callable[[], Message]], Message | None]


class Machines:
    """``count`` nodes with 12 pictures of ``side`` x ``side`` each, and the server's test pictures, in ``folder``."""

    def __init__(self, folder: Path, count: int = 3, policy: dict[str, Any] | None = None, side: int = 4) -> None:
        self.folder, self.count, self.side = folder, count, side
        self.write_data()
        for number in range(count):
            self.write_policy(number, policy or POLICY)
            assert self.command("init", number, *self.declared(number)) == 0

    def write_data(self) -> None:
        rng, side = np.random.default_rng(0), self.side
        for place in [self.data(number) for number in range(self.count)] + [self.folder / "server"]:
            for label, name in enumerate(CLASSES):
                (place / name).mkdir(parents=True)
                for number in range(4):
                    pixels = rng.integers(0, 60, (side, side)) + 90 * label
                    Image.fromarray(pixels.astype(np.uint8)).save(place / name / f"{number}.png")

    def declared(self, number: int) -> tuple[str, ...]:
        """Options of a node's `init`."""
        return f"classes={','.join(CLASSES)}", f"size={self.side}", "channels=1"

    def data(self, number: int) -> Path:
        return self.folder / f"data-{number}"

    def policy(self, number: int) -> Path:
        return self.folder / f"policy-{number}.yaml"

    def write_policy(self, number: int, policy: dict[str, Any]) -> None:
        import yaml

        counter = {"counter": str(self.folder / f"counters/{number}.json")}
        self.policy(number).write_text(yaml.safe_dump(counter | policy))

    def command(self, name: str, number: int, *options: str) -> int:
        """`python -m fedpriv.node`."""
        return node_command([name, f"policy={self.policy(number)}", f"data={self.data(number)}", *options])

    def ledger(self, number: int) -> DataLedger:
        return DataLedger(self.data(number), Path(read_policy(self.policy(number)).counter))

    def booked(self, number: int) -> int:
        """How many messages this node's ledger holds."""
        with self.ledger(number).held() as ledger:
            return len(ledger.releases())

    def introduce(self) -> None:
        """From here on every node's client has an identity, and the list of all others'."""
        keys = [new_identity() for _ in range(self.count)]
        (self.folder / "peers.json").write_text(json.dumps({n: public.hex() for n, (_, public) in enumerate(keys)}))
        for number, (private, _) in enumerate(keys):
            (self.folder / f"identity-{number}.key").write_bytes(private)

    def overrides(self, *more: str, run: str = "run") -> str:
        own = (
            f"strategy=fedldp dataset=on_nodes model=linear dataset.size={self.side} dataset.channels=1",
            f"dataset.classes=[{','.join(CLASSES)}] dataset.examples=[{','.join(['12'] * self.count)}]",
            f"dataset.test_root={self.folder / 'server'} run_dir={self.folder / run}",
            f"num_clients={self.count} clients_per_round={self.count} num_rounds=2",
            "local.batch_size=4 strategy.client.noise_multiplier=2.0 engine.round_timeout=60 operations.report=false",
        )
        return " ".join((*own, *more))

    def serve(self, overrides: str, send: Send | None = None, away: Iterable[int] = ()) -> Grid:
        """One `flwr run`: the ServerApp on a grid of these nodes, some ``away``; returns it with its answers."""
        grid = Grid(self, overrides, send)
        grid.away = set(away)
        server_app(grid, context(0, {}, overrides))  # type: ignore[arg-type]
        return grid


class Grid:
    """What a ServerApp sees of SuperNodes. answers: (node, reply) in the order of arrival."""

    def __init__(self, machines: Machines, overrides: str, send: Send | None) -> None:
        identify_server()
        self.machines, self.overrides = machines, overrides
        self.send = send or (lambda node, deliver: deliver())
        self.answers: list[tuple[int, Message]] = []
        self.away: set[int] = set()
        self._waiting: list[Message] = []
        self._ids = itertools.count(1)

    def get_node_ids(self) -> list[int]:
        return [700 + 11 * number for number in range(self.machines.count) if number not in self.away]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, name=f"site-{place}") for place, node in enumerate(self.get_node_ids())]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        self._waiting += self.send_and_receive(sent)
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found, self._waiting = self._waiting, []
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        found = []
        for message in messages:
            number = (message.metadata.dst_node_id - 700) // 11
            stamp(message, f"m{next(self._ids)}")
            reply = self.send(number, lambda message=message, number=number: self.deliver(number, message))
            if reply is not None:
                self.answers.append((number, reply))
                found.append(reply)
        return found

    def deliver(self, number: int, message: Message) -> Message:
        """The node's answer, from a context that knows its node-config and nothing else."""
        config = {
            "partition-id": number,
            "policy": str(self.machines.policy(number)),
            "data": str(self.machines.data(number)),
        }
        if (identity := self.machines.folder / f"identity-{number}.key").exists():
            config |= {"identity-key": str(identity), "peer-keys": str(self.machines.folder / "peers.json")}
        reply = client_app(message, context(message.metadata.dst_node_id, config, self.overrides))
        stamp(reply, f"r{next(self._ids)}")
        return reply


async def healthy(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers everything with 200."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


def _is_of(key: bytes, known: Sequence[bytes]) -> bool:
    """Whether a public key (PEM) is one of these (in OpenSSH's form)."""
    return load_pem_public_key(key) in map(load_ssh_public_key, known)


@contextmanager
def gate_by_tls(keys: Path, control: bool = False, registered: Sequence[str] | None = None) -> Iterator[str]:
    """uvicorn behind TLS with the gate, as the SuperLink has them; its address. keys: the server's folder. control: the
    other of the two ports. registered: nodes whose keys are; None: all.
    """
    known = None if registered is None else [(keys.parent / node / "node.pub").read_bytes() for node in registered]
    (port,) = free_ports(1)
    gate = Gate(
        healthy,
        ("127.0.0.1", port if control else 1),
        Limits(2**20, 2, 8),
        lambda key: known is None or _is_of(key, known),
    )
    files = {f"ssl_{name}file": str(keys / f"server.{end}") for name, end in (("cert", "crt"), ("key", "key"))}
    config = uvicorn.Config(gate, "127.0.0.1", port, lifespan="off", log_config=None, **files)  # type: ignore[arg-type]
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield f"localhost:{port}"
    running.should_exit = True
    thread.join()


#: What the fixture `machines` is.
MACHINES = Callable[..., Machines]


def context(node: int, config: dict[str, Any], overrides: str) -> Context:
    return Context(
        run_id=RUN_ID, node_id=node, node_config=config, state=RecordDict(), run_config={"overrides": overrides}
    )


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


def asker(network: Machines, overrides: str, name: str = 32 * "c") -> Callable[..., Message]:
    """``ask(round, attempt, **options)``: what a server may send to node 0 in a run, and the answer."""
    grid = Grid(network, overrides, None)
    with network.ledger(0).seen() as ledger:
        own = Node(0, network.policy(0), network.data(0)).effective(compose_remote_text(overrides), ledger.declared())
    size = model_size(own)

    def ask(server_round: int, attempt: int = 0, **options: Any) -> Message:
        theta = pack_vector(np.zeros(min(size, 100_000), np.float32))
        content = train_content(theta, Request(server_round, attempt, {RUN: name} | options))
        message = Message(content, 700, "train", group_id="1")
        stamp(message, "asked")
        return grid.deliver(0, message)

    return ask
