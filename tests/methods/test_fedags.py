"""DP-FedAGS and DP-FedSNLC: what is sent, what leaks, what it costs, how losses weigh."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import Run, ledger_of, page_of, rows_of
from reference.federation import BytesStore, FixedUpdates, booked, make_site, take_part
from reference.recording import Conversation
from scipy.stats import beta, kstest

from clients.dpfedsnlc import DPFedSNLCClient
from clients.fedags import FedAGSClient, printed_epsilon, printed_multiplier, scheduled_rank
from fedpriv.attacks.release_audit import audit_config
from fedpriv.client.contract import BudgetSpent, PublicFacts
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import TRAIN_LOSS, MalformedMessage
from fedpriv.common.replies import Reply
from fedpriv.common.seeds import public_mask
from fedpriv.config.compose import compose
from fedpriv.config.schema import LocalConfig
from fedpriv.mechanisms.noise import NoiseSource, SeededNoise, clip, grid_step
from fedpriv.mechanisms.secure_noise import SecureNoise
from fedpriv.mechanisms.significance import kth_smallest
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import Gaussian, GumbelTopK, NoBound
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu
from fedpriv.runs.preparation import resolve
from fedpriv.server.round import Population, Round
from fedpriv.training.sequential import draw_batches
from strategies.fedags import FedAGS

DELTA, ROUNDS, D = 1e-3, 20, 400
FACTS = PublicFacts(600, 100, 128, ROUNDS, 10, D, 100)


def fedags(variant: str = "published", **options: Any) -> FedAGSClient:
    common = {"epsilon": 0.5, "claimed_delta": DELTA, "clip_norm": 1.0, "facts": FACTS, "variant": variant}
    return making.client(FedAGSClient, **common | options)


def snlc(variant: str = "published", **options: Any) -> DPFedSNLCClient:
    common = {"epsilon": 0.5, "claimed_delta": DELTA, "clip_norm": 1.0, "facts": FACTS, "share": 0.3}
    return making.client(DPFedSNLCClient, **common | options, variant=variant)


def gradient(seed: int = 0, length: float = 3.0) -> torch.Tensor:
    drawn = torch.randn(D, generator=torch.Generator().manual_seed(seed))
    return drawn * (length / drawn.norm())


class NoComparisonNoise(NoiseSource):
    """alpha = beta = 0; the values' noise as ever."""

    def __init__(self) -> None:
        self.real = SeededNoise(1)

    def normal(self, shape: Any, std: float = 1.0) -> torch.Tensor:
        return self.real.normal(shape, std)

    def uniform(self, shape: Any) -> torch.Tensor:
        return self.real.uniform(shape)

    def laplace(self, shape: Any, scale: float = 1.0) -> torch.Tensor:
        return torch.zeros(shape)


# --- published: equation 1 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [fedags, snlc])
def test_coordinates_that_are_not_significant_are_sent_bit_for_bit(method: Any):
    client, g = method(), gradient()
    client.round = 10
    released = client.release(g, None, NoComparisonNoise()).value
    clipped, count = clip(g, 1.0), client.count(D, 10)
    same = released == clipped
    assert int(same.sum()) == D - count and 0 < count < D
    noise = (released - clipped)[~same]
    assert float(noise.std()) == pytest.approx(client.noise_multiplier, rel=0.15)
    scores = clipped.abs() if method is snlc else clipped
    assert float(scores[same].max()) < float(scores[~same].min())


@pytest.mark.parametrize(("server_round", "selected"), [(1, D - 19), (10, D - 199), (18, D - 359), (20, D - 359)])
def test_the_share_perturbed_follows_the_schedule_without_comparison_noise(server_round: int, selected: int):
    client = fedags()
    client.round = server_round
    figures = client.release(gradient(), None, NoComparisonNoise()).figures
    assert figures["share_perturbed"] == figures["scheduled_share"] == pytest.approx(selected / D)


