"""The head of README.md in a folder of studies: what they found in a few sentences, totals, and one picture.

    python -m fedpriv.studies.front_page [results=docs/results]

Writes README.md between two marks, so that what a person wrote around them stays, and overview.svg. All of it is made
from every STUDY/results.json in the folder; `fedpriv.reproduce` and `fedpriv.leaderboard` call it too.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from fedpriv.common.command_line import command, shown
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.files import write_atomic
from fedpriv.common.printing import say
from fedpriv.report.pictures import Picture
from fedpriv.report.words import figure
from fedpriv.studies.pages import (
    OUTCOMES,
    SECTIONS,
    best,
    by_question,
    idea_of,
    ideas_counted,
    in_numbers,
    in_percent,
    metric_name,
    nearest,
    on_features,
    rendered,
    short,
)
from fedpriv.studies.results import RESULTS_FILE, Board, Claim, ClaimKind, Leaderboard, PaperResults, read_study
from fedpriv.studies.verdicts import LEVEL

LEADERBOARD = "leaderboard"
BEGIN, END = "<!-- found: begin", "<!-- found: end -->"
#: Epsilons of the first table.
EPSILONS = (0.5, 2.0, 8.0)
#: What was trained in the paper's own setting.
TRAINED = ("training", "own")
#: Words of a claim on what is private, at what price.
PROMISES = re.compile(r"private|\bcosts?\b|[)ε]-LDP|gives \(ε|budget of")
VERDICTS = ("holds", "does not hold", "not decided")
#: How the words of a claim begin to say that it fails because the method does better.
IN_FAVOUR = "It fails in favour of"
#: What is searched for every method: steps, and by how much an upload is bounded.
COMMON_OPTIONS = {
    *("local.lr", "strategy.server.lr", "strategy.server.learning_rate"),
    *("strategy.client.clip_norm", "strategy.client.radius"),
}


def read(root: Path) -> tuple[dict[str, PaperResults], list[Board]]:
    """(papers by the name of their folder, boards in the order of their pages). Raises `RunFolderError` for results
    that cannot be read.
    """
    names = sorted(file.parent.name for file in root.glob(f"*/{RESULTS_FILE}"))
    papers = {name: read_study(root / name, PaperResults) for name in names if name != LEADERBOARD}
    boards = read_study(root / LEADERBOARD, Leaderboard).boards if LEADERBOARD in names else ()
    return papers, [board for _, here in by_question(boards) for board in here]


def head(papers: Mapping[str, PaperResults], boards: Sequence[Board], picture: Picture | None = None) -> str:
    """What the studies found, between its marks."""
    claims = [claim for paper in papers.values() for claim in paper.listed]
    ended = Counter(duel.outcome for board in boards for duel in board.duels)
    ideas = [entry for board in boards for entry in board.entries if entry.idea == "paper"]
    searched = {idea_of(entry.label) for entry in ideas if not entry.chosen.keys() <= COMMON_OPTIONS}
    ranked = [board for board in boards if board.entries]
    trained = [(name, it, one) for name, it in papers.items() for one in it.listed if one.section == TRAINED]
    return rendered(
        "front",
        picture=picture,
        papers=papers,
        boards=boards,
        claims=claims,
        ideas=[_idea_row(name, paper, boards) for name, paper in papers.items()],
        trained=[one for _, _, one in trained],
        favoured=sum(one.verdict == "does not hold" and IN_FAVOUR in one.words for _, _, one in trained),
        held=[f"{_link(name, it)}: {short(one.claim)}" for name, it, one in trained if one.verdict == "holds"],
        elsewhere=[_link(name, it) for name, it in papers.items() if name not in {name for name, _, _ in trained}],
        answers=[_answer_row(board) for board in ranked],
        printed=_printed(papers),
        duels=[ended[one] for one in OUTCOMES] if ended else [],  # type: ignore[index]
        defaults=sorted({idea_of(entry.label) for entry in ideas} - searched),
        prices=[one.tuning.composed for board in ranked for one in board.at(8.0) if one.tuning],
        needs=[_needs(claims, one) for one in ("cannot be tested here", "not decided")],
        totals=[*(_totals(_link(n, it), it.listed) for n, it in papers.items()), _totals("all", claims)],
    )


def _link(name: str, paper: PaperResults) -> str:
    return f"[{_method(paper)}]({name}/README.md)"


def _method(paper: PaperResults) -> str:
    return paper.title.partition(":")[0]


def _idea_row(name: str, paper: PaperResults, boards: Sequence[Board]) -> list[str]:
    """Is its published guarantee true, what does the repaired one cost, how does it do against plain methods, was it
    trained in the paper's own setting.
    """
    places = {one.section for one in paper.listed}
    kept = [one.verdict == "holds" for one in promises(paper)]
    whose = {idea_of(one.label): one.paper for board in boards for one in board.entries if one.idea == "paper"}
    duels = [f"{idea} {in_numbers(n)}" for idea, n in ideas_counted(boards).items() if whose[idea] == _method(paper)]
    return [
        _link(name, paper) + paper.title.removeprefix(_method(paper)),
        f"**{'yes' if all(kept) else 'in part' if any(kept) else 'no'}**: {sum(kept)} of {len(kept)} claims hold",
        _repaired(paper),
        "<br>".join(duels) or "–",
        "no" if TRAINED not in places else "in part" if ("training", "another") in places else "yes",
    ]


def promises(paper: PaperResults) -> list[Claim]:
    """Claims on what is private, at what price."""
    return [one for one in paper.listed if one.section == ("mathematics", "own") and PROMISES.search(one.claim)]


def _repaired(paper: PaperResults) -> str:
    """Verified epsilons of the repaired method at the paper's own noise, in brackets what is claimed and, where the
    table says it, of what; the repair in words where none is planned.
    """
    for table in paper.tables:
        rows = {row.name: row.cells for row in table.rows}
        if table.kind == "plan" and "repaired" in rows:
            costs = []
            for column, one, *cells in zip(table.columns, rows["repaired"], *rows.values(), strict=True):
                claimed = [cell.measured.mean for cell in cells[: "claimed" in rows] if cell.measured]
                said = [cell.reported for cell in cells if cell.reported is not None] + claimed
                cost = figure(one.measured and one.measured.mean) + f" [{figure(said[0])}]" * bool(said)
                costs.append(f"{column}: {cost}" if len(table.columns) > 1 else cost)
            costs += [f"[{row.label}]" for row in table.rows if row.label.startswith("claimed, of ")]
            return f"{table.title.removeprefix('The epsilon of ')}:<br>{'<br>'.join(costs)}"
    return paper.repair


def _answer_row(board: Board) -> list[str]:
    """What is reached at which epsilon."""
    question = next(question for question, here in by_question([board]) if here)
    link = f"{question.title}: [{board.title}]({LEADERBOARD}/{question.file})"
    by = "" if board.metric == "accuracy" else f" ({metric_name(board)})"
    free = " / ".join(_value(one) for one in (board.on_features, board.reference) if one)
    cells = [_answer(board, epsilon) for epsilon in EPSILONS]
    return [link + by, *cells, free, f"[command]({LEADERBOARD}/README.md#commands)"]


def _answer(board: Board, epsilon: float) -> str:
    """features / pixels at this epsilon, or at the nearest within a factor of two. What clients have alone, where
    that is more, also than at the next larger epsilon of a board that has none near.
    """
    target, alone = nearest(board, epsilon), (board.alone.mean or 0.0) if board.alone else -math.inf
    if max(target, epsilon) / min(target, epsilon) > 2:
        later = min((one.target for one in board.entries if one.target > epsilon), default=None)
        top = best(board.at(later)) if later else None
        return f"stay alone: {_value(board.alone)}" if top and (top.accuracy.mean or 0.0) < alone else "–"
    here = board.at(target)
    first = best(here)
    if first and (first.accuracy.mean or 0.0) < alone:
        return f"stay alone: {_value(board.alone)} (best: {_value(first.accuracy)})"
    parts = [best([entry for entry in here if on_features(entry) is featured]) for featured in (True, False)]
    said = " / ".join(_value(one.accuracy) for one in parts if one)
    return said if target == epsilon else f"at {figure(target)}: {said}"


def _value(accuracy: Any) -> str:
    return in_percent(accuracy).removesuffix(" %")


def _printed(papers: Mapping[str, PaperResults]) -> dict[str, Any]:
    """How far the printed accuracies are from those found, by the protocol: reached at no more than a point below. One
    that several tables of a paper have counts once, where the runs come nearest to it.
    """
    found: dict[tuple[str, str, str, float], tuple[float, bool]] = {}
    for name, table in ((name, table) for name, paper in papers.items() for table in paper.tables if table.unit == "%"):
        for row, column, cell in table.cells:
            one, printed = cell.measured, cell.reported
            if one and one.mean is not None and one.n >= 3 and printed is not None:
                place, gap = (name, row, column, printed), (printed - one.mean, table.another)
                found[place] = min(found.get(place, gap), gap)
    missed = [gap for gap, _ in found.values() if gap > LEVEL]
    count, another = len(found), sum(elsewhere for _, elsewhere in found.values())
    return {"missed": missed, "reached": count - len(missed), "another": "all" if another == count else another}


def _totals(name: str, claims: Sequence[Claim]) -> list[str]:
    """Verdicts on claims, kind by kind; the two settings apart."""
    ended: dict[Any, Counter[str]] = {place: Counter() for place in SECTIONS}
    for one in claims:
        ended[one.section][one.kind if one.place == "not" else one.verdict] += 1
    own, another, proved, elsewhere, tables = (in_numbers(ended[place], VERDICTS) for place in list(SECTIONS)[:-1])
    if ended["mathematics", "another"]:
        proved += f" ({elsewhere} in another setting)"
    return [name, own, another, proved, tables, in_numbers(ended["", "not"], get_args(ClaimKind))]


def _needs(claims: Sequence[Claim], verdict: str) -> str:
    """How many claims have a verdict that is none, and what would decide them: "3 (hours on a GPU 2, ...)"."""
    left = [one for one in claims if one.verdict == verdict]
    listed = ", ".join(f"{words} {count}" for words, count in Counter(one.needs for one in left).most_common() if words)
    return f"{len(left)}" + f" ({listed})" * bool(listed)


# --- the file ----------------------------------------------------------------------------------------------


def refresh(root: Path) -> Path | None:
    """Writes the head of ``root``/README.md; None, and nothing is written, where fewer than two studies are there."""
    if len(list(root.glob(f"*/{RESULTS_FILE}"))) < 2:
        return None
    from fedpriv.studies.study_plots import draw_overview  # matplotlib takes a second

    papers, boards = read(root)
    text, readme = head(papers, boards, draw_overview(boards, root)), root / "README.md"
    old = readme.read_text(encoding="utf-8") if readme.is_file() else "# Results\n"
    before, mark, rest = old.partition(BEGIN)
    if not mark:
        title, _, rest = old.partition("\n")
        before, rest = f"{title}\n\n", f"{END}\n{rest}"
    write_atomic(readme, before + text.rstrip("\n") + rest.partition(END)[2])
    return readme


def refresh_beside(root: Path) -> None:
    """`refresh` as the last step of a study, whose own results are written: says what became of it."""
    try:
        if (written := refresh(root)) is not None:
            say(f"all studies: {shown(written)}", flush=True)
    except RunFolderError as error:
        say(f"{shown(root / 'README.md')} stays as it was: {error}", flush=True)


@command
def main(*, results: Path = Path("docs/results")) -> None:
    if (written := refresh(results)) is None:
        raise OptionError("results", results, f"a folder with two studies or more (STUDY/{RESULTS_FILE})")
    say(shown(written), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
