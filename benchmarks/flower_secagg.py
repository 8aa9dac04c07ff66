"""`python -m benchmarks.flower_secagg CLIENTS SIZE`: seconds of one round of Flower's own SecAgg+ workflow on its
simulation runtime, to stand beside `bench_secure_sum`. It takes Flower's older API only, and clients send constants.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.simulation import run_simulation


def round_seconds(clients: int, size: int) -> float:
    """Wall seconds of a round, the start of Ray's workers included; the threshold is that of our protocol."""

    class Constant(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return [np.full(size, 0.5, np.float32)], 1, {}

    seconds = [0.0]
    server = ServerApp()
    inner = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=max(2, 2 * clients // 3 + 1))

    def timed(grid: Any, context: Any) -> None:
        start = time.perf_counter()
        inner(grid, context)
        seconds[0] = time.perf_counter() - start

    @server.main()
    def main(grid: Any, context: Any) -> None:
        zeros = ndarrays_to_parameters([np.zeros(size, np.float32)])
        strategy = FedAvg(fraction_evaluate=0.0, min_available_clients=clients, initial_parameters=zeros)
        legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=1), strategy=strategy)
        DefaultWorkflow(fit_workflow=timed)(grid, legacy)

    app = ClientApp(client_fn=lambda _: Constant().to_client(), mods=[secaggplus_mod])
    resources: Any = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 2, "log_to_driver": False, "address": "local"},
    }
    run_simulation(server, app, clients, backend_config=resources)
    return seconds[0]


if __name__ == "__main__":
    print(f"{round_seconds(int(sys.argv[1]), int(sys.argv[2])):.1f} s")
