"""Local training of a whole cohort as one computation.

Batches, order of steps and losses are those of `SequentialTrainer`; sums are taken in a different order, so results
agree with its up to float32 rounding.

A client's result has the same bits whoever is computed beside it: its arrays have shapes that follow from itself alone
(`padded_width`), there are always two clients in a product at least (a single one is computed twice), it is computed
in one thread (several would divide it by how many clients there are), and then what a product of the batch gives does
not depend on how many there are. The last is a property of the kernels, which tests/training/test_slices.py watches:
it is what updates of simulated clients rest on, whose number in a product follows from how many batches others have.
Sums of clipped gradients do not rest on it (`clipped_sums`), and a deployed client is computed alone.

Flatten, Linear and ReLU are computed by hand (`Chain`): batched matrix products that add a step's gradient to the
parameters without storing it. Every other model goes through `torch.func.vmap` (`Mapped`).

Shapes: c clients, b examples of a batch (padded with blank examples of weight 0), d parameters, i and o inputs and
outputs of a layer.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedpriv.config.schema import LocalConfig
from fedpriv.mechanisms.clipped_sums import ClippedSum
from fedpriv.mechanisms.step_gradients import StepGradient
from fedpriv.training.persons import sums_of_persons
from fedpriv.training.sequential import (
    Clipping,
    FlatModel,
    LocalData,
    LocalResult,
    SequentialTrainer,
    Training,
    draw_batches,
)
from fedpriv.training.stacked_gradients import Chain, Mapped, Whole, block_for, one_thread

T = TypeVar("T")

log = logging.getLogger("fedpriv")

#: Numbers (parameters and a batch's examples) of the clients computed at a time: fits a processor's cache, or a share
#: of a GPU's memory.
NUMBERS = {"cpu": 2**20, "cuda": 2**28}


#: Reads examples by their places (int64 [b], each at least 0) in what a cohort holds together.
Read = Callable[[Tensor], LocalData]

CPU = torch.device("cpu")

#: Fewer clients than this in one product would use another kernel.
FEWEST = 2


@dataclass(frozen=True)
class Rows:
    """A cohort's clients after training: updates (float32 [c, d], on the model's device if they fit) and mean training
    losses (float64 [c]).
    """

    updates: Tensor
    losses: Tensor


@dataclass(frozen=True)
class Work:
    """One client's part of a computation. offset: of its examples among all of the computation."""

    place: int
    offset: int
    batches: list[np.ndarray]
    width: int  # of its batches, padded


