"""The leaderboard's pages: one for each answer to who is trusted; what is not ranked stands behind the boards."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from fedpriv.report.words import figure, plus_minus
from fedpriv.studies.leaderboard_page import page_of, pages
from fedpriv.studies.results import Board, Estimate, Leaderboard, Left, read_study

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "leaderboard"


@pytest.fixture(scope="module")
def committed() -> Leaderboard:
    return read_study(RESULTS, Leaderboard)


def test_every_board_is_on_one_page_in_the_order_of_who_is_trusted(committed: Leaderboard) -> None:
    found = pages(committed)
    assert list(found) == ["README.md", "trusted_server.md", "secure_sum.md", "nobody_trusted.md", "one_example.md"]
    index = found.pop("README.md")
    for board in committed.boards:
        (file,) = (name for name, text in found.items() if f"\n## {board.title}\n" in text)
        assert file == page_of(board) and f"[{board.title}]({file}#" in index
        assert f"]({board.plot.file})" in found[file] if board.plot else True
    assert "| One person | What do messages show of a person with several rows? | no board yet" in index
    assert [file for file in found if f"]({file})" in index] == list(found)


def rows_of(text: str) -> list[list[str]]:
    """Of the one table in it, without its head."""
    return [line.strip("| ").split(" | ") for line in text.split("\n") if line.startswith("| ") and "|---" not in line][
        1:
    ]


def test_what_is_not_ranked_stands_behind_the_boards(committed: Leaderboard) -> None:
    """In one table of a page, and the prices without calibration of what is ranked in another."""
    for file, text in pages(committed).items():
        here = [board for board in committed.boards if page_of(board) == file]
        first, _, before = text.partition("## The same methods without calibration")
        boards, _, never = first.partition("## What is not ranked")
        assert "ot ranked" not in boards and all(f"## {board.title}\n" in boards for board in here)
        for board in here:
            ranked = {(entry.label, entry.target) for entry in board.entries}
            for left in board.left:
                published = left.variant == "published"
                rows = rows_of(before if published else never)
                (methods,) = (who for title, who, why in rows if (title, why) == (board.title, left.reason))
                assert left.label in methods
                targets = board.targets if left.target is None else (left.target,)
                assert published or not {(left.label, target) for target in targets} & ranked


def test_methods_of_one_reason_are_together(committed: Leaderboard) -> None:
    def left(label: str, reason: str, variant: str = "repaired", target: float | None = None) -> Left:
        return Left(method="m", label=label, reason=reason, variant=variant, target=target)

    board = committed.boards[0].model_copy(
        update={
            "title": "T",
            "left": (
                left("A", "a bar | in it"),
                left("C", "a bar | in it", "published"),
                left("C", "a bar | in it", "published"),
                left("D", "too far", target=8.0),
                left("E", "a bar | in it"),
            ),
        }
    )
    assert [line for line in lines_of(committed, board) if line.startswith("| T |")] == [
        r"| T | A; E | a bar \| in it |",
        "| T | D at epsilon 8 | too far |",
        r"| T | C | a bar \| in it |",
    ]
    assert "## What is not ranked" not in lines_of(committed, board.model_copy(update={"left": ()}))


def lines_of(committed: Leaderboard, board: Board) -> list[str]:
    """Of its page, where it is the only board."""
    return pages(committed.model_copy(update={"boards": (board,)}))[page_of(board)].split("\n")


def test_a_bad_search_and_a_plan_of_ones_own_are_marked(committed: Leaderboard) -> None:
    board = next(one for one in committed.boards if len(one.targets) > 1)
    low, high = board.targets[:2]
    accuracy = Estimate(n=8, mean=90.0, std=0.1, half_width=0.1)
    one = board.entries[0].model_copy(update={"target": low, "accuracy": accuracy, "label": "A"})

    def lines(**changes: Any) -> list[str]:
        again = one.model_copy(update={"target": high, **changes})
        return lines_of(committed, board.model_copy(update={"entries": (one, again)}))

    plain, marked = lines(), lines(better_at=low, own_plan=True)
    said = f"at this one chose badly: A (90.00 ± 0.10 % at epsilon {figure(low)})."
    assert any(said in line for line in marked) and not any("chose badly" in line for line in plain)
    assert any("A \\* |" in line for line in marked) and any(line.startswith("\\*: with a plan") for line in marked)
    assert not any("\\*" in line for line in plain)


def test_a_page_is_short_until_it_is_opened(committed: Leaderboard) -> None:
    """Tables by epsilon, test by test, and how options were searched are folded."""
    for file, text in pages(committed).items():
        shown = re.sub(r"<details markdown>.*?</details>", "", text, flags=re.DOTALL)
        assert len(shown.split()) <= 1500, file
        assert text.count("<details markdown>") == text.count("</details>")
    for board in committed.boards:
        for target in {entry.target for entry in board.entries}:
            assert f"<summary>Epsilon {figure(target)}: " in pages(committed)[page_of(board)]


def test_a_duel_is_shown_with_its_own_figures(committed: Leaderboard) -> None:
    for board in committed.boards:
        text = pages(committed)[page_of(board)]
        labels = {entry.method: entry.label for entry in board.entries}
        for duel in board.duels:
            gap = plus_minus(duel.difference.mean or 0.0, duel.difference.half_width)
            row = f"| {figure(duel.target)} | {labels[duel.method]} | {labels[duel.against]} | {gap} |"
            assert row in text and text[text.index(row) :].split("\n")[0].endswith(f"{duel.outcome} |")


def test_the_index_has_the_command_of_every_boards_best(committed: Leaderboard) -> None:
    index = pages(committed)["README.md"]
    for board in committed.boards:
        target = min({e.target for e in board.entries}, key=lambda one: abs(math.log(one / 8)))
        first = [e for e in board.entries if e.target == target and e.rank == 1]  # several where they are equal
        assert any(f"```bash\n{one.command}\n```" in index for one in first)
