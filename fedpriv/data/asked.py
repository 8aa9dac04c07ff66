"""What `strategy=ask` asks of the examples that a run has: its questions, and what a site adds to their sum.

Tables are asked by their schema. Of pictures (texts) of classes the class is the one column, ``class``; of other
examples nothing but their number can be asked.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedpriv.config.schema import Config
from fedpriv.config.sum_methods import AskOptions
from fedpriv.data.questions import ROWS, Question, Values, parse
from fedpriv.data.table_answers import contributions
from fedpriv.data.table_schema import TableSchema, schema_of
from fedpriv.data.table_source import schema_of_dataset, task_of
from fedpriv.mechanisms.tasks import Classification, Regression, Task
from fedpriv.mechanisms.unit_sums import MOST_VECTORS, add_units, as_numbers

if TYPE_CHECKING:
    from torch import Tensor

#: The column of examples that are no table.
CLASS = "class"
#: Numbers that are computed at a time.
BLOCK_NUMBERS = 1 << 22


@dataclass(frozen=True)
class Asks(Task):
    """Questions in place of a task: the "model" is the vector of their sums, and nothing is predicted.

    labels: one name for each number of the sum. rows_per_unit: `privacy.rows_per_person`.
    """

    questions: tuple[Question, ...] = ()
    schema: TableSchema | None = None
    rows_per_unit: int | None = None
    name: ClassVar[str] = "ask"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """float [..., n]: nothing is learned, so the number is of no use."""
        return outputs.square().sum(-1)

    def total(self, inputs: np.ndarray, targets: np.ndarray, unit: np.ndarray | None) -> np.ndarray:
        """The sum float64 [numbers] over units of what each adds, in units of the longest vector; a unit more or less
        moves it by less than 1 - 2^-12 (`fedpriv.mechanisms.unit_sums`).

        inputs: [n, d], targets: [n], as examples of the run have them; a row with a number that is not finite adds
        nothing. unit: int64 [n], None: a row is one.
        """
        size, rows = self.num_outputs, len(targets)
        if rows > MOST_VECTORS:
            raise ValueError(f"{rows} rows; at most {MOST_VECTORS} can be added exactly")
        total, block = np.zeros(size, np.int64), max(1, BLOCK_NUMBERS // size)
        for places in _blocks(rows, unit, block):
            places = places[np.isfinite(inputs[places]).reshape(len(places), -1).all(axis=1)]
            if not len(places):
                continue
            own = None if unit is None else unit[places]
            values = self.values(inputs[places], targets[places])
            add_units(total, contributions(self.questions, values, own, self.rows_per_unit))
        return as_numbers(total)

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
        aim = self.schema.target.column
        if aim in wanted:
            values[str(aim)] = targets.astype(np.float64 if self.schema.target.range else np.int64)
        return values


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
    dataset = config.dataset
    if dataset.is_table:
        schema, known = schema_of_dataset(dataset), True
    else:
        classes = dataset.classes if task is None else task.labels
        known = len(classes) > 1 and not isinstance(task, Regression)
        known = known and (task is None or isinstance(task, Classification))
        schema = _of_classes(tuple(classes) if known else ("no", "yes"))
    questions = parse(options.questions, schema)
    labels = tuple(f"{question.text} [{n}]" for question in questions for n in range(question.size))
    return Asks(labels, questions, schema, config.privacy.rows_per_person)


def _of_classes(classes: Sequence[str]) -> TableSchema:
    target = {"column": CLASS, "task": "classification", "classes": list(classes)}
    return schema_of({"target": target, "columns": {"example": {"values": ["any"]}}}, "classes")


def num_outputs_of(config: Config, schema: TableSchema | None) -> int:
    """How many outputs a run's model has on a node, before any example is read."""
    if (asks := asks_of(config)) is not None:
        return asks.num_outputs
    return len(config.dataset.classes) if schema is None else task_of(schema).num_outputs
