"""Test files are imported in another order in each process of a session: what one has compiled, the others read.

In a fresh checkout no file is compiled. Processes that begin together and go the same way would each compile all of
them, and what they import of libraries, at the same moment.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
from rotation import whole_suite

T = TypeVar("T")


def begun_elsewhere(files: Sequence[T], number: int, of: int) -> list[T]:
    """All of them, from the part on that belongs to process ``number`` of so many."""
    start = len(files) * number // of
    return [*files[start:], *files[:start]]


def place_of(config: pytest.Config) -> tuple[int, int]:
    """Which process of how many this is: (0, 1) of a session with a single one."""
    worker = getattr(config, "workerinput", None)
    return (int(worker["workerid"].removeprefix("gw")), worker["workercount"]) if worker else (0, 1)


def import_tests(config: pytest.Config, root: Path) -> None:
    """Those of a whole run in several processes. A file that cannot be imported is reported when it is collected."""
    number, of = place_of(config)
    if of == 1 or not whole_suite(config) or config.getoption("ignore"):
        return
    for file in begun_elsewhere(sorted(root.rglob("test_*.py")), number, of):
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        with suppress(Exception):
            importlib.import_module(file.stem)
