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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedpriv.client.memories import Book, Memories, StoredMemories, collect_entries, once
from fedpriv.client.memory import ClientMemory, ContextStore, LiveContext, Shelf, live_context
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import FIRST_NODE
from fedpriv.config.schema import Config
from fedpriv.privacy.events import Entries
from fedpriv.report.views import PRIVATE, private_folder

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

    def collect_entries(self, clients: Iterable[int], book: Book = lambda entries: None) -> Entries:
        """Takes the ledger entries that these clients wrote since the last call, in the ledger's order."""
        found = collect_entries(self.contexts.alike(list(clients)), book)
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


class Contexts(Shelf):
    """The memories of a run's clients: in this process up to a limit, those beyond it in a file. ``[client]`` is a
    context whose memory lies here.

    The ones written longest ago are spilled into a folder of this process in the run's private one. It goes with the
    process; a checkpoint holds every state, wherever it lies, and a resumed run starts from that.

    make: of a client's context. most: bytes of states that stay in memory; run_folder: where the others go (None: the
    machine's folder for temporary files). begun: memories of a checkpoint, each of which is read when it is asked for.
    """

    def __init__(
        self,
        make: Callable[[int], Context],
        most: float,
        run_folder: str | None,
        begun: Mapping[int, bytes] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.make, self.most, self.run_folder, self.begun = make, most, run_folder, begun
        self._folder: Path | None = None
        self._stored: StoredMemories | None = None  # what is spilled
        self._bytes: Callable[[Any], bytes] = once(ClientMemory.to_bytes)

    def __getitem__(self, client: int) -> Context:
        context = self.make(client)
        if isinstance(context, LiveContext):
            context.shelf = self
        return context

    def __setitem__(self, client: int, context: Context) -> None:
        if (memory := ContextStore(context).load()) is not None:
            self.keep((client,), memory)

    def settle(self) -> None:
        """Spills what is above the limit. Raises OSError that names the file where the disk is full."""
        while self.held > self.most and len(self.shared) > 1:
            client = next(iter(self.shared))
            memory = self.load(client)
            assert memory is not None, "it is there"
            self._spill().write(client, memory)
            self.forget(client)

    def memories(self) -> Memories:
        """Every client's memory, read when it is asked for. Raises KeyError for a client that has none."""
        everybody: Callable[[], list[int]] = lambda: self._together({*self.shared, *(self._stored or ()), *self.begun})  # noqa: E731
        return Memories(everybody, self._read, self._changes)

    def _changes(self, since: int) -> tuple[int, list[int]]:
        newest = itertools.takewhile(lambda item: item[1] > since, reversed(self.stamps.items()))
        return self.clock, self._together(client for client, _ in newest)

    def _together(self, clients: Iterable[int]) -> list[int]:
        """Clients that share a memory follow one another; otherwise sorted."""
        groups: dict[int, list[int]] = {}
        for client in sorted(clients):
            groups.setdefault(id(self.shared.get(client, client)), []).append(client)
        return [client for group in groups.values() for client in group]

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
        for folder in (Path(self.run_folder) / PRIVATE).glob(f"{_FOLDERS}*") if self.run_folder else ():
            if folder != self._folder:
                shutil.rmtree(folder, ignore_errors=True)

    def _read(self, client: int) -> bytes:
        blob = self._bytes(self.load(client)) if client in self.shared else self.away(client)
        if blob is None:
            raise KeyError(client)
        return blob

    def away(self, client: int) -> bytes | None:
        if self._stored is not None and client in self._stored:
            return self._stored.read(client)
        return self.begun.get(client)

    def _spill(self) -> StoredMemories:
        if self._stored is None:
            within = private_folder(Path(self.run_folder)) if self.run_folder else None
            self._folder = Path(tempfile.mkdtemp(prefix=_FOLDERS, dir=within))
            self._stored = StoredMemories(self._folder)
        return self._stored


def empty_context(run_id: int, node_id: int, partition: int, num_partitions: int) -> Context:
    """A simulated client's context, with an empty memory."""
    return live_context(run_id, node_id, {"partition-id": partition, "num-partitions": num_partitions})


def memory_folder(config: Config) -> Path:
    """Where clients keep their files on engines whose contexts do not come back: updates without noise are in them."""
    if config.run_dir is None:
        raise OptionError("run_dir", "null", "this engine's clients need the run's folder")
    return Path(config.run_dir) / PRIVATE / "clients"
