"""Files of a run: whole or not there, on a full disk, after a crash, with two runs in one folder."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import hostile_folders
import numpy as np
import pytest
import torch
import yaml
from conftest import Run, ledger_of, result_of, rows_of
from forked import Forks, forks
from omegaconf import OmegaConf
from rotation import is_part

import fedpriv
from fedpriv.client.memories import Memories, between_rounds
from fedpriv.client.memory import ClientMemory, ContextStore
from fedpriv.commands.runs import running
from fedpriv.common.checksums import damage
from fedpriv.common.command_line import FAILED, MISTAKE, guarded
from fedpriv.common.errors import DataError, RunFailed, RunFolderError
from fedpriv.common.files import JsonLines, locked, write_atomic
from fedpriv.config.compose import compose
from fedpriv.engines.grid import Contexts, empty_context
from fedpriv.mechanisms.device_errors import NO_MEMORY
from fedpriv.report.__main__ import main
from fedpriv.runs.folder import CHECKPOINT_FILES, START, Checkpoint, RunFolder, earlier_files
from fedpriv.runs.start import resume_run, start_run


@contextmanager
def disk_of(num_bytes: int) -> Iterator[None]:
    """As on a full disk: no file of this process grows beyond ``num_bytes`` (EFBIG instead of ENOSPC)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


# --- single files ----------------------------------------------------------------------------------------


def test_a_file_is_replaced_as_a_whole_or_stays(tmp_path: Path):
    file = tmp_path / "summary.json"
    write_atomic(file, "old")
    with disk_of(100), pytest.raises(OSError) as caught:
        write_atomic(file, "x" * 1000)
    assert caught.value.filename == str(file)
    assert file.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_files_are_readable_as_the_umask_says(tmp_path: Path):
    before = os.umask(0o022)
    try:
        write_atomic(tmp_path / "summary.json", "{}")
    finally:
        os.umask(before)
    assert (tmp_path / "summary.json").stat().st_mode & 0o777 == 0o644


def test_a_full_disk_leaves_no_half_line(tmp_path: Path):
    log = JsonLines(tmp_path / "metrics.jsonl")
    log.append({"round": 1})
    whole = log.path.read_bytes()
    with disk_of(len(whole) + 5), pytest.raises(OSError) as caught:
        log.append({"round": 2, "text": "x" * 100})
    assert caught.value.filename == str(log.path)
    assert log.path.read_bytes() == whole
    log.append({"round": 2})
    assert log.read() == [{"round": 1}, {"round": 2}]


@pytest.mark.parametrize("torn", [b'{"round": 2, "acc', b'{"round": 2}', b"\x00\x00"])
def test_a_torn_last_line_is_dropped_by_reader_and_writer(tmp_path: Path, torn: bytes):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"round": 1}\n' + torn)
    assert JsonLines(path).read() == [{"round": 1}]
    log = JsonLines(path)
    log.append({"round": 2})
    log.append({"round": 3})
    assert log.read() == [{"round": 1}, {"round": 2}, {"round": 3}]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"round": 1}\nnonsense\n{"round": 3}\n')
    with pytest.raises(RunFolderError, match=r"metrics.jsonl: line 2 is damaged"):
        JsonLines(path).read()


# --- what a run leaves -----------------------------------------------------------------------------------


def test_a_run_leaves_what_the_design_lists(run: Run):
    folder = run("checkpoint.every=1", "num_rounds=4", "checkpoint.keep=2", "operations.report=true")
    names = {"config.yaml", "metrics.jsonl", "ledger.jsonl", "summary.json", "model.safetensors", "report.html"}
    assert names <= {path.name for path in folder.iterdir()}
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["round-000003", "round-000004"]
    rows = rows_of(folder)
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    needed = {"accuracy", "loss", "train_loss", "participants", "dropped", "stopped", "seconds", "bytes_up"}
    needed |= {"bytes_down", "update_norm", "clipped_norm", "noise_norm", "epsilon_so_far", "figures"}
    assert all(needed <= set(row) for row in rows)
    assert set(rows[0]["figures"]) == {"diff", "noise_variance", "reuse"}
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (folder / "config.yaml").read_text() == OmegaConf.to_yaml(OmegaConf.create(config))
    assert config["engine"]["name"] == "inprocess" and config["model"]["name"] == "linear"  # not auto
    assert [(e["round"], e["client"]) for e in ledger_of(folder)] == [(r, c) for r in (1, 2, 3, 4) for c in range(4)]


