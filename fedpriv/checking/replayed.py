"""The layer *replayed*: the target is played on neighbouring inputs under the same seeds, and what leaves is compared.

It needs no claim and no knowledge of the target. `fedpriv.checking.replay_numbers` has the statistics of one pair,
`fedpriv.checking.replay_calls` what needs several calls, other seeds or dishonest inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from fedpriv.checking.budget import Budget, stopwatch
from fedpriv.checking.columns import Bools, Columns, Two, is_word
from fedpriv.checking.findings import Finding
from fedpriv.checking.generators import seeds_of
from fedpriv.checking.replay_distance import Distance, distance_of, doubled
from fedpriv.checking.replay_ends import ended
from fedpriv.checking.replay_numbers import (
    VERY_OTHER_SCALE,
    bare,
    bare_direction,
    few_values,
    least_ratio,
    remainders,
    repeated_rows,
    scale_ratio,
    twins,
    vanishing,
)
from fedpriv.checking.replay_scale import against_scale
from fedpriv.checking.subject import Numbers, Pair, Played, Question, Subject

#: Plays of each input, and the fewest from which anything is concluded.
MOST_PLAYS, FEWEST_PLAYS = 96, 6
#: Share of the time of a check. A target of which there is time for so few plays is hardly sampled: it is replayed for
#: longer, three quarters of that for plays of one input that tell the law of the noise; else half of it.
PAIRS_SHARE, SLOW_SHARE, SLOW = 0.3, 0.6, 2000
#: Share of what pairs leave of it for calls that show where noise ends.
ENDS_SHARE = 0.1
#: Further plays where a symbol never changed.
MORE_PLAYS = 4000
#: Pairs for which these are made.
MOST_LONG_LOOKS = 2
#: Fresh noise in every number, and the data move some by more than this many of its standard deviations: no claim is
#: needed to say that nothing is protected (a Gaussian would cost an epsilon of about half the square).
NO_PROTECTION = 1000.0
#: Keys under which Flower's messages hold the number of a client's examples.
COUNTS = ("num_examples", "num-examples")


@dataclass
class Replay:
    """What the layer saw. pairs: that were played; plays: of each input. repeatable: equal seeds gave equal numbers.
    distances: of each pair to both of whose inputs the same noise of a known law is added. epsilon: of Gaussian noise,
    at the check's delta.
    """

    plays: int = 0
    pairs: int = 0
    repeatable: bool = True
    findings: list[Finding] = field(default_factory=list)
    distances: dict[str, Distance] = field(default_factory=dict)
    epsilon: float | None = None
    long_looks: int = 0

    def says(self, name: str, severity: str, text: str, remedy: str = "") -> None:
        self.findings.append(Finding("replayed", name, severity, text, remedy))  # type: ignore[arg-type]


def is_repeatable(subject: Subject, data: object) -> bool:
    """Whether equal seeds give equal numbers."""
    first, second = (subject.play(data, 12345)[0] for _ in range(2))
    return first.numbers.keys() == second.numbers.keys() and all(
        np.array_equal(first.numbers[name], second.numbers[name], equal_nan=True) for name in first.numbers
    )


def plays_of(subject: Subject, data: object, seeds: Sequence[int]) -> Iterator[Played | Exception]:
    for seed in seeds:
        try:
            yield subject.play(data, seed)[0]
        except Exception as error:
            yield error


def replay(subject: Subject, question: Question, budget: Budget) -> Replay:
    """Plays every pair and judges it. budget: of the whole check. Raises what the target raises on the
    first honest input.
    """
    found = Replay()
    subject.play(subject.pairs[0].left, 1)
    with stopwatch() as taken:
        found.repeatable = is_repeatable(subject, subject.pairs[0].left)
    one = max(taken[0] / 2, 1e-5)
    slow = budget.left / one < SLOW
    whole, kept = budget, list[tuple[Pair, Two, Bools]]()
    budget = budget.share(SLOW_SHARE if slow else PAIRS_SHARE)
    affordable = int(budget.left / one / (2 * len(subject.pairs))) // (4 if slow else 2)
    found.plays = budget.allowed("calls of each input", affordable, MOST_PLAYS, FEWEST_PLAYS)
    seeds = seeds_of(question.seed, found.plays)
    done = 0
    for pair in subject.pairs:
        if done and budget.left < one * found.plays:
            break
        done += 1
        played = _play_pair(subject, pair, seeds, found)
        if played is not None:
            two, finite = played
            kept.append((pair, two, finite))
            # further plays of this pair leave the others the time for theirs
            others = len(subject.pairs) - done
            further = Budget((budget.left - 2 * one * found.plays * others) / (1 + others), budget.cut)
            _judge(subject, question, pair, two, found, further)
            if not found_fault(found):
                more = [partial(_more, subject, data, finite, question) for data in (pair.left, pair.right)]
                found.findings += against_scale(question.claim, pair, two, more)
            _distance(subject, question, pair, two, finite, found, further)
    found.pairs = done
    if done < len(subject.pairs):
        budget.cut.append(f"pairs of neighbouring inputs: {done} of {len(subject.pairs)}")
    # where several calls can be played, what a run of them costs is seen there (replay_runs)
    single = question.claim is None or question.claim.scope == "call" or type(subject).series is not Subject.series
    against_claim(subject, found, question, 1 if single else question.calls or 1)
    if not found_fault(found):
        found.findings += ended(subject, question, kept, whole.share(ENDS_SHARE))
    return found


def _more(subject: Subject, data: object, finite: Bools, question: Question, many: int) -> Numbers:
    """Further plays of an input, [n, k]; none of another form."""
    played = [one for one in plays_of(subject, data, seeds_of(question.seed + 5, many)) if isinstance(one, Played)]
    columns = Columns.of(played)
    if not played or len(columns.records) != len(finite):
        return np.zeros((0, 0))
    found = columns.matrix(played)[:, finite]
    return found[np.isfinite(found).all(1)]


def _play_pair(subject: Subject, pair: Pair, seeds: Sequence[int], found: Replay) -> tuple[Two, Bools] | None:
    """The plays, and which of their columns are finite and kept. None where there is nothing to compare, which is then
    a finding.
    """
    left, right = (list(plays_of(subject, data, seeds)) for data in (pair.left, pair.right))
    raised = [[isinstance(play, Exception) for play in side] for side in (left, right)]
    if any(map(any, raised)):
        error = next(play for play in (*left, *right) if isinstance(play, Exception))
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        both = "" if raised[0] == raised[1] else " with one of two neighbouring inputs and not with the other"
        remedy = "Release something of the same form whatever the data are." if both else ""
        found.says("raises", "doubt", f"With {pair.name}, the target raises an error{both} ({words}).", remedy)
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
        found.says(
            "not-finite", "doubt", f"With {pair.name}, what leaves holds numbers that are infinite or NaN.",
            "Clip in a way that holds for every update, also for one that is very long.",
        )  # fmt: skip
    two = Two(pair.name, matrices[0], matrices[1], columns.records, found.repeatable)
    return two.only(finite), finite


def _ragged(pair: Pair, plays: Sequence[Sequence[Played]], names: Sequence[str], found: Replay) -> None:
    """Records whose length changes: with the data alone it is a leak."""
    sizes = [[tuple(one.numbers[n].size if n in one.numbers else -1 for n in names) for one in side] for side in plays]
    if all(len(set(side)) == 1 for side in sizes) and sizes[0][0] != sizes[1][0]:
        found.says(
            "form-depends-on-data", "fault",
            f"With {pair.name}, other numbers leave: the length or the names of what is sent depend on the data, "
            "without noise.",
            "Send the same names and lengths whatever the data are.",
        )  # fmt: skip
    else:
        found.says(
            "other-shapes", "doubt",
            "What leaves has another shape in each call: those numbers could not be compared, and are not judged.",
            "Check a function that releases a fixed form, or pad what it releases.",
        )  # fmt: skip


def _judge(subject: Subject, question: Question, pair: Pair, two: Two, found: Replay, budget: Budget) -> None:
    """All checks of one pair."""
    numbers = ~two.words
    moved = bare(two)
    form = moved & two.words
    if form.any():
        what = "names, lengths or types" if str(two.records[form][0]).startswith("form.") else "a text"
        found.says(
            "form-depends-on-data", "fault",
            f"With {pair.name}, {what} of what is sent changes with the data, and nothing random hides it.",
            "Send the same names, lengths and texts whatever the data are.",
        )  # fmt: skip
    moved &= numbers
    if moved.any():
        _bare(subject, question, pair, two, moved, found, budget)
    gone = vanishing(two)
    if gone.any():
        found.says(
            "noise-depends-on-data", "fault",
            f"With {pair.name}, {_some(two, gone)} varied from call to call with one input and never with the other: "
            "the noise depends on the data, and tells them apart.",
            "Draw noise of a scale that is fixed before the data are seen.",
        )  # fmt: skip
    where, ratio = scale_ratio(two)
    if ratio > least_ratio(len(two.left)):
        found.says(
            "noise-depends-on-data", "fault" if ratio > VERY_OTHER_SCALE else "doubt",
            f"With {pair.name}, the noise of {where} is {ratio:.3g} times as large with one input as with the other: "
            "its scale depends on the data, or it is added before the update is clipped.",
            "Clip first, then add noise of a scale that is fixed before the data are seen.",
        )  # fmt: skip
    repeated = repeated_rows(two.left[:, two.varying]) if two.varying.sum() > 1 else 0
    if repeated:
        found.says(
            "noise-repeats", "fault",
            f"Of {len(two.left)} calls with other seeds, {repeated} pairs had exactly the same noise.",
            "Seed the generator once, with at least 128 bits of the operating system's randomness.",
        )  # fmt: skip
    finer, grid = remainders(two)
    if finer.any():
        found.says(
            "noise-on-a-grid", "fault",
            f"With {pair.name}, {_some(two, finer)} have noise in multiples of {grid:.3g}, and data that are none: "
            "what is finer than this grid leaves without noise, and moved with the data; epsilon is infinite.",
            "Round what is released after the noise is added, or draw noise of the same precision as the data.",
        )  # fmt: skip
    _shared(pair, two, found)


def _bare(
    subject: Subject, question: Question, pair: Pair, two: Two, moved: np.ndarray, found: Replay, budget: Budget
) -> None:
    numbers = ~two.words
    if few_values(two, moved):
        _symbols(subject, question, pair, two, moved, found, budget)
        return
    if not (numbers & ~two.fixed_left).any() and not (numbers & ~two.fixed_right).any():
        found.says(
            "no-randomness", "fault",
            f"Nothing that leaves is random: {len(two.left)} calls with other seeds gave the same numbers, and with "
            f"{pair.name} they are others. Anybody who sees them can compute what came in; epsilon is infinite.",
            "Add noise after clipping, from a generator that is not seeded with a constant or with the data.",
        )  # fmt: skip
        return
    counts = np.array([str(record).rpartition(".")[2].startswith(COUNTS) for record in two.records])
    counts &= subject.counts_differ and pair.unit != "example"
    if (moved & counts).any():
        of_clients = question.claim is not None and question.claim.unit == "client"
        words = (
            "the claim is about two clients' whole data, and it tells them apart; epsilon is infinite."
            if of_clients
            else "where neighbours differ in their number of examples, it tells them apart."
        )
        found.says(
            "count-without-noise", "fault" if of_clients else "doubt",
            f"With {pair.name}, a count of examples leaves without noise: {words}",
            "Send a public constant, or count its noise in the claim.",
        )  # fmt: skip
    if (moved & ~counts).any():
        found.says(
            "number-without-noise", "fault",
            f"With {pair.name}, {_some(two, moved & ~counts)} moved with the data and never changed in "
            f"{len(two.left)} calls with other seeds: it leaves without noise; epsilon is infinite.",
            "Add noise to every number that leaves, or do not send it.",
        )  # fmt: skip


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
    found.says(
        "number-without-noise", "fault" if certain or (claimed is None and count >= MORE_PLAYS and alone) else "doubt",
        f"With {pair.name}, {int(fixed.sum())} of the numbers moved with the data and never changed in {count:,} "
        f"calls: a randomised number would have an epsilon of at least {least:.3g}.",
        "Randomise every number that leaves.",
    )  # fmt: skip


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
    found.says(
        "shared-noise", "fault",
        f"With {pair.name}, {words}, and it moves with the data: what is left of their difference or sum has no "
        "noise; epsilon is infinite.",
        "Draw noise of its own for every number.",
    )  # fmt: skip


def _distance(
    subject: Subject, question: Question, pair: Pair, two: Two, finite: Bools, found: Replay, budget: Budget
) -> None:
    seen = distance_of(two, partial(_more, subject, pair.left, finite, question), budget)
    if seen.law is not None:
        before = found.distances.get(pair.name, seen)
        found.distances[pair.name] = max(before, seen, key=lambda one: one.pure if one.law == "Laplace" else one.size)
    elif seen.size > NO_PROTECTION and not found_fault(found):
        _unprotected(pair.name, seen.size, found)


def against_claim(subject: Subject, found: Replay, question: Question, calls: int) -> None:
    """Epsilon of the largest distance, of so many calls with noise of their own; a fault where it is more than claimed.
    A claim about one unit and none is compared with two units, too: twice.
    """
    if not found.distances:
        return
    claim = question.claim
    name, largest = max(found.distances.items(), key=lambda one: one[1].size)
    if largest.law == "Gaussian":
        found.epsilon = largest.epsilon(question.at_delta)
    if largest.size > NO_PROTECTION and not found_fault(found):
        _unprotected(name, largest.size, found)
    if claim is None or not math.isfinite(claim.epsilon):
        return
    of = "one call" if calls == 1 else f"{calls} calls"
    for held, severity, why in (
        (claim, "fault", ""),
        (doubled(claim), "fault", " twice, as two steps of one unit against none"),
        (claim, "doubt", " (the claim may be about one update against none, where less moves)"),
    )[: 2 if claim.adjacency else 3]:
        pairs = {pair.name for pair in subject.pairs if severity == "doubt" or held.covers(pair)}
        seen = {pair: one for pair, one in found.distances.items() if pair in pairs}
        if not seen:
            continue
        name, worst = max(seen.items(), key=lambda one: one[1].epsilon(held.delta, calls, least=True))
        least = worst.epsilon(held.delta, calls, least=True)
        if least > held.epsilon * (1 + 1e-3):
            found.says(
                "moves-more-than-claimed", severity,
                f"With {name}, the data move what leaves by {worst.size:.3g} standard deviations of its {worst.law} "
                f"noise: an epsilon of {worst.epsilon(held.delta, calls):.3g} (at least {least:.3g}) at delta "
                f"{held.delta:.3g} for {of}, where {claim.epsilon:g} is claimed{why}.",
                "Scale the noise to what one client or example can change (in L2 norm for Gaussian noise, in L1 for "
                "Laplace), under the adjacency of the claim.",
            )  # fmt: skip
            return


def _unprotected(name: str, distance: float, found: Replay) -> None:
    found.says(
        "moves-beyond-noise", "fault",
        f"With {name}, the data move what leaves by {distance:.3g} standard deviations of its noise: nothing is "
        "protected.",
        "Clip what one client or example contributes, and scale the noise to it.",
    )  # fmt: skip


def found_fault(found: Replay) -> bool:
    return any(finding.severity == "fault" for finding in found.findings)


def _some(two: Two, columns: np.ndarray) -> str:
    """The records of these columns, in words."""
    names = [str(name) for name in dict.fromkeys(two.records[columns]) if not is_word(str(name))]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    count = int(columns.sum())
    return f"{count} number{'s' if count > 1 else ''} ({shown})"
