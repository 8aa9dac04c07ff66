"""DP-FedAvg: noise by every client, and the central form with a trusted server and secret samples."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import Run, ledger_of, page_of, rows_of
from scipy.stats import norm

from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import pack_vector
from fedpriv.common.replies import Reply
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import SeededNoise, add_normal_to_sum, clip, grid_step, onto_grid
from fedpriv.mechanisms.trusted_sums import split_for_count, with_count
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import EVERY_CLIENT, PoissonGaussian, Threat
from fedpriv.runs.planning import make_plan, with_target
from fedpriv.server.optimizers import LONGEST_STEP, NOISE_LENGTH
from fedpriv.server.round import Population, Round
from strategies.dpfedavg import DPFedAvg

CENTRAL = (
    "strategy=dpfedavg",
    "strategy.client.form=central",
    "strategy.server.client_sampling=poisson",
    "num_clients=20",
    "clients_per_round=5",
    "num_rounds=6",
    "strategy.client.noise_multiplier=2.0",
)
OUTSIDE = Threat("client", "add-or-remove-one", "trusted-server")


def six_rounds(multiplier: float = 2.0, rounds: int = 6) -> float:
    event = PoissonGaussian(threat=OUTSIDE, multiplier=multiplier, sampling_rate=0.25, count=rounds)
    return compose_events([event], 1e-5).epsilon


# --- the paper's form ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "once"), [(0.1, 0.257), (0.2, 0.501), (0.5, 1.085)])
def test_the_printed_noise_is_above_its_claim_at_the_papers_delta(epsilon: float, once: float):
    overrides = ["strategy=dpfedavg", "privacy.variant=published", "privacy.delta=0.001"]
    client = make_client(compose([*overrides, f"strategy.client.epsilon={epsilon}"]))
    assert compose_events(client.planned_events(1), 0.001).epsilon == pytest.approx(once, abs=1e-3)
    assert f"at delta 0.001 a round costs {once:.3g}" in client.remarks()[0]
    claim = client.claim(1, 0.001)
    assert claim is not None and (claim.epsilon, claim.delta) == (epsilon, math.exp(-epsilon))


def test_the_repaired_noise_costs_what_it_says():
    client = make_client(compose(["strategy=dpfedavg", "privacy.delta=0.001", "strategy.client.epsilon=0.1"]))
    assert compose_events(client.planned_events(1), 0.001).epsilon == pytest.approx(0.1, rel=1e-6)


def test_every_coordinate_has_noise(run: Run):
    client = make_client(compose(["strategy=dpfedavg", "strategy.client.noise_multiplier=3"]))
    released = client.release(torch.zeros(50_000), None, SeededNoise(1)).value
    assert float(released.std()) == pytest.approx(3.0, rel=0.02) and bool((released != 0).float().mean() > 0.999)
    folder = run("strategy=dpfedavg")
    assert {entry["mechanism"] for entry in ledger_of(folder)} == {"gaussian"}


# --- central -------------------------------------------------------------------------------------------------


def central(clients: int = 20, size: int = 5, learning_rate: Any = 0.5, **changes: Any) -> DPFedAvg:
    options = {"form": "central", "epsilon": 1.0, "claimed_delta": 1e-5, "clip_norm": 1.0, "noise_multiplier": 2.0}
    population = Population(3, clients, size, lambda client: 10)
    made = making.server(
        DPFedAvg, population, learning_rate=learning_rate, client_sampling="poisson", **options | changes
    )
    made.current = Round(1, np.zeros(30_000, np.float32))
    return made


def test_the_step_is_the_noisy_sum_over_the_expected_number_of_clients():
    theta = np.zeros(30_000, np.float32)
    long = np.full(theta.size, 1.0, np.float32)  # norm 173: the server clips it again
    steps = {}
    for count in (0, 1, 3):
        made = central()
        steps[count] = -made.aggregate(theta, [Reply(k, long, 10, {}, 0) for k in range(count)]) / 0.5 * 5
        assert steps[count].std() == pytest.approx(2.0, rel=0.02)  # sigma C, whatever the sample
    sums = [float((steps[count] - steps[0]).sum() / math.sqrt(theta.size)) for count in (1, 3)]
    assert sums == pytest.approx([1.0, 3.0], abs=0.02)  # the same noise key: it cancels


@pytest.mark.parametrize("momentum", [None, 0.8])
def test_steps_by_noise_let_the_noise_of_the_whole_run_move_the_model_by_one_length(momentum: float | None) -> None:
    """Nobody replies: all that moves the model is noise. Momentum's last steps are cut off. Then a message is so long
    beside the noise that the longest step is taken.
    """
    more = {} if momentum is None else {"optimizer": "momentum", "momentum": momentum}
    made = central(learning_rate="noise", **more)
    made.population = replace(made.population, num_rounds=40)
    theta = np.zeros(30_000, np.float32)
    for number in range(1, 41):
        made.current = Round(number, theta)
        theta = made.aggregate(theta, [])
    assert np.linalg.norm(theta) == pytest.approx(NOISE_LENGTH, rel=0.02 if momentum is None else 0.1)
    quiet = central(learning_rate="noise", clip_norm=0.5, noise_multiplier=1e-6)
    quiet.population = replace(quiet.population, num_rounds=40)
    quiet.aggregate(theta, [])
    assert quiet.current.figures["learning_rate"] == LONGEST_STEP / 0.5


def test_every_round_is_booked_once_for_every_client(run: Run):
    folder = run(*CENTRAL)
    entries = ledger_of(folder)
    assert [(entry["round"], entry["client"]) for entry in entries] == [(t, EVERY_CLIENT) for t in range(1, 7)]
    assert {entry["mechanism"] for entry in entries} == {"poisson_gaussian"}
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["verified_epsilon"] == privacy["verified_median"] == pytest.approx(six_rounds(), rel=1e-6)
    assert (privacy["observer"], privacy["adjacency"]) == ("trusted-server", "add-or-remove-one")
    assert privacy["claimed_epsilon"] is None
    assert len({row["participants"] for row in rows_of(folder)}) > 1  # Poisson
    assert "<td>every client</td>" in page_of(folder)
    plan = make_plan(compose(list(CENTRAL)), Worker(compose(list(CENTRAL))))
    assert plan.verified_epsilon == pytest.approx(six_rounds(), rel=1e-6)
    assert plan.verified_median == plan.verified_epsilon  # also of a client that is never asked


def test_an_empty_sample_moves_the_model_by_noise_all_the_same(run: Run):
    folder = run(*CENTRAL, "clients_per_round=1", "num_rounds=8", "seed=1")
    rows = rows_of(folder)
    empty = [row for row in rows if row["participants"] == 0]
    assert empty and all(row["figures"]["server_noise_norm"] > 1 for row in empty)
    assert len(ledger_of(folder)) == 8


def test_a_step_redone_has_other_noise_and_an_entry_of_its_own():
    theta, found = np.zeros(30_000, np.float32), {}
    for attempt in (0, 2):
        made = central()
        made.population = replace(made.population, attempt=attempt)
        found[attempt] = made.aggregate(theta, [])
        assert [entry.attempt for entry in made.current.entries] == [attempt]
    assert np.abs(np.corrcoef(found[0], found[2])[0, 1]) < 0.05


def test_nobody_learns_how_many_were_lost(run: Run):
    """A cohort whose replies are all lost takes its noisy step like any other."""
    faults = ",".join(f"{{round:2,client:{client},kind:drop}}" for client in range(20))
    rows = rows_of(run(*CENTRAL, "num_rounds=3", f"engine.faults=[{faults}]"))
    assert [row["round"] for row in rows] == [1, 2, 3] and rows[1]["participants"] == 0


def test_a_client_moves_the_sum_by_no_more_than_its_own_length():
    """Each gradient is moved onto the noise's grid before it is added."""
    parts = [clip(torch.randn(5000, generator=torch.Generator().manual_seed(k)), 1.0) for k in range(6)]

    class Silent(SeededNoise):
        def normal(self, shape: Any, std: float = 1.0) -> torch.Tensor:
            return torch.zeros(shape)

    for std in (0.1, 50.0):
        whole = add_normal_to_sum(parts, 5000, std, Silent(1))
        without = add_normal_to_sum(parts[1:], 5000, std, Silent(1))
        assert float((whole - without).double().norm()) <= 1.0
        assert torch.equal(whole, onto_grid(whole, grid_step(std)))


