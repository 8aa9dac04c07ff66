"""strategy=ask in runs: answers, intervals, persons, what it costs, and what is refused."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import re
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import fedpriv
from fedpriv.__main__ import main
from fedpriv.attacks.release_audit import audit_mechanism
from fedpriv.client.build import make_client
from fedpriv.common.errors import DataError, OptionError, RunFolderError
from fedpriv.config.compose import compose
from fedpriv.config.question_words import ask_options
from fedpriv.data.asked import KEPT, MOST_VECTORS, PARTS, Asks, add_units
from fedpriv.data.load import at_most_each, load_federated
from fedpriv.data.survival import LifeTable
from fedpriv.data.table_schema import read_schema
from fedpriv.privacy.gaussian_dp import gaussian_mu
from fedpriv.runs.planning import with_target
from fedpriv.runs.start import start_run
from fedpriv.training import trained_model
from fedpriv.training.trained_model import TableModel, load_model, scorer
from tools import statistics_figure

SCHEMA: dict[str, Any] = {
    "target": {"column": "ill", "task": "classification", "classes": ["no", "yes"]},
    "columns": {"age": {"range": [0, 100]}, "weight": {"range": [0, 200]}, "sex": {"values": ["f", "m"]}},
}
FORMS = ("ddgauss", "skellam", "central", "local")
ALL = ("count", "sum:weight", "mean:age", "variance:age", "histogram:sex", "histogram:age:4", "quantiles:age:0.25:0.75",
       "covariance:age:weight", "table:sex:ill", "top:sex:1",
       "linear:weight:age:sex", "survival:age:ill:90:6")  # fmt: skip


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
    known = [name != "d" for name in table["sex"]]
    design = np.stack([np.ones(240), age, [name == "m" for name in table["sex"]]], axis=1)[known]
    assert value["linear:weight:age:sex"] == pytest.approx(np.linalg.lstsq(design, weight[known])[0], rel=0.01)
    died = np.array([one == "yes" for one in table["ill"]], int)
    life_table = LifeTable(90.0, 6).vectors(age, died).sum(axis=0)
    assert value["survival:age:ill:90:6"] == pytest.approx(LifeTable(90.0, 6).answer(life_table, 0)["values"], abs=1e-3)
    assert "far too narrow" in found["covariance:age:weight"]["remarks"][0]
    assert found[""]["asked"] == {"replied": 3} and found[""]["accuracy"]["final"] is None


@pytest.mark.parametrize("form", FORMS)
def test_intervals_hold_the_truth_and_the_price_is_the_targets(form: str, tmp_path: Path) -> None:
    noisy = ("privacy.target_epsilon=2", f"strategy.client.form={form}", "privacy.delta=1e-4")
    found = answers(tmp_path, ("count", "histogram:sex", "mean:age"), options(tmp_path, rows(), *noisy))
    privacy = found[""]["privacy"]
    # The claim of sums of whole numbers is that of their paper, by Renyi orders: a tenth more.
    assert 1.9 < privacy["verified_epsilon"] <= 2 and privacy["claimed_epsilon"] == pytest.approx(
        2, rel=0.02 if form in ("central", "local") else 0.12
    )
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


@pytest.mark.parametrize(("form", "wider"), [("ddgauss", 3), ("skellam", 3), ("central", 3), ("local", math.sqrt(3))])
def test_at_one_epsilon_persons_at_three_sites_take_so_much_more_noise(form: str, wider: float, tmp_path: Path) -> None:
    widths = []
    for across in (1, 3):
        place = tmp_path / str(across)
        place.mkdir()
        noisy = (f"strategy.client.form={form}", "privacy.target_epsilon=2", f"privacy.across_sites={across}")
        found = answers(place, ("count",), options(place, rows(240, persons=60), *noisy, schema=PERSONS))
        privacy = found[""]["privacy"]
        assert 1.95 < privacy["verified_epsilon"] <= 2 and privacy.get("across_sites", 1) == across
        exact = form in ("central", "local")
        assert privacy["claimed_epsilon"] == pytest.approx(2, rel=0.02 if exact else 0.12)
        widths.append(found["count"]["high"][0] - found["count"]["low"][0])
    assert widths[1] / widths[0] == pytest.approx(wider, rel=0.04)


def test_sampling_errors_hold_persons_whose_rows_at_two_sites_are_alike(tmp_path: Path) -> None:
    quiet, errors = "strategy.client.noise_multiplier=0", []
    for across in (1, 2):
        place = tmp_path / str(across)
        place.mkdir()
        given = options(place, rows(240, persons=60), quiet, f"privacy.across_sites={across}", schema=PERSONS)
        errors.append(answers(place, ("linear:weight:age",), given)["linear:weight:age"]["errors"])
    assert errors[1] == pytest.approx([math.sqrt(2) * one for one in errors[0]], rel=1e-3)


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
def test_yes_and_no_are_asked_in_two_rounds_and_sites_see_the_same_beta(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, whole = list[Any](), Asks.at_round

    def watched(self: Asks, number: int, theta: np.ndarray) -> Any:
        now = whole(self, number, theta)
        seen.extend([now[1].vectors] if number == 2 else [])
        return now

    monkeypatch.setattr(Asks, "at_round", watched)
    table, rng = rows(900), np.random.default_rng(4)
    chance = 1 / (1 + np.exp(-(np.array(table["age"]) - 50) / 15))
    table["ill"] = np.where(rng.random(900) < chance, "yes", "no").tolist()
    given = options(tmp_path, table, f"strategy.client.form={form}", "privacy.target_epsilon=20")
    found = answers(tmp_path, ("count", "logistic:ill:age:sex", "poisson:weight:age"), given)
    one = found["logistic:ill:age:sex"]
    assert one["of"] == ["intercept", "age", "sex=m"] and one["low"][1] < 1 / 15 < one["high"][1]
    assert one["p_values"][1] < 1e-4 and found[""]["rounds"] == 2 and found[""]["privacy"]["verified_epsilon"] <= 20
    given_rows: Any = {"ill": np.array([0, 1]), "age": np.array([0.1, -0.4]), "sex": np.array([0, 1])}
    assert len(seen) == 4 and all(np.array_equal(seen[0](given_rows), vectors(given_rows)) for vectors in seen)


def test_a_regression_has_errors_and_p_values_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """summary.json, answers.csv, the terminal, the page and Python."""
    table, given = rows(600), ("privacy.target_epsilon=40", "operations.report=true")
    words = [*options(tmp_path, table, *given), f"hydra.run.dir={tmp_path}/run"]
    words.remove("operations.report=false")
    assert main(["ask", "count", "linear:weight:sex:ill", *words]) == 0
    printed = capsys.readouterr().out
    assert "; standard error " in printed and ", p " in printed and "rows without a missing value" in printed
    assert "standard error" in (tmp_path / "run/report.html").read_text()
    lines = (tmp_path / "run/answers.csv").read_text().splitlines()
    assert lines[0] == "question,of,answer,low,high,errors,p_values" and lines[1].endswith(",,") and len(lines) == 5
    asked = fedpriv.ask(table, ["linear:weight:sex:ill"], schema=SCHEMA, epsilon=40, folder=tmp_path / "other")
    one = asked["linear:weight:sex:ill"]
    assert one.of == ("intercept", "sex=m", "ill=yes") and one.errors is not None and one.p_values is not None
    assert ((one.low < one.values) & (one.values < one.high) & (one.errors > 0.5)).all() and one.p_values[0] < 1e-6


@pytest.mark.parametrize("more", [("plan=true",), ()])
def test_rows_too_few_for_the_noise_are_refused_before_anything_is_spent(
    more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*options(tmp_path, rows(12), "privacy.target_epsilon=1", *more), f"hydra.run.dir={tmp_path}/run"]
    for question, least in (("linear:weight:age:sex", 23), ("survival:age:ill:sex", 59)):
        assert main(["ask", question, *words]) == 2
        said = capsys.readouterr().err
        assert f"{question}: nothing can be said of 12 rows at this noise; allowed: at least {least} rows" in said
        assert not (tmp_path / "run/ledger.jsonl").exists()


@pytest.mark.parametrize("form", FORMS)
def test_an_audit_finds_no_more_than_is_verified(form: str) -> None:
    sizes = ("num_clients=3", "strategy.server.min_replies=3", "strategy.client.noise_multiplier=0.4")
    client = make_client(compose(["strategy=ask", "dataset=breast_cancer", *sizes, f"strategy.client.form={form}"]))
    found = audit_mechanism(client, 1, delta=1e-4, trials=8_000, confidence=0.999, seed=3)
    assert 0.2 * found.verified < found.audit.epsilon_lower <= found.verified
    assert (
        found.claimed is not None and 0.97 * found.verified <= found.claimed <= 1.12 * found.verified
    )  # by Renyi orders


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
        (["logistic:ill:age", "num_rounds=1"], "num_rounds=1: logistic:ill:age asks again near what"),
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


def test_a_schema_for_questions_alone_needs_no_target(tmp_path: Path) -> None:
    """Every column may be asked about, cells may be missing in any, and answers are those of a schema with a target."""
    table = rows() | {"age": ["", *rows()["age"][1:]]}
    whole = {"columns": SCHEMA["columns"] | {"ill": {"values": ["no", "yes"]}}}
    asked = ("count", "mean:age", "histogram:ill", "logistic:ill:age")
    silent = ("privacy.target_epsilon=1e6", "num_rounds=2", "strategy.client.form=central")
    found = answers(tmp_path, asked, options(tmp_path, table, *silent, schema=whole))
    assert found["count"]["values"] == pytest.approx([240], abs=0.1)
    assert found["mean:age"]["values"] == pytest.approx([np.mean(table["age"][1:])], abs=0.1)
    assert found["histogram:ill"]["values"][1] == pytest.approx(table["ill"].count("yes"), abs=0.1)
    given = options(tmp_path, rows(), schema=whole)
    for method in ("fedavg", "dpsum", "moments"):
        with pytest.raises(OptionError, match="has no target, which a model predicts; allowed: strategy=ask"):
            start_run(compose([f"strategy={method}", "clients_per_round=3", *given]), tmp_path / method)


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


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ("privacy.target_epsilon=5", "privacy.target_epsilon=5: 1 is given already"),
        ("++privacy.target_epsilon=5", "privacy.target_epsilon=5: 1 is given already"),
        ("privacy={target_epsilon: 5}", "privacy.target_epsilon=5: 1 is given already"),
        ("~privacy.target_epsilon=1", "privacy.target_epsilon=null: 1 is given already"),
        ("privacy={delta: 0.1}", "privacy.delta=0.1: 1e-05 is given already"),
    ],
)
def test_questions_have_one_price(more: str, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """R's call writes epsilon and delta as options, and its caller's options behind them: the later would count."""
    given = ["dataset=table", "privacy.target_epsilon=1", "privacy.delta=1e-05", f"hydra.run.dir={tmp_path}/run", more]
    assert main(["ask", "count", *given]) == 2
    assert wrong in capsys.readouterr().err and not (tmp_path / "run").exists()


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
    answers(tmp_path, ("quantiles:weight:0.1:0.9", "mean:weight", "mean:age"), given)
    draft = SCHEMA | {"columns": SCHEMA["columns"] | {"weight": {"range": "?"}}}
    (tmp_path / "draft.yaml").write_text(yaml.safe_dump(draft))
    words = ["schema", "fill", f"{tmp_path}/draft.yaml", f"ask={tmp_path}/run", f"out={tmp_path}/filled.yaml"]
    assert main(words) == 0
    filled = read_schema(tmp_path / "filled.yaml")
    low, high = filled.columns["weight"].range  # type: ignore[misc]
    assert 60 < low < 75 < 85 < high < 100 and filled.columns["age"].range == (0, 100)
    fills = {name: column.fill for name, column in filled.columns.items()}
    assert fills["age"] == pytest.approx(np.mean(rows()["age"]), abs=2) and low < (fills["weight"] or 0) < high
    (before,) = filled.answered
    assert before.columns == ("age", "weight") and before.epsilon > 1
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
    for low, epsilon, words in (([1, 5], 1.0, "their intervals fill half"), ([1, 9], None, "infinite")):
        summary["answers"][0] |= {"low": low, "high": [low[0] + 1.5, 10]}
        summary["privacy"]["verified_epsilon"] = epsilon
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


# --- whose rows are counted -----------------------------------------------------------------------------------


def person_table(missing: float) -> dict[str, list[Any]]:
    """300 rows of 70 persons with 1 to 9 rows each."""
    rng = np.random.default_rng(3)
    table = rows(300)
    persons = np.sort(np.concatenate([np.arange(70), rng.choice(70, 230, p=np.linspace(1, 9, 70) / 350)]))
    gone = rng.random((3, 300)) < missing
    for name, cells in zip(("age", "weight", "sex"), gone, strict=True):
        table[name] = ["" if empty else cell for cell, empty in zip(table[name], cells, strict=True)]
    return table | {"patient": [f"p{number:02d}" for number in persons]}


def truths(table: dict[str, list[Any]], weight: np.ndarray) -> dict[str, np.ndarray]:
    """The answers to `ALL`, from the cells; weight [n]: of each row."""
    number = {name: np.array([math.nan if x == "" else x for x in table[name]], float) for name in ("age", "weight")}
    sex, ill = np.array(table["sex"]), np.array(table["ill"])
    age, kilos = number["age"], number["weight"]

    def mean(values: np.ndarray) -> float:
        known = ~np.isnan(values)
        return float((weight * values)[known].sum() / weight[known].sum())

    known = ~np.isnan(age)
    order = np.argsort(age[known])
    ranks = np.cumsum(weight[known][order]) / weight[known].sum()
    both = np.where(np.isnan(age + kilos), math.nan, 1.0)
    a, k = age * both, kilos * both
    sexes = ["f", "m", "d"]
    return {
        "count": np.array([weight.sum()]),
        "sum:weight": np.array([np.nansum(weight * kilos)]),
        "mean:age": np.array([mean(age)]),
        "variance:age": np.array([mean(age**2) - mean(age) ** 2]),
        "histogram:sex": np.array([weight[sex == name].sum() for name in sexes]),
        "histogram:age:4": np.histogram(age[known], 4, (0, 100), weights=weight[known])[0],
        "quantiles:age:0.25:0.75": age[known][order][np.searchsorted(ranks, (0.25, 0.75))],
        "covariance:age:weight": np.array([mean(x * y) - mean(x) * mean(y) for x, y in ((a, a), (a, k), (k, k))]),
        "table:sex:ill": np.array([weight[(sex == s) & (ill == i)].sum() for s in sexes for i in ("no", "yes")]),
        "top:sex:1": np.array([weight[sex == name].sum() for name in sexes]),
    }


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("cap", [None, 1, 3, 20])
@pytest.mark.parametrize("unit", ["row", "person", "nobody"])
def test_every_answer_is_that_of_the_rows_that_count_or_is_refused(
    unit: str, cap: int | None, missing: float, tmp_path: Path
) -> None:
    """Question kinds x unit x cap x missing cells, at an epsilon of a million: near the truth, or refused."""
    table = person_table(missing)
    given = ["privacy.target_epsilon=1000000", "strategy.client.form=central", "num_rounds=2"]
    given += [] if unit == "nobody" else [f"privacy.unit={unit}"]
    given += [] if cap is None else [f"privacy.rows_per_person={cap}"]
    schema = SCHEMA if unit == "nobody" else PERSONS
    if unit != "person" and cap is not None:
        with pytest.raises(OptionError, match=f"privacy.rows_per_person={cap}: .*allowed: null"):
            answers(tmp_path, ALL, options(tmp_path, table, *given, schema=schema))
        return
    found = answers(tmp_path, ALL, options(tmp_path, table, *given, schema=schema))
    _, person, number = np.unique(table["patient"], return_inverse=True, return_counts=True)
    weight = np.ones(300)
    if unit == "person" and cap is None:
        weight = 1 / number[person]
    elif cap is not None:
        weight = np.zeros(300)
        weight[at_most_each(person, cap, found[""]["config"]["seed"] if "config" in found[""] else 0)] = 1
    for question, true in truths(table, weight).items():
        values = np.array(found[question]["values"])
        room = 0.02 * np.abs(true).max() + (1.5 if question.startswith("quantiles") else 0.05)
        assert np.abs(values - true).max() < room, (question, values, true)


# --- quantiles in rounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_range_a_thousand_times_too_wide_is_zoomed_into(form: str, tmp_path: Path) -> None:
    table = rows(600)
    wide = SCHEMA | {"columns": SCHEMA["columns"] | {"age": {"range": [0, 100_000]}, "weight": {"range": [0, 200]}}}
    given = options(tmp_path, table, "privacy.target_epsilon=20", f"strategy.client.form={form}", schema=wide)
    found = answers(tmp_path, ("quantiles:age:0.25:0.5", "count"), given)
    true = np.quantile(table["age"], (0.25, 0.5), method="inverted_cdf")
    one = found["quantiles:age:0.25:0.5"]
    low, high = np.array(one["low"]), np.array(one["high"])
    assert (low <= true).all() and (true <= high).all() and (high - low).max() < 25 < 100_000 / 512
    assert found["count"]["values"] == pytest.approx([600], abs=6) and "told apart to" in one["remarks"][0]
    assert found[""]["rounds"] == 2 and found[""]["privacy"]["verified_epsilon"] <= 20
    lines = (tmp_path / "run/ledger.jsonl").read_text()
    assert '"round":2' in lines or form == "central"


def test_sites_and_whoever_answers_see_the_same_bins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges that a site takes and those of the answer differ in no bit, with noise."""
    seen: list[np.ndarray] = []
    whole = Asks.at_round

    def watched(self: Asks, number: int, theta: np.ndarray) -> Any:
        now = whole(self, number, theta)
        seen.extend(one.bins.edges for one in now if number == 3 and one.bins is not None)
        return now

    monkeypatch.setattr(Asks, "at_round", watched)
    given = options(tmp_path, rows(), "privacy.target_epsilon=3", "num_rounds=3")
    answers(tmp_path, ("mean:age", "quantiles:weight:0.1:0.5"), given)
    assert len(seen) == 4 and all(np.array_equal(seen[0], edges) for edges in seen)  # of three sites and the answer


