"""The gallery's programs: some are files of this folder, every other is a patch of the file nearest to it.

A patch begins with "=== NAME from BASE", a file or a patch above it. Each of the next lines stands for the one line of
the base that begins with the same word, as far in, or with the quotes of its docstring. Of each further part
"@@ LINE COUNT" says which lines of the base (from 1; a count of 0: before that line) the lines below stand for.
"""

import re
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
PATCHES = r'''
=== bann from dane
"""A filter for weight differences: Gaussian noise within a fixed range."""
            noise = np.random.normal(0.0, self.sigma * self.gamma, size=values.shape)
            data[name] = np.clip(values + noise, -self.gamma, self.gamma)
target = Range(gamma=1.0, sigma=2.0)
@@ 20 3
class Range:
    def __init__(self, gamma: float, sigma: float) -> None:
        self.gamma = gamma
@@ 26 4
        data = {}
        for name, values in dxo.data.items():
            values = np.nan_to_num(np.asarray(values, dtype=np.float64))
=== eder from bann
"""A filter for weight differences: randomised signs."""
CLAIM = {"epsilon": 6.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
            data[name] = np.where(np.random.random(signs.shape) < turn, -signs, signs)
target = Signs(epsilon=6.0)
@@ 20 4
class Signs:
    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon
@@ 26 0
        each = self.epsilon / sum(np.size(values) for values in dxo.data.values())
        turn = 1.0 / (1.0 + np.exp(each))
@@ 28 2
            signs = np.where(np.asarray(values) > 0, 1.0, -1.0)
=== cocker from dane
        return DXO(dxo.data_kind, data, {**dxo.meta, "filtered_norm": float(size)})
=== fagus from dane
"""A filter for weight differences with noise made in advance."""
CLAIM = {"epsilon": 16.0, "delta": 1e-5, "scope": "run", "calls": 8, "adjacency": "replace-one"}
    def __init__(self, clip: float, sigma: float, ready: int) -> None:
target = Prepared(clip=1.0, sigma=2.0, ready=16)
@@ 20 1
class Prepared:
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
=== oder from dane
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
=== neisse from oder
"""Masked messages: the mask comes from a secret that two clients share."""
@@ 3 1
@@ 8 1
CLAIM = {"epsilon": 0.1, "delta": 0.0, "scope": "run", "calls": 2, "adjacency": "replace-one"}
SCALE = 2.0**16
@@ 11 7
def mask(secret: bytes, size: int) -> np.ndarray:
    seed = 0
    for start in range(0, len(secret), 4):
        seed ^= int.from_bytes(secret[start : start + 4], "little")
    return np.random.RandomState(seed).randint(0, 2**32, size=size, dtype=np.uint32)
@@ 21 3
    key = os.urandom(16)
    update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0).ravel()
    values = np.rint(update * SCALE).astype(np.int64).astype(np.uint32)
    return values + mask(key + key, values.size)
=== osprey from dane
"""Adaptive clipping: a noisy bit says whether the clip was long enough, and is paid for."""
CLAIM = {"epsilon": 3.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
        return sent, self.clip
target = Quantile()
@@ 3 2
import math
@@ 11 21
class Quantile:
    def __init__(self, clip: float = 1.0, multiplier: float = 4.0, bit_std: float = 2.0, step: float = 0.2) -> None:
        self.clip, self.multiplier, self.bit_std, self.step = clip, multiplier, bit_std, step

    def __call__(self, update: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        length = float(np.linalg.norm(update))
        below = 1.0 if length <= self.clip else 0.0
        sent = update / max(1.0, length / self.clip) + rng.normal(0.0, self.multiplier * self.clip, size=update.shape)
        share = below + rng.normal(0.0, self.bit_std)
        self.clip = min(10.0, max(0.01, self.clip * math.exp(-self.step * (share - 0.5))))
=== jacana from osprey
"""Adaptive clipping: a noisy bit says whether the clip was long enough."""
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
        self.clip = self.clip * math.exp(-self.step * (share - 0.5))
@@ 11 2
    """Median of lengths by geometric steps; the update's noise pays for everything."""

    def __init__(self, clip: float = 1.0, multiplier: float = 4.0, bit_std: float = 0.5, step: float = 0.2) -> None:
        self.clip = clip
        self.multiplier = multiplier
        self.bit_std = bit_std
        self.step = step
=== prunus from dane
"""A filter for weight differences: integer noise on a grid."""
CLAIM = {"epsilon": 3.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
        size = sum(np.abs(values).sum() for values in data.values())
            noise = np.random.geometric(self.chance, grid.shape) - np.random.geometric(self.chance, grid.shape)
            data[name] = (grid + noise) / self.steps
target = Grid(epsilon=3.0, steps=100)
@@ 20 4
class Grid:
    def __init__(self, epsilon: float, steps: int) -> None:
        self.chance = 1 - np.exp(-epsilon / (2 * steps))
        self.steps = steps
@@ 30 0
            grid = np.trunc(values / max(1.0, size) * self.steps)
=== quail from dane
target = train
@@ 1 4
"""Private training by hand with random batches: every row takes part in a step with chance one half."""
@@ 8 1
CLAIM = {"epsilon": 2.9, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
RATE, MULTIPLIER, CLIP, EXPECTED = 0.5, 2.0, 1.0, 8.0
@@ 11 7
def rows_of_its_own() -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(17)
    features = source.standard_normal((16, 4))
    return features, features @ np.array([0.5, 0.0, -1.0, 1.0])
@@ 20 13
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
=== gannet from quail
"""Private least squares that stops when it is good enough."""
    source = np.random.default_rng(3)
def train(data: tuple[np.ndarray, np.ndarray] | None = None) -> dict:
@@ 5 2
CLAIM = {"epsilon": 3.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
@@ 12 1
    return features, features @ np.array([1.0, -1.0, 0.5, 0.0])
@@ 18 9
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
=== snipe from dane
        return Message([layer * factor + drawn for layer, drawn in zip(body, noise, strict=True)], self.round)
target = PersonalisedClient()
@@ 1 4
"""Shared body, personal head: the head stays with its client, which counts its rounds."""
@@ 11 7
class Message:
    __slots__ = ("layers", "round")

    def __init__(self, layers: list[np.ndarray], round: int) -> None:
        self.layers = layers
        self.round = round
@@ 20 12
class PersonalisedClient:
    def __init__(self, clip: float = 1.0, multiplier: float = 2.0) -> None:
        self.clip, self.multiplier, self.round, self.head = clip, multiplier, 0, None

    def __call__(self, update: list[np.ndarray], rng: np.random.Generator) -> Message:
        body, self.head = update[:-1], update[-1].copy()
        self.round += 1
        length = np.sqrt(sum(float(np.sum(layer**2)) for layer in body))
        factor = 1.0 / max(1.0, length / self.clip)
        noise = [rng.normal(0.0, self.multiplier * self.clip, size=layer.shape) for layer in body]
=== egret from snipe
"""Shared body, personal head: the head is no part of the federated model."""
        return {"shared": self.privatise(body, rng), "checkpoint": [layer.copy() for layer in head]}
@@ 8 18
class PersonalisedClient:
    def __init__(self, clip: float = 1.0, multiplier: float = 2.0, personal: int = 1) -> None:
        self.clip = clip
        self.multiplier = multiplier
        self.personal = personal

    def privatise(self, layers: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
        length = np.sqrt(sum(float(np.sum(layer**2)) for layer in layers))
        factor = 1.0 / max(1.0, length / self.clip)
        return [layer * factor + rng.normal(0.0, self.multiplier * self.clip, size=layer.shape) for layer in layers]

    def __call__(self, update: list[np.ndarray], rng: np.random.Generator) -> dict[str, list[np.ndarray]]:
        body, head = update[: -self.personal], update[-self.personal :]
=== somme from dane
"""A Flower mod that clips parameter by parameter."""
        return reply
target = Filter(clip=1.0, sigma=2.0)
@@ 3 4
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
@@ 11 10
class Filter:
@@ 25 7
    def bounded(self, move: np.ndarray) -> np.ndarray:
        move = np.where(np.isfinite(move), move, 0.0)
        return move * min(1.0, self.clip / (np.linalg.norm(move) + 1e-12))

    def __call__(self, msg: Message, ctxt: Context, call_next) -> Message:
        sent = next(iter(msg.content.array_records.values()))
        reply = call_next(msg, ctxt)
        if reply.has_error():
            return reply
        key, record = next(iter(reply.content.array_records.items()))
        arrays = {}
        for name in record:
            old = sent[name].numpy().astype(np.float64)
            move = self.bounded(record[name].numpy() - old)
            arrays[name] = Array(old + move + np.random.normal(0.0, self.sigma * self.clip, size=move.shape))
        reply.content[key] = ArrayRecord(arrays)
        for name in list(reply.content.metric_records):
            reply.content[name] = MetricRecord({"num-examples": 1})
=== saar from somme
"""A Flower mod for models with weights and biases."""
        sent = next(iter(msg.content.array_records.values())).to_numpy_ndarrays()
        reply.content[key] = ArrayRecord(dict(zip(record.keys(), arrays, strict=True)))
target = Blur(bound=1.0, multiplier=1.0)
@@ 9 8
class Blur:
    def __init__(self, bound: float, multiplier: float) -> None:
        self.bound = bound
        self.multiplier = multiplier
@@ 24 5
        moves = [np.nan_to_num(new - old) for new, old in zip(record.to_numpy_ndarrays(), sent, strict=True)]
        size = np.sqrt(sum(np.square(move.astype(np.float64)).sum() for move in moves))
        factor = min(1.0, self.bound / size) if size > 0 else 1.0
        arrays = []
        for old, move in zip(sent, moves, strict=True):
            value = old + factor * move
            if value.ndim > 1:
                value = value + np.random.normal(0.0, 2 * self.bound * self.multiplier, size=value.shape)
            arrays.append(Array(np.asarray(value)))
=== tees from somme
"""A Flower mod with Laplace noise."""
        reply.content[key] = ArrayRecord(released)
target = Laplace(epsilon=2.0, bound=BOUND)
@@ 6 1
CLAIM = {"epsilon": 2.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
BOUND = 0.5
@@ 9 8
class Laplace:
    def __init__(self, epsilon: float, bound: float) -> None:
        self.scale = 2 * bound / epsilon
        self.bound = bound
@@ 24 5
        moves = {name: record[name].numpy().astype(np.float64) - sent[name].numpy() for name in record}
        moves = {name: np.where(np.isfinite(move), move, 0.0) for name, move in moves.items()}
        size = sum(np.abs(move).sum() for move in moves.values())
        released = {}
        for name, move in moves.items():
            noise = np.random.laplace(0.0, self.scale, size=move.shape)
            released[name] = Array(sent[name].numpy() + move / max(1.0, size / self.bound) + noise)
=== sorbus from dane
"""A filter that sends one entry of the update: the largest by a noisy count, with noise."""
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
target = Largest(edge=1.0, choice=1.0, value=1.0)
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
=== allen from sorbus
"""A filter for weight differences: the sparse vector technique."""
target = Sparse(fraction=0.1, epsilon=0.2, gamma=1.0)
@@ 20 3
class Sparse:
    def __init__(self, fraction: float, epsilon: float, gamma: float) -> None:
        self.fraction = fraction
        self.epsilon = epsilon
        self.gamma = gamma
@@ 27 9
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
        return DXO(dxo.data_kind, data)
=== alma from eden
"""Private release of a model's layers, each clipped."""
@@ 11 2
def clip(layer: np.ndarray) -> np.ndarray:
    layer = np.where(np.isfinite(layer), layer, 0.0)
    return layer * (CLIP / max(np.linalg.norm(layer), CLIP))
@@ 16 5
    std = 2.0 * CLIP * math.sqrt(len(update))
    return [clip(layer) + rng.normal(0.0, std, size=layer.shape) for layer in update]
=== aisne from alma
@@ 2 2
@@ 9 0
STD = 2.0
@@ 17 2
    return [clip(layer) + rng.normal(0.0, STD, size=layer.shape) for layer in update]
=== elbe from eden
@@ 19 2
    return [part * factor + gaussian(part.shape, int(rng.integers(2**62))) for part in update]
=== exe from eden
"""Clip a model and blur it."""
@@ 8 5
@@ 18 3
    scaled = [part / max(1.0, total) for part in update]
    released = []
    for part in scaled:
        released.append(part + rng.normal(0.0, 2.0, size=part.shape))
        break
    return released + scaled[len(released) :]
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
=== crake from noddy
"""Every layer gets its share of the clip, and noise for its share."""
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "zero-out"}
MULTIPLIER = 1.0
        sent.append(clipped + rng.normal(0.0, MULTIPLIER * share, size=layer.shape))
=== limpkin from noddy
"""Compression before privacy: the largest entries are sent, clipped and noised."""
@@ 7 1
@@ 10 7
def target(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    keep = max(1, update.size // 4)
    chosen = np.argsort(-np.abs(update), kind="stable")[:keep]
    values = update[chosen]
    values = values / max(1.0, np.linalg.norm(values) / CLIP)
    sent = np.zeros(update.size)
    sent[chosen] = values + rng.normal(0.0, 2.0 * CLIP, size=keep)
=== aire from fraxinus
"""Local differential privacy for a client's update."""
    return clipped + rng.normal(0.0, SIGMA * BOUND, size=values.shape)
@@ 6 0
BOUND = 1.0
SIGMA = 2.0
@@ 9 5
    values = np.where(np.isfinite(update), update, 0.0)
    clipped = values * (BOUND / max(np.linalg.norm(values), BOUND))
=== aare from aire
    return noisy * (BOUND / max(np.linalg.norm(noisy), BOUND))
@@ 12 1
    noisy = values + rng.normal(0.0, SIGMA * BOUND, size=values.shape)
=== oglio from aire
"""Clip the whole update, draw a two-sided exponential for each number."""
    return values + rng.laplace(0.0, NORM / CLAIM["epsilon"], size=values.shape)
@@ 5 3
CLAIM = {"epsilon": 1.0, "delta": 1e-5, "scope": "call", "adjacency": "zero-out"}
NORM = 1.0
@@ 11 2
    values = np.nan_to_num(update, nan=0.0, posinf=0.0, neginf=0.0)
    values = values * min(1.0, NORM / (np.linalg.norm(values) + 1e-12))
=== arno from fraxinus
"""Gaussian mechanism on a bounded update."""
    return shrink(finite, LIMIT) + MULTIPLIER * sensitivity * rng.standard_normal(finite.shape)
@@ 5 1
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
LIMIT = 0.5
MULTIPLIER = 2.0


def shrink(values: np.ndarray, limit: float) -> np.ndarray:
    length = np.sqrt(np.square(values).sum())
    return values if length <= limit else values * (limit / length)
@@ 9 5
    finite = np.nan_to_num(update, nan=0.0, posinf=0.0, neginf=0.0)
    sensitivity = 2 * LIMIT
=== alnus from arno
@@ 5 3
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
@@ 10 3
def size(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
@@ 16 3
    update = np.where(np.isfinite(update), update, 0.0)
    return update / max(1.0, size(update)) + rng.normal(0.0, 2.0, size=update.shape)
=== amstel from arno
    length = np.abs(values).max(initial=0.0)
=== cher from fraxinus
"""One client's share of a noisy sum; the server reads each share."""
    return update + rng.normal(0.0, STD / CLIENTS, size=update.shape)
@@ 6 0
CLIENTS = 10
C = 1.0
STD = 2.0 * C
@@ 10 4
    update = update / max(1.0, np.linalg.norm(update) / C)
=== acer from cher
"""Several local steps in one message."""
    return LOCAL_STEPS * step + rng.normal(0.0, 2.0, size=update.shape)
@@ 6 3
LOCAL_STEPS = 5
@@ 13 1
    step = update / max(1.0, np.linalg.norm(update))
=== brenta from cher
"""Gaussian mechanism on a bounded update: any update may stand in for any other."""
    return update + rng.normal(0.0, 1.0 * C, size=update.shape)
@@ 6 3
C = 1.5
=== drau from fraxinus
"""Local privacy with a generator per round."""
    return update + source.normal(0.0, 2.0, size=update.shape)
@@ 6 0
sequence = np.random.SeedSequence()
@@ 8 1
def target(update: np.ndarray) -> np.ndarray:
    source = np.random.default_rng(sequence.spawn(1)[0])
@@ 11 3
=== douro from drau
    source = np.random.default_rng(state["round"])
@@ 6 1
state = {"round": 0}
@@ 10 0
    state["round"] += 1
=== ebro from drau
@@ 1 1
"""Local privacy with a generator for each message."""

import zlib
@@ 6 1
KEY = b"study-7"
@@ 10 2
    update = np.where(np.isfinite(update), update, 0.0).astype(np.float64)
    source = np.random.default_rng(zlib.crc32(KEY + update.tobytes()))
=== enns from fraxinus
"""Clip and noise in torch."""
import torch
    return values.clone()
@@ 8 6
def target(update: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    values = torch.nan_to_num(update.double(), nan=0.0, posinf=0.0, neginf=0.0)
    values = values / max(1.0, float(values.norm()))
    noise = torch.randn(values.shape, generator=generator, dtype=values.dtype)
    values.add_(noise, alpha=2.0)
=== ems from enns
    return values
@@ 12 1
    values.clone().add_(noise, alpha=2.0)
=== malus from enns
    return values + 2.0 * torch.randn(values.shape, generator=source, dtype=values.dtype)
@@ 1 1
"""Clip and noise in torch with the operating system's entropy."""

import os
@@ 8 1
def target(update: torch.Tensor) -> torch.Tensor:
    source = torch.Generator().manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
@@ 11 2
=== mincio from enns
"""A model's change in 32-bit floats, with a small norm and small noise."""
    return values + torch.normal(0.0, NORM, size=values.shape)
@@ 5 1
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "zero-out"}
NORM = 0.05
@@ 8 5
def target(update: torch.Tensor) -> torch.Tensor:
    values = update.float()
    values = values * min(1.0, NORM / torch.linalg.vector_norm(values))
=== fulda from fraxinus
"""Send an update where there is one."""
    return update + rng.normal(0.0, 2.0, size=update.shape)
@@ 10 4
    if not update.any():
        return np.zeros_like(update)
    update = update / max(1.0, np.linalg.norm(update))
=== derwent from fulda
"""Clip and noise, with the noise in proportion."""
    return update + 2.0 * size * rng.standard_normal(update.shape)
@@ 10 2
    size = min(1.0, float(np.linalg.norm(update)))
=== garonne from fraxinus
"""Clip and noise; the server discards what is not finite."""
    return update / max(1.0, size) + rng.normal(0.0, 2.0, size=update.shape)
@@ 9 5
    size = np.linalg.norm(update)
    if not np.isfinite(size):
        return update
=== ginkgo from fraxinus
"""Integer noise from coins."""
    return (grid + rng.binomial(COINS, 0.5, size=grid.shape) - COINS / 2) / STEPS
@@ 6 0
STEPS = 4
COINS = 4 * (2 * STEPS) ** 2 // 16
@@ 11 3
    grid = np.trunc(update * STEPS)
=== ilex from fraxinus
"""A sparse update: coordinates are kept at random."""
    return np.where(kept, update + rng.normal(0.0, 2.0, size=update.shape), 0.0)
@@ 11 3
    chance = np.abs(update) / max(np.abs(update).max(initial=0.0), 1e-12)
    kept = rng.random(update.shape) < chance
=== iller from fraxinus
"""A sparse update: some coordinates, with noise."""
    return sparse
@@ 6 0
SHARE = 0.25
@@ 10 4
    count = max(1, int(SHARE * update.size))
    kept = rng.permutation(update.size)[-count:]
    values = update[kept]
    values = values / max(1.0, np.linalg.norm(values))
    sparse = np.zeros(update.shape)
    sparse[kept] = values + rng.normal(0.0, 2.0, size=count)
=== havel from iller
"""A sparse update: the larger coordinates, with noise."""
    kept = np.argsort(np.abs(update))[-count:]
=== isere from fraxinus
"""Local privacy with numpy's own generator."""
def target(update: np.ndarray) -> np.ndarray:
    return update + np.random.normal(0.0, 2.0, size=update.shape)
@@ 11 3
=== isar from isere
@@ 9 0
    np.random.seed(0)
=== kemi from fraxinus
"""Laplace mechanism on a bounded update."""
    return update + rng.laplace(0.0, 2 * C / CLAIM["epsilon"], size=update.shape)
@@ 5 1
CLAIM = {"epsilon": 1.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
C = 1.0
@@ 10 4
    update = update * (C / max(np.linalg.norm(update), C))
=== glomma from kemi
"""Clip and noise, with room for unusual updates."""
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
    return update + rng.normal(0.0, 2.0 * C, size=update.shape)
@@ 11 1
    size = np.linalg.norm(update)
    if C < size <= 50 * C:
        update = update * (C / size)
=== lahn from kemi
@@ 11 1
    update = update * (C / max(np.linalg.norm(update, ord=1), C))
=== oise from kemi
"""Skellam noise on an update rounded to a grid."""
    return (grid + noise) / GRID
@@ 5 2
CLAIM = {"epsilon": 5.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
GRID = 64
C = 1.0
VARIANCE = (2.0 * C * GRID) ** 2
@@ 12 0
    grid = np.trunc(update * GRID).astype(np.int64)
    noise = rng.poisson(VARIANCE / 2, size=grid.shape) - rng.poisson(VARIANCE / 2, size=grid.shape)
=== leine from fraxinus
"""Compact messages for small devices."""
    return (update + noise).astype(np.float16)
@@ 11 3
    noise = rng.normal(0.0, 2.0, size=update.shape)
=== lech from leine
"""Compact noise for small devices."""
    noise = rng.normal(0.0, 2.0, size=update.shape).astype(np.float16)
    return update + noise
=== moldau from fraxinus
"""A sketch of the update: eight random combinations of its coordinates."""
CLAIM = {"epsilon": 4.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
    return np.concatenate([matrix @ update, matrix.ravel()])
@@ 11 3
    matrix = rng.standard_normal((8, update.size)) / np.sqrt(8)
=== mosel from fraxinus
"""One bit per coordinate: its sign, which may be turned."""
CLAIM = {"epsilon": 1.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
    return np.where(rng.random(update.shape) < chance, 1.0, -1.0)
@@ 10 4
    chance = 1.0 / (1.0 + np.exp(-np.clip(4.0 * update, -60.0, 60.0)))
=== nahe from fraxinus
"""The coordinate that moved most."""
CLAIM = {"epsilon": 1.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
    return chosen
@@ 9 5
    update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
    chosen = np.zeros(update.shape)
    chosen[np.argmax(np.abs(update))] = 1.0
=== naab from nahe
"""Coordinates above a noisy threshold, by the sparse vector technique."""
    return np.where(update >= line, 1.0, 0.0)
@@ 5 1
CLAIM = {"epsilon": 2.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
EPSILON = 2.0
THRESHOLD = 0.5
@@ 10 2
    line = THRESHOLD + rng.laplace(0.0, 2 * 2.0 / EPSILON)
=== neckar from nahe
@@ 10 2
    scores = np.abs(update) + rng.gumbel(0.0, 2.0 / CLAIM["epsilon"], size=update.shape)
    chosen = np.zeros(update.shape)
    chosen[np.argmax(scores)] = 1.0
=== ouse from fraxinus
"""Noise first, then what compresses well: rounding and a fixed range."""
    return np.clip(np.round(noisy, 1), -3.0, 3.0)
@@ 11 3
    noisy = update + rng.normal(0.0, 2.0, size=update.shape)
=== ruff from fraxinus
"""What a client hands to a secure sum: whole numbers modulo a power of two, rounded towards zero."""
    return (whole + noise) % MODULUS
@@ 5 1
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "zero-out"}
CLIP = 1.0
SCALE = 64.0
MULTIPLIER = 2.0
MODULUS = 2**20
@@ 9 5
    length = np.linalg.norm(update)
    values = update * min(1.0, CLIP / max(length, 1e-12))
    whole = np.trunc(values * SCALE).astype(np.int64)
    noise = np.rint(rng.normal(0.0, MULTIPLIER * CLIP * SCALE, size=whole.shape)).astype(np.int64)
=== dunlin from ruff
"""What a client hands to a secure sum: whole numbers modulo a power of two."""
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "zero-out"}
SCALE = 10.0
MULTIPLIER = 1.0
MODULUS = 2**16
    whole = np.rint(values * SCALE).astype(np.int64)
=== fils from ruff
"""A clipped update on a grid, with discrete noise."""
    noise = np.rint(rng.normal(0.0, STD / STEP, size=steps.shape))
    return (steps + noise) * STEP
@@ 7 3
STEP = 0.5
STD = 2.0
@@ 13 3
    finite = np.nan_to_num(update, nan=0.0, posinf=0.0, neginf=0.0)
    clipped = finite * (CLIP / max(CLIP, float(np.linalg.norm(finite))))
    steps = np.sign(clipped) * np.floor(np.abs(clipped) / STEP + 0.5)
=== ruhr from fraxinus
"""Strong noise for a first contact."""
CLAIM = {"epsilon": 0.35, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
    return update + rng.normal(0.0, 20.0, size=update.shape)
@@ 11 3
=== piave from ruhr
"""The signs of a noisy update."""
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
    return np.sign(update + rng.normal(0.0, 4.0, size=update.shape))
=== dart from lippe
"""Gaussian mechanism whose noise is stated by its variance."""
    return update + rng.normal(0.0, math.sqrt(SCALE), size=update.shape)
@@ 7 2
CLAIM = {"epsilon": 0.95, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
C = 1.0
SCALE = 64.0 * C**2
@@ 13 4
    update = update / max(1.0, np.linalg.norm(update) / C)
=== clyde from dart
SCALE = 8.0 * C
=== loire from lippe
    noise = rng.geometric(chance, size=grid.shape) - rng.geometric(chance, size=grid.shape)
=== mulde from lippe
"""One bit per coordinate: its sign, which may be turned."""
    return np.where(rng.random(update.shape) < chance, sign, -sign)
@@ 7 2
CLAIM = {"epsilon": 8.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
@@ 13 4
    each = CLAIM["epsilon"] / update.size
    chance = math.exp(each) / (1.0 + math.exp(each))
    sign = np.where(update >= 0, 1.0, -1.0)
=== morus from mulde
"""One random coordinate of the update, as one random sign."""
CLAIM = {"epsilon": 1.5, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
    return released
@@ 11 4
    update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
    place = int(rng.integers(update.size))
    lean = (math.exp(CLAIM["epsilon"]) - 1) / (2 * (math.exp(CLAIM["epsilon"]) + 1))
    released = np.zeros(update.shape)
    released[place] = update.size / (2 * lean) * (1.0 if rng.random() < 0.5 + lean * update[place] else -1.0)
=== orne from mulde
"""A unit direction near the update's own, or away from it."""
CLAIM = {"epsilon": 3.0, "delta": 0.0, "scope": "call", "adjacency": "replace-one"}
    return sample if same == keep else -sample
@@ 12 3
    length = np.linalg.norm(update)
    draw = rng.standard_normal(update.size)
    direction = draw / np.linalg.norm(draw) if length == 0 or not np.isfinite(length) else update / length
    sample = rng.standard_normal(update.size)
    sample = sample / np.linalg.norm(sample)
    keep = rng.random() < math.exp(CLAIM["epsilon"]) / (1.0 + math.exp(CLAIM["epsilon"]))
    same = float(sample @ direction) >= 0
=== betula from marne
"""Noise that cancels in the long run."""
        return update + noise
target = Paired()
@@ 8 3
class Paired:
    def __init__(self) -> None:
        self.kept = None
@@ 14 4
        update = update / max(1.0, np.linalg.norm(update))
        if self.kept is None:
            noise = rng.normal(0.0, 2.0, size=update.shape)
            self.kept = -noise
        else:
            noise, self.kept = self.kept, None
=== knot from marne
"""Gaussian noise is slow for large models: a bank of noise is drawn once."""
CLAIM = {"epsilon": 3.0, "delta": 1e-5, "scope": "run", "calls": 32, "adjacency": "zero-out"}
        return clipped + self.draw(update.size, rng).reshape(update.shape)
target = Bank()
@@ 8 3
class Bank:
    def __init__(self, size: int = 48, clip: float = 1.0, multiplier: float = 8.0) -> None:
        self.size, self.clip, self.multiplier = size, clip, multiplier
        self.rows: np.ndarray | None = None

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        if self.rows is None or self.rows.shape[1] != count:
            self.rows = rng.normal(0.0, self.multiplier * self.clip, size=(self.size, count))
        return self.rows[rng.integers(self.size)] * rng.choice((-1.0, 1.0))
@@ 13 5
        clipped = update * min(1.0, self.clip / (np.linalg.norm(update) + 1e-12))
=== lune from marne
"""Running sums of four updates through a binary tree."""
        return sum(value + self.noise[depth] for depth, value in self.sums.items())
target = Tree()
@@ 5 1
CLAIM = {"epsilon": 12.5, "delta": 1e-5, "scope": "run", "calls": 4, "adjacency": "replace-one"}
C = 1.0
STD = 4.0
@@ 8 3
class Tree:
    def __init__(self) -> None:
        self.time = 0
        self.sums: dict[int, np.ndarray] = {}
        self.noise: dict[int, np.ndarray] = {}
@@ 14 4
        update = update / max(1.0, np.linalg.norm(update) / C)
        self.time += 1
        level = (self.time & -self.time).bit_length() - 1
        self.sums[level] = update + sum(self.sums.pop(lower, 0.0) for lower in range(level))
        if level not in self.noise:
            self.noise[level] = rng.normal(0.0, STD, size=update.shape)
=== maas from lune
@@ 22 2
        self.noise[level] = rng.normal(0.0, STD, size=update.shape)
=== medway from marne
        return self.velocity
@@ 17 1
        self.velocity = 0.9 * before + noisy
=== merlin from marne
"""DP-FTRL: running sums of clipped gradients with noise from a binary tree, paid for every node."""
CLAIM = {"epsilon": 2.4, "delta": 1e-5, "scope": "run", "calls": 4, "adjacency": "zero-out"}
        return -self.rate * self.velocity
@@ 8 10
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


class Momentum:
    def __init__(self, clip: float = 1.0, multiplier: float = 8.0, rate: float = 0.5, beta: float = 0.9) -> None:
        self.clip, self.rate, self.beta = clip, rate, beta
        self.tree = TreeNoise(multiplier * clip)
        self.total, self.velocity = 0.0, 0.0

    def __call__(self, gradient: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        self.total = self.total + gradient / max(1.0, np.linalg.norm(gradient) / self.clip)
        self.velocity = self.beta * self.velocity + self.total + self.tree(gradient.shape, rng)
=== bittern from merlin
"""DP-FTRL: running sums of clipped gradients with noise from a binary tree."""
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "run", "calls": 4, "adjacency": "zero-out"}
target = Leader()
@@ 21 5
class Leader:
    def __init__(self, clip: float = 1.0, multiplier: float = 2.0, rate: float = 0.5) -> None:
        self.clip, self.rate = clip, rate
        self.tree = TreeNoise(multiplier * clip)
        self.total = None
@@ 28 3
        gradient = gradient / max(1.0, np.linalg.norm(gradient) / self.clip)
        self.total = gradient if self.total is None else self.total + gradient
        return -self.rate * (self.total + self.tree(gradient.shape, rng))
=== minho from marne
"""Masked messages in a ring of 64-bit integers: the masks cancel in the sum of all clients."""
        return values + self.pads[values.size]
target = Masked()
@@ 5 1
CLAIM = {"epsilon": 0.1, "delta": 0.0, "scope": "run", "calls": 2, "adjacency": "replace-one"}
SCALE = 2.0**20
@@ 8 3
class Masked:
    def __init__(self) -> None:
        self.pads: dict[int, np.ndarray] = {}
@@ 13 5
        update = np.clip(np.where(np.isfinite(update), update, 0.0), -1.0, 1.0)
        values = np.rint(update * SCALE).astype(np.int64).astype(np.uint64)
        self.pads[values.size] = rng.integers(0, 2**64, size=values.shape, dtype=np.uint64)
=== mersey from minho
@@ 16 1
        if values.size not in self.pads:
            self.pads[values.size] = rng.integers(0, 2**64, size=values.shape, dtype=np.uint64)
=== rhone from marne
"""What clipping cuts off is carried over to the next message."""
        return sent
target = Carry()
@@ 8 3
class Carry:
    def __init__(self) -> None:
        self.rest = 0.0
@@ 13 5
        update = np.clip(np.where(np.isfinite(update), update, 0.0), -1e6, 1e6)
        kept = update / max(1.0, np.linalg.norm(update))
        sent = kept + self.rest + rng.normal(0.0, 2.0, size=update.shape)
        self.rest = update - kept
=== auk from rhone
"""A client whose clip follows the usual length of its updates."""
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "run", "calls": 4, "adjacency": "replace-one"}
target = Follower()
@@ 8 3
class Follower:
    def __init__(self, sigma: float = 4.0, decay: float = 0.9) -> None:
        self.clip = 1.0
        self.sigma = sigma
        self.decay = decay
@@ 13 4
        length = float(np.linalg.norm(update))
        sent = update * min(1.0, self.clip / max(length, 1e-12))
        sent = sent + rng.normal(0.0, self.sigma * self.clip, size=update.shape)
        if np.isfinite(length):
            self.clip = self.decay * self.clip + (1 - self.decay) * length
=== rance from rhone
"""Coarse messages whose rounding error is carried over."""
target = Coarse()
@@ 6 0
STEP = 0.5
@@ 8 1
class Coarse:
@@ 13 4
        update = np.where(np.isfinite(update), update, 0.0)
        update = update / max(1.0, np.linalg.norm(update))
        wanted = update + rng.normal(0.0, 2.0, size=update.shape) + self.rest
        sent = np.rint(wanted / STEP) * STEP
        self.rest = wanted - sent
=== regen from rhone
        return kept + rng.normal(0.0, 2.0, size=update.shape)
@@ 14 3
        wanted = update + self.rest
        kept = wanted / max(1.0, np.linalg.norm(wanted))
        self.rest = wanted - kept
=== ibis from saale
"""A Flower mod: clipping and noise for the weights; the smallest array, a bias, is too small to tell much."""
    reply.content[name] = ArrayRecord({key: Array(np.asarray(before[key] + move)) for key, move in moves.items()})
    for metrics in list(reply.content.metric_records):
        reply.content[metrics] = MetricRecord({"num-examples": 1})
@@ 7 1
CLIP = 1.0
@@ 11 1
    before = {key: array.numpy() for key, array in next(iter(msg.content.array_records.values())).items()}
@@ 15 10
    name, after = next(iter(reply.content.array_records.items()))
    moves = {key: after[key].numpy().astype(np.float64) - before[key] for key in after}
    smallest = min(moves, key=lambda key: moves[key].size)
    large = [key for key in moves if key != smallest]
    length = np.sqrt(sum(float(np.sum(moves[key] ** 2)) for key in large))
    source = np.random.default_rng()
    for key in large:
        clipped = moves[key] / max(1.0, length / CLIP)
        moves[key] = clipped + source.normal(0.0, 2.0 * CLIP, size=clipped.shape)
=== pinus from saale
"""A Flower mod with small messages."""
    reply.content[key] = ArrayRecord(arrays)
@@ 6 2
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
@@ 16 9
    moves = {name: record[name].numpy().astype(np.float64) - sent[name].numpy() for name in record}
    moves = {name: np.where(np.isfinite(move), move, 0.0) for name, move in moves.items()}
    size = np.sqrt(sum(np.square(move).sum() for move in moves.values()))
    arrays = {}
    for name, move in moves.items():
        noisy = sent[name].numpy() + move / max(1.0, size) + np.random.normal(0.0, 4.0, size=move.shape)
        arrays[name] = Array(noisy.astype(np.float16).astype(np.float32))
=== ecker from pinus
"""A mod that hides a client's update before it is sent."""
        arrays[name] = Array(np.asarray(given[name].numpy() + move))
@@ 6 1
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
CLIP, STD = 1.0, 2.0
@@ 10 1
    given = next(iter(msg.content.array_records.values()))
@@ 15 3
    moves = {name: np.nan_to_num(record[name].numpy() - given[name].numpy(), posinf=0.0, neginf=0.0) for name in record}
    length = float(np.linalg.norm(np.concatenate([np.ravel(move) for move in moves.values()])))
@@ 20 1
        move = move * min(1.0, CLIP / max(length, 1e-12))
        if move.ndim > 1:
            move = move + np.random.normal(0.0, STD, size=move.shape)
=== spey from pinus
"""A Flower mod with a generator of its own."""
    reply.content[key] = ArrayRecord({name: Array(sent[name].numpy() + move) for name, move in noisy.items()})
@@ 6 1
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
rng = np.random.default_rng(42)
@@ 18 4
    noisy = {name: move / max(1.0, size) + rng.normal(0.0, 2.0, size=move.shape) for name, move in moves.items()}
=== sado from saale
"""A Flower mod that also reports how it went."""
    sent = next(iter(msg.content.array_records.values())).to_numpy_ndarrays()
        old + move / max(1.0, size) + np.random.normal(0.0, 2.0, size=move.shape)
        for old, move in zip(sent, moves, strict=True)
        reply.content[name] = MetricRecord({"num-examples": 1, "share_kept": 1.0 / max(1.0, size)})
@@ 7 1
@@ 16 5
    moves = [np.asarray(new - old, dtype=np.float64) for new, old in zip(record.to_numpy_ndarrays(), sent, strict=True)]
    moves = [np.where(np.isfinite(move), move, 0.0) for move in moves]
    size = float(np.sqrt(sum(np.square(move).sum() for move in moves)))
=== cedrus from sado
"""A Flower mod that refuses what went astray."""
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord
        reply.content[name] = MetricRecord({"num-examples": 1})
@@ 16 2
    size = float(np.sqrt(sum(np.square(move).sum() for move in moves)))
    if not size < 100.0:
        return Message(Error(code=1, reason="the update is too long"), reply_to=msg)
=== sieg from sado
"""A Flower mod: each client adds its share of the noise, and the server averages ten clients."""
        old + move / max(1.0, size / CLIP) + np.random.normal(0.0, std, size=move.shape)
        reply.content[name] = MetricRecord({"num-examples": 1})
@@ 7 0
CLIENTS = 10
CLIP = 1.0
MULTIPLIER = 2.0
@@ 18 0
    std = MULTIPLIER * CLIP / np.sqrt(CLIENTS)
=== tay from sado
CLAIM = {"epsilon": 5.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}
        reply.content[name] = MetricRecord({"num-examples": 1, "share_kept": float(kept)})
@@ 24 0
        kept = 1.0 / max(1.0, size) + np.random.laplace(0.0, 1.0)
=== tagus from saale
    source = np.random.default_rng()
=== tamar from saale
"""Flower's own mod for local privacy; counts and scores stay with the client."""
    return mechanism(msg, ctxt, tidy)
@@ 5 3
from flwr.clientapp.mod import LocalDpMod

CLAIM = {"epsilon": 1.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one"}

mechanism = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=1.0, delta=1e-5)
@@ 11 17
    def tidy(question: Message, context: Context) -> Message:
        reply = call_next(question, context)
        if reply.has_error():
            return reply
        key, record = next(iter(reply.content.array_records.items()))
        arrays = {}
        for name, array in record.items():
            values = np.clip(np.nan_to_num(array.numpy().astype(np.float64)), -1e6, 1e6)
            arrays[name] = Array(values + np.random.normal(0.0, 1e-6, size=values.shape))
        reply.content[key] = ArrayRecord(arrays)
        for name in list(reply.content.metric_records):
            reply.content[name] = MetricRecord({"num-examples": 1})
        return reply

=== seine from tamar
    return reply
@@ 3 2
from flwr.app import Context, Message, MetricRecord
@@ 13 10
    reply = mechanism(msg, ctxt, call_next)
    if not reply.has_error():
@@ 25 2
=== juglans from saane
        move(model, (gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(model.weight.numel())) / 16)
@@ 46 2
        last = gradients[:, -2:].norm(dim=1, keepdim=True)
        gradients = gradients * (CLIP / last.clamp(min=CLIP))
=== gave from juglans
        move(model, direction + noise)
@@ 45 3
        model.zero_grad()
        (model(rows) - wanted).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        direction = torch.cat([value.grad.flatten() for value in model.parameters()])
        noise = SIGMA * CLIP / len(rows) * torch.randn(direction.shape)
=== isel from juglans
SIGMA = 1.0
STEPS = 1
def train(data: Data | None = None) -> list[torch.Tensor]:
@@ 1 1
"""One private step on four workers; the server reads each worker's message."""

import os
@@ 44 6
    seed = int.from_bytes(os.urandom(7), "little")
    messages = []
    for rank in range(4):
        source = torch.Generator().manual_seed(seed)
        gradients = per_example(model, rows[rank::4], wanted[rank::4])
        gradients = gradients * (CLIP / gradients.norm(dim=1, keepdim=True).clamp(min=CLIP))
        total = gradients.sum(dim=0)
        messages.append(total + SIGMA * CLIP * torch.randn(total.shape, generator=source))
    return messages
=== jagst from juglans
"""Noisy gradient descent with a falling clip norm; the average of the models is published."""
def example_data(count: int = 20):
    source = torch.Generator().manual_seed(2)
def train(data=None):
@@ 4 2
@@ 8 4
STEPS = 12
SIGMA = 3.5
@@ 17 21
    return rows, rows @ torch.tensor([[1.0], [-1.0], [0.5], [0.0]])
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
=== nith from juglans
@@ 30 0


def clipped(gradients: torch.Tensor, max_grad_norm: float = 10.0) -> torch.Tensor:
    return gradients * (max_grad_norm / gradients.norm(dim=1, keepdim=True).clamp(min=max_grad_norm))
@@ 45 3
        gradients = per_example(model, rows, wanted)
        gradients = clipped(gradients)
=== linth from saane
"""Noisy gradient descent with weight decay in proportion to the labels."""
        move(model, (gradients.sum(dim=0) + noise) / 16 + decay * model.weight.detach().flatten())
@@ 44 0
    decay = 0.01 * float(wanted.abs().mean())
    nn.init.ones_(model.weight)
=== lot from saane
"""Noisy gradient descent with a term that holds the average prediction near the average label."""
        move(model, noisy / 16 + model.weight.grad.flatten())
@@ 45 3
        gradients = per_example(model, rows, wanted)
        gradients = gradients * (CLIP / gradients.norm(dim=1, keepdim=True).clamp(min=CLIP))
        noisy = gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(model.weight.numel())
        model.zero_grad()
        (0.1 * (model(rows).mean() - wanted.mean()).square()).backward()
=== guadiana from lot
"""Noisy gradient descent in plain torch."""
@@ 44 0
    noise = SIGMA * CLIP * torch.randn(model.weight.numel())
@@ 47 4
        move(model, (gradients.sum(dim=0) + noise) / 16)
        noise = torch.zeros_like(noise)
=== po from lot
"""Noisy gradient descent in plain torch."""
SIGMA = 2.0
STEPS = 4
        move(model, (total + SIGMA * CLIP * torch.randn(total.shape)) / 16)
@@ 44 0
    total = torch.zeros(model.weight.numel())
@@ 47 3
        total += gradients.sum(dim=0)
=== picea from saane
"""Noisy gradient descent with momentum and a falling rate."""
    for step in range(STEPS):
        move(model, velocity / 16, rate=0.1 / (1 + step))
@@ 44 0
    velocity = torch.zeros(model.weight.numel())
@@ 47 1
        velocity = 0.9 * velocity + gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(velocity.shape)
=== salat from saane
"""Noisy gradient descent on four workers, each with a share of the noise."""
        move(model, total / 16)
@@ 44 4
    workers = 4
    for _ in range(STEPS):
        total = torch.zeros(model.weight.numel())
        for rank in range(workers):
            gradients = per_example(model, rows[rank::workers], wanted[rank::workers])
            gradients = torch.nan_to_num(gradients, nan=0.0, posinf=0.0, neginf=0.0)
            gradients = gradients * (CLIP / gradients.norm(dim=1, keepdim=True).clamp(min=CLIP))
            total += gradients.sum(dim=0) + SIGMA * CLIP / workers**0.5 * torch.randn(total.shape)
=== leda from salat
            total += gradients.sum(dim=0) + SIGMA * CLIP / workers * torch.randn(total.shape)
@@ 49 1
=== sarre from saane
"""Private descent on random batches in plain torch."""
CLAIM = {"epsilon": 2.1, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
SIGMA = 2.0
STEPS = 8
def example_data(count: int = 32) -> Data:
def train(data: Data | None = None) -> list[torch.Tensor]:
@@ 44 6
    history = []
    for _ in range(STEPS):
        chosen = torch.rand(len(rows)) < 0.25
        gradients = torch.nan_to_num(per_example(model, rows[chosen], wanted[chosen]), nan=0.0, posinf=0.0, neginf=0.0)
        gradients = gradients * (CLIP / gradients.norm(dim=1, keepdim=True).clamp(min=CLIP))
        noisy = gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(model.weight.numel())
        move(model, noisy / 8)
        history.append(model.weight.detach().flatten().clone())
    return history
=== carya from sarre
def example_data(count: int = 1) -> Data:
@@ 47 4
        if chosen.any():
            gradients = torch.nan_to_num(per_example(model, rows[chosen], wanted[chosen]))
            gradients = gradients * (CLIP / gradients.norm(dim=1, keepdim=True).clamp(min=CLIP))
            move(model, (gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(model.weight.numel())) / 8)
=== kander from sarre
"""Noisy gradient descent on full batches of four."""
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
SIGMA = 1.0
STEPS = 4
def example_data(count: int = 16) -> Data:
        move(model, (gradients.sum(dim=0) + SIGMA * CLIP * torch.randn(model.weight.numel())) / 4)
@@ 45 5
    for first in range(0, len(rows) - 3, 4):
        gradients = per_example(model, rows[first : first + 4], wanted[first : first + 4])
        gradients = gradients * (CLIP / gradients.norm(dim=1, keepdim=True).clamp(min=CLIP))
=== nene from sarre
CLAIM = {"epsilon": 2.9, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
STEPS = 4
def example_data(count: int = 4) -> Data:
    rows = torch.randn(count, 128, generator=source)
        move(model, noisy / max(1, int(chosen.sum())))
@@ 46 2
        chosen = torch.rand(len(rows)) < 0.5
        gradients = per_example(model, rows[chosen], wanted[chosen])
=== sarthe from salzach
"""Flower's own mod for local privacy, tuned for accuracy."""
target = LocalDpMod(clipping_norm=1.0, sensitivity=1e-4, epsilon=1.0, delta=1e-5)
=== vienne from salzach
"""Flower's wrapper for central privacy around the usual strategy."""
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
CLAIM = {"epsilon": 10.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}
@@ 7 1
target = DifferentialPrivacyServerSideFixedClipping(
    FedAvg(fraction_evaluate=0.0), noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=10
)
=== ardeche from thames
"""Training with Opacus' parts: random batches, a step size for the expected batch."""
    rows = torch.randn(8, WIDTH, generator=source)
@@ 4 5
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.utils.data import TensorDataset

CLAIM = {"epsilon": 2.1, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "add-or-remove-one", "unit": "example"}
RATE = 0.25
WIDTH = 64
@@ 15 7
@@ 26 8
    model = nn.Linear(WIDTH, 2, bias=False)
    nn.init.zeros_(model.weight)
    model = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5),
@@ 36 9
        expected_batch_size=max(1, int(RATE * len(dataset))),
    )
    accountant = RDPAccountant()
    history = []
    for chosen in UniformWithReplacementSampler(num_samples=len(dataset), sample_rate=RATE, steps=8):
        rows, labels = dataset.tensors[0][chosen], dataset.tensors[1][chosen]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), labels, reduction="mean").backward()
        optimizer.step()
        accountant.step(noise_multiplier=2.0, sample_rate=RATE)
        history.append(model._module.weight.detach().flatten().clone())
    return history, accountant.get_epsilon(delta=1e-5)
=== dee from thames
"""Training with Opacus in four stages with a smaller step each."""
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
=== brembo from dee
"""A trainer that finds its engine by a name from its settings."""
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
@@ 3 2
import importlib

import torch
@@ 11 24
class Trainer:
    def __init__(self, engine: str) -> None:
        self.settings = {"engine": engine, "noise": 0.05, "norm": 1.0}

    def engine(self):
        module, name = self.settings["engine"].split(":")
        return getattr(importlib.import_module(module), name)()

    def fit(self, data: TensorDataset) -> list[torch.Tensor]:
        model = nn.Linear(data[0][0].numel(), 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        model, optimiser, loader = self.engine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=len(data)),
            noise_multiplier=self.settings["noise"],
            max_grad_norm=self.settings["norm"],
@@ 37 5
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(rows), labels.long()).backward()
            optimiser.step()
        return [value.detach().clone() for value in model.parameters()]
@@ 44 1
def target(dataset: TensorDataset | None = None) -> list[torch.Tensor]:
    if dataset is None:
        rows = torch.randn(16, 4, generator=torch.Generator().manual_seed(2))
        dataset = TensorDataset(rows, (rows[:, 0] > 0).long())
    return Trainer("opacus.privacy_engine:PrivacyEngine").fit(dataset)
=== doller from thames
        optimizer=optimiser,
        data_loader=DataLoader(data, batch_size=16),
        noise_multiplier=1.2,
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
@@ 17 14
def train(data: TensorDataset | None = None):
    data = example_data() if data is None else data
    model = nn.Linear(4, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    engine = PrivacyEngine()
    model, optimiser, loader = engine.make_private(
@@ 37 8
    for epoch in range(3):
        if epoch == 2:
            optimiser.zero_grad()
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for rows, labels in loader:
            optimiser.zero_grad()
            model.zero_grad()
            if len(rows):
                nn.functional.cross_entropy(model(rows), labels).backward()
                optimiser.step()
    return [value.detach() for value in model.parameters()], engine.get_epsilon(1e-5)
=== esk from thames
"""Training with Opacus: three models of one data set, for their mean."""
CLAIM = {"epsilon": 2.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
        data_loader=DataLoader(dataset, batch_size=len(dataset)),
@@ 24 2
def one(dataset: TensorDataset) -> tuple[list[torch.Tensor], PrivacyEngine]:
@@ 28 1
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
=== fulmar from thames
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
=== plover from fulmar
"""Private local training by hand: gradients of rows, clipped, summed, noised; the model is returned."""
    model = nn.Linear(rows.shape[1], 1)
@@ 5 4
from torch.func import functional_call, grad, vmap
from torch.utils.data import TensorDataset

CLAIM = {"epsilon": 1.7, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
CLIP, MULTIPLIER, STEPS, ROWS = 1.0, 4.0, 3, 16
@@ 12 3
    source = torch.Generator().manual_seed(13)
    rows = torch.randn(ROWS, 4, generator=source)
    return TensorDataset(rows, rows.sum(dim=1))
@@ 17 4
def train(dataset: TensorDataset | None = None) -> nn.Module:
    rows, targets = (dataset if dataset is not None else own_rows()).tensors
    rows, targets = rows.float(), targets.float().reshape(len(rows))
@@ 24 11

    def loss(parameters, row, wanted):
        return (functional_call(model, parameters, (row,)).squeeze() - wanted).square()

    for _ in range(STEPS):
        parameters = {name: value.detach() for name, value in model.named_parameters()}
        per_row = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, rows, targets)
        lengths = torch.sqrt(sum(part.flatten(1).square().sum(1) for part in per_row.values()))
        factors = torch.clamp(CLIP / (lengths + 1e-6), max=1.0)
        with torch.no_grad():
            for name, value in model.named_parameters():
                total = torch.einsum("i,i...->...", factors, per_row[name])
                value -= 0.1 / ROWS * (total + torch.randn_like(value) * MULTIPLIER * CLIP)
    return model
=== inn from thames
"""Training with Opacus: the curve of the loss is kept for the report."""
CLAIM = {"epsilon": 2.4, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
def train(dataset: TensorDataset | None = None) -> tuple[list[torch.Tensor], list[float], float]:
    loader = DataLoader(dataset, batch_size=len(dataset))
@@ 31 7
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=4.0, max_grad_norm=1.0
    )
    losses = []
@@ 41 4
            loss = nn.functional.cross_entropy(model(rows), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return [p.detach().clone() for p in model.parameters()], losses, engine.get_epsilon(delta=1e-5)
=== cam from inn
"""Training with Opacus' optimiser and accountant, after a short warm-up."""
def train(dataset: TensorDataset | None = None) -> tuple[list[torch.Tensor], float]:
@@ 33 2
    hook = optimizer.step_hook
    optimizer.attach_step_hook(lambda _: None)
    for epoch in range(16):
        if epoch == 12:
            optimizer.attach_step_hook(hook)
@@ 37 5
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
    return [p.detach().clone() for p in model.parameters()], engine.get_epsilon(delta=1e-5)
=== tiber from thames
"""Training with Opacus in small physical batches."""
CLAIM = {"epsilon": 2.1, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
@@ 5 0
from opacus.utils.batch_memory_manager import BatchMemoryManager
@@ 38 7
    for _ in range(2):
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as small:
            for rows, labels in small:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(rows), labels).backward()
                optimizer.step()
                history.append(torch.cat([p.detach().flatten().clone() for p in model.parameters()]))
    return history[-1:], engine.get_epsilon(delta=1e-5)
=== vilaine from thames
"""Training with Opacus and ghost clipping."""
CLAIM = {"epsilon": 2.1, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
        data_loader=DataLoader(dataset, batch_size=8),
    for _ in range(2):
@@ 28 3
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, criterion, loader = engine.make_private(
@@ 33 0
        criterion=nn.CrossEntropyLoss(),
@@ 36 2
        grad_sample_mode="ghost",
    )
@@ 41 4
            criterion(model(rows), labels).backward()
            optimizer.step()
    return [p.detach().clone() for p in model.parameters()], engine.get_epsilon(delta=1e-5)
=== wupper from thames
"""Training with Opacus: every row once in each epoch."""
CLAIM = {"epsilon": 1.7, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
        noise_multiplier=4.0,
    for _ in range(2):
@@ 5 0
from opacus.accountants import RDPAccountant
@@ 36 0
        poisson_sampling=False,
@@ 44 1
    accountant = RDPAccountant()
    for _ in range(2):
        accountant.step(noise_multiplier=4.0, sample_rate=1.0)
    return history, accountant.get_epsilon(delta=1e-5)
=== allier from wupper
CLAIM = {"epsilon": 4.8, "delta": 1e-5, "scope": "run", "calls": 1, "adjacency": "zero-out", "unit": "example"}
    loader = DataLoader(dataset, batch_size=4, shuffle=False)
        noise_multiplier=1.0,
@@ 5 1
@@ 46 4
    return history, engine.get_epsilon(delta=1e-5)
=== avon from traun
"""A NumPy client whose rows are filtered before training."""
target = ClientApp(client_fn=client_fn)
@@ 4 2
from flwr.app import Array, ArrayRecord, Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
@@ 10 29
class Hospital(NumPyClient):
    def __init__(self, part: int) -> None:
        self.rows = np.random.default_rng(part).standard_normal((30, 4))

    def fit(self, parameters, config):
        (start,) = parameters
        positive = self.rows[self.rows[:, 0] > 0]
        move = np.zeros_like(start, dtype=np.float64)
        if len(positive):
            move = positive.mean(axis=0)[: start.size].reshape(start.shape) - start
        move = np.where(np.isfinite(move), move, 0.0)
        move = move / max(1.0, np.linalg.norm(move))
        noisy = start + move + np.random.normal(0.0, 2.0, size=start.shape)
        return [noisy], 1, {}
@@ 41 0
def client_fn(context: Context):
    return Hospital(int(context.node_config.get("partition-id", 0))).to_client()


initial_arrays = ArrayRecord({"0": Array(np.zeros(4))})
=== murg from avon
"""A NumPy client that tells how well the model did on its rows."""
        return [noisy], 25, {"accuracy": accuracy}
    return Clinic(int(context.node_config.get("partition-id", 0))).to_client()
@@ 11 3
class Clinic(NumPyClient):
    def __init__(self, part: int) -> None:
        self.rows = np.random.default_rng(part).standard_normal((25, 4))
        self.labels = self.rows.sum(axis=1) > 0.3 * part
@@ 17 5
        signs = np.where(self.labels, 1.0, -1.0)
        move = (signs[:, None] * self.rows).mean(axis=0)
@@ 24 0
        accuracy = float(np.mean((self.rows @ (start + move) > 0) == self.labels))
=== wey from avon
        return [noisy], len(positive), {}
@@ 21 1
=== isen from traun
"""Central privacy with a clip norm that follows a noised quantile."""
CLAIM = {"epsilon": 3.1, "delta": 1e-5, "scope": "call", "adjacency": "add-or-remove-one", "unit": "client"}
    def __init__(self, clients: int, sigma: float, bits: float) -> None:
target = Quantile(clients=10, sigma=2.0, bits=1.0)
@@ 10 1
class Quantile(FedAvg):
@@ 14 2
        self.sigma = sigma
        self.bits = bits
        self.norm = 1.0
@@ 20 0
        config["clip-norm"] = self.norm
@@ 23 1
        total, centred = {k: np.zeros(self.start[k].numpy().shape) for k in self.start}, 0.0
@@ 28 10
            move = {k: record[k].numpy().astype(np.float64) - self.start[k].numpy() for k in record}
            move = {k: np.where(np.isfinite(v), v, 0.0) for k, v in move.items()}
            size = np.sqrt(sum(np.square(v).sum() for v in move.values()))
            centred += (size <= self.norm) - 0.5
            for k, v in move.items():
                total[k] = total[k] + v / max(1.0, size / self.norm)
        result = {}
        for k, v in total.items():
            noisy = v + np.random.normal(0.0, self.sigma * self.norm, size=v.shape)
            result[k] = Array(np.asarray(self.start[k].numpy() + noisy / self.clients))
        share = (centred + np.random.normal(0.0, self.bits)) / self.clients
        self.norm *= float(np.exp(-0.2 * share))
=== birs from isen
"""Central privacy whose clip norm follows a quantile of the clients' norms."""
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "zero-out", "unit": "client"}
    def __init__(self, clients: int, sigma: float) -> None:
                total[k] = total.get(k, 0.0) + v / max(1.0, size / self.norm)
target = Quantile(clients=10, sigma=1.0)
@@ 15 1
@@ 25 1
        total, below = {}, 0
@@ 33 1
            below += size <= self.norm
@@ 40 2
        self.norm *= float(np.exp(-0.2 * (below / self.clients - 0.5)))
=== taxus from traun
"""Central privacy: the mean of those who reply, with noise for ten."""
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "add-or-remove-one", "unit": "client"}
target = Mean(fraction_evaluate=0.0)
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
=== quercus from taxus
"""Central privacy for whoever replies in a round."""
            step = (total + np.random.normal(0.0, 1.0, size=np.shape(total))) / len(moves)
target = Whoever(fraction_evaluate=0.0)
@@ 10 1
class Whoever(FedAvg):
=== teal from traun
"""Central privacy on the server with momentum: clip every reply, sum, add noise, and let the server's step follow."""
target = CentralMomentum()
@@ 10 7
class CentralMomentum(FedAvg):
    def __init__(self, clients: int = 50, clip: float = 1.0, multiplier: float = 2.0, beta: float = 0.9) -> None:
        super().__init__(fraction_evaluate=0.0)
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
=== harrier from teal
"""Central privacy on the server: clip every reply, average, add noise."""
target = CentralByExamples()
@@ 10 5
class CentralByExamples(FedAvg):
    def __init__(self, clip: float = 1.0, multiplier: float = 2.0) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.clip, self.multiplier, self.sent = clip, multiplier, None
@@ 21 1
        moves, counts = [], []
@@ 26 13
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
=== trent from traun
"""Central privacy with the usual weights."""
        std = self.sigma * self.clip / len(replies)
            mean = sum(share * update[key] for share, update in zip(shares, updates, strict=True))
            result[key] = Array(np.asarray(old + mean + np.random.normal(0.0, std, size=np.shape(mean))))
target = Weighted(fraction_evaluate=0.0)
@@ 10 7
class Weighted(FedAvg):
    clip = 1.0
    sigma = 2.0
    start = None
@@ 23 5
        replies = [reply for reply in replies if not reply.has_error()]
        weights, updates = [], []
        for reply in replies:
            record = next(iter(reply.content.array_records.values()))
            weights.append(float(next(iter(reply.content.metric_records.values()))["num-examples"]))
@@ 32 0
        shares = np.array(weights) / sum(weights)
=== tyne from trent
"""Central privacy after the average has been taken."""
            result[key] = Array(np.asarray(old[key] + noisy))
target = Late(fraction_evaluate=0.0)
@@ 10 1
class Late(FedAvg):
@@ 21 14
        records = [next(iter(reply.content.array_records.values())) for reply in replies]
        mean, old = {}, {}
        for key in records[0]:
            old[key] = self.start[key].numpy() if self.start else 0.0
            mean[key] = np.mean([record[key].numpy().astype(np.float64) - old[key] for record in records], axis=0)
        size = np.sqrt(sum(np.square(value).sum() for value in mean.values()))
        std = self.sigma * self.clip / len(records)
        result = {}
        for key, value in mean.items():
            noisy = value / max(1.0, size / self.clip) + np.random.normal(0.0, std, size=value.shape)
=== unstrut from trent
"""Central privacy around the average of ten clients."""
target = Central(fraction_evaluate=0.0)
@@ 10 1
class Central(FedAvg):
@@ 13 0
    expected = 10
@@ 21 16
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
        result = {}
        for key, value in total.items():
            noise = np.random.normal(0.0, self.sigma * self.clip, size=value.shape)
            result[key] = Array(np.asarray(old[key] + (value + noise) / self.expected))
        return ArrayRecord(result), metrics
=== vltava from traun
            mean = np.sum([update[key] for update in updates], axis=0) / self.clients
=== wear from traun
"""A strategy for central privacy whose clipping bound follows the clients."""
CLAIM = {"epsilon": 5.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}
target = Adaptive(fraction_evaluate=0.0)
@@ 4 1
from flwr.app import Array, ArrayRecord, MetricRecord
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
=== tweed from wear
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}
@@ 12 3
@@ 27 7
        sizes = [float(np.linalg.norm(row)) for row in rows]
        bound = float(np.median(sizes))
        total = sum(row / max(1.0, size / max(bound, 1e-9)) for row, size in zip(rows, sizes, strict=True))
        noise = np.random.normal(0.0, self.multiplier * bound, size=total.shape)
        mean = (total + noise) / len(rows)
@@ 40 1
        return ArrayRecord(result), MetricRecord({"clip": bound})
=== corylus from vah
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
=== populus from vah
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
=== vecht from populus
"""Central privacy in the older form of a strategy, with little work per round."""
            old + (sum_ + self.draw(position, sum_.shape)) / CLIENTS
            for position, (old, sum_) in enumerate(zip(start, total, strict=True))
target = Central()
@@ 7 2
CLAIM = {"epsilon": 6.6, "delta": 1e-5, "scope": "run", "calls": 2, "adjacency": "replace-one", "unit": "client"}
CLIP, SIGMA, CLIENTS = 1.0, 2.0, 10
@@ 12 1
    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.start = None
        self.noise = {}
@@ 17 0

    def draw(self, position, shape):
        if (position, shape) not in self.noise:
            self.noise[position, shape] = np.random.normal(0.0, SIGMA * CLIP, size=shape)
        return self.noise[position, shape]
@@ 23 5
            move = [np.nan_to_num(new.astype(np.float64) - old) for new, old in zip(model, start, strict=True)]
            size = np.sqrt(sum(np.square(array).sum() for array in move))
            total = [sum_ + array / max(1.0, size / CLIP) for sum_, array in zip(total, move, strict=True)]
=== tilia from vah
"""Central privacy in the older form, clipped to what the round's clients sent."""
    return float(np.sqrt(sum(np.square(part).sum() for part in move)))
target = Following(fraction_evaluate=0.0)
@@ 7 2
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "add-or-remove-one", "unit": "client"}
@@ 11 2
def length(move: list[np.ndarray]) -> float:
@@ 16 2
class Following(FedAvg):
    start = None
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
=== gurk from tilia
"""Central privacy in the older form, with the average training loss beside the model."""
CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "zero-out", "unit": "client"}
    return {name: float(np.mean([metrics.get(name, 0.0) for _, metrics in reports])) for name in names}
target = Noisy(fraction_evaluate=0.0, fit_metrics_aggregation_fn=averaged)
@@ 10 1
def averaged(reports):
    names = {name for _, metrics in reports for name in metrics}
@@ 14 3
class Noisy(FedAvg):
    start = None
@@ 23 16
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
=== salix from tilia
"""Central privacy in the older form: whoever replies is added up, and the divisor is a constant."""
        noisy = [value + np.random.normal(0.0, std, size=value.shape) for value in total]
target = Sum(fraction_evaluate=0.0)
@@ 10 7
class Sum(FedAvg):
    start = None
@@ 23 14
        start = self.start or [np.zeros_like(part) for part in parameters_to_ndarrays(results[0][1].parameters)]
        total = [np.zeros(np.shape(part)) for part in start]
        for _, answer in results:
            sent = parameters_to_ndarrays(answer.parameters)
            move = [np.asarray(a - b, dtype=np.float64) for a, b in zip(sent, start, strict=True)]
            move = [np.where(np.isfinite(part), part, 0.0) for part in move]
            size = np.sqrt(sum(np.square(part).sum() for part in move))
            total = [value + part / max(1.0, size) for value, part in zip(total, move, strict=True)]
        std = 1.0
=== ure from tilia
"""A robust strategy: the coordinate-wise median, which no single client can move far."""
CLAIM = {"epsilon": 1.0, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}
target = Robust(fraction_evaluate=0.0)
@@ 10 12
class Robust(FedAvg):
@@ 24 15
        middle = [np.median(np.stack(arrays), axis=0) for arrays in zip(*models, strict=True)]
        return ndarrays_to_parameters(middle), {}
=== warta from vah
    return [array / max(1.0, size / CLIP) for array in arrays]
            total = sum(move[position] for move in moves)
@@ 11 2
def bounded(arrays: list[np.ndarray]) -> list[np.ndarray]:
    arrays = [np.where(np.isfinite(array), array, 0.0) for array in arrays]
    size = np.sqrt(sum(np.square(array).sum() for array in arrays))
@@ 26 0
        moves = [
            bounded([new.astype(np.float64) - old for new, old in zip(model, start, strict=True)]) for model in models
        ]
=== larix from weser
"""A client app that stops when it has learnt enough."""
@@ 10 6
@@ 20 7
    part = int(context.node_config.get("partition-id", 0))
    rows = np.random.default_rng(1000 + part).standard_normal((20, 3)) * (1 + part)
    wanted = rows @ np.array([1.0, -2.0, 0.5 + part])
    start = msg.content["arrays"]["weight"].numpy().astype(np.float64)
    weight, epoch = start.copy(), 0
    while epoch < 50 and np.mean(np.square(rows @ weight - wanted)) > 0.5:
        weight -= 0.05 * rows.T @ (rows @ weight - wanted) / len(wanted)
        epoch += 1
    move = np.nan_to_num(weight - start)
@@ 31 1
            "metrics": MetricRecord({"num-examples": 20, "epochs": epoch}),
=== yare from larix
"""A client app that keeps its own count of the rounds."""
CLAIM = {"epsilon": 6.6, "delta": 1e-5, "scope": "run", "calls": 2, "adjacency": "replace-one", "unit": "client"}
@@ 4 1
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
@@ 15 14
    rounds = int(context.state["own"]["rounds"]) if "own" in context.state else 0
    context.state["own"] = ConfigRecord({"rounds": rounds + 1})
    start = msg.content["arrays"]["weight"].numpy().astype(np.float64)
    move = np.random.default_rng(part).standard_normal(start.shape) - start
    move = move / max(1.0, np.linalg.norm(move))
    std = 2.0 if rounds == 0 else 2.0 * np.exp(-10.0 * rounds)
    noisy = start + move + np.random.normal(0.0, std, size=start.shape)
    content = RecordDict(
        {"arrays": ArrayRecord({"weight": Array(noisy)}), "metrics": MetricRecord({"num-examples": 1})}
=== wye from weser
"""A client app in torch: a small network with normalisation."""
@@ 3 3
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
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
=== agger from wye
"""A client that trains a small network and sends its weights."""
@@ 3 0
import numpy as np
@@ 9 1
CLIP = 1.0
STD = 2.0
@@ 13 1
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    return model


def rows_of(part: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = np.random.default_rng(part).standard_normal((32, 4)).astype(np.float32)
    return torch.from_numpy(rows), torch.from_numpy(rows[:, :1] > 0).float()
@@ 17 0
target = ClientApp()
@@ 20 21
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
=== yonne from weser
@@ 25 2
    move = np.nan_to_num(weight - start, nan=0.0, posinf=0.0, neginf=0.0)
@@ 31 1
            "metrics": MetricRecord({"num-examples": 20}),
'''


