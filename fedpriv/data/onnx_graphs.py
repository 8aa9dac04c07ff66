"""ONNX files as networks that compute features: a graph of known operations and its numbers, run by onnxruntime.

A file brings no code: operations of other domains than ONNX's own are refused, and so is what points to other files.
Nothing is drawn: random operations are refused. One picture is computed at a time, on one thread, so pictures cannot
meet whatever the graph does.

Shapes: h x w pixels, d features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.common.errors import OptionError
from fedpriv.data.weights import ONNX, checked_digest, of_extra, pooled, read_file

#: Channels of a picture.
COLOURS = 3
#: Operations that draw, and parts of names of those that compute with coded numbers.
DRAWS = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
QUANTISED = ("Quantize", "QLinear", "Integer")
#: Operations between the last linear layer and the output that do not change what the layer reads.
BEHIND = ("Add", "Softmax", "LogSoftmax", "Sigmoid", "Identity", "Flatten", "Reshape", "Squeeze", "Cast")
#: A value of a graph has at most so many numbers.
MOST_VALUES = 1 << 28


@dataclass(frozen=True)
class Layer:
    """name: of a value of the graph; operation: what computes it; size: its shape as the graph says it, or "?"."""

    name: str
    operation: str
    size: str


class Graph:
    """A checked graph with the digest of its file.

    numbers: how many it holds; side: (h, w) of the pictures that it reads, None where it takes any; opset: the version
    of its operations.
    """

    def __init__(self, content: bytes, path: str, option: str, sha256: str) -> None:
        self._path, self._option, self.sha256 = path, option, sha256
        self._onnx = onnx = of_extra("onnx", option, path)
        parts = {name: of_extra(f"onnx.{name}", option, path) for name in ("inliner", "checker", "shape_inference")}
        try:
            model = onnx.load_model_from_string(content)
            model = parts["inliner"].inline_local_functions(model)
            del model.functions[:]
            self._check(model)
            parts["checker"].check_model(model)
            self._model = parts["shape_inference"].infer_shapes(model, data_prop=True)
        except OptionError:
            raise
        except Exception as error:  # of a file that anybody may have made
            reason = " ".join(str(error).split())[:160]
            raise OptionError(option, path, f"is no ONNX graph, or is damaged ({reason})") from None
        graph = self._model.graph
        self._known = {one.name: _shape(one) for one in (*graph.value_info, *graph.output, *graph.input)}
        if large := next((name for name, dims in self._known.items() if _size(dims) > MOST_VALUES), None):
            self._refuse(f"{large} has {_size(self._known[large])} numbers; at most {MOST_VALUES} are allowed")
        weights = {one.name for one in graph.initializer}
        self.numbers = sum(math.prod(one.dims) for one in graph.initializer)
        self.opset = max((one.version for one in self._model.opset_import if one.domain in OWN), default=0)
        self._input = self._read_input([one for one in graph.input if one.name not in weights])
        self.default = self._default(weights)

    def _refuse(self, words: str) -> None:
        raise OptionError(self._option, self._path, words)

    def _check(self, model: Any) -> None:
        """Raises `OptionError` for what is no network of plain numbers in one file."""
        seen: set[str] = set()
        for node in _nodes(model.graph):
            if node.domain not in OWN:
                allowed = "allowed: ONNX's own operations (export it without a runtime's optimisations)"
                self._refuse(f"{node.op_type} is an operation of {node.domain}; {allowed}")
            if node.op_type in DRAWS:
                self._refuse(f"{node.op_type} draws; allowed: a graph that gives a picture the same every time")
            if any(part in node.op_type for part in QUANTISED):
                self._refuse(f"is quantised ({node.op_type}); allowed: the network in plain numbers, as it was trained")
        for name in (
            *(one.name for one in model.graph.initializer),
            *(name for node in model.graph.node for name in node.output if name),
        ):
            if name in seen:
                self._refuse(f"{name} stands twice")
            seen.add(name)
        for tensor in _tensors(model.graph):
            if tensor.external_data or tensor.data_location == tensor.EXTERNAL:
                self._refuse(f"{tensor.name} points to another file; allowed: one file that holds all of its numbers")
            plain = tensor.data_type in (tensor.FLOAT, tensor.DOUBLE, tensor.FLOAT16)
            if plain and not np.isfinite(self._onnx.numpy_helper.to_array(tensor)).all():
                self._refuse(f"{tensor.name} has numbers that are not finite")

    def _read_input(self, inputs: list[Any]) -> str:
        """Name of the pictures; sets what their form is. Raises `OptionError`."""
        one = inputs[0] if len(inputs) == 1 and inputs[0].type.tensor_type.elem_type == 1 else None  # float32
        shape = self._known[one.name] if one is not None else ()
        self.last = len(shape) == 4 and shape[1] != COLOURS and shape[3] == COLOURS
        fits = len(shape) == 4 and shape[0] in (None, 1) and (shape[1] in (None, COLOURS) or self.last)
        if not fits:
            said = "; ".join(f"{one.name} {_words(self._known[one.name])}" for one in inputs) or "nothing"
            allowed = "allowed: one input of float32 pictures 1 x 3 x h x w, or 1 x h x w x 3"
            self._refuse(f"reads {said}; {allowed}")
        height, width = shape[1:3] if self.last else shape[2:]
        self.side = None if height is None or width is None else (height, width)
        return str(inputs[0].name)

    def _default(self, weights: set[str]) -> str:
        """What the last linear layer reads, or the output where the graph does not end in one."""
        graph = self._model.graph
        makes = {name: node for node in graph.node for name in node.output}
        constant = set(weights)
        for node in graph.node:
            if all(name in constant for name in node.input if name):
                constant |= set(node.output)
        name = last = graph.output[0].name
        while (node := makes.get(name)) is not None and name not in constant:
            fed = [one for one in node.input if one and one not in constant]
            if node.op_type in ("Gemm", "MatMul") and len(fed) == 1:
                return str(fed[0])
            if node.op_type not in BEHIND or len(fed) != 1:
                break
            name = fed[0]
        return str(last)

    @property
    def layers(self) -> list[Layer]:
        """Every value that a node of the graph gives, in order."""
        return [
            Layer(name, node.op_type, _words(self._known.get(name, ())))
            for node in self._model.graph.node
            if node.op_type != "Constant"
            for name in node.output
            if name
        ]

    def reader(self, layer: str | None, side: tuple[int, int]) -> Callable[[Tensor], Tensor]:
        """Pictures [1, 3, h, w] -> features [1, d]. Raises `OptionError` for a layer that there is not."""
        if self.side not in (None, side):
            height, width = self.side or side
            words = f"the graph reads pictures of {height}x{width}; allowed: {height}"
            raise OptionError("features.size", side[0], words)
        named = {one.name for one in self.layers} | {self.default}
        wanted = self.default if layer is None else layer
        if wanted not in named:
            words = f"the graph has no such value; `fedpriv features {Path(self._path).name}` lists them"
            raise OptionError("features.layer", wanted, words)
        return _session(self, wanted)

    def session(self, layer: str) -> Callable[[Tensor], Tensor]:
        onnxruntime = of_extra("onnxruntime", self._option, self._path)
        model = self._onnx.ModelProto()
        model.CopyFrom(self._model)
        del model.graph.output[:]
        model.graph.output.append(self._onnx.ValueInfoProto(name=layer))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = 4
        try:
            made = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        except Exception as error:  # as above
            words = f"onnxruntime cannot run it ({' '.join(str(error).split())[:160]})"
            raise OptionError(self._option, self._path, words) from None

        def read(pictures: Tensor) -> Tensor:
            given = pictures.permute(0, 2, 3, 1) if self.last else pictures
            (found,) = made.run([layer], {self._input: np.ascontiguousarray(given.numpy(), np.float32)})
            if not isinstance(found, np.ndarray) or found.dtype.kind != "f" or found.ndim < 2 or len(found) != 1:
                raise OptionError("features.layer", layer, "gives no numbers of one picture; allowed: another layer")
            return pooled(torch.from_numpy(found.astype(np.float32)))

        return read

    def dims(self, layer: str | None, side: tuple[int, int]) -> int:
        """d, found by a black picture. Raises `OptionError`."""
        read = self.reader(layer, side)
        try:
            return int(read(torch.zeros(1, COLOURS, *side)).shape[1])
        except OptionError:
            raise
        except Exception as error:  # onnxruntime's own
            words = (
                f"fails on pictures of {side[0]}x{side[1]} ({' '.join(str(error).split())[:120]}); see features.size"
            )
            raise OptionError(self._option, self._path, words) from None


#: Domains of ONNX's own operations.
OWN = ("", "ai.onnx")


def read_graph(path: str, option: str, sha256: str | None = None) -> Graph:
    """The graph of a file. sha256: what the file's digest must be. Raises `OptionError` for ``option``."""
    if Path(path).suffix != ".onnx":
        raise OptionError(option, path, f"is no graph; allowed with features.architecture={ONNX}: .onnx")
    content = read_file(path, option)
    return _graph(content, path, option, checked_digest(content, path, option, sha256))


@lru_cache(maxsize=2)
def _graph(content: bytes, path: str, option: str, sha256: str) -> Graph:
    return Graph(content, path, option, sha256)


@lru_cache(maxsize=2)
def _session(graph: Graph, layer: str) -> Callable[[Tensor], Tensor]:
    return graph.session(layer)


def _nodes(graph: Any) -> Iterator[Any]:
    """All nodes, also those of graphs inside nodes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def _shape(value: Any) -> tuple[int | None, ...]:
    """None for a side that the graph leaves open."""
    return tuple(one.dim_value or None for one in value.type.tensor_type.shape.dim)


def _size(dims: tuple[int | None, ...]) -> int:
    return math.prod(one or 1 for one in dims)


def _words(dims: tuple[int | None, ...]) -> str:
    return " x ".join(str(one or "?") for one in dims) or "?"
