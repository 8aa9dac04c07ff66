"""What is public of one secure sum, and which clients hold shares of which.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning" (CCS 2017); above `COMPLETE`
clients the sparse graph of Bell et al., "Secure single-server aggregation with (poly)logarithmic overhead" (CCS 2020).

Symbols: n -> members, t -> threshold, k -> neighbours, U1 -> roster, U2 -> senders, U3 -> survivors.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedpriv.common.errors import FedprivError
from fedpriv.config.sum_methods import COMPLETE
from fedpriv.mechanisms.noise_sources import encode_key

PROTOCOL = "fedpriv secure sum 1"
MOST_BITS, MOST_SIZE, MOST_NUMBER = 64, 2**31, 2**62
DIGEST_BYTES = 32


class SumRefused(FedprivError):
    """A secure sum that must not go on; says which rule it breaks. Nothing was answered."""


@dataclass(frozen=True)
class SumSession:
    """The public context of one sum: it goes into every derivation and under every signature.

    run: its name or number. attempt: the server's, the same for all members. members: sorted ids of all who are asked.
    threshold: shares that open a secret. neighbours: with how many others a client shares masks; 0: with all. bits: of
    the modulus. size: whole numbers in a vector. options, model: SHA-256 of the run's options and of theta.
    """

    run: str
    round: int
    attempt: int
    members: tuple[int, ...]
    threshold: int
    neighbours: int
    bits: int
    size: int
    options: bytes
    model: bytes

    def __post_init__(self) -> None:
        numbers = (*self.members, self.round, self.attempt, self.threshold, self.neighbours, self.bits, self.size)
        if not all(type(number) is int and 0 <= number <= MOST_NUMBER for number in numbers):
            raise SumRefused("round, attempt, members, threshold, neighbours, bits and size must be whole numbers")
        if not self.members or list(self.members) != sorted(set(self.members)):
            raise SumRefused("the members must be different and in order")
        if not (1 <= self.bits <= MOST_BITS and 1 <= self.size <= MOST_SIZE):
            raise SumRefused(f"{self.size} numbers of {self.bits} bits cannot be masked")
        if self.neighbours % 2 or not 2 <= self.threshold <= self.most_holders:
            raise SumRefused(f"threshold {self.threshold} of {self.most_holders} holders, {self.neighbours} neighbours")
        if len(self.options) != DIGEST_BYTES or len(self.model) != DIGEST_BYTES:
            raise SumRefused(f"a digest has {DIGEST_BYTES} bytes")

    @property
    def most_holders(self) -> int:
        """How many clients hold a share of one client's secrets, itself included, where nobody drops out."""
        return min(len(self.members), self.neighbours + 1) if self.neighbours else len(self.members)

    @property
    def modulus(self) -> int:
        return 1 << self.bits

    @cached_property
    def digest(self) -> bytes:
        numbers = (self.round, self.attempt, self.threshold, self.neighbours, self.bits, self.size, len(self.members))
        return hashlib.sha256(
            encode_key(PROTOCOL, self.run, *numbers, *self.members) + self.options + self.model
        ).digest()

    def info(self, purpose: str, *more: int) -> bytes:
        """What a derivation or a signature before the roster is bound to."""
        return encode_key(PROTOCOL, purpose, *more) + self.digest


