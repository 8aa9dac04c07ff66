"""The lines of a target's source where a number gets its value, and where noise is drawn, seen in one traced call."""

from __future__ import annotations

import os
import random
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any, Callable

import numpy as np

#: (file, line)
Line = tuple[str, int]
#: Code of others: of a target that lies there, its own package is not.
_OTHERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_HERE = os.path.dirname(os.path.abspath(__file__))


class Lines:
    """Context that traces what is called inside. own: the file of the target.

    values: by name, numbers [k] whose line is looked for. numbers: for each the first line after which a variable, or
    what a function returns, holds exactly them. draws: lines after which a generator of the process, or one that a
    variable holds, is at another state, in order.
    """

    def __init__(self, own: str, values: Mapping[str, Any]) -> None:
        self.numbers: dict[str, Line] = {}
        self.draws: list[Line] = []
        self._own = os.path.abspath(own)
        self._wanted = {name: np.asarray(value, np.float64).ravel() for name, value in values.items()}
        self._last: dict[int, int] = {}  # line of each frame that has just run
        self._seen: dict[tuple[int, str], int] = {}
        self._states: dict[int, Any] = {}
        self._before: Callable[..., Any] | None = None

    def __enter__(self) -> Lines:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: Any, event: str, argument: Any) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if file != self._own and (file.startswith((*_OTHERS, _HERE)) or not os.path.isabs(file)):
            return None
        self._last[id(frame)] = frame.f_lineno
        self._changed(frame)
        return self._line

    def _line(self, frame: Any, event: str, argument: Any) -> Callable[..., Any]:
        place = frame.f_code.co_filename, self._last.get(id(frame), frame.f_lineno)
        if event in ("line", "return"):
            if self._changed(frame):
                self.draws += [place] if place not in self.draws else []
            for name, value in list(frame.f_locals.items()):
                if self._seen.get((id(frame), name)) != id(value):
                    self._seen[id(frame), name] = id(value)
                    self._held(value, place)
            if event == "return":
                parts = (
                    argument.values()
                    if isinstance(argument, dict)
                    else argument
                    if isinstance(argument, (list, tuple))
                    else ()
                )
                for value in (argument, *parts):
                    self._held(value, (place[0], frame.f_lineno))
            self._last[id(frame)] = frame.f_lineno
        return self._line

    def _held(self, value: Any, place: Line) -> None:
        if hasattr(value, "detach") and hasattr(value, "numpy"):
            value = value.detach()
            value = value.float().cpu().numpy() if str(value.dtype) == "torch.bfloat16" else value.cpu().numpy()
        if not isinstance(value, (int, float, np.number, np.ndarray)) or isinstance(value, bool):
            return
        try:
            numbers = np.asarray(value, np.float64).ravel()
        except (TypeError, ValueError):
            return
        for name, wanted in self._wanted.items():
            if name not in self.numbers and numbers.shape == wanted.shape and np.array_equal(numbers, wanted):
                self.numbers[name] = place

    def _changed(self, frame: Any) -> bool:
        """Whether a generator is at another state than at the last look; new ones are remembered."""
        changed = False
        for key, state in self._now(frame):
            changed |= key in self._states and self._states[key] != state
            self._states[key] = state
        return changed

    def _now(self, frame: Any) -> list[tuple[int, Any]]:
        torch = sys.modules.get("torch")
        found: list[tuple[int, Any]] = [
            (0, hash(random.getstate())),
            (1, str(np.random.get_state(legacy=False))),  # noqa: NPY002
        ]
        if torch is not None:
            found.append((2, torch.get_rng_state().numpy().tobytes()))
        held = list(frame.f_locals.values())
        for one in held[:]:
            if type(one).__module__ == frame.f_globals.get("__name__"):
                held += list(getattr(one, "__dict__", {}).values())
        for one in held:
            if isinstance(one, np.random.Generator):
                found.append((id(one), repr(one.bit_generator.state)))
            elif isinstance(one, np.random.RandomState):
                found.append((id(one), repr(one.get_state(legacy=False))))
            elif isinstance(one, random.Random):
                found.append((id(one), hash(one.getstate())))
            elif torch is not None and isinstance(one, torch.Generator):
                found.append((id(one), one.get_state().numpy().tobytes()))
        return found
