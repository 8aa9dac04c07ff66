"""The options of methods whose server is trusted to add correlated noise, and what they require of one another."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fedpriv.common.errors import OptionError
from fedpriv.config.options import ClientOptions, Options, ServerOptions


class MatrixOptions(Options):
    """What both halves must agree on."""

    factor: Literal["identity", "sqrt", "banded", "blt"] = Field(
        description="C: independent noise, the square root of the prefix sum, its band, or a few decaying buffers"
    )
    bandwidth: int | None = Field(ge=1, description="banded: rounds that share noise; null: the best for the run")
    buffers: int = Field(ge=1, le=8, description="blt: buffers")
    noise_multiplier: float = Field(
        ge=0, le=1e9, description="sigma: noise standard deviation / (C * sensitivity of the whole run)"
    )
    clip_norm: float = Field(ge=1e-6, description="C: L2 bound of a client's update")


class CentralClippingOptions(Options):
    """How a trusted server moves the clip norm of the updates that it sums."""

    clipping: Literal["fixed", "quantile"] = Field(description="how C moves from round to round; quantile: central")
    clip_lr: float = Field(ge=0, description="quantile: learning rate eta_C of C")
    target_quantile: float = Field(ge=0, le=1, description="quantile: share of updates that C leaves alone")
    floor: float = Field(gt=0, description="quantile: smallest C")
    norm_bound: float = Field(gt=0, description="quantile: B, largest C")
    count_share: float = Field(gt=0, lt=1, description="quantile: share of a round's cost that the noisy count gets")


def without_central_clipping(strategy: dict[str, Any]) -> None:
    """Takes out of a configuration's ``strategy`` what is younger than committed results and changes nothing."""
    for half in ("server", "client"):
        if "count_share" in strategy[half] and strategy[half]["clipping"] == "fixed":
            for name in CentralClippingOptions.model_fields:
                strategy[half].pop(name, None)


def check_central(server: dict[str, Any], client: dict[str, Any]) -> None:
    """Raises `OptionError` where ``form`` or the clip norm does not fit the rest."""
    if client.get("form") == "central" and server["client_sampling"] != "poisson":
        words = "the guarantee of form=central holds for Poisson samples of clients; allowed: poisson"
        raise OptionError("strategy.server.client_sampling", server["client_sampling"], words)
    if client.get("form") == "central" and server["min_replies"] != 1:
        words = "with form=central, stopping on few replies would reveal the sample size; allowed: 1"
        raise OptionError("strategy.server.min_replies", server["min_replies"], words)
    if client.get("clipping") == "quantile":
        if client["form"] != "central":
            words = (
                "dpfedavg adapts the clip norm only with strategy.client.form=central; allowed: fixed, or "
                "strategy=fedldp, where each client adds noise to the statistic"
            )
            raise OptionError("strategy.server.clipping", "quantile", words)
        if not server["floor"] <= client["clip_norm"] <= server["norm_bound"]:
            words = f"strategy.server.floor={server['floor']:g} to strategy.server.norm_bound={server['norm_bound']:g}"
            raise OptionError("strategy.client.clip_norm", client["clip_norm"], words)


class DPFTRLServerOptions(MatrixOptions, ServerOptions):
    participation: Literal["once", "balanced", "cyclic"] = Field(  # type: ignore[assignment]
        description="how often a client may take part"
    )
    client_sampling: Literal["fixed"] = Field(description="the guarantee needs no sample")  # type: ignore[assignment]
    weighting: Literal["uniform"] = Field(description="weights of the mean over the replies")  # type: ignore[assignment]
    min_replies: int = Field(ge=1, le=1, description="1: the guarantee must not depend on how many clients replied")
    rounds: int = Field(ge=1, description="T")


class DPFTRLClientOptions(MatrixOptions, ClientOptions):
    pass


def check_matrix(server: dict[str, Any], client: dict[str, Any], num_rounds: int, over_selection: float) -> None:
    """Raises `OptionError` if server and client options differ, a band is longer than the run, or which updates count
    depends on the other clients' replies.
    """
    if over_selection > 1:
        words = "a replacement client would change the sum twice; allowed: 1"
        raise OptionError("over_selection", over_selection, words)
    for name in MatrixOptions.model_fields:
        if server[name] != client[name]:
            raise OptionError(f"strategy.server.{name}", server[name], f"must be strategy.client.{name}={client[name]}")
    if server["rounds"] != num_rounds:
        raise OptionError("strategy.server.rounds", server["rounds"], f"must be num_rounds={num_rounds}")
    width = client["bandwidth"]
    if width is not None and client["factor"] != "banded":
        words = f"strategy.client.factor={client['factor']} has no band; allowed: null, or banded"
        raise OptionError("strategy.client.bandwidth", width, words)
    if width is not None and width > num_rounds:
        raise OptionError("strategy.client.bandwidth", width, f"at most num_rounds={num_rounds} is allowed")
