"""Bare Flower ClientApps as targets: their model, their data and their mods are found, whatever they are called."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.clientapp import ClientApp

from fedpriv.checking.checks import check_object
from fedpriv.checking.findings import Finding
from fedpriv.checking.flower_apps import AppSubject, Asked, models, parts_of, recognises, run_config
from fedpriv.checking.replay import replay
from fedpriv.checking.subject import Budget, Claim, Question

CLAIM = Claim(4.4, 1e-5, adjacency="replace-one", unit="client")
QUESTION = Question(claim=CLAIM, trials=400)

#: A client whose update is clipped to 1 and gets noise of deviation 2, beside what a test puts in.
CLIENT = """
import numpy as np
from flwr.app import ArrayRecord, Array, MetricRecord, RecordDict, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
app = ClientApp({mods})
begin = ArrayRecord({{"w": Array(np.zeros(4))}})

@app.train({own})
def train(message, context):
    rows = np.random.default_rng(50 + context.node_config["partition-id"]).standard_normal((12, 4))
    start = message.content["arrays"]["w"].numpy()
    move = rows.mean(0) - start
    move = move / max({least}, np.linalg.norm(move))
    sent = start + move + np.random.normal(0, {deviation}, 4)
    metrics = {metrics}
    return Message(RecordDict({{"arrays": ArrayRecord({{"w": Array(sent)}}), "metrics": MetricRecord(metrics)}}),
                   reply_to=message)
{more}
"""
SOUND = {"mods": "", "own": "", "least": "1.0", "deviation": "2.0", "metrics": "{'num-examples': 12}", "more": ""}


def app_of(text: str, file: Path | None = None) -> ClientApp:
    module = types.ModuleType("a_project")
    if file is not None:
        vars(module)["__file__"] = str(file)
    exec(text, vars(module))
    (app,) = (one for one in vars(module).values() if isinstance(one, ClientApp))
    return app


def client(**other: str) -> ClientApp:
    return app_of(CLIENT.format(**{**SOUND, **other}))


def found_in(app: ClientApp, question: Question = QUESTION) -> list[Finding]:
    subject = recognises(app, question)
    assert isinstance(subject, AppSubject)
    return [*subject.notes, *replay(subject, question, Budget(3)).findings]


def faults(app: ClientApp, question: Question = QUESTION) -> set[str]:
    return {one.name for one in found_in(app, question) if one.severity == "fault"}


EVALUATES = """
@app.evaluate()
def evaluate(message, context):
    rows = np.random.default_rng(50 + context.node_config["partition-id"]).standard_normal((12, 4))
    return Message(RecordDict({"metrics": MetricRecord({"accuracy": float(rows.mean())})}), reply_to=message)
