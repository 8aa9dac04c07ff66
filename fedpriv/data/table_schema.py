"""The schema of a table: which column means what, in a public YAML file that is the same at all sites.

    target: {column: diagnosis, task: classification, classes: [benign, malignant]}
    unit: patient_id             # whom to protect: all rows of one; without it, one row
    columns:
      radius: {range: [0, 34]}   # clipped to the range, then scaled to [-1, 1]
      sex: {values: [f, m]}      # one input for each value, and one for all other values
      visited: {range: [2020-01-01, 2026-12-31]}
      note: {text: hashed, dims: 256}     # or {text: tokens, length: 128}, for models of text; or an encoder's:
      plan: {text: encoder, encoder: FOLDER, trained_on: web pages}
      ward: {ignore: true}
    missing: indicator           # a missing value is 0, and an input of its own says so; or: refuse
    missing_values: [-99]        # cells that say so, beside empty ones and NA

Every number in the file is public knowledge (a unit's possible range, the literature, a private query), never read off
the data: the model's inputs are scaled by it, so a range taken from the data would be a release in no ledger.

**Cells and schema values** have one canonical text for each, however a file or a YAML scalar spells it:

    1, 1.0, +1, 1e0            1        a number by its value; a leading zero makes a code (01), compared as written
    True, TRUE                 true     a truth value (`value_places`: yes and no, 1 and 0 where the schema says so)
    2024-01-31 00:00:00        2024-01-31    a date by its instant; without a zone it is UTC
    e + combining accent       é        Unicode's composed form (NFC), without blanks around it

Canonical texts are compared; what is shown and predicted is the schema's own spelling.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedpriv.common.errors import OptionError
from fedpriv.config.explain import first_option_error
from fedpriv.config.options import Options
from fedpriv.data.text_encoders import TextEncoder
from fedpriv.data.texts import BYTES, MOST_IDS, MOST_TOKENS, WORDS, TokenRule, read_tokenizer

#: What a person has still to fill in.
OPEN = "?"
#: A table has at most so many columns and inputs.
MOST_COLUMNS, MOST_INPUTS = 10_000, 1 << 20
NULL = "tag:yaml.org,2002:null"
#: A schema file is no longer than this, in bytes.
MOST_BYTES = 4 << 20
OPTION = "dataset.schema_file"
#: A filled range is at most so many times as wide as what surely lies inside it.
MOST_WIDTH = 2
FILLED = """\
# Ranges and fills of {columns} are answers of differential privacy, of the questions of {source}.
"""
#: Of a target of survival what is not said.
EVENTS = {"classes": ["0", "1"], "intervals": 6}
#: How pydantic begins the names of the types that a range or a list of texts may have.
ALTERNATIVES = ("tuple[", "float]", "literal[")
#: A number without leading zeros, as people and programs write it; a first line of names and a draft take any number.
NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
#: What pyarrow selects for `canonical`, which leaves all other cells as they are.
FOLDED = r"^[+-]?[0-9].*[.,eE:T ]|^\+[0-9]|^-0|^[+-]?[.,][0-9]|^(True|TRUE|False|FALSE)$"
#: Longer cells are no numbers that two programs write in two ways.
LONGEST_NUMBER = 64
#: Pairs of words for true and false. A list of values that has one pair gives meaning to the others' (`value_places`).
TRUTHS = (("true", "false"), ("yes", "no"), ("1", "0"), ("y", "n"), ("t", "f"), ("on", "off"))
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def tidy(text: str) -> str:
    """A name or cell in Unicode's composed form, without blanks around it."""
    return unicodedata.normalize("NFC", text).strip()


def canonical(cell: str, sign: str = ".") -> str:
    """The one text for a cell's meaning. sign: the one before a fraction."""
    text = tidy(cell)
    plain = text if sign == "." or "." in text else text.replace(sign, ".")
    if len(plain) <= LONGEST_NUMBER and NUMBER.fullmatch(plain):
        try:
            number = decimal.Context(prec=LONGEST_NUMBER).create_decimal(plain)
        except decimal.InvalidOperation:  # an exponent of many digits
            return text
        number = number.normalize(decimal.Context(prec=LONGEST_NUMBER)) if number else decimal.Decimal(0)
        return format(number, "f" if -LONGEST_NUMBER < number.adjusted() < LONGEST_NUMBER else "")
    if text in ("True", "TRUE", "False", "FALSE"):
        return text.lower()
    if re.match(r"\d{4}-\d\d-\d\d[T ]", text) and (found := moment(text)) is not None:
        seconds, nanoseconds = found
        try:
            when = (EPOCH + datetime.timedelta(seconds=seconds)).replace(tzinfo=None)
        except OverflowError:  # years are 1 to 9999, in UTC too
            return text
        part = f".{nanoseconds:09d}".rstrip("0").rstrip(".")
        return f"{when}{part}" if part or seconds % 86400 else f"{when.date()}"
    return text


