"""What operators read: of each refusal a line with its remedy, names of nodes, and a run's result at the end."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path

import pytest
from deployed import MACHINES, refused
from flwr.app import Error, Message, RecordDict
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from flwr.supernode.runtime import run_clientapp

from fedpriv.commands.superlink import NodeNames
from fedpriv.common.messages import NODE_REMEDIES, Refusal
from fedpriv.deployment import executor, supernode
from fedpriv.deployment.data_ledger import note_refusal
from fedpriv.engines import worker
from fedpriv.engines.grid import stamp
from fedpriv.guard import guarded_message

#: Codes that no node gives.
SIMULATED = {Refusal.LOST, Refusal.WORKER_LOST, Refusal.LATE}


@pytest.mark.parametrize("code", [code for code in Refusal if code not in SIMULATED], ids=lambda code: code.name)
def test_every_refusal_of_a_node_is_one_line_with_a_remedy(
    code: Refusal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".fedpriv").mkdir()
    note_refusal(tmp_path, code, "option=3:\nat most 2")
    (line,) = caplog.messages
    assert line == f"refused, {code.name.lower()}: option=3: at most 2; remedy: {NODE_REMEDIES[code]}"


def test_no_node_gives_a_code_without_remedy() -> None:
    given = {*worker.CODES.values(), *guarded_message.CODES.values()}
    assert given <= NODE_REMEDIES.keys() and NODE_REMEDIES.keys().isdisjoint(SIMULATED)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ("num_rounds=11", "refused, policy: num_rounds=11: at most 10 (limits.max_rounds); remedy: "),
        ("dataset.channels=3", "size=4 channels=3: this machine has declared ['a', 'b', 'c'], 4 and 1; remedy: "),
        ("strategy.client.noise_multiplier=0.9", "noise multiplier 0.45, limits.min_noise_multiplier is 0.5; remedy: "),
    ],
)
def test_a_refusal_names_option_value_and_bound(
    overrides: str, line: str, machines: MACHINES, caplog: pytest.LogCaptureFixture
) -> None:
    network = machines(1)
    assert refused(network, network.overrides(overrides)) == {"POLICY"}
    assert any(line in message and "\n" not in message for message in caplog.messages), caplog.messages


def test_a_spent_budget_says_what_is_spent(machines: MACHINES, caplog: pytest.LogCaptureFixture) -> None:
    network = machines(1, {"budgets": [{"unit": "client", "delta": 1e-5, "max_epsilon": 6.0}]})
    network.serve(network.overrides("num_rounds=1"))
    network.serve(network.overrides("num_rounds=1", run="more"))
    assert network.booked(0) == 1
    (line,) = {message for message in caplog.messages if message.startswith("refused")}
    assert "the budget of 6 (client" in line and "exceeded: epsilon 4.377 of its max_epsilon is spent; remedy" in line


def test_what_flower_itself_refuses_has_its_line_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[Message] = []
    monkeypatch.setattr(run_clientapp, "push_message", lambda client, message, context: sent.append(message))
    executor._send_codes_alone()
    asked = Message(RecordDict(), 700, "train")
    stamp(asked, "asked")
    run_clientapp.push_message(None, Message(Error(3, "no\nspace"), reply_to=asked), None)  # type: ignore[arg-type]
    assert caplog.messages == [f"refused, failed: no space; remedy: {NODE_REMEDIES[Refusal.FAILED]}"]
    assert (sent[0].error.code, sent[0].error.reason) == (Refusal.FAILED, "failed")


def test_flower_still_says_what_is_silenced() -> None:
    """Of a message that no app had; a refusal's own line says more."""
    source = inspect.getsource(InMemoryNodeState.get_message_processing_duration)
    assert [source.count(f'"{words}') for words in supernode.OF_NO_TASK] == [1, 1]


def test_a_nodes_name_is_beside_its_id(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[int] = []

    def names(node: int) -> list[str]:
        asked.append(node)
        return ["north"] if node == 7 else []

    log = logging.getLogger("test_a_nodes_name")
    log.addFilter(NodeNames(names))
    for node in (7, 8, 7):
        log.warning("[Fleet.PushMessages] Push replies from node_id=%s", node)
    log.warning("100 %% of %s", "all")
    start = "[Fleet.PushMessages] Push replies from node_id="
    assert caplog.messages == [f"{start}7 (north)", f"{start}8", f"{start}7 (north)", "100 % of all"]
    assert asked == [7, 8]


def test_a_run_names_its_nodes_and_ends_with_its_result_and_folder(
    machines: MACHINES, capsys: pytest.CaptureFixture[str]
) -> None:
    network = machines(2)
    network.serve(network.overrides("num_rounds=1"))
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("client ")] == [
        "client 0 is SuperNode 700, site-0",
        "client 1 is SuperNode 711, site-1",
    ]
    assert any(line.startswith("verified epsilon  ") for line in said)
    assert said[-2:] == [f"folder: {network.folder / 'run'}", "report: none"]
