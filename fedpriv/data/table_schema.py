"""The schema of a table: which column means what, in a public YAML file that is the same at all sites.

    target: {column: diagnosis, task: classification, classes: [benign, malignant]}
    unit: patient_id             # whom to protect: all rows of one; without it, one row
    columns:
      radius: {range: [0, 34]}   # clipped to the range, then scaled to [-1, 1]
      sex: {values: [f, m]}      # one input for each value, and one for all other values
      visited: {range: [2020-01-01, 2026-12-31]}
      note: {text: hashed, dims: 256}
      ward: {ignore: true}
    missing: indicator           # a missing value is 0, and an input of its own says so; or: refuse

Every number in the file is public knowledge (a unit's possible range, the literature, a private query), never read off
the data: the model's inputs are scaled by it, so a range taken from the data would be a release in no ledger.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedpriv.common.errors import OptionError
from fedpriv.config.explain import first_option_error
from fedpriv.config.options import Options

#: What a person has still to fill in.
OPEN = "?"
#: A table has at most so many columns and inputs.
MOST_COLUMNS, MOST_INPUTS = 10_000, 1 << 20
BOOL = "tag:yaml.org,2002:bool"
#: A schema file is no longer than this, in bytes.
MOST_BYTES = 4 << 20
OPTION = "dataset.schema_file"
#: How pydantic begins the names of the types that a range or a list of texts may have.
ALTERNATIVES = ("tuple[", "float]", "literal[")


def _number(value: Any) -> Any:
    """Of a bound: a date is its day's number, counted from 1970-01-01; 1e5 is a number, for YAML 1.1 a text."""
    if isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            return value
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).timestamp() / 86400 if value.tzinfo is None else value.timestamp() / 86400
    if isinstance(value, datetime.date):
        return float((value - datetime.date(1970, 1, 1)).days)
    return value


def _bounds(value: Any) -> Any:
    """(low, high) as numbers; `OPEN` and what is no pair go on to the check of types."""
    return tuple(_number(bound) for bound in value) if isinstance(value, list | tuple) else value


def _text(value: Any) -> Any:
    """A value or class as the text that stands in a cell: 1, true and 2020-01-01 are texts too."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | datetime.date) else value


def _texts(values: Any) -> Any:
    return tuple(_text(value) for value in values) if isinstance(values, list | tuple) else values


Range = Annotated[tuple[float, float] | Literal["?"], BeforeValidator(_bounds)]
Texts = Annotated[tuple[str, ...] | Literal["?"], BeforeValidator(_texts)]


def _check_range(bounds: tuple[float, float] | str | None) -> None:
    if isinstance(bounds, tuple) and not bounds[0] < bounds[1]:
        raise ValueError(f"the range [{bounds[0]:g}, {bounds[1]:g}] is empty; allowed: [low, high] with low < high")
    if isinstance(bounds, tuple) and not math.isfinite(bounds[1] - bounds[0]):
        raise ValueError("the range is too wide for numbers of 64 bits")


def _check_texts(values: tuple[str, ...] | str | None, least: int) -> None:
    if not isinstance(values, tuple):
        return
    if len(values) < least:
        raise ValueError(f"{len(values)} values; at least {least} are needed")
    if (blank := next((value for value in values if value != value.strip()), None)) is not None:
        raise ValueError(f"the value {blank!r} has blanks around it; cells are read without them")
    twice = sorted({value for value in values if values.count(value) > 1}) if len(values) < 5000 else []
    if twice or len(set(values)) < len(values):
        raise ValueError(f"values stand twice: {', '.join(twice[:5])}")


class Column(Options):
    """What one column of the table gives a model: exactly one of ``range``, ``values``, ``text``, ``ignore``."""

    range: Range | None = Field(default=None, description="numbers or dates: [low, high], public; scaled to [-1, 1]")
    values: Texts | None = Field(default=None, description="categories: one input each, and one for all others")
    text: Literal["hashed"] | None = Field(default=None, description="free text: hashed words and letter groups")
    dims: int = Field(default=256, ge=8, le=MOST_INPUTS, description="text: number of inputs")
    ignore: Literal[True] | None = Field(default=None, description="not read by the model")
    missing: Literal["indicator", "refuse"] | None = Field(default=None, description="as the table's, for this column")

    @model_validator(mode="after")
    def _one_kind(self) -> Column:
        kinds = [name for name in ("range", "values", "text", "ignore") if getattr(self, name) is not None]
        if len(kinds) != 1:
            given = " and ".join(kinds) or "none of them"
            raise ValueError(f"has {given}; allowed: exactly one of range, values, text, ignore")
        _check_range(self.range)
        _check_texts(self.values, 1)
        return self

    @property
    def kind(self) -> Literal["range", "values", "text", "ignore"]:
        return next(name for name in ("range", "values", "text", "ignore") if getattr(self, name) is not None)  # type: ignore[return-value]

    @property
    def open(self) -> bool:
        """Whether a person has still to fill in what is public of it."""
        return OPEN in (self.range, self.values)


class Target(Options):
    """What a model is to predict. classification: one of ``classes``; multilabel: any of the 0/1 columns ``columns``;
    regression: a number in ``range``, to which it is clipped.
    """

    task: Literal["classification", "multilabel", "regression"] = Field(description="kind of prediction")
    column: str | None = Field(default=None, description="classification, regression: the target's column")
    columns: tuple[str, ...] = Field(default=(), description="multilabel: columns of 0 and 1, one a label")
    classes: Texts | None = Field(default=None, description="classification: the classes, in the order of the outputs")
    range: Range | None = Field(default=None, description="regression: [low, high] of the target, public")

    @model_validator(mode="before")
    @classmethod
    def _columns_are_a_list(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("columns"), list):
            return given | {"columns": tuple(given["columns"])}
        return given

    @model_validator(mode="after")
    def _fits_its_task(self) -> Target:
        needs = {
            "classification": {"column", "classes"},
            "multilabel": {"columns"},
            "regression": {"column", "range"},
        }[self.task]
        given = {name for name in ("column", "columns", "classes", "range") if getattr(self, name)}
        if given != needs:
            raise ValueError(f"task={self.task} has {', '.join(sorted(given))}; allowed: {', '.join(sorted(needs))}")
        _check_range(self.range)
        _check_texts(self.classes, 2)
        _check_texts(self.columns or None, 1)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The table's columns that hold it."""
        return self.columns if self.column is None else (self.column,)

    @property
    def open(self) -> bool:
        return OPEN in (self.range, self.classes)