def test_the_summary_is_what_scripts_read(run: Run):
    summary = json.loads((run("evaluate.every=2") / "summary.json").read_text())
    facts = {"strategy": "fedcad", "dataset": "digits", "model": "linear", "seed": 0, "rounds": 3, "num_clients": 4}
    assert facts.items() <= summary.items() and summary["num_parameters"] == 650
    privacy = summary["privacy"]
    assert (privacy["unit"], privacy["adjacency"], privacy["observer"]) == ("client", "replace-one", "server")
    assert privacy["audited_epsilon"] is None and privacy["variant"] == "repaired"
    assert 0 < privacy["claimed_epsilon"] < privacy["verified_epsilon"] == privacy["spent_so_far"]
    assert summary["accuracy"]["best_on_test"] >= summary["accuracy"]["final"] > 0.3
    assert set(summary["timing"]) == {"total_s", "setup_s", "rounds_s", "median_round_s", "ledger_s"}
    assert summary["traffic"]["bytes_up"] > 3 * 4 * 4 * 650


def test_the_final_accuracy_is_of_the_last_round_whenever_evaluated(run: Run):
    folders = [run(f"evaluate.every={every}") for every in (0, 1, 2)]
    finals = [json.loads((folder / "summary.json").read_text())["accuracy"]["final"] for folder in folders]
    assert finals[0] == finals[1] == finals[2]


# --- a folder that is taken ------------------------------------------------------------------------------


def test_a_second_run_in_a_used_folder_is_refused(run: Run):
    folder = run()
    before = result_of(folder)
    with pytest.raises(RunFolderError, match=r"holds a run already .*resume=.*rerun="):
        run("seed=1", folder=folder)
    (folder / "config.yaml").unlink()  # whatever is left of a run is not overwritten
    with pytest.raises(RunFolderError, match="holds a run already"):
        run("seed=1", folder=folder)
    assert result_of(folder) == before


def test_two_runs_at_once_in_one_folder(tmp_path: Path):
    script = """
from pathlib import Path
from fedpriv.config.compose import compose
from fedpriv.runs.start import start_run

start_run(compose([]), Path("run"))
"""
    with locked(tmp_path / "run"), forks(tmp_path) as forked:
        code, printed = forked.run(script, folder=tmp_path)
        assert code == 1 and "RunFolderError: " in printed and "another run is writing" in printed
        with pytest.raises(RunFolderError, match="another run is writing"):
            start_run(compose([]), tmp_path / "run")


def test_a_lock_is_given_back_though_a_starting_process_has_its_file(tmp_path: Path) -> None:
    """As one that another thread has just forked, before it becomes another program."""
    with locked(tmp_path):
        (lock,) = (int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.resolve().parent == tmp_path)
        other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock])
    with locked(tmp_path):
        other.communicate()


def test_a_refused_run_leaves_no_folder(tmp_path: Path):
    folder = tmp_path / "run"

    def work() -> int:
        with running(folder):
            start_run(compose(["dataset=image_folder", f"dataset.root={tmp_path}/nowhere"]), folder)
        return 0

    assert guarded(work) == MISTAKE
    assert not folder.exists()


# --- a full disk -----------------------------------------------------------------------------------------


