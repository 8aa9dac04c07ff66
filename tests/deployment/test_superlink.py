"""The gate before a SuperLink, and the mistakes that its command names: who is answered, and what is read of whom."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import socket
import sqlite3
import stat
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from node_proofs import signed
from prometheus_client import CollectorRegistry

from fedpriv.commands import credentials
from fedpriv.commands.credentials import _name, make_credentials
from fedpriv.commands.superlink import (
    UNSAFE_VARIABLES,
    bound,
    check_certificate,
    main,
    private_apps,
    private_database,
)
from fedpriv.common.command_line import address_of, options_of
from fedpriv.common.errors import OptionError
from fedpriv.deployment import superlink_gate
from fedpriv.deployment.superlink_gate import SMALL_BODY, Connection, Gate, Limits, user_of
from fedpriv.report.live.prometheus import serve_metrics

#: What anybody could do who reaches it: run a program, register a node's key, read results, act as a ServerApp.
CONTROL = ("/v1/control/start-run", "/v1/control/register-node", "/v1/control/pull-artifacts", "/v1/control/stop-run")
OTHERS = ("/v1/runtime/acquire-task", "/docs", "/openapi.json", "/v1/fleet", "/")
LISTENER = ("127.0.0.1", 8001)
KEY = ec.generate_private_key(ec.SECP384R1())


class Guarded:
    """A gate before an application that reads the body and answers 200; what both did."""

    def __init__(self) -> None:
        self.gate = Gate(self.app, LISTENER, Limits(body=2**20, bodies=2, connections=8), lambda key: True)
        self.bodies: list[bytes] = []
        self.open = asyncio.Event()
        self.at_once = self.most = self.read = 0

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.bodies.append((await receive())["body"])
        await self.open.wait()
        self.at_once -= 1
        await send({"type": "http.response.start", "status": 200})

    async def ask(self, path: str, client: str | None, parts: Sequence[bytes] = (b"",), **more: Any) -> Any:
        said: list[Any] = []
        left = list(parts)

        async def receive() -> Any:
            if not left:
                return {"type": "http.disconnect"}
            part = left.pop(0)
            self.read += len(part)
            return {"type": "http.request", "body": part, "more_body": bool(left)}

        async def send(message: Any) -> None:
            said.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "client": client and (client, 50000), "headers": []}
        await self.gate(scope | {"server": ("10.0.0.1", 8000)} | more, receive, send)
        return said[0].get("status", said[0]["type"]) if said else None


def answered(path: str, client: str | None, **more: Any) -> Any:
    """What a request from this address gets: the application's own 200, or what the gate says."""
    guarded = Guarded()
    guarded.open.set()
    return asyncio.run(guarded.ask(path, client, **more))


def node_headers(*more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, _, value in (h.partition("=") for h in signed(KEY))] + [*more]


@pytest.mark.parametrize("path", [*CONTROL, *OTHERS])
@pytest.mark.parametrize("own", [("10.0.0.1", 8000), ("127.0.0.1", 8000), ("10.0.0.1", 8001), None])
def test_the_public_listener_has_the_nodes_api_alone(path: str, own: Any) -> None:
    """Whoever asks: a proxy on this machine, or a port forwarder, has a loopback address too."""
    for host in ("10.0.0.9", "2001:db8::9", "10.0.0.1", "127.0.0.1", "::1", "::ffff:127.0.0.1", "", "localhost", None):
        assert answered(path, host, server=own) == 403
    assert answered(path, "10.0.0.9", server=own, type="websocket") == "websocket.close"


def test_the_control_listener_has_everything_for_this_machine() -> None:
    for path in (*CONTROL, *OTHERS, "/v1/fleet/pull-messages"):
        assert answered(path, "127.0.0.1", server=LISTENER) == 200


@pytest.mark.parametrize("client", ["10.0.0.9", "2001:db8::9", "", None])
def test_a_packet_that_was_routed_to_the_loopback_address_gets_nothing(client: str | None) -> None:
    for path in CONTROL:
        assert answered(path, client, server=LISTENER) == 403


def test_what_other_machines_are_for_is_left_to_them() -> None:
    assert answered("/health", "10.0.0.9", method="GET") == 200
    assert answered("/health", "10.0.0.9") == 403
    assert answered("/v1/fleet/pull-messages", "10.0.0.9") == 401
    assert answered("/v1/fleet/pull-messages", "10.0.0.9", headers=node_headers()) == 200


