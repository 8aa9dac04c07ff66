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
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.common.errors import OptionError
from fedpriv.common.places import load_module, shipped_files
from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.data.encoders import Encoder, transformers_network
from fedpriv.data.gradients import Floats
from fedpriv.data.maps import Directions, FeatureMap, pink_map
from fedpriv.data.onnx_graphs import Graph, read_graph
from fedpriv.data.weights import (
    HUGGING_FACE,
    ONNX,
    TIMM,
    beside,
    head_of,
    of_extra,
    pooled,
    read_weights,
    set_weights,
)

Shape = tuple[int, int, int]
#: Of pictures in grey: the network sees three equal channels.
COLOURS = 3


def backbone_dims(options: FeaturesConfig, shape: Shape) -> int:
    """d, from the architecture alone. Raises `OptionError`."""
    side = _side(options, shape)
    if options.architecture == ONNX:
        return _graph(options).dims(options.layer, side)
    return _dims(options.architecture, options.layer, side, beside(options.architecture, options.weights))


def _graph(options: FeaturesConfig) -> Graph:
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


def network_of(architecture: str, config: bytes = b"") -> nn.Module:
    """Without its weights: of torchvision, timm/NAME, Hugging Face's ``config``, or a class or function without
    arguments, package.module.name. Raises `OptionError`.
    """
    option, (module, _, name) = "features.architecture", architecture.rpartition(".")
    if architecture == HUGGING_FACE:
        return transformers_network(config)
    if architecture.startswith(TIMM):
        timm, name = of_extra("timm", option, architecture), architecture.removeprefix(TIMM)
        if name not in (known := timm.list_models()):  # a place to fetch one from is no name
            words = f"no such network of timm; allowed: {TIMM}resnet18, ... ({len(known)}, without the tag of weights)"
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
