"""Certificates and keys of a deployment: what each opens, and what it does not."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve

from fedpriv.commands.credentials import main, make_credentials
from fedpriv.common.identities import read_identity


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


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_called_again_it_adds_and_never_replaces(tmp_path: Path) -> None:
    make_credentials(tmp_path, ["localhost"], 1, 30)
    before = contents(tmp_path)
    assert make_credentials(tmp_path, ["localhost"], 1, 30) == []
    added = make_credentials(tmp_path, ["localhost"], 3, 30)
    peers = tmp_path / "node-0" / "peers.json"
    assert all(path.read_bytes() == content for path, content in before.items() if path != peers)
    assert set(json.loads(peers.read_text())) == {"0", "1", "2"} and peers in added
    (tmp_path / "ca" / "ca.key").unlink()
    assert main([str(tmp_path)]) == 2


def test_a_public_key_that_is_missing_is_the_private_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a call leaves it that was killed between the two files."""
    make_credentials(tmp_path, ["localhost"], 1, 30)
    public, before = tmp_path / "node-0" / "node.pub", contents(tmp_path)
    public.unlink()
    assert make_credentials(tmp_path, ["localhost"], 0, 30) == [public] and contents(tmp_path) == before
    public.unlink()
    (tmp_path / "node-0" / "node.key").write_bytes(b"")
    assert main([str(tmp_path)]) == 2 and "node-0/node.key must be a private key" in capsys.readouterr().err


SENT = ("ca.key", "server.key", "node.key", "identity.key")


def away(folder: Path, *names: str) -> None:
    """Private keys are copied once, and the originals deleted, as docs/deploy.md says."""
    for path in [path for path in folder.rglob("*") if path.name in (names or SENT[1:])]:
        path.unlink()


@pytest.mark.parametrize("state", ["whole", "keys deleted", "expired", "older files", "own keys", "folders gone"])
def test_the_servers_certificate_is_renewed_alone(state: str, tmp_path: Path) -> None:
    hosts = ["server.example", "10.0.0.1"]
    make_credentials(tmp_path, hosts, 2, 0 if state == "expired" else 30)
    if state == "keys deleted":
        away(tmp_path)
    elif state == "older files":
        away(tmp_path, "identity.pub", "identity.key")
    elif state == "own keys":
        away(tmp_path, "node.key", "identity.key", "node.pub")
    elif state == "folders gone":
        for node in tmp_path.glob("node-*"):
            shutil.rmtree(node)
    before = contents(tmp_path)
    assert main(["server", str(tmp_path)]) == 0
    changed = {tmp_path / "server" / name for name in ("server.crt", "server.key")}
    after = contents(tmp_path)
    assert {path for path in after if after[path] != before.get(path)} == changed and set(before) <= set(after)
    for name in hosts:
        assert handshake(tmp_path / "server", tmp_path / "ca" / "ca.crt", name) == "TLSv1.3"
    assert stat.S_IMODE((tmp_path / "server" / "server.key").stat().st_mode) == 0o600
    assert main(["server", str(tmp_path), "host=new.example"]) == 0
    assert handshake(tmp_path / "server", tmp_path / "ca" / "ca.crt", "new.example") == "TLSv1.3"
    assert "mismatch" in handshake(tmp_path / "server", tmp_path / "ca" / "ca.crt", "server.example")


def identities(folder: Path) -> dict[str, str]:
    (found,) = {path.read_text() for path in folder.glob("node-*/peers.json")}
    return json.loads(found)


@pytest.mark.parametrize("nodes", ["", "nodes=2", "nodes=3"])
@pytest.mark.parametrize("missing", ["private keys", "identity.pub", "both files", "one folder", "every folder's keys"])
def test_no_identity_is_replaced_unasked(missing: str, nodes: str, tmp_path: Path) -> None:
    """Whatever was deleted after it was copied, and in folders that were made before there was an identity.pub."""
    make_credentials(tmp_path, ["localhost"], 2, 30)
    before, files = identities(tmp_path), contents(tmp_path)
    if missing == "one folder":
        shutil.rmtree(tmp_path / "node-0")
    names = {
        "private keys": SENT[1:],
        "identity.pub": ("identity.pub",),
        "both files": ("identity.pub", "identity.key"),
    }
    if missing in names:
        away(tmp_path, *names[missing])
    elif missing == "every folder's keys":
        away(tmp_path, *SENT[1:], "identity.pub")
    assert main([str(tmp_path), *filter(None, [nodes])]) == 0
    assert identities(tmp_path).items() >= before.items()
    assert set(identities(tmp_path)) == ({"0", "1", "2"} if nodes == "nodes=3" else {"0", "1"})
    kept = {
        path: content for path, content in contents(tmp_path).items() if path in files and path.name != "peers.json"
    }
    if missing == "one folder":
        kept = {path: content for path, content in kept.items() if path.parent.name != "node-0"}
    assert all(files[path] == content for path, content in kept.items())
    if missing in ("private keys", "every folder's keys"):
        assert not [path for path in (tmp_path / "node-0").iterdir() if path.name.endswith(".key")]


