"""Canaries on a client's own machine: only where its policy names them, beside a ledger and messages that stay."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from deployed import MACHINES, POLICY, codes

from fedpriv.common.errors import OptionError
from fedpriv.deployment import node_audit
from fedpriv.deployment.data_ledger import PRIVATE
from fedpriv.deployment.node_audit import NodeCanaries
from fedpriv.deployment.policy import read_policy
from fedpriv.privacy.gaussian_dp import gaussian_epsilon


def kept(network: Any, number: int) -> list[NodeCanaries]:
    folder = network.data(number) / PRIVATE / node_audit.FOLDER
    return [found for path in folder.glob("*.npz") if (found := NodeCanaries.read(path)) is not None]


def booked(network: Any, number: int) -> list[Any]:
    """What the ledger holds, without what is of a run's moment."""
    with network.ledger(number).held() as ledger:
        return [[(entry.round, entry.event) for entry in one.entries] for one in ledger.releases()]


def test_canaries_only_where_the_policy_names_them_and_ledger_and_messages_stay(
    machines: MACHINES, capsys: pytest.CaptureFixture[str]
) -> None:
    network = machines()
    network.write_policy(1, POLICY | {"in_run_audit": 4000})
    overrides = network.overrides("audit.in_run=true", "privacy.delta=1e-5")
    grid = network.serve(overrides)
    assert codes(grid) == ["sent"] * 4
    assert booked(network, 0) == booked(network, 1) and len(booked(network, 1)) == 2
    assert kept(network, 0) == [] and not (network.data(0) / PRIVATE / node_audit.FOLDER).exists()
    (found,) = kept(network, 1)
    assert found.messages == 2 and len(found.coins) == 4000
    verified = gaussian_epsilon((2 / 2.0) * 2**0.5, 1e-5)
    assert found.mu_square == pytest.approx(2.0)
    signed = np.where(found.coins, 1, -1) * found.scores
    assert signed.mean() == pytest.approx(2.0, abs=0.3) and signed.std() == pytest.approx(2 * 2**0.5, rel=0.05)
    capsys.readouterr()
    assert network.command("status", 1) == 0
    said = capsys.readouterr().out
    assert "audited: 4000 canaries beside 2 messages of a run" in said and f"booked for these {verified:.3g}" in said
    shown = float(said.partition("epsilon >= ")[2].partition(",")[0])
    assuming = float(said.partition(">= ")[2].partition(">= ")[2].partition(" ")[0])
    assert 0.3 * verified < shown < assuming <= 1.05 * verified
    assert network.command("status", 0) == 0
    assert "audited" not in capsys.readouterr().out
    summary = json.loads((network.folder / "run/summary.json").read_text())
    assert "where its policy has in_run_audit" in summary["privacy"]["in_run_audit"]["reason"]
    assert summary["privacy"]["audited_epsilon"] is None


def test_noise_that_is_missing_shows_and_a_failure_ends_no_answer(
    machines: MACHINES, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = machines()
    for number in range(network.count):
        network.write_policy(number, POLICY | {"in_run_audit": 1000})
    import clients.fedldp

    real = clients.fedldp.add_normal
    with monkeypatch.context() as patch:
        patch.setattr(clients.fedldp, "add_normal", lambda value, sigma, noise: real(value, sigma / 10, noise))
        network.serve(network.overrides(run="faulty"))
    (found,) = kept(network, 1)
    verified = gaussian_epsilon(2**0.5, 1e-5)
    assert "epsilon >= " in (said := found.says(1e-5))
    assert float(said.partition(">= ")[2].partition(">= ")[2].partition(" ")[0]) > verified
    (network.data(1) / PRIVATE / node_audit.FOLDER).rename(network.folder / "elsewhere")

    def broken(self: NodeCanaries, *others: Any) -> None:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(NodeCanaries, "hear", broken)
    assert codes(network.serve(network.overrides(run="second"))) == ["sent"] * 4
    assert "in_run_audit: RuntimeError: no memory left" in caplog.text and kept(network, 1) == []


def test_a_method_that_cannot_be_audited_so_says_why(machines: MACHINES, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="fedpriv")
    network = machines()
    network.write_policy(0, POLICY | {"in_run_audit": 1000})
    network.serve(network.overrides().replace("strategy=fedldp", "strategy=fedcad"))
    assert "in_run_audit: none of FedCADClient" in caplog.text and kept(network, 0) == []


@pytest.mark.parametrize("wrong", [99, 0, -5, 100_001, "many", 1.5])
def test_a_wrong_number_is_refused_by_name(wrong: Any, machines: MACHINES) -> None:
    network = machines()
    network.write_policy(0, POLICY | {"in_run_audit": wrong})
    with pytest.raises(OptionError, match="in_run_audit"):
        read_policy(network.policy(0))


def test_a_torn_file_counts_as_none(machines: MACHINES) -> None:
    path = machines().folder / "torn.npz"
    path.write_bytes(NodeCanaries(np.ones(100, bool), np.zeros(100)).to_bytes()[:90])
    assert NodeCanaries.read(path) is None and NodeCanaries.read(path.with_name("none.npz")) is None
