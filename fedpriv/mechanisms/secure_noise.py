"""Noise for deployments: the operating system's key, AES-256 in counter mode, Gaussians on a grid.

How a Gaussian is made: 64 random bits give the radius and 64 the angle of Box and Muller (1958), in float64; the pair
is scaled and rounded to multiples of `noise.grid_step(std)`, about std / 2^19, which float32 holds exactly.

Why the rounding protects: Mironov (CCS 2012) and Jin et al. ("Are we there yet?", S&P 2022) read secrets off the low
bits of noisy floating-point numbers. Here the low bits carry nothing. Every multiple of the step within 7 standard
deviations is reached, by more than 2^40 pairs of words, and float64's errors move the border between neighbouring
multiples by about 2^-30 of a step (2^-27 in the far tail). So a value's probability differs from a rounded Gaussian's
by a factor of about 1 +- 2^-29, which over d coordinates adds at most about d * 2^-28 to epsilon (3e-4 for d = 80,202).
Past 9.4 standard deviations no pair reaches: 2^-67 of the mass, but what the other of two inputs 10 of them away gives
most often. So draws beyond `FAR` are drawn again from the tail that rounds to there (a tail from `FAR` itself gave one
multiple 1.5 times its share and those beyond it 2^-17 more or less), by 1,024 bits, which reach 37. float32 holds
multiples of the step up to 16 standard deviations at least, the rest is float64. A rounded Gaussian is post-processing
of a Gaussian. Laplace draws, which else end at 75 scales, likewise: up to `FAR_LAPLACE` the 53 bits of their uniforms
move the mass of a tail by less than 2^-29 of itself (at 30 scales, by 2^-11).
`noise.add_normal` puts the values onto the same grid. Google's library rounds likewise ("Secure noise generation",
2020). The alternative is a sum of several float draws (Holohan and Braghin, ESORICS 2021; Opacus, `secure_mode`): four
times the work, and the low bits of the values still show (Haney et al. 2022).
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray
from randomgen import ChaCha

from fedpriv.mechanisms.laws import Vector
from fedpriv.mechanisms.noise import LAPLACE_BITS, NoiseSource, Shape, as_size, grid_step

#: Beyond so many standard deviations, or scales of a Laplace draw, a number is drawn again.
FAR, FAR_LAPLACE = 7.0, 15.0
#: Up to here every whole number is a float32.
MOST_FLOAT = 2**24
CHUNK = 2**14  # pairs at a time: the working arrays stay in a core's cache, and torch starts no second thread


class SecureNoise(NoiseSource):
    """Noise that cannot be reproduced: a fresh 256-bit key from the operating system per object and per process.

    AES rather than ChaCha20 because it is twice as fast where the processor has it (0.15 against 0.37 ns per byte).
    A forked process draws a key of its own. Pickling or deep-copying raises TypeError: it would repeat the stream.
    """

    def __init__(self) -> None:
        self._rekey()

    def normal(self, shape: Shape, std: float = 1.0) -> torch.Tensor:
        """Gaussians [shape], float32, rounded to multiples of `grid_step(std)`; float64 where one is so large that
        float32 does not hold it (beyond 16 standard deviations).

        Raises ValueError unless std is 0 or between 2^-100 and 2^100 (where the grid's float32 numbers are exact).
        """
        size = as_size(shape)
        if std == 0:
            return torch.zeros(size, dtype=torch.float32)
        _check(std)
        step = grid_step(std)
        draws = torch.empty(math.prod(size), dtype=torch.float32)
        for chunk in draws.split(2 * CHUNK):
            pairs = (len(chunk) + 1) // 2
            first, second = (half.round_().mul_(step).add_(0.0) for half in self._gaussian_pairs(pairs, std / step))
            chunk[:pairs] = first  # no negative zero, thanks to + 0.0: its sign could be a value's
            chunk[pairs:] = second[: len(chunk) - pairs]
        return self._with_tails(draws.view(size), FAR * std, step, lambda far, logs: std * _beyond(far / std, logs))

    def uniform(self, shape: Shape) -> torch.Tensor:
        size = as_size(shape)
        draws = torch.empty(math.prod(size), dtype=torch.float64)
        for chunk in draws.split(2 * CHUNK):
            chunk[:] = self._words(len(chunk)).bitwise_right_shift_(11).bitwise_and_(2**53 - 1)
        return draws.mul_(2.0**-53).clamp_(min=2.0**-54).view(size)

    def words(self, count: int) -> NDArray[np.uint64]:
        return self._words(count).numpy().view(np.uint64)

    def laplace(self, shape: Shape, scale: float = 1.0) -> torch.Tensor:
        """Laplace [shape], float32, rounded to multiples of `grid_step(scale, LAPLACE_BITS)`; raises as `normal`."""
        _check(scale)
        step = grid_step(scale, LAPLACE_BITS)
        draws = self._laplace(shape).mul_(scale / step).round_().float().mul_(step).add_(0.0)
        return self._with_tails(draws, FAR_LAPLACE * scale, step, lambda far, logs: far - scale * logs)

    def _with_tails(
        self, draws: torch.Tensor, far: float, step: float, tail: Callable[[float, Vector], Vector]
    ) -> torch.Tensor:
        """Draws beyond ``far`` in size are drawn again. tail: sizes beyond a border, from logarithms of uniforms."""
        far = (math.floor(far / step) + 0.5) * step  # what is larger rounds to more than ``far``: no multiple is split
        if not draws.numel() or max(map(abs, map(float, torch.aminmax(draws)))) <= far:
            return draws
        beyond = draws.abs() > far
        uniforms = (int.from_bytes(self._words(16).numpy().tobytes(), "little") for _ in range(int(beyond.sum())))
        logs = np.array([math.log(2 * number + 1) - 1025 * math.log(2) for number in uniforms])
        steps = torch.from_numpy(np.round(tail(far, logs) / step))
        if float(steps.max()) > MOST_FLOAT:
            draws = draws.double()
        draws[beyond] = (steps * step * draws[beyond].sign()).to(draws.dtype)
        return draws

    def _gaussian_pairs(self, count: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Two independent vectors of Gaussians with standard deviation `scale` (float64 [count] each)."""
        words = self._words(2 * count)
        uniform = words[:count].bitwise_and_(2**63 - 1).double().add_(0.5).mul_(2.0**-63)
        angle = words[count:].double().mul_(math.pi * 2.0**-63)
        radius = uniform.log_().mul_(-2 * scale**2).sqrt_()
        return torch.cos(angle).mul_(radius), angle.sin_().mul_(radius)

    def _words(self, count: int) -> torch.Tensor:
        """`count` words of 64 random bits (int64 [count]): the cipher's key stream, each word once."""
        if os.getpid() != self._process:
            self._rekey()
        stream = bytearray(8 * count)
        self._cipher.update_into(bytes(8 * count), stream)
        return torch.from_numpy(np.frombuffer(stream, np.int64))

    def _rekey(self) -> None:
        self._cipher = Cipher(AES(os.urandom(32)), CTR(bytes(16))).encryptor()
        self._process = os.getpid()


def secure_generator() -> np.random.Generator:
    """For batches that must be unpredictable to the observer: ChaCha20 with a fresh 256-bit key from the system.

    Sampling amplifies privacy only while the observer does not know the sample.
    """
    return np.random.Generator(ChaCha(key=secrets.randbits(256), rounds=20))


def _beyond(far: float, logs: Vector) -> Vector:
    """Sizes of standard Gaussians beyond ``far``."""
    from scipy.special import log_ndtr, ndtri_exp

    found: Vector = -ndtri_exp(logs + log_ndtr(-far))
    return found


def _check(scale: float) -> None:
    if not 2.0**-100 <= scale <= 2.0**100:
        raise ValueError(f"secure noise needs a standard deviation or scale within [2^-100, 2^100], got {scale}")
