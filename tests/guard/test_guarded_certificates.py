"""Certificates of guarded nodes: whose code ran, in what, and an epsilon that the verifier finds too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAvg
from guarded import GuardedMachines, MachinesGrid, weights

import fedpriv
from fedpriv.certificates import verify_certificate
from fedpriv.certificates.guarded_run import of_guarded_run
from fedpriv.certificates.making import of_any
from fedpriv.certificates.signing import VARIABLE
from fedpriv.certificates.statement import of_node
from fedpriv.certificates.writing import page
from fedpriv.commands.certificate import main as command
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.deployment.policy import read_policy
from fedpriv.guard.guarded_message import GUARD
from fedpriv.guard.terms import Terms
from fedpriv.privacy.composition import compose
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

SUM = {"sites": 3, "min_replies": 3, "threshold": 2, "shards": 2}


@pytest.mark.parametrize(
    ("guard", "words", "code"),
    [
        ({}, "Only apps with one of the digests under code were run, under a guard", ["a" * 64]),
        ({"apps": "any", "pad_seconds": 700.0}, "Any app was run, under a guard", []),
        ({"sandbox": "none"}, "Apps ran without a sandbox: their code is trusted", ["a" * 64]),
    ],
    ids=["approved", "any", "trusted"],
)
def test_a_guarded_nodes_certificate_says_whose_code_ran(
    guard: dict[str, Any], words: str, code: list[str], tmp_path: Path
) -> None:
    network = GuardedMachines(tmp_path, noise_multiplier=20.0, **guard)
    for _ in range(2):
        assert not network.ask().has_error()
    found = of_node(network.policy(0), network.data(0))
    assert any(line.startswith(words) for line in found["assumptions"]) and found["digests"]["code"] == code
    assert any("takes the same time" in line for line in found["assumptions"]) == ("pad_seconds" in guard)
    assert any(line.startswith("Nothing of the data was declared") for line in found["assumptions"])
    assert "nothing of the data" in page(found | {"signer": {"role": "", "key": ""}, "issued": ""})
    (row,), (protection,) = found["releases"], found["protections"]
    assert (row["mechanism"], row["multiplier"], row["releases"]) == ("gaussian", 10.0, 2)
    event = Terms.of(read_policy(network.policy(0)).guard).event(4)  # type: ignore[arg-type]
    assert protection["epsilon"] == compose([event, event], 1e-5).epsilon


def run_of(folder: Path, rounds: int = 2, lose: Any = None, **guard: Any) -> Path:
    """The folder of a finished guarded run of three machines."""
    network = GuardedMachines(folder, 3, noise_multiplier=3.0, **guard)
    grid = MachinesGrid(network) if lose is None else MachinesGrid(network, lose)
    fedpriv.guarded(FedAvg(fraction_evaluate=0.0), run_dir=folder / "run").start(grid, weights(), num_rounds=rounds)
    return folder / "run"


@pytest.mark.parametrize(
    "guard",
    [
        {},
        {"sampling": 0.5},
        {"unit": "client", "shards": 1},
        *({"noise": noise, **SUM} for noise in ("ddgauss", "skellam")),
    ],
    ids=["own", "sampled", "client", "ddgauss", "skellam"],
)
def test_a_guarded_runs_certificate_is_verified(
    guard: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "home"))
    run = run_of(tmp_path, **guard)
    assert command([str(run)]) == 0
    found = json.loads((run / "certificate.json").read_text())
    plan, summary = (json.loads((run / name).read_text()) for name in ("plan.json", "summary.json"))
    first, *others = found["protections"]
    privacy = summary["privacy"]
    assert first["epsilon"] == privacy["claimed_epsilon"] == privacy["verified_epsilon"]
    assert first["epsilon"] == plan["clients"]["0"]["epsilon"] == first["limit"]
    assert [row["observer"] for row in others] == ["server"] * ("noise" in guard)
    assert found["subject"]["answers"] == {"0": 2, "1": 2, "2": 2} and found["ledger"]["id"] == plan["run"]
    capsys.readouterr()
    assert verify_certificate.main([str(run / "certificate.json"), f"key={found['signer']['key']}"]) == 0
    told = capsys.readouterr().out
    assert told.count(": equal;") == len(found["protections"]), told
    assert "did not arrive is in that machine" in (run / "certificate.html").read_text()


def test_what_a_server_changes_in_its_folder_is_found(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    whole = {name: (run / name).read_text() for name in ("plan.json", "summary.json", "ledger.jsonl")}
    lines = whole["ledger.jsonl"].splitlines(keepends=True)
    summary, plan = json.loads(whole["summary.json"]), json.loads(whole["plan.json"])
    summary["privacy"]["verified_epsilon"] /= 2
    plan["clients"]["1"]["noise_multiplier"] *= 2
    changed = [
        ("ledger.jsonl", "".join(lines[1:])),
        ("ledger.jsonl", "".join(lines[:-1])),
        ("ledger.jsonl", "".join([*lines, lines[-1]])),
        ("ledger.jsonl", whole["ledger.jsonl"].replace('"multiplier":1.5', '"multiplier":15', 1)),
        ("ledger.jsonl", whole["ledger.jsonl"] + '{"round":'),
        ("summary.json", json.dumps(summary)),
        ("summary.json", "{}"),
        ("plan.json", json.dumps(plan)),
        ("plan.json", json.dumps(json.loads(whole["plan.json"]) | {"numbers": "4", "run": "x"})),
        ("plan.json", json.dumps(json.loads(whole["plan.json"]) | {"delta": 1e-4})),
        ("plan.json", ""),
    ]
    assert of_guarded_run(run)["ledger"]["count"] == 6
    for name, text in changed:
        (run / name).write_text(text)
        with pytest.raises(RunFolderError):
            of_guarded_run(run)
        (run / name).write_text(whole[name])


def test_an_answer_that_does_not_arrive_is_not_in_the_servers_certificate(tmp_path: Path) -> None:
    def lose(client: int, message: Any) -> bool:
        own = message.content.get(GUARD)
        return client == 1 and own is None

    run = run_of(tmp_path, lose=lose)
    assert of_guarded_run(run)["subject"]["answers"] == {"0": 2, "2": 2}
    assert (
        len(json.loads((tmp_path / "counters/1.json").read_text()))
        and "machine 1" not in (run / "report.html").read_text()
    )


def test_machines_of_other_terms_are_in_the_figures(tmp_path: Path) -> None:
    """One machine protects a person with less noise: the run's figures hold both, and not the first alone."""
    network = GuardedMachines(tmp_path, 2, noise_multiplier=20.0)
    network.write_policy(1, unit="person", column="id", noise_multiplier=5.0)
    strategy = fedpriv.guarded(FedAvg(fraction_evaluate=0.0), run_dir=tmp_path / "run")
    strategy.start(MachinesGrid(network), weights(), num_rounds=1)
    privacy = json.loads((tmp_path / "run/summary.json").read_text())["privacy"]
    (other,) = privacy["others"]
    assert (privacy["unit"], other["unit"]) == ("example", "person")
    for row, sigma in ((privacy, 20.0), (other, 5.0)):
        expected = gaussian_epsilon(2 / sigma, 1e-5)
        assert row["claimed_epsilon"] == row["verified_epsilon"] == pytest.approx(expected)
    assert [row["epsilon"] for row in of_guarded_run(tmp_path / "run")["protections"]] == [
        privacy["verified_epsilon"],
        other["verified_epsilon"],
    ]


def test_a_folder_without_a_run_has_no_certificate(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"summary\.json: is missing or damaged"):
        of_any(tmp_path)
    with pytest.raises(OptionError, match="must be a run's folder"):
        of_any(tmp_path / "none")
