"""Opacus loops: sound ones are called sound, and each planted fault is found by its name."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checking import opacus_examples as examples
from checking.renaming import renamed
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader

from fedpriv.checking import checks
from fedpriv.checking.checks import check_object
from fedpriv.checking.generators import seeded
from fedpriv.checking.opacus_loops import OpacusLoop, cost_of, recognises
from fedpriv.checking.opacus_recorder import LoopRecord, Recorder, recording
from fedpriv.checking.sampled import known_laws, sample
from fedpriv.checking.subject import Budget, Claim, Question
from fedpriv.privacy.composition import compose
from fedpriv.privacy.events import Gaussian, PoissonGaussian


def recorded(loop: Callable[[], Any], recorder: Recorder | None = None, seed: int = 0) -> LoopRecord:
    with seeded(seed), recording(recorder or Recorder()) as record:
        loop()
    return record


def said(loop: Callable[..., Any]) -> set[tuple[str, str]]:
    """(name, severity) of all that is not a note."""
    subject = recognises(loop, Question())
    assert isinstance(subject, OpacusLoop)
    findings = [*subject.notes, *(finding for entry in subject.recognised for finding in entry.findings)]
    return {(one.name, one.severity) for one in findings if one.severity != "note"}


@pytest.mark.parametrize("loop", examples.SOUND, ids=lambda one: one.__name__)
@pytest.mark.rotates(3)
def test_a_sound_loop_has_no_fault_and_costs_no_more_than_it_claims(loop: Callable[[], Any]) -> None:
    assert said(loop) == set()
    subject = recognises(loop, Question())
    assert isinstance(subject, OpacusLoop)
    claimed, delta = subject.recognised[0].claimed, subject.recognised[0].delta
    assert claimed is not None and delta is not None
    verified = compose([entry.event for entry in subject.recognised if entry.event], delta).epsilon
    assert 0.8 * claimed < verified <= claimed + 0.02


@pytest.mark.parametrize("loop", examples.FAULTY, ids=lambda one: one.__name__)
@pytest.mark.rotates(3)
def test_a_fault_is_found_by_its_name(loop: Callable[[], Any]) -> None:
    assert (examples.FAULTY[loop], "fault") in said(loop)


def test_a_sampler_of_the_loops_own_and_engines_of_two_data_sets_are_doubts() -> None:
    assert {("assumed", "doubt"), ("account-below-what-ran", "doubt")} & said(examples.own_sampler)
    assert ("account-below-what-ran", "doubt") in said(examples.two_engines)


def test_events_are_of_what_ran() -> None:
    poisson = cost_of(recorded(examples.poisson))
    assert poisson.adjacency == "add-or-remove-one"
    (event,) = poisson.events
    assert isinstance(event, PoissonGaussian)
    assert (event.count, event.multiplier, event.sampling_rate) == (8, 1.0, 0.25)
    fixed = cost_of(recorded(examples.fixed_batches))
    assert fixed.adjacency == "zero-out"
    (whole,) = fixed.events  # one Gaussian for each of two passes
    assert isinstance(whole, Gaussian) and (whole.count, whole.multiplier) == (2, 1.0)
    summed = cost_of(recorded(examples.summed_batches))
    (part,) = summed.events  # two batches in each of four steps
    assert part.count == 8 and math.isclose(part.multiplier, math.sqrt(0.5))  # type: ignore[attr-defined]
    (often,) = cost_of(recorded(examples.with_replacement)).events  # an example may be all of a batch
    assert isinstance(often, Gaussian) and (often.count, often.multiplier) == (8, 1 / examples.BATCH)


def test_pieces_of_one_draw_are_one_batch() -> None:
    (event,) = cost_of(recorded(examples.in_pieces)).events
    assert isinstance(event, PoissonGaussian) and (event.count, event.multiplier) == (8, 1.0)


def test_noise_that_is_measurably_smaller_counts_as_measured() -> None:
    (event,) = cost_of(recorded(examples.half_noise)).events
    assert isinstance(event, PoissonGaussian) and 0.4 < event.multiplier < 0.6


def test_libraries_are_as_before_after_a_recording() -> None:
    def state() -> list[Any]:
        kinds = (DPOptimizer.__init__, UniformWithReplacementSampler.__iter__, torch.autograd.backward)
        accountant = (RDPAccountant.step, RDPAccountant.get_epsilon)
        return [*kinds, *accountant, vars(torch.utils.data.dataloader._BaseDataLoaderIter).get("__next__")]

    before = state()
    recorded(examples.poisson)
    with pytest.raises(ZeroDivisionError):
        recorded(lambda: examples.poisson() and 1 / 0)
    assert state() == before


def test_a_long_loop_is_ended_and_told() -> None:
    def endless() -> None:
        _engine, model, optimiser, loader = examples.made()
        while True:
            examples.epochs(model, optimiser, loader, 1)

    record = recorded(endless, Recorder(steps=5))
    assert record.cut is not None and "5 steps" in record.cut
    assert len(record.noisy) >= 5


def test_what_was_not_compared_is_told() -> None:
    """A loop that leaks after the steps that are executed on neighbouring data, or of data before them, looks sound."""
    subject = recognises(lambda: examples.private(times=8), Question())
    assert isinstance(subject, OpacusLoop) and len(subject.record.steps) == 32
    (told,) = (one.text for one in subject.notes if one.name == "not-shown")
    assert "of its 32 steps were looked at" in told and "before the first batch" in told


def test_a_canary_has_the_law_of_the_loop() -> None:
    subject = recognises(examples.poisson, Question())
    assert isinstance(subject, OpacusLoop) and subject.canary is not None and subject.canary.together > 1
    inside, outside = (subject.trials(present, 4000, 5) for present in (True, False))
    assert inside.shape == (4000, 8)
    # noise of one clip norm, gradients divided by 16 expected examples, a coin of 0.25
    assert abs(outside.std() * 16 - 1) < 0.03 and abs(outside.mean() * 16) < 0.03
    assert abs(inside.mean() * 16 - 0.25) < 0.03


def test_a_sampled_loop_has_a_sharper_bound_by_its_own_law() -> None:
    """Claimed 6.25, verified 5.46 [docs/check_cases.md]; both bounds are below."""
    subject = recognises(examples.poisson, Question())
    assert isinstance(subject, OpacusLoop)
    families, scores = known_laws(subject, subject.pairs[0], {})
    assert [one.name for one in families] == ["sampled Gaussian"] and len(scores) == 1
    found = sample(subject, Question(trials=4000), Budget(30))
    best = found.best()
    assert best is not None and found.sharper is not None
    assert best[1].epsilon_lower < found.sharper.epsilon_lower < 5.46
    assert "sampled as the ledger says" in found.sharper.assumes
    (event,) = (one.event for one in subject.recognised)
    assert isinstance(event, PoissonGaussian)
    subject.recognised = [replace(subject.recognised[0], event=replace(event, multiplier=0.05))]
    assert known_laws(subject, subject.pairs[0], {})[0] == []  # its curves would take minutes


@pytest.mark.parametrize("loop", [examples.poisson, examples.fixed_batches], ids=lambda one: one.__name__)
def test_renaming_a_loop_changes_nothing(loop: Callable[[], Any]) -> None:
    assert said(loop) == said(renamed(loop))


def test_a_loop_that_takes_data_gets_some() -> None:
    def train(pairs: Any) -> Any:
        _engine, model, optimiser, loader = examples.made(loader=DataLoader(pairs, batch_size=16))
        examples.epochs(model, optimiser, loader, 1)
        return model

    subject = recognises(train, Question())
    assert isinstance(subject, OpacusLoop) and len(subject.record.noisy) == 8


@pytest.mark.parametrize("scaled_by", ["its own data", "what is public"])
def test_what_a_loop_computes_of_its_data_before_the_first_batch_is_compared(scaled_by: str) -> None:
    def train(x: Any, y: Any) -> Any:
        mean = x.mean(0) if scaled_by == "its own data" else torch.zeros(x.shape[1])
        source = torch.utils.data.TensorDataset((x - mean).float(), (y > 0).long())
        model = torch.nn.Linear(x.shape[1], 2)
        _engine, model, optimiser, loader = examples.made(model, DataLoader(source, batch_size=32))
        examples.epochs(model, optimiser, loader, 1)
        return model, mean

    wanted = {("number-without-noise", "fault")} if scaled_by == "its own data" else set()
    assert said(train) == wanted


MODEL, ACCOUNTANT = torch.nn.Linear(examples.FEATURES, 2), RDPAccountant()


def of_the_module() -> Any:
    """Trains a model that is there between calls, and goes on with an accountant of the module."""
    model = examples.GradSampleModule(MODEL)
    optimiser = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=16
    )
    optimiser.attach_step_hook(ACCOUNTANT.get_optimizer_hook_fn(sample_rate=1.0))
    examples.epochs(model, optimiser, DataLoader(examples.data(), batch_size=64), 2)
    model.to_standard_module()
    return MODEL, ACCOUNTANT.get_epsilon(1e-5)


def test_models_and_accountants_of_the_module_are_put_back() -> None:
    before = MODEL.weight.detach().clone()
    assert said(of_the_module) == set()
    assert torch.equal(MODEL.weight, before) and not ACCOUNTANT.history


def by_hand(update: Any, rng: Any) -> Any:
    """Clips and adds noise itself; that its module imports Opacus says nothing of it."""
    return update / max(1.0, float((update**2).sum()) ** 0.5) + rng.normal(0, 4.0, update.shape)


def test_functions_in_which_no_private_optimiser_steps_are_left_to_other_adapters() -> None:
    assert recognises(math.sqrt, Question()) is None
    assert recognises(by_hand, Question()) is None
    claim = Claim(1.0, 1e-5, adjacency="zero-out")
    said = check_object(by_hand, Question(claim=claim, dims=(8,), trials=400), seconds=15)
    assert (said.verdict, said.kind) == ("no fault found", "release function")


ELSEWHERE = """
import importlib