def value_places(values: tuple[str, ...]) -> dict[str, int]:
    """Canonical text -> place among ``values``. Where these have one pair of truth values, true and false mean them
    in any spelling; a list with true and false, or yes and no, knows the words of both, and 1 and 0.
    """
    places = {canonical(value): place for place, value in enumerate(values)}
    lower = {text.lower(): place for text, place in places.items()}
    pairs = [pair for pair in TRUTHS if pair[0] in lower and pair[1] in lower]
    if len(lower) < len(values) or len(pairs) != 1:
        return places
    words = (*pairs, *(TRUTHS[:3] if pairs[0] in TRUTHS[:2] else TRUTHS[:1]))
    for side in (0, 1):
        for word in (pair[side] for pair in words):
            for spelled in (word, word.capitalize(), word.upper()):
                places.setdefault(spelled, lower[pairs[0][side]])
    return places


def parsed_number(cell: str, sign: str) -> float | None:
    """The number in a cell; None where it is none. A sign for thousands is not guessed at: with decimal commas 1.234
    may be meant as 1234, so it is none.
    """
    plain = cell.strip()
    if sign == ",":
        plain = plain.replace(",", ".") if "." not in plain else ""
    return float(plain) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", plain) else None


def moment(cell: str) -> tuple[int, int] | None:
    """Of a date (2020-01-31, with or without a time): (seconds since 1970-01-01, nanoseconds). None: it is none."""
    text = cell.strip()
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    when = when if when.tzinfo is not None else when.replace(tzinfo=datetime.UTC)
    fraction = re.search(r"[.,](\d{1,9})", text)
    seconds = (when - EPOCH) // datetime.timedelta(seconds=1)
    return seconds, int(fraction[1].ljust(9, "0")) if fraction else 0


def days_of(seconds: Any, nanoseconds: Any) -> Any:
    """Days since 1970-01-01, float64: the one formula for dates of schemas, texts and typed columns."""
    return (seconds + nanoseconds / 1e9) / 86400


def day_of(cell: str) -> float | None:
    """Of a date (2020-01-31, with or without a time): days since 1970-01-01."""
    found = moment(cell)
    return None if found is None else float(days_of(*found))


def _number(value: Any) -> Any:
    """Of a bound: a date is its day's number, counted from 1970-01-01."""
    if not isinstance(value, int | str | datetime.date) or isinstance(value, bool):
        return value
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        day = day_of(str(value))
        return value if day is None else day


def _bounds(value: Any) -> Any:
    """(low, high) as numbers; `OPEN` goes on to the check of types. Raises ValueError where low is not below high."""
    if value in (None, OPEN):
        return value
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("must be [low, high]")
    low, high = map(_number, value)
    if isinstance(low, int | float) and isinstance(high, int | float) and low >= high:
        raise ValueError(f"the range [{value[0]}, {value[1]}] is empty; allowed: [low, high] with low < high")
    return low, high


