"""DPFL-AGN and its kin: prices, NbAFL, whole runs, refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import making
import numpy as np
import pytest
import torch
from agn_clients import ALL, BATCH, DELTA, EXAMPLES, FACTS, ask, at_work, theta
from conftest import Run, page_of, rows_of
from reference.federation import booked, make_site

from clients.anr import ANRClient
from clients.dpfl_agn import DPFLAGNClient
from clients.dpsgd import DPSGDClient
from clients.nbafl import PUBLIC, UPLOAD, NbAFLClient
from fedpriv.client.build import example_counts
from fedpriv.client.contract import BudgetSpent, PublicFacts
from fedpriv.client.example_level import ExampleLevelClient, TrainingState
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.composition import renyi_curve
from fedpriv.privacy.events import Event, Gaussian, PoissonGaussian
from fedpriv.runs.planning import make_plan
from strategies.nbafl import NbAFL

# --- prices ----------------------------------------------------------------------------------------------


def events_of(sigma: float, q: float, steps: int) -> list[Event]:
    facts = PublicFacts(round(60 / q), round(60 / q), 60, steps, 1)
    return making.client(DPSGDClient, noise_multiplier=sigma, clip_norm=1.0, facts=facts).planned_events(steps)


@pytest.mark.parametrize(
    ("sigma", "q", "steps"), [(1.0, 0.01, 1000), (1.0, 0.01, 100), (0.8, 0.1, 50), (4.0, 0.1, 300)]
)
def test_the_ledger_against_opacus(sigma: float, q: float, steps: int) -> None:
    from opacus.accountants import PRVAccountant, RDPAccountant

    events = events_of(sigma, q, steps)
    prv, rdp = PRVAccountant(), RDPAccountant()
    prv.history = rdp.history = [(sigma, q, steps)]
    ours = compose_events(events, DELTA)
    expected = prv.get_epsilon(DELTA, eps_error=0.001)
    assert expected >= 0.25 and ours.accountant == "pld"
    assert ours.epsilon == pytest.approx(expected, rel=0.01)
    orders = np.array([2.0, 4.0, 8.0, 16.0, 32.0])
    from opacus.accountants.analysis.rdp import compute_rdp

    from fedpriv.privacy.composition import ORDERS

    theirs = compute_rdp(q=q, noise_multiplier=sigma, steps=steps, orders=orders.tolist())
    ours_rdp = steps * renyi_curve(events[0])[np.searchsorted(ORDERS, orders)]
    assert ours_rdp == pytest.approx(np.asarray(theirs), rel=0.01)
    assert ours.epsilon <= rdp.get_epsilon(DELTA) * 1.01


@pytest.mark.parametrize(("rounds", "decay", "slack"), [(18, 0.97, 9e-4), (98, 0.995, 0.0045)])
def test_a_decaying_noise_against_a_direct_composition(rounds: int, decay: float, slack: float) -> None:
    """98 different sigmas are more than are composed one by one: they are rounded down in groups, which costs 0.3 %."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    facts = PublicFacts(600, 600, 60, rounds, 1)
    client = making.client(
        ANRClient, noise_multiplier=4.0, clip_norm=1.0, decay=decay, floor=0.5, facts=facts, variant="published"
    )
    accountant = PLDAccountant(value_discretization_interval=2e-3)
    for t in range(rounds):
        gaussian = dp_accounting.GaussianDpEvent(4.0 * decay**t)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(0.1, gaussian))
    ours, direct = compose_events(client.planned_events(rounds), DELTA).epsilon, accountant.get_epsilon(DELTA)
    assert direct * 0.999 <= ours <= direct * (1 + slack)


def test_the_pages_own_figures() -> None:
    """n_j = 6000, T = 1000, H = 60: claimed 2.54 and verified 1.83 at sigma 1.0; 0.40 and 0.27 at 4.0."""
    facts = PublicFacts(6000, 6000, 60, 1000, 10)
    for sigma, claimed, verified in ((1.0, 2.54, 1.83), (4.0, 0.40, 0.27)):
        client = making.client(DPSGDClient, noise_multiplier=sigma, clip_norm=1.0, facts=facts)
        assert client.claim(1000, DELTA).epsilon == pytest.approx(claimed, abs=0.006)
        assert compose_events(client.planned_events(1000), DELTA).epsilon == pytest.approx(verified, abs=0.006)


def test_the_literal_decay_of_a_thousandth_costs_everything() -> None:
    facts = PublicFacts(6000, 6000, 60, 1000, 10)
    client = making.client(
        ANRClient, noise_multiplier=4.0, clip_norm=1.0, decay=0.001, floor=0.5, facts=facts, variant="published"
    )
    assert math.isinf(compose_events(client.planned_events(1000), DELTA).epsilon)
    assert client.claim(1000, DELTA).epsilon < 0.5  # the paper's formula knows the first sigma only


