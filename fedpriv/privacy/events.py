"""Records of what leaves a client: a release is an `Event` under a `Threat`, and a ledger line is an `Entry`.

Noise is always standard deviation (or scale) divided by the sensitivity **under the event's own adjacency**:
the option ``noise_multiplier`` (standard deviation / clip norm) is twice that under replace-one.
No heavy imports here: every client loads this module at start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedpriv.privacy.event_base import ADJACENCIES as ADJACENCIES
from fedpriv.privacy.event_base import BLIND_TO_COHORT as BLIND_TO_COHORT
from fedpriv.privacy.event_base import CLIENT_TO_SERVER as CLIENT_TO_SERVER
from fedpriv.privacy.event_base import OBSERVERS as OBSERVERS
from fedpriv.privacy.event_base import SECURE_SUM as SECURE_SUM
from fedpriv.privacy.event_base import UNITS as UNITS
from fedpriv.privacy.event_base import (
    Event,
    check_amplifies,
    check_number,
    check_share_of_delta,
    check_whole,
)
from fedpriv.privacy.event_base import Threat as Threat
from fedpriv.privacy.integer_events import Binomial, DiscreteGaussianSum, SkellamSum


@dataclass(frozen=True, kw_only=True)
class Gaussian(Event):
    """Independent normal noise on every coordinate. multiplier: std / L2 sensitivity; 0 means no noise."""

    mechanism = "gaussian"
    multiplier: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("multiplier", self.multiplier)

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


@dataclass(frozen=True, kw_only=True)
class Laplace(Event):
    """Independent Laplace noise on every coordinate. multiplier: scale / L1 sensitivity; 0 means no noise."""

    mechanism = "laplace"
    multiplier: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("multiplier", self.multiplier)


@dataclass(frozen=True, kw_only=True)
class PoissonGaussian(Event):
    """A Gaussian over a Poisson sample: of a client's examples, or of the clients at a trusted aggregate.

    multiplier: std / sensitivity to one unit that *is* in the sample. The sample must come from randomness
    that the observer cannot know. Replace-one is refused: no sound analysis of it is implemented.
    """

    mechanism = "poisson_gaussian"
    multiplier: float
    sampling_rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("multiplier", self.multiplier)
        check_number("sampling_rate", self.sampling_rate, most=1.0)
        if self.threat.adjacency == "replace-one":
            raise ValueError("a Poisson sample is accounted under add-or-remove-one or zero-out, not replace-one")
        check_amplifies(self)


@dataclass(frozen=True, kw_only=True)
class FixedSizeGaussian(Event):
    """A Gaussian over ``sample_size`` of ``population`` units drawn without replacement.

    multiplier: std / sensitivity to replacing one unit that is in the sample (of a clipped sum: 2C).
    """

    mechanism = "fixed_size_gaussian"
    multiplier: float
    sample_size: int
    population: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("multiplier", self.multiplier)
        check_whole("population", self.population, least=1)
        check_whole("sample_size", self.sample_size, least=0, most=self.population)
        if self.threat.adjacency != "replace-one":
            raise ValueError(f"a sample of fixed size is accounted under replace-one, not {self.threat.adjacency}")
        check_amplifies(self)


@dataclass(frozen=True, kw_only=True)
class ZCDP(Event):
    """Any mechanism that satisfies rho-zCDP (Bun and Steinke 2016)."""

    mechanism = "zcdp"
    rho: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("rho", self.rho)


@dataclass(frozen=True, kw_only=True)
class GumbelTopK(Event):
    """One-shot top-k: Gumbel noise on scores, the k best indices leave (Durfee and Rogers 2019).

    epsilon: (range of one score's log-likelihood ratio) of one pick; with scores in [0, tau] and Gumbel scale b it
    is 2*tau/b under replace-one and tau/b under zero-out. The release is k*epsilon**2/8-zCDP.
    """

    mechanism = "gumbel_top_k"
    k: int
    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("k", self.k, least=1)
        check_number("epsilon", self.epsilon)


@dataclass(frozen=True, kw_only=True)
class RandomisedResponse(Event):
    """``dimension`` bits, each epsilon-locally private and drawn independently (LDP-FL: one per coordinate)."""

    mechanism = "randomised_response"
    epsilon: float
    dimension: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("epsilon", self.epsilon)
        check_whole("dimension", self.dimension, least=1)


@dataclass(frozen=True, kw_only=True)
class UnitCap(Event):
    """A release whose density takes two values, e^epsilon apart: PrivUnit's cap, or one symbol among several.

    inside: the probability of the set where the density is the higher, at most 1/(1 + e^-epsilon); nothing more is
    known of an epsilon-private release that is given with exactly that (`laws.cap_response`). delta: used up by ONE
    release; the price of floating point is in it and in epsilon (`fedpriv.mechanisms.privunit`).
    """

    mechanism = "unit_cap"
    epsilon: float
    inside: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("epsilon", self.epsilon)
        check_number("inside", self.inside, most=1.0)
        check_number("delta", self.delta)
        if self.delta >= 1:
            raise ValueError(f"delta={self.delta}: must be in [0, 1)")
        if self.inside * (1 + math.exp(-self.epsilon)) > 1 + 1e-12:
            raise ValueError(f"inside={self.inside}: no epsilon={self.epsilon} allows more than 1/(1 + e^-epsilon)")


@dataclass(frozen=True, kw_only=True)
class PairedQuantisation(Event):
    """CoQ-FL: ``dimension`` bits, each epsilon-private alone, correlated with the partner's by shared randomness.

    private_share: the repair's mu, the probability that a client uses a private uniform for a coordinate (0 is the
    published method). bits: shared bits per coordinate, M (0: no shared randomness, plain LDP-FL).
    group_size: 2 is the antithetic pair; larger groups share a permutation.
    """

    mechanism = "paired_quantisation"
    epsilon: float
    private_share: float
    bits: int = 8
    dimension: int = 1
    group_size: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("epsilon", self.epsilon)
        check_number("private_share", self.private_share, most=1.0)
        check_whole("bits", self.bits, least=0, most=16)
        check_whole("dimension", self.dimension, least=1)
        check_whole("group_size", self.group_size, least=2)

    @property
    def independent_weight(self) -> float:
        """lambda: the probability that at least one of a pair uses its private uniform."""
        return 1.0 - (1.0 - self.private_share) ** 2


@dataclass(frozen=True, kw_only=True)
class Shuffled(Event):
    """``dimension`` bits of ``users`` clients, each epsilon-private and each coordinate shuffled separately.

    delta: the part of the target delta that ONE coordinate of one release uses up.
    """

    mechanism = "shuffled"
    epsilon: float
    users: int
    delta: float
    dimension: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("epsilon", self.epsilon)
        check_whole("users", self.users, least=1)
        check_whole("dimension", self.dimension, least=1)
        check_share_of_delta(self.delta)
        if self.threat.observer in ("server", "server+members"):
            raise ValueError(f"observer {self.threat.observer} sees who sent what: shuffling hides nothing from it")


@dataclass(frozen=True, kw_only=True)
class ApproximateDP(Event):
    """A mechanism known only by its (epsilon, delta) pair; one release uses up delta."""

    mechanism = "approximate_dp"
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("epsilon", self.epsilon)
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta={self.delta}: must be in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class NoBound(Event):
    """A release without a sound bound: the total is infinite, for this reason in words."""

    mechanism = "no_bound"
    reason: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.reason:
            raise ValueError("reason: a release without a bound says why")


MECHANISMS: dict[str, type[Event]] = {
    kind.mechanism: kind
    for kind in (
        Gaussian,
        Laplace,
        PoissonGaussian,
        FixedSizeGaussian,
        ZCDP,
        GumbelTopK,
        RandomisedResponse,
        UnitCap,
        PairedQuantisation,
        Binomial,
        DiscreteGaussianSum,
        SkellamSum,
        Shuffled,
        ApproximateDP,
        NoBound,
    )
}


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
