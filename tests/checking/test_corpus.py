"""The corpus of public code: every truth is whole and has its wrapper; its script refuses what it cannot stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import check_corpus
from benchmarks.check_gallery import OPTIONS
from benchmarks.corpus import wrappers

COMMITS, ROWS = check_corpus.targets()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_truth_is_whole_and_has_its_wrapper(row: dict) -> None:
    assert set(row) == {"name", "repository", "place", "form", "claim", "truth", "why"}
    assert callable(getattr(wrappers, row["name"]))
    assert len(COMMITS[row["repository"]]) == 40
    assert row["form"] in ("release", "run", "data") and row["truth"] in ("sound", "faulty") and len(row["why"]) > 40
    assert {"epsilon", "delta", "scope"} <= set(row["claim"]) <= set(OPTIONS)


def test_every_repository_has_a_target_and_both_truths_come_often() -> None:
    assert {row["repository"] for row in ROWS} == set(COMMITS)
    assert len({row["name"] for row in ROWS}) == len(ROWS) >= 25
    assert min(sum(row["truth"] == truth for row in ROWS) for truth in ("sound", "faulty")) >= 15


def test_what_is_no_folder_or_another_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="repositories= must be the folder"):
        check_corpus.main([f"repositories={tmp_path / 'nothing'}"])
    (tmp_path / ROWS[0]["repository"].replace("/", "+")).mkdir()
    with pytest.raises(SystemExit, match="its commit is None, and the truth is of"):
        check_corpus.main([f"repositories={tmp_path}", f"out={tmp_path / 'found.jsonl'}"])


def test_what_is_not_there_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_corpus.main([f"repositories={tmp_path}", f"out={tmp_path / 'found.jsonl'}", "seconds=1"])
    said = capsys.readouterr().out
    assert all(row["name"] in said for row in ROWS) and not (tmp_path / "found.jsonl").exists()


def test_a_verdict_beside_the_truth() -> None:
    words = [
        ("faulty", "faults found"),
        ("faulty", "no fault found"),
        ("sound", "faults found"),
        ("sound", "no fault found"),
    ]
    assert [check_corpus.outcome(*one) for one in words] == ["found", "missed", "accused", "passed"]
    assert check_corpus.outcome("sound", "could not check") == "could not check"
