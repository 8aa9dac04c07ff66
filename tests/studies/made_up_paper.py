"""A paper made up for the digits, and the options of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedpriv.studies import spec

DIGITS = [
    "dataset=digits", "model=linear", "num_clients=4", "clients_per_round=4", "num_rounds=2", "local.batch_size=60",
    "engine.trainer=sequential", "checkpoint.every=0",
]  # fmt: skip

PAPER: dict[str, Any] = {
    "paper": "made_up",
    "title": "A paper of the tests",
    "authors": "nobody",
    "idea": "An idea.",
    "leak": "A leak | with a bar.",
    "repair": "A repair.",
    "methods": ["fedldp"],
    "seeds": {"small": 2, "literal": 3},
    "client_epochs": {"small": 60, "literal": 100},
    "tables": {
        "noise": {
            "title": "Noise",
            "source": "Table 1",
            "options": [*DIGITS, "strategy=fedldp", "evaluate.every=1"],
            "rows": {
                "little": {"label": "little noise", "options": ["strategy.client.noise_multiplier=0.001"]},
                "much": {"label": "much noise", "options": ["strategy.client.noise_multiplier=10"]},
            },
            "columns": {"final": {"label": "accuracy"}},
            "reported": {"little": {"final": 30.0}, "much": {"final": 90.0}},
        },
        "epsilon": {
            "title": "Epsilon",
            "source": "Theorem 1",
            "kind": "plan",
            "measure": "verified_epsilon",
            "options": [*DIGITS, "strategy=fedcad", "strategy.client.obsolete_factor=0.4"],
            "rows": {
                "published": {"label": "published", "options": ["privacy.variant=published"]},
                "repaired": {"label": "repaired"},
            },
            "columns": {"run": {"label": "epsilon"}},
        },
        "elsewhere": {
            "title": "Other pictures",
            "source": "Table 2",
            "dataset": "mnist",
            "options": ["strategy=fedldp"],
            "rows": {"only": {"label": "only"}},
            "columns": {"final": {"label": "accuracy"}},
        },
    },
    "figures": {
        "curves": {"kind": "curves", "table": "noise", "column": "final", "title": "Curves", "caption": "Two."},
        "norms": {"kind": "norms", "table": "noise", "column": "final", "title": "Norms", "caption": "Two."},
    },
    "claims": {
        "right": {
            "claim": "Little noise is better",
            "source": "Table 1",
            "test": {"kind": "better", "pairs": [["noise/little/final", "noise/much/final"]]},
        },
        "wrong": {
            "claim": "Much noise is better",
            "source": "Table 1",
            "test": {"kind": "better", "pairs": [["noise/much/final", "noise/little/final"]], "reported": [60]},
        },
        "private": {
            "claim": "It is private",
            "source": "Theorem 1",
            "test": {"kind": "at_most", "cell": "epsilon/published/run", "bound": 1e9, "decides": "A leak."},
        },
        "repaired": {
            "claim": "It can be",
            "source": "Theorem 1",
            "test": {"kind": "at_most", "cell": "epsilon/repaired/run", "bound": 1e9},
        },
        "pictures": {
            "claim": "It works elsewhere",
            "source": "Table 2",
            "test": {"kind": "at_least", "cell": "elsewhere/only/final", "bound": 1},
        },
    },
}


def with_paper(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Path:
    """The made-up paper as the only one there is."""
    (folder / "papers").mkdir(exist_ok=True)
    (folder / "papers" / "made_up.yaml").write_text(yaml.safe_dump(PAPER | changes, sort_keys=False))
    monkeypatch.setattr(spec, "FOLDER", folder / "papers")
    return folder / "papers" / "made_up.yaml"
