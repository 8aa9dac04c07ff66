"""How many canaries a run can afford, from its options and data alone: a cost model in seconds of CPU time.

A client's place in the run: P participations, n canary clients of c coins each, d parameters. The run's rounds take at
least rounds x clients x (a participation, its batches and gradients, d numbers of noise). Canaries take a start, and
for each request that they hear either one computation on rows (n d numbers) or one whole participation for each client.
Where few coins are affordable for all requests, the least number of coins hears a part of the requests. Where releases
may be short, `LEAST_COINS` clients at most release d numbers, once, and as many as can be afforded release one number
for each request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from fedpriv.client.example_level import ExampleLevelClient


class CanaryClients(Protocol):
    """What the plan asks of `fedpriv.runs.canary_clients.CanaryClients`."""

    config: Any
    twin: int
    each: int

    @property
    def model(self) -> Any: ...
    @property
    def method(self) -> Any: ...
    @property
    def together(self) -> bool:
        """Whether they are released in rows."""
        ...

    @property
    def short(self) -> bool:
        """Whether most of them release few numbers."""
        ...

    def num_examples(self, client: int) -> int:
        """Declared."""
        ...


#: Share of the rounds' CPU time that canaries may take, as planned.
SHARE = 0.04
#: Seconds of a participation, a batch, an example's gradient for each parameter, and a number of a release: rather
#: too few.
PARTICIPATION, BATCH, GRADIENT, NUMBER = 5.5e-4, 2e-5, 1.2e-9, 1.5e-8
#: Of canaries, rather too many: start and bounds, what the first computation on rows takes longer than later ones, a
#: computation on rows, a client that goes the whole way, each of its steps.
FIXED, FIRST, ROWS, WHOLE, STEP = 0.01, 0.005, 4e-4, 1e-3, 2e-4
#: Of a sharper bound whose curves are composed numerically.
CURVES = 0.5
#: Coins beyond which a bound grows slowly; and below which too little is shown: then fewer requests are heard instead.
MOST_COINS, LEAST_COINS = 4000, 24
#: A short release, of one number; how many there are at most, and below which number fewer requests are heard instead.
SHORT, MOST_SHORT, LEAST_SHORT = 2.5e-8, 100_000, 1000


@dataclass(frozen=True)
class Plan:
    """So many canary clients hear so many of their twin's requests; the first ``wide`` of them release d numbers."""

    clients: int
    requests: int
    wide: int


def affordable(canaries: CanaryClients, participations: int) -> Plan:
    """How many canary clients answer how many of their twin's requests, so that they take at most about `SHARE` of the
    run's CPU time: numbers of the options and the data alone, so that every machine has the same. At least one client
    and one request. All requests, and as many clients as it takes, where `audit.canaries` asks for so many coins.
    """
    coins, asked, d = canaries.each, canaries.config.audit.canaries, canaries.model.layout.num_parameters
    if asked is not None:
        clients = -(-asked // coins)
        return Plan(clients, participations, min(clients, LEAST_COINS) if canaries.short else clients)
    seconds = SHARE * planned_seconds(canaries) - FIXED
    if canaries.together:
        seconds -= FIRST
        request, client = ROWS, d * NUMBER
    else:
        steps = canaries.method.local_steps if isinstance(canaries.method, ExampleLevelClient) else 1
        request, client = 0.0, WHOLE + steps * STEP + d * NUMBER
    if canaries.short:
        wide = min(LEAST_COINS, 1 + int(max(0.0, seconds) / 4 / client))
        left = seconds - wide * client
        heard = min(participations, int(left / (ROWS + LEAST_SHORT * SHORT)))
        if heard >= 1:
            return Plan(min(wide + int((left / heard - ROWS) / SHORT), MOST_SHORT), heard, wide)
    least, most = (-(-number // coins) for number in (LEAST_COINS, MOST_COINS))
    many = int((seconds / max(1, participations) - request) / client)
    if many >= least:
        many = min(many, most)
        return Plan(many, participations, many)
    return Plan(least, max(1, min(participations, int(seconds / (request + least * client)))), least)


def planned_seconds(canaries: CanaryClients) -> float:
    """The least CPU time that the run's rounds are expected to take."""
    config, method = canaries.config, canaries.method
    d, size, batch = canaries.model.layout.num_parameters, canaries.num_examples(canaries.twin), config.local.batch_size
    noisy = method.local_steps if isinstance(method, ExampleLevelClient) else None
    steps = noisy or config.local.steps or -(-size // batch) * config.local.epochs
    one = PARTICIPATION + steps * (BATCH + batch * d * GRADIENT) + d * NUMBER
    return config.num_rounds * config.clients_asked * one


def planned_share(canaries: CanaryClients, plan: Plan) -> float:
    """Of the rounds' CPU time, which the canaries of a plan take about."""
    d = canaries.model.layout.num_parameters
    wide, short = plan.wide * d * NUMBER, plan.clients - plan.wide
    seconds = FIXED + (wide if short else plan.requests * wide)
    if canaries.together:
        seconds += FIRST + plan.requests * (ROWS + short * SHORT)
    else:
        steps = canaries.method.local_steps if isinstance(canaries.method, ExampleLevelClient) else 1
        seconds += plan.requests * plan.wide * (WHOLE + steps * STEP)
    return seconds / max(planned_seconds(canaries), 1e-9)
