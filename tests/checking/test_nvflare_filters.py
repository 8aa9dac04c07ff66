"""NVFlare filters as targets, by their interface. The package itself is used where it is installed."""

from __future__ import annotations

import importlib
import math
import sys
import types
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
import pytest

from fedpriv.checking.flower_messages import Trained
from fedpriv.checking.flower_updates import LARGE, plain
from fedpriv.checking.nvflare_filters import FilterSubject, recognises
from fedpriv.checking.nvflare_known import sparse_vector_epsilon
from fedpriv.checking.subject import Question

QUESTION = Question(dims=(16,))
UP, DOWN = Trained(plain(16, LARGE)), Trained(plain(16, -LARGE))


def subject(target: Any, question: Question = QUESTION) -> FilterSubject:
    found = recognises(target, question)
    assert isinstance(found, FilterSubject)
    return found


class Clipping:
    """Clips each number, and adds noise where it is asked to; a lock cannot be copied."""

    def __init__(self, std: float = 0.0) -> None:
        self.std, self.lock, self.calls = std, Lock(), 0

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        self.calls += 1
        data = shareable["DXO"]["data"]
        for name, value in data.items():
            noise = np.random.normal(size=value.shape) * self.std  # noqa: NPY002
            data[name] = np.clip(value, -0.01, 0.01) + noise
        shareable["DXO"]["meta"]["calls"] = self.calls
        fl_ctx.set_prop("seen", True)
        return shareable


class ByAttributes:
    """Reads and writes a DXO by its attributes, and blocks what it does not know."""

    def process(self, dxo: Any, fl_ctx: Any) -> Any:
        if dxo.data_kind != "WEIGHT_DIFF" or fl_ctx.get_prop("seen") is False:
            return None
        dxo.data = {name: 0 * value for name, value in dxo.data.items()}
        dxo.set_meta_prop("steps", dxo.get_meta_prop("NUM_STEPS_CURRENT_ROUND"))
        return dxo


def test_a_filter_is_played_with_copies_and_rounds_share_one() -> None:
    found = subject(Clipping(std=0.1))
    for _ in range(2):
        assert [one.numbers["meta.calls"][0] for one in found.play(UP, 1, calls=3)] == [1.0, 2.0, 3.0]
    one, other = (found.play(data, 1)[0].numbers["arrays.weight"] for data in (UP, DOWN))
    assert np.abs(one - other) == pytest.approx(0.02)
    assert not np.array_equal(one, found.play(UP, 2)[0].numbers["arrays.weight"])


def test_a_chain_is_applied_in_order_and_a_blocked_result_is_told() -> None:
    numbers = subject([Clipping(), ByAttributes()]).play(UP, 1)[0].numbers
    assert not numbers["arrays.weight"].any()
    assert numbers["meta.steps"].tolist() == [1.0]

    class Blocking:
        def process(self, dxo: Any, fl_ctx: Any) -> None:
            return None

    assert set(subject([Blocking(), Clipping()]).play(UP, 1)[0].numbers) == {"form.blocked"}


def test_metrics_beside_the_arrays_are_told() -> None:
    assert "metrics-bare" in {one.name for one in subject(Clipping(std=0.1)).notes}


@dataclass
class Result:
    """A project's own class of results; it does not have the package's attributes."""

    kind: str
    arrays: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)


class TakesResult:
    """``process(dxo, shareable, fl_ctx)``; gives back the class of results that it is told."""

    def __init__(self, makes: Any = None) -> None:
        self.makes = makes

    def process(self, dxo: Any, shareable: Any = None, fl_ctx: Any = None) -> Any:
        assert fl_ctx.get_identity_name() and shareable is not None
        data = {name: value + np.random.normal(size=value.shape) for name, value in dxo.data.items()}  # noqa: NPY002
        return self.makes(dxo.data_kind, data) if self.makes else data


class TakesOwn:
    def process_dxo(self, found: Result, shareable: Any, fl_ctx: Any) -> Result:
        return Result(
            found.kind, {name: 0 * value for name, value in found.arrays.items()}, {"steps": 3, **found.facts}
        )


class ReadsFirst:
    """``process`` with the result alone, or with its arrays alone."""

    def process(self, arrays: Any) -> Any:
        return {name: np.asarray(value) * 2 for name, value in arrays.items() if np.ndim(value)}


@pytest.mark.parametrize("makes", [None, Result])
def test_a_filter_of_the_result_itself_is_played(makes: Any) -> None:
    found = subject(TakesResult(makes))
    one, other = (found.play(UP, seed)[0].numbers for seed in (1, 2))
    assert any(value.size > 1 and not np.array_equal(value, other[name]) for name, value in one.items())
    assert {name for name in one if name.endswith((".weight", ".bias"))}


def test_a_projects_own_class_of_results_is_made_by_its_annotation() -> None:
    numbers = subject(TakesOwn()).play(UP, 1)[0].numbers
    assert numbers["arrays.facts.steps"].tolist() == [3.0]
    assert not numbers["arrays.arrays.weight"].any()


def test_a_filter_of_one_argument_is_played() -> None:
    numbers = subject(ReadsFirst()).play(UP, 1)[0].numbers
    assert numbers["arrays.weight"] == pytest.approx(2 * UP.update["weight"].ravel())


