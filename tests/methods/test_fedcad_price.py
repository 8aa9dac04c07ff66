"""What Fed-CAD's releases cost: the ledger's multipliers are reached and never passed, and fixed before the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from reference.federation import FixedUpdates, booked, make_site, take_part
from test_fedcad import DELTA, METHODS, fed_cad, random_update

from clients.fedcad import CorrelatedState
from fedpriv.client.base import Client
from fedpriv.client.contract import BudgetSpent
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.auditor import audit
from fedpriv.privacy.composition import compose, gaussian_epsilon, verify
from fedpriv.privacy.events import CLIENT_TO_SERVER, Event, NoBound

# --- the price of a release ------------------------------------------------------------------------------


def with_diff(state: Any, diff: float) -> CorrelatedState:
    return replace(state, diff=torch.tensor(diff, dtype=torch.float64))


@pytest.mark.parametrize("variant", ["published", "repaired"])
def test_no_path_of_diff_moves_a_release_further_than_its_multiplier_says(variant: str) -> None:
    """||(x - r x_prev) - (x' - r x'_prev)|| <= s C / m for any two data sets and any D path, rises included."""
    sigma, clip_norm, rises = 0.3, 2.0, 0
    client = fed_cad(clip_norm=clip_norm, variant=variant, obsolete_factor=0.4, sigma_diff=0.25)
    for seed in range(150):
        rng = np.random.default_rng(seed)
        dimension, states = int(rng.integers(1, 6)), [None, None]
        direction = rng.normal(size=dimension)
        for step in range(12):
            signs = rng.choice([-3.0, 3.0], size=2) * clip_norm / np.linalg.norm(direction)
            worlds = (
                [s * direction for s in signs] if rng.random() < 0.6 else [random_update(rng, dimension) for _ in "ab"]
            )
            updates = [torch.from_numpy(np.asarray(w, dtype=np.float32)) for w in worlds]
            if states[0] is None:
                states = [client.release(u, None, SeededNoise(step)).state for u in updates]
                continue
            diff = 10.0 ** rng.uniform(-3, math.log10(0.5))
            before = [with_diff(state, diff) for state in states]
            prices = [client.charges(state) for state in before]
            assert prices[0] == prices[1]  # public: the same whatever the data
            multiplier = prices[0][0].event.multiplier  # type: ignore[attr-defined]
            v = float(before[0].variance)
            reuse = (1 - diff) / ((1 - diff) ** 2 + v)
            rises += reuse > 1
            if variant == "repaired":
                reuse = min(1.0, reuse)
                assert multiplier == sigma / 2
            fresh = 1 - reuse + reuse * diff
            states = [client.release(u, s, SeededNoise(step)).state for u, s in zip(updates, before, strict=True)]
            now, then = ([state.x.double().numpy() for state in pair] for pair in (states, before))
            shift = np.linalg.norm((now[0] - reuse * then[0]) - (now[1] - reuse * then[1]))
            assert shift <= fresh * sigma * clip_norm / multiplier
    assert rises > 60


def risen_state(
    variant: str, world: bool, trials: int | None, seed: int, **options: Any
) -> tuple[Any, CorrelatedState]:
    """After many participations at D = 0.001, D has risen to 0.5; the worst pair of data sets in one dimension."""
    client = fed_cad(variant=variant, obsolete_factor=0.4, sigma_diff=0.25, **options)
    v, sign = 2e-3 - 1e-6, -1.0 if world else 1.0
    shape = () if trials is None else (trials,)
    std = math.sqrt(v) * client.noise_multiplier
    x = torch.full((*shape, 1), sign)
    ones = torch.ones(shape, dtype=torch.float64)
    return client, CorrelatedState(x, SeededNoise(seed, int(world)).normal((*shape, 1), std), v * ones, 0.5 * ones, 1.0)


@pytest.mark.parametrize(("variant", "share"), [("published", 0.00535), ("repaired", 1.0)])
def test_the_ledgers_multiplier_is_reached(variant: str, share: float) -> None:
    """The bound is no overestimate: at the risen D a pair of data sets comes within 1% of it."""
    results = []
    for world in (False, True):
        client, state = risen_state(variant, world, None, 0)
        price = client.charges(state)[0]
        release = client.release(-state.x * 5, state, SeededNoise(1))  # D*C towards zero, from the ball's edge
        reuse = float(release.figures["reuse"])
        results.append(float(release.state.x - reuse * state.x))
    fresh = 1 - reuse + reuse * 0.5
    multiplier = price.event.multiplier  # type: ignore[attr-defined]
    assert abs(results[0] - results[1]) * multiplier == pytest.approx(fresh * 0.3, rel=0.01)
    assert multiplier == pytest.approx(share * 0.15, rel=2e-3)
    assert bool(price.adaptive) == (variant == "published")


def test_an_audit_finds_the_published_rise_and_not_the_repair() -> None:
    """Given the release before, one release at a risen D; sigma = 2 promises epsilon 4.38 (sigma/2 = 1)."""
    promised = gaussian_epsilon(1.0, DELTA)

    def sample_of(variant: str) -> Callable[[bool, int, int], np.ndarray]:
        def sample(world: bool, trials: int, seed: int) -> np.ndarray:
            client, state = risen_state(variant, world, trials, seed, noise_multiplier=2.0)
            release = client.release(-state.x * 5, state, SeededNoise(seed, int(world), "release"))
            reuse = client.coefficients(state).reuse.unsqueeze(-1)  # public
            return (release.value - reuse * state.released).numpy()

        return sample

    published = audit(sample_of("published"), delta=DELTA, trials=20_000, confidence=0.999, seed=1)
    repaired = audit(sample_of("repaired"), delta=DELTA, trials=200_000, confidence=0.999, seed=1)
    assert published.epsilon_lower > promised + 1
    assert 0.5 * promised < repaired.epsilon_lower <= promised


@pytest.mark.parametrize("name", METHODS)
def test_audited_never_exceeds_verified(name: str) -> None:
    """Three whole participations from the very first: everything that one client sends, the worst updates known."""
    client = METHODS[name]()
    shares = (0.998, 0.999, 1.0) if name == "small-diff" else (0.2, 0.6, 1.0)  # outwards by about D a time
    verified = compose(client.planned_events(len(shares)), DELTA).epsilon

    def sample(world: bool, trials: int, seed: int) -> np.ndarray:
        sign, state, values = -1.0 if world else 1.0, None, []
        noise = SeededNoise(seed, int(world))
        for share in shares:
            release = client.release(torch.full((trials, 1), sign * share), state, noise)
            state = release.state
            values.append(release.value)
        return torch.cat(values, dim=1).numpy()

    found = audit(sample, delta=DELTA, trials=200_000, confidence=0.999, seed=2)
    assert 0.2 * verified < found.epsilon_lower <= verified


# --- the guarantee is fixed before the run ---------------------------------------------------------------


def spelled_out(events: Sequence[Event]) -> list[Event]:
    return [replace(event, count=1) for event in events for _ in range(event.count)]


@pytest.mark.parametrize("participations", [0, 1, 2, 5])
@pytest.mark.parametrize("name", METHODS)
def test_real_participations_book_what_was_planned(name: str, participations: int) -> None:
    rng = np.random.default_rng(4)
    trainer = FixedUpdates(lambda call: torch.from_numpy(random_update(rng, 4)))
    client = METHODS[name](site=make_site(trainer=trainer))
    for server_round in range(1, participations + 1):
        take_part(client, 3 * server_round)
    entries = booked(client)
    assert Counter(entry.event for entry in entries) == Counter(spelled_out(client.planned_events(participations)))
    assert [entry.sequence for entry in entries] == list(range(len(entries)))
    assert not any(entry.adaptive or entry.realised for entry in entries)
    planned = compose(client.planned_events(participations), DELTA).epsilon
    assert verify({0: entries}, DELTA).maximum == pytest.approx(planned) and math.isfinite(planned)


def test_the_planned_prices_are_the_pages() -> None:
    """sigma/2 for every update; for the norm sigma_diff/D_0 or sigma_diff/2, at most a tenth of the update's price."""

    def multipliers(client: Client, participations: int = 2) -> list[float]:
        return [event.multiplier for event in spelled_out(client.planned_events(participations))]  # type: ignore[attr-defined]

    assert multipliers(METHODS["fedldp"]()) == [1.0, 1.0]
    assert multipliers(METHODS["constant-published"]()) == [1.0, 1.0]
    assert multipliers(METHODS["adaptive"]()) == pytest.approx([1.0, 1.0, 3.2])  # 1.6 sigma
    assert multipliers(METHODS["adaptive-unclipped"]()) == pytest.approx([1.0, 1.0, 3.2])
    assert multipliers(METHODS["adaptive-own-noise"]()) == pytest.approx([1.0, 1.0, 0.7 / 0.5])
    assert (1 / 3.2**2) / (1 / 1.0**2) <= 0.1
    assert {event.threat for event in METHODS["adaptive"]().planned_events(3)} == {CLIENT_TO_SERVER}


