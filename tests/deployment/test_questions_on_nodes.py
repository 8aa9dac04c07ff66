"""Questions on nodes: the line `queries:` of a policy says what is answered; a question has no other way in."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml
from deployed import codes, refused
from hospital_nodes import POLICY, Hospitals

from fedpriv.common.errors import OptionError
from fedpriv.config.remote import compose_remote, compose_remote_text
from fedpriv.data.table_files import Form
from fedpriv.data.table_schema import read_schema
from fedpriv.deployment.gate import model_size, would_refuse
from fedpriv.deployment.policy import read_policy
from fedpriv.training.trained_model import TableModel, load_model

QUERIES: dict[str, Any] = {
    "kinds": ["count", "mean", "histogram"],
    "columns": ["mean radius", "diagnosis"],
    "share": 0.4,
}
ASKED = "count,mean:mean radius,histogram:diagnosis"


class Asked(Hospitals):
    """Hospitals that answer some questions and train with nobody."""

    def asking(self, questions: str = ASKED, run: str = "run", noise: float = 4.0) -> str:
        own = self.overrides(run=run).replace("strategy=dpsum", "strategy=ask").replace("model=linear ", "")
        own = own.replace("strategy.server.lr=3.0", "").replace("noise_multiplier=8.0", f"noise_multiplier={noise}")
        return f"{own} 'strategy.client.questions=[{questions}]'"

    def allow(self, queries: dict[str, Any] | None = QUERIES, **more: Any) -> None:
        extra = {} if queries is None else {"queries": queries}
        for number in range(self.count):
            self.write_policy(number, POLICY | {"strategies": ["ask", "dpsum"]} | extra | more)


class Scored(Asked):
    """Each node has its own copy of a run's folder, under a name of its own, and approves of its model."""

    def learn(self) -> None:
        self.allow()
        self.serve(self.overrides(run="learn"))
        for number in range(self.count):
            shutil.copytree(
                self.folder / "learn", self.copy(number), ignore=shutil.ignore_patterns(".owner", "private")
            )
            # a copy from elsewhere has no folder of this user's
        self.approve()

    def copy(self, number: int) -> Path:
        return self.folder / f"models-{number}"

    def digest_of(self, folder: Path) -> str:
        return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()

    def approve(self, **queries: Any) -> None:
        for number in range(self.count):
            file = self.copy(number) / "model.safetensors"
            own = {"sha256": self.digest_of(self.folder / "learn"), "file": str(file), "trained_on": "the hospitals"}
            allowed = {"kinds": ["count", "score"], "columns": ["diagnosis"], "share": 0.9} | queries
            policy = POLICY | {"strategies": ["ask", "dpsum"], "queries": allowed, "weights": [own]}
            self.write_policy(number, policy)

    def scoring(self, question: str = "score:learn", run: str = "run", noise: float = 1.0) -> str:
        model = f"model.weights={self.folder}/learn/model.safetensors model.trained_on=hospitals"
        asked = self.asking(question, run=run, noise=noise)
        return f"{asked} {model} model.weights_sha256={self.digest_of(self.folder / 'learn')}"


class Untaught(Asked):
    """Their schema names no target: it is for questions alone."""

    def write_data(self) -> None:
        super().write_data()
        file = self.folder / "schema.yaml"
        said = yaml.safe_load(file.read_text())
        classes = said.pop("target")["classes"]
        file.write_text(yaml.safe_dump(said | {"columns": said["columns"] | {"diagnosis": {"values": classes}}}))
        self.digest = read_schema(file).digest


@pytest.fixture
def network(tmp_path: Path) -> Asked:
    found = Asked(tmp_path)
    found.allow()
    return found


def test_nodes_with_a_schema_for_questions_alone(tmp_path: Path) -> None:
    network = Untaught(tmp_path)
    network.allow()
    assert codes(network.serve(network.asking())) == ["sent"] * network.count * 5
    with pytest.raises(OptionError, match="has no target"):
        network.serve(network.overrides(run="learn"))


