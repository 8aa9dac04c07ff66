"""Who is asked in a round: public, drawn from the seed, and for every plan of participation known before the run."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpriv.common.errors import OptionError
from fedpriv.common.places import code_at
from fedpriv.common.seeds import draw_cohort, generator

#: How often a client may be asked: as a lottery says, once, or at most so many times.
Participation = Literal["sampled", "once", "balanced", "cyclic"]


def balanced_cohort(seed: int, server_round: int, num_clients: int, size: int) -> list[int]:
    """Sorted ids of the clients asked in a round where all are asked equally often.

    The population is gone through again and again, each pass in a random order of its own; rounds take ``size`` clients
    after one another. So nobody is asked twice within a pass, and in rounds 1..R everybody is asked floor(R size / N)
    or ceil(R size / N) times. Where a round takes the last of one pass, its other clients are the first of the next
    pass; those last ones come later in it, so a cohort never holds a client twice.
    """
    first = (server_round - 1) * size
    number, place = divmod(first, num_clients)
    cohort = _order(seed, number, num_clients, size)[place : place + size]
    if len(cohort) < size:
        cohort = np.concatenate([cohort, _order(seed, number + 1, num_clients, size)[: size - len(cohort)]])
    return sorted(cohort.tolist())


def cyclic_cohort(seed: int, server_round: int, num_clients: int, size: int) -> list[int]:
    """As `balanced_cohort` with one order for all passes: a client's place comes again after N places, so any two of
    its rounds are at least floor(N / size) apart.
    """
    order = _first_order(seed, num_clients)
    places = ((server_round - 1) * size + np.arange(size)) % num_clients
    return sorted(order[places].tolist())


@lru_cache(maxsize=2)
def _first_order(seed: int, num_clients: int) -> NDArray[np.int64]:
    return generator(seed, 0, "pass").permutation(num_clients)


def limits(participation: str, participations: int | None, num_clients: int, size: int, rounds: int) -> tuple[int, int]:
    """(k, b): in at most k of the rounds a client takes part, any two of them at least b rounds apart."""
    needed = -(-rounds * size // num_clients)
    most = 1 if participation == "once" else rounds if participation == "sampled" else participations or needed
    return most, max(1, num_clients // size) if participation in ("once", "cyclic") else 1


@lru_cache(maxsize=2)
def _orders(seed: int, num_clients: int, size: int) -> _Orders:
    return _Orders(seed, num_clients, size)


def _order(seed: int, number: int, num_clients: int, size: int) -> NDArray[np.int64]:
    """The order of pass ``number`` (int64 [N])."""
    return _orders(seed, num_clients, size).of(number)


class _Orders:
    """Orders of passes, each made from the last clients of the one before; the two newest are kept."""

    def __init__(self, seed: int, num_clients: int, size: int) -> None:
        self.seed, self.num_clients, self.size = seed, num_clients, size
        self.kept: dict[int, NDArray[np.int64]] = {}

    def of(self, number: int) -> NDArray[np.int64]:
        if number not in self.kept:
            earlier = max((known for known in self.kept if known < number), default=-1)
            last = self.kept.get(earlier)
            for one in range(earlier + 1, number + 1):
                order = self._next(one, last)
                self.kept = {one: order} if last is None else {one - 1: last, one: order}
                last = order
        return self.kept[number]

    def _next(self, number: int, last: NDArray[np.int64] | None) -> NDArray[np.int64]:
        order = generator(self.seed, number, "pass").permutation(self.num_clients)
        shared = number * self.num_clients % self.size  # clients of the round that this pass begins within
        if last is None or not shared:
            return order
        head = order[~np.isin(order, last[-shared:])][: self.size - shared]
        return np.concatenate([head, order[~np.isin(order, head)]])


def allocated_cohort(key: tuple[int, ...], place: int, num_clients: int, rounds: int) -> list[int]:
    """Sorted ids of the clients of one round of a pass, places 0..rounds - 1: every client takes part in one of them,
    drawn uniformly and independently for each client and each key.
    """
    return np.flatnonzero(_places(key, num_clients, rounds) == place).tolist()  # type: ignore[no-any-return]


@lru_cache(maxsize=2)
def _places(key: tuple[int, ...], num_clients: int, rounds: int) -> NDArray[np.int64]:
    return generator(*key, "allocation").integers(0, rounds, num_clients)


def group_cohort(seed: int, server_round: int, num_clients: int, size: int, groups: int) -> list[int]:
    """Sorted ids of a Poisson sample of one group: client k is in group k mod b, round i draws each client of group
    (i - 1) mod b with probability b size/N.
    """
    members = range((server_round - 1) % groups, num_clients, groups)
    rng = generator(seed, server_round, "cohort")
    count = int(rng.binomial(len(members), groups * size / num_clients))
    return sorted(members[place] for place in rng.choice(len(members), count, replace=False).tolist())


def cohort_of(
    seed: int,
    server_round: int,
    num_clients: int,
    size: int,
    sampling: str,
    participation: str = "sampled",
    groups: int = 1,
    own: str | None = None,
) -> list[int]:
    """Sorted ids of the clients asked in a round: where ``participation`` is "sampled", as ``sampling`` says, or as the
    function at the dotted path ``own`` does.
    """
    if own is not None:
        return _of_user(own, server_round, num_clients, size, seed)
    if sampling == "poisson" and participation == "cyclic":
        return group_cohort(seed, server_round, num_clients, size, groups)
    if sampling in ("allocated", "balls"):
        rounds = num_clients // size
        number, place = divmod(server_round - 1, rounds)
        key = (seed, number) if sampling == "allocated" else (seed,)
        return allocated_cohort(key, place, num_clients, rounds)
    if participation == "sampled":
        return draw_cohort(seed, server_round, num_clients, size, sampling)
    if participation == "cyclic":
        return cyclic_cohort(seed, server_round, num_clients, size)
    return balanced_cohort(seed, server_round, num_clients, size)


def _of_user(path: str, server_round: int, num_clients: int, size: int, seed: int) -> list[int]:
    """Raises `OptionError` for what is no cohort, and for a function that answers otherwise when it is asked again:
    the run was priced by its first answer.
    """
    option = "strategy.server.cohorts"
    try:
        found, again = (
            sorted(operator.index(one) for one in code_at(option, path)(server_round, num_clients, size, seed))
            for _ in range(2)
        )
    except OptionError:
        raise
    except Exception as error:  # the user's code
        raise OptionError(option, path, f"round {server_round}: raised {type(error).__name__}: {error}") from error
    if len(found) != size or len(set(found)) < size or not 0 <= found[0] <= found[-1] < num_clients:
        words = f"round {server_round}: must give {size} different numbers from 0 to {num_clients - 1}"
    elif found != again:
        words = f"round {server_round}: gives other clients when it is asked again: draw by its seed alone"
    else:
        return found
    raise OptionError(option, path, words)
