"""The process that apps are forked from, and what a fork does before an app's first line.

No line of an app runs in the warm process. It imports the libraries that the app names, sees neither data nor network,
and forks while it has one thread. So nothing that an app does is there when the next shard starts. A fork is the first
process of a namespace of its own: when it ends, the kernel ends all that it started.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import random
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from fedpriv.common.systems import resource
from fedpriv.guard import groups, kernel, syscalls
from fedpriv.guard.root import WRITABLE, Root

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
