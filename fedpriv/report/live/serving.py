"""Metrics and health over HTTP: /metrics for Prometheus, /healthz and /readyz for supervisors."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from fedpriv.common.command_line import address_of
from fedpriv.common.errors import OptionError

#: (whether all is well, one line for a person)
Health = Callable[[], tuple[bool, str]]


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds for a request: a silent connection must not hold a thread

    def log_message(self, format: str, *args: Any) -> None:
        """Does nothing: scrapes are not logged."""


class MetricsServer:
    """Answers until closed. ``port`` is the actual port if 0 was requested."""

    def __init__(self, server: ThreadingWSGIServer) -> None:
        self._server, self.port = server, int(server.server_port)
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_metrics(
    address: str,
    port: int,
    registry: CollectorRegistry,
    healthy: Health,
    ready: Health | None = None,
    *,
    options: tuple[str, str] = ("operations.metrics_address", "operations.metrics_port"),
) -> MetricsServer:
    """Serves ``registry`` at /metrics, ``healthy`` at /healthz and ``ready`` (None: the same) at /readyz; 503 where
    a check fails or raises. port 0: any free port.

    Raises `OptionError` that names one of ``options`` where the port is taken or the address is not one of this
    machine.
    """
    metrics = make_wsgi_app(registry)
    checks = {"/healthz": healthy, "/readyz": ready or healthy}

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            found: Iterable[bytes] = metrics(environ, start_response)
            return found
        status, words = "404 Not Found", "allowed: /metrics, /healthz, /readyz"
        if path in checks:
            good, words = _asked(checks[path])
            status = "200 OK" if good else "503 Service Unavailable"
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            status, words = "405 Method Not Allowed", "allowed: GET, HEAD"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [f"{words}\n".encode()]

    try:
        (family, *_, place), *_ = socket.getaddrinfo(
            address_of(address), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        kind = type("Server", (ThreadingWSGIServer,), {"address_family": family})
        server: Any = make_server(str(place[0]), port, app, kind, _Handler)
    except OSError as error:  # socket.gaierror too
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            words = f"{error.strerror}; allowed: a free port (0: any), null (no metrics)"
            raise OptionError(options[1], port, words) from None
        raise OptionError(options[0], address, f"is no address of this machine ({error.strerror})") from None
    return MetricsServer(server)


def _asked(check: Health) -> tuple[bool, str]:
    try:
        return check()
    except Exception as error:  # an exception counts as a failed check
        return False, f"the check itself failed: {type(error).__name__}"
