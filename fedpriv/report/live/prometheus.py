"""Prometheus metrics of a run's server, of a SuperLink and of a node; and metrics with health over HTTP.

Each has its own registry, so that several runs in one process (a sweep, tests) do not collide.
"""

from __future__ import annotations

import errno
import math
import socket
import threading
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from fedpriv.common.command_line import address_of
from fedpriv.common.errors import OptionError
from fedpriv.common.replies import MALFORMED

#: Upper ends of the histogram of round times, in seconds: from a small model in one process to a federation's.
ROUND_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600)

INFO = ("run", "strategy", "dataset", "model", "engine")
STATES = ("starting", "running", "finishing", "stopped", "finished", "failed")


#: Metrics of a run's server: name -> what it is.
COUNTERS = {
    "rounds": "Rounds completed by this process",
    "participations": "Replies used",
    "dropped": "Selected clients whose reply was missing or not used",
    "replies_refused": "Replies that the server could not use",
    "replies_ignored": "Replies from clients that were not selected, and repeated replies",
    "received_bytes": "Bytes from clients",
    "sent_bytes": "Bytes to clients",
}
GAUGES = {
    "round": "Last complete round",
    "rounds_planned": "num_rounds",
    "participants": "Clients whose reply was used, last round",
    **dict.fromkeys(("accuracy", "loss"), "Of the global model on the server's test set, when last evaluated"),
    "last_round_timestamp_seconds": "When the last round ended",
    "epsilon_spent": "Verified so far: the maximum over clients; +Inf without a bound",
    "clients_stopped": "Clients that have spent their privacy budget",
    "epsilon_max": "privacy.max_epsilon",
    "epsilon_target": "privacy.target_epsilon",
}


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
        first = {"rounds_planned": num_rounds, "epsilon_max": max_epsilon, "epsilon_target": target_epsilon}
        first |= dict.fromkeys(("accuracy", "loss", "last_round_timestamp_seconds"), math.nan)
        made = {name: words for name, words in GAUGES.items() if first.get(name, 0.0) is not None}
        self._gauges = {name: Gauge(f"fedpriv_{name}", words, registry=registry) for name, words in made.items()}
        self._set(first)
        self._counts = {name: Counter(f"fedpriv_{name}", words, registry=registry) for name, words in COUNTERS.items()}
        self._info = Gauge("fedpriv_run", "Always 1; the labels describe the run", INFO, registry=registry)
        self._state = Gauge("fedpriv_run_state", "1 for the current state", ("state",), registry=registry)
        words = "Clients that sent a code instead of a reply"
        self._refusals = Counter("fedpriv_refusals", words, ("code",), registry=registry)
        words = "Duration of a round"
        self._seconds = Histogram("fedpriv_round_seconds", words, buckets=ROUND_SECONDS, registry=registry)
        self.state("starting")

    def _set(self, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            if value is not None:
                self._gauges[name].set(value)

    def running(self, done: int, epsilon: float, **info: str) -> None:
        """Rounds start after round ``done``, at which ``epsilon`` was spent. info: `INFO`."""
        self._info.labels(**info).set(1)
        self._set({"round": done, "epsilon_spent": epsilon})

    def state(self, state: str) -> None:
        """One of `STATES`."""
        for name in STATES:
            self._state.labels(name).set(name == state)

    def round_ended(self, row: Mapping[str, Any], codes: Mapping[str, int], ignored: int, epsilon: float) -> None:
        """row: the round's line of metrics.jsonl. codes: how many clients gave each code (`MALFORMED`: the server
        refused their reply). epsilon: at `privacy.delta`, the maximum over clients.
        """
        self._set({name: row[name] for name in ("round", "accuracy", "loss")} | {"epsilon_spent": epsilon})
        self._counts["rounds"].inc()
        if row["participants"] is None:  # a secret cohort: its metrics stay as they were made
            return
        self._set({"participants": row["participants"]})
        self._gauges["last_round_timestamp_seconds"].set_to_current_time()
        self._seconds.observe(row["seconds"])
        refused = {"replies_refused": codes.get(MALFORMED, 0), "replies_ignored": ignored}
        passed = {"received_bytes": row["bytes_up"], "sent_bytes": row["bytes_down"], "dropped": row["dropped"]}
        for name, number in {"participations": row["participants"], **refused, **passed}.items():
            self._counts[name].inc(number)
        for code, number in codes.items():
            if code != MALFORMED:
                self._refusals.labels(code).inc(number)

    def settled(self, epsilon: float) -> None:
        self._set({"epsilon_spent": epsilon})

    def clients_stopped(self, number: int) -> None:
        self._set({"clients_stopped": number})


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


def _labelled(kind: Any, name: str, words: str, label: str, values: Mapping[str, float | None]) -> Metric:
    family: Metric = kind(f"fedpriv_{name}", words, labels=[label])
    for key, value in sorted(values.items()):
        if value is not None:
            family.add_metric([key], value)  # type: ignore[attr-defined]
    return family


class NodeMetrics(OnScrape):
    """A node's metrics, read from its files on every scrape, since messages are handled by short-lived processes. Where
    ``snapshot`` raises, `fedpriv_node_readable` is 0 and no other metric is given.
    """

    def __init__(self, snapshot: Callable[[], NodeSnapshot]) -> None:
        self._snapshot = snapshot
        super().__init__()

    def collect(self) -> Iterator[Metric]:
        readable = "Whether ledger and files could be read"
        try:
            now = self._snapshot()
        except Exception:  # a broken ledger must be visible as such, not as an empty page
            yield GaugeMetricFamily("fedpriv_node_readable", readable, value=0)
            return
        yield GaugeMetricFamily("fedpriv_node_readable", readable, value=1)
        yield CounterMetricFamily("fedpriv_node_releases", "Releases that left this node", value=now.releases)
        yield _labelled(CounterMetricFamily, "node_refusals", "Requests answered by a code", "code", now.refusals)
        yield _labelled(GaugeMetricFamily, "node_epsilon_spent", "Of each budget", "budget", now.epsilon_spent)
        yield _labelled(
            GaugeMetricFamily, "node_epsilon_max", "Limit of each budget that has one", "budget", now.max_epsilon
        )
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
        words = "Requests refused, by HTTP status"
        refused = {str(status): number for status, number in self._refused().items()}
        yield _labelled(CounterMetricFamily, "superlink_refusals", words, "status", refused)
        yield GaugeMetricFamily("fedpriv_superlink_connections", "Open connections", value=self._connections())
        states = {"online": 0, "offline": 0, **Counts(self._nodes())}
        yield _labelled(GaugeMetricFamily, "superlink_nodes", "Nodes in each state", "state", states)


# --- metrics and health over HTTP ------------------------------------------------------------------------

#: (whether all is well, one line for a person)
Health = Callable[[], tuple[bool, str]]


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds for a request: a silent connection must not hold a thread

    def log_message(self, format: str, *args: Any) -> None:
        """Does nothing: scrapes are not logged."""


class MetricsServer:
    """Answers until closed. ``port`` is the actual port if 0 was requested."""

    def __init__(self, server: ThreadingWSGIServer) -> None:
        self._server, self.port = server, int(server.server_port)
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_metrics(
    address: str,
    port: int,
    registry: CollectorRegistry,
    healthy: Health,
    ready: Health | None = None,
    *,
    options: tuple[str, str] = ("operations.metrics_address", "operations.metrics_port"),
) -> MetricsServer:
    """Serves ``registry`` at /metrics, ``healthy`` at /healthz and ``ready`` (None: the same) at /readyz; 503 where
    a check fails or raises. port 0: any free port.

    Raises `OptionError` that names one of ``options`` where the port is taken or the address is not one of this
    machine.
    """
    metrics = make_wsgi_app(registry)
    checks = {"/healthz": healthy, "/readyz": ready or healthy}

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            found: Iterable[bytes] = metrics(environ, start_response)
            return found
        status, words = "404 Not Found", "allowed: /metrics, /healthz, /readyz"
        if path in checks:
            good, words = _asked(checks[path])
            status = "200 OK" if good else "503 Service Unavailable"
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            status, words = "405 Method Not Allowed", "allowed: GET, HEAD"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [f"{words}\n".encode()]

    try:
        (family, *_, place), *_ = socket.getaddrinfo(
            address_of(address), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        kind = type("Server", (ThreadingWSGIServer,), {"address_family": family})
        server: Any = make_server(str(place[0]), port, app, kind, _Handler)
    except OSError as error:  # socket.gaierror too
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            words = f"{error.strerror}; allowed: a free port (0: any), null (no metrics)"
            raise OptionError(options[1], port, words) from None
        raise OptionError(options[0], address, f"is no address of this machine ({error.strerror})") from None
    return MetricsServer(server)


def _asked(check: Health) -> tuple[bool, str]:
    try:
        return check()
    except Exception as error:  # an exception counts as a failed check
        return False, f"the check itself failed: {type(error).__name__}"
