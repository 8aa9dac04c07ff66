"""Adapter of Opacus training loops: a function that trains, what `make_private` returns, or a DPOptimizer alone.

A function is called as it is: without arguments, or with data (`fedpriv.checking.loop_inputs` finds some it takes).
One call of the subject is one whole training. The loop is recorded once as it is, and a few times on neighbouring data.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedpriv.checking.findings import Finding
from fedpriv.checking.loop_canary import Canary, CanaryTrials, trials_of
from fedpriv.checking.loop_record import LoopRecord, Step
from fedpriv.checking.subject import Claim, Numbers, Pair, Played, Question, Recognised, Subject
from fedpriv.privacy.events import NoBound

#: Steps of one trial of the canary at most.
TRIAL_STEPS = 16
#: Claimed and verified figures come from different discretisations: so far below the claimed one counts as equal.
NUMERICAL = 0.02


@dataclass
class OpacusLoop(Subject):
    """record: of the first execution. trials_with: the canary's, or None."""

    kind: ClassVar[str] = "Opacus training loop"
    record: LoopRecord = field(default_factory=LoopRecord)
    trials_with: CanaryTrials | None = None

    def play(self, data: Any, seed: int | None, calls: int = 1) -> list[Played]:
        from fedpriv.checking.generators import seeded

        assert self.trials_with is not None and isinstance(data, Canary)
        with seeded(seed):
            rows = np.asarray(self.trials_with.rows(data.present, calls), dtype=np.float64)
        return [Played({"released": row}) for row in rows]

    def trials(self, data: Any, n: int, seed: int) -> Numbers:
        from fedpriv.checking.generators import seeded

        assert self.trials_with is not None and isinstance(data, Canary)
        with seeded(seed):
            return np.asarray(self.trials_with.rows(data.present, n), dtype=np.float64)


def recognises(target: Any, question: Question) -> Subject | None:
    """A subject, or None where nothing of the target is Opacus'. Raises `loop_inputs.LoopFailed` in its words."""
    if not _uses_opacus(target):
        return None
    from fedpriv.checking.loop_execution import executions_of

    loop = executions_of(target, question)
    if loop is None:
        return None
    return loop_subject(loop, question)


def _uses_opacus(target: Any) -> bool:
    """Whether a target, or the module that it is from, has an object or a name of Opacus."""
    if "torch" not in sys.modules:
        return False
    if not callable(target):
        return "opacus" in sys.modules and _holds_optimiser(target)
    code = getattr(getattr(target, "__func__", target), "__code__", None)
    if code is None:
        return "opacus" in sys.modules and _holds_optimiser(target)
    own = getattr(getattr(target, "__func__", target), "__globals__", {})
    return _names_opacus(code) or any(_of_opacus(value, 0) for name, value in own.items() if name[:2] != "__")


def _holds_optimiser(target: Any) -> bool:
    from opacus.optimizers import DPOptimizer

    parts = target.values() if isinstance(target, dict) else target if isinstance(target, list | tuple) else (target,)
    return any(isinstance(part, DPOptimizer) for part in parts)


def _names_opacus(code: Any) -> bool:
    if any(name == "opacus" or name.startswith("opacus.") for name in code.co_names):
        return True
    return any(_names_opacus(inner) for inner in code.co_consts if hasattr(inner, "co_names"))


def _of_opacus(value: Any, depth: int) -> bool:
    """Whether a global of a module is Opacus', or a function of a module whose globals are."""
    name = getattr(value, "__name__", "") if isinstance(value, type(sys)) else getattr(value, "__module__", None)
    if isinstance(name, str) and name.split(".")[0] == "opacus":
        return True
    if isinstance(name, str) and name.split(".")[0] in ("torch", "numpy", "fedpriv"):
        return False
    code = getattr(value, "__code__", None)
    if code is not None and _names_opacus(code):
        return True
    own = getattr(value, "__globals__", None)
    return depth < 1 and own is not None and any(_of_opacus(one, depth + 1) for one in list(own.values()))


