"""Features of networks: one that somebody else has trained (backbone), and one that comes with the project (processes).
Weights come from a file, and are never trained here.

A picture's features are a fixed function of that picture, so they cost no privacy if the file knows nothing of the
clients' pictures. That is the user's word (`features.trained_on`), and every report repeats it.

**Why pictures cannot meet.** torchvision's networks have no layer that joins the pictures of a batch once they are
evaluated. Of all others this is not known: each picture is computed by itself, and the first of a block once more at
its end, which shows a network that keeps something between pictures, on these pictures.

No code comes from the file: it holds tensors, a configuration, or an ONNX graph (`fedpriv.data.onnx_graphs`), and the
network is of torchvision, timm or transformers, or a class that the user names. It is evaluated as after training: no
dropout, BatchNorm with the statistics of the file.

Shapes: n pictures, c channels, h x w pixels, d features.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.common.errors import OptionError
from fedpriv.common.files import open_regular
from fedpriv.common.places import load_module, shipped_files
from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.data.gradients import Floats
from fedpriv.data.maps import Directions, FeatureMap, pink_map

if TYPE_CHECKING:
    from fedpriv.data.onnx_graphs import Graph

Shape = tuple[int, int, int]
#: Of pictures in grey: the network sees three equal channels.
COLOURS = 3


#: Architectures that a file beside the weights, or the file itself, has; and the beginning of timm's names.
HUGGING_FACE, ONNX, TIMM = "huggingface", "onnx", "timm/"


def backbone_dims(options: FeaturesConfig, shape: Shape) -> int:
    """d, from the architecture alone. Raises `OptionError`."""
    side = _side(options, shape)
    if options.architecture == ONNX:
        return _graph(options).dims(options.layer, side)
    return _dims(options.architecture, options.layer, side, beside(options.architecture, options.weights))


def public_digest(group: str, options: Any) -> str:
    """SHA-256 of what an option group's weights are read from. Raises `OptionError` for a file that is of no use."""
    architecture = getattr(options, "architecture", "")
    if architecture == ONNX:
        return _graph(options).sha256
    config = beside(architecture, options.weights)
    return read_weights(options.weights, f"{group}.weights", options.weights_sha256, config).sha256


def beside(architecture: str, weights: str | None) -> bytes:
    """The configuration that lies beside Hugging Face's weights; of other architectures nothing."""
    if architecture != HUGGING_FACE:
        return b""
    return read_file(str(Path(str(weights)).parent / "config.json"), "features.weights", MOST_CONFIG)


def _graph(options: FeaturesConfig) -> Graph:
    from fedpriv.data.onnx_graphs import read_graph  # its library is an extra

    return read_graph(str(options.weights), "features.weights", options.weights_sha256)


def network_size(options: FeaturesConfig) -> int:
    """Numbers of the network that computes the features, without allocating them; 0 where none does. Raises
    `OptionError`.
    """
    if options.name not in ("processes", "backbone"):
        return 0
    with torch.device("meta"):
        network = ProcessNetwork() if options.name == "processes" else network_of(options.architecture)
        return sum(value.numel() for value in network.state_dict().values())


def backbone_features(options: FeaturesConfig, shape: Shape) -> Callable[[Floats], Floats]:
    """The function of pictures in 0..1 [n, c, h, w] -> [n, d]. Raises `OptionError` for a file or layer that does not
    fit the architecture.
    """
    architecture, option, side = options.architecture, "features.weights", _side(options, shape)
    read: Callable[[Tensor], Tensor]
    if architecture == ONNX:
        read = _graph(options).reader(options.layer, side)
    else:
        config = beside(architecture, options.weights)
        found = read_weights(str(options.weights), option, options.weights_sha256, config)
        if architecture == HUGGING_FACE:
            network: nn.Module
            network = transformers_network(config, found.tensors, option, str(options.weights), options.layer)
        else:
            network = network_of(architecture)
            free = "\0" if options.layer is not None else f"{_last_linear(network)}."
            set_weights(network, found.tensors, free, option, str(options.weights), architecture)
        read = _Reader(network.eval(), options.layer)
    if architecture in (ONNX, HUGGING_FACE) or "." in architecture or "/" in architecture:
        read = partial(_singly, read, architecture)
    return _function(read, options.mean, options.std, side)


