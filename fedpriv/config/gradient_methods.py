"""The options of methods whose clients release an accumulated gradient, and of control variates beside it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fedpriv.common.errors import OptionError
from fedpriv.config.options import SMALLEST, ClientOptions, Options, ServerOptions
from fedpriv.config.sum_methods import WeighedSumOptions
from fedpriv.config.trusted_methods import CentralClippingOptions


class GradientServerOptions(ServerOptions):
    """Of the servers of DP-FedAGS's family."""

    learning_rate: float = Field(gt=0, description="eta of the server's step along the mean gradient")


class GradientOptions(ClientOptions):
    """What the clients of DP-FedAGS and its rivals have in common."""

    epsilon: float = Field(ge=1e-6, le=1e6, description="what one round is to cost")
    claimed_delta: float = Field(gt=0, lt=1, description="delta of that cost, repaired")
    clip_norm: float = Field(ge=SMALLEST, description="C: L2 bound of the accumulated gradient")
    sensitivity: Literal["clip", "per_example"] = Field(
        description="published: DeltaS of the noise, 2C, or 2C/n_k (no sensitivity of anything)"
    )


class GradientClientOptions(GradientOptions):
    noise_multiplier: float | None = Field(
        ge=0, description="noise standard deviation / C; null: what epsilon asks for"
    )


class FormOptions(Options):
    form: Literal["local", "central"] = Field(description="noise by each client, or by a trusted server on the sum")


class NoisyGradientServerOptions(FormOptions, GradientServerOptions):
    epsilon: Any = Field(description="as strategy.client.epsilon")
    claimed_delta: Any = Field(description="as strategy.client.claimed_delta")
    clip_norm: Any = Field(description="as strategy.client.clip_norm")
    noise_multiplier: Any = Field(description="as strategy.client.noise_multiplier")


class NoisyGradientClientOptions(WeighedSumOptions, FormOptions, GradientClientOptions):
    pass


class DPFedAvgServerOptions(CentralClippingOptions, NoisyGradientServerOptions):
    pass


class DPFedAvgClientOptions(NoisyGradientClientOptions):
    clipping: Any = Field(description="as strategy.server.clipping")
    norm_bound: Any = Field(description="as strategy.server.norm_bound")
    count_share: Any = Field(description="as strategy.server.count_share")


class ControlOptions(Options):
    """What both halves must agree on."""

    steps: Any = Field(description="K: as local.steps")
    control_norm: float = Field(
        gt=0, le=1e6, description="bound of the server's c in units of C/K, which c without noise never exceeds"
    )


class ScaffoldServerOptions(ControlOptions, NoisyGradientServerOptions):
    pass


class ScaffoldClientOptions(ControlOptions, NoisyGradientClientOptions):
    sensitivity: Literal["clip"] = Field(description="2C")  # type: ignore[assignment]
    correction: float = Field(
        ge=0, le=1, description="alpha: share of c - c_i that is added to a gradient; 1: SCAFFOLD, 0: DP-FedAvg"
    )


def check_steps(client: dict[str, Any], steps: int | None) -> None:
    """steps: `local.steps`. Raises `OptionError` where a control variate is no mean over as many steps at everybody."""
    if steps is None:
        words = "control variates are means over the same number of steps K at every client: at least 1"
        raise OptionError("local.steps", "null", words)
    if client["steps"] != steps:
        raise OptionError("strategy.client.steps", client["steps"], f"must be local.steps={steps}")
