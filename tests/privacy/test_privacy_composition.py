"""Composition: closed form, library and its traps, the verdict on a ledger."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import fft, stats

from fedpriv.common.errors import OptionError
from fedpriv.privacy import composition, dp_library
from fedpriv.privacy.calibration import calibrate
from fedpriv.privacy.composition import (
    ADAPTIVE,
    ORDERS,
    Budget,
    compose,
    compose_clients,
    first_bounds,
    gaussian_epsilon,
    gaussian_mu,
    guarantee_events,
    make_history,
    realised_events,
    release_epsilon,
    renyi_curve,
    verify,
)
from fedpriv.privacy.dp_library import composed_epsilon
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    MECHANISMS,
    ZCDP,
    AllocatedGaussian,
    ApproximateDP,
    Binomial,
    DiscreteGaussianSum,
    Entry,
    Event,
    FixedSizeGaussian,
    Gaussian,
    GumbelTopK,
    Laplace,
    NoBound,
    PairedQuantisation,
    PoissonGaussian,
    RandomisedResponse,
    ReplacedGaussian,
    Shuffled,
    SkellamSum,
    Threat,
    UnitCap,
    entry_from_json,
    entry_to_json,
    event_from_json,
    event_to_json,
)

DELTA = 1e-5
EXAMPLE = Threat("example", "add-or-remove-one", "server")
PUBLIC = Threat("client", "replace-one", "public")


def gaussian(multiplier, count=1):
    return Gaussian(threat=CLIENT_TO_SERVER, multiplier=multiplier, count=count)


def poisson(multiplier, rate=0.01, count=1):
    return PoissonGaussian(threat=EXAMPLE, multiplier=multiplier, sampling_rate=rate, count=count)


# --- the Gaussian curve ----------------------------------------------------------------------------------------


def analytic_delta(epsilon, mu):
    """Balle and Wang 2018, Theorem 8, in 60 digits."""
    epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)

    def phi(x):
        return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

    return phi(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e6])
def test_gaussian_curve_against_sixty_digits(mu):
    with mpmath.workdps(60):
        for delta in (0.1, 1e-5, 1e-12):
            epsilon = gaussian_epsilon(mu, delta)
            if epsilon == 0:
                assert analytic_delta(0, mu) <= delta
                continue
            assert analytic_delta(epsilon * (1 + 1e-8), mu) <= delta <= analytic_delta(epsilon * (1 - 1e-8), mu)
            assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-8)


def test_gaussian_curve_at_its_ends():
    assert gaussian_epsilon(0.0, DELTA) == 0.0
    assert gaussian_epsilon(math.inf, DELTA) == math.inf
    assert gaussian_epsilon(1.0, 0.0) == math.inf
    assert gaussian_mu(math.inf, DELTA) == math.inf and gaussian_mu(1.0, 0.0) == 0.0
    for bad in (math.nan, -1.0):
        with pytest.raises(ValueError):
            gaussian_epsilon(bad, DELTA)
        with pytest.raises(ValueError):
            gaussian_mu(bad, DELTA)
    with pytest.raises(ValueError):
        compose([gaussian(1.0)], 1.0)


@pytest.mark.parametrize("multiplier", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("count", [1, 30, 1000])
def test_k_gaussians_agree_with_the_analytic_formula(multiplier, count):
    from dp_accounting import get_epsilon_gaussian

    found = compose([gaussian(multiplier)] * count, DELTA)
    assert found.accountant == "gaussian"
    assert found.epsilon == pytest.approx(get_epsilon_gaussian(multiplier / math.sqrt(count), DELTA), rel=1e-6)


@pytest.mark.parametrize("multiplier", [0.0, 1e-200, 5e-324])
@pytest.mark.parametrize("kind", ["gaussian", "poisson", "laplace"])
def test_no_noise_and_underflow_are_infinite_with_a_reason(multiplier, kind):
    event = {
        "gaussian": gaussian(multiplier),
        "poisson": poisson(multiplier),
        "laplace": Laplace(threat=CLIENT_TO_SERVER, multiplier=multiplier),
    }[kind]
    assert compose([event, replace(event, multiplier=1.0)], DELTA).epsilon == math.inf
    assert compose([event], DELTA).reasons == ("no noise is added",)


def test_tiny_noise_of_every_kind_is_finite_or_infinite_but_never_an_exception():
    for multiplier in (1e-140, 1e-20, 1e-3):
        for event in (gaussian(multiplier), poisson(multiplier), Laplace(threat=EXAMPLE, multiplier=multiplier)):
            assert compose([event], DELTA).epsilon > 100
        fixed = FixedSizeGaussian(threat=PUBLIC, multiplier=multiplier, sample_size=1, population=10)
        assert compose([fixed], DELTA).epsilon > 100


def test_figures_of_the_paper_pages():
    root = math.sqrt
    for epsilon, once, twenty in ((0.1, 0.257, 1.54), (0.2, 0.501, 3.03), (0.5, 1.085, 6.89)):  # DP-FedAGS, eq. 2
        multiplier = root(2 * math.log(1.25 * math.exp(epsilon))) / epsilon
        assert compose([gaussian(multiplier)], 1e-3).epsilon == pytest.approx(once, abs=6e-4)
        assert compose([gaussian(multiplier, 20)], 1e-3).epsilon == pytest.approx(twenty, abs=6e-3)
    sigma_s = root(3 + 2 * math.log(1e5)) / 3  # ADP-FL, eq. 16 at eps = 3; N = 10, T = 100
    assert compose([gaussian(sigma_s / 10, 100)], DELTA).epsilon == pytest.approx(1979, abs=0.5)
    assert compose([gaussian(root(10) * sigma_s / 10, 100)], DELTA).epsilon == pytest.approx(251, abs=0.5)
    assert compose([gaussian(root(2 * math.log(1e5)) / 10)], DELTA).epsilon == pytest.approx(10.52, abs=5e-3)
    assert compose([gaussian(root(10 + 2 * math.log(1e5)) / 10)], DELTA).epsilon == pytest.approx(8.43, abs=5e-3)
    bits = RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=1.0, dimension=80_202)  # CoQ-FL: about 38,000; 17
    assert compose([bits], 0.0).epsilon == 80_202
    assert compose([bits], DELTA).epsilon == pytest.approx(38_267, abs=1)
    assert compose([replace(bits, epsilon=0.01)], DELTA).epsilon == pytest.approx(16.54, abs=0.01)


# --- the library and its traps -----------------------------------------------------------------------------------


def test_library_trap_of_the_doubled_sensitivity():
    import dp_accounting as dp

    add, replace_one = dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.NeighboringRelation.REPLACE_ONE

    def epsilon(accountant, multiplier):
        return accountant.compose(dp.GaussianDpEvent(multiplier)).get_epsilon(DELTA)

    assert epsilon(dp.pld.PLDAccountant(add), 2.0) == pytest.approx(1.993, abs=1e-3)
    assert epsilon(dp.pld.PLDAccountant(replace_one), 2.0) == pytest.approx(4.377, abs=1e-3)
    assert epsilon(dp.rdp.RdpAccountant(neighboring_relation=replace_one), 2.0) == pytest.approx(2.166, abs=1e-3)
    assert epsilon(dp.pld.PLDAccountant(replace_one), 1.0) == pytest.approx(9.997, abs=1e-3)
    assert epsilon(dp.rdp.RdpAccountant(neighboring_relation=replace_one), 1.0) == pytest.approx(4.73, abs=5e-3)
    assert compose([gaussian(2.0)], DELTA).epsilon == pytest.approx(1.9931, abs=1e-4)
    assert compose([gaussian(1.0)], DELTA).epsilon == pytest.approx(4.3772, abs=1e-4)


def test_library_trap_of_the_dropped_count():
    import dp_accounting as dp

    event = dp.RandomizedResponseDpEvent(noise_parameter=2 / (1 + math.e), num_buckets=2)
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_ONE)
    assert accountant.compose(event, 50).get_epsilon(DELTA) == pytest.approx(1.0, abs=1e-3)  # the library's fault
    found = compose([RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=1.0, count=50)], DELTA)
    assert (found.epsilon, found.accountant) == (pytest.approx(45.68, abs=5e-3), "pld")


def test_relations_that_the_library_accepts():
    import dp_accounting as dp

    relation = dp.NeighboringRelation
    poisson_event = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0))
    fixed_event = dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(1.0))
    response = dp.RandomizedResponseDpEvent(0.5, 2)
    table = {  # (PLD, RDP) under ADD_OR_REMOVE_ONE, then under REPLACE_ONE
        poisson_event: ((True, True), (True, False)),
        dp.LaplaceDpEvent(1.0): ((True, True), (False, True)),
        response: ((False, False), (True, True)),
        fixed_event: ((False, False), (False, True)),
        dp.ZCDpEvent(0.1): ((False, True), (False, True)),
    }
    for event, accepted in table.items():
        for neighbours, (by_pld, by_rdp) in zip(
            (relation.ADD_OR_REMOVE_ONE, relation.REPLACE_ONE), accepted, strict=True
        ):
            assert dp.pld.PLDAccountant(neighbours).supports(event) is by_pld
            assert dp.rdp.RdpAccountant(neighboring_relation=neighbours).supports(event) is by_rdp


REPEATED = [
    gaussian(2.0),
    poisson(1.0),
    Laplace(threat=CLIENT_TO_SERVER, multiplier=3.0),
    FixedSizeGaussian(threat=PUBLIC, multiplier=2.0, sample_size=10, population=100),
    ZCDP(threat=CLIENT_TO_SERVER, rho=0.01),
    GumbelTopK(threat=CLIENT_TO_SERVER, k=10, epsilon=0.1),
    RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.3, dimension=2),
    PairedQuantisation(threat=CLIENT_TO_SERVER, epsilon=0.3, private_share=0.3, dimension=2),
    PairedQuantisation(threat=Threat("client", "replace-one", "server+members"), epsilon=0.3, private_share=0.3),
    Binomial(threat=CLIENT_TO_SERVER, step=1.0, trials=4000, dimension=1, l1=1.0, l2=1.0, linf=1.0, delta=1e-7),
    Shuffled(threat=Threat("client", "replace-one", "secure-sum"), epsilon=1.0, users=10_000, delta=1e-7),
    ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=0.2, delta=1e-7),
]


@pytest.mark.parametrize("event", REPEATED, ids=lambda event: f"{event.mechanism}-{event.threat.observer}")
def test_a_loop_and_a_count_agree_and_more_costs_more(event):
    looped = compose([event] * 12, DELTA)
    assert looped == compose([replace(event, count=12)], DELTA)
    once = compose([event], DELTA).epsilon
    assert 1.5 * once < looped.epsilon <= 12.5 * once
    # what the pieces say apart, together: RDP alone is an upper bound for whatever was chosen
    share = 12 * event.delta_share
    by_renyi = composition.renyi_to_epsilon(12 * composition.renyi_curve(event), DELTA - share)
    assert looped.epsilon <= by_renyi * (1 + 1e-9)


def test_renyi_curves_are_the_librarys():
    import dp_accounting as dp

    orders = [1.5, 2.0, 8.0, 32.0]
    places = [int(np.argmin(abs(composition.ORDERS - order))) for order in orders]

    def library(event, relation):
        accountant = dp.rdp.RdpAccountant(orders, dp.NeighboringRelation[relation])
        return accountant.compose(event).rdp

    response = dp.RandomizedResponseDpEvent(2 / (1 + math.exp(0.3)), 2)
    for event, theirs in (
        (gaussian(2.0), library(dp.GaussianDpEvent(2.0), "ADD_OR_REMOVE_ONE")),
        (poisson(1.0), library(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), "ADD_OR_REMOVE_ONE")),
        (REPEATED[2], library(dp.LaplaceDpEvent(3.0), "ADD_OR_REMOVE_ONE")),
        (REPEATED[3], library(dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(2.0)), "REPLACE_ONE")),
        (REPEATED[4], library(dp.ZCDpEvent(0.01), "ADD_OR_REMOVE_ONE")),
        (REPEATED[5], library(dp.ZCDpEvent(10 * 0.1**2 / 8), "ADD_OR_REMOVE_ONE")),
        (replace(REPEATED[6], dimension=1), library(response, "REPLACE_ONE")),
    ):
        # 1.5 of the fixed-size sample: the library interpolates too
        np.testing.assert_allclose(composition.renyi_curve(event)[places], theirs, rtol=1e-9)
    everywhere = composition.renyi_curve(poisson(0.3, rate=0.3))
    assert (np.diff(everywhere[np.isfinite(everywhere)]) >= 0).all()


@pytest.mark.parametrize(
    ("multiplier", "rate", "interval"),
    [(1.0, 0.01, 1e-3), (0.6, 0.05, 1e-3), (0.3, 0.9, 1e-3), (5.0, 0.001, 1e-4), (2.0, 0.5, 1e-3), (0.7, 1.0, 1e-3)],
)
def test_a_gaussians_loss_distribution_is_the_librarys_to_the_bit(multiplier, rate, interval):
    ours = dp_library.poisson_gaussian_pld(rate, multiplier, interval)
    theirs = from_gaussian_mechanism(multiplier, sampling_prob=rate, value_discretization_interval=interval)
    for one, other in ((ours._pmf_remove, theirs._pmf_remove), (ours._pmf_add, theirs._pmf_add)):
        found, wanted = one.to_dense_pmf(), other.to_dense_pmf()
        assert (found._lower_loss, found._infinity_mass) == (wanted._lower_loss, wanted._infinity_mass)
        assert np.array_equal(found._probs, wanted._probs)


def test_a_loss_that_no_outcome_has_is_refused():
    end = math.log(0.75)
    assert dp_library._before_sampling(np.array([end, 0.0]), 0.25).tolist() == [-math.inf, 0.0]
    with pytest.raises(ValueError, match=r"a loss is below log\(1 - 0.25\)"):
        dp_library._before_sampling(np.array([end - 0.1]), 0.25)


@pytest.mark.parametrize("sigma", [0.7, 1.0, 4.0])
def test_pld_is_below_rdp_and_within_a_fifth_for_a_thousand_poisson_steps(sigma):
    event = poisson(sigma, count=1000)
    by_pld = compose([event], DELTA)
    by_rdp = float(composition.renyi_to_epsilon(1000 * composition.renyi_curve(replace(event, count=1)), DELTA))
    assert by_pld.accountant == "pld"
    assert by_pld.epsilon < by_rdp < 1.2 * by_pld.epsilon


def test_one_poisson_step_against_its_exact_curve():
    """delta(eps) of N(0, s^2) against the mixture, both directions, by numerical integration."""
    sigma, rate, delta = 1.0, 0.01, DELTA
    x = np.linspace(-12, 13, 400_001)
    step = x[1] - x[0]
    q = stats.norm.pdf(x, 0, sigma)
    p = (1 - rate) * q + rate * stats.norm.pdf(x, 1, sigma)

    def worst(e):
        return max(np.maximum(p - math.exp(e) * q, 0).sum(), np.maximum(q - math.exp(e) * p, 0).sum()) * step

    found = compose([poisson(sigma, rate)], delta).epsilon
    assert worst(found) <= delta <= worst(found - 2e-4)


def test_poisson_agrees_with_a_second_accountant():
    from opacus.accountants import PRVAccountant

    for rate, sigma, steps in ((0.01, 4.0, 1000), (0.1, 1.0, 100)):
        other = PRVAccountant()
        other.history = [(sigma, rate, steps)]
        theirs = other.get_epsilon(DELTA, eps_error=0.001)
        ours = compose([poisson(sigma, rate, steps)], DELTA).epsilon
        assert theirs >= 0.25 and ours == pytest.approx(theirs, rel=0.01)


def test_sampling_everybody_is_a_gaussian_and_nobody_is_nothing():
    assert compose([poisson(2.0, rate=1.0)], DELTA) == replace(compose([gaussian(2.0)], DELTA))
    assert compose([poisson(2.0, rate=0.0), poisson(0.0, rate=0.0)], DELTA).epsilon == 0.0
    everybody = FixedSizeGaussian(threat=PUBLIC, multiplier=2.0, sample_size=7, population=7)
    assert compose([everybody], DELTA).epsilon == compose([gaussian(2.0)], DELTA).epsilon


def test_fixed_size_sampling_amplifies():
    event = FixedSizeGaussian(threat=PUBLIC, multiplier=2.0, sample_size=5, population=1000, count=20)
    assert compose([event], DELTA).epsilon < 0.2 * compose([gaussian(2.0, 20)], DELTA).epsilon


def test_decaying_noise_is_between_its_best_and_worst_sigma():
    events = [poisson(2.0 * 0.999**step) for step in range(40)]
    found = compose(events, DELTA).epsilon
    assert compose([poisson(2.0, count=40)], DELTA).epsilon < found < compose([poisson(1.92, count=40)], DELTA).epsilon


#: The field that says how loud an event's noise is, and whether more of it is more noise.
LOUDNESS = {"multiplier": 1, "epsilon": -1, "rho": -1}
OF_ONE_CLIENT = [
    event for event in REPEATED if event.threat == CLIENT_TO_SERVER and LOUDNESS.keys() & vars(event).keys()
]


@settings(deadline=None)
@given(
    chosen=some.lists(some.tuples(some.sampled_from(OF_ONE_CLIENT), some.integers(1, 9)), min_size=1), data=some.data()
)
def test_neither_order_nor_counts_change_a_bound_and_noise_lowers_it(chosen, data):
    def bound(events):
        history = make_history(events)
        return first_bounds([history], DELTA)[history].epsilon

    def louder(event):
        (name,) = LOUDNESS.keys() & vars(event).keys()
        return replace(event, **{name: getattr(event, name) * 1.2 ** LOUDNESS[name]})

    events = [event for event, times in chosen for _ in range(times)]
    found = bound(events)
    assert bound(data.draw(some.permutations(events))) == found
    assert bound([replace(event, count=times) for event, times in chosen]) == found
    assert bound([louder(event) for event in events]) < found < bound([*events, events[0]])


def test_mixtures_cost_more_than_their_parts_and_less_than_the_sum():
    mixed = [poisson(1.0, count=100), Gaussian(threat=EXAMPLE, multiplier=5.0), Laplace(threat=EXAMPLE, multiplier=3.0)]
    apart = [compose([event], DELTA / 3).epsilon for event in mixed]
    assert max(compose([event], DELTA).epsilon for event in mixed) < compose(mixed, DELTA).epsilon < sum(apart)


def test_pairs_use_up_delta():
    pair = ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=0.5, delta=4e-6)
    assert compose([pair], 4e-6).epsilon == 0.5  # all of delta is used up: plain sums
    assert compose([pair, pair], 1e-5).epsilon <= 1.0
    lost = compose([pair, pair, pair], 1e-5)
    assert lost.epsilon == math.inf and "1.2e-05" in lost.reasons[0]
    with_gaussian = compose([pair, gaussian(5.0)], 1e-5)
    assert gaussian_epsilon(0.2, 6e-6) < with_gaussian.epsilon <= 0.5 + gaussian_epsilon(0.2, 6e-6)


def test_pure_mechanisms_need_no_delta():
    events = [
        Laplace(threat=CLIENT_TO_SERVER, multiplier=2.0, count=3),
        GumbelTopK(threat=CLIENT_TO_SERVER, k=2, epsilon=0.25),
    ]
    found = compose(events, 0.0)
    assert (found.epsilon, found.accountant) == (2.0, "basic")
    assert compose([gaussian(1.0)], 0.0).epsilon == math.inf


def test_threats_are_never_mixed():
    with pytest.raises(ValueError, match="threats"):
        compose([gaussian(1.0), poisson(1.0)], DELTA)
    with pytest.raises(ValueError, match="threats"):
        compose_clients({0: [gaussian(1.0)], 1: [poisson(1.0)]}, DELTA)
    with pytest.raises(ValueError, match="threats"):
        Budget(10.0, DELTA).admits([gaussian(1.0)], [poisson(1.0)])


# --- the verdict on a ledger ---------------------------------------------------------------------------------------


def entries(events, rounds=None, **more):
    return [
        Entry(rounds[index] if rounds else index + 1, 0, index, 0, event, **more) for index, event in enumerate(events)
    ]


def test_verified_maximum_median_and_scopes():
    ledger = {
        0: entries([gaussian(1.0), gaussian(2.0), gaussian(1.0)], rounds=[1, 1, 2]),
        1: entries([gaussian(1.0)]),
        2: [],
    }
    found = verify(ledger, DELTA)
    assert found.maximum == found.spent_so_far == compose([gaussian(1.0, 2), gaussian(2.0)], DELTA).epsilon
    assert found.median == compose([gaussian(1.0)], DELTA).epsilon
    assert (found.accountant, found.reasons, found.threat) == ("gaussian", (), CLIENT_TO_SERVER)
    assert found.at_scope("run").epsilon == found.maximum
    assert found.at_scope("round").epsilon == compose([gaussian(1.0), gaussian(2.0)], DELTA).epsilon
    assert found.at_scope("round", delta=0.6).epsilon == compose([gaussian(1.0), gaussian(2.0)], 0.6).epsilon
    assert verify({}, DELTA).maximum == 0.0


def test_a_round_is_all_that_left_in_it_whatever_the_attempt():
    again = [Entry(1, 0, number, number, event) for number, event in enumerate([gaussian(1.0), gaussian(2.0)])]
    found = verify({0: again}, DELTA).at_scope("round")
    assert found.epsilon == compose([gaussian(1.0), gaussian(2.0)], DELTA).epsilon


def test_coordinate_scope_is_one_coordinate_of_one_release():
    event = PairedQuantisation(threat=CLIENT_TO_SERVER, epsilon=1.0, private_share=0.2, dimension=1000, count=3)
    found = verify({0: entries([event])}, DELTA).at_scope("coordinate", delta=0.0)
    assert found.epsilon == pytest.approx(composition.pure_epsilon(replace(event, dimension=1, count=1)), rel=1e-12)
    assert 1.0 < found.epsilon < 3.0


def test_bounds_are_the_guarantee_and_realised_is_what_was_spent():
    ledger = {0: entries([gaussian(1.0)] * 4, realised=gaussian(3.0))}
    found = verify(ledger, DELTA)
    assert found.maximum == compose([gaussian(1.0, 4)], DELTA).epsilon
    assert found.spent_so_far == compose([gaussian(3.0, 4)], DELTA).epsilon
    held = verify(ledger, DELTA, max_epsilon=5.0)  # the client may go on until what it really spent reaches it
    assert found.spent_so_far < 5.0 < found.maximum
    assert (held.maximum, held.accountant) == (5.0, "filter")
    assert verify(ledger, DELTA, max_epsilon=50.0) == found
    assert guarantee_events(ledger[0]) == [gaussian(1.0)] * 4 and realised_events(ledger[0]) == [gaussian(3.0)] * 4


def test_adaptive_noise_is_a_guarantee_only_under_a_filter_that_held():
    ledger = {0: entries([gaussian(5.0), gaussian(6.0)], adaptive=True), 1: entries([gaussian(5.0)])}
    free = verify(ledger, DELTA)
    assert (free.maximum, free.reasons) == (math.inf, (ADAPTIVE,))
    assert free.spent_so_far == compose([gaussian(5.0), gaussian(6.0)], DELTA).epsilon < 2.0
    held = verify(ledger, DELTA, max_epsilon=2.0)
    assert (held.maximum, held.accountant) == (2.0, "filter")
    assert held.at_scope("round").epsilon == 2.0
    assert held.median == pytest.approx((2.0 + compose([gaussian(5.0)], DELTA).epsilon) / 2)
    broken = verify(ledger, DELTA, max_epsilon=0.5)  # more is in the ledger than the filter admits
    assert (broken.maximum, broken.reasons) == (math.inf, (ADAPTIVE,))


def test_several_threats_are_verified_one_at_a_time():
    seen_by_public = Gaussian(threat=PUBLIC, multiplier=4.0)
    ledger = {0: entries([gaussian(1.0), seen_by_public])}
    with pytest.raises(ValueError, match="several threats"):
        verify(ledger, DELTA)
    assert verify(ledger, DELTA, threat=PUBLIC).maximum == compose([seen_by_public], DELTA).epsilon
    assert verify(ledger, DELTA, threat=CLIENT_TO_SERVER).maximum == compose([gaussian(1.0)], DELTA).epsilon


@pytest.mark.parametrize("count", [1000, 9000])
@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-11, 1e-13, 1e-14, 3e-15])
def test_rounding_of_transforms_states_no_epsilon_below_that_of_an_exact_law(count, delta):
    """Of so many answers the law is binomial; the library's transforms err by up to 3e-13 of delta."""
    event = RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.01, count=count)
    found = compose([event], delta)
    least = math.floor((found.epsilon / 0.01 + count) / 2)  # answers beyond which the loss exceeds epsilon
    own, other = (stats.binom.sf(least, count, 1 / (1 + math.exp(-sign * 0.01))) for sign in (1, -1))
    assert delta * 0.999 <= own - math.exp(found.epsilon) * other <= delta and found.accountant == "pld"


