"""A check of one target in this process: the three layers, one after the other, and what they say together."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from fedpriv.checking.findings import Finding, Severity, finding, words_of
from fedpriv.checking.functions import NotTaken, recognises
from fedpriv.checking.generators import Held, generator_states, put_back, seeded
from fedpriv.checking.player import RemoteTarget
from fedpriv.checking.reading import is_word
from fedpriv.checking.replay import Replay, calls_of, has_series, plays_of, raises, replay, runs_of
from fedpriv.checking.result import LEAST_COVERAGE, Check, Layer
from fedpriv.checking.sampled import Sampled, sample
from fedpriv.checking.statistics import ended
from fedpriv.checking.subject import Budget, Claim, Question, Recognised, Subject
from fedpriv.privacy.auditor import ROUNDING
from fedpriv.privacy.composition import compose
from fedpriv.privacy.events import Event

# --- adapters ---------------------------------------------------------------------------------------------------------
# The adapters: each turns one kind of target into a `Subject`. The first that recognises the target has it.

#: Files with ``recognises(target, question) -> Subject | None``, the most special first. A row for each adapter. Each
#: is asked only if the package in its second place is imported by then: a target of that kind imports it itself, at the
#: latest when it is called. Last come functions of an update, and of data.
ADAPTERS: tuple[tuple[str, str], ...] = (
    ("fedpriv.checking.opacus_loops", "opacus"),
    ("fedpriv.checking.flower_apps", "flwr"),
    ("fedpriv.checking.flower_strategies", "flwr"),
    ("fedpriv.checking.flower_mods", "flwr"),
)


def subject_of(target: Any, question: Question) -> Subject | None:
    """The subject of a target, or None where no adapter knows its kind. Raises `NotTaken` with the target's errors."""
    if isinstance(target, RemoteTarget):
        return target.subject(question)
    there, found, none = _imported(), None, None
    if (special := _special(target, question, there)) is not None:
        return special
    try:
        found = recognises(target, question)
    except NotTaken as error:
        none = error
        with seeded(1), suppress(Exception):  # what it imports, where it needs nothing
            inspect.signature(target).bind()
            target()
    found = _special(target, question, _imported() - there) or found
    if found is None and none is not None:
        raise none
    return found


def _imported() -> set[str]:
    return {package for _, package in ADAPTERS if package in sys.modules}


def _special(target: Any, question: Question, packages: set[str]) -> Subject | None:
    """Of the first adapter of these packages that knows the target; some are not in the wheel fedpriv-check."""
    for name, package in ADAPTERS:
        if package in packages and importlib.util.find_spec(name) is not None:
            found: Subject | None = importlib.import_module(name).recognises(target, question)
            if found is not None:
                return found
    return None


#: One of each name is shown, with how many more there were.
_ORDER = {"fault": 0, "doubt": 1, "note": 2}
#: Told after each part of a check what is known by then.
Told = Callable[[Check], None]


@dataclass(frozen=True)
class _Verified:
    """epsilon None: nothing was recognised."""

    epsilon: float | None
    words: str
    findings: Sequence[Finding] = ()


def check_object(
    target: Any,
    question: Question,
    *,
    name: str = "the target",
    seconds: float = 45.0,
    told: Told = lambda check: None,
    first_only: bool = False,
) -> Check:
    """Checks ``target`` here and now, without any limit on what it does. told: gets the check after each layer.
    first_only: only the first release, as its digest in ``facts``.

    What the target raises becomes a check that could not be made. The process's generators are put back.
    """
    budget, states, Held.found = Budget(seconds), generator_states(), False
    try:
        return _checked(target, question, name, budget, told, first_only)
    except MemoryError:
        return could_not(name, question, "it asks for more memory than a check allows")
    except Exception as error:
        text = " ".join(str(error).split())[: 1000 if isinstance(error, NotTaken) else 400]
        words = text if isinstance(error, NotTaken) else f"{type(error).__name__}: {text}"
        return could_not(name, question, with_hint(words))
    finally:
        put_back(states)


