"""Sums over persons of their rows' clipped mean gradients, for chains of Linear layers: a person's gradient is one
product over its rows, so no row's gradient is formed.

What one person may change, rounding included: `fedpriv.mechanisms.clipped_sums`. Of a Linear layer v_r = g_r x_r^T has
the length |g_r| |x_r|, so the mass needs no product either.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv.mechanisms.bookkeeping import add_rows, without
from fedpriv.mechanisms.clipped_sums import PHYSICAL_NUMBERS, ClippedSum, Members, measured
from fedpriv.mechanisms.noise import clip_factors
from fedpriv.training.stacked_gradients import Chain, Held, one_thread

#: float64 [p, d], [p] and float32 [p, b, ...] below: p persons, b rows each, d parameters, c clients.
Layer = tuple[bool, Tensor, Tensor]


@torch.no_grad()
@one_thread()
def sums_of_persons(
    chain: Chain, thetas: Sequence[Tensor], data: Sequence[Held], bounds: Sequence[float], block: int
) -> list[ClippedSum]:
    """Of each client, at its own parameters [c, ...] and bound; all have ``unit``.

    Rows go through the model in blocks of ``block`` of each client at most, padded with blank ones, whoever holds how
    many.
    """
    device, counts, block = thetas[0].device, [len(own.targets) for own in data], chain.block(thetas, block)
    losses: list[Tensor] = []
    layers: list[list[Layer]] = []
    for start in range(0, max(1, *counts), block):
        some, found = chain.rows(thetas, *chain.block_of(data, start, block, device))
        losses.append(some)
        layers.append(found)
    joined = [
        (bias, torch.cat([block[k][1] for block in layers], 1), torch.cat([block[k][2] for block in layers], 1))
        for k, (bias, _) in enumerate(chain.layers)
    ]
    every = torch.cat(losses, 1)
    sums = []
    for client, (own, bound) in enumerate(zip(data, bounds, strict=True)):
        assert own.unit is not None, "whose unit is the person"
        parts = [(bias, outputs[client], values[client]) for bias, outputs, values in joined]
        total, norms = _clipped(parts, Members.of(own.unit.to(device)), bound)
        loss = float(every[client, : counts[client]].nan_to_num(0.0, 0.0, 0.0).sum()) / max(1, counts[client])
        sums.append(ClippedSum(total, norms.cpu(), loss))
    return sums


def _clipped(layers: Sequence[Layer], members: Members, bound: float) -> tuple[Tensor, Tensor]:
    """(sum [d], norms [persons]) of one client's layers: gradients of outputs [b, o], inputs [b, i]."""
    size = sum(outputs.shape[1] * (values.shape[1] + bias) for bias, outputs, values in layers)
    wide = sum(outputs.shape[1] + values.shape[1] for _, outputs, values in layers)
    device = layers[0][1].device
    total = torch.zeros(size, dtype=torch.float64, device=device)
    norms = torch.zeros(len(members.counts), dtype=torch.float64, device=device)
    for persons, rows in members.alike():
        together = max(1, PHYSICAL_NUMBERS // (4 * (size + wide * rows.shape[1])))
        for some, own in zip(persons.split(together), rows.split(together), strict=True):
            means, lengths = _means(layers, own, members.counts[some])
            norms[some] = lengths
            add_rows(total, clip_factors(lengths, bound), without(means, ~torch.isfinite(lengths)))
    return total, norms


def _means(layers: Sequence[Layer], rows: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """(mean gradients c' [p, d], measured lengths L [p]) of persons with these rows (int64 [p, b], -1: none)."""
    there, many = (rows >= 0).unsqueeze(-1), counts.double()
    parts, squares = [], torch.zeros(rows.shape, dtype=torch.float64, device=rows.device)
    for bias, outputs, values in layers:
        slopes, own = (part[rows.clamp(min=0)].double().masked_fill_(~there, 0.0) for part in (outputs, values))
        parts.append(torch.bmm(slopes.mT, own).flatten(1))
        if bias:
            parts.append(slopes.sum(1))
        squares += slopes.square().sum(-1) * (own.square().sum(-1) + bias)
    means = torch.cat(parts, 1) / many.unsqueeze(1)
    return means, measured(torch.linalg.vector_norm(means, dim=1), squares.sqrt().sum(1) / many, counts)
