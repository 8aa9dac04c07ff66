"""What guarded answers cost: planned from the terms, verified from a ledger, and the noise that an epsilon asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpriv.common.errors import OptionError
from fedpriv.common.files import json_number
from fedpriv.guard.terms import Terms
from fedpriv.privacy.composition import compose, verify
from fedpriv.privacy.ledger import LedgerFile


def claimed_epsilon(terms: Terms, dimension: int, rounds: int, delta: float) -> float:
    """Of so many answers about a model of so many numbers, under the terms' own threat."""
    return compose([replace(terms.event(dimension), count=rounds)], delta).epsilon


def figures(
    terms: Mapping[int, Terms], rounds: Mapping[int, int], ledger: Path, dimension: int, delta: float
) -> list[dict[str, Any]]:
    """Claimed and verified epsilon under every threat of a run, the first machine's own first. terms: by machine;
    rounds: how often each answered; ledger: the server's, composed from what it says.
    """
    booked = LedgerFile(ledger, fsync=False).read().by_client()
    threats = list(dict.fromkeys(terms[client].threat for client in sorted(rounds)))
    for client in sorted(rounds):
        alone = terms[client].alone(dimension)
        threats += [alone.threat] if alone is not None and alone.threat not in threats else []
    found = []
    for threat in threats:
        planned = [
            [replace(event, count=rounds[client])]
            for client in rounds
            for event in (terms[client].event(dimension), terms[client].alone(dimension))
            if event is not None and event.threat == threat
        ]
        claimed = max(compose(events, delta).epsilon for events in planned)
        verified = verify(booked, delta, threat=threat)
        found.append(
            {
                "unit": threat.unit,
                "adjacency": threat.adjacency,
                "observer": threat.observer,
                "delta": delta,
                "claimed_epsilon": json_number(claimed),
                "verified_epsilon": json_number(verified.maximum),
                "accountant": verified.accountant,
            }
        )
    return found


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
