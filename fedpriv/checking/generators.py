"""The generators of a process: seeded, looked at and put back."""

from __future__ import annotations

import copy
import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import numpy as np


def seeds_of(seed: int, n: int) -> list[int]:
    """n different seeds below 2^31."""
    drawn = np.random.SeedSequence(seed).generate_state(2 * n + 16, np.uint32) >> 1
    return [int(value) for value in dict.fromkeys(drawn.tolist())][:n]


def seeded(seed: int | None) -> Any:
    """Context in which the process's generators (python, numpy, and torch where it is imported) begin at ``seed``; they
    are put back afterwards. None: nothing is touched.
    """
    return nullcontext() if seed is None else _seeded(seed)


def begin_torch(torch: Any, seed: int) -> None:
    """`torch.manual_seed`, which records three stack traces where there is no GPU: most of what a play of a small
    function took.
    """
    if _has_gpu():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _has_gpu() -> bool:
    return bool(sys.modules["torch"].accelerator.is_available())


class Held:
    """Generators of a target's own. seeds: where they begin in the play that runs now; None: nobody seeded it. found:
    there are some.
    """

    seeds: np.random.Generator | None = None
    found = False


def copied(target: Any, memory: dict[int, Any] | None = None) -> Any:
    """A deep copy in which generators that the operating system seeded begin at a state that follows from the play's
    seed, as another process's would: the copy would else have the original's noise in every play. One that a constant
    seeds stays as it is, and a play that nobody seeds changes none (`fedpriv.checking.child` compares two processes).
    memory: of `copy.deepcopy`.
    """
    memory = {} if memory is None else memory
    twin = copy.deepcopy(target, memory)
    for one in memory.values() if Held.seeds is not None else ():
        if _from_the_system(one):
            Held.found = True
            _begin(one, int(Held.seeds.integers(2**31)))  # type: ignore[union-attr]
    return twin


def _from_the_system(found: Any) -> bool:
    """Whether it is a generator that was seeded with 64 bits or more."""
    if isinstance(found, (np.random.Generator, np.random.RandomState)):
        bits = found.bit_generator if isinstance(found, np.random.Generator) else found._bit_generator
        entropy = getattr(getattr(bits, "seed_seq", None), "entropy", None)
        return isinstance(entropy, int) and entropy >= 2**64
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(found, torch.Generator) and found.initial_seed() >= 2**53


def _begin(found: Any, seed: int) -> None:
    if isinstance(found, np.random.Generator):
        found.bit_generator.state = type(found.bit_generator)(seed).state  # type: ignore[call-arg]
    elif isinstance(found, np.random.RandomState):
        found.seed(seed)
    else:
        found.manual_seed(seed)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    states, outer = generator_states(), Held.seeds
    Held.seeds = np.random.default_rng((seed, 1))
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 (the generator that targets use)
    if torch := sys.modules.get("torch"):
        begin_torch(torch, seed)
    try:
        yield
    finally:
        Held.seeds = outer
        put_back(states)


def generator_states() -> tuple[Any, Any, Any]:
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None  # noqa: NPY002


