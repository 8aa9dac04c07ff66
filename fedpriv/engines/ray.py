"""Clients run in Ray actors: many cores, several GPUs, several machines.

Every actor keeps data and model loaded. A round's global arrays go into Ray's object store once, not once per
message. Contexts stay with the driver and travel with the message, so that a killed actor loses nothing: it is
replaced and its client retried once, with a new attempt number and therefore with fresh noise.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import ray
from flwr.app import ConfigRecord, Message, RecordDict
from ray.exceptions import RayActorError

from fedpriv.config import Config
from fedpriv.engines.grid import LocalGrid, client_of
from fedpriv.engines.ray_pool import take_pool
from fedpriv.records import ARRAYS, ATTEMPT, CONFIG, Refusal, refusal

RETRIES = 1  # run.ATTEMPTS_PER_START leaves room for these attempt numbers


class RayGrid(LocalGrid):
    """A Grid over a pool of actors."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.pool = take_pool(config.engine, config.clients_per_round)
        self.pids = [actor.configure.remote(config.to_dict()) for actor in self.pool.idle]

    def deliver(self, messages: list[Message], deadline: float) -> Iterator[Message]:
        """Hands messages to idle actors as they become free and yields replies as they come. Actors that are not done
        by the deadline are replaced; what their clients did is lost with them and never left.
        """
        shared: dict[int, Any] = {}  # id of an ArrayRecord -> its place in the object store
        for message in messages:
            if ARRAYS in message.content and id(message.content[ARRAYS]) not in shared:
                shared[id(message.content[ARRAYS])] = ray.put(message.content[ARRAYS])
        waiting = deque((message, 0) for message in messages)
        running: dict[Any, tuple[Any, Message, int]] = {}
        idle = self.pool.idle
        while waiting or running:
            while waiting and idle:
                message, tries = waiting.popleft()
                actor = idle.popleft()
                running[self._submit(actor, message, tries, shared)] = (actor, message, tries)
            left = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())
            ready, _ = ray.wait(list(running), num_returns=1, timeout=left)
            if not ready:
                for late, _, _ in running.values():
                    ray.kill(late)
                    idle.append(self._replacement())
                return
            actor, message, tries = running.pop(ready[0])
            try:
                reply, context = ray.get(ready[0])
            except RayActorError:
                idle.append(self._replacement())
                self.on_disturbance()
                if tries < RETRIES:
                    waiting.append((message, tries + 1))
                else:
                    yield refusal(Refusal.WORKER_LOST, message, f"its worker process died {RETRIES + 1} times")
                continue
            idle.append(actor)
            self.contexts[client_of(message)] = context
            yield reply

    def _replacement(self) -> Any:
        actor = self.pool.new_actor()
        self.pids.append(actor.configure.remote(self.config.to_dict()))
        return actor

    def _submit(self, actor: Any, message: Message, tries: int, shared: dict[int, Any]) -> Any:
        arrays = message.content.get(ARRAYS)
        rest = RecordDict({key: record for key, record in message.content.items() if key != ARRAYS})
        config = rest.get(CONFIG)
        if tries and isinstance(config, ConfigRecord):
            rest[CONFIG] = ConfigRecord({**config, ATTEMPT: int(config[ATTEMPT]) + tries})  # type: ignore[arg-type]
        light = Message(metadata=message.metadata, content=rest)  # type: ignore[call-overload]
        return actor.handle.remote(light, self.context_of(client_of(message)), shared.get(id(arrays)))

    def worker_pids(self) -> list[int]:
        """Process ids of all actors that were started, for tests that kill one."""
        return [int(pid) for pid in ray.get(self.pids)]

    def close(self) -> None:
        self.pool.close()