def test_nodes_make_their_own_keys_and_send_public_files(tmp_path: Path) -> None:
    """As the page does, with the tools that it names where they are."""
    mine, (private, public) = tmp_path / "node-1", own_identity()
    mine.mkdir()
    (mine / "identity.pub").write_bytes(public)
    (mine / "node.pub").write_bytes(b"ecdsa-sha2-nistp384 AAAA\n")
    make_credentials(tmp_path, ["localhost"], 3, 30)
    assert {path.name for path in mine.iterdir()} == {"identity.pub", "node.pub", "ca.crt", "peers.json"}
    (tmp_path / "identity.key").write_bytes(private)
    identity = read_identity(tmp_path / "identity.key", mine / "peers.json")
    other = read_identity(tmp_path / "node-0" / "identity.key", tmp_path / "node-0" / "peers.json")
    other.verify(1, b"text", identity.sign(b"text"))
    # A new identity is a new public file.
    away(tmp_path / "node-0", "identity.key")
    (tmp_path / "node-0" / "identity.pub").write_bytes(own_identity()[1])
    before = identities(tmp_path)
    assert main([str(tmp_path)]) == 0
    assert {number for number, key in identities(tmp_path).items() if before[number] != key} == {"0"}


def own_identity() -> tuple[bytes, bytes]:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize("what", ["private", "text", "another kind", "twice", "of another", "a folder", "of nobody"])
def test_a_public_identity_that_cannot_be_used_changes_nothing(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_credentials(tmp_path, ["localhost"], 2, 30)
    file = tmp_path / "node-1" / "identity.pub"
    other = ec.generate_private_key(ec.SECP384R1()).public_key()
    spoiled = {
        "private": (tmp_path / "node-1" / "identity.key").read_bytes(),
        "text": b"0" * 64,
        "another kind": other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "twice": (tmp_path / "node-0" / "identity.pub").read_bytes(),
        "of another": own_identity()[1],
    }
    file.unlink()
    if what == "a folder":
        file.mkdir()
    elif what == "of nobody":
        (tmp_path / "node-1" / "identity.key").write_bytes(own_identity()[0])
    else:
        file.write_bytes(spoiled[what])
    if what == "twice":
        (tmp_path / "node-1" / "identity.key").unlink()
    before = contents(tmp_path)
    assert main([str(tmp_path), "nodes=3"]) == 2
    said = capsys.readouterr().err
    words = {"twice": "nodes 0, 1 have one identity", "of another": "is not the key of identity.pub"}
    assert (
        words.get(what, "is not the key of peers.json" if what == "of nobody" else "must be an Ed25519 public") in said
    )
    assert contents(tmp_path) == before


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "host=server.example,10.0.0.1", "nodes=1"]) == 0
    out = capsys.readouterr().out
    assert "11 files written" in out and str(tmp_path / "node-0" / "node.key") in out
    assert main([str(tmp_path), "host=server.example,10.0.0.1", "nodes=1"]) == 0
    assert "everything was there already" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{", "[1]", '{"0": 7}', '{"0": "zz"}', '{"0": "00"}', '{"x": "' + 64 * "0" + '"}'])
def test_a_damaged_list_of_peers_is_named(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "nodes=1"]) == 0
    (tmp_path / "node-0" / "peers.json").write_text(content)
    assert main([str(tmp_path), "nodes=2"]) == 2
    assert "node-0/peers.json must map" in capsys.readouterr().err
    assert not (tmp_path / "node-1").exists()


@pytest.mark.parametrize("given", [["server"], ["server", "host=a"]])
def test_to_renew_the_server_a_folder_is_named(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It made a new authority, and a whole deployment of new identities, in a folder of this name."""
    monkeypatch.chdir(tmp_path)
    assert main(given) == 2 and "FOLDER" in "".join(capsys.readouterr())
    assert not list(tmp_path.iterdir())
