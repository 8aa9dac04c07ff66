"""Records of what leaves a client: a release is an `Event` under a `Threat`, and a ledger line is an `Entry`.

Noise is always standard deviation (or scale) divided by the sensitivity **under the event's own adjacency**:
the option ``noise_multiplier`` (standard deviation / clip norm) is twice that under replace-one.
The fields of an event are its JSON and declare what they may be (`Number`, `Rate`, ...); a class that has a
``mechanism`` is read from ledgers by that name. No heavy imports here: every client loads this module at start.
"""

from __future__ import annotations

import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, get_type_hints

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector

UNITS = ("client", "example", "person")
ADJACENCIES = ("replace-one", "zero-out", "add-or-remove-one")
OBSERVERS = ("server", "server+members", "secure-sum", "trusted-server", "public")
#: Observers who do not learn which clients took part: only against them does sampling clients amplify.
BLIND_TO_COHORT = ("trusted-server", "public")


@dataclass(frozen=True)
class Threat:
    """Unit, adjacency and observer of a guarantee. Only equal threats are ever composed."""

    unit: str
    adjacency: str
    observer: str

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("unit", self.unit, UNITS),
            ("adjacency", self.adjacency, ADJACENCIES),
            ("observer", self.observer, OBSERVERS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r}: allowed: {', '.join(allowed)}")


CLIENT_TO_SERVER = Threat("client", "replace-one", "server")
#: An observer who sees only the sum of a round's releases, and knows who took part.
SECURE_SUM = Threat("client", "replace-one", "secure-sum")

#: Observers who learn no more of a client than a sum of clients' contributions.
OF_SUMS = ("secure-sum", "trusted-server")
#: What else neighbours may be in a sum of clients: `Event.at_other_adjacency`.
OTHER_ADJACENCY = {"replace-one": "zero-out", "zero-out": "replace-one", "add-or-remove-one": "replace-one"}


# --- what fields may be ------------------------------------------------------------------------------------------

#: Largest whole number of an event or an entry, and largest number that is not infinite.
MOST_WHOLE, MOST_NUMBER = 2**63 - 1, sys.float_info.max


def check_number(name: str, value: float, most: float = math.inf) -> None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
    if not known or MOST_NUMBER < value < math.inf:  # a whole number that no double holds
        raise ValueError(
            f"{name}={value!r}: must be a number of at least 0" + (f", at most {most}" * (most < math.inf))
        )


def check_whole(name: str, value: int, least: int, most: int = MOST_WHOLE) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name}={value!r}: must be a whole number of at least {least}")


def _check_delta(name: str, value: float, some: bool) -> None:
    check_number(name, value)
    if not value < 1 or (some and value == 0):
        raise ValueError(f"{name}={value}: must be in {'(' if some else '['}0, 1)")


#: At least 0, infinity included; at most 1; whole from 0 or 1 on; a part of the target delta, above 0 or from 0 on.
Number = Annotated[float, check_number]
Rate = Annotated[float, partial(check_number, most=1.0)]
Whole = Annotated[int, partial(check_whole, least=0)]
Count = Annotated[int, partial(check_whole, least=1)]
SomeDelta = Annotated[float, partial(_check_delta, some=True)]
Delta = Annotated[float, partial(_check_delta, some=False)]


