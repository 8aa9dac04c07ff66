"""NVFlare filters as functions of a dict of arrays, by their interface."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from fedpriv.checking.functions import NotTaken, ReleaseFunction, as_function, recognises
from fedpriv.checking.subject import Question

UPDATE = {"a": np.ones((2, 2)), "b": np.full(3, 2.0)}


class OfTheResult:
    """Counts its calls beside the data; a class that cannot be called with an array."""

    calls = 0

    def process(self, dxo: Any, shareable: Any = None, fl_ctx: Any = None) -> Any:
        self.calls += 1
        noisy = {name: np.clip(v, -1, 1) + np.random.normal(size=v.shape) for name, v in dxo.data.items()}  # noqa: NPY002
        return type(dxo)(data_kind=dxo.data_kind, data=noisy, meta={**dxo.meta, "calls": self.calls})


class OfTheParcel:
    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        shareable.data = {name: 2 * value for name, value in shareable.data.items()}
        return shareable


class Blocks:
    def process_dxo(self, dxo: Any, shareable: Any, fl_ctx: Any) -> Any:
        return None


def test_a_chain_is_applied_in_its_order() -> None:
    chain = as_function([OfTheParcel(), OfTheParcel()])
    assert chain is not None
    assert chain(UPDATE)["data"]["b"] == pytest.approx(np.full(3, 8.0))
    blocked = as_function([OfTheParcel(), Blocks()])
    assert blocked is not None and blocked(UPDATE) is None


def test_every_play_begins_with_a_fresh_filter_and_calls_of_one_play_share_it() -> None:
    subject = recognises(OfTheResult(), Question(dims=(16,)))
    assert isinstance(subject, ReleaseFunction)
    for _ in range(2):
        played = subject.play(subject.pairs[0].left, 1, calls=2)
        assert [one.numbers["released.meta.calls"][0] for one in played] == [1, 2]
    assert set(subject.pairs[0].left) == {"a", "b"}


def test_other_objects_are_no_filters() -> None:
    for target in (object(), OfTheResult, [], [OfTheResult(), object()], lambda update, rng: update):
        assert as_function(target) is None


def test_a_filter_that_blocks_everything_could_not_be_checked() -> None:
    with pytest.raises(NotTaken, match="number"):
        recognises(Blocks(), Question(dims=(16,)))


@pytest.mark.nvflare
def test_the_package_where_it_is_installed() -> None:
    percentile = importlib.import_module("nvflare.app_common.filters.percentile_privacy")
    subject = recognises(percentile.PercentilePrivacy(), Question(dims=(16,)))
    assert subject is not None and subject.pairs
