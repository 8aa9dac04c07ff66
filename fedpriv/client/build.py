"""The client half that a configuration names, and the public numbers that its guarantee depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedpriv.client.base import Client
from fedpriv.client.contract import PublicFacts, RunFacts, Site
from fedpriv.common.cohorts import limits
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import SUM_EXCHANGES
from fedpriv.config.checks import check
from fedpriv.config.halves import half_class, method_options
from fedpriv.config.methods import METHODS, AskOptions, SumOptions
from fedpriv.config.options import MethodOptions
from fedpriv.config.participation import participation_of
from fedpriv.config.schema import Config
from fedpriv.data.asked import Asks, asks_of
from fedpriv.data.load import load_federated
from fedpriv.data.table_rows import schema_of_dataset, task_of
from fedpriv.data.table_schema import TableSchema
from fedpriv.data.types import FederatedData
from fedpriv.mechanisms.recalibration import knots
from fedpriv.mechanisms.tasks import Classification
from fedpriv.privacy.events import Event
from fedpriv.training.flat_model import Layout, layout_of
from fedpriv.training.language_models import text_of
from fedpriv.training.models import build_model, resolve_model


def client_class(config: Config) -> type[Client]:
    """The client half of the configured method."""
    return _checked(half_class(config, "client", _of_a_pair))  # type: ignore[arg-type]  # classes are hashable


@lru_cache(maxsize=256)
def _checked(found: type[Any]) -> type[Client]:
    """A client half that changes nothing which all methods share. Raises `OptionError`."""
    if not issubclass(found, Client):
        raise OptionError(
            "strategy.client._target_", found.__name__, "must be a subclass of fedpriv.client.base.Client"
        )
    for name in final_names():
        if any(name in vars(kind) for kind in found.__mro__[: found.__mro__.index(Client)]):
            words = f"{found.__name__} has its own `{name}`, which all methods share; allowed: `charges`, `traits` and "
            words += "what else docs/architecture.md lists"
            raise OptionError("strategy.client._target_", found.__name__, words)
    return found


def _of_a_pair(algorithm: type[Client], mechanism: type[Client]) -> dict[str, Any]:
    """What a pair's class says for itself. No paper claims anything of a pair."""
    traits = replace(mechanism.traits, keeps_layers=algorithm.traits.keeps_layers)
    return {"traits": traits, "claim": lambda method, participations, delta: None}


def final_names() -> list[str]:
    """What `Client` and its bases mark as final."""
    named = [item for kind in Client.__mro__ for item in vars(kind).items()]
    return [
        name
        for name, value in named
        if getattr(getattr(value, "fget", getattr(value, "__func__", value)), "__final__", False)
    ]


def exchanges_of(config: Config) -> tuple[str, ...]:
    """What a round of the configured method asks of a client, in order."""
    return SUM_EXCHANGES if config.strategy.secure_sum == "protocol" else client_class(config).traits.exchanges


def make_client(config: Config, site: Site | None = None, examples: int | None = None, **changes: Any) -> Client:
    """The method's client with its options; without a site it can be planned and audited.

    examples: the client's own count, for methods whose guarantee depends on it (None: the smallest client's). changes:
    options with other values.
    """
    return ClientMaker(config).make(site, examples, **changes)


class ClientMaker:
    """Makes a configuration's clients from one object of options, checked here once. Raises `OptionError`."""

    def __init__(self, config: Config) -> None:
        self.kind, self.variant = client_class(config), config.privacy.variant
        self.options = method_options(config)
        check_own_client(config, self.kind, self.options)
        self.unit, self.across_sites = unit_of(config), sites_of_a_unit(config)
        if self.kind.threat.unit == "example" and config.partition.name == "resampled" and self.across_sites == 1:
            words = f"clients share examples, and {config.strategy.name} protects one example at one client alone"
            words += "; allowed: a partition that divides them, or privacy.across_sites"
            raise OptionError("partition", "resampled", words)
        self.facts = _facts_of_the_smallest(config) if self.kind.traits.needs_facts else None
        # In a pair a mechanism's dimension is that of its release.
        pair = config.privacy.mechanism is not None
        if pair and self.facts is not None and self.kind.traits.keeps_layers:
            up = self.make().layers(layout_for(config), 1).up
            self.facts = replace(self.facts, num_parameters=up.stop - up.start)

    def make(self, site: Site | None = None, examples: int | None = None, **changes: Any) -> Client:
        """As `make_client`."""
        facts = self.facts
        if facts is not None and examples is not None:
            facts = replace(facts, num_examples=examples)
        options = self.options.model_copy(update=changes) if changes else self.options
        return self.kind(options, RunFacts(self.variant, facts, site, self.unit, self.across_sites))


