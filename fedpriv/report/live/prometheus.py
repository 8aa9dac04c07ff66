"""Prometheus metrics of a run's server, of a SuperLink and of a node.

Each has its own registry, so that several runs in one process (a sweep, tests) do not collide.
"""

from __future__ import annotations

import math
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedpriv.common.replies import MALFORMED

#: Upper ends of the histogram of round times, in seconds: from a small model in one process to a federation's.
ROUND_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600)

INFO = ("run", "strategy", "dataset", "model", "engine")
STATES = ("starting", "running", "finishing", "stopped", "finished", "failed")


class RunMetrics:
    """Metrics of a run's server. All are public or the server's own: none is about a single client, and none is a
    diagnostic that only a simulation has.
    """

    def __init__(
        self,
        num_rounds: int,
        max_epsilon: float | None = None,
        target_epsilon: float | None = None,
        secret: bool = False,
    ) -> None:
        """secret: whether cohorts are; the process' own metrics, its time above all, would tell their size."""
        self.registry = registry = CollectorRegistry()
        if not secret:
            ProcessCollector(registry=registry)

        def count(name: str, words: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"fedpriv_{name}", words, labels, registry=registry)

        def gauge(name: str, words: str, labels: tuple[str, ...] = (), value: float | None = None) -> Gauge:
            made = Gauge(f"fedpriv_{name}", words, labels, registry=registry)
            if value is not None:
                made.set(value)
            return made

        self._info = gauge("run", "Always 1; the labels describe the run", INFO)
        self._state = gauge("run_state", "1 for the current state", ("state",))
        self.state("starting")
        self._round = gauge("round", "Last complete round")
        gauge("rounds_planned", "num_rounds", value=num_rounds)
        self._rounds = count("rounds", "Rounds completed by this process")
        self._participants = gauge("participants", "Clients whose reply was used, last round")
        self._participations = count("participations", "Replies used")
        self._dropped = count("dropped", "Selected clients whose reply was missing or not used")
        self._refusals = count("refusals", "Clients that sent a code instead of a reply", ("code",))
        self._refused = count("replies_refused", "Replies that the server could not use")
        self._ignored = count("replies_ignored", "Replies from clients that were not selected, and repeated replies")
        self._received = count("received_bytes", "Bytes from clients")
        self._sent = count("sent_bytes", "Bytes to clients")
        tested = "Of the global model on the server's test set, when last evaluated"
        self._accuracy, self._loss = (gauge(name, tested, value=math.nan) for name in ("accuracy", "loss"))
        self._seconds = Histogram(
            "fedpriv_round_seconds", "Duration of a round", buckets=ROUND_SECONDS, registry=registry
        )
        self._last = gauge("last_round_timestamp_seconds", "When the last round ended", value=math.nan)
        self._epsilon = gauge("epsilon_spent", "Verified so far: the maximum over clients; +Inf without a bound")
        self._stopped = gauge("clients_stopped", "Clients that have spent their privacy budget")
        for name, value in (("max", max_epsilon), ("target", target_epsilon)):
            if value is not None:
                gauge(f"epsilon_{name}", f"privacy.{name}_epsilon", value=value)

    def running(self, done: int, epsilon: float, **info: str) -> None:
        """Rounds start after round ``done``, at which ``epsilon`` was spent. info: `INFO`."""
        self._info.labels(**info).set(1)
        self._round.set(done)
        self._epsilon.set(epsilon)

    def state(self, state: str) -> None:
        """One of `STATES`."""
        for name in STATES:
            self._state.labels(name).set(name == state)

    def round_ended(self, row: Mapping[str, Any], codes: Mapping[str, int], ignored: int, epsilon: float) -> None:
        """row: the round's line of metrics.jsonl. codes: how many clients gave each code (`MALFORMED`: the server
        refused their reply). epsilon: at `privacy.delta`, the maximum over clients.
        """
        self._round.set(row["round"])
        self._rounds.inc()
        self._epsilon.set(epsilon)
        for gauge, value in ((self._accuracy, row["accuracy"]), (self._loss, row["loss"])):
            if value is not None:
                gauge.set(value)
        if row["participants"] is None:  # a secret cohort: its gauges stay as they were made
            return
        self._participants.set(row["participants"])
        self._participations.inc(row["participants"])
        self._dropped.inc(row["dropped"])
        for code, number in codes.items():
            if code == MALFORMED:
                self._refused.inc(number)
            else:
                self._refusals.labels(code).inc(number)
        self._ignored.inc(ignored)
        self._received.inc(row["bytes_up"])
        self._sent.inc(row["bytes_down"])
        self._seconds.observe(row["seconds"])
        self._last.set_to_current_time()

    def settled(self, epsilon: float) -> None:
        self._epsilon.set(epsilon)

    def clients_stopped(self, number: int) -> None:
        self._stopped.set(number)


