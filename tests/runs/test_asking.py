"""strategy=ask in runs: answers, intervals, persons, what it costs, and what is refused."""

from __future__ import annotations

import importlib
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import fedpriv
from fedpriv.__main__ import main
from fedpriv.attacks.release_audit import audit_mechanism
from fedpriv.client.build import make_client
from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.compose import compose
from fedpriv.config.question_words import ask_options
from fedpriv.data.asked import KEPT, MOST_VECTORS, PARTS, Asks, add_units
from fedpriv.data.load import load_federated
from fedpriv.data.table_schema import read_schema
from fedpriv.privacy.gaussian_dp import gaussian_mu
from fedpriv.runs.planning import with_target
from fedpriv.runs.start import start_run
from tools import statistics_figure

SCHEMA: dict[str, Any] = {
    "target": {"column": "ill", "task": "classification", "classes": ["no", "yes"]},
    "columns": {"age": {"range": [0, 100]}, "weight": {"range": [0, 200]}, "sex": {"values": ["f", "m"]}},
}
FORMS = ("ddgauss", "skellam", "central", "local")
ALL = ("count", "sum:weight", "mean:age", "variance:age", "histogram:sex", "histogram:age:4", "quantiles:age:0.25:0.75",
       "covariance:age:weight", "table:sex:ill", "top:sex:1")  # fmt: skip


def rows(number: int = 240, persons: int | None = None) -> dict[str, list[Any]]:
    rng = np.random.default_rng(0)
    found: dict[str, list[Any]] = {
        "age": rng.uniform(20, 80, number).round(2).tolist(),
        "weight": rng.normal(80, 10, number).round(2).tolist(),
        "sex": rng.choice(["f", "m", "d"], number).tolist(),
        "ill": rng.choice(["no", "yes"], number).tolist(),
    }
    return found if persons is None else found | {"patient": [f"p{n % persons}" for n in range(number)]}


def options(folder: Path, table: dict[str, list[Any]], *more: str, schema: dict[str, Any] = SCHEMA) -> list[str]:
    """Of a run on a table of one's own, three sites, without noise where nothing else is said."""
    lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (folder / "schema.yaml").write_text(yaml.safe_dump(schema))
    own = ("dataset=table", f"dataset.root={folder}/rows.csv", f"dataset.schema_file={folder}/schema.yaml")
    return [*own, "num_clients=3", "engine=inprocess", "operations.report=false", "privacy.rng=seeded", *more]


def answers(folder: Path, questions: tuple[str, ...], given: list[str]) -> dict[str, Any]:
    """question -> its entry in the summary, and under "" the summary."""
    start_run(compose(ask_options([*questions, *given])), folder / "run")
    summary = json.loads((folder / "run/summary.json").read_text())
    return {one["question"]: one for one in summary["answers"]} | {"": summary}


@pytest.mark.parametrize("form", FORMS)
def test_without_noise_answers_are_those_of_all_rows(form: str, tmp_path: Path) -> None:
    table = rows()
    quiet = ("strategy.client.noise_multiplier=0", f"strategy.client.form={form}")
    found = answers(tmp_path, ALL, options(tmp_path, table, *quiet))
    age, weight = np.array(table["age"]), np.array(table["weight"])
    value = {question: np.array(found[question]["values"]) for question in ALL}
    assert value["count"] == pytest.approx([240], abs=0.01)
    assert value["sum:weight"] == pytest.approx([weight.sum()], rel=1e-4)
    assert value["mean:age"] == pytest.approx([age.mean()], rel=1e-4)
    assert value["variance:age"] == pytest.approx([age.var()], rel=1e-3)
    assert value["histogram:sex"] == pytest.approx([table["sex"].count(name) for name in "fmd"], abs=0.05)
    assert value["histogram:age:4"] == pytest.approx(np.histogram(age, 4, (0, 100))[0], abs=0.05)
    assert value["quantiles:age:0.25:0.75"] == pytest.approx(np.quantile(age, (0.25, 0.75)), abs=1)
    assert value["covariance:age:weight"] == pytest.approx(
        np.cov(age, weight, bias=True)[[0, 0, 1], [0, 1, 1]], abs=0.2
    )
    cells = [
        sum(pair == (s, i) for pair in zip(table["sex"], table["ill"], strict=True))
        for s in "fmd"
        for i in ("no", "yes")
    ]
    assert value["table:sex:ill"] == pytest.approx(cells, abs=0.05)
    assert found[""]["asked"] == {"replied": 3} and found[""]["accuracy"]["final"] is None


