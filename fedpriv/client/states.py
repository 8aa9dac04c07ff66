"""A method's state as named tensors, and back: how a memory holds it."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


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
