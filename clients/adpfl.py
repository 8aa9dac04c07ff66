"""ADP-FL, client half: adaptive clipping, a budget per client and round, personalised layers.

Federated Learning Based on Adaptive Differential Privacy, Algorithms 1 to 3, equations 7 to 16.

The client adds the noise; the aggregation server sees each noisy update; published, a clipping server is trusted with
exact norms, repaired with nothing.

Symbols: Delta_i -> update, C^t -> clip_norm, eps -> epsilon (of one round), a -> base_share, eps_i -> round_epsilon,
sigma_s -> `noise_scale`, S -> sensitivity * clip_norm, S_w -> window, L -> personal_layers, N -> clients_per_round,
z_n -> norm_noise, B -> norm_bound.

Where this departs from the print:
- Delta_i, its norm, clip and noise are of the base layers alone: Algorithm 1 line 13 differences the whole model, which
  line 26 (only the base comes back) makes impossible after round 1.
- Equation 12 is followed; line 3 of Algorithm 3 prints eps for a eps.
- Noise is N(0, (S sigma_s)^2) with S = 2 C^t / N (equation 13 and its text); equation 8 and line 18 multiply by C^t
  once more, which S already contains. Under Poisson cohorts N is the expected number.
- C^t is kept between a floor and B, which the paper does not have: it would become negative.
- Repaired: an upload moves by 2 C^t, not by 2 C^t / N (what one client sends is no mean), so S = 2 C^t. Norms carry the
  client's own noise, and everything else (windows, s_i, C^t, min_j, eps_i) comes from the noisy ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.base import LastBlocksStay
from fedpriv.client.clip_statistics import ClipStatistic, Measured
from fedpriv.client.contract import Charge, Release, Statistics, UnsafeClipNorm
from fedpriv.client.gaussian import TwoExchangeClient
from fedpriv.common.messages import CLIP_CHANGE, CLIP_REPORTED_NORM, LEAST_NORM, Request, shown
from fedpriv.config.methods import ADPFLOptions
from fedpriv.mechanisms.clip_thresholds import push, window_spread
from fedpriv.mechanisms.noise import NoiseSource, add_normal_each, clip
from fedpriv.privacy import claimed
from fedpriv.privacy.events import SECURE_SUM, Event, Gaussian, NoBound, Threat

NOISE_SHOWS_NORM = (
    "the noise's standard deviation, readable from the coordinates of one release, gives eps_i and so the exact norm"
)
EXACT_CHANGE = (
    "clipping=adp as published: each client sends s_i, an exact function of its updates' norms, without noise"
)


def window_change(norms: Tensor, clip_norm: float, window: int) -> Tensor:
    """s_i [...] of windows [..., n]: the population standard deviation, positive where the mean lies below C; 0 until
    the window is full.
    """
    mean, spread = window_spread(norms, window)  # [ADP-FL, Alg. 2 lines 4 to 6] [ADP-FL, eq. 9]
    return torch.where(mean < clip_norm, spread, -spread)  # [ADP-FL, Alg. 2 lines 7 to 12] [ADP-FL, eq. 10]


class ExactChange(ClipStatistic):
    """Published: s_i from the client's own window of raw norms, sent as it is. Of any method under clipping=adp.

    function Client (Delta_i, C).  # [ADP-FL, Alg. 2 lines 1, 2]
    """

    names = (CLIP_CHANGE,)

    def __init__(self, window: int) -> None:
        self.window = window

    def measure(self, norm: Tensor, clip_norm: float, norms: Tensor | None, noise: NoiseSource) -> Measured:
        earlier = norm.new_zeros((*norm.shape, 0)) if norms is None else norms
        filled = push(earlier, norm, self.window)  # [ADP-FL, Alg. 2 line 3]
        if noise.each is None:
            change = window_change(filled, clip_norm, self.window)
        else:  # a deviation along a row of a table is added up in another order than one alone
            change = torch.stack([window_change(own, clip_norm, self.window) for own in filled])
        return Measured({CLIP_CHANGE: change}, filled)

    def events(self, threat: Threat) -> list[Event]:
        return [NoBound(threat=threat, reason=EXACT_CHANGE)]


def allocated_epsilon(norm: Tensor, clip_norm: float, least_norm: float, epsilon: float, base_share: float) -> Tensor:
    """eps_i [...] (float64) of norms [...]: a eps where the update is clipped; otherwise larger for shorter updates, up
    to eps for the shortest. Not clamped: a norm below ``least_norm`` gives more than eps.
    """
    base = base_share * epsilon  # [ADP-FL, Alg. 3 line 5]
    room, span = clip_norm - norm.double(), clip_norm - least_norm
    share = room / span if span > 0 else torch.zeros_like(room)
    more = base + share * (epsilon - base)  # [ADP-FL, Alg. 3 line 3]
    return torch.where(room <= 0, base, more)  # [ADP-FL, Alg. 3 lines 1, 2, 4, 6, 7] [ADP-FL, eq. 12]


def noise_scale(epsilon: Tensor, delta: float) -> Tensor:
    """sigma_s(eps) [...]: standard deviation of the noise in units of the sensitivity S."""
    return torch.sqrt(epsilon + 2 * math.log(1 / delta)) / epsilon  # [ADP-FL, eq. 16]


class ADPFLClient(LastBlocksStay, TwoExchangeClient):
    """Clip to C^t, add N(0, (S sigma_s(eps_i))^2 I).

    epsilon: of one round. base_share: a. allocation: adaptive (equation 12) | fixed (eps_i = eps). claimed_delta: of
    equation 16. noise_multiplier: S sigma_s(eps) / C^t, which decides epsilon; None: from epsilon. min_replies: the
    fewest uploads that a secure sum would add up; colluders: of these, how many clients' noise its observer knows.
    """

    options: ADPFLOptions
    traits = replace(TwoExchangeClient.traits, keeps_layers=True, needs_facts=True)
    #: min_j of what was reported in this round, as announced.
    least_norm: float = 0.0

    @property
    def adaptive(self) -> bool:
        return self.options.allocation == "adaptive"

    @property
    def reports_norm(self) -> bool:  # type: ignore[override]
        return self.adaptive

    @cached_property
    def noise_multiplier(self) -> float:
        given, delta = self.options.noise_multiplier, self.options.claimed_delta
        return self.sensitivity * claimed.adpfl_noise(self.options.epsilon, delta) if given is None else given

    @cached_property
    def epsilon(self) -> float:
        given = self.options.noise_multiplier
        if given is None:
            return self.options.epsilon
        return claimed.adpfl_epsilon(given / self.sensitivity, self.options.claimed_delta)

    @property
    def noises(self) -> int:
        """Those that a secure sum's observer cannot know."""
        return self.options.min_replies - self.options.colluders

    # --- the release -------------------------------------------------------------------------------------

    # (W_b^t, W_L^(t-1)) is trained for E epochs, and Delta_i is of the base layers.  [ADP-FL, Alg. 1 lines 4 to 13]
    def prepare(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        """Takes C^t and, in the second exchange, min_j. Raises `UnsafeClipNorm`."""
        super().prepare(request, down)  # [ADP-FL, Alg. 1 line 15]
        least = request.options.get(LEAST_NORM, 0.0)
        if isinstance(least, bool) or not isinstance(least, int | float) or not 0 <= least < math.inf:
            raise UnsafeClipNorm(f"the server announces the least norm {shown(least)}")
        self.least_norm = float(least)

    def measure(self, update: Tensor, norms: Tensor | None, noise: NoiseSource) -> Measured:
        return super().measure(update, norms, noise)  # s_i of ||Delta_i||, and C^(t-1)  [ADP-FL, Alg. 1 line 14]

    def perturb(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        clipped = clip(update, self.clip_norm)  # [ADP-FL, Alg. 1 line 17]
        if self.noise_multiplier == 0:
            return Release(clipped, None, self.figures(clipped, clipped - clipped))
        epsilon = self.round_epsilon()  # [ADP-FL, Alg. 1 line 16]
        std = self.sensitivity * self.clip_norm * noise_scale(epsilon, self.options.claimed_delta)
        value = add_normal_each(clipped, std, noise)  # [ADP-FL, Alg. 1 line 18]
        figures = self.figures(clipped, value - clipped, round_epsilon=epsilon)
        return Release(value, None, figures)  # [ADP-FL, Alg. 1 lines 19, 20]

    # --- the repair: two changes, and norms that are reported with noise (`clip_statistic`) ---------------

    @property
    def sensitivity(self) -> float:
        """S / C^t; repaired: what one client sends is no mean, so it moves by 2 C^t."""
        return 2.0 if self.repaired else 2.0 / self.facts.clients_per_round  # [ADP-FL, eq. 13]

    def round_epsilon(self) -> Tensor:
        """eps_i [...] of what was reported; repaired, at most eps, whatever noise did to it or the server says."""
        if not self.adaptive:
            return torch.tensor(self.epsilon, dtype=torch.float64)
        norm, base_share = self.reported[CLIP_REPORTED_NORM].double(), self.options.base_share
        norm = norm.clamp(0.0, self.options.norm_bound) if self.repaired else norm
        found = allocated_epsilon(norm, self.clip_norm, self.least_norm, self.epsilon, base_share)
        return found.clamp(base_share * self.epsilon, self.epsilon) if self.repaired else found

    # --- what it costs (unit client, replace-one, observer server; beside it: a secure sum) --------------

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """An upload moves by 2 C^t under replace-one, whatever S is called: multiplier noise_multiplier / 2 at eps,
        the largest eps_i; once it is known what was reported, beside it what eps_i really costs. A secure sum carries
        the noises of all that are not known, of which a client knows no more than the plan.
        """
        if self.adaptive and not self.repaired:
            leaks = (NoBound(threat=threat, reason=NOISE_SHOWS_NORM) for threat in (self.threat, SECURE_SUM))
            return tuple(Charge(event) for event in leaks)
        planned = self.noise_multiplier / 2
        own = Gaussian(threat=self.threat, multiplier=planned)
        if self.noise_multiplier == 0 or (not self.reported and self.adaptive):
            return Charge(own), Charge(own.in_sum(self.noises))
        scale = noise_scale(self.round_epsilon(), self.options.claimed_delta)
        taken = max(planned, float(self.sensitivity * scale / 2))
        summed = math.sqrt(taken**2 + (self.noises - 1) * planned**2)
        return (
            Charge(own, replace(own, multiplier=taken)),
            Charge(own.in_sum(self.noises), Gaussian(threat=SECURE_SUM, multiplier=summed)),
        )

    @cached_property
    def statistics(self) -> Statistics:
        """What is reported goes to the clipping server one by one, whether or not uploads are summed in secret."""
        return self.statistic.beside(self.threat, SECURE_SUM)

    def claim(self, participations: int, delta: float) -> claimed.Claim:
        return claimed.adpfl([self.epsilon], self.options.claimed_delta)

    def remarks(self) -> tuple[str, ...]:
        words = "the paper adds nothing up over rounds: its epsilon is of one round"
        if self.repaired:
            return (*super().remarks(), words, *self._noise_of_norms())
        return (words, self._gaussian_part())

    def _noise_of_norms(self) -> tuple[str, ...]:
        """How much the threshold can know of the norms."""
        if CLIP_REPORTED_NORM not in self.statistic.names or self.statistic.noise is None:
            return ()
        std, most = self.statistic.noise * self.options.norm_bound, self.options.norm_bound
        drowned = "C and eps_i follow the noise rather than the norms" if std > most / 4 else "C can follow them"
        return (f"reported norms carry noise of standard deviation {std:.3g} on a range of 0 to {most:g}: {drowned}",)

    def _gaussian_part(self) -> str:
        """What the published noise would be worth if nothing else were told."""
        from fedpriv.privacy.composition import compose  # loads the accountants

        rounds = self.facts.num_rounds

        def epsilon(uploads: int) -> float:
            multiplier = math.sqrt(uploads) * self.noise_multiplier / 2
            event = Gaussian(threat=self.threat, multiplier=multiplier, count=rounds)
            return compose([event], self.options.claimed_delta).epsilon

        return (
            f"as if every C^t and eps_i were public, the noise alone would give epsilon {epsilon(1):.0f} over {rounds} "
            f"rounds (an upload moves by 2 C^t, not by 2 C^t / N), and {epsilon(self.noises):.0f} to whoever sees "
            f"only sums with the noises of {self.noises} uploads (min_replies minus colluders)"
        )
