"""The options of every method: one class, which both halves read.

``METHODS`` is the table of contents. Nothing heavy is imported (see `fedpriv.config.schema`).
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, field_validator

from fedpriv.common.errors import OptionError
from fedpriv.common.sum_limits import FEWEST_BITS, MOST_BITS
from fedpriv.config.options import SMALLEST, Head, MethodOptions, Options, follows, on_server

Variant = Literal["repaired", "published"]
#: As `SMALLEST`, of a score.
SMALLEST_SCORE = 1e-12
#: An adaptive Theta stays within this factor of its start.
CLIP_RANGE = 1e3
#: Options that say how much noise a method adds: what `privacy.target_epsilon` chooses, or makes ineffective.
NOISE_OPTIONS = ("noise_multiplier", "epsilon", "trials", "private_share")

#: Who adds up: nobody (an observer of sums is assumed), the server in the open, or the clients' masks.
SecureSum = Literal["assumed", "ideal", "protocol"]
#: Largest epsilon of one release, but by the Gaussian: e^epsilon is then not far from leaving float64.
MOST_EPSILON = 500


def _length(option: str, given: Any, *words: str) -> Any:
    """A step's length, or a word for how it is found. Raises `OptionError`."""
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if given not in words and not (number and 0 < given <= 1e9):
        raise OptionError(option, given, f"must be {', '.join(words)}, or more than 0 and at most 1e9")
    return given


# --- secure sums: who holds it, and in which numbers ---------------------------------------------------------


class SumOptions(MethodOptions):
    """Of clients whose noises add up in a secure sum of at least ``min_replies`` uploads."""

    colluders: int = Field(
        ge=0, description="among min_replies: clients whose noise the observer of a secure sum knows"
    )


class WeighedSumOptions(SumOptions):
    """The weights decide how many noises a sum's account counts."""


class ModularOptions(SumOptions):
    """Of servers that add up whole numbers modulo 2^bits, and of their clients."""

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


#: Kinds of questions that a round asks near what the round before found.
IN_ROUNDS = ("quantiles", "logistic", "poisson", "hazards")


def asked_in_rounds(question: str) -> bool:
    """Whether later rounds ask otherwise: of a heterogeneity, whether its regression's do."""
    kind, *rest = (part.strip() for part in question.split(":"))
    return kind in IN_ROUNDS or (kind == "heterogeneity" and any(part in IN_ROUNDS for part in rest[1:2]))


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
    def runs_scored(self) -> tuple[str, ...]:
        """Names of the runs whose model is asked about (score:RUN), each once."""
        parts = ([part.strip() for part in question.split(":")] for question in self.questions)
        return tuple(dict.fromkeys(":".join(rest[:1]) for kind, *rest in parts if kind == "score"))

    @property
    def sections(self) -> int:
        """How many rounds have numbers of their own in the sum: all where a later one asks otherwise, else one."""
        return self.rounds if any(map(asked_in_rounds, self.questions)) else 1


class MomentsOptions(RowSumOptions):
    """Of moments: one sum of what a linear head needs. Its clip norm is 1."""

    noise_multiplier: float = Field(ge=0, description="standard deviation of one noise; a row's vector is of length 1")
    head: Head = follows("model.head")
    bound: float | None = follows("model.bound")


# --- accumulated gradients, and control variates beside them -------------------------------------------------


class CentralClippingOptions(Options):
    """How a trusted server moves the clip norm of the updates that it sums."""

    clipping: Literal["fixed", "quantile"] = on_server("how C moves from round to round; quantile: central")
    clip_lr: float = on_server("quantile: learning rate eta_C of C", ge=0)
    target_quantile: float = on_server("quantile: share of updates that C leaves alone", ge=0, le=1)
    floor: float = on_server("quantile: smallest C", gt=0)
    norm_bound: float = on_server("quantile: B, largest C", gt=0)
    count_share: float = on_server("quantile: share of a round's cost that the noisy count gets", gt=0, lt=1)


