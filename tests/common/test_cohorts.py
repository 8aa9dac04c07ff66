"""Cohorts of a plan of participation: who is asked how often is known, and order tells nothing else."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.common.cohorts import balanced_cohort, cohort_of
from fedpriv.common.seeds import draw_cohort
from fedpriv.config.participation import passes_needed


@settings(max_examples=200, deadline=None)
@given(clients=st.integers(1, 40), share=st.floats(0, 1), rounds=st.integers(1, 30), seed=st.integers(0, 2**64))
def test_everybody_is_asked_equally_often_and_never_twice_in_a_round(
    clients: int, share: float, rounds: int, seed: int
) -> None:
    size = max(1, round(share * clients))
    asked: Counter[int] = Counter()
    for number in range(1, rounds + 1):
        cohort = balanced_cohort(seed, number, clients, size)
        assert cohort == sorted(set(cohort)) and len(cohort) == size and set(cohort) <= set(range(clients))
        asked.update(cohort)
        counts = [asked[client] for client in range(clients)]
        assert max(counts) == passes_needed(number, clients, size) and max(counts) - min(counts) <= 1


def test_cohorts_are_disjoint_until_everybody_was_asked() -> None:
    cohorts = [balanced_cohort(3, number, 1000, 83) for number in range(1, 13)]
    assert len({client for cohort in cohorts for client in cohort}) == 12 * 83


def test_a_cohort_is_uniform_and_depends_on_the_seed() -> None:
    """Each of 10 clients is in round 2's cohort of 3 with probability 0.3: 5 standard deviations of 3,000 draws."""
    counts = Counter(client for seed in range(3000) for client in balanced_cohort(seed, 2, 10, 3))
    spread = np.sqrt(3000 * 0.3 * 0.7)
    assert all(abs(counts[client] - 900) < 5 * spread for client in range(10))


def test_a_round_can_be_drawn_without_those_before_it() -> None:
    later = balanced_cohort(5, 9000, 11, 4)  # of pass 3,272
    assert balanced_cohort(5, 7, 11, 4) == [balanced_cohort(5, number, 11, 4) for number in range(1, 9)][6]
    assert balanced_cohort(5, 9000, 11, 4) == later


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_a_lottery_is_what_it_was(sampling: str) -> None:
    assert cohort_of(1, 4, 50, 10, sampling) == draw_cohort(1, 4, 50, 10, sampling)
    assert cohort_of(1, 4, 50, 10, "fixed", "once") == balanced_cohort(1, 4, 50, 10)
