"""An attack on the guard itself: its own release code, at its own number of shards and of numbers, on worst-case apps.

The app is the attacker's: every shard answers with the longest vector along one direction, and one row more turns one
shard's answer to the opposite, or, where single units alone are asked, makes it none. What is seen of a trial: the
release along that direction, what else of its first numbers, and its length. In a sum the noise of other machines that
the observer does not know is added as their guards draw it. What is fixed before (draws of shards, grid, clipping) is
what a node runs: `Terms.drawn`, `Terms.release`.

Where no delta is given, the attack is at the one at which it would find a guard with half of its noise in the fewest
trials: the event that is booked bounds epsilon at every delta, and at a budget's delta it takes several times as many.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.guard.release import Terms, claimed_epsilon
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.auditor import Audit, audit, expected_bound, verdict, verified_curve
from fedpriv.privacy.events import Gaussian

#: First numbers of a release that are shown as they are.
FEATURES = 6
#: How much less noise an audit finds unless told otherwise: the least that a mistake in a constant makes.
PLANTED = 2.0
#: Of the measured trials those that count for the best rule: the learnt one is not as good. And epsilons above the
#: booked one that a finding should show.
LEARNING, MARGIN = 0.6, 0.01
#: Numbers drawn at most: trials, times shards and numbers.
MOST_NUMBERS = 4e8


@dataclass(frozen=True)
class GuardAudit:
    """audit: of one answer; verified: the epsilon that the ledger books for it, at the audit's delta."""

    audit: Audit
    verified: float
    verdict: str


def audit_guard(
    terms: Terms, dimension: int, delta: float | None, trials: int | None, confidence: float, seed: int = 0
) -> GuardAudit:
    """Attacks one answer about a model of so many numbers. Fewer trials where all of them would take too long.

    delta, trials: None: what it takes to find `PLANTED` times less noise (`best_test`).
    """
    best = best_test(terms, dimension, confidence) if delta is None or trials is None else (delta, trials)
    delta, trials = best[0] if delta is None else delta, best[1] if trials is None else trials
    trials = max(400, min(trials, int(MOST_NUMBERS / (4 * terms.shards * dimension))))
    along = np.ones(dimension) / dimension**0.5
    # five times as long as the guard allows: it is the guard that clips
    longest = 5.0 * terms.clip * along
    others = [longest] * (terms.shards - 1)
    worlds = [[longest, *others], [0 * along if terms.single else -longest, *others]]

    def sample(world: bool, count: int, purpose: int) -> NDArray[np.float64]:
        source = SeededNoise("guard audit", seed, purpose)
        found = np.empty((count, FEATURES + 2))
        for trial in range(count):
            found[trial] = _features(terms, _seen(terms, worlds[world], dimension, source), along)
        return found

    one = audit(sample, delta=delta, trials=trials, confidence=confidence, seed=seed)
    verified = claimed_epsilon(terms, dimension, 1, delta)
    said = verdict(one, verified, True, verified=verified, expected=0.0)
    return GuardAudit(one, verified, said)


def best_test(terms: Terms, dimension: int, confidence: float) -> tuple[float, int]:
    """The delta, and the number of trials, that are enough to find a guard with `PLANTED` times less noise."""
    curves = []
    for factor in (1.0, PLANTED):
        noisy = replace(terms, noise_multiplier=terms.noise_multiplier / factor)
        event = noisy.event(dimension)
        if terms.in_sum:  # the Gaussian that is close to it chooses where to look; what is booked there is exact
            event = Gaussian(threat=event.threat, multiplier=noisy.noise_multiplier * terms.noises**0.5 / terms.moves)
        curves.append(verified_curve([event], 1e-5))
    booked, planted = curves

    def gains(trials: int) -> dict[float, float]:
        """By delta: how far above the booked epsilon the bound on planted noise would be."""
        measured = int(trials / 2 * LEARNING)
        return {delta: expected_bound(planted, measured, delta, confidence) - epsilon for epsilon, delta in booked}

    enough = [round(400 * 1.25**step) for step in range(36)]
    trials = enough[min(bisect_left(enough, True, key=lambda count: max(gains(count).values()) > MARGIN), 35)]
    found = gains(trials)
    return max(found, key=found.__getitem__), trials


def _seen(
    terms: Terms, answers: Sequence[NDArray[np.float64]], dimension: int, source: SeededNoise
) -> NDArray[np.float64]:
    """One trial, in units of the noise in what the observer sees."""
    drawn = [answers[shard] for shard in terms.drawn(source)]
    release = terms.release(drawn, dimension, source).double()
    if not terms.in_sum:
        found: NDArray[np.float64] = release.numpy() / terms.noise_multiplier
        return found
    grid = terms.grid(dimension)
    release += grid.noise(torch.Size((terms.noises - 1, dimension)), source).sum(0)
    return np.asarray(release.numpy() / (grid.sigma * terms.noises**0.5))


def _features(terms: Terms, seen: NDArray[np.float64], along: NDArray[np.float64]) -> NDArray[np.float64]:
    first = np.zeros(FEATURES)
    first[: min(FEATURES, seen.size)] = seen[:FEATURES]
    return np.array([seen @ along, float(np.linalg.norm(seen)), *first])
