"""DPFL-AGN and its kin: noisy steps, moments, decaying noise, adaptive Theta."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import making
import numpy as np
import pytest
import torch
from agn_clients import ALL, BATCH, DELTA, EXAMPLES, FACTS, LOCAL, ask, at_work, rows_drawn, some, theta
from conftest import Run, page_of, rows_of
from reference.adam import PlainAdam
from reference.federation import BytesStore, booked, linear_model, make_site
from reference.per_example import clipped_sum

from clients.agn import AGNClient
from clients.anr import ANRClient
from clients.dpfl_agn import DPFLAGNClient
from clients.dpsgd import DPSGDClient
from clients.nbafl import PUBLIC, UPLOAD, NbAFLClient
from fedpriv.client.build import example_counts
from fedpriv.client.contract import BudgetSpent, PublicFacts, UnsafeNoise
from fedpriv.client.example_level import ExampleLevelClient, TrainingState
from fedpriv.client.memory import read_memory
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import KEPT_BACK, SeededNoise
from fedpriv.mechanisms.trusted_sums import with_count
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.composition import renyi_curve
from fedpriv.privacy.events import Event, Gaussian, NoBound, PoissonGaussian
from fedpriv.runs.planning import make_plan
from fedpriv.training.sequential import SequentialTrainer
from strategies.dpfl_agn import DPFLAGN
from strategies.nbafl import NbAFL

# --- steps against plain twins ---------------------------------------------------------------------------


def test_noisy_adam_steps_equal_a_plain_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of two steps each: batches, clipping, noise, /H, moments over rounds, from plain parts."""
    client = at_work(AGNClient, local_steps=2, clip_norm=0.5)
    batches = rows_drawn(monkeypatch, client)
    model, twin = linear_model(), PlainAdam(0.9, 0.999, LOCAL.lr)
    for server_round in (1, 2):
        release = ask(client, server_round)
        noise = SeededNoise(3, 0, server_round, 0, "steps")
        moved = np.zeros(len(release))
        for rows in batches[-2:]:
            model.load(torch.from_numpy((theta() + moved).astype(np.float32)))
            data = some(rows)
            total, _ = clipped_sum(model.module, data.inputs, data.targets, 0.5)
            gradient = (np.asarray(total) + 0.5 * noise.normal(len(release), 1.0).numpy()) / BATCH
            moved += twin.step(gradient.tolist())
        assert release == pytest.approx(moved, rel=1e-3, abs=2e-4)


def test_without_noise_and_clipping_it_is_torchs_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    client = at_work(AGNClient, noise_multiplier=0.0, clip_norm=1e6, local_steps=6)
    batches = rows_drawn(monkeypatch, client)
    release = ask(client, 1)
    module = linear_model().module
    optimiser = torch.optim.Adam(module.parameters(), lr=LOCAL.lr, betas=(0.9, 0.999), eps=1e-8)
    for rows in batches:
        data = some(rows)
        optimiser.zero_grad()
        (torch.nn.functional.cross_entropy(module(data.inputs), data.targets, reduction="sum") / BATCH).backward()
        optimiser.step()
    end = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()
    assert release == pytest.approx(end - theta(), rel=1e-3, abs=1e-4)


def test_plain_sgd_divides_by_the_expected_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    client = at_work(DPSGDClient, noise_multiplier=0.0, clip_norm=0.3)
    batches = rows_drawn(monkeypatch, client)
    release = ask(client, 1)
    data = some(batches[0])
    total, _ = clipped_sum(linear_model().module, data.inputs, data.targets, 0.3 * (1 - KEPT_BACK))
    assert len(batches[0]) != BATCH  # or dividing by the size drawn would be the same
    assert release == pytest.approx(-LOCAL.lr * np.asarray(total) / BATCH, abs=1e-6)


