"""The bound on the head of a request holds however it arrives: at once, in parts, after another one, as a trailer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import uvicorn

from fedpriv.deployment.superlink_gate import HEAD_BYTES, Connection

START, END = b"GET /health HTTP/1.1\r\nhost: x\r\n", b"\r\n\r\n"


def head(size: int, start: bytes = START, end: bytes = END) -> bytes:
    """A request without a body whose head has this many bytes."""
    filler = b"filler: "
    return start + filler + b"x" * (size - len(start) - len(filler) - len(end)) + end


class Wire:
    """A transport that remembers what was written."""

    def __init__(self) -> None:
        self.written, self.closed = b"", False

    def get_extra_info(self, name: str) -> Any:
        return {"sockname": ("10.0.0.1", 8000), "peername": ("10.0.0.9", 50000)}.get(name)

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    abort = close
    pause_reading = resume_reading = lambda self: None


async def statuses(parts: Sequence[bytes]) -> list[int]:
    """What a connection answers to these bytes, delivered by the loop in these parts."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, ws="none", log_config=None, h11_max_incomplete_event_size=HEAD_BYTES)
    made = Connection(config, uvicorn.server.ServerState(), {}, control=("127.0.0.1", 1), public=set(), most=1)  # type: ignore[arg-type]
    wire = Wire()
    made.connection_made(wire)  # type: ignore[arg-type]
    for part in parts:
        made.data_received(part)
        for _ in range(20):  # the application's task, and what it starts
            await asyncio.sleep(0)
    made.connection_lost(None)
    return [int(text[:3]) for text in wire.written.split(b"HTTP/1.1 ")[1:]]


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


MANY = START + b"".join(b"h%d: x\r\n" % number for number in range(8000)) + b"\r\n"
CHUNKED = b"POST /health HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([head(HEAD_BYTES)], [200]),
        (cut(head(HEAD_BYTES), 1000), [200]),
        ([head(1000) + head(2000)], [200, 200]),
        ([CHUNKED + b"\r\n"], [200]),
        ([head(HEAD_BYTES + 1)], [400]),
        ([head(100_000)], [400]),
        (cut(head(100_000), 16_384), [400]),
        (cut(head(HEAD_BYTES + 1), HEAD_BYTES), [400]),
        ([head(100_000, b"GET /health?" + b"x" * 90_000 + b" HTTP/1.1\r\nhost: x\r\n")], [400]),
        ([MANY], [400]),
        ([head(100_000, end=b"\n\n")], [400]),
        ([head(1000) + head(100_000)], [200, 400]),
        ([head(1000), head(100_000)], [200, 400]),
        ([CHUNKED + b"trailer: " + b"x" * 100_000 + END], [400]),
    ],
)
def test_a_head_is_bounded_however_it_arrives(parts: list[bytes], expected: list[int]) -> None:
    assert asyncio.run(statuses(parts)) == expected


def test_h11_still_has_what_is_taken_from_it() -> None:
    import h11

    assert type(h11.Connection(h11.SERVER)._receive_buffer).maybe_extract_lines, "`Head` overrides it"
