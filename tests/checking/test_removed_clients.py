"""A client that sends no reply: what a claim about one client more or less is compared with."""

from __future__ import annotations

from typing import Any

import flwr.server.strategy as older
import flwr.serverapp.strategy as newer
import numpy as np
import pytest
from scipy.stats import chi2

from fedpriv.checking.flower_cohort import Cohort
from fedpriv.checking.flower_messages import Trained, plain
from fedpriv.checking.flower_strategies import StrategySubject, known_strategy
from fedpriv.checking.reading import Numbers
from fedpriv.checking.replay import replay
from fedpriv.checking.statistics import Two, independent_numbers, length_epsilon, scale_of
from fedpriv.checking.subject import Budget, Claim, Question
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from tests.checking.test_flower_strategies import Noisy

REMOVED = Question(claim=Claim(4.4, 1e-5, adjacency="add-or-remove-one", unit="client"), dims=(16, 256))
ZEROED = Question(claim=Claim(4.4, 1e-5, adjacency="zero-out", unit="client"), dims=(16, 256))


class Sums(Noisy):
    """Noise for one client more or less, over a constant."""

    std = 1.0


class Adaptive(Sums):
    """The next norm follows a count of bits less one half, with noise: one reply more moves it by half."""

    norm = 1.0

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        rows = [self.row(reply) for reply in replies]
        lengths = [float(np.linalg.norm(row)) for row in rows]
        total = np.sum([row / max(1.0, size / self.norm) for row, size in zip(rows, lengths, strict=True)], axis=0)
        noise = np.random.normal(0.0, 2.0 * self.norm, total.shape)  # noqa: NPY002
        bits = sum((size <= self.norm) - 0.5 for size in lengths) + np.random.normal(0.0, 0.7)  # noqa: NPY002
        self.norm *= float(np.exp(-0.2 * bits / self.clients))
        return self.record(replies, (total + noise) / self.clients), None

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        config["norm"] = self.norm
        return super().configure_train(server_round, arrays, config, grid)


