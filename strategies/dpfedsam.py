"""DP-FedSAM, server half: DP-FedAvg's server. The clients alone train otherwise (Shi, Liu, Wei, Shen, Wang, Tao 2023).

form=local: the client adds the noise; the server sees each client's gradient; nobody needs to be trusted.
form=central (the paper's): the server is trusted, samples the clients and adds the noise; outsiders see global models.
"""

from __future__ import annotations

from fedpriv.config.methods import DPFedSAMOptions
from fedpriv.server.gradient import NoisyGradientServer


class DPFedSAM(NoisyGradientServer):
    """theta <- theta - eta times what becomes known of the clients' gradients."""

    options: DPFedSAMOptions
    in_rows = True