@cache
def _checks(kind: type[Event]) -> tuple[tuple[str, Any], ...]:
    """(field, what it is checked by) of a kind of event."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        (field.name, check) for field in fields(kind) for check in getattr(hints[field.name], "__metadata__", ())
    )


#: Every kind of event, by its name in a ledger.
MECHANISMS: dict[str, type[Event]] = {}


@dataclass(frozen=True, kw_only=True)
class Event(ABC):
    """``count`` independent releases of one mechanism. Raises ValueError for impossible values (NaN included).

    What accountants ask is about ONE of the ``count`` releases, its ``dimension`` included. A mechanism answers with a
    reason and a Renyi curve; what else is known of it makes totals smaller. Its fields are its JSON.
    """

    mechanism: ClassVar[str]
    threat: Threat
    count: Count = 1

    def __init_subclass__(cls) -> None:
        name = cls.__dict__.get("mechanism")
        if name is not None and MECHANISMS.setdefault(name, cls) is not cls:
            raise TypeError(f"{cls.__name__}: the mechanism {name!r} is {MECHANISMS[name].__name__} already")

    def __post_init__(self) -> None:
        for name, check in _checks(type(self)):
            check(name, getattr(self, name))

    @abstractmethod
    def why_unbounded(self) -> str | None:
        """The reason, in words, if this release alone costs infinite epsilon at every delta; otherwise None."""

    @abstractmethod
    def renyi(self, orders: Vector) -> Vector:
        """Renyi divergence at each order (> 1) of a release that has a bound; infinite where it is not known."""

    @property
    def gaussian_multiplier(self) -> float | None:
        """The multiplier of an unsampled Gaussian (or one whose sample is everybody), None for anything else."""
        return None

    @property
    def nearly_gaussian(self) -> tuple[float, float] | None:
        """(multiplier, shift): a release costs at most what a Gaussian of this multiplier does, once its epsilon has
        grown by shift and its delta by exp(shift); shifts add up (`fedpriv.privacy.integer_laws`). None: unknown.
        """
        multiplier = self.gaussian_multiplier
        return None if multiplier is None else (multiplier, 0.0)

    @property
    def delta_share(self) -> float:
        """The part of the target delta that one release uses up; the rest of the mechanism is then pure."""
        return 0.0

    def pure_epsilon(self) -> float:
        """epsilon at delta = 0 (for pairs: once `delta_share` is paid); infinite for Gaussians and the like."""
        return math.inf

    @property
    def coordinates(self) -> int:
        """Number of independent one-coordinate releases in each release, for mechanisms that consist of those."""
        return 1

    def one_coordinate(self) -> Self:
        """One coordinate of one release; a mechanism on whole vectors stays as it is."""
        return replace(self, count=1)

    def loss_distribution(self, interval: float) -> Any | None:
        """Privacy loss distribution of ONE coordinate, for dp_library.composed_epsilon; None: none known."""
        return None

    @property
    def likeness(self) -> tuple[float, ...] | None:
        """Where thousands of unequal events are too many to compose: neighbours by this key are merged by `worst_with`.
        None: they never are.
        """
        return None

    def at_other_adjacency(self) -> Event | None:
        """The same release of a sum of clients' contributions, none longer than C, where neighbours are the other kind;
        None: no analysis.

        A client replaced by any other moves the sum by up to 2C: from v to w, |v|, |w| <= C. One whose contribution
        becomes zero (or that is not there) moves it by up to C. The noise is the same, so that bounds which hold for
        every distance are taken at half of it under zero-out, and at twice of it under replace-one. Both distances are
        reached, by v = -w and by |v| = C.
        """
        return None

    @property
    def other_threat(self) -> Threat:
        return replace(self.threat, adjacency=OTHER_ADJACENCY[self.threat.adjacency])

    def worst_with(self, other: Event) -> Event:
        """An event of the same kind that costs at least as much as this one and as ``other``."""
        raise NotImplementedError


#: Why a release without noise has no bound.
NO_NOISE = "no noise is added"


def without_noise(multiplier: float) -> str | None:
    """`Event.why_unbounded` of noise on a scale."""
    # noise so small that 1/multiplier^2 overflows cannot be told from none
    return NO_NOISE if multiplier < 1e-150 else None


def without_randomness(epsilon: float) -> str | None:
    """`Event.why_unbounded` of a mechanism of pure epsilon."""
    return f"{NO_NOISE} (epsilon is infinite)" if math.isinf(epsilon) else None


def _check_amplifies(event: Event) -> None:
    if event.threat.unit == "client" and event.threat.observer not in BLIND_TO_COHORT:
        raise ValueError(f"observer {event.threat.observer} knows who took part: sampling clients does not amplify")


# --- normal noise -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Gaussian(Event):
    """Independent normal noise on every coordinate. multiplier: std / L2 sensitivity; 0 means no noise."""

    mechanism = "gaussian"
    multiplier: Number

    def in_sum(self, noises: int) -> Gaussian:
        """This release as an observer sees it who sees only the sum of a round's releases.

        noises: how many releases carry noise of this size that the observer does not know, including this one: the
        fewest that are ever summed, less the colluders. Given all earlier sums, the other clients' clipped updates are
        fixed, so one client's data move the sum by as much as its own release, while the independent noises N(0, s^2)
        add up to N(0, noises s^2): the multiplier grows by sqrt(noises), and rounds compose adaptively. That needs
        equal weights in the sum, one clip norm for all in a round (a server that announced a smaller one to the others
        would make their noise smaller; a guarantee for the sum trusts the server's announcements, as it does
        min_replies), and clients that keep nothing between rounds that the observer has not seen.
        Raises ValueError for fewer than one noise.
        """
        check_whole("noises", noises, least=1)
        return replace(self, threat=SECURE_SUM, multiplier=math.sqrt(noises) * self.multiplier)

    @property
    def gaussian_multiplier(self) -> float:
        return self.multiplier

    def at_other_adjacency(self) -> Gaussian:
        factor = 2.0 if self.threat.adjacency == "replace-one" else 0.5
        return replace(self, threat=self.other_threat, multiplier=factor * self.multiplier)

    def why_unbounded(self) -> str | None:
        return without_noise(self.multiplier)

    def renyi(self, orders: Vector) -> Vector:
        return gaussian_renyi(self.multiplier, orders)


def gaussian_renyi(multiplier: float, orders: Vector) -> Vector:
    """Renyi divergence of a Gaussian at each order."""
    return orders * (0.5 * (1 / multiplier) * (1 / multiplier))


@dataclass(frozen=True, kw_only=True)
class _Sampled(Event):
    """A Gaussian over a sample, which may be always empty (nothing is released) or always everybody (a Gaussian)."""

    multiplier: Number

    @property
    @abstractmethod
    def is_silent(self) -> bool:
        """Whether the sample is always empty, so that nothing is released."""

    @property
    @abstractmethod
    def takes_all(self) -> bool:
        """Whether the sample is always everybody."""

    @abstractmethod
    def amplified_renyi(self, orders: Vector) -> Vector:
        """The curve of a sample that is neither."""

    @property
    def gaussian_multiplier(self) -> float | None:
        return self.multiplier if self.takes_all else None

    def why_unbounded(self) -> str | None:
        return None if self.is_silent else without_noise(self.multiplier)

    def pure_epsilon(self) -> float:
        return 0.0 if self.is_silent else math.inf

    def renyi(self, orders: Vector) -> Vector:
        if self.is_silent:
            return 0 * orders
        return gaussian_renyi(self.multiplier, orders) if self.takes_all else self.amplified_renyi(orders)


@dataclass(frozen=True, kw_only=True)
class PoissonSample(_Sampled):
    """A Gaussian over a sample in which each part is by a coin of its own, whatever it is that one unit changes."""

    sampling_rate: Rate

    @property
    def is_silent(self) -> bool:
        return self.sampling_rate == 0

    @property
    def takes_all(self) -> bool:
        return self.sampling_rate == 1

    @property
    def likeness(self) -> tuple[float, float]:
        return self.sampling_rate, self.multiplier

    def worst_with(self, other: Event) -> Self:
        assert isinstance(other, type(self))
        rate = max(self.sampling_rate, other.sampling_rate)
        return replace(self, multiplier=min(self.multiplier, other.multiplier), sampling_rate=rate)


@dataclass(frozen=True, kw_only=True)
class PoissonGaussian(PoissonSample):
    """A Gaussian over a Poisson sample: of a client's examples, or of the clients at a trusted aggregate.

    multiplier: std / sensitivity to one unit that *is* in the sample. The sample must come from randomness
    that the observer cannot know. Replace-one is refused: no sound analysis of it is implemented.
    """

    mechanism = "poisson_gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threat.adjacency == "replace-one":
            raise ValueError("a Poisson sample is accounted under add-or-remove-one or zero-out, not replace-one")
        _check_amplifies(self)

    def at_other_adjacency(self) -> ReplacedGaussian | None:
        """The coin of a client that is replaced is the same: it does not change whether it is drawn."""
        if self.threat.unit != "client":
            return None
        shape = {"multiplier": self.multiplier / 2, "sampling_rate": self.sampling_rate, "count": self.count}
        return ReplacedGaussian(threat=self.other_threat, **shape)  # type: ignore[arg-type]

    def amplified_renyi(self, orders: Vector) -> Vector:
        from fedpriv.privacy.dp_library import poisson_gaussian_rdp  # seconds to import

        return poisson_gaussian_rdp(self.sampling_rate, self.multiplier, orders)

    def loss_distribution(self, interval: float) -> Any:
        from fedpriv.privacy.dp_library import poisson_gaussian_pld  # seconds to import

        return poisson_gaussian_pld(self.sampling_rate, self.multiplier, interval)


@dataclass(frozen=True, kw_only=True)
class FixedSizeGaussian(_Sampled):
    """A Gaussian over ``sample_size`` of ``population`` units drawn without replacement.

    multiplier: std / sensitivity to replacing one unit that is in the sample (of a clipped sum: 2C).
    """

    mechanism = "fixed_size_gaussian"
    sample_size: int
    population: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("sample_size", self.sample_size, least=0, most=self.population)
        if self.threat.adjacency != "replace-one":
            raise ValueError(f"a sample of fixed size is accounted under replace-one, not {self.threat.adjacency}")
        _check_amplifies(self)

    @property
    def is_silent(self) -> bool:
        return self.sample_size == 0

    @property
    def takes_all(self) -> bool:
        return self.sample_size == self.population

    def amplified_renyi(self, orders: Vector) -> Vector:
        from fedpriv.privacy.dp_library import fixed_size_gaussian_rdp  # seconds to import

        return fixed_size_gaussian_rdp(self.sample_size, self.population, self.multiplier, orders)


@dataclass(frozen=True, kw_only=True)
class ReplacedGaussian(PoissonSample):
    """A Gaussian over a Poisson sample of parts, where one unit more or less changes one part, and not whether it is
    drawn: virtual clients. Or the parts are clients, one of which is replaced.

    multiplier: std / how far a part that *is* in the sample moves the sum (2C of parts clipped to C). The sample must
    come from randomness that the observer cannot know. Proof: `fedpriv.privacy.sampled_laws`.
    """

    mechanism = "replaced_gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        clients = self.threat.unit == "client"
        if self.threat.adjacency != ("replace-one" if clients else "add-or-remove-one"):
            words = "parts are drawn within a client: unit example or person, adjacency add-or-remove-one"
            raise ValueError(f"{words}; or they are clients: adjacency replace-one")
        _check_amplifies(self)

    def amplified_renyi(self, orders: Vector) -> Vector:
        from fedpriv.privacy.sampled_laws import replaced_poisson_renyi

        return replaced_poisson_renyi(self.sampling_rate, self.multiplier, orders)

    def loss_distribution(self, interval: float) -> Any:
        from fedpriv.privacy.sampled_laws import replaced_poisson_pld  # seconds to import

        if not 0 < self.sampling_rate < 1:
            return None
        return replaced_poisson_pld(self.sampling_rate, self.multiplier, interval)


#: Below this multiplier losses are too far apart for a grid: an allocation then counts as the Gaussian of one round.
LEAST_MULTIPLIER = 0.1
#: Rounds of a pass up to which rounding of its law is accounted for.
MOST_ROUNDS = 10**6


@dataclass(frozen=True, kw_only=True)
class AllocatedGaussian(Event):
    """A pass of ``rounds`` Gaussian releases, in exactly one of which, uniform and secret, the unit takes part.

    multiplier: std / sensitivity to the unit in its round. released: the first rounds of the pass, beyond which none is
    ever released (known before it begins; 0: all). Each pass draws anew. Replace-one is refused: no sound analysis of
    it is implemented. Proof: `fedpriv.privacy.sampled_laws`.
    """

    mechanism = "allocated_gaussian"
    multiplier: Number
    rounds: Count
    released: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("released", self.released, least=0, most=self.rounds)
        object.__setattr__(self, "released", self.released or self.rounds)
        if self.rounds > MOST_ROUNDS:
            raise ValueError(f"rounds={self.rounds}: a pass has at most {MOST_ROUNDS} rounds")
        if self.threat.adjacency == "replace-one":
            raise ValueError("an allocation is accounted under add-or-remove-one or zero-out, not replace-one")
        _check_amplifies(self)

    @property
    def gaussian_multiplier(self) -> float | None:
        """With one round everybody takes part in it."""
        return self.multiplier if self.rounds == 1 else None

    @property
    def _on_grid(self) -> bool:
        return self.rounds > 1 and LEAST_MULTIPLIER <= self.multiplier <= 1e6

    @property
    def delta_share(self) -> float:
        """Below 1e-12, of the law's cut ends."""
        if not self._on_grid:
            return 0.0
        from fedpriv.privacy.sampled_laws import unbounded_share  # scipy

        return unbounded_share(self.rounds, self.multiplier, self.released)

    def why_unbounded(self) -> str | None:
        return without_noise(self.multiplier)

    def renyi(self, orders: Vector) -> Vector:
        if not self._on_grid:  # joint quasi-convexity: a mixture is at most as far away as its parts
            return gaussian_renyi(self.multiplier, orders)
        from fedpriv.privacy.sampled_laws import allocated_renyi  # scipy

        return allocated_renyi(self.rounds, self.multiplier, orders, self.released)

    def loss_distribution(self, interval: float) -> Any:
        if not self._on_grid:
            return None
        from fedpriv.privacy.sampled_laws import allocated_pld  # seconds to import

        return allocated_pld(self.rounds, self.multiplier, interval, self.released)


