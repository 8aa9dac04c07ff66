"""A SuperLink as a process, and another machine that wants more of it than nodes may have.

The other machine is a network namespace of its own where the kernel lets us make one, with root's rights or
without; elsewhere it is this machine by an address that is not a loopback one.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from node_proofs import signed

from deploy.rehearsal import free_ports
from fedpriv.commands.credentials import make_credentials
from fedpriv.deployment.superlink_gate import AHEAD

ROOT = Path(__file__).resolve().parents[2]
LIST_RUNS, PULL = "/v1/control/list-runs", "/v1/fleet/pull-messages"
#: The SuperLink's environment: what some platforms set, and Flower's own switches.
HOSTILE = {
    "FORWARDED_ALLOW_IPS": "*",
    "FLWR_INTERNAL_GRPC_CONTROL_API": "1",
    "FLWR_INTERNAL_GRPC_FLEET_API": "1",
    "UVICORN_PROXY_HEADERS": "1",
    "WEB_CONCURRENCY": "4",
}
FLOOD_MIB = 600
#: Most growth of memory under a flood that is turned away. Read in full it would be at least the flood.
GROWTH_MIB = 64


# --- machines ------------------------------------------------------------------------------------------------


@dataclass
class Network:
    """Commands to run something on the server or on another machine, and the server's address there."""

    address: str
    server: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    holders: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def close(self) -> None:
        for holder in self.holders:
            holder.kill()
            holder.wait()


def namespaces() -> Network:
    """Two network namespaces joined by a cable. Raises OSError where they cannot be made."""
    root = os.geteuid() == 0
    enter = ["-n"] if root else ["-U", "--preserve-credentials", "-n"]
    holders: list[subprocess.Popen[bytes]] = []

    def hold(command: list[str]) -> int:
        holders.append(subprocess.Popen([*command, "sleep", "600"], stderr=subprocess.DEVNULL))
        holder = holders[-1]
        known = {os.readlink(f"/proc/{p}/ns/net") for p in ("self", *(h.pid for h in holders[:-1]))}
        while holder.poll() is None:  # it ends where it may not
            with suppress(OSError):
                if os.readlink(f"/proc/{holder.pid}/ns/net") not in known:
                    return holder.pid
            time.sleep(0.01)
        raise OSError("no namespace")

    try:
        server = hold(["unshare", "-n"] if root else ["unshare", "-r", "-n"])
        into = ["nsenter", "-t", str(server), *enter, "--"]
        other = hold([*into, "unshare", "-n"])
        out_of = ["nsenter", "-t", str(other), *enter, "--"]
        for command in (
            [*into, "ip", "link", "set", "lo", "up"],
            [*out_of, "ip", "link", "set", "lo", "up"],
            [*into, *f"ip link add cable type veth peer name cable netns {other}".split()],
            [*into, *["ip", "addr", "add", "10.99.0.1/30", "dev", "cable"]],
            [*out_of, *["ip", "addr", "add", "10.99.0.2/30", "dev", "cable"]],
            [*into, *["ip", "link", "set", "cable", "up"]],
            [*out_of, *["ip", "link", "set", "cable", "up"]],
        ):
            if subprocess.run(command, capture_output=True).returncode:
                raise OSError(" ".join(command))
    except OSError:
        Network("", holders=holders).close()
        raise
    return Network("10.99.0.1", into, out_of, holders)


def own_address() -> str:
    """An address of this machine that is not a loopback one."""
    found = [a.address for each in psutil.net_if_addrs().values() for a in each if a.family == socket.AF_INET]
    (address, *_) = [address for address in found if not address.startswith("127.")]
    return address


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    try:
        made = namespaces()
    except OSError:
        made = Network(own_address())
    yield made
    made.close()


