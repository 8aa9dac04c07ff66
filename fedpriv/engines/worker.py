"""What a process that runs clients keeps loaded: data, model and trainer, built once per configuration."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedpriv.client.base import Client
from fedpriv.client.build import ClientMaker, client_class, unit_of
from fedpriv.client.contract import Charge, Site
from fedpriv.client.memory import MemoryStore
from fedpriv.client.one_path import Asked, Participation
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import LOCAL_ACCURACY, FloatVector
from fedpriv.config.halves import auxiliary_examples, half_class
from fedpriv.config.methods import METHODS
from fedpriv.config.participation import participation_limit
from fedpriv.config.schema import Config
from fedpriv.config.sum_checks import release_digest
from fedpriv.data import FederatedData
from fedpriv.data.load import check_declared, load_federated
from fedpriv.mechanisms.tasks import Classification, NextToken
from fedpriv.training.allocator import keep_freed_memory
from fedpriv.training.language_models import text_of
from fedpriv.training.models import build_model, resolve_model
from fedpriv.training.resident import Resident, fits
from fedpriv.training.sequential import (
    FlatModel,
    LocalData,
    SequentialTrainer,
    Training,
    inputs_of,
    prefers_channels_last,
)

if TYPE_CHECKING:
    from fedpriv.common.identities import Identity


def resolve_device(name: str) -> torch.device:
    """``auto`` takes a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise OptionError("engine.device", name, "this machine has no GPU that torch can use; allowed: auto, cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


#: Clients whose rows are remembered.
MOST_KNOWN = 4096
#: Declared counts whose method is remembered, where the guarantee depends on them.
MOST_METHODS = 256


class Worker:
    """Data, model and trainer of one configuration in this process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._known_rows: dict[str, dict[int, np.ndarray]] = {"train": {}, "test": {}, "persons": {}}
        self._methods: dict[int, Client] = {}
        self._down = (0, 0)  # the newest (round, how many numbers come down in it)
        torch.set_num_threads(config.engine.threads_per_client)
        keep_freed_memory()
        # A GPU would round convolutions to TF32: a clipped gradient could be longer than the bound it was held to.
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    @cached_property
    def data(self) -> FederatedData:
        return load_federated(self.config, auxiliary_examples(self.config))

    @cached_property
    def model(self) -> FlatModel:
        """The model that this process trains and evaluates; its parameters are what was loaded last."""
        config, dataset = self.config, self.data.dataset
        text = text_of(dataset)
        chosen = resolve_model(config.model, dataset.shape, client_class(config).traits.keeps_layers, text)
        module = build_model(chosen, dataset.shape, len(dataset.classes), config.seed, text)
        device = resolve_device(config.engine.device)
        model = FlatModel(module, device, prefers_channels_last(chosen.name, device), dataset.task, dataset.vocabulary)
        self._initial = model.theta.detach().cpu().clone()
        return model

    @property
    def initial_model(self) -> torch.Tensor:
        """All parameters of the freshly initialised model (float32 [d]), the same in every process."""
        _ = self.model
        return self._initial

    @cached_property
    def resident(self) -> Resident | None:
        """The training examples on the model's device, where it has memory of its own and they fit."""
        dataset, device = self.data.dataset, self.model.theta.device
        if not fits(dataset.train, device):
            return None
        return Resident(dataset.train, dataset.mean, dataset.std, device, dataset.vocabulary)

    @cached_property
    def trainer(self) -> SequentialTrainer:
        inner = self._plain_trainer()
        if not client_class(self.config).traits.whole_batches:
            return inner
        from fedpriv.training.full_batch import FullBatchTrainer

        return FullBatchTrainer(inner)

    def _plain_trainer(self) -> SequentialTrainer:
        if self.config.engine.trainer == "vectorised":
            from fedpriv.training.vectorised import (
                VectorisedTrainer,  # torch.func: a second that only this trainer needs
            )

            return VectorisedTrainer(self.model, self.config.local, self.config.engine.precision)
        return SequentialTrainer(self.model, self.config.local, self.config.engine.precision)

    @cached_property
    def maker(self) -> ClientMaker:
        """Makes this configuration's clients."""
        return ClientMaker(self.config)

    @cached_property
    def method(self) -> Client:
        """The method without a client: what can be said of all of them."""
        return self.maker.make()

    def method_of(self, examples: int) -> Client:
        """The method for clients that declare so many examples, built and priced once: its options, its mechanism, its
        law of noise. A participation works on a shallow copy of it, at a site.
        """
        known = examples if self.maker.facts is not None else 0
        found = self._methods.get(known)
        if found is None:
            found = self._methods[known] = self.maker.make(None, examples)
            found.all_charges()  # what a price rests on is computed here, for all copies
            if len(self._methods) > MOST_METHODS:
                del self._methods[next(iter(self._methods))]
        return found

    def numbers_down(self, server_round: int) -> int:
        """How many numbers come down in a round."""
        if self._down[0] != server_round:
            down = self.method.layers(self.model.layout, server_round).down
            self._down = server_round, self.method.traits.vectors_down * (down.stop - down.start)
        return self._down[1]

    @cached_property
    def shared(self) -> slice:
        """The part of the model that the server holds. Raises `OptionError` where the model has too few blocks."""
        return self.method.layers(self.model.layout, 1).held

    @cached_property
    def participations(self) -> int | None:
        """How often a client may take part at most."""
        return participation_limit(self.config)

    @cached_property
    def options_digest(self) -> bytes:
        """Of what all members of a secure sum must agree on."""
        return release_digest(self.config)

    @cached_property
    def most_members(self) -> int:
        """How many clients a server may ask in a round."""
        poisson = self.config.strategy.options.client_sampling == "poisson"
        return self.config.num_clients if poisson else self.config.clients_asked

    def initial_parameters(self) -> FloatVector:
        """theta^0 (float32): of the layers that the server holds."""
        vector: FloatVector = self.initial_model[self.shared].numpy().copy()
        return vector

    def whole_model(self, theta: FloatVector) -> FloatVector:
        """The server's theta as a whole model [d]: layers that only clients have are the initial ones."""
        vector: FloatVector = self.initial_model.numpy().copy()
        vector[self.shared] = theta
        return vector

    def test_locally(self, client: int, theta: torch.Tensor) -> dict[str, float]:
        """Accuracy of a model [d] on a client's own test examples: diagnostics. Nothing where it has none, nor where
        the task has no accuracy.
        """
        rows = self._rows_of(client, "test")
        if not rows.size or not isinstance(self.model.task, Classification | NextToken):
            return {}
        data = self._normalised(rows)
        return {LOCAL_ACCURACY: self.trainer.accuracy(theta, data, self.config.evaluate.batch_size)}

    def local_data(self, client: int, chosen: np.ndarray | None = None) -> LocalData:
        """A client's training examples, normalised, or the ``chosen`` of them (positions [b]). Indices are sorted: the
        memory map is read in order. Where persons are the unit, all rows of the client's persons, or of the chosen.
        """
        rows = self._rows_of(client)
        if not self.by_person:
            return self._normalised(rows if chosen is None else rows[chosen])
        persons = self._rows_of(client, "persons")
        if chosen is not None:
            drawn = np.zeros(persons.max(initial=-1) + 1, bool)
            drawn[chosen] = True
            rows, persons = rows[drawn[persons]], persons[drawn[persons]]
        return replace(self._normalised(rows), unit=torch.from_numpy(persons))

    def _normalised(self, rows: np.ndarray) -> LocalData:
        if self.resident is not None:
            return self.resident.chosen(rows)
        dataset = self.data.dataset
        inputs = inputs_of(dataset, dataset.train, rows)
        return LocalData(inputs, torch.from_numpy(np.asarray(dataset.train.targets[rows])))

    def client(
        self,
        client: int,
        store: MemoryStore,
        identity: Identity | None = None,
        run_id: int = 0,
        guard: Callable[[Sequence[Charge]], None] | None = None,
        fewest_survivors: int = 1,
        together: tuple[int, ...] = (),
    ) -> Client:
        """The client half of partition ``client`` with its own memory; of all clients ``together`` if there are any."""
        privacy = self.config.privacy
        if self.config.dataset.name == "on_nodes":
            check_declared(self.config, client, self.data)
        # In simulation only: outside it, an accuracy on private examples would be a release without an account.
        kept = self.config.partition.test_fraction > 0
        tested = self.config.evaluate.clients and privacy.rng == "seeded" and kept
        examples = self.num_examples(client)
        found = copy(self.method_of(examples))
        found.site = Site(
            client=client,
            num_examples=examples,
            load_data=lambda rows=None: self.local_data(client, rows),
            trainer=self.trainer,
            store=store,
            seed=self.config.seed,
            rng=privacy.rng,
            delta=privacy.delta,
            max_epsilon=privacy.max_epsilon,
            participations=self.participations,
            layout=self.model.layout,
            initial=self.initial_model,
            test=self.test_locally if tested else None,
            identity=identity,
            run_id=run_id,
            guard=guard,
            options_digest=self.options_digest,
            fewest_survivors=fewest_survivors,
            most_members=self.most_members,
            population=self.config.num_clients,
            clients=together or (client,),
        )
        return found

    # --- participations ------------------------------------------------------------------------------------

    @cached_property
    def why_single_messages(self) -> str | None:
        """Why each client of this configuration has a message of its own, in words; None where one is for many."""
        if self.config.engine.trainer != "vectorised":
            return f"engine.trainer={self.config.engine.trainer}"
        if self.config.engine.faults:
            return "engine.faults are of single clients"
        if self.config.dataset.name == "on_nodes" or self.config.strategy.secure_sum == "protocol":
            return "its messages are of single clients"
        return self.why_apart or half_class(self.config, "server").why_single_messages()

    @cached_property
    def why_apart(self) -> str | None:
        """Why releases are computed one client after the other, in words; None where they are rows."""
        client = self.method
        reason = client.why_single
        if reason is None and type(client).__module__ != f"clients.{self.config.strategy.name}":
            from fedpriv.engines.rows_trial import unlike  # of the project's own, tests/contract has seen it

            reason = unlike(self)
        return reason

    @cached_property
    def participation(self) -> Participation:
        """Of this configuration's clients."""
        apart = self.config.engine.trainer != "vectorised" or self.why_apart is not None  # then nobody is beside others
        name, method = self.config.strategy.name, self.method
        ours = name in METHODS and type(method).__module__ == f"clients.{name}"  # what a user's rests on is not known
        alike = ours and not method.traits.shares_secrets and not method.traits.measures_first
        return Participation(method, self.half, self.num_examples, self.train, self.trainer.clipped_sums, apart, alike)

    def half(self, asked: Sequence[Asked]) -> Client:
        """The client half of these clients."""
        first, together = asked[0], tuple(one.client for one in asked)
        return self.client(first.client, first.store, first.identity, first.run_id, together=together)

    def train(
        self,
        clients: Sequence[int],
        rngs: Sequence[np.random.Generator],
        theta: torch.Tensor,
        mu: float,
        drifts: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(updates float32 [clients, d], mean losses float64 [clients]) of training from ``theta`` ([d] or [clients,
        d]) with ``drifts`` [clients, d].
        """
        trainer = self.trainer
        if self.config.engine.trainer == "vectorised" and type(self).local_data is Worker.local_data:
            from fedpriv.training.vectorised import VectorisedTrainer

            if isinstance(trainer, VectorisedTrainer):
                rows = [self._rows_of(client) for client in clients]
                together = np.concatenate(rows)
                counts = [len(own) for own in rows]
                done = trainer.train_rows(
                    theta, counts, lambda places: self._normalised(together[places]), self._pixels, rngs, mu, drifts
                )
                return done.updates, done.losses
        starts, pulls = theta.expand(len(clients), -1), drifts if drifts is not None else [None] * len(clients)
        data = map(self.local_data, clients)
        parts = zip(starts, data, rngs, [mu] * len(clients), pulls, strict=True)
        found = trainer.train_all([Training(*part) for part in parts])
        losses = torch.tensor([result.loss for result in found], dtype=torch.float64)
        return torch.stack([result.update for result in found]), losses

    @cached_property
    def _pixels(self) -> int:
        """Numbers that the model reads of an example."""
        return math.prod(self.data.dataset.shape)

    @cached_property
    def by_person(self) -> bool:
        """Whether clients count, draw and clip persons."""
        return unit_of(self.config) == "person"

    @cached_property
    def _counts(self) -> np.ndarray:
        return self.data.counts(self.by_person)

    def num_examples(self, client: int) -> int:
        """How many examples, or persons, a client trains on."""
        return int(self._counts[client])

    def _rows_of(self, client: int, part: str = "train") -> np.ndarray:
        """A client's rows (persons: whose the training rows are); of the newest clients they are remembered, since
        drawing them takes a while.
        """
        known = self._known_rows[part]
        rows = known.pop(client, None)
        if rows is None:
            read = {"train": self.data.train_indices, "test": self.data.test_indices, "persons": self.data.persons}
            rows = read[part](client)
        known[client] = rows
        if len(known) > MOST_KNOWN:
            del known[next(iter(known))]
        return rows


_newest: list[tuple[Config, int, Worker]] = []  # (configuration, process, worker): at most one


def worker_for(config: Config) -> Worker:
    """This process's worker for a configuration; only the newest is kept. Lives in an imported module on purpose:
    what a ClientApp caches in a main module is pickled with every message and lost.
    """
    if _newest:
        known, process, worker = _newest[0]
        if process == os.getpid() and (known is config or known == config):
            return worker
    return adopt(config, Worker(config))


def adopt(config: Config, worker: Worker) -> Worker:
    """Makes a worker this process's worker for ``config``."""
    _newest[:] = [(config, os.getpid(), worker)]
    return worker


def memory_folder(config: Config) -> Path:
    """Where clients keep their files on engines whose contexts do not come back."""
    if config.run_dir is None:
        raise OptionError("run_dir", "null", "this engine's clients need the run's folder")
    return Path(config.run_dir) / "clients"
