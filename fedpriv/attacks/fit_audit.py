"""Audit of the client's own fit: many real participations of one client, on worst-case data.

Nothing of the client is replaced: local training, its batches, clipping, quantisation, noise keys and state between
participations are its own. Only the examples are chosen: in one world they lead to an update far beyond the clip norm,
in the other to the opposite one (where the unit is one example: one world has that example among others without a
gradient, the other does not). The model is linear and the examples are small, whatever the run trains, so that
thousands of participations take seconds. The attacker knows theta, the data of both worlds and every public option, and
sees what `fit` returns.

Methods that release one bit per coordinate are audited per coordinate, together with the bits of the client's whole
group, in real rounds: each coordinate of a group is a trial. Shapes: n trials, d coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray

from fedpriv.attacks.client_canaries import CanaryWorker
from fedpriv.attacks.noise_contract import BROKEN, TwinWorker
from fedpriv.client.base import Client
from fedpriv.client.build import client_class, make_client, unit_of
from fedpriv.client.gradient import SelectingClient
from fedpriv.client.memory import ClientMemory
from fedpriv.client.one_bit import OneBitClient
from fedpriv.client.summing import SummingClient
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import ATTEMPT, EXCHANGE, MEMBERS, ROUND, TRAIN, pack_vector, read_request, unpack_array
from fedpriv.common.packing import unpack_selected
from fedpriv.common.seeds import public_signs
from fedpriv.config.schema import Config
from fedpriv.config.sum_checks import in_the_open
from fedpriv.engines.grid import client_of
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import Worker, adopt, make_apps
from fedpriv.mechanisms.integer_noise import centred, unpack_residues
from fedpriv.privacy.auditor import Audit, audit
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import BLIND_TO_COHORT
from fedpriv.privacy.sum_grid import BinomialGrid
from fedpriv.runs.preparation import make_strategy
from fedpriv.server.round import BudgetsSpent

#: Pixel value of the canary example: its gradient exceeds any clip norm in use, in both worlds.
LOUD = 1e4
#: Participations in each world, with the same keys, from which the attacker learns the effect of the data.
PILOT = 100
#: Clients of an audited round of one-bit methods.
CLIENTS = 32


@dataclass(frozen=True)
class FitAudit:
    """A lower bound for ``scope``, and the verified epsilon of the same scope."""

    scope: str
    audit: Audit
    verified: float


class _Memory:
    """A client's memory, held in a variable."""

    blob: bytes | None = None

    def read(self) -> bytes | None:
        return self.blob

    def keep(self, memory: ClientMemory) -> None:
        self.blob = memory.to_bytes()


def audit_fits(config: Config, *, trials: int, confidence: float, seed: int, participations: int = 1) -> FitAudit:
    """Audits ``participations`` participations of one client, ``trials`` times in each world.

    Raises `OptionError` where the server is trusted: what a client sends to it is not a release.
    """
    config = _small(in_the_open(config))
    client = make_client(config)
    if client.threat.observer in BLIND_TO_COHORT:
        words = f"the server sees what clients send, this run's observer is {client.threat.observer}: mechanism"
        raise OptionError("level", "training", words)
    settings = {"delta": config.privacy.delta, "confidence": confidence, "structural": client.exact_leak()}
    if isinstance(client, OneBitClient):
        return _audit_bits(config, client, settings, seed)
    sample = _Participations(config, participations)
    sample.learn(seed)
    found = audit(sample, trials=trials, seed=seed, **settings)  # type: ignore[arg-type]
    # What a client sends towards a secure sum is seen here without it.
    threat = replace(client.threat, observer="server") if _in_sum(client) else client.threat
    verified = compose_events(client.planned_events(participations, threat), config.privacy.delta).epsilon
    return FitAudit("one release" if participations == 1 else f"{participations} releases", found, verified)


