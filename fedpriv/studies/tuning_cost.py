"""What choosing options would cost, had it been done on the training data that are protected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedpriv.report.words import number
from fedpriv.studies.board_jobs import Found, Prepared
from fedpriv.studies.board_results import Key
from fedpriv.studies.jobs import Job
from fedpriv.studies.results import RunRecord, TuningCost


def of_all(
    open_: Mapping[Key, Prepared], trials: Mapping[Key, int], do: Callable[[str, Sequence[Job]], Found]
) -> dict[Key, TuningCost]:
    """For every entry with so many trials; nothing for one whose plan cannot be priced so."""
    jobs = {
        key: _job(board, key, f"trials={trials[key]}")
        for key, board in open_.items()
        if key.target is not None and not board.plan.tuning.private
    }
    results = do("cost of tuning", list(jobs.values()))
    found = {}
    for key, job in jobs.items():
        if isinstance(record := results[job], RunRecord):
            composed, random = (number(record.figures[name]) for name in ("composed", "random"))
            if composed is not None and random is not None:
                law = str(record.summary["law"])
                found[key] = TuningCost(runs=trials[key] + 1, composed=composed, random=random, law=law)
    return found


def shares(
    open_: Mapping[Key, Prepared], do: Callable[[str, Sequence[Job]], Found]
) -> dict[Key, tuple[float, float] | str]:
    """(epsilon of one trial, epsilon of the choice), which meets the target, or why there is none."""
    jobs = {
        key: _job(board, key, f"trials={board.plan.tuning.trials}", f"law={board.plan.tuning.law}", *_ends(board, key))
        for key, board in open_.items()
    }
    results = do("price of the choice", list(jobs.values()))
    found: dict[Key, tuple[float, float] | str] = {}
    for key, job in jobs.items():
        record = results[job]
        if not isinstance(record, RunRecord):
            found[key] = record.words
        elif (one := number(record.figures["one"])) and (chosen := number(record.figures["chosen"])):
            found[key] = (one, chosen)
        else:
            found[key] = "no epsilon of a trial leaves the choice among a random number of them within the target"
    return found


def _ends(board: Prepared, key: Key) -> list[str]:
    """What trials may be at the outermost."""
    space = board.plan.space(key.method)
    return [f"end={option}={value:g}" for option, own in space.items() for value in (own.low, own.high)]


def _job(board: Prepared, key: Key, *extra: str) -> Job:
    assert key.target is not None, "what has no target has no price"
    planned = board.planned(key.method, key.target)
    return replace(planned, kind="tuning", extra=extra)
