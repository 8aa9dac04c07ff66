"""An app's arrays as one flat vector, and back: names, shapes and types are those of the app's initial model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedpriv.common.errors import OptionError
from fedpriv.common.messages import FloatVector, MalformedMessage

#: Types of arrays that are averaged; those of whole numbers and truth values stay as the initial model has them.
FLOATS, FIXED = ("float16", "float32", "float64"), "biu"


@dataclass(frozen=True)
class Form:
    """parts: (name, shape, type) of each array, in order. fixed: the arrays that are no float, by name."""

    parts: tuple[tuple[str, tuple[int, ...], str], ...]
    fixed: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, record: ArrayRecord) -> tuple[Form, FloatVector]:
        """The form of an app's initial model, and its float numbers (float32 [d]). Raises `OptionError`."""
        arrays = {name: array.numpy() for name, array in record.items()}
        for name, array in arrays.items():
            if array.dtype.name not in FLOATS and array.dtype.kind not in FIXED:
                words = f"{array.dtype}; allowed: {', '.join(FLOATS)}, and whole numbers, which stay as they are"
                raise OptionError("initial_arrays", name, words)
        fixed = {name: array for name, array in arrays.items() if array.dtype.kind in FIXED}
        form = cls(tuple((name, array.shape, array.dtype.name) for name, array in arrays.items()), fixed)
        if not form.size:
            raise OptionError("initial_arrays", list(arrays), "the model has no float numbers; allowed: at least one")
        vector = form.flat(list(arrays.values()))
        if not np.isfinite(vector).all():
            raise OptionError("initial_arrays", "not finite", "every number must be finite")
        return form, vector

    @cached_property
    def floats(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(name, shape) of the arrays that make the vector."""
        return tuple((name, shape) for name, shape, kind in self.parts if kind in FLOATS)

    @cached_property
    def size(self) -> int:
        """d."""
        return sum(math.prod(shape) for _, shape in self.floats)

    def flat(self, arrays: Sequence[NDArray[Any]]) -> FloatVector:
        """Arrays of this form as float32 [d]. Raises `MalformedMessage` for other shapes."""
        shapes = [np.shape(array) for array in arrays]
        if shapes != [shape for _, shape, _ in self.parts]:
            words = f"arrays of shapes {shapes}, expected {[shape for _, shape, _ in self.parts]}"
            raise MalformedMessage(words, "wrong_shape")
        kept = [np.ravel(array) for array, (_, _, kind) in zip(arrays, self.parts, strict=True) if kind in FLOATS]
        with np.errstate(over="ignore"):
            return np.concatenate([part.astype(np.float32) for part in kept])

    def arrays(self, vector: FloatVector) -> dict[str, NDArray[Any]]:
        """By name, with the vector's numbers [d]; the inverse of `flat`."""
        found, start = dict[str, NDArray[Any]](), 0
        for name, shape, kind in self.parts:
            if kind in FLOATS:
                stop = start + math.prod(shape)
                with np.errstate(over="ignore"):
                    found[name] = vector[start:stop].reshape(shape).astype(kind)
                start = stop
            else:
                found[name] = self.fixed[name].copy()
        return found

    def record(self, vector: FloatVector) -> ArrayRecord:
        """As `arrays`, for Flower."""
        return ArrayRecord({name: Array(array) for name, array in self.arrays(vector).items()})

    def to_json(self) -> str:
        return json.dumps(self.parts)

    @classmethod
    def from_json(cls, text: str, fixed: Sequence[NDArray[Any]]) -> Form:
        """The inverse of `to_json`. fixed: the arrays that are no float, in order. Raises ValueError, TypeError."""
        parts = tuple((str(name), tuple(map(int, shape)), str(kind)) for name, shape, kind in json.loads(text))
        names = [name for name, _, kind in parts if kind not in FLOATS]
        return cls(parts, dict(zip(names, fixed, strict=True)))
