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


def test_a_draft_names_columns_and_no_value_and_is_written_once(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(table), "decimal=comma", "target=ill"]) == 0
    text = capsys.readouterr().out
    assert "age:" in text and "weight:" in text and "column: ill" in text
    assert "71" not in text and "yes" not in text and "130" not in text
    assert main([str(table), "target=height"]) == 2 and "no such column" in capsys.readouterr().err

    out = tmp_path / "new.yaml"
    assert main([str(table), f"out={out}"]) == 0
    assert "column: ill" in out.read_text()
    assert main([str(table), f"out={out}"]) == 2
    assert "is there already" in capsys.readouterr().err


def test_a_check_says_what_a_schema_does(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(table), f"schema_file={table.parent / 'schema.yaml'}", "decimal=comma"]) == 3
    said = capsys.readouterr().out
    assert "3 rows" in said and "age: 1 of 3 rows clipped" in said
