"""Correlated quantisation, server half (Suresh, Sun, Ro and Yu, ICML 2022): the baseline without privacy of CoQ-FL.

Nobody adds noise for privacy; the round's clients are one group whose permutations everybody knows.
"""

from __future__ import annotations

import hashlib

from fedpriv.common.messages import MEMBERS, SEALED, Options
from fedpriv.mechanisms.noise import encode_key
from fedpriv.server.one_bit import OneBitServer


class CorrQuant(OneBitServer):
    """Announces the round's group and a public seed; the unweighted mean of the decoded bits."""

    def train_options(self, server_round: int) -> Options:
        key = encode_key("corrquant", self.population.seed, server_round, self.population.attempt)
        group: Options = {MEMBERS: list(self.current.cohort), SEALED: hashlib.sha256(key).digest()}
        return super().train_options(server_round) | group
