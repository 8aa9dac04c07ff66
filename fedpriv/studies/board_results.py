"""What a board's plans and runs amount to: entries in their order, duels, and what is not ranked, with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedpriv.common.errors import RunFailed
from fedpriv.report.words import figure, leading_metric, number, worst_site
from fedpriv.studies import ranking
from fedpriv.studies.board_jobs import Key, Prepared, plainly, privacy_under, why_not
from fedpriv.studies.carrying_out import Failure, Found
from fedpriv.studies.evidence import estimate
from fedpriv.studies.results import Board, Entry, Estimate, Left, Measure, RunRecord, TuningCost
from fedpriv.studies.search import Search
from fedpriv.studies.tuning import SHARES, Tuned, no_score, score

Records = Mapping[int, RunRecord]


def board_of(board: Prepared, tuned: Mapping[Key, Tuned], found: Found, costs: Mapping[Key, TuningCost]) -> Board:
    """found: what plans and runs gave. Raises `RunFailed` where the reference has no result."""
    plan, lines = board.plan, {}
    for key in board.lines:
        ran = records_of(key, tuned[key], found)
        if isinstance(ran, str):
            raise RunFailed(f"{board.name}: {key.method.name} cannot be run: {ran}")
        lines[key.method.name] = accuracies(key, ran)
    left: list[Left] = []
    records: dict[Key, Records] = {}
    contenders: dict[float, dict[str, ranking.Contender]] = {}
    for target in plan.targets:
        contenders[target] = {}
        for method in (one for one in plan.methods if target in (one.targets or plan.targets)):
            key = Key(board, method, target)
            own = why_not(plan.threat, found[key.planned()], target) or records_of(key, tuned[key], found)
            if isinstance(own, str):
                left.append(Left(method=method.name, label=method.label, reason=own, target=target))
            else:
                records[key] = own
                one = ranking.Contender(method.name, method.label, method.idea, accuracies(key, own), method.against)
                contenders[target][method.name] = one
    methods = {method.name: method for method in plan.methods}
    entries = []
    for target, here in contenders.items():
        for rank, tied, one in ranking.ranked(list(here.values())):
            key = Key(board, methods[one.method], target)
            better_at = ranking.better_at(one, target, contenders)
            standing = {"rank": rank, "tied": tied, "better_at": better_at, "tuning": costs.get(key)}
            entries.append(entry_of(key, tuned[key], records[key]).model_copy(update=standing))
    duels = ranking.duels(contenders, board.chance)
    return Board(
        name=board.name,
        title=plan.title,
        unit=plan.unit,
        adjacency=plan.adjacency,
        observer=plan.observer,
        delta=plan.delta,
        measure=plan.measure,
        metric=_metric(plan.measure, records),
        trials=max(len(own.search.trials) for key, own in tuned.items() if key.board.name == board.name),
        setting=plan.words,
        targets=plan.targets,
        reference=estimate(lines[plan.reference.name].values()),
        on_features=None if plan.on_features is None else estimate(lines[plan.on_features.name].values()),
        alone=None if plan.alone is None else estimate(lines[plan.alone.name].values()),
        entries=tuple(entries),
        left=(*_collapsed(left, plan.targets), *_published(board, found)),
        verdicts=tuple(
            words
            for target, here in contenders.items()
            for words in (
                *ranking.verdicts(target, contenders, duels, board.chance),
                *([ranking.against_alone(target, list(here.values()), lines[plan.alone.name])] if plan.alone else []),
            )
        ),
        duels=tuple(duels),
        chance=board.chance if plan.measure == "final" else None,  # own classes are fewer
        search={key.method.name: Search(key.space, ()).in_words() for key in (*board.lines, *board.keys)},
        searched=_searched(board),
    )


def _metric(measure: Measure, records: Mapping[Key, Records]) -> str:
    """Name of what a board ranks by."""
    if measure in ("final", "personalised"):
        return "accuracy"
    if measure != "leading":
        return measure
    names = {leading_metric(run.summary)[0] for runs in records.values() for run in runs.values()}
    return next(iter(names)) if len(names) == 1 else measure


def _worst_site(runs: Sequence[RunRecord]) -> Estimate | None:
    """The leading metric where it is least, in percent; None where a run tells no sites apart."""
    found = [worst_site(run.summary) for run in runs]
    values = [100 * one[1] for one in found if one is not None]
    share = all(leading_metric(run.summary)[0] in SHARES for run in runs)
    return estimate(values) if len(values) == len(runs) and share else None


def _searched(board: Prepared) -> str:
    own = board.plan.tuning
    if own.private:
        return (
            f"The number of trials is drawn from a {own.law} law with mean {own.trials}, the options of each at random "
            "from the ranges. The verified epsilon holds against whoever learns the best alone, not the other trials "
            "or how many there were, which stand in runs.jsonl for the study's repetition (Papernot and Steinke, ICLR "
            f"2022). Trials are scored on {own.pictures:,} examples that no client has and that need no protection."
        )
    return (
        f"{own.trials} points of a scrambled Sobol sequence, even in logarithms, with seed {own.seed}. Where any best "
        f"value of the board stood in the outermost tenth of its range, all searches got {own.further} more points, "
        f"and such a range grew there by a factor of {own.factor:g}, at most {own.widenings} times."
    )


def records_of(key: Key, tuned: Tuned, found: Found) -> Records | str:
    """Seed -> its final run, or why there are none."""
    if tuned.reason is not None:
        return tuned.reason
    records: dict[int, RunRecord] = {}
    for seed, job in tuned.final.items():
        result = found[job]
        if key.target is not None and (reason := why_not(key.board.plan.threat, result, key.target)) is not None:
            return reason
        if isinstance(result, Failure):
            return plainly(result.words)
        if score(key, result) is None:
            return no_score(key, "final run")
        records[seed] = result
    return records


def accuracies(key: Key, records: Records) -> dict[int, float]:
    """Seed -> percent."""
    return {seed: 100 * (score(key, record) or 0.0) for seed, record in records.items()}


def entry_of(key: Key, tuned: Tuned, records: Records) -> Entry:
    """Without its rank among others."""
    method, threat, runs = key.method, key.board.plan.threat, list(records.values())
    verified = [number((privacy_under(run.summary, threat) or {})["verified_epsilon"]) or 0.0 for run in runs]
    assert key.target is not None, "a line without a target is no entry"
    return Entry(
        method=method.name,
        label=method.label,
        paper=method.paper,
        target=key.target,
        verified_epsilon=max(verified) if tuned.epsilon is None else tuned.epsilon,
        accuracy=estimate(accuracies(key, records).values()),
        bytes_up=float(np.mean([run.summary["traffic"]["bytes_up"] for run in runs])),
        bytes_down=float(np.mean([run.summary["traffic"]["bytes_down"] for run in runs])),
        seconds=estimate([run.summary["timing"]["total_s"] for run in runs]),
        chosen=tuned.chosen,
        rank=0,
        runs=tuple(run.name for run in runs),
        command=runs[0].command,
        idea=method.idea,
        tried=tuned.tried,
        at_edge=tuned.at_edge,
        own_plan=bool(method.plan),
        worst_site=_worst_site(runs),
        superseded=next((run.superseded for run in runs if run.superseded), None),
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


def _published(board: Prepared, found: Found) -> list[Left]:
    """The published variants: planned, not trained."""
    left = []
    for key in (Key(board, method, None) for method in board.plan.methods):
        result = found[key.published()]
        reason = why_not(board.plan.threat, result)
        if reason is None and isinstance(result, RunRecord):
            privacy = privacy_under(result.summary, board.plan.threat) or {}
            reason = f"epsilon {figure(number(privacy['verified_epsilon']))}"
        left.append(Left(method=key.method.name, label=key.method.label, reason=reason or "", variant="published"))
    return left
