"""What a client half is given and what it gives: public facts, its site, charges, releases, and its own refusals; and
the states and releases of several clients as rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpriv.client.memory import MemoryStore, Waiting
from fedpriv.common.errors import FedprivError
from fedpriv.mechanisms.step_gradients import StepGradient
from fedpriv.privacy.events import Event
from fedpriv.training.flat_model import Layout
from fedpriv.training.sequential import LocalData, SequentialTrainer

if TYPE_CHECKING:
    from fedpriv.common.identities import Identity
    from fedpriv.data.asked import Asks


#: For the experimenter: of one client a number, of several at once one for each [clients] or one for all.
Figure = float | Tensor


class BudgetSpent(FedprivError):
    """The next release would take the client over `privacy.max_epsilon`; nothing was released."""

    def of(self, client: int) -> BudgetSpent:
        """In words about one of the clients that share a memory; said of all, ``{client}`` is in its place."""
        return BudgetSpent(str(self).replace("{client}", str(client)))


class UnsafeNoise(FedprivError):
    """The server asked for less noise than the client's guarantee counts on; nothing was released."""


class UnsafeClipNorm(FedprivError):
    """The server announced a clip norm outside the public bounds; nothing was released."""


@dataclass(frozen=True)
class PublicFacts:
    """What is known of a client and its run before the run: num_examples is the client's own declared count,
    smallest the least of all clients; batch_size is expected, not drawn.
    """

    num_examples: int
    smallest: int
    batch_size: int
    num_rounds: int
    clients_per_round: int
    num_parameters: int = 0  # of the model
    num_clients: int = 0
    total_examples: int = 0  # of all clients
    most: int = 0  # rounds of a client, and how far any two of them are apart at least
    apart: int = 1
    flat_inputs: int = 0  # of models linear and mlp: how many numbers their first layer reads; 0: another model
    asks: Asks | None = None  # of strategy=ask
    risk_classes: int = 0  # of a linear classifier of a table's rows, whose risks can be recalibrated; 0: another model


@dataclass(frozen=True)
class Charge:
    """What one release costs.

    event: the bound fixed before the run. realised: what this release really cost, where it is something else.
    adaptive: the event's parameter was chosen from earlier outputs, so that only a filter can bound the total: the
    reason in words, for a plan. exact: of a `NoBound`, whether the release shows a function of the data as it is.
    """

    event: Event
    realised: Event | None = None
    adaptive: str = ""
    exact: bool = False


class _Later:
    def __repr__(self) -> str:
        return "LATER"


#: In a plan, the state before any participation but the first: whatever it will be.
LATER: Any = _Later()


@dataclass(frozen=True)
class LocalRule:
    """What a method adds to local training.

    proximal_mu: weight of mu/2 ||w - w^t||^2. drift: added to every gradient: [..., d], or [d] for all clients; None:
    nothing. gradient: what a step goes along; None: the gradient.
    """

    proximal_mu: float = 0.0
    drift: Tensor | None = None
    gradient: StepGradient | None = None


@dataclass(frozen=True)
class Statistics:
    """Numbers that leave beside every release: their names, in order, and what they cost together."""

    names: tuple[str, ...] = ()
    charges: tuple[Charge, ...] = ()


@dataclass(frozen=True)
class Release:
    """What leaves the client (value [..., d], and numbers [...] beside it by name), the state it keeps, and figures
    for the experimenter.

    local: the client's own model [d] after training, which stays with it; None where a release has none. waiting: what
    further exchanges of the round need of it.
    """

    value: Tensor
    state: Any = None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    statistics: dict[str, Tensor] = field(default_factory=dict)
    local: Tensor | None = None
    waiting: Waiting | None = None


@dataclass(frozen=True)
class Trained:
    """After local training. sent: what of the update is up for release [..., d_up]; local: the client's own model
    [..., d], None where nobody asks for it. The leading dimension, if there is one, is of several clients.
    """

    sent: Tensor
    local: Tensor | None
    figures: Mapping[str, Figure]


