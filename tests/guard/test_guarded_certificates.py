"""Certificates of guarded nodes: whose code ran, in what, and an epsilon that the verifier finds too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from guarded import GuardedMachines

from fedpriv.certificates.making import of_any
from fedpriv.certificates.statement import of_node
from fedpriv.common.errors import OptionError
from fedpriv.deployment.policy import read_policy
from fedpriv.guard.terms import Terms
from fedpriv.privacy.composition import compose


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
    (row,), (protection,) = found["releases"], found["protections"]
    assert (row["mechanism"], row["multiplier"], row["releases"]) == ("gaussian", 10.0, 2)
    event = Terms.of(read_policy(network.policy(0)).guard).event(4)  # type: ignore[arg-type]
    assert protection["epsilon"] == compose([event, event], 1e-5).epsilon


def test_a_guarded_runs_folder_has_no_certificate(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(OptionError, match="is of a guarded run"):
        of_any(tmp_path)