def put_back(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    if torch := sys.modules.get("torch"):
        if states[2] is None:  # imported in the meantime
            torch.default_generator.seed()
        else:
            torch.set_rng_state(states[2])


def digest_of_states() -> tuple[str, str, str]:
    """Of each of the three generators' states; empty for one that there is not."""
    first, second, third = generator_states()
    name, words, *rest = second
    of_torch = "" if third is None else hashlib.sha256(third.numpy().tobytes()).hexdigest()
    of_numpy = hashlib.sha256(repr((name, rest)).encode() + words.tobytes()).hexdigest()
    return hashlib.sha256(repr(first).encode()).hexdigest(), of_numpy, of_torch


# --- fresh state ------------------------------------------------------------------------------------------------------
# A function's own memory between calls: its module's plain data, its closure, its defaults. Put back before a play.

#: Deeper structures are no plain data.
DEEPEST = 5
#: Bytes of arrays that are copied for each play, at most.
MOST_BYTES = 2**24


def is_plain(value: Any, depth: int = 0) -> bool:
    """Numbers, texts, arrays, and containers of these: what can be copied without meaning anything else."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        return True
    if isinstance(value, np.ndarray) or _is_tensor(value):
        return bool(value.nbytes <= MOST_BYTES) and not (isinstance(value, np.ndarray) and value.dtype.hasobject)
    if depth >= DEEPEST:
        return False
    if isinstance(value, dict):
        return all(is_plain(part, depth + 1) for part in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(is_plain(part, depth + 1) for part in value)
    return False


def _refill(cell: Any, kept: Any) -> None:
    cell.cell_contents = copy.deepcopy(kept)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


class Memory:
    """The plain data that a target can reach and change; generators and other objects are left as they are.

    Objects made by the target's own module have their plain attributes put back too.
    """

    def __init__(self, target: Any) -> None:
        self._back: list[Callable[[], None]] = []
        self._seen: set[int] = set()
        function = getattr(target, "__func__", target)
        own = getattr(function, "__globals__", None)
        module = getattr(function, "__module__", None)
        if own is not None:
            for name in list(own):
                if not name.startswith("__"):
                    self._remember(own, name, own[name], module)
        for cell in getattr(function, "__closure__", None) or ():
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            if is_plain(value):
                kept = copy.deepcopy(value)
                self._back.append(partial(_refill, cell, kept))
            else:
                self._object(value, module)
        for defaults in (getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)):
            for value in defaults.values() if isinstance(defaults, dict) else defaults or ():
                if isinstance(value, (list, dict, set, np.ndarray)) and is_plain(value):
                    self._in_place(value)
        if getattr(function, "__dict__", None) and callable(function) and not isinstance(function, type):
            self._attributes(function)
        if getattr(target, "__self__", None) is not None:
            self._object(target.__self__, module)

    def restore(self) -> None:
        for back in self._back:
            back()

    def _remember(self, own: dict[str, Any], name: str, value: Any, module: str | None) -> None:
        if isinstance(value, (list, dict, set, np.ndarray)) and is_plain(value):
            self._in_place(value)
        if is_plain(value):
            kept = value if isinstance(value, (list, dict, set, np.ndarray)) else copy.deepcopy(value)
            self._back.append(lambda: own.__setitem__(name, kept))
        else:
            self._object(value, module)

    def _in_place(self, value: Any) -> None:
        kept = copy.deepcopy(value)

        def back() -> None:
            if isinstance(value, np.ndarray):
                if value.flags.writeable:
                    value[...] = kept
            elif isinstance(value, list):
                value[:] = copy.deepcopy(kept)
            else:
                value.clear()
                value.update(copy.deepcopy(kept))

        self._back.append(back)

    def _object(self, value: Any, module: str | None) -> None:
        if id(value) in self._seen or isinstance(value, type):
            return
        if callable(getattr(type(value), "load_state_dict", None)):
            self._seen.add(id(value))
            self._trained(value)
        if getattr(type(value), "__module__", "") != module:
            return
        self._seen.add(id(value))
        self._attributes(value)

    def _trained(self, value: Any) -> None:
        """A model, an optimiser or an accountant, by the state that it gives and takes itself."""
        kept = copy.deepcopy(value.state_dict())
        own = (lambda: kept) if hasattr(value, "parameters") else (lambda: copy.deepcopy(kept))  # a model copies itself
        self._back.append(lambda: value.load_state_dict(own()))

    def _attributes(self, value: Any) -> None:
        try:
            attributes = vars(value)
        except TypeError:
            return
        kept = {name: copy.deepcopy(part) for name, part in attributes.items() if is_plain(part)}
        for part in attributes.values():
            if not isinstance(part, type) and callable(getattr(type(part), "load_state_dict", None)):
                self._trained(part)
        names = set(attributes)

        def back() -> None:
            for name in set(attributes) - names:
                del attributes[name]
            attributes.update(copy.deepcopy(kept))

        self._back.append(back)
