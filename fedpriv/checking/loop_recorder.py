"""Records a training loop from outside: the libraries' own methods are wrapped while it runs, and put back afterwards.

The loop's file is not touched. Wrapped are: torch's data loader iterator (which examples a batch has), Opacus'
samplers (which draw a batch is a piece of), every DPOptimizer, made before or during the recording (clean sum, noisy
sum, noise), every optimiser's step (what it gets), `torch.autograd.backward` (which batches are used), the
accountants and the engine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpriv.checking.loop_data import Altered
from fedpriv.checking.loop_objects import base_sampler, clipping_module, inner_of, living, settings_of
from fedpriv.checking.loop_record import Accounted, Engine, LoopRecord, Lot, Numbers, Step
from fedpriv.checking.loop_sources import source_of

#: Coordinates kept of each vector, evenly spread.
KEPT = 20_000
#: Further steps after the limit, in which each pass of a loader ends after one batch; then the loop is ended.
FURTHER = 200


class Enough(BaseException):
    """Ends a loop that has shown enough. A BaseException: a loop that catches its own errors does not catch this."""


@dataclass
class Tape:
    """The noisy sums of one execution, step by step, which another is made to release as well.

    So every number that leaves and is a function of the noisy sums alone is the same in both, whatever the data.
    """

    sums: list[list[Any]] = field(default_factory=list)  # tensors per parameter
    playing: bool = False


@dataclass(frozen=True)
class Limits:
    """When a loop has shown enough: optimiser steps, seconds of CPU time."""

    steps: int = 1_000_000
    seconds: float = 20.0


@dataclass
class _Optimiser:
    number: int
    optimiser: Any  # the DPOptimizer
    inner: Any
    #: Set by add_noise, taken by the inner optimiser's step.
    pending: dict[str, Any] | None = None
    #: What clips before the backward pass (ghost clipping); None: the optimiser does.
    clipping: Any = None

    def clip(self) -> float:
        return float((self.clipping or self.optimiser).max_grad_norm)


class Recorder:
    """One execution's record. tape: noisy sums to write or to play; always, never: examples of the training data sets
    that are put into, or taken out of, every batch; altered: data sets with another example; training: numbers of the
    data sets that these are about; resync: seeds the generators anew after each step, so that executions on
    neighbouring data draw alike.
    """

    def __init__(
        self,
        limits: Limits = Limits(),
        tape: Tape | None = None,
        always: int | None = None,
        never: int | None = None,
        altered: Altered | None = None,
        training: frozenset[int] = frozenset(),
        resync: int | None = None,
    ) -> None:
        self.record, self.limits, self.tape = LoopRecord(), limits, tape
        self.always, self.never, self.altered, self.training = always, never, altered, training
        self.resync = resync
        self.begun = time.process_time()
        self._optimisers: dict[int, _Optimiser] = {}
        self._accountants: dict[int, int] = {}
        self._data_sets: dict[int, tuple[int, Any]] = {}
        self._draws: dict[int, int] = {}
        self._samplers: list[Any] = []
        self._rounds = 0
        self._last: Lot | None = None
        self._used: list[Lot] = []
        self._after_limit = 0
        self._put_into: tuple[int, ...] | None = None
        self._random_before: Any = None
        self._forward_is_random = False
        self._mixing: set[str] = set()
        self.inside = 0  # calls of the engine or an accountant that are running

    @property
    def optimisers(self) -> list[_Optimiser]:
        return list(self._optimisers.values())

    # --- limits ---------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the loop has shown enough."""
        if self.record.cut is None:
            if len(self.record.steps) >= self.limits.steps:
                self.record.cut = f"ended after {len(self.record.steps):,} steps, which were asked for"
            elif time.process_time() - self.begun > self.limits.seconds:
                self.record.cut = f"ended after {self.limits.seconds:g} s and {len(self.record.steps):,} steps"
        return self.record.cut is not None

    def _count_further(self) -> None:
        if self.over:
            self._after_limit += 1
            late = time.process_time() - self.begun > 1.5 * self.limits.seconds + 2
            if self._after_limit > FURTHER or late:
                raise Enough

    # --- data ------------------------------------------------------------------------------------------------------

    def number_of(self, data_set: Any) -> int:
        known = self._data_sets.setdefault(id(data_set), (len(self._data_sets), data_set))
        self.record.data_sets = dict(self._data_sets.values())
        return known[0]

    def begin_pass(self, iterator: Any, loader: Any) -> None:
        number = self.number_of(loader.dataset)
        if self.altered is not None and number in self.training:
            iterator._dataset = self.altered.of(iterator._dataset)
        self._rounds += 1
        iterator._seen_source = source_of(loader, number)
        iterator._seen_round, iterator._seen_queue, iterator._seen_given = self._rounds, [], 0

    def next_index(self, iterator: Any, index: Any) -> Any:
        """What is fetched instead of ``index``; remembers it."""
        places = _places(index)
        source = iterator._seen_source
        if places is not None and source.data_set in self.training:
            if self.always is not None:
                places = [place for place in places if place != self.always] if self._has_it(iterator) else places
                if not self._has_it(iterator) and self.always not in places:
                    places = [*places, self.always]
                self._put_into = self._piece(iterator)
            if self.never is not None and self.never in places and (len(places) > 1 or source.kind == "poisson"):
                places = [place for place in places if place != self.never]
            if isinstance(index, list) or not np.isscalar(index):
                index = places
        base = base_sampler(iterator._index_sampler)
        draw = (id(base), self._draws.get(id(base), 0)) if id(base) in self._draws else (0, -1)
        if draw[1] < 0:
            draw = (iterator._seen_round, len(iterator._seen_queue) + iterator._seen_given)
        kept = None if places is None else tuple(places)
        iterator._seen_queue.append(Lot(source, draw, (0, iterator._seen_round), kept))
        return index

    def _piece(self, iterator: Any) -> tuple[int, ...]:
        """What an example may be in once: a draw of Poisson coins, else whatever is summed in one step."""
        base = base_sampler(iterator._index_sampler)
        if iterator._seen_source.kind == "poisson":
            return 1, id(base), self._draws.get(id(base), 0)
        return 0, len(self.record.steps)

    def _has_it(self, iterator: Any) -> bool:
        return self._put_into == self._piece(iterator)

    def give(self, iterator: Any) -> None:
        """A batch reaches the loop."""
        iterator._seen_given += 1
        self._last = iterator._seen_queue.pop(0) if iterator._seen_queue else None
        if self._random_before is None:
            self._random_before = _random_state()

    def backward(self) -> None:
        if self._last is None:
            self.record.untraced += not self._used  # a second backward pass over one batch adds none
        else:
            self._used.append(self._last)
            self._last = None
        if self._random_before is not None and self._random_before != _random_state():
            self._forward_is_random = True
        self._random_before = None

    # --- optimisers --------------------------------------------------------------------------------------------------

    def watch(self, optimiser: Any) -> None:
        """Wraps one DPOptimizer's noise; called for each that is made, and for those that exist."""
        if id(optimiser) in self._optimisers:
            return
        watched = _Optimiser(len(self._optimisers), optimiser, optimiser.original_optimizer)
        watched.clipping = clipping_module(optimiser)
        self._optimisers[id(optimiser)] = watched
        if not callable(getattr(optimiser, "add_noise", None)):
            return
        add_noise = optimiser.add_noise

        def noisy() -> Any:
            return self._add_noise(watched, add_noise) if self._noted else add_noise()

        noisy.__wrapped__ = add_noise  # type: ignore[attr-defined]
        optimiser.add_noise = noisy

    _noted = True

    def unwatch(self) -> None:
        self._noted = False
        for watched in self._optimisers.values():
            watched.optimiser.__dict__.pop("add_noise", None)

    def _add_noise(self, watched: _Optimiser, add_noise: Callable[[], Any]) -> Any:
        optimiser = watched.optimiser
        clean = [p.summed_grad.detach().clone() for p in optimiser.params if p.summed_grad is not None]
        settings = settings_of(optimiser) | {"clip": watched.clip()}
        found = add_noise()
        noisy = [p.grad for p in optimiser.params if p.grad is not None]
        self._note_layers(optimiser)
        pending: dict[str, Any] = dict(settings)
        if len(clean) == len(noisy):
            pending["clean"] = _kept(clean)
            pending["moved"] = _kept(
                [(a.detach() - b.reshape(a.shape)).double() for a, b in zip(noisy, clean, strict=True)]
            )
        if self.tape is not None:
            place = len(self.record.private_steps)
            if not self.tape.playing:
                self.tape.sums.append([grad.detach().clone() for grad in noisy])
            elif place < len(self.tape.sums):
                for grad, taped in zip(noisy, self.tape.sums[place], strict=False):
                    grad.data.copy_(taped)
            else:
                raise Enough  # the tape is over: what follows could not be compared
        watched.pending = pending
        return found

    def _note_layers(self, optimiser: Any) -> None:
        """Layers of the model whose examples see each other in training."""
        from opacus.grad_sample import AbstractGradSampleModule
        from torch.nn.modules.batchnorm import _BatchNorm

        if self.record.private_steps:
            return
        own = {id(p) for p in optimiser.params}
        known = {id(model) for model in self.record.models}
        for model in living(AbstractGradSampleModule):
            if id(model) not in known and any(id(p) in own for p in model.parameters()):
                self.record.models.append(model)
        for model in self.record.models:
            for name, module in model.named_modules():
                mixes = isinstance(module, _BatchNorm) and module.training
                if mixes:
                    self._mixing.add(f"{type(module).__name__} {name.removeprefix('_module.')}")

    def stepping(self, optimiser: Any) -> None:
        """Before any optimiser's own step."""
        if any(optimiser is watched.optimiser for watched in self._optimisers.values()):
            return  # the wrapper; its inner optimiser follows
        grads = [p.grad.detach() for group in optimiser.param_groups for p in group["params"] if p.grad is not None]
        wrappers = [one for one in self._optimisers.values() if inner_of(one.optimiser) is optimiser]
        watched = next((one for one in wrappers if one.pending is not None), wrappers[0] if wrappers else None)
        pending = watched.pending if watched is not None else None
        lots, self._used = tuple(self._used), []
        common: dict[str, Any] = {
            "optimiser": watched.number if watched is not None else -1,
            "kind": type(optimiser).__name__,
            "lots": lots,
            "applied": _kept(grads),
            "forward_is_random": self._forward_is_random,
        }
        self.record.steps.append(Step(private=pending is not None, **common, **(pending or {})))
        if watched is not None:
            watched.pending = None
        self._forward_is_random, self._random_before = False, None
        if self.resync is not None:
            seed_all(self.resync + 7919 * len(self.record.steps))
        self._count_further()

    # --- accountants and engines ------------------------------------------------------------------------------------

    def accountant(self, accountant: Any) -> Accounted:
        number = self._accountants.get(id(accountant))
        if number is None:
            number = self._accountants[id(accountant)] = len(self.record.accountants)
            kind = accountant.mechanism() if callable(getattr(accountant, "mechanism", None)) else "own"
            self.record.accountants.append(Accounted(kind, object=accountant))
        return self.record.accountants[number]

    def engine(self, engine: Any, call: dict[str, Any], batches: int, optimiser: Any) -> None:
        self.accountant(engine.accountant)
        target = None
        if "target_epsilon" in call:
            target = (float(call["target_epsilon"]), float(call["target_delta"]))
        made = Engine(
            poisson_sampling=bool(call.get("poisson_sampling", True)),
            accountant=self._accountants[id(engine.accountant)],
            noise_multiplier=getattr(optimiser, "noise_multiplier", None),
            target=target,
            epochs=call.get("epochs"),
            secure_mode=bool(engine.secure_mode),
            batches=batches,
        )
        self.record.engines.append(made)

    def finish(self) -> None:
        for accounted in self.record.accountants:
            history = getattr(accounted.object, "history", [])
            accounted.history = [(float(z), float(q), int(n)) for z, q, n in history]
        self.record.seconds = time.process_time() - self.begun
        self.record.layers = sorted(self._mixing)


