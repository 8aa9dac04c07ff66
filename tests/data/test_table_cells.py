"""One table has one meaning, in whatever format and type it is kept: its encoded inputs are equal bit for bit."""

from __future__ import annotations

import datetime
import os
import re
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from fedpriv.common.errors import DataError
from fedpriv.config.compose import compose
from fedpriv.data.hub import read_split
from fedpriv.data.table_files import Form, read_columns, read_whole
from fedpriv.data.table_rows import Cells, Encoded, encode
from fedpriv.data.table_schema import FOLDED, TableSchema, canonical, day_of, read_schema, schema_of, value_places
from fedpriv.mechanisms.tasks import of_classes
from fedpriv.training.task_metrics import metrics

NUMBERS: dict[str, Any] = {"range": [-1000, 1000]}
DATES: dict[str, Any] = {"range": ["1950-01-01", "2050-01-01"]}


def stamps(*texts: str | None, unit: str = "ns", zone: str | None = None) -> Any:
    found = pandas.to_datetime(list(texts), utc=zone is not None, format="ISO8601")
    return (found if zone is None else found.tz_convert(zone)).as_unit(unit)


#: Name -> (what a pandas user has in a column, what the schema says of it).
TYPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "int64": (np.array([1, -2, 900], np.int64), NUMBERS),
    "int8": (np.array([1, -2, 90], np.int8), NUMBERS),
    "uint64": (np.array([2**64 - 1, 2**53 + 1, 3], np.uint64), {"range": [0, 2**64]}),
    "int64 beyond 2^53": (np.array([2**53 + 1, -(2**53) - 1, 0]), {"range": [-(2**54), 2**54]}),
    "int64 beyond 2^53, values": (np.array([2**53 + 1, 2**53, 0]), {"values": [2**53, 2**53 + 1, 7]}),
    "Int64 with missing": (pandas.array([1, None, 3], "Int64"), NUMBERS),
    "Int64 with missing, values": (pandas.array([1, None, 3], "Int64"), {"values": [1, 2, 3]}),
    "float64": (np.array([0.1, np.nan, -123.456789]), NUMBERS),
    "float64, large and small": (np.array([1e16, 1e-7, 123456789012345680.0]), {"range": [0, 1e18]}),
    "float64 of whole numbers, values": (np.array([1.0, np.nan, 2.0]), {"values": [1, 2, 3]}),
    "float64, values": (np.array([0.5, 1e16, 1.50]), {"values": [0.50, "1e16", "1.5"]}),
    "float32": (np.array([0.1, np.nan, 3.3333333], np.float32), NUMBERS),
    "float32, values": (np.array([0.1, 2.0, 5.5], np.float32), {"values": ["0.1", "2"]}),
    "float16": (np.array([0.1, np.nan, 3.33], np.float16), NUMBERS),
    "float16, values": (np.array([0.1, 2.0, np.nan], np.float16), {"values": ["0.1", "2"]}),
    "Float64 with missing": (pandas.array([0.1, None, 3.5], "Float64"), NUMBERS),
    "decimal": ([Decimal("0.10"), None, Decimal("12.345")], NUMBERS),
    "decimal, values": ([Decimal("1.50"), None, Decimal("2.00")], {"values": ["1.5", 2]}),
    "bool": (np.array([True, False, True]), {"values": ["true", "false"]}),
    "bool as yes and no": (np.array([True, False, True]), {"values": ["no", "yes"]}),
    "bool as 0 and 1": (np.array([True, False, True]), {"values": [0, 1]}),
    "bool as a number": (np.array([True, False, True]), {"range": [0, 1]}),
    "boolean with missing": (pandas.array([True, None, False], "boolean"), {"values": [True, False]}),
    "object of truth values": (np.array([True, None, False], object), {"values": ["true", "false"]}),
    "category of texts": (pandas.Categorical(["a", None, "b"]), {"values": ["a", "b"]}),
    "category of numbers": (pandas.Categorical([2, 1, 2]), {"values": [1, 2]}),
    "category of floats as numbers": (pandas.Categorical([0.5, 1.5, np.nan]), NUMBERS),
    "category of truth values": (pandas.Categorical([True, False, None]), {"values": [True, False]}),
    "category of dates": (pandas.Categorical(stamps("2020-01-31", "2021-05-05", None)), DATES),
    "texts": (["a ", " b", ""], {"values": ["a", "b"]}),
    "string dtype": (pandas.array(["a", None, "b"], "string"), {"values": ["a", "b"]}),
    "string of arrow": (pandas.array(["a", None, "b"], "string[pyarrow]"), {"values": ["a", "b"]}),
    "codes": (["01", "1", "010"], {"values": ["01", "010", "1"]}),
    "codes like numbers of base 16": (["0x1F", "1F", "31"], {"values": ["0x1F", 31]}),
    "codes like times": (["12:30", "750", "1:2"], {"values": ["12:30", "750"]}),
    "texts of numbers": (["1", "1.0", "2.50"], {"values": [1, 2.5]}),
    "texts of truth values": (["True", "FALSE", "true"], {"values": ["true", "false"]}),
    "accents in two forms": (["e\u0301te\u0301", "été", "x"], {"values": ["été", "x"]}),
    "null, NaN and empty": (["", "NA", None], {"values": ["x"]}),
    "empty column": ([None, None, None], NUMBERS),
    "a mark for missing": (np.array([-99, 5, 6]), NUMBERS | {"missing_values": [-99]}),
    "a mark for missing, float": (np.array([-99.0, 5, np.nan]), NUMBERS | {"missing_values": [-99]}),
    "a mark for missing, dates": (stamps("1900-01-01", "2020-01-31", None), DATES | {"missing_values": ["1900-01-01"]}),
    "a mark for missing, values": (["unknown", "a", "b"], {"values": ["a", "b"], "missing_values": ["unknown"]}),
    "free text": (["one two", None, "e\u0301te\u0301\nlines"], {"text": "hashed", "dims": 16}),
    "tokens of text": (["one two", "", "1.50"], {"text": "hashed", "dims": 16}),
    "dates": ([datetime.date(2020, 1, 31), None, datetime.date(1960, 5, 1)], DATES),
    "dates, values": ([datetime.date(2020, 1, 31), None, datetime.date(1960, 5, 1)], {"values": ["2020-01-31"]}),
    "timestamp ns": (stamps("2024-01-01 17:41:36.168732123", None, "1959-12-31 23:59:59.5"), DATES),
    "timestamp us": (stamps("2024-01-01 17:41:36.168732", None, "1959-12-31 23:59:59.25", unit="us"), DATES),
    "timestamp ms": (stamps("2024-01-01 17:41:36.168", None, "1959-12-31", unit="ms"), DATES),
    "timestamp s": (stamps("2024-01-01 17:41:36", None, "1900-12-31", unit="s"), DATES),
    "timestamp of days, values": (stamps("2024-01-01", "2024-01-02", None), {"values": ["2024-01-01"]}),
    "timestamp, values": (stamps("2024-01-01", "2024-01-02 08:30", None), {"values": ["2024-01-02 08:30:00"]}),
    "timestamp with a zone": (stamps("2024-01-01 17:41:36.5", None, "1959-12-31", zone="Asia/Kolkata"), DATES),
    "timestamp in the far future": (stamps("9999-12-31", "2020-01-01", None, unit="us"), {"range": [0, 3e6]}),
    "texts of dates": (["2020-01-31", "", "2021-02-28T08:30:00.25Z"], DATES),
    "whole numbers beyond 64 bits": (np.array([2**64, 1, 2**70], object), {"range": [0, 2**71]}),
    "a mark that is no day": (stamps("1997-05-18", "2020-01-31", None), DATES | {"missing_values": [9999]}),
    "a mark that is no number": (np.array([-25567, 1, 2]), {"range": [-1e5, 10], "missing_values": ["1900-01-01"]}),
    "a truth value that is a mark": (np.array([True, False, True]), {"range": [0, 1], "missing_values": ["false"]}),
    "several types": (np.array([1, "a", 2.5], object), {"values": [1, "a"]}),
    "several types and missing": (np.array(["a", pandas.NA, 1], object), {"values": [1, "a"]}),
    "several types of numpy": (
        np.array([np.bool_(True), "no", np.float32(0.1)], object),
        {"values": ["yes", "no", 0.1]},
    ),
}
#: Of several types, or of numbers that pyarrow has no type for: pandas saves no Parquet file.
NOT_SAVED = {name for name in TYPES if name.startswith(("several types", "whole numbers beyond"))}
PERSONS: dict[str, Any] = {
    "texts": ["p1", "p2", "p1"],
    "numbers": [7.0, 8.0, 7.0],
    "codes": ["07", "7", "07"],
    "dates": stamps(*["2020-01-01"] * 3),
}