def test_published_adaptive_diff_has_no_guarantee_from_the_first_participation() -> None:
    silent = fed_cad(obsolete_factor=0.4, site=make_site(trainer=FixedUpdates(lambda _: torch.ones(4))))
    noisy = fed_cad(obsolete_factor=0.4, sigma_diff=0.25, site=make_site(trainer=FixedUpdates(lambda _: torch.ones(4))))
    for client, spent_is_finite, words in (
        (silent, False, "without noise"),
        (noisy, True, "chosen from earlier outputs"),
    ):
        take_part(client, 1)
        for server_round in (2, 3):
            verdict = verify({0: booked(client)}, DELTA)
            assert verdict.maximum == math.inf and any(words in reason for reason in verdict.reasons)
            assert math.isfinite(verdict.spent_so_far) == spent_is_finite
            take_part(client, server_round)
        assert compose(client.planned_events(1), DELTA).epsilon == math.inf
        assert isinstance(client.planned_events(2)[0], NoBound)
    assert [e.event.multiplier for e in booked(noisy)[1:3]] == pytest.approx(  # the norm: sigma_diff / D
        [0.15, 0.25 / 0.5]
    )
    limit = 1e4
    assert verify({0: booked(noisy)}, DELTA, max_epsilon=limit).maximum == limit  # a filter makes it a guarantee
    assert verify({0: booked(silent)}, DELTA, max_epsilon=limit).maximum == math.inf


def test_a_spent_budget_releases_nothing_and_leaves_the_state_as_it_was() -> None:
    trainer, budget = FixedUpdates(lambda _: torch.ones(4)), gaussian_epsilon(math.sqrt(2.0), DELTA)
    client = METHODS["constant-repaired"](site=make_site(trainer=trainer, max_epsilon=budget + 1e-9))
    take_part(client, 1)
    take_part(client, 2)
    before = client.site.store.read()  # type: ignore[union-attr]
    with pytest.raises(BudgetSpent):
        take_part(client, 3)
    assert client.site.store.read() == before and trainer.calls == 2  # type: ignore[union-attr]
