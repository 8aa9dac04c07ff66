"""Pictures found, decoded, cached, split and divided among clients. `fedpriv.data.load` does all of it."""

from __future__ import annotations

from fedpriv.data.types import Dataset, FederatedData, Partition, Pictures, ResampledPartition

__all__ = ["Dataset", "FederatedData", "Partition", "Pictures", "ResampledPartition"]
