"""The figures that a strategy itself reports, for the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.report.reading import RunFolder
from fedpriv.report.words import figure, number, pick


def method_figures(run: RunFolder) -> list[tuple[str, str, str]]:
    """(name, first value, last value) of every figure that the strategy itself reports."""
    first: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for row in run.rounds:
        known = pick(row, "figures")
        figures = dict(known) if isinstance(known, Mapping) else {}
        first = figures | first
        last |= figures
    return [(name, _value(first[name]), _value(last[name])) for name in sorted(last)]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):  # by client
        words = [f"{key}: {_value(item)}" for key, item in list(value.items())[:8]]
        return ", ".join(words) + (" …" if len(value) > 8 else "")
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value[:8]) + (" …" if len(value) > 8 else "")
    known = number(value)
    return str(value) if known is None else figure(known)
