"""Trains a small picture network on pictures of random processes: no data at all, everything follows from a seed.

    python -m tools.make_process_network out=FOLDER [seconds=240] [batch=1024] [device=cuda] [seed=0] [size=test]
    python -m tools.make_process_network map FILE.safetensors
    python -m tools.make_process_network sample FILE.png

Pictures (32x32, colour) are drawn on the device: dead leaves (Lee, Mumford and Huang 2001: shapes of power-law sizes
that hide one another, filled with textures), coloured noise with a 1/f^a spectrum, and random functions of the place
(small networks with random weights, "shaders"). Baradad et al. (NeurIPS 2021) learn to see from such pictures; Tang et
al. (NeurIPS 2023) begin private training there.

Loss: two crops of a picture must find each other among those of the batch (SimCLR, Chen et al. 2020). Writes
process_network.safetensors (float16; averaged weights, with the statistics of 20 more batches), a checkpoint every
minute from which the same command goes on, and log.jsonl. ``seconds`` are those of training in all; the file that comes
with the project took 240 of one H200: 6,400 steps, 6.5 million crops in pairs of 2.7 million pictures.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.data.features import Features
from fedpriv.data.networks import MOST, WEIGHTS, WIDTHS, ProcessNetwork

SIDE, CANVAS = 32, 48


# --- pictures ----------------------------------------------------------------------------------------------


class Pictures:
    """Batches of pictures [b, 3, CANVAS, CANVAS] in 0..1."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device, self.random = device, torch.Generator(device).manual_seed(seed)
        axis = torch.linspace(-1, 1, CANVAS, device=device)
        self.y, self.x = (part[None] for part in torch.meshgrid(axis, axis, indexing="ij"))
        fy, fx = torch.fft.fftfreq(CANVAS, device=device)[:, None], torch.fft.rfftfreq(CANVAS, device=device)[None]
        self.fy, self.fx = fy, fx

    def u(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(*shape, device=self.device, generator=self.random)

    def n(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device, generator=self.random)

    def noise(self, many: int) -> Tensor:
        """Coloured noise, spectrum f^-a, stretched along a direction; mean 0, deviation about 1."""
        angle, stretch = self.u(many, 1, 1, high=math.pi), torch.exp(self.u(many, 1, 1, low=-1.2, high=1.2))
        fx = (self.fx * torch.cos(angle) + self.fy * torch.sin(angle)) * stretch
        fy = (-self.fx * torch.sin(angle) + self.fy * torch.cos(angle)) / stretch
        f = (fx.square() + fy.square()).sqrt().clamp_min(1 / CANVAS)
        power = f ** -self.u(many, 1, 1, low=0.3, high=2.6)
        spectrum = torch.complex(self.n(many, 3, CANVAS, CANVAS // 2 + 1), self.n(many, 3, CANVAS, CANVAS // 2 + 1))
        found = torch.fft.irfft2(spectrum * power[:, None], s=(CANVAS, CANVAS))
        found = found / found.std((1, 2, 3), keepdim=True)
        mix = torch.eye(3, device=self.device) * self.u(many, 1, 1, high=0.6) + self.n(many, 3, 3) * 0.15 + 0.4
        return torch.einsum("bij,bjhw->bihw", mix, found)

    def waves(self, many: int) -> Tensor:
        """Stripes, checks and rings with soft or sharp edges."""
        angle, rate = self.u(many, 2, 1, 1, high=math.pi), torch.exp(self.u(many, 2, 1, 1, low=1, high=3.3))
        phase = self.u(many, 2, 1, 1, high=2 * math.pi)
        along = self.x[:, None] * torch.cos(angle) + self.y[:, None] * torch.sin(angle)
        ring = ((self.x - self.u(many, 1, 1, low=-1)).square() + (self.y - self.u(many, 1, 1, low=-1)).square()).sqrt()
        along[:, 1] = torch.where(self.u(many, 1, 1) < 0.3, ring, along[:, 1])
        sharp = torch.exp(self.u(many, 1, 1, 1, low=-0.7, high=2.5))
        both = torch.tanh(torch.sin(along * rate + phase) * sharp)
        second = (self.u(many, 1, 1) < 0.5).float()
        value = both[:, 0] * (1 - second) + both[:, 0] * both[:, 1] * second
        return value[:, None] * self.n(many, 3, 1, 1) * 0.7

    def shader(self, many: int, hidden: int = 16) -> Tensor:
        """Three layers of random weights from the place to a colour."""
        turn, size = self.u(many, 1, 1, high=2 * math.pi), torch.exp(self.u(many, 1, 1, low=0.0, high=1.5))
        dx, dy = self.u(many, 1, 1, low=-1), self.u(many, 1, 1, low=-1)
        x, y = (self.x - dx) * size, (self.y - dy) * size
        x, y = x * torch.cos(turn) - y * torch.sin(turn), x * torch.sin(turn) + y * torch.cos(turn)
        values = torch.stack([x, y, (x.square() + y.square()).sqrt(), torch.ones_like(x)], -1).flatten(1, 2)
        values = torch.bmm(values, self.n(many, 4, hidden) * 1.5)
        for _ in range(2):
            values = torch.where(self.u(many, 1, hidden) < 0.5, torch.sin(values), torch.tanh(values * 2))
            values = torch.bmm(values, self.n(many, hidden, hidden) * (1.8 / math.sqrt(hidden)))
        found = torch.bmm(torch.sin(values), self.n(many, hidden, 3) / math.sqrt(hidden) * 1.5)
        return found.transpose(1, 2).reshape(many, 3, CANVAS, CANVAS)

    def leaves(self, many: int, shapes: int) -> Tensor:
        """Dead leaves over a noisy ground, the last shape on top."""
        fills = torch.stack([self.noise(many), self.waves(many), self.noise(many), self.shader(many)], 1)
        found = self.noise(many) * self.u(many, 1, 1, 1, high=0.5) + self.n(many, 3, 1, 1) * 0.6
        power = self.u(many, low=1.0, high=2.5)
        one = torch.arange(many, device=self.device)
        largest = self.u(many, low=0.35, high=0.95)
        for number in range(shapes):
            share = 1 - number / shapes  # large ones first, so that small ones are seen
            radius = 0.05 + (largest - 0.05) * (self.u(many) * 0.5 + 0.5 * share) ** (1.5 * power)
            cx, cy, turn = self.u(many, low=-1.1, high=1.1), self.u(many, low=-1.1, high=1.1), self.u(many, high=6.283)
            x, y = self.x - cx[:, None, None], self.y - cy[:, None, None]
            cos, sin = torch.cos(turn)[:, None, None], torch.sin(turn)[:, None, None]
            long = torch.exp(self.u(many, low=-0.9, high=0.9))[:, None, None]
            x, y = (x * cos + y * sin) * long, (y * cos - x * sin) / long
            corners = torch.randint(2, 9, (many,), device=self.device, generator=self.random)[:, None, None].float()
            angle = torch.atan2(y, x)
            wedge = math.pi / corners
            straight = torch.cos(wedge) / torch.cos(torch.remainder(angle, 2 * wedge) - wedge)
            wavy = 1 + self.u(many, 1, 1, high=0.45) * torch.sin(corners * angle)
            kind = self.u(many, 1, 1)
            edge = torch.where(
                kind < 0.35, torch.ones_like(angle), torch.where(kind < 0.7, straight.clamp(0.2, 1), wavy)
            )
            distance = edge * radius[:, None, None] - (x.square() + y.square()).sqrt()
            hollow = (self.u(many, 1, 1) < 0.15).float() * radius[:, None, None] * 0.35
            distance = torch.where(hollow > 0, hollow - (distance - hollow).abs(), distance)
            mask = torch.sigmoid(distance * self.u(many, 1, 1, low=15, high=80))[:, None]
            fill = fills[one, torch.randint(0, 4, (many,), device=self.device, generator=self.random)]
            texture = self.u(many, 1, 1, 1).square() * (self.u(many, 1, 1, 1) < 0.7)
            light = (x * 0.8)[:, None] * self.n(many, 1, 1, 1) * 0.5  # shading along the shape
            paint = self.n(many, 3, 1, 1) * 0.5 + self.n(many, 1, 1, 1) * 0.8 + fill * texture + light
            found = found + mask * (paint - found)
        return found

    def batch(self, many: int) -> Tensor:
        """Half of them dead leaves with few or many shapes, the rest shaders, noise, and mixtures."""
        parts = [self.leaves(many // 4, 10), self.leaves(many // 4, 28), self.leaves(many // 8, 60)]
        parts.append(self.shader(many // 8) + 0.3 * self.noise(many // 8) * self.u(many // 8, 1, 1, 1))
        left = many - sum(map(len, parts))
        mask = torch.sigmoid(self.noise(left).mean(1, keepdim=True) * 8)
        one, other = self.noise(left) + 0.5 * self.n(left, 3, 1, 1), self.waves(left) + self.n(left, 3, 1, 1) * 0.5
        parts.append(mask * one + (1 - mask) * torch.where(self.u(left, 1, 1, 1) < 0.5, other, self.shader(left)))
        found = torch.cat(parts)
        contrast = torch.exp(self.u(many, 1, 1, 1, low=-0.8, high=0.5))
        return torch.sigmoid((found - found.mean((2, 3), keepdim=True) * 0.5) * contrast * 1.5)

    def views(self, pictures: Tensor) -> Tensor:
        """A random crop of each, mirrored, in other colours [b, 3, SIDE, SIDE]."""
        many = len(pictures)
        area, ratio = self.u(many, low=0.15, high=0.75), torch.exp(self.u(many, low=-0.28, high=0.28))
        w, h = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
        cx, cy = (self.u(many, low=-1) * (1 - w)), (self.u(many, low=-1) * (1 - h))
        flip = torch.where(self.u(many) < 0.5, -1.0, 1.0)
        theta = torch.zeros(many, 2, 3, device=self.device)
        theta[:, 0, 0], theta[:, 1, 1], theta[:, 0, 2], theta[:, 1, 2] = w * flip, h, cx, cy
        grid = functional.affine_grid(theta, [many, 3, SIDE, SIDE], align_corners=False)
        found = functional.grid_sample(pictures, grid, padding_mode="reflection", align_corners=False)
        jitter = (self.u(many, 1, 1, 1) < 0.8).float()
        found = found * (1 + jitter * self.u(many, 1, 1, 1, low=-0.4, high=0.4))  # brightness
        mean = found.mean((1, 2, 3), keepdim=True)
        found = mean + (found - mean) * (1 + jitter * self.u(many, 1, 1, 1, low=-0.4, high=0.4))  # contrast
        grey = found.mean(1, keepdim=True)
        keep = 1 + jitter * self.u(many, 1, 1, 1, low=-0.4, high=0.4)
        keep = torch.where(self.u(many, 1, 1, 1) < 0.2, torch.zeros_like(keep), keep)  # saturation, or none
        found = grey + (found - grey) * keep
        axis = jitter.view(-1) * self.u(many, low=-0.6, high=0.6)  # hue: a turn about grey
        c, s = torch.cos(axis), torch.sin(axis)
        third, root = (1 - c) / 3, s / math.sqrt(3)
        one, other = third - root, third + root
        turn = torch.stack([c + third, one, other, other, c + third, one, one, other, c + third], 1).view(-1, 3, 3)
        found = torch.einsum("bij,bjhw->bihw", turn, found)
        blur = functional.avg_pool2d(functional.pad(found, (1, 1, 1, 1), mode="reflect"), 3, 1)
        found = torch.where(self.u(many, 1, 1, 1) < 0.2, blur, found)
        return found.clamp(0, 1)


# --- training ----------------------------------------------------------------------------------------------


class Projector(nn.Module):
    def __init__(self, outputs: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTHS[-1], 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, outputs)
        )

    def forward(self, h: Tensor) -> Tensor:
        return functional.normalize(self.layers(h), dim=1)


class Pool:
    """Pictures that are drawn again and again, and replaced one block after the other while it costs little time."""

    def __init__(self, pictures: Pictures, size: int, block: int, share: float) -> None:
        self.pictures, self.block, self.share, self.spent, self.drawn = pictures, block, share, 0.0, 0
        self.kept = torch.empty(size, 3, CANVAS, CANVAS, dtype=torch.uint8, device=pictures.device)
        self.began = time.monotonic()
        for _ in range(min(4, size // block)):
            self.refill()

    def refill(self) -> None:
        began, place = time.monotonic(), self.drawn % len(self.kept)
        self.kept[place : place + self.block] = (self.pictures.batch(self.block) * 255).round().byte()
        if self.kept.is_cuda:
            torch.cuda.synchronize()
        self.drawn += self.block
        self.spent += time.monotonic() - began

    def take(self, many: int) -> Tensor:
        if self.spent < self.share * (time.monotonic() - self.began):
            self.refill()
        full = min(self.drawn, len(self.kept))
        rows = torch.randint(0, full, (many,), device=self.kept.device, generator=self.pictures.random)
        return self.kept[rows].float() / 255


def contrast(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """NT-Xent of unit vectors [b, k]."""
    both = torch.cat([one, other]).float()
    like = both @ both.T / temperature
    like.fill_diagonal_(float("-inf"))
    many = len(one)
    target = torch.cat([torch.arange(many, 2 * many), torch.arange(many)]).to(one.device)
    return functional.cross_entropy(like, target)


def as_halves(model: nn.Module) -> dict[str, Tensor]:
    """All that evaluation needs, in float16."""
    return {
        n: v.half().contiguous().cpu() for n, v in model.state_dict().items() if not n.endswith("num_batches_tracked")
    }


@dataclass
class Training:
    """What a checkpoint holds: the network, its average over steps, the projector."""

    parts: nn.ModuleDict
    step: int = 0
    spent: float = 0.0  # seconds

    @classmethod
    def begun(cls, device: torch.device) -> Training:
        network, projector = ProcessNetwork().to(device), Projector().to(device)
        average = ProcessNetwork().to(device)
        average.load_state_dict(network.state_dict())
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return cls(nn.ModuleDict({"model": network, "projector": projector, "ema": average}))

    def save(self, out: Path) -> None:
        tensors = {name: value.contiguous() for name, value in self.parts.state_dict().items()}
        save_file(tensors, out / "checkpoint.safetensors")
        (out / "checkpoint.json").write_text(json.dumps({"spent": self.spent, "step": self.step}))

    def load(self, out: Path) -> None:
        """From the folder's checkpoint, if there is one."""
        if (out / "checkpoint.json").exists():
            said = json.loads((out / "checkpoint.json").read_text())
            self.spent, self.step = said["spent"], said["step"]
            self.parts.load_state_dict(load_file(out / "checkpoint.safetensors"))

    def optimiser(self) -> torch.optim.Optimizer:
        trained = [p for name in ("model", "projector") for p in self.parts[name].parameters()]
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.05},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98))

    def averaged(self) -> None:
        """Moves the average of the weights towards those of this step."""
        both = zip(self.parts["ema"].state_dict().values(), self.parts["model"].state_dict().values(), strict=True)
        pairs = [(mine, theirs) for mine, theirs in both if mine.is_floating_point()]
        share = min(0.999, (self.step + 1) / (self.step + 20))
        torch._foreach_lerp_([mine for mine, _ in pairs], [theirs for _, theirs in pairs], 1 - share)


OPTIONS = {
    "out": "process_network",
    "seconds": "240",
    "steps": "0",
    "batch": "1024",
    "device": "cuda",
    "seed": "0",
    "size": "",
    "temperature": "0.2",
    "lr": "0.003",
}


def main(arguments: list[str]) -> int:
    if arguments[:1] in (["sample"], ["map"]):
        (sample if arguments[0] == "sample" else make_map)(arguments[1])
        return 0
    if unknown := sorted({argument.partition("=")[0] for argument in arguments} - OPTIONS.keys()):
        print(f"{unknown[0]}: no such option; allowed: sample, map, {', '.join(OPTIONS)}", file=sys.stderr)
        return 2
    options = OPTIONS | dict(argument.split("=", 1) for argument in arguments)
    out, device, seconds = Path(options["out"]), torch.device(options["device"]), float(options["seconds"])
    out.mkdir(parents=True, exist_ok=True)
    test, most = options["size"] == "test", int(options["steps"])
    batch = 16 if test else int(options["batch"])
    torch.manual_seed(int(options["seed"]))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    training = Training.begun(device)
    training.load(out)
    model, projector, optimiser = training.parts["model"], training.parts["projector"], training.optimiser()
    peak = float(options["lr"]) * math.sqrt(batch / 1024)
    pictures = Pictures(device, int(options["seed"]) + training.step + 1)
    pool = Pool(pictures, 64 if test else 131072, 32 if test else 8192, 0.25)
    began, saved, shown = time.monotonic() - training.spent, training.spent, -100.0
    with (out / "log.jsonl").open("a") as log:
        while training.spent < seconds and not 0 < most <= training.step:
            warm, share = min(1.0, (training.step + 1) / 200), training.spent / seconds
            for group in optimiser.param_groups:
                group["lr"] = peak * warm * 0.5 * (1 + math.cos(math.pi * share))
            with torch.no_grad():
                drawn = pool.take(batch)
                inputs = torch.cat([pictures.views(drawn), pictures.views(drawn)])
            with torch.autocast(device.type, torch.bfloat16):
                maps = model.stages(  # type: ignore[operator]
                    inputs.contiguous(memory_format=torch.channels_last)
                )[-1]
                one, other = projector(maps.mean((2, 3))).chunk(2)
            loss = contrast(one, other, float(options["temperature"]))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(training.parts.parameters(), 5.0)
            optimiser.step()
            with torch.no_grad():
                training.averaged()
            training.step, training.spent = training.step + 1, time.monotonic() - began
            if training.spent - shown > 5:
                shown = training.spent
                row = {"step": training.step, "seconds": round(shown, 1), "loss": round(loss.item(), 4)}
                row |= {"crops": training.step * batch, "drawn": pool.drawn}
                print(row, flush=True)
                log.write(json.dumps(row) + "\n")
                log.flush()
            if training.spent - saved > 60 or training.step == most:
                saved = training.spent
                training.save(out)
    ema_statistics(training.parts["ema"], pictures, batch)
    facts = {"made_of": "random processes alone, no data", "steps": str(training.step)}
    save_file(as_halves(training.parts["ema"]), out / WEIGHTS, facts | {k: options[k] for k in ("seed", "batch")})
    return 0


@torch.no_grad()
def ema_statistics(model: nn.Module, pictures: Pictures, batch: int) -> None:
    """Running statistics of the averaged weights, by 20 more batches."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    model.train()
    for _ in range(20):
        model(pictures.views(pictures.batch(batch)))
    model.eval()


def sample(path: str) -> None:
    """A sheet of pictures and of their views."""
    from PIL import Image

    made = Pictures(torch.device("cpu"), 0)
    drawn = made.batch(96)
    rows = torch.cat([drawn[:, :, 8:40, 8:40], made.views(drawn), made.views(drawn)])
    order = torch.cat([torch.arange(k, 288, 96)[None] for k in range(96)]).flatten()
    tiles = rows[order].view(16, 18, 3, 32, 32).permute(0, 3, 1, 4, 2).reshape(16 * 32, 18 * 32, 3)
    Image.fromarray((tiles * 255).byte().numpy()).resize((18 * 64, 16 * 64), 0).save(path)


def make_map(path: str) -> None:
    """The map of `features.map=drawings`: mean, variances and directions of the features of 3,072 drawings, each the
    mean with its mirror image; of the directions the `MOST` with the largest variance.
    """
    made = Pictures(torch.device("cpu"), 1234)
    compute = Features(FeaturesConfig(name="processes", mirror=True), (3, SIDE, SIDE), Path(path).parent)
    low, high = (CANVAS - SIDE) // 2, (CANVAS + SIDE) // 2
    drawn = [(made.batch(192)[:, :, low:high, low:high] * 255).round().byte().numpy() for _ in range(16)]
    values = compute.base(np.concatenate(drawn)).astype(np.float64)
    mean = values.mean(0)
    variances, vectors = np.linalg.eigh((values - mean).T @ (values - mean) / len(values))
    kept = {"mean": mean, "variances": variances[::-1], "vectors": vectors[:, ::-1][:, :MOST]}
    forms = {"mean": torch.float32, "variances": torch.float32, "vectors": torch.float16}
    save_file({name: torch.tensor(kept[name].copy(), dtype=form) for name, form in forms.items()}, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