@dataclass(frozen=True)
class NodeSnapshot:
    """State of a node as read from its files. Epsilons are at the delta of their budget.

    max_epsilon: None where a budget has no limit. last_release: Unix time in seconds, None: never.
    """

    releases: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)  # code -> number
    epsilon_spent: Mapping[str, float] = field(default_factory=dict)  # budget -> epsilon
    max_epsilon: Mapping[str, float | None] = field(default_factory=dict)  # budget -> limit
    last_release: float | None = None
    ledger_entries: int = 0


class OnScrape(Collector):
    """What is read on every scrape. ``registry`` is for `serve_metrics`; it also holds the long-lived process's own
    metrics.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def describe(self) -> list[Metric]:
        """Empty, so that nothing is read before the first scrape."""
        return []


class NodeMetrics(OnScrape):
    """A node's metrics, read from its files on every scrape, since messages are handled by short-lived processes. Where
    ``snapshot`` raises, `fedpriv_node_readable` is 0 and no other metric is given.
    """

    def __init__(self, snapshot: Callable[[], NodeSnapshot]) -> None:
        self._snapshot = snapshot
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        def labelled(kind: Any, name: str, words: str, label: str, values: Mapping[str, float | None]) -> Metric:
            family: Metric = kind(f"fedpriv_node_{name}", words, labels=[label])
            for key, value in sorted(values.items()):
                if value is not None:
                    family.add_metric([key], value)  # type: ignore[attr-defined]
            return family

        readable = "Whether ledger and files could be read"
        try:
            now = self._snapshot()
        except Exception:  # a broken ledger must be visible as such, not as an empty page
            yield GaugeMetricFamily("fedpriv_node_readable", readable, value=0)
            return
        yield GaugeMetricFamily("fedpriv_node_readable", readable, value=1)
        yield CounterMetricFamily("fedpriv_node_releases", "Releases that left this node", value=now.releases)
        yield labelled(CounterMetricFamily, "refusals", "Requests answered by a code", "code", now.refusals)
        yield labelled(GaugeMetricFamily, "epsilon_spent", "Of each budget", "budget", now.epsilon_spent)
        yield labelled(GaugeMetricFamily, "epsilon_max", "Limit of each budget that has one", "budget", now.max_epsilon)
        yield GaugeMetricFamily("fedpriv_node_ledger_entries", "Entries of the ledger", value=now.ledger_entries)
        if now.last_release is not None:
            words = "When the last release left"
            yield GaugeMetricFamily("fedpriv_node_last_release_timestamp_seconds", words, value=now.last_release)


class SuperLinkMetrics(OnScrape):
    """A SuperLink's metrics, read on every scrape. passed, refused: requests of nodes that went on, and the others by
    HTTP status; connections: how many are open; nodes: of every node its state in Flower's words.
    """

    def __init__(
        self,
        passed: Callable[[], int],
        refused: Callable[[], Mapping[int, int]],
        connections: Callable[[], int],
        nodes: Callable[[], Iterable[str]],
    ) -> None:
        self._passed, self._refused, self._connections, self._nodes = passed, refused, connections, nodes
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        words = "Requests of registered nodes that were passed on"
        yield CounterMetricFamily("fedpriv_superlink_requests", words, value=self._passed())
        refused = CounterMetricFamily(
            "fedpriv_superlink_refusals", "Requests refused, by HTTP status", labels=["status"]
        )
        for status, number in sorted(dict(self._refused()).items()):
            refused.add_metric([str(status)], number)
        yield refused
        yield GaugeMetricFamily("fedpriv_superlink_connections", "Open connections", value=self._connections())
        nodes = GaugeMetricFamily("fedpriv_superlink_nodes", "Nodes in each state", labels=["state"])
        found = Counts(self._nodes())
        for state in sorted({"online", "offline", *found}):
            nodes.add_metric([state], found[state])
        yield nodes