def unit_of(config: Config) -> str:
    """Whose data the run protects, as its threat says it: client, example or person (`privacy.unit`). A person where
    examples are clipped and the table's schema names a unit, unless rows are asked for. Raises `OptionError`.
    """
    kind, asked, name = client_class(config), config.privacy.unit, config.method
    named = schema_of_dataset(config.dataset).unit if config.dataset.is_table else None
    if config.privacy.rows_per_person is not None and named is None:
        words = "needs a table whose schema names the column of persons (unit); allowed: null"
        raise OptionError("privacy.rows_per_person", config.privacy.rows_per_person, words)
    if named is not None and config.dataset.name == "on_nodes":
        words = f"nodes have declared how many persons ({named}) they hold, and no numbers of rows; allowed: null"
        if asked == "row":
            raise OptionError("privacy.unit", asked, f"{words}, or a schema without unit")
        if config.privacy.rows_per_person is not None:
            raise OptionError("privacy.rows_per_person", config.privacy.rows_per_person, words)
    if kind.threat.unit == "client":
        if asked in (None, "client"):
            return "client"
        words = f"{name} protects all of a client's data, every row and person in it; allowed: null, client"
        raise OptionError("privacy.unit", asked, words)
    allowed = "null, row" if named is None else "null, person, row"
    if asked == "client":
        words = (
            f"{name} bounds what one example (person) changes, and nothing bounds what all of a client's data change"
        )
        raise OptionError("privacy.unit", "client", f"{words}; allowed: {allowed}, or a method that protects clients")
    if asked == "row" or named is None:
        if asked == "person":
            words = "needs a table whose schema names the column of persons (unit)"
            raise OptionError("privacy.unit", "person", f"{words}; allowed: {allowed}")
        return "example"
    if not kind.traits.clips_examples:
        words = f"the schema's unit is {named}, and {name} clips no gradients, so a person's cannot be clipped together"
        raise OptionError("privacy.unit", asked or "null", f"{words}; allowed: row, or another method")
    return "person"


def sites_of_a_unit(config: Config) -> int:
    """How many clients hold rows of one person, or one and the same row, at most (`privacy.across_sites`). Raises
    `OptionError` where the method has no price for more than one.
    """
    across, kind, name, allowed = config.privacy.across_sites, client_class(config), config.method, "1"
    if across == 1:
        return 1
    if unit_of(config) == "client":
        words = f"{name} protects all of a client's data, and a client is one site"
    elif not kind.traits.clips_examples:
        words = f"{name} clips no gradients, so nothing bounds what a row changes at each site"
    elif kind.traits.costliest != "any":
        words = f"{name} changes its noise over rounds, and sites that take part in different ones cannot be ordered"
    elif across > config.num_clients:
        words, allowed = "there are no more sites than num_clients", f"1 to {config.num_clients}"
    else:
        return across
    raise OptionError("privacy.across_sites", across, f"{words}; allowed: {allowed}")


def person_word(config: Config) -> dict[str, str]:
    """{person: what reports call one}, where persons are the unit; else empty."""
    return {"person": str(schema_of_dataset(config.dataset).person)} if unit_of(config) == "person" else {}


def unit_remarks(config: Config) -> tuple[str, ...]:
    """What a reader must know of persons with several rows, of a schema's ranges that were answered before, and of
    hazard ratios, in sentences for plan and report.
    """
    schema = schema_of_dataset(config.dataset) if config.dataset.is_table else None
    before = () if schema is None else tuple(one.sentence for one in schema.answered)
    return before + _unit_remarks(config, schema) + _ratio_remarks(config, schema)


