"""image_folder: the user's own pictures, one folder per class.

Either ``root/<class>/*``, which is split into training and test pictures by seed, or
``root/{train,test}/<class>/*``, which is recognised by ``root`` holding exactly these two folders. Hidden
files are ignored. Formats: all that Pillow reads (PNG, JPEG, WebP, TIFF, BMP, ...).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL

from fedpriv.common.errors import DataError
from fedpriv.config.data_schema import DatasetConfig
from fedpriv.data.decoding import Encoded, decode_pictures, shape_of
from fedpriv.data.splits import divide_by_class
from fedpriv.data.types import PictureStream, Source

PICTURES = "files in dataset.root"


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
    unknown = sorted({file.label for file in test} - set(classes))
    if unknown:
        raise DataError(f"{root / 'test' / unknown[0]}: a class without training pictures in {root / 'train'}")

    identity = {
        "name": "image_folder",
        "files": [(file.path, file.size, file.changed_ns) for file in train + test],
        "size": config.size,
        "channels": config.channels,
        "drawn_on": (config.background, config.white_level),
        "split": None if divided else (seed, config.test_fraction),
        "pillow": PIL.__version__,
    }

    def decode() -> PictureStream:
        if divided:
            files, num_train = train + test, len(train)
        else:
            kept, tested = divide_by_class(np.array([file.label for file in train]), config.test_fraction, seed)
            files, num_train = [train[row] for row in (*kept, *tested)], len(kept)
        pictures = [Encoded(file.path, file.path) for file in files]
        shape = shape_of(pictures, config, PICTURES)
        return PictureStream(
            classes=classes,
            labels=np.array([classes.index(file.label) for file in files], dtype=np.int64),
            num_train=num_train,
            shape=shape,
            blocks=decode_pictures(pictures, shape, config, PICTURES),
        )

    return Source(identity, decode)


def class_folders(config: DatasetConfig, root: Path) -> Source:
    """All pictures of ``root/<class>/*`` for the classes of the configuration, in their order. Raises `DataError`."""
    files = chosen_classes(root, config.classes)
    identity = {
        "name": "class_folders",
        "files": [(file.path, file.size, file.changed_ns) for file in files],
        "classes": config.classes,
        "size": config.size,
        "channels": config.channels,
        "drawn_on": (config.background, config.white_level),
        "pillow": PIL.__version__,
    }

    def decode() -> PictureStream:
        pictures = [Encoded(file.path, file.path) for file in files]
        shape = shape_of(pictures, config, PICTURES)
        labels = np.array([config.classes.index(file.label) for file in files], dtype=np.int64)
        blocks = decode_pictures(pictures, shape, config, PICTURES)
        return PictureStream(config.classes, labels, len(files), shape, blocks)

    return Source(identity, decode)


def chosen_classes(root: Path, classes: Sequence[str]) -> list[_File]:
    """Every file of ``root/<class>/``; a class may be missing. Raises `DataError` for a folder of another name."""
    files = _files(root, fewest=1)
    unknown = sorted({file.label for file in files} - set(classes))
    if unknown:
        raise DataError(f"{root / unknown[0]}: not one of the classes {', '.join(classes)}")
    return files


# --- listing ---------------------------------------------------------------------------------------------


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
