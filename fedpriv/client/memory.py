"""What a client keeps between participations, as named tensors, read and written through one of two stores. It never
leaves the client.

A `ClientMemory` holds the method's own state, the ledger entries that were not collected yet, and the account of
all releases so far, and the last reply. It is read and written as a whole: entries, state, account and reply of a
participation become visible in one step or not at all.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from numpy.typing import NDArray
from safetensors.numpy import load, save
from torch import Tensor

from fedpriv.common.errors import FedprivError
from fedpriv.common.files import write_atomic
from fedpriv.common.messages import STATISTICS, Request, place
from fedpriv.privacy.events import Account, Entry, account_from_bytes, account_to_bytes, entry_from_json, entry_to_json

_RECORD, _BLOB = "memory", "blob"  # where Context.state holds a client's memory
_ACCOUNT, _UNCOLLECTED = "account", "uncollected"  # where the blob holds what is no tensor
WAITING = "waiting"
_ANSWERED, _RELEASE, _STATISTICS, _KEPT = "answered", "release", "statistics", "kept"


class StaleRequest(FedprivError):
    """A request for a round before the last answered one: its noise may have been used; nothing was released."""


@dataclass(frozen=True)
class WithNorms:
    """State of a client that also remembers the norms of its own updates: the method's state, norms [..., n]."""

    method: Any
    norms: Tensor


_NORMS = "own_norms"  # where a memory holds them, beside the method's own state


def state_to_tensors(state: Any) -> dict[str, Tensor] | None:
    """A method's state (a frozen dataclass of tensors, floats and ints, or None) as named tensors."""
    if state is None:
        return None
    if isinstance(state, WithNorms):
        return {**(state_to_tensors(state.method) or {}), _NORMS: state.norms}
    if not is_dataclass(state):
        raise TypeError(f"a client's state is a dataclass, not {type(state).__name__}")
    tensors = {}
    for item in fields(state):
        value = getattr(state, item.name)
        if not isinstance(value, Tensor):
            value = torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)
        tensors[item.name] = value
    return tensors


def tensors_to_state(kind: type[Any] | None, tensors: dict[str, Tensor] | None) -> Any:
    """The inverse, for a method whose state is a ``kind`` (None: it has none): annotations ``int`` and ``float`` come
    back as numbers, everything else as tensors.
    """
    if tensors is not None and _NORMS in tensors:
        own = {name: tensor for name, tensor in tensors.items() if name != _NORMS}
        return WithNorms(tensors_to_state(kind, own or None), tensors[_NORMS])
    if tensors is None or kind is None:
        return None
    values: dict[str, Any] = {}
    for item in fields(kind):
        value = tensors[item.name]
        values[item.name] = value.item() if item.type in ("int", "float", int, float) else value
    return kind(**values)


@dataclass(frozen=True)
class Answer:
    """The last release and the request it answered. While its round is open, the same request gets the same bytes again
    (one release); an older one, and any of a closed round, is refused: its noise may have been used already.
    """

    round: int
    attempt: int
    release: Tensor | None  # float32 [d]; None once the round is closed
    statistics: Tensor | None = None  # float64 [k] that left beside it

    def closed(self) -> Answer:
        """What is kept of it once a simulation's round has ended: of 10^5 clients releases would be gigabytes."""
        return Answer(self.round, self.attempt, None)


@dataclass(frozen=True)
class Waiting:
    """What a client keeps between two exchanges of a round: a raw update, a private key; tensors by name."""

    round: int
    attempt: int
    tensors: dict[str, Tensor]
    figures: dict[str, float] = field(default_factory=dict)  # for the experimenter


