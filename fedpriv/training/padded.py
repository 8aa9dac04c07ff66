"""Batches of many clients as one table: every client's are padded to a width that follows from itself alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Work:
    """One client's part of a computation. offset: of its pictures among all of the computation."""

    place: int
    offset: int
    batches: list[np.ndarray]
    width: int  # of its batches, padded


def padded_width(widest: int, batch_size: int) -> int:
    """Of all batches of a client whose largest has ``widest`` examples (at least 1): rounded up by a sixteenth at most,
    so that few clients differ, and to an even number; or the next multiple of the batch size where that is less.
    """
    step = max(2, (1 << (widest.bit_length() - 1)) // 16)
    return min(-(-widest // step) * step, -(-widest // batch_size) * batch_size)


def table_of(work: Sequence[Work]) -> tuple[np.ndarray, Tensor]:
    """rows (int64 [steps, c, b]) of the pictures, -1 where padded; weights (float32, 1/size of the client's batch, 0
    where padded).
    """
    table = np.full((len(work[0].batches), len(work), work[0].width), -1, dtype=np.int64)
    weights = np.zeros(table.shape, dtype=np.float32)
    places = np.arange(work[0].width)
    for client, own in enumerate(work):
        sizes = np.array([len(rows) for rows in own.batches])[:, None]
        taken = places < sizes
        table[: len(sizes), client][taken] = np.concatenate(own.batches) + own.offset
        weights[: len(sizes), client] = taken / sizes.astype(np.float32)
    return table, torch.from_numpy(weights)
