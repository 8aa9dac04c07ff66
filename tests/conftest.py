"""What all tests share: where the real pictures are, and a cache that is not the user's."""

from __future__ import annotations

import copy
import gc
import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from import_order import import_tests
from rotation import left_out, whole_suite
from speed import deselect_slow, pytest_addoption, pytest_runtest_logreport, write_slow  # noqa: F401 - hooks

# Processes of tests that import torch compile it once, not each: a process that may not keep what it has compiled
# starts in five seconds of work, any other in three.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# The processes of a session share the cores: threads of one would wait, busily, for those of another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray would kill a test's worker where other processes of the machine have filled its memory.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
# Shells start what runs in the background with Ctrl-C ignored, and children inherit that; tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # Until all tests are collected nothing that was imported goes: a collector would look at it again and again.
gc.disable()

SHARED = Path(__file__).resolve().parents[2] / "shared"
UNPACK = SHARED / "data" / "unpack.sh"


#: Files of twenty seconds of work or more, the longest first: a process that begins one of them last works alone at the
#: end.
LONGEST = (
    *("system/test_docs.py", "system/test_deploy_page.py", "system/test_rehearsal.py", "engines/test_engines.py"),
    *("system/test_proxy.py", "guard/test_guard_kills.py", "runs/test_views.py", "guard/test_guard_crashes.py"),
    *("attacks/test_audit.py", "system/test_ray_scale.py", "system/test_wheel.py", "system/test_benchmarks.py"),
    *("attacks/test_attack_command.py", "runs/test_stopping.py", "system/test_ray_start.py", "guard/test_standing.py"),
    *("deployment/test_secure_sum_nodes.py", "mechanisms/test_hostile_thetas.py", "contract/test_every_method.py"),
    *("mechanisms/test_per_example.py", "checking/test_several_calls.py", "system/test_docs_site.py"),
    *("system/test_report_browser.py", "runs/test_resume.py", "studies/test_leaderboard.py", "runs/test_sweep.py"),
    *("system/test_superlink_process.py", "studies/test_reproduction.py", "doors/test_cli.py"),
)


def _pictures_are_there() -> bool:
    return bool(os.environ.get("FEDPRIV_PICTURES")) or UNPACK.is_file()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    import_tests(session.config, Path(__file__).parent)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files begin first (`LONGEST`). Deselects, rather than skips, what needs the real pictures, the texts of the
    papers, R, NVFlare or Ray, where there are none: a skip is a fault here. So is what other commits run (`rotation`).
    """
    root = Path(__file__).parent
    place = {root / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(LONGEST)))
    deselect_slow(config, items)
    # What is imported by now stays. A collector that went through it again and again took a twentieth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    papers = bool(os.environ.get("FEDPRIV_PAPERS")) or (SHARED / "papers" / "text").is_dir()
    packages = {name: find_spec(name) is not None for name in ("nvflare", "ray")}
    rscript = shutil.which("Rscript") is not None
    there = {"pictures": _pictures_are_there(), "papers": papers, "rscript": rscript, **packages}
    missing = [mark for mark, found in there.items() if not found]
    unavailable = [item for item in items if any(item.get_closest_marker(mark) for mark in missing)]
    if whole_suite(config):
        unavailable += [item for item in left_out(items) if item not in unavailable]
    if unavailable:
        gone = set(unavailable)
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=unavailable)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test is a failure: nothing here may be left out silently."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    write_slow(session.config)


@pytest.fixture(autouse=True)
def _plays_are_counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tests of a check (`checking/counted_plays.py`)."""
    if request.path.parent.name == "checking":
        from counted_plays import count_plays

        count_plays(monkeypatch, getattr(request.module, "MILLISECONDS_OF_A_PLAY", None))


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Folder with MNIST/raw, cifar10 and cifar100: $FEDPRIV_PICTURES, or what ../shared/data unpacks to."""
    if folder := os.environ.get("FEDPRIV_PICTURES"):
        return Path(folder)
    return Path(subprocess.run([UNPACK], check=True, capture_output=True, text=True).stdout.strip())


#: A run of about half a second: four clients, three rounds, the default method on the default data.
SMALL = ("num_clients=4", "clients_per_round=4", "num_rounds=3", "engine=inprocess")
#: The report takes longer than such a run.
NO_REPORT = "operations.report=false"

Run = Callable[..., Path]


#: Numbers that an audit of release code draws in the tests of methods: a thirtieth of what a user's audit draws.
FEWER_NUMBERS = 3e7


@pytest.fixture(autouse=True)
def shorter_audits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code at the same dimension, with fewer trials: a user's audit takes a minute."""
    module = sys.modules.get("fedpriv.attacks.release_audit")
    if module is not None and request.node.path.parent.name in ("methods", "server", "privacy"):
        monkeypatch.setattr(module, "ALL_NUMBERS", FEWER_NUMBERS)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run("strategy=fedavg", ..., folder=None)``: a small run in this process, without a report (`page_of` writes
    it); returns its folder.
    """
    numbers = itertools.count(1)

    def start(*overrides: str, folder: Path | None = None) -> Path:
        from fedpriv.config.compose import compose
        from fedpriv.runs.start import start_run

        folder = folder or tmp_path / f"run{next(numbers)}"
        start_run(compose([*SMALL, NO_REPORT, *overrides]), folder)
        return folder

    return start


@contextmanager
def ctrl_c(after: int = 1, seed: int | None = None) -> Iterator[None]:
    """While it lasts, somebody presses Ctrl-C behind this round of every run, or of those with a seed."""
    from fedpriv.runs.session import Session

    real = Session._end_round

    def pressed(session: Session, current: Any) -> None:
        real(session, current)
        if current.number == after and seed in (None, session.config.seed):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "_end_round", pressed)
        yield


@pytest.fixture
def resumed(tmp_path: Path, run: Run) -> Callable[..., Path]:
    """``resumed("strategy=fedavg", ..., after=3)``: a run that Ctrl-C ended behind a round and that was resumed; its
    folder.
    """

    def start(*overrides: str, after: int) -> Path:
        from fedpriv.runs.start import resume_run

        folder = tmp_path / "interrupted"
        with ctrl_c(after), pytest.raises(KeyboardInterrupt):
            run(*overrides, folder=folder)
        resume_run(folder)
        return folder

    return start


@pytest.fixture
def machines(tmp_path: Path) -> Callable[..., Any]:
    """``machines(count, {"limits": {...}, ...})``: nodes (`deployed.Machines`) whose policy differs from
    `deployed.POLICY` in these entries.
    """

    def make(count: int = 2, changes: dict[str, Any] | None = None) -> Any:
        from deployed import POLICY, Machines

        policy = copy.deepcopy(POLICY)
        for name, value in (changes or {}).items():
            policy[name] = policy[name] | value if isinstance(value, dict) else value
        return Machines(tmp_path, count, policy)

    return make


@dataclass(frozen=True)
class Outcome:
    """What a call of the command line gave."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """``cli("seed=1", ...)``: the command line in this process, working in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Outcome:
        from fedpriv.commands.runs import main

        capfd.readouterr()
        code = main(said_once(arguments))
        return Outcome(code, *capfd.readouterr())

    return call


