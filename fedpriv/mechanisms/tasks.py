"""Tasks: what a model's outputs mean. A task alone knows the loss of each example; all else asks it.

Shapes: n examples, k outputs. Outputs are float [..., n, k] (of a sequence [..., n, tokens, k]). A task is one small
class: `losses` and the form of its targets. Where models of Linear and ReLU are computed by hand, so is the derivative:
`SLOPES` of `fedpriv.training.stacked_gradients`. Metrics are in `fedpriv.training.task_metrics`. Torch is imported
where it computes: who only names a task needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar

from fedpriv.common.errors import OwnCodeError
from fedpriv.common.printing import printable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Task:
    """labels: names of the outputs, public: the classes, the labels, or the one number that is predicted. They come
    from files of anybody's: control characters are written as Python writes them.
    """

    labels: tuple[str, ...] = ()
    name: ClassVar[str] = ""
    #: The metric that reports, boards and comparisons rank by, and whether more of it is better.
    leading: ClassVar[str] = "loss"
    more_is_better: ClassVar[bool] = False
    target_dtype: ClassVar[str] = "float32"
    #: Whether `losses` is a user's function (`with_loss`), of which nothing is known.
    own_loss: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(map(printable, self.labels)))

    @property
    def num_outputs(self) -> int:
        """k."""
        return len(self.labels)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Of one example's target."""
        return ()

    @property
    def baseline(self) -> int:
        """Intervals of a hazard that all examples share, which a model adds to its one output; 0: there is none."""
        return 0

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """float [..., n], from outputs [..., n, k] and targets [..., n, *`target_shape`]; differentiable."""
        raise NotImplementedError

    def mean_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean [] of a batch's `losses`."""
        return self.losses(outputs, targets).mean()

    def total_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Sum [] of a batch's `losses`."""
        return self.losses(outputs, targets).sum()

    def blank(self, *shape: int) -> Tensor:
        """Targets of so many blank examples."""
        import torch

        return torch.zeros(*shape, *self.target_shape, dtype=getattr(torch, self.target_dtype))


@dataclass(frozen=True)
class Classification(Task):
    """One of k classes; the loss is the cross-entropy of softmax. Targets int64. positive: of two classes the one that
    f1 and brier are of; None: the second.
    """

    positive: str | None = None
    name: ClassVar[str] = "classification"
    leading: ClassVar[str] = "accuracy"
    more_is_better: ClassVar[bool] = True
    target_dtype: ClassVar[str] = "int64"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        flat = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
        return flat.view(targets.shape)

    def mean_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets)

    def total_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets, reduction="sum")


@dataclass(frozen=True)
class Multilabel(Task):
    """Any of k labels; the loss is the mean over them of the logistic loss, 0 of a label that nobody knows. Targets
    float32 [k] of 0, 1 and NaN for unknown ones.
    """

    name: ClassVar[str] = "multilabel"
    leading: ClassVar[str] = "auc"
    more_is_better: ClassVar[bool] = True

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (self.num_outputs,)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        known = ~targets.isnan()
        each = functional.binary_cross_entropy_with_logits(outputs, targets.where(known, 0.0), reduction="none")
        return (each * known).mean(-1)


@dataclass(frozen=True)
class Regression(Task):
    """A number, scaled to [-1, 1] by its public range; the loss is half of the squared error, or Huber's beyond
    ``huber`` (in scaled units; None: squared). Targets float32.
    """

    low: float = -1.0
    high: float = 1.0
    huber: float | None = None
    name: ClassVar[str] = "regression"
    leading: ClassVar[str] = "rmse"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        wrong = outputs.squeeze(-1) - targets
        if self.huber is None:
            return 0.5 * wrong.square()
        return functional.huber_loss(outputs.squeeze(-1), targets, reduction="none", delta=self.huber)

    def unscaled(self, scaled: Tensor) -> Tensor:
        """Numbers as people write them."""
        return self.low + (scaled + 1) / 2 * (self.high - self.low)


@dataclass(frozen=True)
class Nothing(Regression):
    """Of a table that is for questions alone, whose targets are 0: no model is trained."""


