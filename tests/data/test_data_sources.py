"""Every source of pictures: what it reads, and what it says about bad input."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import sys
import urllib.error
from pathlib import Path

import numpy as np
import pytest
from conftest import page_of
from picture_sets import idx, write_mnist
from PIL import Image
from rotation import together

import fedpriv
from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import KNOWN_SETS, DatasetConfig
from fedpriv.data import Dataset
from fedpriv.data.load import load_dataset, load_federated
from fedpriv.data.sources import chosen_classes
from fedpriv.training.sequential import normalise


def dataset_config(name: str, **options) -> DatasetConfig:
    return DatasetConfig(**{"name": name, "root": None, "download": False, "auxiliary": 0, **options})


def load(name: str, root: Path | None = None, *, seed: int = 0, **options) -> Dataset:
    return load_dataset(dataset_config(name, root=None if root is None else str(root), **options), seed)


# --- digits ----------------------------------------------------------------------------------------------


def test_digits_are_the_same_public_split_for_every_seed():
    digits = load("digits")
    assert (len(digits.train), len(digits.classes)) == KNOWN_SETS["digits"]
    assert len(digits.test) == 360
    assert digits.shape == (1, 8, 8)
    assert (digits.mean, digits.std) == ((0.5,), (0.5,))
    assert digits.train.inputs.dtype == np.uint8
    assert digits.train.inputs.max() == 255  # 16 of 16
    assert np.ptp(np.bincount(digits.test.targets)) <= 2  # stratified
    other = load("digits", seed=5)
    np.testing.assert_array_equal(other.train.inputs, digits.train.inputs)


def test_digits_keep_scikit_learns_pictures_and_labels_together():
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    original = {
        (np.rint(row * 255 / 16).astype(np.uint8).tobytes(), label) for row, label in zip(pixels, labels, strict=True)
    }
    digits = load("digits")
    read = {
        (image.tobytes(), label)
        for part in (digits.train, digits.test)
        for image, label in zip(part.inputs, part.targets, strict=True)
    }
    assert read == original


# --- the MNIST family ------------------------------------------------------------------------------------


@pytest.fixture
def tiny_mnist(tmp_path: Path) -> Path:
    """30 training and 20 test examples of 6 x 5 in MNIST's files; a picture's pixels are all its own number."""
    write_mnist(tmp_path, 30, 20, (6, 5))
    return tmp_path


def test_mnist_is_read_from_its_files(tiny_mnist: Path):
    mnist = load("mnist", tiny_mnist)
    assert (len(mnist.train), len(mnist.test), mnist.shape) == (30, 20, (1, 6, 5))
    np.testing.assert_array_equal(mnist.train.inputs[:, 0, 5, 4], np.arange(30))
    np.testing.assert_array_equal(mnist.test.targets, np.arange(20) % 10)
    assert (mnist.mean, mnist.std) == ((0.1307,), (0.3081,))


def test_mnist_is_read_gzipped_as_it_is_distributed(tiny_mnist: Path):
    plain = load("mnist", tiny_mnist)
    for file in (tiny_mnist / "MNIST" / "raw").iterdir():
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    zipped = load("mnist", tiny_mnist)
    np.testing.assert_array_equal(zipped.train.inputs, plain.train.inputs)


@pytest.mark.parametrize("file", ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("kept", [0, 7, -1])
@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_mnist_file_is_named(tiny_mnist: Path, file: str, kept: int, packed: bool):
    path = tiny_mnist / "MNIST" / "raw" / file
    if packed:
        path = path.rename(path.with_name(f"{file}.gz"))
        path.write_bytes(gzip.compress(path.read_bytes()))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=rf"{path.name}: .*truncated"):
        load("mnist", tiny_mnist)


@pytest.mark.parametrize(("count", "largest"), [(29, 9), (30, 10)])
def test_labels_that_do_not_fit_the_pictures_are_refused(tiny_mnist: Path, count: int, largest: int):
    path = tiny_mnist / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    path.write_bytes(idx(np.full(count, largest)))
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte: 30 pictures"):
        load("mnist", tiny_mnist)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100"])
def test_a_missing_set_names_the_option_and_the_files(tmp_path: Path, name: str):
    expected = {
        "mnist": "MNIST/raw/t10k-images-idx3-ubyte",
        "fashion_mnist": "FashionMNIST/raw/train-labels-idx1-ubyte",
    }
    expected |= {"cifar10": "cifar-10-batches-py/data_batch_5", "cifar100": "cifar-100-python/meta"}
    with pytest.raises(DataError, match=r"^dataset\.root=") as error:
        load(name, tmp_path / "nowhere")
    assert expected[name] in str(error.value)
    assert "dataset.download=true" in str(error.value)
    with pytest.raises(DataError, match=r"^dataset\.root=null"):
        load(name)


# --- torchvision: CIFAR and downloads --------------------------------------------------------------------


@pytest.fixture
def tiny_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10's files with 4 pictures each; their checksums take the place of the published ones."""
    import torchvision

    kind = torchvision.datasets.CIFAR10
    rng = np.random.default_rng(0)
    folder = tmp_path / kind.base_folder
    folder.mkdir()

    def write(name: str, content: dict) -> list[str]:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return [name, hashlib.md5(data).hexdigest()]

    def batch(number: int) -> dict:
        return {"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8), "labels": [number, 1, 2, 3]}

    monkeypatch.setattr(kind, "train_list", [write(f"data_batch_{number}", batch(number)) for number in range(1, 6)])
    monkeypatch.setattr(kind, "test_list", [write("test_batch", batch(0))])
    _, checksum = write("batches.meta", {"label_names": [f"class {label}" for label in range(10)]})
    monkeypatch.setattr(kind, "meta", {"filename": "batches.meta", "key": "label_names", "md5": checksum})
    return tmp_path


def test_cifar_is_read_from_its_files(tiny_cifar: Path):
    cifar = load("cifar10", tiny_cifar)
    assert (len(cifar.train), len(cifar.test), cifar.shape) == (20, 4, (3, 32, 32))
    assert cifar.classes[7] == "class 7"
    first = pickle.loads((tiny_cifar / "cifar-10-batches-py" / "data_batch_1").read_bytes())
    np.testing.assert_array_equal(cifar.train.inputs[:4], first["data"].reshape(4, 3, 32, 32))
    np.testing.assert_array_equal(cifar.train.targets[:5], [1, 1, 2, 3, 2])


def test_a_truncated_cifar_file_is_named(tiny_cifar: Path):
    path = tiny_cifar / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3: truncated or changed"):
        load("cifar10", tiny_cifar)


def test_a_download_arrives_whole_or_not_at_all(tiny_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import torchvision

    def fetch(root: str, download: bool) -> None:
        assert download
        for file in (tiny_mnist / "MNIST" / "raw").iterdir():
            target = Path(root) / "MNIST" / "raw" / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
            if broken:
                raise urllib.error.URLError("the line is cut")

    monkeypatch.setattr(torchvision.datasets, "MNIST", fetch)
    root = tmp_path / "downloaded"
    broken = True
    with pytest.raises(DataError, match=r"dataset\.download=true: mnist could not be fetched .*the line is cut"):
        load("mnist", root, download=True)
    assert list(root.iterdir()) == []
    broken = False
    assert len(load("mnist", root, download=True).train) == 30
    assert [folder.name for folder in root.iterdir()] == ["MNIST"]


# --- the user's own pictures -----------------------------------------------------------------------------


def save(path: Path, value: int, size: tuple[int, int] = (6, 5), **options) -> Path:
    """A grey picture of one value, lossless; size is (height, width)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, dtype=np.uint8)).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of ten pictures, half of them WebP; the value of all pixels is 80 * class + number."""
    for label, name in enumerate(("ape", "bee", "cow")):
        for number in range(0, 10, 2):
            save(tmp_path / name / f"{number}.png", 80 * label + number)
            save(tmp_path / name / f"{number + 1}.webp", 80 * label + number + 1, lossless=True)
    (tmp_path / ".DS_Store").write_text("hidden files count nowhere")
    (tmp_path / "ape" / ".DS_Store").write_text("hidden files count nowhere")
    return tmp_path


def test_a_folder_is_divided_by_class_and_seed(folder: Path):
    data = load("image_folder", folder, test_fraction=0.3)
    assert data.classes == ("ape", "bee", "cow")
    assert data.shape == (3, 6, 5)
    assert (data.mean, data.std) == ((0.5,) * 3, (0.5,) * 3)
    np.testing.assert_array_equal(np.bincount(data.train.targets), [7, 7, 7])
    np.testing.assert_array_equal(np.bincount(data.test.targets), [3, 3, 3])
    values = np.concatenate([data.train.inputs, data.test.inputs])[:, 0, 0, 0]
    labels = np.concatenate([data.train.targets, data.test.targets])
    np.testing.assert_array_equal(values // 80, labels)
    assert sorted(values) == sorted(80 * label + number for label in range(3) for number in range(10))
    again, other = (load("image_folder", folder, test_fraction=0.3, seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(again.test.inputs, data.test.inputs)
    assert (other.test.inputs != data.test.inputs).any()


def test_a_folder_that_is_divided_already_stays_so(tmp_path: Path):
    for label, name in enumerate(("ape", "bee")):
        for number in range(4):
            save(tmp_path / "train" / name / f"{number}.png", 100 * label + number)
        save(tmp_path / "test" / name / "0.png", 100 * label + 50)
    (tmp_path / ".hidden").mkdir()
    data = load("image_folder", tmp_path, channels=1)
    assert data.classes == ("ape", "bee")
    assert data.shape == (1, 6, 5)
    np.testing.assert_array_equal(data.train.inputs[:, 0, 0, 0], [0, 1, 2, 3, 100, 101, 102, 103])
    np.testing.assert_array_equal(data.test.inputs[:, 0, 0, 0], [50, 150])


def test_many_pictures_keep_their_order_across_threads_and_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedpriv.data.decoding.BLOCK_BYTES", 70 * 6 * 5)  # 70 pictures, no multiple of a task
    for split in ("train", "test"):
        for label in range(2):
            for number in range(120):
                save(tmp_path / split / f"{label}" / f"{number:03}.png", 125 * label + number)
    data = load("image_folder", tmp_path, channels=1)
    np.testing.assert_array_equal(data.train.inputs[:, 0, 0, 0], [125 * k + n for k in range(2) for n in range(120)])
    np.testing.assert_array_equal(data.train.inputs, data.test.inputs)


def test_different_sizes_need_an_option(folder: Path):
    save(folder / "cow" / "wide.png", 200, size=(6, 9))
    with pytest.raises(OptionError, match=r"dataset\.size=null: .*wide\.png has 6 x 9 pixels, others 6 x 5"):
        load("image_folder", folder)
    data = load("image_folder", folder, size=4)
    assert data.shape == (3, 4, 4)
    assert set(np.unique(data.train.inputs)) <= {*range(10), *range(80, 90), *range(160, 170), 200}


def test_broken_pictures_are_all_reported_by_name(folder: Path):
    (folder / "ape" / "notes.txt").write_text("not a picture")
    (folder / "bee" / "empty.png").write_bytes(b"")
    for name in ("0.png", "1.webp"):
        path = folder / "cow" / name
        path.write_bytes(path.read_bytes()[:-24])
    with pytest.raises(DataError) as error:
        load("image_folder", folder)
    for part in ("4 of the files", "ape/notes.txt (not a picture)", "bee/empty.png", "cow/0.png", "cow/1.webp"):
        assert part in str(error.value)
    for number in range(7):
        (folder / "ape" / f"{number}.txt").write_text("not a picture")
    with pytest.raises(DataError, match=r"^11 of the files .*; and 6 more$") as error:
        load("image_folder", folder)
    assert str(error.value).count("not a picture") == 5


def test_nothing_but_text_files_is_reported_by_name(tmp_path: Path):
    for name in ("ape", "bee"):
        (tmp_path / name).mkdir()
        for file in ("a.txt", "b.txt"):
            (tmp_path / name / file).write_text("not a picture")
    with pytest.raises(DataError, match=r"4 of the files .*ape/a\.txt"):
        load("image_folder", tmp_path)


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (None, r"dataset\.root=.*root: there is no such folder"),
        ([], "at least 2 classes; it holds 0 folders"),
        (["ape/0.png"], r"at least 2 classes; it holds 1 folders \(ape\)"),
        (["ape/0.png", "bee/.hidden"], "bee: a class folder without pictures"),
        (["ape/0.png", "bee/0.png"], "every class has a single example"),
        (
            [f"{part}/{name}/0.png" for part in ("train", "val", "test") for name in "ab"],
            "a folder inside a class folder",
        ),
        (
            ["train/a/0.png", "train/b/0.png", *(f"test/{name}/0.png" for name in "abc")],
            "test/c: a class without training",
        ),
    ],
)
def test_folders_that_are_not_what_they_should_be(paths: list[str] | None, words: str, tmp_path: Path):
    root = tmp_path / "root"
    root.mkdir() if paths is not None else root.symlink_to(root)  # a loop is no folder
    for path in paths or ():
        save(root / path, 0, format="PNG")
    with pytest.raises(DataError, match=words):
        load("image_folder", root)


@pytest.mark.parametrize("what", ["a loop", "a circle", "a broken link", "a loop of folders", "a long name"])
@pytest.mark.parametrize("divided", [False, True])
def test_a_file_that_cannot_be_looked_at_is_named(what: str, divided: bool, tmp_path: Path) -> None:
    """In a simulation's folder, and in a node's (`chosen_classes`)."""
    root = tmp_path / "train" if divided else tmp_path
    for name in ("ape", "bee"):
        for number in range(2):
            save(root / name / f"{number}.png", 0)
            save((tmp_path / "test" if divided else tmp_path) / name / f"{number}.png", 0)
    wrong = root / "bee" / "2.png"
    if what == "a loop":
        wrong.symlink_to(wrong)
    elif what == "a circle":
        wrong.symlink_to(root / "bee" / "3.png")
        (root / "bee" / "3.png").symlink_to(wrong)
    elif what == "a broken link":
        wrong.symlink_to("nowhere")
    elif what == "a loop of folders":
        wrong = root / "cow"
        wrong.symlink_to(wrong)
    else:
        wrong.symlink_to("n" * 4000)
    for look in (lambda: load("image_folder", tmp_path), lambda: chosen_classes(root, ("ape", "bee"))):
        with pytest.raises(DataError, match=f"{wrong}: (Too many levels|No such file|File name too long)"):
            look()


def test_sixteen_bit_pictures_are_scaled_and_photos_turned_upright(tmp_path: Path):
    grey = np.array([[0, 256, 32768, 65535]], dtype=np.uint16)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    for name in ("a", "b"):
        for number in range(2):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(grey).save(tmp_path / name / f"{number}.png")
    data = load("image_folder", tmp_path, channels=1)
    np.testing.assert_array_equal(data.train.inputs[0, 0], [[0, 1, 128, 255]])

    for file in tmp_path.glob("*/*.png"):
        save(file, 9, size=(2, 7), exif=exif)
    assert load("image_folder", tmp_path).shape == (3, 7, 2)


# --- the user's own function -----------------------------------------------------------------------------


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch):
    """Makes a function importable as ``own_pictures.load``; returns the setter."""
    import types

    module = types.ModuleType("own_pictures")
    monkeypatch.setitem(sys.modules, "own_pictures", module)
    return lambda function: setattr(module, "load", function)


def own(split: str, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    count = count if split == "train" else 3
    return np.full((count, 2, 4, 5), count, dtype=np.uint8), np.arange(count) % 3


def test_a_function_of_the_user(own_module):
    own_module(own)
    data = load("custom", path="own_pictures.load")
    assert (data.shape, len(data.train), len(data.test), data.classes) == ((2, 4, 5), 6, 3, ("0", "1", "2"))
    assert data.train.inputs[0, 0, 0, 0] == 6
    assert data.mean == (0.5, 0.5)
    own_module(lambda split: own(split, count=9))  # never from the cache
    assert len(load("custom", path="own_pictures.load").train) == 9


@pytest.mark.parametrize("names", [["anna", "bo", "anna", "bo", "anna", "bo"], [5, 4, 5, 4, 5, 4]])
def test_a_function_of_the_user_says_whose_each_picture_is(own_module, names: list[str] | list[int]):
    own_module(lambda split: (*own(split), np.array(names[: len(own(split)[1])])))
    options = ["dataset=custom", "dataset.path=own_pictures.load", "dataset.auxiliary=0", "partition=column"]
    few = ["partition.column=client", "num_clients=2", "clients_per_round=2", "strategy=fedavg"]
    data = load_federated(compose([*options, *few]))
    assert data.dataset.sites == tuple(sorted({str(name) for name in names}))
    first = int(str(names[0]) == data.dataset.sites[1])
    assert data.train_indices(first).tolist() == [0, 2, 4]
    assert len(load("custom", path="own_pictures.load").train) == 6  # whoever does not ask reads two of the three
    with pytest.raises(OptionError, match=r"^partition.column=writer: .*allowed: client"):
        load_federated(compose([*options, *few, "partition.column=writer"]))
    for wrong, words in (
        (own, r"must return \(images, labels, clients\), not 2 values"),
        (lambda split: (*own(split), np.zeros(2)), "clients must be integers or strings"),
    ):
        own_module(wrong)
        with pytest.raises(OptionError, match=words):
            load_federated(compose([*options, *few]))


def change(**arrays):
    """A function that returns `own`'s arrays with some replaced."""

    def function(split: str):
        images, labels = own(split)
        return arrays.get("images", lambda x: x)(images), arrays.get("labels", lambda x: x)(labels)

    return function


def labelled(*labels: int):
    return lambda split: (np.zeros((len(labels), 2, 4, 5), np.uint8), np.array(labels))


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        *(
            (labelled(*gap), "labels .* without a gap .*no picture of")
            for gap in [(0, 2), (1, 2), (0, 1, 10**12), (0, 3, 1)]
        ),
        (change(images=lambda x: x / 255), "images must be uint8 .*float64"),
        (change(images=lambda x: x[:, 0]), r"images must be uint8 .*\[6, 4, 5\]"),
        (change(images=lambda x: x[:0], labels=lambda y: y[:0]), r"images must be uint8 .*\[0, 2, 4, 5\]"),
        (change(labels=lambda y: y[:-1]), r"labels must be integers \[6\]"),
        (change(labels=lambda y: y + 0.5), "labels must be integers .*float64"),
        (change(labels=lambda y: y - 1), "the smallest is -1"),
        (change(labels=lambda y: y * 0), "at least 2 classes"),
        (lambda split: own(split)[0], r"must return \(images, labels\), not ndarray"),
        (lambda split: (own(split)[0][..., : len(split)], own(split)[1]), "test pictures"),
        (lambda split: 1 / 0, "raised ZeroDivisionError"),
        (3, "must be a function, is a int"),
    ],
)
def test_what_a_function_of_the_user_must_not_return(own_module, function, complaint: str):
    own_module(function)
    with pytest.raises(OptionError, match=rf"^dataset\.path=own_pictures\.load: .*{complaint}"):
        load("custom", path="own_pictures.load")


@pytest.mark.parametrize("path", ["nowhere.at.all", "os.nothing", "nodots", ".", None])
def test_a_path_to_nothing_names_the_option(path: str | None):
    with pytest.raises(OptionError, match=r"^dataset\.path="):
        load("custom", path=path)


# --- normalisation ---------------------------------------------------------------------------------------


def test_normalise_is_the_formula(tmp_path: Path, recwarn: pytest.WarningsRecorder):
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 6), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")  # read-only, as from the cache
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    expected = (images / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    result = normalise(mapped, mean, std)
    assert str(result.dtype) == "torch.float32"
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-6)
    result.zero_()
    np.testing.assert_array_equal(mapped, images)
    assert not recwarn.list


