"""sklearnexample: a Flower / scikit-learn app."""

import warnings

import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from sklearn.linear_model import LogisticRegression


def load_data(path):
    """A CSV file with a header; its last column is the label, 0 or 1."""
    table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    return table[:, :-1], table[:, -1].astype(int)


class FlowerClient(NumPyClient):
    def __init__(self, features, labels, epochs):
        self.features, self.labels = features, labels
        self.model = LogisticRegression(max_iter=epochs, warm_start=True)

    def fit(self, parameters, config):
        self.model.classes_ = np.array([0, 1])
        self.model.coef_, self.model.intercept_ = (np.array(value) for value in parameters)
        with warnings.catch_warnings():  # few local epochs do not converge
            warnings.simplefilter("ignore")
            self.model.fit(self.features, self.labels)
        return [self.model.coef_, self.model.intercept_], len(self.labels), {}


def client_fn(context):
    features, labels = load_data(context.node_config.get("data-path", "/data/train.csv"))
    return FlowerClient(features, labels, context.run_config["local-epochs"]).to_client()


app = ClientApp(client_fn=client_fn)
