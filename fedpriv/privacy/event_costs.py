"""A single event as accountants see it: a Gaussian, a Renyi curve, a pure epsilon, a share of delta, or nothing.

All figures are for ONE of the event's ``count`` releases, its ``dimension`` included.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedpriv.mechanisms import laws
from fedpriv.mechanisms.laws import Vector
from fedpriv.privacy.binomial import binomial_renyi
from fedpriv.privacy.discrete_gaussian import sum_rho
from fedpriv.privacy.events import (
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
    Shuffled,
    SkellamSum,
    UnitCap,
)
from fedpriv.privacy.skellam import LEAST_VARIANCE, skellam_renyi

#: Orders of every Renyi curve: close to 1 for large totals, up to a million for tiny ones.
ORDERS: Vector = np.round(
    np.concatenate(
        [
            1 + np.geomspace(1e-3, 0.1, 13)[:-1],
            np.arange(1.1, 2.05, 0.1),
            np.arange(2.2, 4.1, 0.2),
            np.arange(4.5, 11.1, 0.5),
            np.arange(12, 32),
            np.arange(32, 64, 4),
            [64, 80, 96, 128, 192, 256, 384, 512, 768, 1024, 4096, 16384, 65536, 1e6],
        ]
    ),
    9,
)
#: Beyond it the laws of correlated bits lose precision: such bits count as sent without noise.
_LARGEST_BIT_EPSILON = 20.0


def gaussian_multiplier(event: Event) -> float | None:
    """The multiplier of an unsampled Gaussian (or one whose sample is everybody), None for anything else."""
    if isinstance(event, Gaussian):
        return event.multiplier
    if isinstance(event, PoissonGaussian) and event.sampling_rate == 1:
        return event.multiplier
    if isinstance(event, FixedSizeGaussian) and event.sample_size == event.population:
        return event.multiplier
    return None


def is_silent(event: Event) -> bool:
    """Whether the sample is always empty, so that nothing is released."""
    if isinstance(event, PoissonGaussian):
        return event.sampling_rate == 0
    return isinstance(event, FixedSizeGaussian) and event.sample_size == 0


def coordinates(event: Event) -> int:
    """Number of independent one-coordinate releases in each release, for mechanisms that consist of those."""
    return event.dimension if isinstance(event, RandomisedResponse | PairedQuantisation | Shuffled) else 1


def one_coordinate(event: Event) -> Event:
    """One coordinate of one release; a mechanism on whole vectors stays as it is."""
    if isinstance(event, RandomisedResponse | PairedQuantisation | Shuffled):
        return replace(event, count=1, dimension=1)
    return replace(event, count=1)


def why_unbounded(event: Event) -> str | None:
    """The reason, in words, if this release alone costs infinite epsilon at every delta; otherwise None."""
    if isinstance(event, NoBound):
        return event.reason
    if isinstance(event, Gaussian | Laplace | PoissonGaussian | FixedSizeGaussian):
        # noise so small that 1/multiplier^2 overflows cannot be told from none
        return "no noise is added" if event.multiplier < 1e-150 and not is_silent(event) else None
    if isinstance(event, PairedQuantisation) and event.epsilon > _LARGEST_BIT_EPSILON:
        return f"bits of epsilon above {_LARGEST_BIT_EPSILON:g} are all but sent without noise"
    if isinstance(event, PairedQuantisation) and event.bits > 0 and event.private_share == 0:
        return (
            "the pair's two bits together can reveal on which side of the centre a member's value lies "
            "(published CoQ-FL is not jointly private)"
        )
    if isinstance(event, Binomial) and np.isinf(_binomial_curve(event, event.delta)[0]):
        return "the binomial mechanism's bound does not hold for so few trials"
    if isinstance(event, ZCDP) and math.isinf(event.rho):
        return "no noise is added"
    if isinstance(event, DiscreteGaussianSum) and math.isinf(_sum_rho(event)):
        return "no noise is added" if event.sigma == 0 else f"noise of {event.sigma:.3g} grid steps is too little: bits"
    if isinstance(event, SkellamSum) and event.noises * event.variance < LEAST_VARIANCE:
        return "no noise is added" if event.variance == 0 else "noise of a few grid steps is too little: bits"
    if math.isinf(getattr(event, "epsilon", 0.0)):
        return "no noise is added (epsilon is infinite)"
    return None


def delta_share(event: Event) -> float:
    """The part of the target delta that one release uses up; the rest of the mechanism is then pure."""
    if isinstance(event, Binomial | SkellamSum | ApproximateDP | UnitCap):
        return event.delta
    if isinstance(event, Shuffled) and _amplified(event) is not None:
        return event.dimension * event.delta
    return 0.0


@lru_cache(maxsize=100_000)
def pure_epsilon(event: Event) -> float:
    """epsilon at delta = 0 (for pairs: once `delta_share` is paid); infinite for Gaussians and the like."""
    if isinstance(event, Binomial | ApproximateDP):
        return _pair_epsilon(event)
    if isinstance(event, Laplace):
        return 1 / event.multiplier if event.multiplier else math.inf
    if isinstance(event, GumbelTopK):
        return event.k * event.epsilon
    if isinstance(event, UnitCap):
        return event.epsilon if event.inside else 0.0
    if isinstance(event, RandomisedResponse | Shuffled | PairedQuantisation):
        return event.dimension * _coordinate_epsilon(event)
    return 0.0 if is_silent(event) else math.inf


def _pair_epsilon(event: Binomial | ApproximateDP) -> float:
    if isinstance(event, ApproximateDP):
        return event.epsilon
    # half of the release's share of delta covers the event outside which the curve holds
    return float(renyi_to_epsilon(_binomial_curve(event, event.delta / 2), event.delta / 2))


def _binomial_curve(event: Binomial, delta: float) -> Vector:
    """Renyi divergence of one release at each of `ORDERS`, outside an event of probability delta."""
    if event.step == 0:
        return np.full(len(ORDERS), np.inf)
    l2, linf, distance = (length / event.step for length in (event.l2, event.linf, event.distance))
    return binomial_renyi(event.trials, event.dimension, l2, linf, distance, delta, ORDERS)


def _sum_rho(event: DiscreteGaussianSum) -> float:
    return sum_rho(event.sigma, event.noises, event.dimension, event.l2)


def _amplified(event: Shuffled) -> float | None:
    return laws.shuffled_epsilon(event.epsilon, event.users, event.delta)


def _coordinate_epsilon(event: RandomisedResponse | Shuffled | PairedQuantisation) -> float:
    if isinstance(event, RandomisedResponse):
        return event.epsilon
    if isinstance(event, Shuffled):
        amplified = _amplified(event)
        return event.epsilon if amplified is None else amplified
    if why_unbounded(event):
        return math.inf
    return laws.largest_loss(*_worst_laws(event))


def _worst_laws(event: PairedQuantisation) -> tuple[Vector, Vector]:
    """Worst-case pairs of laws of one coordinate for the event's observer."""
    if event.bits == 0:
        first, second = laws.randomised_response(event.epsilon)
        return np.stack([first, second]), np.stack([second, first])
    if event.group_size > 2 or event.threat.observer == "server+members":
        return laws.pair_against_members(event.epsilon, event.private_share)
    return laws.pair_against_server(event.epsilon, event.independent_weight, event.bits)