def test_a_filled_range_holds_the_intervals_or_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = {"weight": {"range": [0, 1000], "step": 0.01}}
    given = options(
        tmp_path, rows(600), "privacy.target_epsilon=20", schema=SCHEMA | {"columns": SCHEMA["columns"] | weight}
    )
    found = answers(tmp_path, ("quantiles:weight:0.1:0.9",), given)["quantiles:weight:0.1:0.9"]
    words = ["schema", "fill", f"{tmp_path}/schema.yaml", f"ask={tmp_path}/run", f"out={tmp_path}/filled.yaml"]
    assert main(words) == 0
    assert "its ranges are answers that cost epsilon 19.88" in capsys.readouterr().out
    low, high = read_schema(tmp_path / "filled.yaml").columns["weight"].range  # type: ignore[misc]
    assert low == min(found["low"]) and high == max(found["high"]) and low < np.quantile(rows(600)["weight"], 0.1) < 90
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    summary["answers"][0] |= {"low": [10, 600], "high": [500, 900]}
    (tmp_path / "run/summary.json").write_text(json.dumps(summary))
    assert main([*words[:-1], f"out={tmp_path}/other.yaml"]) == 2
    assert "weight: its quantiles lie between 10 and 900, and their intervals fill half" in capsys.readouterr().err