def _singly(read: Callable[[Tensor], Tensor], architecture: str, pictures: Tensor) -> Tensor:
    """One picture after the other [n, d]. Raises `OptionError` where the first one's features have changed since."""
    found = torch.cat([read(picture.clone()) for picture in pictures.split(1)])
    if not torch.equal(read(pictures[:1].clone())[0], found[0]):
        words = "gives a picture other features the second time: it keeps something between pictures, or draws"
        raise OptionError("features.architecture", architecture, words)
    return found


def process_features() -> Callable[[Floats], Floats]:
    """As `backbone_features`, of the network that comes with the project (`fedpriv.data.networks`)."""
    return _function(process_network(), [0.0] * COLOURS, [1.0] * COLOURS, None)


def _function(
    network: Callable[[Tensor], Tensor], mean: Sequence[float], std: Sequence[float], side: tuple[int, int] | None
) -> Callable[[Floats], Floats]:
    """side: what pictures are resized to; None: nothing."""
    shift, scale = (torch.tensor(values, dtype=torch.float32).view(1, COLOURS, 1, 1) for values in (mean, std))

    def compute(images: Floats) -> Floats:
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # the same bits on every machine of a kind
        try:
            with torch.inference_mode():
                pictures = torch.from_numpy(images).expand(-1, COLOURS, -1, -1)
                if side is not None and pictures.shape[2:] != side:
                    pictures = functional.interpolate(pictures, side, mode="bilinear", antialias=True)
                values: Floats = network((pictures - shift) / scale).numpy()
                return np.ascontiguousarray(values, np.float32)
        finally:
            torch.set_num_threads(before)

    return compute


class _Reader:
    """Calls a network and gives the output of one layer [n, d]: of maps and of positions, their mean."""

    def __init__(self, network: nn.Module, layer: str | None) -> None:
        self._network, self._seen = network, list[Tensor]()
        named = dict(network.named_modules())
        if layer is None and isinstance(network, Encoder):
            network.end.register_forward_hook(lambda module, given, found: self._seen.append(found))
        elif layer is None:
            last = named[_last_linear(network)]
            last.register_forward_pre_hook(lambda module, given: self._seen.append(given[0]))
        elif layer not in named or not layer:
            allowed = ", ".join(name for name, _ in network.named_children())
            raise OptionError("features.layer", layer, f"the network has no such layer; allowed: {allowed}, and theirs")
        else:
            named[layer].register_forward_hook(lambda module, given, found: self._seen.append(found))
        self._layer = layer

    def __call__(self, pictures: Tensor) -> Tensor:
        self._seen.clear()
        self._network(pictures)
        (found,) = self._seen[-1:]
        found = found[0] if isinstance(found, tuple) else found  # transformers' layers
        if not isinstance(found, Tensor):
            raise OptionError("features.layer", self._layer, "gives no tensor; allowed: a layer inside it")
        return pooled(found)


def pooled(found: Tensor) -> Tensor:
    """[n, d] of maps [n, d, h, w] and of positions [n, p, d], their mean."""
    if found.ndim == 4:
        return found.mean((2, 3))
    return found.mean(1) if found.ndim == 3 else found.flatten(1)


def _last_linear(network: nn.Module) -> str:
    """Name of the layer that gives the classes: what it reads are the features."""
    names = [name for name, part in head_of(network)[1].named_modules() if isinstance(part, nn.Linear)]
    if not names:
        allowed = ", ".join(name for name, _ in network.named_children())
        raise OptionError("features.layer", "null", f"the network ends in no linear layer; allowed: {allowed}")
    return ".".join(part for part in (head_of(network)[0], names[-1]) if part)


@lru_cache(maxsize=16)
def _dims(architecture: str, layer: str | None, side: tuple[int, int], config: bytes) -> int:
    with torch.device("meta"):
        network = network_of(architecture, config).eval()
        try:
            found = _Reader(network, layer)(torch.zeros(1, COLOURS, *side))
        except (RuntimeError, ValueError, AssertionError, TypeError) as error:
            words = f"the network fails on pictures of {side[0]}x{side[1]} ({str(error).splitlines()[0][:120]})"
            raise OptionError("features.architecture", architecture, f"{words}; see features.size") from None
    return int(found.shape[1])


