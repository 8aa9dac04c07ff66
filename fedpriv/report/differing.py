"""The options that tell compared runs apart: those that a sweep varied, or all that differ."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from fedpriv.report.reading import options_of_sweep

#: Shown for an option that a method does not have.
NOT_THERE = "–"
#: Significant digits of a number, and more where two numbers would look the same.
DIGITS = 4


def varied(runs: Sequence[Path]) -> list[str] | None:
    """Names of the options that the command of these runs' sweep gave; None where a run is of no sweep."""
    sweeps = [options_of_sweep(folder) for folder in dict.fromkeys(run.parent for run in runs)]
    if not sweeps or any(options is None for options in sweeps):
        return None
    names = (option.partition("=")[0].lstrip("+") for options in sweeps for option in options or ())
    return list(dict.fromkeys(names))


def telling(configs: Sequence[Mapping[str, Any]], asked: Sequence[str] | None) -> list[str]:
    """Names of the options to be shown for flat configurations, the method's first.

    asked: options that a sweep gave. Where those that differ tell all configurations apart, they are all: what follows
    from them (the noise of a target epsilon, a method's own options) need not be read. Else every option that differs.
    """
    differing = _differing(configs)
    if asked is not None:
        chosen = [name for name in differing if any(_gives(option, name) for option in asked)]
        if chosen and _apart(configs, chosen):
            return chosen
    return differing


def in_text(config: Mapping[str, Any], name: str) -> str:
    if name not in config:
        return NOT_THERE
    value = config[name]
    return value if isinstance(value, str) else json.dumps(value, default=str)


def rounded(texts: Sequence[str]) -> list[str]:
    """Numbers of a column with `DIGITS` digits, or as many more as keep different numbers different."""
    digits = DIGITS
    while digits < 17 and len({_short(text, digits) for text in texts}) < len(set(texts)):
        digits += 1
    return [_short(text, digits) for text in texts]


def _short(text: str, digits: int) -> str:
    try:
        value = float(text)
    except ValueError:
        return text
    return f"{value:.{digits}g}" if "." in text and abs(value) < 1e6 else text


def _gives(option: str, name: str) -> bool:
    """Whether an option of the command line sets this one; a half's option of a method has two spellings."""
    if name in (option, f"{option}.name"):
        return True
    return option.startswith("strategy.") and name.startswith("strategy.") and _last(option) == _last(name)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The options whose values differ. An option that only some methods have is shown where its values differ among
    those; its mere presence is shown only where nothing else distinguishes two configurations.
    """
    names = [name for name in dict.fromkeys(chain.from_iterable(configs)) if not _repeats_another(name, configs)]

    def seen(name: str) -> list[str]:
        return [json.dumps(config[name], default=str) for config in configs if name in config]

    differing = [name for name in names if len(set(seen(name))) > 1]
    if not _apart(configs, differing):
        differing = [name for name in names if len(set(seen(name))) > 1 or len(seen(name)) < len(configs)]
    return sorted(differing, key=lambda name: name != "strategy.name")


def _apart(configs: Sequence[Mapping[str, Any]], names: Collection[str]) -> bool:
    return len({tuple(in_text(config, name) for name in names) for config in configs}) == len(configs)


def _repeats_another(name: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a server option repeats the client's, or `privacy`'s, option of the same name."""
    half, _, option = name.rpartition(".")
    if half != "strategy.server":
        return False
    having = [config for config in configs if name in config]
    return any(
        all(twin in config and config[twin] == config[name] for config in having)
        for twin in (f"strategy.client.{option}", f"privacy.{option}")
    )
