"""FedPer, client half.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary: Federated Learning with Personalization Layers. 2019
(arXiv:1912.00818).

Nobody adds noise; the server sees every update of the base layers as it is, and nothing of the personal ones.

Symbols: W_B -> the base layers, which are shared; W_P -> the personal layers; K_P -> personal_layers.
"""

from __future__ import annotations

from fedpriv.client import Site
from fedpriv.models import Layout
from fedpriv.personal import PersonalClient


class FedPerClient(PersonalClient):
    """The last ``personal_layers`` named blocks stay local (None: two, or one of a model of two)."""

    def __init__(
        self, *, personal_layers: int | None = None, variant: str = "repaired", site: Site | None = None
    ) -> None:
        super().__init__(variant=variant, site=site)
        self.personal_layers = personal_layers

    def shared(self, layout: Layout) -> slice:
        return slice(0, layout.last_blocks(self.personal_layers, "strategy.client.personal_layers").start)
