"""SIGTERM and Ctrl-C: the round ends, a checkpoint is written, and the resumed run ends as if nothing had happened."""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import NO_REPORT, SMALL, Outcome, ledger_of, result_of, rows_of
from flwr.app import Context, RecordDict
from flwr.supercore.exit.exit_handler import trigger_exit_handlers
from forked import COMMAND, Forks, forks
from processes import wait_until
from rotation import together

from fedpriv.client.base import Client
from fedpriv.common import stopping
from fedpriv.common.messages import Request
from fedpriv.common.stopping import SIGNALS, Stopped, stop
from fedpriv.config.compose import compose
from fedpriv.config.schema import Config
from fedpriv.engines.flower import run_on_flower
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import make_apps
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.start import resume_run, serve_flwr_run, start_run

Cli = Callable[..., Outcome]

#: State that rounds hand on, and no checkpoint of its own accord.
OPTIONS = (
    *SMALL,
    NO_REPORT,
    "num_rounds=6",
    "strategy.client.obsolete_factor=0.4",
    "checkpoint.every=0",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    start_run(compose(OPTIONS), folder)
    return folder


@pytest.fixture
def in_round(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``in_round(3, work)``: ``work`` is done as the second client of round 3 trains."""

    def plan(number: int, work: Callable[[], object]) -> None:
        real, calls = Client.batches_of, [0]

        def generators(self: Client, request: Request, clients: Sequence[int]) -> list[np.random.Generator]:
            calls[0] += request.round == number
            if request.round == number and calls[0] == 2:
                work()
            return real(self, request, clients)

        monkeypatch.setattr(Client, "batches_of", generators)

    return plan


def send(*signals: int) -> Callable[[], None]:
    return lambda: [os.kill(os.getpid(), number) for number in signals] and None


@pytest.fixture(autouse=True)
def _handlers_are_put_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert stop.requested is None


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("round-*"))


# --- in this process -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_signal_lets_the_round_end(
    number: int, code: int, cli: Cli, tmp_path: Path, whole: Path, in_round: Callable[..., None]
):
    in_round(3, send(number))
    outcome = cli(*OPTIONS, "hydra.run.dir=here")
    assert outcome.code == code
    words = "interrupted" if number == signal.SIGINT else "stopped by SIGTERM"
    assert outcome.err.splitlines() == [
        "fedpriv: stopping when this round ends, after 20 s at the latest; a second signal stops at once",
        f"fedpriv: {words}; resume=here goes on from the last checkpoint",
    ]
    assert checkpoints(tmp_path / "here") == ["round-000003"] and len(rows_of(tmp_path / "here")) == 3
    assert cli("resume=here").code == 0
    assert result_of(tmp_path / "here") == result_of(whole)


@pytest.mark.parametrize("how", ["second signal", "grace"])
def test_a_round_that_is_abandoned(how: str, cli: Cli, tmp_path: Path, whole: Path, in_round: Callable[..., None]):
    """What had left is in the ledger; the last checkpoint is older."""
    waits = 30.0 if how == "grace" else 0.0
    signals = (signal.SIGTERM,) if how == "grace" else (signal.SIGTERM, signal.SIGINT)
    ended = list[bool]()
    in_round(3, lambda: (send(*signals)(), time.sleep(waits), ended.append(True)))
    outcome = cli(*OPTIONS[:-1], "checkpoint.every=2", "operations.stop_grace=0.2", "hydra.run.dir=here")
    assert outcome.code == 143 and not ended
    assert checkpoints(tmp_path / "here") == ["round-000002"] and len(rows_of(tmp_path / "here")) == 2
    left = [entry for entry in ledger_of(tmp_path / "here") if entry["round"] == 3]
    assert left and left == [entry for entry in ledger_of(whole) if (entry["round"], entry["client"]) == (3, 0)]
    resume_run(tmp_path / "here")
    assert result_of(tmp_path / "here") == result_of(whole)


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("before", [False, True], ids=["asked while writing", "asked before"])
def test_a_checkpoint_is_written_whole_however_short_the_grace(
    second: bool, before: bool, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_round: Callable[..., None]
):
    """The grace rests meanwhile; a second signal does not wait for the disk either."""
    real = RunFolder.save_checkpoint

    def slowly(self: RunFolder, *given: Any) -> None:
        if not before:
            send(signal.SIGTERM)()
        stop._end_grace()
        if second:
            send(signal.SIGINT)()
        real(self, *given)

    monkeypatch.setattr(RunFolder, "save_checkpoint", slowly)
    if before:
        in_round(3, send(signal.SIGTERM))
    outcome = cli(*OPTIONS[:-1], "checkpoint.every=3", "hydra.run.dir=here")
    assert outcome.code == 143
    assert checkpoints(tmp_path / "here") == ([] if second else ["round-000003"])
    goes_on = "begins anew: no checkpoint" if second else "goes on from the last checkpoint"
    assert outcome.err.splitlines()[-1] == f"fedpriv: stopped by SIGTERM; resume=here {goes_on}"


def test_a_worker_hands_an_interruption_to_who_waits_for_it() -> None:
    there = pickle.loads(pickle.dumps(Stopped(signal.SIGTERM, "in round 3")))
    assert (there.signum, there.args) == (signal.SIGTERM, ("in round 3",))


def test_after_a_checkpoint_the_grace_goes_on():
    with pytest.raises(Stopped), stop.handled(), stop.graceful(0.2):
        with stop.resting():
            send(signal.SIGTERM)()
            timer = stop._timer
            assert timer is not None
            wait_until(timer.finished.is_set)
            timer.join()
        wait_until(lambda: False)  # until the signal comes
    assert stop.requested is None


def test_a_signal_in_the_last_round_changes_nothing(
    cli: Cli, tmp_path: Path, in_round: Callable[..., None], whole: Path
):
    in_round(6, send(signal.SIGTERM))
    assert cli(*OPTIONS, "hydra.run.dir=here").code == 0
    assert result_of(tmp_path / "here") == result_of(whole)


def test_a_signal_before_the_first_round(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from fedpriv.runs import start as run_module

    monkeypatch.setattr(run_module, "resolve", lambda config, path: send(signal.SIGTERM)())
    outcome = cli(*OPTIONS, "hydra.run.dir=here")
    assert (outcome.code, outcome.err) == (143, "fedpriv: stopped by SIGTERM\n")
    assert not (tmp_path / "here").exists()


def test_a_sweep_ends_with_the_job(cli: Cli, tmp_path: Path, in_round: Callable[..., None]):
    in_round(2, send(signal.SIGTERM))
    outcome = cli("-m", *OPTIONS, "num_rounds=2", "seed=0,1", "hydra.sweep.dir=sweep")
    assert outcome.code == 143  # job 0 was in its last round: it has finished, and job 1 was not begun
    assert [path.parent.name for path in (tmp_path / "sweep").glob("*/summary.json")] == ["0-fedcad-digits"]
    assert not list((tmp_path / "sweep").glob("1-*/config.yaml"))


def test_signals_that_are_ignored_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop.handled():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == stop._on_signal
    finally:
        signal.signal(signal.SIGINT, before)


def test_where_nothing_can_end_gracefully_a_signal_stops_at_once():
    with pytest.raises(Stopped) as stopped, stop.handled():
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.signum == signal.SIGTERM


# --- inside Flower's processes ---------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Callable[[], None]:
    """The server half as Flower's ServerApp process calls it, on a grid of ours; clients keep their memory in files."""
    config: Config = compose(OPTIONS).model_copy(update={"run_dir": str(tmp_path / "run")})
    engine = config.engine.model_copy(update={"name": "flower", "trainer": "sequential"})
    config = config.model_copy(update={"engine": engine})

    def serve() -> None:
        _, client_app = make_apps(config)
        with InProcessGrid(config, client_app) as grid:
            serve_flwr_run(grid, Context(1, 1, {}, RecordDict(), {}), config)

    return serve


def test_flower_on_the_main_thread_gets_the_signal_afterwards(
    served: Callable[[], None], in_round: Callable[..., None], tmp_path: Path, whole: Path
):
    seen: list[list[str]] = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(checkpoints(tmp_path / "run")))
    in_round(3, send(signal.SIGTERM))
    try:
        with pytest.raises(Stopped):
            served()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [["round-000003"]]
    served()
    found, wanted = result_of(tmp_path / "run"), result_of(whole)
    assert found["model"] == wanted["model"] and found["ledger"] == wanted["ledger"] != ""


def test_flower_on_another_thread_is_made_to_wait(
    served: Callable[[], None], in_round: Callable[..., None], tmp_path: Path
):
    reached, ended = threading.Event(), []

    def serve() -> None:
        try:
            served()
        except Stopped:
            ended.append(checkpoints(tmp_path / "run"))

    in_round(3, reached.set)
    thread = threading.Thread(target=serve)
    thread.start()
    assert reached.wait(60)
    try:
        trigger_exit_handlers(run_before_force_exit=True)  # what Flower's own handler does first
        thread.join(0.5)
        assert ended == [["round-000003"]]
    finally:
        thread.join(60)
        with stop.handled():  # forgets the request
            pass


def test_flower_waits_for_a_checkpoint_that_takes_longer_than_the_grace(
    served: Callable[[], None], in_round: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The grace is 30 s by default: three hundred looks."""
    waits, asked, real = [0], threading.Event(), RunFolder.save_checkpoint

    class Counting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is not None:  # who waits for the end of the run
                wait_until(lambda: stop._rests or self.is_set(), pause=0.001)
                waits[0] += 1
            return super().wait(timeout and 0.0001)

    def slowly(self: RunFolder, *given: Any) -> None:
        wait_until(lambda: waits[0] > 1000 or not ending.is_alive())
        assert ending.is_alive()
        real(self, *given)

    def end() -> None:
        asked.wait()
        trigger_exit_handlers(run_before_force_exit=True)

    monkeypatch.setattr("fedpriv.runs.start.threading", SimpleNamespace(**vars(threading) | {"Event": Counting}))
    monkeypatch.setattr(RunFolder, "save_checkpoint", slowly)
    ending, stopped = threading.Thread(target=end), []

    def serve() -> None:
        try:
            served()
        except Stopped:
            stopped.append(checkpoints(tmp_path / "run"))

    def ask() -> None:
        asked.set()
        wait_until(lambda: stop.requested)

    in_round(3, ask)
    thread = threading.Thread(target=serve)
    try:
        ending.start()
        thread.start()
        thread.join()
        ending.join()
        assert stopped == [["round-000003"]] and waits[0] > 1000
    finally:
        asked.set()
        with stop.handled():  # forgets the request
            pass


def test_only_time_in_which_nothing_rests_counts():
    class Ended(threading.Event):
        looks = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.looks += 1
            stop._rests = self.looks < 50
            return False

    ended = Ended()
    try:
        stop.wait(ended, 3 * stopping.STEP)
    finally:
        stop._rests = False
    assert ended.looks == 49 + 3


def test_an_interruption_leaves_flowers_simulation(monkeypatch: pytest.MonkeyPatch):
    """Its runtime would swallow it in the server's thread."""

    def runtime(server_app: Callable, *_: object, **__: object) -> None:
        thread = threading.Thread(target=server_app, args=(None, Context(1, 1, {}, RecordDict(), {})))
        thread.start()
        thread.join()

    def serve(grid: object, context: object) -> None:
        raise Stopped(signal.SIGTERM)

    monkeypatch.setitem(sys.modules, "flwr.simulation", SimpleNamespace(run_simulation=runtime))  # the real one: 4 s
    with pytest.raises(Stopped):
        run_on_flower(compose(SMALL), serve)


# --- real processes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forks(tmp_path_factory.mktemp("forked")) as processes:
        yield processes


def stopped(forked: Forks, folder: Path, *options: str, wait: float = 0.0) -> tuple[int, str]:
    """Exit code, and what it said, of a process that is told to end when, in ``folder``/run, some run has ended a round
    and ``wait`` seconds have passed.
    """
    child = forked.start(COMMAND, *options, folder=folder)
    try:
        wait_until(lambda: any(path.stat().st_size for path in (folder / "run").rglob("metrics.jsonl")), child, 0.01)
        time.sleep(wait)
        os.kill(child, signal.SIGTERM)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        code = forked.wait(child)
    return code, (folder / "err").read_text()


LONG = (
    *SMALL[:-1],
    *("num_rounds=40", "checkpoint.every=0", "evaluate.every=0", "engine.trainer=sequential", NO_REPORT),
)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The long run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("long") / "run"
    start_run(compose([*LONG, "engine=inprocess"]), folder)
    return folder


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inprocess", "ray"])
def test_sigterm_of_a_real_process_at_a_random_moment(engine: str, forked: Forks, tmp_path: Path, long: Path):
    options = (*LONG, f"engine={engine}", "engine.workers=1", "hydra.run.dir=run")
    code, err = stopped(forked, tmp_path, *options, wait=random.Random().uniform(0, 0.2))
    assert code == 143, err
    assert err.splitlines()[-1] == "fedpriv: stopped by SIGTERM; resume=run goes on from the last checkpoint"
    assert checkpoints(tmp_path / "run") == [f"round-{len(rows_of(tmp_path / 'run')):06d}"]
    if engine == "ray":  # a second start of Ray would show no more than one without
        whole, part = ((folder / "ledger.jsonl").read_text() for folder in (long, tmp_path / "run"))
        assert part and whole.startswith(part)
        return
    resume_run(tmp_path / "run")
    found, wanted = result_of(tmp_path / "run"), result_of(long)
    assert found["model"] == wanted["model"] and found["ledger"] == wanted["ledger"]


@pytest.mark.rotates(2, together(0))
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_jobs_in_other_processes_stop_behind_their_rounds(forked: Forks, tmp_path: Path):
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=run")
    jobs = ("-m", *SMALL, "num_rounds=500", "checkpoint.every=0", "seed=0,1,2")
    code, err = stopped(forked, tmp_path, *jobs, *launcher)
    assert code == 143, err
    begun = sorted(path.parent for path in (tmp_path / "run").glob("*/config.yaml"))
    assert 1 <= len(begun) <= 2  # the third was not
    for folder in begun:  # the second may not have come to its first round
        rounds = len(rows_of(folder)) if (folder / "metrics.jsonl").exists() else 0
        assert checkpoints(folder) == ([f"round-{rounds:06d}"] if rounds else [])
        assert (folder / "failed.txt").read_text().startswith("exit code 143: stopped by SIGTERM; resume=")