def schema_for(said: dict[str, Any], unit: str | None = None) -> TableSchema:
    target = {"column": "y", "task": "classification", "classes": ["no", "yes"]}
    return schema_of({"target": target, "columns": {"x": said}} | ({"unit": unit} if unit else {}), "test")


def frame_of(cells: Any, **more: Any) -> pandas.DataFrame:
    return pandas.DataFrame({"x": cells, "y": np.array([True, False, True]), **more})


def encoded(source: Any, schema: TableSchema, form: Form | None = None) -> Encoded:
    table = read_columns(source, schema.needed, form, schema)
    return encode(table, schema, "t", decimal=(form or Form()).decimal)


def same(one: Encoded, two: Encoded) -> bool:
    parts = [(one.inputs, two.inputs), (one.targets, two.targets), (one.unit, two.unit)]
    return one.counted == two.counted and all(
        (a is None and b is None) or (a is not None and b is not None and a.tobytes() == b.tobytes()) for a, b in parts
    )


def in_formats(frame: pandas.DataFrame, schema: TableSchema, folder: Path) -> dict[str, Encoded]:
    """Format -> what is read of the frame that pandas saves in it, where pandas can."""
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_csv(folder / "comma.csv", index=False, sep=";", decimal=",", encoding="utf-16")
    text = (folder / "comma.csv").read_text("utf-16")
    if frame["x"].dtype in (object, "category"):  # pandas leaves the points of numbers among objects
        (folder / "comma.csv").write_text(re.sub(r"(?<=\d)\.(?=\d)", ",", text), "utf-16")
    found = {
        "data frame": encoded(frame, schema),
        "mapping": encoded({name: frame[name] for name in frame}, schema),
        "CSV": encoded(folder / "t.csv", schema),
        "CSV, decimal comma": encoded(folder / "comma.csv", schema, Form(";", ",", "UTF-16")),
        "CSV, all columns": encode(read_whole(folder / "t.csv", (), Form(), schema).table, schema, "t"),
    }
    try:
        frame.to_parquet(folder / "t.parquet")
    except (pa.ArrowException, OverflowError):  # `NOT_SAVED`
        return found
    return found | {"Parquet": encoded(folder / "t.parquet", schema)}


