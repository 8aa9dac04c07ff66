"""Local training against plain loops over torch's own optimiser; the law of the batches."""

from __future__ import annotations

import making
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.federation import client_data, linear_model, make_site, take_part
from reference.local_sgd import plain_sgd
from scipy import stats
from torch import nn

from clients.fedavg import FedAvgClient
from clients.fedprox import FedProxClient
from fedpriv.config.schema import LocalConfig
from fedpriv.training.sequential import FlatModel, LocalData, SequentialTrainer, Training, draw_batches


def local(**changes: object) -> LocalConfig:
    return LocalConfig(**{"epochs": 2, "batch_size": 8, "lr": 0.2, "momentum": 0.0, "sampler": "poisson"} | changes)  # type: ignore[arg-type]


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def drift_of(theta: torch.Tensor, client: int) -> torch.Tensor:
    """Of the size of a gradient."""
    return 0.1 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(client))


# --- SGD -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["poisson", "shuffle"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("proximal_mu", "drifting"), [(0.0, False), (0.5, False), (0.5, True)])
def test_training_is_plain_sgd(sampler: str, momentum: float, proximal_mu: float, drifting: bool) -> None:
    """Two epochs, so that momentum and further terms matter; autograd differentiates the twin's whole loss."""
    config, data = local(sampler=sampler, momentum=momentum), client_data(1)
    theta = linear_model().theta.clone()
    drift = drift_of(theta, 1) if drifting else None
    found = SequentialTrainer(linear_model(), config).train(Training(theta, data, rng(), proximal_mu, drift))
    batches = list(draw_batches(config, len(data), rng()))
    expected, loss = plain_sgd(
        linear_model().module, theta, data.inputs, data.targets, batches, config.lr, momentum, proximal_mu, drift
    )
    assert torch.allclose(found.update, expected, atol=2e-6)
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert float(found.update.norm()) > 0.1


def test_momentum_and_term_change_the_result() -> None:
    """So that the comparison above could fail."""
    theta, data = linear_model().theta.clone(), client_data(1)
    updates = [
        SequentialTrainer(linear_model(), local(momentum=momentum)).train(Training(theta, data, rng(), mu)).update
        for momentum, mu in ((0.0, 0.0), (0.9, 0.0), (0.0, 0.5))
    ]
    assert all(float((one - updates[0]).norm()) > 1e-2 for one in updates[1:])


def test_without_its_term_fedprox_is_fedavg() -> None:
    theta = linear_model().theta.numpy().copy()
    plain = take_part(making.client(FedAvgClient, site=make_site()), 1, theta)
    assert np.array_equal(plain, take_part(making.client(FedProxClient, proximal_mu=0.0, site=make_site()), 1, theta))
    assert not np.allclose(
        plain, take_part(making.client(FedProxClient, proximal_mu=1.0, site=make_site()), 1, theta), atol=1e-3
    )


def test_a_large_term_keeps_the_client_near_the_global_model() -> None:
    theta, data = linear_model().theta.clone(), client_data(1)
    norms = [
        float(SequentialTrainer(linear_model(), local(lr=0.05)).train(Training(theta, data, rng(), mu)).update.norm())
        for mu in (0.0, 1.0, 10.0)
    ]
    assert norms[0] > norms[1] > norms[2] > 0


def test_one_client_after_the_other_leaves_nothing_behind() -> None:
    """The model is built once per process: parameters, gradients and momentum of the last client must be gone."""
    trainer, theta = SequentialTrainer(linear_model(), local(momentum=0.9)), linear_model().theta.clone()
    first = trainer.train(Training(theta, client_data(1), rng())).update
    trainer.train(Training(theta + 1, client_data(2), rng(2)))
    assert torch.equal(trainer.train(Training(theta, client_data(1), rng())).update, first)
    assert torch.equal(theta, linear_model().theta)  # and the global parameters are untouched


def test_random_layers_follow_the_clients_own_generator() -> None:
    def dropout() -> FlatModel:
        module = nn.Sequential()
        module.add_module("hidden", nn.Sequential(nn.Flatten(), nn.Dropout(0.5)))
        module.add_module("head", nn.Linear(9, 3))
        return FlatModel(module)

    model, data = dropout(), client_data(1)
    theta = model.theta.clone()
    updates = []
    for state, seed in ((1, 1), (2, 1), (1, 3)):
        torch.manual_seed(state)
        before = torch.random.get_rng_state()
        updates.append(SequentialTrainer(model, local(batch_size=40)).train(Training(theta, data, rng(seed))).update)
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(updates[0], updates[1]) and not torch.equal(updates[0], updates[2])


