"""Metrics of a global model on the reported test examples."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.common.messages import FloatVector
from fedpriv.common.places import code_at
from fedpriv.config.schema import Config
from fedpriv.data import FederatedData
from fedpriv.data.asked import Asks
from fedpriv.mechanisms.tasks import Classification
from fedpriv.training.resident import has_room
from fedpriv.training.sequential import FlatModel, inputs_of
from fedpriv.training.task_metrics import leading, log_odds, metrics, needed, risk_figures

#: Names of a user's metrics.
OWN_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
#: Sites (clients with test examples of their own) whose metrics are told one by one.
MOST_SITES = 100


class Loaded(Protocol):
    """Parts of a configuration that a process keeps loaded."""

    config: Config

    @property
    def data(self) -> FederatedData: ...

    @property
    def model(self) -> FlatModel: ...


@dataclass(frozen=True)
class SiteScore:
    """The leading metric of the global model on one site's test examples, and how many they are."""

    site: str
    value: float
    examples: int


@dataclass(frozen=True)
class Score:
    """Every metric of the task by name (`fedpriv.training.task_metrics`), and which of them leads."""

    metrics: dict[str, float]
    leading: str
    more_is_better: bool

    @property
    def value(self) -> float | None:
        """The leading metric; None where the test examples do not define it."""
        return self.metrics.get(self.leading)

    def best_of(self, before: float | None) -> float | None:
        """The better of this leading metric and one of before."""
        known = [value for value in (self.value, before) if value is not None]
        return (max if self.more_is_better else min)(known, default=None)

    @property
    def shown(self) -> dict[str, float]:
        """What a line of progress shows: the leading metric, and of two classes auc beside it."""
        names = (self.leading, *(["auc"] if "auc" in self.metrics and self.leading != "auc" else []))
        return {name: self.metrics[name] for name in names if name in self.metrics}

    @property
    def further(self) -> dict[str, float]:
        """Metrics beside accuracy and loss."""
        return {name: value for name, value in self.metrics.items() if name not in ("accuracy", "loss")}

    @property
    def loss(self) -> float:
        """Mean loss (of classes: cross-entropy, natural logarithm)."""
        return self.metrics["loss"]

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions; None where the task has none."""
        return self.metrics.get("accuracy")


class Evaluator:
    """Evaluates global parameters on the reported test examples, or on the public auxiliary ones; the examples are
    normalised once, and stay in the model's device where it has memory of its own and they fit.
    """

    def __init__(self, worker: Loaded, auxiliary: bool = False) -> None:
        self.worker = worker
        data = worker.data
        examples, rows = data.dataset.test, np.sort(data.auxiliary if auxiliary else data.test)
        inputs, device = inputs_of(data.dataset, examples, rows), worker.model.theta.device
        self.inputs = inputs.to(device) if has_room(inputs.nbytes, device) else inputs
        self.targets = torch.from_numpy(np.asarray(examples.targets[rows]))
        self.leading = leading(worker.model.task, self.targets)
        self.groups = [] if worker.config.evaluate.by is None else self._groups(worker.config.evaluate.by)

    def __call__(self, theta: FloatVector) -> Score:
        return self._score(theta, self.inputs, self.targets)

    def by_site(self, theta: FloatVector) -> list[SiteScore]:
        """The global model on each site's test examples, the worst first: of the column that divides the rows, else of
        the clients that keep some (`partition.test_fraction`). Sites whose examples do not define the metric (auc of
        one class) are left out. Empty where nobody has any, and for more than `MOST_SITES`.
        """
        scores = []
        for site, inputs, targets in self._sites():
            score = self._score(theta, inputs, targets)
            if score.value is not None:
                scores.append(SiteScore(site, score.value, len(targets)))
        return sorted(scores, key=lambda one: one.value, reverse=not self.worker.model.task.more_is_better)

    def details(self, theta: FloatVector) -> dict[str, Any]:
        """What the report has of the test examples beside metrics, and whoever publishes these not: risks of two
        classes (`task_metrics.risk_figures`), and groups by `evaluate.by`, the worst first, each with its metrics.
        """
        task, found = self.worker.model.task, dict[str, Any]()
        if isinstance(task, Asks) or not len(self.targets):
            return found
        if isinstance(task, Classification) and task.num_outputs == 2:
            two = log_odds(task, self._outputs(theta, self.inputs, self.targets)[0], self.targets)
            if two is not None:
                found["risks"] = risk_figures(*two, self.worker.config.evaluate.threshold)
        groups = [(name, rows, self._score(theta, self.inputs[rows], self.targets[rows])) for name, rows in self.groups]
        sign = 1 if task.more_is_better else -1  # of a group without the metric: last
        groups.sort(key=lambda one: math.inf if one[2].value is None else sign * one[2].value)
        shown = [{"group": name, "examples": len(rows), **score.metrics} for name, rows, score in groups]
        return found | ({"groups": shown} if shown else {})

    def _groups(self, name: str) -> list[tuple[str, Tensor]]:
        """(value, rows int64 [m]) of a column of categories, by the inputs that say it. Raises `OptionError`."""
        schema, start = self.worker.data.dataset.schema, 0
        known = [] if schema is None else [key for key, column in schema.inputs if column.kind == "values"]
        if schema is None or name not in known:
            words = f"must be a column of categories of the table's schema; allowed: {', '.join(['null', *known])}"
            raise OptionError("evaluate.by", name, words)
        for key, column in schema.inputs:
            if key == name:
                inputs = self.inputs[:, start : start + schema.width(column)].cpu()
                groups = zip((*(column.values or ()), "other", "missing"), inputs.T, strict=False)
                return [(value, rows) for value, row in groups if len(rows := torch.nonzero(row > 0)[:, 0])]
            start += schema.width(column)
        raise AssertionError(name)

    def _sites(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        data = self.worker.data
        dataset, test = data.dataset, np.sort(data.test)
        if dataset.test.site is not None and len(dataset.sites) <= MOST_SITES:
            for number, name in enumerate(dataset.sites):
                rows = torch.from_numpy(np.flatnonzero(dataset.test.site[test] == number))
                if len(rows):
                    yield name, self.inputs[rows], self.targets[rows]
        elif self.worker.config.partition.test_fraction > 0 and data.num_clients <= MOST_SITES:
            for client in range(data.num_clients):
                own = data.test_indices(client)
                if len(own):
                    targets = torch.from_numpy(np.asarray(dataset.train.targets[own]))
                    yield f"client {client}", inputs_of(dataset, dataset.train, own), targets

    def _score(self, theta: FloatVector, all_inputs: Tensor, all_targets: Tensor) -> Score:
        task = self.worker.model.task
        if isinstance(task, Asks):  # nothing is predicted
            return Score({}, self.leading, task.more_is_better)
        outputs, loss = self._outputs(theta, all_inputs, all_targets)
        found = metrics(task, outputs, all_targets, loss)
        if (path := self.worker.config.evaluate.metrics) is not None:
            found |= _of_user(path, outputs, all_targets, found)
        return Score(found, self.leading, task.more_is_better)

    def _outputs(self, theta: FloatVector, all_inputs: Tensor, all_targets: Tensor) -> tuple[Tensor, float]:
        """(outputs as `needed` has them, mean loss)."""
        model = self.worker.model
        model.load(torch.from_numpy(theta).to(model.theta.device))
        model.module.eval()
        found, total_loss, batch = [], 0.0, self.worker.config.evaluate.batch_size
        with torch.inference_mode():
            for inputs, targets in zip(all_inputs.split(batch), all_targets.split(batch), strict=True):
                outputs = model(inputs.to(model.theta.device)).cpu()
                total_loss += float(model.task.total_loss(outputs, targets))
                found.append(needed(model.task, outputs))
        return torch.cat(found), total_loss / len(all_targets)


def _of_user(path: str, outputs: Tensor, targets: Tensor, known: Collection[str]) -> dict[str, float]:
    """What the function at ``path`` says of all test examples, beside ``known`` metrics. Raises `OptionError`."""
    try:
        given = code_at("evaluate.metrics", path)(outputs.clone(), targets.clone())
        found = {str(name): float(value) for name, value in given.items()}
    except OptionError:
        raise
    except Exception as error:  # the user's code
        raise OptionError("evaluate.metrics", path, f"raised {type(error).__name__}: {error}") from error
    wrong = [name for name in found if not math.isfinite(found[name]) or not OWN_NAME.fullmatch(name) or name in known]
    if wrong:
        words = f"{wrong[0]}={found[wrong[0]]}: a name is of letters, digits and _ and new, and a number is finite"
        raise OptionError("evaluate.metrics", path, words)
    return found
