"""What outsiders learn of sums over cohorts that a trusted server alone knows.

poisson: each client is drawn for each round by a coin of its own. allocated: rounds form passes of t = N/K, and each
client takes part in one round of a pass, drawn uniformly for itself and for the pass. A pass is one event, which is
booked with its first release: what later ones add is paid then. Of a pass that the run's end cuts, no more is paid than
its rounds before that: an extension does not go on with it (`fedpriv.runs.extension`).

Symbols: N -> num_clients, K -> clients_per_round, q -> rate, t -> rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fedpriv.privacy.events import AllocatedGaussian, Event, PoissonGaussian, Threat

if TYPE_CHECKING:
    from fedpriv.mechanisms.noise import NoiseSource

TO_OUTSIDERS = Threat("client", "add-or-remove-one", "trusted-server")


@dataclass(frozen=True)
class SecretCohorts:
    """How the clients of a round are drawn. ``sampling``: poisson, allocated."""

    sampling: str
    num_clients: int
    clients_per_round: int

    @property
    def rate(self) -> float:
        """q, the share of the clients that is expected in a round."""
        return self.clients_per_round / max(1, self.num_clients)

    @property
    def rounds(self) -> int:
        """Of what is charged at once: t, or 1."""
        return self.num_clients // self.clients_per_round if self.sampling == "allocated" else 1

    def event(self, multiplier: float, threat: Threat = TO_OUTSIDERS, left: int | None = None) -> Event:
        """Of a pass or a round. multiplier: noise standard deviation / C. left: rounds of the run from here on."""
        if self.sampling == "allocated":
            released = self.rounds if left is None else max(1, min(self.rounds, left))
            return AllocatedGaussian(threat=threat, multiplier=multiplier, rounds=self.rounds, released=released)
        return PoissonGaussian(threat=threat, multiplier=multiplier, sampling_rate=self.rate)

    def multiplier(self, epsilon: float, delta: float) -> float:
        """At which what is charged at once costs (epsilon, delta), within 0.1 %."""
        return _multiplier(self, epsilon, delta)

    def drawn(self, state: Any, trials: int, noise: NoiseSource) -> tuple[Any, Any]:
        """(whether a client is in the round, bool [trials]; the state of the next round), for an audit of rounds in
        order. state: (round of its pass [trials], the next round's place), None before the first.
        """
        if self.sampling != "allocated":
            return noise.uniform(trials) < self.rate, None
        own, place = (noise.uniform(trials) * self.rounds).long(), 0
        if state is not None and state[1] < self.rounds:
            own, place = state
        return own == place, (own, place + 1)


@lru_cache(maxsize=256)
def _multiplier(cohorts: SecretCohorts, epsilon: float, delta: float) -> float:
    from fedpriv.privacy.calibration import calibrate  # loads the accountants

    def one(multiplier: float) -> list[Event]:
        return [cohorts.event(multiplier)]

    return calibrate(one, epsilon, delta, 1e-3, "strategy.client.epsilon").noise_multiplier