def padded_width(widest: int, batch_size: int) -> int:
    """Of all batches of a client whose largest has ``widest`` examples (at least 1): rounded up by a sixteenth at most,
    so that few clients differ, and to an even number; or the next multiple of the batch size where that is less.
    """
    step = max(2, (1 << (widest.bit_length() - 1)) // 16)
    return min(-(-widest // step) * step, -(-widest // batch_size) * batch_size)


@dataclass(frozen=True)
class Table:
    """What a chunk of clients trains on in each step, moved to the device once: the clients that still train, places
    of their examples (int64 [clients * b]) with the blank ones among them (int64), and weights (float32 [steps, c, b],
    1/size of the client's batch, 0 where blank).
    """

    active: list[int]
    places: list[Tensor]
    blank: list[Tensor | None]
    weights: Tensor

    @classmethod
    def of(cls, work: Sequence[Work], read_at: torch.device, device: torch.device) -> Table:
        """The first client has the most batches, of which there are one more at least than the device computes alone
        (`FEWEST`). read_at: where examples are read.
        """
        steps, width = len(work[0].batches), work[0].width
        active = [sum(len(one.batches) > step for one in work) for step in range(steps)]
        batches = [(one.batches[step], one.offset) for step, still in enumerate(active) for one in work[:still]]
        sizes = np.zeros((steps, len(work)), np.int64)
        sizes[np.arange(len(work)) < np.array(active)[:, None]] = [len(rows) for rows, _ in batches]
        taken = np.arange(width) < sizes[:, :, None]
        table = np.full(taken.shape, -1, dtype=np.int64)
        offsets = np.repeat([offset for _, offset in batches], [len(rows) for rows, _ in batches])
        table[taken] = np.concatenate([rows for rows, _ in batches]) + offsets
        weights = taken / np.maximum(sizes, 1).astype(np.float32)[:, :, None]
        rows = [table[step, : max(own, FEWEST)].reshape(-1) for step, own in enumerate(active)]
        blank = [np.flatnonzero(own < 0) for own in rows]
        places = [np.where(own < 0, 0, own) if len(none) else own for own, none in zip(rows, blank, strict=True)]
        found = _at_once(blank, device)
        return cls(
            active,
            _at_once(places, read_at),
            [own if len(own) else None for own in found],
            torch.from_numpy(weights).to(device),
        )


def _at_once(parts: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """As tensors on a device, in one copy."""
    together = torch.from_numpy(np.concatenate(parts)).to(device)
    return list(together.split([len(part) for part in parts]))


class VectorisedTrainer(SequentialTrainer):
    """Computes `train_all` and `clipped_sums` as one batch; `train` and `clipped_sum` are those of its base."""

    def __init__(self, model: FlatModel, config: LocalConfig, precision: str = "float32") -> None:
        super().__init__(model, config, precision)
        self._most: int | None = None  # clients at a time, where more did not fit
        # The in-place products of a chain support float32 alone.
        by_hand = Chain.of(model.module, model.task) if precision == "float32" else None
        self.batched: Chain | Mapped = by_hand or Mapped(model.module, model.task)

    def clipped_sums(self, requests: Sequence[Clipping]) -> list[ClippedSum]:
        """As one computation where the model is a `Chain`, but for bounds that follow from the batches. Who is computed
        together follows from who is asked, not from who has rows: a product for fewer clients may have another kernel.
        """
        found: dict[int, ClippedSum] = {}
        if isinstance(chain := self.batched, Chain):
            given = [place for place, one in enumerate(requests) if one.chosen == "given"]
            rows = block_for(max((one.expected or self.config.batch_size for one in requests), default=1))
            pixels = max((rows * requests[place].data.inputs.shape[1:].numel() for place in given), default=0)
            for persons in (False, True):
                alike = [place for place in given if (requests[place].data.unit is not None) == persons]
                sums = partial(sums_of_persons, chain) if persons else chain.clipped_sums
                for some in self._portions(alike, pixels):
                    chunk = [requests[place] for place in some]
                    thetas = self.split(torch.stack([one.theta for one in chunk]).to(self.model.theta.device))
                    data, bounds = [one.data for one in chunk], [one.bound for one in chunk]
                    done = sums(thetas, data, bounds, rows)
                    found |= {
                        place: clipped if requests[place].stays else replace(clipped, total=clipped.total.cpu())
                        for place, clipped in zip(some, done, strict=True)
                    }
        for place, one in enumerate(requests):
            if place not in found:
                found[place] = self.clipped_sum(**vars(one))
        return [found[place] for place in range(len(requests))]

    def train_rows(
        self,
        theta: Tensor,
        examples: Sequence[int],
        read: Read,
        pixels: int,
        rngs: Sequence[np.random.Generator],
        proximal_mu: float = 0.0,
        drifts: Tensor | None = None,
        read_at: torch.device = CPU,
        gradient: StepGradient | None = None,
    ) -> Rows:
        """As `train` from ``theta`` ([d], or [clients, d]) for clients with so many ``examples``, whose examples, of so
        many ``pixels``, lie one client after the other in what ``read`` reads, which takes places on the device
        ``read_at``; drifts: [clients, d]; gradient: what all of their steps go along.
        """
        try:
            updates = torch.zeros(len(examples), theta.shape[-1], device=self.model.theta.device)
        except torch.OutOfMemoryError:  # those of each chunk still fit
            updates = torch.zeros(len(examples), theta.shape[-1])
        found = Rows(updates, torch.zeros(len(examples), dtype=torch.float64))
        waiting = deque(self._chunks(self._work(examples, rngs), pixels))
        while waiting:
            some = waiting.popleft()
            places = [one.place for one in some]
            begin = theta if theta.ndim == 1 else theta[torch.tensor(places)]
            starts = begin.to(self.model.theta.device).expand(len(some), -1)
            in_a_row = places == list(range(places[0], places[0] + len(places)))  # then nothing is moved afterwards
            own = found.updates[places[0] : places[0] + len(places)] if in_a_row else None
            theirs = None if drifts is None else drifts[torch.tensor(places)]
            try:
                updates, losses = self._train_chunk(starts, some, read, read_at, proximal_mu, theirs, own, gradient)
            except torch.OutOfMemoryError:
                if len(some) <= FEWEST:
                    raise
                waiting.extendleft(self._halves(some))
                continue
            if own is None:
                found.updates[torch.tensor(places)] = updates.to(found.updates.device)
            found.losses[torch.tensor(places)] = losses
        return found

    def _halves(self, some: Sequence[Work]) -> list[Sequence[Work]]:
        """What did not fit into the device's memory, the first half last; from now on no more are taken at a time."""
        self._most = half = (len(some) + 1) // 2
        log.warning("%d clients at once do not fit into the device's memory: from now on at most %d", len(some), half)
        return [some[half:], some[:half]]

    def train_all(self, requests: Sequence[Training]) -> list[LocalResult]:
        """As `train_rows`, for clients that bring their own examples. Raises ValueError for several forms."""
        if not requests:
            return []
        if len({(one.proximal_mu, one.drift is None, id(one.gradient)) for one in requests}) > 1:
            raise ValueError("one batch has one mu and one rule of steps, and all its clients have a drift or none has")
        drifts = [one.drift for one in requests if one.drift is not None]
        counts = [len(one.data) for one in requests]
        inputs = torch.cat([one.data.inputs for one in requests])
        labels = torch.cat([one.data.targets for one in requests])

        def read(places: Tensor) -> LocalData:
            return LocalData(inputs.index_select(0, places), labels.index_select(0, places))

        found = self.train_rows(
            torch.stack([one.theta for one in requests]),
            counts,
            read,
            inputs.shape[1:].numel(),
            [one.rng for one in requests],
            requests[0].proximal_mu,
            torch.stack(drifts) if drifts else None,
            inputs.device,
            requests[0].gradient,
        )
        return [LocalResult(update, loss) for update, loss in zip(found.updates, found.losses.tolist(), strict=True)]

    def _work(self, counts: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[Work]:
        """Of clients with so many examples, without those that have no batch. Equally wide ones side by side; of them
        those with the most batches first, so that those still training are always the first of their chunk.
        """
        work, offset = [], 0
        for place, (count, rng) in enumerate(zip(counts, rngs, strict=True)):
            batches = [rows for rows in draw_batches(self.config, count, rng) if rows.size] if count else []
            if batches:
                width = padded_width(max(map(len, batches)), self.config.batch_size)
                work.append(Work(place, offset, batches, width))
            offset += count
        return sorted(work, key=lambda one: (-one.width, -len(one.batches)))

    def _chunks(self, work: Sequence[Work], pixels: int) -> Iterator[Sequence[Work]]:
        """Clients that are computed together: of one width, and few enough for the memory close by."""
        for width, same in itertools.groupby(work, key=lambda one: one.width):
            yield from self._portions(list(same), width * pixels)

    def _portions(self, clients: Sequence[T], pixels: int) -> Iterator[Sequence[T]]:
        """Groups of clients that are computed together; ``pixels``: of a batch."""
        size = max(FEWEST, NUMBERS[self.model.theta.device.type] // (self.model.theta.numel() + pixels))
        size = min(size, self._most or size)
        for start in range(0, len(clients), size):
            yield clients[start : start + size]

    @one_thread()
    def _train_chunk(
        self,
        starts: Tensor,
        work: Sequence[Work],
        read: Read,
        read_at: torch.device,
        mu: float,
        drifts: Tensor | None = None,
        out: Tensor | None = None,
        gradient: StepGradient | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(updates float32 [c, d], mean losses float64 [c]) of SGD from ``starts`` [c, d] with ``drifts`` [c, d]; the
        first client has the most batches. out: where the updates are to lie.
        """
        config, device, lr = self.config, self.model.theta.device, self.lr
        self.model.module.train()
        counts = torch.tensor([len(one.batches) for one in work])
        if len(work) < FEWEST:
            starts, work = starts.expand(FEWEST, -1), [*work] * FEWEST
        begun = self.split(starts)
        thetas = [start.clone() for start in begun]
        velocities = [torch.zeros_like(start) for start in begun] if config.momentum else None
        pulls = None if drifts is None else self.split(drifts.to(device))
        table = Table.of(work, read_at, device)
        losses = torch.zeros(len(work), device=device)
        for step, active in enumerate(table.active):
            among = max(active, FEWEST)  # one more is computed, and left as it is, where a single one is still training
            inputs, targets = self._batch(read, table.places[step], table.blank[step], among)
            with torch.no_grad():
                with self._mixed():
                    here, batch = [theta[:among] for theta in thetas], (inputs, targets, table.weights[step, :among])
                    if gradient is None:
                        step_losses, gradients = self.batched.gradients(here, *batch)
                    else:
                        step_losses, gradients = self._steps_along(gradient, here, batch)
                for number, found in enumerate(gradients):
                    own, theta, start = found.first(active), thetas[number][:active], begun[number][:active]
                    if velocities is None:
                        if mu:
                            theta.lerp_(start, lr * mu)
                        own.add_to(theta, -lr, 1.0)
                        if pulls is not None:
                            theta.add_(pulls[number][:active], alpha=-lr)
                        continue
                    velocity = velocities[number][:active]
                    own.add_to(velocity, 1.0, config.momentum)
                    if mu:
                        velocity.add_(theta - start, alpha=mu)
                    if pulls is not None:
                        velocity.add_(pulls[number][:active])
                    theta.add_(velocity, alpha=-lr)
                losses[:active] += step_losses[:active]
        many, place = len(counts), 0
        updates = torch.empty(many, starts.shape[1], device=device) if out is None else out
        for theta, start in zip(thetas, begun, strict=True):
            part = updates[:, place : place + start[0].numel()]
            part.copy_((theta[:many] - start[:many]).flatten(1))
            place += start[0].numel()
        return updates, (losses[:many].cpu() / counts).double()

    def _steps_along(
        self, rule: StepGradient, thetas: Sequence[Tensor], batch: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, list[Whole]]:
        """As `Chain.gradients`, of a rule of its own."""

        def gradients(at: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
            losses, found = self.batched.gradients(at, *batch)
            return losses, [part.value for part in found]

        losses, found = rule.stacked(thetas, gradients, lambda at: self.batched.losses(at, *batch))
        return losses, [Whole(part) for part in found]

    def _batch(self, read: Read, places: Tensor, blank: Tensor | None, clients: int) -> tuple[Tensor, Tensor]:
        """Examples [c, b, ...] and labels [c, b] at these places (int64 [c * b]), those at ``blank`` zero."""
        device = self.model.theta.device
        found = read(places)
        inputs, labels = self.batched.prepared(found.inputs).to(device), found.targets.to(device)
        if blank is not None:
            inputs.index_fill_(0, blank, 0)
        return inputs.view(clients, -1, *inputs.shape[1:]), labels.view(clients, -1, *labels.shape[1:])

    def split(self, stacked: Tensor) -> list[Tensor]:
        """One contiguous tensor [c, ...] per parameter from flat vectors [c, d]."""
        found, start = [], 0
        for shape in self.model.layout.shapes:
            stop = start + torch.Size(shape).numel()
            found.append(stacked[:, start:stop].contiguous().view(len(stacked), *shape))
            start = stop
        return found
