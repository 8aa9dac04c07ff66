"""features=backbone: a network with public weights between pictures and model."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.commands.features import main as features_command
from fedpriv.common.errors import OptionError, PolicyRefused, RunFolderError
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.data import networks, weights
from fedpriv.data.encoders import encoder_config
from fedpriv.data.features import MOST_DRAWN, PROCESS_DIMS, Features, known_beforehand
from fedpriv.data.networks import DIMS, MAP, MOST, WEIGHTS, ProcessNetwork, drawings_map, weights_digest
from fedpriv.data.table_rows import encode_file
from fedpriv.data.table_schema import read_schema
from fedpriv.data.text_encoders import TextEncoder
from fedpriv.data.weights import read_weights
from fedpriv.deployment.approved_weights import ApprovedWeights, with_own_weights
from fedpriv.report.page import write_report
from fedpriv.runs.preparation import with_weights
from fedpriv.training.trained_model import TrainedModel, load_model
from tools.make_process_network import CANVAS, SIDE, Pictures, main

CLASS = "test_networks.Small"


class Small(nn.Module):
    """Convolution, BatchNorm, dropout, two linear layers; made for 1000 classes."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.classifier = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, classes))

    def forward(self, pictures: Tensor) -> Tensor:
        return self.classifier(self.stem(pictures).mean((2, 3)))


def trained(folder: Path, classes: int = 1000) -> tuple[Small, Path]:
    torch.manual_seed(3)
    network = Small(classes)
    norm: Any = network.stem[1]
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    file = folder / f"small{classes}.safetensors"
    save_file(dict(network.state_dict()), file)
    return network.eval(), file


def options(file: Path | str, **more: Any) -> FeaturesConfig:
    return FeaturesConfig(name="backbone", weights=str(file), architecture=CLASS, **more)


def pictures(many: int, channels: int = 3, side: int = 8) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (many, channels, side, side), dtype=np.uint8)


def unit(values: Tensor) -> np.ndarray:
    centred = values - values.mean(1, keepdim=True)
    return functional.normalize(centred, dim=1).numpy()


def test_features_are_what_the_last_linear_layer_reads_normalised_as_the_weights_expect(tmp_path: Path) -> None:
    network, file = trained(tmp_path)
    read = options(file, mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4])
    images = pictures(70)
    found = Features(read, (3, 8, 8), tmp_path)(images)
    shown = torch.from_numpy(images).float() / 255
    shown = (shown - torch.tensor(read.mean).view(1, 3, 1, 1)) / torch.tensor(read.std).view(1, 3, 1, 1)
    with torch.no_grad():
        expected = network.classifier[:3](network.stem(shown).mean((2, 3)))
    assert found.shape == (70, 5)
    np.testing.assert_allclose(found, unit(expected), atol=1e-5)


def test_another_layer_another_size_and_grey(tmp_path: Path) -> None:
    network, file = trained(tmp_path)
    images = pictures(3, channels=1)
    found = Features(options(file, layer="stem", size=16, mean=[0.0] * 3, std=[1.0] * 3), (1, 8, 8), tmp_path)(images)
    shown = (torch.from_numpy(images).float() / 255).expand(-1, 3, -1, -1)
    with torch.no_grad():
        larger = functional.interpolate(shown, (16, 16), mode="bilinear", antialias=True)
        expected = network.stem(larger).mean((2, 3))
    np.testing.assert_allclose(found, unit(expected), atol=1e-5)


@pytest.mark.parametrize(("name", "side"), [("backbone", 8), ("processes", 16)])
def test_a_pictures_features_are_the_same_bits_wherever_it_stands(name: str, side: int, tmp_path: Path) -> None:
    chosen = FeaturesConfig(name="processes", mirror=True)
    if name == "backbone":
        chosen = options(trained(tmp_path)[1], mirror=True)
    compute, images = Features(chosen, (3, side, side), tmp_path), pictures(70, side=side)
    whole = compute(images)
    for place in (0, 63, 64, 69):
        assert np.array_equal(compute(images[place : place + 1])[0], whole[place])
    assert np.array_equal(compute(images[:5, :, :, ::-1])[0], whole[0])  # a mirror image is the same


