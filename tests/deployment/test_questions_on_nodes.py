"""Questions on nodes: the line `queries:` of a policy says what is answered; a question has no other way in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from deployed import codes, refused
from hospital_nodes import POLICY, Hospitals

from fedpriv.common.errors import OptionError
from fedpriv.config.remote import compose_remote, compose_remote_text
from fedpriv.deployment.gate import model_size, would_refuse
from fedpriv.deployment.policy import read_policy

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


@pytest.fixture
def network(tmp_path: Path) -> Asked:
    found = Asked(tmp_path)
    found.allow()
    return found


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