@pytest.mark.parametrize("name", TYPES)
def test_a_frame_is_the_same_in_every_format(name: str, tmp_path: Path) -> None:
    cells, said = TYPES[name]
    found = in_formats(frame_of(cells), schema_for(said), tmp_path)
    unlike = [kept for kept, one in found.items() if not same(one, found["data frame"])]
    assert not unlike, [(kept, found[kept].inputs.tolist()) for kept in ("data frame", *unlike)]
    assert len(found) == (5 if name in NOT_SAVED else 6)


@pytest.mark.parametrize("more", [0.5, "b", True, 5, np.nan, None, pandas.Timestamp("2024-01-31 12:00")])
@pytest.mark.parametrize("first", [1, 2.0, np.float32(0.1), np.nan, True, "a", datetime.datetime(2024, 1, 31)])
@pytest.mark.parametrize("said", [{"text": "hashed", "dims": 64}, {"values": ["true", "0.1", "a"]}])
def test_a_cell_is_read_alike_whatever_stands_below_it(said: dict[str, Any], first: Any, more: Any) -> None:
    """A column's type follows from all its cells, so a person more would otherwise change the inputs of all others."""
    schema, cells = schema_of({"columns": {"note": said}}, "test"), ["a" if more == 5 else first, first, more]
    alone, beside = (encoded({"note": pandas.Series(some, dtype=object)}, schema) for some in (cells[:-1], cells))
    assert alone.inputs.tolist() == beside.inputs[:-1].tolist()


def test_marks_are_of_their_column_s_kind() -> None:
    """9999 is no date: as days it is 1997-05-18, on which people are born; and 1900-01-01 is no number."""
    for name in ("a mark that is no day", "a mark that is no number", "a truth value that is a mark"):
        cells, said = TYPES[name]
        missing = encoded(frame_of(cells), schema_for(said)).counted[0].missing
        assert missing == {"a mark that is no day": 1, "a mark that is no number": 0}.get(name, 1)


