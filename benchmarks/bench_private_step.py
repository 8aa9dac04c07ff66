"""A private step against a plain one: same network, same batch, one thread.

    python -m benchmarks.bench_private_step [model=cnn] [batch=60] [repeats=30] [others=yes]

plain: forward, backward, SGD. The others add per-example clipping and Gaussian noise: ours (the step that clients
run), `torch.func` vmap, and Opacus with hooks, functorch and ghost clipping. All are timed in turn within one loop, so
that a busy machine slows all equally; the figure that counts is the ratio of the medians. others=no: plain and ours
alone, so that no third one empties the caches between them, as in a run.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.mechanisms.noise import SeededNoise, add_normal_finely
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.training.allocator import keep_freed_memory
from fedpriv.training.models import build_model
from fedpriv.training.sequential import FlatModel, LocalData, SequentialTrainer

Step = Callable[[], None]
LR, CLIP_NORM, SIGMA = 1e-4, 1.0, 1.0


def network(name: str) -> nn.Module:
    return build_model(ModelConfig(name=name), (1, 28, 28), 10, 0)  # type: ignore[arg-type, call-arg]


def plain(name: str, images: Tensor, labels: Tensor) -> Step:
    model = FlatModel(network(name))

    def step() -> None:
        model.grad.zero_()
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        model.theta.add_(model.grad, alpha=-LR)

    return step


def ours(name: str, images: Tensor, labels: Tensor) -> Step:
    model, noise = FlatModel(network(name)), SeededNoise(0, "benchmark")
    local = LocalConfig(epochs=1, steps=None, batch_size=len(labels), lr=LR, momentum=0.0, sampler="poisson")
    trainer, theta, data = SequentialTrainer(model, local), model.theta.clone(), LocalData(images, labels)

    def step() -> None:
        total = trainer.clipped_sum(theta, data, CLIP_NORM).total
        theta.add_(add_normal_finely(total, SIGMA * CLIP_NORM, noise).float(), alpha=-LR / len(labels))

    return step


def mapped(name: str, images: Tensor, labels: Tensor) -> Step:
    model, noise = FlatModel(network(name)), SeededNoise(0, "benchmark")
    gradients = PerExampleGradients(model.module, "vmap")

    def step() -> None:
        total = gradients.clipped_sum(images, labels, CLIP_NORM).total
        model.theta.add_(add_normal_finely(total, SIGMA * CLIP_NORM, noise).float(), alpha=-LR / len(labels))

    return step


def opacus(name: str, images: Tensor, labels: Tensor, mode: str) -> Step:
    """Opacus' own optimizer around its own module; ``mode``: hooks, functorch or ghost."""
    from opacus import PrivacyEngine

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=len(labels))
    module = network(name)
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=LR),
        data_loader=data,
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP_NORM,
        poisson_sampling=False,
        criterion=nn.CrossEntropyLoss(),
        grad_sample_mode=mode,
    )
    private, optimizer, criterion = made[0], made[1], made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        criterion(private(images), labels).backward()
        optimizer.step()

    return step


def contenders(name: str, images: Tensor, labels: Tensor, others: bool) -> dict[str, Step]:
    found = {"plain": plain(name, images, labels), "ours": ours(name, images, labels)}
    if not others:
        return found
    found["torch.func vmap"] = mapped(name, images, labels)
    for mode in ("hooks", "functorch", "ghost"):
        found[f"Opacus {mode}"] = opacus(name, images, labels, mode)
    return found


def measure(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Median seconds of the processor of each step."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 3):
        for name, step in steps.items():
            began = time.process_time()  # of this process, so that others count little
            step()
            if repeat >= 3:
                seconds[name].append(time.process_time() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main(arguments: list[str]) -> None:
    options = {"model": "cnn", "batch": "60", "repeats": "30", "others": "yes"} | dict(
        part.split("=", 1) for part in arguments
    )
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does
    torch.manual_seed(0)
    batch = int(options["batch"])
    images, labels = torch.randn(batch, 1, 28, 28), torch.arange(batch) % 10
    found = measure(contenders(options["model"], images, labels, options["others"] == "yes"), int(options["repeats"]))
    print(f"{options['model']}, batch {batch}, one thread, median of {options['repeats']}")
    for name, seconds in found.items():
        print(f"{name:<18} {1e3 * seconds:7.2f} ms   {seconds / found['plain']:5.2f} x plain")


if __name__ == "__main__":
    main(sys.argv[1:])
