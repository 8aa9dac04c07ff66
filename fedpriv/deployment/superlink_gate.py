"""The gate in front of Flower's SuperLink: access control, and a bound on the memory of unauthenticated requests.

Two listeners lead to one application. The public one is open to every machine, and serves only the nodes' API and
`HEALTH`. The control listener is bound to a loopback address and serves everything, to processes of the SuperLink's own
user. The listener is determined from the request's socket, and the user of the process at the other end from the
kernel; no header is trusted.

Flower 1.41 reads and parses a request before it authenticates the sender. On the public listener its signature is
therefore verified here first, as `flwr.superlink.routers.fleet.node_auth` does, so that an unknown sender's body is
never read. The signature is of a time alone, and neither of path nor body: Flower takes it again for minutes, with any.
Here it passes once.
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import ipaddress
import logging
import os
import socket
import sys
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    sign_message,
    verify_signature,
)
from h11 import RemoteProtocolError
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Paths open to other machines: messages to and from registered nodes, and the health check.
FOR_NODES, HEALTH = "/v1/fleet/", "/health"
#: Of answers about a node's health or proof: this machine's time, in Unix seconds (`clock.py`).
CLOCK_HEADER = "fedpriv-time"
#: Bodies up to this size (bytes) never wait: heartbeats continue while updates are received.
SMALL_BODY = 64 * 1024
#: Time limits in seconds: for a registered node's body, and for any sender's request head.
BODY_SECONDS, HEAD_SECONDS = 120.0, 10.0
#: Seconds for which a signature could pass again: Flower's window, for a clock that is ahead by what is allowed.
USED_SECONDS = TIMESTAMP_TOLERANCE + 2 * SYSTEM_TIME_TOLERANCE
#: How much later than a SuperLink's start a signature must be, for a node's clock that was ahead when it signed.
AHEAD = timedelta(seconds=SYSTEM_TIME_TOLERANCE)
#: Most used signatures that are remembered of one node (about 13 MB); of one that sends more, the oldest are forgotten.
MOST_USED = 2**16
#: Most bytes of a request's head.
HEAD_BYTES = 64 * 1024
#: Where Linux lists this network namespace's connections.
TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
ESTABLISHED = "01"
#: Seconds between two log lines about refused connections.
REMARK_SECONDS = 60.0

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("uvicorn.error")


@dataclass(frozen=True)
class Limits:
    """Limits of the public listener.

    body: most bytes of one request; bodies: how many larger than `SMALL_BODY` are in memory at once; connections: how
    many are open at once.
    """

    body: int
    bodies: int
    connections: int


class Refused(Exception):
    """A request is refused with this HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Gate:
    """ASGI application in front of ``app``.

    control: address and port of the control listener. is_registered: whether a node has this public key (PEM); called
    in another thread. since: signatures of an earlier time may have been used, of a process before this one: the node
    is asked to try again.
    """

    def __init__(
        self,
        app: Application,
        control: tuple[str, int],
        limits: Limits,
        is_registered: Callable[[bytes], bool],
        since: datetime | None = None,
    ) -> None:
        self.app, self.control, self.limits, self.is_registered = app, control, limits, is_registered
        self.since = since
        self._bodies = asyncio.Semaphore(limits.bodies)
        self._used: dict[bytes, dict[int, float]] = {}  # by node's key: used signatures, and until when
        #: Requests of registered nodes that went on to ``app``, and refused ones by HTTP status: for metrics.
        self.passed, self.refused = 0, Counter[int]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or by_control_listener(scope, self.control):
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        try:
            if scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD"):
                return await self.app(scope, receive, _with_time(send))
            if not scope["path"].startswith(FOR_NODES):
                raise Refused(403)
            headers = _headers(scope)
            if not await asyncio.to_thread(_is_signed, headers, self.is_registered):
                raise Refused(401)
            self._use(headers)
            await self._pass_on(scope, receive, send, self._size(headers))
        except Refused as refused:
            self.refused[refused.status] += 1
            # Without "close" the server would go on reading data that it discards.
            answer = [(b"content-length", b"0"), (b"connection", b"close")]
            await _with_time(send)({"type": "http.response.start", "status": refused.status, "headers": answer})
            await send({"type": "http.response.body"})

    def _use(self, headers: dict[str, str]) -> None:
        """Raises `Refused` for a signature that was used before. It is known by its r: of an ECDSA signature (r, s) of
        the same text anybody can make (r, -s), and a node's next one has another r.
        """
        if self.since is not None and datetime.fromisoformat(headers[TIMESTAMP_HEADER]) < self.since:
            raise Refused(503)
        key, signature = (b64decode(headers[name]) for name in _SIGNED[:2])
        r, used, since = decode_dss_signature(signature)[0], self._used.setdefault(key, {}), monotonic()
        while used and (len(used) >= MOST_USED or next(iter(used.values())) < since):
            del used[next(iter(used))]
        if r in used:
            _remark(f"a request was refused: its signature was used before; SHA-256 of its key {_short(key)}")
            raise Refused(401)
        used[r] = since + USED_SECONDS

    def _size(self, headers: dict[str, str]) -> int:
        """Size limit of this request's body, from its header. Raises `Refused`."""
        length = headers.get("content-length")
        if length is None:
            return self.limits.body
        if not length.isascii() or not length.isdigit():
            raise Refused(400)
        if len(length) > 18 or int(length) > self.limits.body:
            raise Refused(413)
        return int(length)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, size: int) -> None:
        if size <= SMALL_BODY:
            await self._answer(scope, receive, send, size)
        else:
            async with self._bodies:
                await self._answer(scope, receive, send, size)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, size: int) -> None:
        try:
            body = await asyncio.wait_for(_read(receive, size), BODY_SECONDS)
        except TimeoutError:
            raise Refused(408) from None
        if body is not None:
            self.passed += 1
            await self.app(scope, _with_body(body, receive), send)


