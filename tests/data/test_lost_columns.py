"""Columns of which a schema names no cell, or few: refused or warned of, where nothing has left yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from fedpriv.__main__ import main as fedpriv_main
from fedpriv.commands import node, schema
from fedpriv.common.command_line import DONE, LOST, MISTAKE
from fedpriv.common.errors import DataError
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import DatasetConfig
from fedpriv.data.table_files import Form, draft
from fedpriv.data.table_rows import encoded_rows
from fedpriv.data.table_schema import read_schema
from fedpriv.deployment.policy_template import TEMPLATE
from fedpriv.runs.start import start_run
from fedpriv.runs.summary import lost_cells

SCHEMA = """\
target: {column: ill, task: classification, classes: [no, yes]}
columns:
  age: {range: [0, 100]}
  sex: {values: [f, m]}
"""
ROWS = 300


def table(folder: Path, lost: float = 0.0, clipped: float = 0.0, **columns: Any) -> Path:
    """A table of `ROWS` rows whose schema lies beside it; shares of the cells of sex and age are outside of it."""
    row = np.arange(ROWS)
    frame = pandas.DataFrame(
        {
            "age": np.where(row < clipped * ROWS, 1000, row % 100),
            "sex": np.where(row < lost * ROWS, "Female", np.where(row % 2, "f", "m")),
            "ill": np.where(row % 3, "no", "yes"),
            **columns,
        }
    )
    (folder / "s.yaml").write_text(SCHEMA)
    frame.to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


def checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = schema.main(["check", str(folder / "t.csv"), f"schema_file={folder / 's.yaml'}"])
    return code, "".join(capsys.readouterr())


ALL_LOST = "column sex is lost: none of 300 cells is one of the values that the schema names"
ALL_CLIPPED = "column age is lost: none of 300 cells lies in the range that the schema names"


@pytest.mark.parametrize(
    ("shares", "code", "words"),
    [
        ({"lost": 0.2, "clipped": 0.2}, DONE, "sex: 60 of 300 rows lost (of a value that the schema does not name)"),
        ({"lost": 0.21}, LOST, "WARNING: sex: 63 of 300 rows lost (of a value that the schema does not name)"),
        ({"clipped": 0.21}, LOST, "WARNING: age: 63 of 300 rows clipped to the range"),
        ({"lost": 1.0}, MISTAKE, ALL_LOST),
        ({"clipped": 1.0}, MISTAKE, ALL_CLIPPED),
    ],
)
def test_a_check_refuses_or_warns(
    shares: dict[str, float], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(tmp_path, **shares)
    found, printed = checked(tmp_path, capsys)
    assert (found, words in printed, "WARNING" in printed) == (code, True, code == LOST), printed


def test_missing_cells_are_neither_lost_nor_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = np.arange(ROWS)
    table(tmp_path, sex=np.where(row < 4, "Female", np.where(row < 20, "f", "")))
    assert checked(tmp_path, capsys) == (DONE, checked(tmp_path, capsys)[1])  # 4 of 20
    table(tmp_path, sex=np.where(row < 5, "Female", np.where(row < 20, "f", "")))
    assert checked(tmp_path, capsys)[0] == LOST
    table(tmp_path, sex=[""] * ROWS)  # nobody's is known: nothing is lost
    assert checked(tmp_path, capsys)[0] == DONE
    table(tmp_path, sex=np.where(row < 5, "Female", ""))
    assert checked(tmp_path, capsys)[0] == MISTAKE


def test_a_target_of_numbers_is_a_column_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path, ill=np.arange(ROWS) + 50)
    (tmp_path / "s.yaml").write_text(
        SCHEMA.replace("task: classification, classes: [no, yes]", "task: regression, range: [0, 40]")
    )
    assert "column ill is lost" in checked(tmp_path, capsys)[1]


@pytest.mark.parametrize(
    ("shares", "code", "words"),
    [({"lost": 1.0}, MISTAKE, ALL_LOST), ({"lost": 0.5}, LOST, "WARNING: sex: 150"), ({"lost": 0.1}, DONE, "")],
)
def test_a_node_refuses_a_lost_column_at_init_and_declare(
    shares: dict[str, float], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    table(data)
    (tmp_path / "p.yaml").write_text(TEMPLATE.replace("/var/lib/fedpriv/counter.json", f"{tmp_path}/counter.json"))
    own = [f"policy={tmp_path}/p.yaml", f"data={data}"]
    named = ["table=t.csv", f"schema_file={data}/s.yaml"]
    table(data, **shares)
    assert node.main(["init", *own, *named]) == code
    printed = capsys.readouterr()
    assert words in printed.err and (data / ".fedpriv").exists() == (code != MISTAKE)
    table(data)
    assert node.main(["declare" if code != MISTAKE else "init", *own, *([] if code != MISTAKE else named)]) == DONE
    capsys.readouterr()
    table(data, **shares)
    assert node.main(["declare", *own]) == code and words in capsys.readouterr().err


def test_a_node_in_a_run_answers_whatever_its_cells_say(tmp_path: Path) -> None:
    """A server would learn from its absence that no cell is inside; the operator has learned it at `init`."""
    table(tmp_path, lost=1.0)
    options = {"root": str(tmp_path / "t.csv"), "schema_file": str(tmp_path / "s.yaml"), "cache": str(tmp_path)}
    config = DatasetConfig.model_validate({**vars(compose(["dataset=table", *OWN]).dataset), **options})
    found = read_schema(tmp_path / "s.yaml")
    assert len(encoded_rows(config, config.root, found, on_node=True)[0]) == ROWS
    for _ in range(2):  # from the cache, too
        with pytest.raises(DataError, match="column sex is lost"):
            encoded_rows(config, config.root, found)


OWN = ["num_clients=3", "clients_per_round=3", "model=linear", "operations.report=false", "dataset.schema_file=x"]


def options_of(folder: Path, *more: str) -> list[str]:
    files = [f"dataset.root={folder}/t.csv", f"dataset.schema_file={folder}/s.yaml", f"dataset.cache={folder}"]
    return ["dataset=table", *OWN[:-1], *files, "strategy=fedavg", "num_rounds=1", *more]


def test_a_run_refuses_or_warns_its_user_and_nobody_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table(tmp_path, lost=1.0)
    assert fedpriv_main([*options_of(tmp_path), f"hydra.run.dir={tmp_path}/refused"]) == MISTAKE
    assert ALL_LOST in capfd.readouterr().err
    table(tmp_path, clipped=0.5)
    more = f"hydra.run.dir={tmp_path}/run", "operations.report=true"
    assert fedpriv_main([*options_of(tmp_path, *more)]) == DONE
    words = "WARNING: age: 150 of 300 rows clipped to the range"
    assert f"fedpriv: {words}\n" in capfd.readouterr().err
    kept = [file for file in (tmp_path / "run").rglob("*") if file.is_file() and b"150 of 300" in file.read_bytes()]
    assert not kept and (tmp_path / "run/report.html").exists()  # an exact count is in no ledger


SUMS = ["strategy=dpsum", "num_rounds=20", "strategy.server.min_replies=3", "privacy.delta=1e-4"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6])
def test_first_sums_hold_a_private_count_of_lost_cells(share: float, tmp_path: Path) -> None:
    table(tmp_path, lost=share)
    budget = "privacy.target_epsilon=8"
    summary = start_run(compose(options_of(tmp_path, *SUMS, budget, "dataset.test_fraction=0.1")), tmp_path / "run")
    (count,) = summary["lost"]
    trained = ROWS - round(0.1 * ROWS)
    assert count["column"] == "sex" and count["low"] <= share * trained <= count["high"]
    assert count["high"] - count["low"] < 0.25 * trained and count["cells"] not in (0, share * trained)
    assert ("sex: by the first rounds more than a fifth" in (summary["note"] or "")) == (share == 0.6)
    assert summary["privacy"]["verified_epsilon"] <= 8  # the same as of any other run of these options


def test_the_interval_holds_the_count_as_often_as_it_says(tmp_path: Path) -> None:
    table(tmp_path)
    found, rng, std, rows = read_schema(tmp_path / "s.yaml"), np.random.default_rng(0), 20.0, 1000.0
    place, inside = found.input_names.index("sex=other"), 0
    for _ in range(2000):
        total = np.zeros(found.num_inputs)
        total[place] = 300 + std * rng.standard_normal()
        ((count,), words) = lost_cells(found, (total, std, rows))
        inside += count["low"] <= 300 <= count["high"]
        assert (words != "") == (total[place] - 1.96 * std > 200)
    assert 0.935 < inside / 2000 < 0.965
    assert lost_cells(found, None) == lost_cells(None, (total, std, rows)) == ([], "")


HEADERS = [
    ("44,Town-gov,12\n29,Own,13\n", "'44' is a number"),
    ("P-0412,f,2024-03-17\nP-0413,m,2024-03-18\n", "'2024-03-17' is a date"),
    ("a\t1,5\nb\t2,5\n", "'1,5' is a number"),
    ("f,yes\nm,no\nf,no\n", "'f' stands again below"),
    ("sex,ill\nf,no\nm, ill \n", "'ill' stands again below"),
]


@pytest.mark.parametrize(("text", "words"), HEADERS)
def test_a_file_without_names_of_columns_is_no_schema(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match="the first line looks like a row and no names of columns") as caught:
        draft(tmp_path / "t.csv", form=Form("\t" if "\t" in text else None))
    assert words in str(caught.value) and "allowed: a first line of names" in str(caught.value)


def test_names_that_stand_nowhere_below_are_names(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(",x1,2nd visit,e\u0301t,,\n0,1,NA,été2,,\n")
    assert "x1: {range" in draft(tmp_path / "t.csv")
