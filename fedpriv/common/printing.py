"""Untrusted text for a terminal, a log or a table: escaped, so that it stays plain text there."""

from __future__ import annotations

import logging
import re
from typing import Any, TextIO

from fedpriv.common.errors import FedprivError

#: Strict: float() accepts more (blanks, underscores), which a spreadsheet need not read as a number.
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")
#: Characters that may begin a spreadsheet formula (OWASP, CSV Injection), including full-width forms.
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def printable(text: str) -> str:
    """One line without control characters, escape sequences or invisible marks: each as Python writes it."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def plain(text: str) -> str:
    """As `printable`, of several lines with tabs."""
    return re.sub(r"[^\n\t]+", lambda part: printable(part[0]), text)


def cell(value: Any) -> Any:
    """A value of a CSV file: text that a spreadsheet would evaluate is prefixed with an apostrophe; numbers are not."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


class PrintableLog(logging.Filter):
    """For a handler or a logger: text quoted in a record is made `printable` and cannot start a line of its own."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(printable(one) if isinstance(one, str) else one for one in record.args)
        return True


class OneLine(logging.Filter):
    """For a logger: of an error that a user can mend, its words in place of a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(error := record.exc_info[1], FedprivError):
            record.msg, record.args, record.exc_info = f"{record.getMessage()}: {error}", (), None
        return True


def say(*values: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """As the built-in ``print``; what a terminal would take for a command is written as Python writes it.

    Names of classes, files and runs are anybody's: all that this project prints passes here. So is what a terminal's
    encoding lacks (an epsilon in ASCII).
    """
    text = plain(sep.join(map(str, values)))
    try:
        print(text, end=end, file=file, flush=flush)
    except UnicodeEncodeError:
        print(text.encode("ascii", "backslashreplace").decode(), end=end, file=file, flush=flush)
