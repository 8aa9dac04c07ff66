"""Apple's pfl-research on its own published CIFAR-10 job, so that its rounds alternate with others'.

The job is benchmarks/image_classification/configs/baseline.yaml of apple/pfl-research ("CIFAR10 IID no DP"): a cohort
of 50 users with 50 pictures each, one local epoch of SGD in batches of 10 at rate 0.1, server rate 1.0, the small CNN
of benchmarks/model/pytorch/cnn.py; 1,500 rounds, of which a benchmark measures some. Left out on both sides: the
evaluations. Pictures are random ones of CIFAR-10's shape. pfl's users keep them as float32 tensors on the device, as
its benchmark has it.

It is installed beside: pip install --no-deps pfl==0.6.0 prv-accountant==0.2.0 (its own range of dp-accounting is older
than ours, and nothing here accounts with it).
"""

from __future__ import annotations

import importlib.util
import os
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_jobs import pfl_cnn
from fedpriv.training.sequential import normalise

COHORT, PICTURES, BATCH, LR = 50, 50, 10, 0.1


def installed() -> bool:
    return importlib.util.find_spec("pfl") is not None


def _loss(self: nn.Module, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
    self.eval() if eval else self.train()
    return nn.functional.cross_entropy(self(inputs), targets)


def _metrics(self: nn.Module, inputs: Tensor, targets: Tensor, eval: bool = True) -> dict[str, Any]:
    from pfl.metrics import Weighted

    self.eval() if eval else self.train()
    with torch.no_grad():
        logits = self(inputs)
    right = int((logits.argmax(-1) == targets).sum())
    return {"accuracy": Weighted(right, len(targets))}


def rounds(
    device: torch.device, users: list[tuple[Tensor, Tensor]], dropout: bool, cohort: int, ended: Callable[[float], bool]
) -> None:
    """Runs pfl on these users' pictures until ``ended``, which is told a round's seconds, says that it is enough."""
    os.environ["PFL_PYTORCH_DEVICE"] = str(device)
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    shape = tuple(users[0][0].shape[1:])
    module = pfl_cnn(shape, 10, dropout)
    module.loss, module.metrics = types.MethodType(_loss, module), types.MethodType(_metrics, module)  # type: ignore[assignment]
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    sampler = get_user_sampler("random", range(len(users)))
    backend = SimulatedBackend(FederatedDataset.from_slices(users, sampler), None, [WeightByUser()])

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    class Timer(TrainingProcessCallback):  # type: ignore[misc]
        began = 0.0

        def on_train_begin(self, *, model: Any) -> Any:
            wait()
            self.began = time.perf_counter()
            return super().on_train_begin(model=model)

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            wait()
            enough = ended(time.perf_counter() - self.began)
            _, metrics = super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)
            wait()
            self.began = time.perf_counter()
            return enough, metrics

    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=1500, evaluation_frequency=10**6, train_cohort_size=cohort, val_cohort_size=0
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(local_learning_rate=LR, local_num_epochs=1, local_batch_size=BATCH),
        model_eval_params=NNEvalHyperParams(local_batch_size=BATCH),
        callbacks=[Timer()],
        send_metrics_to_platform=False,
    )


def users_of(pictures: Any, mean: Any, std: Any, count: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """``count`` users with `PICTURES` normalised pictures each, one after the other of (uint8 images, labels)."""
    images, labels = pictures
    inputs = normalise(images[: count * PICTURES], mean, std).to(device)
    targets = torch.from_numpy(labels[: count * PICTURES]).to(device)
    return list(zip(inputs.split(PICTURES), targets.split(PICTURES), strict=True))
