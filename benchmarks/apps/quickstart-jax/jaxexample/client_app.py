"""jaxexample: a Flower / jax app."""

import jax
import jax.numpy as jnp
import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp


def load_data(path):
    """A CSV file with a header; its last column is the label, 0 or 1."""
    table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, dtype=np.float32)
    return jnp.asarray(table[:, :-1]), jnp.asarray(table[:, -1])


def loss_fn(params, features, labels):
    return jnp.mean((features @ params["w"] + params["b"] - labels) ** 2)


grad_fn = jax.grad(loss_fn)


def train(params, features, labels, epochs, rate):
    for _ in range(epochs):
        slopes = grad_fn(params, features, labels)
        params = jax.tree_util.tree_map(lambda value, slope: value - rate * slope, params, slopes)
    return params


class FlowerClient(NumPyClient):
    def __init__(self, features, labels, epochs, rate):
        self.features, self.labels, self.epochs, self.rate = features, labels, epochs, rate

    def fit(self, parameters, config):
        params = {"w": jnp.asarray(parameters[0]), "b": jnp.asarray(parameters[1])}
        params = train(params, self.features, self.labels, self.epochs, self.rate)
        return [np.asarray(params["w"]), np.asarray(params["b"])], len(self.labels), {}


def client_fn(context):
    features, labels = load_data(context.node_config.get("data-path", "/data/train.csv"))
    config = context.run_config
    return FlowerClient(features, labels, config["local-epochs"], config["learning-rate"]).to_client()


app = ClientApp(client_fn=client_fn)
