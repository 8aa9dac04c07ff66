"""The generators of a process: seeded, looked at and put back."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np


def seeds_of(seed: int, n: int) -> list[int]:
    """n different seeds below 2^31."""
    drawn = np.random.SeedSequence(seed).generate_state(2 * n + 16, np.uint32) >> 1
    return [int(value) for value in dict.fromkeys(drawn.tolist())][:n]


def seeded(seed: int | None) -> Any:
    """Context in which the process's generators (python, numpy, and torch where it is imported) begin at ``seed``; they
    are put back afterwards. None: nothing is touched.
    """
    return nullcontext() if seed is None else _seeded(seed)


def begin_torch(torch: Any, seed: int) -> None:
    """`torch.manual_seed`, which records three stack traces where there is no GPU: most of what a play of a small
    function took.
    """
    if _has_gpu():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _has_gpu() -> bool:
    return bool(sys.modules["torch"].accelerator.is_available())


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    states = generator_states()
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 (the generator that targets use)
    if torch := sys.modules.get("torch"):
        begin_torch(torch, seed)
    try:
        yield
    finally:
        put_back(states)


def generator_states() -> tuple[Any, Any, Any]:
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None  # noqa: NPY002


def put_back(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    if (torch := sys.modules.get("torch")) and states[2] is not None:
        torch.set_rng_state(states[2])


def digest_of_states() -> tuple[str, str, str]:
    """Of each of the three generators' states; empty for one that there is not."""
    first, second, third = generator_states()
    name, words, *rest = second
    of_torch = "" if third is None else hashlib.sha256(third.numpy().tobytes()).hexdigest()
    of_numpy = hashlib.sha256(repr((name, rest)).encode() + words.tobytes()).hexdigest()
    return hashlib.sha256(repr(first).encode()).hexdigest(), of_numpy, of_torch
