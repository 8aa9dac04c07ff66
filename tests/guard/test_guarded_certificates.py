"""Certificates of guarded nodes: whose code ran, in what, and an epsilon that the verifier finds too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.serverapp.strategy import FedAvg
from guarded import GuardedMachines, MachinesGrid, weights

import fedpriv
from fedpriv.certificates import statement, verify_certificate
from fedpriv.certificates.guarded_run import of_guarded_run
from fedpriv.certificates.making import of_any
from fedpriv.certificates.signing import VARIABLE
from fedpriv.certificates.statement import of_node
from fedpriv.certificates.writing import page
from fedpriv.commands.certificate import main as command
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.identities import new_identity
from fedpriv.deployment.data_ledger import Signer
from fedpriv.deployment.policy import Policy, read_policy
from fedpriv.guard.guarded_message import GUARD
from fedpriv.guard.release import Terms
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


def verified(made: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """What the verifier says of a node's certificate."""
    signed = statement.signed(made, Signer(new_identity(b"node")[0]), "the node")
    (folder / "certificate.json").write_text(json.dumps(signed))
    capsys.readouterr()
    return verify_certificate.main([str(folder / "certificate.json")]), capsys.readouterr().out


def epsilon_of(*sigmas: float) -> float:
    return gaussian_epsilon(sum((2 / sigma) ** 2 for sigma in sigmas) ** 0.5, 1e-5)


def test_a_stricter_policy_of_today_does_not_speak_of_yesterday(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message under `sandbox: none` and a large limit, then a strict policy under which nothing left."""
    network = GuardedMachines(tmp_path, epsilon=9.0, noise_multiplier=5.0, sandbox="none")
    assert not network.ask().has_error()
    before = of_node(network.policy(0), network.data(0))
    network.write_policy(0, 0.5, noise_multiplier=5.0)
    assert network.ask().has_error()  # its budget is spent
    after = of_node(network.policy(0), network.data(0))
    for made in (before, after):
        (row,), (period,) = made["protections"], made["policies"]
        assert row["epsilon"] == pytest.approx(epsilon_of(5.0)) and row["limit"] == 9.0
        assert period["policy"]["guard"]["sandbox"] == "none" and period["messages"] == 1
        assert any(line.startswith("Apps ran without a sandbox") for line in made["assumptions"])
        assert not any("kept apps in their sandbox" in line for line in made["assumptions"])
        code, told = verified(made, tmp_path, capsys)
        assert code == 0 and "the policies are those that the ledger names" in told
    assert any("is in force since the last message: nothing left" in line for line in after["assumptions"])
    assert not any("since the last message" in line for line in before["assumptions"])


@pytest.mark.parametrize("limits", [(30.0, 100.0), (100.0, 30.0)])
def test_of_two_budgets_of_one_threat_the_lower_one_is_the_limit(
    limits: tuple[float, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = GuardedMachines(tmp_path, epsilon=9.0, noise_multiplier=5.0)
    said = yaml.safe_load(network.policy(0).read_text())
    said["budgets"] = [said["budgets"][0] | {"max_epsilon": limit} for limit in limits]
    network.policy(0).write_text(yaml.safe_dump(said))
    assert not network.ask().has_error()
    made = of_node(network.policy(0), network.data(0))
    assert [row["limit"] for row in made["protections"]] == [30.0]
    assert verified(made, tmp_path, capsys)[0] == 0


def test_a_policy_loosened_and_tightened_is_told_message_by_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = GuardedMachines(tmp_path, epsilon=3.0, noise_multiplier=5.0)
    steps: list[tuple[float, dict[str, Any]]] = [
        (3.0, {}),
        (9.0, {"apps": "any", "pad_seconds": 700.0}),
        (4.0, {"sandbox": "none"}),
    ]
    for epsilon, guard in steps:
        network.write_policy(0, epsilon, noise_multiplier=5.0, **guard)
        for _ in range(1 + (epsilon == 9.0)):
            assert not network.ask().has_error()
    made = of_node(network.policy(0), network.data(0))
    (row,) = made["protections"]
    assert row["epsilon"] == pytest.approx(epsilon_of(*[5.0] * 4)) and row["limit"] == 4.0
    assert [period["messages"] for period in made["policies"]] == [1, 2, 1]
    assert [period["policy"]["budgets"][0]["max_epsilon"] for period in made["policies"]] == [3.0, 9.0, 4.0]
    words = made["assumptions"]
    assert any(line.startswith("Message 1: The kernel and the installed") for line in words)
    assert any(line.startswith("Messages 2 to 3: Any app was run") for line in words)
    assert any(line.startswith("Messages 2 to 3: Each start of an app takes the same time") for line in words)
    assert any(line.startswith("Message 4: Apps ran without a sandbox") for line in words)
    assert len(made["digests"]["policy"]) == 3 and made["digests"]["code"] == ["a" * 64]
    assert verified(made, tmp_path, capsys)[0] == 0
    assert "Messages 2 to 3: Any app was run" in page(made | {"signer": {"role": "", "key": ""}, "issued": ""})


def test_a_line_is_written_where_the_policy_changes_and_nowhere_else(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, noise_multiplier=20.0)

    def policies() -> list[str]:
        text = (network.data(0) / ".fedpriv/ledger.jsonl").read_text()
        return [row["policy"]["sha256"] for row in map(json.loads, text.splitlines()) if "policy" in row]

    for _ in range(2):
        assert not network.ask().has_error()
    assert len(policies()) == 1
    network.policy(0).write_text(network.policy(0).read_text() + "# a word for the operator\n")
    for _ in range(2):
        assert not network.ask().has_error()
    assert len(policies()) == len({*policies()}) == 2


def test_of_a_ledger_without_such_lines_what_was_in_force_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As versions before this one wrote it; this one goes on, and says of which messages it knows."""
    network = GuardedMachines(tmp_path, epsilon=0.9, noise_multiplier=5.0, sandbox="none")
    network.write_policy(0, 9.0, noise_multiplier=5.0, sandbox="none")
    with monkeypatch.context() as older:
        older.setattr(Policy, "in_force", property(lambda policy: None))
        assert not network.ask().has_error()
    network.write_policy(0, 0.9, noise_multiplier=5.0)
    made = of_node(network.policy(0), network.data(0))
    (row,), (period,) = made["protections"], made["policies"]
    assert row["limit"] is None and row["epsilon"] == pytest.approx(epsilon_of(5.0)) and period["policy"] is None
    assert any("Which policy was in force is not known" in line and "none (1)" in line for line in made["assumptions"])
    code, told = verified(made, tmp_path, capsys)
    assert code == 0 and "note: of some messages the policy is not known" in told
    network.write_policy(0, 9.0, noise_multiplier=5.0)
    assert not network.ask().has_error()
    made = of_node(network.policy(0), network.data(0))
    assert [period["policy"] is None for period in made["policies"]] == [True, False]
    assert made["protections"][0]["limit"] == 9.0 and verified(made, tmp_path, capsys)[0] == 0