def test_a_budget_ends_the_run_before_it_is_exceeded(run: Run):
    limit = six_rounds(rounds=4) * 1.0001
    folder = run(*CENTRAL, f"privacy.max_epsilon={limit}")
    summary = json.loads((folder / "summary.json").read_text())
    assert 1 <= summary["rounds"] < 6 and "privacy.max_epsilon" in summary["note"]
    assert summary["privacy"]["spent_so_far"] <= limit
    assert len(ledger_of(folder)) == summary["rounds"]
    whole = run(*CENTRAL, f"privacy.max_epsilon={six_rounds() * 1.0001}")
    assert json.loads((whole / "summary.json").read_text())["rounds"] == 6  # the plan fits: kept to exactly


def test_a_target_counts_all_rounds_and_reaches_both_halves():
    overrides = [part for part in CENTRAL if "noise_multiplier" not in part]
    config = with_target(compose([*overrides, "privacy.target_epsilon=3"]))
    chosen = config.strategy.options.noise_multiplier
    assert 2.95 <= six_rounds(chosen) <= 3


def test_without_a_multiplier_one_round_costs_epsilon():
    config = compose([*(part for part in CENTRAL if "noise_multiplier" not in part), "strategy.client.epsilon=1"])
    client = make_client(config)
    assert 0.98 <= six_rounds(client.noise_multiplier, 1) <= 1
    server = central(noise_multiplier=None, epsilon=1.0)
    assert server.noise_multiplier == client.noise_multiplier


