"""ANR, client half: adaptive noise reduction alone (Jiao, Cai, Wang, Cheng, Gao: DPFL-AGN, section 3.2).

The client adds the noise that the server announces, and none below its own bound; the server sees each client's model
after each round; example counts are public.

Symbols: sigma_0 -> noise_multiplier, Theta -> clip_norm, H -> local.batch_size, eta -> local.lr, rho -> decay.
"""

from __future__ import annotations

from functools import cached_property

from fedpriv.client.example_level import SGD, DecayingNoise


class ANRClient(DecayingNoise):
    """Plain SGD on a gradient whose noise the server lowers."""

    @cached_property
    def optimiser(self) -> SGD:  # type: ignore[override]
        return SGD()
