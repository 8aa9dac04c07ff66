"""Federated averaging, client half.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017.

Nobody adds noise; the server sees every update as it is.
"""

from fedpriv.client.base import Client


class FedAvgClient(Client):
    """Local SGD; the update is released as it is."""

    in_rows = True
