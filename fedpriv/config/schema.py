"""The schema: every option of the project, its type, its range, its default's home.

The YAML tree in ``conf/`` holds the defaults and the comments for people; the classes here say what is
allowed. Nothing heavy is imported, so a wrong value is refused within a second, before any data is read.
``fedpriv.compose`` turns YAML and command line into a `Config`; everything behind it gets typed values.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag, ValidationError, field_validator

from fedpriv.errors import OptionError
from fedpriv.methods import METHODS, check_halves
from fedpriv.options import Options

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
    name: Literal[
        "digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "image_folder", "huggingface", "on_nodes", "custom"
    ]
    root: str | None = Field(
        description="folder that holds the pictures (torchvision's layout, class folders, or the hub's parquet files)"
    )
    download: bool = Field(description="fetch a torchvision set or a set of the hub if it is not there")
    auxiliary: int = Field(ge=0, description="public pictures cut from the test set for methods that need them")
    size: int | None = Field(default=None, ge=4, le=1024, description="own pictures, hub: side length of every picture")
    channels: Literal[1, 3] = Field(default=3, description="own pictures, hub: 1 grey, 3 colour")
    test_fraction: float = Field(
        default=0.2, gt=0, lt=1, description="own pictures, hub: test share without a test split"
    )
    # Not `name`: that says which source reads the pictures, and names the run's folder.
    hub_name: str | None = Field(default=None, description="huggingface: name of a set of the hub, uoft-cs/cifar10")
    revision: str | None = Field(default=None, description="huggingface: branch, tag or commit that is fetched")
    subset: str | None = Field(default=None, description="huggingface: one of the set's configurations")
    image_column: str | None = Field(default=None, description="huggingface: column of pictures (null: the only one)")
    label_column: str | None = Field(default=None, description="huggingface: column of labels (null: the only one)")
    train_split: str | None = Field(default=None, description="huggingface: split to train on (null: train)")
    test_split: str | None = Field(
        default=None, description="huggingface: split to test on (null: test or validation; as train_split: divided)"
    )
    path: str | None = Field(default=None, description="custom: dotted path of the user's own function")
    train_examples: int | None = Field(
        default=None, ge=1, description="train on so many of the training pictures, drawn by seed (null: all)"
    )
    split: str | None = Field(
        default=None, description=".npz with rows `train` and `test` of all pictures, in place of the set's own split"
    )
    classes: tuple[str, ...] = Field(default=(), description="on_nodes: names of the class folders, in label order")
    examples: tuple[int, ...] = Field(default=(), description="on_nodes: declared training pictures of each client")
    test_root: str | None = Field(
        default=None, description="on_nodes: the server's test pictures, one folder per class"
    )
    cache: str | None = Field(
        default=None, description="folder of decoded pictures (null: $FEDPRIV_CACHE or ~/.cache/fedpriv)"
    )

    @field_validator("name", mode="before")
    @classmethod
    def _hub_has_an_option_of_its_own(cls, name: Any) -> Any:
        if isinstance(name, str) and "/" in name:
            words = "a set of the hub is chosen by dataset=huggingface dataset.hub_name=..."
            raise OptionError("dataset.name", name, words)
        return name

    @field_validator("classes", mode="before")
    @classmethod
    def _folders_may_be_numbered(cls, classes: Any) -> Any:
        """[0, 1] are names of folders too."""
        if isinstance(classes, list | tuple):
            return tuple(str(name) if type(name) is int else name for name in classes)
        return classes


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


class ResampledPartition(PartitionBase):
    name: Literal["resampled"]
    examples_per_client: int = Field(
        ge=1, description="pictures that every client draws for itself, so that clients share pictures"
    )


PartitionConfig = Annotated[
    IidPartition | DirichletPartition | PathologicalPartition | ShardsPartition | ResampledPartition,
    Field(discriminator="name"),
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
    steps: int | None = Field(default=None, ge=1, description="batches in a round; null: as many as epochs have")
    batch_size: int = Field(ge=1, description="pictures in a batch (expected number under Poisson sampling)")
    lr: float = Field(gt=0, description="learning rate of local SGD")
    momentum: float = Field(ge=0, lt=1, description="momentum of local SGD, reset every round")
    sampler: Literal["shuffle", "poisson"] = Field(description="how batches are drawn")


#: What can be planned to go wrong; `fedpriv.faults` says what each of them does.
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
    exchange: Literal["train", "statistics", "keys", "seeds"] = "train"
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
        description="clients train one after the other or as one computation (auto: measured once per machine)"
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
    rng: Literal["seeded", "secure"] = Field(description="noise: repeatable, or from the operating system's keys")


class EvaluateConfig(Options):
    every: int = Field(ge=0, description="evaluate the global model every n rounds (0: at the end only)")
    batch_size: int = Field(ge=1, description="test pictures per batch of the evaluation")
    clients: bool = Field(
        default=True, description="clients with a local test set (partition.test_fraction) test their own models"
    )


class CheckpointConfig(Options):
    every: int = Field(ge=0, description="write a checkpoint every n rounds (0: only where a signal stops the run)")
    keep: int = Field(ge=1, description="newest checkpoints that are kept")


class AttackConfig(Options):
    """What a run keeps for `python -m fedpriv.attack`, and that command's own options."""

    keep_snapshots: bool = Field(
        default=False, description="keep global models of rounds, for attack=confidence_series"
    )
    snapshot_every: int = Field(default=5, ge=1, description="keep the global model every n rounds")
    members: int = Field(default=2000, ge=20, description="evaluated members at most, and as many non-members")
    known_share: float = Field(
        default=0.25, gt=0, lt=1, description="share of the clients that the attacker is, and whose pictures it knows"
    )
    shadows: int = Field(default=16, ge=2, description="lira: shadow models")
    control_models: int = Field(default=10, ge=1, description="overfitted models of the positive control")
    control_examples: int = Field(default=60, ge=40, description="pictures that each of these is trained on")
    control_epochs: int = Field(default=300, ge=10, description="epochs of each of these")
    workers: int | None = Field(
        default=None, ge=1, description="processes that train shadow models (null: half of the cores)"
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="draws targets and shadow models")


