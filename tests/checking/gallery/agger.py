"""A client that trains a small network and sends its weights."""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}
CLIP = 1.0
STD = 2.0


def network() -> nn.Module:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    return model


def rows_of(part: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = np.random.default_rng(part).standard_normal((32, 4)).astype(np.float32)
    return torch.from_numpy(rows), torch.from_numpy(rows[:, :1] > 0).float()


initial_arrays = ArrayRecord(network().state_dict())
target = ClientApp()


@target.train()
def train(message: Message, context: Context) -> Message:
    model = network()
    model.load_state_dict(next(iter(message.content.array_records.values())).to_torch_state_dict())
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    rows, wanted = rows_of(int(context.node_config.get("partition-id", 0)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(rows), wanted).backward()
        optimiser.step()
    with torch.no_grad():
        moves = {name: torch.nan_to_num(value - start[name]) for name, value in model.named_parameters()}
        length = torch.sqrt(sum(move.square().sum() for move in moves.values()))
        for name, value in model.named_parameters():
            noise = torch.normal(0.0, STD, size=value.shape)
            value.copy_(start[name] + moves[name] / max(1.0, float(length) / CLIP) + noise)
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)
