"""`fedpriv deploy superlink ...`: Flower's SuperLink for a deployment (docs/deploy.md). Ctrl-C or SIGTERM stops it.

    fedpriv deploy superlink credentials=FOLDER [host=0.0.0.0] [port=8000] [control=8001] [database=FILE]
                             [max_message=64] [max_messages=4] [max_connections=512]
                             [metrics_port=0] [metrics_address=127.0.0.1]

    credentials      the server's folder of `fedpriv deploy credentials`
    host, port       where nodes connect, with TLS and their registered keys; host=:: is IPv6 and IPv4
    control          port on 127.0.0.1 for `flwr`, and for the programs of runs
    database         file that keeps registered nodes and runs across a restart (none: in memory)
    max_message      MiB of one request of a node; Flower sends arrays in parts of 5 MiB
    max_messages     how many requests above 64 KiB are in memory at once; others wait
    max_connections  how many connections to `port` are open at once
    metrics_port, metrics_address
                     where Prometheus metrics and health are served; port 0: nowhere

Flower 1.41 serves nodes and its control API on one port, without authentication: any client of the control API can
register nodes and run programs on this machine. Here `port` answers only nodes, whatever address or header a request
has, and everything else is on the loopback address.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import importlib
import ipaddress
import logging
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fedpriv.common.command_line import DONE, FAILED, address_of, command
from fedpriv.common.errors import OptionError
from fedpriv.common.places import installed_code_only
from fedpriv.common.printing import say

if TYPE_CHECKING:
    import uvicorn

    from fedpriv.deployment.superlink_gate import Gate

Port = Annotated[int, Field(ge=1, le=65535)]
#: Where the control listener is bound; SuperExec and the programs of runs connect to it.
CONTROL_HOST = "127.0.0.1"
#: A protocol buffers message must be smaller than 2 GiB.
MOST_MIB = 2047
#: Seconds for open requests to finish once the SuperLink stops.
GRACE_SECONDS = 10
#: Variables that would open another way in besides the two listeners, or trust a request's headers about its sender.
UNSAFE_VARIABLES = ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API", "FORWARDED_ALLOW_IPS")

#: Variables that httpx, Flower's HTTP client, goes by.
PROXIES = ("all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "no_proxy")


def superlink_arguments(
    keys: Path, host: str = "0.0.0.0", port: int = 8000, control: int = 8001, database: Path | None = None
) -> list[str]:
    """Arguments of Flower's own command; its address is that of the control listener. Raises `OptionError`."""
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (keys / name).exists():
            raise OptionError("credentials", str(keys), f"{name} is missing there")
    if port == control:
        raise OptionError("control", str(control), "must be another port than port=: other machines reach that one")
    try:
        ipaddress.ip_address(address_of(host))
    except ValueError:
        words = "must be an IP address of this machine, 0.0.0.0 (IPv4), or :: (IPv6 and IPv4)"
        raise OptionError("host", host, words) from None
    arguments = [
        *("--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt")),
        *("--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"),
        *("--host", CONTROL_HOST, "--port", str(control), "--disable-runtime-dependency-installation"),
    ]
    return [*arguments, "--database", str(private_database(database))] if database else arguments


def private_database(path: Path) -> Path:
    """The database's file, absolute: it is there from here on, and only this user may read it.

    It holds logs, options, nodes' keys and tokens. SQLite gives its ``-wal``, ``-shm`` and ``-journal`` the mode of the
    database; those that an earlier start left open to others are mended. Raises `OptionError`.
    """
    if str(path).startswith(":") or ":/" in str(path):  # Flower would read it as a name of its own, or as an address
        raise OptionError("database", str(path), "must be the path of a file; without it nothing is kept")
    try:
        file = path.expanduser().resolve()  # where SQLite follows a link, the files beside it are at its end
        for end in ("", "-wal", "-shm", "-journal"):
            beside = file.with_name(file.name + end)
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                descriptor = os.open(beside, flags | (0 if end else os.O_CREAT), 0o600)
            except FileNotFoundError:
                if end:
                    continue
                raise
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    raise OSError(errno.EINVAL, f"{beside} is no regular file of this user")
                os.fchmod(descriptor, 0o600)
            finally:
                os.close(descriptor)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, no home folder
        why = getattr(error, "strerror", None) or str(error)
        raise OptionError("database", str(path), f"must be a file that only this user may read ({why})") from None
    return file


