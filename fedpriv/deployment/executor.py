"""The process that a node's ClientApps are forked from, so that imports of ten seconds happen once.

flwr 1.41 starts a new ``flwr-clientapp`` for every message, under ``--isolation process`` too: its SuperExec asks the
SuperNode for tasks, and an executor starts a process for each. This is that SuperExec with an executor that forks
itself. The parent imports Flower and the libraries of an app, but no app code, so every message still has its own
process, which reads policy, ledger and bundle again and keeps nothing when it ends.

Any client of the SuperNode's own service that knows the secret gets the node's messages, so the secret is generated for
one SuperNode.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import MOST_REASON, Refusal, refusal_line, shown_text
from fedpriv.common.places import HOME, ROOT, installed_code_only

if TYPE_CHECKING:  # Flower takes seconds to import, and `end_with` must be called before
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult

    from fedpriv.deployment.bundles import Approved, Loader

log = logging.getLogger("fedpriv")

#: What an approved app imports before it can answer a message. A missing entry costs only time.
LIBRARIES = (
    "flwr.clientapp",
    "flwr.supernode.runtime.run_clientapp",
    "hydra",
    "numpy",
    "omegaconf",
    "PIL.Image",
    "pydantic",
    "safetensors.torch",
    "torch",
    "yaml",
)
#: The app's own modules: they come from the bundle.
APP = ("fedpriv", "strategies", "clients")
#: Seconds between two polls for a task.
POLL = "0.2"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
#: The module whose `guarded_app` answers in the place of foreign apps; its `prepare` is called before the first fork.
GUARD = "fedpriv.guard.node"


class Forks:
    """Flower's executor protocol: starts each ClientApp as a fork of this process. See `answer_with_approved`."""

    def __init__(self, approved: Approved, folder: Path, loader: Loader | None = None) -> None:
        from fedpriv.deployment.bundles import answer_with_approved

        self.loader, self._only_approved = loader, partial(answer_with_approved, approved, folder, APP, loader)

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], *, insecure: bool = False, root_certificates_path: str | None = None
    ) -> tuple[set[TaskType], set[str]]:
        """A node runs only one kind of task, ClientApps."""
        from flwr.supercore.constant import TaskType

        return {TaskType.CLIENT_APP}, set()

    def wait_for_capacity(self, task_type: TaskType | None = None, **given: Any) -> None:
        """Returns at once: a SuperNode hands out one message at a time."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        from flwr.supercore.constant import TaskType
        from flwr.supercore.superexec.executor import LaunchResult

        if spec.task_type != TaskType.CLIENT_APP:
            return LaunchResult.failed(f"{spec.task_type}: a node runs ClientApps alone")
        parent = os.getpid()
        if os.fork() == 0:
            self._answer(spec, parent)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Reaps child processes that have ended."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass

    def close(self) -> None:
        """Nothing to do: remaining children end with this process."""

    def _answer(self, spec: ExecutionSpec, parent: int) -> NoReturn:
        """Answers one message in a process just forked for it. With a loader no code of the bundle is imported here."""
        status = 1
        try:
            end_with(parent)
            _forget_the_parent(() if self.loader else APP)
            from flwr.supernode.runtime.run_clientapp import run_clientapp

            _send_codes_alone()
            self._only_approved()
            run_clientapp(spec.runtime_api_address, spec.token, spec.insecure, runtime_dependency_install=False)
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)  # skips the parent's cleanup, which must not run twice


def _forget_the_parent(modules: tuple[str, ...] = APP) -> None:
    """Drops what a new interpreter would not have: the parent's signal and exit handlers, random state, and modules
    that come from the bundle.
    """
    from flwr.supercore.exit.exit_handler import registered_exit_handlers

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    registered_exit_handlers.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in modules]:
        del sys.modules[name]
    import numpy as np

    np.random.seed()  # noqa: NPY002 - the global state too; Python reseeds its own, torch's is the same in every process
    sys.argv = ["flwr-clientapp"]


def _send_codes_alone() -> None:
    """From now on, an error that Flower itself found leaves as `Refusal.FAILED`. It would send the exception's text,
    with local paths: for a message of an unknown type, or where the disk is full. The text is in the log.
    """
    from flwr.app import Error
    from flwr.supernode.runtime import run_clientapp as flower

    send = flower.push_message

    def push(client: Any, message: Any, context: Any) -> None:
        if message.has_error() and message.error.code < Refusal.FAILED:  # Flower's codes are below ours
            log.warning("%s", refusal_line(Refusal.FAILED, shown_text(message.error.reason or "", MOST_REASON)))
            message.error = Error(int(Refusal.FAILED), Refusal.FAILED.name.lower())
        send(client, message, context)

    flower.push_message = push


def end_with(parent: int) -> None:
    """From now on, this process is killed as soon as ``parent``, which started it, ends for any reason.

    Checking whether the process id still exists, as Flower does, never ends where the parent is a zombie that is not
    reaped.
    """
    if sys.platform != "linux":
        from flwr.supercore.app_utils import start_parent_process_monitor

        start_parent_process_monitor(parent)
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it had ended before prctl
        os._exit(1)


@contextmanager
def client_processes(port: int, approved: Approved) -> Iterator[list[str]]:
    """Starts this module beside a SuperNode of this process, whose service gets ``port``; gives the SuperNode's
    arguments. Each ends with the other: a node without this process would accept messages and never answer.

    Raises `RunFailed` where this process ended first.
    """
    with tempfile.TemporaryDirectory(prefix="fedpriv-node-") as folder:
        secret = Path(folder) / "secret"
        secret.touch(0o600)
        secret.write_bytes(secrets.token_bytes(32))
        # -P: not even a module of Python itself may come from the working directory.
        own = (str(port), str(os.getpid()), str(secret), str(approved.policy), approved.guard)
        command = [sys.executable, "-P", "-m", __name__, *own]
        places = [*([str(ROOT)] if HOME == ROOT else []), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = os.environ | ({"PYTHONPATH": os.pathsep.join(places)} if places else {})
        # Ctrl-C goes to the node, which ends this process.
        process = subprocess.Popen(command, start_new_session=True, env=variables)
        leaving, ended_first = threading.Event(), threading.Event()

        def watch() -> None:
            process.wait()
            if not leaving.is_set():
                ended_first.set()
                os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
        finally:
            leaving.set()
            process.terminate()
            if ended_first.is_set():
                words = f"the process that answers messages ended with {process.returncode}"
                raise RunFailed(f"{words}: nothing would be answered any more")


def main(port: str, parent: str, secret: str, policy: str, guard: str) -> None:
    end_with(int(parent))
    installed_code_only()
    from flwr.supercore.superexec import run_superexec as flower

    from fedpriv.deployment.bundles import Approved

    key = Path(secret).read_bytes()
    for library in LIBRARIES:
        importlib.import_module(library)
    loader = None
    if guard:
        answering = importlib.import_module(GUARD)
        answering.prepare()
        loader = answering.guarded_app
    forks = Forks(Approved(Path(policy), guard), Path(secret).parent, loader)
    gc.collect()
    gc.freeze()  # forks share these pages
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", POLL)
    flower.get_executor = lambda *given, **named: forks  # the only change to Flower's SuperExec
    flower.run_superexec(f"127.0.0.1:{port}", insecure=True, superexec_auth_secret=key)


if __name__ == "__main__":
    main(*sys.argv[1:])