def _side(options: FeaturesConfig, shape: Shape) -> tuple[int, int]:
    return (shape[1], shape[2]) if options.size is None else (options.size, options.size)


def of_extra(package: str, option: str, value: object) -> Any:
    """A package that only public weights need. Raises `OptionError`."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise OptionError(option, value, f"needs {package}: pip install 'fedpriv[public]'") from None


def network_of(architecture: str, config: bytes = b"") -> nn.Module:
    """Without its weights: of torchvision, timm/NAME, Hugging Face's ``config``, or a class or function without
    arguments, package.module.name. Raises `OptionError`.
    """
    option, (module, _, name) = "features.architecture", architecture.rpartition(".")
    if architecture == HUGGING_FACE:
        return transformers_network(config)
    if architecture.startswith(TIMM):
        timm, name = of_extra("timm", option, architecture), architecture.removeprefix(TIMM)
        if name.partition(".")[0] not in (known := timm.list_models()):  # and no place to fetch one from
            words = f"no such network of timm; allowed: {TIMM}resnet18, ... ({len(known)})"
            raise OptionError(option, architecture, words)
        found = timm.create_model(name, pretrained=False)
    elif not module:
        models: Any = importlib.import_module("torchvision.models")  # a second that only this needs
        known = list(models.list_models(module=models))
        some = ", ".join(one for one in known if one in ("resnet18", "resnet50", "convnext_tiny", "vit_b_16"))
        if architecture not in known:
            others = f"{TIMM}NAME, {HUGGING_FACE}, {ONNX}, or package.module.Class"
            words = f"no such network of torchvision; allowed: {some}, ... ({len(known)}), {others}"
            raise OptionError(option, architecture, words)
        try:
            found = models.get_model(architecture, weights=None)
        except Exception as error:  # torchvision's regnets compute with tensors that a form alone does not have
            words = f"cannot be built without its weights ({type(error).__name__}); allowed: {some}, or another"
            raise OptionError(option, architecture, words) from None
    else:
        try:
            found = getattr(load_module(module), name)()
        except Exception as error:  # the user's code
            words = f"cannot be built ({type(error).__name__}: {error})"
            raise OptionError(option, architecture, words) from None
    if not isinstance(found, nn.Module):
        raise OptionError(option, architecture, "must give a torch.nn.Module")
    return found


#: Families of transformers that are read: their code alone decides what a configuration does.
FAMILIES = {
    "text": "albert bert camembert deberta-v2 distilbert electra modernbert mpnet nomic_bert roberta xlm-roberta",
    "pictures": "beit convnext convnextv2 deit dinov2 dinov2_with_registers mobilenet_v2 resnet swin swinv2 vit",
}
#: Names by which a configuration brings code, another network or another form of numbers.
FOREIGN = ("auto_map", "implementation", "quantization", "backbone", "kernels")
#: Bytes of a configuration, and of a file of weights.
MOST_CONFIG, MOST_BYTES = 1 << 20, 4 << 30


class Encoder(nn.Module):
    """A network of transformers: pictures, or token ids [1, t], to its last layer's positions or maps."""

    def __init__(self, network: nn.Module, text: bool) -> None:
        super().__init__()
        self.network, self.end, self.text = network, nn.Identity(), text

    def forward(self, given: Tensor) -> Tensor:
        named = {"input_ids": given, "attention_mask": torch.ones_like(given)} if self.text else {"pixel_values": given}
        found: Tensor = self.end(self.network(**named).last_hidden_state)
        return found


