"""The same work on a GPU: within a tolerance of the CPU's results, with the same account.

`make test` deselects these, `make test-gpu` runs them and fails where there is no GPU.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run, ledger_of, rows_of
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from safetensors.torch import load_file

from fedpriv.attacks.client_canaries import audit_training
from fedpriv.config.compose import compose
from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.data import Examples
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.clipped_sums import block_on_gpu
from fedpriv.mechanisms.noise import SeededNoise, add_normal_finely
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.secure_noise import SecureNoise
from fedpriv.runs.preparation import resolve
from fedpriv.training.evaluation import Evaluator
from fedpriv.training.models import build_model
from fedpriv.training.resident import Resident, fits
from fedpriv.training.sequential import (
    Clipping,
    FlatModel,
    LocalData,
    LocalResult,
    SequentialTrainer,
    Training,
    normalise,
)
from fedpriv.training.vectorised import VectorisedTrainer

pytestmark = pytest.mark.gpu

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SHAPE = (1, 28, 28)
SIZES = (30, 7, 1, 19)  # pictures of the clients


class _Kept(logging.Handler):
    """The messages of what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(autouse=True)
def _a_gpu_without_shortcuts() -> Iterator[None]:
    """Fails, rather than skips, where there is none; and where the product warns, as it does when it goes on in a
    slower way after a device ran out of memory.
    """
    assert torch.cuda.is_available(), "no GPU that torch can use"
    Worker(compose([]))  # sets the process up as in a run: float32 products are not TF32
    kept, log = _Kept(), logging.getLogger("fedpriv")
    log.addHandler(kept)
    yield
    log.removeHandler(kept)
    assert not kept.messages


def cohort() -> list[LocalData]:
    random = torch.Generator().manual_seed(0)
    return [
        LocalData(torch.randn(size, *SHAPE, generator=random), torch.randint(0, 10, (size,), generator=random))
        for size in SIZES
    ]


def updates(
    kind: type[SequentialTrainer], device: torch.device, model: str, precision: str = "float32", momentum: float = 0.9
) -> list[LocalResult]:
    """Every client's, from the same start and in the same order of pictures; with a proximal term."""
    flat = FlatModel(build_model(ModelConfig(name=model, hidden=32), SHAPE, 10, 0), device)
    local = LocalConfig(epochs=2, batch_size=8, lr=0.05, momentum=momentum, sampler="shuffle")
    trainer, theta = kind(flat, local, precision), flat.theta.cpu().clone()
    asked = [Training(theta, data, np.random.default_rng(client), 0.1) for client, data in enumerate(cohort())]
    return trainer.train_all(asked)


