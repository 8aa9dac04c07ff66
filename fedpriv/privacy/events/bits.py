"""Bits, one per coordinate: drawn alone, correlated with a partner's, or shuffled."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from fedpriv.privacy.events.event import Event, check_number, check_share_of_delta, check_whole, without_randomness

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector


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
    epsilon: float
    dimension: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("epsilon", self.epsilon)
        check_whole("dimension", self.dimension, least=1)

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

    @property
    def delta_share(self) -> float:
        return 0.0 if self._amplified() is None else self.dimension * self.delta

    def coordinate_epsilon(self) -> float:
        amplified = self._amplified()
        return self.epsilon if amplified is None else amplified

    def _amplified(self) -> float | None:
        from fedpriv.mechanisms.laws import shuffled_epsilon

        return shuffled_epsilon(self.epsilon, self.users, self.delta)