@pytest.mark.parametrize("form", FORMS)
def test_intervals_hold_the_truth_and_the_price_is_the_targets(form: str, tmp_path: Path) -> None:
    noisy = ("privacy.target_epsilon=2", f"strategy.client.form={form}", "privacy.delta=1e-4")
    found = answers(tmp_path, ("count", "histogram:sex", "mean:age"), options(tmp_path, rows(), *noisy))
    privacy = found[""]["privacy"]
    assert 1.9 < privacy["verified_epsilon"] <= 2 and privacy["claimed_epsilon"] == pytest.approx(2, rel=0.02)
    assert (privacy["unit"], privacy["adjacency"]) == ("example", "add-or-remove-one")
    low, high = found["count"]["low"][0], found["count"]["high"][0]
    assert low < found["count"]["values"][0] < high and abs(found["count"]["values"][0] - 240) < 1.5 * (high - low)
    lines = (tmp_path / "run/answers.csv").read_text().splitlines()
    assert lines[0] == "question,of,answer,low,high" and len(lines) == 1 + 1 + 3 + 1


def test_the_interval_is_as_wide_as_the_noise(tmp_path: Path) -> None:
    """Of a count: 2 * 1.96 standard deviations of three sites' noises, and of one trusted server's."""
    for form, noises in (("ddgauss", 3), ("local", 3), ("central", 1)):
        given = ("strategy.client.noise_multiplier=4", f"strategy.client.form={form}")
        place = tmp_path / form
        place.mkdir()
        one = answers(place, ("count",), options(place, rows(), *given))["count"]
        width = one["high"][0] - one["low"][0]
        assert width == pytest.approx(2 * 1.96 * 4 * math.sqrt(noises) / KEPT, rel=0.08)


# --- persons -----------------------------------------------------------------------------------------------

PERSONS = SCHEMA | {"unit": "patient"}


@pytest.mark.parametrize("form", ["ddgauss", "central", "local"])
def test_a_persons_rows_are_one_contribution(form: str, tmp_path: Path) -> None:
    """Twice the rows of each person change neither epsilon, nor noise, nor answers."""
    once = rows(240, persons=60)
    twice = {name: column * 2 for name, column in once.items()}
    told = []
    for number, table in enumerate((once, twice)):
        place = tmp_path / str(number)
        place.mkdir()
        given = options(place, table, f"strategy.client.form={form}", "privacy.target_epsilon=2", schema=PERSONS)
        told.append(answers(place, ("count", "mean:age"), given))
    one, two = told
    assert one["count"]["values"] == pytest.approx(two["count"]["values"], abs=1e-3)
    assert one["mean:age"]["values"] == pytest.approx(two["mean:age"]["values"], abs=1e-3)
    assert one["count"]["low"][0] < 60 + 20 and one["count"]["high"][0] > 60 - 20
    for found in told:
        privacy = found[""]["privacy"]
        assert privacy["unit"] == "person" and 1.8 < privacy["verified_epsilon"] <= 2
    assert (tmp_path / "0/run/ledger.jsonl").read_text() == (tmp_path / "1/run/ledger.jsonl").read_text()
    assert '"unit":"example"' not in (tmp_path / "0/run/ledger.jsonl").read_text()


def test_with_a_cap_rows_of_a_person_count_as_rows(tmp_path: Path) -> None:
    table = rows(240, persons=60)
    given = ("strategy.client.noise_multiplier=0", "privacy.rows_per_person=4")
    found = answers(tmp_path, ("count", "sum:weight"), options(tmp_path, table, *given, schema=PERSONS))
    assert found["count"]["values"] == pytest.approx([240], abs=0.05)
    assert found["sum:weight"]["values"] == pytest.approx([sum(table["weight"])], rel=1e-3)


def asks(questions: tuple[str, ...], folder: Path, *more: str) -> tuple[Asks, Any]:
    config = compose(ask_options([*questions, *options(folder, rows(240, persons=60), *more, schema=PERSONS)]))
    found = make_client(config).facts.asks
    assert found is not None
    return found, load_federated(config).dataset.train


