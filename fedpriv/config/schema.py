"""The schema: every option of the project, its type, its range, its default's home.

The YAML tree in ``conf/`` holds the defaults and the comments for people; the classes here say what is
allowed. Nothing heavy is imported, so a wrong value is refused within a second, before any data is read.
``fedpriv.config.compose`` turns YAML and command line into a `Config`; everything after it gets typed values.
"""

from __future__ import annotations

import hashlib
import json
import math
from functools import reduce
from operator import getitem
from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag, field_validator

from fedpriv.common.errors import OptionError
from fedpriv.config.data_schema import (
    DatasetConfig,
    FeaturesConfig,
    PartitionConfig,
    check_hub,
)
from fedpriv.config.method_pairs import NO_MECHANISM, Mechanism, check_pair, in_words
from fedpriv.config.options import AttackConfig, AuditConfig, Head, Library, OperationsConfig, Options, TrackingConfig
from fedpriv.config.strategy_options import StrategyConfig

# --- model, local training, engine, privacy --------------------------------------------------------------


class ModelConfig(Options):
    name: Literal[
        "auto",
        "linear",
        "softmax",
        "mlp",
        "cnn",
        "cnn_agn",
        "resnet18",
        "resnet34",
        "bag",
        "gru",
        "transformer",
        "constant",
        "moments",
        "custom",
        "app",
    ]
    arrays: tuple[tuple[str, tuple[int, ...]], ...] = Field(
        default=(), description="app: name and shape of each array of a Flower app's own model"
    )
    hidden: int = Field(default=64, ge=1, description="mlp: width of the hidden layer; gru: of the state")
    embedding: int = Field(default=32, ge=0, description="text: width of a token; bag, 0: that of the outputs")
    layers: int = Field(
        default=2, ge=1, le=1000, description="transformer: blocks of attention and a feed-forward layer"
    )
    heads: int = Field(default=4, ge=1, description="transformer: heads of attention (divides the embedding)")
    head: Head = Field(
        default="auto",
        description="moments: auto: mean where noise hides the second moment, else lda",
    )
    bound: float | None = Field(
        default=None, gt=0, description="moments: B, length to which a row is clipped; null: sqrt(numbers of a row / 3)"
    )
    second_hidden: int = Field(default=0, ge=0, description="cnn_agn: width of a second fully connected layer, 0 none")
    groups: int = Field(default=8, ge=1, description="resnet: groups of GroupNorm (divides 64)")
    path: str | None = Field(
        default=None, description="custom: dotted path of (shape, classes; of text: vocabulary) -> module"
    )
    train: Literal["all", "head", "film", "lora", "ffa_lora", "bias"] = Field(
        default="all", description="what is trained; the rest stays as it is: no coordinate, no noise, not sent"
    )
    rank: int = Field(default=4, ge=1, description="train=lora, ffa_lora: rank of the products beside frozen layers")
    lora_layers: tuple[str, ...] = Field(
        default=(), description="train=lora, ffa_lora: names of the layers, or the ends of their names; []: all"
    )
    buffers: Literal["averaged", "local"] = Field(
        default="averaged", description="BatchNorm: averaged, statistics too, or local: its layers are the last block"
    )
    weights: str | None = Field(
        default=None, description="file of a state dict (.safetensors, .pt, .pth) that training starts from; public"
    )
    weights_sha256: str | None = Field(
        default=None, pattern="[0-9a-f]{64}", description="what that file's SHA-256 must be; null: what it is"
    )
    trained_on: str | None = Field(
        default=None, max_length=500, description="what the weights were trained on, in your words, for every report"
    )

    @field_validator("arrays", mode="before")
    @classmethod
    def _lists_of_yaml(cls, arrays: Any) -> Any:
        return tuple((name, tuple(shape)) for name, shape in arrays)


