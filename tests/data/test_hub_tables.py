"""Tables and texts of the hub, from small files of the form that the sets have."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
import yaml

from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import HUB_TABLES
from fedpriv.config.own_options import CONF
from fedpriv.data.load import load_federated
from fedpriv.data.table_schema import read_schema
from fedpriv.data.types import FederatedData


def load(folder: Path, name: str | None, *options: str) -> FederatedData:
    own = ["dataset=huggingface", f"dataset.root={folder}", f"dataset.cache={folder.parent / 'cache'}"]
    named = [] if name is None else [f"dataset.hub_name={name}"]
    few = ["num_clients=3", "clients_per_round=3", "dataset.auxiliary=0", "strategy=fedavg"]
    return load_federated(compose([*own, *named, *few, *options]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    return tmp_path / "set"


def adult(folder: Path, rows: int = 20) -> None:
    names = said = yaml.safe_load((CONF / "schema/adult.yaml").read_text())["columns"]
    cells = {"age": "39", "workclass": "?", "education": "Bachelors", "education.num": "13", "sex": "Male"}
    cells |= {"capital.gain": "0", "capital.loss": "0", "hours.per.week": "40", "fnlwgt": "77516"}
    header = [*names, "income"]
    cells |= {name: column["values"][0] for name, column in said.items() if "values" in column and name not in cells}
    lines = [[*(cells.get(name, "x") for name in names), "<=50K" if k % 2 else ">50K"] for k in range(rows)]
    (folder / "adult.csv").write_text("\n".join(map(",".join, [header, *lines])) + "\n")


def test_adult_is_a_csv_file_whose_rows_are_divided(folder: Path) -> None:
    adult(folder)
    data = load(folder, "scikit-learn/adult-census-income", "model=linear").dataset
    assert (len(data.train), len(data.test)) == (16, 4) and data.classes == ("<=50K", ">50K")
    assert data.schema is not None and data.name == "huggingface"
    names = data.schema.input_names
    row = dict(zip(names, data.train.inputs[0].tolist(), strict=True))
    assert row["workclass missing"] == 1 and row["sex=Male"] == 1 and row["education.num"] == pytest.approx(0.6)


def test_newsgroups_are_json_lines_with_a_test_split(folder: Path) -> None:
    topics = ["rec.autos", "sci.space", "talk.politics.guns"]
    for split, count in (("train", 12), ("test", 6)):
        said = [{"text": f"text {k}", "label": k % 3, "label_text": topics[k % 3]} for k in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said))
    data = load(folder, "SetFit/20_newsgroups", "model=linear").dataset
    assert (len(data.train), len(data.test)) == (12, 6)
    assert [data.classes[label] for label in data.test.targets] == topics * 2


def test_shakespeares_characters_are_clients_that_predict_the_next_letter(folder: Path) -> None:
    lines = [f"character {k % 3},{'to be or not to be ' * 5:.80},a" for k in range(30)]
    (folder / "shakespeare.csv").write_text("\n".join(["character_id,x,y", *lines]) + "\n")
    sites = ["partition=column", "partition.column=character_id"]
    data = load(folder, "flwrlabs/shakespeare", "model=gru", *sites)
    assert data.dataset.sites == ("character 0", "character 1", "character 2")
    assert data.dataset.shape == (80,) and data.dataset.vocabulary == 257
    assert data.dataset.train.targets[0, :3].tolist() == [1 + ord(letter) for letter in "o b"]


def test_stack_overflow_is_parquet_in_parts(folder: Path) -> None:
    (folder / "data").mkdir()
    for split, count in (("train", 9), ("test", 3)):
        rows = {"title": [f"how to {k}" for k in range(count)], "body": ["b"] * count, "label": [0] * count}
        datasets.Dataset.from_dict(rows).to_parquet(folder / f"data/{split}-00000-of-00001.parquet")
    data = load(folder, "pacovaldez/stackoverflow-questions", "model=transformer").dataset
    assert (len(data.train), len(data.test)) == (9, 3) and data.task.name == "next_token"


def test_a_set_of_ones_own_has_names_for_its_labels(folder: Path) -> None:
    features = datasets.Features(
        {"words": datasets.Value("string"), "kind": datasets.ClassLabel(names=["ham", "spam"])}
    )
    rows = {"words": [f"w {k}" for k in range(20)], "kind": [k % 2 for k in range(20)]}
    datasets.Dataset.from_dict(rows, features).to_parquet(folder / "train.parquet")
    schema = folder.parent / "schema.yaml"
    target = "target: {column: kind, task: classification, classes: [spam, ham]}\n"
    schema.write_text(target + "columns:\n  words: {text: tokens, tokenizer: words, length: 8, buckets: 50}\n")
    data = load(folder, None, f"dataset.schema_file={schema}", "model=bag").dataset
    assert data.vocabulary == 51 and sorted(data.test.targets.tolist()) == [0, 0, 1, 1]
    schema.write_text(schema.read_text().replace("words:", "wordz:"))
    with pytest.raises(DataError, match=r"has no column wordz, .*did the file rename it to words\?"):
        load(folder, None, f"dataset.schema_file={schema}", "model=bag")


def test_what_is_no_table_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="there are no parquet, csv nor json files in this folder"):
        load(folder, "flwrlabs/shakespeare", "model=gru")
    (folder / "text.txt").write_text("a\nb\n")
    (folder / "code.json").write_text("")
    with pytest.raises(DataError, match=r"cannot be read as a set of the hub|read from parquet, arrow, csv or json"):
        load(folder, "flwrlabs/shakespeare", "model=gru")
    adult(folder)
    (folder / "code.json").unlink()
    (folder / "text.txt").unlink()
    with pytest.raises(OptionError, match="the splits of this set are train"):
        load(folder, "scikit-learn/adult-census-income", "model=linear", "dataset.train_split=other")


def test_every_schema_of_the_hub_can_be_read() -> None:
    for name in HUB_TABLES.values():
        assert read_schema(CONF / "schema" / f"{name}.yaml").needed
