"""The client's side of a secure sum: a release becomes whole numbers modulo 2^bits, of which only sums are of use.

A method's `release` gives whole numbers (int64 [n], of any size); here they are reduced and packed. How much one of
them says of the client is the business of `strategy.secure_sum`:

- ``assumed``: the server gets them one by one; the figure for an observer of sums is what a secure sum would give.
- ``ideal``: the server adds them modulo 2^bits and uses nothing but the sum, in the open.
- ``protocol``: masks are added (`SummingClient.masked`) that cancel in the sum of those who stay.

The two last give the same model, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.contract import Release, RunFacts, Statistics, Trained
from fedpriv.common.messages import SUM_EXCHANGES, Outgoing, Request
from fedpriv.config.sum_methods import ModularOptions
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.residues import Residues, pack_residues, packed_size, to_residues

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