@pytest.mark.parametrize("size", [7, 1 << 12, 3**9, 5**7])
def test_a_transform_errs_by_what_composition_allows_for(size):
    """Against 64 bits of a number in place of 53, of even and of peaked distributions."""
    for weights in (np.linspace(1, 2, size), np.random.default_rng(size).exponential(size=size) ** 4):
        law = weights / weights.sum()
        exact = fft.rfft(law.astype(np.longdouble))
        allowed = math.log2(2 * size) * dp_library._LEVEL
        assert 1e-6 * allowed < float(np.abs(fft.rfft(law) - exact).max()) <= allowed
        back = np.abs(fft.irfft(fft.rfft(law), size) - fft.irfft(exact, size))
        assert math.sqrt(float((back**2).sum())) <= 2 * allowed


@pytest.mark.parametrize(
    ("epsilon", "count", "delta"), [(0.1, 4, 1e-2), (0.01, 12, 1e-5), (0.1, 16, 1e-5), (0.01, 24, 1e-8), (1.0, 8, 1e-2)]
)
def test_a_few_answers_cost_no_more_than_their_exact_law(epsilon, count, delta):
    """A tilt by Chernoff's bound, which knows no 1 - exp(epsilon - l), said up to 15 % more."""
    found = compose([RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=epsilon, count=count)], delta).epsilon
    right = np.arange(count + 1)
    losses, masses = (2 * right - count) * epsilon, stats.binom.pmf(right, count, 1 / (1 + math.exp(-epsilon)))

    def exact(at):
        return float(masses @ np.maximum(-np.expm1(at - losses), 0.0))

    assert exact(found) <= delta < exact(found * (1 - 1e-4))


