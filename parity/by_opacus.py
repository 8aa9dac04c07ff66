"""Opacus: every client takes Poisson batches, clips single examples' gradients and adds noise; a loop averages them."""

from __future__ import annotations

import warnings
from typing import Any

from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from parity.peers import Seed, main


def run(seed: Seed) -> float:
    warnings.simplefilter("ignore")  # of hooks and of a generator that is not cryptographic
    terms, theta = seed.terms, seed.start
    steps, clients = terms["local_steps"], []
    for rows in seed.rows:
        module = seed.model()
        optimizer = optim.SGD(module.parameters(), lr=terms["lr"])
        loader = DataLoader(TensorDataset(seed.x[rows], seed.y[rows]), batch_size=terms["batch"])
        assert len(rows) == len(loader) * terms["batch"], "Opacus draws at one over the number of batches"
        asked = {"noise_multiplier": terms["noise"], "max_grad_norm": terms["clip"]}
        clients.append(PrivacyEngine().make_private(module=module, optimizer=optimizer, data_loader=loader, **asked))
    for _ in range(terms["rounds"]):
        ends = []
        for module, optimizer, loader in clients:
            for parameter, array in zip(module.parameters(), theta, strict=True):
                parameter.data.copy_(array)
            left = steps
            while left:
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(module(x), y).backward()
                    optimizer.step()
                    left -= 1
                    if not left:
                        break
            ends.append([parameter.detach().clone() for parameter in module.parameters()])
        shares = [len(rows) / len(seed.x) for rows in seed.rows]
        theta = [sum(s * array for s, array in zip(shares, arrays, strict=True)) for arrays in zip(*ends, strict=True)]
    return seed.accuracy(theta)


def epsilon(terms: dict[str, Any]) -> float:
    accountant = PRVAccountant()
    for _ in range(terms["rounds"] * terms["local_steps"]):
        accountant.step(noise_multiplier=terms["noise"], sample_rate=terms["batch"] * terms["clients"] / terms["rows"])
    return float(accountant.get_epsilon(terms["delta"], eps_error=0.001))


if __name__ == "__main__":
    main(run, epsilon)
