"""Sources of pictures: finds and reads the data set that the configuration names.

- digits: ships with scikit-learn. custom: the user's own function. huggingface: `fedpriv.data.hub`.
- MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100, in torchvision's folder layout. The MNIST family is read here, which checks
  each header against its file; the CIFARs are read by torchvision, which compares checksums before it unpickles
  anything. torchvision is imported only to download or to read CIFAR: the import takes at least ten seconds.
- image_folder: the user's own pictures, one folder per class. Either ``root/<class>/*``, which is split into training
  and test pictures by seed, or ``root/{train,test}/<class>/*``, which is recognised by ``root`` holding exactly these
  two folders. Hidden files are ignored. Formats: all that Pillow reads (PNG, JPEG, WebP, TIFF, BMP, ...).
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import stat
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.common.errors import DataError, OptionError
from fedpriv.common.places import code_at
from fedpriv.common.versions import installed
from fedpriv.config.data_schema import DatasetConfig
from fedpriv.data.cache import cache_folder, stored, write_rows
from fedpriv.data.decoding import Encoded, decoded, drawing
from fedpriv.data.hub import huggingface
from fedpriv.data.partition import divide_by_class
from fedpriv.data.types import Examples, PictureStream, Source

log = logging.getLogger(__name__)

_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_CIFAR10 = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")

#: name -> (torchvision's class, files below the root)
_SETS = {
    "mnist": ("MNIST", [f"MNIST/raw/{file}" for file in _IDX]),
    "fashion_mnist": ("FashionMNIST", [f"FashionMNIST/raw/{file}" for file in _IDX]),
    "cifar10": ("CIFAR10", [f"cifar-10-batches-py/{file}" for file in _CIFAR10]),
    "cifar100": ("CIFAR100", [f"cifar-100-python/{file}" for file in ("train", "test", "meta")]),
}
_DIGITS = tuple("0123456789")
_FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
)  # fmt: skip


#: What divides the pictures of dataset=custom, where its function says whose each is.
CLIENT = "client"


def find_source(config: DatasetConfig, seed: int, column: str | None = None) -> Source:
    """The source of the configuration, with a column that divides the pictures among clients. Cheap: looks at names,
    sizes and times of files, reads no picture. Raises `DataError`, `OptionError`.
    """
    if column is not None and config.name not in ("huggingface", "custom"):
        words = f"pictures of {config.name} have no columns; allowed with dataset=table, huggingface and custom"
        raise OptionError("partition", "column", words)
    if config.name == "digits":
        return Source({"name": "digits", "scikit-learn": installed("scikit-learn")}, _read_digits)
    if config.name == "image_folder":
        return image_folder(config, seed)
    if config.name == "huggingface":
        return huggingface(config, seed, column)
    if config.name == "custom":
        # No identity, so never cached: what a function returns can depend on anything.
        if column not in (None, CLIENT):
            words = f"the function's third array says whose each picture is; allowed: {CLIENT}"
            raise OptionError("partition.column", column, words)
        return Source(None, lambda: _read_custom(config.path or "null", column is not None))
    return _published(config)


def load_pictures(source: Source, folder: Path) -> tuple[Examples, tuple[str, ...], int, tuple[str, ...]]:
    """(the pictures of `source`, training examples first; names of the classes; number of training examples; names of
    the clients among whom a column divides them): memory-mapped from the cache `folder`, decoded into it first where
    needed. A source without an identity is decoded into memory only.
    """
    identity = source.identity
    if identity is None:
        stream = source.decode()
        site, sites = stream.sites
        examples = Examples(np.concatenate(list(stream.blocks)), stream.labels, site=site)
        return examples, stream.classes, stream.num_train, sites

    def write(unfinished: Path) -> None:
        log.info("decoding the pictures of %s into %s", identity["name"], folder)
        stream = source.decode()
        write_rows(unfinished / "images.npy", len(stream.labels), "u1", stream.blocks)
        np.save(unfinished / "labels.npy", stream.labels)
        site, sites = stream.sites
        if site is not None:
            np.save(unfinished / "site.npy", site)
        about = {"classes": stream.classes, "num_train": stream.num_train, "sites": sites}
        (unfinished / "about.json").write_text(json.dumps(about))

    def read(path: Path) -> tuple[Examples, tuple[str, ...], int, tuple[str, ...]]:
        about = json.loads((path / "about.json").read_text())
        images = np.load(path / "images.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(path / "labels.npy", allow_pickle=False)
        site = np.load(path / "site.npy", allow_pickle=False) if about["sites"] else None
        return Examples(images, labels, site=site), tuple(about["classes"]), about["num_train"], tuple(about["sites"])

    return stored(folder / "pictures", identity, write, read)


def _read_digits() -> PictureStream:
    """1,437 training and 360 test pictures of 8 x 8, the same for every run (no seed: a public split)."""
    from sklearn.datasets import load_digits  # takes seconds; needed only once, thanks to the cache
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)  # float [1797, 64] in 0..16
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    train, test = train_test_split(np.arange(len(labels)), test_size=360, stratify=labels, random_state=0)
    order = np.concatenate([train, test])
    return PictureStream(_DIGITS, labels[order].astype(np.int64), len(train), [images[order]])


# --- the user's own function -----------------------------------------------------------------------------


def _read_custom(path: str, divided: bool) -> PictureStream:
    """Calls the function at the dotted `path` for both splits and checks what it returns. divided: it must say whose
    each picture is.

    Raises `OptionError` for dataset.path that says what is wrong.
    """
    function = code_at("dataset.path", path)
    if not callable(function):
        raise OptionError("dataset.path", path, f"must be a function, is a {type(function).__name__}")
    (train, train_labels, whose), (test, test_labels, others) = (
        _call(path, function, split, divided) for split in ("train", "test")
    )
    labels = np.concatenate([train_labels, test_labels])
    num_classes, present = int(labels.max()) + 1, np.unique(labels)
    if train.shape[1:] != test.shape[1:]:
        words = f"training pictures are {train.shape[1:]}, test pictures {test.shape[1:]}"
    elif num_classes < 2:
        words = "all labels are 0: at least 2 classes are needed"
    elif len(present) < num_classes:
        absent = int(np.flatnonzero(present != np.arange(len(present)))[0])
        words = f"labels must be 0, 1, 2, ... without a gap up to {num_classes - 1}; there is no picture of {absent}"
    else:
        owners = np.concatenate([whose, others]) if divided else None
        return PictureStream(tuple(map(str, range(num_classes))), labels, len(train_labels), [train, test], owners)
    raise OptionError("dataset.path", path, words)


def _call(path: str, function: Any, split: str, divided: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        result = function(split)
    except Exception as error:
        raise OptionError("dataset.path", path, f"{split!r}: raised {type(error).__name__}: {error}") from error
    wanted = "(images, labels, clients)" if divided else "(images, labels)"
    if not isinstance(result, tuple) or not 2 + divided <= len(result) <= 3:
        what = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise OptionError("dataset.path", path, f"{split!r}: must return {wanted}, not {what}")
    images, labels, *more = (np.asarray(part) for part in result)
    owners = np.asarray(more[0]) if divided else np.zeros(len(labels), np.int64)
    if images.dtype != np.uint8 or images.ndim != 4 or 0 in images.shape:
        problem = f"images must be uint8 [n, channels, height, width], are {images.dtype} {list(images.shape)}"
    elif labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        problem = f"labels must be integers [{len(images)}], one per picture, are {labels.dtype} {list(labels.shape)}"
    elif labels.min() < 0:
        problem = f"labels must be 0, 1, 2, ..., the smallest is {labels.min()}"
    elif owners.dtype.kind not in "iuU" or owners.shape != labels.shape:
        problem = f"clients must be integers or strings [{len(labels)}], are {owners.dtype} {list(owners.shape)}"
    else:
        return images, labels.astype(np.int64), owners.astype(str)
    raise OptionError("dataset.path", path, f"{split!r}: {problem}")


# --- published sets --------------------------------------------------------------------------------------


def _published(config: DatasetConfig) -> Source:
    """Finds the files, after downloading them if requested.

    Raises `DataError` naming dataset.root and the files expected there.
    """
    root = Path(config.root).expanduser() if config.root else cache_folder(config) / "downloads"
    names = _SETS[config.name][1]
    if config.download and _missing(config.name, root):
        _download(config.name, root)
    if missing := _missing(config.name, root):
        raise DataError(
            f"dataset.root={config.root or 'null'}: {config.name} is not in {root}: there is no {', '.join(missing)}. "
            f"Set dataset.root to the folder that holds {names[0]} and so on, or fetch the set with "
            "dataset.download=true"
        )
    files = [_existing(root / name) for name in names]
    states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    if config.name.startswith("cifar"):
        return Source({"name": config.name, "files": states}, lambda: _read_cifar(config.name, root))
    return Source({"name": config.name, "files": states}, lambda: _read_mnist(config.name, files))


def _existing(file: Path) -> Path:
    """The file, or its gzipped form as it is distributed (MNIST family)."""
    return file if file.exists() else file.with_name(f"{file.name}.gz")


def _missing(name: str, root: Path) -> list[str]:
    return [file for file in _SETS[name][1] if not _existing(root / file).exists()]


def _download(name: str, root: Path) -> None:
    import torchvision

    kind, files = _SETS[name]
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Moved into place file by file once all are complete, so that an interrupted download, or two at the
        # same time, never leave a partial file under its final name.
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as fresh:
            getattr(torchvision.datasets, kind)(fresh, download=True)
            for file in files:
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                os.replace(Path(fresh) / file, root / file)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"dataset.download=true: {name} could not be fetched into {root}: {reason}") from error


def _read_mnist(name: str, paths: list[Path]) -> PictureStream:
    train, train_labels, test, test_labels = map(_read_idx, paths, (3, 1, 3, 1))
    for images, labels, path in ((train, train_labels, paths[1]), (test, test_labels, paths[3])):
        if len(images) != len(labels) or not len(labels) or labels.max() > 9:
            raise DataError(f"{path}: {len(images)} pictures need as many labels of 0..9, not these {len(labels)}")
    if train.shape[1:] != test.shape[1:]:
        raise DataError(f"{paths[2]}: pictures of {test.shape[1:]}, but those for training are {train.shape[1:]}")
    labels = np.concatenate([train_labels, test_labels]).astype(np.int64)
    classes = _DIGITS if name == "mnist" else _FASHION_CLASSES
    return PictureStream(classes, labels, len(train), [train[:, None], test[:, None]])


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """A file of the format of yann.lecun.com/exdb/mnist: uint8 with `dimensions` dimensions.

    Header, big-endian: 0, 0, 8 (unsigned byte), the number of dimensions, then one 4-byte size for each.
    Raises `DataError` naming the file if it holds more or fewer bytes than its header says.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read, truncated or damaged ({error})") from error
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{path}: not a file of the MNIST format with {dimensions} dimensions, or truncated")
    sizes = struct.unpack(f">{dimensions}I", content[4:start])
    expected, length = int(np.prod(sizes, dtype=object)), len(content) - start
    if length != expected:
        state = "truncated" if length < expected else "too long"
        raise DataError(f"{path}: {state}, its header announces {expected} bytes and {length} follow")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(sizes)


