"""FedProx, server half (Li et al., MLSys 2020): the server of federated averaging; the clients differ.

Nobody adds noise; the server sees every update as it is.
"""

from fedpriv.server.strategy import FederatedStrategy


class FedProx(FederatedStrategy):
    """theta <- theta + sum n_k/n Delta_k over the replies that arrived."""
