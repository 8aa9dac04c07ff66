"""Which part of a model is trained: `model.train`, and of a user's model what `requires_grad_(False)` leaves. What is
frozen is no coordinate: it is not clipped, not given noise, not sent, and not counted in d.

A frozen parameter becomes a buffer of the same name: whoever asks a module for its parameters, be it the flat vector,
a gradient of a single example or a message, never sees it. Adapters are layers of their own, so nothing is trained in
part:

- head: the last named block.
- film: factors and summands behind the normalisations (Perez et al. 2018; for private training De et al. 2022, Tobaben
  et al. 2023), or, in a model that has none, behind its convolutions and linear layers; and the head.
- bias: summands behind the layers that have a bias (BitFit, Ben Zaken et al. 2022), and the head.
- lora: of every linear layer and convolution, a product of two narrow ones beside it (Hu et al., ICLR 2022), and the
  head. `model.lora_layers` names fewer of them.
- ffa_lora: of that product the second factor alone, and the head; the first stays as it is drawn (Sun et al., ICLR
  2024). Then the product is linear in what is trained: clients' average product is the product of their average.

All of them begin as the model was: scale 1, shift 0, up 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedpriv.common.errors import OptionError
from fedpriv.config.schema import ModelConfig
from fedpriv.data.weights import head_of, read_weights, set_weights
from fedpriv.mechanisms.film import Film

NORMALISATIONS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, Film)
#: (parent, name, layer)
Place = tuple[nn.Module, str, nn.Module]
LORA = ("lora", "ffa_lora")
#: Whole names of layers that a refusal lists.
NAMED = 12


class Lora(nn.Module):
    """A frozen layer plus up(down(x)), where ``down`` has few outputs (``rank``) and ``up`` begins with zeros.

    layer: Linear, Conv2d, or GPT-2's Conv1D, which is linear. Hu et al. multiply by alpha / rank; with alpha = rank
    that is 1, and the learning rate does the rest.
    """

    def __init__(self, layer: nn.Module, rank: int) -> None:
        super().__init__()
        self.layer = layer
        if isinstance(layer, nn.Conv2d):
            sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
            self.down: nn.Module = nn.Conv2d(layer.in_channels, rank, *sizes, bias=False)  # type: ignore[arg-type]
            self.up: nn.Linear | nn.Conv2d = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
        else:
            inputs, outputs = _width(layer)
            self.down = nn.Linear(inputs, rank, bias=False)
            self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs) + self.up(self.down(inputs))
        return outputs


def train_part(model: nn.Module, config: ModelConfig) -> nn.Module:
    """The model of which `model.train` is trained, changed in place.

    Raises `OptionError` where there is nothing before the head, or nothing that an adapter belongs to.
    """
    if config.train == "all":
        return model
    head = head_of(model)[1]
    if len(list(head.parameters())) == len(list(model.parameters())):
        words = f"the model {config.name} is one block, its head: nothing would be frozen; allowed: all"
        raise OptionError("model.train", config.train, words)
    of_head = {id(part) for part in head.modules()}
    frozen = [part for part in model.modules() if id(part) not in of_head]
    for part in model.modules():
        if getattr(part, "inplace", False):
            part.inplace = False  # type: ignore[assignment]  # the same values, and gradients need the inputs
    for part in frozen:
        _freeze(part)
    for parent, name, layer in list(_places(model, of_head)):
        if _drops_out(layer):
            off = nn.Identity()
            off.p = 0.0  # type: ignore[assignment]  # attention reads it
            setattr(parent, name, off)
    if config.train == "head":
        return model
    places = _lora_places(list(_places(model, of_head)), model, config)
    normalised = any(isinstance(layer, NORMALISATIONS) for _, _, layer in places)
    adapters: dict[int, nn.Module | None] = {}  # a layer that stands in two places is one layer
    for parent, name, layer in places:
        if id(layer) not in adapters:
            adapters[id(layer)] = _adapted(layer, config, normalised)
        if (adapted := adapters[id(layer)]) is not None:
            setattr(parent, name, adapted)
    if not any(adapters.values()):
        what = {"bias": "layer with a bias", **dict.fromkeys(LORA, "linear layer or convolution")}
        words = f"before its head the model {config.name} has no {what.get(config.train, 'layer')}"
        raise OptionError("model.train", config.train, words)
    return model


def _lora_places(places: list[Place], model: nn.Module, config: ModelConfig) -> list[Place]:
    """Those that `model.lora_layers` names, by their whole name or its last parts; all, where it names none. Raises
    `OptionError` for a name that no layer has on which an adapter fits, and for one that stands twice.
    """
    if not config.lora_layers:
        return places
    names = {id(layer): name for name, layer in model.named_modules()}
    fits = [place for place in places if _takes_lora(place[2])]
    ends = [f".{names[id(layer)]}" for _, _, layer in fits]
    option, given = "model.lora_layers", list(config.lora_layers)
    for name in given:
        if given.count(name) > 1:
            raise OptionError(option, given, f"names {name} twice; allowed: each name once")
        if not any(end.endswith(f".{name}") for end in ends):
            known = ", ".join(dict.fromkeys(end.rpartition(".")[2] for end in ends))
            whole = list(dict.fromkeys(end[1:] for end in ends))
            all_of_them = f", ... ({len(whole)} in all)" if len(whole) > NAMED else ""
            words = (
                f"before its head the model has no linear layer or convolution {name}; "
                f"allowed: {known}, or whole names: {', '.join(whole[:NAMED])}{all_of_them}"
            )
            raise OptionError(option, given, words)
    wanted = tuple(f".{name}" for name in config.lora_layers)
    return [place for place, end in zip(fits, ends, strict=True) if end.endswith(wanted)]


def load_public(model: nn.Module, config: ModelConfig) -> str:
    """Sets the parameters to those of `model.weights`, and running statistics; the file's SHA-256.

    The head may be missing, or made for other classes: then it stays as it was initialised. Raises `OptionError` for a
    file of another model, naming what is missing, too much, or of another shape.
    """
    option, path = "model.weights", str(config.weights)
    found = read_weights(path, option, config.weights_sha256)
    set_weights(model, found.tensors, f"{head_of(model)[0]}.", option, path, config.name)
    return found.sha256


def trained_words(config: ModelConfig) -> str:
    """What is trained, for reports."""
    beside = ", ".join(config.lora_layers) or "linear layers and convolutions"
    return {
        "all": "all",
        "head": "the head",
        "film": "a factor and a summand for each channel, and the head",
        "bias": "biases and the head",
        "lora": f"products of rank {config.rank} beside {beside}, and the head",
        "ffa_lora": f"one factor of products of rank {config.rank} beside {beside}, and the head",
    }[config.train]


def freeze_marked(model: nn.Module, name: str) -> None:
    """Freezes every parameter with ``requires_grad=False``. Raises `OptionError` where no other is left."""
    for module in model.modules():
        _freeze(module, lambda parameter: not parameter.requires_grad)
    if next(model.parameters(), None) is None:
        words = "no parameter is left to train: requires_grad is False for all of them"
        raise OptionError("model", name, words)


def frozen_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What is not trained by name, on the CPU: with the parameters, all that the model needs."""
    trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: value.cpu().clone() for name, value in model.state_dict().items() if name not in trained}


