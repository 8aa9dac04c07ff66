"""model.train: what is frozen is no coordinate, and what is trained has the gradient that it would have had."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run
from reference.per_example import clipped_sum
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import read_config
from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.data.load import load_federated
from fedpriv.data.weights import read_weights
from fedpriv.mechanisms.film import Film
from fedpriv.mechanisms.noise import KEPT_BACK
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.rowwise import NotRowwise, Rowwise
from fedpriv.report.page import write_report
from fedpriv.training.flat_model import layout_of
from fedpriv.training.language_models import Text
from fedpriv.training.models import build_model
from fedpriv.training.sequential import FlatModel, LocalData, SequentialTrainer, Training
from fedpriv.training.trained_model import load_model
from fedpriv.training.trained_part import freeze_marked, frozen_tensors, without_batch_norm
from fedpriv.training.vectorised import VectorisedTrainer

PARTS = ("head", "film", "lora", "ffa_lora", "bias")
SHAPE = (1, 16, 16)
#: Parameters of what is trained of a network with convolutions 1 -> 16 -> 32, Linear 32 -> 128 -> 10.
RANK = 4
CNN = {
    "head": 128 * 10 + 10,
    "film": 2 * (16 + 32 + 128) + 1290,
    "lora": RANK * (25 + 16) + RANK * (16 * 25 + 32) + RANK * (32 + 128) + 1290,
    "ffa_lora": RANK * (16 + 32 + 128) + 1290,
    "bias": 16 + 32 + 128 + 1290,
}


def made(train: str, name: str = "cnn", shape: tuple[int, ...] = SHAPE, path: str | None = None) -> nn.Module:
    return build_model(ModelConfig(name=name, train=train, path=path), shape, 10, seed=1)  # type: ignore[arg-type]


def pictures(shape: tuple[int, ...], examples: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(5)
    return torch.randn(examples, *shape, generator=random), torch.arange(examples) % 10


def moved(model: nn.Module) -> nn.Module:
    """With other parameters than those at the start: a gradient of `up` says nothing while it is zero."""
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random), alpha=0.1)
    return model


@pytest.mark.parametrize("train", PARTS)
def test_what_is_trained_are_the_coordinates_and_the_function_begins_the_same(train: str) -> None:
    whole, model = made("all"), made(train)
    layout = layout_of(model)
    assert layout.num_parameters == CNN[train] and layout.blocks[-1].name == "head"
    images, _ = pictures(SHAPE, 3)
    assert torch.equal(whole(images), model(images))


@pytest.mark.parametrize("train", PARTS)
@pytest.mark.parametrize(("name", "shape"), [("mlp", (1, 8, 8)), ("cnn", SHAPE), ("resnet18", (3, 8, 8))])
@pytest.mark.rotates(2)
def test_clipped_sums_equal_single_gradients(name: str, shape: tuple[int, ...], train: str) -> None:
    model, (images, labels) = moved(made(train, name, shape)), pictures(shape, 4)
    _, norms = clipped_sum(model, images, labels, 1.0)
    bound = sorted(norms)[2]  # some are clipped, some are not
    expected, _ = clipped_sum(model, images, labels, bound * (1 - KEPT_BACK))
    way = PerExampleGradients(model)
    found = way.clipped_sum(images, labels, bound)
    assert way.mode == "bookkeeping"
    torch.testing.assert_close(found.norms, torch.tensor(norms, dtype=torch.float64), rtol=1e-5, atol=0)
    assert float((found.total - expected).norm() / expected.norm()) < 1e-4


def test_a_transformers_film_is_between_positions_and_its_channels_are_last() -> None:
    model = build_model(ModelConfig(name="transformer", train="film"), (6,), 10, 1, Text(20, False))
    ids, labels = torch.arange(24).view(4, 6) % 20, torch.arange(4)
    moved(model)
    _, norms = clipped_sum(model, ids, labels, 1e9)
    way = PerExampleGradients(model, vocabulary=20)
    found = way.clipped_sum(ids, labels, 1e9)
    assert way.mode == "bookkeeping"
    torch.testing.assert_close(found.norms, torch.tensor(norms, dtype=torch.float64), rtol=1e-5, atol=0)


@pytest.mark.parametrize("train", ["lora", "head"])
def test_lora_has_the_per_example_gradients_of_opacus(train: str) -> None:
    from opacus.grad_sample import GradSampleModule

    model, (images, labels) = moved(made(train)), pictures(SHAPE, 5)
    norms = PerExampleGradients(model).clipped_sum(images, labels, 1.0).norms
    hooked = GradSampleModule(model, loss_reduction="sum")
    nn.functional.cross_entropy(hooked(images), labels, reduction="sum").backward()
    samples = torch.cat([parameter.grad_sample.flatten(1) for parameter in hooked.parameters()], 1)
    torch.testing.assert_close(norms, samples.double().norm(dim=1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("train", PARTS)
def test_training_moves_what_is_trained_alone_and_the_vectorised_trainer_the_same(train: str) -> None:
    local = LocalConfig(epochs=1, batch_size=4, lr=0.1, momentum=0.0, sampler="shuffle")
    updates = []
    for trainer in (SequentialTrainer, VectorisedTrainer):
        flat = FlatModel(made(train, "mlp"))
        frozen = {name: value.clone() for name, value in flat.module.named_buffers()}
        asked = [
            Training(flat.theta.clone(), LocalData(*pictures(SHAPE, size)), np.random.default_rng(size))
            for size in (8, 5)
        ]
        updates.append(torch.stack([result.update for result in trainer(flat, local).train_all(asked)]))
        assert frozen and all(torch.equal(value, frozen[name]) for name, value in flat.module.named_buffers())
    assert float(updates[0].norm()) > 0.01
    torch.testing.assert_close(updates[0], updates[1], rtol=1e-4, atol=1e-6)


# --- models of others ------------------------------------------------------------------------------------


class Normalised(nn.Module):
    """As torchvision's networks: BatchNorm, activations in place, dropout, a parameter of its own, a tied weight."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.ones(1))
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3, groups=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Flatten()
        )
        self.middle = nn.Linear(6 * 14 * 14, 6 * 14 * 14, bias=False)
        self.fc = nn.Linear(6 * 14 * 14, classes)
        with torch.no_grad():
            norm = self.body[1]
            for value, draw in ((norm.running_mean, torch.randn), (norm.running_var, torch.rand)):
                value.copy_(draw(6))
            norm.weight.copy_(torch.rand(6)), norm.bias.copy_(torch.randn(6))

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.middle(self.body(images)))


