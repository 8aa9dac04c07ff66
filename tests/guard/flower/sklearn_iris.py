"""After Flower's quickstart-sklearn : multinomial logistic regression by saga, one pass a round."""

import warnings

import numpy as np
import pandas
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.linear_model import LogisticRegression

CLASSES, FEATURES = [0, 1, 2], ["petal_length", "petal_width", "sepal_length", "sepal_width"]
app, server = ClientApp(), ServerApp()


def make_model():
    model = LogisticRegression(max_iter=1, warm_start=True, solver="saga")
    model.classes_ = np.array(CLASSES)
    model.coef_, model.intercept_ = np.zeros((len(CLASSES), len(FEATURES))), np.zeros(len(CLASSES))
    return model


def load_data(context):
    table = pandas.read_csv(context.node_config["data-path"])  # was: FederatedDataset, a partition
    first = int(0.8 * len(table))
    x, y = table[FEATURES].values, table["species"].values
    return x[:first], y[:first], x[first:], y[first:]


@app.train()
def train(msg, context):
    model = make_model()
    model.coef_, model.intercept_ = msg.content["arrays"].to_numpy_ndarrays()
    x, y, _, _ = load_data(context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
    metrics = MetricRecord({"num-examples": len(x), "train_accuracy": model.score(x, y)})
    return Message(
        RecordDict({"arrays": ArrayRecord([model.coef_, model.intercept_]), "metrics": metrics}), reply_to=msg
    )


@app.evaluate()
def evaluate(msg, context):
    model = make_model()
    model.coef_, model.intercept_ = msg.content["arrays"].to_numpy_ndarrays()
    _, _, x, y = load_data(context)
    metrics = {"num-examples": len(x), "accuracy": model.score(x, y)}
    metrics |= {"correct": int((model.predict(x) == y).sum()), "rows": len(x)}  # added for the guard: counts
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)


@server.main()
def main(grid, context):
    model = make_model()
    FedAvg().start(grid=grid, initial_arrays=ArrayRecord([model.coef_, model.intercept_]), num_rounds=3)
