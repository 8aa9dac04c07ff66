"""What a board's plans and runs amount to: entries in their order, duels, and what is not ranked, with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedpriv.common.errors import RunFailed
from fedpriv.report.words import figure, number, pick
from fedpriv.studies import ranking
from fedpriv.studies.board_jobs import Found, Prepared, plainly, privacy_under, why_not
from fedpriv.studies.boards import Method
from fedpriv.studies.carrying_out import Failure
from fedpriv.studies.jobs import Job
from fedpriv.studies.results import RECALIBRATED, Board, Duel, Entry, Left, RunRecord, TuningCost
from fedpriv.studies.search import Search

NO_ACCURACY = "a {} has no {} accuracy"


@dataclass(frozen=True, eq=False)
class Key:
    """A method of a board at a target; None: of a line without one. Equal by their names."""

    board: str
    method: Method
    target: float | None

    @property
    def _names(self) -> tuple[str, str, float | None]:
        return self.board, self.method.name, self.target

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self._names == other._names

    def __hash__(self) -> int:
        return hash(self._names)


@dataclass(frozen=True)
class Tuned:
    """What a search came to. tried: trials that ran, None where their number is secret; chosen: option -> value; final:
    seed -> the run that counts, none where there is a reason; at_edge: options whose best value stands at an edge in
    the end; epsilon: of all trials and the choice among them, where they are private.
    """

    search: Search
    tried: int | None = None
    chosen: Mapping[str, str] = field(default_factory=dict)
    final: Mapping[int, Job] = field(default_factory=dict)
    reason: str | None = None
    at_edge: tuple[str, ...] = ()
    epsilon: float | None = None


Records = Mapping[int, RunRecord]


def board_of(
    board: Prepared,
    plans: Found,
    tuned: Mapping[Key, Tuned],
    finals: Found,
    costs: Mapping[Key, TuningCost],
) -> Board:
    """Raises `RunFailed` where the reference has no result."""
    plan = board.plan
    lines: list[dict[int, float]] = []
    for line in plan.lines:
        key = Key(board.name, line, None)
        ran = records_of(board, key, tuned[key], finals)
        if isinstance(ran, str):
            raise RunFailed(f"{board.name}: {line.name} cannot be run: {ran}")
        lines.append(accuracies(board, ran))
    entries: list[Entry] = []
    left: list[Left] = []
    found: dict[float, list[ranking.Contender]] = {}
    for target in plan.targets:
        records: dict[str, Records] = {}
        for method in plan.methods:
            key = Key(board.name, method, target)
            reason = why_not(plan.threat, plans[board.planned(method, target)], target)
            own = reason or records_of(board, key, tuned[key], finals)
            if isinstance(own, str):
                left.append(Left(method=method.name, label=method.label, reason=own, target=target))
            else:
                records[method.name] = own
        methods = {method.name: method for method in plan.methods}
        found[target] = [
            ranking.Contender(name, methods[name].label, methods[name].idea, accuracies(board, own))
            for name, own in records.items()
        ]
        for rank, tied, contender in ranking.ranked(found[target]):
            key = Key(board.name, methods[contender.method], target)
            one = _entry(board, key, tuned[key], records[contender.method], rank, tied)
            better_at = ranking.better_at(contender, target, found)
            entries.append(one.model_copy(update={"tuning": costs.get(key), "better_at": better_at}))
    fought = ranking.duels(found, 100 / board.classes)
    left = [*_collapsed(left, plan.targets), *_published(board, plans)]
    searches = [key for key in tuned if key.board == board.name]
    return Board(
        name=board.name,
        title=plan.title,
        unit=plan.unit,
        adjacency=plan.adjacency,
        observer=plan.observer,
        delta=plan.delta,
        measure=plan.measure,
        trials=max(len(tuned[key].search.trials) for key in searches),
        setting=plan.words,
        targets=plan.targets,
        reference=ranking.estimate(lines[0].values()),
        alone=ranking.estimate(lines[1].values()) if len(lines) > 1 else None,
        entries=tuple(entries),
        left=tuple(left),
        verdicts=tuple(
            words
            for target in plan.targets
            for words in (
                *ranking.verdicts(target, found[target], fought, 100 / board.classes),
                *(ranking.against_alone(target, found[target], one) for one in lines[1:]),
            )
        ),
        duels=tuple(
            Duel(
                target=duel.target,
                method=duel.one.method,
                against=duel.other.method,
                difference=duel.difference,
                outcome=duel.outcome,
                p=duel.p,
                adjusted=duel.adjusted,
                method_at=duel.one.with_runs_at,
                against_at=duel.other.with_runs_at,
            )
            for duel in fought
        ),
        chance=100 / board.classes if plan.measure == "final" else None,  # own classes are fewer
        search={method.name: plan.searched(method) for method in (*plan.lines, *plan.methods)},
        searched=_searched(board),
    )


def _searched(board: Prepared) -> str:
    own = board.plan.tuning
    if own.private:
        return (
            f"The number of trials is drawn from a {own.law} law with mean {own.trials}, the options of each at random "
            "from the ranges. The verified epsilon holds against whoever learns the best alone, not the other trials "
            "or how many there were, which stand in runs.jsonl for the study's repetition (Papernot and Steinke, ICLR "
            f"2022). Trials are scored on {own.pictures:,} pictures that no client has and that need no protection."
        )
    return (
        f"{own.trials} points of a scrambled Sobol sequence, even in logarithms, with seed {own.seed}. Where any best "
        f"value of the board stood in the outermost tenth of its range, all searches got {own.further} more points, "
        f"and such a range grew there by a factor of {own.factor:g}, at most {own.widenings} times."
    )


def records_of(board: Prepared, key: Key, tuned: Tuned, finals: Found) -> Records | str:
    """Seed -> its final run, or why there are none."""
    if tuned.reason is not None:
        return tuned.reason
    found: dict[int, RunRecord] = {}
    for seed, job in tuned.final.items():
        result = finals[job]
        if key.target is not None and (reason := why_not(board.plan.threat, result, key.target)) is not None:
            return reason
        if isinstance(result, Failure):
            return plainly(result.words)
        if number(pick(result.summary, "accuracy", board.plan.measure)) is None:
            return NO_ACCURACY.format("final run", board.plan.measure)
        found[seed] = result
    return found


def accuracies(board: Prepared, records: Records) -> dict[int, float]:
    """Seed -> percent."""
    return {seed: 100 * float(record.summary["accuracy"][board.plan.measure]) for seed, record in records.items()}


def _entry(board: Prepared, key: Key, tuned: Tuned, records: Records, rank: int, tied: bool) -> Entry:
    method, threat, runs = key.method, board.plan.threat, list(records.values())
    verified = [number((privacy_under(run.summary, threat) or {})["verified_epsilon"]) or 0.0 for run in runs]
    assert key.target is not None, "a line without a target is no entry"
    return Entry(
        method=method.name,
        label=method.label,
        paper=method.paper,
        target=key.target,
        verified_epsilon=max(verified) if tuned.epsilon is None else tuned.epsilon,
        accuracy=ranking.estimate(accuracies(board, records).values()),
        bytes_up=float(np.mean([run.summary["traffic"]["bytes_up"] for run in runs])),
        bytes_down=float(np.mean([run.summary["traffic"]["bytes_down"] for run in runs])),
        seconds=ranking.estimate([run.summary["timing"]["total_s"] for run in runs]),
        chosen=tuned.chosen,
        rank=rank,
        runs=tuple(run.name for run in runs),
        command=runs[0].command,
        idea=method.idea,
        tied=tied,
        tried=tuned.tried,
        at_edge=tuned.at_edge,
        own_plan=bool(method.plan),
    )


def _collapsed(left: Sequence[Left], targets: Sequence[float]) -> list[Left]:
    """One line in place of one for each target where the reason is the same at all of them."""
    found: list[Left] = []
    for one in left:
        same = [other for other in left if (other.method, other.reason) == (one.method, one.reason)]
        line = one.model_copy(update={"target": None}) if len(same) == len(targets) else one
        if line not in found:
            found.append(line)
    return found


def _published(board: Prepared, plans: Found) -> list[Left]:
    """The published variants: planned, not trained."""
    found = []
    for method in board.plan.methods:
        result = plans[board.published(method)]
        reason = why_not(board.plan.threat, result)
        if reason is None and isinstance(result, RunRecord):
            privacy = privacy_under(result.summary, board.plan.threat) or {}
            reason = RECALIBRATED.format(figure(number(privacy["verified_epsilon"])))
        found.append(Left(method=method.name, label=method.label, reason=reason or "", variant="published"))
    return found
