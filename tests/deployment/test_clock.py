"""A node whose clock is wrong is told so, with the offset: before it starts, while it runs, and in the server's log."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from deployed import MACHINES, gate_by_tls, healthy
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supernode.fleet_http_client import FleetHttpClient
from node_proofs import signed

from deploy.rehearsal import free_ports
from fedpriv.commands.credentials import make_credentials
from fedpriv.commands.node import main as node_command
from fedpriv.deployment import bundles, clock, superlink_gate, supernode
from fedpriv.deployment.clock import ClockRefused, Offset, check_clock, explain_refusals, measured, offset_of
from fedpriv.deployment.superlink_gate import CLOCK_HEADER, Gate, Limits


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """``keys``: everybody's credentials."""
    keys = tmp_path_factory.mktemp("keys")
    make_credentials(keys, ["localhost"], 1, 2)
    with gate_by_tls(keys / "server") as address:
        yield SimpleNamespace(address=address, keys=keys, authority=keys / "node-0/ca.crt")


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``ahead(seconds)``: from here on this machine's clock."""
    real = time.time

    def shift(seconds: float) -> None:
        shifted = {name: getattr(time, name) for name in ("monotonic", "strftime", "gmtime")}
        monkeypatch.setattr(clock, "time", SimpleNamespace(time=lambda: real() + seconds, **shifted))

    return shift


