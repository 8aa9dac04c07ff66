"""Slow twin of a client's noisy steps with Adam, written from the page: plain loops over coordinates."""

from __future__ import annotations

import math


class PlainAdam:
    """m, v and t of eq. 6 to 10, one coordinate after the other."""

    def __init__(self, beta1: float, beta2: float, lr: float) -> None:
        self.beta1, self.beta2, self.lr = beta1, beta2, lr
        self.t = 0
        self.m: dict[int, float] = {}
        self.v: dict[int, float] = {}

    def step(self, gradient: list[float]) -> list[float]:
        self.t += 1
        moves = []
        for k, g in enumerate(gradient):
            self.m[k] = self.beta1 * self.m.get(k, 0.0) + (1 - self.beta1) * g
            self.v[k] = self.beta2 * self.v.get(k, 0.0) + (1 - self.beta2) * g * g
            m_hat = self.m[k] / (1 - self.beta1**self.t)
            v_hat = self.v[k] / (1 - self.beta2**self.t)
            moves.append(-self.lr * m_hat / (math.sqrt(v_hat) + 1e-8))
        return moves
