"""What trains inside an app: a function of the user's, or a module with its loss and data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpriv.apps.form import Form
from fedpriv.common.errors import FedprivError, OptionError
from fedpriv.common.messages import MalformedMessage
from fedpriv.config.schema import LocalConfig
from fedpriv.mechanisms.clipped_sums import made_up
from fedpriv.mechanisms.tasks import CLASSES, PADDING, Task
from fedpriv.training.models import give_logits
from fedpriv.training.sequential import FlatModel, LocalData, LocalResult, SequentialTrainer, Training
from fedpriv.training.trained_part import freeze_marked

#: (arrays, number of examples) or (arrays, number of examples, metrics).
Trained = tuple[Any, ...]


class FunctionTrainer:
    """Trains by a function of the user's: (arrays, config) -> `Trained`."""

    foreign = True

    def __init__(self, train: Callable[..., Trained], form: Form, config: LocalConfig, told: Mapping[str, Any]) -> None:
        self.train, self.form, self.config, self.told = train, form, config, told
        #: That the function said it trained on.
        self.examples = 1
        #: As of `SequentialTrainer`; the function's own rate is its own.
        self.round, self.lr = 1, config.lr

    def train_all(self, requests: Sequence[Training]) -> list[LocalResult]:
        """One client's training. Raises ValueError for what the function may not return."""
        (asked,) = requests
        if asked.drift is not None or asked.gradient is not None:
            words = "the method changes every step of training, which a function's own does not"
            raise OptionError("train", getattr(self.train, "__name__", "function"), f"{words}; allowed: a Trainer")
        config = {**self.told, **({"proximal-mu": asked.proximal_mu} if asked.proximal_mu else {})}
        start = asked.theta.numpy()
        try:
            return [self._read(self.train(list(self.form.arrays(start).values()), config), start)]
        except (FedprivError, MalformedMessage) as error:  # words of ours would leave, and these may tell of data
            raise RuntimeError(f"training fails: {error}") from error

    def _read(self, found: Trained, start: NDArray[np.float32]) -> LocalResult:
        """What training returned, from where it started [d]."""
        if not isinstance(found, tuple) or len(found) not in (2, 3):
            raise ValueError("train must return (arrays, number of examples), or these and metrics")
        arrays, examples = found[:2]
        if isinstance(examples, bool) or not isinstance(examples, int | np.integer) or examples < 1:
            raise ValueError(f"train returned {examples!r} examples: at least 1")
        self.examples = int(examples)
        with np.errstate(all="ignore"):
            update = self.form.flat(list(arrays)) - start
        loss = found[2].get("train_loss", math.nan) if len(found) == 3 else math.nan
        return LocalResult(torch.from_numpy(update), float(loss))


@dataclass(frozen=True)
class ReducedLoss(Task):
    """Any loss of torch's with a ``reduction``: its mean over whatever it has for one example. like: targets [n, ...],
    whose form is public.
    """

    loss: Any = None
    like: Any = None
    #: Of outputs [n, 1] and targets [n] torch's mean square is of all pairs.
    own_loss: ClassVar[bool] = True

    def blank(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, *self.like.shape[1:], dtype=self.like.dtype)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = self.loss(outputs, targets)
        return found.flatten(1).mean(1) if found.ndim > 1 else found


def task_of(loss: Any, targets: Tensor) -> Task:
    """Raises `OptionError` for a loss that has none for a single example."""
    plain = type(loss) is nn.CrossEntropyLoss and loss.ignore_index == PADDING
    if loss is None or (plain and loss.weight is None and not loss.label_smoothing):
        return CLASSES
    if getattr(loss, "reduction", None) not in ("mean", "sum", "none"):
        raise OptionError("loss", type(loss).__name__, "a loss of torch.nn with `reduction`: CrossEntropyLoss(), ...")
    each = copy(loss)
    each.reduction = "none"
    return ReducedLoss(loss=each, like=targets[:0])


