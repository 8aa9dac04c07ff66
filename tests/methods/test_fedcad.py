"""Fed-CAD and Fed-LDP against the paper's page: mechanism, state, limits, and what noise that is used again costs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import making
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.fed_cad import PlainFedCAD, constant_diff_variance, variance_of_sum
from reference.federation import NEVER_EMPTY, BytesStore, FixedUpdates, booked, linear_model, make_site, take_part
from torch import Tensor

from clients.fedavg import FedAvgClient
from clients.fedcad import CorrelatedState, FedCADClient
from clients.fedldp import FedLDPClient
from fedpriv.client.base import Client
from fedpriv.client.contract import BudgetSpent
from fedpriv.client.memory import FileStore, StaleRequest, read_memory, state_to_tensors, tensors_to_state
from fedpriv.common.replies import Reply
from fedpriv.common.seeds import draw_cohort
from fedpriv.mechanisms.noise import KeyRegistry, NoiseSource, SeededNoise, finite_or_zero, l2_norm
from fedpriv.privacy.auditor import audit
from fedpriv.privacy.composition import compose, gaussian_epsilon, verify
from fedpriv.privacy.events import CLIENT_TO_SERVER, Event, Gaussian, NoBound
from fedpriv.server.round import Population
from fedpriv.training.sequential import SequentialTrainer
from strategies.fedavg import FedAvg
from strategies.fedcad import FedCAD

DELTA = 1e-5
invariants = settings(derandomize=True, deadline=None, max_examples=300)


class Normals(NoiseSource):
    """The same standard normals for the code and for its twin."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def normal(self, shape: Any, std: float = 1.0) -> Tensor:
        size = (shape,) if isinstance(shape, int) else tuple(shape)
        return torch.from_numpy(np.asarray(self.rng.normal(size=size) * std)).float()

    def uniform(self, shape: Any) -> Tensor:
        raise NotImplementedError