# --- the subject ---------------------------------------------------------------------------------------------------


def loop_subject(loop: Any, question: Question) -> OpacusLoop:
    """From a loop's executions: what is recognised, what replays show, and trials of its canary."""
    from fedpriv.checking.loop_replay import Replay
    from fedpriv.checking.loop_workers import noise_of_workers

    record: LoopRecord = loop.first
    findings, limits = Replay(loop.execute, record, question.seed).findings() if record.steps else ([], [])
    steps = record.private_steps
    sources = [lot.source for step in steps for lot in step.lots]
    clip = steps[0].clip if steps and loop.ghost else None
    trials = trials_of(loop.optimisers, sources[0] if sources else None, min(len(steps), TRIAL_STEPS) or 1, clip)
    pairs = []
    if trials is not None and (not steps or max(step.rank for step in steps) == 0):
        pairs = [
            Pair(
                "an example whose gradient is one coordinate as long as any, in the data or not",
                Canary(True),
                Canary(False),
                "add-or-remove-one",
                "example",
            )
        ]
    if getattr(loop, "group", None) is not None and loop.group.asked:
        findings = [*findings, *noise_of_workers(loop.as_worker)]
        limits = ["of a distributed loop one worker alone was played; the others' data are as this one's", *limits]
    if record.cut:
        limits = [f"the loop was {record.cut}: what it does later is not seen", *limits]
    notes = [*findings, *(Finding("replayed", "not-shown", "note", text) for text in limits)]
    return OpacusLoop(
        name=f"an Opacus training loop of {len(record.steps):,} steps" if record.steps else "a DPOptimizer",
        pairs=pairs,
        recognised=recognised_of(record, question, loop.optimisers, leaks_of(findings)),
        claim=question.claim,
        observer="public",
        notes=notes,
        record=record,
        trials_with=trials,
    )


def leaks_of(findings: Sequence[Finding]) -> str | None:
    """Why a loop has no bound whatever its noisy steps cost: what replays show to leave beside them. None: nothing."""
    faults = [one.text for one in findings if one.severity == "fault"]
    return faults[0] if faults else None


def recognised_of(
    record: LoopRecord, question: Question, optimisers: Sequence[Any] = (), leak: str | None = None
) -> list[Recognised]:
    """One entry for a run whose steps are all alike; further ones for further kinds of steps. leak: it has no bound."""
    from fedpriv.checking.loop_events import cost_of, planned_events

    if not record.steps:
        return [_of_optimiser(optimiser) for optimiser in optimisers]
    cost = cost_of(record)
    claimed, delta, planned, words = _claimed(record, question)
    if leak is not None:
        cost = replace(cost, events=(NoBound(threat=cost.threat, reason=leak), *cost.events))
    events = cost.events
    if planned and planned > len(record.private_steps):
        events = planned_events(cost, max(1, len(record.private_steps)), planned)
    findings = list(_findings(record, events, cost.assumed, claimed, delta))
    findings += [Finding("recognised", "assumed", "doubt", text) for text in cost.assumed]
    first, *others = events or (None,)
    unbounded = first.why_unbounded() if first is not None else "no noisy step was seen"
    entries = [
        Recognised(
            words=_words(record, words),
            event=first,
            reason=unbounded,
            claimed=claimed,
            delta=delta,
            scope="call",
            calls=1,
            findings=findings,
        )
    ]
    return entries + [
        Recognised(words="further steps of the same training", event=event, reason=event.why_unbounded(), calls=1)
        for event in others
    ]


