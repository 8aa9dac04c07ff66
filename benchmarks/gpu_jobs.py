"""What `benchmarks.gpu` measures: random pictures and models, plain loops, private steps and cohorts on one device.

A contender is a function without arguments that does one round or one step; the caller waits for the device.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.contenders import OwnEngine
from benchmarks.job import Job
from fedpriv.config.schema import ModelConfig
from fedpriv.mechanisms.clipped_sums import block_on_gpu
from fedpriv.mechanisms.noise import SeededNoise, add_normal_finely
from fedpriv.mechanisms.per_example import PerExampleGradients, block_for
from fedpriv.training.evaluation import Evaluator
from fedpriv.training.models import build_model
from fedpriv.training.sequential import FlatModel

Work = Callable[[], object]

COLOURED = 50_000  # pictures of the training split, as CIFAR-10 has
LR, CLIP_NORM, SIGMA = 1e-4, 1.0, 1.0


def coloured_pictures(split: str) -> tuple[np.ndarray, np.ndarray]:
    """For `dataset=custom`: random pictures of CIFAR-10's shape, uint8 [n, 3, 32, 32], and labels [n]."""
    rng = np.random.default_rng(0 if split == "train" else 1)
    count = COLOURED if split == "train" else 2_000
    return rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, count)


def pfl_cnn(shape: tuple[int, ...], classes: int, dropout: bool = False) -> nn.Module:
    """The small CNN of pfl's CIFAR-10 benchmark (benchmarks/model/pytorch/cnn.py of apple/pfl-research), with named
    layers; 1,626,442 parameters. dropout: as published; our vectorised trainer trains models without it.
    """
    channels, side = shape[0], (shape[1] - 4) // 2
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 32, 3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        relu2=nn.ReLU(),
        pool=nn.MaxPool2d(2),
        drop1=nn.Dropout(0.25) if dropout else nn.Identity(),
        flat=nn.Flatten(),
        hidden=nn.Linear(side * side * 64, 128),
        relu3=nn.ReLU(),
        drop2=nn.Dropout(0.5) if dropout else nn.Identity(),
        head=nn.Linear(128, classes),
    )
    for layer in layers.values():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return nn.Sequential(layers)


# --- cohorts ------------------------------------------------------------------------------------------------------


def engine(job: Job, device: str, trainer: str, extra: Collection[str] = (), warm: bool = True) -> OwnEngine:
    """Whole rounds of ours, in this process."""
    options = [f"engine.device={device}", f"engine.trainer={trainer}", *extra]
    return OwnEngine(job, "inprocess", extra=options, warm=warm)


def training_alone(own: OwnEngine) -> Work:
    """The local training of as many clients as a round has, without messages, memories and releases."""
    worker, clients = own.worker, list(range(own.config.clients_per_round))
    theta = worker.initial_model

    def train() -> None:
        worker.train(clients, [np.random.default_rng(client) for client in clients], theta, 0.0, None)

    return train


def evaluation(own: OwnEngine) -> Work:
    """The global model on the test pictures."""
    evaluator, theta = Evaluator(own.worker), own.worker.initial_model.numpy()
    return lambda: evaluator(theta)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Whether convolutions may round their inputs to TF32 meanwhile; products of matrices as torch has it, exact."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def bare_loop(own: OwnEngine, batch: int, lr: float, rounded: bool = False) -> Work:
    """A PyTorch loop tuned for a device, on the model and the clients of ``own``: pictures, updates and orders stay
    on it, all parameters take a step at once (foreach), and nothing waits for the device before the round ends.
    rounded: with TF32, in convolutions and in products.
    """
    worker, clients = own.worker, range(own.config.clients_per_round)
    device = worker.model.theta.device
    data = [worker.local_data(client) for client in clients]
    inputs = [one.inputs.to(device) for one in data]
    targets = [one.targets.to(device) for one in data]
    shape = tuple(inputs[0].shape[1:])
    dataset = worker.data.dataset
    config = own.config.model
    model = build_model(config, shape, len(dataset.classes), 0).to(device)
    parameters: list[Any] = list(model.parameters())
    start: Any = [parameter.detach().clone() for parameter in parameters]

    def work() -> None:
        with tf32(rounded):
            torch.backends.cuda.matmul.allow_tf32 = rounded
            epochs()
            torch.backends.cuda.matmul.allow_tf32 = False

    def epochs() -> None:
        total = [torch.zeros_like(one) for one in start]
        for images, labels in zip(inputs, targets, strict=True):
            with torch.no_grad():
                torch._foreach_copy_(parameters, start)
            optimiser = torch.optim.SGD(parameters, lr=lr, foreach=True)
            for rows in torch.randperm(len(labels), device=device).split(batch):
                optimiser.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
                optimiser.step()
            with torch.no_grad():
                torch._foreach_add_(total, torch._foreach_sub(parameters, start))

    return work


