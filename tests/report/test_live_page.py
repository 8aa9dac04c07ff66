"""report.html while a run goes on: drawn by a process of its own, and at rest once the run has stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from report_runs import make_run

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.report.live.live_page import LivePage, hold_still
from fedpriv.report.page import write_report

RELOADS = 'http-equiv="refresh"'


def text(folder: Path) -> str:
    page = folder / "report.html"
    return page.read_text() if page.exists() else ""


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.02)


def test_a_live_page_is_one_of_a_run_that_goes_on(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")  # the summary of a run that is being extended says nothing about the new rounds
    page = write_report(folder, 7)
    assert f'{RELOADS} content="7"' in text(folder) and "This run goes on." in text(folder)
    assert "epsilon spent so far" in text(folder) and "verified epsilon" not in text(folder)
    hold_still(page)
    assert RELOADS not in text(folder) and "goes on" not in text(folder) and "not finished" in text(folder)
    write_report(folder)
    whole = text(folder)
    assert RELOADS not in whole and "verified epsilon" in whole
    hold_still(page)
    hold_still(tmp_path / "nowhere.html")
    assert text(folder) == whole


def test_what_a_file_says_cannot_pass_for_the_mark_of_a_live_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", finished=False)
    (folder / "config.yaml").write_text("note: <!--live-->kept<!--/live-->\n")
    hold_still(write_report(folder, 5))
    assert "kept" in text(folder)


def test_a_page_is_drawn_beside_the_run_and_rests_after_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", finished=False)
    with LivePage(folder, 5) as live:
        live.round_ended(14)
        assert live._process is None  # not its turn
        live.round_ended(15)
        process = live._process
        until(lambda: "15 of 30 rounds" in text(folder))
        assert RELOADS in text(folder)
        for number in range(20, 400_000, 5):  # more than a pipe holds, and the process still rests
            live.round_ended(number)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
    assert process.returncode is not None and RELOADS not in text(folder)
    live.close()
    assert not list(folder.glob(".report*"))


def test_without_the_option_there_is_no_process(tmp_path: Path) -> None:
    with LivePage(tmp_path, 0) as live:
        live.round_ended(1)
        assert live._process is None
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_drawn_stops_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "run", finished=False)
    (folder / "report.html").mkdir()
    with LivePage(folder, 1) as live:
        live.round_ended(1)
        said = ""
        while not said:
            said = capfd.readouterr().err
            time.sleep(0.02)
        live.round_ended(2)
        (folder / "report.html").rmdir()
        until(lambda: RELOADS in text(folder))
    assert said.count("\n") == 1 and said.startswith("fedpriv: no live report:") and "report.html" in said


KILLED = """
import sys, time
from pathlib import Path
from fedpriv.report.live.live_page import LivePage
live = LivePage(Path(sys.argv[1]), 1)
live.round_ended(1)
with LivePage(Path(sys.argv[2]), 1) as other:
    other.round_ended(1)
print(live._process.pid, sorted({"matplotlib", "jinja2"} & set(sys.modules)), flush=True)
time.sleep(600)
"""


def test_a_run_that_is_killed_leaves_a_page_at_rest_and_imports_no_plots(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", finished=False)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        pid, imported = run.stdout.readline().split(maxsplit=1)
        assert json.loads(imported) == []
        until(lambda: RELOADS in text(folder))
        run.send_signal(signal.SIGKILL)
    until(lambda: RELOADS not in text(folder))
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_run_with_the_option_writes_live_pages_and_then_its_report(
    tmp_path: Path, cli: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = LivePage.round_ended

    def round_ended(live: LivePage, number: int) -> None:
        real(live, number)
        if live._process is not None and not asked:
            until(lambda: "This run goes on." in text(folder))
        asked.append(number)

    folder = tmp_path / "run"
    monkeypatch.setattr(LivePage, "round_ended", round_ended)
    cli("num_rounds=3", "num_clients=4", "clients_per_round=4", "operations.live_report=1", f"hydra.run.dir={folder}")
    assert asked == [1, 2] and "verified epsilon" in text(folder) and RELOADS not in text(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["operations.live_report=-1"], r"operations\.live_report=-1"),
        (["operations.live_report=true"], r"operations\.live_report"),
        (
            ["operations.live_report=5", "operations.report=false"],
            r"operations\.live_report=5: needs operations\.report",
        ),
    ],
)
def test_wrong_options_are_named(options: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        compose(options)
