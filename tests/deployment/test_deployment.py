"""Nodes with a policy: what they answer, and what their operators see."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest
from deployed import MACHINES, POLICY, codes, refused
from flwr.app import Message
from flwr.common.logger import FLOWER_LOGGER
from flwr.common.serde import recorddict_to_proto
from PIL import Image
from prometheus_client import generate_latest

from fedpriv.commands.node import snapshot
from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import METRICS, unpack_vector
from fedpriv.config.methods import METHODS
from fedpriv.report.live.prometheus import NodeMetrics


def test_a_run_is_booked_by_every_node_before_it_leaves(machines: MACHINES) -> None:
    network = machines(3)
    seen: list[tuple[int, int]] = []

    def listen(node: int, deliver: Callable[[], Message]) -> Message:
        reply = deliver()
        seen.append((node, network.booked(node)))
        return reply

    grid = network.serve(network.overrides(), listen)
    assert codes(grid) == ["sent"] * 6
    assert seen[3:] == [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)]
    summary = json.loads((network.folder / "run" / "summary.json").read_text())
    assert summary["privacy"]["verified_epsilon"] == pytest.approx(6.57297, abs=1e-4)


def test_nothing_but_the_release_leaves_a_node(machines: MACHINES) -> None:
    """No diagnostics, and the declared count: all replies have the same form, whatever the pictures are."""
    network = machines(2)
    for picture in network.data(1).rglob("*.png"):
        Image.new("L", (network.side, network.side)).save(picture)
    grid = network.serve(network.overrides())
    trained = [reply.content for _, reply in grid.answers if reply.metadata.message_type == "train"]
    assert {tuple(content) for content in trained} == {("arrays", METRICS)}
    assert len({(tuple(content[METRICS]), recorddict_to_proto(content).ByteSize()) for content in trained}) == 1
    assert {content[METRICS]["num-examples"] for content in trained} == {12}
    rows = [json.loads(line) for line in (network.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["train_loss"] for row in rows] == [None, None]


def test_noise_and_batches_are_not_repeatable(machines: MACHINES) -> None:
    network = machines(2)
    releases = [
        unpack_vector(reply.content).tolist()
        for run in ("one", "two")
        for _, reply in network.serve(network.overrides("num_rounds=1", run=run)).answers
        if reply.metadata.message_type == "train"
    ]
    assert len({tuple(release) for release in releases}) == 4


#: Methods with a finite price under a client-level budget of the server's, and under an example-level one.
CLIENT_LEVEL = {
    "adpfl",
    "coqfl",
    "cpsgd",
    "dpfedavg",
    "dpfedexp",
    "dpfedsam",
    "dpzo",
    "dpfedsnlc",
    "fedags",
    "fedcad",
    "fedldp",
    "ldpfl",
    "privunit",
    "fedonce",
    "scaffold",
}
EXAMPLE_LEVEL = {"agn", "anr", "dpfl_agn", "dpsgd", "nbafl"}
#: A server that adds in the open sees each client's numbers: only masks make a secure sum of them.
SUMS = {"ddgauss", "skellam", "dpsum", "ask", "moments"}
#: Their clients send updates without noise, to a server that they would have to trust, which goes on whoever answers.
TRUSTING = {"dpftrl"}
WITHOUT_PRICE = {"corrquant", "fedavg", "fedper", "fedprox", "fedvf", "lgfedavg", "pfl"}


@pytest.mark.rotates(3)
@pytest.mark.parametrize("strategy", sorted(METHODS))
def test_every_method_keeps_to_the_policy_or_is_refused(strategy: str, machines: MACHINES) -> None:
    assert set(METHODS) == CLIENT_LEVEL | EXAMPLE_LEVEL | WITHOUT_PRICE | SUMS | TRUSTING
    unit = "example" if strategy in EXAMPLE_LEVEL else "client"
    adjacency = "add-or-remove-one" if unit == "example" else "replace-one"
    budget = {"unit": unit, "adjacency": adjacency, "delta": 1e-3, "max_epsilon": 1e6}
    limits = {"max_round_epsilon": 1e5, "min_noise_multiplier": 1e-3, "max_clip_norm": 1e3}
    lenient = {"budgets": [budget], "limits": limits, "strategies": [strategy], "accountant": "renyi", "order": 1.1}
    network = machines(2, lenient)
    network.introduce()
    own = [f"strategy={strategy}", "privacy.delta=0.001"]
    text = network.overrides(*own).replace("model=linear", "model=mlp")
    if strategy not in ("fedldp", "fedcad"):
        text = text.replace("strategy.client.noise_multiplier=2.0", "")
    if strategy in ("ask", "moments"):  # there is no model to choose
        text = text.replace("model=mlp", "")
    if strategy == "fedonce":  # of linear models alone; its features are for larger pictures, its steps many
        text = text.replace("model=mlp", "model=linear features=none local.epochs=1")
    if strategy in ("anr", "dpfl_agn", "adpfl", "pfl"):  # these want public pictures of the server's
        text += " dataset.auxiliary=4"
    if strategy in WITHOUT_PRICE | SUMS:
        with pytest.raises(RunFailed, match="policy"):
            network.serve(text)
        assert [network.booked(number) for number in range(2)] == [0, 0]
        return
    grid = network.serve(text)
    if strategy in TRUSTING:
        assert set(codes(grid)) == {"POLICY"} and [network.booked(number) for number in range(2)] == [0, 0]
        return
    assert set(codes(grid)) == {"sent"}
    exchanges = 2 if strategy == "adpfl" else 1
    assert [network.booked(number) for number in range(2)] == [2 * exchanges] * 2


def test_shared_secrets_need_identities(machines: MACHINES) -> None:
    """Unsigned keys show the shared bits to a server in the middle, whom a budget's observer `server` must not be."""
    limits = {"max_round_epsilon": 1e5}
    changes = {"strategies": ["coqfl"], "accountant": "renyi", "limits": limits}
    budget = {"unit": "client", "delta": 1e-5, "max_epsilon": 1e6}
    network = machines(2, changes | {"budgets": [budget]})
    text = network.overrides("strategy=coqfl").replace("strategy.client.noise_multiplier=2.0", "")
    assert refused(network, text) == {"POLICY"}
    network.introduce()
    assert codes(network.serve(text.replace("/run ", "/two "))).count("sent") > 0


