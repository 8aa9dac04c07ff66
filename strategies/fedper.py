"""FedPer, server half (Arivazhagan et al. 2019): federated averaging of the base layers, all that it ever sees.

Nobody adds noise; the server sees every update of the base layers as it is, and nothing of the personal ones.
"""

from fedpriv.server.strategy import FederatedStrategy


class FedPer(FederatedStrategy):
    """theta <- theta + sum n_k/n Delta_k over the replies that arrived; theta is the base."""
