"""Records a training loop from outside: the libraries' own methods are wrapped while it runs, and put back afterwards.

Three things are hooked: optimisers' steps (sum of clipped gradients, noise, what the inner optimiser gets), torch's
data loaders with Opacus' samplers (which examples a step has), and accountants (their steps, and what they answer).
"""

from __future__ import annotations

import functools
import gc
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedpriv.checking.generators import begin_torch
from fedpriv.checking.reading import Numbers, played

#: Coordinates kept of each vector, evenly spread.
KEPT = 20_000
#: Further steps after the limit, in which each pass of a loader ends after one batch; then the loop is ended.
FURTHER = 200
#: How far beyond the largest feature the extreme example's features are.
FAR = 10.0


@dataclass(frozen=True)
class Source:
    """One data loader as its sampler draws.

    poisson: every example by a coin of its own, of ``rate``. once: a pass takes an example at most once, in one of
    ``batches``. other: nothing is known of its coins. most: how often one example is in one batch at most; None: not
    known. data_set: its number, by first use.
    """

    kind: Literal["poisson", "once", "other"]
    words: str
    data_set: int
    rate: float = 0.0
    batches: int = 1
    most: int | None = 1


@dataclass(frozen=True)
class Lot:
    """The examples of one batch. draw: what it is a piece of (a large Poisson batch is given in pieces); run: number of
    the loader's pass; indices: None where they cannot be seen.
    """

    source: Source
    draw: tuple[int, int]
    run: int
    indices: tuple[int, ...] | None


@dataclass(frozen=True)
class Step:
    """One step of an optimiser.

    private: a DPOptimizer added noise of deviation ``std`` to the sum of gradients, in its own words; clip: the norm to
    which gradients are clipped, noise_clip: the one in ``std``. clean, moved: the sum before noise and what the noise
    changed, a sample of coordinates; applied: what the inner optimiser gets. lots: the batches in it. counted: the clip
    norm follows a noisy count (adaptive clipping).
    """

    private: bool
    lots: tuple[Lot, ...]
    applied: Numbers
    random_forward: bool = False
    std: float = 0.0
    clip: float = math.inf
    noise_clip: float = math.inf
    clean: Numbers | None = None
    moved: Numbers | None = None
    counted: bool = False


@dataclass
class LoopRecord:
    """One execution. accountants: those that were told of a step, with their histories at the end; answers: (delta,
    epsilon, noisy steps so far) of each time that one of them was asked. returned, model: numbers by name of what the
    loop returns and of the models under its optimisers. cut: why it did not end on its own; None: it did.
    """

    steps: list[Step] = field(default_factory=list)
    accountants: list[Any] = field(default_factory=list)
    histories: list[list[tuple[float, float, int]]] = field(default_factory=list)
    answers: list[tuple[float, float, int]] = field(default_factory=list)
    optimisers: list[Any] = field(default_factory=list)
    models: list[Any] = field(default_factory=list)
    returned: Mapping[str, Numbers] = field(default_factory=dict)
    model: Mapping[str, Numbers] = field(default_factory=dict)
    cut: str | None = None
    seconds: float = 0.0

    @property
    def noisy(self) -> list[Step]:
        return [step for step in self.steps if step.private]

    @property
    def accounted(self) -> int:
        """Steps in the accountants' histories at the end."""
        return sum(int(count) for history in self.histories for _, _, count in history)


@dataclass(frozen=True)
class Change:
    """Example ``place`` of the training data, an extreme one in its place. signs: 1 or -1, of its first tensor (what a
    model sees) and of the others (targets). Both at once are no change to a linear model: a mirror image with the other
    target has the same loss and gradient. present: in every batch, or in none.
    """

    place: int
    signs: tuple[int, int]
    present: bool


class Enough(BaseException):
    """Ends a loop that has shown enough. A BaseException: a loop that catches its own errors does not catch this."""


