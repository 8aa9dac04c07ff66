"""The options of every method: one schema for each half, and what both halves must agree on.

``METHODS`` is the table of contents. Nothing heavy is imported (see `fedpriv.config.schema`).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from fedpriv.common.errors import OptionError
from fedpriv.common.sum_limits import FEWEST_BITS, MOST_BITS
from fedpriv.config.gradient_methods import (
    DPFedAvgClientOptions as DPFedAvgClientOptions,
)
from fedpriv.config.gradient_methods import (
    DPFedAvgServerOptions as DPFedAvgServerOptions,
)
from fedpriv.config.gradient_methods import (
    GradientClientOptions as GradientClientOptions,
)
from fedpriv.config.gradient_methods import (
    GradientOptions as GradientOptions,
)
from fedpriv.config.gradient_methods import (
    GradientServerOptions as GradientServerOptions,
)
from fedpriv.config.gradient_methods import (
    NoisyGradientClientOptions as NoisyGradientClientOptions,
)
from fedpriv.config.gradient_methods import (
    NoisyGradientServerOptions as NoisyGradientServerOptions,
)
from fedpriv.config.gradient_methods import (
    ScaffoldClientOptions as ScaffoldClientOptions,
)
from fedpriv.config.gradient_methods import (
    ScaffoldServerOptions as ScaffoldServerOptions,
)
from fedpriv.config.options import SMALLEST, Options
from fedpriv.config.options import ClientOptions as ClientOptions
from fedpriv.config.options import ServerOptions as ServerOptions
from fedpriv.config.sum_methods import (
    ModularClientOptions,
    ModularServerOptions,
    SumOptions,
)
from fedpriv.config.sum_methods import WeighedSumOptions as WeighedSumOptions
from fedpriv.config.trusted_methods import DPFTRLClientOptions, DPFTRLServerOptions
from fedpriv.config.unit_methods import (
    FedOnceClientOptions,
    FedOnceServerOptions,
    PrivUnitClientOptions,
    PrivUnitServerOptions,
)

#: As `SMALLEST`, of a score.
SMALLEST_SCORE = 1e-12


#: An adaptive Theta stays within this factor of its start.
CLIP_RANGE = 1e3
#: Options that say how much noise a method adds: what `privacy.target_epsilon` chooses, or makes ineffective.
NOISE_OPTIONS = ("noise_multiplier", "epsilon", "trials", "private_share")


class FedProxClientOptions(ClientOptions):
    proximal_mu: float = Field(ge=0, description="mu of the proximal term mu/2 * ||w - w_global||^2")


class FedPerClientOptions(ClientOptions):
    personal_layers: int | None = Field(ge=1, description="last blocks that stay local; null: 2, of two blocks 1")


class HeadClientOptions(ClientOptions):
    head_layers: int | None = Field(ge=1, description="last blocks that are the head; null: 2, of two blocks 1")


class FedVFClientOptions(HeadClientOptions):
    head_period: int = Field(ge=1, description="P: the heads are averaged in rounds P, 2P, ...")


class DistillationServerOptions(Options):
    distillation_epochs: int = Field(ge=0, description="passes over the auxiliary pictures; 0: no distillation")
    distillation_batch_size: int = Field(ge=1, description="auxiliary pictures in a batch")
    distillation_lr: float = Field(gt=0, description="learning rate of the server's SGD")
    distillation_loss: Literal["kl", "mse"] = Field(description="distance of the student's logits from the teacher's")
    temperature: float = Field(gt=0, description="kl: temperature of the softened logits")


class PFLServerOptions(DistillationServerOptions, ServerOptions):
    pass


class GaussianClientOptions(ClientOptions):
    noise_multiplier: float = Field(ge=0, description="noise standard deviation / clip_norm, per coordinate")
    clip_norm: float = Field(ge=SMALLEST, description="L2 bound C of a client's update")


class ClippingServerOptions(ServerOptions):
    clipping: Literal["fixed", "quantile", "geometric", "adp"] = Field(description="how C moves from round to round")
    clip_norm: float = Field(ge=SMALLEST, description="C of round 1 (the client's own)")
    clip_lr: float = Field(ge=0, description="quantile: learning rate eta_C of C")
    target_quantile: float = Field(ge=0, le=1, description="quantile: share of updates that C leaves alone")
    decay: float = Field(gt=0, le=1, description="geometric: rho, factor of C in every round")
    window: int = Field(ge=2, description="adp: S_w, norms in a client's window")
    floor: float = Field(gt=0, description="smallest C")
    norm_bound: float = Field(gt=0, description="B: largest C, and public bound of a reported norm")
    variant: Literal["repaired", "published"] = Field(description="as privacy.variant")


class ClippingClientOptions(GaussianClientOptions):
    """Of a client whose server may move C. What both halves must agree on has its range in the server's options."""

    clipping: Any = Field(description="as strategy.server.clipping")
    window: Any = Field(description="as strategy.server.window")
    floor: Any = Field(description="as strategy.server.floor")
    norm_bound: Any = Field(description="as strategy.server.norm_bound")
    count_noise: float | None = Field(gt=0, description="quantile: sigma_b on a client's bit; null: the default")
    norm_noise: float | None = Field(gt=0, description="adp: z_n, noise / norm_bound on a norm; null: the default")