def _text(value: Any) -> Any:
    """A value or class as the text that stands in a cell: in Python 1, True and a date are values too."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | datetime.date) else value


def _texts(values: Any) -> Any:
    return tuple(_text(value) for value in values) if isinstance(values, list | tuple) else values


Range = Annotated[tuple[float, float] | Literal["?"], BeforeValidator(_bounds)]
Texts = Annotated[tuple[str, ...] | Literal["?"], BeforeValidator(_texts)]
Text = Annotated[str, BeforeValidator(_text)]
T = TypeVar("T")
Listed = Annotated[tuple[T, ...], BeforeValidator(lambda given: tuple(given) if isinstance(given, list) else given)]


def check_range(bounds: tuple[float, float] | str | None) -> None:
    """Raises ValueError where a range is too wide."""
    if isinstance(bounds, tuple) and not math.isfinite(bounds[1] - bounds[0]):
        raise ValueError("the range is too wide for numbers of 64 bits")


def check_texts(values: tuple[str, ...] | str | None, least: int) -> None:
    """Raises ValueError where values are fewer than `least`, mean the same or have blanks around them."""
    if not isinstance(values, tuple):
        return
    if len(values) < least:
        raise ValueError(f"{len(values)} values; at least {least} are needed")
    if (blank := next((value for value in values if value != value.strip()), None)) is not None:
        raise ValueError(f"the value {blank!r} has blanks around it; cells are read without them")
    seen: dict[str, str] = {}
    for value in values:
        if (text := canonical(value)) in seen:
            also = "" if seen[text] == value else f" and {value}, which mean the same"
            raise ValueError(f"values stand twice: {seen[text]}{also}")
        seen[text] = value


class Column(Options):
    """What one column of the table gives a model: exactly one of ``range``, ``values``, ``text``, ``ignore``."""

    range: Range | None = Field(default=None, description="numbers or dates: [low, high], public; scaled to [-1, 1]")
    step: float | None = Field(
        default=None, gt=0, description="of a range: values are its multiples (1, 0.01); quantiles then are too"
    )
    fill: Annotated[float, BeforeValidator(_number)] | None = Field(
        default=None,
        description="of a range: what a missing value counts as, public or a private mean (null: the middle)",
    )
    values: Texts | None = Field(default=None, description="categories: one input each, and one for all others")
    text: Literal["hashed", "tokens", "encoder"] | None = Field(
        default=None,
        description="free text: hashed words and letter groups, token ids, or the vector of a text encoder",
    )
    dims: int = Field(
        default=256, ge=8, le=MOST_INPUTS, description="hashed: number of inputs; encoder: as its configuration says"
    )
    length: int | None = Field(
        default=None, ge=1, le=MOST_TOKENS, description="tokens, encoder: of a text so many (null: 128)"
    )
    encoder: str | None = Field(
        default=None, min_length=1, description="encoder: its folder (config.json, model.safetensors, tokenizer.json)"
    )
    trained_on: str | None = Field(
        default=None, min_length=1, max_length=500, description="encoder: what it was trained on, for every report"
    )
    tokenizer: str | None = Field(default=None, min_length=1, description="bytes, words or a file (null: bytes)")
    buckets: int | None = Field(default=None, ge=1, le=MOST_IDS - 1, description="words: of their hash (null: 65536)")
    sha256: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="of the tokenizer's or encoder's files (null: as they are)"
    )
    ignore: Literal[True] | None = Field(default=None, description="not read by the model")
    missing: Literal["indicator", "refuse"] | None = Field(default=None, description="as the table's, for this column")
    missing_values: Texts | None = Field(default=None, description="further ones than the table's, for this column")

    @model_validator(mode="before")
    @classmethod
    def _tokens_have_a_length(cls, given: Any) -> Any:
        """What is not said is filled in: the digest is that of a schema that says it."""
        if not isinstance(given, dict) or given.get("text") not in ("tokens", "encoder"):
            return given
        if given["text"] == "encoder":
            return {"length": 128} | given
        filled = {"length": 128, "tokenizer": BYTES} | given
        return {"buckets": 1 << 16} | filled if filled["tokenizer"] == WORDS else filled

    @model_validator(mode="after")
    def _one_kind(self) -> Column:
        tokens, words, encoded = self.text == "tokens", self.tokenizer == WORDS, self.text == "encoder"
        for name, fits, needs in (
            ("step", self.range is not None, "a range"),
            (
                "fill",
                self.range is not None and self.missing != "refuse",
                "a range whose missing values are not refused",
            ),
            ("length", tokens or encoded, "text: tokens or encoder"),
            ("encoder", encoded, "text: encoder"),
            ("trained_on", encoded, "text: encoder"),
            ("tokenizer", tokens, "text: tokens"),
            ("buckets", words, "tokenizer: words"),
            ("sha256", encoded or (tokens and not words and self.tokenizer != BYTES), "a tokenizer file or an encoder"),
        ):
            if getattr(self, name) is not None and not fits:
                raise ValueError(f"{name} needs {needs}; leave it out")
        kinds = [name for name in ("range", "values", "text", "ignore") if getattr(self, name) is not None]
        if len(kinds) != 1:
            given = " and ".join(kinds) or "none of them"
            raise ValueError(f"has {given}; allowed: exactly one of range, values, text, ignore")
        if encoded and not (self.encoder and self.trained_on):
            raise ValueError("text: encoder needs encoder (a folder) and trained_on, which every report repeats")
        check_range(self.range)
        check_texts(self.values, 1)
        check_texts(self.missing_values, 1)
        if self.fill is not None and isinstance(self.range, tuple) and not self.range[0] <= self.fill <= self.range[1]:
            raise ValueError(f"fill={self.fill:g} lies outside the range [{self.range[0]:g}, {self.range[1]:g}]")
        if self.step and isinstance(self.range, tuple):
            parts = [bound / self.step for bound in self.range]
            if any(abs(part - round(part)) > 1e-6 for part in parts):
                raise ValueError(f"the ends of the range must be multiples of step: {self.step:g}")
        return self

    @property
    def kind(self) -> Literal["range", "values", "text", "ignore"]:
        return next(name for name in ("range", "values", "text", "ignore") if getattr(self, name) is not None)  # type: ignore[return-value]

    @property
    def rule(self) -> TokenRule:
        """Of a column of tokens."""
        return TokenRule(str(self.tokenizer), self.buckets or 0, self.sha256)

    @property
    def text_encoder(self) -> TextEncoder:
        """Of a column of an encoder's vectors."""
        return TextEncoder(str(self.encoder), self.length or 128)

    @property
    def open(self) -> bool:
        """Whether a person has still to fill in what is public of it."""
        return OPEN in (self.range, self.values)


