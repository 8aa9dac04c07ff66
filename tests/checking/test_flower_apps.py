"""Whole apps as targets: of the message API, of the NumPyClient API, and behind a guard of this project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod

from fedpriv.checking.checks import check_object
from fedpriv.checking.flower_apps import AppSubject, AppTarget, known_guard, recognises
from fedpriv.checking.replay import memory, replay
from fedpriv.checking.subject import Budget, Question
from fedpriv.deployment.policy import read_policy
from fedpriv.guard.release import Terms
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from tests.guard.guarded import GuardedMachines

QUESTION = Question(dims=(16,))
MILLISECONDS_OF_A_PLAY = 30.0  # of an app behind a guard
MODEL = {"weight": np.zeros((2, 2), np.float32), "bias": np.zeros(2, np.float32)}
DATA: dict[str, Any] = {"rows": np.zeros(3)}


def give(rows: Any) -> None:
    DATA["rows"] = rows


def message_app(mods: Any = None, *, loss: bool = False) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train(mods=mods)
    def train(message: Message, context: Context) -> Message:
        rows = DATA["rows"]
        records = message.content.array_records["arrays"]
        trained = {key: Array(array.numpy() + np.float32(rows.mean())) for key, array in records.items()}
        metrics: dict[str, Any] = {"num-examples": len(rows)} | ({"loss": float(rows.std())} if loss else {})
        return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": MetricRecord(metrics)}), reply_to=message)

    return app


LEFT, RIGHT = np.array([1e3, 1e3, 1e3]), np.array([-1e3, -1e3, 1e3])


def subject(app: Any, **more: Any) -> AppSubject:
    found = recognises(AppTarget(app, MODEL, LEFT, RIGHT, give, **more), QUESTION)
    assert isinstance(found, AppSubject)
    return found


def test_an_app_is_played_on_the_data_that_are_given() -> None:
    found = subject(message_app(loss=True))
    one, other = (found.play(data, 1)[0].numbers for data in (LEFT, RIGHT))
    assert one["arrays.arrays.bias"].tolist() == [1000.0, 1000.0]
    assert other["metrics.metrics.loss"][0] == pytest.approx(RIGHT.std())


def test_an_apps_own_loss_leaves_bare_and_is_a_fault_of_the_app() -> None:
    noise = LocalDpMod(1.0, 2.0, 0.9, 1e-5)
    sound = check_object(AppTarget(message_app([noise]), MODEL, LEFT, RIGHT, give), QUESTION, seconds=1)
    leaking = check_object(AppTarget(message_app([noise], loss=True), MODEL, LEFT, RIGHT, give), QUESTION, seconds=1)
    assert sound.verdict == "no fault found", sound.last_line
    assert leaking.verdict == "faults found"
    assert any("loss" in one.text for one in leaking.faults)


def test_the_mods_of_an_app_are_recognised() -> None:
    (known,) = subject(message_app([LocalDpMod(1.0, 2.0, 0.9, 1e-5)])).recognised
    assert known.event is not None


def test_a_numpy_client_is_asked_in_its_own_form() -> None:
    class Client(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return [np.asarray(one + np.float32(DATA["rows"].mean())) for one in parameters], 3, {"rate": config["lr"]}

    found = subject(ClientApp(client_fn=lambda context: Client().to_client()), old=True)
    numbers = found.play(LEFT, 1)[0].numbers
    assert numbers["arrays.fitres.parameters.1"].tolist() == [1000.0, 1000.0]
    assert numbers["config.fitres.metrics.rate"].tolist() == [0.1]


def test_without_a_way_to_give_data_two_partitions_are_asked() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        part = float(context.node_config["partition-id"])
        return Message(RecordDict({"metrics": MetricRecord({"part": part})}), reply_to=message)

    found = recognises(AppTarget(app, MODEL), QUESTION)
    assert found is not None
    (pair,) = found.pairs
    parts = [found.play(side, 1)[0].numbers["metrics.metrics.part"][0] for side in (pair.left, pair.right)]
    assert parts == [0.0, 1.0]
    assert [one.name for one in found.notes] == ["data-of-partitions"]


def test_of_a_bare_app_it_is_said_what_is_missing() -> None:
    found = check_object(message_app(), QUESTION, seconds=2)
    assert found.verdict == "could not check"
    assert "AppTarget" in str(found.why_not)


def test_an_app_behind_a_guard_passes(tmp_path: Path) -> None:
    """A hostile app: its answer is a million times its data; what leaves is clipped and has the guard's own noise."""
    machines = GuardedMachines(tmp_path, epsilon=1e9, unit="client", table=None, shards=1)
    machines.boxed.app = lambda *given: (np.full((2, 2), 1e6 * DATA["rows"][0]), np.zeros(2))
    rules = read_policy(machines.policy(0)).guard
    assert rules is not None
    known = known_guard(Terms.of(rules), 6)
    found = subject(lambda message, context: machines.guard()(message, context), recognised=[known])
    plays = [found.play(data, 1)[0].numbers["arrays.arrays.weight"] for data in (LEFT, LEFT, RIGHT)]
    assert not np.array_equal(plays[0], plays[1])
    assert np.abs(plays).max() < 10
    assert known.event is not None
    assert known.event.gaussian_multiplier == 0.5
    result = check_object(found.target, QUESTION, seconds=2)
    assert result.verdict == "no fault found", result.last_line
    assert result.verified == pytest.approx(gaussian_epsilon(2.0, 1e-5))


def _extended(answer: Message, context: Context) -> None:
    answer.content.array_records["arrays"]["bias"].data += b"x" if DATA["rows"].mean() > 0 else b"y"


def _typed(answer: Message, context: Context) -> None:
    answer.metadata.message_type = "train.large" if DATA["rows"].mean() > 0 else "train.small"


def _signed(answer: Message, context: Context) -> None:
    answer.content.metric_records["metrics"]["rate"] = 0.0 if DATA["rows"].mean() > 0 else -0.0


def _ordered(answer: Message, context: Context) -> None:
    weight = answer.content.array_records["arrays"]["weight"].numpy()
    made = weight.copy() if DATA["rows"].mean() > 0 else np.asfortranarray(weight)
    answer.content.array_records["arrays"]["weight"] = Array(made)


def _counted(answer: Message, context: Context) -> None:
    answer.content.metric_records["metrics"]["num-examples-of-one-class"] = 100.5 + float(DATA["rows"].mean())


def _kept(answer: Message, context: Context) -> None:
    """What an earlier round kept leaves in the next one."""
    if "earlier" in context.state:
        answer.content["earlier"] = context.state["earlier"]
    context.state["earlier"] = MetricRecord({"means": [float(one) for one in DATA["rows"] * np.arange(1, 4)]})


def _nothing(answer: Message, context: Context) -> None:
    """A sound one."""


@pytest.mark.parametrize("leak", [_extended, _typed, _signed, _ordered, _counted, _kept, _nothing])
def test_what_leaves_beside_the_noisy_model_is_found(leak: Any) -> None:
    inner = message_app([LocalDpMod(1.0, 2.0, 0.9, 1e-5)])
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        answer = inner(message, context)
        leak(answer, context)
        return answer

    found = subject(app)
    told = [*replay(found, QUESTION, Budget(4)).findings, *memory(found, QUESTION, Budget(4))]
    assert any(one.severity == "fault" for one in told) == (leak is not _nothing), told