class LocalConfig(Options):
    epochs: int = Field(ge=1, description="passes over the client's data in a round")
    steps: int | None = Field(default=None, ge=1, description="batches in a round; null: as many as epochs have")
    batch_size: int = Field(ge=1, description="examples in a batch (expected number under Poisson sampling)")
    lr: float = Field(gt=0, description="learning rate of local SGD")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="of lr over the rounds: down to lr/num_rounds, or along half a cosine"
    )
    momentum: float = Field(ge=0, lt=1, description="momentum of local SGD, reset every round")
    sampler: Literal["shuffle", "poisson"] = Field(description="how batches are drawn")
    clipping: Library = Field(default="fedpriv", description="whose formulas give the gradients of single examples")
    loss: str | None = Field(
        default=None, description="package.module.NAME of a function (outputs, targets) -> loss of each example"
    )
    train: str | None = Field(
        default=None,
        description="package.module.NAME of a function (model, inputs, targets, told) that trains the model in place; "
        "not where single examples are protected",
    )


#: What can be planned to go wrong; `fedpriv.engines.faults` says what each of them does.
FaultKind = Literal[
    "drop_before",
    "raise",
    "kill",
    "disk_full",
    "non_finite_update",
    "drop",
    "slow",
    "corrupt",
    "oversized",
    "wrong_shape",
    "not_finite",
    "replayed",
    "stale",
    "duplicate",
    "clock_jump",
]


class Fault(Options):
    """One planned fault: what goes wrong, for whom and when."""

    round: int = Field(ge=1)
    client: int = Field(ge=0)
    exchange: Literal["train", "statistics", "keys", "seeds", "shares", "confirm", "unmask"] = "train"
    kind: FaultKind


class FaultPlan(Options):
    """Faults drawn from (seed, round, client), the same on every engine."""

    rate: float = Field(ge=0, le=1)
    kinds: tuple[FaultKind, ...] = Field(default=("drop_before", "raise", "drop"), min_length=1)


def _form_of_faults(given: Any) -> str:
    return "plan" if isinstance(given, dict | FaultPlan) else "list"


Faults = Annotated[
    Annotated[tuple[Fault, ...], Tag("list")] | Annotated[FaultPlan, Tag("plan")], Discriminator(_form_of_faults)
]


class EngineConfig(Options):
    name: Literal["auto", "inprocess", "ray", "flower"]
    workers: int | None = Field(ge=1, description="ray, flower: worker processes (null: one per core or GPU slice)")
    threads_per_client: int = Field(ge=1, description="torch threads of one client's training")
    trainer: Literal["auto", "sequential", "vectorised"] = Field(
        description="clients train one after the other or as one computation (auto: by model, batch and cohort)"
    )
    address: str | None = Field(description="ray: join the cluster at this address")
    device: Literal["auto", "cpu", "cuda"] = Field(description="where clients train (auto: a GPU where there is one)")
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="of local training's products (bfloat16: mixed precision; parameters and updates stay float32)",
    )
    gpus_per_worker: float = Field(gt=0, le=1, description="ray on GPUs: share of a GPU that a worker takes")
    round_timeout: float = Field(gt=0, description="seconds to wait for the replies of one exchange")
    client_memory_mib: float = Field(
        default=1024.0, gt=0, description="inprocess, ray: clients' own states beyond this are on disk between rounds"
    )
    faults: Faults = Field(
        default=(),
        description="planned faults: [{round, client, exchange, kind}, ...], or {rate, kinds} drawn by the seed for "
        f"each client of each round; kinds: {', '.join(get_args(FaultKind))}",
    )


