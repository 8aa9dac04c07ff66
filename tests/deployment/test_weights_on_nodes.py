"""Public weights on nodes: a run's digest chooses among the files of a policy; a server's path counts for nothing."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from deployed import POLICY, Machines, codes, refused
from safetensors.torch import load_file, save_file

from fedpriv.certificates.statement import of_node, signed
from fedpriv.certificates.writing import page
from fedpriv.common import places
from fedpriv.common.errors import OptionError, PolicyRefused
from fedpriv.common.identities import new_identity
from fedpriv.config.compose import compose
from fedpriv.config.remote import compose_remote_text
from fedpriv.data import networks
from fedpriv.data.weights import Weights, read_weights
from fedpriv.deployment.approved_weights import ApprovedWeights, with_own_weights
from fedpriv.deployment.data_ledger import Signer
from fedpriv.deployment.gate import model_size, numbers_held
from fedpriv.deployment.policy import read_policy
from fedpriv.training import trained_part
from fedpriv.training.models import build_model

#: A small network of torchvision, and the model that `model.weights` are of.
NETWORK, HIDDEN = "shufflenet_v2_x0_5", 5
BACKBONE = f"features=backbone features.architecture={NETWORK} features.size=32 features.trained_on=drawings"
START = f"model=mlp model.hidden={HIDDEN} model.train=head model.trained_on=nothing: noise"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def approved(file: Path, **more: Any) -> dict[str, Any]:
    return {"sha256": digest(file), "file": str(file), "trained_on": "drawings", **more}


class Sites(Machines):
    """Two nodes of which each keeps its own copies of the weights under its own names, as does the server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 2, POLICY, side=8)
        torch.manual_seed(0)
        torch.save(torchvision.models.get_model(NETWORK).state_dict(), content := io.BytesIO())
        start = build_model(compose(START.rpartition(" model.trained_on")[0].split()).model, (1, 8, 8), 3, 1)
        for owner in ("server-weights", *map(str, range(self.count))):
            (folder / f"of-{owner}").mkdir()
            self.network(owner).write_bytes(content.getvalue())
            save_file(start.state_dict(), self.start(owner))
        for number in range(self.count):
            self.approve(number, approved(self.network(number)), approved(self.start(number)))

    def network(self, owner: str | int) -> Path:
        return self.folder / f"of-{owner}" / f"network-{owner}.pth"

    def start(self, owner: str | int) -> Path:
        return self.folder / f"of-{owner}" / f"start-{owner}.safetensors"

    def approve(self, number: int, *weights: dict[str, Any], **changes: Any) -> None:
        self.write_policy(number, POLICY | {"weights": list(weights)} | changes)

    def with_backbone(self, *more: str) -> str:
        file = self.network("server-weights")
        return self.overrides(BACKBONE, f"features.weights={file} features.weights_sha256={digest(file)}", *more)

    def with_start(self, *more: str) -> str:
        file = self.start("server-weights")
        words = START.replace("nothing: noise", "'nothing: noise'")
        return self.overrides(words, f"model.weights={file} model.weights_sha256={digest(file)}", *more)


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path)


def read_from(patch: pytest.MonkeyPatch) -> list[str]:
    """The files of weights that are read from now on."""
    seen: list[str] = []

    def read(path: str, option: str, sha256: str | None = None, beside: bytes = b"") -> Weights:
        seen.append(path)
        return read_weights(path, option, sha256, beside)

    patch.setattr(networks, "read_weights", read)
    patch.setattr(trained_part, "read_weights", read)
    return seen


# --- what runs -----------------------------------------------------------------------------------------------


