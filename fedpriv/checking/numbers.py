"""What a target returns, as named numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.checking.subject import Numbers, Played

#: Deeper structures are one text.
DEEPEST = 6


def hash_number(value: object) -> float:
    """A text or any other object as one number in [0, 1): equal for equal ones."""
    return float(int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:6], "big")) / 2**48


def played(name: str, value: Any) -> Played:
    """All numbers of a value under names that begin with ``name``; ``form.NAME`` is its structure as a number.

    A mapping gives the numbers of its values under their keys, a sequence under places. None is no number. Texts and
    objects of unknown classes are hashed.
    """
    found, form = _Found(), list[Any]()
    found.exact = {}
    _collect(name, value, found, form, 0)
    found[f"form.{name}"] = np.array([hash_number(form)])
    return Played(dict(found), found.exact)


class _Found(dict[str, Numbers]):
    """Numbers by name, and whole numbers as they are."""

    exact: dict[str, NDArray[np.int64]]


def _collect(name: str, value: Any, found: _Found, form: list[Any], depth: int) -> None:
    if value is None:
        form.append("none")
        return
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        value = (value.to_dense() if value.is_sparse else value).float().numpy() if _half(value) else value.numpy()
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
    if isinstance(value, Mapping) and depth < DEEPEST:
        form.append(("mapping", [str(key) for key in value]))
        for key, part in value.items():
            _collect(f"{name}.{key}", part, found, form, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset) and depth < DEEPEST:
        if value and all(isinstance(part, bool | int | float | np.generic) for part in value):
            _collect(name, np.array([float(part) for part in value]), found, form, depth + 1)
            return
        form.append(("sequence", len(value)))
        for place, part in enumerate(value):
            _collect(f"{name}.{place}", part, found, form, depth + 1)
    elif is_dataclass(value) and not isinstance(value, type) and depth < DEEPEST:
        form.append("record")
        for field in fields(value):
            _collect(f"{name}.{field.name}", getattr(value, field.name), found, form, depth + 1)
    else:
        form.append("text")
        shown = value if isinstance(value, str | bytes) else _state(value)
        found[f"{name}.text"] = np.array([hash_number(shown)])


def _half(value: Any) -> bool:
    return bool(value.is_sparse) or str(value.dtype) in ("torch.bfloat16", "torch.float16")


def _state(value: Any) -> Any:
    """Of an object what does not change with its address."""
    return vars(value) if hasattr(value, "__dict__") else type(value).__name__
