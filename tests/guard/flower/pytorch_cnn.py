"""After Flower's quickstart-pytorch: the network of PyTorch's 60-minute tutorial on pictures of 32 x 32."""

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

app, server = ClientApp(), ServerApp()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.pool, self.conv2 = nn.Conv2d(3, 6, 5), nn.MaxPool2d(2, 2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x))).view(-1, 16 * 5 * 5)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def load_data(context):
    """A folder with a folder for each class (was: FederatedDataset, a partition); 80 % to train."""
    from pathlib import Path

    classes = sorted(place for place in Path(context.node_config["data-path"]).iterdir() if place.is_dir())
    files = [(file, label) for label, place in enumerate(classes) for file in sorted(place.iterdir())]
    np.random.default_rng(42).shuffle(files)
    pictures = [np.asarray(Image.open(file).convert("RGB"), np.float32) / 127.5 - 1 for file, _ in files]
    x = torch.tensor(np.stack(pictures)).permute(0, 3, 1, 2)
    y = torch.tensor([int(label) for _, label in files])
    first = max(1, int(0.8 * len(y)))
    return (
        DataLoader(TensorDataset(x[:first], y[:first]), batch_size=32, shuffle=True),
        DataLoader(TensorDataset(x[first:], y[first:]), batch_size=32),
    )


def optimise(net, optimizer, loader):
    net.train()
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def received(msg):
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return net


def reply(msg, state, **metrics):
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord(metrics)}), reply_to=msg)


@app.train()
def train(msg, context):
    net, (loader, _) = received(msg), load_data(context)
    optimizer = torch.optim.SGD(net.parameters(), lr=msg.content["config"]["lr"], momentum=0.9)
    return reply(
        msg, net.state_dict(), train_loss=optimise(net, optimizer, loader), **{"num-examples": len(loader.dataset)}
    )


def global_evaluate(server_round, arrays):
    raise ConnectionError("was: load_dataset of the server's own test set")


@server.main()
def main(grid, context):
    told, arrays = ConfigRecord({"lr": 0.1}), ArrayRecord(Net().state_dict())
    FedAvg().start(grid=grid, initial_arrays=arrays, num_rounds=3, train_config=told, evaluate_fn=global_evaluate)