@pytest.mark.parametrize("shift", [0, 3600, -3600])
@pytest.mark.parametrize("plain", [False, True])
def test_an_offset_is_measured(
    plain: bool, shift: float, server: SimpleNamespace, ahead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """plain: of Flower's own server, which dates its answers in whole seconds."""
    if plain:
        monkeypatch.setattr(superlink_gate, "_with_time", lambda send: send)
    ahead(shift)
    found = measured(server.address, server.authority)
    assert found is not None and found.least <= shift <= found.most
    assert found.refused == bool(shift)


@pytest.mark.parametrize("said", ["nan", "inf", "-inf", "soon", ""])
def test_a_time_that_is_none_bounds_nothing(said: str) -> None:
    headers = httpx.Headers({CLOCK_HEADER: said, "date": "Sat, 28 Nov 2026 03:00:00 GMT"})
    assert offset_of(headers, 0.0, 1.0) is None


def test_several_answers_narrow_it_down(server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer bounds the same offset: the first, slow one takes nothing from the others."""
    bounds = iter([Offset(-9.0, 0.2), Offset(-0.1, 3.0), Offset(-4.0, 5.0)])
    monkeypatch.setattr(clock, "offset_of", lambda *given: next(bounds))
    assert measured(server.address, server.authority) == Offset(-0.1, 0.2)


@pytest.mark.parametrize(
    ("shift", "words"),
    [(8, "ahead of the SuperLink's"), (-400, "behind the SuperLink's"), (86_400, "ahead of the SuperLink's")],
)
def test_a_node_that_would_be_refused_does_not_start(
    shift: float,
    words: str,
    server: SimpleNamespace,
    ahead: Any,
    machines: MACHINES,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started: list[Any] = []
    for room, name in ((supernode, "run_supernode"), (bundles, "guard_bundles"), (supernode, "wait_to_activate")):
        monkeypatch.setattr(room, name, lambda *given: started.append(given))
    monkeypatch.setattr(FleetHttpClient, "_unary_unary", FleetHttpClient._unary_unary)  # taken back afterwards
    network = machines(1)
    ahead(shift)
    place = (f"superlink={server.address}", f"credentials={server.keys / 'node-0'}")
    capsys.readouterr()
    assert network.command("run", 0, *place, "client=0") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line and "which refuses this node" in line and "chrony" in line
    measured_seconds = float(line.partition("clock is ")[2].split()[0])
    assert abs(measured_seconds - abs(shift)) <= 2, "as far as this machine is busy"
    assert network.command("status", 0, *place) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("clock: this machine's clock is")


def test_status_says_that_clocks_agree_or_that_nobody_answers(
    server: SimpleNamespace, machines: MACHINES, capsys: pytest.CaptureFixture[str]
) -> None:
    network = machines(1)
    keys = f"credentials={server.keys / 'node-0'}"
    assert network.command("status", 0, f"superlink={server.address}", keys) == 0
    assert "clock: this machine's clock agrees with the SuperLink's within" in capsys.readouterr().out
    (free,) = free_ports(1)
    assert network.command("status", 0, f"superlink=localhost:{free}", keys) == 0
    assert f"clock: localhost:{free} does not answer" in capsys.readouterr().out
    assert node_command(["status", "superlink=x:1", f"policy={network.policy(0)}", f"data={network.data(0)}"]) == 2
    assert "ca.crt is missing there" in capsys.readouterr().err


def test_a_clock_that_may_soon_be_refused_is_a_warning(server: SimpleNamespace, ahead: Any) -> None:
    said: list[str] = []
    ahead(4)
    check_clock(server.address, server.authority, said.append)
    assert len(said) == 1 and "5 s ahead and 305 s behind are allowed" in said[0] and "refuses" not in said[0]
    ahead(0)
    check_clock(server.address, server.authority, said.append)
    assert len(said) == 1


@pytest.mark.parametrize("words", ["certificate is not yet valid", "certificate has expired"])
def test_a_clock_that_is_years_off_makes_the_certificate_invalid(
    words: str, server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any, **named: Any) -> None:
        raise httpx.ConnectError(f"certificate verify failed: {words} (_ssl.c:1016)")

    monkeypatch.setattr(httpx.Client, "stream", fail)
    with pytest.raises(ClockRefused, match=rf"not valid by this machine's clock, \d{{4}}-.* UTC .*{words}"):
        measured(server.address, server.authority)


def test_openssl_still_has_these_words(tmp_path: Path) -> None:
    make_credentials(tmp_path, ["localhost"], 0, 0)  # valid for no day
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "server/server.crt", tmp_path / "server/server.key")
    client = ssl.create_default_context(cafile=tmp_path / "ca/ca.crt")
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(here, there, server_hostname="localhost"), serving.wrap_bio(there, here, server_side=True))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        for end in (*ends, ends[0]):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_the_limits_are_flowers() -> None:
    """As the gate and Flower compare them."""
    assert (SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE) == (5, 300)
    assert not Offset(4.9, 6.9).refused and Offset(5.0, 7.0).refused
    assert not Offset(-306.0, -304.0).refused and Offset(-307.0, -305.0).refused


@pytest.mark.parametrize(
    "headers", [{}, {"date": ""}, {"date": "yesterday"}, {"date": "Mon, 01 Jan 99999 00:00:00 GMT"}]
)
def test_an_answer_without_a_date_tells_nothing(headers: dict[str, str]) -> None:
    assert offset_of(httpx.Headers(headers), 0, 0) is None


def test_a_running_node_says_why_it_is_refused(
    server: SimpleNamespace, ahead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a minute, from the date of the refusal itself; the error stays what it is."""
    monkeypatch.setattr(FleetHttpClient, "_unary_unary", FleetHttpClient._unary_unary)  # taken back afterwards
    said: list[str] = []
    reason = explain_refusals(said.append)
    client = FleetHttpClient.from_server_address(server.address, False, server.authority.read_bytes(), ())
    for shift in (0, 30, 30):
        ahead(shift)
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            client.PullMessages(PullMessagesRequest())  # unsigned, so it is refused whatever the clock shows
        assert len(said) == bool(shift)
        assert ("was revoked or never registered" in reason[0]) == (shift == 0)
    assert "ahead of the SuperLink's" in said[0]


def test_a_refusal_is_forgotten_when_the_next_request_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is stopped later must not say that it was revoked."""
    request = httpx.Request("POST", "https://server.example")
    statuses = iter((401, 503, 200))

    def answer(client: FleetHttpClient, **given: Any) -> int:
        if (status := next(statuses)) == 200:
            return status
        raise httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status))

    monkeypatch.setattr(FleetHttpClient, "_unary_unary", answer)
    reason = explain_refusals(print)
    client: Any = object.__new__(FleetHttpClient)
    for known in (True, True):  # an answer that is no refusal of this node leaves the reason
        with pytest.raises(httpx.HTTPStatusError):
            client._unary_unary()
        assert bool(reason) == known
    assert client._unary_unary() == 200 and not reason


@pytest.mark.parametrize(("age", "words"), [(-8, "8.0 s ahead of"), (400, "400.0 s behind")])
def test_the_servers_log_names_the_offset_of_a_registered_node(
    age: float, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key, said = ec.generate_private_key(ec.SECP384R1()), []
    given = {name: value for name, _, value in (header.partition("=") for header in signed(key))}
    signed_at = superlink_gate.datetime.fromisoformat(given["flwr-timestamp"])
    monkeypatch.setattr(superlink_gate, "now", lambda: signed_at + timedelta(seconds=age))
    monkeypatch.setattr(superlink_gate, "_last_remark", -superlink_gate.REMARK_SECONDS)

    async def send(message: Any) -> None:
        said.append(message)

    def ask(known: bool) -> Any:
        gate = Gate(healthy, ("127.0.0.1", 1), Limits(2**20, 2, 8), lambda key: known)
        headers = [(name.encode(), value.encode()) for name, value in given.items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/fleet/pull-messages", "headers": headers}
        asyncio.run(gate(scope | {"server": ("10.0.0.1", 8000), "client": ("10.0.0.9", 1)}, None, send))  # type: ignore[arg-type]
        return said[-2]["status"]

    with caplog.at_level(logging.WARNING, "uvicorn.error"):
        assert ask(known=False) == 401 and not caplog.text, "a stranger writes nothing into the log"
        assert ask(known=True) == 401
    assert f"its clock is {words} this machine's" in caplog.text
