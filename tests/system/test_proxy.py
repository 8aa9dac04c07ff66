"""Behind a site's proxy: what our processes ask of it, which is the server's address elsewhere and nothing else.

The proxy writes down the first line of each request. It forwards ``server.example``, whose name no machine knows, to
this machine, and answers 503 to all else. The SuperLink listens on IPv6 and IPv4: one node connects by the proxy, one
by ``[::1]``. Variables that say "no telemetry" are taken away: the processes have to say so themselves.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from rotation import together

from deploy.rehearsal import Failed, Rehearsal, copy_of, patiently
from fedpriv.commands.superlink import check_proxies
from fedpriv.common.errors import OptionError

APP = Path(__file__).resolve().parents[2]
SERVER = "server.example"
SILENT = ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK", "RAY_USAGE_STATS_ENABLED")
pytestmark = pytest.mark.timeout(1800)


class Proxy:
    """A context manager. asked: the first line of each request."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=(self._server.accept()[0],), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            line = client.recv(65536).decode("latin-1").partition("\r\n")[0]
            self.asked.append(line)
            found = re.match(rf"CONNECT {SERVER}:(\d+) ", line)
            if found is None:
                client.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            with socket.create_connection(("127.0.0.1", int(found[1]))) as server:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join()

    @property
    def environment(self) -> dict[str, str]:
        """Of a process at this site: every spelling of a proxy, and a NO_PROXY that names one spelling of loopback."""
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "grpc_proxy")
        silent = (*SILENT, "NO_PROXY", "no_proxy")
        bare = {name: value for name, value in os.environ.items() if name not in silent}
        proxies = {spelled: self.address for name in names for spelled in (name, name.lower())}
        return bare | proxies | {"NO_PROXY": "localhost", "no_grpc_proxy": "intranet"}


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as started:
        yield started


def exported(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a shell in which the page's line for Flower's own commands was typed."""
    (line,) = re.findall(r"^    (export .*)$", (APP / "docs/deploy.md").read_text(), re.MULTILINE)
    told = subprocess.run(
        ["bash", "-c", f"{line}; env -0"], env=environment, capture_output=True, text=True, check=True
    )
    return dict(variable.split("=", 1) for variable in told.stdout.strip("\0").split("\0"))


class Site(Rehearsal):
    """Our commands have a site's environment; `flwr`, which is not ours, has what the page says besides."""

    host = "[::]"

    def __init__(self, folder: Path, app: Path, proxy: Proxy) -> None:
        super().__init__(folder, app, nodes=2)
        wanted = ("PATH", "PYTHONPATH", "FLWR_HOME", "OMP_NUM_THREADS")
        self.ours = proxy.environment | {name: self._environment[name] for name in wanted}
        self._environment = exported(self.ours)

    def superlink(self, number: int) -> str:
        return f"{SERVER if number == 0 else '[::1]'}:{self.port}"

    def _start(self, name: str, command: Sequence[str]) -> None:
        kept, self._environment = self._environment, self.ours
        super()._start(name, command)
        self._environment = kept


@pytest.mark.rotates(8, together(6))
def test_a_deployment_behind_a_proxy(proxy: Proxy, tmp_path: Path) -> None:
    """A round by way of the proxy and of IPv6; then one node is revoked, and says so."""
    app = copy_of(APP, tmp_path / "app")
    with Site(tmp_path, app, proxy) as machines:
        machines.start_superlink()
        for number in range(2):
            machines.start_node(number)
        run_dir = tmp_path / "run"
        machines.submit(machines.overrides(run_dir, "num_rounds=1"))
        machines.wait_for_summary(run_dir)
        for number in range(2):
            with machines.ledger(number).held() as ledger:
                assert len(ledger.releases()) == 1
        assert set(proxy.asked) == {f"CONNECT {SERVER}:{machines.port} HTTP/1.1"}

        (node,) = set(re.findall(r"SuperNode ID: (\d+)", machines.log("node-1", 10**6)))
        machines.flwr("supernode", "unregister", node, "rehearsal")
        assert patiently(lambda: machines.stopped("node-1"), machines.signs_of_life), machines.log("node-1")
        last = machines.log("node-1").strip().splitlines()[-1]
        assert last.startswith("fedpriv: the SuperLink refuses this node (401)") and "flwr supernode register" in last
        assert machines._running["node-1"].wait() == 1
        with pytest.raises(Failed, match="supernode register"):  # the operator must admit another key
            machines.flwr("supernode", "register", str(machines.keys / "node-1/node.pub"), "rehearsal")
        assert not machines.stopped("node-0") and not machines.stopped("superlink")
        assert set(proxy.asked) == {f"CONNECT {SERVER}:{machines.port} HTTP/1.1"}


@pytest.mark.parametrize("engine", ["flower", "ray", "inprocess"])
def test_a_simulation_asks_no_proxy(engine: str, proxy: Proxy, tmp_path: Path) -> None:
    options = ["num_clients=4", "clients_per_round=4", "num_rounds=1", "operations.report=false"]
    command = [sys.executable, "-m", "fedpriv", f"engine={engine}", *options, f"hydra.run.dir={tmp_path / 'run'}"]
    home = {"FLWR_HOME": str(tmp_path / "flwr")}
    done = subprocess.run(command, cwd=tmp_path, env=proxy.environment | home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert proxy.asked == []


#: What the machine itself is called besides localhost and 127.0.0.1.
LAST = "::1,169.254.169.254,metadata.google.internal"


def environment_of(**given: str) -> dict[str, str]:
    """The variables of a process of ours that began with these."""
    bare = {name: value for name, value in os.environ.items() if "proxy" not in name.lower() and name not in SILENT}
    code = "import fedpriv, json, os; print(json.dumps(dict(os.environ)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=APP, env=bare | given, capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, dict.fromkeys(("no_proxy", "NO_PROXY"), f"localhost,127.0.0.1,{LAST}")),
        (
            {"NO_PROXY": "intranet, 127.0.0.1"},
            dict.fromkeys(("no_proxy", "NO_PROXY"), f"intranet,127.0.0.1,localhost,{LAST}"),
        ),
        (
            {"NO_PROXY": "a", "no_proxy": "b", "no_grpc_proxy": "c"},
            {name: f"{first},localhost,127.0.0.1,{LAST}" for name, first in
             (("NO_PROXY", "a"), ("no_proxy", "b"), ("no_grpc_proxy", "c"))},
        ),
        ({"no_proxy": "*"}, {"no_proxy": "*", "NO_PROXY": "*"}),
        (
            dict(zip(SILENT, "101", strict=True)),
            dict(zip(SILENT, "101", strict=True)),
        ),
        ({}, dict(zip(SILENT, "010", strict=True))),
    ],
)  # fmt: skip
def test_what_a_process_of_ours_says_to_libraries(given: dict[str, str], found: dict[str, str]) -> None:
    seen = environment_of(**given)
    assert {name: seen.get(name) for name in found} == found
    assert ("no_grpc_proxy" in seen) == ("no_grpc_proxy" in given)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "all_proxy"])
def test_a_proxy_that_flower_cannot_use_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "socks5://10.0.0.1:1080")
    with pytest.raises(OptionError, match=rf"{name}=socks5://10.0.0.1:1080.*allowed: http://HOST:PORT"):
        check_proxies()
    monkeypatch.setenv(name, "http://10.0.0.1:1080")
    check_proxies()
