"""What guarded answers cost: planned from the terms, verified from a ledger, and the noise that an epsilon asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpriv.common.errors import OptionError
from fedpriv.common.files import json_number
from fedpriv.guard.terms import TRAIN, Terms
from fedpriv.privacy.composition import compose, verify
from fedpriv.privacy.events import Entry
from fedpriv.privacy.ledger import LedgerFile


def claimed_epsilon(terms: Terms, dimension: int, rounds: int | Mapping[str, int], delta: float) -> float:
    """Of so many answers (of each kind) about a model of so many numbers, under the terms' own threat."""
    times, kinds = {TRAIN: rounds} if isinstance(rounds, int) else rounds, terms.booked_kinds(dimension)
    return compose([replace(kinds[kind][0], count=count) for kind, count in times.items() if count], delta).epsilon


def answers_of(entries: Iterable[Entry], terms: Mapping[int, Terms], dimension: int) -> dict[int, dict[str, int]]:
    """How often each machine answered, by kind; kinds that cost the same are one. Raises ValueError for an entry that
    these terms never book.
    """
    found: dict[int, dict[str, int]] = {}
    kinds = {client: one.booked_kinds(dimension) for client, one in terms.items()}
    for entry in entries:
        place = [
            (kind, events.index(entry.event)) for kind, events in kinds[entry.client].items() if entry.event in events
        ]
        if not place:
            raise ValueError(f"an answer of machine {entry.client} was booked under other terms")
        kind, observer = place[0]
        times = found.setdefault(entry.client, {})
        times[kind] = times.get(kind, 0) + (observer == 0)
    return found


def figures(
    terms: Mapping[int, Terms], answers: Mapping[int, Mapping[str, int]], ledger: Path, dimension: int, delta: float
) -> list[dict[str, Any]]:
    """Claimed and verified epsilon under every threat of a run, the first machine's own first. terms: by machine;
    answers: `answers_of`; ledger: the server's, composed from what it says.
    """
    booked = LedgerFile(ledger, fsync=False).read().by_client()
    planned = {
        client: [
            replace(event, count=count)
            for kind, count in times.items()
            for event in terms[client].booked_kinds(dimension)[kind]
        ]
        for client, times in sorted(answers.items())
    }
    found = []
    own = [terms[client].threat for client in planned]
    for threat in dict.fromkeys([*own, *(event.threat for events in planned.values() for event in events)]):
        under = [[event for event in events if event.threat == threat] for events in planned.values()]
        claimed = max(compose(events, delta).epsilon for events in under if events)
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
