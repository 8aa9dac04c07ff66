"""DP-SGD, client half.

M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang: Deep Learning with Differential
Privacy. ACM CCS 2016. The first baseline of DPFL-AGN.

The client adds the noise; the server sees each client's model after each round; example counts are public.

Symbols: sigma -> noise_multiplier, C -> clip_norm, L -> local.batch_size, eta -> local.lr.
Published and repaired are the same.
"""

from __future__ import annotations

from clients.agn import AGNClient
from fedpriv.client.example_level import ExampleLevelClient
from fedpriv.config.methods import ExampleLevelOptions


class DPSGDClient(AGNClient):
    """AGN without Adam: plain SGD on the noisy gradient of a Poisson batch."""

    options: ExampleLevelOptions  # type: ignore[assignment]
    descend, fresh_state = ExampleLevelClient.descend, ExampleLevelClient.fresh_state
