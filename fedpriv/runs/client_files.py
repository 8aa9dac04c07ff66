"""The memories of all clients in a checkpoint: what changed since the one before, and that one's own files.

`clients.safetensors` holds the clients that took part since the last checkpoint; files of earlier ones
(`clients-000010.safetensors`, by their round) are in the folder under a second name, as hard links: nothing is copied,
and an older checkpoint may go. Of a client that is in several the newest counts. Where three times as many bytes would
be kept as clients have, everything is written anew.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from fedpriv.client.memory import Memories

NEWEST = "clients.safetensors"
#: So many times the bytes of all clients may lie in the files together.
MOST_TIMES = 3


@dataclass
class Written:
    """What the last checkpoint of this process holds. clock: of `Memories.changes`; places: client -> (file, bytes of
    its memory), where it is newest; files: name -> bytes of earlier files that are some client's newest.
    """

    folder: Path
    clock: int
    places: dict[int, tuple[str, int]]
    files: dict[str, int]

    @property
    def own_name(self) -> str:
        """What the next checkpoint calls this one's newest file."""
        return f"clients-{self.folder.name.removeprefix('round-')}.safetensors"


def earlier_files(folder: Path) -> list[str]:
    """Names of the files of earlier checkpoints in a folder, oldest first."""
    return sorted(path.name for path in folder.glob("clients-*.safetensors"))


def write_clients(folder: Path, memories: Mapping[int, bytes], last: Written | None) -> Written:
    """Writes the files of a checkpoint's folder. last: what this process wrote before, None where that is unknown.

    Raises OSError that names the file where the disk is full.
    """
    changes = memories.changes(last.clock if last else 0) if isinstance(memories, Memories) else None
    if last is None or changes is None or not last.folder.is_dir():
        return _everything(folder, memories, changes[0] if changes else 0)
    clock, changed = changes
    sizes = write_blobs(folder / NEWEST, {client: memories[client] for client in changed})
    own = last.own_name
    places = {client: (own if name == NEWEST else name, size) for client, (name, size) in last.places.items()}
    places |= {client: (NEWEST, size) for client, size in sizes.items()}
    needed = {name for name, _ in places.values()}
    files = {name: size for name, size in {**last.files, own: _size(last.folder / NEWEST)}.items() if name in needed}
    if sum(files.values()) + sum(sizes.values()) > MOST_TIMES * sum(size for _, size in places.values()):
        return _everything(folder, memories, clock)
    for name in files:
        source = last.folder / (name if name in last.files else NEWEST)
        try:
            os.link(source, folder / name)
        except OSError:  # a file system without links
            shutil.copyfile(source, folder / name)
    return Written(folder, clock, places, files)


def _everything(folder: Path, memories: Mapping[int, bytes], clock: int) -> Written:
    sizes = write_blobs(folder / NEWEST, memories)
    return Written(folder, clock, {client: (NEWEST, size) for client, size in sizes.items()}, {})


def read_clients(folder: Path) -> Memories:
    """What `write_clients` wrote, each read when it is asked for."""
    of: dict[int, Memories] = {}
    for name in (*earlier_files(folder), NEWEST):
        found = read_blobs(folder / name)
        of |= dict.fromkeys(found, found)
    return Memories(sorted(of), lambda client: of[client][client])


def write_blobs(path: Path, blobs: Mapping[int, bytes]) -> dict[int, int]:
    """A safetensors file of byte strings, of which one at a time is in memory; returns how long they are.

    The header needs all sizes, so the strings go into a file of their own first. Raises OSError that names ``path``
    where the disk is full.
    """
    places, sizes, end = {}, {}, 0
    try:
        with tempfile.TemporaryFile(dir=path.parent) as body, path.open("wb") as file:
            for client, blob in blobs.items():
                body.write(blob)
                places[str(client)] = {"dtype": "U8", "shape": [len(blob)], "data_offsets": [end, end + len(blob)]}
                sizes[client] = len(blob)
                end += len(blob)
            header = json.dumps(places).encode()
            header += b" " * (-len(header) % 8)
            file.write(len(header).to_bytes(8, "little") + header)
            body.seek(0)
            shutil.copyfileobj(body, file, 2**20)
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


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