def test_where_a_place_has_another_kernel_pictures_are_computed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a picture more gives all behind it other bits, of which a clipped gradient can make anything."""

    def kernels(images: Any) -> Any:
        found = images.reshape(len(images), -1).copy()
        found[1::2] = np.nextafter(found[1::2], np.float32(2))
        return found

    monkeypatch.setattr("fedpriv.data.networks.process_features", lambda: kernels)
    features = Features(FeaturesConfig(name="processes", map="none"), (1, 8, 8), Path())
    pictures = np.random.default_rng(0).integers(0, 256, (70, 1, 8, 8), np.uint8)
    assert np.array_equal(features(pictures)[1:], features(pictures[1:]))
    assert not np.array_equal(kernels(pictures.astype(np.float32))[1:], kernels(pictures[1:].astype(np.float32)))


@pytest.mark.parametrize("architecture", ["resnet18", "vit_b_32", "convnext_tiny", "efficientnet_b0"])
@pytest.mark.rotates(4)
def test_networks_of_torchvision(architecture: str, tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision").models
    torch.manual_seed(0)
    network = models.get_model(architecture, weights=None).eval()
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    side = 224 if architecture.startswith("vit") else 32
    read = FeaturesConfig(name="backbone", weights=str(tmp_path / "weights.pth"), architecture=architecture, size=side)
    compute = Features(read, (3, 8, 8), tmp_path)
    dims = {"resnet18": 512, "vit_b_32": 768, "convnext_tiny": 768, "efficientnet_b0": 1280}[architecture]
    assert compute.dims == dims
    if architecture == "resnet18":
        assert compute(pictures(2)).shape == (2, dims)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"architecture": "resnet81"}, r"features\.architecture=resnet81: no such network of torchvision"),
        ({"architecture": "test_networks.Absent"}, r"cannot be built \(AttributeError"),
        ({"architecture": "test_networks.pictures"}, r"cannot be built \(TypeError"),
        ({"layer": "steam"}, r"features\.layer=steam: the network has no such layer; allowed: stem, classifier"),
        ({"architecture": "alexnet"}, r"the network fails on pictures of 8x8.*see features\.size"),
    ],
)
def test_mistakes_are_told(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    _, file = trained(tmp_path)
    with pytest.raises(OptionError, match=words):
        Features(options(file).model_copy(update=more), (3, 8, 8), tmp_path)


def test_weights_of_another_network_are_told_and_a_head_for_other_classes_is_not(tmp_path: Path) -> None:
    _, file = trained(tmp_path, classes=7)
    Features(options(file), (3, 8, 8), tmp_path)(pictures(1))
    with pytest.raises(OptionError, match=r"is of another model than .*: what it has in another shape: classifier\.3"):
        Features(options(file, layer="stem"), (3, 8, 8), tmp_path)(pictures(1))
    odd = load_file(file)
    del odd["stem.0.bias"]
    save_file(odd, tmp_path / "odd.safetensors")
    with pytest.raises(OptionError, match=r"what it lacks: stem\.0\.bias \(1 tensors\)"):
        Features(options(tmp_path / "odd.safetensors"), (3, 8, 8), tmp_path)(pictures(1))


def asked(file: Path, *more: str) -> list[str]:
    words = ["features=backbone", f"features.weights={file}", f"features.architecture={CLASS}"]
    return [*words, "features.trained_on='noise of a seed'", "strategy=fedavg", "model=softmax", *more]


def test_a_run_says_what_the_weights_were_trained_on_and_predicts_with_the_same_file(run: Run, tmp_path: Path) -> None:
    _, file = trained(tmp_path)
    folder = Path(run(*asked(file, "num_rounds=1")))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    known = json.loads((folder / "summary.json").read_text())["public_knowledge"]
    assert f"weights with SHA-256 {digest[:12]}) trained on: noise of a seed" in known
    assert digest in (folder / "config.yaml").read_text() and "noise of a seed" in write_report(folder).read_text()
    model = load_model(folder)
    assert isinstance(model, TrainedModel) and model.probabilities(pictures(2, channels=1)).shape == (2, 10)
    trained(tmp_path, classes=7)[1].replace(file)
    with pytest.raises(OptionError, match=rf"features\.weights=.*is another file: .*{digest} is named"):
        load_model(folder).probabilities(pictures(2, channels=1))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("features.trained_on=null", r"features\.trained_on=null: say what the weights were trained on"),
        ("features.weights=null", r"features\.weights=null: backbone needs the file of a state dict"),
        ("features.weights=/absent.pt", r"features\.weights=/absent\.pt: cannot be read"),
        (f"features.weights_sha256={'0' * 64}", "is another file"),
        ("features.std=[0,1,1]", r"features\.std.*must be from 0\.0001"),
        ("model=cnn", "features=backbone gives the model a vector and no picture"),
    ],
)
def test_wrong_options(change: str, words: str, tmp_path: Path) -> None:
    _, file = trained(tmp_path)
    with pytest.raises(OptionError, match=words):
        with_weights(compose(asked(file, change)))


class Meeting(Small):
    """Subtracts the mean of the batch: a picture's features would follow the others'."""

    def forward(self, pictures: Tensor) -> Tensor:
        return super().forward(pictures - pictures.mean(0))


class Counting(Small):
    """Adds how often it was called."""

    calls = 0

    def forward(self, pictures: Tensor) -> Tensor:
        Counting.calls += 1
        return super().forward(pictures + 0.1 * Counting.calls)


def test_pictures_never_meet_in_a_class_of_the_users(tmp_path: Path) -> None:
    _, file = trained(tmp_path)
    read = options(file).model_copy(update={"architecture": "test_networks.Meeting", "layer": "stem"})
    images = pictures(5)
    compute = Features(read, (3, 8, 8), tmp_path)
    changed = images.copy()
    changed[4] = 255 - changed[4]
    assert np.array_equal(compute(images)[:4], compute(changed)[:4])


def test_a_class_that_keeps_something_is_told(tmp_path: Path) -> None:
    _, file = trained(tmp_path)
    read = options(file).model_copy(update={"architecture": "test_networks.Counting"})
    with pytest.raises(OptionError, match=r"features\.architecture=.*keeps something between pictures"):
        Features(read, (3, 8, 8), tmp_path)(pictures(5))


def test_weights_decide_what_is_cached(tmp_path: Path) -> None:
    first, second = (with_weights(compose(asked(trained(tmp_path, many)[1]))).features for many in (1000, 7))
    identities = [Features(read, (1, 8, 8), tmp_path).identity for read in (first, second)]
    assert identities[0] != identities[1]


# --- features=processes: a network that has seen random processes alone, and the script that trains


#: Of the file that docs/features.md's figures were measured with: other weights want other figures.
DIGEST = "4e3f163c5eac546b0004dbfc496b2bd8fbaa808493d94e7081ba77bf6e5ad869"


def test_the_weights_are_those_of_the_figures_and_below_five_megabytes() -> None:
    content = (Path(networks.__file__).parent / WEIGHTS).read_bytes()
    assert hashlib.sha256(content).hexdigest() == DIGEST != weights_digest()
    both = len(content) + (Path(networks.__file__).parent / MAP).stat().st_size
    assert both < 5e6 and (DIMS, MOST) == (PROCESS_DIMS, MOST_DRAWN)


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 28), (1, 8)])
def test_features_are_means_of_three_stages_over_quarters(channels: int, side: int, tmp_path: Path) -> None:
    compute = Features(FeaturesConfig(name="processes"), (channels, side, side), tmp_path)
    images = pictures(3, channels, side)
    found = compute.base(images)
    network = networks.process_network()
    with torch.inference_mode():
        shown = torch.from_numpy(images).float().div(255).expand(-1, 3, -1, -1)
        stages = network.stages(shown)
    size = stages[-1].shape[-1]  # where it is odd, quarters overlap by a row or column
    expected = stages[-1][:, :, : (size + 1) // 2, size // 2 :].mean((2, 3))  # the quarter on the right of the top
    assert found.shape == (3, DIMS) and compute.dims == DIMS
    np.testing.assert_allclose(found[:, -4 * 192 :].reshape(3, 192, 4)[:, :, 1], expected, rtol=1e-3, atol=1e-4)


def test_the_map_whitens_drawings_in_part(tmp_path: Path) -> None:
    """Of other drawings than those it was made of: variances fall far less over the directions with an exponent."""
    drawn = Pictures(torch.device("cpu"), 5).batch(64)[:, :, 8:40, 8:40]
    images = (drawn * 255).round().byte().numpy()
    compute = Features(FeaturesConfig(name="processes", map="drawings", mirror=True, dims=20), (3, 32, 32), tmp_path)
    values = compute.base(images)
    spreads = []
    for exponent in (0.0, 0.5):
        chosen = drawings_map(20, exponent)
        found = (values - chosen.mean) @ chosen.matrix
        variances = found.var(0)
        spreads.append(variances[:5].mean() / variances[-5:].mean())
        np.testing.assert_allclose(chosen(values), found / np.linalg.norm(found, axis=1, keepdims=True), atol=1e-4)
    assert spreads[0] > 10 > 4 > spreads[1]
    assert compute(images).shape == (64, 20)


def test_too_many_directions(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"features\.dims=361: at most 360 of features=processes"):
        Features(FeaturesConfig(name="processes", map="drawings", dims=361), (3, 32, 32), tmp_path)


def test_a_bundle_without_weights_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "WEIGHTS", "absent.safetensors")
    with pytest.raises(OptionError, match=r"absent\.safetensors is not beside the code, nor in an installed fedpriv"):
        weights_digest()


def test_reports_say_that_no_picture_of_anything_was_seen() -> None:
    assert "trained on pictures of random processes" in known_beforehand(compose(["features=processes"]))


# --- the script ----------------------------------------------------------------------------------------------


def test_drawn_pictures_are_colourful_differ_and_follow_from_the_seed() -> None:
    first, again, other = (Pictures(torch.device("cpu"), seed).batch(16) for seed in (1, 1, 2))
    assert first.shape == (16, 3, CANVAS, CANVAS) and float(first.min()) >= 0 and float(first.max()) <= 1
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert float(first.std((2, 3)).median()) > 0.05  # something is to be seen
    assert len({tuple(one.flatten()[:50].tolist()) for one in first}) == 16
    views = Pictures(torch.device("cpu"), 3).views(first)
    assert views.shape == (16, 3, SIDE, SIDE) and bool(torch.isfinite(views).all())


@pytest.mark.slow
def test_training_goes_on_where_it_stopped_and_moves_the_weights(tmp_path: Path) -> None:
    options = [f"out={tmp_path}", "device=cpu", "size=test", "seconds=1000"]
    assert main([*options, "steps=2"]) == 0
    first = load_file(tmp_path / WEIGHTS)
    assert main([*options, "steps=3"]) == 0
    second, log = load_file(tmp_path / WEIGHTS), (tmp_path / "log.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in log]  # on a slow machine also the second
    assert steps in ([1, 3], [1, 2, 3])
    assert not torch.equal(first["stem.weight"], second["stem.weight"])
    missing = ProcessNetwork().load_state_dict({name: value.float() for name, value in second.items()}, strict=False)
    assert not missing.unexpected_keys and all(key.endswith("num_batches_tracked") for key in missing.missing_keys)


# --- ---------------------------------------------------------------------------------------------------------------
# Files of public weights as people have them: prefixes, wrappers, ONNX, timm, Hugging Face, and what is refused.


def features_of(file: Path, architecture: str, **more: Any) -> np.ndarray:
    chosen = FeaturesConfig(name="backbone", weights=str(file), architecture=architecture, **more)
    return Features(chosen, (3, 8, 8), file.parent)(pictures(3))


# --- state dicts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("wrapped", [False, True])
def test_prefixes_and_wrappers_of_training_loops_are_understood(prefix: str, wrapped: bool, tmp_path: Path) -> None:
    _, file = trained(tmp_path)
    found: Any = {prefix + name: value for name, value in load_file(file).items()}
    torch.save({"state_dict": found, "epoch": 3} if wrapped else found, tmp_path / "wrapped.pth")
    plain, other = (features_of(one, CLASS) for one in (file, tmp_path / "wrapped.pth"))
    assert np.array_equal(plain, other)


def saved(content: Any) -> bytes:
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


def twice() -> bytes:
    one = b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
    header = b"{" + one + b"," + one + b"}"
    return len(header).to_bytes(8, "little") + header + bytes(8)


def packed() -> bytes:
    """As `torch.save` writes, but compressed: a few bytes that become many."""
    out = io.BytesIO()
    read = zipfile.ZipFile(io.BytesIO(saved({"a": torch.zeros(100_000)})))
    with read, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as written:
        for name in read.namelist():
            written.writestr(name, read.read(name))
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.safetensors", twice, "a stands twice"),
        ("a.safetensors", lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "a pointer of Git LFS"),
        ("a.pth", lambda: saved({"a": torch.zeros(1).expand(10**9)}), "a claims 1000000000 numbers"),
        ("a.pth", lambda: saved({"a": torch.zeros(2, dtype=torch.int8)}), r"a is quantised or sparse \(torch\.int8\)"),
        ("a.pth", lambda: saved({"a": torch.zeros(2, 2).to_sparse()}), "a is quantised or sparse"),
        ("a.pth", packed, "is compressed, or has a part twice"),
        ("a.pth", lambda: saved({"model": {"a": torch.zeros(1)}, "epoch": 1}), r"torch\.load\(FILE\)\['model'\]"),
        ("a.pth", lambda: saved({"a": torch.zeros(100)})[:200], "is damaged"),
        ("a.onnx", lambda: b"", r"of a graph: features\.architecture=onnx"),
    ],
)
def test_files_that_are_no_weights(name: str, content: Callable[[], bytes], words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content())
    with pytest.raises(OptionError, match=words):
        read_weights(str(tmp_path / name), "features.weights")


def test_a_file_of_many_bytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.pth").open("wb") as file:
        os.truncate(file.fileno(), 5 << 30)  # a hole
    with pytest.raises(OptionError, match=r"has 5368709120 bytes; at most 4294967296"):
        read_weights(str(tmp_path / "large.pth"), "features.weights")


# --- ONNX --------------------------------------------------------------------------------------------------------


def exported(folder: Path, network: nn.Module, side: int | None = 8, name: str = "graph.onnx") -> Path:
    open_sides = {} if side else {"x": {0: "n", 2: "h", 3: "w"}}
    shown = torch.zeros(1, 3, side or 8, side or 8)
    with pytest.warns(DeprecationWarning):
        torch.onnx.export(
            network, (shown,), str(folder / name), dynamo=False, input_names=["x"], dynamic_axes=open_sides
        )
    return folder / name


def changed(file: Path, change: Callable[[Any], None]) -> Path:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_model(file)
    change(model)
    file.write_bytes(model.SerializeToString())
    return file


def test_a_graph_gives_what_its_last_linear_layer_reads(tmp_path: Path) -> None:
    network, file = trained(tmp_path)
    graph = exported(tmp_path, network)
    np.testing.assert_allclose(features_of(graph, "onnx"), features_of(file, CLASS), atol=1e-5)


def test_a_graph_of_any_side_another_layer_and_size(tmp_path: Path) -> None:
    network, file = trained(tmp_path)
    graph = exported(tmp_path, network, None)
    name = next(one.name for one in networks._graph(options(graph)).layers if one.operation == "Relu")
    found, expected = (
        features_of(one, kind, layer=layer, size=16)
        for one, kind, layer in ((graph, "onnx", name), (file, CLASS, "stem"))
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def transposed(model: Any) -> None:
    """The last layer's matrix as other exporters write it: turned round by an operation."""
    onnx = pytest.importorskip("onnx")
    last = model.graph.node[-1]
    (matrix,) = (one for one in model.graph.initializer if one.name == last.input[1])
    values = onnx.numpy_helper.to_array(matrix)
    matrix.CopyFrom(onnx.numpy_helper.from_array(values.T.copy(), matrix.name))
    model.graph.node.insert(0, onnx.helper.make_node("Transpose", [matrix.name], ["turned"], perm=[1, 0]))
    model.graph.node[-1].input[1] = "turned"


