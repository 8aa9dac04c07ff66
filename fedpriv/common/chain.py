"""A hash chain over the lines of a file: what comes before a line can no longer change without being found.

    chain after line n = SHA-256(chain after line n - 1, as hexadecimal digits, followed by line n with its line break)

The chain before the first line is empty. Every line names, as its last field `before`, the chain up to it. A file of
older lines without that field can be continued: they are in the chain too, and only lines after the first chained one
must name it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

BEFORE = "before"
#: How the last field of a chained line ends it.
_END = re.compile(rb',\s?"before":\s?"([0-9a-f]{64}|)"\}$')


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