def test_adam_against_torch_on_given_gradients() -> None:
    gradients = torch.randn(7, 5, generator=torch.Generator().manual_seed(2))
    parameter = torch.zeros(5, requires_grad=True)
    theirs = torch.optim.Adam([parameter], lr=0.01, betas=(0.8, 0.95))
    adam, ours = at_work(AGNClient, adam_beta1=0.8, adam_beta2=0.95), torch.zeros(5)
    state = adam.fresh_state(ours)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        theirs.step()
        change, state = adam.descend(gradient, state, 0.01)
        ours = ours + change
        assert torch.allclose(ours, parameter.detach(), atol=1e-6)
    assert state.steps == 7
    plain, after = at_work(DPSGDClient).descend(gradients[0], state, 0.5)
    assert torch.equal(plain, -0.5 * gradients[0]) and after.steps == 8


def test_the_noises_second_moment_is_taken_off_and_weights_decay_as_adamws() -> None:
    """Gradients of 0.01 and 0.0001 behind noise of 0.5: Adam's steps follow the noise, the corrected ones the sign."""
    client = at_work(AGNClient, noise_corrected=True, correction_floor=1e-9, noise_multiplier=1.0)
    noise = client.sigma * client.clip_norm / client.facts.batch_size
    random = torch.Generator().manual_seed(3)
    true = torch.tensor([0.4, -0.1]).repeat(4000)
    plain, state, kept = at_work(AGNClient), client.fresh_state(true), client.fresh_state(true)
    for _ in range(3000):
        gradient = true + noise * torch.randn(len(true), generator=random)
        change, state = client.descend(gradient, state, 1.0)
        biased, kept = plain.descend(gradient, kept, 1.0)
    v_hat = state.v / (1 - client.options.adam_beta2**state.steps)
    found = [float((v_hat - noise**2)[place::2].mean()) for place in (0, 1)]
    assert found == pytest.approx([0.16, 0.01], rel=0.2)
    ratio = lambda steps: float(steps[0::2].mean() / steps[1::2].mean())  # noqa: E731
    assert ratio(biased) < -1.5 and abs(ratio(change) + 1) < abs(ratio(biased) + 1)  # Adam's own: -1, the signs
    parameter = torch.full((5,), 2.0, requires_grad=True)
    theirs = torch.optim.AdamW([parameter], lr=0.01, betas=(0.9, 0.999), weight_decay=0.1)
    decaying, ours = at_work(AGNClient, weight_decay=0.1), torch.full((5,), 2.0)
    state = decaying.fresh_state(ours)
    for gradient in torch.randn(6, 5, generator=random):
        parameter.grad = gradient.clone()
        theirs.step()
        change, state = decaying.descend(gradient, state, 0.01, ours)
        ours = ours + change
        assert torch.allclose(ours, parameter.detach(), atol=1e-6)
    with pytest.raises(OptionError, match="noise_corrected=true: clipping=adaptive moves the noise"):
        at_work(AGNClient, noise_corrected=True, clipping="adaptive")


def test_an_empty_batch_still_releases_noise() -> None:
    client = at_work(DPSGDClient)
    client.site = replace(client.site, load_data=lambda rows: some([]))
    release = ask(client, 1)
    expected = LOCAL.lr * 1.0 / BATCH
    assert 0.7 * expected < release.std() < 1.3 * expected and len(booked(client)) == 1


def test_a_broken_global_model_gets_noise_alone() -> None:
    """Whether and how a client answers depends on nothing but public values."""
    release = ask(at_work(DPSGDClient), 1, start=np.full_like(theta(), np.nan))
    assert np.isfinite(release).all() and release.std() > 0


def test_poisson_batch_sizes_have_the_binomial_law(monkeypatch: pytest.MonkeyPatch) -> None:
    client = at_work(DPSGDClient, local_steps=3000)
    batches = rows_drawn(monkeypatch, client)
    client.site = replace(client.site, load_data=lambda rows: (batches.append(rows), some(rows[:0]))[1])
    ask(client, 1)
    sizes, q = np.array([len(rows) for rows in batches]), BATCH / EXAMPLES
    deviation = math.sqrt(EXAMPLES * q * (1 - q))
    assert abs(sizes.mean() - BATCH) < 4 * deviation / math.sqrt(len(sizes))
    assert sizes.var() == pytest.approx(deviation**2, rel=0.12)
    together = np.mean([0 in rows and 1 in rows for rows in batches])
    assert together == pytest.approx(q * q, abs=4 * q / math.sqrt(len(sizes)))  # independent of each other


