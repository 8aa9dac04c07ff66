"""Targets that are played in rounds: one input for each, a state of their own between them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from fedpriv.checking.generators import seeded, seeds_of
from fedpriv.checking.subject import Claim, Numbers, Played, Question, Recognised, Subject


class RoundsSubject(Subject):
    """A subject that says what leaves in rounds of a fresh instance."""

    @abstractmethod
    def rounds(self, data: Sequence[Any]) -> Iterator[dict[str, Numbers]]:
        """What leaves in each round, of a fresh instance whose generators are seeded by then."""

    def quiet(self) -> AbstractContextManager[None]:
        """Around plays: what the target logs is not written."""
        return nullcontext()

    def play(self, data: Any, seed: int | None, calls: int = 1) -> list[Played]:
        return self.series([data] * calls, seed)

    def series(self, data: Sequence[Any], seed: int | None) -> list[Played]:
        with seeded(seed), self.quiet():
            return [Played(numbers) for numbers in self.rounds(data)]

    def trials(self, data: Any, n: int, seed: int) -> Numbers:
        """One stream of randomness for all n plays."""
        (seed,) = seeds_of(seed, 1)
        with seeded(seed), self.quiet():
            return np.stack([Played(next(self.rounds([data]))).flat() for _ in range(n)])


def claim_of(recognised: Sequence[Recognised], question: Question, source: str, adjacency: str) -> Claim | None:
    """The user's own claim; otherwise the first of the recognised parts. delta of a pure claim is the question's."""
    if question.claim is not None:
        return question.claim
    for one in recognised:
        if one.claimed is not None and one.delta is not None and one.delta < 1:
            return Claim(one.claimed, one.delta or question.at_delta, one.scope, source, adjacency)
    return None
