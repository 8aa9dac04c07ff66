"""The layer *replayed*: the target is played on neighbouring inputs under the same seeds, and what leaves is compared.

It needs no claim and no knowledge of the target. `fedpriv.checking.statistics` has the statistics of one pair,
`fedpriv.checking.replay` what needs several calls, other seeds or dishonest inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpriv.checking.findings import Finding, Severity, finding, words_of
from fedpriv.checking.generators import Held, seeds_of
from fedpriv.checking.reading import Numbers, Played, is_word
from fedpriv.checking.statistics import (
    FLOAT32,
    VERY_OTHER_SCALE,
    Bools,
    Columns,
    Distance,
    Two,
    against_scale,
    atoms,
    bare,
    bare_direction,
    constant,
    distance_of,
    doubled,
    ended,
    few_values,
    least_ratio,
    low_bits,
    precision,
    remainders,
    repeated_rows,
    scale_ratio,
    spread,
    together,
    twins,
    vanishing,
)
from fedpriv.checking.subject import Budget, Claim, Pair, Probe, Question, Subject, stopwatch

#: Plays of each input, and the fewest from which anything is concluded.
MOST_PLAYS, FEWEST_PLAYS = 96, 6
#: A target of which there is time for so few plays is hardly sampled: its pairs have this weight in the time, and three
#: quarters of that for plays of one input that tell the law of the noise; else half of it.
SLOW, SLOW_WEIGHT = 2000, 100.0
#: Further plays where a symbol never changed.
MORE_PLAYS = 4000
#: Pairs for which these are made.
MOST_LONG_LOOKS = 2
#: Fresh noise in every number, and the data move some by more than this many of its standard deviations: no claim is
#: needed to say that nothing is protected (a Gaussian would cost an epsilon of about half the square).
NO_PROTECTION = 1000.0
#: Keys under which Flower's messages hold the number of a client's examples.
COUNTS = ("num_examples", "num-examples")
#: What records called "form." tell of.
FORM = "a name, a length, a type, the sign of a zero or another detail"


@dataclass
class Replay:
    """What the layer saw. pairs: that were played; plays: of each input. repeatable: equal seeds gave equal numbers.
    distances: of each pair. epsilon: at the check's delta, at least: of pairs that the claim covers to which noise of a
    known law is added, were it as large as its error allows. kept: pairs, what left, which columns of all are in it.
    """

    plays: int = 0
    pairs: int = 0
    repeatable: bool = True
    findings: list[Finding] = field(default_factory=list)
    distances: dict[str, Distance] = field(default_factory=dict)
    epsilon: float | None = None
    long_looks: int = 0
    kept: list[tuple[Pair, Two, Bools]] = field(default_factory=list)

    def says(self, key: str, severity: Severity | None = None, **figures: Any) -> None:
        self.findings.append(finding(key, severity, **figures))


def is_repeatable(subject: Subject, data: object) -> bool:
    """Whether equal seeds give equal numbers."""
    first, second = (subject.play(data, 12345)[0] for _ in range(2))
    same = first.numbers.keys() == second.numbers.keys()
    return same and np.array_equal(first.flat(), second.flat(), equal_nan=True)


def plays_of(subject: Subject, data: object, seeds: Sequence[int]) -> Iterator[Played | Exception]:
    for seed in seeds:
        try:
            yield subject.play(data, seed)[0]
        except Exception as error:
            yield error


def raises(pair: Pair, error: Exception, both: bool) -> Finding:
    """both: alike with both inputs."""
    one = "" if both else " with one of two neighbouring inputs and not with the other"
    return finding("raises:pair", pair=pair.name, both=one, words=words_of(error))


def replay(subject: Subject, question: Question, budget: Budget) -> Replay:
    """Plays every pair and judges it; pairs with an input of which the target always raises are taken from the subject.
    budget: of the whole check.
    """
    found = Replay()
    first = subject.play(subject.pairs[0].left, 1)[0]
    if first.unread:
        found.says("not-read", what=", ".join(first.unread[:5]))
    with stopwatch() as taken:
        found.repeatable = is_repeatable(subject, subject.pairs[0].left)
    one = max(taken[0] / 2, 1e-5)
    slow = budget.left / one < SLOW
    budget = budget.part("pairs", SLOW_WEIGHT if slow else None)
    affordable = int(budget.left / one / (2 * len(subject.pairs))) // (4 if slow else 2)
    found.plays = budget.allowed("calls of each input", affordable, MOST_PLAYS, FEWEST_PLAYS)
    seeds = seeds_of(question.seed, found.plays)
    done, raised = 0, []
    for pair in subject.pairs:
        if done and budget.left < one * found.plays:
            break
        done += 1
        played = _play_pair(subject, pair, seeds, found)
        if isinstance(played, tuple):
            two, finite = played
            found.kept.append((pair, two, finite))
            # further plays of this pair leave the others the time for theirs
            others = len(subject.pairs) - done
            further = budget.share(max(0.0, 1 - 2 * one * found.plays * others / max(budget.left, 1e-9)) / (1 + others))
            _judge(subject, question, pair, two, found, further)
            if not found_fault(found):
                more = [partial(_more, subject, data, finite, question) for data in (pair.left, pair.right)]
                found.findings += against_scale(question.claim, pair, two, more)
            _distance(subject, question, pair, two, finite, found, further)
        elif played == "raised":
            raised.append(pair)
    found.pairs = done
    budget.made("pairs of neighbouring inputs", done, len(subject.pairs))
    if len(raised) < len(subject.pairs):
        subject.pairs = [pair for pair in subject.pairs if not any(pair is one for one in raised)]
    # where several calls can be played, what a run of them costs is seen there (replay_runs)
    single = question.claim is None or question.claim.scope == "call" or type(subject).series is not Subject.series
    against_claim(subject, found, question, 1 if single else question.calls or 1)
    return found


def _more(subject: Subject, data: object, finite: Bools, question: Question, many: int) -> Numbers:
    """Further plays of an input, [n, k]; none of another form."""
    played = [one for one in plays_of(subject, data, seeds_of(question.seed + 5, many)) if isinstance(one, Played)]
    columns = Columns.of(played)
    if not played or len(columns.records) != len(finite):
        return np.zeros((0, 0))
    found = columns.matrix(played)[:, finite]
    return found[np.isfinite(found).all(1)]


def _play_pair(
    subject: Subject, pair: Pair, seeds: Sequence[int], found: Replay
) -> tuple[Two, Bools] | Literal["raised"] | None:
    """The plays, and which of their columns are finite and kept. None where there is too little to compare, which is
    then a finding; "raised" where an input is never played.
    """
    left, right = (list(plays_of(subject, data, seeds)) for data in (pair.left, pair.right))
    raised = [[isinstance(play, Exception) for play in side] for side in (left, right)]
    if any(map(any, raised)):
        error = next(play for play in (*left, *right) if isinstance(play, Exception))
        found.findings.append(raises(pair, error, raised[0] == raised[1]))
        if any(map(all, raised)):
            return "raised"
        keep = [n for n in range(len(seeds)) if not raised[0][n] and not raised[1][n]]
        left, right = [left[n] for n in keep], [right[n] for n in keep]
    plays = [[play for play in side if isinstance(play, Played)] for side in (left, right)]
    if len(plays[0]) < FEWEST_PLAYS:
        return None
    columns = Columns.of([*plays[0], *plays[1]])
    if columns.ragged:
        _ragged(pair, plays, columns.ragged, found)
    matrices = [columns.matrix(side) for side in plays]
    finite = np.asarray(np.isfinite(matrices[0]).all(0) & np.isfinite(matrices[1]).all(0))
    if not finite.all():
        found.says("not-finite", pair=pair.name)
    two = Two(pair.name, matrices[0], matrices[1], columns.records, found.repeatable)
    return two.only(finite), finite


def _ragged(pair: Pair, plays: Sequence[Sequence[Played]], names: Sequence[str], found: Replay) -> None:
    """Records whose length changes: with the data alone it is a leak."""
    sizes = [[tuple(one.numbers[n].size if n in one.numbers else -1 for n in names) for one in side] for side in plays]
    if all(len(set(side)) == 1 for side in sizes) and sizes[0][0] != sizes[1][0]:
        found.says("form-depends-on-data:length", pair=pair.name)
    else:
        found.says("other-shapes")


def _judge(subject: Subject, question: Question, pair: Pair, two: Two, found: Replay, budget: Budget) -> None:
    """All checks of one pair."""
    numbers = ~two.words
    moved = bare(two)
    form = moved & two.words
    moved &= numbers
    if moved.any():
        _bare(subject, question, pair, two, moved, found, budget)
    if form.any():
        what = FORM if str(two.records[form][0]).startswith("form.") else "a text"
        found.says("form-depends-on-data:text", pair=pair.name, what=what)
    gone = vanishing(two)
    if gone.any():
        found.says("noise-depends-on-data:gone", pair=pair.name, gone=_some(two, gone))
    where, ratio = scale_ratio(two)
    if ratio > least_ratio(len(two.left)):
        severity: Severity = "fault" if ratio > VERY_OTHER_SCALE else "doubt"
        found.says("noise-depends-on-data:scale", severity, pair=pair.name, where=where, ratio=ratio)
    repeated = repeated_rows(two.left[:, two.varying]) if two.varying.sum() > 1 else 0
    if repeated:
        found.says("noise-repeats", plays=len(two.left), repeated=repeated)
    finer, grid = remainders(two)
    if finer.any():
        found.says("noise-on-a-grid", pair=pair.name, finer=_some(two, finer), grid=grid)
    low = low_bits(two)
    if low.any():
        found.says("number-without-noise:bits", pair=pair.name, low=_some(two, low), plays=len(two.left))
    _shared(pair, two, found)


def _bare(
    subject: Subject, question: Question, pair: Pair, two: Two, moved: np.ndarray, found: Replay, budget: Budget
) -> None:
    numbers = ~two.words
    if few_values(two, moved):
        _symbols(subject, question, pair, two, moved, found, budget)
        return
    if not (numbers & ~two.fixed_left).any() and not (numbers & ~two.fixed_right).any():
        names = np.unique(two.records[moved]).tolist()
        found.says("no-randomness", plays=len(two.left), pair=pair.name, records=names)
        return
    counts = np.array([str(record).rpartition(".")[2] in COUNTS for record in two.records])
    counts &= subject.counts_differ and pair.unit != "example"
    if (moved & counts).any():
        of_clients = question.claim is not None and question.claim.unit == "client"
        found.says("number-without-noise:count" if of_clients else "number-without-noise:counts", pair=pair.name)
    if (moved & ~counts).any():
        bare_ones = moved & ~counts
        some, names = _some(two, bare_ones), np.unique(two.records[bare_ones]).tolist()
        found.says("number-without-noise:bare", pair=pair.name, moved=some, records=names, plays=len(two.left))


def _symbols(
    subject: Subject, question: Question, pair: Pair, two: Two, moved: np.ndarray, found: Replay, budget: Budget
) -> None:
    """Bits and the like may be equal in many calls by chance: more calls decide."""
    found.long_looks += 1
    if found.long_looks > MOST_LONG_LOOKS:
        return
    with stopwatch() as taken:
        subject.trials(pair.left, 4, question.seed)
    count = int(min(MORE_PLAYS, 0.2 * budget.left / max(taken[0] / 4, 1e-6)))
    count = max(count, len(two.left))
    try:
        sides = [subject.trials(data, count, question.seed + n) for n, data in enumerate((pair.left, pair.right))]
    except ValueError:
        return
    fixed = (sides[0] == sides[0][0]).all(0) & (sides[1] == sides[1][0]).all(0) & (sides[0][0] != sides[1][0])
    if not fixed.any():
        return
    # never in n calls, at an error of 1e-5: a probability below ln(1e5)/n
    least = max(0.0, math.log(count / math.log(1e5)))
    claimed = question.claim.epsilon if question.claim else None
    certain = claimed is not None and least > claimed
    changed = (sides[0] != sides[0][0]).any(0) | (sides[1] != sides[1][0]).any(0)
    alike = np.isin(two.records, np.unique(two.records[moved]))
    # where others of the same record change now and then, these may be as random
    alone = changed.shape != alike.shape or not (changed & alike).any()
    sure = certain or (claimed is None and count >= MORE_PLAYS and alone)
    severity: Severity = "fault" if sure else "doubt"
    found.says("number-without-noise:symbols", severity, pair=pair.name, fixed=fixed.sum(), count=count, least=least)


def _shared(pair: Pair, two: Two, found: Replay) -> None:
    direction = bare_direction(two)
    both = twins(two) if direction is None else None
    if direction is None and both is None:
        return
    if direction is not None:
        names = ", ".join(np.unique(two.records[direction.columns[np.abs(direction.weights) > 0.05]])[:3])
        words = f"a combination of the numbers of {names} has {direction.noise:.2g} of their noise"
    else:
        words = f"two numbers of {two.records[both[0]]} have the same noise"  # type: ignore[index]
    found.says("shared-noise", pair=pair.name, words=words)


def _distance(
    subject: Subject, question: Question, pair: Pair, two: Two, finite: Bools, found: Replay, budget: Budget
) -> None:
    seen = distance_of(two, partial(_more, subject, pair.left, finite, question), budget)
    before = found.distances.get(pair.name, seen)
    found.distances[pair.name] = max(before, seen, key=lambda one: (one.epsilon(question.at_delta), one.size))


def against_claim(subject: Subject, found: Replay, question: Question, calls: int) -> None:
    """Epsilon of the largest distance, of so many calls with noise of their own; a fault where it is more than claimed.
    A claim about one unit and none is compared with two units, too: twice.
    """
    if not found.distances:
        return
    claim = question.claim
    name, largest = max(found.distances.items(), key=lambda one: one[1].size)
    covered = {pair.name for pair in subject.pairs if question.covers(pair)}
    sizes = [one for pair, one in found.distances.items() if pair in covered and one.law is not None]
    found.epsilon = max((one.epsilon(question.at_delta, least=True) for one in sizes), default=None)
    if largest.size > NO_PROTECTION and not found_fault(found):
        found.says("unbounded-sensitivity:beyond", name=name, distance=largest.size)
    if claim is None or not math.isfinite(claim.epsilon):
        return
    of = "one call" if calls == 1 else f"{calls} calls"
    whys: list[tuple[Claim, Severity, str]] = [
        (claim, "fault", ""),
        (doubled(claim), "fault", " twice, as two steps of one unit against none"),
        (claim, "doubt", " (the claim may be about one update against none, where less moves)"),
    ]
    for held, severity, why in whys[: 2 if claim.adjacency else 3]:
        pairs = {pair.name for pair in subject.pairs if severity == "doubt" or held.covers(pair)}
        seen = {pair: one for pair, one in found.distances.items() if pair in pairs}
        if not seen:
            continue
        name, worst = max(seen.items(), key=lambda one: one[1].epsilon(held.delta, calls, least=True))
        least = worst.epsilon(held.delta, calls, least=True)
        if least > held.epsilon * (1 + 1e-3):
            figures = {"least": least, "of": of, "why": why, "epsilon": worst.epsilon(held.delta, calls)}
            found.says("moves-more-than-claimed", severity, name=name, worst=worst, held=held, claim=claim, **figures)
            return


def found_fault(found: Replay) -> bool:
    return any(one.severity == "fault" for one in found.findings)


def _some(two: Two, columns: np.ndarray) -> str:
    """The records of these columns, in words."""
    names = [str(name) for name in dict.fromkeys(two.records[columns]) if not is_word(str(name))]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    count = int(columns.sum())
    return f"{count} number{'s' if count > 1 else ''} ({shown})"


# --- repeats ----------------------------------------------------------------------------------------------------------
# Whether calls of one instance, not only neighbouring ones, ever have the same noise, or the negative of one.
#
# Calls on two inputs in turn give differences (and sums) of a call on the one and a call on the other. With noise of
# its own in every call no two of them are equal; where two calls share their noise, its difference is that of the
# inputs alone, and comes again under other seeds. It need not happen in every row of calls: of a stock of m noises, 36
# such pairs of calls in each of 48 rows show it up to some hundreds.

#: Rows of calls at least, numbers of a call that are compared, at most and at least.
FEWEST_ROWS, MOST, FEWEST = 6, 12, 3
#: Which calls have the other input, in turn: any two calls have different ones in some row.
PATTERNS = ("010101010101", "001100110011", "000011110011", "111100110000")
#: Differences within this part of the noise are equal.
EQUAL = 1e-5
#: Vectors of two rows are equal by chance with a probability below this.
CHANCE = 1e-6


def shared_by_calls(subject: Subject, question: Question, budget: Budget) -> list[Finding]:
    """At most one finding; none where a subject has no series (NotImplementedError) or is too slow."""
    pair = subject.pairs[0]
    inputs = [[(pair.left, pair.right)[int(one)] for one in pattern] for pattern in PATTERNS]
    with stopwatch() as taken:
        subject.series(inputs[0], 1)
    rows = budget.allowed(f"rows of {CALLS} calls on two inputs", budget.left / max(taken[0], 1e-5), ROWS)
    if rows < FEWEST_ROWS:
        return []
    calls = [subject.series(inputs[n % len(inputs)], seed) for n, seed in enumerate(seeds_of(question.seed + 8, rows))]
    other = np.array([[one == "1" for one in PATTERNS[n % len(inputs)]] for n in range(rows)])
    columns = Columns.of([one for row in calls for one in row])
    words = np.array([is_word(str(name)) for name in columns.records], bool)
    values = np.stack([columns.matrix(row) for row in calls])  # [rows, calls, k]
    kept = ~words & np.isfinite(values).all((0, 1))
    for place in (0, 1):
        alike = values[other[:, place] == other[0, place], place]
        kept &= ~constant(alike) & ~atoms(alike)
    values = values[:, :, np.flatnonzero(kept)[:MOST]]
    if values.shape[2] < FEWEST:
        return []
    left = values[~other].reshape(rows, CALLS // 2, 1, -1)
    right = values[other].reshape(rows, 1, CALLS // 2, -1)
    scale = values.std(0).mean(0)
    counts = [repeats(side.reshape(rows, -1, values.shape[2]), EQUAL * scale) for side in (right - left, right + left)]
    found, of = max(counts), left.shape[1] * right.shape[2]
    if found < 2:
        return []
    return [finding("noise-repeats-between-calls:stock", count=found, rows=rows, calls=CALLS, of=of)]


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


# --- calls ------------------------------------------------------------------------------------------------------------
# What a replay sees of several calls, of the generators of the process, and of dishonest inputs.

#: Calls in a row that are looked at, and plays of such a row.
CALLS, ROWS = 12, 48
#: Plays of each length of a probe.
PROBE_PLAYS = 12
#: Seeds of plays of an input that holds what is no number.
BROKEN_SEEDS = tuple(range(21, 29))
GENERATORS = ("Python's", "NumPy's", "torch's")


def calls_of(subject: Subject, question: Question, repeatable: bool, budget: Budget) -> list[Finding]:
    """Everything that is not about a single pair, the cheapest first, each with an equal part of what is left."""
    found: list[Finding] = []
    steps: list[Callable[[Budget], list[Finding]]] = [lambda share: generators(subject, repeatable)]
    lengths = [probe for probe in subject.probes if probe.kind == "length"]
    broken = [probe for probe in subject.probes if probe.kind == "broken"]
    steps += [lambda share, probe=probe: length_probe(subject, probe, question, share) for probe in lengths]  # type: ignore[misc]
    steps += [lambda share, probe=probe: broken_probe(subject, probe) for probe in broken]  # type: ignore[misc]
    steps += [partial(step, subject, question) for step in (memory, shared_by_calls)]
    steps += [partial(rows_of_calls, subject, question, repeatable)]
    for number, step in enumerate(steps):
        if budget.left <= 0:
            budget.made("kinds of replays beyond pairs", number, len(steps))
            break
        try:
            found += step(budget.share(1 / (len(steps) - number)))
        except NotImplementedError:
            continue
        except Exception as error:
            found.append(finding("raises:replay", words=words_of(error)))
    return found


# --- generators ---------------------------------------------------------------------------------------------------


def generators(subject: Subject, repeatable: bool) -> list[Finding]:
    """Whether the noise comes from a generator of the process, which anybody in it may seed."""
    data, found = subject.pairs[0].left, []
    if not repeatable:
        found.append(finding("cannot-be-seeded"))
    (one, before), (same_seed, _), (another, after) = (subject.unseeded(data, seed) for seed in (1, 1, 2))
    first, again, other = one.flat(), same_seed.flat(), another.flat()
    same = first.shape == again.shape and np.array_equal(first, again, equal_nan=True)
    fixed = first.shape == other.shape and np.array_equal(first, other, equal_nan=True)
    if same and not fixed and not Held.found:  # a copy's own generator follows from the seed by the check's doing
        found.append(finding("global-generator"))
    reseeded = [name for name, one, two in zip(GENERATORS, before, after, strict=True) if one and one == two]
    if reseeded:
        found.append(finding("seeds-global-generator", reseeded=" and ".join(reseeded)))
    return found


# --- lengths ------------------------------------------------------------------------------------------------------


def length_probe(subject: Subject, probe: Probe, question: Question, budget: Budget) -> list[Finding]:
    """Whether what leaves goes on moving, or its noise goes on growing, while an input grows."""
    with stopwatch() as taken:
        subject.play(probe.data[-1], 1)
    affordable = budget.left / max(taken[0], 1e-5) / len(probe.data)
    plays = budget.allowed("calls of each length", affordable, PROBE_PLAYS, 4)
    seeds = seeds_of(question.seed + 1, plays)
    played = [[subject.play(data, seed)[0] for seed in seeds] for data in probe.data]
    columns = Columns.of([one for row in played for one in row])
    two = Two(probe.name, columns.matrix(played[-2]), columns.matrix(played[-1]), columns.records, True)
    rows = [columns.matrix(row)[:, ~two.words] for row in played]
    finite = np.all([np.isfinite(row).all(0) for row in rows], axis=0)
    rows = [row[:, finite] for row in rows]
    records = two.records[~two.words][finite]
    if not finite.any():
        return []
    means = np.array([row.mean(0) for row in rows])
    spreads = np.array([row.std(0, ddof=1) for row in rows])
    steps = np.abs(np.diff(means, axis=0))
    # with the same noise the steps are exact; else their errors count
    errors = np.sqrt((spreads[1:] ** 2 + spreads[:-1] ** 2) / plays)
    paired = np.array([(after - before).std(0, ddof=1) for before, after in pairwise(rows)])
    errors = np.minimum(errors, paired / np.sqrt(plays))
    # a thousandth of the noise, or float32 rounding, is no move
    sizes = np.maximum(np.abs(means[1:]), np.abs(means[:-1]))
    sure = steps > 12 * errors + 1e-3 * spreads[1:] + 64 * FLOAT32 * sizes
    growing = sure[-3:].all(0) & (steps[-1] >= 0.5 * steps[-2]) & (steps[-2] >= 0.5 * steps[-3]) & (steps[-1] > 0)
    found = []
    if growing.any():
        worst = int(np.argmax(np.where(growing, steps[-1], -1)))
        figures = {"growing": growing.sum(), "record": records[worst], "step": steps[-1, worst]}
        ends = {"shorter": probe.lengths[-2], "longer": probe.lengths[-1]}
        found.append(finding("unbounded-sensitivity", probe=probe, **figures, **ends, records=[str(records[worst])]))
    scale = np.median(spreads, axis=1)
    if scale[0] > 0 and scale[-1] > 30 * scale[0] and scale[-1] > 10 * scale[-2]:
        found.append(finding("noise-depends-on-data:grows", probe=probe.name, first=scale[0], last=scale[-1]))
    return found


def broken_probe(subject: Subject, probe: Probe) -> list[Finding]:
    """NaN and infinity: whether they leave, and whether they switch the clipping off."""
    honest = np.concatenate([subject.play(subject.pairs[0].left, seed)[0].flat() for seed in (1, 2)])
    usual = float(np.abs(_sizes(subject.play(subject.pairs[0].left, 3)[0])).max(initial=0.0))
    found: list[Finding] = []
    for data in probe.data:
        try:
            numbers = _sizes(subject.play(data, 1)[0])
        except Exception as error:
            found.append(finding("raises:broken", error=type(error).__name__))
            continue
        whole = numbers[np.isfinite(numbers)]
        if np.abs(whole).max(initial=0.0) > 1e4 * max(usual, 1e-300):
            found.append(finding("broken-number-switches-off-clipping", largest=np.abs(whole).max(), usual=usual))
        elif len(whole) < len(numbers) and np.isfinite(honest).all():
            found.append(finding("broken-number-leaves"))
    found += _broken_bare(subject, probe)
    return list({one.name: one for one in reversed(found)}.values())


def _broken_bare(subject: Subject, probe: Probe) -> list[Finding]:
    """Finite numbers that leave without noise where another of the same update is none, and are other ones for other
    updates; honest updates leave with noise there, that is no smaller than the last bit of these.
    """
    rows = []
    for data in (subject.pairs[0].left, *probe.data):
        try:
            rows.append(np.stack([_sizes(subject.play(data, seed)[0]) for seed in BROKEN_SEEDS]))
        except Exception:  # of the target's own; or numbers that change their form
            continue
    if len(rows) < 3 or len({row.shape for row in rows}) > 1:
        return []
    noisy = ~(np.sort(rows[0], axis=0)[1:] == np.sort(rows[0], axis=0)[:-1]).any(0)
    for place, one in enumerate(rows[1:], 1):
        for other in rows[place + 1 :]:
            whole = np.isfinite(one).all(0) & np.isfinite(other).all(0)
            sizes = np.maximum(np.abs(one), np.abs(other)).max(0)
            long = precision(one[:, whole], other[:, whole]) * sizes >= rows[0].std(0)
            bare_ones = (
                noisy & whole & ~long & (one == one[0]).all(0) & (other == other[0]).all(0) & (one[0] != other[0])
            )
            if bare_ones.any():
                return [finding("number-without-noise:broken", count=int(bare_ones.sum()), seeds=len(BROKEN_SEEDS))]
    return []


def _sizes(one: Played) -> Numbers:
    columns = Columns.of([one])
    two = Two("", columns.matrix([one]), columns.matrix([one]), columns.records, True)
    return np.asarray(two.left[0, ~two.words])


# --- several calls ------------------------------------------------------------------------------------------------


def rows_of_calls(subject: Subject, question: Question, repeatable: bool, budget: Budget) -> list[Finding]:
    """Whether every one of `CALLS` calls of an instance has noise, on its own and of its own."""
    pair = subject.pairs[0]
    with stopwatch() as taken:
        subject.play(pair.left, 1, calls=2)
    rows = budget.allowed(f"rows of {CALLS} calls", 0.8 * budget.left / max(taken[0] / 2, 1e-5) / (2 * CALLS), ROWS)
    if rows < 6:
        return []
    seeds = seeds_of(question.seed + 2, rows)
    sides = [[subject.play(data, seed, calls=CALLS) for seed in seeds] for data in (pair.left, pair.right)]
    missed = _missed(pair, [[[row[call] for row in side] for side in sides] for call in range(CALLS)], question)
    columns = Columns.of([one for side in sides for row in side for one in row])
    calls = [
        Two(pair.name, one[0], one[1], columns.records, repeatable)
        for one in ([columns.matrix([row[call] for row in side]) for side in sides] for call in range(CALLS))
    ]
    return [*missed, *_less_noise(calls, question), *_same_noise(subject, pair, seeds, repeatable)]


def _less_noise(calls: Sequence[Two], question: Question) -> list[Finding]:
    """Whether later calls have less noise than the first, or noise that partly cancels over the calls."""
    columns = calls[0].varying & ~np.any([atoms(call.left) for call in calls], axis=0)
    if not columns.any():
        return []
    claim, rows = question.claim, len(calls[0].left)
    noise = np.stack([call.left[:, columns] - call.left[:, columns].mean(0) for call in calls])  # [calls, rows, k]
    moved = np.stack([(call.right - call.left)[:, columns].mean(0) for call in calls])  # [calls, k]
    scales = np.sqrt(np.median([spread(one) ** 2 for one in noise], axis=1))
    found = []
    if scales[0] > 0 and scales[1:].min() < scales[0] / least_ratio(rows):
        number = int(scales[1:].argmin()) + 2
        ratio = scales[0] / max(scales[number - 1], 1e-300)
        found.append(
            finding("noise-fades", "fault" if ratio > VERY_OTHER_SCALE else "doubt", number=number, ratio=ratio)
        )
    deviations = noise.std(1)  # [calls, k]
    if not (deviations > 0).all():
        return found
    lengths = moved / deviations
    joint = together((noise / deviations[:, None]).swapaxes(0, 1), lengths)
    alone, size = float(np.linalg.norm(lengths)), noise[0].size
    if joint is not None and size > 20 * len(calls) and alone > 0 and joint > math.sqrt(2) * alone:
        per_call = claim is not None and claim.scope == "call"
        found.append(
            finding("noise-cancels-between-calls", None if per_call else "doubt", calls=len(calls), times=joint / alone)
        )
    return found


def _missed(pair: Pair, calls: Sequence[Sequence[Sequence[Played]]], question: Question) -> list[Finding]:
    """What first leaves without noise in a call after the first. calls: of each call both sides' plays."""
    first, _ = _two(pair, calls[0])
    known = first.records[bare(first)].tolist()
    for number, sides in enumerate(calls[1:], 2):
        found = _later(pair, sides, question, known, "number-without-noise:call", number=number, calls=len(calls))
        if found:
            return found
    return []