@pytest.mark.parametrize("kind", PERSONS)
def test_persons_are_the_same_in_every_format(kind: str, tmp_path: Path) -> None:
    found = in_formats(frame_of([1, 2, 3], person=PERSONS[kind]), schema_for(NUMBERS, "person"), tmp_path)
    assert all(same(one, found["data frame"]) for one in found.values()) and len(found) == 6
    assert found["CSV"].unit is not None
    assert found["CSV"].unit.tolist() == ([0, 0, 0] if kind == "dates" else [0, 1, 0])


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_set_of_the_hub_is_read_as_the_file_is(suffix: str, tmp_path: Path) -> None:
    """All types in one frame: of a CSV file `datasets` would guess types, as pandas does."""
    absent = {*NOT_SAVED, "float16", "float16, values"}  # datasets knows no such columns
    absent |= {
        name for name in TYPES if suffix == "jsonl" and re.search("decimal|da[ty]|stamp|2.53|uint64|float32", name)
    }
    names = [name for name in TYPES if name not in absent]
    frame = pandas.DataFrame({name: TYPES[name][0] for name in names} | {"y": ["no", "yes", "no"]})
    target = {"column": "y", "task": "classification", "classes": ["no", "yes"]}
    schema = schema_of({"target": target, "columns": {name: TYPES[name][1] for name in names}}, "test")
    (tmp_path / "set").mkdir()
    place = tmp_path / f"set/train.{suffix}"
    if suffix == "jsonl":
        frame.to_json(place, orient="records", lines=True, double_precision=15)
    else:
        getattr(frame, f"to_{suffix}")(place, index=False)
    own = [f"dataset.root={tmp_path}/set", f"dataset.cache={tmp_path}/cache"]
    config = compose(["dataset=huggingface", "dataset.hub_name=scikit-learn/adult-census-income", "model=linear", *own])
    read = encode(read_split(config.dataset, schema.needed, "train"), schema, "t")
    plain, start = encoded(frame, schema), 0
    for name, column in schema.inputs:
        part = slice(start, start := start + schema.width(column))
        assert read.inputs[:, part].tobytes() == plain.inputs[:, part].tobytes(), name


CELLS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(str),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.datetimes(min_value=datetime.datetime(1600, 1, 1)).map(str),
    st.datetimes().map(lambda when: when.isoformat()),
    st.sampled_from(
        ["true", "TRUE", "False", "-0", "+0", ".5", "5.", "1e5", "007", "0x1F", "12:30", "1_000", "e\u0301"]
    ),
    st.text(max_size=8),
    st.from_regex(r"[+-]?[0-9]{1,3}[.,eE:T -]?[0-9]{0,3}", fullmatch=True),
)


@settings(deadline=None, max_examples=400, derandomize=True)
@given(CELLS)
def test_a_canonical_text_is_its_own_and_no_cell_is_left_out(cell: str) -> None:
    for sign in ".,":
        text = canonical(cell, sign)
        assert canonical(text, sign if sign == "." else ".") == text
        plain = canonical(cell.strip(), sign)
        trimmed = pa.compute.utf8_normalize(pa.compute.utf8_trim_whitespace(pa.array([cell])), "NFC")
        chosen = pa.compute.match_substring_regex(trimmed, FOLDED)[0].as_py()
        assert chosen or plain == trimmed[0].as_py()


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    st.lists(
        st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False, width=64)),
        min_size=1,
        max_size=5,
    )
)
def test_equal_numbers_and_no_others_have_one_text(numbers: list[float]) -> None:
    texts = [canonical(repr(number)) for number in numbers]
    for one, first in zip(texts, numbers, strict=True):
        assert Decimal(one) == Decimal(repr(first))
        assert [other == one for other in texts] == [Decimal(repr(n)) == Decimal(repr(first)) for n in numbers]


def test_a_moment_outside_the_calendar_is_a_text() -> None:
    for cell in ("0001-01-01T00:00+05:00", "9999-12-31 23:59-01:00"):
        assert canonical(cell) == cell and value_places((cell, "b"))[cell] == 0
        assert encoded(frame_of([cell, "b", None]), schema_for({"values": [cell, "b"]})).counted[0].changed == 0


