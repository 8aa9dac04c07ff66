"""A board whose choice of options is part of the guarantee (`fedpriv.privacy.private_selection`).

For each seed: the number K of trials is drawn; each trial draws its options from the ranges, independently, and runs
with noise of its own at the epsilon that the choice leaves for one (`tuning_cost`); they are scored on pictures that
belong to nobody; the model of the best is the result. It is tested by repeating that trial, bit for bit, with the set's
own test pictures in place of those.

The price is that of a release of the best alone: K and the other trials are secrets, so no entry says how many there
were. A study on public pictures still keeps all of their records, for its repetition (runs.jsonl).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.report.words import number, pick
from fedpriv.studies.board_jobs import Found, Prepared, plainly
from fedpriv.studies.board_results import NO_ACCURACY, Key, Tuned
from fedpriv.studies.jobs import Job
from fedpriv.studies.results import RunRecord
from fedpriv.studies.search import Search, Trial, drawn
from fedpriv.studies.tuning_cost import shares

#: Trial j of seed s runs with the seed (s + 1) * _APART + j: noise of its own.
_APART = 100_000


@dataclass(frozen=True)
class _Drawn:
    seed: int
    trial: Trial
    scored: Job
    tested: Job


def tune(open_: Mapping[Key, Prepared], do: Callable[[str, Sequence[Job]], Found]) -> dict[Key, Tuned]:
    """The final run of every seed is the repetition of its best trial."""
    if not open_:
        return {}
    priced = shares(open_, do)
    trials = {
        key: _trials(board, key, share[0]) for key, board in open_.items() if not isinstance(share := priced[key], str)
    }
    results = do("tune privately", [one.scored for own in trials.values() for one in own])
    found = {}
    for key, board in open_.items():
        share, search = priced[key], Search(board.plan.space(key.method), ())
        if isinstance(share, str):
            found[key] = Tuned(search, reason=plainly(share))
            continue
        found[key] = _chosen(board, search, share, trials[key], results)
    return found


def _trials(board: Prepared, key: Key, epsilon: float) -> list[_Drawn]:
    """Of all seeds, in order."""
    from fedpriv.privacy.private_selection import with_mean

    own, space, found = board.plan.tuning, board.plan.space(key.method), []
    assert own.trials is not None, "a private search is one over ranges"
    law = with_mean(own.law, own.trials)
    for seed in board.plan.seeds:
        rng = np.random.default_rng([own.seed, seed, *key.method.name.encode()])
        for place in range(law.draw(rng)):
            trial = drawn(space, rng)
            options, run_seed = board.options(key.method, trial, epsilon), (seed + 1) * _APART + place
            scored, tested = (
                Job("train", (*options, f"dataset.split={split}"), run_seed) for split in (board.split, board.tested)
            )
            found.append(_Drawn(seed, trial, scored, tested))
    return found


def _chosen(
    board: Prepared, search: Search, share: tuple[float, float], trials: Sequence[_Drawn], results: Found
) -> Tuned:
    best: dict[int, tuple[float, _Drawn]] = {}
    for one in trials:
        result = results[one.scored]
        score = number(pick(result.summary, "accuracy", board.plan.measure)) if isinstance(result, RunRecord) else None
        if score is not None and (one.seed not in best or score > best[one.seed][0]):
            best[one.seed] = (score, one)
    if missing := [seed for seed in board.plan.seeds if seed not in best]:
        reason = f"{NO_ACCURACY.format('trial', board.plan.measure)} with seed {missing[0]}"
        return Tuned(search, reason=reason)
    values: dict[str, list[float]] = {}
    for _, one in best.values():
        for override in one.trial:
            option, _, value = override.partition("=")
            values.setdefault(option, []).append(float(value))
    return Tuned(
        search,
        chosen={option: f"{min(own):g} to {max(own):g}" for option, own in values.items()}
        | {"epsilon of a trial": f"{share[0]:g}"},
        final={seed: best[seed][1].tested for seed in board.plan.seeds},
        epsilon=share[1],
    )
