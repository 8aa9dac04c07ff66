"""Adapter of Opacus training loops: a function that trains, alone or with data.

The loop is recorded once as it is (`fedpriv.checking.opacus_recorder`), and a few times on data that differ in one
example, made to release the same noisy sums: what differs then left without noise. Its steps are priced as they ran,
and compared with what its accountant says. One call of the subject is one whole training of a canary: one example's
worst gradient, put through the loop's own optimiser and sampling.

**Events.** Unit: one example. Every noisy step t releases S_t + N(0, s_t^2 I), where S_t is the sum of the clipped
gradients (each no longer than C_t) of its batches, at parameters that are a function of earlier releases. z_t = s_t /
C_t. Who sees all of these sees all models, which are functions of them.

**Poisson** (each example by a coin q of its own, at each step anew). One example more or less adds a vector of length
at most C_t with probability q: a Poisson-sampled Gaussian of multiplier z_t, composed adaptively over steps
(add-or-remove-one).

**Several draws in one step** (k batches summed before noise is added). The sum of k independent releases, each with
noise of variance s_t^2 / k, has the law of the release; so it is a function of them and costs no more: k events of
multiplier z_t / sqrt(k). One event of rate k q is no bound: an example can be in several of the batches and move the
sum by k C_t.

**Each example at most once in a pass** (fixed batches, shuffled or not). Given the order of a pass, which does not
depend on values, an example is in one batch of it. Releases before that batch have the same law with and without the
example (put in, or contributing zero: zero-out); its own is a Gaussian of multiplier z_t; later ones are functions of
what was released and of data that are the same. So a pass costs one Gaussian, unsampled, of its smallest z_t; a
mixture over orders costs no more (delta is jointly convex in the two laws). A step that sums k batches counts z_t /
sqrt(k) for each, as above: an example may be in batches of several passes. Under add-or-remove-one there is no such
bound: removing an example moves others into other batches. Zero-out stands for it; a Poisson sample has both.

**Any other sampler**: no coins are credited. Where its law says how often an example is in one batch at most (m: B
with replacement), it moves the sum by up to m C_t: a Gaussian of multiplier z_t / m at every step. Where nothing says
so, m is the largest that was recorded, and that it is never exceeded is assumed.

Where the noise that was added is measurably smaller than the optimiser is set to, its measured deviation counts.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedpriv.checking.findings import Finding, finding
from fedpriv.checking.functions import WANTED, NotTaken, forms, ordinary
from fedpriv.checking.generators import Memory, seeded
from fedpriv.checking.opacus_recorder import Change, LoopRecord, Recorder, Source, Step, recording, with_example
from fedpriv.checking.reading import Numbers, Played, played
from fedpriv.checking.subject import Pair, Question, Recognised, Subject
from fedpriv.privacy.composition import compose
from fedpriv.privacy.events import Event, Gaussian, NoBound, PoissonGaussian, Threat

#: Seconds of the first execution; of each other one, and its steps and the numbers on a tape at most.
FIRST_SECONDS, SECONDS, MOST_STEPS, MOST_NUMBERS = 8.0, 6.0, 12, 30_000_000
#: Examples of data that are made up, and numbers of a row that are tried.
EXAMPLES, ROW_LENGTHS = 128, (16, 4, 8, 32)
#: Clipped sums are float32 sums of batches: so far they may exceed the clip norm, relatively. Equal executions are
#: equal to the bit on one machine; `EQUAL` is for libraries that are not.
ROUNDING, EQUAL = 2e-3, 1e-6
#: Below this the measured noise is smaller than set: in standard errors of a variance.
FAR_BELOW = 6.0
#: Claimed and verified figures come from different discretisations: so far below the claimed one counts as equal.
NUMERICAL = 0.02
#: Steps of one trial of the canary; trials made in one call; single ones against which that is tried; clip norms that
#: the canary's gradient is long.
TRIAL_STEPS, TOGETHER, SINGLE, LONG = 16, 256, 400, 1e3
COUNTED = (
    "the clip norm follows the share of gradients that are not clipped, in which the number of examples drawn is "
    "without noise"
)


@dataclass
class OpacusLoop(Subject):
    """record: of the first execution. canary: its trials, or None. Data of a play: whether the canary is there."""

    kind: ClassVar[str] = "Opacus training loop"
    record: LoopRecord = field(default_factory=LoopRecord)
    canary: Canary | None = None

    def play(self, data: Any, seed: int | None, calls: int = 1) -> list[Played]:
        assert self.canary is not None
        with seeded(seed):
            return [Played({"released": row}) for row in self.canary.rows(data, calls)]

    def trials(self, data: Any, n: int, seed: int) -> Numbers:
        assert self.canary is not None
        with seeded(seed):
            return self.canary.rows(data, n)


def recognises(target: Any, question: Question) -> Subject | None:
    """A subject, or None where no DPOptimizer with noise steps while the target runs, or another optimiser steps with
    what may be noise of the loop's own. Raises `NotTaken` in the loop's words.
    """
    if question.form not in (None, "data") or not inspect.isroutine(target):
        return None
    loop = _Loop(target)
    record = loop.first(question.seed)
    if record is None or not record.noisy:
        return None
    if loop.takes_data and (not any(step.std > 0 for step in record.noisy) or _own_noise(loop, record, question.seed)):
        return None
    findings, compared = _replay(loop, record, question.seed)
    leak = next((one.text for one in findings), None)
    findings += _not_shown(record, compared, loop.takes_data)
    sources = list(dict.fromkeys(lot.source for step in record.noisy for lot in step.lots))
    canary = _canary_of(record, sources)
    name = "an example whose gradient is one coordinate as long as any, in the data or not"
    return OpacusLoop(
        name=f"an Opacus training loop of {len(record.steps):,} steps",
        pairs=[] if canary is None else [Pair(name, True, False, "add-or-remove-one", "example")],
        recognised=recognised_of(record, question, sources, leak),
        claim=question.claim,
        observer="public",
        notes=findings,
        record=record,
        canary=canary,
    )


def _not_shown(record: LoopRecord, compared: int, takes_data: bool) -> Iterator[Finding]:
    """compared: steps of the executions on neighbouring data."""
    words = [f"The loop was {record.cut}: what it does later is not seen."] if record.cut else []
    if compared < len(record.steps):
        words.append(
            f"On neighbouring data {compared:,} of its {len(record.steps):,} steps were looked at, and no later ones."
        )
    if not takes_data:
        words.append("What it computes of its data before the first batch (means, weights of classes) is not compared.")
    if words:
        yield finding("not-shown", text=" ".join(words))


# --- executions ----------------------------------------------------------------------------------------------------


class _Loop:
    """A function that trains. data: what it is called with."""

    def __init__(self, target: Any) -> None:
        self.target, self.memory, self.data = target, Memory(target), ()
        self.takes_data = any(one.kind in (0, 1) for one in inspect.signature(target).parameters.values())

    def run(self, recorder: Recorder, seed: int | None) -> LoopRecord:
        """One execution from the state in which the loop's module was. Raises what the loop raises."""
        self.memory.restore()
        try:
            with seeded(seed), recording(recorder) as record:
                record.returned = played("returned", self.target(*self.data), objects=False).numbers
        finally:
            self.memory.restore()
        return record

    def first(self, seed: int) -> LoopRecord | None:
        """The first execution, with the first data that the loop takes. None: it takes none of them."""
        parameters = inspect.signature(self.target).parameters.values()
        needed = sum(one.default is one.empty and one.kind in (0, 1) for one in parameters)
        lengths, errors = list(ROW_LENGTHS), list[Exception]()
        for length in lengths:
            made = [form.make(*ordinary(length, EXAMPLES)) for form in forms()] if needed else [()]
            for self.data in (one for one in made if len(one) == needed):
                try:
                    return self.run(Recorder(seconds=FIRST_SECONDS), seed)
                except Exception as error:
                    errors.append(error)
                    wanted = WANTED.search(str(error))
                    lengths += [int(wanted[1])] if wanted and int(wanted[1]) not in lengths else []
        if self.takes_data:
            return None
        text = " ".join(str(errors[0]).split())[:300]
        raise NotTaken(f"the loop ended with {type(errors[0]).__name__}: {text}") from errors[0]


