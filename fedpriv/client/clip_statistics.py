"""What a client sends beside its release so that the server can move the clip norm C, and what that costs.

One class per rule of `strategy.server.clipping` (published adp: `clients/adpfl.py`). A statistic is a release of its
own: it has its noise, its event in the ledger, and pairs of neighbours with which the auditor reaches it. Unit client,
replace-one.

Symbols: sigma_b -> count_noise, z_n -> norm_noise, B -> norm_bound, S_w -> window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedpriv.client.contract import Charge, Statistics
from fedpriv.common.messages import CLIP_BIT, CLIP_REPORTED_NORM
from fedpriv.config.halves import locate
from fedpriv.config.methods import ClippingOptions
from fedpriv.mechanisms.clip_thresholds import NOISE_SHARE
from fedpriv.mechanisms.noise import ROUNDING, NoiseSource, add_normal
from fedpriv.privacy.events import SECURE_SUM, Event, Gaussian, NoBound, Threat

EXACT_NORM = "as published: each client sends the norm of its update, without noise"


class Measured(NamedTuple):
    """The statistics [...] by their names in the reply, and what the client remembers of its norms [..., n], if so."""

    statistics: dict[str, Tensor]
    norms: Tensor | None = None


class ClipStatistic:
    """Base, and all that ``fixed`` and ``geometric`` need: nothing is sent."""

    names: tuple[str, ...] = ()
    #: Standard deviation in units of the sensitivity; None where nothing is drawn.
    noise: float | None = None
    #: For the remark beside a paper's claim, which does not count it; None where the event's own reason says enough.
    in_words: str | None = None

    def measure(self, norm: Tensor, clip_norm: float, norms: Tensor | None, noise: NoiseSource) -> Measured:
        """From the norm [...] of the whole update (float64), the round's C, and the window of earlier norms."""
        return Measured({})

    def shares(self, norm: Tensor, clip_norm: float) -> dict[str, Tensor]:
        """What is measured, without noise, as numbers [...] of [0, 1] that mean the same in a sum of clients."""
        return {}

    def events(self, threat: Threat) -> list[Event]:
        """The price of one participation's statistic, the same whatever the data and C are."""
        return []

    def beside(self, *threats: Threat) -> Statistics:
        """Its names, and what it costs under these threats: a statistic that has no bound is sent as it is."""
        events = [event for threat in threats for event in self.events(threat)]
        return Statistics(self.names, tuple(Charge(event, exact=isinstance(event, NoBound)) for event in events))

    def events_in_sum(self, noises: int) -> list[Event]:
        """The price against an observer of a round's sum, with so many noises that it does not know: one by one, unless
        the rule needs nothing but the sum.
        """
        return self.events(SECURE_SUM)

    def pairs(self, clip_norm: float) -> Sequence[tuple[str, float, float]]:
        """(name, length in world 0, length in world 1), in units of C, that move the statistic most."""
        return ()


class NoisyBit(ClipStatistic):
    """quantile: 1[norm <= C] + N(0, sigma_b^2). One client moves its bit by 1.

    The rule reads the mean of the bits and nothing else [Andrew et al. 2021, Algorithm 1], so under a secure sum the
    bit is one more coordinate of what is summed. Given the earlier sums, C and with it the others' bits are fixed: one
    client's data move the sum by at most 1, under the noises of all, as in `Gaussian.in_sum`.
    """

    names = (CLIP_BIT,)
    in_words = "a noisy bit (was the update shorter than C?)"

    def __init__(self, noise: float) -> None:
        self.noise: float = noise

    def measure(self, norm: Tensor, clip_norm: float, norms: Tensor | None, noise: NoiseSource) -> Measured:
        bit = self.shares(norm, clip_norm)[CLIP_BIT]
        return Measured({CLIP_BIT: add_normal(bit, self.noise, noise)})  # [Andrew et al. 2021, section 2.1]

    def shares(self, norm: Tensor, clip_norm: float) -> dict[str, Tensor]:
        return {CLIP_BIT: (norm <= clip_norm).float()}

    def events(self, threat: Threat) -> list[Event]:
        return [Gaussian(threat=threat, multiplier=self.noise)]

    def events_in_sum(self, noises: int) -> list[Event]:
        return [Gaussian(threat=SECURE_SUM, multiplier=self.noise).in_sum(noises)]

    def pairs(self, clip_norm: float) -> Sequence[tuple[str, float, float]]:
        return [("opposite updates, one within C and one beyond", 1 - ROUNDING, -3.0)]


