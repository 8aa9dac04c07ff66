"""Fed-LDP, client half: the baseline of Fed-CAD (Zhu, Chang, Liang, Zhu, Xu; section III-C).

The client adds the noise; the server sees each noisy update and knows who took part; nobody needs to be trusted.

Symbols: sigma -> noise_multiplier, C -> clip_norm, Delta theta -> update.
Published and repaired are the same: fresh noise every time keeps what the analysis promises.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedpriv.client import Charge, Release
from fedpriv.gaussian_client import GaussianClient
from fedpriv.mechanisms.clipping import clip
from fedpriv.privacy import claimed
from fedpriv.privacy.events import Gaussian
from fedpriv.privacy.noise import NoiseSource, add_normal


class FedLDPClient(GaussianClient):
    """Clip to C, add fresh N(0, sigma^2 C^2 I)."""

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        clipped = clip(update, self.clip_norm)  # [Fed-CAD, III-C (3)]
        value = add_normal(clipped, self.noise_multiplier * self.clip_norm, noise)
        return Release(value, None, self.figures(clipped, value - clipped))

    def charges(self, state: Any) -> tuple[Charge, ...]:
        # Two data sets move the clipped update by at most 2C under replace-one.
        return (Charge(Gaussian(threat=self.threat, multiplier=self.noise_multiplier / 2)),)

    def claim(self, participations: int, delta: float) -> claimed.Claim:
        return claimed.fedldp(self.noise_multiplier, participations, delta)
