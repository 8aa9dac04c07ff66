"""Fed-CAD in plain numpy (float64, one vector at a time), written from the paper's Algorithm 1 and its page.

Symbols are the paper's: sigma, C, Diff = D, gamma, r, s = sigma_i, v, mu.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Vector = np.ndarray
Normals = Callable[[int], Vector]  # n independent N(0, 1)


def plain_clip(update: Vector, bound: float) -> Vector:
    return update / max(1.0, float(np.sqrt(np.sum(update**2))) / bound)


class PlainFedCAD:
    """One participant. `release` is one participation; what it keeps is public here, for the comparison."""

    def __init__(
        self,
        sigma: float,
        clip_norm: float,
        diff: float,
        gamma: float = 0.0,
        sigma_diff: float = 0.0,
        unclipped: bool = False,
        repaired: bool = False,
    ) -> None:
        self.sigma, self.C, self.D0, self.D = sigma, clip_norm, diff, diff
        self.gamma, self.sigma_diff, self.unclipped, self.repaired = gamma, sigma_diff, unclipped, repaired
        self.i = 0
        self.x = self.mu = np.zeros(0)
        self.v, self.r, self.s = 1.0, 0.0, sigma

    def release(self, update: Vector, normals: Normals) -> Vector:
        xbar = plain_clip(update, self.C)
        self.i += 1
        if self.i == 1:
            self.x, self.mu, self.v = xbar, self.sigma * self.C * normals(len(update)), 1.0
            return self.x + self.mu
        D, change = self.D, float(np.linalg.norm(xbar - self.x))
        x = xbar
        if change > D * self.C:
            x = self.x + (xbar - self.x) * (D * self.C / change)
        r = (1 - D) / ((1 - D) ** 2 + self.v)
        if self.repaired and r > 1:
            r = 1.0
        s = ((1 - r) + r * D) * self.sigma
        mu = s * self.C * normals(len(update)) + r * self.mu
        v = self.v / ((1 - D) ** 2 + self.v)
        if self.repaired:
            v = (1 - r + r * D) ** 2 + r**2 * self.v
        if self.gamma > 0:
            norm = float(np.linalg.norm((xbar if self.unclipped else x) - self.x)) / self.C
            noisy = norm + (self.sigma_diff * float(normals(1)[0]) if self.sigma_diff > 0 else 0.0)
            highest = self.D0 if self.repaired else 1 - 1e-3
            self.D = min(max((1 - self.gamma) * D + self.gamma * noisy, 1e-3), highest)
        self.x, self.mu, self.v, self.r, self.s = x, mu, v, r, s
        return x + mu


def variance_of_sum(diff: float, participations: int) -> float:
    """Variance of mu_1 + ... + mu_n for constant D, divided by n sigma^2.

    By hand: every fresh draw of step j appears in step k >= j with weight r_{j+1} * ... * r_k.
    """
    reuse, fresh, v = [0.0], [1.0], 1.0
    for _ in range(participations - 1):
        r = (1 - diff) / ((1 - diff) ** 2 + v)
        reuse.append(r)
        fresh.append(1 - r + r * diff)
        v = v / ((1 - diff) ** 2 + v)
    total = 0.0
    for j in range(participations):
        weight, product = 1.0, 1.0
        for k in range(j + 1, participations):
            product *= reuse[k]
            weight += product
        total += (weight * fresh[j]) ** 2
    return total / participations


def constant_diff_variance(diff: float, participation: int) -> float:
    """Theorem VI.2: v_i = (2D - D^2) / (1 - (1-D)^(2i)) for constant D, i from 1."""
    return (2 * diff - diff**2) / (1 - (1 - diff) ** (2 * participation))
