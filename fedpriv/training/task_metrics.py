"""What test examples say of a model, by task: computed by scikit-learn, no formula of our own beyond means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from fedpriv.mechanisms.tasks import PADDING, Classification, Multilabel, NextToken, Regression, Survival, Task

#: Of two classes: how a model ranks, and how right its probabilities are.
RISKS = ("auc", "brier", "slope")
#: Share of the test examples below which a class is rare.
RARE = 0.2
#: Of a ROC curve that is shown.
CORNERS = 101
#: Of Newton's method, and the length of its longest.
STEPS, LONGEST = 50, 10.0
#: Pairs of rows that are compared at a time.
PAIRS = 1 << 24
#: A loss or an error that is not finite is shown as this.
LARGEST = 1e30


def needed(task: Task, outputs: Tensor) -> Tensor:
    """What `metrics` needs of a batch's outputs: of sequences the most likely tokens [n, t], since all outputs would
    not fit into memory.
    """
    return outputs.argmax(-1) if isinstance(task, NextToken) else outputs


def metrics(task: Task, outputs: Tensor, targets: Tensor, loss: float) -> dict[str, float]:
    """Metrics by name, of outputs [n, k] (as `needed` gives them) and targets of all test examples with this mean loss.

    classification: accuracy; of two classes also auc, balanced_accuracy, f1 (of the positive class, else the second),
    brier (mean squared error of its probability), base_brier (of the base rate for everyone) and slope (of the logistic
    regression of the class on the model's log odds: 1 is calibrated, below 1 too sure of itself). multilabel: auc and
    average_precision, means over the labels of which both values are known. regression: rmse, mae in the target's
    units, r2. next_token: perplexity, accuracy of the most likely token. survival: c_index (`concordance`), brier (mean
    of `brier_scores` at the ends of the intervals), base_brier (of the Kaplan-Meier curve for everyone) and
    survival_error (mean predicted survival at the end, less the curve's).
    """
    found = {"loss": min(loss, LARGEST) if loss == loss else LARGEST}
    if isinstance(task, Classification):
        found = {"accuracy": int((outputs.argmax(1) == targets).sum()) / len(targets), **found}
        if (two := log_odds(task, outputs, targets)) is not None:
            found |= of_two(*two)
    elif isinstance(task, Multilabel):
        found |= _of_labels(outputs.double().nan_to_num().numpy(), targets.numpy())
    elif isinstance(task, Regression):
        found |= _of_numbers(task, outputs.squeeze(-1).double(), targets.double())
    elif isinstance(task, Survival):
        found |= _of_times(task, outputs.double(), targets.double())
    elif isinstance(task, NextToken):
        known = targets != PADDING
        right = int((outputs == targets)[known].sum()) / max(1, int(known.sum()))
        found |= {"perplexity": min(math.exp(min(found["loss"], 60.0)), LARGEST), "accuracy": right}
    return found


def log_odds(task: Task, outputs: Tensor, targets: Tensor) -> tuple[np.ndarray, np.ndarray] | None:
    """(log odds of the positive class float64 [n], whether it is that int64 [n]) of two classes; None of other tasks
    and of outputs that are not finite. The positive class is the schema's, else the second.
    """
    if not isinstance(task, Classification) or task.num_outputs != 2 or not torch.isfinite(outputs).all():
        return None
    place = 1 if task.positive is None else task.labels.index(task.positive)
    odds = (outputs[:, place].double() - outputs[:, 1 - place].double()).numpy()
    return odds, (targets.numpy() == place).astype(np.int64)


def risk_figures(odds: np.ndarray, targets: np.ndarray, threshold: float) -> dict[str, Any]:
    """What a report shows of two classes beside `of_two`.

    Returns: threshold; confusion, of rows by class (the positive one last) and by whether their risk is at least the
    threshold; roc, at most `CORNERS` corners (false, true positive rate); calibration, of the rows in tenths by risk
    (rows, mean risk, share of the positive class).
    """
    from sklearn.metrics import confusion_matrix, roc_curve  # takes a second

    risks = scipy.special.expit(odds)
    roc = np.stack(roc_curve(targets, odds)[:2], axis=1) if _both(targets) else np.zeros((0, 2))
    kept = np.unique(np.linspace(0, len(roc) - 1, min(CORNERS, len(roc))).astype(int))
    tenths = [part for part in np.array_split(np.argsort(odds, kind="stable"), 10) if len(part)]
    return {
        "threshold": threshold,
        "confusion": confusion_matrix(targets, risks >= threshold, labels=[0, 1]).tolist(),
        "roc": roc[kept].round(6).tolist(),
        "calibration": [[len(part), float(risks[part].mean()), float(targets[part].mean())] for part in tenths],
    }


def leading(task: Task, targets: Tensor) -> str:
    """The metric that a run is judged by on these test examples: of two classes auc where one is `RARE`, since accuracy
    is high there for a model that finds nobody.
    """
    if isinstance(task, Classification) and task.num_outputs == 2 and len(targets):
        share = float((targets == 1).double().mean())
        if 0 < min(share, 1 - share) < RARE:
            return "auc"
    return task.leading


def of_two(odds: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Of the positive class (targets 1), with its log odds float64 [n]."""
    from sklearn import metrics as known  # takes a second

    share, rate = scipy.special.expit(odds), float(targets.mean())
    guessed = odds > 0
    found = {
        "balanced_accuracy": float(known.balanced_accuracy_score(targets, guessed)) if _both(targets) else 0.5,
        "f1": float(known.f1_score(targets, guessed, zero_division=0.0)),
        "brier": float(known.brier_score_loss(targets, share, labels=[0, 1])),
        "base_brier": rate * (1 - rate),
    }
    if not _both(targets):
        return found
    slope = calibration(odds, targets)
    return found | {"auc": float(known.roc_auc_score(targets, odds))} | ({} if slope is None else {"slope": slope[1]})


def calibration(odds: np.ndarray, targets: np.ndarray) -> tuple[float, float] | None:
    """(a, b) of the most likely model sigmoid(a + b odds) of targets 0 and 1, by Newton's method; None where there is
    none, as where the odds separate the classes.
    """
    scale = float(np.abs(odds - odds.mean()).max())
    if not scale:
        return None
    x = np.stack([np.ones_like(odds), (odds - odds.mean()) / scale], axis=1)
    found = np.zeros(2)
    for _ in range(STEPS):
        share = scipy.special.expit(x @ found)
        try:
            step = np.linalg.solve((x * (share * (1 - share))[:, None]).T @ x, x.T @ (targets - share))
        except np.linalg.LinAlgError:
            return None
        found = found + step * min(1.0, LONGEST / max(float(np.linalg.norm(step)), 1e-300))
        if np.linalg.norm(step) < 1e-9 * (1 + np.linalg.norm(found)):
            slope = float(found[1]) / scale
            return float(found[0]) - slope * float(odds.mean()), slope
    return None


def _of_labels(outputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    from sklearn import metrics as known

    labelled = ~np.isnan(targets.T)
    pairs = [(targets[rows, label], outputs[rows, label]) for label, rows in enumerate(labelled)]
    pairs = [pair for pair in pairs if _both(pair[0])]
    if not pairs:
        return {}
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


# --- survival ----------------------------------------------------------------------------------------------


def _of_times(task: Survival, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    times, events = targets.numpy().T
    index = concordance(outputs[:, 0].nan_to_num(0.0).numpy(), times, events)
    ends = np.arange(1, task.intervals + 1) / task.intervals
    curve = kaplan_meier(times, events == 1, ends)
    survival = task.survival(outputs.nan_to_num(0.0), torch.from_numpy(ends)).numpy()
    scores, base = (
        brier_scores(one, times, events, ends) for one in (survival, np.broadcast_to(curve, survival.shape))
    )
    known = np.isfinite(scores)
    found = {} if index is None else {"c_index": index}
    if known.any():
        found |= {"brier": float(scores[known].mean()), "base_brier": float(base[known].mean())}
    return found | {"survival_error": float(survival[:, -1].mean() - curve[-1])}


def concordance(risk: np.ndarray, times: np.ndarray, events: np.ndarray) -> float | None:
    """The share of pairs, one of whom surely had the event first, in which that one has the larger risk (F. E. Harrell,
    R. M. Califf, D. B. Pryor et al.: Evaluating the yield of medical tests. JAMA 1982); equal risks count half. None
    where there is no such pair. All [n].
    """
    right = pairs = 0.0
    for some in np.array_split(np.flatnonzero(events == 1), max(1, len(times) * len(times) // PAIRS)):
        first, own = times[some, None], risk[some, None]
        later = (times > first) | ((times == first) & (events != 1))
        right += np.count_nonzero(later & (own > risk)) + 0.5 * np.count_nonzero(later & (own == risk))
        pairs += np.count_nonzero(later)
    return float(right / pairs) if pairs else None


def kaplan_meier(times: np.ndarray, events: np.ndarray, at: np.ndarray, before: bool = False) -> np.ndarray:
    """Survival float64 [k] at (before: just before) the times ``at`` [k], of times [n] with events (bool [n])."""
    moments, counts = np.unique(times[events], return_counts=True)
    at_risk = len(times) - np.searchsorted(np.sort(times), moments, side="left")
    curve = np.append(1.0, np.cumprod(1 - counts / at_risk))
    return np.asarray(curve[np.searchsorted(moments, at, side="left" if before else "right")])


def brier_scores(survival: np.ndarray, times: np.ndarray, events: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Of predicted survival [n, k] at the times ``at`` [k] up to 1: the mean squared error, each row weighted by 1 over
    the probability that it is not censored (E. Graf, C. Schmoor, W. Sauerbrei, M. Schumacher: Assessment and comparison
    of prognostic classification schemes for survival data. Statistics in Medicine 1999). NaN where all are censored
    before.
    """
    censored = (events != 1) & (times < 1)
    alive = (times[:, None] > at) | ((times[:, None] >= 1) & (events[:, None] != 1))
    dead = (times[:, None] <= at) & (events[:, None] == 1)
    kept = kaplan_meier(times, censored, at)
    kept_before = kaplan_meier(times, censored, times, before=True)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        wrong = np.where(dead, survival**2 / kept_before, 0.0) + np.where(alive, (1 - survival) ** 2 / kept, 0.0)
    return np.where(kept > 0, wrong.mean(axis=0), np.nan)


def _both(targets: np.ndarray) -> bool:
    return len(np.unique(targets)) > 1
