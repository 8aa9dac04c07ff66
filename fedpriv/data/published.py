"""The standard sets MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, in torchvision's folder layout.

The MNIST family is read here, which checks each header against its file; the CIFARs are read by torchvision,
which compares checksums before it unpickles anything. torchvision is imported only to download or to read
CIFAR: the import takes at least ten seconds.
"""

from __future__ import annotations

import gzip
import os
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np

from fedpriv.common.errors import DataError
from fedpriv.config.data_schema import DatasetConfig
from fedpriv.data.cache import cache_folder
from fedpriv.data.types import PictureStream, Source

_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_CIFAR10 = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")

#: name -> (torchvision's class, files below the root)
_SETS = {
    "mnist": ("MNIST", [f"MNIST/raw/{file}" for file in _IDX]),
    "fashion_mnist": ("FashionMNIST", [f"FashionMNIST/raw/{file}" for file in _IDX]),
    "cifar10": ("CIFAR10", [f"cifar-10-batches-py/{file}" for file in _CIFAR10]),
    "cifar100": ("CIFAR100", [f"cifar-100-python/{file}" for file in ("train", "test", "meta")]),
}
_MNIST_CLASSES = tuple("0123456789")
_FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
)  # fmt: skip


def published(config: DatasetConfig) -> Source:
    """Finds the files, after downloading them if requested.

    Raises `DataError` naming dataset.root and the files expected there.
    """
    root = Path(config.root).expanduser() if config.root else cache_folder(config) / "downloads"
    if config.download and _missing(config.name, root):
        _download(config.name, root)
    missing = _missing(config.name, root)
    if missing:
        raise DataError(
            f"dataset.root={config.root or 'null'}: {config.name} is not in {root}: there is no {', '.join(missing)}. "
            f"Set dataset.root to the folder that holds {_SETS[config.name][1][0]} and so on, or fetch the set "
            "with dataset.download=true"
        )
    files = [_existing(root / name) for name in _SETS[config.name][1]]
    states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    read = _read_cifar if config.name.startswith("cifar") else _read_mnist
    return Source({"name": config.name, "files": states}, lambda: read(config.name, root))


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


# --- the MNIST family ------------------------------------------------------------------------------------


def _read_mnist(name: str, root: Path) -> PictureStream:
    paths = [_existing(root / file) for file in _SETS[name][1]]
    train, train_labels, test, test_labels = (
        _read_idx(path, dimensions) for path, dimensions in zip(paths, (3, 1, 3, 1), strict=True)
    )
    for images, labels, path in ((train, train_labels, paths[1]), (test, test_labels, paths[3])):
        if len(images) != len(labels) or not len(labels) or labels.max() > 9:
            raise DataError(f"{path}: {len(images)} pictures need as many labels of 0..9, not these {len(labels)}")
    if train.shape[1:] != test.shape[1:]:
        raise DataError(f"{paths[2]}: pictures of {test.shape[1:]}, but those for training are {train.shape[1:]}")
    return PictureStream(
        classes=_MNIST_CLASSES if name == "mnist" else _FASHION_CLASSES,
        labels=np.concatenate([train_labels, test_labels]).astype(np.int64),
        num_train=len(train),
        shape=(1, *train.shape[1:]),
        blocks=[train[:, None], test[:, None]],
    )


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
    expected, found = int(np.prod(sizes, dtype=object)), len(content) - start
    if found != expected:
        state = "truncated" if found < expected else "too long"
        raise DataError(f"{path}: {state}, its header announces {expected} bytes and {found} follow")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(sizes)


# --- the CIFARs ------------------------------------------------------------------------------------------


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
    return PictureStream(
        classes=tuple(train.classes),
        labels=np.array([*train.targets, *test.targets], dtype=np.int64),
        num_train=len(train.targets),
        shape=(3, 32, 32),
        blocks=[part.data.transpose(0, 3, 1, 2) for part in (train, test)],
    )
