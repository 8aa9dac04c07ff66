"""What a clip norm that moves costs: its statistic, Fed-CAD's new beginnings, and audits that find what is not paid."""

from __future__ import annotations

import json
import math
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import SMALL, Run
from reference.federation import booked
from test_clipping_rules import DELTA, RULES, UPDATE, ask, at_site
from torch import Tensor

from clients.adpfl import EXACT_CHANGE
from clients.fedcad import FedCADClient
from fedpriv.attacks.release_audit import DIMENSION, audit_mechanism
from fedpriv.client.base import Client
from fedpriv.client.build import make_client
from fedpriv.client.clip_statistics import NoisyBit, NoisyNorm
from fedpriv.client.contract import BudgetSpent
from fedpriv.client.gaussian import GaussianClient
from fedpriv.client.memory import read_memory
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import CLIP_NORM, Request
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import NoiseSource, SeededNoise
from fedpriv.privacy.auditor import audit
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import CLIENT_TO_SERVER, Gaussian
from fedpriv.runs.planning import make_plan, with_target

# --- what it costs ---------------------------------------------------------------------------------------

BESIDE = {
    "fixed": [],
    "geometric": [],
    "quantile": [Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.7)],
    "adp": [Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.9)],
}


@pytest.mark.parametrize("rule", BESIDE)
def test_the_ledgers_events_are_the_rules(rule: str) -> None:
    """Also after a move of C, since noise is always sigma C; and the plan is what is booked."""
    client = at_site(clipping=rule, count_noise=0.7, norm_noise=0.9)
    for server_round, clip_norm in ((1, 1.0), (2, 1.0 if rule == "fixed" else 0.3)):
        ask(client, server_round, clip_norm)
    update = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)
    entries = booked(client)
    assert [entry.event for entry in entries] == [update, *BESIDE[rule]] * 2
    assert [entry.sequence for entry in entries] == list(range(len(entries)))
    planned = compose_events(client.planned_events(2), DELTA)
    assert compose_events([entry.event for entry in entries], DELTA) == planned
    assert client.planned_events(0) == []


@pytest.mark.parametrize("rule", ["quantile", "adp"])
def test_by_default_the_statistic_costs_at_most_a_tenth_of_the_update(rule: str) -> None:
    update, beside = at_site(clipping=rule).planned_events(1)
    assert 0.09 < (update.multiplier / beside.multiplier) ** 2 <= 0.1


def test_a_statistic_without_noise_is_infinite() -> None:
    for options in ({"clipping": "quantile", "count_noise": 0.0}, {"clipping": "adp", "norm_noise": 0.0}):
        client = at_site(**options)
        assert math.isinf(compose_events(client.planned_events(1), DELTA).epsilon)
        assert not client.keeps_budget and "no noise is added" in (client.exact_leak() or "")


def test_a_budget_counts_the_statistic() -> None:
    """Two updates would be within it; two updates with their bits are not."""
    limit = compose_events(at_site().planned_events(2), DELTA).epsilon * 1.001
    plain, noisy = at_site(max_epsilon=limit), at_site(max_epsilon=limit, clipping="quantile", count_noise=1.0)
    for client in (plain, noisy):
        ask(client, 1, 1.0)
    ask(plain, 2, 1.0)
    before = noisy.site.store.read()
    with pytest.raises(BudgetSpent):
        ask(noisy, 2, 1.0)
    assert noisy.site.store.read() == before


def test_published_adp_is_infinite_with_its_reason(run: Run) -> None:
    options = ("strategy=fedldp", "strategy.server.clipping=adp", "privacy.variant=published")
    folder = run(*options)
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["verified_epsilon"] == "inf" and privacy["reasons"] == [EXACT_CHANGE]
    assert EXACT_CHANGE in (folder / "ledger.jsonl").read_text()
    with pytest.raises(OptionError, match=r"no budget can be kept: .*clipping=adp as published"):
        run(*options, "privacy.max_epsilon=100")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", [("strategy=fedldp",), ("strategy=fedcad", "strategy.client.obsolete_factor=0.4")])
def test_a_run_costs_what_was_planned(run: Run, rule: str, method: tuple[str, ...]) -> None:
    options = (*method, f"strategy.server.clipping={rule}", "strategy.client.noise_multiplier=2", "num_rounds=8")
    folder = run(*options)
    config = compose([*SMALL, *options])
    verified = json.loads((folder / "summary.json").read_text())["privacy"]["verified_epsilon"]
    assert verified == pytest.approx(make_plan(config, Worker(config)).verified_epsilon, rel=1e-9)


def test_a_target_counts_the_statistic() -> None:
    config = with_target(compose([*SMALL, "strategy.server.clipping=quantile", "privacy.target_epsilon=8"]))
    assert 7.9 < make_plan(config, Worker(config)).verified_epsilon <= 8


# --- Fed-CAD starts anew ---------------------------------------------------------------------------------


def fed_cad(**options: Any) -> Any:
    settled = {"diff": 0.3, "obsolete_factor": 0.4, "clipping": "quantile", "count_noise": 0.7} | options
    return at_site(FedCADClient, **settled)


def state_of(client: Client) -> Any:
    return client.load_state(read_memory(client.site.store).state)  # type: ignore[union-attr]


def test_fed_cadstarts_anew_when_the_clip_norm_moves() -> None:
    client = fed_cad()
    ask(client, 1, 1.0)
    ask(client, 2, 1.0)
    assert float(state_of(client).variance) < 1
    release = ask(client, 3, 0.5)[0]
    state = state_of(client)
    fresh = making.client(FedCADClient, noise_multiplier=2.0, clip_norm=0.5, diff=0.3, obsolete_factor=0.4)
    expected = fresh.release(UPDATE, None, SeededNoise(3, 0, 3, 0, "release"))
    assert np.array_equal(release, expected.value.numpy()) and torch.equal(state.x, expected.state.x)
    assert (float(state.variance), float(state.diff), state.clip_norm) == (1.0, 0.3, 0.5)
    ask(client, 4, 0.5)
    assert float(state_of(client).variance) < 1  # and goes on from there


