"""Properties that every release must have, checked on real messages of rounds in which all clients hold the same data.

The clients' own `fit`, keys, clipping and quantisation, and the code that builds the messages, run unchanged; only
the examples are chosen here. Clients with the same data and state differ only in their noise keys, so a number that
does not vary between them has no noise. With the same keys and other data, releases differ only by the effect of the
data, so its length can be compared with the ledger's multiplier.

Every check returns its findings in words, an empty list where there are none. Shapes: k clients, n numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from numpy.typing import NDArray
from scipy.stats import beta, binom, chi2, norm

from fedpriv.client.base import Client
from fedpriv.client.build import client_class, example_counts, make_client
from fedpriv.client.example_level import ExampleLevelClient
from fedpriv.client.gradient import SelectingClient
from fedpriv.common.messages import ARRAYS, DIAGNOSTICS, METRICS, NUM_EXAMPLES, pack_vector, unpack_array
from fedpriv.config.schema import Config
from fedpriv.config.sum_checks import in_the_open
from fedpriv.engines.grid import client_of
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import Worker, adopt, make_apps
from fedpriv.mechanisms.tasks import PADDING
from fedpriv.privacy.events import (
    Entry,
    NoBound,
    PoissonGaussian,
)
from fedpriv.runs.preparation import make_strategy
from fedpriv.server.round import BudgetsSpent
from fedpriv.server.summing import SummingServer
from fedpriv.training.sequential import LocalData

Floats = NDArray[np.float64]

#: Below this share of its record's median standard deviation, a number has too little noise.
LEAST_SPREAD = 0.4
#: Or below what so few clients show of Gaussians, of all numbers of a record, with this probability.
BY_CHANCE = 1e-5
#: Clients or rounds whose noise is more correlated than this share their noise.
MOST_CORRELATION = 0.5
#: Numbers of one release are compared up to this many, above this correlation, where they take as many values.
MOST_COMPARED, ALIKE, FEWEST_VALUES = 4096, 0.999, 1000
#: Value of pixels whose example contributes nothing: its gradient is not a number.
BROKEN = math.nan


#: Rows of a person, all alike, where persons are the unit: added up without being clipped together, they would show.
ROWS = 8


class TwinWorker(Worker):
    """A worker whose clients all hold the same examples: row 0 is (``value``, ``label``), every other row is
    (``other``, label); all pixels of an example have one value. An example of NaN contributes nothing. The rows
    drawn are recorded. plain: a step of SGD in the place of any other optimizer's, so that a release is its noisy
    gradient, and a client's first row drawn in the place of row 0, so that it is drawn.
    """

    def __init__(
        self, config: Config, value: float, label: int, other: float | None = None, plain: bool = False
    ) -> None:
        super().__init__(config)
        self.plain = plain
        self.first: dict[int, int] = {}
        self.value, self.label, self.other = value, label, value if other is None else other
        self.drawn: list[tuple[int, NDArray[np.int64]]] = []

    def client(self, client: int, *others: Any, **named: Any) -> Client:
        real = super().client(client, *others, **named)
        if self.plain and isinstance(real, ExampleLevelClient):
            vars(real)["descend"] = partial(ExampleLevelClient.descend, real)
        return real

    def local_data(self, client: int, chosen: np.ndarray | None = None) -> LocalData:
        rows = np.arange(1) if chosen is None else chosen
        if chosen is not None:
            self.drawn.append((client, rows))
        if self.plain and len(rows):
            self.first.setdefault(client, int(rows[0]))
        first = torch.from_numpy(rows == self.first.get(client, 0))
        values = torch.full((len(rows),), self.other).masked_fill(first, self.value)
        found = LocalData(values, torch.full((len(rows), *self.model.task.target_shape), self.label))
        if self.data.dataset.vocabulary is not None:
            found = self._texts(found)
        shape = self.data.dataset.shape
        inputs = found.inputs.view(-1, *[1] * len(shape)).expand(-1, *shape).contiguous()
        if self.by_person:  # each row is a person's, who has it several times
            inputs, targets = (part.repeat_interleave(ROWS, 0) for part in (inputs, found.targets))
            return LocalData(inputs, targets, torch.from_numpy(rows).repeat_interleave(ROWS))
        return replace(found, inputs=inputs)

    def _texts(self, found: LocalData) -> LocalData:
        """Token ids, the same for the same value; of NaN padding, of which no target is known: its loss is 0."""
        nothing, tokens = found.inputs.isnan(), self.data.dataset.vocabulary or 2
        ids = 1 + (found.inputs.nan_to_num().abs() * 7).long() % (tokens - 1)
        targets = found.targets.clone()
        targets[nothing] = PADDING
        return LocalData(ids.masked_fill(nothing, 0), targets)


@dataclass
class Heard:
    """What the clients sent. rounds: for each exchange of each round, numbers by name, float64 [k, n], NaN where
    nothing is sent; surplus: names of records and metrics that must not be in a message outside simulation.
    """

    config: Config
    clients: list[int] = field(default_factory=list)
    rounds: list[dict[str, Floats]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    surplus: set[str] = field(default_factory=set)
    drawn: list[tuple[int, NDArray[np.int64]]] = field(default_factory=list)
    examples: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def leaks(self) -> list[str]:
        """Reasons why the ledger itself records a release as unbounded."""
        return sorted({entry.event.reason for entry in self.entries if isinstance(entry.event, NoBound)})

    def releases(self) -> list[Floats]:
        """The vectors [k, d] of every round."""
        return [numbers[ARRAYS] for numbers in self.rounds if ARRAYS in numbers]


class _Ear(InProcessGrid):
    """Forwards every message and records the numbers of its reply."""

    def __init__(self, config: Config, app: Any, heard: Heard, decode: Callable[..., Any] | None, hides: bool) -> None:
        super().__init__(config, app)
        self.heard, self.decode, self.hides = heard, decode, hides
        self.statistic_names = set(make_client(config).statistics.names)

    def deliver(self, messages: list[Message], deadline: float) -> Iterable[Message]:
        found: list[dict[str, Floats]] = []
        for message, reply in zip(messages, super().deliver(messages, deadline), strict=False):
            if reply.has_content():
                found.append(self._numbers(client_of(message), reply))
                if client_of(message) not in self.heard.clients:
                    self.heard.clients.append(client_of(message))
            yield reply
        names = found[0].keys() if found else ()
        self.heard.rounds.append({name: np.stack([numbers[name] for numbers in found]) for name in names})

    def _numbers(self, client: int, reply: Message) -> dict[str, Floats]:
        found: dict[str, Floats] = {}
        for name, record in reply.content.items():
            if isinstance(record, ArrayRecord) and name == ARRAYS:
                vector = unpack_array(reply.content)
                values = np.asarray(vector if self.decode is None else self.decode(client, vector), np.float64)
                found[name] = np.where(values == 0, np.nan, values) if self.hides else values
            elif isinstance(record, ConfigRecord):  # keys and sealed seeds: each as one number
                for key, blob in record.items():
                    digest = hashlib.sha256(repr(blob).encode()).digest()
                    found[f"{name}.{key}"] = np.array([int.from_bytes(digest[:6])], np.float64)
            elif isinstance(record, MetricRecord) and name != DIAGNOSTICS:
                for key, value in record.items():
                    if key == NUM_EXAMPLES:
                        continue
                    found[f"{name}.{key}"] = np.atleast_1d(np.asarray(value, np.float64))
                    if name == METRICS and key not in self.statistic_names:
                        self.heard.surplus.add(f"{name}.{key}")
            if name == DIAGNOSTICS:
                self.heard.surplus.add(name)
        return found


def listen(
    config: Config,
    value: float = 1.0,
    label: int = 0,
    other: float | None = None,
    flat: bool = False,
    rounds: int | None = None,
    plain: bool = False,
) -> Heard:
    """Runs ``rounds`` (None: all) of ``config`` in this process; all clients hold the same examples (`TwinWorker`).

    flat: start from all-zero parameters, where a linear model's gradient is never saturated.
    """
    engine = config.engine.model_copy(update={"name": "inprocess", "device": "cpu", "faults": ()})
    config = in_the_open(config.model_copy(update={"engine": engine, "run_dir": None}))
    worker = TwinWorker(config, value, label, other, plain)
    adopt(config, worker)
    strategy = make_strategy(config, worker)
    hides = issubclass(client_class(config), SelectingClient)
    heard = Heard(config, drawn=worker.drawn, examples=example_counts(config))
    in_sum = isinstance(strategy, SummingServer) and strategy.in_sum
    few = getattr(strategy, "sends_few", False)
    decode = strategy.numbers_of if in_sum else None if few else strategy.decode  # type: ignore[attr-defined]
    grid = _Ear(config, make_apps(config)[1], heard, decode, hides)
    theta = worker.initial_parameters()
    with suppress(BudgetsSpent):
        strategy.run_rounds(grid, pack_vector(theta * (not flat)), rounds or config.num_rounds)
    heard.entries = list(grid.collect_entries(range(config.num_clients)))
    return heard


# --- checks ----------------------------------------------------------------------------------------------


def bare_numbers(heard: Heard) -> list[str]:
    """Numbers that do not vary between clients, or vary much less than the others of their record.

    A number sent by fewer than two clients is not judged; its spread is judged only where sixteen sent it.
    """
    found = []
    for place, numbers in enumerate(heard.rounds):
        for name, values in numbers.items():
            sent = (~np.isnan(values)).sum(0)
            low, high = (bound(values, axis=0, initial=-start, where=~np.isnan(values)) for bound, start in _ENDS)
            bare = np.flatnonzero((sent >= 2) & (low == high))
            if len(np.unique(values)) == 2:  # fair bits: some are alike by chance
                by_chance = binom.isf(BY_CHANCE, values.shape[1], 2.0 ** (1 - len(values)))
                bare = bare if len(bare) > by_chance else bare[:0]
            for index in bare:
                found.append(f"exchange {place}, {name}[{index}] of {values.shape[1]} is the same under every key")
            judged = sent >= 16
            if judged.sum() < 3:
                continue
            spread = np.nanstd(values[:, judged], axis=0)
            free = sent[judged].min() - 1
            by_chance = math.sqrt(chi2.ppf(BY_CHANCE / judged.sum(), free) / free)
            for index in np.flatnonzero(spread < min(LEAST_SPREAD, by_chance) * np.median(spread)):
                found.append(f"exchange {place}, {name}: number {index} of those sent has too little noise")
    return found


_ENDS: tuple[tuple[Any, float], ...] = ((np.min, -math.inf), (np.max, math.inf))


def shared_noise(heard: Heard) -> list[str]:
    """Clients with equal noise in a round; and, for a method without state, rounds with equal noise of a client.

    Two independent Gaussian vectors of d numbers have a correlation r with r^2 ~ Beta(1/2, (d - 1)/2). Of small models
    some pairs are beyond `MOST_CORRELATION` by chance: there the limit is what any pair passes with `BY_CHANCE`. The
    mean over clients of two rounds' correlations has a standard deviation of 1/sqrt(clients d). One number has no
    direction: `bare_numbers` judges it.
    """
    noises = [noise_parts(values) for values in heard.releases()]
    if any(noise.shape[1] < 2 for noise in noises):
        return []
    pairs = sum(len(noise) * (len(noise) - 1) / 2 for noise in noises)
    found = []
    for place, noise in enumerate(noises):
        together = noise @ noise.T
        np.fill_diagonal(together, 0.0)
        by_chance = math.sqrt(beta.isf(2 * BY_CHANCE / max(1, pairs), 0.5, max(1, noise.shape[1] - 1) / 2))
        if together.max(initial=0.0) > min(max(MOST_CORRELATION, by_chance), 1 - 1e-13):
            one, two = np.unravel_index(together.argmax(), together.shape)
            found.append(f"round {place + 1}: clients {heard.clients[one]} and {heard.clients[two]} share their noise")
    if client_class(heard.config).traits.State is None:
        for late in range(len(noises)):
            for early in range(late):
                alike = (noises[early] * noises[late]).sum(1)
                by_chance = norm.isf(BY_CHANCE / len(noises) ** 2) / math.sqrt(max(1, noises[late].size))
                if abs(alike.mean()) > min(max(MOST_CORRELATION, by_chance), 1 - 1e-13):
                    found.append(f"rounds {early + 1} and {late + 1} share their noise")
    return found


def twin_numbers(heard: Heard) -> list[str]:
    """Numbers of a release whose noise is another number's, up to a factor: what is left of the two has none.

    Among sixteen clients, independent Gaussians are that much alike with a probability below 1e-18. Not of bits.
    """
    found = []
    for place, values in enumerate(heard.releases()):
        whole = values[:, ~np.isnan(values).any(0)][:, :MOST_COMPARED]
        if len(whole) < 16 or len(np.unique(whole)) < FEWEST_VALUES:
            continue
        columns = whole - whole.mean(0)
        columns /= np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
        alike = np.abs(np.triu(columns.T @ columns, 1))
        if alike.max() > ALIKE:
            one, two = np.unravel_index(alike.argmax(), alike.shape)
            found.append(f"round {place + 1}: numbers {one} and {two} of a release share their noise")
    return found


def bare_low_bits(heard: Heard) -> list[str]:
    """Releases in which more low bits are the same under every key than fair coins would be: the lowest of whole
    numbers, the last eight of float32. Not of a few values, as bits are.
    """
    found = []
    for place, values in enumerate(heard.releases()):
        whole = values[:, ~np.isnan(values).any(0)]
        if len(whole) < 16 or len(np.unique(whole)) < FEWEST_VALUES:
            continue
        if np.array_equal(whole, np.rint(whole)):
            bits = whole.astype(np.int64) & 1
        else:
            bits = whole.astype(np.float32).view(np.int32) & 0xFF
        alike = int((bits == bits[0]).all(0).sum())
        if alike > binom.isf(BY_CHANCE, bits.shape[1], 2.0 ** (1 - len(bits))):
            found.append(f"round {place + 1}: the low bits of {alike} numbers are the same under every key")
    return found


def spread_of(values: Floats) -> float:
    """Standard deviation between clients, of numbers that two or more sent."""
    sent = (~np.isnan(values)).sum(0)
    values, sent = values[:, sent >= 2], sent[sent >= 2]
    return float(np.sqrt(np.nansum((values - np.nanmean(values, axis=0)) ** 2) / (sent - 1).sum()))


def noise_parts(values: Floats) -> Floats:
    """The part of releases [k, d] that differs between clients, rows scaled to length 1."""
    means = np.nansum(values, axis=0) / np.maximum(1, (~np.isnan(values)).sum(0))
    centred = np.nan_to_num(values - means)
    return centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-300)


def differences(one: Heard, other: Heard) -> list[str]:
    """Numbers that differ between two recordings that should be equal bit for bit."""
    if len(one.rounds) != len(other.rounds):
        return [f"{len(one.rounds)} and {len(other.rounds)} exchanges"]
    return [
        f"exchange {place}, {name} is not determined by the noise key and the data"
        for place, (first, second) in enumerate(zip(one.rounds, other.rounds, strict=True))
        for name in {*first, *second}
        if name not in first or name not in second or not np.array_equal(first[name], second[name], equal_nan=True)
    ]


def presence(recordings: Sequence[Heard]) -> list[str]:
    """What of the messages' number, senders, names and lengths differs between recordings with other data."""
    found = []
    for other in recordings[1:]:
        for words, of in (
            ("clients answer", lambda heard: heard.clients),
            ("exchanges are answered", lambda heard: len(heard.rounds)),
            ("numbers leave", lambda heard: [{name: sent.shape for name, sent in one.items()} for one in heard.rounds]),
        ):
            if of(other) != of(recordings[0]):
                found.append(f"with other data other {words}")
    return list(dict.fromkeys(found))


