"""ADP-FL: equations 11, 12 and 16, the clipping server, one client's two exchanges, and what it all costs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import Outcome, Run, ledger_of, page_of, rows_of
from flwr.app import Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from reference.federation import BytesStore, FixedUpdates, booked, linear_model, make_site
from reference.recording import Conversation

from clients.adpfl import EXACT_CHANGE, NOISE_SHOWS_NORM, SECURE_SUM, ADPFLClient, allocated_epsilon, noise_scale
from fedpriv.client.build import make_client
from fedpriv.client.clip_statistics import EXACT_NORM, Measured, NoisyNorm
from fedpriv.client.contract import BudgetSpent, PublicFacts, UnsafeClipNorm
from fedpriv.client.memory import StaleRequest, read_memory
from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import (
    CLIP_CHANGE,
    CLIP_NORM,
    CLIP_REPORTED_NORM,
    EXCHANGE,
    LEAST_NORM,
    STATISTICS,
    MalformedMessage,
    num_bytes,
    unpack_vector,
)
from fedpriv.common.replies import Report
from fedpriv.config.compose import compose
from fedpriv.engines.grid import client_of
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.distillation_loss import distillation_loss
from fedpriv.mechanisms.noise import KeyRegistry, SeededNoise
from fedpriv.privacy import claimed
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import CLIENT_TO_SERVER, Gaussian, NoBound
from fedpriv.runs.planning import make_plan
from fedpriv.server.clip_rules import make_rule
from fedpriv.training.distillation import DistillationOptions, Distiller
from fedpriv.training.sequential import SequentialTrainer
from strategies.adpfl import ADPFL as ADPFLServer
from strategies.adpfl import TrustedClippingServer

DELTA = 1e-5
ADPFL = ("strategy=adpfl", "partition=dirichlet", "strategy.server.window=2")


# --- equation 12 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "clip_norm", "least", "expected"),
    [
        (2.0, 2.0, 0.5, 2.4),  # norm = C: a eps
        (0.5, 2.0, 0.5, 3.0),  # the shortest of all: eps
        (1.25, 2.0, 0.5, 2.7),  # half way
        (5.0, 2.0, 3.0, 2.4),  # all norms above C: everybody a eps, whatever the least is
        (3.0, 2.0, 3.0, 2.4),
        (2.0, 2.0, 2.0, 2.4),  # C = norm = least
        (1.0, 2.0, 2.0, 2.4),  # a least above a norm is nobody's: no division by zero
    ],
)
def test_equation_12_at_its_corners(norm: float, clip_norm: float, least: float, expected: float) -> None:
    found = allocated_epsilon(torch.tensor(norm), clip_norm, least, 3.0, 0.8)
    assert float(found) == pytest.approx(expected, abs=1e-12)


@given(st.floats(0, 20), st.floats(1e-3, 10), st.floats(0, 1))
def test_equation_12_is_between_a_eps_and_eps(norm: float, clip_norm: float, share: float) -> None:
    """Where the least norm is somebody's, and no client's is below it."""
    least = share * norm
    found = float(allocated_epsilon(torch.tensor(norm, dtype=torch.float64), clip_norm, least, 3.0, 0.8))
    assert 2.4 - 1e-9 <= found <= 3.0 + 1e-9


def test_equation_16_is_the_claims() -> None:
    for epsilon in (1.0, 3.0, 10.0):
        scale = float(noise_scale(torch.tensor(epsilon, dtype=torch.float64), DELTA))
        assert scale == pytest.approx(claimed.adpfl_noise(epsilon, DELTA), rel=1e-12)
        assert scale**2 == pytest.approx((epsilon + 2 * math.log(1 / DELTA)) / epsilon**2)
        assert claimed.adpfl_epsilon(scale, DELTA) == pytest.approx(epsilon)


# --- the clipping server ---------------------------------------------------------------------------------


def clipping_server(variant: str, window: int = 2, clipping: str = "adp", **options: Any) -> TrustedClippingServer:
    given = {"clip_norm": 4.0, "clip_lr": 0.2, "target_quantile": 0.5, "decay": 0.9, "floor": 1e-3, "norm_bound": 10.0}
    chosen = given | options | {"clipping": clipping, "variant": variant, "window": window}
    rule = make_rule(making.changed(ADPFLServer, "strategies.", chosen))
    return TrustedClippingServer(rule, reports_norm=True, noisy=variant != "published", simulation=True)


def answered(values: dict[int, dict[str, float]]) -> Callable[..., list[Report]]:
    return lambda read: [Report(client, found, 10) for client, found in values.items()]


def test_the_threshold_follows_equation_11_by_hand() -> None:
    """Windows of two norms: (1, 3) has mean 2 < C and s = +1; (5, 9) has mean 7 >= C and s = -2; so C = 4 + 0.5."""
    server = clipping_server("repaired")
    first = server.exchange(answered({0: {CLIP_REPORTED_NORM: 1.0}, 1: {CLIP_REPORTED_NORM: 5.0}}))
    assert (first.clip_norm, first.least_norm) == (4.0, 1.0)  # windows are not full yet
    second = server.exchange(answered({0: {CLIP_REPORTED_NORM: 3.0}, 1: {CLIP_REPORTED_NORM: 9.0}}))
    assert second.clip_norm == pytest.approx(4.5) and second.least_norm == 3.0
    # client 0 alone: (3, 4) has mean 3.5 < 4.5, s = 0.5
    third = server.exchange(answered({0: {CLIP_REPORTED_NORM: 4.0}}))
    assert third.clip_norm == pytest.approx(4.0) and third.reporters == (0,)


def test_noisy_norms_are_clamped_on_arrival_and_exact_ones_must_be_norms() -> None:
    server = clipping_server("repaired")
    assert server.exchange(answered({0: {CLIP_REPORTED_NORM: -7.0}, 1: {CLIP_REPORTED_NORM: 900.0}})).least_norm == 0
    assert server.exchange(answered({0: {CLIP_REPORTED_NORM: 99.0}})).least_norm == 10.0
    exact = clipping_server("published")
    message = reply({CLIP_CHANGE: 0.0, CLIP_REPORTED_NORM: -1.0})
    with pytest.raises(MalformedMessage, match="a norm is at least 0, got -1"):
        exact.read(message, 0)
    assert server.read(reply({CLIP_REPORTED_NORM: -1.0}), 0).statistics == {CLIP_REPORTED_NORM: -1.0}


def reply(found: dict[str, float]) -> Any:
    class Reply:
        content = RecordDict({STATISTICS: MetricRecord(found)})

    return Reply()


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_report_without_a_finite_number_is_refused(value: float | None) -> None:
    found = {CLIP_CHANGE: 0.1} | ({} if value is None else {CLIP_REPORTED_NORM: value})
    with pytest.raises(MalformedMessage, match=rf"statistics.{CLIP_REPORTED_NORM}: expected a finite number"):
        clipping_server("published").read(reply(found), 0)


def test_the_published_threshold_takes_the_clients_own_changes() -> None:
    server = clipping_server("published")
    found = server.exchange(
        answered({0: {CLIP_CHANGE: 0.5, CLIP_REPORTED_NORM: 2.0}, 1: {CLIP_CHANGE: -0.1, CLIP_REPORTED_NORM: 1.0}})
    )
    assert found.clip_norm == pytest.approx(3.8) and found.least_norm == 1.0
    gone = server.exchange(answered({0: {CLIP_CHANGE: 50.0, CLIP_REPORTED_NORM: 2.0}}))
    assert gone.clip_norm == 1e-3 and gone.figures["clip_floor_held"]


def test_exact_reports_stay_out_of_the_record_of_a_deployment() -> None:
    chosen = {"clipping": "adp", "variant": "published", "clip_norm": 4.0, "window": 2}
    rule = make_rule(making.changed(ADPFLServer, "strategies.", chosen))
    server = TrustedClippingServer(rule, reports_norm=True, noisy=False, simulation=False)
    found = server.exchange(answered({0: {CLIP_CHANGE: 0.5, CLIP_REPORTED_NORM: 2.0}}))
    assert set(found.figures) == {"clip_norm", "clip_floor_held"}


@pytest.mark.parametrize("variant", ["published", "repaired"])
def test_the_trajectory_is_equation_11_on_what_was_recorded(variant: str, run: Run) -> None:
    """Recomputed from metrics.jsonl with the standard library; exact norms come back from the published record."""
    options = ("num_rounds=8", "strategy.client.clip_norm=0.55", "local.lr=0.05")
    folder = run(*ADPFL, *options, f"privacy.variant={variant}")
    rows, windows, clip_norm = rows_of(folder), dict[str, list[float]](), 0.55
    signs = set()
    for row in rows:
        changes = []
        for client, norm in row["figures"]["reported_norms"].items():
            norm = norm if variant == "published" else min(10.0, max(0.0, norm))
            window = windows[client] = [*windows.get(client, []), norm][-2:]
            change = 0.0
            if len(window) == 2:
                change = statistics.pstdev(window) * (1 if statistics.fmean(window) < clip_norm else -1)
            signs.add(math.copysign(1, change) if change else 0)
            changes.append(change)
            if variant == "published":
                assert row["figures"]["norm_changes"][client] == pytest.approx(change, abs=1e-9)
        clip_norm = min(10.0, max(1e-3, clip_norm - statistics.fmean(changes)))
        assert row["figures"]["clip_norm"] == pytest.approx(clip_norm, rel=1e-9)
    assert signs == {0, 1, -1}, "both signs of equation 10 happen in this run"


# --- one client ------------------------------------------------------------------------------------------


def facts(clients: int = 10, rounds: int = 100) -> PublicFacts:
    return PublicFacts(600, 600, 60, rounds, clients)


def a_client(norms: Iterable[float] = (1.0, 2.0, 3.0), variant: str = "repaired", **options: Any) -> ADPFLClient:
    """A client whose updates point along ones and have these norms of their base layers (70 of 94 parameters)."""
    model, lengths = linear_model(), iter(norms)
    initial = model.theta.detach().clone()
    given: dict[str, Any] = {"epsilon": 3.0, "base_share": 0.8, "allocation": "adaptive", "claimed_delta": DELTA}
    given |= {"clip_norm": 4.0, "clipping": "adp", "window": 2} | options
    limit = given.pop("max_epsilon", None)
    trainer = FixedUpdates(lambda _: torch.ones(initial.numel()) * next(lengths) / math.sqrt(70))
    site = make_site(0, trainer, BytesStore(), layout=model.layout, initial=initial, max_epsilon=limit)
    return making.client(ADPFLClient, facts=facts(), variant=variant, site=site, **given)


def report(client: ADPFLClient, server_round: int = 1, attempt: int = 0, **options: Any) -> np.ndarray:
    config = {"round": server_round, "attempt": attempt, EXCHANGE: STATISTICS, **options}
    (found,), _, diagnostics = client.fit([np.zeros(70, np.float32)], config)
    assert diagnostics == {}
    return found


def release(
    client: ADPFLClient, server_round: int = 1, clip_norm: Any = 4.0, least: Any = 0.0, attempt: int = 0
) -> tuple[np.ndarray, dict[str, Any]]:
    config = {"round": server_round, "attempt": attempt, CLIP_NORM: clip_norm, LEAST_NORM: least}
    (found,), _, diagnostics = client.fit([], config)
    return found, diagnostics


def test_the_base_alone_is_released_and_the_head_stays() -> None:
    client = a_client(epsilon=1e9, norm_noise=1e-6)
    before = client.site.initial.clone()  # type: ignore[union-attr]
    report(client)
    found, diagnostics = release(client)
    assert found.shape == (70,) and np.allclose(found, 1 / math.sqrt(70), atol=2e-3)
    assert diagnostics["update_norm"] == pytest.approx(1.0)
    kept = read_memory(client.site.store).kept  # type: ignore[union-attr]
    assert kept is not None and torch.allclose(kept, before[70:] + 1 / math.sqrt(70))


def test_published_noise_is_equations_12_to_16() -> None:
    """Norm 1 between min 0.5 and C = 2: eps_i = 0.8*3 + (1/1.5)*0.2*3 = 2.8, and S = 2 C/N = 0.4."""
    client = a_client(variant="published")
    assert report(client).tolist() == pytest.approx([0.0, 1.0])  # s_i of a window that is not full, the exact norm
    found, diagnostics = release(client, clip_norm=2.0, least=0.5)
    assert diagnostics["round_epsilon"] == pytest.approx(2.8)
    std = 0.4 * math.sqrt((2.8 + 2 * math.log(1e5)) / 2.8**2)
    noise = SeededNoise(3, 0, 1, 0, "release").normal((70,), std).numpy()
    assert np.allclose(found, 1 / math.sqrt(70) + noise, atol=1e-4 * std)


def test_repaired_noise_covers_what_one_client_can_move() -> None:
    client = a_client(allocation="fixed")
    report(client)
    found, _ = release(client, clip_norm=2.0)
    std = 2 * 2.0 * claimed.adpfl_noise(3.0, DELTA)
    noise = SeededNoise(3, 0, 1, 0, "release").normal((70,), std).numpy()
    assert np.allclose(found, 1 / math.sqrt(70) + noise, atol=1e-4 * std)


def test_repaired_noise_follows_the_reported_norm_and_not_the_raw_one() -> None:
    """eps_i by equation 12 on the bytes that left, clamped; the release carries that noise and is booked so."""
    client = a_client((1.0, 1.0, 1.0, 1.0), norm_noise=0.3)
    seen = set()
    for number in (1, 2, 3, 4):
        (noisy,) = report(client, number)
        assert abs(noisy - 1.0) > 1e-3
        norm = min(10.0, max(0.0, noisy))
        found, diagnostics = release(client, number, clip_norm=2.0, least=0.5)
        share = 0.0 if norm >= 2 else (2 - norm) / 1.5
        epsilon = min(3.0, 0.8 * 3 + share * 0.2 * 3)
        sigma = math.sqrt(epsilon + 2 * math.log(1e5)) / epsilon
        noise = SeededNoise(3, 0, number, 0, "release").normal((70,), 4.0 * sigma).numpy()
        assert np.allclose(found, 1 / math.sqrt(70) + noise, atol=1e-4 * sigma)
        assert diagnostics["round_epsilon"] == pytest.approx(epsilon)
        own = [entry for entry in booked(client) if entry.round == number and entry.realised is not None]
        assert [entry.realised.multiplier for entry in own] == pytest.approx([sigma, sigma])
        seen.add(round(epsilon, 6))
    assert len(seen) >= 3  # a eps, eps, and something in between would all be noticed


def test_a_secure_sum_realises_its_known_noise_and_the_others_least() -> None:
    client = a_client(min_replies=4, colluders=1, norm_noise=0.3)
    report(client)
    release(client, clip_norm=2.0, least=0.5)
    *_, own, summed = booked(client)
    least, taken = own.event.multiplier, own.realised.multiplier
    assert summed.event.multiplier == pytest.approx(math.sqrt(3) * least)
    assert summed.realised.multiplier == pytest.approx(math.sqrt(taken**2 + 2 * least**2))


def test_a_budget_is_spent_by_what_was_realised() -> None:
    """Every round takes a eps (all norms are above C), so more rounds fit than at eps."""
    limit = 12.0
    norms = [50.0] * 40
    client = a_client(norms, max_epsilon=limit, norm_noise=50.0)
    rounds = 0
    with pytest.raises(BudgetSpent):
        for number in range(1, 41):
            report(client, number)
            release(client, number, clip_norm=1e-3, least=0.0)
            rounds += 1
    one = [Gaussian(threat=CLIENT_TO_SERVER, multiplier=50.0)]
    planned, cheap = (Gaussian(threat=CLIENT_TO_SERVER, multiplier=claimed.adpfl_noise(e, DELTA)) for e in (3.0, 2.4))

    def total(count: int, event: Gaussian) -> float:
        return compose_events([*one * count, *[event] * count], DELTA).epsilon

    own = [entry for entry in booked(client) if entry.event.threat == CLIENT_TO_SERVER]
    epsilons = [entry.realised.multiplier for entry in own if entry.realised]
    assert rounds > next(n for n in range(1, 41) if total(n, planned) > limit) - 1
    assert min(epsilons) >= planned.multiplier and max(epsilons) == pytest.approx(cheap.multiplier)


def test_the_raw_update_is_gone_after_its_release() -> None:
    client = a_client()
    report(client)
    assert read_memory(client.site.store).waiting is not None  # type: ignore[union-attr]
    release(client)
    assert read_memory(client.site.store).waiting is None  # type: ignore[union-attr]
    with pytest.raises(StaleRequest, match="nothing was measured"):
        release(client, attempt=1)


@given(st.floats(0, 1e6), st.floats(1e-3, 10), st.floats(-1e3, 1e3))
def test_no_announcement_makes_a_repaired_release_cheaper_than_it_is_booked(
    least: float, clip_norm: float, reported: float
) -> None:
    client = a_client()
    client.clip_norm, client.least_norm = clip_norm, least
    client.reported = {CLIP_REPORTED_NORM: torch.tensor(reported)}
    assert 0.8 * 3 <= float(client.round_epsilon()) <= 3.0
    charge = client.charges(None)[0]
    assert isinstance(charge.event, Gaussian) and isinstance(charge.realised, Gaussian)
    assert charge.realised.multiplier >= charge.event.multiplier


def test_requests_out_of_order_release_nothing() -> None:
    client = a_client()
    with KeyRegistry() as registry:
        with pytest.raises(StaleRequest, match="nothing was measured in this round"):
            release(client)
        assert client.site.store.read() is None and registry.keys == []  # type: ignore[union-attr]
        report(client, 1)
        with pytest.raises(StaleRequest, match="nothing was measured in this round"):
            release(client, 2)
        release(client, 1)
        with pytest.raises(StaleRequest, match="was answered already"):
            report(client, 1)
        with pytest.raises(StaleRequest):
            report(client, 0)
        report(client, 2)
        with pytest.raises(StaleRequest, match="comes after"):
            release(client, 1, attempt=-1)
        with pytest.raises(StaleRequest, match=r"round 2 \(attempt -1\) comes after"):
            report(client, 2, attempt=-1)
    assert len(registry.keys) == 3  # two reports, one release


def test_repeated_requests_get_the_same_bytes() -> None:
    client = a_client()
    first = report(client)
    assert report(client).tobytes() == first.tobytes() and client.site.trainer.calls == 1  # type: ignore[union-attr]
    released, _ = release(client, clip_norm=4.0)
    again, _ = release(client, clip_norm=1.0, least=0.7)  # whatever is announced now
    assert again.tobytes() == released.tobytes() and len(booked(client)) == 4


def test_a_client_asked_anew_in_the_same_round_trains_and_reports_anew() -> None:
    """As after a worker's death: the update of the first attempt never leaves."""
    client = a_client()
    first = report(client, 1, attempt=0)
    second = report(client, 1, attempt=1)
    assert first.tobytes() != second.tobytes()
    assert release(client, 1, attempt=0)[1]["update_norm"] == pytest.approx(2.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, True, "1"])
