"""A Flower Grid of our own: the part that is the same whether clients run in this process or in Ray actors.

The only place that fills in what Flower's SuperLink would: message ids, run id and source node, which live in
private metadata fields (flwr 1.41; a contract test watches them).
"""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
import time
from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedpriv.client.memories import Book, Memories, StoredMemories, collect_entries
from fedpriv.client.memory import ContextStore, LiveContext
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import FIRST_NODE
from fedpriv.config.schema import Config
from fedpriv.privacy.events import Entry

RUN_ID, SERVER_NODE, SERVER_TASK = 1, 1, 1


def identify_server() -> None:
    """Lets this process create Flower messages as the server of the run."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, SERVER_NODE, SERVER_TASK


class NodeOfClient:
    """client -> node without a table: nothing is stored per client that never took part."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int) and 0 <= client < self.num_clients

    def __getitem__(self, client: int) -> int:
        if not 0 <= client < self.num_clients:
            raise KeyError(client)
        return client + FIRST_NODE


class LocalGrid(Grid):
    """Base of the engines `inprocess` and `ray`, which keep the contexts of the clients that took part.

    on_disturbance: called when a worker was lost and its client is asked again.
    """

    in_order = True

    @property
    def carries_cohorts(self) -> bool:
        """Whether a message may be for many clients; not where somebody listens to each client's own."""
        return False

    def __init__(self, config: Config, on_disturbance: Callable[[], None] = lambda: None) -> None:
        self.config, self.on_disturbance = config, on_disturbance
        self.unnamed: Counter[str] = Counter()
        self.node_of_client = NodeOfClient(config.num_clients)
        self.contexts = self._contexts({})
        self._message_ids = itertools.count(1)
        self._replies: dict[str, Message] = {}
        identify_server()

    @abstractmethod
    def deliver(self, messages: list[Message], deadline: float) -> Iterable[Message]:
        """Lets every message's client answer, a few ahead of who reads; replies in the order of the messages, none from
        clients that are not done by ``deadline`` (seconds of `time.monotonic`).
        """

    def close(self) -> None:
        """Ends what the engine started."""
        self.contexts.close()

    def __enter__(self) -> LocalGrid:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- how a server half reaches its clients (`fedpriv.server.nodes.ClientGrid`) ---------------------------

    def nodes(self) -> NodeOfClient:
        return self.node_of_client

    def client_of(self, node: int) -> int:
        return node - FIRST_NODE

    def receive(self, messages: Iterable[Message], timeout: float) -> Iterable[Message]:
        return self.send_and_receive(messages, timeout=timeout)

    # --- Flower's interface ------------------------------------------------------------------------------

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Replies as they are read: nobody is asked long before, and none is kept here."""
        sent = list(messages)
        for message in sent:
            stamp(message, f"message-{next(self._message_ids)}")
        for reply in self.deliver(sent, time.monotonic() + (math.inf if timeout is None else timeout)):
            stamp(reply, f"message-{next(self._message_ids)}")
            yield reply
        self.contexts.settle()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        replies = list(self.send_and_receive(messages))
        self._replies.update({reply.metadata.reply_to_message_id: reply for reply in replies})
        return [reply.metadata.reply_to_message_id for reply in replies]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(identifier) for identifier in list(message_ids) if identifier in self._replies]

    def get_node_ids(self) -> Iterable[int]:
        return range(FIRST_NODE, FIRST_NODE + self.config.num_clients)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def set_run(self, run: Run) -> None:
        """One grid serves one run."""

    @property
    def run(self) -> Run:
        return Run.create_empty(run_id=RUN_ID)

    def server_context(self) -> Context:
        """The ServerApp's context."""
        return Context(run_id=RUN_ID, node_id=SERVER_NODE, node_config={}, state=RecordDict(), run_config={})

    # --- client memories ---------------------------------------------------------------------------------

    def context_of(self, client: int) -> Context:
        return self.contexts[client]

    def _contexts(self, begun: Mapping[int, bytes]) -> Contexts:
        make = partial(_no_context, self.config.num_clients)  # holds no grid: that would hold all of these
        return Contexts(make, 2**20 * self.config.engine.client_memory_mib, self.config.run_dir, begun)

    def collect_entries(self, clients: Iterable[int], book: Book = lambda entries: None) -> list[Entry]:
        """Takes the ledger entries that these clients wrote since the last call, in the ledger's order."""
        found = collect_entries((ContextStore(self.context_of(client)) for client in clients), book)
        self.contexts.settle()
        return found

    def memories(self) -> Memories:
        """Every client's memory, for a checkpoint."""
        return self.contexts.memories()

    def restore(self, memories: Mapping[int, bytes]) -> None:
        """Puts clients' memories back from a checkpoint; all others start anew."""
        before, self.contexts = self.contexts, self._contexts(memories)
        before.close()
        self.contexts.remove_leftovers()


def _no_context(num_clients: int, client: int) -> Context:
    return empty_context(RUN_ID, client + FIRST_NODE, client, num_clients)


def stamp(message: Message, identifier: str) -> None:
    """Gives a message what the SuperLink would: an id, the run, a source."""
    private: dict[str, Any] = message.metadata.__dict__
    private["_message_id"] = identifier
    private["_run_id"] = RUN_ID


def client_of(message: Message) -> int:
    """The client that a message to our own grid is for."""
    return int(message.metadata.dst_node_id) - FIRST_NODE


_FOLDERS = ".states-"  # of this process and of those that were killed


class Contexts:
    """Client -> context, made where there is none: in memory up to a limit, the states beyond it in a file.

    The least recently asked are spilled into a folder of this process inside the run's folder. It goes with the
    process; a checkpoint holds every state, wherever it lies, and a resumed run starts from that.

    most: bytes of states that stay in memory; run_folder: where the
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


def memory_folder(config: Config) -> Path:
    """Where clients keep their files on engines whose contexts do not come back."""
    if config.run_dir is None:
        raise OptionError("run_dir", "null", "this engine's clients need the run's folder")
    return Path(config.run_dir) / "clients"
