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

from safetensors import safe_open

from fedpriv.client.memories import Memories
from fedpriv.common.checksums import read_sums

NEWEST = "clients.safetensors"
#: So many times the bytes of all clients may lie in the files together.
MOST_TIMES = 1.2
#: Bytes of the header for one client beside its number: sizes up to 10 GB, places up to 10 TB.
LONGEST_PLACE = len('"":{"dtype":"U8","shape":[],"data_offsets":[,]},') + 10 + 2 * 13


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

    The header comes first and needs all sizes, so room is left for the longest that it can be. Raises OSError that
    names ``path`` where the disk is full.
    """
    places, sizes, end = {}, {}, 0
    clients = list(blobs)
    room = 8 + sum(len(str(client)) + LONGEST_PLACE for client in clients)
    room += -room % 8
    try:
        with path.open("wb") as file:
            file.seek(8 + room)
            for client in clients:
                blob = blobs[client]
                file.write(blob)
                places[str(client)] = {"dtype": "U8", "shape": [len(blob)], "data_offsets": [end, end + len(blob)]}
                sizes[client] = len(blob)
                end += len(blob)
            file.seek(0)
            file.write(room.to_bytes(8, "little") + json.dumps(places, separators=(",", ":")).encode().ljust(room))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    return sizes


def read_blobs(path: Path) -> Memories:
    """What `write_blobs` wrote, each read when it is asked for."""
    with safe_open(path, "numpy") as file:
        clients = sorted(int(name) for name in file.keys() if name != "none")  # noqa: SIM118

    def read(client: int) -> bytes:
        with safe_open(path, "numpy") as file:
            blob: bytes = file.get_tensor(str(client)).tobytes()
        return blob

    return Memories(clients, read)
