"""Statistics of a table as bounded vectors: what each unit adds, and how an answer is read off a noisy sum of them.

A question is a text: ``count``, ``count:sex:f``, ``sum:age``, ``mean:age``, ``variance:age``, ``histogram:sex``,
``histogram:age:20``, ``quantiles:age:0.25:0.5:0.75``, ``covariance:age:weight``, ``table:sex:diagnosis``,
``top:ward:5``. It gives a unit a vector of length at most 1 (`Question.vectors`); all vectors of a list of questions
stand beside each other, scaled by w_q with sum of w_q^2 = 1, so a unit moves their sum by at most 1 whatever it holds.
One noisy sum is one release that answers them all.

**Why a unit's vector is no longer than 1.** Numbers are clipped to the schema's range and scaled to [-1, 1]; a category
is one of a fixed list. So sum: |x / M| <= 1 with M the range's larger end. mean: |(x, 1)| <= sqrt(2). variance: |(x, 2
x^2 - 1, 1)| <= sqrt(3). covariance of k columns: 1 + k + k (k + 1) / 2 numbers of at most 1. histogram, table, top: one
1. Each is divided by that length. quantiles: `fedpriv.data.quantiles`. A row with a missing value adds 0. A unit of
several rows adds the mean of its rows' vectors, or with a cap L on rows the sum of at most L of them divided by L: no
longer than the longest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.common.errors import OptionError
from fedpriv.data.quantiles import Bins
from fedpriv.data.table_schema import TableSchema

KINDS = ("count", "sum", "mean", "variance", "histogram", "quantiles", "covariance", "table", "top")
#: Bins of a number's histogram where none are asked for.
BINS = 10
#: Quantiles of a question, which share its bins.
MOST_SHARES = 64
#: A list of questions has at most so many numbers.
MOST_NUMBERS = 1 << 16

Values = dict[str, np.ndarray]  # column -> scaled numbers in [-1, 1] (float64 [n], NaN: missing) or places (int64, -1)


@dataclass(frozen=True)
class Question:
    """One question about a table.

    vectors: from the needed columns (`columns`) to float64 [n, size], each row of length at most 1. decode: from a sum
    of such vectors [..., size] to answers [..., k], ``names`` says of what. bins: of quantiles, in this round.
    """

    text: str
    columns: tuple[str, ...]
    size: int
    names: tuple[str, ...]
    vectors: Callable[[Values], np.ndarray]
    decode: Callable[[np.ndarray], np.ndarray]
    bins: Bins | None = None

    @property
    def kind(self) -> str:
        return self.text.partition(":")[0]

    @classmethod
    def of_bins(cls, text: str, name: str, bins: Bins) -> Question:
        """Quantiles of a column, asked by these bins."""
        return cls(
            text,
            (name,),
            bins.size,
            tuple(f"{share:g}" for share in bins.shares),
            lambda values: bins.vectors(values[name]),
            lambda total: bins.answer(total, 0.0)[0],
            bins,
        )


def weights(questions: Sequence[Question]) -> np.ndarray:
    """w_q [questions] with sum of squares 1: each question gets the same noise for a vector of length 1."""
    return np.full(len(questions), 1 / math.sqrt(len(questions)))


def parse(texts: Sequence[str], schema: TableSchema) -> tuple[Question, ...]:
    """The questions of a list. Raises `OptionError` for `questions`, naming what is allowed."""
    if not texts:
        raise OptionError("questions", "[]", f"nothing is asked; kinds: {', '.join(KINDS)}")
    found = tuple(_Builder(text, schema).question() for text in texts)
    twice = [text for text in texts if list(texts).count(text) > 1]
    if twice:
        raise OptionError("questions", twice[0], "is asked twice; one answer costs less")
    total = sum(question.size for question in found)
    if total > MOST_NUMBERS:
        raise OptionError("questions", f"{len(texts)} of them", f"{total} numbers in all; allowed: {MOST_NUMBERS}")
    return found


class _Builder:
    """Makes one question of its text."""

    def __init__(self, text: str, schema: TableSchema) -> None:
        self.text, self.schema = text, schema
        self.kind, *self.given = (part.strip() for part in str(text).split(":"))

    def question(self) -> Question:
        if self.kind not in KINDS:
            raise self.wrong(f"there is no such question; kinds: {', '.join(KINDS)}")
        made: Question = getattr(self, f"_{self.kind}")()
        return made

    def wrong(self, words: str) -> OptionError:
        return OptionError("questions", self.text, words)

    def numbers_of(self, name: str) -> tuple[float, float]:
        """(low, high) of a column of numbers."""
        aim = self.schema.target
        bounds = None if name == aim.column and aim.range is None else self.column(name).range
        if not isinstance(bounds, tuple):
            raise self.wrong(f"{name} is no column of numbers with a range; these are: {self.having('range')}")
        return bounds

    def values_of(self, name: str) -> tuple[str, ...]:
        """The categories of a column, the last of them ``other``; the target's classes, where it is the target."""
        target = self.schema.target
        if name == target.column and isinstance(target.classes, tuple):
            return target.classes
        column = self.column(name)
        if not isinstance(column.values, tuple):
            raise self.wrong(f"{name} is no column of categories; these are: {self.having('values')}")
        return (*column.values, "other")

    def column(self, name: str) -> Any:
        target = self.schema.target
        if name == target.column and target.range is not None:
            return target
        if name not in self.schema.columns or self.schema.columns[name].ignore:
            raise self.wrong(f"the schema has no column {name} that is read")
        return self.schema.columns[name]

    def having(self, kind: str) -> str:
        names = [name for name, column in self.schema.inputs if column.kind == kind]
        return ", ".join(names[:12]) or "none"

    def only(self, number: int, form: str) -> list[str]:
        if len(self.given) != number:
            raise self.wrong(f"allowed: {form}")
        return self.given

    # --- kinds -------------------------------------------------------------------------------------------

    def _count(self) -> Question:
        if not self.given:
            return Question(self.text, (), 1, ("units",), lambda values: np.ones((len(values[ROWS]), 1)), _same)
        name, value = self.only(2, "count, or count:COLUMN:VALUE")
        categories = self.values_of(name)
        if value not in categories:
            raise self.wrong(f"{name} has no value {value}; allowed: {', '.join(categories[:12])}")
        place = categories.index(value)
        return Question(
            self.text, (name,), 1, (value,), lambda values: (values[name] == place).astype(float)[:, None], _same
        )

    def _sum(self) -> Question:
        (name,) = self.only(1, "sum:COLUMN")
        low, high = self.numbers_of(name)
        most = max(abs(low), abs(high))

        def vectors(values: Values) -> np.ndarray:
            raw = low + (values[name] + 1) / 2 * (high - low)
            return np.nan_to_num(np.clip(raw / most, -1, 1))[:, None]

        return Question(self.text, (name,), 1, (name,), vectors, lambda total: total * most)

    def _mean(self) -> Question:
        (name,) = self.only(1, "mean:COLUMN")
        low, high = self.numbers_of(name)
        middle, half, length = (low + high) / 2, (high - low) / 2, math.sqrt(2)

        def vectors(values: Values) -> np.ndarray:
            return _present(np.stack([values[name], np.ones(len(values[name]))], axis=1)) / length

        def decode(total: np.ndarray) -> np.ndarray:
            mean = np.clip(total[..., 0] / _at_least_one(total[..., 1] * length) * length, -1, 1)
            return (middle + half * mean)[..., None]

        return Question(self.text, (name,), 2, (name,), vectors, decode)

    def _variance(self) -> Question:
        (name,) = self.only(1, "variance:COLUMN")
        low, high = self.numbers_of(name)
        half, length = (high - low) / 2, math.sqrt(3)

        def vectors(values: Values) -> np.ndarray:
            x = values[name]
            return _present(np.stack([x, 2 * x**2 - 1, np.ones(len(x))], axis=1)) / length

        def decode(total: np.ndarray) -> np.ndarray:
            number = _at_least_one(total[..., 2] * length)
            mean, square = total[..., 0] * length / number, (total[..., 1] * length / number + 1) / 2
            return (np.clip(square - mean**2, 0, 1) * half**2)[..., None]

        return Question(self.text, (name,), 3, (name,), vectors, decode)

    def _covariance(self) -> Question:
        names = tuple(self.given)
        if len(names) < 2 or len(set(names)) < len(names):
            raise self.wrong("allowed: covariance:COLUMN:COLUMN..., different columns of numbers")
        halves = np.array([(high - low) / 2 for low, high in map(self.numbers_of, names)])
        k = len(names)
        pairs = list(itertools.combinations_with_replacement(range(k), 2))
        length = math.sqrt(1 + k + len(pairs))
        first, second = (np.array(side) for side in zip(*pairs, strict=True))

        def vectors(values: Values) -> np.ndarray:
            x = np.stack([values[name] for name in names], axis=1)
            return _present(np.concatenate([np.ones((len(x), 1)), x, x[:, first] * x[:, second]], axis=1)) / length

        def decode(total: np.ndarray) -> np.ndarray:
            number = _at_least_one(total[..., :1] * length)
            mean, product = total[..., 1 : 1 + k] * length / number, total[..., 1 + k :] * length / number
            return (product - mean[..., first] * mean[..., second]) * halves[first] * halves[second]

        said = tuple(f"{names[i]} x {names[j]}" for i, j in pairs)
        return Question(self.text, names, 1 + k + len(pairs), said, vectors, decode)

    def _histogram(self) -> Question:
        if len(self.given) not in (1, 2):
            raise self.wrong("allowed: histogram:COLUMN of categories, histogram:COLUMN:BINS of numbers")
        name = self.given[0]
        if len(self.given) == 1 and self._has_values(name):
            categories = self.values_of(name)
            return Question(self.text, (name,), len(categories), categories, _one_hot(name, len(categories)), _same)
        low, high = self.numbers_of(name)
        bins = BINS if len(self.given) == 1 else self._whole(self.given[1], 1, MOST_NUMBERS)
        edges = np.linspace(low, high, bins + 1)
        said = tuple(f"{left:g} to {right:g}" for left, right in itertools.pairwise(edges))
        return Question(
            self.text, (name,), bins, said, lambda values: _one_hot_of(_binned(values[name], bins), bins), _same
        )

    def _top(self) -> Question:
        if len(self.given) not in (1, 2):
            raise self.wrong("allowed: top:COLUMN or top:COLUMN:HOW_MANY")
        name = self.given[0]
        categories = self.values_of(name)
        most = 5 if len(self.given) == 1 else self._whole(self.given[1], 1, len(categories))
        # All counts are answered; whoever shows them shows the most frequent (`Answer` of kind top).
        return Question(
            f"top:{name}:{most}", (name,), len(categories), categories, _one_hot(name, len(categories)), _same
        )

    def _table(self) -> Question:
        names = tuple(self.given)
        if len(names) < 2 or len(set(names)) < len(names):
            raise self.wrong("allowed: table:COLUMN:COLUMN..., different columns of categories")
        shape = [len(self.values_of(name)) for name in names]
        size = math.prod(shape)
        if size > MOST_NUMBERS:
            raise self.wrong(f"{size} cells; allowed: {MOST_NUMBERS}")
        said = tuple(" and ".join(cell) for cell in itertools.product(*map(self.values_of, names)))

        def vectors(values: Values) -> np.ndarray:
            places = np.stack([values[name] for name in names])
            known = (places >= 0).all(axis=0)
            cell = np.where(known, np.ravel_multi_index(np.maximum(places, 0), shape), -1)
            return _one_hot_of(cell, size)

        return Question(self.text, names, size, said, vectors, _same)

    def _quantiles(self) -> Question:
        if not self.given:
            raise self.wrong("allowed: quantiles:COLUMN:SHARE:..., with shares between 0 and 1")
        name, *shares = self.given
        low, high = self.numbers_of(name)
        try:
            wanted = tuple(float(share) for share in shares or ("0.25", "0.5", "0.75"))
        except ValueError:
            raise self.wrong("a share must be a number between 0 and 1") from None
        if not all(0 <= share <= 1 for share in wanted):
            raise self.wrong("a share must be a number between 0 and 1")
        if len(wanted) > MOST_SHARES:
            raise self.wrong(f"{len(wanted)} shares; allowed: {MOST_SHARES}")
        step = getattr(self.column(name), "step", None)  # a target has none
        return Question.of_bins(self.text, name, Bins.of_range(low, high, step, wanted))

    def _has_values(self, name: str) -> bool:
        target = self.schema.target
        return (name == target.column and target.classes is not None) or (
            name in self.schema.columns and self.schema.columns[name].values is not None
        )

    def _whole(self, text: str, least: int, most: int) -> int:
        if not text.isdigit() or not least <= int(text) <= most:
            raise self.wrong(f"{text} must be a whole number between {least} and {most}")
        return int(text)


#: In `Values`: of how many rows they are, float64 [n].
ROWS = ""


def _same(total: np.ndarray) -> np.ndarray:
    return total


def _at_least_one(number: np.ndarray) -> np.ndarray:
    return np.maximum(number, 1.0)


def _present(vectors: np.ndarray) -> np.ndarray:
    """Rows with a missing number add nothing."""
    return np.where(np.isnan(vectors).any(axis=1, keepdims=True), 0.0, vectors)


def _one_hot(name: str, size: int) -> Callable[[Values], np.ndarray]:
    return lambda values: _one_hot_of(values[name], size)


def _one_hot_of(places: np.ndarray, size: int) -> np.ndarray:
    """float64 [n, size] of places [n]; -1 is nowhere."""
    vectors = np.zeros((len(places), size))
    known = places >= 0
    vectors[np.flatnonzero(known), places[known]] = 1.0
    return vectors


def _binned(scaled: np.ndarray, bins: int) -> np.ndarray:
    """The bin int64 [n] of numbers in [-1, 1]; -1: missing."""
    missing = np.isnan(scaled)
    place = np.floor((np.where(missing, 0, scaled) + 1) / 2 * bins).astype(np.int64)
    return np.where(missing, -1, place.clip(0, bins - 1))
