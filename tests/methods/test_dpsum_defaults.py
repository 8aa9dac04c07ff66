"""How dpsum's defaults are chosen: the direct path of the study's runs, its rule, and what the rule says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks import dpsum_defaults as study
from fedpriv.config import methods
from fedpriv.config.compose import compose
from fedpriv.runs.start import start_run
from strategies import dpsum


@pytest.fixture(autouse=True)
def _defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants that a study sets are put back."""
    for module, name in ((dpsum, "NOISE_LENGTH"), (methods, "STATISTICS")):
        monkeypatch.setattr(module, name, getattr(module, name))


@pytest.mark.parametrize("name", ["factors", "three classes", "regression"])
def test_a_direct_run_is_the_products_own(name: str, tmp_path: Path) -> None:
    """Without noise, but for float32 here and there; recalibration and scaling included."""
    options = [*study.write(name, 0, tmp_path), "privacy.target_epsilon=null", "strategy.client.noise_multiplier=0"]
    options += ["strategy.client.form=local", "evaluate.every=0", "operations.report=false"]
    study._set((6.0, "zero", 2))
    direct = study.Direct.of(options).theta(0, "zero")
    start_run(compose(["experiment=hospitals", *options]), tmp_path / "run")
    parts = load_file(tmp_path / "run" / "model.safetensors")
    theta = np.concatenate([parts[key].ravel() for key in sorted(parts, key=lambda key: not key.endswith("weight"))])
    assert np.allclose(direct, theta, atol=1e-3 * np.abs(theta).max())


def test_the_best_by_luck_is_no_measure() -> None:
    """What is best by one half of the seeds is looked at in the other."""
    scores = np.array([[90.0, 80.0], [90.0, 80.0], [80.0, 84.0], [80.0, 84.0]])
    assert study.regrets(scores).tolist() == [(80 - 90 + 80 - 80) / 2, (80 - 80 + 80 - 84) / 2]
    plain = np.array([[90.0, 80.0, 87.0]] * 4)
    assert study.regrets(plain).tolist() == [0, 10, 3]


def test_the_defaults_are_what_the_rule_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = study.done()
    length, start, rounds = study.choose(found)
    assert (length, start, 20 // rounds) == (dpsum.NOISE_LENGTH, "zero", methods.STATISTICS)
    average = compose(["experiment=hospitals"]).strategy.options.average  # type: ignore[attr-defined]
    assert study.choose_shape(found) == (dpsum.NOISE_LENGTH, False, average)
    assert study.choose_largest(found) == dpsum.LARGEST_STEP
    lines = [line for line in capsys.readouterr().out.splitlines() if line.endswith("chosen")]
    assert [float(line.split("|")[4]) <= 2 for line in lines] == [True] * 3
