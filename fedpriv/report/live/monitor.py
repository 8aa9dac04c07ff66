"""Monitoring of a run for its operator: one log line per event, metrics, and health."""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Literal

from pythonjsonlogger.json import JsonFormatter

from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say
from fedpriv.common.replies import MALFORMED
from fedpriv.common.stopping import signal_of
from fedpriv.common.verbosity import is_verbose
from fedpriv.config.schema import Config
from fedpriv.report.live.prometheus import MetricsServer, RunMetrics, serve_metrics
from fedpriv.report.live.tracking import State, Tracker
from fedpriv.report.views import secret_cohorts

Format = Literal["plain", "json"]

#: First fields of every line, in this order.
FIELDS = ("time", "level", "event", "run")
#: Seconds beyond `engine.round_timeout` after which a silent run counts as stuck: the exchange must end at that time,
#: and aggregation and evaluation follow.
SLACK = 30.0


class Monitor:
    """Receives a session's reports. It owns its log; ``server`` is set if metrics are enabled.

    Raises `OptionError` for a tool that should track the run and is not installed.
    """

    def __init__(self, config: Config, folder: Path, log: EventLog) -> None:
        privacy = config.privacy
        self._tracker = Tracker(config.tracking, folder, self._not_tracked)
        self._silent = not (config.operations.log_format or config.operations.log_file or is_verbose())
        self._secret = secret_cohorts(config)
        self.metrics = RunMetrics(config.num_rounds, privacy.max_epsilon, privacy.target_epsilon, self._secret)
        self.server: MetricsServer | None = None
        self.state = "starting"
        self._name, self._log = folder.absolute().name, log
        self._round, self._rounds = 0, config.num_rounds
        self._patience = config.engine.round_timeout + SLACK
        self._reason = ""
        self._began = self._heard = time.monotonic()

    # --- reports of a session -----------------------------------------------------------------------------

    def running(self, config: Config, done: int, epsilon: float) -> None:
        """Rounds start after round ``done``, at which ``epsilon`` was spent; ``config``: with ``auto`` resolved."""
        parts = {name: getattr(config, name).name for name in ("strategy", "dataset", "model", "engine")}
        self._round = done
        self._enter("running")
        self.metrics.running(done, epsilon, run=self._name, **parts)
        sizes = {"num_rounds": config.num_rounds, "num_clients": config.num_clients}
        fields: dict[str, Any] = {"round": done, "epsilon": epsilon, **parts, **sizes}
        self._log.event("run_resumed" if done else "run_started", **fields)
        self._log.event("run_prepared", logging.DEBUG, digest=config.digest(), options=config.to_dict())
        self._tracker.start(config, done)
        self.heard()  # starting the tools may have taken long

    def heard(self) -> None:
        """Records activity: something arrived or was done."""
        self._heard = time.monotonic()

    def round_ended(
        self, tracked: Mapping[str, Any], row: Mapping[str, Any], codes: Mapping[int, str], ignored: int, epsilon: float
    ) -> None:
        """tracked: what `tracking.kinds` are given. row: the round's line of metrics.jsonl. codes: client -> why it has
        no usable reply. epsilon: at `privacy.delta`, the maximum over clients.
        """
        self.heard()
        self._round = row["round"]
        by_code = Counter(codes.values())
        self.metrics.round_ended(row, by_code, ignored, epsilon)
        for client, code in sorted(codes.items()):
            self._log.event("client_refused", logging.WARNING, round=self._round, client=client, code=code)
        self._log.event(
            "round_ended",
            round=self._round,
            **({} if self._secret else _of_cohort(row, by_code)),
            epsilon=epsilon,
            accuracy=row["accuracy"],
        )
        self._log.event("round_timings", logging.DEBUG, round=self._round, **(row["timings"] or {}))
        self._tracker.round(tracked)
        self.heard()

    def settled(self, epsilon: float) -> None:
        """The epsilon of the whole run, where it differs from that reported after the last round."""
        self.metrics.settled(epsilon)

    def checkpoint(self, number: int) -> None:
        self._log.event("checkpoint_written", round=number)

    def finishing(self) -> None:
        """No round follows; what remains has no time limit."""
        self._enter("finishing")

    # --- health ------------------------------------------------------------------------------------------

    def healthy(self) -> tuple[bool, str]:
        """False after a failure, or if rounds are running and nothing happened for longer than an exchange may take."""
        silent = time.monotonic() - self._heard
        if self.state == "failed":
            return False, f"failed: {self._reason}"
        if self.state == "running" and silent > self._patience:
            return False, f"round {self._round + 1}: nothing happened for {silent:.0f} s"
        return True, f"{self.state}, {self._round} of {self._rounds} rounds"

    def ready(self) -> tuple[bool, str]:
        """True while rounds are running."""
        good, words = self.healthy()
        return good and self.state == "running", words

    # --- beginning and end -------------------------------------------------------------------------------

    def serve(self, address: str, port: int) -> None:
        self.server = serve_metrics(address, port, self.metrics.registry, self.healthy, self.ready)
        self._log.event("metrics_served", address=address, port=self.server.port)

    def ended(self, state: State, level: int = logging.INFO, **fields: Any) -> None:
        self._tracker.finish(state)
        self._reason = str(fields.get("reason", ""))
        self._enter(state)
        took = {} if self._secret else {"seconds": round(time.monotonic() - self._began, 3)}
        self._log.event(f"run_{state}", level, round=self._round, **took, **fields)

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        self._log.close()

    def _not_tracked(self, kind: str, reason: str) -> None:
        self._log.event("tracking_failed", logging.WARNING, kind=kind, reason=reason)
        if self._silent:
            say(f"fedpriv: {kind} no longer tracks this run; the run goes on ({reason})", file=sys.stderr, flush=True)

    def _enter(self, state: str) -> None:
        self.heard()
        self.state = state
        self.metrics.state(state)


