"""The shared bases of the clients that clip their update and add Gaussian noise (of ddgauss and skellam: whole-number
noise in a sum), under any rule that moves C.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.clip_statistics import ClipStatistic, Measured, clip_statistic
from fedpriv.client.contract import Charge, Neighbours, Release, RunFacts, Statistics, Trained, UnsafeClipNorm
from fedpriv.client.memory import WithNorms
from fedpriv.client.method import Traits
from fedpriv.client.summing import SummingClient
from fedpriv.common.messages import CLIP_NORM, STATISTICS, TRAIN, Request, shown
from fedpriv.common.seeds import public_signs
from fedpriv.config.methods import ClippingOptions, WholeGaussianOptions
from fedpriv.mechanisms.noise import NoiseSource, clip, l2_norm
from fedpriv.mechanisms.whole_numbers import Law
from fedpriv.privacy.events import CLIENT_TO_SERVER, SECURE_SUM, Event, Threat
from fedpriv.privacy.sum_grid import SumGrid


def split_state(state: Any) -> tuple[Any, Tensor | None]:
    """(the method's own state, the window of norms)."""
    return (state.method, state.norms) if isinstance(state, WithNorms) else (state, None)


def joined_state(method: Any, norms: Tensor | None) -> Any:
    return method if norms is None else WithNorms(method, norms)


class GaussianClient(Client):
    """Base of the clients that clip their update to ``clip_norm`` and add Gaussian noise.

    A method says what it releases at the C of this participation (`perturb`) and what that costs (`charges`). How C
    moves is the server's rule (`fedpriv.server.clip_rules`); here is the client's side of it: the announced C is
    checked and taken, and the rule's statistic leaves beside the release, with its own charges. Noise is at least
    noise_multiplier * C, so C changes no event of the release.
    """

    options: ClippingOptions
    #: Whether the (noisy) norm is needed whatever the rule is.
    reports_norm: bool = False

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        self.clip_norm = self.first_clip_norm  # of this participation

    @property
    def first_clip_norm(self) -> float:
        return self.options.clip_norm

    @cached_property
    def noise_multiplier(self) -> float:
        """The paper's sigma: noise standard deviation / clip_norm, per coordinate."""
        return self.options.noise_multiplier

    @cached_property
    def statistic(self) -> ClipStatistic:
        """What the server's rule asks for beside a release."""
        return clip_statistic(self.options, self.variant, self.noise_multiplier, self.reports_norm)

    @property
    def statistics(self) -> Statistics:
        return self.statistic.beside(self.threat)

    # --- the round's C -----------------------------------------------------------------------------------

    def prepare(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        """Takes the announced C^t. Raises `UnsafeClipNorm` for anything outside the public bounds."""
        announced = request.options.get(CLIP_NORM, self.first_clip_norm)
        if isinstance(announced, bool) or not isinstance(announced, int | float) or not math.isfinite(announced):
            raise UnsafeClipNorm(f"the server announces the clip norm {shown(announced)}")
        fixed = self.options.clipping == "fixed"
        bounds = (self.options.floor, self.options.norm_bound)  # the smallest and largest C that is accepted
        least, most = (self.first_clip_norm,) * 2 if fixed else bounds
        if not least * (1 - 1e-9) <= announced <= most * (1 + 1e-9):
            raise UnsafeClipNorm(
                f"the server announces the clip norm {announced:g}, this client takes {least:g} to {most:g}"
            )
        self.clip_norm = self.first_clip_norm if fixed else float(announced)

    # --- what leaves, and what it costs ------------------------------------------------------------------

    def perturb(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        """The method's own release [..., d] at the C of this participation, from the update [..., d] and its state."""
        return Release(update, state)

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        method, norms = split_state(state)
        release = self.perturb(update, method, noise)
        measured = self.measure(update, norms, noise)
        return replace(release, state=joined_state(release.state, measured.norms), statistics=measured.statistics)

    def measure(self, update: Tensor, norms: Tensor | None, noise: NoiseSource) -> Measured:
        """The rule's statistics of an update [..., d], and the window of norms [..., n] that it leaves."""
        if not self.statistic.names:
            return Measured({})
        return self.statistic.measure(l2_norm(update), self.clip_norm, norms, noise)

    def remarks(self) -> tuple[str, ...]:
        if self.statistic.in_words is None:
            return ()
        return (
            f"clipping={self.options.clipping}: beside every update a client sends {self.statistic.in_words}, which "
            "the guarantee counts and the paper's formula does not",
        )

    # --- what the auditor tries --------------------------------------------------------------------------

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        """Besides the pair that moves the update most, those that move the statistic most."""
        return [
            *super().worst_case_pairs(participations),
            *(
                Neighbours(name, (first,) * participations, (second,) * participations)
                for name, first, second in self.statistic.pairs(self.clip_norm)
            ),
        ]


class TwoExchangeClient(GaussianClient):
    """Base of clients that are asked twice in a round: for statistics of their update, then for its release.

    Between the two exchanges the raw update stays in the client's own memory. What was reported is booked when it
    leaves, so a client that drops out before its release is charged for its statistics alone; in its next round it
    trains anew. Statistics come first (`measure`), then the release of the same update (`perturb`), whose noise may
    depend on what was reported (``reported``, by name; [] or [...] for trials).
    """

    traits = Traits(exchanges=(STATISTICS, TRAIN))

    def releasing(self, theta: Tensor, trained: Trained, state: Any, noise: NoiseSource) -> Release:
        """First the statistics, and the update as it is, which stays with the client; then the release."""
        method, norms = split_state(state)
        if self.measuring:
            measured = self.measure(trained.sent, norms, noise)
            after = joined_state(method, measured.norms)
            return self.released(trained, Release(trained.sent, after, statistics=measured.statistics))
        release = self.perturb(trained.sent, method, noise)
        return self.released(trained, replace(release, state=joined_state(release.state, norms)))

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        """Both exchanges at once, at a C that does not move in between: what the auditor attacks."""
        method, norms = split_state(state)
        measured = self.measure(update, norms, noise)
        self.reported = measured.statistics
        release, self.reported = self.perturb(update, method, noise), {}
        return Release(release.value, joined_state(release.state, measured.norms), release.figures, measured.statistics)


# --- ddgauss and skellam --------------------------------------------------------------------------------------


class WholeGaussianClient(SummingClient, GaussianClient):
    """Clip, rotate, round to whole numbers, add whole-number noise: the noises of a sum's clients add up. What moves
    the clip norm (a bit, a norm) is a number in the same sum, so that it costs what a sum's number costs.

    Against whoever sees sums: `noises` clients' noise. Against a server that sees a client's own numbers, which it
    cannot while the secure sum holds: its own noise alone.

    There is one variant: what is reported beside the vector always has noise.
    """

    options: WholeGaussianOptions  # type: ignore[assignment]
    traits = Traits(needs_facts=True)
    threat = SECURE_SUM
    #: Of the noise.
    law: ClassVar[Law] = "gaussian"

    @cached_property
    def statistic(self) -> ClipStatistic:
        return clip_statistic(self.options, "repaired", self.noise_multiplier, False)

    @cached_property
    def grid(self) -> SumGrid:
        levels = (self.statistic.noise,) if self.statistic.noise is not None else ()
        return SumGrid(
            self.law,
            max(1, self.facts.num_parameters),
            self.facts.clients_per_round,
            self.bits,
            self.noise_multiplier,
            levels,
        )

    def numbers(self, size: int) -> int:
        return self.grid.numbers

    # --- the release ---------------------------------------------------------------------------------------

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        clipped = clip(update, self.clip_norm)  # [Kairouz et al. 2021, Algorithm 1]
        signs = torch.from_numpy(public_signs(self._site().seed, self.round, self.grid.padded)).double()
        told = self.statistic.shares(l2_norm(update), self.clip_norm) if self.statistic.names else {}
        numbers = self.grid.whole_numbers(clipped.double() / self.clip_norm, list(told.values()), signs, noise)
        std = self.noise_multiplier * self.clip_norm
        norms = l2_norm(clipped)
        return Release(numbers, None, {"clipped_norm": norms, "noise_norm": std * math.sqrt(self.grid.padded)})

    # --- what it costs -------------------------------------------------------------------------------------

    @property
    def share(self) -> float:
        """The part of delta that the bound of one release may use up."""
        return 0.5

    def charges(self, state: Any) -> tuple[Charge, ...]:
        return self._charges

    @cached_property
    def _charges(self) -> tuple[Charge, ...]:
        """Of every participation: no clip norm changes them."""
        return tuple(Charge(event) for threat in (SECURE_SUM, CLIENT_TO_SERVER) for event in self._events(threat))

    def _events(self, threat: Threat) -> list[Event]:
        """Of one participation's numbers, against an observer."""
        grid, noises = self.grid, self.noises
        own = [grid.event(threat, noises, self.share)]
        return [*own, *(grid.statistic_event(threat, level, noises, self.share) for level in grid.statistics)]

    def remarks(self) -> tuple[str, ...]:
        grid = self.grid
        said: tuple[str, ...] = (
            f"a number takes {self.bits} bits, its noise is {grid.sigma:.3g} steps of the grid, and rounding makes a "
            f"vector {math.sqrt(grid.most_square) * grid.step - 1:.2%} longer",
        )
        if self.noises == 1:
            said += ("sums with a single unknown noise: strategy.server.min_replies says how many there are at least",)
        return said

    # --- what the auditor tries ------------------------------------------------------------------------------

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """The smallest sum that is ever opened, less what colluders know of it: one client's whole numbers, from the
        longest vector that they can be, spread evenly over the coordinates of a trial, and the noise of the others,
        whose vectors the attacker knows. In units of the sum's noise; float [trials, d + statistics].
        """
        grid, trials, longest = self.grid, shape[0], math.sqrt(self.grid.most_square)
        along = math.copysign(min(1.0, abs(length)), length) * longest * (1 - 1e-12) / math.sqrt(shape[1])
        steps = torch.full(shape, math.trunc(along) if abs(along) >= 1 else along, dtype=torch.float64)
        total = grid.noisy(steps, noise) + grid.noise(grid.sigma, shape, noise, self.noises - 1)
        seen = [total.double() / (math.sqrt(self.noises) * grid.sigma or 1.0)]
        norm = torch.full((trials,), abs(length) * self.clip_norm, dtype=torch.float64)
        shares = self.statistic.shares(norm, self.clip_norm)
        for share, level in zip(shares.values(), grid.statistics, strict=True):
            steps_of = level * grid.statistic_steps(level)
            number = grid.noisy_share(share, level, noise) + grid.noise(steps_of, (trials,), noise, self.noises - 1)
            seen.append((number.double() / (math.sqrt(self.noises) * steps_of)).unsqueeze(1))
        return Release(torch.cat(seen, dim=1).float(), state)