# --- known by a bound -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Laplace(Event):
    """Independent Laplace noise on every coordinate. multiplier: scale / L1 sensitivity; 0 means no noise."""

    mechanism = "laplace"
    multiplier: Number

    def why_unbounded(self) -> str | None:
        return without_noise(self.multiplier)

    def pure_epsilon(self) -> float:
        return 1 / self.multiplier if self.multiplier else math.inf

    def renyi(self, orders: Vector) -> Vector:
        from fedpriv.privacy.dp_library import laplace_rdp  # seconds to import

        return laplace_rdp(self.multiplier, orders)

    def loss_distribution(self, interval: float) -> Any:
        from fedpriv.privacy.dp_library import laplace_pld  # seconds to import

        return laplace_pld(self.multiplier, interval)


@dataclass(frozen=True, kw_only=True)
class ZCDP(Event):
    """Any mechanism that satisfies rho-zCDP (Bun and Steinke 2016)."""

    mechanism = "zcdp"
    rho: Number

    def why_unbounded(self) -> str | None:
        return NO_NOISE if math.isinf(self.rho) else None

    def renyi(self, orders: Vector) -> Vector:
        return self.rho * orders


@dataclass(frozen=True, kw_only=True)
class GumbelTopK(Event):
    """One-shot top-k: Gumbel noise on scores, the k best indices leave (Durfee and Rogers 2019).

    epsilon: (range of one score's log-likelihood ratio) of one pick; with scores in [0, tau] and Gumbel scale b it
    is 2*tau/b under replace-one and tau/b under zero-out. The release is k*epsilon**2/8-zCDP.
    """

    mechanism = "gumbel_top_k"
    k: Count
    epsilon: Number

    def why_unbounded(self) -> str | None:
        return without_randomness(self.epsilon)

    def pure_epsilon(self) -> float:
        return self.k * self.epsilon

    def renyi(self, orders: Vector) -> Vector:
        import numpy as np

        # each pick has a privacy loss of range epsilon: epsilon^2/8-zCDP (Cesar and Rogers 2021)
        return np.minimum(self.k * self.epsilon**2 / 8 * orders, self.k * self.epsilon)