def twice(shape: tuple[int, ...], classes: int) -> nn.Module:
    layer = nn.Linear(256, 256)
    layers = OrderedDict(flat=nn.Flatten(), body=nn.Sequential(layer, nn.ReLU(), layer), again=layer)
    return nn.Sequential(OrderedDict(layers, head=nn.Linear(256, classes)))


def normalised(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Normalised(classes)


@pytest.mark.parametrize("train", PARTS)
def test_a_network_with_batch_norm_keeps_its_statistics_as_constants(train: str) -> None:
    torch.manual_seed(1)
    expected = Normalised(10).eval()
    model = made(train, "custom", path="test_trained_part.normalised").train()
    images, labels = pictures(SHAPE, 4)
    torch.testing.assert_close(model(images), expected(images), rtol=1e-4, atol=1e-5)
    assert not any(isinstance(part, nn.BatchNorm2d | nn.Dropout) for part in model.modules())
    way = PerExampleGradients(model)
    way.clipped_sum(images, labels, 1.0)
    assert way.mode == "bookkeeping"


def test_a_batch_norm_without_factors_too() -> None:
    layer = nn.BatchNorm2d(3, affine=False)
    layer.running_mean.copy_(torch.tensor([1.0, -2.0, 0.5]))  # type: ignore[union-attr]
    layer.running_var.copy_(torch.tensor([4.0, 0.25, 1.0]))  # type: ignore[union-attr]
    model, (images, _) = nn.Sequential(layer), pictures((3, 4, 4), 2)
    expected = layer.eval()(images)
    without_batch_norm(model)
    torch.testing.assert_close(model(images), expected)


class _Odd(Tensor):
    pass


def test_layers_trained_in_part_and_constants_with_code_of_their_own_take_another_way() -> None:
    for change, words in (
        (lambda layer: layer.register_buffer("bias", layer._parameters.pop("bias").detach()), "trained in part"),
        (lambda layer: layer.__dict__.update(bias=layer._parameters.pop("bias").detach()), "trained in part"),
        (
            lambda layer: [
                layer.register_buffer(name, layer._parameters.pop(name).detach().as_subclass(_Odd))
                for name in ("weight", "bias")
            ],
            "constants of a class of their own",
        ),
    ):
        layer = nn.Linear(4, 4)
        change(layer)
        with pytest.raises(NotRowwise, match=words):
            Rowwise(nn.Sequential(layer, nn.Linear(4, 2)))


def test_a_layer_in_two_places_gets_one_adapter() -> None:
    model = made("lora", "custom", path="test_trained_part.twice")
    body = model.get_submodule("body")
    assert body.get_submodule("0") is body.get_submodule("2") is model.get_submodule("again")
    assert layout_of(model).num_parameters == RANK * (256 + 256) + 2570
    model.eval()(pictures(SHAPE, 2)[0])


def test_film_leaves_each_row_to_itself() -> None:
    for layer, shape in ((Film(3, 1), (5, 3, 2, 2)), (Film(3, -1), (5, 7, 3)), (Film(3, -1, scales=False), (5, 3))):
        moved(layer)
        inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        whole = layer(inputs)
        assert all(torch.equal(layer(inputs[k : k + 1])[0], whole[k]) for k in range(5))


# --- as a user ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "train", "words"),
    [
        ("linear", "head", "model.train=head: the model linear is one block, its head: nothing would be frozen"),
        ("softmax", "lora", "allowed: all"),
    ],
)
def test_models_without_anything_before_the_head(name: str, train: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        made(train, name)


def test_an_adapter_that_belongs_nowhere() -> None:
    with pytest.raises(OptionError, match=r"model\.train=bias: before its head the model bag has no layer with a bias"):
        build_model(ModelConfig(name="bag", train="bias"), (6,), 10, 1, Text(20, False))


def test_a_runs_model_holds_what_was_frozen(run: Run) -> None:
    folder = run("strategy=fedavg", "model=mlp", "model.train=lora", "num_rounds=1")
    found = load_file(Path(folder) / "model.safetensors")
    expected = made("lora", "mlp", (1, 8, 8))
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in expected.state_dict().items()
    }
    model = load_model(folder)
    assert torch.equal(model.module.state_dict()["hidden.1.layer.weight"], found["hidden.1.layer.weight"])
    rows = [line for line in (Path(folder) / "config.yaml").read_text().splitlines() if "train:" in line]
    assert "  train: lora" in rows