def test_of_a_sender_who_proves_nothing_no_byte_is_read() -> None:
    other = ec.generate_private_key(ec.SECP384R1())
    good = signed(KEY)
    proofs: list[list[str]] = [[], good[:2], signed(other, KEY.public_key()), [*good[:2], "flwr-timestamp=0"]]
    proofs += [[good[0], "flwr-signature=???", good[2]], ["flwr-public-key=AAAA", *good[1:]], [*good, good[0]]]
    for proof in proofs:
        headers = [(name.encode(), value.encode()) for name, _, value in (h.partition("=") for h in proof)]
        guarded = Guarded()
        status = asyncio.run(guarded.ask("/v1/fleet/push-object", "10.0.0.9", [b"x" * 100], headers=headers))
        assert status in (400, 401) and guarded.read == 0 and not guarded.bodies, proof


@pytest.mark.parametrize(
    ("age", "status"), [(-3600, 401), (-6, 401), (-4, 200), (0, 200), (304, 200), (306, 401), (86_400, 401)]
)
def test_a_proof_is_good_for_minutes(monkeypatch: pytest.MonkeyPatch, age: float, status: int) -> None:
    """Its signature is right at any time: who has heard one request must not be able to repeat its head later on."""
    headers, later = node_headers(), superlink_gate.now() + timedelta(seconds=age)
    monkeypatch.setattr(superlink_gate, "now", lambda: later)
    assert answered("/v1/fleet/pull-messages", "10.0.0.9", headers=headers) == status


def test_a_signature_is_good_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """On no path, with no body, and not as the twin (r, -s) that anybody can make of an ECDSA signature (r, s)."""
    ticks = [1000.0]
    monkeypatch.setattr(superlink_gate, "monotonic", lambda: ticks[0])
    monkeypatch.setattr(superlink_gate, "_last_remark", -1e9)
    guarded, headers = Guarded(), node_headers()
    guarded.open.set()

    def ask(given: Any, path: str = "/v1/fleet/pull-messages") -> Any:
        return asyncio.run(guarded.ask(path, "10.0.0.9", headers=given))

    (place,) = [number for number, (name, _) in enumerate(headers) if name == b"flwr-signature"]
    r, s = decode_dss_signature(b64decode(headers[place][1]))
    twin = list(headers)
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973
    twin[place] = (b"flwr-signature", b64encode(encode_dss_signature(r, order - s)))
    assert superlink_gate._is_signed(superlink_gate._headers({"headers": twin}), lambda key: True)
    assert [ask(headers), ask(headers), ask(headers, "/v1/fleet/push-messages"), ask(twin)] == [200, 401, 401, 401]
    assert guarded.gate.refused[401] == 3 and "was used before" in caplog.text
    assert [ask(node_headers()) for _ in range(3)] == [200] * 3, "the next requests of the same node"
    ticks[0] += superlink_gate.USED_SECONDS + 1
    assert ask(node_headers()) == 200 and [len(used) for used in guarded.gate._used.values()] == [1]


def test_a_signature_of_before_a_start_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the node's clock was: it is up to `SYSTEM_TIME_TOLERANCE` ahead."""
    before, started, ahead = node_headers(), superlink_gate.now(), superlink_gate.SYSTEM_TIME_TOLERANCE
    page = (Path(__file__).resolve().parents[2] / "SECURITY.md").read_text()
    assert superlink_gate.AHEAD.total_seconds() == ahead and f"from {ahead} s after its start on" in page
    for shift, status in ((-1, 503), (0, 503), (ahead + 1, 200)):
        guarded = Guarded()
        guarded.open.set()
        guarded.gate.since = started + superlink_gate.AHEAD - timedelta(seconds=shift)
        assert asyncio.run(guarded.ask("/v1/fleet/pull-messages", "10.0.0.9", headers=before)) == status


def test_signatures_are_kept_as_long_as_they_could_pass_and_no_node_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    longest = superlink_gate.SYSTEM_TIME_TOLERANCE + superlink_gate.TIMESTAMP_TOLERANCE
    assert longest + superlink_gate.SYSTEM_TIME_TOLERANCE == superlink_gate.USED_SECONDS  # a clock ahead, too
    monkeypatch.setattr(superlink_gate, "MOST_USED", 4)
    guarded = Guarded()
    guarded.open.set()
    for _ in range(9):
        assert asyncio.run(guarded.ask("/v1/fleet/pull-messages", "10.0.0.9", headers=node_headers())) == 200
    assert [len(used) for used in guarded.gate._used.values()] == [4]


