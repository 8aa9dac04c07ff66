"""From a composed configuration to a `Config`: its schema, its method's schemas, and what options require of one
another."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from fedpriv.common.errors import OptionError
from fedpriv.config.data_schema import KNOWN_SETS, PathologicalPartition, ResampledPartition
from fedpriv.config.explain import first_option_error
from fedpriv.config.feature_dims import with_dims
from fedpriv.config.gradient_methods import (
    GradientOptions,
    NoisyGradientOptions,
    ScaffoldOptions,
    check_central,
    check_steps,
)
from fedpriv.config.method_pairs import check_pair, schema_for
from fedpriv.config.methods import (
    METHODS,
    ClippingOptions,
    CoQFLOptions,
    ExampleLevelOptions,
    FedAGSOptions,
    LDPFLOptions,
    OneBitOptions,
    SelectingOptions,
)
from fedpriv.config.options import MethodOptions
from fedpriv.config.participation import check_participation
from fedpriv.config.schema import Config, FaultPlan
from fedpriv.config.server_optimizers import check_optimizer
from fedpriv.config.strategy_options import HALVES, read_options
from fedpriv.config.sum_checks import check_secure_sum
from fedpriv.config.sum_methods import AskOptions, SumOptions
from fedpriv.config.trusted_methods import DPFTRLOptions, check_groups, check_matrix
from fedpriv.config.unit_methods import MOST_EPSILON, FedOnceOptions, UnitOptions


def validate(raw: dict[str, Any]) -> Config:
    """Checks a composed configuration (plain dictionaries and values).

    Raises `OptionError` naming the option, the value and what is allowed.
    """
    strategy = raw.get("strategy")
    if isinstance(strategy, dict):
        raw = raw | {"strategy": _without_options(strategy)}
    try:
        config = Config.model_validate(_freeze_lists(raw))
    except ValidationError as error:
        raise first_option_error(error) from None
    assert isinstance(strategy, dict)
    config = _with_answers(_with_method(config, strategy))
    _check_across_options(config)
    return with_dims(config)


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


def _with_method(config: Config, raw: dict[str, Any]) -> Config:
    """The configuration with its method's options, checked. A method of the user's own has a name of its own; its
    options are checked when its halves are loaded (`fedpriv.config.halves`).
    """
    name = config.strategy.name
    package, _, rest = config.strategy.server.partition(".")
    file = rest.partition(".")[0]
    if package == "strategies" and file in METHODS and name != file:
        raise OptionError("strategy.name", name, f"this is the method {file}: choose it by strategy={file}")
    check_pair(name, config.privacy.mechanism)
    options = read_options(schema_for(name, config.privacy.mechanism), raw, config)
    config = config.model_copy(update={"strategy": config.strategy.model_copy(update={"options": options})})
    if name in METHODS:
        _check_options(config)
        check_optimizer(config)
    return config


def _with_answers(config: Config) -> Config:
    """strategy=ask has answers in place of a model."""
    if not isinstance(config.strategy.options, AskOptions):
        return config
    if config.model.name not in ("auto", "constant"):
        words = "strategy=ask trains no model, its numbers are the answers; allowed: auto, constant"
        raise OptionError("model", config.model.name, words)
    return config.model_copy(update={"model": config.model.model_copy(update={"name": "constant"})})


def _without_options(raw: dict[str, Any]) -> dict[str, Any]:
    """A composed ``strategy`` as the rest of the configuration is checked with it."""
    found = dict(raw)
    for half in HALVES:
        if half in raw and not isinstance(raw[half], dict):
            given = "null" if raw[half] is None else raw[half]
            raise OptionError(f"strategy.{half}", given, "must be a mapping, {option: value, ...}")
        found[half] = raw.get(half, {}).get("_target_", "")
    return {**found, "options": MethodOptions.model_construct()}


def _check_across_options(config: Config) -> None:
    if config.clients_per_round > config.num_clients:
        raise OptionError(
            "clients_per_round", config.clients_per_round, f"at most num_clients={config.num_clients} is allowed"
        )
    min_replies = config.strategy.options.min_replies
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
        words = "requires privacy.target_epsilon, which is not set; allowed: null"
        raise OptionError("privacy.target_observer", config.privacy.target_observer, words)
    if config.engine.name != "ray" and config.engine.address is not None:
        raise OptionError("engine.address", config.engine.address, "only engine=ray joins a cluster; otherwise null")
    _check_faults(config)
    _check_features(config)
    if config.dataset.name == "on_nodes":
        _check_declared(config)
    _check_over_selection(config)
    check_participation(config)
    check_secure_sum(config)
    if config.dataset.name in KNOWN_SETS and config.dataset.split is None:
        examples, classes = KNOWN_SETS[config.dataset.name]
        wanted = config.dataset.train_examples or examples
        if wanted > examples:
            words = f"{config.dataset.name} has {examples} training examples"
            raise OptionError("dataset.train_examples", wanted, words)
        _check_partition(config, wanted, classes)


#: Models that read any numbers; all others read pictures.
READ_VECTORS = ("auto", "linear", "softmax", "mlp", "constant", "custom")


LINEAR = ("softmax", "linear")


def _check_features(config: Config) -> None:
    """A map needs features, and features are no picture. Whether pictures are large enough is known once read."""
    features, model = config.features, config.model.name
    if features.name == "none":
        for name, unused, words in (
            ("map", "none", "leaves nothing to map"),
            ("normalise", "none", "leaves pictures as they are"),
            ("mirror", False, "leaves pictures as they are"),
        ):
            if (value := getattr(features, name)) != unused:
                known = f"{str(unused).lower()}, or features=gradients, processes or backbone"
                raise OptionError(f"features.{name}", value, f"features=none {words}; allowed: {known}")
        return
    if config.dataset.is_table:
        raise OptionError("features", features.name, f"of pictures, and dataset={config.dataset.name} is a table: none")
    if features.map == "drawings" and features.name != "processes":
        words = f"is of features=processes; allowed with features={features.name}: none, strokes, pink"
        raise OptionError("features.map", "drawings", words)
    if features.mirror and features.map == "strokes":
        words = "characters do not look alike mirrored; allowed: false, or features.map=none or pink"
        raise OptionError("features.mirror", features.mirror, words)
    if model not in READ_VECTORS:
        words = f"features={features.name} gives the model a vector and no picture; allowed: {', '.join(READ_VECTORS)}"
        raise OptionError("model", model, words)


def _check_declared(config: Config) -> None:
    """What everybody in a deployment knows of the data."""
    dataset = config.dataset
    if dataset.is_table:
        if dataset.classes:
            raise OptionError(
                "dataset.classes", list(dataset.classes), "the schema names a table's classes: leave it out"
            )
    elif dataset.schema_digest is not None:
        words = "needs dataset.schema_file, the server's copy of the schema; allowed: null"
        raise OptionError("dataset.schema_digest", dataset.schema_digest, words)
    elif len(set(dataset.classes)) < 2 or len(set(dataset.classes)) < len(dataset.classes):
        raise OptionError("dataset.classes", list(dataset.classes), "at least 2 different names of class folders")
    if len(dataset.examples) != config.num_clients or min(dataset.examples) < 1:
        words = f"one number of at least 1 for each of num_clients={config.num_clients} clients"
        raise OptionError("dataset.examples", list(dataset.examples), words)
    if dataset.size is None and not dataset.is_table:
        raise OptionError("dataset.size", "null", "on_nodes: all machines must know the side length of a picture")
    if config.partition.name != "iid":
        words = "on_nodes: nobody divides the examples, every node has its own; leave it at iid"
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
    drawn = config.strategy.options.client_sampling
    if config.over_selection > 1 and drawn != "fixed":
        words = f"the first to reply are no random draw, which strategy.server.client_sampling={drawn} counts on: 1"
        raise OptionError("over_selection", config.over_selection, words)
    if config.over_selection > 1 and config.clients_asked == config.clients_per_round:
        words = f"num_clients={config.num_clients} leaves nobody else to ask beside clients_per_round: 1"
        raise OptionError("over_selection", config.over_selection, words)


def _check_partition(config: Config, examples: int, classes: int) -> None:
    if isinstance(config.partition, ResampledPartition):
        check_resampled(config.partition, examples)
    elif config.num_clients > examples:
        raise OptionError(
            "num_clients", config.num_clients, f"{config.dataset.name} has {examples} training examples, one per client"
        )
    if isinstance(config.partition, PathologicalPartition) and config.partition.classes_per_client > classes:
        raise OptionError(
            "partition.classes_per_client",
            config.partition.classes_per_client,
            f"{config.dataset.name} has {classes} classes",
        )


def check_resampled(partition: ResampledPartition, examples: int) -> None:
    """A client draws its examples without replacement."""
    if partition.examples_per_client > examples:
        words = f"there are {examples} training examples to draw from"
        raise OptionError("partition.examples_per_client", partition.examples_per_client, words)


def _check_options(config: Config) -> None:
    """What no single option can show. Raises `OptionError`."""
    options = config.strategy.options
    check_colluders(options)
    if isinstance(options, ExampleLevelOptions):
        check_example_level(config, options)
    if isinstance(options, OneBitOptions):
        _check_one_bit(config, options)
    if isinstance(options, GradientOptions):
        _check_gradient(config, options)
    if isinstance(options, ScaffoldOptions):
        check_steps(config.local.steps)
    if isinstance(options, ClippingOptions):
        _check_clipping(options)
    if isinstance(options, UnitOptions) and options.mechanism != "gaussian" and options.epsilon > MOST_EPSILON:
        words = f"of strategy.client.mechanism={options.mechanism}: at most {MOST_EPSILON}"
        raise OptionError("strategy.client.epsilon", options.epsilon, words)
    if isinstance(options, DPFTRLOptions):
        check_groups(options, config.num_clients, config.clients_per_round)
        check_matrix(options, config.num_rounds, config.over_selection)
    if isinstance(options, FedOnceOptions) and config.model.name not in LINEAR:
        words = f"the steps of {config.strategy.name} are those of a linear model; allowed: {', '.join(LINEAR)}"
        raise OptionError("model", config.model.name, words)


def check_colluders(options: MethodOptions) -> None:
    """A guarantee that counts on min_replies noises needs one that the observer does not know."""
    if isinstance(options, SumOptions) and options.colluders >= options.min_replies and options.colluders > 0:
        allowed = f"must be less than strategy.server.min_replies={options.min_replies}"
        raise OptionError("strategy.client.colluders", options.colluders, allowed)


def _check_one_bit(config: Config, options: OneBitOptions) -> None:
    """A group fits into a round."""
    if isinstance(options, CoQFLOptions) and options.group_size > max(2, config.clients_per_round):
        words = f"at most clients_per_round={config.clients_per_round} is allowed"
        raise OptionError("strategy.client.group_size", options.group_size, words)
    if isinstance(options, LDPFLOptions) and options.shuffle and options.shuffle_delta >= config.privacy.delta:
        words = f"must be less than privacy.delta={config.privacy.delta}"
        raise OptionError("strategy.client.shuffle_delta", options.shuffle_delta, words)


def _check_gradient(config: Config, options: GradientOptions) -> None:
    """The accumulated gradient is what the step says, and published options stay published."""
    if config.local.momentum:
        words = f"{config.strategy.name} sums the gradients of plain SGD: 0"
        raise OptionError("local.momentum", config.local.momentum, words)
    if isinstance(options, SelectingOptions):
        bound = options.score_bound
        if bound is not None and bound > options.clip_norm:
            words = f"at most strategy.client.clip_norm={options.clip_norm}"
            raise OptionError("strategy.client.score_bound", bound, words)
    if isinstance(options, NoisyGradientOptions):
        check_central(options)
    if (
        isinstance(options, FedAGSOptions)
        and options.loss_weights
        and options.loss_share + options.selection_share >= 1
    ):
        words = f"with selection_share={options.selection_share} it must leave something to the values"
        raise OptionError("strategy.client.loss_share", options.loss_share, words)
    _check_published(config.privacy.variant, options)


def _check_published(variant: str, options: GradientOptions) -> None:
    """What has no repaired form is refused rather than ignored."""
    split = options.epsilon_split if isinstance(options, FedAGSOptions) else None
    if variant != "published":
        noise = options.noise if isinstance(options, FedAGSOptions) else "gaussian"
        given = {"noise": (noise, "gaussian"), "sensitivity": (options.sensitivity, "clip")}
        for name, (value, usual) in (given | {"epsilon_split": (split, None)}).items():
            if value != usual:
                words = "has no privacy bound: privacy.variant=published, or " + str(usual or "null")
                raise OptionError(f"strategy.client.{name}", value, words)
        return
    if split is None:
        return
    sound = isinstance(split, list) and len(split) == 3
    if not sound or not all(isinstance(part, int | float) and part > 0 for part in split):
        raise OptionError("strategy.client.epsilon_split", split, "must be three positive numbers, [eps1, eps2, eps3]")
    if abs(sum(split) - options.epsilon) > 1e-9 * options.epsilon:
        words = f"must sum to strategy.client.epsilon={options.epsilon}, the sum is {sum(split):g}"
        raise OptionError("strategy.client.epsilon_split", split, words)


def _check_clipping(options: ClippingOptions) -> None:
    """The first C lies between its bounds."""
    least, first, most = options.floor, options.clip_norm, options.norm_bound
    if options.clipping != "fixed" and not least <= first <= most:
        raise OptionError(
            "strategy.client.clip_norm", first, f"must be from strategy.server.floor={least} to norm_bound={most}"
        )


def check_example_level(config: Config, options: MethodOptions) -> None:
    """What the analysis of noisy steps rests on, and local options that they have no use for."""
    name, local = config.strategy.name, config.local
    if local.sampler != "poisson":
        raise OptionError("local.sampler", local.sampler, f"{name}'s analysis holds for Poisson batches: poisson")
    if local.momentum:
        raise OptionError("local.momentum", local.momentum, f"{name} has an optimizer of its own: 0")
    if local.epochs != 1:
        raise OptionError("local.epochs", local.epochs, f"{name} takes strategy.client.local_steps noisy steps: 1")
    if local.steps is not None:
        raise OptionError("local.steps", local.steps, f"{name} takes strategy.client.local_steps noisy steps: null")
    if getattr(options, "clipping", "fixed") == "median" and config.privacy.variant != "published":
        raise OptionError(
            "strategy.client.clipping",
            "median",
            "has no privacy bound: privacy.variant=published, or clipping=adaptive",
        )
