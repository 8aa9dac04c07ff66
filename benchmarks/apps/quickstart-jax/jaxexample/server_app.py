"""jaxexample: a Flower / jax app."""

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    columns = int(context.run_config.get("columns", 4))
    arrays = ArrayRecord(numpy_ndarrays=[np.zeros(columns, "f4"), np.zeros(1, "f4")])
    FedAvg().start(grid=grid, initial_arrays=arrays, num_rounds=context.run_config["num-server-rounds"])