"""


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({}, set()),
        ({"deviation": "1.0"}, {"moves-more-than-claimed"}),
        ({"metrics": "{'a': float(rows.std())}"}, {"number-without-noise"}),
        ({"metrics": "{'num-examples': int((rows[:, 0] > 0).sum())}"}, {"number-without-noise"}),
        ({"metrics": "{'where': context.node_config['partition-id']}"}, set()),
        ({"more": EVALUATES}, {"metrics-bare"}),
    ],
)
@pytest.mark.rotates(3)
def test_faults_of_a_bare_app_are_found_and_a_sound_one_passes(other: dict[str, str], found: set[str]) -> None:
    assert faults(client(**other)) == found


def test_an_update_that_is_not_clipped_moves_beyond_any_noise() -> None:
    app = app_of(CLIENT.format(**SOUND).replace("move = move / max(1.0, np.linalg.norm(move))", ""))
    assert faults(app) & {"moves-more-than-claimed", "unbounded-sensitivity"}


#: Rows and targets of a client: drawn, read from elsewhere, and read in an order that is drawn.
REGRESSION = {
    "drawn": "rows, wanted = own.standard_normal((12, 4)), own.standard_normal(12)",
    "read": "rows, wanted = ALL[part], WANTED[part]",
    "shuffled": "order = own.permutation(12); rows, wanted = ALL[part][order], WANTED[part][order]",
}
ELSEWHERE = """
ALL = np.random.default_rng(3).standard_normal((10, 12, 4))
WANTED = ALL @ np.array([1.0, -2.0, 0.5, 1.0]) + np.arange(10.0)[:, None]
"""


def regression(data: str, clip: str = "move / max(1.0, np.linalg.norm(move))", deviation: str = "2.0") -> ClientApp:
    text = CLIENT.format(**{**SOUND, "deviation": deviation, "more": ELSEWHERE})
    drawn = 'rows = np.random.default_rng(50 + context.node_config["partition-id"]).standard_normal((12, 4))'
    own = 'part = context.node_config["partition-id"]; own = np.random.default_rng(50 + part)'
    for before, after in {
        drawn: f"{own if data != 'read' else own.partition(';')[0]}; {REGRESSION[data]}",
        "move = rows.mean(0) - start": "move = rows.T @ (wanted - rows @ start)",
        "move = move / max(1.0, np.linalg.norm(move))": f"move = {clip}",
    }.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    return app_of(text)


@pytest.mark.parametrize("data", REGRESSION)
def test_a_regression_with_half_of_the_noise_is_refuted_and_a_sound_one_is_not(data: str) -> None:
    """Two data sets with the same rows and opposite targets, or a model between what two clients want."""
    assert faults(regression(data)) == set()
    assert faults(regression(data, deviation="1.0")) == {"moves-more-than-claimed"}
    assert faults(regression(data, clip="move")) & {"moves-more-than-claimed", "unbounded-sensitivity"}


@pytest.mark.parametrize("data", REGRESSION)
def test_a_drawn_order_of_rows_is_no_data(data: str) -> None:
    assert ("data-of-partitions" in {one.name for one in found_in(regression(data))}) == (data != "drawn")


def test_a_claim_about_examples_is_not_refuted_by_rows_drawn_number_by_number() -> None:
    one = Question(claim=Claim(4.4, 1e-5, adjacency="replace-one", unit="example"), trials=400)
    text = CLIENT.format(**{**SOUND, "deviation": "0.5"}).replace("rows.mean(0)", "np.clip(rows, -1, 1).mean(0)")
    drawn = 'np.random.default_rng(50 + context.node_config["partition-id"]).standard_normal((12, 4))'
    own = 'own = np.random.default_rng(50 + context.node_config["partition-id"])'
    text = text.replace(
        f"rows = {drawn}", f"{own}; rows = np.array([[own.normal() for _ in range(4)] for _ in range(12)])"
    )
    assert faults(app_of(text), one) == set()
    assert faults(app_of(text)) == {"moves-more-than-claimed"}


def test_a_claim_about_examples_is_not_refuted_by_all_of_them() -> None:
    """One extreme row of twelve moves the mean of clipped rows by a third; all twelve turn the update."""
    one = Question(claim=Claim(4.4, 1e-5, adjacency="replace-one", unit="example"), trials=400)
    text = CLIENT.format(**{**SOUND, "deviation": "0.5"}).replace("rows.mean(0)", "np.clip(rows, -1, 1).mean(0)")
    assert faults(app_of(text), one) == set()
    assert faults(app_of(text)) == {"moves-more-than-claimed"}
    count = app_of(text.replace("{'num-examples': 12}", "{'num-examples': int((rows[:, 0] > 0).sum())}"))
    assert faults(count, one) == {"number-without-noise"}  # twelve rows in both data sets


def test_an_app_that_answers_alike_everywhere_is_not_checked() -> None:
    app = app_of(CLIENT.format(**SOUND).replace('50 + context.node_config["partition-id"]', "5"))
    found = check_object(app, QUESTION, seconds=3)
    assert found.verdict == "could not check"
    assert "alike" in str(found.why_not)


def test_data_that_nobody_can_replace_are_asked_as_partitions() -> None:
    text = CLIENT.format(**SOUND)
    line = 'np.random.default_rng(50 + context.node_config["partition-id"]).standard_normal((12, 4))'
    assert line in text
    app = app_of(text.replace(line, 'np.full((12, 4), 0.1 * context.node_config["partition-id"])'))
    subject = recognises(app, QUESTION)
    assert isinstance(subject, AppSubject)
    assert [one.left for one in subject.pairs][:2] == [Asked(0), Asked(0)]
    assert [one.right for one in subject.pairs][:2] == [Asked(1), Asked(2)]
    assert "data-of-partitions" in {one.name for one in subject.notes}


def test_a_partitions_own_number_is_no_data() -> None:
    text = CLIENT.format(**{**SOUND, "metrics": "{'where': context.node_config['partition-id']}"})
    line = 'np.random.default_rng(50 + context.node_config["partition-id"]).standard_normal((12, 4))'
    app = app_of(text.replace(line, 'np.full((12, 4), 0.1 * context.node_config["partition-id"])'))
    assert faults(app) == set()


# --- mods ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["mods", "own"])
def test_mods_of_the_app_and_of_one_function_are_recognised(place: str) -> None:
    app = client(**{place: "mods=[LocalDpMod(1.0, 2.0, 0.9, 1e-5)]", "deviation": "0.0"})
    parts = parts_of(app)
    assert [type(mod).__name__ for mod in parts.mods["train"]] == ["LocalDpMod"]
    assert parts.functions["train"].__name__ == "train"
    subject = recognises(app, QUESTION)
    assert subject is not None
    assert [one.claimed for one in subject.recognised] == [0.9]


# --- model and configuration -----------------------------------------------------------------------------------


def test_models_are_found_in_every_form() -> None:
    def first(extra: str) -> dict[str, Any]:
        text = CLIENT.format(**SOUND).replace('begin = ArrayRecord({"w": Array(np.zeros(4))})', extra)
        return next(models(parts_of(app_of(text))))[1]

    assert first("arrays = [np.ones(2), np.zeros((1, 3))]")["1"].shape == (1, 3)
    assert first("def make():\n    return [np.ones(2)]")["0"].tolist() == [1.0, 1.0]
    torch = "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(2, 1)\n"
    assert list(first(torch)) == ["weight", "bias"]
    assert first("def needs(one):\n    return [np.ones(one)]") == {}


def test_an_older_client_is_asked_for_its_parameters() -> None:
    text = """
