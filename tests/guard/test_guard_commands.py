"""`fedpriv plan guard=`, `fedpriv audit guard=`, and guarded machines in one process."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from asking import write_rows
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from guarded import LIMITS, GuardedMachines, MachinesGrid

import fedpriv
from fedpriv.__main__ import main
from fedpriv.attacks.guard_audit import audit_guard
from fedpriv.common.errors import OptionError
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.guard import guarded_message, simulation
from fedpriv.guard.guarded_message import Guard
from fedpriv.guard.release import Terms, claimed_epsilon, with_epsilon
from fedpriv.mechanisms.noise import SeededNoise, encode_key
from fedpriv.privacy.auditor import BROKEN

APP = Path(__file__).parent / "apps" / "quickstart-message"
RULES: dict[str, Any] = {
    "apps": (),
    "unit": "row",
    "table": "t.csv",
    "shards": 4,
    "clip": 0.5,
    "noise_multiplier": 4.0,
}
SUM = {"noise": "ddgauss", "sites": 5, "min_replies": 5, "colluders": 1}


def rules_of(rules: dict[str, Any]) -> GuardPolicy:
    return GuardPolicy.model_validate(rules | {"apps": ()})


def policy(folder: Path, **rules: Any) -> Path:
    budget = {"unit": "example", "delta": 1e-5, "max_epsilon": 4.0, "adjacency": "add-or-remove-one"}
    if rules:
        budget |= {"observer": "secure-sum"}
    found = folder / "policy.yaml"
    content = {"counter": "/c.json", "budgets": [budget], "limits": LIMITS, "guard": RULES | rules}
    found.write_text(yaml.safe_dump(content | {"accountant": "renyi" if rules else "gaussian"}))
    return found


def test_a_plan_says_what_rounds_cost_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"guard={policy(tmp_path)}", "parameters=31", "rounds=3"]) == 0
    said = capsys.readouterr().out
    assert "unit example, add-or-remove-one, observer server, delta 1e-05" in said
    cost = claimed_epsilon(Terms.of(rules_of(RULES)), 31, 3, 1e-5)
    assert f"of length {4 * 31**0.5 / 4:.3g} clip norms" in said
    assert f"{claimed_epsilon(Terms.of(rules_of(RULES)), 31, 1, 1e-5):.4g} of one round" in said
    assert f"epsilon           {cost:.4g} claimed and verified" in said and "sum by up to twice that" in said


def test_a_plan_finds_the_noise_of_an_epsilon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = policy(tmp_path, **SUM)
    assert main(["plan", f"guard={place}", "parameters=31", "rounds=3", "epsilon=1"]) == 0
    said = capsys.readouterr().out
    assert "epsilon           1 claimed" in said or "epsilon           0.99" in said
    assert "in a secure sum of 5 to 5" in said
    known = Terms.of(rules_of(RULES | SUM))
    found = with_epsilon(known, 31, 3, 1e-5, 1.0)
    assert f"of length {found.noise_multiplier * 31**0.5 / (4 * 5**0.5):.3g} clip norms" in said
    assert f"noise multiplier  {found.noise_multiplier:.6g} (of each machine" in said
    assert (
        claimed_epsilon(found, 31, 3, 1e-5)
        <= 1.0
        < claimed_epsilon(with_epsilon(known, 31, 3, 1e-5, 1.01), 31, 3, 1e-5)
    )


def test_rounds_that_a_plan_says_are_affordable_are_admitted_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedpriv.deployment.policy import Spent, read_policy

    place = policy(tmp_path)
    main(["plan", f"guard={place}", "parameters=4"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("budget 4"))
    allowed = int(line.split()[2])
    known = read_policy(place)
    fixed, booked, spent = known.accounting(None, Spent()), Terms.of(known.guard).booked(4, 0, 1), Spent()
    for _ in range(allowed):
        assert known.refusal(spent, booked, (), fixed) is None
        spent.add(booked)
    assert known.refusal(spent, booked, (), fixed) is not None and allowed > 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "guard=none.yaml", "parameters=3"], "guard=none.yaml: there is no such file"),
        (["plan", "guard=POLICY", "parameters=0"], "parameters=0: must be a whole number from 1"),
        (["plan", "guard=POLICY", "parameters=3", "epsilon=-1"], "epsilon=-1: must be a number of more than 0"),
        (["plan", "guard=POLICY", "parameter=3"], "parameter=3: no such option"),
        (["run", "guard=POLICY"], "of fedpriv plan and fedpriv audit"),
        (["audit", "guard=POLICY", "parameters=3", "trials=4"], "trials=4: must be a whole number from 400"),
        (["audit", "guard=POLICY", "parameters=3", "confidence=2"], "confidence=2: must be a number of "),
    ],
)
def test_wrong_options_are_named(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(policy(tmp_path))
    assert main([word.replace("POLICY", place) for word in arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "more", [{}, SUM, {"sampling": 0.5}, {"single": True}], ids=["own", "sum", "sampled", "single"]
)
def test_an_audit_stays_below_what_is_booked_and_shows_most_of_it(more: dict[str, Any]) -> None:
    rules = RULES | more | {"noise_multiplier": 0.7, "shards": 2}
    found = audit_guard(Terms.of(rules_of(rules)), 3, 1e-5, 1500, 0.95)
    assert found.verdict != BROKEN and 0.5 < found.audit.epsilon_lower < found.verified


def test_an_audit_finds_a_guard_that_adds_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Terms.release
    terms = Terms.of(rules_of(RULES | {"noise_multiplier": 4.0, "shards": 2}))

    def quiet(self: Terms, answers: Any, dimension: int, source: Any) -> torch.Tensor:
        return release(replace(self, noise_multiplier=0.4), answers, dimension, source)

    monkeypatch.setattr(Terms, "release", quiet)
    assert audit_guard(terms, 3, 1e-5, 1500, 0.95).verdict == BROKEN


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    "more",
    [{"noise_multiplier": 3.0}, SUM | {"noise_multiplier": 1.5}, {"noise_multiplier": 1.5, "single": True}],
    ids=["own", "sum", "single"],
)
def test_an_audit_has_the_power_to_find_half_of_the_noise(more: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As documented, without options: at the delta and with the trials that it chooses itself."""
    terms = Terms.of(rules_of(RULES | {"shards": 2} | more))
    assert audit_guard(terms, 3, None, None, 0.95).verdict != BROKEN
    release = Terms.release

    def half(self: Terms, answers: Any, dimension: int, source: Any) -> torch.Tensor:
        return release(replace(self, noise_multiplier=self.noise_multiplier / 2), answers, dimension, source)

    monkeypatch.setattr(Terms, "release", half)
    if terms.in_sum:  # of every machine
        grid = Terms.grid
        quiet = replace(terms, noise_multiplier=terms.noise_multiplier / 2)
        noise = type(grid(terms, 3)).noise
        monkeypatch.setattr(
            type(grid(terms, 3)), "noise", lambda self, shape, source: noise(grid(quiet, 3), shape, source)
        )
    assert [audit_guard(terms, 3, None, None, 0.95, seed).verdict for seed in range(2)] == [BROKEN] * 2