@dataclass(frozen=True)
class ClientMemory:
    """One client's memory.

    state: tensors by name (float32 [d] vectors, float64 scalars) of the method's own state, None before the first
    participation. account: everything released so far. uncollected: entries that the run's ledger has not merged yet.
    answer: the last release, None before the first participation. kept: the layers of the model that stay with the
    client (float32 [d_kept]), None before the first participation and for methods that share all layers. waiting: what
    the second exchange of a round needs of the first.
    """

    state: dict[str, Tensor] | None = None
    account: Account = field(default_factory=Account)
    uncollected: tuple[Entry, ...] = ()
    answer: Answer | None = None
    kept: Tensor | None = None
    waiting: Waiting | None = None

    def after(
        self,
        state: dict[str, Tensor] | None,
        entries: Sequence[Entry],
        answer: Answer | None = None,
        kept: Tensor | None = None,
        waiting: Waiting | None = None,
    ) -> ClientMemory:
        """The memory after one more release with these ledger entries."""
        uncollected = (*self.uncollected, *entries)
        return ClientMemory(state, self.account.after(entries), uncollected, answer, kept, waiting)

    def collected(self) -> ClientMemory:
        """The memory after its entries were taken, and its round is closed."""
        return replace(self, uncollected=(), answer=self.answer and self.answer.closed())

    def of(self, client: int, row: int | None) -> ClientMemory:
        """A memory that several clients share as one of them has it. row: its own of state and answer."""
        entries = tuple(replace(entry, client=client) for entry in self.uncollected)
        if row is None:
            return replace(self, uncollected=entries)
        answer, state = self.answer, self.state
        if answer is not None and answer.release is not None:
            beside = None if answer.statistics is None else answer.statistics[row]
            answer = replace(answer, release=answer.release[row], statistics=beside)
        if state is not None:
            state = {name: part[row] if part.ndim else part for name, part in state.items()}
        return replace(self, state=state, uncollected=entries, answer=answer)

    @property
    def is_open(self) -> bool:
        """Whether its round is: then a repeated request gets the same bytes."""
        return self.answer is not None and self.answer.release is not None

    def tensors(self) -> Iterator[Tensor]:
        """All that it holds."""
        for named in (self.state, self.waiting and self.waiting.tensors):
            yield from (named or {}).values()
        if self.answer is not None:
            yield from (part for part in (self.answer.release, self.answer.statistics) if part is not None)
        if self.kept is not None:
            yield self.kept

    @property
    def plain(self) -> tuple[Any, ...] | None:
        """Equal for equal memories; None where one holds tensors or entries."""
        if self.uncollected or self.waiting is not None or next(self.tensors(), None) is not None:
            return None
        return self.account.key, self.answer and (self.answer.round, self.answer.attempt), self.state is None

    @property
    def num_bytes(self) -> int:
        """What it takes in memory, about."""
        return 512 + sum(tensor.nbytes for tensor in self.tensors())

    def alone(self) -> ClientMemory:
        """The same memory, which keeps no larger tensor alive: its own are views of no cohort's."""
        if all(map(_is_alone, self.tensors())):
            return self
        waiting, answer = self.waiting, self.answer
        return replace(
            self,
            state=_all_alone(self.state) if self.state else self.state,
            answer=answer and replace(answer, release=_alone(answer.release), statistics=_alone(answer.statistics)),
            kept=_alone(self.kept),
            waiting=waiting and replace(waiting, tensors=_all_alone(waiting.tensors)),
        )

    def to_bytes(self) -> bytes:
        """safetensors of the `arrays`; no pickle."""
        return save(self.arrays())

    @classmethod
    def from_bytes(cls, blob: bytes) -> ClientMemory:
        return cls.from_arrays(load(blob))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything by name: tensors, and JSON texts as uint8."""
        uncollected = json.dumps([entry_to_json(entry) for entry in self.uncollected]).encode()
        arrays = {_ACCOUNT: _as_array(account_to_bytes(self.account)), _UNCOLLECTED: _as_array(uncollected)}
        if self.answer is not None:
            arrays[_ANSWERED] = np.array([self.answer.round, self.answer.attempt])
            if self.answer.release is not None:
                arrays[_RELEASE] = np.ascontiguousarray(self.answer.release.numpy())
            if self.answer.statistics is not None:
                arrays[_STATISTICS] = self.answer.statistics.numpy()
        if self.kept is not None:
            arrays[_KEPT] = np.ascontiguousarray(self.kept.numpy())
        if self.waiting is not None:
            place = {"round": self.waiting.round, "attempt": self.waiting.attempt, "figures": self.waiting.figures}
            arrays[WAITING] = _as_array(json.dumps(place).encode())
            for name, value in self.waiting.tensors.items():
                arrays[f"{WAITING}.{name}"] = np.ascontiguousarray(value.numpy())
        for name, value in (self.state or {}).items():
            arrays[f"state.{name}"] = np.asarray(value.contiguous().numpy())
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> ClientMemory:
        """The inverse of `arrays`, which it empties."""
        account = account_from_bytes(arrays.pop(_ACCOUNT).tobytes())
        uncollected = json.loads(arrays.pop(_UNCOLLECTED).tobytes())
        answer = None
        if _ANSWERED in arrays:
            server_round, attempt = arrays.pop(_ANSWERED).tolist()
            left = (arrays.pop(name, None) for name in (_RELEASE, _STATISTICS))
            answer = Answer(server_round, attempt, *(None if one is None else torch.from_numpy(one) for one in left))
        kept = torch.from_numpy(arrays.pop(_KEPT)) if _KEPT in arrays else None
        waiting = None
        if WAITING in arrays:
            place = json.loads(arrays.pop(WAITING).tobytes())
            names = [name for name in arrays if name.startswith(f"{WAITING}.")]
            tensors = {name.removeprefix(f"{WAITING}."): torch.from_numpy(arrays.pop(name)) for name in names}
            waiting = Waiting(place["round"], place["attempt"], tensors, place["figures"])
        state = {name.removeprefix("state."): torch.from_numpy(value) for name, value in arrays.items()}
        entries = tuple(entry_from_json(entry) for entry in uncollected)
        return cls(state or None, account, entries, answer, kept, waiting)


def _is_alone(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() <= 2 * tensor.nbytes + 64


def _alone(tensor: Any) -> Any:
    return tensor.clone() if tensor is not None and not _is_alone(tensor) else tensor


def _all_alone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: _alone(tensor) for name, tensor in tensors.items()}


def _as_array(text: bytes) -> NDArray[np.generic]:
    return np.frombuffer(text, dtype=np.uint8)


class MemoryStore(Protocol):
    """Where one client's memory lies."""

    def read(self) -> bytes | None: ...

    def keep(self, memory: ClientMemory) -> None:
        """Writes it as a whole, after whatever must be booked elsewhere first."""


