"""A foreign app on one shard of a node's data: a message goes in, arrays come out, and nothing else leaves or stays.

`child` has the processes, `syscalls` what they may ask of the kernel, `root` the files they see, `record` the bytes
that come back. docs/guard_sandbox.md says what a hostile app could still learn: what time tells.
"""

from __future__ import annotations

import ast
import json
import logging
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedpriv.common.errors import FedprivError
from fedpriv.common.places import ROOT
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.guard import groups, root
from fedpriv.guard.processes import ALWAYS, LONGEST, PROBE, START, Lender, Lent, started
from fedpriv.guard.record import NotARecord, arrays_of, printable

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

log = logging.getLogger("fedpriv")


class SandboxUnavailable(FedprivError):
    """The kernel of this machine does not confine a foreign app; says what is missing."""


@dataclass(frozen=True)
class Limits:
    """Of one answer. memory_bytes: what the app may map beyond its libraries; its /tmp has a quarter of it.
    processor_s, wall_s: seconds. answer_bytes: of the record. pad_s: every answer takes exactly these seconds, or so
    many times as many as it needs.
    processes: threads of the app; it has one process.
    """

    memory_bytes: int
    processor_s: float
    wall_s: float
    answer_bytes: int
    pad_s: float | None = None
    processes: int = 64

    @classmethod
    def of(cls, rules: GuardPolicy, answer_bytes: int, pad_s: float | None = None) -> Limits:
        """Those that a policy sets."""
        times = rules.processor_seconds, rules.wall_seconds
        return cls(rules.memory_mib * 2**20, *times, answer_bytes, pad_s, rules.processes)

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
    probing: `fedpriv.guard.probe` in the place of the app.
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
        probing: bool = False,
    ) -> None:
        self.app, self.data, self.limits, self.confined = app.resolve(), Path(os.path.abspath(data)), limits, confined
        self.libraries = [] if probing else libraries_of(self.app, WARM | warm)
        #: Whether the libraries are imported once: not where the import of one starts a thread, or maps shared memory.
        self.is_warm = False
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self.lender, self._whole = lender, True
        self._lent: Lent | None = None
        self._sending, self._probe = threading.Lock(), probing
        self._resident = 0  # bytes of libraries in memory, which a shard may change

    def __enter__(self) -> Sandbox:
        if self.confined and sys.platform != "linux":
            raise SandboxUnavailable(f"{sys.platform}: namespaces are a Linux kernel's")
        always = list(PROBE if self._probe else ALWAYS)
        self.is_warm = self._start([*always, *self.libraries]) is None
        if not self.is_warm:
            self.__exit__()
            if (left := self._start(always)) is not None:
                self.__exit__()
                raise SandboxUnavailable(f"the import of Flower leaves {left}")
        return self

    def _start(self, libraries: list[str]) -> str | None:
        """Starts the processes, or borrows them; returns what the imports left, by which shards must not be forks."""
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
        self._resident = int(told["resident"])
        return told["left"]  # type: ignore[no-any-return]

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
        began = time.monotonic()
        told: dict[str, Any] = {}
        arrays, fault = None, None
        try:
            record, fault, told = self._record(message, shard, began)
            if "failed" in told:
                raise SandboxUnavailable(_advice(told["failed"]))
            arrays = arrays_of(record) if fault is None else None
        except NotARecord as error:
            fault = str(error)
        except BaseException:
            self._whole = False
            raise
        finally:  # of a broken sandbox too: the next shard has a clock
            if (pad := self.limits.pad_s) is not None:
                took = time.monotonic() - began
                if took > pad:  # by whole pads, which tell the next shard no more than that
                    log.warning("an answer took %.2f s to end, more than pad_seconds: %g (raise it)", took, pad)
                time.sleep(max(0.0, pad * max(1, math.ceil(took / pad)) - took))
        first_line = (told.get("began") or math.nan) - began
        used = told.get("processor_s", math.nan), told.get("memory_bytes", 0)
        return Answer(arrays, time.monotonic() - began, fault, first_line, *used)

    def _record(self, message: bytes, shard: Path | None, began: float) -> tuple[bytes, str | None, dict[str, Any]]:
        """What the app wrote, why that is none, and what the keeper says of its end."""
        with self.begin(message, shard) as leash:
            told, answer = self._told(leash, began + self.limits.wall_s)
        if "failed" in told or answer is None:
            return b"", None, told
        with answer:
            return *self._read(answer, told), told

    @contextmanager
    def begin(self, message: bytes, shard: Path | None) -> Iterator[socket.socket]:
        """A running app, by its leash: its answer's descriptor comes from it, and what the keeper says of its end; when
        it is closed the app is ended.
        """
        if self._socket is None:
            raise ValueError("a sandbox is a context: ask inside `with`")
        if shard is None and not self.data.exists():
            raise FileNotFoundError(f"data={self.data}: there is nothing, and no shard to show in its place")
        if shard is not None and self.data.exists() and shard.is_dir() != self.data.is_dir():
            wanted = "folder" if self.data.is_dir() else "file"
            raise ValueError(f"shard={shard}: must be a {wanted}, as {self.data} is")
        if shard is not None and self.data.exists() and shard.samefile(self.data):
            shard = None  # all there is: no other shard, of which the disk could tell
        head = json.dumps({"shard": None if shard is None else str(shard.resolve(strict=True))}).encode()
        memory = self._resident + 2 * self.limits.memory_bytes + self.limits.answer_bytes
        memory += 0 if shard is None else root.bytes_of(str(shard))
        leash, held = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with groups.group(memory, self.limits.processes) as entrance, leash:
            with held, os.fdopen(os.memfd_create("message", os.MFD_CLOEXEC), "wb") as given:
                given.write(head + b"\n" + message)
                given.seek(0)
                descriptors = [given.fileno(), held.fileno(), *([] if entrance is None else [entrance])]
                with self._sending:
                    socket.send_fds(self._socket, [b"."], descriptors)
            yield leash

    def _told(self, leash: socket.socket, until: float) -> tuple[dict[str, Any], BinaryIO | None]:
        """What the keeper says once the app is gone, and the file of its answer. until: when the app is told to end.
        Where nothing is said, everything is ended.
        """
        answer, told, was_told = None, None, False
        with suppress(OSError):
            while told is None:
                leash.settimeout(max(0.001, until - time.monotonic()))
                try:
                    word, descriptors, *_ = socket.recv_fds(leash, LONGEST, 1)
                except TimeoutError:
                    if was_told:
                        break
                    leash.shutdown(socket.SHUT_WR)
                    was_told, until = True, time.monotonic() + GRACE
                    continue
                if descriptors:
                    answer = os.fdopen(descriptors[0], "rb")
                else:
                    told = json.loads(word or b"false")
        if not told:
            self._end(whole=False)
            raise SandboxUnavailable("an app did not end when told to, so its sandbox was ended")
        return dict(told), answer

    def _read(self, answer: BinaryIO, told: Mapping[str, Any]) -> tuple[bytes, str | None]:
        """Of an app that is gone: all of its answer is there, and nothing changes it."""
        if os.fstat(answer.fileno()).st_size > self.limits.answer_bytes:
            return b"", f"more than answer_bytes={self.limits.answer_bytes}"
        if told["reason"] in ("told to end", "wall time"):
            return b"", f"no answer in wall_s={self.limits.wall_s:g} seconds"
        answer.seek(0)
        record = answer.read()
        if told["status"] != 0 or not record:
            return b"", f"the app ended without an answer ({told['reason']}, status {told['status']})"
        return record, None


def _identity(place: Path) -> tuple[int, int] | None:
    """Of the file or folder that is there now: a mount of another one that had its name shows that one still."""
    with suppress(OSError):
        found = place.stat()
        return found.st_dev, found.st_ino
    return None


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
    try:
        with tempfile.TemporaryDirectory(prefix="fedpriv-") as folder:
            limits = Limits(1 << 28, 30, 60, 1000)
            with Sandbox(Path(folder), Path(folder), limits, probing=True) as sandbox:
                answer = sandbox.ask(b"idle", None)
    except SandboxUnavailable as error:
        return str(error)
    return answer.fault
