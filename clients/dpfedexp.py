"""DP-FedEXP, client half: DP-FedAvg's client. The server alone chooses the step (Takakura, Liew, Hasegawa 2025).

form=local: the client adds the noise; the server sees each client's gradient and knows who took part; nobody needs to
be trusted. form=central: the server is trusted and adds the noise to the sum, and to the sum of squared norms.

Published and repaired are the same. No claim: how the paper accounts for its two releases is not restated here.

Symbols: C -> clip_norm, sigma C -> noise_multiplier * clip_norm.
"""

from __future__ import annotations

from dataclasses import replace

from fedpriv.client.gradient import NoisyGradientClient
from fedpriv.config.methods import DPFedEXPOptions


class DPFedEXPClient(NoisyGradientClient):
    """Clip; with form=local add the noise here."""

    options: DPFedEXPOptions
    traits = replace(NoisyGradientClient.traits, on_device=True)
    in_rows = True