class OperationsConfig(Options):
    """What whoever runs the tool sees of it, and how it stops. Decides nothing of the result."""

    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="serve /metrics, /healthz and /readyz here (null: no; 0: a free port)"
    )
    metrics_address: str = Field(default="127.0.0.1", min_length=1, description="address that these are served on")
    log_format: Literal["plain", "json"] | None = Field(
        default=None, description="events as lines of text or of JSON (null: progress only)"
    )
    log_file: str | None = Field(default=None, min_length=1, description="append these lines here (null: to stderr)")
    log_level: Literal["info", "warning", "error"] = Field(default="info", description="least level of these lines")
    stop_grace: float = Field(
        default=20.0,
        ge=0,
        description="seconds that the first SIGTERM or Ctrl-C leaves a round to end; then a checkpoint is written, "
        "also where checkpoint.every=0",
    )
    report: bool = Field(default=True, description="write report.html and its pictures at the end")


#: Tools that can show a run.
TrackingKind = Literal["tensorboard", "mlflow", "wandb"]


class TrackingConfig(Options):
    """Which tools show a run beside its own report. Decides nothing of the result."""

    kinds: tuple[TrackingKind, ...] = Field(
        default=(), description=f"track the run with these: {', '.join(get_args(TrackingKind))}"
    )
    folder: str | None = Field(
        default=None, min_length=1, description="where their files go (null: tracking/ in the run's folder)"
    )
    experiment: str = Field(default="fedpriv", min_length=1, description="mlflow's experiment, wandb's project")
    run_name: str | None = Field(
        default=None, min_length=1, description="the run's name there (null: its folder's name)"
    )
    mlflow_address: str | None = Field(
        default=None, min_length=1, description="mlflow: address of a server (null: files, no network)"
    )
    wandb_mode: Literal["offline", "online"] = Field(
        default="offline", description="wandb: files for `wandb sync`, or its server"
    )

    @field_validator("kinds", mode="before")
    @classmethod
    def _one_or_several(cls, kinds: Any) -> Any:
        """A list, one name, or names with commas between them (the host's environment)."""
        if isinstance(kinds, str):
            kinds = [name.strip() for name in kinds.split(",") if name.strip()]
        return tuple(dict.fromkeys(kinds)) if isinstance(kinds, list | tuple) else () if kinds is None else kinds

    @field_validator("run_name", mode="after")
    @classmethod
    def _no_path(cls, name: str | None) -> str | None:
        """It becomes the name of a folder."""
        if name is not None and "/" in name:
            raise OptionError("tracking.run_name", name, "must be a name without slashes")
        return name


