"""Strategies as targets: each claim about what a round of Flower's wrappers really does is played."""

from __future__ import annotations

import math
from typing import Any

import flwr.server.strategy as older
import flwr.serverapp.strategy as newer
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod
from flwr.serverapp.strategy import dp_adaptive_clipping

from fedpriv.checking.flower_messages import LARGE, SMALL, Trained, plain, record
from fedpriv.checking.flower_strategies import StrategySubject, adaptive_epsilon, cohort, recognises
from fedpriv.checking.reading import Numbers
from fedpriv.checking.replay import replay
from fedpriv.checking.subject import Budget, Claim, Question
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

QUESTION = Question(dims=(16,))
UP, NONE = cohort(Trained(plain(16, LARGE))), cohort(Trained(plain(16, SMALL)))
BOTH: Any = pytest.mark.parametrize("api", [newer, older])


def subject(strategy: Any, **more: Any) -> StrategySubject:
    found = recognises(strategy, QUESTION)
    assert isinstance(found, StrategySubject)
    return StrategySubject(strategy, QUESTION, **more) if more else found


def model(found: StrategySubject, data: Any, seed: int = 1, call: int = 0) -> Numbers:
    numbers = found.play(data, seed, calls=call + 1)[call].numbers
    return np.concatenate([numbers[name] for name in sorted(numbers) if name.startswith("model.")])


def multiplier(found: StrategySubject, left: Any = UP, right: Any = NONE, plays: int = 60) -> float:
    """Noise over what one client moves, as played."""
    moved = np.linalg.norm(model(found, left) - model(found, right))
    noise = np.std([model(found, left, seed) for seed in range(plays)], axis=0)
    return float(np.sqrt((noise**2).mean()) / moved)


@BOTH
@pytest.mark.parametrize("side", ["Server", "Client"])
@pytest.mark.rotates(2)
def test_fixed_clipping_with_equal_weights_is_the_gaussian_that_it_claims(api: Any, side: str) -> None:
    kind = getattr(api, f"DifferentialPrivacy{side}SideFixedClipping")
    found = subject(kind(api.FedAvg(), 1.5, 0.7, 6))
    (known,) = found.recognised
    assert known.event is not None
    assert known.event.gaussian_multiplier == 1.5
    assert multiplier(found) == pytest.approx(1.5, rel=0.08)
    assert not [one for one in known.findings if one.severity == "fault"]


def test_client_side_clipping_without_its_mod_bounds_nothing() -> None:
    found = subject(newer.DifferentialPrivacyClientSideFixedClipping(newer.FedAvg(), 1.5, 0.7, 6), mods=[])
    assert multiplier(found, plays=12) < 0.01


@BOTH
@pytest.mark.rotates(2)
def test_a_client_that_reports_more_examples_moves_further(api: Any) -> None:
    found = subject(api.DifferentialPrivacyServerSideFixedClipping(api.FedAvg(), 1.0, 1.0, 6))
    assert "weights-by-reported-counts" in {one.name for one in found.notes}
    heavy = cohort(Trained(plain(16, LARGE), examples=20_000_000))
    assert multiplier(found, heavy, plays=30) == pytest.approx(1 / 6, rel=0.2)
    if api is older:  # equal weights, whatever is reported
        fair = subject(older.DPFedAvgFixed(older.FedAvg(), 6, 1.0))
        assert "weights-by-reported-counts" not in {one.name for one in fair.notes}


@BOTH
@pytest.mark.rotates(2)
def test_with_fewer_replies_the_noise_stays_and_the_moves_grow(api: Any) -> None:
    name = "fraction_train" if api is newer else "fraction_fit"
    found = subject(api.DifferentialPrivacyServerSideFixedClipping(api.FedAvg(**{name: 1.0}), 1.0, 1.0, 6))
    assert "divided-by-replies" in {one.name for one in found.recognised[0].findings}
    found.nodes = 3
    assert multiplier(found) == pytest.approx(0.5, rel=0.1)


def accountant(**more: Any) -> RdpAccountant:
    relation, sampling = NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
    return RdpAccountant(PrivacyConfig(1e-5, 50, relation, sampling, **more))


def accounted(strategy_accountant: RdpAccountant) -> newer.DifferentialPrivacyServerSideFixedClipping:
    return newer.DifferentialPrivacyServerSideFixedClipping(newer.FedAvg(), 4.0, 1.0, 6, accountant=strategy_accountant)


