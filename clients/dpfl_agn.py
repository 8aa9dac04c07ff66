"""DPFL-AGN, client half: differentially private federated learning with adaptive Gaussian noise.

Jiao, Cai, Wang, Cheng, Gao (Algorithm 1).

The client adds the noise that the server announces, and none below its own bound; the server sees each client's model
after each round; example counts are public.

Symbols: sigma_0 -> noise_multiplier, Theta -> clip_norm, H -> local.batch_size, eta -> local.lr, rho -> decay,
beta_1 -> beta1, beta_2 -> beta2; m, v and the step count stay with the client between rounds.
"""

from __future__ import annotations

from functools import cached_property

from fedpriv.client.example_level import Adam, DecayingNoise
from fedpriv.config.methods import DPFLAGNOptions


class DPFLAGNClient(DecayingNoise):
    """Adam on a noisy gradient whose noise the server lowers."""

    options: DPFLAGNOptions

    @cached_property
    def optimiser(self) -> Adam:  # type: ignore[override]
        return Adam(self.options.adam_beta1, self.options.adam_beta2)
