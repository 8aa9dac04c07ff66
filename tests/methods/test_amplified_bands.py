"""DP-FTRL over secret samples of groups that take turns: cohorts, the law of a client's blocks, ledger, audits."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import making
import numpy as np
import pytest
from conftest import Run, ledger_of, rows_of

from fedpriv.client.build import make_client
from fedpriv.common.cohorts import group_cohort
from fedpriv.common.messages import pack_vector
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.matrix_factors import MatrixMechanism, coefficients, error, inverse
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import EVERY_CLIENT, PoissonGaussian
from fedpriv.privacy.gaussian_dp import gaussian_mu
from fedpriv.privacy.secret_cohorts import TO_OUTSIDERS, group_events
from fedpriv.runs.planning import make_plan
from fedpriv.server.round import Population
from strategies.dpftrl import DPFTRL

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
