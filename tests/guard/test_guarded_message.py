"""What leaves a guarded machine, whatever its app does: a noisy clipped sum, booked before, in one form."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from guarded import GuardedMachines, weights
from torch.utils._python_dispatch import TorchDispatchMode

from fedpriv.client.contract import BudgetSpent
from fedpriv.client.memory import StaleRequest
from fedpriv.common.errors import DataError, LedgerRefused, PolicyRefused
from fedpriv.common.messages import Refusal
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.engines.grid import RUN_ID, stamp
from fedpriv.guard.arrays import Model
from fedpriv.guard.guarded_message import (
    CLOCK_HZ,
    CYCLES,
    OPERATIONS,
    REST,
    REST_OF_A_NUMBER,
    SENTENCES,
    _asked,
)
from fedpriv.guard.release import Terms
from fedpriv.guard.sandbox import Answer, Limits, Sandbox
from fedpriv.guard.shards import Shards
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.secure_sum.sum_session import SumRefused


class Silent(SeededNoise):
    def normal(self, shape: Any, std: float = 1.0) -> torch.Tensor:
        return torch.zeros(shape)


def machines(folder: Path, **guard: Any) -> GuardedMachines:
    found = GuardedMachines(folder, **guard)
    found.source = lambda: Silent(0)
    return found


def arrays_of(reply: Message) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in reply.content["arrays"].items()}


def form(reply: Message) -> Any:
    """All of a reply but its numbers."""
    content = {
        key: [(name, array.dtype, array.shape, len(array.data)) for name, array in record.items()]
        if isinstance(record, ArrayRecord)
        else dict(record)
        for key, record in reply.content.items()
    }
    return content, reply.has_error(), reply.metadata.message_type


def test_what_leaves_is_the_mean_of_clipped_differences_in_the_apps_form(tmp_path: Path) -> None:
    network = machines(tmp_path, clip=0.5)
    network.boxed.app = lambda message, context, rows: (np.array([2.0 + len(rows), 1, 2]), np.array(5.0))
    found = arrays_of(network.ask())
    assert found["w"].dtype == np.float32 and found["b"].dtype == np.float64 and found["b"].shape == ()
    assert found["w"] == pytest.approx([0.5, 1, 2], abs=1e-4) and found["b"] == pytest.approx(5)
    assert sum(len(rows) for _, _, rows in network.boxed.asked) == 20 and len(network.boxed.asked) == 4


def test_a_reply_can_be_what_is_clipped(tmp_path: Path) -> None:
    network = machines(tmp_path, reply="reply", clip=10.0)
    network.boxed.app = lambda *given: (np.array([1.0, 2.0, 3.0]), np.array(0.5))
    assert arrays_of(network.ask())["w"] == pytest.approx([1, 2, 3], abs=1e-4)


def test_noise_of_the_policy_is_in_every_number(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, noise_multiplier=4.0)
    network.boxed.app = lambda *given: (np.arange(3.0), np.array(5.0))
    found = np.stack([np.append(arrays_of(network.ask())["w"] - np.arange(3), 0) for _ in range(60)])[:, :3]
    assert found.std() == pytest.approx(4.0 / 4, rel=0.25)
    assert len(np.unique(found)) == found.size


BROKEN: dict[str, Any] = {
    "crash": "the app crashed because row 17 is Smith",
    "shape": (np.zeros(4), np.zeros(())),
    "fewer": (np.zeros(3),),
    "more": (np.zeros(3), np.zeros(()), np.zeros(1)),
    "nan": (np.array([0, np.nan, 0]), np.zeros(())),
    "infinite": (np.array([0, np.inf, 0]), np.zeros(())),
    "texts": (np.array(["a", "b", "c"]), np.zeros(())),
    "huge": (np.full(3, 1e308), np.full((), -1e308)),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_answer_is_a_zero_update_of_the_same_form(kind: str, tmp_path: Path) -> None:
    network = machines(tmp_path)
    whole = form(network.ask())
    network.boxed.app = lambda *given: BROKEN[kind]
    reply = network.ask()
    assert form(reply) == whole
    if kind != "huge":
        assert (arrays_of(reply)["w"] == np.arange(3)).all()
    assert "Smith" not in str(reply.content) and len(network.booked()) == 2


def test_a_sandbox_that_one_shard_breaks_is_a_new_one_for_the_next(tmp_path: Path) -> None:
    """Otherwise one row would turn the answers of all further shards."""
    network = machines(tmp_path)

    class Breaking(type(network.boxed)):  # type: ignore[misc]
        broken = False

        def __enter__(self) -> Any:
            self.broken = False
            return self

        def ask(self, message: bytes, shard: Path | None) -> Answer:
            if self.broken:
                raise RuntimeError("the sandbox has ended")
            if "7" in (shard.read_text() if shard else ""):
                self.broken = True
                raise RuntimeError("the sandbox ended")
            return super().ask(message, shard)

    network.boxed = Breaking(lambda *given: (np.arange(3.0) + 1, np.array(5.0)))
    found = arrays_of(network.ask())["w"] - np.arange(3)
    hit = sum("7" in file.read_text() for file in (network.data(0) / ".fedpriv/shards").glob("*/*/table.csv"))
    assert 0 < hit < 4
    assert found == pytest.approx([(4 - hit) / 4 * 3**-0.5] * 3, abs=1e-4)


def test_it_is_booked_before_it_leaves_and_refused_beyond_the_budget(tmp_path: Path) -> None:
    network = machines(tmp_path, epsilon=6.0, noise_multiplier=2.0)
    sent = [network.ask() for _ in range(3)]
    assert [reply.has_error() for reply in sent] == [False, True, True]
    assert {reply.error.code for reply in sent[1:]} == {Refusal.BUDGET_SPENT}
    (booked,) = network.booked()
    assert booked.entries[0].event.multiplier == 1.0 and booked.own.unit == "example"
    assert len(network.boxed.asked) == 4  # a message that may not be answered starts no app


def test_data_are_one_client_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = GuardedMachines(tmp_path)
    first = network.guard()
    monkeypatch.setattr(network, "guard", lambda client: replace(first, client=client))
    assert [network.ask(client).has_error() for client in (0, 1, 0)] == [False, True, False]


def test_a_message_that_cannot_be_booked_does_not_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.deployment.data_ledger import DataLedger

    network = machines(tmp_path)

    def full(self: Any, booked: Any, run: str) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(DataLedger, "append", full)
    reply = network.ask()
    assert reply.has_error() and reply.error.code == Refusal.FAILED


def test_the_app_sees_its_message_and_what_the_policy_says(tmp_path: Path) -> None:
    rules = {"memory_mib": 64, "processor_seconds": 4, "wall_seconds": 0.01, "pad_seconds": 0.02, "processes": 5}
    network = machines(tmp_path, node_config={"num-partitions": 3}, **rules)
    network.ask()
    message, context, _ = network.boxed.asked[0]
    assert dict(message.content["config"]) == {"server-round": 1, "lr": 0.1}
    place = str(network.data(0) / "table.csv")
    assert context.node_config == {"partition-id": 0, "data-path": place, "num-partitions": 3}
    assert context.run_config == {"lr": 0.1} and not context.state
    ((app, data, limits, confined),) = network.boxed.given
    assert (app.name, str(data), confined) == ("app", place, True)
    assert limits == Limits(64 << 20, 4, 0.01, 2 * 20 + 2**16, 0.02, 5)


def test_no_other_message_brings_anything(tmp_path: Path) -> None:
    network = machines(tmp_path)
    network.boxed.app = lambda *given: pytest.fail("the app was started")
    evaluated = network.ask(kind="evaluate")
    assert dict(evaluated.content["metrics"]) == {"num-examples": 1} and len(evaluated.content) == 1
    for kind in ("query", "query.rows"):
        reply = network.ask(kind=kind)
        assert reply.error.reason == "policy: a query is not declared by this node's policy"
    assert network.ask(kind="get_parameters").error.reason == "policy: messages of this type have no answer here"


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ({"second": weights()}, "a guarded app gets one record of arrays, and the message has 2"),
        ({"arrays": MetricRecord({"a": 1.0})}, "a guarded app gets one record of arrays, and the message has 0"),
        ({"arrays": ArrayRecord({"0": Array(np.zeros(9, np.uint8))})}, "the model has no float arrays"),
        ({"arrays": weights(np.zeros(2000))}, "the model has more numbers than this node's policy allows"),
        ({"arrays": weights(np.array([np.nan]))}, "the model has numbers that are not finite"),
        ({"fedpriv-guard": ConfigRecord({"round": "one"})}, "the guard's own record cannot be read"),
        ({"fedpriv-guard": MetricRecord({"round": 1})}, "the guard's own record cannot be read"),
        ({"fedpriv-guard": ConfigRecord({"round": 1, "exchange": "keys"})}, "this node takes part in no such exchange"),
    ],
    ids=["two records", "none", "trees", "too large", "nan", "round", "kind", "keys"],
)
def test_what_no_app_can_be_asked_is_refused_and_costs_nothing(
    records: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    network = machines(tmp_path)
    reply = network.ask(**records)
    assert reply.error.reason == f"policy: {sentence}"
    assert not network.booked() and not network.boxed.asked


def test_an_app_that_is_not_approved_is_not_started(tmp_path: Path) -> None:
    network = machines(tmp_path)
    for apps, allowed in ((["b" * 64], False), (["a" * 64], True)):
        network.write_policy(0, apps=apps)
        assert network.ask().has_error() == (not allowed)


def test_what_the_server_reads_of_a_refusal_does_not_depend_on_data_or_places(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is raised: the sentence of its code, and the reason for the operator alone."""
    network = machines(tmp_path)
    for error in (ValueError, DataError, BudgetSpent, PolicyRefused, LedgerRefused, SumRefused, StaleRequest):
        with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(Shards, "files", lambda self, error=error: (_ for _ in ()).throw(error("row 7 of /srv/x")))
            reply = network.ask()
        code = Refusal(reply.error.code)
        assert reply.error.reason == f"{code.name.lower()}: {SENTENCES[code]}"
        assert "row 7 of /srv/x" in caplog.text
        caplog.clear()


