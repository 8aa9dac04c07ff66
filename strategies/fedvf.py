"""FedVF, server half (Mei et al., IPCCC 2021): base and head are aggregated at different frequencies.

Nobody adds noise; the server sees every update of the base, and every ``head_period`` rounds the heads, as they are.
When the head travels is the clients' rule (clients/fedvf.py, where our reading of the paper is).
"""

from fedpriv.server.strategy import FederatedStrategy


class FedVF(FederatedStrategy):
    """Base: theta <- theta + sum n_k/n Delta_k in every round. Head: theta <- sum n_k/n theta_k in the rounds in which
    the clients send their heads (`Layers.absolute`).
    """
