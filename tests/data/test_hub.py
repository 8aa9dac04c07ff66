"""Sets of the hub: what is found in the hub's own form, what is said where it is not there, what is fetched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import SMALL, Outcome
from picture_sets import CLASSES, IMAGE, as_png, pictures, write_card, write_hub_set, write_parquet
from PIL import Image

from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import HUB_TABLES, DatasetConfig
from fedpriv.config.own_options import CONF
from fedpriv.data import Dataset, hub
from fedpriv.data.load import load_dataset, load_federated
from fedpriv.data.partition import Split, write_split
from fedpriv.data.table_schema import read_schema
from fedpriv.data.types import FederatedData


def load(root: Path | None, *, seed: int = 0, **options) -> Dataset:
    given = {"name": "huggingface", "root": None if root is None else str(root), "download": False, "auxiliary": 0}
    return load_dataset(DatasetConfig(**{**given, **options}), seed)


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write(train=30, test=12)``: a set in the hub's form; picture k has label k mod 3. Returns its folder."""

    def make(root: Path = tmp_path / "set", /, **splits: int) -> Path:
        write_hub_set(root, **splits)
        return root

    return make


# --- what is read ----------------------------------------------------------------------------------------


def test_a_set_in_the_hubs_own_form(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedpriv.data.decoding.BLOCK_BYTES", 7 * 90)  # seven pictures
    root, cache = write(train=30, test=12), tmp_path / "cache"
    data = load(root, cache=str(cache))
    assert (data.classes, data.shape, data.name) == (CLASSES, (3, 6, 5), "huggingface")
    np.testing.assert_array_equal(data.train.inputs, pictures(30, 0))
    np.testing.assert_array_equal(data.test.inputs, pictures(12, 1))
    np.testing.assert_array_equal(data.train.targets, np.arange(30) % 3)
    np.testing.assert_array_equal(data.test.targets, np.arange(12) % 3)
    assert (data.mean, data.std) == ((0.5,) * 3, (0.5,) * 3)  # public constants, nothing of the pictures
    assert isinstance(data.train.inputs, np.memmap)
    assert not list((cache / "pictures").glob(".*"))  # no copy of the tables is left

    for slow in ("_look_up", "_read"):
        monkeypatch.setattr(hub, slow, None)
    again = load(root, cache=str(cache), seed=1)  # divided already: the seed changes nothing
    np.testing.assert_array_equal(again.train.inputs, data.train.inputs)


def test_without_a_test_split_it_is_divided_by_seed(write: Write):
    root = write(train=30)
    data, again, other = (load(root, test_fraction=0.3, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(np.bincount(data.train.targets), [7, 7, 7])
    np.testing.assert_array_equal(np.bincount(data.test.targets), [3, 3, 3])
    whole = {image.tobytes(): row % 3 for row, image in enumerate(pictures(30))}
    read = {
        image.tobytes(): label
        for part in (data.train, data.test)
        for image, label in zip(part.inputs, part.targets, strict=True)
    }
    assert read == whole
    np.testing.assert_array_equal(again.test.inputs, data.test.inputs)
    assert (other.test.inputs != data.test.inputs).any()


def test_splits_are_found_or_named(write: Write):
    root = write(train=30, validation=9, extra=6)
    np.testing.assert_array_equal(load(root).test.inputs, pictures(9, 1))
    named = load(root, train_split="validation", test_split="extra")
    np.testing.assert_array_equal(named.train.inputs, pictures(9, 1))
    np.testing.assert_array_equal(named.test.inputs, pictures(6, 2))
    divided = load(root, test_split="train")
    assert (len(divided.train), len(divided.test)) == (24, 6)
    with pytest.raises(OptionError, match=r"^dataset\.test_split=tset: .*train, validation, extra"):
        load(root, test_split="tset")


def test_without_a_card_the_files_say_enough(tmp_path: Path):
    from datasets import ClassLabel, Features
    from datasets import Image as ImageFeature

    schema = Features({"img": ImageFeature(), "label": ClassLabel(names=list(CLASSES))}).arrow_schema
    for split, rows in (("train", 9), ("test", 3)):
        labels = pa.array(np.arange(rows) % 3)
        table = pa.table({"img": pa.array(map(as_png, pictures(rows)), IMAGE), "label": labels})
        (tmp_path / "set").mkdir(exist_ok=True)
        pq.write_table(table.cast(schema), tmp_path / "set" / f"{split}-00000-of-00001.parquet")
    data = load(tmp_path / "set", channels=1, size=4)
    assert (data.classes, data.shape, len(data.train), len(data.test)) == (CLASSES, (1, 4, 4), 9, 3)


def test_one_of_several_configurations(write: Write, tmp_path: Path):
    root = write(train=9)
    card = ["---", "configs:"]
    for number, subset in enumerate(("small", "large")):
        write_parquet(root / subset / "train-0.parquet", pictures(9, number), label=np.arange(9) % 3)
        card += [f"- config_name: {subset}", "  data_files:", "  - split: train", f"    path: {subset}/train-*"]
    (root / "README.md").write_text("\n".join([*card, "---", ""]))
    columns = {"image_column": "img", "label_column": "label", "test_split": "train"}
    with pytest.raises(OptionError, match=r"^dataset\.subset=null: .*small.*large"):
        load(root, **columns)
    with pytest.raises(OptionError, match=r"^dataset\.subset=huge: .*small.*large"):
        load(root, subset="huge", **columns)
    # Without `dataset_info` nothing says that these are pictures and classes.
    with pytest.raises(
        OptionError, match=r"^dataset\.image_column=null: .*img \(bytes/path\), label \(int64\); choose"
    ):
        load(root, subset="large")
    data = load(root, subset="large", **columns)
    assert data.classes == ("0", "1", "2")
    read = {image.tobytes() for part in (data.train, data.test) for image in part.inputs}
    assert read == {image.tobytes() for image in pictures(9, 1)}


@pytest.mark.parametrize(
    ("kind", "values", "classes"),
    [("int64", [4, 7, 9], ("4", "7", "9")), ("string", ["c", "a", "b"], ("a", "b", "c"))],
)
def test_labels_without_names_are_their_values_in_order(tmp_path: Path, kind: str, values: list[Any], classes):
    for split, rows in (("train", 9), ("test", 6)):
        labels = [values[row % 3] for row in range(rows)]
        write_parquet(tmp_path / "data" / f"{split}-0.parquet", pictures(rows), kind=labels)
    write_card(tmp_path, {"kind": kind}, {"train": 9, "test": 6})
    with pytest.raises(OptionError, match=r"^dataset\.label_column=null: no column of labels among .*kind .*choose"):
        load(tmp_path)
    data = load(tmp_path, label_column="kind")
    assert data.classes == classes
    assert [classes[label] for label in data.train.targets] == [str(values[row % 3]) for row in range(9)]


# --- what is wrong ---------------------------------------------------------------------------------------


def test_fine_and_coarse_labels_need_a_choice(tmp_path: Path):
    labels = {"fine": np.arange(9) % 3, "coarse": np.arange(9) % 2}
    write_parquet(tmp_path / "data" / "train-0.parquet", pictures(9), **labels)
    write_card(tmp_path, {"fine": "class_label", "coarse": "class_label"}, {"train": 9})
    with pytest.raises(OptionError, match=r"^dataset\.label_column=null: fine and coarse are labels: choose one"):
        load(tmp_path)
    chosen = load(tmp_path, label_column="coarse")
    assert sorted([*chosen.train.targets, *chosen.test.targets]) == sorted(np.arange(9) % 2)
    with pytest.raises(OptionError, match=r"^dataset\.label_column=medium: .*img \(Image\), fine \(ClassLabel\)"):
        load(tmp_path, label_column="medium")
    with pytest.raises(OptionError, match=r"^dataset\.image_column=fine: is no column of pictures"):
        load(tmp_path, image_column="fine")


def test_a_set_without_pictures_is_none_for_image_classification(tmp_path: Path):
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"text": ["a", "b"], "label": [0, 1]}), tmp_path / "data" / "train-0.parquet")
    with pytest.raises(OptionError, match=r"^dataset\.image_column=null: .*text \(string\).*no set for image"):
        load(tmp_path)


