"""A foreign app on one shard of a node's data: a message goes in, arrays come out, and nothing else leaves or stays.

`child` has the processes, `syscalls` what they may ask of the kernel, `root` the files they see, `record` the bytes
that come back. docs/guard_sandbox.md says what a hostile app could still learn: what time tells.
"""

from __future__ import annotations

import ast
import json
import math
import os
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.common.errors import FedprivError
from fedpriv.common.places import ROOT
from fedpriv.guard import root
from fedpriv.guard.child import LONGEST
from fedpriv.guard.launch import START, started
from fedpriv.guard.record import NotARecord, arrays_of, printable
from fedpriv.guard.standing import Lender, Lent
from fedpriv.guard.warm import ALWAYS

#: Libraries that are imported once, before any app runs, if an app names them; further ones: `Sandbox(warm=...)`. What
#: runs at their import is trusted to leave nothing behind but themselves.
WARM = frozenset(
    {
        *(
            "flwr",
            "flwr_datasets",
            "datasets",
            "jax",
            "flax",
            "optax",
            "joblib",
            "lightgbm",
            "numpy",
            "opacus",
            "pandas",
        ),
        *(
            "PIL",
            "pyarrow",
            "scipy",
            "sklearn",
            "statsmodels",
            "tensorflow",
            "keras",
            "torch",
            "torchvision",
            "xgboost",
        ),
    }
)
#: What a library imports when it is first used, which a shard would otherwise pay for.
LATER = {"torch": ("torch._dynamo", "torch.optim"), "sklearn": ("sklearn.linear_model",)}
#: Bytes of a file whose imports are read.
LONGEST_SOURCE = 1 << 20
#: Seconds that the trusted processes have to end an app that was told to.
GRACE = 10.0


class SandboxUnavailable(FedprivError):
    """The kernel of this machine does not confine a foreign app; says what is missing."""


@dataclass(frozen=True)
class Limits:
    """Of one answer. memory_bytes: what the app may map beyond its libraries; its /tmp has a quarter of it.
    processor_s, wall_s: seconds. answer_bytes: of the record. pad_s: every answer takes exactly these seconds.
    processes: threads of the app; it has one process.
    """

    memory_bytes: int
    processor_s: float
    wall_s: float
    answer_bytes: int
    pad_s: float | None = None
    processes: int = 64

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value}: must be a positive number")
        if self.pad_s is not None and self.pad_s <= self.wall_s:
            raise ValueError(f"pad_s={self.pad_s}: must exceed wall_s={self.wall_s}, after which an app is ended")


@dataclass(frozen=True)
class Answer:
    """arrays: None where nothing usable came. fault: why, for the node's operator; it depends on the data and is never
    sent. start_s: seconds until the app's first line; seconds, processor_s: until its end. memory_bytes: in memory at
    most, with its libraries.
    """

    arrays: tuple[np.ndarray, ...] | None
    seconds: float
    fault: str | None
    start_s: float = math.nan
    processor_s: float = math.nan
    memory_bytes: int = 0


def libraries_of(app: Path, warm: frozenset[str] = WARM) -> list[str]:
    """The modules of ``warm`` libraries that an app's files name in an import, in order."""
    found: set[str] = set()
    files = (file for file in sorted(app.rglob("*.py")) if file.is_file() and not file.is_symlink())
    for file in files:
        with suppress(SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            if file.stat().st_size > LONGEST_SOURCE:
                continue
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Import):
                    found.update(name.name for name in node.names)
                elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    found.add(node.module)
    named = sorted(name for name in found if name.partition(".")[0] in warm)
    later = (
        module
        for library, modules in LATER.items()
        if library in {n.partition(".")[0] for n in named}
        for module in modules
    )
    return [*dict.fromkeys([*named, *later])]


