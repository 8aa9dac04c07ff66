"""Options of clients whose noises add up in a secure sum (`fedpriv.summed_gaussians`). Nothing heavy is imported."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fedpriv.options import Options


class SumOptions(Options):
    """Options of clients whose noises add up in a secure sum."""

    min_replies: int = Field(ge=1, description="fewest uploads that a secure sum would add up")
    colluders: int = Field(ge=0, description="of these, clients whose noise the observer of a secure sum knows")


class WeighedSumOptions(SumOptions):
    weighting: Any = Field(description="as strategy.server.weighting")
