"""Randomness that some clients share and the server does not know: key agreement, derivation, and the stream.

X25519 with a fresh key pair per participation, HKDF-SHA256, ChaCha20. Public keys travel through the server. Unsigned,
that protects against an honest-but-curious server only: one that swaps keys sits in the middle. In a deployment every
client has an Ed25519 identity and a list of its peers' identities on its own disk, and signs what it sends.

Nothing here decides what to do when a check fails: `KeyRefused` says why, and the caller falls back to its own noise.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedpriv.common.errors import OptionError
from fedpriv.common.files import read_regular
from fedpriv.mechanisms.noise_sources import encode_key

PROTOCOL = "fedpriv coqfl 1"
KEY_BYTES = 32
FIELD = 2**255 - 19  # X25519 takes other forms of the same number, which would hide that a key is the client's own
_ZERO_NONCE = bytes(12)


class KeyRefused(Exception):
    """A key, a signature or a sealed seed that must not be used; says which and why."""


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


def new_private_key(seed: bytes | None = None) -> bytes:
    """An X25519 private key (32 bytes): from the operating system, or in simulation from a seed of any length."""
    if seed is None:
        return secrets.token_bytes(KEY_BYTES)
    return HKDF(hashes.SHA256(), KEY_BYTES, None, b"fedpriv simulated key").derive(seed)


def public_key(private: bytes) -> bytes:
    """The 32 bytes that may travel."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, peer: bytes, session: Session, purpose: str) -> bytes:
    """A secret of 32 bytes that only the owners of the two key pairs can derive, the same on both sides.

    Raises `KeyRefused` for a key of another length and for one that makes the shared secret zero.
    """
    own = public_key(private)
    if len(peer) != KEY_BYTES or int.from_bytes(peer, "little") >= FIELD:
        raise KeyRefused(f"a public key has {KEY_BYTES} bytes and one form, got {len(peer)}")
    if peer == own:
        raise KeyRefused("the peer's key is the client's own")
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError as error:
        raise KeyRefused(f"the peer's public key cannot be used ({error})") from None
    info = session.info(purpose) + b"".join(sorted((own, peer)))
    return HKDF(hashes.SHA256(), KEY_BYTES, None, info).derive(shared)


def derived(secret: bytes, session: Session, purpose: str) -> bytes:
    """32 bytes that the owner of a secret derives for one purpose in one session."""
    return HKDF(hashes.SHA256(), KEY_BYTES, None, session.info(purpose)).derive(secret)


def stream(key: bytes, layer: int, length: int) -> bytes:
    """``length`` shared random bytes for a layer: ChaCha20's key stream under a key of its own."""
    own = HKDF(hashes.SHA256(), KEY_BYTES, None, encode_key(PROTOCOL, "layer", layer)).derive(key)
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


@dataclass(frozen=True)
class Identity:
    """A client's long-lived Ed25519 key, and the public ones of the peers that it accepts, by partition id."""

    private: bytes = field(repr=False)
    peers: Mapping[int, bytes]

    def sign(self, session: Session, client: int, ephemeral: bytes) -> bytes:
        """Signature (64 bytes) over run, round, attempt, members, the signer's own id and its public key."""
        key = Ed25519PrivateKey.from_private_bytes(self.private)
        return key.sign(_signed(session, client, ephemeral))

    def verify(self, session: Session, client: int, ephemeral: bytes, signature: bytes) -> None:
        """Raises `KeyRefused` unless the peer ``client`` is on the list and signed this key for this session."""
        peer = self.peers.get(client)
        if peer is None:
            raise KeyRefused(f"client {client} is not on the list of peers")
        try:
            Ed25519PublicKey.from_public_bytes(peer).verify(signature, _signed(session, client, ephemeral))
        except (InvalidSignature, ValueError):
            raise KeyRefused(f"the key of client {client} is not signed by its identity") from None


def _signed(session: Session, client: int, ephemeral: bytes) -> bytes:
    return session.info("identity", client) + ephemeral


def read_identity(key_file: Path, peers_file: Path) -> Identity:
    """From the client's own disk: a raw or PEM Ed25519 private key, and JSON ``{"partition id": "public key in hex"}``.

    Raises `OptionError` naming the node-config key.
    """
    try:
        text = read_regular(key_file)
        if text.startswith(b"-----"):
            loaded = serialization.load_pem_private_key(text, password=None)
            if not isinstance(loaded, Ed25519PrivateKey):
                raise ValueError("not an Ed25519 key")
            private = loaded.private_bytes_raw()
        else:
            private = Ed25519PrivateKey.from_private_bytes(text).private_bytes_raw()
    except (OSError, ValueError, TypeError) as error:
        words = f"must be an Ed25519 private key ({error})"
        raise OptionError("node-config identity-key", str(key_file), words) from None
    try:
        found = {int(client): bytes.fromhex(key) for client, key in json.loads(read_regular(peers_file)).items()}
        for key in found.values():
            Ed25519PublicKey.from_public_bytes(key)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise OptionError("node-config peer-keys", str(peers_file), f"must map ids to public keys ({error})") from None
    return Identity(private, found)


def new_identity() -> tuple[bytes, bytes]:
    """(private, public), 32 bytes each."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def first_of(members: Sequence[int]) -> int:
    """The member that draws a group's seed, and Alice of a pair: the smallest id."""
    return min(members)