def test_nodes_answer_in_a_secure_sum(network: Asked) -> None:
    grid = network.serve(network.asking())
    assert codes(grid) == ["sent"] * network.count * 5
    summary = json.loads((network.folder / "run/summary.json").read_text())
    assert (summary["privacy"]["unit"], summary["privacy"]["observer"]) == ("example", "secure-sum")
    assert 0.3 < summary["privacy"]["verified_epsilon"] < 2
    assert [network.booked(number) for number in range(network.count)] == [1] * network.count
    count, mean, histogram = summary["answers"]
    assert count["question"] == "count" and mean["of"] == ["mean radius"] and histogram["of"] == ["benign", "malignant"]
    rows = sum(network.counts)
    assert abs(count["values"][0] - rows) < 6 * 4.0 * 3  # six standard deviations: 3 nodes, 3 questions
    assert count["low"][0] < count["values"][0] < count["high"][0]
    assert summary["asked"] == {"replied": network.count}


def near(truth: float, ends: tuple[float, float]) -> bool:
    """Nodes draw noise that nobody repeats: within three times a 95 % interval."""
    low, high = ends
    return abs(truth - (low + high) / 2) < 3 * (high - low) / 2


def test_nodes_score_their_own_copy_of_a_model_in_a_secure_sum(tmp_path: Path) -> None:
    network = Scored(tmp_path)
    network.learn()
    before = network.booked(0)
    assert codes(network.serve(network.scoring())) == ["sent"] * network.count * 5
    summary = json.loads((network.folder / "run/summary.json").read_text())
    (answer,) = summary["answers"]
    assert answer["question"] == "score:learn" and summary["privacy"]["observer"] == "secure-sum"
    told = dict(zip(answer["of"], zip(answer["low"], answer["high"], strict=True), strict=True))
    model, rows = load_model(network.folder / "learn"), sum(network.counts)
    assert isinstance(model, TableModel) and near(rows, told["rows"])
    right = 0
    for number in range(network.count):
        file = network.table(number)
        table = replace(model, form=Form(None, "," if number % 2 else ".")).predict(file)
        right += int((pandas.read_csv(file, sep=None, engine="python")["diagnosis"] == table).sum())
    assert near(right / rows, told["accuracy"])
    assert told["accuracy"][1] - told["accuracy"][0] < 0.5
    assert [network.booked(number) for number in range(network.count)] == [before + 1] * network.count
    assert network.digest_of(network.folder / "learn")[:12] in answer["remarks"][-1]


def test_the_same_score_twice_is_paid_twice(tmp_path: Path) -> None:
    network = Scored(tmp_path)
    network.learn()
    spent = []
    for run in ("one", "two"):
        network.serve(network.scoring(run=run, noise=3.0))
        with network.ledger(0).held() as ledger:
            spent.append(len(ledger.releases()))
    assert spent[1] == spent[0] + 1


