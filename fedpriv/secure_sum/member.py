"""A client's half of a secure sum: what it keeps, its answer to each exchange, and the masks of its vector.

State in, state and answer out; `fedpriv.secure_sum.rules` says what is never answered. The caller writes the new state
to disk before the answer leaves.

| exchange | comes | leaves |
|---|---|---|
| KEYS | the session | an announcement: two public keys, a commitment to b, a signature |
| SHARES | the announcements of the roster U1 | for each neighbour, sealed: a share of its private key, one of b |
| TRAIN | the shares that neighbours sealed for it | its vector, masked |
| CONFIRM | the survivors U3 | its signature of them |
| UNMASK | signatures of the same survivors | for each neighbour a share: of b if it is in U3, of its key if not |

After UNMASK it keeps its answer alone: whoever takes its disk later learns nothing that the server was not told.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from fedpriv.common.identities import KEY_BYTES, SIGNATURE_BYTES, Identity, KeyPair, KeyRefused, derive
from fedpriv.mechanisms.noise import encode_key
from fedpriv.secure_sum import rules, shamir
from fedpriv.secure_sum.sum_session import Group, SumRefused, SumSession, group_of

#: An announcement: the public key of masks, that of sealing, the commitment to b; then the signature of the three.
KEYS_BYTES = 2 * KEY_BYTES + 32
ANNOUNCEMENT_BYTES = KEYS_BYTES + SIGNATURE_BYTES
#: What is sealed for a neighbour: a share of the private key of masks and one of b; with the tag of the seal.
OPENED_BYTES = 2 * shamir.SHARE_BYTES
SEALED_BYTES = OPENED_BYTES + 16
#: Bytes of a mask at a time: the working arrays stay in a core's cache.
CHUNK = 2**16
_BLOCK = 16

#: uint16 [d] up to 16 bits, uint32 up to 32, uint64 above: sums wrap around where the modulus 2^bits divides.
Words = NDArray[Any]
_NO_SIGNATURE = bytes(SIGNATURE_BYTES)


@dataclass(frozen=True)
class Member:
    """What a client keeps of one sum. secret: 32 bytes, from which all others of this sum are derived; it never leaves.
    shares: by neighbour whose sealed shares came, the two shares; empty bytes where they could not be opened. answer:
    what left in UNMASK, in the place of all secrets.
    """

    session: SumSession
    own: int
    secret: bytes = field(repr=False)
    group: Group | None = None
    shares: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    uploaded: bool = False
    survivors: tuple[int, ...] = ()
    answer: Mapping[int, bytes] | None = field(default=None, repr=False)
    #: In a simulation: see `KeyPair`; not on disk.
    agreed: dict[bytes, bytes] | None = field(default=None, repr=False, compare=False)

    # --- secrets ---------------------------------------------------------------------------------------------

    def _derived(self, purpose: str) -> bytes:
        return derive(self.secret, self.session.info(purpose, self.own))

    @cached_property
    def _mask_private(self) -> bytes:
        return self._derived("private key of masks")

    @cached_property
    def _mask_keys(self) -> KeyPair:
        return KeyPair(self._mask_private, self.agreed)

    @cached_property
    def _seal_keys(self) -> KeyPair:
        return KeyPair(self._derived("private key of seals"), self.agreed)

    @cached_property
    def _own_mask(self) -> bytes:
        """b: the seed of the mask that no other client shares."""
        return self._derived("own mask")

    def _split(self, holders: Sequence[int]) -> dict[int, bytes]:
        """Holder -> its two shares; this client is one. The polynomials belong to this group alone."""
        group, secrets = self.settled_group(), list[tuple[bytes, bytes]]()
        for purpose, kept in (("key", self._mask_private), ("b", self._own_mask)):
            secrets.append((kept, derive(self.secret, group.info(f"polynomial of {purpose}", self.own))))
        found = shamir.split(secrets, self.session.threshold, [point_of(client) for client in holders])
        return dict(zip(holders, found.values(), strict=True))

    def settled_group(self) -> Group:
        """Of all who announced keys. Raises `SumRefused` before SHARES."""
        if self.group is None:
            raise SumRefused("the sum has no roster yet")
        return self.group

    # --- the exchanges ---------------------------------------------------------------------------------------

    def announce(self, identity: Identity | None) -> bytes:
        """KEYS: the same bytes whenever it is asked."""
        commitment = commitment_to(self.session, self.own, self._own_mask)
        keys = self._mask_keys.public + self._seal_keys.public + commitment
        return keys + (
            _NO_SIGNATURE if identity is None else identity.sign(announced_text(self.session, self.own, keys))
        )

    def share_out(
        self, roster: Sequence[int], announced: Mapping[int, bytes], identity: Identity | None
    ) -> tuple[Member, dict[int, bytes]]:
        """SHARES: what is sealed for each neighbour. announced: what all others on the roster announced."""
        rules.unanswered(self.answer)
        rules.roster(self.session, self.own, roster)
        rules.peers([client for client in roster if client != self.own], announced.keys())
        known = {client: _exactly(blob, ANNOUNCEMENT_BYTES, "announcement") for client, blob in announced.items()}
        keys = {client: blob[:KEYS_BYTES] for client, blob in known.items()}
        keys[self.own] = self.announce(None)[:KEYS_BYTES]
        group = group_of(self.session, keys)
        peers = group.peers(self.own)
        rules.threshold(group, len(peers) + 1)
        if self.group is not None:
            rules.same_roster(self.group, group)
        rules.distinct(blob[start : start + KEY_BYTES] for blob in keys.values() for start in (0, KEY_BYTES))
        for client, blob in known.items():
            text = announced_text(self.session, client, blob[:KEYS_BYTES])
            rules.signed(identity, client, text, blob[KEYS_BYTES:])
        after = replace(self, group=replace(group, announced={client: keys[client] for client in (*peers, self.own)}))
        sealed = {}
        for client, shares in after._split(peers).items():
            cipher = ChaCha20Poly1305(after._seal_key(client))
            sealed[client] = cipher.encrypt(seal_nonce(self.own, client), shares, None)
        return after, sealed

    def _seal_key(self, peer: int) -> bytes:
        """Of two neighbours in this group: it seals two texts, one in each direction (`seal_nonce`)."""
        group = self.settled_group()
        try:
            return self._seal_keys.agree(group.announced[peer][KEY_BYTES : 2 * KEY_BYTES], group.info("seal"))
        except KeyRefused as error:
            raise SumRefused(f"client {peer}: {error}") from None

    def mask(
        self, sealed: Mapping[int, bytes], vector: NDArray[Any], theta: bytes | memoryview
    ) -> tuple[Member, NDArray[Any]]:
        """TRAIN: the vector (whole numbers below 2^bits [size]) under all masks. sealed: by neighbour what it sealed
        for this client. theta: `model_text` of what came down.
        """
        rules.unanswered(self.answer)
        group, session = self.settled_group(), self.session
        rules.same_model(session, theta)
        rules.one_upload(self.uploaded)
        rules.senders(session, group.peers(self.own), sealed)
        if vector.shape != (session.size,) or vector.dtype.kind != "u":
            raise ValueError(f"a vector of {session.size} whole numbers is masked, not {vector.dtype} {vector.shape}")
        if vector.size and (int(vector.min()) < 0 or int(vector.max()) >= session.modulus):
            raise ValueError(f"numbers of a vector are from 0 to {session.modulus - 1}")
        shares = {}
        for client, blob in sealed.items():
            try:
                cipher, blob = ChaCha20Poly1305(self._seal_key(client)), _exactly(blob, SEALED_BYTES, "share")
                opened = cipher.decrypt(seal_nonce(client, self.own), blob, None)
            except (InvalidTag, SumRefused):  # it hurts its sender alone, who has one share less to be opened by
                opened = b""
            shares[client] = opened
        plus, minus = [mask_of(group, self.own, self._own_mask)], list[bytes]()
        for client in sealed:
            key = self._pair_key(group, client)
            (plus if self.own < client else minus).append(key)
        total = vector.astype(word_type(session.bits))
        add_masks(total, plus, minus)
        masked = total.astype(vector.dtype) & vector.dtype.type(session.modulus - 1)
        return replace(self, shares=shares, uploaded=True), masked

    def _pair_key(self, group: Group, client: int) -> bytes:
        try:
            return pair_key(group, self._mask_keys, group.announced[client][:KEY_BYTES])
        except KeyRefused as error:
            raise SumRefused(f"client {client}: {error}") from None

    def confirm(self, survivors: Sequence[int], identity: Identity | None, floor: int) -> tuple[Member, bytes]:
        """CONFIRM: the signature of the survivor set; the state holds the set. floor: fewest survivors that the
        client's guarantee and its machine's policy allow.
        """
        rules.unanswered(self.answer)
        group = self.settled_group()
        if not self.uploaded:
            raise SumRefused("this client has uploaded nothing in this sum")
        rules.survivors(group, self.own, self.shares.keys(), survivors, floor)
        rules.one_survivor_set(self.survivors, survivors)
        text = survivors_text(group, survivors)
        return replace(self, survivors=tuple(survivors)), _NO_SIGNATURE if identity is None else identity.sign(text)

    def unmask(
        self, signatures: Mapping[int, bytes], identity: Identity | None, floor: int
    ) -> tuple[Member, Mapping[int, bytes]]:
        """UNMASK: by client whose shares it has, itself included, the share of b of a survivor, of the key of another;
        empty where it has none. The survivors are those of its own state, whatever the server says. floor: as in
        `confirm`. The new state holds the answer, which is given again to whoever asks again, and no secret.
        """
        if self.answer is not None:
            return self, self.answer
        group = self.settled_group()
        if not self.survivors:
            raise SumRefused("this client has signed no survivor set")
        text, standing = survivors_text(group, self.survivors), set(self.survivors)
        least, signers = group.signers(floor), {self.own}
        for client in standing & signatures.keys():
            if len(signers) >= least:
                break
            try:
                if identity is not None:
                    identity.verify(client, text, signatures[client])
            except KeyRefused:
                continue
            signers.add(client)
        rules.confirmed(least, len(signers))
        found, shares = {}, {**self.shares, **self._split([self.own])}
        for client, both in sorted(shares.items()):
            found[client] = both[shamir.SHARE_BYTES :] if client in standing else both[: shamir.SHARE_BYTES]
        return Member(self.session, self.own, b"", uploaded=True, answer=found), found

    # --- on disk ---------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """For the client's own disk."""
        names = ("own", "secret", "shares", "uploaded", "survivors", "answer")
        public = {one.name: getattr(self.session, one.name) for one in fields(SumSession)}
        state = {"session": public} | {name: getattr(self, name) for name in names}
        roster, announced, digest = (
            (group.roster, group.announced, group.digest) if (group := self.group) else (None, {}, None)
        )
        state |= {"roster": roster, "announced": announced, "group": digest}
        return json.dumps(state, separators=(",", ":"), default=bytes.hex).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> Member:
        state = json.loads(text)
        public = state["session"] | {"members": tuple(state["session"]["members"])}
        public |= {name: bytes.fromhex(public[name]) for name in ("options", "model")}
        blobs = {
            name: None
            if state[name] is None
            else {int(client): bytes.fromhex(blob) for client, blob in state[name].items()}
            for name in ("announced", "shares", "answer")
        }
        session, group, announced = SumSession(**public), None, blobs.pop("announced")
        if state["roster"] is not None:
            group = Group(session, tuple(state["roster"]), announced or {}, bytes.fromhex(state["group"]))
        secret, survivors = bytes.fromhex(state["secret"]), tuple(state["survivors"])
        return cls(
            session, state["own"], secret, group, blobs["shares"] or {}, state["uploaded"], survivors, blobs["answer"]
        )