@pytest.mark.parametrize(
    ("header", "parts", "status"),
    [
        (None, [b"x" * 2**19, b"x" * 2**19], 200),
        (None, [b"x" * 2**19, b"x" * 2**19, b"x", b"x" * 2**19], 413),
        (b"1048576", [b"x" * 2**20], 200),
        (b"1048577", [b"x"], 413),
        (b"10", [b"x" * 11, b"x" * 100], 413),
        (b"9" * 5000, [b"x"], 413),
        (b"-1", [b"x"], 400),
        (b"1e3", [b"x"], 400),
    ],
)
def test_a_body_is_counted_by_its_header_and_as_it_comes(header: bytes | None, parts: list[bytes], status: int) -> None:
    guarded = Guarded()
    guarded.open.set()
    headers = node_headers(*([(b"content-length", header)] if header is not None else []))
    assert asyncio.run(guarded.ask("/v1/fleet/push-object", "10.0.0.9", parts, headers=headers)) == status
    assert guarded.bodies == ([b"".join(parts)] if status == 200 else [])
    assert guarded.read <= 2**20 + 1, "it read on"


def test_large_bodies_wait_for_each_other_and_small_ones_for_nobody() -> None:
    guarded = Guarded()

    def ask(size: int) -> Any:
        headers = node_headers((b"content-length", str(size).encode()))
        return asyncio.create_task(guarded.ask("/v1/fleet/push-object", "10.0.0.9", [b"x" * size], headers=headers))

    async def work() -> None:
        large = [ask(SMALL_BODY + 1) for _ in range(5)]
        while guarded.at_once < 2:
            await asyncio.sleep(0.001)
        small = [ask(SMALL_BODY) for _ in range(3)]
        while guarded.at_once < 5:
            await asyncio.sleep(0.001)
        assert [len(body) for body in guarded.bodies] == [SMALL_BODY + 1] * 2 + [SMALL_BODY] * 3
        guarded.open.set()
        assert await asyncio.gather(*large, *small) == [200] * 8
        assert guarded.most <= 5

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_body_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink_gate, "BODY_SECONDS", 0.01)
    guarded, said = Guarded(), []

    async def silent() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/fleet/push-object", "server": ("10.0.0.1", 8000)}
    asyncio.run(guarded.gate(scope | {"client": ("10.0.0.9", 1), "headers": node_headers()}, silent, send))
    assert said[0]["status"] == 408


def test_flower_still_has_what_is_taken_from_it() -> None:
    from flwr.common import constant
    from flwr.superlink import main as flower

    command = importlib.import_module("flwr.superlink.cli.flower_superlink")
    assert list(inspect.signature(flower.create_app).parameters) == ["config", "superlink_lifespan_class"]
    assert "superexec_process" in inspect.getsource(command.SuperLinkLifespan)
    assert inspect.signature(command._parse_superlink_lifespan_config).parameters == {}
    switches = {name for name in vars(constant) if name.startswith("FLWR_INTERNAL_GRPC_")}
    assert switches <= set(UNSAFE_VARIABLES), "a listener that nothing here knows of"


def test_a_connection_within_this_machine_has_a_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = listener.getsockname()
        for family, address in ((socket.AF_INET, own), (socket.AF_INET6, (f"::ffff:{own[0]}", own[1]))):
            client = socket.socket(family)
            client.connect(address)
            accepted, peer = listener.accept()
            with accepted:
                assert user_of(peer, own) == os.geteuid()
                assert user_of(peer, ("127.0.0.2", own[1])) is None and user_of(own, own) is None
                client.close()  # in the kernel's table it is root's from here on
                assert accepted.recv(1) == b"" and user_of(peer, own) is None


