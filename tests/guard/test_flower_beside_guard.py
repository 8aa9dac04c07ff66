"""Flower's own differential privacy in the benchmark: its noise has the size whose epsilon is stated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord

from benchmarks.flower_dp import CENTRAL, LOCAL, flower_dp

APP = Path(__file__).parent / "apps" / "quickstart-sklearn"
CLIP, MULTIPLIER, SITES, COLUMNS = 0.5, 3.0, 4, 2000


@pytest.mark.parametrize(("form", "machines"), [(LOCAL, SITES), (CENTRAL, 1)])
def test_flowers_classes_add_the_noise_that_is_accounted(form: str, machines: int, tmp_path: Path) -> None:
    """Of the mean: 2 C m / sites from the server alone, sqrt(sites) times that from every machine."""
    names = ",".join(f"c{number}" for number in range(COLUMNS))
    rows = [",".join([str(label), *["0"] * (COLUMNS - 1), str(label)]) for label in (0, 1)]  # one column has signal
    table = tmp_path / "t.csv"
    table.write_text("\n".join([f"{names},y", *rows]) + "\n")
    start = ArrayRecord(numpy_ndarrays=[np.zeros((1, COLUMNS)), np.zeros(1)])
    given = {"form": form, "clip": CLIP, "multiplier": MULTIPLIER, "delta": 1e-4, "seed": 1}
    found = flower_dp(APP, [table] * SITES, start, 1, run_config={"local-epochs": 1}, **given)  # type: ignore[arg-type]
    noise = next(iter(found.values())).numpy()
    expected = 2 * CLIP * MULTIPLIER * machines**0.5 / SITES
    assert np.std(noise) == pytest.approx(expected, rel=0.08)