@pytest.mark.parametrize("more", [(), ("privacy.rows_per_person=3",)])
def test_no_row_and_no_person_moves_a_sum_by_more_than_one(more: tuple[str, ...], tmp_path: Path) -> None:
    """Brute force over persons left out, with values that no file could give; blocks cut no person in two."""
    found, data = asks(ALL, tmp_path, *more)
    inputs, targets, unit = np.array(data.inputs), np.array(data.targets), np.array(data.unit)
    rng = np.random.default_rng(0)
    inputs[:80] = rng.choice([-1e30, -1, 0, 1, 7.5, 1e30, np.nan, np.inf], inputs[:80].shape)
    for own in (None, unit):
        whole = found.total(inputs, targets, own)
        places = np.arange(len(targets)) if own is None else own
        moved = []
        for one in np.unique(places)[:60]:
            kept = places != one
            moved.append(
                np.linalg.norm(whole - found.total(inputs[kept], targets[kept], None if own is None else own[kept]))
            )
        assert max(moved) < 1 - 2**-12 and max(moved) > 0.5


def test_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, data = asks(ALL, tmp_path)
    inputs, targets, unit = np.array(data.inputs), np.array(data.targets), np.array(data.unit)
    before = [found.total(inputs, targets, own) for own in (None, unit)]
    monkeypatch.setattr("fedpriv.data.asked.BLOCK_NUMBERS", 7 * found.num_outputs)
    for own, whole in zip((None, unit), before, strict=True):
        assert np.array_equal(found.total(inputs, targets, own), whole)


def test_a_row_that_is_no_row_adds_nothing(tmp_path: Path) -> None:
    """What the contract of releases takes for an example without effect."""
    found, data = asks(("count", "mean:age"), tmp_path)
    inputs, targets = np.array(data.inputs), np.array(data.targets)
    rest = found.total(inputs[5:], targets[5:], None)
    inputs[:5, 0] = math.nan
    assert np.array_equal(found.total(inputs, targets, None), rest)


def test_exact_sums_clip_and_forget_what_is_not_finite() -> None:
    total = np.zeros(3, np.int64)
    add_units(
        total, np.array([[3.0, 0.0, 4.0], [0.0, 0.5, 0.0], [math.nan, 1, 1], [math.inf, 0, 0], [1e300, 0, -1e300]])
    )
    expected = np.array([0.6 + math.sqrt(0.5), 0.5, 0.8 - math.sqrt(0.5)]) * KEPT
    assert total / PARTS == pytest.approx(expected, abs=1e-8)


def test_the_room_beside_a_sum_holds_what_rounding_adds() -> None:
    """The proof at the top of `unit_sums`, in exact numbers: d up to 2^16, n sqrt(d) up to 2^39."""
    length = Fraction(KEPT) * (1 + (2**16 + 4) * Fraction(1, 2**53))
    to_float64 = Fraction(2**39, 2**52)
    assert length + to_float64 < 1 - Fraction(1, 2**12)
    assert MOST_VECTORS * int(PARTS) < 2**63


# --- what it costs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["ddgauss", "skellam"])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 8.0])
def test_the_noise_of_a_sum_is_at_most_1_15_times_the_exact_gaussians(form: str, epsilon: float) -> None:
    """All reply, nobody colludes: the standard deviation of the sum's noise over that of one Gaussian, exactly."""
    own = ("num_clients=5", "strategy.server.min_replies=5", f"strategy.client.form={form}", "privacy.delta=1e-4")
    config = with_target(compose(["strategy=ask", "dataset=breast_cancer", *own, f"privacy.target_epsilon={epsilon}"]))
    std = config.strategy.options.noise_multiplier * math.sqrt(5) / KEPT  # type: ignore[attr-defined]
    assert 1.0 < std * gaussian_mu(epsilon, 1e-4) < 1.15


def test_the_figures_tool_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_figure, "DRAWS", 400)
    form, epsilon, *ratios = statistics_figure.row("ddgauss", 1.0)
    assert (form, epsilon) == ("ddgauss", "1")
    assert all(0.9 < float(ratio.split()[0]) < 1.3 for ratio in ratios)


@pytest.mark.parametrize("form", FORMS)
def test_an_audit_finds_no_more_than_is_verified(form: str) -> None:
    sizes = ("num_clients=3", "strategy.server.min_replies=3", "strategy.client.noise_multiplier=0.4")
    client = make_client(compose(["strategy=ask", "dataset=breast_cancer", *sizes, f"strategy.client.form={form}"]))
    found = audit_mechanism(client, 1, delta=1e-4, trials=8_000, confidence=0.999, seed=3)
    assert 0.2 * found.verified < found.audit.epsilon_lower <= found.verified
    assert found.claimed is not None and found.claimed == pytest.approx(found.verified, rel=0.03)


