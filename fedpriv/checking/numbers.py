"""What a target returns, as named numbers."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.checking.subject import Numbers, Played

#: Deeper structures are one text; records beyond these are not read.
DEEPEST, MOST = 6, 10_000


def hash_number(value: object) -> float:
    """A text or any other object as one number in [0, 1): equal for equal ones."""
    return float(int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:6], "big")) / 2**48


def played(name: str, value: Any, objects: bool = True) -> Played:
    """All numbers of a value under names that begin with ``name``; ``form.NAME`` is its structure as a number.

    A mapping gives the numbers of its values under their keys, a sequence under places, a model, an optimiser or an
    accountant its state, a data frame its values, any other object its attributes (not without ``objects``). None is no
    number. Texts are hashed; what has none of these is known by its class alone.
    """
    found, form = _Found(), list[Any]()
    found.exact, found.objects = {}, objects
    _collect(name, value, found, form, 0)
    found[f"form.{name}"] = np.array([hash_number(form)])
    return Played(dict(found), found.exact)


class _Found(dict[str, Numbers]):
    """Numbers by name, and whole numbers as they are."""

    exact: dict[str, NDArray[np.int64]]
    objects: bool


def _collect(name: str, value: Any, found: _Found, form: list[Any], depth: int) -> None:
    if value is None or len(found) > MOST:
        form.append("none")
        return
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        value = (value.to_dense() if value.is_sparse else value).float().numpy() if _half(value) else value.numpy()
    elif callable(getattr(type(value), "state_dict", None)):
        value = dict(value.state_dict())
    elif hasattr(type(value), "to_numpy") and hasattr(type(value), "iloc"):
        value = value.to_numpy()
    if isinstance(value, bool | int | float | complex | np.generic | np.ndarray):
        array = np.asarray(value)
        if array.dtype.kind == "c":
            array = array.view(array.real.dtype) if array.ndim else np.array([array.real, array.imag])
        if array.dtype.kind in "biuf":
            form.append((array.dtype.kind, array.shape))
            found[name] = array.astype(np.float64).ravel()
            if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
                found.exact[name] = array.astype(np.int64).ravel()  # unsigned ones modulo 2^64
            return
        value = array.tolist()
    if isinstance(value, list | tuple | set | frozenset) and depth < DEEPEST:
        if value and all(isinstance(part, bool | int | float | np.generic) for part in value):
            _collect(name, np.array([float(part) for part in value]), found, form, depth + 1)
            return
        form.append(("sequence", len(value)))
        value = dict(enumerate(value))
    elif isinstance(value, Mapping):
        form.append(("mapping", [str(key) for key in value]))
    elif not isinstance(value, str | bytes) and (found.objects or is_dataclass(value)) and depth < DEEPEST:
        value = _attributes(value) or type(value).__name__
        form.append("record")
    if isinstance(value, Mapping) and depth < DEEPEST:
        for key, part in value.items():
            _collect(f"{name}.{key}", part, found, form, depth + 1)
    elif found.objects or isinstance(value, str | bytes):
        form.append("text")
        found[f"{name}.text"] = np.array([hash_number(value)])


def _half(value: Any) -> bool:
    return bool(value.is_sparse) or str(value.dtype) in ("torch.bfloat16", "torch.float16")


def _attributes(value: Any) -> dict[str, Any]:
    """Of an object, those in slots included; none of a class, a module or a function."""
    if isinstance(value, type | ModuleType) or inspect.isroutine(value):
        return {}
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    found = {name: getattr(value, name) for name in slots if name[:2] != "__" and hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
