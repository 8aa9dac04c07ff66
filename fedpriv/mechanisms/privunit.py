"""PrivUnit: a unit vector released with pure epsilon, and what floating point adds to it.

The release of u is V/m: with probability p uniform on the cap {<V, u> >= gamma}, else uniform on the rest of the
sphere (`unit_cap`). Its mean is u, its squared length 1/m^2. Symbols: T = <V, u>, W -> `sideways`.

What a pair of inputs shows. Over the uniform law the density is p/q in the cap and (1-p)/(1-q) = (p/q) e^-eps outside.
For inputs u, u' and t >= 0 the density of u exceeds e^t times that of u' only in cap(u) without cap(u'), and only for
t < eps. Hence sup_S P(S) - e^t P'(S) <= p (1 - e^(t - eps)), with equality if the caps do not meet, as for u' = -u and
gamma >= 0: opposite inputs dominate every pair at every t, and the ratio takes the values e^eps, 1, e^-eps with
probabilities p, 1 - p - p e^-eps, p e^-eps under u (`laws.cap_response`). t < 0 follows by exchanging the inputs.

What is computed, and what it costs. The bit "in the cap" and the tail probability of T come from whole random words,
so many that no event of probability e^-epsilon is lost (`_words`); T is the inverse incomplete beta function of a tail
probability that keeps its digits, from whichever side of the sphere is nearer.
V = T u + sqrt(1 - T^2) W in float64, W a normalised Gaussian orthogonal to u. Its low bits depend on u: they could show
which u is possible. So V goes onto the grid of a Gaussian of standard deviation s = 2^-7/sqrt(d) per coordinate, which
is added (`noise.grid_step`): release = (onto_grid(V) + N)/m, as float32. The length grows by 3e-5 of itself. The proof:
- Let V0 be the exact release and N0 an exact Gaussian. V0 + N0, rounded to the grid, is post-processing of V0.
- onto_grid(V) + N has the law of (onto_grid(V) + N0) rounded, up to factors: `secure_noise` draws a coordinate's
  Gaussian within a factor 1 +- 2^-29 of the rounded law, by 1,024 bits in its tails, more than any `_words` here.
  Three Gaussians a coordinate (W's has two parts): e^(+-3 d 2^-28), 2^-28 to be safe.
- There is a coupling with |onto_grid(V) - V0| <= mu s: half a step of the grid in each coordinate (sqrt(d) 2^-20 s);
  W's own grid (`noise.fine_step`, 2^-36, for a Gaussian of length at least sqrt(d)/4: shorter ones are drawn again,
  which leaves the law of the direction as it is) and float64, together below 2^-34; T, below 2e-8/sqrt(d).
  With exact Gaussians the laws are then (t, D)-close: P(S) <= e^t P0(S) + D and back, t = mu (z + mu/2),
  D = Phi(-z) [Balle and Wang 2018, Theorem 8].
- Together: s0-close, s0 = t + 3 d 2^-28 + 2^-40, but for D and what the words lose, both below
  1e-13 e^-(eps + 1) (1 - p) by the choice of z and of the number of words (where 1 - p < 1e-6: `_words`). Then for
  every pair of inputs and t >= 0
      sup_S P(S) - e^t P'(S) <= p' (1 - e^(t - eps')) + D',   eps' = eps + 2 s0,
      p' = e^s0 (p + (1 - p) (1 - e^(-2 s0))/(1 - e^-eps')),  D' = (1 + e^eps') D.
  (In the cap: e^s0 p (1 - e^(t - eps')). Where the ratio is 1: e^s0 (1 - p)(1 - e^(t - 2 s0)) for t < 2 s0, whose
  share of 1 - e^(t - eps') is largest at t = 0.) A pair of laws of (eps', p') that with probability D'/(1 - p') shows
  the input exceeds that at every t, and is what is charged: `CapLaw`. Where p' is too close to 1 for that, the pair
  that dominates every (eps', D')-private mechanism is (Kairouz, Oh and Viswanath 2015).
Seeded noise stands for the secure one in simulations; its own low bits protect nobody.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.laws import Vector
from fedpriv.mechanisms.noise import NoiseSource, finite_or_zero, grid_step, l2_norm
from fedpriv.mechanisms.unit_cap import LARGEST_EPSILON, Cap, best_cap, tail_quantile
from fedpriv.mechanisms.unit_projections import Key

#: Length of the Gaussian that hides the low bits, against a unit vector.
BLUR = 2.0**-7
#: What is charged of delta for floating point. The proof needs less.
DELTA = 1e-12
#: 1 - p' below which only epsilon and delta are charged: its digits would be lost in p'.
_LEAST_OUTSIDE = 1e-6
#: Norms within these bounds come from squares that float64 holds with all their digits.
_SMALL, _LARGE = 2.0**-480, 2.0**500


@dataclass(frozen=True)
class CapLaw:
    """What a release is to an accountant: with probability ``delta`` it shows its input, otherwise its ratio takes the
    values e^epsilon, 1, e^-epsilon with probabilities ``inside``, the rest, ``inside`` e^-epsilon.
    """

    epsilon: float
    inside: float
    delta: float = 0.0


@dataclass(frozen=True)
class PrivUnit:
    """The mechanism for vectors of so many coordinates. cap: of the exact mechanism; law: of the computed one."""

    cap: Cap
    law: CapLaw
    words: int

    @property
    def second_moment(self) -> float:
        """E|release|^2 of a unit vector."""
        blur = BLUR**2 if self.cap.dimension > 1 else 0.0
        return (1.0 + blur) / self.cap.mean**2


@lru_cache(maxsize=1024)
def private_unit(dimension: int, epsilon: float) -> PrivUnit:
    """PrivUnit whose computed releases cost ``epsilon`` in all: the cap's own is less by the price of floating point.

    Raises OptionError where epsilon is not from 1e-5 to 500, or below twice that price.
    """
    if not 1e-5 <= epsilon <= LARGEST_EPSILON:
        raise OptionError("epsilon", epsilon, f"must be from 1e-05 to {LARGEST_EPSILON:g}")
    if dimension == 1:  # two releases: nothing but the bit
        cap = best_cap(1, epsilon - 2.0**-38)
        return PrivUnit(cap, CapLaw(epsilon, cap.inside), _words(1, epsilon, cap.outside))
    price = 0.0
    for _ in range(4):  # the price moves with the cap by next to nothing
        cap = best_cap(dimension, max(epsilon - price, epsilon / 2))
        price = 2 * _closeness(dimension, epsilon, cap.outside) * (1 + 1e-6)
    if price > epsilon / 2:
        least = f"must be at least {2 * price:.3g} for {dimension} coordinates: floating point costs {price:.3g}"
        raise OptionError("epsilon", epsilon, least)
    return PrivUnit(cap, charged(cap, epsilon), _words(dimension, epsilon, cap.outside))


def charged(cap: Cap, epsilon: float) -> CapLaw:
    """The law of the proof above at eps' = ``epsilon``."""
    s = (epsilon - cap.epsilon) / 2
    added = cap.outside * -math.expm1(-2 * s) / -math.expm1(-epsilon)
    outside = 1.0 - math.exp(s) * (cap.inside + added)
    if outside < cap.outside / 2 or outside < _LEAST_OUTSIDE:
        return CapLaw(epsilon, 1.0 / (1.0 + math.exp(-epsilon)), DELTA)
    return CapLaw(epsilon, 1.0 - outside, DELTA)