def test_a_full_disk_ends_in_one_line_and_the_run_goes_on_when_there_is_room(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    # In a file: 18 kB for what a resumed run is checked against, 430 bytes for a round in metrics.jsonl, 35 kB for a
    # checkpoint, 23 kB for the picture of who holds what, which comes first, 39 kB and more for a plot of the report.
    options = ("num_rounds=48", "checkpoint.every=46", "operations.report=true")
    whole = run(*options)
    expected = result_of(whole)
    least = max((whole / name).stat().st_size for name in (START, "config.yaml")) + 200  # which holds the folder's name
    metrics = (whole / "metrics.jsonl").stat().st_size
    checkpoint = max(path.stat().st_size for path in (whole / "checkpoints").rglob("*.safetensors"))
    report = (whole / "accuracy.png").stat().st_size  # the first that is drawn
    assert least + 1000 < metrics < metrics + 2000 < checkpoint < report - 1000
    for room, file in (
        (least, "labels.png"),
        (least + 1000, "metrics.jsonl"),
        (metrics + 2000, "clients.safetensors"),
        ((checkpoint + report) // 2, ".png"),
    ):
        folder = tmp_path / f"full{room}"

        def work(room: int = room, folder: Path = folder) -> int:
            with running(folder), disk_of(room):
                run(*options, folder=folder)
            return 0

        capsys.readouterr()
        assert guarded(work) == FAILED, room
        message = capsys.readouterr().err
        assert message.count("\n") == 1 and message.startswith("fedpriv: ") and file in message
        if file == ".png":  # only the report did not fit
            assert f"fedpriv report {folder}" in message
            main([str(folder)])
            assert (folder / "report.html").exists()
        else:
            assert f"resume={folder} begins anew" in message
            with monkeypatch.context() as patch:
                patch.setattr("fedpriv.report.page.write_report", lambda *_: None)  # seconds, and it has room again
                resume_run(folder)
        assert result_of(folder) == expected
        monkeypatch.setattr("fedpriv.report.label_plot.draw_label_distribution", lambda *_: None)


def test_a_full_disk_is_told_by_its_errno(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """/dev/full: the real ENOSPC."""
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")

    def work() -> int:
        with running(tmp_path):
            try:
                (tmp_path / "metrics.jsonl").write_text("x")
            except OSError as error:
                assert error.errno == errno.ENOSPC
                raise
        return 0

    assert guarded(work) == FAILED
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(f"[enforce fail] {NO_MEMORY}: 12 bytes")])
def test_a_full_memory_ends_in_one_line(error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "config.yaml").write_text("{}")

    def work() -> int:
        with running(tmp_path):
            raise error

    assert guarded(work) == FAILED
    message = capsys.readouterr().err
    assert message.startswith("fedpriv: out of memory: engine.trainer=sequential") and message.count("\n") == 1
    assert f"resume={tmp_path} begins anew" in message


def test_another_error_of_torch_is_raised(tmp_path: Path):
    with pytest.raises(RuntimeError, match="shapes"), running(tmp_path):
        raise RuntimeError("shapes do not fit")


def test_what_nobody_but_a_developer_can_mend_is_raised(tmp_path: Path):
    def work() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        guarded(work)
    assert guarded(lambda: (_ for _ in ()).throw(RunFailed("no"))) == FAILED
    assert guarded(lambda: (_ for _ in ()).throw(DataError("no"))) == MISTAKE


# --- checkpoints that write what changed ----------------------------------------------------------------------


def memories_of(found: Contexts) -> Memories:
    return between_rounds(found.memories())


def taken_part(found: Contexts, clients: Iterable[int], number: int) -> None:
    for client in clients:
        ContextStore(found[client]).keep(ClientMemory({"x": torch.full((500,), float(number))}))
    found.settle()


def checkpoint_of(number: int, memories: Memories) -> Checkpoint:
    return Checkpoint(number, np.zeros(3, np.float32), {}, memories, {})


@pytest.mark.parametrize("most", [1e9, 5e3])
@pytest.mark.parametrize("links", [True, False])
def test_a_checkpoint_writes_who_took_part_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: float, links: bool
) -> None:
    """Also where memories lie on the disk, and on a file system without links; every kept checkpoint reads whole."""
    if not links:
        monkeypatch.setattr("os.link", Mock(side_effect=OSError("no links here")))
    config, folder = compose([]), RunFolder(tmp_path)
    found = Contexts(lambda client: empty_context(1, client + 2, client, 100), most, str(tmp_path))
    rng, expected, written = np.random.default_rng(0), dict[int, float](), []
    for number in range(1, 31):
        cohort = rng.choice(60, 6, replace=False).tolist() if number > 1 else list(range(40))
        taken_part(found, cohort, number)
        expected |= dict.fromkeys(cohort, float(number))
        folder.save_checkpoint(checkpoint_of(number, memories_of(found)), config, keep=2)
        written.append((folder.checkpoints()[-1] / "clients.safetensors").stat().st_size)
        for path, known in zip(folder.checkpoints()[-1:], [expected], strict=True):
            read = RunFolder(tmp_path)._read_checkpoint(path, config).memories
            states = {client: float(ClientMemory.from_bytes(blob).state["x"][0]) for client, blob in read.items()}
            assert states == known and damage(path, (*CHECKPOINT_FILES, *earlier_files(path))) is None
    assert sorted(written)[15] < written[0] / 4  # six clients' states, not forty's
    assert len(folder.checkpoints()) == 2
    found.close()


def test_the_disk_holds_little_more_than_the_newest_states(tmp_path: Path) -> None:
    """Superseded states are gone with the next checkpoint, or are a fifth of the live ones at most."""
    config, folder = compose([]), RunFolder(tmp_path)
    found = Contexts(lambda client: empty_context(1, client + 2, client, 100), 1e9, None)
    rng, fewest = np.random.default_rng(1), 1.2
    for number in range(1, 31):
        taken_part(found, rng.choice(60, 6, replace=False).tolist(), number)
        folder.save_checkpoint(checkpoint_of(number, memories_of(found)), config, config.checkpoint.keep)
        memories = found.memories()
        files = {path.stat().st_ino: path.stat().st_size for path in tmp_path.rglob("*.safetensors")}
        live = sum(len(memories[client]) for client in memories)
        assert sum(files.values()) <= 1.2 * live + 150 * len(memories) + 200  # headers
        fewest = min(fewest, (folder.checkpoints()[-1] / "clients.safetensors").stat().st_size / live)
    assert len(folder.checkpoints()) == 1 and fewest < 0.2  # what changed, where that suffices
    found.close()