# --- Renyi curves ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=10_000)
def renyi_curve(event: Event) -> Vector:
    """Renyi divergence of one release at each of `ORDERS` (count aside). Cached: do not write into it."""
    if why_unbounded(event):
        return np.full(len(ORDERS), np.inf)
    multiplier = gaussian_multiplier(event)
    if is_silent(event):
        curve = np.zeros(len(ORDERS))
    elif multiplier is not None:
        curve = ORDERS * (0.5 * (1 / multiplier) * (1 / multiplier))
    else:
        curve = _curve(event)
    curve = np.minimum.accumulate(curve[::-1])[::-1]  # it increases with the order: a gap takes the next value
    curve.flags.writeable = False
    return curve


def _curve(event: Event) -> Vector:
    if isinstance(event, ZCDP | DiscreteGaussianSum):
        return (event.rho if isinstance(event, ZCDP) else _sum_rho(event)) * ORDERS
    if isinstance(event, SkellamSum):
        return skellam_renyi(event.noises * event.variance, event.dimension, event.l2, event.delta, ORDERS)
    if isinstance(event, GumbelTopK):
        # each pick has a privacy loss of range epsilon: epsilon^2/8-zCDP (Cesar and Rogers 2021)
        return np.minimum(event.k * event.epsilon**2 / 8 * ORDERS, event.k * event.epsilon)
    if isinstance(event, RandomisedResponse | Shuffled):
        return event.dimension * laws.pure_renyi(_coordinate_epsilon(event), ORDERS)
    if isinstance(event, UnitCap):
        return _cap_renyi(event)
    if isinstance(event, PairedQuantisation):
        return event.dimension * laws.renyi_divergence(*_worst_laws(event), ORDERS)
    if isinstance(event, Binomial):
        return _binomial_curve(event, event.delta)
    if isinstance(event, ApproximateDP):
        return laws.pure_renyi(_pair_epsilon(event), ORDERS)

    from fedpriv.privacy import dp_library  # seconds to import: only where a curve needs the library

    if isinstance(event, Laplace):
        return dp_library.laplace_rdp(event.multiplier, ORDERS)
    if isinstance(event, PoissonGaussian):
        return dp_library.poisson_gaussian_rdp(event.sampling_rate, event.multiplier, ORDERS)
    if isinstance(event, FixedSizeGaussian):
        return dp_library.fixed_size_gaussian_rdp(event.sample_size, event.population, event.multiplier, ORDERS)
    raise TypeError(f"no Renyi curve for {event}")