@dataclass(frozen=True, kw_only=True)
class ApproximateDP(Event):
    """A mechanism known only by its (epsilon, delta) pair; one release uses up delta."""

    mechanism = "approximate_dp"
    epsilon: Number
    delta: Delta

    @property
    def delta_share(self) -> float:
        return self.delta

    def why_unbounded(self) -> str | None:
        return without_randomness(self.epsilon)

    def pure_epsilon(self) -> float:
        return self.epsilon

    def renyi(self, orders: Vector) -> Vector:
        from fedpriv.mechanisms.laws import pure_renyi

        return pure_renyi(self.epsilon, orders)

    def loss_distribution(self, interval: float) -> Any:
        from fedpriv.mechanisms.laws import randomised_response
        from fedpriv.privacy.dp_library import discrete_pld  # seconds to import

        return discrete_pld(*randomised_response(self.epsilon), interval)


@dataclass(frozen=True, kw_only=True)
class NoBound(Event):
    """A release without a sound bound: the total is infinite, for this reason in words."""

    mechanism = "no_bound"
    reason: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.reason, str) or not self.reason:
            raise ValueError("reason: a release without a bound says why")

    def why_unbounded(self) -> str:
        return self.reason

    def renyi(self, orders: Vector) -> Vector:
        import numpy as np

        return np.full(len(orders), np.inf)


# --- bits, symbols, unit vectors --------------------------------------------------------------------------------------


