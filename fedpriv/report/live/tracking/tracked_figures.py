"""Tracked values: names, numbers and texts from a run's configuration, rounds and summary.

A number that is not finite becomes the text "inf": none of the tools displays it correctly as a number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from fedpriv.config.schema import Config
from fedpriv.report.client_accuracy import PERSONAL
from fedpriv.report.epsilon_figures import unaudited
from fedpriv.report.words import leaves

Figures = dict[str, float]
Texts = dict[str, str]

#: Keys of a round's line of metrics.jsonl.
ROUND = ("accuracy", "loss", "participants", "dropped", "late", "stopped", "seconds", "bytes_up", "bytes_down")
#: Means over the clients, known only in simulation: a real server does not see them.
DIAGNOSTICS = ("train_loss", "update_norm", "clipped_norm", "noise_norm")
#: Options about paths on this machine, or about monitoring.
PLACES = (
    *("run_dir", "operations", "tracking", "engine.address", "model.path"),
    *("dataset.root", "dataset.cache", "dataset.split", "dataset.path", "dataset.test_root"),
)
#: What an epsilon that is null in summary.json means.
NO_EPSILON = {"claimed_epsilon": "nothing is claimed", "audited_epsilon": "not audited"}


def options(config: Config) -> Texts:
    """The resolved configuration by dotted names, without `PLACES` and targets."""
    found = {}
    for name, value in leaves(config.to_dict()):
        if not any(f"{name}.".startswith(f"{place}.") for place in PLACES) and "_target_" not in name:
            found[name] = value if isinstance(value, str) else json.dumps(value)
    return found


def of_round(row: Mapping[str, Any]) -> tuple[Figures, Texts]:
    """A line of metrics.jsonl. Single clients are left out, and so are lists, which a tool cannot plot."""
    wanted: dict[str, Any] = {name: row[name] for name in ROUND}
    refused = None if row["refused"] is None else sum(row["refused"].values())
    wanted |= {"epsilon": row["epsilon_so_far"], "refused": refused}
    wanted |= {f"figures/{name}": value for name, value in row["figures"].items()}
    wanted |= {f"diagnostics/{name}": row[name] for name in DIAGNOSTICS}
    personal = row[PERSONAL] or {}
    wanted |= {f"diagnostics/{PERSONAL}.{name}": value for name, value in personal.items() if name != "clients"}
    return _divided(wanted)


def of_summary(summary: Mapping[str, Any]) -> tuple[Figures, Texts]:
    """summary.json by dotted names, always including the three epsilons."""
    figures, texts = _divided({f"summary/{name}": value for name, value in leaves(summary)})
    for name, words in NO_EPSILON.items():
        if summary["privacy"].get(name) is None:
            texts[f"summary/privacy.{name}"] = words if name == "claimed_epsilon" else unaudited(summary["privacy"])
    return figures, texts


def _divided(values: Mapping[str, Any]) -> tuple[Figures, Texts]:
    """Separates finite numbers and texts; other values are dropped."""
    figures: Figures = {}
    texts: Texts = {}
    for name, value in values.items():
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if math.isfinite(value):
                figures[name] = float(value)
            else:
                texts[name] = str(float(value))
    return figures, texts
