"""What the verifier makes of every kind of event, beside the product's own accountants; and its Ed25519."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from scipy import special, stats

from fedpriv.certificates import verify_certificate as verifier
from fedpriv.common.identities import verified
from fedpriv.mechanisms.laws import binomial_sensitivities
from fedpriv.privacy.composition import compose
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    MECHANISMS,
    SECURE_SUM,
    ZCDP,
    AllocatedGaussian,
    ApproximateDP,
    Binomial,
    DiscreteGaussianSum,
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
    event_from_json,
    event_to_json,
)

DELTA = 1e-5
EXAMPLE = Threat("example", "add-or-remove-one", "server")
PUBLIC = Threat("client", "replace-one", "public")
MEMBERS = Threat("client", "replace-one", "server+members")
ZEROED = Threat("client", "zero-out", "public")


def poisson(multiplier: float, rate: float) -> PoissonGaussian:
    return PoissonGaussian(threat=EXAMPLE, multiplier=multiplier, sampling_rate=rate)


def replaced(multiplier: float, rate: float) -> ReplacedGaussian:
    return ReplacedGaussian(threat=EXAMPLE, multiplier=multiplier, sampling_rate=rate)


#: Histories whose epsilon the verifier computes from below and from above; both are close.
EXACT: list[list[tuple[Event, int]]] = [
    [(Gaussian(threat=CLIENT_TO_SERVER, multiplier=2.0), 30)],
    [(Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.1), 100)],
    [(Gaussian(threat=CLIENT_TO_SERVER, multiplier=80.0), 3), (Gaussian(threat=CLIENT_TO_SERVER, multiplier=7.0), 1)],
    [(poisson(1.1, 0.01), 1000)],
    [(poisson(2.0, 0.5), 20)],
    [(poisson(1.1, 0.01), 200), (poisson(1.5, 0.02), 100), (Gaussian(threat=EXAMPLE, multiplier=3.0), 4)],
    [(poisson(0.5, 0.1), 1000)],
    [(replaced(1.1, 0.01), 1000)],
    [(replaced(0.6, 0.3), 5)],
    [(replaced(4.0, 0.9), 30), (Gaussian(threat=EXAMPLE, multiplier=3.0), 4)],
    [(replaced(2.0, 1.0), 10)],
    [(FixedSizeGaussian(threat=PUBLIC, multiplier=1.0, sample_size=10, population=10), 3)],
    [(Laplace(threat=CLIENT_TO_SERVER, multiplier=5.0), 10)],
    [(Laplace(threat=CLIENT_TO_SERVER, multiplier=1.0), 1)],
    [(RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.1, dimension=1000), 3)],
    [(RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=2.0), 1)],
    [(UnitCap(threat=CLIENT_TO_SERVER, epsilon=8.0, inside=0.3, delta=1e-9), 5)],
    [(UnitCap(threat=CLIENT_TO_SERVER, epsilon=4.0, inside=0.3), 1)],
    [(ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=0.5, delta=1e-7), 20)],
    [(PairedQuantisation(threat=CLIENT_TO_SERVER, epsilon=1.0, private_share=0.5), 1)],
    [(PairedQuantisation(threat=CLIENT_TO_SERVER, epsilon=0.5, private_share=0.0, bits=0, dimension=20), 3)],
]
#: Known by the theorem's bound; the discrete Gaussian has a bound from below as well.
BOUNDED: list[list[tuple[Event, int]]] = [
    [(ZCDP(threat=CLIENT_TO_SERVER, rho=0.02), 20)],
    [(GumbelTopK(threat=CLIENT_TO_SERVER, k=10, epsilon=0.1), 20)],
    [(DiscreteGaussianSum(threat=SECURE_SUM, sigma=30.0, noises=10, dimension=8192, l2=60.0), 20)],
    [(DiscreteGaussianSum(threat=SECURE_SUM, sigma=1.0, noises=10, dimension=100, l2=1.0), 5)],
    [(DiscreteGaussianSum(threat=SECURE_SUM, sigma=0.9, noises=5, dimension=10**7, l2=1.0), 5)],  # tau counts
    [
        (DiscreteGaussianSum(threat=SECURE_SUM, sigma=50.0, noises=1, dimension=64, l2=60.0), 2),
        (Gaussian(threat=SECURE_SUM, multiplier=3.0), 2),
    ],
]


def paired(threat: Threat, epsilon: float, share: float, **more: int) -> PairedQuantisation:
    return PairedQuantisation(threat=threat, epsilon=epsilon, private_share=share, **more)


def skellam(variance: float, noises: int, dimension: int, l2: float) -> SkellamSum:
    return SkellamSum(threat=SECURE_SUM, variance=variance, noises=noises, dimension=dimension, l2=l2, delta=1e-8)


def cpsgd(step: float, trials: int, dimension: int, distance: float, levels: int = 16) -> Binomial:
    """As `fedpriv.privacy.sum_grid` books it."""
    l1, l2, linf = binomial_sensitivities(distance / 2, step, levels, dimension)
    given = {"step": step, "trials": trials, "dimension": dimension, "l1": l1, "l2": l2, "linf": linf}
    return Binomial(threat=SECURE_SUM, delta=1e-8, distance=distance, **given)  # type: ignore[arg-type]


def fixed_size(multiplier: float, sample: int, population: int) -> FixedSizeGaussian:
    return FixedSizeGaussian(threat=PUBLIC, multiplier=multiplier, sample_size=sample, population=population)


def shuffled(epsilon: float, users: int, dimension: int) -> Shuffled:
    return Shuffled(threat=PUBLIC, epsilon=epsilon, users=users, delta=1e-10, dimension=dimension)


#: Bits and whole numbers that have a bound of their own from above, and the exact law of one coordinate from below;
#: how far the product's may be above.
WHOLE: list[tuple[float, list[tuple[Event, int]]]] = [
    (0.01, [(paired(CLIENT_TO_SERVER, 1.0, 0.5), 100)]),
    (0.01, [(paired(CLIENT_TO_SERVER, 0.05, 0.3, dimension=1000), 3)]),
    (0.06, [(paired(CLIENT_TO_SERVER, 0.3, 0.5, bits=3, dimension=20), 3)]),  # the product's holds for every number
    (0.01, [(paired(MEMBERS, 0.5, 0.5, dimension=20), 3)]),
    (0.01, [(paired(CLIENT_TO_SERVER, 0.5, 0.5, dimension=20, group_size=4), 3)]),
    (0.01, [(skellam(900.0, 10, 64, 30.0), 20)]),
    (0.01, [(skellam(1e6, 10, 8192, 3000.0), 5)]),
    (0.01, [(skellam(900.0, 10, 64, 300.0), 1)]),  # the best order is below 2
    (0.01, [(skellam(900.0, 10, 64, 900.0), 1)]),
    (0.02, [(skellam(900.0, 10, 7850, 2000.0), 3)]),
    (0.01, [(skellam(100.0, 10, 512, 3.0), 10), (Gaussian(threat=SECURE_SUM, multiplier=5.0), 3)]),
    (0.01, [(cpsgd(0.05, 10**5, 8192, 2.0), 5)]),  # rounding costs more than the distance
    (0.09, [(cpsgd(0.1, 10**5, 64, 1.0), 5)]),
    (0.35, [(cpsgd(0.5, 20_000, 16, 2.0, 8), 2)]),  # few long steps: the product's is a bound for all
]
#: Samples of a fixed size, whose bound in the product is of Renyi divergences, and shuffled bits.
AMPLIFIED: list[tuple[float, list[tuple[Event, int]]]] = [
    (0.7, [(fixed_size(2.0, 10, 100), 1)]),
    (1.2, [(fixed_size(2.0, 10, 100), 100)]),
    (0.9, [(fixed_size(5.0, 25, 50), 10)]),
    (0.01, [(shuffled(0.1, 10**6, 1), 1)]),
    (0.01, [(shuffled(1.0, 10**5, 10), 3)]),
    (0.01, [(shuffled(1.0, 100, 1), 3)]),  # too few: nothing is amplified
    (0.01, [(shuffled(0.5, 10**6, 785), 1), (Gaussian(threat=PUBLIC, multiplier=5.0), 1)]),
]


def allocated(multiplier: float, rounds: int, released: int = 0) -> AllocatedGaussian:
    return AllocatedGaussian(threat=ZEROED, multiplier=multiplier, rounds=rounds, released=released)


#: Passes in which everybody takes part in one secret round: by sums of lognormals on another grid than the product's.
PASSES: list[list[tuple[Event, int]]] = [
    [(allocated(1.0, 10), 1)],
    [(allocated(1.0, 100), 5)],
    [(allocated(1.0, 2), 1)],
    [(allocated(4.0, 1000), 2)],
    [(allocated(2.0, 30, 12), 1), (Gaussian(threat=ZEROED, multiplier=8.0), 2)],
    [(allocated(3.0, 1), 2)],
]


def text(event: Event) -> str:
    flat = event_to_json(event)
    del flat["count"]
    return verifier.canonical(flat)


def both(history: list[tuple[Event, int]], delta: float = DELTA) -> tuple[float, float, float]:
    """(the verifier's epsilon from below, from above, the product's)."""
    low, high = verifier.epsilon([(text(event), number) for event, number in history], delta)
    product = compose([replace(event, count=number) for event, number in history], delta).epsilon
    return low, high, product


def named(history: list[tuple[Event, int]]) -> str:
    return "+".join(f"{number}{event.mechanism}" for event, number in history)


@pytest.mark.parametrize("history", EXACT, ids=named)
def test_another_method_gives_the_same_epsilon(history: list[tuple[Event, int]]) -> None:
    low, high, product = both(history)
    assert low * (1 - 1e-6) <= product <= high * 1.01 and high <= 1.01 * low
    assert product >= high * 0.99


@pytest.mark.parametrize("history", BOUNDED, ids=named)
def test_a_theorem_evaluated_again_gives_the_same_epsilon(history: list[tuple[Event, int]]) -> None:
    low, high, product = both(history)
    assert high * 0.999 <= product <= high * 1.01 and low <= product
    if history[0][0].mechanism == "discrete_gaussian_sum":
        assert low > 0.98 * product or history[0][0].sigma <= 1


@pytest.mark.parametrize(
    ("apart", "history"), WHOLE + AMPLIFIED, ids=lambda given: given if type(given) is float else named(given)
)
def test_bits_and_whole_numbers_have_a_bound_of_another_proof(apart: float, history: list[tuple[Event, int]]) -> None:
    low, high, product = both(history)
    assert high * 0.99 <= product <= high * (1 + apart) and 0 < low <= product


@pytest.mark.parametrize("history", PASSES, ids=named)
def test_passes_cost_the_same_on_another_grid(history: list[tuple[Event, int]]) -> None:
    low, high, product = both(history)
    assert high == pytest.approx(product, rel=1e-3) and low <= product * (1 + 1e-6)


@pytest.mark.parametrize("released", [1, 2])
def test_a_passes_law_is_above_the_exact_one(released: int) -> None:
    """Of two rounds, by quadrature of E (R - c)_+ and E (1 - c R)_+ over two normal numbers."""
    m, x = 0.8, np.linspace(-9, 9, 3001)
    weights, y = stats.norm.pdf(x) * (x[1] - x[0]), np.exp(m * x - m * m / 2)
    ratio = (y[:, None] + y[None, :]) / 2 if released == 2 else (1 + y[:, None] + 0 * x[None, :]) / 2
    for law, way in zip(verifier.allocated_law(1 / m, 2, released), (1, -1), strict=True):
        for at in (0.05, 0.3, 0.8, 1.2):
            c = math.exp(at)
            exact = weights @ np.maximum(ratio - c if way > 0 else 1 - c * ratio, 0) @ weights
            above, below = (float(side) for side in law[2](np.array(at)))
            assert exact * 0.9998 <= above - c * below <= exact * 1.002 + 1e-9


def test_what_a_passes_grid_cuts_off_is_a_loss_without_bound() -> None:
    """All mass is somewhere, though the largest of the lognormal numbers were cut."""
    forward, back = verifier.allocated_law(0.6, 20, 20)
    assert forward[2](-600.0)[0] >= 1 and back[2](-600.0)[0] >= 1 and forward[2](1e9)[0] > 1e-9


def test_too_little_noise_for_a_passes_grid_is_said() -> None:
    with pytest.raises(verifier.Unknown, match="too little noise for the grid"):
        verifier.epsilon([(text(allocated(0.3, 10)), 1)], DELTA)


def test_shifts_and_shares_of_delta_are_paid() -> None:
    few = DiscreteGaussianSum(threat=SECURE_SUM, sigma=1.0, noises=5, dimension=9, l2=3.0)
    many = SkellamSum(threat=SECURE_SUM, variance=4e4, noises=4, dimension=9, l2=300.0, delta=0.05 * DELTA)
    near = [verifier.cost(text(event)).near for event in (few, many)]
    square, shift, share = (sum(part) for part in zip(*near, strict=True))
    assert near[0][1] > 0.1 and share == 0.05 * DELTA
    wanted = shift + verifier.by_formula(math.sqrt(square), 0.95 * DELTA * math.exp(-shift))[1]
    assert verifier.epsilon([(text(few), 1), (text(many), 1)], DELTA)[1] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("more", [[], [(Laplace(threat=SECURE_SUM, multiplier=9.0), 2)]], ids=["alone", "laplace"])
@pytest.mark.parametrize(
    "event",
    [
        DiscreteGaussianSum(threat=SECURE_SUM, sigma=1e5, noises=10, dimension=64, l2=1e5),
        SkellamSum(threat=SECURE_SUM, variance=1e12, noises=10, dimension=64, l2=1e6, delta=1e-8),
    ],
    ids=lambda event: event.mechanism,
)
def test_noise_too_wide_for_an_exact_law_is_no_free_release(event: Event, more: list[tuple[Event, int]]) -> None:
    assert verifier.cost(text(event)).floor() is None
    _, high, product = both([(event, 5), *more])
    assert product > 2.9 and high == pytest.approx(product, rel=0.01)


def test_what_has_no_method_here_is_not_verified() -> None:
    for flat in ({"mechanism": "of_tomorrow"}, {"mechanism": "gaussian", "multiplier": 1.0, "more": 1}):
        with pytest.raises(ValueError, match=r"of_tomorrow|more"):
            verifier.epsilon([(verifier.canonical(flat | vars(CLIENT_TO_SERVER)), 1)], DELTA)


def test_no_mechanism_was_forgotten() -> None:
    bounded = [*EXACT, *BOUNDED, *PASSES, *(one for _, one in WHOLE + AMPLIFIED)]
    tried = {event.mechanism for history in bounded for event, _ in history}
    assert tried | {NoBound.mechanism} == set(MECHANISMS) == set(verifier.KNOWN)


def test_what_has_no_bound_is_infinite() -> None:
    leak = NoBound(threat=CLIENT_TO_SERVER, reason="sent as it is")
    silent = Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.0)
    for event in (leak, silent, RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=math.inf)):
        assert verifier.epsilon([(text(event), 1), (text(EXACT[0][0][0]), 1)], DELTA) == (math.inf, math.inf)
    seen = {"unit": "client", "observer": "server"}  # who sees the cohort: sampling and shuffling hide nothing
    for event, change in (
        (poisson(1.0, 0.1), {"adjacency": "replace-one"}),
        (poisson(1.0, 0.1), seen),
        (fixed_size(1.0, 2, 20), {"adjacency": "add-or-remove-one"}),
        (fixed_size(1.0, 2, 20), seen),
        (fixed_size(1.0, 20, 20), {"sample_size": 21}),
        (shuffled(0.1, 10**6, 1), seen),
    ):
        flat = event_to_json(event) | change
        del flat["count"]
        with pytest.raises(ValueError, match="no such"):
            verifier.epsilon([(verifier.canonical(flat), 1)], DELTA)
        with pytest.raises(ValueError):
            event_from_json(flat)


def test_rounding_below_zero_is_no_probability() -> None:
    """One cell of this grid was negative by rounding, and the sum's ends had no logarithm."""
    history: list[tuple[Event, int]] = [(RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.27928001513245526), 10)]
    low, high, product = both(history, 4.593993910267788e-08)
    assert 0 < low <= product <= high * 1.01 and high <= 1.01 * low


