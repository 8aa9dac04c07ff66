"""torchexample: model, data, training."""

import csv

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load_data(path):
    """A CSV file with a header; its last column is the label, 0 or 1."""
    with open(path) as file:
        rows = [[float(value) for value in row] for row in list(csv.reader(file))[1:]]
    table = torch.tensor(rows, dtype=torch.float32)
    return DataLoader(TensorDataset(table[:, :-1], table[:, -1].long()), batch_size=32, shuffle=True)


class Net(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.fc1 = nn.Linear(columns, 16)
        self.fc2 = nn.Linear(16, 2)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def train(net, loader, epochs, lr):
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running = 0.0
    for _ in range(epochs):
        for features, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(features), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
    return running / max(1, len(loader))


def get_weights(net):
    return [value.cpu().numpy() for value in net.state_dict().values()]


def set_weights(net, parameters):
    names = net.state_dict().keys()
    net.load_state_dict(
        {name: torch.tensor(np.asarray(value)) for name, value in zip(names, parameters, strict=True)}, strict=True
    )
