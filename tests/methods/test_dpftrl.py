"""DP-FTRL: rounds by hand, what is charged for them, resumed runs, audits, and options."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import making
import numpy as np
import pytest
from conftest import Run, ledger_of, result_of, rows_of, summary_of
from fake_grid import SIZE, THETA, FakeGrid
from flwr.app import ConfigRecord, Message

from clients.dpftrl import DPFTRLClient
from fedpriv.attacks.release_audit import audit_config, audit_mechanism
from fedpriv.client.build import make_client
from fedpriv.client.contract import PublicFacts
from fedpriv.common.cohorts import cohort_of, group_cohort
from fedpriv.common.messages import pack_vector, reply_content, unpack_vector
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.matrix_factors import MatrixMechanism, coefficients, error, inverse, overlaps, sensitivity
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import EVERY_CLIENT, Event, Gaussian, PoissonGaussian
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu
from fedpriv.privacy.secret_cohorts import TO_OUTSIDERS, binned_events, group_events
from fedpriv.runs.planning import make_plan
from fedpriv.server.round import BudgetsSpent, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy
from strategies.dpftrl import DPFTRL

DELTA = 1e-5
CLIENTS, ASKED, ROUNDS = 8, 2, 8  # k = 2, b = 4


def server(attempt: int = 0, hooks: Hooks | None = None, **changes: Any) -> DPFTRL:
    population = Population(7, CLIENTS, ASKED, lambda client: 10, attempt=attempt)
    given: dict[str, Any] = {"rounds": ROUNDS, "noise_multiplier": 0.0} | changes
    return making.server(DPFTRL, population, hooks=hooks or Hooks(), **given)


def play(
    strategy: FederatedStrategy, theta: np.ndarray, number: int, release: Callable[[int], np.ndarray | None]
) -> np.ndarray:
    """One round; a client whose release is None does not answer."""
    grid = FakeGrid(CLIENTS)

    def answer(message: Message, client: int) -> list[Message]:
        found = release(client)
        return [] if found is None else [Message(reply_content(found.astype(np.float32), 10, {}), reply_to=message)]

    grid.answer = answer
    messages = strategy.configure_train(number, pack_vector(theta), ConfigRecord(), grid)
    arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
    assert arrays is not None
    return unpack_vector(arrays)


def thetas(strategy: FederatedStrategy, rounds: int = ROUNDS, length: float = 0.5) -> list[np.ndarray]:
    theta, found = THETA, []
    for number in range(1, rounds + 1):
        theta = play(strategy, theta, number, lambda client: np.full(SIZE, length / math.sqrt(SIZE)) * (-1) ** client)
        found.append(theta)
    return found


# --- rounds --------------------------------------------------------------------------------------------------------


def test_without_noise_it_is_the_mean_over_all_who_were_asked() -> None:
    """A client that is silent counts as zero: the denominator tells nothing of who answered."""
    made, ones = server(), np.full(SIZE, 0.1)
    whole = play(made, THETA, 1, lambda client: ones)
    np.testing.assert_allclose(whole, THETA + 0.1, rtol=1e-6)
    one, silent = made.current.cohort[0], server()
    np.testing.assert_allclose(play(silent, THETA, 1, lambda c: ones if c == one else None), THETA + 0.05, rtol=1e-6)
    np.testing.assert_allclose(play(server(), THETA, 1, lambda client: None), THETA)


def test_the_server_clips_again() -> None:
    moved = play(server(clip_norm=0.5), THETA, 1, lambda client: np.full(SIZE, 1e6)) - THETA
    assert np.linalg.norm(moved) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("factor", ["sqrt", "bisr", "blt"])
def test_theta_has_the_noise_of_the_factor(factor: Any) -> None:
    """sum of all rounds = sum of the updates + A C^-1 z: its variance over 100 seeds, in every round."""
    found = []
    for seed in range(100):
        made = server(factor=factor, noise_multiplier=1.0, clip_norm=0.5)
        object.__setattr__(made.population, "seed", seed)
        found.append(np.stack(thetas(made, length=0.0)) - THETA)
    spread = np.stack(found).std(axis=(0, 2)) * ASKED
    c = coefficients(factor, ROUNDS, 2, 4)
    rows = np.cumsum(inverse(c, ROUNDS))
    expected = 0.5 * sensitivity(c, ROUNDS, 2, 4) * np.sqrt(np.cumsum(rows**2))
    np.testing.assert_allclose(spread, expected, rtol=0.12)


# --- the account -----------------------------------------------------------------------------------------------------


def booked(strategy: DPFTRL, rounds: Sequence[int]) -> list[Event]:
    """Of these rounds; every one is charged to everybody."""
    found = []
    for number in rounds:
        play(strategy, THETA, number, lambda client: np.zeros(SIZE))
        assert all(entry.client == EVERY_CLIENT for entry in strategy.current.entries)
        found += [entry.event for entry in strategy.current.entries]
    return found


def test_all_rounds_cost_one_gaussian() -> None:
    events = booked(server(noise_multiplier=2.0), range(1, ROUNDS + 1))
    assert compose_events(events, DELTA).epsilon == pytest.approx(gaussian_epsilon(1 / 2.0, DELTA))


def test_rounds_that_are_released_again_are_paid_again() -> None:
    """Rounds 4 and 5 left, the checkpoint is round 3's, and their noise cannot be repeated: 4 to 8 are a second run."""
    first = booked(server(noise_multiplier=2.0), range(1, 6))
    again = booked(server(noise_multiplier=2.0, attempt=1000), range(4, ROUNDS + 1))
    assert len(again) == 1
    own = sum(1 / event.multiplier**2 for event in first)  # type: ignore[attr-defined]
    expected = gaussian_epsilon(math.sqrt(own + 1 / 4), DELTA)
    assert compose_events([*first, *again], DELTA).epsilon == pytest.approx(expected)


