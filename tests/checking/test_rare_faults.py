"""Faults that the usual neighbours, or two calls after each other, do not show: noise that ends, noise of a stock, and
rules on raw answers that one client tips. Each beside sound targets of the same form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

from fedpriv.checking.checks import check_object
from fedpriv.checking.flower_strategies import StrategySubject, moved, telling_cohorts
from fedpriv.checking.functions import Form, recognises_update, telling_rows
from fedpriv.checking.reading import Played
from fedpriv.checking.replay import repeats, replay, shared_by_calls
from fedpriv.checking.result import LEAST_COVERAGE, Check
from fedpriv.checking.statistics import ERROR, Two, ended, lower, reach_of, upper
from fedpriv.checking.subject import Budget, Claim, Question

CLAIMED = Question(claim=Claim(4.4, 1e-5, adjacency="replace-one"), dims=(16,))


def clipped(update: Any) -> Any:
    update = np.where(np.isfinite(update), update, 0.0)
    return update / max(1.0, float(np.linalg.norm(update)))


# --- noise that ends ----------------------------------------------------------------------------------------------


def plain(update: Any, rng: Any) -> Any:
    return clipped(update) + 2.0 * rng.standard_normal(update.shape)


def redrawn(update: Any, rng: Any) -> Any:
    noise = rng.standard_normal(update.shape)
    while (far := np.abs(noise) > 2.0).any():
        noise[far] = rng.standard_normal(int(far.sum()))
    return clipped(update) + 2.0 * noise


def even(update: Any, rng: Any) -> Any:
    return clipped(update) + rng.uniform(-4, 4, update.shape)


def within_a_range(update: Any, rng: Any) -> Any:
    """The sum is cut, not the noise: that is sound."""
    return np.clip(plain(update, rng), -2.5, 2.5)


@pytest.mark.parametrize(
    ("target", "expected"), [(plain, False), (within_a_range, False), (redrawn, True), (even, True)]
)
def test_noise_that_ends_refutes_a_claim(target: Any, expected: bool) -> None:
    subject = recognises_update(target, CLAIMED)
    assert subject is not None
    played = replay(subject, CLAIMED, Budget(40))
    found = {one.name: one.severity for one in (*played.findings, *ended(subject, CLAIMED, played.kept, Budget(20)))}
    assert (found.get("noise-ends") == "fault") == expected


@pytest.mark.parametrize("law", ["normal", "laplace", "standard_t"])
def test_the_bound_of_reach_is_below_the_truth_and_noise_without_an_end_is_not_abrupt(law: str) -> None:
    rng = np.random.default_rng(4)
    draw = {
        "normal": lambda size: rng.normal(0, 1, size),
        "laplace": lambda size: rng.laplace(0, 1, size),
        "standard_t": lambda size: rng.standard_t(3, size),
    }[law]
    left = draw((96, 8))
    move = np.eye(1, 8)[0]
    two = Two("a pair", left, left + move, np.full(8, "released"), True)
    found = reach_of(two, draw((4000, 8)), 1e-5)
    assert found is not None and not found.abrupt
    assert found.epsilon <= {"normal": 4.38, "laplace": 1.0, "standard_t": 1.4}[law]  # exact ones at delta 1e-5


def test_what_never_came_is_bounded_as_binomials_are() -> None:
    none = 1 - (ERROR / 4) ** (1 / 1000)
    assert upper(0, 1000) == pytest.approx(none) and lower(1000, 1000) == pytest.approx(1 - none)
    assert lower(0, 1000) == 0.0 and upper(1000, 1000) == 1.0 and lower(300, 1000) < 0.3 < upper(300, 1000)


# --- noise of a stock ---------------------------------------------------------------------------------------------


class Stock:
    """A noise of so many, drawn when first used."""

    def __init__(self, many: int) -> None:
        self.many, self.kept = many, dict[int, Any]()

    def __call__(self, update: Any, rng: Any) -> Any:
        place = int(rng.integers(self.many))
        if place not in self.kept or len(self.kept[place]) != len(update):
            self.kept[place] = rng.normal(0, 2, update.shape)
        return clipped(update) + self.kept[place]


class Remembers:
    """One answer for one input, however often it is asked."""

    def __init__(self) -> None:
        self.answers = dict[bytes, Any]()

    def __call__(self, update: Any, rng: Any) -> Any:
        return self.answers.setdefault(update.tobytes(), plain(update, rng))


@pytest.mark.parametrize(
    ("target", "expected"), [(plain, False), (Remembers(), False), (Stock(16), True), (Stock(200), True)]
)
def test_noise_of_a_stock_is_found_in_calls_that_are_far_apart(target: Any, expected: bool) -> None:
    subject = recognises_update(target, CLAIMED)
    assert subject is not None
    found = shared_by_calls(subject, CLAIMED, Budget(20))
    assert [one.name for one in found] == (["noise-repeats-between-calls"] if expected else [])


def test_coarse_numbers_that_are_equal_by_chance_are_no_stock() -> None:
    rng = np.random.default_rng(1)
    coarse, fine = rng.integers(-3, 4, (48, 36, 3)).astype(float), rng.normal(size=(48, 36, 3))
    assert repeats(coarse, np.full(3, 1e-5)) == 0 and repeats(fine, np.full(3, 1e-5)) == 0
    fine[5, 3] = fine[40, 7]
    assert repeats(fine, np.full(3, 1e-5)) == 2


# --- rules on raw answers -----------------------------------------------------------------------------------------


class Mean(FedAvg):
    """A noisy mean of clipped updates, of those that ``kept`` keeps."""

    def kept(self, rows: list[Any]) -> list[Any]:
        return rows

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        rows = [np.concatenate([a.ravel() for a in parameters_to_ndarrays(one.parameters)]) for _, one in results]
        rows = [np.where(np.isfinite(row), row, 0.0) for row in rows]
        mean = sum(row / max(1.0, float(np.linalg.norm(row))) for row in self.kept(rows)) / 10
        noisy, place, found = mean + np.random.normal(0, 0.2, len(rows[0])), 0, []  # noqa: NPY002
        for array in parameters_to_ndarrays(results[0][1].parameters):
            found.append(noisy[place : place + array.size].reshape(array.shape))
            place += array.size
        return ndarrays_to_parameters(found), {}


class NearTheMedian(Mean):
    def kept(self, rows: list[Any]) -> list[Any]:
        sizes = [float(np.linalg.norm(row)) for row in rows]
        return [row for row, size in zip(rows, sizes, strict=True) if size <= 3 * np.median(sizes)]


class OnOneSide(Mean):
    def kept(self, rows: list[Any]) -> list[Any]:
        return [row for row in rows if float(row @ sum(rows)) >= 0]


class Shortest(Mean):
    def kept(self, rows: list[Any]) -> list[Any]:
        line = np.quantile([float(np.linalg.norm(row)) for row in rows], 0.8)
        return [row for row in rows if np.linalg.norm(row) <= 2 * line / 3 + 1e-9]


@pytest.mark.parametrize(("kind", "most"), [(Mean, 0.21), (NearTheMedian, None), (OnOneSide, None), (Shortest, None)])
def test_a_rule_that_one_client_tips_moves_the_model_beyond_its_own_part(kind: Any, most: float | None) -> None:
    subject = StrategySubject(kind(fraction_evaluate=0.0), CLAIMED)
    farthest = max(moved(subject.play, pair) for pair in telling_cohorts(subject.play, 16, 10))
    assert farthest <= most if most is not None else farthest > 0.3


def test_a_rule_on_the_gradients_of_all_rows_is_tipped() -> None:
    def play(kept: bool) -> Any:
        def one(data: Any, seed: int) -> Played:
            rows, sizes = data[0], np.linalg.norm(data[0], axis=1)
            line = 3 * np.median(sizes) if kept else np.inf
            parts = [row / max(1.0, size) for row, size in zip(rows, sizes, strict=True) if size <= line]
            return Played({"released": np.sum(parts, axis=0)})

        return one

    form = Form("two arrays", False, lambda x, y: (x, y))
    for kept in (False, True):
        (pair,) = telling_rows(form, 4, play(kept))
        one, other = (play(kept)(side, 1).flat() for side in (pair.left, pair.right))
        assert (np.linalg.norm(one - other) > 2.0) == kept  # one row against another, each clipped to 1


# --- time ---------------------------------------------------------------------------------------------------------


def test_a_check_says_what_it_had_no_time_for() -> None:
    short, long = (check_object(plain, Question(dims=(8,), trials=400), seconds=seconds) for seconds in (0.3, 60.0))
    assert long.verdict == "no fault found" and not any(layer.cut for layer in long.layers)
    replayed = next(layer for layer in short.layers if layer.name == "replayed")
    assert any(one.startswith("calls of each input: ") and one.endswith(" of 96") for one in replayed.cut)
    assert "seconds=" in replayed.cut_in_words
    assert Check.from_json(short.as_json()) == short


@pytest.mark.parametrize("claimed", [4.4, None])
def test_a_claim_that_nothing_was_compared_with_could_not_be_checked(claimed: float | None) -> None:
    """What is more than noise that is added is priced by sampling alone, for which there is no time."""

    def target(update: Any, rng: Any) -> Any:
        return rng.uniform(0.5, 1.0) * clipped(update) + 2.0 * rng.standard_normal(update.shape)

    claim = Claim(claimed, 1e-5, adjacency="zero-out") if claimed else None
    short, long = (check_object(target, Question(claim, dims=(8,), trials=400), seconds=one) for one in (0.08, 60.0))
    assert (short.audited, short.measured, long.verdict) == (None, None, "no fault found")
    assert short.coverage is not None and short.coverage > LEAST_COVERAGE
    assert short.verdict == ("could not check" if claimed else "no fault found")
    assert claimed is None or "too few trials" in short.last_line


def test_every_pair_is_replayed_before_further_calls_of_one_take_the_time() -> None:
    subject = recognises_update(plain, CLAIMED)
    assert subject is not None
    for seconds in (0.5, 1.0, 2.0, 4.0):
        budget = Budget(seconds)
        replay(subject, CLAIMED, budget)
        assert not [one for one in budget.cut if one.startswith("pairs")]