class Recorder:
    """steps, seconds: when a loop has shown enough. tape: noisy sums [steps][parameters], written, or if ``playing``
    taken over. change: of the data sets of these numbers (``training``). resync: seeds the generators anew after each
    step, so that executions on neighbouring data draw alike; redraw: (step, seed), after the backward pass of a step.
    """

    def __init__(
        self,
        steps: int = 1_000_000,
        seconds: float = 20.0,
        tape: list[list[Any]] | None = None,
        playing: bool = False,
        change: Change | None = None,
        training: frozenset[int] = frozenset(),
        resync: int | None = None,
        redraw: tuple[int, int] | None = None,
    ) -> None:
        self.record, self.steps, self.seconds = LoopRecord(), steps, seconds
        self.tape, self.playing, self.change, self.training, self.resync = tape, playing, change, training, resync
        self.redraw = redraw
        self.begun = time.process_time()
        self.draws: dict[int, int] = {}
        self._kept: list[Any] = []  # what ids are taken of
        self._pending: dict[int, dict[str, Any]] = {}
        self._data_sets: dict[int, int] = {}
        self._undo: list[tuple[Any, int, Any]] = []
        self._runs = self._after = 0
        self._used: list[Lot] = []
        self._last: Lot | None = None
        self._with = -1
        self._random: tuple[int | None, bool] = (None, False)

    @property
    def over(self) -> bool:
        if self.record.cut is None:
            if len(self.record.steps) >= self.steps:
                self.record.cut = f"ended after {len(self.record.steps):,} steps, which were asked for"
            elif time.process_time() - self.begun > self.seconds:
                self.record.cut = f"ended after {self.seconds:g} s and {len(self.record.steps):,} steps"
        return self.record.cut is not None

    # --- data ------------------------------------------------------------------------------------------------------

    def begin_pass(self, iterator: Any, loader: Any, *_: Any) -> None:
        self._kept.append(loader.dataset)
        number = self._data_sets.setdefault(id(loader.dataset), len(self._data_sets))
        if self.change is not None and number in self.training and not self._undo:
            self._alter(loader.dataset, self.change)
        self._runs += 1
        iterator._seen, iterator._drawn, iterator._given = (source_of(loader, number), self._runs, deque()), 0, 0

    def _alter(self, data_set: Any, change: Change) -> None:
        """Tensors are changed in place: a loop may read them beside the loader."""
        from torch.utils.data import Subset, TensorDataset

        place = change.place
        while type(data_set) is Subset:
            place, data_set = int(data_set.indices[place]), data_set.dataset
        for number, tensor in enumerate(data_set.tensors if type(data_set) is TensorDataset else ()):
            self._undo.append((tensor, place, tensor[place].clone()))
            tensor[place] = extreme(tensor[place], change.signs[min(number, 1)])

    def next_index(self, iterator: Any, index: Any) -> Any:
        """What is fetched in place of ``index``, which is noted."""
        source, run, queue = iterator._seen
        places = _places(index)
        base = base_sampler(iterator._index_sampler)
        draw = (id(base), self.draws[id(base)]) if id(base) in self.draws else (run, iterator._drawn)
        if places is not None and self.change is not None and source.data_set in self.training:
            others = [one for one in places if one != self.change.place]
            if self.change.present and self._with != len(self.record.steps):  # once in a step, however it is fed
                self._with, places = len(self.record.steps), [*others, self.change.place]
            elif others or source.kind == "poisson":
                places = others
            index = places if isinstance(index, list) or not np.isscalar(index) else index
        queue.append(Lot(source, draw, run, None if places is None else tuple(places)))
        iterator._drawn += 1
        return index

    def give(self, iterator: Any, batch: Any) -> Any:
        """A batch reaches the loop; of data that are no tensors, with the changed example in it."""
        queue = iterator._seen[2]
        self._last = queue.popleft() if queue else None
        iterator._given += 1
        change, lot = self.change, self._last
        if change and lot and lot.indices and lot.source.data_set in self.training and not self._undo:
            row = lot.indices.index(change.place) if change.place in lot.indices else None
            batch = batch if row is None else with_example(batch, row, change.signs)
        if self._random[0] is None:
            self._random = (_random_state(), self._random[1])
        return batch

    def backward(self, *_: Any, **__: Any) -> None:
        if self._last is not None:
            self._used.append(self._last)
        self._last = None
        if self._random[0] is not None:
            self._random = (None, self._random[1] or self._random[0] != _random_state())
        if self.redraw is not None and self.redraw[0] == len(self.record.steps):
            _seed_all(self.redraw[1])

    # --- optimisers --------------------------------------------------------------------------------------------------

    def watch(self, optimiser: Any) -> None:
        """Wraps one DPOptimizer's noise."""
        if any(optimiser is one for one in self.record.optimisers):
            return
        self.record.optimisers.append(optimiser)
        add_noise = optimiser.add_noise
        optimiser.add_noise = lambda: self._add_noise(optimiser, add_noise)

    def _add_noise(self, optimiser: Any, add_noise: Callable[[], Any]) -> Any:
        self._find_model(optimiser)
        clean = [p.summed_grad.detach().clone() for p in optimiser.params if p.summed_grad is not None]
        multiplier, clip = float(optimiser.noise_multiplier), float(optimiser.max_grad_norm)
        clipping = next((one for one in self.record.models if _clips_for(one, optimiser)), optimiser)
        pending: dict[str, Any] = {"std": multiplier * clip, "noise_clip": clip, "clip": float(clipping.max_grad_norm)}
        pending["counted"] = hasattr(optimiser, "unclipped_num_std")
        found = add_noise()
        noisy = [p.grad for p in optimiser.params if p.grad is not None]
        if len(clean) == len(noisy):
            moved = [(a.detach() - b.reshape(a.shape)).double() for a, b in zip(noisy, clean, strict=True)]
            pending |= {"clean": _sample(clean), "moved": _sample(moved)}
        if self.tape is not None and not self.playing:
            self.tape.append([grad.detach().clone() for grad in noisy])
        elif self.tape is not None:
            place = len(self.record.noisy)
            if place >= len(self.tape):
                raise Enough  # what follows could not be compared
            for grad, taped in zip(noisy, self.tape[place], strict=False):
                grad.data.copy_(taped)
        self._pending[id(optimiser)] = pending
        return found

    def _find_model(self, optimiser: Any) -> None:
        """Notes the model under an optimiser, once."""
        from opacus.grad_sample import AbstractGradSampleModule

        own = {id(p) for p in optimiser.params}
        if any(id(p) in own for model in self.record.models for p in model.parameters()):
            return
        found = living(AbstractGradSampleModule)
        self.record.models += [one for one in found if any(id(p) in own for p in one.parameters())]

    def stepping(self, optimiser: Any) -> None:
        """Before any optimiser's own step."""
        if any(optimiser is one for one in self.record.optimisers):
            return  # the wrapper; its inner optimiser follows
        grads = [p.grad.detach() for group in optimiser.param_groups for p in group["params"] if p.grad is not None]
        wrappers = [id(one) for one in self.record.optimisers if _inner_of(one) is optimiser]
        pending = next((self._pending.pop(one) for one in wrappers if one in self._pending), None)
        lots, self._used = tuple(self._used), []
        step = Step(pending is not None, lots, _sample(grads), self._random[1], **(pending or {}))
        self.record.steps.append(step)
        self._random = (None, False)
        if self.resync is not None:
            _seed_all(self.resync + 7919 * len(self.record.steps))
        if self.over:
            self._after += 1
            late = time.process_time() - self.begun > 1.5 * self.seconds + 2
            if self._after > FURTHER or late:
                raise Enough

    # --- accountants -------------------------------------------------------------------------------------------------

    def told(self, accountant: Any, **_: Any) -> None:
        if not any(accountant is one for one in self.record.accountants):
            self.record.accountants.append(accountant)

    def answered(self, accountant: Any, delta: float, epsilon: float) -> None:
        """Of an accountant that was told of steps; others are a search for a noise multiplier."""
        if any(accountant is one for one in self.record.accountants):
            self.record.answers.append((float(delta), float(epsilon), len(self.record.noisy)))

    def finish(self) -> None:
        self.record.histories = [list(one.history) for one in self.record.accountants]
        inner = {id(one): one for one in (getattr(wrapper, "_module", wrapper) for wrapper in self.record.models)}
        self.record.model = played("model", list(inner.values()), objects=False).numbers
        for optimiser in self.record.optimisers:
            optimiser.__dict__.pop("add_noise", None)
        for tensor, place, value in reversed(self._undo):
            tensor[place] = value
        self.record.seconds = time.process_time() - self.begun