def _closeness(dimension: int, epsilon: float, outside: float) -> float:
    """s0 of the proof."""
    mu = math.sqrt(dimension) * 2.0**-20 * (1 + 2.0**-7) + 2e-8 / BLUR
    z = math.sqrt(2 * (epsilon + 1 + math.log(1e13) - math.log(outside)))
    return mu * (z + mu / 2) + 3 * dimension * 2.0**-28 + 2.0**-40


def _words(dimension: int, epsilon: float, outside: float) -> int:
    """Random words of 32 bits in a uniform number: what they cannot resolve has probability 2^-(32 words), at most
    1e-13 e^-(epsilon + 2) max(1 - p, 1e-6) for all uniforms of a release together. Below 1 - p = 1e-6 `charged` takes
    the law of every (epsilon, D')-private mechanism, for which D need not be less than 1 - p.

    At most 26 words for the largest epsilon and 2^32 coordinates; 31 are all that float64 can hold.
    """
    bits = (epsilon + 2 + math.log(1e13 / max(outside, _LEAST_OUTSIDE)) + math.log(4 * dimension + 4)) / math.log(2)
    return math.ceil(bits / 32)


# --- the release -----------------------------------------------------------------------------------------------


def direction(vectors: Tensor) -> Tensor:
    """x/|x| (float64 [..., d]). The zero vector becomes the first axis, as does what is not finite."""
    finite = finite_or_zero(vectors)
    norm = l2_norm(finite).unsqueeze(-1)
    extreme = (norm < _SMALL) | (norm > _LARGE)
    if bool(extreme.any()):  # squares vanish or overflow: divided by the largest entry first
        largest = finite.abs().amax(-1, keepdim=True).double()
        finite = torch.where(extreme & (largest > 0), finite / largest, finite.double())
        norm = torch.where(extreme, l2_norm(finite).unsqueeze(-1), norm)
    units = finite / norm
    zero = (norm == 0).squeeze(-1)
    if bool(zero.any()):
        units[zero] = torch.zeros(vectors.shape[-1], dtype=torch.float64).index_fill_(0, torch.tensor(0), 1.0)
    return units