def _small(config: Config) -> Config:
    """The same method and privacy on small examples, a small model, one local step, and few clients. Where persons are
    the unit, the run's own table stays: its rows are replaced, and persons have several (`TwinWorker`).
    """
    from fedpriv.config.compose import compose

    clients = CLIENTS if issubclass(client_class(config), OneBitClient) else min(config.num_clients, CLIENTS)
    plain = compose(["model=linear", f"num_clients={clients}", f"clients_per_round={clients}", "engine=inprocess"])
    layered = client_class(config).traits.keeps_layers
    pictures = plain.dataset.model_copy(update={"auxiliary": min(4, config.dataset.auxiliary)})
    return config.model_copy(
        update={
            "dataset": config.dataset if unit_of(config) == "person" else pictures,
            "partition": plain.partition,
            "model": compose(["model=mlp"]).model if layered else plain.model,
            "engine": plain.engine.model_copy(update={"device": "cpu"}),
            "local": config.local.model_copy(update={"epochs": 1, "steps": None, "momentum": 0.0}),
            "privacy": config.privacy.model_copy(update={"rng": "seeded", "max_epsilon": None}),
            "num_clients": clients,
            "clients_per_round": clients,
            "over_selection": 1.0,
            "run_dir": None,
        }
    )


class _Participations:
    """sample(world, n, seed) -> [n, features] of n clients that took part ``participations`` times."""

    def __init__(self, config: Config, participations: int) -> None:
        kind = type(make_client(config))
        by_example = kind.threat.unit == "example" and kind.traits.clips_examples
        values = (BROKEN, LOUD) if by_example else (-LOUD, LOUD)
        self.workers = [TwinWorker(config, value, 0, BROKEN if by_example else None) for value in values]
        self.theta = np.zeros_like(self.workers[0].initial_parameters())
        if kind.traits.keeps_layers:
            self.theta = self.workers[0].initial_parameters()
        self.rounds = range(1, participations + 1)
        #: For each participation: the coordinates' weights [d], and the most informative coordinate.
        self.weights: list[NDArray[np.float64]] = []
        self.best: list[int] = []

    def __call__(self, world: bool, trials: int, seed: int) -> NDArray[np.float64]:
        first = seed % 2**30  # of the attempts, which address noise keys and batches but no public choice
        return np.stack([self._shown(self._transcript(world, first + trial)) for trial in range(trials)])

    def learn(self, seed: int) -> None:
        """Learns the effect of the data, with the same keys in both worlds, and the most informative coordinate."""
        first = 2**30 + seed % 2**20 * PILOT
        seen = [[self._transcript(world, first + trial) for trial in range(PILOT)] for world in (0, 1)]
        for place in range(len(self.rounds)):
            zero, one = (np.stack([transcript[place] for transcript in world]) for world in seen)
            distance, spread = (one - zero).mean(0), (zero.var(0) + one.var(0)) / 2
            spread = np.maximum(spread, 1e-9 * max(spread.max(), (distance**2).max(), 1e-200))
            weights = distance / spread
            self.weights.append(weights / max(np.abs(weights).max(), 1e-200))
            self.best.append(int((np.abs(distance) / np.sqrt(spread)).argmax()))

    def _shown(self, transcript: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        """[2 participations]."""
        matched = [values @ weights for values, weights in zip(transcript, self.weights, strict=True)]
        telling = [values[index] for values, index in zip(transcript, self.best, strict=True)]
        return np.array([*matched, *telling])

    def _transcript(self, world: bool | int, attempt: int) -> list[NDArray[np.float64]]:
        client = self.workers[int(world)].client(0, _Memory())
        beside = (client.traits.vectors_down - 1) * self.theta.size
        down = np.pad(self.theta, (0, beside))  # what else the server sends is zero, as before the first round
        seen = []
        for server_round in self.rounds:
            sent: list[NDArray[np.float64]] = []
            for exchange in type(client).traits.exchanges:
                call: dict[str, Any] = {ROUND: server_round, ATTEMPT: attempt}
                if exchange != TRAIN:
                    call[EXCHANGE] = exchange
                arrays, _, _ = client.fit([down] if exchange == client.traits.trains_in else [], call)
                sent.extend(_numbers(client, array) for array in arrays)
            seen.append(np.concatenate(sent))
        return seen


def _in_sum(client: Client) -> TypeGuard[SummingClient]:
    return isinstance(client, SummingClient) and client.in_sum


def _numbers(client: Client, array: NDArray[Any]) -> NDArray[np.float64]:
    """The values of a sent array, coordinate by coordinate."""
    if array.dtype != np.uint8:
        return array.astype(np.float64).ravel()
    if _in_sum(client):
        count = client.numbers(client.facts.num_parameters)
        return centred(unpack_residues(array, client.bits, count), client.bits).astype(np.float64)
    if isinstance(client, SelectingClient):
        dimension = client.facts.num_parameters
        return unpack_selected(array, dimension, client.count(dimension, client.round)).astype(np.float64)
    grid = getattr(client, "grid", None)
    if isinstance(grid, BinomialGrid):
        assert client.site is not None
        signs = public_signs(client.site.seed, client.round, grid.padded)
        return np.asarray(grid.decode(array, torch.from_numpy(signs)), np.float64)
    return array.astype(np.float64)


# --- one bit per coordinate ------------------------------------------------------------------------------


class _Bits(InProcessGrid):
    """Records each client's bits [d] as the server sees them, and the groups that it named."""

    def __init__(self, config: Config, app: Any, decode: Any) -> None:
        super().__init__(config, app)
        self.decode, self.groups = decode, dict[tuple[int, ...], list[NDArray[np.float64]]]()

    def deliver(self, messages: list[Message], deadline: float) -> Iterable[Message]:
        seen: dict[int, NDArray[np.float64]] = {}
        groups: set[tuple[int, ...]] = set()
        for message, reply in zip(messages, super().deliver(messages, deadline), strict=False):
            options = read_request(message.content).options
            if reply.has_content() and options.get(EXCHANGE, TRAIN) == TRAIN:
                client = client_of(message)
                groups.add(tuple(options.get(MEMBERS) or [client]))  # type: ignore[arg-type]
                seen[client] = np.sign(np.asarray(self.decode(client, unpack_array(reply.content)), np.float64))
            yield reply
        for group in sorted(groups):
            if set(group) <= seen.keys():
                self.groups.setdefault(group, []).append(np.stack([seen[member] for member in group], axis=1))


def _audit_bits(config: Config, client: OneBitClient, settings: dict[str, Any], seed: int) -> FitAudit:
    """The first member of every group has all values at one end or at the other, all other members at the upper."""
    if client.encode_weights:
        raise OptionError("strategy.client.encode", "weights", "level=training audits updates: update")
    size, worlds = getattr(client, "group_size", 1) if client.traits.shares_secrets else 1, []
    firsts: set[int] = set()
    for world in (0, 1):  # different keys but the same groups, which follow from the seed
        values = torch.full((config.num_clients, Worker(config).model.layout.num_parameters), LOUD)
        values[list(firsts)] *= -1
        grid = _heard_bits(config.model_copy(update={"num_rounds": 1}), values, 2 * seed + world)
        groups = {group: found for group, found in grid.groups.items() if len(group) == size}
        firsts = {group[0] for group in groups} if size > 1 else set(range(config.num_clients))
        worlds.append(np.concatenate([bits for found in groups.values() for bits in found]))
    many = min(map(len, worlds))
    rng = np.random.default_rng(seed)
    worlds = [world[rng.permutation(len(world))[:many]] for world in worlds]
    taken = [0, 0]

    def sample(world: bool, trials: int, _: int) -> NDArray[np.float64]:
        start, taken[world] = taken[world], taken[world] + trials
        return worlds[world][start : start + trials]

    found = audit(sample, trials=many, seed=seed, chunk=many, **settings)
    events = [event.one_coordinate() for event in client.planned_events(1)]
    verified = compose_events(events, config.privacy.delta).epsilon
    return FitAudit("one coordinate", found, verified)


def _heard_bits(config: Config, values: torch.Tensor, attempt: int) -> _Bits:
    worker = CanaryWorker(config, values)
    adopt(config, worker)
    strategy = make_strategy(config, worker, attempt)
    grid = _Bits(config, make_apps(config)[1], strategy.decode)
    with suppress(BudgetsSpent):
        strategy.run_rounds(grid, pack_vector(worker.initial_parameters()), config.num_rounds)
    return grid
