"""Models of pictures and of tables as ordered, named blocks, and one flat vector of all their parameters. Those of
text are in `fedpriv.training.language_models`.

Every model is an ``nn.Sequential`` of named blocks, so that "the last two blocks" or "the base layers" is a
slice of the flat parameter vector (`Layout`). No in-place activations (per-example gradients need the inputs)
and no BatchNorm (its running statistics are neither clipped nor noised); ResNets use GroupNorm. A user's own model may
have it where a method sends what is trained as it is (`with_running_statistics`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedpriv.common.errors import OptionError
from fedpriv.common.places import code_at
from fedpriv.config.schema import ModelConfig
from fedpriv.mechanisms.clipped_sums import made_up
from fedpriv.mechanisms.device_errors import NO_MEMORY
from fedpriv.mechanisms.film import Film
from fedpriv.training import language_models
from fedpriv.training.flat_model import Shape
from fedpriv.training.language_models import Text
from fedpriv.training.moments import Moments, bound_of
from fedpriv.training.trained_part import freeze_marked, load_public, train_part, without_batch_norm

#: Examples with a side below this get the linear model under `model=auto`: two 5x5 convolutions do not fit.
SMALLEST_CNN_SIDE = 16


def resolve_model(config: ModelConfig, shape: Shape, divided: bool = False, text: Text | None = None) -> ModelConfig:
    """Replaces ``auto`` by the model it stands for on examples of this shape; ``divided``: it must have two blocks or
    more.
    """
    if config.name != "auto":
        return config
    small = "mlp" if divided else "linear"
    name = "cnn" if len(shape) == 3 and min(shape[1:]) >= SMALLEST_CNN_SIDE else small
    return config.model_copy(update={"name": name if text is None else "bag"})


def build_model(
    config: ModelConfig,
    shape: Shape,
    classes: int,
    seed: int,
    text: Text | None = None,
    weights: bool = True,
    statistics: bool = False,
    baseline: int = 0,
) -> nn.Module:
    """A model before training, the same for the same seed, from `model.weights` if there are any. text: of token ids
    [t]. weights: False for its form alone. statistics: whether it may keep running statistics (BatchNorm).
    baseline: as `Task` has it.

    Raises `OptionError` where pictures are too small for the network, for a model that reads no text and one that reads
    nothing else, and for a model with BatchNorm where that may not be, naming the layer.
    """
    config = resolve_model(config, shape, text=text)
    if (config.name in language_models.BUILDERS) != (text is not None) and config.name not in ("constant", "custom"):
        words = "reads text" if text is None else "reads no token ids, and these examples are text"
        pictures = ", ".join(_BUILDERS) if len(shape) == 3 else VECTOR_MODELS
        known = pictures if text is None else ", ".join(language_models.BUILDERS)
        raise OptionError("model", config.name, f"{words}; allowed: auto, {known}, custom")
    # torch's initialisers take no generator: the global state is restored
    with torch.random.fork_rng(devices=[]), _fits(config):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed records a stack trace, a millisecond
        if config.name == "custom":
            torch.manual_seed(seed)  # it may draw on a GPU
            model = _custom(config, shape, classes, text, weights)
        elif text is not None and config.name != "constant":
            model = nn.Sequential(OrderedDict(language_models.BUILDERS[config.name](config, text, shape[0], classes)))
        elif config.name == "app":
            model = declared_model(config.arrays)
        else:
            model = _BUILDERS[config.name](config, shape, classes)
        if baseline:  # [n, 1] becomes [n, baseline]: a summand for each interval
            parts = {"network": model} if config.name == "custom" else dict(model.named_children())
            name, head = list(parts.items())[-1]
            parts[name] = nn.Sequential(head, Film(baseline, -1, scales=False))
            model = nn.Sequential(OrderedDict(parts))
        if weights and config.weights is not None and config.name not in ("custom", "constant"):
            load_public(model, config)
        train_part(model, config)
        freeze_marked(model, config.path or config.name)
    if statistics:
        return with_running_statistics(model, config.name, config.buffers == "local")
    refuse_batch_norm(model, config.name)
    return model


class _Declared(nn.Module):
    """Computes two logits in which every parameter has the same part: what an audit of its release can train."""

    def forward(self, inputs: Tensor) -> Tensor:
        logit = sum(part.sum() for part in self.parameters()) * inputs.flatten(1).mean(1)
        return torch.stack([logit, -logit], 1)


def declared_model(arrays: Sequence[tuple[str, Sequence[int]]]) -> nn.Module:
    """A module of these parameters (name, shape), zero: the form of an app's model, of which nobody here knows more."""
    model = _Declared()
    for name, shape in arrays:
        *path, last = name.split(".")
        place: nn.Module = model
        for part in path:
            if part not in dict(place.named_children()):
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        place.register_parameter(last, nn.Parameter(torch.zeros(*shape)))
    return model


