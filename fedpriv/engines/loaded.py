"""What a process that runs clients keeps loaded: data, model, trainer and method, built once per configuration."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from fedpriv.client.base import Client
from fedpriv.client.build import ClientMaker, client_class, may_keep_statistics, unit_of
from fedpriv.client.contract import Site
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import FloatVector
from fedpriv.config.halves import auxiliary_examples
from fedpriv.config.participation import participation_limit
from fedpriv.config.schema import Config
from fedpriv.config.sum_checks import release_digest
from fedpriv.data import FederatedData
from fedpriv.data.load import load_federated
from fedpriv.training.allocator import keep_freed_memory
from fedpriv.training.language_models import text_of
from fedpriv.training.models import build_model, resolve_model
from fedpriv.training.resident import Resident, fits
from fedpriv.training.sequential import FlatModel, SequentialTrainer, prefers_channels_last


def resolve_device(name: str) -> torch.device:
    """``auto`` takes a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise OptionError("engine.device", name, "this machine has no GPU that torch can use; allowed: auto, cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


class Loaded:
    """Data, model, trainer and method of one configuration in this process."""

    def __init__(self, config: Config) -> None:
        self.config = config
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
        statistics = may_keep_statistics(config)
        module = build_model(chosen, dataset.shape, len(dataset.classes), config.seed, text, statistics=statistics)
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


def memory_folder(config: Config) -> Path:
    """Where clients keep their files on engines whose contexts do not come back."""
    if config.run_dir is None:
        raise OptionError("run_dir", "null", "this engine's clients need the run's folder")
    return Path(config.run_dir) / "clients"