def test_other_objects_are_no_filters() -> None:
    for target in (object(), Clipping, [], lambda update, rng: update):
        assert recognises(target, QUESTION) is None


# --- the sparse vector technique -----------------------------------------------------------------------------


class Sparse:
    """The technique as the package documents it: one noisy threshold, passes until enough numbers are above."""

    def __init__(self, epsilon: float = 0.8, gamma: float = 1e-5, fraction: float = 0.1, release: float = 1.0) -> None:
        self.epsilon, self.gamma, self.fraction, self.epsilon_release = epsilon, gamma, fraction, release
        self.lines: list[dict[str, Any]] = []

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        self.process_dxo(shareable, shareable, fl_ctx)
        return shareable

    def process_dxo(self, dxo: Any, shareable: Any, fl_ctx: Any) -> Any:
        flat = np.concatenate([value.ravel() for value in dxo.data.values()]).astype(float)
        c = math.ceil(self.fraction * len(flat))
        first = self.epsilon / (1 + (2 * c) ** (2 / 3))
        second, rng = self.epsilon - first, np.random  # the generator of the process
        threshold = rng.laplace(scale=self.gamma / first)
        values, accepted = np.clip(flat, -self.gamma, self.gamma), np.zeros(len(flat), bool)
        while accepted.sum() < c:
            noisy = np.abs(values) + rng.laplace(scale=2 * self.gamma * c / second, size=len(flat))
            accepted |= noisy >= threshold
        chosen = rng.choice(np.flatnonzero(accepted), size=c, replace=False)
        out = np.zeros(len(flat))
        out[chosen] = values[chosen] + rng.laplace(scale=2 * self.gamma * c / self.epsilon_release, size=c)
        place = 0
        for name, value in dxo.data.items():
            dxo.data[name] = out[place : place + value.size].reshape(value.shape)
            place += value.size
        line = {"n_upload": c, "epsilon_threshold": first, "epsilon_query": second}
        total = self.epsilon + self.epsilon_release
        self.lines.append({**line, "epsilon_release": self.epsilon_release, "epsilon_total": total})
        return dxo

    def get_privacy_ledger(self) -> list[dict[str, Any]]:
        return self.lines


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's module, with the technique above in it."""
    name = "nvflare.app_common.filters.svt_privacy"
    module = types.ModuleType(name)
    module.SVTPrivacy = Sparse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)


def test_the_packages_own_ledger_is_the_claim_and_the_bound_pays_for_all_that_are_accepted(package: None) -> None:
    (known,) = subject(Sparse(), Question(dims=(16, 100))).recognised
    assert known.claimed == pytest.approx(1.8)
    first = 0.8 / (1 + 20 ** (2 / 3))
    assert known.event is not None
    assert known.event.pure_epsilon() == pytest.approx(first + (0.8 - first) * 10 + 1.0)
    assert {one.name for one in known.findings} == {"more-accepted-than-paid-for"}


def test_a_class_that_processes_its_own_way_is_not_recognised(package: None) -> None:
    class Own(Sparse):
        def process_dxo(self, dxo: Any, shareable: Any, fl_ctx: Any) -> Any:
            return dxo

    assert not subject(Own()).recognised


def accepted_loss(many: int, first: float, second: float, gamma: float = 1.0) -> float:
    """log of the ratio of two neighbours' chances that the first pass accepts the second ``many`` of twice as many
    numbers and none of the first, c = 1, by integrating over the threshold. The neighbours swap 0 and gamma.
    """
    scale = 2 * gamma / second
    rho = np.linspace(-60 / first, 60 / first, 400_001)
    law = np.exp(-np.abs(rho) * first / gamma) * first / (2 * gamma)

    def above(value: float) -> Any:
        tail = 0.5 * np.exp(-np.abs(rho - value) / scale)
        return np.where(rho > value, tail, 1 - tail)

    def chance(below: float, over: float) -> float:
        return float(np.trapezoid(law * (1 - above(below)) ** many * above(over) ** many, rho))

    return math.log(chance(0.0, gamma) / chance(gamma, 0.0))


@pytest.mark.parametrize("many", [1, 2, 8, 32])
@pytest.mark.parametrize(("first", "second"), [(0.05, 1.0), (0.5, 0.5), (1.0, 4.0)])
def test_the_bound_pays_for_all_accepted_numbers_by_the_exact_law(many: int, first: float, second: float) -> None:
    loss = accepted_loss(many, first, second)
    assert loss <= sparse_vector_epsilon(2 * many, 1, first, second, 0.0)
    if many >= 8:
        assert loss > first + second  # what the budget would be, were a pass to stop at c


# --- the package itself --------------------------------------------------------------------------------------


@pytest.mark.nvflare
def test_the_package_where_it_is_installed() -> None:
    svt = importlib.import_module("nvflare.app_common.filters.svt_privacy")
    percentile = importlib.import_module("nvflare.app_common.filters.percentile_privacy")
    (known,) = subject(svt.SVTPrivacy(), Question(dims=(100,))).recognised
    assert known.claimed == pytest.approx(0.1 + 10 * 0.1)
    assert known.event is not None
    assert "budget-grows-with-the-model" in {one.name for one in known.findings}
    (bare,) = subject(percentile.PercentilePrivacy()).recognised
    assert bare.event is None
