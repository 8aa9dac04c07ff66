"""The one reader of everything that leaves a target: every number of what it returns, by name. It needs numpy alone."""

from __future__ import annotations

import array
import hashlib
import inspect
import io
import json
import os
import pickletools
import re
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Played:
    """One call of a target: everything that leaves in it.

    numbers: by name, flat float64 arrays: "released", "arrays.0", "metrics.loss", "num_examples". Texts, names and
    shapes that leave are turned into numbers (a hash) under "form.*"; a number that an observer knows beforehand
    (a round's number, a public constant) is left out. exact: whole numbers of 64 bits, which those have rounded.
    unread: what may hold more than was read, "TYPE at PLACE".
    """

    numbers: Mapping[str, Numbers]
    exact: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    @property
    def tells(self) -> bool:
        """Whether anything was read but the form and what is not known."""
        return len(self.numbers) > 1 + len(self.unread)

    def flat(self) -> Numbers:
        """All numbers [k], in the order of their names."""
        parts = [np.ravel(self.numbers[name]) for name in sorted(self.numbers)]
        return np.concatenate(parts) if parts else np.zeros(0)


def beside(read: NDArray[Any]) -> bytes:
    """What float64 numbers that compare equal may differ in: the signs of zeros, the bits of what is no number, and
    whole numbers beyond 2^53.
    """
    if read.dtype.kind == "f":
        return read[((read == 0) & np.signbit(read)) | (read != read)].tobytes()
    return read[(read > 2**53) | (read < -(2**53))].tobytes() if read.dtype.kind in "iu" else b""


def array_file(value: bytes) -> tuple[NDArray[Any], bytes]:
    """The array of a file of numpy's, and what of the file is not its numbers: the header, and what stands after."""
    file = io.BytesIO(value)
    found: NDArray[Any] = np.load(file, allow_pickle=False)
    return found, value[: file.tell() - found.nbytes] + value[file.tell() :]


def is_word(record: str) -> bool:
    """A record whose numbers are hashes: they are equal or not, and have no size."""
    return record.startswith("form.") or record.endswith(".text")


#: Deeper structures, and records beyond so many, are not read; a generator of so many values has no end.
DEEPEST, MOST, ENDLESS = 12, 10_000, 10**7
#: Bytes of floats whose sizes are this far apart are none, in powers of two.
MOST_SCATTER = 12.0
NPY = b"\x93NUMPY"
#: What is known by its text.
TEXTS = (str, Enum, PurePath, type)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])|\b(?:nan|inf)\b")


def hash_number(value: object) -> float:
    """A text or any other object as one number in [0, 1): equal for equal ones."""
    return float(int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:6], "big")) / 2**48


def played(name: str, value: Any, objects: bool = True) -> Played:
    """All numbers of a value under names that begin with ``name``; ``form.NAME`` is its structure as a number, and what
    leaves beside numbers that compare equal (`beside`) as another.

    A mapping gives the numbers of its values under their keys, a sequence or an iterator under places or the names of
    its fields, a model its state, a data frame its columns and index, any other object its attributes (without
    ``objects`` none of torch or Opacus: of a data set, a loader, an engine), a text its numbers and the hash of the
    rest, bytes what they are the file or the floats of. None is no number. What has none of these is a part of
    `Played.unread`.
    """
    reader = _Reader(objects)
    reader.read(name, value, ())
    reader.numbers[f"form.{name}"] = np.array([hash_number(reader.form), hash_number(reader.beside)])
    return Played(reader.numbers, reader.exact, tuple(dict.fromkeys(reader.unread)))


