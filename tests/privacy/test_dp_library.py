"""What is computed at a whole grid at once is what dp-accounting computes point by point."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant

from fedpriv.privacy.dp_library import gaussian_pld, poisson_gaussian_pld, poisson_gaussian_rdp
from fedpriv.privacy.event_costs import ORDERS

SAMPLED = [(0.1, 1.0), (0.01, 0.5), (0.001, 0.3), (0.5, 4.0), (0.999, 1.0), (1.0, 2.0), (1e-5, 1.0), (0.3, 30.0)]


@pytest.mark.parametrize(("rate", "multiplier"), SAMPLED)
def test_the_loss_distribution_is_the_librarys(rate: float, multiplier: float) -> None:
    """At deltas above 1e-9; far below, both are rounded."""
    relation = privacy_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE
    options = {"value_discretization_interval": 1e-3, "neighboring_relation": relation}
    theirs = pld.from_gaussian_mechanism(multiplier, sampling_prob=rate, **options)
    ours = poisson_gaussian_pld(rate, multiplier, 1e-3)
    for count in (1, 30):
        first, second = (one.self_compose(count) if count > 1 else one for one in (ours, theirs))
        for delta in (1e-3, 1e-5, 1e-8):
            found, wanted = (one.get_epsilon_for_delta(delta) for one in (first, second))
            assert found == pytest.approx(wanted, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("mu", [0.1, 1.0, 8.0])
def test_unsampled_gaussians_are_the_librarys(mu: float) -> None:
    theirs = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-3)
    for delta in (1e-3, 1e-10):
        assert gaussian_pld(mu, 1e-3).get_epsilon_for_delta(delta) == theirs.get_epsilon_for_delta(delta)


@pytest.mark.parametrize(("rate", "multiplier"), [*SAMPLED, (0.5, 0.3), (1e-4, 0.5), (0.1, 500.0)])
def test_renyi_divergences_between_whole_orders_are_the_librarys(rate: float, multiplier: float) -> None:
    orders = ORDERS[(ORDERS >= 1.1) & (ORDERS <= 256)]
    accountant = RdpAccountant(orders)
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier)))
    theirs = np.asarray(accountant.rdp)
    ours = poisson_gaussian_rdp(rate, multiplier, orders)
    assert (np.isfinite(ours) == np.isfinite(theirs)).all()
    finite = np.isfinite(theirs)
    assert ours[finite] == pytest.approx(theirs[finite], rel=1e-9, abs=1e-13)
