"""Where pictures come from: finds the data set that the configuration names.

Two sources are read here, the digits that ship with scikit-learn and the user's own function (`custom`); the
published sets are in `published.py`, the user's own pictures in `folders.py`, the sets of the hub in `hub.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpriv.common.errors import OptionError
from fedpriv.common.places import load_module
from fedpriv.common.versions import installed
from fedpriv.config.data_schema import DatasetConfig
from fedpriv.data.folders import image_folder
from fedpriv.data.hub import huggingface
from fedpriv.data.published import published
from fedpriv.data.types import PictureStream, Source


def find_source(config: DatasetConfig, seed: int) -> Source:
    """The source of the configuration. Cheap: looks at names, sizes and times of files, reads no picture."""
    if config.name == "digits":
        return Source({"name": "digits", "scikit-learn": installed("scikit-learn")}, _read_digits)
    if config.name == "image_folder":
        return image_folder(config, seed)
    if config.name == "huggingface":
        return huggingface(config, seed)
    if config.name == "custom":
        # No identity, so never cached: what a function returns can depend on anything.
        return Source(None, lambda: _read_custom(config.path or "null"))
    return published(config)


def _read_digits() -> PictureStream:
    """1,437 training and 360 test pictures of 8 x 8, the same for every run (no seed: a public split)."""
    from sklearn.datasets import load_digits  # takes seconds; needed only once, thanks to the cache
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)  # float [1797, 64] in 0..16
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    train, test = train_test_split(np.arange(len(labels)), test_size=360, stratify=labels, random_state=0)
    order = np.concatenate([train, test])
    return PictureStream(
        classes=tuple("0123456789"),
        labels=labels[order].astype(np.int64),
        num_train=len(train),
        shape=(1, 8, 8),
        blocks=[images[order]],
    )


# --- the user's own function -----------------------------------------------------------------------------


def _read_custom(path: str) -> PictureStream:
    """Calls the function at the dotted `path` for both splits and checks what it returns.

    Raises `OptionError` for dataset.path that says what is wrong.
    """
    function = _import_function(path)
    (train, train_labels), (test, test_labels) = (_call(path, function, split) for split in ("train", "test"))
    if train.shape[1:] != test.shape[1:]:
        raise OptionError(
            "dataset.path", path, f"training pictures are {train.shape[1:]}, test pictures {test.shape[1:]}"
        )
    labels = np.concatenate([train_labels, test_labels])
    num_classes = int(labels.max()) + 1
    if num_classes < 2:
        raise OptionError("dataset.path", path, "all labels are 0: at least 2 classes are needed")
    present = np.unique(labels)
    if len(present) < num_classes:
        absent = int(np.flatnonzero(present != np.arange(len(present)))[0])
        words = f"labels must be 0, 1, 2, ... without a gap up to {num_classes - 1}; there is no picture of {absent}"
        raise OptionError("dataset.path", path, words)
    return PictureStream(
        classes=tuple(str(label) for label in range(num_classes)),
        labels=labels,
        num_train=len(train_labels),
        shape=train.shape[1:],
        blocks=[train, test],
    )


def _import_function(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        function = getattr(load_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            "dataset.path", path, f"must be the dotted path of a function, package.module.name ({error})"
        ) from error
    if not callable(function):
        raise OptionError("dataset.path", path, f"must be a function, is a {type(function).__name__}")
    return function


def _call(path: str, function: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        result = function(split)
    except Exception as error:
        raise OptionError("dataset.path", path, f"{split!r}: raised {type(error).__name__}: {error}") from error
    if not isinstance(result, tuple) or len(result) != 2:
        raise OptionError("dataset.path", path, f"{split!r}: must return (images, labels), not {type(result).__name__}")
    images, labels = (np.asarray(part) for part in result)
    problem = _problem_with(images, labels)
    if problem:
        raise OptionError("dataset.path", path, f"{split!r}: {problem}")
    return images, labels.astype(np.int64)


def _problem_with(images: np.ndarray, labels: np.ndarray) -> str | None:
    if images.dtype != np.uint8 or images.ndim != 4 or 0 in images.shape:
        return f"images must be uint8 [n, channels, height, width], are {images.dtype} {list(images.shape)}"
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        return f"labels must be integers [{len(images)}], one per picture, are {labels.dtype} {list(labels.shape)}"
    if labels.min() < 0:
        return f"labels must be 0, 1, 2, ..., the smallest is {labels.min()}"
    return None