# --- replayed --------------------------------------------------------------------------------------------------------


def _replay(loop: _Loop, base: LoopRecord, seed: int) -> tuple[list[Finding], int]:
    """Executions on neighbouring data that release the same noisy sums. Before noise, sums at the same parameters
    differ by what one example moves them; everything after noise must be equal. Where a loop draws random numbers in
    its forward pass (dropout), an example more or less shifts these draws: only replaced ones are compared then.
    """
    training = frozenset(lot.source.data_set for step in base.steps for lot in step.lots)
    place = min((lot.indices[0] for step in base.steps for lot in step.lots if lot.indices), default=0)
    size = max(step.applied.size for step in base.steps)
    affordable = int(SECONDS / 2 / max(base.seconds / len(base.steps), 1e-4))
    steps = max(1, min(MOST_STEPS, len(base.steps), affordable, int(MOST_NUMBERS / max(1, size))))
    tape: list[list[Any]] = []

    def run(signs: tuple[int, int], present: bool, playing: bool) -> LoopRecord:
        change = Change(place, signs, present)
        return loop.run(Recorder(steps, SECONDS, tape, playing, change, training, seed), seed)

    left = run((1, 1), True, False)
    found: list[Finding] = []
    for words, norms, signs in (("removed", 1, (1, 1)), ("replaced", 2, (-1, -1)), ("replaced", 2, (1, -1))):
        right = run(signs, norms == 2, True)
        if norms == 2 or not any(step.random_forward for step in left.steps):
            found += _not_clipped(left, right, norms, words)
        found += _beside_noise(left, right, words)
    found += _before_batches(loop, left, lambda: run((1, 1), True, True), (place + 1) % EXAMPLES)
    plain = [loop.run(Recorder(min(3, steps), SECONDS), seed + other).noisy for other in (101, 202)]
    if any(_same_noise(a, b) for a, b in zip(*plain, strict=False)):
        found.append(finding("noise-repeats:loop"))
    return list({one.name: one for one in reversed(found)}.values())[::-1], steps