def encoder_config(content: bytes, option: str, path: str, kind: str) -> dict[str, Any]:
    """A config.json of a family of this ``kind``. Raises `OptionError` for what brings code or is of another family."""
    try:
        said = json.loads(content, object_pairs_hook=_once)
        family = str(said["model_type"])
    except (ValueError, TypeError, KeyError) as error:
        raise OptionError(option, path, f"config.json beside it is no configuration ({error})") from None
    if family not in FAMILIES[kind].split():
        words = f"config.json beside it is of the family {family}; allowed for {kind}: {FAMILIES[kind]}"
        raise OptionError(option, path, words)
    said.pop("_attn_implementation_autoset", None)  # a note of earlier versions
    if foreign := next((name for name in _names(said) if any(one in name for one in FOREIGN)), None):
        raise OptionError(
            option, path, f"config.json beside it says {foreign}, which fedpriv does not follow; remove it"
        )
    return dict(said)


def _names(said: Any) -> list[str]:
    """All names of a configuration with a value that is not false."""
    if isinstance(said, dict):
        return [name for key, value in said.items() if value for name in (str(key), *_names(value))]
    return [name for one in said for name in _names(one)] if isinstance(said, list) else []


def transformers_network(
    config: bytes,
    tensors: dict[str, Tensor] | None = None,
    option: str = "features.weights",
    path: str = "config.json",
    layer: str | None = None,
    kind: str = "pictures",
) -> Encoder:
    """The encoder of a configuration, with these weights if any are given. A head is left away; a pooler that the file
    lacks is initialised where no ``layer`` is asked for, and never read. Raises `OptionError`.
    """
    said = encoder_config(config, option, path, kind)
    transformers: Any = of_extra("transformers", option, path)
    try:
        made = transformers.CONFIG_MAPPING[said["model_type"]].from_dict(said)
        maker = transformers.MODEL_MAPPING[type(made)]
        if tensors is None:
            return Encoder(maker._from_config(made, attn_implementation="eager"), kind == "text").eval()
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        how = {"attn_implementation": "eager", "dtype": torch.float32, "output_loading_info": True}
        network, told = maker.from_pretrained(None, config=made, state_dict=tensors, **how)
    except Exception as error:  # of a configuration that anybody may have made
        words = f"cannot be built from config.json beside it ({' '.join(str(error).split())[:160]})"
        raise OptionError(option, path, words) from None
    lacking = {name for name in told["missing_keys"] if layer is not None or not name.startswith("pooler.")}
    if wrong := sorted([*lacking, *(str(one[0]) for one in told["mismatched_keys"])]):
        words = (
            f"is of another model than config.json beside it: lacks, or has in another shape, {', '.join(wrong[:3])}"
        )
        raise OptionError(option, path, words)
    return Encoder(network, kind == "text").eval()


WIDTHS = (64, 128, 192)
#: Features: of each stage the means over 2 x 2 quarters.
DIMS = 4 * sum(WIDTHS)
WEIGHTS, MAP = "process_network.safetensors", "process_map.safetensors"
#: SHA-256 of these files, whichever copy is read.
DIGESTS = {
    WEIGHTS: "4e3f163c5eac546b0004dbfc496b2bd8fbaa808493d94e7081ba77bf6e5ad869",
    MAP: "64364e91bf19f243ef2313aa59b999b2c5a6be24c60d6420ad4306e3d62b6dcc",
}
#: Directions of the map, and its ridge as a share of the mean variance.
MOST, RIDGE = 360, 0.2


class Block(nn.Module):
    """Two convolutions beside a shortcut (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if (inputs, stride) != (outputs, 1) else None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + (x if self.short is None else self.short(x)))


class ProcessNetwork(nn.Module):
    """Pictures in 0..1 [n, 3, h, w] -> features [n, DIMS], without any data.

    `tools/make_backbone.py` draws pictures (dead leaves, coloured noise, random functions of the place) from a seed and
    trains the network to find two crops of one picture among those of others. No picture of anything was ever seen, so
    the public knowledge is the drawing rules alone (Baradad et al., NeurIPS 2021; Tang et al., NeurIPS 2023). Features
    are those of three stages, each the mean over every quarter of the picture: sums of what is where, coarse enough for
    small shifts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        blocks, before = [], WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            blocks += [Block(before, width, 2 if stage else 1), Block(width, width, 1)]
            before = width
        self.blocks = nn.Sequential(*blocks)

    def stages(self, pictures: Tensor) -> list[Tensor]:
        """The three stages' maps [n, width, h / 2^s, w / 2^s]."""
        values, found = torch.relu(self.norm(self.stem((pictures - 0.5) * 4))), []
        for number, block in enumerate(self.blocks):
            values = block(values)
            if number % 2:
                found.append(values)
        return found

    def forward(self, pictures: Tensor) -> Tensor:
        return torch.cat([functional.adaptive_avg_pool2d(part, 2).flatten(1) for part in self.stages(pictures)], 1)


