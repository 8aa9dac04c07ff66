"""What a training loop keeps between two executions, put back before each: models, optimisers, accountants."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from fedpriv.checking.fresh_state import Memory


class LoopMemory:
    """Of a function: plain data of its module (`Memory`), and what training changes among its globals, its closure and
    the object that it is a method of. Of any other object: what is in it.
    """

    def __init__(self, target: Any) -> None:
        self._back: list[Callable[[], None]] = []
        self._seen: set[int] = set()
        self._plain = Memory(target) if callable(target) and not isinstance(target, type) else None
        for value in _reachable(target):
            self._remember(value, 0)

    def restore(self) -> None:
        if self._plain is not None:
            self._plain.restore()
        for back in self._back:
            back()

    def _remember(self, value: Any, depth: int) -> None:
        import torch
        from opacus import PrivacyEngine
        from opacus.accountants.accountant import IAccountant

        if id(value) in self._seen or depth > 3:
            return
        self._seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            self._model(value)
        elif isinstance(value, torch.optim.Optimizer):
            self._optimiser(value)
        elif isinstance(value, IAccountant):
            history = copy.deepcopy(value.history)
            self._back.append(lambda: setattr(value, "history", copy.deepcopy(history)))
        elif isinstance(value, PrivacyEngine):
            data_set = value.dataset
            self._back.append(lambda: setattr(value, "dataset", data_set))
            self._remember(value.accountant, depth + 1)
        elif isinstance(value, torch.Generator):
            state = value.get_state()
            self._back.append(lambda: _set_state(value, state))
        elif isinstance(value, list | tuple):
            for part in value[:64]:
                self._remember(part, depth + 1)
        elif isinstance(value, dict):
            for part in list(value.values())[:64]:
                self._remember(part, depth + 1)

    def _model(self, model: Any) -> None:
        state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        training = model.training

        def back() -> None:
            model.load_state_dict(state)
            model.train(training)
            for parameter in model.parameters():
                parameter.grad = None
                for name in ("grad_sample", "summed_grad"):
                    if hasattr(parameter, name):
                        setattr(parameter, name, None)

        self._back.append(back)

    def _optimiser(self, optimiser: Any) -> None:
        state = copy.deepcopy(optimiser.state_dict())
        own = {
            name: getattr(optimiser, name)
            for name in ("noise_multiplier", "max_grad_norm", "expected_batch_size", "_adjusted_noise_multiplier")
            if hasattr(optimiser, name)
        }
        generator = getattr(optimiser, "generator", None)
        if generator is not None:
            self._remember(generator, 0)

        def back() -> None:
            optimiser.load_state_dict(copy.deepcopy(state))
            for name, value in own.items():
                setattr(optimiser, name, value)
            if hasattr(optimiser, "_step_skip_queue"):
                optimiser._step_skip_queue.clear()
                optimiser._is_last_step_skipped = False

        self._back.append(back)


def _set_state(generator: Any, state: Any) -> None:
    generator.set_state(state)


def _reachable(target: Any) -> Iterator[Any]:
    function = getattr(target, "__func__", target)
    own = getattr(function, "__globals__", {})
    # functions of the same module are called by it, so all that the module holds counts
    yield from (value for name, value in list(own.items()) if not name.startswith("__"))
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue
    holder = getattr(target, "__self__", None)
    if holder is not None and hasattr(holder, "__dict__"):
        yield from list(vars(holder).values())
    if not callable(target):
        yield target