def could_not(name: str, question: Question, words: str, kind: str = "target") -> Check:
    """A check that could not be made, in words."""
    claimed = question.claim.epsilon if question.claim else None
    return Check(name, kind, question.at_delta, claim=question.claim, claimed=claimed, why_not=words)


#: What an error of the target says -> what it means for a check.
_HINTS = (
    (("cuda", "nvidia", "gpu"), "a check runs on the CPU: let the target fall back to it"),
    (("network is unreachable", "name resolution", "getaddrinfo", "connection refused", "urlopen"),
     "a check has no network: give the target what it fetches"),
    (("memoryerror",), "a check allows a limited amount of memory, memory=8 GiB unless it is told another"),
    (("no such file", "filenotfound", "dataset not found"),
     "the target needs data that are not there: give it a small example"),
)  # fmt: skip


def with_hint(words: str) -> str:
    """An error's text, with what it means for a check."""
    small = words.lower()
    hint = next((hint for signs, hint in _HINTS if any(sign in small for sign in signs)), "")
    return f"{words} ({hint})" if hint else words


def _checked(target: Any, question: Question, name: str, budget: Budget, told: Told, first_only: bool) -> Check:
    subject = subject_of(target, question)
    if subject is None:
        kinds = "a function release(update, rng), or an object that an adapter knows (docs/check.md)"
        return could_not(name, question, f"no adapter recognises it; a target is {kinds}")
    claim = question.claim or subject.claim or _claim_of(subject.recognised)
    question = replace(question, claim=claim)
    _begin_with_one_that_plays(subject)
    verified = verify(subject.recognised, question)
    findings = [*subject.notes, *verified.findings]
    check = Check(
        name, subject.kind, question.at_delta, claim=claim, claimed=claim.epsilon if claim else None,
        verified=verified.epsilon, confidence=question.confidence, findings=merged(findings),
        layers=[Layer("recognised", bool(subject.recognised), verified.words)],
        facts={"form": subject.name, "observer": subject.observer, "first_release": _first(subject)},
    )  # fmt: skip
    if question.show is not None:
        check = replace(check, facts={**check.facts, "shown": _shown(subject, question.show)})
    told(check)
    if first_only:
        return check
    if not subject.pairs:
        words = "not made: its adapter gives no neighbouring inputs"
        check = replace(check, layers=[*check.layers, Layer("replayed", False, words), Layer("sampled", False, words)])
        return check if subject.recognised else replace(check, why_not="it has no neighbouring inputs to compare")
    played = replay(subject, question, budget)
    findings += played.findings
    check = replace(check, findings=merged(findings), measured=played.epsilon, coverage=budget.coverage)
    told(check)
    findings += calls_of(subject, question, played.repeatable, budget.part("calls"))
    if not any(one.severity == "fault" for one in played.findings):
        findings += ended(subject, question, played.kept, budget.part("ends"))
    if has_series(subject):
        try:
            findings += runs_of(subject, question, played, budget.part("runs"))
        except Exception as error:
            findings.append(finding("raises:calls", words=words_of(error)))
    if Held.found:  # told before sampling, which a target may never end
        findings.append(finding("held-generator"))
    layers = [*check.layers, _replay_layer(subject, played, budget)]
    check = replace(check, findings=merged(findings), layers=layers, coverage=budget.coverage)
    told(check)
    faulty = any(one.severity == "fault" for one in findings)
    seen = sample(subject, question, budget.part("sampled"), faulty=faulty, distances=played.distances)
    findings += [*seen.findings, *_against_verified(subject, question, verified, seen)]
    infinite = any(one.severity == "fault" and "epsilon is infinite" in one.text for one in findings)
    best = seen.best(question)
    check = replace(
        check,
        findings=merged(findings),
        layers=[*check.layers, replace(_sampled_layer(seen), cut=budget.taken())],
        audited=math.inf if infinite else best[1].epsilon_lower if best else None,
        covered=best is None or infinite or question.covers(best[0]),
        coverage=budget.coverage,
        attainable=seen.attainable,
        sharper=seen.sharper.to_json() if seen.sharper is not None else None,
    )
    check = replace(check, findings=[_placed(subject, one) for one in check.findings])
    return replace(check, why_not=no_price(check, seen.why_not or "no time was left"))