def test_truth_values_mean_what_the_schema_says() -> None:
    def place(values: tuple[str, ...], cell: str) -> int | None:
        return value_places(values).get(canonical(cell))

    assert [place(("no", "yes"), cell) for cell in ("True", "false", "YES", "1", "0", "y", "maybe")] == [
        1, 0, 1, 1, 0, None, None
    ]  # fmt: skip
    assert [place(("0", "1", "2"), cell) for cell in ("True", "yes", "2.0")] == [1, None, 2]
    assert [place(("NO", "SE"), cell) for cell in ("NO", "False", "no")] == [0, None, None]  # Norway and Sweden
    assert [place(("f", "m"), cell) for cell in ("f", "False")] == [0, None]
    assert place(("true", "false", "yes", "no"), "1") is None  # two pairs: neither is the other's meaning


def test_a_zone_of_the_machine_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "target: {column: ill, task: classification, classes: [no, yes]}\ncolumns:\n"
    text += "  admitted: {range: [2020-01-01 00:00:00, 2026-12-31 23:59:59]}\n"
    (tmp_path / "t.csv").write_text("admitted,ill\n2020-07-01 08:30:00,no\n2024-07-01 08:30:00,yes\n")
    (tmp_path / "s.yaml").write_text(text)
    from fedpriv.data.table_schema import read_schema

    found = []
    try:
        for zone in ("UTC", "Asia/Kolkata", "America/New_York"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            (tmp_path / "s.yaml").write_text(text + f"# {zone}\n")  # no cached one
            schema = read_schema(tmp_path / "s.yaml")
            found.append((schema.digest, encoded(tmp_path / "t.csv", schema).inputs.tobytes()))
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert len(set(found)) == 1 and found[0][0].startswith("e818419a")
    assert "TZ" not in os.environ


@pytest.mark.parametrize(("unit", "digits"), [("s", 0), ("ms", 3), ("us", 6), ("ns", 9)])
@pytest.mark.parametrize("zone", [None, "Asia/Kolkata"])
def test_a_typed_moment_is_that_of_its_text_in_64_bits(unit: str, digits: int, zone: str | None) -> None:
    """In the range of a century the inputs, of 32 bits, would hide a wrong fraction."""
    whole, part = [1704130896, -1, -86401], "168732123"[:digits]
    kind = pa.timestamp(unit, zone)
    column = pa.chunked_array([pa.array([each * 10**digits + int(part or 0) for each in whole], pa.int64()).cast(kind)])
    texts = [f"{datetime.datetime.fromtimestamp(each, datetime.UTC):%Y-%m-%dT%H:%M:%S}.{part or 0}Z" for each in whole]
    numbers, missing = Cells(column, "t", ".").numbers()
    assert numbers.tolist() == [day_of(text) for text in texts] and not missing.any()
    assert Cells(column, "t", ".").texts().to_pylist() == [canonical(text) for text in texts]


def test_f1_is_of_the_positive_class() -> None:
    outputs, targets = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1, 1])
    assert metrics(of_classes(("yes", "no")), outputs, targets, 0.5) == metrics(
        of_classes(("yes", "no"), "no"), outputs, targets, 0.5
    )
    targets = torch.tensor([0, 0, 1, 1])
    outputs = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    found = [metrics(of_classes(("yes", "no"), of), outputs, targets, 0.5) for of in ("yes", "no")]
    assert [one["f1"] for one in found] == pytest.approx([4 / 5, 2 / 3])
    assert found[0]["auc"] == found[1]["auc"] and found[0]["brier"] == pytest.approx(found[1]["brier"])


@pytest.mark.parametrize("cell", ["0", "-0", "+0", "-0.0", "0e9", "-.0", "0.00"])
def test_zero_is_one_number_whatever_its_sign(cell: str) -> None:
    assert canonical(cell) == "0" and value_places(("0", "1"))[canonical(cell)] == 0