class Trainer:
    """A module with its loss and data, trained by SGD as ``python -m fedpriv`` does: with the strategy's `local`
    options, and each example's own gradient where a method clips those.

    Args:
        model: a torch module. Its parameters with ``requires_grad`` are the arrays that travel, under their names. All
            others become buffers of the same name: they are neither clipped, given noise nor sent. Buffers stay here.
        loss: of outputs and targets; a loss of torch.nn. None: cross-entropy.
        data: this client's training examples: (inputs [n, ...], targets [n, ...]), a dataset of pairs, or a loader of
            batches, each a pair or a dictionary of two. They are read once, in order.

    Raises:
        OptionError: for data that are no pairs, for a loss without `reduction`, and for a model of which nothing is
            trained.
    """

    def __init__(self, model: nn.Module, loss: Any, data: Any) -> None:
        self.model, self.data = model, _gathered(data)
        self.task = task_of(loss, self.data.targets)
        freeze_marked(model, type(model).__name__)
        self._made: tuple[Any, SequentialTrainer] | None = None

    @property
    def num_examples(self) -> int:
        return len(self.data)

    def rows(self, rows: NDArray[np.int64] | None = None) -> LocalData:
        """All examples, or these of them (positions [b])."""
        if rows is None:
            return self.data
        chosen = torch.from_numpy(np.asarray(rows))
        return LocalData(self.data.inputs[chosen], self.data.targets[chosen])

    def _vocabulary(self) -> int | None:
        """Of whole numbers as inputs, how many the model surely reads: never from the data."""
        if self.data.inputs.is_floating_point():
            return None
        tables = [part.num_embeddings for part in self.model.modules() if isinstance(part, nn.Embedding)]
        return int(getattr(getattr(self.model, "config", None), "vocab_size", min(tables, default=2)))

    def _made_up(self) -> Tensor:
        """Two examples of the data's form and of nobody: what a model raises on an own one would tell of it."""
        inputs, random = self.data.inputs, torch.Generator().manual_seed(0)
        return made_up(2, *inputs.shape[1:], vocabulary=self._vocabulary(), random=random).to(inputs.dtype)

    def of(self, form: Form, local: LocalConfig) -> SequentialTrainer:
        """The trainer of a run. Raises `OptionError` where the server's model is another."""
        own = tuple((name, tuple(part.shape)) for name, part in self.model.named_parameters())
        if own != form.floats:
            trained = "{name: p for name, p in model.named_parameters() if p.requires_grad}"
            words = f"the server's arrays must be this model's trained parameters: ArrayRecord({trained})"
            raise OptionError("initial_arrays", [name for name, _ in form.floats][:5], words)
        if self._made is None:
            give_logits(self.model.cpu().eval(), type(self.model).__name__, self._made_up())
        if self._made is None or self._made[0] != local:
            flat = FlatModel(self.model, task=self.task, vocabulary=self._vocabulary())
            self._made = local, SequentialTrainer(flat, local)
            self._made[1].foreign = True
        return self._made[1]


def _gathered(data: Any) -> LocalData:
    if isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(part, "shape") for part in data):
        inputs, targets = (torch.as_tensor(np.asarray(part)) for part in data)
        return LocalData(inputs, targets)
    batched = hasattr(data, "batch_size") and hasattr(data, "dataset")
    parts = [_pair(one) for one in _items(data)]
    if not parts:
        raise OptionError("data", type(data).__name__, "no examples; allowed: at least one pair (input, target)")
    join = torch.cat if batched else torch.stack
    return LocalData(join([one for one, _ in parts]), join([one for _, one in parts]))


def _items(data: Any) -> Iterable[Any]:
    if hasattr(data, "__iter__"):
        return data  # type: ignore[no-any-return]
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return (data[place] for place in range(len(data)))
    raise OptionError("data", type(data).__name__, "(inputs, targets), a dataset of pairs, or a loader of batches")


def _pair(one: Any) -> tuple[Tensor, Tensor]:
    values = list(one.values()) if isinstance(one, Mapping) else list(one)
    if len(values) != 2:
        raise OptionError("data", f"examples of {len(values)} parts", "pairs (input, target)")
    return torch.as_tensor(values[0]), torch.as_tensor(values[1])
