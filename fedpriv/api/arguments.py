"""The public calls refuse arguments of other types by name, with the library's own error."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError, validate_call

from fedpriv.common.errors import OptionError

F = TypeVar("F", bound=Callable[..., Any])


def checked(function: F) -> F:
    """A function whose arguments are held against their annotations when it is called. Raises `OptionError`, which
    names the first argument that is of another type, its value and what is allowed.
    """
    annotations = dict(function.__annotations__)
    returns = function.__annotations__.pop("return", None)  # its class may be imported for type checkers alone
    validated = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)
    function.__annotations__["return"] = returns
    signature = inspect.signature(function)

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            arguments = signature.bind(*given, **named).arguments
        except TypeError:
            return function(*given, **named)  # too many, too few, unknown: as Python words it
        try:
            return validated(*given, **named)
        except ValidationError as error:
            if error.title != function.__name__:  # raised within the call
                raise
            place = error.errors()[0]["loc"][0]
            name = list(signature.parameters)[place] if isinstance(place, int) else str(place)
            value, allowed = arguments.get(name), str(annotations.get(name, ""))
            if isinstance(value, str) and allowed.startswith("Sequence[str]"):
                raise OptionError(name, value, f'must be a list: ["{value}"]') from None
            raise OptionError(name, repr(value), f"must be {_words(allowed)}") from None

    return call  # type: ignore[return-value]


def _words(annotation: str) -> str:
    """ "Run | Sequence[str]" as "a Run or a list, each item a str"."""
    said = [_kind(kind) for kind in re.split(r" \| (?![^\[]*\])", annotation)]
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} or {said[-1]}"


def _kind(kind: str) -> str:
    if inner := re.fullmatch(r"Sequence\[(.*)\]", kind):
        return f"a list, each item {_words(inner[1])}"
    return kind if kind == "None" else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
