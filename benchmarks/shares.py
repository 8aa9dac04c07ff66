"""How a round's time divides: training, privacy, messages and memories, aggregation, evaluation.

Every function that belongs to a part is timed without the time of other parts inside it, so that the parts add up to
the whole round. One process, one client at a time.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.contenders import own_options
from benchmarks.job import Job
from benchmarks.statistics import Figure, median_interval

TRAINING, PRIVACY, MESSAGES, AGGREGATION, EVALUATION = PARTS = (
    "training",
    "privacy",
    "messages and memories",
    "aggregation",
    "evaluation",
)
#: A client half's work for privacy: noise and costs, keys where bits are shared.
ASKED = ("_key", "_seeds", "_join")


class Stopwatch:
    """Seconds of each part over all completed rounds."""

    def __init__(self) -> None:
        self.rounds: list[Counter[str]] = []
        self._parts: list[str] = []  # the active ones, the innermost last
        self._now: Counter[str] = Counter()
        self._since = 0.0

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._switch()
            self._parts.append(part)
            try:
                return function(*arguments, **options)
            finally:
                self._switch()
                self._parts.pop()

        return call

    def end_round(self) -> None:
        self._switch()
        self.rounds.append(self._now)
        self._now = Counter()

    def _switch(self) -> None:
        """Adds the time since the last switch to the innermost part."""
        now = time.perf_counter()
        if self._parts:
            self._now[self._parts[-1]] += now - self._since  # type: ignore[assignment]
        self._since = now


@contextmanager
def watched(stopwatch: Stopwatch, client: type[Any], server: type[Any]) -> Iterator[None]:
    """Times the parts of runs that use these client and server classes."""
    from fedpriv.client.method import Method
    from fedpriv.engines.worker import Worker
    from fedpriv.runs.session import Session
    from fedpriv.training.sequential import SequentialTrainer

    belongs = [
        (MESSAGES, server, ("run_rounds",)),  # all that belongs to no other part
        (TRAINING, Worker, ("local_data",)),
        (TRAINING, SequentialTrainer, ("train", "clipped_sum")),
        (PRIVACY, client, ("releasing", "release", "measure", "price", *ASKED)),
        (PRIVACY, Method, ("entries", "check_budget")),
        (PRIVACY, Session, ("_collect", "_epsilon_so_far")),
        (AGGREGATION, server, ("aggregate",)),
        (EVALUATION, Session, ("_evaluate",)),
        (EVALUATION, SequentialTrainer, ("accuracy",)),
    ]
    with ExitStack() as stack:
        for part, kind, names in belongs:
            for name in filter(partial(hasattr, kind), names):
                stack.enter_context(patch.object(kind, name, stopwatch.timed(part, getattr(kind, name))))
        end = Session._end_round

        def end_round(session: Session, current: Any) -> None:
            end(session, current)
            stopwatch.end_round()

        stack.enter_context(patch.object(Session, "_end_round", end_round))
        yield


def shares(job: Job, strategy: str, rounds: int, extra: Sequence[str] = ()) -> dict[str, Figure]:
    """Each part's share of a round without its evaluation (medians over all rounds but the first)."""
    from fedpriv.client.build import client_class
    from fedpriv.config.compose import compose
    from fedpriv.runs.preparation import server_class
    from fedpriv.runs.start import start_run

    options = [
        *own_options(job, "inprocess", 1, ()),
        *(f"strategy={strategy}", f"num_rounds={rounds + 1}", "engine.trainer=sequential", "checkpoint.every=0"),
        *extra,
    ]
    config, stopwatch = compose(options), Stopwatch()
    with tempfile.TemporaryDirectory() as place, watched(stopwatch, client_class(config), server_class(config)):
        start_run(config, Path(place) / "run")
    measured = stopwatch.rounds[1:]
    wholes = [sum(seconds.values()) - seconds[EVALUATION] for seconds in measured]
    return {
        part: median_interval([seconds[part] / whole for seconds, whole in zip(measured, wholes, strict=True)])
        for part in PARTS
    }
