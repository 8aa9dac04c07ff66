"""Flower's SuperNode, whose code is the policy's (`fedpriv.deployment.bundles`), and which waits after it was killed
until the SuperLink lets it back.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import httpx
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedpriv.common.printing import PrintableLog
from fedpriv.deployment.bundles import Approved

#: Seconds for which a SuperLink counts a node that was killed as connected, and a little more; and between two trials.
STILL_COUNTED, AGAIN = HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL + 15, 5.0

#: Errors that Flower logs where it sends the reply to a message that no app had: the refusal's own line says why.
OF_NO_TASK = ("Cannot get processing duration", "Start time or end time for message ID")


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


def run_supernode(arguments: list[str], port: int, approved: Approved) -> None:
    """Flower's own command ``flower-supernode`` with these arguments, in this process; returns when it is stopped.

    port: of its service on this machine, for the processes that answer messages. approved: what these may import.
    Nothing that this process and those write from here on is for others, whatever the umask was.
    Flower logs text chosen by the server (a message's group): control characters in it are escaped.
    """
    from flwr.common.logger import FLOWER_LOGGER
    from flwr.supernode.cli import flower_supernode

    from fedpriv.deployment.executor import client_processes

    os.umask(0o077)
    FLOWER_LOGGER.addFilter(PrintableLog())
    FLOWER_LOGGER.addFilter(lambda record: not str(record.msg).startswith(OF_NO_TASK))
    with client_processes(port, approved) as isolation:
        sys.argv = ["flower-supernode", *arguments, "--host", "127.0.0.1", "--port", str(port), *isolation]
        flower_supernode()