def test_an_unsafe_least_norm_is_refused(bad: Any) -> None:
    client = a_client()
    report(client)
    before = client.site.store.read()  # type: ignore[union-attr]
    with pytest.raises(UnsafeClipNorm, match="least norm"):
        release(client, least=bad)
    assert client.site.store.read() == before  # type: ignore[union-attr]


@pytest.mark.parametrize("bad", [math.nan, 0.0, 1e-9, 10.1])
def test_an_unsafe_threshold_is_refused(bad: float) -> None:
    client = a_client()
    report(client)
    with pytest.raises(UnsafeClipNorm, match="clip norm"):
        release(client, clip_norm=bad)


# --- what it costs ---------------------------------------------------------------------------------------


def test_what_is_booked_and_when() -> None:
    """The norm when it leaves, the release when it leaves; each under both observers."""
    client = a_client(min_replies=4, norm_noise=2.0)
    report(client)
    sigma = claimed.adpfl_noise(3.0, DELTA)
    norm = [Gaussian(threat=threat, multiplier=2.0) for threat in (CLIENT_TO_SERVER, SECURE_SUM)]
    assert [entry.event for entry in booked(client)] == norm
    release(client, clip_norm=2.0, least=0.9)
    update = [
        Gaussian(threat=CLIENT_TO_SERVER, multiplier=sigma),
        Gaussian(threat=SECURE_SUM, multiplier=2 * sigma),  # sqrt(4) noises in the sum
    ]
    entries = booked(client)
    assert [entry.event for entry in entries[2:]] == pytest.approx(update)
    assert [entry.sequence for entry in entries] == [0, 1, 2, 3]
    assert entries[2].realised is not None and entries[2].realised.multiplier >= sigma
    own = [entry.event for entry in entries if entry.event.threat == CLIENT_TO_SERVER]
    assert compose_events(own, DELTA) == compose_events(client.planned_events(1), DELTA)


