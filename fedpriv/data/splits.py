"""Splits into training and test examples other than the set's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from fedpriv.common.errors import DataError, OptionError
from fedpriv.data.draws import generator


@dataclass(frozen=True)
class Split:
    """Disjoint rows (int64, ascending) of all examples, the set's training examples first.

    seed: seed of the pool, where the pool depends on one (image_folder, huggingface).
    """

    train: np.ndarray
    test: np.ndarray
    seed: int = 0


def divide_by_class(labels: np.ndarray, test_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, test rows), the same share of every class, class after class and ascending in each.

    Every class keeps at least one training example and, if it has two or more, at least one test example. Raises
    `DataError` where no test example results.
    """
    rng = generator(seed, "train-test")
    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        num_test = min(max(round(len(rows) * test_fraction), 1), len(rows) - 1)
        test.append(np.sort(rows[:num_test]))
        train.append(np.sort(rows[num_test:]))
    if not sum(map(len, test)):
        raise DataError("dataset.root: every class has a single example, so that none is left for testing")
    return np.concatenate(train), np.concatenate(test)


def chosen_examples(available: int, wanted: int | None, seed: int) -> np.ndarray:
    """Rows of the training examples that are used, ascending; `OptionError` where there are fewer."""
    if wanted is None:
        return np.arange(available)
    if wanted > available:
        raise OptionError("dataset.train_examples", wanted, f"there are {available} training examples")
    return np.sort(generator(seed, "train-examples").permutation(available)[:wanted])


def at_most_each(unit: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Positions, ascending, of rows with these persons (int64 [n]) such that nobody has more than ``most``.

    A cap leaks nothing: of a person with m rows those at the places P(seed, m) are kept, in the order of its own rows.
    That is a function of this person's rows and of public numbers, so whether another person is in the table changes
    nobody else's choice, and neighbours that differ in one person still do so after the cap. No value is looked at.
    """
    _, member, counts = np.unique(unit, return_inverse=True, return_counts=True)
    order = np.argsort(member, kind="stable")
    place = np.empty(len(unit), np.int64)  # of a row among its person's
    place[order] = np.arange(len(unit)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = np.ones(len(unit), bool)
    for rows in np.unique(counts[counts > most]):
        drawn = np.zeros(rows, bool)
        drawn[generator(seed, f"rows-per-person/{rows}").permutation(rows)[:most]] = True
        theirs = counts[member] == rows
        kept[theirs] = drawn[place[theirs]]
    return np.flatnonzero(kept)


def write_split(path: Path, split: Split) -> None:
    np.savez(path, train=split.train, test=split.test, seed=split.seed)


def read_split(path: str) -> Split:
    """Raises `OptionError` for a missing file or one without these rows."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            train, test = (np.sort(np.asarray(stored[part], dtype=np.int64)) for part in ("train", "test"))
            return Split(train, test, int(stored["seed"]) if "seed" in stored else 0)
    except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile) as error:
        reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise OptionError("dataset.split", path, f"must be a .npz file with rows `train` and `test`{reason}") from None


def check_split(path: str, split: Split, examples: int) -> None:
    """Raises `OptionError` for rows that are out of range, given twice, or on both sides."""
    rows = np.concatenate([split.train, split.test])
    if not len(split.train) or not len(split.test):
        raise OptionError("dataset.split", path, "at least one row of each side is needed")
    if rows.min() < 0 or rows.max() >= examples:
        raise OptionError("dataset.split", path, f"rows are 0 to {examples - 1}, found {rows.min()} to {rows.max()}")
    if len(np.unique(rows)) < len(rows):
        raise OptionError("dataset.split", path, "a row is given twice: train and test must not overlap")