class _Bits(Event):
    """``dimension`` bits, of which each has the same laws and costs the same."""

    epsilon: float
    dimension: int

    @abstractmethod
    def coordinate_epsilon(self) -> float:
        """Pure epsilon of one bit (of a shuffled one: once its share of delta is paid)."""

    @property
    def coordinates(self) -> int:
        return self.dimension

    def one_coordinate(self) -> Self:
        return replace(self, count=1, dimension=1)  # type: ignore[call-arg]  # a field of every kind of bits

    def why_unbounded(self) -> str | None:
        return without_randomness(self.epsilon)

    def pure_epsilon(self) -> float:
        return self.dimension * self.coordinate_epsilon()

    def renyi(self, orders: Vector) -> Vector:
        from fedpriv.mechanisms.laws import pure_renyi

        return self.dimension * pure_renyi(self.coordinate_epsilon(), orders)

    def loss_distribution(self, interval: float) -> Any:
        from fedpriv.mechanisms.laws import randomised_response
        from fedpriv.privacy.dp_library import discrete_pld  # seconds to import

        return discrete_pld(*randomised_response(self.coordinate_epsilon()), interval)


@dataclass(frozen=True, kw_only=True)
class RandomisedResponse(_Bits):
    """``dimension`` bits, each epsilon-locally private and drawn independently (LDP-FL: one per coordinate)."""

    mechanism = "randomised_response"
    epsilon: Number
    dimension: Count = 1

    def coordinate_epsilon(self) -> float:
        return self.epsilon


#: Beyond it the laws of correlated bits lose precision: such bits count as sent without noise.
_LARGEST_BIT_EPSILON = 20.0


@dataclass(frozen=True, kw_only=True)
class PairedQuantisation(_Bits):
    """CoQ-FL: ``dimension`` bits, each epsilon-private alone, correlated with the partner's by shared randomness.

    private_share: the repair's mu, the probability that a client uses a private uniform for a coordinate (0 is the
    published method). bits: shared bits per coordinate, M (0: no shared randomness, plain LDP-FL).
    group_size: 2 is the antithetic pair; larger groups share a permutation.
    """

    mechanism = "paired_quantisation"
    epsilon: Number
    private_share: Rate
    bits: Annotated[int, partial(check_whole, least=0, most=16)] = 8
    dimension: Count = 1
    group_size: Annotated[int, partial(check_whole, least=2)] = 2

    @property
    def independent_weight(self) -> float:
        """lambda: the probability that at least one of a pair uses its private uniform."""
        return 1.0 - (1.0 - self.private_share) ** 2

    def why_unbounded(self) -> str | None:
        if self.epsilon > _LARGEST_BIT_EPSILON:
            return f"bits of epsilon above {_LARGEST_BIT_EPSILON:g} are all but sent without noise"
        if self.bits > 0 and self.private_share == 0:
            return (
                "the pair's two bits together can reveal on which side of the centre a member's value lies "
                "(published CoQ-FL is not jointly private)"
            )
        return None

    def coordinate_epsilon(self) -> float:
        from fedpriv.mechanisms.laws import largest_loss

        return math.inf if self.why_unbounded() else largest_loss(*self._worst_laws())

    def renyi(self, orders: Vector) -> Vector:
        from fedpriv.mechanisms.laws import renyi_divergence

        return self.dimension * renyi_divergence(*self._worst_laws(), orders)

    def loss_distribution(self, interval: float) -> Any:
        if self.bits == 0:
            return super().loss_distribution(interval)

        from fedpriv.mechanisms.laws import pair_against_members, pair_symmetric_loss
        from fedpriv.privacy.dp_library import discrete_pld  # seconds to import

        if self._seen_by_members:
            return discrete_pld(*pair_against_members(self.epsilon, self.private_share), interval)
        return discrete_pld(*pair_symmetric_loss(self.epsilon, self.independent_weight), interval)

    @property
    def _seen_by_members(self) -> bool:
        return self.group_size > 2 or self.threat.observer == "server+members"

    def _worst_laws(self) -> tuple[Vector, Vector]:
        """Worst-case pairs of laws of one coordinate for the event's observer."""
        import numpy as np

        from fedpriv.mechanisms import laws

        if self.bits == 0:
            first, second = laws.randomised_response(self.epsilon)
            return np.stack([first, second]), np.stack([second, first])
        if self._seen_by_members:
            return laws.pair_against_members(self.epsilon, self.private_share)
        return laws.pair_against_server(self.epsilon, self.independent_weight, self.bits)


@dataclass(frozen=True, kw_only=True)
class Shuffled(_Bits):
    """``dimension`` bits of ``users`` clients, each epsilon-private and each coordinate shuffled separately.

    delta: the part of the target delta that ONE coordinate of one release uses up.
    """

    mechanism = "shuffled"
    epsilon: Number
    users: Count
    delta: SomeDelta
    dimension: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threat.observer in ("server", "server+members"):
            raise ValueError(f"observer {self.threat.observer} sees who sent what: shuffling hides nothing from it")

    @property
    def delta_share(self) -> float:
        return 0.0 if self._amplified() is None else self.dimension * self.delta

    def coordinate_epsilon(self) -> float:
        amplified = self._amplified()
        return self.epsilon if amplified is None else amplified

    def _amplified(self) -> float | None:
        from fedpriv.mechanisms.laws import shuffled_epsilon

        return shuffled_epsilon(self.epsilon, self.users, self.delta)


