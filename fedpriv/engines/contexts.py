"""The contexts of the clients that took part: in memory up to a limit, the states beyond it in a file.

The least recently asked are spilled into a folder of this process inside the run's folder. It goes with the process; a
checkpoint holds every state, wherever it lies, and a resumed run starts from that.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flwr.app import Context, RecordDict

from fedpriv.client.memories import Memories, StoredMemories
from fedpriv.client.memory import ContextStore, LiveContext

_FOLDERS = ".states-"  # of this process and of those that were killed


class Contexts:
    """Client -> context, made where there is none. most: bytes of states that stay in memory; run_folder: where the
    others go (None: the machine's folder for temporary files). begun: memories of a checkpoint, each of which is read
    when its client is first asked.
    """

    def __init__(
        self,
        make: Callable[[int], Context],
        most: float,
        run_folder: str | None,
        begun: Mapping[int, bytes] = MappingProxyType({}),
    ) -> None:
        self.make, self.most, self.run_folder, self.begun = make, most, run_folder, begun
        self._kept: OrderedDict[int, Context] = OrderedDict()  # the least recently asked first
        self._sizes: dict[int, int] = {}
        self._held = 0  # sum of the sizes
        self._asked: set[int] = set()  # since their sizes were taken
        self._folder: Path | None = None
        self._stored: StoredMemories | None = None  # what is spilled
        self._clock = 0
        self._stamps: OrderedDict[int, int] = OrderedDict()  # client -> when it was last asked, the newest last

    def __getitem__(self, client: int) -> Context:
        if client not in self._kept:
            blob = self._away(client)
            self._kept[client] = self.make(client)
            if blob is not None:
                ContextStore(self._kept[client]).write(blob)
        self._kept.move_to_end(client)
        self._note(client)
        return self._kept[client]

    def __setitem__(self, client: int, context: Context) -> None:
        self._kept[client] = context
        self._kept.move_to_end(client)
        self._note(client)

    def _note(self, client: int) -> None:
        self._asked.add(client)
        self._clock += 1
        self._stamps[client] = self._clock
        self._stamps.move_to_end(client)

    def settle(self) -> None:
        """Spills what is above the limit. Nobody may be working with a context: it would be another one's from now on.

        Raises OSError that names the file where the disk is full.
        """
        for client in self._asked:
            memory = ContextStore(self._kept[client]).load()
            self._held -= self._sizes.pop(client, 0)
            self._sizes[client] = 0 if memory is None else memory.num_bytes
            self._held += self._sizes[client]
        self._asked.clear()
        while self._held > self.most and len(self._kept) > 1:
            client, context = next(iter(self._kept.items()))
            memory = ContextStore(context).load()
            if memory is not None:
                self._spill().write(client, memory)
            del self._kept[client]
            self._held -= self._sizes.pop(client)

    def memories(self) -> Memories:
        """Every client's memory, read when it is asked for. Raises KeyError for a client that has none."""

        def everybody() -> list[int]:
            kept = [client for client, context in self._kept.items() if ContextStore(context).load() is not None]
            return sorted({*kept, *(self._stored or ()), *self.begun})

        return Memories(everybody, self._read, self._changes)

    def _changes(self, since: int) -> tuple[int, list[int]]:
        newest = itertools.takewhile(lambda item: item[1] > since, reversed(self._stamps.items()))
        return self._clock, sorted(client for client, _ in newest if self._has(client))

    def _has(self, client: int) -> bool:
        if client in self._kept:
            return ContextStore(self._kept[client]).load() is not None
        return client in (self._stored or ()) or client in self.begun

    def close(self) -> None:
        """Removes the files, and forgets what was in them."""
        if self._stored is not None:
            self._stored.close()
            self._stored = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def remove_leftovers(self) -> None:
        """Folders of processes of this run that were killed; only for who holds the run's lock."""
        for folder in Path(self.run_folder).glob(f"{_FOLDERS}*") if self.run_folder else ():
            if folder != self._folder:
                shutil.rmtree(folder, ignore_errors=True)

    def _read(self, client: int) -> bytes:
        blob = ContextStore(self._kept[client]).read() if client in self._kept else self._away(client)
        if blob is None:
            raise KeyError(client)
        return blob

    def _away(self, client: int) -> bytes | None:
        """The memory of a client that has no context here."""
        if self._stored is not None and client in self._stored:
            return self._stored.read(client)
        return self.begun.get(client)

    def _spill(self) -> StoredMemories:
        if self._stored is None:
            self._folder = Path(tempfile.mkdtemp(prefix=_FOLDERS, dir=self.run_folder))
            self._stored = StoredMemories(self._folder)
        return self._stored


def empty_context(run_id: int, node_id: int, partition: int, num_partitions: int) -> Context:
    """A simulated client's context, with an empty state."""
    node_config: dict[str, Any] = {"partition-id": partition, "num-partitions": num_partitions}
    return LiveContext(run_id=run_id, node_id=node_id, node_config=node_config, state=RecordDict(), run_config={})