@pytest.mark.parametrize(("participations", "rounds"), [(1, (10,)), (3, (8, 9, 10)), (10, tuple(range(1, 11)))])
def test_a_few_participations_are_planned_in_the_rounds_of_least_noise(
    participations: int, rounds: tuple[int, ...]
) -> None:
    """sigma_0 rho^(t - 1) in round t: whichever rounds a client is asked in, the last ones cost most."""
    facts = PublicFacts(6000, 6000, 60, 10, 10)
    options: dict[str, Any] = {"noise_multiplier": 4.0, "clip_norm": 1.0, "decay": 0.9, "floor": 0.5, "facts": facts}
    client = making.client(ANRClient, variant="published", **options)
    found = [event.multiplier for event in client.planned_events(participations)]
    assert found == pytest.approx([4.0 * 0.9 ** (number - 1) for number in rounds])


def test_the_report_says_what_a_literal_decay_does(run: Run) -> None:
    options = ("strategy=anr", "strategy.client.decay=0.001", "privacy.variant=published", "dataset.auxiliary=50")
    folder = run(*options)
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert float(privacy["claimed_epsilon"]) < float(privacy["verified_epsilon"])
    words = "decay 0.001, so by round 3 the noise multiplier may have fallen to 4e-06"
    assert any(words in reason for reason in privacy["reasons"])
    assert words in page_of(folder)


def test_the_guarantee_is_the_floor_and_the_spending_is_what_was_announced() -> None:
    client = at_work(DPFLAGNClient, noise_multiplier=4.0, decay=0.9, floor=0.25)
    ask(client, 1, noise_multiplier=4.0)
    (entry,) = booked(client)
    assert entry.event == PoissonGaussian(threat=client.threat, multiplier=1.0, sampling_rate=BATCH / EXAMPLES)
    assert entry.realised == replace(entry.event, multiplier=4.0)


def test_a_client_whose_budget_ends_in_mid_run_stops() -> None:
    enough = compose_events(at_work(DPSGDClient).planned_events(20), DELTA).epsilon
    client = at_work(DPSGDClient, max_epsilon=1.001 * enough)  # the whole plan fits: all of it is admitted
    for server_round in range(1, 21):
        ask(client, server_round)
    with pytest.raises(BudgetSpent):
        ask(client, 21)
    half = compose_events(at_work(DPSGDClient).planned_events(10), DELTA).epsilon
    client = at_work(DPSGDClient, max_epsilon=half)  # as a plan says of a client that is drawn ten times
    with pytest.raises(BudgetSpent):
        for server_round in range(1, 21):
            ask(client, server_round)
    assert len(booked(client)) == 10


# --- NbAFL -----------------------------------------------------------------------------------------------


def nbafl(rounds: int = 10, **options: Any) -> NbAFLClient:
    facts = PublicFacts(60, 50, 10, rounds, clients_per_round=4)
    return making.client(NbAFLClient, facts=facts, epsilon=8.0, clip_norm=2.0, claimed_delta=DELTA, **options)


def test_nbafl_noise_is_the_papers() -> None:
    c = math.sqrt(2 * math.log(1.25 / DELTA))
    assert nbafl().noise_multiplier * 2.0 == pytest.approx(c * 10 * 2 * 2.0 / (50 * 8.0))
    assert nbafl().server_noise == 0.0  # L = T
    assert nbafl(exposures=2).server_noise * 2.0 == pytest.approx(2 * c * 2.0 * math.sqrt(100 - 16) / (50 * 4 * 8.0))
    from fedpriv.server.round import Population

    options = {"epsilon": 8.0, "clip_norm": 2.0, "claimed_delta": DELTA, "rounds": 10, "exposures": 2}
    server = making.server(NbAFL, Population(0, 5, 4, lambda k: 50 + k), **options)
    assert server.std == pytest.approx(nbafl(exposures=2).server_noise * 2.0)  # both halves mean the same noise


def test_nbafl_is_verified_per_upload_with_twice_c_and_for_outsiders_with_the_smallest_cohort() -> None:
    client = nbafl(exposures=2, min_replies=3)
    upload, public = (charge.event for charge in client.charges(None))
    assert isinstance(upload, Gaussian) and isinstance(public, Gaussian)
    assert upload.threat == UPLOAD and upload.multiplier == client.noise_multiplier / 2
    variance = client.noise_multiplier**2 / 3 + client.server_noise**2
    assert public.threat == PUBLIC and public.multiplier == pytest.approx(math.sqrt(variance) / (2 / 3))


def test_nbafl_clips_weights_and_sends_the_noisy_ones() -> None:
    client = nbafl(noise_multiplier=0.0)
    client.site = make_site()
    start = 5 * theta()
    weights = start + ask(client, 1, start=start)
    assert np.linalg.norm(weights) == pytest.approx(2.0, rel=1e-4)


