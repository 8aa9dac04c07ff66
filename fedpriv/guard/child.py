"""The processes in which a foreign app runs; `sandbox` starts them and reads what comes back.

    node -- launcher -- warm process -- keeper -- the app
            new users,  imports         ends it    new processes, mounts, network, IPC, names; then no rights,
            processes,  libraries                  Landlock, seccomp; then the app's first line
            mounts, network, IPC, names

No line of the app runs in the warm process: it imports the libraries that the app names, sees neither data nor
network, and forks while it has one thread. So nothing that an app does is there when the next shard starts. The app is
the first process of a namespace: when it ends, the kernel ends all that it started. The keeper ends it when the node
asks, when time is over, or when it has too many threads.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from fedpriv.guard import kernel, root, syscalls

#: Bytes of a message between a node and these processes.
LONGEST = 64 * 1024
#: Every app is this user, of a machine of this name.
INNER_USER, HOST_NAME = 1000, b"guard"
#: Seconds between two looks at the number of threads.
LOOK = 0.05
#: What Flower itself needs, beside an app's own libraries.
ALWAYS = ("numpy", "flwr.clientapp", "flwr.clientapp.utils", "flwr.common.serde", "fedpriv.guard.record")


def main(descriptor: int) -> NoReturn:
    """The launcher: a new interpreter, which the node started with one end of a socket."""
    node = socket.socket(fileno=descriptor)
    given = json.loads(node.recv(LONGEST))
    status = 0
    try:
        if given["confined"]:
            uid, gid = os.getuid(), os.getgid()
            kernel.unshare(kernel.NEW_USERS, "users")
            kernel.own_users(uid, gid, INNER_USER)
            kernel.unshare(_CHANGING | kernel.NEW_PIDS, "processes, mounts, network")
            kernel.private_mounts()
        launcher = os.getpid()
        warm = os.fork()
        if warm == 0:
            _end_with(launcher, given["confined"])
            _warm(node, given)
        node.close()
        os.waitpid(warm, 0)
    except BaseException as error:
        _failed(node, error)
        status = 1
    os._exit(status)


_CHANGING = kernel.NEW_MOUNTS | kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_NAMES | kernel.NEW_CGROUPS


def _end_with(parent: int, another_namespace: bool) -> None:
    kernel.end_with_parent()
    if os.getppid() != (0 if another_namespace else parent):  # a parent outside the namespace of processes is 0
        os._exit(1)


def _failed(node: socket.socket, error: BaseException) -> None:
    with suppress(OSError):
        node.send(json.dumps({"failed": f"{type(error).__name__}: {error}"[:2000]}).encode())


# --- the warm process ---------------------------------------------------------------------------------------------


def _warm(node: socket.socket, given: dict[str, Any]) -> NoReturn:
    try:
        if given["confined"]:
            _mask(given["data"])
        for name in given["libraries"]:
            with suppress(Exception):  # an app without it fails, in its own process
                importlib.import_module(name)
        sys.path[:] = [entry for entry in sys.path if entry != given["project"]]
        gc.collect()
        gc.freeze()  # forks share these pages
        threads = len(os.listdir("/proc/self/task"))
        node.send(json.dumps({"threads": threads}).encode())
        if threads > 1:
            os._exit(0)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers report to the node themselves
        while True:
            request, descriptors, *_ = socket.recv_fds(node, LONGEST, 3)
            if not request:
                os._exit(0)
            if os.fork() == 0:
                node.close()
                _keeper(given | json.loads(request), *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
    except BaseException as error:
        _failed(node, error)
    finally:
        os._exit(1)


def _mask(data: str) -> None:
    """Hides the real data: it is empty in this process."""
    if os.path.isdir(data):
        kernel.mount_tmpfs(data, kernel.READ_ONLY, "size=4k")
    elif os.path.exists(data):
        kernel.place_tree(kernel.tree_of("/dev/null", kernel.READ_ONLY), data)


# --- one shard ----------------------------------------------------------------------------------------------------


def _keeper(given: dict[str, Any], message: int, answer: int, leash: int) -> NoReturn:
    """Starts the app's process and ends it. leash: a socket; the app has to end when its other end is closed."""
    told: dict[str, Any] = {}
    try:
        kernel.end_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        begun, begins = os.pipe()
        if given["confined"]:
            kernel.unshare(kernel.NEW_PIDS, "processes of a shard")
        app = os.fork()
        if app == 0:
            os.close(begun)
            _app(given, message, answer, begins)
        for descriptor in (message, answer, begins):
            os.close(descriptor)
        told = _watch(given, app, begun, leash)
    except BaseException as error:
        told = {"failed": f"{type(error).__name__}: {error}"[:2000]}
    finally:
        with suppress(OSError):
            os.write(leash, json.dumps(told).encode())
        os._exit(0)


