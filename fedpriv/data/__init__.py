"""Examples read, encoded, cached, split and divided among clients. `fedpriv.data.load` does all of it."""

from __future__ import annotations

from fedpriv.data.types import Dataset, Examples, FederatedData, Partition, ResampledPartition

__all__ = ["Dataset", "Examples", "FederatedData", "Partition", "ResampledPartition"]
