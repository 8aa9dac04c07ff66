"""A message in a process that runs clients: whom it asks, the client half that answers, and the reply.

The same two apps run on every engine. This is the only code through which anything leaves a real client (in a
simulation also `fedpriv.engines.cohort`, for many): it catches every exception, attaches diagnostics in simulation
only, and lets planned faults happen there. What is built once for all messages stands in `fedpriv.engines.loaded`.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedpriv.client.base import Client
from fedpriv.client.contract import Charge
from fedpriv.client.memory import ContextStore, FileStore, MemoryStore
from fedpriv.client.one_path import Answered, Asked, Participation
from fedpriv.common.errors import PolicyRefused
from fedpriv.common.messages import (
    LOCAL_ACCURACY,
    STATISTICS,
    TRAIN,
    FloatVector,
    MalformedMessage,
    Refusal,
    Request,
    identity_content,
    outgoing_content,
    read_request,
    refusal,
    shown,
    unpack_vector,
)
from fedpriv.config.methods import METHODS
from fedpriv.config.schema import Config
from fedpriv.data.load import check_declared
from fedpriv.engines.loaded import Loaded, memory_folder
from fedpriv.engines.refused import refused_as
from fedpriv.engines.rows_trial import why_apart, why_single_messages
from fedpriv.mechanisms.tasks import Classification, NextToken
from fedpriv.training.sequential import LocalData, Training, inputs_of

if TYPE_CHECKING:
    from fedpriv.common.identities import Identity
    from fedpriv.deployment.gate import Node

log = logging.getLogger("fedpriv")

#: Clients whose rows are remembered.
MOST_KNOWN = 4096
#: Declared counts whose method is remembered, where the guarantee depends on them.
MOST_METHODS = 256

Serve = Callable[[Grid, Context], None]


def make_client_app(config_of: Callable[[Context], Config]) -> ClientApp:
    """A ClientApp whose messages reach the configured method's client half."""
    app = ClientApp()

    @app.query()
    def identify(message: Message, context: Context) -> Message:
        try:
            return Message(identity_content(_partition(context)), reply_to=message)
        except (KeyError, ValueError):  # node-config names no client; its text stays at home
            return refusal(Refusal.FAILED, message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _guarded(config_of, message, context)

    return app


def make_apps(config: Config, serve: Serve | None = None) -> tuple[ServerApp, ClientApp]:
    """Both halves for one configuration. ``serve`` is what the ServerApp does with its grid (session.py gives it)."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        if serve is None:
            raise RuntimeError("this process runs clients only")
        serve(grid, context)

    return server, make_client_app(lambda _: config)


def _guarded(config_of: Callable[[Context], Config], message: Message, context: Context) -> Message:
    """A client that raises becomes one error reply. Its text travels in simulation only, where the experimenter owns
    both sides; otherwise a code from a fixed list leaves, and the text goes to the client's own log.
    """
    simulation, node = False, None
    try:
        node = _node(context)
        config = config_of(context)
        simulation = node is None and config.privacy.rng == "seeded"
        return _train(config, message, context)
    except Exception as error:
        code, words = refused_as(error)
        if code == Refusal.FAILED:
            log.debug("client %s: %s", context.node_config.get("partition-id"), traceback.format_exc())
        if node is not None:
            node.note(code, words)
        return refusal(code, message, words if simulation else None)


def _train(config: Config, message: Message, context: Context) -> Message:
    request = read_request(message.content)
    node = _node(context)
    if node is not None:
        with node.answering(config, request) as gate:
            fewest, named = gate.policy.limits.min_survivors, _identity(gate.config, context)
            client = worker_for(gate.config).client(_partition(context), gate, *named, gate.check, fewest)
            gate.admit(client)
            reply = _answer(gate.config, message, client, request, simulation=False)
            gate.require_booked(request)
            gate.audit()
            return reply
    worker = worker_for(config)
    if (
        config.dataset.name == "on_nodes" and type(worker) is Worker
    ):  # others play an audit's canaries, and read no rows
        raise PolicyRefused("node-config names no policy: this machine answers simulations only")
    if not config.engine.faults:
        asked = asked_of(config, context, request)
        if request.exchange not in (STATISTICS, TRAIN):
            return _answer(config, message, worker.half([asked]), request, config.privacy.rng == "seeded")
        found = worker.participation.answer([asked], parameters_of(worker, message, request))
        for error in found.refused.values():
            raise error
        return replied(config, found, asked, message)

    def answer(request: Request, change: Callable[[Client], None]) -> Message:
        client = worker.half([asked_of(config, context, request)])
        change(client)
        return _answer(config, message, client, request, config.privacy.rng == "seeded")

    from fedpriv.engines.faults import with_faults  # in simulations that plan some

    return with_faults(config, _partition(context), message, request, answer)


def _answer(config: Config, message: Message, client: Client, request: Request, simulation: bool) -> Message:
    """The reply of a client's half to one exchange of a round; in simulation with diagnostics beside its release."""
    received = parameters_of(worker_for(config), message, request)
    return Message(outgoing_content(request.exchange, client.answer(request, received), simulation), reply_to=message)


def parameters_of(worker: Worker, message: Message, request: Request) -> FloatVector | None:
    """What came down (float32 [d_down]); None in an exchange that brings no parameters. Raises `MalformedMessage`."""
    method = worker.method
    if request.exchange not in method.traits.exchanges:
        raise MalformedMessage(f"{worker.config.strategy.name} has no exchange {shown(request.exchange)}")
    if request.exchange != method.traits.trains_in:
        return None
    return unpack_vector(message.content, worker.numbers_down(request.round))


def replied(config: Config, found: Answered, asked: Asked, message: Message) -> Message:
    """A simulated client's own reply to its message; with diagnostics, and with the words of what it raised."""
    simulation = config.privacy.rng == "seeded"
    if (error := found.refused.get(asked.client)) is not None:
        code, words = refused_as(error)
        if code == Refusal.FAILED:
            log.debug("client %d", asked.client, exc_info=error)
        return refusal(code, message, words if simulation else None)
    outgoing = found.replies[asked.client]
    return Message(outgoing_content(asked.request.exchange, outgoing, simulation), reply_to=message)


def _node(context: Context) -> Node | None:
    """This machine in a deployment; None in a simulation, whose node-config names neither policy nor data folder."""
    if not {"policy", "data"} & context.node_config.keys():
        return None
    from fedpriv.deployment.gate import Node  # the accountants: seconds that a simulation need not wait

    return Node.of(context)


def _partition(context: Context) -> int:
    return int(context.node_config["partition-id"])


def _identity(config: Config, context: Context) -> tuple[Identity | None, int]:
    """(the client's long-lived key and its peers', Flower's run id), if its own machine names them in node-config,
    whatever the run says. A simulation has neither: its runs are to be the same on every engine.
    """
    if not {"identity-key", "peer-keys"} & context.node_config.keys():
        return None, 0 if config.privacy.rng == "seeded" else context.run_id
    from fedpriv.common.identities import named_identity  # cryptography: only where it is needed

    return named_identity(context.node_config), context.run_id


def asked_of(config: Config, context: Context, request: Request) -> Asked:
    """A simulated client with its memory and what it is asked."""
    return Asked(_partition(context), _store(config, context), request, *_identity(config, context))


def _store(config: Config, context: Context) -> MemoryStore:
    if config.engine.name == "flower":
        return FileStore(memory_folder(config), _partition(context))
    return ContextStore(context)


# --- clients ----------------------------------------------------------------------------------------------------


class Worker(Loaded):
    """The clients of one configuration in this process."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._known_rows: dict[str, dict[int, np.ndarray]] = {"train": {}, "test": {}, "persons": {}}
        self._methods: dict[int, Client] = {}
        self._down = (0, 0)  # the newest (round, how many numbers come down in it)

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
        if self.config.dataset.name == "on_nodes" and type(self) is Worker:
            check_declared(self.config, client, self.data)
        examples = self.num_examples(client)
        found = copy(self.method_of(examples))
        found.site = self.site_of(
            client=client,
            num_examples=examples,
            load_data=lambda rows=None: self.local_data(client, rows),
            trainer=self.trainer,
            store=store,
            test=self.test_locally if self.tests_locally else None,
            identity=identity,
            run_id=run_id,
            guard=guard,
            fewest_survivors=fewest_survivors,
            clients=together or (client,),
        )
        return found

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

    @cached_property
    def why_single_messages(self) -> str | None:
        """Why each client of this configuration has a message of its own, in words; None where one is for many."""
        return why_single_messages(self)

    @cached_property
    def why_apart(self) -> str | None:
        """Why releases are computed one client after the other, in words; None where they are rows."""
        return why_apart(self)

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
                read, read_at = (lambda places: self._normalised(together[places.numpy()])), torch.device("cpu")
                if self.resident is not None:
                    read, read_at = self.resident.reader(together)
                done = trainer.train_rows(theta, counts, read, self._pixels, rngs, mu, drifts, read_at)
                return done.updates, done.losses
        starts = theta.to(self.model.theta.device).expand(len(clients), -1)  # there once, not for each client
        pulls = drifts if drifts is not None else [None] * len(clients)
        parts = zip(starts, map(self.local_data, clients), rngs, [mu] * len(clients), pulls, strict=True)
        found = trainer.train_all([Training(*part) for part in parts])
        losses = torch.tensor([result.loss for result in found], dtype=torch.float64)
        return torch.stack([result.update for result in found]), losses

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

    def test_locally(self, client: int, theta: torch.Tensor) -> dict[str, float]:
        """Accuracy of a model [d] on a client's own test examples: diagnostics. Nothing where it has none, nor where
        the task has no accuracy.
        """
        rows = self._rows_of(client, "test")
        if not rows.size or not isinstance(self.model.task, Classification | NextToken):
            return {}
        size = self.config.evaluate.batch_size
        return {LOCAL_ACCURACY: self.trainer.accuracy(theta, self._normalised(rows), size)}

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
