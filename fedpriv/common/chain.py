"""A hash chain over the lines of a file: what comes before a line can no longer change without being found.

    chain after line n = SHA-256(chain after line n - 1, as hexadecimal digits, followed by line n with its line break)

The chain before the first line is empty. Every line names, as its last field `before`, the chain up to it. A file of
older lines without that field can be continued: they are in the chain too, and only lines after the first chained one
must name it.

A line has one reading: what two JSON readers could read differently (a key that stands twice, NaN, a number beyond the
largest double, bytes that are not ASCII, ``before`` in another place than the last) is no line (`row_of`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from typing import Any

BEFORE = "before"
#: How the last field of a chained line ends it.
_END = re.compile(rb',\s?"before":\s?"([0-9a-f]{64}|)"\}$')


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(row := dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice")
    return row


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text:.40} is no finite number")
    return value


_LINES = json.JSONDecoder(object_pairs_hook=_once, parse_float=_finite, parse_constant=_finite)


def row_of(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises ValueError, RecursionError for none, or one with more than one reading."""
    row = _LINES.decode(line.decode("ascii"))
    if not isinstance(row, dict) or (row.get(BEFORE) != before(line.removesuffix(b"\n"))):
        raise ValueError("no JSON object, or `before` is not its last field")
    return row


def followed(chain: str, line: bytes) -> str:
    """The chain after one more line, given without its line break."""
    return hashlib.sha256(chain.encode() + line + b"\n").hexdigest()


def chain_of(lines: Iterable[bytes], chain: str = "") -> str:
    """The chain after all these lines, given without their line breaks."""
    for line in lines:
        chain = followed(chain, line)
    return chain


def chained(lines: Iterable[bytes], chain: str) -> tuple[list[bytes], str]:
    """(these lines, JSON objects without the field, with it; the chain after them)."""
    found = []
    for line in lines:
        found.append(line.removesuffix(b"}") + f',"{BEFORE}":"{chain}"}}'.encode())
        chain = followed(chain, found[-1])
    return found, chain


def before(line: bytes) -> str | None:
    """What a line names as the chain up to it; None where it names none."""
    found = _END.search(line)
    return found[1].decode() if found else None


def without(line: bytes) -> bytes:
    """The line before it was chained."""
    return _END.sub(b"}", line)


def broken_at(lines: Iterable[bytes], is_torn: Iterable[bool]) -> int | None:
    """Number (from 1) of the first line that does not continue the lines before it; None where all do.

    is_torn: which lines a crash cut off, so that they name nothing; they are in the chain of the next.
    """
    chain, begun = "", False
    for number, (line, torn) in enumerate(zip(lines, is_torn, strict=True), 1):
        named = before(line)
        if not torn and named != chain and (begun or named is not None):
            return number
        begun |= named is not None
        chain = followed(chain, line)
    return None