def test_the_default_norm_costs_at_most_a_tenth_of_the_release() -> None:
    update, norm = a_client().planned_events(1)
    assert 0.09 < (update.multiplier / norm.multiplier) ** 2 <= 0.1


def test_published_is_infinite_from_round_one_and_says_why() -> None:
    client = a_client(variant="published")
    reasons = {event.reason for event in client.planned_events(1) if isinstance(event, NoBound)}
    assert reasons == {EXACT_CHANGE, EXACT_NORM, NOISE_SHOWS_NORM}
    assert client.exact_leak() == EXACT_CHANGE and not client.keeps_budget
    # The page's figures: eps = 3, N = 10, T = 100.
    words = " ".join(a_client(variant="published", min_replies=12, colluders=2).remarks())
    assert "epsilon 1979 over 100 rounds" in words
    assert "251 to whoever sees only sums with the noises of 10 uploads" in words


def test_published_with_nothing_exact_has_the_gaussian_price() -> None:
    """A fixed C and a fixed epsilon send no norm: multiplier sigma_s / N."""
    client = a_client(variant="published", clipping="fixed", allocation="fixed")
    (event,) = client.planned_events(1)
    assert event.multiplier == pytest.approx(claimed.adpfl_noise(3.0, DELTA) / 10)  # type: ignore[attr-defined]
    assert client.exact_leak() is None


