"""Apps that carry a number out of a shard: each first does so without a sandbox, and then cannot.

`tests/guard/hostile_apps/` has one function for each attempt; docs/guard_sandbox.md has the table.
`LAWS` says what must hold of which.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from asking import HOSTILE, bare, context_of, message_of
from processes import wait_until

from fedpriv.guard import processes, root
from fedpriv.guard import sandbox as module
from fedpriv.guard.record import record_of, request_bytes
from fedpriv.guard.sandbox import Answer, Limits, Sandbox, SandboxUnavailable, available

SECRET = 4711
OPEN = Limits(8 << 30, 60, 100, 1 << 20, processes=1000)
TIGHT = Limits(128 << 20, 1, 30, 1 << 20, processes=32)


class Box:
    """The hostile app in a folder of its own, with two sandboxes: one without namespaces, and a confined one."""

    def __init__(self, folder: Path, open_one: Sandbox, confined: Sandbox) -> None:
        self.folder, self.both = folder, {False: open_one, True: confined}
        self.app, self.data = folder / "hostile_apps", folder / "data.csv"

    def shard(self, secret: int) -> Path:
        path = self.folder / f"shard-{secret}.csv"
        path.write_text(str(secret))
        return path

    def given(self, attack: str, **more: Any) -> dict[str, Any]:
        name = f"left-{os.getpid()}-{attack}"
        return {"attack": attack, "folder": str(self.folder / "host"), "name": name, "port": 0, "patience": 2.0, **more}

    def request(self, attack: str, **more: Any) -> bytes:
        return request_bytes(message_of({"a": np.zeros(1)}), context_of(self.data, self.given(attack, **more)))

    def ask(self, confined: bool, secret: int, attack: str, **more: Any) -> Answer:
        return self.both[confined].ask(self.request(attack, **more), self.shard(secret))

    def number(self, confined: bool, secret: int, attack: str, **more: Any) -> float:
        """The first number of the answer; 0: there is none."""
        return float((self.ask(confined, secret, attack, **more).arrays or [np.zeros(())])[0])

    def bare(self, secret: int, attack: str, context: Any = None, **more: Any) -> Any:
        self.data.write_text(str(secret))
        context = context or context_of(self.data, self.given(attack, **more))
        return bare(self.app, message_of({"a": np.zeros(1)}), context)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    assert available() is None, "hostile apps are a failure where they cannot be tried"
    folder = tmp_path_factory.mktemp("box")
    app = Path(shutil.copytree(HOSTILE, folder / "hostile_apps", ignore=shutil.ignore_patterns("__pycache__")))
    with open(app / "hostile" / "pages.bin", "wb") as file:
        file.truncate(8 * 64 * 4096)
    (folder / "data.csv").write_text("0")
    (folder / "host").mkdir()
    (folder / "host" / "other.csv").write_text(str(SECRET))
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(Sandbox(app, folder / "data.csv", limits, confined=confined))
            for limits, confined in ((OPEN, False), (TIGHT, True))
        )
        yield Box(folder, one, other)
    for name in [name for name in sys.modules if name.partition(".")[0] == "hostile"]:
        del sys.modules[name]


# --- what must hold, of many apps each -----------------------------------------------------------------------------


@contextmanager
def listening(family: int, kind: int, address: Any) -> Iterator[tuple[socket.socket, Callable[[], bytes]]]:
    """A listener, and what has reached it so far."""
    with socket.socket(family, kind) as listener:
        listener.bind(address)
        listener.setblocking(False)
        if kind == socket.SOCK_STREAM:
            listener.listen()

        def came() -> bytes:
            try:
                if kind == socket.SOCK_DGRAM:
                    return listener.recv(1000)
                link = listener.accept()[0]
            except BlockingIOError:
                return b""
            with link:
                link.setblocking(True)
                return link.recv(1000)

        yield listener, came


INET = (socket.AF_INET, ("127.0.0.1", 0))
SOCKETS = {
    "tcp": (*INET, socket.SOCK_STREAM),
    "dns": (*INET, socket.SOCK_DGRAM),
    "abstract_socket": (socket.AF_UNIX, f"\0left-{os.getpid()}-abstract_socket", socket.SOCK_STREAM),
    "file_socket": (socket.AF_UNIX, "", socket.SOCK_STREAM),
}


def reaches_nobody(box: Box, attack: str) -> None:
    family, address, kind = SOCKETS[attack]
    with listening(family, kind, address or str(box.folder / "host" / "socket")) as (listener, came):
        port = listener.getsockname()[1] if family == socket.AF_INET else 0
        assert box.ask(False, SECRET, attack, port=port).fault is None
        assert str(SECRET).encode() in wait_until(came)
        assert box.ask(True, SECRET, attack, port=port).arrays is None
        assert came() == b""


def writes_nothing_to_the_machine(box: Box, attack: str) -> None:
    drop = box.folder / "host" / "drop"
    assert box.ask(False, SECRET, attack).fault is None
    wait_until(lambda: drop.exists() and drop.read_text())
    assert drop.read_text().strip() == str(SECRET)
    drop.unlink()
    box.ask(True, SECRET, attack)  # when it returns, the kernel has ended all that the app started
    time.sleep(0.5)  # a process that stayed would write after 0.2
    assert not drop.exists()


def leaves_nothing_for_the_next_shard(box: Box, attack: str) -> None:
    secret = 5 if attack == "page_cache" else SECRET
    for confined, expected in ((False, secret), (True, 0)):
        with open(box.app / "hostile" / "pages.bin", "rb") as pages:
            os.posix_fadvise(pages.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        box.ask(confined, secret, attack, port=SECRET)
        assert box.number(confined, 0, attack, port=SECRET) == expected


def tells_nothing_to_a_shard_that_runs(box: Box, attack: str) -> None:
    def heard(confined: bool, patience: float) -> float:
        sender = threading.Thread(target=box.ask, args=(confined, SECRET, attack), kwargs={"patience": patience})
        sender.start()
        number = box.number(confined, 0, attack, patience=patience)
        sender.join()
        return number

    # The open one may take its time: it ends as soon as it has heard something.
    assert any(heard(confined=False, patience=wait) for wait in (0.5, 2, 8, 32))
    assert heard(confined=True, patience=0.5) == 0


def sees_nothing_but_its_shard(box: Box, attack: str) -> None:
    marked = {"PATH": os.environ["PATH"], box.given(attack)["name"]: str(SECRET)}
    with subprocess.Popen(["sleep", "1000"], env=marked) as process:
        try:
            seen = [box.ask(confined, 0, attack).arrays for confined in (False, True)]
        finally:
            process.kill()
    assert seen[0] is not None and seen[1] is not None
    assert float(seen[0][0]) == SECRET if attack != "machine" else float(seen[0][0]) >= 5
    assert float(seen[1][0]) == 0


def answers_with_numbers_alone(box: Box, attack: str) -> None:
    def shown(secret: int) -> str:
        reply = box.bare(secret, attack)
        if reply.has_error():
            return str(reply.error)
        arrays = [array.data for record in reply.content.array_records.values() for array in record.values()]
        return str({**reply.content}) + str(arrays)

    assert shown(3) != shown(5)
    answers = [box.ask(True, secret, attack).arrays for secret in (3, 5)]
    assert answers[0] == answers[1] and answers[0] in (None, (0,))


TAKING = {
    "memory": ({"megabytes": 300}, "MemoryError"),
    "threads": ({"threads": 300}, r"\(threads,"),
    "processor": ({"seconds": 1.5}, "status -9"),
}


def takes_no_more_than_it_may(box: Box, attack: str) -> None:
    more, fault = TAKING[attack]
    assert box.ask(False, SECRET, attack, **more).fault is None
    answer = box.ask(True, SECRET, attack, **more)
    assert answer.arrays is None and re.search(fault, str(answer.fault)), answer.fault


#: Empty files are in no disk's size, and the kernel's memory for them is in no app's.
FEWEST = max(root.FEWEST_FILES, TIGHT.memory_bytes // 4 // 4096)
MAKING = {"many_files": ("files", 20_000, FEWEST), "forks": ("children", 20, 0), "full_disk": ("megabytes", 40, 32)}


def makes_little(box: Box, attack: str) -> None:
    name, number, most = MAKING[attack]
    assert box.number(False, SECRET, attack, **{name: number}) == number
    Path("/tmp/filler").unlink(missing_ok=True)
    assert box.number(True, SECRET, attack, **{name: number}) <= most


LAWS: dict[Callable[[Box, str], None], list[str]] = {
    reaches_nobody: [*SOCKETS],
    writes_nothing_to_the_machine: ["host_file", "program", "child_stays"],
    leaves_nothing_for_the_next_shard: [
        *("tmp_file", "own_code", "posix_memory", "system_v_memory", "message_queue", "keyring", "page_cache")
    ],
    tells_nothing_to_a_shard_that_runs: ["file_lock", "watch", "shared_futex"],
    sees_nothing_but_its_shard: ["processes", "other_data", "machine"],
    answers_with_numbers_alone: ["metrics", "names", "records", "error_reply", "not_numbers", "objects"],
    takes_no_more_than_it_may: [*TAKING],
    makes_little: [*MAKING],
}


@pytest.mark.parametrize(("law", "attack"), [(law, attack) for law, attacks in LAWS.items() for attack in attacks])
def test_a_hostile_app(box: Box, law: Callable[[Box, str], None], attack: str) -> None:
    law(box, attack)


# --- to the next shard --------------------------------------------------------------------------------------------


def test_the_next_shard_reads_no_count_of_the_kernel(box: Box) -> None:
    many = 200_000  # far above what else this machine opens meanwhile

    def found(confined: bool) -> float:
        first, _, last = (box.number(confined, secret, "inode_numbers") for secret in (0, many, 0))
        return last - first

    assert found(confined=False) > many
    assert found(confined=True) == 0


def test_the_number_of_a_shards_file_tells_nothing_of_other_shards(box: Box, tmp_path: Path) -> None:
    """A file system numbers files in the order in which they are written, and another shard may have more."""

    def found(confined: bool) -> list[list[float]]:
        answers = []
        for others in range(2):
            for other in range(40 * others):
                (tmp_path / f"{confined}-{other}").write_text("x")
            shard = box.shard(SECRET)
            shard.rename(tmp_path / f"kept-{confined}-{others}")  # its number is not given again
            answer = box.ask(confined, SECRET, "file_numbers")
            assert answer.arrays is not None, answer.fault
            answers.append([float(number) for number in answer.arrays])
        return answers

    first, second = found(confined=False)
    assert first[0] != second[0]
    first, second = found(confined=True)
    assert first == second and first[3] == 0


def test_a_process_keeps_no_state_for_the_next_shard(box: Box) -> None:
    box.bare(SECRET, "import_state")
    assert box.bare(3, "import_state").content["arrays"]["array0"].numpy() == SECRET
    assert [float(box.ask(True, secret, "import_state").arrays[0]) for secret in (SECRET, 3)] == [SECRET, 3]  # type: ignore[index]


def test_the_context_keeps_no_state_for_the_next_shard(box: Box) -> None:
    context = context_of(box.data, box.given("context_state"))
    box.bare(SECRET, "context_state", context)
    assert box.bare(3, "context_state", context).content["arrays"]["array0"].numpy() == SECRET
    assert [float(box.ask(True, secret, "context_state").arrays[0]) for secret in (SECRET, 3)] == [0, 0]  # type: ignore[index]


# --- what is its own ----------------------------------------------------------------------------------------------


def test_memory_that_forks_share_is_no_way_to_the_next_shard(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a library that maps some at import, as one for threads may: `wsgiref` in its place."""
    hook = "import sys, mmap; " + (
        "sys.meta_path.insert(0, type('F', (), {{'find_spec': staticmethod(lambda name, *_: "
        "setattr(sys, 'left_by_a_library', mmap.mmap(-1, 4096)) if name == 'wsgiref' else None)}})); "
    )
    blind = "import fedpriv.guard.processes as one; one.left_behind = lambda: None; main("
    monkeypatch.setattr(module, "libraries_of", lambda *_: ["wsgiref"])

    def found(code: str, confined: bool, is_warm: bool) -> float:
        monkeypatch.setattr(processes, "_CODE", hook + code)
        with Sandbox(box.app, box.data, TIGHT if confined else OPEN, confined=confined) as one:
            assert one.is_warm == is_warm
            one.ask(box.request("own_maps"), box.shard(SECRET))
            answer = one.ask(box.request("own_maps"), box.shard(0))
        assert answer.arrays is not None, answer.fault
        return float(answer.arrays[0])

    code = processes._CODE
    assert found(code.replace("main(", blind), confined=False, is_warm=True) == SECRET
    assert found(code, confined=True, is_warm=False) == 0