def shares_perturbed(**options: Any) -> np.ndarray:
    client = fedags(**options)
    client.round = 10
    found = [client.release(gradient(), None, SeededNoise(seed)).figures["share_perturbed"] for seed in range(400)]
    return np.array(found)


@pytest.mark.parametrize("scale", ["algorithm1", "section4"])
def test_with_its_noise_the_comparison_is_a_matter_of_chance(scale: str):
    """As much noise on the threshold as on a coordinate: the share is uniform. Split by q^(2/3) : 1 the threshold has
    q^(2/3) times as much, and nearly everything is perturbed or nearly nothing; the schedule says half of it.
    """
    even = shares_perturbed(svt_scale=scale, epsilon_split=[0.025, 0.025, 0.45])
    assert kstest(even, "uniform").pvalue > 1e-3
    split = shares_perturbed(svt_scale=scale)
    assert ((split < 0.05) | (split > 0.95)).mean() > 0.85 and 0.4 < split.mean() < 0.6


def test_the_scales_of_the_published_noise():
    """Laplace scales and the Gaussian's standard deviation, recomputed from the page."""
    asked: list[tuple[str, float, Any]] = []

    class Recording(NoComparisonNoise):
        def laplace(self, shape: Any, scale: float = 1.0) -> torch.Tensor:
            asked.append(("laplace", scale, tuple(shape)))
            return torch.zeros(shape)

        def normal(self, shape: Any, std: float = 1.0) -> torch.Tensor:
            asked.append(("normal", std, tuple(shape)))
            return super().normal(shape, std)

    q = D - 200 + 1
    eps1, eps2 = 0.05 * q ** (2 / 3) / (q ** (2 / 3) + 1), 0.05 / (q ** (2 / 3) + 1)
    sigma = 2 / 0.5 * math.sqrt(2 * (math.log(1.25) + 0.5))
    for scale, factor in (("algorithm1", 1), ("section4", q)):
        asked.clear()
        client = fedags(svt_scale=scale)
        client.round = 10
        client.release(gradient(), None, Recording())
        assert asked[0] == ("laplace", pytest.approx(2 * factor / eps1), (D,))
        assert asked[1] == ("laplace", pytest.approx(2 * factor / eps2), ())
        assert asked[2] == ("normal", pytest.approx(sigma), (q,))
    asked.clear()
    client = fedags(noise="laplace")
    client.round = 10
    client.release(gradient(), None, Recording())
    assert asked[2] == ("laplace", pytest.approx(q * 2 / 0.45), (q,))
    assert fedags(gaussian_eps="eps3").noise_multiplier == pytest.approx(printed_multiplier(0.45, 2.0))
    assert fedags(epsilon_split=[0.1, 0.1, 0.3], gaussian_eps="eps3").noise_multiplier == pytest.approx(
        printed_multiplier(0.3, 2.0)
    )
    assert fedags(sensitivity="per_example").noise_multiplier == pytest.approx(sigma / 600)


def test_the_readings_of_the_paper_differ():
    g = torch.tensor([-0.9, 0.1, 0.2, -0.3, 0.05] * 2)
    facts = replace(FACTS, num_parameters=10, num_rounds=10)
    chosen = {}
    for name, options in {
        "printed": {},
        "magnitude": {"significance": "magnitude"},
        "text": {"threshold": "text"},
    }.items():
        client = fedags(facts=facts, **options)
        client.round = 2
        chosen[name] = client.significant(clip(g, 10.0), NoComparisonNoise()).tolist()
    assert chosen["printed"] == [value >= sorted(g.tolist())[1] for value in g.tolist()]
    assert chosen["magnitude"] == [abs(value) >= 0.05 for value in g.tolist()]
    assert chosen["text"] == [value >= 0.2 for value in g.tolist()]