@pytest.mark.parametrize("clipping", ["fixed", "quantile", "geometric"])
def test_rivals_report_the_norm_that_the_allocation_needs(clipping: str) -> None:
    with_norm, without = a_client(clipping=clipping), a_client(clipping=clipping, allocation="fixed")
    bit = clipping == "quantile"
    assert len(with_norm.statistics.names) == 1 + bit and len(without.statistics.names) == bit
    assert len(with_norm.all_charges()) == 4 + 2 * bit and len(without.all_charges()) == 2 + 2 * bit
    assert a_client(clipping=clipping, variant="published").exact_leak() == EXACT_NORM
    assert report(without).shape == (int(bit),)


def test_the_noise_can_be_given_in_place_of_epsilon() -> None:
    client = a_client(noise_multiplier=2 * claimed.adpfl_noise(3.0, DELTA), epsilon=77.0)
    assert client.epsilon == pytest.approx(3.0) and client.claim(5, DELTA).epsilon == pytest.approx(3.0)
    assert client.claim(5, DELTA).scope == "round"
    published = a_client(noise_multiplier=0.2 * claimed.adpfl_noise(3.0, DELTA), variant="published")
    assert published.epsilon == pytest.approx(3.0)


def test_a_budget_pays_for_norm_and_release_before_the_norm_leaves() -> None:
    one = compose_events(a_client().planned_events(1), DELTA).epsilon
    client = a_client(max_epsilon=one * 1.001)
    report(client, 1)
    release(client, 1)
    with pytest.raises(BudgetSpent):
        report(client, 2)
    assert len(booked(client)) == 4
    barely = a_client(max_epsilon=compose_events(a_client().planned_events(1)[1:], DELTA).epsilon * 1.001)
    with pytest.raises(BudgetSpent):
        report(barely, 1)
    assert barely.site.store.read() is None  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [(), ("strategy.server.min_replies=3", "strategy.server.clipping=quantile")])