@pytest.mark.parametrize("number", [1, 3])
def test_few_steps_are_verified_though_one_direction_costs_next_to_nothing(number: int) -> None:
    low, high, product = both([(poisson(1.0, 0.01), number)])
    assert low <= product <= high * 1.01 and high <= 1.01 * low and product >= high * 0.99


@pytest.mark.parametrize("multiplier", [1e-4, 1e7])
def test_a_sample_beyond_the_grid_is_not_verified_and_not_false(multiplier: float) -> None:
    """Its epsilon lies below the unsampled Gaussian's, which is no bound from below."""
    with pytest.raises(verifier.Unknown, match="sampled noise"):
        verifier.epsilon([(text(poisson(multiplier, 1e-9)), 1)], DELTA)
    with pytest.raises(verifier.Unknown, match="sampled noise"):
        verifier.epsilon([(text(replaced(multiplier, 1e-9)), 1)], DELTA)


@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_laws_on_a_grid_agree_with_the_closed_form(delta: float) -> None:
    """Gaussians have both: the bounds from the grid enclose the formula's."""
    for mu in (0.05, 0.7, 4.0):
        low, high = verifier.by_grid([(verifier.gaussian_law(mu / 5)[0], 25)], delta)
        exact = verifier.by_formula(mu, delta)[0]
        assert low <= exact <= high <= 1.003 * low