class DPFTRLOptions(MethodOptions):
    factor: Literal["identity", "sqrt", "banded", "bisr", "blt"] = Field(
        description="C: independent noise, the square root of the prefix sum, its band, that of its inverse, or a few "
        "decaying buffers"
    )
    bandwidth: int | None = Field(
        ge=1, description="banded, bisr: diagonals of C, of its inverse; null: the best for the run"
    )
    buffers: int = Field(ge=1, le=8, description="blt: buffers")
    noise_multiplier: float = Field(
        ge=0, le=1e9, description="sigma: noise standard deviation / (C * sensitivity of the whole run)"
    )
    clip_norm: float = Field(ge=1e-6, description="C: L2 bound of a client's update")
    participation: Literal["once", "balanced", "cyclic"] = on_server("how often a client may take part")
    client_sampling: Literal["fixed", "poisson", "balls"] = on_server(  # type: ignore[assignment]
        "fixed: the guarantee needs no sample; poisson: a secret sample of one of bandwidth groups, which take turns; "
        "balls: one secret round of each pass for every client, the same in all (balls in bins)"
    )
    weighting: Literal["uniform"] = on_server("weights of the mean over the replies")
    min_replies: int = on_server("1: the guarantee must not depend on how many clients replied", ge=1, le=1)
    rounds: int = follows("num_rounds")

    @property
    def secret_cohorts(self) -> bool:
        """Whether who takes part in a round is secret."""
        return self.client_sampling != "fixed"

    @property
    def takes_turns(self) -> bool:
        """Whether the cohort is a secret sample of one group."""
        return self.client_sampling == "poisson"

    @property
    def groups(self) -> int:
        return (self.bandwidth or 1) if self.takes_turns else 1

    def pattern(self, most: int, apart: int) -> tuple[int, int, int]:
        """(T, k, b) of which the noise is a multiple of the sensitivity: of a client all of its rounds, at most k and
        at least b apart; of one that is sampled anew a single round.
        """
        return (self.rounds, 1, self.groups) if self.takes_turns else (self.rounds, most, apart)


class GradientOptions(MethodOptions):
    """What DP-FedAGS and its rivals have in common."""

    learning_rate: float = on_server("eta of the server's step along the mean gradient", gt=0)
    epsilon: float = Field(ge=1e-6, le=1e6, description="what one round is to cost")
    claimed_delta: float = Field(gt=0, lt=1, description="delta of that cost, repaired")
    clip_norm: float = Field(ge=SMALLEST, description="C: L2 bound of the accumulated gradient, update / local.lr")
    sensitivity: Literal["clip", "per_example"] = Field(
        description="published: DeltaS of the noise, 2C, or 2C/n_k (no sensitivity of anything)"
    )


class GaussianGradientOptions(GradientOptions):
    noise_multiplier: float | None = Field(
        ge=0, description="noise standard deviation / C; null: what epsilon asks for"
    )


class NoisyGradientOptions(WeighedSumOptions, GaussianGradientOptions):
    form: Literal["local", "central"] = Field(description="noise by each client, or by a trusted server on the sum")

    @property
    def secret_cohorts(self) -> bool:
        """Whether the guarantee rests on cohorts that outsiders do not know."""
        return self.form == "central"

    @property
    def beside(self) -> tuple[str, float] | None:
        """(a number that a trusted server sums beside the gradients, its share of a round's cost), by the name that
        `fedpriv.mechanisms.trusted_sums` gives it.
        """
        return None


class DPFedAvgOptions(CentralClippingOptions, NoisyGradientOptions):
    learning_rate: Any = on_server("eta of the server's step along the mean gradient; central: noise: by the noise")

    @field_validator("learning_rate", mode="after")
    @classmethod
    def _rate_is_positive(cls, rate: Any) -> Any:
        rate = _length("strategy.server.learning_rate", rate, "noise")
        return rate if rate == "noise" else float(rate)

    @property
    def beside(self) -> tuple[str, float] | None:
        return ("within", self.count_share) if self.clipping == "quantile" else None


class DPFedEXPOptions(NoisyGradientOptions):
    sensitivity: Literal["clip"] = Field(description="2C")
    norm_share: float = on_server("central: share of a round's cost that the mean of squared norms gets", gt=0, lt=1)

    @property
    def beside(self) -> tuple[str, float] | None:
        return ("square", self.norm_share) if self.form == "central" else None


class DPFedSAMOptions(NoisyGradientOptions):
    sensitivity: Literal["clip"] = Field(description="2C")
    sharpness: float = Field(
        ge=0, le=1e3, description="rho: how far up the gradient of a local step is taken; 0: DP-FedAvg"
    )


class DPZOOptions(NoisyGradientOptions):
    sensitivity: Literal["clip"] = Field(description="2C")
    clip_norm: float = Field(ge=SMALLEST, description="C: L2 bound of the K numbers, sums over the local steps")
    directions: int = Field(ge=1, le=4096, description="K: public random directions, and numbers of a release")
    smoothing: float = Field(gt=0, le=1e3, description="phi: losses are compared at w + phi z_k and w - phi z_k")


class ScaffoldOptions(NoisyGradientOptions):
    steps: Any = follows("local.steps")
    control_norm: float = Field(
        gt=0, le=1e6, description="bound of the server's c in units of C/K, which c without noise never exceeds"
    )
    sensitivity: Literal["clip"] = Field(description="2C")
    correction: float = Field(
        ge=0, le=1, description="alpha: share of c - c_i that is added to a gradient; 1: SCAFFOLD, 0: DP-FedAvg"
    )