def test_a_run_costs_what_was_planned(options: tuple[str, ...], run: Run) -> None:
    folder = run(*ADPFL, *options)
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    config = compose([*ADPFL, *options, "num_clients=4", "clients_per_round=4", "num_rounds=3"])
    assert privacy["verified_epsilon"] == pytest.approx(make_plan(config, Worker(config)).verified_epsilon)
    assert privacy["spent_so_far"] <= privacy["verified_epsilon"] and privacy["claimed_epsilon"] == 3.0
    (others,) = privacy["others"]
    assert others["observer"] == "secure-sum"
    summed = others["verified_epsilon"] < privacy["verified_epsilon"]
    assert summed == bool(options)  # one noise in the sum is no better
    assert "one round" in page_of(folder)


# --- ADP-FL and PFL in whole runs: who gets which message, who drops out, distillation, engines, wrong options -----


MLP = ("model=mlp",)
#: mlp on digits: block "hidden" is [0, 4160) of the flat vector, block "head" [4160, 4810) stays with the client.
HIDDEN = 4160


# --- messages --------------------------------------------------------------------------------------------


def exchanges(talk: Conversation) -> tuple[list[tuple[Message, Message]], list[tuple[Message, Message]]]:
    """(first exchanges, second exchanges) of all rounds."""
    first = [pair for pair in talk.grid.seen if pair[0].content["config"].get(EXCHANGE) == STATISTICS]
    return first, [pair for pair in talk.grid.seen if pair not in first]