def said_once(arguments: Sequence[str]) -> list[str]:
    """Of options that are given twice the last: tests change defaults of their own, and a person would be told."""
    kept: dict[str, str] = {}
    for word in arguments:
        key = word if word.startswith("-") else word.partition("=")[0]
        kept.pop(key, None)
        kept[key] = word
    return list(kept.values())


def page_of(folder: Path) -> str:
    """The report of a finished run with all that the experimenter may see, written now."""
    from fedpriv.report.page import write_report

    write_report(folder)
    whole = folder / "private" / "report.html"
    return (whole if whole.exists() else folder / "report.html").read_text()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rounds of a run, with what private/ has of them."""
    from fedpriv.runs.folder import RunFolder

    return RunFolder(folder).metrics.read()


def summary_of(folder: Path) -> dict[str, Any]:
    """The summary of a run, with what private/ has of it."""
    from fedpriv.runs.folder import RunFolder

    found = RunFolder(folder).read_summary()
    assert found is not None
    return found


def ledger_of(folder: Path) -> list[dict[str, Any]]:
    """One mapping for each entry of a run's ledger."""
    from fedpriv.privacy.events import entry_to_json
    from fedpriv.privacy.ledger import LedgerFile

    return [entry_to_json(entry) for entry in LedgerFile(folder / "ledger.jsonl", fsync=False).read().entries]


def result_of(folder: Path) -> dict[str, Any]:
    """Everything of a run that must be the same whenever the run is the same, as one comparable value."""
    rows, summary = rows_of(folder), summary_of(folder)
    return {
        "model": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "ledger": (folder / "ledger.jsonl").read_text(),
        "metrics": [{key: value for key, value in row.items() if key not in ("seconds", "timings")} for row in rows],
        "summary": {key: summary[key] for key in ("accuracy", "loss", "privacy", "traffic", "rounds", "note")},
    }


@pytest.fixture(scope="session", autouse=True)
def _cache_of_this_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for all processes of the session: what one has decoded, divided or composed, the others read."""
    import session_cache

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ["FEDPRIV_CACHE"] = str(shared / "cache")
    os.environ["XDG_CONFIG_HOME"] = str(shared / "user")  # of this session's user: whose runs are whose
    with session_cache.shared(shared / "answers"):
        yield


@pytest.fixture(autouse=True)
def _not_probed(request: pytest.FixtureRequest) -> Iterator[None]:
    """A node's `init` tries its sandbox; of the many that tests begin, none does: `guard/test_probe.py` tries it."""
    if request.path.parent.name != "guard" or request.path.stem == "test_probe":
        yield
        return
    from fedpriv.guard import probe

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "probe", lambda: probe.Probed(0, 0, 0, (), 0.0))
        yield


@pytest.fixture
def kernel_alone() -> Iterator[None]:
    """One test at a time, of all processes, changes or reads what this machine's kernel has once."""
    import fcntl

    with open(Path(tempfile.gettempdir()) / "fedpriv-tests-kernel", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_progress_lines() -> Iterator[None]:
    """On a slow machine set-up would say how long it takes, beside the one line of an error."""
    from fedpriv.report.live import task

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "FIRST", 3600.0)
        yield


def _looked_at(descriptor: int) -> None:
    """In place of `os.fsync`; as there, an error where nothing is open."""
    os.fstat(descriptor)


@pytest.fixture(scope="session", autouse=True)
def _nobody_waits_for_the_disk() -> Iterator[None]:
    """No test cuts the power: what a process has written, others read, also where it was killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _looked_at)
        yield


@pytest.fixture(scope="session", autouse=True)
def _runs_follow_one_another() -> Iterator[None]:
    """Runs on Ray share its start and its workers, as the jobs of a sweep do."""
    from fedpriv.engines.keeping import kept_between_runs

    with kept_between_runs():
        yield