@dataclass
class Block:
    """A memory whose tensors have a row for each of some clients, of which so many still share it."""

    memory: ClientMemory
    clients: Sequence[int]
    live: int


class Shelf:
    """Memories of simulated clients as they are: bytes only where one travels or is written down.

    Clients that remember the same but for vectors share one object, whose entries stand for those of each, and whose
    state and answer have a row for each: [clients, ...]. Once less than half of them still share it, what is left is
    taken apart: at most half of the rows are nobody's. Between rounds all who remember the same, and no vectors, share
    one object, whichever cohorts they were in.
    """

    def __init__(self) -> None:
        #: The client that was written longest ago first.
        self.shared: OrderedDict[int, ClientMemory] = OrderedDict()
        self.held = 0  # bytes
        self.clock = 0  # of what was written
        self.stamps: OrderedDict[int, int] = OrderedDict()  # client -> when it was last written, the newest last
        self.rows: dict[int, int] = {}  # client -> its row of what it shares, where that has vectors
        self._sizes: dict[int, int] = {}
        self._blocks: dict[int, Block] = {}  # by the id of its memory
        self._plain = WeakValueDictionary[Any, ClientMemory]()  # memories without tensors and entries, by all they hold

    def away(self, client: int) -> bytes | None:
        """The memory of a client that has none here."""
        return None

    def load(self, client: int) -> ClientMemory | None:
        """One client's own memory."""
        memory, row = self._fetched(client), self.rows.get(client)
        if memory is None or (row is None and all(entry.client == client for entry in memory.uncollected)):
            return memory
        return memory.of(client, row)

    def _fetched(self, client: int) -> ClientMemory | None:
        memory = self.shared.get(client)
        if memory is None and (blob := self.away(client)) is not None:
            self._put((client,), memory := ClientMemory.from_bytes(blob))
        return memory

    def keep(self, clients: Sequence[int], memory: ClientMemory, rows: Sequence[int] | None = None) -> None:
        """rows: of each client in the memory's tensors; None: one after the other."""
        self._put(clients, memory, rows)
        self.clock += 1
        for client in clients:
            self.shared.move_to_end(client)
            self.stamps[client] = self.clock
            self.stamps.move_to_end(client)

    def _put(self, clients: Sequence[int], memory: ClientMemory, rows: Sequence[int] | None = None) -> None:
        if (content := memory.plain) is not None:
            memory = self._plain.setdefault(content, memory)
        left = Counter(id(self.shared[client]) for client in clients if client in self.rows)
        size = memory.num_bytes // len(clients)
        for client in clients:
            self.shared[client] = memory
            self.held += size - self._sizes.get(client, 0)
            self._sizes[client] = size
        if len(clients) > 1 and next(memory.tensors(), None) is not None:
            self.rows.update(zip(clients, rows or range(len(clients)), strict=True))
            self._blocks[id(memory)] = Block(memory, clients, len(clients))
        elif left:
            for client in clients:
                self.rows.pop(client, None)
        self._leave(left)

    def _leave(self, left: Mapping[int, int]) -> None:
        """So many clients share the memories with these ids no longer."""
        for number, many in left.items():
            block = self._blocks[number]
            block.live -= many
            if 2 * block.live < len(block.clients):
                del self._blocks[number]
                for client in block.clients:
                    if self.shared.get(client) is block.memory:
                        self._put((client,), block.memory.of(client, self.rows.pop(client)).alone())

    def forget(self, client: int) -> None:
        """Of a client whose memory lies elsewhere now."""
        memory = self.shared.pop(client)
        self.held -= self._sizes.pop(client)
        if self.rows.pop(client, None) is not None:
            self._leave({id(memory): 1})

    def alike(self, clients: Sequence[int], asked: bool = False) -> list[Shelved]:
        """Those who share a memory, together. asked: but each by itself where its round is open."""
        groups: dict[int, list[int]] = {}
        for client in clients:
            memory = self.shared.get(client) or self._fetched(client)
            groups.setdefault(id(memory), []).append(client)
        found = [Shelved(self, tuple(group)) for group in groups.values()]
        return [own for one in found for own in (one.each() if asked and one.rows and one.shared.is_open else (one,))]


