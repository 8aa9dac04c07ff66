"""AGN, client half: adaptive Gaussian noise alone (Jiao, Cai, Wang, Cheng, Gao: DPFL-AGN, section 3.1).

The client adds the noise; the server sees each client's model after each round; example counts are public.

Symbols: sigma -> noise_multiplier, Theta -> clip_norm, H -> local.batch_size, eta -> local.lr, beta_1 -> beta1,
beta_2 -> beta2. Published and repaired are the same.
"""

from __future__ import annotations

from clients.dpfl_agn import DPFLAGNClient
from fedpriv.client.example_level import ExampleLevelClient
from fedpriv.config.methods import AdamOptions


class AGNClient(DPFLAGNClient):
    """DPFL-AGN at constant noise: Adam, whose moments stay with the client between rounds."""

    options: AdamOptions  # type: ignore[assignment]
    traits = ExampleLevelClient.traits
    smallest_sigma, remarks = ExampleLevelClient.smallest_sigma, ExampleLevelClient.remarks
