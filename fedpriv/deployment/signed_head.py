"""The head of a data folder's ledger, signed: how many lines it has and the hash chain after the last.

The node's identity key signs it, so whoever has the public key knows that the node had this ledger, and finds two
heads that contradict each other. A ledger's line with `signer` names the key; from there on a counter without its
signature is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedpriv.common.errors import LedgerRefused

PURPOSE = b"fedpriv ledger head 1\n"


@dataclass(frozen=True)
class Signer:
    """A node's Ed25519 identity (32 bytes)."""

    private: bytes

    @cached_property
    def public(self) -> str:
        """In hexadecimal digits."""
        from fedpriv.common.identities import public_identity  # cryptography: only where it is needed

        return public_identity(self.private).hex()

    def sign(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """The head with key, time (Unix, by this machine's clock; for display) and signature."""
        from fedpriv.common.identities import signature

        whole = dict(head) | {"key": self.public, "time": round(time.time())}
        return whole | {"signature": signature(self.private, head_text(whole)).hex()}


def head_text(head: Mapping[str, Any]) -> bytes:
    """What is signed: everything but the signature."""
    rest = {name: value for name, value in head.items() if name != "signature"}
    return PURPOSE + json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()


def check_head(head: Mapping[str, Any], signer: str, what: str) -> None:
    """Raises `LedgerRefused` unless ``signer`` (hex) has signed the head."""
    from fedpriv.common.identities import verified

    try:
        public, signed = bytes.fromhex(signer), bytes.fromhex(head.get("signature", ""))
    except (ValueError, TypeError):
        public = signed = b""
    if head.get("key") != signer or not verified(public, head_text(head), signed):
        raise LedgerRefused(f"{what} is not signed by {signer}, which signs this ledger's heads")


def signer_of(key_file: Path, option: str) -> Signer:
    """From a node's own disk. Raises `OptionError` that names the option."""
    from fedpriv.common.identities import read_private

    return Signer(read_private(key_file, option))
