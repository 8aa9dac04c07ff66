"""The leaderboard's page: what is not ranked stands once, behind the boards, in today's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.studies.leaderboard_page import page
from fedpriv.studies.results import Leaderboard, Left, read_study

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "leaderboard"


@pytest.fixture(scope="module")
def committed() -> Leaderboard:
    return read_study(RESULTS, Leaderboard)


def test_what_is_not_ranked_is_one_table_behind_the_boards(committed: Leaderboard) -> None:
    lines = list(page(committed))
    start, end = lines.index("## What is not ranked"), lines.index("## Where this comes from")
    assert start > max(lines.index(f"## {board.title}") for board in committed.boards)
    rows = [line.strip("| ").split(" | ") for line in lines[start:end] if line.startswith("| ") and "|---" not in line]
    for board in committed.boards:
        for left in board.left:
            found = [methods for title, methods, why in rows[1:] if (title, why) == (board.title, left.reason)]
            assert len(found) == 1 and left.label in found[0], left
    assert not any("ot ranked" in line for line in lines[:start])
    assert len(rows) < sum(len(board.left) for board in committed.boards)


def test_methods_of_one_reason_are_together(committed: Leaderboard) -> None:
    def left(label: str, reason: str, variant: str = "repaired", target: float | None = None) -> Left:
        return Left(method="m", label=label, reason=reason, variant=variant, target=target)

    board = committed.boards[0].model_copy(
        update={
            "title": "T",
            "left": (
                left("A", "a bar | in it"),
                left("B", "as published epsilon = 3; ranked only after recalibration", "published"),
                left("C", "a bar | in it", "published"),
                left("C", "a bar | in it", "published"),
                left("D", "too far", target=8.0),
            ),
        }
    )
    lines = list(page(committed.model_copy(update={"boards": (board,)})))
    assert [line for line in lines if line.startswith("| T |")] == [
        r"| T | A; C, as published | a bar \| in it |",
        "| T | B | as published epsilon = 3; ranked only after recalibration |",
        "| T | D at epsilon 8 | too far |",
    ]
    nothing = board.model_copy(update={"left": ()})
    assert "## What is not ranked" not in list(page(committed.model_copy(update={"boards": (nothing,)})))


def test_older_boards_speak_as_todays() -> None:
    old = "as printed it has a finite price too (verified epsilon 3,540): only the repaired variant is ranked"
    assert Left(method="m", label="M", reason=old).reason == (
        "as published epsilon = 3,540; ranked only after recalibration"
    )
    assert Left(method="m", label="M", reason="no noise").reason == "no noise"