def test_nodes_compute_features_with_their_own_copy_of_a_network(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = read_from(monkeypatch)
    assert codes(sites.serve(sites.with_backbone())) == ["sent"] * 4
    owners = ("server-weights", 0, 1)
    assert sorted(set(seen)) == sorted(str(sites.network(owner)) for owner in owners)
    summary = json.loads((sites.folder / "run/summary.json").read_text())
    assert f"SHA-256 {digest(sites.network(0))[:12]}) trained on: drawings" in summary["public_knowledge"]
    assert summary["num_parameters"] == 3 * 1025
    for number in range(sites.count):
        assert len(list(sites.data(number).glob(".*/cache/features/*/features.npy"))) == 1


def test_nodes_start_from_their_own_copy_and_train_the_head(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = read_from(monkeypatch)
    assert codes(sites.serve(sites.with_start())) == ["sent"] * 4
    assert (
        {str(sites.start(number)) for number in range(2)}
        < set(seen)
        <= {str(sites.start(owner)) for owner in ("server-weights", 0, 1)}
    )
    summary = json.loads((sites.folder / "run/summary.json").read_text())
    assert summary["num_parameters"] == 3 * (HIDDEN + 1) and "trained on: nothing: noise" in summary["public_knowledge"]
    trained, start = load_file(sites.folder / "run/model.safetensors"), load_file(sites.start(0))
    (frozen,) = [value for value in trained.values() if value.shape == (HIDDEN, 64)]
    (before,) = [value for value in start.values() if value.shape == (HIDDEN, 64)]
    assert torch.equal(frozen, before)


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["features", "model"])
@pytest.mark.parametrize("named", ["another", "none", "no policy"])
def test_a_digest_that_no_policy_names_is_refused(
    group: str, named: str, sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason stays in the node's log; the server, where it lacks a digest, ends before it asks anybody."""
    text = sites.with_backbone() if group == "features" else sites.with_start()
    known = digest(sites.network(0) if group == "features" else sites.start(0))
    allowed = f"allowed: {digest(sites.network(0))}, {digest(sites.start(0))}"
    if named == "no policy":
        for number in range(sites.count):
            sites.approve(number)
        allowed = "allowed: none: the policy has no weights"
    file = sites.folder / f"else{'.pth' if group == 'features' else '.safetensors'}"
    if named == "another":
        _another(sites, group, file)
        owner = sites.network("server-weights") if group == "features" else sites.start("server-weights")
        text = text.replace(known, digest(file)).replace(str(owner), str(file))
        known = digest(file)
    if named == "none":
        text = text.replace(f" {group}.weights_sha256={known}", "")
        with pytest.raises(OptionError, match=rf"{group}\.weights_sha256=null: nodes choose their own copy"):
            sites.serve(text)
        with pytest.MonkeyPatch.context() as patch:  # a server that does not look
            patch.setattr("fedpriv.app._name_weights", lambda config: None)
            assert refused(sites, text) == {"POLICY"}
        known = "null"
    else:
        assert refused(sites, text) == {"POLICY"}
    assert f"refused, policy: {group}.weights_sha256={known}: {allowed}" in caplog.text


def _another(sites: Sites, group: str, file: Path) -> None:
    if group == "features":
        tensors = torch.load(sites.network(0), weights_only=True)
        torch.save({name: value + value for name, value in tensors.items()}, file)
    else:
        save_file({name: value + value for name, value in load_file(sites.start(0)).items()}, file)


def test_a_file_that_was_replaced_is_refused(sites: Sites, caplog: pytest.LogCaptureFixture) -> None:
    """Even where its features are in the cache, and where it is replaced between the check and the reading."""
    assert set(codes(sites.serve(sites.with_backbone()))) == {"sent"}
    before = digest(sites.network(0))
    for number in range(sites.count):
        _another(sites, "features", sites.network(number))
    text = sites.with_backbone().replace(f"run_dir={sites.folder / 'run'}", f"run_dir={sites.folder / 'two'}")
    assert refused(sites, text) == {"POLICY"}
    now = digest(sites.network(0))
    assert f"{sites.network(0)} is another file: its SHA-256 is {now}, and {before} is named" in caplog.text
    caplog.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ApprovedWeights, "fault", lambda self: None)
        assert refused(sites, text.replace("size=32", "size=40").replace("/two", "/three")) == {"FAILED"}
    assert f"features.weights={sites.network(0)}: is another file" in caplog.text
    sites.network(0).unlink()
    sites.network(1).unlink()
    os.mkfifo(sites.network(1))  # blocks nobody
    assert refused(sites, text.replace("/two", "/four")) == {"POLICY"}
    assert "cannot be read (No such file or directory)" in caplog.text
    assert "cannot be read (not a regular file)" in caplog.text


@pytest.mark.parametrize(
    ("change", "more", "words"),
    [
        ({"max_size": 16}, "", "features.size=32: at most 16, max_size of"),
        ({"max_size": 16}, "features.size=17", "features.size=17: at most 16, max_size of"),
        ({}, "model=linear model.weights_sha256=" + 64 * "0", f"model.weights_sha256={64 * '0'}: allowed: "),
    ],
)
def test_what_a_policy_bounds(
    change: dict[str, Any], more: str, words: str, sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(sites.count):
        sites.approve(number, approved(sites.network(number), **change))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedpriv.runs.preparation._named_weights", lambda group, options, needed: options)
        assert refused(sites, sites.with_backbone(more)) == {"POLICY"}
    assert words in caplog.text


def test_pictures_as_they_are_keep_to_max_size_too(sites: Sites) -> None:
    config = compose_remote_text(sites.with_backbone().replace("features.size=32 ", ""))
    weights = read_policy(sites.policy(0)).weights
    assert with_own_weights(weights, config).features.weights == str(sites.network(0))
    large = config.model_copy(update={"dataset": config.dataset.model_copy(update={"size": 225})})
    with pytest.raises(PolicyRefused, match=r"dataset\.size=225: at most 224"):
        with_own_weights(weights, large)


def test_a_class_of_the_bundles_is_no_network_of_a_node(sites: Sites) -> None:
    """From outside it cannot be named, and a file of the bundle's that names it meets the policy."""
    text = sites.with_backbone()
    with pytest.raises(OptionError, match=r"features\.architecture=clients\.mine\.Network: this cannot be set"):
        compose_remote_text(text.replace(NETWORK, "clients.mine.Network"))
    config = compose_remote_text(text)
    own = config.features.model_copy(update={"architecture": "clients.mine.Network"})
    with pytest.raises(PolicyRefused, match=r"features\.architecture=clients\.mine\.Network: a class is code"):
        with_own_weights(read_policy(sites.policy(0)).weights, config.model_copy(update={"features": own}))


def test_a_path_that_nothing_needs_is_dropped(sites: Sites) -> None:
    """An approved bundle's own YAML may name one."""
    config = compose_remote_text(sites.overrides("features=gradients"))
    named = config.features.model_copy(update={"weights": "/etc/shadow.pt"})
    assert with_own_weights((), config.model_copy(update={"features": named})).features.weights is None


def test_the_size_counts_what_is_frozen_and_the_network_before_the_model(
    sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    held = sum(value.numel() for value in torch.load(sites.network(0), weights_only=True).values())
    config = compose_remote_text(sites.with_backbone())
    assert (model_size(config), numbers_held(config)) == (3 * 1025, 3 * 1025 + held)
    start = compose_remote_text(sites.with_start())
    assert (model_size(start), numbers_held(start)) == (3 * (HIDDEN + 1), 65 * HIDDEN + 3 * (HIDDEN + 1))
    processes = compose_remote_text(sites.overrides("features=processes"))
    own = sum(value.numel() for value in networks.process_network().state_dict().values())
    assert numbers_held(processes) == 3 * 1537 + own and own > 1_900_000
    for text, size in ((sites.with_backbone(), held + 3 * 1025), (sites.with_start(), 65 * HIDDEN + 3 * (HIDDEN + 1))):
        for number in range(sites.count):
            weights = [approved(sites.network(number)), approved(sites.start(number))]
            sites.approve(number, *weights, limits=POLICY["limits"] | {"max_parameters": size - 1})
        run = f"small-{size}"
        assert refused(sites, text.replace("/run ", f"/{run} ")) == {"POLICY"}
        assert f"model: {size} parameters, frozen ones and a backbone's among them" in caplog.text


@pytest.mark.parametrize("name", ["regnet_y_400mf", "regnet_x_32gf"])
def test_a_network_that_no_form_can_be_made_of_ends_in_one_line(name: str) -> None:
    options = compose(["features=backbone", f"features.architecture={name}"]).features
    with pytest.raises(OptionError, match=rf"features\.architecture={name}: cannot be built .* allowed: .*resnet18"):
        networks.backbone_dims(options, (3, 32, 32))
    with pytest.raises(OptionError, match=name):
        networks.network_size(options)


@pytest.mark.parametrize(
    "given",
    [
        "features.weights=weights.pth",
        "features.weights=~/weights.pth",
        "model.weights=../weights.pt",
        "features.weights=/a$HOME/b.pth",
        "features.trained_on=${oc.env:HOME}",
        "model.trained_on={a:b}",
        "model.trained_on=a,b",
        "features.architecture=os.system",
        "features.mean=[nan,0,0]",
        "features.mean=[1e9,0,0]",
        "features.std=[1e-30,1,1]",
        "features.size=4",
        "model.weights_sha256=abc",
    ],
)
def test_what_no_server_can_say(given: str) -> None:
    with pytest.raises(OptionError) as error:
        compose_remote_text(f"features=backbone dataset=digits model=linear '{given}'")
    assert given.partition("=")[0] in str(error.value)


def test_what_a_server_can_say(sites: Sites) -> None:
    text = "features.layer=stage2 features.mean=[0.5,0.5,0.5] features.std=[1,1.0,2e-1]"
    features = compose_remote_text(sites.with_backbone(text)).features
    assert (features.layer, features.size, features.std) == ("stage2", 32, [1.0, 1.0, 0.2])


# --- the policy's lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sha256": "5c10"}, "weights.1.sha256=5c10"),
        ({"file": "resnet.pth"}, "weights.1.file=resnet.pth"),
        ({"file": "/srv/resnet.onnx"}, "weights.1.file=/srv/resnet.onnx"),
        ({"trained_on": ""}, "weights.1.trained_on: must not be empty"),
        ({"max_size": 4096}, "weights.1.max_size=4096: must be at most 1024"),
        ({"size": 8}, "weights.1.size=8: there is no such option here"),
        ({"sha256": 64 * "a"}, f"weights.1.sha256={64 * 'a'}: is named twice: allowed: one entry for each digest"),
    ],
)
def test_a_mistake_names_entry_value_and_what_is_allowed(change: dict[str, Any], words: str, sites: Sites) -> None:
    whole = {"sha256": 64 * "a", "file": "/srv/a.pth", "trained_on": "nothing"}
    sites.approve(0, whole, whole | {"sha256": 64 * "b"} | change)
    with pytest.raises(OptionError) as error:
        read_policy(sites.policy(0))
    assert str(error.value).startswith(f"{sites.policy(0)}: {words}")


def test_a_node_looks_at_its_files_before_it_starts(sites: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    run = ("superlink=127.0.0.1:1", f"credentials={sites.folder}", "client=0")
    before = digest(sites.start(0))
    _another(sites, "model", sites.start(0))
    capsys.readouterr()
    assert sites.command("run", 0, *run) == 2
    words = f"{sites.policy(0)}: weights.1.file={sites.start(0)}: is another file: its SHA-256 is"
    assert words in (printed := capsys.readouterr().err) and printed.count("\n") == 1
    assert sites.command("status", 0) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("weights: ")]
    assert lines[0] == f"weights: {digest(sites.network(0))}, {sites.network(0)}, trained on: drawings"
    assert lines[1].startswith(f"weights: {before}, {sites.start(0)}, trained on: drawings; is another file")


def test_a_certificate_names_digest_and_origin(sites: Sites, tmp_path: Path) -> None:
    assert codes(sites.serve(sites.with_backbone())) == ["sent"] * 4  # under the policy that names both files
    statement = of_node(sites.policy(0), sites.data(0))
    first, second = statement["digests"]["weights"]
    assert first == {"sha256": digest(sites.network(0)), "trained_on": "drawings"} != second
    assert any("drawings" in words for words in statement["assumptions"])
    assert f"sha256 {digest(sites.network(0))}, trained_on drawings" in page(
        signed(statement, Signer(new_identity(b"mine")[0]), "its operator")
    )
    sites.approve(0)  # a policy of today does not speak of what left before
    assert of_node(sites.policy(0), sites.data(0))["digests"]["weights"] == [first, second]


# --- features that come with the project -----------------------------------------------------------------------


def test_a_bundle_finds_the_weights_in_the_fedpriv_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flwr's bundle holds code alone. A copy of a file counts by its digest, wherever it lies."""
    root = places.ROOT
    bundle, other = tmp_path / "bundle", tmp_path / "other"
    for folder in (bundle, other):
        (folder / "fedpriv/data").mkdir(parents=True)
    (other / "fedpriv/data" / networks.WEIGHTS).write_bytes(b"another file")
    monkeypatch.setattr(places, "ROOT", bundle)
    monkeypatch.setattr("sys.path", [str(bundle), str(other), str(root)])
    found = networks._content(networks.WEIGHTS)
    assert hashlib.sha256(found).hexdigest() == networks.DIGESTS[networks.WEIGHTS]
    monkeypatch.chdir(root)  # a checkout in which the node was started
    monkeypatch.setattr(places, "_set_aside", [])
    places.installed_code_only()
    assert str(root) not in places.sys.path and networks._content(networks.MAP)
    places._set_aside.clear()
    with pytest.raises(OptionError, match=r"features=processes: .*other.* is another file than 4e3f163c"):
        networks._content(networks.WEIGHTS)
    monkeypatch.setattr("sys.path", [str(bundle)])
    with pytest.raises(OptionError, match="nor in an installed fedpriv; allowed: none, gradients"):
        networks._content(networks.MAP)
