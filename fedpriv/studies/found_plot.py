"""One picture of all boards: accuracy against verified epsilon, a colour for each board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedpriv.report.pictures import BROWN, FAINT, INK, PALETTE, PAPER, VIOLET, Picture, save_themed
from fedpriv.report.plots import blank_figure
from fedpriv.report.words import figure as in_figures
from fedpriv.studies.results import Board, Entry
from fedpriv.studies.what_was_found import best, is_private, plain

#: Who sees what, in few words.
OBSERVERS = {
    "server": "the server",
    "server+members": "the server and other clients",
    "secure-sum": "whoever sees the sums",
    "trusted-server": "outsiders",
    "public": "the public",
}
#: Methods of this project, by how their names begin.
OURS = "fedonce"

#: One for each board: epsilons of one colour alone are comparable.
COLOURS = (*PALETTE, VIOLET, BROWN)

#: Boards are drawn side by side: from each to the next by this factor.
APART = 1.03


@dataclass(frozen=True)
class Role:
    """A line for each board. Marks lie around each other where one entry has several roles."""

    words: str
    marker: str
    size: float
    style: str
    filled: bool = False


BEST, PLAIN, OWN = (
    Role("the best method", "o", 5, "-", filled=True),
    Role("the best plain method", "o", 9.5, ":"),
    Role("FedOnce, this project's own", "D", 10.5, "--"),
)


def draw(boards: Sequence[Board], folder: Path) -> Picture | None:
    """Draws overview.png and .svg; None where no board has an entry."""
    shown = [board for board in boards if board.entries]
    if not shown:
        return None
    inches = (8.4, 4.2 + 0.2 * (3 + len(shown)))
    figure, axes = blank_figure("Accuracy at equal verified epsilon", "test accuracy in %", inches=inches)
    for place, board in enumerate(shown):
        for role in (PLAIN, OWN, BEST):
            _line(axes, line(board, role), COLOURS[place % len(COLOURS)], role, APART ** (place - (len(shown) - 1) / 2))
    _axis(axes, sorted({entry.target for board in shown for entry in board.entries}))
    colors = [Line2D([], [], color=color, lw=4, label=legend(board)) for board, color in zip(shown, cycle(COLOURS))]
    roles = [
        Line2D([], [], color=INK, ls=r.style, marker=r.marker, ms=r.size, mfc=INK if r.filled else PAPER, label=r.words)
        for r in (BEST, PLAIN, OWN)
    ]
    figure.legend(
        handles=[*colors, *roles],
        loc="outside lower left",
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        ncols=1,
    )
    with rc_context({"svg.hashsalt": "overview"}):  # the same results, the same file
        save_themed(figure, folder / "overview.png")
    return Picture("overview.svg", _alt(shown), _caption(shown))


def line(board: Board, role: Role) -> list[Entry]:
    """The entry of a role at each target where there is one."""
    found = []
    for target in sorted({entry.target for entry in board.entries}):
        here = [entry for entry in board.entries if entry.target == target]
        if role is PLAIN:
            here = plain(here)
        elif role is OWN:
            here = [entry for entry in here if entry.method.startswith(OURS)]
        if (one := best(here)) is not None:
            found.append(one)
    return found


def legend(board: Board) -> str:
    """Its title, the best method at its largest epsilon, and who sees what."""
    first = line(board, BEST)[-1:]
    method = f": {first[0].label}" if first else ""
    return f"{board.title}{method} (observer: {OBSERVERS.get(board.observer, board.observer)})"


def _line(axes: Axes, entries: Sequence[Entry], color: str, role: Role, apart: float) -> None:
    axes.errorbar(
        [apart * entry.verified_epsilon for entry in entries], [entry.accuracy.mean or 0.0 for entry in entries],
        yerr=[entry.accuracy.half_width or 0.0 for entry in entries], color=color, ls=role.style, lw=1.6, capsize=2,
        elinewidth=1, marker=role.marker, ms=role.size, mfc=color if role.filled else "none",
        zorder=3 if role is BEST else 2,
    )  # fmt: skip


def _axis(axes: Axes, targets: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("verified epsilon of the whole run, logarithmic")
    axes.xaxis.set_major_locator(FixedLocator(list(targets)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: in_figures(tick)))
    axes.set_ylim(top=min(axes.get_ylim()[1], 101.0), bottom=max(0.0, axes.get_ylim()[0]))
    axes.grid(axis="x", color=FAINT, lw=0.5)


def _alt(boards: Sequence[Board]) -> str:
    said = []
    for board in boards:
        for entry in line(board, BEST)[-1:]:
            point = f"{entry.label} {entry.accuracy.mean or 0.0:.1f} % at {in_figures(entry.target)}"
            said.append(f"{board.title}: {point}")
    return f"Accuracy against verified epsilon, logarithmic. The best at each board's largest: {'; '.join(said)}."


def _caption(boards: Sequence[Board]) -> str:
    own = [board.title for board in boards if board.measure == "personalised"]
    unit = [board.title for board in boards if board.unit == "example"]
    said = (
        "Bars: 95 % intervals over seeds; colours are drawn side by side. Epsilons of different observers, or of a "
        "client and an example, are not comparable: lines of one colour are."
    )
    said += f" One picture or row is protected in: {'; '.join(unit)}; elsewhere all of a client's." if unit else ""
    other = [f"{board.title}, {board.metric.replace('_', ' ')}" for board in boards if board.metric != "accuracy"]
    said += f" In place of accuracy: {'; '.join(other)}." if other else ""
    said += f" Accuracy of the clients' own models: {'; '.join(own)}." if own else ""
    paid = [board.title for board in boards if is_private(board)]
    return said + (f" The choice of options is within epsilon: {'; '.join(paid)}." if paid else "")
