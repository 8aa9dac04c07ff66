"""The shared base of clients that are asked twice in a round: for statistics of their update, then for its release.

Between the two exchanges the raw update stays in the client's own memory. What was reported is booked when it leaves,
so a client that drops out before its release is charged for its statistics alone; in its next round it trains anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from fedpriv.client.contract import Release, Trained
from fedpriv.client.gaussian import GaussianClient, joined_state, split_state
from fedpriv.client.method import Traits
from fedpriv.common.messages import STATISTICS, TRAIN
from fedpriv.mechanisms.noise import NoiseSource


class TwoExchangeClient(GaussianClient):
    """Statistics first (`measure`), then the release of the same update (`perturb`), whose noise may depend on what
    was reported (``reported``, by name; [] or [...] for trials).
    """

    traits = Traits(exchanges=(STATISTICS, TRAIN))

    def releasing(self, theta: Tensor, trained: Trained, state: Any, noise: NoiseSource) -> Release:
        """First the statistics, and the update as it is, which stays with the client; then the release."""
        method, norms = split_state(state)
        if self.measuring:
            measured = self.measure(trained.sent, norms, noise)
            after = joined_state(method, measured.norms)
            return self.released(trained, Release(trained.sent, after, statistics=measured.statistics))
        release = self.perturb(trained.sent, method, noise)
        return self.released(trained, replace(release, state=joined_state(release.state, norms)))

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        """Both exchanges at once, at a C that does not move in between: what the auditor attacks."""
        method, norms = split_state(state)
        measured = self.measure(update, norms, noise)
        self.reported = measured.statistics
        release, self.reported = self.perturb(update, method, noise), {}
        return Release(release.value, joined_state(release.state, measured.norms), release.figures, measured.statistics)
