"""LG-FedAvg, client half.

P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P. Morency: Think Locally,
Act Globally: Federated Learning with Local and Global Representations. 2020 (arXiv:2001.01523).

Nobody adds noise; the server sees every update of the head as it is, and nothing of the layers below it.

Symbols: the local representation -> the lower blocks; the global model -> the last ``head_layers`` blocks. Local and
global parts are trained together; the paper's auxiliary losses on the local representation are left out.
"""

from __future__ import annotations

from fedpriv.client.base import PersonalClient
from fedpriv.config.methods import HeadOptions
from fedpriv.training.flat_model import Layout


class LGFedAvgClient(PersonalClient):
    """All but the last ``head_layers`` named blocks stay local (None: two shared, or one of a model of two)."""

    options: HeadOptions

    def shared_blocks(self, layout: Layout) -> slice:
        return layout.last_blocks(self.options.head_layers, "strategy.client.head_layers")
