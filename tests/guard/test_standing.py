"""Sandboxes between messages: the next message finds what the next shard of one message finds, and no broken one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from asking import APPS, HOSTILE, context_of, message_of, write_rows
from processes import children, state, wait_until

from fedpriv.common.places import ROOT
from fedpriv.guard.processes import MOST, Lender
from fedpriv.guard.record import request_bytes
from fedpriv.guard.sandbox import Limits, Sandbox, SandboxUnavailable

APP = APPS / "quickstart-message"
LIMITS = Limits(1 << 30, 60, 100, 1 << 20)
RUN = {"local-epochs": 1, "learning-rate": 0.1, "num-server-rounds": 3}


@pytest.fixture
def lender() -> Iterator[Lender]:
    one = Lender()
    yield one
    one.asks.close()
    one.process.wait()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "data.csv", 5, seed=9)


def answered(one: Sandbox, shard: Path) -> np.ndarray:
    request = request_bytes(message_of({"weights": np.zeros(4), "bias": np.zeros(1)}), context_of(one.data, RUN))
    answer = one.ask(request, shard)
    assert answer.fault is None and answer.arrays is not None
    return np.concatenate(answer.arrays)


def launchers(lender: Lender) -> list[int]:
    return children(lender.process.pid)


def test_the_next_message_has_the_same_processes_and_other_answers(lender: Lender, data: Path, tmp_path: Path) -> None:
    shards, found, started = [write_rows(tmp_path / f"{seed}.csv", 5, seed=seed) for seed in (1, 2)], [], []
    for shard in (*shards, shards[0]):
        with Sandbox(APP, data, LIMITS, lender=lender) as one:
            assert one.is_warm
            found.append(answered(one, shard))
        started.append(launchers(lender))
    assert len(started[0]) == 1 and started[0] == started[1] == started[2]
    np.testing.assert_array_equal(found[0], found[2])
    assert (found[0] != found[1]).any()


def test_between_messages_it_has_one_thread_and_sees_no_data(lender: Lender, data: Path, tmp_path: Path) -> None:
    with Sandbox(APP, data, LIMITS, lender=lender) as one:
        answered(one, write_rows(tmp_path / "shard.csv", 5))
    (launcher,) = launchers(lender)
    (keeper,) = children(launcher)
    (warm,) = wait_until(lambda: children(keeper))
    assert len(os.listdir(f"/proc/{warm}/task")) == 1 and not children(warm)
    assert data.read_bytes() and Path(f"/proc/{warm}/root{data}").read_bytes() == b""
    opened = [os.readlink(f"/proc/{warm}/fd/{number}") for number in os.listdir(f"/proc/{warm}/fd")]
    assert not [place for place in opened if str(tmp_path) in place or "memfd" in place]
    modules = [line.split()[-1] for line in Path(f"/proc/{warm}/maps").read_text().splitlines()]
    assert not [place for place in modules if place.startswith((str(APP), str(tmp_path)))]


def test_a_sandbox_belongs_to_one_message_at_a_time(lender: Lender, data: Path, tmp_path: Path) -> None:
    shard = write_rows(tmp_path / "shard.csv", 5)
    with Sandbox(APP, data, LIMITS, lender=lender):
        pass
    assert len(launchers(lender)) == 1
    with Sandbox(APP, data, LIMITS, lender=lender) as one, Sandbox(APP, data, LIMITS, lender=lender) as other:
        assert len(launchers(lender)) == 2
        np.testing.assert_array_equal(answered(one, shard), answered(other, shard))


def test_a_message_that_ends_otherwise_gives_nothing_back(lender: Lender, data: Path, tmp_path: Path) -> None:
    one = Sandbox(APP, data, LIMITS, lender=lender)
    one.__enter__()
    (launcher,) = launchers(lender)
    assert one._lent is not None
    one._lent.lease.close()  # as its process's end does
    wait_until(lambda: state(launcher) == "")
    with Sandbox(APP, data, LIMITS, lender=lender) as other:
        answered(other, write_rows(tmp_path / "shard.csv", 5))
        assert launchers(lender) != [launcher]


def test_where_a_shard_could_not_be_asked_nothing_is_given_back(lender: Lender, data: Path, tmp_path: Path) -> None:
    with Sandbox(APP, data, LIMITS, lender=lender) as one:
        (launcher,) = launchers(lender)
        with pytest.raises(FileNotFoundError):
            one.ask(b"", tmp_path / "none.csv")
    wait_until(lambda: state(launcher) == "")


def test_what_an_app_broke_is_not_lent_again(lender: Lender, tmp_path: Path) -> None:
    """Not confined, it can end its keeper."""
    app = Path(shutil.copytree(HOSTILE, tmp_path / "hostile_apps", ignore=shutil.ignore_patterns("__pycache__")))
    data, shard = tmp_path / "data.csv", tmp_path / "shard.csv"
    data.write_text("0"), shard.write_text("4711")
    given = {"folder": str(tmp_path), "name": f"left-{os.getpid()}", "port": 0, "patience": 0.1, "all": False}

    def asked(one: Sandbox, attack: str) -> object:
        context = context_of(data, {"attack": attack, **given})
        return one.ask(request_bytes(message_of({"a": np.zeros(1)}), context), shard).fault

    with Sandbox(app, data, LIMITS, confined=False, lender=lender) as one, pytest.raises(SandboxUnavailable):
        asked(one, "kills_parent")
    with Sandbox(app, data, LIMITS, confined=False, lender=lender) as one:
        assert asked(one, "metrics") is None
    assert len(launchers(lender)) == 1


@pytest.mark.parametrize(
    "attack", ["tmp_file", "own_code", "posix_memory", "system_v_memory", "message_queue", "keyring", "import_state"]
)
def test_the_next_message_finds_nothing(lender: Lender, tmp_path: Path, attack: str) -> None:
    """What leaves a number for the next shard (test_hostile_apps.py) leaves none for the next message."""
    app = Path(shutil.copytree(HOSTILE, tmp_path / "hostile_apps", ignore=shutil.ignore_patterns("__pycache__")))
    data = tmp_path / "data.csv"
    data.write_text("0")
    given = {"attack": attack, "folder": str(tmp_path), "name": f"left-{os.getpid()}", "port": 4711, "patience": 0.1}

    def found(secret: int, confined: bool) -> float:
        shard = tmp_path / f"{secret}.csv"
        shard.write_text(str(secret))
        limits = Limits(128 << 20, 10, 30, 1 << 20)
        with Sandbox(app, data, limits, confined=confined, lender=lender) as one:
            answer = one.ask(request_bytes(message_of({"a": np.zeros(1)}), context_of(data, given)), shard)
        return float(answer.arrays[0]) if answer.arrays else 0.0

    kept = attack != "import_state"  # a process of its own has no state even without namespaces
    assert [found(secret, confined=False) for secret in (4711, 0)][1] == (4711 if kept else 0)
    first = found(4711, confined=True)
    assert first in (0, 4711) and found(0, confined=True) == 0
    assert len(launchers(lender)) == 2, "each was lent twice"


def test_another_file_at_the_datas_place_is_another_sandbox(lender: Lender, data: Path, tmp_path: Path) -> None:
    """The old one hides the file that was there."""
    shard = write_rows(tmp_path / "shard.csv", 5)
    with Sandbox(APP, data, LIMITS, lender=lender) as one:
        answered(one, shard)
    write_rows(tmp_path / "newer.csv", 5, seed=3).replace(data)
    with Sandbox(APP, data, LIMITS, lender=lender) as one:
        answered(one, shard)
    assert len(launchers(lender)) == 2


def test_few_stand_idle(lender: Lender, data: Path) -> None:
    for number in range(MOST + 2):
        with Sandbox(APP, data, Limits(1 << 30, 60, 100 + number, 1 << 20), lender=lender):
            pass
    wait_until(lambda: len(launchers(lender)) == MOST)


def test_all_ends_with_the_node(data: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from pathlib import Path; from fedpriv.guard.sandbox import Limits, Sandbox\n"
        "from fedpriv.guard.processes import Lender\n"
        "lender = Lender()\n"
        f"app, data, limits = Path({str(APP)!r}), Path({str(data)!r}), Limits(1 << 30, 60, 100, 1 << 20)\n"
        "with Sandbox(app, data, limits, lender=lender): pass\n"
        "print(lender.process.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        holder = int(node.stdout.readline())
        (launcher,) = children(holder)
        (keeper,) = children(launcher)
        (warm,) = children(keeper)
        node.kill()
        for process in (holder, keeper, warm):
            wait_until(lambda process=process: state(process) in ("", "Z"))


def test_without_its_lender_a_message_has_a_sandbox_of_its_own(data: Path, tmp_path: Path) -> None:
    lender = Lender()
    lender.process.kill()
    lender.process.wait()
    with Sandbox(APP, data, LIMITS, lender=lender) as one:
        answered(one, write_rows(tmp_path / "shard.csv", 5))
        assert one._process is not None
