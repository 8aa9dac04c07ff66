"""The shared base of clients whose unit of privacy is one training example: noisy steps on Poisson batches.

One step: draw every example with probability q = H/n_j; clip each drawn example's gradient to Theta; add Gaussian
noise to their sum; divide by the expected batch size H, never by the size drawn. What follows (optimizer, more steps,
upload) is post-processing, and so is what the client keeps: the moments and an adaptive Theta.

The client adds the noise; the server sees each client's model after each round; example counts are public.

With unit person an example is a person: drawn with all of its rows, whose mean gradient is clipped; n_j and H count
persons (`fedpriv.mechanisms.clipped_sums` has the proof).

A person (example) at S sites (`privacy.across_sites`) is in S such releases of a round, each with coins and noise of
its own, which compose adaptively: S times the event of one. q is then that of the smallest site, since a ledger's total
must bound that of S unlike sites. A smaller q' costs no more: of an output drawn at q keep it with probability q'/q,
else draw noise alone; that takes (1 - q) N(0) + q N(C) to (1 - q') N(0) + q' N(C), and N(0) to itself. With all events
alike, at most S R are released to S sites of at most R rounds each. Events that differ have no such order: many rounds
of little cost at one site and one of much cost at another can cost a person more than S times either. So noise that
changes over rounds is refused (`fedpriv.client.build.sites_of_a_unit`), and so is a server that announces more noise
than a site has (`prepare`).

Symbols: sigma_t -> noise_multiplier (standard deviation / Theta), Theta -> clip_norm, H -> local.batch_size,
n_j -> num_examples, eta -> local.lr, s_b -> count_noise, eta_C -> clip_lr.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.contract import Charge, Neighbours, Release, RunFacts, UnsafeNoise
from fedpriv.client.method import Traits, on_all_axes
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import SIGMA, Request, shown
from fedpriv.config.methods import CLIP_RANGE, ExampleLevelOptions
from fedpriv.mechanisms.clipped_sums import ClippedSum, excess
from fedpriv.mechanisms.noise import NoiseSource, add_normal_finely, clip_factors, l2_norm
from fedpriv.mechanisms.trusted_sums import with_count
from fedpriv.privacy import claimed
from fedpriv.privacy.events import Event, NoBound, PoissonGaussian, Threat

EXAMPLE_TO_SERVER = Threat("example", "add-or-remove-one", "server")

RAW_MEDIAN = "Theta is the median of the batch's own norms, without noise: it has no useful sensitivity"


@dataclass(frozen=True)
class TrainingState:
    """What the client keeps between participations: Adam's m and v [..., d] (SGD: empty), steps taken, Theta [...]."""

    m: Tensor
    v: Tensor
    steps: int
    clip_norm: Tensor

    def on(self, device: torch.device) -> TrainingState:
        """With the moments on this device; Theta stays where it is."""
        return replace(self, m=self.m.to(device), v=self.v.to(device))


@dataclass(frozen=True)
class NoisyStep:
    """What one step releases: the noisy mean gradient [..., d], and the noisy share above/below Theta [...], if any."""

    gradient: Tensor
    share: Tensor | None


