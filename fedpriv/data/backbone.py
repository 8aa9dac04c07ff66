"""Features of a network that somebody else has trained: its weights come from a file, and are never trained here.

A picture's features are a fixed function of that picture, so they cost no privacy if the file knows nothing of the
clients' pictures. That is the user's word (`features.trained_on`), and every report repeats it.

**Why pictures cannot meet.** torchvision's networks have no layer that joins the pictures of a batch once they are
evaluated. Of a class of the user's this is not known: each picture is computed by itself, and the first of a block once
more at its end, which shows a class that keeps something between pictures, on these pictures.

No code comes from the file: it holds tensors (`fedpriv.data.weights_file`), and the network is one of torchvision's or
a class that the user names. It is evaluated as after training: no dropout, BatchNorm with the statistics of the file.

Shapes: n pictures, c channels, h x w pixels, d features.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.common.errors import OptionError
from fedpriv.common.places import load_module
from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.data.axes import Floats
from fedpriv.data.process_network import ProcessNetwork, process_network
from fedpriv.data.weights_file import head_of, read_weights, set_weights

Shape = tuple[int, int, int]
#: Of pictures in grey: the network sees three equal channels.
COLOURS = 3


def backbone_dims(options: FeaturesConfig, shape: Shape) -> int:
    """d, from the architecture alone. Raises `OptionError`."""
    return _dims(str(options.architecture), options.layer, _side(options, shape))


def network_size(options: FeaturesConfig) -> int:
    """Numbers of the network that computes the features, without allocating them; 0 where none does. Raises
    `OptionError`.
    """
    if options.name not in ("processes", "backbone"):
        return 0
    with torch.device("meta"):
        network = ProcessNetwork() if options.name == "processes" else _network(str(options.architecture))
        return sum(value.numel() for value in network.state_dict().values())


def backbone_features(options: FeaturesConfig, shape: Shape) -> Callable[[Floats], Floats]:
    """The function of pictures in 0..1 [n, c, h, w] -> [n, d]. Raises `OptionError` for a file or layer that does not
    fit the architecture.
    """
    network = _network(str(options.architecture))
    found = read_weights(str(options.weights), "features.weights", options.weights_sha256)
    free = "\0" if options.layer is not None else f"{_last_linear(network)}."
    set_weights(network, found.tensors, free, "features.weights", str(options.weights), str(options.architecture))
    read: Callable[[Tensor], Tensor] = _Reader(network.eval(), options.layer)
    if "." in str(options.architecture):
        read = partial(_singly, read, str(options.architecture))
    return _function(read, options.mean, options.std, _side(options, shape))


def _singly(read: Callable[[Tensor], Tensor], architecture: str, pictures: Tensor) -> Tensor:
    """One picture after the other [n, d]. Raises `OptionError` where the first one's features have changed since."""
    found = torch.cat([read(picture.clone()) for picture in pictures.split(1)])
    if not torch.equal(read(pictures[:1].clone())[0], found[0]):
        words = "gives a picture other features the second time: it keeps something between pictures, or draws"
        raise OptionError("features.architecture", architecture, words)
    return found


def process_features() -> Callable[[Floats], Floats]:
    """As `backbone_features`, of the network that comes with the project (`fedpriv.data.process_network`)."""
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
        if layer is None:
            last = named[_last_linear(network)]
            last.register_forward_pre_hook(lambda module, given: self._seen.append(given[0]))
        elif layer not in named or not layer:
            allowed = ", ".join(name for name, _ in network.named_children())
            raise OptionError("features.layer", layer, f"the network has no such layer; allowed: {allowed}, and theirs")
        else:
            named[layer].register_forward_hook(lambda module, given, found: self._seen.append(found))

    def __call__(self, pictures: Tensor) -> Tensor:
        self._seen.clear()
        self._network(pictures)
        (found,) = self._seen[-1:]
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
def _dims(architecture: str, layer: str | None, side: tuple[int, int]) -> int:
    with torch.device("meta"):
        network = _network(architecture).eval()
        try:
            found = _Reader(network, layer)(torch.zeros(1, COLOURS, *side))
        except (RuntimeError, ValueError, AssertionError) as error:
            words = f"the network fails on pictures of {side[0]}x{side[1]} ({str(error).splitlines()[0][:120]})"
            raise OptionError("features.architecture", architecture, f"{words}; see features.size") from None
    return int(found.shape[1])


def _side(options: FeaturesConfig, shape: Shape) -> tuple[int, int]:
    return (shape[1], shape[2]) if options.size is None else (options.size, options.size)


def _network(architecture: str) -> nn.Module:
    """Of torchvision, without its weights, or of a class or function without arguments, package.module.name."""
    module, _, name = architecture.rpartition(".")
    if not module:
        models: Any = importlib.import_module("torchvision.models")  # a second that only this needs
        known = list(models.list_models(module=models))
        some = ", ".join(one for one in known if one in ("resnet18", "resnet50", "convnext_tiny", "vit_b_16"))
        if architecture not in known:
            words = f"no such network of torchvision; allowed: {some}, ... ({len(known)}), or package.module.Class"
            raise OptionError("features.architecture", architecture, words)
        try:
            found = models.get_model(architecture, weights=None)
        except Exception as error:  # torchvision's regnets compute with tensors that a form alone does not have
            words = f"cannot be built without its weights ({type(error).__name__}); allowed: {some}, or another"
            raise OptionError("features.architecture", architecture, words) from None
    else:
        try:
            found = getattr(load_module(module), name)()
        except Exception as error:  # the user's code
            words = f"cannot be built ({type(error).__name__}: {error})"
            raise OptionError("features.architecture", architecture, words) from None
    if not isinstance(found, nn.Module):
        raise OptionError("features.architecture", architecture, "must give a torch.nn.Module")
    return found
