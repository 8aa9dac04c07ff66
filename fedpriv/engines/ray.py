"""Clients run in Ray actors: many cores, several GPUs, several machines.

Every actor keeps data and model loaded. With the vectorised trainer a worker gets its share of a cohort as one message
and answers by one. A round's global arrays travel in it where they are small; otherwise they go into Ray's object
store once. Contexts stay with the driver and travel with the message, so that a killed actor loses nothing: it is
replaced and its clients retried once, each alone, with a new attempt number and therefore with fresh noise.

Replies are handed on in the order of the messages. Nobody is asked further ahead of the reader than `ahead` allows, so
that replies which wait for their turn, and what is under way, take the same memory in a cohort of any size.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from flwr.app import ConfigRecord, Message, RecordDict
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayTaskError

from fedpriv.common.cohort_messages import COHORT, Refused, cohort_content, cohort_of_message, part_of_cohort
from fedpriv.common.command_line import shown
from fedpriv.common.errors import ClusterLost, RunFailed
from fedpriv.common.messages import ARRAYS, ATTEMPT, CONFIG, Refusal, num_bytes, refusal
from fedpriv.common.places import own_methods
from fedpriv.common.stopping import stop
from fedpriv.common.versions import kind_of_processor
from fedpriv.config.schema import Config
from fedpriv.engines.agreement import facts
from fedpriv.engines.grid import LocalGrid, client_of
from fedpriv.engines.ray_pool import INLINE, packed, take_pool
from fedpriv.engines.worker import worker_for

RETRIES = 1  # records.ATTEMPTS_PER_START leaves room for these attempt numbers
TURN = 0.25  # seconds of work per call: little is lost with a worker, or at a deadline
#: Bytes of replies that may be under way or wait for their turn; more where many clients are one computation.
AHEAD_BYTES, VECTORISED_BYTES = 2**24, 2**28
#: Clients ahead for each worker: at least, whatever a reply weighs, and at most.
FEWEST, MOST = 2, 256

#: Seconds between two looks at the cluster, and after a worker's death: whole machines die piece by piece.
LOOK = 1.0

#: What the death of a worker, or of its machine, looks like from here.
LOSSES = (RayActorError, NodeDiedError, ObjectLostError)


def ahead(workers: int, reply_bytes: int, vectorised: bool) -> int:
    """How many clients may be under way or wait for their turn together."""
    fitting = (VECTORISED_BYTES if vectorised else AHEAD_BYTES) // max(1, reply_bytes)
    return workers * min(MOST, max(FEWEST, fitting // workers))


def fixed_share(messages: int, workers: int, window: int) -> int:
    """How many clients a worker of the vectorised trainer computes at once: its part of the cohort, or of half of what
    may be ahead, so that it need not wait for the others. Which clients that are depends on nothing else, time least.
    """
    return max(1, min(-(-messages // workers), window // (2 * workers)))


@dataclass(frozen=True)
class Errand:
    """A message on its way, for as many clients as ``size``; the place of its first client among the round's, and how
    often its worker died under it.
    """

    message: Message
    place: int = 0
    tries: int = 0
    size: int = 1

    @property
    def clients(self) -> list[int]:
        cohort = cohort_of_message(self.message)
        return [client_of(self.message)] if cohort is None else cohort[self.place : self.place + self.size]

    def goes_with(self, *others: Errand) -> bool:
        """Whether all may be in one batch: nothing went wrong yet, and the same arrays."""
        arrays = self.message.content.get(ARRAYS)
        return all(
            other.message.content.get(ARRAYS) is arrays and not self.tries and not other.tries for other in others
        )

    def light(self, without: str | None = None) -> Message:
        """The message, for these clients alone. without: a record that travels through the object store."""
        content = self.message.content
        if COHORT in content:
            content = part_of_cohort(content, slice(self.place, self.place + self.size))
        rest = RecordDict({key: record for key, record in content.items() if key != without})
        config = rest.get(CONFIG)
        if self.tries and isinstance(config, ConfigRecord):
            rest[CONFIG] = ConfigRecord({**config, ATTEMPT: int(config[ATTEMPT]) + self.tries})  # type: ignore[arg-type]
        return Message(metadata=self.message.metadata, content=rest)  # type: ignore[call-overload,no-any-return]


class RayGrid(LocalGrid):
    """A Grid over a pool of actors."""

    def __init__(self, config: Config, on_disturbance: Callable[[], None] = lambda: None) -> None:
        super().__init__(config, on_disturbance)
        self.pool = take_pool(config.engine, config.clients_per_round)
        stop.rearm()
        self.facts = facts(config)
        self.share: int | None = None  # of a round's messages, where their pieces are fixed
        self.window = 1  # messages that may be ahead of the reader
        self.weight = 0  # bytes of a message, and so of a reply
        self.staffed = False  # whether a worker was ever there
        self.looked = 0.0  # when the cluster answered last, on the monotonic clock
        self.pids: list[Any] = []
        self.joining: dict[Any, Any] = {}  # configuration under way -> its actor, which may wait for a free machine
        while self.pool.idle:
            self._configure(self.pool.idle.popleft())
        folder = shown(Path(config.run_dir)) if config.run_dir else "RUN_FOLDER"
        other = "engine=ray engine.address=HOST:PORT of another cluster"
        self.command = f"fedpriv resume={folder} engine=inprocess, or {other}"  # that goes on with the run
        self.sentinel = self._start_sentinel() if config.engine.address else None

    @property
    def carries_cohorts(self) -> bool:
        return worker_for(self.config).why_single_messages is None

    def deliver(self, messages: list[Message], deadline: float) -> Iterator[Message]:
        """Hands messages to idle actors as they become free and yields replies in order. Actors that are not done by
        the deadline are replaced; what their clients did is lost with them and never left.
        """
        self._look()
        shared: dict[int, Any] = {}  # id of a large ArrayRecord -> its place in the object store
        for message in messages:
            arrays = message.content.get(ARRAYS)
            if arrays is not None and id(arrays) not in shared and num_bytes(message.content) > INLINE:
                shared[id(arrays)] = ray.put(arrays)
        cohort = cohort_of_message(messages[0]) if len(messages) == 1 else None
        number = len(cohort or messages)
        self._plan(messages, number)
        size = (cohort and self.share) or 1
        places = range(0, number, size)
        waiting = deque(Errand(messages[0 if cohort else at], at, size=min(size, number - at)) for at in places)
        running: dict[Any, tuple[Any, list[Errand]]] = {}
        done: dict[int, tuple[int, list[Message]]] = {}  # replies whose turn has not come, and of how many clients
        turn, idle = 0, self.pool.idle
        try:
            while turn < number:
                while waiting and idle and (batch := self._next_batch(waiting, turn + self.window)):
                    actor = idle.popleft()
                    running[self._submit(actor, batch, shared)] = (actor, batch)
                if turn in done:
                    size, replies = done.pop(turn)
                    yield from replies
                    turn += size
                    continue
                if not (running or self.joining):
                    self._look(at_once=True, nobody=self.staffed)
                    for errand in waiting:
                        done[errand.place] = _lost(errand, "no worker process is left")
                    waiting.clear()
                    continue
                self._look(nobody=self.staffed and not running)
                left = min(LOOK, max(0.0, deadline - time.monotonic()))
                ready, _ = ray.wait([*running, *self.joining], num_returns=1, timeout=left)
                if not ready:
                    if time.monotonic() < deadline:  # Ray's clock is a little ahead
                        continue
                    break
                if ready[0] in self.joining:
                    self._join(ready[0])
                else:
                    done |= self._take(ready[0], *running.pop(ready[0]), waiting)
            for place in sorted(done):  # after those that are too late
                yield from done.pop(place)[1]
        finally:
            for late, _ in running.values():
                self.pool.kill(late)

    def _look(self, at_once: bool = False, nobody: bool = False) -> None:
        """Every second: whether the cluster is still there. nobody: is at work for this run. Raises `ClusterLost`."""
        if at_once or time.monotonic() - self.looked > LOOK:
            if words := self.pool.why_lost(nobody):
                kept = self.config.run_dir and any(Path(self.config.run_dir).glob("checkpoints/round-*"))
                how = "goes on from the last checkpoint" if kept else "begins anew: no checkpoint"
                raise ClusterLost(f"{words}; {self.command}, {how}")
            self.looked = time.monotonic()

    def _start_sentinel(self) -> subprocess.Popen[bytes]:
        """Says how to go on if this process ends without a word, as Ray ends it where its own machine's Ray is gone."""
        words = f"fedpriv: the run's process has ended, perhaps with its Ray cluster; {self.command}, goes on\n"
        code = "import sys; sys.stdin.read() or sys.stderr.write(sys.argv[1])"
        command = [sys.executable, "-I", "-S", "-c", code, words]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

    def _plan(self, messages: Sequence[Message], number: int) -> None:
        """How far ahead of the reader this exchange goes, and in which pieces; and a new start for lost workers."""
        vectorised = self.config.engine.trainer == "vectorised"
        # A later exchange of a round sends less down than comes up: the largest so far counts.
        told = [part for one in messages[:1] for name, part in one.content.items() if name != COHORT]
        self.weight = max(self.weight, sum(part.count_bytes() for part in told))
        self.window = ahead(self.pool.workers, self.weight, vectorised)
        # What a worker computes at once it computes in one piece, and which clients that are must not depend on time.
        self.share = fixed_share(number, self.pool.workers, self.window) if vectorised else None
        while len(self.pool.idle) + len(self.joining) < self.pool.workers:
            self._configure(self.pool.new_actor())

    def _take(
        self, answered: Any, actor: Any, batch: list[Errand], waiting: deque[Errand]
    ) -> dict[int, tuple[int, list[Message]]]:
        """What a worker sent, by place, and for how many clients. What it did not begin, or died over, waits again,
        before all others.
        """
        try:
            answers = pickle.loads(ray.get(answered))
        except LOSSES:
            time.sleep(LOOK if self.config.engine.address else 0.0)
            self._look(at_once=True)
            self.pool.kill(actor)
            self._configure(self.pool.new_actor())
            self.on_disturbance()
            again = [errand for errand in batch if errand.tries < RETRIES]
            alone = [Errand(e.message, e.place + number, e.tries + 1) for e in again for number in range(e.size)]
            waiting.extendleft(reversed(alone))
            words = f"its worker process died {RETRIES + 1} times"
            return {errand.place: _lost(errand, words) for errand in batch if errand.tries >= RETRIES}
        self.pool.idle.append(actor)
        waiting.extendleft(reversed(batch[len(answers) :]))  # not begun: the actor's turn was over
        found = {}
        for errand, (replies, contexts) in zip(batch, answers, strict=False):
            for client, context in zip(errand.clients, contexts, strict=True):
                self.contexts[client] = context
            found[errand.place] = errand.size, replies
        self.contexts.settle()
        return found

    def _next_batch(self, waiting: deque[Errand], end: int) -> list[Errand]:
        """What the next idle actor takes of the messages before place ``end``: large batches first, single messages
        last, so that all actors end together; or what is left of a fixed piece, once all of it is before ``end``.

        One call per message would cost more than a small client's work. A retried message goes alone, so that a
        client that kills its worker takes no other down with it twice.
        """
        if COHORT in waiting[0].message.content:  # a message for many is a batch
            return [waiting.popleft()] if waiting[0].place + waiting[0].size <= end else []
        share, first = self.share, waiting[0].place
        stop = end  # place after the batch
        if share is not None:
            stop = (first // share + 1) * share
            if stop > end:
                return []
        size = share or max(1, min(len(waiting), self.window) // (2 * self.pool.workers))
        batch: list[Errand] = []
        while len(batch) < size and waiting and waiting[0].place < stop and waiting[0].goes_with(*batch[:1]):
            batch.append(waiting.popleft())
        return batch

    def _configure(self, actor: Any) -> None:
        """Binds an actor to the run; it gets no message before it has answered, wherever it runs."""
        self.pids.append(actor.configure.remote(self.config.to_dict(), self.facts, own_methods()))
        self.joining[self.pids[-1]] = actor

    def _join(self, configured: Any) -> None:
        """An actor is there, or has died before; then the next exchange tries another. Raises `RunFailed` where its
        machine has not what this one has. On another kind of processor a client's bits are others: which worker gets
        it, time decides.
        """
        actor = self.joining.pop(configured)
        try:
            _, kind = ray.get(configured)
        except LOSSES:
            self._look(at_once=True)
            self.on_disturbance()
        except RayTaskError as error:
            raise RunFailed(str(error.cause)) from None
        else:
            if kind != kind_of_processor():
                self.on_disturbance()
            self.staffed = True
            self.pool.idle.append(actor)

    def _submit(self, actor: Any, batch: list[Errand], shared: dict[int, Any]) -> Any:
        stored = shared.get(id(batch[0].message.content.get(ARRAYS)))
        # Ray would pickle with cloudpickle, a Python call per object; messages need nothing but C's.
        asked = [
            (errand.light(None if stored is None else ARRAYS), [self.context_of(one) for one in errand.clients])
            for errand in batch
        ]
        return actor.handle.remote(packed(asked), stored, TURN)

    def worker_pids(self) -> list[int]:
        """Process ids of all actors that were started, for tests that kill one."""
        return [int(pid) for pid, _ in ray.get(self.pids)]

    def close(self) -> None:
        super().close()
        if self.sentinel is not None:
            self.sentinel.communicate(b"done")
        for configured, actor in () if self.pool.lost else self.joining.items():
            self._leave(configured, actor)
        self.pool.close()

    def _leave(self, configured: Any, actor: Any) -> None:
        """At the end of a run: a worker that is not there yet goes back to the pool, a dead one does not."""
        try:
            if ray.wait([configured], timeout=0)[0]:
                ray.get(configured)
        except (*LOSSES, RayTaskError):
            ray.kill(actor)
        else:
            self.pool.idle.append(actor)


def _lost(errand: Errand, reason: str) -> tuple[int, list[Message]]:
    reply = refusal(Refusal.WORKER_LOST, errand.message, reason)
    if COHORT in errand.message.content:
        refused = dict.fromkeys(errand.clients, Refused(int(Refusal.WORKER_LOST), reason))
        reply = Message(cohort_content(errand.clients, [], [], {}, None, refused), reply_to=errand.message)
    return errand.size, [reply]
