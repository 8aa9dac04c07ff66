"""A failure of a device is told from want of memory and from what a user's code raises, and is never passed over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedpriv.mechanisms.device_errors import failed, nobodys_own, out_of_memory
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.training.sequential import FlatModel
from fedpriv.training.vectorisable import obstacle

FAILURES = (
    torch.AcceleratorError("an illegal memory access was encountered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling cublasCreate"),
)
WANTS = (
    torch.OutOfMemoryError("CUDA out of memory"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
)
OWN = (RuntimeError("vmap: it looks like you are calling .item()"), ValueError("CUDA error"))


def test_kinds_of_errors_are_told_apart() -> None:
    assert [failed(error) for error in (*FAILURES, *WANTS, *OWN)] == [True] * 3 + [False] * 5
    assert [out_of_memory(error) for error in (*FAILURES, *WANTS, *OWN)] == [False] * 3 + [True] * 3 + [False] * 2
    assert [nobodys_own(error, ()) for error in (*FAILURES, *WANTS, *OWN)] == [True] * 3 + [False] * 5


@pytest.mark.parametrize("error", [*FAILURES, *WANTS, *OWN])
def test_what_a_common_computation_raises_is_nobodys_own_but_for_want_of_memory(error: Exception) -> None:
    def common() -> None:
        raise error

    def alone() -> None:
        raise error

    for computation in (common, alone):
        with pytest.raises(type(error)) as found:
            computation()
        everybodys = isinstance(error, RuntimeError) and error not in WANTS and computation is common
        assert nobodys_own(found.value, (common, print)) is (everybodys or error in FAILURES)
        error.__traceback__ = None


class Fails(nn.Module):
    """Raises an error when it is called for so many examples."""

    def __init__(self, error: Exception, when: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.layer, self.error, self.when = nn.Linear(4, 3), error, when

    def forward(self, x: Tensor) -> Tensor:
        if self.when(x):
            raise self.error
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("error", FAILURES)
def test_where_a_way_is_chosen_a_failed_device_is_no_reason_for_a_slower_one(error: Exception) -> None:
    always = FlatModel(nn.Sequential(Fails(error, lambda x: True)))
    with pytest.raises(type(error), match=str(error)):
        obstacle(always, (4,))
    with pytest.raises(type(error), match=str(error)):
        PerExampleGradients(always.module, "vmap").settle((4,), torch.device("cpu"))
    mistake = Fails(RuntimeError("a mistake"), lambda x: True)
    assert "fails under torch.func.vmap (a mistake)" in str(obstacle(FlatModel(nn.Sequential(mistake)), (4,)))
