"""LG-FedAvg, server half (Liang et al. 2020): federated averaging of the head, all that it ever sees.

Nobody adds noise; the server sees every update of the head as it is, and nothing of the layers below it.
"""

from fedpriv.server.strategy import FederatedStrategy


class LGFedAvg(FederatedStrategy):
    """theta <- theta + sum n_k/n Delta_k over the replies that arrived; theta is the head."""
