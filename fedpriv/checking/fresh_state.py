"""A function's own memory between calls: its module's plain data, its closure, its defaults. Put back before a play."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

#: Deeper structures are no plain data.
DEEPEST = 5
#: Bytes of arrays that are copied for each play, at most.
MOST_BYTES = 2**24


def is_plain(value: Any, depth: int = 0) -> bool:
    """Numbers, texts, arrays, and containers of these: what can be copied without meaning anything else."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        return True
    if isinstance(value, np.ndarray) or _is_tensor(value):
        return bool(value.nbytes <= MOST_BYTES) and not (isinstance(value, np.ndarray) and value.dtype.hasobject)
    if depth >= DEEPEST:
        return False
    if isinstance(value, dict):
        return all(is_plain(part, depth + 1) for part in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return all(is_plain(part, depth + 1) for part in value)
    return False


def _refill(cell: Any, kept: Any) -> None:
    cell.cell_contents = copy.deepcopy(kept)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


class Memory:
    """The plain data that a target can reach and change; generators and other objects are left as they are.

    Objects made by the target's own module have their plain attributes put back too.
    """

    def __init__(self, target: Any) -> None:
        self._back: list[Callable[[], None]] = []
        self._seen: set[int] = set()
        function = getattr(target, "__func__", target)
        own = getattr(function, "__globals__", None)
        module = getattr(function, "__module__", None)
        if own is not None:
            for name in list(own):
                if not name.startswith("__"):
                    self._remember(own, name, own[name], module)
        for cell in getattr(function, "__closure__", None) or ():
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            if is_plain(value):
                kept = copy.deepcopy(value)
                self._back.append(partial(_refill, cell, kept))
            else:
                self._object(value, module)
        for defaults in (getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)):
            for value in defaults.values() if isinstance(defaults, dict) else defaults or ():
                if isinstance(value, list | dict | set | np.ndarray) and is_plain(value):
                    self._in_place(value)
        if getattr(function, "__dict__", None) and callable(function) and not isinstance(function, type):
            self._attributes(function)
        if getattr(target, "__self__", None) is not None:
            self._object(target.__self__, module)

    def restore(self) -> None:
        for back in self._back:
            back()

    def _remember(self, own: dict[str, Any], name: str, value: Any, module: str | None) -> None:
        if isinstance(value, list | dict | set | np.ndarray) and is_plain(value):
            self._in_place(value)
        if is_plain(value):
            kept = value if isinstance(value, list | dict | set | np.ndarray) else copy.deepcopy(value)
            self._back.append(lambda: own.__setitem__(name, kept))
        else:
            self._object(value, module)

    def _in_place(self, value: Any) -> None:
        kept = copy.deepcopy(value)

        def back() -> None:
            if isinstance(value, np.ndarray):
                if value.flags.writeable:
                    value[...] = kept
            elif isinstance(value, list):
                value[:] = copy.deepcopy(kept)
            else:
                value.clear()
                value.update(copy.deepcopy(kept))

        self._back.append(back)

    def _object(self, value: Any, module: str | None) -> None:
        if id(value) in self._seen or isinstance(value, type):
            return
        if callable(getattr(type(value), "load_state_dict", None)):
            self._seen.add(id(value))
            self._trained(value)
        if getattr(type(value), "__module__", "") != module:
            return
        self._seen.add(id(value))
        self._attributes(value)

    def _trained(self, value: Any) -> None:
        """A model, an optimiser or an accountant, by the state that it gives and takes itself."""
        kept = copy.deepcopy(value.state_dict())
        self._back.append(lambda: value.load_state_dict(copy.deepcopy(kept)))

    def _attributes(self, value: Any) -> None:
        try:
            attributes = vars(value)
        except TypeError:
            return
        kept = {name: copy.deepcopy(part) for name, part in attributes.items() if is_plain(part)}
        for part in attributes.values():
            if not isinstance(part, type) and callable(getattr(type(part), "load_state_dict", None)):
                self._trained(part)
        names = set(attributes)

        def back() -> None:
            for name in set(attributes) - names:
                del attributes[name]
            attributes.update(copy.deepcopy(kept))

        self._back.append(back)
