"""What the options of a secure sum require of one another and of the method."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fedpriv.common.errors import OptionError
from fedpriv.common.sum_graph import MOST_MEMBERS, graph_of
from fedpriv.config.data_schema import OF_WAVES
from fedpriv.config.methods import CpSGDOptions, DPSumOptions
from fedpriv.config.schema import Config
from fedpriv.config.sum_methods import ModularOptions, RowSumOptions

OPTION = "strategy.secure_sum"


def check_secure_sum(config: Config) -> None:
    """Raises `OptionError` naming the option, its value and what is allowed."""
    chosen, options = config.strategy.secure_sum, config.strategy.options
    if not isinstance(options, ModularOptions):
        if chosen != "assumed":
            words = f"{config.strategy.name} sends no whole numbers that could be added up in secret; allowed: assumed"
            raise OptionError(OPTION, chosen, words)
        return
    if chosen != "assumed" and isinstance(options, CpSGDOptions) and options.sensitivity == "per_example":
        words = "clients of a sum add noise of one size; allowed: clip"
        raise OptionError("strategy.client.sensitivity", "per_example", words)
    if isinstance(options, RowSumOptions):
        _check_row_sums(chosen, options)
    if options.threshold is not None and options.threshold > config.clients_per_round:
        words = f"at most clients_per_round={config.clients_per_round} is allowed"
        raise OptionError("strategy.server.threshold", options.threshold, words)
    if chosen == "protocol":
        _check_protocol(config, options.threshold, options.colluders)


def _check_row_sums(chosen: str, options: RowSumOptions) -> None:
    """What a form of the noise allows."""
    if isinstance(options, DPSumOptions) and options.whole and options.sampling_rate < 1:
        words = f"no law of a sample under form={options.form}'s whole-number noise is proved; allowed: 1, or "
        words += "strategy.client.form=central or local"
        raise OptionError("strategy.client.sampling_rate", options.sampling_rate, words)
    if options.form == "local" and chosen == "protocol":
        raise OptionError(OPTION, chosen, "with strategy.client.form=local each site's own sum is seen; allowed: ideal")


def _check_protocol(config: Config, threshold: int | None, colluders: int) -> None:
    """As every client checks it again: no two sets of survivors open, and the graph withstands the colluders."""
    clients = config.clients_asked
    if clients < 2:
        raise OptionError(OPTION, "protocol", "needs rounds of two clients at least: a sum of one hides nothing")
    if clients > MOST_MEMBERS:  # before a node computes anything that grows with a number that a server names
        words = f"{OPTION}=protocol asks at most {MOST_MEMBERS} clients in a round, with over_selection {clients}"
        raise OptionError("clients_per_round", config.clients_per_round, words)
    k, chosen = graph_of(clients, threshold, colluders)
    least = (clients + colluders) // 2 + 1
    if threshold is not None and threshold < least:
        words = f"at least {least} is allowed, above half of {clients} clients and {colluders} colluders together"
        raise OptionError("strategy.server.threshold", threshold, words)
    if not k and chosen < least:
        words = f"fewer than a third of the {clients} clients may collude, or name strategy.server.threshold"
        raise OptionError("strategy.client.colluders", colluders, words)
    if (opening := max(chosen, least)) > config.clients_per_round:
        replies = config.clients_per_round
        words = f"unmasking needs {opening} clients but rounds close at {replies} replies"
        way = f"set strategy.server.threshold to {least} to {replies}, or " if least <= replies else ""
        raise OptionError("over_selection", config.over_selection, f"{words}; {way}lower over_selection")


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

#: Options that are signed, but where they are as in releases without them: whose state a node finds by this digest.
YOUNGER: tuple[tuple[str, Any], ...] = (
    ("dataset.background", "white"),
    ("dataset.white_level", None),
    ("model.arrays", []),
)


def release_digest(config: Config) -> bytes:
    """SHA-256 (32 bytes) of what decides a client's release and is the same on every machine of a run: the members of a
    sum sign it. All options but those of `UNSIGNED`.
    """
    content = config.to_dict()
    if "features" in content:
        content["features"] |= OF_WAVES
    return hashlib.sha256(json.dumps(_signed(content), sort_keys=True).encode()).digest()


def _signed(content: dict[str, Any], before: str = "") -> dict[str, Any]:
    found = {}
    for name, value in content.items():
        path = before + name
        if path not in UNSIGNED and (path, value) not in YOUNGER:
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
