"""What guarded answers cost: planned from the terms, verified from a ledger, and the noise that an epsilon asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedpriv.common.errors import OptionError
from fedpriv.guard.terms import Terms
from fedpriv.privacy.composition import compose, verify
from fedpriv.privacy.events import Threat
from fedpriv.privacy.ledger import LedgerFile


def claimed_epsilon(terms: Terms, dimension: int, rounds: int, delta: float) -> float:
    """Of so many answers about a model of so many numbers, under the terms' own threat."""
    return compose([replace(terms.event(dimension), count=rounds)], delta).epsilon


def verified_epsilon(ledger: Path, threat: Threat, delta: float) -> float:
    """The largest of all machines in a run's ledger."""
    return verify(LedgerFile(ledger, fsync=False).read().by_client(), delta, threat=threat).maximum


def with_epsilon(terms: Terms, dimension: int, rounds: int, delta: float, epsilon: float) -> Terms:
    """The terms with the least noise (to one part in 10^4) that keeps to epsilon. Raises `OptionError`."""
    low, high = 1e-3, 1.0
    while claimed_epsilon(replace(terms, noise_multiplier=high), dimension, rounds, delta) > epsilon:
        low, high = high, 2 * high
        if high > 1e6:
            raise OptionError("epsilon", epsilon, "no noise is enough for so little")
    while high / low > 1 + 1e-4:
        middle = (low * high) ** 0.5
        over = claimed_epsilon(replace(terms, noise_multiplier=middle), dimension, rounds, delta) > epsilon
        low, high = (middle, high) if over else (low, middle)
    return replace(terms, noise_multiplier=high)