class PlainNormals:
    """The same for the twin."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, count: int) -> np.ndarray:
        return self.rng.normal(size=count)


def fed_cad(**changes: Any) -> FedCADClient:
    return making.client(
        FedCADClient, **{"noise_multiplier": 0.3, "clip_norm": 1.0, "diff": 0.5, "variant": "published"} | changes
    )


def random_update(rng: np.random.Generator, dimension: int) -> np.ndarray:
    return (rng.normal(size=dimension) * 10.0 ** rng.uniform(-2, 1)).astype(np.float32)


METHODS: dict[str, Callable[..., Client]] = {
    "fedldp": lambda **o: making.client(FedLDPClient, noise_multiplier=2.0, clip_norm=1.0, **o),
    "constant-published": lambda **o: fed_cad(noise_multiplier=2.0, **o),
    "constant-repaired": lambda **o: fed_cad(noise_multiplier=2.0, variant="repaired", **o),
    "small-diff": lambda **o: fed_cad(noise_multiplier=2.0, variant="repaired", diff=1e-3, **o),
    "adaptive": lambda **o: fed_cad(noise_multiplier=2.0, variant="repaired", obsolete_factor=0.4, **o),
    "adaptive-unclipped": lambda **o: fed_cad(
        noise_multiplier=2.0, variant="repaired", obsolete_factor=1.0, diff_source="unclipped", **o
    ),
    "adaptive-own-noise": lambda **o: fed_cad(
        noise_multiplier=2.0, variant="repaired", obsolete_factor=0.4, sigma_diff=0.7, **o
    ),
}


# --- the mechanism ---------------------------------------------------------------------------------------

ADAPTIVE = list(itertools.product(("published", "repaired"), (0.0, 0.4), (0.0, 0.25), ("clipped", "unclipped")))


@pytest.mark.parametrize(("variant", "gamma", "sigma_diff", "source"), ADAPTIVE)
def test_releases_agree_with_the_plain_twin(variant: str, gamma: float, sigma_diff: float, source: str) -> None:
    rises = 0
    for seed in range(12):
        rng = np.random.default_rng((seed, 1))
        dimension, clip_norm, diff = (
            int(rng.integers(1, 9)),
            float(rng.choice([0.5, 1, 3])),
            float(rng.uniform(0.1, 0.9)),
        )
        options = {"clip_norm": clip_norm, "diff": diff, "obsolete_factor": gamma, "sigma_diff": sigma_diff}
        client = fed_cad(variant=variant, diff_source=source, **options)
        twin = PlainFedCAD(0.3, clip_norm, diff, gamma, sigma_diff, source == "unclipped", variant == "repaired")
        ours, theirs, state = Normals(seed), PlainNormals(seed), None
        for _ in range(15):
            update, before = random_update(rng, dimension), twin.D
            release = client.release(torch.from_numpy(update), state, ours)
            expected = twin.release(update.astype(float), theirs)
            state = release.state
            assert release.value.numpy() == pytest.approx(expected, abs=2e-5 * clip_norm)
            assert state.x.numpy() == pytest.approx(twin.x, abs=1e-5 * clip_norm)
            assert float(state.variance) == pytest.approx(twin.v, rel=1e-4)
            assert float(state.diff) == pytest.approx(twin.D, rel=1e-4, abs=1e-5)
            rises += twin.r > 1 or before < twin.D
    if gamma and (sigma_diff or (source == "unclipped")):
        assert rises > 5  # the paths in question really occur


def test_a_batch_of_trials_is_the_same_mechanism() -> None:
    """The auditor's leading dimension changes nothing."""
    for variant in ("published", "repaired"):
        client = fed_cad(variant=variant, obsolete_factor=0.4, sigma_diff=0.3)
        rng, states = np.random.default_rng(2), [None, None, None]
        batch_state: Any = None
        for step in range(6):
            updates = torch.from_numpy(np.stack([random_update(rng, 4) for _ in states]))
            draws = [Normals(step), Normals(step + 50), Normals(step + 90)]
            singles = [client.release(u, s, n) for u, s, n in zip(updates, states, draws, strict=True)]
            states = [single.state for single in singles]
            again = [Normals(step), Normals(step + 50), Normals(step + 90)]

            class Rows(NoiseSource):
                def normal(self, shape: Any, std: float = 1.0, sources: Any = again) -> Tensor:
                    return torch.stack([source.normal(tuple(shape)[1:], std) for source in sources])

                def fine_normal(self, shape: Any, std: float, device: Any = None) -> Tensor:
                    return self.normal(shape, std).double()

                def uniform(self, shape: Any) -> Tensor:
                    raise NotImplementedError

            batch = client.release(updates, batch_state, Rows())
            batch_state = batch.state
            assert torch.allclose(batch.value, torch.stack([single.value for single in singles]), atol=2e-5)
            assert torch.allclose(batch_state.diff, torch.stack([single.state.diff for single in singles]), atol=1e-5)


@pytest.mark.parametrize("diff", [0.1, 0.5, 0.9])
def test_the_variance_of_the_ith_release_is_theorem_vi_2(diff: float) -> None:
    client, state, sigma, dimension = fed_cad(diff=diff, clip_norm=2.0), None, 0.3, 200_000
    for participation in range(1, 7):
        update = torch.full((dimension,), 1e-3 * participation)
        release = client.release(update, state, SeededNoise(7, participation))
        state = release.state
        empirical = float((release.value - state.x).double().var()) / (sigma * 2.0) ** 2
        assert empirical == pytest.approx(constant_diff_variance(diff, participation), rel=0.02)
        assert float(state.variance) == pytest.approx(constant_diff_variance(diff, participation), rel=1e-9)