import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.app import Context
class Old(NumPyClient):
    def get_parameters(self, config):
        return [np.ones(3)]
def make(context: Context):
    return Old().to_client()
app = ClientApp(client_fn=make)
"""
    parts = parts_of(app_of(text))
    assert parts.old
    assert next(models(parts))[1]["0"].tolist() == [1.0, 1.0, 1.0]


def test_the_configuration_is_that_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.flwr.app.config]\nrate = 0.5\n[tool.flwr.app.config.a]\nb = "c"\n')
    (tmp_path / "pkg").mkdir()
    app = app_of(CLIENT.format(**SOUND), tmp_path / "pkg" / "client.py")
    assert run_config(parts_of(app)) == {"rate": 0.5, "a.b": "c"}
    assert run_config(parts_of(client())) == {}


# --- data that an app draws --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [
        "np.random.RandomState(50 + part).normal(size=(12, 4))",
        "torch.randn((12, 4), generator=torch.Generator().manual_seed(50 + part)).numpy()",
        "np.array([[own.gauss(0, 1) for _ in range(4)] for own in [random.Random(f'{part}{n}') for n in range(12)]])",
    ],
)
def test_seeded_data_of_every_generator_are_replaced(draw: str) -> None:
    text = CLIENT.format(**SOUND).replace("import numpy as np", "import numpy as np\nimport random\nimport torch", 1)
    line = 'np.random.default_rng(50 + context.node_config["partition-id"]).standard_normal((12, 4))'
    app = app_of(text.replace(line, draw.replace("part", 'context.node_config["partition-id"]')))
    subject = recognises(app, QUESTION)
    assert isinstance(subject, AppSubject)
    assert subject.draws is not None
    large, other = (subject.play(Asked(0, change=one), 1)[0].flat() for one in ("equal", "equal, opposite"))
    assert np.linalg.norm(large - other) == pytest.approx(2.0, rel=1e-6)
    own, same = (subject.play(Asked(0, change=""), 1)[0].flat() for _ in range(2))
    assert np.array_equal(own, same)


def test_noise_whose_seed_is_drawn_anew_is_no_data() -> None:
    """A generator that is seeded from the operating system in each call."""
    text = CLIENT.format(**SOUND).replace("import numpy as np", "import numpy as np\nimport secrets", 1)
    app = app_of(text.replace("np.random.normal(0,", "np.random.default_rng(secrets.randbits(128)).normal(0,"))
    subject = recognises(app, QUESTION)
    assert isinstance(subject, AppSubject)
    assert subject.draws is not None
    assert len(subject.draws.seeds) == 1
    assert faults(app) == set()