class FedLDPClientOptions(WeighedSumOptions, ClippingClientOptions):
    pass


class FedCADClientOptions(ClippingClientOptions):
    diff: float = Field(
        ge=1e-3, le=1 - 1e-3, description="initial Diff D_0: bound of the change between updates, in units of C"
    )
    obsolete_factor: float = Field(ge=0, le=1, description="gamma: weight of the newest change in Diff; 0 = constant")
    diff_source: Literal["clipped", "unclipped"] = Field(description="which difference the adaptive Diff follows")
    sigma_diff: float | None = Field(ge=0, description="noise on the norm in Diff, in units of C; null: the default")


class ADPFLServerOptions(PFLServerOptions, ClippingServerOptions):
    weighting: Literal["uniform"] = Field(description="weights of the mean over the replies")  # type: ignore[assignment]
    allocation: Any = Field(description="as strategy.client.allocation")


class ADPFLClientOptions(SumOptions, FedPerClientOptions, ClippingClientOptions):
    epsilon: float = Field(gt=0, le=1e12, description="eps: claimed for one round, by equation 16")
    claimed_delta: float = Field(gt=0, lt=1, description="delta of the claim")
    noise_multiplier: float | None = Field(  # type: ignore[assignment]
        ge=0, description="noise standard deviation / C; null: by equation 16 from epsilon"
    )
    base_share: float = Field(gt=0, le=1, description="a: share of eps that a clipped update gets")
    allocation: Literal["adaptive", "fixed"] = Field(description="a round's eps_i: by equation 12, or eps")


class ExampleLevelClientOptions(GaussianClientOptions):
    """Options of clients that protect single examples; their analysis needs Poisson batches."""

    clip_norm: float = Field(ge=SMALLEST, description="L2 bound Theta of one example's gradient")
    local_steps: int = Field(ge=1, description="noisy steps in a round")
    clipping: Literal["fixed", "adaptive", "median"] = Field(description="how Theta is chosen")
    count_noise: float = Field(gt=0, description="adaptive: noise on the count of gradients within Theta")
    clip_lr: float = Field(ge=0, description="adaptive: learning rate eta_C of Theta")
    target_quantile: float = Field(ge=0, le=1, description="adaptive: share of gradients that Theta leaves alone")


class AdamClientOptions(ExampleLevelClientOptions):
    beta1: float = Field(ge=0, lt=1, description="Adam's beta_1")
    beta2: float = Field(ge=0, lt=1, description="Adam's beta_2")


class OneBitOptions(Options):
    """What both halves of the one-bit methods must agree on."""

    encode: Literal["update", "weights"] = Field(description="what is quantised: the update, or the trained weights")
    radius: Any = Field(description="r: half of a coordinate's interval; a number, or a list with one per named block")

    @field_validator("radius", mode="after")
    @classmethod
    def _radius_is_positive(cls, radius: Any) -> Any:
        for value in radius if isinstance(radius, list) and radius else [radius]:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-9 <= value <= 1e9:
                words = "must be from 1e-9 to 1e9, or a list of such numbers"
                raise OptionError("strategy.client.radius", radius, words)
        return radius


class PrivateBitOptions(OneBitOptions):
    epsilon: float | None = Field(gt=0, le=20, description="eps of one coordinate; null: no privacy")


class SharedBitOptions(PrivateBitOptions):
    bits: int = Field(ge=0, le=16, description="M: shared bits per coordinate; 0: none, as LDP-FL")
    group_size: int = Field(ge=2, le=1024, description="g: clients that share; 2: antithetic pairs")


class OneBitServerOptions(OneBitOptions, ServerOptions):
    radius_floor: float = Field(gt=0, description="weights: r_min")
    clip_factor: float = Field(gt=0, description="weights: next r over half the range of a layer's released weights")
    weighting: Literal["uniform"] = Field(description="weights of the mean over the replies")  # type: ignore[assignment]