@pytest.mark.parametrize(
    ("diff", "figures"), [(0.5, (1.50, 1.99, 2.22)), (0.1, (1.45, 2.05, 3.35)), (0.9, (1.13, 1.19, 1.21))]
)
def test_the_noise_of_the_sum_is_the_pages_figure(diff: float, figures: Sequence[float]) -> None:
    """Noises of one client's releases are positively correlated; the global model adds releases up."""
    client, state, dimension = fed_cad(diff=diff), None, 40_000
    total, measured = torch.zeros(dimension, dtype=torch.float64), {}
    noise = SeededNoise(int(10 * diff), "sum")
    for participation in range(1, 101):
        release = client.release(torch.zeros(dimension), state, noise)
        state = release.state
        total += release.value.double()
        measured[participation] = float(total.var()) / (participation * 0.3**2)
    assert [measured[count] for count in (3, 10, 100)] == pytest.approx(figures, rel=0.02)
    assert measured[100] == pytest.approx(variance_of_sum(diff, 100), rel=0.02)


def test_fed_ldp_is_fresh_noise_every_time() -> None:
    client, dimension = making.client(FedLDPClient, noise_multiplier=0.3, clip_norm=2.0), 200_000
    update = torch.full((dimension,), 1.0)
    first, second = (client.release(update, None, SeededNoise(1, i)) for i in range(2))
    clipped = 2.0 / math.sqrt(dimension)
    for release in (first, second):
        assert release.state is None
        assert float((release.value - clipped).double().var()) == pytest.approx(0.36, rel=0.02)
        assert abs(float((release.value - clipped).mean())) < 4 * 0.6 / math.sqrt(dimension)
    correlation = np.corrcoef(first.value.numpy(), second.value.numpy())[0, 1]
    assert abs(correlation) < 4 / math.sqrt(dimension)


# --- the two norm invariants -----------------------------------------------------------------------------

single = st.floats(width=32, allow_nan=True, allow_infinity=True)
updates_of = st.integers(1, 12).flatmap(
    lambda d: st.lists(st.lists(single, min_size=d, max_size=d), min_size=2, max_size=8)
)


@invariants
@given(
    updates_of,
    st.sampled_from([0.01, 1.0, 7.0]),
    st.floats(1e-3, 1 - 1e-3),
    st.sampled_from(["published", "repaired"]),
    st.sampled_from([(0.0, 0.0), (0.4, 0.0), (1.0, 0.5)]),
)
def test_what_is_released_keeps_both_norms_for_any_input(
    updates: list[list[float]], clip_norm: float, diff: float, variant: str, adaptive: tuple[float, float]
) -> None:
    """Huge, tiny, zero and not finite updates: ||x|| <= C and ||x_i - x_{i-1}|| <= D C, with D inside its range."""
    gamma, sigma_diff = adaptive
    client = fed_cad(
        clip_norm=clip_norm,
        diff=diff,
        variant=variant,
        obsolete_factor=gamma,
        sigma_diff=sigma_diff,
        diff_source="unclipped",
    )
    state: CorrelatedState | None = None
    for step, values in enumerate(updates):
        update = finite_or_zero(torch.tensor(values, dtype=torch.float32))
        release = client.release(update, state, SeededNoise(step))
        assert torch.isfinite(release.value).all()
        assert float(l2_norm(release.state.x)) <= clip_norm
        if state is not None:
            assert float(l2_norm(release.state.x.double() - state.x.double())) <= float(state.diff) * clip_norm
        state = release.state
        assert 1e-3 <= float(state.diff) <= (diff if variant == "repaired" else 1 - 1e-3 if gamma else diff)


def test_the_norms_hold_over_many_rounds_in_many_dimensions() -> None:
    """Rounding must not add up: at the smallest D, x creeps along for a hundred participations."""
    rng = np.random.default_rng(0)
    for dimension, diff in ((20_000, 1e-3), (20_000, 0.3), (2, 1e-3)):
        client, state = fed_cad(diff=diff, noise_multiplier=0.0), None
        for step in range(100):
            update = torch.from_numpy(rng.normal(size=dimension).astype(np.float32) * (100.0 if step % 3 else 1e-3))
            if step % 5 == 4:
                update = state.x * 1.001
            release = client.release(update, state, SeededNoise(step))
            assert float(l2_norm(release.state.x)) <= 1.0
            if state is not None:
                assert float(l2_norm(release.state.x.double() - state.x.double())) <= diff
            state = release.state


