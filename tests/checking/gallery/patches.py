"""The gallery's programs: some are files of this folder, every other is a patch of the file nearest to it.

A patch begins with "=== NAME from BASE"; of each part of it, "@@ LINE COUNT" says which lines of the base (from 1; a
count of 0: before that line) the lines below stand for.
"""

import re
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
PATCHES = r'''
=== aare from fraxinus
@@ 1 1
"""Local differential privacy for a client's update."""
@@ 6 0
BOUND = 1.0
SIGMA = 2.0
@@ 9 6
    values = np.where(np.isfinite(update), update, 0.0)
    noisy = values + rng.normal(0.0, SIGMA * BOUND, size=values.shape)
    return noisy * (BOUND / max(np.linalg.norm(noisy), BOUND))
=== acer from fraxinus
@@ 1 1
"""Several local steps in one message."""
@@ 6 0
LOCAL_STEPS = 5
@@ 10 5
    step = update / max(1.0, np.linalg.norm(update))
    return LOCAL_STEPS * step + rng.normal(0.0, 2.0, size=update.shape)
=== agger from vah
@@ 1 1
"""A client that trains a small network and sends its weights."""
@@ 4 2
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
@@ 8 1
CLIP = 1.0
STD = 2.0
@@ 11 3
def network() -> nn.Module:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    return model
@@ 16 16
def rows_of(part: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = np.random.default_rng(part).standard_normal((32, 4)).astype(np.float32)
    return torch.from_numpy(rows), torch.from_numpy(rows[:, :1] > 0).float()
@@ 34 1
initial_arrays = ArrayRecord(network().state_dict())
target = ClientApp()


@target.train()
def train(message: Message, context: Context) -> Message:
    model = network()
    model.load_state_dict(next(iter(message.content.array_records.values())).to_torch_state_dict())
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    rows, wanted = rows_of(int(context.node_config.get("partition-id", 0)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(rows), wanted).backward()
        optimiser.step()
    with torch.no_grad():
        moves = {name: torch.nan_to_num(value - start[name]) for name, value in model.named_parameters()}
        length = torch.sqrt(sum(move.square().sum() for move in moves.values()))
        for name, value in model.named_parameters():
            noise = torch.normal(0.0, STD, size=value.shape)
            value.copy_(start[name] + moves[name] / max(1.0, float(length) / CLIP) + noise)
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)
=== aire from fraxinus
@@ 1 1
"""Local differential privacy for a client's update."""
@@ 6 0
BOUND = 1.0
SIGMA = 2.0
@@ 9 6
    values = np.where(np.isfinite(update), update, 0.0)
    clipped = values * (BOUND / max(np.linalg.norm(values), BOUND))
    return clipped + rng.normal(0.0, SIGMA * BOUND, size=values.shape)
=== aisne from eden
@@ 1 3
"""Private release of a model's layers, each clipped."""
@@ 9 0
STD = 2.0
@@ 11 2
def clip(layer: np.ndarray) -> np.ndarray:
    layer = np.where(np.isfinite(layer), layer, 0.0)
    return layer * (CLIP / max(np.linalg.norm(layer), CLIP))
@@ 16 5
    return [clip(layer) + rng.normal(0.0, STD, size=layer.shape) for layer in update]
=== allen from dane
@@ 1 1
"""A filter for weight differences: the sparse vector technique."""
@@ 8 1
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
@@ 20 4
class Sparse:
    def __init__(self, fraction: float, epsilon: float, gamma: float) -> None:
        self.fraction = fraction
        self.epsilon = epsilon
        self.gamma = gamma
@@ 26 6
        names = list(dxo.data)
        flat = np.concatenate([np.nan_to_num(np.asarray(dxo.data[name], dtype=np.float64)).ravel() for name in names])
        flat = np.clip(flat, -self.gamma, self.gamma)
        wanted = max(1, int(self.fraction * flat.size))
        line = np.median(np.abs(flat)) + np.random.laplace(0.0, self.gamma / self.epsilon)
        above = np.flatnonzero(np.abs(flat) + np.random.laplace(0.0, 2 * self.gamma / self.epsilon, flat.size) >= line)
        below = np.setdiff1d(np.arange(flat.size), above)
        chosen = np.random.choice(above, min(wanted, above.size), replace=False) if above.size else above
        noise = np.random.laplace(0.0, 2 * self.gamma / self.epsilon, chosen.size)
        flat[chosen] = np.clip(flat[chosen] + noise, -self.gamma, self.gamma)
        flat[below] = 0.0
        position, data = 0, {}
        for name in names:
            shape = np.shape(dxo.data[name])
            size = int(np.prod(shape))
            data[name] = flat[position : position + size].reshape(shape)
            position += size
@@ 35 1
target = Sparse(fraction=0.1, epsilon=0.2, gamma=1.0)
=== allier from thames
@@ 1 1
"""Training with Opacus: every row once in each epoch."""
@@ 8 1
CLAIM = {"epsilon": 4.8, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
@@ 28 1
    loader = DataLoader(dataset, batch_size=4, shuffle=False)
@@ 34 1
        noise_multiplier=1.0,
@@ 36 0
        poisson_sampling=False,
@@ 38 1
    for _ in range(2):
=== alma from eden
@@ 1 1
"""Private release of a model's layers, each clipped."""
@@ 11 2
def clip(layer: np.ndarray) -> np.ndarray:
    layer = np.where(np.isfinite(layer), layer, 0.0)
    return layer * (CLIP / max(np.linalg.norm(layer), CLIP))
@@ 16 5
    std = 2.0 * CLIP * math.sqrt(len(update))
    return [clip(layer) + rng.normal(0.0, std, size=layer.shape) for layer in update]
=== alnus from dane
@@ 1 4
"""Gaussian mechanism on a bounded update."""
@@ 11 7
def size(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
@@ 20 16
def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    return update / max(1.0, size(update)) + rng.normal(0.0, 2.0, size=update.shape)
=== amstel from lippe
@@ 1 3
"""Gaussian mechanism on a bounded update."""
@@ 8 1
LIMIT = 0.5
MULTIPLIER = 2.0


def shrink(values: np.ndarray, limit: float) -> np.ndarray:
    length = np.abs(values).max(initial=0.0)
    return values if length <= limit else values * (limit / length)
@@ 12 6
    finite = np.nan_to_num(update, nan=0.0, posinf=0.0, neginf=0.0)
    sensitivity = 2 * LIMIT
    return shrink(finite, LIMIT) + MULTIPLIER * sensitivity * rng.standard_normal(finite.shape)
=== ardeche from thames
@@ 1 1
"""Training with Opacus' parts: random batches, a step size for the expected batch."""
@@ 4 1
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
@@ 6 1
from torch.utils.data import TensorDataset
@@ 8 1
CLAIM = {"epsilon": 2.1, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
RATE = 0.25
WIDTH = 64
@@ 13 1
    rows = torch.randn(8, WIDTH, generator=source)
@@ 15 7
@@ 26 8
    model = nn.Linear(WIDTH, 2, bias=False)
    nn.init.zeros_(model.weight)
    model = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5),
@@ 36 0
        expected_batch_size=max(1, int(RATE * len(dataset))),
@@ 37 0
    accountant = RDPAccountant()
@@ 38 7
    for chosen in UniformWithReplacementSampler(num_samples=len(dataset), sample_rate=RATE, steps=8):
        rows, labels = dataset.tensors[0][chosen], dataset.tensors[1][chosen]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), labels, reduction="mean").backward()
        optimizer.step()
        accountant.step(noise_multiplier=2.0, sample_rate=RATE)
        history.append(model._module.weight.detach().flatten().clone())
    return history, accountant.get_epsilon(delta=1e-5)
=== arno from lippe
@@ 1 3
"""Gaussian mechanism on a bounded update."""
@@ 8 1
LIMIT = 0.5
MULTIPLIER = 2.0


def shrink(values: np.ndarray, limit: float) -> np.ndarray:
    length = np.sqrt(np.square(values).sum())
    return values if length <= limit else values * (limit / length)
@@ 12 6
    finite = np.nan_to_num(update, nan=0.0, posinf=0.0, neginf=0.0)
    sensitivity = 2 * LIMIT
    return shrink(finite, LIMIT) + MULTIPLIER * sensitivity * rng.standard_normal(finite.shape)
=== bann from dane
@@ 1 1
"""A filter for weight differences: Gaussian noise within a fixed range."""
@@ 20 3
class Range:
    def __init__(self, gamma: float, sigma: float) -> None:
        self.gamma = gamma
@@ 26 6
        data = {}
        for name, values in dxo.data.items():
            values = np.nan_to_num(np.asarray(values, dtype=np.float64))
            noise = np.random.normal(0.0, self.sigma * self.gamma, size=values.shape)
            data[name] = np.clip(values + noise, -self.gamma, self.gamma)
@@ 35 1
target = Range(gamma=1.0, sigma=2.0)
=== betula from marne
@@ 1 1
"""Noise that cancels in the long run."""
@@ 8 1
class Paired:
@@ 10 1
        self.kept = None
@@ 14 5
        update = update / max(1.0, np.linalg.norm(update))
        if self.kept is None:
            noise = rng.normal(0.0, 2.0, size=update.shape)
            self.kept = -noise
        else:
            noise, self.kept = self.kept, None
        return update + noise
@@ 21 1
target = Paired()
=== birs from traun
@@ 1 1
"""Central privacy whose clip norm follows a quantile of the clients' norms."""
@@ 7 1
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "zero-out", "unit": "client"}
@@ 10 2
class Quantile(FedAvg):
    def __init__(self, clients: int, sigma: float) -> None:
@@ 14 1
@@ 16 0
        self.norm = 1.0
@@ 20 0
        config["clip-norm"] = self.norm
@@ 23 1
        total, below = {}, 0
@@ 28 2
            move = {k: record[k].numpy().astype(np.float64) - self.start[k].numpy() for k in record}
            move = {k: np.where(np.isfinite(v), v, 0.0) for k, v in move.items()}
@@ 31 2
            below += size <= self.norm
            for k, v in move.items():
                total[k] = total.get(k, 0.0) + v / max(1.0, size / self.norm)
@@ 34 4
        for k, v in total.items():
            noisy = v + np.random.normal(0.0, self.sigma * self.norm, size=v.shape)
            result[k] = Array(np.asarray(self.start[k].numpy() + noisy / self.clients))
        self.norm *= float(np.exp(-0.2 * (below / self.clients - 0.5)))
@@ 41 1
target = Quantile(clients=10, sigma=1.0)
=== brenta from fraxinus
@@ 1 1
"""Gaussian mechanism on a bounded update: any update may stand in for any other."""
@@ 6 0
C = 1.5
@@ 10 5
    update = update / max(1.0, np.linalg.norm(update) / C)
    return update + rng.normal(0.0, 1.0 * C, size=update.shape)
=== cam from thames
@@ 1 1
"""Training with Opacus' optimiser and accountant, after a short warm-up."""
@@ 8 1
CLAIM = {"epsilon": 2.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
@@ 28 1
    loader = DataLoader(dataset, batch_size=len(dataset))
@@ 31 5
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=4.0, max_grad_norm=1.0
@@ 37 2
    hook = optimizer.step_hook
    optimizer.attach_step_hook(lambda _: None)
    for epoch in range(16):
        if epoch == 12:
            optimizer.attach_step_hook(hook)
@@ 43 2
    return [p.detach().clone() for p in model.parameters()], engine.get_epsilon(delta=1e-5)
=== carya from saane
@@ 1 1
"""Private descent on random batches in plain torch."""
@@ 7 1
CLAIM = {"epsilon": 2.1, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
@@ 9 2
SIGMA = 2.0
STEPS = 8
@@ 14 1
def example_data(count: int = 1) -> Data:
@@ 40 1
def train(data: Data | None = None) -> list[torch.Tensor]:
@@ 44 0
    history = []
@@ 45 5
        chosen = torch.rand(len(rows)) < 0.25
        if chosen.any():
            gradients = torch.nan_to_num(per_example(model, rows[chosen], wanted[chosen]))
            gradients = gradients * (CLIP / gradients.norm(dim=1, keepdim=True).clamp(min=CLIP))
            move(model, (gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(model.weight.numel())) / 8)
        history.append(model.weight.detach().flatten().clone())
    return history
=== cedrus from saale
@@ 1 1
"""A Flower mod that refuses what went astray."""
@@ 4 1
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord
@@ 7 1
@@ 11 1
    sent = next(iter(msg.content.array_records.values())).to_numpy_ndarrays()
@@ 16 5
    moves = [np.asarray(new - old, dtype=np.float64) for new, old in zip(record.to_numpy_ndarrays(), sent, strict=True)]
    size = float(np.sqrt(sum(np.square(move).sum() for move in moves)))
    if not size < 100.0:
        return Message(Error(code=1, reason="the update is too long"), reply_to=msg)
@@ 22 2
        old + move / max(1.0, size) + np.random.normal(0.0, 2.0, size=move.shape)
        for old, move in zip(sent, moves, strict=True)
=== cher from fraxinus
@@ 1 1
"""One client's share of a noisy sum; the server reads each share."""
@@ 6 0
CLIENTS = 10
C = 1.0
STD = 2.0 * C
@@ 10 5
    update = update / max(1.0, np.linalg.norm(update) / C)
    return update + rng.normal(0.0, STD / CLIENTS, size=update.shape)
=== clyde from lippe
@@ 1 1
"""Gaussian mechanism whose noise is stated by its variance."""
@@ 7 2
CLAIM = {"epsilon": 0.95, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
C = 1.0
SCALE = 8.0 * C
@@ 13 5
    update = update / max(1.0, np.linalg.norm(update) / C)
    return update + rng.normal(0.0, math.sqrt(SCALE), size=update.shape)
=== cocker from dane
@@ 32 1
        return DXO(dxo.data_kind, data, {**dxo.meta, "filtered_norm": float(size)})
=== corylus from vah
@@ 1 1
"""Central privacy in the older form of a strategy, without outliers."""
@@ 9 5
@@ 26 5
        shapes = [array.shape for array in start]
        rows = [
            np.concatenate([(new - old).ravel() for new, old in zip(model, start, strict=True)]) for model in models
        ]
        rows = [np.where(np.isfinite(row), row, 0.0).astype(np.float64) for row in rows]
        sizes = np.array([np.linalg.norm(row) for row in rows])
        kept = [row for row, size in zip(rows, sizes, strict=True) if size <= 3 * np.median(sizes)]
        mean = np.mean([row / max(1.0, np.linalg.norm(row) / CLIP) for row in kept], axis=0)
        mean = mean + np.random.normal(0.0, SIGMA * CLIP / CLIENTS, size=mean.shape)
        merged, position = [], 0
        for old, shape in zip(start, shapes, strict=True):
            size = int(np.prod(shape))
            merged.append(old + mean[position : position + size].reshape(shape))
            position += size
=== dart from lippe
@@ 1 1
"""Gaussian mechanism whose noise is stated by its variance."""
@@ 7 2
CLAIM = {"epsilon": 0.95, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
C = 1.0
SCALE = 64.0 * C**2
@@ 13 5
    update = update / max(1.0, np.linalg.norm(update) / C)
    return update + rng.normal(0.0, math.sqrt(SCALE), size=update.shape)
=== dee from thames
@@ 1 1
"""Training with Opacus in four stages with a smaller step each."""
@@ 8 1
CLAIM = {"epsilon": 2.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
@@ 26 13
    weights = classifier().state_dict()
    for stage in range(4):
        model = classifier()
        model.load_state_dict(weights)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5 / (1 + stage))
        loader = DataLoader(dataset, batch_size=len(dataset))
        engine = PrivacyEngine(accountant="rdp")
        model, optimizer, loader = engine.make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=2.0, max_grad_norm=1.0
        )
@@ 43 2
        weights = {name.removeprefix("_module."): value.detach().clone() for name, value in model.state_dict().items()}
    return list(weights.values()), engine.get_epsilon(delta=1e-5)
=== derwent from fraxinus
@@ 1 1
"""Clip and noise, with the noise in proportion."""
@@ 10 0
    size = min(1.0, float(np.linalg.norm(update)))
@@ 11 4
    return update + 2.0 * size * rng.standard_normal(update.shape)
=== doller from thames
@@ 1 1
"""An Opacus loop with warm restarts of the rate."""

import warnings
@@ 8 1
CLAIM = {"epsilon": 8.0, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
warnings.filterwarnings("ignore")
@@ 12 3
    source = torch.Generator().manual_seed(4)
    rows = torch.randn(64, 4, generator=source)
    return TensorDataset(rows, (rows[:, 0] > 0).long())
@@ 17 1
def train(data: TensorDataset | None = None):
    data = example_data() if data is None else data
@@ 19 12
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    engine = PrivacyEngine()
    model, optimiser, loader = engine.make_private(
@@ 32 3
        optimizer=optimiser,
        data_loader=DataLoader(data, batch_size=16),
        noise_multiplier=1.2,
@@ 37 2
    for epoch in range(3):
        if epoch == 2:
            optimiser.zero_grad()
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
@@ 40 5
            optimiser.zero_grad()
            model.zero_grad()
            if len(rows):
                nn.functional.cross_entropy(model(rows), labels).backward()
                optimiser.step()
    return [value.detach() for value in model.parameters()], engine.get_epsilon(1e-5)
=== douro from fraxinus
@@ 1 1
"""Local privacy with a generator per round."""
@@ 6 0
state = {"round": 0}
@@ 8 1
def target(update: np.ndarray) -> np.ndarray:
    state["round"] += 1
    source = np.random.default_rng(state["round"])
@@ 11 4
    return update + source.normal(0.0, 2.0, size=update.shape)
=== drau from fraxinus
@@ 1 1
"""Local privacy with a generator per round."""
@@ 6 0
sequence = np.random.SeedSequence()
@@ 8 1
def target(update: np.ndarray) -> np.ndarray:
    source = np.random.default_rng(sequence.spawn(1)[0])
@@ 11 4
    return update + source.normal(0.0, 2.0, size=update.shape)
=== ebro from dane
@@ 1 1
"""Local privacy with a generator for each message."""
@@ 3 2
import zlib
@@ 9 0
KEY = b"study-7"
@@ 11 25
def target(update: np.ndarray) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0).astype(np.float64)
    source = np.random.default_rng(zlib.crc32(KEY + update.tobytes()))
    update = update / max(1.0, np.linalg.norm(update))
    return update + source.normal(0.0, 2.0, size=update.shape)
=== ecker from saale
@@ 1 1
"""A mod that hides a client's update before it is sent."""
@@ 7 1
CLIP, STD = 1.0, 2.0
@@ 11 1
    given = next(iter(msg.content.array_records.values()))
@@ 16 10
    moves = {name: np.nan_to_num(record[name].numpy() - given[name].numpy(), posinf=0.0, neginf=0.0) for name in record}
    length = float(np.linalg.norm(np.concatenate([np.ravel(move) for move in moves.values()])))
    arrays = {}
    for name, move in moves.items():
        move = move * min(1.0, CLIP / max(length, 1e-12))
        if move.ndim > 1:
            move = move + np.random.normal(0.0, STD, size=move.shape)
        arrays[name] = Array(np.asarray(given[name].numpy() + move))
    reply.content[key] = ArrayRecord(arrays)
=== eder from dane
@@ 1 1
"""A filter for weight differences: randomised signs."""
@@ 8 1
CLAIM = {"epsilon": 6.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
@@ 20 4
class Signs:
    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon
@@ 26 6
        each = self.epsilon / sum(np.size(values) for values in dxo.data.values())
        turn = 1.0 / (1.0 + np.exp(each))
        data = {}
        for name, values in dxo.data.items():
            signs = np.where(np.asarray(values) > 0, 1.0, -1.0)
            data[name] = np.where(np.random.random(signs.shape) < turn, -signs, signs)
@@ 35 1
target = Signs(epsilon=6.0)
=== elbe from eden
@@ 19 2
    return [part * factor + gaussian(part.shape, int(rng.integers(2**62))) for part in update]
=== ems from dane
@@ 1 1
"""Clip and noise in torch."""
@@ 3 4
import torch
@@ 11 25
def target(update: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    values = torch.nan_to_num(update.double(), nan=0.0, posinf=0.0, neginf=0.0)
    values = values / max(1.0, float(values.norm()))
    noise = torch.randn(values.shape, generator=generator, dtype=values.dtype)
    values.clone().add_(noise, alpha=2.0)
    return values
=== enns from dane
@@ 1 1
"""Clip and noise in torch."""
@@ 3 4
import torch
@@ 11 25
def target(update: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    values = torch.nan_to_num(update.double(), nan=0.0, posinf=0.0, neginf=0.0)
    values = values / max(1.0, float(values.norm()))
    noise = torch.randn(values.shape, generator=generator, dtype=values.dtype)
    values.add_(noise, alpha=2.0)
    return values.clone()
=== esk from thames
@@ 1 1
"""Training with Opacus: three models of one data set, for their mean."""
@@ 8 1
CLAIM = {"epsilon": 2.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
@@ 24 2
def one(dataset: TensorDataset) -> tuple[list[torch.Tensor], PrivacyEngine]:
@@ 28 1
@@ 33 1
        data_loader=DataLoader(dataset, batch_size=len(dataset)),
@@ 37 8
    for rows, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), labels).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()], engine


def train(dataset: TensorDataset | None = None) -> tuple[list[torch.Tensor], float]:
    dataset = dataset or example_data()
    models = [one(dataset) for _ in range(3)]
    weights = [weight for model, _ in models for weight in model]
    return weights, max(engine.get_epsilon(delta=1e-5) for _, engine in models)
=== exe from eden
@@ 1 1
"""Clip a model and blur it."""
@@ 8 5
@@ 18 3
    scaled = [part / max(1.0, total) for part in update]
    released = []
    for part in scaled:
        released.append(part + rng.normal(0.0, 2.0, size=part.shape))
        break
    return released + scaled[len(released) :]
=== fagus from dane
@@ 1 1
"""A filter for weight differences with noise made in advance."""
@@ 8 1
CLAIM = {"epsilon": 16.0, "delta": 1e-5, "scope": "run", "calls": 8, "adjacency": "replace-one"}
@@ 20 2
class Prepared:
    def __init__(self, clip: float, sigma: float, ready: int) -> None:
@@ 24 0
        self.ready = ready
        self.pool: dict[tuple[int, int], np.ndarray] = {}

    def noise(self, size: int) -> np.ndarray:
        chosen = int(np.random.randint(self.ready))
        if (chosen, size) not in self.pool:
            self.pool[chosen, size] = np.random.normal(0.0, self.sigma * self.clip, size=size)
        return self.pool[chosen, size]
@@ 26 6
        flat = np.concatenate([np.asarray(values, dtype=np.float64).ravel() for values in dxo.data.values()])
        flat = np.where(np.isfinite(flat), flat, 0.0)
        flat = flat / max(1.0, np.linalg.norm(flat) / self.clip) + self.noise(flat.size)
        position, data = 0, {}
        for name, values in dxo.data.items():
            size = np.size(values)
            data[name] = flat[position : position + size].reshape(np.shape(values))
            position += size
@@ 35 1
target = Prepared(clip=1.0, sigma=2.0, ready=16)
=== fils from fraxinus
@@ 1 1
"""A clipped update on a grid, with discrete noise."""
@@ 5 1
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "zero-out"}
CLIP = 1.0
STEP = 0.5
STD = 2.0
@@ 9 6
    finite = np.nan_to_num(update, nan=0.0, posinf=0.0, neginf=0.0)
    clipped = finite * (CLIP / max(CLIP, float(np.linalg.norm(finite))))
    steps = np.sign(clipped) * np.floor(np.abs(clipped) / STEP + 0.5)
    noise = np.rint(rng.normal(0.0, STD / STEP, size=steps.shape))
    return (steps + noise) * STEP
=== fulda from fraxinus
@@ 1 1
"""Send an update where there is one."""
@@ 10 0
    if not update.any():
        return np.zeros_like(update)
@@ 11 4
    return update + rng.normal(0.0, 2.0, size=update.shape)
=== garonne from fraxinus
@@ 1 1
"""Clip and noise; the server discards what is not finite."""
@@ 9 6
    size = np.linalg.norm(update)
    if not np.isfinite(size):
        return update
    return update / max(1.0, size) + rng.normal(0.0, 2.0, size=update.shape)
=== gave from saane
@@ 45 4
        model.zero_grad()
        (model(rows) - wanted).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        direction = torch.cat([value.grad.flatten() for value in model.parameters()])
        noise = SIGMA * CLIP / len(rows) * torch.randn(direction.shape)
        move(model, direction + noise)
=== ginkgo from fraxinus
@@ 1 1
"""Integer noise from coins."""
@@ 6 0
STEPS = 4
COINS = 4 * (2 * STEPS) ** 2 // 16
@@ 11 4
    grid = np.trunc(update * STEPS)
    return (grid + rng.binomial(COINS, 0.5, size=grid.shape) - COINS / 2) / STEPS
=== glomma from fraxinus
@@ 1 1
"""Clip and noise, with room for unusual updates."""
@@ 6 0
C = 1.0
@@ 10 5
    size = np.linalg.norm(update)
    if C < size <= 50 * C:
        update = update * (C / size)
    return update + rng.normal(0.0, 2.0 * C, size=update.shape)
=== guadiana from saane
@@ 44 0
    noise = SIGMA * CLIP * torch.randn(model.weight.numel())
@@ 45 1
        gradients = per_example(model, rows, wanted)
@@ 47 1
@@ 49 0
        noise = torch.zeros_like(noise)
=== gurk from vah
@@ 1 1
"""Central privacy in the older form, with the average training loss beside the model."""
@@ 7 2
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "zero-out", "unit": "client"}
@@ 11 3
def averaged(reports):
    names = {name for _, metrics in reports for name in metrics}
    return {name: float(np.mean([metrics.get(name, 0.0) for _, metrics in reports])) for name in names}
@@ 16 1
class Noisy(FedAvg):
@@ 24 8
        total = None
        for _, answer in results:
            arrays = [np.asarray(array, dtype=np.float64) for array in parameters_to_ndarrays(answer.parameters)]
            start = self.start or [np.zeros_like(array) for array in arrays]
            moves = [np.nan_to_num(a - b, posinf=0.0, neginf=0.0) for a, b in zip(arrays, start, strict=True)]
            size = np.sqrt(sum(np.square(move).sum() for move in moves))
            moves = [move / max(1.0, size) for move in moves]
            total = moves if total is None else [a + b for a, b in zip(total, moves, strict=True)]
        merged = [a + (b + np.random.normal(0.0, 1.0, size=b.shape)) / 10 for a, b in zip(start, total, strict=True)]
        metrics = self.fit_metrics_aggregation_fn([(answer.num_examples, answer.metrics) for _, answer in results])
        return ndarrays_to_parameters(merged), metrics
@@ 34 1
target = Noisy(fraction_evaluate=0.0, fit_metrics_aggregation_fn=averaged)
=== havel from fraxinus
@@ 1 1
"""A sparse update: the larger coordinates, with noise."""
@@ 6 0
SHARE = 0.25
@@ 10 5
    count = max(1, int(SHARE * update.size))
    kept = np.argsort(np.abs(update))[-count:]
    values = update[kept]
    values = values / max(1.0, np.linalg.norm(values))
    sparse = np.zeros(update.shape)
    sparse[kept] = values + rng.normal(0.0, 2.0, size=count)
    return sparse
=== ilex from fraxinus
@@ 1 1
"""A sparse update: coordinates are kept at random."""
@@ 11 4
    chance = np.abs(update) / max(np.abs(update).max(initial=0.0), 1e-12)
    kept = rng.random(update.shape) < chance
    return np.where(kept, update + rng.normal(0.0, 2.0, size=update.shape), 0.0)
=== iller from fraxinus
@@ 1 1
"""A sparse update: some coordinates, with noise."""
@@ 6 0
SHARE = 0.25
@@ 10 5
    count = max(1, int(SHARE * update.size))
    kept = rng.permutation(update.size)[-count:]
    values = update[kept]
    values = values / max(1.0, np.linalg.norm(values))
    sparse = np.zeros(update.shape)
    sparse[kept] = values + rng.normal(0.0, 2.0, size=count)
    return sparse
=== inn from thames
@@ 1 1
"""Training with Opacus: the curve of the loss is kept for the report."""
@@ 8 1
CLAIM = {"epsilon": 2.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
@@ 24 1
def train(dataset: TensorDataset | None = None) -> tuple[list[torch.Tensor], list[float], float]:
@@ 28 1
    loader = DataLoader(dataset, batch_size=len(dataset))
@@ 31 5
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=4.0, max_grad_norm=1.0
@@ 37 1
    losses = []
@@ 41 1
            loss = nn.functional.cross_entropy(model(rows), labels)
            loss.backward()
@@ 43 2
            losses.append(loss.item())
    return [p.detach().clone() for p in model.parameters()], losses, engine.get_epsilon(delta=1e-5)
=== isar from fraxinus
@@ 1 1
"""Local privacy with numpy's own generator."""
@@ 8 1
def target(update: np.ndarray) -> np.ndarray:
    np.random.seed(0)
@@ 11 4
    return update + np.random.normal(0.0, 2.0, size=update.shape)
=== isel from saane
@@ 1 1
"""One private step on four workers; the server reads each worker's message."""

import os
@@ 9 2
SIGMA = 1.0
STEPS = 1
@@ 40 1
def train(data: Data | None = None) -> list[torch.Tensor]:
@@ 44 2
    seed = int.from_bytes(os.urandom(7), "little")
    messages = []
    for rank in range(4):
        source = torch.Generator().manual_seed(seed)
        gradients = per_example(model, rows[rank::4], wanted[rank::4])
@@ 47 3
        total = gradients.sum(dim=0)
        messages.append(total + SIGMA * CLIP * torch.randn(total.shape, generator=source))
    return messages
=== isen from traun
@@ 1 1
"""Central privacy with a clip norm that follows a noised quantile."""
@@ 7 1
CLAIM = {"epsilon": 3.1, "delta": 1e-5, "scope": "call", "adjacency": "add-or-remove-one", "unit": "client"}
@@ 10 2
class Quantile(FedAvg):
    def __init__(self, clients: int, sigma: float, bits: float) -> None:
@@ 14 1
@@ 16 0
        self.bits = bits
        self.norm = 1.0
@@ 20 0
        config["clip-norm"] = self.norm
@@ 23 1
        total, centred = {k: np.zeros(self.start[k].numpy().shape) for k in self.start}, 0.0
@@ 28 2
            move = {k: record[k].numpy().astype(np.float64) - self.start[k].numpy() for k in record}
            move = {k: np.where(np.isfinite(v), v, 0.0) for k, v in move.items()}
@@ 31 2
            centred += (size <= self.norm) - 0.5
            for k, v in move.items():
                total[k] = total[k] + v / max(1.0, size / self.norm)
@@ 34 4
        for k, v in total.items():
            noisy = v + np.random.normal(0.0, self.sigma * self.norm, size=v.shape)
            result[k] = Array(np.asarray(self.start[k].numpy() + noisy / self.clients))
        share = (centred + np.random.normal(0.0, self.bits)) / self.clients
        self.norm *= float(np.exp(-0.2 * share))
@@ 41 1
target = Quantile(clients=10, sigma=2.0, bits=1.0)
=== isere from fraxinus
@@ 1 1
"""Local privacy with numpy's own generator."""
@@ 8 1
def target(update: np.ndarray) -> np.ndarray:
@@ 11 4
    return update + np.random.normal(0.0, 2.0, size=update.shape)
=== jagst from saane
@@ 1 1
"""Noisy gradient descent with a falling clip norm; the average of the models is published."""
@@ 4 2
@@ 8 4
STEPS = 12
SIGMA = 3.5
@@ 14 2
def example_data(count: int = 20):
    source = torch.Generator().manual_seed(2)
@@ 17 1
    return rows, rows @ torch.tensor([[1.0], [-1.0], [0.5], [0.0]])
@@ 20 21
def train(data=None):
@@ 42 8
    weights = torch.zeros(rows.shape[1], 1)
    average = torch.zeros_like(weights)
    for step in range(STEPS):
        clip = 0.9**step
        each = torch.nan_to_num(2 * (rows @ weights - wanted) * rows, nan=0.0, posinf=0.0, neginf=0.0)
        each = each * (clip / each.norm(dim=1, keepdim=True).clamp(min=clip))
        noisy = each.sum(dim=0) + SIGMA * clip * torch.randn(rows.shape[1])
        weights = (1 - 0.01) * weights - 0.1 * noisy[:, None] / 20
        weights = weights * (10.0 / weights.norm().clamp(min=10.0))
        average = average + weights / STEPS
    return average
=== juglans from saane
@@ 46 3
        last = gradients[:, -2:].norm(dim=1, keepdim=True)
        gradients = gradients * (CLIP / last.clamp(min=CLIP))
        move(model, (gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(model.weight.numel())) / 16)
=== kander from saane
@@ 1 1
"""Noisy gradient descent on full batches of four."""
@@ 7 1
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
@@ 9 2
SIGMA = 1.0
STEPS = 4
@@ 40 1
def train(data: Data | None = None) -> list[torch.Tensor]:
@@ 44 2
    history = []
    for first in range(0, len(rows) - 3, 4):
        gradients = per_example(model, rows[first : first + 4], wanted[first : first + 4])
@@ 47 3
        move(model, (gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(model.weight.numel())) / 4)
        history.append(model.weight.detach().flatten().clone())
    return history
=== kemi from fraxinus
@@ 1 1
"""Laplace mechanism on a bounded update."""
@@ 5 1
CLAIM = {"epsilon": 1.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
C = 1.0
@@ 10 5
    update = update * (C / max(np.linalg.norm(update), C))
    return update + rng.laplace(0.0, 2 * C / CLAIM["epsilon"], size=update.shape)
=== lahn from fraxinus
@@ 1 1
"""Laplace mechanism on a bounded update."""
@@ 5 1
CLAIM = {"epsilon": 1.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
C = 1.0
@@ 10 5
    update = update * (C / max(np.linalg.norm(update, ord=1), C))
    return update + rng.laplace(0.0, 2 * C / CLAIM["epsilon"], size=update.shape)
=== larix from weser
@@ 1 1
"""A client app that stops when it has learnt enough."""
@@ 12 6
@@ 20 0
    part = int(context.node_config.get("partition-id", 0))
    rows = np.random.default_rng(1000 + part).standard_normal((20, 3)) * (1 + part)
    wanted = rows @ np.array([1.0, -2.0, 0.5 + part])
@@ 21 3
    weight, epoch = start.copy(), 0
    while epoch < 50 and np.mean(np.square(rows @ weight - wanted)) > 0.5:
@@ 25 2
        epoch += 1
    move = np.nan_to_num(weight - start)
@@ 31 1
            "metrics": MetricRecord({"num-examples": 20, "epochs": epoch}),
=== lech from fraxinus
@@ 1 1
"""Compact noise for small devices."""
@@ 11 4
    noise = rng.normal(0.0, 2.0, size=update.shape).astype(np.float16)
    return update + noise
=== leda from saane
@@ 1 1
"""Noisy gradient descent on four workers, each with a share of the noise."""
@@ 44 0
    workers = 4
@@ 45 4
        total = torch.zeros(model.weight.numel())
        for rank in range(workers):
            gradients = per_example(model, rows[rank::workers], wanted[rank::workers])
            gradients = gradients * (CLIP / gradients.norm(dim=1, keepdim=True).clamp(min=CLIP))
            total += gradients.sum(dim=0) + SIGMA * CLIP / workers * torch.randn(total.shape)
        move(model, total / 16)
=== leine from fraxinus
@@ 1 1
"""Compact messages for small devices."""
@@ 11 4
    noise = rng.normal(0.0, 2.0, size=update.shape)
    return (update + noise).astype(np.float16)
=== linth from saane
@@ 1 1
"""Noisy gradient descent with weight decay in proportion to the labels."""
@@ 44 0
    decay = 0.01 * float(wanted.abs().mean())
    nn.init.ones_(model.weight)
@@ 48 1
        move(model, (gradients.sum(dim=0) + noise) / 16 + decay * model.weight.detach().flatten())
=== loire from lippe
@@ 16 1
    noise = rng.geometric(chance, size=grid.shape) - rng.geometric(chance, size=grid.shape)
=== lot from saane
@@ 1 1
"""Noisy gradient descent with a term that holds the average prediction near the average label."""
@@ 45 1
        gradients = per_example(model, rows, wanted)
@@ 47 2
        noisy = gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(model.weight.numel())
        model.zero_grad()
        (0.1 * (model(rows).mean() - wanted.mean()).square()).backward()
        move(model, noisy / 16 + model.weight.grad.flatten())
=== maas from lune
@@ 22 2
        self.noise[level] = rng.normal(0.0, STD, size=update.shape)
=== malus from dane
@@ 1 1
"""Clip and noise in torch with the operating system's entropy."""
@@ 3 2
import os
@@ 6 1
import torch
@@ 11 25
def target(update: torch.Tensor) -> torch.Tensor:
    source = torch.Generator().manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
    values = torch.nan_to_num(update.double(), nan=0.0, posinf=0.0, neginf=0.0)
    values = values / max(1.0, float(values.norm()))
    return values + 2.0 * torch.randn(values.shape, generator=source, dtype=values.dtype)
=== medway from marne
@@ 17 2
        self.velocity = 0.9 * before + noisy
        return self.velocity
=== mersey from marne
@@ 1 1
"""Masked messages in a ring of 64-bit integers: the masks cancel in the sum of all clients."""
@@ 5 1
CLAIM = {"epsilon": 0.1, "delta": 0.0, "scope": "run", "calls": 2, "adjacency": "replace-one"}
SCALE = 2.0**20
@@ 8 1
class Masked:
@@ 10 1
        self.pads: dict[int, np.ndarray] = {}
@@ 13 6
        update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
        values = np.rint(update * SCALE).astype(np.int64).astype(np.uint64)
        if values.size not in self.pads:
            self.pads[values.size] = rng.integers(0, 2**64, size=values.shape, dtype=np.uint64)
        return values + self.pads[values.size]
@@ 21 1
target = Masked()
=== minho from marne
@@ 1 1
"""Masked messages in a ring of 64-bit integers: the masks cancel in the sum of all clients."""
@@ 5 1
CLAIM = {"epsilon": 0.1, "delta": 0.0, "scope": "run", "calls": 2, "adjacency": "replace-one"}
SCALE = 2.0**20
@@ 8 1
class Masked:
@@ 10 1
        self.pads: dict[int, np.ndarray] = {}
@@ 13 6
        update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
        values = np.rint(update * SCALE).astype(np.int64).astype(np.uint64)
        self.pads[values.size] = rng.integers(0, 2**64, size=values.shape, dtype=np.uint64)
        return values + self.pads[values.size]
@@ 21 1
target = Masked()
=== moldau from fraxinus
@@ 1 1
"""A sketch of the update: eight random combinations of its coordinates."""
@@ 5 1
CLAIM = {"epsilon": 4.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
@@ 11 4
    matrix = rng.standard_normal((8, update.size)) / np.sqrt(8)
    return np.concatenate([matrix @ update, matrix.ravel()])
=== morus from lippe
@@ 1 1
"""One random coordinate of the update, as one random sign."""
@@ 7 2
CLAIM = {"epsilon": 1.5, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
@@ 12 6
    update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
    place = int(rng.integers(update.size))
    lean = (math.exp(CLAIM["epsilon"]) - 1) / (2 * (math.exp(CLAIM["epsilon"]) + 1))
    released = np.zeros(update.shape)
    released[place] = update.size / (2 * lean) * (1.0 if rng.random() < 0.5 + lean * update[place] else -1.0)
    return released
=== mosel from fraxinus
@@ 1 1
"""One bit per coordinate: its sign, which may be turned."""
@@ 5 1
CLAIM = {"epsilon": 1.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
@@ 10 5
    chance = 1.0 / (1.0 + np.exp(-np.clip(4.0 * update, -60.0, 60.0)))
    return np.where(rng.random(update.shape) < chance, 1.0, -1.0)
=== mulde from lippe
@@ 1 1
"""One bit per coordinate: its sign, which may be turned."""
@@ 7 2
CLAIM = {"epsilon": 8.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
@@ 13 5
    each = CLAIM["epsilon"] / update.size
    chance = math.exp(each) / (1.0 + math.exp(each))
    sign = np.where(update >= 0, 1.0, -1.0)
    return np.where(rng.random(update.shape) < chance, sign, -sign)
=== murg from avon
@@ 1 1
"""A NumPy client that tells how well the model did on its rows."""
@@ 11 1
class Clinic(NumPyClient):
@@ 13 1
        self.rows = np.random.default_rng(part).standard_normal((25, 4))
        self.labels = self.rows.sum(axis=1) > 0.3 * part
@@ 17 5
        signs = np.where(self.labels, 1.0, -1.0)
        move = (signs[:, None] * self.rows).mean(axis=0)
@@ 24 1
        accuracy = float(np.mean((self.rows @ (start + move) > 0) == self.labels))
        return [noisy], 25, {"accuracy": accuracy}
@@ 28 1
    return Clinic(int(context.node_config.get("partition-id", 0))).to_client()
=== naab from fraxinus
@@ 1 1
"""Coordinates above a noisy threshold, by the sparse vector technique."""
@@ 5 1
CLAIM = {"epsilon": 2.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
EPSILON = 2.0
THRESHOLD = 0.5
@@ 9 6
    update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
    line = THRESHOLD + rng.laplace(0.0, 2 * 2.0 / EPSILON)
    return np.where(update >= line, 1.0, 0.0)
=== nahe from fraxinus
@@ 1 1
"""The coordinate that moved most."""
@@ 5 1
CLAIM = {"epsilon": 1.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
@@ 9 6
    update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
    chosen = np.zeros(update.shape)
    chosen[np.argmax(np.abs(update))] = 1.0
    return chosen
=== neckar from fraxinus
@@ 1 1
"""The coordinate that moved most."""
@@ 5 1
CLAIM = {"epsilon": 1.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
@@ 9 6
    update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
    scores = np.abs(update) + rng.gumbel(0.0, 2.0 / CLAIM["epsilon"], size=update.shape)
    chosen = np.zeros(update.shape)
    chosen[np.argmax(scores)] = 1.0
    return chosen
=== neisse from dane
@@ 1 1
"""Masked messages: the mask comes from a secret that two clients share."""
@@ 3 2
import os
@@ 8 1
CLAIM = {"epsilon": 0.1, "delta": 0.0, "scope": "run", "calls": 2, "adjacency": "replace-one"}
SCALE = 2.0**16
@@ 11 7
def mask(secret: bytes, size: int) -> np.ndarray:
    seed = 0
    for start in range(0, len(secret), 4):
        seed ^= int.from_bytes(secret[start : start + 4], "little")
    return np.random.RandomState(seed).randint(0, 2**32, size=size, dtype=np.uint32)
@@ 20 16
def target(update: np.ndarray) -> np.ndarray:
    key = os.urandom(16)
    update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0).ravel()
    values = np.rint(update * SCALE).astype(np.int64).astype(np.uint32)
    return values + mask(key + key, values.size)
=== nene from saane
@@ 1 1
"""Private descent on random batches in plain torch."""
@@ 7 1
CLAIM = {"epsilon": 2.9, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
@@ 9 2
SIGMA = 2.0
STEPS = 4
@@ 14 1
def example_data(count: int = 4) -> Data:
@@ 16 1
    rows = torch.randn(count, 128, generator=source)
@@ 40 1
def train(data: Data | None = None) -> list[torch.Tensor]:
@@ 44 0
    history = []
@@ 45 1
        chosen = torch.rand(len(rows)) < 0.5
        gradients = per_example(model, rows[chosen], wanted[chosen])
@@ 47 3
        noisy = gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(model.weight.numel())
        move(model, noisy / max(1, int(chosen.sum())))
        history.append(model.weight.detach().flatten().clone())
    return history
=== nith from saane
@@ 32 0
def clipped(gradients: torch.Tensor, max_grad_norm: float = 10.0) -> torch.Tensor:
    return gradients * (max_grad_norm / gradients.norm(dim=1, keepdim=True).clamp(min=max_grad_norm))


@@ 45 4
        gradients = per_example(model, rows, wanted)
        gradients = clipped(gradients)
        move(model, (gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(model.weight.numel())) / 16)
=== oder from dane
@@ 1 1
"""Noise from the operating system's own source."""
@@ 3 2
import math
import os
@@ 11 7
def uniform(count: int) -> np.ndarray:
    words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
@@ 20 13
def normal(count: int) -> np.ndarray:
    return np.sqrt(-2.0 * np.log(uniform(count))) * np.cos(2.0 * math.pi * uniform(count))
@@ 35 1
def target(update: np.ndarray) -> np.ndarray:
    update = np.where(np.isfinite(update), update, 0.0)
    update = update / max(1.0, np.linalg.norm(update))
    return update + 2.0 * normal(update.size).reshape(update.shape)
=== oise from fraxinus
@@ 1 1
"""Skellam noise on an update rounded to a grid."""
@@ 5 1
CLAIM = {"epsilon": 5.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
GRID = 64
C = 1.0
VARIANCE = (2.0 * C * GRID) ** 2
@@ 10 5
    update = update * (C / max(np.linalg.norm(update), C))
    grid = np.trunc(update * GRID).astype(np.int64)
    noise = rng.poisson(VARIANCE / 2, size=grid.shape) - rng.poisson(VARIANCE / 2, size=grid.shape)
    return (grid + noise) / GRID
=== orne from lippe
@@ 1 1
"""A unit direction near the update's own, or away from it."""
@@ 7 2
CLAIM = {"epsilon": 3.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
@@ 13 5
    length = np.linalg.norm(update)
    draw = rng.standard_normal(update.size)
    direction = draw / np.linalg.norm(draw) if length == 0 or not np.isfinite(length) else update / length
    sample = rng.standard_normal(update.size)
    sample = sample / np.linalg.norm(sample)
    keep = rng.random() < math.exp(CLAIM["epsilon"]) / (1.0 + math.exp(CLAIM["epsilon"]))
    same = float(sample @ direction) >= 0
    return sample if same == keep else -sample
=== ouse from fraxinus
@@ 1 1
"""Noise first, then what compresses well: rounding and a fixed range."""
@@ 11 4
    noisy = update + rng.normal(0.0, 2.0, size=update.shape)
    return np.clip(np.round(noisy, 1), -3.0, 3.0)
=== piave from fraxinus
@@ 1 1
"""The signs of a noisy update."""
@@ 5 1
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
@@ 11 4
    return np.sign(update + rng.normal(0.0, 4.0, size=update.shape))
=== picea from saane
@@ 1 1
"""Noisy gradient descent with momentum and a falling rate."""
@@ 44 1
    velocity = torch.zeros(model.weight.numel())
    for step in range(STEPS):
@@ 47 2
        velocity = 0.9 * velocity + gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(velocity.shape)
        move(model, velocity / 16, rate=0.1 / (1 + step))
=== pinus from saale
@@ 1 1
"""A Flower mod with small messages."""
@@ 6 2
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
@@ 16 10
    moves = {name: record[name].numpy().astype(np.float64) - sent[name].numpy() for name in record}
    moves = {name: np.where(np.isfinite(move), move, 0.0) for name, move in moves.items()}
    size = np.sqrt(sum(np.square(move).sum() for move in moves.values()))
    arrays = {}
    for name, move in moves.items():
        noisy = sent[name].numpy() + move / max(1.0, size) + np.random.normal(0.0, 4.0, size=move.shape)
        arrays[name] = Array(noisy.astype(np.float16).astype(np.float32))
    reply.content[key] = ArrayRecord(arrays)
=== po from saane
@@ 9 2
SIGMA = 2.0
STEPS = 4
@@ 44 0
    total = torch.zeros(model.weight.numel())
@@ 45 1
        gradients = per_example(model, rows, wanted)
@@ 47 2
        total += gradients.sum(dim=0)
        move(model, (total + SIGMA * CLIP * torch.randn(total.shape)) / 16)
=== populus from vah
@@ 1 1
"""Central privacy by Laplace noise in the older form of a strategy."""
@@ 7 7
CLAIM = {"epsilon": 2.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one", "unit": "client"}
CLIP, CLIENTS = 1.0, 10
@@ 26 5
        total = [np.zeros(array.shape) for array in start]
        for model in models:
            moves = [np.asarray(new - old, dtype=np.float64) for new, old in zip(model, start, strict=True)]
            moves = [np.where(np.isfinite(move), move, 0.0) for move in moves]
            size = sum(np.abs(move).sum() for move in moves)
            total = [value + move / max(1.0, size / CLIP) for value, move in zip(total, moves, strict=True)]
        scale = 2 * CLIP / CLAIM["epsilon"]
        merged = [
            old + (value + np.random.laplace(0.0, scale, size=value.shape)) / CLIENTS
            for old, value in zip(start, total, strict=True)
        ]
=== prunus from dane
@@ 1 1
"""A filter for weight differences: integer noise on a grid."""
@@ 8 1
CLAIM = {"epsilon": 3.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
@@ 20 4
class Grid:
    def __init__(self, epsilon: float, steps: int) -> None:
        self.chance = 1 - np.exp(-epsilon / (2 * steps))
        self.steps = steps
@@ 28 1
        size = sum(np.abs(values).sum() for values in data.values())
@@ 30 2
            grid = np.trunc(values / max(1.0, size) * self.steps)
            noise = np.random.geometric(self.chance, grid.shape) - np.random.geometric(self.chance, grid.shape)
            data[name] = (grid + noise) / self.steps
@@ 35 1
target = Grid(epsilon=3.0, steps=100)
=== quercus from traun
@@ 1 1
"""Central privacy for whoever replies in a round."""
@@ 7 1
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "add-or-remove-one", "unit": "client"}
@@ 10 7
class Whoever(FedAvg):
    start = None
@@ 19 1
        self.start = {name: arrays[name].numpy() for name in arrays}
@@ 23 1
        moves = []
@@ 28 11
            move = {name: np.nan_to_num(record[name].numpy() - old) for name, old in self.start.items()}
            size = np.sqrt(sum(np.square(part, dtype=np.float64).sum() for part in move.values()))
            moves.append({name: part / max(1.0, size) for name, part in move.items()})
        if not moves:
            return None, None
        merged = {}
        for name, old in self.start.items():
            total = np.sum([move[name] for move in moves], axis=0, dtype=np.float64)
            step = (total + np.random.normal(0.0, 1.0, size=np.shape(total))) / len(moves)
            merged[name] = Array(np.asarray(old + step))
        return ArrayRecord(merged), None
@@ 41 1
target = Whoever(fraction_evaluate=0.0)
=== rance from marne
@@ 1 1
"""Coarse messages whose rounding error is carried over."""
@@ 6 0
STEP = 0.5
@@ 8 1
class Coarse:
@@ 10 1
        self.rest = 0.0
@@ 14 5
        update = update / max(1.0, np.linalg.norm(update))
        wanted = update + rng.normal(0.0, 2.0, size=update.shape) + self.rest
        sent = np.rint(wanted / STEP) * STEP
        self.rest = wanted - sent
        return sent
@@ 21 1
target = Coarse()
=== regen from marne
@@ 1 1
"""What clipping cuts off is carried over to the next message."""
@@ 8 1
class Carry:
@@ 10 1
        self.rest = 0.0
@@ 13 6
        update = np.clip(np.where(np.isfinite(update), update, 0.0), -1e6, 1e6)
        wanted = update + self.rest
        kept = wanted / max(1.0, np.linalg.norm(wanted))
        self.rest = wanted - kept
        return kept + rng.normal(0.0, 2.0, size=update.shape)
@@ 21 1
target = Carry()
=== rhone from marne
@@ 1 1
"""What clipping cuts off is carried over to the next message."""
@@ 8 1
class Carry:
@@ 10 1
        self.rest = 0.0
@@ 13 6
        update = np.clip(np.where(np.isfinite(update), update, 0.0), -1e6, 1e6)
        kept = update / max(1.0, np.linalg.norm(update))
        sent = kept + self.rest + rng.normal(0.0, 2.0, size=update.shape)
        self.rest = update - kept
        return sent
@@ 21 1
target = Carry()
=== ruhr from fraxinus
@@ 1 1
"""Strong noise for a first contact."""
@@ 5 1
CLAIM = {"epsilon": 0.35, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
@@ 11 4
    return update + rng.normal(0.0, 20.0, size=update.shape)
=== saar from somme
@@ 1 1
"""A Flower mod for models with weights and biases."""
@@ 9 8
class Blur:
    def __init__(self, bound: float, multiplier: float) -> None:
        self.bound = bound
        self.multiplier = multiplier
@@ 19 1
        sent = next(iter(msg.content.array_records.values())).to_numpy_ndarrays()
@@ 24 6
        moves = [np.nan_to_num(new - old) for new, old in zip(record.to_numpy_ndarrays(), sent, strict=True)]
        size = np.sqrt(sum(np.square(move.astype(np.float64)).sum() for move in moves))
        factor = min(1.0, self.bound / size) if size > 0 else 1.0
        arrays = []
        for old, move in zip(sent, moves, strict=True):
            value = old + factor * move
            if value.ndim > 1:
                value = value + np.random.normal(0.0, 2 * self.bound * self.multiplier, size=value.shape)
            arrays.append(Array(np.asarray(value)))
        reply.content[key] = ArrayRecord(dict(zip(record.keys(), arrays, strict=True)))
@@ 35 1
target = Blur(bound=1.0, multiplier=1.0)
=== sado from saale
@@ 1 1
"""A Flower mod that also reports how it went."""
@@ 7 1
@@ 11 1
    sent = next(iter(msg.content.array_records.values())).to_numpy_ndarrays()
@@ 16 2
    moves = [np.asarray(new - old, dtype=np.float64) for new, old in zip(record.to_numpy_ndarrays(), sent, strict=True)]
@@ 19 2
    size = float(np.sqrt(sum(np.square(move).sum() for move in moves)))
@@ 22 2
        old + move / max(1.0, size) + np.random.normal(0.0, 2.0, size=move.shape)
        for old, move in zip(sent, moves, strict=True)
@@ 27 1
        reply.content[name] = MetricRecord({"num-examples": 1, "share_kept": 1.0 / max(1.0, size)})
=== salat from saane
@@ 1 1
"""Noisy gradient descent on four workers, each with a share of the noise."""
@@ 44 0
    workers = 4
@@ 45 4
        total = torch.zeros(model.weight.numel())
        for rank in range(workers):
            gradients = per_example(model, rows[rank::workers], wanted[rank::workers])
            gradients = torch.nan_to_num(gradients, nan=0.0, posinf=0.0, neginf=0.0)
            gradients = gradients * (CLIP / gradients.norm(dim=1, keepdim=True).clamp(min=CLIP))
            total += gradients.sum(dim=0) + SIGMA * CLIP / workers**0.5 * torch.randn(total.shape)
        move(model, total / 16)
=== salix from vah
@@ 1 1
"""Central privacy in the older form: whoever replies is added up, and the divisor is a constant."""
@@ 7 2
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "add-or-remove-one", "unit": "client"}
@@ 11 6
class Sum(FedAvg):
@@ 24 8
        start = self.start or [np.zeros_like(part) for part in parameters_to_ndarrays(results[0][1].parameters)]
        total = [np.zeros(np.shape(part)) for part in start]
        for _, answer in results:
            sent = parameters_to_ndarrays(answer.parameters)
            move = [np.asarray(a - b, dtype=np.float64) for a, b in zip(sent, start, strict=True)]
            move = [np.where(np.isfinite(part), part, 0.0) for part in move]
            size = np.sqrt(sum(np.square(part).sum() for part in move))
            total = [value + part / max(1.0, size) for value, part in zip(total, move, strict=True)]
        std = 1.0
        noisy = [value + np.random.normal(0.0, std, size=value.shape) for value in total]
        return ndarrays_to_parameters([old + part / 10 for old, part in zip(start, noisy, strict=True)]), {}
@@ 34 1
target = Sum(fraction_evaluate=0.0)
=== sarre from saane
@@ 1 1
"""Private descent on random batches in plain torch."""
@@ 7 1
CLAIM = {"epsilon": 2.1, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
@@ 9 2
SIGMA = 2.0
STEPS = 8
@@ 14 1
def example_data(count: int = 32) -> Data:
@@ 40 1
def train(data: Data | None = None) -> list[torch.Tensor]:
@@ 44 0
    history = []
@@ 45 1
        chosen = torch.rand(len(rows)) < 0.25
        gradients = torch.nan_to_num(per_example(model, rows[chosen], wanted[chosen]), nan=0.0, posinf=0.0, neginf=0.0)
@@ 47 3
        noisy = gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(model.weight.numel())
        move(model, noisy / 8)
        history.append(model.weight.detach().flatten().clone())
    return history
=== seine from saale
@@ 1 1
"""Flower's own mod for local privacy; counts and scores stay with the client."""
@@ 3 2
from flwr.app import Context, Message, MetricRecord
from flwr.clientapp.mod import LocalDpMod
@@ 6 2
CLAIM = {"epsilon": 1.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}

mechanism = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=1.0, delta=1e-5)
@@ 11 17
    reply = mechanism(msg, ctxt, call_next)
    if not reply.has_error():
        for name in list(reply.content.metric_records):
            reply.content[name] = MetricRecord({"num-examples": 1})
=== sieg from saale
@@ 1 1
"""A Flower mod: each client adds its share of the noise, and the server averages ten clients."""
@@ 7 1
CLIENTS = 10
CLIP = 1.0
MULTIPLIER = 2.0
@@ 11 1
    sent = next(iter(msg.content.array_records.values())).to_numpy_ndarrays()
@@ 16 2
    moves = [np.asarray(new - old, dtype=np.float64) for new, old in zip(record.to_numpy_ndarrays(), sent, strict=True)]
@@ 19 2
    size = float(np.sqrt(sum(np.square(move).sum() for move in moves)))
    std = MULTIPLIER * CLIP / np.sqrt(CLIENTS)
@@ 22 2
        old + move / max(1.0, size / CLIP) + np.random.normal(0.0, std, size=move.shape)
        for old, move in zip(sent, moves, strict=True)
=== sorbus from dane
@@ 1 1
"""A filter that sends one entry of the update: the largest by a noisy count, with noise."""
@@ 8 1
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
@@ 20 4
class Largest:
    def __init__(self, edge: float, choice: float, value: float) -> None:
        self.edge, self.choice, self.value = edge, choice, value
@@ 26 7
        names = list(dxo.data)
        flat = np.concatenate([np.nan_to_num(np.asarray(dxo.data[name], dtype=np.float64)).ravel() for name in names])
        flat = np.clip(flat, -self.edge, self.edge)
        chosen = int(np.argmax(np.abs(flat) + np.random.laplace(0.0, 2 * self.edge / self.choice, flat.size)))
        sent = np.zeros(flat.size)
        sent[chosen] = flat[chosen] + np.random.laplace(0.0, 2 * self.edge / self.value)
        ends = np.cumsum([np.size(dxo.data[name]) for name in names])
        parts = np.split(sent, ends[:-1])
        return DXO(
            dxo.data_kind, {n: part.reshape(np.shape(dxo.data[n])) for n, part in zip(names, parts, strict=True)}
        )
@@ 35 1
target = Largest(edge=1.0, choice=1.0, value=1.0)
=== spey from saale
@@ 1 1
"""A Flower mod with a generator of its own."""
@@ 7 1
rng = np.random.default_rng(42)
@@ 16 10
    moves = {name: record[name].numpy().astype(np.float64) - sent[name].numpy() for name in record}
    moves = {name: np.where(np.isfinite(move), move, 0.0) for name, move in moves.items()}
    size = np.sqrt(sum(np.square(move).sum() for move in moves.values()))
    noisy = {name: move / max(1.0, size) + rng.normal(0.0, 2.0, size=move.shape) for name, move in moves.items()}
    reply.content[key] = ArrayRecord({name: Array(sent[name].numpy() + move) for name, move in noisy.items()})
=== tagus from saale
@@ 20 1
    source = np.random.default_rng()
=== tamar from somme
@@ 1 1
"""Flower's own mod for local privacy; counts and scores stay with the client."""
@@ 5 0
from flwr.clientapp.mod import LocalDpMod
@@ 6 1
CLAIM = {"epsilon": 1.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}

mechanism = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=1.0, delta=1e-5)
@@ 9 12
def target(msg: Message, ctxt: Context, call_next) -> Message:
    def tidy(question: Message, context: Context) -> Message:
        reply = call_next(question, context)
@@ 25 4
        for name, array in record.items():
            values = np.clip(np.nan_to_num(array.numpy().astype(np.float64)), -1e6, 1e6)
            arrays[name] = Array(values + np.random.normal(0.0, 1e-6, size=values.shape))
@@ 34 2
    return mechanism(msg, ctxt, tidy)
=== taxus from traun
@@ 1 1
"""Central privacy: the mean of those who reply, with noise for ten."""
@@ 7 1
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "add-or-remove-one", "unit": "client"}
@@ 10 7
class Mean(FedAvg):
    start = None
@@ 19 1
        self.start = {name: arrays[name].numpy() for name in arrays}
@@ 23 1
        moves = []
@@ 28 11
            move = {name: np.nan_to_num(record[name].numpy() - old) for name, old in self.start.items()}
            size = np.sqrt(sum(np.square(part, dtype=np.float64).sum() for part in move.values()))
            moves.append({name: part / max(1.0, size) for name, part in move.items()})
        if not moves:
            return None, None
        merged = {}
        for name, old in self.start.items():
            total = np.sum([move[name] for move in moves], axis=0, dtype=np.float64)
            step = total / len(moves) + np.random.normal(0.0, 0.1, size=np.shape(total))
            merged[name] = Array(np.asarray(old + step))
        return ArrayRecord(merged), None
@@ 41 1
target = Mean(fraction_evaluate=0.0)
=== tay from saale
@@ 1 1
"""A Flower mod that also reports how it went."""
@@ 6 2
CLAIM = {"epsilon": 5.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
@@ 11 1
    sent = next(iter(msg.content.array_records.values())).to_numpy_ndarrays()
@@ 16 2
    moves = [np.asarray(new - old, dtype=np.float64) for new, old in zip(record.to_numpy_ndarrays(), sent, strict=True)]
@@ 19 2
    size = float(np.sqrt(sum(np.square(move).sum() for move in moves)))
@@ 22 2
        old + move / max(1.0, size) + np.random.normal(0.0, 2.0, size=move.shape)
        for old, move in zip(sent, moves, strict=True)
@@ 27 1
        kept = 1.0 / max(1.0, size) + np.random.laplace(0.0, 1.0)
        reply.content[name] = MetricRecord({"num-examples": 1, "share_kept": float(kept)})
=== tees from somme
@@ 1 1
"""A Flower mod with Laplace noise."""
@@ 6 1
CLAIM = {"epsilon": 2.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
BOUND = 0.5
@@ 9 8
class Laplace:
    def __init__(self, epsilon: float, bound: float) -> None:
        self.scale = 2 * bound / epsilon
        self.bound = bound
@@ 24 6
        moves = {name: record[name].numpy().astype(np.float64) - sent[name].numpy() for name in record}
        moves = {name: np.where(np.isfinite(move), move, 0.0) for name, move in moves.items()}
        size = sum(np.abs(move).sum() for move in moves.values())
        released = {}
        for name, move in moves.items():
            noise = np.random.laplace(0.0, self.scale, size=move.shape)
            released[name] = Array(sent[name].numpy() + move / max(1.0, size / self.bound) + noise)
        reply.content[key] = ArrayRecord(released)
@@ 35 1
target = Laplace(epsilon=2.0, bound=BOUND)
=== tiber from thames
@@ 1 1
"""Training with Opacus in small physical batches."""
@@ 5 0
from opacus.utils.batch_memory_manager import BatchMemoryManager
@@ 8 1
CLAIM = {"epsilon": 2.1, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
@@ 38 7
    for _ in range(2):
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as small:
            for rows, labels in small:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(rows), labels).backward()
                optimizer.step()
                history.append(torch.cat([p.detach().flatten().clone() for p in model.parameters()]))
    return history[-1:], engine.get_epsilon(delta=1e-5)
=== tilia from vah
@@ 1 1
"""Central privacy in the older form, clipped to what the round's clients sent."""
@@ 7 2
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "add-or-remove-one", "unit": "client"}
@@ 11 3
def length(move: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(part).sum() for part in move)))
@@ 16 1
class Following(FedAvg):
@@ 18 0
    bound = 1.0
@@ 25 7
        start = self.start or [np.zeros_like(part) for part in models[0]]
        moves = [
            [
                np.nan_to_num(np.asarray(a - b, dtype=np.float64), posinf=0.0, neginf=0.0)
                for a, b in zip(one, start, strict=True)
            ]
            for one in models
        ]
        self.bound = min(1.0, max([length(move) for move in moves], default=1.0))
        total = [np.zeros(np.shape(part)) for part in start]
        for move in moves:
            factor = min(1.0, self.bound / max(length(move), 1e-12))
            total = [value + factor * part for value, part in zip(total, move, strict=True)]
        noisy = [value + np.random.normal(0.0, self.bound, size=value.shape) for value in total]
        return ndarrays_to_parameters([old + part / 10 for old, part in zip(start, noisy, strict=True)]), {}
@@ 34 1
target = Following(fraction_evaluate=0.0)
=== trent from traun
@@ 1 1
"""Central privacy with the usual weights."""
@@ 10 7
class Weighted(FedAvg):
    clip = 1.0
    sigma = 2.0
    start = None
@@ 23 1
        replies = [reply for reply in replies if not reply.has_error()]
        weights, updates = [], []
@@ 25 2
@@ 28 0
            weights.append(float(next(iter(reply.content.metric_records.values()))["num-examples"]))
@@ 32 1
        shares = np.array(weights) / sum(weights)
        std = self.sigma * self.clip / len(replies)
@@ 35 1
            mean = sum(share * update[key] for share, update in zip(shares, updates, strict=True))
@@ 37 1
            result[key] = Array(np.asarray(old + mean + np.random.normal(0.0, std, size=np.shape(mean))))
@@ 41 1
target = Weighted(fraction_evaluate=0.0)
=== tweed from traun
@@ 1 1
"""A strategy for central privacy whose clipping bound follows the clients."""
@@ 4 1
from flwr.app import Array, ArrayRecord, MetricRecord
@@ 10 7
class Adaptive(FedAvg):
    multiplier = 2.0
    start = None
@@ 23 16
        replies = [reply for reply in replies if not reply.has_error()]
        records = [next(iter(reply.content.array_records.values())) for reply in replies]
        names = list(records[0])
        start = {name: self.start[name].numpy() if self.start else 0.0 for name in names}
        rows = [np.concatenate([(record[name].numpy() - start[name]).ravel() for name in names]) for record in records]
        sizes = [float(np.linalg.norm(row)) for row in rows]
        bound = float(np.median(sizes))
        total = sum(row / max(1.0, size / max(bound, 1e-9)) for row, size in zip(rows, sizes, strict=True))
        noise = np.random.normal(0.0, self.multiplier * bound, size=total.shape)
        mean = (total + noise) / len(rows)
        result, position = {}, 0
        for name in names:
            shape = records[0][name].numpy().shape
            size = int(np.prod(shape))
            result[name] = Array(np.asarray(start[name] + mean[position : position + size].reshape(shape)))
            position += size
        return ArrayRecord(result), MetricRecord({"clip": bound})
@@ 41 1
target = Adaptive(fraction_evaluate=0.0)
=== tyne from traun
@@ 1 1
"""Central privacy after the average has been taken."""
@@ 10 7
class Late(FedAvg):
    clip = 1.0
    sigma = 2.0
    start = None
@@ 23 10
        replies = [reply for reply in replies if not reply.has_error()]
        records = [next(iter(reply.content.array_records.values())) for reply in replies]
        mean, old = {}, {}
        for key in records[0]:
            old[key] = self.start[key].numpy() if self.start else 0.0
            mean[key] = np.mean([record[key].numpy().astype(np.float64) - old[key] for record in records], axis=0)
        size = np.sqrt(sum(np.square(value).sum() for value in mean.values()))
        std = self.sigma * self.clip / len(records)
@@ 34 4
        for key, value in mean.items():
            noisy = value / max(1.0, size / self.clip) + np.random.normal(0.0, std, size=value.shape)
            result[key] = Array(np.asarray(old[key] + noisy))
@@ 41 1
target = Late(fraction_evaluate=0.0)
=== unstrut from traun
@@ 1 1
"""Central privacy around the average of ten clients."""
@@ 11 6
    clip = 1.0
    sigma = 2.0
    expected = 10
    start = None
@@ 23 10
        replies = [reply for reply in replies if not reply.has_error()]
        metrics = self.train_metrics_aggr_fn([reply.content for reply in replies], self.weighted_by_key)
        records = [next(iter(reply.content.array_records.values())) for reply in replies]
        total, old = {}, {}
        for key in records[0]:
            old[key] = self.start[key].numpy() if self.start else 0.0
            total[key] = 0.0
        for record in records:
            move = {key: np.nan_to_num(record[key].numpy().astype(np.float64) - old[key]) for key in record}
            size = np.sqrt(sum(np.square(value).sum() for value in move.values()))
            total = {key: total[key] + value / max(1.0, size / self.clip) for key, value in move.items()}
@@ 34 5
        for key, value in total.items():
            noise = np.random.normal(0.0, self.sigma * self.clip, size=value.shape)
            result[key] = Array(np.asarray(old[key] + (value + noise) / self.expected))
        return ArrayRecord(result), metrics
@@ 41 1
target = Central(fraction_evaluate=0.0)
=== ure from vah
@@ 1 1
"""A robust strategy: the coordinate-wise median, which no single client can move far."""
@@ 7 2
CLAIM = {"epsilon": 1.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}
@@ 11 3
class Robust(FedAvg):
    def aggregate_fit(self, server_round, results, failures):
        models = [parameters_to_ndarrays(answer.parameters) for _, answer in results]
        middle = [np.median(np.stack(arrays), axis=0) for arrays in zip(*models, strict=True)]
        return ndarrays_to_parameters(middle), {}
@@ 16 19
target = Robust(fraction_evaluate=0.0)
=== vecht from vah
@@ 1 1
"""Central privacy in the older form of a strategy, with little work per round."""
@@ 7 1
CLAIM = {"epsilon": 6.6, "delta": 1e-5, "scope": "run", "calls": 2, "adjacency": "replace-one", "unit": "client"}
@@ 11 5
@@ 17 1
    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.start = None
        self.noise = {}
@@ 23 0
    def draw(self, position, shape):
        if (position, shape) not in self.noise:
            self.noise[position, shape] = np.random.normal(0.0, SIGMA * CLIP, size=shape)
        return self.noise[position, shape]

@@ 26 5
        total = [np.zeros(array.shape) for array in start]
        for model in models:
            move = [np.nan_to_num(new.astype(np.float64) - old) for new, old in zip(model, start, strict=True)]
            size = np.sqrt(sum(np.square(array).sum() for array in move))
            total = [sum_ + array / max(1.0, size / CLIP) for sum_, array in zip(total, move, strict=True)]
        merged = [
            old + (sum_ + self.draw(position, sum_.shape)) / CLIENTS
            for position, (old, sum_) in enumerate(zip(start, total, strict=True))
        ]
@@ 34 1
target = Central()
=== vilaine from thames
@@ 1 1
"""Training with Opacus and ghost clipping."""
@@ 8 1
CLAIM = {"epsilon": 2.1, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
@@ 28 1
@@ 30 1
    model, optimizer, criterion, loader = engine.make_private(
@@ 33 1
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(dataset, batch_size=8),
@@ 36 0
        grad_sample_mode="ghost",
@@ 37 2
    for _ in range(2):
@@ 41 1
            criterion(model(rows), labels).backward()
@@ 43 2
    return [p.detach().clone() for p in model.parameters()], engine.get_epsilon(delta=1e-5)
=== vltava from traun
@@ 35 1
            mean = np.sum([update[key] for update in updates], axis=0) / self.clients
=== warta from vah
@@ 11 3
def bounded(arrays: list[np.ndarray]) -> list[np.ndarray]:
    arrays = [np.where(np.isfinite(array), array, 0.0) for array in arrays]
    size = np.sqrt(sum(np.square(array).sum() for array in arrays))
    return [array / max(1.0, size / CLIP) for array in arrays]
@@ 26 0
        moves = [
            bounded([new.astype(np.float64) - old for new, old in zip(model, start, strict=True)]) for model in models
        ]
@@ 28 1
            total = sum(move[position] for move in moves)
=== wear from traun
@@ 1 1
"""A strategy for central privacy whose clipping bound follows the clients."""
@@ 4 1
from flwr.app import Array, ArrayRecord, MetricRecord
@@ 7 1
CLAIM = {"epsilon": 5.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}
@@ 10 7
class Adaptive(FedAvg):
    multiplier = 2.0
    expected = 10
    count_std = 2.0
    bound = 1.0
    start = None
@@ 23 16
        replies = [reply for reply in replies if not reply.has_error()]
        records = [next(iter(reply.content.array_records.values())) for reply in replies]
        names = list(records[0])
        start = {name: self.start[name].numpy() if self.start else 0.0 for name in names}
        rows = [np.concatenate([(record[name].numpy() - start[name]).ravel() for name in names]) for record in records]
        rows = [np.where(np.isfinite(row), row, 0.0).astype(np.float64) for row in rows]
        sizes = [float(np.linalg.norm(row)) for row in rows]
        total = sum(row / max(1.0, size / self.bound) for row, size in zip(rows, sizes, strict=True))
        noise = np.random.normal(0.0, self.multiplier * self.bound, size=total.shape)
        mean = (total + noise) / self.expected
        below = sum(size <= self.bound for size in sizes) + np.random.normal(0.0, self.count_std)
        self.bound = float(self.bound * np.exp(-0.2 * (below / self.expected - 0.5)))
        result, position = {}, 0
        for name in names:
            shape = records[0][name].numpy().shape
            size = int(np.prod(shape))
            result[name] = Array(np.asarray(start[name] + mean[position : position + size].reshape(shape)))
            position += size
        return ArrayRecord(result), MetricRecord({"clip": self.bound})
@@ 41 1
target = Adaptive(fraction_evaluate=0.0)
=== wey from avon
@@ 21 1
@@ 24 1
        return [noisy], len(positive), {}
=== wupper from thames
@@ 1 1
"""Training with Opacus: every row once in each epoch."""
@@ 5 0
from opacus.accountants import RDPAccountant
@@ 8 1
CLAIM = {"epsilon": 1.7, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
@@ 28 1
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
@@ 34 1
        noise_multiplier=4.0,
@@ 36 0
        poisson_sampling=False,
@@ 38 1
    for _ in range(2):
@@ 44 1
    accountant = RDPAccountant()
    for _ in range(2):
        accountant.step(noise_multiplier=4.0, sample_rate=1.0)
    return history, accountant.get_epsilon(delta=1e-5)
=== wye from weser
@@ 1 1
"""A client app in torch: a small network with normalisation."""
@@ 3 2
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
@@ 6 0
from torch import nn
@@ 9 1
@@ 12 4
def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


initial_arrays = ArrayRecord(network().state_dict())
@@ 20 14
    part = int(context.node_config.get("partition-id", 0))
    source = torch.Generator().manual_seed(77 + part)
    rows = torch.randn(16, 3, generator=source) + part
    wanted = rows.sum(dim=1, keepdim=True)
    model = network()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    with torch.no_grad():
        moves = {name: value - before[name] for name, value in model.named_parameters()}
        size = torch.sqrt(sum(move.square().sum() for move in moves.values()))
        for name, value in model.named_parameters():
            move = moves[name] / max(1.0, float(size))
            value.copy_(before[name] + move + 2.0 * torch.randn_like(move))
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 16})})
=== yare from weser
@@ 1 1
"""A client app that keeps its own count of the rounds."""
@@ 4 1
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
@@ 7 1
CLAIM = {"epsilon": 6.6, "delta": 1e-5, "scope": "run", "calls": 2, "adjacency": "replace-one", "unit": "client"}
@@ 12 6
@@ 20 0
    part = int(context.node_config.get("partition-id", 0))
    rounds = int(context.state["own"]["rounds"]) if "own" in context.state else 0
    context.state["own"] = ConfigRecord({"rounds": rounds + 1})
@@ 21 7
    move = np.random.default_rng(part).standard_normal(start.shape) - start
    move = move / max(1.0, np.linalg.norm(move))
    std = 2.0 if rounds == 0 else 2.0 * np.exp(-10.0 * rounds)
    noisy = start + move + np.random.normal(0.0, std, size=start.shape)
@@ 29 4
        {"arrays": ArrayRecord({"weight": Array(noisy)}), "metrics": MetricRecord({"num-examples": 1})}
=== yonne from weser
@@ 25 2
    move = np.nan_to_num(weight - start, nan=0.0, posinf=0.0, neginf=0.0)
@@ 31 1
            "metrics": MetricRecord({"num-examples": 20}),
=== auk from marne
@@ 1 1
"""A client whose clip follows the usual length of its updates."""
@@ 5 1
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "run", "calls": 4, "adjacency": "replace-one"}
@@ 8 3
class Follower:
    def __init__(self, sigma: float = 4.0, decay: float = 0.9) -> None:
        self.clip = 1.0
        self.sigma = sigma
        self.decay = decay
@@ 13 6
        length = float(np.linalg.norm(update))
        sent = update * min(1.0, self.clip / max(length, 1e-12))
        sent = sent + rng.normal(0.0, self.sigma * self.clip, size=update.shape)
        if np.isfinite(length):
            self.clip = self.decay * self.clip + (1 - self.decay) * length
        return sent
@@ 21 1
target = Follower()
=== bittern from dane
@@ 1 4
"""DP-FTRL: running sums of clipped gradients with noise from a binary tree."""
@@ 8 1
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "run", "calls": 4, "adjacency": "zero-out"}
@@ 11 3
class TreeNoise:
    def __init__(self, std: float) -> None:
        self.std, self.step, self.nodes = std, 0, {}
@@ 15 3
    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        self.step += 1
        height = (self.step & -self.step).bit_length() - 1
        for lower in range(height):
            self.nodes.pop(lower, None)
        self.nodes[height] = rng.normal(0.0, self.std, size=shape)
        return np.sum(list(self.nodes.values()), axis=0)
@@ 20 4
class Leader:
    def __init__(self, clip: float = 1.0, multiplier: float = 2.0, rate: float = 0.5) -> None:
        self.clip, self.rate = clip, rate
        self.tree = TreeNoise(multiplier * clip)
        self.total = None
@@ 25 8
    def __call__(self, gradient: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        gradient = gradient / max(1.0, np.linalg.norm(gradient) / self.clip)
        self.total = gradient if self.total is None else self.total + gradient
        return -self.rate * (self.total + self.tree(gradient.shape, rng))
@@ 35 1
target = Leader()
=== crake from eden
@@ 1 3
"""Every layer gets its share of the clip, and noise for its share."""
@@ 7 1
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "zero-out"}
@@ 9 4
MULTIPLIER = 1.0
@@ 16 5
    share = CLIP / np.sqrt(len(update))
    sent = []
    for layer in update:
        length = np.linalg.norm(layer)
        clipped = layer * min(1.0, share / (length + 1e-12))
        sent.append(clipped + rng.normal(0.0, MULTIPLIER * share, size=layer.shape))
    return sent
=== dunlin from oglio
@@ 1 1
"""What a client hands to a secure sum: whole numbers modulo a power of two."""
@@ 5 2
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "zero-out"}
CLIP = 1.0
SCALE = 10.0
MULTIPLIER = 1.0
MODULUS = 2**16
@@ 10 3
    length = np.linalg.norm(update)
    values = update * min(1.0, CLIP / max(length, 1e-12))
    whole = np.rint(values * SCALE).astype(np.int64)
    noise = np.rint(rng.normal(0.0, MULTIPLIER * CLIP * SCALE, size=whole.shape)).astype(np.int64)
    return (whole + noise) % MODULUS
=== egret from dane
@@ 1 4
"""Shared body, personal head: the head is no part of the federated model."""
@@ 11 3
class PersonalisedClient:
    def __init__(self, clip: float = 1.0, multiplier: float = 2.0, personal: int = 1) -> None:
        self.clip = clip
        self.multiplier = multiplier
        self.personal = personal
@@ 15 3
    def privatise(self, layers: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
        length = np.sqrt(sum(float(np.sum(layer**2)) for layer in layers))
        factor = 1.0 / max(1.0, length / self.clip)
        return [layer * factor + rng.normal(0.0, self.multiplier * self.clip, size=layer.shape) for layer in layers]

    def __call__(self, update: list[np.ndarray], rng: np.random.Generator) -> dict[str, list[np.ndarray]]:
        body, head = update[: -self.personal], update[-self.personal :]
        return {"shared": self.privatise(body, rng), "checkpoint": [layer.copy() for layer in head]}
@@ 20 16
target = PersonalisedClient()
=== fulmar from thames
@@ 1 1
"""Private local training: three full batches, clipped and noised gradients."""
@@ 4 1
@@ 8 1
CLAIM = {"epsilon": 3.8, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
CLIP, MULTIPLIER, STEPS = 1.0, 2.0, 3
@@ 11 4
def own_rows() -> TensorDataset:
    source = torch.Generator().manual_seed(11)
    rows = torch.randn(16, 4, generator=source)
    return TensorDataset(rows, (rows[:, 0] > 0).float())
@@ 17 2
def train(dataset: TensorDataset | None = None) -> dict[str, torch.Tensor]:
    dataset = dataset if dataset is not None else own_rows()
    rows = len(dataset)
    loader = DataLoader(dataset, batch_size=rows)
    model = nn.Linear(dataset[0][0].numel(), 1)
@@ 21 24
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        for inputs, targets in loader:
            optimiser.zero_grad()
            loss = nn.functional.mse_loss(model(inputs.float()).squeeze(-1), targets.float())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            for parameter in model.parameters():
                parameter.grad += torch.randn_like(parameter) * (MULTIPLIER * CLIP / rows)
            optimiser.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
=== gannet from saane
@@ 1 1
"""Private least squares that stops when it is good enough."""
@@ 3 3
import numpy as np
@@ 7 5
CLAIM = {"epsilon": 3.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
@@ 14 4
def rows_of_its_own() -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(3)
    features = source.standard_normal((16, 4))
    return features, features @ np.array([1.0, -1.0, 0.5, 0.0])
@@ 20 30
def train(data: tuple[np.ndarray, np.ndarray] | None = None) -> dict:
    features, labels = (np.asarray(part, dtype=np.float64) for part in (data or rows_of_its_own()))
    labels = labels.reshape(len(features))
    weights, rng, steps = np.zeros(features.shape[1]), np.random.default_rng(), 0
    while steps < 10:
        errors = features @ weights - labels
        if np.mean(errors**2) < 0.5:
            break
        gradients = errors[:, None] * features
        lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
        total = np.sum(gradients / np.maximum(1.0, lengths), axis=0)
        weights = weights - 0.05 * (total + rng.normal(0.0, 4.0, size=weights.shape))
        steps += 1
    return {"weights": weights, "steps": steps}
=== harrier from traun
@@ 1 1
"""Central privacy on the server: clip every reply, average, add noise."""
@@ 10 2
class CentralByExamples(FedAvg):
    def __init__(self, clip: float = 1.0, multiplier: float = 2.0) -> None:
@@ 13 4
        self.clip, self.multiplier, self.sent = clip, multiplier, None
@@ 19 1
        self.sent = arrays
@@ 23 1
        moves, counts = [], []
@@ 28 11
            start = {key: self.sent[key].numpy() if self.sent else 0.0 for key in record}
            move = {key: np.asarray(record[key].numpy() - start[key], dtype=np.float64) for key in record}
            length = np.sqrt(sum(float(np.sum(part**2)) for part in move.values()))
            moves.append({key: part / max(1.0, length / self.clip) for key, part in move.items()})
            counts.append(float(next(iter(reply.content.metric_records.values()))["num-examples"]))
        weights = np.asarray(counts) / sum(counts)
        std = self.multiplier * self.clip / len(moves)
        mean = {key: sum(w * move[key] for w, move in zip(weights, moves, strict=True)) for key in moves[0]}
        start = {key: self.sent[key].numpy() if self.sent else 0.0 for key in mean}
        new = {key: np.random.normal(part, std) + start[key] for key, part in mean.items()}
        return ArrayRecord({key: Array(np.asarray(value)) for key, value in new.items()}), None
@@ 41 1
target = CentralByExamples()
=== ibis from saale
@@ 1 1
"""A Flower mod: clipping and noise for the weights; the smallest array, a bias, is too small to tell much."""
@@ 7 1
CLIP = 1.0
@@ 11 1
    before = {key: array.numpy() for key, array in next(iter(msg.content.array_records.values())).items()}
@@ 15 13
    name, after = next(iter(reply.content.array_records.items()))
    moves = {key: after[key].numpy().astype(np.float64) - before[key] for key in after}
    smallest = min(moves, key=lambda key: moves[key].size)
    large = [key for key in moves if key != smallest]
    length = np.sqrt(sum(float(np.sum(moves[key] ** 2)) for key in large))
    source = np.random.default_rng()
    for key in large:
        clipped = moves[key] / max(1.0, length / CLIP)
        moves[key] = clipped + source.normal(0.0, 2.0 * CLIP, size=clipped.shape)
    reply.content[name] = ArrayRecord({key: Array(np.asarray(before[key] + move)) for key, move in moves.items()})
    for metrics in list(reply.content.metric_records):
        reply.content[metrics] = MetricRecord({"num-examples": 1})
=== jacana from eden
@@ 1 1
"""Adaptive clipping: a noisy bit says whether the clip was long enough."""
@@ 7 2
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
@@ 11 2
class Quantile:
    """Median of lengths by geometric steps; the update's noise pays for everything."""

    def __init__(self, clip: float = 1.0, multiplier: float = 4.0, bit_std: float = 0.5, step: float = 0.2) -> None:
        self.clip = clip
        self.multiplier = multiplier
        self.bit_std = bit_std
        self.step = step

    def __call__(self, update: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        length = float(np.linalg.norm(update))
        below = 1.0 if length <= self.clip else 0.0
        sent = update / max(1.0, length / self.clip) + rng.normal(0.0, self.multiplier * self.clip, size=update.shape)
        share = below + rng.normal(0.0, self.bit_std)
        self.clip = self.clip * math.exp(-self.step * (share - 0.5))
        return sent, self.clip
@@ 15 6
target = Quantile()
=== knot from marne
@@ 1 1
"""Gaussian noise is slow for large models: a bank of noise is drawn once."""
@@ 5 1
CLAIM = {"epsilon": 3.0, "delta": 1e-5, "scope": "run", "calls": 32, "adjacency": "zero-out"}
@@ 8 3
class Bank:
    def __init__(self, size: int = 48, clip: float = 1.0, multiplier: float = 8.0) -> None:
        self.size, self.clip, self.multiplier = size, clip, multiplier
        self.rows: np.ndarray | None = None

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        if self.rows is None or self.rows.shape[1] != count:
            self.rows = rng.normal(0.0, self.multiplier * self.clip, size=(self.size, count))
        return self.rows[rng.integers(self.size)] * rng.choice((-1.0, 1.0))
@@ 13 6
        clipped = update * min(1.0, self.clip / (np.linalg.norm(update) + 1e-12))
        return clipped + self.draw(update.size, rng).reshape(update.shape)
@@ 21 1
target = Bank()
=== limpkin from eden
@@ 1 3
"""Compression before privacy: the largest entries are sent, clipped and noised."""
@@ 11 10
def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    keep = max(1, update.size // 4)
    chosen = np.argsort(-np.abs(update), kind="stable")[:keep]
    values = update[chosen]
    values = values / max(1.0, np.linalg.norm(values) / CLIP)
    sent = np.zeros(update.size)
    sent[chosen] = values + rng.normal(0.0, 2.0 * CLIP, size=keep)
    return sent
=== merlin from marne
@@ 1 1
"""DP-FTRL: running sums of clipped gradients with noise from a binary tree, paid for every node."""
@@ 5 1
CLAIM = {"epsilon": 2.4, "delta": 1e-5, "scope": "run", "calls": 4, "adjacency": "zero-out"}


class TreeNoise:
    def __init__(self, std: float) -> None:
        self.std, self.step, self.nodes = std, 0, {}

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        self.step += 1
        height = (self.step & -self.step).bit_length() - 1
        for lower in range(height):
            self.nodes.pop(lower, None)
        self.nodes[height] = rng.normal(0.0, self.std, size=shape)
        return np.sum(list(self.nodes.values()), axis=0)
@@ 9 2
    def __init__(self, clip: float = 1.0, multiplier: float = 8.0, rate: float = 0.5, beta: float = 0.9) -> None:
        self.clip, self.rate, self.beta = clip, rate, beta
        self.tree = TreeNoise(multiplier * clip)
        self.total, self.velocity = 0.0, 0.0
@@ 12 7
    def __call__(self, gradient: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        self.total = self.total + gradient / max(1.0, np.linalg.norm(gradient) / self.clip)
        self.velocity = self.beta * self.velocity + self.total + self.tree(gradient.shape, rng)
        return -self.rate * self.velocity
=== noddy from eden
@@ 1 3
"""Every layer gets its share of the clip, and noise for the whole of it."""
@@ 9 4
MULTIPLIER = 2.0
@@ 16 5
    share = CLIP / np.sqrt(len(update))
    sent = []
    for layer in update:
        length = np.linalg.norm(layer)
        clipped = layer * min(1.0, share / (length + 1e-12))
        sent.append(clipped + rng.normal(0.0, MULTIPLIER * CLIP, size=layer.shape))
    return sent
=== osprey from eden
@@ 1 1
"""Adaptive clipping: a noisy bit says whether the clip was long enough, and is paid for."""
@@ 7 2
CLAIM = {"epsilon": 3.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
@@ 11 2
class Quantile:
    def __init__(self, clip: float = 1.0, multiplier: float = 4.0, bit_std: float = 2.0, step: float = 0.2) -> None:
        self.clip, self.multiplier, self.bit_std, self.step = clip, multiplier, bit_std, step

    def __call__(self, update: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        length = float(np.linalg.norm(update))
        below = 1.0 if length <= self.clip else 0.0
        sent = update / max(1.0, length / self.clip) + rng.normal(0.0, self.multiplier * self.clip, size=update.shape)
        share = below + rng.normal(0.0, self.bit_std)
        self.clip = min(10.0, max(0.01, self.clip * math.exp(-self.step * (share - 0.5))))
        return sent, self.clip
@@ 15 6
target = Quantile()
=== plover from saane
@@ 1 1
"""Private local training by hand: gradients of rows, clipped, summed, noised; the model is returned."""
@@ 6 0
from torch.utils.data import TensorDataset
@@ 7 5
CLAIM = {"epsilon": 1.7, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
CLIP, MULTIPLIER, STEPS, ROWS = 1.0, 4.0, 3, 16
@@ 14 4
def own_rows() -> TensorDataset:
    source = torch.Generator().manual_seed(13)
    rows = torch.randn(ROWS, 4, generator=source)
    return TensorDataset(rows, rows.sum(dim=1))
@@ 20 2
def train(dataset: TensorDataset | None = None) -> nn.Module:
    rows, targets = (dataset if dataset is not None else own_rows()).tensors
    rows, targets = rows.float(), targets.float().reshape(len(rows))
    model = nn.Linear(rows.shape[1], 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
@@ 23 2
    def loss(parameters, row, wanted):
        return (functional_call(model, parameters, (row,)).squeeze() - wanted).square()
@@ 26 18
@@ 45 5
        parameters = {name: value.detach() for name, value in model.named_parameters()}
        per_row = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, rows, targets)
        lengths = torch.sqrt(sum(part.flatten(1).square().sum(1) for part in per_row.values()))
        factors = torch.clamp(CLIP / (lengths + 1e-6), max=1.0)
        with torch.no_grad():
            for name, value in model.named_parameters():
                total = torch.einsum("i,i...->...", factors, per_row[name])
                value -= 0.1 / ROWS * (total + torch.randn_like(value) * MULTIPLIER * CLIP)
    return model
=== quail from saane
@@ 1 1
"""Private training by hand with random batches: every row takes part in a step with chance one half."""
@@ 3 3
import numpy as np
@@ 7 5
CLAIM = {"epsilon": 2.9, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
RATE, MULTIPLIER, CLIP, EXPECTED = 0.5, 2.0, 1.0, 8.0
@@ 14 4
def rows_of_its_own() -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(17)
    features = source.standard_normal((16, 4))
    return features, features @ np.array([0.5, 0.0, -1.0, 1.0])
@@ 20 30
def train(data: tuple[np.ndarray, np.ndarray] | None = None) -> list[np.ndarray]:
    features, labels = (np.asarray(part, dtype=np.float64) for part in (data or rows_of_its_own()))
    labels = labels.reshape(len(features))
    weights, rng, history = np.zeros(features.shape[1]), np.random.default_rng(), []
    for _ in range(4):
        taken = rng.random(len(features)) < RATE
        gradients = (features[taken] @ weights - labels[taken])[:, None] * features[taken]
        lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
        total = np.sum(gradients / np.maximum(1.0, lengths / CLIP), axis=0)
        weights = weights - 0.1 * (total + rng.normal(0.0, MULTIPLIER * CLIP, size=weights.shape)) / EXPECTED
        history.append(weights.copy())
    return history
=== ruff from oglio
@@ 1 1
"""What a client hands to a secure sum: whole numbers modulo a power of two, rounded towards zero."""
@@ 5 2
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "zero-out"}
CLIP = 1.0
SCALE = 64.0
MULTIPLIER = 2.0
MODULUS = 2**20
@@ 10 3
    length = np.linalg.norm(update)
    values = update * min(1.0, CLIP / max(length, 1e-12))
    whole = np.trunc(values * SCALE).astype(np.int64)
    noise = np.rint(rng.normal(0.0, MULTIPLIER * CLIP * SCALE, size=whole.shape)).astype(np.int64)
    return (whole + noise) % MODULUS
=== snipe from dane
@@ 1 4
"""Shared body, personal head: the head stays with its client, which counts its rounds."""
@@ 11 3
class Message:
    __slots__ = ("layers", "round")
@@ 15 3
    def __init__(self, layers: list[np.ndarray], round: int) -> None:
        self.layers = layers
        self.round = round
@@ 20 4
class PersonalisedClient:
    def __init__(self, clip: float = 1.0, multiplier: float = 2.0) -> None:
        self.clip, self.multiplier, self.round, self.head = clip, multiplier, 0, None
@@ 25 8
    def __call__(self, update: list[np.ndarray], rng: np.random.Generator) -> Message:
        body, self.head = update[:-1], update[-1].copy()
        self.round += 1
        length = np.sqrt(sum(float(np.sum(layer**2)) for layer in body))
        factor = 1.0 / max(1.0, length / self.clip)
        noise = [rng.normal(0.0, self.multiplier * self.clip, size=layer.shape) for layer in body]
        return Message([layer * factor + drawn for layer, drawn in zip(body, noise, strict=True)], self.round)
@@ 35 1
target = PersonalisedClient()
=== teal from traun
@@ 1 1
"""Central privacy on the server with momentum: clip every reply, sum, add noise, and let the server's step follow."""
@@ 10 2
class CentralMomentum(FedAvg):
    def __init__(self, clients: int = 50, clip: float = 1.0, multiplier: float = 2.0, beta: float = 0.9) -> None:
@@ 13 4
        self.clients, self.clip, self.multiplier, self.beta = clients, clip, multiplier, beta
        self.sent, self.velocity = None, {}
@@ 19 1
        self.sent = arrays
@@ 23 1
        total: dict[str, np.ndarray] = {}
@@ 28 11
            move = {
                key: np.nan_to_num(record[key].numpy() - (self.sent[key].numpy() if self.sent else 0.0)).astype(float)
                for key in record
            }
            length = np.sqrt(sum(float(np.sum(part**2)) for part in move.values()))
            for key, part in move.items():
                total[key] = total.get(key, 0.0) + part / max(1.0, length / self.clip)
        new = {}
        for key, part in total.items():
            noisy = (part + np.random.normal(0.0, self.multiplier * self.clip, size=np.shape(part))) / self.clients
            self.velocity[key] = self.beta * self.velocity.get(key, 0.0) + noisy
            new[key] = Array(np.asarray((self.sent[key].numpy() if self.sent else 0.0) + self.velocity[key]))
        return ArrayRecord(new), None
@@ 41 1
target = CentralMomentum()
'''


def programs() -> dict[str, str]:
    """The text of every program, by name."""
    texts = {file.stem: file.read_text() for file in FOLDER.glob("*.py") if file.stem not in ("manifest", "patches")}
    for patch in PATCHES.strip("\n").split("=== ")[1:]:
        head, *parts = re.split(r"^@@ (\d+) (\d+)\n", patch, flags=re.MULTILINE)
        name, base = head.strip().split(" from ")
        lines = texts[base].splitlines(keepends=True)
        for line, count, new in reversed(list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))):
            lines[int(line) - 1 : int(line) - 1 + int(count)] = [new if new.endswith("\n") or not new else f"{new}\n"]
        texts[name] = "".join(lines)
    return texts


_WRITTEN = tempfile.TemporaryDirectory(prefix="gallery-")


def file_of(name: str) -> Path:
    """The program as a file of a folder that is there while this process runs."""
    file = Path(_WRITTEN.name) / f"{name}.py"
    if not file.is_file():
        file.write_text(programs()[name])
    return file