# --- repaired ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("selection", ["random", "gumbel"])
@pytest.mark.parametrize("method", [fedags, snlc])
def test_repaired_sends_exactly_the_scheduled_coordinates_and_nothing_else(method: Any, selection: str):
    client, g = method("repaired", selection=selection, site=make_site()), gradient()
    for server_round in (1, 10, 20):
        client.round = server_round
        released = client.release(g, None, SeededNoise(4)).value
        count = client.count(D, server_round)
        sent = ~released.isnan()
        assert int(sent.sum()) == count
        assert not bool((released == clip(g, 1.0)).any())  # every value that leaves has noise
        assert len(client.encode(released).numpy().tobytes()) == client.release_bytes(D, server_round)
        if selection == "random":
            assert np.array_equal(sent.numpy(), public_mask(3, 0, server_round, D, count))
    assert client.count(D, 1) == (D - 19 if method is fedags else 120)


def test_gumbel_selection_prefers_large_coordinates_when_it_can_afford_to():
    g = torch.zeros(D)
    g[:40] = 1.0
    found = {}
    for epsilon in (0.5, 1e6):
        client = snlc("repaired", selection="gumbel", epsilon=epsilon, share=0.1)
        chosen = [client.chosen(clip(g, 1.0), SeededNoise(seed))[:40].sum().item() for seed in range(30)]
        found[epsilon] = np.mean(chosen)
    assert found[1e6] == 40 and found[0.5] < 8  # of 40 picks; 4 by chance


@pytest.mark.parametrize("multiplier", [0.0, 1e-200, 1e-6])
def test_almost_no_noise_is_accounted_as_such(multiplier: float):
    client = fedags("repaired", selection="gumbel", loss_weights=True, noise_multiplier=multiplier)
    client.release(gradient(), None, SeededNoise(1))
    assert compose_events(client.planned_events(1), DELTA).epsilon > 1e9


def test_the_gumbel_scale_is_that_of_replace_one():
    """2 tau/eps0 and zCDP k eps0^2/8 = the selection's share; tau/eps0 would be four times too weak."""
    asked: list[float] = []

    class Recording(NoComparisonNoise):
        def gumbel(self, shape: Any, scale: float = 1.0) -> torch.Tensor:
            asked.append(scale)
            return torch.zeros(shape, dtype=torch.float64)

    client = snlc("repaired", selection="gumbel")
    client.chosen(clip(gradient(), 1.0), Recording())
    k, tau = 120, 1 / math.sqrt(120)
    rho = 2 / client.noise_multiplier**2 * 0.05 / 0.95
    assert asked == [pytest.approx(2 * tau / math.sqrt(8 * rho / k))]
    (_, picks) = client.charges(None)
    assert isinstance(picks.realised, GumbelTopK)
    assert (picks.realised.k, picks.realised.epsilon) == (k, pytest.approx(2 * tau / asked[0]))


# --- what it costs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 4.0])
def test_a_repaired_round_costs_what_it_says(epsilon: float):
    for options in ({}, {"loss_weights": True}, {"selection": "gumbel"}, {"selection": "gumbel", "loss_weights": True}):
        client = fedags("repaired", epsilon=epsilon, **options)
        found = compose_events(client.planned_events(1), DELTA).epsilon
        assert epsilon * 0.99 <= found <= epsilon * (1 + 1e-9), options
    assert fedags("repaired", epsilon=epsilon).noise_multiplier == pytest.approx(2 / gaussian_mu(epsilon, DELTA))


def test_the_parts_of_a_round_are_what_its_noise_says():
    """From the events and the code's own noise: values 2C over the standard deviation, loss L_max over its."""
    client = fedags("repaired", selection="gumbel", loss_weights=True, loss_bound=4.0)
    values, picks, loss = (charge.event for charge in client.all_charges(None))
    assert isinstance(values, Gaussian) and isinstance(loss, Gaussian) and isinstance(picks, GumbelTopK)
    rho = {"values": 1 / (2 * values.multiplier**2), "picks": picks.k * picks.epsilon**2 / 8}
    rho["loss"] = 1 / (2 * loss.multiplier**2)
    total = sum(rho.values())
    assert [rho[name] / total for name in ("values", "picks", "loss")] == pytest.approx([0.9, 0.05, 0.05])
    client.loss = torch.tensor(2.0, dtype=torch.float64)
    spread = 4.0 * loss.multiplier  # standard deviation of a reported loss before it is cut to [0, 4]
    assert spread > 4.0  # at this budget losses are nearly coins
    reported = client.reported_loss((20_000,), SeededNoise(3))
    assert float((reported == 0).double().mean()) == pytest.approx(
        0.5 * (1 + math.erf(-2.0 / spread / math.sqrt(2))), abs=0.015
    )
    assert float(reported.min()) == 0.0 and float(reported.max()) == 4.0


