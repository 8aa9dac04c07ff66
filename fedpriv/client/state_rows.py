"""Memories of many clients in one file: equal shapes, so every memory is a row of the same length.

Texts (account, entries) stand before the tensors, in a field with room to grow. Rows are written and read with one call
each, through the file's descriptor: a full disk is an OSError, where a memory map would end the process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.client.memory import TEXTS, ClientMemory

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
