"""FedVF, client half.

Y. Mei, B. Guo, D. Xiao, W. Wu: FedVF: Personalized Federated Learning Based on Layer-wise Parameter Updates with
Variable Frequency. IPCCC 2021.

Nobody adds noise; the server sees every update of the base, and every ``head_period`` rounds the heads, as they are.

Our reading, from what ADP-FL says of it: base blocks are aggregated in every round, head blocks in rounds P, 2P, ...
and local in between. The mean of the heads comes down in the round after, to those who take part in it; a client that
misses that round goes on with its own head. With P = 1 this is FedAvg.

Symbols: P -> head_period.
"""

from __future__ import annotations

from fedpriv.client.base import Client
from fedpriv.client.personal import PersonalClient
from fedpriv.config.methods import FedVFOptions
from fedpriv.training.flat_model import Layers, Layout


class FedVFClient(Client):
    """The last ``head_layers`` named blocks (None: two, or one of a model of two) are the head."""

    options: FedVFOptions
    traits = PersonalClient.traits

    def layers(self, layout: Layout, server_round: int) -> Layers:
        """The server holds both parts. The head goes up in rounds P, 2P, ..., and comes down in rounds P + 1, 2P + 1,
        ...; its values, because local heads have no common start.
        """
        head = layout.last_blocks(self.options.head_layers, "strategy.client.head_layers")
        base, whole = slice(0, head.start), slice(0, layout.num_parameters)
        head_down = server_round > 1 and (server_round - 1) % self.options.head_period == 0
        head_up = server_round % self.options.head_period == 0
        return Layers(whole if head_down else base, whole if head_up else base, head, held=whole, absolute=head)