def _before_batches(loop: _Loop, left: LoopRecord, run: Callable[[], LoopRecord], row: int) -> list[Finding]:
    """Of a loop that takes data, another ``row`` of which is an extreme one before the loop begins: what it computes of
    all rows (means, weights of classes) must not leave beside the noisy sums.
    """
    if not loop.takes_data:
        return []
    given, loop.data = loop.data, with_example(loop.data, row, (-1, -1))
    try:
        return list(_beside_noise(left, run(), "replaced"))
    except Exception:  # of foreign code, which may refuse such a row
        return []
    finally:
        loop.data = given


def _own_noise(loop: _Loop, base: LoopRecord, seed: int) -> bool:
    """Whether the first step of another optimiser has another gradient where only what is drawn after its backward pass
    is drawn from other seeds: it may have the loop's own noise, which the replay of what leaves judges.
    """
    place = next((number for number, step in enumerate(base.steps) if not step.private), None)
    if place is None:
        return False
    runs = [loop.run(Recorder(place + 1, SECONDS, redraw=(place, other)), seed).steps for other in (1, 2)]
    return all(len(one) > place for one in runs) and not _same(*(one[place].applied for one in runs))


def _same_noise(one: Step, other: Step) -> bool:
    if one.moved is None or other.moved is None or not one.std or one.moved.shape != other.moved.shape:
        return False
    return bool(np.abs(one.moved - other.moved).max(initial=0.0) < 1e-3 * one.std)


def _apart(left: LoopRecord, right: LoopRecord) -> int:
    """The first noisy step after which parameters, clip norm or noise differ, so that later steps say nothing."""
    for number, (a, b) in enumerate(zip(left.noisy, right.noisy, strict=False)):
        if not _same(_settings(a), _settings(b)):
            return number - 1
        if not _same(a.applied, b.applied):
            return number
    return max(len(left.noisy), len(right.noisy))


def _settings(step: Step) -> Numbers:
    return np.array([step.std, step.clip, step.noise_clip])


def _not_clipped(left: LoopRecord, right: LoopRecord, norms: int, words: str) -> Iterator[Finding]:
    """How far one example moves the sum before noise, in clip norms that the noise is for."""
    worst = 0.0
    for a, b in list(zip(left.noisy, right.noisy, strict=False))[: _apart(left, right) + 1]:
        if a.clean is not None and b.clean is not None and a.clean.shape == b.clean.shape and a.noise_clip:
            distance = float(np.linalg.norm(a.clean - b.clean)) / a.noise_clip
            rounding = ROUNDING + 1e-6 * float(np.linalg.norm(a.clean)) / a.noise_clip
            if not distance <= norms + rounding:
                worst = max(worst, distance if math.isfinite(distance) else math.inf)
    if worst:
        yield finding("unbounded-sensitivity:loop", change=words, worst=worst, norms=norms)