@pytest.mark.parametrize("score_bound", [None, 0.01])
@pytest.mark.parametrize("method", [fedags, snlc])
def test_scores_are_cut_to_tau_before_the_selection(method: Any, score_bound: float | None, monkeypatch: Any):
    """One coordinate moves a score by tau at most, whatever the gradient is: the Gumbel scale counts on it."""
    seen: list[torch.Tensor] = []

    class Silent(NoComparisonNoise):
        def gumbel(self, shape: Any, scale: float = 1.0) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float64)

    def keep(scores: torch.Tensor, count: int) -> torch.Tensor:
        seen.append(scores)
        return torch.zeros_like(scores, dtype=torch.bool)

    monkeypatch.setattr("clients.fedags.largest", keep)
    client = method("repaired", selection="gumbel", score_bound=score_bound)
    client.round = 10
    spike = torch.zeros(D)
    spike[3], spike[5] = 1.0, -0.5
    client.chosen(spike, Silent())
    tau = score_bound or 1 / math.sqrt(client.count(D, 10))
    assert float(seen[0].max()) == pytest.approx(tau) and float(seen[0][5]) == pytest.approx(tau)
    assert float(seen[0].min()) == 0.0


def test_a_loss_beyond_its_bound_is_reported_as_the_bound():
    client = fedags("repaired", loss_weights=True, epsilon=1e5, loss_bound=4.0)
    found = []
    for loss in (1e3, 4.0):
        client.loss = torch.tensor(loss, dtype=torch.float64)
        found.append(client.reported_loss((200,), SeededNoise(5)))
    assert torch.equal(*found) and float(found[0].min()) > 3.5


@pytest.mark.parametrize("noise", [SecureNoise, lambda: SeededNoise(3)])
def test_a_reported_loss_has_no_bits_of_its_own(noise: Any):
    """Noise of the grid on a loss that is not on it would show the loss modulo the grid's step."""
    client = fedags("repaired", loss_weights=True, epsilon=20.0)
    client.loss = torch.tensor(math.log(10) / 1.234567, dtype=torch.float64)
    step = grid_step(client.options.loss_bound * client.loss_multiplier())
    reported = client.reported_loss((2000,), noise())
    inside = reported[(reported > 0) & (reported < 10)]
    residues = torch.remainder(inside, step)
    own = float(torch.remainder(client.loss, step))
    assert len(inside) > 100 and float(((residues - own).abs() < step * 1e-6).double().mean()) < 0.01


def test_a_round_that_sends_everything_has_no_selection_to_pay():
    client = snlc("repaired", selection="gumbel", share=1.0)
    assert [type(charge.event) for charge in client.charges(None)] == [Gaussian]
    assert not bool(client.release(gradient(), None, SeededNoise(1)).value.isnan().any())


def test_a_published_share_of_everything_leaks_nothing():
    client = snlc("published", share=1.0)
    assert client.exact_leak() is None
    assert [type(event) for event in client.planned_events(2)] == [Gaussian]


