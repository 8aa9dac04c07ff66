"""Certificates and keys of a deployment: what each opens, and what it does not."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve

from fedpriv.common.identities import read_identity
from fedpriv.credentials import main, make_credentials


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("credentials")
    make_credentials(made, ["localhost", "127.0.0.1"], 2, 30)
    return made


def handshake(server: Path, trusted: Path, name: str) -> str:
    """What a client that trusts one certificate authority makes of a server: its TLS version, or the error."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server / "server.crt", server / "server.key")
    asking = ssl.create_default_context(cafile=trusted)
    here, there = socket.socketpair()

    def serve() -> None:
        try:
            with serving.wrap_socket(there, server_side=True):
                pass
        except OSError:
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with asking.wrap_socket(here, server_hostname=name) as secured:
            return str(secured.version())
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        here.close()
        thread.join(10)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_server_is_known_by_its_certificate_authority(name: str, folder: Path) -> None:
    assert handshake(folder / "server", folder / "node-1" / "ca.crt", name) == "TLSv1.3"


@pytest.mark.parametrize("hosts", [["server.example"], ["10.0.0.1"], ["LOCALHOST", "server.example", "0:0::1"]])
def test_every_certificate_holds_for_the_machine_itself(hosts: list[str], tmp_path: Path) -> None:
    """Flower's SuperExec asks for 127.0.0.1, or for ::1, whatever name nodes know the server by."""
    make_credentials(tmp_path, hosts, 0, 30)
    for name in (*hosts, "localhost", "127.0.0.1", "::1"):
        assert handshake(tmp_path / "server", tmp_path / "ca" / "ca.crt", name) == "TLSv1.3", name
    file = (tmp_path / "server" / "server.crt").read_bytes()
    names = x509.load_pem_x509_certificate(file).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert len(set(names.value)) == len(names.value), "a name is there twice"


def test_another_host_or_another_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    make_credentials(tmp_path, ["localhost"], 0, 30)
    assert "localhost" not in handshake(folder / "server", folder / "ca" / "ca.crt", "localhost")
    assert "mismatch" in handshake(folder / "server", folder / "ca" / "ca.crt", "elsewhere.example")
    assert "verify failed" in handshake(tmp_path / "server", folder / "ca" / "ca.crt", "localhost") or (
        "unable to get" in handshake(tmp_path / "server", folder / "ca" / "ca.crt", "localhost")
    )


def test_nodes_have_keys_that_flower_takes_each_its_own(folder: Path) -> None:
    numbers = set()
    for node in (folder / "node-0", folder / "node-1"):
        private = load_ssh_private_key((node / "node.key").read_bytes(), None)
        public = load_ssh_public_key((node / "node.pub").read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(public, ec.EllipticCurvePublicKey)
        assert private.public_key() == public and uses_nist_ec_curve(public)
        numbers.add(public.public_numbers())
    assert len(numbers) == 2


def test_clients_recognise_each_other_by_these_identities(folder: Path) -> None:
    one, other = (
        read_identity(folder / f"node-{k}" / "identity.key", folder / f"node-{k}" / "peers.json") for k in (0, 1)
    )
    assert one.peers == other.peers and set(one.peers) == {0, 1}
    assert one.private != other.private


def test_secrets_are_their_owners_alone(folder: Path) -> None:
    secrets = {path for path in folder.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()}
    assert {path.name for path in secrets} == {"ca.key", "server.key", "node.key", "identity.key"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)
    assert not list((folder / "server").glob("ca.key")) and not list(folder.glob("node-*/ca.key"))


def test_called_again_it_adds_and_never_replaces(tmp_path: Path) -> None:
    make_credentials(tmp_path, ["localhost"], 1, 30)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert make_credentials(tmp_path, ["localhost"], 1, 30) == []
    added = make_credentials(tmp_path, ["localhost"], 3, 30)
    peers = tmp_path / "node-0" / "peers.json"
    assert all(path.read_bytes() == content for path, content in before.items() if path != peers)
    assert set(json.loads(peers.read_text())) == {"0", "1", "2"} and peers in added
    (tmp_path / "server" / "server.crt").unlink()  # a certificate that has run out
    make_credentials(tmp_path, ["localhost"], 3, 30)
    assert handshake(tmp_path / "server", tmp_path / "node-0" / "ca.crt", "localhost") == "TLSv1.3"
    (tmp_path / "ca" / "ca.key").unlink()
    assert main([str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["host=localhost"], "FOLDER=host=localhost: comes first"),
        (["HERE", "host=no host"], "host=no host: must be a host's name or an IP address"),
        (["HERE", "nodes=-1"], "nodes=-1: must be a whole number from 0"),
        (["HERE", "days=0"], "days=0: must be a whole number from 1"),
        (["HERE", "keys=3"], "keys=3: no such option; allowed: host, nodes, days"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "made"
    assert main([str(place) if argument == "HERE" else argument for argument in arguments]) == 2
    assert words in capsys.readouterr().err and not place.exists()


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "host=server.example,10.0.0.1", "nodes=1"]) == 0
    out = capsys.readouterr().out
    assert "10 files written" in out and str(tmp_path / "node-0" / "node.key") in out
    assert main([str(tmp_path), "host=server.example,10.0.0.1", "nodes=1"]) == 0
    assert "everything was there already" in capsys.readouterr().out