def test_trusted_code_is_named_so_in_the_ledger(tmp_path: Path) -> None:
    network = machines(tmp_path, sandbox="none", apps=["a" * 64])
    network.ask()
    assert network.boxed.given[0][3] is False
    assert f"app {'a' * 64} sandbox none" in (network.data(0) / ".fedpriv" / "ledger.jsonl").read_text()


def test_a_changed_salt_is_refused(tmp_path: Path) -> None:
    network = machines(tmp_path)
    (network.data(0) / ".fedpriv" / "guard.salt").write_text("11" * 32 + "\n")
    reply = network.ask()
    assert reply.has_error() and reply.error.reason.startswith("ledger: ") and not network.booked()


def test_sampled_shards_are_started_and_booked_as_such(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, sampling=0.5, shards=10)
    for _ in range(5):
        network.ask()
    assert len(network.boxed.asked) == 50  # all are started, drawn or not
    assert {booked.entries[0].event.mechanism for booked in network.booked()} == {"replaced_gaussian"}


def test_the_sum_is_of_the_shards_that_were_drawn(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, sampling=0.5, shards=10, noise_multiplier=0.02)
    drawn = []
    for _ in range(4):
        reply = network.ask().content["arrays"]  # the answer of every shard is as long as `clip`
        moved = [reply[name].numpy() - weights()[name].numpy() for name in reply]
        drawn.append(5 * float(np.sqrt(sum((part**2).sum() for part in moved))))
    assert all(abs(count - round(count)) < 0.1 for count in drawn) and 0 < sum(drawn) < 39