# --- large epsilons ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sigma", "rate", "count"), [(0.3, 0.1, 200), (0.5, 0.1, 1000), (1.0, 0.5, 1000), (0.1, 0.1, 30), (0.2, 0.5, 50)]
)
def test_above_an_epsilon_of_100_sampled_noise_is_composed_to_one_percent(sigma, rate, count):
    """Against the same law on a grid so fine that it costs nothing; Renyi orders alone say up to twice as much."""
    event = poisson(sigma, rate, count)
    found = compose([event], DELTA)
    exact = dp_library.composed_epsilon([(event.loss_distribution(5e-3), count)], DELTA)
    assert found.accountant == "pld" and exact > 100
    assert exact * (1 - 1e-9) <= found.epsilon <= 1.01 * exact


def test_a_grid_follows_the_epsilon_that_it_finds_and_not_the_first_bound():
    """Renyi orders say 169,000; one grid for that would cost a tenth of the epsilon that is left."""
    event = poisson(0.05, 0.01, 1000)
    assert first_bounds([make_history([event])], DELTA)[make_history([event])].epsilon > 1e5
    exact = dp_library.composed_epsilon([(event.loss_distribution(0.05), 1000)], DELTA)
    assert exact * (1 - 1e-9) <= compose([event], DELTA).epsilon <= 1.01 * exact
    mixed = [poisson(0.3, 0.1, 200), Gaussian(threat=EXAMPLE, multiplier=0.1)]
    parts = [(mixed[0].loss_distribution(5e-3), 200), (dp_library.gaussian_pld(10.0, 5e-3), 1)]
    assert compose(mixed, DELTA).epsilon == pytest.approx(dp_library.composed_epsilon(parts, DELTA), rel=0.01)


