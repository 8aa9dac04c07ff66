"""After Flower's quickstart-xgboost: trees as bytes in one array. The client is never started, and needs no xgboost."""

import numpy as np
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedXgbBagging

app, server = ClientApp(), ServerApp()


@app.train()
def train(msg, context):
    import xgboost

    raise NotImplementedError(xgboost)


@server.main()
def main(grid, context):
    FedXgbBagging().start(grid=grid, initial_arrays=ArrayRecord([np.frombuffer(b"", dtype=np.uint8)]), num_rounds=3)