def test_the_strategys_own_accountant_is_the_claim_and_runs_as_long_as_it_says() -> None:
    """Rounds that its limit admits are counted by running it to its end."""
    (known,) = subject(accounted(accountant(max_epsilon=5.0))).recognised
    assert (known.claimed, known.scope, known.delta) == (5.0, "run", 1e-5)
    assert known.calls is not None
    found, own = 0, accountant(max_epsilon=5.0)
    running = subject(accounted(own))
    rounds = running.kind_of_rounds(running.strategy, running.nodes, [])
    with pytest.raises(Exception, match="max_epsilon"):
        for number in range(1, 100):
            rounds.round(number, NONE)
            found = number
    assert found + 1 == known.calls  # the round that could not tell the next one's messages had left already
    assert gaussian_epsilon(math.sqrt(known.calls) / 4.0, 1e-5) <= 5.0
    assert gaussian_epsilon(2 * math.sqrt(known.calls) / 4.0, 1e-5) > 5.0  # of replaced clients it would not hold


def test_an_accountant_without_a_limit_claims_a_round_or_the_calls_that_are_asked_about() -> None:
    (one,) = subject(accounted(accountant())).recognised
    many = recognises(accounted(accountant()), Question(dims=(16,), calls=10))
    assert many is not None
    assert (one.scope, one.calls, many.recognised[0].scope, many.recognised[0].calls) == ("call", None, "run", 10)
    assert one.claimed is not None
    assert many.recognised[0].claimed is not None
    assert gaussian_epsilon(1 / 4.0, 1e-5) <= one.claimed < many.recognised[0].claimed


def test_unequal_weights_are_refused_where_it_is_accounted() -> None:
    found = subject(accounted(accountant()))
    with pytest.raises(ValueError, match="equal client weights"):
        found.play(cohort(Trained(plain(16, LARGE), examples=40)), 1)
    assert "weights-by-reported-counts" not in {one.name for one in found.notes}


def test_a_mean_is_needed() -> None:
    found = subject(newer.DifferentialPrivacyServerSideFixedClipping(newer.FedAdam(), 1.0, 1.0, 6))
    (known,) = found.recognised
    assert known.event is None
    assert [one.name for one in known.findings] == ["noise-after-another-aggregate"]
    little = cohort(Trained(plain(16, 1e-2)))
    back = cohort(Trained(plain(16, -1e-2)))
    assert np.linalg.norm(model(found, little) - model(found, back)) > 5 * 2 * 0.01 / 6


# --- adaptive norms --------------------------------------------------------------------------------------------


def adaptive(api: Any, side: str = "Server", **more: Any) -> Any:
    return getattr(api, f"DifferentialPrivacy{side}SideAdaptiveClipping")(api.FedAvg(), 1.0, 12, 0.5, **more)


ALL = cohort(Trained(plain(16, LARGE)), LARGE)


def stable(**more: Any) -> Any:
    """Next to no noise on the count, so that the norm's path is known."""
    return {"clipped_count_stddev": 0.51, **more}


@BOTH
@pytest.mark.rotates(2)
def test_the_noise_is_of_the_next_norm(api: Any) -> None:
    """All clipped, a fast rate: the noise is for a norm exp(-r (f - q)) times the one that clipped."""
    found = subject(adaptive(api, **stable(clip_norm_lr=2.0)))
    strategy = found.strategy
    noise = [model(found, ALL, seed) for seed in range(400)]
    spread = float(np.sqrt(np.var(noise, axis=0).mean()))
    given = strategy.noise_multiplier * 0.5 / 12
    shares = 1 + np.random.default_rng(1).normal(0, 0.51 / 12, 10_000)
    expected = given * float(np.sqrt(np.mean(np.exp(-4.0 * (shares - 0.5)))))
    assert spread == pytest.approx(expected, rel=0.05)
    assert spread < 0.5 * given
    assert "noise-of-the-next-norm" in {one.name for one in found.recognised[0].findings}