def test_losses_beyond_what_a_float_holds_keep_their_sum():
    for epsilon in (600.0, 900.0, 1e5):
        event = RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=epsilon, count=2)
        assert compose([event], DELTA).epsilon == pytest.approx(2 * epsilon, rel=1e-3)
    nothing = poisson(0.001, 1e-7, 10)  # it takes part with probability 1e-6, below delta
    assert compose([nothing], DELTA).epsilon == 0


# --- Events and entries: what is allowed, and that they survive JSON -----------------------------------------------


SERVER = CLIENT_TO_SERVER
OUTSIDE = Threat("client", "add-or-remove-one", "trusted-server")
SUM = Threat("client", "replace-one", "secure-sum")

EVENTS = [
    Gaussian(threat=SERVER, multiplier=0.05, count=3),
    Gaussian(threat=SERVER, multiplier=0),
    Laplace(threat=SERVER, multiplier=2.5),
    PoissonGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=0.01, count=1000),
    FixedSizeGaussian(threat=PUBLIC, multiplier=1.0, sample_size=10, population=100),
    AllocatedGaussian(threat=OUTSIDE, multiplier=2.0, rounds=10, count=3),
    ReplacedGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=0.1, count=50),
    ZCDP(threat=SERVER, rho=0.1),
    GumbelTopK(threat=SERVER, k=8020, epsilon=0.01),
    RandomisedResponse(threat=SERVER, epsilon=1.0, dimension=80202),
    RandomisedResponse(threat=SERVER, epsilon=math.inf),
    UnitCap(threat=SERVER, epsilon=8.0, inside=0.9, delta=1e-12, count=2),
    PairedQuantisation(threat=SERVER, epsilon=1.0, private_share=0.25, bits=8, dimension=10),
    Binomial(threat=SERVER, step=0.1, trials=2000, dimension=3, l1=1.0, l2=1.0, linf=1.0, delta=1e-6),
    DiscreteGaussianSum(threat=SUM, sigma=40.0, noises=90, dimension=1024, l2=300.0),
    SkellamSum(threat=SUM, variance=1600.0, noises=90, dimension=1024, l2=300.0, delta=1e-9),
    Shuffled(threat=SUM, epsilon=1.0, users=1000, delta=1e-8, dimension=5),
    ApproximateDP(threat=SERVER, epsilon=1.0, delta=0.0),
    NoBound(threat=SERVER, reason="98% of coordinates are sent without noise"),
]


