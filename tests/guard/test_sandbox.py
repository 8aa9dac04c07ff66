"""The sandbox with honest apps: the answer is the app's own, whatever the place of its data, for any user."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from asking import APPS, HOSTILE, bare, context_of, message_of, write_rows
from processes import children, state, wait_until

from fedpriv.guard import groups, processes, root
from fedpriv.guard import sandbox as module
from fedpriv.guard.record import request_bytes
from fedpriv.guard.sandbox import Limits, Sandbox, SandboxUnavailable, available, libraries_of

LIMITS = Limits(1 << 30, 60, 100, 1 << 20)
RUN = {"local-epochs": 1, "learning-rate": 0.1, "num-server-rounds": 3}
STARTS = {
    "quickstart-message": {"weights": np.zeros(4), "bias": np.zeros(1)},
    "quickstart-sklearn": [np.zeros((1, 4)), np.zeros(1)],
    "quickstart-torch": [np.ones(shape, "f4") / 9 for shape in ((16, 4), (16,), (2, 16), (2,))],
}


@pytest.fixture(scope="module")
def message_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sandbox, Path]]:
    """One sandbox for tests that need no other, and its data: five rows."""
    data = write_rows(tmp_path_factory.mktemp("data") / "real.csv", 5, seed=9)
    with Sandbox(APPS / "quickstart-message", data, LIMITS) as one:
        yield one, data


def request(data: Path, name: str = "quickstart-message") -> bytes:
    return request_bytes(message_of(STARTS[name]), context_of(data, RUN))


def trained(data: Path, name: str = "quickstart-message") -> list[np.ndarray]:
    """What the app answers without a sandbox."""
    (record,) = bare(APPS / name, message_of(STARTS[name]), context_of(data, RUN)).content.array_records.values()
    return [array.numpy() for array in record.values()]


@pytest.mark.parametrize("name", STARTS)
def test_an_answer_is_the_apps_own(name: str, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.csv", 20)
    shards = [write_rows(tmp_path / f"{seed}.csv", 20, seed=seed) for seed in (1, 2)]
    with Sandbox(APPS / name, data, LIMITS) as one:
        assert one.is_warm
        answers = [one.ask(request(data, name), shard) for shard in (*shards, None)]
    for answer, source in zip(answers, (*shards, data), strict=True):
        assert answer.fault is None and answer.arrays is not None
        for mine, theirs in zip(answer.arrays, trained(source, name), strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    assert answers[0].start_s < answers[0].seconds


def test_arrays_are_in_the_order_of_the_names_that_came_down(message_app: tuple[Sandbox, Path]) -> None:
    one, data = message_app
    turned = message_of({"bias": np.zeros(1), "weights": np.zeros(4)})
    answer = one.ask(request_bytes(turned, context_of(data, RUN)), None)
    assert [array.shape for array in answer.arrays or ()] == [(1,), (4,)]


def test_shards_run_at_the_same_time(message_app: tuple[Sandbox, Path], tmp_path: Path) -> None:
    one, data = message_app
    shards = [write_rows(tmp_path / f"{seed}.csv", 5, seed=seed) for seed in range(8)]
    found: dict[int, object] = {}
    threads = [
        threading.Thread(
            target=lambda place: found.update({place: one.ask(request(data), shards[place])}), args=(place,)
        )
        for place in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, shard in enumerate(shards):
        np.testing.assert_allclose(found[place].arrays[0], trained(shard)[0])  # type: ignore[attr-defined]


def test_data_may_be_a_folder_or_lie_in_the_apps_own(tmp_path: Path) -> None:
    app = Path(shutil.copytree(APPS / "quickstart-message", tmp_path / "quickstart-message"))
    for data in (tmp_path / "rows", app / "rows"):
        data.mkdir()
        write_rows(data / "train.csv", 5)
        shard = tmp_path / f"shard-{data.parent.name}"
        shard.mkdir()
        write_rows(shard / "train.csv", 5, seed=7)
        with Sandbox(app, data, LIMITS) as one:
            for folder in (shard, data):
                answer = one.ask(request(data / "train.csv"), None if folder == data else folder)
                np.testing.assert_allclose((answer.arrays or ())[0], trained(folder / "train.csv")[0])
            with pytest.raises(ValueError, match="must be a folder"):
                one.ask(b"", shard / "train.csv")


def test_an_environment_may_be_a_link_in_the_folder_that_is_new_for_every_shard(tmp_path: Path) -> None:
    """A project below /tmp, whose .venv is a link: what an app imports is found by the link's name."""
    with tempfile.TemporaryDirectory(dir=root.WRITABLE[0]) as folder:
        prefix = Path(folder) / "environment"
        prefix.symlink_to(sys.prefix)
        python = prefix / Path(sys.executable).relative_to(sys.prefix)
        data = write_rows(tmp_path / "data.csv", 5)
        code = (
            "import sys; from pathlib import Path; from test_sandbox import *; assert sys.prefix == sys.argv[1]\n"
            "with Sandbox(APPS / 'quickstart-message', Path(sys.argv[2]), LIMITS) as one:\n"
            "    answer = one.ask(request(one.data), None); assert answer.fault is None, answer.fault"
        )
        paths = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
        given = [str(python), "-c", code, str(prefix), str(data)]
        ended = subprocess.run(given, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_the_real_data_may_be_nowhere(tmp_path: Path) -> None:
    """An app that reads /data/train.csv, which this machine does not have."""
    place = Path("/data-of-no-machine/train.csv")
    shard = write_rows(tmp_path / "shard.csv", 5)
    with Sandbox(APPS / "quickstart-message", place, LIMITS) as one:
        answer = one.ask(request(place), shard)
        assert one.ask(request(place), shard).fault is None
        with pytest.raises(FileNotFoundError, match="no shard"):
            one.ask(request(place), None)
    np.testing.assert_allclose((answer.arrays or ())[0], trained(shard)[0])


def test_a_shard_may_lie_in_the_folder_of_the_data(message_app: tuple[Sandbox, Path]) -> None:
    one, data = message_app
    np.testing.assert_allclose((one.ask(request(data), data).arrays or ())[0], trained(data)[0])


def test_the_warm_process_sees_no_data(message_app: tuple[Sandbox, Path]) -> None:
    one, data = message_app
    assert one._process is not None
    (keeper,) = children(one._process.pid)
    (warm,) = children(keeper)
    assert data.read_bytes() and Path(f"/proc/{warm}/root{data}").read_bytes() == b""
    assert os.readlink(f"/proc/{warm}/ns/net") != os.readlink("/proc/self/ns/net")


def test_the_warm_process_learns_nothing_of_a_shard(message_app: tuple[Sandbox, Path], tmp_path: Path) -> None:
    """Not even its name: a later shard has all of this process's memory."""
    one, data = message_app
    assert one._process is not None
    (keeper,) = children(one._process.pid)
    (warm,) = children(keeper)
    shard = write_rows(tmp_path / "shard-with-a-name.csv", 5)
    told = context_of(data, {**RUN, "mark": "message-with-a-mark"})
    assert one.ask(request_bytes(message_of(STARTS["quickstart-message"]), told), shard).fault is None

    def holds(pid: int, words: bytes) -> bool:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory, open(f"/proc/{pid}/maps") as places:
            for line in places:
                span, rights, *_ = line.split()
                if rights.startswith("rw"):
                    start, end = (int(number, 16) for number in span.split("-"))
                    memory.seek(start)
                    if words in memory.read(end - start):
                        return True
        return False

    assert holds(warm, str(data).encode()), "what it was given is there"
    assert not holds(warm, b"shard-with-a-name") and not holds(warm, b"message-with-a-mark")


def test_an_app_is_the_only_process_of_its_namespaces(message_app: tuple[Sandbox, Path]) -> None:
    """While one runs: its namespaces are neither this process's nor the warm one's, and it has no rights left."""
    one, data = message_app
    assert one._process is not None
    (keeper,) = children(one._process.pid)
    seen: list[dict[str, str]] = []
    with open(data, "rb"):
        thread = threading.Thread(target=lambda: [one.ask(request(data), None) for _ in range(20)])
        thread.start()
        while thread.is_alive():
            for pid in children(keeper)[1:]:
                try:
                    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
                    spaces = {
                        name: os.readlink(f"/proc/{pid}/ns/{name}") for name in ("mnt", "net", "ipc", "uts", "pid")
                    }
                except (OSError, ValueError):
                    continue
                if status["Seccomp"] == "2":
                    seen.append(status | spaces)
        thread.join()
    assert seen
    for app in seen:
        assert [app[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")] == ["0" * 16] * 5
        assert app["NoNewPrivs"] == "1" and app["NSpid"].split()[-1] == "1"
        for name in ("mnt", "net", "ipc", "uts", "pid"):
            assert app[name] not in {os.readlink(f"/proc/{other}/ns/{name}") for other in ("self", keeper)}


# --- what ends it -------------------------------------------------------------------------------------------------


def hanging(tmp_path: Path) -> Path:
    """An app that computes without end; with a mark in its folder's name."""
    app = Path(shutil.copytree(HOSTILE, tmp_path / "hostile_apps"))
    (tmp_path / "data.csv").write_text("1")
    return app


def hanging_request(data: Path) -> bytes:
    given = {"attack": "processor", "seconds": 1e9}
    return request_bytes(message_of({"a": np.zeros(1)}), context_of(data, given))


def test_wall_time_ends_an_app(tmp_path: Path) -> None:
    app, data = hanging(tmp_path), tmp_path / "data.csv"
    with Sandbox(app, data, Limits(1 << 28, 60, 0.5, 1000)) as one:
        answer = one.ask(hanging_request(data), None)
        assert answer.arrays is None and "no answer in wall_s=0.5" in str(answer.fault)
        assert one._process is not None
        (keeper,) = children(one._process.pid)
        assert len(children(keeper)) == 1, "only the warm process is left"
    wait_until(lambda: not state(keeper))


def test_all_end_with_the_node(tmp_path: Path) -> None:
    app, data = hanging(tmp_path), tmp_path / "data.csv"
    (tmp_path / "request").write_bytes(hanging_request(data))
    code = f"""
from pathlib import Path
from fedpriv.guard.sandbox import Limits, Sandbox
with Sandbox(Path({str(app)!r}), Path({str(data)!r}), Limits(1 << 28, 600, 600, 1000)) as one:
    one.ask(Path({str(tmp_path / "request")!r}).read_bytes(), None)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as node:

        def running() -> list[int]:
            launchers = children(node.pid)
            keepers = [keeper for launcher in launchers for keeper in children(launcher)]
            apps = [app for keeper in keepers for app in children(keeper)]
            return launchers + keepers + apps if len(apps) == 2 else []

        all_of_them = wait_until(running)
        node.send_signal(signal.SIGKILL)
    assert len(all_of_them) == 4
    wait_until(lambda: all(state(process) in ("", "Z") for process in all_of_them))


def app_of(one: Sandbox) -> int:
    """The process of the only app that runs."""
    assert one._process is not None
    (keeper,) = children(one._process.pid)
    return wait_until(lambda: children(keeper)[1:])[0]


def test_an_app_ends_before_the_node_where_memory_is_short(tmp_path: Path) -> None:
    app, data = hanging(tmp_path), tmp_path / "data.csv"
    for confined in (True, False):
        limits = Limits(1 << 28, 60, 100, 1000)
        with (
            Sandbox(app, data, limits, confined=confined) as one,
            one.begin(hanging_request(data), None),
        ):
            adjusted = Path(f"/proc/{app_of(one)}/oom_score_adj")
            wait_until(lambda file=adjusted: file.read_text().strip() == "1000")
    assert Path("/proc/self/oom_score_adj").read_text().strip() != "1000"


def test_the_kernel_counts_the_threads_of_one_start_alone(tmp_path: Path) -> None:
    """In a user namespace of its own: what is limited there tells no start of another."""
    app, data = hanging(tmp_path), tmp_path / "data.csv"
    with (
        Sandbox(app, data, Limits(1 << 28, 60, 100, 1000, processes=17)) as one,
        one.begin(hanging_request(data), None),
    ):
        place = Path(f"/proc/{app_of(one)}")
        wait_until(lambda: "Seccomp:\t2" in (place / "status").read_text())
        (limit,) = re.findall(r"Max processes +(\w+)", (place / "limits").read_text())
        spaces = [os.readlink(f"/proc/{of}/ns/user") for of in (place.name, children(one._process.pid)[0], "self")]  # type: ignore[union-attr]
    assert len({*spaces}) == 3
    assert (limit == "17") == groups.counts_threads()
    assert [groups.counts_threads(of) for of in ("5.13.19", "5.14.0-rc1", "6.1", "4.19", "x")] == [0, 1, 1, 0, 0]


SHORT = """
import sys
from pathlib import Path
from fedpriv.guard.sandbox import Limits, Sandbox
Path(sys.argv[1], "cgroup.procs").write_text("0")
folder = Path(sys.argv[2])
with Sandbox(folder / "hostile_apps", folder / "data.csv", Limits(1 << 30, 60, 100, 1000)) as one:
    for name in ("takes", "harmless"):
        print(one.ask((folder / name).read_bytes(), None).fault)
"""


def group_of_memory() -> Path | None:
    """A folder in which a control group for memory can be made, of either version."""
    older = Path("/sys/fs/cgroup/memory")
    return older if os.access(older / "cgroup.procs", os.W_OK) else groups.parent()


def test_the_kernel_ends_an_app_that_takes_the_machines_memory_and_nothing_else(tmp_path: Path) -> None:
    """A machine of 600 MiB for node and app, of which the app may take 1 GiB. Where none can be made, the test above
    holds alone.
    """
    hanging(tmp_path)
    for name, given in (
        ("takes", {"attack": "memory", "megabytes": 900}),
        ("harmless", {"attack": "full_disk", "megabytes": 1}),
    ):
        context = context_of(tmp_path / "data.csv", given)  # type: ignore[arg-type]
        (tmp_path / name).write_bytes(request_bytes(message_of({"a": np.zeros(1)}), context))
    if (folder := group_of_memory()) is None:
        return
    group = folder / f"test-{os.getpid()}"
    group.mkdir()
    try:
        limit = next(file for file in ("memory.limit_in_bytes", "memory.max") if (group / file).exists())
        (group / limit).write_text(str(600 << 20))
        command = [sys.executable, "-c", SHORT, str(group), str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["the app ended without an answer (ended, status -9)", "None"]


def test_each_start_has_a_group_of_its_own(message_app: tuple[Sandbox, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """In files that stand for the kernel's."""
    one, data = message_app
    folder = data.parent / "groups"
    folder.mkdir()
    monkeypatch.setattr(groups, "parent", lambda: folder)
    real, made = Path.mkdir, list[Path]()

    def mkdir(path: Path, *given: object, **more: object) -> None:
        real(path, *given, **more)  # type: ignore[arg-type]
        if path.parent == folder:
            made.append(path)
            (path / "cgroup.procs").touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)
    seen: list[dict[str, str]] = []
    told = one._told
    monkeypatch.setattr(
        one, "_told", lambda *given: (told(*given), seen.append({f.name: f.read_text() for f in made[-1].iterdir()}))[0]
    )
    for _ in range(2):
        assert one.ask(request(data), None).fault is None
    assert len(set(made)) == 2 and not any(path.exists() for path in made)
    for files in seen:
        assert files["cgroup.procs"] == "0" and files["memory.swap.max"] == "0"
        assert files["pids.max"] == str(LIMITS.processes + groups.SPARE)
        least = 2 * LIMITS.memory_bytes + LIMITS.answer_bytes + groups.KERNEL
        assert least < int(files["memory.max"]) < least + (1 << 30)


@pytest.mark.parametrize(
    ("enabled", "above", "found"),
    [("memory pids", True, "own"), ("", True, "own"), (None, True, "above"), (None, False, None)],
)
def test_a_group_is_made_where_the_kernel_lets(
    tmp_path: Path, enabled: str | None, above: bool, found: str | None
) -> None:
    """In the process's own group, or the one above where its own has processes; files stand for the kernel's."""
    process, mounted = tmp_path / "self", tmp_path / "mounted"
    process.mkdir()
    (own := mounted / "slice" / "own").mkdir(parents=True)
    (process / "cgroup").write_text("4:memory:/else\n0::/slice/own\n")
    (process / "mountinfo").write_text(f"30 1 0:26 / {mounted} rw - cgroup2 none rw\n")
    for folder, text in ((own, enabled), (own.parent, "pids" if above else None)):
        if text is not None:
            (folder / "cgroup.subtree_control").write_text(text)
    wanted = {"own": own, "above": own.parent, None: None}[found]
    assert groups.parent(str(process)) == wanted
    if wanted is not None:
        assert {*(wanted / "cgroup.subtree_control").read_text().replace("+", "").split()} == {"memory", "pids"}
    groups.parent.cache_clear()


# --- where it cannot run ------------------------------------------------------------------------------------------

NESTED = """
import os, sys
from pathlib import Path
from fedpriv.guard import kernel
uid, gid = os.getuid(), os.getgid()
kernel.unshare(kernel.NEW_USERS, "users")
kernel.own_users(uid, gid, {inner})
{more}
os.execv(sys.executable, [sys.executable, "-c", "from fedpriv.guard.sandbox import available; print(available())"])
"""


def in_nested(inner: int, more: str) -> str:
    code = NESTED.format(inner=inner, more=more)
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_an_ordinary_user_has_a_sandbox() -> None:
    assert in_nested(1234, "") == "None"  # a user without any capability: a program's start takes them


def test_without_user_namespaces_it_is_refused_with_what_to_do() -> None:
    told = in_nested(0, "Path('/proc/sys/user/max_user_namespaces').write_text('0')")
    assert told.startswith("the sandbox cannot be built here:") and "user.max_user_namespaces" in told


def test_a_library_that_starts_threads_is_not_imported_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`wsgiref` in its place: a thread is started when it is looked for."""
    data = write_rows(tmp_path / "data.csv", 5)
    hook = "import sys, threading, time; " + (
        "sys.meta_path.insert(0, type('F', (), {{'find_spec': staticmethod(lambda name, *_: "
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start() if name == 'wsgiref' else None)}})); "
    )
    monkeypatch.setattr(processes, "_CODE", hook + processes._CODE)
    app = Path(shutil.copytree(APPS / "quickstart-message", tmp_path / "quickstart-message"))
    (app / "messageexample" / "more.py").write_text("import wsgiref\n")
    with Sandbox(app, data, LIMITS, warm=frozenset({"wsgiref"})) as one:
        assert not one.is_warm
        np.testing.assert_allclose((one.ask(request(data), None).arrays or ())[0], trained(data)[0])
    monkeypatch.setattr(processes, "_CODE", hook.replace("wsgiref", "numpy") + processes._CODE)
    with pytest.raises(SandboxUnavailable, match="leaves 2 threads"), Sandbox(app, data, LIMITS):
        pass


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        ({"memory_bytes": 0}, "memory_bytes=0"),
        ({"wall_s": float("nan")}, "wall_s=nan"),
        ({"pad_s": 100.0}, "pad_s=100.0: must exceed wall_s"),
        ({"processes": -1}, "processes=-1"),
    ],
)
def test_limits_that_are_none_are_refused(limits: dict[str, float], word: str) -> None:
    given = {"memory_bytes": 1, "processor_s": 1.0, "wall_s": 100.0, "answer_bytes": 1}
    with pytest.raises(ValueError, match=word):
        Limits(**(given | limits))  # type: ignore[arg-type]


def test_a_folder_that_is_no_app_is_a_fault(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.csv", 5)
    app = tmp_path / "nothing"
    app.mkdir()
    with Sandbox(app, data, LIMITS) as one:
        answer = one.ask(request(data), None)
    assert answer.arrays is None and "pyproject.toml" in str(answer.fault)


def test_the_libraries_of_an_app_are_read_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch.nn as nn, os\nfrom sklearn.svm import SVC\nraise SystemExit(1)\n")
    (tmp_path / "deep.py").write_text("(" * 100_000)
    (tmp_path / "large.py").write_text("import scipy\n" + "#" * module.LONGEST_SOURCE)
    os.symlink("/dev/zero", tmp_path / "endless.py")
    found = libraries_of(tmp_path)
    assert {"torch.nn", "sklearn.svm"} <= set(found) and not {"os", "scipy"} & set(found)


def test_this_machine_is_confined() -> None:
    assert available() is None


def test_what_the_launcher_is_given_fits_one_message() -> None:
    given = {"libraries": libraries_of(APPS), "packages": module.root.libraries()}
    assert len(json.dumps(given)) < module.LONGEST // 4


def test_a_shards_files_are_copied_in_the_order_of_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A disk lists a folder in an order that other shards' files can change, and a copy is numbered as it is made."""
    (tmp_path / "shard" / "b").mkdir(parents=True)
    for name in ("c", "a", "b/2", "b/1"):
        (tmp_path / "shard" / name).write_text(name)
    (tmp_path / "shard" / "link").symlink_to("a")
    copied: list[str] = []
    listed, copyfile = os.listdir, root.shutil.copyfile
    monkeypatch.setattr(root.os, "listdir", lambda path: sorted(listed(path), reverse=True))
    monkeypatch.setattr(root.shutil, "copyfile", lambda *given: copied.append(Path(given[1]).name) or copyfile(*given))
    root.copy_in_order(str(tmp_path / "shard"), str(tmp_path / "copy"))
    assert copied == ["a", "1", "2", "c"]
    assert {file.stat().st_mtime for file in [tmp_path / "copy", *(tmp_path / "copy").rglob("*")]} == {0}


@pytest.mark.parametrize(("takes", "answers", "warns"), [(0.5, 2.0, False), (2.0, 2.0, False), (2.3, 4.0, True)])
def test_an_answer_that_ends_late_takes_a_whole_number_of_pads(
    takes: float, answers: float, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [10.0]

    def passes(seconds: float) -> None:
        clock[0] += seconds

    def record(*_: object) -> tuple[bytes, str, dict[str, Any]]:
        passes(takes)
        return b"", "slow", {}

    monkeypatch.setattr("fedpriv.guard.sandbox.time", SimpleNamespace(monotonic=lambda: clock[0], sleep=passes))
    box: Any = object.__new__(Sandbox)
    box.limits, box._record = Limits(1, 1.0, 1.0, 1, pad_s=2.0), record
    assert box.ask(b"", None).seconds == pytest.approx(answers)
    assert ("more than pad_seconds: 2" in caplog.text) == warns
