"""A whole deployment on one machine: SuperLink and SuperNodes as processes on loopback, with TLS and node keys.

`make deploy-demo` trains with it, and the tests attack it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from PIL import Image

from fedpriv.commands.credentials import make_credentials
from fedpriv.commands.node import main as node_command
from fedpriv.deployment.bundles import bundle_digest
from fedpriv.deployment.data_ledger import DataLedger
from fedpriv.deployment.policy import read_policy

BIN = Path(sys.executable).parent
CLASSES = tuple("0123456789")

#: Seconds without progress (a line in a log, a ledger or a run's folder) after which a wait is given up. The time of a
#: step depends on the machine's load: two cores that import torch three times at once are silent for a minute.
PATIENCE = 300.0

#: Three clients are too few to hide one of them: with noise that still allows learning, three rounds cost a
#: client-level epsilon of 747. The budget allows that, and no further release.
MAX_EPSILON = 750.0

POLICY = """\
counter: {counter}
budgets:
  - {{unit: client, delta: 1.0e-5, max_epsilon: {max_epsilon}}}
strategies: [fedcad]
bundles: [{bundle}]
limits:
  min_noise_multiplier: 0.05
  max_round_epsilon: 400.0
  max_clip_norm: 5.0
  max_sampling_rate: 0.2
  max_batch_size: 64
  max_local_steps: 100
  max_rounds: 10
