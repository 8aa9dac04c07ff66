"""What an attack may say of a run's verified epsilon: contradicts, consistent, cannot tell."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from conftest import Run

from fedpriv.attacks import lira
from fedpriv.attacks.attack_records import Guarantee, guarantee, held_against
from fedpriv.attacks.experiment import Experiment
from fedpriv.attacks.member_inputs import Inputs
from fedpriv.attacks.subject import Scored, Subject
from fedpriv.commands.attack import main
from fedpriv.config.compose import read_config
from fedpriv.report.attacks import attack_section
from fedpriv.report.run_summary import Summary
from fedpriv.runs.folder import RunFolder


def test_the_guarantee_is_the_smallest_finite_one_that_covers_an_example() -> None:
    threat = {"adjacency": "replace-one", "delta": 1e-5, "unit": "client", "observer": "server"}
    infinite = threat | {"verified_epsilon": "inf"}
    found = guarantee(infinite | {"others": [threat | {"verified_epsilon": 3.0, "unit": "example"}]})
    assert found is not None and (found.epsilon, found.unit) == (3.0, "example")
    client = guarantee(threat | {"verified_epsilon": 2.0})
    assert client is not None and "and so each of its examples" in str(client)
    assert guarantee(infinite) is None and guarantee({}) is None
    # Of an example added or removed, 1 is more than 1.5 of an example replaced.
    one = threat | {"adjacency": "add-or-remove-one", "verified_epsilon": 1.0}
    smallest = guarantee(one | {"others": [threat | {"verified_epsilon": 1.5, "unit": "example"}]})
    assert smallest is not None and smallest.epsilon == 1.5


def test_what_an_added_or_removed_example_may_cost_to_replace() -> None:
    """Two steps, written out: Laplace noise of scale 1 / epsilon on a sum that one example moves by 1, delta 0; and the
    slack of the first step is multiplied by the second.
    """
    assert Guarantee(0.5, 1e-5, "example", "replace-one", "server").turned == (0.5, 1e-5)
    for adjacency in ("add-or-remove-one", "zero-out"):
        epsilon, delta = Guarantee(0.5, 1e-5, "example", adjacency, "server").turned
        assert (epsilon, delta) == pytest.approx((1.0, (1 + math.exp(0.5)) * 1e-5))


def test_a_result_above_the_bound_contradicts_the_guarantee() -> None:
    scores = np.random.default_rng(0).normal(size=2000)
    promised, alike = Guarantee(0.1, 1e-5, "client", "replace-one", "server"), Inputs(0.5, "slant")
    separated, same = Scored(scores + 3, scores, 1.5), Scored(scores, scores[::-1], 0)
    found = held_against(separated, promised, True, alike)
    words = found["verdict"]
    assert words.startswith("contradicts the guarantee") and "0.1" in words
    assert found["bound"]["allowed"] == 0.1 < found["bound"]["epsilon_lower"] <= found["bound"]["attainable"]
    assert held_against(same, promised, True, alike)["verdict"].startswith(
        "consistent with the guarantee: epsilon >= 0"
    )
    result = Summary.model_validate({"attacks": {"lira": {"attack": "lira", "shown": True, "verdict": words}}})
    assert result.contradictions == [f"lira {words}"]
    section = attack_section(result)
    assert section is not None and section["verdicts"] == [f"lira: {words}"]

    def undecided(scored: Scored, *rest: Any) -> str:
        kept = held_against(scored, *rest)
        assert kept["verdict"].startswith("cannot tell: ")
        assert not Summary.model_validate({"attacks": {"lira": kept}}).contradictions
        return kept["verdict"]

    differ = Inputs(0.0005, "slant")
    assert "no finite verified epsilon" in undecided(separated, None, True, alike)
    assert "no coins chose the members (members and non-members differ as inputs: slant" in undecided(
        separated, promised, False, differ
    )
    assert "do not differ noticeably" in undecided(separated, promised, False, alike)
    assert "once in 1,000 runs" in undecided(separated, promised, True, differ)
    large = Guarantee(9.0, 1e-5, "client", "replace-one", "server")
    assert "a perfect attack would have shown" in undecided(separated, large, True, alike)


def test_noise_that_was_left_out_is_found_by_membership_inference(run: Run) -> None:
    """Training without noise, overfitted; and the same attack on a model with other coins finds nothing."""
    size = ("num_clients=4", "clients_per_round=4", "dataset.train_examples=400", "num_rounds=6")
    folder = run("strategy=fedavg", *size, "local.epochs=8", "local.lr=0.3")
    config = read_config(folder)
    cheap = config.attack.model_copy(update={"shadows": 8, "workers": 1})
    work = Experiment(RunFolder(folder), config.model_copy(update={"attack": cheap}))
    trained = work.shelf.models([*work.shadow_jobs("lira"), work.negative_job()])
    promised = Guarantee(0.25, 1e-5, "example", "add-or-remove-one", "server")
    verdicts = [
        held_against(lira.attack(work.view, Subject(model, trained[:-1]), work.targets), promised, True, work.inputs)
        for model in (work.model, trained[-1])
    ]
    assert verdicts[0]["verdict"].startswith("contradicts the guarantee") and verdicts[0]["bound"]["allowed"] == 0.5
    assert verdicts[1]["verdict"].startswith("consistent with the guarantee")


def test_a_run_whose_members_no_coins_chose_is_never_contradicted(run: Run) -> None:
    """A model that leans towards pictures like its own tells two kinds of pictures apart, and says so."""
    size = ("num_clients=2", "clients_per_round=2", "num_rounds=4", "local.lr=1.0", "privacy.target_epsilon=0.5")
    source = ("dataset=custom", "dataset.path=benchmarks.attack_shifts.slant", "dataset.auxiliary=0")
    folder = run("strategy=dpsgd", *source, *size)
    assert main([f"run={folder}", "attack=lira", "shadows=2", "control_models=6"]) == 0
    found = json.loads((folder / "private" / "attacks" / "lira.json").read_text())
    assert found["verdict"].startswith("cannot tell: no coins chose the members")
    assert "differ as inputs" in found["verdict"] and "auc" in found["figures"]
