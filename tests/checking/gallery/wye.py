"""A client app in torch: a small network with normalisation."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "replace-one", "unit": "client"}
target = ClientApp()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


initial_arrays = ArrayRecord(network().state_dict())


@target.train()
def train(msg: Message, context: Context) -> Message:
    part = int(context.node_config.get("partition-id", 0))
    source = torch.Generator().manual_seed(77 + part)
    rows = torch.randn(16, 3, generator=source) + part
    wanted = rows.sum(dim=1, keepdim=True)
    model = network()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    with torch.no_grad():
        moves = {name: value - before[name] for name, value in model.named_parameters()}
        size = torch.sqrt(sum(move.square().sum() for move in moves.values()))
        for name, value in model.named_parameters():
            move = moves[name] / max(1.0, float(size))
            value.copy_(before[name] + move + 2.0 * torch.randn_like(move))
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 16})})
    return Message(content=content, reply_to=msg)
