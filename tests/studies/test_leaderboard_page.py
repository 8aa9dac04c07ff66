"""The leaderboard's page: what is not ranked stands once, behind the boards, in today's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedpriv.report.words import figure
from fedpriv.studies.leaderboard_page import page
from fedpriv.studies.results import Estimate, Leaderboard, Left, read_study

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "leaderboard"


@pytest.fixture(scope="module")
def committed() -> Leaderboard:
    return read_study(RESULTS, Leaderboard)


def rows_of(lines: list[str]) -> list[list[str]]:
    """Of the one table among them, without its head."""
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ") and "|---" not in line][1:]


def test_what_is_not_ranked_stands_behind_the_boards(committed: Leaderboard) -> None:
    """In one table, and the prices without calibration of what is ranked in another."""
    lines = list(page(committed))
    start, end = lines.index("## What is not ranked"), lines.index("## Where this comes from")
    middle = lines.index("## The same methods without calibration")
    assert start > max(lines.index(f"## {board.title}") for board in committed.boards)
    sections = {False: rows_of(lines[start:middle]), True: rows_of(lines[middle:end])}
    for board in committed.boards:
        ranked = {(entry.label, entry.target) for entry in board.entries}
        for left in board.left:
            published = left.variant == "published"
            reason = (board.title, left.reason)
            here = [methods for title, methods, why in sections[published] if (title, why) == reason]
            assert len(here) == 1 and left.label in here[0], left
            targets = board.targets if left.target is None else (left.target,)
            assert published or not {(left.label, target) for target in targets} & ranked
    assert not any("ot ranked" in line for line in lines[:start])
    assert sum(map(len, sections.values())) < sum(len(board.left) for board in committed.boards)


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
        r"| T | A | a bar \| in it |",
        "| T | D at epsilon 8 | too far |",
        "| T | B | epsilon 3 |",
        r"| T | C | a bar \| in it |",
    ]
    nothing = board.model_copy(update={"left": ()})
    assert "## What is not ranked" not in list(page(committed.model_copy(update={"boards": (nothing,)})))


def test_a_bad_search_and_a_plan_of_ones_own_are_marked(committed: Leaderboard) -> None:
    board = next(one for one in committed.boards if len(one.targets) > 1)
    low, high = board.targets[:2]
    accuracy = Estimate(n=8, mean=90.0, std=0.1, half_width=0.1)
    one = board.entries[0].model_copy(update={"target": low, "accuracy": accuracy, "label": "A"})

    def lines(**changes: Any) -> list[str]:
        again = one.model_copy(update={"target": high, **changes})
        made = board.model_copy(update={"entries": (one, again)})
        return list(page(committed.model_copy(update={"boards": (made,)})))

    plain, marked = lines(), lines(better_at=low, own_plan=True)
    said = f"at this one chose badly: A (90.0 ± 0.1 % at epsilon {figure(low)})."
    assert any(said in line for line in marked) and not any("chose badly" in line for line in plain)
    assert any("A \\* |" in line for line in marked) and any(line.startswith("\\*: with a plan") for line in marked)
    assert not any("\\*" in line for line in plain)


def test_older_boards_speak_as_todays() -> None:
    for old in (
        "as printed it has a finite price too (verified epsilon 3,540): only the repaired variant is ranked",
        "as published epsilon = 3,540; ranked only after recalibration",
    ):
        assert Left(method="m", label="M", reason=old).reason == "epsilon 3,540"
    assert Left(method="m", label="M", reason="no noise").reason == "no noise"
