"""The picture of a board: every entry is a dot at its accuracy, in the panel of its epsilon."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from fedpriv.studies import leaderboard_plot
from fedpriv.studies.results import Leaderboard

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "leaderboard" / "results.json"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    real = leaderboard_plot.save_picture

    def kept(figure: Figure, *rest: object) -> object:
        figures.append(figure)
        return real(figure, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(leaderboard_plot, "save_picture", kept)
    return figures


def test_every_entry_is_a_dot_where_it_belongs(drawn: list[Figure], tmp_path: Path) -> None:
    board = max(Leaderboard.model_validate_json(RESULTS.read_text()).boards, key=lambda one: len(one.entries))
    picture = leaderboard_plot.draw_board(board, tmp_path)
    panels = drawn[0].axes
    labels = [tick.get_text() for tick in panels[0].get_yticklabels()]
    targets = sorted({entry.target for entry in board.entries})
    assert len(panels) == len(targets) and (tmp_path / picture.file).stat().st_size < 400_000
    for axes, target in zip(panels, targets, strict=True):
        dots = [one for one in axes.containers if isinstance(one, ErrorbarContainer)]
        found = {(labels[round(dot[0].get_ydata()[0])], round(dot[0].get_xdata()[0], 6)) for dot in dots}
        entries = [entry for entry in board.entries if entry.target == target]
        assert found == {(entry.label, round(entry.accuracy.mean or 0.0, 6)) for entry in entries}
        low, high = axes.get_xlim()
        for dot, entry in zip(dots, entries, strict=True):
            (left, right) = dot[2][0].get_segments()[0][:, 0]
            assert low <= left <= right <= min(high, 100.0)
            assert right - left <= 2 * (entry.accuracy.half_width or 0.0) + 1e-9
    best = max((entry for entry in board.entries if entry.target == targets[-1]), key=lambda e: e.accuracy.mean or 0.0)
    assert labels[0] == best.label and f"epsilon {targets[-1]:g}: {best.label}" in picture.alt


def test_lines_without_a_target_are_in_every_panel(drawn: list[Figure], tmp_path: Path) -> None:
    boards = Leaderboard.model_validate_json(RESULTS.read_text()).boards
    board = next(one for one in boards if one.alone is not None)
    assert board.alone is not None
    features = board.reference.model_copy(update={"mean": 97.25})
    leaderboard_plot.draw_board(board.model_copy(update={"on_features": features}), tmp_path)
    for axes in drawn[0].axes:
        known = {str(line.get_label()): float(next(iter(line.get_xdata()))) for line in axes.lines}
        assert known["FedAvg without privacy"] == board.reference.mean and axes.get_xlim()[1] > 97.25
        assert known["the same on features"] == 97.25
        assert known["every client by itself"] == board.alone.mean and board.alone.mean < axes.get_xlim()[1]