def test_a_claim_is_what_the_papers_formula_says_of_the_noise_at_hand():
    for epsilon in (0.1, 0.5, 4.0):
        assert printed_epsilon(printed_multiplier(epsilon, 2.0), 2.0) == pytest.approx(epsilon)
    assert fedags(epsilon=0.5).claim(1, DELTA).epsilon == 0.5
    quiet = fedags(noise_multiplier=0.01).claim(1, DELTA)
    assert quiet.epsilon == pytest.approx(printed_epsilon(0.01, 2.0)) and quiet.epsilon > 1000
    repaired = fedags("repaired")
    assert repaired.claim(1, DELTA).epsilon == pytest.approx(printed_epsilon(repaired.noise_multiplier, 2.0))
    assert repaired.claim(1, DELTA).epsilon < 0.5
    laplace = fedags(noise="laplace").claim(1, DELTA)
    assert (laplace.epsilon, laplace.delta) == (0.5, 0.0) and "Theorems" in laplace.equation
    assert math.isinf(fedags("repaired", noise_multiplier=0).claim(1, DELTA).epsilon)


def test_the_plan_is_no_cheaper_than_any_round():
    client = fedags("repaired", selection="gumbel", epsilon=4.0)
    planned = compose_events(client.planned_events(ROUNDS), DELTA).epsilon
    spent = []
    for server_round in range(1, ROUNDS + 1):
        client.round = server_round
        spent += [charge.realised or charge.event for charge in client.charges(None)]
    realised = compose_events(spent, DELTA).epsilon
    assert 0.98 * planned <= realised <= planned * (1 + 1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_reported_within_its_bounds(bad: float):
    client = fedags("repaired", loss_weights=True, epsilon=1e6)
    client.loss = torch.tensor(bad, dtype=torch.float64)
    reported = float(client.reported_loss((), SeededNoise(1)))
    assert 0 <= reported <= 10 and (reported < 1) == (bad == -math.inf)


# --- what leaks ----------------------------------------------------------------------------------------------


def lower_bound(hits: int, trials: int, confidence: float = 0.999) -> float:
    return 0.0 if hits == 0 else float(beta.ppf(1 - confidence, hits, trials - hits + 1))


@pytest.mark.parametrize("method", [fedags, snlc])
def test_one_coordinate_of_the_gradient_itself_tells_the_data_set(method: Any):
    """The page's event: at least one coordinate equals g'_j(D) bit for bit. The pair differs in every coordinate."""
    client, trials = method(), 400
    client.round = 10
    ours, theirs = gradient(1), gradient(2)
    mine, other = clip(ours, 1.0), clip(theirs, 1.0)
    assert bool((mine != other).all())
    noise = SeededNoise(1, "leak")
    hits, misses = (
        int((client.release(g.expand(trials, D), None, noise).value == mine).any(-1).sum()) for g in (ours, theirs)
    )
    assert misses == 0  # about zero under D': a float of the noise would have to hit g'(D)
    assert lower_bound(hits, trials) > DELTA and hits > trials / 2
    assert all(isinstance(event, NoBound) for event in client.planned_events(3))
    clear = method("repaired")
    clear.round = 10
    released = clear.release(ours.expand(trials, D), None, noise).value
    assert int((released == mine).any(-1).sum()) == 0


def test_without_comparison_noise_the_distinguisher_always_wins():
    client, ours, theirs = fedags(), gradient(1), gradient(2)
    client.round = 10
    for g, expected in ((ours, True), (theirs, False)):
        released = client.release(g.expand(50, D), None, NoComparisonNoise()).value
        assert (released == clip(ours, 1.0)).any(-1).tolist() == [expected] * 50


@pytest.mark.parametrize(
    ("overrides", "bounded"),
    [
        (("strategy=fedags", "privacy.variant=published"), False),
        (("strategy=dpfedsnlc", "privacy.variant=published"), False),
        (("strategy=fedags",), True),
        (("strategy=fedags", "strategy.client.selection=gumbel", "strategy.client.loss_weights=true"), True),
        (("strategy=dpfedsnlc", "strategy.client.selection=gumbel"), True),
    ],
)
def test_audits_never_exceed_what_is_verified(overrides: tuple[str, ...], bounded: bool):
    config = compose([*overrides, "strategy.client.epsilon=4", "num_rounds=4", "clients_per_round=10"])
    for scope in audit_config(config, trials=20_000, confidence=0.999, seed=1):
        assert scope.audit.epsilon_lower <= scope.verified
        assert math.isinf(scope.verified) != bounded and math.isinf(scope.audit.epsilon_lower) != bounded
        assert scope.audit.epsilon_sampled > 0.5


# --- a participation -----------------------------------------------------------------------------------------


class Steps(FixedUpdates):
    """A trainer with a learning rate."""

    config, lr = SimpleNamespace(lr=0.5), 0.5


def test_the_gradient_is_the_update_over_minus_the_learning_rate():
    step = torch.tensor([0.1, -0.2, 0.0, 0.05])
    client = fedags(site=make_site(trainer=Steps(lambda _: step)), epsilon=1e9, facts=replace(FACTS, num_parameters=4))
    (release, statistics), _, figures = client.fit([np.zeros(4, np.float32)], {"round": 1, "attempt": 0})
    assert release == pytest.approx((-step / 0.5).numpy(), abs=1e-3)
    assert figures["update_norm"] == pytest.approx(float(step.norm()) / 0.5)
    assert statistics.tolist() == [0.0]


def test_an_interrupted_participation_is_booked_once_and_answered_alike():
    store = BytesStore()
    site = make_site(trainer=Steps(lambda _: torch.ones(4)), store=store)
    client = fedags("repaired", selection="gumbel", site=site, facts=replace(FACTS, num_parameters=4))
    first = take_part(client, 12)
    again = take_part(client, 12)
    assert np.array_equal(first, again) and first.dtype == np.uint8
    kinds = [type(entry.event) for entry in booked(client)]
    assert kinds == [Gaussian, GumbelTopK] or kinds == [Gaussian]
    assert not np.array_equal(first, take_part(client, 12, attempt=1))


def test_a_budget_stops_a_client_before_it_is_exceeded():
    site = make_site(trainer=Steps(lambda _: torch.ones(4)), max_epsilon=1.0, delta=DELTA)
    client = fedags("repaired", site=site, facts=replace(FACTS, num_parameters=4))
    rounds = 0
    with pytest.raises(BudgetSpent):
        for server_round in range(1, 100):
            take_part(client, server_round)
            rounds += 1
    mu = 2 / client.noise_multiplier
    assert gaussian_epsilon(mu * math.sqrt(rounds), DELTA) <= 1.0 < gaussian_epsilon(mu * math.sqrt(rounds + 1), DELTA)


def test_rounds_beyond_t_keep_the_last_threshold():
    client = fedags()
    client.round = 3 * ROUNDS
    chosen = client.significant(clip(gradient(), 1.0), NoComparisonNoise())
    rank = scheduled_rank(ROUNDS, ROUNDS, D)
    assert rank == 360 and int(chosen.sum()) == D - rank + 1
    assert float(clip(gradient(), 1.0)[chosen].min()) == float(kth_smallest(clip(gradient(), 1.0), rank))


# --- DP-FedAGS and its rivals: the server's part and whole runs ----------------------------------------------------


# --- the server ----------------------------------------------------------------------------------------------


def server(variant: str = "published", loss_weights: bool | None = None, selection: str = "random") -> FedAGS:
    population = Population(3, 4, 2, lambda client: 100 * (client + 1))
    made = making.server(
        FedAGS,
        population,
        rounds=ROUNDS,
        threshold="equation",
        loss_weights=loss_weights,
        selection=selection,
        variant=variant,
        learning_rate=0.5,
        weighting="examples",
    )
    made.current = Round(10, np.zeros(D, np.float32))
    return made


def reply(client: int, release: np.ndarray, loss: float | None) -> Reply:
    statistics = {} if loss is None else {TRAIN_LOSS: loss}
    return Reply(client, release, 100 * (client + 1), {}, 0, statistics)


def test_the_step_is_equation_3_with_the_weights_of_equation_37():
    first, second, theta = np.full(D, 1.0, np.float32), np.full(D, -2.0, np.float32), np.full(D, 0.5, np.float32)
    made = server()
    moved = made.aggregate(theta, [reply(0, first, 3.0), reply(1, second, 1.0)])
    gamma = [(100 * 4 + 300 * 3) / (2 * 300 * 4), (200 * 4 + 300 * 1) / (2 * 300 * 4)]
    assert moved == pytest.approx(0.5 - 0.5 * (gamma[0] * 1.0 + gamma[1] * -2.0), abs=1e-6)
    assert made.current.figures["loss_weights"] == pytest.approx(gamma, abs=1e-6)
    plain = server("repaired").aggregate(theta, [reply(0, first, None), reply(1, second, None)])
    assert plain == pytest.approx(0.5 - 0.5 * (1 / 3 - 4 / 3), abs=1e-6)


def test_a_negative_loss_refuses_the_reply():
    with pytest.raises(MalformedMessage, match=f"metrics.{TRAIN_LOSS}: a loss of -0.1"):
        server().check(reply(0, np.zeros(D, np.float32), -0.1))
    server().check(reply(0, np.zeros(D, np.float32), 0.0))
    assert server("repaired").statistics == () and server("repaired", True).statistics == (TRAIN_LOSS,)


@pytest.mark.parametrize("selection", ["random", "gumbel"])
def test_the_server_reads_what_a_repaired_client_sends(selection: str):
    client = fedags("repaired", selection=selection, epsilon=1e6, site=make_site(client=2))
    client.round = 10
    released = client.release(gradient(), None, SeededNoise(9)).value
    made = server("repaired", selection=selection)
    assert made.decode is not None
    decoded = made.decode(2, client.encode(released).numpy())
    assert np.array_equal(decoded, released.nan_to_num(0.0).numpy())
    with pytest.raises(ValueError, match="expected"):
        made.decode(2, client.encode(released).numpy()[:-1])


@pytest.mark.parametrize("loss", [-1.0, math.nan, math.inf])
def test_a_round_goes_on_without_a_reply_whose_loss_is_impossible(loss: float, run: Run, monkeypatch: Any):
    reported = FedAGSClient.reported_loss

    def lying(self: FedAGSClient, shape: Any, noise: Any) -> torch.Tensor:
        wrong = torch.tensor(loss, dtype=torch.float64)
        return wrong if self._site().client == 1 and self.round == 2 else reported(self, shape, noise)

    monkeypatch.setattr(FedAGSClient, "reported_loss", lying)
    folder = run("strategy=fedags", "privacy.variant=published", "strategy.server.min_replies=3")
    rows = rows_of(folder)
    assert [row["participants"] for row in rows] == [4, 3, 4] and "train-loss" in rows[1]["errors"]["1"]
    assert sum(entry["client"] == 1 for entry in ledger_of(folder)) == 3  # what left is spent


# --- whole runs ----------------------------------------------------------------------------------------------


def test_what_travels_is_what_the_plan_says():
    for overrides in (("strategy=fedags",), ("strategy=dpfedsnlc", "strategy.client.selection=gumbel")):
        talk = Conversation(*overrides, "num_rounds=4")
        sent = sum(reply.content["arrays"]["vector"].data.__len__() for _, reply in talk.grid.seen)  # type: ignore[index]
        header = 128 * len(talk.grid.seen)  # numpy's own
        assert talk.plan.bytes_up == sent - header
        assert all("train-loss" not in dict(reply.content["metrics"]) for _, reply in talk.grid.seen)  # type: ignore[call-overload]


def test_a_run_says_what_it_promises_and_what_it_measured(run: Run):
    folder = run("strategy=fedags", "strategy.client.epsilon=0.5", "privacy.delta=0.001")
    summary = json.loads((folder / "summary.json").read_text())["privacy"]
    assert summary["claimed_scope"] == "round" and summary["verified_at_claimed_scope"] == 0
    mu = gaussian_mu(0.5, 0.001)
    assert summary["verified_epsilon"] == pytest.approx(gaussian_epsilon(mu * math.sqrt(3), 0.001), rel=1e-6)
    assert any("at delta 0.001 a round costs 0.5" in reason for reason in summary["reasons"])
    shares = [row["figures"]["share_perturbed"] for row in rows_of(folder)]
    d = 650
    assert shares == pytest.approx([(d - scheduled_rank(t, 3, d) + 1) / d for t in (1, 2, 3)])
    report = page_of(folder)
    assert "share_perturbed" in report and "scheduled_share" in report


def test_a_published_run_says_what_leaks(run: Run):
    folder = run("strategy=fedags", "privacy.variant=published")
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["verified_epsilon"] == "inf" and privacy["claimed_epsilon"] == 0.5
    (leak, claim) = privacy["reasons"]
    assert "33% to 90% by the schedule" in leak and "training loss is sent as it is" in leak
    assert "e^-epsilon = 0.607" in claim
    assert "sent without noise" in page_of(folder)


@pytest.mark.parametrize(
    ("overrides", "option", "words"),
    [
        (["strategy.client.noise=laplace"], "strategy.client.noise", "privacy.variant=published"),
        (["strategy.client.sensitivity=per_example"], "strategy.client.sensitivity", "privacy.variant=published"),
        (["strategy.client.epsilon_split=[0.1,0.1,0.3]"], "strategy.client.epsilon_split", "allowed: null, or"),
        (
            ["privacy.variant=published", "strategy.client.epsilon_split=[0.1,0.1,0.2]"],
            "strategy.client.epsilon_split",
            "must sum to strategy.client.epsilon=0.5, the sum is 0.4",
        ),
        (
            ["privacy.variant=published", "strategy.client.epsilon_split=[0.5,0.0]"],
            "strategy.client.epsilon_split",
            "three positive numbers",
        ),
        (["strategy.client.score_bound=2"], "strategy.client.score_bound", "at most strategy.client.clip_norm=1.0"),
        (["strategy.server.selection=some"], "strategy.client.selection", "allowed: random or gumbel"),
        (["strategy.server.rounds=50"], "strategy.server.rounds", "must be num_rounds=60"),
        (["local.momentum=0.9"], "local.momentum", "plain SGD"),
        (["local.steps=0"], "local.steps", "at least 1"),
        (["strategy.client.epsilon=0"], "strategy.client.epsilon", "at least 1e-06"),
        (["strategy.client.values_share=1.0"], "strategy.client.values_share", "less than 1"),
        (
            ["strategy.client.loss_weights=true", "strategy.client.loss_share=0.96"],
            "strategy.client.loss_share",
            "leave something",
        ),
        (["privacy.variant=published", "privacy.max_epsilon=5"], "privacy.max_epsilon", "no budget can be kept"),
    ],
)
def test_impossible_options_are_named(overrides: list[str], option: str, words: str):
    with pytest.raises(OptionError) as refused:
        resolve(compose(["strategy=fedags", *overrides]), None)
    assert refused.value.option == option and words in str(refused.value)


def test_local_steps_are_batches_however_many_epochs_they_need():
    for sampler, sizes in (("shuffle", [4, 4, 2, 4, 4]), ("poisson", None)):
        config = LocalConfig(epochs=1, steps=5, batch_size=4, lr=0.1, momentum=0.0, sampler=sampler)
        batches = list(draw_batches(config, 10, np.random.default_rng(0)))
        assert len(batches) == 5
        if sizes:
            assert [len(batch) for batch in batches] == sizes
            assert sorted(np.concatenate(batches[:3]).tolist()) == list(range(10))


def test_the_report_draws_the_share_beside_the_schedule(run: Run):
    folder = run("strategy=fedags", "privacy.variant=published")
    assert "share of coordinates with noise" in page_of(folder)
    assert (folder / "private" / "significance.png").stat().st_size > 5000