class Sandbox:
    """Context: an app's warm process, for one message or many. `ask` may be called from several threads.

    app: an unpacked Flower app. data: where it expects its data. confined=False: the same processes without namespaces
    and filters, for code that the policy approves. warm: further libraries to import before. Raises
    `SandboxUnavailable`. lender: has a sandbox that an earlier message used, and gets this one back if nothing failed.
    """

    def __init__(
        self,
        app: Path,
        data: Path,
        limits: Limits,
        *,
        confined: bool = True,
        warm: frozenset[str] = frozenset(),
        lender: Lender | None = None,
    ) -> None:
        self.app, self.data, self.limits, self.confined = app.resolve(), Path(os.path.abspath(data)), limits, confined
        self.libraries = libraries_of(self.app, WARM | warm)
        #: Whether the libraries are imported once: not where one of them starts a thread at import.
        self.is_warm = False
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self.lender, self._whole = lender, True
        self._lent: Lent | None = None
        self._sending, self._probe = threading.Lock(), False

    def __enter__(self) -> Sandbox:
        if self.confined and sys.platform != "linux":
            raise SandboxUnavailable(f"{sys.platform}: namespaces are a Linux kernel's")
        always = list(ALWAYS[-1:] if self._probe else ALWAYS)
        self.is_warm = self._start([*always, *self.libraries]) == 1
        if not self.is_warm:
            self.__exit__()
            if (threads := self._start(always)) != 1:
                raise SandboxUnavailable(f"the import of Flower leaves {threads} threads, and forks need one")
        return self

    def _start(self, libraries: list[str]) -> int:
        """Starts the processes, or borrows them; returns the number of threads after the imports."""
        given = {
            **asdict(self.limits),
            "app": str(self.app),
            "data": str(self.data),
            "data_is_folder": self.data.is_dir(),
            "confined": self.confined,
            "probe": self._probe,
            "libraries": libraries,
            "packages": root.libraries(),
            "project": str(ROOT),
            "places": [_identity(self.app), _identity(self.data)],
        }
        if self.lender is not None:
            with suppress(OSError):  # a lender that has ended: this message has a sandbox of its own
                self._lent = self.lender.take(given, 2 * START)
        if self._lent is not None:
            self._socket, told = self._lent.keeper, self._lent.told
        else:
            self._process, self._socket, told = started(given)
        if "failed" in told:
            self._end(whole=False)
            raise SandboxUnavailable(_advice(told["failed"]))
        return int(told["threads"])

    def __exit__(self, *_: object) -> None:
        self._end(whole=self._whole)

    def _end(self, whole: bool) -> None:
        """whole: a lent sandbox may be lent again; otherwise it is ended, as one of this process's own always is."""
        if self._lent is not None:
            self._lent.end(whole)
        elif self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()  # the kernel ends what it started
            self._process.wait()
        self._socket = self._process = self._lent = None

    def ask(self, message: bytes, shard: Path | None) -> Answer:
        """Runs the app on a message (`request_bytes`) and one shard, a copy of which appears at
        `data`; None, or the real data: itself.
        """
        if self._socket is None:
            raise ValueError("a sandbox is a context: ask inside `with`")
        began = time.monotonic()
        told: dict[str, Any] = {}
        arrays, fault = None, None
        try:
            record, fault, told = self._record(message, shard, began)
            if "failed" in told:
                raise SandboxUnavailable(_advice(told["failed"]))
            arrays = arrays_of(record) if fault is None else None
        except NotARecord as error:
            fault = _why(str(error), told)
        except BaseException:
            self._whole = False
            raise
        finally:  # of a broken sandbox too: the next shard has a clock
            if self.limits.pad_s is not None:
                time.sleep(max(0.0, began + self.limits.pad_s - time.monotonic()))
        first_line = (told.get("began") or math.nan) - began
        used = told.get("processor_s", math.nan), told.get("memory_bytes", 0)
        return Answer(arrays, time.monotonic() - began, fault, first_line, *used)

    def _record(self, message: bytes, shard: Path | None, began: float) -> tuple[bytes, str | None, dict[str, Any]]:
        """What the app wrote, why that is none, and what the keeper says of its end."""
        assert self._socket is not None
        if shard is None and not self.data.exists():
            raise FileNotFoundError(f"data={self.data}: there is nothing, and no shard to show in its place")
        if shard is not None and self.data.exists() and shard.is_dir() != self.data.is_dir():
            wanted = "folder" if self.data.is_dir() else "file"
            raise ValueError(f"shard={shard}: must be a {wanted}, as {self.data} is")
        if shard is not None and self.data.exists() and shard.samefile(self.data):
            shard = None  # all there is: no other shard, of which the disk could tell
        head = json.dumps({"shard": None if shard is None else str(shard.resolve(strict=True))}).encode()
        answer, writing = os.pipe()
        leash, held = socket.socketpair()
        given = os.memfd_create("message", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(given), "wb") as file:
                file.write(head + b"\n" + message)
            os.lseek(given, 0, os.SEEK_SET)
            with self._sending:
                socket.send_fds(self._socket, [b"."], [given, writing, held.fileno()])
            os.close(writing)
            writing = -1
            held.close()
            record, fault = self._read(answer, began)
            with suppress(OSError):
                leash.shutdown(socket.SHUT_WR)
            return record, fault, self._told(leash)
        finally:
            for descriptor in (answer, given, *([writing] if writing >= 0 else [])):
                os.close(descriptor)
            leash.close()
            held.close()

    def _read(self, answer: int, began: float) -> tuple[bytes, str | None]:
        """At most answer_bytes, until the app closes its end or its time is over."""
        parts: list[bytes] = []
        size = 0
        while size <= self.limits.answer_bytes:
            left = began + self.limits.wall_s - time.monotonic()
            if left <= 0 or not select.select([answer], [], [], left)[0]:
                return b"", f"no answer in wall_s={self.limits.wall_s:g} seconds"
            part = os.read(answer, min(1 << 20, self.limits.answer_bytes + 1 - size))
            if not part:
                return b"".join(parts), None
            parts.append(part)
            size += len(part)
        return b"", f"more than answer_bytes={self.limits.answer_bytes}"

    def _told(self, leash: socket.socket) -> dict[str, Any]:
        """What the keeper says once the app is gone. Where it says nothing, everything is ended."""
        leash.settimeout(GRACE)
        try:
            told = json.loads(leash.recv(LONGEST) or b"null")
        except OSError:
            told = None
        if told is None:
            self._end(whole=False)
            raise SandboxUnavailable("an app did not end when told to, so its sandbox was ended")
        return dict(told)