# --- what the client keeps -------------------------------------------------------------------------------


def test_moments_survive_rounds_and_restarts_and_are_in_no_message() -> None:
    store = BytesStore()
    whole = at_work(DPFLAGNClient, decay=0.9, floor=0.5)
    for server_round in (1, 2):
        first = ask(at_work(DPFLAGNClient, store, decay=0.9, floor=0.5), server_round)  # a new object every time
        assert np.array_equal(first, ask(whole, server_round))
    state = read_memory(store).state
    assert state is not None and state["steps"] == 2 and state["m"].shape == state["v"].shape == (len(theta()),)
    _, _, diagnostics = at_work(DPFLAGNClient, decay=0.9, floor=0.5).fit([theta()], {"round": 1, "attempt": 0})
    assert all(isinstance(value, float) for value in diagnostics.values()) and len(first) == len(theta())
    fresh = at_work(DPFLAGNClient, decay=0.9, floor=0.5)
    assert not np.array_equal(ask(fresh, 2), first)  # without the first round's moments it is another step


# --- decaying noise --------------------------------------------------------------------------------------


def test_anr_on_a_hand_written_loss_sequence() -> None:
    losses = [2.0, 1.5, 1.4995, 1.6, 1.599, 1.5, float("nan"), 1.0]
    expected = [4.0, 2.0, 1.0, 1.0, 1.0, 0.5, 0.25]  # falls of 0.5, 0.0005, -0.1, 0.001, 0.099, nan, nan
    server, seen = FixedStep.server([], decay=0.5, threshold=0.0009, variant="published"), []
    for before, after in pairwise(losses):
        server.reduce_noise(before, after)
        seen.append(server.sigma)
    assert seen == expected


class FixedStep:
    """A population and losses for a server half without a federation."""

    @staticmethod
    def server(losses: list[float], **options: Any) -> DPFLAGN:
        from fedpriv.server.round import Hooks, Population

        given = {"noise_multiplier": 4.0, "decay": 0.5, "threshold": 0.001, "floor": 0.2, "variant": "repaired"}
        remaining = iter(losses)
        hooks = Hooks(public_loss=lambda theta: next(remaining))
        return making.server(DPFLAGN, Population(0, 2, 2, lambda _: 10), hooks=hooks, **given | options)


def after(server: DPFLAGN, rounds: int) -> list[float]:
    from fedpriv.common.replies import Reply

    zero = np.zeros(3, np.float32)
    seen = []
    for number in range(rounds):
        seen.append(server.train_options(number + 1)["noise_multiplier"])
        server.aggregate(zero, [Reply(0, zero, 10, {}, 0)])
    return seen  # type: ignore[return-value]


def test_the_server_announces_decaying_noise_and_keeps_the_floor() -> None:
    losses = [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert after(FixedStep.server(losses), 5) == [4.0, 4.0, 2.0, 1.0, 0.8]
    assert after(FixedStep.server(losses, variant="published"), 5) == [4.0, 4.0, 2.0, 1.0, 0.5]


def test_the_servers_state_survives() -> None:
    losses = [2.0, 1.0, 1.0, 0.9999]
    whole = after(FixedStep.server(losses), 3)
    first = FixedStep.server(losses)
    after(first, 2)
    second = FixedStep.server(losses[3:])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert after(second, 1) == whole[2:]


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), 0.49, True, "1.0"])
def test_noise_below_the_clients_own_bound_is_refused_and_nothing_happens(bad: Any) -> None:
    client = at_work(ANRClient, decay=0.9, floor=0.5)
    with pytest.raises(UnsafeNoise):
        ask(client, 1, noise_multiplier=bad)
    assert client.site.store.read() is None
    assert ask(client, 1, noise_multiplier=0.5).any()


@pytest.mark.parametrize("kind", [DPSGDClient, AGNClient])
def test_constant_noise_takes_no_less_than_its_own(kind: Any) -> None:
    with pytest.raises(UnsafeNoise):
        ask(at_work(kind), 1, noise_multiplier=0.999)
    client = at_work(kind)
    ask(client, 1, noise_multiplier=2.0)  # more is welcome, and costs less
    (entry,) = booked(client)
    assert (entry.event.multiplier, entry.realised.multiplier) == (1.0, 2.0)


