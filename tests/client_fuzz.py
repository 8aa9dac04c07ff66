"""Requests as a hostile server could send them, through the app's own adapter into every method's client half.

A client trains for real (a small model, a few pictures); it starts fresh, or in the middle of a round.
"""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from record_fuzz import array, config_value, damaged, oversized

from fedpriv.client.contract import BudgetSpent, UnsafeClipNorm, UnsafeNoise
from fedpriv.client.masked_sum import _simulated
from fedpriv.client.memory import ClientMemory, ContextStore, StaleRequest
from fedpriv.common import identities
from fedpriv.common.identities import Identity
from fedpriv.common.messages import (
    ARRAYS,
    ATTEMPT,
    CENTRES,
    CLIP_NORM,
    CONFIG,
    CONFIRM,
    EXCHANGE,
    KEY_ATTEMPT,
    KEYS,
    LEAST_NORM,
    MEMBERS,
    MODEL_DIGEST,
    PUBLIC_KEYS,
    RADII,
    ROSTER,
    ROUND,
    SEALED,
    SEEDS,
    SHARES,
    SIGMA,
    SIGNATURES,
    SIGNERS,
    STATISTICS,
    SURVIVORS,
    TRAIN,
    UNMASK,
    VECTOR,
    MalformedMessage,
    pack_vector,
)
from fedpriv.common.replies import read_blobs
from fedpriv.config.compose import CONF, compose
from fedpriv.config.own_options import group_choices
from fedpriv.config.schema import Config
from fedpriv.engines.grid import empty_context
from fedpriv.engines.worker import Worker, _train, adopt
from fedpriv.secure_sum.member import Member, join
from fedpriv.secure_sum.sum_session import SumRefused

DECLARED = (
    *(BudgetSpent, StaleRequest, UnsafeClipNorm, UnsafeNoise, MalformedMessage, identities.KeyRefused),
    SumRefused,
)
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
    ("ddgauss", "strategy.secure_sum=protocol", "strategy.client.noise_multiplier=1"),
)
PEERS = [identities.public_key(bytes([n]) * 32) for n in range(1, 4)]
#: Values that mean something, for every option that a server announces; any other value may stand there too.
OPTIONS: dict[str, tuple[Any, ...]] = {
    EXCHANGE: (TRAIN, TRAIN, STATISTICS, KEYS, SEEDS, SHARES, CONFIRM, UNMASK, "evaluate", "x" * 900),
    SIGMA: (0.1, 1.0, 50.0, 1e300, -0.0),
    CLIP_NORM: (1.0, 0.5, 10.0, 1e-3, 1e-320),
    LEAST_NORM: (0.0, 0.1, 1e300),
    CENTRES: ([0.0] * 2, [0.0] * 2, [1e308] * 2, [0.0, math.nan], ["a", "b"], [b"b"] * 2, [True] * 2, [0.0], []),
    RADII: ([0.1] * 2, [0.1] * 2, [1e-320] * 2, [1e308] * 2, [math.inf] * 2, [0.1, -0.1], ["a", "b"], []),
    MEMBERS: ([0, 1], [0, 1, 2], [0], [1, 0], [0, 0], [-1, 0], [0, 2**62], list(range(10_000)), [0.0, 1.0], ["0"]),
    PUBLIC_KEYS: (
        *(PEERS[:1], PEERS[:2], [b""], [b"", b""], [bytes(32)], [b"\xff" * 32], [b"\x01" * 32] * 2, ["text"]),
        *([bytes(160)], [b"\x09" * 160], [bytes(160)] * 2),
    ),
    SIGNATURES: ([bytes(64)], [bytes(64)] * 2, [b""], []),
    SEALED: (bytes(48), bytes(32), b"", b"x" * 4000, "text", [bytes(82)], [b""], [bytes(82)] * 2, [1]),
    ROSTER: ([0, 1], [0], [1], [0, 1, 2], [1, 0], [0, 0], [0, 2**62], [0.0, 1.0], [True, False], "0"),
    SURVIVORS: ([0, 1], [0, 1], [0], [1], [0, 1, 2], [1, 0], list(range(10_000)), [-1, 0], ["0"], 0),
    SIGNERS: ([1], [0], [1, 1], [2], [0, 1], [], [1.0], "1"),
    MODEL_DIGEST: (bytes(32), bytes(31), b"", "0" * 32, 0),
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
            ContextStore(context).write(memory)
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
    down = client.layers(layout, 1).down
    method = Method(config, worker, client.traits.vectors_down * (down.stop - down.start))
    if config.strategy.secure_sum == "protocol":
        return prepare_sum(method)
    blocks = len(layout.blocks)
    sound: dict[str, Any] = {CENTRES: [0.0] * blocks, RADII: [0.5] * blocks, MEMBERS: [0, 1], KEY_ATTEMPT: 0}
    sound |= {PUBLIC_KEYS: PEERS[:1]}
    context = method.context(None)
    for exchange in type(client).traits.exchanges:
        if exchange == SEEDS and config.strategy.options.group_size == 2:
            continue
        arrays = pack_vector(np.zeros(method.size, np.float32)) if exchange == client.traits.trains_in else None
        method.answer(request(arrays, 1, 0, **sound, **{EXCHANGE: exchange}), context)
        method.starts.append(ContextStore(context).read())
    return method


def prepare_sum(method: Method) -> Method:
    """Clients after each exchange of a sum of two, with a peer that does what it must."""
    theta, context = np.zeros(method.size, np.float32), method.context(None)

    def ask(arrays: ArrayRecord | None, **options: Any) -> tuple[Member, Message]:
        reply = method.answer(request(arrays, 1, 0, **{KEY_ATTEMPT: 0}, **options), context)
        method.starts.append(ContextStore(context).read())
        waiting = ClientMemory.from_bytes(method.starts[-1]).waiting  # type: ignore[arg-type]
        assert waiting is not None
        return Member.from_bytes(waiting.tensors["sum"].numpy().tobytes()), reply

    digest = hashlib.sha256(theta.tobytes()).digest()
    member, reply = ask(None, **{EXCHANGE: KEYS, MEMBERS: [0, 1], MODEL_DIGEST: digest})
    seeds = [_simulated(method.config.seed, client) for client in (0, 1)]
    identity = Identity(seeds[1][0], {client: public for client, (_, public) in enumerate(seeds)})
    peer, announced = join(member.session, 1, b"peer"), read_blobs(reply, KEYS)
    peer, sealed = peer.share_out([0, 1], {0: announced[0]}, identity)
    _, reply = ask(None, **{EXCHANGE: SHARES, ROSTER: [0, 1], PUBLIC_KEYS: [peer.announce(identity)]})
    ask(pack_vector(theta), **{SEALED: [sealed[0]]})
    zeros = np.zeros(member.session.size, np.uint32)
    peer, _ = peer.mask({0: read_blobs(reply, SHARES)[0]}, zeros, theta.tobytes())
    peer, signature = peer.confirm([0, 1], identity, 1)
    ask(None, **{EXCHANGE: CONFIRM, SURVIVORS: [0, 1]})
    ask(None, **{EXCHANGE: UNMASK, SIGNERS: [1], SIGNATURES: [signature]})
    return method


MLP = ("model=mlp", "model.hidden=4")
#: Of methods that take no other.
MODEL = {"fedonce": ("model=softmax",), "ask": ("model=constant",), "moments": ("model=moments",)}
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
        found[rng.choice((CONFIG, "other"))] = rng.choice(oversized())
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