def _beside_noise(left: LoopRecord, right: LoopRecord, words: str) -> Iterator[Finding]:
    """What differs though the noisy sums are the same."""
    if len(left.steps) != len(right.steps):
        yield finding("form-depends-on-data:loop", change=words)
    bare = None
    for number, (a, b) in enumerate(zip(left.steps, right.steps, strict=False), 1):
        if a.private != b.private or (a.private and not _same(_settings(a), _settings(b))):
            yield finding("noise-depends-on-data:loop", change=words, step=number)
        elif bare is None and not _same(a.applied, b.applied):
            bare = f"the gradient that an optimiser gets in step {number}" + ("" if a.private else ", without noise")
    apart = _apart(left, right) < min(len(left.noisy), len(right.noisy))
    if bare is None and not apart and left.cut == right.cut:
        for what, ours, theirs in (("what the loop returns", left.returned, right.returned),
                                   ("the model beside its steps", left.model, right.model)):  # fmt: skip
            moved = [name for name in ours if name not in theirs or not _same(ours[name], theirs[name])]
            if bare is None and moved:
                bare = f"{what} ({moved[0]})"
    if bare is not None:
        yield finding("number-without-noise:loop", change=words, bare=bare)


def _same(a: Numbers, b: Numbers) -> bool:
    """Equal but for the last bits."""
    if a.shape != b.shape:
        return False
    scale = max(float(np.abs(a[np.isfinite(a)]).max(initial=0.0)), 1e-12)
    return bool(np.allclose(a, b, rtol=0, atol=EQUAL * scale, equal_nan=True))


# --- recognised ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunCost:
    """Events of a run, and what they rest on beside proofs, in words."""

    events: tuple[Event, ...]
    adjacency: str
    assumed: tuple[str, ...] = ()


def measured_share(record: LoopRecord) -> float:
    """Standard deviation of the noise that was added / that it is set to; 1 where it is not below beyond its error."""
    parts = [step.moved / step.std for step in record.noisy if step.moved is not None and step.std > 0]
    count = sum(part.size for part in parts)
    mean = sum(float(np.sum(np.square(part))) for part in parts) / max(1, count)
    return math.sqrt(mean) if count and mean < 1 - FAR_BELOW * math.sqrt(2 / count) else 1.0


def cost_of(record: LoopRecord) -> RunCost:
    """The events of a recorded loop's noisy steps."""
    lots = [lot for step in record.noisy for lot in step.lots]
    traced = bool(lots) and all(step.lots for step in record.noisy)
    poisson = traced and all(lot.source.kind == "poisson" for lot in lots)
    threat = Threat("example", "add-or-remove-one" if poisson else "zero-out", "public")
    events: Counter[Event] = Counter()
    passes: dict[int, float] = {}
    assumed: set[str] = set()
    share = measured_share(record)
    for step in record.noisy:
        z = share * step.std / step.clip if step.clip > 0 else math.inf
        if step.counted:
            events[NoBound(threat=threat, reason=COUNTED)] += 1
        elif not step.lots:
            assumed.add("which examples a step used could not be followed: no sampling is credited, and one example is "
                        "taken to be in a batch once")  # fmt: skip
            events[Gaussian(threat=threat, multiplier=z)] += 1
        else:
            draws = {(lot.source, lot.draw): lot for lot in step.lots}
            z /= math.sqrt(len(draws))
            for (source, _), lot in draws.items():
                if source.kind == "poisson":
                    event = PoissonGaussian(threat=threat, multiplier=z, sampling_rate=min(source.rate, 1.0))
                    events[event] += 1
                elif source.kind == "once":
                    passes[lot.run] = min(passes.get(lot.run, math.inf), z)
                else:
                    if source.most is None:
                        assumed.add("the sampler is the loop's own: no sampling is credited, and an example is taken "
                                    "to be in a batch no more often than recorded")  # fmt: skip
                    most = source.most or max(Counter(lot.indices or (0,)).values())
                    events[Gaussian(threat=threat, multiplier=z / most)] += 1
    for z in passes.values():
        events[Gaussian(threat=threat, multiplier=z)] += 1
    found = tuple(replace(event, count=count) for event, count in events.items())
    return RunCost(found, threat.adjacency, tuple(sorted(assumed)))