"""

#: Of nodes that also take part in secure sums: accounts by one Renyi order, which is dearer for Fed-CAD's Gaussians.
SUM_POLICY = (
    POLICY.replace("strategies: [fedcad]", "strategies: [fedcad, ddgauss]\naccountant: renyi")
    .replace(
        "strategies:",
        "  - {{unit: client, delta: 1.0e-5, max_epsilon: {max_epsilon}, observer: secure-sum}}\nstrategies:",
    )
    .replace("limits:", "limits:\n  min_survivors: 3")
)


class Failed(Exception):
    """A step of the rehearsal failed; names it, with the last lines of its log."""


class Rehearsal:
    """A SuperLink and its nodes in ``folder``; a context manager that stops all that it started.

    node_options: further options of every `fedpriv deploy node run`.

    app: the folder whose bundle the nodes approve. nodes: how many are prepared. policy: every node's, with
    max_epsilon.
    """

    node_options: ClassVar[dict[str, str]] = {}
    #: Where the SuperLink listens.
    host: ClassVar[str] = "127.0.0.1"

    def __init__(
        self, folder: Path, app: Path, nodes: int = 3, max_epsilon: float = MAX_EPSILON, policy: str = POLICY
    ) -> None:
        self.folder, self.app, self.nodes = folder.resolve(), app.resolve(), nodes
        self.port, self.control, *self.node_ports = free_ports(nodes + 2)
        self.keys = self.folder / "credentials"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {
            "FLWR_HOME": str(self.folder / "flwr"),
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(self.app),
            "OMP_NUM_THREADS": "1",
        }
        self._finished_before = 0
        self._prepare(policy, max_epsilon)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    # --- what every machine has --------------------------------------------------------------------------

    def _prepare(self, template: str, max_epsilon: float) -> None:
        make_credentials(self.keys, ["server.example"], self.nodes, 2)
        self.counts = self.write_data()
        known = {"bundle": bundle_digest(self.app), "schema": self.schema, "max_epsilon": max_epsilon}
        for number in range(self.nodes):
            policy = template.format(counter=self.folder / f"counters/{number}.json", **known)
            self.policy(number).write_text(policy)
            options = (f"policy={self.policy(number)}", f"data={self.data(number)}")
            if node_command(["init", *options, *self.declared(number)]):
                raise Failed(f"node {number}: init")
        config = self.folder / "flwr" / "config.toml"
        config.parent.mkdir()
        config.write_text(
            '[superlink]\ndefault = "rehearsal"\n\n[superlink.rehearsal]\n'
            f'address = "127.0.0.1:{self.control}"\nroot-certificates = "{self.keys / "ca/ca.crt"}"\n'
        )

    def write_data(self) -> list[int]:
        """Every node's examples, and the server's; returns how many each node has."""
        return write_pictures(self.folder, self.nodes)

    def declared(self, number: int) -> tuple[str, ...]:
        """What a node says of its examples at `init`."""
        return f"classes={','.join(CLASSES)}", "size=8", "channels=1"

    @property
    def schema(self) -> str:
        """A table's schema, by its digest."""
        return ""

    def data(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def home(self, name: str) -> Path:
        """Flower's folder of a machine, where it unpacks what it runs; not shared between machines."""
        return self.folder / f"flwr-{name}"

    def policy(self, number: int) -> Path:
        return self.folder / f"policy-{number}.yaml"

    def ledger(self, number: int) -> DataLedger:
        return DataLedger(self.data(number), Path(read_policy(self.policy(number)).counter))

    # --- processes ---------------------------------------------------------------------------------------

    def start_superlink(self) -> None:
        """Starts the SuperLink and registers every node's key; returns once it answers."""
        ports = (f"port={self.port}", f"control={self.control}")
        options = (f"credentials={self.keys / 'server'}", f"host={self.host}", *ports)
        self._start("superlink", [sys.executable, "-m", "fedpriv.superlink", *options])
        self._wait_for("superlink", self.control)
        with ThreadPoolExecutor(self.nodes) as pool:
            names = [f"node-{number}" for number in range(self.nodes)]
            public = {name: str(self.keys / name / "node.pub") for name in names}
            list(pool.map(lambda n: self.flwr("supernode", "register", public[n], "rehearsal", "--name", n), names))

    def superlink(self, number: int) -> str:
        """The SuperLink's address as a node knows it."""
        return f"127.0.0.1:{self.port}"

    def start_node(self, number: int, keys: Path | None = None, name: str | None = None) -> str:
        """Starts a node with its own or other credentials; returns its name here."""
        name = name or f"node-{number}"
        options = {
            "policy": self.policy(number),
            "data": self.data(number),
            "superlink": self.superlink(number),
            "credentials": keys or self.keys / f"node-{number}",
            "client": number,
            "port": self.node_ports[number] if keys is None else free_ports(1)[0],
            **self.node_options,
        }
        self._start(name, [sys.executable, "-m", "fedpriv.node", "run", *(f"{k}={v}" for k, v in options.items())])
        return name

    def flwr(self, *arguments: str) -> str:
        """Runs Flower's command; returns its output. Raises `Failed`, at once if the SuperLink has ended."""
        shown = f"flwr {' '.join(arguments[:2])}"
        with tempfile.NamedTemporaryFile(suffix=".log", dir=self.folder) as output:
            process = subprocess.Popen(
                [str(BIN / "flwr"), *arguments], cwd=self.folder, env=self._environment, stdout=output, stderr=output
            )

            def ended() -> bool:
                return process.poll() is not None or self.stopped("superlink")

            try:
                in_time = patiently(ended, self.signs_of_life)
            finally:
                process.kill()
                process.wait()
            text = Path(output.name).read_text(errors="replace")
        if not in_time or process.returncode != 0:
            why = f"exit code {process.returncode}" if in_time else f"nothing happened for {PATIENCE:.0f} seconds"
            raise Failed(f"{shown}: {why}: {text.strip()[-2000:]}")
        return text

    def overrides(self, run_dir: Path, *more: str) -> str:
        """The options of a run on these nodes."""
        counts = ",".join(map(str, self.counts))
        own = (
            "strategy=fedcad dataset=on_nodes model=linear",
            f"dataset.classes=[{','.join(CLASSES)}] dataset.examples=[{counts}] dataset.size=8 dataset.channels=1",
            f"dataset.test_root={self.folder / 'server'} run_dir={run_dir}",
            f"num_clients={self.nodes} clients_per_round={self.nodes} num_rounds=3",
            "local.batch_size=20 local.epochs=3 strategy.client.noise_multiplier=0.1 engine.round_timeout=900",
        )
        return " ".join((*own, *more))

    def submit(self, overrides: str, app: Path | None = None) -> None:
        """`flwr run`; returns at once."""
        self._finished_before = self._finished()
        self.flwr("run", str(app or self.app), "rehearsal", "--run-config", f'overrides="{overrides}"')

    def kill_node(self, number: int) -> None:
        """At once, whatever it is doing; its processes end with it."""
        process = self._running[f"node-{number}"]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def wait_for_summary(self, run_dir: Path) -> None:
        """Waits until the run has written its summary and its ServerApp has ended. Raises `Failed`."""
        self.wait_until(lambda: (run_dir / "summary.json").exists(), f"no summary in {run_dir}")
        self.wait_for_end()

    def wait_for_end(self) -> None:
        """Until the newest run's ServerApp has ended, with a result or without. Raises `Failed` where it does not."""
        others = [name for name in self._running if name != "superlink"]

        def decided() -> bool:
            return self._ended() or self.stopped("superlink") or (bool(others) and all(map(self.stopped, others)))

        patiently(decided, self.signs_of_life)
        if not self._ended():
            raise Failed(f"the run does not end; {self._logs()}")

    def _ended(self) -> bool:
        return self._finished() > self._finished_before

    def wait_until(self, done: Callable[[], bool], otherwise: str) -> None:
        """Polls ``done``. Raises `Failed` if the SuperLink or the run ends without it, or nothing happens."""
        reached = False

        def decided() -> bool:
            nonlocal reached
            ended = self.stopped("superlink") or self._ended()
            reached = done()  # read after the check for the end: it may just have been written
            return reached or ended

        patiently(decided, self.signs_of_life)
        if not reached:
            raise Failed(f"{otherwise}; {self._logs()}")

    def _logs(self) -> str:
        """How every machine's log ends, and whether it runs."""
        logs = (f"--- {name}{' (stopped)' * self.stopped(name)}\n{self.log(name)}" for name in self._running)
        return "\n".join(("the logs end:", *logs, "--- ServerApp", self.server_log()))

    def signs_of_life(self) -> int:
        """Bytes in all logs, ledgers and run folders; grows while anything happens."""
        patterns = ("*.log", "*/*.jsonl", "*/.fedpriv/*.jsonl")
        total = 0
        for path in (path for pattern in patterns for path in self.folder.glob(pattern)):
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def _finished(self) -> int:
        """Number of ServerApps that have ended."""
        return self.log("superlink", 10**7).count("Finished task")

    def server_log(self) -> str:
        """Output of the newest run's ServerApp."""
        with suppress(Failed, IndexError):
            newest = re.findall(r'"run-id": "?(\d+)', self.flwr("list", "rehearsal", "--format", "json"))[0]
            return self.flwr("log", newest, "rehearsal", "--show")[-3000:]
        return "(there is no log of a run)"

    def log(self, name: str, characters: int = 3000) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-characters:]

    def process(self, name: str) -> int:
        """A machine's process id."""
        return self._running[name].pid

    def stopped(self, name: str) -> bool:
        return self._running[name].poll() is not None

    def start_plain_node(self, name: str, *arguments: str) -> None:
        """Starts Flower's own SuperNode, without our additions."""
        port = str(free_ports(1)[0])
        link = ("--superlink", f"127.0.0.1:{self.port}", "--port", port, "--max-retries", "1")
        self._start(name, [str(BIN / "flower-supernode"), *link, *arguments])

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment | {"FLWR_HOME": str(self.home(name))},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_for(self, name: str, port: int) -> None:
        connected = False

        def decided() -> bool:
            nonlocal connected
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                connected = True
            return connected or self.stopped(name)

        patiently(decided, self.signs_of_life)
        if not connected:
            raise Failed(f"{name} does not listen on port {port}:\n{self.log(name)}")


