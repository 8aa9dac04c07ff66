"""Fed-LDP, client half: the baseline of Fed-CAD (Zhu, Chang, Liang, Zhu, Xu; section III-C).

The client adds the noise; the server sees each noisy update and knows who took part; nobody needs to be trusted. Under
a secure sum, which is assumed, the noises of those that answered add up; in whole numbers: `clients.ddgauss`.

Symbols: sigma -> noise_multiplier, C -> clip_norm, Delta theta -> update.
Published and repaired are the same: fresh noise every time keeps what the analysis promises.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from fedpriv.client.contract import Charge, Release, Statistics
from fedpriv.client.gaussian import GaussianClient
from fedpriv.client.method import Traits
from fedpriv.client.secure_sum import ONE_NOISE, SummedGaussians
from fedpriv.config.methods import FedLDPOptions
from fedpriv.mechanisms.noise import NoiseSource, add_normal, clip
from fedpriv.privacy import claimed
from fedpriv.privacy.events import Gaussian


class FedLDPClient(SummedGaussians, GaussianClient):
    """Clip to C, add fresh N(0, sigma^2 C^2 I)."""

    options: FedLDPOptions
    traits = Traits(why_no_sum=ONE_NOISE, on_device=True)
    in_rows = True

    def perturb(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        clipped = clip(update, self.clip_norm)  # [Fed-CAD, III-C (3)]
        value = add_normal(clipped, self.noise_multiplier * self.clip_norm, noise)
        return Release(value, None, self.figures(clipped, value - clipped))

    def charges(self, state: Any) -> tuple[Charge, ...]:
        # Two data sets move the clipped update by at most 2C under replace-one.
        own = Gaussian(threat=self.threat, multiplier=self.noise_multiplier / 2)
        return Charge(own), *self.summed(own)

    @property
    def statistics(self) -> Statistics:
        """What moves C, beside the update in the sum or, where the rule needs each client's, one by one."""
        alone, in_sum = super().statistics, self.statistic.events_in_sum(self.noises) if self.noises > 1 else ()
        return replace(alone, charges=(*alone.charges, *map(Charge, in_sum)))

    def claim(self, participations: int, delta: float) -> claimed.Claim:
        return claimed.fedldp(self.noise_multiplier, participations, delta)
