"""Sandboxes that stand between a node's messages, so that libraries are imported once and not for every message.

A node answers each message in a process of its own. A lender, which starts with the node, holds the sockets of idle
sandboxes and lends one to a message at a time. What the next message finds is what the next shard of one message finds:
a warm process that ran no line of an app, saw no data, and learnt nothing of any shard (`fedpriv.guard.warm`).

The lender itself sees what a sandbox is started with (places, limits, libraries) and no data. It ends a sandbox that is
not given back whole: the message ended some other way, or something in the sandbox failed. So an app that breaks its
sandbox changes no answer of another message. A sandbox for another app, policy, model's size or data file is another
one; of idle ones at most `MOST` stand.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from fedpriv.common.places import ROOT
from fedpriv.guard import kernel
from fedpriv.guard.child import LONGEST
from fedpriv.guard.launch import started

#: Idle sandboxes, each of which has its libraries in memory.
MOST = 4
BACK = b"back"
_CODE = "import sys; sys.path.insert(0, {root!r}); from fedpriv.guard.standing import main; main({asks}, {parent})"


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
        code = _CODE.format(root=str(ROOT), asks=there.fileno(), parent=os.getpid())
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", code],
                pass_fds=[there.fileno()],
                cwd="/",
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

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


def main(asks: int, parent: int) -> NoReturn:
    """The lender: a new interpreter, which ends with the node."""
    kernel.end_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    _Lending(socket.socket(fileno=asks)).run()
