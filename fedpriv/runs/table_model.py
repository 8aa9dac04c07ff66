"""A finished run's model of a table: predictions for further rows, and files with columns of them.

A cell that we write and that a spreadsheet would read as a formula (a class that begins with = + - @, a tab or a
return) gets an apostrophe before it; numbers do not. Cells of the user's own file are copied as they are: the file is
theirs, and a changed key would find no row again.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpriv.common.errors import DataError
from fedpriv.data.schema_values import parsed_number
from fedpriv.data.table_files import Form, is_parquet, read_columns, read_whole
from fedpriv.data.table_rows import encode
from fedpriv.data.table_schema import TableSchema
from fedpriv.mechanisms.tasks import Classification, NextToken, Regression, Task
from fedpriv.runs.text_model import TextModel

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of which outputs are computed at a time.
BATCH = 1 << 14
#: What a spreadsheet takes for the beginning of a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class TableModel:
    """A model with the public schema that its run was trained under. A table is a pandas DataFrame, a mapping of
    columns, or the path of a CSV or Parquet file; it needs the schema's input columns, and may have others.

    form: how a CSV file is written.
    """

    module: nn.Module
    schema: TableSchema
    task: Task
    form: Form = field(default_factory=Form)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes or labels; of a regression the target's column."""
        return self.task.labels

    def outputs(self, table: Any) -> Tensor:
        """What the model says, float32 [rows, outputs]; of next_token what follows each text. Raises `DataError`, with
        the column and the row.
        """
        return self._outputs(*self._table(table))

    def _table(self, table: Any) -> tuple[pa.Table, str]:
        """(the columns that the model reads, the table's name in errors)."""
        names = [name for name, _ in self.schema.inputs]
        name = str(table) if isinstance(table, str | Path) else "the table"
        return read_columns(table, names, self.form, self.schema), name

    def _outputs(self, table: pa.Table, name: str) -> Tensor:
        if isinstance(self.task, NextToken):
            return self.texts.following(table, name)
        found = encode(table, self.schema, name, targets=False, decimal=self.form.decimal).inputs
        ids = self.schema.tokens is not None
        inputs = torch.from_numpy(found.astype(np.int64) if ids else found)
        self.module.eval()
        with torch.inference_mode():
            return torch.cat([self.module(part) for part in inputs.split(BATCH // 64 if ids else BATCH)])

    @property
    def texts(self) -> TextModel:
        """Of next_token: what it says of texts."""
        return TextModel(self.module, self.schema)

    def probabilities(self, table: Any) -> Tensor:
        """[rows, classes], of labels [rows, labels], of next_token [rows, vocabulary]. Raises `DataError`: a regression
        has none.
        """
        return self._shares(self.outputs(table))

    def probability(self, table: Any, of: str | None = None) -> Tensor:
        """[rows]: of one class or label; None: of the schema's positive class. Raises `DataError`."""
        name = of or self.schema.target.positive
        if name not in self.classes:
            words = "the schema names no positive class; say of=" if name is None else f"of={name}: there is none;"
            raise DataError(f"{words} allowed: {', '.join(self.classes[:12])}")
        return self.probabilities(table)[:, self.classes.index(name)]

    def _shares(self, outputs: Tensor) -> Tensor:
        if isinstance(self.task, Regression):
            raise DataError(f"{self.task.labels[0]} is a number and has no probabilities: use predict")
        return outputs.softmax(1) if isinstance(self.task, Classification | NextToken) else outputs.sigmoid()

    def predict(self, table: Any) -> NDArray[Any]:
        """The most likely class of each row (texts [rows]), the number in the target's own units (float64 [rows]), 1
        for each label that is more likely than not (int64 [rows, labels]), or how a text goes on (texts [rows]).
        """
        if isinstance(self.task, NextToken):
            return np.array(self.texts.continued(*self._table(table)), object)
        return self._predicted(self.outputs(table))

    def _predicted(self, outputs: Tensor) -> NDArray[Any]:
        if isinstance(self.task, Regression):
            numbers: NDArray[Any] = self.task.unscaled(outputs.squeeze(1).double()).numpy()
            return numbers
        if isinstance(self.task, Classification):
            return np.array(self.classes)[outputs.argmax(1).numpy()]
        return (outputs > 0).long().numpy()

    # --- files -------------------------------------------------------------------------------------------

    def new_columns(self, table: pa.Table, name: str) -> dict[str, list[str] | NDArray[np.float64]]:
        """Columns to be added to a table: of classes the likeliest and a probability each, two classes or more, of
        labels a probability each, of a regression the number, of next_token the perplexity of the text and how it goes
        on.
        """
        if isinstance(self.task, NextToken):
            column = self.schema.target.column
            perplexity, further = self.texts.perplexity(table, name), self.texts.continued(table, name)
            return {f"{column} perplexity": perplexity, f"{column} continued": further}
        outputs = self._outputs(table, name)
        predicted = self._predicted(outputs)
        if isinstance(self.task, Regression):
            return {f"{self.classes[0]} predicted": predicted}
        shares = self._shares(outputs).double().numpy()
        if isinstance(self.task, Classification):
            column = self.schema.target.column
            parts = {f"{column}={name} probability": shares[:, place] for place, name in enumerate(self.classes)}
            return {f"{column} predicted": predicted.tolist(), **parts}
        return {f"{label} probability": shares[:, place] for place, label in enumerate(self.classes)}

    def complete(self, path: Path) -> bytes:
        """A file's bytes with the columns of `new_columns` at its end, in the form that the file has: a CSV file with
        its separator, decimal sign and encoding, or Parquet. Raises `DataError`.
        """
        names = [name for name, _ in self.schema.inputs]
        whole = read_whole(path, names, self.form, self.schema)
        added = self.new_columns(whole.table.select(names), str(path))
        if twice := next((name for name in added if name in whole.header), None):
            raise DataError(f"{path}: has a column {twice} already: leave it out, or rename it")
        if is_parquet(path):
            return _parquet(whole.table.rename_columns(whole.header), added)
        sign = self.form.decimal
        texts = [
            [cell(text) for text in column]
            if isinstance(column, list)
            else ["" if np.isnan(value) else f"{value:.6g}".replace(".", sign) for value in column]
            for column in added.values()
        ]
        rows = zip(*(column.to_pylist() for column in whole.table.columns), *texts, strict=True)
        out = io.StringIO(newline="")
        writer = csv.writer(out, delimiter=whole.separator, lineterminator="\n")
        writer.writerow([*whole.header, *map(cell, added)])
        writer.writerows(rows)
        try:
            return whole.mark + out.getvalue().encode(self.form.encoding)
        except UnicodeEncodeError as error:
            letter = error.object[error.start]
            raise DataError(f"{path}: {self.form.encoding} has no {letter!r}, which the schema's target has") from None


def cell(text: str) -> str:
    """A text of ours that no spreadsheet takes for a formula."""
    number = any(parsed_number(text, decimal) is not None for decimal in ".,")
    return f"'{text}" if text.startswith(FORMULA) and not number else text


def _parquet(table: pa.Table, added: Mapping[str, Any]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    for name, column in added.items():
        table = table.append_column(name, pa.array(column))
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()