# --- state and noise keys --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["constant-repaired", "adaptive", "adaptive-unclipped"])
def test_state_survives_rounds_without_the_client_and_a_restart(name: str, tmp_path: Path) -> None:
    """Rounds 2, 3, 7 and 20; each participation is a new process that finds bytes in a file, or in memory."""
    rng = np.random.default_rng(8)
    updates = {server_round: torch.from_numpy(random_update(rng, 4)) for server_round in (2, 3, 7, 20)}
    client, state, expected = METHODS[name](), None, []
    for server_round, update in updates.items():
        release = client.release(update, state, SeededNoise(3, 0, server_round, 0, "release"))
        state = release.state
        expected.append(release.value.numpy())

    memory = BytesStore()
    for new_store in (lambda: FileStore(tmp_path, 0), lambda: memory):
        for (server_round, update), value in zip(updates.items(), expected, strict=True):
            site = make_site(store=new_store(), trainer=FixedUpdates(lambda _, update=update: update))
            assert np.array_equal(take_part(METHODS[name](site=site), server_round), value)


def test_a_state_comes_back_as_it_was() -> None:
    client = METHODS["adaptive"]()
    state = client.release(torch.ones(3), None, SeededNoise(1)).state
    state = client.release(torch.ones(3) / 3, state, SeededNoise(2)).state
    back = tensors_to_state(CorrelatedState, state_to_tensors(state))
    for name in ("x", "released", "variance", "diff"):
        kept, found = getattr(state, name), getattr(back, name)
        assert kept.dtype == found.dtype and kept.shape == found.shape and torch.equal(kept, found)
    assert back.clip_norm == state.clip_norm and isinstance(back.clip_norm, float)


def test_another_clip_norm_is_a_new_first_participation() -> None:
    update = torch.ones(3)
    state = fed_cad().release(update, None, SeededNoise(1)).state
    wider = fed_cad(clip_norm=2.0, obsolete_factor=0.4, variant="repaired")
    again, fresh = wider.release(update, state, SeededNoise(2)), wider.release(update, None, SeededNoise(2))
    assert torch.equal(again.value, fresh.value) and float(again.state.variance) == 1.0
    assert wider.charges(state) == wider.charges(None) and len(wider.charges(again.state)) == 2


def test_no_noise_key_is_used_for_two_updates() -> None:
    rng = np.random.default_rng(4)
    with KeyRegistry() as registry:
        clients = [
            make(site=make_site(number, FixedUpdates(lambda _: torch.from_numpy(random_update(rng, 4)))))
            for number, make in enumerate([*METHODS.values()])
        ]
        for server_round in range(1, 6):
            for client in clients:
                take_part(client, server_round)
        once = take_part(clients[0], 5, attempt=1)  # the same round again: fresh noise
        assert len(registry.keys) == 5 * len(clients) + 1
        assert np.array_equal(take_part(clients[0], 5, attempt=1), once)  # the same request: the same bytes
        for late in ((5, 0), (4, 1)):
            with pytest.raises(StaleRequest):
                take_part(clients[0], late[0], attempt=late[1])
        assert len(registry.keys) == 5 * len(clients) + 1 and len(booked(clients[0])) == 6
        forgetful = METHODS["fedldp"](site=make_site(0, FixedUpdates(lambda _: torch.ones(4))))
        with pytest.raises(ValueError, match="used twice"):  # what the registry is here to see
            take_part(forgetful, 5)