@dataclass(frozen=True)
class Neighbours:
    """Two sequences of updates that one client's data could cause, one number per participation: the length along a
    fixed direction, in units of the clip norm, in world 0 and in world 1.

    axes: among how many of the first axes that direction is spread evenly; None: all.
    """

    name: str
    world0: tuple[float, ...]
    world1: tuple[float, ...]
    axes: int | None = None


@dataclass(frozen=True)
class Site:
    """A client's own machine, real or simulated: its data, its memory, its source of randomness.

    layout, initial: of the whole model, and its common parameters theta^0 [d]; needed by clients that keep layers.
    test: figures of a client's model [d] on its own test examples; None where nobody is tested, and outside simulation.
    """

    client: int
    num_examples: int  # declared once, public
    load_data: Callable[..., LocalData]  # all of it, or these rows of it (int64 [b])
    trainer: SequentialTrainer
    store: MemoryStore
    seed: int
    rng: str  # seeded | secure
    delta: float
    max_epsilon: float | None
    participations: int | None = None  # the client's own limit on releases, whatever a server asks
    layout: Layout | None = None
    initial: Tensor | None = None
    test: Callable[[int, Tensor], dict[str, float]] | None = None
    identity: Identity | None = None  # in a deployment, where clients agree on keys
    run_id: int = 0  # Flower's, which a simulation leaves at 0: its runs are to be the same on every engine
    guard: Callable[[Sequence[Charge]], None] | None = None  # the node's policy; raises where these may not leave
    options_digest: bytes = bytes(32)  # of the run's options that decide a release: members of a sum have the same
    fewest_survivors: int = 1  # of a secure sum, by the node's policy
    most_members: int = 0  # of a secure sum: clients that the run asks in a round
    population: int = 0  # of the run: in a simulation, all of them are known
    clients: tuple[int, ...] = ()  # who takes part here: the one client, or all of the leading dimension


@dataclass(frozen=True)
class RunFacts:
    """What a client half is told beside its options.

    variant: repaired | published. facts: of methods whose guarantee depends on them. site: None: planned and audited,
    not trained. unit: person, where a method that protects examples protects all of a person's; then its counts, its
    sampling and its batches are of persons. across_sites: clients that hold rows of one person (or one and the same
    row) at most; what a release costs is stated for a person at so many.
    """

    variant: str
    facts: PublicFacts | None = None
    site: Site | None = None
    unit: str = ""
    across_sites: int = 1


# --- several clients as rows -----------------------------------------------------------------------------


def form_of_state(kind: type[Any] | None, state: dict[str, Tensor] | None, rows: bool) -> tuple[Any, ...]:
    """What states must have in common to be stacked: names, shapes, and the values of fields that are numbers. rows:
    whether the state is that of several clients.
    """
    if state is None:
        return (None,)
    plain = _number_fields(kind)
    return tuple((k, float(value) if k in plain else tuple(value.shape[rows:])) for k, value in state.items())


def _number_fields(kind: type[Any] | None) -> set[str]:
    """Fields of the method's state that are numbers and not tensors."""
    if kind is None:
        return set()
    return {item.name for item in fields(kind) if item.type in ("int", "float", int, float)}


#: A client's state; or that of several, and the rows of some of them.
State = tuple[dict[str, Tensor] | None, Sequence[int] | None]


def stacked(kind: type[Any] | None, states: Sequence[State]) -> dict[str, Tensor] | None:
    """States of one form as one, whose tensors have a leading dimension."""
    first, plain = states[0][0], _number_fields(kind)
    if first is None:
        return None

    def part(value: Tensor, rows: Sequence[int] | None) -> Tensor:
        if rows is None:
            return value[None]
        return value[torch.tensor(rows)] if value.ndim else value.expand(len(rows))

    parts = [(state, rows) for state, rows in states if state is not None]
    return {
        name: value if name in plain else torch.cat([part(state[name], rows) for state, rows in parts])
        for name, value in first.items()
    }


def single(release: Release, row: int) -> Release:
    """One client's own of the release of several that keep no state; what has no leading dimension is everybody's."""
    return Release(
        release.value[row],
        None,
        {name: v[row] if isinstance(v, Tensor) and v.ndim else v for name, v in release.figures.items()},
        {name: v[row] if v.ndim else v for name, v in release.statistics.items()},
        None if release.local is None else release.local[row],
    )
