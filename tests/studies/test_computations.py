"""Figures that are computed: against other formulas, closed forms, brute force, and the mechanisms themselves."""

from __future__ import annotations

import itertools
import math

import making
import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import chi2, norm

from clients.fedcad import FedCADClient
from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.noise import SeededNoise, clip
from fedpriv.studies import computations
from fedpriv.studies.computations import (
    _rise_and_fall,
    adaptive_diff,
    adpfl_constant,
    adpfl_equation8,
    adpfl_sensitivity,
    adpfl_upload,
    agn_theorem,
    budget_ratio,
    compute,
    exact_mean,
    fedcad_release,
    fedcad_variance,
    half_budget,
    least_correlation,
    main,
    nbafl_extreme,
    one_bit,
    partial_laplace,
    shared_bits,
    weight_sum,
    worst_variance,
)

SIGMA, DELTA, GAMMA = 0.3, 1e-5, 0.4


def third_releases(dimension: int, moves: bool, trials: int) -> np.ndarray:
    """y_3 - r_A y_2 of Fed-CAD's own client as published, [trials, d]; r_A: its coefficient on the line without change.
    The lines: 0, 0 or a step of D along the first axis, 0.
    """
    client = making.client(
        FedCADClient, variant="published", noise_multiplier=SIGMA, obsolete_factor=GAMMA, diff=0.5, clip_norm=1.0
    )
    step = torch.zeros(dimension)
    step[0] = 0.5 * moves
    found = []
    for trial in range(trials):
        noise = SeededNoise(trial, int(moves), "third release")
        state, releases = None, []
        for update in (torch.zeros(dimension), step, torch.zeros(dimension)):
            release = client.perturb(update, state, noise)
            state = release.state
            releases.append(release.value.numpy().astype(np.float64))
        found.append(releases)
    values = np.array(found)
    r_a = 0.7 / (0.7**2 + 0.8)  # v_2 = 0.8 and D = 0.3
    return np.asarray(values[:, 2] - r_a * values[:, 1])


def test_the_adaptive_diff_shows_in_the_noise_of_the_mechanism() -> None:
    """The statistic of the proof on real releases: its variance per coordinate on each line, and who is above t."""
    dimension, trials = 2_000, 60
    still, moved = (third_releases(dimension, moves, trials)[:, 1:] for moves in (False, True))
    bound = adaptive_diff(dimension, SIGMA, DELTA, 0.5, GAMMA)
    ratio = still.var() / moved.var()
    assert ratio == pytest.approx(bound["variance_ratio"], rel=0.02)
    assert still.std() == pytest.approx(bound["noise"], rel=0.01)
    wide = bound["noise"] ** 2 / bound["variance_ratio"]
    t = wide * (dimension - 4 * math.sqrt(2 * dimension))
    assert (np.square(moved).sum(1) > 0.99 * t).all() and not (np.square(still).sum(1) > t).any()


def test_the_bound_is_one() -> None:
    """Chernoff's bound lies above the exact tail where that is a number, and the bound grows with the coordinates; at
    the size of a network it is far above Fed-LDP's 257.
    """
    for dimension in (50, 400, 1500):
        found = adaptive_diff(dimension, SIGMA, DELTA, 0.5, GAMMA)
        edge = dimension - 4 * math.sqrt(2 * dimension)
        exact = math.log(chi2.sf(edge, dimension) - DELTA) - chi2.logsf(edge / found["variance_ratio"], dimension)
        assert found["epsilon_lower"] <= max(exact, 0.0) + 1e-9
    assert adaptive_diff(80_202, SIGMA, DELTA, 0.5, GAMMA)["epsilon_lower"] == pytest.approx(3635, abs=1)
    assert adaptive_diff(80_202, SIGMA, DELTA, 0.5, 0.0)["epsilon_lower"] == 0.0  # constant: both lines are alike


