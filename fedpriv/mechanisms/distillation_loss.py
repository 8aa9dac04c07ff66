"""Knowledge distillation: a student learns a teacher's outputs on unlabelled examples.

Symbols: T -> temperature. Shapes: n examples, k classes.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def distillation_loss(student: Tensor, teacher: Tensor, kind: str, temperature: float) -> Tensor:
    """How far the student's logits [n, k] are from the teacher's [n, k]; a scalar, the mean over examples.

    kl: T^2 * KL(softmax(teacher/T) || softmax(student/T)) (Hinton, Vinyals and Dean 2015; T^2 keeps the gradient's
    size when T changes). mse: mean squared difference of the logits; T is not used.
    """
    if kind == "mse":
        return functional.mse_loss(student, teacher)
    target = functional.log_softmax(teacher / temperature, dim=1)
    found = functional.log_softmax(student / temperature, dim=1)
    return temperature**2 * functional.kl_div(found, target, reduction="batchmean", log_target=True)
