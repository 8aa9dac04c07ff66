"""The client's side of a secure sum: a release becomes whole numbers modulo 2^bits, of which only sums are of use.

A method's `release` gives whole numbers (int64 [n], of any size); here they are reduced and packed. How much one of
them says of the client is the business of `strategy.secure_sum`:

- ``assumed``: the server gets them one by one; the figure for an observer of sums is what a secure sum would give.
- ``ideal``: the server adds them modulo 2^bits and uses nothing but the sum, in the open.
- ``protocol``: masks are added (`SummingClient.masked`) that cancel in the sum of those who stay.

The two last give the same model, bit for bit.

`RowSumClient` is the shared base of dpsum and ask: sums over a site's rows (persons), on the grid of
`fedpriv.privacy.sum_grid`.

form=ddgauss, skellam: the sites add the noise, each its share; a secure sum hides their numbers from everybody; the
server and whoever looks on learn the noisy sum over those who stayed. `min_replies` is the floor below which no sum
is opened, and `colluders` of these may tell their noise.
form=central: the server is trusted; it adds one Gaussian to the sum; outsiders see what it makes of the sum.
form=local: each site adds its own Gaussian; the server sees each site's noisy sum; nobody needs to be trusted.

Why it costs what it does. A site's whole numbers move by at most l2 grid steps when a row is added or removed (proof:
`fedpriv.privacy.sum_grid`, given how far the method's sum moves), and those of other sites do not move. The opened sum
has the noises of at least k sites that the observer does not know, all independent of the data: a round is one release
of discrete Gaussian or Skellam noise of k sites with that sensitivity, and rounds compose adaptively. More survivors
add more noise, which is post-processing. With Gaussian noise (central, local) a round is one Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.contract import Charge, Neighbours, Release, RunFacts, Statistics, Trained
from fedpriv.client.method import Traits, on_all_axes
from fedpriv.common.messages import SUM_EXCHANGES, Outgoing, Request
from fedpriv.config.methods import ModularOptions, RowSumOptions
from fedpriv.mechanisms.integer_noise import Residues, pack_residues, packed_size, to_residues
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.privacy.events import Threat
from fedpriv.privacy.sum_grid import RowSumGrid, delta_share

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


# --- dpsum and ask ---------------------------------------------------------------------------------------------

EXAMPLE_IN_SUM = Threat("example", "add-or-remove-one", "secure-sum")


class RowSumClient(SummingClient):
    """A sum over its rows, on the grid, modulo 2^bits; plus its share of the noise, or all of it, or none."""

    options: RowSumOptions  # type: ignore[assignment]
    traits = Traits(needs_facts=True, clips_examples=True)
    threat = EXAMPLE_IN_SUM

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        self.whole = self.options.whole
        if not self.whole:
            observer = "server" if self.options.form == "local" else "trusted-server"
            self.threat = replace(self.threat, observer=observer)  # its unit may be a person

    # --- what a method says --------------------------------------------------------------------------------

    def excess(self, rows: int) -> float:
        """How much longer than the clip bound one row of so many may be, in its units."""
        return 0.0

    # --- the grid ------------------------------------------------------------------------------------------

    @property
    def noise_multiplier(self) -> float:
        return self.options.noise_multiplier

    @cached_property
    def grid(self) -> RowSumGrid:
        facts, options = self.facts, self.options
        size, rows, sites = max(1, facts.num_parameters), facts.total_examples, facts.clients_per_round
        return RowSumGrid(options.form, size, rows, sites, self.bits, self.noise_multiplier)

    @property
    def in_sum(self) -> bool:
        return self.options.form != "local"

    def numbers(self, size: int) -> int:
        return size

    def release_bytes(self, size: int, server_round: int = 1) -> int:
        return super().release_bytes(size, server_round) if self.in_sum else 4 * size

    def leaving(self, total: Tensor, noise: NoiseSource) -> Tensor:
        """What leaves a site of its sums [..., d] in units of the bound."""
        if self.whole:
            return self.grid.whole_numbers(total, noise)
        whole = self.grid.whole(total)
        return (self.grid.noisy(whole, noise) / self.grid.steps).float() if self.options.form == "local" else whole

    # --- what it costs (unit example, add-or-remove-one) -----------------------------------------------------

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """Whole-number noise: against whoever sees sums, and against a server that sees a site's own numbers (one
        noise). Gaussian noise: against the server (local), or outsiders (central: of rows at any site, so that its
        rounding is that of a site with all rows). A row (person) at S sites: `fedpriv.privacy.sum_grid`.
        """
        options, facts, across = self.options, self.facts, self.run.across_sites
        of_all = options.form == "central" or across > 1  # S sites' events must be alike
        longer = self.excess(facts.total_examples if of_all else facts.num_examples)
        if options.form == "central":
            return (Charge(self.grid.gaussian_event(self.threat, options.rate, longer, across)),)
        if options.form == "local":
            return (Charge(replace(self.grid.gaussian_event(self.threat, options.rate, longer), count=across)),)
        share = delta_share(options.claimed_delta, facts.num_rounds)
        alone = self.grid.event(replace(self.threat, observer="server"), 1, share / across, longer)
        return (
            Charge(self.grid.event(self.threat, self.noises, share, longer, across)),
            Charge(replace(alone, count=across)),
        )

    def remarks(self) -> tuple[str, ...]:
        grid = self.grid
        said: tuple[str, ...] = (
            f"a number takes {self.bits} bits, a noise is {grid.sigma:.3g} steps of the grid, and rounding "
            f"makes what an example changes {grid.l2() / grid.steps - 1:.2%} longer",
        )
        if self.whole and self.noises == 1:
            said += ("sums with a single unknown noise: strategy.server.min_replies says how many there are at least",)
        return said

    # --- what the auditor tries ------------------------------------------------------------------------------

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        return [Neighbours("an example more", (0.0,) * participations, (1.0,) * participations)]

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """The smallest sum that is ever opened, less what colluders know of it: one row's vector, of length 1 at most
        in units of the bound, beside others' that are just below a border between two whole numbers in every
        coordinate, and the noise of `noises` sites, or the one Gaussian. In units of the sum's noise; float [trials,
        d]; of form=local those of all S sites that hold the row (`privacy.across_sites`), [trials, S d].
        """
        grid, clipped = self.grid, math.copysign(min(1.0, abs(length)), length)
        mine = on_all_axes(clipped, shape, self.audit_axes).double()

        def site() -> Tensor:
            there = noise.uniform(shape[0]) < self.options.rate if self.options.rate < 1 else torch.ones(shape[0]) > 0
            return grid.whole(mine * there.unsqueeze(1) + (0.5 - 1e-6) / grid.steps)

        sites = [site() for _ in range(self.run.across_sites)]
        if self.options.form == "local":
            return Release(torch.cat([grid.noisy(one, noise) for one in sites], -1).div(grid.sigma or 1).float(), state)
        numbers = torch.stack(sites).sum(0)
        if not self.whole:
            return Release((grid.noisy(numbers, noise) / (grid.sigma or 1.0)).float(), state)
        for _ in range(self.noises):
            numbers = numbers + grid.noise(numbers.shape, noise)
        return Release((numbers.double() / (math.sqrt(self.noises) * grid.sigma or 1.0)).float(), state)