def _two(pair: Pair, sides: Sequence[Sequence[Played]]) -> tuple[Two, tuple[str, ...]]:
    """What both sides' plays of one call release, and the names of records whose length changes."""
    columns = Columns.of([one for side in sides for one in side])
    return Two(pair.name, columns.matrix(sides[0]), columns.matrix(sides[1]), columns.records, True), columns.ragged


def _later(
    pair: Pair, sides: Sequence[Sequence[Played]], question: Question, known: Collection[str], key: str, **figures: Any
) -> list[Finding]:
    """What a call after the first releases without noise, names and lengths too. known: records that may."""
    (two, ragged), found = _two(pair, sides), Replay()
    if ragged:
        _ragged(pair, sides, ragged, found)
    missed = bare(two) & ~np.isin(two.records, list(known))
    numbers, count = missed & ~two.words, len(sides[0])
    if (missed & two.words).any():
        found.says("form-depends-on-data:text", pair=pair.name, what=FORM)
    if numbers.any() and not few_values(two, numbers):
        found.says(key, count=int(numbers.sum()), **figures)
    elif numbers.any():
        least = max(0.0, math.log(count / math.log(1e5)))
        severity: Severity = "fault" if question.claim and question.claim.epsilon < least else "doubt"
        figures = {"fixed": numbers.sum(), "count": count, "least": least}
        found.says("number-without-noise:symbols", severity, pair=pair.name, **figures)
    return [one for one in found.findings if one.name != "other-shapes"]


