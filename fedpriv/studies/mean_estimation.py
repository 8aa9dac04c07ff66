"""Mean estimation by every quantiser of the project: mean squared errors, measured and by their closed forms, for one
setting or a sweep.

n clients hold one vector each, [n, d] with coordinates in [-r, r]. Every client sends one bit per coordinate; the
server averages what the bits decode to. Neighbours form the pairs and groups; who is left over forms a smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import AfterValidator, BeforeValidator, Field
from torch import Tensor

from fedpriv.common.doing import doing
from fedpriv.common.errors import OptionError
from fedpriv.common.places import load_module
from fedpriv.common.seeds import generator
from fedpriv.mechanisms import laws, quantisation
from fedpriv.privacy.composition import pure_epsilon
from fedpriv.privacy.events import CLIENT_TO_SERVER, PairedQuantisation

#: Random numbers of a group's shared stream that are held at a time.
STREAM = 2**18

#: Where the bits of pairs and groups are.
COQFL = load_module("clients.coqfl")


@dataclass(frozen=True)
class Quantiser:
    """One way to turn the vectors of n clients into bits.

    group_size: 1 independent bits, 2 the antithetic pair (``bits``: M), more a permutation's ranks; private_share: mu.
    antithetic: whether a group of two is that pair, or a permutation of two (Suresh et al. 2022).
    """

    name: str
    epsilon: float
    group_size: int = 1
    bits: int = 8
    private_share: float = 0.0
    antithetic: bool = True

    @property
    def independent_weight(self) -> float:
        """lambda = 1 - (1 - mu)^2."""
        return 1 - (1 - self.private_share) ** 2

    def groups(self, clients: int) -> list[slice]:
        """Neighbours, ``group_size`` at a time."""
        return [slice(first, min(first + self.group_size, clients)) for first in range(0, clients, self.group_size)]

    def joint_epsilon(self, observer: str) -> float:
        """Of one coordinate of one member against ``observer`` (server or server+members), who sees every bit."""
        if self.group_size == 1 or math.isinf(self.epsilon):
            return self.epsilon
        event = PairedQuantisation(
            threat=replace(CLIENT_TO_SERVER, observer=observer),
            epsilon=self.epsilon,
            private_share=self.private_share,
            bits=self.bits,
            group_size=self.group_size,
        )
        return pure_epsilon(event)


def quantisers(epsilon: float, bits: int, private_share: float, sizes: Sequence[int], clients: int) -> list[Quantiser]:
    """Every quantiser of the project; ``sizes`` of the permutation groups (the pair is always there)."""
    grouped = [Quantiser("coqfl", epsilon, 2, bits)]
    grouped += [Quantiser(f"coqfl-g{size}", epsilon, size) for size in sizes if size > 2]
    repaired = [replace(one, name=f"{one.name}-repaired", private_share=private_share) for one in grouped]
    return [
        Quantiser("ldpfl", epsilon),
        Quantiser("sq", math.inf),
        *(one for both in zip(grouped, repaired, strict=True) for one in both),
        Quantiser("corrquant", math.inf, clients, antithetic=False),
    ]


# --- what happens ----------------------------------------------------------------------------------------


def _bits(quantiser: Quantiser, p: Tensor, trials: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Bits, each [trials, d], of one group's members with probabilities p [g, d]; rng draws the shared stream too."""
    size, dimension = p.shape
    draws = trials * dimension
    mu = quantiser.private_share
    if size == 1:
        yield quantisation.independent_bits(p[0], _uniforms(trials, dimension, rng))
    elif size == 2 and quantiser.antithetic:
        stream = rng.bytes(quantisation.cell_bytes(draws, quantiser.bits))
        cell = quantisation.cells_of(stream, quantiser.bits).reshape(trials, dimension)
        for member in range(size):
            own = _uniforms(trials, dimension, rng)
            yield COQFL.mixed_pair_bits(p[member], cell, own, quantiser.bits, member == 0, mu)
    else:
        stream = rng.bytes(8 * size * draws)
        for member in range(size):
            rank = quantisation.ranks_of(stream, size, member).reshape(trials, dimension)
            yield COQFL.mixed_group_bits(p[member], rank, _uniforms(trials, dimension, rng), size, mu)


