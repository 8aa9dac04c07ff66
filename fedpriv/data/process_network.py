"""A small network that was trained on pictures of random processes: features without any data.

`tools/make_backbone.py` draws the pictures (dead leaves, coloured noise, random functions of the place) from a seed and
trains the network to find two crops of one picture among those of others. No picture of anything was ever seen, so the
public knowledge is the drawing rules alone (Baradad et al., NeurIPS 2021; Tang et al., NeurIPS 2023).

Its features are those of three stages, each the mean over every quarter of the picture: sums of what is where, coarse
enough for small shifts.

Shapes: n pictures, 3 channels, h x w pixels, d = 4 (64 + 128 + 192) features.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.common.errors import OptionError
from fedpriv.common.places import shipped_files
from fedpriv.data.directions import Directions, FeatureMap
from fedpriv.data.pink import pink_map

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
    """Pictures in 0..1 [n, 3, h, w] -> features [n, DIMS]."""

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
    and p the ``exponent``, as of `fedpriv.data.pink`.
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
