"""Texts on nodes: a table with a column of text through the gate, by a schema that names a tokenizer file."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest
from deployed import Machines, codes, refused
from test_tables_on_nodes import EXAMPLE, POLICY, RUN
from text_data import tokenizer_json

import fedpriv
from fedpriv.data.table_schema import read_schema

CLASSES = "target: {column: kind, task: classification, classes: [cat, dog]}"
#: (model, target, column of text).
SCHEMAS = {
    "hashed": (
        "linear",
        "target: {column: kind, task: classification, classes: [cat, dog]}",
        "{text: hashed, dims: 16}",
    ),
    "tokens": (
        "bag",
        "target: {column: kind, task: classification, classes: [cat, dog]}",
        "{text: tokens, length: 8, tokenizer: tokenizer.json}",
    ),
    "next": ("bag", "target: {column: note, task: next_token}", "{text: tokens, length: 8, tokenizer: tokenizer.json}"),
}


class Archives(Machines):
    """Nodes with a CSV file of notes each."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.model, target, column = SCHEMAS[kind]
        self.schema = f"{target}\ncolumns:\n  note: {column}\n"
        super().__init__(folder, 3, POLICY | {"budgets": [EXAMPLE | {"observer": "secure-sum"}]})
        self.introduce()

    def write_data(self) -> None:
        (self.folder / "schema.yaml").write_text(self.schema)
        tokenizer_json(self.folder)
        self.counts = [12, 20, 16]
        for number, count in enumerate((*self.counts, 10)):
            kinds = [("cat", "dog")[k % 2] for k in range(count)]
            rows = pandas.DataFrame({"note": [f"the {kind} sat" for kind in kinds], "kind": kinds})
            place = self.data(number) if number < 3 else self.folder / "server"
            place.mkdir(parents=True, exist_ok=True)
            rows.to_csv(place / "notes.csv", index=False)
        self.digest = read_schema(self.folder / "schema.yaml").digest

    def data(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def write_policy(self, number: int, policy: dict[str, object]) -> None:
        super().write_policy(number, {"schemas": [self.digest], **policy})

    def declared(self, number: int) -> tuple[str, ...]:
        return ("table=notes.csv", f"schema_file={self.folder / 'schema.yaml'}")

    def overrides(self) -> str:
        own = (
            f"dataset=on_nodes model={self.model} run_dir={self.folder / 'run'}",
            f"dataset.schema_file={self.folder / 'schema.yaml'} dataset.schema_digest={self.digest}",
            f"dataset.examples=[{','.join(map(str, self.counts))}]",
            f"dataset.test_root={self.folder / 'server/notes.csv'}",
            "num_clients=3 clients_per_round=3 strategy.server.min_replies=3 engine.round_timeout=60",
            "operations.report=false",
            RUN.format(noise=8.0, rounds=1, lr=3.0),
        )
        return " ".join(own)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_notes_are_learned_from_in_a_secure_sum(kind: str, tmp_path: Path) -> None:
    network = Archives(tmp_path, kind)
    assert set(codes(network.serve(network.overrides()))) == {"sent"}
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["privacy"]["observer"] == "secure-sum" and summary["model"] == network.model
    found = fedpriv.load(tmp_path / "run").model.predict(tmp_path / "server/notes.csv")
    assert len(found) == 10


def test_another_tokenizer_is_another_schema(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The nodes' own copy of the schema is the same text, and the file that it names has another content."""
    network = Archives(tmp_path, "tokens")
    (tmp_path / "other").mkdir()
    other = tmp_path / "other/schema.yaml"
    other.write_text(network.schema)
    tokenizer_json(tmp_path / "other").write_text(tokenizer_json(tmp_path).read_text().replace("cat", "cow"))
    for number in range(network.count):
        assert network.command("declare", number, f"schema_file={other}") == 0
    assert refused(network, network.overrides()) == {"POLICY"}
    assert read_schema(other).digest in caplog.text and network.digest in caplog.text
