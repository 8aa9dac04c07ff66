"""What a process that runs clients keeps loaded: data, model and trainer, built once per configuration."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedpriv.allocator import keep_freed_memory
from fedpriv.client import Charge, Client, PublicFacts, Site
from fedpriv.config import Config
from fedpriv.data import FederatedData, check_declared, load_federated, normalise
from fedpriv.errors import OptionError
from fedpriv.models import FlatModel, build_model, layout_of, prefers_channels_last, resolve_model
from fedpriv.own_methods import check_own_client
from fedpriv.records import LOCAL_ACCURACY, FloatVector
from fedpriv.resident import Resident, fits
from fedpriv.state import MemoryStore
from fedpriv.training import LocalData, SequentialTrainer

if TYPE_CHECKING:
    from fedpriv.shared_bits import Identity


def locate(target: str, option: str) -> type[Any]:
    """The class that a ``_target_`` names."""
    module, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(option, target, f"cannot be imported ({error})") from None
    if not isinstance(found, type):
        raise OptionError(option, target, "is not a class")
    return found


def client_class(config: Config) -> type[Client]:
    """The client half of the configured method."""
    found = locate(config.strategy.client.get("_target_", ""), "strategy.client._target_")
    if not issubclass(found, Client):
        raise OptionError("strategy.client._target_", found.__name__, "must be a subclass of fedpriv.client.Client")
    return found


def make_client(config: Config, site: Site | None = None, examples: int | None = None, **changes: Any) -> Client:
    """The method's client with its options; without a site it can be planned and audited.

    examples: the client's own count, for methods whose guarantee depends on it (None: the smallest client's).
    """
    kind, options = client_class(config), config.client_options() | changes
    check_own_client(config, kind)
    if kind.threat.unit == "example" and config.partition.name == "resampled":
        words = f"clients share pictures, and {config.strategy.name} protects one picture at one client alone"
        raise OptionError("partition", "resampled", f"{words}; allowed: a partition that divides them")
    if kind.needs_facts:
        smallest = int(example_counts(config).min())
        options["facts"] = PublicFacts(
            smallest if examples is None else examples,
            smallest,
            config.local.batch_size,
            config.num_rounds,
            config.clients_per_round,
            num_parameters(config) if kind.needs_layout else 0,
            config.num_clients,
        )
    try:
        return kind(variant=config.privacy.variant, site=site, **options)
    except TypeError as error:  # a user's own method whose constructor hands on what it must not
        raise OptionError("strategy.client", str(options), str(error)) from None


_sizes: dict[str, int] = {}


def num_parameters(config: Config) -> int:
    """How many parameters the configured model has: public, and the same in every process. Asked for with every
    message to a client, so the data are loaded for it once.
    """
    keeps_layers = client_class(config).keeps_layers
    key = repr((config.dataset.model_dump_json(), config.model.model_dump_json(), keeps_layers))
    if key not in _sizes:
        dataset = load_federated(config).dataset
        model = resolve_model(config.model, dataset.shape, keeps_layers)
        _sizes[key] = layout_of(build_model(model, dataset.shape, len(dataset.classes), 0)).num_parameters
    return _sizes[key]


def partition_remarks(config: Config) -> tuple[str, ...]:
    """What a reader must know of who holds what, in sentences for the report."""
    if config.partition.name != "resampled":
        return ()
    return (
        "partition=resampled: clients draw from the same pictures, so a picture is held by several of them; what is "
        "said of one client's data is not said of one picture",
    )


_counts: dict[str, np.ndarray] = {}


def example_counts(config: Config) -> np.ndarray:
    """How many pictures each client trains on (int64 [N]): public, and the same in every process."""
    parts = (config.dataset.model_dump_json(), config.partition.model_dump_json(), config.num_clients, config.seed)
    key = repr(parts)
    if key not in _counts:
        _counts[key] = load_federated(config).partition.num_train
    return _counts[key]


def resolve_device(name: str) -> torch.device:
    """``auto`` takes a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise OptionError("engine.device", name, "this machine has no GPU that torch can use; allowed: auto, cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


#: An auxiliary split larger than this says no more about a loss that is read every round.
MOST_FOR_LOSS = 1000


def auxiliary_pictures(config: Config) -> int:
    """Public pictures that the method's server half needs: `dataset.auxiliary` for distillation, at most a thousand of
    them for a public loss, otherwise none. Raises `OptionError` where it needs some and there are none.
    """
    kind, wanted = locate(config.strategy.server.get("_target_", ""), "strategy.server._target_"), 0
    purpose = None
    if getattr(kind, "needs_public_loss", False):
        purpose, wanted = "follows a loss on public pictures", min(MOST_FOR_LOSS, config.dataset.auxiliary)
    if config.strategy.server.get("distillation_epochs", 0) > 0:
        purpose, wanted = "distils on public pictures (strategy.server.distillation_epochs)", config.dataset.auxiliary
    if purpose is not None and wanted == 0:
        raise OptionError("dataset.auxiliary", 0, f"{config.strategy.name} {purpose}: at least 1")
    return wanted


class Worker:
    """Data, model and trainer of one configuration in this process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        torch.set_num_threads(config.engine.threads_per_client)
        keep_freed_memory()
        # A GPU would round convolutions to TF32: a clipped gradient could be longer than the bound it was held to.
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    @cached_property
    def data(self) -> FederatedData:
        return load_federated(self.config, auxiliary_pictures(self.config))

    @cached_property
    def model(self) -> FlatModel:
        """The model that this process trains and evaluates; its parameters are what was loaded last."""
        config, dataset = self.config, self.data.dataset
        chosen = resolve_model(config.model, dataset.shape, client_class(config).keeps_layers)
        module = build_model(chosen, dataset.shape, len(dataset.classes), config.seed)
        device = resolve_device(config.engine.device)
        model = FlatModel(module, device, prefers_channels_last(chosen.name, device))
        self._initial = model.theta.detach().cpu().clone()
        return model

    @property
    def initial_model(self) -> torch.Tensor:
        """All parameters of the freshly initialised model (float32 [d]), the same in every process."""
        _ = self.model
        return self._initial

    @cached_property
    def resident(self) -> Resident | None:
        """The training pictures on the model's device, where it has memory of its own and they fit."""
        dataset, device = self.data.dataset, self.model.theta.device
        return Resident(dataset.train, dataset.mean, dataset.std, device) if fits(dataset.train, device) else None

    @cached_property
    def trainer(self) -> SequentialTrainer:
        if self.config.engine.trainer == "vectorised":
            from fedpriv.vectorised import VectorisedTrainer  # torch.func: a second that only this trainer needs

            return VectorisedTrainer(self.model, self.config.local, self.config.engine.precision)
        return SequentialTrainer(self.model, self.config.local, self.config.engine.precision)

    @cached_property
    def shared(self) -> slice:
        """The part of the model that the server holds. Raises `OptionError` where the model has too few blocks."""
        return make_client(self.config).shared(self.model.layout)

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
        """Accuracy of a model [d] on a client's own test pictures, of which there is at least one: diagnostics."""
        data = self._normalised(self.data.test_indices(client))
        return {LOCAL_ACCURACY: self.trainer.accuracy(theta, data, self.config.evaluate.batch_size)}

    def local_data(self, client: int, chosen: np.ndarray | None = None) -> LocalData:
        """A client's training pictures, normalised, or the ``chosen`` of them (positions [b]). Indices are sorted: the
        memory map is read in order.
        """
        rows = self.data.train_indices(client)
        return self._normalised(rows if chosen is None else rows[chosen])

    def _normalised(self, rows: np.ndarray) -> LocalData:
        if self.resident is not None:
            return self.resident.chosen(rows)
        dataset = self.data.dataset
        images = normalise(dataset.train.images[rows], dataset.mean, dataset.std)
        return LocalData(images, torch.from_numpy(np.asarray(dataset.train.labels[rows], dtype=np.int64)))

    def client(
        self,
        client: int,
        store: MemoryStore,
        identity: Identity | None = None,
        run_id: int = 0,
        guard: Callable[[Sequence[Charge]], None] | None = None,
    ) -> Client:
        """The client half of partition ``client`` with its own memory."""
        privacy = self.config.privacy
        if self.config.dataset.name == "on_nodes":
            check_declared(self.config, client, self.data)
        # In simulation only: outside it, an accuracy on private pictures would be a release without an account.
        tested = self.config.evaluate.clients and privacy.rng == "seeded" and self.data.test_indices(client).size > 0
        kind = client_class(self.config)
        keeps_layers = kind.keeps_layers
        site = Site(
            client=client,
            num_examples=self.data.num_examples(client),
            load_data=lambda rows=None: self.local_data(client, rows),
            trainer=self.trainer,
            store=store,
            seed=self.config.seed,
            rng=privacy.rng,
            delta=privacy.delta,
            max_epsilon=privacy.max_epsilon,
            layout=self.model.layout if keeps_layers or kind.needs_layout else None,
            initial=self.initial_model if keeps_layers else None,
            test=partial(self.test_locally, client) if tested else None,
            identity=identity,
            run_id=run_id,
            guard=guard,
        )
        return make_client(self.config, site, examples=site.num_examples)


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
