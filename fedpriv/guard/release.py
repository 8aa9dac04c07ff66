"""What one guarded answer costs: a clipped answer of each shard, their sum, and noise.

A machine divides its data by a keyed hash of the unit's id into k shards (`fedpriv.guard.shards`), starts an app once
for each, and clips the answer of each to C as one vector v_j. It releases their sum with noise. With unit client there
is one shard: everything.

**What one unit changes.** Whatever theta and the app are: a row or person more or less is in exactly one shard j, which
the hash of its own id decides, and no other shard changes (their contents, order and names are functions of their own
rows). The app is started for every shard by itself, keeps nothing between starts and sees no other shard, so of all
answers only v_j has another law. Both v_j and v'_j lie in the ball of radius C. They can be opposite: the rows that
stay in the shard may have pulled the answer to +C, and the row that came may pull it to -C; a clipped answer is no sum
over rows. So

    add or remove one row, one person:          the sum moves by up to **2C**, and not by C;
    replace a person's rows, the id kept:        one shard, 2C;
    replace a row by another, or an id:         two shards, 4C: a bound for this is not booked;
    unit client, any data against any other:    2C.

Given the app's randomness, which is independent of all else, v_j and v'_j are fixed; mixing over it does not increase a
divergence (joint quasi-convexity). An empty shard is a shard: it is started like any other, and its answer is some
vector in the ball. A start that crashes, times out, or answers with other shapes or with numbers that are not finite
has the answer 0, which is in the ball: a crash that depends on a row is a move of C. So `SENSITIVITY` is 2 in units of
C, whatever k is; what k changes is the noise in the *mean*, z C / k.

**Single units.** With `single` a shard that holds exactly one unit is started, and every other shard's answer is 0
without a start. A unit that comes or goes changes one shard j: from none to one unit or back, and v_j from 0 to a
vector in the ball; from one to two, and v_j from a vector in the ball to 0; or from two or more to two or more, and v_j
is 0 both times. So the sum moves by up to **C**: `moves` is 1. The number of starts is not in the answer, but in its
time, unless `pad_seconds` gives a shard that is not started the time of one that is. Rows that share a shard are lost:
of n units in k shards about n e^(-n/k) answer. `expected` stays k: how many answered is nobody's to know.

**Counts.** What a policy declares as counts (`counted`) is clipped after its negative numbers became 0. Two vectors u
and v of length C at most, without negative numbers, are less far apart than any two of the ball:
|u - v|^2 = |u|^2 + |v|^2 - 2 u.v <= 2 C^2, since u.v >= 0. So a unit moves their sum by up to **sqrt(2) C**, which two
counts reach, and with `single` by C. All shards are in the sum: the pair that dominates sampled answers is of two
opposite ones, which counts are not.

**Rounding.** A clipped answer keeps 1e-6 of C back (`fedpriv.mechanisms.noise`), more than float32 can add. With own
noise each answer is moved towards zero onto the noise's grid, by which it gets no longer, and multiples of the grid's
step add up exactly in float64 (`add_normal_to_sum`): two sums differ by v_j - v'_j and by nothing else. In a secure sum
each answer is rounded to whole numbers of R = C/gamma steps, by at most sqrt(d)/2 in length, and whole numbers add up
exactly: two sums differ by at most 2R + sqrt(d) steps.

**Time** is not in this account. A shard sees on its clock how long the one before it took, and an app that waits for a
row of one shard would so reach the answers of all later ones. `pad_seconds` gives every start the same time, and is
needed for apps that nobody has read (policy); of an approved app it is trusted that it does no such thing. What the
server sees of time is data-independent only with it.

**Sampled shards.** With q < 1 each shard is in a round's sum by a coin of its own from the operating system. All are
started, drawn or not, so that neither time nor an app tells the draw. The unit that comes or goes changes a shard;
whether the shard is drawn it does not change. The pair that dominates is in `fedpriv.privacy.sampled_laws`; the law
of add-or-remove would be too little. Refused under whole-number noise.

**In a secure sum** the observer sees the sum over at least `min_replies` machines, of whose noises it does not know
those of all but `colluders`: `DiscreteGaussianSum` and `SkellamSum` with that many noises, as of any other sum.

Symbols: C -> clip, z -> noise_multiplier, k -> shards, q -> sampling, R -> `RowSumGrid.steps`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.common.files import json_number
from fedpriv.deployment.guard_policy import GuardPolicy, Noise
from fedpriv.deployment.policy import Booked
from fedpriv.mechanisms.noise import NoiseSource, add_normal_to_sum, clip, finite_or_zero
from fedpriv.privacy.composition import compose, verify
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    SECURE_SUM,
    Entry,
    Event,
    Gaussian,
    ReplacedGaussian,
    Threat,
)
from fedpriv.privacy.ledger import LedgerFile
from fedpriv.privacy.sum_grid import RowSumGrid

#: How far one unit moves the sum of clipped answers, in units of C, where a shard may hold several.
SENSITIVITY = 2.0
#: The same of counts.
COUNT_SENSITIVITY = math.sqrt(2)
#: `Terms.reply` of declared counts.
COUNTS = "counts"
#: The kind of a message that is no declared query.
TRAIN = "train"

THREATS = {
    "row": Threat("example", "add-or-remove-one", "server"),
    "person": Threat("person", "add-or-remove-one", "server"),
    "client": CLIENT_TO_SERVER,
}
#: Numbers of all shards' answers that are held and clipped in one call; of more it is one answer at a time.
TOGETHER = 2**22
#: The part of delta that one release of Skellam noise uses up.
SHARE = 1e-10


@dataclass(frozen=True)
class Terms:
    """The public numbers of a machine's guard, which its policy fixes and every answer keeps to."""

    unit: str
    shards: int
    single: bool
    sampling: float
    clip: float
    noise_multiplier: float
    noise: Noise
    reply: str
    sandbox: str
    sites: int
    min_replies: int
    colluders: int
    threshold: int | None
    bits: int
    #: By kind of message, what a policy declares.
    counts: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, policy: GuardPolicy) -> Self:
        given = {name: getattr(policy, name) for name in cls.__dataclass_fields__}
        return cls(**given | {"counts": {kind: query.model_dump() for kind, query in policy.counts.items()}})

    def counted(self, kind: str) -> tuple[Self, int]:
        """The terms of a declared vector of counts, and its numbers K. Raises KeyError."""
        query = self.counts[kind]
        own = {name: query[name] for name in ("clip", "noise_multiplier")}
        return replace(self, **own, sampling=1.0, reply=COUNTS, counts={}), sum(query["metrics"].values())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises `OptionError` for what no guard says."""
        try:
            found = json.loads(text)
            data = {"apps": (), **found}
            if found["unit"] == "person":
                data["column"] = "id"
            return cls.of(GuardPolicy.model_validate(data))
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError("guard", " ".join(str(error).split())[:200], "no terms of a guard") from None

    def to_json(self) -> str:
        """The same text on every machine of a sum."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def digest(self) -> bytes:
        """What members of a sum sign."""
        return hashlib.sha256(b"fedpriv guard 1 " + self.to_json().encode()).digest()

    # --- the account -----------------------------------------------------------------------------------------

    @property
    def in_sum(self) -> bool:
        return self.noise != "own"

    @property
    def threat(self) -> Threat:
        found = THREATS[self.unit]
        return Threat(found.unit, found.adjacency, SECURE_SUM.observer) if self.in_sum else found

    @property
    def noises(self) -> int:
        """Noises in a sum that its observer does not know."""
        return self.min_replies - self.colluders

    @property
    def moves(self) -> float:
        """How far one unit moves the sum of clipped answers, in units of C."""
        return 1.0 if self.single else COUNT_SENSITIVITY if self.reply == COUNTS else SENSITIVITY

    @property
    def expected(self) -> float:
        """Shards in a round's answer, by which its sum is divided."""
        return self.shards * self.sampling

    def grid(self, dimension: int) -> RowSumGrid:
        """Of whole numbers in a sum; its rows are all machines' shards."""
        form: Any = self.noise
        return RowSumGrid(form, dimension, self.shards * self.sites, self.sites, self.bits, self.noise_multiplier)

    def event(self, dimension: int) -> Event:
        """One round's answer about a model of so many numbers."""
        if not self.in_sum:
            multiplier = self.noise_multiplier / self.moves
            if self.sampling == 1:
                return Gaussian(threat=self.threat, multiplier=multiplier)
            return ReplacedGaussian(threat=self.threat, multiplier=multiplier, sampling_rate=self.sampling)
        return self._in_sum(dimension, self.threat, self.noises)

    def alone(self, dimension: int) -> Event | None:
        """In a sum: what the same answer would cost before who sees it without its masks; None: nobody asks."""
        return self._in_sum(dimension, THREATS[self.unit], 1) if self.in_sum else None

    def _in_sum(self, dimension: int, threat: Threat, noises: int) -> Event:
        grid = self.grid(dimension)
        found = grid.event(threat, noises, SHARE)
        return replace(found, l2=self.moves * grid.steps + dimension**0.5)

    def booked(self, dimension: int, client: int, server_round: int) -> Booked:
        """What the ledger holds of it."""
        events = [event for event in (self.event(dimension), self.alone(dimension)) if event is not None]
        entries = (Entry(server_round, client, server_round, 0, event) for event in events)
        return Booked(tuple(entries), self.threat)

    def booked_kinds(self, dimension: int) -> dict[str, tuple[Event, ...]]:
        """What one answer of each kind costs, before each observer. dimension: of the model; 0: none is trained."""
        kinds = {kind: self.counted(kind) for kind in self.counts} | ({TRAIN: (self, dimension)} if dimension else {})
        return {
            kind: tuple(event for event in (terms.event(size), terms.alone(size)) if event is not None)
            for kind, (terms, size) in kinds.items()
        }

    # --- the release -----------------------------------------------------------------------------------------

    def drawn(self, source: NoiseSource) -> list[int]:
        """The shards of this round, by coins that nobody else knows."""
        if self.sampling == 1:
            return list(range(self.shards))
        return torch.nonzero(source.uniform((self.shards,)) < self.sampling).flatten().tolist()

    def release(self, answers: Iterable[NDArray[np.float64]], dimension: int, source: NoiseSource) -> Tensor:
        """What leaves of the drawn shards' answers (float64 [d] each, of any length): their clipped sum with noise, in
        units of C. With own noise float32 [d]; in a sum whole numbers, int64 [d]. Answers are added up as they come: of
        small models all together, after the last one; otherwise each before the next is asked for, so that no shard
        begins after the work on several.
        """
        waiting, most = iter(answers), self.shards if self.shards * dimension <= TOGETHER else 1
        groups = iter(lambda: list(islice(waiting, most)), [])
        clipped = (self.clipped(np.stack(group)) / self.clip for group in groups)
        if not self.in_sum:
            parts = (part for group in clipped for part in group)
            return add_normal_to_sum(parts, (dimension,), self.noise_multiplier, source)
        grid, total = self.grid(dimension), torch.zeros(dimension, dtype=torch.int64)
        for group in clipped:
            total += (group * grid.steps).round().long().sum(0)
        return total + grid.noise(total.shape, source)

    def clipped(self, answer: NDArray[np.float64]) -> Tensor:
        """Answers (float64 [..., d]), each of length C at most; zero where a number of it is not finite. Counts below 0
        are 0.
        """
        numbers = finite_or_zero(torch.from_numpy(answer))
        return clip(numbers.clamp(min=0) if self.reply == COUNTS else numbers, self.clip)


