"""DP-FedSAM: DP-FedAvg's price, the paper's theorem beside it, and DP-FedAvg itself without it."""

from __future__ import annotations

import math

import pytest
from conftest import Run, ledger_of, result_of, summary_of
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from fedpriv.privacy import claimed

CENTRAL = (
    *("strategy=dpfedsam", "strategy.client.form=central", "strategy.server.client_sampling=poisson"),
    *("num_clients=20", "clients_per_round=5", "num_rounds=4", "strategy.client.noise_multiplier=1.5"),
)


@pytest.mark.parametrize(("sigma", "rate", "rounds"), [(0.95, 0.1, 200), (1.5, 0.25, 4), (4.0, 0.01, 1000)])
def test_theorem_2_is_the_curve_of_poisson_samples_at_whole_orders(sigma: float, rate: float, rounds: int) -> None:
    accountant = RdpAccountant(list(range(2, 100)))
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), rounds)
    assert claimed.dpfedsam(sigma, rate, rounds, 1e-5).epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


def test_the_theorem_is_claimed_where_it_holds_and_stands_above_the_verified_figure(run: Run) -> None:
    privacy = summary_of(run(*CENTRAL))["privacy"]
    assert 0 < privacy["verified_epsilon"] <= privacy["claimed_epsilon"] < 1.5 * privacy["verified_epsilon"]
    assert math.isinf(claimed.dpfedsam(0.0, 0.5, 3, 1e-5).epsilon)
    small = ("num_rounds=1", "num_clients=4", "clients_per_round=2")
    allocated = (*CENTRAL[:2], "strategy.server.client_sampling=allocated")
    for other in (("strategy=dpfedsam",), allocated):
        assert summary_of(run(*small, *other))["privacy"]["claimed_epsilon"] is None


def test_sharpness_0_is_dpfedavg_and_some_moves_the_model_not_the_bill(run: Run) -> None:
    plain = run(*CENTRAL, "strategy=dpfedavg")
    none, some = run(*CENTRAL, "strategy.client.sharpness=0"), run(*CENTRAL)
    assert result_of(none)["model"] == result_of(plain)["model"] != result_of(some)["model"]
    assert ledger_of(none) == ledger_of(plain) == ledger_of(some)
