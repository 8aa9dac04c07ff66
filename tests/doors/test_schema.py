"""`fedpriv schema`: a draft holds nothing of the rows, and a check says what a run would do to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.commands.schema import main

ROWS = "age;weight;ill\n71,5;80;yes\n20;95;no\n130;60;yes\n"
SCHEMA = """
target: {column: ill, task: classification, classes: [no, yes]}
columns:
  age: {range: [18, 100]}
  weight: {range: [30, 200]}
missing: refuse
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "schema.yaml").write_text(SCHEMA.replace("no, yes", '"no", "yes"'))
    (tmp_path / "people.csv").write_text(ROWS)
    return tmp_path / "people.csv"


def test_a_draft_names_columns_and_no_value(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(table), "decimal=comma", "target=ill"]) == 0
    text = capsys.readouterr().out
    assert "age:" in text and "weight:" in text and "column: ill" in text
    assert "71" not in text and "yes" not in text and "130" not in text


def test_a_draft_is_written_once(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new.yaml"
    assert main([str(table), f"out={out}"]) == 0
    assert "column: ill" in out.read_text()
    assert main([str(table), f"out={out}"]) == 2
    assert "is there already" in capsys.readouterr().err


def test_a_check_says_what_a_schema_does(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(table), f"schema_file={table.parent / 'schema.yaml'}", "decimal=comma"]) == 3
    said = capsys.readouterr().out
    assert "3 rows" in said and "age: 1 of 3 rows clipped" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.csv"], "there is no such file or folder"),
        (["FILE", "FILE"], "is too much"),
        (["check", "FILE"], "schema_file"),
        (["fill", "FILE"], "ask: is missing; --help shows the usage"),
        (["FILE", "decimal=dot"], "allowed: point, comma"),
        (["FILE", "target=height"], "no such column"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], words: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(table) if each == "FILE" else each for each in arguments]) == 2
    assert words in capsys.readouterr().err