def by_control_listener(scope: Scope, control: tuple[str, int]) -> bool:
    """Whether the connection ends at the control listener, and begins on this machine.

    The second follows from a loopback address, unless the kernel was configured to route packets for it
    (net.ipv4.conf.*.route_localnet).
    """
    server, client = scope.get("server"), scope.get("client")
    if not server or not client or (server[0], server[1]) != control:
        return False
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """User id of the process that holds the client's end of an IPv4 connection within this network namespace.

    None where the connection is not open, or its other end is elsewhere: the kernel
    reports a closing connection as root's.
    """

    def row(ip: str, port: int, mapped: str) -> str:
        return f"{mapped}{int.from_bytes(socket.inet_aton(ip), sys.byteorder):08X}:{port:04X}"

    in_ipv6 = "0000000000000000" + ("FFFF0000" if sys.byteorder == "little" else "0000FFFF")
    for table, mapped in zip(TABLES, ("", in_ipv6), strict=True):
        wanted = [row(*client, mapped), row(*server, mapped), ESTABLISHED]
        lines = table.read_text().splitlines() if table.exists() else []
        for fields in map(str.split, lines):
            if fields[1:4] == wanted:
                return int(fields[7])
    return None


def _headers(scope: Scope) -> dict[str, str]:
    """Headers by lower-case name. Raises `Refused` where one that is used here is given twice."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1")
        if key in found and key in (*_SIGNED, "content-length"):
            raise Refused(400)
        found[key] = value.decode("latin-1")
    return found


_SIGNED = (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER)


def proof_of(key: Path) -> dict[str, str]:
    """Headers of a request that the owner of a node's private key signs now. Raises ValueError for another key."""
    private, timestamp = load_ssh_private_key(key.read_bytes(), None), now().isoformat()
    if not isinstance(private, EllipticCurvePrivateKey):
        raise ValueError("no key on an elliptic curve")
    parts = public_key_to_bytes(private.public_key()), sign_message(private, timestamp.encode())
    return dict(zip(_SIGNED, (*(b64encode(part).decode() for part in parts), timestamp), strict=True))


