"""The processes in which a foreign app runs; `sandbox` starts them and reads what comes back.

    node -- launcher -- keeper -+- warm process    imports libraries, forks
                                +- an app          of shard 1
                                +- an app          of shard 2

The launcher makes namespaces of users, processes, mounts, network, IPC and names for all of them. The keeper is the
first process of these: when it ends, the kernel ends the others. It ends an app when the node asks, when its time is
over, or when it has too many threads. What it learns of an app, such as its status, is in no memory that an app sees:
apps are forks of the warm process, which learns nothing of them.

No line of an app runs in the warm process. It imports the libraries that the app names, sees neither data nor network,
and forks while it has one thread. So nothing that an app does is there when the next shard starts. A fork is the first
process of a namespace of its own: when it ends, the kernel ends all that it started.

A node answers each message in a process of its own. A lender, which starts with the node, holds the sockets of idle
sandboxes and lends one to a message at a time, so that libraries are not imported for every message. What the next
message finds is what the next shard of one message finds. The lender itself sees what a sandbox is started with
(places, limits, libraries) and no data. It ends a sandbox that is not given back whole: the message ended some other
way, or something in the sandbox failed. So an app that breaks its sandbox changes no answer of another message. A
sandbox for another app, policy, model's size or data file is another one; of idle ones at most `MOST` stand.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from fedpriv.common.places import ROOT
from fedpriv.common.systems import resource
from fedpriv.guard import groups, kernel, syscalls
from fedpriv.guard.root import WRITABLE, Root

#: The environment of an app's process: no library starts a thread at import.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}
#: Seconds that the processes have to start.
START = 300.0
_CODE = (
    "import sys; sys.path.insert(0, {root!r}); from fedpriv.guard.processes import main; main({descriptor}, {parent})"
)
#: Bytes of a message between a node and these processes.
LONGEST = 64 * 1024
#: Every app is this user.
INNER_USER = 1000
#: Seconds between two looks at the number of threads.
LOOK = 0.05


def interpreter(descriptor: int, parent: int | None = None, **how: Any) -> subprocess.Popen[bytes]:
    """A new one, which runs `main`."""
    code = _CODE.format(root=str(ROOT), descriptor=descriptor, parent=parent)
    nothing = subprocess.DEVNULL
    given = {"cwd": "/", "start_new_session": True, "stdin": nothing, "stdout": nothing, **how}
    return subprocess.Popen([sys.executable, "-I", "-c", code], pass_fds=[descriptor], **given)


def main(descriptor: int, parent: int | None) -> NoReturn:
    """Of a new interpreter with one end of a socket to the node: the launcher, or the lender of a ``parent``."""
    if parent is not None:
        kernel.end_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        _Lending(socket.socket(fileno=descriptor)).run()
    node = socket.socket(fileno=descriptor)
    given = json.loads(node.recv(LONGEST))
    try:
        if given["confined"]:
            uid, gid = os.getuid(), os.getgid()
            kernel.unshare(kernel.NEW_USERS, "users")
            kernel.own_users(uid, gid, INNER_USER)
            kernel.unshare(kernel.CHANGING | kernel.NEW_PIDS, "processes, mounts, network")
            kernel.private_mounts()
        launcher = os.getpid()
        keeper = os.fork()
        if keeper == 0:
            kernel.end_with_parent()
            if os.getppid() not in (0, launcher):  # 0: it is in another namespace
                os._exit(1)
            Keeper(node, given).run()
        node.close()
        os.waitpid(keeper, 0)
    except BaseException as error:
        kernel.failed(node, error)
    os._exit(0)


class App:
    """A running app, as its keeper sees it. leash: the node's end of it is closed when the app has to end."""

    def __init__(self, leash: socket.socket, begins: socket.socket) -> None:
        self.leash, self.begins, self.since = leash, begins, time.monotonic()
        self.pid = self.handle = -1
        self.told: dict[str, Any] = {}

    def begin(self) -> None:
        """Its first words: a descriptor of its answer's file, for the node, with a number of its process that this one
        can use; then that it has given up its rights, or why it has not.
        """
        word, control, *_ = self.begins.recvmsg(4096, socket.CMSG_SPACE(12) + socket.CMSG_SPACE(4))
        known = {kind: data for level, kind, data in control if level == socket.SOL_SOCKET}
        if word == b"answer" and self.handle < 0:
            (answer,) = struct.unpack("i", known[socket.SCM_RIGHTS])
            self.pid = struct.unpack("3i", known[socket.SCM_CREDENTIALS])[0]
            self.handle = os.pidfd_open(self.pid)
            with suppress(OSError):
                socket.send_fds(self.leash, [word], [answer])
            os.close(answer)
        elif word == b"begun" and self.handle >= 0:
            self.told["began"] = time.monotonic()
        else:
            self.told["failed"] = word.decode(errors="replace") or "it ended before its first line"

    def kill(self, reason: str) -> None:
        self.told.setdefault("reason", reason)
        if self.handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def bury(self) -> None:
        _, status, used = os.wait4(self.pid, 0)
        self.told.setdefault("reason", "ended")
        self.told |= {"status": os.waitstatus_to_exitcode(status), "processor_s": used.ru_utime + used.ru_stime}
        self.told["memory_bytes"] = used.ru_maxrss * 1024

    def threads(self) -> int:
        """0 where the kernel does not say."""
        with suppress(OSError, IndexError):
            with open(f"/proc/self/fdinfo/{self.handle}") as file:
                number = next(line.split()[1] for line in file if line.startswith("Pid:"))
            return len(os.listdir(f"/proc/{number}/task"))
        return 0

    def report(self) -> None:
        """To the node; the app is gone."""
        with suppress(OSError):
            self.leash.send(json.dumps(self.told).encode())
        for end in (self.leash, self.begins):
            end.close()
        if self.handle >= 0:
            os.close(self.handle)