@pytest.mark.parametrize("model", ["linear", "mlp", "cnn"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kind", [SequentialTrainer, VectorisedTrainer])
def test_training_agrees_with_the_cpu(kind: type[SequentialTrainer], momentum: float, model: str) -> None:
    here = updates(SequentialTrainer, CPU, model, momentum=momentum)
    there = updates(kind, GPU, model, momentum=momentum)
    for one, other in zip(here, there, strict=True):
        assert other.update.device == CPU and other.update.dtype == torch.float32
        assert float((one.update - other.update).norm()) < 2e-3 * float(one.update.norm())
        assert other.loss == pytest.approx(one.loss, rel=1e-3)


@pytest.mark.parametrize("kind", [SequentialTrainer, VectorisedTrainer])
def test_mixed_precision_stays_near(kind: type[SequentialTrainer]) -> None:
    exact, mixed = updates(kind, GPU, "cnn"), updates(kind, GPU, "cnn", "bfloat16")
    for one, other in zip(exact, mixed, strict=True):
        assert other.update.dtype == torch.float32 and not torch.equal(one.update, other.update)
        assert float(torch.nn.functional.cosine_similarity(one.update, other.update, dim=0)) > 0.9


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet18"])
def test_clipped_sums_agree_and_keep_the_bound(model: str) -> None:
    shape, found = (3, 32, 32), []
    random = torch.Generator().manual_seed(0)
    images, labels = torch.randn(6, *shape, generator=random), torch.arange(6)
    for device in (CPU, GPU):
        module = build_model(ModelConfig(name=model, hidden=32), shape, 10, 0).to(device)
        found.append(PerExampleGradients(module).clipped_sum(images.to(device), labels.to(device), 0.5))
    here, there = found
    assert float(there.total.norm()) <= 6 * 0.5
    assert float((here.total - there.total.cpu()).norm()) < 2e-3 * float(here.total.norm())
    torch.testing.assert_close(here.norms, there.norms.cpu(), rtol=2e-3, atol=0)


def test_resident_pictures_are_the_normalised_ones() -> None:
    rng = np.random.default_rng(0)
    part = Examples(rng.integers(0, 256, (50, 3, 8, 8), dtype=np.uint8), rng.integers(0, 10, 50))
    mean, std, rows = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), np.array([4, 49, 0, 4])
    found = Resident(part, mean, std, GPU).chosen(rows)
    assert found.inputs.device.type == found.targets.device.type == "cuda"
    torch.testing.assert_close(found.inputs.cpu(), normalise(part.inputs[rows], mean, std), rtol=1e-6, atol=1e-6)
    assert found.targets.tolist() == part.targets[rows].tolist()
    assert fits(part, GPU)


def test_auto_takes_the_gpu_and_keeps_the_pictures_there() -> None:
    config, worker, _ = resolve(compose(["num_clients=4", "clients_per_round=4"]), None)
    assert config.engine.device == "cuda" and config.engine.name == (
        "inprocess" if torch.cuda.device_count() == 1 else "ray"
    )
    assert worker.model.theta.device.type == "cuda" and Worker(config).resident is not None


#: Noise from a key and from data alone is the CPU's, so runs differ by training's rounding only.
METHODS = ("fedavg", "fedcad", "dpsgd", "adpfl", "coqfl", "fedags", "dpfl_agn")
#: Where the default's noise would hide training.
QUIET = {
    "dpsgd": ("strategy.client.noise_multiplier=0.01", "local.lr=1.0"),
    "dpfl_agn": ("strategy.client.noise_multiplier=0.01",),
    "adpfl": ("strategy.client.epsilon=1e6",),
    "fedags": ("strategy.client.epsilon=1e6", "local.lr=10.0"),
}


def flat_model(folder: Path) -> torch.Tensor:
    return torch.cat([value.flatten() for _, value in sorted(load_file(folder / "model.safetensors").items())])


def charged(folder: Path, method: str) -> list[dict[str, Any]]:
    """The ledger; of ADP-FL without what its uploads really had of noise (`realised_noise`)."""
    left_out = "realised" if method == "adpfl" else ""
    return [{key: value for key, value in entry.items() if key != left_out} for entry in ledger_of(folder)]


def realised_noise(folder: Path) -> list[float]:
    """The multipliers of all that ADP-FL's uploads really had, each exactly that of the epsilon which the same run gave
    to that client in that round (eq. 16: S sigma_s / 2 with S = 2), and never below the ledger's bound.

    They follow norms of updates, which a GPU rounds otherwise, so two devices may differ in them; each is exact for the
    noise that its own run added.
    """
    given = {row["round"]: row["figures"].get("round_epsilon", {}) for row in rows_of(folder)}
    entries = [entry for entry in ledger_of(folder) if "realised" in entry]
    delta = compose(["strategy=adpfl"]).strategy.options.claimed_delta
    for entry in entries:
        epsilon = given[entry["round"]][str(entry["client"])]
        taken = math.sqrt(epsilon + 2 * math.log(1 / delta)) / epsilon
        assert entry["realised"]["multiplier"] == pytest.approx(max(taken, entry["multiplier"]), rel=1e-12)
        assert entry["realised"]["multiplier"] >= entry["multiplier"]
    return [entry["realised"]["multiplier"] for entry in entries]


@pytest.mark.parametrize("trainer", ["sequential", "vectorised"])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_that_of_the_cpu_within_rounding(method: str, trainer: str, run: Run) -> None:
    """The account is equal, and so is nearly all of the model: rounding may turn a bit or a selection now and then."""
    options = (f"strategy={method}", "model=mlp", "num_rounds=2", f"engine.trainer={trainer}", *QUIET.get(method, ()))
    here, there = run(*options, "engine.device=cpu"), run(*options, "engine.device=cuda")
    assert charged(here, method) == charged(there, method)
    if method == "adpfl":  # as far as norms of updates may differ
        assert realised_noise(there) == pytest.approx(realised_noise(here), rel=2e-3)
    idle = run(*options, "engine.device=cpu", "local.lr=1e-12")
    one, other, untrained = (flat_model(folder) for folder in (here, there, idle))
    trained = float(
        (one - untrained).norm()
    )  # what training adds to the noise: had the GPU trained nothing, or wrongly
    apart = one - other
    if method == "coqfl":  # one bit a coordinate: few of them turn, each by its whole interval
        assert (
            float((apart.abs() > 1e-4).float().mean()) < 0.03 < float(((one - untrained).abs() > 1e-4).float().mean())
        )
    else:
        assert float(apart.norm()) < 0.1 * trained


@pytest.mark.parametrize("method", ["dpsgd", "dpfl_agn"])
def test_noisy_steps_on_sums_that_stay_there_are_those_of_the_cpu(method: str, run: Run) -> None:
    """Of a model whose sums, update and moments stay on the device between steps: SGD and Adam."""
    options = (f"strategy={method}", "model=cnn", "num_rounds=2", "dataset=custom", "dataset.path=test_gpu.pictures")
    options += ("strategy.client.noise_multiplier=0.01", "local.lr=0.01", "local.batch_size=16", "engine.workers=1")
    options += ("strategy.client.local_steps=3",)
    here, there = run(*options, "engine.device=cpu"), run(*options, "engine.device=cuda")
    assert ledger_of(here) == ledger_of(there)
    idle = run(*options, "engine.device=cpu", "local.lr=1e-12")
    one, other, untrained = (flat_model(folder) for folder in (here, there, idle))
    assert float((one - other).norm()) < 0.05 * float((one - untrained).norm())


def pictures(split: str) -> tuple[np.ndarray, np.ndarray]:
    """For `dataset=custom`: random, 16x16."""
    rng, count = np.random.default_rng(split == "train"), 280 if split == "train" else 1_100
    return rng.integers(0, 256, (count, 1, 16, 16), dtype=np.uint8), rng.integers(0, 10, count)


def test_noise_is_added_there_to_the_cpus_bits() -> None:
    values = torch.randn(100_003, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 30
    for std in (0.7, 1e-3, 0.0):
        for make in (lambda: SeededNoise(0, "a test"), SameSecure):
            here, there = (add_normal_finely(values.to(device), std, make()) for device in (CPU, GPU))
            assert there.device.type == "cuda" and torch.equal(here, there.cpu())


class SameSecure(SecureNoise):
    """With a key that is always the same."""

    def _rekey(self) -> None:
        self._cipher, self._process = Cipher(AES(bytes(32)), CTR(bytes(16))).encryptor(), os.getpid()


@pytest.mark.parametrize(("model", "expected"), [("cnn", 60), ("cnn", 250), ("resnet18", 32)])
def test_sums_of_clipped_gradients_take_one_block_there_and_repeat(model: str, expected: int) -> None:
    """Equal examples of a block have equal bits in every row, which is what lets a block be large; and a sum that is
    asked again has the same bits.
    """
    shape, random = (3, 32, 32), torch.Generator().manual_seed(0)
    flat = FlatModel(build_model(ModelConfig(name=model), shape, 10, 0), GPU)
    trainer = SequentialTrainer(flat, LocalConfig(epochs=1, batch_size=expected, lr=0.1, momentum=0, sampler="poisson"))
    data = LocalData(torch.randn(expected, *shape, generator=random).to(GPU), (torch.arange(expected) % 10).to(GPU))
    asked = [Clipping(flat.theta.cpu().clone(), data, 0.5, stays=stays) for stays in (True, True, False)]
    first, again, moved = trainer.clipped_sums(asked)
    assert trainer.per_example(shape).physical == block_on_gpu(expected) > expected
    assert first.total.device.type == "cuda" and moved.total.device == CPU
    assert torch.equal(first.total, again.total) and torch.equal(first.total.cpu(), moved.total)
    assert torch.equal(first.norms, again.norms)


def test_test_examples_stay_there() -> None:
    scores = []
    for device in ("cpu", "cuda"):
        options = ["num_clients=4", "clients_per_round=4", "model=mlp", f"engine.device={device}"]
        worker = resolve(compose(options), None)[1]
        evaluator = Evaluator(worker)
        assert evaluator.inputs.device.type == device
        scores.append(evaluator(worker.initial_parameters()))
    assert scores[1].loss == pytest.approx(scores[0].loss, rel=1e-4)
    assert scores[1].accuracy == pytest.approx(scores[0].accuracy, abs=0.01)


@pytest.mark.parametrize("kind", [SequentialTrainer, VectorisedTrainer])
def test_one_clipped_example_is_no_longer_than_its_bound(kind: type[SequentialTrainer]) -> None:
    flat = FlatModel(build_model(ModelConfig(name="mlp", hidden=32), SHAPE, 10, 0), GPU)
    trainer = kind(flat, LocalConfig(epochs=1, batch_size=1, lr=0.1, momentum=0.0, sampler="poisson"))
    theta, one = flat.theta.cpu().clone(), LocalData(cohort()[0].inputs[:1], cohort()[0].targets[:1])
    (found,) = trainer.clipped_sums([Clipping(theta, one, 0.25)])
    assert float(found.norms[0]) > 0.25 >= float(found.total.norm()) > 0.2497


@pytest.mark.ray
def test_flowers_runtime_gives_its_workers_the_gpu(run: Run) -> None:
    folder = run("engine.device=cuda", "engine=flower", "engine.workers=1", "num_rounds=1")
    assert rows_of(folder)[-1]["participants"] == 4


def test_canary_examples_are_found_there_too() -> None:
    config, _, _ = resolve(compose(["strategy=dpsgd", "num_clients=4", "clients_per_round=4", "num_rounds=2"]), None)
    assert config.engine.device == "cuda"
    assert audit_training(config, confidence=0.95, seed=0).canaries > 0


@pytest.mark.ray
@pytest.mark.slow
def test_ray_workers_share_a_gpu(run: Run) -> None:
    one = run("engine.device=cuda", "engine.trainer=sequential")
    two = run("engine.device=cuda", "engine.trainer=sequential", "engine=ray", "engine.gpus_per_worker=0.5")
    assert rows_of(two)[-1]["accuracy"] == pytest.approx(rows_of(one)[-1]["accuracy"], abs=0.03)
    assert ledger_of(one) == ledger_of(two)
