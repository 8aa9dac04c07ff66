"""A run that is killed, interrupted or torn goes on and ends as if nothing had happened; a rerun is the same run."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import NO_REPORT, SMALL, Outcome, Run, ctrl_c, ledger_of, result_of, rows_of, said_once, summary_of
from forked import COMMAND, TESTS, Forks, forks
from processes import wait_until

from fedpriv.client import base as client
from fedpriv.client.memories import StoredMemories
from fedpriv.common import files, versions
from fedpriv.common.checksums import write_sums
from fedpriv.common.errors import RunFailed, RunFolderError
from fedpriv.common.messages import Request
from fedpriv.config.compose import compose, read_config
from fedpriv.config.schema import Config
from fedpriv.engines.grid import Contexts
from fedpriv.engines.worker import Worker
from fedpriv.privacy import ledger
from fedpriv.report.live import task as live_task
from fedpriv.runs import folder as run_folder
from fedpriv.runs import start
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.other_options import config_for_rerun
from fedpriv.runs.planning import make_plan
from fedpriv.runs.session import ATTEMPTS_PER_START, RESUME_SHOWN, CheckpointPace, Session
from fedpriv.runs.start import resume_run, start_run
from fedpriv.training import evaluation

#: State of every kind matters: an adaptive Diff, correlated noise, partial cohorts, checkpoints every second round.
OPTIONS = (
    *SMALL,
    "num_clients=5",
    "clients_per_round=3",
    "num_rounds=7",
    "strategy.client.obsolete_factor=0.4",
    "checkpoint.every=2",
    "checkpoint.keep=2",
    "evaluate.every=2",
    NO_REPORT,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    start_run(compose(OPTIONS), folder)
    return folder


# --- kill -9 ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Starts processes that know this file and have a single thread."""
    with forks(tmp_path_factory.mktemp("forked"), "test_resume", path=(TESTS, Path(__file__).parent)) as started:
        yield started


