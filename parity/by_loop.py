"""A plain loop, by the papers: FedAvg, FedProx, FedAdam, SCAFFOLD, and DP-FedAvg with a trusted server."""

from __future__ import annotations

import torch

from parity.peers import Seed, Theta, main


def trained(seed: Seed) -> Theta:
    """The model after the last round."""
    terms, theta = seed.terms, seed.start
    zeros = [torch.zeros_like(array) for array in theta]
    control, own = zeros, [zeros] * terms["clients"]  # SCAFFOLD's c and c_i
    tau = terms["adam"]["tau"] if terms["adam"] else 0.0
    first, second = zeros, [array + tau**2 for array in zeros]  # FedAdam's m and v
    for _ in range(terms["rounds"]):
        if terms["poisson"]:
            cohort = (seed.rng.random(terms["clients"]) < terms["cohort"] / terms["clients"]).nonzero()[0]
        else:
            cohort = seed.rng.choice(terms["clients"], terms["cohort"], replace=False)
        total, weight, moved = zeros, 0.0, zeros
        for client in cohort:
            drift = None if terms["method"] != "scaffold" else add(control, own[client], -1)  # c - c_i
            delta = seed.local(theta, client, terms["mu"], drift)
            if terms["method"] == "dpfedavg":
                length = float(torch.cat([array.flatten() for array in delta]).norm())
                delta = add(zeros, delta, min(1.0, terms["lr"] * terms["clip"] / max(length, 1e-12)))
            if drift is not None:
                change = add(add(zeros, control, -1), delta, -1 / (terms["steps"] * terms["lr"]))  # c_i+ - c_i
                own[client], moved = add(own[client], change, 1), add(moved, change, 1 / terms["clients"])
            part = len(seed.rows[client]) if terms["method"] in ("fedavg", "fedprox") else 1
            total, weight = add(total, delta, part), weight + part
        if terms["method"] == "dpfedavg":
            weight = terms["cohort"]
            noise = [torch.randn_like(array) for array in theta]
            total = add(total, noise, terms["lr"] * terms["clip"] * terms["noise"])
        mean = add(zeros, total, 1 / weight)
        control = add(control, moved, 1)
        if terms["adam"] is None:
            theta = add(theta, mean, 1)
            continue
        beta1, beta2 = terms["adam"]["betas"]
        first = [beta1 * m + (1 - beta1) * d for m, d in zip(first, mean, strict=True)]
        second = [beta2 * v + (1 - beta2) * d * d for v, d in zip(second, mean, strict=True)]
        step = [m / (v.sqrt() + tau) for m, v in zip(first, second, strict=True)]
        theta = add(theta, step, terms["adam"]["lr"])
    return theta


def add(one: Theta, other: Theta, times: float) -> Theta:
    return [a + times * b for a, b in zip(one, other, strict=True)]


if __name__ == "__main__":
    main(lambda seed: seed.accuracy(trained(seed)), lambda terms: None)