def join(session: SumSession, own: int, seed: bytes | None = None) -> Member:
    """A new member with fresh secrets: from the operating system, or in simulation from a seed of any length."""
    rules.member(session, own)
    secret = secrets.token_bytes(32) if seed is None else derive(seed, b"fedpriv simulated sum")
    return Member(session, own, secret)


# --- what both halves compute ----------------------------------------------------------------------------------


def point_of(client: int) -> int:
    """Where a client's shares lie on the polynomials; never 0, where the secret is."""
    return client + 1


def seal_nonce(sender: int, receiver: int) -> bytes:
    """12 bytes that differ in the two directions between two clients: under one key, no two texts have one nonce."""
    return bytes(11) + bytes([sender < receiver])


def commitment_to(session: SumSession, client: int, b: bytes) -> bytes:
    """Of b, so that a wrong share is noticed: a hash of 32 random bytes tells nothing of them."""
    return hashlib.sha256(session.info("commitment", client) + b).digest()


def announced_text(session: SumSession, client: int, keys: bytes) -> bytes:
    return session.info("announcement", client) + keys


def survivors_text(group: Group, survivors: Sequence[int]) -> bytes:
    named = hashlib.sha256(encode_key(*survivors)).digest()
    return group.info("survivors", len(survivors)) + named


