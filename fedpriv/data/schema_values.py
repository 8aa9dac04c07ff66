"""Cells and schema values: one canonical text for each, however a file or a YAML scalar spells it.

    1, 1.0, +1, 1e0            1        a number by its value; a leading zero makes a code (01), compared as written
    True, TRUE                 true     a truth value (`value_places`: yes and no, 1 and 0 where the schema says so)
    2024-01-31 00:00:00        2024-01-31    a date by its instant; without a zone it is UTC
    e + combining accent       é        Unicode's composed form (NFC), without blanks around it

Canonical texts are compared; what is shown and predicted is the schema's own spelling.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
import unicodedata
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

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
    """(low, high) as numbers; `OPEN` and what is no pair go on to the check of types."""
    return tuple(_number(bound) for bound in value) if isinstance(value, list | tuple) else value


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


def check_range(bounds: tuple[float, float] | str | None) -> None:
    """Raises ValueError where a range is empty or too wide."""
    if isinstance(bounds, tuple) and not bounds[0] < bounds[1]:
        raise ValueError(f"the range [{bounds[0]:g}, {bounds[1]:g}] is empty; allowed: [low, high] with low < high")
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
