"""Metrics of a SuperLink: what the gate let through and refused, connections, nodes; and a node that is revoked."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from node_proofs import signed
from prometheus_client import generate_latest

from fedpriv.commands import superlink
from fedpriv.commands.superlink import main
from fedpriv.deployment.superlink_gate import Gate, Limits
from fedpriv.report.live.prometheus import SuperLinkMetrics

ROOT = Path(__file__).resolve().parents[2]
KEY = ec.generate_private_key(ec.SECP384R1())


async def accept(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


def asked(gate: Gate, path: str = "/v1/fleet/pull-messages", proof: bool = True, body: bytes = b"") -> int:
    """The status of one request from another machine."""
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    headers = [header.encode().split(b"=", 1) for header in (signed(KEY) if proof else [])]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "server": ("10.0.0.1", 8000)}
    asyncio.run(gate(scope | {"client": ("10.0.0.9", 1)}, receive, send))
    return int(said[0]["status"])


def shown(metrics: SuperLinkMetrics) -> dict[str, float]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_requests_connections_and_nodes_are_counted() -> None:
    gate = Gate(accept, ("127.0.0.1", 1), Limits(2**20, 2, 8), lambda key: True)
    nodes = ["online", "online", "offline"]
    metrics = SuperLinkMetrics(lambda: gate.passed, lambda: gate.refused, lambda: 3, lambda: nodes)
    before = shown(metrics)
    assert before["fedpriv_superlink_requests_total"] == 0 and before['fedpriv_superlink_nodes{state="offline"}'] == 1
    assert [asked(gate), asked(gate), asked(gate, proof=False), asked(gate, "/docs"), asked(gate, "/docs")] == [
        200, 200, 401, 403, 403,
    ]  # fmt: skip
    assert asked(gate, body=bytes(2**20 + 1)) == 413
    now = shown(metrics)
    assert now["fedpriv_superlink_requests_total"] == 2 and now["fedpriv_superlink_connections"] == 3
    refused = {name: value for name, value in now.items() if name.startswith("fedpriv_superlink_refusals_total")}
    assert refused == {f'fedpriv_superlink_refusals_total{{status="{code}"}}': n for code, n in Counter(
        {401: 1, 403: 2, 413: 1}).items()}  # fmt: skip
    nodes.clear()
    assert shown(metrics)['fedpriv_superlink_nodes{state="online"}'] == 0, "none, where a missing line would be unknown"


def test_a_revoked_node_is_a_stranger_from_its_next_request_on(tmp_path: Path) -> None:
    """`flwr supernode unregister`: the gate asks Flower's own table for every request."""
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.superlink.federation import NoOpFederationManager

    database = str(tmp_path / "superlink.db")
    state = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory(database)).state()
    gate = Gate(
        accept, ("127.0.0.1", 1), Limits(2**20, 2, 8), lambda key: state.get_node_id_by_public_key(key) is not None
    )
    assert asked(gate) == 401
    key = public_key_to_bytes(KEY.public_key())
    node = state.create_node("", "", key, 30)
    assert asked(gate) == 200
    assert superlink.states_of(state) == ["registered"]
    state.delete_node("", node)
    assert asked(gate) == 401
    assert superlink.states_of(state) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [("metrics_port=none", "metrics_port=none: must be a whole number"), ("metrics_port=70000", "from 0 to 65535")],
)
def test_a_port_that_is_none_is_refused(given: str, words: str, tmp_path: Path, capsys: Any) -> None:
    from fedpriv.commands.credentials import make_credentials

    make_credentials(tmp_path, ["localhost"], 0, 1)
    assert main([f"credentials={tmp_path / 'server'}", given]) == 2
    assert words in capsys.readouterr().err


def test_the_dashboard_shows_what_is_measured() -> None:
    dashboard = json.loads((ROOT / "deploy/prometheus/fedpriv_dashboard.json").read_text())
    documented = (ROOT / "docs/monitoring.md").read_text()
    texts = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for text in texts for name in re.findall(r"\bfedpriv_\w+", text)}
    assert len(texts) >= 8 and all(f"`{name}" in documented or f"{name}`" in documented for name in names), names
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) and all(panel["title"] for panel in dashboard["panels"])
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {"${source}"}
