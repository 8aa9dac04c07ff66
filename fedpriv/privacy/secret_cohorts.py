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
    from fedpriv.config.methods import DPFTRLOptions
    from fedpriv.mechanisms.noise import NoiseSource
import math

from fedpriv.mechanisms.matrix_factors import Name, coefficients, moves, overlaps
from fedpriv.privacy.events import Gaussian

TO_OUTSIDERS = Threat("client", "add-or-remove-one", "trusted-server")
#: rho of a client's own Gaussian release of a vector of length C at multiplier 1, under replace-one: (2C)^2 / (2 C^2).
OF_TWO_DATA_SETS = 2.0


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


# --- matrix events ----------------------------------------------------------------------------------------------------

"""What the rounds of a matrix mechanism cost (the proof for known cohorts: `fedpriv.mechanisms.matrix_factors`).

**Amplified bands** (Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu: (Amplified) Banded Matrix
Factorization, NeurIPS 2023, Theorem 4). C has b diagonals. The clients are in b groups, fixed and public; round i draws
from group i mod b alone, each of its clients with probability q = b K/N by a coin that only the server sees.

A client of group j can take part in the rounds i = j, j + b, ... Its vector of such a round moves rows i..i + b - 1 of
C s, and the blocks of different rounds i share no row. Fix the other clients' coins and all batches; given the rows
before the block, these are known: what others and earlier rounds add to row i, and the client's vector g, |g| <= C's
unit. Given rows of the block so far, so is what others add to the next. So, up to shifts that are functions of what was
released and the same with and without the client, the block is

    with probability q   N((c_0 g, c_1 g, ..., c_(b-1) g), s^2 I),   else   N(0, s^2 I),

and N(0, s^2 I) without the client: a Gaussian over a Poisson sample of rate q, of a vector no longer than ||c||. With
s = sigma ||c|| its multiplier is sigma. A block that the run's end cuts is post-processing of a whole one, and a state
that the client keeps, which may tell earlier coins, is mixed over (joint convexity). Blocks compose adaptively, their
coins being independent: a client costs ceil((T - j)/b) <= ceil(T/b) such events, and after t rounds at most ceil(t/b).
So one is booked with the first of every b rounds, for every client.

Where a resumed run cannot repeat its rounds, it draws and releases those after the checkpoint anew. A client has at
most one block across the checkpoint, whose last rows are released once more under the same coin: given what was
released before they are at most a Gaussian of multiplier sigma, whatever the coin was. The first b rounds of a resumed
run are therefore charged as two Gaussians of multiplier sigma, one for these rows and one, of every rate, for the new
block; later ones as above.

**Balls in bins** (Chua, Ghazi, Harrison, Kamath, Kumar, Leeman, Manurangsi, Sinha, Zhang: Balls-and-Bins Sampling for
DP-SGD, 2025; Choquette-Choo, Ganesh, Haque, Steinke, Thakurta: Near Exact Privacy Amplification for Matrix Mechanisms,
ICLR 2025, who estimate by sampling what is bounded here). Every client draws one of b = N/K places, uniformly and in
secret, and takes part in the round of that place of every pass: rounds j, j + b, ... if it drew j.

Fix the others' places and all batches. A client that drew j moves the rows of w, over the noise's deviation, by vectors
mu_t(j) that are functions of the rows before, |mu_t(j)| <= v_t(j) = sum of c_(t-i) over its rounds i <= t. So with the
client w has the density L = (1/b) sum_j L_j(T) over that without, L_j(t) = L_j(t-1) exp(<z_t, mu_t(j)> - |mu_t(j)|^2/2)
with z_t standard normal without the client. Hockey sticks in both directions are E F(L) with F convex: (x - e^eps)_+
and (1 - e^eps x)_+. The lemma (Kahane 1986): for weights a_j >= 0 and centred normal X, Y with E X_j X_l <= E Y_j Y_l,

    E F(sum_j a_j exp(X_j - E X_j^2/2)) <= E F(sum_j a_j exp(Y_j - E Y_j^2/2)),

since along Z = sqrt(1-t) X + sqrt(t) Y the derivative is half the sum over j, l of
a_j a_l (E Y_j Y_l - E X_j X_l) E[F''(...) exp(Z_j - ...) exp(Z_l - ...)] >= 0. Given the rows before it, the last row
has <mu_T(j), mu_T(l)> <= v_T(j) v_T(l), so the numbers v_T(j) zeta, with zeta normal in one dimension, take its place;
given zeta they are weights, and the row before is the last: all rows are replaced, one after the other. Now L has the
normal exponents of the vectors m_j = (v_1(j), ..., v_T(j)), and the lemma is used once more: with h the largest
<m_j, m_l>, j not l, and g the largest |m_j|^2, the products h + (g - h) [j = l] are no smaller, nor is h for bins
beyond the last round. They are those of one vector of square h, which every bin has, and of b others at right angles,
of square g - h: a Gaussian beside an allocation of one pass. Noise is sigma sqrt(g), so their multipliers are
sigma sqrt(g/h) and sigma sqrt(g/(g - h)). Both are booked with the first round: they pay for the run. The bound is
exact for independent noise (h = 0); the more neighbouring rounds share noise, the nearer h is to g, and nothing is left
to amplify.

A resumed run that cannot repeat its rounds draws other places. Given all before, the rows after the checkpoint move by
what the client did before it, in one place, and after it, in another: each at most sqrt(g). It is charged as a Gaussian
of multiplier sigma/2.

Symbols: c -> coefficients, q -> rate, b -> groups, K -> clients_per_round, N -> num_clients, T -> rounds, g, h ->
`overlaps`.
"""


