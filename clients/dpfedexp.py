"""DP-FedEXP, client half: DP-FedAvg's client. The server alone chooses the step (Takakura, Liew, Hasegawa 2025).

form=local: the client adds the noise; the server sees each client's gradient and knows who took part; nobody needs to
be trusted. form=central: the server is trusted and adds the noise to the sum, and to the sum of squared norms.

Published and repaired are the same. No claim: how the paper accounts for its two releases is not restated here.

form=local has no account against whoever sees sums alone: D is no function of the sum of the c_k. In one dimension the
sum and the sum of squares of two releases are these two themselves, so whoever learns the step sees nearly what the
server sees, and not a sum under twice the noise.

Symbols: C -> clip_norm, sigma C -> noise_multiplier * clip_norm.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from fedpriv.client.gradient import NoisyGradientClient
from fedpriv.config.methods import DPFedEXPOptions

#: Of form=local.
STEP_BY_SQUARES = "the step follows the squared norms of single releases, which the global model tells beside their sum"


class DPFedEXPClient(NoisyGradientClient):
    """Clip; with form=local add the noise here."""

    options: DPFedEXPOptions
    traits = replace(NoisyGradientClient.traits, on_device=True, why_no_sum=STEP_BY_SQUARES)
    in_rows = True

    @cached_property
    def noises(self) -> int:
        return 1  # of what the model tells