@contextmanager
def _fits(config: ModelConfig) -> Iterator[None]:
    """Context in which memory that a model does not get is an error of its option."""
    try:
        yield
    except RuntimeError as error:
        if NO_MEMORY not in str(error) and "Storage size calculation overflowed" not in str(error):
            raise
        words = f"is larger than the memory of this machine ({str(error).rpartition(': ')[2].partition('.')[0]})"
        raise OptionError("model", config.name, words) from None


def refuse_batch_norm(model: nn.Module, name: str) -> None:
    """Running statistics (BatchNorm's, InstanceNorm's if it has any) are functions of a client's examples that leave
    with its update: clipping and noise do not cover them.
    """
    for layer, module in model.named_modules():
        if _normalises_by_batches(module):
            words = "whose running statistics would leave without clipping and noise"
            allowed = "allowed: GroupNorm, or a method without privacy (fedavg, fedprox, fedper, lgfedavg, fedvf, pfl)"
            raise OptionError("model", name, f"layer {layer} is {type(module).__name__}, {words}; {allowed}")


def with_running_statistics(model: nn.Module, name: str, local: bool = False) -> nn.Module:
    """The model whose running means and variances are parameters that no gradient moves. So they are coordinates as all
    others are: batches move them, they travel and are averaged with their layer, or stay with the client with it.
    local: the layers that have them become the last block, which a method can keep with the client (FedBN: Li et al.,
    ICLR 2021).

    Raises `OptionError` for a layer that normalises by batches and has none, or whose statistics depend on how many
    batches there were, which no average says.
    """
    for layer, module in model.named_modules():
        if not _normalises_by_batches(module):
            continue
        kind = f"layer {layer} is {type(module).__name__}"
        if getattr(module, "running_mean", None) is None:
            words = "with no running statistics: what it makes of an example depends on the examples beside it"
            raise OptionError("model", name, f"{kind} {words}; allowed: track_running_stats=True")
        if module.momentum is None:
            raise OptionError("model", name, f"{kind} with momentum=None; allowed: a number")
        for statistic in ("running_mean", "running_var"):
            value = module._buffers.pop(statistic)
            module.register_parameter(statistic, nn.Parameter(value, requires_grad=False))
    if local:
        norms = {id(part): part for part in model.modules() if _normalises_by_batches(part)}
        for part in list(model.modules()):
            for child, layer in part._modules.items():
                if id(layer) in norms:
                    part._modules[child] = _Elsewhere(norms[id(layer)])
        if norms:
            model.add_module("local_norms", _Kept(norms.values()))
    return model


class _Elsewhere(nn.Module):
    """A layer's place in the computation; its parameters are in another module."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.__dict__["layer"] = layer

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.__dict__["layer"](inputs)
        return outputs


class _Kept(nn.ModuleList):
    """Layers that are computed elsewhere: here, as the last block of a sequence, it gives what it got."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def _normalises_by_batches(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or bool(getattr(module, "track_running_stats", False))


