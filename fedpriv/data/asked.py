"""What `strategy=ask` asks of a run's examples: its questions, what a site adds to their sum, and the sums' answers.

Tables are asked by their schema. Of pictures (texts) of classes the class is the one column, ``class``; of other
examples nothing but their number can be asked.

Exact sums of vectors of length at most 1: what one of them changes is its own length, however many others there are.

**Why.** Each vector v [d] is clipped to length 1, scaled by `KEPT` and cut toward zero to multiples of 2^-32, which
makes no coordinate larger. So |c| <= KEPT (1 + (d + 4) 2^-53) < 1 - 2^-12 for d up to 2^16, and a vector with a number
that is not finite counts as zero. The cut vectors are added as whole numbers of 64 bits: exactly, in any order, without
overflow up to 2^30 of them. A vector more or less changes the sum by that vector and nothing else, which is what
`RowSumGrid` asks of a site's sum (its excess is 0). `as_numbers` rounds a sum of n vectors to 53 bits: two
sums differ by n 2^-52 sqrt(d) more, below 2^-13 for the n sqrt(d) <= 2^39 that the grid admits, and
1 - 2^-11 + 2^-37 + 2^-13 < 1 - 2^-12.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedpriv.common.errors import OptionError
from fedpriv.config.methods import AskOptions
from fedpriv.config.schema import Config
from fedpriv.data.partition import places_of
from fedpriv.data.questions import MOST_NUMBERS, ROWS, SCORES, Question, Values, parse, weights
from fedpriv.data.table_rows import schema_of_dataset, task_of
from fedpriv.data.table_schema import TableSchema, schema_of
from fedpriv.mechanisms.tasks import Classification, Regression, Task

if TYPE_CHECKING:
    from torch import Tensor


#: The column of examples that are no table.
CLASS = "class"
#: Numbers that are computed at a time.
BLOCK_NUMBERS = 1 << 22
#: 1 - 2^-11: room for rounding beside a sum. Who reads a sum divides by it.
KEPT = 1 - 2.0**-11
#: Vectors are whole multiples of 1/PARTS.
PARTS = 2.0**32
#: Vectors in a sum at most.
MOST_VECTORS = 1 << 30
#: Draws of the noise behind an interval.
DRAWS = 2000


@dataclass(frozen=True)
class Asks(Task):
    """Questions in place of a task: the "model" is the vector of their sums, and nothing is predicted.

    labels: one name for each number of the sum. rows_per_unit: `privacy.rows_per_person`. sections: of the sum, each
    with a number for every number of the questions; a round fills its own where there are several, else all the one.
    noise: planned standard deviation of a round's noise on a number, in units of the longest vector: public. model:
    file and SHA-256 of the weights that `score` asks about.
    """

    questions: tuple[Question, ...] = ()
    schema: TableSchema | None = None
    rows_per_unit: int | None = None
    sections: int = 1
    noise: float = 0.0
    num_rounds: int = 1
    model: tuple[str, str | None] | None = None
    name: ClassVar[str] = "ask"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """float [..., n]: nothing is learned, so the number is of no use."""
        return outputs.square().sum(-1)

    def rounds(self, theta: np.ndarray) -> np.ndarray:
        """The rounds' noisy sums float64 [sections, numbers] of what a run learned, in units of the longest vector."""
        return theta.astype(np.float64).reshape(self.sections, -1) / KEPT

    def at_round(self, number: int, theta: np.ndarray) -> tuple[Question, ...]:
        """The questions as a round asks them: any theta makes questions whose vectors are no longer than 1."""
        earlier = self.rounds(theta)[: number - 1] if self.sections > 1 else np.zeros((0, len(theta)))
        return zoomed(self.questions, earlier, self.noise, self.rows_per_unit)

    def check(self, rows: int) -> None:
        """Raises `OptionError` where a question's answer could only be that nothing can be said."""
        rounds = self.num_rounds if self.sections == 1 else 1
        for question, weight in zip(self.questions, weights(self.questions), strict=True):
            needed = question.needs(self.noise / math.sqrt(rounds) * (self.rows_per_unit or 1) / weight)
            if rows < needed:
                words = (
                    f"nothing can be said of {rows:,} rows at this noise; allowed: at least {math.ceil(needed):,} rows"
                )
                raise OptionError("questions", question.text, f"{words}, more epsilon, or fewer questions")

    def expects(self, rows: int) -> tuple[str, ...]:
        """What half-widths to expect of so many rows, in words, of questions that say so."""
        std = self.noise / math.sqrt(self.num_rounds if self.sections == 1 else 1) * (self.rows_per_unit or 1)
        pairs = zip(self.questions, weights(self.questions), strict=True)
        return tuple(f"{one.text}: {one.expects(std / weight, rows)}" for one, weight in pairs if one.expects)

    def total(
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        unit: np.ndarray | None,
        theta: np.ndarray | None = None,
        number: int = 1,
        score: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> np.ndarray:
        """The sum float64 [numbers] over units of what each adds, in units of the longest vector; a unit more or less
        moves it by less than 1 - 2^-12 (proof above).

        inputs: [n, d], targets: [n], as examples of the run have them; a row with a number that is not finite adds
        nothing. unit: int64 [n], None: a row is one. theta: what the rounds before round ``number`` have given.
        score: from inputs to what `model` says of each row, whatever stands beside it.
        """
        whole, rows = np.zeros((self.sections, len(self.labels) // self.sections)), len(targets)
        size = whole.shape[1]
        questions = self.questions if theta is None else self.at_round(number, theta)
        if rows > MOST_VECTORS:
            raise ValueError(f"{rows} rows; at most {MOST_VECTORS} can be added exactly")
        total, block = np.zeros(size, np.int64), max(1, BLOCK_NUMBERS // size)
        for places in _blocks(rows, unit, block):
            places = places[np.isfinite(inputs[places]).reshape(len(places), -1).all(axis=1)]
            if not len(places):
                continue
            own = None if unit is None else unit[places]
            values = self.values(inputs[places], targets[places])
            if score is not None:
                values[SCORES] = score(inputs[places])
            add_units(total, contributions(questions, values, own, self.rows_per_unit))
        whole[(number - 1) % self.sections] = as_numbers(total)
        return whole.ravel()

    def values(self, inputs: np.ndarray, targets: np.ndarray) -> Values:
        """The columns that are asked about, of encoded rows."""
        values: Values = {ROWS: np.zeros(len(targets))}
        wanted = {name for question in self.questions for name in question.columns}
        if self.schema is None or not wanted:
            return values
        start = 0
        for name, column in self.schema.inputs:
            width = self.schema.width(column)
            if name in wanted:
                part = inputs[:, start : start + width]
                missing = part[:, -1] == 1 if self.schema.indicated(column) else np.zeros(len(part), bool)
                if column.kind == "range":
                    values[name] = np.where(missing, np.nan, part[:, 0].astype(np.float64))
                else:
                    own = part[:, : width - self.schema.indicated(column)]
                    values[name] = np.where(missing, -1, own.argmax(axis=1))
            start += width
        aim = self.schema.target
        if aim.time in wanted:
            values[str(aim.time)] = 2 * targets[:, 0].astype(np.float64) - 1
        if aim.event in wanted:  # places among the classes
            happened = aim.classes is not None and aim.positive == aim.classes[0]
            values[str(aim.event)] = (targets[:, 1] != happened).astype(np.int64)
        if aim.column in wanted:
            values[str(aim.column)] = targets.astype(np.float64 if aim.range else np.int64)
        return values


def contributions(
    questions: Sequence[Question], values: Values, unit: np.ndarray | None, rows_per_unit: int | None = None
) -> np.ndarray:
    """What each unit adds to the sum: float64 [units, numbers], each of length at most 1.

    unit: int64 [n], None: a row is a unit. rows_per_unit: of a unit's rows at most so many count, each as a row (the
    first ones of the file); None: a unit counts once, with the mean of its rows.
    """
    parts = [question.vectors(values) * weight for question, weight in zip(questions, weights(questions), strict=True)]
    vectors = np.concatenate(parts, axis=1)
    if unit is None:
        return vectors
    _, ids = np.unique(unit, return_inverse=True)
    share = 1.0 / np.bincount(ids)[ids]
    if rows_per_unit is not None:
        share = (places_of(ids) < rows_per_unit) / rows_per_unit
    total = np.zeros((ids.max() + 1, vectors.shape[1]))
    np.add.at(total, ids, vectors * share[:, None])
    return total


def add_units(total: np.ndarray, vectors: np.ndarray) -> None:
    """Adds vectors (float64 [m, d]), each as above, to a sum in multiples of 1/PARTS (int64 [d])."""
    finite = np.isfinite(vectors).all(axis=1, keepdims=True)
    vectors = np.where(finite, vectors, 0.0)
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=1.0)  # the square of a huge number is not finite
    vectors = vectors / largest
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scale = np.minimum(largest, 1 / np.maximum(lengths, 1e-300)) * KEPT
    total += np.trunc(vectors * scale * PARTS).astype(np.int64).sum(axis=0)


def as_numbers(total: np.ndarray) -> np.ndarray:
    """float64 [d] of a sum in multiples of 1/PARTS."""
    return total / PARTS


def _blocks(rows: int, unit: np.ndarray | None, block: int) -> list[np.ndarray]:
    """Rows in blocks of about ``block``, all rows of a unit in one."""
    if unit is None:
        return [np.arange(first, min(first + block, rows)) for first in range(0, rows, block)]
    order = np.argsort(unit, kind="stable")
    borders = np.flatnonzero(np.diff(unit[order])) + 1  # where another unit begins
    chosen = [0]
    for border in [*borders.tolist(), rows]:
        if border - chosen[-1] >= block or border == rows:
            chosen.append(border)
    return [order[first:last] for first, last in itertools.pairwise(chosen) if last > first]


def asks_of(config: Config, task: Task | None = None) -> Asks | None:
    """What a run with strategy=ask asks; None of other runs. task: of the data, where these are no table on nodes.
    Raises `OptionError` for a question that is none of this schema.
    """
    options = config.strategy.options
    if not isinstance(options, AskOptions):
        return None
    cap = config.privacy.rows_per_person
    if config.privacy.unit == "row" and cap is not None:
        words = "of a person, and with privacy.unit=row every row is asked; allowed: null, or privacy.unit=person"
        raise OptionError("privacy.rows_per_person", cap, words)
    dataset = config.dataset
    if dataset.is_table:
        schema, known = schema_of_dataset(dataset), True
    else:
        classes = dataset.classes if task is None else task.labels
        known = len(classes) > 1 and not isinstance(task, Regression)
        known = known and (task is None or isinstance(task, Classification))
        schema = _of_classes(tuple(classes) if known else ("no", "yes"))
    questions = parse(options.questions, schema)
    for question in questions:
        if question.zoom is not None and question.bins is None and options.rounds < 2:
            words = f"{question.text} asks again near what the first round found; allowed: 2 or more"
            raise OptionError("num_rounds", options.rounds, words)
    labels = tuple(f"{question.text} [{n}]" for question in questions for n in range(question.size))
    if options.sections * len(labels) > MOST_NUMBERS:
        words = f"{len(labels)} numbers, asked in {options.sections} rounds; allowed: {MOST_NUMBERS} in all"
        raise OptionError("questions", f"{len(questions)} of them", words)
    noises = 1 if options.form == "central" else config.clients_per_round
    noise, sections = options.noise_multiplier * math.sqrt(noises) / KEPT, options.sections
    asks = Asks(labels * sections, questions, schema, config.privacy.rows_per_person, sections, noise, options.rounds)
    if not any(question.scored for question in questions):
        return asks
    return replace(asks, model=(str(config.model.weights), config.model.weights_sha256))


def _of_classes(classes: Sequence[str]) -> TableSchema:
    target = {"column": CLASS, "task": "classification", "classes": list(classes)}
    return schema_of({"target": target, "columns": {"example": {"values": ["any"]}}}, "classes")


def num_outputs_of(config: Config, schema: TableSchema | None) -> int:
    """How many outputs a run's model has on a node, before any example is read."""
    if (asks := asks_of(config)) is not None:
        return asks.num_outputs
    return len(config.dataset.classes) if schema is None else task_of(schema).num_outputs


@dataclass(frozen=True)
class Answer:
    """values, low, high: float64 [k]; low and high hold the true values with probability 95 %, each by itself, over the
    draws of the noise, of a regression or score over draws of the rows too: a regression's errors and p_values [k] hold
    both as well. remarks: on how finely values are told apart, what is left out.
    """

    question: str
    names: tuple[str, ...]
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    remarks: tuple[str, ...] = ()
    errors: np.ndarray | None = None
    p_values: np.ndarray | None = None


def zoomed(
    questions: Sequence[Question], earlier: np.ndarray, std: float, rows_per_unit: int | None = None
) -> tuple[Question, ...]:
    """The questions as the next round asks them, from the noisy sums [rounds, numbers] of those before. std: of the
    noise on their numbers, as it is planned.
    """
    zoomed, start = list[Question](), 0
    for question, weight in zip(questions, weights(questions), strict=True):
        scale = (rows_per_unit or 1) / weight
        place = slice(start, start + question.size)
        for total in earlier[:, place]:
            question = question if question.zoom is None else question.zoom(total * scale, std * scale)
        start = place.stop
        zoomed.append(question)
    return tuple(zoomed)


def answers(
    questions: Sequence[Question],
    totals: np.ndarray,
    stds: ArrayLike,
    rows_per_unit: int | None = None,
    seed: int = 0,
    across_sites: int = 1,
) -> list[Answer]:
    """The answers that the noisy sums of rounds [rounds, numbers] give (of one round: [numbers]).

    questions: as the last round asked them. stds: the noise's standard deviation on each number, of each round.
    across_sites: contributions that may be one person's (``rows_per_unit`` each), and alike: of so many the sampling
    variance of their sum is at most so many times that of independent ones (Cauchy-Schwarz).

    Rounds that ask the same are averaged. Of quantiles that were zoomed in on, the last one answers, with intervals as
    `fedpriv.data.questions` has them. Of other questions the interval is the middle 95 % of the answers that further
    draws of the same noise give around the noisy sum (a parametric bootstrap; tests measure how often it holds).
    """
    totals, stds = np.atleast_2d(totals), np.atleast_1d(np.asarray(stds, np.float64))
    rng, results, start = np.random.default_rng(seed), list[Answer](), 0
    for question, weight in zip(questions, weights(questions), strict=True):
        scale = (rows_per_unit or 1) / weight
        rounds = slice(0 if question.zoom is None else len(totals) - 1, None)
        part = totals[rounds, start : start + question.size].mean(axis=0) * scale
        std = float(np.linalg.norm(stds[rounds])) / len(stds[rounds]) * scale
        start += question.size
        if question.read is not None:
            named = {"names": question.names} | question.read(part, std, (rows_per_unit or 1) * across_sites)
            results.append(Answer(question.text, **named))
            continue
        values = question.decode(part)
        draws = question.decode(part + rng.normal(0, std, (DRAWS, question.size))) if std else values[None]
        low, high = np.quantile(draws, (0.025, 0.975), axis=0)
        results.append(Answer(question.text, question.names, values, low, high, question.remarks))
    return results
