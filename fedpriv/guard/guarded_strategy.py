"""The server's half: Flower's own strategies over guarded machines, with a run folder that says what it cost.

`guarded(FedAvg(...))` is a strategy. It asks the machines for their guards' terms, opens secure sums, hands the
decoded means to the strategy inside, and writes a folder. It is trusted with nothing that the machines' guarantee rests
on: they chose the terms, and their noise is in what leaves them. With own noise a server without it works too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.files import json_number, write_atomic
from fedpriv.common.messages import EXCHANGE, MOST_REASON, ROUND, MalformedMessage, Refusal, shown_text
from fedpriv.common.replies import read_blobs
from fedpriv.common.versions import library_versions
from fedpriv.guard.arrays import METRICS, NUM_EXAMPLES, Model, Vector, counted_content, model_of, zero_counts
from fedpriv.guard.guarded_message import GUARD, TERMS
from fedpriv.guard.opening import Opening, SumClosed, guard_message
from fedpriv.guard.release import TRAIN, Terms, answers_of, claimed_epsilon, figures
from fedpriv.guard.reports import write_report
from fedpriv.privacy.events import Entry
from fedpriv.privacy.ledger import LedgerFile

log = logging.getLogger("fedpriv")

#: Numbers of a model that a server of guarded machines sends at most.
LARGEST = 2**31
_NO_GUARD = "without a guard (`fedpriv deploy node run ... guard=any`)"
#: Why a machine takes no part, for the server's log.
_BUNDLE = "whose guard.apps does not name this app as it is now (`fedpriv deploy node bundle APP`)"
EVALUATE = "evaluate"
SUMMARY, LEDGER, PLAN = "summary.json", "ledger.jsonl", "plan.json"


def _with_own(messages: Iterable[Message], own: Mapping[int, ConfigRecord]) -> list[Message]:
    """Messages with the guard's own record for each node that has one."""
    sent = []
    for message in messages:
        if (record := own.get(message.metadata.dst_node_id)) is not None:
            message.content = RecordDict({**message.content, GUARD: record})
            sent.append(message)
    return sent


def _numbers(content: RecordDict, metrics: Mapping[str, int]) -> Vector:
    """A machine's counts [K]; zeros where the reply has not the declared form."""
    record: Mapping[str, Any] = content.metric_records.get(METRICS, {})
    parts = [np.atleast_1d(np.asarray(record.get(name, ()), np.float64)) for name in metrics]
    fits = [part.size for part in parts] == [*metrics.values()]
    return np.concatenate(parts) if fits else np.zeros(sum(metrics.values()))


def _reason(reply: Message) -> str:
    """What a machine says in place of an answer."""
    return shown_text(str(reply.error.reason), MOST_REASON)


def guarded(strategy: Strategy, run_dir: str | Path | None = None, delta: float = 1e-5) -> Guarded:
    """Any of Flower's strategies (`flwr.serverapp.strategy`) over guarded machines.

    run_dir: a new folder for plan, ledger, summary and report; None: none is written. delta: of the epsilons there.
    Raises `OptionError` for a folder that is not empty.
    """
    if not isinstance(strategy, Strategy):
        raise OptionError("strategy", type(strategy).__name__, "a strategy of flwr.serverapp.strategy")
    if not 0 < delta < 1:
        raise OptionError("delta", delta, "more than 0 and less than 1")
    folder = None if run_dir is None else Path(run_dir)
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise OptionError("run_dir", folder, "must be a new or an empty folder")
    return Guarded(strategy, folder, delta)