def _kept(tensors: list[Any]) -> Numbers:
    """Coordinates of the flat vector, at most `KEPT`, evenly spread."""
    import torch

    if not tensors:
        return np.zeros(0)
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    stride = max(1, math.ceil(flat.numel() / KEPT))
    found: Numbers = flat[::stride].cpu().double().numpy().copy()
    return found


def _places(index: Any) -> list[int] | None:
    if index is None:
        return None
    if isinstance(index, int | np.integer):
        return [int(index)]
    try:
        return [int(place) for place in index]
    except (TypeError, ValueError):
        return None


def _random_state() -> int:
    import torch

    return hash(torch.get_rng_state().numpy().tobytes())


def seed_all(seed: int) -> None:
    """Seeds Python's, NumPy's and torch's own generators."""
    import random

    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the loop's own generator
    torch.manual_seed(seed)


# --- wrapping the libraries ----------------------------------------------------------------------------------------


@contextmanager
def recording(recorder: Recorder) -> Iterator[LoopRecord]:
    """While this is open, everything the loop does is recorded. Everything wrapped is put back."""
    from opacus.optimizers import DPOptimizer

    from fedpriv.checking.loop_wrapping import wrapped

    with wrapped(recorder):
        for one in living(DPOptimizer):
            recorder.watch(one)
        try:
            yield recorder.record
        except Enough:
            pass
        finally:
            recorder.unwatch()
            recorder.finish()