@dataclass(frozen=True)
class Survival(Task):
    """The time to an event, up to ``until``: proportional hazards, each person's constant within each of so many equal
    intervals (M. Friedman: Piecewise exponential models for survival data with covariates. Annals of Statistics 1982).

    Outputs are the logarithms of the hazards, in 1/until; the loss is minus the log likelihood. Targets float32 [2]:
    the time over ``until``, in [0, 1], and 1 for an event, else 0.
    """

    until: float = 1.0
    intervals: int = 6
    name: ClassVar[str] = "survival"
    leading: ClassVar[str] = "c_index"
    more_is_better: ClassVar[bool] = True

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (2,)

    @property
    def baseline(self) -> int:
        return self.intervals

    def exposures(self, times: Tensor) -> Tensor:
        """Of times [...] over ``until`` the part in each interval: float [..., intervals]."""
        return (times.unsqueeze(-1) - self._edges(times)[:-1]).clamp(0, 1 / self.intervals)

    def hazards(self, outputs: Tensor) -> Tensor:
        """Of outputs [..., intervals], in 1/until."""
        return outputs.clamp(max=MOST_LOG_HAZARD).exp()

    def survival(self, outputs: Tensor, times: Tensor) -> Tensor:
        """[n, k]: the probability of no event up to the times [k], over ``until``, of outputs [n, intervals]."""
        return (-self.hazards(outputs) @ self.exposures(times).T).exp()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        times, events = targets[..., 0], targets[..., 1]
        edges, late = self._edges(times), times.unsqueeze(-1)
        inside = (late <= edges[1:]) & ((late > edges[:-1]) | (edges[:-1] == 0))
        survived = (self.hazards(outputs) * self.exposures(times)).sum(-1)
        return survived - events * (outputs * inside).sum(-1)

    def blank(self, *shape: int) -> Tensor:
        """An event at the end: at time 0 nothing would have a gradient."""
        return super().blank(*shape) + 1

    def _edges(self, like: Tensor) -> Tensor:
        import torch

        return torch.arange(self.intervals + 1, dtype=like.dtype, device=like.device) / self.intervals


@dataclass(frozen=True)
class NextToken(Task):
    """The token after each of a sequence's; the loss of an example is the mean cross-entropy over its tokens. Targets
    int64 [tokens], `PADDING` where there is none.
    """

    tokens: int = 1
    name: ClassVar[str] = "next_token"
    leading: ClassVar[str] = "perplexity"
    target_dtype: ClassVar[str] = "int64"

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (self.tokens,)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        flat = functional.cross_entropy(
            outputs.flatten(0, -2), targets.flatten(), reduction="none", ignore_index=PADDING
        ).view(targets.shape)
        return flat.sum(-1) / (targets != PADDING).sum(-1).clamp(min=1)


#: Of a hazard that is still told from larger ones.
MOST_LOG_HAZARD = 15.0
#: Of a token that is not there: it adds nothing to a loss.
PADDING = -100
#: Of models whose outputs are classes without names.
CLASSES = Classification()
KINDS = (Classification, Multilabel, Regression, Survival, NextToken)
TASKS: dict[str, type[Task]] = {kind.name: kind for kind in KINDS}


def of_classes(labels: tuple[str, ...], positive: str | None = None) -> Classification:
    return replace(CLASSES, labels=labels, positive=positive)


def with_loss(task: Task, losses: Callable[[Tensor, Tensor], Tensor]) -> Task:
    """The task with another loss: ``losses(outputs, targets)`` of a batch gives each example's own, float [n]."""
    rest = {name: getattr(Task, name) for name in ("mean_loss", "total_loss")}

    def checked(self: Task, outputs: Tensor, targets: Tensor) -> Tensor:
        found = losses(outputs, targets)
        if found.shape != targets.shape[: targets.ndim - len(self.target_shape)]:
            words = f"must give the loss of each of {len(targets)} examples, gave the form {tuple(found.shape)}"
            raise OwnCodeError("local.loss", getattr(losses, "__name__", "function"), words)
        return found

    kind = type(f"Own{type(task).__name__}", (type(task),), {**rest, "losses": checked, "own_loss": True})
    found: Task = kind(**{field.name: getattr(task, field.name) for field in fields(task)})
    return found
