"""Federated averaging, server half (McMahan et al., AISTATS 2017).

Nobody adds noise; the server sees every update as it is.
"""

from fedpriv.server.strategy import FederatedStrategy


class FedAvg(FederatedStrategy):
    """theta <- theta + sum n_k/n Delta_k over the replies that arrived."""
