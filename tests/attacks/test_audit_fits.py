"""The audit of the clients' own fit: sound for the code as it is, and not blind."""

from __future__ import annotations

import json

import pytest
from conftest import Run

from fedpriv.attacks.fit_audit import audit_fits
from fedpriv.commands.audit import main
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose


@pytest.mark.parametrize(
    ("case", "least"),
    [
        (("strategy=fedldp", "strategy.client.noise_multiplier=1"), 0.5),
        (("strategy=dpsgd", "strategy.client.noise_multiplier=0.3", "local.batch_size=1000"), 0.5),
        (("strategy=ldpfl",), 0.5),
        (("strategy=coqfl",), 0.8),
        (("strategy=coqfl", "strategy.client.group_size=4"), 0.8),
    ],
    ids=str,
)
def test_own_fit_is_audited_below_what_is_verified(case: tuple[str, ...], least: float) -> None:
    found = audit_fits(compose([*case]), trials=600, confidence=0.999, seed=5)
    assert least < found.audit.epsilon_lower <= found.verified
    assert found.audit.epsilon_lower < found.audit.attainable


def test_a_trusted_servers_clients_are_refused() -> None:
    central = ("strategy.client.form=central", "strategy.server.client_sampling=poisson")
    with pytest.raises(OptionError, match=r"level=training: .*trusted-server: mechanism"):
        audit_fits(compose(["strategy=dpfedavg", *central]), trials=100, confidence=0.95, seed=0)


def test_it_stands_apart_in_summary_and_report(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run("strategy=fedldp")
    assert main([f"run={folder}", "level=training", "trials=1000"]) == 0
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    found, report = privacy["fit_audit"], (folder / "report.html").read_text()
    assert found["audited_on"] == "client's own fit" and found["scope"] == "one release"
    assert found["audited_epsilon"] <= found["verified_epsilon"] and 4 < found["audited_at_most"] < 6
    assert privacy["audited_epsilon"] is None and "canaries" in privacy["training_audit"]
    assert "with its own keys, batches and clipping" in report and "at most" in report
    assert "a perfect attack would have shown" in capsys.readouterr().out
