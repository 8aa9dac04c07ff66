"""Ray nodes as separate processes, as ``ray start`` makes them on machines of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(*options: str) -> subprocess.Popen[bytes]:
    """``ray start``, in a session of its own: `ray stop` would end the clusters of others too.

    Its workers' ports are the system's choice: `ray start` alone numbers them from 10002, and of two clusters on a
    machine one then dies, its driver with it.
    """
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address=127.0.0.1", "--min-worker-port=0", "--max-worker-port=0"]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, *options], start_new_session=True, **quiet)


@contextmanager
def cluster(cpus: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A head node with ``cpus`` cores that `engine.address` can join: its address ``host:port`` and its process."""
    port = free_port()
    apart = ("--include-dashboard=false", f"--ray-client-server-port={free_port()}")
    head = start("--head", f"--port={port}", f"--num-cpus={cpus}", *apart)
    try:
        _wait_until_it_answers(head, port)
        yield f"127.0.0.1:{port}", head
    finally:
        ray.shutdown()
        end(head)


def _wait_until_it_answers(head: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        assert head.poll() is None and time.monotonic() < deadline, "ray start --head did not come up"
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.2)


def descendants(pid: int) -> set[int]:
    """All processes below ``pid``."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def end(node: subprocess.Popen[bytes]) -> None:
    """Kills a node and all of its processes; one that ended before is left alone."""
    if node.poll() is not None:
        return
    for pid in [*descendants(node.pid), node.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.wait(timeout=20)