def _read_cifar(name: str, root: Path) -> PictureStream:
    import torchvision
    from torchvision.datasets.utils import check_integrity

    kind = getattr(torchvision.datasets, _SETS[name][0])
    # torchvision checks the same, but does not say which file it is. The files are pickles: one with another
    # checksum could run arbitrary code and is not opened.
    for file, checksum in [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]:
        path = root / kind.base_folder / file
        if not check_integrity(str(path), checksum):
            raise DataError(f"{path}: truncated or changed, its checksum is not the published {checksum}")
    train, test = kind(str(root), train=True), kind(str(root), train=False)
    labels = np.array([*train.targets, *test.targets], dtype=np.int64)
    blocks = [part.data.transpose(0, 3, 1, 2) for part in (train, test)]
    return PictureStream(tuple(train.classes), labels, len(train.targets), blocks)


# --- folders of pictures ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    path: str
    label: str
    size: int
    changed_ns: int


def image_folder(config: DatasetConfig, seed: int) -> Source:
    """Lists the pictures. Raises `DataError` where the folder does not have this layout."""
    root = Path(os.path.realpath(Path(config.root or "").expanduser()))
    if config.root is None or not root.is_dir():
        words = "a file, not a folder" if root.is_file() else "there is no such folder"
        raise DataError(f"dataset.root={config.root or 'null'}: {words}; it must hold one folder per class")
    divided = {folder.name for folder in _subfolders(root)} == {"train", "test"}
    train, test = (_files(root / "train"), _files(root / "test")) if divided else (_files(root), [])
    classes = tuple(sorted({file.label for file in train}))
    if unknown := sorted({file.label for file in test} - set(classes)):
        raise DataError(f"{root / 'test' / unknown[0]}: a class without training pictures in {root / 'train'}")
    if divided:
        return _source(config, classes, train + test, len(train))
    return _source(config, classes, train, None, (seed, config.test_fraction))


