"""The hooks in Flower's SuperNode: what no policy names is not stored, unpacked or run; a node killed waits."""

from __future__ import annotations

import hashlib
import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.fab import Fab
from flwr.supernode import fleet_http_connection
from flwr.supernode import start_client_internal as flower
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedpriv.common.messages import Refusal
from fedpriv.deployment.supernode import AGAIN, STILL_COUNTED, guard_bundles, wait_to_activate
from fedpriv.engines.grid import identify_server, stamp

APPROVED = b"the approved app"
DIGEST = hashlib.sha256(APPROVED).hexdigest()


class Recorder:
    """A SuperNode's state and object store; what is called is in ``calls``, replies in ``replies``."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.replies: list[Message] = []

    def get_run(self, run_id: int) -> Any:
        return None

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> None:
            self.calls.append(name)
            if name == "store_message":
                self.replies.append(given[0])

        return call


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``pulled(content, hash of the bundle, hash of the run)``: what a SuperNode does with one message."""
    monkeypatch.setattr(flower, "_pull_and_store_message", flower._pull_and_store_message)  # put back afterwards
    identify_server()
    notes: list[tuple[Refusal, str]] = []
    guard_bundles(lambda: (DIGEST,), lambda code, words: notes.append((code, words)))

    def pull(content: bytes, fab_hash: str, run_hash: str) -> tuple[Recorder, list[tuple[Refusal, str]]]:
        message = Message(RecordDict(), 7, "train", group_id="1")
        stamp(message, "m1")
        node = Recorder()
        found = flower._pull_and_store_message(
            state=node,  # type: ignore[arg-type]
            object_store=node,  # type: ignore[arg-type]
            node_config={},
            receive=lambda: (message, SimpleNamespace()),  # type: ignore[arg-type,return-value]
            get_run=lambda run_id: SimpleNamespace(fab_hash=run_hash),  # type: ignore[arg-type,return-value]
            get_fab=lambda fab_hash_, run_id: Fab(fab_hash, content, {}),
            pull_object=lambda run_id, object_id: b"",
            confirm_message_received=lambda run_id, message_id: None,
            trusted_entities=None,
        )
        assert found == message.metadata.run_id
        return node, notes

    return pull


@pytest.mark.parametrize(
    ("content", "fab_hash", "run_hash"),
    [
        (b"another app", hashlib.sha256(b"another app").hexdigest(), hashlib.sha256(b"another app").hexdigest()),
        (b"another app", DIGEST, DIGEST),  # under the approved name
        (APPROVED, "0" * 64, "0" * 64),  # Flower would unpack it under another name
        (APPROVED, DIGEST, "0" * 64),
        (b"", DIGEST, DIGEST),
    ],
)
def test_what_is_not_approved_gets_a_code(content: bytes, fab_hash: str, run_hash: str, pulled: Any) -> None:
    node, notes = pulled(content, fab_hash, run_hash)
    (reply,) = node.replies
    assert (reply.error.code, reply.error.reason) == (Refusal.BUNDLE, "bundle")
    assert "store_fab" not in node.calls and "create_task" not in node.calls and "store_run" not in node.calls
    assert [code for code, _ in notes] == [Refusal.BUNDLE]


def test_what_is_approved_goes_on_to_flower(pulled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[bytes] = []

    class Reached(Exception):
        pass

    def fused(content: bytes, run: Any) -> None:
        reached.append(content)
        raise Reached

    monkeypatch.setattr(flower, "get_fused_config_from_fab", fused)
    with pytest.raises(Reached):
        pulled(APPROVED, DIGEST, DIGEST)
    assert reached == [APPROVED]


def test_an_approval_can_be_taken_back(pulled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has begun goes on only as long as its app is approved."""
    monkeypatch.setattr(Recorder, "get_run", lambda self, run_id: SimpleNamespace(fab_hash="0" * 64), raising=False)
    node, notes = pulled(APPROVED, DIGEST, DIGEST)
    assert node.replies[0].error.code == Refusal.BUNDLE and "no longer" in notes[0][1]
    assert "create_task" not in node.calls


def test_flower_still_calls_the_function_that_is_hooked() -> None:
    """A contract with flwr 1.41: by name in its module, with keywords, and the bundle comes from ``get_fab`` alone."""
    source = inspect.getsource(flower.start_client_internal)
    assert "_pull_and_store_message(\n" in source and "get_fab=get_fab" in source and "receive=receive" in source
    body = inspect.getsource(flower._pull_and_store_message)
    assert body.count("get_fab(") == 1 and body.index("get_fab(") < body.index("state.store_fab(")


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
        "data.on_nodes",
        "deployment.data_ledger",
        "deployment.refusals",
        "deployment.supernode",
        "deployment.executor",
    ]
    imports = "; ".join(f"import fedpriv.{name}" for name in ("node", *modules))
    command = [sys.executable, "-c", f"{imports}; import sys; sys.exit('torch' in sys.modules)"]
    assert subprocess.run(command).returncode == 0