@pytest.mark.parametrize("restart", range(1, ROUNDS))
def test_no_pattern_moves_both_runs_further_than_what_is_booked(restart: int) -> None:
    """By brute force: the first run up to the last round, then rounds from ``restart`` on again, with another pattern
    that agrees before it.
    """
    c = coefficients("banded", ROUNDS, 2, 4)
    whole = np.array([[c[i - j] if 0 <= i - j < len(c) else 0.0 for j in range(ROUNDS)] for i in range(ROUNDS)])
    patterns = [()] + [(i,) for i in range(ROUNDS)] + [(i, j) for i in range(ROUNDS) for j in range(i + 4, ROUNDS)]
    rows = [whole @ np.isin(np.arange(ROUNDS), pattern) for pattern in patterns]
    worst = max(
        float(one @ one + other[restart:] @ other[restart:])
        for pattern, one in zip(patterns, rows, strict=True)
        for second, other in zip(patterns, rows, strict=True)
        if [i for i in pattern if i < restart] == [i for i in second if i < restart]
    )
    assert worst <= 2 * sensitivity(c, ROUNDS, 2, 4) ** 2 * (1 + 1e-12)


def test_the_server_ends_the_run_before_a_budget_is_exceeded() -> None:
    made = server(noise_multiplier=1.0, hooks=Hooks(admits=lambda *events: False))
    with pytest.raises(BudgetsSpent, match=r"round 1: the next global model would exceed privacy\.max_epsilon"):
        play(made, THETA, 1, lambda client: np.zeros(SIZE))


# --- audits ----------------------------------------------------------------------------------------------------------


def client(factor: str = "banded", **changes: Any) -> DPFTRLClient:
    facts = PublicFacts(60, 60, 10, ROUNDS, ASKED, SIZE, CLIENTS, 2, 4)
    return making.client(DPFTRLClient, facts=facts, factor=factor, noise_multiplier=1.0, **changes)


def audited(made: DPFTRLClient) -> tuple[float, float]:
    found = audit_mechanism(made, ROUNDS, delta=DELTA, trials=40_000, confidence=0.999, seed=1)
    return found.audit.epsilon_lower, found.verified


@pytest.mark.parametrize("factor", ["identity", "sqrt", "bisr", "blt"])
def test_audit_comes_near_the_account_and_not_above(factor: str) -> None:
    lower, verified = audited(client(factor))
    assert 0.25 * verified < lower <= verified


