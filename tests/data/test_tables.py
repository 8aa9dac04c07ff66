"""Tables of people: files as people write them, encoded by a schema."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from fedpriv.attacks.client_canaries import audit_training
from fedpriv.attacks.experiment import Experiment
from fedpriv.attacks.shadows import train
from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.compose import compose
from fedpriv.data.load import load_federated
from fedpriv.data.table_files import Form, column_names, column_types
from fedpriv.data.table_rows import Encoded, check, encode_file, load_table
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
        (b"\x1f\x8b\x08 and then anything", "is a gzip archive; allowed: CSV, Parquet and Excel"),
        (b"PK\x03\x04 and then anything", "is a zip archive; allowed"),
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
    with pytest.raises(DataError, match=r"column copd, row 1: a label must be 0, 1 or missing \(unknown\)"):
        encode_file(tmp_path / "t.csv", schema_of(said, "test"))


def test_a_label_that_nobody_knows(tmp_path: Path) -> None:
    said: dict[str, object] = {
        "target": {"columns": ["asthma", "copd"], "task": "multilabel"},
        "columns": {"age": {"range": [0, 100]}},
        "missing_values": [-1],
    }
    (tmp_path / "t.csv").write_text("age,asthma,copd\n3,1,\n4,-1,0\n5,NA,\n")
    found = encode_file(tmp_path / "t.csv", schema_of(said, "test"))
    assert found.targets is not None and found.targets.dtype == np.float32
    np.testing.assert_array_equal(found.targets, [[1, np.nan], [np.nan, 0], [np.nan, np.nan]])
    assert found.remarks == ("asthma: 2 of 3 rows have no label; copd: 2 of 3 rows have no label",)
    with pytest.raises(DataError, match="column asthma, row 2: a label must be 0 or 1"):
        encode_file(tmp_path / "t.csv", schema_of(said | {"missing": "refuse"}, "test"))


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
        (["dataset=digits", "partition=column", "partition.column=x"], "pictures of digits have no columns"),
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


def test_coins_choose_members_only_where_a_pair_could_change_places(tmp_path: Path) -> None:
    """Rows of two sites cannot, nor rows of persons who have others. Shadow models have fewer clients than sites."""
    (tmp_path / "s.yaml").write_text(
        "target: {column: ill, task: classification, classes: [no, yes]}\ncolumns: {age: {range: [0, 9]}}\nunit: id\n"
    )
    rows = (f"{n / 99},{n // 2},{('no', 'yes')[n % 2]}\n" for n in range(800))
    (tmp_path / "t.csv").write_text("age,id,ill\n" + "".join(rows))
    persons = ("dataset=table", f"dataset.root={tmp_path}/t.csv", f"dataset.schema_file={tmp_path}/s.yaml")
    sites = ("dataset=practices", "partition=column", "partition.column=practice", "dataset.train_examples=1700")
    shared = ("strategy=fedldp", "num_clients=10", "clients_per_round=10", "num_rounds=1", "model=linear")
    found = []
    for name, options in (("sites", sites), ("persons", (*persons, "dataset.train_examples=300"))):
        start_run(config := compose([*OPTIONS, *shared, *options]), tmp_path / name)
        found.append(Experiment(RunFolder(tmp_path / name), config))
    assert [one.targets.by_coin for one in found] == [True, False]
    pairs, site = found[0].targets.pairs, found[0].pool.train.site
    assert site is not None and (site[pairs.members] == site[pairs.others]).all()
    assert np.isfinite(train(found[0].negative_job(), tmp_path / "rows.npz").theta).all()


def test_training_is_audited_where_its_canaries_mean_something() -> None:
    for options, words in (
        (["experiment=hospitals"], "level=training: a site's own numbers are parts of a sum"),
        (["strategy=nbafl", "dataset=diabetes", "num_clients=5", "model=linear"], "this run's task is regression"),
    ):
        with pytest.raises(OptionError, match=words):
            audit_training(compose([*options, "clients_per_round=5", "num_rounds=1"]), confidence=0.95, seed=0)


# --- a site's own form -----------------------------------------------------------------------------------

#: What the public schema has, and how a site writes it.
PUBLIC = "patient,age,sex,note,ill\np1,40,f,a b,no\np2,,m,c,yes\np3,10,,,no\n"
OWN = "Nr;Alter;Geschlecht;note;ill\np1;40;weiblich;a b;nein\np2;k. A.;m\u00e4nnlich;c;ja\np3;10;-99;;nein\n"
SITE = """\
columns: {Nr: patient, Alter: age, Geschlecht: sex}
values: {sex: {weiblich: f, m\u00e4nnlich: m}, ill: {ja: yes, nein: no}}
missing_values: [k. A., -99]
"""


def written(folder: Path, name: str, content: str, site: str = "") -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    if site:
        (folder / f"{name}.form.yaml").write_text(site, encoding="utf-8")
    return folder / name


def excel_of(csv_file: Path, sheet: str = "Tabelle1") -> Path:
    """The same cells as Excel holds them: numbers, dates and texts."""
    frame = pd.read_csv(csv_file, sep=";", keep_default_na=False)
    frame = frame.map(lambda cell: float(cell) if str(cell).lstrip("-").isdigit() else cell or None)
    path = csv_file.with_suffix(".xlsx")
    with pd.ExcelWriter(path) as book:
        pd.DataFrame({"nothing": [1]}).to_excel(book, sheet_name="Notizen", index=False)
        frame.to_excel(book, sheet_name=sheet, index=False)
    return path


def same(found: Encoded, wanted: Encoded) -> None:
    assert found.inputs.tolist() == wanted.inputs.tolist()
    assert found.targets is not None and wanted.targets is not None and found.unit is not None
    assert found.targets.tolist() == wanted.targets.tolist() and found.unit.tolist() == [0, 1, 2]
    assert found.remarks == wanted.remarks


@pytest.mark.parametrize("kind", ["csv", "parquet", "xlsx"])
def test_a_site_may_write_its_table_in_its_own_way(tmp_path: Path, kind: str) -> None:
    wanted = encode_file(written(tmp_path, "public.csv", PUBLIC), SCHEMA)
    own = written(tmp_path, "own.csv", OWN, SITE)
    path = own
    if kind == "parquet":
        path = tmp_path / "own.parquet"
        pd.read_csv(own, sep=";", keep_default_na=False).to_parquet(path)
        written(tmp_path, "own.parquet.form.yaml", SITE)
    elif kind == "xlsx":
        path = excel_of(own)
        written(tmp_path, "own.xlsx.form.yaml", f"{SITE}sheet: Tabelle1\n")
    same(encode_file(path, SCHEMA), wanted)
    assert column_names(path, Form())[:3] == ["patient", "age", "sex"]


def test_without_its_form_a_sites_table_is_refused_or_lost(tmp_path: Path) -> None:
    own = written(
        tmp_path, "own.csv", OWN, SITE.replace("values: {sex: {weiblich: f, m\u00e4nnlich: m}, ", "values: {")
    )
    with pytest.raises(DataError, match=r"column sex is lost: none of 2 cells .* TABLE.form.yaml"):
        check(own, SCHEMA)
    written(tmp_path, "own.csv", OWN, SITE.replace("k. A., ", ""))
    with pytest.raises(DataError, match=r"column age, row 2: 'k. A.' is not a number"):
        check(own, SCHEMA)


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32()])
def test_a_cell_that_a_form_replaces_changes_no_other_row(tmp_path: Path, kind: pa.DataType) -> None:
    """A person more would otherwise move the inputs of all others: of a number of 32 bits its 64 were read."""
    schema = schema_of({"columns": {"dose": {"values": ["0.1", "0.2"]}}}, "test")
    path = written(tmp_path, "own.parquet", "", "values: {dose: {99: 0.2}}")
    found = []
    for cells in ([0.1, 0.2], [0.1, 0.2, 99.0]):
        parquet.write_table(pa.table({"dose": pa.array(np.array(cells, kind.to_pandas_dtype()))}), path)
        found.append(encode_file(path, schema).inputs)
    assert found[1][:2].tolist() == found[0].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]


def test_a_changed_form_is_read_anew_from_no_cache(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(
        "target: {column: y, task: regression, range: [0, 1]}\ncolumns: {s: {values: [f, m]}}\n"
    )
    written(tmp_path, "t.csv", "s,y\n" + "w,0\nf,1\nm,0\n" * 4, "values: {s: {w: f}}")
    places = {"root": "t.csv", "schema_file": "schema.yaml", "cache": "cache"}
    options = [f"dataset.{name}={tmp_path / place}" for name, place in places.items()]
    config = compose(["dataset=table", "model=linear", "num_clients=2", "clients_per_round=2", *options])
    first = load_table(config.dataset, 0).train.inputs[:, 1].sum()
    (tmp_path / "t.csv.form.yaml").write_text("values: {s: {w: m}}")  # the table itself stays as it is
    assert load_table(config.dataset, 0).train.inputs[:, 1].sum() > first


@pytest.mark.parametrize(
    ("order", "cell", "day"),
    [
        ("day.month.year", "18.10.1997", "1997-10-18"),
        ("day.month.year", "1.2.2020 06:00", "2020-02-01T06:00"),
        ("month/day/year", "10/18/1997", "1997-10-18"),
        ("day/month/year", "3/4/2001", "2001-04-03"),
        ("year month day", "2001 4 3", "2001-04-03"),
    ],
)
@pytest.mark.parametrize("said", ["{}", "{{d: {}}}"])
def test_dates_are_read_in_a_sites_order(tmp_path: Path, order: str, cell: str, day: str, said: str) -> None:
    columns = {"d": {"range": ["1990-01-01", "2030-01-01"]}}
    target = {"column": "y", "task": "classification", "classes": ["a", "b"]}
    schema = schema_of({"target": target, "columns": columns}, "test")
    wanted = encode_file(written(tmp_path, "iso.csv", f"d,y\n{day},a\n,b\n"), schema)
    found = encode_file(
        written(tmp_path, "own.csv", f"d,y\n{cell},a\n,b\n", f"dates: {said.format(repr(order))}"), schema
    )
    assert found.inputs.tolist() == wanted.inputs.tolist() and -1 < found.inputs[0, 0] < 1
    assert column_types(tmp_path / "own.csv")["d"] == "date"
    with pytest.raises(DataError, match=r"say dates: day.month.year, or its like, in TABLE.form.yaml"):
        encode_file(written(tmp_path, "none.csv", f"d,y\n{cell},a\n"), schema)


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ("dates: day.month", "dates: 'day.month': allowed: day.month.year"),
        ("dates: {d: dd.mm.yyyy}", "dates: 'dd.mm.yyyy': allowed"),
        ("date: day.month.year", "date"),
        ("columns: {Nr: patient}\nvalues: {hight: {a: b}}", "values: the schema reads no column hight"),
        ("columns: {Nr: Patient}", "has no column patient, which the schema names (did the file rename it to Patient"),
        ("[1", "cannot be read"),
        ("- 1", "must be a mapping, {option: value, ...}"),
        ("a: &x 1\nb: *x", "anchors are not allowed"),
    ],
)
def test_a_wrong_form_is_refused_by_its_entry(tmp_path: Path, site: str, words: str) -> None:
    path = written(tmp_path, "own.csv", OWN.replace("Alter", "age").replace("Geschlecht", "sex"), site)
    with pytest.raises(DataError, match=r"own.csv") as caught:
        encode_file(path, SCHEMA)
    assert words in str(caught.value)


def test_a_day_that_is_none_stays_a_wrong_cell(tmp_path: Path) -> None:
    path = written(tmp_path, "own.csv", PUBLIC.replace("40", "31.02.2020"), "dates: day.month.year")
    with pytest.raises(DataError, match="column age, row 1: '2020-02-31' is not a number"):
        encode_file(path, SCHEMA)


@pytest.mark.parametrize("mark", ["NA_integer_", "#N/A", "-nan", "1.#QNAN", "n/a"])
def test_marks_of_other_programs_are_missing_values(tmp_path: Path, mark: str) -> None:
    found = encoded(tmp_path, HEADER + f"p1,{mark},{mark},,no\n")
    assert found.inputs[0, :6].tolist() == [0, 1, 0, 0, 0, 1]


def test_an_excel_file_that_is_none_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = excel_of(written(tmp_path, "own.csv", PUBLIC.replace(",", ";")))
    with pytest.raises(DataError, match="has no column age, which the schema names"):
        encode_file(path, SCHEMA)  # the first sheet is another
    written(tmp_path, "own.xlsx.form.yaml", "sheet: Nichts")
    with pytest.raises(DataError, match="sheet: Nichts is none of its sheets; allowed: Notizen, Tabelle1"):
        encode_file(path, SCHEMA)
    written(tmp_path, "own.xlsx.form.yaml", "sheet: Tabelle1")
    assert len(encode_file(path, SCHEMA).inputs) == 3
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 8})())
    with pytest.raises(DataError, match="when unpacked, and 0 are allowed: save it as CSV"):
        encode_file(path, SCHEMA)
    monkeypatch.undo()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="is a zip archive; allowed: CSV, Parquet and Excel"):
        encode_file(path, SCHEMA)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"needs openpyxl: pip install 'fedpriv\[excel\]'"):
        encode_file(path, SCHEMA)


def test_a_missing_value_counts_as_its_columns_fill_beside_the_indicator(tmp_path: Path) -> None:
    said = SCHEMA.model_dump(mode="json", exclude_none=True)
    said["columns"] = {"age": {"range": [0, 100], "fill": 70}, "sex": {"values": ["f", "m"]}}
    schema = schema_of(said, "test")
    path = written(tmp_path, "t.csv", HEADER + "p1,,f,,no\np2,70,f,,no\n")
    assert encode_file(path, schema).inputs[:, :2] == pytest.approx(np.array([[0.4, 1], [0.4, 0]]))
    assert schema.digest != SCHEMA.digest
    for wrong, words in (
        ({"range": [0, 100], "fill": 170}, "fill=170 lies outside the range"),
        (
            {"range": [0, 100], "fill": 7, "missing": "refuse"},
            "fill needs a range whose missing values are not refused",
        ),
        ({"values": ["a", "b"], "fill": 1}, "fill needs a range"),
    ):
        said["columns"] = {"age": wrong}
        with pytest.raises(OptionError, match=words):
            schema_of(said, "test")


def test_a_person_of_two_files_is_one_person_and_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(
        "target: {column: y, task: classification, classes: [a, b]}\nunit: who\ncolumns:\n  x: {range: [0, 9]}\n"
    )
    for name, persons in (("first", "anna bert cora"), ("second", "dora anna emil")):
        rows = [f"{who},{row},{'ab'[row % 2]}" for row, who in enumerate(persons.split() * 2)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["who,x,y", *rows]) + "\n")
    np.savez(tmp_path / "split.npz", train=np.arange(8), test=np.arange(8, 12))
    files = [f"dataset.root={tmp_path}/first.csv", f"dataset.test_root={tmp_path}/second.csv"]
    own = [f"dataset.schema_file={tmp_path}/schema.yaml", f"dataset.cache={tmp_path}/cache"]
    one = [f"dataset.split={tmp_path}/split.npz", "num_clients=1", "clients_per_round=1"]
    config = compose(["dataset=table", *files, *own, *one])
    found = load_federated(config)
    unit = found.dataset.train.unit
    assert unit is not None and unit.tolist() == [0, 1, 2] * 2 + [3, 0, 4] * 2
    assert found.counts(persons=True).tolist() == [4]  # anna, bert, cora, and dora of the second file
    remarks = load_federated(compose(["dataset=table", *files, *own, *one[1:]])).dataset.remarks
    assert any(remark.startswith("1 of the 3 units of the test rows have training rows too") for remark in remarks)
    ask = ["strategy=ask", "strategy.client.questions=[count]", *one[1:], "strategy.server.min_replies=1"]
    asked = load_federated(compose(["dataset=table", *ask, *files, *own])).dataset
    assert asked.train.unit is not None and asked.train.unit.tolist() == [0, 1, 2] * 2 + [3, 0, 4] * 2
    assert len(asked.test) == 0 and not any("units of the test rows" in remark for remark in asked.remarks)


def test_sites_of_two_files_are_asked_by_their_names(tmp_path: Path) -> None:
    """A site of the second file alone is a client of its own."""
    schema = "target: {column: y, task: classification, classes: [a, b]}\ncolumns:\n  x: {range: [0, 9]}\n"
    (tmp_path / "schema.yaml").write_text(schema)
    for name, sites in (("first", "north south"), ("second", "west north")):
        rows = [f"{where},{row},{'ab'[row % 2]}" for row, where in enumerate(sites.split() * 2)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["where,x,y", *rows]) + "\n")
    files = [f"dataset.root={tmp_path}/first.csv", f"dataset.test_root={tmp_path}/second.csv"]
    own = [f"dataset.schema_file={tmp_path}/schema.yaml", f"dataset.cache={tmp_path}/cache"]
    by = ["partition=column", "partition.column=where", "num_clients=3", "clients_per_round=3"]
    ask = ["strategy=ask", "strategy.client.questions=[count]", "strategy.server.min_replies=1"]
    dataset = load_federated(compose(["dataset=table", *ask, *files, *own, *by])).dataset
    assert dataset.sites == ("north", "south", "west")
    assert dataset.train.site is not None and dataset.train.site.tolist() == [0, 1, 0, 1, 2, 0, 2, 0]


@pytest.mark.parametrize(("one", "other"), [("1.1", "1.10"), ("12e3", "12000"), ("1", "1.0")])
def test_two_persons_whose_names_mean_the_same_are_refused(tmp_path: Path, one: str, other: str) -> None:
    with pytest.raises(DataError, match=f"'{one}' and '{other}' mean the same"):
        encoded(tmp_path, f"{HEADER}{one},50,f,,no\n{other},50,f,,no\n")
    assert encoded(tmp_path, f"{HEADER}{one},50,f,,no\n {one} ,50,f,,no\n").persons == (
        one.replace("12e3", "12000").removesuffix(".0"),
    )


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_such_persons_are_refused_whatever_type_the_texts_have(tmp_path: Path, kind: pa.DataType) -> None:
    schema = schema_of({"columns": {"age": {"range": [0, 100]}}, "unit": "patient"}, "test")
    table = pa.table({"patient": pa.array(["1.1", "1.10"], pa.string()).cast(kind), "age": [50, 60]})
    parquet.write_table(table, tmp_path / "persons.parquet")
    with pytest.raises(DataError, match=r"'1.1' and '1.10' mean the same"):
        encode_file(tmp_path / "persons.parquet", schema)
