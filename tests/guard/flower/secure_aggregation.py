"""After Flower's flower-secure-aggregation: a NumPyClient behind `secaggplus_mod`, whose server runs SecAgg+."""

import numpy as np
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp

server = ServerApp()


class FlowerClient(NumPyClient):
    def fit(self, parameters, config):
        return [parameters[0] + 1], 1, {}


app = ClientApp(client_fn=lambda context: FlowerClient().to_client(), mods=[secaggplus_mod])


@server.main()
def main(grid, context):
    strategy = FedAvg(
        min_fit_clients=3, initial_parameters=ndarrays_to_parameters([np.zeros(3)]), fraction_evaluate=0.0
    )
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=1), strategy=strategy)
    DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2))(grid, legacy)