class Keeper:
    """Passes the node's messages to the warm process, and watches the apps."""

    def __init__(self, node: socket.socket, given: dict[str, Any]) -> None:
        self.node, self.given = node, given
        self.warm, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.apps: list[App] = []
        parent = os.getpid()
        if os.fork() == 0:
            kernel.end_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            node.close()
            self.warm.close()
            serve(there, given)
        there.close()

    def run(self) -> NoReturn:
        try:
            while True:
                self._once()
        except BaseException as error:
            kernel.failed(self.node, error)
        finally:
            os._exit(0)

    def _once(self) -> None:
        waiting: list[Any] = [self.node, self.warm]
        for app in self.apps:
            waiting += [] if "began" in app.told else [app.begins]
            waiting += [] if app.handle < 0 else [app.handle] + ([app.leash] if "reason" not in app.told else [])
        ready, _, _ = select.select(waiting, [], [], LOOK if self.apps else None)
        if self.warm in ready:
            word = self.warm.recv(LONGEST)
            if not word:
                raise RuntimeError("the process that imports libraries has ended")
            self.node.send(word)
        if self.node in ready:
            self._start()
        for app in [*self.apps]:
            if app.begins in ready:
                app.begin()
            elif app.handle in ready:
                app.bury()
            elif app.leash in ready:
                app.kill("told to end")
            elif time.monotonic() - app.since > self.given["wall_s"]:
                app.kill("wall time")
            elif app.threads() > self.given["processes"]:
                app.kill("threads")
            if "failed" in app.told or "status" in app.told:
                app.report()
                self.apps.remove(app)

    def _start(self) -> None:
        word, descriptors, *_ = socket.recv_fds(self.node, 1, 3)
        if not word:  # the node has ended
            os._exit(0)
        message, leash, *entrance = descriptors
        begins, begun = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        begins.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        socket.send_fds(self.warm, [word], [message, begun.fileno(), *entrance])
        for descriptor in (message, *entrance):
            os.close(descriptor)
        begun.close()
        self.apps.append(App(socket.socket(fileno=leash), begins))


