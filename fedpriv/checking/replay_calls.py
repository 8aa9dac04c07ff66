"""What a replay sees of several calls, of the generators of the process, and of dishonest inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from fedpriv.checking.budget import Budget, stopwatch
from fedpriv.checking.columns import Columns, Two, atoms, constant, spread
from fedpriv.checking.findings import Finding
from fedpriv.checking.generators import Held, digest_of_states, seeded, seeds_of
from fedpriv.checking.replay_numbers import FLOAT32, VERY_OTHER_SCALE, bare, bare_direction, few_values, least_ratio
from fedpriv.checking.replay_repeats import shared_by_calls
from fedpriv.checking.subject import Numbers, Pair, Played, Probe, Question, Subject

#: Calls in a row that are looked at, and plays of such a row.
CALLS, ROWS = 12, 48
#: Plays of each length of a probe.
PROBE_PLAYS = 12
#: Seeds of plays of an input that holds what is no number.
BROKEN_SEEDS = tuple(range(21, 29))
GENERATORS = ("Python's", "NumPy's", "torch's")
FRESH = "Pass a generator of the mechanism's own, seeded from the operating system (secrets, torch.Generator)."


def calls_of(subject: Subject, question: Question, repeatable: bool, budget: Budget) -> list[Finding]:
    """Everything that is not about a single pair, as far as the budget goes."""
    found: list[Finding] = []
    steps: list[Callable[[], list[Finding]]] = [partial(generators, subject, repeatable)]
    lengths = [probe for probe in subject.probes if probe.kind == "length"]
    steps += [partial(length_probe, subject, probe, question, budget) for probe in lengths]
    steps += [partial(rows_of_calls, subject, question, repeatable, budget)]
    steps += [partial(step, subject, question, budget) for step in (shared_by_calls, memory)]
    steps += [partial(broken_probe, subject, probe) for probe in subject.probes if probe.kind == "broken"]
    for number, step in enumerate(steps):
        if budget.left <= 0:
            budget.cut.append(f"kinds of replays beyond pairs: {number} of {len(steps)}")
            break
        try:
            found += step()
        except NotImplementedError:
            continue
        except Exception as error:
            words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            found.append(
                Finding("replayed", "raises", "doubt", f"A replay ended with an error of the target: {words}.")
            )
    return found


# --- generators ---------------------------------------------------------------------------------------------------


def generators(subject: Subject, repeatable: bool) -> list[Finding]:
    """Whether the noise comes from a generator of the process, which anybody in it may seed."""
    data, found = subject.pairs[0].left, []
    if not repeatable:
        found.append(
            Finding(
                "replayed", "cannot-be-seeded", "note",
                "Equal seeds give other numbers: the target draws from the operating system's randomness, or from a "
                "generator that the check cannot reach. Replays compare laws, not single calls; sampling goes on.",
            )
        )  # fmt: skip
    with seeded(1):
        first, before = subject.play(data, None)[0].flat(), digest_of_states()
    with seeded(1):
        again = subject.play(data, None)[0].flat()
    with seeded(2):
        other, after = subject.play(data, None)[0].flat(), digest_of_states()
    same = first.shape == again.shape and np.array_equal(first, again, equal_nan=True)
    fixed = first.shape == other.shape and np.array_equal(first, other, equal_nan=True)
    if same and not fixed and not Held.found:  # a copy's own generator follows from the seed by the check's doing
        found.append(
            Finding(
                "replayed", "global-generator", "doubt",
                "All randomness comes from generators of the whole process: after `random.seed(1)`, "
                "`numpy.random.seed(1)` and `torch.manual_seed(1)` the noise is the same again. Whoever seeds them, as "
                "training code does for repeatable runs, knows the noise, and can take it away.",
                FRESH,
            )
        )  # fmt: skip
    reseeded = [name for name, one, two in zip(GENERATORS, before, after, strict=True) if one and one == two]
    if reseeded:
        found.append(
            Finding(
                "replayed", "seeds-global-generator", "doubt",
                f"A call leaves {' and '.join(reseeded)} global generator in one fixed state: it seeds it, and all "
                "later noise of the process repeats.",
                FRESH,
            )
        )  # fmt: skip
    return found


# --- lengths ------------------------------------------------------------------------------------------------------


def length_probe(subject: Subject, probe: Probe, question: Question, budget: Budget) -> list[Finding]:
    """Whether what leaves goes on moving, or its noise goes on growing, while an input grows."""
    with stopwatch() as taken:
        subject.play(probe.data[-1], 1)
    affordable = 0.3 * budget.left / max(taken[0], 1e-5) / len(probe.data)
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
        found.append(
            Finding(
                "replayed", "unbounded-sensitivity", "fault",
                f"With {probe.name}, of length {probe.lengths[-2]:g} and {probe.lengths[-1]:g}, {int(growing.sum())} "
                f"numbers that leave ({records[worst]} and others alike) still move, the one most by "
                f"{steps[-1, worst]:.3g}: nothing bounds what one contribution does; epsilon is infinite.",
                "Clip everything that a contribution moves, before noise is added. If inputs are clipped before they "
                "come here, say so to the check: bound=NORM.",
            )
        )  # fmt: skip
    scale = np.median(spreads, axis=1)
    if scale[0] > 0 and scale[-1] > 30 * scale[0] and scale[-1] > 10 * scale[-2]:
        found.append(
            Finding(
                "replayed", "noise-depends-on-data", "fault",
                f"With {probe.name}, the noise grows from {scale[0]:.3g} to {scale[-1]:.3g}.",
                "Clip first, then add noise of a scale that is fixed before the data are seen.",
            )
        )  # fmt: skip
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
            text = f"An update that holds NaN or infinity ends in {type(error).__name__}: its absence tells of it."
            found.append(Finding("replayed", "broken-number-raises", "note", text))
            continue
        whole = numbers[np.isfinite(numbers)]
        if np.abs(whole).max(initial=0.0) > 1e4 * max(usual, 1e-300):
            found.append(
                Finding(
                    "replayed", "broken-number-switches-off-clipping", "doubt",
                    f"An update with one number that is NaN or infinite leaves with numbers up to "
                    f"{np.abs(whole).max():.3g}, where a long honest one leaves with at most {usual:.3g}: the clipping "
                    "does not hold.",
                    "Replace an update that is not finite by zero before it is clipped.",
                )
            )  # fmt: skip
        elif len(whole) < len(numbers) and np.isfinite(honest).all():
            found.append(
                Finding(
                    "replayed", "broken-number-leaves", "doubt",
                    "An update that holds NaN or infinity leaves as NaN: that tells it from every other update.",
                    "Replace an update that is not finite by zero before it is clipped.",
                )
            )  # fmt: skip
    found += _broken_bare(subject, probe)
    return list({finding.name: finding for finding in reversed(found)}.values())


def _broken_bare(subject: Subject, probe: Probe) -> list[Finding]:
    """Finite numbers that leave without noise where another of the same update is none, and are other ones for other
    updates; honest updates leave with noise there.
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
            bare_ones = noisy & whole & (one == one[0]).all(0) & (other == other[0]).all(0) & (one[0] != other[0])
            if bare_ones.any():
                return [
                    Finding(
                        "replayed", "number-without-noise", "fault",
                        f"Of updates that hold NaN or infinity, {int(bare_ones.sum())} finite numbers leave without "
                        f"noise, equal under {len(BROKEN_SEEDS)} seeds and others for another update; epsilon is "
                        "infinite.",
                        "Replace an update that is not finite by zero, then clip it and add noise as to any other.",
                    )
                ]  # fmt: skip
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
    rows = budget.allowed(f"rows of {CALLS} calls", 0.4 * budget.left / max(taken[0] / 2, 1e-5) / (2 * CALLS), ROWS)
    if rows < 6:
        return []
    seeds = seeds_of(question.seed + 2, rows)
    sides = [[subject.play(data, seed, calls=CALLS) for seed in seeds] for data in (pair.left, pair.right)]
    columns = Columns.of([one for side in sides for row in side for one in row])
    calls = [
        Two(pair.name, one[0], one[1], columns.records, repeatable)
        for one in ([columns.matrix([row[call] for row in side]) for side in sides] for call in range(CALLS))
    ]
    return [*_missed(calls), *_less_noise(calls, question), *_same_noise(subject, pair, seeds, repeatable)]