def _is_signed(headers: dict[str, str], is_registered: Callable[[bytes], bool]) -> bool:
    """Whether a registered node signed a recent timestamp. Flower compares its node id with the body's."""
    try:
        key, signature = (b64decode(headers[name], validate=True) for name in _SIGNED[:2])
        timestamp = headers[TIMESTAMP_HEADER]
        age = (now() - datetime.fromisoformat(timestamp)).total_seconds()
        if not is_registered(key) or not verify_signature(
            bytes_to_public_key(key), timestamp.encode("ascii"), signature
        ):
            return False
    except (KeyError, ValueError, TypeError, OverflowError, binascii.Error):
        return False
    if -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
        return True
    late = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    side = "ahead of" if age < 0 else "behind"
    _remark(
        f"a node's request was refused: its clock is {abs(age):.1f} s {side} this machine's "
        f"({SYSTEM_TIME_TOLERANCE} s ahead and {late} s behind are allowed), or somebody repeated an old request; "
        f"SHA-256 of its key {_short(key)}"
    )
    return False


def _short(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:16]


async def _read(receive: Receive, most: int) -> bytes | None:
    """A request's body; None if the sender disconnected. Raises `Refused` at the first byte over the limit."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise Refused(413)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _with_body(body: bytes, receive: Receive) -> Receive:
    """`receive` of a request whose body was read already."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _with_time(send: Send) -> Send:
    """`send` of an answer that names this machine's time."""

    async def timed(message: Message) -> None:
        if message["type"] == "http.response.start":
            header = (CLOCK_HEADER.encode(), f"{time.time():.3f}".encode())
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await send(message)

    return timed


class Head(ReceiveBuffer):
    """What h11 has received and not yet understood. Its own bound is checked only while a head is incomplete, and the
    loop delivers up to 256 KiB at once: here a complete head, or the trailer of a body, is measured too.
    """

    def maybe_extract_lines(self) -> list[bytearray] | None:
        waiting = len(self)
        lines = super().maybe_extract_lines()
        if waiting - len(self) > HEAD_BYTES:
            raise RemoteProtocolError("the head is too long", error_status_hint=431)
        return lines


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 with h11, which unlike httptools bounds a request's head (`HEAD_BYTES`).

    The control listener keeps only connections of the SuperLink's own user (on Linux; elsewhere of this machine's
    users). The public one keeps at most ``most`` at once (``public``: those open), and closes one on which a request's
    head takes longer than `HEAD_SECONDS`.
    """

    def __init__(
        self, *arguments: Any, control: tuple[str, int], public: set[asyncio.Protocol], most: int, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self.conn._receive_buffer = Head()
        self._control, self._public, self._most = control, public, most
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.server == self._control:
            user = user_of(self.client, self.server) if self.client and TABLES[0].exists() else os.geteuid()
            if user != os.geteuid():
                _remark(f"control is for the user with number {os.geteuid()}; a connection of {user} was closed")
                transport.abort()
            return
        if len(self._public) >= self._most:
            _remark(f"max_connections={self._most} are open; further ones are closed at once")
            transport.abort()
            return
        self._public.add(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._public.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # belongs to a request that was refused
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Sets a deadline while no request is being answered."""
        if self not in self._public:
            return
        if self.cycle is None or self.cycle.response_complete:
            if self._deadline is None:
                self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)
        elif self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


_last_remark = -REMARK_SECONDS


def _remark(words: str) -> None:
    global _last_remark
    if time.monotonic() - _last_remark >= REMARK_SECONDS:
        _last_remark = time.monotonic()
        logger.warning("%s", words)
