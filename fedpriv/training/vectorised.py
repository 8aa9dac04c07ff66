"""Local training of a whole cohort as one computation.

A cohort of columns is handed over whole (`VectorisedTrainer.train_columns`). Any other client runs its own code until
it calls its trainer and waits there (a greenlet: one thread, one client at a time); all waiting requests are computed
together, then each client continues. Batches, order of steps and losses are those of `SequentialTrainer`; sums are
taken in a different order, so results agree with its up to float32 rounding.

A client's result has the same bits whoever is computed beside it: its arrays have shapes that follow from itself alone
(`padded_width`), there are always two clients in a product at least (a single one is computed twice), it is computed
in one thread (several would divide it by how many clients there are), and then what a product of the batch gives does
not depend on how many there are. The last is a property of the kernels, which tests/training/test_slices.py watches.

Flatten, Linear and ReLU are computed by hand (`Chain`): batched matrix products that add a step's gradient to the
parameters without storing it. Every other model goes through `torch.func.vmap` (`Mapped`).

Shapes: c clients, b examples of a batch (padded with blank pictures of weight 0), d parameters, i and o inputs and
outputs of a layer.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from greenlet import getcurrent, greenlet
from torch import Tensor

from fedpriv.config.schema import LocalConfig
from fedpriv.mechanisms.per_example import ClippedSum, block_for
from fedpriv.training.flat_model import FlatModel
from fedpriv.training.padded import Work, padded_width, table_of
from fedpriv.training.sequential import LocalData, LocalResult, SequentialTrainer, draw_batches
from fedpriv.training.stacked_gradients import Chain, Mapped

log = logging.getLogger("fedpriv")

T = TypeVar("T")

#: Numbers (parameters and a batch's pictures) of the clients computed at a time: fits a processor's cache, or a share
#: of a GPU's memory.
NUMBERS = {"cpu": 2**20, "cuda": 2**28}


#: Reads pictures by their places (int64 [b], each at least 0) in what a cohort holds together.
Read = Callable[[np.ndarray], LocalData]

#: Fewer clients than this in one product would use another kernel.
FEWEST = 2


@dataclass(frozen=True)
class Columns:
    """A cohort's clients after training: updates (float32 [c, d]) and mean training losses (float64 [c])."""

    updates: Tensor
    losses: Tensor


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes in one thread; afterwards in as many as before."""
    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)


class _Lane(greenlet):
    """A client of a cohort."""


@dataclass(frozen=True)
class _Training:
    """A client's call of `SequentialTrainer.train`."""

    theta: Tensor
    data: LocalData
    rng: np.random.Generator
    proximal_mu: float
    drift: Tensor | None

    @property
    def form(self) -> tuple[float, bool]:
        """What the calls of one computation have in common."""
        return self.proximal_mu, self.drift is not None

    def alone(self, trainer: SequentialTrainer) -> LocalResult:
        return SequentialTrainer.train(trainer, self.theta, self.data, self.rng, self.proximal_mu, self.drift)


@dataclass(frozen=True)
class _Clipping:
    """A client's call of `SequentialTrainer.clipped_sum` at the given bound."""

    theta: Tensor
    data: LocalData
    bound: float

    def alone(self, trainer: SequentialTrainer) -> ClippedSum:
        return SequentialTrainer.clipped_sum(trainer, self.theta, self.data, self.bound)


