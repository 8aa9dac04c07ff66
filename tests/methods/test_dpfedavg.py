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

from fedpriv.attacks.release_audit import audit_config
from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import pack_vector
from fedpriv.common.replies import Reply
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import SeededNoise, add_normal_to_sum, clip, grid_step, onto_grid
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


def test_an_audit_of_the_central_form_stays_below_and_notices_half_the_noise(monkeypatch: pytest.MonkeyPatch):
    config = compose([*CENTRAL, "clients_per_round=20"])

    def found() -> Any:
        return audit_config(config, trials=40_000, confidence=0.999, seed=1)[0]

    right = found()
    assert right.participations == 6 and 0.5 < right.audit.epsilon_lower < right.verified
    normal = SeededNoise.normal
    monkeypatch.setattr(SeededNoise, "normal", lambda self, shape, std=1.0: normal(self, shape, std / 4))
    assert found().audit.epsilon_lower > right.verified


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
