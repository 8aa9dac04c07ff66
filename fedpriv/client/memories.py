"""The memories of many clients: for a checkpoint, for the run's ledger, and as rows of a file where they are too many.

In such a file, memories of equal shapes are rows of the same length. Texts (account, entries) stand before the tensors,
in a field with room to grow. Rows are written and read with one call each, through the file's descriptor: a full disk
is an OSError, where a memory map would end the process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpriv.client.memory import TEXTS, WAITING, ClientMemory, MemoryStore, read_memory
from fedpriv.privacy.events import Entry


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
Book = Callable[[list[Entry]], None]


class ClientMemories(Protocol):
    """The memories of all clients of a run, as far as its server can see them."""

    def collect_entries(self, clients: Iterable[int], book: Book = ...) -> list[Entry]:
        """Takes the ledger entries that these clients wrote since the last call, in the ledger's order."""

    def memories(self) -> Memories:
        """Every client's memory, for a checkpoint."""

    def restore(self, memories: Mapping[int, bytes]) -> None:
        """Puts clients' memories back from a checkpoint; all others start anew."""


def collect_entries(stores: Iterable[MemoryStore], book: Book = lambda entries: None) -> list[Entry]:
    """Takes the entries that clients wrote since the last call out of their memories, in the ledger's order.

    ``book`` writes them into the ledger before the memories forget them: a crash in between leaves them in both, where
    (client, sequence, attempt) tells that they are the same, and never in neither.
    """
    waiting = [(store, memory) for store in stores if (memory := read_memory(store)).uncollected]
    entries = sorted((entry for _, memory in waiting for entry in memory.uncollected), key=lambda entry: entry.order)
    book(entries)
    for store, memory in waiting:
        store.keep(replace(memory, uncollected=()))
    return entries


def _header(blob: bytes) -> tuple[dict[str, Any], int]:
    """Of a memory, as safetensors writes it: what its header says of every tensor, and where the tensors begin."""
    start = 8 + int.from_bytes(blob[:8], "little")
    return json.loads(blob[8:start]), start


def between_rounds(memories: Mapping[int, bytes]) -> Memories:
    """Memories by client without what waits between two exchanges: no round is resumed in its middle, and private keys
    and raw updates have no business in a checkpoint.
    """

    def read(client: int) -> bytes:
        blob = memories[client]
        if WAITING not in _header(blob)[0]:
            return blob
        return replace(ClientMemory.from_bytes(blob), waiting=None).to_bytes()

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
        for entry in further.get(client, ()):
            memory.account.charge(entry)
        return memory.to_bytes()

    return Memories([*memories, *(client for client in further if client not in memories)], read)


# --- as rows of a file -----------------------------------------------------------------------------------

#: (name, dtype, shape) of every tensor of a memory, in their order.
Form = tuple[tuple[str, str, tuple[int, ...]], ...]


class StateRows:
    """Client -> memory, in files of a folder: one for each form of memories, and each has a row per client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[tuple[Form, int], _RowFile] = {}
        self._of: dict[int, _RowFile] = {}

    def __contains__(self, client: object) -> bool:
        return client in self._of

    def __iter__(self) -> Iterator[int]:
        return iter(self._of)

    def write(self, client: int, memory: ClientMemory) -> None:
        """Raises OSError that names the file where the disk is full."""
        arrays = memory.arrays()
        text = json.dumps({name: arrays.pop(name).tobytes().decode() for name in TEXTS if name in arrays}).encode()
        form = tuple((name, value.dtype.str, value.shape) for name, value in arrays.items())
        room = max(512, 1 << len(text).bit_length())  # twice as long as it is, or less
        key = form, room
        if key not in self._files:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._files[key] = _RowFile(self.folder / f"{len(self._files)}.rows", form, room)
        file = self._files[key]
        if self._of.get(client) not in (None, file):
            self.forget(client)
        file.write(client, text, arrays)
        self._of[client] = file

    def read(self, client: int) -> ClientMemory:
        """Raises KeyError for a client that has no row."""
        return self._of[client].read(client)

    def forget(self, client: int) -> None:
        """Its row is free for another client. Raises KeyError."""
        self._of.pop(client).free(client)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._of.clear()


class _RowFile:
    """Rows of one length. room: bytes of the text's field."""

    def __init__(self, path: Path, form: Form, room: int) -> None:
        self.path, self.form, self.room = path, form, room
        self.length = 4 + room + sum(_bytes_of(dtype, shape) for _, dtype, shape in form)
        self.rows: dict[int, int] = {}
        self._free: list[int] = []
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def write(self, client: int, text: bytes, arrays: dict[str, NDArray[Any]]) -> None:
        known = client in self.rows
        row = self.rows[client] if known else self._free[-1] if self._free else len(self.rows)
        parts = [len(text).to_bytes(4, "little"), text.ljust(self.room, b"\0")]
        parts += [value.tobytes() for value in arrays.values()]
        content = b"".join(parts)
        try:
            written = os.pwrite(self._descriptor, content, row * self.length)
            if written != len(content):
                raise OSError(28, "the disk took only part of a client's state")
        except OSError as error:
            error.filename = str(self.path)
            raise
        if not known and self._free:
            self._free.pop()
        self.rows[client] = row

    def read(self, client: int) -> ClientMemory:
        content = os.pread(self._descriptor, self.length, self.rows[client] * self.length)
        size = int.from_bytes(content[:4], "little")
        place, arrays = 4 + self.room, dict[str, NDArray[Any]]()
        for name, text in json.loads(content[4 : 4 + size]).items():
            arrays[name] = np.frombuffer(text.encode(), np.uint8)
        for name, dtype, shape in self.form:
            stop = place + _bytes_of(dtype, shape)
            arrays[name] = np.frombuffer(content[place:stop], dtype).reshape(shape).copy()
            place = stop
        return ClientMemory.from_arrays(arrays)

    def free(self, client: int) -> None:
        self._free.append(self.rows.pop(client))

    def close(self) -> None:
        os.close(self._descriptor)


def _bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    return np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