class TableSchema(Options):
    """A whole schema. Its inputs are those of its columns, in the file's order."""

    target: Target
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

    @model_validator(mode="after")
    def _columns_fit(self) -> TableSchema:
        if len(self.columns) > MOST_COLUMNS:
            raise ValueError(f"{len(self.columns)} columns; at most {MOST_COLUMNS} are allowed")
        for name in (*self.target.names, self.unit):
            if name is not None and name in self.columns and self.columns[name].ignore is None:
                raise ValueError(f"the column {name} is the target or unit, so it cannot be an input as well")
        if self.word is not None and self.unit is None:
            raise ValueError(f"word: {self.word} is what a person is called, and no unit names the persons' column")
        if self.unit in self.target.names:
            raise ValueError(f"the column {self.unit} is both target and unit")
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
        return (*(name for name, _ in self.inputs), *self.target.names, *unit)

    @property
    def numbers(self) -> frozenset[str]:
        """Names of the columns whose cells are numbers or dates."""
        target = self.target.names if self.target.task == "regression" else ()
        return frozenset([*target, *(name for name, column in self.inputs if column.kind == "range")])

    def indicated(self, column: Column) -> bool:
        """Whether a missing value has an input of its own; otherwise it is refused (a text: empty)."""
        return (column.missing or self.missing) == "indicator" and column.kind in ("range", "values")

    def width(self, column: Column) -> int:
        """Number of inputs of a column."""
        own = {"range": 1, "text": column.dims, "values": len(column.values or ()) + 1, "ignore": 0}[column.kind]
        return own + self.indicated(column)

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
                    names += [f"{name}#{bucket}" for bucket in range(column.dims)]
            if self.indicated(column):
                names.append(f"{name} missing")
        return names

    @property
    def unfilled(self) -> list[str]:
        """Names of the columns that still hold `OPEN`."""
        target = [*self.target.names] if self.target.open else []
        return target + [name for name, column in self.columns.items() if column.open]

    @property
    def digest(self) -> str:
        """SHA-256 of what the schema says, in hex: the same for two files that differ in comments or spelling only."""
        said = json.dumps(
            self.model_dump(mode="json", exclude_none=True, exclude={"word"}), separators=(",", ":"), ensure_ascii=False
        )
        return hashlib.sha256(said.encode()).hexdigest()


def read_schema(path: str | Path, unfilled: bool = False) -> TableSchema:
    """The schema of a YAML file. unfilled: whether it may still hold "?". Raises `OptionError`, dataset.schema_file."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise OptionError(OPTION, path, f"cannot be read ({error.strerror})") from None
    if len(raw) > MOST_BYTES:
        raise OptionError(OPTION, path, f"{len(raw)} bytes; a schema has at most {MOST_BYTES}")
    return _parsed(raw, str(path), unfilled)


@lru_cache(maxsize=8)  # a plan asks for the unit of every kind of client
def _parsed(raw: bytes, path: str, unfilled: bool) -> TableSchema:
    try:
        loader = _Strict(raw.decode("utf-8-sig"))
        said = loader.get_single_data()  # SafeConstructor's: plain values, and no tag that makes an object
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(OPTION, path, f"is not YAML ({' '.join(str(error).split())[:300]})") from None
    return schema_of(said, path, unfilled)


def schema_of(said: Any, name: str, unfilled: bool = False) -> TableSchema:
    """The schema in plain values, of a file ``name``. Raises as `read_schema`."""
    if not isinstance(said, dict):
        raise OptionError(OPTION, name, "must be a mapping with target and columns")
    try:
        schema = TableSchema.model_validate(said)
    except ValidationError as error:
        first = first_option_error(error)
        words = first.allowed.removeprefix("Value error, ")
        # A range is a pair or "?": pydantic names which of the two it tried.
        place = ".".join(
            part for part in first.option.split(".") if part.strip("]") and not part.startswith(ALTERNATIVES)
        )
        shown = f"{place}={first.value}"[:200] if error.errors()[0]["type"] != "value_error" else place
        raise OptionError(OPTION, name, f"{shown}: {words}") from None
    if schema.unfilled and not unfilled:
        words = f"has '?' for {', '.join(schema.unfilled[:8])}: fill in what is publicly known of these columns"
        raise OptionError(OPTION, name, words)
    return schema


class _Strict(yaml.SafeLoader):
    """Every name is a text that stands once, and nothing stands for something else (no anchors). yes, no, on and off
    are texts, as they stand in cells: truth values are true and false alone.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        first: [pair for pair in pairs if pair[0] != BOOL or first in "tf"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "anchors are not allowed", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in found:
                said = f"{key.value} stands twice" if isinstance(key, yaml.ScalarNode) else "a name must be a text"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            found[key.value] = self.construct_object(value, deep=True)
        return found
