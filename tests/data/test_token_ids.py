"""Texts as token ids: the rules, their limits, tokenizer files, and the targets of next tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from text_data import tokenizer_json

from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.compose import compose
from fedpriv.data.load import load_federated
from fedpriv.data.table_rows import encode, task_of
from fedpriv.data.table_schema import TableSchema, read_schema, schema_of
from fedpriv.data.texts import TokenRule
from fedpriv.mechanisms.tasks import PADDING, NextToken

LONG = "ab " * (10 << 20)


def said(target: str = "next_token", **column: object) -> dict[str, object]:
    aim: dict[str, object] = {"column": "note", "task": target}
    if target == "classification":
        aim = {"column": "kind", "task": target, "classes": ["a", "b"]}
    return {"target": aim, "columns": {"note": {"text": "tokens", **column}}}


def rows(schema: TableSchema, *notes: str | None) -> tuple[np.ndarray, np.ndarray | None]:
    found = encode(pa.table({"note": pa.array(notes, pa.string())}), schema, "file")
    return found.inputs, found.targets


def test_bytes_are_numbered_from_one_and_the_next_one_is_the_target() -> None:
    schema = schema_of(said(length=4), "s")
    inputs, targets = rows(schema, "abcdef", "é", "x", "", None)
    assert inputs.dtype == np.uint16 and schema.vocabulary == 257
    assert inputs.tolist() == [[98, 99, 100, 101], [196, 170, 0, 0], [121, 0, 0, 0], [0] * 4, [0] * 4]
    none = PADDING
    assert targets is not None and targets.tolist()[:2] == [[99, 100, 101, 102], [170, none, none, none]]
    assert (targets[2:] == none).all()  # nothing follows one byte, or none
    task = task_of(schema)
    assert isinstance(task, NextToken) and task.tokens == 4 and task.labels[98] == "a" and task.num_outputs == 257


def test_text_comes_back_from_its_ids_and_the_last_tokens_can_be_asked_for() -> None:
    rule = TokenRule("bytes")
    assert [rule.text(row) for row in rule.ids(["née", ""], 6).tolist()] == ["née", ""]
    assert rule.text(rule.ids(["abcdef"], 3, last=True)[0].tolist()) == "def"
    words = TokenRule("words", 1000)
    assert words.ids(["one TWO three"], 2).tolist() == words.ids(["one two"], 2).tolist()
    assert words.ids(["one two three"], 2, last=True).tolist() == words.ids(["Two, three"], 2).tolist()


def test_hashed_words_do_not_change_from_machine_to_machine() -> None:
    """A change of the hash would be another model under the same digest."""
    assert TokenRule("words", 1 << 16).ids(["hello, World"], 3).tolist() == [[64072, 15612, 0]]
    assert TokenRule("words", 3).ids([LONG[:3000]], 500).max() <= 3


@pytest.mark.parametrize("kind", ["bytes", "words", "file"])
def test_ten_megabytes_and_broken_letters_cost_no_more_than_their_first_tokens(kind: str, tmp_path: Path) -> None:
    if kind == "file":
        kind = str(tokenizer_json(tmp_path))
    rule = TokenRule(kind, 100)
    assert (rule.ids([LONG], 5) == rule.ids([LONG[:200]], 5)).all()
    assert (rule.ids([LONG], 5, last=True) == rule.ids([LONG[-200:]], 5, last=True)).all()
    assert rule.ids(["\ud800", "\0", " "], 5).shape == (3, 5)  # half a letter, as Python may have it
    assert rule.ids(["a", LONG], 5).max() < rule.vocabulary


def test_a_tokenizer_file_counts_by_its_content(tmp_path: Path) -> None:
    file = tokenizer_json(tmp_path)
    (tmp_path / "schema.yaml").write_text(json.dumps(said(length=5, tokenizer="tokenizer.json")))
    schema = read_schema(tmp_path / "schema.yaml")
    assert schema.tokens is not None and schema.vocabulary == 6
    assert rows(schema, "the dog sat", "cat")[0].tolist() == [[2, 4, 5, 0, 0], [3, 0, 0, 0, 0]]
    assert schema.tokens.rule.text([2, 3, 0]) == "the cat" and task_of(schema).labels[3] == "cat"
    file.rename(tmp_path / "other.json")
    (tmp_path / "renamed.yaml").write_text(json.dumps(said(length=5, tokenizer="other.json")))
    assert read_schema(tmp_path / "renamed.yaml").digest == schema.digest
    (tmp_path / "other.json").write_text((tmp_path / "other.json").read_text().replace("cat", "cow"))
    assert read_schema(tmp_path / "renamed.yaml").digest != schema.digest
    named = said(length=5, tokenizer="other.json", sha256=schema.tokens.sha256)
    (tmp_path / "renamed.yaml").write_text(json.dumps(named))
    with pytest.raises(OptionError, match=r"other\.json is another file: its SHA-256 is"):
        read_schema(tmp_path / "renamed.yaml")


def test_defaults_that_are_written_out_are_the_same_schema() -> None:
    plain, full = schema_of(said(), "s"), schema_of(said(length=128, tokenizer="bytes"), "s")
    assert plain.digest == full.digest != schema_of(said(length=127), "s").digest
    words = schema_of(said("classification", tokenizer="words"), "s")
    assert words.digest == schema_of(said("classification", tokenizer="words", buckets=65536), "s").digest
    assert words.vocabulary == 65537


def test_other_columns_than_that_of_tokens_are_ignored() -> None:
    both = said("classification")
    both["columns"] = {"note": {"text": "tokens"}, "age": {"ignore": True}}
    assert schema_of(both, "s").num_inputs == 128


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is no tokenizer"),
        ("{}", "is no tokenizer"),
        ("not JSON", "is no tokenizer"),
        ('{"model": {"type": "WordLevel", "vocab": {}, "unk_token": "?"}}', "ids up to -1; allowed: up to 1048575"),
        ('{"model": {"type": "WordLevel", "vocab": {"a": 1048576}, "unk_token": "a"}}', "ids up to 1048576; allowed"),
        ('{"model": {"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "a"}}', "is no tokenizer"),
        (None, "the tokenizer cannot be read (No such file or directory)"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(content: str | None, words: str, tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(json.dumps(said(tokenizer="broken.json")))
    if content is not None:
        (tmp_path / "broken.json").write_text(content)
    with pytest.raises(OptionError) as error:
        read_schema(tmp_path / "schema.yaml")
    assert (
        error.value.option == "dataset.schema_file" and words in str(error.value) and "broken.json" in str(error.value)
    )


def test_bytes_that_are_no_utf_8_are_named_by_row() -> None:
    cells = pa.array([b"fine", b"\xff\xfe"], pa.binary()).view(pa.string())
    for schema in (schema_of(said(), "s"), schema_of(said("classification", text="hashed"), "s")):
        table = pa.table({"note": cells, "kind": ["a", "b"]})
        with pytest.raises(DataError, match="file: column note, row 2: is not UTF-8"):
            encode(table, schema, "file")


def test_a_table_of_next_tokens_is_loaded_as_text(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(json.dumps(said(length=6)))
    (tmp_path / "notes.csv").write_text("note\n" + "".join(f"text {number}\n" for number in range(20)))
    files = [f"dataset.{name}={tmp_path / file}" for name, file in (("root", "notes.csv"), ("cache", "cache"))]
    options = [
        "dataset=table",
        f"dataset.schema_file={tmp_path / 'schema.yaml'}",
        "num_clients=4",
        "clients_per_round=4",
    ]
    data = load_federated(compose([*options, *files, "strategy=fedavg", "model=gru"]))
    assert data.dataset.vocabulary == 257 and data.dataset.shape == (6,)
    assert len(data.dataset.train) == 16 and data.dataset.train.targets.shape == (16, 6)
