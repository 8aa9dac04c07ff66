"""messageexample: a Flower app on the message API."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    columns = int(context.run_config.get("columns", 4))
    arrays = ArrayRecord({"weights": Array(np.zeros(columns)), "bias": Array(np.zeros(1))})
    FedAvg().start(grid=grid, initial_arrays=arrays, num_rounds=context.run_config["num-server-rounds"])