def _identity(place: Path) -> tuple[int, int] | None:
    """Of the file or folder that is there now: a mount of another one that had its name shows that one still."""
    with suppress(OSError):
        found = place.stat()
        return found.st_dev, found.st_ino
    return None


def _why(error: str, told: dict[str, Any]) -> str:
    status, reason = told.get("status", 0), told.get("reason", "ended")
    if error == "nothing came" and reason != "told to end":
        return f"the app ended without an answer ({reason}, status {status})"
    return error


def _advice(failed: str) -> str:
    """For the operator: what failed, and what to do."""
    words = f"the sandbox cannot be built here: {printable(failed.encode())}"
    if "new namespaces" in failed or "uid_map" in failed or "setgroups" in failed:
        words += (
            "; allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1 on Debian, "
            "kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu; in a container, a seccomp profile with unshare)"
        )
    elif "open_tree" in failed or "mount_setattr" in failed or "seccomp" in failed:
        words += "; Linux 5.12 or later with seccomp filters is needed"
    return words


@cache
def available() -> str | None:
    """None, or one line: what this machine lacks to confine a foreign app, and what to install or allow."""
    here = Path(__file__).resolve().parent
    sandbox = Sandbox(here, here, Limits(1 << 28, 30, 60, 1000))
    sandbox.libraries, sandbox._probe = [], True
    try:
        with sandbox:
            answer = sandbox.ask(b"", None)
    except SandboxUnavailable as error:
        return str(error)
    return answer.fault