def mask_of(group: Group, client: int, b: bytes) -> bytes:
    """The key of the mask that follows from a client's b."""
    return derive(b, group.info("own mask", client))


def pair_key(group: Group, private: KeyPair, public: bytes) -> bytes:
    """The key of the mask that two clients share. Raises `KeyRefused`."""
    return private.agree(public, group.info("pair mask"))


def word_type(bits: int) -> np.dtype[Any]:
    """Of the numbers that masks are added to; a uniform word is uniform modulo 2^bits too."""
    return np.dtype("<u2" if bits <= 16 else "<u4" if bits <= 32 else "<u8")


def add_masks(total: Words, plus: Iterable[bytes], minus: Iterable[bytes] = ()) -> None:
    """Adds the masks of these keys (32 bytes each) to ``total`` [d] in place, and takes others off."""
    streams = [(_stream(key), np.add) for key in plus] + [(_stream(key), np.subtract) for key in minus]
    words = CHUNK // total.dtype.itemsize
    zeros, buffer = bytes(CHUNK), np.empty(CHUNK + _BLOCK, np.uint8)
    for start in range(0, total.size, words):
        part = total[start : start + words]
        length = part.size * total.dtype.itemsize
        source = zeros if length == CHUNK else zeros[:length]
        mask = buffer[:length].view(total.dtype)
        for stream, change in streams:
            stream.update_into(source, buffer)
            change(part, mask, out=part)


def _stream(key: bytes) -> Any:
    """AES-256 in counter mode. A key masks one vector and nothing else, so the counter starts at 0."""
    return Cipher(AES(key), CTR(bytes(_BLOCK))).encryptor()


def _exactly(blob: bytes, length: int, what: str) -> bytes:
    if not isinstance(blob, bytes) or len(blob) != length:
        raise SumRefused(f"the {what} has {len(blob) if isinstance(blob, bytes) else 0} bytes, {length} are expected")
    return blob
