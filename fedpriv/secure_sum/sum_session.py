"""What is public of one secure sum, and which clients hold shares of which.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning" (CCS 2017); in large sums the
sparse graph of Bell et al., "Secure single-server aggregation with (poly)logarithmic overhead" (CCS 2020).

Symbols: n -> members, t -> threshold, k -> neighbours, U1 -> roster, U2 -> senders, U3 -> survivors.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.common.errors import FedprivError
from fedpriv.common.messages import shown
from fedpriv.common.sum_graph import graph_of
from fedpriv.mechanisms.noise import encode_key

PROTOCOL = "fedpriv secure sum 4"
MOST_BITS, MOST_SIZE, MOST_NUMBER = 64, 2**31, 2**62
DIGEST_BYTES = 32
_NUMBERS = ("round", "attempt", "threshold", "neighbours", "colluders", "bits", "size")


class SumRefused(FedprivError):
    """A secure sum that must not go on; says which rule it breaks. Nothing was answered."""


@dataclass(frozen=True)
class SumSession:
    """The public context of one sum: it goes into every derivation and under every signature.

    run: its name or number. attempt: the server's, the same for all members. members: sorted ids of all who are asked.
    threshold: shares that open a secret. neighbours: with how many others a client shares masks; 0: with all.
    colluders: members that may help the server. bits: of the modulus. size: whole numbers in a vector. options, model:
    SHA-256 of the run's options and of `model_text`.
    """

    run: str
    round: int
    attempt: int
    members: tuple[int, ...]
    threshold: int
    neighbours: int
    colluders: int
    bits: int
    size: int
    options: bytes
    model: bytes

    def __post_init__(self) -> None:
        if not all(type(number) is int and 0 <= number <= MOST_NUMBER for number in (*self.members, *self._numbers)):
            raise SumRefused(f"members and {', '.join(_NUMBERS)} must be whole numbers")
        if not self.members or list(self.members) != sorted(set(self.members)):
            raise SumRefused("the members must be different and in order")
        if not (1 <= self.bits <= MOST_BITS and 1 <= self.size <= MOST_SIZE):
            raise SumRefused(f"{self.size} numbers of {self.bits} bits cannot be masked")
        if self.neighbours % 2 or not 2 <= self.threshold <= self.most_holders:
            raise SumRefused(f"threshold {self.threshold} of {self.most_holders} holders, {self.neighbours} neighbours")
        if len(self.options) != DIGEST_BYTES or len(self.model) != DIGEST_BYTES:
            raise SumRefused(f"a digest has {DIGEST_BYTES} bytes")

    @property
    def _numbers(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in _NUMBERS)

    @property
    def most_holders(self) -> int:
        """How many clients hold a share of one client's secrets, itself included, where nobody drops out."""
        return min(len(self.members), self.neighbours + 1) if self.neighbours else len(self.members)

    @property
    def modulus(self) -> int:
        return 1 << self.bits

    @cached_property
    def digest(self) -> bytes:
        text = encode_key(PROTOCOL, self.run, *self._numbers, len(self.members), *self.members)
        return hashlib.sha256(text + self.options + self.model).digest()

    def info(self, purpose: str, *more: int) -> bytes:
        """What a derivation or a signature before the roster is bound to."""
        return _named(purpose) + (encode_key(*more) if more else b"") + self.digest


@dataclass(frozen=True)
class Group:
    """The clients that announced keys, and who of them share masks and hold shares of each other; see `group_of`.

    announced: the announcements of those whom the owner of this object needs, its own included. digest: of all.
    """

    session: SumSession
    roster: tuple[int, ...]
    announced: Mapping[int, bytes]
    digest: bytes

    @property
    def complete(self) -> bool:
        return not self.session.neighbours

    def signers(self, floor: int) -> int:
        """Fewest signatures of one survivor set before a share leaves: two sets cannot both have so many among the
        roster, of whom the colluders sign anything. floor: fewest survivors that a guarantee counts on.
        """
        if self.complete:
            return self.session.threshold
        return max(floor, (len(self.roster) + self.session.colluders) // 2 + 1)

    def info(self, purpose: str, *more: int) -> bytes:
        """What a derivation or a signature after the roster is bound to."""
        return _named(purpose) + (encode_key(*more) if more else b"") + self.digest

    @cached_property
    def _ring(self) -> tuple[int, ...]:
        seed = self.info("ring")  # of the announced keys too: nobody knows the ring before they are there

        def place(client: int) -> bytes:
            return hashlib.sha256(seed + encode_key(client)).digest()

        return tuple(sorted(self.session.members, key=place))

    @cached_property
    def _places(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self._ring)}

    def peers(self, client: int) -> tuple[int, ...]:
        """Sorted, without the client: all others, or those among k/2 on either side of it on a ring of all members in a
        random order, the Harary graph of [Bell et al. 2020, 3.1], which is public once all keys are announced. Whoever
        announced nothing leaves a gap: the server cannot bring two clients together by leaving out those between them.
        """
        if self.complete:
            return tuple(other for other in self.roster if other != client)
        place, half = self._places[client], self.session.neighbours // 2
        count = len(self._ring)
        around = {self._ring[(place + step) % count] for step in range(-half, half + 1) if step}
        return tuple(sorted(around & self._present))

    @cached_property
    def _present(self) -> frozenset[int]:
        return frozenset(self.roster)


@lru_cache(maxsize=16)
def _named(purpose: str) -> bytes:
    return encode_key(PROTOCOL, purpose)


def group_of(session: SumSession, announced: Mapping[int, bytes]) -> Group:
    """Of all who announced keys. Its digest binds every key: whoever has two sets of them is in two groups."""
    roster = tuple(sorted(announced))
    text = session.info("group", len(roster), *roster) + b"".join(announced[client] for client in roster)
    return Group(session, roster, announced, hashlib.sha256(text).digest())


def session_of(
    run: str, place: tuple[int, int], members: Sequence[int], options: Any, bits: int, size: int, facts: Sequence[bytes]
) -> SumSession:
    """The session that a run's options make. place: round and attempt; options: with ``threshold`` and ``colluders``;
    facts: the digests of the run's options and of the model.
    """
    k, t = graph_of(len(members), options.threshold, options.colluders)
    return SumSession(run, *place, tuple(members), t, k, options.colluders, bits, size, *facts)


def model_text(theta: NDArray[Any], clip_norm: object) -> bytes | memoryview:
    """What members sign of a round's model: the bytes of theta, and the round's C where it moves (else None).

    Raises `SumRefused` for a clip norm that is no float.
    """
    text = np.ascontiguousarray(theta).data.cast("B")
    if clip_norm is None:
        return text
    if not isinstance(clip_norm, float):
        raise SumRefused(f"the server announces the clip norm {shown(clip_norm)}")
    return b"".join((text, struct.pack("<d", clip_norm)))


def in_order(numbers: Sequence[int]) -> bool:
    """Whether these are different whole numbers from the least to the largest."""
    return all(type(number) is int for number in numbers) and list(numbers) == sorted(set(numbers))
