"""The options of methods whose clients are added up by a secure sum: who holds it, and in which numbers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fedpriv.common.sum_limits import FEWEST_BITS, MOST_BITS
from fedpriv.config.options import Options, ServerOptions

#: Who adds up: nobody (an observer of sums is assumed), the server in the open, or the clients' masks.
SecureSum = Literal["assumed", "ideal", "protocol"]


class SumOptions(Options):
    """Options of clients whose noises add up in a secure sum."""

    min_replies: int = Field(ge=1, description="fewest uploads that a secure sum would add up")
    colluders: int = Field(ge=0, description="of these, clients whose noise the observer of a secure sum knows")


class WeighedSumOptions(SumOptions):
    weighting: Any = Field(description="as strategy.server.weighting")


class ModularServerOptions(ServerOptions):
    """Of servers that add up whole numbers modulo 2^bits."""

    secure_sum: SecureSum = Field(description="as strategy.secure_sum")
    bits: int | None = Field(
        ge=FEWEST_BITS, le=MOST_BITS, description="whole numbers are added modulo 2^bits; null: the method's own choice"
    )
    threshold: int | None = Field(
        ge=2, description="protocol: t, clients that open a sum in which all share masks; null: two thirds of them"
    )
    weighting: Literal["uniform"] = Field(description="weights of the mean over the replies")  # type: ignore[assignment]


class ModularClientOptions(SumOptions):
    """Of their clients. What both halves must agree on has its range in the server's options."""

    secure_sum: Any = Field(description="as strategy.secure_sum")
    bits: Any = Field(description="as strategy.server.bits")
    threshold: Any = Field(description="as strategy.server.threshold")


#: Options of `ModularServerOptions` and `ModularClientOptions` that are younger than committed results.
_YOUNGER = ("secure_sum", "bits", "threshold")


def without_sums(strategy: dict[str, Any]) -> None:
    """Takes out of a configuration's ``strategy`` what changes nothing while a secure sum is only assumed."""
    if strategy.get("secure_sum") != "assumed":
        return
    strategy.pop("secure_sum")
    for half in ("server", "client"):
        if "secure_sum" in strategy[half]:  # other methods have options of these names
            for name in _YOUNGER:
                strategy[half].pop(name, None)
