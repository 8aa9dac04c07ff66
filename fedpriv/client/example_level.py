"""The shared base of clients whose unit of privacy is one training example: noisy steps on Poisson batches.

One step: draw every example with probability q = H/n_j; clip each drawn example's gradient to Theta; add Gaussian
noise to their sum; divide by the expected batch size H, never by the size drawn. What follows (optimizer, more steps,
upload) is post-processing, and so is what the client keeps: the moments and an adaptive Theta.

The client adds the noise; the server sees each client's model after each round; example counts are public.

With unit person an example is a person: drawn with all of its rows, whose mean gradient is clipped; n_j and H count
persons (`fedpriv.mechanisms.clipped_sums` has the proof).

Symbols: sigma_t -> noise_multiplier (standard deviation / Theta), Theta -> clip_norm, H -> local.batch_size,
n_j -> num_examples, eta -> local.lr, s_b -> count_noise, eta_C -> clip_lr.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.contract import Charge, Neighbours, Release, RunFacts, UnsafeNoise
from fedpriv.client.method import Traits, on_all_axes
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import SIGMA, Request, shown
from fedpriv.config.methods import CLIP_RANGE, DecayingOptions, ExampleLevelOptions
from fedpriv.mechanisms.clipped_sums import ClippedSum, excess
from fedpriv.mechanisms.noise import NoiseSource, add_normal_finely, clip_factors, l2_norm
from fedpriv.mechanisms.noise_decay import fastest_decay, with_count
from fedpriv.privacy import claimed
from fedpriv.privacy.events import Event, NoBound, PoissonGaussian, Threat
from fedpriv.training.sequential import Clipping

EXAMPLE_TO_SERVER = Threat("example", "add-or-remove-one", "server")

RAW_MEDIAN = "Theta is the median of the batch's own norms, without noise: it has no useful sensitivity"


@dataclass(frozen=True)
class TrainingState:
    """What the client keeps between participations: Adam's m and v [..., d], steps taken, Theta [...]."""

    m: Tensor
    v: Tensor
    steps: int
    clip_norm: Tensor

    @property
    def moments(self) -> Moments:
        return Moments(self.m, self.v, self.steps)

    def on(self, device: torch.device) -> TrainingState:
        """With the moments on this device; Theta stays where it is."""
        return replace(self, m=self.m.to(device), v=self.v.to(device))


@dataclass(frozen=True)
class NoisyStep:
    """What one step releases: the noisy mean gradient [..., d], and the noisy share above/below Theta [...], if any."""

    gradient: Tensor
    share: Tensor | None


