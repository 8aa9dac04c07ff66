"""Noise sources: seeded for repeatable runs, secure for deployments; and a registry of used keys."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.mechanisms.noise import NoiseSource, Shape, as_size, check_trials


class SeededNoise(NoiseSource):
    """Repeatable noise for simulations, addressed by a key of ints and strings.

    The project's keys are (seed, client, round, attempt, purpose).

    The key is encoded without collisions and hashed to the generator's whole state. `torch.Generator.manual_seed` is
    not enough: it keeps the low 32 bits of a seed, so among 100,000 keys one pair would be expected to share its noise.
    """

    def __init__(self, *key: int | str) -> None:
        encoded = encode_key(*key)
        for registry in tuple(_registries):
            registry.record(encoded, key)
        self._encoded = encoded

    @cached_property
    def _generator(self) -> torch.Generator:
        """Created on the first draw: many sources are never drawn from, and this is half of a source's cost."""
        return _mersenne_twister(self._encoded)

    def normal(self, shape: Shape, std: float = 1.0) -> torch.Tensor:
        """Gaussians [shape], float32; torch's never exceed 5.8 standard deviations, which is acceptable in
        simulation.
        """
        draws = torch.randn(as_size(shape), generator=self._generator, dtype=torch.float32)
        return draws if std == 1.0 else draws.mul_(std)

    def normal_into(self, out: torch.Tensor) -> None:
        """As `normal` of standard deviation 1, into a contiguous float32 tensor of at least one dimension."""
        torch.randn(out.shape, generator=self._generator, out=out)

    def fine_normal(self, shape: Shape, std: float) -> torch.Tensor:
        """`normal` without a grid: seeded noise does not have to protect its low bits."""
        return self.normal(shape, std).double()

    def uniform(self, shape: Shape) -> torch.Tensor:
        return torch.rand(as_size(shape), generator=self._generator, dtype=torch.float64).clamp_(min=2.0**-54)

    def _laplace(self, shape: Shape) -> torch.Tensor:
        """An exponential with a random sign: one draw instead of four, which would add no protection in simulation."""
        u = self.uniform(shape).sub_(0.5)
        return u.abs().mul_(-2).log1p_().mul_(u.sign_()).neg_()

    def binomial(self, trials: int, shape: Shape) -> torch.Tensor:
        """numpy's sampler, with a separate stream under the same key: torch has no exact one.

        Up to 2^62 trials.
        """
        check_trials(trials, 2**62)
        return torch.from_numpy(self._whole_numbers.binomial(trials, 0.5, as_size(shape)))

    def words(self, count: int) -> NDArray[np.uint64]:
        """As `binomial`, from numpy's stream."""
        return self._whole_numbers.integers(0, 2**64, count, dtype=np.uint64)

    @cached_property
    def _whole_numbers(self) -> np.random.Generator:
        digest = hashlib.shake_256(self._encoded + b"binomial").digest(32)
        return np.random.default_rng(int.from_bytes(digest, "little"))


class CohortNoise(NoiseSource):
    """The noise of several clients at once: row k of every draw [clients, ...] is what the k-th source would draw next.

    Raises ValueError for a draw whose first dimension is another one: which part of it were whose?
    """

    def __init__(self, sources: Sequence[NoiseSource]) -> None:
        self.each = self.sources = sources

    def normal(self, shape: Shape, std: float = 1.0) -> torch.Tensor:
        rows = self._rows(shape)
        if not rows or not all(isinstance(source, SeededNoise) for source in self.sources):
            return torch.stack([source.normal(rows, std) for source in self.sources])  # secure noise has std's own grid
        found = torch.empty(as_size(shape), dtype=torch.float32)
        for row, source in zip(found, self.sources, strict=True):
            source.normal_into(row)  # type: ignore[attr-defined]
        return found if std == 1.0 else found.mul_(std)

    def uniform(self, shape: Shape) -> torch.Tensor:
        rows = self._rows(shape)
        return torch.stack([source.uniform(rows) for source in self.sources])

    def fine_normal(self, shape: Shape, std: float) -> torch.Tensor:
        rows = self._rows(shape)
        return torch.stack([source.fine_normal(rows, std) for source in self.sources])

    def laplace(self, shape: Shape, scale: float = 1.0) -> torch.Tensor:
        rows = self._rows(shape)
        return torch.stack([source.laplace(rows, scale) for source in self.sources])

    def gumbel(self, shape: Shape, scale: float = 1.0) -> torch.Tensor:
        rows = self._rows(shape)
        return torch.stack([source.gumbel(rows, scale) for source in self.sources])

    def integers(self, low: int, high: int, shape: Shape) -> torch.Tensor:
        rows = self._rows(shape)
        return torch.stack([source.integers(low, high, rows) for source in self.sources])

    def binomial(self, trials: int, shape: Shape) -> torch.Tensor:
        rows = self._rows(shape)
        return torch.stack([source.binomial(trials, rows) for source in self.sources])

    def words(self, count: int) -> NDArray[np.uint64]:
        raise ValueError("words are of one client")

    def permutation(self, n: int) -> torch.Tensor:
        raise ValueError("a permutation is of one client")

    def _rows(self, shape: Shape) -> tuple[int, ...]:
        """The shape of one client's part."""
        first, *rest = as_size(shape) or (0,)
        if first != len(self.sources):
            raise ValueError(f"a draw {list(as_size(shape))} for {len(self.sources)} clients")
        return tuple(rest)


def noise_source(rng: Literal["seeded", "secure"], *key: int | str) -> NoiseSource:
    """The source that `privacy.rng` names; the key addresses seeded noise and is ignored by secure noise."""
    if rng == "seeded":
        return SeededNoise(*key)
    if rng == "secure":
        from fedpriv.mechanisms.secure_noise import SecureNoise  # cryptography is loaded only where needed

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


def _mersenne_twister(key: bytes) -> torch.Generator:
    """A torch generator whose 624 state words are SHAKE-256 of the key (19,937 bits, not manual_seed's 32)."""
    state = _FRESH_STATE.copy()
    state[3:627] = np.frombuffer(hashlib.shake_256(key).digest(4 * 624), "<u4")
    generator = torch.Generator()
    generator.set_state(torch.from_numpy(state.view(np.uint8)))
    return generator


# torch's own layout (THGeneratorState): seed, flags, position, then one 64-bit slot per 32-bit word. Tested.
_FRESH_STATE = torch.Generator().manual_seed(0).get_state().numpy().view(np.uint64).copy()