@pytest.mark.parametrize("labels", [[0, 1, 2, -1, -1, 0], [0, 1, 2, None, None, 0]])
def test_missing_labels_name_the_split_and_the_way_out(write: Write, labels: list[int | None]):
    root = write(train=9, test=6)
    write_parquet(root / "data" / "test-00000-of-00001.parquet", pictures(6), label=pa.array(labels, pa.int64()))
    with pytest.raises(DataError, match=r"^split test: 2 of 6 labels are missing .*dataset\.test_split"):
        load(root)
    assert len(load(root, test_split="train").test) == 3


def test_pictures_of_different_sizes_need_an_option(write: Write):
    root = write(train=9, test=3)
    images = [*pictures(2), *pictures(1, size=(7, 5))]
    write_parquet(root / "data" / "test-00000-of-00001.parquet", images, label=np.arange(3))
    with pytest.raises(OptionError, match=r"^dataset\.size=null: test\[2\] has 7 x 5 pixels, others 6 x 5"):
        load(root)
    assert load(root, size=4).shape == (3, 4, 4)


def test_broken_and_missing_pictures_are_named_by_split_and_row(write: Write, tmp_path: Path):
    root = write(train=9, test=4)
    outside = tmp_path / "outside.png"
    Image.new("RGB", (5, 6)).save(outside)
    broken = [{"bytes": b"GIF", "path": None}, None, {"bytes": None, "path": str(outside)}, pictures(1)[0]]
    write_parquet(root / "data" / "test-00000-of-00001.parquet", broken, label=np.arange(4) % 3)
    with pytest.raises(DataError) as error:
        load(root)
    words = (r"3 of the pictures", "test[0] (not a picture)", "test[1] (there is no", "test[2] (there is no")
    assert all(part in str(error.value) for part in words)  # a path out of the folder is not followed