def _placed(subject: Subject, one: Finding) -> Finding:
    """A fault with the line that makes its number, or that draws the noise."""
    if one.severity != "fault":
        return one
    data = next((pair.right for pair in subject.pairs if pair.name == one.pair), subject.pairs[-1].right)
    try:
        play = subject.play(data, 1)[0]
        values = {name: play.numbers[name] for name in one.records if name in play.numbers}
        lines = subject.lines(data, 1, values)
    except Exception:  # of the target's own
        return one
    found = list(lines.get("numbers", {}).values()) or ([] if one.records else lines.get("draws", []))
    return replace(one, place=f"{found[0][0]}:{found[0][1]}") if found else one


def _shown(subject: Subject, name: str) -> str:
    """A pair, and what leaves with it, to be pasted. Raises `NotTaken` where there is no such pair."""
    pair = next((one for one in subject.pairs if one.name == name), None)
    if pair is None:
        names = "; ".join(dict.fromkeys(one.name for one in subject.pairs))
        raise NotTaken(f"show={name}: there is no such pair of inputs; allowed: {names}")
    lines = [f"# {pair.name} ({pair.adjacency}, {pair.unit}), of {subject.name}; rng begins at 1, too",
             "random.seed(1); np.random.seed(1)  # and torch.manual_seed(1)"]  # fmt: skip
    for side, data in (("left", pair.left), ("right", pair.right)):
        lines.append(f"{side} = {subject.text(data)}")
        play = subject.play(data, 1)[0]
        lines += [f"# {key} = {values.tolist()}" for key, values in play.numbers.items() if not is_word(key)]
    return "\n".join(lines)


def _begin_with_one_that_plays(subject: Subject) -> None:
    """Takes the first pairs away with an input of which the target raises, and tells of them. Raises what it raises
    first where there are no others.
    """
    first, notes = None, list[Finding]()
    for number, pair in enumerate(subject.pairs):
        (left,), (right,) = (plays_of(subject, data, (1,)) for data in (pair.left, pair.right))
        error = next((one for one in (left, right) if isinstance(one, Exception)), None)
        if error is None:
            subject.pairs, subject.notes = subject.pairs[number:], [*subject.notes, *notes]
            return
        first = first or error
        notes.append(raises(pair, error, isinstance(left, Exception) and isinstance(right, Exception)))
    if first is not None:
        raise first


def no_price(check: Check, why: str) -> str | None:
    """Why a check that found nothing says nothing: it looked at next to nothing, or neither replays nor sampling nor a
    proof gave its noise a price that could be held against the claim. why: nothing was sampled.
    """
    claim, recognised = check.claim, check.layers[0].ran
    if check.faults or check.audited is not None:
        return None
    if not recognised and check.coverage is not None and check.coverage < LEAST_COVERAGE:
        share = 100 * check.coverage
        return (
            f"its time went into the start: it looked at {share:.0f} % of a full check: give it more time with seconds="
        )
    if claim is None or math.isinf(claim.epsilon) or check.measured is not None:
        return None
    if check.verified is not None and check.verified <= claim.epsilon * (1 + ROUNDING):
        return None
    return f"nothing was compared with the claim: no replay could price its noise, and sampling was not made ({why})"


def _first(subject: Subject) -> str:
    """A digest of what is released first in this process, which nobody seeded; empty where there is nothing to play."""
    if not subject.pairs:
        return ""
    return hashlib.sha256(subject.play(subject.pairs[0].left, None)[0].flat().tobytes()).hexdigest()


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """One finding of each layer and name, the most severe first; how many more there were is told."""
    kept: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        kept.setdefault((one.layer, one.name), []).append(one)
    found = []
    for same in kept.values():
        worst = min(same, key=lambda one: _ORDER[one.severity])
        more = len({one.text for one in same}) - 1
        found.append(replace(worst, text=f"{worst.text} ({more} more like this)") if more else worst)
    return sorted(found, key=lambda one: _ORDER[one.severity])