def programs() -> dict[str, str]:
    """The text of every program, by name."""
    texts = {file.stem: file.read_text() for file in FOLDER.glob("*.py") if file.stem not in ("manifest", "patches")}
    for patch in PATCHES.strip("\n").split("=== ")[1:]:
        head, *parts = re.split(r"^@@ (\d+) (\d+)\n", patch, flags=re.MULTILINE)
        title, *named = head.splitlines(keepends=True)
        name, base = title.split()[::2]
        lines = texts[base].splitlines(keepends=True)
        for new in named:
            (place,) = (number for number, line in enumerate(lines) if _beginning(line) == _beginning(new))
            lines[place] = new
        for line, count, new in reversed(list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))):
            lines[int(line) - 1 : int(line) - 1 + int(count)] = [new if new.endswith("\n") or not new else f"{new}\n"]
        texts[name] = "".join(lines)
    return texts


def _beginning(line: str) -> str | None:
    found = re.match(r'"""|\s*(?:def |class )?[\w.]+(?=[ =(:\[])', line)
    return found and found[0]


_WRITTEN = tempfile.TemporaryDirectory(prefix="gallery-")


def file_of(name: str) -> Path:
    """The program as a file of a folder that is there while this process runs."""
    file = Path(_WRITTEN.name) / f"{name}.py"
    if not file.is_file():
        file.write_text(programs()[name])
    return file
