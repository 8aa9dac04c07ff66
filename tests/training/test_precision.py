"""Mixed precision, and pictures that stay on a device: as far as a CPU can show it (the rest: test_gpu.py)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import Outcome, Run, ledger_of, result_of
from torch import nn

from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.data import Examples
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.training.models import build_model
from fedpriv.training.resident import Resident, fits
from fedpriv.training.sequential import FlatModel, LocalData, LocalResult, SequentialTrainer, Training, normalise
from fedpriv.training.stacked_gradients import Mapped
from fedpriv.training.vectorised import VectorisedTrainer

Cli = Callable[..., Outcome]

LOCAL = LocalConfig(epochs=2, batch_size=8, lr=0.05, momentum=0.9, sampler="shuffle")


def update(kind: type[SequentialTrainer], precision: str, model: str = "mlp") -> LocalResult:
    """Of one client with 20 pictures, from the same start and in the same order."""
    flat = FlatModel(build_model(ModelConfig(name=model, hidden=16), (1, 16, 16), 10, 0))
    random = torch.Generator().manual_seed(0)
    data = LocalData(torch.randn(20, 1, 16, 16, generator=random), torch.arange(20) % 10)
    trainer, theta = kind(flat, LOCAL, precision), flat.theta.clone()

    return trainer.train_all([Training(theta, data, np.random.default_rng(0))])[0]


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("kind", [SequentialTrainer, VectorisedTrainer])
def test_mixed_precision_rounds_the_products_and_nothing_else(kind: type[SequentialTrainer], model: str) -> None:
    exact, mixed = update(kind, "float32", model), update(kind, "bfloat16", model)
    assert mixed.update.dtype == torch.float32
    assert not torch.equal(exact.update, mixed.update) and angle(exact.update, mixed.update) > 0.97
    assert 0 < abs(exact.loss - mixed.loss) < 0.02 * exact.loss
    bits = mixed.update.view(torch.int32) & 0xFFFF  # a bfloat16 has none of these
    assert float((bits != 0).float().mean()) > 0.9


def test_both_trainers_mix_alike() -> None:
    one, other = update(SequentialTrainer, "bfloat16").update, update(VectorisedTrainer, "bfloat16").update
    assert angle(one, other) > 0.9999


def test_a_chain_of_products_in_place_is_not_mixed() -> None:
    model = FlatModel(build_model(ModelConfig(name="linear"), (1, 8, 8), 10, 0))
    assert isinstance(VectorisedTrainer(model, LOCAL, "bfloat16").batched, Mapped)
    assert not isinstance(VectorisedTrainer(model, LOCAL).batched, Mapped)


@pytest.mark.parametrize("trainer", ["sequential", "vectorised"])
def test_a_run_in_mixed_precision_has_the_same_account(trainer: str, run: Run) -> None:
    options = ("strategy=fedldp", f"engine.trainer={trainer}")
    exact, mixed = run(*options), run(*options, "engine.precision=bfloat16")
    assert ledger_of(exact) == ledger_of(mixed)
    assert result_of(exact)["summary"]["privacy"] == result_of(mixed)["summary"]["privacy"]
    assert result_of(exact)["model"] != result_of(mixed)["model"]
    assert "precision: bfloat16" in (mixed / "config.yaml").read_text()


class Attention(nn.Module):
    """Of rows of a picture; its way is a list of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.to_all, self.head = nn.Linear(16, 48), nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        parts = self.to_all(images[:, 0]).chunk(3, -1)
        return self.head(nn.functional.scaled_dot_product_attention(*(part[:, None] for part in parts))[:, 0].mean(1))


@pytest.mark.parametrize("name", ["mlp", "cnn", "attention"])
def test_clipped_sums_in_mixed_precision_are_those_of_its_own_gradients(name: str) -> None:
    """What is clipped and added up are the rounded passes' gradients: no example is longer than the bound."""
    torch.manual_seed(0)
    module = Attention() if name == "attention" else build_model(ModelConfig(name=name), (1, 16, 16), 10, 0)  # type: ignore[arg-type]
    images, labels = torch.randn(6, 1, 16, 16), torch.arange(6)
    exact, mixed = (PerExampleGradients(module, precision=kind) for kind in ("float32", "bfloat16"))
    whole, rounded = (way.clipped_sum(images, labels, 1e9) for way in (exact, mixed))
    assert mixed.mode == exact.mode == ("vmap" if name == "attention" else "bookkeeping")
    assert 1e-5 < float((whole.total - rounded.total).norm() / whole.total.norm()) < 0.2
    bound, total = float(rounded.norms.median()), torch.zeros_like(rounded.total)
    for place in range(6):
        one = mixed.clipped_sum(images[place : place + 1], labels[place : place + 1], bound)
        assert one.norms[0] == rounded.norms[place] and float(one.total.norm()) <= bound
        total += one.total
    assert float((mixed.clipped_sum(images, labels, bound).total - total).norm()) < 1e-12 * bound


def test_a_run_that_clips_examples_in_mixed_precision_has_the_same_account(run: Run) -> None:
    exact, mixed = run("strategy=dpsgd"), run("strategy=dpsgd", "engine.precision=bfloat16")
    assert ledger_of(exact) == ledger_of(mixed)
    assert result_of(exact)["summary"]["privacy"] == result_of(mixed)["summary"]["privacy"]
    assert result_of(exact)["model"] != result_of(mixed)["model"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["engine.precision=bfloat16", "strategy=dpsgd", "local.clipping=opacus"],
            "engine.precision=bfloat16: local.clipping=opacus forms gradients of single examples in float32",
        ),
        (["engine.precision=float16"], "engine.precision=float16: "),
    ],
)
def test_a_precision_that_cannot_be_had_is_one_line(options: list[str], words: str, cli: Cli) -> None:
    outcome = cli(*options, "num_clients=4", "clients_per_round=4", "num_rounds=1")
    assert outcome.code == 2 and words in outcome.err and "float32" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("shape", "mean", "std"), [((1, 4, 4), (0.13,), (0.3,)), ((3, 4, 4), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]
)
def test_pictures_on_a_device_are_normalised_to_the_same_bits(
    shape: tuple[int, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    rng = np.random.default_rng(0)
    part = Examples(rng.integers(0, 256, (30, *shape), dtype=np.uint8), rng.integers(0, 10, 30))
    rows = np.array([3, 29, 0, 3])
    found = Resident(part, mean, std, torch.device("cpu")).chosen(rows)
    assert torch.equal(found.inputs, normalise(part.inputs[rows], mean, std))
    assert found.targets.tolist() == part.targets[rows].tolist()


@pytest.mark.parametrize(("free", "expected"), [(4000, True), (3999, False)])
def test_pictures_stay_on_a_gpu_if_a_quarter_of_its_free_memory_holds_them(
    free: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Examples(np.zeros((10, 1, 10, 10), np.uint8), np.zeros(10, np.int64))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10**9))
    assert fits(part, torch.device("cuda")) is expected
    assert not fits(part, torch.device("cpu"))


@pytest.mark.parametrize(
    "options", [("strategy=fedcad",), ("strategy=dpsgd",), ("strategy=fedcad", "engine.trainer=vectorised")]
)
def test_a_run_from_resident_pictures_is_the_same_run(
    options: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = run(*options)
    asked = []
    real = Resident.read
    monkeypatch.setattr(Resident, "read", lambda self, index: asked.append(len(index)) or real(self, index))
    monkeypatch.setattr("fedpriv.engines.worker.fits", lambda part, device: True)
    resident = run(*options)
    assert asked and result_of(resident) == result_of(usual)
