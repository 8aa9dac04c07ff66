"""What a recorded training loop did: where its batches came from, its optimiser steps, and what its accountants say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

#: float32 or float64 numbers of one flat vector.
Numbers = NDArray[np.floating[Any]]

SourceKind = Literal["poisson", "without-replacement", "with-replacement", "unknown"]


@dataclass(frozen=True)
class Source:
    """One data loader as its sampler draws.

    poisson: every example by a coin of its own; rate: the coin. without-replacement: one pass takes an example at most
    once. with-replacement: an example may be several times in a batch. unknown: a sampler whose law is not known.
    population: examples it draws from; batch_size: of fixed batches; data_set: number of the data set, by first use.
    worker, workers: a distributed sampler's rank and world size.
    """

    kind: SourceKind
    words: str
    data_set: int
    population: int | None = None
    rate: float | None = None
    batch_size: int | None = None
    drop_last: bool = False
    workers: int = 1


@dataclass(frozen=True)
class Lot:
    """The examples of one batch that a loader gave. draw: number of the draw that it is a piece of (a large Poisson
    batch is given in pieces); round: number of the loader's pass. indices: None where they cannot be seen.
    """

    source: Source
    draw: tuple[int, int]
    round: tuple[int, int]
    indices: tuple[int, ...] | None


@dataclass(frozen=True)
class Step:
    """One step of an optimiser that changed parameters.

    private: noise was added by a DPOptimizer. std: standard deviation of the noise on the sum of gradients as the
    optimiser is set (its own words); clip: the norm to which gradients are clipped; noise_clip: the one in ``std``.
    moved: the flat difference of noisy and clean sum, a sample of coordinates; applied: what the inner optimiser gets.
    lots: the batches whose gradients are in it. sizes: examples per backward pass.
    """

    private: bool
    optimiser: int
    kind: str
    lots: tuple[Lot, ...]
    noise_multiplier: float = 0.0
    clip: float = math.inf
    noise_clip: float = math.inf
    std: float = 0.0
    expected_batch_size: float | None = None
    loss_reduction: str = "mean"
    clean: Numbers | None = None
    moved: Numbers | None = None
    applied: Numbers | None = None
    forward_is_random: bool = False
    #: Whether the clip norm follows a noisy count (adaptive clipping).
    counted: bool = False
    rank: int = 0

    @property
    def examples(self) -> int | None:
        """How many examples are in it; None where that cannot be seen."""
        sizes = [None if lot.indices is None else len(lot.indices) for lot in self.lots]
        return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)


@dataclass
class Accounted:
    """One accountant: its kind, the steps that it was told (as they were told), and its history at the end."""

    kind: str
    told: list[tuple[float, float]] = field(default_factory=list)
    history: list[tuple[float, float, int]] = field(default_factory=list)
    #: (delta, epsilon, steps of the loop so far) of each time that it was asked.
    answers: list[tuple[float, float, int]] = field(default_factory=list)
    object: Any = None

    @property
    def steps(self) -> int:
        return sum(count for _, _, count in self.history)


@dataclass(frozen=True)
class Engine:
    """A call of make_private or make_private_with_epsilon."""

    poisson_sampling: bool
    accountant: int
    noise_multiplier: float | None
    target: tuple[float, float] | None  # epsilon, delta
    epochs: int | None
    secure_mode: bool
    #: len() of the loader that it was given.
    batches: int


@dataclass
class LoopRecord:
    """Everything seen of one execution of a loop."""

    steps: list[Step] = field(default_factory=list)
    accountants: list[Accounted] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)
    returned: Any = None
    #: Models that gradient samples were taken of, as they are at the end.
    models: list[Any] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)  # layers that mix the examples of a batch
    #: Why the loop did not end on its own; None: it did.
    cut: str | None = None
    #: Batches whose examples could not be followed into a step.
    untraced: int = 0
    data_sets: Mapping[int, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def private_steps(self) -> list[Step]:
        return [step for step in self.steps if step.private]

    @property
    def bare_steps(self) -> list[Step]:
        return [step for step in self.steps if not step.private]

    @property
    def sources(self) -> Sequence[Source]:
        """Every loader that fed a step, once each."""
        return list(dict.fromkeys(lot.source for step in self.steps for lot in step.lots))
