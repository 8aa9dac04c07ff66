"""The hooks in Flower's SuperNode beside those of its code (test_lying_superlink.py): a node killed waits."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedpriv.deployment.supernode import AGAIN, STILL_COUNTED, wait_to_activate


def a_superlink(monkeypatch: pytest.MonkeyPatch, *answers: int) -> list[str]:
    """A SuperLink that gives these Flower error codes, one after another, and then a node's id; the paths asked."""
    asked: list[str] = []

    def answer(client: FleetHttpClient, *, path: str, **given: Any) -> ActivateNodeResponse:
        asked.append(path)
        if len(asked) > len(answers):
            return ActivateNodeResponse(node_id=7)
        error = FlowerError(answers[len(asked) - 1], "")
        response = httpx.Response(412, json=error.to_json(error.message))
        raise httpx.HTTPStatusError("failed", request=httpx.Request("POST", "https://server" + path), response=response)

    monkeypatch.setattr(FleetHttpClient, "_unary_unary", answer)
    monkeypatch.setattr(FleetHttpClient, "ActivateNode", FleetHttpClient.ActivateNode)  # taken back afterwards
    return asked


KILLED = ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED


def test_a_node_that_was_killed_waits_until_it_is_let_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, said, slept = a_superlink(monkeypatch, *[KILLED] * 12), list[str](), list[float]()
    wait_to_activate(said.append, slept.append)
    found = FleetHttpClient.ActivateNode(object.__new__(FleetHttpClient), ActivateNodeRequest())
    assert found.node_id == 7 and len(asked) == 13 and slept == [AGAIN] * 12
    assert len(said) == 1 and "counts this node as connected" in said[0]


def test_a_node_does_not_wait_for_ever_nor_for_other_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    asked = a_superlink(monkeypatch, *[KILLED] * 1000)
    wait_to_activate(lambda text: None, slept.append)
    with pytest.raises(httpx.HTTPStatusError):
        FleetHttpClient.ActivateNode(object.__new__(FleetHttpClient), ActivateNodeRequest())
    # A SuperLink forgets a node after two missed heartbeats of 30 s.
    assert 60 < sum(slept) <= STILL_COUNTED and len(asked) == len(slept) + 1
    slept.clear()
    a_superlink(monkeypatch, ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL)
    with pytest.raises(httpx.HTTPStatusError):
        FleetHttpClient.ActivateNode(object.__new__(FleetHttpClient), ActivateNodeRequest())
    assert not slept


def test_flower_still_activates_by_the_method_that_is_wrapped() -> None:
    assert "client.ActivateNode," in inspect.getsource(fleet_http_connection.http_request_response)


def test_a_nodes_own_process_needs_no_torch() -> None:
    """Nor do its other commands: 90 MB in place of 700, and a third of the time."""
    modules = [
        "data.sources",
        "deployment.data_ledger",
        "deployment.supernode",
        "deployment.executor",
    ]
    imports = "; ".join(f"import fedpriv.{name}" for name in ("node", *modules))
    command = [sys.executable, "-c", f"{imports}; import sys; sys.exit('torch' in sys.modules)"]
    assert subprocess.run(command).returncode == 0
