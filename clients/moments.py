"""One-shot moments, client half: a site's sum of what a linear head has to know of each of its rows.

No paper's own method; the sums are those of one-shot federated learning on public features, with noise. The vector of
a row and its length: `fedpriv.training.moments`. Who adds the noise and who learns what (form):
`fedpriv.client.summing`. A row more or less moves a site's sum by less than 1 - 2^-12: `fedpriv.mechanisms.scaling`,
with a row's vector in place of the row. How many rows stand in a block may move the last bits of a row's length, so of
its vector by less than (k + 4) 2^-52: of 2^16 rows with k <= 2^16 together by 2^-19, which the 2^-12 that is kept back
covers (`clipped_sums.excess` beyond). With unit person a row is a person, who adds the mean of their rows' vectors.

The vector depends on nothing that a server sends: rounds beyond the first release the same sum again, with new noise.

Symbols: sigma -> noise_multiplier (one noise's), k -> noises = min_replies - colluders, R -> `RowSumGrid.steps`.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from clients.ask import AskClient
from fedpriv.client.contract import Release
from fedpriv.client.summing import RowSumClient
from fedpriv.common.messages import Request
from fedpriv.config.methods import MomentsOptions
from fedpriv.mechanisms.clipped_sums import PHYSICAL_NUMBERS, ClippedSum, excess
from fedpriv.mechanisms.scaling import clipped_rows
from fedpriv.training.moments import bound_of, vectors
from fedpriv.training.sequential import Clipping


class MomentsClient(AskClient):
    """One sum of vectors of length 1 over its rows."""

    options: MomentsOptions  # type: ignore[assignment]
    traits = RowSumClient.traits

    def excess(self, rows: int) -> float:
        return excess(rows)

    def steps(self, theta: Tensor, state: Any, request: Request) -> Generator[Clipping, ClippedSum, Release]:
        """Of no gradients, so nothing is asked for. Whole numbers (int64 [d]) leave, of form=local float32."""
        yield from ()
        data, options = self._site().load_data(None), self.options
        layout = self._site().layout
        assert layout is not None, "its model is of moments"
        outputs, width = layout.shapes[0]
        bound = bound_of(options.bound, width - 1)
        rows, total = data.inputs.flatten(1), torch.zeros(len(theta), dtype=torch.float64)
        order = torch.arange(len(rows)) if data.unit is None else torch.argsort(data.unit, stable=True)
        sizes = torch.ones(len(rows)) if data.unit is None else torch.unique(data.unit, return_counts=True)[1]
        most = max(1, PHYSICAL_NUMBERS // len(theta))
        for part in order.split(_blocks(sizes.long().tolist(), most)):
            found = vectors(rows[part], data.targets[part], outputs, bound, options.head)
            sums = clipped_rows(found, 1.0, None if data.unit is None else data.unit[part]).total
            total[: len(sums)] += sums
        figures = {
            "clipped_norm": float(torch.linalg.vector_norm(total)),
            "noise_norm": self.noise_multiplier * math.sqrt(len(total)),
        }
        leaving = self.leaving(total, self.noise(request, "release"))
        return self.packed(Release(leaving, None, figures, local=theta if self.tests_models else None))


def _blocks(sizes: list[int], most: int) -> list[int]:
    """Rows of each block, which holds whole persons with so many rows each: at most ``most``, or one person."""
    found = [0]
    for size in sizes:
        if found[-1] and found[-1] + size > most:
            found.append(0)
        found[-1] += size
    return found