#: What such a process does: a phase becomes deadly, and then a run is started or goes on.
KILLED = """
import sys
from pathlib import Path
from test_resume import OPTIONS, PHASES, compose, resume_run, start_run

phase, what, folder = sys.argv[1:]
PHASES[phase]()
resume_run(Path(folder)) if what == "resume" else start_run(compose(OPTIONS), Path(folder))
"""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at(owner: object, name: str, call: int, half: bool = False) -> Callable[[], None]:
    """Makes the ``call``-th call of a function deadly: before it, or (``half``) after half of the bytes it writes."""

    def install() -> None:
        real, calls = getattr(owner, name), iter(range(1, 10**6))

        def deadly(*arguments, **options):
            if next(calls) == call:
                if half:
                    descriptor, content = arguments
                    os.write = real
                    real(descriptor, content[: len(content) // 2])
                die()
            return real(*arguments, **options)

        setattr(owner, name, deadly)

    return install


#: Changes of the disk before which a run is killed, from config.yaml to the last round.
DEADLY = range(20, 111, 1 if "FEDPRIV_STRESS" in os.environ else 18)
#: What changes a file or a folder.
CHANGES = ("write", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir")


def dies_before_change(number: int) -> Callable[[], None]:
    """Makes the ``number``-th change of the disk deadly, whatever it is: before it."""

    def install() -> None:
        changes = iter(range(1, 10**6))

        def deadly(real: Callable[..., object], *arguments, **options):
            if next(changes) == number:
                die()
            return real(*arguments, **options)

        for name in CHANGES:
            setattr(os, name, partial(deadly, getattr(os, name)))

    return install


def dies_spilling(call: int, written: bool) -> Callable[[], None]:
    """Of states next to nothing stays in memory, and the ``call``-th that goes into the file is deadly: before it, or
    when SQLite has it and nobody knows.
    """

    def install() -> None:
        made, write, calls = Contexts.__init__, StoredMemories.write, iter(range(1, 10**6))

        def small(self, *arguments, **options):
            made(self, *arguments, **options)
            self.most = 1

        def deadly(self, *arguments):
            last = next(calls) == call
            if written or not last:
                write(self, *arguments)
            if last:
                die()

        Contexts.__init__, StoredMemories.write = small, deadly

    return install


PHASES = {
    "before a state of round 2 is spilled": dies_spilling(5, written=False),
    "a state of round 4 was spilled": dies_spilling(9, written=True),
    "before anything but config.yaml": dies_at(Session, "__init__", 1),
    "first client of the first round": dies_at(client.Client, "check_budget", 1),
    "a client's training in the middle of a round": dies_at(client.Client, "check_budget", 3 * 4 + 2),
    "before the ledger of round 5": dies_at(ledger.LedgerFile, "append", 5),
    "half of the ledger's lines of round 5": dies_at(os, "write", 5, half=True),
    "between ledger and metrics": dies_at(run_folder.RoundLines, "append", 5),
    "evaluation of round 6": dies_at(evaluation.Evaluator, "__call__", 3),
    "before the checkpoint of round 4": dies_at(run_folder.RunFolder, "save_checkpoint", 2),
    "in the middle of the checkpoint of round 4": dies_at(run_folder, "save", 4),
    "checkpoint written but not in its place": dies_at(Path, "rename", 2),
    "after the last round, before the model": dies_at(run_folder.RunFolder, "save_model", 1),
    "model written, no summary": dies_at(run_folder.RunFolder, "write_summary", 1),
    "after two rounds": dies_at(run_folder.RoundLines, "append", 3),
    "between the private and the public line of round 3": dies_at(files.JsonLines, "append", 6),
    **{f"before change {number} of the disk": dies_before_change(number) for number in DEADLY},
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_run_killed_in_any_phase_ends_bit_identical(phase: str, forked: Forks, whole: Path, tmp_path: Path):
    folder = tmp_path / "run"
    code, printed = forked.run(KILLED, phase, "start", str(folder), folder=tmp_path)
    assert code == -signal.SIGKILL, printed
    assert not (folder / "summary.json").exists()
    resume_run(folder)
    assert result_of(folder) == result_of(whole)
    assert not list(folder.rglob("*.new")) and not (folder / "checkpoints" / ".writing").exists()


def test_killed_again_and_again(forked: Forks, whole: Path, tmp_path: Path):
    folder, starts, code = tmp_path / "run", 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        what = "resume" if starts else "start"
        starts += 1
        code, printed = forked.run(KILLED, "after two rounds", what, str(folder), folder=tmp_path)
    assert code == 0, printed
    assert starts == 4  # 2 + 2 + 2 + 1 rounds
    assert result_of(folder) == result_of(whole)


# --- what a crash or a hand leaves behind ----------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that Ctrl-C ended in round 6; its newest checkpoint is of round 4."""
    folder, real = tmp_path_factory.mktemp("stopped") / "run", client.Client.batches_of

    def ctrl_c(self: client.Client, request: Request, who: Sequence[int]) -> list[np.random.Generator]:
        if request.round == 6:
            raise KeyboardInterrupt
        return real(self, request, who)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(client.Client, "batches_of", ctrl_c)
        start_run(compose(OPTIONS), folder)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["round-000002", "round-000004"]
    return folder


@pytest.fixture
def interrupted(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test may change."""
    return shutil.copytree(stopped, tmp_path / "run")


def test_ctrl_c_and_on(interrupted: Path, whole: Path):
    resume_run(interrupted)
    assert result_of(interrupted) == result_of(whole)


def test_a_clock_that_jumps_changes_nothing(interrupted: Path, whole: Path, monkeypatch: pytest.MonkeyPatch):
    real, jumps = time.time, itertools.cycle((0.0, 1e8, -1e8))  # three years
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    resume_run(interrupted)
    assert result_of(interrupted) == result_of(whole)
    assert all(0 <= row["seconds"] < 1e6 for row in rows_of(interrupted))


def test_torn_last_lines(interrupted: Path, whole: Path):
    for name in ("metrics.jsonl", "ledger.jsonl"):
        content = (interrupted / name).read_bytes()
        (interrupted / name).write_bytes(content[:-7])
    resume_run(interrupted)
    assert result_of(interrupted) == result_of(whole)


def test_a_moved_folder(interrupted: Path, whole: Path):
    moved = interrupted.rename(interrupted.parent / "moved elsewhere")
    resume_run(moved)
    assert result_of(moved) == result_of(whole)


def change_a_byte(file: Path, place: int = -9) -> None:
    """Of a model.safetensors the default is the sign and the exponent of a parameter."""
    content = bytearray(file.read_bytes())
    content[place] ^= 0x40
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "clients.safetensors", "checkpoint.json", "SHA256SUMS"])
def test_a_changed_byte_falls_back_by_name(name: str, interrupted: Path, whole: Path, capsys: pytest.CaptureFixture):
    change_a_byte(interrupted / "checkpoints" / "round-000004" / name)
    summary = resume_run(interrupted)
    words = capsys.readouterr().err
    assert "round-000004 is damaged" in words and name in words and "resumed from round 2" in words
    assert "round-000004 is damaged" in summary["note"]
    found, expected = result_of(interrupted), result_of(whole)
    assert found.pop("summary") == expected.pop("summary") | {"note": summary["note"]} and found == expected


def test_a_resume_that_takes_long_shows_what_it_does_and_how_far_it_is(
    interrupted: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
):
    shown, heard, real = list[str](), list[tuple[object, ...]](), start.make_plan

    def planned(*given: Any) -> Any:
        wait_until(lambda: any("planning" in line for line in shown))  # as if it took longer than that
        return real(*given)

    def told(self: Any, words: str, done: int | None, of: int | None) -> None:
        heard.append((words, done, of))
        told_really(self, words, done, of)

    told_really = live_task._Task.told
    monkeypatch.setattr(start, "make_plan", planned)
    monkeypatch.setattr(start, "RESUME_SHOWN", 0.0)
    monkeypatch.setattr(live_task, "BETWEEN", 0.01)
    monkeypatch.setattr(live_task, "say", lambda line, **_: shown.append(line))
    monkeypatch.setattr(live_task._Task, "told", told)
    assert RESUME_SHOWN == 2.0
    resume_run(interrupted)
    assert shown[0].startswith("resume: ")
    lines = len((interrupted / "ledger.jsonl").read_text().splitlines())
    words = [one for one, _, _ in heard]
    assert words[0] == "checking and reading the checkpoint round-000004" and "putting back clients: 5" in words
    ((_, done, of),) = [one for one in heard if one[0] == "cutting the ledger back to round 4, lines"]
    assert done == 0 and 0 < of <= lines
    assert result_of(interrupted) == result_of(whole)


def test_every_byte_of_a_checkpoint_counts(interrupted: Path):
    folder = run_folder.RunFolder(interrupted)
    newest, config = folder.checkpoints()[-1], read_config(interrupted)
    files = [file for file in newest.iterdir() for _ in range(12)]
    rng = np.random.default_rng(0)
    for file in files:
        whole = file.read_bytes()
        change_a_byte(file, int(rng.integers(len(whole))))
        assert folder.load_checkpoint(config).round == 2 and file.name in folder.damaged[0], file.name
        file.write_bytes(whole)
    assert folder.load_checkpoint(config).round == 4 and folder.damaged == []


@pytest.mark.parametrize("lost", ["model.safetensors", "clients.safetensors", "checkpoint.json", "SHA256SUMS"])
def test_no_whole_checkpoint_is_an_error_that_names_them(lost: str, interrupted: Path):
    ledger_before = (interrupted / "ledger.jsonl").read_bytes()
    file = interrupted / "checkpoints" / "round-000004" / "clients.safetensors"
    file.write_bytes(file.read_bytes()[:50])
    (interrupted / "checkpoints" / "round-000002" / lost).unlink()
    with pytest.raises(RunFolderError, match=rf"round-000004 is damaged \(clients.*round-000002 is damaged \({lost}"):
        resume_run(interrupted)
    assert (interrupted / "ledger.jsonl").read_bytes() == ledger_before


@pytest.mark.parametrize("checkpoints", ["there", "removed"])
def test_another_configuration_is_refused(interrupted: Path, checkpoints: str):
    """Rounds would use the noise of rounds that went out under the first configuration."""
    if checkpoints == "removed":
        shutil.rmtree(interrupted / "checkpoints")
    raw = yaml.safe_load((interrupted / "config.yaml").read_text())
    raw["local"]["lr"] = 0.2
    (interrupted / "config.yaml").write_text(yaml.safe_dump(raw))
    before = (interrupted / "ledger.jsonl").read_text()
    with pytest.raises(RunFolderError, match=r"another configuration than .*config.yaml"):
        resume_run(interrupted)
    assert (interrupted / "ledger.jsonl").read_text() == before


def test_other_versions_are_refused(interrupted: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.rmtree(interrupted / "checkpoints")
    real = versions.library_versions()
    monkeypatch.setattr("fedpriv.runs.folder.library_versions", lambda: real | {"torch": "9.9"})
    with pytest.raises(RunFolderError, match=rf"other versions \(torch {real['torch']} -> 9.9\)"):
        resume_run(interrupted)


def test_a_run_of_another_version_of_fedpriv_is_refused_for_its_code(interrupted: Path):
    """Whose digest of the configuration may be another, too: the folder's own config.yaml is not at fault."""
    file = interrupted / "checkpoints" / "round-000004"
    about = json.loads((file / "checkpoint.json").read_text())
    about |= {"config": 64 * "0", "files": about["files"] | {"clients/fedcad.py": 16 * "0"}}
    (file / "checkpoint.json").write_text(json.dumps(about))
    write_sums(file, [path.name for path in file.iterdir() if path.name != "SHA256SUMS"])
    with pytest.raises(
        RunFolderError, match=r"by other code \(clients/fedcad.py has changed\): put that back, or rerun"
    ):
        resume_run(interrupted)


def test_a_config_that_is_broken_or_wrong_is_one_line(interrupted: Path, cli: Callable[..., Outcome]):
    good = (interrupted / "config.yaml").read_text()
    for content, words in (
        ("seed: [", "config.yaml"),
        (good.replace("seed: 0", "seed: -4"), "seed=-4: must be at least 0"),
    ):
        (interrupted / "config.yaml").write_text(content)
        outcome = cli(f"resume={interrupted}")
        assert outcome.code == 2 and words in outcome.err and outcome.err.count("\n") == 1


def test_what_cannot_be_resumed(tmp_path: Path, whole: Path, cli: Callable[..., Outcome]):
    (tmp_path / "empty").mkdir()
    for folder, words in (
        (tmp_path / "nowhere", "no such run folder"),
        (tmp_path / "empty", "no config.yaml"),
        (whole, f"has finished; extend={whole} num_rounds=... goes on, rerun={whole}"),
        ("", "must be the folder of a run"),
    ):
        outcome = cli(f"resume={folder}")
        assert outcome.code == 2 and words in outcome.err and outcome.err.count("\n") == 1
    assert not (tmp_path / "nowhere").exists() and not list((tmp_path / "empty").iterdir())
    outcome = cli(f"resume={whole}", "seed=3")
    assert outcome.code == 2 and "seed=3: resume= takes the run's own options" in outcome.err


def test_resume_while_the_run_is_still_going(interrupted: Path):
    with files.locked(interrupted), pytest.raises(RunFolderError, match="another run is writing"):
        resume_run(interrupted)


# --- rounds that cannot be repeated ----------------------------------------------------------------------


def test_secure_noise_is_never_taken_back(tmp_path: Path, run: Run):
    """What went out before the interruption stays in the ledger and in the clients' budgets; attempts are new."""
    folder, limit = tmp_path / "run", 500.0
    options = ("num_rounds=8", "checkpoint.every=3", "privacy.rng=secure", f"privacy.max_epsilon={limit}")
    with ctrl_c(after=5), pytest.raises(KeyboardInterrupt):
        run(*options, "strategy.client.noise_multiplier=0.2", folder=folder)
    before = (folder / "ledger.jsonl").read_text()
    summary = resume_run(folder)
    assert (folder / "ledger.jsonl").read_text().startswith(before)
    assert {e["attempt"] for e in ledger_of(folder) if e["round"] in (4, 5)} == {0, ATTEMPTS_PER_START}
    assert summary["privacy"]["verified_epsilon"] <= limit
    assert summary["privacy"]["spent_so_far"] <= limit


# --- rerun -----------------------------------------------------------------------------------------------


def test_rerun_is_the_same_run(whole: Path, cli: Callable[..., Outcome], tmp_path: Path):
    outcome = cli(f"rerun={whole}", f"hydra.run.dir={tmp_path}/again")
    assert outcome.code == 0, outcome.err
    assert result_of(tmp_path / "again") == result_of(whole)
    outcome = cli(f"rerun={whole}")  # into a folder of today
    (folder,) = (tmp_path / "outputs").glob("*/*-fedcad-digits")
    assert outcome.code == 0 and result_of(folder) == result_of(whole)


def test_rerun_of_a_calibrated_run_keeps_its_noise(run: Run, tmp_path: Path):
    folder = run("privacy.target_epsilon=30")
    start_run(config_for_rerun(folder), tmp_path / "again")
    assert result_of(tmp_path / "again") == result_of(folder)


# --- the real process ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_of_the_real_process_is_130_and_a_message(forked: Forks, tmp_path: Path):
    options = said_once((*SMALL, "hydra.run.dir=run", "num_rounds=5000", "checkpoint.every=3"))
    child = forked.start(COMMAND, *options, folder=tmp_path)
    wait_until(lambda: list(tmp_path.glob("run/checkpoints/round-*")), child)
    os.kill(child, signal.SIGINT)
    assert forked.wait(child) == 130
    assert (tmp_path / "err").read_text().splitlines() == [
        "fedpriv: stopping when this round ends, after 20 s at the latest; a second signal stops at once",
        "fedpriv: interrupted; resume=run goes on from the last checkpoint",
    ]
    assert forked.printed().startswith("round 1/5000  accuracy ")


def wait_for_rows(folder: Path, rows: int, child: int) -> None:
    """Until the run of this process has written so many rounds."""
    file = folder / "metrics.jsonl"
    wait_until(lambda: file.exists() and file.read_bytes().count(b"\n") >= rows, child, 0.002)


@pytest.mark.slow
def test_the_command_line_killed_at_random_moments_ends_bit_identical(forked: Forks, tmp_path: Path):
    """kill -9 while rounds run in which clients drop out and replies are refused; then resume, again and again."""
    faults = "engine.faults={rate: 0.2, kinds: [drop_before, drop, slow, corrupt, stale, duplicate]}"
    options = (*OPTIONS, "num_rounds=60", "checkpoint.every=7", "evaluate.every=0", faults)
    folder, rng = tmp_path / "run", np.random.default_rng(3)
    moments = sorted(rng.integers(3, 55, 4).tolist())
    call = [*options, f"hydra.run.dir={folder}"]
    for moment in moments:
        script = "import sys; from fedpriv.commands.runs import main; main(sys.argv[1:])"
        child = forked.start(script, *call, folder=tmp_path)
        wait_for_rows(folder, moment, child)
        os.kill(child, signal.SIGKILL)
        assert forked.wait(child) == -signal.SIGKILL
        call = [f"resume={folder}"]
    resume_run(folder)
    start_run(compose(options), tmp_path / "whole")
    assert result_of(folder) == result_of(tmp_path / "whole")
    rows = rows_of(folder)
    assert {kind for row in rows for kind in row["refused"]} == {"corrupt", "duplicate", "stale"}


# --- rounds that cannot be repeated bit for bit are new releases: a number of their own, never one used before ---


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


@pytest.mark.parametrize("other", [False, True])
def test_other_examples_do_not_meet_the_noise_of_those_before(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    """Two releases of one client under one noise: their difference is that of its two updates, without noise."""
    rows = ["x,y", *(f"{i / 40},{'yes' if i > 20 else 'no'}" for i in range(40))]
    table, schema, folder = tmp_path / "rows.csv", tmp_path / "schema.yaml", tmp_path / "run"
    table.write_text("\n".join(rows))
    schema.write_text(
        "columns: {x: {range: [0, 1]}}\ntarget: {column: y, task: classification, classes: ['no', 'yes']}\n"
    )
    own = (f"dataset.root={table}", f"dataset.schema_file={schema}", "attack.keep_updates=true", "checkpoint.every=0")
    with monkeypatch.context() as patch:
        patch.setattr(Session, "_draw_labels", partial(next, iter(())))  # whatever stops it after its first round
        with pytest.raises(StopIteration):
            run("strategy=fedldp", "dataset=table", *own, "num_clients=2", "clients_per_round=2", folder=folder)
    before = RunFolder(folder).updates()[1].read_bytes()
    table.write_text("\n".join([*rows[:-1], "0.975,no"] if other else rows))
    resume_run(folder)
    first = sorted({line["attempt"] for line in ledger_of(folder) if line["round"] == 1})
    assert (RunFolder(folder).updates()[1].read_bytes() != before) is RunFolder(folder).disturbed is other
    assert first == ([0, ATTEMPTS_PER_START] if other else [0])
    kept = folder / "private" / "examples"
    assert kept.stat().st_mode & 0o777 == 0o600 and kept.read_text().strip() not in (folder / ".start.json").read_text()


def test_another_kind_of_processor_does_not_meet_the_noise_of_before(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sums round in another way: two releases under one noise would differ by their updates' last bits."""
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Session, "_draw_labels", partial(next, iter(())))  # whatever stops it after its first round
        with pytest.raises(StopIteration):
            run("strategy=fedldp", "num_clients=2", "clients_per_round=2", "checkpoint.every=0", folder=folder)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "ANOTHER")
    resume_run(folder)
    assert RunFolder(folder).disturbed
    assert {line["attempt"] for line in ledger_of(folder) if line["round"] == 1} == {0, ATTEMPTS_PER_START}


def test_an_undisturbed_run_is_repeatable(run: Run) -> None:
    folder = run("engine.faults=[{round:2,client:1,kind:drop}]", "strategy.server.min_replies=1")
    assert not RunFolder(folder).disturbed and not (folder / "attempt").exists()


# --- `checkpoint.every=auto`: a tenth of a run's time, whatever a checkpoint costs; no round's result depends on it -


class Clock:
    """Seconds that pass when somebody says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def played(config: Config, round_seconds: Callable[[int], float], price: Callable[[int], float]) -> dict[int, float]:
    """The rounds with a checkpoint -> what it took. price: of one after a round."""
    clock = Clock()
    pace, written = CheckpointPace(config, clock), {}
    for number in range(1, config.num_rounds + 1):
        clock.now += round_seconds(number)
        if pace.due(number):
            with pace.writing(number):
                clock.now += price(number)
            written[number] = price(number)
    return written


@pytest.mark.parametrize("drawn", ["among all", "in turn"])
@pytest.mark.parametrize("seed", range(20))
def test_checkpoints_take_a_tenth_of_a_run_whose_clients_grow(seed: int, drawn: str) -> None:
    """With the one at the end, which is never left out, and the first, which tells the price: where a run has a third,
    all together took a tenth. A run long enough has more.
    """
    rng = np.random.default_rng(seed)
    clients, rounds = int(rng.integers(1, 30_000)), int(rng.integers(100, 3000))
    cohort = min(int(rng.integers(1, 300)), clients)
    sizes = (f"num_clients={clients}", f"clients_per_round={cohort}", f"num_rounds={rounds}")
    config = compose(["partition=resampled", "partition.examples_per_client=20", *sizes])
    each, fixed, seconds = 10 ** rng.uniform(-5, -3), 10 ** rng.uniform(-3, 0), 10 ** rng.uniform(-1, 1)

    def price(number: int) -> float:
        expected = clients * (1 - (1 - cohort / clients) ** number)
        return float(fixed + each * (expected if drawn == "among all" else min(clients, cohort * number)))

    written = played(config, lambda number: seconds, price)
    assert max(written) == rounds
    if len(written) > 2:
        assert sum(written.values()) <= 0.1 * (rounds * seconds + sum(written.values())) * (1 + 1e-9)
    assert len(written) >= min(rounds, 0.1 * rounds * seconds / price(rounds) - 12)


def test_the_rounds_of_a_run_whose_checkpoints_cost_a_second_each() -> None:
    """The first after a second. From then on (checkpoints so far + this one + the last) <= (time + both) / 10."""
    config = compose(["num_clients=5", "clients_per_round=5", "num_rounds=60"])
    # After the first the clock is number + checkpoints; n-th: n + 1 <= (number + (n - 1) + 2) / 10, number >= 9 n + 9
    assert list(played(config, lambda number: 1.0, lambda number: 1.0)) == [1, 27, 36, 45, 54, 60]


@pytest.mark.parametrize(("every", "expected"), [("0", []), ("1", [1, 2, 3, 4, 5]), ("2", [2, 4, 5]), ("9", [5])])
def test_a_number_of_rounds_is_kept_to_whatever_it_costs(every: str, expected: list[int]) -> None:
    config = compose(["num_rounds=5", f"checkpoint.every={every}"])
    assert list(played(config, lambda number: 0.001, lambda number: 1e6)) == expected


def test_it_is_the_default_and_no_result_is_another_for_it() -> None:
    default = compose([])
    assert (default.checkpoint.every, default.checkpoint.keep) == ("auto", 1)
    assert default.digest() == compose(["checkpoint.every=5", "checkpoint.keep=2"]).digest()


@pytest.mark.parametrize("seed", range(4))
def test_whichever_rounds_it_picks_a_resumed_run_is_the_same(
    seed: int, resumed: Callable[..., Path], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    options = (*SMALL, "clients_per_round=2", "num_rounds=6", "strategy.client.obsolete_factor=0.4", "evaluate.every=2")
    whole, picked = run(*options), list[int]()

    def due(self: CheckpointPace, number: int) -> bool:
        if number == self.last or rng.random() < 0.4:
            picked.append(number)
        return number in picked[-1:]

    monkeypatch.setattr(CheckpointPace, "due", due)
    assert result_of(resumed(*options, after=int(rng.integers(1, 6)))) == result_of(whole)
    assert picked[-1] == 6


def test_a_run_asks_it_and_tells_it_what_a_checkpoint_took(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of no length and checkpoints of a second: after the first that is due, the last alone."""
    clock, save = Clock(), Session._save_checkpoint
    written = list[int]()

    def saved(self: Session, current: object) -> None:
        clock.now += 1
        written.append(current.number)  # type: ignore[attr-defined]
        save(self, current)  # type: ignore[arg-type]

    def pace(config: Config) -> CheckpointPace:
        made = CheckpointPace(config, clock)
        clock.now += 1
        return made

    monkeypatch.setattr(Session, "_save_checkpoint", saved)
    monkeypatch.setattr("fedpriv.runs.session.CheckpointPace", pace)
    folder = run(*SMALL, "num_rounds=5")
    assert written == [1, 5]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["round-000005"]


CENTRAL = ("strategy=dpfedavg", "strategy.client.form=central")
BUDGETED = {
    "examples": ("strategy=dpsgd",),
    "rows": ("strategy=dpsum", "strategy.client.form=central", "strategy.server.min_replies=1"),
    "poisson": (*CENTRAL, "strategy.server.client_sampling=poisson"),
    "allocated": (*CENTRAL, "strategy.server.client_sampling=allocated", "clients_per_round=2"),
    "correlated": ("strategy=dpftrl", "clients_per_round=2"),
    "bands": (
        "clients_per_round=2",
        "strategy=dpftrl",
        "strategy.server.client_sampling=poisson",
        "strategy.client.bandwidth=2",
    ),
}


@pytest.mark.parametrize("more", BUDGETED.values(), ids=BUDGETED)
def test_rounds_that_are_made_again_are_paid_from_what_a_budget_has_left(
    more: tuple[str, ...], resumed: Callable[..., Path], tmp_path: Path
) -> None:
    """Secret noise cannot be repeated: a budget far above both lets the run go on, one of a single run's price not."""
    secret = (*more, "num_rounds=4", "checkpoint.every=2", "privacy.rng=secure")
    summary = summary_of(resumed(*secret, "privacy.max_epsilon=1000", after=3))
    assert summary["rounds"] == 4 and summary["note"] is None
    shutil.rmtree(tmp_path / "interrupted")
    price = make_plan(config := compose([*SMALL, *secret]), Worker(config)).verified_epsilon
    held = summary_of(resumed(*secret, f"privacy.max_epsilon={1.001 * price}", after=3))["privacy"]["verified_epsilon"]
    assert held <= 1.001 * price < summary["privacy"]["verified_epsilon"]