def _content(name: str) -> bytes:
    """Of the file with the digest of `DIGESTS`. In a bundle that flwr has made, which leaves out files of weights, that
    of the fedpriv that is installed. Raises `OptionError` where neither has it.
    """
    others = []
    for path in shipped_files(f"data/{name}"):
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() == DIGESTS.get(name):
            return content
        others.append(str(path))
    words = f"is another file than {DIGESTS[name]}" if others else "is not beside the code, nor in an installed fedpriv"
    words = f"{', '.join(others) or name} {words}; allowed: none, gradients, backbone"
    raise OptionError("features", "processes", words)


def weights_digest() -> str:
    """SHA-256 of the weights and the map that come with the project."""
    return hashlib.sha256(_content(WEIGHTS) + _content(MAP)).hexdigest()


def drawings_map(dims: int, exponent: float) -> FeatureMap:
    """The map onto the leading directions of the features of drawings like those of the training: with mean mu,
    directions v_i and variances w_i, z = unit(T'(x - mu)), T = [v_1 (w_1 + r)^-p, ...], r = `RIDGE` times the mean of w
    and p the ``exponent``, as of `fedpriv.data.maps`.
    """
    found = {name: value.numpy().astype(np.float64) for name, value in load(_content(MAP)).items()}
    values = found["variances"] + RIDGE * found["variances"].mean()
    directions = Directions(found["mean"], found["vectors"], values[: found["vectors"].shape[1]])
    return pink_map(directions, dims, exponent)


def process_network() -> ProcessNetwork:
    """With the weights that come with the project, in the form of after training."""
    network = ProcessNetwork()
    network.load_state_dict({name: value.float() for name, value in load(_content(WEIGHTS)).items()}, strict=False)
    return network.eval()


# DOC """Weights that somebody else has trained: names and tensors from a file, and never code."""


SUFFIXES = (".safetensors", ".pt", ".pth")
#: Types of tensors that are no code for other numbers.
PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool)
#: What `DataParallel` and `torch.compile` write before every name.
PREFIXES = ("module.", "_orig_mod.")


@dataclass(frozen=True)
class Weights:
    """A state dict with the SHA-256 of the file that it was read from."""

    tensors: dict[str, Tensor]
    sha256: str


def read_file(path: str, option: str, most: int | None = None) -> bytes:
    """A regular file of at most ``most`` bytes. Raises `OptionError`."""
    most = most or MOST_BYTES
    try:
        with open_regular(Path(path)) as file:
            if (size := os.fstat(file.fileno()).st_size) > most:
                raise OptionError(option, path, f"has {size} bytes; at most {most} are allowed")
            content = file.read()
    except OSError as error:
        raise OptionError(option, path, f"cannot be read ({error.strerror})") from None
    if content.startswith(b"version https://git-lfs"):
        raise OptionError(
            option, path, "is a pointer of Git LFS and not the file; allowed: what `git lfs pull` fetches"
        )
    return content


def checked_digest(content: bytes, path: str, option: str, sha256: str | None) -> str:
    """Of the content. Raises `OptionError` where another is named."""
    digest = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, digest):
        raise OptionError(option, path, f"is another file: its SHA-256 is {digest}, and {sha256} is named")
    return digest


