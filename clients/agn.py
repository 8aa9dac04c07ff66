"""AGN, client half: adaptive Gaussian noise alone (Jiao, Cai, Wang, Cheng, Gao: DPFL-AGN, section 3.1).

The client adds the noise; the server sees each client's model after each round; example counts are public.

Symbols: sigma -> noise_multiplier, Theta -> clip_norm, H -> local.batch_size, eta -> local.lr, beta_1 -> beta1,
beta_2 -> beta2. Published and repaired are the same.

``noise_corrected`` is DP-AdamBC (Q. Tang, F. Shpilevskiy, M. Lecuyer, AAAI 2024): E v_hat is the gradient's second
moment plus the noise's, (sigma Theta/H)^2, a public number that hides the gradient's where noise is large.
``weight_decay`` is AdamW's (I. Loshchilov, F. Hutter, ICLR 2019). Both are functions of what is released anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clients.dpfl_agn import DPFLAGNClient
from fedpriv.client.contract import RunFacts
from fedpriv.client.example_level import ExampleLevelClient, TrainingState
from fedpriv.common.errors import OptionError
from fedpriv.config.methods import AGNOptions


class AGNClient(DPFLAGNClient):
    """DPFL-AGN at constant noise: Adam, whose moments stay with the client between rounds."""

    options: AGNOptions  # type: ignore[assignment]
    traits = ExampleLevelClient.traits
    smallest_sigma, remarks = ExampleLevelClient.smallest_sigma, ExampleLevelClient.remarks

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        if isinstance(options, AGNOptions) and options.noise_corrected and options.clipping != "fixed":
            words = f"clipping={options.clipping} moves the noise that is taken off; allowed: false, or clipping=fixed"
            raise OptionError("strategy.client.noise_corrected", "true", words)

    def descend(
        self, gradient: Tensor, state: TrainingState, lr: float, at: Tensor | None = None
    ) -> tuple[Tensor, TrainingState]:
        options, (change, after) = self.options, super().descend(gradient, state, lr)
        if options.noise_corrected:
            noise = self.sigma * float(state.clip_norm) / self.facts.batch_size
            m_hat = after.m / (1 - options.adam_beta1**after.steps)
            v_hat = after.v / (1 - options.adam_beta2**after.steps)
            change = -lr * m_hat / torch.clamp(v_hat - noise**2, min=options.correction_floor).sqrt()
        if options.weight_decay and at is not None:
            change = change - lr * options.weight_decay * at
        return change, after