class NoisyNorm(ClipStatistic):
    """adp, repaired: n_i = min(norm, B) + N(0, (z_n B)^2). One client moves its norm by B."""

    names = (CLIP_REPORTED_NORM,)
    in_words = "the noisy norm of the update"

    def __init__(self, noise: float, norm_bound: float) -> None:
        self.noise: float = noise
        self.norm_bound = norm_bound

    def measure(self, norm: Tensor, clip_norm: float, norms: Tensor | None, noise: NoiseSource) -> Measured:
        # In units of B: a share is at most 1 in float32 too, and B times a noisy share is post-processing.
        share = self.shares(norm, clip_norm)[CLIP_REPORTED_NORM]
        return Measured({CLIP_REPORTED_NORM: self.norm_bound * add_normal(share, self.noise, noise)})

    def shares(self, norm: Tensor, clip_norm: float) -> dict[str, Tensor]:
        return {CLIP_REPORTED_NORM: torch.clamp(norm / self.norm_bound, max=1.0).float()}

    def events(self, threat: Threat) -> list[Event]:
        return [Gaussian(threat=threat, multiplier=self.noise)]

    def pairs(self, clip_norm: float) -> Sequence[tuple[str, float, float]]:
        longest = self.norm_bound / clip_norm
        return [
            ("no update against the longest", 0.0, longest),
            ("opposite updates, one of the longest", 1.0, -longest),
        ]


class ExactNorm(ClipStatistic):
    """The norm as it is: what published ADP-FL needs beside any rule, to divide a round's budget."""

    names = (CLIP_REPORTED_NORM,)

    def measure(self, norm: Tensor, clip_norm: float, norms: Tensor | None, noise: NoiseSource) -> Measured:
        return Measured({CLIP_REPORTED_NORM: norm})

    def events(self, threat: Threat) -> list[Event]:
        return [NoBound(threat=threat, reason=EXACT_NORM)]


class Together(ClipStatistic):
    """Two statistics of one update, one after the other, each at its own price."""

    def __init__(self, first: ClipStatistic, second: ClipStatistic) -> None:
        self.parts = (first, second)
        self.names = (*first.names, *second.names)
        self.noise = max((part.noise for part in self.parts if part.noise is not None), default=None)
        self.in_words = " and ".join(part.in_words for part in self.parts if part.in_words) or None

    def measure(self, norm: Tensor, clip_norm: float, norms: Tensor | None, noise: NoiseSource) -> Measured:
        found, window = dict[str, Tensor](), None
        for part in self.parts:
            measured = part.measure(norm, clip_norm, norms, noise)
            found |= measured.statistics
            window = measured.norms if window is None else window
        return Measured(found, window)

    def events(self, threat: Threat) -> list[Event]:
        return [event for part in self.parts for event in part.events(threat)]

    def events_in_sum(self, noises: int) -> list[Event]:
        return [event for part in self.parts for event in part.events_in_sum(noises)]

    def pairs(self, clip_norm: float) -> Sequence[tuple[str, float, float]]:
        return [pair for part in self.parts for pair in part.pairs(clip_norm)]


def clip_statistic(
    options: ClippingOptions, variant: str, noise_multiplier: float, reports_norm: bool
) -> ClipStatistic:
    """The statistic of a rule; a noise that is None costs at most a tenth of the release.

    reports_norm: the norm is needed as well, whatever the rule needs.
    """
    default = NOISE_SHARE * noise_multiplier
    noisy_norm = NoisyNorm(default if options.norm_noise is None else options.norm_noise, options.norm_bound)
    if options.clipping == "quantile":
        rule: ClipStatistic = NoisyBit(default if options.count_noise is None else options.count_noise)
    elif options.clipping == "adp":
        printed: type[ClipStatistic] = locate("clients.adpfl.ExactChange", "strategy.server.clipping")
        rule = printed(options.window) if variant == "published" else noisy_norm  # type: ignore[call-arg]
    else:
        rule = ClipStatistic()
    if not reports_norm or CLIP_REPORTED_NORM in rule.names:
        return rule
    return Together(rule, ExactNorm() if variant == "published" else noisy_norm)
