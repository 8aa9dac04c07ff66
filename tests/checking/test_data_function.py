"""Training loops that are written without Opacus: functions of data, whose output alone is looked at."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedpriv.checking.checks import check_object
from fedpriv.checking.findings import FAULTS, NO_FAULT, NOT_CHECKED
from fedpriv.checking.subject import Claim, Question


def loop(noise: float, data: tuple[torch.Tensor, torch.Tensor], batch: int = 4) -> list[torch.Tensor]:
    """Clipped gradients of a linear model, summed with noise: the model after each batch of the one pass."""
    rows, wanted = data
    weights, published = torch.zeros(rows.shape[1]), []
    for first in range(0, len(rows) - batch + 1, batch):
        x, y = rows[first : first + batch], wanted[first : first + batch]
        gradients = (x @ weights - y)[:, None] * x
        gradients = gradients / gradients.norm(dim=1, keepdim=True).clamp(min=1)
        weights = weights - 0.1 * (gradients.sum(0) + noise * torch.randn(len(weights)))
        published.append(weights)
    return published


def found(target: Any, epsilon: float, adjacency: str = "replace-one") -> Any:
    claim = Claim(epsilon, 1e-5, adjacency=adjacency)
    return check_object(target, Question(claim=claim, trials=1500), seconds=8)


def test_a_sound_loop_passes() -> None:
    """One step of every pass holds the row, and rows are 2 apart: a Gaussian of 2 / 4, epsilon 2.1."""
    said = found(lambda data: loop(4.0, data), 2.2)
    assert said.verdict == NO_FAULT, said.findings


def test_a_loop_without_noise_and_one_with_too_little_are_found() -> None:
    bare = found(lambda data: loop(0.0, data), 2.2)
    assert bare.verdict == FAULTS and "no-randomness" in {one.name for one in bare.findings}
    little = found(lambda data: loop(0.4, data), 2.2)
    assert little.verdict == FAULTS and "claim-refuted" in {one.name for one in little.findings}


@pytest.mark.parametrize(("adjacency", "verdict"), [("add-or-remove-one", FAULTS), ("zero-out", NO_FAULT)])
def test_the_number_of_rows_counts_where_the_claim_is_about_it(adjacency: str, verdict: str) -> None:
    """Fifteen rows make three batches of four, sixteen make four."""
    assert found(lambda data: loop(4.0, data), 2.2, adjacency).verdict == verdict


def test_what_takes_neither_updates_nor_data_says_so() -> None:
    def asks_for_names(data: Any) -> Any:
        return data["rows"], data["names"]

    said = found(asks_for_names, 1.0)
    assert said.verdict == NOT_CHECKED
