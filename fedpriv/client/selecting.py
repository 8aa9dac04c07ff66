"""The shared base of clients that perturb a part of their gradient: DP-FedAGS and DP-FedSNLC.

Published, the other coordinates are sent as they are. Repaired, nothing is sent for them, and which ones are chosen is
either public chance or a private selection with a price.

Symbols: k -> count, eps0 -> `pick_epsilon`, tau -> score_bound.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.client.contract import Charge, Figure, Neighbours, Release
from fedpriv.client.gradient import GradientClient
from fedpriv.client.method import on_all_axes
from fedpriv.common.packing import pack_selected, packed_bytes
from fedpriv.common.seeds import public_mask
from fedpriv.config.methods import SelectingOptions
from fedpriv.mechanisms.clipping import l2_norm
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.significance import largest
from fedpriv.privacy.events import Event, GumbelTopK, NoBound

#: Lengths in `worst_case_pairs` that stand for a gradient along one of the first two axes in a round that sends one.
FIRST_AXIS, SECOND_AXIS = 2.0, 3.0


class SelectingClient(GradientClient):
    """A method says how many coordinates a round selects (`count`), and which ones in published mode (`significant`).

    A release [..., d] is NaN where nothing is sent. selection: random (a public mask) | gumbel (one-shot top-k of
    min(|g'_j|, tau)). selection_share: the part of a round's budget that the selection gets, if it costs anything.
    score_bound: tau; None: C/sqrt(k).
    """

    options: SelectingOptions
    traits = replace(GradientClient.traits, costliest="last")

    @abstractmethod
    def count(self, dimension: int, server_round: int) -> int:
        """How many of d coordinates this round selects: public, 1..d."""

    @abstractmethod
    def significant(self, clipped: Tensor, noise: NoiseSource) -> Tensor:
        """Published: bool [..., d]."""

    def leak(self) -> str | None:
        """What is sent without noise, in words."""
        return "noise_multiplier=0: the clipped gradient is sent as it is" if self.noise_multiplier == 0 else None

    # --- the release ---------------------------------------------------------------------------------------

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        if self.variant == "published" and noise.each is not None:  # how many are perturbed differs between clients
            alone = [self.release_gradient(row, own) for row, own in zip(update, noise.each, strict=True)]
            numbers = torch.tensor(
                [[float(told) for told in one.figures.values()] for one in alone], dtype=torch.float64
            )
            figures = dict(zip(alone[0].figures, numbers.unbind(1), strict=True))
            return Release(torch.stack([one.value for one in alone]), None, figures)
        return self.release_gradient(update, noise)

    def release_gradient(self, update: Tensor, noise: NoiseSource) -> Release:
        """Of one client, or of equally many coordinates of each."""
        clipped = self.clipped(update)
        if self.variant == "published":
            chosen = self.significant(clipped, noise)
            value = clipped.clone()
        else:
            chosen = self.chosen(clipped, noise)
            value = torch.full_like(clipped, torch.nan)
        before = clipped[chosen]
        if clipped.ndim > 1 and self.variant == "repaired":
            before = before.view(*clipped.shape[:-1], -1)  # equally many of each
        after = self.with_noise(before, clipped.shape[-1], noise)
        value[chosen] = after.reshape(-1)  # [DP-FedAGS, eq. 1]
        dimension = clipped.shape[-1]
        if self.site is None and value.ndim > 1:
            return Release(value)
        figures: dict[str, Figure] = {
            "share_perturbed": after.shape[-1] / dimension,
            "scheduled_share": self.count(dimension, self.round) / dimension,
            "clipped_norm": l2_norm(clipped),
            "noise_norm": l2_norm(after - before),
        }
        return Release(value, None, figures)

    def chosen(self, clipped: Tensor, noise: NoiseSource) -> Tensor:
        """Repaired: exactly `count` coordinates, bool [..., d]."""
        dimension = clipped.shape[-1]
        count = self.count(dimension, self.round)
        if count == dimension:
            return torch.ones_like(clipped, dtype=torch.bool)
        if self.options.selection == "random":
            if self.site is None:  # the auditor takes the mask that shows it most
                return (torch.arange(dimension) < count).expand(clipped.shape)
            site, number = self.site, self.round
            masks = [
                public_mask(site.seed, client, number, dimension, count) for client in site.clients or (site.client,)
            ]
            return torch.from_numpy(np.stack(masks)).view(clipped.shape)
        tau = self.clip_norm / math.sqrt(count) if self.options.score_bound is None else self.options.score_bound
        # Under replace-one a score moves by up to tau, up or down: scale 2 tau / eps0.
        gumbel = noise.gumbel(clipped.shape, 2 * tau / self.pick_epsilon(count))
        return largest(gumbel.add_(clipped.abs().clamp_(max=tau)), count)  # [Durfee and Rogers 2019, Alg. 1]

    def encode(self, value: Tensor) -> Tensor:
        """All of it where every coordinate is sent; under a public mask the chosen values; else with their places."""
        sent = ~value.isnan()
        if bool(sent.all()):
            return value
        if self.options.selection == "random":
            return value[sent].view(*value.shape[:-1], -1)
        if value.ndim > 1:
            return torch.stack([self.encode(row) for row in value])
        return torch.from_numpy(pack_selected(value.numpy(), sent.numpy()))

    def release_bytes(self, size: int, server_round: int = 1) -> int:
        count = size if self.variant == "published" else self.count(size, server_round)
        return 4 * count if count == size or self.options.selection == "random" else packed_bytes(size, count)

    def with_noise(self, values: Tensor, dimension: int, noise: NoiseSource) -> Tensor:
        """Significant coordinates [n] of gradients with ``dimension`` coordinates, with noise."""
        return self.plus_gaussian(values, noise)

    # --- what it costs -------------------------------------------------------------------------------------

    def shares(self) -> dict[str, float]:
        """Repaired: the parts of a round's budget that go to anything but the values."""
        return {"selection": self.options.selection_share} if self.options.selection == "gumbel" else {}

    def budget(self, part: str) -> float:
        """rho of a part of a round's budget, beside 2/z^2 for the values."""
        if self.noise_multiplier < 1e-150:  # its square is no number
            return math.inf
        return 2 / self.noise_multiplier**2 * self.shares()[part] / (1 - sum(self.shares().values()))

    def round_rho(self) -> tuple[float, float]:
        values, shares = 2.0, self.shares()
        whole = values / (1 - sum(shares.values()))
        selection = shares.get("selection", 0.0) * whole
        return whole - selection, selection

    def pick_epsilon(self, count: int) -> float:
        """eps0 of one of ``count`` picks: rho = k eps0^2/8."""
        return math.sqrt(8 * self.budget("selection") / count)

    def pick(self, count: int) -> Event:
        return GumbelTopK(threat=self.threat, k=count, epsilon=self.pick_epsilon(count))

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """The values, and a private selection where there is one. The guarantee counts on as many picks as there are
        coordinates, at the same rho: that is the same in every round, and no cheaper than fewer.
        """
        if (leak := self.leak()) is not None:
            return (Charge(NoBound(threat=self.threat, reason=leak), exact=True),)
        dimension = max(1, self.facts.num_parameters)
        count = self.count(dimension, self.round)
        if self.options.selection == "random" or count == dimension:
            return (Charge(self.gaussian()),)
        return Charge(self.gaussian()), Charge(self.pick(dimension), self.pick(count))

    # --- what the auditor tries ------------------------------------------------------------------------------

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        pairs = super().worst_case_pairs(participations)
        if self.variant == "repaired" and self.options.selection == "gumbel":
            lengths = (FIRST_AXIS,) * participations, (SECOND_AXIS,) * participations
            pairs.append(Neighbours("another coordinate is the largest", *lengths))
        return pairs

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """What is sent, zero where nothing is, and which coordinates were: [trials, 2 d]."""
        gradient = torch.zeros(shape)
        if length not in (FIRST_AXIS, SECOND_AXIS):
            self.round = self.fullest_round()
            axes = self.audit_axes or self.count(shape[1], self.round)
            gradient = on_all_axes(length * self.clip_norm, shape, axes)
        else:
            self.round = self.emptiest_round()
            gradient[:, int(length == SECOND_AXIS)] = self.clip_norm
        found = self.release(gradient, state, noise)
        seen = torch.cat([found.value.nan_to_num(0.0), (~found.value.isnan()).float()], dim=-1)
        return replace(found, value=seen)

    def fullest_round(self) -> int:
        """The round that selects most."""
        return self.facts.num_rounds if self.traits.costliest == "first" else 1

    def emptiest_round(self) -> int:
        """The round that selects least: picks cost most there."""
        return 1 if self.traits.costliest == "first" else self.facts.num_rounds
