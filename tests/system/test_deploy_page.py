"""docs/deploy.md and docs/upkeep.md followed to the letter: their commands, in order, by real processes.

The commands are read from the page. What is put in place of its words, and nothing else:

- absolute paths (/srv, /etc/fedpriv, /var/lib/fedpriv, /backup, and /app, /runs, /test, /credentials, /state of the
  containers) lie in the test's folder, and ``~`` is there too;
- ports 8000 and 8001 (the option `control`, which the page leaves at its default) are free ones, and `server.example`,
  where a node connects to it, is localhost: the certificate stays the one that the page makes;
- three nodes share this machine: the page's commands of node 0 are repeated with 1 and 2 in their places, each with
  folders of its own and with the option `port` that the page names for this case (their `init` and `status` in this
  process: node 0's are typed);
- NODE_ID and RUN_ID are what Flower prints.

Not run: what changes the machine itself (`sudo`, `pip`); and `docker`, of which the second test runs what is inside.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
import ssl
import subprocess
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from processes import children, executors, state, threads, wait_until
from rotation import together

from deploy.rehearsal import BIN, copy_of, free_ports, patiently
from fedpriv.commands.node import main as node_command
from fedpriv.deployment.data_ledger import DataLedger
from fedpriv.deployment.policy import read_policy

APP = Path(__file__).resolve().parents[2]
PAGE = "\n".join((APP / "docs" / name).read_text() for name in ("deploy.md", "upkeep.md"))
COUNTS = {0: 800, 1: 650, 2: 900}  # dataset.examples of the page's run
pytestmark = [pytest.mark.timeout(1800), pytest.mark.rotates(5, together(0))]  # test_rehearsal.py is another part


def commands_of(page: str) -> list[str]:
    """Its indented lines, in order."""
    return [line.strip() for line in page.splitlines() if line.startswith("    ") and not line.strip().startswith("-")]


class Reader:
    """Somebody who follows the page in ``folder``: types its commands, looks at what they print."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.app = folder, folder / "app"
        copy_of(APP, self.app)
        self.pending = [line for line in commands_of(PAGE) if not line.startswith(("sudo ", "pip ", "docker "))]
        self.port, self.control, *self.node_ports = free_ports(5)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = os.environ | {
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        for name in ("FLWR_HOME", "PYTHONPATH"):
            self.environment.pop(name, None)

    def here(self, text: str) -> str:
        """The page's words for this machine; see the docstring of this file."""
        places = {name: f"{self.folder}{name}" for name in ("/srv/", "/etc/fedpriv/", "/var/lib/fedpriv/", "/backup/")}
        places |= {
            "server.example:8000": f"localhost:{self.port}",
            "localhost:8001": f"localhost:{self.control}",
            "port=8000": f"port={self.port} control={self.control}",
        }
        return re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], text)

    def next(self, beginning: str) -> str:
        """The page's next command, which begins like this."""
        command = self.pending.pop(0)
        assert command.startswith(beginning), f"the page goes on with {command}"
        return self.here(command)

    def type(self, command: str) -> str:
        """Runs a command in the folder of the sources; what it printed."""
        output = self.folder / f"command-{len(list(self.folder.glob('command-*')))}.log"
        process = self.begin(output.stem, command)
        assert patiently(lambda: process.poll() is not None, self.signs_of_life), f"{command}: {output.read_text()}"
        text = output.read_text(errors="replace")
        assert process.returncode == 0, f"{command}: exit code {process.returncode}\n{text}\n{self.logs()}"
        return text

    def begin(self, name: str, command: str, **more: str) -> subprocess.Popen[bytes]:
        """Starts a command and leaves it running."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                ["bash", "-c", f"set -o pipefail; {command}"],
                cwd=self.app,
                env=self.environment | more,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.running[name]

    def wait_until(self, done: Callable[[], bool], otherwise: str) -> None:
        """Until it is so; fails when one of the machines has ended, or nothing happens any more."""

        def ended() -> bool:
            return any(p.poll() is not None for name, p in self.running.items() if not name.startswith("command"))

        reached = False

        def decided() -> bool:
            nonlocal reached
            gone = ended()
            reached = done()
            return reached or gone

        patiently(decided, self.signs_of_life)
        assert reached, f"{otherwise}\n{self.logs()}"

    def signs_of_life(self) -> int:
        places = ("*.log", "srv/*/.fedpriv/*.jsonl", "srv/fedpriv/runs/*/*.jsonl", "runs/*/*.jsonl")
        found = [path for place in places for path in self.folder.glob(place)]
        return sum(path.stat().st_size for path in found if path.exists())

    def logs(self) -> str:
        shown = (path for path in self.folder.glob("*.log") if not path.name.startswith("command"))
        return "\n".join(f"--- {path.stem}\n{path.read_text(errors='replace')[-3000:]}" for path in shown)

    def absolute(self, command: str) -> list[str]:
        """The words behind `python -m fedpriv.node`, from wherever this process works."""
        return shlex.split(command.replace("policy=", f"policy={self.app}/"))[3:]

    def counter(self, number: int) -> Path:
        return Path(read_policy(self.app / f"policy-{number}.yaml").counter)

    def inline(self, beginning: str) -> str:
        """A command in the page's running text."""
        found = {text for text in re.findall(r"`([^`]*)`", PAGE) if text.startswith(beginning)}
        assert len(found) == 1, found
        return self.here(found.pop())

    def healthy(self, host: str, ca: Path) -> bool:
        with suppress(OSError):
            context = ssl.create_default_context(cafile=str(ca))
            with urllib.request.urlopen(f"https://{host}:{self.port}/health", timeout=10, context=context) as answer:
                return bool(answer.status == 200)
        return False

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.running.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            patiently(lambda: all(p.poll() is not None for p in self.running.values()), lambda: 0, 20)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    try:
        yield reader
    finally:
        reader.stop()


