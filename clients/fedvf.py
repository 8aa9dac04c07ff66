"""FedVF, client half.

Y. Mei, B. Guo, D. Xiao, W. Wu: FedVF: Personalized Federated Learning Based on Layer-wise Parameter Updates with
Variable Frequency. IPCCC 2021.

Nobody adds noise; the server sees every update of the base, and every ``head_period`` rounds the heads, as they are.

Its abstract has "earlier and later stages": layers are updated "with variable frequency" to personalise in the later
stage, "based on the global features learned in the earlier stage". Our reading of that, and of what ADP-FL says of it:
in the first ``stage`` rounds all blocks are aggregated in every round; after them the base still is, and the head in
rounds P, 2P, ... only. The mean of the heads comes down in the round after, to those who take part in it; a client that
misses that round goes on with its own head. With P = 1 this is FedAvg.

Symbols: P -> head_period.
"""

from __future__ import annotations

from fedpriv.client.base import Client, PersonalClient
from fedpriv.config.methods import FedVFOptions
from fedpriv.training.flat_model import Layers, Layout


class FedVFClient(Client):
    """The last ``head_layers`` named blocks (None: two, or one of a model of two) are the head. When it travels is our
    reading: the abstract has two stages and no rule.
    """

    options: FedVFOptions
    traits = PersonalClient.traits

    def layers(self, layout: Layout, server_round: int) -> Layers:
        """The server holds both parts. The head goes up in the earlier stage's rounds and in P, 2P, ..., and comes down
        in the rounds after these; its values, because local heads have no common start.
        """
        head = layout.last_blocks(self.options.head_layers, "strategy.client.head_layers")
        base, whole = slice(0, head.start), slice(0, layout.num_parameters)
        head_up, head_down = (
            number > 0 and (number <= self.options.stage or number % self.options.head_period == 0)
            for number in (server_round, server_round - 1)
        )
        return Layers(whole if head_down else base, whole if head_up else base, head, held=whole, absolute=head)
