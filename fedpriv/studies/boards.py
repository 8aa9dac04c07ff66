"""conf/leaderboard/*.yaml: one board for each threat model, with its setting, methods, and what is tried for each.

How often, where and when a client takes part, and how its batches are drawn, is the board's (``plan``), for all methods
alike: otherwise a difference between two methods might be one between two plans. A method that has a plan of its own
in its paper is a second row, which says so (``plan`` of a method).

**Search.** Points are those of a scrambled Sobol sequence (`scipy.stats.qmc`), even in the logarithm of every option.
Not by a sampler that learns from trial to trial (TPE and the like): all trials of a sequence are known beforehand, so
they run side by side, are the same for any number of workers and after any interruption, and are as many, at the same
places of its ranges, for every method.

An option that rivals do not have (``own`` of a range) takes a further coordinate of the sequence and moves no point of
the others: over the shared options, searches with as many of them have the same points. The points of a sequence over
the shared options, with the further coordinates of one over all options beside them, are again a scrambled Sobol
sequence over all options. For a coordinate's generator does not depend on how many there are, and scrambling acts on
each coordinate alone: it permutes the intervals of every length 2^-k among themselves. So the boxes of any shape, all
together, hold as many points each as those of the sequence without scrambling.

A best trial in the outermost tenth of a range (of its logarithm) stands at an edge: the best may lie beyond. Then every
search of the board gets the same number of further trials; a range whose own best stands at an edge grows there by a
fixed factor, and the further trials lie in what was added; the others' lie in the ranges that they have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import CONF
from fedpriv.privacy.events import Threat
from fedpriv.studies.papers import Spec, read, refused
from fedpriv.studies.results import Measure

BOARDS = CONF / "leaderboard"

#: Set by the study itself.
RESERVED = (
    *("seed", "dataset", "dataset.split", "privacy.delta"),
    *("privacy.target_epsilon", "privacy.target_observer", "privacy.variant"),
)
#: What a plan decides, and no row's overrides.
PLANNED = (
    *("num_clients", "clients_per_round", "num_rounds", "over_selection", "local.sampler"),
    *("strategy.server.participation", "strategy.server.participations", "strategy.server.client_sampling"),
)

#: Of the length of a range's logarithm: where its edges begin.
EDGE = 0.1
Side = Literal["low", "high"]


class Range(Spec):
    """Values of one option. least, most: limits of the option itself, beyond which no range grows. whole: integers
    alone. near_one: even in the logarithm of 1 - value, for a factor of which all that happens is near 1; low and high
    are then the option's limits too. own: of an option that rivals do not have.
    """

    low: float = Field(gt=0, allow_inf_nan=False)
    high: float = Field(gt=0, allow_inf_nan=False)
    least: float = Field(default=0.0, ge=0)
    most: float = math.inf
    whole: bool = False
    near_one: bool = False
    own: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.least <= self.low < self.high <= self.most:
            raise ValueError(f"low={self.low:g}, high={self.high:g}: allowed: least <= low < high <= most")
        if self.near_one and not self.high < 1:
            raise ValueError(f"high={self.high:g} with near_one: allowed: less than 1")
        if self.whole and (self.near_one or not (self.low.is_integer() and self.high.is_integer())):
            raise ValueError(f"low={self.low:g}, high={self.high:g} with whole: allowed: integers, without near_one")
        return self

    def at(self, share: float) -> float:
        """The value at a share of the way from low to high, in logarithms, to three significant digits."""
        if self.near_one:
            value = 1 - (1 - self.low) * ((1 - self.high) / (1 - self.low)) ** share
        else:
            value = self.low * (self.high / self.low) ** share
        value = min(self.high, max(self.low, value))
        return float(round(value)) if self.whole else float(f"{value:.3g}")

    def side(self, value: float) -> Side | None:
        """The edge at which a value stands, unless the option itself ends there."""
        if self.near_one:
            return None
        place = math.log(value / self.low) / math.log(self.high / self.low)
        if place <= EDGE and self.low > self.least:
            return "low"
        return "high" if place >= 1 - EDGE and self.high < self.most else None

    def beyond(self, side: Side | None, factor: float) -> Range:
        """What widening adds on a side; the range itself where it is not widened."""
        if side is None:
            return self
        end = self.low / factor if side == "low" else self.high * factor
        end = float(max(1, round(end))) if self.whole else end
        if side == "low":
            return self.model_copy(update={"low": max(self.least, end), "high": self.low})
        return self.model_copy(update={"low": self.high, "high": min(self.most, end)})

    def grown(self, side: Side | None, factor: float) -> Range:
        added = self.beyond(side, factor)
        return self.model_copy(update={"low": min(self.low, added.low), "high": max(self.high, added.high)})

    def in_words(self) -> str:
        scale = ", integers" if self.whole else ", even in the logarithm of its distance to 1" if self.near_one else ""
        return f"{self.low:g} to {self.high:g}{scale}"


Space = Mapping[str, Range]
Trial = tuple[str, ...]


@dataclass(frozen=True)
class Search:
    """Of one method at one target. space: its ranges now; trials: what is tried, as overrides, in order."""

    space: Space
    trials: tuple[Trial, ...] = ()

    def further(self, best: Trial | None, count: int, seed: int, factor: float) -> Search:
        """With so many more trials, in what the best one widens, or in the same ranges."""
        sides = self.sides(best)
        shares = _shares(self.space, len(self.trials) + count, seed)[len(self.trials) :]
        added = {option: own.beyond(sides.get(option), factor) for option, own in self.space.items()}
        grown = {option: own.grown(sides.get(option), factor) for option, own in self.space.items()}
        return replace(self, space=grown, trials=(*self.trials, *(_trial(added, share) for share in shares)))

    def sides(self, best: Trial | None) -> dict[str, Side]:
        """Option -> the edge at which the best trial stands."""
        values = {option: float(value) for option, _, value in (one.partition("=") for one in best or ())}
        found = {option: self.space[option].side(value) for option, value in values.items()}
        return {option: side for option, side in found.items() if side is not None}

    def in_words(self) -> str:
        return "; ".join(f"{option} from {own.in_words()}" for option, own in self.space.items())


def begin(space: Space, count: int, seed: int) -> Search:
    return Search(space, tuple(_trial(space, share) for share in _shares(space, count, seed)))


def _shares(space: Space, count: int, seed: int) -> list[list[float]]:
    """Point by point, where each option stands on its range, in the order of the space."""
    shared = sum(not one.own for one in space.values())
    first, whole = points(shared, count, seed), points(len(space), count, seed)
    order = sorted(space, key=lambda option: space[option].own)
    both = (dict(zip(order, (*a, *b[shared:]), strict=True)) for a, b in zip(first, whole, strict=True))
    return [[share[option] for option in space] for share in both]


def _trial(space: Space, shares: Sequence[float]) -> Trial:
    return tuple(f"{option}={own.at(share):g}" for (option, own), share in zip(space.items(), shares, strict=True))


def points(dimensions: int, count: int, seed: int) -> list[list[float]]:
    """The first ``count`` points of the sequence in [0, 1)^dimensions; a longer call begins with the same ones."""
    from scipy.stats import qmc  # half a second to import

    sequence = qmc.Sobol(dimensions, scramble=True, rng=seed)
    found: list[list[float]] = sequence.random_base2(max(1, math.ceil(math.log2(count))))[:count].tolist()
    return found


def drawn(space: Space, rng: np.random.Generator) -> Trial:
    """One trial at random, independent of any other: what private selection needs."""
    return _trial(space, rng.random(len(space)).tolist())


# --- the files ---------------------------------------------------------------------------------------------


def _no_list(search: Any) -> Any:
    if isinstance(search, list | tuple):
        raise ValueError("a list of values has edges chosen by hand; allowed: option: {low: L, high: H}")
    return search


#: Option -> the range that is searched.
Ranges = Annotated[dict[str, Range], BeforeValidator(_no_list)]


class Method(Spec):
    """overrides: what the method adds to the board's setting. search: what replaces the board's own of the same option,
    or stands beside it. plan: in place of the board's, where the method has one of its own. targets: of the board's, if
    not all. against: an idea's opponents in place of the plain methods: rows that read what it reads. why: why it
    stands where it does, for the list of what is not ranked.
    """

    name: str = Field(pattern="[a-z0-9-]+")
    label: str = Field(min_length=1)
    paper: str
    idea: Literal["plain", "paper", "rival"]
    overrides: tuple[str, ...] = Field(min_length=1)
    search: Ranges = Field(default={})
    plan: tuple[str, ...] = ()
    targets: tuple[float, ...] = ()
    against: tuple[str, ...] = ()
    why: str = ""


class Tuning(Spec):
    """seed: of the runs among which is chosen, and of the search's points. pictures: training pictures that they are
    tested on. trials: how many at first; further: of each widening; widenings: at most; factor: by
    which a range grows. private: how often is tried is drawn from ``law`` with ``trials`` as its mean, and the choice
    is part of the guarantee (`fedpriv.privacy.private_selection`).
    """

    seed: int = Field(ge=0, lt=2**31)
    pictures: int = Field(ge=1)
    trials: int = Field(ge=2, le=1024)
    further: int = Field(default=4, ge=1, le=1024)
    widenings: int = Field(default=2, ge=0, le=5)
    factor: float = Field(default=4.0, gt=1)
    private: bool = False
    law: Literal["geometric", "logarithmic"] = "geometric"


class Longer(Spec):
    """What scale=literal puts in place of a board's own."""

    words: str | None = None
    setting: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    targets: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()