def test_mended_the_noise_is_of_this_norm() -> None:
    """The same wrapper whose norm is updated after the noise: the test above sees no other noise there."""

    class Mended(dp_adaptive_clipping.DifferentialPrivacyServerSideAdaptiveClipping):
        def _geometric_update(self, clipped_fraction: float) -> None:
            pass

    strategy = Mended(newer.FedAvg(), 1.0, 12, 0.5, clip_norm_lr=2.0, clipped_count_stddev=0.51)
    found = subject(strategy)
    spread = float(np.sqrt(np.var([model(found, ALL, seed) for seed in range(200)], axis=0).mean()))
    assert spread == pytest.approx(strategy.noise_multiplier * 0.5 / 12, rel=0.05)


@BOTH
@pytest.mark.rotates(2)
def test_the_norm_falls_when_all_are_clipped(api: Any) -> None:
    found = subject(adaptive(api, "Client", **stable()))
    name = "broadcast 0.config.config.clipping_norm" if api is newer else "broadcast 0.clipping_norm"
    fallen, grown = (found.play(data, 1, calls=3)[2].numbers[name][0] for data in (ALL, NONE))
    assert fallen < 0.5 < grown
    assert "norm-moves-away" in {one.name for one in found.recognised[0].findings}


def test_the_exact_share_of_clipped_clients_leaves_with_the_metrics() -> None:
    found = subject(adaptive(newer, "Client"))
    shares = {found.play(UP, seed)[0].numbers["metrics.norm_bit"][0] for seed in range(5)}
    assert list(shares) == [pytest.approx(1 / 12)]
    (known,) = found.recognised
    assert known.event is None
    assert "exact-share-in-metrics" in [one.name for one in known.findings if one.severity == "fault"]
    mended = newer.FedAvg(train_metrics_aggr_fn=lambda records, key: MetricRecord())
    strategy = newer.DifferentialPrivacyClientSideAdaptiveClipping(mended, 1.0, 12, 0.5)
    other = subject(strategy)
    assert "metrics.norm_bit" not in other.play(UP, 1)[0].numbers
    assert other.recognised[0].event is not None


def test_the_bound_of_an_adaptive_round_holds_by_brute_force() -> None:
    """delta at that epsilon, by integrating over the share f: what of P is above e^epsilon Q, one model coordinate."""
    strategy = adaptive(newer, clipped_count_stddev=1.0, clip_norm_lr=0.5)
    z, s, n, rate, target = strategy.noise_multiplier, 1.0, 12, 0.5, 0.5
    delta = 1e-3
    epsilon = adaptive_epsilon(strategy, delta)
    share = np.linspace(1 - 8 * s / n, 1 + 9 * s / n, 3001)
    counts = [np.exp(-0.5 * ((share * n - mean) / s) ** 2) * n / (s * math.sqrt(2 * math.pi)) for mean in (n, n - 1)]
    mu = np.exp(rate * (share - target)) / z
    x = np.linspace(-12, 12, 2001)
    normal = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    shifted = np.exp(-0.5 * (x[None, :] - mu[:, None]) ** 2) / math.sqrt(2 * math.pi)

    def exact(at: float) -> float:
        p, q = (count[:, None] * law for count, law in zip(counts, (shifted, normal[None, :]), strict=True))
        return float(np.trapezoid(np.trapezoid(np.maximum(p - math.exp(at) * q, 0), x, axis=1), share))

    assert exact(0.0) > 0.1
    assert exact(0.5 * epsilon) > delta  # the check can fail
    assert exact(epsilon) <= delta


# --- DPFedAvg --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_dpfedavg_is_the_gaussian_that_it_claims() -> None:
    found = subject(older.DPFedAvgFixed(older.FedAvg(), 6, 0.7, 1.5))
    assert found.recognised[0].event is not None
    assert found.recognised[0].event.gaussian_multiplier == 1.5
    assert multiplier(found) == pytest.approx(1.5, rel=0.08)
    twelve = subject(older.DPFedAvgAdaptive(older.FedAvg(), 24, 0.5, 1.0))
    event = twelve.recognised[0].event
    assert event is not None
    deviation = 24 / 20
    within = (1 - (2 * deviation) ** -2) ** -0.5
    assert event.gaussian_multiplier == pytest.approx((within**-2 + deviation**-2) ** -0.5)
    assert multiplier(twelve, plays=30) == pytest.approx(within, rel=0.12)