def _uniforms(trials: int, dimension: int, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.random((trials, dimension)))


def estimate(quantiser: Quantiser, values: Tensor, radius: float, trials: int, rng: np.random.Generator) -> Tensor:
    """Independent estimates [trials, d] of the mean of ``values`` [n, d]."""
    clients, dimension = values.shape
    p = quantisation.high_probability(values, 0.0, radius, quantiser.epsilon)
    total = torch.zeros(trials, dimension, dtype=torch.float64)
    for members in quantiser.groups(clients):
        for bits in _bits(quantiser, p[members], trials, rng):
            total += quantisation.decode(bits.double(), 0.0, radius, quantiser.epsilon)
    return total / clients


def squared_errors(
    quantiser: Quantiser, values: Tensor, radius: float, trials: int, rng: np.random.Generator
) -> Tensor:
    """Mean squared error per coordinate of each of ``trials`` independent estimates: [trials]."""
    width = max(1, min(quantisation.CHUNK, STREAM // quantiser.group_size))
    errors = torch.zeros(trials, dtype=torch.float64)
    for columns in values.split(width, dim=1):
        mean = columns.mean(0)
        for rows in errors.split(max(1, width // columns.shape[1])):  # views: trials are further coordinates
            rows.add_((estimate(quantiser, columns, radius, len(rows), rng) - mean).square().sum(1))
    return errors / values.shape[1]


# --- what must happen ------------------------------------------------------------------------------------


def expected_error(quantiser: Quantiser, values: Tensor, radius: float) -> float:
    """Closed form of the mean squared error per coordinate of the estimated mean of ``values`` [n, d]:
    (sum of A^2 - w_i^2 over clients + 2 * sum of the covariances over pairs within a group) / n^2, mean over d.
    """
    clients, dimension = values.shape
    p = quantisation.high_probability(values, 0.0, radius, quantiser.epsilon)
    step = float(quantisation.step(radius, quantiser.epsilon))
    error = float((step**2 - values.square()).sum())
    error += 2 * sum(_covariances(quantiser, p[members], step) for members in quantiser.groups(clients))
    rounding = 1e-13 * step**2 * values.numel()  # of the largest error there is: what is below it is zero
    return error / (clients**2 * dimension) if error > rounding else 0.0


def _covariances(quantiser: Quantiser, p: Tensor, step: float) -> float:
    """Sum over coordinates and over pairs of members of what one group with probabilities p [g, d] decodes to."""
    size = len(p)
    if size == 2 and quantiser.antithetic:
        first, second = p.numpy()
        both = laws.both_high(first, second, quantiser.independent_weight, quantiser.bits)
        return 4 * step**2 * float((both - first * second).sum())
    pairs = ((p[index], p[index + 1 :]) for index in range(size - 1))
    mu = quantiser.private_share
    return sum(float(quantisation.group_covariance(one, rest, size, step, mu).sum()) for one, rest in pairs)


# --- a setting, and sweeps ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """Mean squared error per coordinate at one place of an axis, and its standard error."""

    x: float
    error: float
    standard_error: float
    closed_form: float


@dataclass(frozen=True)
class Curve:
    """One quantiser along an axis: measured points, and the closed form's line as (x, error)."""

    name: str
    points: list[Point]
    line: list[tuple[float, float]]


FIGURES = {"1": ("epsilon",), "2": ("n",), "all": ("epsilon", "n", "bits", "group_size")}


#: The figure against n has these numbers of clients beside the user's own.
SWEPT_N = (2, 4, 8, 16, 32, 64)


#: Coordinates of all clients together that fit into memory beside what is computed from them.
NUMBERS = 10**7


def _is_epsilon(value: float) -> float:
    if not (value == math.inf or 1e-3 <= value <= 100):
        raise ValueError
    return value


def _sizes(value: str | tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({int(size) for size in value.split(",")})) if isinstance(value, str) else value


@dataclass(frozen=True)
class Options:
    """Of `fedpriv dme`. Raises `OptionError` for values that do not go together."""

    n: Annotated[int, Field(ge=2, le=1000)] = 10
    dimension: Annotated[int, Field(ge=1)] = 1000
    epsilon: Annotated[float, AfterValidator(_is_epsilon), Field(description="a number from 0.001 to 100, or inf")] = (
        1.0
    )
    bits: Annotated[int, Field(ge=0, le=16)] = 8
    group_size: Annotated[
        tuple[Annotated[int, Field(ge=2)], ...],
        BeforeValidator(_sizes),
        Field(description="whole numbers from 2 to n, with commas between them"),
    ] = ()
    private_share: Annotated[float, Field(ge=0, le=1)] = 0.134  # lambda = 0.25
    radius: Annotated[float, Field(ge=1e-6, le=10**6)] = 1.0
    inputs: Literal["uniform", "gaussian", "same", "half"] = "uniform"
    trials: Annotated[int, Field(ge=2, le=10**6)] = 100
    seed: Annotated[int, Field(ge=0)] = 0
    figure: Literal["1", "2", "all"] = "all"
    out: Path = field(default_factory=lambda: Path("outputs") / "dme" / f"{datetime.now():%Y-%m-%d_%H-%M-%S}")

    def __post_init__(self) -> None:
        if not self.group_size:
            object.__setattr__(self, "group_size", tuple(size for size in (4, 8) if size <= self.n))
        if max(self.group_size, default=0) > self.n:
            raise OptionError("group_size", ",".join(map(str, self.group_size)), f"must be from 2 to n={self.n}")
        largest = NUMBERS // max(self.n, *SWEPT_N)
        if self.dimension > largest:
            raise OptionError("dimension", self.dimension, f"must be at most {largest} at n={self.n}")
        if (self.out / "dme.json").exists():
            raise OptionError("out", self.out, "must be a folder without a dme.json")

    def quantisers(self) -> list[Quantiser]:
        return quantisers(self.epsilon, self.bits, self.private_share, self.group_size, self.n)


def draw_values(options: Options) -> Tensor:
    """The clients' vectors [n, d] within [-r, r]; those of fewer clients are the first of those of more."""
    shape, radius = (options.n, options.dimension), options.radius
    rng = generator(options.seed, "dme inputs")
    if options.inputs == "half":
        return torch.zeros(shape, dtype=torch.float64)
    if options.inputs == "gaussian":
        return torch.from_numpy(rng.normal(0, radius / 2, shape)).clamp_(-radius, radius)
    if options.inputs == "same":
        return torch.from_numpy(rng.uniform(-radius, radius, shape[1])).expand(shape)
    return torch.from_numpy(rng.uniform(-radius, radius, shape))


def measure(quantiser: Quantiser, values: Tensor, options: Options, x: float, axis: str) -> Point:
    """Measured error with its standard error over trials, beside the closed form; own randomness at every point."""
    rng = generator(options.seed, "dme", axis, f"{x:g}", quantiser.name)
    errors = squared_errors(quantiser, values, options.radius, options.trials, rng)
    deviation = float(errors.std()) / math.sqrt(options.trials)
    return Point(x, float(errors.mean()), deviation, expected_error(quantiser, values, options.radius))


@dataclass(frozen=True)
class Row:
    """One quantiser: mean squared errors per coordinate, epsilons of one coordinate of one member.

    ratio: measured / closed form, of_ldpfl: closed form / that of ldpfl; None where that would divide by zero.
    """

    quantiser: str
    error: float
    standard_error: float
    closed_form: float
    ratio: float | None
    of_ldpfl: float | None
    epsilon_server: float
    epsilon_members: float


def table(options: Options) -> list[Row]:
    values = draw_values(options)
    all_quantisers = options.quantisers()
    points = []
    for number, one in enumerate(all_quantisers):
        doing("quantisers of the table", number, len(all_quantisers))
        points.append(measure(one, values, options, options.epsilon, "table"))
    return [
        Row(
            quantiser.name,
            point.error,
            point.standard_error,
            point.closed_form,
            point.error / point.closed_form if point.closed_form else None,
            point.closed_form / points[0].closed_form if points[0].closed_form else None,
            quantiser.joint_epsilon("server"),
            quantiser.joint_epsilon("server+members"),
        )
        for quantiser, point in zip(all_quantisers, points, strict=True)
    ]


def settings(options: Options, axis: str) -> list[Options]:
    """The options at each place of a figure's axis, the user's own value among them."""
    if axis == "epsilon":
        places: set[float] = {0.25, 0.5, 1, 2, 4, 8, options.epsilon} - {math.inf}
        return [replace(options, epsilon=float(epsilon)) for epsilon in sorted(places)]
    if axis == "n":
        sizes = sorted({*SWEPT_N, options.n})
        kept = {n: tuple(size for size in options.group_size if size <= n) for n in sizes}
        return [replace(options, n=n, group_size=kept[n]) for n in sizes]
    if axis == "bits":
        return [replace(options, bits=bits, group_size=()) for bits in range(max(8, options.bits) + 1)]
    doubled = {2**power for power in range(1, 10)}
    candidates = sorted(size for size in {3, 6, 12, options.n, *options.group_size} | doubled if size <= options.n)
    return [replace(options, group_size=(size,)) for size in candidates]


def curve_name(axis: str, place: Options, quantiser: Quantiser) -> str | None:
    """The curve that a quantiser belongs to; None where the axis does not concern it."""
    if axis in ("epsilon", "n"):
        return quantiser.name
    if quantiser.name in ("sq", "corrquant"):
        return None
    if axis == "bits":
        return quantiser.name
    (size,) = place.group_size
    return quantiser.name.replace(f"-g{size}", "") if quantiser.group_size in (1, size) else None


def sweep(options: Options, axis: str) -> list[Curve]:
    """Errors along an axis, one curve per quantiser that it concerns; along epsilon the closed forms lie closer."""
    at = settings(options, axis)
    values = draw_values(replace(options, n=max(place.n for place in at)))
    curves: dict[str, Curve] = {}
    for number, place in enumerate(at):
        doing(f"error along {axis}, points", number, len(at))
        x = place.group_size[0] if axis == "group_size" else getattr(place, axis)
        for quantiser in place.quantisers():
            if name := curve_name(axis, place, quantiser):
                point = measure(quantiser, values[: place.n], options, x, axis)
                curve = curves.setdefault(name, Curve(name, [], []))
                curve.points.append(point)
                curve.line.append((x, point.closed_form))
    if axis == "epsilon":
        for epsilon in np.geomspace(at[0].epsilon, at[-1].epsilon, 33)[1:-1].tolist():
            for quantiser in replace(options, epsilon=epsilon).quantisers():
                curves[quantiser.name].line.append((epsilon, expected_error(quantiser, values, options.radius)))
    return [Curve(curve.name, curve.points, sorted(curve.line)) for curve in curves.values()]


def setting_in_words(options: Options, axis: str) -> str:
    """What is held fixed along an axis."""
    fixed = {
        "n": f"n = {options.n}",
        "epsilon": f"epsilon = {options.epsilon:g}",
        "bits": f"M = {options.bits}",
        "private_share": f"mu = {options.private_share:g}",
        "inputs": f"inputs {options.inputs}",
    }
    return ", ".join(words for name, words in fixed.items() if name != axis)