def patiently(done: Callable[[], bool], signs: Callable[[], int], patience: float | None = None) -> bool:
    """Polls ``done``; False if ``signs`` did not change for ``patience`` seconds before (None: `PATIENCE`)."""
    patience = PATIENCE if patience is None else patience
    seen, since = signs(), time.monotonic()
    while not done():
        if (now := signs()) != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > patience:
            return False
        time.sleep(0.2)
    return True


def free_ports(count: int) -> list[int]:
    """Ports that are free at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def write_pictures(folder: Path, nodes: int) -> list[int]:
    """The digits that ship with scikit-learn as picture files, folder/node-K/<class>/*.png for every node and
    folder/server/<class>/*.png for testing. Returns the nodes' numbers of pictures.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    owners = np.random.default_rng(0).integers(0, nodes + 1, len(labels))
    for row, (image, label, owner) in enumerate(zip(images, labels, owners, strict=True)):
        place = folder / ("server" if owner == nodes else f"node-{owner}") / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{row:04d}.png")
    return [int((owners == number).sum()) for number in range(nodes)]


def copy_of(app: Path, folder: Path) -> Path:
    """Copies the app's files, for a bundle that is then modified."""
    for part in ("fedpriv", "strategies", "clients", "conf"):
        shutil.copytree(app / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(app / file, folder / file)
    return folder