def test_audit_finds_a_sensitivity_that_forgets_the_second_participation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.mechanisms.matrix_factors.sensitivity", lambda c, *pattern: 0.5)
    made = client("sqrt")
    lower, verified = audited(made)
    assert lower > verified


def test_a_finished_run_is_audited_at_its_whole_length(run: Run) -> None:
    config = compose(["strategy=dpftrl", "num_clients=4", "clients_per_round=2", "num_rounds=4"])
    (whole, one) = audit_config(config, trials=20_000, confidence=0.99, seed=0)
    assert (whole.participations, one.participations) == (4, 1)
    assert one.verified < whole.verified == whole.claimed
    assert whole.audit.epsilon_lower <= whole.verified and one.audit.epsilon_lower <= one.verified


# --- whole runs -------------------------------------------------------------------------------------------------

OPTIONS = ("strategy=dpftrl", "num_clients=6", "clients_per_round=2", "num_rounds=5")


def test_secret_noise_goes_on_from_the_checkpoint_and_is_paid_again(resumed: Callable[..., Path]) -> None:
    folder = resumed(
        *OPTIONS, "checkpoint.every=2", "privacy.rng=secure", "strategy.client.noise_multiplier=2.0", after=3
    )
    lines = [(entry["round"], entry["multiplier"]) for entry in ledger_of(folder)]
    assert [number for number, _ in lines] == [1, 2, 3, 3] and lines[-1][1] == 2.0
    spent = json.loads((folder / "summary.json").read_text())["privacy"]["verified_epsilon"]
    assert gaussian_epsilon(1 / 2, DELTA) < spent <= gaussian_epsilon(math.sqrt(2) / 2, DELTA)


def test_correlated_noise_is_better_than_independent_noise_of_the_same_price(run: Run) -> None:
    options = ("strategy=dpftrl", "num_clients=40", "clients_per_round=4", "num_rounds=30", "privacy.target_epsilon=8")
    options = (*options, "strategy.client.clip_norm=0.2", "evaluate.every=0")
    accuracy = {
        factor: np.mean(
            [
                result_of(run(*options, f"strategy.client.factor={factor}", f"seed={seed}"))["summary"]["loss"]["final"]
                for seed in (0, 1)
            ]
        )
        for factor in ("identity", "banded")
    }
    assert accuracy["banded"] < accuracy["identity"]


# --- options ----------------------------------------------------------------------------------------------------


def test_the_mechanism_of_both_halves_is_the_same() -> None:
    """The client's facts and the server's own count of participations lead to one price."""
    config = compose(["strategy=dpftrl", *OPTIONS[1:], "strategy.server.participations=3"])
    from fedpriv.client.build import make_client

    own = make_client(config)
    assert isinstance(own, DPFTRLClient) and own.pattern == (5, 3, 3)
    population = Population(0, 6, 2, lambda client: 10)
    half = making.server(DPFTRL, population, rounds=5, participations=3)
    planned = [replace(event, count=1) for event in own.planned_events(5) for _ in range(event.count)]
    assert sorted((event for events in half.events for event in events), key=repr) == sorted(planned, key=repr)
    assert isinstance(half.mechanism, MatrixMechanism)


# --- DP-FTRL over secret samples of groups that take turns: cohorts, the law of a client's blocks, ledger, audits --


METHOD = ("strategy=dpftrl", "strategy.server.client_sampling=poisson", "strategy.client.bandwidth=3")
RUN = (*METHOD, "num_clients=21", "clients_per_round=3", "num_rounds=7", "strategy.client.noise_multiplier=2.0")


def sampled(count: int, multiplier: float, rate: float) -> PoissonGaussian:
    return PoissonGaussian(threat=TO_OUTSIDERS, multiplier=multiplier, sampling_rate=rate, count=count)


def three_blocks() -> float:
    return compose_events([sampled(3, 2.0, 3 * 3 / 21)], 1e-5).epsilon


# --- who takes part ------------------------------------------------------------------------------------------------