class PrivacyConfig(Options):
    variant: Literal["repaired", "published"] = Field(description="the method with its faults mended, or as printed")
    delta: float = Field(gt=0, lt=1, description="delta at which every epsilon is stated")
    max_epsilon: float | None = Field(gt=0, description="a client stops before its total would exceed this")
    target_epsilon: float | None = Field(gt=0, description="choose the noise multiplier for the whole planned run")
    target_observer: Literal["server", "server+members", "secure-sum", "trusted-server", "public"] | None = Field(
        default=None, description="against whom target_epsilon is met (null: the method's own observer)"
    )
    unit: Literal["row", "person", "client"] | None = Field(
        default=None,
        description="whose data are protected (null: by the method; a person where it protects examples and the "
        "table's schema names a unit; row: single rows, although a person has several)",
    )
    rows_per_person: int | None = Field(
        default=None, ge=1, description="training rows of a person at most, drawn by the seed (null: all)"
    )
    across_sites: int = Field(
        default=1, ge=1, le=1000, description="clients that hold rows of one person (one and the same row) at most"
    )
    rng: Literal["seeded", "secure"] = Field(description="noise: repeatable, or from the operating system's keys")
    accountant: Library = Field(default="fedpriv", description="opacus: one more figure beside ours, for comparison")
    mechanism: Mechanism | None = Field(
        default=None, description="of which method the releases are; null: the strategy's own"
    )

    @field_validator("mechanism", mode="before")
    @classmethod
    def _says_why_it_is_none(cls, mechanism: Any) -> Any:
        if mechanism in NO_MECHANISM:
            check_pair("fedavg", mechanism)
        return mechanism


class EvaluateConfig(Options):
    every: int = Field(ge=0, description="evaluate the global model every n rounds (0: at the end only)")
    batch_size: int = Field(ge=1, description="test examples per batch of the evaluation")
    clients: bool = Field(
        default=True, description="clients with a local test set (partition.test_fraction) test their own models"
    )
    threshold: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="of two classes: the risk from which the report's confusion matrix says yes",
    )
    by: str | None = Field(
        default=None, description="a table's column of categories, for each of which the report has the metrics"
    )
    metrics: str | None = Field(
        default=None, description="package.module.NAME of a function (outputs, targets) -> {name: number}"
    )
    patience: int | None = Field(
        default=None, ge=1, description="end after so many evaluations without a better one (only without privacy)"
    )


class CheckpointConfig(Options):
    every: Literal["auto"] | int = Field(
        description="write a checkpoint every n rounds (auto: as often as a tenth of the run's time allows, and at the "
        "end; 0: only where a signal stops the run)"
    )
    keep: int = Field(ge=1, description="newest checkpoints that are kept")
    best: bool = Field(default=False, description="keep the model of the best evaluation as best.safetensors")

    @field_validator("every", mode="before")
    @classmethod
    def _every_is_a_number_or_auto(cls, every: Any) -> Any:
        if every != "auto" and (type(every) is not int or every < 0):
            given = json.dumps(every) if every is None or every in (True, False) else every
            raise OptionError("checkpoint.every", given, "must be auto, or a whole number of rounds that is at least 0")
        return every


# --- all of it -------------------------------------------------------------------------------------------


#: Of `Config.digest`. Raised where an option comes, goes or is written otherwise: older digests then find nothing.
DIGEST_VERSION = 2
#: Options that came since, with the value that all runs before had: such a run keeps its digest.
YOUNGER: dict[tuple[str, ...], object] = {
    ("privacy", "across_sites"): 1,
    ("evaluate", "threshold"): 0.5,
    ("evaluate", "by"): None,
    ("model", "head"): "auto",
    ("model", "bound"): None,
    ("model", "lora_layers"): [],
    ("model", "buffers"): "averaged",
    ("strategy", "server", "bias_correction"): False,
    ("strategy", "server", "cohorts"): None,
    ("strategy", "client", "noise_corrected"): False,
    ("strategy", "client", "correction_floor"): 1e-8,
    ("strategy", "client", "weight_decay"): 0.0,
    ("local", "schedule"): "constant",
    ("local", "loss"): None,
    ("local", "train"): None,
    ("evaluate", "metrics"): None,
    ("evaluate", "patience"): None,
}
#: Options that may name code, as package.module.NAME: never from outside, of others' folders only where it is trusted.
CODE = (
    *("model.path", "dataset.path", "features.architecture", "partition.partitioner"),
    *("local.loss", "local.train", "evaluate.metrics", "strategy.server.cohorts"),
)