def test_errors_of_an_app_stay_in_this_machines_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    network = machines(tmp_path)
    network.boxed.app = lambda *given: BROKEN["crash"]
    with caplog.at_level(logging.WARNING):
        network.ask()
    assert "Smith" in caplog.text


def test_a_client_of_the_older_messages_gets_its_form(tmp_path: Path) -> None:
    network = machines(tmp_path)
    content = RecordDict({"fitins.parameters": weights(), "fitins.config": ConfigRecord({"lr": 0.1})})
    reply = network.deliver(Message(content, 7, "train"))
    assert set(reply.content) == {"fitres.parameters", "fitres.num_examples", "fitres.metrics", "fitres.status"}


def test_a_numpy_client_gets_the_older_form_of_a_newer_message(tmp_path: Path) -> None:
    network = machines(tmp_path, api="numpy", clip=9.0)
    network.boxed.app = lambda *given: (np.arange(3.0) + 1, np.array(6.0))
    reply = network.ask()
    message, _, _ = network.boxed.asked[0]
    assert set(message.content) == {"fitins.parameters", "fitins.config"}
    assert dict(message.content["fitins.config"]) == {"server-round": 1, "lr": 0.1}
    assert arrays_of(reply)["w"] == pytest.approx([1, 2, 3], abs=1e-4) and set(reply.content) == {"arrays", "metrics"}


