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
from fedpriv.data.features import Features
from fedpriv.report.page import write_report
from fedpriv.runs.preparation import with_weights
from fedpriv.runs.trained_model import TrainedModel, load_model

CLASS = "test_backbone.Small"


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


def test_a_pictures_features_are_the_same_bits_wherever_it_stands(tmp_path: Path) -> None:
    _, file = trained(tmp_path)
    compute, images = Features(options(file, mirror=True), (3, 8, 8), tmp_path), pictures(130)
    whole = compute(images)
    for place in (0, 63, 64, 129):
        assert np.array_equal(compute(images[place : place + 1])[0], whole[place])
    assert np.array_equal(compute(images[:5, :, :, ::-1])[0], whole[0])  # a mirror image is the same


def test_where_a_place_has_another_kernel_pictures_are_computed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a picture more gives all behind it other bits, of which a clipped gradient can make anything."""

    def kernels(images: Any) -> Any:
        found = images.reshape(len(images), -1).copy()
        found[1::2] = np.nextafter(found[1::2], np.float32(2))
        return found

    monkeypatch.setattr("fedpriv.data.backbone.process_features", lambda: kernels)
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
        ({"architecture": "test_backbone.Absent"}, r"cannot be built \(AttributeError"),
        ({"architecture": "test_backbone.pictures"}, r"cannot be built \(TypeError"),
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
    read = options(file).model_copy(update={"architecture": "test_backbone.Meeting", "layer": "stem"})
    images = pictures(5)
    compute = Features(read, (3, 8, 8), tmp_path)
    changed = images.copy()
    changed[4] = 255 - changed[4]
    assert np.array_equal(compute(images)[:4], compute(changed)[:4])


def test_a_class_that_keeps_something_is_told(tmp_path: Path) -> None:
    _, file = trained(tmp_path)
    read = options(file).model_copy(update={"architecture": "test_backbone.Counting"})
    with pytest.raises(OptionError, match=r"features\.architecture=.*keeps something between pictures"):
        Features(read, (3, 8, 8), tmp_path)(pictures(5))


def test_weights_decide_what_is_cached(tmp_path: Path) -> None:
    first, second = (with_weights(compose(asked(trained(tmp_path, many)[1]))).features for many in (1000, 7))
    identities = [Features(read, (1, 8, 8), tmp_path).identity for read in (first, second)]
    assert identities[0] != identities[1]
