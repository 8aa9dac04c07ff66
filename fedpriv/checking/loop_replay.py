"""A training loop executed again on neighbouring data, made to release the same noisy sums: the layer *replayed*.

A private loop's outputs are functions of its noisy sums. So a second execution, on data that differ in one example, is
made to take over the first one's noisy sums step by step (a `Tape`). Then
- before noise, the sums of both executions at the same parameters differ by what one example moves them;
- everything after noise must be equal: gradients that optimisers get, clip norms, noise levels, the model with its
  buffers, and whatever the loop returns. What differs left without noise.
Nothing here looks at names. Where a loop draws random numbers in its forward pass (dropout), an example more or less
shifts these draws: then only executions with as many examples are compared before noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.checking.findings import Finding, Severity
from fedpriv.checking.loop_data import Altered
from fedpriv.checking.loop_record import LoopRecord, Numbers, Step
from fedpriv.checking.loop_recorder import Limits, Recorder, Tape

#: Steps of each execution at most, and numbers on a tape at most.
MOST_STEPS, MOST_NUMBERS = 12, 30_000_000
#: Seconds of one execution.
SECONDS = 6.0
#: Clipped sums are float32 sums of batches: so far they may exceed the clip norm, relatively.
ROUNDING = 2e-3
#: Equal executions are equal to the bit on one machine; this is for libraries that are not.
EQUAL = 1e-6


@dataclass(frozen=True)
class Change:
    """How an execution's data differ from those that the loop has: example ``place`` of its training data.

    sign: 1 or -1, two extreme examples; 0: as it is. present: it is in every batch, in none, or where the sampler puts
    it (None).
    """

    place: int
    sign: int = 0
    present: bool | None = None


#: Executes a fresh instance of the loop: recorder in, record out. The change is applied to data that are passed in.
Execute = Callable[[Recorder, Change | None, int | None], LoopRecord]


@dataclass
class Replay:
    """A loop, and its first execution."""

    execute: Execute
    base: LoopRecord
    seed: int = 0

    def __post_init__(self) -> None:
        self.training = frozenset(lot.source.data_set for step in self.base.steps for lot in step.lots)
        seen = Counter(place for step in self.base.steps for lot in step.lots for place in (lot.indices or ())[:1])
        self.place = min(seen, default=0)
        self.size = max((step.applied.size for step in self.base.steps if step.applied is not None), default=0)

    @property
    def limits(self) -> Limits:
        steps = max(1, len(self.base.steps))
        affordable = int(SECONDS / 2 / max(self.base.seconds / steps, 1e-4))
        held = int(MOST_NUMBERS / max(1, self.size))
        return Limits(max(1, min(MOST_STEPS, steps, affordable, held)), SECONDS)

    def run(self, change: Change | None, tape: Tape | None, seed: int | None, steps: int | None = None) -> LoopRecord:
        """One execution. With a tape, generators are seeded anew after each step."""
        altered = Altered(change.place, change.sign) if change is not None and change.sign else None
        present = None if change is None else change.present
        recorder = Recorder(
            self.limits if steps is None else Limits(steps, SECONDS),
            tape,
            always=change.place if change is not None and present is True else None,
            never=change.place if change is not None and present is False else None,
            altered=altered,
            training=self.training,
            resync=seed if tape is not None else None,
        )
        try:
            return self.execute(recorder, change, seed)
        finally:
            if altered is not None:
                altered.restore()

    def findings(self) -> tuple[list[Finding], list[str]]:
        """What the executions show, and in words what they could not show."""
        found: list[Finding] = []
        limits: list[str] = []
        tape = Tape()
        left = self.run(Change(self.place, 1, True), tape, self.seed)
        tape.playing = True
        pairs = {
            "removed": (1.0, self.run(Change(self.place, 1, False), tape, self.seed)),
            "replaced": (2.0, self.run(Change(self.place, -1, True), tape, self.seed)),
        }
        for name, (norms, right) in pairs.items():
            random = any(step.forward_is_random for step in left.steps)
            if name == "removed" and random:
                limits.append(
                    "the forward pass draws random numbers: only examples replaced, not removed, are "
                    "compared before noise, up to twice the clip norm"
                )
            else:
                found += _moved(left, right, norms, name)
            found += _after_noise(left, right, name)
        found += self._constant_noise()
        if left.cut:
            limits.append(f"replayed for {len(left.steps)} of {len(self.base.steps)} recorded steps")
        return _each_once(found), limits

    def _constant_noise(self) -> Iterator[Finding]:
        """The same noise though the process's generators were seeded otherwise."""
        steps = min(3, self.limits.steps)
        first, second = (self.run(None, None, self.seed + other, steps) for other in (101, 202))
        same = [
            a
            for a, b in zip(first.private_steps, second.private_steps, strict=False)
            if a.moved is not None
            and b.moved is not None
            and a.std > 0
            and a.moved.shape == b.moved.shape
            and np.abs(a.moved - b.moved).max(initial=0.0) < 1e-3 * a.std
        ]
        if same:
            yield replayed(
                "noise-is-constant",
                "fault",
                "two executions from different seeds add the same noise: the loop seeds its generator with a constant, "
                "so whoever knows the code can take the noise off; epsilon is infinite",
                "leave the noise's generator unseeded; secure_mode=True where the model leaves",
            )