@pytest.mark.parametrize("variant", ["published", "repaired"])
def test_each_server_gets_its_own_messages(variant: str) -> None:
    """Statistics hold no parameters, releases no statistics, and personal layers are in neither."""
    talk = Conversation(*ADPFL, *MLP, f"privacy.variant={variant}")
    first, second = exchanges(talk)
    assert len(first) == len(second) == 12
    for message, answer in first:
        assert unpack_vector(message.content).size == HIDDEN
        assert set(answer.content) == {STATISTICS}
        names = {CLIP_REPORTED_NORM} | ({CLIP_CHANGE} if variant == "published" else set())
        assert set(answer.content[STATISTICS]) == names
    for message, answer in second:
        assert set(message.content) == {"config"}
        assert set(message.content["config"]) == {"round", "attempt", CLIP_NORM, LEAST_NORM}
        assert unpack_vector(answer.content).size == HIDDEN
        assert set(answer.content["metrics"]) == {"num-examples"}
    assert talk.thetas[-1].size == HIDDEN and all(talk.grid.kept(client).size == 4810 - HIDDEN for client in range(4))
    sent = np.concatenate([unpack_vector(answer.content) for _, answer in second])
    assert not np.isin(talk.grid.kept(0), sent).any()


def test_bytes_count_both_exchanges() -> None:
    talk = Conversation(*ADPFL, *MLP, "num_rounds=1")
    assert talk.bytes_up == sum(num_bytes(answer.content) for _, answer in talk.grid.seen)
    assert talk.bytes_down == sum(num_bytes(message.content) for message, _ in talk.grid.seen)


class NoisyNormStays(NoisyNorm):
    """The noisy norm does not move with the update: as if the noise had made up for the change."""

    def measure(self, norm: Any, clip_norm: float, norms: Any, noise: Any) -> Measured:
        return super().measure(torch.tensor(1.5, dtype=torch.float64), clip_norm, norms, noise)


def test_repaired_messages_know_a_raw_norm_only_through_its_noisy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 2's raw update changes, its noisy norm does not: every message stays as it was but client 2's release."""
    monkeypatch.setattr("fedpriv.client.clip_statistics.NoisyNorm", NoisyNormStays)
    options = (*ADPFL, *MLP, "num_rounds=1")
    plain, real = Conversation(*options), SequentialTrainer.train

    def longer(self: SequentialTrainer, asked: Any) -> Any:
        found = real(self, asked)
        calls.append(0)
        if len(calls) == 3:  # clients train in order
            object.__setattr__(found, "update", found.update * 1.7)
        return found

    calls: list[int] = []
    monkeypatch.setattr(SequentialTrainer, "train", longer)
    other = Conversation(*options)
    differ = []
    for (message, answer), (message2, answer2) in zip(plain.grid.seen, other.grid.seen, strict=True):
        assert contents(message) == contents(message2)
        if contents(answer) != contents(answer2):
            differ.append((client_of(message), EXCHANGE in message.content["config"]))
    assert len(calls) == 4 and differ == [(2, False)]


def contents(message: Message) -> dict[str, Any]:
    """All that travels, without the diagnostics of a simulation."""
    return {
        key: unpack_vector(message.content).tobytes() if key == "arrays" else dict(record)  # type: ignore[call-overload]
        for key, record in message.content.items()
        if key != "diagnostics"
    }


def test_published_messages_show_a_raw_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same change, published: the test above could fail."""
    options, real = (*ADPFL, *MLP, "num_rounds=1", "privacy.variant=published"), SequentialTrainer.train
    plain = Conversation(*options)

    def longer(self: SequentialTrainer, asked: Any) -> Any:
        found = real(self, asked)
        object.__setattr__(found, "update", found.update * 1.7)
        return found

    monkeypatch.setattr(SequentialTrainer, "train", longer)
    other = Conversation(*options)
    assert [contents(a) for _, a in exchanges(plain)[0]] != [contents(a) for _, a in exchanges(other)[0]]
    assert [contents(m) for m, _ in exchanges(plain)[1]] != [contents(m) for m, _ in exchanges(other)[1]]


# --- the round -------------------------------------------------------------------------------------------


