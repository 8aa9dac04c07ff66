"""How often a client takes part: the plan that prices, cohorts and each client's own limit follow.

``sampled``: cohorts are drawn by lottery, and a guarantee is that of the client which the lottery asks most often.
``once``, ``balanced``, ``cyclic``: cohorts are cut from the population pass after pass (`fedpriv.common.cohorts`), so
the most participations m of a client are known before the run, the same for all; a run is priced at m, and a client
refuses the request after the m-th, whatever a server asks. A reply that was lost or too late counts: its release had
left. Cohorts are public, so no guarantee counts on who is asked; Poisson sampling, whose guarantee does, is refused
with them. With ``cyclic`` any two rounds of a client are as far apart as a pass is long.
"""

from __future__ import annotations

from fedpriv.common.errors import OptionError
from fedpriv.config.schema import Config

OPTION, LIMIT = "strategy.server.participation", "strategy.server.participations"


def participation_of(config: Config) -> str:
    """sampled | once | balanced | cyclic."""
    return config.strategy.options.participation


def participation_limit(config: Config) -> int | None:
    """m: how often a client may take part at most; None where a lottery decides."""
    if participation_of(config) == "sampled":
        return None
    given = config.strategy.options.participations
    return given if given is not None else _needed(config)


def passes_needed(num_rounds: int, num_clients: int, size: int) -> int:
    """The fewest participations of a client with which cohorts of ``size`` fill every round."""
    return -(-num_rounds * size // num_clients)


def cohort(config: Config, server_round: int) -> list[int]:
    """Sorted ids of the clients that are asked in a round."""
    from fedpriv.common.cohorts import cohort_of  # numpy, which a check of options need not wait for

    place = (config.seed, server_round, config.num_clients, config.clients_asked)
    return cohort_of(*place, config.strategy.options.client_sampling, participation_of(config))


def check_participation(config: Config) -> None:
    """Raises `OptionError` for a plan that the rounds do not fit into."""
    options, plan = config.strategy.options, participation_of(config)
    limit = options.participations
    if plan == "sampled":
        if limit is not None:
            raise OptionError(
                LIMIT, limit, f"{OPTION}=sampled has no participation limit; allowed: null, or {OPTION}=balanced"
            )
        return
    if options.client_sampling != "fixed":
        words = "planned cohorts are not a Poisson sample (strategy.server.client_sampling); allowed: sampled"
        raise OptionError(OPTION, plan, words)
    asked = f"num_rounds={config.num_rounds} rounds of {config.clients_asked} clients"
    if plan == "once":
        if limit not in (None, 1):
            raise OptionError(LIMIT, limit, f"{OPTION}=once; allowed: 1 or null")
        if _needed(config) > 1:
            most = config.num_clients // config.clients_asked
            words = f"{asked} are more than num_clients={config.num_clients}; allowed: num_rounds of at most {most}"
            raise OptionError(OPTION, plan, words)
    elif limit is not None and limit < _needed(config):
        words = f"{asked} of num_clients={config.num_clients}: at least {_needed(config)}, or fewer rounds"
        raise OptionError(LIMIT, limit, words)


def _needed(config: Config) -> int:
    return passes_needed(config.num_rounds, config.num_clients, config.clients_asked)