def _less_noise(calls: Sequence[Two], question: Question) -> list[Finding]:
    """Whether later calls have less noise than the first, or noise that partly cancels over the calls."""
    columns = calls[0].varying & ~atoms(calls[0].left)
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
            Finding(
                "replayed", "noise-fades", "fault" if ratio > VERY_OTHER_SCALE else "doubt",
                f"Call {number} of an instance has {ratio:.3g} times less noise than the first: a cost per call does "
                "not hold for every call.",
                "Account for each call with the noise that it has.",
            )
        )  # fmt: skip
    deviations = noise.std(1)  # [calls, k]
    if not (deviations > 0).all():
        return found
    together = np.einsum("trk,urk->tu", noise / deviations[:, None], noise / deviations[:, None]) / noise[0].size
    lengths = moved / deviations
    try:
        joint = float(np.einsum("tk,tu,uk->", lengths, np.linalg.inv(together), lengths))
    except np.linalg.LinAlgError:
        return found
    alone = float((lengths**2).sum())
    size = noise[0].size  # of each call's noise; an inverse of T x T from that many is too long by 1 / (1 - T/size)
    if size > 20 * len(calls) and alone > 0 and joint > 2 * alone / (1 - len(calls) / size):
        per_call = claim is not None and claim.scope == "call"
        found.append(
            Finding(
                "replayed", "noise-cancels-between-calls", "fault" if per_call else "doubt",
                f"The noise of {len(calls)} calls is correlated: together they show {np.sqrt(joint / alone):.3g} times "
                "as much of the data, in standard deviations, as calls with noise of their own would.",
                "Draw new noise in every call, or account for the run as a whole (matrix mechanisms do).",
            )
        )  # fmt: skip
    return found