def test_fed_cad_is_charged_alike_on_every_path_of_the_clip_norm() -> None:
    """Who starts anew is decided by earlier outputs: the price must not depend on it. A later participation is the
    dearest, so that is what is planned and booked.
    """
    paths = ((1.0, 1.0, 1.0, 1.0), (1.0, 0.5, 0.25, 2.0), (1.0, 1.0, 0.5, 0.5))
    books = []
    for path in paths:
        client = fed_cad()
        for server_round, clip_norm in enumerate(path, 1):
            ask(client, server_round, clip_norm)
        books.append([entry.event for entry in booked(client)])
    update, bit = (Gaussian(threat=CLIENT_TO_SERVER, multiplier=m) for m in (1.0, 0.7))
    norm = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.6 * 2.0)
    assert books[0] == [update, bit, *[update, norm, bit] * 3] == books[1] == books[2]
    assert compose_events(books[0], DELTA) == compose_events(client.planned_events(4), DELTA)


def test_published_fed_cad_pays_the_price_of_a_start() -> None:
    client = fed_cad(variant="published", sigma_diff=0.2, clipping="geometric")
    for server_round, clip_norm in enumerate((1.0, 1.0, 0.5), 1):
        ask(client, server_round, clip_norm)
    entries = [(entry.round, entry.event.multiplier) for entry in booked(client)]  # type: ignore[attr-defined]
    assert [number for number, _ in entries] == [1, 2, 2, 3] and entries[-1][1] == 1.0


def moving_audit(kind: type[FedCADClient], clip_norms: tuple[float, ...]) -> tuple[float, float]:
    """(audited, verified) of releases whose C moves along a given path: updates far beyond every C, with both signs."""
    client = making.client(
        kind, noise_multiplier=4.0, clip_norm=1.0, diff=0.3, obsolete_factor=0.4, clipping="geometric"
    )

    def sample(world: bool, trials: int, seed: int) -> np.ndarray:
        noise, state, seen = SeededNoise(seed, int(world)), None, []
        update = torch.zeros(trials, DIMENSION)
        update[:, 0] = -100.0 if world else 100.0
        for server_round, clip_norm in enumerate(clip_norms, 1):
            client.prepare(Request(server_round, 0, {CLIP_NORM: clip_norm}))
            release = client.release(update, state, noise)
            state = release.state
            seen.append(release.value / clip_norm)
        return torch.cat(seen, dim=1).numpy()

    found = audit(sample, delta=DELTA, trials=60_000, confidence=0.999, seed=2)
    return found.epsilon_lower, compose_events(client.planned_events(len(clip_norms)), DELTA).epsilon


class GoesOn(FedCADClient):
    """Reuses noise and x_prev of another C."""

    def starts_anew(self, state: Any) -> bool:
        return False


@pytest.mark.parametrize("clip_norms", [(1.0, 0.1, 0.1), (0.1, 1.0, 0.5), (1.0, 1.0, 1.0)])
def test_audit_of_a_moving_clip_norm(clip_norms: tuple[float, ...]) -> None:
    audited, verified = moving_audit(FedCADClient, clip_norms)
    assert 0.25 * verified < audited <= verified


def test_a_client_that_goes_on_under_another_clip_norm_is_found() -> None:
    audited, verified = moving_audit(GoesOn, (1.0, 0.1, 0.1))
    assert audited > verified


# --- audits that must not be blind -----------------------------------------------------------------------


class BareBit(NoisyBit):
    def measure(self, norm: Tensor, clip_norm: float, norms: Tensor | None, noise: NoiseSource) -> Any:
        return NoisyBit(0.0).measure(norm, clip_norm, norms, noise)


class QuietNorm(NoisyNorm):
    def measure(self, norm: Tensor, clip_norm: float, norms: Tensor | None, noise: NoiseSource) -> Any:
        return NoisyNorm(self.noise / 10, self.norm_bound).measure(norm, clip_norm, norms, noise)


class LongNorm(NoisyNorm):
    """Reports norms up to 100 B, with the noise of norms up to B."""

    def measure(self, norm: Tensor, clip_norm: float, norms: Tensor | None, noise: NoiseSource) -> Any:
        return NoisyNorm(self.noise / 100, 100 * self.norm_bound).measure(norm, clip_norm, norms, noise)

    def pairs(self, clip_norm: float) -> Any:
        return [("no update against a far too long one", 0.0, 10 * self.norm_bound / clip_norm)]


@pytest.mark.rotates(2)
@pytest.mark.parametrize("method", ["fedldp", "fedcad"])
@pytest.mark.parametrize(("rule", "faulty"), [("quantile", BareBit), ("adp", QuietNorm), ("adp", LongNorm)])
def test_a_statistic_with_too_little_noise_is_found(method: str, rule: str, faulty: type) -> None:
    client = make_client(
        compose([f"strategy={method}", f"strategy.server.clipping={rule}", "strategy.client.noise_multiplier=4"])
    )
    assert isinstance(client, GaussianClient)
    settings: Any = {"delta": DELTA, "trials": 60_000, "confidence": 0.999, "seed": 5}
    sound = audit_mechanism(client, 1, **settings)
    assert sound.audit.epsilon_lower <= sound.verified
    client.statistic = faulty(**vars(client.statistic))
    found = audit_mechanism(client, 1, **settings)
    assert found.audit.epsilon_lower > found.verified