def class_folders(config: DatasetConfig, root: Path) -> Source:
    """All pictures of ``root/<class>/*`` for the classes of the configuration, in their order. Raises `DataError`."""
    files = chosen_classes(root, config.classes)
    return _source(config, config.classes, files, len(files))


def _source(
    config: DatasetConfig,
    classes: Sequence[str],
    files: list[_File],
    num_train: int | None,
    split: tuple[int, float] = (0, 0.0),
) -> Source:
    """num_train: how many of the files are training pictures; None: they are divided by ``split``, seed and share."""
    identity = {
        "name": "image_folder",
        "files": [(file.path, file.size, file.changed_ns) for file in files],
        "classes": classes,
        "split": (num_train, split),
        **drawing(config),
    }

    def decode() -> PictureStream:
        chosen, number = files, num_train
        if number is None:
            train, test = divide_by_class(np.array([file.label for file in files]), split[1], split[0])
            chosen, number = [files[row] for row in (*train, *test)], len(train)
        place = {name: label for label, name in enumerate(classes)}
        labels = np.array([place[file.label] for file in chosen], dtype=np.int64)
        pictures = [Encoded(file.path, file.path) for file in chosen]
        return PictureStream(tuple(classes), labels, number, decoded(lambda: pictures, config, "files in dataset.root"))

    return Source(identity, decode)