def without_batch_norm(model: nn.Module) -> None:
    """Every BatchNorm2d as what it is with the statistics that it has, w (x - mean) / sqrt(variance + eps) + b: a
    factor and a summand for each channel.
    """
    for parent, name, layer in list(_places(model, set())):
        if type(layer) is nn.BatchNorm2d and layer.running_mean is not None and layer.running_var is not None:
            fixed = Film(layer.num_features, 1)
            with torch.no_grad():
                factor = (layer.running_var + layer.eps).rsqrt()
                factor = factor if layer.weight is None else factor * layer.weight
                shift = -layer.running_mean * factor
                fixed.load_state_dict({"scale": factor, "shift": shift if layer.bias is None else shift + layer.bias})
            setattr(parent, name, fixed)


def _freeze(module: nn.Module, marked: Callable[[nn.Parameter], bool] = lambda parameter: True) -> None:
    """The module's own parameters become buffers, those that are marked."""
    for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
        if marked(parameter):
            delattr(module, name)
            module.register_buffer(name, parameter.detach().clone())  # a tied weight stays what it is elsewhere


def _places(model: nn.Module, without: set[int]) -> Iterator[Place]:
    """(parent, name, layer) of all modules but these."""
    for parent in model.modules():
        for name, layer in parent._modules.items():  # `named_children` has a layer of two names once
            if layer is not None and id(layer) not in without:
                yield parent, name, layer


def _adapted(layer: nn.Module, config: ModelConfig, normalised: bool) -> nn.Module | None:
    """What takes the place of a layer; None: it stays."""
    if config.train in LORA:
        if not _takes_lora(layer):
            return None
        found = Lora(layer, config.rank)
        if config.train == "ffa_lora":
            _freeze(found.down)
        return found
    fits = type(layer) in NORMALISATIONS
    if config.train == "bias" or not normalised:
        fits = fits or type(layer) in (nn.Linear, nn.Conv2d) or _is_conv1d(layer)
    if not fits or (config.train == "bias" and not _has_bias(layer)):
        return None
    return nn.Sequential(layer, Film(*_channels(layer), scales=config.train == "film"))


def _takes_lora(layer: nn.Module) -> bool:
    plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
    return plain or type(layer) is nn.Linear or _is_conv1d(layer)


def _is_conv1d(layer: nn.Module) -> bool:
    """Whether this is GPT-2's linear layer, whose weight is [inputs, outputs]."""
    return (type(layer).__module__, type(layer).__name__) == ("transformers.pytorch_utils", "Conv1D")


def _width(layer: nn.Module) -> tuple[int, int]:
    """(inputs, outputs) of a linear layer."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return tuple(layer.weight.shape)  # type: ignore[return-value,union-attr,arg-type]


def _drops_out(layer: nn.Module) -> bool:
    """Whether a layer is random: before the head it is switched off, so that what is frozen is one function."""
    of_torchvision = (type(layer).__module__, type(layer).__name__) == (
        "torchvision.ops.stochastic_depth",
        "StochasticDepth",
    )
    return isinstance(layer, _DropoutNd) or of_torchvision


def _has_bias(layer: nn.Module) -> bool:
    return isinstance(layer, Film) or getattr(layer, "bias", None) is not None


def _channels(layer: nn.Module) -> tuple[int, int]:
    """(how many, the dimension they lie in) of a layer's outputs."""
    if isinstance(layer, nn.Linear) or _is_conv1d(layer):
        return _width(layer)[1], -1
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return layer.normalized_shape[-1], -1
    if isinstance(layer, Film):
        return len(layer.shift), layer.dim
    return (layer.out_channels if isinstance(layer, nn.Conv2d) else layer.num_channels), 1  # type: ignore[return-value]