def release_unit(vectors: Tensor, setting: PrivUnit, noise: NoiseSource) -> Tensor:
    """PrivUnit of the directions of vectors [..., d]: float32 [..., d], mean x/|x|."""
    units, cap = direction(vectors), setting.cap
    words = noise.integers(0, 2**32, (*units.shape[:-1], 2 * setting.words + 1))
    inside = uniform_of(words[..., : setting.words]) > cap.outside
    if cap.dimension == 1:
        signs = torch.from_numpy(np.where(inside, 1.0, -1.0)).unsqueeze(-1)
        return (signs * units / cap.mean).float()
    tail = uniform_of(words[..., setting.words : -1])
    height, side = _heights(inside, tail, (words[..., -1] & 1).numpy() == 1, cap)
    std = BLUR / math.sqrt(cap.dimension)
    step = grid_step(std)
    released, along, length = _sideways(units, noise)
    # T u + sqrt(1 - T^2) W in steps of the grid, W = (g - along u)/length, in two passes over memory
    scale = torch.from_numpy(side) / (length * step)
    released.mul_(scale.unsqueeze(-1))
    released.addcmul_(units, (torch.from_numpy(height) / step - along * scale).unsqueeze(-1)).round_()
    released.add_(noise.normal(units.shape, std), alpha=1 / step)
    return released.mul_(step / cap.mean).float()


def _heights(inside: np.ndarray, tail: Vector, upper: np.ndarray, cap: Cap) -> tuple[Vector, Vector]:
    """(T, sqrt(1 - T^2)) [...]. In the cap its tail is uniform on (0, q); outside, each half of what is left is
    measured from the pole that is nearer. tail: uniforms in (0, 1) [...].
    """
    log_tail = np.log(tail)
    q = cap.measure
    rest = np.log1p(-q) + log_tail - math.log(2)  # ln of a uniform on (0, (1 - q)/2)
    above = np.log(q + np.exp(rest)) if q > 0 else rest
    logs = np.where(inside, cap.log_measure + log_tail, np.where(upper, above, rest))
    x = tail_quantile(cap.dimension, np.atleast_1d(logs)).reshape(np.shape(logs))
    height = 1 - 2 * x
    return np.asarray(np.where(inside | upper, height, -height)), np.asarray(2 * np.sqrt(x * (1 - x)))