def _apart(left: LoopRecord, right: LoopRecord) -> int:
    """The first noisy step after which parameters, clip norm or noise level differ, so that later steps say nothing."""
    for number, (a, b) in enumerate(zip(left.private_steps, right.private_steps, strict=False)):
        settings = [np.array([one.std, one.clip, one.noise_clip]) for one in (a, b)]
        if not same(*settings):
            return number - 1
        if a.applied is not None and b.applied is not None and not same(a.applied, b.applied):
            return number
    return max(len(left.private_steps), len(right.private_steps))


def replayed(name: str, severity: Severity, text: str, remedy: str = "") -> Finding:
    return Finding("replayed", name, severity, text, remedy)


def _each_once(found: list[Finding]) -> list[Finding]:
    """The first finding of each name."""
    return list({finding.name: finding for finding in reversed(found)}.values())[::-1]


# --- before noise ------------------------------------------------------------------------------------------------


def _moved(left: LoopRecord, right: LoopRecord, norms: float, name: str) -> Iterator[Finding]:
    """How far one example moves the sum before noise, in clip norms that the noise is for."""
    worst, at = 0.0, 0
    apart = _apart(left, right)
    for number, (a, b) in enumerate(zip(left.private_steps, right.private_steps, strict=False)):
        if number > apart:
            break
        if a.clean is None or b.clean is None or a.clean.shape != b.clean.shape or not a.noise_clip:
            continue
        distance = float(np.linalg.norm(a.clean - b.clean)) / a.noise_clip
        rounding = ROUNDING + 1e-6 * float(np.linalg.norm(a.clean)) / a.noise_clip
        if not math.isfinite(distance):
            distance = math.inf
        if distance > norms + rounding and distance > worst:
            worst, at = distance, number
    if worst:
        yield replayed(
            "example-not-clipped",
            "fault",
            f"one example {name} moves the sum before noise by {worst:.4g} clip norms in step {at + 1} (at most "
            f"{norms:g} if its gradient is clipped to the norm that the noise is for)",
            "clip each example's gradient over all parameters to max_grad_norm",
        )


# --- after noise -------------------------------------------------------------------------------------------------


def _after_noise(left: LoopRecord, right: LoopRecord, name: str) -> Iterator[Finding]:
    """What differs though the noisy sums are the same."""
    ended = left.cut, right.cut
    apart = _apart(left, right) < min(len(left.private_steps), len(right.private_steps))
    if len(left.steps) != len(right.steps):
        yield replayed(
            "steps-depend-on-data",
            "fault",
            f"with the same noisy sums, and one example {name}, the loop takes {len(left.steps)} and "
            f"{len(right.steps)} steps",
            "fix the number of steps, and decide on nothing that was measured on the data without noise",
        )
    for number, (a, b) in enumerate(zip(left.steps, right.steps, strict=False)):
        yield from _step(a, b, number, name)
    if not apart and ended[0] == ended[1] and left.returned is not None and right.returned is not None:
        ours, theirs = numbers_of(left.returned), numbers_of(right.returned)
        different = [key for key in ours if key not in theirs or not same(ours[key], theirs[key])]
        different += [key for key in theirs if key not in ours]
        if different:
            yield replayed(
                "returned-without-noise",
                "fault",
                f"with the same noisy sums, one example {name} changes what the loop returns, which has no noise: "
                f"{_words(different, ours, theirs)}; epsilon is infinite",
                "measure on public or held-out data, or release the number with noise of its own",
            )
    if not apart:
        yield from _models(left, right, name)