class MeanOfReplies(Sums):
    """The divisor counts replies, the noise is for ten."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        rows = [self.row(reply) for reply in replies]
        mean = np.mean([row / max(1.0, float(np.linalg.norm(row))) for row in rows], axis=0)
        return self.record(replies, mean + self.noise(mean) / self.clients), None


class NoiseByReplies(Sums):
    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.clients = len(replies)
        return super().aggregate_train(server_round, replies)


class Follows(Sums):
    """Clips to the longest update, if that is below 1, and scales its noise to it."""

    start: Any = 0.0

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.start = np.concatenate([array.numpy().ravel() for array in arrays.values()])
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        rows = [self.row(reply) - self.start for reply in replies]
        self.std = min(1.0, max(float(np.linalg.norm(row)) for row in rows))
        total = np.sum([row / max(1.0, float(np.linalg.norm(row)) / self.std) for row in rows], axis=0)
        return self.record(replies, (total + self.noise(total)) / self.clients), None


class AllOrNothing(Sums):
    std = 2.0

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return super().aggregate_train(server_round, replies) if len(replies) >= self.clients else (None, None)


def faults(kind: Any, question: Question) -> set[str]:
    found = StrategySubject(kind(fraction_evaluate=0.0), question)
    seen = replay(found, question, Budget(2.5)).findings
    return {one.name for one in [*found.notes, *seen] if one.severity == "fault"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Sums, set()),
        (Adaptive, set()),
        (MeanOfReplies, {"moves-more-than-claimed"}),
        (NoiseByReplies, {"noise-depends-on-data"}),
        (Follows, {"noise-depends-on-data"}),
        (AllOrNothing, set()),
    ],
)
@pytest.mark.rotates(3)
def test_a_claim_about_one_client_more_is_compared_with_a_missing_reply(kind: Any, expected: set[str]) -> None:
    assert faults(kind, REMOVED) == expected


def test_pairs_are_of_the_adjacency_that_is_claimed() -> None:
    removed = StrategySubject(Sums(fraction_evaluate=0.0), REMOVED).pairs
    assert [pair.adjacency for pair in removed] == ["add-or-remove-one"] * (len(removed) - 1) + ["replace-one"]
    assert len({pair.name for pair in removed}) == len(removed)
    assert {pair.adjacency for pair in StrategySubject(Sums(fraction_evaluate=0.0), ZEROED).pairs} == {"zero-out"}


def test_where_no_model_leaves_with_a_reply_fewer_it_is_told_and_an_empty_update_is_compared() -> None:
    found = StrategySubject(AllOrNothing(fraction_evaluate=0.0), REMOVED)
    assert "round-needs-all-replies" in {one.name for one in found.notes}
    assert {pair.adjacency for pair in found.pairs} == {"zero-out"}
    assert "round-needs-all-replies" not in {one.name for one in StrategySubject(Sums(), REMOVED).notes}


@pytest.mark.parametrize("api", [newer, older])
def test_silent_clients_send_no_reply(api: Any) -> None:
    """A plain mean of three clients of two numbers each."""
    name = "train" if api is newer else "fit"
    found = StrategySubject(api.FedAvg(**{f"min_{name}_{'nodes' if api is newer else 'clients'}": 2}), ZEROED)
    found.nodes = 3
    answers = tuple(Trained(plain(4, length)) for length in (3.0, 5.0, 9.0))

    def moved(silent: int) -> float:
        one, none = (found.play(Cohort(part, silent), 1)[0].numbers for part in (answers, answers[:1]))
        start = found.play(Cohort((Trained(plain(4, 0.0)),)), 1)[0].numbers
        assert none.keys() == one.keys()
        return sum(float((one[key] - start[key]).sum()) for key in one if key.startswith("model."))

    assert [moved(silent) / 2 for silent in (0, 1, -2, -1)] == pytest.approx([17 / 3, 7.0, 7.0, 9.0], rel=1e-5)


# --- recognised ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", [newer, older])
def test_of_a_mean_of_replies_one_client_more_moves_twice_as_much(api: Any) -> None:
    """Played: a reply that is opposite to all others, or none."""
    wrapper = api.DifferentialPrivacyServerSideFixedClipping(api.FedAvg(), 1.5, 0.7, 6)
    (removed,), (zeroed,) = (known_strategy(wrapper, question) for question in (REMOVED, ZEROED))
    assert removed.event is not None
    assert zeroed.event is not None
    assert (removed.event.gaussian_multiplier, zeroed.event.gaussian_multiplier) == (0.75, 1.5)
    found = StrategySubject(wrapper, REMOVED)
    pair = next(one for one in found.pairs if "opposite" in one.name)
    sides = [found.play(data, 3)[0].numbers for data in (pair.left, pair.right)]
    moved = np.concatenate([sides[0][name] - sides[1][name] for name in sides[0] if name.startswith("model.")])
    assert float(np.linalg.norm(moved)) == pytest.approx(2 * 0.7 / 6, rel=0.02)


@pytest.mark.parametrize(
    "strategy",
    [
        newer.DifferentialPrivacyServerSideAdaptiveClipping(newer.FedAvg(), 1.0, 12, 0.5),
        older.DPFedAvgFixed(older.FedAvg(), 6, 0.7, 1.5),
    ],
)
def test_where_noise_is_divided_by_replies_nothing_is_proved_of_one_more(strategy: Any) -> None:
    (removed,), (zeroed,) = (known_strategy(strategy, question) for question in (REMOVED, ZEROED))
    assert zeroed.event is not None
    assert (removed.event, removed.reason) == (None, None)
    assert "noise-by-replies" in {one.name for one in removed.findings}


# --- the scale of noise ------------------------------------------------------------------------------------------


def lengths(sides: tuple[Numbers, Numbers], delta: float = 1e-5) -> Any:
    records = np.array(["released"] * sides[0].shape[1])
    return scale_of(Two("", *sides, records, True), [lambda many, side=side: side[:many] for side in sides], delta)


@pytest.mark.parametrize(("numbers", "ratio"), [(4, 2.0), (64, 1.3), (256, 2.0)])
def test_the_figure_of_a_length_is_that_of_a_test_that_can_be_made(numbers: int, ratio: float) -> None:
    """On a finer grid of lines."""
    figure = length_epsilon(numbers, ratio, 1e-5)
    line = np.linspace(0.01, 3, 5000) * numbers
    shown = np.log(np.maximum(chi2.cdf(line * ratio**2, numbers) - 1e-5, 1e-300)) - chi2.logcdf(line, numbers)
    assert figure == pytest.approx(float(shown[np.isfinite(shown)].max()), rel=0.05)
    assert figure > 1


def test_equal_and_random_scales_are_told_from_those_that_follow_the_data() -> None:
    generator = np.random.default_rng(5)
    noise = generator.normal(size=(2, 64, 128))
    assert lengths((noise[0], noise[1])) is None
    doubled = lengths((noise[0], 2 * noise[1]))
    assert doubled.ratio == pytest.approx(2, rel=0.05)
    assert doubled.epsilon > 10
    shared = np.repeat(noise[:, :, :1], 128, axis=2)  # one number 128 times: its length tells little
    assert lengths((shared[0], 2 * shared[1])) is None or lengths((shared[0], 2 * shared[1])).epsilon < 4
    assert independent_numbers(noise[0]) > 128 / 4
    assert independent_numbers(shared[0] - shared[0].mean(0)) < 4
    wide = np.exp(0.5 * generator.normal(size=(2, 64, 1)))  # a scale that is random itself
    assert lengths((wide[0] * noise[0], 1.2 * wide[1] * noise[1])) is None


def test_few_plays_are_not_judged() -> None:
    noise = np.random.default_rng(6).normal(size=(2, 8, 4))
    assert lengths((noise[0], 2 * noise[1])) is None


def test_a_gaussian_of_one_number_is_no_more_than_its_epsilon() -> None:
    """Of one number a scale shows less than a shift of the same size would."""
    assert length_epsilon(1, 1.5, 1e-5) < gaussian_epsilon(1.5, 1e-5)
    assert length_epsilon(1, 1.0, 1e-5) == 0