def started(given: Mapping[str, Any]) -> tuple[subprocess.Popen[bytes], socket.socket, dict[str, Any]]:
    """The launcher, the socket to the keeper, and what came when it was ready: {"left": ...} or {"failed": ...}.
    given: as `fedpriv.guard.sandbox.Sandbox` says it.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        process = interpreter(there.fileno(), env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    here.settimeout(START)
    try:
        here.send(json.dumps(dict(given)).encode())
        told = json.loads(here.recv(LONGEST) or b'{"failed": "the process ended before it was ready"}')
    except OSError as error:
        told = {"failed": str(error)}
    return process, here, dict(told)


#: What Flower itself needs, beside an app's own libraries.
ALWAYS = ("numpy", "flwr.clientapp", "flwr.clientapp.utils", "flwr.common.serde", "fedpriv.guard.record")
#: The same where no app runs.
PROBE = ("fedpriv.guard.record", "fedpriv.guard.attempts")
#: The name of every machine.
HOST_NAME = b"guard"


def serve(keeper: socket.socket, given: dict[str, Any]) -> NoReturn:
    try:
        warm = Warm(given)
        left = left_behind()
        keeper.send(json.dumps({"left": left, "resident": _pages(1)}).encode())
        while left is None:
            # This process learns nothing of a shard, not even its name: the next shard has all of its memory.
            word, descriptors, *_ = socket.recv_fds(keeper, 1, 3)
            if not word:
                break
            if kernel.fork_for_parent(warm.machine.clone, warm.namespaces):
                keeper.close()
                warm.become_app(*descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
    except BaseException as error:
        kernel.failed(keeper, error)
    finally:
        os._exit(0)


def left_behind() -> str | None:
    """Why this process must not be forked: what the imported libraries left in it."""
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        return f"{threads} threads, and forks need one"
    with open("/proc/self/smaps") as file:  # of a mapping: sh, shared by all forks; mw, may be written
        flags = [line.split()[1:] for line in file if line.startswith("VmFlags:")]
    return "memory that forks would share" if any({"sh", "mw"} <= {*mapping} for mapping in flags) else None


class Warm:
    """What all shards share: libraries, the root without data, and the filter of system calls."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given, self.confined, self.machine = given, given["confined"], syscalls.machine()
        self.namespaces = kernel.CHANGING | kernel.NEW_PIDS if self.confined else 0
        self.masked = self.confined and _mask(given["data"])
        for name in given["libraries"]:
            with suppress(BaseException):  # an app without it fails, in its own process
                importlib.import_module(name)
        sys.path[:] = [entry for entry in sys.path if entry != given["project"]]
        self.root, self.filter = Root(given["app"], given["data"], given["packages"]), syscalls.program()
        if self.confined:
            self.root.build(given["data_is_folder"])
        gc.collect()
        gc.freeze()  # forks share these pages

    def become_app(self, message: int, begun: int, *entrance: int) -> NoReturn:
        """Gives up every right, and then runs the app: nothing that follows is trusted by anybody.

        What the app holds is opened in its own root: a descriptor of the old root leads past all mounts of the new one.
        """
        try:
            message, begun, *groups_of = _descriptors(message, begun, *entrance)
            for group in groups_of:
                os.write(group, b"0")
                os.close(group)
            if not self.confined:
                kernel.end_with_parent()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            with open("/proc/self/oom_score_adj", "w") as file:  # it ends before the node where memory is short
                file.write("1000")
            with os.fdopen(message, "rb") as file:
                shard, request = json.loads(file.readline())["shard"], file.read()
            mapped = _pages(0)
            if self.confined:
                answer = self._confine(shard)
            else:
                answer = os.memfd_create("answer", os.MFD_CLOEXEC)
                if shard is not None:
                    _show(shard, self.given["data"])
            with socket.socket(fileno=os.dup(begun)) as keeper:
                socket.send_fds(keeper, [b"answer"], [answer])
            _limit(self.given, mapped)
            _environment(self.given["app"])
            if self.confined:
                kernel.unshare(kernel.NEW_USERS, "users, of one shard")  # of whom the kernel counts threads
                kernel.drop_rights(self.machine.capset)
                kernel.landlock(list(WRITABLE))
                syscalls.confine(self.filter)
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                os.dup2(nothing, standard)
            os.close(nothing)
            os.write(begun, b"begun")  # send is no longer allowed
        except BaseException as error:
            with suppress(OSError):
                os.write(begun, kernel.words_of(error).encode())
            os._exit(1)
        os.close(begun)
        _answer(self.given, request, answer)

    def _confine(self, shard: str | None) -> int:
        """Returns a descriptor for the answer."""
        if self.masked:  # shards may lie in the folder of the data
            kernel.unmount(self.given["data"])
        limits = self.given["memory_bytes"] // 4, self.given["answer_bytes"]
        answer = self.root.enter(shard or self.given["data"], shard is not None, *limits, self.machine.pivot_root)
        kernel.set_host_name(HOST_NAME)
        return answer


