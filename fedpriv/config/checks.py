"""What options require of one another: a table of rules, in the order in which they are looked at.

A rule names the option that is refused; its error has that option's value, and its words say what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedpriv.common.errors import OptionError
from fedpriv.common.sum_graph import MOST_MEMBERS, graph_of
from fedpriv.config.data_schema import KNOWN_SETS, ResampledPartition
from fedpriv.config.methods import (
    MOST_EPSILON,
    AskOptions,
    ClippingOptions,
    CoQFLOptions,
    CpSGDOptions,
    DPFedAvgOptions,
    DPFTRLOptions,
    DPSumOptions,
    ExampleLevelOptions,
    FedAGSOptions,
    FedOnceOptions,
    GradientOptions,
    LDPFLOptions,
    ModularOptions,
    MomentsOptions,
    NoisyGradientOptions,
    PersonalOptions,
    RowSumOptions,
    ScaffoldOptions,
    SelectingOptions,
    SumOptions,
    UnitOptions,
)
from fedpriv.config.options import MethodOptions, Options
from fedpriv.config.participation import MOST_ROUNDS, needed, participation_of
from fedpriv.config.schema import Config, FaultPlan

#: Methods whose server adds no averaged update, and why.
OWN_STEP = {
    "fedonce": "the server's rule finds the length of its one step along each direction (strategy.server.step)",
    "ask": "the noisy sum is the answer",
    "moments": "the noisy sum is the model",
}
#: Models that read any numbers; all others read pictures.
READ_VECTORS = ("auto", "linear", "softmax", "mlp", "moments", "constant", "custom")
#: Of these, what a run trains whatever its method is.
TRAINED = ("auto", "linear", "softmax", "mlp", "custom")
LINEAR = ("softmax", "linear")


@dataclass(frozen=True)
class Rule:
    """A rule of some methods (``of``: the class of their options), or of all.

    wrong: of (configuration, the method's options), something true where the rule is broken. words: what is allowed, in
    which {c}, {o} and {x} stand for the configuration, the options, and what ``wrong`` gave; so in ``option``, too.
    """

    id: str
    option: str
    wrong: Callable[[Config, Any], Any]
    words: str
    of: type[Options] = MethodOptions


def check(config: Config, options: MethodOptions | None = None, ids: tuple[str, ...] = ("",)) -> None:
    """Holds a configuration to the rules whose id begins so. options: of a method of one's own, for which rules of
    other methods' classes count too.

    Raises `OptionError` with option, value and what is allowed.
    """
    given = config.strategy.options if options is None else options
    for rule in RULES:
        if not rule.id.startswith(ids) or not (options is not None or isinstance(given, rule.of)):
            continue
        if wrong := rule.wrong(config, given):
            option = rule.option.format(x=wrong)
            raise OptionError(option, value_of(config, given, option), rule.words.format(c=config, o=given, x=wrong))


def value_of(config: Config, options: MethodOptions, option: str) -> Any:
    """The value of an option as a person writes it; of a group its choice."""
    group, _, rest = option.partition(".")
    value: Any = config
    if group == "strategy" and rest.startswith(("server.", "client.")):
        value, option = options, rest.partition(".")[2]
    for name in option.split("."):
        value = value[int(name)] if name.isdigit() else getattr(value, name)
    if option == "engine.faults":
        return "..."
    value = getattr(value, "name") if isinstance(value, Options) else value  # noqa: B009
    if isinstance(value, bool | None):
        return "null" if value is None else str(value).lower()
    return list(value) if isinstance(value, tuple) else value


# --- what several rules ask ------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _graph(clients: int, threshold: int | None, colluders: int) -> tuple[int, int, int]:
    """(k, t, fewest t with which no two sets of survivors open)."""
    return (*graph_of(clients, threshold, colluders), (clients + colluders) // 2 + 1)


def _protocol(c: Config, o: Any) -> tuple[int, int, int] | None:
    return _graph(c.clients_asked, o.threshold, o.colluders) if c.strategy.secure_sum == "protocol" else None


def _few_colluders(c: Config, o: Any) -> bool:
    return (found := _protocol(c, o)) is not None and not found[0] and found[1] < found[2]


def _opening(c: Config, o: Any) -> tuple[int, str] | None:
    """(clients that unmasking needs, another way out) where a round closes earlier."""
    if (found := _protocol(c, o)) is None or (opening := max(found[1:])) <= c.clients_per_round:
        return None
    least, replies = found[2], c.clients_per_round
    return opening, f"set strategy.server.threshold to {least} to {replies}, or " if least <= replies else ""


def _plan(c: Config, o: Any) -> str:
    """The plan of participations, where the rounds must fit into it; "" under a sample, and where a band says."""
    plan = participation_of(c)
    banded = isinstance(o, DPFTRLOptions) and o.secret_cohorts
    return "" if plan == "sampled" or banded else plan


def _uneven(c: Config, o: Any) -> list[int] | None:
    """The nearest numbers of clients per round that divide all, where passes of an allocation do not come out even."""
    clients, size = c.num_clients, c.clients_per_round
    if o.client_sampling not in ("allocated", "balls") or clients % size == 0:
        return None
    return [next(k for k in way if clients % k == 0) for way in (range(size, 0, -1), range(size, clients + 1))]


def _never(c: Config, o: Any) -> tuple[int, str, int] | None:
    """(number, client or round, largest) of a planned fault that can never happen."""
    faults = () if isinstance(c.engine.faults, FaultPlan) else c.engine.faults
    limits = {"client": c.num_clients - 1, "round": c.num_rounds}
    places = ((number, name) for number, _ in enumerate(faults) for name in limits)
    return next(((n, name, limits[name]) for n, name in places if getattr(faults[n], name) > limits[name]), None)


def _not_used(name: str, unused: Any) -> Callable[[Config, Any], bool]:
    return lambda c, o: c.features.name == "none" and getattr(c.features, name) != unused


def _of_pictures(c: Config) -> tuple[int, int] | None:
    """(training examples, classes) of a set that everybody has."""
    known = KNOWN_SETS.get(c.dataset.name)
    return None if known is None or c.dataset.split is not None else known


def _more_than(c: Config, number: int) -> int:
    """How many training examples there are, where they are fewer than ``number``."""
    found = (c.dataset.train_examples or known[0]) if (known := _of_pictures(c)) else number
    return found if number > found else 0


def _classes(c: Config, o: Any) -> int:
    """How many classes there are, where a client is to hold more."""
    known = _of_pictures(c)
    return known[1] if known and getattr(c.partition, "classes_per_client", 0) > known[1] else 0


def _own_images(c: Config) -> bool:
    return c.dataset.name == "on_nodes" and not c.dataset.is_table


def _unbound(c: Config) -> bool:
    return c.privacy.variant != "published"


def _split_sum(c: Config, o: Any) -> float | None:
    """The sum of an epsilon's parts, where it is another."""
    if _unbound(c) or o.epsilon_split is None:
        return None
    total = sum(o.epsilon_split)
    return total if abs(total - o.epsilon) > 1e-9 * o.epsilon else None


def _no_split(split: Any) -> bool:
    sound = isinstance(split, list) and len(split) == 3
    return not sound or not all(isinstance(part, int | float) and part > 0 for part in split)


SAMPLING, PARTICIPATION = "strategy.server.client_sampling", "strategy.server.participation"
SUM, CLIPPING = "strategy.secure_sum", "strategy.client.clip_norm"
NO_BOUND = "has no privacy bound but as published; allowed: {}, or privacy.variant=published"
GROUPS = f"{SAMPLING}=poisson draws from one group of clients after the other"
ROUNDS = "num_rounds={c.num_rounds} rounds of {c.clients_asked} clients"
STEPS = "{c.strategy.name} takes strategy.client.local_steps noisy steps: "
HIDDEN = "with {c.strategy.name} as configured the observer may know who takes part in which round, so that a secret "
HIDDEN += "round of each pass amplifies nothing; allowed: fixed, poisson, or strategy.client.form=central where a "
HIDDEN += "method has it (strategy=dpfedavg; strategy=scaffold; ...), and its server is trusted with the cohorts"

# fmt: off
RULES: tuple[Rule, ...] = (
    # --- of single methods
    Rule("colluders", "strategy.client.colluders", lambda c, o: o.colluders >= o.min_replies and o.colluders > 0,
         "must be less than strategy.server.min_replies={o.min_replies}", SumOptions),
    Rule("example-batches", "local.sampler", lambda c, o: c.local.sampler != "poisson",
         "{c.strategy.name}'s analysis holds for Poisson batches: poisson", ExampleLevelOptions),
    Rule("example-momentum", "local.momentum", lambda c, o: c.local.momentum,
         "{c.strategy.name} has an optimizer of its own: 0", ExampleLevelOptions),
    Rule("example-epochs", "local.epochs", lambda c, o: c.local.epochs != 1, f"{STEPS}1", ExampleLevelOptions),
    Rule("example-steps", "local.steps", lambda c, o: c.local.steps is not None, f"{STEPS}null", ExampleLevelOptions),
    Rule("example-median", "strategy.client.clipping",
         lambda c, o: getattr(o, "clipping", "fixed") == "median" and _unbound(c),
         NO_BOUND.format("adaptive"), ExampleLevelOptions),
    Rule("group-size", "strategy.client.group_size", lambda c, o: o.group_size > max(2, c.clients_per_round),
         "at most clients_per_round={c.clients_per_round} is allowed", CoQFLOptions),
    Rule("shuffle-delta", "strategy.client.shuffle_delta",
         lambda c, o: o.shuffle and o.shuffle_delta >= c.privacy.delta,
         "must be less than privacy.delta={c.privacy.delta}", LDPFLOptions),
    Rule("gradient-momentum", "local.momentum", lambda c, o: c.local.momentum,
         "{c.strategy.name} sums the gradients of plain SGD: 0", GradientOptions),
    Rule("score-bound", "strategy.client.score_bound",
         lambda c, o: o.score_bound is not None and o.score_bound > o.clip_norm,
         "at most strategy.client.clip_norm={o.clip_norm}", SelectingOptions),
    Rule("central-sampling", SAMPLING, lambda c, o: o.form == "central" and o.client_sampling == "fixed",
         "the guarantee of strategy.client.form=central rests on a secret draw of clients; allowed: poisson, allocated",
         NoisyGradientOptions),
    Rule("central-replies", "strategy.server.min_replies", lambda c, o: o.form == "central" and o.min_replies != 1,
         "with strategy.client.form=central, stopping on few replies would reveal the sample size; allowed: 1",
         NoisyGradientOptions),
    Rule("noise-rate", "strategy.server.learning_rate",
         lambda c, o: o.learning_rate == "noise"
         and not (o.form == "central" and o.clipping == "fixed" and o.optimizer in ("sgd", "momentum")),
         "needs strategy.client.form=central, strategy.server.clipping=fixed, strategy.server.optimizer=sgd or momentum"
         "; allowed: a number", DPFedAvgOptions),
    Rule("central-quantile", "strategy.server.clipping",
         lambda c, o: o.clipping == "quantile" and o.form != "central",
         "dpfedavg adapts the clip norm only with strategy.client.form=central; allowed: fixed, or strategy=fedldp, "
         "where each client adds noise to the statistic", DPFedAvgOptions),
    Rule("central-clip-norm", CLIPPING,
         lambda c, o: o.clipping == "quantile" and not o.floor <= o.clip_norm <= o.norm_bound,
         "strategy.server.floor={o.floor:g} to strategy.server.norm_bound={o.norm_bound:g}", DPFedAvgOptions),
    Rule("loss-share", "strategy.client.loss_share",
         lambda c, o: o.loss_weights and o.loss_share + o.selection_share >= 1,
         "with strategy.client.selection_share={o.selection_share} it must leave something to the values",
         FedAGSOptions),
    Rule("published-noise", "strategy.client.noise", lambda c, o: _unbound(c) and o.noise != "gaussian",
         NO_BOUND.format("gaussian"), FedAGSOptions),
    Rule("published-sensitivity", "strategy.client.sensitivity", lambda c, o: _unbound(c) and o.sensitivity != "clip",
         NO_BOUND.format("clip"), GradientOptions),
    Rule("published-split", "strategy.client.epsilon_split",
         lambda c, o: _unbound(c) and o.epsilon_split is not None, NO_BOUND.format("null"), FedAGSOptions),
    Rule("split-parts", "strategy.client.epsilon_split",
         lambda c, o: o.epsilon_split is not None and _no_split(o.epsilon_split),
         "must be three positive numbers, [eps1, eps2, eps3]", FedAGSOptions),
    Rule("split-sum", "strategy.client.epsilon_split", _split_sum,
         "must sum to strategy.client.epsilon={o.epsilon}, the sum is {x:g}", FedAGSOptions),
    Rule("control-steps", "local.steps", lambda c, o: c.local.steps is None,
         "control variates are means over the same number of steps K at every client: at least 1", ScaffoldOptions),
    Rule("clip-norm", CLIPPING,
         lambda c, o: o.clipping != "fixed" and not o.floor <= o.clip_norm <= o.norm_bound,
         "must be from strategy.server.floor={o.floor} to strategy.server.norm_bound={o.norm_bound}", ClippingOptions),
    Rule("unit-epsilon", "strategy.client.epsilon",
         lambda c, o: o.mechanism != "gaussian" and o.epsilon > MOST_EPSILON,
         f"of strategy.client.mechanism={{o.mechanism}}: at most {MOST_EPSILON}", UnitOptions),
    Rule("groups-factor", "strategy.client.factor", lambda c, o: o.takes_turns and o.factor != "banded",
         f"{GROUPS}, as many as a band is wide: banded", DPFTRLOptions),
    Rule("groups-turns", PARTICIPATION, lambda c, o: o.takes_turns and o.participation != "cyclic",
         f"{GROUPS}; allowed: cyclic", DPFTRLOptions),
    Rule("groups-limit", f"{PARTICIPATION}s", lambda c, o: o.takes_turns and o.participations is not None,
         f"{GROUPS}, and its coins decide how often a client takes part; allowed: null", DPFTRLOptions),
    Rule("groups-number", "strategy.client.bandwidth",
         lambda c, o: o.takes_turns and (o.bandwidth is None or o.bandwidth > c.num_clients // c.clients_per_round)
         and [c.num_clients // c.clients_per_round],
         f"{GROUPS}, bandwidth groups in all; allowed: 1 to num_clients/clients_per_round={{x[0]}}", DPFTRLOptions),
    Rule("balls-turns", PARTICIPATION, lambda c, o: o.client_sampling == "balls" and o.participation != "cyclic",
         f"{SAMPLING}=balls gives every client the same round of each pass; allowed: cyclic", DPFTRLOptions),
    Rule("balls-limit", f"{PARTICIPATION}s", lambda c, o: o.client_sampling == "balls" and o.participations is not None,
         f"{SAMPLING}=balls has one round of each pass for every client; allowed: null", DPFTRLOptions),
    Rule("band-replies", "over_selection", lambda c, o: c.over_selection > 1,
         "a replacement client would change the sum twice; allowed: 1", DPFTRLOptions),
    Rule("no-band", "strategy.client.bandwidth",
         lambda c, o: o.bandwidth is not None and o.factor not in ("banded", "bisr"),
         "strategy.client.factor={o.factor} has no band; allowed: null, or strategy.client.factor=banded or bisr",
         DPFTRLOptions),
    Rule("band-rounds", "strategy.client.bandwidth",
         lambda c, o: o.bandwidth is not None and o.bandwidth > c.num_rounds,
         "at most num_rounds={c.num_rounds} is allowed", DPFTRLOptions),
    Rule("linear-model", "model", lambda c, o: c.model.name not in LINEAR,
         f"the steps of {{c.strategy.name}} are those of a linear model; allowed: {', '.join(LINEAR)}", FedOnceOptions),
    Rule("own-optimizer", "strategy.server.optimizer",
         lambda c, o: o.optimizer != "sgd" and OWN_STEP.get(c.strategy.name), "{x}; allowed: sgd"),
    Rule("own-rate", "strategy.server.lr",
         lambda c, o: o.lr not in (None, 1) and OWN_STEP.get(c.strategy.name), "{x}; allowed: null or 1"),
    Rule("answers", "model", lambda c, o: c.model.name not in ("auto", "constant"),
         "strategy=ask trains no model, its numbers are the answers; allowed: auto, constant", AskOptions),
    Rule("moments", "model", lambda c, o: c.model.name != "moments",
         "strategy=moments makes its model of one sum; allowed: moments", MomentsOptions),
    Rule("scored-one", "strategy.client.questions", lambda c, o: len(o.runs_scored) > 1 and ", ".join(o.runs_scored),
         "score asks about {x}; allowed: one run in a list", AskOptions),
    Rule("scored", "model.weights", lambda c, o: bool(o.runs_scored) != (c.model.weights is not None),
         "score:RUN asks about the file model.safetensors of RUN, and other questions about none; `fedpriv ask` "
         "and fedpriv.ask name it themselves", AskOptions),
    # --- of all methods
    Rule("moments-alone", "model",
         lambda c, o: c.model.name == "moments" and not isinstance(o, MomentsOptions),
         "its parameters are sums over rows, which nothing trains: strategy=moments; allowed: another model"),
    Rule("no-start", "model.weights", lambda c, o: c.model.name in ("constant", "moments")
         and c.model.weights is not None and not isinstance(o, AskOptions),
         "model={c.model.name} starts from zero; allowed: null"),
    Rule("lora-layers", "model.lora_layers", lambda c, o: c.model.lora_layers and "lora" not in c.model.train,
         "model.train={c.model.train} adds no product to a layer; allowed: [], or model.train=lora|ffa_lora"),
    Rule("local-buffers", "model.buffers",
         lambda c, o: c.model.buffers == "local" and not isinstance(o, PersonalOptions),
         "{c.strategy.name} sends all layers, or others; allowed: averaged, or fedper with the last block its own"),
    Rule("opacus-precision", "engine.precision",
         lambda c, o: c.engine.precision != "float32" and c.local.clipping == "opacus",
         "local.clipping=opacus forms gradients of single examples in float32; allowed: float32"),
    Rule("cohort", "clients_per_round", lambda c, o: c.clients_per_round > c.num_clients,
         "at most num_clients={c.num_clients} is allowed"),
    Rule("replies", "strategy.server.min_replies", lambda c, o: o.min_replies > c.clients_per_round,
         "at most clients_per_round={c.clients_per_round} is allowed"),
    Rule("target", "privacy.target_epsilon",
         lambda c, o: (c.privacy.target_epsilon or 0) > (c.privacy.max_epsilon or math.inf),
         "at most privacy.max_epsilon={c.privacy.max_epsilon} is allowed"),
    Rule("target-observer", "privacy.target_observer",
         lambda c, o: c.privacy.target_epsilon is None and c.privacy.target_observer is not None,
         "requires privacy.target_epsilon, which is not set; allowed: null"),
    Rule("cluster", "engine.address", lambda c, o: c.engine.name != "ray" and c.engine.address is not None,
         "only engine=ray joins a cluster; otherwise null"),
    Rule("faults-seeded", "privacy.rng", lambda c, o: c.engine.faults and c.privacy.rng != "seeded",
         "faults are planned in simulations alone: seeded, or engine.faults=[]"),
    Rule("faults-never", "engine.faults.{x[0]}.{x[1]}", _never, "at most {x[2]}, or it never happens"),
    Rule("features-map", "features.map", _not_used("map", "none"),
         "features=none leaves nothing to map; allowed: none, or features=gradients, processes or backbone"),
    Rule("features-upright", "features.normalise", _not_used("normalise", "none"),
         "features=none leaves pictures as they are: leave it out, or features=gradients, processes or backbone"),
    Rule("features-mirror", "features.mirror", _not_used("mirror", False),
         "features=none leaves pictures as they are: leave it out, or features=gradients, processes or backbone"),
    Rule("features-table", "features", lambda c, o: c.features.name != "none" and c.dataset.is_table,
         "of pictures, and dataset={c.dataset.name} is a table: none"),
    Rule("features-drawings", "features.map",
         lambda c, o: c.features.map == "drawings" and c.features.name != "processes",
         "is of features=processes; allowed with features={c.features.name}: none, strokes, pink"),
    Rule("mirrored-strokes", "features.mirror", lambda c, o: c.features.mirror and c.features.map == "strokes",
         "characters do not look alike mirrored; allowed: false, or features.map=none or pink"),
    Rule("features-model", "model", lambda c, o: c.features.name != "none" and c.model.name not in READ_VECTORS,
         f"features={{c.features.name}} gives the model a vector and no picture; allowed: {', '.join(TRAINED)}"),
    Rule("nodes-table-classes", "dataset.classes",
         lambda c, o: c.dataset.name == "on_nodes" and c.dataset.is_table and c.dataset.classes,
         "the schema names a table's classes: leave it out"),
    Rule("nodes-schema", "dataset.schema_digest",
         lambda c, o: _own_images(c) and c.dataset.schema_digest is not None,
         "needs dataset.schema_file, the server's copy of the schema; allowed: null"),
    Rule("nodes-classes", "dataset.classes",
         lambda c, o: _own_images(c) and len(set(c.dataset.classes)) < max(2, len(c.dataset.classes)),
         "at least 2 different names of class folders"),
    Rule("nodes-examples", "dataset.examples",
         lambda c, o: c.dataset.name == "on_nodes"
         and (len(c.dataset.examples) != c.num_clients or min(c.dataset.examples) < 1),
         "one number of at least 1 for each of num_clients={c.num_clients} clients"),
    Rule("nodes-size", "dataset.size", lambda c, o: _own_images(c) and c.dataset.size is None,
         "on_nodes: all machines must know the side length of a picture"),
    Rule("nodes-partition", "partition", lambda c, o: c.dataset.name == "on_nodes" and c.partition.name != "iid",
         "on_nodes: nobody divides the examples, every node has its own; leave it at iid"),
    Rule("nodes-faults", "engine.faults", lambda c, o: c.dataset.name == "on_nodes" and c.engine.faults,
         "faults are planned in simulation only"),
    Rule("over-selection-drawn", "over_selection", lambda c, o: c.over_selection > 1 and o.client_sampling != "fixed",
         "the first to reply are no random draw, which strategy.server.client_sampling={o.client_sampling} counts on: 1"
         ),
    Rule("over-selection-all", "over_selection",
         lambda c, o: c.over_selection > 1 and c.clients_asked == c.clients_per_round,
         "num_clients={c.num_clients} leaves nobody else to ask beside clients_per_round: 1"),
    Rule("allocated-open", SAMPLING,
         lambda c, o: o.client_sampling == "allocated"
         and not (isinstance(o, NoisyGradientOptions) and o.form == "central"), HIDDEN),
    Rule("allocated-even", "clients_per_round", _uneven,
         f"{SAMPLING}={{o.client_sampling}} has passes of num_clients={{c.num_clients}}/clients_per_round rounds; "
         "allowed: a divisor of num_clients, such as {x[0]} and {x[1]}"),
    Rule("allocated-long", "num_clients",
         lambda c, o: o.client_sampling in ("allocated", "balls") and c.num_clients // c.clients_per_round > MOST_ROUNDS
         and c.num_clients // c.clients_per_round,
         f"{SAMPLING}={{o.client_sampling}} has passes of {{x}} rounds; at most {MOST_ROUNDS} are accounted for"),
    Rule("own-cohorts", "strategy.server.cohorts",
         lambda c, o: o.cohorts is not None and (o.client_sampling, o.participation) != ("fixed", "sampled"),
         f"goes with {SAMPLING}=fixed and {PARTICIPATION}=sampled, whose guarantees rest on no sample; allowed: null"),
    Rule("sampled-limit", f"{PARTICIPATION}s",
         lambda c, o: participation_of(c) == "sampled" and o.participations is not None,
         f"{PARTICIPATION}=sampled has no participation limit; allowed: null, or {PARTICIPATION}=balanced"),
    Rule("planned-cohorts", PARTICIPATION, lambda c, o: _plan(c, o) and o.client_sampling != "fixed",
         f"planned cohorts are not drawn in secret ({SAMPLING}={{o.client_sampling}}); allowed: sampled"),
    Rule("once-limit", f"{PARTICIPATION}s", lambda c, o: _plan(c, o) == "once" and o.participations not in (None, 1),
         f"{PARTICIPATION}=once; allowed: 1 or null"),
    Rule("once-rounds", PARTICIPATION,
         lambda c, o: _plan(c, o) == "once" and needed(c) > 1 and [c.num_clients // c.clients_asked],
         f"{ROUNDS} are more than num_clients={{c.num_clients}}; allowed: num_rounds of at most {{x[0]}}"),
    Rule("limit-rounds", f"{PARTICIPATION}s",
         lambda c, o: _plan(c, o) not in ("", "once") and o.participations is not None
         and o.participations < needed(c) and needed(c),
         f"{ROUNDS} of num_clients={{c.num_clients}}: at least {{x}}, or fewer rounds"),
    Rule("no-sum", SUM, lambda c, o: not isinstance(o, ModularOptions) and c.strategy.secure_sum != "assumed",
         "{c.strategy.name} sends no whole numbers that could be added up in secret; allowed: assumed"),
    Rule("sum-sensitivity", "strategy.client.sensitivity",
         lambda c, o: c.strategy.secure_sum != "assumed" and o.sensitivity == "per_example",
         "clients of a sum add noise of one size; allowed: clip", CpSGDOptions),
    Rule("sum-sample", "strategy.client.sampling_rate", lambda c, o: o.whole and o.sampling_rate < 1,
         "no law of a sample under strategy.client.form={o.form}'s whole-number noise is proved; allowed: 1, or "
         "strategy.client.form=central or local", DPSumOptions),
    Rule("sum-local", SUM, lambda c, o: o.form == "local" and c.strategy.secure_sum == "protocol",
         "with strategy.client.form=local each site's own sum is seen; allowed: ideal", RowSumOptions),
    Rule("sum-threshold", "strategy.server.threshold",
         lambda c, o: o.threshold is not None and o.threshold > c.clients_per_round,
         "at most clients_per_round={c.clients_per_round} is allowed", ModularOptions),
    # As every client checks it again: no two sets of survivors open, and the graph withstands the colluders.
    Rule("sum-of-one", SUM, lambda c, o: c.strategy.secure_sum == "protocol" and c.clients_asked < 2,
         "needs rounds of two clients at least: a sum of one hides nothing", ModularOptions),
    Rule("sum-members", "clients_per_round",  # before anything is computed that grows with a number of a server's
         lambda c, o: c.strategy.secure_sum == "protocol" and c.clients_asked > MOST_MEMBERS,
         f"{SUM}=protocol asks at most {MOST_MEMBERS} clients in a round, with over_selection {{c.clients_asked}}",
         ModularOptions),
    Rule("sum-halves", "strategy.server.threshold",
         lambda c, o: (found := _protocol(c, o)) and o.threshold is not None and o.threshold < found[2] and found[2],
         "at least {x} is allowed, above half of {c.clients_asked} clients and {o.colluders} colluders together",
         ModularOptions),
    Rule("sum-colluders", "strategy.client.colluders", _few_colluders,
         "fewer than a third of the {c.clients_asked} clients may collude, or name strategy.server.threshold",
         ModularOptions),
    Rule("sum-closes", "over_selection", _opening,
         "unmasking needs {x[0]} clients but rounds close at {c.clients_per_round} replies; {x[1]}lower over_selection",
         ModularOptions),
    Rule("train-examples", "dataset.train_examples",
         lambda c, o: (known := _of_pictures(c)) and (c.dataset.train_examples or 0) > known[0] and known[0],
         "{c.dataset.name} has {x} training examples"),
    Rule("resampled", "partition.examples_per_client",
         lambda c, o: _more_than(c, getattr(c.partition, "examples_per_client", 0)),
         "there are {x} training examples to draw from"),
    Rule("clients", "num_clients",
         lambda c, o: not isinstance(c.partition, ResampledPartition) and _more_than(c, c.num_clients),
         "{c.dataset.name} has {x} training examples, one per client"),
    Rule("classes", "partition.classes_per_client", _classes, "{c.dataset.name} has {x} classes"),
)
# fmt: on


def check_resampled(partition: ResampledPartition, examples: int) -> None:
    """A client draws its examples without replacement."""
    if partition.examples_per_client > examples:
        words = f"there are {examples} training examples to draw from"
        raise OptionError("partition.examples_per_client", partition.examples_per_client, words)


# --- what is allowed and probably not meant --------------------------------------------------------------

#: Bound of a row's gradient above which training by `dpsum` all but stands still (rows have lengths of about one).
LARGEST_CLIP = 10.0
#: Above it, whatever the number of units, a guarantee fails more often than people expect.
LARGEST_DELTA = 0.01


def doubts(config: Config) -> list[str]:
    """A sentence for each doubt."""
    target, delta, units, what = config.privacy.target_epsilon, config.privacy.delta, config.num_clients, "clients"
    if isinstance(config.strategy.options, ExampleLevelOptions):  # 0: their number is known once they are read
        known, _ = KNOWN_SETS.get(config.dataset.name, (0, 0))
        units, what = config.dataset.train_examples or sum(config.dataset.examples) or known, "examples"
    found = []
    if isinstance(config.strategy.options, DPSumOptions) and (c := config.strategy.options.clip_norm) > LARGEST_CLIP:
        words = (
            f"strategy.client.clip_norm={c:g}: the step is in units of it, so gradients that are much shorter hardly"
        )
        found.append(f"{words} move the model; usual is 0.3 to 4")
    if target is not None and target < delta:
        words = f"privacy.target_epsilon={target:g} is below privacy.delta={delta:g}: delta alone is the guarantee"
        found.append(words)
    # Handing out all data of one unit in n, drawn by chance, is (0, 1/n)-private: epsilon does not speak of it.
    if units > 1 and delta >= 1 / units:
        words = f"privacy.delta={delta:g} is not below 1 / {units:,} {what}: whoever publishes all of one, drawn by "
        found.append(f"{words}chance, keeps to any epsilon at this delta; usual is far less")
    elif delta > LARGEST_DELTA:
        found.append(f"privacy.delta={delta:g} is large: with this probability epsilon may promise nothing")
    return found
