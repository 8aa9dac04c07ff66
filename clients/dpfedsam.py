"""DP-FedSAM, client half: local training seeks flat minima, which clipping and noise harm less.

Y. Shi, Y. Liu, K. Wei, L. Shen, X. Wang, D. Tao: Make Landscape Flatter in Differentially Private Federated Learning,
CVPR 2023. Every local step goes along the gradient at w + rho g/||g||, with g the gradient at w.

form=local: the client adds the noise; the server sees each client's gradient and knows who took part; nobody needs to
be trusted. form=central: the server is trusted, samples the clients and adds the noise to the sum.

How clients train is a part of the function of their data that is clipped, so a release costs what DP-FedAvg's does.
Published and repaired are the same. Where this departs from the paper: there m clients are drawn without replacement
and each adds N(0, sigma^2 C^2/m), and Theorem 2 has the law of Poisson samples; here cohorts are Poisson samples, so
that the theorem holds, and the server adds the same noise in all, once.

Symbols: rho -> sharpness, C -> clip_norm, sigma C -> noise_multiplier * clip_norm, q -> sampling rate.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from fedpriv.client.contract import LocalRule
from fedpriv.client.gradient import NoisyGradientClient
from fedpriv.config.methods import DPFedSAMOptions
from fedpriv.mechanisms.step_gradients import Sharpness
from fedpriv.privacy import claimed


class DPFedSAMClient(NoisyGradientClient):
    """Sharpness-aware local training; clip; with form=local add the noise here."""

    options: DPFedSAMOptions
    traits = replace(NoisyGradientClient.traits, own_steps=True, on_device=True)
    in_rows = True

    @cached_property
    def rule(self) -> LocalRule:
        """One object for all clients of a round, which are one computation."""
        return LocalRule(gradient=Sharpness(self.options.sharpness) if self.options.sharpness else None)

    def local(self, state: Any) -> LocalRule:
        return self.rule

    def claim(self, participations: int, delta: float) -> claimed.Claim | None:
        """Poisson samples alone: the theorem is about nothing else."""
        if self.form == "local" or self.options.client_sampling != "poisson":
            return None
        return claimed.dpfedsam(self.noise_multiplier, self.cohorts.rate, self.facts.num_rounds, delta)
