"""FedProx, client half.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks.
MLSys 2020.

Nobody adds noise; the server sees every update as it is.

Symbols: mu -> proximal_mu, w^t -> the global parameters that the round starts from.
"""

from __future__ import annotations

from typing import Any

from fedpriv.client.base import Client
from fedpriv.client.contract import LocalRule
from fedpriv.config.methods import FedProxOptions


class FedProxClient(Client):
    """Local SGD on h(w) = F(w) + mu/2 * ||w - w^t||^2.  # [FedProx, eq. 2]

    The trainer adds the term's gradient mu (w - w^t) to every step's gradient. ``proximal_mu = 0`` is FedAvg.
    """

    options: FedProxOptions
    in_rows = True

    def local(self, state: Any) -> LocalRule:
        return LocalRule(self.options.proximal_mu)
