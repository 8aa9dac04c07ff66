"""`fedpriv deploy doctor`: what would stop a server or a node has a line with its remedy, and nothing is changed."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from deployed import MACHINES, Machines, gate_by_tls
from PIL import Image

from deploy.rehearsal import free_ports
from fedpriv.commands import doctor
from fedpriv.commands.credentials import make_credentials
from fedpriv.deployment import clock
from fedpriv.deployment.data_ledger import signer_of
from fedpriv.guard import sandbox

GUARD = {"apps": ["a" * 64], "unit": "row", "shards": 2, "clip": 1.0, "noise_multiplier": 1.0}


class World:
    """A node whose every check is well until a test breaks one."""

    def __init__(self, network: Machines, keys: Path) -> None:
        self.network, self.keys = network, keys
        self.name, self.port = "localhost", free_ports(1)[0]
        self.run = network.overrides("num_rounds=1").split()
        self.taken: socket.socket | None = None

    def call(self, address: str) -> int:
        own = (f"policy={self.network.policy(0)}", f"data={self.network.data(0)}", "client=0", f"port={self.port}")
        where = (f"superlink={self.name}:{address.rpartition(':')[2]}", f"credentials={self.keys / 'node-0'}")
        return doctor.main(["node", *own, *where, *self.run])

    def policy(self, **changes: Any) -> None:
        known = yaml.safe_load(self.network.policy(0).read_text())
        self.network.policy(0).write_text(yaml.safe_dump(known | changes))


@pytest.fixture
def world(machines: MACHINES, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    make_credentials(tmp_path / "keys", ["server.example"], 1, 2)
    monkeypatch.setattr(doctor, "LEAST_FREE", 1)
    yield World(machines(1, {"bundles": ["a" * 64]}), tmp_path / "keys")


def lines(printed: str) -> dict[str, tuple[str, str]]:
    """Of each check (its state, what was said)."""
    rows = [(line[:13].strip(), *line[15:].split(": ", 1)) for line in printed.splitlines()]
    return {name: (state, words) for state, name, words in rows}


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_a_node_that_can_start(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its certificate, clock, key, policy, ledger and a run; no byte of its folders changes."""
    capsys.readouterr()
    before = contents(tmp_path)
    with gate_by_tls(world.keys / "server") as address:
        assert world.call(address) == 0
        said = lines(capsys.readouterr().out)
        world.run = []
        assert world.call(address) == 0
    assert contents(tmp_path) == before
    assert [name for name, (state, _) in said.items() if state != "ok"] == ["kernel"], said
    assert [*said] == [
        *("versions", "keys", "proxies", "superlink", "clock", "registered", "port", "policy"),
        *("ledger", "run", "kernel", "disk"),
    ]
    assert said["ledger"][1] == "0 messages have left, 12 pictures are declared"
    assert lines(capsys.readouterr().out)["run"][0] == "not looked at"


def other_authority(world: World, patch: pytest.MonkeyPatch) -> None:
    make_credentials(world.keys / "other", ["localhost"], 1, 2)
    shutil.copy(world.keys / "other/ca/ca.crt", world.keys / "node-0/ca.crt")


def other_name(world: World, patch: pytest.MonkeyPatch) -> None:
    found, world.name = socket.getaddrinfo, "hospital.example"
    patch.setattr(socket, "getaddrinfo", lambda host, *more, **named: found("127.0.0.1", *more, **named))


def late_clock(world: World, patch: pytest.MonkeyPatch) -> None:
    shifted = {name: getattr(clock.time, name) for name in ("monotonic", "strftime", "gmtime")}
    real = clock.time.time
    patch.setattr(clock, "time", SimpleNamespace(time=lambda: real() + 8, **shifted))


def busy_port(world: World, patch: pytest.MonkeyPatch) -> None:
    world.taken = socket.create_server(("127.0.0.1", 0))
    world.port = world.taken.getsockname()[1]


def lost_identity(world: World, patch: pytest.MonkeyPatch) -> None:
    key, ledger = world.keys / "node-0/identity.key", world.network.ledger(0)
    ledger.signer = signer_of(key, "credentials")
    with ledger.held():
        ledger.sign_on()
    key.unlink()


def new_picture(world: World, patch: pytest.MonkeyPatch) -> None:
    Image.new("L", (4, 4)).save(world.network.data(0) / "a/new.png")


