"""`fedpriv features FILE`: what a file of public weights holds, and what features=backbone would read of it.

    fedpriv features FILE [architecture=NAME] [layer=NAME] [size=224]

Printed are the layers with their sizes for one picture, the layer that is read, the side of the pictures and the
normalisation, where the file or one beside it tells them, and the options of a run. No code of the file runs.

architecture=   of torchvision, timm/NAME, huggingface, onnx, or package.module.Class (left out: by the file and what
                lies beside it; of a state dict the first network of torchvision that it fits)
layer=          another layer than the input of the last linear one
size=           side of the pictures (left out: as the file says, or 224)
"""

from __future__ import annotations

import importlib
import json
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpriv.common.command_line import Existing, command
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say

#: Of a state dict so many of its tensors are shown, where no network is known that it fits.
SHOWN = 20


@command
def main(file: Existing, *, architecture: str = "", layer: str | None = None, size: int | None = None) -> None:
    from fedpriv.config.data_schema import FeaturesConfig
    from fedpriv.data.networks import backbone_dims
    from fedpriv.data.onnx_graphs import read_graph
    from fedpriv.data.weights import HUGGING_FACE, ONNX, beside, read_weights

    told = _told(file)
    kind = architecture or str(told.get("architecture", ""))
    if kind == ONNX:
        graph = read_graph(str(file), "FILE")
        say(f"{file}: an ONNX graph, opset {graph.opset}, {graph.numbers:,} numbers, SHA-256 {graph.sha256}")
        told |= {"side": graph.side[0]} if graph.side else {}
    else:
        found = read_weights(str(file), "FILE", None, beside(kind, str(file)))
        numbers = sum(value.numel() for value in found.tensors.values())
        say(f"{file}: {len(found.tensors)} tensors, {numbers:,} numbers, SHA-256 {found.sha256}")
        kind = kind or _fitting(found.tensors)
        if not kind:
            say(_table([(name, "", _words(value.shape)) for name, value in [*found.tensors.items()][:SHOWN]]))
            words = "fits no network of torchvision: architecture=timm/NAME or package.module.Class says which it is"
            say(f"{'...; ' if len(found.tensors) > SHOWN else ''}{words}")
            return
    side = size or int(told.get("side") or 224)
    options = FeaturesConfig(name="backbone", architecture=kind, weights=str(file), layer=layer, size=side)
    rows = [(one.name, one.operation, one.size) for one in graph.layers] if kind == ONNX else _sizes(options, side)
    last = {ONNX: graph.default if kind == ONNX else "", HUGGING_FACE: "the mean of its last layer"}
    read = layer or last.get(kind, "the input of the last linear layer")
    dims = backbone_dims(options, (3, side, side))
    say(f"{_table(rows)}\narchitecture: {kind}\nread: {read}, {dims} features of a picture of {side}x{side}")
    form = {name: told[name] for name in ("mean", "std") if told.get(name)}
    known = ", ".join(f"{name} {values}" for name, values in form.items())
    say(f"normalisation: {known or 'not told (by default that of ImageNet; ask whoever made it)'}")
    chosen = [f"architecture={kind}", f"weights={file}", f"size={side}", *([f"layer={layer}"] if layer else [])]
    chosen += [f"{name}=[{','.join(map(str, values))}]" for name, values in form.items()]
    options_of_run = [f"features.{word}" for word in (*chosen, "trained_on=WHAT")]
    say(shlex.join(["python", "-m", "fedpriv", "features=backbone", *options_of_run]))


def _told(file: Path) -> dict[str, Any]:
    """architecture, side, mean and std that config.json or preprocessor_config.json beside the file tell."""
    said = [_json(file.parent / name) for name in ("config.json", "preprocessor_config.json")]
    told: dict[str, Any] = {}
    if isinstance(said[0].get("pretrained_cfg"), dict) and "architecture" in said[0]:  # timm's
        form = said[0]["pretrained_cfg"]
        told = {"architecture": f"timm/{said[0]['architecture']}", "mean": form.get("mean"), "std": form.get("std")}
        told["side"] = (form.get("input_size") or [0])[-1]
    elif "model_type" in said[0]:
        told = {"architecture": "huggingface", "side": said[0].get("image_size")}
    told |= {name: said[1][f"image_{name}"] for name in ("mean", "std") if said[1].get(f"image_{name}")}
    return told | ({"architecture": "onnx", "side": None} if file.suffix == ".onnx" else {})


def _json(path: Path) -> dict[str, Any]:
    """What stands in it; of what is no file of JSON nothing."""
    if not path.is_file() or path.stat().st_size > 1 << 20:
        return {}
    try:
        said = json.loads(path.read_bytes())
    except ValueError:
        raise OptionError("FILE", path, "is no JSON; allowed: the file as it was published, or none") from None
    return said if isinstance(said, dict) else {}


def _fitting(tensors: dict[str, Any]) -> str:
    """The first network of torchvision whose names and shapes these are, apart from its head; or nothing."""
    import torch

    from fedpriv.data.networks import network_of
    from fedpriv.data.weights import head_of, unwrapped

    models: Any = importlib.import_module("torchvision.models")
    shapes = {name: value.shape for name, value in unwrapped(tensors).items()}
    for architecture in models.list_models(module=models):
        try:
            with torch.device("meta"), warnings.catch_warnings(action="ignore"):
                network = network_of(architecture)
        except OptionError:
            continue
        head, named = f"{head_of(network)[0]}.", network.state_dict().items()
        if _body({name: value.shape for name, value in named}, head) == _body(shapes, head):
            return str(architecture)
    return ""


def _body(shapes: dict[str, Any], head: str) -> dict[str, Any]:
    return {name: one for name, one in shapes.items() if not name.startswith(head) and not name.endswith("s_tracked")}


def _sizes(options: Any, side: int) -> list[tuple[str, str, str]]:
    """Name, kind and output's size of every layer, for one picture; the file must fit them."""
    import torch

    from fedpriv.data.networks import backbone_features, network_of
    from fedpriv.data.weights import beside

    backbone_features(options, (3, side, side))
    with torch.device("meta"):
        network = network_of(options.architecture, beside(options.architecture, options.weights)).eval()
        rows: list[tuple[str, str, str]] = []
        for name, part in network.named_modules():
            part.register_forward_hook(
                lambda module, given, found, name=name: rows.append((name, type(module).__name__, _shape(found)))
            )
        network(torch.zeros(1, 3, side, side))
    return [row for row in rows if row[0] and row[2] != "?"]


def _shape(found: Any) -> str:
    found = found[0] if isinstance(found, tuple) and found else found
    return _words(found.shape) if hasattr(found, "shape") else "?"


def _words(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "1"


def _table(rows: Sequence[tuple[str, str, str]]) -> str:
    widths = [max((len(row[place]) for row in rows), default=0) for place in (0, 1)]
    return "\n".join(f"  {name:<{widths[0]}}  {what:<{widths[1]}}  {size}" for name, what, size in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