def test_the_bound_from_below_counts_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a coarse grid the two bounds are apart, and the truth is between them."""
    monkeypatch.setattr(verifier, "MOST_CELLS", 1 << 13)
    low, high = verifier.by_grid([(verifier.gaussian_law(0.02)[0], 2500)], DELTA)
    exact = verifier.by_formula(1.0, DELTA)[0]
    assert low < exact < high and high > 1.01 * low


def test_over_clients_the_largest_counts() -> None:
    steps, other = text(poisson(1.1, 0.01)), text(Gaussian(threat=EXAMPLE, multiplier=1.0))
    few, many, alone = frozenset({(steps, 3)}), frozenset({(steps, 50)}), frozenset({(other, 2)})
    assert verifier.worst({few, many}, DELTA) == verifier.epsilon(many, DELTA)
    assert verifier.worst({few, alone, frozenset({(other, 1)})}, DELTA) == verifier.epsilon(alone, DELTA)
    weak = frozenset({(text(poisson(0.6, 0.1)), 10)})  # fewer releases, and dearer: neither is among the other's
    assert verifier.worst({many, weak}, DELTA) == verifier.epsilon(weak, DELTA) > verifier.epsilon(many, DELTA)
    assert verifier.worst({frozenset()}, DELTA) == verifier.worst(set(), DELTA) == (0.0, 0.0)


def test_signatures_are_those_of_the_library() -> None:
    rng = random.Random(1)
    for number in range(24):
        private = Ed25519PrivateKey.from_private_bytes(rng.randbytes(32))
        public, message = private.public_key().public_bytes_raw(), rng.randbytes(number).hex()
        mark = bytearray(private.sign(message.encode()))
        if number % 3 == 1:
            mark[rng.randrange(64)] ^= 1 << rng.randrange(8)
        if number % 3 == 2:
            message += "x"
        expected = verified(public, message.encode(), bytes(mark))
        assert verifier.signed_by(public.hex(), message, bytes(mark).hex()) is expected is (number % 3 == 0)


def test_signatures_that_have_a_second_form_or_no_owner_are_refused() -> None:
    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    public, mark = private.public_key().public_bytes_raw(), private.sign(b"text")
    assert verifier.signed_by(public.hex(), "text", mark.hex())
    scalar = int.from_bytes(mark[32:], "little") + verifier.ORDER
    assert not verifier.signed_by(public.hex(), "text", (mark[:32] + scalar.to_bytes(32, "little")).hex())
    for weak in (1, 0, verifier.P - 1, verifier.P + 1):  # small order, and y beyond the field
        key = weak.to_bytes(32, "little").hex()
        assert not verifier.signed_by(key, "text", (bytes([1]) + bytes(63)).hex())
    for odd in ("", "zz", public.hex().upper(), None, 3, ["x"]):
        assert not verifier.signed_by(odd, "text", mark.hex()) and not verifier.signed_by(public.hex(), "text", odd)


# --- the bounds of bits and whole numbers, against laws that are written down plainly


def parts(event: Event) -> dict[str, object]:
    return vars(verifier.cost(text(event)))


def divergence(p: NDArray[np.float64], q: NDArray[np.float64], order: float) -> float:
    """Renyi's, of laws that are positive in the same places."""
    kept = p > 0
    return float(special.logsumexp((order - 1) * np.log(p[kept] / q[kept]), b=p[kept])) / (order - 1)


