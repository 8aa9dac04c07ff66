"""A message in a process that runs clients: whom it asks, the client half that answers, and the reply.

The same two apps run on every engine. This is the only code through which anything leaves a real client (in a
simulation also `fedpriv.engines.inprocess`, for many): it catches every exception, attaches diagnostics in simulation
only, and lets planned faults happen there. What is built once for all messages is in `Worker`.
"""

from __future__ import annotations

import logging
import math
import os
import traceback
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.build import ClientMaker, client_class, may_keep_statistics, unit_of
from fedpriv.client.contract import BudgetSpent, Charge, Site, UnsafeClipNorm, UnsafeNoise
from fedpriv.client.memory import ContextStore, FileStore, MemoryStore, StaleRequest
from fedpriv.client.one_path import Answered, Asked, Participation
from fedpriv.common.errors import LedgerRefused, OptionError, PolicyRefused
from fedpriv.common.messages import (
    LOCAL_ACCURACY,
    STATISTICS,
    TRAIN,
    FloatVector,
    MalformedMessage,
    Outgoing,
    Refusal,
    Request,
    identity_content,
    outgoing_content,
    read_request,
    refusal,
    shown,
    unpack_vector,
)
from fedpriv.common.places import code_at
from fedpriv.config.halves import auxiliary_examples, check_local, half_class
from fedpriv.config.methods import METHODS
from fedpriv.config.participation import participation_limit
from fedpriv.config.schema import Config
from fedpriv.config.sum_checks import release_digest
from fedpriv.data import FederatedData
from fedpriv.data.load import check_declared, load_federated
from fedpriv.engines.grid import empty_context, memory_folder
from fedpriv.mechanisms.clipped_sums import made_up
from fedpriv.mechanisms.device_errors import failed
from fedpriv.mechanisms.step_gradients import StepGradient
from fedpriv.mechanisms.tasks import Classification, NextToken, Nothing, with_loss
from fedpriv.secure_sum.sum_session import SumRefused
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
    from fedpriv.deployment.gate import Node


log = logging.getLogger("fedpriv")

#: Numbers of rows that are remembered, with a client's array itself counted as `ARRAY`: 64 MiB.
MOST_KNOWN, ARRAY = 2**23, 16
#: Declared counts whose method is remembered, where the guarantee depends on them.
MOST_METHODS = 256

#: For each kind of exception; for all others `Refusal.FAILED`.
CODES: dict[type[Exception], Refusal] = {
    BudgetSpent: Refusal.BUDGET_SPENT,
    StaleRequest: Refusal.STALE,
    UnsafeNoise: Refusal.UNSAFE_NOISE,
    UnsafeClipNorm: Refusal.UNSAFE_CLIP_NORM,
    PolicyRefused: Refusal.POLICY,
    LedgerRefused: Refusal.LEDGER,
    SumRefused: Refusal.UNSAFE_SUM,
}

Serve = Callable[[Grid, Context], object]
#: Rows of each of these clients.
Read = Callable[[Sequence[int]], Sequence[np.ndarray]]


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
    (client,) = asked.clients
    if (error := found.refused.get(client)) is not None:
        code, words = refused_as(error)
        if code == Refusal.FAILED:
            log.debug("client %d", client, exc_info=error)
        return refusal(code, message, words if simulation else None)
    outgoing = found.replies[client]
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
    return Asked((_partition(context),), _store(config, context), request, *_identity(config, context))


def _store(config: Config, context: Context) -> MemoryStore:
    if config.engine.name == "flower":
        return FileStore(memory_folder(config), _partition(context))
    return ContextStore(context)


def refused_as(error: Exception) -> tuple[Refusal, str]:
    """The code for what a client raised, and its words, which leave it in simulation only."""
    code = next((code for kind, code in CODES.items() if isinstance(error, kind)), Refusal.FAILED)
    return code, str(error) if code != Refusal.FAILED else f"{type(error).__name__}: {error}"