def test_the_last_linear_layer_is_found_behind_a_turned_matrix(tmp_path: Path) -> None:
    network, file = trained(tmp_path)
    graph = changed(exported(tmp_path, network), transposed)
    np.testing.assert_allclose(features_of(graph, "onnx"), features_of(file, CLASS), atol=1e-5)


class Together(Small):
    """Its pictures meet: each less the mean of all."""

    def forward(self, given: Tensor) -> Tensor:
        return super().forward(given - given.mean(0, keepdim=True) + given.mean())


def test_pictures_never_meet_in_a_graph(tmp_path: Path) -> None:
    torch.manual_seed(1)
    graph = exported(tmp_path, Together().eval(), None)
    images = pictures(5)
    compute = Features(FeaturesConfig(name="backbone", weights=str(graph), architecture="onnx"), (3, 8, 8), tmp_path)
    other = images.copy()
    other[4] = 255 - other[4]
    assert np.array_equal(compute(images)[:4], compute(other)[:4])


def external(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = tensor.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def of_another_domain(model: Any) -> None:
    model.graph.node[0].domain = "com.example"


def drawing(model: Any) -> None:
    model.graph.node[1].op_type = "RandomNormalLike"


def quantised(model: Any) -> None:
    model.graph.node[0].op_type = "ConvInteger"


def named_twice(model: Any) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


def not_finite(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.raw_data = np.full(len(tensor.raw_data) // 4, np.nan, np.float32).tobytes()


def of_text(model: Any) -> None:
    model.graph.input[0].type.tensor_type.elem_type = 7


def large(model: Any) -> None:
    onnx = pytest.importorskip("onnx")
    made = onnx.helper.make_node("ConstantOfShape", ["sides"], ["huge"])
    sides = onnx.numpy_helper.from_array(np.array([1, 10**9], np.int64), "sides")
    model.graph.initializer.append(sides)
    model.graph.node.insert(0, made)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (external, "points to another file"),
        (of_another_domain, r"Conv is an operation of com\.example"),
        (drawing, "RandomNormalLike draws"),
        (quantised, r"is quantised \(ConvInteger\)"),
        (named_twice, "stands twice"),
        (not_finite, "numbers that are not finite"),
        (of_text, r"reads x 1 x 3 x 8 x 8; allowed: one input of float32 pictures"),
        (large, "huge has 1000000000 numbers"),
    ],
)
def test_graphs_that_are_refused(change: Callable[[Any], None], words: str, tmp_path: Path) -> None:
    graph = changed(exported(tmp_path, trained(tmp_path)[0]), change)
    with pytest.raises(OptionError, match=words):
        features_of(graph, "onnx")


@pytest.mark.parametrize(
    ("content", "more", "words"),
    [
        (lambda whole: whole[: len(whole) // 2], {}, "is no ONNX graph, or is damaged"),
        (lambda whole: b"version https://git-lfs", {}, "a pointer of Git LFS"),
        (lambda whole: whole, {"layer": "absent"}, r"features\.layer=absent: the graph has no such value"),
        (lambda whole: whole, {"size": 16}, r"features\.size=16: the graph reads pictures of 8x8; allowed: 8"),
    ],
)
def test_mistakes_with_graphs(
    content: Callable[[bytes], bytes], more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    graph = exported(tmp_path, trained(tmp_path)[0])
    graph.write_bytes(content(graph.read_bytes()))
    with pytest.raises(OptionError, match=words):
        features_of(graph, "onnx", **more)


def test_without_the_extra_a_graph_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    graph = exported(tmp_path, trained(tmp_path, 3)[0])

    def absent(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(weights.importlib, "import_module", absent)
    with pytest.raises(OptionError, match=r"needs onnx: pip install 'fedpriv\[public\]'"):
        features_of(graph, "onnx")


def test_a_run_with_a_graph_names_its_digest(run: Run, tmp_path: Path) -> None:
    graph = exported(tmp_path, trained(tmp_path)[0])
    words = [f"features.weights={graph}", "features.architecture=onnx", "features.trained_on='noise of a seed'"]
    folder = Path(run("features=backbone", *words, "strategy=fedavg", "model=softmax", "num_rounds=1"))
    known = json.loads((folder / "summary.json").read_text())["public_knowledge"]
    digest = hashlib.sha256(graph.read_bytes()).hexdigest()
    assert f"a network (onnx, weights with SHA-256 {digest[:12]}) trained on: noise of a seed" in known


# --- timm and Hugging Face ---------------------------------------------------------------------------------------


def test_a_network_of_timm(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    network = timm.create_model("test_resnet").eval()
    save_file(network.state_dict(), tmp_path / "timm.safetensors")
    found = features_of(tmp_path / "timm.safetensors", "timm/test_resnet", size=32, mean=[0.0] * 3, std=[1.0] * 3)
    with torch.no_grad():
        shown = torch.from_numpy(pictures(3)).float() / 255
        shown = nn.functional.interpolate(shown, (32, 32), mode="bilinear", antialias=True)
        expected = network.forward_head(network.forward_features(shown), pre_logits=True)
    np.testing.assert_allclose(found, unit(expected), atol=1e-5)
    with pytest.raises(OptionError, match=r"features\.architecture=timm/hf-hub:a/b: no such network of timm"):
        features_of(tmp_path / "timm.safetensors", "timm/hf-hub:a/b")


def vit(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    made = transformers.ViTForImageClassification(
        transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=3)
    )
    made.save_pretrained(folder)
    return made.eval()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **more: Any) -> Any:
        raise AssertionError("a connection was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_a_vision_encoder_of_hugging_face(offline: None, tmp_path: Path) -> None:
    network, file = vit(tmp_path), tmp_path / "model.safetensors"
    found = features_of(file, "huggingface", mean=[0.5] * 3, std=[0.5] * 3)
    with torch.no_grad():
        shown = torch.from_numpy(pictures(3)).float() / 255 * 2 - 1
        expected = network.vit(shown).last_hidden_state.mean(1)
    np.testing.assert_allclose(found, unit(expected), atol=1e-5)
    asked = ["features=backbone", f"features.weights={file}", "features.architecture=huggingface"]
    named = with_weights(compose([*asked, "features.trained_on=nothing", "strategy=fedavg", "model=softmax"]))
    both = file.read_bytes() + (tmp_path / "config.json").read_bytes()
    assert named.features.weights_sha256 == hashlib.sha256(both).hexdigest()
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text().replace("gelu", "relu"))
    with pytest.raises(OptionError, match="is another file"):
        features_of(file, "huggingface", weights_sha256=named.features.weights_sha256)
    with pytest.raises(OptionError, match=r"lacks, or has in another shape, pooler"):
        features_of(file, "huggingface", layer="network.pooler")


def test_weights_of_another_model_than_the_configuration(tmp_path: Path) -> None:
    vit(tmp_path)
    given = load_file(tmp_path / "model.safetensors")
    save_file({name: value for name, value in given.items() if "query" not in name}, tmp_path / "model.safetensors")
    with pytest.raises(OptionError, match=r"is of another model than config\.json beside it"):
        features_of(tmp_path / "model.safetensors", "huggingface")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"auto_map": {"AutoModel": "code.Network"}}, "says auto_map, which fedpriv does not follow"),
        ({"_attn_implementation": "someone/kernel"}, "says _attn_implementation"),
        ({"quantization_config": {"load_in_8bit": True}}, "says quantization_config"),
        ({"model_type": "gpt2"}, "of the family gpt2; allowed for pictures"),
        ({"model_type": "bert"}, r"of the family bert, which is for texts \(docs/text\.md\); allowed for pictures"),
        ({"model_type": None}, "of the family None"),
    ],
)
def test_configurations_that_bring_something_are_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        encoder_config(json.dumps({"model_type": "vit"} | said).encode(), "features.weights", "model", "pictures")
    with pytest.raises(OptionError, match="model_type stands twice"):
        encoder_config(b'{"model_type": "vit", "model_type": "vit"}', "features.weights", "model", "pictures")


@pytest.mark.parametrize("architecture", ["onnx", "huggingface", "timm/resnet18", "clients.mine.Network"])
def test_a_node_reads_networks_of_torchvision_alone(architecture: str, tmp_path: Path) -> None:
    _, file = trained(tmp_path)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    own = ApprovedWeights(sha256=digest, file=str(file), trained_on="noise")
    words = ["features=backbone", f"features.weights={file}", f"features.weights_sha256={digest}"]
    config = compose([*words, "features.trained_on=noise", "strategy=fedavg", "model=softmax"])
    changed = config.features.model_copy(update={"architecture": architecture})
    with pytest.raises(PolicyRefused, match="that no policy names; allowed: a network of torchvision"):
        with_own_weights((own,), config.model_copy(update={"features": changed}))


# --- texts -------------------------------------------------------------------------------------------------------


def text_encoder(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    made = transformers.BertModel(transformers.BertConfig(vocab_size=6, max_position_embeddings=20, **sizes))
    made.save_pretrained(folder)
    words = {"[UNK]": 0, "good": 1, "bad": 2, "soup": 3, "cold": 4, "warm": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return made.eval()


def with_notes(folder: Path, column: str = "text: encoder, encoder: bert, trained_on: web pages, length: 8") -> Path:
    rows = [
        f"{'good warm' if row % 2 else 'bad cold'} soup,{'praise' if row % 2 else 'complaint'}" for row in range(60)
    ]
    (folder / "notes.csv").write_text("\n".join(["note,kind", *rows, ",praise"]) + "\n")
    (folder / "schema.yaml").write_text(
        "target: {column: kind, task: classification, classes: [complaint, praise]}\n"
        f"columns:\n  note: {{{column}}}\n"
    )
    return folder / "schema.yaml"


def test_a_column_of_a_text_encoder(offline: None, tmp_path: Path) -> None:
    (tmp_path / "bert").mkdir()
    network = text_encoder(tmp_path / "bert")
    schema = read_schema(with_notes(tmp_path))
    rows = encode_file(tmp_path / "notes.csv", schema).inputs
    with torch.no_grad():
        expected = network(torch.tensor([[2, 4, 3]])).last_hidden_state[0].mean(0)
    assert rows.shape == (61, 16) and not rows[60].any()  # an empty text is 0
    np.testing.assert_allclose(rows[0], nn.functional.normalize(expected, dim=0), atol=1e-5)
    whole = b"".join(
        (tmp_path / "bert" / n).read_bytes() for n in ("model.safetensors", "config.json", "tokenizer.json")
    )
    assert schema.columns["note"].sha256 == hashlib.sha256(whole).hexdigest()
    (tmp_path / "bert").rename(tmp_path / "other")
    moved = read_schema(with_notes(tmp_path, "text: encoder, encoder: other, trained_on: web pages, length: 8"))
    assert moved.digest == schema.digest
    config = json.loads((tmp_path / "other" / "config.json").read_text()) | {"hidden_act": "relu"}
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    again = read_schema(with_notes(tmp_path, "text: encoder, encoder: other, trained_on: web pages, length: 8"))
    assert again.digest != schema.digest


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("text: encoder, encoder: bert", "text: encoder needs encoder .* and trained_on"),
        ("text: hashed, encoder: bert", "encoder needs text: encoder; leave it out"),
        ("text: encoder, encoder: absent, trained_on: web", r"the text encoder's .*absent/model\.safetensors cannot"),
        (
            "text: encoder, encoder: bert, trained_on: web",
            "length of a column is more than the encoder reads; at most 18",
        ),
        ("text: encoder, encoder: bert, trained_on: web, length: 8, dims: 32", r"dims=32: the encoder in .* gives 16"),
        (f"text: encoder, encoder: bert, trained_on: web, length: 8, sha256: {'0' * 64}", "its files are others"),
    ],
)
def test_wrong_columns_of_an_encoder(column: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "bert").mkdir()
    text_encoder(tmp_path / "bert")
    with pytest.raises(OptionError, match=words):
        read_schema(with_notes(tmp_path, column))


def test_an_encoder_that_remembers_its_longest_text_is_refused(tmp_path: Path) -> None:
    """The vector of a text would be another one behind a longer text of somebody else's."""
    transformers = pytest.importorskip("transformers")
    text_encoder(tmp_path)
    grows = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 9.0}
    said = {"vocab_size": 6, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    made = transformers.NomicBertModel(transformers.NomicBertConfig(**said, rope_parameters=grows))
    made.save_pretrained(tmp_path)
    told = {"model_type": "nomic_bert", **said, "rope_parameters": grows}  # says no number of positions: 2,048
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(OptionError, match="rope_type dynamic"):
        TextEncoder(str(tmp_path), 4000).vectors(["good soup"], None)


def test_a_run_on_encoded_texts_says_what_the_encoder_knows(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bert").mkdir()
    text_encoder(tmp_path / "bert")
    table = [f"dataset.root={tmp_path / 'notes.csv'}", f"dataset.schema_file={with_notes(tmp_path)}", "model=linear"]
    clients = ["num_clients=2", "clients_per_round=2", "num_rounds=1"]
    folder = Path(run("strategy=fedavg", "dataset=table", *table, *clients))
    known = json.loads((folder / "summary.json").read_text())["public_knowledge"]
    model: Any = load_model(folder)
    assert len(model.probabilities({"note": ["good soup", ""]})) == 2
    (tmp_path / "bert/model.safetensors").unlink()
    with pytest.raises(RunFolderError, match=r"the text encoder's .*model\.safetensors cannot be read"):
        load_model(folder)
    assert known.startswith("column note: a text encoder (files with SHA-256") and known.endswith("web pages")
    assert known_beforehand(compose(["strategy=fedavg", "dataset=breast_cancer", "model=linear"])) == "none"


# --- fedpriv features --------------------------------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert features_command(list(arguments)) == 0
    return capsys.readouterr().out


def test_the_command_tells_what_a_file_holds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    network, file = trained(tmp_path)
    text = told(capsys, str(file), f"architecture={CLASS}", "size=8")
    assert "classifier.0  Linear" in text and "5 features of a picture of 8x8" in text and "not told" in text
    graph = exported(tmp_path, network)
    text = told(capsys, str(graph))
    assert "an ONNX graph" in text and "Relu" in text and "1 x 5" in text and "features.size=8" in text
    assert "fits no network of torchvision" in told(capsys, str(file))
    vit(tmp_path / "vit")
    (tmp_path / "vit/preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [1, 1, 1]}')
    text = told(capsys, str(tmp_path / "vit/model.safetensors"))
    assert "architecture: huggingface" in text and "'features.mean=[0.5,0.5,0.5]'" in text and "size=8" in text


def test_the_command_finds_the_network_of_a_state_dict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision").models
    state = models.get_model("mobilenet_v2", num_classes=7).state_dict()
    for prefix in ("", "module._orig_mod."):
        torch.save({f"{prefix}{name}": value for name, value in state.items()}, tmp_path / "weights.pth")
        text = told(capsys, str(tmp_path / "weights.pth"), "size=32")
        assert "architecture: mobilenet_v2" in text and "1280 features of a picture of 32x32" in text
