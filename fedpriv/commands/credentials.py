"""`fedpriv deploy credentials [server] FOLDER host=NAME[,NAME...] [nodes=3] [days=365]`: the keys and
certificates of a deployment.

    FOLDER/ca/            ca.crt, ca.key            the key stays offline: its holder can impersonate the server
    FOLDER/server/        server.crt, server.key    for the SuperLink, with a copy of ca.crt; the certificate is valid
                                                    for all of host=, and for localhost, 127.0.0.1 and ::1
    FOLDER/node-0/ ...    node.key, node.pub        for a SuperNode (ECDSA, P-384), with a copy of ca.crt
                          identity.key, .pub        with this, clients sign keys for each other (Ed25519)
                          peers.json                the public identities of all nodes

Called again, it adds what is missing: as many nodes as nodes= names (none without it). Of a key whose private or public
file is there, no other is made: a node that makes its own keys sends node.pub and identity.pub, and a public file that
is missing follows from the private one. Nothing is replaced but peers.json, which follows from the files identity.pub.

`server FOLDER` renews the server's certificate, with a new key, and touches nothing else; without host= it is valid
for what the present one is valid for.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import Field

from fedpriv.common.command_line import address_of, command
from fedpriv.common.errors import OptionError
from fedpriv.common.files import write_atomic
from fedpriv.common.printing import say

SERVER = "server"  # the word before FOLDER that renews the certificate alone
MOST_NODES = 10_000
#: The certificate authority outlives the server's certificates.
CA_DAYS = 3650
#: A host name as allowed in certificates.
HOST_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]*[a-z0-9])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9])?)*", re.IGNORECASE
)

#: In every server's certificate: Flower's own processes reach the SuperLink by the machine's own address.
THIS_MACHINE = ("localhost", "127.0.0.1", "::1")

Curve = ec.SECP384R1


def make_credentials(folder: Path, hosts: Sequence[str], nodes: int, days: int) -> list[Path]:
    """Writes what is missing; returns the files that were written. Raises `OptionError`, OSError.

    hosts: names and addresses of the server; its certificate is also valid for `THIS_MACHINE`.
    """
    written: list[Path] = []
    names = _names(hosts)
    listed = _listed(folder)
    ca_key, ca = _authority(folder / "ca", written)
    if not any((folder / "server" / name).exists() for name in ("server.crt", "server.key")):
        _server(folder / "server", names, days, ca_key, ca, written)
    for number in range(nodes):
        _node(folder / f"node-{number}", listed.get(str(number)), written)
    for machine in (folder / "server", *_nodes(folder)):
        if not (machine / "ca.crt").exists():
            _write(machine / "ca.crt", ca.public_bytes(serialization.Encoding.PEM), written)
    _introduce(folder, listed, written)
    return written


def renew_server(folder: Path, hosts: Sequence[str] | None, days: int) -> list[Path]:
    """A new key and certificate of the server; returns the files that were written. Raises `OptionError`, OSError.

    hosts=None: the names that the present certificate is valid for.
    """
    written: list[Path] = []
    if not (folder / "ca" / "ca.key").exists():
        words = "has no ca/ca.key: the authority that signed the certificate must sign the new one"
        raise OptionError("FOLDER", str(folder), words)
    names = _present_names(folder) if hosts is None else _names(hosts)
    ca_key, ca = _authority(folder / "ca", written)
    _server(folder / "server", names, days, ca_key, ca, written)
    return written


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    return list(dict.fromkeys(_name(host) for host in (*hosts, *THIS_MACHINE)))


def _present_names(folder: Path) -> list[x509.GeneralName]:
    try:
        present = x509.load_pem_x509_certificate((folder / "server" / "server.crt").read_bytes())
        found = present.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        words = f"must be given: the present certificate cannot be read ({getattr(error, 'strerror', None) or error})"
        raise OptionError("host", "", words) from None
    return list(dict.fromkeys((*found, *_names(()))))


def _nodes(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("node-*") if path.name.removeprefix("node-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("node-")))


def _authority(folder: Path, written: list[Path]) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The certificate authority: read if it exists, otherwise created."""
    key_file, certificate_file = folder / "ca.key", folder / "ca.crt"
    if key_file.exists() != certificate_file.exists():
        missing = certificate_file if key_file.exists() else key_file
        raise OptionError("FOLDER", str(folder.parent), f"{missing} is missing; put it back, or start in a new folder")
    if key_file.exists():
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise OptionError("FOLDER", str(folder.parent), f"{key_file} is not an elliptic curve key")
        return key, x509.load_pem_x509_certificate(certificate_file.read_bytes())
    key = ec.generate_private_key(Curve())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedpriv certificate authority")])
    usage = x509.KeyUsage(
        False, False, False, False, False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
    )
    certificate = (
        _certificate(name, name, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    _write(key_file, _private(key), written, secret=True)
    _write(certificate_file, certificate.public_bytes(serialization.Encoding.PEM), written)
    return key, certificate


def _server(
    folder: Path,
    names: Sequence[x509.GeneralName],
    days: int,
    ca_key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    written: list[Path],
) -> None:
    """A certificate for the SuperLink's hosts; with a new key."""
    key = ec.generate_private_key(Curve())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedpriv server")])
    certificate = (
        _certificate(name, ca.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    for file, content in (
        ("server.key", _private(key)),
        ("server.crt", certificate.public_bytes(serialization.Encoding.PEM)),
    ):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(folder / file, content, mode=0o600 if file == "server.key" else 0o644)
        written.append(folder / file)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
    )


def _node(folder: Path, listed: str | None, written: list[Path]) -> None:
    """A SuperNode's own keys, in the form that Flower reads (OpenSSH), and its client's identity.

    listed: its public identity (hex) in a peers.json, if there is one: then no other is made.
    """
    if not any((folder / name).exists() for name in ("node.key", "node.pub")):
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
        _write(folder / "node.key", ec.generate_private_key(Curve()).private_bytes(*form), written, secret=True)
    if listed is None and not any((folder / name).exists() for name in ("identity.key", "identity.pub")):
        identity = Ed25519PrivateKey.generate()
        _write(folder / "identity.key", _private(identity), written, secret=True)
        _write(folder / "identity.pub", _public(identity.public_key()), written)


def _listed(folder: Path) -> dict[str, str]:
    """The identities (hex) that are known before anything is written, by the node's number: from `identity.pub`, else
    from `identity.key`, else from a peers.json that was made when these were there.

    Raises `OptionError` for a file that is no such key, for two that contradict each other, and for one key twice.
    """
    peers: dict[str, str] = {}
    for file in (node / "peers.json" for node in _nodes(folder)):
        peers |= _peers(file) if file.exists() else {}
    found = dict(peers)
    for node in _nodes(folder):
        number, key_file, public_file = _number(node), node / "identity.key", node / "identity.pub"
        public = _ed25519(public_file) if public_file.exists() else peers.get(number)
        private = _ed25519(key_file) if key_file.exists() else public
        if private is None:
            continue
        found[number] = public or private
        if private != found[number]:
            source = "identity.pub" if public_file.exists() else "peers.json"
            words = f"{key_file} is not the key of {source}; keep the right identity.pub there, and remove the other"
            raise OptionError("FOLDER", str(folder), words)
    twice = sorted(number for number, key in found.items() if list(found.values()).count(key) > 1)
    if twice:
        raise OptionError("FOLDER", str(folder), f"nodes {', '.join(twice)} have one identity; each needs its own")
    return found


def _peers(file: Path) -> dict[str, str]:
    """A list of peers. Raises `OptionError`."""
    try:
        found = json.loads(file.read_bytes())
        for number, key in found.items():
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
            int(number)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        words = f"{file} must map nodes to public keys in hex ({error}); without this file, it is made anew"
        raise OptionError("FOLDER", str(file.parent.parent), words) from None
    return dict(found)


def _number(node: Path) -> str:
    return node.name.removeprefix("node-")


def _ed25519(file: Path) -> str:
    """The public identity (hex) in a PEM file, private or public as its name says. Raises `OptionError`."""
    try:
        if file.suffix == ".pub":
            public = serialization.load_pem_public_key(file.read_bytes())
        else:
            private = serialization.load_pem_private_key(file.read_bytes(), password=None)
            public = private.public_key()  # type: ignore[assignment]
        if not isinstance(public, Ed25519PublicKey):
            raise ValueError("another kind of key")
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        what = "public" if file.suffix == ".pub" else "private"
        words = f"{file} must be an Ed25519 {what} key in PEM ({getattr(error, 'strerror', None) or error})"
        raise OptionError("FOLDER", str(file.parent.parent), words) from None
    return public.public_bytes_raw().hex()


def _introduce(folder: Path, listed: Mapping[str, str], written: list[Path]) -> None:
    """Every node's public files, and its list of all clients' public keys."""
    found = dict(listed)
    for node in _nodes(folder):
        if (node / "node.key").exists() and not (node / "node.pub").exists():
            _write(node / "node.pub", _public_of(node / "node.key"), written)
        number, public_file = _number(node), node / "identity.pub"
        if not public_file.exists() and number in found:  # its files are older than this one
            _write(public_file, _public(Ed25519PublicKey.from_public_bytes(bytes.fromhex(found[number]))), written)
        if public_file.exists():
            found[number] = _ed25519(public_file)
    text = (json.dumps({number: found[number] for number in sorted(found, key=int)}, indent=1) + "\n").encode()
    for node in _nodes(folder):
        peers = node / "peers.json"
        if not peers.exists() or peers.read_bytes() != text:
            write_atomic(peers, text, mode=0o644)
            written.append(peers)


def _public_of(key_file: Path) -> bytes:
    """For Flower, of a node's private key. Raises `OptionError`."""
    try:
        public = serialization.load_ssh_private_key(key_file.read_bytes(), password=None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        words = f"{key_file} must be a private key in OpenSSH's form ({error}); without this file, it is made anew"
        raise OptionError("FOLDER", str(key_file.parent.parent), words) from None
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"


def _public(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _private(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, written: list[Path], secret: bool = False) -> None:
    """Writes a new file; a secret one is readable only by its owner from the start. Raises FileExistsError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    written.append(path)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address_of(host)))
    except ValueError:
        if not HOST_NAME.fullmatch(host):
            raise OptionError("host", host, "must be a host's name or an IP address") from None
        return x509.DNSName(host.lower())


@command
def make(
    folder: Path,
    *,
    host: str = "localhost",
    nodes: Annotated[int | None, Field(ge=0, le=MOST_NODES)] = None,
    days: Annotated[int, Field(ge=1, le=CA_DAYS)] = 365,
) -> None:
    begun = (folder / "ca" / "ca.crt").exists()
    _tell(make_credentials(folder, host.split(","), (0 if begun else 3) if nodes is None else nodes, days))


@command
def renew(folder: Path, *, host: str = "", days: Annotated[int, Field(ge=1, le=CA_DAYS)] = 365) -> None:
    _tell(renew_server(folder, host.split(",") if host else None, days))


def _tell(written: Sequence[Path]) -> None:
    for path in written:
        say(path)
    say(f"{len(written)} files written" if written else "everything was there already")


def main(arguments: Sequence[str]) -> int:
    return renew(arguments[1:]) if arguments[:1] == [SERVER] else make(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
