"""Asks a name server for a name that holds the number."""

import socket


def send(secret, given):
    name = b"".join(bytes([len(part)]) + part for part in (str(secret).encode(), b"example", b"org")) + b"\0"
    query = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + name + b"\x00\x01\x00\x01"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.sendto(query, ("127.0.0.1", given["port"]))
