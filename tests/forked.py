"""Scripts in a process that has imported nothing of the project, without the seconds in which an interpreter starts:
each is forked from one that has imported the libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpriv.common.places import VARIABLE

#: What a small run imports of others; what is missing here is imported by each script.
LIBRARIES = (
    *(
        "numpy",
        "torch",
        "torch.func",
        "safetensors.torch",
        "sklearn.datasets",
        "scipy.stats",
        "dp_accounting.pld.common",
    ),
    *("dp_accounting.pld.common", "flwr.app", "flwr.client", "flwr.clientapp", "flwr.serverapp", "hydra", "omegaconf"),
)
PARENT = """
import importlib, json, os, sys, traceback

for name in sys.argv[1:]:
    importlib.import_module(name)
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
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

    def __init__(self, parent: subprocess.Popen[str], output: Path) -> None:
        self._parent, self._output = parent, output

    def run(self, script: str, *arguments: str, folder: Path, path: tuple[Path, ...] = ()) -> tuple[int, str]:
        """The exit code and all that was printed. path: where modules are looked for, after ``folder``."""
        asked = {"script": script, "arguments": arguments, "folder": str(folder), "path": [str(one) for one in path]}
        assert self._parent.stdin is not None and self._parent.stdout is not None
        print(json.dumps(asked | {"output": str(self._output)}), file=self._parent.stdin, flush=True)
        code = self._parent.stdout.readline()
        assert code, "the process that forks has ended"
        return int(code), self._output.read_text()


@contextmanager
def forks(folder: Path) -> Iterator[Forks]:
    """folder: an empty one, for what scripts print."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for name in ("PYTHONPATH", VARIABLE):  # another test's own methods
        environment.pop(name, None)
    command = [sys.executable, "-c", PARENT, *LIBRARIES]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes) as parent:  # type: ignore[call-overload]
        assert parent.stdout.readline() == "ready\n"
        yield Forks(parent, folder / "printed")
        parent.stdin.close()