def released(call: Callable[[], Any], also: Sequence[str] = ()) -> Played:
    """What a call gives. also: "printed": what it prints too; "files": what it leaves in its working folder, which is a
    scratch folder then.
    """
    if not also:
        return played("released", _called(call))
    said, before, beside = io.StringIO(), os.getcwd(), dict[str, Any]()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            if "files" in also:
                os.chdir(scratch)
            with redirect_stdout(said), redirect_stderr(said):
                beside["returned"] = _called(call)
        finally:
            os.chdir(before)
        beside |= {"printed": said.getvalue()} if "printed" in also else {}
        files = sorted(path for path in Path(scratch).rglob("*") if path.is_file())
        beside["files"] = {str(path.relative_to(scratch)): path.read_bytes() for path in files}
        return played("released", beside)


def _called(call: Callable[[], Any]) -> Any:
    process, left = os.getpid(), call()
    if os.getpid() != process:  # the target forked, and this is the copy
        os._exit(0)
    return left


class _Reader:
    def __init__(self, objects: bool) -> None:
        self.numbers: dict[str, Numbers] = {}
        self.exact: dict[str, NDArray[np.int64]] = {}
        self.form: list[Any] = []
        self.beside: list[Any] = []
        self.unread: list[str] = []
        self.objects, self.full = objects, False

    def read(self, name: str, value: Any, within: tuple[int, ...]) -> None:
        """within: ids of what holds the value, which is not read again inside itself."""
        if value is None or id(value) in within:
            self.form.append("none")
            return
        if len(self.numbers) > MOST:
            self.unread += [] if self.full else [f"more than {MOST:,} records at {name}"]
            self.full = True
            return
        if len(within) > DEEPEST:
            self._not_read(name, value)
            return
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            value = value.detach().cpu()
            self.form.append(str(value.dtype))
            value = (value.to_dense() if value.is_sparse else value).float().numpy() if _half(value) else value.numpy()
        if isinstance(value, (bool, int, float, complex, np.generic, np.ndarray)):
            extra = _attributes(value) if type(value).__module__ not in ("builtins", "numpy") else {}
            read = np.asarray(value)
            if read.dtype.kind in "biufc":
                self._array(name, read)
                value = extra
            elif read.dtype.names:
                value = {key: read[key] for key in read.dtype.names}
            else:
                value = read.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)
            if isinstance(value, dict) and not value:
                return
        self._part(name, value, (*within, id(value)))

    def _array(self, name: str, read: NDArray[Any]) -> None:
        if read.dtype.kind == "c":
            read = read.view(read.real.dtype) if read.ndim else np.array([read.real, read.imag])
        self.form.append((read.dtype.str, read.shape))
        self.beside.append(beside(read))
        self.numbers[name] = read.astype(np.float64).ravel()
        if read.dtype.kind in "iu" and read.dtype.itemsize == 8:
            self.exact[name] = read.astype(np.int64).ravel()  # unsigned ones modulo 2^64

    def _part(self, name: str, value: Any, within: tuple[int, ...]) -> None:
        if isinstance(value, (bytes, bytearray)):
            given, value = value, _of_bytes(bytes(value))
            if isinstance(value, np.ndarray) and given[:6] == NPY:
                self.beside.append(array_file(bytes(given))[1])
            if value is None or isinstance(value, bytes):
                self._not_read(name, value)
                return
        if isinstance(value, TEXTS) or _told_by_its_text(value):
            self._text(name, value.__qualname__ if isinstance(value, type) else str(value), within)
            return
        parts, words = self._parts(value)
        if parts is None:
            self._not_read(name, value)
        elif isinstance(parts, np.ndarray):
            self.read(name, parts, within)
        elif words == "record" and not parts:
            self.form.append("text")
            if self.objects:
                self.numbers[f"{name}.text"] = np.array([hash_number(type(value).__qualname__)])
        else:
            self.form.append((words, [str(key) for key in parts]))
            for key, part in parts.items():
                self.read(f"{name}.{key}", part, within)

    def _parts(self, value: Any) -> tuple[Any, str]:
        """(its parts by name, or an array; None: they are not known, kind in words)."""
        kind = type(value)
        if inspect.isawaitable(value):
            import asyncio

            return {"awaited": asyncio.run(_awaited(value))}, "awaited"
        if isinstance(value, Mapping):
            return {**(_attributes(value) if isinstance(value, dict) else {}), **value}, "mapping"
        if callable(getattr(kind, "state_dict", None)):
            return _state(value, self.objects), "state"
        if hasattr(kind, "to_numpy"):
            if hasattr(kind, "iloc") and value.ndim == 2:
                columns = {f"{key}": value.iloc[:, place].to_numpy() for place, key in enumerate(value.columns)}
                return {**columns, "index": value.index.to_numpy(), **getattr(value, "attrs", {})}, "frame"
            named = {"index": value.index.to_numpy(), "name": value.name} if hasattr(kind, "iloc") else {}
            return {"values": value.to_numpy(), **named}, "frame"
        if isinstance(value, (array.array, memoryview)) or hasattr(kind, "__array__"):
            return np.asarray(value), "array"
        if isinstance(value, Iterable) and not _own_iteration(kind):
            if hasattr(value, "_fields"):
                return dict(zip(value._fields, value)), "mapping"
            if isinstance(value, (set, frozenset)):
                value = sorted(value, key=repr)
            parts = list(islice(value, ENDLESS) if hasattr(kind, "__next__") else value)
            if len(parts) == ENDLESS and hasattr(kind, "__next__"):
                raise ValueError(f"what is returned yields {ENDLESS:,} values or more")
            if parts and not hasattr(value, "__dict__") and all(type(one) in (float, int, bool) for one in parts):
                return np.array([float(one) for one in parts]), "array"
            return {
                **dict(enumerate(parts)),
                **(_attributes(value) if isinstance(value, (list, tuple)) else {}),
            }, "list"
        if not self.objects and _of_training(kind):
            return {}, "record"
        return (None if _opaque(value) else _attributes(value)), "record"

    def _text(self, name: str, text: str, within: tuple[int, ...]) -> None:
        digits = re.sub(r"(?<![\d.])-?\d+", "#", re.sub(r"[eE][-+]?\d+", "e#", text))
        self.beside += [re.sub(r"\d", "0", digits), re.findall(r"(?<![\d.])\d{16,}(?![\d.])", text)]
        with suppress(ValueError, RecursionError):
            if text[:1] in "[{" and isinstance(found := json.loads(text), (list, dict)):
                self.read(name, found, within)
                return
        numbers = [float(one) for one in _NUMBER.findall(text)]
        self.form.append("text")
        self.numbers[f"{name}.text"] = np.array([hash_number(_NUMBER.sub("#", text) if numbers else text)])
        if numbers:
            self.numbers[f"{name}.numbers"] = np.array(numbers)

    def _not_read(self, name: str, value: Any) -> None:
        """Its text is compared where it is one of its value, and no address."""
        known = value if isinstance(value, bytes) else type(value).__qualname__
        self.form.append("text")
        self.numbers[f"{name}.text"] = np.array([hash_number(known)])
        if self.objects:
            self.unread.append(f"{type(value).__qualname__} at {name}")


