"""An app's arrays as one flat vector, and back: what came down fixes names, shapes and types of what leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedpriv.common.messages import MalformedMessage, shown

Vector = NDArray[np.float64]

#: Keys of the older messages of Flower, in which a `NumPyClient` speaks.
FIT_IN, FIT_OUT, EVALUATE_IN = "fitins", "fitres", "evaluateins"
LARGE = "the model has more numbers than this node's policy allows"
ARRAYS, METRICS, NUM_EXAMPLES = "arrays", "metrics", "num-examples"


class Unanswerable(MalformedMessage):
    """A message that no guard answers. sentence: for its server, of the message and the policy alone; detail: for the
    node's operator.
    """

    def __init__(self, sentence: str, detail: str = "") -> None:
        super().__init__(f"{sentence} ({detail})" if detail else sentence)
        self.sentence = sentence


@dataclass(frozen=True)
class Model:
    """The one record of arrays of a message. arrays: by name, in the order in which they came; of other types than
    float they are not part of the vector, and go back as they came.
    """

    key: str
    arrays: Mapping[str, NDArray[Any]]

    @property
    def size(self) -> int:
        """d: float numbers."""
        return sum(array.size for array in self.arrays.values() if _is_float(array))

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def vector(self) -> Vector:
        """float64 [d]."""
        return _flat(list(self.arrays.values()), self.arrays.values())

    def answer(self, arrays: Sequence[NDArray[Any]] | None, reply: str) -> Vector:
        """An app's answer (float64 [d]): its arrays less these, or (reply=reply, counts) its arrays. Zero for one that
        did not answer or answered in another form: that is an answer like any other.
        """
        if arrays is None or self.fault(arrays) is not None:
            return np.zeros(self.size)
        with np.errstate(all="ignore"):
            found = _flat(arrays, self.arrays.values())
            return found - self.vector if reply == "difference" else found

    def fault(self, arrays: Sequence[NDArray[Any]] | None) -> str | None:
        """Why an app's answer counts as zero (`fedpriv.guard.shards.SHARDS`); None: it does not."""
        if arrays is None:
            return "no arrays"
        plain = all(array.dtype.kind in "fiu" for array in arrays)
        if not plain or [array.shape for array in arrays] != [array.shape for array in self.arrays.values()]:
            return "other form"
        return None if all(np.isfinite(array).all() for array in arrays) else "not finite"

    def record(self, vector: Vector) -> ArrayRecord:
        """Arrays of these names, shapes and types with the vector's numbers [d]."""
        found, start = ArrayRecord(), 0
        for name, array in self.arrays.items():
            numbers = array
            if _is_float(array):
                numbers = vector[start : start + array.size].reshape(array.shape)
                start += array.size
                with np.errstate(over="ignore"):
                    numbers = numbers.astype(array.dtype)
            found[name] = Array(numbers)
        return found


def zero_counts(size: int) -> Model:
    """The form of a vector of counts [K], as of a model that trains from zero."""
    return Model("counts", {"counts": np.zeros(size)})


def model_of(content: RecordDict, most: int) -> Model:
    """The model that a message brings. most: numbers. Raises `Unanswerable`."""
    if (count := len(content.array_records)) != 1:
        raise Unanswerable(f"a guarded app gets one record of arrays, and the message has {count}")
    ((key, record),) = content.array_records.items()
    if (size := sum(math.prod(array.shape) for array in record.values())) > most:  # before anything is read
        raise Unanswerable(LARGE, f"{size}, max_parameters is {most}")
    found = {}
    for name, array in record.items():
        if array.stype != "numpy.ndarray":
            raise Unanswerable("an array of the model cannot be read", f"{shown(name)}: of {shown(array.stype)}")
        try:
            found[name] = array.numpy()
        except (ValueError, EOFError, OSError, TypeError) as error:
            raise Unanswerable("an array of the model cannot be read", f"{shown(name)}: {shown(error)}") from None
    if (size := sum(array.size for array in found.values())) > most:
        raise Unanswerable(LARGE, f"{size}, max_parameters is {most}")
    model = Model(key, found)
    if not model.size:
        raise Unanswerable("the model has no float arrays")
    if not np.isfinite(model.vector).all():
        raise Unanswerable("the model has numbers that are not finite")
    return model


def trained_content(model: Model, vector: Vector) -> RecordDict:
    """Content of a train reply in the app's own form: one record of arrays, and a weight that is nobody's data."""
    arrays = model.record(vector)
    if model.key.startswith(FIT_IN):
        return RecordDict(
            {
                f"{FIT_OUT}.parameters": arrays,
                f"{FIT_OUT}.num_examples": MetricRecord({"num_examples": 1}),
                f"{FIT_OUT}.metrics": ConfigRecord({}),
                f"{FIT_OUT}.status": ConfigRecord({"code": 0, "message": ""}),
            }
        )
    return RecordDict({model.key: arrays, METRICS: MetricRecord({NUM_EXAMPLES: 1})})


def fit_content(model: Model, config: Mapping[str, Any], form: str = FIT_IN) -> RecordDict:
    """The model and its server's configuration as a `NumPyClient` expects them, to train or (EVALUATE_IN) evaluate."""
    arrays = ArrayRecord({str(place): Array(array) for place, array in enumerate(model.arrays.values())})
    return RecordDict({f"{form}.parameters": arrays, f"{form}.config": ConfigRecord(dict(config))})


def counted_content(counts: Mapping[str, int], vector: Vector) -> RecordDict:
    """Content of a reply of counts. counts: how many of the vector's numbers [K] each name has; {}: a fixed content."""
    record, start = MetricRecord({NUM_EXAMPLES: 1}), 0
    for name, size in counts.items():
        numbers = vector[start : start + size].tolist()
        record[name], start = numbers if size > 1 else numbers[0], start + size
    return RecordDict({METRICS: record})


def _is_float(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f"


def _flat(arrays: Sequence[NDArray[Any]], forms: Any) -> Vector:
    parts = [array.astype(np.float64).ravel() for array, form in zip(arrays, forms, strict=True) if _is_float(form)]
    return np.concatenate(parts) if parts else np.zeros(0)
