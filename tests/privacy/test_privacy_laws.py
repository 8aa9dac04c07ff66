"""The laws of single releases against brute force, and against the figures of the papers' pages."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from fedpriv.mechanisms import laws
from fedpriv.privacy.composition import compose, pure_epsilon
from fedpriv.privacy.events import CLIENT_TO_SERVER, NoBound, PairedQuantisation, RandomisedResponse, Shuffled, Threat

MEMBERS = Threat("client", "replace-one", "server+members")
SUM = Threat("client", "replace-one", "secure-sum")
ORDERS = 1 + np.geomspace(1e-3, 1e3, 25)


def enumerated_pair(p_a, p_b, mu, bits):
    """Law of (A, B) written from the page's words: sum over shared u, both coins; [4] as hh, hl, lh, ll."""
    cells = 2**bits
    joint = np.zeros(4)
    for u in range(cells):
        alice, bob = np.clip(p_a * cells - u, 0, 1), np.clip(u + 1 - (1 - p_b) * cells, 0, 1)
        for a_private, b_private in itertools.product((True, False), repeat=2):
            weight = (mu if a_private else 1 - mu) * (mu if b_private else 1 - mu) / cells
            a, b = (p_a if a_private else alice), (p_b if b_private else bob)
            joint += weight * np.array([a * b, a * (1 - b), (1 - a) * b, (1 - a) * (1 - b)])
    return joint


def enumerated_members(p_a, mu, cells):
    """Law of (shared u, A) for an observer who knows u: [2*cells]."""
    shared = np.array([np.clip(p_a * cells - u, 0, 1) for u in range(cells)])
    high = mu * p_a + (1 - mu) * shared
    return np.concatenate([high, 1 - high]) / cells


def hockey_stick(p, q, gamma):
    return np.maximum(p - gamma * q, 0).sum()


@pytest.mark.parametrize("bits", [0, 1, 3, 8])
def test_joint_law_of_a_pair(bits):
    random = np.random.default_rng(bits)
    for _ in range(40):
        p_a, p_b, mu = random.uniform(0, 1, 3)
        weight = 1 - (1 - mu) ** 2
        np.testing.assert_allclose(
            laws.pair_law(p_a, p_b, weight, bits), enumerated_pair(p_a, p_b, mu, bits), atol=1e-12
        )


@pytest.mark.parametrize(
    ("weight", "against_server", "against_members"),
    [(0.1, 3.17, 4.27), (0.25, 2.28, 3.29), (0.5, 1.62, 2.46), (0.75, 1.25, 1.86)],
)
def test_epsilons_of_the_coq_fl_page_at_eps_1(weight, against_server, against_members):
    mu = 1 - math.sqrt(1 - weight)
    pair = PairedQuantisation(threat=CLIENT_TO_SERVER, epsilon=1.0, private_share=mu, bits=16)
    assert pure_epsilon(pair) == pytest.approx(against_server, abs=0.005)
    h, low = math.e / (1 + math.e), 1 / (1 + math.e)
    formula = math.log((weight * h**2 + (1 - weight) * (2 * h - 1)) / (weight * low * h))
    assert pure_epsilon(pair) == pytest.approx(formula, abs=1e-4)
    assert laws.largest_loss(*laws.pair_symmetric_loss(1.0, weight)) == pytest.approx(formula, rel=1e-12)
    members = PairedQuantisation(threat=MEMBERS, epsilon=1.0, private_share=mu)
    assert pure_epsilon(members) == pytest.approx(against_members, abs=0.005)
    assert pure_epsilon(members) == pytest.approx(math.log((1 - mu + mu * h) / (mu * low)), abs=1e-12)
    group = PairedQuantisation(threat=CLIENT_TO_SERVER, epsilon=1.0, private_share=mu, group_size=5)
    assert pure_epsilon(group) == pure_epsilon(members)  # the pair's law is not valid for larger groups


def test_without_shared_or_with_only_private_bits_it_is_randomised_response():
    for share, bits in ((0.3, 0), (1.0, 8)):
        event = PairedQuantisation(threat=CLIENT_TO_SERVER, epsilon=1.0, private_share=share, bits=bits)
        assert pure_epsilon(event) == pytest.approx(1.0, abs=1e-12)


