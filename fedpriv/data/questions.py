"""Statistics of a table as bounded vectors: what each unit adds, and how an answer is read off a noisy sum of them.

A question is a text: ``count``, ``count:sex:f``, ``sum:age``, ``mean:age``, ``variance:age``, ``histogram:sex``,
``histogram:age:20``, ``quantiles:age:0.25:0.5:0.75``, ``covariance:age:weight``, ``table:sex:diagnosis``,
``top:ward:5``, ``linear:weight:age:sex``, ``heterogeneity:site:linear:weight:age``, ``survival:months:died:arm``,
``hazards:months:died:age:arm``, ``score:outputs/run``. It gives a unit a vector of length at most 1
(`Question.vectors`); all vectors of a list of questions stand beside each other, scaled by w_q with sum of w_q^2 = 1,
so a unit moves their sum by at most 1 whatever it holds. One noisy sum is one release that answers them all.

**Why a unit's vector is no longer than 1.** Numbers are clipped to the schema's range and scaled to [-1, 1]; a category
is one of a fixed list. So sum: |x / M| <= 1 with M the range's larger end. mean: |(x, 1)| <= sqrt(2). variance: |(x, 2
x^2 - 1, 1)| <= sqrt(3). covariance of k columns: 1 + k + k (k + 1) / 2 numbers of at most 1. histogram, table, top: one
1. Each is divided by that length. quantiles: below. A row with a missing value adds 0. A unit of several rows adds the
mean of its rows' vectors, or with a cap L on rows the sum of at most L of them divided by L: at most as long as the
longest.

Quantiles come from noisy counts below the edges of bins, with intervals that hold them (`Bins`): J. Fichtenberger, M.
Henzinger, J. Upadhyay: Constant matters. ICML 2023 (the square root of the matrix of ones).

Symbols: B -> size, e_0 < ... < e_b with b <= B -> edges, q -> shares, F -> `root`, f -> its first column, n: rows, C_j:
rows below e_j, D_j = C_j - q n, s_j: standard deviation of its noise.

**What a row adds.** F is the lower triangular matrix with F F = the matrix of ones on and below the diagonal: f_0 = 1,
f_k = f_(k-1) (2k - 1)/(2k), and column i is f moved down by i. A row in bin i adds column i of F, divided by |f|. Its
length is at most 1: column i consists of the first B - i numbers of f. |f| F times the sum gives C_1, ..., C_B.

**Zooming is composition.** Edges of a round are a function of the schema and of earlier rounds' noisy sums, which are
public. A row's vector is no longer than 1 whatever the edges are, and the noise of each round is fixed before the run.
So the rounds are the adaptive composition of mechanisms with fixed noise, which the ledger adds up as it adds up rounds
of training; nothing has to be known of how edges were chosen.

**The interval.** Let the quantile lie in bin m of the last round: C_m < q n + 1 and C_(m+1) > q n - 1, whichever of the
common definitions is meant (the rank is between q n and q n + 1 - q). A bin is given up where D_m - z s_m > 1 or
D_(m+1) + z s_(m+1) < -1. This befalls bin m with probability 2 P(N > z) at most, as nothing but its own two edges
decides it: no number of bins makes it likelier. Bins beyond an edge j with |D_j| > 1 + k s_j are given up as well; this
errs at any edge with probability P(N > k) b at most. z and k are such that both together are 5 %. The noise of the last
round is independent of its edges, so this holds for any edges: earlier rounds may have misled, which makes the interval
wide and not wrong. The interval runs from the first bin's lower edge to the last bin's upper edge.

**Rounding.** Columns are stored as float32 in [-1, 1], which moves a number by at most 2^-26 of the range: `blur` is
twice that, and widens the interval. With a step, edges lie half way between its multiples; a number that is moved by
less than half a step stays in its bin, and the interval runs between multiples.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np

from fedpriv.common.errors import OptionError
from fedpriv.data.regressions import HAZARD_INTERVALS, MOST_COEFFICIENTS, Groups, Hazards, Link, Moments
from fedpriv.data.regressions import Column as Regressor
from fedpriv.data.scores import BINS, Residuals, Scores
from fedpriv.data.scores import MOST_BINS as MOST_SCORE_BINS
from fedpriv.data.survival import AT_AN_EDGE, INTERVALS, MOST_INTERVALS, LifeTable
from fedpriv.data.table_schema import Column, TableSchema

Kind = Literal[
    "count", "sum", "mean", "variance", "histogram", "quantiles", "covariance", "table", "top", "linear", "logistic",
    "poisson", "survival", "hazards", "heterogeneity", "score"
]  # fmt: skip
KINDS: tuple[str, ...] = get_args(Kind)
#: Bins of a number's histogram where none are asked for.
HISTOGRAM_BINS = 10
#: Regressions of which groups are compared.
GROUPED = ("linear", "logistic", "poisson", "hazards")
#: Quantiles of a question, which share its bins.
MOST_SHARES = 64
#: Of covariances.
NOT_EXACT = (
    "these sums have noise: a regression that takes them for exact has intervals that are far too narrow; "
    "linear:TARGET:COLUMN... has the noise in its intervals"
)
#: A list of questions has at most so many numbers.
MOST_NUMBERS = 1 << 16


Values = dict[str, np.ndarray]  # column -> scaled numbers in [-1, 1] (float64 [n], NaN: missing) or places (int64, -1)
#: In `Values`: of how many rows they are, float64 [n]; what the run's model says of each, float64 [n, outputs].
ROWS, SCORES = "", "the model's scores"


@dataclass(frozen=True)
class Question:
    """One question about a table.

    vectors: from the needed columns (`columns`) to float64 [n, size], each row of length at most 1. decode: from a sum
    of such vectors [..., size] to answers [..., k], ``names`` says of what. bins: of quantiles, in this round. zoom:
    from this round's noisy sum and its noise to the question that the next round asks, where it is another. read:
    from a noisy sum, its noise's standard deviation and the rows of a unit that count to what an answer says, where
    that has intervals of its own. needs: from the noise to the rows without which nothing can be said. grouped:
    of a regression, from a column, its categories and a text to the same in each group. expects: from the noise and a
    number of rows to what half-widths to expect, in words. scored: whether a model's scores are needed. remarks: on
    every answer.
    """

    text: str
    columns: tuple[str, ...]
    size: int
    names: tuple[str, ...]
    vectors: Callable[[Values], np.ndarray]
    decode: Callable[[np.ndarray], np.ndarray] = lambda total: total
    bins: Bins | None = None
    zoom: Callable[[np.ndarray, float], Question] | None = None
    read: Callable[[np.ndarray, float, int], dict[str, Any]] | None = None
    needs: Callable[[float], float] = lambda std: 0.0
    grouped: Callable[[str, tuple[str, ...], str], Question] | None = None
    expects: Callable[[float, float], str] | None = None
    scored: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return self.text.partition(":")[0]

    @classmethod
    def of_bins(cls, text: str, name: str, bins: Bins) -> Question:
        """Quantiles of a column, asked by these bins."""
        shares = tuple(f"{share:g}" for share in bins.shares)

        def vectors(values: Values) -> np.ndarray:
            return bins.vectors(values[name])

        def read(total: np.ndarray, std: float, spread: int) -> dict[str, Any]:
            return dict(zip(("values", "low", "high", "remarks"), bins.answer(total, std), strict=True))

        def zoom(total: np.ndarray, std: float) -> Question:
            return cls.of_bins(text, name, bins.zoomed(total, std))

        zoomed = None if bins.final else zoom
        return cls(text, (name,), bins.size, shares, vectors, bins=bins, zoom=zoomed, read=read)

    @classmethod
    def of_moments(
        cls, text: str, columns: tuple[str, ...], moments: Moments | Groups, given: Callable[[Values], list[np.ndarray]]
    ) -> Question:
        """A regression. given: the columns of x and the target, in the schema's scale."""

        def zoom(total: np.ndarray, std: float) -> Question:
            return cls.of_moments(text, columns, moments.zoomed(total, std), given)

        def vectors(values: Values) -> np.ndarray:
            return moments.vectors(given(values))

        def grouped(name: str, groups: tuple[str, ...], text: str) -> Question:
            assert isinstance(moments, Moments)
            return cls.of_moments(
                text, (*columns, name), Groups(moments, groups), lambda values: [values[name], *given(values)]
            )

        asked = cls(text, columns, moments.size, moments.names, vectors, read=moments.answer, needs=moments.needs)
        return replace(asked, zoom=zoom if moments.link else None, grouped=grouped)

    @classmethod
    def of_places(
        cls, text: str, columns: tuple[str, ...], names: tuple[str, ...], places: Callable[[Values], np.ndarray]
    ) -> Question:
        """Counts of rows by place (int64 [n], -1: nowhere), one for each of ``names``."""

        def vectors(values: Values) -> np.ndarray:
            place = places(values)
            counts, rows = np.zeros((len(place), len(names))), np.flatnonzero(place >= 0)
            counts[rows, place[rows]] = 1.0
            return counts

        return cls(text, columns, len(names), names, vectors)


