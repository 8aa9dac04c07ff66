"""Schemas of tables: what a file may say, what it may not, and when two files are the same schema."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.own_options import CONF
from fedpriv.data.table_files import draft
from fedpriv.data.table_schema import MOST_BYTES, TableSchema, read_schema, schema_of

TARGET = "target: {column: diagnosis, task: classification, classes: [benign, malignant]}\n"
INPUT = "columns: {a: {range: [0, 1]}}"
TOKENS = "target: {column: a, task: next_token}\ncolumns: {a: "
#: Numbers of YAML that are none of a schema.
BASES = ("0x10", "1:30", "1_0", "0b1", "0o7", "2020-01-01")
GOOD = (
    TARGET
    + """unit: patient
columns:
  radius: {range: [0, 34]}
  visit: {range: [2020-01-01, 2020-12-31]}
  sex: {values: [f, m]}
  smokes: {values: [yes, no]}
  note: {text: hashed, dims: 16}
  ward: {ignore: true}
missing: indicator
"""
)


def read(tmp_path: Path, text: str, unfilled: bool = False) -> TableSchema:
    (tmp_path / "schema.yaml").write_text(text, encoding="utf-8")
    return read_schema(tmp_path / "schema.yaml", unfilled)


def test_inputs_follow_from_the_columns(tmp_path: Path) -> None:
    schema = read(tmp_path, GOOD)
    assert schema.num_inputs == len(schema.input_names) == 2 + 2 + 4 + 4 + 16
    assert schema.input_names[:8] == [
        "radius", "radius missing", "visit", "visit missing", "sex=f", "sex=m", "sex=other", "sex missing"
    ]  # fmt: skip
    assert schema.columns["visit"].range == (18262.0, 18627.0)  # days since 1970
    assert schema.columns["smokes"].values == ("yes", "no")  # texts, and no truth values
    assert schema.needed == ("radius", "visit", "sex", "smokes", "note", "diagnosis", "patient")


def test_two_files_that_differ_in_comments_have_one_digest(tmp_path: Path) -> None:
    digest = read(tmp_path, GOOD).digest
    assert (
        read(
            tmp_path,
            "# ours\n" + GOOD.replace("[0, 34]", "[0.0, 3.4e1]").replace("unit: patient", "unit: patient  # cm"),
        ).digest
        == digest
    )
    for changed in (GOOD.replace("34", "35"), GOOD.replace("[f, m]", "[m, f]"), GOOD.replace("indicator", "refuse")):
        assert read(tmp_path, changed).digest != digest
    lines = GOOD.splitlines(keepends=True)
    swapped = "".join([*lines[:3], lines[4], lines[3], *lines[5:]])
    assert read(tmp_path, swapped).digest != digest  # another order of inputs is another model


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TARGET, "columns: the option has no value"),
        ("target: {task: none, column: y}\n" + INPUT, "task=none has column; allowed: nothing else"),
        (TARGET + "columns: {}", "no column is an input"),
        (TARGET + "columns: {a: {ignore: true}}", "no column is an input"),
        (TARGET + "columns: {a: {range: [3, 1]}}", "[3, 1] is empty"),
        (TARGET + "columns: {a: {range: [1, 1]}}", "is empty"),
        (TARGET + "columns: {a: {range: [.nan, 1]}}", "must be a number"),
        (TARGET + "columns: {a: {range: [nan, 1]}}", "finite"),
        (TARGET + "columns: {a: {range: [-1.7e308, 1.7e308]}}", "too wide"),
        (TARGET + "columns: {a: {range: [low, high]}}", "must be a number"),
        (TARGET + "columns: {a: {range: [1, 2, 3]}}", "columns.a.range"),
        (TARGET + "columns: {a: {range: '?'}}", "has '?' for a"),
        (TARGET + "columns: {a: {values: '?'}}", "has '?' for a"),
        (TARGET + "columns: {a: {values: [x, x]}}", "stand twice: x"),
        (TARGET + "columns: {a: {values: []}}", "at least 1"),
        (TARGET + "columns: {a: {values: [x, ' y']}}", "columns.a: the value ' y' has blanks around it"),
        (TARGET + "columns: {a: {values: [x, null]}}", "columns.a.values.1=null: must be a text"),
        (TARGET + "columns: {a: {range: [0, 1], values: [x]}}", "range and values; allowed: exactly one"),
        (TARGET + "columns: {a: {}}", "none of them; allowed: exactly one"),
        (TARGET + "columns: {a: {rnge: [0, 1]}}", "there is no such option here; allowed: range, "),
        (TARGET.replace("target", "taget") + INPUT, "taget={'column'"),
        (TARGET + "columns: {a: {range: [2020-01-31, 2019-01-01]}}", "range [2020-01-31, 2019-01-01] is empty"),
        (TARGET + "columns: {a: {range: [1]}}", "columns.a.range: must be [low, high]"),
        (TARGET + "columns: {a: {range: 0-100}}", "columns.a.range: must be [low, high]"),
        (TARGET + "columns: {a: {text: hashed, dims: 4}}", "must be at least 8"),
        (TARGET + "columns: {a: {range: [0, 1]}, a: {range: [0, 2]}}", "a stands twice"),
        (TARGET + "columns: {diagnosis: {values: [benign, malignant]}}", "is the target or unit"),
        (TARGET + "unit: diagnosis\ncolumns: {a: {range: [0, 1]}}", "both target and unit"),
        (TARGET.replace("benign, ", "") + "columns: {a: {range: [0, 1]}}", "1 values; at least 2"),
        (TARGET.replace("classification", "clasification") + "columns: {a: {range: [0, 1]}}", "did you mean"),
        ("target: {column: y, task: regression}\ncolumns: {a: {range: [0, 1]}}", "allowed: column, range"),
        ("target: {column: y, task: multilabel}\ncolumns: {a: {range: [0, 1]}}", "allowed: columns"),
        (TARGET + "columns: {a: {values: [1, 1.0]}}", "values stand twice: 1 and 1.0, which mean the same"),
        (TARGET + "columns: {a: {values: [true, TRUE]}}", "values stand twice: true and TRUE"),
        (TARGET + "columns: {a: {values: [x], missing_values: [x]}}", "a: x is one of values and of missing_values"),
        (TARGET + "columns: {a: {range: [0, 1], missing_values: []}}", "0 values; at least 1"),
        (TARGET.replace("classes", "positive: c, classes") + INPUT, "positive=c is none of the classes"),
        (TARGET.replace("[benign,", "[a, benign,").replace("classes", "positive: a, classes") + INPUT, "there are 3"),
        ("target: {column: y, task: regression, range: [0, 1], positive: a}\n" + INPUT, "positive=a is none of the"),
        (TARGET + "columns: {a: {range: [0, 10], step: 0}}", "must be more than 0"),
        (TARGET + "columns: {a: {range: [0, 10], step: 3}}", "ends of the range must be multiples of step: 3"),
        (TARGET + "columns: {a: {values: [x], step: 1}}", "step needs a range; leave it out"),
        (TARGET + "columns: {a: {range: [0, 1], step: one}}", "step=one: must be"),
        *((TARGET + f"columns: {{a: {{text: hashed, dims: {number}}}}}", f"={number}: must be") for number in BASES),
        *((TARGET + f"columns: {{a: {{range: [0, 9], step: {number}}}}}", f"={number}: must be") for number in BASES),
        (TOKENS + "{text: tokens, length: 0}}", "length=0: must be at least 1"),
        (TOKENS + "{text: tokens, length: 4097}}", "length=4097: must be at most 4096"),
        (TOKENS + "{text: tokens, tokenizer: words}}", "task=next_token needs a as {text: tokens}, by bytes or a tok"),
        (TOKENS + "{text: tokens, buckets: 7}}", "buckets needs tokenizer: words; leave it out"),
        (
            TOKENS + f"{{text: tokens, sha256: '{'0' * 64}'}}}}",
            "sha256 needs a tokenizer file or an encoder; leave it out",
        ),
        (TOKENS + "{text: hashed, length: 7}}", "length needs text: tokens or encoder; leave it out"),
        (TOKENS + "{text: hashed}}", "task=next_token needs a"),
        (TOKENS + "{text: tokens}, b: {range: [0, 9]}}", "models read nothing else; ignore the others"),
        ("a: &x [1]\nb: *x", "anchors are not allowed"),
        ("a: !!python/object/apply:os.system ['true']", "is not YAML"),
        ("- 1", "must be a mapping"),
        ("[" * 3000, "is not YAML"),
        ("", "must be a mapping"),
    ],
)
def test_a_bad_schema_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(OptionError, match=r"dataset\.schema_file") as caught:
        read(tmp_path, text)
    assert words in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_schema_that_is_no_file_or_far_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_schema(tmp_path / "absent.yaml")
    (tmp_path / "long.yaml").write_bytes(b"#" * (MOST_BYTES + 1))
    with pytest.raises(OptionError, match="at most"):
        read_schema(tmp_path / "long.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="is not YAML"):
        read_schema(tmp_path / "binary.yaml")


def test_the_shipped_schemas_are_filled_in() -> None:
    for name, inputs in (("breast_cancer", 30), ("diabetes", 12), ("practices", 11)):
        assert read_schema(CONF / "schema" / f"{name}.yaml").num_inputs == inputs


def test_a_draft_of_odd_files_can_be_filled_in(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": [1], "b": [2], "c": [[1]], "d": [b"x"], "y": ["n"]}), tmp_path / "t.parquet")
    text = (
        draft(tmp_path / "t.parquet").replace("range: '?'", "range: [0, 1]").replace("classes: '?'", "classes: [n, m]")
    )
    schema = read(tmp_path, text)  # two columns of a kind are no YAML anchor
    assert [name for name, _ in schema.inputs] == ["a", "b"] and schema.columns["c"].ignore
    (tmp_path / "t.csv").write_text("a,y,,\n1,2,,\n")  # separators at the ends of lines name no column
    text = draft(tmp_path / "t.csv")
    assert "target: {column: y, " in text
    codes = text.partition("numbers are codes: ")[2].partition("\n")[0]  # in the place of what numbers get
    filled = text.replace("task: regression, range: '?'", codes).replace("range: '?'", "range: [0, 1]")
    assert read(tmp_path, filled).target.classes == ("0", "1")
    parquet.write_table(pa.table({}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="has no columns"):
        draft(tmp_path / "t.parquet")


def test_a_draft_holds_names_and_types_and_no_value(tmp_path: Path) -> None:
    (tmp_path / "patients.csv").write_text("patient,age,seen,note,ill\n7,41.5,2020-02-03,sore throat,yes\n8,77,,,no\n")
    text = draft(tmp_path / "patients.csv")
    assert not any(value in text for value in ("41", "77", "2020", "sore", "yes"))
    schema = schema_of(__import__("yaml").safe_load(text), "draft", unfilled=True)
    kinds = {name: column.kind for name, column in schema.columns.items()}
    assert kinds == {"patient": "range", "age": "range", "seen": "range", "note": "values"}
    assert schema.target.column == "ill" and schema.target.task == "classification"
    assert sorted(schema.unfilled) == ["age", "ill", "note", "patient", "seen"]
    with pytest.raises(OptionError, match="has '\\?' for"):
        read(tmp_path, text)
    with pytest.raises(OptionError, match="no such column"):
        draft(tmp_path / "patients.csv", target="illness")
