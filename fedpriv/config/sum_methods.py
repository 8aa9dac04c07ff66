"""The options of methods whose clients are added up by a secure sum: who holds it, and in which numbers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedpriv.common.sum_limits import FEWEST_BITS, MOST_BITS
from fedpriv.config.options import MethodOptions, follows, on_server

#: Who adds up: nobody (an observer of sums is assumed), the server in the open, or the clients' masks.
SecureSum = Literal["assumed", "ideal", "protocol"]


class SumOptions(MethodOptions):
    """Of clients whose noises add up in a secure sum of at least ``min_replies`` uploads."""

    twice: ClassVar[tuple[str, ...]] = ("min_replies",)
    colluders: int = Field(
        ge=0, description="among min_replies: clients whose noise the observer of a secure sum knows"
    )


class WeighedSumOptions(SumOptions):
    """The weights decide how many noises a sum's account counts."""

    twice: ClassVar[tuple[str, ...]] = ("weighting",)


class ModularOptions(SumOptions):
    """Of servers that add up whole numbers modulo 2^bits, and of their clients."""

    twice: ClassVar[tuple[str, ...]] = ("secure_sum", "bits", "threshold")
    secure_sum: SecureSum = follows("strategy.secure_sum")
    bits: int | None = on_server(
        "whole numbers are added modulo 2^bits; null: the method's own choice", ge=FEWEST_BITS, le=MOST_BITS
    )
    threshold: int | None = on_server(
        "protocol: t, clients that open a sum in which all share masks; null: two thirds of them", ge=2
    )
    weighting: Literal["uniform"] = on_server("weights of the mean over the replies")