class Config(Options):
    seed: int = Field(ge=0, lt=2**63)
    num_clients: int = Field(ge=1, lt=2**31, description="clients in all (N)")
    clients_per_round: int = Field(ge=1, description="clients asked in a round (K)")
    over_selection: float = Field(
        default=1.0, ge=1, description="a round asks this times K clients, and closes at K usable replies"
    )
    num_rounds: int = Field(ge=1, lt=2**31, description="rounds (T)")
    scale: Literal["literal", "small"] = Field(
        description="size of an experiment: the paper's, or minutes on two cores"
    )
    strategy: StrategyConfig
    dataset: DatasetConfig
    features: FeaturesConfig = Field(default_factory=lambda: FeaturesConfig(name="none"))
    partition: PartitionConfig
    model: ModelConfig
    local: LocalConfig
    engine: EngineConfig
    privacy: PrivacyConfig
    evaluate: EvaluateConfig
    checkpoint: CheckpointConfig
    attack: AttackConfig = Field(default_factory=AttackConfig)
    audit: AuditConfig = Field(default_factory=AuditConfig)
    operations: OperationsConfig = Field(default_factory=OperationsConfig)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    run_dir: str | None = Field(default=None, description="inside `flwr run`: folder for the run")

    @field_validator("dataset", mode="after")
    @classmethod
    def _dataset_has_what_it_needs(cls, dataset: DatasetConfig) -> DatasetConfig:
        if dataset.name == "image_folder" and dataset.root is None:
            raise OptionError("dataset.root", "null", "image_folder needs the folder that holds one folder per class")
        if dataset.name == "custom" and dataset.path is None:
            raise OptionError("dataset.path", "null", "custom needs the dotted path of a function, package.module.name")
        if dataset.name == "huggingface":
            check_hub(dataset)
        if dataset.split is not None and dataset.train_examples is not None:
            raise OptionError("dataset.train_examples", dataset.train_examples, "dataset.split says which ones already")
        return dataset

    @property
    def method(self) -> str:
        """Of records and reports: ``fedprox``, ``fedprox with fedldp's mechanism``."""
        return in_words(self.strategy.name, self.privacy.mechanism)

    @property
    def clients_asked(self) -> int:
        """Clients asked in a round: clients_per_round, and as many more as `over_selection` says."""
        return min(self.num_clients, math.ceil(round(self.over_selection * self.clients_per_round, 9)))

    def with_options(self, **changes: Any) -> Config:
        """With other values of the method's options, which are not checked."""
        options = self.strategy.options.model_copy(update=changes)
        return self.model_copy(update={"strategy": self.strategy.model_copy(update={"options": options})})

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return self.model_dump(mode="json", exclude={"strategy"}) | {"strategy": self.strategy.to_dict()}

    def deciding(self) -> dict[str, Any]:
        """`to_dict` without places of this machine, checkpoints, audits, and what only who looks on needs."""
        content = self.to_dict() | {"digest_version": DIGEST_VERSION}
        for group in ("run_dir", "checkpoint", "audit", "operations", "tracking"):
            content.pop(group)
        for place in ("root", "cache", "download"):
            content["dataset"].pop(place)
        for (*above, option), before in YOUNGER.items():
            options: dict[str, Any] = reduce(getitem, above, content)
            if options.get(option, before) == before:
                options.pop(option, None)
        return content

    @property
    def code(self) -> dict[str, str]:
        """What `CODE` names here: option -> dotted path."""
        named = {
            option: getattr(getattr(self, option.partition(".")[0]), option.split(".")[-1], None) for option in CODE
        }
        named["strategy.server.cohorts"] = getattr(self.strategy.options, "cohorts", None)
        return {option: path for option, path in named.items() if path and "." in path}

    def digest(self) -> str:
        """SHA-256 of everything that decides the result. One seed gives the same bits wherever clients are computed."""
        content = self.deciding()
        content.pop("attack")
        for elsewhere in ("name", "workers", "address"):
            content["engine"].pop(elsewhere)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