@dataclass(frozen=True)
class Group:
    """The clients that announced keys, who of them share masks and hold shares of each other, and one digest of it all.

    announced: the announcements of those whom the owner of this object knows, its own included.
    """

    session: SumSession
    roster: tuple[int, ...]
    announced: Mapping[int, bytes]

    @property
    def complete(self) -> bool:
        return not self.session.neighbours or self.session.neighbours + 1 >= len(self.roster)

    @cached_property
    def digest(self) -> bytes:
        """In a complete graph it binds every announced key; in a sparse one, where clients know their neighbours' keys
        only, it binds who has announced some.
        """
        text = self.session.info("group", len(self.roster), *self.roster)
        if self.complete:
            text += b"".join(self.announced[client] for client in self.roster)
        return hashlib.sha256(text).digest()

    def info(self, purpose: str, *more: int) -> bytes:
        """What a derivation or a signature after the roster is bound to."""
        return encode_key(PROTOCOL, purpose, *more) + self.digest

    @cached_property
    def _ring(self) -> tuple[int, ...]:
        seed = self.session.info("ring")

        def place(client: int) -> bytes:
            return hashlib.sha256(seed + encode_key(client)).digest()

        return tuple(sorted(self.roster, key=place))

    @cached_property
    def _places(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self._ring)}

    def peers(self, client: int) -> tuple[int, ...]:
        """Sorted, without the client: all others, or k/2 on either side of it on a ring in a random public order, the
        Harary graph of [Bell et al. 2020, 3.1].
        """
        if self.complete:
            return tuple(other for other in self.roster if other != client)
        place, half = self._places[client], self.session.neighbours // 2
        count = len(self._ring)
        return tuple(sorted(self._ring[(place + step) % count] for step in range(-half, half + 1) if step))


def default_threshold(holders: int) -> int:
    """The least t above 2/3 of the holders: then a server that is helped by fewer than a third of them does not get
    both secrets of a client, whomever it tells what ([Bonawitz et al. 2017, Table 1]).
    """
    return max(2, 2 * holders // 3 + 1)


def graph_of(clients: int, threshold: int | None, neighbours: int | None) -> tuple[int, int]:
    """(neighbours, threshold) of a sum of so many clients, where the run's options name both, one or none of them."""
    if neighbours is None:
        k, t = chosen_graph(clients)
    else:
        k = 0 if neighbours + 1 >= clients else neighbours + neighbours % 2
        t = default_threshold(min(clients, k + 1) if k else clients)
    return k, t if threshold is None else threshold


def chosen_graph(clients: int, colluding: float = 0.2, dropping: float = 0.2) -> tuple[int, int]:
    """(neighbours k, threshold t) for so many clients of which these shares collude with the server and drop out: the
    least even k for which, over a random graph,

    - colluders among any client's holders reach t with probability at most 2^-40,
    - those who stay among any client's holders are fewer than t with probability at most 2^-20,
    - the clients that neither collude nor drop out hang together but with probability at most 2^-40: on a ring they
      fall apart only where k/2 neighbours in a row are gone, at most n (colluding + dropping)^(k/2).

    Up to `COMPLETE` clients: (0, `default_threshold`).
    """
    if clients <= COMPLETE:
        return 0, default_threshold(clients)
    bad, gone = math.ceil(colluding * clients), math.ceil(dropping * clients)
    for half in range(1, clients // 2):
        k = 2 * half
        if clients * ((bad + gone) / clients) ** half > 2**-40:
            continue
        lying, leaving = _tails(clients - 1, bad, k), _tails(clients - 1, gone, k)
        for t in range(k // 2 + 1, k + 1):
            # An honest client holds a share of its own, which it gives where it stays; t of the k others lie in wait.
            if clients * lying[t] <= 2**-40 and clients * leaving[k + 1 - t] <= 2**-20:
                return k, t
    return 0, default_threshold(clients)


def _tails(population: int, marked: int, drawn: int) -> list[float]:
    """P[at least i of the drawn are marked], i = 0..drawn + 1, without replacement."""
    logs = [math.lgamma(number + 1) for number in range(population + 1)]

    def log_choose(n: int, r: int) -> float:
        return logs[n] - logs[r] - logs[n - r] if 0 <= r <= n else -math.inf

    whole = log_choose(population, drawn)
    law = [
        math.exp(log_choose(marked, i) + log_choose(population - marked, drawn - i) - whole) for i in range(drawn + 1)
    ]
    tails = [0.0] * (drawn + 2)
    for i in range(drawn, -1, -1):
        tails[i] = tails[i + 1] + law[i]
    return tails


def in_order(numbers: Sequence[int]) -> bool:
    """Whether these are different whole numbers from the least to the largest."""
    return all(type(number) is int for number in numbers) and list(numbers) == sorted(set(numbers))