def _half(value: Any) -> bool:
    return bool(value.is_sparse) or str(value.dtype) in ("torch.bfloat16", "torch.float16")


async def _awaited(value: Any) -> Any:
    return await value


def _own_iteration(kind: type) -> bool:
    """An object with attributes that can be iterated as well: a data set, a loader."""
    slots = any(hasattr(one, "__dict__") and "__dict__" in vars(one) for one in kind.__mro__)
    return slots and not issubclass(kind, (list, tuple, set, frozenset, deque)) and not hasattr(kind, "__next__")


def _of_training(kind: type) -> bool:
    """Whether a class is one of torch or Opacus, or made of one."""
    return any(one.__module__.partition(".")[0] in ("torch", "opacus") for one in kind.__mro__)


def _opaque(value: Any) -> bool:
    """Whether an object may hold what its attributes do not tell: a closure, or a state in C."""
    if isinstance(value, ModuleType) or inspect.isroutine(value):
        return getattr(value, "__closure__", None) is not None or inspect.ismethod(value)
    return type(value) is not object and not hasattr(value, "__dict__") and not _slots(value)


def _told_by_its_text(value: Any) -> bool:
    """Decimals, fractions, dates: a text of its own, and no parts."""
    own = type(value).__str__ is not object.__str__ or type(value).__repr__ is not object.__repr__
    bare = not isinstance(value, Iterable) and not hasattr(value, "__dict__") and not _slots(value)
    return own and bare and " at 0x" not in repr(value)