@pytest.mark.parametrize("what", ["batches", "noise"])
def test_a_repeated_attempt_has_other_noise_and_other_batches(what: str) -> None:
    """Each alone: batches without noise, and noise on an update that is always the same."""
    theta = linear_model().theta.numpy().copy()

    def released(attempt: int) -> np.ndarray:
        trainer = FixedUpdates(lambda _: torch.zeros(len(theta))) if what == "noise" else None
        sigma = 1.0 if what == "noise" else 0.0
        client = making.client(FedLDPClient, noise_multiplier=sigma, clip_norm=1e6, site=make_site(trainer=trainer))
        return take_part(client, 1, theta, attempt)

    first, again, same = map(released, (0, 1, 0))
    assert np.array_equal(first, same) and not np.array_equal(first, again)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_is_released_as_noised_zero(bad: float) -> None:
    for name in METHODS:
        results = []
        for update in (torch.tensor([1.0, bad, 0.0, 2.0]), torch.zeros(4)):
            client = METHODS[name](site=make_site(trainer=FixedUpdates(lambda _, update=update: update)))
            results.append((take_part(client, 1), booked(client)))
        assert np.array_equal(results[0][0], results[1][0]) and np.isfinite(results[0][0]).all()
        assert results[0][1] == results[1][1]


# --- limits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["published", "repaired", "fedldp"])
def test_without_noise_and_without_clipping_it_is_federated_averaging(name: str) -> None:
    """sigma = 0 and a C whose D*C never binds: bit for bit the model of FedAvg with the same sampler, 6 rounds."""

    def client(number: int, store: BytesStore, plain: bool) -> Client:
        site = make_site(number, SequentialTrainer(model, NEVER_EMPTY), store)
        if plain:
            return making.client(FedAvgClient, site=site)
        if name == "fedldp":
            return making.client(FedLDPClient, noise_multiplier=0.0, clip_norm=1e6, site=site)
        return fed_cad(noise_multiplier=0.0, clip_norm=1e6, diff=0.5, variant=name, obsolete_factor=0.0, site=site)

    model = linear_model()
    start, finals = model.theta.numpy().copy(), []
    for plain in (True, False):
        theta, stores = start, {number: BytesStore() for number in range(5)}
        kind = FedAvg if plain else FedCAD
        strategy = making.server(kind, Population(3, 5, 3, lambda _: 40), weighting="uniform")
        for server_round in range(1, 7):
            cohort = draw_cohort(3, server_round, 5, 3, "fixed")
            releases = {k: take_part(client(k, stores[k], plain), server_round, theta) for k in cohort}
            theta = strategy.aggregate(theta, [Reply(k, release, 40, {}, 0) for k, release in releases.items()])
        finals.append(theta)
        if not plain and name != "fedldp":
            assert max(len(read_memory(store).uncollected) for store in stores.values()) >= 3  # later releases too
    assert np.allclose(*finals, atol=1e-5) and np.abs(finals[0] - start).max() > 0.1  # x - r x' + r x' rounds


@pytest.mark.parametrize("variant", ["published", "repaired"])
def test_diff_of_nearly_one_is_fresh_noise(variant: str) -> None:
    """At D -> 1 nothing is reused: Fed-CAD becomes Fed-LDP."""
    client, state = fed_cad(diff=1 - 1e-3, variant=variant), None
    for step in range(4):
        release = client.release(torch.ones(3), state, SeededNoise(step))
        state = release.state
        assert release.figures["reuse"] < 1.1e-3 and float(state.variance) == pytest.approx(1, abs=1e-5)


def test_claims_are_dp_accountings_composition_at_multiplier_sigma() -> None:
    """[Fed-CAD, Theorem VI.1] with Algorithm 2 line 6: pinned figure of dp-accounting 0.6.0 (sigma 1, 10 times)."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    accountant.compose(dp_event.GaussianDpEvent(1.0), 10)
    for client in (fed_cad(noise_multiplier=1.0), making.client(FedLDPClient, noise_multiplier=1.0, clip_norm=5.0)):
        claim = client.claim(10, DELTA)
        assert (
            claim is not None and claim.epsilon == pytest.approx(accountant.get_epsilon(DELTA)) and claim.scope == "run"
        )
    event = fed_cad(noise_multiplier=1.0).planned_events(1)[0]
    assert isinstance(event, Gaussian) and event.multiplier == 0.5  # verified: replace-one doubles the sensitivity


# --- What Fed-CAD's releases cost: the ledger's multipliers are reached and never passed, and fixed before the run -


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
