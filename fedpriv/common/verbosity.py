"""How much a command says: ``-q`` and ``-v`` of `fedpriv`, for this process and those that it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Verbosity = Literal["quiet", "normal", "verbose"]
#: An environment variable, because the jobs of a sweep may be other processes.
VARIABLE = "FEDPRIV_VERBOSITY"


def is_quiet() -> bool:
    """No progress, no tables: errors, and the last line of a result."""
    return os.environ.get(VARIABLE) == "quiet"


def is_verbose() -> bool:
    """Events of level debug are logged, and errors come with a traceback."""
    return os.environ.get(VARIABLE) == "verbose"


@contextmanager
def speaking(verbosity: Verbosity) -> Iterator[None]:
    """Context in which commands say as much; ``normal`` changes nothing."""
    before = os.environ.get(VARIABLE)
    if verbosity != "normal":
        os.environ[VARIABLE] = verbosity
    try:
        yield
    finally:
        if verbosity != "normal":
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before
