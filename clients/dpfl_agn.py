"""DPFL-AGN, client half: differentially private federated learning with adaptive Gaussian noise.

Jiao, Cai, Wang, Cheng, Gao (Algorithm 1). DP-SGD, AGN alone and ANR alone are this client without one or both of its
two parts.

The client adds the noise that the server announces, and none below its own bound; the server sees each client's model
after each round; example counts are public.

Symbols: sigma_0 -> noise_multiplier, Theta -> clip_norm, H -> local.batch_size, eta -> local.lr, rho -> decay,
beta_1 -> beta1, beta_2 -> beta2, N -> num_examples, omega -> theta, g -> gradient; m, v and the step count t stay with
the client between rounds.

Where this departs from the print:
- Lines 14 and 16 print beta_1 for beta_2, lines 15 and 16 leave out the power t: equations 7 to 9 are followed.
- Line 17 starts from the client's own last model: here each round starts from the broadcast theta.
- One noisy step a round as printed; ``local_steps`` says otherwise.
- Repaired: sigma_t has a public floor. Published, it may fall as fast as rho lets it.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedpriv.client.contract import Release
from fedpriv.client.example_level import ExampleLevelClient, NoisyStep, TrainingState
from fedpriv.common.messages import Request
from fedpriv.config.methods import DPFLAGNOptions
from fedpriv.mechanisms.clipped_sums import ClippedSum
from fedpriv.mechanisms.noise import NoiseSource, add_normal_finely, l2_norm
from fedpriv.training.sequential import Clipping

#: epsilon in the denominator of eq. 10.
ADAM_EPSILON = 1e-8


class DPFLAGNClient(ExampleLevelClient):
    """Adam on a noisy gradient (AGN) whose noise the server lowers (ANR)."""

    options: DPFLAGNOptions
    traits = replace(ExampleLevelClient.traits, costliest="last")

    def fresh_state(self, like: Tensor) -> TrainingState:
        zero = torch.zeros_like(like)
        return replace(super().fresh_state(like), m=zero, v=zero)  # [DPFL-AGN, Alg. 1 line 1]

    # Local training process, of each client.  [DPFL-AGN, Alg. 1 lines 4, 5, 19]
    def steps(
        self, theta: Tensor, state: TrainingState | None, request: Request
    ) -> Generator[Clipping, ClippedSum, Release]:
        """``local_steps`` noisy steps from theta; the release is theta_local - theta. On a GPU the sums, the update and
        the moments stay there between steps; only noise, which is drawn on the CPU, goes there.
        """
        site, rng, noise = self._site(), self.batches(request), self.noise(request, "steps")
        state, update = state or self.fresh_state(theta), torch.zeros_like(theta)
        losses, norms, drawn = 0.0, 0.0, 0
        chosen = "median" if self.options.clipping == "median" else "given"
        for _ in range(self.local_steps):
            rows = np.flatnonzero(rng.random(site.num_examples) < self.sampling_rate)  # [DPFL-AGN, Alg. 1 line 6]
            at, batch, bound = theta + update, site.load_data(rows), float(state.clip_norm)
            # each drawn example's gradient, clipped to Theta, and their sum
            clipped = yield Clipping(at, batch, bound, chosen, stays=True)  # [DPFL-AGN, Alg. 1 lines 7 to 10]
            theta, update, state = self.on_device(clipped, theta, update, state)
            many = len(clipped.norms)  # examples or persons
            within = (clipped.norms <= state.clip_norm).double().sum() - many / 2 if self.is_adaptive else None
            step = self.noisy_step(clipped.total, within, self.sigma, state.clip_norm, noise)
            change, state = self.descend(step.gradient, state, site.trainer.lr, at.to(update.device))
            update, state = update + change, replace(state, clip_norm=self.next_clip_norm(state.clip_norm, step))
            losses, drawn = losses + clipped.loss * many, drawn + many
            norms += float(clipped.norms.nan_to_num(0.0, 0.0, 0.0).sum())
        theta, update, state = theta.cpu(), update.cpu(), state.on(torch.device("cpu"))
        figures = {
            "train_loss": losses / drawn if drawn else 0.0,
            "update_norm": float(l2_norm(update)),
            "gradient_norm": norms / drawn if drawn else 0.0,
            "noise_norm": self.sigma * float(state.clip_norm) * math.sqrt(len(theta)) / self.facts.batch_size,
            "theta_clip": float(state.clip_norm),
        }
        return Release(update, state, figures, local=theta + update)  # [DPFL-AGN, Alg. 1 line 18]

    # Adaptive Gaussian noise.  [DPFL-AGN, Alg. 1 line 11]
    def noisy_step(
        self, total: Tensor, within: Tensor | None, sigma: float, clip_norm: Tensor, noise: NoiseSource
    ) -> NoisyStep:
        theta, expected = clip_norm.unsqueeze(-1).to(total.device), self.facts.batch_size
        # noise in units of Theta, which may differ between trials; float32 is post-processing
        gradient = (
            add_normal_finely(total / theta, sigma, noise) * theta / expected
        ).float()  # [DPFL-AGN, Alg. 1 line 12]
        return NoisyStep(gradient, self.noisy_share(within, noise))

    def descend(
        self, gradient: Tensor, state: TrainingState, lr: float, at: Tensor | None = None
    ) -> tuple[Tensor, TrainingState]:
        beta1, beta2, t = self.options.adam_beta1, self.options.adam_beta2, state.steps + 1
        m = beta1 * state.m + (1 - beta1) * gradient  # [DPFL-AGN, Alg. 1 line 13] [DPFL-AGN, eq. 6]
        v = beta2 * state.v + (1 - beta2) * gradient.square()  # [DPFL-AGN, Alg. 1 line 14] [DPFL-AGN, eq. 7]
        m_hat = m / (1 - beta1**t)  # [DPFL-AGN, Alg. 1 line 15] [DPFL-AGN, eq. 8]
        v_hat = v / (1 - beta2**t)  # [DPFL-AGN, Alg. 1 line 16] [DPFL-AGN, eq. 9]
        change = -lr / (v_hat.sqrt() + ADAM_EPSILON) * m_hat  # [DPFL-AGN, Alg. 1 line 17] [DPFL-AGN, eq. 10]
        return change, replace(state, m=m, v=v, steps=t)

    # --- what it costs (unit example, add-or-remove-one, observer server): `ExampleLevelClient` --------------

    def smallest_sigma(self, server_round: int) -> float:
        """published: the fastest decay, sigma_0 * rho^(t - 1). repaired: ``floor`` * sigma_0, so that a run's guarantee
        does not get worse with every round. sigma_t is chosen from earlier outputs: either is fixed before the run.
        """
        if self.variant == "published":
            return self.noise_multiplier * self.options.decay ** (server_round - 1)
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
