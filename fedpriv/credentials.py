"""`fedpriv deploy credentials FOLDER host=NAME[,NAME...] [nodes=3] [days=365]`: the keys and
certificates of a deployment.

    FOLDER/ca/            ca.crt, ca.key            the key stays offline: its holder can impersonate the server
    FOLDER/server/        server.crt, server.key    for the SuperLink, with a copy of ca.crt; the certificate is valid
                                                    for all of host=, and for localhost, 127.0.0.1 and ::1
    FOLDER/node-0/ ...    node.key, node.pub        for a SuperNode (ECDSA, P-384), with a copy of ca.crt
                          identity.key, peers.json  with these, clients sign keys for each other (Ed25519)

Called again, it adds what is missing: more nodes, or a server certificate that was moved away, with a new key. Other
files are never replaced, except the lists of peers: every new node is a peer of all others.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpriv.common.command_line import DONE, MISTAKE, command_options, guarded, whole_number
from fedpriv.common.errors import OptionError

OPTIONS = {"host": "localhost", "nodes": "3", "days": "365"}
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
    names = list(dict.fromkeys(_name(host) for host in (*hosts, *THIS_MACHINE)))
    ca_key, ca = _authority(folder / "ca", written)
    if not (folder / "server" / "server.crt").exists():
        _server(folder / "server", names, days, ca_key, ca, written)
    for number in range(nodes):
        _node(folder / f"node-{number}", written)
    for machine in (folder / "server", *_nodes(folder)):
        if not (machine / "ca.crt").exists():
            _write(machine / "ca.crt", ca.public_bytes(serialization.Encoding.PEM), written)
    _introduce(folder, written)
    return written


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
    (folder / "server.key").unlink(missing_ok=True)  # left from a certificate that was removed
    _write(folder / "server.key", _private(key), written, secret=True)
    _write(folder / "server.crt", certificate.public_bytes(serialization.Encoding.PEM), written)


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


def _node(folder: Path, written: list[Path]) -> None:
    """A SuperNode's own keys, in the form that Flower reads (OpenSSH), and its client's identity."""
    if not (folder / "node.key").exists():
        key = ec.generate_private_key(Curve())
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (folder / "node.pub").unlink(missing_ok=True)
        _write(folder / "node.key", key.private_bytes(*form), written, secret=True)
        _write(folder / "node.pub", public + b"\n", written)
    if not (folder / "identity.key").exists():
        _write(folder / "identity.key", _private(Ed25519PrivateKey.generate()), written, secret=True)


def _introduce(folder: Path, written: list[Path]) -> None:
    """Every node's list of all clients' public keys."""
    found: dict[str, str] = {}
    for node in _nodes(folder):
        key = serialization.load_pem_private_key((node / "identity.key").read_bytes(), password=None)
        assert isinstance(key, Ed25519PrivateKey), f"{node}/identity.key is not an Ed25519 key"
        found[node.name.removeprefix("node-")] = key.public_key().public_bytes_raw().hex()
    text = (json.dumps(found, indent=1) + "\n").encode()
    for node in _nodes(folder):
        peers = node / "peers.json"
        if not peers.exists() or peers.read_bytes() != text:
            peers.unlink(missing_ok=True)
            _write(peers, text, written)


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
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not HOST_NAME.fullmatch(host):
            raise OptionError("host", host, "must be a host's name or an IP address") from None
        return x509.DNSName(host.lower())


def main(arguments: Sequence[str]) -> int:
    return guarded(lambda: _main(list(arguments)))


def _main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return DONE if arguments else MISTAKE
    place, *given = arguments
    if "=" in place:
        raise OptionError("FOLDER", place, "comes first: where the files are to be written")
    options = command_options(given, OPTIONS, "fedpriv.credentials")
    hosts = options["host"].split(",")
    nodes, days = whole_number(options, "nodes", 0, MOST_NODES), whole_number(options, "days", 1, CA_DAYS)
    written = make_credentials(Path(place), hosts, nodes, days)
    for path in written:
        print(path)
    print(f"{len(written)} files written" if written else "everything was there already")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
