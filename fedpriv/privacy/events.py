"""What leaves a client, as records: a release is an `Event` under a `Threat`, and a ledger line is an `Entry`.

Noise is always standard deviation (or scale) divided by the sensitivity **under the event's own adjacency**:
the option ``noise_multiplier`` (standard deviation / clip norm) is twice that under replace-one.
Nothing heavy is imported here: every client loads this module at start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

UNITS = ("client", "example")
ADJACENCIES = ("replace-one", "zero-out", "add-or-remove-one")
OBSERVERS = ("server", "server+members", "secure-sum", "trusted-server", "public")
#: Observers from whom it is hidden which clients took part: for them alone, sampling clients amplifies.
BLIND_TO_COHORT = ("trusted-server", "public")


@dataclass(frozen=True)
class Threat:
    """Whose data, compared with what, seen by whom (privacy.md). Only equal threats are ever composed."""

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
#: Whoever sees the sum of a round's releases only. Secure summation is assumed, not implemented.
SECURE_SUM = Threat("client", "replace-one", "secure-sum")


@dataclass(frozen=True, kw_only=True)
class Event:
    """``count`` independent releases of one mechanism. Raises ValueError for impossible values (NaN included)."""

    mechanism: ClassVar[str]
    threat: Threat
    count: int = 1

    def __post_init__(self) -> None:
        _whole("count", self.count, least=1)


@dataclass(frozen=True, kw_only=True)
class Gaussian(Event):
    """Independent normal noise on every coordinate. multiplier: std / L2 sensitivity; 0 is no noise at all."""

    mechanism = "gaussian"
    multiplier: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _number("multiplier", self.multiplier)

    def in_sum(self, noises: int) -> Gaussian:
        """What is left of this release for whoever sees nothing but the sum of a round's releases.

        noises: how many of them carry noise of this size that the observer does not know, this one among them: the
        fewest that are ever summed, less the colluders. Given all earlier sums, the other clients' clipped updates are
        fixed, so one client's data move the sum by as much as its own release, while the independent noises N(0, s^2)
        add up to N(0, noises s^2): the multiplier grows by sqrt(noises), and rounds compose adaptively. That needs
        equal weights in the sum, one clip norm for all in a round (a server that announced a smaller one to the others
        would make their noise smaller; whoever counts on a sum trusts the server with its announcements, as with
        min_replies), and clients that keep nothing between rounds which the observer has not seen.
        Raises ValueError for fewer than one noise.
        """
        _whole("noises", noises, least=1)
        return replace(self, threat=SECURE_SUM, multiplier=math.sqrt(noises) * self.multiplier)


@dataclass(frozen=True, kw_only=True)
class Laplace(Event):
    """Independent Laplace noise on every coordinate. multiplier: scale / L1 sensitivity; 0 is no noise at all."""

    mechanism = "laplace"
    multiplier: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _number("multiplier", self.multiplier)


@dataclass(frozen=True, kw_only=True)
class PoissonGaussian(Event):
    """A Gaussian over a Poisson sample: of a client's examples, or of the clients at a trusted aggregate.

    multiplier: std / sensitivity to one unit that *is* in the sample. The sample must come from randomness
    that the observer cannot know. Replace-one is refused: no sound analysis of it is offered here.
    """

    mechanism = "poisson_gaussian"
    multiplier: float
    sampling_rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _number("multiplier", self.multiplier)
        _number("sampling_rate", self.sampling_rate, most=1.0)
        if self.threat.adjacency == "replace-one":
            raise ValueError("a Poisson sample is accounted under add-or-remove-one or zero-out, not replace-one")
        _may_amplify(self)


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
        _number("multiplier", self.multiplier)
        _whole("population", self.population, least=1)
        _whole("sample_size", self.sample_size, least=0, most=self.population)
        if self.threat.adjacency != "replace-one":
            raise ValueError(f"a sample of fixed size is accounted under replace-one, not {self.threat.adjacency}")
        _may_amplify(self)


@dataclass(frozen=True, kw_only=True)
class ZCDP(Event):
    """Any mechanism that satisfies rho-zCDP (Bun and Steinke 2016)."""

    mechanism = "zcdp"
    rho: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _number("rho", self.rho)


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
        _whole("k", self.k, least=1)
        _number("epsilon", self.epsilon)


@dataclass(frozen=True, kw_only=True)
class RandomisedResponse(Event):
    """``dimension`` bits, each epsilon-locally private and answered on its own (LDP-FL: one per coordinate)."""

    mechanism = "randomised_response"
    epsilon: float
    dimension: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _number("epsilon", self.epsilon)
        _whole("dimension", self.dimension, least=1)


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
        _number("epsilon", self.epsilon)
        _number("inside", self.inside, most=1.0)
        _number("delta", self.delta)
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
        _number("epsilon", self.epsilon)
        _number("private_share", self.private_share, most=1.0)
        _whole("bits", self.bits, least=0, most=16)
        _whole("dimension", self.dimension, least=1)
        _whole("group_size", self.group_size, least=2)

    @property
    def independent_weight(self) -> float:
        """lambda: the probability that at least one of a pair uses its private uniform."""
        return 1.0 - (1.0 - self.private_share) ** 2


@dataclass(frozen=True, kw_only=True)
class Binomial(Event):
    """cpSGD: noise step*(Z - trials/2), Z ~ Binomial(trials, 1/2), on each of ``dimension`` coordinates.

    l1, l2, linf: sensitivities in real units; step: width of the grid, same units; trials: those the observer
    cannot subtract. delta: the part of the target delta that ONE release uses up (the bound needs one of its own).
    distance: how far (L2, real units) two data sets' vectors are apart before they are rounded to the grid at random,
    each coordinate on its own; infinite: unknown, l2 alone counts.
    """

    mechanism = "binomial"
    step: float
    trials: int
    dimension: int
    l1: float
    l2: float
    linf: float
    delta: float
    distance: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        _whole("trials", self.trials, least=0)
        _whole("dimension", self.dimension, least=1)
        for name in ("step", "l1", "l2", "linf", "distance"):
            _number(name, getattr(self, name))
        _share_of_delta(self.delta)


@dataclass(frozen=True, kw_only=True)
class Shuffled(Event):
    """``dimension`` bits of ``users`` clients, each epsilon-private and each coordinate shuffled on its own.

    delta: the part of the target delta that ONE coordinate of one release uses up.
    """

    mechanism = "shuffled"
    epsilon: float
    users: int
    delta: float
    dimension: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _number("epsilon", self.epsilon)
        _whole("users", self.users, least=1)
        _whole("dimension", self.dimension, least=1)
        _share_of_delta(self.delta)
        if self.threat.observer in ("server", "server+members"):
            raise ValueError(f"observer {self.threat.observer} sees who sent what: shuffling hides nothing from it")


@dataclass(frozen=True, kw_only=True)
class ApproximateDP(Event):
    """Anything known by an (epsilon, delta) pair alone; delta is used up by one release."""

    mechanism = "approximate_dp"
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _number("epsilon", self.epsilon)
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
        Shuffled,
        ApproximateDP,
        NoBound,
    )
}


#: Whose entry it is where a trusted server releases a sum: every client's, whether or not it was in the sample.
EVERY_CLIENT = -2


@dataclass(frozen=True)
class Entry:
    """One line of a ledger.

    event: the bound that was fixed before the run; realised: what was spent, where that is something else.
    adaptive: a parameter of ``event`` was chosen from earlier outputs, so it is a guarantee only under a filter.
    client: `EVERY_CLIENT` for what a trusted server released of all of them; -1 where a torn line hides whose it was.
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
            _whole(name, getattr(self, name), least)
        if not isinstance(self.adaptive, bool):
            raise ValueError(f"adaptive={self.adaptive!r}: must be true or false")
        if self.realised is not None and self.realised.threat != self.event.threat:
            raise ValueError("an entry's event and what was realised have the same threat")

    @property
    def spent(self) -> Event:
        """What this release really cost."""
        return self.realised or self.event

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sort key of a ledger: (round, client, sequence, attempt)."""
        return self.round, self.client, self.sequence, self.attempt


# --- checks ------------------------------------------------------------------------------------------------


def _number(name: str, value: float, most: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError(
            f"{name}={value!r}: must be a number of at least 0" + (f", at most {most}" * (most < math.inf))
        )


def _whole(name: str, value: int, least: int, most: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name}={value!r}: must be a whole number of at least {least}")


def _share_of_delta(delta: float) -> None:
    _number("delta", delta)
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: must be in (0, 1)")


def _may_amplify(event: Event) -> None:
    if event.threat.unit == "client" and event.threat.observer not in BLIND_TO_COHORT:
        raise ValueError(f"observer {event.threat.observer} knows who took part: sampling clients does not amplify")