class Guarded(Strategy):
    """See `guarded`."""

    def __init__(self, inner: Strategy, folder: Path | None, delta: float) -> None:
        self.inner, self.folder, self.delta = inner, folder, delta
        self.run = secrets.token_hex(16)
        self.terms: dict[int, Terms] = {}  # by client
        self.rounds = self._planned = 0
        self.clients: dict[int, int] = {}  # by node
        self.entries: dict[int, list[Entry]] = {}
        self.refused: Counter[str] = Counter()  # replies without content, by what they say
        self.closed: dict[int, str] = {}  # rounds whose sum did not open, and why
        self._timeout, self._began = 3600.0, time.monotonic()
        self._grid: Grid | None = None
        self._model: Model | None = None
        self._opening: Opening | None = None
        self._counting: tuple[str, Opening | None] | None = None  # what is evaluated
        self.queries: Counter[str] = Counter()  # messages of counts beside a round's own

    def summary(self) -> None:
        self.inner.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        *further: Any,
        **named: Any,
    ) -> Result:
        """As of the strategy inside. The folder's summary is complete when it returns. A round whose sum does not
        open leaves the model as it was. Raises `RunFailed` where no round's sum opened, where no machine answered, or
        for a model that no guard trains.
        """
        self.rounds, self._timeout = num_rounds, timeout
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        found = super().start(grid, initial_arrays, num_rounds, timeout, *further, **named)
        if self.closed and len(self.closed) == num_rounds:
            raise RunFailed("; ".join(self.closed.values()))
        if self.refused and not self.entries:
            why = "; ".join(f"{count} x {reason}" for reason, count in self.refused.most_common())
            raise RunFailed(f"no machine has answered in {num_rounds} rounds: {why}")
        return found

    # --- training --------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        if not messages:
            return messages
        try:
            self._grid, self._model = grid, model_of(messages[0].content, LARGEST)
        except MalformedMessage as error:
            raise RunFailed(f"{error}: no guard trains it (docs/guard_apps.md)") from None
        nodes = [message.metadata.dst_node_id for message in messages]
        self._ask_terms(grid, nodes)
        self._plan()
        first = self.terms[self.clients[nodes[0]]] if nodes[0] in self.clients else None
        if first is None or not first.in_sum:
            return [message for message in messages if message.metadata.dst_node_id in self.clients]
        members = {self.clients[node]: node for node in nodes if node in self.clients}
        self._opening = Opening(grid, self._timeout, self.run, first, members, server_round, self._model)
        try:
            return _with_own(messages, self._opening.prepared())
        except SumClosed as closed:
            self._opening = None
            self._stays_closed(server_round, closed)
            return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if server_round in self.closed:
            return None, None
        answered = self._answered(replies)
        if self._opening is None:
            self._book(server_round, [self.clients[reply.metadata.src_node_id] for reply in answered])
            return self.inner.aggregate_train(server_round, answered) if answered else (None, None)
        opening, self._opening = self._opening, None
        assert self._model is not None
        # What a machine uploaded is spent, also where no sum opens.
        self._book(server_round, [opening.clients[reply.metadata.src_node_id] for reply in answered])
        try:
            mean, _ = opening.opened(answered)
        except SumClosed as closed:
            self._stays_closed(server_round, closed)
            return None, None
        vector = self._model.vector + mean if opening.terms.reply == "difference" else mean
        whole = copy(answered[0])
        content = {self._model.key: self._model.record(vector), METRICS: MetricRecord({NUM_EXAMPLES: 1})}
        whole.content = RecordDict(content)  # type: ignore[arg-type]
        return self.inner.aggregate_train(server_round, [whole])

    def _answered(self, replies: Iterable[Message]) -> list[Message]:
        """Those with content. Of the others the strategy inside hears nothing, and the server's log what they say."""
        came = list(replies)
        refused = Counter(_reason(reply) for reply in came if reply.has_error())
        for reason, count in refused.items():
            log.warning("%d x %s", count, reason)
        self.refused += refused
        return [reply for reply in came if not reply.has_error()]

    def _stays_closed(self, server_round: int, closed: SumClosed) -> None:
        self.closed[server_round] = str(closed)
        log.warning("%s; what was uploaded is spent, and the model stays as it was", closed)
        self._write()

    # --- counts: evaluation, and queries -----------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks nobody unless the machines' policies declare counts for it."""
        self._counting = None
        if not any(EVALUATE in terms.counts for terms in self.terms.values()):
            return []
        messages = list(self.inner.configure_evaluate(server_round, arrays, config, grid))
        try:
            return self._ask_counts(grid, EVALUATE, messages, server_round)
        except SumClosed as closed:
            log.warning("evaluation of %s", closed)
            return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The strategy inside aggregates one reply: the sum of all machines' counts."""
        answered = self._answered(replies)
        if self._counting is None or not answered:
            return None
        try:
            whole = self._counts(server_round, answered)
        except SumClosed as closed:
            log.warning("evaluation of %s", closed)
            return None
        one = copy(answered[0])
        one.content = RecordDict({METRICS: whole})
        return self.inner.aggregate_evaluate(server_round, [one])

    def count(
        self,
        grid: Grid,
        kind: str,
        config: Mapping[str, Any] | None = None,
        arrays: ArrayRecord | None = None,
        timeout: float = 3600,
    ) -> MetricRecord:
        """Asks all machines for counts that their policies declare, and adds them up.

        Args:
            kind: the messages' type: "query", "query.NAME" or "evaluate". config, arrays: what the app gets with it.

        Returns:
            By name the sum over machines of their noisy counts: floats, or lists of them; they may be below 0.

        Raises:
            RunFailed: no machine declares it, none answered, or the secure sum stays closed.
        """
        self._grid, self._timeout, nodes = grid, timeout, list(grid.get_node_ids())
        self.queries[kind] += 1
        number = self.rounds + self.queries[kind]
        self._ask_terms(grid, nodes)
        records = {"config": ConfigRecord({"server-round": number, **(config or {})})}
        content = records if arrays is None else {"arrays": arrays, **records}
        messages = self._ask_counts(grid, kind, [Message(RecordDict(content), node, kind) for node in nodes], number)  # type: ignore[arg-type]
        answered = self._answered(grid.send_and_receive(messages, timeout=timeout))
        if not answered:
            raise RunFailed(f"{kind}: no machine has answered: {'; '.join(self.refused)}")
        whole = self._counts(number, answered)
        del whole[NUM_EXAMPLES]
        return whole

    def _ask_counts(self, grid: Grid, kind: str, messages: list[Message], server_round: int) -> list[Message]:
        """The messages to machines that declare a kind of counts. Raises `RunFailed`, `SumClosed`."""
        known = {node: client for node, client in self.clients.items() if kind in self.terms[client].counts}
        messages = [message for message in messages if message.metadata.dst_node_id in known]
        if not messages:
            declared = sorted({name for terms in self.terms.values() for name in terms.counts})
            raise RunFailed(f"no machine's policy declares {kind}: they declare {', '.join(declared) or 'nothing'}")
        self._planned = 0
        self._plan()
        members = {known[message.metadata.dst_node_id]: message.metadata.dst_node_id for message in messages}
        terms, size = self.terms[min(members)].counted(kind)
        self._counting = kind, None
        if not terms.in_sum:
            return messages
        run = hashlib.sha256(f"{self.run} {kind}".encode()).hexdigest()[:32]
        opening = Opening(grid, self._timeout, run, terms, members, server_round, zero_counts(size), kind)
        self._counting = kind, opening
        return _with_own(messages, opening.prepared())

    def _counts(self, server_round: int, answered: list[Message]) -> MetricRecord:
        """The sum of what came, by name, as of one machine. Raises `SumClosed`; what came is booked all the same."""
        assert self._counting is not None
        kind, opening = self._counting
        clients = [self.clients[reply.metadata.src_node_id] for reply in answered]
        self._book(server_round, clients, kind)
        metrics = self.terms[clients[0]].counts[kind]["metrics"]
        if opening is not None:
            whole, _ = opening.opened(answered)
        else:
            pairs = zip(answered, clients, strict=True)
            same = [reply for reply, client in pairs if self.terms[client].counts[kind]["metrics"] == metrics]
            whole = np.sum([_numbers(reply.content, metrics) for reply in same], axis=0)
        return counted_content(metrics, whole).metric_records[METRICS]

    # --- terms -------------------------------------------------------------------------------------------------

    def _ask_terms(self, grid: Grid, nodes: Iterable[int]) -> None:
        unknown = [node for node in nodes if node not in self.clients]
        messages = [guard_message(node, {EXCHANGE: TERMS, ROUND: 0}) for node in unknown]
        others: Counter[str] = Counter()
        for reply in grid.send_and_receive(messages, timeout=self._timeout) if messages else []:
            if reply.has_error():
                code = reply.error.code
                why = _BUNDLE if code == Refusal.BUNDLE else f"refused ({_reason(reply)})"
                others[why if code in Refusal._value2member_map_ else _NO_GUARD] += 1
                continue
            try:
                client, text = read_blobs(reply, TERMS, 2)
                found = Terms.from_json(text.decode())
            except (MalformedMessage, OptionError, ValueError):
                others[_NO_GUARD] += 1
                continue
            number = int(client)
            if number in self.terms and self.terms[number] != found:
                raise RunFailed(f"client {number} changed its guard's terms during the run")
            if any(other.in_sum != found.in_sum for other in self.terms.values()) or (
                found.in_sum and any(other != found for other in self.terms.values())
            ):
                raise RunFailed(f"client {number}: the machines of a secure sum have the same terms: {found.to_json()}")
            self.clients[reply.metadata.src_node_id], self.terms[number] = number, found
        if not self.clients:
            others["gave no answer"] += len(messages) - others.total()
            why = "; ".join(f"{number} {words}" for words, number in others.items() if number)
            raise RunFailed(f"none of the {len(messages)} machines that were asked takes part: {why}")

    # --- the folder --------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Before anything leaves: what the whole run will cost at most. Again where a later round asks new machines."""
        if self.folder is None or self._planned == len(self.terms):
            return
        self._planned, size = len(self.terms), self._size
        self.folder.mkdir(parents=True, exist_ok=True)
        times = Counter(self.queries) + Counter({TRAIN: self.rounds if size else 0, EVALUATE: self.rounds})
        costs = {
            client: claimed_epsilon(
                terms,
                size,
                {kind: count for kind, count in times.items() if kind in terms.booked_kinds(size)},
                self.delta,
            )
            for client, terms in self.terms.items()
        }
        plan = {
            "run": self.run,
            "rounds": self.rounds,
            "numbers": size,
            "delta": self.delta,
            "strategy": type(self.inner).__name__,
            "clients": {
                str(client): asdict(terms) | {"epsilon": json_number(costs[client])}
                for client, terms in sorted(self.terms.items())
            },
        }
        write_atomic(self.folder / PLAN, json.dumps(plan, indent=1) + "\n")

    @property
    def _size(self) -> int:
        """Numbers of the model; 0: none is trained."""
        return 0 if self._model is None else self._model.size

    def _book(self, server_round: int, clients: list[int], kind: str = TRAIN) -> None:
        fresh: list[Entry] = []
        for client in clients:
            terms, size = self.terms[client], self._size
            if kind != TRAIN:
                terms, size = terms.counted(kind)
            booked = terms.booked(size, client, server_round)
            self.entries.setdefault(client, []).extend(booked.entries)
            fresh += booked.entries
        if self.folder is not None and clients:
            LedgerFile(self.folder / LEDGER, fsync=False).append(fresh)
            self._write()

    def _write(self) -> None:
        """Summary and report of what was booked so far."""
        if self.folder is None or not self.entries:
            return
        terms, size = self.terms[min(self.entries)], self._size
        times = answers_of((entry for entries in self.entries.values() for entry in entries), self.terms, size)
        done = {client: sum(of.values()) for client, of in times.items()}
        first, *others = figures(self.terms, times, self.folder / LEDGER, size, self.delta)
        found = {
            "strategy": f"guarded {type(self.inner).__name__}",
            "rounds": max(of.get(TRAIN, 0) for of in times.values()),
            "closed_rounds": {str(number): why for number, why in self.closed.items()},
            "num_parameters": size,
            "privacy": first | {"others": others},
            "terms": asdict(terms),
            "other_terms": sum(self.terms[client] != terms for client in done),
            "answers": {str(client): times for client, times in sorted(done.items())},
            "sandbox": sorted({self.terms[client].sandbox for client in done}),
            "versions": library_versions(),
            "seconds": round(time.monotonic() - self._began, 1),
        }
        write_atomic(self.folder / SUMMARY, json.dumps(found, indent=1) + "\n", durable=False)
        write_report(self.folder, found)