class LiveContext(Context):
    """A simulated client's context, whose memory lies on a shelf."""

    shelf: Shelf

    def __reduce__(self) -> tuple[Any, ...]:
        return live_context, (self.run_id, self.node_id, self.node_config, ContextStore(self).load())


def live_context(
    run_id: int, node_id: int, node_config: dict[str, Any], memory: ClientMemory | None = None
) -> LiveContext:
    """A context with a shelf of its own, on which the memory lies."""
    context = LiveContext(run_id=run_id, node_id=node_id, node_config=node_config, state=RecordDict(), run_config={})
    context.shelf = Shelf()
    if memory is not None:
        ContextStore(context).keep(memory)
    return context


class ContextStore:
    """In Flower's ``Context.state``, or on a `LiveContext`'s shelf: engines that hand the context back."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.shelved: Shelved | None = None
        if isinstance(context, LiveContext):
            self.shelved = Shelved(context.shelf, (int(context.node_config["partition-id"]),))  # type: ignore[call-overload]

    def load(self) -> ClientMemory | None:
        if self.shelved is not None:
            return self.shelved.load()
        blob = self.read()
        return None if blob is None else ClientMemory.from_bytes(blob)

    def read(self) -> bytes | None:
        if self.shelved is not None:
            return self.shelved.read()
        record = self.context.state.get(_RECORD)
        return bytes(record[_BLOB]) if isinstance(record, ConfigRecord) else None  # type: ignore[arg-type]

    def keep(self, memory: ClientMemory) -> None:
        if self.shelved is not None:
            self.shelved.keep(memory)
        else:
            self.write(memory.to_bytes())

    def write(self, blob: bytes) -> None:
        if self.shelved is not None:
            self.shelved.keep(ClientMemory.from_bytes(blob))
        else:
            self.context.state[_RECORD] = ConfigRecord({_BLOB: blob})


@dataclass(frozen=True)
class Shelved:
    """On a shelf: one client's own memory, or what several share."""

    shelf: Shelf
    clients: tuple[int, ...]

    def each(self) -> Iterator[Shelved]:
        """Each client by itself."""
        return (Shelved(self.shelf, (client,)) for client in self.clients)

    @property
    def shared(self) -> ClientMemory:
        """As it lies there."""
        return self.shelf.shared.get(self.clients[0]) or ClientMemory()

    def load(self) -> ClientMemory | None:
        return self.shared if len(self.clients) > 1 else self.shelf.load(self.clients[0])

    def read(self) -> bytes | None:
        memory = self.load()
        return None if memory is None else memory.to_bytes()

    @property
    def rows(self) -> list[int] | None:
        """Of each of several clients in the tensors that they share; None where there are none."""
        several = len(self.clients) > 1 and self.clients[0] in self.shelf.rows
        return [self.shelf.rows[client] for client in self.clients] if several else None

    def keep(self, memory: ClientMemory) -> None:
        self.shelf.keep(self.clients, memory.alone())

    def collect(self, memory: ClientMemory) -> None:
        """Keeps what is left of `shared`, whose rows are where they were."""
        if len(self.clients) == 1:
            memory = memory.of(self.clients[0], self.shelf.rows.get(self.clients[0])).alone()
        self.shelf.keep(self.clients, memory, self.rows)