def recognised_of(
    record: LoopRecord, question: Question, sources: Sequence[Source], leak: str | None = None
) -> list[Recognised]:
    """One entry for each kind of step. leak: why the loop has no bound whatever its noisy steps cost."""
    cost = cost_of(record)
    claimed, delta, words = _claimed(record, question)
    findings = [finding("assumed", text=text) for text in cost.assumed]
    if claimed is not None:
        findings += _against_account(record, cost, claimed, delta, sources)
    events = cost.events
    if leak is not None:
        events = (NoBound(threat=events[0].threat, reason=leak.rstrip(".")), *events)
    levels = sorted({(round(step.std / step.noise_clip, 6), round(step.clip, 6)) for step in record.noisy})
    noise = ", ".join(f"noise multiplier {z:g} at clip norm {clip:g}" for z, clip in levels[:2])
    batches = "; ".join(source.words for source in sources) or "batches not seen"
    words = f"{len(record.noisy):,} noisy steps of an Opacus optimiser ({noise}); {batches}; {words}"
    first = Recognised(words, events[0], events[0].why_unbounded(), claimed, delta, "call", 1, findings)
    return [first, *(Recognised("further steps of the same training", one, one.why_unbounded(), calls=1)
                     for one in events[1:])]  # fmt: skip


def _claimed(record: LoopRecord, question: Question) -> tuple[float | None, float, str]:
    """(epsilon, delta, who says so): the last answer that the loop asked its accountant for, or what it would be."""
    if record.answers:
        delta, epsilon, _ = max(record.answers, key=lambda one: one[2])
        return epsilon, delta, f"its accountant says epsilon {epsilon:.4g} at delta {delta:g}"
    delta = question.at_delta
    of = zip(record.accountants, record.histories, strict=True)
    most, history = max(of, key=lambda one: sum(int(n) for *_, n in one[1]), default=(None, []))
    try:
        most = copy.copy(most)
        most.history = history  # type: ignore[union-attr]
        epsilon = float(most.get_epsilon(delta))  # type: ignore[union-attr]
    except Exception:  # no accountant, or one out of its range
        epsilon = math.nan
    if math.isnan(epsilon):
        return None, delta, "no accountant says an epsilon"
    return epsilon, delta, f"its accountant would say epsilon {epsilon:.4g} at delta {delta:g}"


def _against_account(
    record: LoopRecord, cost: RunCost, claimed: float, delta: float, sources: Sequence[Source]
) -> Iterator[Finding]:
    """Where what ran costs more than the loop's accountant says, with all that explains it."""
    verified = compose(cost.events, delta).epsilon
    if verified <= claimed + max(NUMERICAL, 0.01 * claimed) or not math.isfinite(verified):
        return
    amplified = any(q < 1 for one in record.histories for _, q, _ in one)
    fixed = [one.words for one in sources if one.kind != "poisson"] if amplified else []
    reasons = [f"the loader gives {words}, which is priced as a Poisson sample" for words in fixed]
    if record.accounted < len(record.noisy):
        reasons.append(f"{len(record.noisy):,} noisy steps ran, and the accountants have {record.accounted:,}")
    with_steps = [one for one in record.histories if one]
    if len(with_steps) > 1:
        reasons.append(f"{len(with_steps)} accountants share the steps, and each states its own part alone")
    if (share := measured_share(record)) < 1:
        reasons.append(f"the noise has {share:.4g} times the deviation that it is set to")
    unsure = bool(cost.assumed) or (len(with_steps) > 1 and len({one.data_set for one in sources}) > 1)
    key = "fixed-batches-priced-as-poisson" if fixed else "account-below-what-ran"
    why = "".join(f"; {one}" for one in reasons)
    yield finding(key, "doubt" if unsure else "fault", claimed=claimed, delta=delta, verified=verified, reasons=why)


# --- sampled ---------------------------------------------------------------------------------------------------------


