"""The two steps of a mechanism: clipping to a bound, and noise. Noise sources have one interface: repeatable noise in
simulation, keys from the operating system in a deployment.

Every random number that a privacy guarantee rests on comes from a `NoiseSource` that is passed in: there is no
global state and no default seed. `SeededNoise` is addressed by a key (seed, client, round, attempt, purpose) and
repeats bit for bit; `SecureNoise` (fedpriv/mechanisms/secure_noise.py) never repeats.

Shapes: vectors [..., d], whose leading dimensions are independent trials or clients. `Shape` is a tuple or an int, `()`
is a scalar. Noise is drawn on the CPU; long seeded noise for what is on a GPU is drawn there (`MANY`).
"""

from __future__ import annotations

import hashlib
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

Shape = int | Sequence[int]
CPU = torch.device("cpu")

# --- clipping ---------------------------------------------------------------------------------------------

#: Share of the bound held in reserve, so that float32 rounding cannot push a clipped vector over it.
ROUNDING = 1e-6
#: The same of a sum of clipped gradients: for rounding of norms and sum, and for moving it onto the noise's grid.
KEPT_BACK = 2.0**-10

#: Numbers beyond which long vectors are taken one by one: what is made of them on the way stays in a core's cache.
TOGETHER = 2**20
#: Shorter vectors are taken together, however many: the calls would take longer than the work.
LONG = 2**12


@contextmanager
def in_threads(count: int) -> Iterator[None]:
    """torch computes in so many threads, on which the last bits of sums depend; afterwards in as many as before."""
    before = torch.get_num_threads()
    if before != count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if before != count:
            torch.set_num_threads(before)


def l2_norm(x: torch.Tensor) -> torch.Tensor:
    """L2 norm [...] in float64 of vectors [..., d]."""
    if _one_by_one(x):
        return torch.stack([l2_norm(row) for row in x])
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64)


def _one_by_one(x: torch.Tensor) -> bool:
    return x.ndim == 2 and x.numel() > TOGETHER and x.shape[1] > LONG


def clip(x: torch.Tensor, bound: float) -> torch.Tensor:
    """clip(x, C) = x / max(1, ||x||_2 / C) for vectors [..., d]; a zero vector stays zero.

    The result's norm is at most ``bound`` in exact arithmetic on the float32 values returned (`ROUNDING`). Divided in
    float64: for an update of norm 1e38 C the factor is not a normal float32, and the result would be too long.
    Raises ValueError unless ``bound`` is positive.
    """
    if not bound > 0:
        raise ValueError(f"clip bound {bound} must be positive")
    if _one_by_one(x):
        return torch.stack([clip(row, bound) for row in x])
    return (x / _excess(l2_norm(x), bound * (1 - ROUNDING))).to(x.dtype)


def clip_factors(norms: torch.Tensor, bound: torch.Tensor | float) -> torch.Tensor:
    """1 / max(1, norm / bound) for norms [...] (float64), less `KEPT_BACK`; 0 for a norm that is not finite.

    What a broken example contributes must not depend on how it is broken: it contributes nothing.
    """
    factors = torch.clamp(bound * (1 - KEPT_BACK) / norms, max=1.0)  # [DPFL-AGN, Alg. 1 line 10]
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def clip_change(x: torch.Tensor, previous: torch.Tensor, bound: torch.Tensor, slack: float) -> torch.Tensor:
    """The point nearest to ``x`` on its segment to ``previous`` whose distance from ``previous`` is <= bound.

    Shapes: ``x`` and ``previous`` [..., d], ``bound`` [...] (float64, > slack). ``slack`` is an absolute length
    reserved for float32 rounding. If ``x`` and ``previous`` lie in a ball, so does the result, since balls are convex.
    """
    change = x - previous
    excess = _excess(l2_norm(change), bound - slack)
    return torch.where(excess > 1, (previous + change / excess).to(x.dtype), x)


def _excess(norm: torch.Tensor, bound: torch.Tensor | float) -> torch.Tensor:
    """max(1, norm / bound) [..., 1]."""
    return torch.clamp(norm / bound, min=1.0).unsqueeze(-1)


def finite_or_zero(x: torch.Tensor) -> torch.Tensor:
    """Replaces vectors [..., d] that have a NaN or infinite coordinate by zero vectors.

    Whether a client replies must not depend on its data: such an update is released as zero plus noise.
    """
    if x.ndim and bool(torch.isfinite(x.sum(-1)).all()):  # one pass instead of four: most of a small client's work
        return x
    finite = torch.isfinite(x).all(dim=-1, keepdim=True)
    return torch.where(finite, x, torch.zeros_like(x))


