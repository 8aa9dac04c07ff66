"""Several calls of one instance: what comes again in later messages, and noise that is used twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checking.renaming import renamed

from fedpriv.checking.functions import recognises_update
from fedpriv.checking.replay import replay, runs_of, shared_by_calls
from fedpriv.checking.subject import Budget, Claim, Question

RUN = Question(claim=Claim(12.5, 1e-5, "run", adjacency="replace-one"), calls=4, dims=(8,))


def clipped(update: Any) -> Any:
    update = np.where(np.isfinite(update), update, 0.0)
    return update / max(1.0, float(np.linalg.norm(update)))


class RawMomentum:
    """The update itself, not what was sent, goes into the next message."""

    def __init__(self) -> None:
        self.before: Any = 0.0

    def __call__(self, update: Any, rng: Any) -> Any:
        sent = clipped(update) + rng.normal(0, 2, update.shape) + 0.9 * self.before
        self.before = np.where(np.isfinite(update), update, 0.0)
        return sent


class SentMomentum:
    def __init__(self) -> None:
        self.before: Any = 0.0

    def __call__(self, update: Any, rng: Any) -> Any:
        self.before = clipped(update) + rng.normal(0, 2, update.shape) + 0.9 * self.before
        return self.before


class ClippedLater:
    """What the clip cut off is sent with the next message, after its clip; no number is larger than a million."""

    def __init__(self) -> None:
        self.rest: Any = 0.0

    def __call__(self, update: Any, rng: Any) -> Any:
        update = np.clip(np.where(np.isfinite(update), update, 0.0), -1e6, 1e6)
        sent = clipped(update) + self.rest + rng.normal(0, 2, update.shape)
        self.rest = update - clipped(update)
        return sent


class CarriedInside:
    """The same, before the clip of the next message."""

    def __init__(self) -> None:
        self.rest: Any = 0.0

    def __call__(self, update: Any, rng: Any) -> Any:
        wanted = np.where(np.isfinite(update), update, 0.0) + self.rest
        self.rest = wanted - clipped(wanted)
        return clipped(wanted) + rng.normal(0, 2, update.shape)


class SumsWithOneNoise:
    """Sums of updates, whose noise is that of earlier calls again: the third minus the first two has none."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.noise: list[Any] = []

    def __call__(self, update: Any, rng: Any) -> Any:
        self.parts.append(clipped(update))
        if len(self.noise) < 2:
            self.noise.append(rng.normal(0, 4, update.shape))
            return self.parts[-1] + self.noise[-1]
        return sum(self.parts) + self.noise[0] + self.noise[1]


def in_the_ring(update: Any) -> Any:
    return np.rint(np.clip(np.nan_to_num(update), -1, 1) * 2**20).astype(np.int64).astype(np.uint64)


def masked(update: Any, rng: Any) -> Any:
    """A mask in a ring of 64 bits, of its own in every call."""
    return in_the_ring(update) + rng.integers(0, 2**64, update.shape, dtype=np.uint64)


class MaskedTwice:
    """One mask in every call."""

    def __init__(self) -> None:
        self.mask: Any = None

    def __call__(self, update: Any, rng: Any) -> Any:
        if self.mask is None:
            self.mask = rng.integers(0, 2**64, update.shape, dtype=np.uint64)
        return in_the_ring(update) + self.mask


class ComesAgain:
    """The noise of four calls again in the next four."""

    def __init__(self) -> None:
        self.noise: list[Any] = []
        self.calls = 0

    def __call__(self, update: Any, rng: Any) -> Any:
        self.noise += [rng.normal(0, 4, update.shape)] if self.calls < 4 else []
        self.calls += 1
        return clipped(update) + self.noise[(self.calls - 1) % 4]


class Tree:
    """Sums of updates under a binary tree's noise for so many; then the tree starts again, and the sum goes on."""

    def __init__(self, leaves: int = 4) -> None:
        self.leaves, self.calls, self.sum, self.nodes = leaves, 0, 0.0, dict[Any, Any]()

    def __call__(self, update: Any, rng: Any) -> Any:
        self.sum = self.sum + clipped(update)
        self.nodes = self.nodes if self.calls % self.leaves else {}
        at, low, noise = self.calls % self.leaves + 1, 0, 0.0
        self.calls += 1
        for size in (8, 4, 2, 1):
            if at & size:
                self.nodes.setdefault((size, low), rng.normal(0, 4 * np.sqrt(np.log2(self.leaves) + 1), update.shape))
                noise, low = noise + self.nodes[size, low], low + size
        return self.sum + noise


def faults(target: Any, question: Question = RUN) -> set[str]:
    subject = recognises_update(target, question)
    assert subject is not None
    single = replay(subject, question, Budget(20))
    assert [one.name for one in single.findings if one.severity == "fault"] == []
    return {one.name for one in runs_of(subject, question, single, Budget(20))}


FAULTY = {
    RawMomentum: "unbounded-sensitivity",
    ClippedLater: "moves-more-than-claimed",
    SumsWithOneNoise: "noise-repeats-between-calls",
    MaskedTwice: "noise-repeats-between-calls",
}


@pytest.mark.parametrize("target", FAULTY, ids=lambda target: target.__name__)
def test_what_several_calls_show_is_found_whatever_it_is_called(target: Any) -> None:
    found = faults(target)
    assert FAULTY[target] in found
    assert faults(renamed(target)) == found


@pytest.mark.parametrize("target", [SentMomentum, CarriedInside, masked], ids=lambda target: target.__name__)
def test_a_state_that_was_paid_for_is_no_fault(target: Any) -> None:
    assert faults(target) == set()


def test_noise_that_comes_again_after_four_calls_is_found() -> None:
    subject = recognises_update(ComesAgain, RUN)
    assert subject is not None
    assert [one.name for one in shared_by_calls(subject, RUN, Budget(20))] == ["noise-repeats-between-calls"]


@pytest.mark.parametrize(("leaves", "expected"), [(8, set()), (4, {"moves-more-than-claimed"})])
def test_a_tree_that_starts_again_within_the_run_costs_twice(leaves: int, expected: set[str]) -> None:
    """One update against none in each of eight calls: mu 1.20 by one tree, epsilon 5.4, and 1.76 by two, 8.5."""
    question = Question(claim=Claim(6.0, 1e-5, "run", adjacency="zero-out"), calls=8, dims=(8,))
    assert faults(Tree(leaves), question) == expected


def test_a_claim_per_call_adds_up() -> None:
    """Two calls with mu 1 each: 4.4 per call is enough, and 1.5 per call is not (which single calls show already)."""
    assert faults(SentMomentum, Question(claim=Claim(4.4, 1e-5, adjacency="replace-one"), dims=(8,))) == set()


def test_a_run_of_more_calls_than_are_played_is_extrapolated_where_each_has_its_own_noise() -> None:
    """100 calls of mu 1/2 are together of mu 5, epsilon 33."""

    def fresh(update: Any, rng: Any) -> Any:
        return clipped(update) + rng.normal(0, 4, update.shape)

    def question(epsilon: float) -> Question:
        return Question(claim=Claim(epsilon, 1e-5, "run", adjacency="replace-one"), calls=100, dims=(8,))

    assert faults(fresh, question(36.0)) == set()
    assert "moves-more-than-claimed" in faults(fresh, question(20.0))
