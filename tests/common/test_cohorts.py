"""Cohorts of a plan of participation: who is asked how often is known, and order tells nothing else."""

from __future__ import annotations

import hashlib
from collections import Counter
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.common.cohort_messages import cohort_content, read_cohort
from fedpriv.common.cohorts import balanced_cohort, cohort_of
from fedpriv.common.replies import Reply
from fedpriv.common.seeds import draw_cohort, generator, generators, seed_words
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


# --- generators of many keys at once ---------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(numbers=st.lists(st.integers(0, 2**128 - 1), min_size=1, max_size=5), count=st.integers(1, 6))
def test_words_of_many_seeds_are_numpys(numbers: list[int], count: int) -> None:
    """Also of numbers with fewer than 128 bits, which numpy pads."""
    found = seed_words(
        np.array([[number >> 32 * k & 0xFFFFFFFF for k in range(4)] for number in numbers], np.uint32), count
    )
    expected = [np.random.SeedSequence(number).generate_state(count, np.uint64) for number in numbers]
    assert np.array_equal(found, np.array(expected))


def test_a_generator_is_its_keys_whoever_is_made_beside_it() -> None:
    keys: list[tuple[int | str, ...]] = [(3, client, 7, 0, "batches") for client in (0, 1, 10**6)]
    for key, made in zip(keys, generators(keys), strict=True):
        text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest())
        plain = np.random.Generator(np.random.Philox(number))
        expected = [
            plain.random(),
            plain.permutation(9).tolist(),
            plain.spawn(2)[1].random(),
            plain.spawn(1)[0].random(),
        ]
        for one in (made, generator(*key)):
            drawn = [one.random(), one.permutation(9).tolist(), one.spawn(2)[1].random(), one.spawn(1)[0].random()]
            assert drawn == expected


# --- one reply for a cohort ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_cohorts_release_that_is_not_finite_is_refused_alone(ragged: bool, wrong: float) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows[1, 2] = wrong
    releases = [*rows[:3], rows[3, :2]] if ragged else rows
    content = cohort_content(range(4), range(4), releases, {"s": [0.0, 1.0, 2.0, 3.0]}, {}, {})
    found = dict(read_cohort(cast(Message, SimpleNamespace(content=content)), 3, lambda client: 1, ["s"]))
    codes = {client: getattr(reply, "kind", "") for client, reply in found.items()}
    assert codes == {0: "", 1: "not_finite", 2: "", 3: "wrong_shape" if ragged else ""}
    kept = found[2]
    assert isinstance(kept, Reply) and kept.statistics == {"s": 2.0} and kept.release.tolist() == [6.0, 7.0, 8.0]
