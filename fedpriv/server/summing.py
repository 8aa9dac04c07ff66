"""The server's side of a secure sum: whole numbers of all clients are added modulo 2^bits, and the sum is decoded once.

With ``strategy.secure_sum=ideal`` the server adds what it gets in the open and uses nothing but the sum; with
``protocol`` it cannot do anything else. Weights are uniform, and a round needs ``min_replies`` survivors: the account
counts on their noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray

from fedpriv.common.replies import Reply, Report, Reported
from fedpriv.config.methods import ModularOptions
from fedpriv.config.options import MethodOptions
from fedpriv.mechanisms.integer_noise import Residues, add_residues, centred, unpack_residues
from fedpriv.server.nodes import ClientGrid
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy

if TYPE_CHECKING:
    from fedpriv.server.masked_sum import MaskedSums

#: Stands for the clients of a round where only their sum is known.
EVERYBODY = -1


@dataclass(frozen=True)
class Decoded:
    """What a sum says: the mean of the survivors' releases (float64 [d]), and the means of what was told beside it."""

    mean: NDArray[np.float64]
    statistics: Mapping[str, float] = field(default_factory=dict)


class SummingServer(FederatedStrategy):
    """theta <- theta + mean, or whatever a method makes of `mean`."""

    options: ModularOptions
    in_rows = True

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        if self.in_sum:
            self.decode = cast(Any, self.residues_of)
            self.statistics = ()  # they are numbers in the sum
        self._told: dict[str, float] = {}

    # --- what a method says --------------------------------------------------------------------------------

    @property
    def bits(self) -> int:
        """Of one number on the wire."""
        assert self.options.bits is not None, "a method that leaves bits open chooses them"
        return self.options.bits

    def numbers(self, size: int) -> int:
        """How many whole numbers a client sends about ``size`` coordinates."""
        raise NotImplementedError

    def decode_sum(self, total: NDArray[np.int64], survivors: int, size: int) -> Decoded:
        """What the sum of so many clients' numbers (int64 [n] in [-2^(bits-1), 2^(bits-1))) stands for."""
        raise NotImplementedError

    # --- the exchanges -------------------------------------------------------------------------------------

    @cached_property
    def sums(self) -> MaskedSums:
        """The sums of a protocol that runs."""
        from fedpriv.server.masked_sum import MaskedSums  # cryptography: only where it is needed

        options = cast(MethodOptions, self.options)
        return MaskedSums(self.population, self.options, options.min_replies, self.exchange)

    def configure_train(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: ClientGrid
    ) -> Iterable[Message]:
        if self.options.secure_sum != "protocol":
            return super().configure_train(server_round, arrays, config, grid)
        self.begin(server_round, arrays)
        down, told = self.coming_down(arrays), self.train_options(server_round)
        return self.sums.masked_training(self.current, grid, down, told, self.bits, self.numbers(self._size()))

    @property
    def in_sum(self) -> bool:
        """Whether only the sum is used; not where a secure sum is assumed beside what the server sees."""
        return self.options.secure_sum != "assumed"

    # --- the way in ----------------------------------------------------------------------------------------

    def residues_of(self, client: int, packed: Any) -> Residues:
        """One client's numbers. Raises ValueError for another number of bytes than it must send."""
        return unpack_residues(packed, self.bits, self.numbers(self._size()))

    def numbers_of(self, client: int, packed: Any) -> NDArray[np.int64]:
        """The same as numbers of [-2^(bits-1), 2^(bits-1)): what whoever sees this client's alone makes of them."""
        return centred(self.residues_of(client, packed), self.bits)

    def _size(self) -> int:
        part = self._goes_up()
        return part.stop - part.start

    def mean(self, size: int, replies: Sequence[Reply]) -> NDArray[np.float64]:
        """As decoded from the sum. One pass adds replies as they come; fewer than min_replies end the run there."""
        if not self.in_sum:
            return super().mean(size, replies)
        total = np.zeros(self.numbers(size), np.uint64)
        survivors = []
        for reply in replies:
            add_residues(total, cast(Residues, reply.release), self.bits)
            survivors.append(reply.client)
        opened = self.unmasked(total, survivors)
        found = self.decode_sum(centred(opened, self.bits), len(survivors), size)
        self._told = dict(found.statistics)
        return found.mean

    def unmasked(self, total: NDArray[np.uint64], survivors: Sequence[int]) -> NDArray[np.uint64]:
        """The sum of the survivors' numbers modulo 2^bits, from the sum of what they sent."""
        if self.options.secure_sum != "protocol":
            return total
        return self.sums.unmasked(self.current, total, survivors, self.bits)

    def reported(self, replies: Sequence[Reported]) -> Sequence[Reported]:
        """What a clipping rule learns of a round: one report for everybody, the means."""
        return [Report(EVERYBODY, self._told, 0)] if self._told else []
