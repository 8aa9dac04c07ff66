"""The layer *sampled*: the project's auditor (`fedpriv.privacy.auditor`) on the first pairs of a subject.

Each pair is a look; the error of the bounds is divided among the looks, which are fixed before anything is drawn. A
bound above the claim is a fault only if a second audit with draws of its own, wrong once in `SURE` checks at most,
shows it too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedpriv.attacks.trial_features import MOST_FEATURES, summarised
from fedpriv.checking.budget import Budget, stopwatch
from fedpriv.checking.findings import Finding
from fedpriv.checking.replay_numbers import repeated_rows
from fedpriv.checking.subject import Numbers, Pair, Question, Subject
from fedpriv.privacy.auditor import Audit, audit

#: Pairs that are audited, at most.
MOST_LOOKS = 6
#: With fewer trials nothing could be learned.
FEWEST_TRIALS = 400
#: Plays from which it is learned which numbers never change, and where to look among many.
PILOT = 512
#: One in so many sound targets is called faulty by sampling.
SURE = 1e5
#: Inputs that are told apart as well as so many trials can show are sampled again, more often; at most so often.
APART, MOST_TRIALS = 0.97, 400_000
#: A number beyond this counts as infinite.
LARGEST = 1e30


@dataclass
class Sampled:
    """audits: the bound of each pair, and the one of the largest. why_not: in words, where nothing was sampled."""

    audits: list[tuple[Pair, Audit]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    why_not: str | None = None

    @property
    def best(self) -> tuple[Pair, Audit] | None:
        return max(self.audits, key=lambda one: one[1].epsilon_lower, default=None)

    @property
    def attainable(self) -> float | None:
        """The largest bound that these trials could have shown."""
        return max((found.attainable for _, found in self.audits), default=None)


class _Features:
    """Trials [n, k] without the numbers that never changed in the pilot: how many of those do counts as one feature."""

    def __init__(self, pilots: list[Numbers]) -> None:
        both = np.concatenate(pilots)
        self.usual = both[0]
        self.kept = ~(both == self.usual).all(0)

    def __call__(self, values: Numbers) -> Numbers:
        changed = (values[:, ~self.kept] != self.usual[~self.kept]).sum(1)
        kept = values[:, self.kept]
        broken = (~np.isfinite(kept)).sum(1)
        whole = np.clip(np.nan_to_num(kept, nan=0.0, posinf=LARGEST, neginf=-LARGEST), -LARGEST, LARGEST)
        return np.column_stack([whole, changed, broken])


def sample(subject: Subject, question: Question, budget: Budget, faulty: bool = False) -> Sampled:
    """Audits the first pairs. What a target raises becomes `Sampled.why_not`. faulty: replays have found a fault, so
    that no further trials are needed to refute a claim.
    """
    found = Sampled()
    pairs = list(subject.pairs[:MOST_LOOKS])
    try:
        subject.trials(pairs[0].left, 2, question.seed)
        with stopwatch() as taken:
            subject.trials(pairs[0].left, 8, question.seed)
        one = max(taken[0] / 8, 1e-6)
        affordable = int(budget.left / one / (2.6 * len(pairs)))
        trials = min(question.trials, affordable)
        if trials < FEWEST_TRIALS:
            found.why_not = f"a call takes {one:.2g} s: too few trials for an audit in the time of the check"
            return found
        for number, pair in enumerate(pairs):
            if budget.left <= 0:
                break
            one_audit = _audit(subject, question, pair, trials, number, question.confidence, len(pairs))
            found.audits.append((pair, one_audit))
            if number == 0:
                _repeated(subject, question, pair, trials, found)
            limit = question.claim.epsilon if question.claim else math.inf
            apart = one_audit.epsilon_lower > APART * one_audit.attainable
            refuted = faulty or any(one.name == "claim-refuted" and one.severity == "fault" for one in found.findings)
            if not refuted and (one_audit.epsilon_lower > limit or (apart and math.isfinite(limit))):
                more = min(MOST_TRIALS, int(0.4 * budget.left / one / 2.6))
                _refute(subject, question, pair, max(trials, more) if apart else trials, number, found)
    except Exception as error:
        found.why_not = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return found


def sampler(subject: Subject, pair: Pair, seed: int) -> Callable[[bool, int, int], Numbers]:
    """(world, n, seed) -> features [n, f] of n independent calls with either input."""
    features = _Features([subject.trials(data, PILOT, seed + n) for n, data in enumerate((pair.left, pair.right))])

    def draw(world: bool, n: int, seed: int) -> Numbers:
        return features(subject.trials(pair.right if world else pair.left, n, seed))

    if int(features.kept.sum()) + 2 <= MOST_FEATURES:
        return draw
    pilot = [draw(world, PILOT, seed * 2 + world) for world in (False, True)]
    shortened: Any = summarised(draw, pilot, int(features.kept.sum()))
    return shortened  # type: ignore[no-any-return]


def _audit(
    subject: Subject, question: Question, pair: Pair, trials: int, number: int, confidence: float, looks: int
) -> Audit:
    seed = (question.seed * 1000 + number) * 2 + 1_000_003 * (confidence != question.confidence)
    return audit(
        sampler(subject, pair, seed),
        delta=question.at_delta,
        trials=trials,
        confidence=confidence,
        seed=seed,
        looks=looks,
    )


def _refute(subject: Subject, question: Question, pair: Pair, trials: int, number: int, found: Sampled) -> None:
    claim = question.claim
    assert claim is not None
    second = _audit(subject, question, pair, trials, number, 1 - 1 / SURE, 1)
    if second.epsilon_lower <= claim.epsilon:
        return
    covered = claim.covers(pair.adjacency)
    doubt = "" if covered else " (the claim may be about one update against none, which is told apart less well)"
    scope = "one call" if claim.scope == "call" else "one call of the run"
    found.findings.append(
        Finding(
            "sampled", "claim-refuted", "fault" if covered else "doubt",
            f"{pair.name[:1].upper()}{pair.name[1:]} were told apart better than the claim allows: {second.trials:,} "
            f"calls of each give an epsilon of at least {second.epsilon_lower:.3g} at delta {question.at_delta:g} for "
            f"{scope}, where {claim.epsilon:g} is claimed{doubt}. The bound is wrong once in {SURE:,.0f} such audits.",
            "Compare the noise with what one contribution can change; count every number that leaves.",
        )
    )  # fmt: skip


def _repeated(subject: Subject, question: Question, pair: Pair, trials: int, found: Sampled) -> None:
    """Noise from so few seeds that it comes again among the trials."""
    values = subject.trials(pair.left, trials, question.seed + 77)
    values = values[:, ~(values == values[0]).all(0)]
    repeated = repeated_rows(values[:, :64]) if values.shape[1] > 1 else 0
    if repeated:
        found.findings.append(
            Finding(
                "sampled", "noise-repeats", "fault",
                f"Among {trials:,} calls with the same data, {repeated:,} pairs released exactly the same numbers: the "
                "noise has few seeds, and can be guessed.",
                "Seed the generator once, with at least 128 bits of the operating system's randomness.",
            )
        )  # fmt: skip


def with_structure(found: Audit, faults: list[Finding]) -> Audit:
    """The audit with an infinite bound where a replay saw a number without noise."""
    reason = next((one.text for one in faults if "epsilon is infinite" in one.text and one.severity == "fault"), None)
    return found if reason is None else replace(found, epsilon_lower=math.inf, structural=reason)