def weights(questions: Sequence[Question]) -> np.ndarray:
    """w_q [questions] with sum of squares 1: each question gets the same noise for a vector of length 1."""
    return np.full(len(questions), 1 / math.sqrt(len(questions)))


def parse(texts: Sequence[str], schema: TableSchema) -> tuple[Question, ...]:
    """The questions of a list. Raises `OptionError` for `questions`, naming what is allowed."""
    if not texts:
        raise OptionError("questions", "[]", f"nothing is asked; kinds: {', '.join(KINDS)}")
    questions = tuple(_Builder(text, schema).question() for text in texts)
    twice = [text for text in texts if list(texts).count(text) > 1]
    if twice:
        raise OptionError("questions", twice[0], "is asked twice; one answer costs less")
    total = sum(question.size for question in questions)
    if total > MOST_NUMBERS:
        raise OptionError("questions", f"{len(texts)} of them", f"{total} numbers in all; allowed: {MOST_NUMBERS}")
    return questions


class _Builder:
    """Makes one question of its text."""

    def __init__(self, text: str, schema: TableSchema) -> None:
        self.text, self.schema = text, schema
        self.kind, *self.given = (part.strip() for part in str(text).split(":"))

    def question(self) -> Question:
        if self.kind not in KINDS:
            raise self.wrong(f"there is no such question; kinds: {', '.join(KINDS)}")
        question: Question = getattr(self, f"_{self.kind}")()
        return question

    def wrong(self, words: str) -> OptionError:
        return OptionError("questions", self.text, words)

    def column(self, name: str) -> Any:
        """What the schema says of a column; the target has a range or classes."""
        target = self.schema.target
        if target.until is not None and name in target.names:
            return Column(range=(0, target.until)) if name == target.time else target
        if name == target.column and (target.range or target.classes):
            return target
        if name not in self.schema.columns or self.schema.columns[name].ignore:
            read = [one for one, column in self.schema.columns.items() if not column.ignore]
            names = [*read, *target.names]
            hint = "".join(f" (did you mean {one}?)" for one in difflib.get_close_matches(name, names, 1))
            listed = f"{', '.join(names[:12])}{', ...' * (len(names) > 12)}{hint}"
            raise self.wrong(f"the schema has no column {name} that is read; allowed: {listed}")
        return self.schema.columns[name]

    def numbers_of(self, name: str) -> tuple[float, float]:
        """(low, high) of a column of numbers."""
        bounds = self.column(name).range
        if not isinstance(bounds, tuple):
            raise self.wrong(f"{name} is no column of numbers with a range; these are: {self.having('range')}")
        return bounds

    def values_of(self, name: str) -> tuple[str, ...]:
        """The categories of a column, the last of them ``other``; the target's classes, where it is the target."""
        column = self.column(name)
        if isinstance(classes := getattr(column, "classes", None), tuple):
            return classes
        if not isinstance(values := getattr(column, "values", None), tuple):
            raise self.wrong(f"{name} is no column of categories; these are: {self.having('values')}")
        return (*values, "other")

    def having(self, kind: str) -> str:
        names = [name for name, column in self.schema.inputs if column.kind == kind]
        return ", ".join(names[:12]) or "none"

    def only(self, form: str, *numbers: int) -> list[str]:
        """What follows the kind, in one of these ``numbers`` of parts."""
        if len(self.given) not in numbers:
            raise self.wrong(f"allowed: {form}")
        return self.given

    def different(self, kind: str) -> tuple[str, ...]:
        """At least two columns."""
        if len(self.given) < 2 or len(set(self.given)) < len(self.given):
            raise self.wrong(f"allowed: {self.kind}:COLUMN:COLUMN..., different columns of {kind}")
        return tuple(self.given)

    def whole(self, text: str, least: int, most: int) -> int:
        if not text.isdigit() or not least <= int(text) <= most:
            raise self.wrong(f"{text} must be a whole number between {least} and {most}")
        return int(text)

    # --- kinds -------------------------------------------------------------------------------------------

    def _count(self) -> Question:
        if not self.given:
            return Question(self.text, (), 1, ("units",), lambda values: np.ones((len(values[ROWS]), 1)))
        name, value = self.only("count, or count:COLUMN:VALUE", 2)
        categories = self.values_of(name)
        if value not in categories:
            raise self.wrong(f"{name} has no value {value}; allowed: {', '.join(categories[:12])}")
        place = categories.index(value)
        return Question(self.text, (name,), 1, (value,), lambda values: (values[name] == place).astype(float)[:, None])

    def _sum(self) -> Question:
        (name,) = self.only("sum:COLUMN", 1)
        low, high = self.numbers_of(name)
        most = max(abs(low), abs(high))

        def vectors(values: Values) -> np.ndarray:
            raw = low + (values[name] + 1) / 2 * (high - low)
            return np.nan_to_num(np.clip(raw / most, -1, 1))[:, None]

        return Question(self.text, (name,), 1, (name,), vectors, lambda total: total * most)

    def _mean(self) -> Question:
        (name,) = self.only("mean:COLUMN", 1)
        low, high = self.numbers_of(name)
        middle, half, length = (low + high) / 2, (high - low) / 2, math.sqrt(2)

        def vectors(values: Values) -> np.ndarray:
            return _present(np.stack([values[name], np.ones(len(values[name]))], axis=1)) / length

        def decode(total: np.ndarray) -> np.ndarray:
            mean = np.clip(total[..., 0] / _at_least_one(total[..., 1] * length) * length, -1, 1)
            return (middle + half * mean)[..., None]

        return Question(self.text, (name,), 2, (name,), vectors, decode)

    def _variance(self) -> Question:
        (name,) = self.only("variance:COLUMN", 1)
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
        names = self.different("numbers")
        halves, k = np.array([(high - low) / 2 for low, high in map(self.numbers_of, names)]), len(names)
        first, second = np.triu_indices(k)
        size = 1 + k + len(first)
        length = math.sqrt(size)

        def vectors(values: Values) -> np.ndarray:
            x = np.stack([values[name] for name in names], axis=1)
            return _present(np.concatenate([np.ones((len(x), 1)), x, x[:, first] * x[:, second]], axis=1)) / length

        def decode(total: np.ndarray) -> np.ndarray:
            number = _at_least_one(total[..., :1] * length)
            mean, product = total[..., 1 : 1 + k] * length / number, total[..., 1 + k :] * length / number
            return (product - mean[..., first] * mean[..., second]) * halves[first] * halves[second]

        pairs = tuple(f"{names[i]} x {names[j]}" for i, j in zip(first, second, strict=True))
        return Question(self.text, names, size, pairs, vectors, decode, remarks=(NOT_EXACT,))

    def _linear(self) -> Question:
        return self.regression()

    def _logistic(self) -> Question:
        return self.regression(Link("logistic"))

    def _poisson(self) -> Question:
        return self.regression(Link("poisson"))

    def regression(self, link: Link | None = None) -> Question:
        names = self.different("numbers or categories")
        yes = self.happened(names[0]) if link is not None and link.name == "logistic" else None
        (low, high), columns = self.numbers_of(names[0]) if yes is None else (0.0, 1.0), map(self.regressor, names[1:])
        if link is not None and low != 0:
            raise self.wrong(f"the range of {names[0]} begins at {low:g}; counts begin at 0")
        target = Regressor(names[0], (low + high) / 2, (high - low) / 2)
        moments = Moments((*columns, target), link and replace(link, most=high))
        if len(moments.names) > MOST_COEFFICIENTS:
            raise self.wrong(f"{len(moments.names)} coefficients; allowed: {MOST_COEFFICIENTS}")

        def given(values: Values) -> list[np.ndarray]:
            y = values[names[0]]
            scaled = y if yes is None else np.where(yes(y) < 0, np.nan, 2.0 * yes(y) - 1)
            return [*(values[name] for name in names[1:]), scaled]

        return Question.of_moments(self.text, names, moments, given)

    def _hazards(self) -> Question:
        form = "hazards:TIME:EVENT:COLUMN..., then if wanted the end and a number of intervals"
        known = [place for place, name in enumerate(self.given) if self.is_column(name)]
        if len(known) < 3 or known != [*range(len(known))] or len({*self.given[: len(known)]}) < len(known):
            raise self.wrong(f"allowed: {form}, different columns of numbers or categories")
        (time, event, *names), given = self.given[: len(known)], self.given[len(known) :]
        scaled, until, intervals = self.times(time, given, form)
        number, happened = self.whole(intervals or str(HAZARD_INTERVALS), 2, MOST_COEFFICIENTS), self.happened(event)
        ends = [f"{until * place / number:.6g}" for place in range(number + 1)]
        first = Regressor(time, values=tuple(f"{low} to {high}" for low, high in itertools.pairwise(ends)))
        columns = (first, *map(self.regressor, names), Regressor(event, 0.5, 0.5))
        moments = Hazards(columns, Link("hazards"))
        if len(moments.names) > MOST_COEFFICIENTS:
            raise self.wrong(f"{len(moments.names)} coefficients; allowed: {MOST_COEFFICIENTS}")
        moments = replace(moments, theta=np.zeros(len(moments.names)))

        def given_of(values: Values) -> list[np.ndarray]:
            times, events = scaled(values[time]), happened(values[event]).astype(float)
            events = np.where(times >= until, np.minimum(events, 0.0), events)  # who reaches the end lives on
            events[events < 0] = np.nan
            return [(times / until).clip(max=1.0), *(values[name] for name in names), events]

        return Question.of_moments(self.text, (time, event, *names), moments, given_of)

    def _heterogeneity(self) -> Question:
        form = "heterogeneity:COLUMN:linear:TARGET:COLUMN..., or of logistic, poisson, hazards"
        name, *inner = self.given or [""]
        if not inner or inner[0] not in GROUPED:
            raise self.wrong(f"allowed: {form}")
        groups, question = self.regressor(name).values, _Builder(":".join(inner), self.schema).question()
        if len(groups) < 2 or name in question.columns:
            raise self.wrong(f"{name} must be another column of at least two categories; allowed: {form}")
        assert question.grouped is not None
        return question.grouped(name, groups, self.text)

    def is_column(self, name: str) -> bool:
        return name in (*self.schema.columns, *self.schema.target.names)

    def times(
        self, name: str, given: list[str], form: str
    ) -> tuple[Callable[[np.ndarray], np.ndarray], float, str | None]:
        """(from a column as the schema scales it to times, the end, the number of intervals where one is given)."""
        low, high = self.numbers_of(name)
        if low < 0:
            raise self.wrong(f"the range of {name} begins at {low:g}; times begin at 0")
        try:
            until = float(given[0]) if given else high
        except ValueError:
            raise self.wrong(f"{given[0]} is neither a column nor a number; allowed: {form}") from None
        if not 0 < until <= high or len(given) > 2:
            raise self.wrong(
                f"the end {given[0]} must be above 0 and at most {high:g}, the range's end; allowed: {form}"
            )
        return lambda scaled: as_written(scaled, low, high), until, given[1] if len(given) > 1 else None

    def _survival(self) -> Question:
        form = "survival:TIME:EVENT, then if wanted a column of categories, the end and a number of intervals"
        time, event, *given = self.only(form, 2, 3, 4, 5)
        group = given.pop(0) if given and self.is_column(given[0]) else None
        scaled, until, intervals = self.times(time, given, form)
        happened, names = self.happened(event), () if group is None else self.regressor(group).values
        if group is not None and len(names) < 2:
            raise self.wrong(f"{group} is no column of at least two categories; these are: {self.having('values')}")
        columns = (time, event) if group is None else (time, event, group)
        if len(set(columns)) < len(columns):
            raise self.wrong(f"allowed: {form}, different columns")
        many = self.whole(intervals or str(INTERVALS), 1, MOST_INTERVALS)
        table = LifeTable(until, many, names, getattr(self.column(time), "step", None))
        if table.size > MOST_NUMBERS:
            raise self.wrong(f"{table.size} numbers; allowed: {MOST_NUMBERS}")

        def vectors(values: Values) -> np.ndarray:
            return table.vectors(
                scaled(values[time]), happened(values[event]), None if group is None else values[group]
            )

        return Question(self.text, columns, table.size, table.names, vectors, read=table.answer, needs=table.needs)

    def _score(self) -> Question:
        target, form = self.schema.target, "score:RUN, then if wanted a threshold and a number of bins"
        name, *given = self.only(form, 1, 2, 3)
        asked: Scores | Residuals
        if target.task == "classification" and isinstance(target.classes, tuple):
            positive = target.classes.index(target.positive) if target.positive else 1
            if given and len(target.classes) > 2:
                raise self.wrong(f"{given[0]} is the threshold of a class among two, and {target.column} has more")
            threshold = self.number(given[0]) if given else 0.5
            if not 0 < threshold < 1:
                raise self.wrong(f"the threshold {given[0]} must be a number between 0 and 1, without these")
            bins = self.whole(given[1], 4, MOST_SCORE_BINS) if given[1:] else BINS
            asked = Scores(target.classes, positive, threshold, bins)
        elif target.task == "regression" and isinstance(target.range, tuple):
            low, high = target.range
            bound = self.number(given[0]) if given else (high - low) / 2
            if given[1:] or not 0 < bound <= high - low:
                words = f"score:RUN and, if wanted, the largest error that counts, above 0 and at most {high - low:g}"
                raise self.wrong(f"allowed of a regression: {words}")
            asked = Residuals(low, high, bound)
        else:
            raise self.wrong(f"the schema's task is {target.task}; allowed: classification, regression")
        if asked.size > MOST_NUMBERS:
            raise self.wrong(f"{asked.size} numbers; allowed: {MOST_NUMBERS}")
        column = str(target.column)

        def vectors(values: Values) -> np.ndarray:
            return asked.vectors(values[SCORES], values[column])

        question = Question(self.text, (column,), asked.size, (name,), vectors, read=asked.answer, needs=asked.needs)
        return replace(question, expects=asked.expects, scored=True)

    def number(self, text: str) -> float:
        """NaN for a text that is none."""
        try:
            return float(text)
        except ValueError:
            return math.nan

    def happened(self, name: str) -> Callable[[np.ndarray], np.ndarray]:
        """From a column of two categories to 1 where it is the target's `positive`, else the second, 0 where it is the
        other, -1 where it is neither.
        """
        values = self.regressor(name).values
        if len(values) != 2:
            raise self.wrong(f"{name} is no column of two categories, the event the second; {len(values)} are listed")
        first = name in self.schema.target.names and self.schema.target.positive == values[0]
        return lambda places: np.where((places < 0) | (places > 1), -1, (places == 0) if first else (places == 1))

    def regressor(self, name: str) -> Regressor:
        """A column of a regression."""
        if not isinstance(bounds := self.column(name).range, tuple):
            values = self.values_of(name)
            return Regressor(name, values=values[: len(values) - (values[-1] == "other")])
        return Regressor(name, (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2)

    def _histogram(self) -> Question:
        name, *bins = self.only("histogram:COLUMN of categories, histogram:COLUMN:BINS of numbers", 1, 2)
        column = self.column(name)
        if not bins and (getattr(column, "values", None) or getattr(column, "classes", None)):
            return Question.of_places(self.text, (name,), self.values_of(name), lambda values: values[name])
        low, high = self.numbers_of(name)
        number = self.whole(bins[0], 1, MOST_NUMBERS) if bins else HISTOGRAM_BINS
        edges = np.linspace(low, high, number + 1)
        names = tuple(f"{left:g} to {right:g}" for left, right in itertools.pairwise(edges))

        def places(values: Values) -> np.ndarray:
            numbers = as_written(values[name], low, high) + AT_AN_EDGE * (high - low)
            return np.where(np.isnan(numbers), -1, np.searchsorted(edges[1:-1], numbers, side="right"))

        return Question.of_places(self.text, (name,), names, places)

    def _top(self) -> Question:
        name, *most = self.only("top:COLUMN or top:COLUMN:HOW_MANY", 1, 2)
        categories = self.values_of(name)
        number = self.whole(most[0], 1, len(categories)) if most else 5
        # All counts are answered; whoever shows them shows the most frequent (`Answer` of kind top).
        return Question.of_places(f"top:{name}:{number}", (name,), categories, lambda values: values[name])

    def _table(self) -> Question:
        names = self.different("categories")
        shape = [len(self.values_of(name)) for name in names]
        if (size := math.prod(shape)) > MOST_NUMBERS:
            raise self.wrong(f"{size} cells; allowed: {MOST_NUMBERS}")
        cells = tuple(" and ".join(cell) for cell in itertools.product(*map(self.values_of, names)))

        def places(values: Values) -> np.ndarray:
            each = np.stack([values[name] for name in names])
            return np.where((each >= 0).all(axis=0), np.ravel_multi_index(np.maximum(each, 0), shape), -1)

        return Question.of_places(self.text, names, cells, places)

    def _quantiles(self) -> Question:
        if not self.given:
            raise self.wrong("allowed: quantiles:COLUMN:SHARE:..., with shares between 0 and 1")
        name, *given = self.given
        low, high = self.numbers_of(name)
        try:
            shares = tuple(float(share) for share in given or ("0.25", "0.5", "0.75"))
        except ValueError:
            shares = (math.nan,)
        if not all(0 <= share <= 1 for share in shares):
            raise self.wrong("a share must be a number between 0 and 1")
        if len(shares) > MOST_SHARES:
            raise self.wrong(f"{len(shares)} shares; allowed: {MOST_SHARES}")
        step = getattr(self.column(name), "step", None)  # a target has none
        return Question.of_bins(self.text, name, Bins.of_range(low, high, step, shares))


def as_written(scaled: np.ndarray, low: float, high: float) -> np.ndarray:
    """The numbers [n] of a column's range that are ``scaled`` to [-1, 1] in float32: to the last decimal that float32
    tells apart, so that 35 is 35 again, and stands in the bin that begins there.
    """
    digits = min(300, -math.ceil(math.log10((high - low) * 2.0**-23)))
    return np.round(low + (scaled + 1) / 2 * (high - low), digits)


def _at_least_one(number: np.ndarray) -> np.ndarray:
    return np.maximum(number, 1.0)


def _present(vectors: np.ndarray) -> np.ndarray:
    """Rows with a missing number add nothing."""
    return np.where(np.isnan(vectors).any(axis=1, keepdims=True), 0.0, vectors)


# --- quantiles -------------------------------------------------------------------------------------------

#: Bins of a round: at most as many numbers stand in a sum for a column's quantiles.
MOST_BINS = 512
#: Probability with which an interval may miss: by the two edges of a bin, and by all edges together.
OWN, ALL_EDGES = 0.0475, 0.0025
#: Bins for as many rows as one standard deviation of the noise below an edge: more only give noise more to do.
A_DEVIATION = 2
#: Part of the rows in one bin above which the answer says so.
MUCH = 0.05


@lru_cache(maxsize=1)
def _largest() -> np.ndarray:
    k = np.arange(1, MOST_BINS)
    column = np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))
    place = np.arange(MOST_BINS + 1)[:, None] - 1 - np.arange(MOST_BINS)
    return np.where(place >= 0, column[place], 0.0)


