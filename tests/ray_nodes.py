"""Ray nodes as separate processes, as ``ray start`` makes them on machines of their own.

Each cluster has a folder of its own for temporary files: in the common one `ray start` leaves the cluster's address,
and every later ``ray.init()`` without an address would wait for a cluster that is gone. A keeper process stands above
each node: it ends the node and removes the folder when the process that started it ends, in whatever way.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: `ray start` gives up after 30 seconds of its own clock, which a loaded machine may need: it is started again.
STARTS = 4


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """``ray start`` under a keeper, in a session of its own: `ray stop` would end the clusters of others too. The
    keeper's standard input stays open as long as this process lives. folder: for temporary files.

    Its workers' ports are the system's choice: `ray start` alone numbers them from 10002, and of two clusters on a
    machine one then dies, its driver with it.
    """
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address=127.0.0.1", "--min-worker-port=0", "--max-worker-port=0"]
    quiet: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    removed = str(folder) if "--head" in options else ""  # other nodes' files lie in it too
    keeper = [sys.executable, __file__, removed, *command, *options]
    return subprocess.Popen(keeper, start_new_session=True, env=os.environ | {"RAY_TMPDIR": str(folder)}, **quiet)


@contextmanager
def cluster(cpus: int, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """A head node with ``cpus`` cores that `engine.address` can join: its address ``host:port``, its process, and the
    cluster's folder for temporary files. options: further ones of ``ray start``.
    """
    for _ in range(STARTS):
        with _started(cpus, *options) as (address, head, folder):
            if _answers(head, int(address.rpartition(":")[2])):
                yield address, head, folder
                return
    raise AssertionError(f"ray start --head ended {STARTS} times before it answered")


@contextmanager
def _started(cpus: int, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """As `cluster`, but it may not answer yet, or never."""
    import ray

    # Ray's sockets lie 70 characters below it, and a socket's path may have 107.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    port = free_port()
    apart = (*options, "--include-dashboard=false", f"--ray-client-server-port={free_port()}")
    head = start(folder, "--head", f"--port={port}", f"--num-cpus={cpus}", *apart)
    try:
        yield f"127.0.0.1:{port}", head, folder
    finally:
        ray.shutdown()
        end(head)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(head: subprocess.Popen[bytes], port: int) -> bool:
    """Once it answers; False where it has ended. pytest's own limit ends one that does neither."""
    while head.poll() is None:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        time.sleep(0.2)
    return False


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
    _kill([*descendants(node.pid), node.pid])
    node.wait(timeout=20)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _keep(folder: str, command: list[str]) -> int:
    """Runs ``command`` until it ends or standard input closes; then its processes and ``folder`` (if any) go."""
    node = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def end_with_the_starter() -> None:
        sys.stdin.buffer.read()
        _kill([*descendants(os.getpid())])

    threading.Thread(target=end_with_the_starter, daemon=True).start()
    code = node.wait()
    _kill([*descendants(os.getpid())])
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(_keep(sys.argv[1], sys.argv[2:]))
