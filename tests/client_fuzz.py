"""Requests as a hostile server could send them, through the app's own adapter into every method's client half.

A client trains for real (a small model, a few pictures); it starts fresh, or in the middle of a round.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from record_fuzz import OVERSIZED, array, config_value, damaged

from fedpriv.client import key_agreement as shared_bits
from fedpriv.client.contract import BudgetSpent, StaleRequest, UnsafeClipNorm, UnsafeNoise
from fedpriv.common.messages import (
    ATTEMPT,
    CENTRES,
    CLIP_NORM,
    EXCHANGE,
    KEY_ATTEMPT,
    KEYS,
    LEAST_NORM,
    MEMBERS,
    PUBLIC_KEYS,
    RADII,
    ROUND,
    SEALED,
    SEEDS,
    SIGMA,
    SIGNATURES,
    STATISTICS,
    TRAIN,
)
from fedpriv.common.records import ARRAYS, CONFIG, MalformedMessage
from fedpriv.common.vectors import VECTOR, pack_vector
from fedpriv.config.compose import CONF, compose, group_choices
from fedpriv.config.schema import Config
from fedpriv.engines.adapter import _train
from fedpriv.engines.contexts import empty_context
from fedpriv.engines.worker import Worker, adopt

DECLARED = (BudgetSpent, StaleRequest, UnsafeClipNorm, UnsafeNoise, MalformedMessage, shared_bits.KeyRefused)
CLIENTS = 12
COMMON = (
    f"num_clients={CLIENTS}",
    "clients_per_round=4",
    "num_rounds=5",
    "dataset.train_examples=120",
)
#: Forms of a method that read more than its usual one.
FURTHER = (
    ("coqfl", "strategy.client.group_size=3", "strategy.server.group_size=3"),
    ("ldpfl", "strategy.client.encode=weights", "strategy.server.encode=weights"),
    ("fedldp", "strategy.client.clipping=quantile", "strategy.server.clipping=quantile"),
    ("fedcad", "strategy.client.clipping=adp", "strategy.server.clipping=adp"),
)
PEERS = [shared_bits.public_key(bytes([n]) * 32) for n in range(1, 4)]
#: Values that mean something, for every option that a server announces; any other value may stand there too.
OPTIONS: dict[str, tuple[Any, ...]] = {
    EXCHANGE: (TRAIN, TRAIN, STATISTICS, KEYS, SEEDS, "evaluate", "x" * 900),
    SIGMA: (0.1, 1.0, 50.0, 1e300, -0.0),
    CLIP_NORM: (1.0, 0.5, 10.0, 1e-3, 1e-320),
    LEAST_NORM: (0.0, 0.1, 1e300),
    CENTRES: ([0.0] * 2, [0.0] * 2, [1e308] * 2, [0.0, math.nan], ["a", "b"], [b"b"] * 2, [True] * 2, [0.0], []),
    RADII: ([0.1] * 2, [0.1] * 2, [1e-320] * 2, [1e308] * 2, [math.inf] * 2, [0.1, -0.1], ["a", "b"], []),
    MEMBERS: ([0, 1], [0, 1, 2], [0], [1, 0], [0, 0], [-1, 0], [0, 2**62], list(range(10_000)), [0.0, 1.0], ["0"]),
    PUBLIC_KEYS: (PEERS[:1], PEERS[:2], [b""], [b"", b""], [bytes(32)], [b"\xff" * 32], [b"\x01" * 32] * 2, ["text"]),
    SIGNATURES: ([bytes(64)], [bytes(64)] * 2, [b""], []),
    SEALED: (bytes(48), bytes(32), b"", b"x" * 4000, "text"),
    KEY_ATTEMPT: (0, 0, 1, -1, 2**62, "0", "9" * 900, True, 0.0),
}


@dataclass
class Method:
    """A configured method in this process, and memories from which its clients can start."""

    config: Config
    worker: Worker
    size: int
    starts: list[bytes | None] = field(default_factory=lambda: [None])

    def context(self, memory: bytes | None) -> Context:
        context = empty_context(1, 2, 0, CLIENTS)
        if memory is not None:
            context.state["memory"] = ConfigRecord({"blob": memory})
        return context

    def answer(self, content: RecordDict, context: Context) -> Message:
        adopt(self.config, self.worker)
        return _train(self.config, Message(content, dst_node_id=1, message_type="train"), context)


def request(arrays: ArrayRecord | None, server_round: Any, attempt: Any, **options: Any) -> RecordDict:
    content = RecordDict({CONFIG: ConfigRecord({ROUND: server_round, ATTEMPT: attempt, **options})})
    if arrays is not None:
        content[ARRAYS] = arrays
    return content


def prepare(overrides: tuple[str, ...]) -> Method:
    """The method's clients fresh, after each further exchange of round 1, and after all of it."""
    config = compose([f"strategy={overrides[0]}", *COMMON, *MODEL.get(overrides[0], MLP), *overrides[1:]])
    worker = adopt(config, Worker(config))
    client = worker.client(0, store=None)  # type: ignore[arg-type]
    layout = worker.model.layout
    down = client.exchange(layout, 1).down
    method = Method(config, worker, down.stop - down.start)
    blocks = len(layout.blocks)
    sound: dict[str, Any] = {CENTRES: [0.0] * blocks, RADII: [0.5] * blocks, MEMBERS: [0, 1], KEY_ATTEMPT: 0}
    sound |= {PUBLIC_KEYS: PEERS[:1]}
    context = method.context(None)
    for exchange in client.traits.exchanges:
        if exchange == SEEDS and config.client_options()["group_size"] == 2:
            continue
        arrays = pack_vector(np.zeros(method.size, np.float32)) if exchange == client.traits.trains_in else None
        method.answer(request(arrays, 1, 0, **sound, **{EXCHANGE: exchange}), context)
        method.starts.append(bytes(context.state["memory"]["blob"]))  # type: ignore[index,arg-type]
    return method