class Target(Options):
    """What a model is to predict. classification: one of ``classes``; multilabel: any of the 0/1 columns ``columns``;
    regression: a number in ``range``, to which it is clipped; next_token: each token of ``column`` from those before;
    survival: when ``event`` happens, by ``time`` from 0 to ``until``; none: the table is for questions alone.
    """

    task: Literal["classification", "multilabel", "regression", "next_token", "survival", "none"] = Field(
        description="kind of prediction"
    )
    column: str | None = Field(default=None, description="the target's column")
    columns: Listed[str] = Field(default=(), description="multilabel: columns of 0 and 1, one a label")
    classes: Texts | None = Field(
        default=None,
        description="classification: the classes, in the order of the outputs; survival: no event, event (null: 0, 1)",
    )
    range: Range | None = Field(default=None, description="regression: [low, high] of the target, public")
    positive: Text | None = Field(
        default=None,
        description="of two classes the one that f1 is of, of survival the event (null: the second)",
    )
    time: str | None = Field(default=None, description="survival: column of times to the event, or to the last look")
    event: str | None = Field(default=None, description="survival: column of whether the event ended the time")
    until: float | None = Field(default=None, gt=0, description="survival: the end; who reaches it lives on")
    intervals: int | None = Field(
        default=None, ge=1, le=100, description="survival: equal ones with a hazard of their own (null: 6)"
    )

    @model_validator(mode="before")
    @classmethod
    def _events_have_classes(cls, given: Any) -> Any:
        """As of tokens: what is not said is filled in."""
        if not isinstance(given, dict) or given.get("task") != "survival":
            return given
        return given | {name: value for name, value in EVENTS.items() if given.get(name) is None}

    @model_validator(mode="after")
    def _fits_its_task(self) -> Target:
        needs = {
            "classification": {"column", "classes"},
            "multilabel": {"columns"},
            "regression": {"column", "range"},
            "next_token": {"column"},
            "survival": {"time", "event", "until"},
            "none": set[str](),
        }[self.task]
        known = ("column", "columns", "classes", "range", "time", "event", "until", "intervals")
        filled = EVENTS if self.task == "survival" else {}
        given = {name for name in known if getattr(self, name) and name not in filled}
        if given != needs:
            wanted = ", ".join(sorted(needs)) or "nothing else"
            raise ValueError(f"task={self.task} has {', '.join(sorted(given))}; allowed: {wanted}")
        check_range(self.range)
        check_texts(self.classes, 2)
        check_texts(self.columns or None, 1)
        two = self.classes == OPEN or len(self.classes or ()) == 2
        if self.task == "survival" and (self.time == self.event or not two):
            raise ValueError("time and event are two columns, the event one of two classes")
        if self.positive is not None and self.positive not in (self.classes or ()):
            words = ", ".join(self.classes) if isinstance(self.classes, tuple) else "of two classes one"
            raise ValueError(f"positive={self.positive} is none of the classes; allowed: {words}")
        if self.positive is not None and len(self.classes or ()) != 2:
            raise ValueError(f"positive={self.positive} is of two classes, and there are {len(self.classes or ())}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The table's columns that hold it."""
        if self.time is not None and self.event is not None:
            return (self.time, self.event)
        return self.columns if self.column is None else (self.column,)

    @property
    def open(self) -> bool:
        return OPEN in (self.range, self.classes)


class Answered(Options):
    """What private answers cost that ranges of a schema come from (`fedpriv schema fill`)."""

    columns: Texts = Field(description="columns whose range or fill is an answer")
    epsilon: float = Field(ge=0, description="verified epsilon of the run that answered")
    delta: float = Field(gt=0, lt=1, description="its delta")
    unit: str = Field(description="its unit: example or person")
    adjacency: str = Field(description="its adjacency")
    observer: str = Field(description="its observer")

    @property
    def sentence(self) -> str:
        """For plans and reports of runs under the schema."""
        columns = ", ".join(self.columns)
        return (
            f"the schema's ranges and fills of {columns} are answers to questions that cost epsilon {self.epsilon:.4g} "
            f"at delta {self.delta:g} before (unit {self.unit}, {self.adjacency}, {self.observer}), beside this run's"
        )


class TableSchema(Options):
    """A whole schema. Its inputs are those of its columns, in the file's order."""

    target: Target = Field(
        default_factory=lambda: Target(task="none"), description="what models predict (null: nothing)"
    )
    unit: str | None = Field(default=None, description="column of the person that a row belongs to (null: a row)")
    word: str | None = Field(
        default=None,
        pattern=r"^[^\W\d_][\w -]{0,39}$",
        description="what reports call a person: patient (null: by unit)",
    )
    columns: dict[str, Column]
    missing: Literal["indicator", "refuse"] = Field(
        default="indicator", description="a missing value: 0 beside an input that says so, or an error"
    )
    missing_values: Texts | None = Field(
        default=None, description="cells that say that a value is missing, beside the usual ones (null: none)"
    )
    answered: Listed[Answered] = Field(
        default=(), description="what ranges cost that private answers gave (`fedpriv schema fill`)"
    )

    @model_validator(mode="after")
    def _columns_fit(self) -> TableSchema:
        if len(self.columns) > MOST_COLUMNS:
            raise ValueError(f"{len(self.columns)} columns; at most {MOST_COLUMNS} are allowed")
        of_tokens = [name for name, column in self.inputs if column.text == "tokens"]
        if of_tokens and len([*self.inputs]) > 1:
            raise ValueError(f"{of_tokens[0]} is a column of tokens, whose models read nothing else; ignore the others")
        predicted = self.target.column if self.target.task == "next_token" else None
        if predicted is not None and (predicted not in of_tokens or self.columns[predicted].tokenizer == WORDS):
            raise ValueError(f"task=next_token needs {predicted} as {{text: tokens}}, by bytes or a tokenizer file")
        for name in (*(name for name in self.target.names if name != predicted), self.unit):
            if name is not None and name in self.columns and self.columns[name].ignore is None:
                raise ValueError(f"the column {name} is the target or unit, so it cannot be an input as well")
        if self.word is not None and self.unit is None:
            raise ValueError(f"word: {self.word} is what a person is called, and no unit names the persons' column")
        if self.unit in self.target.names:
            raise ValueError(f"the column {self.unit} is both target and unit")
        check_texts(self.missing_values, 1)
        for name, column in self.columns.items():
            if both := {*map(canonical, column.values or ())} & {*self.missing_marks(column)}:
                raise ValueError(f"column {name}: {sorted(both)[0]} is one of values and of missing_values")
        if not any(column.ignore is None for column in self.columns.values()):
            raise ValueError("no column is an input of the model")
        if not self.unfilled and self.num_inputs > MOST_INPUTS:
            raise ValueError(f"{self.num_inputs} inputs in all; at most {MOST_INPUTS} are allowed")
        return self

    @property
    def person(self) -> str | None:
        """What reports call a person: ``word``, or the unit's column without `_id`. None where a row is a unit."""
        return self.word or (self.unit and (self.unit.removesuffix("_id").replace("_", " ").strip() or self.unit))

    @property
    def inputs(self) -> Iterator[tuple[str, Column]]:
        """The columns that a model reads, in their order."""
        return ((name, column) for name, column in self.columns.items() if column.ignore is None)

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of all columns that are read from a file with targets."""
        unit = () if self.unit is None else (self.unit,)
        return tuple(dict.fromkeys([*(name for name, _ in self.inputs), *self.target.names, *unit]))

    @property
    def tokens(self) -> Column | None:
        """The only input where it is a column of tokens: then inputs are ids, and models are those of text."""
        return next((column for _, column in self.inputs if column.text == "tokens"), None)

    @property
    def vocabulary(self) -> int | None:
        """Number of token ids, padding among them. Raises `OptionError` for a tokenizer file."""
        return None if self.tokens is None else self.tokens.rule.vocabulary

    @property
    def numbers(self) -> frozenset[str]:
        """Names of the columns whose cells are numbers or dates."""
        target = self.target.names[:1] if self.target.task in ("regression", "survival") else ()
        return frozenset([*target, *(name for name, column in self.inputs if column.kind == "range")])

    @property
    def texts(self) -> frozenset[str]:
        """Names of the columns of free text."""
        return frozenset(name for name, column in self.inputs if column.text is not None)

    def missing_marks(self, column: Column | None = None) -> tuple[str, ...]:
        """Canonical texts of a column's cells, or of the target's and unit's, that say that a value is missing."""
        own = () if column is None else column.missing_values or ()
        return tuple(map(canonical, (*(self.missing_values or ()), *own)))

    def indicated(self, column: Column) -> bool:
        """Whether a missing value has an input of its own; otherwise it is refused (a text: empty)."""
        return (column.missing or self.missing) == "indicator" and column.kind in ("range", "values")

    def width(self, column: Column) -> int:
        """Number of inputs of a column."""
        text = (column.length or 0) if column.text == "tokens" else column.dims
        values = len(column.values or ()) + 1
        return {"range": 1, "text": text, "values": values, "ignore": 0}[column.kind] + self.indicated(column)

    @property
    def num_inputs(self) -> int:
        return sum(self.width(column) for _, column in self.inputs)

    @property
    def input_names(self) -> list[str]:
        """One name for each input, as charts and checks show them."""
        names: list[str] = []
        for name, column in self.inputs:
            match column.kind:
                case "range":
                    names.append(name)
                case "values":
                    names += [*(f"{name}={value}" for value in column.values or ()), f"{name}=other"]
                case "text":
                    names += [f"{name}#{bucket}" for bucket in range(self.width(column))]
            if self.indicated(column):
                names.append(f"{name} missing")
        return names

    @property
    def unfilled(self) -> list[str]:
        """Names of the columns that still hold `OPEN`."""
        target = [*self.target.names] if self.target.open else []
        return target + [name for name, column in self.columns.items() if column.open]

    @property
    def _said(self) -> dict[str, Any]:
        """What the schema says in canonical texts: the same for two files that differ in comments, spelling or the name
        of files beside it.
        """
        dumped = self.model_dump(mode="json", exclude_none=True, exclude={"word", "answered"})
        for column in (*dumped["columns"].values(), dumped["target"], dumped):
            for name in {"values", "classes", "missing_values"} & column.keys():
                column[name] = [canonical(text) for text in column[name]] if column[name] != OPEN else OPEN
            if "sha256" in column:
                column["encoder" if "encoder" in column else "tokenizer"] = "file"
        return dumped

    @property
    def digest(self) -> str:
        """SHA-256 of what the schema says, in hex."""
        return _digest(self._said)

    @property
    def digests(self) -> dict[str, str]:
        """The same of each part, by its name: what two sites' schemas differ in."""
        said = self._said
        columns = said.pop("columns")
        parts = {f"column {name}": column for name, column in columns.items()} | said
        parts |= {"order of columns": [*columns]}
        return {name: _digest(part) for name, part in parts.items()}


def _digest(said: Any) -> str:
    text = json.dumps(said, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_schema(path: str | Path, unfilled: bool = False) -> TableSchema:
    """The schema of a YAML file. unfilled: whether it may still hold "?". Raises `OptionError`, dataset.schema_file."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise OptionError(OPTION, path, f"cannot be read ({error.strerror})") from None
    if len(raw) > MOST_BYTES:
        raise OptionError(OPTION, path, f"{len(raw)} bytes; a schema has at most {MOST_BYTES}")
    return with_tokenizer(_parsed(raw, str(path), unfilled), Path(path).parent)


def with_tokenizer(schema: TableSchema, folder: Path) -> TableSchema:
    """The schema with its tokenizer's file or its encoders' folders, if any, as absolute paths with their SHA-256.
    Raises `OptionError`.
    """
    encoders = {name: _with_encoder(name, column, folder) for name, column in schema.inputs if column.text == "encoder"}
    schema = schema.model_copy(update={"columns": schema.columns | encoders}) if encoders else schema
    name = next((name for name, column in schema.inputs if column.text == "tokens" and column.rule.has_file), None)
    if name is None:
        return schema
    column, file = schema.columns[name], (folder / str(schema.columns[name].tokenizer)).absolute()
    filled = column.model_copy(update={"tokenizer": str(file), "sha256": column.sha256 or read_tokenizer(file).sha256})
    _ = filled.rule.vocabulary  # the file is that of the digest
    return schema.model_copy(update={"columns": schema.columns | {name: filled}})


def _with_encoder(name: str, column: Column, folder: Path) -> Column:
    place = str((folder / str(column.encoder)).absolute())
    found = column.model_copy(update={"encoder": place})
    dims, sha256 = found.text_encoder.dims, found.text_encoder.sha256
    if "dims" in column.model_fields_set and column.dims != dims:
        raise OptionError(OPTION, f"{name}: dims={column.dims}", f"the encoder in {place} gives {dims}; leave it out")
    if column.sha256 not in (None, sha256):
        words = f"its files are others: their SHA-256 is {sha256}, and {column.sha256} is named"
        raise OptionError(OPTION, f"{name}: encoder={place}", words)
    return found.model_copy(update={"dims": dims, "sha256": sha256})


@lru_cache(maxsize=8)  # a plan asks for the unit of every kind of client
def _parsed(raw: bytes, path: str, unfilled: bool) -> TableSchema:
    try:
        said = read_texts(raw)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(OPTION, path, f"is not YAML ({' '.join(str(error).split())[:300]})") from None
    return schema_of(said, path, unfilled)


def read_texts(raw: bytes) -> Any:
    """The plain values of a YAML file, scalars as the texts that stand in cells. Raises YAMLError, ValueError and
    RecursionError.
    """
    return _Strict(raw.decode("utf-8-sig")).get_single_data()  # SafeConstructor's: no tag makes an object


def schema_of(said: Any, name: str, unfilled: bool = False) -> TableSchema:
    """The schema in plain values, of a file ``name``. Raises as `read_schema`."""
    if not isinstance(said, dict):
        raise OptionError(OPTION, name, "must be a mapping with target and columns")
    try:
        schema = TableSchema.model_validate(said)
    except ValidationError as error:
        first = first_option_error(error, model=TableSchema)
        words = first.allowed.removeprefix("Value error, ")
        # A range is a pair or "?": pydantic names which of the two it tried.
        place = ".".join(
            part for part in first.option.split(".") if part.strip("]") and not part.startswith(ALTERNATIVES)
        )
        typed = first.value != "" and error.errors()[0]["type"] != "value_error"
        shown = f"{place}={first.value}"[:200] if typed else place
        raise OptionError(OPTION, name, f"{shown}: {words}") from None
    if schema.unfilled and not unfilled:
        words = f"has '?' for {', '.join(schema.unfilled[:8])}: fill in what is publicly known of these columns"
        raise OptionError(OPTION, name, words)
    return schema


#: Names whose scalars are numbers or truth values of YAML; all others are texts as they are written.
TYPED = {
    name
    for model in (Column, Target, Answered, TableSchema)
    for name, field in model.model_fields.items()
    if {int, float, Literal[True]} & {field.annotation, *get_args(field.annotation)}
}


def _typed(text: str) -> Any:
    """A number of base 10, a truth value, or what else YAML has; numbers of other bases stay texts."""
    number = parsed_number(text, ".")
    if number is not None:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else number
    said = yaml.safe_load(text)
    return text if type(said) is int or (isinstance(said, float) and ":" in text) else said


class _Strict(yaml.SafeLoader):
    """Every name is a text that stands once, and nothing stands for something else (no anchors). Scalars are texts as
    they stand in cells: 010 is no number of base 8, 12:30 none of base 60, yes no truth value (`TYPED` are the others).
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        first: [pair for pair in pairs if pair[0] == NULL]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "anchors are not allowed", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        said = super().construct_scalar(node)
        return unicodedata.normalize("NFC", said) if isinstance(said, str) else said

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = tidy(key.value) if isinstance(key, yaml.ScalarNode) else None
            if name is None or name in found:
                said = "a name must be a text" if name is None else f"{name} stands twice"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            found[name] = self.construct_object(value, deep=True)
            if name in TYPED and isinstance(value, yaml.ScalarNode) and value.style is None:
                found[name] = _typed(value.value)
        return found


# --- ranges that private answers gave ---------------------------------------------------------------------


def filled(path: str | Path, summary: Mapping[str, Any], source: str) -> str:
    """YAML text of a schema whose columns have what a run with strategy=ask answered: of each column that quantiles
    were asked of a range, from the least end of their intervals to the largest: nobody is cut off whom the noise or a
    bin hides; of each column whose mean was asked what a missing value counts as. summary: the run's; source: its name.

    Columns of the schema's own that say "?" and were not asked of stay so. Raises `OptionError` for a run without such
    an answer, and for intervals that are too wide to be of use.
    """
    schema = read_schema(path, unfilled=True)
    filled = schema.model_dump(mode="json", exclude_none=True)
    asked, means = set(), dict[str, float]()
    for answer in summary.get("answers") or ():
        kind, name, *_ = [*str(answer["question"]).split(":"), ""]
        if kind == "mean" and (column := schema.columns.get(name)) and column.range and schema.indicated(column):
            means[name] = float(f"{answer['values'][0]:.4g}")
        if kind != "quantiles" or name not in schema.columns or not schema.columns[name].range:
            continue
        asked.add(name)
        low, high = min(answer["low"]), max(answer["high"])
        between = max(answer["low"]) - min(answer["high"])  # the intervals of the outermost
        if not between > (high - low) / MOST_WIDTH:
            words = f"{name}: its quantiles lie between {low:.4g} and {high:.4g}, and their intervals fill half of that"
            ways = "ask with less noise, more rounds or shares nearer to 0.5"
            raise OptionError("ask", source, f"{words} or more; {ways}")
        filled["columns"][name]["range"] = [*_outward(low, high, schema.columns[name].step)]
    for name, mean in means.items():
        low, high = bounds if (bounds := filled["columns"][name]["range"]) != OPEN else (mean, mean)
        filled["columns"][name]["fill"] = min(max(mean, low), high)
    if not asked | means.keys():
        words = "has no answer quantiles:COLUMN:0.01:0.99 or mean:COLUMN of a column of numbers of this schema"
        raise OptionError("ask", source, words)
    privacy = summary["privacy"]
    if privacy["verified_epsilon"] is None:
        raise OptionError("ask", source, "promises nothing (its epsilon is infinite); ask with noise")
    parts = {name: privacy[name] for name in ("delta", "unit", "adjacency", "observer")}
    answered = {"columns": sorted(asked | means.keys()), "epsilon": float(privacy["verified_epsilon"]), **parts}
    # What the asked ranges themselves came from was spent too; what this schema says of it already counts once.
    known, earlier = filled.pop("answered", []), list[Any]()
    unseen = list(known)
    for spent in privacy.get("spent_before", ()):
        if spent in unseen:
            unseen.remove(spent)
        else:
            earlier.append(spent)
    # Without what says nothing: the width of a text that is none, and empty lists.
    for column in filled["columns"].values():
        if "text" not in column:
            del column["dims"]
    filled["target"] = {key: value for key, value in filled["target"].items() if value not in ([], None)}
    filled["answered"] = [*known, *earlier, answered]
    text = yaml.safe_dump(filled, sort_keys=False, allow_unicode=True, default_flow_style=None)
    return FILLED.format(columns=", ".join(answered["columns"]), source=source) + text


def _outward(low: float, high: float, step: float | None) -> tuple[float, float]:
    """A range with ends of four significant digits of its width, or multiples of the step, that holds this one."""
    unit = step or 10.0 ** (math.floor(math.log10(high - low)) - 3)
    ends = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    return float(f"{ends[0] * unit:.12g}"), float(f"{ends[1] * unit:.12g}")
