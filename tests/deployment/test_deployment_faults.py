"""Nodes with a policy: what a crash, a lost message, a full disk and a restart leave."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deployed import MACHINES, Grid, asker, codes, refused
from flwr.app import Message

from fedpriv.common.errors import RunFolderError
from fedpriv.common.messages import Refusal
from fedpriv.deployment import data_ledger


def test_a_killed_server_goes_on_and_its_clients_with_it(machines: MACHINES) -> None:
    """Killed behind the messages of round 2: round 2 is asked anew with fresh noise, and both releases are booked."""
    network = machines(2)
    text = network.overrides("num_rounds=3 checkpoint.every=1")
    calls = iter(range(100))

    def killed(node: int, deliver: Callable[[], Message]) -> Message:
        reply = deliver()
        if next(calls) == 5:  # 2 queries, 2 of round 1, 2 of round 2
            raise SystemExit(9)
        return reply

    with pytest.raises(SystemExit):
        network.serve(text, killed)
    assert [network.booked(number) for number in range(2)] == [2, 2]
    assert codes(network.serve(text)) == ["sent"] * 4
    assert [network.booked(number) for number in range(2)] == [4, 4]
    rows = [json.loads(line) for line in (network.folder / "run" / "ledger.jsonl").read_text().splitlines()]
    assert sorted((row["client"], row["round"], row["attempt"]) for row in rows) == [
        (client, *place) for client in range(2) for place in ((1, 0), (2, 0), (2, 2), (3, 2))
    ]


@pytest.mark.parametrize("strategy", ["fedcad", "adpfl", "coqfl"])
def test_a_server_goes_back_further_than_its_clients(strategy: str, machines: MACHINES) -> None:
    """Its newest checkpoint is its start, and the clients have answered two rounds since: all three are asked anew."""
    budget = {"unit": "client", "delta": 1e-3, "max_epsilon": 1e6}
    limits = {"max_round_epsilon": 1e6, "min_noise_multiplier": 1e-3, "max_clip_norm": 1e3}
    changes = {"budgets": [budget], "limits": limits, "strategies": [strategy], "accountant": "renyi", "order": 1.1}
    network, calls = machines(2, changes), iter(range(1000))
    network.introduce()
    options = f"strategy={strategy} privacy.delta=0.001 num_rounds=3 checkpoint.every=0 dataset.auxiliary=4 model=mlp"
    text = network.overrides(options).replace("model=linear", "")
    if strategy != "fedcad":
        text = text.replace("strategy.client.noise_multiplier=2.0", "")
    exchanges = {"fedcad": 1, "adpfl": 2, "coqfl": 2}[strategy]

    def killed(node: int, deliver: Callable[[], Message]) -> Message:
        if next(calls) == 2 + 2 * 2 * exchanges:  # behind the queries and two rounds
            raise SystemExit(9)
        return deliver()

    with pytest.raises(SystemExit):
        network.serve(text, killed)
    before = network.booked(0)
    assert set(codes(network.serve(text))) == {"sent"}
    assert network.booked(0) - before == 3 * before // 2


def test_an_interrupted_run_with_other_options_is_left_alone(machines: MACHINES) -> None:
    network = machines(2)

    def killed(node: int, deliver: Callable[[], Message]) -> Message:
        raise SystemExit(9)

    with pytest.raises(SystemExit):
        network.serve(network.overrides(), killed)
    with pytest.raises(RunFolderError, match="other options"):
        network.serve(network.overrides("local.lr=0.2"))


def test_lost_replies_are_booked_on_both_sides(machines: MACHINES) -> None:
    network = machines(3)
    calls = iter(range(100))

    def lossy(node: int, deliver: Callable[[], Message]) -> Message | None:
        reply = deliver()
        return None if node == 1 and next(calls) == 2 else reply  # in round 2

    network.serve(network.overrides("engine.round_timeout=1"), lossy)
    rows = [json.loads(line) for line in (network.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["participants"], row["dropped"]) for row in rows] == [(3, 0), (2, 1)]
    assert [network.booked(number) for number in range(3)] == [2, 2, 2]
    ledger = (network.folder / "run" / "ledger.jsonl").read_text().splitlines()
    assert len(ledger) == 6


def test_a_machine_that_is_away_is_not_charged_and_may_come_back(
    machines: MACHINES, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.server.nodes.PATIENCE", 0.1)
    network = machines(3)
    text = network.overrides("num_rounds=3")
    grids: list[Grid] = []

    def back_in_round_2(node: int, deliver: Callable[[], Message]) -> Message:
        reply = deliver()
        grids[0].away.clear()
        return reply

    monkeypatch.setattr(Grid, "__init__", _keeping(grids, Grid.__init__))
    network.serve(text, back_in_round_2, away=[1])
    rows = [json.loads(line) for line in (network.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["participants"], row["dropped"]) for row in rows] == [(2, 1), (3, 0), (3, 0)]
    assert [network.booked(number) for number in range(3)] == [3, 2, 3]
    ledger = [json.loads(line) for line in (network.folder / "run" / "ledger.jsonl").read_text().splitlines()]
    assert [row["client"] for row in ledger if row["round"] == 1] == [0, 2]


def _keeping(grids: list[Grid], real: Any) -> Any:
    def made(self: Grid, *given: Any) -> None:
        real(self, *given)
        grids.append(self)

    return made


def test_clocks_decide_nothing(machines: MACHINES, monkeypatch: pytest.MonkeyPatch) -> None:
    network = machines(2)
    clock = iter([1e9, 5e9, 1.0, 3e9] * 1000)
    monkeypatch.setattr("time.time", lambda: next(clock))
    assert codes(network.serve(network.overrides())) == ["sent"] * 4


def test_a_full_disk_lets_nothing_out(machines: MACHINES, monkeypatch: pytest.MonkeyPatch) -> None:
    network = machines(2)

    def full(self: Any, row: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    with monkeypatch.context() as patch:
        patch.setattr("fedpriv.deployment.data_ledger.JsonLines.append", full)
        assert refused(network, network.overrides(run="one")) == {"FAILED"}
    assert codes(network.serve(network.overrides(run="two"))) == ["sent"] * 4


def test_killed_before_the_counter_the_ledger_is_vouched_for_before_anything_leaves(machines: MACHINES) -> None:
    network = machines(2)
    ask, counter = asker(network, network.overrides()), network.folder / "counters" / "0.json"
    ask(1)
    before = counter.read_bytes()
    ask(2)
    counter.write_bytes(before)  # as if the process had been killed there
    assert not ask(2).has_error()  # the same bytes again
    assert json.loads(counter.read_text())["bytes"] > json.loads(before)["bytes"]
    (network.data(0) / ".fedpriv" / "ledger.jsonl").write_bytes(
        b"".join((network.data(0) / ".fedpriv" / "ledger.jsonl").read_bytes().splitlines(keepends=True)[:-1])
    )
    assert ask(2).error.code == Refusal.LEDGER


def test_refusals_that_come_at_once_are_all_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads the counts and replaces them: between the two, another must wait."""
    (tmp_path / ".fedpriv").mkdir()
    real, first = data_ledger.read_counts, threading.Barrier(8)

    def slowly(data: Path) -> dict[str, int]:
        found = real(data)
        time.sleep(0.002)  # gives the others their turn, whatever the machine's speed is
        return found

    monkeypatch.setattr(data_ledger, "read_counts", slowly)

    def refuse() -> None:
        first.wait()
        for _ in range(5):
            data_ledger.note_refusal(tmp_path, Refusal.POLICY, "no")

    threads = [threading.Thread(target=refuse) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert real(tmp_path) == {"policy": 40}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"policy": "x"}', "\x00"])
def test_damaged_counts_of_refusals_are_no_reason_to_say_more(content: str, machines: MACHINES) -> None:
    network = machines(2)
    path = network.data(0) / ".fedpriv" / "refusals.json"
    path.write_text(content)
    reply = asker(network, network.overrides("num_rounds=11"))(1)
    assert (reply.error.code, reply.error.reason) == (Refusal.POLICY, "policy")
    assert json.loads(path.read_text()) == {"policy": 1} and network.command("status", 0) == 0
