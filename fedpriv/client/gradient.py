"""The shared bases of DP-FedAGS and its rivals: clients that release a perturbed accumulated gradient, every coordinate
of it (`NoisyGradientClient`) or a part (`SelectingClient`).

Symbols: g -> gradient (the sum over E local steps, (theta_global - theta_local)/eta), g' -> clipped, C -> clip_norm,
E -> local.steps, sigma C -> noise_multiplier * clip_norm, k -> count, eps0 -> `pick_epsilon`, tau -> score_bound.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.contract import Charge, Neighbours, Release, RunFacts, Trained
from fedpriv.client.method import Traits, on_all_axes
from fedpriv.client.secure_sum import ONE_NOISE, SummedGaussians
from fedpriv.common.packing import pack_selected, packed_bytes
from fedpriv.config.methods import GradientOptions, NoisyGradientOptions, SelectingOptions
from fedpriv.mechanisms.noise import NoiseSource, add_normal, add_normal_to_sum, clip, finite_or_zero, l2_norm
from fedpriv.mechanisms.trusted_sums import NUMBERS, noisy_sum, split_for_number
from fedpriv.privacy.events import Event, Gaussian, GumbelTopK, NoBound
from fedpriv.privacy.secret_cohorts import OF_TWO_DATA_SETS, TO_OUTSIDERS, SecretCohorts


class GradientClient(Client):
    """Clip the accumulated gradient to C, perturb it (`release`), send it; a round costs epsilon at claimed_delta."""

    options: GradientOptions
    traits = Traits(needs_facts=True, releases_gradient=True)
    #: Of this participation's training.
    loss: Tensor = torch.zeros((), dtype=torch.float64)

    # --- the noise's level ---------------------------------------------------------------------------------

    @property
    def clip_norm(self) -> float:
        return self.options.clip_norm

    @property
    def by_epsilon(self) -> bool:
        """Whether the noise was chosen by epsilon, and not given. cpSGD's options give trials in its place."""
        return getattr(self.options, "noise_multiplier", None) is None

    @cached_property
    def noise_multiplier(self) -> float:
        """Standard deviation / C."""
        return self.chosen_multiplier() if self.by_epsilon else self.options.noise_multiplier  # type: ignore[attr-defined,no-any-return]

    def chosen_multiplier(self) -> float:
        """Standard deviation / C that epsilon asks for: a round truly costs it."""
        from fedpriv.privacy.calibration import round_multiplier  # loads the accountants

        return round_multiplier(self.options.epsilon, self.options.claimed_delta, *self.round_rho())

    def round_rho(self) -> tuple[float, float]:
        """(rho of the Gaussian parts, rho of the others) of one round at multiplier 1."""
        return OF_TWO_DATA_SETS, 0.0

    # --- the release ---------------------------------------------------------------------------------------

    def releasing(self, theta: Tensor, trained: Trained, state: Any, noise: NoiseSource) -> Release:
        """What is up for release is g = sum of the gradients of the local steps [..., d]."""
        gradient = finite_or_zero(trained.sent / -self._site().trainer.lr)
        self.loss = torch.as_tensor(trained.figures["train_loss"], dtype=torch.float64)
        release = self.release(gradient, state, noise)
        figures = {**trained.figures, "update_norm": l2_norm(gradient)}
        return self.released(replace(trained, figures=figures), replace(release, value=self.encode(release.value)))

    def encode(self, value: Tensor) -> Tensor:
        """What is sent of a release [..., d]."""
        return value

    def clipped(self, gradient: Tensor) -> Tensor:
        """g' [..., d]."""
        return clip(gradient, self.clip_norm)

    def plus_gaussian(self, values: Tensor, noise: NoiseSource) -> Tensor:
        """Coordinates of g' [...] plus N(0, sigma^2 C^2)."""
        return add_normal(values, self.noise_multiplier * self.clip_norm, noise)

    # --- what it costs -------------------------------------------------------------------------------------

    def gaussian(self) -> Gaussian:
        """Two data sets move g' by at most 2C under replace-one."""
        return Gaussian(threat=self.threat, multiplier=self.noise_multiplier / 2)

    def charges(self, state: Any) -> tuple[Charge, ...]:
        return (Charge(self.gaussian()),)

    def remarks(self) -> tuple[str, ...]:
        """The printed claim's delta, and what its noise costs at a delta that means something."""
        claim = self.claim(1, self.options.claimed_delta)
        if claim is None or claim.delta <= self.options.claimed_delta:
            return ()
        from fedpriv.privacy.composition import compose  # loads the accountants

        said = f"the paper's claim is at delta = e^-epsilon = {claim.delta:.3g}, which allows nearly everything"
        if self.exact_leak() is None:
            found = compose(self.planned_events(1), self.options.claimed_delta).epsilon
            said += f": at delta {self.options.claimed_delta:g} a round costs {found:.3g}"
        return (said,)


