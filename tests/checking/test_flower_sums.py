"""Secure sums as targets: a whole round of Flower's own workflow, and what leaves of it."""

from __future__ import annotations

from typing import Any

import flwr.client.mod as older
import numpy as np
import pytest
from flwr.common.secure_aggregation import secaggplus_utils
from flwr.server.workflow import SecAggPlusWorkflow

from fedpriv.checking import flower_sums
from fedpriv.checking.flower_messages import Trained
from fedpriv.checking.flower_strategies import cohort
from fedpriv.checking.flower_sums import SumSubject, recognises
from fedpriv.checking.flower_updates import plain
from fedpriv.checking.subject import Question

QUESTION = Question(dims=(16,))


def subject(target: Any) -> SumSubject:
    found = recognises(target, QUESTION)
    assert isinstance(found, SumSubject)
    return found


@pytest.mark.parametrize("target", [older.secagg_mod, older.secaggplus_mod, SecAggPlusWorkflow(3, 2)])
def test_the_sum_leaves_and_moves_by_the_clients_share_without_noise(target: Any) -> None:
    found = subject(target)
    up, down = (found.play(cohort(Trained(plain(16, length))), 1)[0].numbers for length in (1.0, -1.0))
    moved = np.concatenate([up[name] - down[name] for name in sorted(up) if name.startswith("sum.")])
    assert np.linalg.norm(moved) == pytest.approx(2 / 3, rel=1e-3)
    (known,) = found.recognised
    assert known.event is None
    assert found.observer == "secure-sum"
    assert {"count-bare", "metrics-bare", "sum-of-bounded-numbers"} <= {one.name for one in found.notes}


def test_masked_vectors_are_not_among_the_numbers_and_metrics_are() -> None:
    found = subject(older.secaggplus_mod)
    numbers = found.play(cohort(Trained(plain(16, 1.0), {"loss": 0.25})), 1)[0].numbers
    assert numbers["config.fitres.metrics.loss"].tolist() == [0.25]
    assert not [name for name in numbers if "masked" in name]


def test_noise_inside_the_masks_has_its_own_bound() -> None:
    found = subject([older.secaggplus_mod, older.LocalDpMod(1.0, 2.0, 0.9, 1e-5)])
    assert found.recognised[0].event is not None
    assert found.claim is not None
    assert found.claim.epsilon == 0.9


def test_masks_of_few_bits_are_told_and_a_mended_generator_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public: flwrlabs/flower, issue 7522."""
    assert "masks-of-32-bits" in {one.name for one in subject(older.secaggplus_mod).notes}

    def mended(seed: bytes, num_range: int, dimensions: list[tuple[int, ...]]) -> list[Any]:
        rng = np.random.Generator(np.random.Philox(key=int.from_bytes(seed[:16], "little")))
        return [rng.integers(0, num_range, shape) for shape in dimensions]

    monkeypatch.setattr(flower_sums, "pseudo_rand_gen", mended)
    assert secaggplus_utils.pseudo_rand_gen is not mended
    assert "masks-of-32-bits" not in {one.name for one in subject(older.secaggplus_mod).notes}


def test_other_mods_are_no_sums() -> None:
    assert recognises(older.fixedclipping_mod, QUESTION) is None
