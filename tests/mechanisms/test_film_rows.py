"""A FiLM layer whose factors lie along the batch would treat an example by its place: it is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpriv.mechanisms.film import Film
from fedpriv.mechanisms.rowwise import NotRowwise, Rowwise
from fedpriv.training.trained_part import _freeze


@pytest.mark.parametrize("dim", [0, -4])
def test_frozen_factors_along_the_batch_are_refused(dim: int) -> None:
    film = Film(5, dim)
    _freeze(film)
    model = nn.Sequential(film, nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(NotRowwise, match="batch"):
        Rowwise(model).run(torch.ones(5, 1, 2, 2), lambda *_: None)
