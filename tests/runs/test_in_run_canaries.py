"""Canaries within a run: the run stays as it is, the bounds are sound, and faults of the run's own code are seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.runs.in_run_canaries import InRunAudit
from fedpriv.runs.start import start_run

SIZE = ("num_clients=4", "clients_per_round=4", "num_rounds=3", "evaluate.every=0", "engine=inprocess")
NO_REPORT = ("operations.report=false", "checkpoint.every=0")


def run(path: Path, *options: str) -> dict[str, Any]:
    return start_run(compose([*SIZE, *NO_REPORT, *options]), path)


def model(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


FEDLDP = ("strategy=fedldp", "strategy.client.noise_multiplier=1")
DPSGD = ("strategy=dpsgd", "strategy.client.noise_multiplier=0.5", "local.batch_size=60")


@pytest.mark.parametrize("options", [FEDLDP, DPSGD, (*FEDLDP, "engine.trainer=vectorised")])
def test_the_run_is_the_same_with_and_without_canaries(options: tuple[str, ...], tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", *options)
    heard = run(tmp_path / "heard", *options, "audit.in_run=true", "audit.canaries=64")
    assert model(tmp_path / "plain") == model(tmp_path / "heard")
    for name in ("ledger.jsonl",):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "heard" / name).read_bytes()
    assert plain["accuracy"] == heard["accuracy"]
    assert plain["privacy"]["verified_epsilon"] == heard["privacy"]["verified_epsilon"]
    found = heard["privacy"]["in_run_audit"]
    assert found["requests"] == 3 and found["canaries"] >= 64 and "in_run_audit" not in plain["privacy"]
    assert found["audited_epsilon"] <= found["verified_epsilon"]
    assert found["verdict"] != "contradicts the verified epsilon"
    assert json.loads((tmp_path / "heard" / "summary.json").read_text())["privacy"]["audited_on"]


@pytest.mark.parametrize(("options", "least"), [(FEDLDP, 2.0), (DPSGD, 0.5)])
def test_the_bounds_show_something_and_never_too_much(options: tuple[str, ...], least: float, tmp_path: Path) -> None:
    found = run(tmp_path / "run", *options, "audit.in_run=true", "audit.canaries=600")["privacy"]["in_run_audit"]
    (sharper,) = found["sharper"]
    assert least <= found["audited_epsilon"] <= found["verified_epsilon"]
    assert least <= sharper["epsilon_lower"] <= found["verified_epsilon"]
    assert sharper["assumes"] and sharper["epsilon_lower"] <= sharper["attainable"]


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("clients.fedldp.add_normal", (*FEDLDP, "strategy.client.noise_multiplier=20")),
        ("fedpriv.client.example_level.add_normal_finely", (*DPSGD, "strategy.client.noise_multiplier=4")),
    ],
)
def test_missing_noise_is_contradicted(
    place: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twentieth of the noise, in the run's own code."""
    import importlib

    module, name = place.rsplit(".", 1)
    real = getattr(importlib.import_module(module), name)
    monkeypatch.setattr(place, lambda value, sigma, noise: real(value, sigma / 20, noise))
    found = run(tmp_path / "run", *options, "audit.in_run=true", "audit.canaries=200")["privacy"]["in_run_audit"]
    assert found["verdict"] == "contradicts the verified epsilon"


def test_who_sees_no_messages_has_no_canary_clients_and_the_summary_says_why(tmp_path: Path) -> None:
    sampling = ("strategy.client.form=central", "strategy.server.client_sampling=poisson")
    options = ("strategy=dpfedavg", *sampling, "audit.in_run=true")
    found = run(tmp_path / "run", *options)["privacy"]
    assert "trusted-server" in found["in_run_audit"]["reason"] and found["audited_epsilon"] is None


def test_a_failing_audit_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*others: Any) -> None:
        raise RuntimeError("no memory left")

    monkeypatch.setattr("fedpriv.runs.in_run_canaries.CanaryClients.ask", broken)
    found = run(tmp_path / "run", *FEDLDP, "audit.in_run=true")["privacy"]
    assert "no memory left" in found["in_run_audit"]["reason"] and found["audited_epsilon"] is None


@pytest.mark.parametrize("wrong", ["audit.canaries=3", "audit.confidence=1", "audit.in_run=7"])
def test_wrong_options_are_named(wrong: str) -> None:
    with pytest.raises(OptionError, match=wrong.partition("=")[0]):
        compose([wrong])


def test_canaries_are_a_number_of_the_options_alone() -> None:
    config = compose([*SIZE, *FEDLDP, "audit.in_run=true"])
    first, second = (InRunAudit(Worker(config)).canaries for _ in range(2))
    assert first.many == second.many > 10 and np.array_equal(first.coins, second.coins)
    more = InRunAudit(Worker(compose([*SIZE, *FEDLDP, "audit.in_run=true", "num_rounds=60"]))).canaries
    assert more.many < first.many and compose(["audit.in_run=true"]).digest() == compose([]).digest()
