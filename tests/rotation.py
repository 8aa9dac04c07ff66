"""Tests of which a run of the whole suite takes one part, another for every commit: ``@pytest.mark.rotates(3)``, or
``rotates(2, place)``, where ``place`` gives a number to a case (the test's own arguments).

For tests that go the same way for many methods, variants or trainers, and for files that start a dozen processes, of
which a third is run (`together`). In the rooms of `IN_TURN` slow tests without a mark (`speed.LIST`) take turns too, in
`PARTS` parts, and none with a mark in fewer; one with ``rotates(1)`` always runs. The part follows from the commit's
hash, so a checkout always has the same one. All cases run where a file or ``-k`` is asked for by name, as when one
changes a method, and with FEDPRIV_ALL_RUNS=1 (``FEDPRIV_ALL_RUNS=1 make test``).
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from speed import LIST, function_of

ROOT = Path(__file__).resolve().parents[1]

#: Of slow tests of rooms on which no guarantee rests alone.
PARTS = 12
UPPER = ("api", "attacks", "checking", "doors", "engines", "methods", "report", "runs", "studies", "system")
#: Rooms whose guarantees have fast tests as well: their slow ones start processes, half of them at a commit.
PROCESSES = ("apps", "certificates", "contract", "deployment", "guard")
#: Room -> the parts of its slow tests. Of others every one runs: mechanisms, privacy, secure_sum, client, server.
TURNS = dict.fromkeys((*UPPER, "config", "data", "training"), PARTS) | dict.fromkeys(PROCESSES, 2)


@cache
def slow() -> dict[str, int]:
    """The slow tests of these rooms -> a place for each."""
    names = (name for name in LIST.read_text().split() if room_of(name) in TURNS)
    return {name: place for place, name in enumerate(names)}


def room_of(function: str) -> str:
    return function.partition("/")[0]


@cache
def commit() -> int:
    """The hash of the commit that is checked out; 0 where there is no repository."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    head = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return int(head or "0", 16)


def everything() -> bool:
    return bool(os.environ.get("FEDPRIV_ALL_RUNS") or os.environ.get("FEDPRIV_STRESS"))


def is_part(place: int, parts: int) -> bool:
    """Whether today's part is the one that holds what has this place in a list."""
    return everything() or place % parts == commit() % parts


def whole_suite(config: pytest.Config) -> bool:
    """Nothing was chosen by name."""
    here = {str(ROOT), str(ROOT / "tests")}
    asked = {str((config.invocation_params.dir / name).resolve()) for name in config.args}
    return asked <= here and not config.getoption("keyword")


def together(number: int) -> Callable[..., int]:
    """A place for all cases of a test or of a file."""
    return lambda **arguments: number


def _arguments(item: pytest.Item) -> dict[str, Any]:
    case = getattr(item, "callspec", None)
    return dict(case.params) if case is not None else {}


def left_out(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """The cases of other commits' parts. A function's cases are dealt out in turn unless they have a place."""
    seen: Counter[str] = Counter()
    others = set()
    for item in items:
        marker, function = item.get_closest_marker("rotates"), function_of(item.nodeid)
        if marker is None and function not in slow():
            continue
        in_room = TURNS.get(room_of(function), 1)
        parts, *place = (in_room,) if marker is None else marker.args
        if parts > 1:
            parts = max(parts, in_room)
        if place:
            number = place[0](**_arguments(item))
        else:  # functions begin at different commits, or one would run the first cases of all
            number = seen[function] + (slow()[function] if function in slow() else crc32(function.encode()))
        seen[function] += 1
        if not is_part(number, parts):
            others.add(item)
    return others
