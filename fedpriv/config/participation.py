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

from fedpriv.common.errors import OptionError
from fedpriv.config.gradient_methods import NoisyGradientOptions
from fedpriv.config.schema import Config
from fedpriv.config.trusted_methods import DPFTRLOptions

OPTION, LIMIT = "strategy.server.participation", "strategy.server.participations"
SAMPLING = "strategy.server.client_sampling"
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
    return given if given is not None else _needed(config)


def passes_needed(num_rounds: int, num_clients: int, size: int) -> int:
    """The fewest participations of a client with which cohorts of ``size`` fill every round."""
    return -(-num_rounds * size // num_clients)


def cohort(config: Config, server_round: int) -> list[int]:
    """Sorted ids of the clients that are asked in a round."""
    from fedpriv.common.cohorts import cohort_of  # numpy, which a check of options need not wait for

    place = (config.seed, server_round, config.num_clients, config.clients_asked)
    options = config.strategy.options
    return cohort_of(*place, options.client_sampling, participation_of(config), options.groups)


def check_allocation(config: Config) -> None:
    """Raises `OptionError` where a secret round of each pass gives no guarantee, or passes do not come out even."""
    options = config.strategy.options
    if options.client_sampling != "allocated":
        return
    if not isinstance(options, NoisyGradientOptions) or options.form != "central":
        words = (
            f"with {config.strategy.name} as configured the observer may know who takes part in which round, so that a "
            f"secret round of each pass amplifies nothing; allowed: fixed, poisson, or strategy.client.form=central of "
            f"strategy=dpfedavg and strategy=scaffold, whose server is trusted with the cohorts"
        )
        raise OptionError(SAMPLING, "allocated", words)
    clients, size = config.num_clients, config.clients_per_round
    if clients % size:
        near = [next(k for k in way if clients % k == 0) for way in (range(size, 0, -1), range(size, clients + 1))]
        words = f"{SAMPLING}=allocated has passes of num_clients={clients}/clients_per_round rounds; allowed: divisors"
        raise OptionError("clients_per_round", size, f"{words}, such as {near[0]} and {near[1]}")
    if clients // size > MOST_ROUNDS:
        words = f"{SAMPLING}=allocated has passes of {clients // size} rounds; at most {MOST_ROUNDS} are accounted for"
        raise OptionError("num_clients", clients, words)


def check_participation(config: Config) -> None:
    """Raises `OptionError` for a plan that the rounds do not fit into."""
    options, plan = config.strategy.options, participation_of(config)
    check_allocation(config)
    limit = options.participations
    if plan == "sampled":
        if limit is not None:
            raise OptionError(
                LIMIT, limit, f"{OPTION}=sampled has no participation limit; allowed: null, or {OPTION}=balanced"
            )
        return
    if isinstance(options, DPFTRLOptions) and options.secret_cohorts:
        return  # checked with its band
    if options.client_sampling != "fixed":
        words = f"planned cohorts are not drawn in secret (strategy.server.client_sampling={options.client_sampling})"
        raise OptionError(OPTION, plan, f"{words}; allowed: sampled")
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
