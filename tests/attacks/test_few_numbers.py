"""The noise contract of a release of few numbers: independent noises are alike by chance, equal ones are found."""

from __future__ import annotations

import numpy as np
import pytest

from fedpriv.attacks.noise_contract import Heard, shared_noise
from fedpriv.common.messages import ARRAYS
from fedpriv.config.compose import compose


@pytest.mark.parametrize("numbers", [2, 3, 5, 60])
def test_noises_are_shared_where_they_are_equal_and_not_by_chance(numbers: int) -> None:
    config, rng = compose(["strategy=ask"]), np.random.default_rng(0)
    alike = 0
    for _ in range(200):
        noise = rng.normal(size=(16, numbers))
        alike += len(shared_noise(Heard(config, list(range(16)), [{ARRAYS: noise}])))
        noise[3] = noise[11]
        found = shared_noise(Heard(config, list(range(16)), [{ARRAYS: noise}]))
        assert numbers == 2 or found == ["round 1: clients 3 and 11 share their noise"]
    assert alike <= (2 if numbers == 2 else 0)
