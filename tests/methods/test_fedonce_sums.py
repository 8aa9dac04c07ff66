"""FedOnce under a secure sum: what the sum of Gaussian directions costs, and runs that are priced at it."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import making
import pytest
import torch
from conftest import ledger_of

from clients.fedonce import FedOnceClient
from fedpriv.client.build import make_client
from fedpriv.client.contract import PublicFacts
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.mechanisms.privunit import direction
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import CLIENT_TO_SERVER, SECURE_SUM, Gaussian
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu
from fedpriv.runs.planning import make_plan, plan_elsewhere, with_target

SUMS = (
    *("experiment=private_digits", "engine=inprocess", "operations.report=false", "strategy.client.mechanism=gaussian"),
    *("privacy.target_observer=secure-sum", "strategy.server.participation=balanced", "num_rounds=4"),
    *("clients_per_round=100", "strategy.server.min_replies=100", "features.dims=50", "checkpoint.every=0"),
)


def client(**changes: Any) -> FedOnceClient:
    facts = PublicFacts(60, 60, 10, 10, 10, num_parameters=6)
    return making.client(FedOnceClient, facts=facts, mechanism="gaussian", **changes)


def test_a_sum_is_a_gaussian_with_all_the_noises_of_the_floor() -> None:
    half = client(min_replies=8, colluders=2, epsilon=4.0)
    own, summed = (charge.event for charge in half.charges(None))
    assert isinstance(own, Gaussian) and isinstance(summed, Gaussian)
    assert (own.threat, summed.threat) == (CLIENT_TO_SERVER, SECURE_SUM)
    assert summed.multiplier == pytest.approx(math.sqrt(6) * own.multiplier)
    assert compose_events([own], 1e-5).epsilon == pytest.approx(4.0)
    assert compose_events([summed] * 3, 1e-5).epsilon == pytest.approx(
        gaussian_epsilon(math.sqrt(3 / 6) * gaussian_mu(4.0, 1e-5), 1e-5)
    )
    assert [charge.event.threat for charge in client(min_replies=1).charges(None)] == [CLIENT_TO_SERVER]


def test_sums_of_real_releases_are_as_priced() -> None:
    """One client's direction against its opposite, beside seven others: 2 apart, with as much noise as said."""
    half, many = client(min_replies=8, epsilon=8.0), 20_000
    mechanism, vector = half.mechanism, torch.tensor([3.0, -1.0, 0.5, 0.0, 2.0, 1.0])
    others = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))

    def sums(mine: torch.Tensor, seed: int) -> torch.Tensor:
        found = mechanism.release(mine.expand(many, 6), (0, 0, 1), SeededNoise(seed, 7)).double()
        for number, other in enumerate(others):
            found += mechanism.release(other.expand(many, 6), (0, number, 1), SeededNoise(seed, number))
        return found @ direction(vector)

    one, two = sums(vector, 1), sums(-vector, 2)
    summed = half.charges(None)[1].event
    assert isinstance(summed, Gaussian)
    std = 2 * summed.multiplier  # of the sum, whose sensitivity is 2
    assert float(one.mean() - two.mean()) == pytest.approx(2, abs=5 * std * math.sqrt(2 / many))
    assert float(one.std()) == pytest.approx(std, rel=0.03) == pytest.approx(float(two.std()), rel=0.04)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fedpriv.runs.start import start_run

    folder = tmp_path_factory.mktemp("sums") / "run"
    start_run(compose([*SUMS, "evaluate.every=0"]), folder)
    return folder


def test_a_run_meets_its_target_against_whoever_sees_sums(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    (other,) = summary["privacy"]["others"]
    assert (other["observer"], summary["privacy"]["observer"]) == ("secure-sum", "server")
    assert 7.9 < other["verified_epsilon"] <= 8.0 and summary["privacy"]["verified_epsilon"] > 100
    assert summary["accuracy"]["final"] > 0.9  # 85 % where the server sees each message
    (planned,) = plan_elsewhere(with_target(compose([*SUMS])))
    assert planned.verified_epsilon == pytest.approx(other["verified_epsilon"])


def test_every_release_is_booked_against_both(whole: Path) -> None:
    lines = ledger_of(whole)
    assert set(Counter((line["client"], line["observer"]) for line in lines).values()) == {4}
    assert {line["observer"] for line in lines} == {"server", "secure-sum"} and len(lines) == 2 * 4 * 100


def test_a_lower_floor_needs_more_noise() -> None:
    def std(*overrides: str) -> float:
        found = make_client(with_target(compose([*SUMS, *overrides])))
        assert isinstance(found, FedOnceClient)
        return found.mechanism.std  # type: ignore[attr-defined,no-any-return]

    assert std("strategy.server.min_replies=50") == pytest.approx(math.sqrt(2) * std(), rel=2e-3)
    assert std("strategy.client.colluders=50") == pytest.approx(math.sqrt(2) * std(), rel=2e-3)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["strategy.client.mechanism=privunit"], "strategy.client.mechanism=gaussian"),
        (["strategy.server.min_replies=1"], "how many noises a sum has at least"),
    ],
)
def test_no_account_where_a_sum_hides_nothing(overrides: list[str], words: str) -> None:
    with pytest.raises(OptionError, match=r"privacy\.target_observer=secure-sum") as refused:
        with_target(compose([*SUMS, *overrides]))
    assert words in str(refused.value)


def test_a_sum_may_need_a_gaussian_that_says_nothing_by_itself() -> None:
    """One round of many: its local epsilon is beyond what other mechanisms can have."""
    config = with_target(compose([*SUMS, "num_rounds=1", "privacy.target_epsilon=50"]))
    assert config.strategy.options.epsilon > 500
    plan = make_plan(config, Worker(config))
    assert plan.verified_epsilon > 500