# --- what an app can see ------------------------------------------------------------------------------------------


def test_an_app_has_no_environment(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(box.given("environment")["name"], str(SECRET))
    assert box.bare(0, "environment").content["arrays"]["array0"].numpy() == SECRET
    with Sandbox(box.app, box.data, TIGHT) as one:  # started by a process that has it
        (number,) = one.ask(box.request("environment"), box.shard(0)).arrays or ()
    assert float(number) == 0


def test_an_app_has_no_terminal(box: Box, capfd: pytest.CaptureFixture[str]) -> None:
    box.bare(SECRET, "prints")
    assert all(f"row {SECRET}" in text for text in capfd.readouterr())
    with Sandbox(box.app, box.data, TIGHT) as one:
        assert one.ask(box.request("prints"), box.shard(SECRET)).fault is None
    assert capfd.readouterr() == ("", "")


def test_an_app_ends_no_process_but_its_own(box: Box) -> None:
    with pytest.raises(SandboxUnavailable), Sandbox(box.app, box.data, OPEN, confined=False) as one:
        one.ask(box.request("kills_parent", all=False), box.shard(SECRET))
    assert box.ask(True, SECRET, "kills_parent", all=True).fault is None
    assert box.ask(True, SECRET, "kills_parent", all=True).fault is None, "the keeper lives"


# --- what an answer can hold --------------------------------------------------------------------------------------


def test_an_error_has_no_text(box: Box) -> None:
    with pytest.raises(ValueError, match="row 3"):
        box.bare(3, "error_text")
    answers = [box.ask(True, secret, "error_text") for secret in (3, 5)]
    assert [answer.arrays for answer in answers] == [None, None]
    assert "row 3" in str(answers[0].fault), "the operator of the node reads why"


def test_a_crash_has_no_status(box: Box) -> None:
    def status(secret: int) -> int:
        return int(
            box.both[False]._record(box.request("crash"), box.shard(secret), module.time.monotonic())[2]["status"]
        )

    assert (status(3), status(4)) == (-11, 4)
    answers = [box.ask(True, secret, "crash") for secret in (3, 4)]
    assert [answer.arrays for answer in answers] == [None, None]
    assert re.search("status -11", str(answers[0].fault))


def test_a_second_answer_makes_both_none(box: Box) -> None:
    raw = box.both[False]._record(box.request("two_answers"), box.shard(SECRET), module.time.monotonic())[0]
    assert np.float64(SECRET).tobytes() in raw and raw.count(b"data_offsets") == 2
    answer = box.ask(True, SECRET, "two_answers")
    assert answer.arrays is None and "no record" in str(answer.fault)


def test_an_endless_answer_is_none(box: Box) -> None:
    answer = box.ask(True, SECRET, "endless")
    assert answer.arrays is None and answer.fault == f"more than answer_bytes={TIGHT.answer_bytes}"


# --- time ---------------------------------------------------------------------------------------------------------


def test_an_app_that_writes_its_answer_itself_has_none_before_its_end(box: Box) -> None:
    """Slowly, and whole at the last second: it answers where it ends, and at the wall time it has not."""
    answer = box.ask(False, SECRET, "own_answer", patience=1.0, seconds=0.0)
    assert answer.arrays is not None and float(answer.arrays[0][0]) == SECRET
    with Sandbox(box.app, box.data, Limits(128 << 20, 5, 2, 1000)) as one:
        answers = [
            one.ask(box.request("own_answer", patience=0.5, seconds=seconds), box.shard(SECRET))
            for seconds in (0.0, 100.0)
        ]
    assert answers[0].arrays is not None, answers[0].fault
    assert answers[1].arrays is None and "no answer in wall_s=2" in str(answers[1].fault)


def test_with_padding_the_next_shard_reads_no_time(box: Box) -> None:
    limits = {False: OPEN, True: Limits(128 << 20, 5, 0.9, 1000, pad_s=1)}

    def found(one: Sandbox, secret: int) -> float:
        request = box.request("elapsed")
        one.ask(request, box.shard(secret))
        answer = one.ask(request, box.shard(0))
        assert answer.arrays is not None, answer.fault
        return float(answer.arrays[0])

    # A busy machine adds to both: one try in which it adds little is enough, in both directions.
    def tries(one: Sandbox) -> Iterator[float]:
        return (abs(found(one, 700) - found(one, 1)) for _ in range(8))

    assert any(difference > 0.4 for difference in tries(box.both[False]))
    with Sandbox(box.app, box.data, limits[True]) as padded:
        assert any(difference < 0.4 for difference in tries(padded))


def test_a_padded_answer_takes_a_fixed_time(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    assert box.ask(True, 700, "slow").seconds >= 0.7  # without padding its time is the app's

    with Sandbox(box.app, box.data, Limits(128 << 20, 5, 0.9, 1000, pad_s=1)) as padded:
        assert all(padded.ask(box.request("slow"), box.shard(secret)).seconds >= 1 for secret in (1, 700))
    # Until when an answer waits follows from when it was asked for, and from nothing else.
    now, waits = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: waits.append(now[0] + seconds))
    monkeypatch.setattr(module, "time", clock)  # of the sandbox alone: other threads sleep as they did
    with Sandbox(box.app, box.data, Limits(128 << 20, 5, 100, 1000, pad_s=200)) as padded:
        for took, fault in ((0.0, None), (7.0, None), (99.0, "crash")):

            def record(message: bytes, shard: Any, since: float, took: float = took, fault: Any = fault) -> Any:
                now[0] = since + took
                return record_of([]), fault, {}

            monkeypatch.setattr(padded, "_record", record)
            now[0] = asked = 1000.0 * len(waits)
            padded.ask(b"", box.shard(1))
            assert waits[-1] == asked + 200

        def broken(message: bytes, shard: Any, since: float) -> Any:
            now[0] = since + 3
            raise SandboxUnavailable("an app did not end")

        monkeypatch.setattr(padded, "_record", broken)
        now[0] = 5000.0
        with pytest.raises(SandboxUnavailable):
            padded.ask(b"", box.shard(1))
    assert waits == [200, 1200, 2200, 5200]


def test_every_attempt_is_tried() -> None:
    tree = ast.parse((HOSTILE / "hostile" / "client_app.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    attempts = {
        one.name for one in functions if len(one.args.args) == 4 or (one.args.vararg and one.args.vararg.arg == "_")
    }
    words = set(re.findall(r'"(\w+)"', Path(__file__).read_text()))
    assert attempts <= words and len(attempts) >= 46
    page = (Path(__file__).parents[2] / "docs" / "guard_sandbox.md").read_text()
    table = page[page.index("## Hostile apps") : page.index("## What it costs")]
    assert attempts <= set(re.findall(r"`(\w+)`", table))
