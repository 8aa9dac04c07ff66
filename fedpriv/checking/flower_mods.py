"""A Flower client mod, or a stack of them, played with a client behind it that answers what it is told to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from flwr.app import Context, Message
from flwr.client.mod.utils import make_ffn

from fedpriv.checking.flower_extremes import extremes, metrics_pass, plays
from fedpriv.checking.flower_messages import Trained, context, fresh, numbers_of, quiet, reply, sent, shared_modules
from fedpriv.checking.flower_mods_known import MASKING, NOISY, known_mods
from fedpriv.checking.flower_updates import lengths, update_pairs
from fedpriv.checking.fresh_state import Memory
from fedpriv.checking.generators import seeded
from fedpriv.checking.release_function import NotTaken
from fedpriv.checking.rounds import RoundsSubject, claim_of
from fedpriv.checking.subject import Numbers, Question, Subject

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
    from fedpriv.checking.flower_updates import plain

    trained = Trained(plain(8, 0.1))
    shared_modules()
    with seeded(0), quiet():
        try:
            answer = make_ffn(_answering(trained), [fresh(mod) for mod in mods])(sent(trained), context())
        except Exception:  # whatever foreign code raises
            return False
        return not answer.has_error()