# --- the command, Python, a schema ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["median:age"], "there is no such question"),
        (["mean:height"], "the schema has no column height"),
        (["mean:sex"], "sex is no column of numbers with a range; these are: age, weight"),
        (["mean:ill"], "ill is no column of numbers with a range"),
        ([], "nothing is asked"),
        (["strategy.client.questions=[]"], "must not be empty"),
        (["count", "strategy.client.questions=[count]"], "questions are given twice"),
        (["count", "strategy=dpsum"], "of a question it is ask"),
        (["count", "privacy.target_epsilon=0"], "privacy.target_epsilon=0"),
        (["count", "model=linear"], "strategy=ask trains no model"),
        (["count", "strategy.server.optimizer=adam"], "the noisy sum is the answer"),
        (["count", "count"], "is asked twice"),
    ],
)
def test_a_mistake_is_said_in_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word for word in options(tmp_path, rows()) if not word.startswith("privacy.rng")]
    assert main(["ask", *words, *given, f"hydra.run.dir={tmp_path}/run"]) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_range_that_is_open_is_refused(tmp_path: Path) -> None:
    open_range = SCHEMA | {"columns": SCHEMA["columns"] | {"age": {"range": "?"}}}
    with pytest.raises(OptionError, match="has '\\?' for age"):
        answers(tmp_path, ("mean:age",), options(tmp_path, rows(), schema=open_range))


def test_the_command_asks_and_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [word for word in options(tmp_path, rows()) if not word.startswith(("privacy.rng", "operations"))]
    assert main(["ask", "count", "top:sex:2", *given, f"hydra.run.dir={tmp_path}/run"]) == 0
    printed = capsys.readouterr().out
    assert "95 % interval" in printed and "ask on table, 3 of 3 clients answered" in printed
    assert sum(line.startswith("top:sex:2") for line in printed.splitlines()) == 2 and "accuracy" not in printed
    page = (tmp_path / "run/report.html").read_text()
    assert "<h2>Answers</h2>" in page and "top:sex:2" in page and "<h2>Learning</h2>" not in page
    config = compose(ask_options(["count", *given]))
    assert config.privacy.rng == "secure" and config.strategy.options.min_replies == 3


def test_a_data_frame_is_asked(tmp_path: Path) -> None:
    pandas = importlib.import_module("pandas")
    table = rows()
    found = fedpriv.ask(
        pandas.DataFrame(table), ["count", "mean:age"], SCHEMA, 100, delta=1e-4, folder=tmp_path / "run"
    )
    assert found["count"].value == pytest.approx(240, abs=3) and list(found) == ["count", "mean:age"]
    assert found["mean:age"].low[0] < np.mean(table["age"]) + 2 and 90 < (found.run.verified_epsilon or 0) <= 100
    assert found.table.shape == (2, 5)
    sites = ["num_clients=3", "strategy.client.form=ddgauss"]
    other = fedpriv.ask(table, ["count"], SCHEMA, 1, options=sites, folder=tmp_path / "sites")
    assert other.run.summary["privacy"]["observer"] == "secure-sum"
    with pytest.raises(OptionError, match="must be a list"):
        fedpriv.ask(table, "count", SCHEMA, 1)
    with pytest.raises(DataError, match="a table is a DataFrame"):
        fedpriv.ask(3, ["count"], SCHEMA, 1)
    with pytest.raises(OptionError, match="nothing is asked"):
        fedpriv.ask(table, [], SCHEMA, 1)


