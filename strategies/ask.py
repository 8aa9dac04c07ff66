"""Statistics of the rows at sites, server half (`clients.ask`): the noisy sum, whose numbers are the answers.

Whole-number noise, a trusted server's or each site's own: `fedpriv.server.row_sums`. The numbers become answers with
intervals where the run ends (`fedpriv.data.asked`), which is post-processing.

Symbols: theta -> the mean over rounds of the rounds' sums, in units of a row's longest vector; where quantiles are
asked in several rounds, one section for each round's sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpriv.common.messages import FloatVector
from fedpriv.common.replies import Reply
from fedpriv.config.methods import AskOptions
from fedpriv.server.row_sums import RowSumServer


class Ask(RowSumServer):
    """theta <- theta + (sum - theta)/t in round t, or section t of theta <- section t of the sum."""

    options: AskOptions  # type: ignore[assignment]

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        change, number = self.mean(theta.size, replies) - theta, self.current.number
        if (sections := self.options.sections) == 1:
            return self.move(theta, change / number)
        rounds = np.arange(theta.size) * sections // theta.size + 1
        return self.move(theta, np.where(rounds == number, change, 0.0))