@lru_cache(maxsize=64)
def round_events(
    name: Name, rounds: int, most: int, apart: int, noise_multiplier: float, bandwidth: int | None, buffers: int
) -> tuple[Gaussian, ...]:
    """Events [T] of which the first t compose to what the first t rounds cost, for every t.

    These move by (v_0^2 + ... + v_(t-1)^2)^(1/2) under noise of sigma ||v||, and Gaussians compose by the sum of
    squares: so round i is booked as a Gaussian of multiplier sigma ||v|| / v_i. A round that adds nothing to the worst
    pattern so far costs nothing (infinite). The events are increments: no other set of rounds than the first t has the
    price of its own.
    """
    v = moves(coefficients(name, rounds, most, apart, bandwidth, buffers), rounds, most, apart)
    length = math.sqrt(math.fsum((v * v).tolist()))
    return tuple(
        Gaussian(threat=TO_OUTSIDERS, multiplier=noise_multiplier * (length / move) if move else math.inf)
        for move in v.tolist()
    )


@lru_cache(maxsize=64)
def group_events(
    rounds: int, groups: int, clients_per_round: int, num_clients: int, noise_multiplier: float
) -> tuple[Event | None, ...]:
    """Events [T] of amplified bands: one of the first round of every b, None of the others."""
    rate = min(1.0, groups * clients_per_round / max(1, num_clients))
    event = PoissonGaussian(threat=TO_OUTSIDERS, multiplier=noise_multiplier, sampling_rate=rate)
    return tuple(None if place % groups else event for place in range(rounds))


@lru_cache(maxsize=64)
def binned_events(
    name: Name, rounds: int, most: int, apart: int, noise_multiplier: float, bandwidth: int | None, buffers: int
) -> tuple[Event, ...]:
    """Of a whole run by balls in bins, apart of them."""
    whole, shared = overlaps(coefficients(name, rounds, most, apart, bandwidth, buffers), rounds, most, apart)
    shared = min(whole, shared * (1 + 1e-12))  # rounding
    common = Gaussian(
        threat=TO_OUTSIDERS, multiplier=noise_multiplier * math.sqrt(whole / shared) if shared else math.inf
    )
    if apart == 1 or shared >= whole:  # everybody in every round
        return (Gaussian(threat=TO_OUTSIDERS, multiplier=noise_multiplier),)
    own = noise_multiplier * math.sqrt(whole / (whole - shared))
    released = min(apart, rounds)
    secret = AllocatedGaussian(threat=TO_OUTSIDERS, multiplier=own, rounds=apart, released=released)
    return (secret, common) if shared else (secret,)


def again_event(noise_multiplier: float) -> Gaussian:
    """Of the first b rounds of a resumed run whose groups are drawn anew."""
    return Gaussian(threat=TO_OUTSIDERS, multiplier=noise_multiplier / math.sqrt(2))


def run_events(
    options: DPFTRLOptions, pattern: tuple[int, int, int], clients_per_round: int, num_clients: int
) -> tuple[tuple[Event, ...], ...]:
    """What each round of dpftrl is charged with [T]."""
    sigma, factor = options.noise_multiplier, (options.bandwidth, options.buffers)
    if options.takes_turns:
        turns = group_events(options.rounds, options.groups, clients_per_round, num_clients, sigma)
        return tuple((event,) if event else () for event in turns)
    if options.secret_cohorts:
        return (binned_events(options.factor, *pattern, sigma, *factor), *((),) * (options.rounds - 1))
    return tuple((event,) for event in round_events(options.factor, *pattern, sigma, *factor))
