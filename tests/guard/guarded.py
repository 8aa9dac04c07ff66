"""Guarded machines in one process: real policies, folders and ledgers, and a function in the place of a foreign app."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedpriv.commands.node import main as node_command
from fedpriv.common.identities import Identity, new_identity
from fedpriv.deployment.data_ledger import DataLedger
from fedpriv.deployment.policy import read_policy
from fedpriv.engines.grid import RUN_ID, identify_server, stamp
from fedpriv.guard.guarded_message import Guard
from fedpriv.guard.record import request_of
from fedpriv.guard.sandbox import Answer
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.secure_noise import SecureNoise

#: Of a policy: the budget and what of it a test may change.
LIMITS = {
    "min_noise_multiplier": 0.01,
    "max_round_epsilon": 1e9,
    "max_clip_norm": 100.0,
    "max_sampling_rate": 1.0,
    "max_batch_size": 8,
    "max_local_steps": 10,
    "max_rounds": 100,
    "min_survivors": 1,
    "max_parameters": 1000,
}
#: (message, context, rows of the shard) -> arrays, as an app would answer.
App = Callable[[Message, Context, list[str]], Any]


@dataclass
class Boxed:
    """Runs a function in the place of a foreign app, as `Sandbox`."""

    app: App
    asked: list[tuple[Message, Context, list[str]]] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)

    def __call__(self, app: Path, data: Path, limits: Any, *, confined: bool = True) -> Boxed:
        self.given.append((app, data, limits, confined))
        return self

    def __enter__(self) -> Boxed:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def ask(self, message: bytes, shard: Path | None) -> Answer:
        assert shard is not None
        rows = shard.read_text().splitlines()[1:] if shard.is_file() else sorted(file.name for file in shard.rglob("*"))
        found = (*request_of(message), rows)
        self.asked.append(found)
        answer = self.app(*found)
        return Answer(None, 0.0, answer) if isinstance(answer, str) else Answer(answer, 0.0, None)


class GuardedMachines:
    """``count`` machines with a table of 20 rows each."""

    def __init__(self, folder: Path, count: int = 1, epsilon: float = 1e6, rows: int = 20, **guard: Any) -> None:
        identify_server()
        folder.mkdir(exist_ok=True)
        self.folder, self.count, self.boxed = folder, count, Boxed(lambda *given: (np.zeros(3), np.zeros(())))
        self.source: Callable[[], NoiseSource] = SecureNoise
        self._ids = itertools.count()
        pairs = {client: new_identity() for client in range(count)}
        peers = {client: public for client, (_, public) in pairs.items()}
        self.identities = {client: Identity(private, peers) for client, (private, _) in pairs.items()}
        for client in range(count):
            self.data(client).mkdir()
            lines = [f"{client * 100 + number},{number / 10}" for number in range(rows)]
            (self.data(client) / "table.csv").write_text("\n".join(["id,x", *lines]) + "\n")
            self.write_policy(client, epsilon, **guard)
            assert node_command(["init", f"policy={self.policy(client)}", f"data={self.data(client)}"]) == 0

    def write_policy(self, client: int, epsilon: float = 1e6, **guard: Any) -> None:
        rules = {
            "apps": ["a" * 64],
            "unit": "row",
            "table": "table.csv",
            "shards": 4,
            "clip": 1.0,
            "noise_multiplier": 1.0,
            "min_answered": 0.0,  # nobody tries the function
        }
        rules = {name: value for name, value in (rules | guard).items() if value is not None}
        unit = {"row": "example"}.get(rules["unit"], rules["unit"])
        adjacency = "replace-one" if unit == "client" else "add-or-remove-one"
        observer = "secure-sum" if rules.get("noise", "own") != "own" else "server"
        budget = {"unit": unit, "delta": 1e-5, "max_epsilon": epsilon, "adjacency": adjacency, "observer": observer}
        policy = {"counter": str(self.folder / f"counters/{client}.json"), "budgets": [budget], "limits": LIMITS}
        accountant = "gaussian" if observer == "server" and rules.get("sampling", 1.0) == 1.0 else "renyi"
        self.policy(client).write_text(yaml.safe_dump(policy | {"accountant": accountant, "guard": rules}))

    def data(self, client: int) -> Path:
        return self.folder / f"data-{client}"

    def policy(self, client: int) -> Path:
        return self.folder / f"policy-{client}.yaml"

    def booked(self, client: int = 0) -> list[Any]:
        with DataLedger(self.data(client), Path(read_policy(self.policy(client)).counter)).held() as ledger:
            return ledger.releases()

    def guard(self, client: int = 0) -> Guard:
        places = self.policy(client), self.data(client), self.folder / "app", "a" * 64
        return Guard(client, *places, self.identities.get(client), self.boxed, self.source)

    def deliver(self, message: Message, client: int = 0) -> Message:
        stamp(message, f"m{next(self._ids)}")
        context = Context(RUN_ID, 7, {"policy": "secret"}, RecordDict(), {"lr": 0.1})
        reply = self.guard(client)(message, context)
        stamp(reply, f"r{next(self._ids)}")
        return reply

    def ask(self, client: int = 0, kind: str = "train", **records: Any) -> Message:
        content = RecordDict({"arrays": weights(), "config": ConfigRecord({"server-round": 1, "lr": 0.1})} | records)
        return self.deliver(Message(content, 7, kind), client)


def weights(*more: np.ndarray) -> ArrayRecord:
    found = ArrayRecord()
    for name, array in zip("wbcde", (np.arange(3.0, dtype=np.float32), np.array(5.0), *more), strict=False):
        found[name] = Array(array)
    return found


class MachinesGrid:
    """What a strategy sees of Flower's grid: these machines under node ids of their own. lose: (client, message) that
    never come back.
    """

    def __init__(self, machines: GuardedMachines, lose: Callable[[int, Message], bool] = lambda *given: False) -> None:
        self.machines, self.lose = machines, lose
        self.answers: list[tuple[int, Message]] = []

    def get_node_ids(self) -> list[int]:
        return [900 + 13 * client for client in range(self.machines.count)]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        found = []
        for message in messages:
            client = (message.metadata.dst_node_id - 900) // 13
            lost = self.lose(client, message)
            reply = self.machines.deliver(message, client)
            reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
            if not lost:
                self.answers.append((client, reply))
                found.append(reply)
        return found
