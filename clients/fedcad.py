"""Fed-CAD, client half: correlation-aware adaptive local differential privacy.

B. Zhu, S. Chang, G. Liang, H. Zhu, J. Xu: Fed-CAD: Federated Learning with Correlation-aware Adaptive Local
Differential Privacy (Algorithm 1, section V-B, Theorems VI.1 and VI.2).

The client adds the noise; the server sees each noisy update and knows who took part; nobody needs to be trusted.

Symbols: sigma -> noise_multiplier, C -> clip_norm, E[Diff] -> diff (D), gamma -> obsolete_factor,
sigma_Diff -> sigma_diff, r_i -> reuse, sigma_i / sigma -> fresh, v_i -> variance, mu_i -> released - x,
Delta theta bar -> clipped, Delta theta tilde (before the noise) -> x.

Where this departs from the print:
- One tilde stands for clipped and for noisy updates in the paper. Here no noise enters any norm.
- Line 21 is computed with the clipped previous update; the proof of VI.1 adds to the wrong vector.
- Diff is kept in [1e-3, 1 - 1e-3]; outside [0, 1] the mechanism fails.
- Line 25 prints no noise on the norm, V-B adds some without a value: published defaults to none (and is then not
  private at all), repaired to an amount whose cost is at most a tenth of the update's.
- C is constant in the paper. Where the server's rule moves it, the client starts anew, as at a first participation.
- Repaired: reuse is capped at 1 and Diff never exceeds its initial value, so that every release keeps the
  multiplier sigma/2 whatever path Diff takes. Published, a rising Diff makes reuse exceed 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedpriv.client.contract import LATER, Charge, Neighbours, Release
from fedpriv.client.gaussian import GaussianClient
from fedpriv.client.method import Traits
from fedpriv.config.methods import FedCADOptions
from fedpriv.mechanisms.noise import ROUNDING, NoiseSource, add_normal, add_normal_each, clip, clip_change, l2_norm
from fedpriv.privacy import claimed
from fedpriv.privacy.events import Gaussian, NoBound

SMALLEST_DIFF = 1e-3

NORM_WITHOUT_NOISE = (
    "the adaptive Diff follows the norm of a private change without noise (sigma_diff=0), "
    "and the noise's variance shows it"
)
CORRELATED_IN_SECRET = (
    "a client reuses the noise of its own last release, which whoever sees only sums does not know, and clients that "
    "take part in different rounds share no history: nothing is proved of the sums"
)
RISING_DIFF = (
    "published with an adaptive Diff: a rising Diff weakens later releases; a guarantee needs privacy.max_epsilon"
)


@dataclass(frozen=True)
class CorrelatedState:
    """What the client keeps between two participations, as one atomic record."""

    x: Tensor  # [..., d] the vector whose noisy version was released, after both clips
    released: Tensor  # [..., d] that noisy version: x + mu
    variance: Tensor  # [...] v: its variance in units of sigma^2 C^2
    diff: Tensor  # [...] D for the next participation
    clip_norm: float  # C it was made with; another C means a new start


class Coefficients(NamedTuple):
    """What a release with correlated noise needs; each [...], float64: one entry per trial or client."""

    reuse: Tensor  # r: share of the last release's noise that is used again
    fresh: Tensor  # s = sigma_i / sigma: standard deviation of the fresh noise in units of sigma C
    variance: Tensor  # v: variance of the release's noise in units of sigma^2 C^2


class FedCADClient(GaussianClient):
    """Fed-CAD's client. ``sigma_diff=None`` takes the variant's default."""

    options: FedCADOptions
    traits = Traits(CorrelatedState, why_no_sum=CORRELATED_IN_SECRET)
    in_rows = True

    def perturb(self, update: Tensor, state: CorrelatedState | None, noise: NoiseSource) -> Release:
        # The update theta_i - theta is that of SGD on Poisson batches.  [Fed-CAD, Alg. 1 lines 1 to 6, 8]
        C, sigma = self.clip_norm, self.noise_multiplier
        x = clip(update, C)  # [Fed-CAD, Alg. 1 line 9]
        if state is None or self.starts_anew(state):  # [Fed-CAD, Alg. 1 line 7]
            value = add_normal(x, sigma * C, noise)  # [Fed-CAD, Alg. 1 line 10]
            v = torch.ones(x.shape[:-1], dtype=torch.float64)  # [Fed-CAD, Alg. 1 line 11] [Fed-CAD, III-C (3)]
            r, D = 0 * v, self.options.diff * v
            following = D
        else:  # [Fed-CAD, Alg. 1 line 12]
            clipped, D = x, state.diff
            # x_{i-1} + (x - x_{i-1}) / max(1, |x - x_{i-1}| / (D C))
            x = clip_change(clipped, state.x, D * C, slack=ROUNDING * C)  # [Fed-CAD, Alg. 1 lines 13, 19 to 24]
            r, s, v = self.coefficients(state)
            # x + mu_i with mu_i = fresh noise + r mu_{i-1}; the same sum, ordered as the auxiliary function of V-A:
            # noise meets x_i - r x_{i-1} alone, the rest is the last release, which is public. So the bound on that
            # vector holds for the very numbers that are released, rounding included.
            last, own = r.to(x.dtype).unsqueeze(-1) * state.x, r.to(x.dtype).unsqueeze(-1) * state.released
            value = add_normal_each(x - last, s * sigma * C, noise) + own  # [Fed-CAD, Alg. 1 lines 16, 17]
            following = self.next_diff(clipped if self.options.diff_source == "unclipped" else x, state, noise)
        kept = CorrelatedState(x, value, v, following, C)
        figures = self.figures(x, value - x, diff=D, noise_variance=v, reuse=r)
        return Release(value, kept, figures)  # [Fed-CAD, Alg. 1 line 26]

    @staticmethod
    def published_coefficients(diff: Tensor, last: Tensor) -> Coefficients:
        """From D and v_{i-1}. When D rises after v has shrunk, r exceeds 1: less private than claimed."""
        stay = 1 - diff
        reuse = stay / (stay**2 + last)  # [Fed-CAD, Alg. 1 line 14]
        fresh = (1 - reuse) + reuse * diff  # [Fed-CAD, Alg. 1 line 15]
        variance = last / (stay**2 + last)  # [Fed-CAD, Alg. 1 line 18]
        return Coefficients(reuse, fresh, variance)

    def next_diff(self, vector: Tensor, state: CorrelatedState, noise: NoiseSource) -> Tensor:
        """D <- (1 - gamma) D + gamma (||x_i - x_{i-1}||/C + N(0, sigma_Diff^2)), kept in its range."""
        gamma = self.options.obsolete_factor
        if gamma == 0:
            return state.diff
        change = l2_norm(vector - state.x) / self.clip_norm
        if self.sigma_diff > 0:
            change = add_normal(change, self.sigma_diff, noise)  # [Fed-CAD, V-B]
        moved = (1 - gamma) * state.diff + gamma * change  # [Fed-CAD, Alg. 1 line 25]
        return torch.clamp(moved, SMALLEST_DIFF, self.largest_diff)

    def starts_anew(self, state: CorrelatedState) -> bool:
        """The analysis needs a constant C: x_prev must lie in the ball of C, and mu_prev have its variance v in units
        of sigma^2 C^2. Under another C both are dropped, and D begins at D_0 again.
        """
        return state.clip_norm != self.clip_norm

    # --- the repair: three changes -----------------------------------------------------------------------

    def coefficients(self, state: CorrelatedState) -> Coefficients:
        formula = self.repaired_coefficients if self.repaired else self.published_coefficients
        return formula(state.diff, state.variance)

    @classmethod
    def repaired_coefficients(cls, diff: Tensor, last: Tensor) -> Coefficients:
        """r is capped at 1: a larger one would bring the multiplier below sigma/2. v follows from r and s, since the
        published formula holds only for the uncapped r.
        """
        reuse = torch.clamp(cls.published_coefficients(diff, last).reuse, max=1.0)
        fresh = (1 - reuse) + reuse * diff
        return Coefficients(reuse, fresh, fresh**2 + reuse**2 * last)

    @property
    def largest_diff(self) -> float:
        """D never exceeds D_0: so the norm has a public sensitivity."""
        return self.options.diff if self.repaired else 1 - SMALLEST_DIFF

    @cached_property
    def sigma_diff(self) -> float:
        """The norm in D has noise, at a tenth of the update's cost at most: without noise nothing is proved."""
        if self.options.sigma_diff is not None:
            return self.options.sigma_diff
        scale = 1.6 * self.options.diff if self._judges_clipped else 3.2
        return scale * self.noise_multiplier if self.repaired else 0.0

    # --- what it costs (unit client, replace-one, observer server) ---------------------------------------

    def charges(self, state: CorrelatedState | None) -> tuple[Charge, ...]:
        """Every release costs sigma/2; with an adaptive Diff, from the second on, its norm costs a public constant.

        Repaired, D never exceeds its initial value, so ||x_i - x_{i-1}||/C lies in [0, D_0] (clipped) or [0, 2].
        """
        update, clipped = Gaussian(threat=self.threat, multiplier=self.noise_multiplier / 2), self._judges_clipped
        if self.options.obsolete_factor == 0:
            return (Charge(update),)
        if self.repaired:
            # A new start costs an update without a norm, so never more than a later participation. Where a rule moves
            # C, earlier outputs decide who starts anew, and which rounds leave C as it is: what is charged must not
            # depend on that, so everything after the very first participation is charged as a later one. With a
            # fixed C only another configuration starts anew, which is known before the run.
            fixed = self.options.clipping == "fixed" and state is not LATER
            if state is None or (fixed and self.starts_anew(state)):
                return (Charge(update),)
            norm = Gaussian(threat=self.threat, multiplier=self.sigma_diff / (self.options.diff if clipped else 2.0))
            return Charge(update), Charge(norm)
        if self.sigma_diff == 0:
            return (Charge(NoBound(threat=self.threat, reason=NORM_WITHOUT_NOISE)),)
        if state is None or state is LATER or self.starts_anew(state):
            return (Charge(update, adaptive=RISING_DIFF),)
        # Published with noise on the norm: r can exceed 1, so only the realised path has a multiplier.
        multiplier = replace_one_multiplier(self.noise_multiplier, state.diff, self.coefficients(state))
        norm = Gaussian(threat=self.threat, multiplier=self.sigma_diff / (float(state.diff) if clipped else 2.0))
        return (
            Charge(Gaussian(threat=self.threat, multiplier=float(multiplier)), adaptive=RISING_DIFF),
            Charge(norm, adaptive=RISING_DIFF),
        )

    @property
    def _judges_clipped(self) -> bool:
        return self.options.diff_source == "clipped"

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        """Besides the constant pair: updates that change by D every time, so that x_i - r x_{i-1} is longest; and, for
        an adaptive Diff, no change against change (Diff, and with it the noise's variance, follows the change).
        """
        moving = tuple(1.0 - self.options.diff * (index % 2 == (participations % 2)) for index in range(participations))
        pairs = super().worst_case_pairs(participations)
        if participations > 1:
            pairs.append(Neighbours("opposite updates that change by D", moving, tuple(-value for value in moving)))
        if participations > 1 and self.options.obsolete_factor > 0:
            pairs.append(Neighbours("no change against change", (0.0,) * participations, moving))
        return pairs

    def claim(self, participations: int, delta: float) -> claimed.Claim:
        return claimed.fedcad(self.noise_multiplier, participations, delta)  # [Fed-CAD, Alg. 2 line 6]


def replace_one_multiplier(noise_multiplier: float, diff: Tensor, coefficients: Coefficients) -> Tensor:
    """Noise over sensitivity of one correlated release [...], under replace-one.

    Given the earlier outputs the release is equivalent to x_i - r x_{i-1} plus fresh noise of standard deviation
    s C; with ||x_i|| <= C and ||x_i - x_{i-1}|| <= D C two data sets shift it by at most
    2 C max(1 - r (1 - D), r - 1 + D). For r <= 1 this is exactly sigma/2.
    """
    reuse, fresh, _ = coefficients
    shift = torch.maximum(1 - reuse * (1 - diff), reuse - 1 + diff)
    return noise_multiplier * fresh / (2 * shift)
