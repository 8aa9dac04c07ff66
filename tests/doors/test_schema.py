"""`fedpriv schema`: a draft holds nothing of the rows, and a check says what a run would do to them."""

from __future__ import annotations

import json
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


def test_a_word_that_is_nearly_a_command_is_no_file(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekc", str(table)]) == 2
    assert "COMMAND=chekc: allowed: a table's FILE, check, doctor, fill; did you mean check?" in capsys.readouterr().err


def test_a_draft_says_which_columns_have_the_other_decimal_sign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.csv").write_text("age;dose;ill\n18,5;1;yes\n20,25;2;no\n")
    assert main([str(tmp_path / "d.csv")]) == 0
    assert "#   age: numbers, if the draft is made with decimal=comma\n" in capsys.readouterr().out
    assert main([str(tmp_path / "d.csv"), "decimal=comma"]) == 0
    assert "if the draft is made" not in capsys.readouterr().out


def test_a_check_says_what_a_schema_does(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(table), f"schema_file={table.parent / 'schema.yaml'}", "decimal=comma"]) == 3
    said = capsys.readouterr().out
    assert "3 rows" in said and "age: 1 of 3 rows clipped" in said


def statement(table: Path, schema: str, name: str, *form: str) -> Path:
    (table.parent / f"{name}.yaml").write_text(schema)
    out = table.parent / f"{name}.json"
    assert main(["check", str(table), f"schema_file={table.parent / name}.yaml", f"statement={out}", *form]) in (
        0,
        2,
        3,
    )
    return out


def test_a_doctor_names_what_sites_differ_in(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = SCHEMA.replace("no, yes", '"no", "yes"')
    first = statement(table, said, "one", "decimal=comma")
    same = statement(table, said.replace("[18, 100]", "[18.0, 1e2]"), "two", "decimal=comma")
    assert not any(cell in first.read_text() for cell in ("71,5", "130;", "clipped", "rows"))
    assert main(["doctor", str(first), str(same)]) == 0
    assert "all schemas and columns are the same" in capsys.readouterr().out

    lines = said.splitlines(keepends=True)
    turned = statement(table, "".join([*lines[:3], lines[4], lines[3], *lines[5:]]), "turned", "decimal=comma")
    assert main(["doctor", str(first), str(turned)]) == 1
    assert f"{turned}: order of columns is not as in {first}" in capsys.readouterr().out

    other = statement(table, said.replace("200", "250").replace("refuse", "indicator"), "three", "decimal=comma")
    (table.parent / "few.csv").write_text("age;ill\n71;yes\n")
    few = statement(table.parent / "few.csv", said, "four")
    capsys.readouterr()
    assert main(["doctor", str(first), str(same), str(other), str(few)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{few}: has no column weight",
        f"{other}: column weight is not as in {first}",
        f"{other}: missing is not as in {first}",
    ]


def test_a_doctor_reads_lost_cells_off_a_private_count(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = statement(table, SCHEMA.replace("no, yes", '"no", "yes"'), "one", "decimal=comma")
    asked = table.parent / "asked"
    asked.mkdir()
    lost = {"question": "count:sex:other", "values": [1196.4], "low": [1190.0], "high": [1203.0]}
    count = {"question": "count", "values": [3300.2], "low": [3290.0], "high": [3310.0]}
    (asked / "summary.json").write_text(json.dumps({"answers": [count, lost]}))
    assert main(["doctor", str(said), str(said), f"ask={asked}"]) == 0
    assert "sex: 1196 (1190 to 1203) of 3300 rows are of a value" in capsys.readouterr().out
    (asked / "summary.json").write_text(json.dumps({"answers": [count]}))
    assert main(["doctor", str(said), str(said), f"ask={asked}"]) == 2
    assert "must have asked count:COLUMN:other" in capsys.readouterr().err
    for wrong, words in (([str(said)], "at least two"), ([str(said), str(table)], "must be a file of `schema check")):
        assert main(["doctor", *wrong]) == 2
        assert words in capsys.readouterr().err
