"""Scripts in a process of their own, without the seconds in which an interpreter starts: each is forked from one that
has imported the libraries and has a single thread. A process of tests has threads of torch: a fork of it may crash.

A process of tests starts one such parent (`_parent`); a file of tests has a fork of that, with what its scripts import.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

from fedpriv.common.places import VARIABLE

#: What a small run imports of others; what is missing here is imported by each script.
LIBRARIES = (
    *("numpy", "torch", "torch.func", "safetensors.torch", "sklearn.datasets", "scipy.stats"),
    *("dp_accounting.pld.common", "flwr.app", "flwr.client", "flwr.clientapp", "flwr.serverapp", "hydra", "omegaconf"),
)
TESTS = Path(__file__).parent
PARENT = """
import importlib, json, os, socket, sys, traceback


def serve(channel):
    while True:
        asked, given, *_ = socket.recv_fds(channel, 2**18, 1)
        if not asked:
            return
        job = json.loads(asked)
        if "wait" in job:
            channel.send(str(os.waitstatus_to_exitcode(os.waitpid(job["wait"], 0)[1])).encode())
            continue
        threads = len(os.listdir("/proc/self/task"))
        child = os.fork() if threads == 1 else -threads
        if child:
            for descriptor in given:
                os.close(descriptor)
            channel.send(str(child).encode())
            continue
        channel.close()
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(job["folder"])
            sys.path[:1] = [job["folder"], *job["path"]]
            if "modules" in job:
                os.environ.clear(), os.environ.update(job["environment"])
                for name in job["modules"]:
                    importlib.import_module(name)
                serve(socket.socket(fileno=given[0]))
            else:
                out = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(out, 1), os.dup2(out, 2)
                sys.argv = ["-c", *job["arguments"]]
                exec(job["script"], {"__name__": "__main__"})
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)


for name in sys.argv[2:]:
    importlib.import_module(name)
serve(socket.socket(fileno=int(sys.argv[1])))
"""

#: `python -m fedpriv`, whose errors go to a file of their own in the folder that it works in. On a busy machine set-up
#: would say there how long it takes.
COMMAND = """
import os
import sys

os.dup2(os.open("err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
from fedpriv.__main__ import console
from fedpriv.report.live import task

task.FIRST = 3600.0
sys.exit(console())
"""


class Forks:
    """``run(script, ...)``, as `python -c`; see `forks`."""

    def __init__(self, parent: socket.socket, folder: Path) -> None:
        self._parent, self._folder = parent, folder

    def run(self, script: str, *arguments: str, folder: Path, path: tuple[Path, ...] = ()) -> tuple[int, str]:
        """The exit code (minus the signal's number of one that was killed) and all that was printed.

        path: where modules are looked for, after ``folder``.
        """
        code = self.wait(self.start(script, *arguments, folder=folder, path=path))
        return code, self.printed()

    def start(self, script: str, *arguments: str, folder: Path, path: tuple[Path, ...] = ()) -> int:
        """The process's number; it goes on beside the test until `wait`."""
        asked = {"script": script, "arguments": arguments, "folder": str(folder), "path": [str(one) for one in path]}
        return _begun(self._parent, asked | {"output": str(self._folder / "printed")})

    def printed(self) -> str:
        """By the last that was started."""
        return (self._folder / "printed").read_text()

    def wait(self, child: int) -> int:
        """Its exit code, as `subprocess` gives it."""
        return _ask(self._parent, {"wait": child})


def _ask(parent: socket.socket, job: dict[str, object], *given: int) -> int:
    socket.send_fds(parent, [json.dumps(job).encode()], given)
    told = parent.recv(64)
    assert told, "the process that forks has ended"
    return int(told)


def _begun(parent: socket.socket, job: dict[str, object], *given: int) -> int:
    child = _ask(parent, job, *given)
    assert child > 0, f"the process that forks has {-child} threads"
    return child


@cache
def _parent() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A process that ends when this one does."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", PARENT, str(there.fileno()), *LIBRARIES]
    with there:
        return here, subprocess.Popen(command, env=_environment(), pass_fds=[there.fileno()], stdout=subprocess.DEVNULL)


#: Libraries start no thread: pyarrow's allocator would.
SINGLE = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


def _environment(*path: Path) -> dict[str, str]:
    """This process's, without another test's own methods. path: where modules are looked for before this project."""
    kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return kept | SINGLE | {"PYTHONPATH": os.pathsep.join(map(str, [*path, TESTS.parent]))}


def fork_server() -> ForkServerContext:
    """In place of `multiprocessing.get_context`: workers without the seconds in which `LIBRARIES` are imported."""
    os.environ.update(SINGLE)  # of the process that forks, which the first worker starts
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LIBRARIES))
    return context


@contextmanager
def forks(folder: Path, *modules: str, path: tuple[Path, ...] = ()) -> Iterator[Forks]:
    """folder: an empty one, for what scripts print. modules: imported once beside `LIBRARIES`; tests are found by the
    names that pytest gives them. path: where else modules are looked for.
    """
    job = {"modules": modules, "environment": _environment(*path), "folder": str(folder), "path": list(map(str, path))}
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here:
        with there:
            child = _begun(_parent()[0], job, there.fileno())
        yield Forks(here, folder)
        here.shutdown(socket.SHUT_RDWR)
        assert _ask(_parent()[0], {"wait": child}) == 0