# --- what answers cost: planned from the terms, verified from a ledger ---------------------------------------------


def claimed_epsilon(terms: Terms, dimension: int, rounds: int | Mapping[str, int], delta: float) -> float:
    """Of so many answers (of each kind) about a model of so many numbers, under the terms' own threat."""
    times, kinds = {TRAIN: rounds} if isinstance(rounds, int) else rounds, terms.booked_kinds(dimension)
    return compose([replace(kinds[kind][0], count=count) for kind, count in times.items() if count], delta).epsilon


def answers_of(entries: Iterable[Entry], terms: Mapping[int, Terms], dimension: int) -> dict[int, dict[str, int]]:
    """How often each machine answered, by kind; kinds that cost the same are one. Raises ValueError for an entry that
    these terms never book.
    """
    found: dict[int, dict[str, int]] = {}
    kinds = {client: one.booked_kinds(dimension) for client, one in terms.items()}
    for entry in entries:
        place = [
            (kind, events.index(entry.event)) for kind, events in kinds[entry.client].items() if entry.event in events
        ]
        if not place:
            raise ValueError(f"an answer of machine {entry.client} was booked under other terms")
        kind, observer = place[0]
        times = found.setdefault(entry.client, {})
        times[kind] = times.get(kind, 0) + (observer == 0)
    return found


