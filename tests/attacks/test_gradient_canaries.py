"""Canaries in real runs: what they find where they should, never more than what is verified, and what few coins say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run

from fedpriv.attacks.auditing import TrainingAudit, against_verified
from fedpriv.attacks.client_canaries import audit_training
from fedpriv.attacks.fit_audit import FitAudit
from fedpriv.attacks.gradient_canaries import GradientCanaryWorker, WithCanaries, log_ratio
from fedpriv.commands.audit import main
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.privacy.auditor import Audit
from fedpriv.privacy.canaries import CanaryAudit
from fedpriv.runs.planning import make_plan
from fedpriv.training.sequential import Clipping

CONFIDENCE = 0.99


def small(sigma: float, rounds: int, *more: str) -> Any:
    """Four clients with some 350 pictures each, half of them canaries."""
    size = ("num_clients=4", "clients_per_round=4", f"num_rounds={rounds}", "local.batch_size=60", "evaluate.every=0")
    return compose(["strategy=dpsgd", *size, f"strategy.client.noise_multiplier={sigma}", *more])


def verified(config: Any) -> float:
    return make_plan(config, Worker(config)).verified_epsilon


@pytest.mark.parametrize(
    ("sigma", "rounds", "least", "more"),
    [
        (4.0, 10, 0.0, ()),
        (1.0, 20, 0.3, ()),
        (0.5, 10, 1.0, ("strategy.client.local_steps=2",)),
        (0.5, 10, 0.8, ("model=mlp", "engine.trainer=vectorised")),
        (0.3, 20, 2.0, ()),
        (1.0, 10, 0.1, ("strategy.client.clipping=adaptive",)),
    ],
)
def test_canary_gradients_find_something_and_never_too_much(
    sigma: float, rounds: int, least: float, more: tuple[str, ...]
) -> None:
    config = small(sigma, rounds, *more)
    found = audit_training(config, confidence=CONFIDENCE, seed=0)
    assert least <= found.epsilon_lower <= min(verified(config), found.attainable) and found.canaries > 500


@pytest.mark.parametrize("strategy", ["anr", "dpfl_agn"])
def test_canary_gradients_of_other_optimizers(strategy: str) -> None:
    config = small(0.5, 10, f"strategy={strategy}")
    assert 0.1 < audit_training(config, confidence=CONFIDENCE, seed=0).epsilon_lower <= verified(config)


def no_noise(value: Any, sigma: Any, noise: Any) -> Any:
    return value


def a_tenth(value: torch.Tensor, sigma: float, noise: Any) -> torch.Tensor:
    return value + noise.normal(tuple(value.shape), sigma / 10)


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("clients.dpfl_agn.add_normal_finely", no_noise),
        ("clients.dpfl_agn.add_normal_finely", a_tenth),
        ("fedpriv.mechanisms.per_example.clip_factors", lambda norms, bound: torch.ones_like(norms)),
        ("fedpriv.client.method.Method.noise", lambda self, *key: SILENT),
    ],
)
def test_planted_faults_are_contradicted(place: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(8.0, 10)
    assert audit_training(config, confidence=CONFIDENCE, seed=0).verdict(verified(config)) == "consistent"
    monkeypatch.setattr(place, fault)
    assert audit_training(config, confidence=CONFIDENCE, seed=0).verdict(verified(config)) == "contradicts"


class Silent:
    """A noise source that returns zeros."""

    def normal(self, shape: Any, std: float = 1.0) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float64)

    def __getattr__(self, name: str) -> Any:
        return lambda shape, *rest: torch.zeros(shape, dtype=torch.float64)


SILENT = Silent()


def test_a_batch_with_canaries_is_clipped_and_counted_like_any_other() -> None:
    config = small(1.0, 1)
    worker, plain = GradientCanaryWorker(config, 0, 0), Worker(config)
    canaries = worker.canaries[0]
    batch = worker.local_data(0, np.arange(100))
    assert isinstance(batch, WithCanaries)
    mine = canaries.positions < 100
    assert len(batch) == 100 - mine.sum() + (mine & canaries.present).sum()
    theta = worker.initial_model
    (found,) = worker.trainer.clipped_sums([Clipping(theta, batch, 0.5)])
    ordinary = plain.trainer.clipped_sum(
        theta, plain.local_data(0, np.setdiff1d(np.arange(100), canaries.positions)), 0.5
    )
    beyond = found.total - ordinary.total
    there = canaries.coordinates[mine & canaries.present]
    assert len(found.norms) == len(batch) and (found.norms[-len(there) :] == 5.0).all()
    assert beyond[there].numpy() == pytest.approx(0.5 * (1 - 2**-10))
    assert np.count_nonzero(beyond.numpy()) == len(there) == len(np.unique(there))
    assert 0.4 < np.concatenate([one.present for one in worker.canaries]).mean() < 0.6
    again = GradientCanaryWorker(config, 0, 1).canaries[0]
    assert (again.present != canaries.present).any() and (again.positions != canaries.positions).any()


def test_the_score_is_the_likelihood_ratio() -> None:
    """Written out for two steps at rate 0.3 and noise 2: absent N(0, 1), present N(j m, 1) of the sum over sqrt(2)."""
    x, rate, sigma = 1.7, 0.3, 2.0

    def density(mean: float) -> float:
        return math.exp(-((x - mean) ** 2) / 2)

    m = 1 / (sigma * math.sqrt(2))
    present = 0.7**2 * density(0) + 2 * 0.3 * 0.7 * density(m) + 0.3**2 * density(2 * m)
    expected = math.log(present / density(0))
    assert log_ratio(np.array([x]), sigma, rate, 2) == pytest.approx([expected])
    assert np.isfinite(log_ratio(np.array([1e9, -1e9]), 0.001, 0.1, 1)).all()


# --- few coins -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [5, 10, 40])
def test_few_clients_are_audited_in_several_runs(clients: int) -> None:
    size = (f"num_clients={clients}", f"clients_per_round={clients}", "num_rounds=2", "local.batch_size=2")
    config = compose(["strategy=fedldp", *size, "strategy.client.noise_multiplier=0.5", "evaluate.every=0"])
    found = audit_training(config, confidence=0.95, seed=0)
    assert found.runs == math.ceil(100 / clients) and found.canaries == clients * found.runs
    assert 1 < found.epsilon_lower <= found.attainable < verified(config)
    assert found.verdict(verified(config)) == "cannot tell"
    assert f"{found.runs} runs" in str(found) and f"would have shown {found.attainable:.3g}" in str(found)


def test_verdicts_against_what_is_verified() -> None:
    assert against_verified(2.0, 3.0, 1.9) == "contradicts the verified epsilon"
    assert against_verified(1.0, 3.0, 2.9) == "consistent with the verified epsilon"
    assert against_verified(1.0, 3.0, 3.1) == against_verified(2.9, 3.0, math.inf) == "cannot tell"


def test_a_contradiction_is_printed_stored_and_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run("strategy=dpsgd", "num_rounds=1")
    canaries = CanaryAudit(5.0, 0.95, 1e-5, 700, 700, 699, 5.1)
    fits = FitAudit("one release", Audit(0.5, 0.95, 1000, 1e-5, 0.1, 0.2, "linear score above 0", 0.5), 90.0)
    found = TrainingAudit(canaries, 1.0, fits)
    monkeypatch.setattr("fedpriv.attacks.auditing.audit_training_of", lambda config, options: found)
    assert main([f"run={folder}", "level=training"]) == 1
    said = capsys.readouterr().out
    assert "verified epsilon <= 1: contradicts the verified epsilon" in said
    assert "verified epsilon <= 90: cannot tell" in said  # 1,000 trials could not have shown so much
    page = (folder / "report.html").read_text()
    assert "Verdict: contradicts the verified epsilon" in page and "shown at most 5.1" in page