# --- noise on a grid --------------------------------------------------------------------------------------

# A float32 holds 24 bits, so every multiple of the grid up to 2^24 of them is exact. A standard deviation is at most
# 2^20 steps, a scale of Laplace at most 2^17: 16 and 128 of them, beyond which noise is float64 (`secure_noise`).
GAUSSIAN_BITS = 19
LAPLACE_BITS = 16

#: Numbers rounded to a grid at a time: the several passes then stay in a core's cache.
IN_CACHE = 2**14

#: Length of a sum from which seeded noise is drawn on the sum's own device: the CPU needs two milliseconds for fewer.
MANY = 2**18

#: Length of a release from which its seeded noise is: a CPU takes eight times as long for it as for
#: `NoiseSource.normal`, which is little beside training a model of that size.
HUGE = 2**22

#: Standard deviation, in steps of the grid, of the second Gaussian of `NoiseSource.fine_normal`.
DITHER = 4.0


def grid_step(scale: float, bits: int = GAUSSIAN_BITS) -> float:
    """Spacing of the grid for noise of this scale: a power of two in (scale / 2^(bits + 1), scale / 2^bits]."""
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - bits) if scale > 0 else 0.0


def fine_step(std: float) -> float:
    """Spacing of the grid of `NoiseSource.fine_normal`: a power of two in (std / 2^37, std / 2^36]."""
    return grid_step(DITHER * grid_step(std))


