"""Randomness that some clients share and the server does not know: key agreement, derivation, and the stream.

X25519 with a fresh key pair per participation, HKDF-SHA256, ChaCha20. Key pairs and identities:
`fedpriv.common.identities`. Nothing here decides what to do when a check fails: `KeyRefused` says why, and the caller
falls back to its own noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedpriv.common.identities import Identity, KeyPair, derive
from fedpriv.common.identities import KeyRefused as KeyRefused
from fedpriv.common.identities import new_private_key as new_private_key
from fedpriv.common.identities import public_key as public_key
from fedpriv.mechanisms.noise import encode_key

PROTOCOL = "fedpriv coqfl 1"
_ZERO_NONCE = bytes(12)


@dataclass(frozen=True)
class Session:
    """What both ends of a key agreement know and the server chose: a public context that goes into every derivation.

    run: Flower's run id. attempt: the round's public one, the same for all members. members: sorted ids of the group.
    """

    run: int
    round: int
    attempt: int
    members: tuple[int, ...]

    def info(self, *more: int | str) -> bytes:
        return encode_key(PROTOCOL, self.run, self.round, self.attempt, len(self.members), *self.members, *more)


def agree(private: bytes, peer: bytes, session: Session, purpose: str) -> bytes:
    """A secret of 32 bytes that only the owners of the two key pairs can derive, the same on both sides.

    Raises `KeyRefused` for a key of another length and for one that makes the shared secret zero.
    """
    return KeyPair(private).agree(peer, session.info(purpose))


def derived(secret: bytes, session: Session, purpose: str) -> bytes:
    """32 bytes that the owner of a secret derives for one purpose in one session."""
    return derive(secret, session.info(purpose))


def stream(key: bytes, layer: int, length: int) -> bytes:
    """``length`` shared random bytes for a layer: ChaCha20's key stream under a key of its own."""
    own = derive(key, encode_key(PROTOCOL, "layer", layer))
    return Cipher(algorithms.ChaCha20(own, bytes(16)), None).encryptor().update(bytes(length))


# --- groups: the first member's seed ---------------------------------------------------------------------


def seal(key: bytes, seed: bytes, session: Session) -> bytes:
    """The group's seed for one member. The key is of this session and this pair alone, so one nonce is enough."""
    return ChaCha20Poly1305(key).encrypt(_ZERO_NONCE, seed, session.info("seed"))


def unseal(key: bytes, sealed: bytes, session: Session) -> bytes:
    """Raises `KeyRefused` for anything but what the leader sealed for this member in this session."""
    try:
        return ChaCha20Poly1305(key).decrypt(_ZERO_NONCE, sealed, session.info("seed"))
    except (InvalidTag, ValueError):
        raise KeyRefused("the group's seed was not sealed by the leader for this member") from None


# --- identities ------------------------------------------------------------------------------------------


def sign_key(identity: Identity, session: Session, client: int, ephemeral: bytes) -> bytes:
    """Signature (64 bytes) over run, round, attempt, members, the signer's own id and its public key."""
    return identity.sign(_signed(session, client, ephemeral))


def verify_key(identity: Identity, session: Session, client: int, ephemeral: bytes, signature: bytes) -> None:
    """Raises `KeyRefused` unless the peer ``client`` is on the list and signed this key for this session."""
    identity.verify(client, _signed(session, client, ephemeral), signature, "key")


def _signed(session: Session, client: int, ephemeral: bytes) -> bytes:
    return session.info("identity", client) + ephemeral


def first_of(members: Sequence[int]) -> int:
    """The member that draws a group's seed, and Alice of a pair: the smallest id."""
    return min(members)