@pytest.mark.parametrize("change", ["kind", "column", "digest", "schema", "folder", "weights", "code"])
def test_a_model_that_a_node_does_not_approve_is_not_scored(
    change: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is booked, and a code is all that leaves."""
    network = Scored(tmp_path)
    network.learn()
    text, words = network.scoring(), ""
    if change == "kind":
        network.approve(kinds=["count"])
        words = "score:learn: queries.kinds allows count"
    if change == "column":
        network.approve(columns=["mean radius"])
        words = "score:learn: queries.columns does not name diagnosis"
    for number in range(network.count):
        copy = network.copy(number)
        if change == "digest":
            network.write_policy(number, POLICY | {"strategies": ["ask"], "queries": QUERIES | {"kinds": ["score"]}})
            words = "allowed: none: the policy has no weights"
        if change == "schema":
            facts = json.loads((copy / "classes.json").read_text())
            facts["schema"]["columns"]["mean radius"]["range"] = [0, 1000]
            (copy / "classes.json").write_text(json.dumps(facts))
            (copy / "SHA256SUMS").unlink()
            words = "of another schema than the rows that are asked (mean radius)"
        if change == "folder":
            (copy / "config.yaml").unlink()
            words = "not a run folder"
        if change == "weights":
            content = bytearray((copy / "model.safetensors").read_bytes())
            content[-1] ^= 1
            (copy / "model.safetensors").write_bytes(content)
            words = "is another file: its SHA-256 is"
        if change == "code":
            config = (copy / "config.yaml").read_text()
            config = re.sub(
                r"(?m)^(model:\n(?:  .*\n)*?)  name: linear\n((?:  .*\n)*?)  path: null",
                r"\1  name: custom\n\2  path: os.path.join",
                config,
            )
            (copy / "config.yaml").write_text(config)
            words = "no code that it names is imported"
    assert len(refused(network, text)) == 1 and words in caplog.text


def test_without_the_line_nothing_is_answered(network: Asked, caplog: pytest.LogCaptureFixture) -> None:
    network.allow(None)
    assert refused(network, network.asking()) == {"POLICY"}
    assert "strategy=ask: the policy has no queries" in caplog.text
    assert [network.booked(number) for number in range(network.count)] == [0] * network.count


@pytest.mark.parametrize(
    ("questions", "words"),
    [
        ("count,variance:mean radius", "variance:mean radius: queries.kinds allows count, mean, histogram"),
        ("mean:mean texture", "mean:mean texture: queries.columns does not name mean texture; allowed: mean radius"),
        ("count,histogram:mean area:5", "histogram:mean area:5: queries.columns does not name mean area"),
        ("mean:nowhere", "questions=mean:nowhere: the schema has no column nowhere"),
    ],
)
def test_what_the_line_does_not_name_is_refused(
    questions: str, words: str, network: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    if "nowhere" in questions:  # the server's own copy of the schema says so first
        with pytest.raises(OptionError, match="no column nowhere"):
            network.serve(network.asking(questions))
    else:
        assert refused(network, network.asking(questions)) == {"POLICY"}
        assert words in caplog.text
    assert network.booked(0) == 0


def test_questions_keep_to_their_share_of_the_budget(network: Asked, caplog: pytest.LogCaptureFixture) -> None:
    """Of one budget, more lists are answered where the share is larger; training may go on with the rest."""
    answered = []
    for share in (0.25, 0.5, 1.0):
        network.allow(QUERIES | {"share": share})
        before = -1
        while before < (before := network.booked(0)):
            network.serve(network.asking(run=f"ask-{share}-{before}", noise=1.8))
        answered.append(network.booked(0))
        assert f"{share:g} (queries.share) of the budget of 5 (" in caplog.text or share == 1
        if share == 0.5:
            assert set(codes(network.serve(network.overrides(run="learn")))) == {"sent"}
    refused_run = json.loads((network.folder / f"ask-1.0-{answered[2]}" / "summary.json").read_text())
    assert refused_run["answers"] == [] and "budget" in refused_run["note"]
    assert 1 <= answered[0] < answered[1] < answered[2]
    assert [network.booked(number) for number in range(network.count)] == [answered[2]] * network.count


def test_a_line_that_is_wrong_is_refused(network: Asked) -> None:
    for line, words in (
        (QUERIES | {"kinds": ["median"]}, "queries.kinds"),
        (QUERIES | {"share": 0}, "queries.share"),
        (QUERIES | {"share": 1.5}, "queries.share"),
        ({"kinds": ["count"]}, "queries.share"),
        (QUERIES | {"kinds": []}, "queries.kinds"),
    ):
        network.write_policy(0, POLICY | {"queries": line})
        with pytest.raises(OptionError, match=words):
            read_policy(network.folder / "policy-0.yaml")


def test_a_node_knows_how_many_numbers_it_is_asked_for(network: Asked, caplog: pytest.LogCaptureFixture) -> None:
    assert model_size(compose_remote_text(network.asking("count"))) == 1
    wide = "count,histogram:mean area:500"
    assert model_size(compose_remote_text(network.asking(wide))) == 501
    network.allow(QUERIES | {"columns": ["mean area"]}, limits=POLICY["limits"] | {"max_parameters": 400})
    assert refused(network, network.asking(wide)) == {"POLICY"}
    assert "model: 501 parameters, frozen ones and a backbone's among them: limits.max_parameters is 400" in caplog.text


@pytest.mark.parametrize(
    "questions",
    ["[]", "[${seed}]", "['count']", "[count", "count", "[a\\,b]", "[{a:b}]", "[choice(a)]", "[a=b]", "[a\nb]"],
)
def test_nothing_but_questions_comes_from_outside(questions: str) -> None:
    with pytest.raises(OptionError, match="cannot be set from outside"):
        compose_remote(["strategy=ask", f"strategy.client.questions={questions}"])


def test_a_plan_refuses_questions_beyond_their_share_of_the_budget(network: Asked) -> None:
    config, first = compose_remote_text(network.asking(noise=1.8)), []
    for share in (0.25, 0.5, 1.0):
        network.allow(QUERIES | {"share": share}, bundles=["b" * 64])
        (words,) = would_refuse(read_policy(network.policy(0)), config, 500)
        assert f"{share:g} (queries.share) of the budget of 5 (" in words or share == 1
        first += [int(number) for number in re.findall(r"participation (\d+) of 500", words)]
    assert 1 < first[0] < first[1] < first[2]