class LDPFLServerOptions(PrivateBitOptions, OneBitServerOptions):
    pass


class LDPFLClientOptions(PrivateBitOptions, ClientOptions):
    min_replies: int = Field(ge=1, description="fewest clients whose bits are counted")
    shuffle: bool = Field(description="account for whoever sees a round's shuffled bits only, as well")
    shuffle_delta: float = Field(gt=0, lt=1, description="part of delta that shuffling may use up over the run")


class CoQFLServerOptions(SharedBitOptions, OneBitServerOptions):
    pass


class CoQFLClientOptions(SharedBitOptions, ClientOptions):
    private_share: float = Field(gt=0, le=1, description="mu, repaired: probability of a private uniform")


class CorrQuantServerOptions(OneBitServerOptions):
    pass


class CorrQuantClientOptions(OneBitOptions, ClientOptions):
    pass


class SelectionOptions(Options):
    """What both halves of the selecting methods must agree on."""

    selection: Literal["random", "gumbel"] = Field(description="repaired: a public mask, or a private top-k")


class SelectingServerOptions(SelectionOptions, GradientServerOptions):
    variant: Literal["repaired", "published"] = Field(description="as privacy.variant")


class SelectingClientOptions(SelectionOptions, GradientClientOptions):
    selection_share: float = Field(gt=0, lt=1, description="gumbel: part of a round's budget that the selection gets")
    score_bound: float | None = Field(ge=SMALLEST_SCORE, description="gumbel: tau, at most C; null: C/sqrt(k)")


class ScheduleOptions(Options):
    threshold: Literal["equation", "text"] = Field(description="k_t-th smallest as equation 35, or k_t-th largest")
    loss_weights: bool | None = Field(description="weigh clients by their losses; null: published true, repaired false")


class FedAGSServerOptions(ScheduleOptions, SelectingServerOptions):
    rounds: int = Field(ge=1, description="T of equation 35")


class FedAGSClientOptions(ScheduleOptions, SelectingClientOptions):
    significance: Literal["signed", "magnitude"] = Field(description="published: compare g' or |g'| with the threshold")
    svt_scale: Literal["algorithm1", "section4"] = Field(description="published: comparison's noise DeltaS or q*DeltaS")
    noise: Literal["gaussian", "laplace"] = Field(description="published: noise of the values")
    gaussian_eps: Literal["total", "eps3"] = Field(description="published: which epsilon equation 2 takes")
    values_share: float = Field(gt=0, lt=1, description="published: eps3/eps")
    epsilon_split: Any = Field(description="published: [eps1, eps2, eps3]; null: by values_share and q^(2/3) : 1")
    loss_bound: float = Field(gt=0, description="repaired with loss_weights: L_max")
    loss_share: float = Field(gt=0, lt=1, description="repaired with loss_weights: the loss's part of a round's budget")


class ShareOptions(Options):
    share: float = Field(gt=0, le=1, description="share of the coordinates that counts as significant")


class DPFedSNLCServerOptions(ShareOptions, SelectingServerOptions):
    pass


class DPFedSNLCClientOptions(ShareOptions, SelectingClientOptions):
    pass


class WholeGaussianServerOptions(ModularServerOptions, ClippingServerOptions):
    """Of ddgauss and skellam: one number of theirs is of no use to a server."""

    secure_sum: Literal["ideal", "protocol"] = Field(description="as strategy.secure_sum")  # type: ignore[assignment]
    bits: int = Field(ge=FEWEST_BITS, le=MOST_BITS, description="whole numbers are added modulo 2^bits")  # type: ignore[assignment]
    noise_multiplier: Any = Field(description="as strategy.client.noise_multiplier")
    count_noise: Any = Field(description="as strategy.client.count_noise")
    norm_noise: Any = Field(description="as strategy.client.norm_noise")


class WholeGaussianClientOptions(ModularClientOptions, ClippingClientOptions):
    pass


class SkellamClientOptions(WholeGaussianClientOptions):
    claimed_delta: float = Field(gt=0, lt=1, description="of which the bounds of a run may use up a hundredth")


class CpSGDOptions(Options):
    levels: int = Field(ge=2, le=2**20, description="k: levels of the quantisation")
    trials: int | None = Field(ge=0, le=2**50, description="m: binomial trials; null: the fewest that epsilon allows")


class CpSGDServerOptions(ModularServerOptions, CpSGDOptions, GradientServerOptions):
    rounds: int = Field(ge=1, description="T")
    epsilon: Any = Field(description="as strategy.client.epsilon")
    claimed_delta: Any = Field(description="as strategy.client.claimed_delta")
    clip_norm: Any = Field(description="as strategy.client.clip_norm")
    sensitivity: Any = Field(description="as strategy.client.sensitivity")
    variant: Literal["repaired", "published"] = Field(description="as privacy.variant")


