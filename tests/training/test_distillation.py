"""Distillation: the loss against its definition, and a student that moves towards its teacher."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpriv.common.messages import FloatVector
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.distillation_loss import distillation_loss
from fedpriv.training.distillation import DistillationOptions, Distiller

STEP = DistillationOptions(epochs=4, batch_size=64, lr=0.1, loss="kl", temperature=2.0)


def logits(seed: int) -> Tensor:
    return torch.randn(7, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_kl_is_the_definition_with_softened_probabilities(temperature: float) -> None:
    student, teacher = logits(0), logits(1)
    p, q = (np.exp(x.numpy() / temperature) for x in (teacher, student))
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    expected = temperature**2 * (p * np.log(p / q)).sum() / len(p)
    assert float(distillation_loss(student, teacher, "kl", temperature)) == pytest.approx(expected, rel=1e-12)
    assert float(distillation_loss(teacher, teacher, "kl", temperature)) == pytest.approx(0, abs=1e-12)


def test_mse_is_the_mean_squared_difference() -> None:
    expected = ((logits(0) - logits(1)) ** 2).mean()
    assert float(distillation_loss(logits(0), logits(1), "mse", 9.0)) == pytest.approx(float(expected))


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker(compose(["strategy=dpfl_agn", "num_clients=4", "clients_per_round=4", "dataset.auxiliary=200"]))


def pair(worker: Worker) -> tuple[FloatVector, FloatVector]:
    """(teacher, student): two random models."""
    rng, size = np.random.default_rng(3), worker.model.layout.num_parameters
    return tuple(rng.normal(0, 0.3, size).astype(np.float32) for _ in range(2))  # type: ignore[return-value]


def disagreement(worker: Worker, teacher: FloatVector, student: FloatVector) -> float:
    distiller = Distiller(worker, STEP)
    answers = [distiller._answers(theta) for theta in (student, teacher)]
    return float(distillation_loss(*answers, "kl", 2.0))


@pytest.mark.parametrize("loss", ["kl", "mse"])
def test_the_student_moves_towards_the_teacher(worker: Worker, loss: str) -> None:
    teacher, student = pair(worker)
    options = DistillationOptions(4, 64, 0.05, loss, 2.0)
    moved = Distiller(worker, options)(teacher, student, slice(None), 1)
    assert disagreement(worker, teacher, moved) < 0.6 * disagreement(worker, teacher, student)


def test_frozen_layers_stay_bit_for_bit_and_the_round_decides_the_order(worker: Worker) -> None:
    teacher, student = pair(worker)
    moved = Distiller(worker, STEP)(teacher, student, slice(0, 100), 1)
    assert np.array_equal(moved[100:], student[100:]) and not np.array_equal(moved[:100], student[:100])
    assert np.array_equal(moved, Distiller(worker, STEP)(teacher, student, slice(0, 100), 1))
    assert not np.array_equal(moved, Distiller(worker, STEP)(teacher, student, slice(0, 100), 2))


def test_a_student_of_itself_stays(worker: Worker) -> None:
    teacher, _ = pair(worker)
    moved = Distiller(worker, STEP)(teacher, teacher, slice(None), 1)
    assert np.allclose(moved, teacher, atol=1e-5)


def test_a_broken_teacher_teaches_nothing(worker: Worker) -> None:
    teacher, student = pair(worker)
    teacher[5] = np.nan
    assert np.array_equal(Distiller(worker, STEP)(teacher, student, slice(None), 1), student)
