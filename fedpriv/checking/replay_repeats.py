"""Whether calls of one instance, not only neighbouring ones, ever have the same noise, or the negative of one.

Calls on two inputs in turn give differences (and sums) of a call on the one and a call on the other. With noise of its
own in every call no two of them are equal; where two calls share their noise, its difference is that of the inputs
alone, and comes again under other seeds. It need not happen in every row of calls: of a stock of m noises, 36 such
pairs of calls in each of 48 rows show it up to some hundreds.
"""

from __future__ import annotations

import math

import numpy as np

from fedpriv.checking.budget import Budget, stopwatch
from fedpriv.checking.columns import Columns, atoms, constant, is_word
from fedpriv.checking.findings import Finding
from fedpriv.checking.generators import seeds_of
from fedpriv.checking.subject import Numbers, Question, Subject

#: Calls of a row, rows at most and at least, numbers of a call that are compared, at most and at least.
CALLS, ROWS, FEWEST_ROWS, MOST, FEWEST = 12, 48, 6, 12, 3
#: Share of the time. Differences within this part of the noise are equal.
SHARE, EQUAL = 0.4, 1e-5
#: Vectors of two rows are equal by chance with a probability below this.
CHANCE = 1e-6


def shared_by_calls(subject: Subject, question: Question, budget: Budget) -> list[Finding]:
    """At most one finding; none where a subject has no series (NotImplementedError) or is too slow."""
    pair = subject.pairs[0]
    inputs = [pair.left, pair.right] * (CALLS // 2)
    with stopwatch() as taken:
        subject.series(inputs, 1)
    rows = budget.allowed(f"rows of {CALLS} calls on two inputs", SHARE * budget.left / max(taken[0], 1e-5), ROWS)
    if rows < FEWEST_ROWS:
        return []
    calls = [subject.series(inputs, seed) for seed in seeds_of(question.seed + 8, rows)]
    columns = Columns.of([one for row in calls for one in row])
    words = np.array([is_word(str(name)) for name in columns.records], bool)
    values = np.stack([columns.matrix(row) for row in calls])  # [rows, calls, k]
    kept = ~words & np.isfinite(values).all((0, 1))
    for place in (0, 1):
        kept &= ~constant(values[:, place]) & ~atoms(values[:, place])
    values = values[:, :, np.flatnonzero(kept)[:MOST]]
    if values.shape[2] < FEWEST:
        return []
    left, right = values[:, 0::2, None], values[:, None, 1::2]
    scale = values.std(0).mean(0)
    counts = [repeats(side.reshape(rows, -1, values.shape[2]), EQUAL * scale) for side in (right - left, right + left)]
    found, of = max(counts), left.shape[1] * right.shape[2]
    if found < 2:
        return []
    return [
        Finding(
            "replayed", "noise-repeats-between-calls", "fault",
            f"In {found} of {rows} rows of {CALLS} calls of one instance, two calls had the same noise or its negative "
            f"(of {of} pairs of calls in a row): their difference or sum shows the data without any; epsilon is "
            "infinite.",
            "Draw new noise in every call; keep no stock of noises that may be used twice.",
        )
    ]  # fmt: skip


def repeats(values: Numbers, equal: Numbers) -> int:
    """In how many rows of [rows, pairs, k] a vector lies that lies in another row as well. equal [k]: how near.

    A vector that comes twice in one row alone does not count: an answer that is kept for an input that comes again. 0
    where vectors of few different numbers may be equal by chance.
    """
    rows, pairs, numbers = values.shape
    cells = np.floor(values.reshape(-1, numbers) / np.maximum(equal, 1e-300) + 0.37)
    different, names = np.unique(cells, axis=0, return_inverse=True)
    names = names.reshape(rows, pairs)
    chance = 2 * math.log(rows * pairs)
    for column in different.T if len(different) > 1 else ():
        _, same = np.unique(column, return_counts=True)
        chance += math.log(max(1, (same * (same - 1)).sum()) / (len(column) * (len(column) - 1)))
    if len(different) > 1 and chance > math.log(CHANCE):
        return 0
    seen: dict[int, set[int]] = {}
    for row in range(rows):
        for name in set(names[row].tolist()):
            seen.setdefault(name, set()).add(row)
    return len(set().union(*(those for those in seen.values() if len(those) > 1)))