@pytest.mark.parametrize("kind", [DPSGDClient, AGNClient])
def test_a_site_of_several_releases_with_its_own_noise_alone(kind: Any) -> None:
    """Many rounds with more noise at one site and one round at another cost a person more than twice either."""
    client = at_work(kind)
    client.run = replace(client.run, across_sites=2)
    with pytest.raises(UnsafeNoise, match="sites that all release with the same"):
        ask(client, 1, noise_multiplier=2.0)
    ask(client, 1, noise_multiplier=1.0)
    (entry,) = booked(client)
    assert entry.event.count == 2 * client.local_steps and entry.realised is None
    sampled = partial(PoissonGaussian, threat=entry.event.threat, sampling_rate=0.01)
    dear, cheap = sampled(multiplier=0.4), sampled(multiplier=2.0, count=27_160)
    alone = [epsilon_of([replace(event, count=2 * event.count)]) for event in (dear, cheap)]
    assert epsilon_of([dear, cheap]) > 1.2 * max(alone)


def epsilon_of(events: list[Any]) -> float:
    return compose_events(events, 1e-5).epsilon


def test_published_noise_may_decay_as_fast_as_it_says_and_no_faster() -> None:
    client = at_work(ANRClient, decay=0.5, floor=0.9, variant="published")
    for server_round, sigma in ((1, 1.0), (2, 0.5), (3, 0.3)):
        ask(client, server_round, noise_multiplier=sigma)
    with pytest.raises(UnsafeNoise):
        ask(client, 4, noise_multiplier=0.1)
    assert [entry.event.multiplier for entry in booked(client)] == [1.0, 0.5, 0.25]
    assert [entry.spent.multiplier for entry in booked(client)] == [1.0, 0.5, 0.3]


# --- adaptive Theta --------------------------------------------------------------------------------------


def test_theta_goes_to_the_quantile(monkeypatch: pytest.MonkeyPatch) -> None:
    client = at_work(
        DPSGDClient, clipping="adaptive", clip_norm=30.0, noise_multiplier=0.01, count_noise=0.1, local_steps=300
    )
    client.site = replace(client.site, trainer=SequentialTrainer(linear_model(), LOCAL.model_copy(update={"lr": 1e-9})))
    ask(client, 1)
    model, data = linear_model(), some()
    _, norms = clipped_sum(model.module, data.inputs, data.targets, 1.0)
    found = read_memory(client.site.store).state["clip_norm"].item()  # type: ignore[index]
    assert np.quantile(norms, 0.3) < found < np.quantile(norms, 0.7)


def test_theta_moves_by_the_pages_formula() -> None:
    """All 5 drawn are within Theta: b = (5 - 5/2)/H, and one example more or less moves b by 1/(2H)."""
    client = at_work(DPSGDClient, clipping="adaptive", count_noise=1e-9, clip_lr=0.2, target_quantile=0.5)
    one = torch.tensor(1.0, dtype=torch.float64)
    step = client.noisy_step(torch.zeros(3), torch.tensor(2.5, dtype=torch.float64), 1.0, one, SeededNoise(0))
    assert float(client.next_clip_norm(one, step)) == pytest.approx(math.exp(-0.2 * 2.5 / BATCH), rel=1e-6)


def test_gradient_and_count_together_are_one_gaussian() -> None:
    assert with_count(1.0, 3.0) == pytest.approx((1 + 1 / 36) ** -0.5)
    client = at_work(DPSGDClient, clipping="adaptive", count_noise=3.0)
    (event,) = {client.planned_events(1)[0]}
    assert isinstance(event, PoissonGaussian) and event.multiplier == pytest.approx(with_count(1.0, 3.0))


def test_the_raw_median_is_for_published_runs() -> None:
    client = at_work(DPSGDClient, clipping="median", variant="published")
    ask(client, 1)
    (entry,) = booked(client)
    assert isinstance(entry.event, NoBound) and "median" in entry.event.reason


# --- DPFL-AGN and its kin: prices, NbAFL, whole runs, refusals -----------------------------------------------------


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
