"""A finished run's model of a table: `fedpriv predict` and Python give what the run measured, in the table's form."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from pyarrow import parquet

import fedpriv
from fedpriv.commands.predict import main
from fedpriv.common.errors import DataError
from fedpriv.config.compose import compose
from fedpriv.data.load import load_federated
from fedpriv.runs.start import start_run
from fedpriv.training.trained_model import TableModel, cell

PEOPLE = 60
TARGETS = {
    "classification": "target: {column: ill, task: classification, classes: ['=no', '-1', 'yes']}",
    "regression": "target: {column: stay, task: regression, range: [0, 40]}",
    "multilabel": "target: {columns: [pain, fever], task: multilabel}",
}
COLUMNS = """
columns:
  age: {range: [0, 100]}
  sex: {values: [f, m]}
  seen: {range: [2020-01-01, 2026-12-31]}
"""


def people() -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.integers(20, 90, PEOPLE) + 0.5
    seen = pandas.to_datetime("2020-02-01") + pandas.to_timedelta(rng.integers(0, 900, PEOPLE), unit="D")
    old = age > 55
    return pandas.DataFrame(
        {
            "name": [f"=p{number}, é" for number in range(PEOPLE)],
            "age": age,
            "sex": rng.choice(["f", "m", "x"], PEOPLE),
            "seen": seen.strftime("%Y-%m-%d"),
            "ill": np.where(old, "yes", np.where(age > 35, "-1", "=no")),
            "stay": age / 3,
            "pain": old.astype(int),
            "fever": [None if number % 5 == 0 else int(not one) for number, one in enumerate(old)],  # partly labelled
        }
    )


@pytest.fixture(scope="module", params=TARGETS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(task, the run's folder), on a table with commas for points. Its schema file is gone afterwards."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "schema.yaml").write_text(TARGETS[request.param] + COLUMNS)
    people().to_csv(folder / "people.csv", sep=";", decimal=",", index=False)
    options = [
        f"dataset.root={folder}/people.csv",
        f"dataset.schema_file={folder}/schema.yaml",
        f"dataset.cache={folder}",
    ]
    form = ["dataset=table", "dataset.decimal=comma", f"dataset.test_root={folder}/people.csv"]
    sites = ["num_clients=2", "clients_per_round=2", "num_rounds=6", "local.batch_size=10", "local.lr=0.5"]
    config = compose([*form, *options, *sites, "strategy=fedavg", "model=linear", "operations.report=false"])
    start_run(config, folder / "run")
    (folder / "schema.yaml").unlink()
    return request.param, folder


def test_frames_columns_and_files_are_read_as_the_run_read_them(trained: tuple[str, Path]) -> None:
    task, folder = trained
    model = fedpriv.load(folder / "run").model
    frame = people()
    assert isinstance(model, TableModel)
    outputs = model.outputs(folder / "people.csv")
    dates = frame.assign(seen=pandas.to_datetime(frame["seen"]), sex=frame["sex"].astype("category"))
    for table in (frame, dates, frame[["seen", "sex", "age"]], frame.to_dict("list"), {n: frame[n] for n in frame}):
        assert torch.equal(model.outputs(table), outputs)
    predicted = model.predict(frame)
    summary = json.loads((folder / "run/summary.json").read_text())
    if task == "classification":
        assert summary["accuracy"]["final"] == float(np.mean(predicted == frame["ill"])) > 0.5
        assert torch.allclose(model.probabilities(frame).sum(1), torch.ones(PEOPLE))
    elif task == "regression":
        error = float(np.sqrt(np.mean((predicted - frame["stay"]) ** 2)))
        assert summary["metrics"]["final"]["rmse"] == pytest.approx(error, rel=1e-5)
        with pytest.raises(DataError, match="stay is a number and has no probabilities"):
            model.probabilities(frame)
    else:
        assert predicted.shape == model.probabilities(frame).shape == (PEOPLE, 2)
        assert np.mean(predicted[:, 0] == frame["pain"]) > 0.8


def test_a_table_comes_back_with_columns_more(
    trained: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, folder = trained
    capsys.readouterr()
    assert main([f"run={folder}/run", str(folder / "people.csv")]) == 0
    printed = capsys.readouterr().out
    before = (folder / "people.csv").read_text().splitlines()
    assert [line.startswith(old) for line, old in zip(printed.splitlines(), before, strict=True)] == [True] * len(
        before
    )
    found = pandas.read_csv(io.StringIO(printed), sep=";", decimal=",")
    model = fedpriv.load(folder / "run").model
    predicted = model.predict(people())
    if task == "classification":
        parts = [f"ill={name} probability" for name in model.classes]
        assert list(found.columns[-4:]) == ["ill predicted", *parts] and parts[2] == "ill=yes probability"
        told = [text.removeprefix("'") for text in found["ill predicted"].astype(str)]
        assert told == predicted.tolist() and "'=no" not in before
        shares = model.probabilities(people()).numpy()
        assert found[parts].to_numpy() == pytest.approx(shares, abs=1e-5)
        for place, name in enumerate(("=no", "-1", "yes")):
            assert torch.equal(model.probability(people(), name), model.probabilities(people())[:, place])
        with pytest.raises(DataError, match="the schema names no positive class; say of= allowed: =no, -1, yes"):
            model.probability(people())
        with pytest.raises(DataError, match="of=maybe: there is none; allowed"):
            model.probability(people(), "maybe")
    elif task == "regression":
        assert list(found.columns[-1:]) == ["stay predicted"]
        assert found["stay predicted"].to_numpy() == pytest.approx(predicted, rel=1e-4)
    else:
        assert list(found.columns[-2:]) == ["pain probability", "fever probability"]
        assert ((found["pain probability"] > 0.5).astype(int) == predicted[:, 0]).all()
    # Without the target, with a byte order mark, in other forms.
    rows = people()[["sex", "seen", "age", "name"]]
    rows.to_csv(tmp_path / "marked.csv", sep="\t", index=False, encoding="utf-8-sig")
    call = [f"run={folder}/run", f"out={tmp_path}/out.csv", "decimal=point", str(tmp_path / "marked.csv")]
    assert main(call) == 0
    assert (tmp_path / "out.csv").read_bytes().startswith("\ufeffsex\tseen".encode())
    assert len(pandas.read_csv(tmp_path / "out.csv", sep="\t")) == PEOPLE
    assert main(call) == 2 and "out.csv: is there already" in capsys.readouterr().err
    rows.to_parquet(tmp_path / "rows.parquet")
    assert main([f"run={folder}/run", str(tmp_path / "rows.parquet"), f"out={tmp_path}/more.parquet"]) == 0
    more = parquet.read_table(tmp_path / "more.parquet")
    assert more.num_rows == PEOPLE and more.column_names[:4] == list(rows.columns)
    assert len(more.column_names) > 4


def test_what_is_no_table_for_it_is_told_in_one_line(
    trained: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, folder = trained
    if task != "classification":
        return
    run, good = f"run={folder}/run", people().to_csv(sep=";", decimal=",", index=False)
    files: dict[str, tuple[str, str]] = {
        "none.csv": ("name;sex;seen\np;f;2020-01-01\n", "has no column age, which the schema names"),
        "text.csv": ("age;sex;seen\nold;f;2020-01-01\n", "column age, row 1: 'old' is not a number"),
        "twice.csv": ("age;age;sex;seen\n1;1;f;2020-01-01\n", "has the column age twice"),
        "empty.csv": ("", "the first line is empty"),
        "rows.csv": ("age;sex;seen\n", "has no rows"),
        "again.csv": (good.replace("name;", "ill predicted;", 1), "has a column ill predicted already"),
        "bad.parquet": ("PAR1", "out"),
    }
    for name, (text, words) in files.items():
        (tmp_path / name).write_text(text)
        assert main([run, str(tmp_path / name)]) == 2
        told = capsys.readouterr().err
        assert words in told and told.count("\n") == 1, told
    for call, words in (
        ([run, "nowhere.csv"], "nowhere.csv: cannot be read"),
        ([run, "a.csv", "b.csv"], "one table at a time"),
        ([run, str(folder / "people.csv"), "decimal=dot"], "decimal=dot: allowed"),
        ([run, str(folder / "people.csv"), f"out={tmp_path}/no/out.csv"], "cannot be written"),
    ):
        assert main(call) == 2
        told = capsys.readouterr().err
        assert words in told and told.count("\n") == 1, told


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (3, "a table is a DataFrame"),
        ([1, 2], "a table is a DataFrame"),
        ({"age": [1.0]}, "the table: has no column sex"),
        ({"age": [1.0], "sex": ["f"], "seen": [[1]]}, "column seen is list"),
        ({"age": [1.0, "x"], "sex": ["f"] * 2, "seen": [None] * 2}, "column age, row 2: 'x' is not a number"),
        ({"age": 1.0, "sex": ["f"], "seen": [None]}, "column age"),
        ({"age": [1.0, 2.0], "sex": ["f"], "seen": ["2020-01-01"]}, "its columns have 1, 2 rows"),
        ({"age": [], "sex": [], "seen": []}, "has no rows"),
        ({"age": [float("inf")], "sex": ["f"], "seen": ["2020-01-01"]}, "row 1: inf is an infinite number"),
        (pandas.DataFrame([[1, 2, 3, 4]], columns=["age", "age", "sex", "seen"]), "has the column age twice"),
    ],
)
def test_what_is_no_table_in_python(trained: tuple[str, Path], table: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        fedpriv.load(trained[1] / "run").model.outputs(table)
    assert "\n" not in str(caught.value)


def test_cells_of_ours_are_no_formulas() -> None:
    assert [cell(text) for text in ("=1+1", "@SUM(A1)", "+a", "-a", "\tx", "-1", "+2.5", "-1,5", "no", "", "a=b")] == [
        "'=1+1", "'@SUM(A1)", "'+a", "'-a", "'\tx", "-1", "+2.5", "-1,5", "no", "", "a=b",
    ]  # fmt: skip


def test_a_run_on_pictures_takes_no_options_of_tables(capsys: pytest.CaptureFixture[str], run: Any) -> None:
    folder = run("num_rounds=1")
    assert main([f"run={folder}", "a.png", "decimal=comma"]) == 2
    assert "decimal=comma: of a table" in capsys.readouterr().err


def test_the_built_in_table_is_used_like_ones_own(tmp_path: Path) -> None:
    config = compose(["experiment=hospitals", "num_rounds=2", "operations.report=false"])
    start_run(config, tmp_path / "run")
    model, data = fedpriv.load(tmp_path / "run").model, load_federated(config).dataset
    assert model.schema.digest == data.schema.digest  # type: ignore[union-attr]
    assert model.classes == ("benign", "malignant")
