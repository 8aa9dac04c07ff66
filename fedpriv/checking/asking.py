"""What a check is asked: its options as texts, their ranges, and how they become a `Question`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedpriv.checking.child import Limits
from fedpriv.checking.subject import Claim, Question
from fedpriv.common.command_line import Reader, nearest, read_option
from fedpriv.common.errors import OptionError
from fedpriv.privacy.events import ADJACENCIES


def _dims(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _whole(least: int, most: int, words: str = "") -> Reader:
    return int, lambda value: least <= value <= most, f"a whole number from {least:,} to {most:,}{words}"


def _one_of(*names: str) -> Reader:
    return str, lambda value: value in names, f"one of {', '.join(names)}"


#: Option -> how its text is read, which values are allowed, and both in words.
READERS: dict[str, Reader] = {
    "epsilon": (float, lambda value: value >= 0, "a number of at least 0, or inf"),
    "delta": (float, lambda value: 0 <= value < 1, "a number of at least 0 and below 1"),
    "scope": _one_of("call", "run"),
    "calls": _whole(1, 10**9),
    "adjacency": _one_of(*ADJACENCIES),
    "unit": _one_of("client", "example"),
    "bound": (float, lambda value: 0 < value < math.inf, "a positive number"),
    "dims": (_dims, lambda value: all(1 <= one <= 10**6 for one in value), "lengths from 1 to 1,000,000 with commas"),
    "trials": _whole(400, 10**7),
    "confidence": (float, lambda value: 0.5 <= value < 1, "a number of at least 0.5 and below 1"),
    "seed": _whole(0, 2**31 - 1),
    "seconds": (float, lambda value: 5 <= value <= 86400, "seconds from 5 to 86,400"),
    "memory": (float, lambda value: 0.5 <= value <= 4096, "GiB from 0.5 to 4,096"),
    "fail_above": (float, lambda value: value >= 0, "a number of at least 0"),
    "unverified": _one_of("fail", "pass"),
}
#: Of what a caller passes to `fedpriv.check`; the other two are the command's.
OF_A_CALL = tuple(name for name in READERS if name not in ("fail_above", "unverified"))


def read_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the options given, None left out. Raises `OptionError`."""
    found = {}
    for name, value in given.items():
        if name not in READERS:
            words = f"no such option; allowed: {', '.join(READERS)}{nearest(name, READERS)}"
            raise OptionError(name, value, words)
        if value is not None:
            text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
            found[name] = read_option(name, text, READERS[name])
    return found


def question_and_limits(options: Mapping[str, Any]) -> tuple[Question, Limits]:
    """options: of `read_options`. Raises `OptionError` for options that need another."""
    if "epsilon" not in options and (alone := [name for name in ("scope", "adjacency", "unit") if name in options]):
        raise OptionError(alone[0], options[alone[0]], "says what a claim is about, and epsilon= is not given")
    if options.get("scope") == "run" and "calls" not in options:
        raise OptionError("scope", "run", "needs calls=N, the calls of a run")
    delta = options.get("delta", 1e-5)
    claim = None
    if "epsilon" in options:
        scope, adjacency, unit = options.get("scope", "call"), options.get("adjacency"), options.get("unit")
        claim = Claim(options["epsilon"], delta, scope, adjacency=adjacency, unit=unit)
    names = ("calls", "bound", "dims", "trials", "confidence", "seed")
    question = Question(claim=claim, delta=options.get("delta"), **{n: options[n] for n in names if n in options})
    limits = Limits(**{name: options[name] for name in ("seconds", "memory") if name in options})
    return question, limits
