"""Tables of people: files as people write them, encoded by a schema."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fedpriv.attacks.client_canaries import audit_training
from fedpriv.attacks.experiment import Experiment
from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.compose import compose
from fedpriv.data.load import load_federated
from fedpriv.data.table_files import Form
from fedpriv.data.table_rows import Encoded, check, encode_file
from fedpriv.data.table_schema import MOST_COLUMNS, schema_of
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.start import start_run

SCHEMA = schema_of(
    {
        "target": {"column": "ill", "task": "classification", "classes": ["no", "yes"]},
        "unit": "patient",
        "columns": {
            "age": {"range": [0, 100]},
            "sex": {"values": ["f", "m"]},
            "note": {"text": "hashed", "dims": 8},
            "ward": {"ignore": True},
        },
    },
    "test",
)
HEADER = "patient,age,sex,note,ill\n"


def encoded(tmp_path: Path, content: str | bytes, form: Form | None = None) -> Encoded:
    (tmp_path / "table.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    return encode_file(tmp_path / "table.csv", SCHEMA, form)


def test_cells_become_inputs_targets_and_units(tmp_path: Path) -> None:
    found = encoded(tmp_path, HEADER + 'p1,25,f,a b,no\np2,,x,,yes\np1,150,,"c, d\ne", yes \n')
    assert found.inputs[:, :2].tolist() == [[-0.5, 0], [0, 1], [1, 0]]  # scaled; missing; clipped
    assert found.inputs[:, 2:6].tolist() == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]  # f; other; missing
    assert np.linalg.norm(found.inputs[:, 6:], axis=1) == pytest.approx([1, 0, 1])
    assert found.targets is not None and found.targets.tolist() == [0, 1, 1]
    assert found.unit is not None and found.unit.tolist() == [0, 1, 0]
    assert found.remarks == (
        "age: 1 of 3 rows clipped to the range, 1 missing",
        "sex: 1 of 3 rows lost (of a value that the schema does not name), 1 missing",
    )


SAME = [("p1", "41.5", "f", "no"), ("p2", "7", "m", "yes")]


@pytest.mark.parametrize(
    ("separator", "decimal", "encoding", "mark"),
    [(",", ".", "utf-8", ""), (";", ",", "utf-8", "\ufeff"), ("\t", ",", "latin-1", ""), ("|", ".", "utf-16", "")],
)
def test_one_table_is_the_same_however_it_is_written(
    tmp_path: Path, separator: str, decimal: str, encoding: str, mark: str
) -> None:
    plain = encoded(tmp_path, HEADER + "".join(f"{p},{age},{sex},grüß,{ill}\n" for p, age, sex, ill in SAME))
    lines = [separator.join(("ward", "ill", "note", "sex", "age", "patient"))]  # another order, a column more
    for person, age, sex, ill in SAME:
        lines.append(separator.join(("w", ill, "grüß", f'"{sex}"', age.replace(".", decimal), person)))
    if encoding == "utf-16":
        with pytest.raises(DataError, match="utf-8"):
            encoded(tmp_path, "\r\n".join(lines).encode(encoding))
        return
    form = Form(decimal=decimal, encoding=encoding)
    found = encoded(tmp_path, (mark + "\r\n".join(lines)).encode(encoding), form)
    assert np.array_equal(found.inputs, plain.inputs) and np.array_equal(found.targets, plain.targets)  # type: ignore[arg-type]


def test_numbers_that_pyarrow_reads_are_those_that_are_read_cell_by_cell(tmp_path: Path) -> None:
    """A cell that is no number makes pyarrow give up on the whole file; here it is a date in a column of its own."""
    cells = ["1", " 2 ", "-3.25", "1e1", "", "NA", " NA ", "?", "+4", "1e-320", "99.99999999999999", "0.1"]
    said = {
        "target": {"column": "y", "task": "regression", "range": [-5, 100]},
        "columns": {"a": {"range": [-5, 100]}, "d": {"range": [0, 40000]}},
    }
    found = []
    for date in ("18262", "2020-01-01"):
        rows = "".join(f'{cell},{date},1\n"{cell}",{date},1\n' for cell in cells)
        (tmp_path / "t.csv").write_text("a,d,y\n" + rows)
        found.append(encode_file(tmp_path / "t.csv", schema_of(said, "test")))
    assert found[0].inputs.tobytes() == found[1].inputs.tobytes() and found[0].remarks == found[1].remarks
    assert found[0].inputs[:, 1].sum() == 8  # cells that are missing


def test_whole_numbers_truth_values_and_dates_are_categories_too(tmp_path: Path) -> None:
    said = {
        "target": {"column": "y", "task": "regression", "range": [0, 10]},
        "columns": {"k": {"values": [1, 2]}, "b": {"values": [True, False]}, "d": {"range": ["?", "?"][:0] or "?"}},
    }
    said["columns"]["d"] = {"range": [0, 20000]}  # type: ignore[index]
    schema = schema_of(said, "test")
    days = pa.array([0, 10000], pa.int32()).cast(pa.date32())
    table = pa.table({"k": [1.0, 2.0], "b": [True, False], "d": days, "y": [0, 10]})
    parquet.write_table(table, tmp_path / "t.parquet")
    found = encode_file(tmp_path / "t.parquet", schema)
    assert found.inputs.tolist() == [[1, 0, 0, 0, 1, 0, 0, 0, -1, 0], [0, 1, 0, 0, 0, 1, 0, 0, 0, 0]]
    assert found.targets is not None and found.targets.tolist() == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HEADER + "p,3,f,,maybe\n", "column ill, row 1: 'maybe' is none of the classes"),
        (HEADER + "p,3,f,,no\np,3,f,,\n", "column ill, row 2: the target is missing"),
        (HEADER + ",3,f,,no\n", "column patient, row 1: nobody is named"),
        (HEADER + 'p,"3,5",f,,no\n', "if the comma is a decimal sign, say dataset.decimal=comma"),
        (HEADER + 'p,"1,234.5",f,,no\n', "signs for thousands are not read"),
        (HEADER + "p,=1+1,f,,no\n", "a formula's value must be in the file"),
        (HEADER + "p,inf,f,,no\n", "row 1: inf is an infinite number; allowed: finite ones"),
        (HEADER + "p,1e999,f,,no\n", "row 1: inf is an infinite number"),
        (HEADER + "p,1\u00a0234,f,,no\n", "signs for thousands are not read"),
        (HEADER + "p,3,f,,no\np,2020-01-31,f,,no\n", "row 2: '2020-01-31' is a date, and row 1 holds a number"),
        (
            HEADER + 'p,3,f,,no\np,"4,f,,no\np,5,f,,no\n',
            "row 2: 2 cells, and the first line names 5 columns; is a quote",
        ),
        (b"\x1f\x8b\x08 and then anything", "is a gzip archive; allowed: CSV and Parquet files"),
        (b"PK\x03\x04 and then anything", "is an Excel file or a zip archive; allowed"),
        (HEADER + "p,old,f,,no\n", "'old' is not a number"),
        (HEADER + "p,3,f,no\n", "row 1: 4 cells, and the first line names 5 columns"),
        (HEADER, "has no rows"),
        ("", "the first line is empty"),
        ("patient,Age,sex,note,ill\np,3,f,,no\n", "has no column age, which the schema names (did the file rename"),
        ("patient,age,age,sex,note,ill\np,3,3,f,,no\n", "has the column age twice"),
        (",".join(["patient", *(f"c{i}" for i in range(MOST_COLUMNS))]) + "\n", f"at most {MOST_COLUMNS} are allowed"),
        (HEADER.encode() + "p,3,f,ü,no\n".encode("latin-1"), "name its encoding"),
        (b"PAR1 and then nothing", "not a readable Parquet file"),
    ],
)
def test_a_bad_file_is_refused_with_its_row(tmp_path: Path, content: str | bytes, words: str) -> None:
    with pytest.raises(DataError) as caught:
        encoded(tmp_path, content)
    assert words in str(caught.value) and str(caught.value).startswith(str(tmp_path))


@pytest.mark.parametrize(("cell", "decimal"), [("1.234", ","), ("1.234,5", ","), ("1,234.5", "."), ("1,234", ".")])
def test_signs_for_thousands_are_refused_whatever_the_decimal_sign(cell: str, decimal: str, tmp_path: Path) -> None:
    content = HEADER.replace(",", ";") + f"p;{cell};f;;no\n"
    with pytest.raises(DataError, match=f"column age, row 1: '{cell}' is not a number.*thousands"):
        encoded(tmp_path, content, Form(";", decimal))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_lines_end_as_any_program_ends_them(end: str, encoding: str, tmp_path: Path) -> None:
    content = end.join([HEADER.strip(), "p,25,f,,no", "q,75,m,,yes", ""]).encode(encoding)
    assert encoded(tmp_path, content, Form(encoding=encoding)).inputs[:, 0].tolist() == [-0.5, 0.5]


def test_a_constant_target_is_said_to_whoever_holds_the_table(tmp_path: Path) -> None:
    assert encoded(tmp_path, HEADER + "p,3,f,,no\nq,4,f,,no\n").remarks == ("ill: no row is of the class yes",)


def test_rows_that_do_not_fit_into_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 100})())
    with pytest.raises(DataError, match="2 rows of 14 inputs take 0 MB, and 0 MB are free; allowed: fewer rows"):
        encoded(tmp_path, HEADER + "p,3,f,,no\nq,4,f,,no\n")


def test_missing_values_are_refused_where_the_schema_says_so(tmp_path: Path) -> None:
    said = {
        "target": {"column": "ill", "task": "classification", "classes": ["no", "yes"]},
        "columns": {"age": {"range": [0, 100]}, "sex": {"values": ["f", "m"]}},
        "missing": "refuse",
    }
    for row in ("p,NA,f,,no\n", "p,3,,,no\n"):
        (tmp_path / "t.csv").write_text(HEADER + row)
        with pytest.raises(DataError, match="row 1: a value is missing, and the schema says"):
            encode_file(tmp_path / "t.csv", schema_of(said, "test"))
    kept = {"age": {"range": [0, 100], "missing": "indicator"}, "sex": {"values": ["f", "m"]}}
    (tmp_path / "t.csv").write_text(HEADER + "p,NA,f,,no\n")
    assert encode_file(tmp_path / "t.csv", schema_of(said | {"columns": kept}, "test")).inputs.tolist() == [
        [0, 1, 1, 0, 0]
    ]


def test_a_nested_column_and_a_file_that_unpacks_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"patient": ["p"], "sex": ["f"], "note": [""], "ill": ["no"]}
    parquet.write_table(pa.table(parts | {"age": [[1.0]]}), tmp_path / "nested.parquet")
    with pytest.raises(DataError, match="column age is list"):
        encode_file(tmp_path / "nested.parquet", SCHEMA)
    table = pa.table({name: values * 100_000 for name, values in (parts | {"age": [1.0]}).items()})
    parquet.write_table(table, tmp_path / "bomb.parquet")  # a few kilobytes
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 1 << 20})())
    with pytest.raises(DataError, match="when unpacked"):
        encode_file(tmp_path / "bomb.parquet", SCHEMA)


def test_labels_of_several_columns(tmp_path: Path) -> None:
    said = {
        "target": {"columns": ["asthma", "copd"], "task": "multilabel"},
        "columns": {"age": {"range": [0, 100]}},
    }
    (tmp_path / "t.csv").write_text("age,asthma,copd\n3,1,0\n4,true,FALSE\n".replace("FALSE", "false"))
    found = encode_file(tmp_path / "t.csv", schema_of(said, "test"))
    assert found.targets is not None and found.targets.tolist() == [[1, 0], [1, 0]]
    (tmp_path / "t.csv").write_text("age,asthma,copd\n3,1,2\n")
    with pytest.raises(DataError, match="column copd, row 1: a label must be 0 or 1"):
        encode_file(tmp_path / "t.csv", schema_of(said, "test"))


def test_a_check_says_what_happens_to_the_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEADER + "p1,250,f,,no\np1,3,q,,yes\n")
    lines, warnings = check(tmp_path / "t.csv", SCHEMA)
    assert lines[0].startswith("2 rows, 1 units (patient), 14 inputs")
    assert "age: 1 of 2 rows clipped to the range" in lines and "keep it where they are" in lines[-1]
    assert len(warnings) == 2


OPTIONS = ("num_clients=2", "clients_per_round=2", "num_rounds=1", "engine=inprocess", "operations.report=false")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["dataset=breast_cancer", "partition=column", "partition.column=x"],
            r"partition\.column=x: breast_cancer has no",
        ),
        (["dataset=breast_cancer", "features=gradients"], r"features=gradients: of pictures"),
        (["dataset=diabetes", "partition=dirichlet"], r"partition=dirichlet: task=regression has no classes"),
        (["dataset=digits", "partition=column", "partition.column=x"], "only a table has columns"),
        (["dataset=table"], r"dataset\.schema_file=null"),
        (["dataset=diabetes", "strategy=pfl", "model=mlp", "dataset.auxiliary=20"], "distils class probabilities"),
    ],
)
def test_what_goes_with_no_table_is_refused(options: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        start_run(compose([*OPTIONS, *options]), tmp_path / "run")


def test_the_form_of_a_file_is_said_by_options(tmp_path: Path) -> None:
    """Semicolons, decimal commas and another encoding, through the options that docs/tables.md names."""
    (tmp_path / "schema.yaml").write_text(
        "target: {column: ill, task: classification, classes: [no, yes]}\ncolumns: {größe: {range: [0, 3]}}\n",
        encoding="utf-8",
    )
    rows = "".join(f"{n / 30:.2f};{'no' if n % 2 else 'yes'}\n".replace(".", ",") for n in range(60))
    (tmp_path / "table.csv").write_bytes(("größe;ill\n" + rows).encode("latin-1"))
    own = ["dataset=table", f"dataset.root={tmp_path}/table.csv", f"dataset.schema_file={tmp_path}/schema.yaml"]
    form = [
        "dataset.separator=semicolon",
        "dataset.decimal=comma",
        "dataset.encoding=latin-1",
        "dataset.test_fraction=0.5",
    ]
    data = load_federated(compose([*OPTIONS, *own, *form]))
    assert len(data.dataset.train) == len(data.dataset.test) == 30
    for encoding in ("klingon", "base64"):
        with pytest.raises(DataError, match=f"encoding={encoding}: is no encoding of texts; allowed: utf-8"):
            load_federated(compose([*OPTIONS, *own, *form, f"dataset.encoding={encoding}"]))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("dataset.test_root=FOLDER/none.csv", "dataset.test_root=FOLDER/none.csv: there is no such file"),
        ("dataset.root=FOLDER", "dataset.root=FOLDER: is a folder; allowed: a CSV or Parquet file"),
        (
            "partition.column=ward",
            "partition.column=ward: FOLDER/t.csv has no such column; its columns: age, site",
        ),
        ("partition.column=site", "FOLDER/t.csv: column site, row 3: no client is named; each row needs one"),
    ],
)
def test_what_a_run_on_a_table_names_wrongly_is_said_by_its_option(option: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "target: {column: ill, task: classification, classes: [no, yes]}\ncolumns: {age: {range: [0, 9]}}\n"
    )
    (tmp_path / "t.csv").write_text("age,site,ill\n1,a,no\n2,b,no\n3,,yes\n4,a,yes\n")
    own = ["dataset=table", f"dataset.root={tmp_path}/t.csv", f"dataset.schema_file={tmp_path}/s.yaml"]
    column = ["partition=column"] if "column" in option else []
    with pytest.raises((DataError, OptionError)) as caught:
        load_federated(compose([*OPTIONS, *own, *column, option.replace("FOLDER", str(tmp_path))]))
    assert str(caught.value).startswith(words.replace("FOLDER", str(tmp_path)))


def test_attacks_take_rows_of_classes_and_say_why_they_take_no_others(tmp_path: Path) -> None:
    config = compose([*OPTIONS, "dataset=breast_cancer", "dataset.train_examples=200"])
    start_run(config, tmp_path / "classes")
    found = Experiment(RunFolder(tmp_path / "classes"), config)
    assert len(found.targets.evaluated) >= 20 and not found.inputs.differ
    assert np.isfinite(found.view.confidence(found.model.theta, found.targets.evaluated.rows)).all()
    config = compose([*OPTIONS, "dataset=diabetes"])
    start_run(config, tmp_path / "numbers")
    with pytest.raises(OptionError, match="its task is regression"):
        Experiment(RunFolder(tmp_path / "numbers"), config)
    with pytest.raises(OptionError, match="its members are at its nodes"):
        deployed = config.dataset.model_copy(update={"name": "on_nodes"})
        Experiment(RunFolder(tmp_path / "numbers"), config.model_copy(update={"dataset": deployed}))


def test_training_is_audited_where_its_canaries_mean_something() -> None:
    for options, words in (
        (["experiment=hospitals"], "level=training: a site's own numbers are parts of a sum"),
        (["strategy=nbafl", "dataset=diabetes", "num_clients=5", "model=linear"], "this run's task is regression"),
    ):
        with pytest.raises(OptionError, match=words):
            audit_training(compose([*options, "clients_per_round=5", "num_rounds=1"]), confidence=0.95, seed=0)