class FileStore:
    """In a file that the client owns: Flower's runtime, whose contexts do not come back."""

    def __init__(self, folder: Path, client: int) -> None:
        self.path = folder / f"{client}.safetensors"

    def read(self) -> bytes | None:
        return self.path.read_bytes() if self.path.exists() else None

    def keep(self, memory: ClientMemory) -> None:
        self.write(memory.to_bytes())

    def write(self, blob: bytes) -> None:
        self.path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(self.path, blob)


def read_memory(store: MemoryStore) -> ClientMemory:
    """The memory in a store, whose tensors are not to be written to; an empty one for a client that never took part."""
    if isinstance(store, ContextStore | Shelved):
        return store.load() or ClientMemory()
    blob = store.read()
    return ClientMemory() if blob is None else ClientMemory.from_bytes(blob)


def repeated_answer(memory: ClientMemory, request: Request) -> Answer | None:
    """The stored answer for the very request that it answered; None for a newer request. Raises `StaleRequest`."""
    answer = memory.answer
    if answer is None or place(request.round, request.attempt) > place(answer.round, answer.attempt):
        return None
    if (request.round, request.attempt) != (answer.round, answer.attempt) or answer.release is None:
        raise StaleRequest(
            f"round {request.round} (attempt {request.attempt}) comes after round {answer.round} was answered"
        )
    return answer


def answered_before(
    memory: ClientMemory, request: Request, measures_first: bool
) -> tuple[Tensor | None, Tensor | None] | None:
    """(the release, the statistics) that answered this very request; None for a new one. Raises `StaleRequest`."""
    waiting, answer, asked = memory.waiting, repeated_answer(memory, request), (request.round, request.attempt)
    if request.exchange == STATISTICS:
        if answer is not None:
            raise StaleRequest(f"round {request.round} (attempt {request.attempt}) was answered already")
        if waiting is None or place(*asked) > place(waiting.round, waiting.attempt):
            return None
        if asked != (waiting.round, waiting.attempt):
            raise StaleRequest(f"round {request.round} comes after round {waiting.round} was measured")
        return None, waiting.tensors["statistics"]
    if answer is not None:
        return answer.release, answer.statistics
    if measures_first and (waiting is None or waiting.round != request.round):
        raise StaleRequest(f"round {request.round}: a release is asked for, but nothing was measured in this round")
    return None