def read_weights(path: str, option: str, sha256: str | None = None, beside: bytes = b"") -> Weights:
    """The tensors of a safetensors file, or of a state dict that `torch.save` wrote, on the CPU.

    sha256: what the file's digest must be, with the content of files ``beside`` it behind its own. The bytes that are
    read are those of which the digest is taken. A TorchScript archive and a pickle of anything but tensors hold code:
    they are refused, and none of it runs.

    Raises `OptionError` for ``option``: no such file, another file, no weights, numbers that are not finite.
    """
    if Path(path).suffix not in SUFFIXES:
        graph = " (of a graph: features.architecture=onnx)" if path.endswith(".onnx") else ""
        raise OptionError(option, path, f"is no file of weights; allowed: {', '.join(SUFFIXES)}{graph}")
    content = read_file(path, option)
    digest = checked_digest(content + beside if beside else content, path, option, sha256)
    tensors = _tensors(content, path, option)
    if not tensors:
        raise OptionError(option, path, "holds no tensors")
    for name, value in tensors.items():
        if value.layout != torch.strided or value.dtype not in PLAIN:
            words = f"{name} is quantised or sparse ({value.dtype}); allowed: the network in plain numbers, as trained"
            raise OptionError(option, path, words)
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise OptionError(option, path, f"{name} claims {value.numel()} numbers, which the file does not hold")
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise OptionError(option, path, f"{name} has numbers that are not finite")
    return Weights(tensors, digest)


def set_weights(model: nn.Module, given: dict[str, Tensor], free: str, option: str, path: str, kind: str) -> None:
    """Sets a model's parameters and running statistics to those of a state dict of the same form.

    free: beginning of the names of a part that may be missing or of another shape; then all of this part stays as it
    was initialised. Raises `OptionError` for ``option`` with the file's ``path``, naming what does not belong to a
    model of this ``kind``.
    """
    given = {name: value for name, value in given.items() if not name.endswith("num_batches_tracked")}
    wanted = {name: value for name, value in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    while prefix := next((one for one in PREFIXES if given and all(name.startswith(one) for name in given)), None):
        if any(name.startswith(prefix) for name in wanted):
            break
        given = {name.removeprefix(prefix): value for name, value in given.items()}
    fits = {name for name in wanted.keys() & given.keys() if wanted[name].shape == given[name].shape}
    for fault, names in (
        ("lacks", wanted.keys() - given.keys()),
        ("has too much", given.keys() - wanted.keys()),
        ("has in another shape", (wanted.keys() & given.keys()) - fits),
    ):
        if body := sorted(name for name in names if not name.startswith(free)):
            words = f"{', '.join(body[:3])}{', ...' if len(body) > 3 else ''} ({len(body)} tensors)"
            raise OptionError(option, path, f"is of another model than {kind}: what it {fault}: {words}")
    if not fits >= {name for name in wanted if name.startswith(free)}:
        fits = {name for name in fits if not name.startswith(free)}
    model.load_state_dict({name: given[name].to(wanted[name].dtype) for name in fits}, strict=False)


def head_of(model: nn.Module) -> tuple[str, nn.Module]:
    """Name and module of the last block that has parameters."""
    return [(name, block) for name, block in model.named_children() if any(True for _ in block.parameters())][-1]


def _tensors(content: bytes, path: str, option: str) -> dict[str, Tensor]:
    if path.endswith(".safetensors"):
        try:
            json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")], object_pairs_hook=_once)
            return load(content)
        except (SafetensorError, ValueError, RecursionError) as error:
            raise OptionError(option, path, f"is no safetensors file ({error})") from None
    allowed = "allowed: a state dict of tensors, best as safetensors"
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            if any("/code/" in name for name in names):
                raise OptionError(option, path, f"is a TorchScript archive, which is code; {allowed}")
            if sum(one.file_size for one in archive.infolist()) > len(content) or len({*names}) < len(names):
                raise OptionError(option, path, f"is compressed, or has a part twice; {allowed}")
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of a file that anybody may have made
        reason = (str(error).splitlines() or [""])[0][:120]
        raise OptionError(option, path, f"holds more than tensors, or is damaged ({reason}); {allowed}") from None
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        inside = [str(name) for name, one in found.items() if isinstance(one, dict)] if isinstance(found, dict) else []
        more = f", torch.save(torch.load(FILE)[{inside[0]!r}], NEW), say" if inside else ""
        raise OptionError(option, path, f"is no state dict; {allowed}{more}")
    return {str(name): value.detach() for name, value in found.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of JSON. Raises ValueError for a name that stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} stands twice")
    return found
