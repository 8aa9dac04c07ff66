"""One example of a training loop's data changed or removed, without touching the loop's code."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

#: How far beyond the largest feature the extreme example's features are.
FAR = 10.0


def opposite_label(label: int, others: int) -> int:
    """Another class: the largest of the others seen, or one of two."""
    return others if others != label else (0 if label else 1)


def extreme(item: Any, sign: int, largest_label: int = 1) -> Any:
    """An example like ``item``, far from the others: sign=1 and sign=-1 are each other's opposites.

    Float arrays are scaled and reflected, labels and tokens (integers) exchanged at sign=-1. The structure, shapes and
    types stay.
    """
    import torch

    if isinstance(item, Mapping):
        return {key: extreme(value, sign, largest_label) for key, value in item.items()}
    if isinstance(item, tuple | list):
        values = [extreme(value, sign, largest_label) for value in item]
        return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)
    if isinstance(item, torch.Tensor):
        if item.is_floating_point():
            return _far(item.numpy(force=True), sign, item)
        if item.dtype == torch.bool:
            return item if sign > 0 else ~item
        if item.ndim == 0:
            return item if sign > 0 else torch.full_like(item, opposite_label(int(item), largest_label))
        return item if sign > 0 else item.flip(0)
    if isinstance(item, np.ndarray):
        if item.dtype.kind == "f":
            return _far(item, sign, item)
        return item if sign > 0 else np.flip(item).copy()
    if isinstance(item, bool | np.bool_):
        return item if sign > 0 else type(item)(not item)
    if isinstance(item, int | np.integer):
        return item if sign > 0 else type(item)(opposite_label(int(item), largest_label))
    if isinstance(item, float | np.floating):
        return type(item)(sign * FAR * max(abs(float(item)), 1.0))
    return item


def _far(values: np.ndarray, sign: int, like: Any) -> Any:
    import torch

    far = values.astype(np.float64)
    scale = max(float(np.abs(far[np.isfinite(far)]).max(initial=0.0)), 0.1)
    far = sign * FAR * np.where(far >= 0, np.maximum(far, scale / 2), np.minimum(far, -scale / 2))
    if isinstance(like, torch.Tensor):
        return torch.as_tensor(far, dtype=like.dtype, device=like.device)
    return far.astype(values.dtype)


def largest_label(data_set: Any, most: int = 64) -> int:
    """The largest integer label among the first examples; 1 if there is none."""
    found = 1
    for place in range(min(most, len(data_set))):
        item = data_set[place]
        label: Any = item[-1] if isinstance(item, tuple | list) and item else None
        if isinstance(label, int | np.integer) or (hasattr(label, "ndim") and label.ndim == 0 and _is_whole(label)):
            found = max(found, int(label))
    return found


def _is_whole(value: Any) -> bool:
    kind = str(getattr(value, "dtype", ""))
    return "int" in kind


class Altered:
    """Data sets in which one example is another, each altered once; `restore` puts back what was changed in place."""

    def __init__(self, place: int, sign: int) -> None:
        self.place, self.sign = place, sign
        self._known: dict[int, tuple[Any, Any]] = {}
        self._undo: list[tuple[Any, int, Any]] = []

    def of(self, data_set: Any) -> Any:
        """The altered data set: tensors and lists are changed in place (the loop may read them beside the loader),
        any other data set answers otherwise for this one example, under a class of its own that is a subclass.
        """
        known = self._known.get(id(data_set))
        if known is None:
            known = (data_set, self._altered(data_set, self.place))
            self._known[id(data_set)] = known
            self._known[id(known[1])] = (known[1], known[1])
        return known[1]

    def restore(self) -> None:
        for holder, place, value in reversed(self._undo):
            holder[place] = value
        self._undo.clear()

    def _altered(self, data_set: Any, place: int) -> Any:
        from torch.utils.data import Subset, TensorDataset

        if place >= len(data_set):
            return data_set
        item = extreme(data_set[place], self.sign, largest_label(data_set))
        if type(data_set) is TensorDataset:
            for tensor, value in zip(data_set.tensors, item, strict=True):
                self._undo.append((tensor, place, tensor[place].clone()))
                tensor[place] = value
            return data_set
        if type(data_set) is Subset:
            base = self._altered(data_set.dataset, int(data_set.indices[place]))
            if base is data_set.dataset:
                return data_set
            twin = copy.copy(data_set)
            twin.dataset = base
            return twin
        if isinstance(data_set, list):
            self._undo.append((data_set, place, data_set[place]))
            data_set[place] = item
            return data_set
        return _answering(data_set, place, item)


def _answering(data_set: Any, place: int, item: Any) -> Any:
    """A twin of a map-style data set whose ``place``-th example is ``item``."""
    kind = type(data_set)

    def one(self: Any, key: Any) -> Any:
        found = kind.__getitem__(self, key)
        return item if isinstance(key, int | np.integer) and int(key) % len(self) == place else found

    members: dict[str, Any] = {"__getitem__": one}
    if hasattr(kind, "__getitems__"):
        members["__getitems__"] = lambda self, keys: [self[key] for key in keys]
    twin = copy.copy(data_set)
    twin.__class__ = type(kind.__name__, (kind,), members)
    return twin


def altered_rows(data: Any, place: int, sign: int) -> Any:
    """A copy of arrays (or a tuple, list or dict of arrays of equal length, or a data set or loader of such) in which
    row ``place`` is the extreme example. Loaders and data sets are copied deeply first.
    """
    from torch.utils.data import DataLoader

    if isinstance(data, DataLoader):
        twin: Any = copy.copy(data)
        object.__setattr__(twin, "dataset", Altered(place, sign).of(copy.deepcopy(data.dataset)))
        return twin
    if hasattr(data, "shape"):
        twin = copy.deepcopy(data)
        twin[place] = extreme(twin[place], sign)
        return twin
    if isinstance(data, tuple | list) and data and all(hasattr(part, "shape") for part in data):
        whole = [part[place] for part in data]
        highest = max((int(part.max()) for part in data if part.ndim == 1 and _is_whole(part)), default=1)
        changed = extreme(whole, sign, highest)
        parts = [copy.deepcopy(part) for part in data]
        for part, value in zip(parts, changed, strict=True):
            part[place] = value
        return type(data)(parts)
    return Altered(place, sign).of(copy.deepcopy(data))