def write_pictures(folder: Path, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in range(count):
        place = folder / ("cat", "dog")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3)).astype(np.uint8)).save(place / f"{number}.png")


def of_node(reader: Reader, command: str, number: int) -> str:
    """A command of node 0 for another node of this machine."""
    changes = {"/srv/pictures": f"/srv/pictures-{number}", "policy.yaml": f"policy-{number}.yaml"}
    changes |= {"node-0": f"node-{number}", "client=0": f"client={number}"}
    for word, own in changes.items():
        command = command.replace(word, own)
    return command


def test_a_deployment_by_the_pages_own_commands(reader: Reader) -> None:
    # 1. Credentials
    reader.type(reader.next("python -m fedpriv.credentials keys"))
    for beginning in ("ssh-keygen", "openssl genpkey", "openssl pkey"):
        reader.type(reader.next(beginning))
    assert (reader.app / "identity.pub").read_bytes().startswith(b"-----BEGIN PUBLIC KEY-----")

    # 2. The server
    reader.begin("superlink", reader.next("python -m fedpriv.superlink"))
    (config,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = reader.folder / "home/.flwr/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(reader.here(config))
    (authority,) = re.findall(r'root-certificates = "(.*)"', file.read_text())
    Path(authority).parent.mkdir(parents=True)
    Path(authority).write_bytes((reader.app / "keys/ca/ca.crt").read_bytes())
    reader.wait_until(lambda: reader.healthy("localhost", Path(authority)), "the SuperLink does not answer")
    assert reader.next("export FLWR_TELEMETRY_ENABLED=0")  # tests/system/test_proxy.py types it
    register = reader.next("flwr supernode register")
    told = [reader.type(of_node(reader, register, number)) for number in COUNTS]
    listed = reader.type(f"{reader.next('flwr supernode list')} --format json")
    known = {node["node-id"] for node in json.loads(listed)["nodes"]}
    (first,) = (number for number in re.findall(r"\d{6,}", told[0]))
    assert first in known and len(known) == 3

    # 3. Every node
    reader.type(reader.next("python -m fedpriv.node policy > policy.yaml"))
    digest = reader.type(reader.next("python -m fedpriv.node bundle .")).strip()
    template = reader.here((reader.app / "policy.yaml").read_text())
    assert "bundles: []" in template
    steps = [reader.next(f"python -m fedpriv.node {name} ") for name in ("init", "run", "status", "declare")]
    for number, count in COUNTS.items():
        text = template.replace("bundles: []", f"bundles: [{digest}]")
        text = text.replace("counter.json", f"counter-{number}.json")
        (reader.app / f"policy-{number}.yaml").write_text(text)
        write_pictures(reader.folder / f"srv/pictures-{number}", count, number)
        init, run, status, declare = (of_node(reader, step, number) for step in steps)
        if number == 0:
            assert f"{count} pictures declared" in reader.type(init)
        else:  # the same command without a process of its own
            assert node_command(reader.absolute(init)) == 0
        home = {"FLWR_HOME": str(reader.folder / f"home-{number}")}
        reader.begin(f"node-{number}", f"{run} port={reader.node_ports[number]}", **home)
    assert "0 messages left" in reader.type(status)
    assert "900 pictures declared, 900 before" in reader.type(declare)

    # 4. What it will cost
    planned = reader.type(reader.next("python -m fedpriv plan=true"))
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    for line in shown.strip().splitlines():
        assert line in planned

    # 5. A run
    write_pictures(reader.folder / "srv/fedpriv/test", 20, 9)
    folder = reader.folder / "srv/fedpriv/runs/first"
    reader.begin("command-run", reader.next("flwr run . clinic --stream"))
    rounds = folder / "metrics.jsonl"
    reader.wait_until(lambda: rounds.exists() and len(rounds.read_text().splitlines()) >= 2, "no second round")
    a_killed_node_takes_its_client_with_it(reader.running["node-1"].pid)
    (row,) = json.loads(reader.type(f"{reader.inline('flwr list clinic')} --format json"))["runs"]
    assert row["status"].startswith("running"), row
    printed = reader.type(reader.inline("flwr log").replace("RUN_ID", str(row["run-id"])))
    assert "round" in printed
    reader.type(reader.inline("flwr stop").replace("RUN_ID", str(row["run-id"])))
    assert re.search(r"^[1-9]\d* messages left", reader.type(of_node(reader, steps[2], 0)))
    for number in (1, 2):
        with DataLedger(reader.folder / f"srv/pictures-{number}", reader.counter(number)).held() as ledger:
            assert ledger.releases()

    # Backing up and restoring
    (reader.folder / "backup").mkdir()
    mask = reader.next("umask 077")
    reader.type(f"{mask}; {reader.next('python -c')}")
    reader.type(f"{mask}; {reader.next('tar -C')}")
    assert {path.stat().st_mode & 0o777 for path in (reader.folder / "backup").iterdir()} == {0o600}
    with sqlite3.connect(reader.folder / "backup/superlink.db") as copy:
        assert copy.execute("SELECT count(*) FROM node").fetchone() == (3,)
    with tarfile.open(reader.folder / "backup/first.tar") as copied:
        assert {"./ledger.jsonl", "./config.yaml"} <= set(copied.getnames())

    # Clocks
    clocks = reader.next("python -m fedpriv.node status ")
    assert "clock: this machine's clock agrees with the SuperLink's within" in reader.type(of_node(reader, clocks, 0))

    # Changing keys
    before = {path: path.read_bytes() for path in (reader.app / "keys").rglob("*") if path.is_file()}
    reader.type(reader.next("python -m fedpriv.credentials server keys"))
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"server.crt", "server.key"}
    reader.type(reader.next("flwr supernode unregister").replace("NODE_ID", first))
    for name in ("node.key", "node.pub"):
        (reader.app / "keys/node-0" / name).unlink()
    reader.type(commands_of(PAGE)[0])
    reader.type(reader.next("flwr supernode register"))
    assert not reader.pending


