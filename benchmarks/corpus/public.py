"""Code of public repositories, from folders that lie beside each other: FEDPRIV_CORPUS/OWNER+NAME."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import math
import os
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def folder(repository: str) -> Path:
    """Where ``OWNER/NAME`` lies."""
    return Path(os.environ["FEDPRIV_CORPUS"]) / repository.replace("/", "+")


def code(repository: str, module: str, below: str = "") -> Any:
    """A module of a repository, imported as its own scripts would from the folder ``below``."""
    place = str(folder(repository) / below)
    if place not in sys.path:
        sys.path.insert(0, place)
        for name in [name for name in sys.modules if name.split(".")[0] in {"utils", "models", "data", "config", "nn"}]:
            if not isinstance(sys.modules[name], _Lent):
                del sys.modules[name]  # names that every repository uses
    return importlib.import_module(module)


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {"__init__": lambda self, *given, **named: None})


class _Lent(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_Anything("lent", (), {}), name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules below a lent one are lent as well."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        above = sys.modules.get(name.rpartition(".")[0])
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if isinstance(above, _Lent) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> _Lent:
        return _Lent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def lend(*names: str, **given: Any) -> None:
    """Modules that are not installed here: any name of them is an empty class, but for what is ``given``."""
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.append(_Finder())
    for name in names:
        module = _Lent(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        for key, value in given.items():
            setattr(module, key, value)
        sys.modules[name] = module


def pair(data: Any) -> tuple[Any, Any]:
    """Rows and targets, as tensors of 32-bit numbers.

    Args:
        data: A tuple of rows, shape [rows, numbers], and targets, shape [rows] or [rows, 1].

    Raises:
        TypeError: It is anything else.
    """
    import torch

    if not isinstance(data, tuple) or len(data) != 2 or len(data[0]) != len(data[1]) or np.ndim(data[0]) != 2:
        raise TypeError("data must be a tuple of rows and targets")
    rows, targets = (torch.as_tensor(np.asarray(part), dtype=torch.float32) for part in data)
    return rows, targets.reshape(len(rows))


def classes(data: Any) -> tuple[Any, Any]:
    """Rows and classes 0 or 1, by the sign of the target."""
    rows, targets = pair(data)
    return rows, (targets > 0).long()


def batches(rows: Any, targets: Any, steps: int = 1) -> Any:
    """A loader of so many batches; ``steps=1``: of all rows."""
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(rows, targets), batch_size=math.ceil(len(rows) / steps))


def line(inputs: int, outputs: int = 2) -> Any:
    """A linear layer that starts at zero."""
    from torch import nn

    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


@contextlib.contextmanager
def scratch(*below: str) -> Iterator[Path]:
    """A folder of its own as working folder, with such folders in it: code that writes files writes them there."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        for name in below:
            Path(name).mkdir(parents=True)
        yield Path(place)


def on_the_cpu() -> None:
    """`x.cuda()` is `x` here."""
    import torch

    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]


def parts(vector: Any, count: int) -> Sequence[Any]:
    """A vector in so many pieces, as 32-bit tensors."""
    import torch

    return [torch.as_tensor(piece, dtype=torch.float32).clone() for piece in np.array_split(np.asarray(vector), count)]
