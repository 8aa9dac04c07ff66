"""Rounds that cannot be repeated bit for bit are new releases: a number of their own, never one used before."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Run

from fedpriv.common.errors import RunFailed
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.start import resume_run


def test_every_start_gets_an_attempt_of_its_own_even_if_nothing_was_collected(tmp_path: Path) -> None:
    assert [RunFolder(tmp_path).next_attempt() for _ in range(3)] == [1, 2, 3]


def test_a_round_shaped_by_the_clock_is_not_repeated_under_the_same_keys(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is in such a round is no function of the seed: its successors would meet the old noise with other updates."""
    folder = tmp_path / "run"
    always_late = SimpleNamespace(monotonic=lambda: math.inf)
    monkeypatch.setattr("fedpriv.engines.inprocess.time", always_late)
    with pytest.raises(RunFailed, match="no reply"):
        run(folder=folder)
    assert RunFolder(folder).disturbed
    with pytest.raises(RunFailed):
        resume_run(folder)
    assert (folder / "attempt").read_text() == "1\n"


def test_an_undisturbed_run_is_repeatable(run: Run) -> None:
    folder = run("engine.faults=[{round:2,client:1,kind:drop}]", "strategy.server.min_replies=1")
    assert not RunFolder(folder).disturbed and not (folder / "attempt").exists()