def test_an_audit_finds_a_guard_that_does_not_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = Terms.of(rules_of(RULES | {"noise_multiplier": 2.0, "shards": 2}))
    monkeypatch.setattr(Terms, "clipped", lambda self, answer: torch.from_numpy(answer))
    assert audit_guard(terms, 3, 1e-5, 1500, 0.95).verdict == BROKEN


def test_a_simulation_is_the_guard_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, rng = [], np.random.default_rng(0)
    for site in range(3):
        rows = rng.normal(size=(30, 4))
        lines = [",".join(f"{value:.3f}" for value in [*row, float(row.sum() > 0)]) for row in rows]
        files.append(tmp_path / f"{site}.csv")
        files[-1].write_text("\n".join(["a,b,c,d,y", *lines]) + "\n")
    start = ArrayRecord({"weights": _array(np.zeros(4)), "bias": _array(np.zeros(1))})
    rules = {"unit": "row", "shards": 3, "clip": 0.1}
    config = {"local-epochs": 5}
    given: dict[str, Any] = {"rounds": 2, "run_config": config, "confined": False}

    def weights(**more: Any) -> np.ndarray:
        found = fedpriv.simulate_guard(APP, files, rules | more.pop("rules", {}), start, **given | more)
        return found.arrays["weights"].numpy()

    exact = weights(epsilon=float("inf"))
    assert (exact > 0.03).all() and np.linalg.norm(exact) < 0.2
    near = weights(epsilon=1e4, rules={"noise": "ddgauss"})
    assert near == pytest.approx(exact, abs=0.02) and near.tolist() != exact.tolist()
    assert weights(epsilon=1e4) == pytest.approx(exact, abs=0.02)
    assert weights(epsilon=1e4).tolist() == weights(epsilon=1e4).tolist() != weights(epsilon=1e4, seed=1).tolist()
    assert np.linalg.norm(weights(epsilon=0.1) - exact) > 0.1
    once = weights(epsilon=float("inf"), rounds=1)
    assert weights(epsilon=float("inf"), rounds=1, server_learning_rate=3.0) == pytest.approx(3 * once)
    single = {"single": True, "shards": 100}
    assert (weights(epsilon=float("inf"), rounds=1, rules=single) > 0).all()
    assert (weights(epsilon=float("inf"), rounds=1, rules=single | {"shards": 1, "min_answered": 0}) == 0).all(), (
        "no row is alone"
    )
    noises: list[Any] = []

    class Noted(SeededNoise):
        def __init__(self, *key: Any) -> None:
            noises.append(key)
            super().__init__(*key)

    monkeypatch.setattr(simulation, "SeededNoise", Noted)
    found = fedpriv.simulate_guard(APP, files, rules, start, epsilon=1.0, **given)
    assert len(set(noises)) == 3 * 2  # one of each machine in each round
    assert 0.999 < found.epsilon == claimed_epsilon(found.terms, 5, 2, 1e-5) <= 1
    with pytest.raises(OptionError, match="tables="):
        fedpriv.simulate_guard(APP, [tmp_path / "none.csv"], rules, start)
    with pytest.raises(OptionError, match="app="):
        fedpriv.simulate_guard(tmp_path, files, rules, start)