def add_normal(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    """`values + N(0, std^2)` as float32, safe against attacks on floating-point arithmetic if `noise` is secure.

    Floating-point numbers are denser near zero, so the low bits of a plain `values + noise` tell which `values` are
    possible (Mironov, CCS 2012; Haney et al., "Precision-based attacks and interval refining", 2022), however
    well the noise itself was drawn. Here `values` are first moved onto the noise's grid. Secure noise is a Gaussian
    rounded to the same grid, so the exact sum is the Gaussian mechanism's output on the gridded values, rounded, and
    the float32 addition rounds that sum once more: both are post-processing.

    Values are moved towards zero: no vector gets longer, so a bound on the norm of `values` still holds. The distance
    between two vectors can grow by sqrt(d) grid steps, sqrt(d) * std / 2^19.
    """
    return (onto_grid(values, grid_step(std)) + noise.normal_at(values.shape, std, values.device)).float()


def add_normal_finely(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    """As `add_normal`, in float64, for ``values`` that are a sum whose parts are no longer available: the grid is so
    fine (`fine_step`, about std / 2^36) that moving the sum onto it hardly changes it.

    Two sums whose exact difference is v differ by less than ``|v| + sqrt(d) * fine_step(std)`` on the grid; on
    `add_normal`'s it would be sqrt(d) * std / 2^19, which is 0.4 of a clip norm for a ResNet at multiplier 64.
    The result is on the grid, or rounded to float64 from there, which is post-processing (`NoiseSource.fine_normal`).
    """
    step, noisy = fine_step(std), noise.fine_normal(values.shape, std, values.device)
    if step == 0 or values.device.type != "cpu":  # a GPU divides, adds and multiplies to the CPU's bits
        return noisy.add_(values if step == 0 else (values.double() / step).trunc_().mul_(step))
    for part, some in zip(noisy.view(-1).split(IN_CACHE), values.reshape(-1).split(IN_CACHE), strict=True):
        part += (some.double() / step).trunc_().mul_(step)
    return noisy


def add_normal_each(values: torch.Tensor, std: torch.Tensor, noise: NoiseSource) -> torch.Tensor:
    """values [..., d] plus noise of standard deviation std [...], for many trials at once, each on its own grid.
    Several clients' noises (`NoiseSource.each`) are added client by client. Draws on the grid of standard deviation 1
    would leave points of the others out, which tells the values: hence fine ones.
    """
    if std.ndim == 0:
        return add_normal(values, float(std), noise)
    if noise.each is not None:
        rows = zip(values, std.tolist(), noise.each, strict=True)
        return torch.stack([add_normal(row, own, source) for row, own, source in rows])
    std = std.double().unsqueeze(-1)
    step = torch.ldexp(torch.ones_like(std), torch.frexp(std).exponent - 1 - GAUSSIAN_BITS)  # `grid_step` of each
    drawn = (noise.fine_normal(tuple(values.shape), 1.0) * std / step).round_()
    return torch.where(std > 0, (torch.trunc(values.double() / step) + drawn) * step, values).float()


def add_laplace(values: torch.Tensor, scale: float, noise: NoiseSource) -> torch.Tensor:
    """`values + Laplace(scale)` as float32, on a grid as in `add_normal` (steps of scale / 2^16)."""
    return (onto_grid(values, grid_step(scale, LAPLACE_BITS)) + noise.laplace(values.shape, scale)).float()


def add_normal_to_sum(parts: Iterable[torch.Tensor], shape: Shape, std: float, noise: NoiseSource) -> torch.Tensor:
    """Sum of ``parts`` [shape] plus N(0, std^2) as float32. As `add_normal`, but every part is moved onto the grid
    before it is added: leaving one part out changes the sum by that part on the grid, which is no longer than before.
    """
    step, total = grid_step(std), torch.zeros(as_size(shape), dtype=torch.float64)
    for part in parts:
        total += onto_grid(part, step)
    return (total + noise.normal(shape, std)).float()


def onto_grid(values: torch.Tensor, step: float) -> torch.Tensor:
    """The multiples of ``step`` next to ``values`` on the side of zero, as float32."""
    values = values.to(torch.float32)
    return torch.trunc(values / step) * step if step > 0 else values


# --- sources ----------------------------------------------------------------------------------------------


class NoiseSource(ABC):
    """A stream of independent draws: every call continues the stream; no call repeats it."""

    #: The sources of the clients of the first dimension, where draws are for several at once.
    each: Sequence[NoiseSource] | None = None

    def of(self, rows: torch.Tensor) -> NoiseSource:
        """What draws for these of the first dimension (int64 [n]) alone."""
        return self

    @abstractmethod
    def normal(self, shape: Shape, std: float = 1.0) -> torch.Tensor:
        """Gaussians of mean 0 and standard deviation `std` (float32)."""

    def normal_at(self, shape: Shape, std: float, device: torch.device) -> torch.Tensor:
        """`normal` for what is on this device. Seeded noise of vectors of `HUGE` numbers is drawn there, of the same
        bits on every device; a vector's own length decides, as in `fine_normal`.
        """
        return self.normal(shape, std).to(device)

    @abstractmethod
    def uniform(self, shape: Shape) -> torch.Tensor:
        """Uniforms of 53 bits in the open interval (0, 1) (float64)."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """Words of 64 independent, uniform bits (uint64 [count])."""
        halves = (self.uniform((2, count)) * 2.0**32).long().numpy().astype(np.uint64)
        found: NDArray[np.uint64] = (halves[0] << np.uint64(32)) | halves[1]
        return found

    def fine_normal(self, shape: Shape, std: float, device: torch.device = CPU) -> torch.Tensor:
        """Gaussians of mean 0 and standard deviation ``std`` or slightly more on multiples of `fine_step` (float64).

        Z = Z1 + Z2: Z1 is `normal` on its grid of step h = `grid_step(std)`, Z2 `normal` of standard deviation
        s = 4 h on its own, of step f = `fine_step(std)`. Why Z protects as a Gaussian does: let Z1 and Z2 be Gaussians
        G1 and G2 rounded to their grids, U1 and U2 uniform on a step. The law of a rounded Gaussian at a multiple of
        its step is the step times the density of G + U there, so that
        P(Z = z) = E sum_j h phi_std(j h + U1) f phi_s(z - j h + U2).
        With S^2 = std^2 + s^2 and t = std s / S the product is h phi_t(j h - m) f phi_S(z + U1 + U2) for some m, and by
        Poisson's summation formula sum_j h phi_t(j h - m) = 1 + 2 sum_k cos(2 pi k m / h) exp(-2 pi^2 k^2 t^2 / h^2),
        which is 1 within 2^-440: t > 3.99 h. So P(Z = z) = (1 +- 2^-440) f E phi_S(z + U1 + U2): Z has, up to that
        factor, the law of G + U1 rounded to step f, with G ~ N(0, S^2) and S > std. On top of values that are
        multiples of f this is post-processing of a Gaussian mechanism with more noise than ``std``.
        """
        return (self.normal(shape, std).double() + self.normal(shape, DITHER * grid_step(std)).double()).to(device)

    def integers(self, low: int, high: int, shape: Shape) -> torch.Tensor:
        """Integers in {low, ..., high - 1} (int64); exactly uniform for a power of two, else within 2^-21."""
        if not 0 < high - low <= 2**32:
            raise ValueError(f"integers needs 0 < high - low <= 2**32, got low={low}, high={high}")
        return (self.uniform(shape) * (high - low)).long() + low

    def permutation(self, n: int) -> torch.Tensor:
        """A uniform permutation of {0, ..., n - 1} (int64 [n])."""
        return torch.argsort(self.uniform(n))

    def laplace(self, shape: Shape, scale: float = 1.0) -> torch.Tensor:
        """Laplace of mean 0 and scale `scale` (float32)."""
        return self._laplace(shape).mul_(scale).float()

    def gumbel(self, shape: Shape, scale: float = 1.0) -> torch.Tensor:
        """Gumbel with location 0 and scale `scale` (float64, since top-k releases only the order and ties would
        matter).
        """
        return self.uniform(shape).log_().neg_().log_().mul_(-scale)

    def binomial(self, trials: int, shape: Shape) -> torch.Tensor:
        """Binomial(trials, 1/2) (int64). Here by inversion of 53-bit uniforms: slow for millions of trials.

        Raises ValueError unless 0 <= trials <= 2^52.
        """
        from scipy.stats import binom  # takes seconds to import: only where needed

        check_trials(trials)
        found = binom.ppf(self.uniform(shape).numpy(), trials, 0.5)
        return torch.from_numpy(np.asarray(found, dtype=np.int64))

    def _laplace(self, shape: Shape) -> torch.Tensor:
        """Laplace of scale 1 (float64), a sum of independent draws: log(U1) cos(pi U2) + log(U3) cos(pi U4).

        Holohan and Braghin, "Secure random sampling in differential privacy" (ESORICS 2021).
        """
        u1, u2, u3, u4 = (self.uniform(shape) for _ in range(4))
        return u1.log() * torch.cos(torch.pi * u2) + u3.log() * torch.cos(torch.pi * u4)


def check_trials(trials: int, most: int = 2**52) -> None:
    if not 0 <= trials <= most:
        raise ValueError(f"{trials} binomial trials: must be from 0 to {most}")


def as_size(shape: Shape) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)


class SeededNoise(NoiseSource):
    """Repeatable noise for simulations, addressed by a key of ints and strings.

    The project's keys are (seed, client, round, attempt, purpose).

    The key is encoded without collisions and hashed to the generator's whole state. `torch.Generator.manual_seed` is
    not enough: it keeps the low 32 bits of a seed, so among 100,000 keys one pair would be expected to share its noise.
    """

    #: Counters that `on_device` has used.
    _counted = 0

    def __init__(self, *key: int | str) -> None:
        encoded = encode_key(*key)
        for registry in tuple(_registries):
            registry.record(encoded, key)
        self._encoded = encoded

    @cached_property
    def _generator(self) -> torch.Generator:
        """Created on the first draw: many sources are never drawn from, and this is half of a source's cost."""
        return _mersenne_twisters([self._encoded])[0]

    @staticmethod
    def begin(sources: Sequence[SeededNoise]) -> None:
        """Makes the generators of sources that will be drawn from: together they take half as long as each alone."""
        new = [source for source in sources if "_generator" not in vars(source)]
        made = _mersenne_twisters([source._encoded for source in new])
        for source, generator in zip(new, made, strict=True):
            vars(source)["_generator"] = generator

    def normal(self, shape: Shape, std: float = 1.0) -> torch.Tensor:
        """Gaussians [shape], float32; torch's never exceed 5.8 standard deviations, which is acceptable in
        simulation.
        """
        draws = torch.randn(as_size(shape), generator=self._generator, dtype=torch.float32)
        return draws if std == 1.0 else draws.mul_(std)

    def normal_at(self, shape: Shape, std: float, device: torch.device) -> torch.Tensor:
        if math.prod(as_size(shape)[-1:]) < HUGE:
            return self.normal(shape, std).to(device)
        return self.on_device(shape, std, device)

    def normal_into(self, out: torch.Tensor) -> None:
        """As `normal` of standard deviation 1, into a contiguous float32 tensor of at least one dimension."""
        torch.randn(out.shape, generator=self._generator, out=out)

    def on_device(self, shape: Shape, std: float, device: torch.device) -> torch.Tensor:
        """Gaussians [shape], float32, made on this device: a further stream of the same key, by
        `fedpriv.mechanisms.philox`, whose bits are the same on all devices. On a CPU it takes eight times as long as
        `normal`, on a GPU less than to draw that many on the CPU and to move them.
        """
        from fedpriv.mechanisms import philox

        size = as_size(shape)
        first, second, *stream = np.frombuffer(hashlib.shake_256(self._encoded + b"philox").digest(16), "<u4").tolist()
        count = -(-math.prod(size) // 4)
        drawn = philox.words((first, second), (stream[0], stream[1]), self._counted, count, device)
        self._counted += count
        some = drawn[: math.prod(size)].split(4 * IN_CACHE if device.type == "cpu" else max(1, len(drawn)))
        return torch.cat([philox.gaussians(part).mul_(std).float() for part in some]).view(size)

    def fine_normal(self, shape: Shape, std: float, device: torch.device = CPU) -> torch.Tensor:
        """`normal` without a grid: seeded noise does not have to protect its low bits. Of vectors of `MANY` numbers it
        is `on_device`, on every device, so that a GPU's run has the noise of the CPU's. A vector's own length decides,
        so that an auditor's many trials are drawn as a run's one vector is.
        """
        if math.prod(as_size(shape)[-1:]) < MANY:
            return self.normal(shape, std).double().to(device)
        return self.on_device(shape, std, device).double()

    def uniform(self, shape: Shape) -> torch.Tensor:
        return torch.rand(as_size(shape), generator=self._generator, dtype=torch.float64).clamp_(min=2.0**-54)

    def _laplace(self, shape: Shape) -> torch.Tensor:
        """An exponential with a random sign: one draw instead of four, which would add no protection in simulation."""
        u = self.uniform(shape).sub_(0.5)
        return u.abs().mul_(-2).log1p_().mul_(u.sign_()).neg_()

    def binomial(self, trials: int, shape: Shape) -> torch.Tensor:
        """numpy's sampler (torch has no exact one) under the same key, with its own stream; up to 2^62 trials."""
        check_trials(trials, 2**62)
        return torch.from_numpy(self._whole_numbers.binomial(trials, 0.5, as_size(shape)))

    def words(self, count: int) -> NDArray[np.uint64]:
        """As `binomial`, from numpy's stream."""
        return self._whole_numbers.integers(0, 2**64, count, dtype=np.uint64)

    @cached_property
    def _whole_numbers(self) -> np.random.Generator:
        digest = hashlib.shake_256(self._encoded + b"binomial").digest(32)
        return np.random.default_rng(int.from_bytes(digest, "little"))


def encode_key(*key: int | str) -> bytes:
    """Bytes that differ for any two different keys: each part carries its type and its length.

    Raises TypeError for anything but ints and strings (numpy's integers count as ints, booleans do not).
    """
    if not key:
        raise TypeError("a noise key must not be empty")
    return b"".join(map(_encoded, key))


@lru_cache(maxsize=4096, typed=True)
def _encoded(part: int | str) -> bytes:
    """One part of a key."""
    if isinstance(part, str):
        tag, data = b"s", part.encode()
    elif isinstance(part, (int, np.integer)) and not isinstance(part, bool):
        tag, data = b"i", int(part).to_bytes(int(part).bit_length() // 8 + 1, "big", signed=True)
    else:
        raise TypeError(f"a noise key is made of ints and strings, got {part!r}")
    return tag + len(data).to_bytes(8, "big") + data


class KeyRegistry:
    """Context manager that records the key of every `SeededNoise` made while it is active, in any thread.

    A key that is used twice raises `ValueError` at the second use: two updates under the same noise reveal their
    difference. Empty at the start of every `with` block; `keys` lists the keys used.
    """

    def __init__(self) -> None:
        self.keys: list[tuple[int | str, ...]] = []
        self._seen: set[bytes] = set()
        self._lock = threading.Lock()

    def record(self, encoded: bytes, key: tuple[int | str, ...]) -> None:
        with self._lock:
            if encoded in self._seen:
                raise ValueError(f"noise key used twice: {key!r}")
            self._seen.add(encoded)
            self.keys.append(key)

    def __enter__(self) -> KeyRegistry:
        self.keys.clear()
        self._seen.clear()
        _registries.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _registries.remove(self)


_registries: list[KeyRegistry] = []


def _mersenne_twisters(keys: Sequence[bytes]) -> list[torch.Generator]:
    """Torch generators whose 624 state words are SHAKE-256 of a key (19,937 bits, not manual_seed's 32)."""
    digests = b"".join([hashlib.shake_256(key).digest(4 * 624) for key in keys])
    states = np.tile(_FRESH_STATE, (len(keys), 1))
    states[:, 3:627] = np.frombuffer(digests, "<u4").reshape(len(keys), 624)
    generators = [torch.Generator() for _ in keys]
    for generator, state in zip(generators, states.view(np.uint8), strict=True):
        generator.set_state(torch.from_numpy(state))  # a row of a tensor would crash torch 2: it reads its offset twice
    return generators


# torch's own layout (THGeneratorState): seed, flags, position, then one 64-bit slot per 32-bit word. Tested.
_FRESH_STATE = torch.Generator().manual_seed(0).get_state().numpy().view(np.uint64).copy()