def test_metrics_and_evaluation_are_told() -> None:
    def told(strategy: Any) -> list[bool]:
        """Of each finding about bare metrics, whether it is of evaluation's."""
        return ["evaluation's" in one.text for one in subject(strategy).notes if one.name == "metrics-bare"]

    assert told(newer.FedAvg()) == [False, True]
    assert told(older.FedAvg()) == [True]


CLAIMED = Question(claim=Claim(4.4, 1e-5, adjacency="replace-one", unit="client"), dims=(16,))


class Noisy(newer.FedAvg):
    """Gaussian noise on a sum of updates that are clipped to 1, over the number of clients; no metrics."""

    clients, std = 10, 2.0

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        rows = [self.row(reply) for reply in replies]
        total = np.sum([row / max(1.0, float(np.linalg.norm(row))) for row in rows], axis=0)
        return self.record(replies, (total + self.noise(total)) / self.clients), self.metrics(replies)

    def noise(self, total: Numbers) -> Numbers:
        return np.random.normal(0.0, self.std, total.shape)  # noqa: NPY002

    def metrics(self, replies: Any) -> Any:
        return None

    @staticmethod
    def row(reply: Any) -> Numbers:
        arrays = next(iter(reply.content.array_records.values()))
        return np.concatenate([array.numpy().ravel().astype(float) for array in arrays.values()])

    @staticmethod
    def record(replies: Any, row: Numbers) -> ArrayRecord:
        arrays, found, place = next(iter(replies[0].content.array_records.values())), {}, 0
        for name, array in arrays.items():
            shape = array.numpy().shape
            found[name] = Array(row[place : place + math.prod(shape)].reshape(shape))
            place += math.prod(shape)
        return ArrayRecord(found)


class Shares(Noisy):
    def metrics(self, replies: Any) -> Any:
        values = [next(iter(reply.content.metric_records.values())).get("loss", 0.0) for reply in replies]
        return MetricRecord({"loss": float(np.mean(values)) + self.of_loss()})

    def of_loss(self) -> float:
        return 0.0


class NoisyShares(Shares):
    def of_loss(self) -> float:
        return float(np.random.laplace(0.0, 1.0))  # noqa: NPY002


class Middle(Noisy):
    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return self.record(replies, np.median([self.row(reply) for reply in replies], axis=0)), None


class Quieter(Noisy):
    std = 1.4


def faults(strategy: Any, question: Question = CLAIMED) -> set[str]:
    found = StrategySubject(strategy, question)
    findings = [*found.notes, *replay(found, question, Budget(6)).findings]
    return {one.name for one in findings if one.severity == "fault"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Noisy, set()),
        (Shares, {"metrics-bare"}),
        (NoisyShares, set()),
        (Middle, {"no-randomness"}),  # among clients that answer alike it never moves
        (Quieter, {"moves-more-than-claimed"}),  # between opposite updates alone
    ],
)
@pytest.mark.rotates(3)
def test_a_strategy_of_unknown_make_is_judged_by_what_it_publishes(kind: Any, expected: set[str]) -> None:
    assert faults(kind(fraction_evaluate=0.0)) == expected


def test_what_is_published_bare_is_a_fault_of_a_claim_alone() -> None:
    bare = newer.FedAvg()
    severity = {one.name: one.severity for one in StrategySubject(bare, QUESTION).notes}
    assert severity["metrics-bare"] == "doubt"
    assert {"metrics-bare"} <= faults(bare)


def test_counts_that_clients_report_refute_a_claim() -> None:
    strategy = newer.DifferentialPrivacyServerSideFixedClipping(newer.FedAvg(fraction_evaluate=0.0), 1.0, 1.0, 10)
    assert "moves-more-than-claimed" in faults(strategy)
    names = [pair.name for pair in StrategySubject(strategy, QUESTION).pairs]
    assert not [name for name in names if "20,000" in name]


def test_a_function_that_makes_a_strategy_is_one_and_others_are_none() -> None:
    def make() -> Any:
        return newer.FedAvg()

    assert isinstance(recognises(make, QUESTION), StrategySubject)
    assert recognises(lambda: 3, QUESTION) is None
    assert recognises(newer.FedAvg, QUESTION) is None
    assert not subject(make()).recognised


