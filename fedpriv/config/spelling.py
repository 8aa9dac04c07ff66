"""How a word of the command line was written, and how it should have been."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from fedpriv.common.errors import OptionError
from fedpriv.common.subcommands import SUBCOMMANDS


def as_typed(error: OptionError, given: Sequence[Override]) -> OptionError:
    """The error with the value as it was typed: 1e3, which is read as 1000.0."""
    for override in given:
        typed = (override.input_line or "").partition("=")[2]
        if override.key_or_group == error.option and isinstance(error.value, float) and typed != str(error.value):
            whole = error.allowed == "must be a whole number" and error.value.is_integer()
            hint = f", without a point or an exponent: {int(error.value)}" if whole and abs(error.value) < 1e15 else ""
            return OptionError(error.option, typed, f"{error.allowed}{hint}")
    return error


def how_to_write(line: str) -> str:
    """What to write in place of a word that is not of the form option=value."""
    option, equals, value = line.partition("=")
    if value[:1] in ("{", "[") and value[-1:] not in ("}", "]"):
        return 'not of the form option=value: quote it for the shell, as in "option={name: value}"'
    if not equals and option in SUBCOMMANDS:
        return f"not of the form option=value; a command comes first: fedpriv {option} ..."
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    quoted = f"{option}='{escaped}'"
    try:
        if not (equals and value and OverridesParser.create().parse_override(quoted).key_or_group):
            raise ValueError
    except (HydraException, ValueError):
        return "not of the form option=value"
    doubled = re.sub(r'([\\"$`])', r"\\\1", quoted)
    return f'the value needs quotes of its own: "{doubled}"'