def _linear(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    return _blocks(head=[nn.Flatten(), nn.Linear(_numel(shape), classes)])


def _softmax(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    """Linear without a bias, from zero: its loss is convex, so no start is better than another."""
    layer = nn.Linear(_numel(shape), classes, bias=False)
    nn.init.zeros_(layer.weight)
    return _blocks(head=[nn.Flatten(), layer])


class _Constant(nn.Module):
    """Outputs [n, k] that no example changes: one vector of k parameters, from zero."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.values.expand(len(inputs), -1)


def _constant(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    return _blocks(head=[_Constant(classes)])


def _mlp(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    return _blocks(
        hidden=[nn.Flatten(), nn.Linear(_numel(shape), config.hidden), nn.ReLU()],
        head=[nn.Linear(config.hidden, classes)],
    )


def _cnn(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    """Two valid 5x5 convolutions, two linear layers: 80,202 parameters on 28x28 grey pictures, 10 classes.

    ReLU never falls, so after pooling it gives the numbers, and the gradients, that it gives before, of a quarter of
    them: a tenth of a training step on a CPU.
    """
    _at_least(config, shape, SMALLEST_CNN_SIDE)
    channels, height, width = shape
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return _blocks(
        conv1=[nn.Conv2d(channels, 16, 5), nn.MaxPool2d(2), nn.ReLU()],
        conv2=[nn.Conv2d(16, 32, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()],
        hidden=[nn.Linear(32 * rows * columns, 128), nn.ReLU()],
        head=[nn.Linear(128, classes)],
    )


class _CentreCrop(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        top, left = (images.shape[-2] - self.side) // 2, (images.shape[-1] - self.side) // 2
        return images[..., top : top + self.side, left : left + self.side]


def _cnn_agn(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    """The network of Abadi et al. 2016: 993,098 parameters on 28x28 grey pictures, 10 classes.

    28x28: a valid, then a same-padded convolution; larger pictures are cropped to 24x24 and both are padded.
    """
    _at_least(config, shape, 28)
    channels = shape[0]
    first: list[nn.Module] = [nn.Conv2d(channels, 64, 5)]
    if min(shape[1:]) > 28 or shape[1] != shape[2]:
        first = [_CentreCrop(24), nn.Conv2d(channels, 64, 5, padding=2)]
    last, layers = 384, OrderedDict[str, list[nn.Module]]()
    layers["conv1"] = [*first, nn.MaxPool2d(2), nn.ReLU()]
    layers["conv2"] = [nn.Conv2d(64, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()]
    layers["hidden"] = [nn.Linear(64 * 6 * 6, 384), nn.ReLU()]
    if config.second_hidden:
        last = config.second_hidden
        layers["hidden2"] = [nn.Linear(384, last), nn.ReLU()]
    layers["head"] = [nn.Linear(last, classes)]
    return _blocks(**layers)


class _Residual(nn.Module):
    """A basic residual block (He et al. 2016) with GroupNorm and out-of-place activations."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(groups, outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.main(images) + self.shortcut(images))


def _resnet(depths: tuple[int, int, int, int], config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    _at_least(config, shape, 8)
    if 64 % config.groups:
        raise OptionError("model.groups", config.groups, "must divide 64, the width of the first stage")
    layers = OrderedDict[str, list[nn.Module]]()
    layers["stem"] = [nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False), nn.GroupNorm(config.groups, 64), nn.ReLU()]
    inputs = 64
    for stage, depth in enumerate(depths):
        outputs = 64 * 2**stage
        for index in range(depth):
            stride = 2 if stage and not index else 1
            layers[f"stage{stage + 1}_{index + 1}"] = [_Residual(inputs, outputs, stride, config.groups)]
            inputs = outputs
    layers["head"] = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
    return _blocks(**layers)


def _resnet18(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    return _resnet((2, 2, 2, 2), config, shape, classes)


def _resnet34(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    return _resnet((3, 4, 6, 3), config, shape, classes)


def _moments(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    """Of rows clipped to ``bound`` B, by default the length of one that is spread evenly over [-1, 1]."""
    return _blocks(head=[Moments(_numel(shape), classes, bound_of(config.bound, _numel(shape)), config.head)])


#: Of `_BUILDERS`, those that train on vectors.
VECTOR_MODELS = "linear, softmax, mlp"
_BUILDERS = {
    "linear": _linear,
    "softmax": _softmax,
    "mlp": _mlp,
    "constant": _constant,
    "moments": _moments,
    "cnn": _cnn,
    "cnn_agn": _cnn_agn,
    "resnet18": _resnet18,
    "resnet34": _resnet34,
}


def _custom(config: ModelConfig, shape: Shape, classes: int, text: Text | None, weights: bool) -> nn.Module:
    if config.path is None:
        raise OptionError("model.path", "null", "custom needs the dotted path of a function, package.module.name")
    build = code_at("model.path", config.path)
    try:
        model = build(shape, classes, *(() if text is None else (text.vocabulary,)))
        if not isinstance(model, nn.Module):
            raise OptionError("model.path", config.path, f"must return a torch.nn.Module, not {type(model).__name__}")
        if weights and config.weights is not None:
            load_public(model, config)
        if config.train != "all":
            without_batch_norm(model)  # a call in training would change its statistics
        random = torch.Generator().manual_seed(0)
        examples = made_up(2, *shape, vocabulary=None if text is None else text.vocabulary, random=random)
        logits = _moves_statistics_alone(model, config.path, lambda: give_logits(model, str(config.path), examples, 0))
    except OptionError:
        raise
    except RuntimeError as error:
        if "scalar types: Long" not in str(error):
            raise OptionError("model.path", config.path, f"raised {type(error).__name__}: {error}") from error
        given = f"float32 [n, {', '.join(map(str, shape))}]"
        words = f"reads whole numbers, and these examples are {given}: convert them (x.long()), or have text columns"
        raise OptionError("model.path", config.path, f"{words} (docs/text.md)") from error
    except Exception as error:  # user code: one line states what it raised
        raise OptionError("model.path", config.path, f"raised {type(error).__name__}: {error}") from error
    wanted = (*(shape if text is not None and text.each else ()), classes)
    if tuple(logits.shape) != (2, *wanted):
        words = f"must give logits [n, {', '.join(map(str, wanted))}], gave {tuple(logits.shape)} for n=2"
        raise OptionError("model.path", config.path, words)
    return model


def _moves_statistics_alone(model: nn.Module, name: str, call: Callable[[], Tensor]) -> Tensor:
    """What a call in training gives; buffers are afterwards as before. Raises `OptionError` for a buffer that it moves,
    other than running statistics: it would pass from client to client, their examples in it, and never be averaged.
    """
    before = {key: value.clone() for key, value in model.named_buffers()}
    model.train()
    found = call()
    for key, value in model.named_buffers():
        layer = model.get_submodule(key.rpartition(".")[0])
        if key in before and value.equal(before[key]):
            continue
        if key not in before or not _normalises_by_batches(layer):
            words = f"a call moves {key}, a buffer of {type(layer).__name__}, and nothing says how it would be averaged"
            raise OptionError("model", name, f"{words}; allowed: BatchNorm's running statistics, or no such buffer")
        value.copy_(before[key])
    return found


@torch.no_grad()
def give_logits(model: nn.Module, name: str, examples: Tensor, padding: int | None = None) -> Tensor:
    """Logits of examples by a user's model. A model of transformers, whose output holds logits and more, gives its
    logits alone from now on. It is told which token ids are ``padding``; None: those that its configuration says are.
    """
    found = model(examples)
    if isinstance(found, Tensor) or not isinstance(getattr(found, "logits", None), Tensor):
        return found  # type: ignore[no-any-return]
    kind, config = type(model), cast(Any, getattr(model, "config", None))
    own = getattr(config, "pad_token_id", None)
    if padding is not None and own not in (None, padding):
        words = f"its configuration pads with {own}, and texts here are padded with {padding}"
        raise OptionError("model", name, f"{words}; allowed: pad_token_id={padding}")
    pad = own if padding is None else padding
    if hasattr(config, "pad_token_id"):
        config.pad_token_id, config.use_cache = pad, False

    def forward(self: nn.Module, inputs: Tensor) -> Tensor:
        told = {} if pad is None or inputs.is_floating_point() else {"attention_mask": (inputs != pad).long()}
        logits: Tensor = kind.forward(self, inputs, **told).logits
        return logits

    model.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    return model(examples)  # type: ignore[no-any-return]


def _blocks(**layers: list[nn.Module]) -> nn.Module:
    return nn.Sequential(OrderedDict((name, nn.Sequential(*modules)) for name, modules in layers.items()))


def _numel(shape: Shape) -> int:
    return math.prod(shape)


def _at_least(config: ModelConfig, shape: Shape, side: int) -> None:
    if len(shape) != 3:
        words = f"reads pictures, and these examples are vectors of {math.prod(shape)} numbers"
        raise OptionError("model", config.name, f"{words}; allowed: auto, {VECTOR_MODELS}, custom")
    if min(shape[1:]) < side:
        raise OptionError(
            "model", config.name, f"needs pictures of at least {side}x{side}, these are {shape[1]}x{shape[2]}"
        )
