"""Where a study's pictures are: one folder with torchvision's sets, or with the same pictures as class folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpriv.common.errors import OptionError
from fedpriv.config.data_schema import KNOWN_SETS, TABLES
from fedpriv.data.partition import Split, check_split, divide_by_class, read_split, write_split

#: Of torchvision's own layout: the folder that a set's files lie in below dataset.root.
TORCHVISION = {
    "mnist": "MNIST/raw",
    "fashion_mnist": "FashionMNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
}
#: Side of the pictures of a set that may lie as class folders.
SIDES = {"cifar10": 32, "cifar100": 32}


def default_folder() -> Path:
    return Path(os.environ.get("FEDPRIV_PICTURES", "data"))


def where(dataset: str, folder: Path, download: bool = False) -> tuple[str, ...] | None:
    """Overrides by which a run finds a set's pictures below ``folder``; None where they are not there."""
    if dataset in (*TABLES, "digits"):
        return (f"dataset={dataset}",)
    root = folder.absolute()
    if download or (root / TORCHVISION[dataset]).is_dir():
        return (f"dataset={dataset}", f"dataset.root={root}", *(("dataset.download=true",) if download else ()))
    side, classes = SIDES.get(dataset), root / dataset
    if side is not None and (classes / "train").is_dir():
        return ("dataset=image_folder", f"dataset.root={classes}", f"dataset.size={side}")
    return None


def held_out(where: Sequence[str], dataset: str, pictures: int, seed: int, folder: Path) -> tuple[Path, int]:
    """(file, number of classes). The file, a value for ``dataset.split``, divides the training pictures into those to
    train on and ``pictures`` to choose by, the same share of every class. Raises `OptionError` where there are not so
    many. A file that is there, of as many pictures as a known set has, is taken as it is: loading a set takes seconds.
    """
    from fedpriv.config.compose import compose
    from fedpriv.data.load import load_dataset

    file = folder / f"tuning-{dataset}-{pictures}-{seed}.npz"
    known, classes = KNOWN_SETS.get(dataset, (0, 0))
    if f"dataset={dataset}" in where and _divides(file, known, pictures):
        return file, classes
    found = load_dataset(compose(where).dataset, 0)
    size = len(found.train.targets)
    if pictures >= size:
        raise OptionError("pictures kept for tuning", pictures, f"{dataset} has {size} training examples")
    train, held = divide_by_class(np.asarray(found.train.targets), pictures / size, seed)
    folder.mkdir(parents=True, exist_ok=True)
    write_split(file, Split(np.sort(train), np.sort(held)))
    return file, len(found.classes)


def own_test(where: Sequence[str], dataset: str, folder: Path) -> Path | None:
    """A value for ``dataset.split`` of a table: its training and test rows of seed 0, for whatever seed. Otherwise each
    seed would draw its own test rows, among which are rows by which options were chosen. None of pictures, whose test
    set is one.
    """
    if dataset not in TABLES:
        return None
    from fedpriv.config.compose import compose
    from fedpriv.data.load import load_dataset

    found, file = load_dataset(compose(where).dataset, 0), folder / f"test-{dataset}.npz"
    first, own = len(found.train.targets), len(found.test.targets)
    folder.mkdir(parents=True, exist_ok=True)
    write_split(file, Split(np.arange(first), np.arange(first, first + own)))
    return file


def _divides(file: Path, known: int, pictures: int) -> bool:
    """Whether a file divides ``known`` pictures so that about ``pictures`` are kept (each class rounds its own)."""
    try:
        found = read_split(str(file))
        check_split(str(file), found, known)
    except OptionError:
        return False
    return len(found.train) + len(found.test) == known and abs(len(found.test) - pictures) <= known // 100


def tested_elsewhere(where: Sequence[str], split: Path) -> Path:
    """A file beside ``split`` (of `held_out`) with the same training rows and the set's own test pictures: what is
    trained with it is the same, and is tested on pictures by which nothing was chosen. As it is, where it is there.
    """
    file, train = split.with_name(f"{split.stem}-tested.npz"), read_split(str(split)).train
    if file.is_file() and np.array_equal(read_split(str(file)).train, train):
        return file
    from fedpriv.config.compose import compose
    from fedpriv.data.load import load_dataset

    found = load_dataset(compose(where).dataset, 0)
    first, own = len(found.train.targets), len(found.test.targets)
    write_split(file, Split(train, np.arange(first, first + own)))
    return file
