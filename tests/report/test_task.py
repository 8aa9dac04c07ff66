"""Progress of what takes longer than a moment: lines without a terminal, nothing for what is quick or quiet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome, Run

from fedpriv.common import verbosity
from fedpriv.common.doing import doing, heard_by
from fedpriv.report.live import task as tasks
from fedpriv.report.live.task import task


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set whenever a line has been printed; lines come as fast as they can."""
    event = threading.Event()
    real = tasks._Task.times

    def times(self: tasks._Task) -> str:
        event.set()
        return real(self)

    monkeypatch.setattr(tasks._Task, "times", times)
    monkeypatch.setattr(tasks, "BETWEEN", 0.01)
    return event


def test_lines_say_what_is_done_and_how_far(shown: threading.Event, capfd: pytest.CaptureFixture[str]) -> None:
    with task("audit", first=0.0):
        for words, done, of in (("one release", None, None), ("trials", 300_000, 800_000)):
            doing(words, done, of)
            shown.clear()
            assert shown.wait(60) and shown.clear() is None and shown.wait(60)
    out, err = capfd.readouterr()
    assert out == "" and "audit: one release (" in err
    assert "audit: trials 300,000 of 800,000 (" in err and "s left)" in err


def test_what_is_quick_or_quiet_or_nested_says_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with task("set-up", first=3600.0):
        doing("reading", 1, 2)
    with verbosity.speaking("quiet"), task("set-up", first=0.0):
        doing("reading", 1, 2)
    heard: list[str] = []
    with heard_by(lambda words, done, of: heard.append(words)), task("outer", first=3600.0):
        doing("for the task")
        with task("inner", first=0.0):
            doing("also for the outer one")
    doing("for nobody")
    assert heard == [] and capfd.readouterr().err == ""


def test_a_task_ends_with_what_it_holds(capfd: pytest.CaptureFixture[str]) -> None:
    """No thread is left by an error."""
    before = threading.active_count()
    with pytest.raises(KeyError), task("set-up", first=3600.0):
        raise KeyError
    assert threading.active_count() == before


def test_every_command_tells_what_it_does(
    run: Run, cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Set-up, plan, audit, attack and quantisers: each says words, and counts where it can."""
    from fedpriv.commands import attack, audit, dme

    told: list[tuple[str, int | None, int | None]] = []
    monkeypatch.setattr(tasks._Task, "told", lambda self, *what: told.append((f"{self.name}: {what[0]}", *what[1:])))
    small = ("num_clients=4", "clients_per_round=4", "num_rounds=2", "operations.report=false", "engine=inprocess")
    folder = run(*small)
    assert "set-up: reading and dividing the examples" in {words for words, *_ in told}
    monkeypatch.chdir(tmp_path)
    assert cli("plan=true", *small).code == 0
    assert audit.main(["strategy=fedldp", "trials=2000", *small]) == 0
    assert dme.main(["n=4", "dimension=10", "trials=2", "figure=1", "out=dme"]) == 0
    attack.main([f"run={folder}", "attack=lira", "shadows=4", "members=20"])
    words = {one for one, *_ in told}
    assert {"plan: planning: what the run will cost", "audit: trials"} <= words
    assert "dme: quantisers of the table" in words and any(one.startswith("attack: lira") for one in words)
    counts = [(done, of) for one, done, of in told if one == "audit: trials"]
    assert counts[-1] != counts[0] and all(0 < done <= of for done, of in counts if done and of)
    assert any(done == of for done, of in counts)
