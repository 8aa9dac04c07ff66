"""Statistics of the rows at sites, client half: a site's sum of what each of its rows (persons) answers.

No paper's own method. A list of questions (`fedpriv.data.questions`) gives each row a vector of length at most 1, and
the sum of these vectors over all rows answers all of them: one release, priced once, however long the list is. Who adds
the noise and who learns what (form): `fedpriv.client.summing`. That a row more or less moves a site's sum by less than
1 - 2^-12: `fedpriv.data.asked`. With unit person a row is a person, who adds the mean of their rows' vectors
(with privacy.rows_per_person=L the sum of at most L, divided by L).

The questions are the run's options. What a server sends with a request changes at most the bins by which quantiles are
asked in later rounds (`fedpriv.data.questions`), whatever it sends.

Symbols: sigma -> noise_multiplier (one noise's), k -> noises = min_replies - colluders, R -> `RowSumGrid.steps`.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.contract import Release
from fedpriv.client.summing import RowSumClient
from fedpriv.common.messages import Request
from fedpriv.config.methods import AskOptions
from fedpriv.mechanisms.clipped_sums import ClippedSum
from fedpriv.mechanisms.noise import fine_step
from fedpriv.privacy import claimed
from fedpriv.training.sequential import Clipping
from fedpriv.training.trained_model import scorer

ONE_LIST = "a list of questions is answered by the rounds that were planned (num_rounds); ask again in a run of its own"


class AskClient(RowSumClient):
    """One sum of answers over its rows."""

    options: AskOptions  # type: ignore[assignment]
    traits = replace(RowSumClient.traits, bound_to_rounds=ONE_LIST)
    #: Of a row's vector.
    clip_norm = 1.0

    def claim(self, participations: int, delta: float) -> claimed.Claim:
        """Of one Gaussian in a round, with the noise that the observer does not know."""
        grid, noises, across = self.grid, self.noises if self.whole else 1, self.run.across_sites
        moved = grid.l2() if self.options.form == "local" else across * grid.l2()
        if not self.whole:
            moved += math.sqrt(grid.dimension) * fine_step(grid.sigma)
        rounds = participations * (across if self.options.form == "local" else 1)
        return claimed.row_sums(math.sqrt(noises) * grid.sigma / moved, rounds, delta, not self.whole)

    def steps(self, theta: Tensor, state: Any, request: Request) -> Generator[Clipping, ClippedSum, Release]:
        """Of no gradients, so nothing is asked for. Whole numbers (int64 [numbers]) leave, of form=local float32."""
        yield from ()
        data, asks = self._site().load_data(None), self.facts.asks
        assert asks is not None, "its options have questions"
        unit = None if data.unit is None else data.unit.numpy()
        earlier = theta.detach().cpu().numpy() if asks.sections > 1 else None
        rows = data.inputs.cpu().numpy(), data.targets.cpu().numpy(), unit
        score = None
        if asks.model is not None and asks.schema is not None:
            score = scorer(*asks.model, asks.schema).of_each
        total = torch.from_numpy(asks.total(*rows, earlier, request.round, score))
        figures = {
            "clipped_norm": float(torch.linalg.vector_norm(total)),
            "noise_norm": self.noise_multiplier * math.sqrt(len(total)),
        }
        numbers = self.leaving(total, self.noise(request, "release"))
        return self.packed(Release(numbers, None, figures, local=theta if self.tests_models else None))
