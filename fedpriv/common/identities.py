"""Keys of clients: Ed25519 identities and their peers', X25519 key pairs, and secrets that some clients share.

Public keys travel through the server. Unsigned, agreement protects against an honest-but-curious server only: one that
swaps keys sits in the middle. In a deployment every client has an identity and a list of its peers' identities on its
own disk, and signs what it sends.

Nothing here decides what to do when a check fails: `KeyRefused` says why. Primitives: X25519, HKDF-SHA256, ChaCha20,
ChaCha20-Poly1305, Ed25519.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
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

KEY_BYTES, SIGNATURE_BYTES = 32, 64
_ZERO_NONCE = bytes(12)
FIELD = 2**255 - 19  # X25519 takes other forms of the same number, which would hide that a key is the client's own


#: Agreements of a simulation that are kept: 60 MB, and what a sum of 360 clients has.
MOST_AGREED = 2**17


class KeyRefused(Exception):
    """A key, a signature or a sealed seed that must not be used; says which and why."""


def new_private_key(seed: bytes | None = None) -> bytes:
    """An X25519 private key (32 bytes): from the operating system, or in simulation from a seed of any length."""
    if seed is None:
        return secrets.token_bytes(KEY_BYTES)
    return derive(seed, b"fedpriv simulated key")


def derive(secret: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256 without salt (RFC 5869)."""
    return HKDF(hashes.SHA256(), length, None, info).derive(secret)


def stream(key: bytes, info: bytes, length: int) -> bytes:
    """``length`` random bytes that all owners of a key get: ChaCha20's key stream under a key derived for one use."""
    return Cipher(algorithms.ChaCha20(derive(key, info), bytes(16)), None).encryptor().update(bytes(length))


def seal(key: bytes, seed: bytes, info: bytes) -> bytes:
    """A group's seed for one member. The key is of this session and this pair alone, so one nonce is enough."""
    return ChaCha20Poly1305(key).encrypt(_ZERO_NONCE, seed, info)


def unseal(key: bytes, sealed: bytes, info: bytes) -> bytes:
    """Raises `KeyRefused` for anything but what the leader sealed for this member in this session."""
    try:
        return ChaCha20Poly1305(key).decrypt(_ZERO_NONCE, sealed, info)
    except (InvalidTag, ValueError):
        raise KeyRefused("the group's seed was not sealed by the leader for this member") from None


class KeyPair:
    """An X25519 key pair, loaded once for agreements with many peers.

    agreed: in a simulation alone, what pairs have agreed on, by purpose and public keys: where one process is both
    ends, the second one takes what the first has computed. Elsewhere no agreement is kept.
    """

    def __init__(self, private: bytes, agreed: dict[bytes, bytes] | None = None) -> None:
        self._private, self._agreed = X25519PrivateKey.from_private_bytes(private), agreed
        #: The 32 bytes that may travel.
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, peer: bytes, info: bytes) -> bytes:
        """A secret of 32 bytes that only the owners of the two key pairs can derive, the same on both sides.

        Raises `KeyRefused` for a key of another length and for one that makes the shared secret zero.
        """
        if len(peer) != KEY_BYTES or int.from_bytes(peer, "little") >= FIELD:
            raise KeyRefused(f"a public key has {KEY_BYTES} bytes and one form, got {len(peer)}")
        if peer == self.public:
            raise KeyRefused("the peer's key is the client's own")
        purpose = info + b"".join(sorted((self.public, peer)))
        if self._agreed is not None and (known := self._agreed.get(purpose)):
            return known
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:
            raise KeyRefused(f"the peer's public key cannot be used ({error})") from None
        found = derive(shared, purpose)
        if self._agreed is not None and len(self._agreed) < MOST_AGREED:
            self._agreed[purpose] = found
        return found


def public_key(private: bytes) -> bytes:
    """The 32 bytes that may travel."""
    return KeyPair(private).public


