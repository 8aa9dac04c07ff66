"""Functions of torch that no fixed list of operations holds as they are, for one example, in operations that it does.

- A packed sequence is as long as its example is: its number of steps is a value. Here all t places are computed, and
  the states of those behind the end are the states before them, in either direction (`nn.LSTM`, `nn.GRU`, `nn.RNN`).
- Attention in mixed precision is computed in float32.

Shapes: t places, i inputs, h numbers of a state, k layers times directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

CELLS: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm_cell,
    "gru": torch.gru_cell,
    "rnn_tanh": torch.rnn_tanh_cell,
    "rnn_relu": torch.rnn_relu_cell,
}


class TracedFunctions(TorchFunctionMode):
    """Within, these functions are replaced, of a batch of one example."""

    def __init__(self) -> None:
        super().__init__()
        self._packed: list[tuple[Tensor, Tensor]] = []  # ("batch sizes" that stand for a length, the length [])

    def _length(self, sizes: Any) -> Tensor | None:
        return next((length for known, length in self._packed if known is sizes), None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if func is functional.scaled_dot_product_attention and torch.is_autocast_enabled(args[0].device.type):
            with torch.autocast(args[0].device.type, enabled=False):
                return func(*map(_float32, args), **{key: _float32(value) for key, value in kwargs.items()})
        if name == "_pack_padded_sequence":
            sequence, lengths, batch_first = args
            steps = sequence[0] if batch_first else sequence[:, 0]
            self._packed.append((torch.ones(len(steps), dtype=torch.int64), lengths[0]))
            return steps, self._packed[-1][0]
        if func is torch.empty_like and args[0].dtype == torch.int64 and args[0].numel() == 1:
            return torch.zeros_like(args[0])  # the inverse of a permutation of one example, which is filled next
        if name == "__getitem__" and self._length(args[0]) is not None:
            return 1  # examples at a step
        if name == "_pad_packed_sequence" and (length := self._length(args[1])) is not None:
            steps, _, batch_first, padding, total = args
            there = (torch.arange(len(steps), device=steps.device) < length).view(-1, *[1] * (steps.ndim - 1))
            padded = torch.where(there, steps, torch.full_like(steps, padding))[:total]
            return padded.unsqueeze(0 if batch_first else 1), length.view(1)
        if name in CELLS and (length := self._length(args[1])) is not None:
            return _recurrent(name, args[0], length, *args[2:])
        return func(*args, **kwargs)


def _float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _recurrent(
    name: str,
    steps: Tensor,
    length: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    """What torch's function of this name gives: outputs [t, directions x h], last states [k, 1, h], and cells of lstm.

    steps: [t, i], of which the first `length` are the sequence; states: the first ones, in lstm with the cells.
    """
    lstm, directions, each = name == "lstm", 1 + bidirectional, 2 + 2 * bias
    if len(weights) != layers * directions * each:
        raise ValueError("a packed LSTM with projections (proj_size)")
    ends: list[tuple[Tensor, ...]] = []
    for layer in range(layers):
        if layer and dropout:
            steps = functional.dropout(steps, dropout, training)
        outputs: list[Tensor] = []
        for _ in range(directions):
            own = weights[each * len(ends) : each * (len(ends) + 1)]
            state = tuple(part[len(ends)] for part in (states if lstm else (states,)))
            found: dict[int, Tensor] = {}
            for place in range(len(steps))[:: -1 if len(outputs) else 1]:
                after = CELLS[name](steps[place : place + 1], state if lstm else state[0], *own)
                pairs = zip(after if lstm else (after,), state, strict=True)
                state = tuple(torch.where(length > place, new, old) for new, old in pairs)
                found[place] = state[0]
            outputs.append(torch.cat([found[place] for place in range(len(steps))]))
            ends.append(state)
        steps = torch.cat(outputs, 1)
    return steps, *(torch.stack(parts) for parts in zip(*ends, strict=True))
