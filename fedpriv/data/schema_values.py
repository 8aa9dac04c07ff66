"""Ranges and lists of values in a schema: how YAML's values are read, and which are refused."""

from __future__ import annotations

import datetime
import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator


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


def check_range(bounds: tuple[float, float] | str | None) -> None:
    """Raises ValueError where a range is empty or too wide."""
    if isinstance(bounds, tuple) and not bounds[0] < bounds[1]:
        raise ValueError(f"the range [{bounds[0]:g}, {bounds[1]:g}] is empty; allowed: [low, high] with low < high")
    if isinstance(bounds, tuple) and not math.isfinite(bounds[1] - bounds[0]):
        raise ValueError("the range is too wide for numbers of 64 bits")


def check_texts(values: tuple[str, ...] | str | None, least: int) -> None:
    """Raises ValueError where values are fewer than `least`, stand twice or have blanks around them."""
    if not isinstance(values, tuple):
        return
    if len(values) < least:
        raise ValueError(f"{len(values)} values; at least {least} are needed")
    if (blank := next((value for value in values if value != value.strip()), None)) is not None:
        raise ValueError(f"the value {blank!r} has blanks around it; cells are read without them")
    twice = sorted({value for value in values if values.count(value) > 1}) if len(values) < 5000 else []
    if twice or len(set(values)) < len(values):
        raise ValueError(f"values stand twice: {', '.join(twice[:5])}")
