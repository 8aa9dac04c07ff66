"""The memories of many clients: for a checkpoint, for the run's ledger, and in a file where they are too many."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fedpriv.client.memory import WAITING, ClientMemory, MemoryStore, Shelved, read_memory
from fedpriv.privacy.events import Entries, Entry

T = TypeVar("T")


class Memories(Mapping[int, bytes]):
    """Client -> memory, each read when it is asked for: together they may be larger than this machine's memory.

    clients: or what lists them, where that is not always wanted. changes: see `changes`.
    """

    def __init__(
        self,
        clients: Sequence[int] | Callable[[], Sequence[int]],
        read: Callable[[int], bytes],
        changes: Callable[[int], tuple[int, list[int]]] | None = None,
    ) -> None:
        self._list, self._read, self._changes = clients, read, changes

    @cached_property
    def _clients(self) -> dict[int, None]:
        return dict.fromkeys(self._list() if callable(self._list) else self._list)

    def changes(self, since: int) -> tuple[int, list[int]] | None:
        """(current clock, clients whose memory possibly changed after ``since``); None if changes are not tracked."""
        return None if self._changes is None else self._changes(since)

    def __getitem__(self, client: int) -> bytes:
        if self._changes is None and client not in self._clients:
            raise KeyError(client)
        return self._read(client)

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


#: Writes entries into a ledger.
Book = Callable[[Entries], None]


class ClientMemories(Protocol):
    """The memories of all clients of a run, as far as its server can see them."""

    def collect_entries(self, clients: Iterable[int], book: Book = ...) -> Entries:
        """Takes the ledger entries that these clients wrote since the last call, in the ledger's order."""

    def memories(self) -> Memories:
        """Every client's memory, for a checkpoint."""

    def restore(self, memories: Mapping[int, bytes]) -> None:
        """Puts clients' memories back from a checkpoint; all others start anew."""


def collect_entries(stores: Iterable[MemoryStore], book: Book = lambda entries: None) -> Entries:
    """Takes the entries that clients wrote since the last call out of their memories, in the ledger's order. Their
    round is closed: no request of it is answered again.

    ``book`` writes them into the ledger before the memories forget them: a crash in between leaves them in both, where
    (client, sequence, attempt) tells that they are the same, and never in neither.
    """
    found = ((store, store.shared if isinstance(store, Shelved) else read_memory(store)) for store in stores)
    waiting = [(store, memory) for store, memory in found if memory.uncollected]
    entries = Entries(
        (memory.uncollected, store.clients if isinstance(store, Shelved) else (memory.uncollected[0].client,))
        for store, memory in waiting
    )
    book(entries)
    for store, memory in waiting:
        (store.collect if isinstance(store, Shelved) else store.keep)(memory.collected())
    return entries


def _header(blob: bytes) -> tuple[dict[str, Any], int]:
    """Of a memory, as safetensors writes it: what its header says of every tensor, and where the tensors begin."""
    start = 8 + int.from_bytes(blob[:8], "little")
    return json.loads(blob[8:start]), start


def once(work: Callable[[T], bytes]) -> Callable[[T], bytes]:
    """``work``, which gives the same object again for the very object that it was called with last."""
    last: list[Any] = [None, b""]

    def called(given: T) -> bytes:
        if given is not last[0]:
            last[:] = given, work(given)
        return last[1]  # type: ignore[no-any-return]

    return called


def _without_waiting(blob: bytes) -> bytes:
    if WAITING not in _header(blob)[0]:
        return blob
    return replace(ClientMemory.from_bytes(blob), waiting=None).to_bytes()


def between_rounds(memories: Mapping[int, bytes]) -> Memories:
    """Memories by client without what waits between two exchanges: no round is resumed in its middle, and private keys
    and raw updates have no business in a checkpoint.
    """
    stripped = once(_without_waiting)

    def read(client: int) -> bytes:
        return stripped(memories[client])

    changes = memories.changes if isinstance(memories, Memories) and memories.changes(0) is not None else None
    return Memories(lambda: list(memories), read, changes)  # type: ignore[arg-type]


def charged(memories: Mapping[int, bytes], entries: Iterable[Entry]) -> Memories:
    """Memories by client whose accounts hold these entries too: releases that a resumed run cannot take back."""
    further: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry.client >= 0:  # a torn line names nobody
            further.setdefault(entry.client, []).append(entry)

    def read(client: int) -> bytes:
        memory = ClientMemory.from_bytes(memories[client]) if client in memories else ClientMemory()
        return replace(memory, account=memory.account.after(further.get(client, ()))).to_bytes()

    return Memories([*memories, *(client for client in further if client not in memories)], read)


# --- in a file ---------------------------------------------------------------------------------------------


class StoredMemories:
    """Client -> memory, in a SQLite file of a folder that nobody else reads."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "states.sqlite"
        folder.mkdir(parents=True, exist_ok=True)
        self._clients = set[int]()
        self._file = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        for pragma in ("page_size=65536", "journal_mode=MEMORY", "synchronous=OFF", "locking_mode=EXCLUSIVE"):
            self._file.execute(f"PRAGMA {pragma}")
        self._file.execute("CREATE TABLE states (client INTEGER PRIMARY KEY, memory BLOB NOT NULL)")

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def write(self, client: int, memory: ClientMemory) -> None:
        """Raises OSError that names the file where the disk is full."""
        try:
            self._file.execute("REPLACE INTO states VALUES (?, ?)", (client, memory.to_bytes()))
        except (sqlite3.Error, OverflowError) as error:
            raise OSError(28, f"a client's state could not be written ({error})", str(self.path)) from error
        self._clients.add(client)

    def read(self, client: int) -> bytes:
        """Raises KeyError for a client that has none."""
        row = self._file.execute("SELECT memory FROM states WHERE client = ?", (client,)).fetchone()
        if row is None:
            raise KeyError(client)
        return bytes(row[0])

    def close(self) -> None:
        self._file.close()