# --- recognised ---------------------------------------------------------------------------------------------------


def _claim_of(recognised: Sequence[Recognised]) -> Claim | None:
    for one in recognised:
        if one.claimed is not None and one.delta is not None:
            return Claim(one.claimed, one.delta, one.scope, one.words)
    return None


def verify(recognised: Sequence[Recognised], question: Question) -> _Verified:
    """What the recognised parts cost together: of one call, or of a run where the claim is about one."""
    if not recognised:
        return _Verified(None, "No part of it is known here, so nothing bounds its epsilon from above.")
    findings = [part for one in recognised for part in one.findings]
    words = " ".join(one.words.rstrip(".") + "." for one in recognised)
    unbounded = [one for one in recognised if one.event is None and one.reason is not None]
    if unbounded:
        reason = "; ".join(str(one.reason) for one in unbounded)
        return _Verified(math.inf, f"{words} It has no bound: {reason}.", findings)
    events: list[Event] = [one.event for one in recognised if one.event is not None]
    if not events:
        return _Verified(None, words, findings)
    claim = question.claim
    run = claim is not None and claim.scope == "run"
    calls = (question.calls or next((one.calls for one in recognised if one.calls), 1)) if run else 1
    events = [replace(event, count=event.count * calls) for event in events]
    reasons = [why for event in events if (why := event.why_unbounded())]
    epsilon = compose(events, question.at_delta).epsilon
    scope = f"a run of {calls} calls" if run else "one call"
    words += f" For {scope}, epsilon is at most {epsilon:.4g} at delta {question.at_delta:g}."
    words += "".join(f" It has no bound: {why}." for why in reasons)
    if claim is not None and epsilon > claim.epsilon * (1 + ROUNDING) and claim.delta == question.at_delta:
        severity: Severity = "doubt" if math.isfinite(epsilon) else "fault"
        findings.append(finding("claim-not-verified", severity, claim=claim, verified=epsilon, scope=scope))
    return _Verified(epsilon, words, findings)


def _against_verified(subject: Subject, question: Question, verified: _Verified, seen: Sampled) -> list[Finding]:
    """Where sampling shows more than what was recognised allows, the code does something else than it seems to."""
    best = seen.best()
    if verified.epsilon is None or not math.isfinite(verified.epsilon) or best is None:
        return []
    pair, found = best
    if found.epsilon_lower <= verified.epsilon * (1 + ROUNDING):
        return []
    return [finding("more-than-recognised", pair=pair.name, least=found.epsilon_lower, verified=verified.epsilon)]


# --- layers in words ----------------------------------------------------------------------------------------------


def _replay_layer(subject: Subject, played: Replay, budget: Budget) -> Layer:
    seeds = "under the same seeds" if played.repeatable else "without seeds: its randomness cannot be repeated"
    words = f"{len(subject.pairs)} pairs of neighbouring inputs, {played.plays} calls of each {seeds}."
    if played.epsilon is not None:
        words += f" By the law of its noise, what moved most costs an epsilon of at least {played.epsilon:.3g}."
    could = "numbers and combinations of numbers without noise, in the inputs that were tried; no small excess, and "
    could += (
        "nothing of code that does otherwise after many calls, with other numbers of clients or where it is unchecked"
    )
    return Layer("replayed", True, words, could, budget.taken())


def _sampled_layer(seen: Sampled) -> Layer:
    best = seen.best()
    if best is None:
        return Layer("sampled", False, f"Not made: {seen.why_not or 'no time was left'}.")
    pair, found = best
    words = f"{len(seen.audits)} pairs, {found.trials:,} calls of each input; best told apart: {pair.name}. {found}."
    if seen.sharper is not None:
        words += f" By the curves of {seen.sharper.family} noise, {seen.sharper}."
    return Layer("sampled", True, words, f"an epsilon of at most {seen.attainable:.3g}")