def test_every_mechanism_is_covered_here():
    assert {type(event) for event in EVENTS} == set(MECHANISMS.values())


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.mechanism)
def test_accountants_get_an_answer_to_all_that_they_ask(event):
    curve, single = renyi_curve(event), event.one_coordinate()
    assert curve.shape == ORDERS.shape and (curve >= 0).all() and (np.diff(curve[np.isfinite(curve)]) >= 0).all()
    assert bool(event.why_unbounded()) == bool(np.isinf(curve).all())
    cut = 1e-12 * isinstance(event, AllocatedGaussian)  # ends of a law that is computed on a grid
    assert (event.delta_share > cut) == (getattr(event, "delta", 0.0) > 0)
    assert event.gaussian_multiplier in (None, getattr(event, "multiplier", None))
    assert type(single) is type(event) and single.threat == event.threat and single.count == single.coordinates == 1
    assert replace(event, count=1).pure_epsilon() == event.pure_epsilon() >= single.pure_epsilon()
    by_renyi, interval = release_epsilon(single, DELTA), 1e-4
    if 0 < by_renyi < 100 and (law := single.loss_distribution(interval)) is not None:
        assert composed_epsilon([(law, 1)], DELTA - single.delta_share) <= by_renyi * 1.001


def test_a_mechanism_without_a_reason_or_a_curve_is_none():
    class Forgotten(Event):
        mechanism = "forgotten"

    with pytest.raises(TypeError, match="abstract"):
        Forgotten(threat=SERVER)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.mechanism)