# --- what the recorder asks of the libraries -------------------------------------------------------------------------


def living(kind: type) -> list[Any]:
    """Every object of a class that this process has. Types alone are looked at: a proxy's class may not be asked."""
    return [one for one in gc.get_objects() if kind in type(one).__mro__]


def _clips_for(model: Any, optimiser: Any) -> bool:
    """Whether a module clips in the backward pass (ghost clipping) for this optimiser."""
    from opacus.optimizers import DPOptimizerFastGradientClipping

    own = {id(p) for p in optimiser.params}
    ghost = isinstance(optimiser, DPOptimizerFastGradientClipping) and hasattr(model, "max_grad_norm")
    return ghost and any(id(p) in own for p in model.parameters())


def _inner_of(optimiser: Any) -> Any:
    """The optimiser at the bottom of wrappers."""
    for _ in range(8):
        optimiser = getattr(optimiser, "original_optimizer", optimiser)
    return optimiser


def base_sampler(sampler: Any) -> Any:
    """The sampler at the bottom: pieces of large batches come from one that splits another's."""
    from opacus.utils.batch_memory_manager import BatchSplittingSampler

    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    return sampler


def source_of(loader: Any, data_set: int) -> Source:
    """The law of a loader's batches. Only torch's and Opacus' own classes are known; a subclass that draws otherwise is
    not, whatever its name.
    """
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler
    from torch.utils.data import (
        BatchSampler,
        IterableDataset,
        RandomSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )

    def draws_as(sampler: Any, *kinds: type) -> bool:
        return any(isinstance(sampler, kind) and type(sampler).__iter__ is kind.__iter__ for kind in kinds)  # type: ignore[attr-defined]

    own = Source("other", "a sampler of the loop's own", data_set, most=None)
    sampler = base_sampler(loader.batch_sampler if loader.batch_sampler is not None else loader.sampler)
    if isinstance(loader.dataset, IterableDataset):
        return own
    if draws_as(sampler, UniformWithReplacementSampler):
        words = f"each of {int(sampler.num_samples):,} examples by a coin of {sampler.sample_rate:.6g} (Poisson)"
        return Source("poisson", words, data_set, rate=float(sampler.sample_rate))
    size, population = 1, len(loader.dataset)
    if draws_as(sampler, BatchSampler):
        size, sampler = int(sampler.batch_size), sampler.sampler
    elif loader.batch_sampler is not None:
        return own
    batches = math.ceil(population / size)
    words = f"batches of {size:,} of {population:,} examples"
    if draws_as(sampler, RandomSampler, WeightedRandomSampler):
        # more draws than examples start over within one pass
        if sampler.replacement or sampler.num_samples > population:
            return Source("other", f"{words}, drawn with replacement", data_set, most=size)
        return Source("once", f"{words}, shuffled in each pass", data_set, batches=batches)
    if draws_as(sampler, SequentialSampler):
        return Source("once", f"{words}, in fixed order", data_set, batches=batches)
    if draws_as(sampler, SubsetRandomSampler) and len(set(map(int, sampler.indices))) == len(sampler.indices):
        return Source("once", f"{words}, shuffled in each pass", data_set, batches=batches)
    return own


