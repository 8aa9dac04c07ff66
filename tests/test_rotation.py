"""What a commit leaves out of the whole suite, its neighbours run (`rotation`)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import import_order
import pytest
import rotation
import speed
from contract.test_every_method import CASES, METHODS, place
from import_order import begun_elsewhere, import_tests, place_of


class Item(SimpleNamespace):
    """A case as pytest has it. marker: what `rotates` was given, or nothing."""

    def get_closest_marker(self, name: str) -> Any:
        return SimpleNamespace(args=self.marker) if self.marker else None

    def __hash__(self) -> int:
        return id(self)


def cases(of: str, count: int, *marker: Any) -> list[Any]:
    return [
        Item(nodeid=f"{of}[{n}]", originalname=of, marker=marker, callspec=SimpleNamespace(params={"n": n}), n=n)
        for n in range(count)
    ]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """``at(3)``: a commit whose hash is 3."""
    for name in ("FEDPRIV_STRESS", "FEDPRIV_ALL_RUNS"):
        monkeypatch.delenv(name, raising=False)
    return lambda commit: monkeypatch.setattr(rotation, "commit", lambda: commit)


def test_parts_of_all_commits_are_all_cases_each_once(at: Callable[[int], None]) -> None:
    items = [*cases("in turn", 7, 3), *cases("by place", 6, 2, lambda n: n // 2), *cases("always", 4)]
    run: Counter[tuple[str, int]] = Counter()
    for commit in range(6):
        at(commit)
        run.update((item.originalname, item.n) for item in items if item not in rotation.left_out(items))
    times = {"in turn": 2, "by place": 3, "always": 6}
    assert run == {(item.originalname, item.n): times[item.originalname] for item in items}


def test_slow_tests_of_upper_rooms_take_turns_and_so_do_their_cases(
    at: Callable[[int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_turn = ["studies/test_a.py::one", "studies/test_a.py::two", "runs/test_b.py::three"]
    halves = "guard/test_d.py::slow_process"
    always = ["privacy/test_c.py::slow_below", "runs/test_b.py::fast"]
    listed = [*in_turn, "privacy/test_c.py::slow_below", "runs/test_b.py::marked", halves]
    (tmp_path / "slow.txt").write_text("\n".join(listed))
    monkeypatch.setattr(rotation, "LIST", tmp_path / "slow.txt")
    rotation.slow.cache_clear()
    items = [*(case for name in in_turn + always for case in cases(name, 4)), *cases("runs/test_b.py::marked", 4, 1)]
    items += [*cases("runs/test_b.py::halves", 12, 2), *cases("privacy/test_c.py::halves", 12, 2), *cases(halves, 12)]
    parts: list[set[Any]] = []
    for commit in range(rotation.PARTS):
        at(commit)
        parts.append(set(items) - rotation.left_out(items))
    rotation.slow.cache_clear()
    kept = set.intersection(*parts)
    assert set.union(*parts) == set(items)
    assert kept == {item for item in items if item.originalname in (*always, "runs/test_b.py::marked")}
    sizes = {name: {sum(item.originalname == name for item in part) for part in parts} for name in in_turn}
    assert all(size <= {4 // rotation.PARTS, -(-4 // rotation.PARTS)} for size in sizes.values())
    below = ("privacy/test_c.py::halves", halves)  # in two parts, as its mark says or its room
    assert {sum(item.originalname == name for item in part) for part in parts for name in below} == {6}
    above = [item for item in items if item not in kept and item.originalname not in below]
    assert sum(len(part & set(above)) for part in parts) == len(above)


def test_no_commit_has_the_first_cases_of_all(at: Callable[[int], None]) -> None:
    items = [*(case for number in range(100) for case in cases(f"privacy/test_a.py::of_one_case_{number}", 1, 5))]
    sizes = []
    for commit in range(5):
        at(commit)
        sizes.append(100 - len(rotation.left_out(items)))
    assert sum(sizes) == 100 and min(sizes) >= 10 and max(sizes) <= 30


def test_the_list_of_slow_tests_keeps_what_another_commit_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_a.py").write_text("def test_here(): ...\ndef test_now_fast(): ...\ndef test_slow(): ...\n")
    listed = tmp_path / "slow.txt"
    listed.write_text("test_a.py::test_here\ntest_a.py::test_now_fast\ntest_a.py::test_gone\ntest_b.py::test_here\n")
    taken = {"test_a.py::test_now_fast": {"": 0.1}, "test_a.py::test_slow": {"[1]": 0.1, "[2]": 0.3}}
    with monkeypatch.context() as patch:
        patch.setattr(speed, "LIST", listed)
        patch.setattr(speed, "_seconds", taken)
        speed.write_slow(SimpleNamespace(getoption=lambda name: True))  # type: ignore[arg-type]
    assert listed.read_text().split() == ["test_a.py::test_here", "test_a.py::test_slow"]


def test_in_full_nothing_is_left_out(at: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    at(0)
    items = cases("in turn", 7, 3)
    assert len(rotation.left_out(items)) in (4, 5)
    monkeypatch.setenv("FEDPRIV_ALL_RUNS", "1")
    assert rotation.left_out(items) == set()


def test_every_commit_runs_every_method(at: Callable[[int], None]) -> None:
    for commit in range(2):
        at(commit)
        assert [case[0] for case in CASES if rotation.is_part(place(case), 2)] == [f"strategy={m}" for m in METHODS]
        assert all(
            rotation.is_part(place(m), 2) == rotation.is_part(place((f"strategy={m}", "privacy.variant=repaired")), 2)
            for m in METHODS
        )


@pytest.mark.parametrize(
    ("arguments", "keyword", "whole"),
    [
        (["tests"], "", True),
        (["."], "", True),
        (["tests"], "fedcad", False),
        (["tests/contract"], "", False),
        (["tests", "tests/client/test_way.py::test_an_updates_way_does_not_grow"], "", False),
    ],
)
def test_what_is_asked_for_by_name_runs_in_full(arguments: list[str], keyword: str, whole: bool) -> None:
    config = SimpleNamespace(
        args=arguments, invocation_params=SimpleNamespace(dir=rotation.ROOT), getoption=lambda name: keyword
    )
    assert rotation.whole_suite(config) is whole  # type: ignore[arg-type]


def test_processes_begin_to_import_at_different_files_and_miss_none(monkeypatch: pytest.MonkeyPatch) -> None:
    files = list(range(10))
    orders = [begun_elsewhere(files, number, 3) for number in range(3)]
    assert all(sorted(order) == files for order in orders) and [order[0] for order in orders] == [0, 3, 6]
    worker = SimpleNamespace(workerinput={"workerid": "gw2", "workercount": 3})
    assert place_of(worker) == (2, 3) and place_of(SimpleNamespace()) == (0, 1)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_imported_is_left_to_its_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "test_of_an_import_that_fails.py").write_text("raise ValueError('at import')")
    (tmp_path / "room" / "test_of_an_import_that_works.py").write_text("VALUE = 1")
    monkeypatch.setattr(import_order, "whole_suite", lambda config: True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    ignored: list[str] | None = ["a room"]
    worker: Any = SimpleNamespace(workerinput={"workerid": "gw0", "workercount": 2}, getoption=lambda name: ignored)
    import_tests(worker, tmp_path)
    assert "test_of_an_import_that_works" not in sys.modules
    ignored = None
    import_tests(worker, tmp_path)
    assert sys.modules.pop("test_of_an_import_that_works").VALUE == 1
    assert "test_of_an_import_that_fails" not in sys.modules
