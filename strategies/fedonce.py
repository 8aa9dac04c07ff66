"""FedOnce, server half (a method of this project): one client, one message; each cohort refines the model.

The client sends the direction of its own training from theta by a mechanism for unit vectors; the server sees each
release and knows who took part; nobody needs to be trusted. Directions have no length, so the server decides how far
the mean of a cohort's directions moves theta. It does so by a rule that knows public numbers alone: epsilon, the
dimension, and the size of the cohort.

The rule. Let W be the best model, V = E|W - theta|^2 what is not known of it yet, and let client i's training end at
W + nu_i, the nu_i independent with E|nu_i|^2 = nu^2. Its direction u_i = (W + nu_i - theta)/|...| has a length of one
where W - theta + nu_i has sqrt(V + nu^2), so that, with a = (V + nu^2)^(-1/2),

    E[u_i | W - theta] = a (W - theta),   |E u_i|^2 = a^2 V = c^2.

The mechanism's estimate is unbiased with second moment M >= 1 (exact: `UnitMechanism.second_moment`). The mean m of n
estimates is then a (W - theta) plus an error of mean square

    N = (s (M - 1) + 1 - c^2) / n:

noise of the mechanism, of which the share s is in directions that matter, and the clients' scatter. The linear estimate
of W - theta from m with the least mean square error, and what it leaves unknown, are

    theta <- theta + eta m,   eta = a V / (c^2 + N),   V <- V N / (c^2 + N).

Symbols: eta -> step, V -> error, nu^2 -> spread, s -> share, tau -> scale: V = tau^2 and nu = rho tau before the first
round. A shift of all classes' weights alike changes no prediction, so s = (C - 1)/C for C classes; where features lie
in few directions (``effective_dims``) less: a map was made to use all of its own, whatever is not mapped uses some
`DIMS_PER_CLASS` for each class, and of the directions of the pink map, which knows less of the pictures than the stroke
map, `PER_PINK_DIRECTION` count for each.

Where all clients speak in every round, as in a secure sum, their scatter is the same each time, and the rule stops
early. step=noise takes equal steps, by the noise alone (`fedpriv.server.optimizers.step_by_noise`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpriv.common.messages import FloatVector
from fedpriv.common.replies import Reply
from fedpriv.config.methods import FedOnceOptions
from fedpriv.privacy.gaussian_dp import gaussian_mu
from fedpriv.server.optimizers import step_by_noise
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.unit_vector import UnitVectorStrategy

#: Directions of pixels or features without a map that matter, for each class. Found on held-out training examples of
#: MNIST: half or twice as many cost less than a point from epsilon 2 up (at 1 half as many would be better).
DIMS_PER_CLASS = 15
#: The same for each direction of the pink map, found there too: four times as many cost 10 points at epsilon 2.
PER_PINK_DIRECTION = 2


def step_of(error: float, spread: float, noise: float, cohort: int) -> tuple[float, float]:
    """(eta, the next V) of V, nu^2, s (M - 1) and n."""
    weight = 1 / (error + spread)
    signal = weight * error
    variance = (noise + 1 - signal) / cohort
    return error * math.sqrt(weight) / (signal + variance), error * variance / (signal + variance)


class FedOnce(UnitVectorStrategy):
    """step: eta, "auto" by the rule, "noise" by the noise. scale, spread: tau and rho. effective_dims: None for all of
    the model's; "auto": so with the stroke map, else by the number of classes, or of the pink map's directions.
    """

    options: FedOnceOptions

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.error, self.step = self.options.scale**2, 0.0

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        mean = self.mean(theta.size, replies)
        asked = self.options
        if asked.step == "noise":
            noise = math.sqrt(self.unshared_noise(theta.size) / self.population.clients_per_round)
            self.step = step_by_noise(noise, self.population.num_rounds, longest=1.0)
        elif asked.step == "auto":
            spread = (asked.spread * asked.scale) ** 2
            self.step, self.error = step_of(self.error, spread, self.noise(theta.size), len(replies))
        else:
            self.step = asked.step
        return (theta + self.step * mean).astype(np.float32)

    def noise(self, size: int) -> float:
        """s (M - 1) of one release."""
        asked, classes = self.options, self.population.classes
        share = 1 - 1 / classes if classes > 1 else 1.0
        dims = asked.effective_dims
        if dims == "auto":
            known = {"none": DIMS_PER_CLASS * classes, "pink": PER_PINK_DIRECTION * size // max(1, classes)}
            dims = known.get(asked.features_map) if classes > 1 else None
        if dims is not None:
            share = min(share, dims / size)
        return share * self.unshared_noise(size)

    def unshared_noise(self, size: int) -> float:
        """M - 1 of one release."""
        asked = self.options
        std = 2 / gaussian_mu(asked.epsilon, asked.claimed_delta) if asked.mechanism == "gaussian" else 0.0
        return max(0.0, self.mechanism_for(size, std).second_moment - 1)

    def figures(self, replies: Sequence[Reply]) -> dict[str, Any]:
        return {"step": self.step}

    def state_dict(self) -> dict[str, Any]:
        return {"error": self.error}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.error = float(state["error"])
