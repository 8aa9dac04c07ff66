"""The server's part in a secure sum of guarded machines: `Collector`'s relays as Flower messages over any grid."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import ATTEMPT, EXCHANGE, KEY_ATTEMPT, KEYS, ROUND, RUN, MalformedMessage
from fedpriv.common.replies import read_blobs
from fedpriv.guard.arrays import Model, Vector
from fedpriv.guard.guarded_message import GUARD, PACKED
from fedpriv.guard.release import COUNTS, Terms
from fedpriv.mechanisms.integer_noise import as_residues, centred, unpack_residues
from fedpriv.secure_sum.collector import Add, Collector, SumFailed
from fedpriv.secure_sum.sum_session import model_text, session_of

Options = dict[str, Any]


class SumClosed(RunFailed):
    """Too few machines came through a round's exchanges. What they uploaded stays masked; the next round may go on."""


class Opening:
    """One round's sum. nodes: Flower's node ids by client. counts: the kind of message, where it is one of counts; then
    terms and model are of these (`Terms.counted`, `zero_counts`).
    """

    def __init__(
        self,
        grid: Grid,
        timeout: float,
        run: str,
        terms: Terms,
        nodes: Mapping[int, int],
        server_round: int,
        model: Model,
        counts: str | None = None,
    ) -> None:
        self.grid, self.timeout, self.terms, self.nodes, self.model = grid, timeout, terms, dict(nodes), model
        self.clients = {node: client for client, node in self.nodes.items()}
        members = tuple(sorted(self.nodes))
        if not terms.min_replies <= len(members) <= terms.sites:
            words = f"the machines' guards open sums of {terms.min_replies} to {terms.sites} of them"
            raise RunFailed(f"round {server_round}: {len(members)} machines were asked, and {words}")
        digest = hashlib.sha256(model_text(model.vector, None)).digest()
        facts = (terms.digest, digest)
        session = session_of(run, (server_round, 0), members, terms, terms.bits, model.size, facts)
        self.collector = Collector(session, terms.min_replies)
        self._told: Options = {ROUND: server_round, ATTEMPT: 0, KEY_ATTEMPT: 0, RUN: run}
        self._told |= {} if counts is None else {COUNTS: counts}
        self._words = f"round {server_round}"

    # --- before the models go down -----------------------------------------------------------------------------

    def prepared(self) -> dict[int, ConfigRecord]:
        """KEYS and SHARES; node -> the guard's record of its train message. Raises `SumClosed`."""
        sealed = self._settled(lambda: self.collector.prepare(self._exchange))
        return {self.nodes[client]: ConfigRecord({**self._told, **own}) for client, own in sealed.items()}

    # --- after they came up ------------------------------------------------------------------------------------

    def opened(self, replies: Iterable[Message]) -> tuple[Vector, tuple[int, ...]]:
        """CONFIRM and UNMASK: the mean over survivors' shards (float64 [d]), of counts their sum, and who they are.
        Raises `SumClosed`.
        """
        collector, terms, size = self.collector, self.terms, self.model.size
        for reply in replies:
            client = self.clients.get(reply.metadata.src_node_id)
            if client is None or reply.has_error():
                continue
            try:
                packed = _packed(reply.content, self.model.key)
                collector.add_upload(client, unpack_residues(packed, terms.bits, size))
            except (MalformedMessage, ValueError):  # of one that dropped out
                continue
        self._settled(lambda: collector.finish(self._exchange))
        known = collector.survivors
        total = centred(as_residues(self._settled(collector.total), terms.bits), terms.bits)
        whole = terms.grid(size).decode(total) * terms.clip
        return whole if terms.reply == COUNTS else whole / (terms.expected * len(known)), known

    def _exchange(
        self, exchange: str, asked: Sequence[int], told: Options, own: Mapping[int, Options], add: Add
    ) -> None:
        told = {**self._told, EXCHANGE: exchange, **told} | ({"size": self.model.size} if exchange == KEYS else {})
        messages = [guard_message(self.nodes[client], {**told, **own.get(client, {})}) for client in asked]
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
            client = self.clients.get(reply.metadata.src_node_id)
            if client is None or reply.has_error():
                continue
            try:
                add(client, read_blobs(reply, exchange, self.collector.session.most_holders))
            except MalformedMessage:
                continue

    def _settled(self, settle: Callable[[], Any]) -> Any:
        try:
            return settle()
        except SumFailed as failed:
            raise SumClosed(f"{self._words}: the secure sum stays closed: {failed}") from None


def guard_message(node: int, options: Options) -> Message:
    """A train message of the guard's own words, which no app sees."""
    return Message(RecordDict({GUARD: ConfigRecord(options)}), node, "train")


def _packed(content: RecordDict, key: str) -> NDArray[np.uint8]:
    record = content.get(key)
    if not isinstance(record, ArrayRecord) or list(record) != [PACKED]:
        raise MalformedMessage("no packed numbers")
    found: NDArray[np.uint8] = record[PACKED].numpy()
    if found.dtype != np.uint8 or found.ndim != 1:
        raise MalformedMessage("no packed numbers")
    return found
