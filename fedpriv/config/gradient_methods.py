"""The options of methods whose clients release an accumulated gradient, and of control variates beside it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from fedpriv.common.errors import OptionError
from fedpriv.config.options import SMALLEST, MethodOptions, follows, on_server
from fedpriv.config.sum_methods import WeighedSumOptions
from fedpriv.config.trusted_methods import CentralClippingOptions


class GradientOptions(MethodOptions):
    """What DP-FedAGS and its rivals have in common."""

    learning_rate: float = on_server("eta of the server's step along the mean gradient", gt=0)
    epsilon: float = Field(ge=1e-6, le=1e6, description="what one round is to cost")
    claimed_delta: float = Field(gt=0, lt=1, description="delta of that cost, repaired")
    clip_norm: float = Field(ge=SMALLEST, description="C: L2 bound of the accumulated gradient")
    sensitivity: Literal["clip", "per_example"] = Field(
        description="published: DeltaS of the noise, 2C, or 2C/n_k (no sensitivity of anything)"
    )


class GaussianGradientOptions(GradientOptions):
    noise_multiplier: float | None = Field(
        ge=0, description="noise standard deviation / C; null: what epsilon asks for"
    )


class NoisyGradientOptions(WeighedSumOptions, GaussianGradientOptions):
    twice: ClassVar[tuple[str, ...]] = ("form", "epsilon", "claimed_delta", "clip_norm", "noise_multiplier")
    form: Literal["local", "central"] = Field(description="noise by each client, or by a trusted server on the sum")

    @property
    def secret_cohorts(self) -> bool:
        """Whether the guarantee rests on cohorts that outsiders do not know."""
        return self.form == "central"


class DPFedAvgOptions(CentralClippingOptions, NoisyGradientOptions):
    pass


class ScaffoldOptions(NoisyGradientOptions):
    twice: ClassVar[tuple[str, ...]] = ("steps", "control_norm")
    steps: Any = follows("local.steps")
    control_norm: float = Field(
        gt=0, le=1e6, description="bound of the server's c in units of C/K, which c without noise never exceeds"
    )
    sensitivity: Literal["clip"] = Field(description="2C")
    correction: float = Field(
        ge=0, le=1, description="alpha: share of c - c_i that is added to a gradient; 1: SCAFFOLD, 0: DP-FedAvg"
    )


def check_central(options: NoisyGradientOptions) -> None:
    """Raises `OptionError` where ``form`` or the clip norm does not fit the rest."""
    if options.form == "central" and options.client_sampling == "fixed":
        words = "the guarantee of form=central rests on a secret draw of clients; allowed: poisson, allocated"
        raise OptionError("strategy.server.client_sampling", options.client_sampling, words)
    if options.form == "central" and options.min_replies != 1:
        words = "with form=central, stopping on few replies would reveal the sample size; allowed: 1"
        raise OptionError("strategy.server.min_replies", options.min_replies, words)
    if isinstance(options, CentralClippingOptions) and options.clipping == "quantile":
        if options.form != "central":
            words = (
                "dpfedavg adapts the clip norm only with strategy.client.form=central; allowed: fixed, or "
                "strategy=fedldp, where each client adds noise to the statistic"
            )
            raise OptionError("strategy.server.clipping", "quantile", words)
        if not options.floor <= options.clip_norm <= options.norm_bound:
            words = f"strategy.server.floor={options.floor:g} to strategy.server.norm_bound={options.norm_bound:g}"
            raise OptionError("strategy.client.clip_norm", options.clip_norm, words)


def check_steps(steps: int | None) -> None:
    """steps: `local.steps`. Raises `OptionError` where a control variate is no mean over as many steps at everybody."""
    if steps is None:
        words = "control variates are means over the same number of steps K at every client: at least 1"
        raise OptionError("local.steps", "null", words)
