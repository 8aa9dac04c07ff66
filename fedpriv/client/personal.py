"""The shared base of clients that keep some layers of the model for themselves.

The model is an ordered list of named blocks over one flat vector [d]. Only the shared part is ever in a message; the
rest starts at the common initial model, is trained with every participation, and stays in the client's memory.
"""

from __future__ import annotations

from abc import abstractmethod

from fedpriv.client.base import Client
from fedpriv.client.method import Traits
from fedpriv.config.methods import PersonalOptions
from fedpriv.training.flat_model import Layers, Layout


class PersonalClient(Client):
    """Releases the update of the shared layers as it is (no privacy)."""

    traits = Traits(keeps_layers=True)

    @abstractmethod
    def shared_blocks(self, layout: Layout) -> slice:
        """The blocks that travel: the first or the last ones. Raises `OptionError` where none would be left."""

    def layers(self, layout: Layout, server_round: int) -> Layers:
        """The shared blocks down and up in every round; all others are kept."""
        shared, size = self.shared_blocks(layout), layout.num_parameters
        kept = slice(shared.stop, size) if shared.start == 0 else slice(0, shared.start)
        return Layers(shared, shared, kept, shared)


class LastBlocksStay(PersonalClient):
    """The last ``personal_layers`` named blocks stay local (None: two, or one of a model of two)."""

    options: PersonalOptions

    def shared_blocks(self, layout: Layout) -> slice:
        return slice(0, layout.last_blocks(self.options.personal_layers, "strategy.client.personal_layers").start)
