"""The shared base of the servers of ddgauss and skellam: the mean is decoded from a sum of whole numbers."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.common.messages import CLIP_REPORTED_NORM
from fedpriv.common.seeds import public_signs
from fedpriv.config.methods import WholeGaussianOptions
from fedpriv.mechanisms.clip_thresholds import NOISE_SHARE
from fedpriv.mechanisms.whole_numbers import Law
from fedpriv.privacy.sum_grid import SumGrid
from fedpriv.server.clip_rules import ClippingServer
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.summing import Decoded, SummingServer


class WholeGaussianServer(SummingServer, ClippingServer):
    """theta <- theta + mean. A rule that moves C learns means over the survivors: of their bits, or of their norms."""

    options: WholeGaussianOptions  # type: ignore[assignment]
    #: Of the clients' noise.
    law: ClassVar[Law] = "gaussian"

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        # Norms have noise whatever the variant is: nothing exact travels in a sum.
        super().__init__(population, options.model_copy(update={"variant": "repaired"}), hooks)

    def grid(self, size: int) -> SumGrid:
        options, levels = self.options, ()
        given = {"quantile": options.count_noise, "adp": options.norm_noise}
        if options.clipping in given:
            level = given[options.clipping]
            levels = (NOISE_SHARE * options.noise_multiplier if level is None else level,)  # type: ignore[assignment]
        clients = self.population.clients_per_round
        return SumGrid(self.law, size, clients, options.bits, options.noise_multiplier, levels)

    def numbers(self, size: int) -> int:
        return self.grid(size).numbers

    def decode_sum(self, total: NDArray[np.int64], survivors: int, size: int) -> Decoded:
        grid = self.grid(size)
        signs = public_signs(self.population.seed, self.current.number, grid.padded)
        mean, beside = grid.decode(total, survivors, torch.from_numpy(signs).double())
        told = {}
        for name, share in zip(self.rule.statistics, beside, strict=True):
            told[name] = share * (self.options.norm_bound if name == CLIP_REPORTED_NORM else 1.0)
        return Decoded(mean * self.rule.clip_norm, told)
