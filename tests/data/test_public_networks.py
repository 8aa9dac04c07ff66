"""Files of public weights as people have them: prefixes, wrappers, ONNX, timm, Hugging Face, and what is refused."""

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
from test_networks import CLASS, Small, options, pictures, trained, unit
from torch import Tensor, nn

from fedpriv.commands.features import main as features_command
from fedpriv.common.errors import OptionError, PolicyRefused, RunFolderError
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.data import networks, weights
from fedpriv.data.encoders import encoder_config
from fedpriv.data.features import Features, known_beforehand
from fedpriv.data.table_rows import encode_file
from fedpriv.data.table_schema import read_schema
from fedpriv.data.text_encoders import TextEncoder
from fedpriv.data.weights import read_weights
from fedpriv.deployment.approved_weights import ApprovedWeights, with_own_weights
from fedpriv.runs.preparation import with_weights
from fedpriv.training.trained_model import load_model


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