# --- the method (its options: fedpriv/methods.py) -------------------------------------------------------


class StrategyConfig(Options):
    """A method: its name and its two halves, each a mapping with ``_target_`` and the half's own options."""

    name: str
    server: dict[str, Any]
    client: dict[str, Any]


# --- all of it -------------------------------------------------------------------------------------------


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
    partition: PartitionConfig
    model: ModelConfig
    local: LocalConfig
    engine: EngineConfig
    privacy: PrivacyConfig
    evaluate: EvaluateConfig
    checkpoint: CheckpointConfig
    attack: AttackConfig = Field(default_factory=AttackConfig)
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
            _check_hub(dataset)
        if dataset.split is not None and dataset.train_examples is not None:
            raise OptionError("dataset.train_examples", dataset.train_examples, "dataset.split says which ones already")
        return dataset

    @property
    def clients_asked(self) -> int:
        """Clients asked in a round: clients_per_round, and as many more as `over_selection` says."""
        return min(self.num_clients, math.ceil(round(self.over_selection * self.clients_per_round, 9)))

    def server_options(self) -> dict[str, Any]:
        """Options of the server half without its ``_target_``."""
        return {key: value for key, value in self.strategy.server.items() if key != "_target_"}

    def client_options(self) -> dict[str, Any]:
        """Options of the client half without its ``_target_``."""
        return {key: value for key, value in self.strategy.client.items() if key != "_target_"}

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """SHA-256 of everything that decides the result (not of where files lie, nor of who looks on)."""
        content = self.to_dict()
        content.pop("run_dir")
        content.pop("attack")
        content.pop("operations")
        content.pop("tracking")
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
        raise first_option_error(error) from None
    _check_across_options(config)
    return config


def _check_hub(dataset: DatasetConfig) -> None:
    """The name and the revision become part of an address and of a folder's name."""
    name, revision = dataset.hub_name, dataset.revision
    if name is None and dataset.root is None:
        words = "huggingface needs the name of a set of the hub, as in uoft-cs/cifar10, or its files in dataset.root"
        raise OptionError("dataset.hub_name", "null", words)
    if name is not None and not re.fullmatch(rf"{HUB_WORD}(/{HUB_WORD})?", name):
        raise OptionError("dataset.hub_name", name, "must be the name of a set of the hub, as in uoft-cs/cifar10")
    if revision is not None and not re.fullmatch(rf"{HUB_WORD}(/{HUB_WORD})*", revision):
        raise OptionError("dataset.revision", revision, "must be a branch, a tag or a commit")


#: A part of a name on the hub: no way out of a folder.
HUB_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
#: Options whose values are lists.
LISTS = (("engine", "faults"), ("dataset", "classes"), ("dataset", "examples"))


def _freeze_lists(raw: dict[str, Any]) -> dict[str, Any]:
    """YAML and JSON know no tuples; the schema does."""
    for group, name in LISTS:
        options = raw.get(group)
        if isinstance(options, dict) and isinstance(options.get(name), list):
            raw = {**raw, group: {**options, name: tuple(options[name])}}
    engine = raw.get("engine")
    if not isinstance(engine, dict):
        return raw
    faults = engine.get("faults")
    if isinstance(faults, dict) and isinstance(faults.get("kinds"), list):
        faults = {**faults, "kinds": tuple(faults["kinds"])}
    return {**raw, "engine": {**engine, "faults": () if faults is None else faults}}


def _check_method(config: Config) -> None:
    """The options of both halves against their schema. A method of the user's own has a name of its own; its options
    are checked when its halves are loaded (`fedpriv.own_methods`).
    """
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
            raise first_option_error(error, prefix=("strategy", half)) from None
    check_halves(config)


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
    if target is None and config.privacy.target_observer is not None:
        words = "says against whom privacy.target_epsilon is met, which is null: null"
        raise OptionError("privacy.target_observer", config.privacy.target_observer, words)
    if config.engine.name != "ray" and config.engine.address is not None:
        raise OptionError("engine.address", config.engine.address, "only engine=ray joins a cluster; otherwise null")
    _check_faults(config)
    if config.dataset.name == "on_nodes":
        _check_declared(config)
    _check_over_selection(config)
    if config.dataset.name in KNOWN_SETS and config.dataset.split is None:
        examples, classes = KNOWN_SETS[config.dataset.name]
        wanted = config.dataset.train_examples or examples
        if wanted > examples:
            words = f"{config.dataset.name} has {examples} training pictures"
            raise OptionError("dataset.train_examples", wanted, words)
        _check_partition(config, wanted, classes)