def test_a_changed_byte_of_an_earlier_file_is_found(tmp_path: Path) -> None:
    config, folder = compose([]), RunFolder(tmp_path)
    found = Contexts(lambda client: empty_context(1, client + 2, client, 100), 1e9, None)
    for number, cohort in ((1, range(9)), (2, (1,))):
        taken_part(found, cohort, number)
        folder.save_checkpoint(checkpoint_of(number, memories_of(found)), config, keep=1)
    (newest,) = folder.checkpoints()
    (earlier,) = [newest / name for name in earlier_files(newest)]
    assert earlier.name == "clients-000001.safetensors"
    content = bytearray(earlier.read_bytes())
    content[-9] ^= 0x40
    earlier.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"clients-000001\.safetensors"):
        RunFolder(tmp_path).load_checkpoint(config)
    earlier.unlink()
    with pytest.raises(RunFolderError, match="does not list"):
        RunFolder(tmp_path).load_checkpoint(config)


def test_after_a_checkpoint_that_failed_the_next_holds_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = compose([]), RunFolder(tmp_path)
    found = Contexts(lambda client: empty_context(1, client + 2, client, 100), 1e9, None)
    taken_part(found, range(5), 1)
    folder.save_checkpoint(checkpoint_of(1, memories_of(found)), config, keep=2)
    taken_part(found, (3,), 2)
    with monkeypatch.context() as patch:
        patch.setattr("fedpriv.runs.folder.write_sums", Mock(side_effect=OSError("full")))
        with pytest.raises(OSError, match="full"):
            folder.save_checkpoint(checkpoint_of(2, memories_of(found)), config, keep=2)
    folder.save_checkpoint(checkpoint_of(3, memories_of(found)), config, keep=2)
    checkpoint = RunFolder(tmp_path).load_checkpoint(config)
    assert checkpoint is not None and checkpoint.round == 3 and sorted(checkpoint.memories) == list(range(5))
    assert earlier_files(folder.checkpoints()[-1]) == []


@pytest.mark.parametrize("lost", ["the folder", "a file"])
def test_a_checkpoint_that_lost_what_it_would_share_holds_everything(tmp_path: Path, lost: str) -> None:
    config, folder = compose([]), RunFolder(tmp_path)
    found = Contexts(lambda client: empty_context(1, client + 2, client, 100), 1e9, None)
    for number, cohort in ((1, range(9)), (2, (3,))):
        taken_part(found, cohort, number)
        folder.save_checkpoint(checkpoint_of(number, memories_of(found)), config, keep=1)
    (newest,) = folder.checkpoints()
    if lost == "the folder":
        shutil.rmtree(newest)
    else:
        (newest / "clients-000001.safetensors").unlink()
    taken_part(found, (4,), 3)
    folder.save_checkpoint(checkpoint_of(3, memories_of(found)), config, keep=1)
    checkpoint = RunFolder(tmp_path).load_checkpoint(config)
    assert checkpoint is not None and checkpoint.round == 3 and sorted(checkpoint.memories) == list(range(9))


# --- somebody else's run folder is data: no command that reads one runs what it names, writes elsewhere, hangs, takes


PREPARED = ("fedpriv.commands.runs", "fedpriv.runs.start", "fedpriv.report.page", "fedpriv.training.trained_model")
#: Of the generated folders, so many runs of the tests take all in turn.
PARTS = 60
COMMANDS = ("load", *hostile_folders.COMMANDS)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ["strategy=fedldp", "num_rounds=1", "num_clients=4", "clients_per_round=2", "model=linear"]
    return fedpriv.run(options, folder=tmp_path_factory.mktemp("sound") / "run", quiet=True).folder


@pytest.fixture(scope="module")
def players(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forks(tmp_path_factory.mktemp("players"), *PREPARED) as prepared:
        yield prepared


PAIRS = {f"{command} {name}": (change, command) for name, change, command in hostile_folders.pairs()}


@pytest.mark.parametrize("pair", [pair for place, pair in enumerate(PAIRS) if is_part(place, PARTS)])
def test_a_hostile_folder_is_read_or_refused(pair: str, sound: Path, players: Forks, tmp_path: Path) -> None:
    change, command = PAIRS[pair]
    assert hostile_folders.play(command, change, sound, tmp_path / "case", players) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_sound_folder_of_another_user_serves_every_command(
    command: str, sound: Path, players: Forks, tmp_path: Path
) -> None:
    def another(folder: Path, _: Path) -> None:
        (folder / ".owner").unlink()

    assert hostile_folders.play(command, another, sound, tmp_path / "case", players, sound_too=True) == []