# --- empty batches ---------------------------------------------------------------------------------------


def test_an_empty_batch_is_a_skipped_step() -> None:
    config = local(batch_size=1, epochs=3, momentum=0.5)
    data = LocalData(client_data(1).inputs[:4], client_data(1).targets[:4])
    seed = next(s for s in range(50) if {len(b) == 0 for b in draw_batches(config, 4, rng(s))} == {True, False})
    batches = list(draw_batches(config, 4, rng(seed)))
    theta = linear_model().theta.clone()
    found = SequentialTrainer(linear_model(), config).train(Training(theta, data, rng(seed)))
    expected, loss = plain_sgd(linear_model().module, theta, data.inputs, data.targets, batches, config.lr, 0.5)
    assert torch.allclose(found.update, expected, atol=2e-6) and found.loss == pytest.approx(loss, rel=1e-5)


def test_nothing_but_empty_batches_and_no_examples_are_a_zero_update() -> None:
    config = local(batch_size=1, epochs=1)
    one = LocalData(client_data(1).inputs[:2], client_data(1).targets[:2])
    seed = next(s for s in range(100) if not any(len(b) for b in draw_batches(config, 2, rng(s))))
    none = LocalData(torch.zeros(0, 1, 3, 3), torch.zeros(0, dtype=torch.int64))
    for data, generator in ((one, rng(seed)), (none, rng())):
        found = SequentialTrainer(linear_model(), config).train(Training(linear_model().theta.clone(), data, generator))
        assert found.loss == 0.0 and torch.equal(found.update, torch.zeros_like(found.update))


# --- batches ---------------------------------------------------------------------------------------------


def test_poisson_batches_are_binomial() -> None:
    """Batch sizes follow Binomial(n, q); every example comes at rate q, examples independently of each other."""
    examples, size, epochs = 30, 6, 4_000
    batches = list(draw_batches(local(batch_size=size, epochs=epochs), examples, rng()))
    q, n = size / examples, len(batches)
    assert n == epochs * 5  # E * round(1/q)
    sizes = np.bincount([len(batch) for batch in batches], minlength=examples + 1)
    expected = n * stats.binom.pmf(np.arange(examples + 1), examples, q)
    usual = expected >= 5
    observed = np.append(sizes[usual], sizes[~usual].sum())
    assert stats.chisquare(observed, np.append(expected[usual], expected[~usual].sum())).pvalue > 1e-3
    member = np.zeros((n, examples))
    for row, batch in enumerate(batches):
        assert len(set(batch.tolist())) == len(batch)
        member[row, batch] = 1
    margin = stats.norm.isf(1e-6)
    assert np.abs(member.mean(0) - q).max() < margin * np.sqrt(q * (1 - q) / n)
    correlations = np.corrcoef(member.T)[np.triu_indices(examples, 1)]
    assert np.abs(correlations).max() < margin / np.sqrt(n)
    along = np.corrcoef(member[:-1].ravel(), member[1:].ravel())[0, 1]  # batch after batch: with replacement
    assert abs(along) < margin / np.sqrt(n * examples)


@pytest.mark.parametrize(
    ("examples", "size", "steps"), [(600, 60, 10), (599, 60, 10), (5, 8, 1), (100, 30, 3), (7, 7, 1)]
)
def test_number_of_poisson_steps_is_one_over_q(examples: int, size: int, steps: int) -> None:
    batches = list(draw_batches(local(batch_size=size, epochs=2), examples, rng()))
    assert len(batches) == 2 * steps
    if size >= examples:
        assert all(len(batch) == examples for batch in batches)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 3), st.integers(0, 2**32))
def test_a_shuffled_epoch_sees_every_example_once(examples: int, size: int, epochs: int, seed: int) -> None:
    batches = list(draw_batches(local(batch_size=size, epochs=epochs, sampler="shuffle"), examples, rng(seed)))
    per_epoch = -(-examples // size)
    assert len(batches) == epochs * per_epoch
    for epoch in range(epochs):
        rows = np.concatenate(batches[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(rows.tolist()) == list(range(examples))
    assert all(len(batch) <= size for batch in batches)