def test_json_round_trip(event):
    entry = Entry(round=3, client=7, sequence=0, attempt=1, event=event)
    text = json.dumps(entry_to_json(entry), allow_nan=False)
    assert entry_from_json(json.loads(text)) == entry
    assert event_from_json(event_to_json(event)) == event
    assert hash(event) == hash(event_from_json(event_to_json(event)))


def test_an_entry_is_one_flat_object():
    event = Gaussian(threat=SERVER, multiplier=0.05)
    assert entry_to_json(Entry(1, 2, 3, 0, event)) == {
        "round": 1,
        "client": 2,
        "sequence": 3,
        "attempt": 0,
        "mechanism": "gaussian",
        "multiplier": 0.05,
        "count": 1,
        "unit": "client",
        "adjacency": "replace-one",
        "observer": "server",
    }


def test_realised_and_adaptive_travel_too():
    bound, spent = Gaussian(threat=SERVER, multiplier=0.5), Gaussian(threat=SERVER, multiplier=0.75)
    entry = Entry(1, 2, 3, 0, bound, realised=spent, adaptive=True)
    flat = entry_to_json(entry)
    assert flat["realised"] == {"mechanism": "gaussian", "multiplier": 0.75, "count": 1} and flat["adaptive"] is True
    assert entry_from_json(flat) == entry
    assert entry.spent is spent and Entry(1, 2, 3, 0, bound).spent is bound