@dataclass(frozen=True)
class Identity:
    """A client's long-lived Ed25519 key, and the public ones of the peers that it accepts, by partition id."""

    private: bytes = field(repr=False)
    peers: Mapping[int, bytes]

    def sign(self, text: bytes) -> bytes:
        """Signature (64 bytes)."""
        return signature(self.private, text)

    def verify(self, client: int, text: bytes, signature: bytes, what: str = "message") -> None:
        """Raises `KeyRefused` unless the peer ``client`` is on the list and signed this text."""
        peer = self.peers.get(client)
        if peer is None:
            raise KeyRefused(f"client {client} is not on the list of peers")
        if not verified(peer, text, signature):
            raise KeyRefused(f"the {what} of client {client} is not signed by its identity")


#: Of Ed25519: the field's prime, and y of the eight points whose order divides 8.
_FIELD = 2**255 - 19
_Y8 = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
_SMALL_ORDER = {0, 1, _FIELD - 1, _Y8, _FIELD - _Y8}


@lru_cache(maxsize=2**15)
def verified(public: bytes, text: bytes, signature: bytes) -> bool:
    """Whether the owner of a key signed a text. Kept, since all clients of a simulation ask it of the same texts."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def new_identity(seed: bytes | None = None) -> tuple[bytes, bytes]:
    """(private, public), 32 bytes each: from the operating system, or in simulation from a seed of any length."""
    private = secrets.token_bytes(KEY_BYTES) if seed is None else derive(seed, b"fedpriv simulated identity")
    return private, public_identity(private)


def public_identity(private: bytes) -> bytes:
    """The public key (32 bytes) of an identity."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def signature(private: bytes, text: bytes) -> bytes:
    """Ed25519 (64 bytes)."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(text)


def read_private(key_file: Path, option: str) -> bytes:
    """A raw or PEM Ed25519 private key (32 bytes). Raises `OptionError` that names the option."""
    try:
        text = read_regular(key_file)
        if text.startswith(b"-----"):
            loaded = serialization.load_pem_private_key(text, password=None)
            if not isinstance(loaded, Ed25519PrivateKey):
                raise ValueError("not an Ed25519 key")
            return loaded.private_bytes_raw()
        return Ed25519PrivateKey.from_private_bytes(text).private_bytes_raw()
    except (OSError, ValueError, TypeError) as error:
        raise OptionError(option, str(key_file), f"must be an Ed25519 private key ({error})") from None


def read_identity(key_file: Path, peers_file: Path) -> Identity:
    """From the client's own disk: a raw or PEM Ed25519 private key, and JSON ``{"partition id": "public key in hex"}``.

    Raises `OptionError` naming the node-config key.
    """
    private = read_private(key_file, "node-config identity-key")
    try:
        found = {int(client): bytes.fromhex(key) for client, key in json.loads(read_regular(peers_file)).items()}
        for client, key in found.items():
            Ed25519PublicKey.from_public_bytes(key)
            if int.from_bytes(key, "little") % 2**255 % _FIELD in _SMALL_ORDER:
                raise ValueError(f"anybody can sign for client {client}: its key is of small order")
        if len(set(found.values())) < len(found):
            raise ValueError("two ids with one key would count twice")
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise OptionError("node-config peer-keys", str(peers_file), f"must map ids to public keys ({error})") from None
    return Identity(private, found)


def named_identity(node_config: Mapping[str, object]) -> Identity | None:
    """The identity that a machine's node-config names, with its own key and its peers'; None where it names none.

    Raises `OptionError` where one file is named without the other: nobody meant to go without it.
    """
    names = ("identity-key", "peer-keys")
    paths = [node_config.get(name) for name in names]
    if paths == [None, None]:
        return None
    if None in paths:
        missing, given = names if paths[0] is None else reversed(names)
        raise OptionError(f"node-config {missing}", "", f"must be given with {given}")
    return read_identity(*(Path(str(path)) for path in paths))
