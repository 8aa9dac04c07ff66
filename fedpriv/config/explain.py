"""pydantic's errors in the words of a user: the option, its value, what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fedpriv.common.errors import OptionError


def first_option_error(
    error: ValidationError, prefix: tuple[str, ...] = (), model: type[BaseModel] | None = None
) -> OptionError:
    """model: what was validated, if the names that it has instead of an unknown one are to be said."""
    errors = error.errors(include_url=False)
    first = errors[0]
    if model is not None and first["type"] == "missing":  # a name that is spelled wrong is why
        first = next((one for one in errors if one["type"] == "extra_forbidden"), first)
    if first["loc"][:2] == ("engine", "faults") and first["type"] in ("missing", "extra_forbidden", "tuple_type"):
        return _faults_error(first)
    path = [str(part) for part in first["loc"] if not _is_union_tag(part, first["loc"])]
    value = _shown(first)
    while first["type"] == "extra_forbidden" and isinstance(value, dict) and len(value) == 1:
        (part, value), *_ = value.items()  # +new.option=1, as it was written
        path.append(str(part))
    option = ".".join([*prefix, *path]) or "configuration"
    words = _allowed(first)
    if first["type"] == "extra_forbidden" and model is not None:
        names = _names(model, first["loc"][:-1])
        close = difflib.get_close_matches(path[-1].lower(), names, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        words += f"; allowed: {', '.join(names)}{hint}" if names else ""
    return OptionError(option, value, words)


def _names(model: type[BaseModel], place: Iterable[int | str]) -> list[str]:
    """The names that a mapping may have at a place of the model's content."""
    kinds: list[Any] = [model]
    for part in place:
        fields = [kind.model_fields for kind in kinds if part in getattr(kind, "model_fields", ())]
        if fields:
            kinds = [inner for one in fields for inner in _kinds(one[str(part)].annotation)]
    return list(dict.fromkeys(name for kind in kinds for name in kind.model_fields))


def _kinds(annotation: Any) -> list[Any]:
    """The models within an annotation: of an option, a list's entries, a mapping's values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for inner in get_args(annotation) for kind in _kinds(inner)]


def _faults_error(error: Any) -> OptionError:
    """What a planned fault consists of, where a part is missing, or nothing of it is a fault."""
    place = [str(part) for part in error["loc"][2:]]
    if len(place) < 2:
        words = "must be a list of {round, client, exchange, kind}, or {rate, kinds}"
        return OptionError("engine.faults", error["input"], words)
    listed, part = place[0] == "list", place[-1]
    parts = "round, client, kind, and if need be exchange" if listed else "rate, and if need be kinds"
    missing = error["type"] == "missing"
    words = "the option has no value" if missing else "there is no such option here"
    option = ".".join(["engine.faults", *([place[1]] if listed else []), part])
    return OptionError(option, "" if missing else error["input"], f"{words}; a fault has {parts}")


def _is_union_tag(part: Any, path: Iterable[Any]) -> bool:
    """pydantic puts the partition's name between ``partition`` and the key, and the form of faults after them."""
    path = list(path)
    if part in ("list", "plan"):
        return path[:2] == ["engine", "faults"]
    return len(path) > 1 and path[0] == "partition" and path.index(part) == 1 and part == path[1] and len(path) > 2


def _shown(error: Any) -> Any:
    """The value as the user wrote it."""
    value = error["input"]
    if error["type"] == "missing":
        return ""
    if error["type"] == "union_tag_invalid":
        return value.get("name")
    return "null" if value is None else value


def _allowed(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return "there is no such option here"
    if kind == "missing":
        return "the option has no value"
    if kind == "literal_error":
        return f"allowed: {context['expected'].replace(chr(39), '')}{_nearest(error)}"
    if kind == "union_tag_invalid":
        return f"allowed: {context['expected_tags'].replace(chr(39), '')}"
    for name, words in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
        if name in context:
            return f"must be {words} {context[name]:g}" if context[name] < 1e6 else f"must be {words} {context[name]}"
    if kind == "string_pattern_mismatch" and context["pattern"] in PATTERNS:
        return PATTERNS[context["pattern"]]
    return _IN_WORDS.get(kind) or str(error["msg"]).replace("Input should be", "must be")


#: What people call a unit of privacy.
MEANT = {
    "patient": "person",
    "user": "person",
    "subject": "person",
    "example": "row",
    "record": "row",
    "site": "client",
}


def _nearest(error: Any) -> str:
    given, allowed = str(error["input"]).lower(), re.findall(r"'([^']+)'", error["ctx"]["expected"])
    close = [MEANT[given]] if MEANT.get(given) in allowed else difflib.get_close_matches(given, allowed, 1)
    return f" (did you mean {close[0]}?)" if close else ""


#: What a text must look like, in words.
PATTERNS = {
    "^[0-9a-f]{64}$": "must be a SHA-256: 64 digits of 0-9 and a-f",
    "[0-9a-f]{64}": "must be a SHA-256: 64 digits of 0-9 and a-f",
    "^/": "must be an absolute path",
}

#: pydantic's kinds of error in the words of a user; the others speak for themselves.
_IN_WORDS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "dict_type": "must be a mapping, {option: value, ...}",
    "model_type": "must be a mapping, {option: value, ...}",
    "model_attributes_type": "must be a mapping, {option: value, ...}",
}