def test_published_pair_is_not_jointly_private():
    event = PairedQuantisation(threat=CLIENT_TO_SERVER, epsilon=1.0, private_share=0.0)
    assert "not jointly private" in event.why_unbounded()
    assert compose([event], 1e-5).epsilon == math.inf
    h, low = math.e / (1 + math.e), 1 / (1 + math.e)
    assert laws.pair_law(low, h, 0.0, None)[0] == 0 < laws.pair_law(h, h, 0.0, None)[0]


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 3.0])
@pytest.mark.parametrize("bits", [1, 2, 5])
def test_worst_laws_dominate_every_pair_of_inputs(epsilon, bits):
    """Brute force over (p_a, p_a', p_b): pure loss, Renyi divergences, hockey-sticks; the bound is also reached."""
    low, high = laws.bit_extremes(epsilon)
    random = np.random.default_rng(bits)
    inputs = [low, high, 0.5, random.uniform(low, high)]
    for weight in (0.05, 0.3, 0.8):
        mu = 1 - math.sqrt(1 - weight)
        worst = laws.pair_against_server(epsilon, weight, bits)
        loss, divergence = laws.largest_loss(*worst), laws.renyi_divergence(*worst, ORDERS)
        first, second = laws.pair_symmetric_loss(epsilon, weight)
        gammas = np.exp(np.linspace(0, loss + 0.5, 12))
        for p_a, other, p_b in itertools.product(inputs, repeat=3):
            p, q = enumerated_pair(p_a, p_b, mu, bits), enumerated_pair(other, p_b, mu, bits)
            assert laws.largest_loss(p, q) <= loss + 1e-9
            assert (laws.renyi_divergence(p, q, ORDERS) <= divergence * (1 + 1e-9) + 1e-9).all()
            for gamma in gammas:
                assert hockey_stick(p, q, gamma) <= hockey_stick(first, second, gamma) + 1e-12
        partners = [low, high, *(k / 2**bits for k in range(2**bits) if low < k / 2**bits < high)]
        extreme = [[enumerated_pair(x, p_b, mu, bits) for p_b in partners] for x in (high, low)]
        assert laws.largest_loss(*np.array(extreme)) == pytest.approx(loss, rel=1e-9)


def test_members_law_dominates_every_number_of_cells():
    low, high = laws.bit_extremes(1.0)
    for mu in (0.05, 0.4):
        first, second = laws.pair_against_members(1.0, mu)
        assert first.sum() == pytest.approx(1) and second.sum() == pytest.approx(1)
        for cells in (2, 3, 5, 64):  # powers of two: shared bits; others: a permutation of a group
            p, q = enumerated_members(high, mu, cells), enumerated_members(low, mu, cells)
            for gamma in np.exp(np.linspace(-4, 4, 17)):
                assert hockey_stick(p, q, gamma) <= hockey_stick(first, second, gamma) + 1e-12


def test_one_direction_of_the_pair_is_no_dominating_pair():
    """The page composes p_b = h with p_a = h against l. Mixing directions over coordinates costs more than that."""
    low, high = laws.bit_extremes(1.0)
    p, q = laws.pair_law(high, high, 0.5, None), laws.pair_law(low, high, 0.5, None)

    def delta(directions, gamma):
        first = second = np.ones(1)
        for forward in directions:
            a, b = (p, q) if forward else (q, p)
            first, second = np.outer(first, a).ravel(), np.outer(second, b).ravel()
        return hockey_stick(first, second, gamma)

    def symmetric(gamma):
        law = laws.pair_symmetric_loss(1.0, 0.5)
        first = second = np.ones(1)
        for _ in range(4):
            first, second = np.outer(first, law[0]).ravel(), np.outer(second, law[1]).ravel()
        return hockey_stick(first, second, gamma)

    gamma = math.exp(4)
    assert delta([True] * 4, gamma) == pytest.approx(0.1363, abs=1e-4)
    assert delta([True, True, True, False], gamma) == pytest.approx(0.1396, abs=1e-4)  # other inputs cost more
    for ones in range(5):
        for gamma in np.exp(np.linspace(0, 7, 15)):
            assert delta([True] * ones + [False] * (4 - ones), gamma) <= symmetric(gamma) + 1e-12


