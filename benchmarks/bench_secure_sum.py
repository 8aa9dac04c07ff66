"""What a secure sum costs a client and the server: seconds of processor time, and bytes beside the vector.

All members' keys and shares are real, with signatures that are checked. Of the clients as many are measured as the
table says; the others' masked vectors are made only where that is cheap (`whole`), and there the opened sum is compared
with the sum in the open. Elsewhere the server takes the real masks off a vector of zeros, which is the same work, and
adding the vectors up is measured once and multiplied.

Bytes are those of the messages' contents as Flower counts them (8 for a whole number), in both directions.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from benchmarks.statistics import Figure, median_interval
from fedpriv.common.identities import Identity, new_identity, verified
from fedpriv.common.messages import (
    CONFIRM,
    EXCHANGE,
    KEY_ATTEMPT,
    KEYS,
    SHARES,
    UNMASK,
    Options,
    Request,
    blobs_content,
    num_bytes,
)
from fedpriv.common.replies import train_content
from fedpriv.common.sum_graph import graph_of
from fedpriv.mechanisms.integer_noise import add_residues, pack_residues, packed_size, to_residues, unpack_residues
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.sum_grid import SumGrid
from fedpriv.secure_sum.collector import Add, Collector
from fedpriv.secure_sum.member import Member, join, seal_nonce, word_type
from fedpriv.secure_sum.sum_session import SumSession

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """clients: n; size: d; whole: every client masks its vector, so that the sum can be checked."""

    clients: int
    size: int
    bits: int
    whole: bool
    drops: tuple[float, ...] = (0.0, 0.1, 0.3)
    colluders: int = 0

    def __str__(self) -> str:
        size = f"{self.clients} clients, {self.size} parameters, {self.bits} bits"
        return f"{size}, {self.colluders} colluders, up to {max(self.drops):.0%} dropouts"


CASES = (
    Case(100, 80_202, 18, whole=True),
    Case(1_000, 80_202, 18, whole=True, drops=(0.0, 0.1)),
    Case(1_000, 80_202, 18, whole=True, drops=(0.1,), colluders=50),
    Case(100, 11_000_000, 20, whole=False, drops=(0.1,)),
)
SMALL = (Case(6, 300, 18, whole=True, drops=(0.0, 0.2)),)
#: Clients whose seconds are taken.
MEASURED = 5


def secure_sum(small: bool) -> Iterator[tuple[str, dict[str, Figure]]]:
    """One table for each case."""
    for case in SMALL if small else CASES:
        yield f"secure sum, {case}", Measurement(case).rows()


class Measurement:
    """One case: keys and shares once, then a round for each share of dropouts."""

    def __init__(self, case: Case) -> None:
        self.case, self.table = case, dict[str, Figure]()
        self.seconds: dict[str, dict[int, float]] = {}
        self.num_bytes: dict[str, int] = {}
        k, t = graph_of(case.clients, None, case.colluders)
        self.grid = SumGrid("gaussian", case.size, case.clients, case.bits, 0.1)
        members, digest = tuple(range(case.clients)), hashlib.sha256(bytes(4 * case.size)).digest()
        context = (members, t, k, case.colluders, case.bits, self.grid.numbers, bytes(32), digest)
        self.session = SumSession("", 1, 0, *context)
        self.theta = bytes(4 * case.size)
        pairs = {client: new_identity(client.to_bytes(4, "big")) for client in members}
        peers = {client: public for client, (_, public) in pairs.items()}
        self.known = {client: Identity(private, peers) for client, (private, _) in pairs.items()}
        self.measured = list(range(0, case.clients, max(1, case.clients // MEASURED)))[:MEASURED]

    def rows(self) -> dict[str, Figure]:
        self.vectors()
        members, announced, shares, setup = self.prepared()
        for drop in self.case.drops:
            self.round(drop, dict(members), announced, shares, setup)
        return self.table

    # --- the parts -------------------------------------------------------------------------------------------

    def vectors(self) -> None:
        """Encoding: rotation, rounding, noise, packing; and what the server does to unpack and add."""
        numbers, bits = self.grid.numbers, self.case.bits
        signs = torch.ones(self.grid.padded, dtype=torch.float64)
        vector = torch.full((self.case.size,), self.case.size**-0.5, dtype=torch.float64)
        seconds, adding = [], []
        for client in range(1 if self.case.size > 10**6 else MEASURED):
            noise = SeededNoise("bench", client)
            taken, self.packed = timed(
                lambda noise=noise: pack_residues(  # type: ignore[misc]
                    to_residues(self.grid.whole_numbers(vector, [], signs, noise).numpy(), bits), bits
                )
            )
            seconds.append(taken)
            total = np.zeros(numbers, np.uint64)
            taken, _ = timed(lambda total=total: add_residues(total, unpack_residues(self.packed, bits, numbers), bits))  # type: ignore[misc]
            adding.append(taken)
        self.table["client: encoding, s"] = median_interval(seconds)
        self.table["server: unpacking and adding one vector, s"] = median_interval(adding)
        self.adding = float(np.median(adding))
        self.residues = unpack_residues(self.packed, bits, numbers)
        upload = packed_size(numbers, bits)
        self.table["client: the packed vector, bytes"] = (upload,) * 3

    def prepared(self) -> tuple[dict[int, Member], dict[int, bytes], dict[int, list[bytes]], Collector]:
        """KEYS and SHARES."""
        session, server = self.session, Collector(self.session)
        members, announced, shares = dict[int, Member](), dict[int, bytes](), dict[int, list[bytes]]()
        taken = dict.fromkeys(session.members, 0.0)
        for client in session.members:
            member = join(session, client)
            taken[client], announced[client] = timed(lambda m=member, c=client: m.announce(self.known[c]))  # type: ignore[misc]
            members[client] = member
            server.add_announcement(client, [announced[client]])
        group = server.group
        for client in session.members:
            others = [other for other in group.roster if other != client]
            told = dict(zip(others, server.announced_to(client), strict=True))
            verified.cache_clear()  # what another client has checked
            more, found = timed(
                lambda c=client, t=told: members[c].share_out(session.members, t, self.known[c])  # type: ignore[misc]
            )
            taken[client] += more
            members[client], sealed = found
            shares[client] = list(sealed.values())
        self.sharing = taken
        return members, announced, shares, server

    def round(
        self,
        drop: float,
        members: dict[int, Member],
        announced: dict[int, bytes],
        shares: dict[int, list[bytes]],
        setup: Collector,
    ) -> None:
        """TRAIN, CONFIRM and UNMASK, where this share of the clients drops out between SHARES and TRAIN."""
        session, case, began = self.session, self.case, time.process_time
        seconds = dict.fromkeys(("masks", "confirming", "opening", "server"), 0.0)
        server, start = Collector(session), began()
        for client, blob in announced.items():
            server.add_announcement(client, [blob])
        for client, blobs in shares.items():
            server.add_shares(client, blobs)
        relayed = {client: server.sealed_for(client) for client in server.senders}
        seconds["server"] += began() - start
        gone = set(np.random.default_rng(7).permutation(case.clients)[: round(drop * case.clients)].tolist())
        standing = [client for client in session.members if client not in gone]
        measured = [client for client in standing if case.whole or client in self.measured]
        masking, total = list[float](), np.zeros(session.size, np.uint64)
        for client in standing:
            if client not in measured[: None if case.whole else 1]:
                self._pretend(server, members, client, relayed[client])
                continue
            sealed = dict(zip(server.group.peers(client), relayed[client], strict=True))
            taken, (members[client], masked) = timed(
                lambda c=client, s=sealed: members[c].mask(s, self.residues, self.theta)  # type: ignore[misc]
            )
            masking.append(taken)
            server.note_upload(client)
            add_residues(total, masked, case.bits)
        confirming, opening = list[float](), list[float]()
        for client in server.survivors:
            taken, (members[client], signature) = timed(
                lambda c=client: members[c].confirm(server.survivors, self.known[c], 1)  # type: ignore[misc]
            )
            confirming.append(taken)
            server.add_signature(client, [signature])
        answers = dict[int, tuple[dict[int, bytes], list[bytes]]]()
        for client in server.signers:
            told = server.signatures_for(client)
            verified.cache_clear()
            taken, (_, found) = timed(lambda c=client, t=told: members[c].unmask(t, self.known[c], 1))  # type: ignore[misc]
            opening.append(taken)
            answers[client] = told, list(found.values())
        words, start = total.astype(word_type(case.bits)), began()
        for client, (_, blobs) in answers.items():
            server.add_unmasking(client, blobs)
        server.take_off(words)
        seconds["server"] += began() - start
        if case.whole:
            expected = self.residues.astype(np.uint64) * np.uint64(len(standing)) % np.uint64(2**case.bits)
            assert (words.astype(np.uint64) % np.uint64(2**case.bits) == expected).all(), "another sum than in the open"
        name, sharing = f"{drop:.0%} dropouts", [self.sharing[client] for client in self.measured]
        both = [first + second for first, second in zip(confirming, opening, strict=True)]
        whole = [
            float(np.median(sharing)) + one + two + self.table["client: encoding, s"][0]
            for one, two in zip(masking, both, strict=False)
        ]
        self.table[f"client: keys and shares, s ({name})"] = median_interval(
            [self.sharing[client] + extra for client, extra in zip(standing, both, strict=False)]
        )
        self.table[f"client: masks, s ({name})"] = median_interval(masking)
        self.table[f"client: whole round without training, s ({name})"] = median_interval(whole)
        self.table[f"server: opening the sum, s ({name})"] = (seconds["server"],) * 3
        adding = len(standing) * self.adding
        self.table[f"server: whole round, s ({name})"] = (seconds["server"] + adding,) * 3
        self.table[f"client: bytes beside the vector ({name})"] = self._bytes(server, announced, shares, answers)

    def _pretend(self, server: Collector, members: dict[int, Member], client: int, relayed: Sequence[bytes]) -> None:
        """A client whose vector is not masked: its state is what it would be."""
        small = members[client]
        group = server.group
        opened = {}
        for peer, blob in zip(group.peers(client), relayed, strict=True):
            if blob:
                opened[peer] = _opened(small, peer, blob)
        members[client] = Member(self.session, client, small.secret, small.group, opened, True)
        server.note_upload(client)

    def _bytes(
        self,
        server: Collector,
        announced: dict[int, bytes],
        shares: dict[int, list[bytes]],
        answers: dict[int, tuple[dict[int, bytes], list[bytes]]],
    ) -> Figure:
        """Contents of all messages from and to a client, without vectors."""
        told: dict[int, list[Options]] = defaultdict(list)

        def ask(exchange: str, asked: Sequence[int], all_of: Options, own: Mapping[int, Options], add: Add) -> None:
            for client in asked:
                told[client].append({**all_of, **own.get(client, {}), EXCHANGE: exchange})

        for client, own in server.prepare(ask).items():
            told[client].append(own)
        server.finish(ask)
        found = []
        for client in [client for client in server.survivors if client in answers][:MEASURED]:
            (_, opened), down = answers[client], told[client]
            up = [(KEYS, [announced[client]]), (SHARES, shares[client]), (CONFIRM, [bytes(64)]), (UNMASK, opened)]
            total = sum(num_bytes(train_content(None, Request(1, 0, one | {KEY_ATTEMPT: 0}))) for one in down)
            found.append(total + sum(num_bytes(blobs_content(name, blobs)) for name, blobs in up))
        return median_interval([float(one) for one in found])


def _opened(member: Member, peer: int, blob: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(member._seal_key(peer)).decrypt(seal_nonce(peer, member.own), blob, None)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds of processor time, and what the work gives."""
    start = time.process_time()
    found = work()
    return time.process_time() - start, found