def train():
    return importlib.import_module("parts_of_a_loop").run()

def train_on(data=None):
    return importlib.import_module("parts_of_a_loop").run(data)
"""
PARTS = """
import sys
from checking import opacus_examples as examples
from torch.utils.data import DataLoader

def run(data=None):
    sys.modules["comes_late"] = examples
    loader = DataLoader(data, batch_size=16) if data is not None else None
    engine, model, optimiser, loader = examples.made(loader=loader)
    examples.epochs(model, optimiser, loader, 1)
    return model
"""


@pytest.mark.parametrize("name", ["train", "train_on"])
@pytest.mark.parametrize("late", [True, False])
def test_a_loop_whose_opacus_is_imported_elsewhere_is_recorded(
    name: str, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """late: only when the loop is called."""
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    (tmp_path / "parts_of_a_loop.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("elsewhere", "parts_of_a_loop", "comes_late"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(checks, "ADAPTERS", (("fedpriv.checking.opacus_loops", "comes_late" if late else "opacus"),))
    subject = checks.subject_of(getattr(importlib.import_module("elsewhere"), name), Question())
    assert isinstance(subject, OpacusLoop) and subject.record.noisy
    monkeypatch.delitem(sys.modules, "comes_late")


def own_noise(data: Any, multiplier: float, steps_of: str) -> Any:
    """A linear model by rows' gradients that a piece of Opacus gives, clipped by hand to 1; noise of 8 by hand."""
    rows, wanted = data
    model = examples.GradSampleModule(torch.nn.Linear(rows.shape[1], 1, bias=False))
    torch.nn.init.zeros_(model._module.weight)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    private = DPOptimizer(plain, noise_multiplier=multiplier, max_grad_norm=1.0, expected_batch_size=len(rows))
    for _ in range(2):
        private.zero_grad()
        ((model(rows).reshape(-1) - wanted.reshape(-1)) ** 2).sum().backward()
        (weight,) = model.parameters()
        if steps_of == "a plain optimiser":
            each = weight.grad_sample.flatten(1)
            each = each / each.norm(dim=1, keepdim=True).clamp(min=1)
            weight.grad, weight.grad_sample = (each.sum(0) + 8 * torch.randn(each.shape[1])).view_as(weight), None
            plain.step()
        else:
            private.step()
            weight.data += 0.8 * torch.randn_like(weight)
    return weight.detach().clone()


@pytest.mark.parametrize("steps_of", ["a plain optimiser", "a private one without noise"])
def test_a_loop_with_noise_of_its_own_is_judged_by_what_leaves(steps_of: str) -> None:
    """mu 1/8 twice: epsilon 0.62."""

    def train(data: Any) -> Any:
        if steps_of == "a plain optimiser":  # a private optimiser steps as well
            examples.epochs(*examples.made()[1:], 1)
        return own_noise(data, 0.0, steps_of)

    asked = Question(claim=Claim(0.7, 1e-5, adjacency="zero-out"), trials=400)
    assert recognises(train, asked) is None
    assert check_object(train, asked, seconds=15).verdict == "no fault found"
