"""Servers that learn noisy sums over the rows of sites: the server's side of `dpsum` and `ask`.

With whole-number noise it is trusted with keeping to `min_replies` where the sum is ideal; form=central: it is trusted
and adds the noise itself; form=local: it sees each site's noisy sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray

from fedpriv.common.replies import Reply
from fedpriv.config.methods import RowSumOptions
from fedpriv.privacy.events import EVERY_CLIENT, Entry, PoissonGaussian
from fedpriv.privacy.sum_grid import RowSumGrid
from fedpriv.server.nodes import ClientGrid
from fedpriv.server.round import BudgetsSpent
from fedpriv.server.summing import Decoded, SummingServer


class RowSumServer(SummingServer):
    """Whose `mean` is a round's noisy sum, divided by what `expected` says."""

    options: RowSumOptions  # type: ignore[assignment]

    # --- what a method says --------------------------------------------------------------------------------

    def excess(self, rows: int) -> float:
        """As of the client half."""
        return 0.0

    def expected(self, sites: int) -> float:
        """What a sum of so many sites is divided by."""
        return 1.0

    # --- a round -------------------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> int:
        """Of all sites, as they declare."""
        return sum(self.population.num_examples(client) for client in range(self.population.num_clients))

    def grid(self, size: int) -> RowSumGrid:
        options, sites = self.options, self.population.clients_per_round
        return RowSumGrid(options.form, size, self.rows, sites, options.bits, options.noise_multiplier)

    @property
    def in_sum(self) -> bool:
        return self.options.form != "local"

    @property
    def event(self) -> PoissonGaussian:
        """form=central: of a round, for every client, under the clients' own threat (their unit may be a person)."""
        threat = self.population.threat
        assert threat is not None and threat.observer == "trusted-server"
        grid, across = self.grid(self.current.theta.size), self.population.across_sites
        return grid.gaussian_event(threat, self.options.rate, self.excess(self.rows), across)

    def configure_train(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: ClientGrid
    ) -> Iterable[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        if self.options.form == "central" and not self.hooks.admits(self.event):
            raise BudgetsSpent(f"round {server_round}: the next global model would exceed privacy.max_epsilon")
        return messages

    def numbers(self, size: int) -> int:
        return size

    def decode_sum(self, total: NDArray[np.int64], survivors: int, size: int) -> Decoded:
        grid = self.grid(size)
        if self.options.form != "central":
            return Decoded(grid.decode(total) / self.expected(survivors))
        number, attempt = self.current.number, self.population.attempt
        source = self.population.noise(self.population.seed, -1, number, attempt, "server")
        noisy = grid.noisy(torch.from_numpy(total), source).numpy()
        self.current.figures["server_noise_norm"] = self.options.noise_multiplier * math.sqrt(size)
        self.current.entries = [Entry(number, EVERY_CLIENT, number, attempt, self.event)]
        return Decoded(grid.decode(noisy) / self.expected(survivors))

    def mean(self, size: int, replies: Sequence[Reply]) -> NDArray[np.float64]:
        """The noisy mean over rows of what this round sums (or their sum), in units of the bound."""
        if self.in_sum:
            return super().mean(size, replies)
        total, sites = np.zeros(size), 0
        for reply in replies:
            total += reply.release
            sites += 1
        return total / self.expected(sites)
