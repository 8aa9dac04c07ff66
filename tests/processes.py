"""What /proc says of processes, and waiting for it to say something."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def state(pid: int) -> str:
    """Of a process, as /proc has it: Z of one that has ended and is not buried, an empty text of none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def threads(pid: int) -> int:
    """One of a process that has only just been forked, and of what a library runs to look at the machine."""
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


def wait_until(done: Callable[[], Any], of: int | None = None, pause: float = 0.05) -> Any:
    """What ``done`` says, once it says something, asked every ``pause`` seconds; pytest's own limit ends it otherwise.
    So does the end of the process ``of``, which is to bring it about.
    """
    while not (found := done()):
        assert of is None or state(of) not in ("", "Z"), "the process ended before"
        time.sleep(pause)
    return found


def executors(node: int) -> list[int]:
    """A node's warm process; others of its children, of libraries that look at the machine, last milliseconds."""
    return [child for child in children(node) if b"executor" in command(child)]


def command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
