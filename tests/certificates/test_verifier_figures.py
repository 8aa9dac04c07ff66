"""What the verifier makes of every kind of event, beside the product's own accountants; and its Ed25519."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.certificates import verify_certificate as verifier
from fedpriv.common.identities import verified
from fedpriv.privacy.composition import compose
from fedpriv.privacy.event_json import event_to_json
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    MECHANISMS,
    SECURE_SUM,
    ZCDP,
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
)

DELTA = 1e-5
EXAMPLE = Threat("example", "add-or-remove-one", "server")
PUBLIC = Threat("client", "replace-one", "public")


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
    [(replaced(1.1, 0.01), 1000)],
    [(replaced(0.6, 0.3), 5)],
    [(replaced(4.0, 0.9), 30), (Gaussian(threat=EXAMPLE, multiplier=3.0), 4)],
    [(replaced(2.0, 1.0), 10)],
    [(Laplace(threat=CLIENT_TO_SERVER, multiplier=5.0), 10)],
    [(Laplace(threat=CLIENT_TO_SERVER, multiplier=1.0), 1)],
    [(RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.1, dimension=1000), 3)],
    [(RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=2.0), 1)],
    [(UnitCap(threat=CLIENT_TO_SERVER, epsilon=8.0, inside=0.3, delta=1e-9), 5)],
    [(UnitCap(threat=CLIENT_TO_SERVER, epsilon=4.0, inside=0.3), 1)],
    [(ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=0.5, delta=1e-7), 20)],
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
#: Mechanisms without a method here.
UNKNOWN: list[Event] = [
    FixedSizeGaussian(threat=PUBLIC, multiplier=2.0, sample_size=10, population=100),
    PairedQuantisation(threat=CLIENT_TO_SERVER, epsilon=1.0, private_share=0.5),
    Shuffled(threat=PUBLIC, epsilon=0.1, users=10**6, delta=1e-9),
    SkellamSum(threat=SECURE_SUM, variance=900.0, noises=10, dimension=64, l2=6.0, delta=1e-8),
    Binomial(threat=SECURE_SUM, step=0.1, trials=10**6, dimension=8, l1=1.0, l2=1.0, linf=1.0, delta=1e-8),
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
        assert low > 0.9 * product or history[0][0].dimension == 10**7


@pytest.mark.parametrize("event", UNKNOWN, ids=lambda event: event.mechanism)
def test_what_has_no_method_here_is_not_verified(event: Event) -> None:
    with pytest.raises(verifier.Unknown, match=event.mechanism):
        verifier.epsilon([(text(event), 1)], DELTA)


def test_no_mechanism_was_forgotten() -> None:
    tried = {event.mechanism for history in (*EXACT, *BOUNDED) for event, _ in history}
    assert tried | {event.mechanism for event in UNKNOWN} | {NoBound.mechanism} == set(MECHANISMS)


def test_what_has_no_bound_is_infinite() -> None:
    leak = NoBound(threat=CLIENT_TO_SERVER, reason="sent as it is")
    silent = Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.0)
    for event in (leak, silent, RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=math.inf)):
        assert verifier.epsilon([(text(event), 1), (text(EXACT[0][0][0]), 1)], DELTA) == (math.inf, math.inf)
    for change in ({"adjacency": "replace-one"}, {"unit": "client"}):  # who sees the cohort: sampling hides nothing
        flat = event_to_json(poisson(1.0, 0.1)) | change
        del flat["count"]
        assert verifier.epsilon([(verifier.canonical(flat), 1)], DELTA) == (math.inf, math.inf)


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
        low, high = verifier.by_grid([(verifier.gaussian(mu / 5)[0], 25)], delta)
        exact = verifier.by_formula(mu, delta)[0]
        assert low <= exact <= high <= 1.003 * low


def test_the_bound_from_below_counts_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a coarse grid the two bounds are apart, and the truth is between them."""
    monkeypatch.setattr(verifier, "MOST_CELLS", 1 << 13)
    low, high = verifier.by_grid([(verifier.gaussian(0.02)[0], 2500)], DELTA)
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
    for number in range(60):
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
