"""The options with which the methods of boards are run in the end: chosen by a search, or privately; and what a search
costs.

**Search.** Every trial runs with one seed on a part of the training pictures and is tested on the others of these. All
searches of a board that learns are widened by its rule while any of them ends at an edge (`fedpriv.studies.search`).

**Privately** (`fedpriv.privacy.private_selection`): the choice is part of the guarantee. For each seed the number K of
trials is drawn; each trial draws its options from the ranges, independently, and runs with noise of its own at the
epsilon that the choice leaves for one; they are scored on pictures that belong to nobody; the model of the best is the
result. It is tested by repeating that trial, bit for bit, with the set's own test pictures in place of those. The price
is that of a release of the best alone: K and the other trials are secrets, so no entry says how many there were. A
study on public pictures still keeps all of their records, for its repetition (runs.jsonl).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedpriv.report.words import leading_metric, number, percent, pick
from fedpriv.studies.board_jobs import Key, plainly
from fedpriv.studies.carrying_out import Failure, Found
from fedpriv.studies.jobs import Job
from fedpriv.studies.ranking import GUESSING
from fedpriv.studies.results import RunRecord, TuningCost
from fedpriv.studies.search import Search, Trial, begin, drawn

NO_ACCURACY = "a {} has no {} {}"
#: Metrics of which more is better and 1 is most, so that they can stand where accuracies do.
SHARES = ("accuracy", "auc", "balanced_accuracy", "f1", "r2", "mean_auc")
#: Trial j of seed s runs with the seed (s + 1) * _APART + j: noise of its own.
_APART = 100_000

Do = Callable[[str, Sequence[Job]], Found]


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


def tune(keys: Sequence[Key], do: Do) -> dict[Key, Tuned]:
    return _searched([key for key in keys if not key.private], do) | _privately([k for k in keys if k.private], do)


def score(key: Key, result: RunRecord | Failure) -> float | None:
    """The accuracy, or another share, by which a board ranks; None where there is none."""
    if not isinstance(result, RunRecord):
        return None
    measure = key.board.plan.measure
    if measure in ("final", "personalised"):
        return number(pick(result.summary, "accuracy", measure))
    if measure != "leading":
        return number(pick(result.summary, "metrics", "final", measure))
    name, value, _ = leading_metric(result.summary)
    return value if name in SHARES else None


def no_score(key: Key, run: str) -> str:
    """Why a run has no place on a board."""
    measure = key.board.plan.measure
    if measure in ("final", "personalised"):
        return NO_ACCURACY.format(run, measure, "accuracy")
    return NO_ACCURACY.format(run, measure, f"metric of which 1 is most ({', '.join(SHARES)})")


# --- by a search ---------------------------------------------------------------------------------------------


def _searched(keys: Sequence[Key], do: Do) -> dict[Key, Tuned]:
    """Where all trials guess, the best of them is chance, and says nothing of its range."""
    tuning = {key: key.board.plan.tuning for key in keys}
    searches = {key: begin(key.space, own.trials, own.seed) for key, own in tuning.items()}
    results = dict(do("tune", [job for key in keys for job in key.tuning(searches[key].trials)]))
    for time in range(max((own.widenings for own in tuning.values()), default=0)):
        tried = {key: _tried(key, searches[key], results) for key in keys}
        best = {key: max(own, key=_accuracy)[1] if own else None for key, own in tried.items()}
        wide = {key.board.name for key in keys if searches[key].sides(best[key]) and not _guesses(key, tried[key])}
        grow = [key for key in keys if key.board.name in wide and time < tuning[key].widenings]
        if not grow:
            break
        for key in grow:
            own = tuning[key]
            searches[key] = searches[key].further(best[key], own.further, own.seed, own.factor)
        words = f"tune, wider ({time + 1})"
        results |= do(words, [job for key in grow for job in key.tuning(searches[key].trials)])
    return {key: _chosen(key, searches[key], results) for key in keys}


Tried = tuple[float, Trial]


def _accuracy(tried: Tried) -> float:
    return tried[0]


def _tried(key: Key, search: Search, results: Found) -> list[Tried]:
    """(accuracy on the examples kept for tuning, trial) of the trials that ran and have one."""
    scores = (score(key, results[job]) for job in key.tuning(search.trials))
    return [(found, trial) for found, trial in zip(scores, search.trials, strict=True) if found is not None]


def _guesses(key: Key, tried: Sequence[Tried]) -> bool:
    board = key.board
    return board.plan.measure == "final" and 100 * max(map(_accuracy, tried), default=0.0) < GUESSING * board.chance


def _chosen(key: Key, search: Search, results: Found) -> Tuned:
    """The trial with the highest accuracy, the first of equals."""
    tried = _tried(key, search, results)
    if not tried:
        failed = [one.words for job in key.tuning(search.trials) if isinstance(one := results[job], Failure)]
        reason = plainly(failed[0]) if failed else no_score(key, "tuning run")
        return Tuned(search, reason=reason)
    accuracy, trial = max(tried, key=_accuracy)
    if key.target is not None and _guesses(key, tried):
        why = f": {key.method.why}" if key.method.why else ""
        reason = f"it guesses: the best of {len(tried)} trials has {percent(accuracy)} on held-out examples{why}"
        return Tuned(search, tried=len(tried), reason=reason)
    return Tuned(
        search,
        tried=len(tried),
        chosen=dict(_value(override) for override in trial),
        final=key.final(trial),
        at_edge=tuple(f"{option}, {side} end" for option, side in search.sides(trial).items()),
    )


def _value(override: str) -> tuple[str, str]:
    option, _, value = override.partition("=")
    return option, value


def costs(tuned: Mapping[Key, Tuned], do: Do) -> dict[Key, TuningCost]:
    """What choosing the options of every entry would cost, had it been done on the training data that are protected;
    nothing for one whose plan cannot be priced so.
    """
    ranked = [key for key, own in tuned.items() if own.final and key.target is not None and not key.private]
    jobs = {key: key.planned("tuning", f"trials={len(tuned[key].search.trials)}") for key in ranked}
    results, found = do("cost of tuning", list(jobs.values())), {}
    for key, job in jobs.items():
        if isinstance(record := results[job], RunRecord):
            composed, random = (number(record.figures[name]) for name in ("composed", "random"))
            if composed is not None and random is not None:
                runs, law = len(tuned[key].search.trials) + 1, str(record.summary["law"])
                found[key] = TuningCost(runs=runs, composed=composed, random=random, law=law)
    return found


# --- privately -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Drawn:
    seed: int
    trial: Trial
    scored: Job
    tested: Job


def _privately(keys: Sequence[Key], do: Do) -> dict[Key, Tuned]:
    """The final run of every seed is the repetition of its best trial."""
    if not keys:
        return {}
    shares = _shares(keys, do)
    trials = {key: _draw(key, share[0]) for key in keys if not isinstance(share := shares[key], str)}
    results = do("tune privately", [one.scored for own in trials.values() for one in own])
    return {key: _best_of_drawn(key, shares[key], trials.get(key, ()), results) for key in keys}


def _shares(keys: Sequence[Key], do: Do) -> dict[Key, tuple[float, float] | str]:
    """(epsilon of one trial, epsilon of the choice), which meets the target, or why there is none."""
    jobs = {}
    for key in keys:
        own = key.board.plan.tuning
        ends = [f"end={option}={value:g}" for option, one in key.space.items() for value in (one.low, one.high)]
        jobs[key] = key.planned("tuning", f"trials={own.trials}", f"law={own.law}", *ends)
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


def _draw(key: Key, epsilon: float) -> list[_Drawn]:
    """The trials of all seeds, in order."""
    from fedpriv.privacy.private_selection import with_mean

    board, own, found = key.board, key.board.plan.tuning, []
    law = with_mean(own.law, own.trials)
    for seed in board.plan.seeds:
        rng = np.random.default_rng([own.seed, seed, *key.method.name.encode()])
        for place in range(law.draw(rng)):
            trial = drawn(key.space, rng)
            options, run_seed = key.options(trial, epsilon), (seed + 1) * _APART + place
            splits = (board.split, board.tested)
            scored, tested = (Job("train", (*options, f"dataset.split={split}"), run_seed) for split in splits)
            found.append(_Drawn(seed, trial, scored, tested))
    return found


def _best_of_drawn(key: Key, share: tuple[float, float] | str, trials: Sequence[_Drawn], results: Found) -> Tuned:
    search = Search(key.space, ())
    if isinstance(share, str):
        return Tuned(search, reason=plainly(share))
    best: dict[int, tuple[float, _Drawn]] = {}
    for one in trials:
        found = score(key, results[one.scored])
        if found is not None and (one.seed not in best or found > best[one.seed][0]):
            best[one.seed] = (found, one)
    if missing := [seed for seed in key.board.plan.seeds if seed not in best]:
        return Tuned(search, reason=f"{no_score(key, 'trial')} with seed {missing[0]}")
    values: dict[str, list[float]] = {}
    for option, value in (_value(override) for _, one in best.values() for override in one.trial):
        values.setdefault(option, []).append(float(value))
    chosen = {option: f"{min(own):g} to {max(own):g}" for option, own in values.items()}
    return Tuned(
        search,
        chosen=chosen | {"epsilon of a trial": f"{share[0]:g}"},
        final={seed: best[seed][1].tested for seed in key.board.plan.seeds},
        epsilon=share[1],
    )
