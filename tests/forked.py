"""Scripts in a process of their own, without the seconds in which an interpreter starts: each is forked from one that
has imported the libraries and has a single thread. A process of tests has threads of torch: a fork of it may crash.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
import importlib, json, os, sys, traceback

for name in sys.argv[1:]:
    importlib.import_module(name)
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if "wait" in job:
        print(os.waitstatus_to_exitcode(os.waitpid(job["wait"], 0)[1]), flush=True)
        continue
    threads = len(os.listdir("/proc/self/task"))
    child = os.fork() if threads == 1 else -threads
    if child:
        print(child, flush=True)
        continue
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        out = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1), os.dup2(out, 2)
        os.chdir(job["folder"])
        sys.path[:1] = [job["folder"], *job["path"]]
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
"""


class Forks:
    """``run(script, ...)``, as `python -c`; see `forks`."""

    def __init__(self, parent: subprocess.Popen[str], folder: Path) -> None:
        self._parent, self._folder = parent, folder

    def run(self, script: str, *arguments: str, folder: Path, path: tuple[Path, ...] = ()) -> tuple[int, str]:
        """The exit code (minus the signal's number of one that was killed) and all that was printed.

        path: where modules are looked for, after ``folder``.
        """
        code = self.wait(self.start(script, *arguments, folder=folder, path=path))
        return code, (self._folder / "printed").read_text()

    def start(self, script: str, *arguments: str, folder: Path, path: tuple[Path, ...] = ()) -> int:
        """The process's number; it goes on beside the test until `wait`."""
        asked = {"script": script, "arguments": arguments, "folder": str(folder), "path": [str(one) for one in path]}
        child = self._ask(asked | {"output": str(self._folder / "printed")})
        assert child > 0, f"the process that forks has {-child} threads"
        return child

    def wait(self, child: int) -> int:
        """Its exit code, as `subprocess` gives it."""
        return self._ask({"wait": child})

    def _ask(self, job: dict[str, object]) -> int:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        print(json.dumps(job), file=self._parent.stdin, flush=True)
        told = self._parent.stdout.readline()
        assert told, "the process that forks has ended"
        return int(told)


def fork_server() -> ForkServerContext:
    """In place of `multiprocessing.get_context`: workers without the seconds in which `LIBRARIES` are imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LIBRARIES))
    return context


@contextmanager
def forks(folder: Path, *modules: str, path: tuple[Path, ...] = ()) -> Iterator[Forks]:
    """folder: an empty one, for what scripts print. modules: imported once beside `LIBRARIES`; tests are found by the
    names that pytest gives them. path: where else modules are looked for.
    """
    # The second: pyarrow's allocator would start a thread.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    for name in ("PYTHONPATH", VARIABLE):  # another test's own methods
        environment.pop(name, None)
    if path:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    command = [sys.executable, "-c", PARENT, *LIBRARIES, *modules]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes) as parent:  # type: ignore[call-overload]
        assert parent.stdout.readline() == "ready\n"
        yield Forks(parent, folder)
        parent.stdin.close()