class SuperLink:
    """A process; a context manager. metrics: their port."""

    metrics: int

    def __init__(self, folder: Path, network: Network, *options: str) -> None:
        self.keys, self.log, self.network = folder / "keys", folder / "superlink.log", network
        make_credentials(self.keys, ["server.example"], 1, 2)
        self.port, self.control = free_ports(2)
        given = (f"credentials={self.keys / 'server'}", f"port={self.port}", f"control={self.control}", *options)
        environment = os.environ | HOSTILE | {"FLWR_HOME": str(folder / "flwr"), "PYTHONPATH": str(ROOT)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*network.server, sys.executable, "-m", "fedpriv.superlink", *given],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> SuperLink:
        while self.request("/health", here=True) == "refused 0":
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.2)
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            for process in children:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.kill()
        self.process.wait()

    def request(
        self,
        path: str,
        *headers: str,
        kind: str = "empty",
        mebibytes: int = 0,
        here: bool = False,
        port: int | None = None,
        host: str | None = None,
        user: int | None = None,
    ) -> str:
        """From another machine, or from the server itself (``here``); the status and how many MiB were sent."""
        place = self.network.server if here else self.network.other
        host = host or ("127.0.0.1" if here else self.network.address)
        script = ROOT / "tests" / "superlink_request.py"
        arguments = (host, str(port or self.port), str(self.keys / "ca/ca.crt"), path, kind, str(mebibytes), *headers)
        environment = os.environ | ({} if user is None else {"REQUEST_USER": str(user)})
        command = [*place, sys.executable, str(script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def peak(self) -> float:
        """The most memory that the process ever had, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def listening(self) -> set[int]:
        """Ports on which it, or a process that it started, listens."""
        first = psutil.Process(self.process.pid)
        own = {
            os.readlink(link)
            for process in (first, *first.children(recursive=True))
            for link in Path(f"/proc/{process.pid}/fd").iterdir()
            if link.is_symlink()
        }
        tables = [Path(f"/proc/{first.pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        rows = [row.split() for table in tables for row in table]
        return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}


@pytest.fixture(scope="module")
def superlink(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    folder = tmp_path_factory.mktemp("superlink")
    (metrics,) = free_ports(1)
    with SuperLink(folder, network, "max_message=32", f"metrics_port={metrics}") as started:
        started.metrics = metrics
        yield started


# --- the control API -----------------------------------------------------------------------------------------


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("x-forwarded-for=127.0.0.1",),
        ("x-forwarded-for=127.0.0.1, 127.0.0.1", "x-forwarded-proto=https"),
        ("forwarded=for=127.0.0.1;host=localhost", "x-real-ip=127.0.0.1"),
        ("x-forwarded-host=localhost", "x-forwarded-port=CONTROL", "x-original-url=/health"),
    ],
)
def test_no_header_opens_the_control_api_to_another_machine(headers: Sequence[str], superlink: SuperLink) -> None:
    given = [header.replace("CONTROL", str(superlink.control)) for header in headers]
    assert superlink.request(LIST_RUNS, *given) == "403 0"
    assert superlink.request(LIST_RUNS, *given, port=superlink.control) == "refused 0"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "path",
    [f"/v1/fleet/..{LIST_RUNS}", f"/v1/fleet/%2e%2e/%2e%2e{LIST_RUNS}", f"/{LIST_RUNS}", "/v1/runtime/acquire-task"],
)
def test_no_path_opens_it_either(path: str, superlink: SuperLink) -> None:
    assert superlink.request(path, "x-forwarded-for=127.0.0.1").split()[0] in ("401", "403")


@pytest.mark.timeout(180)
def test_the_machine_itself_reaches_it_by_the_control_listener_alone(superlink: SuperLink) -> None:
    """Where a port forwarder or a proxy makes everybody's address a loopback one, that gives nothing to anybody."""
    assert superlink.request(LIST_RUNS, here=True, port=superlink.control) == "200 0"
    assert superlink.request(LIST_RUNS, here=True) == "403 0"
    assert superlink.request(LIST_RUNS, here=True, host=superlink.network.address) == "403 0"


@pytest.mark.timeout(120)
def test_other_users_of_the_machine_do_not_reach_it(superlink: SuperLink) -> None:
    """Only root can play another user here; tests/deployment/test_superlink.py has the rule without."""
    assert superlink.request(LIST_RUNS, here=True, port=superlink.control) == "200 0"
    if os.geteuid() == 0:
        assert superlink.request(LIST_RUNS, here=True, port=superlink.control, user=65534) == "closed 0"
        assert superlink.request(LIST_RUNS, here=True, user=65534) == "403 0"


def test_it_listens_twice_and_for_metrics_whatever_the_environment_says(superlink: SuperLink) -> None:
    assert superlink.listening() == {superlink.port, superlink.control, superlink.metrics}


def test_what_it_writes_is_its_users_alone(superlink: SuperLink) -> None:
    assert re.search(r"^Umask:\t0077$", Path(f"/proc/{superlink.process.pid}/status").read_text(), re.MULTILINE)
    assert stat.S_IMODE((superlink.log.parent / "flwr" / "apps").stat().st_mode) == 0o700


def test_metrics_count_what_was_refused(superlink: SuperLink) -> None:
    url = f"http://127.0.0.1:{superlink.metrics}/metrics"
    ask = [
        *superlink.network.server,
        sys.executable,
        "-c",
        f"import urllib.request as u; print(u.urlopen('{url}').read().decode())",
    ]

    def refused() -> float:
        text = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
        assert 'fedpriv_superlink_nodes{state="online"} 0.0' in text
        return float((text.partition('refusals_total{status="403"} ')[2] or "0").split()[0])

    before = refused()
    assert superlink.request(LIST_RUNS) == "403 0"
    assert refused() == before + 1


# --- memory --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registered(superlink: SuperLink) -> ec.EllipticCurvePrivateKey:
    """The key of a node that the operator has registered."""
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    time.sleep(AHEAD.total_seconds())  # signatures of before are not taken
    key = ec.generate_private_key(ec.SECP384R1())
    body = superlink.keys / "registration"
    body.write_bytes(RegisterNodeRequest(public_key=public_key_to_bytes(key.public_key())).SerializeToString())
    post = (
        "import ssl, sys, urllib.request as u;"
        "r = u.Request(sys.argv[1], open(sys.argv[2], 'rb').read(), {'content-type': 'application/protobuf'});"
        "u.urlopen(r, context=ssl.create_default_context(cafile=sys.argv[3]))"
    )
    url = f"https://127.0.0.1:{superlink.control}/v1/control/register-node"
    arguments = (url, str(body), str(superlink.keys / "ca/ca.crt"))
    subprocess.run([*superlink.network.server, sys.executable, "-c", post, *arguments], check=True)
    return key


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("who", "kind", "statuses"),
    [
        ("nobody", "length", ("401",)),
        ("nobody", "chunked", ("401",)),
        ("nobody", "head", ("400",)),
        ("unknown", "length", ("401",)),
        ("unknown", "chunked", ("401",)),
        ("forged", "chunked", ("401",)),
        ("registered", "length", ("413",)),
        ("registered", "chunked", ("413",)),
    ],
)
def test_a_flood_is_not_kept(
    who: str, kind: str, statuses: tuple[str, ...], superlink: SuperLink, registered: ec.EllipticCurvePrivateKey
) -> None:
    stranger = ec.generate_private_key(ec.SECP384R1())
    headers = {
        "nobody": [],
        "unknown": signed(stranger),
        "forged": signed(stranger, registered.public_key()),
        "registered": signed(registered),
    }[who]
    before, began = superlink.peak(), time.monotonic()
    status, sent = superlink.request(PULL, *headers, kind=kind, mebibytes=FLOOD_MIB).split()
    growth = superlink.peak() - before
    print(f"{who} {kind}: {status}, {sent} MiB sent, {growth:.1f} MiB more, {time.monotonic() - began:.1f} s")
    assert growth < GROWTH_MIB + (2 * 32 if who == "registered" else 0)
    assert status in (*statuses, "closed") and int(sent) < FLOOD_MIB
    assert superlink.request("/health", here=True, port=superlink.control).split()[0] == "405"


@pytest.mark.timeout(120)
def test_a_registered_node_is_heard(superlink: SuperLink, registered: ec.EllipticCurvePrivateKey) -> None:
    """Flower itself answers: a body that is no message of its protocol, 30 of 32 MiB, and one that is."""
    assert superlink.request(PULL, *signed(registered), kind="length", mebibytes=30) == "400 30"
    assert superlink.request(PULL, *signed(registered)).split()[0] == "401"  # no node id in it
    stale = signed(registered)
    stale[2] = "flwr-timestamp=2020-01-01T00:00:00+00:00"
    assert superlink.request(PULL, *stale) == "401 0"


@pytest.mark.timeout(180)
def test_connections_are_limited_and_those_that_say_nothing_are_closed(network: Network, tmp_path: Path) -> None:
    holding = (
        "import socket, sys\n"
        "a = (sys.argv[1], int(sys.argv[2]))\n"
        "import ssl; c = ssl.create_default_context(cafile=sys.argv[3])\n"
        "held = [c.wrap_socket(socket.create_connection(a), server_hostname='localhost') for _ in range(3)]\n"
        "print('held', flush=True)\n"
        "for s in held:\n"
        "    try: assert s.recv(1) == b''\n"
        "    except OSError: pass\n"
        "print('closed', flush=True)\n"
    )
    with SuperLink(tmp_path, network, "max_connections=3") as superlink:
        arguments = (network.address, str(superlink.port), str(superlink.keys / "ca/ca.crt"))
        command = [*network.other, sys.executable, "-c", holding, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            assert superlink.request("/health") == "closed 0"
            assert superlink.request(LIST_RUNS, here=True, port=superlink.control) == "200 0"
            assert holder.stdout.readline() == "closed\n"
        assert superlink.request("/health").split()[0] in ("403", "405")


# --- SuperExec -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_the_superlink_ends_with_its_superexec(signum: int, network: Network, tmp_path: Path) -> None:
    with SuperLink(tmp_path, network) as superlink:
        (child,) = psutil.Process(superlink.process.pid).children()
        assert "flower-superexec" in " ".join(child.cmdline())
        child.send_signal(signum)
        assert superlink.process.wait(60) == 1
        assert "SuperExec has ended" in superlink.log.read_text()
        assert superlink.request("/health", here=True) == "refused 0"


@pytest.mark.timeout(120)
def test_a_signal_stops_it_without_a_word_of_superexec(network: Network, tmp_path: Path) -> None:
    with SuperLink(tmp_path, network) as superlink:
        (child,) = psutil.Process(superlink.process.pid).children()
        superlink.process.send_signal(signal.SIGTERM)
        assert superlink.process.wait(60) in (0, -signal.SIGTERM)
        assert "SuperExec has ended" not in superlink.log.read_text()
        psutil.wait_procs([child], 30)
        assert not child.is_running()