def _of_cohort(row: Mapping[str, Any], by_code: Mapping[str, int]) -> dict[str, Any]:
    """What a round's log line says of those who took part."""
    refused = {"refused": sum(by_code.values()) - by_code[MALFORMED], "replies_refused": by_code[MALFORMED]}
    counts = {name: row[name] for name in ("participants", "dropped", "bytes_up", "bytes_down")}
    return {**refused, **counts, "seconds": round(row["seconds"], 6)}


@contextmanager
def watched(config: Config, folder: Path) -> Iterator[Monitor]:
    """The monitor of the run in ``folder``, while the run is active in this process; how that ends is an event
    too. Raises `OptionError` for a port that is taken or a log that cannot be written.
    """
    options, name = config.operations, folder.absolute().name
    style, level = options.log_format or ("plain" if options.log_file else None), str(options.log_level)
    if is_verbose():
        style, level = style or "plain", "debug"
    log = configure_logging(style, options.log_file, level=level, run=name)
    try:
        monitor = Monitor(config, folder, log)
    except OptionError:
        log.close()
        raise
    try:
        if options.metrics_port is not None:
            monitor.serve(options.metrics_address, options.metrics_port)
        yield monitor
        monitor.ended("finished")
    except KeyboardInterrupt as stop:
        monitor.ended("stopped", logging.WARNING, signal=signal.Signals(signal_of(stop)).name)
        raise
    except BaseException as error:
        monitor.ended("failed", logging.ERROR, error=type(error).__name__, reason=str(error))
        raise
    finally:
        monitor.close()


# --- events as log lines ---------------------------------------------------------------------------------


class EventLog:
    """Writes events. Nothing is written if no format was chosen.

    The logger belongs to this object and is not in the logging hierarchy: runs in one process do not mix.
    """

    def __init__(self, handler: logging.Handler | None, run: str | None, level: str = "info") -> None:
        self._logger = logging.Logger("fedpriv.report.live", level.upper())
        self._handler, self._run = handler, run
        self._adopted: list[logging.Logger] = []
        if handler is not None:
            self._logger.addHandler(handler)

    def event(self, name: str, level: int = logging.INFO, **fields: Any) -> None:
        """Writes one line. fields: JSON values; an infinite number becomes "inf", None is left out."""
        if self._handler is not None:
            known = {key: value for key, value in {"run": self._run, **fields}.items() if value is not None}
            shown = {key: "inf" if value == math.inf else value for key, value in known.items()}
            self._logger.log(level, name, extra={"fields": shown})

    def adopt(self, logger: str) -> None:
        """Also writes the records of a Python logger (event ``log``, field ``text``): only for a process whose log
        stays with the owner of the data, since such records may contain data.
        """
        if self._handler is not None:
            self._adopted.append(logging.getLogger(logger))
            self._adopted[-1].addHandler(self._handler)

    def close(self) -> None:
        for logger in self._adopted:
            logger.removeHandler(self._handler)  # type: ignore[arg-type]
        if self._handler is not None:
            self._handler.close()


def configure_logging(
    style: Format | None,
    file: str | Path | None = None,
    *,
    level: str = "info",
    run: str | None = None,
    option: str = "operations.log_file",
) -> EventLog:
    """An event log in ``style`` (None: none) to ``file`` (None: standard error), which is reopened after log
    rotation. run: a field of every line. Close it at the end.

    Raises `OptionError` that names ``option`` where the file cannot be written.
    """
    if style is None:
        return EventLog(None, run)
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler()
    else:
        try:
            handler = WatchedFileHandler(file, encoding="utf-8")
        except OSError as error:
            raise OptionError(option, file, f"cannot be written ({error.strerror})") from None
    handler.setFormatter(_JsonLines() if style == "json" else _PlainLines())
    return EventLog(handler, run, level)


def _event(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of one line, in order. A record that is not of `EventLog.event` keeps its text."""
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")  # RFC 3339
    head = {"time": moment.replace("+00:00", "Z"), "level": record.levelname.lower()}
    if (fields := getattr(record, "fields", None)) is not None:
        return {**head, "event": record.getMessage(), **fields}
    return {**head, "event": "log", "logger": record.name, "text": record.getMessage()}


class _JsonLines(JsonFormatter):
    """One JSON object a line."""

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        log_data.update(_event(record))
        if "exc_info" in message_dict:
            log_data["exc_info"] = message_dict["exc_info"]


class _PlainLines(logging.Formatter):
    """``2026-01-31T12:00:00.000Z info round_ended run=here round=3``; a text with a space is quoted."""

    def format(self, record: logging.LogRecord) -> str:
        event = _event(record)
        head = [str(event.pop(name)) for name in FIELDS[:3]]
        return " ".join([*head, *(f"{name}={_word(value)}" for name, value in event.items())])


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if text.isprintable() and not set(text) & set(' "=') and text else json.dumps(text)
