"""Planned faults of a simulation (`engine.faults`): what goes wrong with a client's part in a round, and how.

| kind | what happens | does it release, and is that booked? |
|---|---|---|
| drop_before | the client never hears of the round | no |
| raise | it raises before anything of its work is written | no |
| kill | the process that runs it dies; it is asked again under the next attempt | once, by the second process |
| disk_full | its disk is full | no: nothing may leave that is not booked |
| non_finite_update | its examples are NaN (of text: its parameters), and so is its update | yes, as a noised zero |
| drop | the reply is lost | yes |
| slow | the reply comes after the deadline; the simulation does not wait for it | yes |
| corrupt, oversized, wrong_shape, not_finite | the reply is damaged on its way | yes |
| stale | the reply names an earlier round | yes |
| replayed | in the reply's place comes one of an earlier round | no |
| duplicate | the reply comes twice (Flower's own runtime lets only one through) | yes |
| clock_jump | the wall clock jumps by hours between request and reply | yes |

A list names rounds, clients and exchanges. A plan draws them from (seed, round, client), so that all engines have the
same faults; a client that is gone in one exchange of a round stays away from its later ones. On ray, `kill` really ends
the worker, and the clients of its batch are asked again as well.
"""

from __future__ import annotations

import errno
import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedpriv.client.base import Client
from fedpriv.client.build import exchanges_of, num_parameters
from fedpriv.client.memory import ClientMemory, MemoryStore
from fedpriv.common.messages import (
    ARRAYS,
    ATTEMPTS_PER_START,
    VECTOR,
    Refusal,
    Request,
    label,
    most_bytes,
    pack_vector,
    refusal,
    unpack_array,
)
from fedpriv.common.replies import read_label
from fedpriv.common.seeds import generator
from fedpriv.config.schema import Config, FaultPlan
from fedpriv.server.nodes import ClientGrid, Nodes
from fedpriv.training.sequential import LocalData

#: Behind these, a client is not heard of again in the round.
GONE = ("drop_before", "drop", "slow")
DAMAGE = ("corrupt", "oversized", "wrong_shape", "not_finite")
#: Seconds of a jump of the wall clock; Flower's runtime drops messages that seem twelve hours old.
JUMP = 6 * 3600.0

#: Lets a client answer: under this request, after the change.
Answer = Callable[[Request, Callable[[Client], None]], Message]


class PlannedFault(Exception):
    """What a client of kind ``raise`` raises."""


def planned(config: Config, exchanges: Sequence[str], client: int, number: int, exchange: str) -> str | None:
    """The kind of fault that `engine.faults` has for a client in an exchange of round ``number``, if any.

    exchanges: those of the method, in order.
    """
    faults = config.engine.faults
    if not isinstance(faults, FaultPlan):
        here = (number, client, exchange)
        return next((fault.kind for fault in faults if (fault.round, fault.client, fault.exchange) == here), None)
    kind, where = drawn(config.seed, faults, exchanges, client, number)
    if kind is None or exchange == where:
        return kind
    later = exchange in exchanges and exchanges.index(exchange) > exchanges.index(where)
    return "drop_before" if kind in GONE and later else None


def drawn(seed: int, plan: FaultPlan, exchanges: Sequence[str], client: int, number: int) -> tuple[str | None, str]:
    """(kind or None, exchange) of a client's fault in round ``number``: any kind and exchange are equally likely."""
    rng = generator(seed, number, client, "fault")
    happens = rng.random() < plan.rate
    kind, where = plan.kinds[int(rng.integers(len(plan.kinds)))], exchanges[int(rng.integers(len(exchanges)))]
    return kind if happens else None, where


