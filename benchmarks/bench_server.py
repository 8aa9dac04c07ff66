"""The server's cost of a round's replies: 1,000 of them for the model of 80,202 parameters.

Messages are created as they are read, as our own grids do, so that only the server's work is measured: checks,
decoding, the weighted mean. Peak memory is that of a separate process, above its level before the round.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from flwr.app import Message

from benchmarks.statistics import Figure, median_interval
from fedpriv.common.messages import FIRST_NODE, FloatVector, pack_vector, reply_content
from fedpriv.config.options import MethodOptions
from fedpriv.engines.grid import NodeOfClient, identify_server
from fedpriv.server.round import Population
from strategies.fedavg import FedAvg

PARAMETERS, REPLIES = 80_202, 1_000
#: Releases that the clients send in turn: drawing them is not the server's work.
DIFFERENT = 50


class Clients:
    """A grid on which all clients reply at once. waits: seconds spent on that and on making the replies."""

    in_order = True
    carries_cohorts = False

    def __init__(self, clients: int, releases: list[FloatVector]) -> None:
        self.clients, self.releases, self.waits, self.unnamed = NodeOfClient(clients), releases, 0.0, Counter[str]()

    def nodes(self) -> NodeOfClient:
        return self.clients

    def client_of(self, node: int) -> int:
        return node - FIRST_NODE

    def receive(self, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
        for place, message in enumerate(messages):
            began = time.perf_counter()
            content = reply_content(self.releases[place % DIFFERENT], 60, {"train_loss": 1.0})
            reply = Message(content, reply_to=message)
            self.waits += time.perf_counter() - began
            yield reply


def population(asked: int, wanted: int) -> Population:
    return Population(0, asked, wanted, lambda client: 60, clients_asked=asked)


def orders(replies: int) -> dict[str, int]:
    """Case -> number of replies that the server needs: it adds each as it arrives, or holds the first ones until there
    are enough.
    """
    return {"all, in order": replies, "the first of 1.3 times as many": round(replies / 1.3)}


def seconds_of(wanted: int, asked: int, releases: list[FloatVector]) -> float:
    """Seconds of one round, without making the replies."""
    cohorts = {"client_sampling": "fixed", "participation": "sampled", "participations": None}
    options = MethodOptions.model_validate({"min_replies": 1, "weighting": "examples", **cohorts})
    grid, strategy = Clients(asked, releases), FedAvg(population(asked, wanted), options)
    began = time.perf_counter()
    strategy.run_rounds(grid, pack_vector(np.zeros_like(releases[0])), 1)
    taken = time.perf_counter() - began - grid.waits
    assert len(strategy.current.replies) == wanted
    return taken


def server(rounds: int, small: bool) -> Iterator[tuple[str, dict[str, Figure]]]:
    """Two tables: MiB by which a fresh process's peak grows in a round, and seconds of a round."""
    replies, parameters = (20, 100) if small else (REPLIES, PARAMETERS)
    identify_server()
    releases, times = random_releases(parameters), max(5, rounds)
    size = f"{replies:,} replies of {parameters:,} parameters"
    with get_context("fork").Pool(1, maxtasksperchild=1) as fresh:
        rows = {
            name: fresh.starmap(_growth, [(wanted, replies, releases)] * times, chunksize=1)
            for name, wanted in orders(replies).items()
        }
    yield f"server's peak memory of a round in MiB, {size}", {name: median_interval(mib) for name, mib in rows.items()}
    rows = {name: [] for name in orders(replies)}
    for turn in range(times + 1):  # the first is a warm-up
        for name, wanted in orders(replies).items():
            taken = seconds_of(wanted, replies, releases)
            rows[name] += [taken] if turn else []
    yield f"server's own time per round in s, {size}", {name: median_interval(s) for name, s in rows.items()}


def random_releases(parameters: int) -> list[FloatVector]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=parameters).astype(np.float32) for _ in range(DIFFERENT)]


def _growth(wanted: int, asked: int, releases: list[FloatVector]) -> float:
    """MiB by which this process's peak exceeds what it held before the round."""
    seconds_of(2, 2, releases)
    before = _resident("VmRSS")
    seconds_of(wanted, asked, releases)
    return max(0.0, _resident("VmHWM") - before)


def _resident(name: str) -> float:
    """MiB, from Linux's figures for this process; getrusage's peak would be the parent's."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024
