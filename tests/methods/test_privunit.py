"""`strategy=privunit`: whole runs with each mechanism, prices, targets, budgets, and what a server cannot decode."""

from __future__ import annotations

import json
import math
from pathlib import Path

import making
import numpy as np
import pytest
import torch
from conftest import Run, ledger_of

from clients.privunit import PrivUnitClient
from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError
from fedpriv.common.replies import Reply
from fedpriv.config.compose import compose
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.mechanisms.unit_vectors import unit_mechanism
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import Gaussian, UnitCap
from fedpriv.runs.planning import with_target
from fedpriv.server.round import Population, Round
from strategies.privunit import PrivUnit

LINEAR = "model=linear"
D = 650  # digits: 64 x 10 + 10


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def server(mechanism: str = "privunit", bits: int | None = None) -> PrivUnit:
    population = Population(0, 4, 4, lambda _: 10)
    asked = {"learning_rate": 2.0, "mechanism": mechanism, "epsilon": 8.0, "bits": bits, "projections": 16}
    found = making.server(PrivUnit, population, **asked)
    found.current = Round(1, np.zeros(D, np.float32))
    return found


@pytest.mark.parametrize(
    ("mechanism", "sent"), [("privunit", 4 * D), ("projunit", 64), ("sqkr", 1), ("gaussian", 4 * D)]
)
def test_a_run_learns_and_books_what_it_sends(mechanism: str, sent: int, run: Run) -> None:
    both = [f"strategy.client.{name}" for name in (f"mechanism={mechanism}", "projections=16", "epsilon=100")]
    if mechanism == "sqkr":
        both[2] = "strategy.client.epsilon=8"
    folder = run("strategy=privunit", LINEAR, *both)
    found = summary(folder)
    client = make_client(compose(["strategy=privunit", LINEAR, *both]))
    assert client.release_bytes(D) == sent
    lines = ledger_of(folder)
    assert len(lines) == 12
    epsilon = 8.0 if mechanism == "sqkr" else 100.0
    assert {line["mechanism"] for line in lines} == {"gaussian" if mechanism == "gaussian" else "unit_cap"}
    assert found["privacy"]["claimed_epsilon"] == epsilon and found["privacy"]["claimed_scope"] == "round"
    assert found["privacy"]["verified_epsilon"] <= 3 * epsilon
    per_client = found["traffic"]["bytes_up"] / 12
    assert sent <= per_client < sent + 1000
    if mechanism != "sqkr":  # four clients' bytes are too few to learn much from
        assert found["accuracy"]["final"] > 0.3


def test_a_planned_run_costs_what_its_releases_cost() -> None:
    client = make_client(compose(["strategy=privunit", LINEAR, "strategy.client.epsilon=2"]))
    (event,) = client.planned_events(3)
    assert isinstance(event, UnitCap) and event.epsilon == 2 and event.count == 3 and 0.6 < event.inside < 0.7
    assert client.planned_events(0) == []
    gaussian = make_client(compose(["strategy=privunit", LINEAR, "strategy.client.mechanism=gaussian"]))
    (other,) = gaussian.planned_events(1)
    assert isinstance(other, Gaussian) and compose_events([other], 1e-5).epsilon == pytest.approx(8.0)


@pytest.mark.parametrize("mechanism", ["privunit", "sqkr", "gaussian"])
@pytest.mark.parametrize("rounds", [1, 20])
def test_a_target_is_met_and_used(mechanism: str, rounds: int) -> None:
    options = [f"strategy.client.mechanism={mechanism}", f"num_rounds={rounds}", "num_clients=4", "clients_per_round=4"]
    config = with_target(compose(["strategy=privunit", LINEAR, *options, "privacy.target_epsilon=6"]))
    found = compose_events(make_client(config).planned_events(rounds), 1e-5).epsilon
    assert 5.98 <= found <= 6
    epsilon = config.strategy.options.epsilon
    if mechanism != "gaussian":
        assert epsilon >= 6 / rounds * (1 - 1e-9)
    if rounds == 20:
        assert epsilon > 1.05 * 6 / rounds  # composed by the exact law, not summed


def test_an_epsilon_below_floating_points_price_names_the_option() -> None:
    with pytest.raises(OptionError, match=r"strategy\.client\.epsilon=0\.0001: must be at least"):
        make_client(compose(["strategy=privunit", LINEAR, "strategy.client.epsilon=0.0001"])).planned_events(1)


def test_a_budget_ends_a_clients_releases(run: Run) -> None:
    folder = run("strategy=privunit", LINEAR, "privacy.max_epsilon=16.5", "num_rounds=3")
    found = summary(folder)["privacy"]
    assert found["clients_stopped"] == 4 and 15.9 < found["verified_epsilon"] <= 16.5


@pytest.mark.parametrize("mechanism", ["privunit", "projunit", "sqkr"])
def test_the_server_decodes_what_a_client_sends(mechanism: str) -> None:
    """At a high epsilon, and many projections, the estimate points where the update does."""
    half = server(mechanism)
    update = torch.randn(D, generator=torch.Generator().manual_seed(1))
    asked = half.options
    mechanism_of = unit_mechanism(asked.mechanism, D, asked.epsilon, asked.projections, asked.bits)
    total = np.zeros(D)
    for client in range(500):
        sent = mechanism_of.release(update, (0, client, 1), SeededNoise(9, client)).numpy()
        total += half.decoded(client, sent)
    cosine = float(total @ update.numpy()) / np.linalg.norm(total) / float(update.norm())
    assert cosine > 0.8


def test_nothing_else_is_decoded() -> None:
    for mechanism, wrong in (
        ("privunit", np.zeros(D - 1, np.float32)),
        ("privunit", np.zeros(D, np.uint8)),
        ("projunit", np.zeros(D, np.float32)),
        ("sqkr", np.zeros(1, np.float32)),
        ("sqkr", np.zeros(2, np.uint8)),
    ):
        with pytest.raises(ValueError, match="expected"):
            server(mechanism).decoded(0, wrong)


def test_the_server_moves_by_its_learning_rate() -> None:
    half, one = server(), np.zeros(D, np.float32)
    one[0] = 1.0
    half.current.asked = [0]
    moved = half.aggregate(np.ones(D, np.float32), [Reply(0, one, 10, {}, 0)])
    assert moved[0] == 3.0 and (moved[1:] == 1.0).all()


def test_a_client_is_audited_without_a_site() -> None:
    client = make_client(compose(["strategy=privunit", LINEAR]))
    assert isinstance(client, PrivUnitClient) and client.exact_leak() is None
    claim = client.claim(1, 1e-5)
    assert claim.epsilon == 8.0 and claim.delta == 1e-12 and not math.isinf(claim.epsilon)
