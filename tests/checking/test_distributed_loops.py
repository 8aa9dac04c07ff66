"""Distributed Opacus loops, played as one worker of a group that is not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from checking import opacus_examples as examples
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader, DistributedSampler

from fedpriv.checking.findings import Finding
from fedpriv.checking.loop_workers import Group, noise_of_workers
from fedpriv.checking.opacus_loops import OpacusLoop, recognises
from fedpriv.checking.subject import Question


def trained(loader: DataLoader[Any], poisson: bool = True) -> Any:
    engine, model = PrivacyEngine(accountant="rdp"), DPDDP(examples.net())
    model, optimiser, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=poisson,
    )  # fmt: skip
    examples.epochs(model, optimiser, loader, 1)
    return model, engine.get_epsilon(1e-5)


def needs_a_group() -> Any:
    return trained(DataLoader(examples.data(), batch_size=examples.BATCH))


def starts_a_group(rank: int, world_size: int) -> Any:
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    try:
        return trained(DataLoader(examples.data(), batch_size=examples.BATCH))
    finally:
        dist.destroy_process_group()


def fixed_batches() -> Any:
    data = examples.data()
    return trained(DataLoader(data, batch_size=examples.BATCH, sampler=DistributedSampler(data)), poisson=False)


def shared(noise: Any) -> Any:
    """An own sum over workers, each of which adds noise of its own."""
    model = DPDDP(examples.net())
    loader = DataLoader(examples.data(), batch_size=examples.BATCH)
    wrapped = examples.GradSampleModule(model)
    optimiser = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=noise(dist.get_world_size()), max_grad_norm=1.0,
        expected_batch_size=examples.BATCH,
    )  # fmt: skip
    examples.epochs(wrapped, optimiser, loader, 1)
    return model


def divided_noise() -> Any:
    return shared(lambda workers: 1.0 / workers)


def root_of_the_noise() -> Any:
    return shared(lambda workers: 1.0 / workers**0.5)


def said(loop: Any) -> list[Finding]:
    subject = recognises(loop, Question())
    assert isinstance(subject, OpacusLoop) and subject.record.private_steps
    assert not dist.is_initialized()
    return [*subject.notes, *(finding for entry in subject.recognised for finding in entry.findings)]


def named(findings: list[Finding], severity: str) -> set[str]:
    return {one.name for one in findings if one.severity == severity}


@pytest.mark.parametrize("loop", [needs_a_group, starts_a_group], ids=lambda one: one.__name__)
def test_a_distributed_loop_is_played_as_its_first_worker(loop: Any) -> None:
    found = said(loop)
    assert named(found, "fault") == set()
    assert any("one worker alone was played" in one.text for one in found)


def test_fixed_batches_of_workers_are_no_poisson_samples() -> None:
    assert "fixed-batches-priced-as-poisson" in {one.name for one in said(fixed_batches)}


def test_the_noise_of_all_workers_together_is_that_of_one() -> None:
    assert "noise-of-workers-too-small" in named(said(divided_noise), "fault")
    assert "noise-of-workers-too-small" not in {one.name for one in said(root_of_the_noise)}


def test_a_group_is_there_where_one_is_asked_for_and_gone_afterwards() -> None:
    group = Group(rank=1, workers=2)
    with group.standing():
        assert not dist.is_initialized()
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size()) == (1, 2) and group.asked
        number = torch.ones(3)
        dist.all_reduce(number)
        assert torch.equal(number, torch.ones(3))
    assert not dist.is_initialized() and dist.init_process_group.__module__.startswith("torch.distributed")
    assert not Group().learn(ValueError("of something else"))
    assert list(noise_of_workers(lambda rank, workers, seed: examples_without_steps())) == []


def examples_without_steps() -> Any:
    from fedpriv.checking.loop_record import LoopRecord

    return LoopRecord()
