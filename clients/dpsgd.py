"""DP-SGD, client half.

M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang: Deep Learning with Differential
Privacy. ACM CCS 2016. The first baseline of DPFL-AGN.

The client adds the noise; the server sees each client's model after each round; example counts are public.

Symbols: sigma -> noise_multiplier, C -> clip_norm, L -> local.batch_size, eta -> local.lr.
Published and repaired are the same.
"""

from __future__ import annotations

from functools import cached_property

from fedpriv.client.example_level import SGD, ExampleLevelClient


class DPSGDClient(ExampleLevelClient):
    """Plain SGD on the noisy gradient of a Poisson batch."""

    @cached_property
    def optimiser(self) -> SGD:  # type: ignore[override]
        return SGD()