def test_moments_are_counted_in_utc() -> None:
    assert day_of("2024-01-01 17:41:36.168732") == pytest.approx(19723.737224175, abs=1e-9)
    assert day_of("1969-12-31T12:00:00.5+00:00") == pytest.approx(-0.5 + 0.5 / 86400, abs=1e-12)
    assert day_of("2024-01-01 05:30:00+05:30") == day_of("2024-01-01") == 19723.0
    assert canonical("2024-01-01 17:41:36.168732100") == "2024-01-01 17:41:36.1687321"
    assert canonical("2024-01-01T00:00:00+00:00") == "2024-01-01"


def test_scalars_of_yaml_are_texts_as_they_are_written(tmp_path: Path) -> None:
    from fedpriv.data.table_schema import read_schema

    (tmp_path / "s.yaml").write_text(
        "target: {column: y, task: classification, classes: [no, yes], positive: yes}\n"
        "columns:\n  code: {values: [01, 08, 010, 0x1F, 12:30, 1.50, 1_000, True, 2020-01-31, null_, .5]}\n"
        "  0755: {range: [010, 1e3]}\n  e\u0301t: {text: hashed, dims: 16}\n  dims: {ignore: true}\n"
        "missing_values: [-99, 0x7]\n"
    )
    schema = read_schema(tmp_path / "s.yaml")
    assert schema.columns["code"].values == (
        "01", "08", "010", "0x1F", "12:30", "1.50", "1_000", "True", "2020-01-31", "null_", ".5"
    )  # fmt: skip
    assert schema.columns["0755"].range == (10.0, 1000.0) and schema.columns["ét"].dims == 16
    assert schema.missing_values == ("-99", "0x7") and schema.target.positive == "yes"
    dumped = schema.model_dump(mode="json", exclude_none=True)
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(dumped, sort_keys=False, allow_unicode=True))
    again = read_schema(tmp_path / "again.yaml")
    assert again.digest == schema.digest and again == schema


@pytest.mark.parametrize(
    ("said", "dims", "step"),
    [("010, dims: 010", 10, None), ("1, dims: 64", 64, 1.0), ("1e-1, dims: 16", 16, 0.1), ("2.50, dims: 8", 8, 2.5)],
)
def test_numbers_of_a_schema_are_of_base_10(said: str, dims: int, step: float | None, tmp_path: Path) -> None:
    step_said, dims_said = said.split(", ")
    path, target = tmp_path / "s.yaml", "target: {column: y, task: classification, classes: [a, b]}\n"
    path.write_text(f"{target}columns: {{t: {{text: hashed, {dims_said}}}, x: {{range: [0, 100], step: {step_said}}}}}")
    found = read_schema(path).columns
    assert (found["t"].dims, found["x"].step) == (dims, step or 10.0)


def test_the_digest_is_that_of_meanings() -> None:
    one = schema_for({"values": ["1", "1.50", "true"], "missing_values": [-99]})
    same = schema_for({"values": ["1.0", "1.5", "TRUE"], "missing_values": ["-99.0"]})
    assert one.digest == same.digest != schema_for({"values": ["01", "1.5", "TRUE"], "missing_values": [-99]}).digest
    plain = one.model_dump(mode="json", exclude_none=True)
    of_table = [schema_of(plain | {"missing_values": marks}, "test").digest for marks in (["-7"], ["-7.0"], ["-8"])]
    assert of_table[0] == of_table[1] and len({one.digest, *of_table}) == 3


@pytest.mark.parametrize("cells", [[datetime.date(1969, 9, 24)] * 2, ["1969-09-24", "-99"], stamps("1969-09-24", None)])
def test_a_number_that_marks_a_missing_value_is_no_date(cells: Any) -> None:
    """1969-09-24 is day -99; and -25567 is no 1900-01-01."""
    numbers, missing = Cells(pa.chunked_array([pa.array(cells)]), "t", ".", ["-99"]).numbers()
    assert numbers[0] == -99 and not missing[0]
    assert missing[1] == (cells[1] != cells[0])
    days = Cells(pa.chunked_array([pa.array(cells)]), "t", ".", ["-99", "1969-09-24"]).numbers()[1]
    assert days.all()
    money, gone = Cells(pa.chunked_array([pa.array([-25567.0, 3.0])]), "t", ".", ["1900-01-01"]).numbers()
    assert money[0] == -25567 and not gone.any()


