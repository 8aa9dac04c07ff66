"""Accuracy of each client's own model on its own test examples, summarised over the clients.

A diagnostic for the experimenter: the accuracies come from messages that exist only in simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean, pstdev
from typing import Any

#: Key of a round's line in metrics.jsonl.
PERSONAL = "personal_accuracy"


def spread_over_clients(accuracies: Mapping[int, float]) -> dict[str, float]:
    """Over clients with equal weights: mean, worst_decile (mean over the tenth of the clients, at least one, with the
    lowest accuracies), std (population). Requires at least one client.
    """
    ascending = sorted(accuracies.values())
    worst = ascending[: math.ceil(len(ascending) / 10)]
    return {"mean": fmean(ascending), "worst_decile": fmean(worst), "std": pstdev(ascending)}


def round_figures(accuracies: Mapping[int, float]) -> dict[str, Any] | None:
    """A round's entry in metrics.jsonl: the spread, and every participant's own accuracy by client id."""
    if not accuracies:
        return None
    own = {str(client): round(value, 6) for client, value in sorted(accuracies.items())}
    return {**spread_over_clients(accuracies), "clients": own}


def last_known(rows: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """client -> accuracy of its last participation with a value, from the lines of metrics.jsonl in order."""
    found: dict[int, float] = {}
    for row in rows:
        entry = row.get(PERSONAL)
        own = entry.get("clients") if isinstance(entry, Mapping) else None
        if isinstance(own, Mapping):
            found |= {int(client): float(value) for client, value in own.items()}
    return found


def summary_figures(rows: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Entries on the clients' own models in summary.json's ``accuracy``, from each client's last known value."""
    known = last_known(rows)
    spread = spread_over_clients(known) if known else {}
    return {
        "personalised": spread.get("mean"),
        "personalised_worst_decile": spread.get("worst_decile"),
        "personalised_std": spread.get("std"),
    }
