"""Flower's SuperNode with two additions: an app bundle is checked against the policy before it is unpacked or run, and
a node that was killed waits until the SuperLink lets it back.

SuperNodes execute any bundle that the SuperLink sends, so a policy inside the app binds only the approved app. Flower
offers signatures by entities known to it; a plain list of SHA-256 digests needs no third party. The hook is the
function through which flwr 1.41's SuperNode fetches a bundle: nothing is stored, unpacked or started before it.
"""

from __future__ import annotations

import hashlib
import io
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.fab import Fab
from flwr.supernode import start_client_internal as flower
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedpriv.common.errors import FedprivError, OptionError
from fedpriv.common.files import read_regular
from fedpriv.common.messages import Refusal
from fedpriv.common.printing import PrintableLog


class BundleRefused(FedprivError):
    """The policy does not name this bundle's SHA-256; it was neither unpacked nor run."""


def guard_bundles(approved: Callable[[], Container[str]], note: Callable[[Refusal, str], None]) -> None:
    """From now on, this process's SuperNode answers messages of unapproved apps with `Refusal.BUNDLE`.

    approved: holds the digests, read for every message. note: informs the operator.
    """
    original = flower._pull_and_store_message

    def pull(**given: Any) -> int | None:
        received: list[Message] = []
        receive, get_fab = given["receive"], given["get_fab"]

        def remembered() -> Any:
            found = receive()
            if found is not None:
                received.append(found[0])
                known = given["state"].get_run(found[0].metadata.run_id)
                if known is not None and known.fab_hash not in approved():  # approved when the run began
                    raise BundleRefused(f"the app {known.fab_hash} is no longer among the policy's bundles")
            return found

        def checked(fab_hash: str, run_id: int) -> Fab:
            fab: Fab = get_fab(fab_hash, run_id)
            digest = hashlib.sha256(fab.content).hexdigest()
            if digest not in approved() or not digest == fab.hash_str == fab_hash:
                raise BundleRefused(f"the app {digest} of run {run_id} is not among the policy's bundles")
            return fab

        try:
            return original(**{**given, "receive": remembered, "get_fab": checked})
        except BundleRefused as refused:
            note(Refusal.BUNDLE, str(refused))
            (message,) = received
            error = Error(code=int(Refusal.BUNDLE), reason=Refusal.BUNDLE.name.lower())
            flower._insert_message(Message(error, reply_to=message), given["state"], given["object_store"])
            return message.metadata.run_id

    flower._pull_and_store_message = pull  # type: ignore[assignment]


#: Seconds for which a SuperLink counts a node that was killed as connected, and a little more; and between two trials.
STILL_COUNTED, AGAIN = HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL + 15, 5.0


def wait_to_activate(say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep) -> None:
    """From now on, this process's SuperNode asks again where the SuperLink does not activate it: one that was killed
    counts as connected until its heartbeats are missed, and Flower would end with its error 305.

    say: informs the operator, once. sleep: seconds. After `STILL_COUNTED` seconds the error stands: nobody has
    registered this node's key, or another process uses it.
    """
    original = FleetHttpClient.ActivateNode

    def activate(client: FleetHttpClient, request: ActivateNodeRequest) -> ActivateNodeResponse:
        waited = 0.0
        while True:
            try:
                return original(client, request)
            except httpx.HTTPStatusError as error:
                known = FlowerError.from_json(error.response.text)
                failed = known is not None and known.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED
                if not failed or waited >= STILL_COUNTED:
                    raise
            if not waited:
                words = f"asking again every {AGAIN:.0f} s for up to {STILL_COUNTED:.0f} s"
                say(f"the SuperLink counts this node as connected still (or does not know its key): {words}")
            sleep(AGAIN)
            waited += AGAIN

    FleetHttpClient.ActivateNode = activate  # type: ignore[assignment, method-assign]


class Everything(Container[str]):
    """Every digest: of a machine whose guard takes any app."""

    def __contains__(self, digest: object) -> bool:
        return True


def run_supernode(arguments: list[str], port: int, loader: str = "") -> None:
    """Flower's own command ``flower-supernode`` with these arguments, in this process; returns when it is stopped.

    port: of its service on this machine, for the processes that answer messages. loader: as of `client_processes`.
    Flower logs text chosen by the server (a message's group): control characters in it are escaped.
    """
    from flwr.common.logger import FLOWER_LOGGER
    from flwr.supernode.cli import flower_supernode

    from fedpriv.deployment.executor import client_processes

    FLOWER_LOGGER.addFilter(PrintableLog())
    with client_processes(port, loader) as isolation:
        sys.argv = ["flower-supernode", *arguments, "--host", "127.0.0.1", "--port", str(port), *isolation]
        flower_supernode()


def bundle_digest(app: Path) -> str:
    """SHA-256 of a bundle file, or of the bundle that ``flwr build`` makes of an app's folder. Raises `OptionError`."""
    from flwr.cli.build import build_fab_from_disk

    try:
        content = build_fab_from_disk(app) if app.is_dir() else _checked(read_regular(app))
    except (ValueError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        reason = " ".join(str(error).split())
    except (TypeError, AttributeError):  # Flower's checks take a table for granted
        reason = "pyproject.toml has something else where a table belongs"
    else:
        return hashlib.sha256(content).hexdigest()
    allowed = "allowed: a folder that `flwr build` can bundle, or a .fab file that it made"
    raise OptionError("app", app, f"no app ({reason}); {allowed}")


def _checked(content: bytes) -> bytes:
    """A bundle, after checks of a node that unpacks one: its pyproject.toml, and the digest of each of its files."""
    from flwr.common.config import get_fab_config

    get_fab_config(content)
    with zipfile.ZipFile(io.BytesIO(content)) as bundle:
        for line in bundle.read(".info/CONTENT").decode().splitlines():
            name, digest, _ = line.rsplit(",", 2)
            if hashlib.sha256(bundle.read(name)).hexdigest() != digest:
                raise ValueError(f"{name} is not the file that was bundled")
    return content
