"""The server's half: Flower's own strategies over guarded machines, with a run folder that says what it cost.

`guarded(FedAvg(...))` is a strategy. It asks the machines for their guards' terms, opens secure sums, hands the
decoded means to the strategy inside, and writes a folder. It is trusted with nothing that the machines' guarantee rests
on: they chose the terms, and their noise is in what leaves them. With own noise a server without it works too.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.files import json_number, write_atomic
from fedpriv.common.messages import EXCHANGE, MOST_REASON, ROUND, MalformedMessage, Refusal, shown_text
from fedpriv.common.replies import read_blobs
from fedpriv.common.versions import library_versions
from fedpriv.guard.account import claimed_epsilon, figures
from fedpriv.guard.arrays import METRICS, NUM_EXAMPLES, Model, model_of
from fedpriv.guard.guarded_message import GUARD, TERMS
from fedpriv.guard.opening import Opening, SumClosed, guard_message
from fedpriv.guard.run_report import write_report
from fedpriv.guard.terms import Terms
from fedpriv.privacy.events import Entry
from fedpriv.privacy.ledger import LedgerFile

log = logging.getLogger("fedpriv")

#: Numbers of a model that a server of guarded machines sends at most.
LARGEST = 2**31
_NO_GUARD = "without a guard (`fedpriv deploy node run ... guard=any`)"
#: Why a machine takes no part, for the server's log.
_BUNDLE = "whose guard.apps does not name this app as it is now (`fedpriv deploy node bundle APP`)"
SUMMARY, LEDGER, PLAN = "summary.json", "ledger.jsonl", "plan.json"


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
        self._timeout, self._began = 3600.0, time.time()
        self._grid: Grid | None = None
        self._model: Model | None = None
        self._opening: Opening | None = None

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
            own = self._opening.prepared()
        except SumClosed as closed:
            self._opening = None
            self._stays_closed(server_round, closed)
            return []
        sent = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node in own:
                message.content = RecordDict({**message.content, GUARD: own[node]})
                sent.append(message)
        return sent

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

    # --- evaluation: nothing comes of it but a fixed content ---------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

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
        if self.folder is None or self._model is None or self._planned == len(self.terms):
            return
        self._planned = len(self.terms)
        size = self._model.size
        costs = {client: claimed_epsilon(terms, size, self.rounds, self.delta) for client, terms in self.terms.items()}
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

    def _book(self, server_round: int, clients: list[int]) -> None:
        assert self._model is not None
        fresh: list[Entry] = []
        for client in clients:
            booked = self.terms[client].booked(self._model.size, client, server_round)
            self.entries.setdefault(client, []).extend(booked.entries)
            fresh += booked.entries
        if self.folder is not None and clients:
            LedgerFile(self.folder / LEDGER, fsync=False).append(fresh)
            self._write()

    def _write(self) -> None:
        """Summary and report of what was booked so far."""
        if self.folder is None or not self.entries or self._model is None:
            return
        terms = self.terms[min(self.entries)]
        size = self._model.size
        done = {client: len({entry.round for entry in entries}) for client, entries in self.entries.items()}
        first, *others = figures(self.terms, done, self.folder / LEDGER, size, self.delta)
        found = {
            "strategy": f"guarded {type(self.inner).__name__}",
            "rounds": max(done.values()),
            "closed_rounds": {str(number): why for number, why in self.closed.items()},
            "num_parameters": size,
            "privacy": first | {"others": others},
            "terms": asdict(terms),
            "other_terms": sum(self.terms[client] != terms for client in done),
            "answers": {str(client): times for client, times in sorted(done.items())},
            "sandbox": sorted({self.terms[client].sandbox for client in done}),
            "versions": library_versions(),
            "seconds": round(time.time() - self._began, 1),
        }
        write_atomic(self.folder / SUMMARY, json.dumps(found, indent=1) + "\n", durable=False)
        write_report(self.folder, found)