def extreme(value: Any, sign: int) -> Any:
    """A tensor like an example's, far from the others: sign=1 and sign=-1 are each other's opposites. Floats are scaled
    and reflected; of whole numbers, a class becomes another one and tokens change their order.
    """
    import torch

    if value.is_floating_point():
        scale = max(float(value.abs().nan_to_num().max()) if value.numel() else 0.0, 0.1)
        away = torch.where(value >= 0, value.clamp(min=scale / 2), value.clamp(max=-scale / 2))
        return sign * FAR * away
    if sign > 0:
        return value
    return (value == 0).to(value.dtype) if value.ndim == 0 else value.flip(0)


def with_example(batch: Any, row: int, signs: tuple[int, int]) -> Any:
    """A batch whose ``row`` is the extreme example."""
    if isinstance(batch, dict):
        parts = zip(batch, with_example(list(batch.values()), row, signs), strict=True)
        return dict(parts)
    if isinstance(batch, list | tuple):
        return type(batch)(
            [with_example(part, row, signs if number == 0 else signs[1:] * 2) for number, part in enumerate(batch)]
        )
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "fiu":
        import torch

        return with_example(torch.from_numpy(batch.copy()), row, signs).numpy()
    if hasattr(batch, "is_floating_point") and batch.ndim and row < len(batch):
        batch = batch.clone()
        batch[row] = extreme(batch[row], signs[0])
    return batch


def _sample(tensors: list[Any]) -> Numbers:
    """Coordinates of the flat vector, at most `KEPT`, evenly spread."""
    import torch

    if not tensors:
        return np.zeros(0)
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    return np.asarray(flat[:: max(1, math.ceil(flat.numel() / KEPT))].cpu().double().numpy().copy())


