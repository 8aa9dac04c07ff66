"""Steps of plain SGD and of Adam on a gradient that already has noise: post-processing of an accounted release.

State in, state out; vectors are float32 [..., d].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

#: The paper's epsilon in the denominator of eq. 10.
ADAM_EPSILON = 1e-8


@dataclass(frozen=True)
class Moments:
    """m, v: moving averages of the gradient and of its square (empty for SGD); steps: number of steps taken."""

    m: Tensor
    v: Tensor
    steps: int = 0


class Optimiser(Protocol):
    """A rule that turns a noisy gradient into a step."""

    def fresh(self, like: Tensor) -> Moments:
        """The state before the first step."""
        ...

    def step(self, gradient: Tensor, moments: Moments, lr: float) -> tuple[Tensor, Moments]:
        """(what to add to the parameters, the next state)."""
        ...


class SGD:
    """theta <- theta - lr * g."""

    def fresh(self, like: Tensor) -> Moments:
        return Moments(torch.zeros(0), torch.zeros(0))

    def step(self, gradient: Tensor, moments: Moments, lr: float) -> tuple[Tensor, Moments]:
        return -lr * gradient, Moments(moments.m, moments.v, moments.steps + 1)


@dataclass(frozen=True)
class Adam:
    """Adam by the paper's equations: its listing prints beta1 for beta2 (lines 14 and 16) and omits the power t of the
    bias correction (lines 15 and 16).
    """

    beta1: float
    beta2: float

    def fresh(self, like: Tensor) -> Moments:
        return Moments(torch.zeros_like(like), torch.zeros_like(like))

    def step(self, gradient: Tensor, moments: Moments, lr: float) -> tuple[Tensor, Moments]:
        t = moments.steps + 1
        m = self.beta1 * moments.m + (1 - self.beta1) * gradient  # [DPFL-AGN, eq. 6]
        v = self.beta2 * moments.v + (1 - self.beta2) * gradient.square()  # [DPFL-AGN, eq. 7]
        m_hat = m / (1 - self.beta1**t)  # [DPFL-AGN, eq. 8]
        v_hat = v / (1 - self.beta2**t)  # [DPFL-AGN, eq. 9]
        return -lr / (v_hat.sqrt() + ADAM_EPSILON) * m_hat, Moments(m, v, t)  # [DPFL-AGN, eq. 10]
