"""A schema with a column of tokens from run to prediction: `fedpriv predict` and Python say what the run measured."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from text_data import tokenizer_json
from torch import nn
from torch.nn import functional

import fedpriv
from fedpriv.commands.predict import main
from fedpriv.common.errors import RunFolderError
from fedpriv.config.compose import compose
from fedpriv.data.table_schema import schema_of
from fedpriv.runs.start import start_run
from fedpriv.training.trained_model import TableModel, TextModel

NOTES = ["the cat sat", "the dog sat", "sat the dog", "the the cat", "", "x" * 300, "cat"]
KINDS = {
    "class": "target: {column: kind, task: classification, classes: [cat, dog]}\ncolumns:\n  note: {text: tokens",
    "next": "target: {column: note, task: next_token}\ncolumns:\n  note: {text: tokens",
}

COLUMNS = ["length: 16", "tokenizer: words, length: 4, buckets: 99", "tokenizer: tokenizer.json"]


def notes(count: int = 70) -> pandas.DataFrame:
    texts = [NOTES[k % len(NOTES)] for k in range(count)]
    return pandas.DataFrame({"note": texts, "kind": ["dog" if "dog" in text else "cat" for text in texts]})


def trained(folder: Path, kind: str, column: str, *options: str) -> Path:
    """The run's folder. Schema and tokenizer are gone afterwards."""
    tokenizer_json(folder)
    (folder / "schema.yaml").write_text(f"{KINDS[kind]}, {column}}}\n")
    notes().to_csv(folder / "notes.csv", index=False)
    files = [f"dataset.root={folder}/notes.csv", f"dataset.test_root={folder}/notes.csv"]
    own = ["dataset=table", *files, f"dataset.schema_file={folder}/schema.yaml", f"dataset.cache={folder}/cache"]
    sites = ["num_clients=2", "clients_per_round=2", "num_rounds=3", "local.batch_size=8", "local.lr=0.7"]
    start_run(compose([*own, *sites, "operations.report=false", *options]), folder / "run")
    (folder / "schema.yaml").unlink()
    (folder / "tokenizer.json").unlink()
    return folder / "run"


def measured(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


@pytest.mark.parametrize(
    "column", ["length: 16", "tokenizer: words, length: 4, buckets: 99", "tokenizer: tokenizer.json"]
)
def test_classes_of_texts_are_those_that_the_run_measured(column: str, tmp_path: Path) -> None:
    run = trained(tmp_path, "class", column, "strategy=fedavg", "model=bag")
    model = fedpriv.load(run).model
    assert isinstance(model, TableModel)
    frame = notes()
    right = model.predict(frame[["note"]]) == frame["kind"].to_numpy()
    assert float(np.mean(right)) == pytest.approx(measured(run)["accuracy"]["final"])
    assert torch.equal(model.outputs(str(tmp_path / "notes.csv")), model.outputs({"note": frame["note"]}))


@pytest.mark.parametrize(
    ("column", "options"),
    [
        ("length: 12", ("strategy=fedavg", "model=gru", "local.epochs=4")),
        ("length: 6, tokenizer: tokenizer.json", ("strategy=fedavg", "model=transformer", "local.epochs=3")),
    ],
    ids=["bytes", "a tokenizer"],
)
def test_next_tokens_have_a_perplexity_and_texts_go_on(
    column: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, "next", column, *options)
    summary = measured(run)
    assert summary["metrics"]["leading"] == "perplexity" and 0 < summary["accuracy"]["final"] < 1
    capsys.readouterr()
    assert main([f"run={run}", str(tmp_path / "notes.csv")]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert list(rows[0]) == ["note", "kind", "note perplexity", "note continued"]
    model = fedpriv.load(run).model
    assert isinstance(model, TableModel)
    further = model.predict(notes()[["note"]]).tolist()
    # The mean loss of the run's test rows is that of the texts: those without a next token count as 0.
    losses = [np.log(float(row["note perplexity"])) if row["note perplexity"] else 0.0 for row in rows]
    assert float(np.mean(losses)) == pytest.approx(summary["loss"]["final"], rel=1e-3)
    assert [row["note continued"] for row in rows] == further
    assert further[4] == "" and rows[4]["note perplexity"] == ""  # of an empty text nothing is said
    assert all(text for place, text in enumerate(further[:7]) if place != 4)
    shares = model.probabilities(notes()[["note"]])
    first = model.texts.continued(*model._table(notes()[["note"]]), further=1)
    rule = model.schema.tokens.rule  # type: ignore[union-attr]
    assert first[0] == rule.text([int(shares[0, 1:].argmax()) + 1])


class Following(nn.Module):
    """After token k it foresees token k + 1, whatever was before."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.one_hot((ids + 1) % 257, 257).float()


def test_texts_go_on_from_their_last_tokens_also_where_they_are_longer_than_an_input() -> None:
    schema = schema_of(
        {"target": {"column": "note", "task": "next_token"}, "columns": {"note": {"text": "tokens", "length": 4}}}, "s"
    )
    model = TextModel(Following(), schema)
    table = pa.table({"note": ["a", "xyzabcd", "abcd", "ab", "", None]})
    assert model.continued(table, "t", 6) == ["bcdefg", "efghij", "efghij", "cdefgh", "", ""]
    assert model.following(table, "t").argmax(1).tolist()[:4] == [1 + ord(letter) for letter in "beec"]
    low, none = np.exp(np.log(np.e + 256) - 1), np.exp(np.log(np.e + 256))
    found = model.perplexity(pa.table({"note": ["abcdef", "aaaa", "ab", "a", None]}), "t")
    assert found[:3].tolist() == pytest.approx([low, none, low]) and np.isnan(found[3:]).all()


def test_a_private_run_of_next_tokens_and_its_parquet(tmp_path: Path) -> None:
    noise = ("privacy.target_epsilon=8", "strategy=dpsgd", "model=bag")
    run = trained(tmp_path, "next", "length: 8", *noise)
    assert measured(run)["privacy"]["verified_epsilon"] <= 8
    notes().to_parquet(tmp_path / "notes.parquet")
    assert main([f"run={run}", str(tmp_path / "notes.parquet"), f"out={tmp_path / 'more.parquet'}"]) == 0
    table = parquet.read_table(tmp_path / "more.parquet")
    assert table.column_names[-2:] == ["note perplexity", "note continued"]
    assert np.isnan(table["note perplexity"].to_pylist()[4]) and table["note perplexity"].to_pylist()[0] > 1


def test_a_tokenizer_that_is_damaged_is_found(tmp_path: Path) -> None:
    run = trained(tmp_path, "class", "tokenizer: tokenizer.json", "strategy=fedavg", "model=bag")
    said = (run / "tokenizer.json").read_text()
    for broken in (said.replace("cat", "cow"), "{}", None):
        if broken is None:
            (run / "tokenizer.json").unlink()
        else:
            (run / "tokenizer.json").write_text(broken)
        with pytest.raises(RunFolderError, match="the schema or tokenizer cannot be read"):
            fedpriv.load(run).model.predict(notes())
