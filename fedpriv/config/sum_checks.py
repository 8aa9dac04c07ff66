"""What the members of a secure sum sign of a run's options, and a run without masks."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fedpriv.config.schema import Config

#: What of a run's options members of a sum need not agree on, by the beginning of its name, with the reason. All others
#: fix noise, grid, modulus, width, threshold, graph, clip norm, cohort, rounds, data or training: members sign them.
UNSIGNED: dict[str, str] = {
    "run_dir": "where this machine writes",
    "dataset.root": "where this machine's examples lie",
    "dataset.test_root": "where the server's test examples lie",
    "dataset.schema_file": "where this machine's copy of the schema lies, whose digest is signed",
    "dataset.separator": "how this machine's table is written",
    "dataset.decimal": "how this machine's table is written",
    "dataset.encoding": "how this machine's table is written",
    "dataset.cache": "where this machine keeps what it has decoded",
    "dataset.download": "how this machine comes by a public data set",
    "model.name": "the server resolves auto; theta and its length are signed, and any update is clipped",
    "model.weights": "where this machine's copy of the weights lies, whose digest is signed",
    "features.weights": "where this machine's copy of the weights lies, whose digest is signed",
    "privacy.rng": "a node draws from its operating system whatever a run says",
    "engine.name": "how messages travel",
    "engine.workers": "processes of a simulation",
    "engine.threads_per_client": "threads of this machine",
    "engine.trainer": "how many clients of a simulation are computed at once, with the same bits",
    "engine.address": "where messages travel",
    "engine.device": "what this machine computes on",
    "engine.gpus_per_worker": "what this machine computes on",
    "engine.round_timeout": "how long the server waits",
    "engine.client_memory_mib": "what a simulation reserves",
    "engine.faults": "of simulations alone; a fault is what the rules are there for",
    "evaluate": "what the server measures of its own model",
    "checkpoint": "what the server keeps of the run",
    "attack": "what is tried after the run",
    "audit": "canaries are extra clients of a simulation",
    "operations": "how this process reports and stops",
    "tracking": "where the server writes figures",
}


def release_digest(config: Config) -> bytes:
    """SHA-256 (32 bytes) of what decides a client's release and is the same on every machine of a run: the members of a
    sum sign it. All options but those of `UNSIGNED`.
    """
    return hashlib.sha256(json.dumps(_signed(config.to_dict()), sort_keys=True).encode()).digest()


def _signed(content: dict[str, Any], before: str = "") -> dict[str, Any]:
    found = {}
    for name, value in content.items():
        path = before + name
        if path not in UNSIGNED:
            found[name] = _signed(value, f"{path}.") if isinstance(value, dict) else value
    return found


def in_the_open(config: Config) -> Config:
    """The same run without masks, where a single client's part is looked at: audits. The sums are the same."""
    strategy = config.strategy
    if strategy.secure_sum != "protocol":
        return config
    options = strategy.options.model_copy(update={"secure_sum": "ideal"})
    changed = strategy.model_copy(update={"secure_sum": "ideal", "options": options})
    return config.model_copy(update={"strategy": changed})
