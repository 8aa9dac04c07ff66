"""Who is asked in which round, as a server draws it; and where passes of an allocation begin."""

from __future__ import annotations

import secrets

from fedpriv.common.cohorts import allocated_cohort, cohort_of
from fedpriv.config.options import MethodOptions
from fedpriv.server.round import Population


class Cohorts:
    """The cohorts of one run, drawn in the order of its rounds.

    Where the guarantee rests on who is drawn (``secret``) and noise is the operating system's, cohorts are so too. An
    allocation then lives in this process alone, and a resumed run whose rounds cannot be repeated bit for bit begins
    with a new pass: a client's rounds of before have left, so those of one pass must not be released twice.
    """

    def __init__(self, population: Population, options: MethodOptions) -> None:
        self.population, self.options = population, options
        self._first: int | None = None  # the round that the first pass of this process begins with
        self._key: tuple[int, ...] = ()  # of the newest pass

    def draw(self, server_round: int, secret: bool) -> list[int]:
        """Sorted ids of the round's clients."""
        population, options = self.population, self.options
        hidden = secret and population.rng == "secure"
        asked = max(population.clients_asked, population.clients_per_round)
        if options.client_sampling != "allocated":
            seed = secrets.randbits(128) if hidden else population.seed
            drawn = (options.client_sampling, options.participation, options.groups)
            return cohort_of(seed, server_round, population.num_clients, asked, *drawn)
        number, place = self._place(server_round)
        if place == 0 or not self._key:
            self._key = (secrets.randbits(128),) if hidden else (population.seed, number, *self._again)
        return allocated_cohort(self._key, place, population.num_clients, self.rounds)

    @property
    def rounds(self) -> int:
        """t, of a pass."""
        return self.population.num_clients // self.population.clients_per_round

    def begins_pass(self, server_round: int) -> bool:
        """Whether a round is charged: every one, and of an allocation the first of each pass."""
        return self.options.client_sampling != "allocated" or self._place(server_round)[1] == 0

    @property
    def _again(self) -> tuple[int, ...]:
        """What keeps the passes of a resumed run apart from those of before."""
        return (self.population.attempt,) if self.population.attempt else ()

    def _place(self, server_round: int) -> tuple[int, int]:
        """(number of the pass, the round's place in it)."""
        if self._first is None:
            self._first = server_round if self.population.attempt else 1
        return divmod(server_round - self._first, self.rounds)
