"""ANR, client half: adaptive noise reduction alone (Jiao, Cai, Wang, Cheng, Gao: DPFL-AGN, section 3.2).

The client adds the noise that the server announces, and none below its own bound; the server sees each client's model
after each round; example counts are public.

Symbols: sigma_0 -> noise_multiplier, Theta -> clip_norm, H -> local.batch_size, eta -> local.lr, rho -> decay.
"""

from __future__ import annotations

from clients.dpfl_agn import DPFLAGNClient
from fedpriv.client.example_level import ExampleLevelClient
from fedpriv.config.methods import DecayingOptions


class ANRClient(DPFLAGNClient):
    """DPFL-AGN without Adam: plain SGD on a gradient whose noise the server lowers."""

    options: DecayingOptions  # type: ignore[assignment]
    descend, fresh_state = ExampleLevelClient.descend, ExampleLevelClient.fresh_state