class Canary:
    """An example whose gradient is one coordinate, as long as any, in the loop's own optimiser. A trial is ``steps`` of
    its steps: in each the sampler's coin decides whether the example is in the batch, the optimiser clips, adds noise
    and scales, and what it hands on at this coordinate is observed. The others' gradients are zero.

    Many trials in one call: trial i has parameter i, and an example whose gradient is this coordinate alone. Examples
    are clipped one by one and noise is independent between coordinates, so each coordinate has the law of one trial;
    `agree` tries whether that is so, and if not trials are made one by one. ghost: what clips is not the optimiser: the
    gradient is as long as the clip norm.
    """

    def __init__(self, optimiser: Any, source: Source | None, steps: int, ghost: float | None) -> None:
        self.optimiser, self.source, self.steps, self.ghost = optimiser, source, max(1, steps), ghost
        self.norm = float(optimiser.max_grad_norm)
        self._twins: dict[int, tuple[Any, Any]] = {}
        self.together = TOGETHER if self.agree() else 1

    def rows(self, present: bool, n: int) -> Numbers:
        """[n, steps]: what the inner optimiser gets at the canary's coordinate."""
        members = self._members(n) & present
        found = np.empty((n, self.steps))
        for begin in range(0, n, self.together):
            for step in range(self.steps):
                part = slice(begin, begin + self.together)
                found[part, step] = self._step(members[part, step])
        return found

    def agree(self) -> bool:
        """Whether trials made together have the mean and the deviation of trials made one by one."""
        inside = np.ones(SINGLE, dtype=bool)
        single, both = np.array([self._step(inside[:1])[0] for _ in range(SINGLE)]), self._step(inside)
        scale = max(float(single.std()), 1e-12)
        apart = abs(single.mean() - both.mean()) / scale, abs(np.log(max(float(both.std()), 1e-12) / scale))
        return bool(apart[0] < 6 / np.sqrt(SINGLE) and apart[1] < 6 / np.sqrt(2 * SINGLE))

    def _members(self, n: int) -> Any:
        """[n, steps]: whether the sampler puts the example into the batch, drawn by the sampler's law."""
        import torch

        if self.source is not None and self.source.kind == "poisson":
            return (torch.rand(n, self.steps) < self.source.rate).numpy()
        if self.source is not None and self.source.kind == "once":
            batches, at = self.source.batches, np.arange(self.steps)
            places = torch.randint(batches, (n, math.ceil(self.steps / batches))).numpy()  # each pass anew
            return places[:, at // batches] == at % batches
        return np.ones((n, self.steps), dtype=bool)

    def _twin(self, size: int) -> tuple[Any, Any]:
        """(an optimiser with the loop's class, methods and settings, its one parameter of this size)."""
        import torch

        if size not in self._twins:
            parameter = torch.nn.Parameter(torch.zeros(size))
            twin = object.__new__(type(self.optimiser))  # copy.copy asks Optimizer.__getstate__, without the noise
            twin.__dict__.update(vars(self.optimiser))
            twin.original_optimizer, twin.step_hook = torch.optim.SGD([parameter], lr=0.0), None
            if hasattr(twin, "max_grad_norms"):
                twin.max_grad_norms = [self.norm]
            self._twins[size] = twin, parameter
        return self._twins[size]

    def _step(self, inside: Any) -> Numbers:
        """One step with a canary for each coordinate that is in the batch."""
        import torch

        twin, parameter = self._twin(len(inside))
        twin.max_grad_norm = self.norm
        twin._step_skip_queue, twin._is_last_step_skipped = [], False
        values = torch.from_numpy(np.asarray(inside, np.float32))
        if self.ghost is not None:
            parameter.grad = values * self.ghost
        else:
            parameter.grad_sample = torch.diag(values * (LONG * self.norm))
        parameter.summed_grad = None
        twin.pre_step()
        found: Numbers = parameter.grad.detach().double().numpy().copy()
        twin.zero_grad()
        return found


def _canary_of(record: LoopRecord, sources: Sequence[Source]) -> Canary | None:
    """With the first optimiser that a twin can be made of; None: the loop has none."""
    ghost = any(hasattr(model, "max_grad_norm") for model in record.models)
    clip = record.noisy[0].clip if ghost else None
    for optimiser in record.optimisers:
        try:
            made = Canary(optimiser, sources[0] if sources else None, min(len(record.noisy), TRIAL_STEPS), clip)
            made.rows(True, 1)
        except Exception:  # an optimiser of the loop's own that needs more than the library's
            continue
        return made
    return None