def test_a_round_draws_each_client_of_its_group_by_a_coin_of_its_own() -> None:
    counts: Counter[int] = Counter()
    pairs = 0
    for seed in range(2000):
        cohort = group_cohort(seed, 6, 23, 4, 3)  # group 2: clients 2, 5, ..., 20; probability 12/23
        assert cohort == sorted(set(cohort)) and all(client % 3 == 2 for client in cohort)
        counts.update(cohort)
        pairs += {2, 20} <= set(cohort)
    rate = 12 / 23
    spread = 5 * math.sqrt(2000 * rate * (1 - rate))
    assert len(counts) == 7 and all(abs(count - 2000 * rate) < spread for count in counts.values())
    assert abs(pairs - 2000 * rate**2) < spread


def test_cohorts_are_secret_where_noise_is() -> None:
    drawn = set()
    for _ in range(5):
        population = Population(3, 300, 30, lambda client: 10, rng="secure")
        options = {"rounds": 6, "client_sampling": "poisson", "bandwidth": 3, "participation": "cyclic"}
        half = making.server(DPFTRL, population, **options)
        drawn.add(tuple(half.begin(2, pack_vector(np.zeros(3, np.float32)))))
        assert all(client % 3 == 1 for client in max(drawn))
    assert len(drawn) == 5


# --- what a client costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "blocks"), [(0, 2), (1, 2)])
def test_the_rows_of_all_rounds_are_as_many_sampled_gaussians_as_blocks(group: int, blocks: int) -> None:
    """Losses of whole runs of four rounds, drawn: densities of the rows w = C s + z, mixed over a client's coins."""
    rate, sigma, many = 0.3, 0.8, 300_000
    c = coefficients("banded", 4, 1, 2, 2)
    mechanism = MatrixMechanism("banded", 4, 1, 2, noise_multiplier=sigma, clip_norm=1.0, bandwidth=2)
    assert mechanism.std == pytest.approx(sigma * math.hypot(*c))
    matrix = np.array([[c[i - j] if 0 <= i - j < 2 else 0.0 for j in range(4)] for i in range(4)]) / mechanism.std
    turns = [round_ for round_ in range(4) if round_ % 2 == group]
    worlds = list(itertools.product((0, 1), repeat=len(turns)))
    shifts = np.array([matrix[:, turns] @ coins for coins in worlds])
    weights = np.array([rate ** sum(coins) * (1 - rate) ** (len(coins) - sum(coins)) for coins in worlds])
    rng = np.random.default_rng(group)

    def losses(rows: np.ndarray) -> np.ndarray:
        return np.log(np.exp(rows @ shifts.T - (shifts**2).sum(1) / 2) @ weights)

    noise = rng.standard_normal((many, 4))
    present = losses(noise + shifts[rng.choice(len(worlds), many, p=weights)])
    absent = -losses(noise)
    law = sampled(1, sigma, rate).loss_distribution(1e-3).self_compose(blocks)
    for epsilon in (0.3, 1.0, 2.0):
        found = max(np.maximum(-np.expm1(epsilon - loss), 0).mean() for loss in (present, absent))
        bound = law.get_delta_for_epsilon(epsilon)
        spread = 4.5 * math.sqrt(found / many)
        assert found <= bound + spread
        assert group or found >= bound - spread  # the last block of group 1 is cut: it costs less


def test_one_event_is_booked_with_the_first_of_every_b_rounds() -> None:
    events = group_events(10, 3, 2, 30, 1.5)
    assert [event is not None for event in events] == [True, False, False] * 3 + [True]
    assert events[0] == sampled(1, 1.5, 0.2)
    for done in range(1, 11):
        booked = sum(event is not None for event in events[:done])
        begun = [len(range(group, done, 3)) for group in range(3)]  # blocks of a client of each group
        assert booked == max(begun)
    assert group_events(4, 1, 3, 3, 1.0)[0].sampling_rate == 1.0  # type: ignore[union-attr]


