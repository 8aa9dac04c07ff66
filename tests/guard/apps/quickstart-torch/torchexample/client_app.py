"""torchexample: a Flower / PyTorch app."""

from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from torchexample.task import Net, get_weights, load_data, set_weights, train


class FlowerClient(NumPyClient):
    def __init__(self, loader, epochs, lr):
        self.net = Net(loader.dataset.tensors[0].shape[1])
        self.loader, self.epochs, self.lr = loader, epochs, lr

    def fit(self, parameters, config):
        set_weights(self.net, parameters)
        loss = train(self.net, self.loader, self.epochs, config.get("lr", self.lr))
        return get_weights(self.net), len(self.loader.dataset), {"train_loss": loss}


def client_fn(context):
    loader = load_data(context.node_config.get("data-path", "/data/train.csv"))
    config = context.run_config
    return FlowerClient(loader, config["local-epochs"], config["learning-rate"]).to_client()


app = ClientApp(client_fn=client_fn)