Break = Callable[[World, pytest.MonkeyPatch], object]
#: The check that finds it -> what breaks it, and the remedy.
BROKEN: list[tuple[str, Break, str]] = [
    ("versions", lambda w, p: p.setattr(doctor, "installed", lambda name: "1.42.0"), "fedpriv needs flwr~=1.41"),
    ("keys", lambda w, p: (w.keys / "node-0/node.key").chmod(0o640), "chmod 600 "),
    ("keys", lambda w, p: (w.keys / "node-0/identity.key").chmod(0o604), "identity.key"),
    ("proxies", lambda w, p: p.setenv("HTTPS_PROXY", "socks5://127.0.0.1:9"), "allowed: http://HOST:PORT"),
    ("superlink", other_name, "use a name that the server's certificate has"),
    ("superlink", other_authority, "ca.crt must be of the authority"),
    ("superlink", lambda w, p: setattr(w, "name", "127.0.0.9"), "start the SuperLink"),
    ("registered", lambda w, p: (w.keys / "node-0/node.key").write_text("x"), "cannot be shown to the SuperLink"),
    ("clock", late_clock, "ahead of the SuperLink's"),
    ("port", busy_port, "stop what listens there"),
    ("policy", lambda w, p: w.policy(variants=[]), "variants"),
    ("policy", lambda w, p: w.policy(bundles=[]), "`fedpriv deploy node bundle APP`"),
    ("ledger", lambda w, p: shutil.rmtree(w.network.folder / "counters"), "the counter is missing"),
    ("ledger", lambda w, p: shutil.rmtree(w.network.data(0) / ".fedpriv"), "fedpriv.node init` makes it"),
    ("ledger", lost_identity, "whose key is not here"),
    ("ledger", new_picture, "`declare` declares"),
    ("run", lambda w, p: w.run.append("num_rounds=11"), "num_rounds=11: at most 10 (limits.max_rounds)"),
    ("run", lambda w, p: w.run.append("dataset.examples=[13]"), "client 0 has declared 12"),
    ("run", lambda w, p: w.run.append("dataset.channels=3"), "this machine has declared ['a', 'b', 'c'], 4 and 1"),
    ("run", lambda w, p: w.run.append("nonsense=1"), "nonsense"),
    ("kernel", lambda w, p: (w.policy(guard=GUARD), p.setattr(sandbox, "available", lambda: "no bwrap")), "no bwrap"),
    ("disk", lambda w, p: p.setattr(doctor, "LEAST_FREE", 2**40), "make room for"),
]


