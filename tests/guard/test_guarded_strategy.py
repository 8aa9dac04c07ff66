"""Flower's own strategies over guarded machines: own noise, secure sums, and the run's folder."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, FedXgbBagging
from guarded import GuardedMachines, MachinesGrid, weights

import fedpriv
from fedpriv.client.masked_sum import MaskedSum
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.messages import CONFIRM, EXCHANGE, KEYS, RUN, SHARES, TRAIN, UNMASK, Refusal, refusal
from fedpriv.guard.guarded_message import GUARD
from fedpriv.guard.release import claimed_epsilon
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

SUM: dict[str, Any] = {
    "noise": "ddgauss",
    "sites": 4,
    "min_replies": 3,
    "threshold": 3,
    "shards": 2,
    "noise_multiplier": 0.05,
    "clip": 2.0,
}


def values(record: ArrayRecord | None) -> np.ndarray:
    assert record is not None
    return np.concatenate([array.numpy().ravel() for array in record.values()])


def one_more(message: Message, context: Any, rows: list[str]) -> Any:
    """An app whose difference is (1, 0, 0, 0)."""
    first = next(iter(message.content.array_records.values()))
    found = [array.numpy().astype(float) for array in first.values()]
    return (found[0] + [1, 0, 0], found[1])


def lost(clients: tuple[int, ...], exchanges: tuple[str, ...]) -> Any:
    def lose(client: int, message: Message) -> bool:
        own = message.content.get(GUARD, {})
        return client in clients and str(own.get(EXCHANGE, TRAIN)) in exchanges

    return lose


@pytest.mark.parametrize("noise", ["own", "ddgauss", "skellam"])
def test_the_mean_of_all_machines_moves_the_model(noise: str, tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM | {"noise": noise})
    network.boxed.app = one_more
    strategy = fedpriv.guarded(FedAvg(fraction_evaluate=0.0), run_dir=tmp_path / "run")
    found = strategy.start(MachinesGrid(network), weights(), num_rounds=2)
    assert values(found.arrays) == pytest.approx([2, 1, 2, 5], abs=0.4)
    assert values(found.arrays).std() and abs(values(found.arrays) - [2, 1, 2, 5]).max() > 1e-6
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    privacy, plan = summary["privacy"], json.loads((tmp_path / "run" / "plan.json").read_text())
    assert privacy["claimed_epsilon"] == privacy["verified_epsilon"] == plan["clients"]["3"]["epsilon"]
    if noise == "own":
        assert privacy["verified_epsilon"] == pytest.approx(gaussian_epsilon(math.sqrt(2) * 2 / 0.05, 1e-5))
    assert privacy["unit"] == "example"
    assert [len(network.booked(client)) for client in range(4)] == [2] * 4
    assert f"{privacy['verified_epsilon']:.6g}" in (tmp_path / "run" / "report.md").read_text()


def test_a_machine_whose_noise_changed_after_the_keys_uploads_nothing(tmp_path: Path) -> None:
    """Its ledger would count on as much noise of all others, who have signed less."""
    network = GuardedMachines(tmp_path, 4, **SUM)
    network.boxed.app = one_more

    def louder(client: int, message: Message) -> bool:
        if client == 0 and message.content.get(GUARD, {}).get(EXCHANGE, TRAIN) == TRAIN:
            network.write_policy(0, **SUM | {"noise_multiplier": 5.0})
        return False

    fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(MachinesGrid(network, louder), weights(), num_rounds=1)
    assert [len(network.booked(client)) for client in range(4)] == [0, 1, 1, 1]


@pytest.mark.parametrize("kind", [FedAdam, FedProx])
def test_other_strategies_of_flower_are_as_good(kind: Any, tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM)
    network.boxed.app = one_more
    more = {"proximal_mu": 0.1} if kind is FedProx else {}
    found = fedpriv.guarded(kind(fraction_evaluate=0.0, **more)).start(MachinesGrid(network), weights(), num_rounds=1)
    assert values(found.arrays)[0] > 0.05 and network.booked(0)


def test_a_server_sees_masked_numbers_alone(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM)
    grids = []
    for _ in range(2):
        grids.append(MachinesGrid(network))
        fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(grids[-1], weights(), num_rounds=1)
    packed = [
        reply.content["arrays"]["packed"].numpy()
        for grid in grids
        for _, reply in grid.answers
        if "arrays" in reply.content
    ]
    assert len(packed) == 8 and len({part.tobytes() for part in packed}) == 8
    assert all(part.dtype == np.uint8 and part.size == 16 for part in packed)


@pytest.mark.parametrize("exchanges", [(TRAIN, CONFIRM, UNMASK), (CONFIRM, UNMASK), (UNMASK,)], ids=" ".join)
def test_one_machine_may_drop_out(exchanges: tuple[str, ...], tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM)
    network.boxed.app = one_more
    strategy = fedpriv.guarded(FedAvg(fraction_evaluate=0.0))
    found = strategy.start(MachinesGrid(network, lost((2,), exchanges)), weights(), num_rounds=1)
    assert values(found.arrays) == pytest.approx([1, 1, 2, 5], abs=0.3)
    assert len(network.booked(2)) == 1


def test_below_the_floor_nothing_opens(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM)
    strategy = fedpriv.guarded(FedAvg(fraction_evaluate=0.0))
    grid = MachinesGrid(network, lost((1, 2), (TRAIN, CONFIRM, UNMASK)))
    with pytest.raises(RunFailed, match="the secure sum stays closed: 2 of 4 clients have uploaded"):
        strategy.start(grid, weights(), num_rounds=1)


@pytest.mark.parametrize("exchange", [KEYS, SHARES, TRAIN, CONFIRM, UNMASK])
def test_after_a_sum_that_stays_closed_the_run_goes_on(exchange: str, tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM)
    network.boxed.app = one_more

    class Failing(MachinesGrid):
        failed = 0

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            sent = list(messages)
            own = sent[0].content.get(GUARD, {}) if sent else {}
            found = super().send_and_receive(sent, timeout=timeout)
            if str(own.get(EXCHANGE, TRAIN)) == exchange and own.get("round") == 1:
                self.failed += 1
                return found[:2]
            return found

    grid = Failing(network)
    strategy = fedpriv.guarded(FedAvg(fraction_evaluate=0.0), run_dir=tmp_path / "run")
    found = strategy.start(grid, weights(), num_rounds=2)
    assert grid.failed == 1 and list(strategy.closed) == [1]
    assert values(found.arrays) == pytest.approx([1, 1, 2, 5], abs=0.3)  # of one round
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert list(summary["closed_rounds"]) == ["1"]
    assert "round 1: the secure sum stays closed" in (tmp_path / "run" / "report.md").read_text()
    spent = max(len({entry.round for entry in entries}) for entries in strategy.entries.values())
    assert spent == (1 if exchange in (KEYS, SHARES) else 2)
    privacy, one = summary["privacy"], claimed_epsilon(strategy.terms[0], 4, spent, 1e-5)
    assert privacy["claimed_epsilon"] == privacy["verified_epsilon"] == one
    assert [len(network.booked(client)) for client in range(4)] == [spent] * 4


def test_the_mean_is_over_those_who_uploaded(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM | {"noise_multiplier": 0.02})
    network.boxed.app = one_more
    strategy = fedpriv.guarded(FedAvg(fraction_evaluate=0.0))
    found = strategy.start(MachinesGrid(network, lost((3,), (TRAIN, CONFIRM, UNMASK))), weights(), num_rounds=1)
    assert values(found.arrays)[0] == pytest.approx(1, abs=0.12)  # over all four: 0.75


def test_replies_of_a_sum_are_the_model_and_no_difference(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM | {"reply": "reply", "clip": 9.0, "noise_multiplier": 0.02})
    network.boxed.app = lambda *given: (np.array([3.0, 2, 1]), np.array(4.0))
    found = fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(MachinesGrid(network), weights(), num_rounds=1)
    assert values(found.arrays) == pytest.approx([3, 2, 1, 4], abs=0.2)


def test_an_app_sees_nothing_of_the_guards_words(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM)
    fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(MachinesGrid(network), weights(), num_rounds=1)
    assert {tuple(message.content) for message, _, _ in network.boxed.asked} == {("arrays", "config")}


def test_terms_that_change_during_a_run_end_it(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 2, clip=2.0, noise_multiplier=0.05)
    strategy = fedpriv.guarded(FedAvg(fraction_evaluate=0.0))
    strategy.start(MachinesGrid(network), weights(), num_rounds=1)
    network.write_policy(1, clip=3.0, noise_multiplier=0.05)
    strategy.clients.clear()
    with pytest.raises(RunFailed, match="client 1 changed its guard's terms during the run"):
        strategy.start(MachinesGrid(network), weights(), num_rounds=1)


def test_a_model_that_was_not_signed_is_refused(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM)

    class Swapping(MachinesGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            sent = list(messages)
            for message in sent:
                if "arrays" in message.content:
                    message.content["arrays"] = weights().__class__({**weights(), "b": weights()["w"]})
            return super().send_and_receive(sent, timeout=timeout)

    with pytest.raises(RunFailed, match="0 of 4 clients have uploaded"):
        fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(Swapping(network), weights(), num_rounds=1)
    assert not network.booked(0)


def test_a_second_upload_in_one_sum_is_refused(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM)
    again = []

    class Twice(MachinesGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            sent = list(messages)
            found = super().send_and_receive(sent, timeout=timeout)
            again.extend(
                self.machines.deliver(message, (message.metadata.dst_node_id - 900) // 13)
                for message in sent
                if "arrays" in message.content
            )
            return found

    fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(Twice(network), weights(), num_rounds=1)
    assert [reply.error.code for reply in again] == [Refusal.UNSAFE_SUM] * 4
    assert len(network.booked(0)) == 1


@pytest.mark.parametrize("earlier", [False, True])
def test_a_machine_that_is_made_to_forget_a_sum_does_not_join_it_again(
    earlier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By keys of a later round, then by those of other runs. earlier: its upload was that of an earlier version."""
    if earlier:
        monkeypatch.setattr(MaskedSum, "uploaded", lambda part, memory: replace(memory, waiting=part.waiting))
    monkeypatch.setattr("fedpriv.guard.member_state.MOST_SUMS", 2)
    network, keys, again = GuardedMachines(tmp_path, 4, **SUM), [], []

    class Forgetting(MachinesGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            sent = list(messages)
            found = super().send_and_receive(sent, timeout=timeout)
            asked = [one for one in sent if one.content.get(GUARD, {}).get(EXCHANGE) == KEYS]
            keys.extend(asked[:1])
            if asked and len(keys) == 2:
                for run in "abc":
                    own = ConfigRecord(dict(asked[0].content[GUARD]) | {RUN: run})
                    other = Message(RecordDict({GUARD: own}), asked[0].metadata.dst_node_id, "train")
                    assert not self.machines.deliver(other, 0).has_error()
                again.append(self.machines.deliver(keys[0], 0))
            return found

    fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(Forgetting(network), weights(), num_rounds=2)
    assert [reply.error.code for reply in again] == [Refusal.STALE]


def test_machines_of_a_sum_that_disagree_are_not_added_up(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM)
    network.write_policy(3, **SUM | {"clip": 3.0})
    with pytest.raises(RunFailed, match=r"client \d: the machines of a secure sum have the same terms"):
        fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(MachinesGrid(network), weights(), num_rounds=1)


def test_a_server_without_the_wrapper_gets_no_sum(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4, **SUM)
    grid = MachinesGrid(network)
    FedAvg(fraction_evaluate=0.0).start(grid, weights(), num_rounds=1)
    (reason,) = {reply.error.reason for _, reply in grid.answers}
    assert reason == "policy: this node answers in secure sums alone" and not network.booked(0)


def test_a_server_without_the_wrapper_gets_plain_arrays_with_own_noise(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 3, clip=2.0, noise_multiplier=0.05)
    network.boxed.app = one_more
    found = FedAvg().start(MachinesGrid(network), weights(), num_rounds=2)
    assert values(found.arrays) == pytest.approx([2, 1, 2, 5], abs=0.4)


def test_a_machine_whose_budget_is_spent_leaves_the_others(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 3, clip=2.0, noise_multiplier=2.0)
    network.write_policy(1, epsilon=6.0, clip=2.0, noise_multiplier=2.0)
    grid = MachinesGrid(network)
    fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(grid, weights(), num_rounds=2)
    assert [len(network.booked(client)) for client in range(3)] == [2, 1, 2]


def test_where_no_machine_takes_part_the_server_says_why(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, 4)

    class Answers(MachinesGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            bundle, lost, plain, policy = list(messages)
            del lost
            return [
                refusal(Refusal.BUNDLE, bundle),
                Message(RecordDict(), reply_to=plain),
                *super().send_and_receive([policy], timeout=timeout),
            ]

    for client in range(4):  # they are asked in any order
        network.write_policy(client, apps=["b" * 64])
    with pytest.raises(RunFailed) as raised:
        fedpriv.guarded(FedAvg()).start(Answers(network), weights(), num_rounds=1)
    said = str(raised.value)
    assert "none of the 4 machines that were asked takes part: 1 whose guard.apps does not name this app" in said
    assert (
        "1 without a guard" in said
        and "1 refused (policy: this node's policy does not allow this app)" in said
        and "1 gave no answer" in said
    )


@pytest.mark.parametrize("noise", ["own", "ddgauss"])
def test_a_model_that_no_guard_trains_ends_the_run_with_a_sentence(noise: str, tmp_path: Path) -> None:
    """Flower's strategies of trees: one array of bytes."""
    network = GuardedMachines(tmp_path, 4, **SUM | {"noise": noise})
    trees = ArrayRecord({"0": Array(np.zeros(9, np.uint8))})
    with pytest.raises(RunFailed, match="the model has no float arrays"):
        fedpriv.guarded(FedXgbBagging()).start(MachinesGrid(network), trees, num_rounds=2)
    assert not network.booked(0)


def test_refusals_are_logged_with_their_sentence_and_end_a_run_that_nobody_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = GuardedMachines(tmp_path, 2, clip=2.0, noise_multiplier=0.05)

    class Breaks(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return super().aggregate_train(server_round, [reply for reply in replies if reply.content])

    large = weights(np.zeros(2000))
    with caplog.at_level("WARNING"), pytest.raises(RunFailed, match="no machine has answered in 2 rounds: 4 x policy"):
        fedpriv.guarded(Breaks(fraction_evaluate=0.0)).start(MachinesGrid(network), large, num_rounds=2)
    assert "2 x policy: the model has more numbers than this node's policy allows" in caplog.text


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(OptionError, match=r"strategy=str: a strategy of flwr.serverapp.strategy"):
        fedpriv.guarded("FedAvg")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"run_dir=.*full: must be a new or an empty folder"):
        fedpriv.guarded(FedAvg(), run_dir=tmp_path / "full")
    with pytest.raises(OptionError, match="delta=2"):
        fedpriv.guarded(FedAvg(), delta=2)
