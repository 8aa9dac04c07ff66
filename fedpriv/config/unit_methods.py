"""The options of methods whose clients send directions: what `fedpriv.mechanisms.unit_vectors` needs, and the steps."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from fedpriv.common.errors import OptionError
from fedpriv.config.options import follows, on_server
from fedpriv.config.sum_methods import WeighedSumOptions

#: Largest epsilon of one release, but by the Gaussian: e^epsilon is then not far from leaving float64.
MOST_EPSILON = 500


class UnitOptions(WeighedSumOptions):
    """Of PrivUnit and FedOnce."""

    twice: ClassVar[tuple[str, ...]] = ("mechanism", "epsilon", "bits", "projections")
    mechanism: Literal["privunit", "projunit", "sqkr", "gaussian"] = Field(description="how a direction is released")
    epsilon: float = Field(ge=1e-5, le=1e6, description=f"what one release costs; above {MOST_EPSILON}: gaussian alone")
    bits: int | None = Field(ge=1, le=16, description="sqkr: b, bits of a release; null: the best for epsilon")
    projections: int = Field(ge=1, le=2**20, description="projunit: k, numbers of a release")
    claimed_delta: float = Field(gt=0, lt=1, description="gaussian: delta of a release's epsilon")


class PrivUnitOptions(UnitOptions):
    learning_rate: float = on_server("eta of the server's step along the mean direction", gt=0)


class FedOnceOptions(UnitOptions):
    twice: ClassVar[tuple[str, ...]] = ("claimed_delta",)
    step: Any = on_server("how far the mean direction moves theta: a number, or auto: by the rule")
    scale: float = on_server("auto: tau, expected distance of the best model from zero", gt=0)
    spread: float = on_server("auto: rho, how far clients' own best models lie apart, in units of tau", ge=0)
    effective_dims: Any = on_server(
        "step=auto: directions that features use: a number; null: all of the model's; auto: by features.map"
    )
    features_map: str = follows("features.map")
    weighting: Literal["uniform"] = on_server("weights of the mean over the replies")

    @field_validator("step", mode="after")
    @classmethod
    def _step_is_positive(cls, step: Any) -> Any:
        number = isinstance(step, int | float) and not isinstance(step, bool)
        if step != "auto" and not (number and 0 < step <= 1e9):
            raise OptionError("strategy.server.step", step, "must be auto, or more than 0 and at most 1e9")
        return step

    @field_validator("effective_dims", mode="after")
    @classmethod
    def _dims_are_whole(cls, dims: Any) -> Any:
        number = isinstance(dims, int) and not isinstance(dims, bool) and dims >= 1
        if dims not in ("auto", None) and not number:
            raise OptionError("strategy.server.effective_dims", dims, "must be auto, null, or a whole number from 1")
        return dims