# --- public weights ----------------------------------------------------------------------------------------


def weights_file(folder: Path, name: str = "mlp", shape: tuple[int, ...] = (1, 8, 8), classes: int = 10) -> Path:
    """Of a model that somebody else has trained: other numbers than any seed's here."""
    model = moved(build_model(ModelConfig(name=name), shape, classes, seed=77))  # type: ignore[arg-type]
    save_file(dict(model.state_dict()), folder / "public.safetensors")
    return folder / "public.safetensors"


def test_a_model_starts_from_the_weights_and_its_head_where_the_classes_agree(tmp_path: Path) -> None:
    for classes, own_head in ((10, True), (7, False)):
        file = weights_file(tmp_path, classes=classes)
        given = load_file(file)
        config = ModelConfig(name="mlp", weights=str(file), train="lora")
        found = build_model(config, (1, 8, 8), 10, 0).state_dict()
        plain = build_model(ModelConfig(name="mlp", train="lora"), (1, 8, 8), 10, 0).state_dict()
        assert torch.equal(found["hidden.1.layer.weight"], given["hidden.1.weight"])
        assert torch.equal(found["hidden.1.down.weight"], plain["hidden.1.down.weight"])
        assert torch.equal(found["head.0.weight"], given["head.0.weight"] if own_head else plain["head.0.weight"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda given: {**given, "body.weight": torch.ones(2)}, r"what it has too much: body\.weight \(1 tensors\)"),
        (lambda given: {n: v for n, v in given.items() if n != "hidden.1.bias"}, r"what it lacks: hidden\.1\.bias"),
        (lambda given: {**given, "hidden.1.bias": torch.ones(3)}, r"what it has in another shape: hidden\.1\.bias"),
        (
            lambda given: {**given, "head.0.bias": torch.full((10,), torch.nan)},
            r"bias has numbers that are not",
        ),
    ],
)
def test_weights_of_another_model_are_refused(change: Any, words: str, tmp_path: Path) -> None:
    file = weights_file(tmp_path)
    save_file(change(load_file(file)), tmp_path / "odd.safetensors")
    config = ModelConfig(name="mlp", weights=str(tmp_path / "odd.safetensors"))
    with pytest.raises(OptionError, match=words):
        build_model(config, (1, 8, 8), 10, 0)


class _Payload:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


