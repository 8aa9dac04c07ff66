"""PrivUnit, client half (Bhowmick et al. 2018; Feldman and Talwar 2021; Asi, Feldman and Talwar 2022).

The client trains, and sends the direction of its update through a mechanism for unit vectors; the server sees each
release; nobody needs to be trusted. No length leaves the client, so there is nothing to clip.

Symbols: eps -> epsilon (of one release), gamma, p, q, m -> `Cap` gamma, inside, measure, mean; k -> projections.
Published and repaired are the same. mechanism: privunit | projunit | sqkr | gaussian (for comparison).
What each sends and costs: `fedpriv.mechanisms.unit_vectors`; what floating point costs: `fedpriv.mechanisms.privunit`.
"""

from __future__ import annotations

from fedpriv.client.unit_vector import UnitVectorClient
from fedpriv.config.methods import PrivUnitOptions


class PrivUnitClient(UnitVectorClient):
    """Trains as every client does; options: as `UnitVectorClient`."""

    options: PrivUnitOptions
    in_rows = True
