"""What answers a SuperNode's messages in the place of the app of its bundle (`fedpriv.deployment.executor`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from flwr.app import Context, Message

from fedpriv.common.identities import named_identity
from fedpriv.guard.guarded_message import Guard
from fedpriv.guard.processes import Lender
from fedpriv.guard.sandbox import Sandbox

_lender: Lender | None = None


def prepare() -> None:
    """In the process that a node's messages are forked from, once: their sandboxes stand between them from now on."""
    global _lender
    _lender = Lender()


def guarded_app(app: Path, digest: str) -> Callable[[Message, Context], Message]:
    """In the place of a ClientApp. app: the folder of the unpacked bundle, of which nothing is imported here."""

    def answer(message: Message, context: Context) -> Message:
        config = context.node_config
        policy, data = (Path(str(config[name])) for name in ("policy", "data"))
        boxes = partial(Sandbox, lender=_lender)
        guard = Guard(int(config["partition-id"]), policy, data, app, digest, named_identity(config), boxes)
        return guard(message, context)

    return answer