def root(size: int) -> tuple[np.ndarray, float]:
    """(F [size + 1, size] with a row of zeros before the first, |f|); up to `MOST_BINS`."""
    matrix = _largest()[: size + 1, :size]
    return matrix, float(np.linalg.norm(matrix[-1]))


@dataclass(frozen=True)
class Bins:
    """Bins of a column's range, and which of its quantiles are asked for.

    low, high: of the range; step: of the column's values, 0: none; shares: q [k]; edges: [b + 1], ascending.
    """

    low: float
    high: float
    step: float
    shares: tuple[float, ...]
    size: int
    edges: np.ndarray

    @classmethod
    def of_range(cls, low: float, high: float, step: float | None, shares: tuple[float, ...]) -> Bins:
        """Of the first round: one for each multiple of the step where these are at most `MOST_BINS`, else equal."""
        values = round((high - low) / step) + 1 if step else MOST_BINS + 1
        size, half = min(values, MOST_BINS), (step or 0) / 2
        first = cls(low, high, step or 0.0, shares, size, np.linspace(low - half, high + half, size + 1))
        return replace(first, edges=first._snapped(first.edges))

    @property
    def final(self) -> bool:
        """Whether each value has a bin of its own, so that every round asks the same."""
        return bool(self.step) and self.size == round((self.high - self.low) / self.step) + 1

    @property
    def blur(self) -> float:
        return (self.high - self.low) * 2.0**-25

    def vectors(self, scaled: np.ndarray) -> np.ndarray:
        """float64 [n, size] of numbers [n] in [-1, 1]; NaN, a missing one, adds nothing."""
        missing = np.isnan(scaled)
        matrix, length = root(len(self.edges) - 1)
        vectors = np.zeros((len(scaled), self.size))
        columns = matrix[1:].T[self.places(np.where(missing, 0, scaled))]
        vectors[:, : len(matrix) - 1] = np.where(missing[:, None], 0.0, columns / length)
        return vectors

    def places(self, scaled: np.ndarray) -> np.ndarray:
        """int64 [n]: the bins of numbers [n] in [-1, 1]."""
        numbers = self.low + (scaled + 1) / 2 * (self.high - self.low)
        return np.searchsorted(self.edges[1:-1], numbers, side="right")

    def answer(self, total: np.ndarray, std: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
        """(values, low, high [k], remarks). total: noisy sum [size] in rows; std: of the noise on each number."""
        curve, widths = self._curve(total), np.diff(self.edges)
        number = curve[-1]
        z, found, told = -NormalDist().inv_cdf(OWN / 2), [], []
        for share in self.shares:
            rank, (excess, noise) = share * number, self._excess(total, std, share)
            place = int(np.clip((curve[1:] < rank).sum(), 0, len(widths) - 1))
            fits = (excess[:-1] - z * noise[:-1] <= 1) & (excess[1:] + z * noise[1:] >= -1)
            first, last = self._window(excess, noise)
            fits[:first], fits[last:] = False, False
            held = np.flatnonzero(fits) if fits.any() else np.array([place])
            rows = curve[place + 1] - curve[place]
            value = self.edges[place] + widths[place] * (np.clip((rank - curve[place]) / rows, 0, 1) if rows else 0.5)
            low, high = self._ends(self.edges[held[0]], self.edges[held[-1] + 1])
            found.append((float(np.clip(self._multiple(value), low, high)), low, high))
            left, right, much = self.edges[place], self.edges[place + 1], rows / number
            told.append(f"quantile {share:g}: values are told apart to {max(widths[place], self.blur):.3g}")
            if much > MUCH and widths[place] > 1.5 * self.step:
                told[-1] += f", and about {much:.0%} of the rows lie in the one bin from {left:.6g} to {right:.6g}"
        values, lows, highs = np.array(found).T
        return values, lows, highs, tuple(told)

    def zoomed(self, total: np.ndarray, std: float) -> Bins:
        """Of the next round: with about as many rows in each, where the quantiles may lie by this one's noisy sum."""
        if self.final:
            return self
        total = np.nan_to_num(total, nan=0.0, posinf=0.0, neginf=0.0)
        curve, most = self._curve(total), (self.size - 2) // len(self.shares) - 2
        parts = [self.edges[[0, -1]]]
        for number, share in enumerate(self.shares):
            excess, noise = self._excess(total, std, share)
            first, last = self._window(excess, noise)
            rows, deviation = curve[last] - curve[first], noise[first : last + 1].mean()
            bins = int(np.clip(A_DEVIATION * rows / deviation, 2, most)) if deviation else most
            places = (np.arange(bins) + (number + 0.5) / len(self.shares)) / bins  # not those of another quantile
            inner = np.interp(curve[first] + rows * places, curve[first : last + 1], self.edges[first : last + 1])
            parts += [self.edges[[first, last]], inner]
        return replace(self, edges=self._snapped(np.concatenate(parts)))

    def _curve(self, total: np.ndarray) -> np.ndarray:
        """C [b + 1] as a rising curve from 0 to n, at least 1: the middle of its running maximum from the left and its
        running minimum from the right.
        """
        below, _ = self._excess(total, 0.0, 0.0)
        rising = np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]
        curve = np.clip(rising / 2, 0, max(1.0, below[-1]))
        curve[0], curve[-1] = 0, max(1.0, below[-1])
        return np.asarray(curve)

    def _excess(self, total: np.ndarray, std: float, share: float) -> tuple[np.ndarray, np.ndarray]:
        """(D, s), each [b + 1]; of the share 0 it is C."""
        matrix, length = root(len(self.edges) - 1)
        below = length * (matrix @ total[: len(matrix) - 1])
        squares = np.concatenate([[0.0], np.cumsum(matrix[-1][::-1] ** 2)])  # of the lengths of rows
        variances = squares - 2 * share * (matrix @ matrix[-1]) + share**2 * squares[-1]
        return below - share * below[-1], length * std * np.sqrt(np.maximum(variances, 0.0))

    def _window(self, excess: np.ndarray, noise: np.ndarray) -> tuple[int, int]:
        """Edges (j, j') between which the quantile lies unless the noise exceeds k standard deviations somewhere."""
        far = 1 - NormalDist().inv_cdf(ALL_EDGES / len(excess)) * noise
        first = int(np.flatnonzero(excess < -far).max(initial=0))
        last = int(np.flatnonzero(excess > far).min(initial=len(excess) - 1))
        return (first, last) if first < last else (0, len(excess) - 1)

    def _snapped(self, edges: np.ndarray) -> np.ndarray:
        """Ascending, half way between multiples of the step."""
        return np.unique((np.floor(edges / self.step) + 0.5) * self.step if self.step else edges)

    def _multiple(self, value: float) -> float:
        return float(f"{round(value / self.step) * self.step:.12g}") + 0.0 if self.step else float(value)

    def _ends(self, left: float, right: float) -> tuple[float, float]:
        """Of the interval: of values between two edges, before they were rounded."""
        left, right = max(self.low, left - self.blur), min(self.high, right + self.blur)
        if self.step:
            inside = (np.ceil(left / self.step - 1e-9), np.floor(right / self.step + 1e-9))
            left, right = (float(f"{number * self.step:.12g}") + 0.0 for number in inside)  # no -0
        return left, right
