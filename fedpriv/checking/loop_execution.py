"""How a target is executed as a training loop: a function is called, model and optimiser are trained for a pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from fedpriv.checking.generators import seeded
from fedpriv.checking.loop_data import altered_rows
from fedpriv.checking.loop_inputs import FromErrors, LoopFailed, inputs_of
from fedpriv.checking.loop_memory import LoopMemory
from fedpriv.checking.loop_record import LoopRecord
from fedpriv.checking.loop_recorder import Limits, Recorder, recording
from fedpriv.checking.loop_replay import Change
from fedpriv.checking.loop_workers import Group
from fedpriv.checking.subject import Question

#: Seconds of the first execution.
FIRST_SECONDS = 8.0
#: Steps of an execution as one worker of several; a worker's number and that of workers, as a loop may take them.
WORKER_STEPS, RANKS = 6, (0, 1)
#: Batches of the pass in which a pair of model and optimiser is trained.
MOST_BATCHES = 40


@dataclass
class Executions:
    """A target that trains. call: with arguments, returns what the target returns."""

    call: Callable[..., Any]
    memory: LoopMemory
    arguments: tuple[Any, ...] = ()
    optimisers: list[Any] = field(default_factory=list)
    first: LoopRecord = field(default_factory=LoopRecord)
    ghost: bool = False
    group: Group = field(default_factory=Group)

    def execute(self, recorder: Recorder, change: Change | None, seed: int | None) -> LoopRecord:
        """One execution of a fresh instance. Raises what the target raises."""
        self.memory.restore()
        arguments = self.arguments
        if change is not None and change.sign and arguments and arguments is not RANKS:
            arguments = _altered(arguments, change)
        with seeded(seed), self.group.standing(), recording(recorder) as record:
            record.returned = self.call(*arguments)
        self.memory.restore()
        return record

    def as_worker(self, rank: int, workers: int, seed: int) -> LoopRecord:
        """A short execution as one worker of a group."""
        arguments = (rank, workers) if self.arguments is RANKS else self.arguments
        group = Group(rank, workers)
        group.asked = True
        twin = replace(self, group=group, arguments=arguments)
        return twin.execute(Recorder(Limits(steps=WORKER_STEPS, seconds=FIRST_SECONDS)), None, seed)

    def record_first(self, seed: int) -> None:
        recorder = Recorder(Limits(seconds=FIRST_SECONDS))
        self.first = self.execute(recorder, None, seed)
        self.optimisers = [watched.optimiser for watched in recorder.optimisers]
        self.ghost = any(watched.clipping is not None for watched in recorder.optimisers)


def _altered(arguments: tuple[Any, ...], change: Change) -> tuple[Any, ...]:
    if len(arguments) > 1:
        return tuple(altered_rows(arguments, change.place, change.sign))
    return (altered_rows(arguments[0], change.place, change.sign),)


def executions_of(target: Any, question: Question) -> Executions | None:
    """The target's executions, the first of them recorded. None where nothing of it trains.

    Raises LoopFailed in the target's words.
    """
    if not callable(target) or _is_optimiser(target):
        return _of_parts(target, LoopMemory(target))
    needed = _needed(target)
    if needed > 2:
        raise LoopFailed(
            f"the function needs {needed} arguments: a loop is called without any, with data, or with features and "
            "labels"
        )
    memory = LoopMemory(target)
    errors: list[Exception] = []
    given, group = FromErrors(getattr(question, "data", None)), Group()
    for arguments in _arguments(needed, given, group):
        loop = Executions(target, memory, arguments, group=group)
        try:
            loop.record_first(question.seed)
        except Exception as error:
            if group.learn(error):
                given.again.append(arguments)
            errors.append(error)
            given.learn(error)
            continue
        if not loop.first.steps:
            return _of_setup(loop, question) if not loop.first.untraced else None
        return loop
    raise LoopFailed(_words(errors, needed))


def _arguments(needed: int, given: FromErrors, group: Group) -> Iterator[tuple[Any, ...]]:
    """Arguments to try: data, and those again that only missed a group; last a worker's number and that of workers."""
    for arguments in inputs_of(needed, given):
        yield arguments
        while given.again:
            yield given.again.pop()
    if needed == 2:
        yield RANKS
        while given.again:
            yield given.again.pop()


def _needed(target: Any) -> int:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters
    )


def _words(errors: list[Exception], needed: int) -> str:
    if not errors:
        return "the function takes none of the data that a check has"
    error = errors[0]
    text = " ".join(str(error).split())[:300]
    more = "" if not needed else "; give data that the loop takes"
    return f"the loop ended with {type(error).__name__}: {text}{more}"


# --- pairs of model and optimiser ----------------------------------------------------------------------------------


def _is_optimiser(value: Any) -> bool:
    from opacus.optimizers import DPOptimizer

    return DPOptimizer in type(value).__mro__


def _parts(value: Any) -> dict[str, Any]:
    """model, optimiser, loader, criterion among what is held, by their classes."""
    import torch
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from torch.utils.data import DataLoader

    held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
    found: dict[str, Any] = {}
    for part in held:
        if _is_optimiser(part):
            found["optimiser"] = part
        elif isinstance(part, DataLoader):
            found["loader"] = part
        elif isinstance(part, DPLossFastGradientClipping):
            found["criterion"] = part
        elif isinstance(part, torch.nn.modules.loss._Loss):
            found.setdefault("criterion", part)
        elif isinstance(part, torch.nn.Module):
            found["model"] = part
    return found


def _of_parts(value: Any, memory: LoopMemory) -> Executions | None:
    parts = _parts(value)
    if "optimiser" not in parts:
        return None
    loop = Executions(lambda: _one_pass(parts), memory, optimisers=[parts["optimiser"]])
    if "model" in parts and "loader" in parts:
        try:
            loop.record_first(0)
        except Exception as error:
            raise LoopFailed(_words([error], 0)) from error
    return loop


def _of_setup(loop: Executions, question: Question) -> Executions | None:
    """A function that returns model, optimiser and loader without training."""
    parts = _parts(loop.first.returned)
    if not {"optimiser", "model", "loader"} <= set(parts):
        return None
    call = loop.call
    trained = Executions(lambda *data: _one_pass(_parts(call(*data))), loop.memory, loop.arguments)
    try:
        trained.record_first(question.seed)
    except Exception as error:
        raise LoopFailed(_words([error], 0)) from error
    return trained


def _one_pass(parts: dict[str, Any]) -> Any:
    """Trains for one pass of the loader, as any loop does."""
    import torch

    model, optimiser, loader = parts["model"], parts["optimiser"], parts["loader"]
    criterion = parts.get("criterion")
    model.train()
    for number, batch in enumerate(loader):
        if number >= MOST_BATCHES:
            break
        features, labels = list(_two(batch))
        optimiser.zero_grad()
        outputs = model(features)
        if criterion is None:
            criterion = torch.nn.MSELoss() if labels.is_floating_point() else torch.nn.CrossEntropyLoss()
        criterion(outputs, labels).backward()
        optimiser.step()
    return model


def _two(batch: Any) -> Iterator[Any]:
    parts = list(batch.values()) if isinstance(batch, dict) else list(batch)
    if len(parts) < 2:
        raise LoopFailed("a batch has no features and labels: give a function that trains")
    yield from parts[:2]