def test_reading_equal_objects_gives_one_instance():
    flat = event_to_json(EVENTS[0])
    assert event_from_json(dict(flat)) is event_from_json(dict(flat))  # counting histories relies on it


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(threat=SERVER, multiplier=math.nan),
        lambda: Gaussian(threat=SERVER, multiplier=-1.0),
        lambda: Gaussian(threat=SERVER, multiplier="1"),
        lambda: Gaussian(threat=SERVER, multiplier=True),
        lambda: Gaussian(threat=SERVER, multiplier=1.0, count=0),
        lambda: Gaussian(threat=SERVER, multiplier=1.0, count=1.5),
        lambda: Threat("household", "replace-one", "server"),
        lambda: Threat("client", "replace", "server"),
        lambda: Threat("client", "replace-one", "everybody"),
        lambda: PoissonGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=1.1),
        lambda: PoissonGaussian(
            threat=Threat("example", "replace-one", "server"), multiplier=1.0, sampling_rate=0.1
        ),  # no sound analysis here
        lambda: PoissonGaussian(
            threat=Threat("client", "zero-out", "server"), multiplier=1.0, sampling_rate=0.1
        ),  # the server knows who took part
        lambda: PoissonGaussian(
            threat=Threat("client", "zero-out", "secure-sum"), multiplier=1.0, sampling_rate=0.1
        ),  # so does who sees the sum
        lambda: FixedSizeGaussian(threat=SERVER, multiplier=1.0, sample_size=10, population=100),
        lambda: FixedSizeGaussian(threat=PUBLIC, multiplier=1.0, sample_size=101, population=100),
        lambda: FixedSizeGaussian(
            threat=Threat("client", "zero-out", "public"), multiplier=1.0, sample_size=10, population=100
        ),
        lambda: Shuffled(threat=SERVER, epsilon=1.0, users=1000, delta=1e-6),
        lambda: Shuffled(threat=SUM, epsilon=1.0, users=1000, delta=0.0),
        lambda: PairedQuantisation(threat=SERVER, epsilon=1.0, private_share=1.5),
        lambda: PairedQuantisation(threat=SERVER, epsilon=1.0, private_share=0.5, group_size=1),
        lambda: NoBound(threat=SERVER, reason=""),
        lambda: Entry(-1, 0, 0, 0, EVENTS[0]),
        lambda: Entry(1, 0, 0, 0, EVENTS[0], realised=EVENTS[3]),  # another threat
    ],
)
def test_impossible_values_are_refused(make):
    with pytest.raises(ValueError):
        make()