def _places(index: Any) -> list[int] | None:
    try:
        return [int(index)] if isinstance(index, int | np.integer) else [int(place) for place in index]
    except (TypeError, ValueError):
        return None


def _random_state() -> int:
    import torch

    return hash(torch.get_rng_state().numpy().tobytes())


def _seed_all(seed: int) -> None:
    import random

    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the loop's own generator
    begin_torch(torch, seed)


# --- wrapping the libraries ----------------------------------------------------------------------------------------


@contextmanager
def recording(recorder: Recorder) -> Iterator[LoopRecord]:
    """While this is open, everything the loop does is recorded. Everything wrapped is put back."""
    import torch
    from opacus import privacy_engine
    from opacus.accountants.accountant import IAccountant
    from opacus.optimizers import DPOptimizer
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    with ExitStack() as stack:
        for owner, name, make in (
            (_BaseDataLoaderIter, "__init__", lambda real: _before(real, recorder.begin_pass)),
            (_BaseDataLoaderIter, "_next_index", lambda real: lambda it: recorder.next_index(it, real(it))),
            (_BaseDataLoaderIter, "__next__", lambda real: _next(real, recorder)),
            (UniformWithReplacementSampler, "__iter__", lambda real: _counted(real, recorder)),
            (torch.autograd, "backward", lambda real: _before(real, recorder.backward)),
            (DPOptimizer, "__init__", lambda real: _watched(real, recorder)),
            (privacy_engine, "get_noise_multiplier", lambda real: lambda **call: _once(real, repr(call), **call)),
        ):
            stack.enter_context(_replaced(owner, name, make))
        for kind in _below(IAccountant):
            if "step" in vars(kind):
                stack.enter_context(_replaced(kind, "step", lambda real: _before(real, recorder.told)))
            if "get_epsilon" in vars(kind):
                stack.enter_context(_replaced(kind, "get_epsilon", lambda real: _asked(real, recorder)))
        stack.callback(register_optimizer_step_pre_hook(lambda one, args, kwargs: recorder.stepping(one)).remove)
        for one in living(DPOptimizer):
            recorder.watch(one)
        try:
            yield recorder.record
        except Enough:
            pass
        finally:
            recorder.finish()


@contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
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


def _before(real: Callable[..., Any], call: Callable[..., None]) -> Callable[..., Any]:
    def both(*args: Any, **kwargs: Any) -> Any:
        call(*args, **kwargs)
        return real(*args, **kwargs)

    return both


def _watched(real: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    def init(optimiser: Any, *args: Any, **kwargs: Any) -> None:
        real(optimiser, *args, **kwargs)
        recorder.watch(optimiser)

    return init


def _next(real: Callable[[Any], Any], recorder: Recorder) -> Callable[[Any], Any]:
    def following(iterator: Any) -> Any:
        if recorder.over and iterator._given:
            raise StopIteration
        return recorder.give(iterator, real(iterator))

    return following


def _counted(real: Callable[[Any], Any], recorder: Recorder) -> Callable[[Any], Any]:
    """Counts the draws of a sampler, so that pieces of one Poisson batch are known as one draw."""

    def counted(sampler: Any) -> Iterator[Any]:
        recorder._kept.append(sampler)
        for drawn in real(sampler):
            recorder.draws[id(sampler)] = recorder.draws.get(id(sampler), 0) + 1
            yield drawn

    return counted


def _below(kind: type) -> list[type]:
    below: list[type] = kind.__subclasses__()
    return [*below, *(one for part in below for one in _below(part))]


#: A loop is executed several times: searches for a noise multiplier, which take seconds each, and answers of the
#: library's own accountants, by all that they depend on.
_ANSWERS: dict[str, Any] = {}


def _once(real: Callable[..., Any], key: str, *args: Any, **kwargs: Any) -> Any:
    if key not in _ANSWERS:
        _ANSWERS[key] = real(*args, **kwargs)
    return _ANSWERS[key]


def _asked(real: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    def get_epsilon(accountant: Any, delta: float, *args: Any, **kwargs: Any) -> Any:
        kind = type(accountant)
        key = repr((kind, accountant.history, delta, args, kwargs))
        key = key if kind.__module__.startswith("opacus.") else f"{key} {id(recorder)} {len(recorder.record.answers)}"
        found = _once(real, key, accountant, delta, *args, **kwargs)
        recorder.answered(accountant, delta, found)
        return found

    return get_epsilon