def _findings(
    record: LoopRecord, events: Sequence[Any], assumed: Sequence[str], claimed: float | None, delta: float
) -> list[Finding]:
    """The record's findings. Sampling that differs from the account is a doubt where the claim holds without it."""
    from fedpriv.checking.loop_findings import findings_of
    from fedpriv.privacy.composition import compose

    found = findings_of(record)
    if claimed is None or not events:
        return found
    verified = compose(events, delta).epsilon
    if verified <= claimed + max(NUMERICAL, 0.01 * claimed):
        mild = ("fixed-batches-priced-as-poisson", "batches-summed-before-noise", "replacement-priced-as-poisson")
        found = [replace(one, severity="doubt") if one.name in mild else one for one in found]
        return found
    if math.isfinite(verified) and not any(one.severity == "fault" for one in found):
        text = f"the loop's accountant says epsilon {claimed:.4g} at delta {delta:g}; what ran costs {verified:.4g}"
        unknown = any(one.name == "sampler-not-known" for one in found)
        found.append(Finding("recognised", "claim-below-verified", "doubt" if unknown or assumed else "fault", text))
    return found


def _claimed(record: LoopRecord, question: Question) -> tuple[float | None, float, int | None, str]:
    """(epsilon, delta, steps that it is for if more than ran, who says so)."""
    targets = [engine for engine in record.engines if engine.target is not None]
    asked = [(answer, one) for one in record.accountants for answer in one.answers]
    delta = question.at_delta
    if asked:
        (last_delta, epsilon, _), one = max(asked, key=lambda pair: pair[0][2])
        return (
            epsilon,
            last_delta,
            None,
            f"its {one.kind} accountant says epsilon {epsilon:.4g} at delta {last_delta:g}",
        )
    if len(targets) == 1 and targets[0].target is not None and len(record.engines) == 1:
        epsilon, target_delta = targets[0].target
        planned = targets[0].epochs * targets[0].batches if targets[0].epochs and record.cut else None
        return epsilon, target_delta, planned, f"made for epsilon {epsilon:g} at delta {target_delta:g}"
    most = max(record.accountants, key=lambda one: one.steps, default=None)
    if most is None or not most.steps:
        return None, delta, None, "no accountant"
    try:
        epsilon = float(most.object.get_epsilon(delta))
    except Exception as error:  # an accountant out of its range
        return None, delta, None, f"its {most.kind} accountant gives no epsilon ({type(error).__name__})"
    return epsilon, delta, None, f"its {most.kind} accountant would say epsilon {epsilon:.4g} at delta {delta:g}"


def _words(record: LoopRecord, claim: str) -> str:
    steps = record.private_steps
    batches = "; ".join(dict.fromkeys(lot.source.words for step in steps for lot in step.lots)) or "batches not seen"
    if not steps:
        return f"an Opacus loop without a noisy step; {claim}"
    levels = sorted({(round(step.noise_multiplier, 6), round(step.clip, 6)) for step in steps})
    noise = ", ".join(f"noise multiplier {z:g} at clip norm {clip:g}" for z, clip in levels[:2])
    more = f" and {len(levels) - 2} more levels" if len(levels) > 2 else ""
    return f"{len(steps):,} noisy steps of an Opacus optimiser ({noise}{more}); {batches}; {claim}"


def _of_optimiser(optimiser: Any) -> Recognised:
    """A DPOptimizer alone: one step of it."""
    from fedpriv.checking.loop_events import OBSERVER, multiplier
    from fedpriv.checking.loop_objects import settings_of
    from fedpriv.privacy.events import Gaussian, Threat

    step = Step(private=True, optimiser=0, kind="", lots=(), **settings_of(optimiser))
    event = Gaussian(threat=Threat("example", "zero-out", OBSERVER), multiplier=multiplier(step))
    note = Finding(
        "recognised",
        "optimiser-alone",
        "note",
        "an optimiser alone shows neither sampling nor steps: the figure is of one step in which the example is",
    )
    words = f"an Opacus optimiser with noise multiplier {step.noise_multiplier:g} at clip norm {step.clip:g}"
    return Recognised(words=words, event=event, reason=event.why_unbounded(), findings=[note])


def claim_of(loop: OpacusLoop) -> Claim | None:
    """The claim that a loop itself makes."""
    entry = loop.recognised[0] if loop.recognised else None
    if entry is None or entry.claimed is None or entry.delta is None:
        return None
    return Claim(entry.claimed, entry.delta, entry.scope, "the loop's own accountant")