def test_files_that_hold_code_are_refused_and_none_of_it_runs(tmp_path: Path) -> None:
    trap, allowed = tmp_path / "trap", "allowed: a state dict of tensors, best as safetensors"
    torch.save({"a": torch.ones(1), "b": _Payload(trap)}, tmp_path / "pickle.pt")
    torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "script.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pth")
    torch.save([torch.ones(1)], tmp_path / "list.pth")
    (tmp_path / "cut.safetensors").write_bytes(weights_file(tmp_path).read_bytes()[:-5])
    (tmp_path / "text.bin").write_text("no weights")
    (tmp_path / "empty.pt").write_bytes(b"")
    for name, words in (
        ("pickle.pt", rf"holds more than tensors.*{allowed}"),
        ("script.pt", rf"is a TorchScript archive, which is code; {allowed}"),
        ("module.pth", rf"holds more than tensors.*{allowed}"),
        ("list.pth", "is no state dict"),
        ("cut.safetensors", "is no safetensors file"),
        ("empty.pt", "holds more than tensors, or is damaged"),
        ("text.bin", r"is no file of weights; allowed: \.safetensors, \.pt, \.pth"),
        ("absent.pt", "cannot be read"),
    ):
        with pytest.raises(OptionError, match=words):
            read_weights(str(tmp_path / name), "model.weights")
    assert not trap.exists()


def test_a_state_dict_of_torch_save_is_read_and_its_digest_is_that_of_the_file(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(3.0)}, tmp_path / "plain.pth")
    found = read_weights(str(tmp_path / "plain.pth"), "model.weights")
    assert torch.equal(found.tensors["a"], torch.arange(3.0))
    assert found.sha256 == hashlib.sha256((tmp_path / "plain.pth").read_bytes()).hexdigest()
    with pytest.raises(OptionError, match=f"is another file: its SHA-256 is {found.sha256}, and 00.* is named"):
        read_weights(str(tmp_path / "plain.pth"), "model.weights", "0" * 64)


def test_a_run_names_the_weights_and_goes_on_with_the_same_alone(run: Run, tmp_path: Path) -> None:
    file = weights_file(tmp_path)
    options = ("strategy=fedavg", "model=mlp", "model.train=head", f"model.weights={file}")
    with pytest.raises(OptionError, match=r"model\.trained_on=null: say what the weights were trained on"):
        run(*options)
    folder = run(*options, "model.trained_on='noise of a seed'", "num_rounds=1")
    said = (Path(folder) / "config.yaml").read_text()
    assert hashlib.sha256(file.read_bytes()).hexdigest() in said and "noise of a seed" in said
    saved = load_file(Path(folder) / "model.safetensors")
    assert torch.equal(saved["hidden.1.weight"], load_file(file)["hidden.1.weight"])
    summary = json.loads((Path(folder) / "summary.json").read_text())
    assert summary["public_knowledge"].endswith("trained on: noise of a seed") and summary["trained"] == "the head"
    page = write_report(folder).read_text()
    assert "trained on: noise of a seed" in page and "trained: the head" in page
    file.write_bytes(b"")  # predictions need the run's folder alone
    assert torch.equal(load_model(folder).module.state_dict()["hidden.1.weight"], saved["hidden.1.weight"])


def test_words_without_weights_are_refused(run: Run) -> None:
    with pytest.raises(OptionError, match=r"model\.trained_on=ImageNet: needs model\.weights; allowed: null"):
        run("strategy=fedavg", "model.trained_on=ImageNet")


# --- requires_grad_(False) -------------------------------------------------------------------------------


def own_body() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())


def frozen_body(shape: tuple[int, ...], outputs: int) -> nn.Module:
    body = own_body().requires_grad_(False)
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(16, outputs)))


def frozen_weight(shape: tuple[int, ...], outputs: int) -> nn.Module:
    model = nn.Sequential(OrderedDict(body=own_body(), head=nn.Linear(16, outputs)))
    model.body[1].weight.requires_grad_(False)
    return model


class Tied(nn.Module):
    """Two layers of one weight, a buffer, and a parameter of its own."""

    def __init__(self, outputs: int, frozen: bool) -> None:
        super().__init__()
        self.register_buffer("project", torch.randn(64, 16) / 8)
        self.shift = nn.Parameter(torch.randn(16), requires_grad=False)
        self.body = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        self.body[2].weight = self.body[0].weight
        self.body[0].weight.requires_grad_(not frozen)
        self.head = nn.Linear(16, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.relu(self.body(inputs.flatten(1) @ self.project + self.shift)))
        return outputs


def tied(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return Tied(outputs, frozen=True)


def tied_trained(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return Tied(outputs, frozen=False)


def frozen_whole(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return frozen_weight(shape, outputs).requires_grad_(False)


def frozen_anew(shape: tuple[int, ...], outputs: int) -> nn.Module:
    model = frozen_body(shape, outputs)
    with torch.no_grad():
        model.body[1].weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=(16, 64))))  # type: ignore[union-attr]
    return model


