"""DP-FedAvg whose trusted server moves the clip norm: one Gaussian a round, whatever the norms are."""

from __future__ import annotations

import json
import math
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import Run, ledger_of, rows_of
from scipy.stats import norm

from fedpriv.attacks.release_audit import audit_config
from fedpriv.client.build import make_client
from fedpriv.common.replies import Reply
from fedpriv.config.compose import compose
from fedpriv.mechanisms.noise import SeededNoise, grid_step, onto_grid
from fedpriv.mechanisms.trusted_sums import split_for_count, with_count
from fedpriv.server.round import Population, Round
from strategies.dpfedavg import DPFedAvg

FIXED = (
    "strategy=dpfedavg",
    "strategy.client.form=central",
    "strategy.server.client_sampling=poisson",
    "num_clients=20",
    "clients_per_round=5",
    "num_rounds=6",
    "strategy.client.noise_multiplier=2.0",
)
MOVING = (*FIXED, "strategy.server.clipping=quantile")
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
    moving, fixed = (make_client(compose([*options, "strategy.client.clip_norm=0.1"])) for options in (MOVING, FIXED))
    update = torch.full((16,), 2.0)
    assert torch.equal(moving.release(update, None, SeededNoise(1)).value, update)
    assert float(fixed.release(update, None, SeededNoise(1)).value.norm()) <= 0.1
    far = moving.release(update * 1e6, None, SeededNoise(1)).value
    assert 999 < float(far.double().norm()) <= 1000  # norm_bound
    assert float(onto_grid(far, grid_step(1.0)).double().norm()) <= 1000


def test_the_price_is_that_of_a_fixed_c(run: Run) -> None:
    moving, fixed = run(*MOVING), run(*FIXED)
    bills = [json.loads((folder / "summary.json").read_text())["privacy"] for folder in (moving, fixed)]
    assert bills[0]["verified_epsilon"] == bills[1]["verified_epsilon"] > 0
    assert [entry["mechanism"] for entry in ledger_of(moving)] == ["poisson_gaussian"] * 6
    norms = [row["figures"]["clip_norm"] for row in rows_of(moving)]
    assert norms[0] == 1.0 and len(set(norms)) == 6
    assert all("clip_norm" not in row["figures"] for row in rows_of(fixed))


SQUARES = (*FIXED, "strategy=dpfedexp", "strategy.server.norm_share=0.9")


@pytest.mark.parametrize("options", [(*MOVING, "strategy.server.count_share=0.9"), SQUARES], ids=["count", "squares"])
def test_an_audit_reaches_a_number_beside_a_sum_and_notices_if_it_has_no_noise(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose([*options, "clients_per_round=20"])

    def found() -> Any:
        return audit_config(config, trials=20_000, confidence=0.999, seed=1)[0]

    right = found()
    assert 0.3 < right.audit.epsilon_lower < right.verified
    normal = SeededNoise.normal

    def quiet(self: SeededNoise, shape: Any, std: float = 1.0) -> torch.Tensor:
        return normal(self, shape, std / (1 if len(np.atleast_1d(shape)) > 1 else 8))

    monkeypatch.setattr(SeededNoise, "normal", quiet)
    assert found().audit.epsilon_lower > right.verified
