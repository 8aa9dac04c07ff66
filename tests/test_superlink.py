"""Who reaches what of a SuperLink: Flower's control API asks nobody who he is, so other machines must not reach it."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from fedpriv.credentials import make_credentials
from fedpriv.superlink import NodesOnly, main

#: What anybody could do who reaches it: run a program, register a node's key, read results, act as a ServerApp.
CONTROL = ("/v1/control/start-run", "/v1/control/register-node", "/v1/control/pull-artifacts", "/v1/control/stop-run")
OTHERS = ("/v1/runtime/acquire-task", "/docs", "/openapi.json", "/v1/fleet", "/")


def answered(path: str, client: str | None, own: str = "10.0.0.1", kind: str = "http") -> Any:
    """What a request from this address gets: the application's own 200, or what the guard says."""
    said: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        said.append(message)

    scope = {"type": kind, "path": path, "client": client and (client, 50000), "server": (own, 8000)}
    asyncio.run(NodesOnly(app)(scope, None, send))  # type: ignore[arg-type]
    return said[0].get("status", said[0]["type"])


@pytest.mark.parametrize("path", [*CONTROL, *OTHERS])
def test_other_machines_reach_the_nodes_api_alone(path: str) -> None:
    for host in ("10.0.0.9", "2001:db8::9", "::ffff:10.0.0.9", "", "localhost", None):
        assert answered(path, host) == 403
    assert answered(path, "10.0.0.9", kind="websocket") == "websocket.close"


def test_what_other_machines_are_for_is_left_to_them() -> None:
    assert answered("/health", "10.0.0.9") == answered("/v1/fleet/pull-messages", "10.0.0.9") == 200


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", "10.0.0.1"), ("::1", "::1"), ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1")],
)
def test_this_machine_reaches_everything(host: str, own: str) -> None:
    assert answered("/v1/control/list-runs", host, own) == 200


def test_flower_still_has_the_hook() -> None:
    """create_app asks its own module for the middlewares, by that name, when it is called."""
    flower = importlib.util.find_spec("flwr")
    assert flower is not None and flower.origin is not None
    file = Path(flower.origin).parent / "superlink" / "main.py"  # read: importing it takes seconds
    functions = {node.name: node for node in ast.parse(file.read_text()).body if hasattr(node, "name")}
    calls = [node.func for node in ast.walk(functions["create_app"]) if isinstance(node, ast.Call)]
    assert "_get_middleware" in functions
    assert "_get_middleware" in {name.id for name in calls if isinstance(name, ast.Name)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["port=8000"], "credentials: is missing"),
        (["credentials=nowhere"], "credentials=nowhere: ca.crt is missing there"),
        (["credential=x"], "credential=x: no such option; allowed: credentials"),
        (["credentials=KEYS", "port=eight"], "port=eight"),
        (["credentials=KEYS", "host=server"], "host=server: must be an IP address"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_credentials(tmp_path, ["localhost"], 0, 1)
    assert main([argument.replace("KEYS", str(tmp_path / "server")) for argument in arguments]) == 2
    assert words in capsys.readouterr().err