def _missed(calls: Sequence[Two]) -> list[Finding]:
    """Calls, other than the first, in which numbers that have noise otherwise have none."""
    ever = np.any([~call.fixed_left for call in calls], axis=0)
    for number, call in enumerate(calls, 1):
        missed = bare(call) & ever & ~call.words
        if missed.any() and not few_values(call, missed):
            return [
                Finding(
                    "replayed", "noise-misses-calls", "fault",
                    f"In call {number} of {len(calls)} of one instance, {int(missed.sum())} numbers left without "
                    "noise, which have noise in other calls; epsilon is infinite.",
                    "Add noise in every call.",
                )
            ]  # fmt: skip
    return []


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
    return [
        Finding(
            "replayed", "noise-repeats-between-calls", "doubt" if exact else "fault",
            "Two calls of one instance have the same noise, or noise that cancels: their difference or sum shows the "
            "data without any; epsilon is infinite.",
            "Draw new noise in every call; do not seed a generator anew for each.",
        )
    ]  # fmt: skip


def memory(subject: Subject, question: Question, budget: Budget) -> list[Finding]:
    """Whether a call tells something of the data of the call before it."""
    pair: Pair = subject.pairs[0]
    seeds = seeds_of(question.seed + 3, 32)
    plays: list[list[Any]] = [[], []]
    for number, earlier in enumerate((pair.left, pair.right)):
        for seed in seeds:
            if budget.left <= 0:
                budget.cut.append("a look at what one call tells of the one before: not made")
                return []
            plays[number].append(subject.series([earlier, pair.left], seed)[1])
    columns = Columns.of([*plays[0], *plays[1]])
    two = Two(pair.name, columns.matrix(plays[0]), columns.matrix(plays[1]), columns.records, True)
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
    return [
        Finding(
            "replayed", "state-crosses-calls", "note" if subject.stateful else "doubt",
            f"What the second call releases depends on the data of the first ({int(sure.sum())} numbers): an update "
            "that was paid for once is used again.",
            "Account for a run as a whole, or forget the data of a call at its end.",
        )
    ]  # fmt: skip