@dataclass(frozen=True, kw_only=True)
class UnitCap(Event):
    """A release whose density takes two values, e^epsilon apart: PrivUnit's cap, or one symbol among several.

    inside: the probability of the set where the density is the higher, at most 1/(1 + e^-epsilon); nothing more is
    known of an epsilon-private release that is given with exactly that (`laws.cap_response`). delta: used up by ONE
    release; the price of floating point is in it and in epsilon (`fedpriv.mechanisms.privunit`).
    """

    mechanism = "unit_cap"
    epsilon: Number
    inside: Rate
    delta: Delta = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inside * (1 + math.exp(-self.epsilon)) > 1 + 1e-12:
            raise ValueError(f"inside={self.inside}: no epsilon={self.epsilon} allows more than 1/(1 + e^-epsilon)")

    @property
    def delta_share(self) -> float:
        return self.delta

    def why_unbounded(self) -> str | None:
        return without_randomness(self.epsilon)

    def pure_epsilon(self) -> float:
        return self.epsilon if self.inside else 0.0

    def renyi(self, orders: Vector) -> Vector:
        import numpy as np

        from fedpriv.mechanisms.laws import cap_response, renyi_divergence

        if self.epsilon > 600:  # the smallest probability would underflow
            return np.full(len(orders), self.epsilon)
        return renyi_divergence(*cap_response(self.epsilon, self.inside), orders)

    def loss_distribution(self, interval: float) -> Any:
        from fedpriv.mechanisms.laws import cap_response
        from fedpriv.privacy.dp_library import discrete_pld  # seconds to import

        return discrete_pld(*cap_response(self.epsilon, self.inside), interval)


# --- whole numbers in a sum -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Binomial(Event):
    """cpSGD: noise step*(Z - trials/2), Z ~ Binomial(trials, 1/2), on each of ``dimension`` coordinates.

    l1, l2, linf: sensitivities in real units; step: width of the grid, same units; trials: of the noise that
    the observer cannot subtract. delta: the part of the target delta that ONE release uses up (the bound needs one of
    its own). distance: L2 distance (real units) of two data sets' vectors before they are randomly rounded to the grid,
    each coordinate independently; infinite: unknown, only l2 is used.
    """

    mechanism = "binomial"
    step: Number
    trials: Whole
    dimension: Count
    l1: Number
    l2: Number
    linf: Number
    delta: SomeDelta
    distance: Number = math.inf

    @property
    def delta_share(self) -> float:
        return self.delta

    def at_other_adjacency(self) -> Binomial | None:
        """At zero-out, of replace-one: the distance before rounding is half, and rounding moves as far as before."""
        if self.threat.adjacency != "replace-one" or math.isinf(self.distance):
            return None
        l2 = self.l2 - self.distance / 2
        l1, half = math.sqrt(self.dimension) * l2, self.distance / 2
        return replace(self, threat=self.other_threat, l1=l1, l2=l2, distance=half)

    def why_unbounded(self) -> str | None:
        if self.trials == 0:
            return NO_NOISE
        return None if _holds(self) else "the binomial mechanism's bound does not hold for so few trials"

    def pure_epsilon(self) -> float:
        from fedpriv.mechanisms.laws import ORDERS, renyi_to_epsilon

        # half of the release's share of delta covers the event outside which the curve holds
        return float(renyi_to_epsilon(self._curve(self.delta / 2, ORDERS), self.delta / 2))

    def renyi(self, orders: Vector) -> Vector:
        return self._curve(self.delta, orders)

    def _curve(self, delta: float, orders: Vector) -> Vector:
        """Renyi divergence of one release at each order, outside an event of probability delta."""
        import numpy as np

        from fedpriv.privacy.integer_laws import binomial_renyi

        if self.step == 0:
            return np.full(len(orders), np.inf)
        l2, linf, distance = (length / self.step for length in (self.l2, self.linf, self.distance))
        return binomial_renyi(self.trials, self.dimension, l2, linf, distance, delta, orders)


@lru_cache(maxsize=10_000)
def _holds(event: Binomial) -> bool:
    """Whether there are enough trials for the bound. Asked at every release of a run."""
    from fedpriv.mechanisms.laws import ORDERS

    return not math.isinf(event.renyi(ORDERS)[0])


WholeSum = TypeVar("WholeSum", "DiscreteGaussianSum", "SkellamSum")


def _half_as_far(event: WholeSum) -> WholeSum | None:
    """At zero-out, of replace-one. A single number beside a vector may still move by its whole range."""
    if event.threat.adjacency != "replace-one":
        return None
    return replace(event, threat=event.other_threat, l2=event.l2 if event.dimension == 1 else event.l2 / 2)


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussianSum(Event):
    """Discrete Gaussian noise of ``noises`` clients on each of ``dimension`` coordinates of a sum of whole numbers.

    sigma: parameter of ONE client's noise; l2: L2 sensitivity of the sum; both in steps of the grid. noises: whose
    noise the observer does not know, the releasing client's included (1: seen alone). The sum may be known modulo any
    number: that is post-processing. Proof: `fedpriv.privacy.integer_laws`.
    """

    mechanism = "discrete_gaussian_sum"
    sigma: Number
    noises: Count
    dimension: Count
    l2: Number

    @property
    def multiplier(self) -> float:
        """Standard deviation / L2 sensitivity of the sum."""
        return math.sqrt(self.noises) * self.sigma / self.l2 if self.l2 else math.inf

    @property
    def rho(self) -> float:
        """Of the zCDP that one release satisfies; infinite where the noise is too little for the proof."""
        from fedpriv.privacy.integer_laws import sum_rho

        return sum_rho(self.sigma, self.noises, self.dimension, self.l2)

    @property
    def nearly_gaussian(self) -> tuple[float, float] | None:
        from fedpriv.privacy.integer_laws import nearly_gaussian

        return nearly_gaussian(self.sigma, self.noises, self.dimension, self.l2)

    def at_other_adjacency(self) -> DiscreteGaussianSum | None:
        return _half_as_far(self)

    def why_unbounded(self) -> str | None:
        if not math.isinf(self.rho):
            return None
        return NO_NOISE if self.sigma == 0 else f"noise of {self.sigma:.3g} grid steps is too little: bits"

    def renyi(self, orders: Vector) -> Vector:
        return self.rho * orders