class BoardPlan(Spec):
    """A file of conf/leaderboard. words: the setting for readers. setting: overrides of every run; plan: those that say
    who takes part when, which no method's overrides change. reference: the same setting without privacy; on_features:
    the same on the features that rows of the board read; alone: a line of epsilon 0, where every client trains by
    itself. measure: by which is ranked: the accuracy of the server's model
    on the test set (final), the mean accuracy of the clients' own models on their own test examples (personalised), the
    leading metric of the data's task, or another one of its metrics, both of the server's model; of metrics between 0
    and 1 of which more is better. literal: the longer setting.
    """

    title: str = Field(min_length=1)
    unit: Literal["client", "example", "person"]
    adjacency: Literal["replace-one", "zero-out", "add-or-remove-one"]
    observer: Literal["server", "server+members", "secure-sum", "trusted-server", "public"]
    dataset: Literal["digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "breast_cancer", "practices"]
    measure: Measure = "final"
    delta: float = Field(gt=0, lt=1)
    words: str
    setting: tuple[str, ...]
    plan: tuple[str, ...] = ()
    targets: tuple[float, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    tuning: Tuning
    search: Ranges
    reference: Method
    on_features: Method | None = None
    alone: Method | None = None
    methods: tuple[Method, ...] = Field(min_length=1)
    literal: Longer | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for place, words in self._wrong():
            raise ValueError(f"{place}: {words}")
        return self

    def _wrong(self) -> Iterator[tuple[str, str]]:
        """What no single key can show: no target, seed or name twice, nothing reserved, a range for everybody."""
        names = [method.name for method in self.methods]
        for key, values in (("targets", self.targets), ("seeds", self.seeds), ("methods", names)):
            if len(set(values)) < len(values):
                yield key, f"{', '.join(map(str, values))}: one of them is there twice"
        if min(self.targets) <= 0:
            yield "targets", f"{min(self.targets)}: must be more than 0"
        if self.tuning.seed in self.seeds:
            yield "tuning.seed", f"{self.tuning.seed} is also one of seeds: the choice must not see these runs"
        given = [("setting", (*self.setting, *self.plan))]
        for method in (*self.lines, *self.methods):
            given.append((f"{method.name}.overrides", (*method.overrides, *method.plan)))
            given.append((f"{method.name}.search", (*self.search, *method.search)))
            for key, own, known in (("targets", method.targets, self.targets), ("against", method.against, names)):
                if unknown := [value for value in own if value not in known]:
                    yield f"{method.name}.{key}", f"{unknown[0]}: allowed: {', '.join(map(str, known))}"
            if all(one.own for one in (self.search | method.search).values()):
                yield f"{method.name}.search", "names no range of an option that rivals have"
            for override in method.overrides if self.plan else ():
                if option_of(override) in PLANNED:
                    words = (
                        "is the board's plan, the same for all rows; a row with a plan of its own names it under plan"
                    )
                    yield f"{method.name}.overrides", f"{override} {words}"
        for key, overrides in given:
            for override in overrides:
                if option_of(override) in RESERVED:
                    yield key, f"{override} is set by the leaderboard itself"

    @property
    def threat(self) -> Threat:
        return Threat(self.unit, self.adjacency, self.observer)

    @property
    def lines(self) -> tuple[Method, ...]:
        """What has no target."""
        return tuple(line for line in (self.reference, self.on_features, self.alone) if line is not None)

    def at_scale(self, scale: str) -> BoardPlan:
        """small: as the file says; literal: with its longer setting, where it has one."""
        if scale == "small" or self.literal is None:
            return self
        new = self.literal.model_dump(exclude_unset=True)
        new |= {key: (*getattr(self, key), *new[key]) for key in ("setting", "plan") if key in new}
        return BoardPlan.model_validate(self.model_dump(exclude_unset=True) | new)


def option_of(override: str) -> str:
    return override.partition("=")[0]


def read_boards(wanted: str, folder: Path = BOARDS, scale: str = "small") -> dict[str, BoardPlan]:
    """The boards named (with commas, or ``all``) at a scale (`BoardPlan.at_scale`). Raises `OptionError` for unknown
    ones and for broken files.
    """
    known = sorted(file.stem for file in folder.glob("*.yaml"))
    names = known if wanted == "all" else [name.strip() for name in wanted.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise OptionError("board", unknown[0], f"allowed: all, {', '.join(known)}")
    found = {}
    for name in dict.fromkeys(names):
        board = read(folder / f"{name}.yaml", BoardPlan, "board")
        try:
            found[name] = board.at_scale(scale)
        except ValidationError as error:
            raise refused(error, f"{folder / name}.yaml at scale={scale}", "board") from None
    return found
