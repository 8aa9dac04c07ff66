"""What the options of a secure sum require of one another and of the method."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fedpriv.common.errors import OptionError
from fedpriv.config.schema import Config
from fedpriv.config.sum_methods import COMPLETE

OPTION = "strategy.secure_sum"


def check_secure_sum(config: Config) -> None:
    """Raises `OptionError` naming the option, its value and what is allowed."""
    chosen, server, client = config.strategy.secure_sum, config.server_options(), config.client_options()
    if "secure_sum" not in server:
        if chosen != "assumed":
            words = f"{config.strategy.name} sends no whole numbers that could be added up in secret; allowed: assumed"
            raise OptionError(OPTION, chosen, words)
        return
    if chosen != "assumed" and client.get("sensitivity") == "per_example":
        words = "clients of a sum add noise of one size; allowed: clip"
        raise OptionError("strategy.client.sensitivity", "per_example", words)
    for half, options in (("server", server), ("client", client)):
        if options["secure_sum"] != chosen:
            raise OptionError(f"strategy.{half}.secure_sum", options["secure_sum"], f"must be {OPTION}={chosen}")
    if client["bits"] != server["bits"]:
        raise OptionError("strategy.client.bits", client["bits"], f"must be strategy.server.bits={server['bits']}")
    for name in ("threshold", "neighbours"):
        given = server[name]
        if client[name] != given:
            raise OptionError(f"strategy.client.{name}", client[name], f"must be strategy.server.{name}={given}")
        if given is not None and given > config.clients_per_round:
            words = f"at most clients_per_round={config.clients_per_round} is allowed"
            raise OptionError(f"strategy.server.{name}", given, words)
    if chosen == "protocol":
        _check_protocol(config, server["threshold"], client["colluders"])


def _check_protocol(config: Config, threshold: int | None, colluders: int) -> None:
    """As every client checks it again: above half, so that no two sets of survivors open."""
    clients = config.clients_asked
    if clients < 2:
        raise OptionError(OPTION, "protocol", "needs rounds of two clients at least: a sum of one hides nothing")
    if clients > COMPLETE:
        return  # a sparse graph, whose threshold counts neighbours
    least, chosen = (clients + colluders) // 2 + 1, max(2, 2 * clients // 3 + 1)
    if threshold is not None and threshold < least:
        words = f"at least {least} is allowed, above half of {clients} clients and {colluders} colluders together"
        raise OptionError("strategy.server.threshold", threshold, words)
    if threshold is None and chosen < least:
        words = f"fewer than a third of the {clients} clients may collude, or name strategy.server.threshold"
        raise OptionError("strategy.client.colluders", colluders, words)
    if (threshold or chosen) > config.clients_per_round:
        words = f"the round closes at {config.clients_per_round} replies, and {threshold or chosen} clients open a sum"
        raise OptionError("over_selection", config.over_selection, f"{words}: name strategy.server.threshold")


def release_digest(config: Config) -> bytes:
    """SHA-256 (32 bytes) of what decides a client's release and is the same on every machine of a run: the members of a
    sum sign it. Without what only the server resolves (``model=auto``): theta is signed for itself.
    """
    content = config.to_dict()
    kept: dict[str, Any] = {name: content[name] for name in ("strategy", "local", "num_rounds")}
    kept |= {name: content["privacy"][name] for name in ("variant", "delta")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).digest()


def in_the_open(config: Config) -> Config:
    """The same run without masks, where a single client's part is looked at: audits. The sums are the same."""
    strategy = config.strategy
    if strategy.secure_sum != "protocol":
        return config
    changed: dict[str, Any] = {"secure_sum": "ideal"}
    halves = {name: getattr(strategy, name) | changed for name in ("server", "client")}
    return config.model_copy(update={"strategy": strategy.model_copy(update=changed | halves)})
