"""What the options of a secure sum require of one another and of the method."""

from __future__ import annotations

from fedpriv.common.errors import OptionError
from fedpriv.config.schema import Config

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
    if chosen == "protocol":
        raise OptionError(OPTION, chosen, "is not there yet; allowed: assumed, ideal")
    for name in ("threshold", "neighbours"):
        given = server[name]
        if given is not None and given > config.clients_per_round:
            words = f"at most clients_per_round={config.clients_per_round} is allowed"
            raise OptionError(f"strategy.server.{name}", given, words)
