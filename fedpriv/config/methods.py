"""The options of every method: one class, which both halves read.

``METHODS`` is the table of contents. Nothing heavy is imported (see `fedpriv.config.schema`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from fedpriv.common.errors import OptionError
from fedpriv.common.sum_limits import FEWEST_BITS, MOST_BITS
from fedpriv.config.gradient_methods import (
    DPFedAvgOptions,
    GaussianGradientOptions,
    GradientOptions,
    ScaffoldOptions,
)
from fedpriv.config.options import SMALLEST, MethodOptions, follows, on_server
from fedpriv.config.sum_methods import AskOptions, ModularOptions, RowSumOptions, SumOptions, WeighedSumOptions
from fedpriv.config.trusted_methods import DPFTRLOptions
from fedpriv.config.unit_methods import FedOnceOptions, PrivUnitOptions

Variant = Literal["repaired", "published"]
#: As `SMALLEST`, of a score.
SMALLEST_SCORE = 1e-12
#: An adaptive Theta stays within this factor of its start.
CLIP_RANGE = 1e3
#: Options that say how much noise a method adds: what `privacy.target_epsilon` chooses, or makes ineffective.
NOISE_OPTIONS = ("noise_multiplier", "epsilon", "trials", "private_share")


class FedProxOptions(MethodOptions):
    proximal_mu: float = Field(ge=0, description="mu of the proximal term mu/2 * ||w - w_global||^2")


class PersonalOptions(MethodOptions):
    personal_layers: int | None = Field(ge=1, description="last blocks that stay local; null: 2, of two blocks 1")


class HeadOptions(MethodOptions):
    head_layers: int | None = Field(ge=1, description="last blocks that are the head; null: 2, of two blocks 1")


class FedVFOptions(HeadOptions):
    head_period: int = Field(ge=1, description="P: the heads are averaged in rounds P, 2P, ...")
    stage: int = Field(ge=0, description="rounds of the earlier stage, in which heads are averaged every time; 0: none")


class PFLOptions(PersonalOptions):
    distillation_epochs: int = on_server("passes over the auxiliary examples; 0: no distillation", ge=0)
    distillation_batch_size: int = on_server("auxiliary examples in a batch", ge=1)
    distillation_lr: float = on_server("learning rate of the server's SGD", gt=0)
    distillation_loss: Literal["kl", "mse"] = on_server("distance of the student's logits from the teacher's")
    temperature: float = on_server("kl: temperature of the softened logits", gt=0)


class GaussianOptions(MethodOptions):
    noise_multiplier: float = Field(ge=0, description="noise standard deviation / clip_norm, per coordinate")
    clip_norm: float = Field(ge=SMALLEST, description="L2 bound C of a client's update; where C moves, of round 1")


class ClippingOptions(GaussianOptions):
    """Of methods whose server may move C from round to round."""

    twice: ClassVar[tuple[str, ...]] = ("clipping", "clip_norm", "window", "floor", "norm_bound")
    clipping: Literal["fixed", "quantile", "geometric", "adp"] = on_server("how C moves from round to round")
    clip_lr: float = on_server("quantile: learning rate eta_C of C", ge=0)
    target_quantile: float = on_server("quantile: share of updates that C leaves alone", ge=0, le=1)
    decay: float = on_server("geometric: rho, factor of C in every round", gt=0, le=1)
    window: int = on_server("adp: S_w, norms in a client's window", ge=2)
    floor: float = on_server("smallest C", gt=0)
    norm_bound: float = on_server("B: largest C, and public bound of a reported norm", gt=0)
    variant: Variant = follows("privacy.variant")
    count_noise: float | None = Field(gt=0, description="quantile: sigma_b on a client's bit; null: the default")
    norm_noise: float | None = Field(gt=0, description="adp: z_n, noise / norm_bound on a norm; null: the default")


class FedLDPOptions(WeighedSumOptions, ClippingOptions):
    pass


class FedCADOptions(ClippingOptions):
    diff: float = Field(
        ge=1e-3, le=1 - 1e-3, description="initial Diff D_0: bound of the change between updates, in units of C"
    )
    obsolete_factor: float = Field(ge=0, le=1, description="gamma: weight of the newest change in Diff; 0 = constant")
    diff_source: Literal["clipped", "unclipped"] = Field(description="which difference the adaptive Diff follows")
    sigma_diff: float | None = Field(ge=0, description="noise on the norm in Diff, in units of C; null: the default")


class ADPFLOptions(SumOptions, PFLOptions, ClippingOptions):
    twice: ClassVar[tuple[str, ...]] = ("allocation",)
    weighting: Literal["uniform"] = on_server("weights of the mean over the replies")
    epsilon: float = Field(gt=0, le=1e12, description="eps: claimed for one round, by equation 16")
    claimed_delta: float = Field(gt=0, lt=1, description="delta of the claim")
    noise_multiplier: float | None = Field(  # type: ignore[assignment]
        ge=0, description="noise standard deviation / C; null: by equation 16 from epsilon"
    )
    base_share: float = Field(gt=0, le=1, description="a: share of eps that a clipped update gets")
    allocation: Literal["adaptive", "fixed"] = Field(description="a round's eps_i: by equation 12, or eps")


class ExampleLevelOptions(GaussianOptions):
    """Of clients that protect single examples; their analysis needs Poisson batches. The server announces the noise."""

    twice: ClassVar[tuple[str, ...]] = ("noise_multiplier",)
    clip_norm: float = Field(ge=SMALLEST, description="L2 bound Theta of one example's gradient")
    local_steps: int = Field(ge=1, description="noisy steps in a round")
    clipping: Literal["fixed", "adaptive", "median"] = Field(description="how Theta is chosen")
    count_noise: float = Field(gt=0, description="adaptive: noise on the count of gradients within Theta")
    clip_lr: float = Field(ge=0, description="adaptive: learning rate eta_C of Theta")
    target_quantile: float = Field(ge=0, le=1, description="adaptive: share of gradients that Theta leaves alone")


class AdamOptions(ExampleLevelOptions):
    adam_beta1: float = Field(ge=0, lt=1, description="Adam's beta_1", json_schema_extra={"name": "beta1"})
    adam_beta2: float = Field(ge=0, lt=1, description="Adam's beta_2", json_schema_extra={"name": "beta2"})


class DecayingOptions(ExampleLevelOptions):
    twice: ClassVar[tuple[str, ...]] = ("decay", "floor")
    decay: float = Field(gt=0, le=1, description="rho: factor by which the noise falls")
    floor: float = Field(gt=0, le=1, description="repaired: smallest sigma_t / sigma_0")
    threshold: float = on_server("mu: a smaller fall of the public loss lowers the noise", ge=0)
    variant: Variant = follows("privacy.variant")


class DPFLAGNOptions(DecayingOptions, AdamOptions):
    pass


class OneBitOptions(MethodOptions):
    twice: ClassVar[tuple[str, ...]] = ("encode", "radius")
    encode: Literal["update", "weights"] = Field(description="what is quantised: the update, or the trained weights")
    radius: Any = Field(description="r: half of a coordinate's interval; a number, or a list with one per named block")
    radius_floor: float = on_server("weights: r_min", gt=0)
    clip_factor: float = on_server("weights: next r over half the range of a layer's released weights", gt=0)
    weighting: Literal["uniform"] = on_server("weights of the mean over the replies")

    @field_validator("radius", mode="after")
    @classmethod
    def _radius_is_positive(cls, radius: Any) -> Any:
        for value in radius if isinstance(radius, list) and radius else [radius]:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-9 <= value <= 1e9:
                words = "must be from 1e-9 to 1e9, or a list of such numbers"
                raise OptionError("strategy.client.radius", radius, words)
        return radius


class PrivateBitOptions(OneBitOptions):
    twice: ClassVar[tuple[str, ...]] = ("epsilon",)
    epsilon: float | None = Field(gt=0, le=20, description="eps of one coordinate; null: no privacy")


class LDPFLOptions(PrivateBitOptions):
    twice: ClassVar[tuple[str, ...]] = ("min_replies",)
    shuffle: bool = Field(description="account for whoever sees a round's shuffled bits only, as well")
    shuffle_delta: float = Field(gt=0, lt=1, description="part of delta that shuffling may use up over the run")


class CoQFLOptions(PrivateBitOptions):
    twice: ClassVar[tuple[str, ...]] = ("bits", "group_size")
    bits: int = Field(ge=0, le=16, description="M: shared bits per coordinate; 0: none, as LDP-FL")
    group_size: int = Field(ge=2, le=1024, description="g: clients that share; 2: antithetic pairs")
    private_share: float = Field(gt=0, le=1, description="mu, repaired: probability of a private uniform")


class SelectingOptions(GaussianGradientOptions):
    twice: ClassVar[tuple[str, ...]] = ("selection",)
    selection: Literal["random", "gumbel"] = Field(description="repaired: a public mask, or a private top-k")
    variant: Variant = follows("privacy.variant")
    selection_share: float = Field(gt=0, lt=1, description="gumbel: part of a round's budget that the selection gets")
    score_bound: float | None = Field(ge=SMALLEST_SCORE, description="gumbel: tau, at most C; null: C/sqrt(k)")


class FedAGSOptions(SelectingOptions):
    twice: ClassVar[tuple[str, ...]] = ("threshold", "loss_weights")
    rounds: int = follows("num_rounds")
    threshold: Literal["equation", "text"] = Field(description="k_t-th smallest as equation 35, or k_t-th largest")
    loss_weights: bool | None = Field(description="weigh clients by their losses; null: published true, repaired false")
    significance: Literal["signed", "magnitude"] = Field(description="published: compare g' or |g'| with the threshold")
    svt_scale: Literal["algorithm1", "section4"] = Field(description="published: comparison's noise DeltaS or q*DeltaS")
    noise: Literal["gaussian", "laplace"] = Field(description="published: noise of the values")
    gaussian_eps: Literal["total", "eps3"] = Field(description="published: which epsilon equation 2 takes")
    values_share: float = Field(gt=0, lt=1, description="published: eps3/eps")
    epsilon_split: Any = Field(description="published: [eps1, eps2, eps3]; null: by values_share and q^(2/3) : 1")
    loss_bound: float = Field(gt=0, description="repaired with loss_weights: L_max")
    loss_share: float = Field(gt=0, lt=1, description="repaired with loss_weights: the loss's part of a round's budget")

    @property
    def weighs_by_loss(self) -> bool:
        """Repaired, no loss leaves a client unless it is asked for."""
        return self.variant == "published" if self.loss_weights is None else self.loss_weights


class DPFedSNLCOptions(SelectingOptions):
    twice: ClassVar[tuple[str, ...]] = ("share",)
    share: float = Field(gt=0, le=1, description="share of the coordinates that counts as significant")


class WholeGaussianOptions(ModularOptions, ClippingOptions):
    """Of ddgauss and skellam: one number of theirs is of no use to a server."""

    twice: ClassVar[tuple[str, ...]] = ("noise_multiplier", "count_noise", "norm_noise")
    secure_sum: Literal["ideal", "protocol"] = follows("strategy.secure_sum")
    bits: int = on_server("whole numbers are added modulo 2^bits", ge=FEWEST_BITS, le=MOST_BITS)


class SkellamOptions(WholeGaussianOptions):
    claimed_delta: float = Field(gt=0, lt=1, description="of which the bounds of a run may use up a hundredth")


#: A run of fewer rounds has none to spare for its inputs.
FEWEST_SCALED = 10


class DPSumOptions(RowSumOptions):
    """Of dpsum: sums of gradients over examples at sites."""

    average: float = on_server("share of the rounds, the last ones, whose mean model is the final one", ge=0, le=1)
    rounds: int = follows("num_rounds")
    clip_norm: float = Field(ge=SMALLEST, description="L2 bound C of one example's (person's) gradient")
    sampling_rate: float = Field(
        gt=0, le=1, description="central, local: probability with which each example takes part in a round"
    )
    scale_inputs: bool = Field(
        description="rounds 1 and 2 release means and deviations of the inputs, by which these are centred and scaled; "
        f"of models linear and mlp in runs of {FEWEST_SCALED} rounds and more"
    )

    @property
    def rate(self) -> float:
        return self.sampling_rate

    def scales(self, flat_inputs: int) -> bool:
        """Whether `scale_inputs` applies to this run; flat_inputs: as `PublicFacts`."""
        return self.scale_inputs and self.rounds >= FEWEST_SCALED and flat_inputs > 0


class CpSGDOptions(ModularOptions, GradientOptions):
    twice: ClassVar[tuple[str, ...]] = ("levels", "trials", "epsilon", "claimed_delta", "clip_norm", "sensitivity")
    levels: int = Field(ge=2, le=2**20, description="k: levels of the quantisation")
    trials: int | None = Field(ge=0, le=2**50, description="m: binomial trials; null: the fewest that epsilon allows")
    rounds: int = follows("num_rounds")
    variant: Variant = follows("privacy.variant")


class NbAFLOptions(MethodOptions):
    twice: ClassVar[tuple[str, ...]] = ("epsilon", "clip_norm", "claimed_delta", "exposures", "min_replies")
    epsilon: float = Field(gt=0, description="what the noise is claimed to buy over the whole run")
    clip_norm: float = Field(ge=SMALLEST, description="L2 bound C of the weights")
    claimed_delta: float = Field(gt=0, lt=1, description="delta of the claim")
    exposures: int | None = Field(ge=1, description="L: uploads of one client; null: the number of rounds")
    rounds: int = follows("num_rounds")
    weighting: Literal["uniform"] = on_server("weights of the mean over the replies")
    noise_multiplier: float | None = Field(ge=0, description="sU / C; null: by the paper's formula")
    proximal_mu: float = Field(ge=0, description="mu of the proximal term mu/2 * ||w - w_global||^2")


#: name -> its options. A method without a row here is a user's own: its halves name their class
#: (`fedpriv.config.halves`).
METHODS: dict[str, type[MethodOptions]] = {
    "fedavg": MethodOptions,
    "fedprox": FedProxOptions,
    "fedper": PersonalOptions,
    "lgfedavg": HeadOptions,
    "fedvf": FedVFOptions,
    "pfl": PFLOptions,
    "adpfl": ADPFLOptions,
    "fedldp": FedLDPOptions,
    "fedcad": FedCADOptions,
    "ldpfl": LDPFLOptions,
    "coqfl": CoQFLOptions,
    "corrquant": OneBitOptions,
    "fedags": FedAGSOptions,
    "dpfedavg": DPFedAvgOptions,
    "scaffold": ScaffoldOptions,
    "dpftrl": DPFTRLOptions,
    "cpsgd": CpSGDOptions,
    "ddgauss": WholeGaussianOptions,
    "skellam": SkellamOptions,
    "dpsum": DPSumOptions,
    "ask": AskOptions,
    "dpfedsnlc": DPFedSNLCOptions,
    "dpsgd": ExampleLevelOptions,
    "agn": AdamOptions,
    "anr": DecayingOptions,
    "dpfl_agn": DPFLAGNOptions,
    "nbafl": NbAFLOptions,
    "privunit": PrivUnitOptions,
    "fedonce": FedOnceOptions,
}
