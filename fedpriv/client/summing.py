"""The client's side of a secure sum: a release becomes whole numbers modulo 2^bits, of which only sums are of use.

A method's `release` gives whole numbers (int64 [n], of any size); here they are reduced and packed. How much one of
them says of the client is the business of `strategy.secure_sum`:

- ``assumed``: the server gets them one by one; the figure for an observer of sums is what a secure sum would give.
- ``ideal``: the server adds them modulo 2^bits and uses nothing but the sum, in the open.
- ``protocol``: masks are added (`SummingClient.masked`) that cancel in the sum of those who stay.

The two last give the same model, bit for bit.

`WholeGaussianClient` is the shared base of ddgauss and skellam: clip, rotate, round to whole numbers, add whole-number
noise. What moves the clip norm (a bit, a norm) is a number in the same sum, so that it costs what a sum's number costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.clip_statistics import ClipStatistic, clip_statistic
from fedpriv.client.contract import Charge, Release, RunFacts, Statistics, Trained
from fedpriv.client.gaussian import GaussianClient
from fedpriv.client.method import Traits
from fedpriv.common.messages import SUM_EXCHANGES, Outgoing, Request
from fedpriv.common.seeds import public_signs
from fedpriv.config.methods import WholeGaussianOptions
from fedpriv.config.sum_methods import ModularOptions
from fedpriv.mechanisms.integer_noise import Law
from fedpriv.mechanisms.noise import NoiseSource, clip, l2_norm
from fedpriv.mechanisms.whole_numbers import Residues, pack_residues, packed_size, to_residues
from fedpriv.privacy.events import CLIENT_TO_SERVER, SECURE_SUM, Event, Threat
from fedpriv.privacy.sum_grid import SumGrid

if TYPE_CHECKING:
    from fedpriv.client.masked_sum import MaskedSum


class SummingClient(Client):
    """Of a client whose `release` is whole numbers (int64 [..., numbers]), for a sum of all clients' modulo 2^bits."""

    options: ModularOptions

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        if self.options.secure_sum == "protocol":
            self.traits = replace(self.traits, exchanges=SUM_EXCHANGES)

    # --- what a method says --------------------------------------------------------------------------------

    @property
    def bits(self) -> int:
        """Of one number on the wire."""
        assert self.options.bits is not None, "a method that leaves bits open chooses them"
        return self.options.bits

    def numbers(self, size: int) -> int:
        """How many whole numbers a release of ``size`` coordinates has, those beside the vector included."""
        raise NotImplementedError

    # --- the exchanges -------------------------------------------------------------------------------------

    @cached_property
    def sum(self) -> MaskedSum:
        """This client's part in a sum that runs."""
        from fedpriv.client.masked_sum import MaskedSum  # cryptography: only where it is needed

        return MaskedSum(self._site(), self.options)

    def further(self, request: Request) -> Outgoing:
        """KEYS and SHARES before TRAIN, CONFIRM and UNMASK after it. Raises `SumRefused`."""
        return self.sum.answer(request, self.bits, self.numbers(self._length(request)))

    def prepare(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        """In a sum that runs, raises `SumRefused` for another model than the one that was signed."""
        super().prepare(request, down)
        if self.options.secure_sum == "protocol" and down:
            self.sum.expect(request, torch.cat(list(down)).numpy())

    def _length(self, request: Request) -> int:
        """Coordinates of this round's update."""
        layout = self._site().layout
        assert layout is not None, "a client in a sum needs the model's layout"
        part = self.layers(layout, request.round).up
        return part.stop - part.start

    @property
    def in_sum(self) -> bool:
        """Whether only sums are of use to the server; not where a secure sum is assumed beside what it sees."""
        return bool(self.options.secure_sum != "assumed")

    # --- the way out ---------------------------------------------------------------------------------------

    @property
    def noises(self) -> int:
        """Noises in a sum that its observer cannot know: the floor of survivors, less the colluders."""
        return max(1, self.options.min_replies - self.options.colluders)

    @property
    def statistics(self) -> Statistics:
        """None: what else is to be known of a round is a number in the sum."""
        return Statistics()

    def releasing(self, theta: Tensor, trained: Trained, state: Any, noise: NoiseSource) -> Release:
        return self.packed(super().releasing(theta, trained, state, noise))

    @final
    def packed(self, release: Release) -> Release:
        """A release of whole numbers as it leaves: in a sum, packed, and masked where the sum runs."""
        if not self.in_sum:
            return release
        residues, waiting = self.masked(to_residues(release.value.numpy(), self.bits)), None
        if self.options.secure_sum == "protocol":  # a second vector under the same masks would show a difference
            waiting = self.sum.waiting
        return replace(release, value=torch.from_numpy(pack_residues(residues, self.bits)), waiting=waiting)

    def masked(self, residues: Residues) -> Residues:
        """What leaves of a release's residues [n] (uint32 up to 32 bits, uint64 above)."""
        return self.sum.masked(residues) if self.options.secure_sum == "protocol" else residues

    def release_bytes(self, size: int, server_round: int = 1) -> int:
        return packed_size(self.numbers(size), self.bits)


# --- ddgauss and skellam --------------------------------------------------------------------------------------


class WholeGaussianClient(SummingClient, GaussianClient):
    """Against whoever sees sums: `noises` clients' noise. Against a server that sees a client's own numbers, which it
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
        figures = {"clipped_norm": float(l2_norm(clipped)), "noise_norm": std * math.sqrt(self.grid.padded)}
        return Release(numbers, None, figures)

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