def _watch(given: dict[str, Any], app: int, begun: int, leash: int) -> dict[str, Any]:
    """Waits for the app's end, which it brings about where it has to."""
    began, handle = time.monotonic(), os.pidfd_open(app)
    told: dict[str, Any] = {}
    reason = None
    while reason is None:
        waited = [handle, leash] + ([] if "began" in told else [begun])
        left = began + given["wall_s"] - time.monotonic()
        ready, _, _ = select.select(waited, [], [], max(0.0, min(LOOK, left)))
        if begun in ready:
            word = os.read(begun, 4096).decode()
            told |= {"began": time.monotonic()} if word == "begun" else {"began": None, "failed": word or "it ended"}
        if handle in ready:
            reason = "ended"
        elif leash in ready:
            reason = "told to end"
        elif left <= 0:
            reason = "wall time"
        elif _threads(app) > given["processes"]:
            reason = "threads"
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    _, status, used = os.wait4(app, 0)
    processor = used.ru_utime + used.ru_stime
    return told | {"reason": reason, "status": os.waitstatus_to_exitcode(status), "processor_s": processor}


def _threads(app: int) -> int:
    """Of a child of this process, seen from outside its namespaces; 0 where the kernel does not say."""
    with suppress(OSError, ValueError, IndexError):
        with open("/proc/thread-self/children") as file:
            outer = file.read().split()[0]
        return len(os.listdir(f"/proc/{outer}/task"))
    return 0


def _app(given: dict[str, Any], message: int, answer: int, begins: int) -> NoReturn:
    """Gives up every right, and then runs the app: nothing that follows is trusted by anybody."""
    try:
        kernel.end_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        message, answer, begins = _descriptors(message, answer, begins)
        with os.fdopen(message, "rb") as file:
            request = file.read()
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        if given["confined"]:
            _confine(given)
        else:
            _show_shard(given)
        _limit(given, mapped)
        _environment(given)
        if given["confined"]:
            _, _, capset, _ = syscalls.machine()
            kernel.drop_rights(capset)
            kernel.landlock(list(root.WRITABLE))
            syscalls.confine()
    except BaseException as error:
        os.write(begins, f"{type(error).__name__}: {error}"[:2000].encode())
        os._exit(1)
    os.write(begins, b"begun")
    os.close(begins)
    _answer(given, request, answer)


def _descriptors(*kept: int) -> list[int]:
    """Closes everything but ``kept``, which become 3, 4, ...; 0, 1 and 2 are /dev/null."""
    high = [os.dup2(old, 100 + number, inheritable=False) for number, old in enumerate(kept)]
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.closerange(3, 100)
    moved = [os.dup2(old, 3 + number, inheritable=False) for number, old in enumerate(high)]
    os.closerange(3 + len(moved), max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096))
    return moved


def _confine(given: dict[str, Any]) -> None:
    kernel.unshare(_CHANGING, "mounts, network and IPC of a shard")
    shard = given["shard"]
    if shard is None:
        kernel.unmount(given["data"])  # the mask of the warm process
        shard = given["data"]
    root.build(given["app"], given["data"], shard, given["packages"], given["memory_bytes"] // 4)
    root.enter(syscalls.machine()[3])
    kernel.set_host_name(HOST_NAME)


def _show_shard(given: dict[str, Any]) -> None:
    """Not confined: the shard appears at the place of the data, and nothing else changes."""
    if given["shard"] is None:
        return
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(kernel.NEW_MOUNTS | (kernel.NEW_USERS if uid else 0), "mounts, to show a shard")
    if uid:
        kernel.own_users(uid, gid, uid)
    kernel.private_mounts()
    kernel.place_tree(kernel.tree_of(given["shard"], kernel.READ_ONLY), given["data"])


def _limit(given: dict[str, Any], mapped: int) -> None:
    """mapped: bytes that this process maps already, which are its libraries."""
    seconds = math.ceil(given["processor_s"])
    limits = {
        resource.RLIMIT_AS: mapped + given["memory_bytes"],
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_NPROC: given["processes"],
        resource.RLIMIT_FSIZE: given["memory_bytes"],
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def _environment(given: dict[str, Any]) -> None:
    """What an app may know of the machine: nothing. The launcher's environment was made by the node."""
    os.environ["HOME"] = os.environ["TMPDIR"] = "/tmp"
    os.environ["FLWR_HOME"] = "/tmp/flwr"
    os.environ["USER"] = os.environ["LOGNAME"] = "app"
    os.umask(0o077)
    sys.dont_write_bytecode = True
    sys.argv = ["flwr-clientapp"]
    with suppress(FileNotFoundError):
        os.chdir(given["app"])


def _answer(given: dict[str, Any], request: bytes, answer: int) -> NoReturn:
    """Runs the app as Flower does, and writes its record."""
    from fedpriv.guard.record import fault_of, record_of, reply_arrays, request_of

    try:
        if given["probe"]:
            record = record_of([])
        else:
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
