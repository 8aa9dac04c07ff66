"""features=backbone: a network with public weights between pictures and model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.data import networks
from fedpriv.data.features import MOST_DRAWN, PROCESS_DIMS, Features, known_beforehand
from fedpriv.data.networks import DIMS, MAP, MOST, WEIGHTS, ProcessNetwork, drawings_map, weights_digest
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
