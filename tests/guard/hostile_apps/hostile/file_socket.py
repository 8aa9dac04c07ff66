"""Connects to a socket that is a file."""

import socket


def send(secret, given):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.connect(given["folder"] + "/socket")
        link.sendall(str(secret).encode())