@dataclass(frozen=True, kw_only=True)
class SkellamSum(Event):
    """Skellam noise of ``noises`` clients on each of ``dimension`` coordinates of a sum of whole numbers.

    variance: of ONE client's noise; l2: L2 sensitivity of the sum; both in steps of the grid. delta: the part of the
    target delta that ONE release uses up. Otherwise as `DiscreteGaussianSum`. Proof: `fedpriv.privacy.integer_laws`.
    """

    mechanism = "skellam_sum"
    variance: Number
    noises: Count
    dimension: Count
    l2: Number
    delta: SomeDelta

    @property
    def multiplier(self) -> float:
        """Standard deviation / L2 sensitivity of the sum."""
        return math.sqrt(self.noises * self.variance) / self.l2 if self.l2 else math.inf

    @property
    def delta_share(self) -> float:
        return self.delta

    @property
    def nearly_gaussian(self) -> tuple[float, float] | None:
        from fedpriv.privacy.integer_laws import skellam_nearly_gaussian

        return skellam_nearly_gaussian(self.noises * self.variance, self.dimension, self.l2, self.delta)

    def at_other_adjacency(self) -> SkellamSum | None:
        return _half_as_far(self)

    def why_unbounded(self) -> str | None:
        from fedpriv.privacy.integer_laws import LEAST_VARIANCE

        if self.noises * self.variance >= LEAST_VARIANCE:
            return None
        return NO_NOISE if self.variance == 0 else "noise of a few grid steps is too little: bits"

    def renyi(self, orders: Vector) -> Vector:
        from fedpriv.privacy.integer_laws import skellam_renyi

        return skellam_renyi(self.noises * self.variance, self.dimension, self.l2, self.delta, orders)


# --- ledgers and accounts ---------------------------------------------------------------------------------------------


#: Client id of an entry for a sum released by a trusted server: it counts for every client, sampled or not.
EVERY_CLIENT = -2


@dataclass(frozen=True)
class Entry:
    """One line of a ledger.

    event: the bound fixed before the run; realised: what was spent, where that differs.
    adaptive: a parameter of ``event`` was chosen from earlier outputs, so it is a guarantee only under a filter.
    client: `EVERY_CLIENT` for a release of a trusted server about all of them; -1 where a torn line hides the client.
    """

    round: int
    client: int
    sequence: int
    attempt: int
    event: Event
    realised: Event | None = None
    adaptive: bool = False

    def __post_init__(self) -> None:
        for name, least in (("round", 0), ("client", EVERY_CLIENT), ("sequence", 0), ("attempt", 0)):
            check_whole(name, getattr(self, name), least)
        if not isinstance(self.adaptive, bool):
            raise ValueError(f"adaptive={self.adaptive!r}: must be true or false")
        if self.realised is not None and self.realised.threat != self.event.threat:
            raise ValueError("an entry's event and what was realised have the same threat")

    @property
    def spent(self) -> Event:
        """What this release actually cost."""
        return self.realised or self.event

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sort key of a ledger: (round, client, sequence, attempt)."""
        return self.round, self.client, self.sequence, self.attempt


class Entries(Sequence[Entry]):
    """Entries of many clients, in the ledger's order; of those who are charged alike, one client's stand for all.

    alike: (entries of one client, the clients that have each of them). A client is made an `Entry` where one is read.
    """

    def __init__(self, alike: Iterable[tuple[Sequence[Entry], Sequence[int]]]) -> None:
        self.alike = list(alike)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Entries:
        """Entries that were listed one by one."""
        if isinstance(entries, cls):
            return entries
        own: dict[int, list[Entry]] = {}
        for entry in entries:
            own.setdefault(entry.client, []).append(entry)
        return cls((some, [client]) for client, some in own.items())

    def __iter__(self) -> Iterator[Entry]:
        own = [replace(entry, client=client) for some, clients in self.alike for client in clients for entry in some]
        return iter(sorted(own, key=lambda entry: entry.order))

    def __len__(self) -> int:
        return sum(len(some) * len(clients) for some, clients in self.alike)

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Account:
    """What one client has spent: equal releases are counted, in the order of their first appearance.

    `account_to_bytes` makes it bytes, to be stored in one atomic step with the client's state and its reply.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        #: (event, what was realised, adaptive) -> how often.
        self.counts: dict[tuple[Event, Event | None, bool], int] = {}
        self.next_sequence = 0
        #: Participations charged so far, and the (round, attempt) of the last.
        self.participations, self.last = 0, (-1, -1)
        for entry in entries:
            self.charge(entry)

    def charge(self, entry: Entry) -> None:
        """Charges one entry. Entries are never merged by round: a repeated release was made twice."""
        key = (entry.event, entry.realised, entry.adaptive)
        self.counts[key] = self.counts.get(key, 0) + 1
        self.next_sequence = max(self.next_sequence, entry.sequence + 1)
        place = (entry.round, entry.attempt)
        self.participations, self.last = self.participations + (place != self.last), place

    def after(self, entries: Iterable[Entry]) -> Account:
        """The account after these entries too. This one stays as it is: clients that have spent the same share it."""
        twin = Account()
        twin.counts, twin.next_sequence = dict(self.counts), self.next_sequence
        twin.participations, twin.last = self.participations, self.last
        for entry in entries:
            twin.charge(entry)
        return twin

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal accounts."""
        return tuple(self.counts.items()), self.next_sequence, self.participations, self.last

    def spent(self, threat: Threat | None = None) -> list[Event]:
        """What was actually spent (under one threat), for `Budget.admits`; equal releases as one event with a count."""
        events = [(realised or event, times) for (event, realised, _), times in self.counts.items()]
        return [_times(event, times) for event, times in events if threat in (None, event.threat)]

    def entries(self) -> list[Entry]:
        """One entry per distinct release with its count, for `composition.verify`; rounds and sequences are lost."""
        return [
            Entry(0, 0, 0, 0, _times(event, times), realised and _times(realised, times), adaptive)
            for (event, realised, adaptive), times in self.counts.items()
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and self.key == other.key

    __hash__ = None  # type: ignore[assignment]


def _times(event: Event, times: int) -> Event:
    return event if times == 1 else replace(event, count=event.count * times)


# --- JSON -------------------------------------------------------------------------------------------------------------


def event_to_json(event: Event, with_threat: bool = True) -> dict[str, Any]:
    """Flat object: mechanism, its parameters, count, and the threat's three words."""
    flat: dict[str, Any] = {"mechanism": event.mechanism}
    for field in fields(event):
        value = getattr(event, field.name)
        if field.name != "threat":
            flat[field.name] = "inf" if value == math.inf else value
    return flat | vars(event.threat) if with_threat else flat