def test_bands_need_less_noise_than_either_of_the_methods_between_which_they_lie() -> None:
    """A hundred rounds of 2 % of the clients at epsilon 2: error of the sums so far, of five groups."""
    rounds, rate, target, delta = 100, 0.02, 2.0, 1e-5

    def noise(groups: int, multiplier: float) -> float:
        cost = compose_events([sampled(rounds // groups, multiplier, groups * rate)], delta).epsilon
        assert cost == pytest.approx(target, rel=1e-3)
        c = np.array(coefficients("banded", rounds, 1, groups, groups))
        rows = np.cumsum(inverse(c, rounds))
        mean = float(np.sum((rounds - np.arange(rounds)) * rows**2)) / rounds
        return math.sqrt(mean) * float(np.linalg.norm(c)) * multiplier

    plain = error(coefficients("banded", rounds, 2, 50), rounds, 2, 50) / gaussian_mu(target, delta)
    assert noise(5, 1.36256) / min(noise(1, 0.88156), plain) == pytest.approx(0.824, abs=0.002)


# --- runs ------------------------------------------------------------------------------------------------------------


def test_ledger_plan_and_report_agree(run: Run) -> None:
    folder = run(*RUN)
    lines = [(e["round"], e["client"], e["mechanism"], e["sampling_rate"]) for e in ledger_of(folder)]
    assert lines == [(number, EVERY_CLIENT, "poisson_gaussian", 9 / 21) for number in (1, 4, 7)]
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["verified_epsilon"] == privacy["verified_median"] == pytest.approx(three_blocks(), rel=1e-6)
    assert privacy["claimed_epsilon"] is None
    config, rows = compose(list(RUN)), rows_of(folder)
    plan = make_plan(config, Worker(config))
    assert plan.verified_epsilon == pytest.approx(three_blocks(), rel=1e-6)
    assert plan.bytes_down == sum(row["participants"] for row in rows) * 4 * 650
    assert len({row["participants"] for row in rows}) > 1 and plan.participations[1] <= 3


def test_rounds_that_are_redone_with_other_coins_are_paid_as_two_gaussians(resumed: Callable[..., Path]) -> None:
    folder = resumed(*RUN, "checkpoint.every=2", "privacy.rng=secure", after=4)
    lines = [(e["round"], e["mechanism"], e["multiplier"]) for e in ledger_of(folder)]
    again = ("gaussian", pytest.approx(2 / math.sqrt(2)))
    assert lines == [(1, "poisson_gaussian", 2.0), (4, "poisson_gaussian", 2.0), (5, *again)]


def test_the_audited_rows_hold_a_client_by_its_coins() -> None:
    """Along the client's vector, rows have unit noise and move by q c_m, m rounds after its turn."""
    client, many = make_client(compose([*RUN, "strategy.client.noise_multiplier=0.5"])), 60_000
    (pair,) = client.worst_case_pairs(5)
    assert pair.world1 == (1.0, 0.0, 0.0, 1.0, 0.0) and not any(pair.world0)
    c, rate, state, rows = coefficients("banded", 7, 1, 3, 3), 9 / 21, None, []
    for number, length in enumerate(pair.world1):
        released = client.audit_release(length, state, (many, 2), SeededNoise(number))
        state = released.state
        rows.append(released.value.numpy() @ np.full(2, math.sqrt(0.5)))
    unit = 1 / (0.5 * math.hypot(*c))
    for row, part in zip(rows, (c[0], c[1], c[2], c[0], c[1]), strict=True):
        coin = rate * (1 - rate) * (part * unit) ** 2
        assert row.mean() == pytest.approx(rate * part * unit, abs=5 * math.sqrt((1 + coin) / many))
        assert row.var() == pytest.approx(1 + coin, rel=0.03)
    one, other = np.cov(rows[0], rows[1])[0, 1], np.cov(rows[0], rows[3])[0, 1]
    assert one == pytest.approx(rate * (1 - rate) * c[0] * c[1] * unit**2, abs=0.05) and abs(other) < 0.05


# --- dpftrl with one secret round of each pass, the same in all: its cohorts, and its price against exact laws -----


BALLS = (
    *("strategy=dpftrl", "strategy.server.client_sampling=balls", "num_clients=12", "clients_per_round=3"),
    *("num_rounds=8", "strategy.client.noise_multiplier=1.0"),
)
#: (factor, bandwidth, T, b)
CASES: list[tuple[Any, Any, int, int]] = [
    ("identity", None, 6, 3),
    ("banded", 2, 6, 3),
    ("banded", 4, 8, 4),
    ("bisr", 2, 6, 2),
    ("sqrt", None, 4, 4),
    ("blt", None, 9, 3),
    ("banded", 2, 2, 5),  # the run ends within the first pass
]


def bins(name: Any, bandwidth: Any, rounds: int, apart: int) -> np.ndarray:
    """m_j [b, T], entry by entry; without a round for bins beyond the last one."""
    c = coefficients(name, rounds, -(-rounds // apart), apart, bandwidth)
    found = np.zeros((apart, rounds))
    for j, i, t in itertools.product(range(apart), range(rounds), range(rounds)):
        if i % apart == j and 0 <= t - i < len(c):
            found[j, t] += c[t - i]
    return found


def exact_delta(moved: np.ndarray, epsilon: float, swapped: bool, draws: int = 400_000) -> tuple[float, float]:
    """(E_Q of the hockey stick of the mixture over rows of ``moved`` against N(0, I), its standard error); by draws
    from the side that has the mass, with the exact density ratio.
    """
    rng = np.random.default_rng(1)
    z = rng.standard_normal((draws, moved.shape[1]))
    if not swapped:  # from the mixture: delta = E_P (1 - e^eps / L)_+
        z += moved[rng.integers(0, len(moved), draws)]
    ratio = np.exp(z @ moved.T - (moved**2).sum(1) / 2).mean(1)
    values = np.maximum(0, 1 - math.exp(epsilon) * (ratio if swapped else 1 / ratio))
    return float(values.mean()), float(values.std() / math.sqrt(draws))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_are_those_of_the_matrices(case: Any) -> None:
    moved = bins(*case)
    name, bandwidth, rounds, apart = case
    most = -(-rounds // apart)
    products = moved @ moved.T
    whole, shared = overlaps(coefficients(name, rounds, most, apart, bandwidth), rounds, most, apart)
    assert whole == pytest.approx(products.diagonal().max(), rel=1e-12)
    off = products - np.diag(products.diagonal())
    assert shared == pytest.approx(off[: min(apart, rounds), : min(apart, rounds)].max(), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("swapped", [False, True], ids=["with", "without"])
@pytest.mark.parametrize("sigma", [0.7, 2.0])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_price_is_above_the_exact_law_in_both_directions(case: Any, sigma: float, swapped: bool) -> None:
    """At the epsilon that is charged for a delta, the exact one is smaller: five standard errors are left."""
    name, bandwidth, rounds, apart = case
    events = binned_events(name, rounds, -(-rounds // apart), apart, sigma, bandwidth, 3)
    moved = bins(*case)
    moved /= sigma * math.sqrt((moved**2).sum(1).max())
    for delta in (1e-1, 1e-2, 1e-3):
        epsilon = compose_events(list(events), delta).epsilon
        found, error = exact_delta(moved, epsilon, swapped)
        assert found <= delta + 5 * error
    if name == "identity" and not swapped:  # then it is exact
        epsilon = compose_events(list(events), 1e-2).epsilon
        found, error = exact_delta(moved, epsilon * 0.97, swapped)
        assert found > 1e-2 - 5 * error


@pytest.mark.parametrize("seed", range(4))
def test_vectors_that_follow_earlier_rows_move_it_no_further(seed: int) -> None:
    """A client whose contributions of length 1 in two dimensions turn by what was released before; two bins, two
    passes, a band of two: the exact ratio along each path, against the price.
    """
    rng, draws, sigma, rounds, apart = np.random.default_rng(seed), 200_000, 1.0, 4, 2
    c = np.array([1.0, 0.5])
    turn = rng.normal(size=(rounds, rounds, 2)) * 2
    scale = sigma * math.sqrt(overlaps((1.0, 0.5), rounds, 2, apart)[0])

    def angle(t: int, rows: list[np.ndarray]) -> np.ndarray:
        return turn[t, 0, 0] + sum((row @ turn[t, s] for s, row in enumerate(rows)), np.zeros(draws))

    own = rng.integers(0, apart, draws)
    rows: list[np.ndarray] = []
    given: list[np.ndarray] = []
    logs = np.zeros((apart, draws))
    for t in range(rounds):
        turned = angle(t, rows)
        given.append(np.stack([np.cos(turned), np.sin(turned)], 1))
        moves = np.zeros((apart, draws, 2))
        for j in range(apart):
            for back in range(len(c)):
                if t - back >= 0 and (t - back) % apart == j:
                    moves[j] += c[back] * given[t - back] / scale
        row = rng.standard_normal((draws, 2)) + moves[own, np.arange(draws)]
        for j in range(apart):
            logs[j] += (row * moves[j]).sum(1) - (moves[j] ** 2).sum(1) / 2
        rows.append(row)
    ratio = np.exp(logs).mean(0)
    events = binned_events("banded", rounds, 2, apart, sigma, 2, 3)
    for delta in (1e-1, 1e-2, 1e-3):
        epsilon = compose_events(list(events), delta).epsilon
        values = np.maximum(0, 1 - math.exp(epsilon) / ratio)
        assert values.mean() <= delta + 5 * values.std() / math.sqrt(draws)


def test_it_amplifies_and_never_costs_more_than_known_rounds() -> None:
    for name, bandwidth, rounds, apart in CASES:
        events = binned_events(name, rounds, -(-rounds // apart), apart, 1.0, bandwidth, 3)
        assert compose_events(list(events), 1e-5).epsilon < gaussian_epsilon(1.0, 1e-5) * 1.001
    independent = binned_events("identity", 20, 2, 10, 1.0, None, 3)
    assert compose_events(list(independent), 1e-5).epsilon < 0.6 * gaussian_epsilon(1.0, 1e-5)
    assert binned_events("identity", 5, 5, 1, 1.0, None, 3) == (Gaussian(threat=TO_OUTSIDERS, multiplier=1.0),)


def test_every_client_has_one_place_of_its_own_in_all_passes() -> None:
    seen = [cohort_of(seed, number, 12, 3, "balls", "cyclic") for seed in (1,) for number in range(1, 13)]
    assert sorted(client for cohort in seen[:4] for client in cohort) == list(range(12))
    assert seen[:4] == seen[4:8] == seen[8:]
    assert len({tuple(cohort_of(seed, 1, 12, 3, "balls", "cyclic")) for seed in range(20)}) > 15
    firsts = np.mean([0 in cohort_of(seed, 1, 12, 3, "balls", "cyclic") for seed in range(2000)])
    assert abs(firsts - 1 / 4) < 5 * math.sqrt(3 / 16 / 2000)


def test_a_run_is_paid_with_its_first_round(run: Run) -> None:
    folder = run(*BALLS, "strategy.client.bandwidth=2")
    assert [(entry["round"], entry["mechanism"]) for entry in ledger_of(folder)] == [
        (1, "allocated_gaussian"),
        (1, "gaussian"),
    ]
    privacy, known = summary_of(folder)["privacy"], summary_of(run(*BALLS, "strategy.server.client_sampling=fixed"))
    assert 0 < privacy["verified_epsilon"] < known["privacy"]["verified_epsilon"]
    assert privacy["claimed_epsilon"] is None


def test_a_second_draw_is_charged_for_rounds_in_two_places() -> None:
    """By brute force: rows after the checkpoint, of one place before it and another after it."""
    options = compose([*BALLS, "strategy.client.bandwidth=2"]).strategy.options
    made = DPFTRL(Population(7, 12, 3, lambda client: 10, attempt=5), options)
    (event,) = made.price()
    assert event == Gaussian(threat=TO_OUTSIDERS, multiplier=0.5)
    moved, most = bins("banded", 2, 8, 4), 0.0
    c = np.array([1.0, 0.5])
    for start, old, new in itertools.product(range(1, 8), range(4), range(4)):
        there = [i % 4 == (old if i < start else new) for i in range(8)]
        rows = np.convolve(np.array(there, float), c)[:8]
        most = max(most, float(np.linalg.norm(rows[start:])))
    assert most <= 2 * math.sqrt((moved**2).sum(1).max())