# --- whole runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ALL)
def test_a_run_plans_what_its_ledger_confirms(method: str, run: Run) -> None:
    options = (f"strategy={method}", "strategy.client.noise_multiplier=2", "dataset.auxiliary=50")
    folder = run(*options)
    config = compose(["num_clients=4", "clients_per_round=4", "num_rounds=3", *options])
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert (privacy["unit"], privacy["adjacency"]) == ("example", "add-or-remove-one")
    assert privacy["verified_epsilon"] == pytest.approx(make_plan(config, Worker(config)).verified_epsilon)
    rows = rows_of(folder)
    assert all(row["figures"]["sigma"] <= 2 for row in rows) and ("public_loss" in rows[0]["figures"]) == (
        method in ("anr", "dpfl_agn")
    )
    if method in ("anr", "dpfl_agn"):
        assert privacy["spent_so_far"] < privacy["verified_epsilon"]


def test_nbafls_two_observers_stand_side_by_side(run: Run) -> None:
    options = ("strategy=nbafl", "strategy.client.exposures=1", "strategy.client.clip_norm=5", "num_rounds=4")
    privacy = json.loads((run(*options, "strategy.server.min_replies=4") / "summary.json").read_text())["privacy"]
    (public,) = privacy["others"]
    assert (privacy["observer"], public["observer"]) == ("server", "public")
    assert 0 < public["verified_epsilon"] < privacy["verified_epsilon"]


def test_a_server_that_asks_for_no_noise_gets_codes_and_no_bytes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.common.errors import RunFailed
    from strategies.dpsgd import DPSGD

    monkeypatch.setattr(DPSGD, "train_options", lambda self, server_round: {"noise_multiplier": 0.0})
    with pytest.raises(RunFailed, match="the server announces noise 0"):
        run("strategy=dpsgd")


def test_a_batch_larger_than_the_clients_data_is_refused(run: Run) -> None:
    with pytest.raises(OptionError, match=r"local\.batch_size"):
        run("strategy=agn", "local.batch_size=5000")


def test_anr_needs_public_pictures(run: Run) -> None:
    with pytest.raises(OptionError, match=r"dataset\.auxiliary"):
        run("strategy=anr", "dataset.auxiliary=0")


def test_the_auxiliary_pictures_are_not_among_the_reported_ones() -> None:
    data = Worker(compose(["strategy=anr", "dataset.auxiliary=50"])).data
    assert len(data.auxiliary) == 50 and not set(data.auxiliary) & set(data.test)
    assert len(Worker(compose(["strategy=agn"])).data.auxiliary) == 0


def test_the_sampling_rate_is_each_clients_own() -> None:
    config = compose(["strategy=dpsgd", "partition=dirichlet", "num_clients=5", "clients_per_round=5"])
    counts = example_counts(config)
    assert len(set(counts)) > 1
    plan = make_plan(config, Worker(config))
    assert plan.verified_median < plan.verified_epsilon  # the smallest client is sampled most


def test_state_is_small_and_typed() -> None:
    state = at_work(DPSGDClient).fresh_state(torch.zeros(7))
    assert isinstance(state, TrainingState) and state.m.numel() == 0 and float(state.clip_norm) == 1.0
    assert issubclass(ANRClient, ExampleLevelClient)
    assert at_work(DPSGDClient).sigma == 1.0


@pytest.mark.parametrize(("sigma", "examples", "charged"), [(1.0, 600, 1.0), (200.0, 2**16, 200.0)])
def test_rounding_fits_into_what_clipping_keeps_back(sigma: float, examples: int, charged: float) -> None:
    client = making.client(
        DPSGDClient, noise_multiplier=sigma, clip_norm=1.0, facts=replace(FACTS, num_examples=examples)
    )
    (event,) = {client.planned_events(1)[0]}
    assert isinstance(event, PoissonGaussian) and event.multiplier == charged


@pytest.mark.parametrize(("sigma", "examples"), [(1e5, 600), (1.0, 10**7)])
def test_rounding_that_does_not_fit_is_charged_everywhere(sigma: float, examples: int) -> None:
    """One example moves the sum on the grid by sqrt(d) steps of it, and others' rounding grows with their number."""
    client = making.client(
        DPSGDClient, noise_multiplier=sigma, clip_norm=1.0, facts=replace(FACTS, num_examples=examples)
    )
    planned, budgeted, priced = client.planned_events(1)[0], client.fixed_events()[0], client.event(sigma)
    assert planned == replace(budgeted, count=1) == priced and isinstance(priced, PoissonGaussian)
    assert 0.9 * sigma < priced.multiplier < sigma