def over(p: NDArray[np.float64], q: NDArray[np.float64], epsilon: float) -> float:
    """The hockey-stick divergence."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def bits_of_a_pair(p: float, r: float, mu: float, bits: int) -> NDArray[np.float64]:
    """Of both uniforms' cells, of what is private and of both bits: summed cell by cell."""
    cells, found = 2**bits, np.zeros(4)
    for cell in range(cells):
        one = mu * p + (1 - mu) * min(max(p * cells - cell, 0), 1)
        shared_one, shared_other = min(max(p * cells - cell, 0), 1), 1 - min(max((1 - r) * cells - cell, 0), 1)
        assert 0 <= one <= 1
        for a, b, weight in ((shared_one, shared_other, (1 - mu) ** 2), (p, r, 1 - (1 - mu) ** 2)):
            found += weight / cells * np.array([a * b, a * (1 - b), (1 - a) * b, (1 - a) * (1 - b)])
    return found


@pytest.mark.parametrize("bits", [1, 2, 5])
def test_a_pairs_law_dominates_every_pair_of_inputs(bits: int) -> None:
    rng = np.random.default_rng(bits)
    for epsilon, mu in ((0.3, 0.5), (2.0, 0.1), (1.0, 0.9)):
        low, high = special.expit([-epsilon, epsilon])
        (least, most, tails) = parts(paired(CLIENT_TO_SERVER, epsilon, mu, bits=bits))["laws"][0]  # type: ignore[index]
        for _ in range(20):
            p, q, r = rng.uniform(low, high, 3)
            p, q, r = (rng.choice([value, low, high]) for value in (p, q, r))
            first, second = bits_of_a_pair(p, r, mu, bits), bits_of_a_pair(q, r, mu, bits)
            for at in rng.uniform(least, most, 5):
                above, below = (float(side) for side in tails(np.array(at)))
                assert over(first, second, at) <= above - math.exp(at) * below + 1e-12


