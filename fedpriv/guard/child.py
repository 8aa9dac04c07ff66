"""The processes in which a foreign app runs; `sandbox` starts them and reads what comes back.

    node -- launcher -- keeper -+- warm process    imports libraries, forks
                                +- an app          of shard 1
                                +- an app          of shard 2

The launcher makes namespaces of users, processes, mounts, network, IPC and names for all of them. The keeper is the
first process of these: when it ends, the kernel ends the others. It ends an app when the node asks, when its time is
over, or when it has too many threads. What it learns of an app, such as its status, is in no memory that an app sees:
apps are forks of the warm process (`warm`), which learns nothing of them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import time
from contextlib import suppress
from typing import Any, NoReturn

from fedpriv.guard import kernel

#: Bytes of a message between a node and these processes.
LONGEST = 64 * 1024
#: Every app is this user.
INNER_USER = 1000
#: Seconds between two looks at the number of threads.
LOOK = 0.05


def main(descriptor: int) -> NoReturn:
    """The launcher: a new interpreter, which the node started with one end of a socket."""
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
            from fedpriv.guard.warm import serve

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
