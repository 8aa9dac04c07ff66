"""Events as log lines, plain or JSON: one line per event, with the same names in both."""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Literal

from pythonjsonlogger.json import JsonFormatter

from fedpriv.common.errors import OptionError

Format = Literal["plain", "json"]

#: First fields of every line, in this order.
FIELDS = ("time", "level", "event", "run")


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
            known = {"run": self._run, **fields}
            shown = {key: _finite(value) for key, value in known.items() if value is not None}
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


def _finite(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _event(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of one line, in order. A record that is not of `EventLog.event` keeps its text."""
    fields = getattr(record, "fields", None)
    name = record.getMessage() if fields is not None else "log"
    rest = fields if fields is not None else {"logger": record.name, "text": record.getMessage()}
    return {"time": _time(record), "level": record.levelname.lower(), "event": name, **rest}


def _time(record: logging.LogRecord) -> str:
    """RFC 3339, UTC, milliseconds."""
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
