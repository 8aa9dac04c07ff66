"""Targets by name, in processes of their own: whatever they do, a check ends in one line. And the command, its pages
and the pytest fixture.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import psutil
import pytest

from fedpriv.checking import child
from fedpriv.checking.child import Limits, check_name, load_target
from fedpriv.checking.subject import Question
from fedpriv.commands.check import check as command
from fedpriv.commands.check import main
from fedpriv.common.command_line import read_arguments
from fedpriv.common.errors import OptionError

TARGETS = Path(__file__).parent / "check_targets.py"
SMALL = Question(dims=(8,), trials=400)

pytest_plugins = ("pytester",)


@pytest.fixture(autouse=True)
def other_processes_may_have_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a limit in seconds of CPU is met first, however long these take."""
    monkeypatch.setattr(child, "PATIENCE", 100.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hangs", "it waits for something"),
        ("spins", "had not ended after 3 s of CPU"),
        ("leaves", "SystemExit"),
        ("dies", "SIGABRT"),
        ("eats", "limited amount of memory"),
        ("fetches", "has no network"),
        ("needs_a_file", "needs data that are not there"),
        ("needs_a_gpu", "runs on the CPU"),
        ("needs_more", "more than an update and a generator (weights, mask, rng)"),
    ],
)
@pytest.mark.rotates(3)
def test_whatever_a_target_does_a_check_ends_in_words(name: str, words: str) -> None:
    found = check_name(f"{TARGETS}:{name}", SMALL, Limits(seconds=3 if name == "spins" else 12, memory=4, idle=4))
    assert found.verdict == "could not check" and words in found.last_line and "\n" not in found.last_line


@pytest.mark.slow
def test_a_target_that_forks_or_prints_much_is_checked_once() -> None:
    for name in ("forks", "chats"):
        found = check_name(f"{TARGETS}:{name}", SMALL, Limits(seconds=15, memory=4))
        assert found.verdict == "no fault found", (name, found.last_line)


@pytest.mark.slow
def test_a_signal_ends_what_a_target_left_running(tmp_path: Path) -> None:
    """A child in a session of its own, which notes its number once it runs."""
    noted, environment = tmp_path / "pid", {**os.environ, "LEFT": str(tmp_path / "pid")}
    command = [sys.executable, "-m", "fedpriv", "check", f"{TARGETS}:leaves_a_child", f"out={tmp_path}"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as check:
        while not (noted.is_file() and noted.read_text().endswith("\n")):
            assert check.poll() is None
            time.sleep(0.1)
        left = psutil.Process(int(noted.read_text()))
        check.terminate()
        assert check.wait() == 128 + signal.SIGTERM
    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_a_generator_seeded_at_import_repeats_in_every_process() -> None:
    found = check_name(f"{TARGETS}:of_the_module", SMALL)
    assert [one.name for one in found.faults] == ["noise-repeats-between-processes"]


@pytest.mark.slow
def test_so_does_one_that_an_instance_holds() -> None:
    found = check_name(f"{TARGETS}:of_an_instance", SMALL)
    assert [one.name for one in found.faults] == ["noise-repeats-between-processes"]
    assert "held-generator" in [one.name for one in found.findings]


def test_the_command_writes_its_pages_and_keeps_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"{TARGETS}:with_loss", "--epsilon", "8", "dims=8", "--trials=400", f"out={tmp_path}", "--fail-above", "9"]
    assert main(given) == 1
    said = capsys.readouterr().out
    assert "fault: number-without-noise" in said and "fails: faults found" in said
    told = json.loads((tmp_path / "check.json").read_text())
    assert told["verdict"] == "faults found" and told["audited"] == "inf" and told["claimed"] == 8
    for page in ("report.md", "report.html"):
        text = (tmp_path / page).read_text()
        assert "number-without-noise" in text and "claimed 8, verified none, audited infinite" in text


def test_a_fault_ends_with_1_and_the_form_is_the_first_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["dims=8", "trials=400", "seconds=15", f"out={tmp_path}"]
    assert [main([f"{TARGETS}:{name}", *given]) for name in ("noisy", "with_loss", "needs_more")] == [0, 1, 1]
    assert capsys.readouterr().out.startswith("taken as a function of a NumPy array and a NumPy generator\n")


def test_the_words_of_a_call() -> None:
    words, options = read_arguments(command, ["--fail-above", "8", "my_app.mod"])
    assert (words, options["fail_above"]) == (["my_app.mod"], 8)
    words, options = read_arguments(command, ["a.py:b", "epsilon=3", "--delta=1e-6"])
    assert (words, options["options"].epsilon, options["options"].delta) == (["a.py:b"], 3, 1e-6)
    for wrong, words in (
        (["a:b", "--epsilom", "3"], "did you mean epsilon"),
        (["a:b", "c:d"], "c:d: is too much"),
        (["--epsilon", "3"], "TARGET: is missing"),
        (["a:b", "--epsilon"], "needs a value"),
    ):
        with pytest.raises(OptionError, match=words):
            read_arguments(command, wrong)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:x", "there is no module no_such_module"),
        ("no/such.py:x", "there is no such file"),
        ("json:no_such", "json has no no_such"),
        ("json", "say what of it is checked"),
        ("a b", "allowed: module:attribute"),
    ],
)
def test_a_target_that_there_is_not(name: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        load_target(name)


def test_the_three_ways_to_name_a_target() -> None:
    assert load_target("json.dumps") is load_target("json:dumps") is json.dumps
    assert load_target(f"{TARGETS}:noisy").__name__ == "noisy"


def test_the_fixture_fails_a_faulty_release(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import numpy as np

        def test_sound(fedpriv_check):
            def release(update, rng):
                return update / np.maximum(1, np.linalg.norm(update)) + rng.normal(0, 4, update.shape)
            found = fedpriv_check(release, epsilon=1, dims=(8,), trials=400, fail_above=3, unverified="pass")
            assert found.verdict == "no fault found"

        def test_faulty(fedpriv_check):
            fedpriv_check(lambda update: update, dims=(8,), trials=400)

        def test_above(fedpriv_check):
            def release(update, rng):
                return update / np.maximum(1, np.linalg.norm(update)) + rng.normal(0, 4, update.shape)
            fedpriv_check(release, dims=(8,), trials=400, fail_above=8)
        """
    )
    installed = any(one.module == "fedpriv.api.pytest_plugin" for one in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "fedpriv.api.pytest_plugin")
    result = pytester.runpytest_inprocess(*plugin, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*no-randomness*", "*no epsilon is verified*"])