def test_composed_pair_is_above_the_exact_law_and_below_randomised_response_at_joint_epsilon():
    event = PairedQuantisation(threat=CLIENT_TO_SERVER, epsilon=1.0, private_share=0.2, bits=8, dimension=4)
    low, high = laws.bit_extremes(1.0)
    p, q = (laws.pair_law(x, high, event.independent_weight, 8) for x in (high, low))
    worst = 0.0
    for ones in range(5):
        first = second = np.ones(1)
        for index in range(4):
            a, b = (p, q) if index < ones else (q, p)
            first, second = np.outer(first, a).ravel(), np.outer(second, b).ravel()
        worst = max(worst, optimize.brentq(lambda e, a=first, b=second: hockey_stick(a, b, math.exp(e)) - 1e-3, 0, 20))
    joint = RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=pure_epsilon(event) / 4, dimension=4)
    assert worst <= compose([event], 1e-3).epsilon < compose([joint], 1e-3).epsilon


def test_binomial_bound_of_cpsgd():
    assert laws.binomial_epsilon(1.0, 2000, 1, 1.0, 1.0, 1.0, 1e-6) == pytest.approx(0.6375, abs=5e-5)
    outcomes = np.arange(-1, 2002)
    p, q = stats.binom.pmf(outcomes, 2000, 0.5), stats.binom.pmf(outcomes - 1, 2000, 0.5)
    exact = optimize.brentq(lambda e: hockey_stick(p, q, math.exp(e)) - 1e-6, 0, 1)
    assert exact == pytest.approx(0.1683, abs=5e-5)
    assert laws.binomial_epsilon(1.0, 4 * 300, 1, 1.0, 1.0, 1.0, 1e-6) == math.inf  # 23 ln(1e7) = 370.7 > 300
    assert laws.binomial_epsilon(1.0, 4 * 371, 1, 1.0, 1.0, 1.0, 1e-6) < math.inf
    assert laws.binomial_epsilon(1.0, 2000, 1, 1.0, 1.0, 251.0, 1e-6) == math.inf  # 2*Linf/s > v


def test_binomial_sensitivities_cover_coupled_rounding():
    random = np.random.default_rng(0)
    clip, levels, dimension = 1.0, 9, 50
    step = 2 * clip / (levels - 1)
    l1, l2, linf = laws.binomial_sensitivities(clip, step, levels, dimension)
    for _ in range(200):
        x, y = (v * clip / np.linalg.norm(v) for v in random.normal(size=(2, dimension)))
        shared = random.uniform(size=dimension)
        change = (np.floor(x / step + shared) - np.floor(y / step + shared)) * step
        assert np.abs(change).sum() <= l1 and np.linalg.norm(change) <= l2 and np.abs(change).max() <= linf


def shuffled_exactly(epsilon, users, delta):
    """epsilon of the sum of ``users`` randomised responses, all others answering 0."""
    low, high = laws.bit_extremes(epsilon)
    others = stats.binom.pmf(np.arange(users), users - 1, low)
    one = np.convolve(others, [low, high])
    zero = np.convolve(others, [high, low])
    worst = max(hockey_stick(one, zero, 1.0), hockey_stick(zero, one, 1.0))
    if worst <= delta:
        return 0.0
    return optimize.brentq(
        lambda e: max(hockey_stick(one, zero, math.exp(e)), hockey_stick(zero, one, math.exp(e))) - delta, 0, epsilon
    )


def test_shuffling_amplifies_only_where_its_condition_holds():
    assert laws.shuffled_epsilon(1.0, 530, 1e-5) is None
    assert laws.shuffled_epsilon(1.0, 531, 1e-5) is not None
    assert laws.shuffled_epsilon(0.1, 100, 1e-5) is None
    for epsilon, users, delta in ((1.0, 10_000, 1e-5), (0.5, 2_000, 1e-6), (2.0, 100_000, 1e-6)):
        bound = laws.shuffled_epsilon(epsilon, users, delta)
        assert shuffled_exactly(epsilon, users, delta) <= bound < epsilon
    weak = Shuffled(threat=SUM, epsilon=1.0, users=530, delta=1e-5, dimension=3)
    assert pure_epsilon(weak) == 3.0  # no amplification: its own epsilon, and no delta used up
    assert compose([weak], 0.0).epsilon == 3.0
    strong = Shuffled(threat=SUM, epsilon=1.0, users=10_000, delta=1e-6, dimension=3)
    assert pure_epsilon(strong) == pytest.approx(3 * laws.shuffled_epsilon(1.0, 10_000, 1e-6))
    assert compose([strong], 1e-5).epsilon <= pure_epsilon(strong)
    assert compose([strong], 2e-6).epsilon == math.inf  # three coordinates use up 3e-6


def test_no_bound_says_why():
    assert compose([NoBound(threat=SUM, reason="a loss in clear")], 0.1).reasons == ("a loss in clear",)