class VectorisedTrainer(SequentialTrainer):
    """Computes the requests of the clients in `together` as one batch, and any other request alone."""

    def __init__(self, model: FlatModel, config: LocalConfig, precision: str = "float32") -> None:
        super().__init__(model, config, precision)
        by_hand = Chain.of(model.module) if precision == "float32" else None  # its in-place products support no other
        self.batched: Chain | Mapped = by_hand or Mapped(model.module)

    def together(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """The tasks' results, in order. An error in a computation is raised only in the client that requested it; an
        error raised by a task itself ends all of them, so a task must catch errors of its own client.
        """
        lanes = [_Lane(task) for task in tasks]
        told = [lane.switch() for lane in lanes]  # each runs until its first request, or to its end
        while waiting := [k for k, lane in enumerate(lanes) if not lane.dead]:
            replies = self._answer([told[k] for k in waiting])
            for k, reply in zip(waiting, replies, strict=True):
                told[k] = lanes[k].throw(reply) if isinstance(reply, Exception) else lanes[k].switch(reply)
        return told

    def train(
        self,
        theta: Tensor,
        data: LocalData,
        rng: np.random.Generator,
        proximal_mu: float = 0.0,
        drift: Tensor | None = None,
    ) -> LocalResult:
        """As `SequentialTrainer.train`."""
        lane = getcurrent()
        if not isinstance(lane, _Lane):
            return super().train(theta, data, rng, proximal_mu, drift)
        result: LocalResult = lane.parent.switch(_Training(theta, data, rng, proximal_mu, drift))
        return result

    def clipped_sum(self, theta: Tensor, data: LocalData, bound: float, chosen: str = "given") -> ClippedSum:
        """As `SequentialTrainer.clipped_sum`."""
        lane = getcurrent()
        together = isinstance(lane, _Lane) and isinstance(self.batched, Chain) and chosen == "given"
        if not together or not len(data):
            return super().clipped_sum(theta, data, bound, chosen)
        result: ClippedSum = lane.parent.switch(_Clipping(theta, data, bound))
        return result

    # --- one computation for all waiting clients ----------------------------------------------------------------

    def _answer(self, requests: Sequence[_Training | _Clipping]) -> list[LocalResult | ClippedSum | Exception]:
        """A result or an exception for each request."""
        states = {k: r.rng.bit_generator.state for k, r in enumerate(requests) if isinstance(r, _Training)}
        try:
            return self._compute(requests)
        except Exception as error:  # e.g. out of memory: one client must not fail because of others
            log.warning("a cohort's training is computed client by client: %s", error)
        found: list[LocalResult | ClippedSum | Exception] = []
        for k, request in enumerate(requests):
            try:
                if isinstance(request, _Training):
                    request.rng.bit_generator.state = states[k]
                found.append(request.alone(self))
            except Exception as error:
                found.append(error)
        return found

    def _compute(self, requests: Sequence[_Training | _Clipping]) -> list[LocalResult | ClippedSum | Exception]:
        found: list[LocalResult | ClippedSum | Exception] = [LocalResult(torch.zeros(0), 0.0)] * len(requests)
        trainings = [(k, request) for k, request in enumerate(requests) if isinstance(request, _Training)]
        for form in dict.fromkeys(request.form for _, request in trainings):
            same = [(k, request) for k, request in trainings if request.form == form]
            for (k, _), result in zip(same, self._train_all([request for _, request in same]), strict=True):
                found[k] = result
        clippings = [(k, request) for k, request in enumerate(requests) if isinstance(request, _Clipping)]
        widest = max((request.data.images.numel() for _, request in clippings), default=0)
        for some in self._portions(clippings, widest):
            for (k, _), clipped in zip(some, self._clip_chunk([request for _, request in some]), strict=True):
                found[k] = clipped
        return found

    def train_columns(
        self,
        theta: Tensor,
        examples: Sequence[int],
        read: Read,
        pixels: int,
        rngs: Sequence[np.random.Generator],
        proximal_mu: float = 0.0,
        drifts: Tensor | None = None,
    ) -> Columns:
        """As `train` from the same ``theta`` [d] for clients with so many ``examples``, whose pictures, of so many
        ``pixels``, lie one client after the other in what ``read`` reads; drifts: [clients, d].
        """
        found = Columns(torch.zeros(len(examples), theta.numel()), torch.zeros(len(examples), dtype=torch.float64))
        for some in self._chunks(self._work(examples, rngs), pixels):
            starts = theta.to(self.model.theta.device).expand(len(some), -1)
            places = [work.place for work in some]
            in_a_row = places == list(range(places[0], places[0] + len(places)))  # then nothing is moved afterwards
            own = found.updates[places[0] : places[0] + len(places)] if in_a_row else None
            theirs = None if drifts is None else drifts[torch.tensor(places)]
            updates, losses = self._train_chunk(starts, some, read, proximal_mu, theirs, own)
            if own is None:
                found.updates[torch.tensor(places)] = updates
            found.losses[torch.tensor(places)] = losses
        return found

    def _train_all(self, requests: Sequence[_Training]) -> list[LocalResult]:
        """As `train_columns`, for clients that start from models of their own and bring their own pictures; of one
        `_Training.form`.
        """
        mu, drifting = requests[0].form
        found = [LocalResult(torch.zeros_like(request.theta), 0.0) for request in requests]
        counts = [len(request.data) for request in requests]
        pixels = max((request.data.images.shape[1:].numel() for request in requests), default=0)
        for some in self._chunks(self._work(counts, [request.rng for request in requests]), pixels):
            own = [requests[work.place] for work in some]
            images = torch.cat([request.data.images for request in own])
            labels = torch.cat([request.data.labels for request in own])
            offsets = np.cumsum([0, *(len(request.data) for request in own)])
            here = [replace(work, offset=int(offset)) for work, offset in zip(some, offsets, strict=False)]

            def read(places: np.ndarray, images: Tensor = images, labels: Tensor = labels) -> LocalData:
                index = torch.from_numpy(places).to(images.device)
                return LocalData(images.index_select(0, index), labels.index_select(0, index))

            starts = torch.stack([request.theta for request in own]).to(self.model.theta.device)
            drifts = torch.stack([request.drift for request in own]) if drifting else None  # type: ignore[misc]
            updates, losses = self._train_chunk(starts, here, read, mu, drifts)
            for work, update, loss in zip(some, updates, losses.tolist(), strict=True):
                found[work.place] = LocalResult(update, loss)
        return found

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
        size = max(FEWEST, NUMBERS[self.model.theta.device.type] // (self.model.layout.num_parameters + pixels))
        for start in range(0, len(clients), size):
            yield clients[start : start + size]

    @one_thread()
    def _train_chunk(
        self,
        starts: Tensor,
        work: Sequence[Work],
        read: Read,
        mu: float,
        drifts: Tensor | None = None,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(updates float32 [c, d], mean losses float64 [c]) of SGD from ``starts`` [c, d] with ``drifts`` [c, d]; the
        first client has the most batches. out: where the updates are to lie.
        """
        config, device = self.config, self.model.theta.device
        self.model.module.train()
        counts = torch.tensor([len(one.batches) for one in work])
        if len(work) < FEWEST:
            starts, work = starts.expand(FEWEST, -1), [*work] * FEWEST
        begun = self.split(starts)
        thetas = [start.clone() for start in begun]
        velocities = [torch.zeros_like(start) for start in begun] if config.momentum else None
        pulls = None if drifts is None else self.split(drifts.to(device))
        rows, weights = table_of(work)
        losses = torch.zeros(len(work), device=device)
        for step in range(len(rows)):
            active = sum(len(one.batches) > step for one in work)
            among = max(active, FEWEST)  # one more is computed, and left as it is, where a single one is still training
            images, targets = self._batch(read, rows[step, :among])
            with torch.no_grad():
                with self._mixed():
                    step_losses, gradients = self.batched.gradients(
                        [theta[:among] for theta in thetas], images, targets, weights[step, :among].to(device)
                    )
                for number, gradient in enumerate(gradients):
                    own, theta, start = gradient.first(active), thetas[number][:active], begun[number][:active]
                    if velocities is None:
                        if mu:
                            theta.lerp_(start, config.lr * mu)
                        own.add_to(theta, -config.lr, 1.0)
                        if pulls is not None:
                            theta.add_(pulls[number][:active], alpha=-config.lr)
                        continue
                    velocity = velocities[number][:active]
                    own.add_to(velocity, 1.0, config.momentum)
                    if mu:
                        velocity.add_(theta - start, alpha=mu)
                    if pulls is not None:
                        velocity.add_(pulls[number][:active])
                    theta.add_(velocity, alpha=-config.lr)
                losses[:active] += step_losses[:active]
        many, place = len(counts), 0
        updates = torch.empty(many, starts.shape[1]) if out is None else out
        for theta, start in zip(thetas, begun, strict=True):
            part = updates[:, place : place + start[0].numel()]
            part.copy_((theta[:many] - start[:many]).flatten(1))
            place += start[0].numel()
        return updates, (losses[:many].cpu() / counts).double()

    def _batch(self, read: Read, places: np.ndarray) -> tuple[Tensor, Tensor]:
        """Pictures [c, b, ...] and labels [c, b] at these places (int64 [c, b], negative: blank)."""
        device, blank = self.model.theta.device, places < 0
        found = read(np.where(blank, 0, places).reshape(-1) if blank.any() else places.reshape(-1))
        images = self.batched.prepared(found.images).to(device)
        images = images.view(*places.shape, *images.shape[1:])
        labels = found.labels.to(device).view(places.shape)
        if blank.any():
            images[torch.from_numpy(blank).to(device)] = 0.0
        return images, labels

    @one_thread()
    def _clip_chunk(self, requests: Sequence[_Clipping]) -> list[ClippedSum]:
        """Norms from each layer's inputs and output gradients, then one more product for the weighted sums.

        In blocks of `block_for` examples of each client, padded with blank ones, whatever was drawn: a different number
        of rows would use a different kernel, and an adversarial theta can amplify the difference
        (`fedpriv.mechanisms.per_example`). Assumed: a product's bits do not depend on the number of products in the
        batch.
        """
        device, counts = self.model.theta.device, [len(request.data) for request in requests]
        thetas = self.split(torch.stack([request.theta for request in requests]).to(device))
        pictures, labels = self._pooled([request.data for request in requests])
        size, offsets = block_for(self.config.batch_size), np.cumsum([0, *counts])
        index = torch.full((len(counts), -(-max(counts) // size) * size), len(pictures) - 1)
        for client, count in enumerate(counts):
            index[client, :count] = torch.arange(count) + int(offsets[client])
        index = index.to(device)
        bounds = torch.tensor([request.bound for request in requests], dtype=torch.float64, device=device)
        parts = []
        with torch.no_grad():
            for block in index.split(size, dim=1):
                images = pictures.index_select(0, block.reshape(-1)).view(*block.shape, *pictures.shape[1:])
                real = block < len(pictures) - 1
                parts.append(self.batched.clipped(thetas, images, labels[block], real, bounds))  # type: ignore[union-attr]
        totals = torch.stack([part[0] for part in parts]).sum(0).cpu()
        norms = torch.cat([part[1] for part in parts], dim=1).cpu()
        losses = torch.stack([part[2] for part in parts]).sum(0).cpu()
        return [
            ClippedSum(totals[k], norms[k, :count].clone(), float(losses[k]) / count) for k, count in enumerate(counts)
        ]

    def split(self, stacked: Tensor) -> list[Tensor]:
        """One contiguous tensor [c, ...] per parameter from flat vectors [c, d]."""
        found, start = [], 0
        for shape in self.model.layout.shapes:
            stop = start + torch.Size(shape).numel()
            found.append(stacked[:, start:stop].contiguous().view(len(stacked), *shape))
            start = stop
        return found

    def _pooled(self, data: Sequence[LocalData]) -> tuple[Tensor, Tensor]:
        """All clients' pictures one after the other, then a blank picture; their labels."""
        device = self.model.theta.device
        images = torch.cat([*(own.images for own in data), torch.zeros_like(data[0].images[:1])])
        labels = torch.cat([*(own.labels for own in data), torch.zeros_like(data[0].labels[:1])])
        return self.batched.prepared(images).to(device), labels.to(device)
