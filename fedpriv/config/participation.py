"""How often a client takes part: the plan that prices, cohorts and each client's own limit follow.

``sampled``: cohorts are drawn by lottery, and a guarantee is that of the client which the lottery asks most often.
``once``, ``balanced``, ``cyclic``: cohorts are cut from the population pass after pass (`fedpriv.common.cohorts`), so
the most participations m of a client are known before the run, the same for all; a run is priced at m, and a client
refuses the request after the m-th, whatever a server asks. A reply that was lost or too late counts: its release had
left. Cohorts are public, so no guarantee counts on who is asked; Poisson sampling and random allocation, whose
guarantees do, are refused with them. With ``cyclic`` any two rounds of a client are as far apart as a pass is long;
under dpftrl's Poisson samples, as many rounds as there are groups.
"""

from __future__ import annotations

from fedpriv.config.schema import Config

#: Rounds of a pass for which an allocation's law is computed (`fedpriv.privacy.events`).
MOST_ROUNDS = 10**6


def participation_of(config: Config) -> str:
    """sampled | once | balanced | cyclic."""
    return config.strategy.options.participation


def participation_limit(config: Config) -> int | None:
    """m: how often a client may take part at most; None where a lottery decides."""
    if participation_of(config) == "sampled":
        return None
    if config.strategy.options.client_sampling == "poisson":  # whenever it is its group's turn
        return -(-config.num_rounds // config.strategy.options.groups)
    given = config.strategy.options.participations
    return given if given is not None else needed(config)


def passes_needed(num_rounds: int, num_clients: int, size: int) -> int:
    """The fewest participations of a client with which cohorts of ``size`` fill every round."""
    return -(-num_rounds * size // num_clients)


def cohort(config: Config, server_round: int) -> list[int]:
    """Sorted ids of the clients that are asked in a round."""
    from fedpriv.common.cohorts import cohort_of  # numpy, which a check of options need not wait for

    place = (config.seed, server_round, config.num_clients, config.clients_asked)
    options = config.strategy.options
    return cohort_of(*place, options.client_sampling, participation_of(config), options.groups, options.cohorts)


def needed(config: Config) -> int:
    """The fewest participations of a client with which the cohorts fill every round."""
    return passes_needed(config.num_rounds, config.num_clients, config.clients_asked)
