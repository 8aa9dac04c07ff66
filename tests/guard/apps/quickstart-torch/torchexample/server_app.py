"""torchexample: a Flower / PyTorch app."""

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from torchexample.task import Net

app = ServerApp()


@app.main()
def main(grid, context):
    arrays = ArrayRecord(Net(int(context.run_config.get("columns", 4))).state_dict())
    FedAvg().start(grid=grid, initial_arrays=arrays, num_rounds=context.run_config["num-server-rounds"])
