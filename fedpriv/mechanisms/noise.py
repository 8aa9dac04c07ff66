"""Noise sources: one interface, repeatable noise in simulation, the operating system's keys in a deployment.

Every random number that a privacy guarantee rests on comes from a `NoiseSource` that is passed in: there is no
global state and no default seed. `SeededNoise` is addressed by a key (seed, client, round, attempt, purpose) and
repeats bit for bit; `SecureNoise` (fedpriv/privacy/secure_noise.py) never repeats.

Shapes: `Shape` is a tuple or an int, `()` is a scalar. Everything lives on the CPU.
"""

from __future__ import annotations

import hashlib
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import torch

Shape = int | Sequence[int]

# A float32 holds 24 bits, so every multiple of the grid up to 2^24 of them is exact. Gaussians reach 9.4 standard
# deviations, Laplace draws 74 scales, and one of those is at most 2^20 (2^17) steps.
GAUSSIAN_BITS = 19
LAPLACE_BITS = 16


def grid_step(scale: float, bits: int = GAUSSIAN_BITS) -> float:
    """Spacing of the grid for noise of this scale: a power of two in (scale / 2^(bits + 1), scale / 2^bits]."""
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - bits) if scale > 0 else 0.0


def add_normal(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    """`values + N(0, std^2)` as float32, safe against attacks on floating-point arithmetic if `noise` is secure.

    Floating-point numbers are denser near zero, so the low bits of a plain `values + noise` tell which `values` are
    possible (Mironov, CCS 2012; Haney et al., "Precision-based attacks and interval refining", 2022), however
    well the noise itself was drawn. Here `values` are moved onto the noise's grid first. Secure noise is a Gaussian
    rounded to the same grid, so the exact sum is the Gaussian mechanism's output on the gridded values, rounded, and
    the float32 addition rounds that sum once more: both are post-processing.

    Moving is towards zero: it never lengthens a vector, so a bound on the norm of `values` still holds. The distance
    between two vectors can grow by sqrt(d) grid steps, sqrt(d) * std / 2^19.
    """
    return onto_grid(values, grid_step(std)) + noise.normal(values.shape, std)


def add_normal_each(values: torch.Tensor, std: torch.Tensor, noise: NoiseSource) -> torch.Tensor:
    """values [..., d] plus noise of standard deviation std [...], for many trials at once; without a grid where std
    differs between them.
    """
    if std.ndim == 0:
        return add_normal(values, float(std), noise)
    return values + noise.normal(tuple(values.shape)) * std.to(values.dtype).unsqueeze(-1)


def add_laplace(values: torch.Tensor, scale: float, noise: NoiseSource) -> torch.Tensor:
    """`values + Laplace(scale)` as float32, on a grid as in `add_normal` (steps of scale / 2^16)."""
    return onto_grid(values, grid_step(scale, LAPLACE_BITS)) + noise.laplace(values.shape, scale)


def add_normal_to_sum(parts: Iterable[torch.Tensor], shape: Shape, std: float, noise: NoiseSource) -> torch.Tensor:
    """Sum of ``parts`` [shape] plus N(0, std^2) as float32. As `add_normal`, but every part is moved onto the grid
    before it is added: without one of them the sum differs by that part on the grid, which is no longer than it was.
    """
    step, total = grid_step(std), torch.zeros(as_size(shape), dtype=torch.float64)
    for part in parts:
        total += onto_grid(part, step)
    return (total + noise.normal(shape, std)).float()


def onto_grid(values: torch.Tensor, step: float) -> torch.Tensor:
    """The multiples of ``step`` next to ``values`` on the side of zero, as float32."""
    values = values.to(torch.float32)
    return torch.trunc(values / step) * step if step > 0 else values


class NoiseSource(ABC):
    """A stream of independent draws: every call continues the stream, none repeats it."""

    @abstractmethod
    def normal(self, shape: Shape, std: float = 1.0) -> torch.Tensor:
        """Gaussians of mean 0 and standard deviation `std` (float32)."""

    @abstractmethod
    def uniform(self, shape: Shape) -> torch.Tensor:
        """Uniforms of 53 bits in the open interval (0, 1) (float64)."""

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
        """Gumbel with location 0 and scale `scale` (float64: top-k releases the order only, ties would matter)."""
        return self.uniform(shape).log_().neg_().log_().mul_(-scale)

    def binomial(self, trials: int, shape: Shape) -> torch.Tensor:
        """Binomial(trials, 1/2) (int64). Here by inversion of 53-bit uniforms: slow where there are millions of trials.

        Raises ValueError unless 0 <= trials <= 2^52.
        """
        from scipy.stats import binom  # seconds to import: only where it is needed

        _check_trials(trials)
        found = binom.ppf(self.uniform(shape).numpy(), trials, 0.5)
        return torch.from_numpy(np.asarray(found, dtype=np.int64))

    def _laplace(self, shape: Shape) -> torch.Tensor:
        """Laplace of scale 1 (float64), a sum of independent draws: log(U1) cos(pi U2) + log(U3) cos(pi U4).

        Holohan and Braghin, "Secure random sampling in differential privacy" (ESORICS 2021).
        """
        u1, u2, u3, u4 = (self.uniform(shape) for _ in range(4))
        return u1.log() * torch.cos(torch.pi * u2) + u3.log() * torch.cos(torch.pi * u4)


class SeededNoise(NoiseSource):
    """Repeatable noise for simulations, addressed by a key of ints and strings.

    The project's keys are (seed, client, round, attempt, purpose).

    The key is encoded without collisions and hashed to the generator's whole state. `torch.Generator.manual_seed` is
    not enough: it keeps the low 32 bits of a seed, so among 100,000 keys one pair would share its noise.
    """

    def __init__(self, *key: int | str) -> None:
        encoded = encode_key(*key)
        for registry in tuple(_registries):
            registry.record(encoded, key)
        self._encoded = encoded
        self._integers: np.random.Generator | None = None

    @cached_property
    def _generator(self) -> torch.Generator:
        """Made when it is first drawn from: many sources never are, and it costs as much as all else of a key."""
        return _mersenne_twister(self._encoded)

    def normal(self, shape: Shape, std: float = 1.0) -> torch.Tensor:
        """Gaussians [shape], float32; torch's reach 5.8 standard deviations at most, which simulations can bear."""
        draws = torch.randn(as_size(shape), generator=self._generator, dtype=torch.float32)
        return draws if std == 1.0 else draws.mul_(std)

    def uniform(self, shape: Shape) -> torch.Tensor:
        return torch.rand(as_size(shape), generator=self._generator, dtype=torch.float64).clamp_(min=2.0**-54)

    def _laplace(self, shape: Shape) -> torch.Tensor:
        """A random sign on an exponential: one draw instead of four, which protects nobody here."""
        u = self.uniform(shape).sub_(0.5)
        return u.abs().mul_(-2).log1p_().mul_(u.sign_()).neg_()

    def binomial(self, trials: int, shape: Shape) -> torch.Tensor:
        """numpy's sampler, a stream of its own under the same key: torch has none that is exact to the last unit.

        Up to 2^62 trials.
        """
        _check_trials(trials, 2**62)
        if self._integers is None:
            digest = hashlib.shake_256(self._encoded + b"binomial").digest(32)
            self._integers = np.random.default_rng(int.from_bytes(digest, "little"))
        return torch.from_numpy(self._integers.binomial(trials, 0.5, as_size(shape)))


def noise_source(rng: Literal["seeded", "secure"], *key: int | str) -> NoiseSource:
    """The source that `privacy.rng` names; the key addresses seeded noise and is ignored by secure noise."""
    if rng == "seeded":
        return SeededNoise(*key)
    if rng == "secure":
        from fedpriv.privacy.secure_noise import SecureNoise  # cryptography is loaded only where it is needed

        return SecureNoise()
    raise ValueError(f"rng must be seeded or secure, got {rng!r}")


def encode_key(*key: int | str) -> bytes:
    """Bytes that differ for any two different keys: each part carries its type and its length.

    Raises TypeError for anything but ints and strings (numpy's integers count as ints, booleans do not).
    """
    parts = []
    for part in key:
        if isinstance(part, str):
            tag, data = b"s", part.encode()
        elif isinstance(part, (int, np.integer)) and not isinstance(part, bool):
            tag, data = b"i", int(part).to_bytes(int(part).bit_length() // 8 + 1, "big", signed=True)
        else:
            raise TypeError(f"a noise key is made of ints and strings, got {part!r} in {key!r}")
        parts.append(tag + len(data).to_bytes(8, "big") + data)
    if not parts:
        raise TypeError("a noise key must not be empty")
    return b"".join(parts)


class KeyRegistry:
    """Context manager that records the key of every `SeededNoise` made while it is active, in any thread.

    A key that is used twice raises `ValueError` at the second use: two updates under the same noise give away their
    difference. Empty at the start of every `with` block; `keys` lists what was used.
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


def _mersenne_twister(key: bytes) -> torch.Generator:
    """A torch generator whose 624 state words are SHAKE-256 of the key (19,937 bits, not manual_seed's 32)."""
    state = _FRESH_STATE.copy()
    state[3:627] = np.frombuffer(hashlib.shake_256(key).digest(4 * 624), "<u4")
    generator = torch.Generator()
    generator.set_state(torch.from_numpy(state.view(np.uint8)))
    return generator


# torch's own layout (THGeneratorState): seed, flags, position, then one 64-bit slot per 32-bit word. Tested.
_FRESH_STATE = torch.Generator().manual_seed(0).get_state().numpy().view(np.uint64).copy()


def _check_trials(trials: int, most: int = 2**52) -> None:
    if not 0 <= trials <= most:
        raise ValueError(f"{trials} binomial trials: must be from 0 to {most}")


def as_size(shape: Shape) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