# --- directions ----------------------------------------------------------------------------------------------


class UnitOptions(WeighedSumOptions):
    """Of PrivUnit and FedOnce."""

    mechanism: Literal["privunit", "projunit", "sqkr", "gaussian"] = Field(description="how a direction is released")
    epsilon: float = Field(ge=1e-5, le=1e6, description=f"what one release costs; above {MOST_EPSILON}: gaussian alone")
    bits: int | None = Field(ge=1, le=16, description="sqkr: b, bits of a release; null: the best for epsilon")
    projections: int = Field(ge=1, le=2**20, description="projunit: k, numbers of a release")
    claimed_delta: float = Field(gt=0, lt=1, description="gaussian: delta of a release's epsilon")


class PrivUnitOptions(UnitOptions):
    learning_rate: float = on_server("eta of the server's step along the mean direction", gt=0)


class FedOnceOptions(UnitOptions):
    step: Any = on_server("how far the mean direction moves theta: a number; auto: by the rule; noise: by the noise")
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
        return _length("strategy.server.step", step, "auto", "noise")

    @field_validator("effective_dims", mode="after")
    @classmethod
    def _dims_are_whole(cls, dims: Any) -> Any:
        number = isinstance(dims, int) and not isinstance(dims, bool) and dims >= 1
        if dims not in ("auto", None) and not number:
            raise OptionError("strategy.server.effective_dims", dims, "must be auto, null, or a whole number from 1")
        return dims


# --- updates -------------------------------------------------------------------------------------------------


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

    clip_norm: float = Field(ge=SMALLEST, description="L2 bound Theta of one example's gradient")
    local_steps: int = Field(ge=1, description="noisy steps in a round")
    clipping: Literal["fixed", "adaptive", "median"] = Field(description="how Theta is chosen")
    count_noise: float = Field(gt=0, description="adaptive: noise on the count of gradients within Theta")
    clip_lr: float = Field(ge=0, description="adaptive: learning rate eta_C of Theta")
    target_quantile: float = Field(ge=0, le=1, description="adaptive: share of gradients that Theta leaves alone")


class AdamOptions(ExampleLevelOptions):
    adam_beta1: float = Field(ge=0, lt=1, description="Adam's beta_1", json_schema_extra={"name": "beta1"})
    adam_beta2: float = Field(ge=0, lt=1, description="Adam's beta_2", json_schema_extra={"name": "beta2"})