GOOD = entry_to_json(Entry(1, 2, 3, 0, EVENTS[0]))


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {},
        {key: value for key, value in GOOD.items() if key != "round"},
        {key: value for key, value in GOOD.items() if key != "multiplier"},
        {key: value for key, value in GOOD.items() if key != "observer"},
        GOOD | {"mechanism": "gausian"},
        GOOD | {"colour": "red"},
        GOOD | {"multiplier": [1]},
        GOOD | {"multiplier": float("nan")},
        GOOD | {"count": 3.0},
        GOOD | {"count": True},
        GOOD | {"round": "1"},
        GOOD | {"adaptive": "yes"},
        GOOD | {"realised": 3},
        GOOD | {"realised": {"mechanism": "gaussian"}},
    ],
)
def test_malformed_entries_raise_value_error(broken):
    with pytest.raises(ValueError):
        entry_from_json(broken)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("events", "numpy scipy torch dp_accounting"),
        ("ledger", "numpy scipy torch dp_accounting"),
        ("gaussian_dp", "numpy scipy torch dp_accounting"),
        ("composition", "scipy torch dp_accounting"),
        ("claimed", "scipy torch dp_accounting"),
        ("calibration", "scipy torch dp_accounting"),
    ],
)
def test_imports_are_light(module, heavy):
    code = f"import sys, fedpriv.privacy.{module}; print([m for m in {heavy.split()} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# --- Noise for a whole planned run, within 1% of the target from below, or a reason in words -----------------------


def gaussians(noise):
    return [Gaussian(threat=CLIENT_TO_SERVER, multiplier=noise / 2, count=30)]


def sampled(noise):
    return [PoissonGaussian(threat=EXAMPLE, multiplier=noise, sampling_rate=0.01, count=500)]


def with_selection(noise):
    return [*gaussians(noise), GumbelTopK(threat=CLIENT_TO_SERVER, k=100, epsilon=0.01, count=30)]


def bits(noise):
    return [RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=1 / noise, dimension=20_000)]


@pytest.mark.parametrize(
    ("plan", "target"),
    [
        *((gaussians, target) for target in (0.01, 0.5, 2.0, 8.0, 100.0, 1e5)),
        *((sampled, target) for target in (0.3, 2.0, 300.0)),
        *((with_selection, target) for target in (2.0, 20.0)),
        *((bits, target) for target in (1.0, 50.0)),
    ],
)
def test_within_one_percent_from_below(plan, target):
    found = calibrate(plan, target, DELTA)
    assert 0.99 * target <= found.epsilon <= target
    assert compose(plan(found.noise_multiplier), DELTA).epsilon == found.epsilon


def test_never_above_the_target():
    for step in range(120):
        target = 0.05 * 1.1**step
        assert 0.99 * target <= calibrate(gaussians, target, DELTA).epsilon <= target


def test_a_leak_cannot_be_calibrated_away():
    def leaking(noise):
        return [*gaussians(noise), NoBound(threat=CLIENT_TO_SERVER, reason="the loss is sent in clear")]

    with pytest.raises(OptionError) as error:
        calibrate(leaking, 2.0, DELTA)
    assert error.value.option == "privacy.target_epsilon"
    assert "no noise level reaches it: the loss is sent in clear" in str(error.value)


def test_what_the_noise_does_not_cover_sets_a_floor():
    floor = compose(with_selection(1e12), DELTA).epsilon
    with pytest.raises(OptionError, match=f"still costs epsilon {floor:.4g}"):
        calibrate(with_selection, 0.9 * floor, DELTA)


def test_a_bound_that_begins_to_hold_at_some_noise_only():
    def trials(noise):
        return [
            Binomial(
                threat=CLIENT_TO_SERVER,
                step=1.0,
                trials=round(noise),
                dimension=1,
                l1=1.0,
                l2=1.0,
                linf=1.0,
                delta=DELTA,
            )
        ]

    found = calibrate(trials, 0.3, DELTA)
    assert found.epsilon <= 0.3 < compose(trials(0.9 * found.noise_multiplier), DELTA).epsilon


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan])
def test_an_impossible_target_is_refused(target):
    with pytest.raises(OptionError):
        calibrate(gaussians, target, DELTA)
