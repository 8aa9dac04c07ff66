"""`torch.func.vmap` without torch's notes to its own developers.

Of an operation that it computes one example after the other, torch says that "there is a performance drop" and asks for
an issue on GitHub. Models are anybody's, and where such a model is slow, the choice of the trainer has measured it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

NOT_BATCHED = "There is a performance drop because we have not yet implemented the batching rule"


def quiet_vmap(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """As `torch.func.vmap`; other warnings pass."""
    many = torch.func.vmap(function, **options)

    @wraps(function)
    def call(*given: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", NOT_BATCHED, UserWarning)
            return many(*given)

    return call


@contextmanager
def said_to_be_traced() -> Iterator[None]:
    """Within, code that asks torch whether it is being compiled hears yes: transformers' models then take no step by
    whether a mask is full.
    """
    before, torch.compiler._is_compiling_flag = torch.compiler._is_compiling_flag, True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