# --- the real pictures -----------------------------------------------------------------------------------


@pytest.mark.pictures
def test_real_mnist(pictures: Path):
    mnist = load("mnist", pictures)
    assert (len(mnist.train), len(mnist.classes)) == KNOWN_SETS["mnist"]
    assert len(mnist.test) == 10_000
    pixels = mnist.train.inputs / 255
    assert mnist.mean[0] == pytest.approx(pixels.mean(), abs=5e-5)  # the published constants are this set's own
    assert mnist.std[0] == pytest.approx(pixels.std(), abs=5e-5)


@pytest.mark.pictures
@pytest.mark.rotates(3, together(2))
def test_real_cifar_as_folders(pictures: Path):
    cifar = load("image_folder", pictures / "cifar10")
    assert (len(cifar.train), len(cifar.test), cifar.shape) == (20_000, 4_000, (3, 32, 32))
    assert cifar.classes[:2] == ("airplane", "automobile")
    np.testing.assert_array_equal(np.bincount(cifar.train.targets), [2000] * 10)
    last = sorted((pictures / "cifar10" / "test" / "truck").iterdir())[-1]
    with Image.open(io.BytesIO(last.read_bytes())) as picture:
        np.testing.assert_array_equal(cifar.test.inputs[-1], np.asarray(picture.convert("RGB")).transpose(2, 0, 1))


