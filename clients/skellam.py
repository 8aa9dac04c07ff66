"""The Skellam mechanism, client half (N. Agarwal, P. Kairouz, Z. Liu, NeurIPS 2021, arXiv 2110.04995).

The client adds the noise, in whole numbers; a secure sum hides them from everybody; the server and whoever looks on
learn the sum over those who stayed, and who they were. `min_replies` is the floor below which no sum is opened, and
`colluders` of these may tell their noise. Skellam numbers add up to Skellam numbers, so the account of a sum is exact
in that respect at every size of the noise.

Symbols: c -> clip_norm, s = 1/gamma -> 1/`SumGrid.step`, mu -> `SkellamSum.variance`, m = 2^bits.

Where this departs from the print:
- Rotation in blocks, and neighbours that replace a client's data, as in `clients.ddgauss`.
- The Renyi bound is the one proven in `fedpriv.privacy.integer_laws`: at all orders, for a hundredth of delta.
Published and repaired are the same.
"""

from dataclasses import replace

from fedpriv.client.gaussian import WholeGaussianClient
from fedpriv.config.methods import SkellamOptions
from fedpriv.privacy.sum_grid import delta_share

SHARES_DELTA = "a release's share of delta is claimed_delta divided by the number of releases in num_rounds"


class SkellamClient(WholeGaussianClient):
    """As ddgauss, with Skellam noise of variance (sigma/gamma)^2 on each coordinate."""

    options: SkellamOptions  # type: ignore[assignment]
    law = "skellam"
    in_rows = True
    traits = replace(WholeGaussianClient.traits, bound_to_rounds=SHARES_DELTA)

    @property
    def share(self) -> float:
        return delta_share(self.options.claimed_delta, self.facts.num_rounds * (1 + len(self.grid.statistics)))