class ExampleLevelClient(Client):
    """Base of DP-SGD, AGN, ANR and DPFL-AGN. ``optimiser`` and `smallest_sigma` are what they differ in.

    noise_multiplier: sigma_0, which is also the sigma of every round unless the server announces another one.
    clipping: fixed, adaptive (noisy quantile, Andrew et al. 2021), or median (published mode only).
    """

    options: ExampleLevelOptions
    traits = Traits(TrainingState, needs_facts=True, clips_examples=True)
    threat = EXAMPLE_TO_SERVER

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        self.sigma = self.noise_multiplier  # of this participation
        _ = self.optimiser  # made once, for all copies
        if self.options.clipping == "median" and self.variant != "published":
            raise OptionError("strategy.client.clipping", "median", "privacy.variant=published only; use adaptive")

    @property
    def optimiser(self) -> Optimiser:
        """What turns a noisy gradient into a step."""
        raise NotImplementedError

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

    def noisy_step(
        self, total: Tensor, within: Tensor | None, sigma: float, clip_norm: Tensor, noise: NoiseSource
    ) -> NoisyStep:
        """From the sum of clipped gradients [..., d] and, for an adaptive Theta, the number of drawn examples within
        Theta minus half of the drawn [...] (None: Theta stays, and no count is released).

        Theta may differ between trials, so noise is added in units of it.
        """
        scale = clip_norm.unsqueeze(-1).to(total.device)
        expected = self.facts.batch_size
        # [DPFL-AGN, Alg. 1 line 12]; float32 is post-processing
        gradient = (add_normal_finely(total / scale, sigma, noise) * scale / expected).float()
        if within is None:
            return NoisyStep(gradient, None)
        return NoisyStep(gradient, add_normal_finely(within, self.options.count_noise, noise) / expected)

    def multiplier(self, sigma: float) -> float:
        """sigma over how far one example moves the sum on the noise's grid, in units of Theta: what a step is worth.

        An example moves the computed sum by less than 1 - 2^-12 + ``excess`` (`fedpriv.mechanisms.per_example`), and
        the sum on the grid by sqrt(d) `fine_step(sigma)` more, at most 2^-20 sigma for d <= 2^32 parameters. Below a
        sigma of 2^8 and with no more than 65,536 examples that is 1 at most, and the multiplier is sigma itself.
        """
        beyond = excess(self.facts.num_examples) + max(0.0, 2.0**-20 * sigma - 2.0**-12)
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
        moments = self.optimiser.fresh(like)
        return TrainingState(moments.m, moments.v, 0, torch.full(like.shape[:-1], self.clip_norm, dtype=torch.float64))

    def steps(
        self, theta: Tensor, state: TrainingState | None, request: Request
    ) -> Generator[Clipping, ClippedSum, Release]:
        """``local_steps`` noisy steps from theta; the release is theta_local - theta. On a GPU the sums, the update and
        the moments stay there between steps; only noise, which is drawn on the CPU, goes there.
        """
        site, sigma = self._site(), self.sigma
        rng, noise = self.batches(request), self.noise(request, "steps")
        state = state or self.fresh_state(theta)
        begun, update, losses, norms, drawn = theta, torch.zeros_like(theta), 0.0, 0.0, 0
        chosen = "median" if self.options.clipping == "median" else "given"
        for _ in range(self.local_steps):
            rows = np.flatnonzero(rng.random(site.num_examples) < self.sampling_rate)
            batch = site.load_data(rows)
            found = yield Clipping(begun + update, batch, float(state.clip_norm), chosen, stays=True)
            device = found.total.device
            if device != begun.device:
                begun, update, state = begun.to(device), update.to(device), state.on(device)
            many = len(found.norms)  # examples or persons
            within = (found.norms <= state.clip_norm).double().sum() - many / 2 if self.is_adaptive else None
            step = self.noisy_step(found.total, within, sigma, state.clip_norm, noise)
            change, moments = self.optimiser.step(step.gradient, state.moments, site.trainer.config.lr)
            update = update + change
            state = TrainingState(moments.m, moments.v, moments.steps, self.next_clip_norm(state.clip_norm, step))
            losses, drawn = losses + found.loss * many, drawn + many
            norms += float(found.norms.nan_to_num(0.0, 0.0, 0.0).sum())
        if update.device.type != "cpu":
            update, state = update.cpu(), state.on(torch.device("cpu"))
        figures = {
            "train_loss": losses / drawn if drawn else 0.0,
            "update_norm": float(l2_norm(update)),
            "gradient_norm": norms / drawn if drawn else 0.0,
            "noise_norm": sigma * float(state.clip_norm) * math.sqrt(len(theta)) / self.facts.batch_size,
            "theta_clip": float(state.clip_norm),
        }
        return Release(update, state, figures, local=theta + update)

    def prepare(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        """Takes the round's sigma_t as the server announces it (its own sigma_0 where it announces none).

        Raises `UnsafeNoise` for anything that is no finite number or below what this client's guarantee counts on.
        """
        announced = request.options.get(SIGMA, self.noise_multiplier)
        least = self.smallest_sigma(self.round)
        if isinstance(announced, bool) or not isinstance(announced, int | float) or not math.isfinite(announced):
            raise UnsafeNoise(f"the server announces noise {shown(announced)}")
        if announced < 0 or announced < least * (1 - 1e-9):
            raise UnsafeNoise(f"the server announces noise {announced:g}, this client releases with at least {least:g}")
        self.sigma = float(announced)

    # --- what it costs (unit example, add-or-remove-one, observer server) --------------------------------

    def smallest_sigma(self, server_round: int) -> float:
        """The smallest noise that the guarantee counts on in this round, public before the run."""
        return self.noise_multiplier

    def event(self, sigma: float) -> Event:
        """``local_steps`` steps at this sigma."""
        if self.options.clipping == "median":
            return NoBound(threat=self.threat, reason=RAW_MEDIAN, count=self.local_steps)
        multiplier = self.multiplier(sigma)
        if self.is_adaptive:
            multiplier = with_count(multiplier, self.options.count_noise)
        return PoissonGaussian(
            threat=self.threat, multiplier=multiplier, sampling_rate=self.sampling_rate, count=self.local_steps
        )

    def charges(self, state: Any) -> tuple[Charge, ...]:
        bound, spent = self.event(self.smallest_sigma(self.round)), self.event(self.sigma)
        return (Charge(bound, None if spent == bound else spent),)

    def claim(self, participations: int, delta: float) -> claimed.Claim:
        return claimed.dpfl_agn(self.noise_multiplier, self.sampling_rate, participations * self.local_steps, delta)

    # --- what the auditor tries --------------------------------------------------------------------------

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        """A data set with and without one example whose gradient is longer than Theta, beside examples whose gradients
        are zero.
        """
        nobody = (0.0,) * participations
        return [Neighbours("one example more", nobody, (3.0,) * participations)]

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """Noisy steps [trials, steps * features] on batches that hold one example of this length (in units of Theta)
        with probability q, and none where the length is 0.

        What is shown is each step's noisy gradient itself, of which the real release is post-processing.
        """
        trials = shape[0]
        state = state or self.fresh_state(torch.zeros(shape))
        seen, shares = [], []
        for _ in range(self.local_steps):
            sigma = self.smallest_sigma(1 + state.steps // self.local_steps)
            gradient = on_all_axes(length * self.clip_norm, shape, self.audit_axes)
            drawn = (noise.uniform(trials) < self.sampling_rate) & (length != 0)
            norms = l2_norm(gradient)
            factors = clip_factors(norms, state.clip_norm) if length else torch.zeros(trials)
            within = drawn * ((norms <= state.clip_norm).double() - 0.5) if self.is_adaptive else None
            total = gradient * (factors * drawn).unsqueeze(-1)
            step = self.noisy_step(total, within, sigma, state.clip_norm, noise)
            moments = Moments(state.m, state.v, state.steps + 1)
            seen.append(step.gradient / state.clip_norm.float().unsqueeze(-1))
            if step.share is not None:
                shares.append(step.share.float().unsqueeze(-1))
            state = TrainingState(moments.m, moments.v, moments.steps, self.next_clip_norm(state.clip_norm, step))
        return Release(torch.cat([*seen, *shares], dim=-1), state)


class DecayingNoise(ExampleLevelClient):
    """Base of the clients whose server lowers sigma_t (ANR): sigma_t is chosen from earlier outputs, so the guarantee
    is of something fixed before the run.

    published: the fastest decay, sigma_0 * rho^(t - 1). repaired: the floor, ``floor`` * sigma_0.
    """

    options: DecayingOptions
    traits = replace(ExampleLevelClient.traits, costliest="last")

    def smallest_sigma(self, server_round: int) -> float:
        if self.variant == "published":
            return fastest_decay(self.noise_multiplier, self.options.decay, server_round)
        return self.options.floor * self.noise_multiplier

    def remarks(self) -> tuple[str, ...]:
        first, last = self.noise_multiplier, self.facts.num_rounds
        least = self.smallest_sigma(last)
        if self.variant == "published":
            rule = (
                f"decay {self.options.decay:g}, so by round {last} the noise multiplier may have fallen to {least:.3g}"
            )
        else:
            rule = f"floor {self.options.floor:g}, so the noise multiplier never falls below {least:.3g}"
        return (
            f"the noise decays whenever the public loss stops falling, which earlier outputs decide ({rule}): the "
            f"guarantee counts on that, the paper's formula on {first:g} in every round",
        )


# --- steps on a gradient that already has noise ---------------------------------------------------------------
# Post-processing of an accounted release. State in, state out; vectors are float32 [..., d].


#: The paper's epsilon in the denominator of eq. 10.
ADAM_EPSILON = 1e-8


@dataclass(frozen=True)
class Moments:
    """m, v: moving averages of the gradient and of its square (empty for SGD); steps: number of steps taken."""

    m: Tensor
    v: Tensor
    steps: int = 0


class Optimiser(Protocol):
    """A rule that turns a noisy gradient into a step."""

    def fresh(self, like: Tensor) -> Moments:
        """The state before the first step."""
        ...

    def step(self, gradient: Tensor, moments: Moments, lr: float) -> tuple[Tensor, Moments]:
        """(what to add to the parameters, the next state)."""
        ...


class SGD:
    """theta <- theta - lr * g."""

    def fresh(self, like: Tensor) -> Moments:
        return Moments(torch.zeros(0), torch.zeros(0))

    def step(self, gradient: Tensor, moments: Moments, lr: float) -> tuple[Tensor, Moments]:
        return -lr * gradient, Moments(moments.m, moments.v, moments.steps + 1)


@dataclass(frozen=True)
class Adam:
    """Adam by the paper's equations: its listing prints beta1 for beta2 (lines 14 and 16) and omits the power t of the
    bias correction (lines 15 and 16).
    """

    beta1: float
    beta2: float

    def fresh(self, like: Tensor) -> Moments:
        return Moments(torch.zeros_like(like), torch.zeros_like(like))

    def step(self, gradient: Tensor, moments: Moments, lr: float) -> tuple[Tensor, Moments]:
        t = moments.steps + 1
        m = self.beta1 * moments.m + (1 - self.beta1) * gradient  # [DPFL-AGN, eq. 6]
        v = self.beta2 * moments.v + (1 - self.beta2) * gradient.square()  # [DPFL-AGN, eq. 7]
        m_hat = m / (1 - self.beta1**t)  # [DPFL-AGN, eq. 8]
        v_hat = v / (1 - self.beta2**t)  # [DPFL-AGN, eq. 9]
        return -lr / (v_hat.sqrt() + ADAM_EPSILON) * m_hat, Moments(m, v, t)  # [DPFL-AGN, eq. 10]