def private_apps() -> Path:
    """The folder in which Flower unpacks the runs' apps, and loads what it finds under an app's name: it is there from
    here on, only this user may enter it, and nobody else may put another in its place. Raises `OptionError`.
    """
    from flwr.common.constant import APP_DIR
    from flwr.supercore.utils import get_flwr_home

    home = get_flwr_home()
    try:
        (home / APP_DIR).mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder, allowed in ((home, 0o7755), (home / APP_DIR, 0o700)):
            if folder.stat().st_uid != os.geteuid():
                raise OSError(errno.EPERM, f"{folder} belongs to another user")
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) & allowed)
    except OSError as error:
        raise OptionError("FLWR_HOME", str(home), f"must be a folder of this user alone ({error.strerror})") from None
    return home / APP_DIR


def check_certificate(keys: Path) -> None:
    """Tries the connection that SuperExec will make, in memory. Raises `OptionError` where it would fail.

    A SuperLink whose certificate is not valid for `CONTROL_HOST` would answer nodes but start no run.
    """

    def refuse(reason: str) -> OptionError:
        remedy = "call `python -m fedpriv.credentials server FOLDER`, with all of its host= if a name is missing"
        return OptionError("credentials", str(keys), f"{reason}; {remedy}")

    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        serving.load_cert_chain(keys / "server.crt", keys / "server.key")
        asking = ssl.create_default_context(cafile=keys / "ca.crt")
    except ssl.SSLError as error:
        raise refuse(f"server.crt, server.key and ca.crt do not go together ({error.reason or error})") from None
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(there, here, server_side=True)
    client = asking.wrap_bio(here, there, server_hostname=CONTROL_HOST)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            words = f"Flower's SuperExec connects to {CONTROL_HOST}, and server.crt is no proof of it"
            raise refuse(f"{words} ({error.verify_message.rstrip('.')})") from None


def check_proxies() -> None:
    """Raises `OptionError` for a proxy in the environment that Flower's HTTP client cannot use."""
    import httpx

    try:
        httpx.Client().close()
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        given = " ".join(f"{name}={os.environ[name]}" for name in PROXIES if os.environ.get(name))
        words = f"allowed: http://HOST:PORT of an HTTP proxy; in no_proxy hosts ({' '.join(str(error).split())})"
        raise OptionError("environment", given, words) from None


def bound(option: str, host: str, port: int) -> socket.socket:
    """A bound socket, which listens once the server is ready. ``::`` takes IPv4 connections too.

    Raises `OptionError` if the address is not available.
    """
    try:
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        made.bind((host, port))
    except OSError as error:
        raise OptionError(option, str(port), f"cannot listen on {host}: {error.strerror}") from None
    return made


@command
def main(
    *,
    credentials: Path,
    host: str = "0.0.0.0",
    port: Port = 8000,
    control: Port = 8001,
    database: Path | None = None,
    max_message: Annotated[int, Field(ge=1, le=MOST_MIB)] = 64,
    max_messages: Annotated[int, Field(ge=1, le=1024)] = 4,
    max_connections: Annotated[int, Field(ge=1, le=65535)] = 512,
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0,
    metrics_address: str = "127.0.0.1",
) -> int:
    installed_code_only()
    own = superlink_arguments(credentials, host, port, control, database)
    check_certificate(credentials)
    check_proxies()
    sockets = [bound("port", address_of(host), port), bound("control", CONTROL_HOST, control)]
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    for name in UNSAFE_VARIABLES:
        os.environ[name] = ""

    from fedpriv.deployment.superlink_gate import Limits

    private_apps()
    sys.argv = ["flower-superlink", *own]
    limits = Limits(max_message * 2**20, max_messages, max_connections)
    return _serve((CONTROL_HOST, control), limits, sockets, (metrics_address, metrics_port))


