"""What test examples say of a model, by task: computed by scikit-learn, no formula of our own beyond means."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedpriv.mechanisms.tasks import PADDING, Classification, Multilabel, NextToken, Regression, Task

#: A loss or an error that is not finite is shown as this.
LARGEST = 1e30


def needed(task: Task, outputs: Tensor) -> Tensor:
    """What `metrics` needs of a batch's outputs: of sequences the most likely tokens [n, t], since all outputs would
    not fit into memory.
    """
    return outputs.argmax(-1) if isinstance(task, NextToken) else outputs


def metrics(task: Task, outputs: Tensor, targets: Tensor, loss: float) -> dict[str, float]:
    """Metrics by name, of outputs [n, k] (as `needed` gives them) and targets of all test examples with this mean loss.

    classification: accuracy; of two classes also auc, balanced_accuracy, f1 (of the positive class, else the second)
    and brier (mean squared error of its probability). multilabel: auc and average_precision, means over the labels of
    which both values occur. regression: rmse, mae in the target's units, r2. next_token: perplexity, accuracy of the
    most likely token.
    """
    found = {"loss": min(loss, LARGEST) if loss == loss else LARGEST}
    if isinstance(task, Classification):
        found = {"accuracy": int((outputs.argmax(1) == targets).sum()) / len(targets), **found}
        if task.num_outputs == 2 and torch.isfinite(outputs).all():
            place = 1 if task.positive is None else task.labels.index(task.positive)
            shares = torch.softmax(outputs.double(), 1)[:, place].numpy()
            found |= _of_two(shares, (targets.numpy() == place).astype(np.int64))
    elif isinstance(task, Multilabel):
        found |= _of_labels(outputs.double().nan_to_num().numpy(), targets.numpy())
    elif isinstance(task, Regression):
        found |= _of_numbers(task, outputs.squeeze(-1).double(), targets.double())
    elif isinstance(task, NextToken):
        known = targets != PADDING
        right = int((outputs == targets)[known].sum()) / max(1, int(known.sum()))
        found |= {"perplexity": min(math.exp(min(found["loss"], 60.0)), LARGEST), "accuracy": right}
    return found


def _of_two(share: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Of the positive class (targets 1), with its probabilities float64 [n]."""
    from sklearn import metrics as known  # takes a second

    guessed = share > 0.5
    found = {
        "balanced_accuracy": float(known.balanced_accuracy_score(targets, guessed)) if _both(targets) else 0.5,
        "f1": float(known.f1_score(targets, guessed, zero_division=0.0)),
        "brier": float(known.brier_score_loss(targets, share, labels=[0, 1])),
    }
    return found | ({"auc": float(known.roc_auc_score(targets, share))} if _both(targets) else {})


def _of_labels(outputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    from sklearn import metrics as known

    able = [label for label in range(targets.shape[1]) if _both(targets[:, label])]
    if not able:
        return {}
    pairs = [(targets[:, label], outputs[:, label]) for label in able]
    return {
        "auc": float(np.mean([known.roc_auc_score(*pair) for pair in pairs])),
        "average_precision": float(np.mean([known.average_precision_score(*pair) for pair in pairs])),
    }


def _of_numbers(task: Regression, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """In the target's own units."""
    guessed, true = task.unscaled(outputs), task.unscaled(targets)
    wrong = (guessed - true).nan_to_num(LARGEST, LARGEST, -LARGEST).clamp(-LARGEST, LARGEST)
    square, spread = float(wrong.square().mean()), float((true - true.mean()).square().mean())
    found = {"rmse": math.sqrt(square), "mae": float(wrong.abs().mean())}
    return found | ({"r2": max(1 - square / spread, -LARGEST)} if spread > 0 else {})


def _both(targets: np.ndarray) -> bool:
    return len(np.unique(targets)) > 1
