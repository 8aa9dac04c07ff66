"""Several calls of one instance as one release: neighbours that differ in every call, or in the first call alone.

What a call of a claimed cost leaves behind for later ones is seen here: an update that comes again in a later message
without the noise that it was paid with, noise that is used twice, a difference or sum of messages that has none. The
judges are those of single calls (`fedpriv.checking.replayed`), on the numbers of all calls together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedpriv.checking.budget import Budget, stopwatch
from fedpriv.checking.columns import Columns, is_word
from fedpriv.checking.findings import Finding
from fedpriv.checking.generators import seeds_of
from fedpriv.checking.replay_calls import length_probe
from fedpriv.checking.replayed import Replay, against_claim, replay
from fedpriv.checking.subject import Claim, Numbers, Pair, Played, Probe, Question, Subject

#: Calls that are looked at together; numbers of each that are (those that the data move most).
CALLS, NUMBERS = 4, 4
#: A target with time for fewer calls is not looked at.
FEWEST_CALLS = 3000
#: Plays from which these are chosen, and of the differences of whole numbers.
PILOT, RING_PLAYS = 4, 24
#: Calls have noise of their own if the distance of all is that of one times the root of their number, up to this.
FRESH = 0.1
#: What is judged once in several calls, by a name of its own or that of a single call.
NAMES = {"shared-noise": "noise-repeats-between-calls", "number-without-noise": "noise-misses-calls"}


@dataclass
class Run(Subject):
    """A subject of which one play is a series of calls, with the chosen numbers of each record."""

    kind: ClassVar[str] = "run"
    of: Subject | None = None
    chosen: NDArray[np.int64] | None = None

    def play(self, data: Any, seed: int | None, calls: int = 1) -> list[Played]:
        assert self.of is not None
        return [Played(self._joined(self.of.series(data, seed)))]

    def _joined(self, calls: Sequence[Played]) -> dict[str, Numbers]:
        found: dict[str, Numbers] = {}
        for number, one in enumerate(calls, 1):
            words = {name: part for name, part in one.numbers.items() if is_word(name)}
            found |= {f"{name.partition('.')[0]}.call {number}.{name}": part for name, part in words.items()}
            flat = np.concatenate([np.zeros(0), *(p for n, p in one.numbers.items() if n not in words)])
            some = flat if self.chosen is None or len(flat) <= self.chosen.max(initial=-1) else flat[self.chosen]
            found[f"call {number}"] = some
        return found


def runs_of(subject: Subject, question: Question, single: Replay, budget: Budget) -> list[Finding]:
    """What several calls show beyond single ones; nothing where a subject has no series, or is too slow for it."""
    calls, findings = _calls(question), list[Finding]()
    if not has_series(subject):
        return []
    with stopwatch() as taken:
        subject.series([subject.pairs[0].left] * 2, 1)
    if budget.left / max(taken[0] / 2, 1e-6) < FEWEST_CALLS:
        budget.cut.append(f"a look at {calls} calls together: not made")
        return []
    pairs = _pairs(subject, question)
    for number, (pair, chosen) in enumerate(pairs):
        share = budget.share(1 / (len(pairs) - number))
        run = Run(name=subject.name, pairs=_series(pair, calls), of=subject, chosen=chosen, stateful=subject.stateful)
        asked = replace(question, claim=_claim_of_run(question, calls))
        played = replay(run, asked, share)
        findings += [replace(one, name=NAMES.get(one.name, one.name)) for one in played.findings]
        findings += _extrapolated(subject, question, single, played, pair, calls)
        findings += _ring(subject, pair, question)
        for probe in subject.probes:
            if probe.kind == "length" and share.left > 0 and number == 0 and _alike(subject, probe.data[0], pair.right):
                series = [[one, pair.right] for one in probe.data]
                grown = Probe(f"{probe.name} in the call before", "length", series, probe.lengths)
                findings += length_probe(run, grown, asked, share)
    known = {one.name for one in single.findings}
    return [one for one in findings if one.name not in known and one.severity == "fault"]


def _alike(subject: Subject, one: Any, other: Any) -> bool:
    """Whether two inputs give numbers of one form: they are of the same size."""
    return not Columns.of([subject.series([data], 1)[0] for data in (one, other)]).ragged


def has_series(subject: Subject) -> bool:
    return type(subject).series is not Subject.series


def _calls(question: Question) -> int:
    run = question.claim is not None and question.claim.scope == "run"
    return max(2, min(CALLS, question.calls or CALLS)) if run else CALLS


def _claim_of_run(question: Question, calls: int) -> Claim | None:
    """Of so many calls together: a claim per call is added up [Dwork and Roth 2014, 3.16]."""
    claim = question.claim
    if claim is None:
        return None
    if claim.scope == "run":
        return replace(claim, scope="call") if calls <= (question.calls or 1) else None
    return replace(claim, epsilon=calls * claim.epsilon, delta=min(math.nextafter(1, 0), calls * claim.delta))


def _pairs(subject: Subject, question: Question) -> list[tuple[Pair, NDArray[np.int64]]]:
    """(pair, numbers to look at) for each adjacency: of its first two pairs that of which few numbers move most."""
    found: dict[str, tuple[float, Pair, NDArray[np.int64]]] = {}
    tried: dict[str, int] = {}
    for pair in subject.pairs:
        tried[pair.adjacency] = tried.get(pair.adjacency, 0) + 1
        if tried[pair.adjacency] > 2:
            continue
        seen = _most_moved(subject, pair, question)
        if seen is not None and (pair.adjacency not in found or seen[0] > 1.01 * found[pair.adjacency][0]):
            found[pair.adjacency] = (seen[0], pair, seen[1])
    return [(pair, chosen) for _, pair, chosen in found.values()]


def _series(pair: Pair, calls: int) -> list[Pair]:
    rest = [pair.right] * (calls - 1)
    first, every = [pair.left, *rest], [pair.left] * calls
    return [
        Pair(f"{pair.name}, in the first of {calls} calls", first, [pair.right, *rest], pair.adjacency, pair.unit),
        Pair(f"{pair.name}, in each of {calls} calls", every, [pair.right] * calls, pair.adjacency, pair.unit),
    ]


def _most_moved(subject: Subject, pair: Pair, question: Question) -> tuple[float, NDArray[np.int64]] | None:
    """(how far they move, which) of the numbers of a call that differ most between the inputs, for a few seeds. None:
    calls differ in form.
    """
    seeds = seeds_of(question.seed + 6, PILOT)
    sides = [[subject.series([data], seed)[0] for seed in seeds] for data in (pair.left, pair.right)]
    columns = Columns.of([*sides[0], *sides[1]])
    if columns.ragged:
        return None
    words = np.array([is_word(name) for name in columns.records], bool)
    left, right = (columns.matrix(side)[:, ~words] for side in sides)
    moved = np.abs(np.nan_to_num((right - left).mean(0)))
    chosen = np.sort(np.argsort(-moved, kind="stable")[:NUMBERS])
    return float(np.linalg.norm(moved[chosen])), chosen


def _extrapolated(
    subject: Subject, question: Question, single: Replay, run: Replay, pair: Pair, calls: int
) -> list[Finding]:
    """A claim about a run of more calls, where each call has noise of its own: its distance grows with the root."""
    claim = question.claim
    one, every = single.distances.get(pair.name), run.distances.get(f"{pair.name}, in each of {calls} calls")
    if claim is None or claim.scope != "run" or one is None or every is None:
        return []
    alone = every.size / math.sqrt(calls)
    if not one.size or abs(alone / one.size - 1) > FRESH:
        return []
    judged = Replay(distances=single.distances)
    against_claim(subject, judged, question, question.calls or 1)
    return judged.findings


def _ring(subject: Subject, pair: Pair, question: Question) -> list[Finding]:
    """Whether the difference of two messages takes one or two values only (two where it is reduced by a modulus), and
    others with the inputs in the other order: a mask that is used twice. Whole numbers are taken modulo 2^32 as well.
    """
    seeds = seeds_of(question.seed + 7, RING_PLAYS)
    sides = [
        [subject.series(data, seed) for seed in seeds] for data in ((pair.left, pair.right), (pair.right, pair.left))
    ]
    calls = [one for side in sides for row in side for one in row]
    for name in sides[0][0][0].exact:
        if not all(name in one.exact for one in calls):
            continue
        rows = [[np.stack([row[call].exact[name] for row in side]) for call in (0, 1)] for side in sides]
        if len({part.shape for row in rows for part in row}) > 1:
            continue
        for sign in (-1, 1):
            seen = [(row[1] + sign * row[0]) % 2**32 for row in rows]
            plain = [row[call] for row in rows for call in (0, 1)]
            for column in range(min(64, seen[0].shape[1])):
                various = min(len(np.unique(part[:, column])) for part in plain)
                values = [set(part[:, column].tolist()) for part in seen]
                if various >= RING_PLAYS // 2 and max(map(len, values)) <= 2 and not values[0] & values[1]:
                    return [REUSED_MASK]
    return []


REUSED_MASK = Finding(
    "replayed", "noise-repeats-between-calls", "fault",
    "The difference or sum of the whole numbers of two messages of one instance is the same whatever the seed is, and "
    "another with other data: one mask is used twice; epsilon is infinite.",
    "Draw a new mask for every message.",
)  # fmt: skip