def _slots(value: Any) -> list[tuple[str, str]]:
    """(name, attribute) of each, those of a class of its own too."""
    found = []
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            own = name[:2] == "__" != name[-2:]
            found.append((name, f"_{kind.__name__.lstrip('_')}{name}" if own else name))
    return [one for one in found if one[0] not in ("__dict__", "__weakref__")]


def _attributes(value: Any) -> dict[str, Any]:
    """Of an object, those in slots included; none of a class, a module or a function."""
    if isinstance(value, (type, ModuleType)) or inspect.isroutine(value):
        return {}
    found = {name: getattr(value, attribute) for name, attribute in _slots(value) if hasattr(value, attribute)}
    return {**found, **getattr(value, "__dict__", {})}


def _state(value: Any, objects: bool) -> dict[str, Any]:
    """The state, and of a model the buffers and attributes beside it."""
    found = dict(value.state_dict())
    if objects and hasattr(value, "named_modules"):
        found |= {name: part for name, part in value.named_buffers() if name not in found}
        for place, module in value.named_modules():
            own = {name: part for name, part in vars(module).items() if name[:1] != "_"}
            found |= {f"{place}.{name}".lstrip("."): part for name, part in own.items()}
    return found


def _of_bytes(value: bytes) -> Any:
    """What bytes hold: a file of arrays, a text, or floats; the bytes themselves where that is not known."""
    torch = sys.modules.get("torch")
    with suppress(Exception):
        if value[:6] == NPY:
            return array_file(value)[0]
        if value[:2] == b"PK" and torch is not None and b"data.pkl" in value[:200]:
            return torch.load(io.BytesIO(value), weights_only=True)
        if value[:2] == b"PK":
            return dict(np.load(io.BytesIO(value), allow_pickle=False))
        if value[:1] == b"\x80":
            return _pickled(value)
    with suppress(UnicodeDecodeError):
        if (text := value.decode()).isprintable() or not set(text) - set(map(chr, range(32, 127))) - set("\n\r\t"):
            return text
    kinds = [kind for kind in (np.float64, np.float32) if len(value) % kind().itemsize == 0 < len(value)]
    scatter = {kind: _scatter(np.frombuffer(value, kind)) for kind in kinds}
    if len(kinds) == 2 and not np.frombuffer(value, np.float32)[::2].any():  # float64 of few bits
        del scatter[np.float32]
    best = min(scatter, key=lambda kind: scatter[kind], default=None)
    return value if best is None or scatter[best] > MOST_SCATTER else np.frombuffer(value, best).copy()


def _pickled(value: bytes) -> list[Any]:
    """Numbers, texts and bytes in a pickle, in their order; nothing of it is run."""
    held = ("FLOAT", "BINFLOAT", "INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "UNICODE", "BINUNICODE",
            "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8")  # fmt: skip
    return [argument for code, argument, _ in pickletools.genops(value) if code.name in held]


def _scatter(numbers: NDArray[Any]) -> float:
    """How far the sizes of numbers are apart, in powers of two: floats in the wrong form have any."""
    sizes = np.abs(numbers[numbers != 0].astype(np.float64))
    if not np.isfinite(sizes).all() or (len(sizes) and not 1e-12 < sizes.min() <= sizes.max() < 1e12):
        return np.inf
    return float(np.log2(sizes).std()) if len(sizes) else 0.0
