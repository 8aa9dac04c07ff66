"""Connects to a port of the machine."""

import socket


def send(secret, given):
    with socket.create_connection(("127.0.0.1", given["port"]), timeout=5) as link:
        link.sendall(str(secret).encode())
