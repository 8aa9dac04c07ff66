"""The options of methods whose clients are added up by a secure sum: who holds it, and in which numbers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

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


class RowSumOptions(ModularOptions):
    """Of sums over the rows (persons) of sites (`fedpriv.privacy.sum_grid`)."""

    twice: ClassVar[tuple[str, ...]] = ()
    secure_sum: Literal["ideal", "protocol"] = follows("strategy.secure_sum")
    bits: int = on_server("whole numbers are added modulo 2^bits", ge=FEWEST_BITS, le=MOST_BITS)
    noise_multiplier: float = Field(ge=0, description="noise standard deviation / clip_norm of one noise")
    form: Literal["ddgauss", "skellam", "central", "local"] = Field(
        description="ddgauss, skellam: whole-number noise of all sites in a secure sum; central: Gaussian noise by a "
        "trusted server; local: by each site, and no secure sum"
    )
    claimed_delta: float = Field(gt=0, lt=1, description="skellam: of which the bounds of a run may use up a hundredth")

    @property
    def whole(self) -> bool:
        """Whether noise is of whole numbers."""
        return self.form in ("ddgauss", "skellam")

    @property
    def rate(self) -> float:
        """Probability with which a row takes part in a round."""
        return 1.0


class AskOptions(RowSumOptions):
    """Of ask: statistics of the rows at sites. Its clip norm is 1."""

    noise_multiplier: float = Field(ge=0, description="standard deviation of one noise; all answers are of length 1")
    rounds: int = follows("num_rounds")
    questions: tuple[str, ...] = Field(
        min_length=1, description="what is asked: [count, 'mean:age', 'histogram:age:20', ...] (docs/statistics.md)"
    )

    @field_validator("questions", mode="before")
    @classmethod
    def _questions_are_a_list(cls, given: Any) -> Any:
        """YAML has lists."""
        return tuple(given) if isinstance(given, list) else given

    @property
    def sections(self) -> int:
        """How many rounds have numbers of their own in the sum: all where quantiles are zoomed in on, else one."""
        return self.rounds if any(question.strip().startswith("quantiles") for question in self.questions) else 1