def skellam_bound(event: SkellamSum, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    known = parts(event)
    curve: Callable[..., NDArray[np.float64]] = known["curve"]  # type: ignore[assignment]
    return known["rho"] * orders + curve(orders - 1)  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize(("variance", "shift"), [(3.0, 1), (3.0, 4), (10.0, 2), (400.0, 20), (400.0, 3), (400.0, 90)])
def test_skellams_bound_holds_for_the_exact_law(variance: float, shift: int) -> None:
    reach = int(14 * math.sqrt(variance)) + 30 + shift
    law = special.ive(np.abs(np.arange(-reach, reach + 1)), variance)
    orders = np.array([1.003, 1.1, 1.5, 2.0, 2.5, 3.0, 5.0, 8.3, 12.0])
    exact = np.array([divergence(law[shift:], law[:-shift], order) for order in orders])
    bound = skellam_bound(skellam(variance, 1, 1, float(shift)), orders)
    assert (exact <= bound * (1 + 1e-9)).all()
    assert variance < 400 or shift > 20 or (bound < 1.08 * exact)[1:].all()


@pytest.mark.parametrize("variance", [3.0, 40.0])
def test_skellams_bound_holds_for_many_coordinates(variance: float) -> None:
    """Of all ways to divide a squared distance of 12 among whole numbers."""
    law = special.ive(np.abs(np.arange(-90, 91)), variance)
    orders = np.array([1.01, 1.2, 1.5, 1.9, 2.0, 2.3, 6.0])
    moved = {v: np.array([divergence(law[v:], law[:-v], order) for order in orders]) for v in (1, 2, 3)}
    for ones, twos, threes in ((12, 0, 0), (8, 1, 0), (4, 2, 0), (0, 3, 0), (3, 0, 1)):
        total = ones * moved[1] + twos * moved[2] + threes * moved[3]
        assert (total <= skellam_bound(skellam(variance, 1, 12, 12**0.5), orders) * (1 + 1e-9)).all()


@pytest.mark.parametrize("variance", [3.0, 40.0])
def test_every_coordinate_pays_for_what_lies_between_whole_numbers(variance: float) -> None:
    """At most 12 coordinates move by a squared distance of 12."""
    law = np.log(special.ive(np.abs(np.arange(-90, 91)), variance))
    c, shares = -math.log1p(-1 / math.sqrt(variance**2 - 1)), np.linspace(0, 1, 3001)
    between = [c * u * (1 - u) / 2 + special.logsumexp((1 - u) * law[:-1] + u * law[1:]) for u in shares]
    for dimension, most in ((5, 5), (12, 12), (1000, 12)):
        curve: Callable[..., float] = parts(skellam(variance, 1, dimension, 12**0.5))["curve"]  # type: ignore[assignment]
        assert max(between) * most <= 0.3 * curve(0.3) <= (max(between) + c / 8000) * most + 1e-9


@pytest.mark.parametrize("variance", [3.0, 7.5, 60.0, 1e4])
def test_skellams_second_differences_are_what_the_bound_rests_on(variance: float) -> None:
    with mpmath.workdps(60):
        at = [*range(40), *(int(variance**0.5 * 2**n) for n in range(9))]
        log = {x: mpmath.log(mpmath.besseli(x, variance)) for near in at for x in (abs(near - 1), near, near + 1)}
        most = max(2 * log[x] - log[abs(x - 1)] - log[x + 1] for x in at)
        assert 0 < most <= -mpmath.log1p(-1 / mpmath.sqrt(mpmath.mpf(variance) ** 2 - 1))


def test_rounded_binomials_cost_no_more_than_is_said() -> None:
    """Random vectors a distance apart, rounded with the same uniforms: the moments of all coordinates, multiplied."""
    rng, event = np.random.default_rng(0), cpsgd(0.5, 2000, 6, 2.0, 8)
    reach = math.sqrt(1000 * math.log(2 * 6 / 1e-8))
    z = np.arange(2001)
    law = stats.binom.pmf(z, 2000, 0.5)
    law[np.abs(z - 1000) > reach] = 0
    full = stats.binom.pmf(z, 2000, 0.5)
    curve: Callable[..., NDArray[np.float64]] = parts(event)["curve"]  # type: ignore[assignment]
    closest = 0.0
    for order in (1.5, 3.0, 10.0, 30.0):
        moved = [divergence(law[: 2001 - v] if v else law, full[v:], order) * (order - 1) for v in range(8)]
        bound = float(curve(np.array([order - 1.0]))[0]) * (order - 1)
        for number in range(300):
            apart = np.abs(rng.normal(size=6)) ** rng.choice([0.01, 1, 3])
            if number < 6:
                apart = (np.arange(6) < number + 1).astype(float)
            apart *= 4 / np.linalg.norm(apart)  # 2 is 4 steps
            whole = np.floor(apart).astype(int)
            share = apart - whole
            total = sum(
                np.log((1 - f) * math.exp(moved[n]) + f * math.exp(moved[n + 1]))
                for n, f in zip(whole, share, strict=True)
            )
            assert total <= bound * (1 + 1e-9)
            closest = max(closest, total / bound)
    assert closest > 0.98


def test_the_binomials_window_is_paid_for() -> None:
    assert parts(cpsgd(0.1, 10**5, 64, 1.0))["share"] == 1e-8
    few = cpsgd(0.1, 100, 64, 1.0)
    assert verifier.cost(text(few)) is None and few.why_unbounded()


def test_bits_that_hide_nothing_have_no_bound() -> None:
    for event in (paired(CLIENT_TO_SERVER, 1.0, 0.0), paired(CLIENT_TO_SERVER, 21.0, 0.5)):
        assert verifier.cost(text(event)) is None and event.why_unbounded()


@pytest.mark.parametrize(("variance", "dimension", "l2"), [(30.0, 2, 4.0), (50.0, 10_000, 5.0), (8.0, 100, 1.5)])
def test_skellams_bound_is_below_the_published_theorem(variance: float, dimension: int, l2: float) -> None:
    """The bound of Agarwal, Kairouz and Liu (NeurIPS 2021), as their code has it: it knows whole orders alone. At the
    largest orders it is the smaller one.
    """
    l1, orders = min(dimension**0.5 * l2, l2**2), np.array([2.0, 3.0, 7.0])
    more = np.minimum(((2 * orders - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    theorem = orders * l2**2 / (2 * variance) + more
    bound = skellam_bound(skellam(variance, 1, dimension, l2), orders)
    assert (bound <= theorem).all() and (bound >= orders * l2**2 / (2 * variance)).all()


def test_a_fixed_size_samples_law_dominates_every_pair_of_data_sets() -> None:
    """Four rows in [-1, 1], of which two are drawn; one row is replaced, and the sum moves by 2 at most."""
    rng, grid, sigma = np.random.default_rng(0), np.linspace(-14, 14, 4001), 1.3
    (least, most, tails) = verifier.fixed_size_law(sigma / 2, 0.5)[0]

    def law(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        found = sum(np.exp(-((grid - a - b) ** 2) / (2 * sigma**2)) for a, b in itertools.combinations(rows, 2))
        return np.asarray(found / found.sum())

    closest = -1.0
    for number in range(60):
        rows = rng.uniform(-1, 1, 4) if number > 3 else np.array([1.0, -1, -1, -1]) * (-1) ** number
        other = rows.copy()
        other[0] = -rows[0] if number < 4 else rng.choice([rng.uniform(-1, 1), -np.sign(rows[0])])
        first, second = law(rows), law(other)
        for at in np.linspace(least, most, 41)[1:-1]:
            above, below = (float(side) for side in tails(np.array(at)))
            apart = over(first, second, at) - (above - math.exp(at) * below)
            assert apart <= 2e-6
            closest = max(closest, apart) if 0 < at < 1 else closest
    assert closest > -1e-4  # and some pair reaches it


def test_shuffled_bits_from_below_are_the_counts_law() -> None:
    assert parts(shuffled(0.7, 10**5, 30))["share"] == 30 * 1e-10 and parts(shuffled(0.7, 300, 30))["share"] == 0
    event = shuffled(0.7, 300, 1)
    (_, _, tails) = parts(event)["floor"]()[0]  # type: ignore[operator]
    low, high = special.expit([-0.7, 0.7])
    others = stats.binom.pmf(np.arange(300), 299, low)
    first, second = (np.convolve(others, [1 - p, p]) for p in (high, low))
    for at in (-0.05, 0.0, 0.02, 0.1):
        above, below = (float(side) for side in tails(np.array(at)))
        assert over(first, second, at) == pytest.approx(above - math.exp(at) * below, abs=1e-10)