def figures(
    terms: Mapping[int, Terms], answers: Mapping[int, Mapping[str, int]], ledger: Path, dimension: int, delta: float
) -> list[dict[str, Any]]:
    """Claimed and verified epsilon under every threat of a run, the first machine's own first. terms: by machine;
    answers: `answers_of`; ledger: the server's, composed from what it says.
    """
    booked = LedgerFile(ledger, fsync=False).read().by_client()
    planned = {
        client: [
            replace(event, count=count)
            for kind, count in times.items()
            for event in terms[client].booked_kinds(dimension)[kind]
        ]
        for client, times in sorted(answers.items())
    }
    found = []
    own = [terms[client].threat for client in planned]
    for threat in dict.fromkeys([*own, *(event.threat for events in planned.values() for event in events)]):
        under = [[event for event in events if event.threat == threat] for events in planned.values()]
        claimed = max(compose(events, delta).epsilon for events in under if events)
        verified = verify(booked, delta, threat=threat)
        found.append(
            {
                "unit": threat.unit,
                "adjacency": threat.adjacency,
                "observer": threat.observer,
                "delta": delta,
                "claimed_epsilon": json_number(claimed),
                "verified_epsilon": json_number(verified.maximum),
                "accountant": verified.accountant,
            }
        )
    return found


def with_epsilon(terms: Terms, dimension: int, rounds: int, delta: float, epsilon: float) -> Terms:
    """The terms with the least noise (to one part in 10^4) that keeps to epsilon. Raises `OptionError`."""
    low, high = 1e-3, 1.0
    while claimed_epsilon(replace(terms, noise_multiplier=high), dimension, rounds, delta) > epsilon:
        low, high = high, 2 * high
        if high > 1e6:
            raise OptionError("epsilon", epsilon, "no noise is enough for so little")
    while high / low > 1 + 1e-4:
        middle = (low * high) ** 0.5
        over = claimed_epsilon(replace(terms, noise_multiplier=middle), dimension, rounds, delta) > epsilon
        low, high = (middle, high) if over else (low, middle)
    return replace(terms, noise_multiplier=high)
