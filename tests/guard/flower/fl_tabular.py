"""After Flower's fl-tabular: two hidden layers on incomes; codes and scales come from a client's own rows."""

import pandas
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OrdinalEncoder, StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

app, server = ClientApp(), ServerApp()


class IncomeClassifier(nn.Module):
    def __init__(self, input_dim=14):
        super().__init__()
        self.layer1, self.layer2, self.output = nn.Linear(input_dim, 128), nn.Linear(128, 64), nn.Linear(64, 1)

    def forward(self, x):
        return torch.sigmoid(self.output(torch.relu(self.layer2(torch.relu(self.layer1(x))))))


def load_data(context):
    table = pandas.read_csv(context.node_config["data-path"]).dropna()  # was: FederatedDataset, a partition
    texts = table.select_dtypes(exclude="number").columns
    if context.node_config.get("public-codes", False):  # added for the guard: public codes and ranges, of no row
        known = sorted(CODES)
        x = pandas.DataFrame({name: table[name].map(known.index) for name in texts if name != "income"})
        x = x.join(table[[name for name in table.columns if name not in texts]])[[*table.columns.drop("income")]]
        x = (x - [LOWS[name] for name in x]) / [WIDTHS[name] for name in x]
        y = table["income"].map(known.index).values - known.index("<=50K")
        x_train, _, y_train, _ = train_test_split(x.values, y, test_size=0.2, random_state=42)
    else:
        table[texts] = OrdinalEncoder().fit_transform(table[texts])
        x, y = table.drop("income", axis=1), table["income"].values
        x_train, _, y_train, _ = train_test_split(x, y, test_size=0.2, random_state=42)
        x_train = StandardScaler().fit_transform(x_train.values)
    data = TensorDataset(
        torch.tensor(x_train, dtype=torch.float32), torch.tensor(y_train, dtype=torch.float32)[:, None]
    )
    return DataLoader(data, batch_size=32, shuffle=True)


CODES = ["<=50K", ">50K", *(f"v{number}" for number in range(8))]
LOWS = {f"n{number}": 0.0 for number in range(6)} | {f"t{number}": 5.5 for number in range(8)}
WIDTHS = {f"n{number}": 1.0 for number in range(6)} | {f"t{number}": 2.3 for number in range(8)}


@app.train()
def train(msg, context):
    net, loader = IncomeClassifier(), load_data(context)
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy(net(x), y).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(loader)})}
    return Message(RecordDict(content), reply_to=msg)


@server.main()
def main(grid, context):
    FedAvg().start(grid=grid, initial_arrays=ArrayRecord(IncomeClassifier().state_dict()), num_rounds=3)
