"""Text that somebody else chose, on a terminal, in a log or in a table: it must be no more than text there."""

from __future__ import annotations

import logging
import re
from typing import Any

#: Strict: what float() takes beside it (blanks, underscores) a spreadsheet need not take for a number.
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")
#: With which a spreadsheet's formula may begin (OWASP, CSV Injection), full-width forms among them.
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def printable(text: str) -> str:
    """One line without control characters, escape sequences or invisible marks: each as Python writes it."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def cell(value: Any) -> Any:
    """A value of a CSV file: a text that a spreadsheet would compute gets an apostrophe before it; numbers stay."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


class PrintableLog(logging.Filter):
    """For a handler or a logger: whatever text a record quotes is `printable` and begins no line of its own."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(printable(one) if isinstance(one, str) else one for one in record.args)
        return True