def test_without_noise_and_clipping_it_is_pfl() -> None:
    common = ("num_rounds=3", *MLP, "partition=dirichlet", "local.lr=0.5", "strategy.server.distillation_lr=0.5")
    pfl = Conversation("strategy=pfl", *common)
    adpfl = Conversation(
        "strategy=adpfl",
        *common,
        "strategy.client.noise_multiplier=0.0",
        "strategy.client.norm_noise=1.0",
        "strategy.client.clip_norm=1e6",
        "strategy.server.norm_bound=1e7",
    )
    for ours, theirs in zip(adpfl.thetas, pfl.thetas, strict=True):
        assert np.abs(ours - theirs).max() < 1e-6
    assert all(np.abs(adpfl.grid.kept(k) - pfl.grid.kept(k)).max() < 1e-6 for k in range(4))
    assert np.abs(pfl.thetas[-1] - pfl.thetas[0]).max() > 1e-3


def test_pfl_without_distillation_is_fedper() -> None:
    common = ("num_rounds=3", *MLP, "partition=dirichlet", "strategy.server.weighting=examples")
    pfl = Conversation("strategy=pfl", "strategy.server.distillation_epochs=0", *common)
    fedper = Conversation("strategy=fedper", *common)
    assert all(np.array_equal(a, b) for a, b in zip(pfl.thetas, fedper.thetas, strict=True))


def test_distillation_moves_the_student_towards_a_noiseless_ensemble() -> None:
    """theta^1 against theta^0 beside Ens = theta^0 + mean of the releases, by the answers on the auxiliary pictures."""
    talk = Conversation("strategy=pfl", *MLP, "num_rounds=1", "local.lr=0.5", "strategy.server.distillation_lr=0.5")
    releases = [unpack_vector(answer.content) for _, answer in talk.grid.seen]
    ensemble = talk.thetas[0] + np.mean(releases, axis=0, dtype=np.float64).astype(np.float32)
    answers = Distiller(talk.worker, DistillationOptions(1, 64, 0.1, "kl", 2.0))._answers

    def distance(theta: np.ndarray) -> float:
        teacher = answers(talk.worker.whole_model(ensemble))
        return float(distillation_loss(answers(talk.worker.whole_model(theta)), teacher, "kl", 2.0))

    assert distance(talk.thetas[1]) < 0.7 * distance(talk.thetas[0])
    assert distance(talk.thetas[1]) > 0.01 * distance(talk.thetas[0])  # distilled, not copied


def test_the_time_of_distillation_is_recorded(run: Run) -> None:
    rows = rows_of(run("strategy=pfl", "partition=dirichlet"))
    assert all(0 < row["timings"]["distillation"] < row["seconds"] for row in rows)
    rows = rows_of(run("strategy=pfl", "partition=dirichlet", "strategy.server.distillation_epochs=0"))
    assert all(row["timings"] == {} for row in rows)


@pytest.mark.parametrize("exchange", ["statistics", "train"])
def test_a_client_that_drops_out_of_a_round(exchange: str, run: Run) -> None:
    """Between the exchanges it is charged for its norm alone, before them for what it made; the others go on."""
    fault = f"engine.faults=[{{round:2,client:1,exchange:{exchange},kind:drop}}]"
    folder = run(*ADPFL, *MLP, fault, "strategy.server.distillation_epochs=0", "strategy.client.epsilon=1e9")
    rows = rows_of(folder)
    assert [row["participants"] for row in rows] == [4, 3, 4] and [row["dropped"] for row in rows] == [0, 1, 0]
    assert sorted(rows[1]["figures"]["round_epsilon"]) == ["0", "2", "3"]
    reported = sorted(rows[1]["figures"]["reported_norms"])
    assert reported == (["0", "2", "3"] if exchange == "statistics" else ["0", "1", "2", "3"])
    booked = [line for line in ledger_of(folder) if line["client"] == 1 and line["observer"] == "server"]
    # A reply that is lost on its way was made all the same.
    assert [line["round"] for line in booked] == ([1, 1, 2, 3, 3] if exchange == "statistics" else [1, 1, 2, 2, 3, 3])


def test_a_dropped_client_is_not_averaged_in() -> None:
    """Round 1 without client 1: theta^1 is theta^0 plus the mean of three releases."""
    fault = "engine.faults=[{round:1,client:1,exchange:statistics,kind:raise}]"
    talk = Conversation(*ADPFL, *MLP, fault, "num_rounds=1", "strategy.server.distillation_epochs=0")
    _, second = exchanges(talk)
    assert [client_of(message) for message, _ in second] == [0, 2, 3]
    mean = np.mean([unpack_vector(answer.content) for _, answer in second], axis=0, dtype=np.float64)
    assert np.allclose(talk.thetas[1], talk.thetas[0] + mean, atol=1e-5)


