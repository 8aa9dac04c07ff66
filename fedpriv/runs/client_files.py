"""The memories of all clients in a checkpoint: what changed since the one before, and that one's own files.

`clients.safetensors` holds the clients that took part since the last checkpoint; files of earlier ones
(`clients-000010.safetensors`, by their round) are in the folder under a second name, as hard links: nothing is copied,
and an older checkpoint may go. Of a client that is in several the newest counts. Where 1.2 times as many bytes would
be kept as clients have, everything is written anew.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import safe_open

from fedpriv.client.memories import Memories
from fedpriv.common.checksums import read_sums

NEWEST = "clients.safetensors"
#: So many times the bytes of all clients may lie in the files together.
MOST_TIMES = 1.2
#: Bytes before the tensors of a file of memories: the header's length, and the header with spaces behind it.
ROOM = 512


class Written:
    """What the last checkpoint of this process holds.

    clock: of `Memories.changes`; places: client -> (number of the checkpoint whose file is its newest, bytes of its
    memory); files: number of a checkpoint -> bytes of its file, as long as it is somebody's newest; live: bytes of all
    memories.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.live = folder, 0, 0
        self.places: dict[int, tuple[str, int]] = {}
        self.files: dict[str, int] = {}
        self._clients: Counter[str] = Counter()

    def name(self, number: str) -> str:
        """Of a file in this checkpoint's folder."""
        return NEWEST if number == self.number else f"clients-{number}.safetensors"

    @property
    def number(self) -> str:
        return self.folder.name.removeprefix("round-")

    def take(self, number: str, sizes: Mapping[int, int], clock: int) -> None:
        """A further file, of the checkpoint ``number``, with memories of these sizes."""
        for client, size in sizes.items():
            before, old = self.places.get(client, ("", 0))
            self.places[client] = number, size
            self.live += size - old
            self._clients.update({number: 1, before: -1})
        self.files[number] = sum(sizes.values())
        self.files = {known: size for known, size in self.files.items() if self._clients[known] > 0 or known == number}
        self.clock = clock


def digests(last: Written) -> dict[str, str]:
    """Of the files of a checkpoint, under the names that they have in later ones; no file is read for it."""
    known = read_sums(last.folder)
    found = {number: known.get(last.name(number)) for number in last.files}
    return {f"clients-{number}.safetensors": digest for number, digest in found.items() if digest is not None}


def earlier_files(folder: Path) -> list[str]:
    """Names of the files of earlier checkpoints in a folder, oldest first."""
    return sorted(path.name for path in folder.glob("clients-*.safetensors"))


def write_clients(folder: Path, number: str, memories: Mapping[int, bytes], last: Written | None) -> Written:
    """Writes the files of the checkpoint ``number`` into a folder. last: what this process wrote before, which is
    changed to what it is now; None where that is unknown.

    Raises OSError that names the file where the disk is full.
    """
    changes = memories.changes(last.clock if last else 0) if isinstance(memories, Memories) else None
    if last is None or changes is None or not all((last.folder / last.name(one)).exists() for one in last.files):
        return _everything(folder, number, memories, changes[0] if changes else 0)
    clock, changed = changes
    superseded = (
        sum(last.files.values()) - last.live + sum(last.places[one][1] for one in changed if one in last.places)
    )
    if superseded > (MOST_TIMES - 1) * last.live:
        return _everything(folder, number, memories, clock)
    sizes = write_blobs(folder / NEWEST, Memories(changed, memories.__getitem__))
    before = {known: last.folder / last.name(known) for known in last.files}
    last.take(number, sizes, clock)
    last.folder = folder.parent / f"round-{number}"
    for known in last.files:
        if known == number:
            continue
        try:
            os.link(before[known], folder / last.name(known))
        except OSError:  # a file system without links
            shutil.copyfile(before[known], folder / last.name(known))
    return last


def _everything(folder: Path, number: str, memories: Mapping[int, bytes], clock: int) -> Written:
    written = Written(folder.parent / f"round-{number}")
    written.take(number, write_blobs(folder / NEWEST, memories), clock)
    return written


def read_clients(folder: Path) -> Memories:
    """What `write_clients` wrote, each read when it is asked for."""
    of: dict[int, Memories] = {}
    for name in (*earlier_files(folder), NEWEST):
        found = read_blobs(folder / name)
        of |= dict.fromkeys(found, found)
    return Memories(sorted(of), lambda client: of[client][client])


def write_blobs(path: Path, blobs: Mapping[int, bytes]) -> dict[int, int]:
    """A safetensors file of byte strings, of which one at a time is in memory; returns how long they are.

    clients: int64 [n]; ends: int64 [n], where each one's bytes end; memories: uint8, of all after one another. Raises
    OSError that names ``path`` where the disk is full.
    """
    clients = list(blobs)
    lengths = np.zeros(len(clients), np.int64)
    index = 2 * lengths.nbytes
    try:
        with path.open("wb") as file:
            file.seek(ROOM + index)
            for place, client in enumerate(clients):
                lengths[place] = file.write(blobs[client])
            ends = lengths.cumsum()
            total = index + int(lengths.sum())
            header = {
                "clients": {"dtype": "I64", "shape": [len(clients)], "data_offsets": [0, index // 2]},
                "ends": {"dtype": "I64", "shape": [len(clients)], "data_offsets": [index // 2, index]},
                "memories": {"dtype": "U8", "shape": [total - index], "data_offsets": [index, total]},
            }
            file.seek(0)
            file.write((ROOM - 8).to_bytes(8, "little") + json.dumps(header).encode().ljust(ROOM - 8))
            file.write(np.array(clients, np.int64).tobytes() + ends.tobytes())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    return dict(zip(clients, lengths.tolist(), strict=True))


def read_blobs(path: Path) -> Memories:
    """What `write_blobs` wrote, each read when it is asked for. Raises ValueError for what it never writes."""
    file = safe_open(path, "numpy")
    clients, ends, content = file.get_tensor("clients"), file.get_tensor("ends"), file.get_slice("memories")
    lengths, (total,) = np.diff(ends, prepend=0), content.get_shape()
    sound = clients.dtype == ends.dtype == np.int64 and clients.shape == ends.shape == (len(set(clients.tolist())),)
    if not sound or (lengths < 0).any() or lengths.sum() != total:
        raise ValueError(f"{path}: its index is not that of its memories")
    places = dict(zip(clients.tolist(), np.stack([ends - lengths, ends], axis=1).tolist(), strict=True))

    def read(client: int) -> bytes:
        start, end = places[client]
        return bytes(content[start:end].tobytes())

    return Memories(clients.tolist(), read)
