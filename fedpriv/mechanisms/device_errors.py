"""What an exception says of a device: whether it ran out of memory, or failed.

Where something fails, a slower way is often tried. After a device ran out of memory that helps; after any other failure
of a device, and of a computation that several clients have in common, it would only hide it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: In what torch raises for failures of a GPU and of the libraries that compute there.
OF_A_DEVICE = ("CUDA error", "CUDA driver error", "cuDNN error", "CUDNN_STATUS", "CUBLAS_STATUS", "CUSOLVER_STATUS")
#: In what torch raises where a computer's own memory is full.
NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"


def out_of_memory(error: BaseException) -> bool:
    """Whether a device's memory, or the computer's own, was full."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or NO_MEMORY in str(error)


def failed(error: BaseException) -> bool:
    """Whether a device failed in another way than by running out of memory."""
    if out_of_memory(error) or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, torch.AcceleratorError) or any(words in str(error) for words in OF_A_DEVICE)


class CommonFailure(Exception):
    """Its cause is a failure of a computation that several clients have in common, which is no single client's."""


@contextmanager
def common() -> Iterator[None]:
    """Around such a computation. Raises `CommonFailure` for what torch raises (RuntimeError), but for want of memory;
    what one client's broken data raise is something else, and passes.
    """
    try:
        yield
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        raise CommonFailure(str(error)) from error


def nobodys_own(error: Exception) -> Exception | None:
    """What went wrong for all clients together, so that to compute each alone would hide it; None where it may be one
    client's own, or want of memory.
    """
    if isinstance(error, CommonFailure) and isinstance(error.__cause__, Exception):
        return error.__cause__
    return error if failed(error) else None
