"""What a run will cost before it starts: the guarantee, the claim, bytes and time.

Cohorts are drawn from a public seed, so how often each client takes part is known in advance; the guarantee that a
plan prints is the one that the finished run's ledger must confirm.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.client.base import Client
from fedpriv.client.build import ClientMaker, client_class, example_counts, make_client, partition_remarks, unit_remarks
from fedpriv.client.example_level import ExampleLevelClient
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import read_config
from fedpriv.config.methods import AskOptions
from fedpriv.config.participation import cohort, participation_limit
from fedpriv.config.schema import Config
from fedpriv.data.asked import Asks
from fedpriv.engines.worker import Worker
from fedpriv.privacy.claimed import Claim
from fedpriv.privacy.composition import History, at_other_adjacency, compose, compose_clients, costliest
from fedpriv.privacy.events import SECURE_SUM, Event, Threat
from fedpriv.privacy.opacus_accounts import OpacusFigure
from fedpriv.runs.accounts import opacus_totals
from fedpriv.training.trained_model import scorer


@dataclass(frozen=True)
class Plan:
    """The whole run in figures. ``bytes_up``/``bytes_down``: payload of all messages; ``seconds``: local training on
    one worker, measured on one batch of random examples. ``participations``: how often a client takes part, at least
    and at most.
    """

    participations: tuple[int, int]
    threat: Threat
    claim: Claim | None
    verified_epsilon: float
    verified_median: float
    accountant: str
    reasons: tuple[str, ...]
    bytes_up: int
    bytes_down: int
    seconds: float
    trainer: str = ""  # why it is this one, in words
    by_opacus: OpacusFigure | None = None
    other: tuple[str, float] | None = None  # of a sum of clients: (the other adjacency, epsilon there)
    costliest: tuple[History, ...] = ()  # what the clients that cost most release in all


def schedule(config: Config) -> NDArray[np.int64]:
    """How often each client is asked (int64 [N], read-only); where a plan of participation sets a limit, that: a run is
    priced at it.
    """
    limit, planned = participation_limit(config), config.strategy.options.client_sampling == "fixed"
    if limit is not None and planned:
        return np.broadcast_to(np.int64(limit), config.num_clients)
    if planned and config.clients_asked == config.num_clients:
        return np.broadcast_to(np.int64(config.num_rounds), config.num_clients)
    counts = np.zeros(config.num_clients, dtype=np.int64)
    for number in range(1, config.num_rounds + 1):
        counts[cohort(config, number)] += 1
    return counts


def most_participations(config: Config) -> int:
    """How often the client that is asked most often takes part."""
    return int(schedule(config).max())


def make_plan(config: Config, worker: Worker) -> Plan:
    """Trains nothing and releases nothing."""
    counts = schedule(config)
    client, expected = make_client(config), tuple[str, ...]()
    if isinstance(config.strategy.options, AskOptions) and client.facts.asks is not None:
        expected = expectations(config, client.facts.asks, int(example_counts(config).sum()))
    histories, times = planned_histories(config, counts)
    delta = config.privacy.delta
    found = compose_clients(histories, delta, times=times)
    bytes_down, bytes_up = payload(config, worker, client)
    maximum, accountant, reasons = found.maximum, found.accountant, found.reasons
    median = found.median
    limit = config.privacy.max_epsilon
    if limit is not None and (maximum > limit) and client.keeps_budget:
        maximum, median, accountant = limit, min(median, limit), "filter"
        reasons = ("clients stop before privacy.max_epsilon is exceeded",)
    fewest, most = int(counts.min()), int(counts.max())
    by_opacus = None
    if (totals := opacus_totals(config)) is not None:
        totals.add((kind, event) for kind, events in histories.items() for event in events)
        by_opacus = totals.figure()
    return Plan(
        (fewest, most),
        client.threat,
        client.claim(most, config.privacy.delta),
        maximum,
        median,
        accountant,
        (*reasons, *expected, *client.remarks(), *partition_remarks(config), *unit_remarks(config)),
        bytes_up,
        bytes_down,
        estimate_seconds(config, worker),
        by_opacus=by_opacus,
        other=None if accountant == "filter" else at_other_adjacency(histories, delta, client.at_other_adjacency),
        costliest=costliest(histories.values(), config.privacy.delta),
    )


def expectations(config: Config, asks: Asks, rows: int) -> tuple[str, ...]:
    """How exact answers will be, in words, as far as questions say so, and what a reader must know of a scored model.
    Raises `OptionError` where nothing could be said, `RunFolderError` for a model that cannot be asked about.
    """
    asks.check(rows)
    if asks.model is None or asks.schema is None:
        return asks.expects(rows)
    scorer(*asks.model, asks.schema)
    return (*asks.expects(rows), *of_the_model(config, asks))


def of_the_model(config: Config, asks: Asks) -> tuple[str, ...]:
    """Which model is asked about, in words; nothing where none is."""
    if asks.model is None:
        return ()
    file, digest = asks.model
    trained, here = read_config(Path(file).parent).dataset, config.dataset
    words = f"of the model with SHA-256 {str(digest)[:12]}"
    if (trained.name, trained.root) != (here.name, here.root) or here.name == "on_nodes":
        return (words,)
    return (f"{words}, which was trained on rows of this table: of others it may say less",)


def payload(config: Config, worker: Worker, client: Client) -> tuple[int, int]:
    """Bytes (down, up) of all parameters and releases of the run."""
    down = up = 0
    for server_round, size in enumerate(cohort_sizes(config), 1):
        layers = client.layers(worker.model.layout, server_round)
        down += 4 * size * (layers.down.stop - layers.down.start)
        up += size * client.release_bytes(layers.up.stop - layers.up.start, server_round)
    return down, up


def cohort_sizes(config: Config) -> list[int]:
    """How many clients are asked in each round."""
    if config.strategy.options.client_sampling == "fixed":
        return [config.clients_asked] * config.num_rounds
    return [len(cohort(config, number)) for number in range(1, config.num_rounds + 1)]


def planned_histories(config: Config, counts: NDArray[np.int64]) -> tuple[dict[int, list[Event]], dict[int, int]]:
    """(kind -> the guarantee's events of the whole run, kind -> number of clients). Of one kind are clients that are
    asked equally often (and, where it matters, hold equally many examples).
    """
    kinds, clients = _kinds(config, counts)
    histories = [planned_events(make_client(config, examples=size), count) for count, size in kinds]
    return dict(enumerate(histories)), dict(enumerate(clients))


def _kinds(config: Config, counts: NDArray[np.int64]) -> tuple[list[tuple[int, int]], list[int]]:
    """([(how often asked, number of examples)], [number of clients])."""
    sizes = example_counts(config) if client_class(config).traits.needs_facts else np.zeros(1, np.int64)
    base = int(sizes.max()) + 1  # (count, size) as one number sorts in the same order, and many times as fast
    kinds, clients = np.unique(counts * base + sizes, return_counts=True)
    return [divmod(kind, base) for kind in kinds.tolist()], clients.tolist()


@dataclass(frozen=True)
class Elsewhere:
    """What the whole run costs under a further threat model, beside the method's own."""

    threat: Threat
    verified_epsilon: float
    verified_median: float
    accountant: str
    reasons: tuple[str, ...]
    other: tuple[str, float] | None = None  # as `Plan`


def plan_elsewhere(config: Config) -> list[Elsewhere]:
    """The plan's figures under every further threat for which the method has an account: what the finished run's
    ledger must confirm (``others`` of its summary).
    """
    client = make_client(config)
    kinds, clients = _kinds(config, schedule(config))
    found = []
    for threat in client.accounts():
        if threat == client.threat:
            continue
        planned = [make_client(config, examples=size).planned_events(times, threat) for times, size in kinds]
        histories, delta = dict(enumerate(planned)), config.privacy.delta
        total = compose_clients(histories, delta, times=dict(enumerate(clients)))
        other = at_other_adjacency(histories, delta, client.at_other_adjacency)
        found.append(Elsewhere(threat, total.maximum, total.median, total.accountant, tuple(total.reasons), other))
    return found


def planned_events(client: Client, participations: int) -> list[Event]:
    """The guarantee's events of a client that takes part this often."""
    return client.planned_events(client.observed_rounds(participations))


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of ``work``, on a GPU until it has really done it."""
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def estimate_seconds(config: Config, worker: Worker) -> float:
    """Seconds of all local training in one process, from one timed step on random examples."""
    model, batch = worker.model, config.local.batch_size
    theta = model.theta.clone()
    inputs = model.made_up(batch, *worker.data.dataset.shape, random=torch.Generator().manual_seed(0))
    inputs = (inputs if model.vocabulary else torch.zeros_like(inputs)).to(theta.device)
    targets = model.task.blank(batch).to(theta.device)

    def step() -> None:
        model.task.mean_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]

    seconds = [timed(step, theta.device) for _ in range(3)]
    model.grad.zero_()
    model.load(theta)
    batches = Counter(-(-worker.num_examples(k) // batch) for k in range(min(config.num_clients, 1000)))
    mean_batches = sum(size * times for size, times in batches.items()) / sum(batches.values())
    client = make_client(config)
    noisy_steps = client.local_steps if isinstance(client, ExampleLevelClient) else None
    participations = sum(cohort_sizes(config))
    batches_per_round = noisy_steps or config.local.steps or mean_batches * config.local.epochs
    return min(seconds) * batches_per_round * participations


def with_target(config: Config) -> Config:
    """The configuration whose noise multiplier meets `privacy.target_epsilon` over the whole planned run, against
    `privacy.target_observer`.

    Raises `OptionError` where no noise level reaches the target, with the reason in words.
    """
    target = config.privacy.target_epsilon
    if target is None:
        return config
    if not any(hasattr(config.strategy.options, name) for name in ("noise_multiplier", "epsilon")):
        raise OptionError("privacy.target_epsilon", target, f"{config.strategy.name} has no noise to choose")
    client, times = make_client(config), most_participations(config)
    threat = target_threat(config, client)
    most = client.observed_rounds(times) if threat == client.threat else times
    maker = ClientMaker(config)
    chosen = maker.kind.chosen_for(target, config.privacy.delta, most, maker.make, threat)
    return config.with_options(**chosen)


def target_price(config: Config) -> float:
    """The epsilon that `privacy.target_epsilon` is about: of the client that takes part most often, over the whole
    planned run, against `privacy.target_observer`.
    """
    client, times = make_client(config), most_participations(config)
    threat = target_threat(config, client)
    events = planned_events(client, times) if threat == client.threat else client.planned_events(times, threat)
    return compose(events, config.privacy.delta).epsilon


def target_threat(config: Config, client: Client) -> Threat:
    """The threat model of `privacy.target_observer`. Raises `OptionError` where the method has no account for it."""
    observer, known = config.privacy.target_observer, client.accounts()
    if observer is None or observer == client.threat.observer:
        return client.threat
    for threat in known:
        if threat.observer == observer:
            return threat
    words = f"{config.strategy.name} has an account for {', '.join(threat.observer for threat in known)}"
    why = client.traits.why_no_sum if observer == SECURE_SUM.observer else ""
    raise OptionError("privacy.target_observer", observer, f"{words}{f': {why}' if why else ''}")