def test_numbers_that_are_no_floats_go_back_as_they_came() -> None:
    model = Model("arrays", {"w": np.zeros(2, np.float32), "steps": np.array(3), "v": np.ones((1, 2))})
    assert model.size == 4
    answer = model.answer((np.ones(2), np.array(9), np.full((1, 2), 3.0)), "difference")
    assert answer.tolist() == [1, 1, 2, 2]
    record = model.record(np.arange(4.0))
    assert record["steps"].numpy() == 3 and record["v"].numpy().tolist() == [[2.0, 3.0]]


def test_no_machine_starts_with_more_shards_than_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError):
        GuardedMachines(tmp_path, shards=21)
    assert "guard.shards=21: at most one for each row, and there are 20" in capsys.readouterr().err


def test_with_single_only_shards_of_one_row_are_asked_and_cost_half(tmp_path: Path) -> None:
    network = machines(tmp_path, shards=60, clip=60.0, noise_multiplier=3.0, single=True)
    network.boxed.app = lambda message, context, rows: (np.array([1.0, 1, 2]), np.array(5.0))
    found = arrays_of(network.ask())
    asked = [rows for _, _, rows in network.boxed.asked]
    assert all(len(rows) == 1 for rows in asked) and 4 < len(asked) <= 20  # 20 rows in 60 shards: about 14 are alone
    assert found["w"][0] == pytest.approx(len(asked) / 60, abs=2e-3)
    (booked,) = network.booked()
    assert booked.entries[0].event.multiplier == 3.0


def starts(monkeypatch: pytest.MonkeyPatch, works: Sequence[float], asked: Sequence[bool]) -> list[float]:
    """When each shard's start begins, of which each takes 7 s and ends with so much work on its answer."""
    now, begun = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        begun.extend([now[0]] * (seconds == 7.0))
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("fedpriv.guard.guarded_message.time", clock)
    box = MagicMock()
    box.__enter__.return_value = box
    box.ask.side_effect = lambda *_: sleep(7.0) or Answer(None, 0.0, "none")
    shards = [(number, Path("shard") if real else None) for number, real in enumerate(asked)]
    for _, work in zip(_asked(lambda: box, b"", shards, 7.0, 1000), works, strict=True):
        now[0] += work
    return begun


def test_a_shard_that_is_not_asked_takes_as_long_as_one_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert starts(monkeypatch, [0.0] * 3, [False] * 3) == starts(monkeypatch, [0.0] * 3, [True, False, True])


