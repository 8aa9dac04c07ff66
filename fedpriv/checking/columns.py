"""Many plays as one matrix: a row for each play, a column for each number that leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv.checking.subject import Numbers, Played

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Columns:
    """names: of each column's record [k]. ragged: records whose length changes between plays; they have no column."""

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    ragged: tuple[str, ...]

    @classmethod
    def of(cls, plays: Sequence[Played]) -> Columns:
        names = dict.fromkeys(name for one in plays for name in one.numbers)
        fixed, ragged = {}, []
        for name in names:
            sizes = {one.numbers[name].size if name in one.numbers else -1 for one in plays}
            if len(sizes) == 1:
                fixed[name] = sizes.pop()
            else:
                ragged.append(name)
        return cls(tuple(fixed), tuple(fixed.values()), tuple(ragged))

    @property
    def records(self) -> NDArray[np.str_]:
        """The record of every column [k]."""
        return np.repeat(np.array(self.names, dtype=str), self.lengths)

    def matrix(self, plays: Sequence[Played]) -> Numbers:
        """[n, k]."""
        rows = [np.concatenate([np.zeros(0), *(np.ravel(one.numbers[name]) for name in self.names)]) for one in plays]
        return np.stack(rows)


def is_word(record: str) -> bool:
    """A record whose numbers are hashes: they are equal or not, and have no size."""
    return record.startswith("form.") or record.endswith(".text")


@dataclass(frozen=True)
class Two:
    """What left with either of two neighbouring inputs, under the same seeds.

    left, right [n, k]. records [k]: the record of each column. repeatable: row i of both had the same randomness.
    """

    pair: str
    left: Numbers
    right: Numbers
    records: NDArray[np.str_]
    repeatable: bool

    @property
    def words(self) -> Bools:
        return np.array([is_word(record) for record in self.records], bool)

    @property
    def fixed_left(self) -> Bools:
        """Columns with one value under every seed."""
        return np.asarray(constant(self.left))

    @property
    def fixed_right(self) -> Bools:
        return np.asarray(constant(self.right))

    @property
    def varying(self) -> Bools:
        """Columns that have a size, and vary with both inputs."""
        return ~self.fixed_left & ~self.fixed_right & ~self.words

    def only(self, columns: Bools) -> Two:
        return Two(self.pair, self.left[:, columns], self.right[:, columns], self.records[columns], self.repeatable)


def constant(values: Numbers) -> Bools:
    """Columns of [n, k] with one value, up to what sums in another order change."""
    low, high = values.min(0), values.max(0)
    return np.asarray(high - low <= 1e-12 * np.maximum(np.abs(low), np.abs(high)))


def atoms(values: Numbers) -> Bools:
    """Columns of [n, k] in which any value comes three times or more: no density."""
    ordered = np.sort(values, axis=0)
    if len(ordered) < 3:
        return np.ones(values.shape[1], bool)
    return np.asarray((ordered[2:] == ordered[:-2]).any(0))


def spread(values: Numbers) -> Numbers:
    """A robust standard deviation of each column [k]: 1.4826 times the median distance from the median."""
    return np.asarray(1.4826 * np.median(np.abs(values - np.median(values, axis=0)), axis=0))
