"""Whether one shard can tell another anything on this machine's kernel: all that an app may ask of it is tried.

Attempts are generated: every system call of the filter's lists x every descriptor and path that a shard can name x the
flags of the call. A first shard makes all of them. A second one, after it or beside it, makes those that change nothing
and notes each result. A result tells of the first shard if it agrees with none that was noted beside or after a first
shard that did nothing; all of these come before, since a mark may stay. It must tell a second time, under new names.

A pair of its own looks at time: with padding, whether a second shard's clock says that the first one lasted.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedpriv.guard import syscalls
from fedpriv.guard.attempts import CLOCK, LAST
from fedpriv.guard.processes import LONGEST
from fedpriv.guard.sandbox import GRACE, Answer, Limits, Sandbox, SandboxUnavailable

#: Second shards of each kind; what tells where their clock does.
TIMES, GAP = 2, f"{CLOCK} (after one that lasted)"
LIMITS = Limits(256 << 20, 120, 240, 16 << 20)
#: Of the pair that looks at time: padding gives each start the same.
PADDED = Limits(256 << 20, 2, 1.5, 1 << 20, pad_s=2.0)


@dataclass(frozen=True)
class Probed:
    """calls, targets, attempts: how many were tried; differing: labels of those that told of another shard."""

    calls: int
    targets: int
    attempts: int
    differing: tuple[str, ...]
    seconds: float

    @property
    def in_words(self) -> str:
        tried = f"{self.calls} system calls on {self.targets} descriptors and paths, {self.attempts:,} attempts"
        if not self.differing:
            return f"{tried}: no shard saw anything of another, after it or beside it"
        return f"{tried}: {len(self.differing)} told a shard of another, as {self.differing[0]}"


def probe(times: int = TIMES) -> Probed:
    """Tries this machine's sandbox. times: second shards of each kind. Raises `SandboxUnavailable` where there is none,
    or a shard that tries everything does not come to its end.
    """
    began, marked = time.monotonic(), dict[str, int]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedpriv-probe-")))
        (folder / "app").mkdir()
        for name in ("data.csv", "shard.csv"):
            (folder / name).write_text("x\n1\n")
        shard = folder / "shard.csv"
        boxes = [
            stack.enter_context(Sandbox(folder / "app", folder / "data.csv", LIMITS, probing=True)) for _ in range(2)
        ]

        def second(firsts: tuple[str, ...], stays: str, mark: str) -> Iterator[dict[str, int]]:
            """What a second shard notes after each of the firsts, and beside one that stays, here and elsewhere."""
            see = f"see {mark}".encode()
            for first in firsts:
                marked.update(_noted(boxes[0].ask(f"{first} {mark}".encode(), shard)))
                yield _noted(boxes[0].ask(see, shard))
            for box in boxes:
                with _staying(box, f"{stays} {mark}", shard):
                    yield _noted(boxes[0].ask(see, shard))

        def told() -> Iterator[str]:
            mark = secrets.token_hex(8)
            quiet = [noted for _ in range(times) for noted in second(("idle",), "wait", mark)]
            after = [noted for _ in range(times) for noted in second(("act", "backwards"), "hold", mark)]
            for kind, *pair in (
                ("after it", quiet[0::3], after[0::4] + after[1::4]),
                ("beside it", quiet[1::3] + quiet[2::3], after[2::4] + after[3::4]),
            ):
                for label in quiet[0]:
                    without, with_first = ({noted.get(label) for noted in notes} for notes in pair)
                    if not without & with_first:
                        yield f"{label} ({kind})"

        def gap(first: bytes) -> float:
            """Seconds from the beginning of a first shard to a second one, by its clock."""
            with Sandbox(folder / "app", folder / "data.csv", PADDED, probing=True) as box:
                asked = time.monotonic()
                box.ask(first, shard)
                return _noted(box.ask(b"clock", shard))[CLOCK] / 1000 - asked

        def late() -> list[str]:
            return [GAP] if gap(b"last") - gap(b"idle") > LAST / 2 else []

        differing = [*told(), *late()]
        if differing:  # another process of this machine may have changed something just then
            again = {*told(), *late()}
            differing = [label for label in differing if label in again]
    calls = {label.partition(" ")[0] for label in marked} & {*syscalls.all_numbers()}
    targets = {label.partition(" ")[2] for label in marked if label.startswith(("fstat ", "lstat "))}
    return Probed(len(calls), len(targets), len(marked) + 1, tuple(differing), time.monotonic() - began)


def _noted(answer: Answer) -> dict[str, int]:
    if answer.arrays is None:
        raise SandboxUnavailable(f"the probe's shard did not answer: {answer.fault}")
    results, text = answer.arrays
    return dict(zip(text.tobytes().decode().splitlines(), results.tolist(), strict=True))


@contextmanager
def _staying(box: Sandbox, role: str, shard: Path) -> Iterator[None]:
    """A shard of that role, which has done what it does, and is there."""
    with box.begin(role.encode(), shard) as leash:
        leash.settimeout(GRACE)
        _, (descriptor, *_), *_ = socket.recv_fds(leash, LONGEST, 1)
        until = time.monotonic() + LIMITS.wall_s
        while not os.fstat(descriptor).st_size:
            if time.monotonic() > until or select.select([leash], [], [], 0.01)[0]:
                raise SandboxUnavailable("the probe's shard ended before its time")
        yield
        os.close(descriptor)
        leash.shutdown(socket.SHUT_WR)
        leash.recv(LONGEST)