def _pages(column: int) -> int:
    """Bytes of this process that are mapped (0), or in memory (1)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[column]) * resource.getpagesize()


def _mask(data: str) -> bool:
    """Hides the real data, if it is there: it is empty in this process."""
    if os.path.isdir(data):
        kernel.mount_tmpfs(data, kernel.READ_ONLY, "size=4k")
    elif os.path.exists(data):
        kernel.place_tree(kernel.tree_of("/dev/null", kernel.READ_ONLY), data)
    return os.path.exists(data)


def _show(shard: str, data: str) -> None:
    """Not confined: the shard appears at the place of the data, and nothing else changes."""
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(kernel.NEW_MOUNTS | (kernel.NEW_USERS if uid else 0), "mounts, to show a shard")
    if uid:
        kernel.own_users(uid, gid, uid)
    kernel.private_mounts()
    kernel.place_tree(kernel.tree_of(shard, kernel.READ_ONLY), data)


def _descriptors(*kept: int) -> list[int]:
    """Closes everything but 0, 1, 2 and ``kept``, which become 3, 4, ..."""
    high = [os.dup2(old, 100 + number, inheritable=False) for number, old in enumerate(kept)]
    os.closerange(3, 100)
    moved = [os.dup2(old, 3 + number, inheritable=False) for number, old in enumerate(high)]
    os.closerange(3 + len(moved), max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096))
    return moved


def _limit(given: dict[str, Any], mapped: int) -> None:
    """mapped: bytes that this process maps already, which are its libraries."""
    seconds = math.ceil(given["processor_s"])
    limits = {
        resource.RLIMIT_AS: mapped + given["memory_bytes"],
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: given["memory_bytes"],
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    if given["confined"]:
        limits[resource.RLIMIT_SIGPENDING] = 0  # the kernel counts waiting signals for all processes of a user
        if groups.counts_threads():
            limits[resource.RLIMIT_NPROC] = given["processes"]
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def _environment(app: str) -> None:
    """What an app may know of the machine: nothing. The launcher's environment was made by the node."""
    os.environ["HOME"] = os.environ["TMPDIR"] = "/tmp"
    os.environ["FLWR_HOME"] = "/tmp/flwr"
    os.environ["USER"] = os.environ["LOGNAME"] = "app"
    os.umask(0o077)
    sys.dont_write_bytecode = True
    sys.argv = ["flwr-clientapp"]
    random.seed()
    os.chdir(app)


def _answer(given: dict[str, Any], request: bytes, answer: int) -> NoReturn:
    """Runs the app as Flower does, and writes its record."""
    from fedpriv.guard.record import fault_of, record_of, reply_arrays, request_of

    try:
        if given["probe"]:
            from fedpriv.guard.attempts import play

            play(request.decode(), answer, given["data"])
            os._exit(0)
        import numpy as np

        np.random.seed()  # noqa: NPY002 - shards forked from one process would draw the same numbers
        from flwr.clientapp.utils import get_load_client_app_fn
        from flwr.common.config import get_metadata_from_config, get_project_config

        identifier, version = get_metadata_from_config(get_project_config(given["app"]))
        app = get_load_client_app_fn("", given["app"], True)(identifier, version, "")
        message, context = request_of(request)
        record = record_of(reply_arrays(app(message, context), message))
    except BaseException:
        record = fault_of(traceback.format_exc())
    with suppress(OSError), os.fdopen(answer, "wb") as file:
        file.write(record)
    os._exit(0)


