"""What an exception says of a device: whether it ran out of memory, or failed.

Where something fails, a slower way is often tried. After a device ran out of memory that helps; after any other failure
of a device, and of a computation that several clients have in common, it would only hide it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection

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


def nobodys_own(error: Exception, computations: Collection[Callable[..., object]]) -> bool:
    """Whether an error is of all clients together, so that to compute each alone would hide it: a device failed, or
    torch raised it (RuntimeError) within one of these computations, which clients have in common. What one client's
    broken data raise is something else; where memory is full, fewer clients may fit.
    """
    if failed(error):
        return True
    if out_of_memory(error) or not isinstance(error, RuntimeError):
        return False
    codes = [getattr(function, "__code__", None) for function in computations]
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
