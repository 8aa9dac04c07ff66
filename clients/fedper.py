"""FedPer, client half.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary: Federated Learning with Personalization Layers. 2019
(arXiv:1912.00818).

Nobody adds noise; the server sees every update of the base layers as it is, and nothing of the personal ones.

Symbols: W_B -> the base layers, which are shared; W_P -> the personal layers; K_P -> personal_layers.
"""

from fedpriv.client.base import LastBlocksStay


class FedPerClient(LastBlocksStay):
    """Releases the update of the base layers as it is."""