def test_ranges_of_a_schema_come_from_private_quantiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = options(tmp_path, rows(), "strategy.client.noise_multiplier=0.2", "privacy.max_epsilon=1000")
    answers(tmp_path, ("quantiles:weight:0.1:0.9", "count"), given)
    draft = SCHEMA | {"columns": SCHEMA["columns"] | {"weight": {"range": "?"}}}
    (tmp_path / "draft.yaml").write_text(yaml.safe_dump(draft))
    words = ["schema", "fill", f"{tmp_path}/draft.yaml", f"ask={tmp_path}/run", f"out={tmp_path}/filled.yaml"]
    assert main(words) == 0
    filled = read_schema(tmp_path / "filled.yaml")
    low, high = filled.columns["weight"].range  # type: ignore[misc]
    assert 60 < low < 75 < 85 < high < 100 and filled.columns["age"].range == (0, 100)
    (before,) = filled.answered
    assert before.columns == ("weight",) and before.epsilon > 1
    again = [word.replace("schema.yaml", "filled.yaml") for word in options(tmp_path, rows())]
    training = ["strategy=dpsum", "model=linear", "num_rounds=1", "clients_per_round=3"]
    start_run(compose([*training, *again]), tmp_path / "after")
    privacy = json.loads((tmp_path / "after/summary.json").read_text())["privacy"]
    assert privacy["spent_before"][0]["epsilon"] == before.epsilon
    assert any("answers to questions that cost epsilon" in reason for reason in privacy["reasons"])
    assert main(words) == 2 and "is there already" in capsys.readouterr().err
    assert main(["schema", "fill", f"{tmp_path}/draft.yaml", f"ask={tmp_path}/after"]) == 2
    assert "has no answer quantiles" in capsys.readouterr().err
    assert main(["schema", "fill", f"{tmp_path}/draft.yaml", f"ask={tmp_path}/nowhere"]) == 2


def test_a_filled_schema_says_all_that_was_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ranges that were asked within were answers too, and cost what they cost."""
    first = {"columns": ["weight"], "epsilon": 0.7, "delta": 1e-5, "unit": "example"}
    first |= {"adjacency": "add-or-remove-one", "observer": "secure-sum"}
    noisy = ("strategy.client.noise_multiplier=0.2", "privacy.max_epsilon=1000")
    given = options(tmp_path, rows(), *noisy, schema=SCHEMA | {"answered": [first]})
    answers(tmp_path, ("quantiles:weight:0.1:0.9",), given)
    for name, before in (("draft", []), ("known", [first])):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(SCHEMA | {"answered": before}))
        out = tmp_path / f"{name}-filled.yaml"
        assert main(["schema", "fill", f"{tmp_path}/{name}.yaml", f"ask={tmp_path}/run", f"out={out}"]) == 0
        assert read_schema(out).answered[0].epsilon == 0.7 and len(read_schema(out).answered) == 2
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    for values, epsilon, words in (([100000.1, 100000.4], 1.0, "its quantiles are all"), ([1, 2], None, "infinite")):
        summary["answers"][0]["values"], summary["privacy"]["verified_epsilon"] = values, epsilon
        (tmp_path / "run/summary.json").write_text(json.dumps(summary))
        assert main(["schema", "fill", f"{tmp_path}/draft.yaml", f"ask={tmp_path}/run"]) == 2
        assert words in capsys.readouterr().err


def test_answers_are_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers(tmp_path, ("count",), options(tmp_path, rows(), "strategy.client.noise_multiplier=1"))
    for words in (["predict", f"run={tmp_path}/run", f"{tmp_path}/rows.csv"], ["attack", f"run={tmp_path}/run"]):
        assert main(words) != 0
        said = capsys.readouterr().err
        assert "strategy=ask trains no model; its answers are in answers.csv" in said.splitlines()[-1]
        assert [line for line in said.splitlines()[:-1] if "WARNING: sex:" not in line] == []


def test_pictures_have_a_class_to_ask_about(tmp_path: Path) -> None:
    few = ("num_clients=4", "strategy.client.noise_multiplier=0", "engine=inprocess", "operations.report=false")
    found = answers(tmp_path, ("count", "histogram:class"), [*few])
    data = load_federated(compose(["strategy=fedavg", "num_clients=4", "clients_per_round=4"])).dataset.train
    assert found["count"]["values"] == pytest.approx([len(data)], rel=1e-3)
    assert found["histogram:class"]["values"] == pytest.approx(np.bincount(data.targets), rel=1e-2)


def test_the_servers_model_changes_no_answer(tmp_path: Path) -> None:
    """A client answers the run's questions, whatever vector a server sends."""
    from fedpriv.common.messages import Request
    from fedpriv.engines.worker import Worker

    config = compose(ask_options(["count", "mean:age", *options(tmp_path, rows())]))
    worker = Worker(config)
    told = []
    for theta in (torch.zeros(3), torch.full((3,), 1e20)):
        client = worker.client(0, None)  # type: ignore[arg-type]
        steps = client.steps(theta, None, Request(1, 0, {}))
        with pytest.raises(StopIteration) as end:
            next(steps)
        told.append(end.value.value.value)
    assert torch.equal(*told)