def a_killed_node_takes_its_client_with_it(shell: int) -> None:
    """In the middle of a message. shell: has started the node, or has become it."""
    node = wait_until(lambda: next((pid for pid in (shell, *children(shell)) if executors(pid)), None))
    (warm,) = executors(node)
    (client,) = wait_until(lambda: [child for child in children(warm) if threads(child) > 1])
    os.kill(client, signal.SIGSTOP)
    os.kill(node, signal.SIGKILL)
    wait_until(lambda: state(warm) in ("", "Z") and state(client) in ("", "Z"))


def test_the_containers_server_is_healthy_and_starts_runs(reader: Reader) -> None:
    """The credentials that the page makes for containers, the service's own command, its image's health check."""
    (host,) = set(re.findall(r"`(host=superlink[^`]*)`", PAGE))
    first = commands_of(PAGE)[0]
    reader.type(re.sub(r"host=\S+", host, first))
    service = yaml.safe_load((APP / "deploy/compose.yaml").read_text())["services"]["superlink"]
    places = {"/credentials": str(reader.app / "keys/server"), "/state": str(reader.folder / "state")}
    places |= {"port=8000": f"port={reader.port} control={reader.control}", "host=0.0.0.0": "host=127.0.0.1"}
    places |= {"8000": str(reader.port), "8001": str(reader.control)}

    def here(text: str) -> str:
        return re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], text)

    (reader.folder / "state").mkdir()
    reader.environment["FLWR_HOME"] = str(reader.folder / "state/flwr")
    (reader.folder / "state/flwr").mkdir()
    (reader.folder / "state/flwr/config.toml").write_text(here((APP / "deploy/flower.toml").read_text()))
    reader.begin("superlink", "python -m fedpriv.superlink " + " ".join(map(here, service["command"])))
    dockerfile = (APP / "deploy/superlink.Dockerfile").read_text()
    (health,) = re.findall(r'HEALTHCHECK.*?CMD \["python", "-c", "(.*?)"\]', dockerfile, re.DOTALL)
    check = shlex.join(["python", "-c", here(health)])

    def is_healthy() -> bool:
        return subprocess.run(["bash", "-c", check], env=reader.environment, capture_output=True).returncode == 0

    reader.wait_until(is_healthy, "the image's health check fails")
    (run,) = [command for command in commands_of(PAGE) if " superlink flwr run " in command]
    run = run.partition(" exec superlink ")[2].replace("/app", str(reader.app))
    run = run.replace("=/test", f"={reader.folder}/test").replace("=/runs", f"={reader.folder}/runs")
    write_pictures(reader.folder / "test", 20, 9)
    reader.type(run)

    def status() -> str:
        (row,) = json.loads(reader.type("flwr list clinic --format json"))["runs"]
        return str(row["status"])

    reader.wait_until(lambda: status().startswith("running"), "the run is not started")
