"""Flower's own Simulation Runtime on the same jobs. Imports nothing from the project: its workers load only what a
plain Flower app would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.job import Job, local_epoch, plain_model, shard, tensors


class FlowerRuntime:
    """A minimal Flower app on Flower's own Simulation Runtime; between rounds its server half is blocked."""

    def __init__(self, job: Job, workers: int) -> None:
        began = time.perf_counter()
        self.gate, self.done = threading.Semaphore(1), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, args=(job, workers), daemon=True)
        self.thread.start()
        self._wait()
        self.first_round_after = time.perf_counter() - began

    def _run(self, job: Job, workers: int) -> None:
        import logging

        from flwr.simulation import run_simulation

        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        contender = self

        class Gated(FedAvg):
            def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
                contender.gate.acquire()
                return super().configure_train(*args, **kwargs)

            def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
                result = super().aggregate_train(server_round, replies)
                contender.done.release()
                return result

        server_app = ServerApp()

        @server_app.main()
        def main(grid: Any, context: Any) -> None:
            fraction = job.clients_per_round / min(job.num_clients, 100)
            strategy = Gated(fraction_train=fraction, fraction_evaluate=0.0)
            arrays = ArrayRecord(plain_model(job.name).state_dict())
            strategy.start(grid=grid, initial_arrays=arrays, num_rounds=10_000)

        resources: Any = {
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": workers, "log_to_driver": False, "address": "local"},
        }
        run_simulation(server_app, flower_client_app(job), min(job.num_clients, 100), backend_config=resources)

    def round(self) -> float:
        began = time.perf_counter()
        self.gate.release()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if not self.done.acquire(timeout=180):
            raise RuntimeError("Flower's runtime gave no sign for three minutes")

    def close(self) -> None:
        """Does nothing: the daemon thread stays blocked and ends with the process."""


_loaded: dict[str, Any] = {}


def flower_client_app(job: Job) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        data, model = loaded(job)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        loss = local_epoch(model, *shard(data, context.node_config["partition-id"], job.examples))
        metrics = MetricRecord({"loss": loss, "num-examples": job.examples})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def loaded(job: Job) -> tuple[Any, Any]:
    """Data and model, loaded once per worker process (this module is imported there by reference)."""
    if job.name not in _loaded:
        torch.set_num_threads(1)
        _loaded[job.name] = tensors(), plain_model(job.name)
    return _loaded[job.name]