def test_cohorts_are_secret_where_noise_is():
    drawn = set()
    for _ in range(6):
        population = Population(3, 1000, 20, lambda client: 10, rng="secure")
        options = {"form": "central", "epsilon": 1.0, "claimed_delta": 1e-5, "clip_norm": 1.0, "noise_multiplier": 2.0}
        made = making.server(DPFedAvg, population, learning_rate=0.1, client_sampling="poisson", **options)
        drawn.add(tuple(made.begin(1, pack_vector(np.zeros(3, np.float32)))))
    assert len(drawn) == 6


def test_two_forms_are_refused():
    with pytest.raises(OptionError, match=r"strategy\.server\.form=local: strategy\.client\.form=central is the same"):
        compose([*CENTRAL, "strategy.server.form=local"])


# --- DP-FedAvg whose trusted server moves the clip norm: one Gaussian a round, whatever the norms are --------------


MOVING = (*CENTRAL, "strategy.server.clipping=quantile")
OPTIONS: dict[str, Any] = {
    "form": "central",
    "epsilon": 1.0,
    "claimed_delta": 1e-5,
    "clip_norm": 1.0,
    "noise_multiplier": 2.0,
    "client_sampling": "poisson",
    "clipping": "quantile",
    "clip_lr": 0.2,
    "target_quantile": 0.5,
    "floor": 0.001,
    "norm_bound": 1000.0,
    "count_share": 0.1,
}


def server(clients: int = 20, size: int = 5, seed: int = 3, dimension: int = 40, **changes: Any) -> DPFedAvg:
    made = making.server(
        DPFedAvg, Population(seed, clients, size, lambda client: 10), learning_rate=0.5, **OPTIONS | changes
    )
    made.current = Round(1, np.zeros(dimension, np.float32))
    return made


def replies(*lengths: float, dimension: int = 40) -> list[Reply]:
    """Client k moves along the first coordinate alone."""
    return [Reply(k, np.eye(dimension, dtype=np.float32)[0] * length, 10, {}, 0) for k, length in enumerate(lengths)]


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 40.0])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.9])
def test_the_two_releases_cost_what_one_would(multiplier: float, share: float) -> None:
    of_sum, count_noise = split_for_count(multiplier, share)
    assert with_count(of_sum, count_noise) == pytest.approx(multiplier, rel=1e-12)
    assert of_sum > multiplier and 1 / (2 * count_noise) ** 2 == pytest.approx(share / multiplier**2)
    # The exact law: two unit Gaussians that lie 1/multiplier apart in two dimensions.
    away = np.array([1 / of_sum, 0.5 / count_noise])
    epsilon = 0.7
    shift = float(np.linalg.norm(away))
    delta = norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)
    alone = 1 / multiplier
    wanted = norm.cdf(alone / 2 - epsilon / alone) - math.exp(epsilon) * norm.cdf(-alone / 2 - epsilon / alone)
    assert delta == pytest.approx(wanted, rel=1e-9)