@pytest.mark.parametrize(("check", "damage", "remedy"), BROKEN, ids=[f"{n}-{one[0]}" for n, one in enumerate(BROKEN)])
def test_what_would_stop_a_node(
    check: str,
    damage: Break,
    remedy: str,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line says so; a run is wrong, too, where policy or ledger are."""
    damage(world, monkeypatch)
    capsys.readouterr()
    with gate_by_tls(world.keys / "server") as address:
        assert world.call(address) == 1
    said = lines(capsys.readouterr().out)
    wrong = [name for name, (state, _) in said.items() if state == "wrong"]
    assert wrong[0] == check and {*wrong} <= {check, "run"} and remedy in said[check][1], said


def test_a_node_belongs_to_the_port_for_nodes(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    with gate_by_tls(world.keys / "server", control=True) as address:
        assert world.call(address) == 1
    state, words = lines(capsys.readouterr().out)["superlink"]
    assert state == "wrong" and "nodes call the server's `port`" in words


@pytest.mark.parametrize(("nodes", "state"), [(["node-0"], "ok"), ([], "wrong")])
def test_a_key_that_is_not_registered(
    nodes: list[str], state: str, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    with gate_by_tls(world.keys / "server", registered=nodes) as address:
        assert world.call(address) == (state == "wrong")
    said = lines(capsys.readouterr().out)["registered"]
    assert said[0] == state and ("flwr supernode register" in said[1]) == (state == "wrong")


def test_a_secret_that_a_group_shares(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kubernetes gives a Secret to the superuser, and its reading to the pod's group."""
    key = world.keys / "node-0/node.key"
    monkeypatch.setattr(doctor.os, "geteuid", lambda: key.stat().st_uid + 1)
    for mode, state in ((0o440, "ok"), (0o460, "wrong"), (0o444, "wrong")):
        key.chmod(mode)
        doctor.Doctor().see_machine(key)
        assert lines(capsys.readouterr().out)["keys"][0] == state, oct(mode)


def test_a_run_is_held_against_what_is_left_of_the_budget(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.policy(budgets=[{"unit": "client", "delta": 1e-5, "max_epsilon": 6.0}])
    world.network.serve(world.network.overrides("num_rounds=1"))
    capsys.readouterr()
    with gate_by_tls(world.keys / "server") as address:
        assert world.call(address) == 1
    state, words = lines(capsys.readouterr().out)["run"]
    assert state == "wrong" and "participation 1 of 1: the budget of 6" in words


@pytest.fixture
def ports() -> list[str]:
    return [f"{name}={port}" for name, port in zip(("port", "control"), free_ports(2), strict=True)]


@pytest.mark.parametrize(
    ("check", "damage", "remedy"),
    [
        ("", lambda keys: None, ""),
        ("keys", lambda keys: (keys / "server.key").chmod(0o644), "chmod 600"),
        ("certificate", lambda keys: make_credentials(keys / "new", ["localhost"], 0, 0), "certificate has expired"),
        ("certificate", lambda keys: make_credentials(keys / "new", ["localhost"], 0, 2), "do not go together"),
        ("certificate", lambda keys: (keys / "server.crt").write_text("x"), "do not go together ([SSL]"),
    ],
    ids=["nothing", "key", "expired", "other key", "no certificate"],
)
def test_what_would_stop_a_server(
    check: str,
    damage: Callable[[Path], object],
    remedy: str,
    ports: list[str],
    world: World,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys, new = world.keys / "server", world.keys / "server/new/server"
    damage(keys)
    if new.exists():
        for name in ("server.crt", *(["server.key"] if "expired" in remedy else [])):
            shutil.copy(new / name, keys / name)
        shutil.copy(new / "ca.crt", keys / "ca.crt")
    before = contents(world.keys)
    capsys.readouterr()
    assert doctor.main(["server", f"credentials={keys}", *ports, f"database={world.keys / 'x.db'}"]) == bool(check)
    said = lines(capsys.readouterr().out)
    assert [name for name, (state, _) in said.items() if state == "wrong"] == [check] * bool(check), said
    assert remedy in said.get(check, ("", ""))[1] and contents(world.keys) == before
    if not check:
        assert said["certificate"][1].endswith("server.example, localhost, 127.0.0.1, ::1")


def test_a_server_that_runs_is_no_fault(world: World, ports: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    call = ["server", f"credentials={world.keys / 'server'}", ports[1]]
    with gate_by_tls(world.keys / "server") as address, socket.create_server(("127.0.0.1", 0)) as other:
        assert doctor.main([*call, "host=127.0.0.1", f"port={address.rpartition(':')[2]}"]) == 0
        assert "answers already" in lines(capsys.readouterr().out)["port"][1]
        assert doctor.main([*call, "host=127.0.0.1", f"port={other.getsockname()[1]}"]) == 1
        assert "stop what listens there" in lines(capsys.readouterr().out)["port"][1]


def test_a_server_that_cannot_be_where_it_is_asked_to(
    world: World, ports: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No process is to be stopped for an address of another machine; a folder that is not there is not made."""
    call = ["server", f"credentials={world.keys / 'server'}", *ports]
    assert doctor.main([*call, "host=192.0.2.1"]) == 1
    said = lines(capsys.readouterr().out)["port"][1]
    assert "192.0.2.1" in said and "host= must be an address of this machine" in said and "stop what" not in said
    assert doctor.main([*call, f"database={tmp_path / 'none/x.db'}"]) == 1
    assert f"mkdir {tmp_path / 'none'}" in lines(capsys.readouterr().out)["disk"][1]


@pytest.mark.parametrize(
    "given",
    [
        "https://server.example:8000",
        "server.example",
        "server.example:80/x",
        ":8000",
        "server.example:65536",
        "server.example:0",
    ],
)
def test_a_superlink_is_a_host_and_a_port(given: str, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    own = (f"policy={world.network.policy(0)}", f"data={world.network.data(0)}", "client=0", f"superlink={given}")
    assert doctor.main(["node", *own, f"credentials={world.keys / 'node-0'}"]) == 2
    assert f"superlink={given}: must be HOST:PORT" in capsys.readouterr().err
