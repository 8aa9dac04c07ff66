"""A ledger of Gaussians that becomes one by Renyi: the game that its two shares of delta are there for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedpriv.deployment.accounting import RESERVED
from fedpriv.privacy.composition import ORDERS, Budget, gaussian_mu


def stays(rest: float, gaps: np.ndarray) -> np.ndarray:
    """E[(1 - exp(gap - X))_+] for the loss X of a Gaussian with mu^2 = rest."""
    mu = np.sqrt(rest)
    found: np.ndarray = stats.norm.cdf(mu / 2 - gaps / mu) - np.exp(gaps) * stats.norm.cdf(-mu / 2 - gaps / mu)
    return found


def changes(order: float, rest: float, gap: float) -> float:
    """The largest E[(1 - exp(gap - X))_+] of a mechanism with two outcomes and Renyi cost ``rest``: with probability p
    its loss is j > gap.
    """
    if rest <= 0:
        return 0.0
    j = gap + np.geomspace(1e-3, 20, 60)
    low, high = np.zeros_like(j), np.minimum(1, np.exp(j)) * (1 - 1e-12)
    for _ in range(30):
        p = (low + high) / 2
        other = np.exp((order - 1) * (np.log1p(-p) - np.log1p(-p * np.exp(-j))))
        fits = p * np.exp((order - 1) * j) + (1 - p) * other <= np.exp((order - 1) * rest)
        low, high = np.where(fits, p, low), np.where(fits, high, p)
    return float(np.max(low * (1 - np.exp(gap - j))))


def game(epsilon: float, delta: float, shares: tuple[float, float], part: float) -> float:
    """delta at epsilon of who releases a Gaussian of ``part`` of the budget, looks, and then goes on with the rest of
    the Gaussian filter's, or changes and spends the rest of the Renyi filter's on two outcomes, whichever is worse.
    """
    total = gaussian_mu(epsilon, delta * shares[0]) ** 2
    budget = Budget(epsilon, delta * shares[1], rule="rdp", order="gaussian")
    limits = budget._renyi_limits(delta * shares[1])
    place = budget._order(limits, ())
    order, rest = float(ORDERS[place]), float(limits[place]) - float(ORDERS[place]) * part * total / 2
    z = np.linspace(-8, 8, 81)
    weights = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    gaps = epsilon - (part * total / 2 + np.sqrt(part * total) * z)
    after = np.array([changes(order, rest, gap) for gap in gaps])
    return float(weights @ np.maximum(stays((1 - part) * total, gaps), after))


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_a_change_after_looking_breaks_delta_without_the_shares_and_keeps_it_with_them(epsilon: float) -> None:
    for delta, part in ((1e-2, 0.3), (1e-5, 0.3), (1e-5, 0.5)):
        assert game(epsilon, delta, (1.0, 1.0), part) > 1.06 * delta
        assert game(epsilon, delta, (1.0, 0.5), part) > 1.02 * delta  # with the half that pairs leave
        assert game(epsilon, delta, (1 - RESERVED, RESERVED), part) <= delta