@pytest.mark.parametrize("clients", [2, 3, 4])
def test_the_linear_programme_finds_the_least(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least is known in closed form: as many are high as the sum of the chances says, rounded down or up."""
    least: list[tuple[float, float]] = []
    real = computations.linprog

    def spy(cost: np.ndarray, **rest: np.ndarray) -> object:
        found = real(cost, **rest)
        total = sum(rest["b_eq"][:-1])
        low = math.floor(total + 1e-9)
        part = max(total - low, 0.0)
        least.append((found.fun, (1 - part) * math.comb(low, 2) + part * math.comb(low + 1, 2)))
        return found

    monkeypatch.setattr(computations, "linprog", spy)
    found = least_correlation(clients, 1.0, 8)
    assert len(least) == math.comb(5 + clients - 1, clients)
    assert all(one == pytest.approx(other, abs=1e-7) for one, other in least)
    assert (found["pairs_excess"] < 1e-9) is (clients == 2) and found["group_excess"] > 0.1


def test_independent_answers_are_not_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    products = lambda p, bits: sum(a * b for a, b in itertools.combinations(p, 2))  # noqa: E731
    monkeypatch.setattr(computations, "_paired", products)
    assert least_correlation(2, 1.0, 8)["pairs_excess"] > 0.5


@pytest.mark.parametrize("epsilon", [0.25, 1.0, math.log(3), 2.0, 4.0])
def test_the_worst_variance_of_a_pair(epsilon: float) -> None:
    """Half of the independent one from ln 3 on, 4 (e^eps - 1) / (e^eps + 1)^2 of it below."""
    power = math.exp(epsilon)
    expected = 0.5 if epsilon >= math.log(3) else 4 * (power - 1) / (power + 1) ** 2
    assert worst_variance(epsilon)["ratio"] == pytest.approx(expected, abs=2e-5)


def test_half_of_the_budget_is_enough_in_the_mean_and_not_for_every_pair_of_weights() -> None:
    found = half_budget(2.0)
    rng, draws = np.random.default_rng(0), 400_000
    for weights in [(1.0, -1.0), (0.5, 0.5), (-0.9, -0.9)]:  # the laws, drawn
        variances = []
        for epsilon, together in ((1.0, True), (2.0, False)):
            size = 1 / np.tanh(epsilon / 2)
            p = 0.5 + np.array(weights) / (2 * size)
            u, v = rng.random((2, draws))
            high = np.stack([u < p[0], (1 - u if together else v) < p[1]])
            variances.append(float((size * (2 * high - 1)).mean(0).var()))
        assert variances[0] <= 1.02 * found["largest"] and variances[1] <= 1.02 * found["largest_alone"]
        assert variances[0] / variances[1] <= 1.02 * found["ratio"]
    assert found["mean"] < found["mean_alone"] and found["largest"] > found["largest_alone"]
    assert 30 < found["worse"] < 40 and half_budget(0.25)["worse"] == 0


@pytest.mark.parametrize("bits", [0, 1, 4, 8])
def test_a_pair_is_unbiased_for_any_number_of_shared_bits(bits: int) -> None:
    found = exact_mean(1.0, bits)
    assert found["bias"] < 1e-12 and found["lemma_excess"] <= 1 + 1e-9


def test_a_computation_by_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what=worst_variance", "epsilon=4"]) == 0
    assert "ratio = 0.49999" in capsys.readouterr().out
    for wrong, words in (
        (["what=nothing"], "what=nothing: allowed: adaptive_diff, least_correlation"),
        (["what=exact_mean", "epsilon=1"], "needs epsilon, bits"),
        (["what=worst_variance", "epsilon=x"], "could not convert"),
    ):
        with pytest.raises(OptionError, match=words):
            compute(wrong)
    assert main(["what=nothing"]) == 2


def gaussian(mu: float) -> float:
    """The exact epsilon of one Gaussian, by scipy."""

    def slack(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - DELTA)

    return float(brentq(slack, 0.0, 50 * (1 + mu) ** 2))


def test_the_noise_of_consecutive_releases_is_that_of_their_sum() -> None:
    """Of Fed-CAD's constant Diff by matrices: mu_i = s_i z_i + r_i mu_(i-1), as lines 14 to 16 have it."""
    found = fedcad_variance(30)
    assert found["gap"] < 1e-12 and found["largest"] < 1 and found["order"] < 1
    diff, rows = 0.3, [np.eye(12)[0]]
    v = 1.0
    for i in range(1, 12):
        r = (1 - diff) / ((1 - diff) ** 2 + v)
        rows.append(((1 - r) + r * diff) * np.eye(12)[i] + r * rows[-1])
        v = v / ((1 - diff) ** 2 + v)
        stated = (2 * diff - diff**2) / (1 - (1 - diff) ** (2 * (i + 1)))
        assert float(rows[-1] @ rows[-1]) == pytest.approx(stated, rel=1e-12)


def test_a_release_is_unbiased_and_fed_ldps_error_is_that_of_its_noise() -> None:
    found = fedcad_release(30)
    assert 0 <= found["bias"] < 1e-12 and 0 <= found["error"] < 1e-12
    rng, diff = np.random.default_rng(2), 0.3  # V-A by draws: noise on x_1 and on phi, put together again
    alpha, beta = 1 + (1 - diff) ** 2, 1 - diff
    x, z = np.array([0.6, -0.2]), rng.standard_normal((2, 400_000))
    sent = (alpha * x[1] - beta * x[0] + z[1]) / alpha + beta / alpha * (x[0] + z[0])
    assert sent.mean() == pytest.approx(x[1], abs=0.01) and sent.var() == pytest.approx(1 / alpha, rel=0.01)


def test_a_mean_of_clipped_updates_moves_by_two_over_n() -> None:
    for clients in (1, 3, 10):
        assert abs(adpfl_sensitivity(clients)["excess"]) < 1e-12


def test_an_upload_costs_the_price_of_its_gaussian() -> None:
    """Ten clients at epsilon 3: sensitivity 2 C against noise of 2 C/10 times 1.7005."""
    scale = math.sqrt(3 + 2 * math.log(1e5)) / 3
    assert scale == pytest.approx(1.7005, abs=1e-4)
    one = adpfl_upload(3, 10, 1, DELTA)
    assert one["exact"] == pytest.approx(gaussian(10 / scale), rel=1e-6) == pytest.approx(41.6, abs=0.05)
    assert 3 < one["least"] < one["exact"]
    assert adpfl_upload(3, 10, 100, DELTA)["exact"] == pytest.approx(gaussian(100 / scale), rel=1e-6)
    assert adpfl_upload(3, 1, 1, DELTA)["exact"] < 3  # with the sensitivity of one client it is true


def test_equation_8_has_the_clip_norm_once_more() -> None:
    """At C = 1 it is the upload of equation 13, and at C = 4 a fourth of its shift."""
    for share in ("exact", "least"):
        one = adpfl_upload(3, 10, 1, DELTA)[share]
        assert adpfl_equation8(3, 10, 1, DELTA)[share] == one
    scale = math.sqrt(2.4 + 2 * math.log(1e5)) / 2.4
    found = adpfl_equation8(3, 10, 4, DELTA)["least"]
    assert found == pytest.approx(gaussian(10 / (4 * scale)), rel=1e-6) == pytest.approx(5.360, abs=1e-3)
    assert adpfl_equation8(3, 10, 8, DELTA)["least"] < 3


def test_theorem_2s_noise_is_too_little_at_ten() -> None:
    assert adpfl_constant(10, DELTA)["exact"] == pytest.approx(10.518, abs=1e-3)
    assert adpfl_constant(3, DELTA)["exact"] < 3


def test_the_printed_theorem_is_false_and_the_proved_one_is_not() -> None:
    tiny = agn_theorem(1e-6, 0.01, 1000, DELTA)
    assert tiny["printed"] == pytest.approx(13.919, abs=1e-3) and tiny["lower"] > 1e10 < tiny["proved"]
    for noise in (0.05, 0.2, 1.0):
        found = agn_theorem(noise, 0.01, 1000, DELTA)
        assert found["lower"] <= found["logged"] <= found["proved"]
    by_hand = 1000 * (0.99**64 + 64 * 0.01 * 0.99**63) / 63 + math.log(1e5) / 63  # at order 64 nothing else is left
    assert tiny["printed"] == pytest.approx(by_hand, rel=1e-9)


def test_the_lower_bound_is_kept_by_a_server_that_looks() -> None:
    """Its two chances by simulation, at a noise at which both are seen."""
    noise, rate, rounds = 0.2, 0.05, 20
    rng = np.random.default_rng(0)
    there = rng.random((40_000, rounds)) < rate
    noises = noise * rng.standard_normal((2, 40_000, rounds))
    with_, without = (there + noises[0] > 0.5).any(1).mean(), (noises[1] > 0.5).any(1).mean()
    seen = (1 - (1 - rate) ** rounds) * norm.cdf(0.5 / noise)
    assert with_ >= seen - 0.01 and without <= rounds * norm.sf(0.5 / noise) + 0.01
    found = agn_theorem(noise, rate, rounds, DELTA)["lower"]
    assert found == pytest.approx(math.log(seen - DELTA) - math.log(rounds * norm.sf(0.5 / noise)), rel=1e-9)


def test_laplace_noise_on_what_differs_keeps_epsilon() -> None:
    assert partial_laplace(0.5, 7)["largest"] == pytest.approx(0.5)
    assert partial_laplace(0.2, 3)["largest"] == pytest.approx(0.2)


def test_weights_by_losses_sum_to_one() -> None:
    assert 0 <= weight_sum(10)["gap"] < 1e-12


def test_one_bit_keeps_epsilon_and_uses_it() -> None:
    for epsilon in (0.25, 1.0, 4.0):
        assert abs(one_bit(epsilon)["excess"]) < 1e-12
    p = [0.5 + weight / (2 * math.cosh(1 / 2) / math.sinh(1 / 2)) for weight in (-1, 1)]  # equation 2 by hand
    assert math.log(p[1] / p[0]) == pytest.approx(1.0)


def test_the_split_of_the_budget_by_brute_force() -> None:
    shares = np.linspace(0.001, 0.999, 99_901)
    for queries in (8.0, 64.0):
        found = budget_ratio(queries)
        for name, factor in (("printed", queries), ("vectors", 1.0)):
            best = shares[np.argmin((queries / shares) ** 2 + (factor / (1 - shares)) ** 2)]
            assert found[name] == pytest.approx(queries ** (2 / 3) * (1 - best) / best, rel=1e-2)
        assert found["vectors"] == pytest.approx(1.0, rel=1e-4) and found["printed"] == pytest.approx(
            queries ** (2 / 3)
        )


def test_shared_bits_against_draws_of_the_pair() -> None:
    none, four = shared_bits(1, 0), shared_bits(1, 4)
    assert abs(none["magnitude"]) < 1e-12 and none["centre"] == pytest.approx(1)
    assert four["covariance"] < 0 and four["centre"] == pytest.approx(0, abs=1e-12) and 0 < four["gain"] <= 1
    rng = np.random.default_rng(1)  # both weights at the centre: p = 1/2, the largest covariance in absolute value
    u, coins = rng.integers(0, 16, 200_000), rng.random((2, 200_000))
    alice = coins[0] < np.clip(8 - u, 0, 1)
    bob = coins[1] < np.clip(u + 1 - 8, 0, 1)
    assert 4 * (np.mean(alice & bob) - np.mean(alice) * np.mean(bob)) == pytest.approx(-four["magnitude"], abs=0.02)


@pytest.mark.pictures
def test_consecutive_updates_are_counted(pictures: object) -> None:
    found = compute(
        ["what=fedcad_consecutive", "dataset=mnist", f"dataset.root={pictures}", "clients=2", "rounds=3", "seed=0"]
    )
    assert found["cases"] == 4 and 0 <= found["below"] <= 4
    assert found["mean_ratio"] <= found["ratio"]
    assert (found["ratio"] < 1) is (found["below"] == 4)
    assert 0 < found["first"] <= found["peak"] and found["last"] <= found["peak"] and found["peak"] <= found["change"]


@pytest.mark.parametrize(
    ("means", "so"),
    [
        ([1, 4, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1], True),
        ([5, 4, 4, 4, 3, 3, 3, 2, 2, 2, 1, 1], False),  # never rises
        ([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 4, 4], False),  # rises more slowly than it falls
        ([1, 4, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5], False),  # stays
        ([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 6], False),  # rises to its end
    ],
)
def test_a_rise_and_a_fall_are_told(means: list[float], so: bool) -> None:
    spread = np.random.default_rng(0).normal(0, 0.1, (12, 8))
    assert (_rise_and_fall(np.array(means, float)[:, None] + spread) <= 1) is so
    assert _rise_and_fall(np.array(means, float)[:, None] + 300 * spread) > 1  # nothing is sure


def test_a_release_is_compared_with_an_epoch() -> None:
    found = compute(["what=fedcad_overhead", "dataset=mnist", "repeats=2"])
    assert found["overhead"] == pytest.approx(100 * (found["fedcad"] - found["fedldp"]) / found["epoch"])
    assert 0 < found["fedldp"] < found["epoch"]


# --- NbAFL against an example whose numbers have no bound: the proof's steps, tried on real training --------

CLASSES, PIXELS, CLIP = 10, 784, 1.0


def trained(received: torch.Tensor, extreme: bool, label: int = 3, batches: int = 5) -> torch.Tensor:
    """What a client sends, before noise [classes, pixels], after an epoch of NbAFL on zero pictures and, with
    ``extreme``, one long one in the third batch; softmax regression, its gradients by hand from the definition.
    """
    weights, bias = received.double().clone(), torch.zeros(CLASSES, dtype=torch.float64)
    long = torch.zeros(PIXELS, dtype=torch.float64)
    long[100] = 1e9
    for batch in range(batches):
        pictures = torch.zeros(10, PIXELS, dtype=torch.float64)
        labels = torch.arange(10)
        if extreme and batch == 2:
            pictures, labels = torch.cat([pictures, long[None]]), torch.cat([labels, torch.tensor([label])])
        wrong = torch.softmax(pictures @ weights.T + bias, 1) - torch.nn.functional.one_hot(labels, CLASSES)
        bias = bias - 0.1 * wrong.mean(0)
        weights = weights - 0.1 * (wrong.T @ pictures / len(labels) + 0.01 * (weights - received))
    return clip(weights.flatten(), CLIP).reshape(CLASSES, PIXELS)


def rounds_of(total: int, clients: int, noise: float, seed: int) -> tuple[list[bool], list[float]]:
    """For every round of a run with the long example: whether it moved the weights, and how far apart the client's two
    messages would be.
    """
    generator = torch.Generator().manual_seed(seed)
    received = torch.zeros(CLASSES, PIXELS, dtype=torch.float64)
    moving, apart = [], []
    for _ in range(total):
        without, with_it = trained(received, False), trained(received, True)
        at = received[:, 100]
        moving.append(bool(at[3] < at.max()))
        apart.append(float((with_it - without).norm()))
        mean = ((clients - 1) * without + with_it) / clients
        received = mean + noise / math.sqrt(clients) * torch.randn(mean.shape, generator=generator, dtype=torch.float64)
    return moving, apart


def test_the_long_example_moves_the_message_by_the_clip_norm_as_often_as_is_proved() -> None:
    moving, apart = rounds_of(300, 10, 0.808, 7)
    assert not moving[0]  # nothing is larger yet: the proof leaves out the first round
    assert min(length for length, moves in zip(apart, moving, strict=True) if moves) > CLIP * (1 - 1e-6)
    share = nbafl_extreme(10, 1000, 7840, 0.808, 1e-5)["moving_share"]
    assert 0.1 < share < np.mean(moving[1:])


def test_the_bound_is_the_tests_own_on_drawn_sums() -> None:
    """The two laws of the proof's statistic, drawn: no epsilon below the bound fits them."""
    noise, n, trials = 0.808, 6, 400_000
    generator = np.random.default_rng(3)
    sums = generator.normal(0, noise, (trials, n)).sum(1)
    edge = n * CLIP - 3 * noise * math.sqrt(n)
    without, with_it = np.mean(sums > edge), np.mean(sums + n * CLIP > edge)
    drawn = math.log((with_it - 1e-5) / without)
    exact = math.log(norm.cdf(3) - 1e-5) - norm.logsf(math.sqrt(n) / noise - 3)
    assert drawn == pytest.approx(exact, abs=0.15)


def test_more_noise_and_fewer_rounds_show_less() -> None:
    printed = nbafl_extreme(10, 1000, 7840, 0.808, 1e-5)["epsilon_lower"]
    assert printed > 20  # of a claimed 2
    assert nbafl_extreme(10, 100, 7840, 0.808, 1e-5)["epsilon_lower"] < printed
    assert nbafl_extreme(10, 1000, 7840, 80.0, 1e-5)["epsilon_lower"] < 0.01


def test_what_it_cannot_price_is_refused() -> None:
    with pytest.raises(OptionError, match="two rounds or more"):
        compute(["what=nbafl_extreme", "clients=10", "rounds=1", "dimension=7840", "noise=0.808", "delta=1e-5"])