#: Model -> (trained parameters, names of what stays as it was built).
OWN = {
    "frozen_body": (170, {"body.1.weight", "body.1.bias"}),
    "frozen_weight": (170 + 16, {"body.1.weight"}),
    "tied": (170 + 32, {"project", "shift", "body.0.weight", "body.2.weight"}),
    "tied_trained": (170 + 32 + 256, {"project", "shift"}),
}
GRADIENTS = {
    "sequential": ("strategy=fedavg", "engine.trainer=sequential"),
    "vectorised": ("strategy=fedavg", "engine.trainer=vectorised"),
    "examples": ("strategy=dpsgd", "engine.trainer=sequential"),
    "release": ("strategy=fedldp",),
    "scaffold": ("strategy=scaffold",),
}


def own_model(name: str, train: str = "all", seed: int = 1) -> nn.Module:
    config = ModelConfig(name="custom", train=train, path=f"test_trained_part.{name}")  # type: ignore[arg-type]
    return build_model(config, (1, 8, 8), 10, seed)


def own(name: str) -> tuple[str, ...]:
    return ("model=custom", f"model.path=test_trained_part.{name}", "local.batch_size=20", "num_rounds=2")


@pytest.mark.parametrize("way", GRADIENTS)
@pytest.mark.parametrize("name", OWN)
@pytest.mark.rotates(3)
def test_what_requires_no_gradient_is_no_coordinate(name: str, way: str, run: Run) -> None:
    """Its bits in the model's file are those of the model as it was built, and the loaded model is the one that ran."""
    number, frozen = OWN[name]
    folder = run(*own(name), *GRADIENTS[way])
    summary, saved = json.loads((folder / "summary.json").read_text()), load_file(folder / "model.safetensors")
    assert (summary["num_parameters"], summary["num_shared"]) == (number, number)
    built = own_model(name, seed=0).state_dict()
    still = {key for key, value in saved.items() if torch.equal(value, built[key])}
    assert still == frozen, (still, frozen)
    dataset = load_federated(read_config(folder)).dataset
    rows = load_federated(read_config(folder)).test
    right = load_model(folder).probabilities(dataset.test.inputs[rows]).argmax(1).numpy() == dataset.test.targets[rows]
    assert right.mean() == pytest.approx(summary["accuracy"]["final"], abs=1e-6)


@pytest.mark.parametrize("name", OWN)
def test_clipped_sums_of_a_model_that_is_frozen_in_part_equal_single_gradients(name: str) -> None:
    model, (images, labels) = moved(own_model(name)), pictures((1, 8, 8), 4)
    _, norms = clipped_sum(model, images, labels, 1.0)
    bound = sorted(norms)[2]
    expected, _ = clipped_sum(model, images, labels, bound * (1 - KEPT_BACK))
    found = PerExampleGradients(model).clipped_sum(images, labels, bound)
    torch.testing.assert_close(found.norms, torch.tensor(norms, dtype=torch.float64), rtol=1e-5, atol=0)
    assert float((found.total - expected).norm() / expected.norm()) < 1e-4


@pytest.mark.parametrize("train", PARTS)
def test_model_train_and_requires_grad_freeze_together(train: str) -> None:
    assert layout_of(own_model("frozen_weight", train)) == layout_of(own_model("frozen_body", train))


def test_a_frozen_parameter_with_two_names_in_one_layer_is_frozen_under_both() -> None:
    model = nn.Linear(4, 4)
    model.again = model.weight.requires_grad_(False)
    freeze_marked(model, "own.two_names")
    assert [name for name, _ in model.named_parameters()] == ["bias"]
    assert {*frozen_tensors(model)} == {"weight", "again"}


def test_a_resumed_run_of_a_frozen_model_ends_like_an_uninterrupted_one(run: Run, resumed: Any) -> None:
    whole, parts = run(*own("tied")), resumed(*own("tied"), after=1)
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("frozen_whole", "model=test_trained_part.frozen_whole: no parameter is left to train"),
        ("frozen_anew", "frozen_anew: body.1.weight is not trained, and is another each time that the model is built"),
    ],
)
def test_a_model_that_is_frozen_whole_or_anew_is_refused(name: str, words: str, run: Run) -> None:
    with pytest.raises(OptionError, match=words):
        run(*own(name))


def test_personal_layers_are_counted_among_trained_blocks(run: Run) -> None:
    with pytest.raises(OptionError, match=r"of one named block \(head\)"):
        run(*own("frozen_body"), "strategy=fedper")