class AGNOptions(AdamOptions):
    noise_corrected: bool = Field(
        default=False, description="take the noise's own second moment off Adam's (DP-AdamBC)"
    )
    correction_floor: float = Field(
        default=1e-8, gt=0, description="noise_corrected: least second moment of a gradient"
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's, times the learning rate and the parameters")


class DecayingOptions(ExampleLevelOptions):
    decay: float = Field(gt=0, le=1, description="rho: factor by which the noise falls")
    floor: float = Field(gt=0, le=1, description="repaired: smallest sigma_t / sigma_0")
    threshold: float = on_server("mu: a smaller fall of the public loss lowers the noise", ge=0)
    variant: Variant = follows("privacy.variant")


class DPFLAGNOptions(DecayingOptions, AdamOptions):
    pass


class OneBitOptions(MethodOptions):
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
    epsilon: float | None = Field(gt=0, le=20, description="eps of one coordinate; null: no privacy")


class LDPFLOptions(PrivateBitOptions):
    shuffle: bool = Field(description="account for whoever sees a round's shuffled bits only, as well")
    shuffle_delta: float = Field(gt=0, lt=1, description="part of delta that shuffling may use up over the run")


class CoQFLOptions(PrivateBitOptions):
    bits: int = Field(ge=0, le=16, description="M: shared bits per coordinate; 0: none, as LDP-FL")
    group_size: int = Field(ge=2, le=1024, description="g: clients that share; 2: antithetic pairs")
    private_share: float = Field(gt=0, le=1, description="mu, repaired: probability of a private uniform")


class SelectingOptions(GaussianGradientOptions):
    selection: Literal["random", "gumbel"] = Field(description="repaired: a public mask, or a private top-k")
    variant: Variant = follows("privacy.variant")
    selection_share: float = Field(gt=0, lt=1, description="gumbel: part of a round's budget that the selection gets")
    score_bound: float | None = Field(ge=SMALLEST_SCORE, description="gumbel: tau, at most C; null: C/sqrt(k)")


class FedAGSOptions(SelectingOptions):
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
    share: float = Field(gt=0, le=1, description="share of the coordinates that counts as significant")


class WholeGaussianOptions(ModularOptions, ClippingOptions):
    """Of ddgauss and skellam: one number of theirs is of no use to a server."""

    secure_sum: Literal["ideal", "protocol"] = follows("strategy.secure_sum")
    bits: int = on_server("whole numbers are added modulo 2^bits", ge=FEWEST_BITS, le=MOST_BITS)


class SkellamOptions(WholeGaussianOptions):
    claimed_delta: float = Field(gt=0, lt=1, description="of which the bounds of a run may use up a hundredth")


#: A run of fewer rounds has none to spare for its inputs or its risks.
FEWEST_SCALED = 10
#: Of so many rounds one is for the inputs' means, and one for their deviations.
STATISTICS = 10
#: Rounds that its risks get, where a round's noise is at most this share of the rows: more would make them worse.
RECALIBRATION, MOST_NOISE = 2, 0.02


class DPSumOptions(RowSumOptions):
    """Of dpsum: sums of gradients over examples at sites."""

    average: float = on_server("share of the rounds, the last ones, whose mean model is the final one", ge=0, le=1)
    rounds: int = follows("num_rounds")
    clip_norm: float = Field(ge=SMALLEST, description="L2 bound C of one example's (person's) gradient")
    sampling_rate: float = Field(
        gt=0, le=1, description="central, local: probability with which each example takes part in a round"
    )
    scale_inputs: bool = Field(
        description="the first fifth of the rounds releases means and deviations of the inputs, by which these are "
        f"centred and scaled; of models linear and mlp in runs of {FEWEST_SCALED} rounds and more"
    )
    recalibration: int | None = Field(
        ge=0,
        description="last rounds, which make a linear classifier's probabilities on a table risks; null: "
        f"{RECALIBRATION} in runs of {FEWEST_SCALED} rounds and more with a noise up to {MOST_NOISE:.0%} of the rows",
    )

    @property
    def rate(self) -> float:
        return self.sampling_rate

    def input_rounds(self, flat_inputs: int) -> int:
        """Rounds for the inputs' means, and as many for their deviations; 0 where `scale_inputs` does not apply.
        flat_inputs: as `PublicFacts`.
        """
        applies = self.scale_inputs and self.rounds >= FEWEST_SCALED and flat_inputs > 0
        return max(1, self.rounds // STATISTICS) if applies else 0

    def mean_noise(self, rows: int, sites: int, clients: int) -> float:
        """Standard deviation of the noise in a round's mean, in units of the bound: of so many sites, of clients that
        hold so many rows in all.
        """
        noises = 1 if self.form == "central" else sites
        return self.noise_multiplier * math.sqrt(noises) * clients / (rows * self.sampling_rate * sites)

    def recalibrates(self, risk_classes: int, noise: float) -> int:
        """How many last rounds recalibrate. risk_classes: as `PublicFacts`; noise: `mean_noise`."""
        if self.recalibration is None:
            enough = self.rounds >= FEWEST_SCALED and noise <= MOST_NOISE
            return RECALIBRATION if risk_classes and enough else 0
        if self.recalibration and not risk_classes:
            words = "needs a table with classes, of which model=linear reads three inputs or more; allowed: null, 0"
            raise OptionError("strategy.client.recalibration", self.recalibration, words)
        if self.recalibration >= self.rounds:
            words = f"leaves no round to train in; allowed: null, 0 to num_rounds - 1 = {self.rounds - 1}"
            raise OptionError("strategy.client.recalibration", self.recalibration, words)
        return self.recalibration


class CpSGDOptions(ModularOptions, GradientOptions):
    levels: int = Field(ge=2, le=2**20, description="k: levels of the quantisation")
    trials: int | None = Field(ge=0, le=2**50, description="m: binomial trials; null: the fewest that epsilon allows")
    rounds: int = follows("num_rounds")
    variant: Variant = follows("privacy.variant")


class NbAFLOptions(MethodOptions):
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
    "dpfedexp": DPFedEXPOptions,
    "dpfedsam": DPFedSAMOptions,
    "dpzo": DPZOOptions,
    "scaffold": ScaffoldOptions,
    "dpftrl": DPFTRLOptions,
    "cpsgd": CpSGDOptions,
    "ddgauss": WholeGaussianOptions,
    "skellam": SkellamOptions,
    "dpsum": DPSumOptions,
    "ask": AskOptions,
    "moments": MomentsOptions,
    "dpfedsnlc": DPFedSNLCOptions,
    "dpsgd": ExampleLevelOptions,
    "agn": AGNOptions,
    "anr": DecayingOptions,
    "dpfl_agn": DPFLAGNOptions,
    "nbafl": NbAFLOptions,
    "privunit": PrivUnitOptions,
    "fedonce": FedOnceOptions,
}