class NoisyGradientClient(SummedGaussians, GradientClient):
    """Clip; with form=local add the noise here, with form=central a trusted server does. epsilon, form=central: of one
    round, amplified by sampling.
    """

    options: NoisyGradientOptions
    traits = replace(GradientClient.traits, why_no_sum=ONE_NOISE)

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        if self.form == "central":
            by_pass = options.client_sampling == "allocated"  # which its first round pays for
            self.threat, costliest = TO_OUTSIDERS, "first" if by_pass else "any"
            self.traits = replace(self.traits, why_no_sum="", costliest=costliest)  # type: ignore[arg-type]

    @property
    def form(self) -> str:
        return self.options.form

    @cached_property
    def noises(self) -> int:
        if self.by_epsilon and self.options.sensitivity == "per_example":
            return 1  # sigma follows 2C/n_k: the others' noises are of other sizes, and may be far smaller
        return super().noises

    @cached_property
    def cohorts(self) -> SecretCohorts:
        """form=central: how the server draws."""
        return SecretCohorts(self.options.client_sampling, self.facts.num_clients, self.facts.clients_per_round)

    @property
    def rounds_at_once(self) -> int:
        return self.cohorts.rounds if self.form == "central" else 1

    def chosen_multiplier(self) -> float:
        if self.form == "local":
            return super().chosen_multiplier()
        return self.cohorts.multiplier(self.options.epsilon, self.options.claimed_delta)

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        clipped = self.clipped(update)
        value = clipped if self.form == "central" else self.plus_gaussian(clipped, noise)
        return Release(value, None, self.figures(clipped, value - clipped))

    # --- what it costs -------------------------------------------------------------------------------------

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """form=central: what outsiders learn of any client in one round, asked or not; of an allocation in the whole
        pass that the round begins.
        """
        if self.form == "central":
            begins, left = (self.round - 1) % self.cohorts.rounds == 0, self.facts.num_rounds - self.round + 1
            return (Charge(self.cohorts.event(self.noise_multiplier, self.threat, left)),) * begins
        own = self.gaussian()
        return Charge(own), *self.summed(own)

    # --- what the auditor tries ------------------------------------------------------------------------------

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        if self.form == "local":
            return super().worst_case_pairs(participations)
        return [Neighbours("with and without a client", (0.0,) * participations, (1.0,) * participations)]

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """form=central: the noisy sum over a cohort that may hold this client, as it is drawn, all others silent; and
        that of the numbers beside it, for which a client of length 0 is absent.
        """
        if self.form == "local":
            return super().audit_release(length, state, shape, noise)
        gradient = on_all_axes(length * self.clip_norm, shape, self.audit_axes)
        among, later = self.cohorts.drawn(state, shape[0], noise)
        mine = self.release(gradient, None, noise).value * among.float().unsqueeze(1)
        if self.options.beside is None:
            return Release(noisy_sum([mine], mine.shape, self.clip_norm, self.noise_multiplier, noise), later)
        name, share = self.options.beside
        multiplier, std = split_for_number(self.noise_multiplier, share, NUMBERS[name].most)
        total = noisy_sum([mine], mine.shape, self.clip_norm, multiplier, noise)
        number = NUMBERS[name].of(mine, self.clip_norm) * among * float(length != 0)
        return Release(total, later, statistics={name: add_normal_to_sum([number], (shape[0],), std, noise)})


#: Lengths in `worst_case_pairs` that stand for a gradient along one of the first two axes in a round that sends one.
FIRST_AXIS, SECOND_AXIS = 2.0, 3.0


class SelectingClient(GradientClient):
    """Perturbs a part of the gradient: what that costs, and how it is sent. `clients/fedags.py` has the release.

    A release [..., d] is NaN where nothing is sent. selection: random (a public mask) | gumbel (one-shot top-k of
    min(|g'_j|, tau)). selection_share: the part of a round's budget that the selection gets, if it costs anything.
    score_bound: tau; None: C/sqrt(k).
    """

    options: SelectingOptions
    traits = replace(GradientClient.traits, costliest="last")

    @abstractmethod
    def count(self, dimension: int, server_round: int) -> int:
        """How many of d coordinates this round selects: public, 1..d."""

    def leak(self) -> str | None:
        """What is sent without noise, in words."""
        return "noise_multiplier=0: the clipped gradient is sent as it is" if self.noise_multiplier == 0 else None

    # --- the way out ---------------------------------------------------------------------------------------

    def encode(self, value: Tensor) -> Tensor:
        """All of it where every coordinate is sent; under a public mask the chosen values; else with their places."""
        sent = ~value.isnan()
        if bool(sent.all()):
            return value
        if self.options.selection == "random":
            return value.masked_select(sent).view(*value.shape[:-1], -1)
        if value.ndim > 1:
            return torch.stack([self.encode(row) for row in value])
        return torch.from_numpy(pack_selected(value.numpy(), sent.numpy()))

    def release_bytes(self, size: int, server_round: int = 1) -> int:
        count = self.count(size, server_round) if self.repaired else size
        return 4 * count if count == size or self.options.selection == "random" else packed_bytes(size, count)

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
        if self.repaired and self.options.selection == "gumbel":
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