def chosen_classes(root: Path, classes: Sequence[str]) -> list[_File]:
    """Every file of ``root/<class>/``; a class may be missing. Raises `DataError` for a folder of another name."""
    files = _files(root, fewest=1)
    if unknown := sorted({file.label for file in files} - set(classes)):
        raise DataError(f"{root / unknown[0]}: not one of the classes {', '.join(classes)}")
    return files


@contextmanager
def _named() -> Iterator[None]:
    """A folder or file that cannot be looked at (no permission, a broken link, a loop of links) is a `DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}") from error


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


@_named()
def _subfolders(folder: Path) -> list[os.DirEntry[str]]:
    return [entry for entry in _visible(folder) if entry.is_dir()]


@_named()
def _files(folder: Path, fewest: int = 2) -> list[_File]:
    """Every file of every class folder in `folder`, in a fixed order. fewest: the least number of classes."""
    classes = _subfolders(folder)
    if len(classes) < fewest:
        raise DataError(
            f"{folder}: pictures in folders (dataset.root) need one folder per class and at least {fewest} classes; it "
            f"holds {len(classes)} folders ({', '.join(entry.name for entry in classes) or 'none'})"
        )
    files = []
    for entry in classes:
        inside = _visible(Path(entry.path))
        nested = [file.name for file in inside if file.is_dir()]
        if nested or not inside:
            what = f"a folder inside a class folder ({nested[0]})" if nested else "a class folder without pictures"
            raise DataError(
                f"{entry.path}: {what}; expected {folder.name}/<class>/<pictures> "
                "or exactly the two folders train and test with classes inside"
            )
        for file in inside:
            state = file.stat()
            if not stat.S_ISREG(state.st_mode):  # reading a pipe or a device may block forever
                raise DataError(f"{file.path}: not a regular file; class folders hold pictures and nothing else")
            files.append(_File(file.path, entry.name, state.st_size, state.st_mtime_ns))
    return files
