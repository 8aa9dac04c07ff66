"""Models of text: a private step against a plain one, and what a row of hashed words costs. One thread.

    python -m benchmarks.bench_text [batch=64] [tokens=64] [repeats=20]

plain: forward, backward, SGD. clipped: forward, the sum of the clipped gradients of single examples, SGD. noise:
Gaussian noise on that sum, which costs by the number of parameters. All take turns within one loop; seconds are those
of the processor, so that other processes count little; the figure that matters is the ratio of the medians.

Hashed words: the clipped sum over rows of 100 words of 65,536 buckets and two classes, as token ids (a bag, which reads
the words that are there), and as dense rows of a linear model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.mechanisms.noise import SeededNoise, add_normal_finely
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.training.language_models import BUILDERS, Text
from fedpriv.training.models import build_model
from fedpriv.training.sequential import FlatModel, SequentialTrainer

Step = Callable[[], object]
VOCABULARY, CLASSES, LR, CLIP_NORM = 257, 4, 1e-4, 1.0
WORDS, BUCKETS = 100, 1 << 16


def flat_model(name: str, shape: int, classes: int, vocabulary: int | None, embedding: int = 32) -> FlatModel:
    config = ModelConfig(name=name, embedding=embedding)  # type: ignore[arg-type, call-arg]
    text = None if vocabulary is None else Text(vocabulary)
    return FlatModel(build_model(config, (shape,), classes, 0, text), vocabulary=vocabulary)


def plain(model: FlatModel, inputs: Tensor, targets: Tensor) -> Step:
    def step() -> None:
        model.grad.zero_()
        model.task.mean_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        model.theta.add_(model.grad, alpha=-LR)

    return step


def clipped(model: FlatModel, inputs: Tensor, targets: Tensor) -> Step:
    gradients = clipping(model, inputs.shape[1], len(inputs))

    def step() -> None:
        total = gradients.clipped_sum(inputs, targets, CLIP_NORM).total
        model.theta.add_(total.float(), alpha=-LR / len(targets))

    return step


def noise(model: FlatModel) -> Step:
    source, total = SeededNoise(0, "benchmark"), torch.zeros(model.theta.numel(), dtype=torch.float64)
    return lambda: add_normal_finely(total, CLIP_NORM, source)


def clipping(model: FlatModel, shape: int, batch: int) -> PerExampleGradients:
    """As a client's trainer makes it, settled before the first step."""
    local = LocalConfig(epochs=1, steps=None, batch_size=batch, lr=0.1, momentum=0.0, sampler="shuffle")
    return SequentialTrainer(model, local).per_example((shape,))


def measure(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Median seconds of the processor of each step."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 2):
        for name, step in steps.items():
            began = time.process_time()
            step()
            if repeat >= 2:
                seconds[name].append(time.process_time() - began)
    return {name: median(values) for name, values in seconds.items()}


def models(batch: int, tokens: int, repeats: int) -> dict[str, dict[str, float]]:
    """model -> median seconds of each part of a step."""
    random, found = torch.Generator().manual_seed(0), {}
    ids = torch.randint(1, VOCABULARY, (batch, tokens), generator=random)
    targets = torch.arange(batch) % CLASSES
    for name in BUILDERS:
        made = [flat_model(name, tokens, CLASSES, VOCABULARY) for _ in range(2)]
        steps = {"plain": plain(made[0], ids, targets), "clipped": clipped(made[1], ids, targets)}
        found[name] = measure(steps | {"noise": noise(made[1])}, repeats)
    return found


def hashed_words(batch: int, repeats: int) -> dict[str, float]:
    """Median seconds of the clipped sum over a batch: of token ids, and of dense rows."""
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(1, BUCKETS + 1, (batch, WORDS), generator=random)
    rows = torch.zeros(batch, BUCKETS).scatter_add_(1, ids - 1, torch.full(ids.shape, WORDS**-0.5))
    targets = torch.arange(batch) % 2
    of_ids = clipping(flat_model("bag", WORDS, 2, BUCKETS + 1, embedding=0), WORDS, batch)
    of_rows = clipping(flat_model("linear", BUCKETS, 2, None), BUCKETS, batch)
    steps: dict[str, Step] = {
        "ids": lambda: of_ids.clipped_sum(ids, targets, CLIP_NORM),
        "dense": lambda: of_rows.clipped_sum(rows, targets, CLIP_NORM),
    }
    return measure(steps, repeats)


def main(arguments: list[str]) -> None:
    options = {"batch": 64, "tokens": 64, "repeats": 20}
    options |= {name: int(value) for name, value in (part.split("=", 1) for part in arguments)}
    torch.set_num_threads(1)
    sizes = f"batch {options['batch']}, {options['tokens']} tokens"
    print(f"{sizes}, one thread, processor time, median of {options['repeats']}")
    for name, seconds in models(**options).items():
        shown = "   ".join(f"{part} {1e3 * value:7.2f} ms" for part, value in seconds.items())
        print(f"{name:<12} {shown}   clipped / plain {seconds['clipped'] / seconds['plain']:.2f}")
    found = hashed_words(options["batch"], options["repeats"])
    words = f"{WORDS} words of {BUCKETS}"
    print(f"{words}   ids {1e3 * found['ids']:.2f} ms   dense {1e3 * found['dense']:.2f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