@pytest.mark.parametrize("where", ["function", "split", "few"])
def test_classes_that_are_tested_and_not_trained_are_said_where_no_outsider_reads(
    own_module, tmp_path: Path, where: str
):
    """One training example more, and the words are gone."""

    def function(split: str):
        labels = np.arange(24) % (3 if split == "test" or where != "function" else 2)
        return np.zeros((24, 1, 8, 8), np.uint8), labels

    own_module(function)
    options = ["dataset=custom", "dataset.path=own_pictures.load", "strategy=fedavg", "num_clients=2", "num_rounds=1"]
    if where == "split":
        rows = np.arange(24)
        np.savez(tmp_path / "split.npz", train=rows[rows % 3 != 2], test=rows[rows % 3 == 2])
        options.append(f"dataset.split={tmp_path / 'split.npz'}")
    if where == "few":
        options.append("dataset.train_examples=2")
    run = fedpriv.run([*options, "clients_per_round=2", "local.batch_size=1"], folder=tmp_path / "run", quiet=True)
    words = "count as errors: no training example is of"
    assert words in run.summary["untrained"] and words in page_of(run.folder)
    assert where != "function" or "the test examples of 2 count" in run.summary["untrained"]
    shown = [path for path in run.folder.iterdir() if path.is_file()]
    assert len(shown) > 5 and not any(words.encode() in path.read_bytes() for path in shown)