def event_from_json(flat: Mapping[str, Any], threat: Threat | None = None) -> Event:
    """The event of a flat object (threat: where the object has none). Equal objects give the same instance.

    Raises ValueError on anything malformed, unknown keys included.
    """
    try:
        return _event(threat, tuple((key, type(value), value) for key, value in flat.items()))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not an event: {dict(flat)}: {error}") from None


@lru_cache(maxsize=100_000)
def _event(threat: Threat | None, items: tuple[tuple[str, type, Any], ...]) -> Event:
    values: dict[str, Any] = {key: math.inf if value == "inf" else value for key, _, value in items}
    if threat is None:
        threat = Threat(values.pop("unit"), values.pop("adjacency"), values.pop("observer"))
    kind = MECHANISMS.get(values.pop("mechanism"))
    if kind is None:
        raise ValueError(f"unknown mechanism in {items}")
    return kind(threat=threat, **values)


_ENTRY_KEYS = ("round", "client", "sequence", "attempt")


def charge_to_json(event: Event, realised: Event | None, adaptive: bool) -> dict[str, Any]:
    """What one release is charged with, as one flat object; ``realised`` is nested and shares the event's threat."""
    flat = event_to_json(event)
    if realised is not None:
        flat["realised"] = event_to_json(realised, with_threat=False)
    if adaptive:
        flat["adaptive"] = True
    return flat


def charge_from_json(flat: Mapping[str, Any]) -> tuple[Event, Event | None, bool]:
    """Inverse of `charge_to_json`. Raises ValueError on anything malformed, unknown keys included."""
    rest = dict(flat)
    realised, adaptive = rest.pop("realised", None), rest.pop("adaptive", False)
    event = event_from_json(rest)
    try:
        return event, event_from_json(realised, event.threat) if "realised" in flat else None, adaptive
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not what was realised: {realised!r}: {error!r}") from None


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """One flat object: the entry's place in the ledger, and `charge_to_json`."""
    place = {key: getattr(entry, key) for key in _ENTRY_KEYS}
    return place | charge_to_json(entry.event, entry.realised, entry.adaptive)


def entry_from_json(flat: Mapping[str, Any]) -> Entry:
    """Inverse of `entry_to_json`. Raises ValueError on anything malformed."""
    try:
        rest = dict(flat)
        place = {key: rest.pop(key) for key in _ENTRY_KEYS}
        event, realised, adaptive = charge_from_json(rest)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a ledger entry: {flat!r}: {error!r}") from None
    return Entry(**place, event=event, realised=realised, adaptive=adaptive)


def account_to_bytes(account: Account) -> bytes:
    """JSON."""
    lines = []
    for (event, realised, adaptive), times in account.counts.items():
        spent = None if realised is None else event_to_json(realised, with_threat=False)
        lines.append({"event": event_to_json(event), "realised": spent, "adaptive": adaptive, "times": times})
    head = {"next_sequence": account.next_sequence, "participations": account.participations, "last": account.last}
    return json.dumps(head | {"lines": lines}, separators=(",", ":")).encode()


def account_from_bytes(content: bytes) -> Account:
    """Inverse of `account_to_bytes`. Raises ValueError on anything malformed: a broken one is never an empty one."""
    return _account(content)


@lru_cache(maxsize=256)  # clients with equally many participations have spent the same, and share it
def _account(content: bytes) -> Account:
    account = Account()
    try:
        stored = json.loads(content)
        account.next_sequence = _count(stored["next_sequence"], least=0)
        account.participations = _count(stored["participations"], least=0)
        server_round, attempt = stored["last"]
        account.last = _count(server_round, least=-1), _count(attempt, least=-1)
        for line in stored["lines"]:
            event = event_from_json(line["event"])
            realised = None if line["realised"] is None else event_from_json(line["realised"], event.threat)
            account.counts[event, realised, line["adaptive"]] = _count(line["times"], least=1)
    except (KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"not an account: {error!r}") from None
    return account


def _count(value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is not a whole number of at least {least}")
    return value
