"""Flower's SuperNode with one addition: an app bundle is checked against the policy before it is unpacked or run.

SuperNodes execute any bundle that the SuperLink sends, so a policy inside the app binds only the approved app. Flower
offers signatures by entities known to it; a plain list of SHA-256 digests needs no third party. The hook is the
function through which flwr 1.41's SuperNode fetches a bundle: nothing is stored, unpacked or started before it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from flwr.supercore.fab import Fab
from flwr.supernode import start_client_internal as flower

from fedpriv.common.errors import FedprivError
from fedpriv.common.files import read_regular
from fedpriv.common.messages import Refusal
from fedpriv.common.printing import PrintableLog


class BundleRefused(FedprivError):
    """The policy does not name this bundle's SHA-256; it was neither unpacked nor run."""


def guard_bundles(approved: Callable[[], tuple[str, ...]], note: Callable[[Refusal, str], None]) -> None:
    """From now on, this process's SuperNode answers messages of unapproved apps with `Refusal.BUNDLE`.

    approved: returns the digests, read for every message. note: informs the operator.
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


def run_supernode(arguments: list[str], port: int) -> None:
    """Flower's own command ``flower-supernode`` with these arguments, in this process; returns when it is stopped.

    port: of its service on this machine, for the processes that answer messages.
    Flower logs text chosen by the server (a message's group): control characters in it are escaped.
    """
    from flwr.common.logger import FLOWER_LOGGER
    from flwr.supernode.cli import flower_supernode

    from fedpriv.deployment.executor import client_processes

    FLOWER_LOGGER.addFilter(PrintableLog())
    with client_processes(port) as isolation:
        sys.argv = ["flower-supernode", *arguments, "--host", "127.0.0.1", "--port", str(port), *isolation]
        flower_supernode()


def bundle_digest(app: Path) -> str:
    """SHA-256 of a bundle file, or of the bundle that ``flwr build`` makes of an app's folder."""
    if not app.is_dir():
        return hashlib.sha256(read_regular(app)).hexdigest()
    from flwr.cli.build import build_fab_from_disk

    return hashlib.sha256(build_fab_from_disk(app)).hexdigest()