class ExampleLevelClient(Client):
    """Base of DPFL-AGN and its kin: what noisy steps on Poisson batches cost. The steps are in `clients/dpfl_agn.py`.

    noise_multiplier: sigma_0, which is also the sigma of every round unless the server announces another one.
    clipping: fixed, adaptive (noisy quantile, Andrew et al. 2021), or median (published mode only).
    """

    options: ExampleLevelOptions
    traits = Traits(TrainingState, needs_facts=True, clips_examples=True)
    threat = EXAMPLE_TO_SERVER

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        self.sigma = self.noise_multiplier  # of this participation
        if self.options.clipping == "median" and self.variant != "published":
            raise OptionError("strategy.client.clipping", "median", "privacy.variant=published only; use adaptive")

    @property
    def noise_multiplier(self) -> float:
        return self.options.noise_multiplier

    @property
    def clip_norm(self) -> float:
        return self.options.clip_norm

    @property
    def local_steps(self) -> int:
        return self.options.local_steps

    @property
    def sampling_rate(self) -> float:
        """q = H / n_j."""
        return min(1.0, self.facts.batch_size / self.facts.num_examples)

    @property
    def is_adaptive(self) -> bool:
        """Whether Theta follows a noisy count of the examples within it."""
        return self.options.clipping == "adaptive"

    # --- a step ------------------------------------------------------------------------------------------

    @abstractmethod
    def noisy_step(
        self, total: Tensor, within: Tensor | None, sigma: float, clip_norm: Tensor, noise: NoiseSource
    ) -> NoisyStep:
        """From the sum of clipped gradients [..., d] and, for an adaptive Theta, the number of drawn examples within
        Theta minus half of the drawn [...] (None: Theta stays, and no count is released).
        """

    def noisy_share(self, within: Tensor | None, noise: NoiseSource) -> Tensor | None:
        """The count of `noisy_step` with noise, over the expected batch size."""
        if within is None:
            return None
        return add_normal_finely(within, self.options.count_noise, noise) / self.facts.batch_size

    def descend(
        self, gradient: Tensor, state: TrainingState, lr: float, at: Tensor | None = None
    ) -> tuple[Tensor, TrainingState]:
        """(what a noisy gradient [..., d] at a model ``at`` adds to it, the state after it): here theta - lr * g."""
        return -lr * gradient, replace(state, steps=state.steps + 1)

    def multiplier(self, sigma: float) -> float:
        """sigma over how far one example moves the sum on the noise's grid, in units of Theta: what a step is worth.

        An example moves the computed sum by less than 1 - 2^-12 + ``excess`` (`fedpriv.mechanisms.per_example`), and
        the sum on the grid by sqrt(d) `fine_step(sigma)` more, at most 2^-20 sigma for d <= 2^32 parameters. Below a
        sigma of 2^8 and with no more than 65,536 examples that is 1 at most, and the multiplier is sigma itself.
        """
        examples = self.facts.num_examples if self.run.across_sites == 1 else self.facts.total_examples
        beyond = excess(examples) + max(0.0, 2.0**-20 * sigma - 2.0**-12)
        return sigma / (1 + beyond)

    def next_clip_norm(self, clip_norm: Tensor, step: NoisyStep) -> Tensor:
        """Theta <- Theta * exp(-eta_C (b + 1/2 - target)), kept in a public range (Andrew et al. 2021).

        The share of examples within Theta is b + 1/2: b counts those within minus half of those drawn, so that one
        example moves the count by 1/2 only.
        """
        if step.share is None:
            return clip_norm
        moved = clip_norm * torch.exp(
            -self.options.clip_lr * (step.share.double() + 0.5 - self.options.target_quantile)
        )
        return moved.clamp(self.clip_norm / CLIP_RANGE, self.clip_norm * CLIP_RANGE)

    # --- one participation -------------------------------------------------------------------------------

    def fresh_state(self, like: Tensor) -> TrainingState:
        """Before the first step of models [..., d]."""
        clip_norm = torch.full(like.shape[:-1], self.clip_norm, dtype=torch.float64)
        return TrainingState(torch.zeros(0), torch.zeros(0), 0, clip_norm)

    @staticmethod
    def on_device(
        clipped: ClippedSum, theta: Tensor, update: Tensor, state: TrainingState
    ) -> tuple[Tensor, Tensor, TrainingState]:
        """Start, update and moments where the sum is: on a GPU they stay there between steps."""
        device = clipped.total.device
        if device == theta.device:
            return theta, update, state
        return theta.to(device), update.to(device), state.on(device)

    def prepare(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        """Takes the round's sigma_t as the server announces it (its own sigma_0 where it announces none).

        Raises `UnsafeNoise` for anything that is no finite number or below what this client's guarantee counts on; at
        several sites for more noise than this, too.
        """
        announced = request.options.get(SIGMA, self.noise_multiplier)
        least = self.smallest_sigma(self.round)
        if isinstance(announced, bool) or not isinstance(announced, int | float) or not math.isfinite(announced):
            raise UnsafeNoise(f"the server announces noise {shown(announced)}")
        if announced < 0 or announced < least * (1 - 1e-9):
            raise UnsafeNoise(f"the server announces noise {announced:g}, this client releases with at least {least:g}")
        if self.run.across_sites > 1 and announced > least * (1 + 1e-9):
            words = "and privacy.across_sites counts sites that all release with the same"
            raise UnsafeNoise(f"the server announces noise {announced:g}, this client has {least:g}, {words}")
        self.sigma = float(announced)

    # --- what it costs (unit example, add-or-remove-one, observer server) --------------------------------

    def smallest_sigma(self, server_round: int) -> float:
        """The smallest noise that the guarantee counts on in this round, public before the run."""
        return self.noise_multiplier

    def event(self, sigma: float) -> Event:
        """``local_steps`` steps at this sigma, at each of the sites that hold the example."""
        count, rate = self.local_steps * self.run.across_sites, self.sampling_rate
        if self.options.clipping == "median":
            return NoBound(threat=self.threat, reason=RAW_MEDIAN, count=count)
        if self.run.across_sites > 1:
            rate = min(1.0, self.facts.batch_size / self.facts.smallest)
        multiplier = self.multiplier(sigma)
        if self.is_adaptive:
            multiplier = with_count(multiplier, self.options.count_noise)
        return PoissonGaussian(threat=self.threat, multiplier=multiplier, sampling_rate=rate, count=count)

    def charges(self, state: Any) -> tuple[Charge, ...]:
        bound, spent = self.event(self.smallest_sigma(self.round)), self.event(self.sigma)
        return (Charge(bound, None if spent == bound else spent),)

    def claim(self, participations: int, delta: float) -> claimed.Claim | None:
        """Of an example at one site; no paper claims anything of one at several."""
        if self.run.across_sites > 1:
            return None
        return claimed.dpfl_agn(self.noise_multiplier, self.sampling_rate, participations * self.local_steps, delta)

    # --- what the auditor tries --------------------------------------------------------------------------

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        """A data set with and without one example whose gradient is longer than Theta, beside examples whose gradients
        are zero.
        """
        nobody = (0.0,) * participations
        return [Neighbours("one example more", nobody, (3.0,) * participations)]

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """Noisy steps [trials, sites * steps * features] on batches that hold one example of this length (in units of
        Theta) with probability q, and none where the length is 0, at each of the sites that hold it.

        What is shown is each step's noisy gradient itself, of which the real release is post-processing.
        """
        before = state or [self.fresh_state(torch.zeros(shape))] * self.run.across_sites
        sites = [self._audited_steps(length, site, shape, noise) for site in before]
        return Release(torch.cat([site.value for site in sites], dim=-1), [site.state for site in sites])

    def _audited_steps(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        trials, seen, shares = shape[0], [], []
        for _ in range(self.local_steps):
            sigma = self.smallest_sigma(1 + state.steps // self.local_steps)
            gradient = on_all_axes(length * self.clip_norm, shape, self.audit_axes)
            drawn = (noise.uniform(trials) < self.sampling_rate) & (length != 0)
            norms = l2_norm(gradient)
            factors = clip_factors(norms, state.clip_norm) if length else torch.zeros(trials)
            within = drawn * ((norms <= state.clip_norm).double() - 0.5) if self.is_adaptive else None
            total = gradient * (factors * drawn).unsqueeze(-1)
            step = self.noisy_step(total, within, sigma, state.clip_norm, noise)
            seen.append(step.gradient / state.clip_norm.float().unsqueeze(-1))
            if step.share is not None:
                shares.append(step.share.float().unsqueeze(-1))
            following = self.next_clip_norm(state.clip_norm, step)
            state = replace(state, steps=state.steps + 1, clip_norm=following)
        return Release(torch.cat([*seen, *shares], dim=-1), state)