def _check_declared(config: Config) -> None:
    """What everybody in a deployment knows of the data."""
    dataset = config.dataset
    if len(set(dataset.classes)) < 2 or len(set(dataset.classes)) < len(dataset.classes):
        raise OptionError("dataset.classes", list(dataset.classes), "at least 2 different names of class folders")
    if len(dataset.examples) != config.num_clients or min(dataset.examples) < 1:
        words = f"one number of at least 1 for each of num_clients={config.num_clients} clients"
        raise OptionError("dataset.examples", list(dataset.examples), words)
    if dataset.size is None:
        raise OptionError("dataset.size", "null", "on_nodes: all machines must know the side length of a picture")
    if config.partition.name != "iid":
        words = "on_nodes: nobody divides the pictures, every node has its own; leave it at iid"
        raise OptionError("partition", config.partition.name, words)
    if config.engine.faults:
        raise OptionError("engine.faults", "...", "faults are planned in simulation only")


def _check_faults(config: Config) -> None:
    """A planned fault that can never happen is a mistake of the plan, and one outside simulation is a danger."""
    if config.engine.faults and config.privacy.rng != "seeded":
        words = "faults are planned in simulations alone: seeded, or engine.faults=[]"
        raise OptionError("privacy.rng", config.privacy.rng, words)
    if isinstance(config.engine.faults, FaultPlan):
        return
    for number, fault in enumerate(config.engine.faults):
        limits = {"client": config.num_clients - 1, "round": config.num_rounds}
        for name, limit in limits.items():
            if getattr(fault, name) > limit:
                raise OptionError(
                    f"engine.faults.{number}.{name}", getattr(fault, name), f"at most {limit}, or it never happens"
                )


def _check_over_selection(config: Config) -> None:
    """Who is among the first K is no random sample of the clients, and no guarantee may count on one."""
    if config.over_selection > 1 and config.strategy.server.get("client_sampling", "fixed") == "poisson":
        words = "a round that closes at the first replies is no Poisson sample (strategy.server.client_sampling): 1"
        raise OptionError("over_selection", config.over_selection, words)
    if config.over_selection > 1 and config.clients_asked == config.clients_per_round:
        words = f"num_clients={config.num_clients} leaves nobody else to ask beside clients_per_round: 1"
        raise OptionError("over_selection", config.over_selection, words)


def _check_partition(config: Config, examples: int, classes: int) -> None:
    if isinstance(config.partition, ResampledPartition):
        check_resampled(config.partition, examples)
    elif config.num_clients > examples:
        raise OptionError(
            "num_clients", config.num_clients, f"{config.dataset.name} has {examples} training pictures, one per client"
        )
    if isinstance(config.partition, PathologicalPartition) and config.partition.classes_per_client > classes:
        raise OptionError(
            "partition.classes_per_client",
            config.partition.classes_per_client,
            f"{config.dataset.name} has {classes} classes",
        )


def check_resampled(partition: ResampledPartition, examples: int) -> None:
    """A client draws its pictures without replacement."""
    if partition.examples_per_client > examples:
        words = f"there are {examples} training pictures to draw from"
        raise OptionError("partition.examples_per_client", partition.examples_per_client, words)


# --- errors in words -------------------------------------------------------------------------------------


def first_option_error(error: ValidationError, prefix: tuple[str, ...] = ()) -> OptionError:
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"] if not _is_union_tag(part, first["loc"])]
    option = ".".join([*prefix, *path]) or "configuration"
    return OptionError(option, _shown(first), _allowed(first))


def _is_union_tag(part: Any, path: Iterable[Any]) -> bool:
    """pydantic puts the partition's name between ``partition`` and the key, and the form of faults behind them."""
    path = list(path)
    if part in ("list", "plan"):
        return path[:2] == ["engine", "faults"]
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
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "dict_type": "must be a mapping, {option: value, ...}",
    "model_type": "must be a mapping, {option: value, ...}",
    "model_attributes_type": "must be a mapping, {option: value, ...}",
}