def _same_noise(subject: Subject, pair: Pair, seeds: Sequence[int], repeatable: bool) -> list[Finding]:
    """Two calls on two inputs, in both orders: a combination of the calls in which the noise cancels."""
    try:
        plays = [[subject.series(data, seed) for seed in seeds] for data in
                 ((pair.left, pair.right), (pair.right, pair.left))]  # fmt: skip
        same_input = False
    except NotImplementedError:
        plays = [[subject.play(data, seed, calls=2) for seed in seeds] for data in (pair.left, pair.right)]
        same_input = True
    columns = Columns.of([one for side in plays for row in side for one in row])
    first, second = ([columns.matrix([row[call] for row in side]) for side in plays] for call in (0, 1))
    words = np.array([name.startswith("form.") or name.endswith(".text") for name in columns.records])
    vary = ~words & ~constant(first[0]) & ~constant(first[1]) & ~constant(second[0]) & ~constant(second[1])
    few = np.flatnonzero(vary)[: max(1, len(seeds) // 8)]
    if not len(few):
        return []
    records = columns.records[few]
    left, right = (np.concatenate([first[n][:, few], second[n][:, few]], axis=1) for n in (0, 1))
    joined = Two(pair.name, left, right, np.concatenate([records, records]), repeatable)
    direction = bare_direction(joined)
    exact = np.array_equal(first[0][:, few], second[0][:, few]) if same_input else False
    alone = any(
        bare_direction(Two(pair.name, one[0][:, few], one[1][:, few], records, repeatable)) for one in (first, second)
    )
    if (direction is None or alone) and not exact:
        return []
    return [finding("noise-repeats-between-calls:cancels", "doubt" if exact else "fault")]


def memory(subject: Subject, question: Question, budget: Budget) -> list[Finding]:
    """Whether a call tells something of the data of the call before it."""
    pair: Pair = subject.pairs[0]
    seeds = seeds_of(question.seed + 3, 32)
    plays: list[list[Any]] = [[], []]
    for number, earlier in enumerate((pair.left, pair.right)):
        for seed in seeds:
            if budget.left <= 0:
                budget.made("calls that tell of the one before", number * len(seeds), 2 * len(seeds))
                return []
            plays[number].append(subject.series([earlier, pair.left], seed)[1])
    if told := _later(pair, plays, question, (), "state-crosses-calls:bare"):
        return told
    two, _ = _two(pair, plays)
    if np.array_equal(two.left, two.right, equal_nan=True):
        return []
    difference = two.right - two.left
    error = np.minimum(
        np.sqrt((two.left.var(0, ddof=1) + two.right.var(0, ddof=1)) / len(seeds)),
        difference.std(0, ddof=1) / np.sqrt(len(seeds)),
    )
    sure = (np.abs(difference.mean(0)) > 8 * error + 1e-9 * np.abs(two.left).max(0)) & ~two.words
    if not sure.any():
        return []
    return [finding("state-crosses-calls", "note" if subject.stateful else "doubt", count=int(sure.sum()))]


# --- runs -------------------------------------------------------------------------------------------------------------
# Several calls of one instance as one release: neighbours that differ in every call, or in the first call alone.
#
# What a call of a claimed cost leaves behind for later ones is seen here: an update that comes again in a later message
# without the noise that it was paid with, noise that is used twice, a difference or sum of messages that has none. The
# judges are those of single calls (`fedpriv.checking.replay`), on the numbers of all calls together.

#: Calls that are looked at together, and at most where the claim is about a run of them; numbers of each that are
#: (those that the data move most).
RUN_CALLS, MOST_RUN_CALLS, NUMBERS = 4, 16, 4
#: A target with time for fewer calls is not looked at.
FEWEST_RUN_CALLS = 3000
#: Plays from which these are chosen, and of the differences of whole numbers.
PILOT, RING_PLAYS = 4, 24
#: Calls have noise of their own if the distance of all is that of one times the root of their number, up to this.
FRESH_NOISE = 0.1
#: What is judged once in several calls, by a name of its own or that of a single call.
NAMES = {"shared-noise": "noise-repeats-between-calls"}


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
    if budget.left / max(taken[0] / 2, 1e-6) < FEWEST_RUN_CALLS:
        budget.made(f"looks at {calls} calls together", 0, 1)
        return []
    pairs = _pairs(subject, question)
    for number, (pair, chosen) in enumerate(pairs):
        share = budget.share(1 / (len(pairs) - number), ("pairs", "ends"))
        run = Run(name=subject.name, pairs=_series(pair, calls), of=subject, chosen=chosen, stateful=subject.stateful)
        asked = replace(question, claim=_claim_of_run(question, calls))
        played = replay(run, asked, share)
        played.findings += [] if found_fault(played) else ended(run, asked, played.kept, share)
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
    return max(2, min(MOST_RUN_CALLS, question.calls or RUN_CALLS)) if run else RUN_CALLS


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
    if claim is None or claim.scope != "run" or one is None or every is None or one.law is None:
        return []
    alone = every.size / math.sqrt(calls)
    if not one.size or abs(alone / one.size - 1) > FRESH_NOISE:
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
                    return [finding("noise-repeats-between-calls:mask")]
    return []
