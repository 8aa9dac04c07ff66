"""A Flower client mod, or a stack of them, played with a client behind it that answers what it is told to."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import flwr.client.mod as older
import flwr.clientapp.mod as newer
from flwr.app import Context, Message
from flwr.client.mod.utils import make_ffn

from fedpriv.checking.findings import Finding, finding
from fedpriv.checking.flower_messages import (
    Trained,
    context,
    extremes,
    fresh,
    lengths,
    metrics_pass,
    numbers_of,
    plays,
    quiet,
    reply,
    sent,
    shared_modules,
    update_pairs,
)
from fedpriv.checking.functions import NotTaken, refuse_ours
from fedpriv.checking.generators import Memory, seeded
from fedpriv.checking.reading import Numbers
from fedpriv.checking.subject import Question, Recognised, RoundsSubject, Subject, claim_of
from fedpriv.privacy.events import Gaussian, Threat
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

# --- mods known -------------------------------------------------------------------------------------------------------
# Flower's own client mods: what they claim, and what one call costs as it really runs.

NOISY = (newer.LocalDpMod, older.LocalDpMod)
CLIPPING = (newer.fixedclipping_mod, older.fixedclipping_mod)
ADAPTIVE = (newer.adaptiveclipping_mod, older.adaptiveclipping_mod)
MASKING = (older.secagg_mod, older.secaggplus_mod)
SIZES = (newer.arrays_size_mod, newer.message_size_mod)

#: How far a clipped update moves, in clip norms.
MOVES = {"replace-one": 2.0, "zero-out": 1.0}


def known_mods(mods: Sequence[Any], adjacency: str) -> list[Recognised]:
    """What is known of a stack, outermost first, as one (or none).

    Code outside a mod with noise works on what that mod released, and code inside on what it will clip: its bound
    holds for the stack, and of several the smallest does. What other mods add to a reply beside the model is looked at
    by playing them.
    """
    found = _each(mods, adjacency)
    if len(found) < 2:
        return found
    noisy = [one for one in found if isinstance(one.event, Gaussian)]
    best = max(noisy, key=lambda one: one.event.multiplier) if noisy else found[0]  # type: ignore[union-attr]
    findings = [part for one in found for part in one.findings]
    return [replace(best, words="; inside it ".join(one.words for one in found), findings=findings)]


def _each(mods: Sequence[Any], adjacency: str) -> list[Recognised]:
    found = []
    for place, mod in enumerate(mods):
        bare = _bare(mod)
        if isinstance(bare, NOISY) and type(bare).__call__ in [kind.__call__ for kind in NOISY]:
            found.append(_local_noise(bare, adjacency))
        elif _is_one_of(bare, CLIPPING + ADAPTIVE):
            found.append(_clipping(bare, adjacency, outermost=place == 0))
        elif not _is_one_of(bare, SIZES):
            found.extend(_inside(mod))
    return found


def _bare(mod: Any) -> Any:
    """A mod without `functools.partial` objects that bind nothing."""
    while isinstance(mod, functools.partial) and not mod.args and not mod.keywords:
        mod = mod.func
    return mod


def _is_one_of(mod: Any, known: Sequence[Callable[..., Any]]) -> bool:
    return any(mod is one for one in known)


# --- noise at the client -------------------------------------------------------------------------------------


def local_std(sensitivity: float, epsilon: float, delta: float) -> float:
    """The classical Gaussian mechanism's standard deviation, sensitivity sqrt(2 ln(1.25 / delta)) / epsilon.

    Dwork and Roth 2014, Theorem A.1, proven for epsilon below 1. NaN for a delta of 0 or of 1.25 or more.
    """
    if not 0 < delta < 1.25:
        return math.nan
    if epsilon == 0:
        return math.inf if sensitivity > 0 else math.nan
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def _local_noise(mod: Any, adjacency: str) -> Recognised:
    """A clip to C = clipping_norm, then noise of `local_std` on every number.

    Proof of the event: after the clip two updates differ by at most m C in L2 norm (m: `MOVES`), and the sent model is
    public; noise of standard deviation s on every number is the Gaussian mechanism of multiplier s / (m C).
    """
    clip, sensitivity = float(mod.clipping_norm), float(mod.sensitivity)
    epsilon, delta = float(mod.epsilon), float(mod.delta)
    std, moves = local_std(sensitivity, epsilon, delta), MOVES[adjacency] * clip
    words = (
        f"local noise: updates clipped to {clip:g}, noise of standard deviation {std:.6g} from sensitivity "
        f"{sensitivity:g}, epsilon {epsilon:g}, delta {delta:g} by the classical formula"
    )
    claim = {"claimed": epsilon, "delta": delta, "scope": "call"}
    if not std > 0:
        fault = finding("no-randomness:mod", std=std, mod=mod)
        return Recognised(words, None, "no noise is added", findings=(fault,), **claim)  # type: ignore[arg-type]
    threat = Threat("client", adjacency, "server")
    event = Gaussian(threat=threat, multiplier=min(std / moves, 1e300))
    return Recognised(words, event, findings=tuple(_of_local_noise(clip, sensitivity, epsilon, delta, std)), **claim)  # type: ignore[arg-type]


def _of_local_noise(clip: float, sensitivity: float, epsilon: float, delta: float, std: float) -> Iterator[Finding]:
    exact = gaussian_epsilon(2 * clip / std, delta) if 0 < delta < 1 else math.inf
    enough = gaussian_epsilon(sensitivity / std, delta) if 0 < delta < 1 else math.inf
    if sensitivity < 2 * clip and exact > epsilon * (1 + 1e-9):
        figures = {"clip": clip, "twice": 2 * clip, "sensitivity": sensitivity, "delta": delta, "epsilon": epsilon}
        yield finding("moves-more-than-claimed:two-clips", exact=exact, **figures)
    if enough > epsilon * (1 + 1e-9):
        yield finding("formula-outside-its-range", epsilon=epsilon, enough=enough, sensitivity=sensitivity)
    elif epsilon >= 1:
        yield finding("formula-outside-its-range:note", epsilon=epsilon, enough=enough, sensitivity=sensitivity)
    yield finding("claim-of-one-reply", epsilon=epsilon)


# --- clipping without noise ----------------------------------------------------------------------------------


def _clipping(mod: Any, adjacency: str, outermost: bool) -> Recognised:
    kind = "and sends whether it was clipped" if _is_one_of(mod, ADAPTIVE) else "to the norm that the server sends"
    words = f"client-side clipping: clips the update {kind}, and adds no noise"
    findings = () if outermost else (finding("clip-is-not-last"),)
    reason = "a clipped update leaves without noise; noise is the strategy wrapper's, whom this client has to trust"
    return Recognised(words, None, reason, findings=findings)


# --- known mods inside foreign code --------------------------------------------------------------------------


def _inside(mod: Any) -> Iterator[Recognised]:
    """Known mods that a foreign callable holds: what they claim, and that foreign code decides what they do."""
    for part in _held(mod):
        if isinstance(part, NOISY):
            words = (
                f"local noise of claimed epsilon {part.epsilon:g} at delta {part.delta:g} inside code of its own, "
                "which decides what leaves"
            )
            reason = "what foreign code around a known mod sends is not known from the mod's numbers"
            yield Recognised(words, None, reason, claimed=float(part.epsilon), delta=float(part.delta))


def _held(mod: Any) -> list[Any]:
    """What a callable holds in public: bound arguments, closed-over values, what it wraps, its attributes."""
    found: list[Any] = []
    if isinstance(mod, functools.partial):
        found += [mod.func, *mod.args, *mod.keywords.values()]
    for cell in getattr(mod, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    found += [part for name in ("__wrapped__", "__self__") if (part := getattr(mod, name, None)) is not None]
    found += list(getattr(mod, "__dict__", {}).values())
    if isinstance(mod, NOISY):  # a subclass with a call of its own
        found.append(mod)
    return [part for one in found for part in (one if isinstance(one, list | tuple) else [one])]


Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


class ModSubject(RoundsSubject):
    """mods: outermost first, as a `ClientApp` takes them. adjacency: of the pairs and the event. old: messages have the
    form of the NumPyClient API.

    Data of a round are a `Trained`. Every play starts with copies of the mods and an empty context; its rounds share
    both.
    """

    kind: ClassVar[str] = "Flower client mod"

    def __init__(
        self,
        mods: Sequence[Mod],
        question: Question,
        name: str = "mods",
        adjacency: str = "replace-one",
        old: bool = False,
    ) -> None:
        self.mods, self.old = list(mods), old
        shared_modules()
        self.memories = [Memory(mod) for mod in self.mods if inspect.isroutine(mod)]
        recognised = known_mods(self.mods, adjacency)
        super().__init__(
            name=name,
            pairs=update_pairs(question.dims, adjacency),
            probes=[lengths(question.dims[0])],
            recognised=recognised,
            claim=claim_of(recognised, question, "the mod", adjacency),
        )
        self.notes = [*metrics_pass(plays(self)), *extremes(plays(self))]

    def quiet(self) -> AbstractContextManager[None]:
        return quiet()

    def rounds(self, data: Sequence[Trained]) -> Iterator[dict[str, Numbers]]:
        for memory in self.memories:
            memory.restore()
        chain, kept = [fresh(mod) for mod in self.mods], context()
        for number, trained in enumerate(data, 1):
            app = make_ffn(_answering(trained), chain)
            yield numbers_of(app(sent(trained, number, old=self.old), kept))


def _answering(trained: Trained) -> Callable[[Message, Context], Message]:
    return lambda message, _: reply(trained, message)


def recognises(target: Any, question: Question) -> Subject | None:
    """A callable of three arguments, or a list of them."""
    mods = list(target) if isinstance(target, list | tuple) else [target]
    if not mods or not all(_is_mod(mod) for mod in mods):
        return None
    refuse_ours(mods)
    if any(mod is one for mod in mods for one in MASKING):
        raise NotTaken(
            "masks of a secure sum are no noise, and are not checked: check the mods before them as a list of their "
            "own, and what leaves of the sum as a function of an update"
        )
    old = any(isinstance(mod, NOISY[1:]) or getattr(mod, "__module__", "").startswith("flwr.client.") for mod in mods)
    return ModSubject(mods, question, old=old or not _answers(mods))


def _is_mod(target: Any) -> bool:
    if inspect.isclass(target) or not callable(target):
        return False
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        one
        for one in parameters
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed) == 3


def _answers(mods: Sequence[Mod]) -> bool:
    """Whether mods of unknown make answer messages of the newer form; if not, they are given the older one."""
    from fedpriv.checking.flower_messages import plain

    trained = Trained(plain(8, 0.1))
    shared_modules()
    with seeded(0), quiet():
        try:
            answer = make_ffn(_answering(trained), [fresh(mod) for mod in mods])(sent(trained), context())
        except Exception:  # whatever foreign code raises
            return False
        return not answer.has_error()
