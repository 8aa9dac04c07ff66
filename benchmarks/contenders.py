"""The contenders: each can run one round at a time, so that rounds of all of them alternate."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from benchmarks.job import PICTURES, Job, local_epoch, plain_model, shard, tensors
from fedpriv.common.messages import pack_vector
from fedpriv.config.compose import compose
from fedpriv.engines.worker import adopt, make_apps
from fedpriv.runs.preparation import make_strategy, resolve
from fedpriv.server.strategy import FederatedStrategy
from fedpriv.training.allocator import keep_freed_memory
from fedpriv.training.sequential import channels_innermost


class BareLoop:
    """A plain PyTorch loop without any framework, in separate processes: nothing that another contender sets in its
    process, such as the allocator, affects it. processor: its rounds are processor seconds, summed over the processes.
    """

    def __init__(
        self, job: Job, processes: int, tuned: bool = False, device: str = "cpu", processor: bool = False
    ) -> None:
        self.processor = processor
        self.pipes: list[Connection] = []
        self.children: list[Any] = []
        context = mp.get_context("spawn")
        for index in range(processes):
            here, there = context.Pipe()
            clients = range(index, job.clients_per_round, processes)
            child = context.Process(target=_serve_bare, args=(there, job, list(clients), tuned, device), daemon=True)
            child.start()
            self.pipes.append(here)
            self.children.append(child)
        for pipe in self.pipes:
            pipe.recv()  # loaded

    def round(self) -> float:
        began = time.perf_counter()
        for pipe in self.pipes:
            pipe.send("round")
        spent: float = sum(pipe.recv() for pipe in self.pipes)
        return spent if self.processor else time.perf_counter() - began

    def close(self) -> None:
        for pipe, child in zip(self.pipes, self.children, strict=True):
            pipe.send(None)
            child.join()


def _bare_round(model: Any, data: Any, job: Job, clients: Iterable[int]) -> None:
    for client in clients:
        local_epoch(model, *shard(data, client, job.examples))


def _serve_bare(pipe: Connection, job: Job, clients: list[int], tuned: bool, device: str) -> None:
    torch.set_num_threads(1)
    data, model = tensors(), plain_model(job.name)
    if tuned:
        keep_freed_memory()
        if job.name == "cnn":
            data = channels_innermost(data[0]), data[1]
    data, model = (data[0].to(device), data[1].to(device)), model.to(device)
    _bare_round(model, data, job, clients[:1])
    pipe.send("ready")
    while pipe.recv() is not None:
        began = time.process_time()
        _bare_round(model, data, job, clients)
        pipe.send(time.process_time() - began)


class OwnEngine:
    """The project itself: strategy, messages, client halves, ledger entries; no evaluation. clock: of its rounds."""

    def __init__(
        self,
        job: Job,
        engine: str,
        workers: int = 1,
        extra: Collection[str] = (),
        warm: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        began, self.clock = time.perf_counter(), clock
        if engine == "ray":
            from fedpriv.engines.ray_pool import prestart

            prestart(compose(own_options(job, engine, workers, extra)).engine, job.clients_per_round)
        config, worker, _ = resolve(compose(own_options(job, engine, workers, extra)), Path(tempfile.mkdtemp()))
        self.grid: Any
        if engine == "ray":
            from fedpriv.engines.ray import RayGrid

            self.grid = RayGrid(config)
        else:
            from fedpriv.engines.inprocess import InProcessGrid

            self.grid = InProcessGrid(config, make_apps(config)[1])
        self.config, self.worker = config, worker
        self.strategy: FederatedStrategy = make_strategy(config, worker)
        self.arrays = pack_vector(worker.initial_parameters())
        self.number = 0
        if warm:
            self.round()
        self.first_round_after = time.perf_counter() - began

    def round(self) -> float:
        adopt(self.config, self.worker)  # another contender in this process may have run in between
        began = self.clock()
        self.number += 1
        self.arrays = self.strategy.run_rounds(
            self.grid,
            self.arrays,
            self.number,
            first_round=self.number,
            on_round=lambda current: self.grid.collect_entries(current.cohort),
        )
        return self.clock() - began

    def close(self) -> None:
        self.grid.close()


class OwnEngineApart:
    """The project itself in a separate process: Flower's runtime and our grid each keep the current run in a variable
    of their process.
    """

    def __init__(self, job: Job, engine: str, workers: int, extra: Iterable[str] = ()) -> None:
        self.pipe, there = mp.get_context("spawn").Pipe()
        self.child = mp.get_context("spawn").Process(target=_serve_own, args=(there, job, engine, workers, list(extra)))
        self.child.start()
        self.pipe.recv()

    def round(self) -> float:
        self.pipe.send("round")
        seconds: float = self.pipe.recv()
        return seconds

    def close(self) -> None:
        self.pipe.send(None)
        self.child.join()


def _serve_own(pipe: Connection, job: Job, name: str, workers: int, extra: list[str]) -> None:
    engine = OwnEngine(job, name, workers, extra)
    pipe.send("ready")
    while pipe.recv() is not None:
        pipe.send(engine.round())
    engine.close()


def own_options(job: Job, engine: str, workers: int, extra: Collection[str]) -> list[str]:
    options = {
        "strategy": "fedavg",
        "dataset": "custom",
        "dataset.path": "benchmarks.job.random_pictures",
        "model": job.name,
        "num_clients": job.num_clients,
        "clients_per_round": job.clients_per_round,
        "local.batch_size": 60,
        "local.lr": 0.01,
        "engine": engine,
        "engine.workers": workers,
    }
    # Partitioning all pictures would give each client a different number.
    if job.examples * job.num_clients != PICTURES and "partition=resampled" not in extra:
        options |= {"partition": "resampled", "partition.examples_per_client": job.examples}
    return [f"{key}={value}" for key, value in options.items()] + list(extra)
