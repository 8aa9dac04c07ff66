"""Answers of a run with strategy=ask, as people read them: in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADER = ("question", "of", "answer", "95 % interval")
#: Lines of one question that are shown; answers.csv has all.
MOST_LINES = 20
NOTE = (
    "The interval is for what the noise did to the answer about the rows that were asked, each by itself; it says "
    "nothing of other rows. That of a quantile holds its bin's edges too."
)


def answer_rows(summary: Mapping[str, Any] | None) -> list[list[str]]:
    """[question, of, answer, interval] of each number; of `top` the most frequent ones, most frequent first."""
    rows = []
    for one in (summary or {}).get("answers") or ():
        lines = list(zip(one["of"], one["values"], one["low"], one["high"], strict=True))
        kind, *given = one["question"].split(":")
        most = MOST_LINES
        if kind == "top":
            lines.sort(key=lambda line: -line[1])
            most = int(given[1])
        for name, value, low, high in lines[:most]:
            rows.append([one["question"], name, _short(value), f"{_short(low)} to {_short(high)}"])
        if (more := len(lines) - most) > 0 and kind != "top":
            rows.append([one["question"], f"{more:,} more in answers.csv", "", ""])
        rows += [[one["question"], remark, "", ""] for remark in one.get("remarks") or ()]
    return rows


def replies(summary: Mapping[str, Any]) -> str:
    """Who answered, in words."""
    asked = summary.get("asked") or {}
    return f"{asked.get('replied', '?')} of {summary.get('num_clients', '?')} clients answered"


def _short(value: float) -> str:
    """Five significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.5g}"