# --- steps --------------------------------------------------------------------------------------------------------


def network(name: str, shape: tuple[int, ...]) -> nn.Module:
    return build_model(ModelConfig(name=name), shape, 10, 0)  # type: ignore[arg-type, call-arg]


def plain_step(name: str, images: Tensor, labels: Tensor) -> Work:
    """Forward, backward and SGD with one addition to a flat vector."""
    model = FlatModel(network(name, tuple(images.shape[1:])), images.device)

    def step() -> None:
        model.grad.zero_()
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        model.theta.add_(model.grad, alpha=-LR)

    return step


def clipped_sum(name: str, images: Tensor, labels: Tensor) -> Work:
    """Our sum of clipped gradients alone, which stays on the device."""
    model = FlatModel(network(name, tuple(images.shape[1:])), images.device)
    gradients = PerExampleGradients(model.module, block=block_of(images))
    gradients.settle(images.shape[1:], images.device)
    print(f"  {name}, {len(images)} pictures: blocks of {gradients.physical}, {gradients.mode}", flush=True)
    return lambda: gradients.clipped_sum(images, labels, CLIP_NORM)


def our_step(name: str, images: Tensor, labels: Tensor) -> Work:
    """The step that clients run: the sum on the device, and exact noise from a keyed generator of the CPU."""
    model, noise = FlatModel(network(name, tuple(images.shape[1:])), images.device), SeededNoise(0, "benchmark")
    gradients = PerExampleGradients(model.module, block=block_of(images))

    def step() -> None:
        total = gradients.clipped_sum(images, labels, CLIP_NORM).total
        update = add_normal_finely(total, SIGMA * CLIP_NORM, noise).float()
        model.theta.add_(update, alpha=-LR / len(labels))

    return step


def block_of(images: Tensor) -> int:
    """Rows of a block, as clients choose them for batches of this size."""
    return block_on_gpu(len(images)) if images.is_cuda else block_for(len(images))


def noise_alone(parameters: int, device: torch.device) -> Work:
    """The noise of one step, as above."""
    noise, total = SeededNoise(0, "benchmark"), torch.zeros(parameters, dtype=torch.float64, device=device)
    return lambda: add_normal_finely(total, SIGMA * CLIP_NORM, noise)


def opacus_step(name: str, images: Tensor, labels: Tensor, mode: str) -> Work:
    """Opacus' own optimizer around its own module; mode: hooks, functorch or ghost."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import PrivacyEngine

        dataset: Any = torch.utils.data.TensorDataset(images.cpu(), labels.cpu())
        module = network(name, tuple(images.shape[1:])).to(images.device)
        made = PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=LR),
            data_loader=torch.utils.data.DataLoader(dataset, batch_size=len(labels)),
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP_NORM,
            poisson_sampling=False,
            criterion=nn.CrossEntropyLoss(),
            grad_sample_mode=mode,
        )
    private, optimizer = made[0], made[1]
    criterion: Any = made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.zero_grad()
            criterion(private(images), labels).backward()
            optimizer.step()

    return step