def resolve_device(name: str) -> torch.device:
    """``auto`` takes a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise OptionError("engine.device", name, "this machine has no GPU that torch can use; allowed: auto, cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


class Worker:
    """The clients of one configuration in this process, and what they share: data, model, trainer and method."""

    def __init__(self, config: Config) -> None:
        self.config = config
        torch.set_num_threads(config.engine.threads_per_client)
        keep_freed_memory()
        # A GPU would round convolutions to TF32: a clipped gradient could be longer than the bound it was held to.
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        self._known_rows: dict[str, dict[int, np.ndarray]] = {"train": {}, "test": {}, "persons": {}}
        self._held_rows = 0  # numbers
        self._methods: dict[int, Client] = {}
        self._down = (0, 0)  # the newest (round, how many numbers come down in it)

    @cached_property
    def data(self) -> FederatedData:
        return load_federated(self.config, auxiliary_examples(self.config))

    @cached_property
    def model(self) -> FlatModel:
        """The model that this process trains and evaluates; its parameters are what was loaded last."""
        config, dataset = self.config, self.data.dataset
        text = text_of(dataset)
        chosen = resolve_model(config.model, dataset.shape, client_class(config).traits.keeps_layers, text)
        if isinstance(dataset.task, Nothing) and chosen.name != "constant":
            words = "it has no target, which a model predicts; allowed: strategy=ask, or a schema with target: {...}"
            raise OptionError("dataset.schema_file", config.dataset.schema_file, words)
        if chosen.name == "moments" and (task := dataset.task.name) not in ("classification", "regression"):
            words = f"makes heads for classes or for a number, and this task is {task}; allowed: dpsum"
            raise OptionError("strategy", "moments", words)
        if chosen.name == "moments" and task == "regression" and chosen.head not in ("auto", "ridge"):
            raise OptionError("model.head", chosen.head, "is for classes; of a number as the target: auto or ridge")
        check_local(config)
        trained = dataset.task
        if config.local.loss is not None:
            trained = with_loss(trained, code_at("local.loss", config.local.loss))
        statistics = may_keep_statistics(config)
        outputs, baseline = len(dataset.classes), dataset.task.baseline
        module = build_model(
            chosen, dataset.shape, outputs, config.seed, text, statistics=statistics, baseline=baseline
        )
        device = resolve_device(config.engine.device)
        model = FlatModel(module, device, prefers_channels_last(chosen.name, device), trained, dataset.vocabulary)
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
        kind = SequentialTrainer
        if self.config.engine.trainer == "vectorised":  # torch.func: a second that only this trainer needs
            from fedpriv.training.vectorised import VectorisedTrainer as kind
        inner = kind(self.model, self.config.local, self.config.engine.precision)
        if client_class(self.config).traits.whole_batches:
            from fedpriv.training.full_batch import FullBatchTrainer

            inner = FullBatchTrainer(inner)
        inner.num_rounds = self.config.num_rounds
        inner.foreign = bool(self.foreign)
        if inner.foreign and not self.method.traits.clips_examples:  # those are tried when their steps are recorded
            self._try(inner)
        return inner

    @property
    def foreign(self) -> dict[str, str]:
        """The options that name code of the user's which runs in training, with what they name."""
        config = self.config
        path = config.model.path if config.model.name == "custom" else None
        named = {"local.train": config.local.train, "local.loss": config.local.loss, "model.path": path}
        return {option: path for option, path in named.items() if path is not None}

    def _try(self, trainer: SequentialTrainer) -> None:
        """Trains on made-up examples of the data's form. Raises `OptionError` where that raises: a client
        whose training raises has a zero update (`Participation`), so what always raises would train nothing.
        """
        inputs, rows = self._normalised(np.arange(0)).inputs, max(2, self.config.local.batch_size)
        random, vocabulary = torch.Generator().manual_seed(0), self.model.vocabulary
        drawn = made_up(rows, *inputs.shape[1:], vocabulary=vocabulary, random=random)
        made = LocalData(drawn.to(inputs), self.model.task.blank(rows))
        try:
            trainer.train_all([Training(self.initial_model, made, np.random.default_rng(0))])
        except OptionError:
            raise
        except (Exception, SystemExit) as error:
            option, path = next(iter(self.foreign.items()))
            words = f"on {rows} made-up examples training raises {type(error).__name__}: {error}"
            raise OptionError(option, path, f"{words}; allowed: code that trains on any data of this form") from error

    @cached_property
    def maker(self) -> ClientMaker:
        """Makes this configuration's clients."""
        return ClientMaker(self.config)

    @cached_property
    def method(self) -> Client:
        """The method without a client: what can be said of all of them."""
        return self.maker.make()

    @cached_property
    def shared(self) -> slice:
        """The part of the model that the server holds. Raises `OptionError` where the model has too few blocks."""
        return self.method.layers(self.model.layout, 1).held

    def initial_parameters(self) -> FloatVector:
        """theta^0 (float32): of the layers that the server holds."""
        vector: FloatVector = self.initial_model[self.shared].numpy().copy()
        return vector

    def whole_model(self, theta: FloatVector) -> FloatVector:
        """The server's theta as a whole model [d]: layers that only clients have are the initial ones."""
        vector: FloatVector = self.initial_model.numpy().copy()
        vector[self.shared] = theta
        return vector

    # --- what all clients have in common ---------------------------------------------------------------------

    @cached_property
    def site_of(self) -> Callable[..., Site]:
        """A site, but for what is of one client or one request."""
        config, privacy = self.config, self.config.privacy
        whole = config.strategy.options.client_sampling == "fixed"
        return partial(
            Site,
            seed=config.seed,
            rng=privacy.rng,
            delta=privacy.delta,
            max_epsilon=privacy.max_epsilon,
            participations=participation_limit(config),
            layout=self.model.layout,
            initial=self.initial_model,
            options_digest=self.options_digest,
            most_members=config.clients_asked if whole else config.num_clients,  # of a secure sum, in a round
            population=config.num_clients,
        )

    @cached_property
    def options_digest(self) -> bytes:
        """Of what all members of a secure sum must agree on."""
        return release_digest(self.config)

    @cached_property
    def tests_locally(self) -> bool:
        """Whether clients' own models are tested on their own test examples: in simulation only. Outside it, an
        accuracy on private examples would be a release without an account.
        """
        seeded, kept = self.config.privacy.rng == "seeded", self.config.partition.test_fraction > 0
        return self.config.evaluate.clients and seeded and kept

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

    # --- clients ------------------------------------------------------------------------------------------------

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
        clip, foreign = self.trainer.clipped_sums, self.trainer.foreign
        return Participation(method, self.half, self.num_examples, self.train, clip, apart, alike, foreign)

    def half(self, asked: Sequence[Asked]) -> Client:
        """The client half of these clients."""
        first, together = asked[0], tuple(client for one in asked for client in one.clients)
        return self.client(together[0], first.store, first.identity, first.run_id, together=together)

    @cached_property
    def why_single_messages(self) -> str | None:
        """Why each client of this configuration has a message of its own, in words; None where one is for many."""
        config = self.config
        if config.engine.trainer != "vectorised":
            return f"engine.trainer={config.engine.trainer}"
        if config.engine.faults:
            return "engine.faults are of single clients"
        if config.dataset.name == "on_nodes" or config.strategy.secure_sum == "protocol":
            return "its messages are of single clients"
        apart = None if self.method.traits.clips_examples else self.why_apart  # these go on together, step by step
        return apart or half_class(config, "server").why_single_messages()

    @cached_property
    def why_apart(self) -> str | None:
        """Why releases are computed one client after the other, in words; None where they are rows."""
        reason: str | None = self.method.why_single
        if reason is None and type(self.method).__module__ != f"clients.{self.config.strategy.name}":
            return unlike(self)  # of the project's own, tests/contract has seen it
        return reason

    def train(
        self,
        clients: Sequence[int],
        rngs: Sequence[np.random.Generator],
        theta: torch.Tensor,
        mu: float,
        drifts: torch.Tensor | None,
        gradient: StepGradient | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(updates float32 [clients, d], mean losses float64 [clients]) of training from ``theta`` ([d] or [clients,
        d]) with ``drifts`` [clients, d]; gradient: as `LocalRule`.
        """
        trainer = self.trainer
        if self.config.engine.trainer == "vectorised" and type(self).local_data is Worker.local_data:
            from fedpriv.training.vectorised import VectorisedTrainer

            if isinstance(trainer, VectorisedTrainer):
                rows = self._rows_of_all(clients)
                together = np.concatenate(rows)
                counts = [len(own) for own in rows]
                read, read_at = (lambda places: self._normalised(together[places.numpy()])), torch.device("cpu")
                if self.resident is not None:
                    read, read_at = self.resident.reader(together)
                done = trainer.train_rows(theta, counts, read, self._pixels, rngs, mu, drifts, read_at, gradient)
                return done.updates, done.losses
        starts = theta.to(self.model.theta.device).expand(len(clients), -1)  # there once, not for each client
        pulls = drifts if drifts is not None else [None] * len(clients)
        parts = zip(starts, map(self.local_data, clients), rngs, pulls, strict=True)
        found = trainer.train_all([Training(start, data, rng, mu, pull, gradient) for start, data, rng, pull in parts])
        losses = torch.tensor([result.loss for result in found], dtype=torch.float64)
        return torch.stack([result.update for result in found]), losses

    def num_examples(self, client: int) -> int:
        """How many examples, or persons, a client trains on."""
        return int(self._counts[client])

    def _rows_of(self, client: int, part: str = "train") -> np.ndarray:
        """A client's rows (persons: whose the training rows are); of the newest clients they are remembered, since
        drawing them takes a while.
        """
        if part == "train":
            return self._rows_of_all([client])[0]
        read = self.data.test_indices if part == "test" else self.data.persons
        return self._remembered(part, [client], lambda clients: [read(client) for client in clients])[0]

    def _rows_of_all(self, clients: Sequence[int]) -> list[np.ndarray]:
        """`_rows_of` of each of these clients."""
        return self._remembered("train", clients, self.data.train_indices_of)

    def _remembered(self, part: str, clients: Sequence[int], read: Read) -> list[np.ndarray]:
        known = self._known_rows[part]
        rows = {client: known[client] for client in clients if client in known}
        if missing := [client for client in clients if client not in rows]:
            drawn = dict(zip(missing, read(missing), strict=True))
            self._held_rows += sum(len(own) + ARRAY for own in drawn.values())
            if self._held_rows > MOST_KNOWN:
                known.clear()
                self._held_rows = 0
            known |= drawn
            rows |= drawn
        return [rows[client] for client in clients]

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


# --- whether a class's clients may be rows -----------------------------------------------------------------------
#
# A class says of itself that it is written for rows (`in_rows`). tests/contract holds the project's own to it; one of a
# user's is tried here: two participations of three clients together and apart, with the run's options and given
# updates, one far beyond any clip norm. Releases, statistics, states and ledgers have to be equal, bit for bit.

#: Lengths of the updates, one for each client, in units of the clip norm.
LENGTHS = (0.1, 1.0, 1e4)
ROUNDS = 2


def unlike(worker: Worker) -> str | None:
    """Why the configuration's clients are to be computed apart; None where no difference was seen."""
    clients, name = range(min(len(LENGTHS), worker.config.num_clients)), type(worker.method).__name__
    try:
        differs = _differs(worker, clients)
    except Exception as error:  # the user's code
        if failed(error):
            raise
        return f"{name} cannot be tried with several clients at once ({type(error).__name__}: {error})"
    return f"{name} gives clients that are rows something else than each alone" if differs else None


def _differs(worker: Worker, clients: Sequence[int]) -> bool:
    plain, size = worker.method, worker.initial_model.numel()
    drawn = torch.randn(len(clients), size, generator=torch.Generator().manual_seed(0)) / size**0.5
    updates = drawn * torch.tensor(LENGTHS)[: len(clients), None] * float(getattr(plain, "clip_norm", 1.0))
    initial = worker.initial_parameters()
    received = np.zeros(plain.traits.vectors_down * initial.size, np.float32)
    received[: initial.size] = initial
    examples = worker.num_examples(0)
    nothing = LocalData(torch.zeros(0), torch.zeros(0, dtype=torch.int64))

    def half(asked: Sequence[Asked]) -> Client:
        """With noise that is there twice, without limits, and with one declared count: else they were no rows."""
        site = worker.half(asked).site
        assert site is not None, "it was made with one"
        free: dict[str, Any] = {"rng": "seeded", "max_epsilon": None, "participations": None, "test": None}
        site = replace(site, load_data=lambda rows=None: nothing, num_examples=examples, **free)
        made: Client = worker.maker.make(site, examples)
        return made

    def train(some: Sequence[int], rngs: Any, theta: Tensor, mu: float, drifts: Tensor | None, *others: Any) -> Any:
        own = updates[torch.tensor(some)]
        return own if drifts is None else own + drifts, torch.zeros(len(some), dtype=torch.float64)

    def answers(apart: bool) -> list[Any]:
        stores = {client: ContextStore(empty_context(0, 0, 0, 0)) for client in clients}
        path = Participation(worker.method, half, lambda _: examples, train, worker.trainer.clipped_sums, apart)
        told = []
        for number in range(1, ROUNDS + 1):
            asked = [Asked((client,), stores[client], Request(number, 0)) for client in clients]
            found = path.answer(asked, received)
            for error in found.refused.values():
                raise error
            told += [_bits(found.replies[client]) for client in clients]
        return [*told, *(stores[client].read() for client in clients)]

    return answers(False) != answers(True)


def _bits(reply: Outgoing) -> tuple[Any, ...]:
    assert reply.release is not None, "it took part"
    return reply.release.tobytes(), dict(reply.statistics)