def with_faults(config: Config, client: int, message: Message, request: Request, answer: Answer) -> Message:
    """A client's reply, under the fault that is planned for it if there is one. Raises what the client would raise."""
    kind = planned(config, exchanges_of(config), client, request.round, request.exchange)
    raised = PlannedFault(f"engine.faults: client {client} raises in round {request.round}")
    if kind == "drop_before":
        return refusal(Refusal.LOST, message)
    if kind == "replayed":
        return _of_an_earlier_round(Message(RecordDict(dict(message.content)), reply_to=message), request)
    if kind == "clock_jump":
        message.metadata.created_at += JUMP if request.round % 2 else -JUMP
    if kind == "kill" and request.attempt % ATTEMPTS_PER_START == 0:
        if config.engine.name == "ray":
            os.kill(os.getpid(), signal.SIGKILL)
        request = replace(request, attempt=request.attempt + 1)
    changes: dict[str, Callable[[Client], None]] = {
        "raise": partial(_breaking, error=raised),
        "disk_full": partial(_breaking, error=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
        "non_finite_update": _with_poison,
    }
    reply = answer(request, changes.get(str(kind), lambda client: None))
    if kind == "raise":  # an exchange in which a client neither trains nor writes
        raise raised
    if kind in ("drop", "slow"):
        return refusal(Refusal.LOST if kind == "drop" else Refusal.LATE, message)
    if kind == "stale":
        return _of_an_earlier_round(reply, request)
    if kind is not None and kind in DAMAGE:
        damage(kind, reply.content, config)
    return reply


# --- inside the client -----------------------------------------------------------------------------------


def _breaking(client: Client, error: Exception) -> None:
    """Whatever the client has done is lost with the error, before any of it is written or sent."""
    assert client.site is not None
    client.site = replace(client.site, store=_Broken(client.site.store, error))


def _with_poison(client: Client) -> None:
    site = client.site
    assert site is not None

    if site.trainer.model.vocabulary is not None:  # no token id is NaN: the parameters that it trains from are
        trainer = copy(site.trainer)
        trainer.model = copy(trainer.model)
        trainer.model.load = lambda theta: trainer.model.theta.fill_(torch.nan)  # type: ignore[assignment, method-assign, return-value]
        client.site = replace(site, trainer=trainer)
        return

    def load_data(*rows: Any) -> LocalData:
        data = site.load_data(*rows)
        return replace(data, inputs=torch.full_like(data.inputs, torch.nan))

    client.site = replace(site, load_data=load_data)


class _Broken:
    """A store that can be read and not written."""

    def __init__(self, store: MemoryStore, error: Exception) -> None:
        self.store, self.error = store, error

    def read(self) -> bytes | None:
        return self.store.read()

    def keep(self, memory: ClientMemory) -> None:
        raise self.error


# --- on the way ------------------------------------------------------------------------------------------


def _of_an_earlier_round(reply: Message, request: Request) -> Message:
    _, _, exchange = read_label(reply.metadata.group_id)
    reply.metadata.group_id = label(request.round - 1, request.attempt, exchange)
    return reply


def damage(kind: str, content: RecordDict, config: Config) -> None:
    """Damages a reply's content in place: its array, or the one record that it has instead."""
    if kind == "oversized":
        content["more"] = ConfigRecord({"more": bytes(1 + most_bytes(num_parameters(config)))})
    elif ARRAYS in content:
        content[ARRAYS] = _damaged_array(kind, content)
    else:
        name, record = next(iter(content.items()))
        content[name] = _damaged_record(kind, record)


def _damaged_array(kind: str, content: RecordDict) -> ArrayRecord:
    good = unpack_array(content)
    if kind == "wrong_shape":
        return pack_vector(good[:-1])
    if kind == "not_finite":
        return pack_vector(np.full(good.shape, np.nan, np.float32))
    whole: Any = content[ARRAYS][VECTOR]  # type: ignore[call-overload, index]
    half = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=whole.data[: len(whole.data) // 2])
    return ArrayRecord({VECTOR: half})


def _damaged_record(kind: str, record: Any) -> ArrayRecord | ConfigRecord | MetricRecord:
    """Of statistics or of byte strings."""
    if kind == "corrupt":
        return ArrayRecord()
    if kind == "not_finite":
        return type(record)(dict.fromkeys(record, math.nan))  # type: ignore[no-any-return]
    return MetricRecord() if isinstance(record, MetricRecord) else ConfigRecord({"1": b""})


class _Doubling:
    """A grid on which planned replies come twice; in all else the grid that it stands for."""

    in_order = True
    carries_cohorts = False

    def __init__(self, grid: ClientGrid, config: Config, exchanges: Sequence[str]) -> None:
        self._grid, self._config, self._exchanges = grid, config, exchanges
        self.unnamed = grid.unnamed

    def nodes(self) -> Nodes:
        return self._grid.nodes()

    def client_of(self, node: int) -> int:
        return self._grid.client_of(node)

    def receive(self, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
        for reply in self._grid.receive(messages, timeout):
            yield reply
            client = self._grid.client_of(reply.metadata.src_node_id)
            number, _, exchange = read_label(reply.metadata.group_id)
            if planned(self._config, self._exchanges, client, number, exchange) == "duplicate":
                yield reply


def doubling(grid: ClientGrid, config: Config, exchanges: Sequence[str]) -> ClientGrid:
    """The grid with the planned duplicates; the grid itself where there are none, or where it is Flower's."""
    faults = config.engine.faults
    kinds = faults.kinds if isinstance(faults, FaultPlan) else [fault.kind for fault in faults]
    if "duplicate" not in kinds or not grid.in_order:
        return grid
    return _Doubling(grid, config, exchanges)
