"""The generators of a process: seeded, watched and put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def seeds_of(seed: int, n: int) -> list[int]:
    """n different seeds below 2^31."""
    drawn = np.random.SeedSequence(seed).generate_state(2 * n + 16, np.uint32) >> 1
    return [int(value) for value in dict.fromkeys(drawn.tolist())][:n]


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """The process's generators (python, numpy, and torch where it is imported) seeded; put back afterwards.

    None: they go on from fresh randomness of the operating system.
    """
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None
    random.seed(seed)
    np.random.seed(seed)
    if torch:
        torch.manual_seed(random.SystemRandom().getrandbits(62) if seed is None else seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch and states[2] is not None:
            torch.set_rng_state(states[2])
