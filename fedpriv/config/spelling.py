"""How a word of the command line was written, how it should have been, and what two words must not say at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from fedpriv.common.errors import OptionError
from fedpriv.config.methods import NOISE_OPTIONS

#: What users write for an option that has another name here.
MEANT = {
    "epsilon": "privacy.target_epsilon",
    "eps": "privacy.target_epsilon",
    "method": "strategy",
    "algorithm": "strategy",
    "data": "dataset",
    "noise": "strategy.client.noise_multiplier",
    "sigma": "strategy.client.noise_multiplier",
    "learning_rate": "local.lr",
    "clients": "num_clients",
    "users": "num_clients",
}


def meant(option: str, known: Sequence[str]) -> list[str]:
    """The options, three at most, that a wrong name may stand for: that users call so, that have its last part or have
    it in their last part, first in its own group, or that are spelled alike.
    """
    group, _, last = option.lower().rpartition(".")
    same = sorted((name for name in known if name.rpartition(".")[2] == last), key=len)
    called = [MEANT[last]] if MEANT.get(last) in (*known, "strategy", "dataset") else []
    alike = difflib.get_close_matches(option, known, 1)
    within = sorted((name for name in known if last in name.rpartition(".")[2].split("_")), key=len)
    here = [name for name in (*same, *within) if group and name.rpartition(".")[0] == group]
    return next((found[:3] for found in (called, here, same, alike, within) if found), [])


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
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    quoted = f"{option}='{escaped}'"
    try:
        if not (equals and value and OverridesParser.create().parse_override(quoted).key_or_group):
            raise ValueError
    except (HydraException, ValueError):
        return "not of the form option=value"
    doubled = re.sub(r'([\\"$`])', r"\\\1", quoted)
    return f'the value needs quotes of its own: "{doubled}"'


def refuse_noise_beside_target(target: float | None, given: Sequence[Override]) -> None:
    """Raises `OptionError` for noise that was asked for by name: it would be replaced by what the target asks for. What
    a YAML file says is a default, and is replaced.
    """
    if target is None:
        return
    for override in given:
        for option, part in named(override).items():
            half, _, name = option.rpartition(".")
            if half in ("strategy.client", "strategy.server") and name in NOISE_OPTIONS:
                words = f"privacy.target_epsilon={target:g} chooses it; allowed: one of the two"
                raise OptionError(option, "null" if part is None else part, words)


def named(override: Override) -> dict[str, Any]:
    """Each option that an override names, with its value: of a mapping those inside."""
    return dict(_leaves({override.key_or_group: None if override.is_delete() else override.value()}))


def _leaves(node: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything in a mapping."""
    for name, value in node.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in _leaves(value))
        else:
            yield str(name), value