# --- score: the model of a finished run -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, its schema, and a run that learned from it who is ill: the old and heavy."""
    folder = tmp_path_factory.mktemp("learned")
    table = rows(600)
    risk = np.array(table["age"]) / 10 + np.array(table["weight"]) / 10 - 13
    table["ill"] = np.where(np.random.default_rng(1).random(600) < 1 / (1 + np.exp(-risk)), "yes", "no").tolist()
    given = options(
        folder, table, "strategy=fedavg", "num_rounds=5", "clients_per_round=3", "local.lr=1", "model=linear"
    )
    start_run(compose(given), folder / "model")
    return folder


def scored(folder: Path, *more: str) -> list[str]:
    own = ("dataset=table", f"dataset.root={folder}/rows.csv", f"dataset.schema_file={folder}/schema.yaml")
    return [*own, "num_clients=3", "engine=inprocess", "operations.report=false", "privacy.rng=seeded", *more]


def figures_of(answer: dict[str, Any]) -> dict[str, float]:
    return dict(zip(answer["of"], answer["values"], strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_a_runs_model_is_scored_on_all_rows_of_all_sites(form: str, learned: Path, tmp_path: Path) -> None:
    quiet = ("strategy.client.noise_multiplier=0", f"strategy.client.form={form}")
    question = f"score:{learned}/model:0.4"
    found = answers(tmp_path, ("count", question), scored(learned, *quiet))
    told, model = figures_of(found[question]), load_model(learned / "model")
    risk = model.probability(learned / "rows.csv", of="yes").numpy()
    ill = np.array([line.split(",")[-1] == "yes" for line in (learned / "rows.csv").read_text().split()[1:]])
    assert told["rows"] == pytest.approx(600, abs=0.01) and found["count"]["values"] == pytest.approx([600], abs=0.01)
    assert told["accuracy"] == pytest.approx(np.mean((risk >= 0.4) == ill), abs=1e-4)
    assert told["sensitivity"] == pytest.approx(np.mean(risk[ill] >= 0.4), abs=1e-4)
    pairs = (risk[ill][:, None] > risk[~ill]).mean()
    assert told["AUC"] == pytest.approx(pairs, abs=0.005) and pairs > 0.65
    remark = found[question]["remarks"][-1]
    digest = hashlib.sha256((learned / "model/model.safetensors").read_bytes()).hexdigest()
    assert f"SHA-256 {digest[:12]}" in remark and "was trained on rows of this table" in remark
    assert f"it asks about weights with SHA-256 {digest[:12]}" in found[""]["public_knowledge"]


def test_a_row_moves_a_score_by_no_more_than_one_whatever_the_weights(learned: Path, tmp_path: Path) -> None:
    """NaN, and logits beyond all bounds, chosen by whoever chose the model: the sums of neighbours, of rows too."""
    given = scored(learned, "strategy.client.form=central", "num_clients=1", "privacy.unit=row")
    for number, value in enumerate((math.nan, math.inf, -3e38, 1e30)):
        hostile = tmp_path / str(number)
        shutil.copytree(learned / "model", hostile)
        weights = load_file(hostile / "model.safetensors")
        save_file({name: torch.full_like(one, value) for name, one in weights.items()}, hostile / "model.safetensors")
        (hostile / "SHA256SUMS").unlink()
        config = compose(ask_options([f"score:{hostile}", *given]))
        data, task = load_federated(config), make_client(config).facts.asks
        train, model = (
            data.dataset.train,
            scorer(str(hostile / "model.safetensors"), None, read_schema(learned / "schema.yaml")),
        )
        everybody = task.total(train.inputs, train.targets, None, score=model.of_each)
        assert np.isfinite(everybody).all()
        for row in (0, 17, 599):
            kept = np.arange(600) != row
            others = task.total(train.inputs[kept], train.targets[kept], None, score=model.of_each)
            assert np.linalg.norm(everybody - others) <= 1


def test_blocks_of_rows_have_their_own_scores(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(ask_options([f"score:{learned}/model", *scored(learned, "strategy.client.form=central")]))
    train, task = load_federated(config).dataset.train, make_client(config).facts.asks
    model = scorer(*task.model, task.schema)
    whole = task.total(train.inputs, train.targets, None, score=model.of_each)
    monkeypatch.setattr("fedpriv.data.asked.BLOCK_NUMBERS", 7 * len(task.labels))
    assert np.array_equal(task.total(train.inputs, train.targets, None, score=model.of_each), whole)


def test_a_rows_score_does_not_depend_on_the_rows_beside_it(learned: Path) -> None:
    """Bits, not nearly: a hostile model has all rows at an edge of a bin."""
    model = scorer(str(learned / "model/model.safetensors"), None, read_schema(learned / "schema.yaml"))
    inputs = np.random.default_rng(2).normal(size=(257, model.schema.num_inputs)).astype(np.float32)
    whole = model.of_each(inputs)
    for part in (slice(0, 1), slice(3, 20), slice(100, 257)):
        assert np.array_equal(model.of_each(inputs[part]), whole[part])

    class Among(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows[:, :2] - rows[:, :2].mean(0)

    assert not replace(model, module=Among()).of_each(inputs)[:, 1].std()  # each row is alone


def test_a_model_that_draws_is_refused(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Drawing(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows[:, :2] + torch.rand(2)

    model = load_model(learned / "model")
    assert isinstance(model, TableModel)
    monkeypatch.setattr(trained_model, "load_model", lambda folder: replace(model, module=Drawing()))
    with pytest.raises(RunFolderError, match="keeps something between rows, or draws"):
        scorer(str(learned / "model/model.safetensors"), None, read_schema(learned / "schema.yaml"))


def test_a_users_own_code_is_not_asked_for_scores(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may keep something of one row, by which it scores all others; nor is it loaded to find that out."""
    config = compose(["model=custom", "model.path=math.sqrt", "dataset=breast_cancer"])
    monkeypatch.setattr(trained_model, "read_config", lambda folder: config)
    monkeypatch.delattr(trained_model, "load_model")
    with pytest.raises(RunFolderError, match="model=custom: its model is a user's code"):
        scorer(str(learned / "model/model.safetensors"), None, read_schema(learned / "schema.yaml"))


def test_a_regression_is_scored_by_its_errors(tmp_path: Path) -> None:
    schema = SCHEMA | {
        "target": {"column": "weight", "task": "regression", "range": [0, 200]},
        "columns": {"age": {"range": [0, 100]}, "sex": {"values": ["f", "m"]}},
    }
    given = options(tmp_path, rows(500), schema=schema)
    start_run(
        compose([*given, "strategy=fedavg", "num_rounds=2", "clients_per_round=3", "model=linear"]), tmp_path / "model"
    )
    question = f"score:{tmp_path}/model:50"
    found = answers(tmp_path, (question,), [*given, "strategy.client.noise_multiplier=0"])
    told, model = figures_of(found[question]), load_model(tmp_path / "model")
    wrong = np.array(rows(500)["weight"]) - model.predict(tmp_path / "rows.csv")
    assert told["RMSE"] == pytest.approx(math.sqrt(np.mean(np.clip(wrong, -50, 50) ** 2)), rel=1e-3)
    assert told["bias (target less prediction)"] == pytest.approx(np.clip(wrong, -50, 50).mean(), abs=0.05)


def test_a_persons_rows_are_one_contribution_to_a_score(learned: Path, tmp_path: Path) -> None:
    schema = SCHEMA | {"unit": "patient"}
    given = options(tmp_path, rows(240, persons=60), "strategy.client.noise_multiplier=0", schema=schema)
    start_run(compose([*given[:-1], "strategy=dpsum", "num_rounds=1", "clients_per_round=3"]), tmp_path / "model")
    question = f"score:{tmp_path}/model"
    found = answers(tmp_path, (question,), given)
    assert figures_of(found[question])["rows"] == pytest.approx(60, abs=0.01)
    assert found[""]["privacy"]["unit"] == "person"


def _cut(run: Path) -> None:
    (run / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:40])


def _flip(run: Path) -> None:
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "model.safetensors").write_bytes(content)


def _personal(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"num_shared": summary["num_parameters"] - 1}))


def _another_schema(run: Path) -> None:
    facts = json.loads((run / "classes.json").read_text())
    facts["schema"]["columns"]["age"]["range"] = [0, 90]
    (run / "classes.json").write_text(json.dumps(facts))
    (run / "SHA256SUMS").unlink()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run: shutil.rmtree(run), "there is no such run folder"),
        (lambda run: (run / "model.safetensors").unlink(), "the run has not finished, or trained no model"),
        (lambda run: (run / "config.yaml").unlink(), "not a run folder"),
        (_cut, "is no safetensors file"),
        (_flip, "the model is damaged"),
        (_personal, "its clients keep layers of their own"),
        (_another_schema, r"of another schema than the rows that are asked \(age\)"),
    ],
)
def test_a_run_that_cannot_be_scored_is_refused_before_anything_is_spent(
    change: Any, words: str, learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(learned / "model", tmp_path / "model")
    change(tmp_path / "model")
    given = [f"score:{tmp_path}/model", *scored(learned), "privacy.target_epsilon=8", f"hydra.run.dir={tmp_path}/asked"]
    assert main(["ask", *given]) == 2
    said = capsys.readouterr().err
    assert re.search(words, said) and "Traceback" not in said and not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("questions", "more", "words"),
    [
        (("score:{0}/model:1.5",), (), "the threshold 1.5 must be a number between 0 and 1"),
        (("score:{0}/model", "score:{0}/model"), (), "is asked twice"),
        (("score:{0}/model", "score:{0}/other"), (), "allowed: one run in a list"),
        (("count",), ("model.weights={0}/model/model.safetensors",), "and other questions about none"),
        (("score:{0}/model",), ("model.weights={0}/rows.csv", "model.trained_on=x"), "model.weights"),
        (("score:{0}/model",), ("privacy.target_epsilon=0.02",), "nothing can be said of 600 rows at this noise"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(
    questions: tuple[str, ...], more: tuple[str, ...], words: str, learned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [one.format(learned) for one in (*questions, *more)]
    own = [] if "target_epsilon" in str(more) else ["privacy.target_epsilon=8"]
    assert main(["ask", *given, *scored(learned), *own, "plan=true"]) == 2
    assert words in capsys.readouterr().err


def test_a_model_that_changes_after_the_plan_is_not_scored(learned: Path, tmp_path: Path) -> None:
    shutil.copytree(learned / "model", tmp_path / "model")
    file, schema = tmp_path / "model/model.safetensors", read_schema(learned / "schema.yaml")
    with pytest.raises(RunFolderError, match="the model is another now"):
        scorer(str(file), "0" * 64, schema)
    with pytest.raises(RunFolderError, match=r"allowed: model.safetensors of a run's folder"):
        scorer(str(learned / "model/classes.json"), None, schema)


def test_a_plan_says_how_exact_a_score_will_be(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"score:{learned}/model", *scored(learned), "privacy.target_epsilon=2", "plan=true"]
    assert main(["ask", *given]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "half-widths to expect of 600 rows, half of them positive: accuracy" in said


def test_a_data_frame_is_scored_under_the_name_that_was_asked(learned: Path) -> None:
    question = f"score:{learned}/model"
    found = fedpriv.ask(learned / "rows.csv", [question], learned / "schema.yaml", 4.0, options=["privacy.rng=seeded"])
    answer = found[question]
    place = answer.of.index("AUC")
    assert 0.7 < answer.low[place] < answer.values[place] < answer.high[place] < 0.98
