"""The shared base of the clients that release every coordinate of a clipped gradient, with Gaussian noise of their own
(form=local) or of a trusted server (form=central).

Symbols: g' -> clipped, C -> clip_norm, sigma C -> noise_multiplier * clip_norm, q -> sampling_rate.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from fedpriv.client.contract import Charge, Neighbours, Release, RunFacts
from fedpriv.client.gradient import GradientClient
from fedpriv.client.method import on_all_axes
from fedpriv.client.secure_sum import ONE_NOISE, SummedGaussians
from fedpriv.config.gradient_methods import NoisyGradientOptions
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.noise_decay import noisy_sum
from fedpriv.privacy.events import PoissonGaussian, Threat

TO_OUTSIDERS = Threat("client", "add-or-remove-one", "trusted-server")


class NoisyGradientClient(SummedGaussians, GradientClient):
    """Clip; with form=local add the noise here. epsilon, form=central: of one round, amplified by sampling."""

    options: NoisyGradientOptions
    traits = replace(GradientClient.traits, why_no_sum=ONE_NOISE)

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        if self.form == "central":
            self.threat, self.traits = TO_OUTSIDERS, replace(self.traits, why_no_sum="")

    @property
    def form(self) -> str:
        return self.options.form

    @cached_property
    def noises(self) -> int:
        if self.by_epsilon and self.options.sensitivity == "per_example":
            return 1  # sigma follows 2C/n_k: the others' noises are of other sizes, and may be far smaller
        return super().noises

    @property
    def sampling_rate(self) -> float:
        return self.facts.clients_per_round / max(1, self.facts.num_clients)

    def chosen_multiplier(self) -> float:
        if self.form == "local":
            return super().chosen_multiplier()
        from fedpriv.privacy.calibration import sampled_multiplier  # loads the accountants

        return sampled_multiplier(self.options.epsilon, self.options.claimed_delta, self.sampling_rate)

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        clipped = self.clipped(update)
        value = clipped if self.form == "central" else self.plus_gaussian(clipped, noise)
        return Release(value, None, self.figures(clipped, value - clipped))

    # --- what it costs -------------------------------------------------------------------------------------

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """form=central: what outsiders learn of any client in one round, asked or not."""
        if self.form == "central":
            sampled = PoissonGaussian(
                threat=self.threat, multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate
            )
            return (Charge(sampled),)
        own = self.gaussian()
        return Charge(own), *self.summed(own)

    # --- what the auditor tries ------------------------------------------------------------------------------

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        if self.form == "local":
            return super().worst_case_pairs(participations)
        return [Neighbours("with and without a client", (0.0,) * participations, (1.0,) * participations)]

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """form=central: the noisy sum over a sample that holds this client with probability q, all others silent."""
        if self.form == "local":
            return super().audit_release(length, state, shape, noise)
        mine, _ = self.sampled(length, state, shape, noise)
        return Release(noisy_sum([mine], shape, self.clip_norm, self.noise_multiplier, noise), state)

    def sampled(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> tuple[Tensor, Tensor]:
        """(what the sum holds of this client [trials, d], whether it was drawn [trials, 1])."""
        gradient = on_all_axes(length * self.clip_norm, shape, self.audit_axes)
        drawn = (noise.uniform(shape[0]) < self.sampling_rate).float().unsqueeze(1)
        return self.release(gradient, state, noise).value * drawn, drawn
