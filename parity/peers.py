"""What every peer's module shares: the exported seeds, the model, plain local training, and the printed result.

A seed's file NUMBER.npz has x [n, 64] and y [n], the training rows of all clients; owner [n], the client of each row;
x_test, y_test; and layer0, layer1, ...: weights and biases of the first model, in turn. terms.json has the job's
numbers: rounds, cohort, clients, lr, batch, steps, and what its strategy has.

Symbols: theta -> a list of the model's arrays, Delta_k -> what local training adds to it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Theta = list[Tensor]


@dataclass
class Seed:
    """One seed of a job."""

    number: int
    terms: dict[str, Any]
    arrays: dict[str, Any]

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(self.number)
        np.random.seed(self.number)  # noqa: NPY002 - Flower and pfl draw from it
        self.rng = np.random.default_rng(self.number)
        tensors = [torch.from_numpy(self.arrays[name]) for name in ("x", "y", "x_test", "y_test")]
        self.x, self.y, self.x_test, self.y_test = tensors
        self.rows = [np.flatnonzero(self.arrays["owner"] == client) for client in range(self.terms["clients"])]
        self.start: Theta = [torch.from_numpy(self.arrays[f"layer{n}"]) for n in range(self.terms["layers"])]

    def model(self, theta: Theta | None = None) -> nn.Sequential:
        theta = self.start if theta is None else theta
        layers: list[nn.Module] = []
        for weight in theta[::2]:
            layers += [nn.ReLU()] * bool(layers) + [nn.Linear(weight.shape[1], weight.shape[0])]
        model = nn.Sequential(*layers)
        with torch.no_grad():
            for parameter, array in zip(model.parameters(), theta, strict=True):
                parameter.copy_(array)
        return model

    def accuracy(self, theta: Theta) -> float:
        with torch.no_grad():
            return float((self.model(theta)(self.x_test).argmax(1) == self.y_test).double().mean())

    def batches(self, client: int) -> Iterator[np.ndarray]:
        """One epoch, or as many as ``steps`` batches need: permutations cut into batches."""
        rows, size, left = self.rows[client], self.terms["batch"], self.terms["steps"] or 0
        while True:
            order = self.rng.permutation(rows)
            for start in range(0, len(rows), size):
                yield order[start : start + size]
                left -= 1
                if left == 0:
                    return
            if not self.terms["steps"]:
                return

    def local(self, theta: Theta, client: int, mu: float = 0.0, drift: Theta | None = None) -> Theta:
        """Delta_k of SGD on the mean loss + mu/2 |w - theta|^2; ``drift`` is added to every gradient."""
        model = self.model(theta)
        parameters = list(model.parameters())
        for rows in self.batches(client):
            loss = nn.functional.cross_entropy(model(self.x[rows]), self.y[rows])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for n, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                    step = gradient + mu * (parameter - theta[n])
                    parameter.sub_(step if drift is None else step + drift[n], alpha=self.terms["lr"])
        return [after.detach() - before for after, before in zip(parameters, theta, strict=True)]


def main(run: Callable[[Seed], float], epsilon: Callable[[dict[str, Any]], float | None]) -> None:
    """Prints the accuracy of each seed in the folder that the command line names, and the job's epsilon."""
    folder = Path(sys.argv[1])
    terms = json.loads((folder / "terms.json").read_text())
    files = sorted(folder.glob("*.npz"), key=lambda file: int(file.stem))
    accuracy = [run(Seed(int(file.stem), terms, dict(np.load(file)))) for file in files]
    print(json.dumps({"accuracy": accuracy, "epsilon": epsilon(terms)}))