def _ratio_remarks(config: Config, schema: TableSchema | None) -> tuple[str, ...]:
    if schema is None or schema.target.task != "survival" or isinstance(config.strategy.options, AskOptions):
        return ()
    target = schema.target
    words = "the model's weights have no intervals: clipping and noise of every round are in them. Hazard ratios with"
    return (f"{words} intervals: fedpriv ask hazards:{target.time}:{target.event}:COLUMN..., at a cost of its own",)


def _unit_remarks(config: Config, schema: TableSchema | None) -> tuple[str, ...]:
    unit, across = unit_of(config), sites_of_a_unit(config)
    if unit == "client" and schema is not None and schema.unit is not None and config.partition.name == "column":
        words = f"a client is protected; a {schema.person} with rows at k clients has group privacy over k of them only"
        return (words,)
    if schema is None or schema.unit is None or unit == "client":
        return () if across == 1 else (_at_several_sites("one and the same row", across, config),)
    person, cap = schema.person, config.privacy.rows_per_person
    kept = "" if cap is None else f"; of a {person} {cap} training rows at most are used (privacy.rows_per_person)"
    if unit == "person":
        words = f"one {person} is all training rows with one {schema.unit}"
        if across > 1:
            return (_at_several_sites(f"{words}, and each {person}", across, config) + kept,)
        own_noise = getattr(config.strategy.options, "form", "local") == "local"
        twice = "the epsilon of twice as many rounds" if own_noise else "the epsilon of half of the noise"
        return (f"{words} at one client; who is at two has {twice} (privacy.across_sites=2 counts it){kept}",)
    rows = "k rows" if cap is None else f"k = {cap} rows"
    words = f"privacy.unit=row: one row is protected, although a {person} may have several ({schema.unit}){kept}"
    return (
        f"{words}. A {person} with {rows} is protected by k times this epsilon only, at a delta of "
        "(e^(k epsilon) - 1)/(e^epsilon - 1) times this one (group privacy); privacy.unit=person protects all rows",
    )


def _at_several_sites(who: str, across: int, config: Config) -> str:
    unchecked = "; no node sees another's rows to check it" if config.dataset.name == "on_nodes" else ""
    return (
        f"{who} may be at up to {across} clients, which the run declares (privacy.across_sites){unchecked}; epsilon is "
        f"that of all {across} together"
    )


def _facts_of_the_smallest(config: Config) -> PublicFacts:
    counts, options = example_counts(config), config.strategy.options
    smallest = int(counts.min())
    most, apart = limits(
        participation_of(config),
        options.participations,
        config.num_clients,
        config.clients_asked,
        config.num_rounds,
    )
    return PublicFacts(
        smallest,
        smallest,
        config.local.batch_size,
        config.num_rounds,
        config.clients_per_round,
        num_parameters(config),
        config.num_clients,
        int(counts.sum()),
        most,
        apart,
        flat_inputs(config, layout_for(config)),
        _asks(config),
        risk_classes(config, layout_for(config)),
    )


def _asks(config: Config) -> Asks | None:
    """As `PublicFacts`: of a table by its schema, of other examples once they are read."""
    if config.dataset.is_table or not isinstance(config.strategy.options, AskOptions):
        return asks_of(config)
    task = load_federated(config).dataset.task
    assert isinstance(task, Asks)
    return task


def flat_inputs(config: Config, layout: Layout) -> int:
    """As `PublicFacts`."""
    first = layout.shapes[0]
    return first[1] if config.model.name in ("auto", "linear", "mlp") and len(first) == 2 else 0


def risk_classes(config: Config, layout: Layout) -> int:
    """As `PublicFacts`."""
    if not config.dataset.is_table or config.model.name not in ("auto", "linear"):
        return 0
    task, inputs = task_of(schema_of_dataset(config.dataset)), layout.shapes[0][-1]
    classes = task.num_outputs if isinstance(task, Classification) else 0
    fits = layout.shapes == ((classes, inputs), (classes,)) and len(knots(layout.num_parameters))
    return classes if fits else 0


_layouts: dict[str, Layout] = {}


def num_parameters(config: Config) -> int:
    """How many parameters the configured model has."""
    return layout_for(config).num_parameters


