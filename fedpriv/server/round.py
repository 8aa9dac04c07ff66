"""One round as the server sees it: who is asked, what came back, what it became."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, overload

from fedpriv.common.errors import FedprivError
from fedpriv.common.messages import FloatVector, Refused
from fedpriv.common.replies import Reply
from fedpriv.mechanisms.noise import NoiseSource, SeededNoise
from fedpriv.privacy.events import Entry, Threat
from fedpriv.training.flat_model import Layers


class Replies(Sequence[Reply]):
    """A round's usable replies in the order of clients.

    One pass reads them as they come; afterwards they are still here, without their releases. A caller that wants all of
    them before that pass (``len``, an index, ``list``) has them collected, releases and all.
    """

    def __init__(self, stream: Iterator[Reply]) -> None:
        self._stream, self._known = stream, list[Reply]()

    def __iter__(self) -> Iterator[Reply]:
        yield from self._known
        for reply in self._stream:
            self._known.append(reply.forgotten())
            yield reply

    def __bool__(self) -> bool:
        if not self._known and (first := next(self._stream, None)) is not None:
            self._stream = chain((first,), self._stream)
            return True
        return bool(self._known)

    def __len__(self) -> int:
        self._known.extend(self._stream)
        return len(self._known)

    @overload
    def __getitem__(self, place: int) -> Reply: ...
    @overload
    def __getitem__(self, place: slice) -> list[Reply]: ...
    def __getitem__(self, place: int | slice) -> Reply | list[Reply]:
        self._known.extend(self._stream)
        return self._known[place]


@dataclass(frozen=True)
class Population:
    """The public facts about clients and rounds that a strategy works with.

    travelling: which slices of theta travel in a round; None: all of it, in every round.
    """

    seed: int
    num_clients: int
    clients_per_round: int
    num_examples: Callable[[int], int]  # declared, public
    round_timeout: float = 3600.0
    rng: str = "seeded"  # where a server that adds noise takes it from
    attempt: int = 0  # above 0 when a resumed run redoes rounds that it cannot repeat bit for bit
    travelling: Callable[[int], Layers] | None = None
    layers: tuple[slice, ...] = ()  # of theta, one for each named block
    clients_asked: int = 0  # above clients_per_round: the round closes at that many usable replies; 0: as many
    run: str = ""  # the run's own name, under which its clients' machines keep its state; empty in a simulation
    classes: int = 0  # of the model, and the intervals of a baseline hazard; 0: not known
    options_digest: bytes = bytes(32)  # of the run's options that decide a release
    flat_inputs: int = 0  # of models linear and mlp: how many numbers their first layer reads; 0: another model
    outputs: int = 0  # of the first layer
    threat: Threat | None = None  # the method's own, with the run's unit; None: not known
    num_rounds: int | None = None  # after which nothing is released; None: not known
    across_sites: int = 1  # clients that hold rows of one person at most: `privacy.across_sites`
    counts_in_replies: bool = False  # whether clients declare their examples with each reply, and not before the run
    risk_classes: int = 0  # as the clients' facts have it

    def noise(self, *key: int | str) -> NoiseSource:
        """The server's noise as `privacy.rng` says; the key addresses it in a simulation."""
        if self.rng == "seeded":
            return SeededNoise(*key)
        from fedpriv.mechanisms.secure_noise import SecureNoise  # cryptography: only where it is needed

        return SecureNoise()

    @property
    def over_selects(self) -> bool:
        return self.clients_asked > self.clients_per_round


#: Student [d] after distillation from a teacher [d] in a round: distil(teacher, student, round).
Distil = Callable[[FloatVector, FloatVector, int], FloatVector]


@dataclass(frozen=True)
class Hooks:
    """What a run gives its server half: who is told of what happens, and what is computed from data for it.

    on_disturbance: before the replies of a round are used that cannot be repeated bit for bit. on_asking: with the
    clients of an exchange before they are asked. on_progress: with every message that arrives. admits: whether
    `privacy.max_epsilon` allows a release of the server's own. public_loss: of theta on public examples that are not
    reported on. distil: None where nothing is distilled. on_release: with every usable reply before it is used, where
    somebody keeps the updates.
    """

    on_disturbance: Callable[[], None] = lambda: None
    on_asking: Callable[[Sequence[int]], None] = lambda clients: None
    on_progress: Callable[[], None] = lambda: None
    admits: Callable[..., bool] = lambda *events: True
    public_loss: Callable[[FloatVector], float] | None = None
    distil: Distil | None = None
    on_release: Callable[[Round, Reply], None] | None = None


NO_HOOKS = Hooks()


@dataclass
class Round:
    """What happened in a round, for the run's record and its checkpoint."""

    number: int
    theta: FloatVector
    cohort: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)  # in the exchange that is going on
    answered: set[int] = field(default_factory=set)  # of these: whose reply was good
    away: list[int] = field(default_factory=list)  # of these: on machines that nobody could ask
    replies: list[Reply] = field(default_factory=list)  # without their releases
    errors: dict[int, str] = field(default_factory=dict)  # client -> what went wrong
    codes: dict[int, str] = field(default_factory=dict)  # client -> `refusal_name`, or MALFORMED
    lost: list[int] = field(default_factory=list)  # no reply, or one that was refused
    stopped: list[int] = field(default_factory=list)  # budget spent
    late: list[int] = field(default_factory=list)  # of the lost: their replies came when the round was closed
    refused: Counter[Refused] = field(default_factory=Counter)  # replies by what was wrong with them
    label: str = ""  # what the messages of the exchange that is going on bear, and their replies
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    timings: dict[str, float] = field(default_factory=dict)  # seconds of the method's own parts of the round
    entries: list[Entry] = field(default_factory=list)  # what a trusted server itself releases by the new theta
    figures: dict[str, Any] = field(default_factory=dict)


class BudgetsSpent(FedprivError):
    """Too few clients have budget left: the run ends here, and what it has is kept."""
