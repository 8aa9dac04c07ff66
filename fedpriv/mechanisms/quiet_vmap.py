"""`torch.func.vmap` without torch's notes to its own developers.

Of an operation that it computes one example after the other, torch says that "there is a performance drop" and asks for
an issue on GitHub. Models are anybody's, and where such a model is slow, the choice of the trainer has measured it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
