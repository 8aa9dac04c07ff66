"""The adapters: each turns one kind of target into a `Subject`. The first that recognises the target has it."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from fedpriv.checking import data_function, release_function
from fedpriv.checking.subject import Question, Subject

#: Files with ``recognises(target, question) -> Subject | None``, the most special first. A row for each adapter. Each
#: is asked only if the package in its second place is imported by then (a target of that kind imports it itself). Last
#: come functions of an update, and of data.
ADAPTERS: tuple[tuple[str, str | None], ...] = (
    ("fedpriv.checking.opacus_loops", None),
    ("fedpriv.checking.flower_apps", "flwr"),
    ("fedpriv.checking.flower_strategies", "flwr"),
    ("fedpriv.checking.flower_mods", "flwr"),
)


def subject_of(target: Any, question: Question) -> Subject | None:
    """The subject of a target, or None where no adapter knows its kind."""
    import sys

    for name, package in ADAPTERS:
        if package is not None and package not in sys.modules:
            continue
        found: Subject | None = importlib.import_module(name).recognises(target, question)
        if found is not None:
            return found
    if loop_like(target) and (of_data := data_function.recognises(target, question)) is not None:
        return of_data
    try:
        return release_function.recognises(target, question)
    except release_function.NotTaken as error:
        if isinstance(error.__cause__, OSError) or (of_data := data_function.recognises(target, question)) is None:
            raise
        return of_data


def loop_like(target: Any) -> bool:
    """Whether a function needs no argument and takes one: what it works on may be left out, as a loop's data are."""
    if inspect.isclass(target) or not callable(target):
        return False
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return False
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return bool(places) and all(one.default is not one.empty for one in places)