def _step(a: Step, b: Step, number: int, name: str) -> Iterator[Finding]:
    if a.private != b.private:
        yield replayed(
            "noise-depends-on-data",
            "fault",
            f"with one example {name}, step {number + 1} has noise in one execution and none in the other",
        )
        return
    if a.applied is not None and b.applied is not None and not same(a.applied, b.applied):
        if a.private:
            yield replayed(
                "gradient-changed-after-noise",
                "fault",
                f"step {number + 1}: with the same noisy sum, one example {name} changes the gradient that the "
                f"optimiser gets, by {_norm(a.applied, b.applied):.3g}: something of the data enters after noise; "
                f"epsilon is infinite",
                "derive everything after noise from the noisy sum and public constants",
            )
        else:
            yield replayed(
                "step-without-noise",
                "fault",
                f"step {number + 1} ({a.kind}) has no noise, and one example {name} changes its gradient by "
                f"{_norm(a.applied, b.applied):.3g}; epsilon is infinite",
                "step through the DPOptimizer alone",
            )
    if a.private and not same(np.array([a.std, a.clip]), np.array([b.std, b.clip])):
        yield replayed(
            "noise-depends-on-data",
            "fault",
            f"step {number + 1}: one example {name} changes noise level or clip norm ({a.std:.6g}, {a.clip:.6g} and "
            f"{b.std:.6g}, {b.clip:.6g}), which follow something without noise",
            "fix them before training, or let them follow noisy numbers alone",
        )


def _models(left: LoopRecord, right: LoopRecord, name: str) -> Iterator[Finding]:
    if left.cut != right.cut:
        return
    for a, b in zip(left.models, right.models, strict=False):
        ours, theirs = numbers_of(a), numbers_of(b)
        different = [key for key in ours if key in theirs and not same(ours[key], theirs[key])]
        if different:
            yield replayed(
                "model-without-noise",
                "fault",
                f"with the same noisy sums, one example {name} changes the model beside them: "
                f"{_words(different, ours, theirs)}; epsilon is infinite",
                "no running averages of batches (BatchNorm), and no change of parameters beside the DPOptimizer",
            )


def _words(different: list[str], ours: Mapping[str, Numbers], theirs: Mapping[str, Numbers]) -> str:
    key = different[0]
    more = f" and {len(different) - 1} more" if len(different) > 1 else ""
    if key in ours and key in theirs and ours[key].size == theirs[key].size == 1:
        return f"{key} ({ours[key].item():.6g} and {theirs[key].item():.6g}){more}"
    return f"{key}{more}"


def _norm(a: Numbers, b: Numbers) -> float:
    return float(np.linalg.norm(a - b)) if a.shape == b.shape else math.inf


def same(a: Numbers, b: Numbers) -> bool:
    """Equal but for the last bits."""
    if a.shape != b.shape:
        return False
    scale = max(float(np.abs(a[np.isfinite(a)]).max(initial=0.0)), 1e-12)
    return bool(np.allclose(a, b, rtol=0, atol=EQUAL * scale, equal_nan=True))


def numbers_of(value: Any, name: str = "returned", depth: int = 0) -> dict[str, Numbers]:
    """Every number in what a loop returns, by where it is: numbers, arrays, tensors, models, containers of these."""
    import torch

    if isinstance(value, bool | int | float | complex | np.number | np.bool_):
        number = complex(value)
        return {name: np.array([number.real, number.imag] if number.imag else [number.real])}
    if isinstance(value, torch.Tensor):
        return {name: value.detach().cpu().double().reshape(-1).numpy().copy()}
    if isinstance(value, np.ndarray):
        return {name: value.astype(np.float64).reshape(-1).copy()} if value.dtype.kind in "fiub" else {}
    if isinstance(value, torch.nn.Module):
        return _all(dict(value.state_dict().items()), name, depth)
    if depth > 6:
        return {}
    if isinstance(value, Mapping):
        return _all(value, name, depth)
    if isinstance(value, tuple | list):
        return _all(dict(enumerate(value)), name, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _all({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, name, depth)
    if isinstance(value, str) and depth:
        return {name: np.frombuffer(value.encode()[:4096], np.uint8).astype(np.float64)}
    return {}


def _all(parts: Mapping[Any, Any], name: str, depth: int) -> dict[str, Numbers]:
    found: dict[str, Numbers] = {}
    for key, part in parts.items():
        found |= numbers_of(part, f"{name}.{key}", depth + 1)
    return found