@pytest.mark.parametrize("user", [os.geteuid() + 1, 0, None])
def test_the_control_listener_keeps_connections_of_its_own_user_alone(
    user: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ends:
        """A transport of a connection to the control listener."""

        closed = False

        def get_extra_info(self, name: str) -> Any:
            return {"sockname": LISTENER, "peername": ("127.0.0.1", 50000)}.get(name)

        def abort(self) -> None:
            self.closed = True

    async def closed() -> bool:
        state = uvicorn.server.ServerState()
        config = uvicorn.Config(Guarded().gate, ws="none", log_config=None)  # type: ignore[arg-type]
        made = Connection(config, state, {}, control=LISTENER, public=set(), most=0)  # type: ignore[arg-type]
        ends = Ends()
        made.connection_made(ends)  # type: ignore[arg-type]
        return ends.closed

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(superlink_gate, "user_of", lambda *ends: user)
    assert asyncio.run(closed())
    monkeypatch.setattr(superlink_gate, "user_of", lambda *ends: 1000)
    assert not asyncio.run(closed())


# --- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["port=8000"], "credentials: is missing"),
        (["credentials=nowhere"], "credentials=nowhere: ca.crt is missing there"),
        (["credential=x"], "credential=x: no such option; allowed: credentials"),
        (["credentials=KEYS", "port=eight"], "port=eight"),
        (["credentials=KEYS", "host=server"], "host=server: must be an IP address"),
        (["credentials=KEYS", "control=8000"], "control=8000: must be another port than port="),
        (["credentials=KEYS", "control=0"], "control=0: must be a whole number from 1 to 65535"),
        (["credentials=KEYS", "max_message=0"], "max_message=0: must be a whole number from 1 to 2047"),
        (["credentials=KEYS", "max_message=2048"], "max_message=2048: must be a whole number from 1 to 2047"),
        (["credentials=KEYS", "max_messages=none"], "max_messages=none: must be a whole number from 1 to 1024"),
        (["credentials=KEYS", "max_connections=0"], "max_connections=0: must be a whole number from 1 to 65535"),
        (["credentials=KEYS", "database=:memory:"], "database=:memory:: must be the path of a file"),
        (["credentials=KEYS", "database=sqlite:///tmp/a.db"], "must be the path of a file"),
        (["credentials=KEYS", "host=192.0.2.77"], "port=8000: cannot listen on 192.0.2.77"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_credentials(tmp_path, ["localhost"], 0, 1)
    assert main([argument.replace("KEYS", str(tmp_path / "server")) for argument in arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_credentials(tmp_path, ["localhost"], 0, 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([f"credentials={tmp_path / 'server'}", "host=127.0.0.1", f"port={port}"]) == 2
    assert f"port={port}: cannot listen on 127.0.0.1" in capsys.readouterr().err


def spoiled(what: str, folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """The server's credentials with something wrong."""
    if what in ("names", "date"):
        patch.setattr(credentials, "THIS_MACHINE", ("localhost",) if what == "names" else credentials.THIS_MACHINE)
        make_credentials(folder, ["server.example"], 0, 1 if what == "names" else 0)
        return folder / "server"
    make_credentials(folder, ["server.example"], 0, 1)
    make_credentials(folder / "other", ["server.example"], 0, 1)
    file = {"key": "server.key", "authority": "ca.crt", "text": "server.crt"}[what]
    text = (folder / "other" / "server" / file).read_text() if what != "text" else "no certificate"
    (folder / "server" / file).write_text(text)
    return folder / "server"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("names", "IP address mismatch, certificate is not valid for '127.0.0.1'"),
        ("date", "certificate has expired"),
        ("authority", "server.crt is no proof of it"),
        ("key", "do not go together"),
        ("text", "do not go together"),
    ],
)
def test_a_certificate_that_superexec_would_not_take_is_refused(
    what: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = spoiled(what, tmp_path, monkeypatch)
    assert main([f"credentials={keys}"]) == 2
    said = capsys.readouterr().err
    assert words in said and f"credentials={keys}: " in said and "`python -m fedpriv.credentials server FOLDER`" in said


def test_the_certificates_that_are_made_are_taken(tmp_path: Path) -> None:
    make_credentials(tmp_path, ["server.example"], 0, 1)
    check_certificate(tmp_path / "server")


def open_to_others(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]


def use(database: Path, leave_open: bool = False) -> sqlite3.Connection:
    """What Flower does with its database: a write-ahead log."""
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS token (secret TEXT)")
    connection.execute("INSERT INTO token VALUES ('secret')")
    connection.commit()
    if not leave_open:
        connection.close()
    return connection


@pytest.mark.parametrize("name", ["made", "mended", "left by a crash", "a link", "in the home folder"])
def test_the_database_is_its_users_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds logs, options, node keys and tokens; SQLite makes two more files beside it."""
    folder = tmp_path / "state"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    given, file = folder / "superlink.db", folder / "superlink.db"
    if name in ("mended", "left by a crash"):
        earlier = use(file, leave_open=name != "mended")
        for path in folder.iterdir():
            path.chmod(0o644)
    elif name == "a link":
        given = tmp_path / "link.db"
        given.symlink_to(file)
    elif name == "in the home folder":
        given = Path("~/superlink.db")
    before = os.umask(0o000)
    try:
        assert private_database(given) == file
        assert not open_to_others(folder), "before anything is written"
        connection = use(file, leave_open=True)
        assert {path.name for path in folder.iterdir()} == {f"superlink.db{end}" for end in ("", "-wal", "-shm")}
        assert not open_to_others(folder)
        connection.close()
    finally:
        os.umask(before)
        if name == "left by a crash":
            earlier.close()


@pytest.mark.parametrize("name", ["a folder", "a pipe", "no folder", "a loop of links", "of another user", "a log"])
def test_a_database_that_cannot_be_private_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_credentials(tmp_path / "keys", ["localhost"], 0, 1)
    file = tmp_path / "superlink.db"
    if name == "a folder":
        file.mkdir()
    elif name == "a pipe":
        os.mkfifo(file)
    elif name == "no folder":
        file = tmp_path / "nowhere" / "superlink.db"
    elif name == "a loop of links":
        file.symlink_to(file)
    elif name == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    else:
        (tmp_path / "superlink.db-wal").symlink_to("/dev/null")
    assert main([f"credentials={tmp_path / 'keys' / 'server'}", f"database={file}"]) == 2
    assert f"database={file}: must be a file that only this user may read" in capsys.readouterr().err


def test_nobody_else_puts_an_app_where_flower_would_load_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made, or mended where an earlier start under another umask left it open; the folder around it, too."""
    home = tmp_path / "flwr"
    monkeypatch.setenv("FLWR_HOME", str(home))
    before = os.umask(0)
    try:
        assert private_apps() == home / "apps"
        modes = [stat.S_IMODE(folder.stat().st_mode) for folder in (home, home / "apps")]
        home.chmod(0o777), (home / "apps").chmod(0o777)
        assert private_apps() == home / "apps"
    finally:
        os.umask(before)
    assert modes == [stat.S_IMODE(folder.stat().st_mode) for folder in (home, home / "apps")] == [0o755, 0o700]
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(OptionError, match=f"FLWR_HOME={home}: must be a folder of this user alone .* another user"):
        private_apps()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "file"))
    with pytest.raises(OptionError, match="FLWR_HOME"):
        private_apps()


def test_every_option_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    help_text = capsys.readouterr().out
    assert all(f"    {name}" in help_text or f", {name}" in help_text for name in options_of(main).options)


# --- IPv6 and IPv4 -------------------------------------------------------------------------------------------


def reached(listener: socket.socket, *hosts: str) -> list[str]:
    """Which of these addresses of this machine lead to a socket."""
    listener.listen()
    port, found = listener.getsockname()[1], []
    for host in hosts:
        with suppress(OSError), socket.create_connection((host, port), 5):
            found.append(host)
    return found


@pytest.mark.parametrize(
    ("host", "hosts"), [("::", ["127.0.0.1", "::1"]), ("::1", ["::1"]), ("0.0.0.0", ["127.0.0.1"])]
)
def test_one_listener_takes_both_kinds_of_addresses(host: str, hosts: list[str]) -> None:
    with bound("port", host, 0) as listener:
        assert reached(listener, "127.0.0.1", "::1") == hosts
        with pytest.raises(OptionError, match=f"cannot listen on {host}: Address already in use"):
            bound("port", host, listener.getsockname()[1])


def test_an_address_may_have_the_brackets_of_a_url() -> None:
    assert [address_of(text) for text in ("[::1]", "::1", "10.0.0.1", "[::]", "")] == [
        "::1",
        "::1",
        "10.0.0.1",
        "::",
        "",
    ]
    assert _name("[::1]") == _name("::1")
    with serve_metrics("[::1]", 0, CollectorRegistry(), lambda: (True, "well")) as server:
        assert httpx.get(f"http://[::1]:{server.port}/healthz", trust_env=False).text == "well\n"