def _cap_renyi(event: UnitCap) -> Vector:
    if event.epsilon > 600:  # the smallest probability would underflow
        return np.full(len(ORDERS), event.epsilon)
    return laws.renyi_divergence(*laws.cap_response(event.epsilon, event.inside), ORDERS)


def renyi_to_epsilon(curves: Vector, delta: float) -> Vector:
    """epsilon at delta of Renyi curves [..., orders], the best order for each (Canonne et al. 2020, Prop. 12)."""
    if delta == 0:
        return np.where((curves == 0).all(axis=-1), 0.0, np.inf)
    best = (curves + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)).min(axis=-1)
    return np.maximum(0.0, np.where(np.isnan(best), np.inf, best))


def release_epsilon(event: Event, delta: float) -> float:
    """epsilon at delta of one release, by its Renyi curve."""
    return float(renyi_to_epsilon(renyi_curve(event), delta - delta_share(event)))


# --- privacy loss distributions ----------------------------------------------------------------------------------


def loss_distribution(event: Event, interval: float) -> Any | None:
    """Privacy loss distribution of ONE coordinate of one release, for dp_library.composed_epsilon; None: none known."""
    from fedpriv.privacy import dp_library  # seconds to import: only where RDP alone would be too loose

    if isinstance(event, Laplace):
        return dp_library.laplace_pld(event.multiplier, interval)
    if isinstance(event, PoissonGaussian):
        return dp_library.poisson_gaussian_pld(event.sampling_rate, event.multiplier, interval)
    if isinstance(event, PairedQuantisation) and event.bits > 0:
        if event.group_size > 2 or event.threat.observer == "server+members":
            law = laws.pair_against_members(event.epsilon, event.private_share)
        else:
            law = laws.pair_symmetric_loss(event.epsilon, event.independent_weight)
        return dp_library.discrete_pld(*law, interval)
    if isinstance(event, RandomisedResponse | Shuffled | PairedQuantisation):
        return dp_library.discrete_pld(*laws.randomised_response(_coordinate_epsilon(event)), interval)
    if isinstance(event, UnitCap):
        return dp_library.discrete_pld(*laws.cap_response(event.epsilon, event.inside), interval)
    if isinstance(event, ApproximateDP):
        return dp_library.discrete_pld(*laws.randomised_response(_pair_epsilon(event)), interval)
    return None