def test_too_few_reports_end_the_run_before_any_release(tmp_path: Path, run: Run) -> None:
    faults = ",".join(f"{{round:2,client:{client},exchange:statistics,kind:raise}}" for client in (0, 1, 2))
    with pytest.raises(RunFailed, match=r"round 2: 1 usable replies of 4, strategy\.server\.min_replies=2"):
        run(*ADPFL, f"engine.faults=[{faults}]", "strategy.server.min_replies=2", folder=tmp_path / "run")
    second_round = [line for line in ledger_of(tmp_path / "run") if line["round"] == 2]
    assert {(line["client"], line["sequence"]) for line in second_round} == {(3, 4), (3, 5)}  # its norm, twice observed


def test_a_client_that_reports_nonsense_is_out_of_the_round(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = NoisyNorm.measure
    calls: list[int] = []

    def broken(self: NoisyNorm, norm: Any, *rest: Any) -> Measured:
        calls.append(0)
        found = real(self, norm, *rest)
        return Measured({CLIP_REPORTED_NORM: torch.tensor(math.nan)}) if len(calls) == 2 else found

    monkeypatch.setattr(NoisyNorm, "measure", broken)
    rows = rows_of(run(*ADPFL))
    assert [row["participants"] for row in rows] == [3, 4, 4]
    assert rows[0]["errors"] == {"1": "refused: statistics.clip-norm: expected a finite number, got nan"}


def test_the_floor_holds_and_the_run_says_so(run: Run) -> None:
    falling = ("strategy.server.clipping=geometric", "strategy.server.decay=0.01", "strategy.server.floor=0.1")
    folder = run(*ADPFL, *falling)
    figures = [row["figures"] for row in rows_of(folder)]
    assert [row["clip_norm"] for row in figures] == pytest.approx([4.0, 0.1, 0.1])
    assert [row["clip_floor_held"] for row in figures] == [False, True, True]
    assert "clip_floor_held" in page_of(folder)


@pytest.mark.parametrize("variant", ["published", "repaired"])
def test_it_works_where_no_diagnostics_travel(variant: str, run: Run) -> None:
    folder = run(*ADPFL, "privacy.rng=secure", f"privacy.variant={variant}")
    rows = rows_of(folder)
    assert all(row["participants"] == 4 and row["update_norm"] is None for row in rows)
    assert all(row["figures"]["round_epsilon"] == {} for row in rows)
    assert ("reported_norms" in rows[0]["figures"]) == (variant == "repaired")


# --- what a user can get wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["strategy.server.window=0"], "strategy.server.window=0: must be at least 2"),
        (["strategy.client.base_share=1.5"], "strategy.client.base_share=1.5: must be at most 1"),
        (["strategy.client.min_replies=9"], "strategy.server.min_replies=9: at most clients_per_round=4"),
        (["strategy.client.colluders=1"], "strategy.client.colluders=1: must be less"),
        (["strategy.server.weighting=examples"], "strategy.server.weighting=examples: allowed: uniform"),
        (["model=linear"], "model=of one named block (head): strategy.client.personal_layers needs at least 2"),
        (["strategy.client.epsilon=1e300"], "strategy.client.epsilon=1e300: must be at most"),
        (["strategy.client.epsilon=0"], "strategy.client.epsilon=0: must be more than 0"),
        (["strategy.client.allocation=some"], "strategy.client.allocation=some: allowed: adaptive or fixed"),
        (["dataset.auxiliary=0"], "dataset.auxiliary=0: adpfl distils on public examples"),
        (["dataset.auxiliary=360"], "dataset.auxiliary=360: there are 360 test examples"),
        (["strategy.client.personal_layers=2", "model=mlp"], "personal_layers=2: the model has 2 named"),
        (["strategy.client.clip_norm=20.0"], "strategy.client.clip_norm=20.0: must be from"),
        (["strategy.server.temperature=0.0"], "strategy.server.temperature=0.0: must be more than 0"),
        (["strategy.server.distillation_loss=l1"], "strategy.server.distillation_loss=l1: allowed: kl or mse"),
        (["engine.faults=[{round:1,client:0,exchange:keys,kind:drop}]"], "exchange=keys: adpfl has: statistics, train"),
    ],
    ids=str,
)
def test_a_wrong_value_is_one_line(overrides: list[str], words: str, cli: Callable[..., Outcome]) -> None:
    outcome = cli("strategy=adpfl", "num_clients=4", "clients_per_round=4", "num_rounds=1", "plan=true", *overrides)
    assert outcome.code == 2 and words in outcome.err and len(outcome.err.strip().splitlines()) == 1


def test_without_distillation_no_public_pictures_are_needed(run: Run) -> None:
    run(*ADPFL, "dataset.auxiliary=0", "strategy.server.distillation_epochs=0", "num_rounds=1")


def test_an_exchange_that_the_method_does_not_have_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedpriv.server.strategy.FederatedStrategy.train_options", lambda self, number: {EXCHANGE: STATISTICS}
    )
    with pytest.raises(RunFailed, match="fedavg has no exchange 'statistics'"):
        run("strategy=fedavg")


def test_plan_and_client_agree_on_who_adds_what() -> None:
    client = make_client(compose([*ADPFL, "num_clients=8", "clients_per_round=5", "privacy.variant=published"]))
    assert client.sensitivity == pytest.approx(2 / 5)  # type: ignore[attr-defined]
