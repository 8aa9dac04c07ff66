"""DP-FedAvg, client half: noise on every coordinate. A baseline of DP-FedAGS, and what practitioners use.

form=local (the paper's comparison): the client adds the noise; the server sees each client's gradient and knows who
took part; nobody needs to be trusted. Under a secure sum, which is assumed, the noises of those that answered add up.
form=central (McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018): the
server is trusted; it samples the clients (Poisson), sums their clipped gradients and adds the noise; outsiders see
global models and do not know who took part. With strategy.server.clipping=quantile (Andrew, Thakkar, McMahan,
Ramaswamy: Differentially Private Learning with Adaptive Clipping, NeurIPS 2021) the server alone clips, by the C of its
round: clients send their gradients up to the length B.

Symbols: g' -> clipped, B -> norm_bound, b -> within, C -> clip_norm, sigma C -> noise_multiplier * clip_norm,
q -> sampling_rate.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from fedpriv.client.contract import Charge, Neighbours, Release, RunFacts
from fedpriv.client.gradient import GradientClient
from fedpriv.client.method import on_all_axes
from fedpriv.client.secure_sum import SummedGaussians
from fedpriv.config.methods import DPFedAvgClientOptions
from fedpriv.mechanisms.clipping import clip
from fedpriv.mechanisms.noise import NoiseSource, add_normal_to_sum
from fedpriv.mechanisms.noise_decay import split_for_count
from fedpriv.privacy import claimed
from fedpriv.privacy.events import Event, PoissonGaussian, Threat

TO_OUTSIDERS = Threat("client", "add-or-remove-one", "trusted-server")


class DPFedAvgClient(SummedGaussians, GradientClient):
    """Clip; with form=local add the noise here. epsilon, form=central: of one round, amplified by sampling."""

    options: DPFedAvgClientOptions
    in_columns = True

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        if self.form == "central":
            self.threat = TO_OUTSIDERS  # type: ignore[misc]

    @property
    def form(self) -> str:
        return self.options.form

    @cached_property
    def noises(self) -> int:
        if self.by_epsilon and self.options.sensitivity == "per_example":
            return 1  # sigma follows 2C/n_k: the others' noises are of other sizes, and may be far smaller
        return super().noises

    @property
    def moves_clip(self) -> bool:
        """Whether the trusted server moves C."""
        return bool(self.options.clipping == "quantile")

    @property
    def sampling_rate(self) -> float:
        return self.facts.clients_per_round / max(1, self.facts.num_clients)

    def chosen_multiplier(self) -> float:
        if self.form == "local":
            return super().chosen_multiplier()
        from fedpriv.privacy.calibration import sampled_multiplier  # loads the accountants

        return sampled_multiplier(self.options.epsilon, self.options.claimed_delta, self.sampling_rate)

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        clipped = clip(update, self.options.norm_bound) if self.moves_clip else self.clipped(update)
        value = clipped if self.form == "central" else self.plus_gaussian(clipped, noise)
        return Release(value, None, self.figures(clipped, value - clipped))

    # --- what it costs -------------------------------------------------------------------------------------

    def round_event(self) -> PoissonGaussian:
        """form=central: what outsiders learn of any client in one round, asked or not."""
        return PoissonGaussian(threat=self.threat, multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate)

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """form=central: the server books its own release, for every client."""
        if self.form == "central":
            return ()
        own = self.gaussian()
        return Charge(own), *self.summed(own)

    def observed_rounds(self, participations: int) -> int:
        return participations if self.form == "local" else self.facts.num_rounds

    def planned_events(self, participations: int) -> list[Event]:
        if self.form == "local":
            return super().planned_events(participations)
        return [replace(self.round_event(), count=participations)] if participations else []

    def budget_plan(self) -> list[Event]:
        return [] if self.form == "local" else self.planned_events(self.facts.num_rounds)

    def claim(self, participations: int, delta: float) -> claimed.Claim | None:
        return claimed.dpfedavg(self.printed_epsilon()) if self.form == "local" else None

    # --- what the auditor tries ------------------------------------------------------------------------------

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        if self.form == "local":
            return super().worst_case_pairs(participations)
        return [Neighbours("with and without a client", (0.0,) * participations, (1.0,) * participations)]

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """form=central: the noisy sum over a sample that holds this client with probability q, all others silent; with
        a C that moves, the noisy count as well, for which a client of length 0 is absent.
        """
        if self.form == "local":
            return super().audit_release(length, state, shape, noise)
        gradient = on_all_axes(length * self.clip_norm, shape)
        drawn = (noise.uniform(shape[0]) < self.sampling_rate).float().unsqueeze(1)
        mine = self.release(gradient, state, noise).value * drawn
        if not self.moves_clip:
            return Release(add_normal_to_sum([mine], shape, self.noise_multiplier * self.clip_norm, noise), state)
        multiplier, count_noise = split_for_count(self.noise_multiplier, self.options.count_share)
        total = add_normal_to_sum([mine], shape, multiplier * self.clip_norm, noise)
        within = drawn[:, 0] * (0.5 if length else 0.0)
        count = add_normal_to_sum([within], (shape[0],), count_noise, noise)
        return Release(total, state, statistics={"count": count})
