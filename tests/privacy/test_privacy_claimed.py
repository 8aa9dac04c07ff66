"""The papers' own formulas, against the figures of their pages."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant

from fedpriv.privacy import claimed


@pytest.mark.parametrize("multiplier", [0.05, 0.3, 1.0, 9.0, 100.0, 1e7])
@pytest.mark.parametrize("count", [1, 30, 1000])
def test_fed_cad_is_dp_accountings_rdp(multiplier, count):
    accountant = rdp_privacy_accountant.RdpAccountant()
    accountant.compose(dp_event.GaussianDpEvent(multiplier), count)
    claim = claimed.fedcad(multiplier, count, 1e-5)
    assert claim.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    assert (claim.scope, claim.delta) == ("run", 1e-5)
    assert claimed.fedldp(multiplier, count, 1e-5).epsilon == claim.epsilon


def test_fed_cads_printed_epsilons_fit_thirty_times_its_sigma():
    """The page's remark: no formula of the paper gives them, but 30*sigma does, within 2.2%."""
    for sigma, rounds, printed in ((0.3, 30, 2.72), (0.5, 30, 1.5), (0.3, 60, 3.97)):
        assert claimed.fedcad(30 * sigma, rounds, 1e-5).epsilon == pytest.approx(printed, rel=0.022)
        assert claimed.fedcad(sigma, rounds, 1e-5).epsilon > 100


def test_claims_without_noise_or_participation():
    assert claimed.fedcad(0.0, 3, 1e-5).epsilon == math.inf
    assert claimed.fedcad(1.0, 0, 1e-5).epsilon == 0.0
    assert claimed.dpfl_agn(0.0, 0.01, 10, 1e-5).epsilon == math.inf
    assert claimed.adpfl_epsilon(0.0, 1e-5) == math.inf


def test_adp_fl():
    assert claimed.adpfl([0.8, 3.0, 1.0], 1e-5) == claimed.Claim(
        3.0, "round", "ADP-FL, eq. 16 and Proposition 4 (maximum over clients)", 1e-5
    )
    for epsilon in (0.1, 1.0, 3.0, 10.0):
        sigma_s = claimed.adpfl_noise(epsilon, 1e-5)
        assert sigma_s**2 == pytest.approx((epsilon + 2 * math.log(1e5)) / epsilon**2)
        assert claimed.adpfl_epsilon(sigma_s, 1e-5) == pytest.approx(epsilon)
        order = 1 + 2 * math.log(1e5) / epsilon  # eq. 15 at the order that eq. 16 chooses
        assert order / (2 * sigma_s**2) + math.log(1e5) / (order - 1) == pytest.approx(epsilon)


def test_claims_that_are_a_parameter():
    assert (claimed.coqfl(1.0).epsilon, claimed.coqfl(1.0).scope, claimed.coqfl(1.0).delta) == (1.0, "coordinate", 0.0)
    assert claimed.ldpfl(1.0).scope == "coordinate"
    for claim in (claimed.fedags(0.5), claimed.dpfedavg(0.5), claimed.dpfedsnlc(0.5)):
        assert (claim.epsilon, claim.scope, claim.delta) == (0.5, "round", math.exp(-0.5))
    assert claimed.nbafl(8.0, 0.01).scope == "run"
    assert claimed.cpsgd(1.0, 2000, 1, (1.0, 1.0, 1.0), 1e-6).epsilon == pytest.approx(0.6375, abs=5e-5)


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 2.54), (4.0, 0.40)])
def test_dpfl_agn_at_its_reference_setting(sigma, epsilon):
    claim = claimed.dpfl_agn(sigma, 60 / 6000, 1000, 1e-5)
    assert claim.epsilon == pytest.approx(epsilon, abs=5e-3)
    assert claim.scope == "run"


def test_dpfl_agn_against_its_integral_and_its_limits():
    x = np.linspace(-30, 60, 900_001)
    for sigma, rate, order in ((1.0, 0.01, 2), (2.0, 0.3, 5), (0.8, 0.05, 8)):
        log_base = -(x**2) / (2 * sigma**2) - math.log(2 * math.pi * sigma**2) / 2
        log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * sigma**2))
        integral = math.log(np.exp(log_base + order * log_ratio).sum() * (x[1] - x[0]))
        assert claimed._log_moment(sigma, rate, order) == pytest.approx(integral, rel=1e-6)
    everybody = claimed.dpfl_agn(4.0, 1.0, 3, 1e-5).epsilon
    assert everybody == pytest.approx(min(3 * a / 32 + math.log(1e5) / (a - 1) for a in range(2, 65)))
    nobody = claimed.dpfl_agn(4.0, 0.0, 3, 1e-5).epsilon
    assert nobody == pytest.approx(math.log(1e5) / 63)