def _serve(control: tuple[str, int], limits: Any, sockets: list[socket.socket], metrics: tuple[str, int]) -> int:
    """Runs Flower's application behind the gate, until a signal or the end of its SuperExec. metrics: address and port.

    Does what flwr 1.41's own command does after reading its arguments, with our listeners.
    """
    os.umask(0o077)  # what runs write is for this user, too
    import uvicorn
    from flwr.common.logger import FLOWER_LOGGER
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler
    from flwr.superlink.main import create_app

    from fedpriv.deployment.superlink_gate import AHEAD, HEAD_BYTES, Connection, Gate, now

    flower = importlib.import_module("flwr.superlink.cli.flower_superlink")  # the package has a function of this name
    config = flower._parse_superlink_lifespan_config()
    app = create_app(config, flower.SuperLinkLifespan)
    states = app.state.linkstate_factory

    def is_registered(key: bytes) -> bool:
        return states.state().get_node_id_by_public_key(key) is not None

    FLOWER_LOGGER.addFilter(NodeNames(lambda node: (one.name for one in states.state().get_node_info(node_ids=[node]))))
    gate, public = Gate(app, control, limits, is_registered, now() + AHEAD), set[asyncio.Protocol]()
    connection = functools.partial(Connection, control=control, public=public, most=limits.connections)
    server = uvicorn.Server(
        uvicorn.Config(
            gate,  # type: ignore[arg-type]
            http=connection,  # type: ignore[arg-type]
            ws="none",
            lifespan="on",
            log_config=get_uvicorn_log_config(console_handler.level),
            workers=1,
            proxy_headers=False,
            forwarded_allow_ips="",
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_graceful_shutdown=GRACE_SECONDS,
            ssl_certfile=config.ssl_certfile,
            ssl_keyfile=config.ssl_keyfile,
        )
    )
    died = threading.Event()
    threading.Thread(target=_watch, args=(app.state.superlink_lifespan, server, died), daemon=True).start()
    with _metrics(*metrics, gate, public, lambda: states_of(states.state())):
        server.run(sockets)
    return DONE if server.started and not died.is_set() else FAILED


class NodeNames(logging.Filter):
    """For Flower's logger: beside a node's id the name that `flwr supernode register --name` gave it.

    of_node: the names of one id; a name is read once, since it never changes.
    """

    def __init__(self, of_node: Callable[[int], Iterable[str]]) -> None:
        super().__init__()
        self._name = functools.cache(lambda node: next(iter(of_node(node)), ""))

    def filter(self, record: logging.LogRecord) -> bool:
        if "node_id=" in (text := record.getMessage()):
            node = re.search(r"node_id=(\d+)", text)
            if node and (name := self._name(int(node[1]))):
                record.msg, record.args = "%s", (text.replace(node[0], f"{node[0]} ({name})"),)
        return True


def states_of(link_state: Any) -> list[str]:
    """Of every node that may connect, its state in Flower's words: registered, online, offline."""
    from flwr.supercore.constant import NodeStatus

    return [node.status for node in link_state.get_node_info() if node.status != NodeStatus.UNREGISTERED]


@contextmanager
def _metrics(
    address: str, port: int, gate: Gate, public: Collection[object], nodes: Callable[[], Iterable[str]]
) -> Iterator[None]:
    """Serves metrics, if a port is given. nodes: the state of each."""
    if port == 0:
        yield
        return
    from fedpriv.report.live.prometheus import SuperLinkMetrics, serve_metrics

    def healthy() -> tuple[bool, str]:
        return True, f"{Counter(nodes())['online']} nodes online"

    registry = SuperLinkMetrics(lambda: gate.passed, lambda: gate.refused, lambda: len(public), nodes).registry
    with serve_metrics(address, port, registry, healthy, options=("metrics_address", "metrics_port")):
        yield


def _watch(lifespan: Any, server: uvicorn.Server, died: threading.Event) -> None:
    """Stops the server when SuperExec, which is needed to start runs, has ended by itself."""
    while not server.started:
        if server.should_exit:
            return
        died.wait(0.1)
    child: subprocess.Popen[bytes] = lifespan.superexec_process
    code = child.wait()
    died.wait(1)  # a signal to the whole process group stops both
    if server.should_exit:
        return
    say(
        f"fedpriv: Flower's SuperExec has ended (exit code {code}) and no run would start: the SuperLink stops",
        file=sys.stderr,
        flush=True,
    )
    died.set()
    server.should_exit = True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