MLP = ("model=mlp", "model.hidden=4")
#: Of methods that take no other.
MODEL = {"fedonce": ("model=softmax",)}
METHODS = group_choices(CONF / "strategy")


def prepare_all() -> list[Method]:
    return [prepare((name,)) for name in METHODS] + [prepare(form) for form in FURTHER]


def content(rng: random.Random, size: int) -> RecordDict:
    """One request."""
    good = pack_vector(np.zeros(size, np.float32))
    kind = rng.random()
    if kind < 0.6:
        arrays: ArrayRecord | None = good
    elif kind < 0.7:
        arrays = None
    elif kind < 0.85:
        arrays = ArrayRecord({VECTOR: damaged(rng, good[VECTOR])})
    else:
        arrays = rng.choice((ArrayRecord({VECTOR: array(rng)}), pack_vector(np.zeros(rng.randrange(4000), np.float32))))
    options = {}
    for name, values in OPTIONS.items():
        if rng.random() < 0.5:
            value = rng.choice(values) if rng.random() < 0.9 else config_value(rng)
            options[name] = list(value) if isinstance(value, list) else value
    server_round = rng.choice((1, 1, 2, 2, 3, 0, 2**31 - 1)) if rng.random() < 0.95 else config_value(rng)
    found = request(arrays, server_round, rng.choice((0, 0, 0, 1, -1, 2**63 - 1)), **options)
    if rng.random() < 0.02:
        found[rng.choice((CONFIG, "other"))] = rng.choice(OVERSIZED)
    return found


def try_request(method: Method, start: int, case: RecordDict) -> bool:
    """Whether the client answered; it may refuse as declared. Anything else is raised."""
    context = method.context(method.starts[start % len(method.starts)])
    try:
        reply = method.answer(case, context)
    except DECLARED as refused:
        assert len(str(refused)) <= 400, refused
        return False
    assert reply.has_content()
    return True
