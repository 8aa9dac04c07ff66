"""Who signs a certificate: a node's identity, or the key of whoever carried out a simulation."""

from __future__ import annotations

import os
from pathlib import Path

from fedpriv.common.errors import OptionError
from fedpriv.deployment.data_ledger import Signer, signer_of

#: Folder of the user's own files; `HOME`/.fedpriv where it is not set.
VARIABLE = "FEDPRIV_HOME"
OF_RUN = "whoever carried out this run"
OF_SERVER = "whoever has this server"
OF_NODE = "the node's identity"


def users_key() -> Path:
    """Where the user's own key is, or is made when it is first needed."""
    home = os.environ.get(VARIABLE)
    return (Path(home) if home else Path.home() / ".fedpriv") / "certificate.key"


def signer_of_run(key: str) -> Signer:
    """The key in a file, or the user's own, made at its first use and readable by nobody else. Raises `OptionError`."""
    path = Path(key).expanduser() if key else users_key()
    if not key and not path.exists():
        _make(path)
    return signer_of(path, "key")


def signer_of_node(credentials: str) -> Signer:
    """The identity in a node's folder of credentials. Raises `OptionError`."""
    path = Path(credentials).expanduser() / "identity.key"
    if not path.exists():
        words = "has no identity.key; `fedpriv deploy credentials` makes one"
        raise OptionError("credentials", credentials, words)
    return signer_of(path, "credentials")


def _make(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    form = serialization.PrivateFormat.PKCS8
    text = Ed25519PrivateKey.generate().private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
