"""image_folder: the user's own pictures, one folder per class.

Either ``root/<class>/*``, which is divided into training and test pictures by seed, or
``root/{train,test}/<class>/*``, which is recognised by ``root`` holding exactly these two folders. Hidden
files count nowhere. Formats: whatever Pillow reads (PNG, JPEG, WebP, TIFF, BMP, ...).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageOps, UnidentifiedImageError

from fedpriv.config import DatasetConfig
from fedpriv.data.seeds import generator
from fedpriv.data.types import PictureStream, Source
from fedpriv.errors import DataError, OptionError

BLOCK_BYTES = 64 * 2**20  # decoded at a time
PICTURES_PER_TASK = 32  # handing single small pictures to threads costs more than decoding them
MAX_THREADS = 4  # Pillow holds the interpreter's lock for much of the work: more threads only wait
SHOWN = 5  # broken pictures listed by name


@dataclass(frozen=True)
class _File:
    path: str
    label: str
    size: int
    changed_ns: int


def image_folder(config: DatasetConfig, seed: int) -> Source:
    """Lists the pictures. Raises `DataError` where the folder is not what it should be."""
    root = Path(config.root or "").expanduser().resolve()
    if config.root is None or not root.is_dir():
        raise DataError(
            f"dataset.root={config.root or 'null'}: there is no such folder; it must hold one folder per class"
        )
    try:
        divided = {folder.name for folder in _subfolders(root)} == {"train", "test"}
        train, test = (_files(root / "train"), _files(root / "test")) if divided else (_files(root), [])
    except OSError as error:  # no permission, or a link to nowhere
        raise DataError(f"{error.filename}: {error.strerror}") from error
    classes = tuple(sorted({file.label for file in train}))
    unknown = sorted({file.label for file in test} - set(classes))
    if unknown:
        raise DataError(f"{root / 'test' / unknown[0]}: a class without training pictures in {root / 'train'}")

    identity = {
        "name": "image_folder",
        "files": [(file.path, file.size, file.changed_ns) for file in train + test],
        "size": config.size,
        "channels": config.channels,
        "split": None if divided else (seed, config.test_fraction),
        "pillow": PIL.__version__,
    }

    def decode() -> PictureStream:
        if divided:
            files, num_train = train + test, len(train)
        else:
            files, num_train = _split_by_class(train, config.test_fraction, seed)
        paths = [file.path for file in files]
        shape = _shape(paths, config)
        return PictureStream(
            classes=classes,
            labels=np.array([classes.index(file.label) for file in files], dtype=np.int64),
            num_train=num_train,
            shape=shape,
            blocks=_decode(paths, shape, config),
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
        "pillow": PIL.__version__,
    }

    def decode() -> PictureStream:
        paths = [file.path for file in files]
        shape = _shape(paths, config)
        labels = np.array([config.classes.index(file.label) for file in files], dtype=np.int64)
        return PictureStream(config.classes, labels, len(files), shape, _decode(paths, shape, config))

    return Source(identity, decode)


def chosen_classes(root: Path, classes: Sequence[str]) -> list[_File]:
    """Every file of ``root/<class>/``; a class may be missing. Raises `DataError` for a folder of another name."""
    files = _files(root, fewest=1)
    unknown = sorted({file.label for file in files} - set(classes))
    if unknown:
        raise DataError(f"{root / unknown[0]}: not one of the classes {', '.join(classes)}")
    return files


# --- listing ---------------------------------------------------------------------------------------------


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _subfolders(folder: Path) -> list[os.DirEntry[str]]:
    return [entry for entry in _visible(folder) if entry.is_dir()]


def _files(folder: Path, fewest: int = 2) -> list[_File]:
    """Every file of every class folder in `folder`, in a fixed order. fewest: classes that must be there."""
    classes = _subfolders(folder)
    if len(classes) < fewest:
        raise DataError(
            f"{folder}: needs one folder per class and at least {fewest} classes, holds "
            f"{len(classes)} folders ({', '.join(entry.name for entry in classes) or 'none'})"
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
            files.append(_File(file.path, entry.name, state.st_size, state.st_mtime_ns))
    return files


def _split_by_class(files: list[_File], test_fraction: float, seed: int) -> tuple[list[_File], int]:
    """(training pictures, then test pictures; number of training pictures), the same share of every class.

    Every class keeps a training picture, and gives up a test picture where it has two or more.
    """
    rng = generator(seed, "train-test")
    labels = np.array([file.label for file in files])
    train: list[int] = []
    test: list[int] = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        num_test = min(max(round(len(rows) * test_fraction), 1), len(rows) - 1)
        test.extend(sorted(rows[:num_test]))
        train.extend(sorted(rows[num_test:]))
    if not test:
        raise DataError("dataset.root: every class has a single picture, so that none is left for testing")
    return [files[row] for row in train + test], len(train)


# --- decoding --------------------------------------------------------------------------------------------


def _shape(paths: list[str], config: DatasetConfig) -> tuple[int, int, int]:
    """(c, h, w) of every picture: as dataset.size says, otherwise as the first readable picture is."""
    if config.size is not None:
        return config.channels, config.size, config.size
    broken = []
    for path in paths:
        picture = _read(path, config)
        if not isinstance(picture, str):
            channels, height, width = picture.shape
            return channels, height, width
        broken.append((path, picture))
    raise _broken_pictures(broken)


def _decode(paths: list[str], shape: tuple[int, int, int], config: DatasetConfig) -> Iterator[np.ndarray]:
    """uint8 [some, c, h, w], block after block. Goes through all pictures before it reports broken ones."""
    broken: list[tuple[str, str]] = []
    block_length = max(1, BLOCK_BYTES // int(np.prod(shape)))

    def read_task(task: list[str]) -> list[np.ndarray | str]:
        return [_read(path, config) for path in task]

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        for block in _cut(paths, block_length):
            results = itertools.chain.from_iterable(pool.map(read_task, _cut(block, PICTURES_PER_TASK)))
            pictures = []
            for path, result in zip(block, results, strict=True):
                if isinstance(result, str):
                    broken.append((path, result))
                elif result.shape != shape:
                    raise _sizes_differ(path, result.shape, shape)
                else:
                    pictures.append(result)
            if pictures:
                yield np.stack(pictures)
    if broken:
        raise _broken_pictures(broken)


def _cut(paths: list[str], length: int) -> Iterator[list[str]]:
    return (paths[start : start + length] for start in range(0, len(paths), length))


def _read(path: str, config: DatasetConfig) -> np.ndarray | str:
    """One picture, uint8 [c, h, w]; what is wrong with it, in words, where it cannot be read."""
    try:
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened)
            if picture.mode.startswith("I;16"):
                # Pillow's own conversion would turn everything above 255 of 65,535 into white.
                picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
            picture = picture.convert("L" if config.channels == 1 else "RGB")
            if config.size is not None:
                # Cut to a square around the middle, so that nothing is stretched.
                picture = ImageOps.fit(picture, (config.size, config.size), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture)
    except UnidentifiedImageError:
        return "not a picture"
    except Exception as error:  # whatever a decoder makes of a damaged file: the user learns which file it is
        return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return pixels.reshape(*pixels.shape[:2], config.channels).transpose(2, 0, 1)


def _broken_pictures(broken: list[tuple[str, str]]) -> DataError:
    shown = "; ".join(f"{path} ({reason})" for path, reason in broken[:SHOWN])
    more = f"; and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
    return DataError(f"{len(broken)} of the files in dataset.root cannot be read as pictures: {shown}{more}")


def _sizes_differ(path: str, found: tuple[int, ...], shape: tuple[int, ...]) -> OptionError:
    one, other = (f"{height} x {width}" for _, height, width in (found, shape))
    return OptionError(
        "dataset.size", "null", f"{path} has {one} pixels, others {other}; set the side that all get, as in size=32"
    )
