"""FedOnce, client half (a method of this project; its release is that of Bhowmick et al. 2018, Asi et al. 2022).

A client trains the server's model to the end on its own examples and sends the direction of what it learned, once,
through a mechanism for unit vectors; the server sees each release; nobody needs to be trusted. With
``strategy.server.participation=once`` a client's whole epsilon goes into its one message.

Symbols: eps -> epsilon (of one release), Z [n, d] -> a client's features, W [C, d] -> theta, A -> coefficients.
Published and repaired are the same. Local training: `fedpriv.training.full_batch`.
"""

from __future__ import annotations

from dataclasses import replace

from fedpriv.client.unit_vector import UnitVectorClient
from fedpriv.config.methods import FedOnceOptions


class FedOnceClient(UnitVectorClient):
    """Options: as `UnitVectorClient`. A client without examples, or that learns nothing, sends a fixed direction."""

    options: FedOnceOptions
    traits = replace(UnitVectorClient.traits, whole_batches=True)