def _sideways(units: Tensor, noise: NoiseSource) -> tuple[Tensor, Tensor, Tensor]:
    """(g, along, length), float64 [..., d], [...] and [...], with W = (g - along u)/length uniform among the unit
    vectors orthogonal to u.
    """
    dimension = units.shape[-1]
    found, along, length = _across(units, noise)
    while bool((short := length < math.sqrt(dimension) / 4).any()):
        own = noise if noise.each is None else noise.of(short.nonzero().flatten())
        found[short], along[short], length[short] = _across(units[short], own)
    return found, along, length


def _across(units: Tensor, noise: NoiseSource) -> tuple[Tensor, Tensor, Tensor]:
    found = noise.fine_normal(units.shape, 1.0)
    if units.shape[-1] < 64:  # what is orthogonal may be a small part of g: subtracted first, so that no digit is lost
        for _ in range(2):
            found.addcmul_(units, _inner(found, units, noise).unsqueeze(-1), value=-1.0)
    along = _inner(found, units, noise)
    return found, along, (l2_norm(found).square() - along.square()).clamp_(min=0.0).sqrt_()


def _inner(left: Tensor, right: Tensor, noise: NoiseSource) -> Tensor:
    """Inner products [...]; of several clients one by one, since a sum along a row of a table has another order."""
    if noise.each is None:
        return torch.linalg.vecdot(left, right)
    return torch.stack([torch.linalg.vecdot(own, other) for own, other in zip(left, right, strict=True)])


def uniform_of(words: Tensor) -> Vector:
    """Uniforms in (0, 1) (float64 [...]) of words of 32 bits [..., w], the first the most significant: a value's
    digits are exact to 2^-52 of itself, down to 2^-(32 w).
    """
    parts = words.double().numpy()
    total = np.full(parts.shape[:-1], 0.5)
    for place in range(parts.shape[-1] - 1, -1, -1):
        total = (total + parts[..., place]) * 2.0**-32
    return total


# --- as one of the mechanisms for unit vectors (`fedpriv.mechanisms.unit_vectors`) ---------------------------


class UnitMechanism(ABC):
    """law: what a release costs; None: a Gaussian's, which its standard deviation says."""

    law: CapLaw | None

    @abstractmethod
    def release(self, vectors: Tensor, key: Key, noise: NoiseSource) -> Tensor:
        """What is sent for vectors [..., d], of which the direction alone counts: [..., numbers or bytes]."""

    def release_each(self, vectors: Tensor, keys: Sequence[Key], noise: NoiseSource) -> Tensor:
        """What is sent for a vector of each client (vectors [clients, d]), with its own key and its own noise."""
        assert noise.each is not None, "noise of several clients"
        return torch.stack([self.release(*own) for own in zip(vectors, keys, noise.each, strict=True)])

    @abstractmethod
    def decode(self, sent: Tensor, key: Key) -> Tensor:
        """The estimate of u (float32 [..., d])."""

    @property
    @abstractmethod
    def second_moment(self) -> float:
        """E|estimate|^2."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Length of what is sent."""

    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Capped(UnitMechanism):
    """PrivUnit, of the direction or of a projection of it: its law is the release's."""

    setting: PrivUnit

    @property
    def law(self) -> CapLaw:  # type: ignore[override]
        return self.setting.law

    @property
    def width(self) -> int:
        return self.setting.cap.dimension


@dataclass(frozen=True)
class Whole(Capped):
    """PrivUnit in R^d."""

    @property
    def second_moment(self) -> float:
        return self.setting.second_moment

    def release(self, vectors: Tensor, key: Key, noise: NoiseSource) -> Tensor:
        return release_unit(vectors, self.setting, noise)

    def release_each(self, vectors: Tensor, keys: Sequence[Key], noise: NoiseSource) -> Tensor:
        return release_unit(vectors, self.setting, noise)

    def decode(self, sent: Tensor, key: Key) -> Tensor:
        return sent
