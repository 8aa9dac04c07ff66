"""A method's state as named tensors, and back: how a memory holds it; and the states and releases of several clients as
rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.contract import Figure, Release


@dataclass(frozen=True)
class WithNorms:
    """State of a client that also remembers the norms of its own updates: the method's state, norms [..., n]."""

    method: Any
    norms: Tensor


_NORMS = "own_norms"  # where a memory holds them, beside the method's own state


def state_to_tensors(state: Any) -> dict[str, Tensor] | None:
    """A method's state (a frozen dataclass of tensors, floats and ints, or None) as named tensors."""
    if state is None:
        return None
    if isinstance(state, WithNorms):
        return {**(state_to_tensors(state.method) or {}), _NORMS: state.norms}
    if not is_dataclass(state):
        raise TypeError(f"a client's state is a dataclass, not {type(state).__name__}")
    tensors = {}
    for item in fields(state):
        value = getattr(state, item.name)
        if not isinstance(value, Tensor):
            value = torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)
        tensors[item.name] = value
    return tensors


def tensors_to_state(kind: type[Any] | None, tensors: dict[str, Tensor] | None) -> Any:
    """The inverse, for a method whose state is a ``kind`` (None: it has none): annotations ``int`` and ``float`` come
    back as numbers, everything else as tensors.
    """
    if tensors is not None and _NORMS in tensors:
        own = {name: tensor for name, tensor in tensors.items() if name != _NORMS}
        return WithNorms(tensors_to_state(kind, own or None), tensors[_NORMS])
    if tensors is None or kind is None:
        return None
    values: dict[str, Any] = {}
    for item in fields(kind):
        value = tensors[item.name]
        values[item.name] = value.item() if item.type in ("int", "float", int, float) else value
    return kind(**values)


# --- several clients as rows ---------------------------------------------------------------------------------


def form_of_state(kind: type[Any] | None, state: dict[str, Tensor] | None) -> tuple[Any, ...]:
    """What states must have in common to be stacked: names, shapes, and the values of fields that are numbers."""
    if state is None:
        return (None,)
    plain = _number_fields(kind)
    return tuple((name, float(value) if name in plain else tuple(value.shape)) for name, value in state.items())


def _number_fields(kind: type[Any] | None) -> set[str]:
    """Fields of the method's state that are numbers and not tensors."""
    if kind is None:
        return set()
    return {item.name for item in fields(kind) if item.type in ("int", "float", int, float)}


def stacked(kind: type[Any] | None, states: Sequence[dict[str, Tensor] | None]) -> dict[str, Tensor] | None:
    """States of one form as one, whose tensors have a leading dimension."""
    first, plain = states[0], _number_fields(kind)
    if first is None:
        return None
    rows = [state for state in states if state is not None]
    return {name: value if name in plain else torch.stack([row[name] for row in rows]) for name, value in first.items()}


@dataclass(frozen=True)
class Row:
    """One client's own release, and its state as a memory holds it."""

    release: Release
    state: dict[str, Tensor] | None


def row_of(release: Release) -> Row:
    """Of a client that was computed alone."""
    return Row(release, state_to_tensors(release.state))


def rows_of(release: Release, many: int, names: Sequence[str]) -> list[Row]:
    """Of each client of a computation; what has no leading dimension is everybody's."""
    figures = {name: _column(value, many) for name, value in release.figures.items()}
    beside = {name: release.statistics[name].expand(many) for name in names}
    dumped = state_to_tensors(release.state)
    found = []
    for row in range(many):
        own = Release(
            release.value[row],
            figures={name: column[row] for name, column in figures.items()},
            statistics={name: values[row] for name, values in beside.items()},
            local=None if release.local is None else release.local[row],
        )
        state = None if dumped is None else {k: v[row].clone() if v.ndim else v for k, v in dumped.items()}
        found.append(Row(own, state))
    return found


def _column(value: Figure, many: int) -> list[float]:
    if isinstance(value, Tensor):
        return value.double().expand(many).tolist()
    return [float(value)] * many


def numbers(figures: Mapping[str, Figure]) -> dict[str, float]:
    """The figures of one client."""
    return {name: float(value) for name, value in figures.items()}
