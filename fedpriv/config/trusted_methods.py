"""The options of methods whose server is trusted to add correlated noise, and what they require of one another."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedpriv.common.errors import OptionError
from fedpriv.config.options import MethodOptions, Options, follows, on_server


class CentralClippingOptions(Options):
    """How a trusted server moves the clip norm of the updates that it sums."""

    twice: ClassVar[tuple[str, ...]] = ("clipping", "norm_bound", "count_share")
    clipping: Literal["fixed", "quantile"] = on_server("how C moves from round to round; quantile: central")
    clip_lr: float = on_server("quantile: learning rate eta_C of C", ge=0)
    target_quantile: float = on_server("quantile: share of updates that C leaves alone", ge=0, le=1)
    floor: float = on_server("quantile: smallest C", gt=0)
    norm_bound: float = on_server("quantile: B, largest C", gt=0)
    count_share: float = on_server("quantile: share of a round's cost that the noisy count gets", gt=0, lt=1)


class DPFTRLOptions(MethodOptions):
    twice: ClassVar[tuple[str, ...]] = ("factor", "bandwidth", "buffers", "noise_multiplier", "clip_norm")
    factor: Literal["identity", "sqrt", "banded", "blt"] = Field(
        description="C: independent noise, the square root of the prefix sum, its band, or a few decaying buffers"
    )
    bandwidth: int | None = Field(ge=1, description="banded: rounds that share noise; null: the best for the run")
    buffers: int = Field(ge=1, le=8, description="blt: buffers")
    noise_multiplier: float = Field(
        ge=0, le=1e9, description="sigma: noise standard deviation / (C * sensitivity of the whole run)"
    )
    clip_norm: float = Field(ge=1e-6, description="C: L2 bound of a client's update")
    participation: Literal["once", "balanced", "cyclic"] = on_server("how often a client may take part")
    client_sampling: Literal["fixed", "poisson"] = on_server(
        "fixed: the guarantee needs no sample; poisson: a secret sample of one of bandwidth groups, which take turns"
    )
    weighting: Literal["uniform"] = on_server("weights of the mean over the replies")
    min_replies: int = on_server("1: the guarantee must not depend on how many clients replied", ge=1, le=1)
    rounds: int = follows("num_rounds")

    @property
    def secret_cohorts(self) -> bool:
        """Whether the cohort is a secret sample of one group."""
        return self.client_sampling == "poisson"

    @property
    def groups(self) -> int:
        return (self.bandwidth or 1) if self.secret_cohorts else 1

    def pattern(self, most: int, apart: int) -> tuple[int, int, int]:
        """(T, k, b) of which the noise is a multiple of the sensitivity: of a client of known rounds all of them, at
        most k and at least b apart; of a sampled one a single round.
        """
        return (self.rounds, 1, self.groups) if self.secret_cohorts else (self.rounds, most, apart)


def check_groups(options: DPFTRLOptions, num_clients: int, clients_per_round: int) -> None:
    """Raises `OptionError` where a secret sample of one group has no amplified guarantee."""
    if not options.secret_cohorts:
        return
    words = "strategy.server.client_sampling=poisson draws from one group of clients after the other"
    if options.factor != "banded":
        raise OptionError("strategy.client.factor", options.factor, f"{words}, as many as a band is wide: banded")
    if options.participation != "cyclic":
        raise OptionError("strategy.server.participation", options.participation, f"{words}; allowed: cyclic")
    if options.participations is not None:
        text = f"{words}, and its coins decide how often a client takes part; allowed: null"
        raise OptionError("strategy.server.participations", options.participations, text)
    widest = num_clients // clients_per_round
    if options.bandwidth is None or options.bandwidth > widest:
        given = "null" if options.bandwidth is None else options.bandwidth
        text = f"{words}, bandwidth groups in all; allowed: 1 to num_clients/clients_per_round={widest}"
        raise OptionError("strategy.client.bandwidth", given, text)


def check_matrix(options: DPFTRLOptions, num_rounds: int, over_selection: float) -> None:
    """Raises `OptionError` if a band is longer than the run, or which updates count depends on the other clients'
    replies.
    """
    if over_selection > 1:
        words = "a replacement client would change the sum twice; allowed: 1"
        raise OptionError("over_selection", over_selection, words)
    width = options.bandwidth
    if width is not None and options.factor != "banded":
        words = f"strategy.client.factor={options.factor} has no band; allowed: null, or banded"
        raise OptionError("strategy.client.bandwidth", width, words)
    if width is not None and width > num_rounds:
        raise OptionError("strategy.client.bandwidth", width, f"at most num_rounds={num_rounds} is allowed")