class OwnGenerator(Noisy):
    """Its noise comes from a generator that the instance holds."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.own = np.random.default_rng(seed)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        rows = [self.row(reply) for reply in replies]
        rows = [row / max(1.0, float(np.linalg.norm(row))) for row in rows]
        return self.record(replies, np.mean(rows, axis=0) + self.own.normal(0, self.std, rows[0].shape)), None


@pytest.mark.parametrize(("seed", "expected"), [(None, set()), (7, {"no-randomness"})])
def test_a_generator_that_an_instance_holds_is_played_anew_unless_a_constant_seeds_it(
    seed: int | None, expected: set[str]
) -> None:
    assert faults(OwnGenerator(seed)) == expected


class Published(newer.FedAvg):
    """Clips each update to 1, sends the noisy mean; what else leaves, its children say."""

    raw: Any = None

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.theta = {name: array.numpy() for name, array in arrays.items()}
        return list(super().configure_train(server_round, arrays, config, grid))

    def clipped(self, update: Any, place: int, count: int) -> Any:
        return update / max(1.0, float(np.linalg.norm(update)))

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies, found = list(replies), {}
        for name, theta in self.theta.items():
            updates = [one.content["arrays"][name].numpy() - theta for one in replies]
            parts = [self.clipped(one, place, len(updates)) for place, one in enumerate(updates)]
            found[name] = theta + np.mean(parts, axis=0)
        self.raw = found
        noisy = {name: one + np.random.normal(0, 0.4, one.shape) for name, one in found.items()}  # noqa: NPY002
        return record(noisy), self.metrics(replies)

    def metrics(self, replies: Any) -> Any:
        return None


class RawModelNext(Published):
    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        messages = super().configure_train(server_round, arrays, config, grid)
        for one in messages if self.raw else ():
            one.content["arrays"] = record(self.raw)
        return messages


class RoundNumberHoldsData(Published):
    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        messages = super().configure_train(server_round, arrays, config, grid)
        size = 0.0 if self.raw is None else float(np.abs(self.raw["bias"]).sum())
        for one in messages:
            one.content["config"] = ConfigRecord({"current_round": size})
        return messages


class LastIsNotClipped(Published):
    def clipped(self, update: Any, place: int, count: int) -> Any:
        return update if place == count - 1 else super().clipped(update, place, count)


class Accuracy(Published):
    def metrics(self, replies: Any) -> Any:
        return MetricRecord({"accuracy": float(np.mean([one.content["metrics"]["accuracy"] for one in replies]))})


class Counts(Published):
    def metrics(self, replies: Any) -> Any:
        return MetricRecord({"examples": int(sum(one.content["metrics"]["num-examples"] for one in replies))})


CLAIMED = Question(claim=Claim(30.0, 1e-5, adjacency="zero-out", unit="client"), dims=(16,))


@pytest.mark.parametrize("kind", [Published, RawModelNext, RoundNumberHoldsData, LastIsNotClipped, Accuracy, Counts])
def test_what_a_strategy_publishes_beside_its_noisy_model_is_found(kind: Any) -> None:
    found = recognises(kind(), CLAIMED)
    assert isinstance(found, StrategySubject)
    faults = {
        one.name for one in (*found.notes, *replay(found, CLAIMED, Budget(3)).findings) if one.severity == "fault"
    }
    expected = {
        RawModelNext: {"number-without-noise"},
        RoundNumberHoldsData: {"number-without-noise"},
        LastIsNotClipped: {"unbounded-sensitivity", "moves-more-than-claimed"},
        Accuracy: {"metrics-bare"},
        Counts: {"count-bare"},
    }
    assert faults == expected.get(kind, set())


@BOTH
def test_evaluation_is_asked_for_any_metric(api: Any) -> None:
    name = "evaluate_metrics_aggr_fn" if api is newer else "evaluate_metrics_aggregation_fn"

    def of_new(records: Any, weight: str) -> Any:
        return MetricRecord(
            {"accuracy": float(np.mean([next(iter(one.metric_records.values()))["accuracy"] for one in records]))}
        )

    def of_old(metrics: Any) -> Any:
        return {"accuracy": float(np.mean([one["accuracy"] for _, one in metrics]))}

    found = subject(api.FedAvg(**{name: of_new if api is newer else of_old}))
    (told,) = [one for one in found.notes if one.name == "metrics-bare" and "evaluation's" in one.text]
    assert "evaluation.accuracy" in told.text
