"""What the noisy steps of a training loop cost as they really ran: events, each with its proof.

Unit: one example. Every noisy step t releases S_t + N(0, s_t^2 I), where S_t is the sum of the clipped gradients
(each no longer than C_t) of its batches, at parameters that are a function of earlier releases. z_t = s_t / C_t. Who
sees all of these sees all models, which are functions of them.

**Poisson** (each example by a coin q of its own, at each step anew). One example more or less adds a vector of length
at most C_t with probability q: a Poisson-sampled Gaussian of multiplier z_t, composed adaptively over steps
(add-or-remove-one).

**Several draws in one step** (k batches summed before noise is added). The sum of k independent releases, each with
noise of variance s_t^2 / k, has the law of the release; so it is a function of them and costs no more: k events of
multiplier z_t / sqrt(k). One event of rate k q is no bound: an example can be in several of the batches and move the
sum by k C_t.

**Each example at most once in a pass** (fixed batches, shuffled or not). Given the order of a pass, which does not
depend on values, an example is in one batch of it. Releases before that batch have the same law with and without the
example (put in, or contributing zero: zero-out); its own is a Gaussian of multiplier z_t; later ones are functions of
what was released and of data that are the same. So a pass costs one Gaussian, unsampled, of its smallest z_t; a
mixture over orders costs no more (delta is jointly convex in the two laws). A step that sums k batches counts z_t /
sqrt(k) for each, as above: an example may be in batches of several passes. Under add-or-remove-one there is no such
bound: removing an example moves others into other batches. Zero-out stands for it; a Poisson sample has both.

**With replacement**: an example may be in a batch of B up to B times, and moves the sum by up to B C_t: a Gaussian of
multiplier z_t / B at every step. A sound bound, and far from tight.

**Unknown sampler**: what coins it has cannot be seen, so none are credited: a Gaussian of multiplier z_t / m at every
step, m: how often one example was in one batch at most, as recorded. It assumes that this is never exceeded.

Where the noise that was added is measurably smaller than the optimiser is set to, its measured deviation counts.

**Distributed**: the sum over workers, with the noise that the first worker adds; one example is on one worker. The
law is that of one process, provided that workers draw from different generators.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedpriv.checking.loop_record import LoopRecord, Lot, Step
from fedpriv.privacy.events import Event, Gaussian, NoBound, PoissonGaussian, Threat

#: Below this the measured noise is smaller than set: in standard errors of a variance.
FAR_BELOW = 6.0
OBSERVER = "public"  # sees every model that the loop makes
COUNTED = (
    "the clip norm follows the share of gradients that are not clipped, in which the number of examples drawn is "
    "without noise"
)


@dataclass(frozen=True)
class RunCost:
    """Events of a run under one threat, and what they rest on beside proofs (words; empty: nothing)."""

    events: tuple[Event, ...]
    adjacency: str
    assumed: tuple[str, ...] = ()

    @property
    def threat(self) -> Threat:
        return Threat("example", self.adjacency, OBSERVER)


def multiplier(step: Step) -> float:
    """Standard deviation / what one example can move the sum by, in one step."""
    return step.std / step.clip if step.clip > 0 else math.inf


def measured_share(record: LoopRecord) -> tuple[float, int]:
    """(standard deviation of the noise that was added / that it is set to, numbers measured), over all steps.

    1 where the measured one is not below the set one beyond its error.
    """
    steps = [step for step in record.private_steps if step.moved is not None and step.rank == 0 and step.std > 0]
    parts = [step.moved / step.std for step in steps if step.moved is not None]
    count = sum(part.size for part in parts)
    if not count:
        return 1.0, 0
    mean = sum(float(np.sum(np.square(part))) for part in parts) / count
    return (math.sqrt(mean) if mean < 1 - FAR_BELOW * math.sqrt(2 / count) else 1.0), count


def multiplicity(lot: Lot) -> int:
    """How often one example is in a batch at most, as recorded."""
    return max(Counter(lot.indices).values(), default=1) if lot.indices else 1


def cost_of(record: LoopRecord, steps: Sequence[Step] | None = None) -> RunCost:
    """The events of a recorded loop's noisy steps (and of those without noise: no bound)."""
    chosen = record.steps if steps is None else steps
    lots = [lot for step in chosen if step.private for lot in step.lots]
    traced = all(step.lots for step in chosen if step.private)
    poisson = traced and bool(lots) and all(lot.source.kind == "poisson" for lot in lots)
    threat = Threat("example", "add-or-remove-one" if poisson else "zero-out", OBSERVER)
    events: Counter[Event] = Counter()
    passes: dict[tuple[int, int], float] = {}
    assumed: set[str] = set()
    share, _ = measured_share(record)
    for step in chosen:
        if not step.private:
            continue
        z = multiplier(step) * share
        if step.counted:
            events[NoBound(threat=threat, reason=COUNTED)] += 1
            continue
        if not step.lots:
            assumed.add(
                "which examples a step used could not be followed: no sampling is credited, and one example is "
                "taken to be in a batch once"
            )
            events[Gaussian(threat=threat, multiplier=z)] += 1
            continue
        draws = {(lot.source, lot.draw): lot for lot in step.lots}
        z /= math.sqrt(len(draws))
        for (source, _), lot in draws.items():
            if source.kind == "poisson" and source.rate is not None:
                events[PoissonGaussian(threat=threat, multiplier=z, sampling_rate=min(source.rate, 1.0))] += 1
            elif source.kind == "without-replacement":
                passes[lot.round] = min(passes.get(lot.round, math.inf), z)
            elif source.kind == "with-replacement" and source.batch_size:
                events[Gaussian(threat=threat, multiplier=z / source.batch_size)] += 1
            else:
                assumed.add(
                    "the sampler is the loop's own: no sampling is credited, and an example is taken to be in "
                    "a batch no more often than recorded"
                )
                events[Gaussian(threat=threat, multiplier=z / multiplicity(lot))] += 1
    for z in passes.values():
        events[Gaussian(threat=threat, multiplier=z)] += 1
    found = [_times(event, count) for event, count in events.items()]
    if record.bare_steps and steps is None and any(_moves(step) for step in record.bare_steps):
        found.append(NoBound(threat=threat, reason=f"{len(record.bare_steps):,} optimiser steps have no noise"))
    return RunCost(tuple(found), threat.adjacency, tuple(sorted(assumed)))


def _moves(step: Step) -> bool:
    return bool(step.lots) and step.applied is not None and bool((step.applied != 0).any())


def _times(event: Event, count: int) -> Event:
    return replace(event, count=count)


def planned_events(cost: RunCost, ran: int, planned: int) -> tuple[Event, ...]:
    """The events of a run of ``planned`` steps of which the first ``ran`` were recorded, if it goes on alike."""
    return tuple(replace(event, count=math.ceil(event.count * planned / ran)) for event in cost.events)