def may_keep_statistics(config: Config) -> bool:
    """Whether a model may keep running statistics (BatchNorm): where clients send what they trained as it is."""
    kind = client_class(config)
    as_it_is = kind.release is Client.release and kind.charges is Client.charges and kind.releasing is Client.releasing
    return as_it_is and not kind.traits.clips_examples


def layout_for(config: Config) -> Layout:
    """The configured model's named blocks: public, and the same in every process. The data are loaded for it once."""
    keeps_layers = client_class(config).traits.keeps_layers
    parts = (config.dataset, config.features, config.model)
    asked = getattr(config.strategy.options, "questions", None), getattr(config.strategy.options, "sections", 1)
    statistics = may_keep_statistics(config)
    key = repr((*(part.model_dump_json() for part in parts), keeps_layers, asked, statistics))
    if key not in _layouts:
        dataset = load_federated(config).dataset
        text = text_of(dataset)
        model = resolve_model(config.model, dataset.shape, keeps_layers, text)
        outputs, baseline = len(dataset.classes), dataset.task.baseline
        built = build_model(model, dataset.shape, outputs, 0, text, False, statistics, baseline)
        _layouts[key] = layout_of(built)
    return _layouts[key]


def partition_remarks(config: Config) -> tuple[str, ...]:
    """What a reader must know of who holds what, in sentences for the report."""
    if config.partition.name != "resampled" or config.privacy.across_sites > 1:
        return ()
    return (
        "partition=resampled: clients draw from the same examples, so an example is held by several of them; what is "
        "said of one client's data is not said of one example",
    )


_counts: dict[str, np.ndarray] = {}


def example_counts(config: Config) -> np.ndarray:
    """How many examples (persons, where these are the unit) each client trains on (int64 [N]): public, and the same in
    every process.
    """
    persons, cap, across = unit_of(config) == "person", config.privacy.rows_per_person, sites_of_a_unit(config)
    parts = (config.dataset.model_dump_json(), config.partition.model_dump_json(), config.num_clients, config.seed)
    asks = isinstance(config.strategy.options, AskOptions)  # of all rows, those of tests too
    key = repr((*parts, persons, cap, across, asks))
    if key not in _counts:
        data = load_federated(config)
        if unit_of(config) != "client":
            _check_held(config, data, persons, across)
        _counts[key] = data.counts(persons)
    return _counts[key]


def _check_held(config: Config, data: FederatedData, persons: bool, across: int) -> None:
    """Raises `OptionError` where a person, or a row that clients share, is at more clients than `privacy.across_sites`
    says. No node of a deployment sees that of others.
    """
    if config.partition.name != ("column" if persons else "resampled") or config.dataset.name == "on_nodes":
        return
    train = data.dataset.train
    who = np.arange(len(train)) if train.unit is None or not persons else np.unique(train.unit, return_inverse=True)[1]
    held = np.zeros(len(train), np.int64)
    for client in range(config.num_clients):
        held[np.unique(who[data.train_indices(client)])] += 1
    if (most := int(held.max())) > across:
        what, many = ("persons" if persons else "rows"), int((held > across).sum())
        words = f"{many:,} {what} are held by more clients than that, one by {most}; allowed: {most} or more, "
        raise OptionError("privacy.across_sites", across, f"{words}up to num_clients, or another partition")


def check_own_client(config: Config, kind: type[Client], options: MethodOptions) -> None:
    """What the analyses of the shared bases rest on, for a method without a row of its own."""
    if config.strategy.name not in METHODS:
        sums = ("colluders",) if isinstance(options, SumOptions) else ()
        check(config, options, (*sums, "example-") if kind.traits.clips_examples else sums)


def fixed_events_with_ends(config: Config, ends: Sequence[int]) -> list[Event]:
    """`Client.fixed_events` of a run that was extended after the rounds ``ends``: a pass of an allocation that one of
    them cut was paid as that, and its extension began another.
    """
    begun, at_once, events = 0, make_client(config).rounds_at_once, list[Event]()
    for end in [*ends, config.num_rounds]:
        if end == config.num_rounds or (end - begun) % at_once:
            events += make_client(config.model_copy(update={"num_rounds": end - begun})).fixed_events()
            begun = end
    return events
