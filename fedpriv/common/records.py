"""What the records of a message may hold: their names, their limits, and the errors that name what is wrong.

What arrives comes from another machine. Sizes are checked before anything is copied or decoded; nothing is evaluated,
and no text of a message is repeated in full.
"""

from __future__ import annotations

import reprlib
from typing import Any, Literal

from flwr.app import ArrayRecord, RecordDict

ARRAYS, CONFIG, METRICS, DIAGNOSTICS = "arrays", "config", "metrics", "diagnostics"

#: What a message may hold at most, beside its one array: more than any of ours does.
MOST_RECORDS = 8
MOST_KEYS = 1024  # of a record
MOST_NAME = 128  # characters of a key
MOST_TEXT = 1024  # characters of a text
MOST_BLOB = 4096  # bytes of a byte string: a key, a signature, a sealed seed
MOST_BYTES = 2**23  # of a record in all; a list of a million clients
MOST_ROUND = 2**31 - 1  # round or attempt
MOST_REASON = 500  # characters of a client's reason that are kept
#: Why a server refuses a reply: it cannot be read, is larger than any reply can be, has another shape than asked for,
#: holds NaN or infinite numbers, belongs to another round or exchange, comes again, or comes from nobody who was asked.
Refused = Literal["corrupt", "oversized", "wrong_shape", "not_finite", "stale", "duplicate", "unasked"]


class MalformedMessage(ValueError):
    """A message does not hold what it must; says which key. kind: what is wrong, for counting."""

    def __init__(self, words: str, kind: Refused = "corrupt") -> None:
        super().__init__(words)
        self.kind: Refused = kind


def most_bytes(size: int) -> int:
    """More than any reply about ``size`` coordinates has: the widest, cpSGD's at most levels, has 14 bytes each."""
    return 16 * size + 2**16


def check_size(content: RecordDict, size: int) -> None:
    """Raises `MalformedMessage` for a content beyond `most_bytes`, before anything of it is decoded."""
    arrays = (array for record in content.values() if isinstance(record, ArrayRecord) for array in record.values())
    found = sum(len(array.data) for array in arrays)
    if found > most_bytes(size):
        raise MalformedMessage(f"{found} bytes, at most {most_bytes(size)} are expected", "oversized")
    sized(content)


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


def shown(value: object) -> str:
    """A value that came in a message, for an error: its repr, cut."""
    return _short.repr(value)


def shown_text(text: str, most: int = 60) -> str:
    """A text that came in a message, for an error: one line without control characters, cut."""
    cut = text[:most] + "..." if len(text) > most else text
    return "".join(letter if letter.isprintable() else " " for letter in cut)


def num_bytes(content: RecordDict) -> int:
    """Bytes of a message's content as sent (without diagnostics, which do not exist outside simulation).

    Raises `MalformedMessage` where Flower cannot count them: an empty text or list is in no message of ours.
    """
    try:
        return sum(record.count_bytes() for key, record in content.items() if key != DIAGNOSTICS)
    except (ValueError, IndexError) as error:
        raise MalformedMessage(f"a record cannot be counted: {error}") from None


def get_record(content: RecordDict, key: str, kind: type[Any]) -> Any:
    record = content.get(key)
    if not isinstance(record, kind):
        raise MalformedMessage(f"{key}: missing or of the wrong kind")
    return record


def sized(content: RecordDict) -> RecordDict:
    """The content itself. Raises `MalformedMessage` where it holds more than a message may; the size of the array that
    is read is checked where the model is known.
    """
    if len(content) > MOST_RECORDS:
        raise MalformedMessage(f"{len(content)} records, at most {MOST_RECORDS} are possible", "oversized")
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            if key != ARRAYS:
                raise MalformedMessage(f"{shown_text(key)}: no arrays are expected here")
            continue
        if len(record) > MOST_KEYS:
            raise MalformedMessage(
                f"{shown_text(key)}: {len(record)} keys, at most {MOST_KEYS} are possible", "oversized"
            )
        total = 0
        for name, value in record.items():
            if len(name) > MOST_NAME:
                raise MalformedMessage(f"{shown_text(key)}: a key of {len(name)} characters", "oversized")
            total += len(name) + _size(value, key, name)
        if total > MOST_BYTES:
            raise MalformedMessage(f"{shown_text(key)}: {total} bytes, at most {MOST_BYTES} are possible", "oversized")
    return content


def _size(value: Any, record: str, name: str) -> int:
    """Bytes of a value. Raises `MalformedMessage` for a text or a byte string that is too long."""
    if isinstance(value, list):
        if not value or not isinstance(value[0], str | bytes):  # all of one type: Flower checks that
            return 8 * len(value)
        return len(value) + sum(_size(one, record, name) for one in value)
    if isinstance(value, str | bytes):
        if len(value) > (MOST_TEXT if isinstance(value, str) else MOST_BLOB):
            words = f"{len(value)} characters or bytes are too long"
            raise MalformedMessage(f"{shown_text(record)}.{shown_text(name)}: {words}", "oversized")
        return len(value)
    return 8
