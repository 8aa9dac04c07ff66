"""FedOnce, client half (a method of this project; its release is that of Bhowmick et al. 2018, Asi et al. 2022).

A client trains the server's model to the end on its own pictures and sends the direction of what it learned, once,
through a mechanism for unit vectors; the server sees each release; nobody needs to be trusted. With
``strategy.server.participation=once`` a client's whole epsilon goes into its one message.

Symbols: eps -> epsilon (of one release), Z [n, d] -> a client's features, W [C, d] -> theta, A -> coefficients.
Published and repaired are the same. Local training: `fedpriv.training.full_batch`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedpriv.client.contract import RunFacts
from fedpriv.client.unit_vector import UnitVectorClient
from fedpriv.config.unit_methods import FedOnceClientOptions
from fedpriv.training.full_batch import FullBatchTrainer
from fedpriv.training.sequential import SequentialTrainer


class FedOnceClient(UnitVectorClient):
    """Options: as `UnitVectorClient`. A client without pictures, or that learns nothing, sends a fixed direction."""

    options: FedOnceClientOptions

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        if self.site is not None and isinstance(self.site.trainer, SequentialTrainer):
            self.site = replace(self.site, trainer=FullBatchTrainer(self.site.trainer))
