"""The server's half of a secure sum: what it collects in each exchange, what it relays, and the sum at the end.

It sees announcements, sealed shares, masked vectors, and of every client the shares of one secret. Whoever does not
answer an exchange drops out; down to the threshold the sum of those who uploaded is opened, below it nothing is.

KEYS and SHARES (`Collector.prepare`) come before the models go down, CONFIRM and UNMASK (`Collector.finish`) after the
masked vectors came up. How a message travels is the caller's (`Ask`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.common.errors import FedprivError
from fedpriv.common.identities import KEY_BYTES, SIGNATURE_BYTES, KeyPair, KeyRefused
from fedpriv.common.messages import (
    CONFIRM,
    KEYS,
    MEMBERS,
    MODEL_DIGEST,
    PUBLIC_KEYS,
    ROSTER,
    SEALED,
    SHARES,
    SIGNATURES,
    SIGNERS,
    SURVIVORS,
    UNMASK,
    MalformedMessage,
    Options,
)
from fedpriv.secure_sum import shamir
from fedpriv.secure_sum.member import (
    ANNOUNCEMENT_BYTES,
    KEYS_BYTES,
    SEALED_BYTES,
    add_masks,
    commitment_to,
    mask_of,
    pair_key,
    point_of,
    word_type,
)
from fedpriv.secure_sum.sum_session import Group, SumSession, group_of

#: Further sets of shares that are tried where the first do not open what was committed to.
MOST_TRIES = 20


#: Takes what a member answered; raises `MalformedMessage`.
Add = Callable[[int, Sequence[bytes]], None]
#: One exchange without parameters: (its name, whom it asks, what all are told, what each is told beside, `Add`).
Ask = Callable[[str, Sequence[int], Options, Mapping[int, Options], Add], None]


class SumFailed(FedprivError):
    """Too few clients are left, or their shares do not fit: the sum stays closed. count: of those who are left; least:
    how many are needed.
    """

    def __init__(self, words: str, count: int = 0, least: int = 0) -> None:
        super().__init__(words)
        self.count, self.least = count, least


class Collector:
    """One sum, from its session to its total. floor: fewest survivors; the sum of fewer is not asked for.

    Whatever a client sends is read by ``add_...``, which raises `MalformedMessage` and leaves it out.
    """

    def __init__(self, session: SumSession, floor: int = 1) -> None:
        self.session, self.floor = session, max(floor, session.threshold)
        self._announced: dict[int, bytes] = {}
        self._keys: set[bytes] = set()
        self._sealed: dict[int, dict[int, bytes]] = {}  # sender -> receiver -> sealed shares
        self._uploaded: set[int] = set()
        self._signatures: dict[int, bytes] = {}
        self._opened: dict[int, dict[int, bytes]] = {}  # client -> point of the holder -> share
        self._answered: set[int] = set()
        self._survivors: tuple[int, ...] = ()
        self._total: NDArray[Any] | None = None

    # --- over a transport --------------------------------------------------------------------------------------

    def prepare(self, ask: Ask) -> dict[int, Options]:
        """KEYS and SHARES; what each member who is left is told with its model. Raises `SumFailed`."""
        session = self.session
        ask(
            KEYS, session.members, {MEMBERS: [*session.members], MODEL_DIGEST: session.model}, {}, self.add_announcement
        )
        roster = self.group.roster
        keys: dict[int, Options] = {client: {PUBLIC_KEYS: self.announced_to(client)} for client in roster}
        ask(SHARES, roster, {ROSTER: [*roster]}, keys, self.add_shares)
        return {client: {SEALED: self.sealed_for(client)} for client in self.senders}

    def finish(self, ask: Ask) -> None:
        """CONFIRM and UNMASK of those whose vectors came. Raises `SumFailed`."""
        ask(CONFIRM, self.survivors, {SURVIVORS: [*self.survivors]}, {}, self.add_signature)
        signed = {client: found for client in self.signers if (found := self.signatures_for(client))}
        told: dict[int, Options] = {c: {SIGNERS: [*of], SIGNATURES: [*of.values()]} for c, of in signed.items()}
        ask(UNMASK, [*told], {}, told, self.add_unmasking)

    # --- KEYS ------------------------------------------------------------------------------------------------

    def add_announcement(self, client: int, blobs: Sequence[bytes]) -> None:
        (blob,) = _blobs(blobs, 1, ANNOUNCEMENT_BYTES)
        keys = {blob[:KEY_BYTES], blob[KEY_BYTES:][:KEY_BYTES]}
        if client not in self.session.members or client in self._announced or len(keys) < 2 or self._keys & keys:
            raise MalformedMessage("an announcement of nobody who was asked, or of keys that are another's")
        self._keys |= keys
        self._announced[client] = blob

    @cached_property
    def group(self) -> Group:
        """Of all who have announced keys; it is settled when it is first asked for."""
        self._require(len(self._announced), "have announced keys")
        return group_of(self.session, {client: blob[:KEYS_BYTES] for client, blob in self._announced.items()})

    def announced_to(self, client: int) -> list[bytes]:
        """What all others on the roster announced, in their order."""
        return [self._announced[other] for other in self.group.roster if other != client]

    # --- SHARES ----------------------------------------------------------------------------------------------

    def add_shares(self, client: int, blobs: Sequence[bytes]) -> None:
        """What a client sealed for its neighbours, in their order."""
        peers = self.group.peers(client)
        if client not in self.group.announced or client in self._sealed:
            raise MalformedMessage("shares of nobody who was asked")
        self._sealed[client] = dict(zip(peers, _blobs(blobs, len(peers), SEALED_BYTES), strict=True))

    @cached_property
    def senders(self) -> tuple[int, ...]:
        """U2: whose shares came, and who has enough neighbours among them; it is settled when it is first asked for."""
        found = tuple(sorted(self._sealed))
        self._require(len(found), "have sealed their shares")
        return found

    @cached_property
    def _senders(self) -> frozenset[int]:
        return frozenset(self.senders)

    def sealed_for(self, client: int) -> list[bytes]:
        """What the client's neighbours sealed for it, in their order; empty bytes of those who did not."""
        known = self._senders
        return [self._sealed[peer][client] if peer in known else b"" for peer in self.group.peers(client)]

    # --- TRAIN -----------------------------------------------------------------------------------------------

    def add_upload(self, client: int, vector: NDArray[Any]) -> None:
        """Adds a masked vector (whole numbers [size]) to the sum; it is not kept."""
        self.note_upload(client)
        if self._total is None:
            self._total = np.zeros(self.session.size, word_type(self.session.bits))
        np.add(self._total, vector, out=self._total, casting="unsafe")

    def note_upload(self, client: int) -> None:
        """Counts a client whose masked vector the caller adds up itself."""
        if client not in self._senders or client in self._uploaded or self._survivors:
            raise MalformedMessage("a masked vector of nobody who was asked, or too late")
        self._uploaded.add(client)

    # --- CONFIRM ---------------------------------------------------------------------------------------------

    @property
    def survivors(self) -> tuple[int, ...]:
        """U3: whose vectors are in the sum; it is settled when it is first asked for. Raises `SumFailed`."""
        if not self._survivors:
            self._require(len(self._uploaded), "have uploaded their vectors")
            self._survivors = tuple(sorted(self._uploaded))
        return self._survivors

    def add_signature(self, client: int, blobs: Sequence[bytes]) -> None:
        (signature,) = _blobs(blobs, 1, SIGNATURE_BYTES)
        if client not in self.survivors or client in self._signatures:
            raise MalformedMessage("a signature of nobody who was asked")
        self._signatures[client] = signature

    # --- UNMASK ----------------------------------------------------------------------------------------------

    @cached_property
    def signers(self) -> tuple[int, ...]:
        """U4: who has signed the survivor set; it is settled when it is first asked for. Raises `SumFailed`."""
        self._require(len(self._signatures), "have signed the survivor set", self.group.signers(self.floor))
        return tuple(sorted(self._signatures))

    def signatures_for(self, client: int) -> dict[int, bytes]:
        """As many signatures of other survivors as it needs beside its own, or all that came."""
        found = [other for other in self.signers if other != client][: max(1, self.group.signers(self.floor) - 1)]
        return {other: self._signatures[other] for other in found}

    def holdings(self, client: int) -> tuple[int, ...]:
        """The clients of whose secrets this one can have shares, sorted: the order of its answer."""
        known = self._senders
        return tuple(sorted({peer for peer in self.group.peers(client) if peer in known} | {client}))

    def add_unmasking(self, client: int, blobs: Sequence[bytes]) -> None:
        """A client's shares, one for each of its `holdings`; an empty one where it could not open it."""
        if client not in self.signers or client in self._answered:
            raise MalformedMessage("shares of nobody who was asked")
        held = self.holdings(client)
        found = _blobs(blobs, len(held), shamir.SHARE_BYTES, or_empty=True)
        if any(int.from_bytes(share, "big") >= shamir.PRIME for share in found):
            raise MalformedMessage("a share beyond the field")
        self._answered.add(client)
        for owner, share in zip(held, found, strict=True):
            if share:
                self._opened.setdefault(owner, {})[point_of(client)] = share

    @property
    def answers(self) -> int:
        """Clients whose shares came."""
        return len(self._answered)

    def take_off(self, total: NDArray[Any]) -> None:
        """Takes all masks off a sum of masked vectors [size] in place; of the word that `word_type` says.

        Raises `SumFailed` where too few shares came, or do not fit: the total is then as it was.
        """
        group, standing = self.group, set(self.survivors)
        self._require(len(self._answered), "have opened their shares", self.session.threshold)
        plus, minus = list[bytes](), list[bytes]()  # what is in the total, by sign
        for client in self.senders:
            keys = self._announced[client][:KEYS_BYTES]
            if client in standing:
                opened = self._open(client, partial(_is_committed, self.session, client, keys))
                plus.append(mask_of(group, client, opened))
                continue
            neighbours = [peer for peer in group.peers(client) if peer in standing]
            if not neighbours:
                continue
            opened = self._open(client, partial(_is_private, keys))
            private = KeyPair(opened)
            for peer in neighbours:
                try:
                    key = pair_key(group, private, group.announced[peer][:KEY_BYTES])
                except KeyRefused as error:
                    raise SumFailed(f"the masks of clients {client} and {peer}: {error}") from None
                (plus if peer < client else minus).append(key)  # of the survivor's vector
        add_masks(total, minus, plus)

    def total(self) -> NDArray[np.uint64]:
        """The sum modulo 2^bits [size] of the vectors that `add_upload` added. Raises `SumFailed`."""
        assert self._total is not None, "the survivors have uploaded"
        self.take_off(self._total)
        return self._total.astype(np.uint64) & np.uint64(self.session.modulus - 1)

    def _open(self, client: int, fits: Callable[[bytes], bool]) -> bytes:
        """A client's secret. Wrong shares are passed over as far as other sets of shares are there to be tried."""
        shares, threshold = self._opened.get(client, {}), self.session.threshold
        if len(shares) < threshold:
            words = f"{len(shares)} shares of client {client}'s secret came, {threshold} open it"
            raise SumFailed(words, len(shares), threshold)
        points = list(shares)
        for start in range(min(MOST_TRIES, len(points) if len(points) > threshold else 1)):
            turned = points[start:] + points[:start]
            found = shamir.combine({point: shares[point] for point in turned[:threshold]}, threshold)
            if found is not None and fits(found):
                return found
        raise SumFailed(f"the shares of client {client}'s secret do not fit what it announced")

    def _require(self, count: int, words: str, least: int | None = None) -> None:
        least = self.floor if least is None else least
        if count < least:
            words = f"{count} of {len(self.session.members)} clients {words}, {least} are needed"
            raise SumFailed(words, count, least)


def _is_committed(session: SumSession, client: int, keys: bytes, b: bytes) -> bool:
    return commitment_to(session, client, b) == keys[2 * KEY_BYTES :]


def _is_private(keys: bytes, private: bytes) -> bool:
    return KeyPair(private).public == keys[:KEY_BYTES]


def _blobs(blobs: Sequence[bytes], count: int, length: int, or_empty: bool = False) -> Sequence[bytes]:
    allowed: Collection[int] = (0, length) if or_empty else (length,)
    if len(blobs) != count or not all(isinstance(blob, bytes) and len(blob) in allowed for blob in blobs):
        raise MalformedMessage(f"expected {count} byte strings of {length} bytes", "wrong_shape")
    return blobs
