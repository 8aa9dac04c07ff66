"""Which clients of a secure sum share masks and hold shares of each other: how many, and how many shares open a secret.

Symbols: n -> clients, k -> neighbours, h = k/2, t -> threshold. `fedpriv.secure_sum.rules` has the proof that rests on
these numbers.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: Up to so many clients every two of them share a mask.
COMPLETE = 200
#: Of one sum: to find that no sparse graph withstands the colluders takes seconds at this size, and its square above.
MOST_MEMBERS = 2**14
#: Of sparse graphs: the probability that colluders lie so that a sum of fewer could open, over all rings that a server
#: computes; how many these are; the part of the clients that may drop out, and the probability that these are too many.
FAILURE, TRIES, DROPPING, UNAVAILABLE = 2.0**-40, 2.0**64, 0.2, 2.0**-20


def default_threshold(holders: int) -> int:
    """The least t above 2/3 of the holders: then a server that is helped by fewer than a third of them does not get
    both secrets of a client, whomever it tells what ([Bonawitz et al. 2017, Table 1]).
    """
    return max(2, 2 * holders // 3 + 1)


def graph_of(clients: int, threshold: int | None, colluders: int) -> tuple[int, int]:
    """(neighbours k, threshold t) of a sum of so many clients of whom so many collude with the server. k = 0: every two
    share a mask. threshold: the run's own, in a complete graph.
    """
    k, t = (0, threshold) if threshold is not None else sparse_graph(clients, colluders)
    return k, t or default_threshold(clients)


@lru_cache(maxsize=64)
def sparse_graph(clients: int, colluders: int) -> tuple[int, int]:
    """(neighbours k, threshold t): the least even k, and for it the largest t, for which

    - a fifth of the clients, drawn at random, may drop out: they leave fewer than t holders of any client's shares with
      probability at most 2^-20;
    - ``colluders`` of the clients fill more than t - k/2 - 2 of any k/2 places in a row of the ring with probability at
      most `FAILURE` / `TRIES` (`fedpriv.secure_sum.rules` says why these places decide).

    (0, 0) up to `COMPLETE` clients, and where no k below n - 1 suffices: every two clients share a mask.

    The ring is in the order of hashes of the group, so colluders who were chosen before all keys were announced lie on
    it as drawn without replacement: the number in one of the n windows of h = k/2 places is hypergeometric
    (n, colluders, h), and a union bound goes over windows. A server chooses run, attempt, model, members, the
    colluders' keys and who is left out, and with each choice gets another ring: `TRIES` says how many of them it is
    assumed to compute.
    """
    if clients <= COMPLETE or colluders >= clients:
        return 0, 0
    gone = math.ceil(DROPPING * clients)
    for half in range(1, (clients - 1) // 2):
        k = 2 * half
        leaving = _tails(clients - 1, gone, k)  # t - 1 of the k others must stay
        t = k + 2 - int((clients * leaving <= UNAVAILABLE).argmax())  # the last tail is zero
        if t >= half + 2 and clients * _tails(clients, colluders, half)[t - half - 1] <= FAILURE / TRIES:
            return k, t
    return 0, 0


@lru_cache(maxsize=4)
def _log_factorials(most: int) -> npt.NDArray[np.float64]:
    import numpy as np  # a quarter of a second, which a mistake in the options need not wait for

    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most + 1)))])


def _tails(population: int, marked: int, drawn: int) -> npt.NDArray[np.float64]:
    """P[at least i of the drawn are marked], float64 [i = 0..drawn + 1], without replacement."""
    import numpy as np

    logs = _log_factorials(population)
    law = np.zeros(drawn + 2)
    i = np.arange(max(0, drawn + marked - population), min(drawn, marked) + 1)
    chosen = logs[marked] - logs[i] - logs[marked - i]
    others = logs[population - marked] - logs[drawn - i] - logs[population - marked - drawn + i]
    law[i] = np.exp(chosen + others - (logs[population] - logs[drawn] - logs[population - drawn]))
    return law[::-1].cumsum()[::-1]
