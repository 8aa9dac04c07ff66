"""DP-FedSNLC, server half: the baseline of DP-FedAGS that judges a coordinate by the change of the local loss.

The client adds the noise; the server sees each client's gradient and knows who took part; nobody needs to be trusted.
"""

from __future__ import annotations

from fedpriv.config.methods import DPFedSNLCOptions
from fedpriv.mechanisms.significance import top_count
from fedpriv.server.gradient import SelectingServer


class DPFedSNLC(SelectingServer):
    """theta <- theta - eta sum_k (n_k/n) g_k. share: of the coordinates that a client sends, if it is repaired."""

    options: DPFedSNLCOptions

    def count(self, dimension: int, server_round: int) -> int:
        return top_count(self.options.share, dimension)