def test_a_struct_beside_a_dotted_name_and_names_in_two_forms(tmp_path: Path) -> None:
    table = pa.table({"a": [{"b": "no"}] * 2, "a.b": [1.0, 2.0], "e\u0301": ["f", "m"], "y": ["no", "yes"]})
    parquet.write_table(table, tmp_path / "t.parquet")
    target = {"column": "y", "task": "classification", "classes": ["no", "yes"]}
    schema = schema_of({"target": target, "columns": {"a.b": {"range": [1, 2]}, "é": {"values": ["f", "m"]}}}, "test")
    found = encoded(tmp_path / "t.parquet", schema)
    assert found.inputs.tolist() == [[-1, 0, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0]]
    assert read_whole(tmp_path / "t.parquet", ("é",), Form(), schema).header == ["a", "a.b", "e\u0301", "y"]
    table.drop_columns(["a"]).to_pandas().to_csv(tmp_path / "t.csv", index=False)
    assert same(encoded(tmp_path / "t.csv", schema), found)
    assert same(encoded(table.drop_columns(["a"]).to_pandas(), schema), found)


@pytest.mark.parametrize("name", ["AGE", "Age", "age_", "\u212bge"])
def test_a_name_in_capitals_is_guessed(name: str) -> None:
    schema = schema_of(
        {"target": {"column": "y", "task": "regression", "range": [0, 1]}, "columns": {"age": NUMBERS}}, "test"
    )
    guess = re.escape(
        f"has no column age, which the schema names (did the file rename it to {name.replace(chr(8491), 'Å')}?)"
    )
    with pytest.raises(DataError, match=guess):
        encoded({name: [1], "y": [0]}, schema)


QUOTED = "age,sex,y,note\n50,f,no,{}\n60,m,yes,ok\n70,f,no,ok\n80,m,yes,{}\n"


def quoted(tmp_path: Path, first: str, last: str = "ok", columns: dict[str, Any] | None = None) -> int:
    own = {"age": {"range": [0, 100]}, "sex": {"values": ["f", "m"]}, **(columns or {})}
    target = {"column": "y", "task": "classification", "classes": ["no", "yes"]}
    (tmp_path / "q.csv").write_text(QUOTED.format(first, last))
    return len(encoded(tmp_path / "q.csv", schema_of({"target": target, "columns": own}, "test")).inputs)


def test_a_quote_that_is_not_closed_is_found(tmp_path: Path) -> None:
    words = re.escape("column note, row 1: a cell of 4 lines, which look like rows: is a quote not closed?")
    for columns in ({}, {"note": {"text": "hashed", "dims": 8}}, {"note": {"ignore": True}}):
        with pytest.raises(DataError, match=words):
            quoted(tmp_path, '"transferred', '"stable"', columns)
        assert quoted(tmp_path, '"two\nlines, and a comma\n\nmore"', '"stable"', columns) == 4
    with pytest.raises(DataError, match="column note, row 1: a cell of 2 lines, in a column that is no text"):
        quoted(tmp_path, '"two\nlines"', "ok", {"note": {"values": ["ok"]}})
    assert quoted(tmp_path, "ok\n\n", "ok\n") == 4  # empty lines are no rows
    assert quoted(tmp_path, '"ok\n"', "ok", {"note": {"values": ["ok"]}}) == 4  # a blank, as around other cells


def test_a_quote_in_a_file_of_two_columns_without_a_last_line_break(tmp_path: Path) -> None:
    schema = schema_for({"values": ["a", "b"]})
    (tmp_path / "q.csv").write_text('y,x\nno,"a\nyes,b\nno,a"')
    with pytest.raises(DataError, match="column x, row 1: a cell of 3 lines, in a column that is no text"):
        encoded(tmp_path / "q.csv", schema)
    (tmp_path / "q.csv").write_bytes(b'y,x\rno,a\ryes,"b\rno,a"')
    with pytest.raises(DataError, match="column x, row 2: a cell of 2 lines"):
        encoded(tmp_path / "q.csv", schema)


@pytest.mark.parametrize("encoding", ["UTF-8", "utf8", "UTF8", "U8"])
def test_an_encoding_has_several_names(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_bytes("\ufeffx,y\n1,no\n2,yes\n".encode())
    schema = schema_for(NUMBERS)
    assert same(encoded(tmp_path / "b.csv", schema, Form(encoding=encoding)), encoded(tmp_path / "b.csv", schema))
