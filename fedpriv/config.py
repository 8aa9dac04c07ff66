"""The schema: every option of the project, its type, its range, its default's home.

The YAML tree in ``conf/`` holds the defaults and the comments for people; the classes here say what is
allowed. Nothing heavy is imported, so a wrong value is refused within a second, before any data is read.
``fedpriv.compose`` turns YAML and command line into a `Config`; everything behind it gets typed values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedpriv.errors import OptionError


class Options(BaseModel):
    """A group of options: unknown keys are refused, values are never converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


# --- data ------------------------------------------------------------------------------------------------


#: Public facts of the sets that everybody has: (training pictures, classes). Others are known once read.
KNOWN_SETS = {
    "digits": (1437, 10),
    "mnist": (60_000, 10),
    "fashion_mnist": (60_000, 10),
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
}


class DatasetConfig(Options):
    name: Literal["digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "image_folder", "custom"]
    root: str | None = Field(description="folder that holds the pictures (torchvision's layout, or class folders)")
    download: bool = Field(description="fetch a torchvision set into root if it is not there")
    auxiliary: int = Field(ge=0, description="public pictures cut from the test set for methods that need them")
    size: int | None = Field(default=None, ge=4, le=1024, description="image_folder: side length of every picture")
    channels: Literal[1, 3] = Field(default=3, description="image_folder: 1 grey, 3 colour")
    test_fraction: float = Field(default=0.2, gt=0, lt=1, description="image_folder without train/test: test share")
    path: str | None = Field(default=None, description="custom: dotted path of the user's own function")
    cache: str | None = Field(
        default=None, description="folder of decoded pictures (null: $FEDPRIV_CACHE or ~/.cache/fedpriv)"
    )


# --- partition -------------------------------------------------------------------------------------------


class PartitionBase(Options):
    test_fraction: float = Field(ge=0, lt=1, description="share of each client's pictures kept as its local test set")


class IidPartition(PartitionBase):
    name: Literal["iid"]


class DirichletPartition(PartitionBase):
    name: Literal["dirichlet"]
    alpha: float = Field(gt=0, description="concentration; small = every client has few classes")
    min_examples: int = Field(ge=1, description="smallest number of pictures a client may get")


class PathologicalPartition(PartitionBase):
    name: Literal["pathological"]
    classes_per_client: int = Field(ge=1, description="classes that a client holds")


class ShardsPartition(PartitionBase):
    name: Literal["shards"]
    shards_per_client: int = Field(ge=1, description="label-sorted blocks that a client holds")


PartitionConfig = Annotated[
    IidPartition | DirichletPartition | PathologicalPartition | ShardsPartition, Field(discriminator="name")
]


# --- model, local training, engine, privacy --------------------------------------------------------------


class ModelConfig(Options):
    name: Literal["auto", "linear", "mlp", "cnn", "cnn_agn", "resnet18", "resnet34", "custom"]
    hidden: int = Field(default=64, ge=1, description="mlp: width of the hidden layer")
    second_hidden: int = Field(default=0, ge=0, description="cnn_agn: width of a second fully connected layer, 0 none")
    groups: int = Field(default=8, ge=1, description="resnet: groups of GroupNorm (divides 64)")
    path: str | None = Field(default=None, description="custom: dotted path of a function (shape, classes) -> module")


class LocalConfig(Options):
    epochs: int = Field(ge=1, description="passes over the client's data in a round")
    batch_size: int = Field(ge=1, description="pictures in a batch (expected number under Poisson sampling)")
    lr: float = Field(gt=0, description="learning rate of local SGD")
    momentum: float = Field(ge=0, lt=1, description="momentum of local SGD, reset every round")
    sampler: Literal["shuffle", "poisson"] = Field(description="how batches are drawn")


class Fault(Options):
    """One planned fault: what goes wrong, for whom and when."""

    round: int = Field(ge=1)
    client: int = Field(ge=0)
    exchange: Literal["train", "statistics", "keys", "seeds"] = "train"
    kind: Literal["drop", "raise"]


class EngineConfig(Options):
    name: Literal["auto", "inprocess", "ray", "flower"]
    workers: int | None = Field(ge=1, description="ray, flower: worker processes (null: one per core or GPU slice)")
    threads_per_client: int = Field(ge=1, description="torch threads of one client's training")
    trainer: Literal["auto", "sequential"] = Field(description="how a client's local training is computed")
    address: str | None = Field(description="ray: join the cluster at this address")
    device: Literal["auto", "cpu", "cuda"] = Field(description="where clients train (auto: a GPU where there is one)")
    gpus_per_worker: float = Field(gt=0, le=1, description="ray on GPUs: share of a GPU that a worker takes")
    round_timeout: float = Field(gt=0, description="seconds to wait for the replies of one exchange")
    faults: tuple[Fault, ...] = Field(default=(), description="planned faults: (round, client, exchange, kind)")


class PrivacyConfig(Options):
    variant: Literal["repaired", "published"] = Field(description="the method with its faults mended, or as printed")
    delta: float = Field(gt=0, lt=1, description="delta at which every epsilon is stated")
    max_epsilon: float | None = Field(gt=0, description="a client stops before its total would exceed this")
    target_epsilon: float | None = Field(gt=0, description="choose the noise multiplier for the whole planned run")
    rng: Literal["seeded", "secure"] = Field(description="noise: repeatable, or from the operating system's keys")


class EvaluateConfig(Options):
    every: int = Field(ge=0, description="evaluate the global model every n rounds (0: at the end only)")
    batch_size: int = Field(ge=1, description="test pictures per batch of the evaluation")
    clients: bool = Field(
        default=True, description="clients with a local test set (partition.test_fraction) test their own models"
    )


class CheckpointConfig(Options):
    every: int = Field(ge=0, description="write a checkpoint every n rounds (0: never)")
    keep: int = Field(ge=1, description="newest checkpoints that are kept")


# --- methods ---------------------------------------------------------------------------------------------


class ServerOptions(Options):
    """Options that every server half has."""

    target_: ClassVar[str]
    min_replies: int = Field(ge=1, description="fewer usable replies than this end the run")
    client_sampling: Literal["fixed", "poisson"] = Field(description="cohort of exactly clients_per_round, or Poisson")
    weighting: Literal["uniform", "examples"] = Field(description="weights of the mean over the replies")


class ClientOptions(Options):
    """Options that every client half has: none."""


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
    clip_norm: float = Field(gt=0, description="L2 bound C of a client's update")


class ClippingServerOptions(ServerOptions):
    clipping: Literal["fixed", "quantile", "geometric", "adp"] = Field(description="how C moves from round to round")
    clip_norm: float = Field(gt=0, description="C of round 1 (the client's own)")
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


class FedCADClientOptions(ClippingClientOptions):
    diff: float = Field(
        ge=1e-3, le=1 - 1e-3, description="initial Diff D_0: bound of the change between updates, in units of C"
    )
    obsolete_factor: float = Field(ge=0, le=1, description="gamma: weight of the newest change in Diff; 0 = constant")
    diff_source: Literal["clipped", "unclipped"] = Field(description="which difference the adaptive Diff follows")
    sigma_diff: float | None = Field(ge=0, description="noise on the norm in Diff, in units of C; null: the default")


class ADPFLServerOptions(DistillationServerOptions, ClippingServerOptions):
    weighting: Literal["uniform"] = Field(description="weights of the mean over the replies")  # type: ignore[assignment]
    allocation: Any = Field(description="as strategy.client.allocation")


class ADPFLClientOptions(FedPerClientOptions, ClippingClientOptions):
    epsilon: float = Field(gt=0, le=1e12, description="eps: claimed for one round, by equation 16")
    claimed_delta: float = Field(gt=0, lt=1, description="delta of the claim")
    noise_multiplier: float | None = Field(  # type: ignore[assignment]
        ge=0, description="noise standard deviation / C; null: by equation 16 from epsilon"
    )
    base_share: float = Field(gt=0, le=1, description="a: share of eps that a clipped update gets")
    allocation: Literal["adaptive", "fixed"] = Field(description="a round's eps_i: by equation 12, or eps")
    min_replies: int = Field(ge=1, description="fewest uploads that a secure sum would add up")
    colluders: int = Field(ge=0, description="of these, clients whose noise the observer of a secure sum knows")


class ExampleLevelClientOptions(GaussianClientOptions):
    """Options of clients that protect single examples; their analysis needs Poisson batches."""

    clip_norm: float = Field(gt=0, description="L2 bound Theta of one example's gradient")
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
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise OptionError("strategy.client.radius", radius, "must be more than 0, or a list of such numbers")
        return radius


class PrivateBitOptions(OneBitOptions):
    epsilon: float | None = Field(gt=0, description="eps of one coordinate; null: no privacy")


class SharedBitOptions(PrivateBitOptions):
    bits: int = Field(ge=0, le=16, description="M: shared bits per coordinate; 0: none, as LDP-FL")
    group_size: int = Field(ge=2, description="g: clients that share; 2: antithetic pairs")


class OneBitServerOptions(ServerOptions):
    radius_floor: float = Field(gt=0, description="weights: r_min")
    clip_factor: float = Field(gt=0, description="weights: next r over half the range of a layer's released weights")
    weighting: Literal["uniform"] = Field(description="weights of the mean over the replies")  # type: ignore[assignment]


class LDPFLServerOptions(PrivateBitOptions, OneBitServerOptions):
    pass


class LDPFLClientOptions(PrivateBitOptions, ClientOptions):
    shuffle: bool = Field(description="account for whoever sees a round's shuffled bits only, as well")
    shuffle_delta: float = Field(gt=0, lt=1, description="part of delta that shuffling may use up over the run")


class CoQFLServerOptions(SharedBitOptions, OneBitServerOptions):
    pass


class CoQFLClientOptions(SharedBitOptions, ClientOptions):
    private_share: float = Field(gt=0, le=1, description="mu, repaired: probability of a private uniform")


class CorrQuantServerOptions(OneBitOptions, OneBitServerOptions):
    pass


class CorrQuantClientOptions(OneBitOptions, ClientOptions):
    pass


class DecayOptions(Options):
    decay: float = Field(gt=0, le=1, description="rho: factor by which the noise falls")
    floor: float = Field(gt=0, le=1, description="repaired: smallest sigma_t / sigma_0")


class ANRClientOptions(DecayOptions, ExampleLevelClientOptions):
    pass


class DPFLAGNClientOptions(DecayOptions, AdamClientOptions):
    pass


class AnnouncedNoiseServerOptions(ServerOptions):
    noise_multiplier: float = Field(ge=0, description="sigma_0 that the server announces (the client's own)")


class ANRServerOptions(DecayOptions, AnnouncedNoiseServerOptions):
    threshold: float = Field(ge=0, description="mu: a smaller fall of the public loss lowers the noise")
    variant: Literal["repaired", "published"] = Field(description="as privacy.variant")


class NbAFLOptions(Options):
    epsilon: float = Field(gt=0, description="what the noise is claimed to buy over the whole run")
    clip_norm: float = Field(gt=0, description="L2 bound C of the weights")
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
#: own: its options are checked by its constructors.
METHODS: dict[str, tuple[type[ServerOptions], type[ClientOptions]]] = {
    "fedavg": (ServerOptions, ClientOptions),
    "fedprox": (ServerOptions, FedProxClientOptions),
    "fedper": (ServerOptions, FedPerClientOptions),
    "lgfedavg": (ServerOptions, HeadClientOptions),
    "fedvf": (ServerOptions, FedVFClientOptions),
    "pfl": (PFLServerOptions, FedPerClientOptions),
    "adpfl": (ADPFLServerOptions, ADPFLClientOptions),
    "fedldp": (ClippingServerOptions, ClippingClientOptions),
    "fedcad": (ClippingServerOptions, FedCADClientOptions),
    "ldpfl": (LDPFLServerOptions, LDPFLClientOptions),
    "coqfl": (CoQFLServerOptions, CoQFLClientOptions),
    "corrquant": (CorrQuantServerOptions, CorrQuantClientOptions),
    "dpsgd": (AnnouncedNoiseServerOptions, ExampleLevelClientOptions),
    "agn": (AnnouncedNoiseServerOptions, AdamClientOptions),
    "anr": (ANRServerOptions, ANRClientOptions),
    "dpfl_agn": (ANRServerOptions, DPFLAGNClientOptions),
    "nbafl": (NbAFLServerOptions, NbAFLClientOptions),
}


class StrategyConfig(Options):
    """A method: its name and its two halves, each a mapping with ``_target_`` and the half's own options."""

    name: str
    server: dict[str, Any]
    client: dict[str, Any]


# --- all of it -------------------------------------------------------------------------------------------


class Config(Options):
    seed: int = Field(ge=0, lt=2**63)
    num_clients: int = Field(ge=1, description="clients in all (N)")
    clients_per_round: int = Field(ge=1, description="clients asked in a round (K)")
    num_rounds: int = Field(ge=1, description="rounds (T)")
    scale: Literal["literal", "small"] = Field(
        description="size of an experiment: the paper's, or minutes on two cores"
    )
    strategy: StrategyConfig
    dataset: DatasetConfig
    partition: PartitionConfig
    model: ModelConfig
    local: LocalConfig
    engine: EngineConfig
    privacy: PrivacyConfig
    evaluate: EvaluateConfig
    checkpoint: CheckpointConfig
    run_dir: str | None = Field(default=None, description="inside `flwr run`: folder for the run")

    @field_validator("dataset", mode="after")
    @classmethod
    def _dataset_has_what_it_needs(cls, dataset: DatasetConfig) -> DatasetConfig:
        if dataset.name == "image_folder" and dataset.root is None:
            raise OptionError("dataset.root", "null", "image_folder needs the folder that holds one folder per class")
        if dataset.name == "custom" and dataset.path is None:
            raise OptionError("dataset.path", "null", "custom needs the dotted path of a function, package.module.name")
        return dataset

    def server_options(self) -> dict[str, Any]:
        """Options of the server half without its ``_target_``."""
        return {key: value for key, value in self.strategy.server.items() if key != "_target_"}

    def client_options(self) -> dict[str, Any]:
        """Options of the client half without its ``_target_``."""
        return {key: value for key, value in self.strategy.client.items() if key != "_target_"}

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """SHA-256 of everything that decides the result (not of where files lie)."""
        content = self.to_dict()
        content.pop("run_dir")
        for place in ("root", "cache", "download"):
            content["dataset"].pop(place)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def validate(raw: dict[str, Any]) -> Config:
    """Checks a composed configuration (plain dictionaries and values).

    Raises `OptionError` naming the option, the value and what is allowed.
    """
    try:
        config = Config.model_validate(_freeze_lists(raw))
        _check_method(config)
    except ValidationError as error:
        raise _first_option_error(error) from None
    _check_across_options(config)
    return config


def _freeze_lists(raw: dict[str, Any]) -> dict[str, Any]:
    engine = raw.get("engine")
    if isinstance(engine, dict) and isinstance(engine.get("faults"), list):
        raw = {**raw, "engine": {**engine, "faults": tuple(engine["faults"])}}
    return raw


def _check_method(config: Config) -> None:
    """The options of both halves against their schema. A method of the user's own has none, and a name of its own."""
    package, _, rest = str(config.strategy.server.get("_target_", "")).partition(".")
    file = rest.partition(".")[0]
    if package == "strategies" and file in METHODS and config.strategy.name != file:
        words = f"this is the method {file}: choose it by strategy={file}"
        raise OptionError("strategy.name", config.strategy.name, words)
    if config.strategy.name not in METHODS:
        return
    # The client half first: what the server half repeats of it is the user's mistake there.
    halves = zip(("client", "server"), reversed(METHODS[config.strategy.name]), strict=True)
    for half, schema in halves:
        options = config.server_options() if half == "server" else config.client_options()
        try:
            schema.model_validate(options)
        except ValidationError as error:
            raise _first_option_error(error, prefix=("strategy", half)) from None
    if issubclass(METHODS[config.strategy.name][1], ExampleLevelClientOptions):
        _check_example_level(config)
    _check_min_replies(config)
    if issubclass(METHODS[config.strategy.name][1], OneBitOptions):
        _check_one_bit(config)
    if issubclass(METHODS[config.strategy.name][1], ClippingClientOptions):
        _check_clipping(config)


def _check_min_replies(config: Config) -> None:
    """A guarantee that counts on min_replies noises is only true if the server keeps to it."""
    server, client = config.server_options(), config.client_options()
    if "min_replies" in client and client["min_replies"] != server["min_replies"]:
        allowed = f"must be strategy.server.min_replies={server['min_replies']}"
        raise OptionError("strategy.client.min_replies", client["min_replies"], allowed)
    if client.get("colluders", 0) >= server["min_replies"] and client.get("colluders", 0) > 0:
        allowed = f"must be less than strategy.server.min_replies={server['min_replies']}"
        raise OptionError("strategy.client.colluders", client["colluders"], allowed)


def _check_one_bit(config: Config) -> None:
    """Both halves quantise alike, and a group fits into a round."""
    server, client = config.server_options(), config.client_options()
    for name in ("epsilon", "encode", "radius", "bits", "group_size"):
        if server.get(name) != client.get(name):
            raise OptionError(
                f"strategy.server.{name}", server.get(name), f"must be strategy.client.{name}={client.get(name)}"
            )
    size = client.get("group_size", 2)
    if size > max(2, config.clients_per_round):
        words = f"at most clients_per_round={config.clients_per_round} is allowed"
        raise OptionError("strategy.client.group_size", size, words)
    shuffle_delta = client.get("shuffle_delta", 0.0)
    if client.get("shuffle") and shuffle_delta >= config.privacy.delta:
        raise OptionError(
            "strategy.client.shuffle_delta", shuffle_delta, f"must be less than privacy.delta={config.privacy.delta}"
        )


def _check_clipping(config: Config) -> None:
    """Both halves follow the same rule, and the first C lies between its bounds."""
    server, client = config.server_options(), config.client_options()
    if server["clip_norm"] != client["clip_norm"]:
        allowed = f"must be strategy.client.clip_norm={client['clip_norm']}"
        raise OptionError("strategy.server.clip_norm", server["clip_norm"], allowed)
    for name in ("clipping", "window", "floor", "norm_bound"):
        if server[name] != client[name]:
            raise OptionError(f"strategy.client.{name}", client[name], f"must be strategy.server.{name}={server[name]}")
    if server.get("allocation") != client.get("allocation"):
        allowed = f"must be strategy.client.allocation={client['allocation']}"
        raise OptionError("strategy.server.allocation", server["allocation"], allowed)
    least, first, most = client["floor"], client["clip_norm"], client["norm_bound"]
    if client["clipping"] != "fixed" and not least <= first <= most:
        raise OptionError(
            "strategy.client.clip_norm", first, f"must be from strategy.server.floor={least} to norm_bound={most}"
        )


def _check_example_level(config: Config) -> None:
    """What the analysis of noisy steps rests on, and local options that they have no use for."""
    name, local = config.strategy.name, config.local
    if local.sampler != "poisson":
        raise OptionError("local.sampler", local.sampler, f"{name}'s analysis holds for Poisson batches: poisson")
    if local.momentum:
        raise OptionError("local.momentum", local.momentum, f"{name} has an optimizer of its own: 0")
    if local.epochs != 1:
        raise OptionError("local.epochs", local.epochs, f"{name} takes strategy.client.local_steps noisy steps: 1")
    if config.client_options().get("clipping") == "median" and config.privacy.variant != "published":
        raise OptionError(
            "strategy.client.clipping",
            "median",
            "has no privacy bound: privacy.variant=published, or clipping=adaptive",
        )


def _check_across_options(config: Config) -> None:
    if config.clients_per_round > config.num_clients:
        raise OptionError(
            "clients_per_round", config.clients_per_round, f"at most num_clients={config.num_clients} is allowed"
        )
    min_replies = config.strategy.server.get("min_replies", 1)
    if min_replies > config.clients_per_round:
        raise OptionError(
            "strategy.server.min_replies",
            min_replies,
            f"at most clients_per_round={config.clients_per_round} is allowed",
        )
    target, limit = config.privacy.target_epsilon, config.privacy.max_epsilon
    if target is not None and limit is not None and target > limit:
        raise OptionError("privacy.target_epsilon", target, f"at most privacy.max_epsilon={limit} is allowed")
    if config.engine.name != "ray" and config.engine.address is not None:
        raise OptionError("engine.address", config.engine.address, "only engine=ray joins a cluster; otherwise null")
    _check_faults(config)
    if config.dataset.name in KNOWN_SETS:
        _check_partition(config, *KNOWN_SETS[config.dataset.name])


def _check_faults(config: Config) -> None:
    """A planned fault that can never happen is a mistake of the plan."""
    for number, fault in enumerate(config.engine.faults):
        limits = {"client": config.num_clients - 1, "round": config.num_rounds}
        for name, limit in limits.items():
            if getattr(fault, name) > limit:
                raise OptionError(
                    f"engine.faults.{number}.{name}", getattr(fault, name), f"at most {limit}, or it never happens"
                )


def _check_partition(config: Config, examples: int, classes: int) -> None:
    if config.num_clients > examples:
        raise OptionError(
            "num_clients", config.num_clients, f"{config.dataset.name} has {examples} training pictures, one per client"
        )
    if isinstance(config.partition, PathologicalPartition) and config.partition.classes_per_client > classes:
        raise OptionError(
            "partition.classes_per_client",
            config.partition.classes_per_client,
            f"{config.dataset.name} has {classes} classes",
        )


# --- errors in words -------------------------------------------------------------------------------------


def _first_option_error(error: ValidationError, prefix: tuple[str, ...] = ()) -> OptionError:
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"] if not _is_union_tag(part, first["loc"])]
    option = ".".join([*prefix, *path]) or "configuration"
    return OptionError(option, _shown(first), _allowed(first))


def _is_union_tag(part: Any, path: Iterable[Any]) -> bool:
    """pydantic puts the partition's name between ``partition`` and the key."""
    path = list(path)
    return len(path) > 1 and path[0] == "partition" and path.index(part) == 1 and part == path[1] and len(path) > 2


def _shown(error: Any) -> Any:
    """The value as the user wrote it."""
    value = error["input"]
    if error["type"] == "missing":
        return ""
    if error["type"] == "union_tag_invalid":
        return value.get("name")
    return "null" if value is None else value


def _allowed(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return "there is no such option here"
    if kind == "missing":
        return "the option has no value"
    if kind == "literal_error":
        return f"allowed: {context['expected'].replace(chr(39), '')}"
    if kind == "union_tag_invalid":
        return f"allowed: {context['expected_tags'].replace(chr(39), '')}"
    for name, words in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
        if name in context:
            return f"must be {words} {context[name]:g}" if context[name] < 1e6 else f"must be {words} {context[name]}"
    return _IN_WORDS.get(kind) or str(error["msg"]).replace("Input should be", "must be")


#: pydantic's kinds of error in the words of a user; the others speak for themselves.
_IN_WORDS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping, {option: value, ...}",
    "model_type": "must be a mapping, {option: value, ...}",
    "model_attributes_type": "must be a mapping, {option: value, ...}",
}