@pytest.mark.rotates(3)
@pytest.mark.parametrize(("noise", "confined"), [("own", False), ("own", True), ("ddgauss", False)])
def test_a_simulation_gives_what_nodes_give(
    noise: str, confined: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a node's salt and noise: three nodes, whose apps run in their sandboxes, and the server's strategy."""
    rules = {"unit": "row", "shards": 3, "clip": 0.1, "noise_multiplier": 1.0, "noise": noise, "api": "message"}
    rules |= {"sites": 3, "min_replies": 3, "threshold": 3}
    network = GuardedMachines(tmp_path / "machines", 3, **rules)
    files = [write_rows(network.data(client) / "table.csv", 30, seed=client) for client in range(3)]
    code = shutil.copytree(APP, tmp_path / "app") / "messageexample" / "client_app.py"
    words = code.read_text().replace('context.run_config["local-epochs"]', "2")
    code.write_text(words.replace('context.run_config["learning-rate"]', "1.0"))
    rounds = [itertools.count(1) for _ in range(3)]

    def guard(client: int = 0) -> Guard:
        given = network.policy(client), network.data(client), code.parents[1], "a" * 64, network.identities[client]
        return Guard(client, *given, source=lambda: SeededNoise(0, client, next(rounds[client]), 0, "guard"))

    monkeypatch.setattr(network, "guard", guard)
    salt = encode_key("guard salt", 0).ljust(32, b"\0")[:32]
    monkeypatch.setattr(guarded_message, "read_salt", lambda *given, **named: salt)
    whole, released = Terms.release, list[torch.Tensor]()

    def noted(self: Terms, answers: Any, size: int, source: Any) -> Any:
        released.append(whole(self, answers, size, source))
        return released[-1]

    monkeypatch.setattr(Terms, "release", noted)
    start = ArrayRecord({"weights": _array(np.zeros(4)), "bias": _array(np.zeros(1))})
    real = fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(MachinesGrid(network), start, num_rounds=2)
    assert real.arrays is not None
    found = fedpriv.simulate_guard(code.parents[1], files, rules, start, 2, confined=confined)
    first = [sorted(part.tolist() for part in parts) for parts in (released[:3], released[6:9])]
    assert first[0] == first[1] and len(released) == 12  # to the last bit; Flower asks nodes in any order
    for name, array in found.arrays.items():
        assert array.numpy() == pytest.approx(real.arrays[name].numpy(), rel=1e-9) and array.numpy().any()


def _array(values: np.ndarray) -> Any:
    from flwr.app import Array

    return Array(values)
