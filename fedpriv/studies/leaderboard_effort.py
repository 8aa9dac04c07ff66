"""How many runs a leaderboard takes, and how long about, before it begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedpriv.common.errors import RunFolderError
from fedpriv.report.words import seconds as in_words
from fedpriv.studies.board_jobs import Prepared
from fedpriv.studies.board_results import Key
from fedpriv.studies.leaderboard import Told, planned, reachable
from fedpriv.studies.results import read_runs

#: Of a run of which nothing is known.
USUAL_SECONDS = 4.0


def effort(boards: Sequence[Prepared], out: Path, workers: int, told: Told) -> Iterator[str]:
    """A line for each board, and one for all. Time is that of runs of the same board and method in the folder, else of
    the same method there, else a guess; without what is done already.
    """
    plans = planned(boards, out, workers, told)
    known = _seconds(out)
    total_runs, total_seconds = [0, 0], [0.0, 0.0]
    for board in boards:
        keys = reachable(board, plans)
        runs, took = [0, 0], [0.0, 0.0]
        for key in keys:
            for place, number in enumerate(_runs(board, key)):
                runs[place] += number
                took[place] += number * _of(known, board, key)
        entries = sum(key.target is not None for key in keys)
        yield f"{board.name}: {entries} entries, {_range(runs)} runs, about {_minutes(took)} on one core"
        total_runs = [a + b for a, b in zip(total_runs, runs, strict=True)]
        total_seconds = [a + b for a, b in zip(total_seconds, took, strict=True)]
    yield f"in all: {_range(total_runs)} runs, about {_minutes(total_seconds)} on one core"


def _runs(board: Prepared, key: Key) -> tuple[int, int]:
    """(at least, at most): without and with all widenings."""
    own, seeds = board.plan.tuning, len(board.plan.seeds)
    first = len(board.plan.begin(key.method).trials)
    if own.private and key.target is not None:
        mean = first * seeds + seeds
        return mean, mean
    return first + seeds, first + own.further * own.widenings + seeds


def _range(numbers: Sequence[int]) -> str:
    low, high = numbers
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _minutes(numbers: Sequence[float]) -> str:
    low, high = map(in_words, numbers)
    return low if low == high else f"{low} to {high}"


def _seconds(out: Path) -> Mapping[tuple[str, str], float]:
    """(strategy, model) -> mean seconds of its runs there."""
    try:
        records = read_runs(out)
    except RunFolderError:
        records = []
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for record in records:
        if record.kind == "train":
            names = (str(record.summary.get("strategy")), str(record.summary.get("model")))
            found[names].append(record.seconds)
            found[names[0], ""].append(record.seconds)
    return {names: fmean(values) for names, values in found.items()}


def _of(known: Mapping[tuple[str, str], float], board: Prepared, key: Key) -> float:
    chosen = dict(o.split("=", 1) for o in board.options(key.method))
    strategy = chosen.get("strategy", "").rpartition("/")[2]
    return known.get((strategy, chosen.get("model", "")), known.get((strategy, ""), USUAL_SECONDS))
