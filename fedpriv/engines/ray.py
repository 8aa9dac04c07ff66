"""Clients run in Ray actors: many cores, several GPUs, several machines.

Every actor keeps data and model loaded. A round's global arrays go into Ray's object store once, not once per
message. Contexts stay with the driver and travel with the message, so that a killed actor loses nothing: it is
replaced and its client retried once, with a new attempt number and therefore with fresh noise.
"""

from __future__ import annotations

import math
import pickle
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ray
from flwr.app import ConfigRecord, Message, RecordDict
from ray.exceptions import RayActorError

from fedpriv.config import Config
from fedpriv.engines.grid import LocalGrid, client_of
from fedpriv.engines.ray_pool import take_pool
from fedpriv.records import ARRAYS, ATTEMPT, CONFIG, Refusal, refusal

RETRIES = 1  # run.ATTEMPTS_PER_START leaves room for these attempt numbers
TURN = 0.25  # seconds of work per call: little is lost with a worker, or at a deadline


@dataclass(frozen=True)
class Errand:
    """A message on its way, and how often its worker died under it."""

    message: Message
    tries: int = 0

    def goes_with(self, other: Errand) -> bool:
        """Whether both may be in one batch: nothing went wrong yet, and the same arrays."""
        mine, others = self.message.content.get(ARRAYS), other.message.content.get(ARRAYS)
        return mine is others and not self.tries and not other.tries

    def light(self) -> Message:
        """The message without its arrays, which travel through the object store."""
        content = self.message.content
        rest = RecordDict({key: record for key, record in content.items() if key != ARRAYS})
        config = rest.get(CONFIG)
        if self.tries and isinstance(config, ConfigRecord):
            rest[CONFIG] = ConfigRecord({**config, ATTEMPT: int(config[ATTEMPT]) + self.tries})  # type: ignore[arg-type]
        return Message(metadata=self.message.metadata, content=rest)  # type: ignore[call-overload,no-any-return]


class RayGrid(LocalGrid):
    """A Grid over a pool of actors."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.pool = take_pool(config.engine, config.clients_per_round)
        self.share = 1  # of a round's messages, the least that goes to a worker at a time
        self.pids = [actor.configure.remote(config.to_dict()) for actor in self.pool.idle]

    def deliver(self, messages: list[Message], deadline: float) -> Iterator[Message]:
        """Hands messages to idle actors as they become free and yields replies as they come. Actors that are not done
        by the deadline are replaced; what their clients did is lost with them and never left.
        """
        shared: dict[int, Any] = {}  # id of an ArrayRecord -> its place in the object store
        for message in messages:
            if ARRAYS in message.content and id(message.content[ARRAYS]) not in shared:
                shared[id(message.content[ARRAYS])] = ray.put(message.content[ARRAYS])
        waiting = deque(Errand(message) for message in messages)
        # What a worker computes at once it computes in one piece, and which clients that are must not depend on time.
        vectorised = self.config.engine.trainer == "vectorised"
        self.share = -(-len(messages) // self.pool.workers) if vectorised else 1
        running: dict[Any, tuple[Any, list[Errand]]] = {}
        idle = self.pool.idle
        while waiting or running:
            while waiting and idle:
                actor, batch = idle.popleft(), self._next_batch(waiting)
                running[self._submit(actor, batch, shared)] = (actor, batch)
            left = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())
            ready, _ = ray.wait(list(running), num_returns=1, timeout=left)
            if not ready:
                for late, _ in running.values():
                    ray.kill(late)
                    idle.append(self._replacement())
                return
            actor, batch = running.pop(ready[0])
            try:
                answers = pickle.loads(ray.get(ready[0]))
            except RayActorError:
                idle.append(self._replacement())
                self.on_disturbance()
                for errand in batch:
                    if errand.tries < RETRIES:
                        waiting.append(Errand(errand.message, errand.tries + 1))
                    else:
                        reason = f"its worker process died {RETRIES + 1} times"
                        yield refusal(Refusal.WORKER_LOST, errand.message, reason)
                continue
            idle.append(actor)
            waiting.extendleft(reversed(batch[len(answers) :]))  # not begun: the actor's turn was over
            for errand, (reply, context) in zip(batch, answers, strict=False):
                self.contexts[client_of(errand.message)] = context
                self.contexts.settle()
                yield reply

    def _next_batch(self, waiting: deque[Errand]) -> list[Errand]:
        """What the next idle actor takes: large batches first, single messages last, so that all actors end together.

        One call per message would cost more than a small client's work. A retried message goes alone, so that a
        client that kills its worker takes no other down with it twice.
        """
        size = max(self.share, len(waiting) // (2 * self.pool.workers))
        first = waiting.popleft()
        batch = [first]
        while len(batch) < size and waiting and first.goes_with(waiting[0]):
            batch.append(waiting.popleft())
        return batch

    def _replacement(self) -> Any:
        actor = self.pool.new_actor()
        self.pids.append(actor.configure.remote(self.config.to_dict()))
        return actor

    def _submit(self, actor: Any, batch: list[Errand], shared: dict[int, Any]) -> Any:
        arrays = batch[0].message.content.get(ARRAYS)
        contexts = [self.context_of(client_of(errand.message)) for errand in batch]
        # Ray would pickle with cloudpickle, a Python call per object; messages need nothing but C's.
        parcel = pickle.dumps([(errand.light(), context) for errand, context in zip(batch, contexts, strict=True)])
        return actor.handle.remote(parcel, shared.get(id(arrays)), TURN)

    def worker_pids(self) -> list[int]:
        """Process ids of all actors that were started, for tests that kill one."""
        return [int(pid) for pid in ray.get(self.pids)]

    def close(self) -> None:
        super().close()
        self.pool.close()
