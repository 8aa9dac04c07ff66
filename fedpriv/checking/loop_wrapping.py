"""The methods of torch and Opacus that are wrapped while a loop is recorded."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """``owner.name`` is ``make(owner.name)`` inside; put back after, also if the loop had put something else there."""
    own = name in vars(owner)
    real = vars(owner)[name] if own else getattr(owner, name)
    setattr(owner, name, functools.wraps(real)(make(real)))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, real)
        else:
            delattr(owner, name)


@contextmanager
def wrapped(recorder: Any) -> Iterator[None]:
    """All that `fedpriv.checking.loop_recorder.Recorder` listens to."""
    import torch
    from opacus import PrivacyEngine, privacy_engine
    from opacus.optimizers import DPOptimizer
    from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    from torch.utils.data import dataloader

    with ExitStack() as stack:
        _iterators(stack, recorder, dataloader._BaseDataLoaderIter)
        for sampler in (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler):
            stack.enter_context(_counting(recorder, sampler))
        stack.enter_context(replaced(torch.autograd, "backward", lambda real: _before(real, recorder.backward)))
        stack.enter_context(replaced(DPOptimizer, "__init__", lambda real: _watching(real, recorder)))
        hook = register_optimizer_step_pre_hook(lambda optimiser, args, kwargs: recorder.stepping(optimiser))
        stack.callback(hook.remove)
        for name in ("make_private", "make_private_with_epsilon"):
            stack.enter_context(replaced(PrivacyEngine, name, lambda real: _engine(real, recorder)))
        for kind in _accountants():
            if "step" in vars(kind):
                stack.enter_context(replaced(kind, "step", lambda real: _told(real, recorder)))
            if "get_epsilon" in vars(kind):
                stack.enter_context(replaced(kind, "get_epsilon", lambda real: _asked(real, recorder)))
        stack.enter_context(replaced(privacy_engine, "get_noise_multiplier", lambda real: _once(real)))
        yield


#: Searches for a noise multiplier, which take seconds each, by what they are for: a loop is executed several times.
_MULTIPLIERS: dict[str, Any] = {}
#: Answers of the library's accountants, by history and question.
_EPSILONS: dict[str, Any] = {}


def _once(real: Callable[..., Any]) -> Callable[..., Any]:
    def get_noise_multiplier(**call: Any) -> Any:
        key = repr(sorted(call.items()))
        if key not in _MULTIPLIERS:
            _MULTIPLIERS[key] = real(**call)
        return _MULTIPLIERS[key]

    return get_noise_multiplier


def _iterators(stack: ExitStack, recorder: Any, kind: Any) -> None:
    def begin(real: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            real(self, loader, *args, **kwargs)
            recorder.begin_pass(self, loader)

        return init

    def index(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self: recorder.next_index(self, real(self))

    def give(real: Callable[..., Any]) -> Callable[..., Any]:
        def following(self: Any) -> Any:
            if recorder.over and self._seen_given:
                raise StopIteration
            found = real(self)
            recorder.give(self)
            return found

        return following

    for name, make in (("__init__", begin), ("_next_index", index), ("__next__", give)):
        stack.enter_context(replaced(kind, name, make))


@contextmanager
def _counting(recorder: Any, kind: Any) -> Iterator[None]:
    """Counts the draws of Opacus' samplers, so that pieces of one Poisson batch are known as one draw."""
    real = kind.__iter__

    def counted(self: Any) -> Iterator[Any]:
        recorder._samplers.append(self)  # kept: its id must stay its own
        for drawn in real(self):
            recorder._draws[id(self)] = recorder._draws.get(id(self), 0) + 1
            yield drawn

    kind.__iter__ = counted
    try:
        yield
    finally:
        kind.__iter__ = real


def _before(real: Callable[..., Any], call: Callable[[], None]) -> Callable[..., Any]:
    def told(*args: Any, **kwargs: Any) -> Any:
        call()
        return real(*args, **kwargs)

    return told


def _watching(real: Callable[..., Any], recorder: Any) -> Callable[..., Any]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        recorder.watch(self)

    return init


def _engine(real: Callable[..., Any], recorder: Any) -> Callable[..., Any]:
    parameters = inspect.signature(real).parameters

    def make(self: Any, **call: Any) -> Any:
        defaults = {name: one.default for name, one in parameters.items() if one.default is not inspect.Parameter.empty}
        batches = len(call["data_loader"])
        inner = "target_epsilon" not in call and recorder.inside
        recorder.inside += 1
        try:
            found = real(self, **call)
        finally:
            recorder.inside -= 1
        if not inner:
            optimiser = next((one for one in found if hasattr(one, "original_optimizer")), None)
            recorder.engine(self, {**defaults, **call}, batches, optimiser)
            model = found[0] if hasattr(found[0], "parameters") else call.get("module")
            if model is not None and not any(model is one for one in recorder.record.models):
                recorder.record.models.append(model)
        return found

    return make


def _accountants() -> list[Any]:
    from opacus.accountants.accountant import IAccountant

    found, waiting = [], [IAccountant]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        found.append(kind)
    return [kind for kind in found if kind is not IAccountant]


def _told(real: Callable[..., Any], recorder: Any) -> Callable[..., Any]:
    def step(self: Any, *, noise_multiplier: float, sample_rate: float) -> Any:
        recorder.accountant(self).told.append((float(noise_multiplier), float(sample_rate)))
        return real(self, noise_multiplier=noise_multiplier, sample_rate=sample_rate)

    return step


def _asked(real: Callable[..., Any], recorder: Any) -> Callable[..., Any]:
    def get_epsilon(self: Any, delta: float, *args: Any, **kwargs: Any) -> Any:
        if recorder.inside:  # the engine's search for a multiplier, or one accountant that asks another
            return real(self, delta, *args, **kwargs)
        recorder.inside += 1
        try:
            found = _answer(real, self, delta, args, kwargs)
        finally:
            recorder.inside -= 1
        steps = len(recorder.record.private_steps)
        recorder.accountant(self).answers.append((float(delta), float(found), steps))
        return found

    return get_epsilon


def _answer(real: Callable[..., Any], accountant: Any, delta: float, args: Any, kwargs: Any) -> Any:
    """What an accountant answers. Of the library's own the answer depends on class, history and question alone."""
    if not type(accountant).__module__.startswith("opacus."):
        return real(accountant, delta, *args, **kwargs)
    key = repr((type(accountant), accountant.history, delta, args, sorted(kwargs.items())))
    if key not in _EPSILONS:
        _EPSILONS[key] = real(accountant, delta, *args, **kwargs)
    return _EPSILONS[key]
