"""A whole secure sum in memory: members, a server that collects, and who drops out in which exchange."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedpriv.common.identities import Identity, new_identity
from fedpriv.common.sum_graph import default_threshold
from fedpriv.secure_sum.collector import Collector
from fedpriv.secure_sum.member import Member, join
from fedpriv.secure_sum.sum_session import SumSession

THETA = b"theta"
KEYS, SHARES, TRAIN, CONFIRM, UNMASK, NEVER = range(6)
OTHERS = hashlib.sha256(b"options").digest()


def a_session(clients: tuple[int, ...] | int, **changes: Any) -> SumSession:
    """Of members 0 to n - 1, or of these."""
    named = tuple(range(clients)) if isinstance(clients, int) else clients
    given: dict[str, Any] = {
        "run": "a run",
        "round": 3,
        "attempt": 0,
        "members": named,
        "threshold": default_threshold(len(named)),
        "neighbours": 0,
        "colluders": 0,
        "bits": 18,
        "size": 7,
        "options": OTHERS,
        "model": hashlib.sha256(THETA).digest(),
    }
    return SumSession(**given | changes)


def identities(count: int) -> dict[int, Identity]:
    pairs = {client: new_identity(client.to_bytes(4, "big")) for client in range(count)}
    peers = {client: public for client, (_, public) in pairs.items()}
    return {client: Identity(private, peers) for client, (private, _) in pairs.items()}


def vectors(session: SumSession, seed: int = 0) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {client: rng.integers(0, session.modulus, session.size).astype(np.uint32) for client in session.members}


def ideal(session: SumSession, given: Mapping[int, np.ndarray], clients: tuple[int, ...]) -> np.ndarray:
    """The sum in the open."""
    total = np.zeros(session.size, np.uint64)
    for client in clients:
        total += given[client]
    return (total % session.modulus).astype(np.uint32)


class Talk:
    """One sum, exchange by exchange. drops: client -> the first exchange that it does not answer."""

    def __init__(
        self,
        session: SumSession,
        known: Mapping[int, Identity],
        given: Mapping[int, np.ndarray],
        drops: Mapping[int, int] | None = None,
        floor: int = 1,
    ) -> None:
        self.session, self.known, self.given, self.drops, self.floor = session, known, given, drops or {}, floor
        self.members: dict[int, Member] = {
            client: join(session, client, b"seed %d" % client) for client in session.members
        }
        self.server = Collector(session, floor)
        self.uploads: dict[int, np.ndarray] = {}

    def there(self, clients: Any, exchange: int) -> list[int]:
        return [client for client in clients if self.drops.get(client, NEVER) > exchange]

    def keys(self) -> None:
        for client in self.there(self.session.members, KEYS):
            self.server.add_announcement(client, [self.members[client].announce(self.known.get(client))])

    def shares(self) -> None:
        group = self.server.group
        for client in self.there(group.roster, SHARES):
            others = [other for other in group.roster if other != client]
            told = dict(zip(others, self.server.announced_to(client), strict=True))
            self.members[client], sealed = self.members[client].share_out(group.roster, told, self.known.get(client))
            self.server.add_shares(client, [sealed[peer] for peer in group.peers(client)])

    def sealed_for(self, client: int) -> dict[int, bytes]:
        found = zip(self.server.group.peers(client), self.server.sealed_for(client), strict=True)
        return {peer: blob for peer, blob in found if blob}

    def train(self) -> None:
        for client in self.there(self.server.senders, TRAIN):
            self.members[client], masked = self.members[client].mask(self.sealed_for(client), self.given[client], THETA)
            self.uploads[client] = masked
            self.server.add_upload(client, masked)

    def confirm(self) -> None:
        for client in self.there(self.server.survivors, CONFIRM):
            self.members[client], signature = self.members[client].confirm(
                self.server.survivors, self.known.get(client), self.floor
            )
            self.server.add_signature(client, [signature])

    def unmask(self) -> None:
        for client in self.there(self.server.signers, UNMASK):
            told = self.server.signatures_for(client)
            self.members[client], found = self.members[client].unmask(told, self.known.get(client), self.floor)
            self.server.add_unmasking(client, [found.get(held, b"") for held in self.server.holdings(client)])

    def through(self, last: Callable[[], None] | None = None) -> Talk:
        """All exchanges up to ``last``, or all."""
        for exchange in (self.keys, self.shares, self.train, self.confirm, self.unmask):
            exchange()
            if exchange == last:
                break
        return self

    def total(self) -> np.ndarray:
        return self.through().server.total()