def unlike_samples(heard: Heard) -> list[str]:
    """Batches that are no Poisson samples at the rate in the ledger: their sizes, exactly, and repeated ones."""
    found = []
    for client in heard.clients:
        events = [e.event for e in heard.entries if e.client == client and isinstance(e.event, PoissonGaussian)]
        own, examples = [rows for number, rows in heard.drawn if number == client], int(heard.examples[client])
        if not events or not own:
            continue
        rate, drawn, of = events[0].sampling_rate, sum(map(len, own)), len(own) * examples
        chance = min(binom.cdf(drawn, of, rate), binom.sf(drawn - 1, of, rate))
        if chance < BY_CHANCE / len(heard.clients):
            found.append(f"client {client} drew {drawn} of {of} examples, the ledger counts on {rate:.3g} of them")
        alike = len(own) - len({rows.tobytes() for rows in own})
        if alike and len(own) ** 2 * (rate**2 + (1 - rate) ** 2) ** examples < BY_CHANCE / len(heard.clients):
            found.append(f"client {client} drew {alike} of its {len(own)} batches twice")
    return found


def wrong_batches(heard: Heard) -> list[str]:
    """Deviations of the batches from Poisson samples at the rate in the ledger, beyond five standard errors."""
    rates = {e.client: e.event.sampling_rate for e in heard.entries if isinstance(e.event, PoissonGaussian)}
    examples = {client: int(heard.examples[client]) for client in rates}
    expected = np.array([examples[client] * rates[client] for client, _ in heard.drawn])
    spread = np.array([1 - rates[client] for client, _ in heard.drawn]) * expected
    scores = (np.array([len(rows) for _, rows in heard.drawn]) - expected) / np.sqrt(spread)
    found, draws = [], len(scores)
    if abs(scores.mean()) > 5 / math.sqrt(draws):
        found.append(f"batches are {scores.mean():+.2f} standard deviations from the size that the ledger counts on")
    if abs(scores.var(ddof=1) - 1) > 5 * math.sqrt(2 / draws):
        found.append(f"the variance of batch sizes is {scores.var(ddof=1):.2f} of that of Poisson samples")
    for client, rate in rates.items():
        own = [rows for number, rows in heard.drawn if number == client]
        times = np.bincount(np.concatenate(own), minlength=examples[client])
        if abs(times - len(own) * rate).max() > 5 * math.sqrt(len(own) * rate) + 5:
            found.append(f"client {client} draws some examples more often than others")
    return found


def surplus(heard: Heard) -> list[str]:
    """What is sent besides releases, accounted statistics, and the declared count."""
    return [f"{name} leaves" for name in sorted(heard.surplus)]
