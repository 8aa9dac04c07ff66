"""`python -m fedpriv.superlink credentials=FOLDER [host=0.0.0.0] [port=8000] [database=FILE]`: Flower's SuperLink for a
deployment (docs/deploy.md). Ctrl-C or SIGTERM stops it.

    credentials   the server's folder of `python -m fedpriv.credentials`
    host, port    where it listens: nodes connect to it with TLS and their registered keys
    database      file that keeps registered nodes and runs over a restart (none: they are in memory)

Flower 1.41 serves nodes and whoever starts runs on one port, and knows no passwords: who reaches its control API
registers nodes and runs programs of his own on this machine. Here nobody but this machine itself does.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.cli import DONE, MISTAKE, command_options, guarded, whole_number
from fedpriv.errors import OptionError

OPTIONS: dict[str, str | None] = {"credentials": None, "host": "0.0.0.0", "port": "8000", "database": ""}
#: What other machines may ask for: messages to and from registered nodes, and whether anybody is there.
FOR_NODES, HEALTH = "/v1/fleet/", "/health"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class NodesOnly:
    """ASGI middleware: everything but the nodes' API is answered with 403 unless the request comes from this machine.

    A proxy on this machine would make every request look like its own: let it forward `FOR_NODES` alone.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_for_all(scope["path"]) or _from_this_machine(scope):
            return await self.app(scope, receive, send)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})
        else:
            await send({"type": "websocket.close", "code": 1008})


def _is_for_all(path: str) -> bool:
    return path.startswith(FOR_NODES) or path == HEALTH


def _from_this_machine(scope: Scope) -> bool:
    """Whether both ends of the connection have the same address, or a loopback one."""
    ends = []
    for end in (scope.get("client"), scope.get("server")):
        try:
            address = ipaddress.ip_address(end[0])  # type: ignore[index]
        except (TypeError, ValueError, IndexError):
            return False
        ends.append(getattr(address, "ipv4_mapped", None) or address)
    return ends[0].is_loopback or ends[0] == ends[1]


def guard_control() -> None:
    """From here on, a SuperLink of this process lets other machines reach the nodes' API alone.

    The hook is the function from which flwr 1.41 takes its middlewares; ours comes before all of them.
    """
    from flwr.superlink import main as flower
    from starlette.middleware import Middleware

    original = flower._get_middleware
    flower._get_middleware = lambda: [Middleware(NodesOnly), *original()]  # type: ignore[arg-type]


def superlink_arguments(options: dict[str, str]) -> list[str]:
    """Of Flower's own command. Raises `OptionError`."""
    keys = Path(options["credentials"]).expanduser()
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (keys / name).exists():
            raise OptionError("credentials", str(keys), f"{name} is missing there")
    port = str(whole_number(options, "port", 1, 65535))
    try:
        ipaddress.ip_address(options["host"])
    except ValueError:
        raise OptionError("host", options["host"], "must be an IP address of this machine, or 0.0.0.0") from None
    arguments = [
        *("--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt")),
        *("--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"),
        *("--host", options["host"], "--port", port, "--disable-runtime-dependency-installation"),
    ]
    return [*arguments, "--database", options["database"]] if options["database"] else arguments


def main(arguments: Sequence[str]) -> int:
    return guarded(lambda: _main(list(arguments)))


def _main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return DONE if arguments else MISTAKE
    own = superlink_arguments(command_options(arguments, OPTIONS, "fedpriv.superlink", may_be_empty=("database",)))
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from flwr.superlink.cli import flower_superlink

    guard_control()
    sys.argv = ["flower-superlink", *own]
    flower_superlink()
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
