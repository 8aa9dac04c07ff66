"""Apple's pfl-research: FedAvg, FedProx, and central DP by its Gaussian mechanism and its accountant."""

from __future__ import annotations

import os
import types
from typing import Any

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints, WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.hyperparam.base import HyperParam
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.postprocessor.base import Postprocessor
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor, nn

from parity.peers import Seed, main


class Cohort(HyperParam[int], TrainingProcessCallback):
    """Each round's clients, drawn as the job says; pfl's own samplers draw with replacement, or take turns."""

    def __init__(self, seed: Seed) -> None:
        self.seed = seed
        self.draw()

    def draw(self) -> None:
        terms = self.seed.terms
        if terms["poisson"]:
            drawn = (self.seed.rng.random(terms["clients"]) < terms["cohort"] / terms["clients"]).nonzero()[0]
        else:
            drawn = self.seed.rng.choice(terms["clients"], terms["cohort"], replace=False)
        self.left, self.size = list(drawn), len(drawn)

    def value(self) -> int:
        return self.size

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.draw()
        return False, Metrics()

    def next_client(self) -> int:
        return int(self.left.pop())


class ExpectedCohort(Postprocessor):  # type: ignore[misc]
    """Divides by the expected size of a Poisson cohort, as the job does; pfl divides by the drawn one."""

    def __init__(self, size: int) -> None:
        self.size = size

    def postprocess_one_user(self, *, stats: Any, user_context: Any) -> Any:
        return stats, Metrics()

    def postprocess_server(self, *, stats: Any, central_context: Any, aggregate_metrics: Any) -> Any:
        stats.weight = self.size
        return stats, Metrics()


def _loss(self: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(self(inputs), targets)


def _metrics(self: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    return {}


def run(seed: Seed) -> float:
    terms, cohort = seed.terms, Cohort(seed)
    module = seed.model()
    module.loss, module.metrics = types.MethodType(_loss, module), types.MethodType(_metrics, module)  # type: ignore[assignment]
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))

    def data_of(client: int) -> Dataset:
        rows = seed.rng.permutation(seed.rows[client])  # pfl takes batches in the rows' order
        return Dataset((seed.x[rows], seed.y[rows]), user_id=str(client))

    steps: list[Any] = [WeightByDatapoints()]
    if terms["method"] == "dpfedavg":
        noise = GaussianMechanism(terms["lr"] * terms["clip"], terms["noise"])
        steps = [WeightByUser(), CentrallyAppliedPrivacyMechanism(noise), ExpectedCohort(terms["cohort"])]
    backend = SimulatedBackend(FederatedDataset(data_of, cohort.next_client), None, steps)
    shared = {"central_num_iterations": terms["rounds"], "evaluation_frequency": 10**6, "val_cohort_size": 0}
    proximal = terms["method"] == "fedprox"
    kind, params = (FedProx, FedProxParams) if proximal else (FederatedAveraging, NNAlgorithmParams)
    kind().run(
        algorithm_params=params(train_cohort_size=cohort, **shared, **({"mu": terms["mu"]} if proximal else {})),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=terms["lr"], local_num_epochs=1, local_batch_size=terms["batch"]
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=[cohort],
        send_metrics_to_platform=False,
    )
    return seed.accuracy([parameter.detach() for parameter in module.parameters()])


def epsilon(terms: dict[str, Any]) -> float | None:
    if terms["method"] != "dpfedavg":
        return None
    rate, noise = terms["cohort"] / terms["clients"], terms["noise"]
    accountant = PLDPrivacyAccountant(terms["rounds"], rate, "gaussian", delta=terms["delta"], noise_parameter=noise)
    return float(accountant.epsilon)


if __name__ == "__main__":
    main(run, epsilon)