def test_a_truncated_file_and_a_card_that_counts_otherwise(write: Write):
    root = write(train=30, test=9)
    write_card(root, {"label": "class_label"}, {"train": 31, "test": 9})
    with pytest.raises(DataError, match=r"set: cannot be read as a set of the hub: .*31"):
        load(root)
    file = root / "data" / "train-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"set: cannot be read as a set of the hub: .*[Pp]arquet"):
        load(root)


def test_a_card_that_points_out_of_the_folder(write: Write, tmp_path: Path):
    write(tmp_path / "other", train=9)
    root = write(train=9)
    card = (root / "README.md").read_text()
    (root / "README.md").write_text(card.replace("data/train-*", "../other/data/train-*"))
    with pytest.raises(DataError, match=r"set/README\.md: points at data outside of the folder"):
        load(root)


def test_code_and_other_forms_are_not_read(tmp_path: Path):
    (tmp_path / "train.parquet").write_text("")
    for number in range(3):
        (tmp_path / f"train{number}.csv").write_text("img,label\n1,2\n")
    with pytest.raises(DataError, match=r"sets are read from parquet, arrow or pictures, this one is csv"):
        load(tmp_path)


# --- the hub ---------------------------------------------------------------------------------------------


@pytest.fixture
def the_hub(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A hub with one set, uoft-cs/cifar10; what it was asked for. None as the first entry cuts the line."""
    import shutil

    import httpx
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError

    stored = write(tmp_path / "stored", train=9, test=3)
    asked: list[Any] = []

    def snapshot(name: str, *, repo_type: str, revision: str | None, local_dir: Path, allow_patterns: list[str]) -> str:
        cut = asked[:1] == [None]
        asked.append((name, revision))
        assert repo_type == "dataset" and not [pattern for pattern in allow_patterns if "py" in pattern]
        if name != "uoft-cs/cifar10":
            request = httpx.Request("GET", "https://hub.example")
            raise RepositoryNotFoundError("404", response=httpx.Response(404, request=request))
        shutil.copytree(stored, local_dir)
        if cut:
            raise ConnectionError("the line is cut")
        return str(local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    return asked


def test_the_hub_is_asked_once_and_only_where_told(the_hub: list[Any], tmp_path: Path):
    place = {"hub_name": "uoft-cs/cifar10", "cache": str(tmp_path / "cache")}
    with pytest.raises(DataError, match=r"^dataset\.hub_name=uoft-cs/cifar10: .*not been fetched.*dataset\.download="):
        load(None, **place)
    assert the_hub == []
    data = load(None, download=True, **place)
    assert data.name == "uoft-cs/cifar10"
    np.testing.assert_array_equal(data.train.inputs, pictures(9))
    load(None, download=True, **place)
    load(None, **place)
    assert the_hub == [("uoft-cs/cifar10", None)]
    load(None, download=True, revision="refs/convert/parquet", **place)
    folders = sorted(folder.name for folder in (tmp_path / "cache" / "downloads" / "hub").iterdir())
    assert folders == ["uoft-cs--cifar10", "uoft-cs--cifar10@refs--convert--parquet"]


def test_a_download_arrives_whole_or_not_at_all(the_hub: list[Any], tmp_path: Path):
    root = tmp_path / "here" / "fetched"
    the_hub.append(None)
    with pytest.raises(DataError, match=r"^dataset\.download=true: uoft-cs/cifar10 could .* the line is cut"):
        load(root, download=True, hub_name="uoft-cs/cifar10")
    assert list(root.parent.iterdir()) == []
    the_hub.clear()
    assert len(load(root, download=True, hub_name="uoft-cs/cifar10").train) == 9


def test_what_is_not_there(the_hub: list[Any], tmp_path: Path):
    with pytest.raises(OptionError, match=r"^dataset\.hub_name=uoft-cs/cifar: the hub has no such set"):
        load(tmp_path / "new", download=True, hub_name="uoft-cs/cifar")
    with pytest.raises(OptionError, match=r"^dataset\.hub_name=null: dataset\.download=true needs the name"):
        load(tmp_path / "new", download=True)
    with pytest.raises(DataError, match=r"^dataset\.root=.*new: there are no parquet files .*dataset\.hub_name"):
        load(tmp_path / "new")


# --- the whole path --------------------------------------------------------------------------------------


def test_a_run_on_a_set_of_the_hub(cli: Callable[..., Outcome], write: Write, tmp_path: Path):
    write(train=60, test=12)
    source = ("dataset=huggingface", "dataset.root=set", "dataset.cache=cache", "dataset.auxiliary=3")
    outcome = cli(*SMALL, *source, "strategy=fedavg", "model=linear", "num_rounds=1", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "run" / "model.safetensors").is_file()
    (decoded,) = (tmp_path / "cache" / "pictures").glob("*/images.npy")
    np.testing.assert_array_equal(np.load(decoded), np.concatenate([pictures(60, 0), pictures(12, 1)]))

    outcome = cli(*SMALL, "dataset=huggingface", "dataset.hub_name=nobody/nothing", "dataset.cache=cache")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert outcome.err.startswith("fedpriv: dataset.hub_name=nobody/nothing: this set has not been fetched")


def written(folder: Path, writers: list[Any], test: list[Any] = ()) -> Path:  # type: ignore[assignment]
    """A set whose pictures have a writer; the class of picture k is k mod 3."""
    (folder / "data").mkdir(parents=True)
    for split, whose in (("train", writers), ("test", test)):
        if whose:
            images = pa.array([as_png(picture) for picture in pictures(len(whose), 0)], IMAGE)
            columns = {"image": images, "label": [k % 3 for k in range(len(whose))], "writer": whose}
            pq.write_table(pa.table(columns), folder / f"data/{split}-00000-of-00001.parquet")
    return folder


def by_writer(folder: Path, clients: int, *options: str) -> FederatedData:
    named = ["dataset.image_column=image", "dataset.label_column=label", "model=linear"]
    sites = ["partition=column", "partition.column=writer", f"num_clients={clients}", f"clients_per_round={clients}"]
    return load_rows(folder, None, *named, *sites, *options)


@pytest.mark.parametrize("kind", [str, int])
def test_the_writers_of_pictures_are_clients(tmp_path: Path, kind: type) -> None:
    whose = [kind(k % 4) for k in range(40)]
    root = written(tmp_path / "set", whose, [kind(7), *whose[:5]])
    for _ in range(2):  # read anew, and from the cache
        data = by_writer(root, 4)
        assert data.dataset.sites == ("0", "1", "2", "3")
        for client in range(4):
            assert set(data.train_indices(client)) == {k for k in range(40) if k % 4 == client}
        assert data.dataset.test.site is not None and data.dataset.test.site.tolist() == [-1, 0, 1, 2, 3, 0]
    with pytest.raises(OptionError, match=r"^num_clients=3: the column writer has 4 values \(0, 1, 2, 3\)"):
        by_writer(root, 3)
    with pytest.raises(OptionError, match=r"^partition.column=image: must be .* there are image \(dict\), label"):
        by_writer(root, 4, "partition.column=image")
    with pytest.raises(OptionError, match=r"^partition=column: pictures of digits have no columns"):
        load_federated(compose(["dataset=digits", "partition=column", "partition.column=writer"]))


def test_writers_of_one_and_of_many_pictures(tmp_path: Path) -> None:
    """3,500 of them, as in the field's first benchmark; whoever has test pictures alone is no client."""
    whose = [f"f{k:04d}" for k in range(3500)] + ["f0000"] * 400
    root = written(tmp_path / "set", whose)
    words = "^num_clients=3: the column writer has .* one client each"
    with pytest.raises(OptionError, match=words) as found:
        by_writer(root, 3)
    clients = int(str(found.value).split(" has ")[1].split()[0])
    data = by_writer(root, clients)
    sizes = [data.num_examples(client) for client in range(clients)]
    assert 2700 < clients < 2900 and max(sizes) > 300 and min(sizes) == 1
    assert sum(sizes) == len(data.dataset.train)


def test_a_split_does_not_train_on_pictures_of_nobody(tmp_path: Path) -> None:
    """Who has pictures in the set's test part alone is no client."""
    root = written(tmp_path / "set", [*"abababababab"], [*"zza"])
    write_split(tmp_path / "split.npz", Split(np.array([0, 1, 2, 3, 12, 13]), np.array([5, 14])))
    with pytest.raises(OptionError, match=r"^partition.column=writer: 2 of the examples that dataset.split trains on"):
        by_writer(root, 2, f"dataset.split={tmp_path / 'split.npz'}")


def test_a_picture_without_a_writer_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split train: 2 of 10 pictures have no writer, which divides them"):
        by_writer(written(tmp_path / "set", [None, None, *"abcdabcd"]), 4)


# --- Tables and texts of the hub, from small files of the form that the sets have.


def load_rows(folder: Path, name: str | None, *options: str) -> FederatedData:
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
    data = load_rows(folder, "scikit-learn/adult-census-income", "model=linear").dataset
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
    data = load_rows(folder, "SetFit/20_newsgroups", "model=linear").dataset
    assert (len(data.train), len(data.test)) == (12, 6)
    assert [data.classes[label] for label in data.test.targets] == topics * 2


def test_shakespeares_characters_are_clients_that_predict_the_next_letter(folder: Path) -> None:
    lines = [f"character {k % 3},{'to be or not to be ' * 5:.80},a" for k in range(30)]
    (folder / "shakespeare.csv").write_text("\n".join(["character_id,x,y", *lines]) + "\n")
    sites = ["partition=column", "partition.column=character_id"]
    data = load_rows(folder, "flwrlabs/shakespeare", "model=gru", *sites)
    assert data.dataset.sites == ("character 0", "character 1", "character 2")
    assert data.dataset.shape == (80,) and data.dataset.vocabulary == 257
    assert data.dataset.train.targets[0, :3].tolist() == [1 + ord(letter) for letter in "o b"]


def test_stack_overflow_is_parquet_in_parts(folder: Path) -> None:
    (folder / "data").mkdir()
    for split, count in (("train", 9), ("test", 3)):
        rows = {"title": [f"how to {k}" for k in range(count)], "body": ["b"] * count, "label": [0] * count}
        datasets.Dataset.from_dict(rows).to_parquet(folder / f"data/{split}-00000-of-00001.parquet")
    data = load_rows(folder, "pacovaldez/stackoverflow-questions", "model=transformer").dataset
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
    data = load_rows(folder, None, f"dataset.schema_file={schema}", "model=bag").dataset
    assert data.vocabulary == 51 and sorted(data.test.targets.tolist()) == [0, 0, 1, 1]
    schema.write_text(schema.read_text().replace("words:", "wordz:"))
    with pytest.raises(DataError, match=r"has no column wordz, .*did the file rename it to words\?"):
        load_rows(folder, None, f"dataset.schema_file={schema}", "model=bag")


def test_what_is_no_table_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="there are no parquet, csv nor json files in this folder"):
        load_rows(folder, "flwrlabs/shakespeare", "model=gru")
    (folder / "text.txt").write_text("a\nb\n")
    (folder / "code.json").write_text("")
    with pytest.raises(DataError, match=r"cannot be read as a set of the hub|read from parquet, arrow, csv or json"):
        load_rows(folder, "flwrlabs/shakespeare", "model=gru")
    adult(folder)
    (folder / "code.json").unlink()
    (folder / "text.txt").unlink()
    with pytest.raises(OptionError, match="the splits of this set are train"):
        load_rows(folder, "scikit-learn/adult-census-income", "model=linear", "dataset.train_split=other")


def test_every_schema_of_the_hub_can_be_read() -> None:
    for name in HUB_TABLES.values():
        assert read_schema(CONF / "schema" / f"{name}.yaml").needed
