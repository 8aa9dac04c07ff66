"""LDP-FL, client half (Sun, Qian and Chen, IJCAI 2021): the base and the baseline of CoQ-FL.

Every coordinate is released as one bit by randomised response; the server sees each client's bits; nobody needs to be
trusted. With ``shuffle`` a trusted shuffler mixes the bits of all clients of a round, coordinate by coordinate.

Symbols: eps -> epsilon (of one coordinate), r -> radius. Published and repaired are the same: what is promised for a
coordinate is kept for a coordinate.
"""

from __future__ import annotations

import math
from typing import Any

from fedpriv.client.contract import Charge
from fedpriv.client.one_bit import OneBitClient
from fedpriv.config.methods import LDPFLOptions
from fedpriv.privacy import claimed
from fedpriv.privacy.events import SECURE_SUM, RandomisedResponse, Shuffled


class LDPFLClient(OneBitClient):
    """One bit per coordinate, each client for itself. shuffle: an observer of the counts of a round alone is accounted
    for as well, with amplification where its condition holds for min_replies clients, the fewest that are counted;
    the shuffler is assumed, not implemented. shuffle_delta: what all of it may use up of delta.
    """

    options: LDPFLOptions
    in_rows = True

    def charges(self, state: Any) -> tuple[Charge, ...]:
        if math.isinf(self.epsilon):
            return super().charges(state)
        own = Charge(RandomisedResponse(threat=self.threat, epsilon=self.epsilon, dimension=self.dimension))
        if not self.options.shuffle:
            return (own,)
        share = self.options.shuffle_delta / (self.facts.num_rounds * self.dimension)
        counts = Shuffled(
            threat=SECURE_SUM,
            epsilon=self.epsilon,
            users=self.options.min_replies,
            delta=share,
            dimension=self.dimension,
        )
        return own, Charge(counts)

    def claim(self, participations: int, delta: float) -> claimed.Claim | None:
        return None if math.isinf(self.epsilon) else claimed.ldpfl(self.epsilon)