#: Idle sandboxes, each of which has its libraries in memory.
MOST = 4
BACK = b"back"


@dataclass
class Lent:
    """A sandbox of a message. keeper: the socket to its keeper; told: what it said when it was ready."""

    keeper: socket.socket
    told: dict[str, Any]
    lease: socket.socket

    def end(self, whole: bool) -> None:
        """whole: nothing failed in it, so that another message may have it."""
        with suppress(OSError):
            if whole:
                self.lease.send(BACK)
        self.lease.close()
        self.keeper.close()


class Lender:
    """This process's way to its lender. asks: a socket to it, which forks of this process share."""

    def __init__(self) -> None:
        self.asks, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self.process = interpreter(there.fileno(), os.getpid())

    def take(self, given: Mapping[str, Any], wait: float) -> Lent:
        """A sandbox that was started with ``given`` and that nobody else has. wait: seconds. Raises `OSError`."""
        lease, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with there:
                socket.send_fds(self.asks, [json.dumps(given, sort_keys=True).encode()], [there.fileno()])
            lease.settimeout(wait)
            word, descriptors, *_ = socket.recv_fds(lease, LONGEST, 1)
            if not descriptors:
                raise OSError("the process that holds sandboxes between messages has ended")
        except BaseException:
            lease.close()
            raise
        found = socket.socket(fileno=descriptors[0])
        found.settimeout(wait)
        return Lent(found, json.loads(word), lease)


@dataclass
class _Sandbox:
    process: subprocess.Popen[bytes]
    keeper: socket.socket
    told: dict[str, Any]

    def end(self) -> None:
        self.keeper.close()
        self.process.kill()  # the kernel ends what it started
        self.process.wait()

    @property
    def alive(self) -> bool:
        """Nothing is in its socket: a keeper speaks there only to say that it failed, or by its end."""
        return not select.select([self.keeper], [], [], 0)[0]


class _Lending:
    """The lender's own side."""

    def __init__(self, asks: socket.socket) -> None:
        self.asks = asks
        self.idle: list[tuple[bytes, _Sandbox]] = []  # the oldest first
        self.lent: dict[socket.socket, tuple[bytes, _Sandbox]] = {}

    def run(self) -> NoReturn:
        while True:
            ready, _, _ = select.select([self.asks, *self.lent], [], [])
            for lease in ready:
                if lease is not self.asks:
                    self._ended(lease)
            if self.asks in ready:
                given, descriptors, *_ = socket.recv_fds(self.asks, LONGEST, 1)
                if not given:  # the node has ended; with the sockets end the sandboxes
                    os._exit(0)
                self._lend(given, socket.socket(fileno=descriptors[0]))

    def _lend(self, given: bytes, lease: socket.socket) -> None:
        found = next((one for one in self.idle if one[0] == given), None)
        if found is not None:
            self.idle.remove(found)
            if not found[1].alive:
                found[1].end()
                found = None
        if found is None:
            found = given, _Sandbox(*started(json.loads(given)))
        self.lent[lease] = found
        try:
            socket.send_fds(lease, [json.dumps(found[1].told).encode()], [found[1].keeper.fileno()])
        except OSError:  # who asked has ended
            self._ended(lease)

    def _ended(self, lease: socket.socket) -> None:
        given, sandbox = self.lent.pop(lease)
        word = b""
        with suppress(OSError):
            word = lease.recv(LONGEST)
        lease.close()
        if word != BACK or "failed" in sandbox.told or not sandbox.alive:
            return sandbox.end()
        self.idle.append((given, sandbox))
        if len(self.idle) > MOST:
            self.idle.pop(0)[1].end()
