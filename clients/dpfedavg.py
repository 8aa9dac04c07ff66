"""DP-FedAvg, client half: noise on every coordinate. A baseline of DP-FedAGS, and what practitioners use.

form=local (the paper's comparison): the client adds the noise; the server sees each client's gradient and knows who
took part; nobody needs to be trusted. Under a secure sum, which is assumed, the noises of those that answered add up.
form=central (McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018): the
server is trusted; it samples the clients (Poisson), sums their clipped gradients and adds the noise; outsiders see
global models and do not know who took part. With strategy.server.clipping=quantile (Andrew, Thakkar, McMahan,
Ramaswamy: Differentially Private Learning with Adaptive Clipping, NeurIPS 2021) the server alone clips, by the C of its
round: clients send their gradients up to the length B.

Symbols: g' -> clipped, B -> norm_bound, b -> within, C -> clip_norm, sigma C -> noise_multiplier * clip_norm,
q -> `fedpriv.privacy.secret_cohorts`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clients.fedags import PrintedNoiseClient
from fedpriv.client.contract import Release
from fedpriv.client.gradient import NoisyGradientClient
from fedpriv.config.methods import DPFedAvgOptions
from fedpriv.mechanisms.noise import NoiseSource, clip
from fedpriv.privacy import claimed


class DPFedAvgClient(NoisyGradientClient, PrintedNoiseClient):
    """Clip; with form=local add the noise here. epsilon, form=central: of one round, amplified by sampling."""

    options: DPFedAvgOptions
    traits = replace(NoisyGradientClient.traits, on_device=True)
    in_rows = True

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        if self.options.clipping == "fixed":  # else the trusted server moves C
            return super().release(update, state, noise)
        value = clip(update, self.options.norm_bound)
        return Release(value, None, self.figures(value, torch.zeros_like(value)))

    def claim(self, participations: int, delta: float) -> claimed.Claim | None:
        return claimed.dpfedavg(self.printed_epsilon()) if self.form == "local" else None