class CpSGDClientOptions(ModularClientOptions, CpSGDOptions, GradientOptions):
    pass


class DecayOptions(Options):
    decay: float = Field(gt=0, le=1, description="rho: factor by which the noise falls")
    floor: float = Field(gt=0, le=1, description="repaired: smallest sigma_t / sigma_0")


class DecayingClientOptions(DecayOptions, ExampleLevelClientOptions):
    pass


class DPFLAGNClientOptions(DecayingClientOptions, AdamClientOptions):
    pass


class AnnouncedNoiseServerOptions(ServerOptions):
    noise_multiplier: float = Field(ge=0, description="sigma_0 that the server announces (the client's own)")


class ANRServerOptions(DecayOptions, AnnouncedNoiseServerOptions):
    threshold: float = Field(ge=0, description="mu: a smaller fall of the public loss lowers the noise")
    variant: Literal["repaired", "published"] = Field(description="as privacy.variant")


class NbAFLOptions(Options):
    epsilon: float = Field(gt=0, description="what the noise is claimed to buy over the whole run")
    clip_norm: float = Field(ge=SMALLEST, description="L2 bound C of the weights")
    claimed_delta: float = Field(gt=0, lt=1, description="delta of the claim")
    exposures: int | None = Field(ge=1, description="L: uploads of one client; null: the number of rounds")


class NbAFLServerOptions(NbAFLOptions, ServerOptions):
    rounds: int = Field(ge=1, description="T: aggregations")
    weighting: Literal["uniform"] = Field(description="weights of the mean over the replies")  # type: ignore[assignment]


class NbAFLClientOptions(NbAFLOptions, ClientOptions):
    noise_multiplier: float | None = Field(ge=0, description="sU / C; null: by the paper's formula")
    proximal_mu: float = Field(ge=0, description="mu of the proximal term mu/2 * ||w - w_global||^2")
    min_replies: int = Field(ge=1, description="smallest cohort that the server aggregates")


#: name -> (options of the server half, options of the client half). A method without a row here is a user's
#: own: its halves name their schemas (`fedpriv.config.halves`).
METHODS: dict[str, tuple[type[ServerOptions], type[ClientOptions]]] = {
    "fedavg": (ServerOptions, ClientOptions),
    "fedprox": (ServerOptions, FedProxClientOptions),
    "fedper": (ServerOptions, FedPerClientOptions),
    "lgfedavg": (ServerOptions, HeadClientOptions),
    "fedvf": (ServerOptions, FedVFClientOptions),
    "pfl": (PFLServerOptions, FedPerClientOptions),
    "adpfl": (ADPFLServerOptions, ADPFLClientOptions),
    "fedldp": (ClippingServerOptions, FedLDPClientOptions),
    "fedcad": (ClippingServerOptions, FedCADClientOptions),
    "ldpfl": (LDPFLServerOptions, LDPFLClientOptions),
    "coqfl": (CoQFLServerOptions, CoQFLClientOptions),
    "corrquant": (CorrQuantServerOptions, CorrQuantClientOptions),
    "fedags": (FedAGSServerOptions, FedAGSClientOptions),
    "dpfedavg": (DPFedAvgServerOptions, DPFedAvgClientOptions),
    "scaffold": (ScaffoldServerOptions, ScaffoldClientOptions),
    "dpftrl": (DPFTRLServerOptions, DPFTRLClientOptions),
    "cpsgd": (CpSGDServerOptions, CpSGDClientOptions),
    "ddgauss": (WholeGaussianServerOptions, WholeGaussianClientOptions),
    "skellam": (WholeGaussianServerOptions, SkellamClientOptions),
    "dpfedsnlc": (DPFedSNLCServerOptions, DPFedSNLCClientOptions),
    "dpsgd": (AnnouncedNoiseServerOptions, ExampleLevelClientOptions),
    "agn": (AnnouncedNoiseServerOptions, AdamClientOptions),
    "anr": (ANRServerOptions, DecayingClientOptions),
    "dpfl_agn": (ANRServerOptions, DPFLAGNClientOptions),
    "nbafl": (NbAFLServerOptions, NbAFLClientOptions),
    "privunit": (PrivUnitServerOptions, PrivUnitClientOptions),
    "fedonce": (FedOnceServerOptions, FedOnceClientOptions),
}


# --- across the halves -----------------------------------------------------------------------------------
