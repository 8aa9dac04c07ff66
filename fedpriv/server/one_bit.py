"""The shared base of servers that receive one bit per coordinate: decoding, the unweighted mean, the next interval.

Symbols: c, r -> centres, radii (one for each named block), A -> `step`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from fedpriv.common.messages import CENTRES, RADII, FloatVector, Options
from fedpriv.common.replies import Reply
from fedpriv.config.methods import OneBitOptions
from fedpriv.mechanisms.quantisation import decode, per_layer, unpack
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy


class OneBitServer(FederatedStrategy):
    """theta <- theta + mean of the decoded updates, or (encode=weights) the mean of the decoded weights.

    Means are unweighted: weights by examples would spoil what correlated noise cancels. radius, epsilon, encode: the
    clients' own. radius_floor: r_min; clip_factor: of half the range of the last released weights of a layer.
    """

    options: OneBitOptions

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.layers = population.layers
        self.centres, self.radii = [0.0] * len(self.layers), per_layer(self.options.radius, len(self.layers))
        self.announced = False
        self.decode = self.decoded

    @cached_property
    def epsilon(self) -> float:
        """Of one coordinate; infinite where the method has no such option."""
        given = getattr(self.options, "epsilon", None)
        return math.inf if given is None else float(given)

    @property
    def encode_weights(self) -> bool:
        return self.options.encode == "weights"

    def train_options(self, server_round: int) -> Options:
        if not self.encode_weights:
            return {}
        if not self.announced:  # of theta^0, which is public
            self.follow(self.current.theta)
        self.current.figures |= {"centres": list(self.centres), "radii": list(self.radii)}
        return {CENTRES: list(self.centres), RADII: list(self.radii)}

    def decoded(self, client: int, packed: Any) -> FloatVector:
        """float32 [d]: c + A or c - A for every bit. Raises ValueError for another number of bytes."""
        bits = unpack(packed, self.layers[-1].stop).numpy().view(np.uint8)
        vector: FloatVector = np.empty(len(bits), np.float32)
        for part, centre, radius in zip(self.layers, self.centres, self.radii, strict=True):
            vector[part] = _decoded(centre, radius, self.epsilon).take(bits[part])
        return vector

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        if not self.encode_weights:
            return super().aggregate(theta, replies)
        moved = self.move(theta, self.mean(theta.size, replies), whole=slice(None))
        self.follow(moved)
        return moved

    def follow(self, weights: FloatVector) -> None:
        """The next interval of each layer from released weights alone: c = mid-range, r <- min(r, max(r_min, factor *
        half-range)). Without the cap r diverges; without the floor a constant layer ends it at 0.
        """
        self.announced = True
        for index, part in enumerate(self.layers):
            low, high = float(weights[part].min()), float(weights[part].max())
            self.centres[index] = (low + high) / 2
            wanted = max(self.options.radius_floor, self.options.clip_factor * (high - low) / 2)
            self.radii[index] = min(self.radii[index], wanted)

    def figures(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """Mean share of coordinates outside their interval, and how many clients fell back to their own noise: in
        simulation, where clients say so.
        """
        names = {"clamped": "clamped_share", "fallback": "fallbacks"}
        found = {}
        for name, shown in names.items():
            values = [reply.diagnostics[name] for reply in replies if name in reply.diagnostics]
            if values:
                found[shown] = sum(values) / len(values) if name == "clamped" else sum(values)
        return found

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"centres": self.centres, "radii": self.radii, "announced": self.announced}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.centres, self.radii, self.announced = list(state["centres"]), list(state["radii"]), state["announced"]


@lru_cache(maxsize=256)
def _decoded(centre: float, radius: float, epsilon: float) -> FloatVector:
    """What a low bit stands for, and a high one (float32 [2])."""
    values: FloatVector = decode(torch.tensor([0.0, 1.0]), centre, radius, epsilon).numpy()
    return values
