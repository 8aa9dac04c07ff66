"""After Flower's federated-kaplan-meier-fitter: `query` sends every time and event.

`query.survival`, added for the guard, sends how many are at risk, and how many died, at public times.
"""

import numpy as np
import pandas
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

app, server = ClientApp(), ServerApp()
TIMES = np.arange(0, 80, 4)


def load_data(context):
    table = pandas.read_csv(context.node_config["data-path"])  # was: lifelines' waltons, a partition
    return table["T"].values, table["E"].values


@app.query()
def query(msg, context):
    times, events = load_data(context)
    content = {"survival-data": ArrayRecord({"T": Array(times), "E": Array(events)})}
    return Message(RecordDict(content | {"metrics": MetricRecord({"num-examples": len(times)})}), reply_to=msg)


@app.query("survival")
def survival(msg, context):
    times, events = load_data(context)
    risk = [int((times >= start).sum()) for start in TIMES]
    died = [int(((times >= start) & (times < start + 4) & (events == 1)).sum()) for start in TIMES]
    return Message(RecordDict({"metrics": MetricRecord({"at_risk": risk, "died": died})}), reply_to=msg)


@server.main()
def main(grid, context):
    messages = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    data = [reply.content["survival-data"] for reply in grid.send_and_receive(messages) if not reply.has_error()]
    print(np.concatenate([record["T"].numpy() for record in data]))