def test_starts_of_a_fixed_time_do_not_tell_what_the_node_did_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers too small for a float's full precision take it longer than a crash: a row would reach the next shard."""
    rest = REST + 1000 * REST_OF_A_NUMBER
    even = starts(monkeypatch, [0.0] * 4, [True] * 4)
    assert even == pytest.approx([100.0 + place * (7.0 + rest) for place in range(4)])
    assert starts(monkeypatch, [0.9 * REST, 0.0, 0.5 * REST, 0.0], [True] * 4) == pytest.approx(even)
    late = starts(monkeypatch, [0.0, 2.5 * rest, 0.0, 0.0], [True] * 4)  # by whole rests, which say no more
    assert (np.diff(late) - 7.0) / rest == pytest.approx([1.0, 3.0, 1.0])


class Counted(np.ndarray):
    """An array that counts what is computed with it."""

    done = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **more: Any) -> Any:
        Counted.done += 1
        plain = [one.view(np.ndarray) if isinstance(one, Counted) else one for one in given]
        found = getattr(ufunc, method)(*plain, **more)
        return found.view(Counted) if isinstance(found, np.ndarray) else found


@pytest.mark.parametrize("noise", ["own", "ddgauss"])
@pytest.mark.parametrize("number", [0.0, 1e-310, 1.0, 1e300, 1e308])
def test_the_rest_is_as_many_operations_as_the_node_does_with_a_number(noise: str, number: float) -> None:
    """Counted, not measured: with one more answer of so many numbers."""
    more = {"noise": noise, "sites": 4, "min_replies": 3} if noise != "own" else {}
    rules = {"apps": (), "unit": "row", "shards": 4, "clip": 1.0, "noise_multiplier": 1.0} | more
    terms, model = Terms.of(GuardPolicy.model_validate(rules)), Model("arrays", {"w": np.ones(1000)})

    class Torch(TorchDispatchMode):
        done = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            sizes = [one.numel() for one in (*args, found) if isinstance(one, torch.Tensor)]
            Torch.done += sum(sizes) > 0 and max(sizes) // 1000
            return found

    def operations(answers: int) -> int:
        Counted.done = Torch.done = 0
        arrays = [np.full(1000, number).view(Counted) for _ in range(answers)]
        with Torch(), np.errstate(all="ignore"):
            found = []
            for array in arrays:
                found.append(np.asarray(model.answer((array,), "difference")))
                model.fault((array,))
            terms.release(found, 1000, Silent(0))
        return Counted.done + Torch.done

    copies = 8  # what is read, checked, copied and joined before: no operation of these libraries counts it
    assert 15 < operations(2) - operations(1) + copies <= OPERATIONS
    assert REST_OF_A_NUMBER == OPERATIONS * CYCLES / CLOCK_HZ == pytest.approx(4.8e-6)


def test_the_unit_client_asks_once_with_everything(tmp_path: Path) -> None:
    network = machines(tmp_path, unit="client", shards=1)
    network.ask()
    ((_, _, rows),) = network.boxed.asked
    assert len(rows) == 20 and network.booked()[0].own.unit == "client"


def test_a_real_sandbox_runs_a_real_app_on_every_shard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Logistic regression of the table's second column, in one confined process for each shard."""
    network = machines(tmp_path, clip=9.0)
    lines = [f"{number % 2 + number / 1000},{number % 2}" for number in range(40)]
    (network.data(0) / "table.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    guard = replace(network.guard(), app=Path(__file__).parent / "apps" / "quickstart-message", boxes=Sandbox)
    start = ArrayRecord({"weights": Array(np.zeros(1)), "bias": Array(np.zeros(1))})
    message = Message(RecordDict({"arrays": start, "config": ConfigRecord({"server-round": 1})}), 7, "train")
    stamp(message, "real")
    config = {"local-epochs": 3, "learning-rate": 1.0}
    reply = guard(message, Context(RUN_ID, 7, {}, RecordDict(), config))
    assert "zero update" not in caplog.text
    assert 0.1 < arrays_of(reply)["weights"][0] < 3


def test_a_whole_data_folder_is_seen_without_the_ledger(tmp_path: Path) -> None:
    network = machines(tmp_path, unit="client", shards=1, table=None)
    network.ask()
    ((_, _, names),) = network.boxed.asked
    assert names == ["table.csv"]