def test_no_client_moves_a_rounds_two_releases_further_than_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a hostile client may send, against a server without noise: distances in units of the noise."""
    seen: list[tuple[np.ndarray[Any, Any], float]] = []
    monkeypatch.setattr(SeededNoise, "normal", lambda self, shape, std=1.0: torch.zeros(shape))
    step_of = {name: split_for_count(2.0, 0.1)[index] for index, name in enumerate(("sum", "count"))}
    generator = np.random.default_rng(5)
    hostile = [0.0, 1e-30, 0.999999, 1.0, 1.000001, 3.0, 1e30, -7.0, *generator.normal(0, 2, 20)]
    for sent in (None, *hostile):
        made = server()
        others = replies(0.2, 5.0, 1.0)
        extra = [] if sent is None else [Reply(3, np.full(40, sent, np.float32), 10, {}, 0)]
        moved = made.aggregate(np.zeros(40, np.float32), [*others, *extra])
        share = made.current.figures["share_within_clip"]
        seen.append((np.asarray(moved, np.float64) / 0.5 * 5, (share - 0.5) * 5))
    (total, count), *rest = seen
    for moved_total, moved_count in rest:
        apart = np.linalg.norm(moved_total - total) / step_of["sum"], (moved_count - count) / step_of["count"]
        assert math.hypot(*apart) <= 0.5 * (1 + 1e-6)  # 1/sigma
        assert abs(moved_count - count) <= 0.5 + 1e-9
    assert max(abs(moved - count) for _, moved in rest) == pytest.approx(0.5, abs=1e-4)  # the count is there


def test_noise_of_both_is_as_large_as_was_split() -> None:
    of_sum, count_noise = split_for_count(2.0, 0.1)
    wide = server(dimension=30_000)
    moved = wide.aggregate(np.zeros(30_000, np.float32), [])
    assert np.std(moved / 0.5 * 5) == pytest.approx(of_sum, rel=0.02)
    assert wide.current.figures["server_noise_norm"] == pytest.approx(of_sum * 30_000**0.5)
    counts = []
    for seed in range(400):
        made = server(seed=seed)
        made.aggregate(np.zeros(40, np.float32), [])
        counts.append((made.current.figures["share_within_clip"] - 0.5) * 5)
    assert np.std(counts) == pytest.approx(count_noise, rel=0.12) and abs(np.mean(counts)) < 3 * count_noise / 20


def test_c_follows_the_quantile_of_the_norms() -> None:
    made = server(clients=100, size=100, noise_multiplier=1e-3, target_quantile=0.7, clip_lr=0.5)
    lengths = np.linspace(0.0, 20.0, 100)
    for _ in range(60):
        made.aggregate(np.zeros(40, np.float32), replies(*lengths))
    assert made.rule is not None and made.rule.clip_norm == pytest.approx(14.0, rel=0.05)
    for _ in range(80):
        made.aggregate(np.zeros(40, np.float32), replies(*(0.0,) * 100))
    assert made.rule.clip_norm == 0.001 and made.rule.floor_held  # never below strategy.server.floor


def test_the_sum_is_clipped_by_the_rounds_own_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeededNoise, "normal", lambda self, shape, std=1.0: torch.zeros(shape))
    made = server(size=1, clients=2, clip_lr=1.0)
    steps = []
    for _ in range(3):
        made.aggregate(np.zeros(40, np.float32), replies(50.0))
        steps.append((made.current.figures["clip_norm"], made.current.figures["server_noise_norm"]))
    grown = [math.exp(0.5 * t) for t in range(3)]  # b = 0 of one client: C <- C exp(eta_C gamma)
    assert [clip_norm for clip_norm, _ in steps] == pytest.approx(grown, rel=1e-4)
    of_sum = split_for_count(2.0, 0.1)[0]
    assert [noise for _, noise in steps] == pytest.approx([of_sum * c * 40**0.5 for c in grown], rel=1e-4)


def test_clients_send_what_their_c_would_have_cut() -> None:
    moving, fixed = (make_client(compose([*options, "strategy.client.clip_norm=0.1"])) for options in (MOVING, CENTRAL))
    update = torch.full((16,), 2.0)
    assert torch.equal(moving.release(update, None, SeededNoise(1)).value, update)
    assert float(fixed.release(update, None, SeededNoise(1)).value.norm()) <= 0.1
    far = moving.release(update * 1e6, None, SeededNoise(1)).value
    assert 999 < float(far.double().norm()) <= 1000  # norm_bound
    assert float(onto_grid(far, grid_step(1.0)).double().norm()) <= 1000


def test_the_price_is_that_of_a_fixed_c(run: Run) -> None:
    moving, fixed = run(*MOVING), run(*CENTRAL)
    bills = [json.loads((folder / "summary.json").read_text())["privacy"] for folder in (moving, fixed)]
    assert bills[0]["verified_epsilon"] == bills[1]["verified_epsilon"] > 0
    assert [entry["mechanism"] for entry in ledger_of(moving)] == ["poisson_gaussian"] * 6
    norms = [row["figures"]["clip_norm"] for row in rows_of(moving)]
    assert norms[0] == 1.0 and len(set(norms)) == 6
    assert all("clip_norm" not in row["figures"] for row in rows_of(fixed))