def test_changed_pictures_must_be_declared_again(machines: MACHINES) -> None:
    network = machines(2)
    for number in range(2):
        (network.data(number) / "a" / "0.png").unlink()
    assert refused(network, network.overrides(run="one")) == {"FAILED"}
    for number in range(2):
        assert network.command("declare", number) == 0
    assert refused(network, network.overrides(run="two")) == {"POLICY"}  # the server has to declare the new number
    now = network.overrides(run="three").replace("[12,12]", "[11,11]")
    assert codes(network.serve(now)) == ["sent"] * 4


def test_the_operator_sees_reasons_and_counts(
    machines: MACHINES, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    network = machines(2)
    refused(network, network.overrides("num_rounds=11"))
    assert "num_rounds=11: at most 10" in caplog.text
    capsys.readouterr()
    assert network.command("status", 0) == 0
    assert capsys.readouterr().out.splitlines() == [
        "0 messages left, 0 entries",
        "client, replace-one, server, delta 1e-05: epsilon 0 of 100",
        "refused: policy 1",
    ]


def test_metrics_and_health_are_what_the_files_say(machines: MACHINES) -> None:
    network = machines(2)
    network.serve(network.overrides())
    registry = NodeMetrics(lambda: snapshot(network.policy(0), network.data(0))).registry
    text = generate_latest(registry).decode()
    assert "fedpriv_node_releases_total 2.0" in text and "fedpriv_node_readable 1.0" in text
    assert 'fedpriv_node_epsilon_spent{budget="client, replace-one, server, delta 1e-05"} 6.57' in text
    (network.data(0) / ".fedpriv" / "ledger.jsonl").unlink()
    assert "fedpriv_node_readable 0.0" in generate_latest(registry).decode()


def test_the_servers_words_about_nodes_that_refuse_and_one_that_replies(
    machines: MACHINES, caplog: pytest.LogCaptureFixture
) -> None:
    network = machines(3)
    for number in (0, 1):
        network.write_policy(number, POLICY | {"strategies": ["fedcad"]})
    with pytest.raises(RunFailed) as failed:
        network.serve(network.overrides("strategy.server.min_replies=3"))
    words = str(failed.value)
    assert "1 usable replies of 3, strategy.server.min_replies=3; 2 x policy (" in words
    assert "`fedpriv plan policy=FILE`" in words and "no reply" not in words and "client 2" not in words
    assert "strategy=fedldp: allowed: fedcad" in caplog.text
    one_line_and_no_traceback(failed.value)


def one_line_and_no_traceback(error: RunFailed) -> None:
    """What Flower logs of an exception of the ServerApp; an error of the program itself keeps its traceback."""
    lines: list[str] = []
    for raised in (error, ValueError("a fault of the program")):
        traced = (type(raised), raised, None)
        record = FLOWER_LOGGER.makeRecord(
            "flwr", logging.ERROR, "", 0, "%s raised an exception", ("ServerApp",), traced
        )
        assert FLOWER_LOGGER.filter(record)
        lines.append(logging.Formatter().format(record))
    assert lines[0] == f"ServerApp raised an exception: {error}" and "ValueError: a fault of the program" in lines[1]


def test_a_node_that_is_away_is_named_as_such(machines: MACHINES) -> None:
    network = machines(3)
    with pytest.raises(RunFailed, match="client 1: no connected node has said that it is this client"):
        network.serve(network.overrides("strategy.server.min_replies=3", "engine.round_timeout=1"), away=[1])
