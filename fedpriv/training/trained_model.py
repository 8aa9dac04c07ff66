"""A finished run's model, with everything that using it needs: of pictures, of a table, of texts.

A cell that we write and that a spreadsheet would read as a formula (a class that begins with = + - @, a tab or a
return) gets an apostrophe before it; numbers do not. Cells of the user's own file are copied as they are: the file is
theirs, and a changed key would find no row again.

Shapes: n pictures or texts, t tokens of an input.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat, model_validator
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.common.checksums import MODEL_FILES, SUMS, TOKENIZER, damage
from fedpriv.common.errors import DataError, OptionError, RunFolderError
from fedpriv.common.run_files import bytes_in, fitting, is_file_in, mapping_in, open_in, shapes_in, tensors_in
from fedpriv.config.compose import read_config
from fedpriv.config.question_words import refuse_answers
from fedpriv.config.schema import Config
from fedpriv.data.cache import cache_folder
from fedpriv.data.decoding import Encoded, read_picture
from fedpriv.data.features import Features, model_input
from fedpriv.data.table_files import Form, read_columns, read_whole
from fedpriv.data.table_rows import encode, form_of, next_tokens, task_of, texts_of
from fedpriv.data.table_schema import TableSchema, parsed_number, schema_of, with_tokenizer
from fedpriv.data.texts import TokenRule
from fedpriv.mechanisms.tasks import PADDING, Classification, NextToken, Regression, Survival, Task
from fedpriv.training.flat_model import Shape
from fedpriv.training.language_models import text_for
from fedpriv.training.models import build_model
from fedpriv.training.sequential import normalise
from fedpriv.training.trained_part import frozen_tensors

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of which outputs are computed at a time.
BATCH = 1 << 14
#: What a spreadsheet takes for the beginning of a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")
#: Numbers of a batch's outputs; tokens by which a text is continued.
NUMBERS, FURTHER = 1 << 22, 16


class Facts(BaseModel):
    """classes.json: the names of a model's classes or targets, the form of an example, of pictures mean and standard
    deviation of each channel, of a table its schema.
    """

    classes: tuple[str, ...] = Field(min_length=1, max_length=1_000_000)
    shape: tuple[Annotated[int, Field(strict=True, ge=1, le=2**24)], ...] = Field(min_length=1, max_length=3)
    mean: tuple[FiniteFloat, ...] = Field(default=(), max_length=16)
    std: tuple[FiniteFloat, ...] = Field(default=(), max_length=16)
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _an_example_fits_into_memory(self) -> Facts:
        if math.prod(self.shape) > 2**28:
            raise ValueError(f"shape={list(self.shape)}: an example of more than {2**28} numbers")
        return self


@dataclass(frozen=True)
class TrainedModel:
    """A trained classifier with everything needed to use it."""

    module: nn.Module
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    features: Features | None = None
    drawn_on: tuple[str, int | None] = ("white", None)  # dataset.background, dataset.white_level

    def probabilities(self, images: NDArray[np.uint8]) -> Tensor:
        """Class probabilities [n, classes] of uint8 pictures [n, channels, height, width]. Raises `DataError`."""
        try:
            images = np.asarray(images)
        except ValueError as error:
            raise DataError(f"images: no array of pictures ({error})") from None
        if images.dtype != np.uint8 or images.shape[1:] != self.shape:
            wanted = f"uint8 [n, {', '.join(map(str, self.shape))}]"
            raise DataError(f"images: pictures are {wanted}, got {images.dtype} {list(images.shape)}")
        self.module.eval()
        with torch.inference_mode():
            if self.features is None:
                read = normalise(images, self.mean, self.std)
            else:
                read = torch.from_numpy(self.features(images))[:, :, None, None]
            result: Tensor = self.module(read).softmax(1)
        return result

    def read_picture(self, path: str | Path) -> NDArray[np.uint8]:
        """A picture file in the model's size and colours, uint8 [channels, height, width]: the bytes that training
        would have read of it. Raises `DataError`.
        """
        channels, height, width = self.shape
        found = read_picture(Encoded(str(path), str(path)), channels, (height, width), *self.drawn_on)
        if isinstance(found, str):
            raise DataError(f"{path}: {'not a picture that can be read' if found == 'not a picture' else found}")
        return np.ascontiguousarray(found)


# --- of a table ------------------------------------------------------------------------------------------


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
        if isinstance(self.task, Survival):
            raise DataError(f"{self.task.labels[0]} happens at a time: use predict or survival")
        return outputs.softmax(1) if isinstance(self.task, Classification | NextToken) else outputs.sigmoid()

    def predict(self, table: Any) -> NDArray[Any]:
        """The most likely class of each row (texts [rows]), the number in the target's own units (float64 [rows]), 1
        for each label that is more likely than not (int64 [rows, labels]), the probability of the event up to the end
        (float64 [rows]), or how a text goes on (texts [rows]).
        """
        if isinstance(self.task, NextToken):
            return np.array(self.texts.continued(*self._table(table)), object)
        return self._predicted(self.outputs(table))

    def _predicted(self, outputs: Tensor) -> NDArray[Any]:
        if isinstance(self.task, Regression):
            numbers: NDArray[Any] = self.task.unscaled(outputs.squeeze(1).double()).numpy()
            return numbers
        if isinstance(self.task, Survival):
            return 1 - self._survival(outputs, [self.task.until])[:, 0]
        if isinstance(self.task, Classification):
            return np.array(self.classes)[outputs.argmax(1).numpy()]
        return (outputs > 0).long().numpy()

    def survival(self, table: Any, times: Sequence[float]) -> NDArray[np.float64]:
        """[rows, times]: the probability that the event has not happened at each of the times, in the unit of the
        table. Raises `DataError` for another task, and for times that are not between 0 and the schema's ``until``.
        """
        return self._survival(self.outputs(table), times)

    def _survival(self, outputs: Tensor, times: Sequence[float]) -> NDArray[np.float64]:
        if not isinstance(self.task, Survival):
            raise DataError(f"task={self.task.name} has no times; allowed: survival")
        if (wrong := next((time for time in times if not 0 <= time <= self.task.until), None)) is not None:
            raise DataError(f"times: {wrong:g} must be between 0 and {self.task.until:g}")
        at = torch.tensor([time / self.task.until for time in times], dtype=torch.float64)
        numbers: NDArray[np.float64] = self.task.survival(outputs.double(), at).numpy()
        return numbers

    def of_each(self, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """Probabilities [n, classes], or the number in the schema's scale [n, 1], of encoded rows [n, d], one row after
        the other: in a batch, numbers may be rounded by what stands beside them.
        """
        self.module.eval()
        with torch.inference_mode():
            outputs = [self.module(row.clone()) for row in torch.from_numpy(np.array(inputs)).split(1)]
            found = torch.cat(outputs) if outputs else torch.zeros(0, len(self.classes))
            return (found if isinstance(self.task, Regression) else self._shares(found)).double().numpy()

    # --- files -------------------------------------------------------------------------------------------

    def new_columns(self, table: pa.Table, name: str) -> dict[str, list[str] | NDArray[np.float64]]:
        """Columns to be added to a table: of classes the likeliest and a probability each, two classes or more, of
        labels a probability each, of a regression the number, of survival the risk up to the end and the probability
        of no event up to the end of each interval, of next_token the perplexity of the text and how it goes on.
        """
        if isinstance(self.task, NextToken):
            column = self.schema.target.column
            perplexity, further = self.texts.perplexity(table, name), self.texts.continued(table, name)
            return {f"{column} perplexity": perplexity, f"{column} continued": further}
        outputs = self._outputs(table, name)
        predicted = self._predicted(outputs)
        if isinstance(self.task, Regression):
            return {f"{self.classes[0]} predicted": predicted}
        if isinstance(self.task, Survival):
            ends = [self.task.until * (place + 1) / self.task.intervals for place in range(self.task.intervals)]
            names = [f"no {self.classes[0]} by {end:.6g} probability" for end in ends]
            curves = dict(zip(names, self._survival(outputs, ends).T, strict=True))
            return {f"{self.classes[0]} by {ends[-1]:.6g} probability": predicted, **curves}
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
        added = self.new_columns(whole.read, str(path))
        if twice := next((name for name in added if name in whole.header), None):
            raise DataError(f"{path}: has a column {twice} already: leave it out, or rename it")
        if not whole.separator:
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


# --- of texts --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextModel:
    """A model of the next token with the schema of its run."""

    module: nn.Module
    schema: TableSchema

    def following(self, table: pa.Table, name: str) -> Tensor:
        """What the model says of the token after each text's last ones: float32 [n, vocabulary]."""
        return torch.cat([self._after(ids) for ids in self._last(table, name)])

    def continued(self, table: pa.Table, name: str, further: int = FURTHER) -> list[str]:
        """The most likely next token, and so on, `further` times: n texts; of an empty text nothing."""
        found = []
        for ids in self._last(table, name):
            window, added = ids, []
            for _ in range(further):
                shares = self._after(window)
                shares[:, 0] = -torch.inf  # padding follows nothing
                added.append(shares.argmax(1))
                window = _appended(window, added[-1])
            empty = (ids == 0).all(1)
            rows = torch.stack(added, 1).masked_fill(empty[:, None], 0)
            found += [self._rule.text(row) for row in rows.tolist()]
        return found

    def perplexity(self, table: pa.Table, name: str) -> NDArray[np.float64]:
        """exp of the mean cross-entropy of each text's tokens but the first, float64 [n]: of those that training would
        read. NaN for a text of one token or none.
        """
        column, length = table.column(str(self.schema.target.column)), self._length
        targets = torch.from_numpy(next_tokens(self.schema, column, name))
        losses, start = [], 0
        for _, texts in texts_of(column, name):
            for ids in self._batches(self._rule.ids(texts, length)):
                wanted = targets[start : start + len(ids)]
                outputs = self._outputs(ids)
                flat = functional.cross_entropy(
                    outputs.flatten(0, 1), wanted.flatten(), reduction="none", ignore_index=PADDING
                )
                losses.append(flat.view(wanted.shape).double().sum(1) / (wanted != PADDING).sum(1))
                start += len(ids)
        result: NDArray[np.float64] = torch.cat(losses).exp().numpy()
        return result

    # --- one batch -----------------------------------------------------------------------------------------

    @property
    def _rule(self) -> TokenRule:
        assert self.schema.tokens is not None
        return self.schema.tokens.rule

    @property
    def _length(self) -> int:
        return self.schema.num_inputs

    def _last(self, table: pa.Table, name: str) -> Iterator[Tensor]:
        for _, texts in texts_of(table.column(str(self.schema.target.column)), name):
            yield from self._batches(self._rule.ids(texts, self._length, last=True))

    def _batches(self, ids: NDArray[np.int32]) -> Iterator[Tensor]:
        rows = max(1, NUMBERS // (self._length * int(self.schema.vocabulary or 1)))
        return iter(torch.from_numpy(ids.astype(np.int64)).split(rows))

    def _outputs(self, ids: Tensor) -> Tensor:
        self.module.eval()
        with torch.inference_mode():
            outputs: Tensor = self.module(ids)
        return outputs

    def _after(self, ids: Tensor) -> Tensor:
        """Outputs of each row's last token [n, vocabulary]; of a row without tokens those of its first place."""
        last = ((ids != 0).sum(1) - 1).clamp(min=0)
        return self._outputs(ids)[torch.arange(len(ids)), last].clone()


def _appended(ids: Tensor, further: Tensor) -> Tensor:
    """Rows [n, t] with one token more behind the text; a full row loses its first."""
    full = (ids != 0).all(1)
    moved = torch.where(full[:, None], ids.roll(-1, 1), ids)
    place = (ids != 0).sum(1).clamp(max=ids.shape[1] - 1)
    return moved.scatter(1, place[:, None], further[:, None])


# --- from a run's folder ---------------------------------------------------------------------------------


def load_model(folder: str | Path) -> TrainedModel | TableModel:
    """The model of a finished run's folder. Raises `RunFolderError`."""
    config, path = read_config(folder), Path(folder).absolute()
    refuse_answers(config, folder)
    if not (path / "model.safetensors").is_file():
        raise RunFolderError(f"{folder}: the run has not finished, it has no model.safetensors")
    with fitting(path):
        try:
            facts = Facts.model_validate(mapping_in(path, "classes.json"))
            shapes = shapes_in(path, "model.safetensors")
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{folder}: the model cannot be read ({error})") from None
        return _model(config, path, facts, shapes)


def scorer(weights: str, sha256: str | None, schema: TableSchema) -> TableModel:
    """The model that a question asks about: of the folder in which the file of its ``weights`` lies.

    sha256: of that file, None: any. schema: by which the rows that are asked are read. Raises `RunFolderError` for a
    folder without a finished model, another file, and a model of other columns, of clients' own layers, of no classes
    or numbers of a table, of a user's code, or that says another score of the same row the second time.
    """
    file = Path(weights)
    folder = file.parent
    if file.name != MODEL_FILES[0]:
        raise RunFolderError(f"{file}: allowed: {MODEL_FILES[0]} of a run's folder, with what lies beside it")
    if is_file_in(folder, "config.yaml") and read_config(folder).model.name == "custom":
        words = "its model is a user's code, which may keep something of one row for the next"
        raise RunFolderError(f"{folder}: model=custom: {words}; allowed: a model of the project")
    model = load_model(folder)
    try:
        with open_in(folder, file.name) as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        summary = mapping_in(folder, "summary.json") if is_file_in(folder, "summary.json") else {}
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{folder}: cannot be read ({error})") from None
    if sha256 not in (None, found):
        raise RunFolderError(f"{file}: the model is another now: its SHA-256 is {found}, and {sha256} is named")
    shared, size = summary.get("num_shared"), summary.get("num_parameters")
    if isinstance(shared, int) and isinstance(size, int) and shared < size:
        words = "its clients keep layers of their own, so the server's model is a part of each"
        raise RunFolderError(f"{folder}: {words}; allowed: a run with one model")
    if not isinstance(model, TableModel) or not isinstance(model.task, Classification | Regression):
        what = model.task.name if isinstance(model, TableModel) else "pictures"
        raise RunFolderError(f"{folder}: its model is of {what}; score takes classification and regression of tables")
    if model.schema.digest != schema.digest:
        mine, others = (dict(one.inputs) for one in (model.schema, schema))
        apart = [name for name in {**mine, **others} if mine.get(name) != others.get(name)]
        if model.schema.target != schema.target:
            apart.insert(0, f"the target {schema.target.column}")
        words = f"its model is of another schema than the rows that are asked ({', '.join(apart[:6]) or 'unit'})"
        raise RunFolderError(f"{folder}: {words}; allowed: a run with this schema")
    zero = np.zeros(
        (1, schema.num_inputs), np.float32
    )  # no row of anybody's: what a node refuses tells nothing of its rows
    if not np.array_equal(model.of_each(zero), model.of_each(zero), equal_nan=True):
        words = "its model keeps something between rows, or draws: it says another score of a row the second time"
        raise RunFolderError(f"{folder}: {words}; allowed: a model whose scores are functions of a row")
    return model


def _model(config: Config, path: Path, facts: Facts, shapes: dict[str, Shape]) -> TrainedModel | TableModel:
    shape: Any = facts.shape
    reads, schema, task, text = shape, None, None, None
    if facts.schema_ is None:
        reads = model_input(config.features, shape)
    else:
        schema = _schema(facts.schema_, path)
        task = task_of(schema)
        text = text_for(schema.vocabulary, task)

    def built() -> nn.Module:
        baseline = 0 if task is None else task.baseline
        return build_model(config.model, reads, len(facts.classes), config.seed, text, False, True, baseline)

    if config.model.name != "custom":
        with torch.device("meta"), suppress(NotImplementedError):  # of what public weights are read into
            # Its form alone: config.yaml may name a model that no machine holds.
            _refuse_another(built(), shapes, config, path)
    module = built()
    _refuse_another(module, shapes, config, path)
    if is_file_in(path, SUMS) and (wrong := damage(path, MODEL_FILES)) is not None:
        raise RunFolderError(f"{path}: the model is damaged ({wrong})")
    module.load_state_dict(tensors_in(path, "model.safetensors"), strict=False)
    if schema is not None and task is not None:
        return TableModel(module, schema, task, form_of(config.dataset))
    used = config.features.name != "none"
    features = Features(config.features, shape, cache_folder(config.dataset)) if used else None
    drawn_on = (config.dataset.background, config.dataset.white_level)
    return TrainedModel(module, facts.classes, shape, facts.mean, facts.std, features, drawn_on)


def _refuse_another(module: nn.Module, shapes: dict[str, Shape], config: Config, path: Path) -> None:
    trained = {name: tuple(value.shape) for name, value in module.named_parameters()}
    whole = trained | {name: tuple(value.shape) for name, value in frozen_tensors(module).items()}
    allowed = [whole, trained] if config.model.train == "all" else [whole]  # of earlier versions without buffers
    if shapes not in allowed:
        raise RunFolderError(f"{path}: model.safetensors is not of the model that config.yaml names")


def _schema(said: Any, path: Path) -> TableSchema:
    """Of a run's folder, which holds a copy of the tokenizer's file. Raises `RunFolderError`."""
    named = False
    for column in said["columns"].values():
        if column.get("tokenizer", "bytes") not in ("bytes", "words"):
            if "sha256" not in column:
                raise RunFolderError(f"{path}: classes.json names a tokenizer without its digest")
            column["tokenizer"] = str(path / TOKENIZER)
            named = True
    try:
        if named:
            bytes_in(path, TOKENIZER)  # a regular file of the folder, of its size
        return with_tokenizer(schema_of(said, str(path / "classes.json")), path)
    except (OSError, OptionError) as error:
        raise RunFolderError(f"{path}: the schema or tokenizer cannot be read ({error})") from None
