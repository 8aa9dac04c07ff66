"""messageexample: a Flower app on the message API."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def load_data(context):
    """A CSV file with a header; its last column is the label, 0 or 1."""
    table = np.loadtxt(context.node_config.get("data-path", "/data/train.csv"), delimiter=",", skiprows=1, ndmin=2)
    return table[:, :-1], table[:, -1]


@app.train()
def train(message, context):
    features, labels = load_data(context)
    arrays = message.content["arrays"]
    weights, bias = (arrays[name].numpy().copy() for name in ("weights", "bias"))
    for _ in range(int(context.run_config["local-epochs"])):
        slopes = 1 / (1 + np.exp(-(features @ weights + bias))) - labels
        weights -= context.run_config["learning-rate"] * features.T @ slopes / len(labels)
        bias -= context.run_config["learning-rate"] * slopes.mean()
    trained = ArrayRecord({"weights": Array(weights), "bias": Array(bias)})
    metrics = MetricRecord({"num-examples": len(labels), "train-loss": float(np.abs(slopes).mean())})
    return Message(content=RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    features, labels = load_data(context)
    arrays = message.content["arrays"]
    right = ((features @ arrays["weights"].numpy() + arrays["bias"].numpy() > 0) == labels).mean()
    metrics = MetricRecord({"num-examples": len(labels), "accuracy": float(right)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
