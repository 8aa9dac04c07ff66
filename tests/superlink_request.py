"""``python tests/superlink_request.py HOST PORT CA PATH KIND MEBIBYTES [NAME=VALUE ...]``: one request to a SuperLink,
from wherever this runs. Prints the status of the answer ("refused": no connection, "closed": no answer) and how many
MiB were sent. KIND: "length" (its length in the header), "chunked", "head" (header lines without an end), "empty".

It sends on until it is answered, and waits for no answer longer than a minute. REQUEST_USER in the environment is the
number of the user as whom root connects.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
from collections.abc import Iterator

MIB = 2**20


def parts(kind: str, mebibytes: int) -> Iterator[bytes]:
    for number in range(mebibytes):
        if kind == "head":
            yield b"".join(b"x-%d-%d: %s\r\n" % (number, line, b"a" * 1000) for line in range(1024))
        else:
            yield b"%x\r\n%s\r\n" % (MIB, bytes(MIB)) if kind == "chunked" else bytes(MIB)
    if kind == "chunked":
        yield b"0\r\n\r\n"


def answer(secured: ssl.SSLSocket, wait: bool) -> bytes | None:
    """What has arrived; None where nothing has. b"" is the end."""
    secured.settimeout(60 if wait else 0)
    try:
        return secured.recv(65536)
    except (ssl.SSLWantReadError, BlockingIOError):
        return None
    finally:
        secured.settimeout(60)


def main(host: str, port: str, ca: str, path: str, kind: str, mebibytes: str, *headers: str) -> str:
    context = ssl.create_default_context(cafile=ca)
    sent, said = 0, None
    if user := os.environ.get("REQUEST_USER"):
        "".encode("idna")  # imported while root may read it
        os.setuid(int(user))
    try:
        plain = socket.create_connection((host, int(port)), 10)
    except OSError:
        return "refused 0"
    try:
        secured = context.wrap_socket(plain, server_hostname="localhost")
    except OSError:
        return "closed 0"
    try:
        lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/protobuf"]
        lines += [header.replace("=", ": ", 1) for header in headers]
        lines += {
            "length": [f"content-length: {int(mebibytes) * MIB}", ""],
            "chunked": ["transfer-encoding: chunked", ""],
            "empty": ["content-length: 0", ""],
            "head": [],
        }[kind]
        secured.sendall("".join(f"{line}\r\n" for line in lines).encode())
        for part in parts(kind, int(mebibytes)):
            if (said := answer(secured, wait=False)) is not None:
                break
            secured.sendall(part)
            sent += 1
        said = said or answer(secured, wait=True)
    except OSError:
        try:  # the answer may have come before the end of the connection
            said = answer(secured, wait=False)
        except OSError:
            said = None
    return f"{said.split()[1].decode() if said else 'closed'} {sent}"


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
