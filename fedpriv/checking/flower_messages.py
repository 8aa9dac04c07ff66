"""Messages between a Flower server and client, as numbers: what a client's code answers, and what leaves of it."""

from __future__ import annotations

import copy
import hashlib
import logging
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.compat.common import recorddict_compat as compat
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM
from numpy.typing import NDArray

from fedpriv.checking.generators import copied
from fedpriv.engines.contexts import empty_context
from fedpriv.engines.grid import RUN_ID, identify_server, stamp

Arrays = Mapping[str, NDArray[Any]]
Numbers = dict[str, NDArray[np.float64]]

#: Keys of the records of a message in Flower's templates; those of the older API are `compat`'s.
ARRAYS, CONFIG, METRICS, COUNT = "arrays", "config", "metrics", "num-examples"
OLD_ARRAYS, OLD_CONFIG = "fitins.parameters", "fitins.config"
CLIENT = 7
#: What a server sends beside the model: keys that Flower's own mods and templates read.
SENT: Mapping[str, Any] = {KEY_CLIPPING_NORM: 1.0, "lr": 0.1, "local-epochs": 1}


def model(update: Arrays) -> dict[str, NDArray[Any]]:
    """The global model that a message carries: small public numbers of the update's names, shapes and types."""
    found, place = {}, 0
    for name, array in update.items():
        steps = place + np.arange(array.size).reshape(array.shape)
        found[name] = np.asarray(0.5 * np.cos(1.0 + steps)).astype(array.dtype)
        place += array.size
    return found


@dataclass(frozen=True)
class Trained:
    """What one client's training yields, before anything protects it.

    update: by array, what is added to the server's model; metrics: what the reply says beside it; examples: their
    number; config: what the server sends.
    """

    update: Arrays
    metrics: Mapping[str, float] = field(default_factory=dict)
    examples: int = 20
    config: Mapping[str, Any] = field(default_factory=lambda: dict(SENT))

    def scaled(self, factor: float) -> Trained:
        return replace(self, update={name: (factor * array).astype(array.dtype) for name, array in self.update.items()})


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def sent(trained: Trained, server_round: int = 1, *, old: bool = False, message_type: str = "train") -> Message:
    """The server's message of a round; old: in the form of the NumPyClient API."""
    config = dict(trained.config) | {"server-round": server_round}
    arrays = model(trained.update)
    names = (OLD_ARRAYS, OLD_CONFIG) if old else (ARRAYS, CONFIG)
    content = RecordDict({names[0]: record(arrays), names[1]: ConfigRecord(config)})
    identify_server()
    message = Message(content, dst_node_id=CLIENT, message_type=message_type)
    stamp(message, f"message-{server_round}")
    return message


def reply(trained: Trained, message: Message) -> Message:
    """A client's reply: the message's model and the update, in the form that the message asks for."""
    records = message.content.array_records
    arrays = next(iter(records.values()))
    answer = {
        name: np.asarray(array.numpy() + update)
        for (name, array), update in zip(arrays.items(), trained.update.values(), strict=True)
    }
    if OLD_ARRAYS in records:
        status = Status(code=Code.OK, message="")
        found = FitRes(status, ndarrays_to_parameters(list(answer.values())), trained.examples, dict(trained.metrics))
        return Message(compat.fitres_to_recorddict(found, keep_input=False), reply_to=message)
    metrics = MetricRecord({**trained.metrics, COUNT: trained.examples})
    return Message(RecordDict({ARRAYS: record(answer), METRICS: metrics}), reply_to=message)


def context() -> Context:
    """A client's context, new."""
    return empty_context(RUN_ID, CLIENT, partition=0, num_partitions=2)


# --- what leaves -------------------------------------------------------------------------------------------


def numbers_of(message: Message) -> Numbers:
    """Everything in a message that leaves, as numbers. Its texts, names, shapes and types are hashes under "form."."""
    if message.has_error():
        error = message.error
        return {"form.error": np.array([float(error.code)]), "form.reason": hashed(str(error.reason))}
    found: Numbers = {}
    for name, records in message.content.items():
        if isinstance(records, ArrayRecord):
            found |= arrays_in(records, f"arrays.{name}")
        else:
            found |= values_in(records, ("metrics." if isinstance(records, MetricRecord) else "config.") + name)
    kept = [part for part in found if not part.startswith("form.")]
    found["form.names"] = hashed(*kept)
    return found


def arrays_in(records: ArrayRecord, name: str) -> Numbers:
    """name.key: the array as float64, flat; form.name.key: its type and shape."""
    found: Numbers = {}
    for key, array in records.items():
        values = array.numpy()
        found[f"{name}.{key}"] = np.asarray(values, dtype=np.float64).ravel()
        found[f"form.{name}.{key}"] = hashed(str(values.dtype), str(values.shape))
    return found


def values_in(values: Mapping[str, Any], name: str) -> Numbers:
    """name.key: numbers and lists of them; form.name.key: texts and bytes."""
    found: Numbers = {}
    for key, value in values.items():
        items = value if isinstance(value, list) else [value]
        if all(isinstance(item, int | float | bool | np.number) for item in items):
            found[f"{name}.{key}"] = np.array(items, dtype=np.float64)
        else:
            found[f"form.{name}.{key}"] = hashed(*map(repr, items))
    return found


def arrays_of(values: Mapping[str, Any]) -> Numbers:
    """Numbers and arrays as they are, and their forms; anything else as a hash under "form."."""
    found: Numbers = {}
    for name, value in values.items():
        array = np.asarray(value)
        if array.dtype.kind in "fiub":
            found[name] = array.astype(np.float64).ravel()
            found[f"form.{name}"] = hashed(str(array.dtype), str(array.shape))
        else:
            found[f"form.{name}"] = hashed(repr(value) if type(value).__repr__ is not object.__repr__ else "object")
    return found


def hashed(*texts: str) -> NDArray[np.float64]:
    """Texts as one whole number below 2^52: unequal texts, unequal numbers."""
    digest = hashlib.sha256("\x00".join(texts).encode()).digest()
    return np.array([float(int.from_bytes(digest[:8], "little") >> 12)])


# --- a foreign process -------------------------------------------------------------------------------------


@contextmanager
def quiet() -> Iterator[None]:
    """Flower's log of every clipped reply is not written."""
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def fresh(target: Any) -> Any:
    """A copy that shares no state with the original, modules aside; the original where a foreign class has no copy.
    Of a function: its closed-over values and its defaults are copied, its module's variables are shared.
    """
    try:
        if isinstance(target, types.FunctionType):
            return _fresh_function(target)
        return copied(target, _Modules())
    except Exception:  # whatever a foreign class does when it is copied: part by part, a lock stays what it is
        return _fresh_parts(target)


def _fresh_parts(target: Any) -> Any:
    parts = getattr(target, "__dict__", None)
    if not isinstance(parts, dict) or isinstance(target, type | types.ModuleType):
        return target
    try:
        twin = copy.copy(target)
        twin.__dict__.update({name: fresh(part) for name, part in parts.items()})
    except Exception:  # a class that refuses
        return target
    return twin


def _fresh_function(found: types.FunctionType) -> types.FunctionType:
    if not found.__closure__ and not found.__defaults__ and not found.__kwdefaults__:
        return found
    cells = tuple(types.CellType(fresh(cell.cell_contents)) for cell in found.__closure__ or ())
    twin = types.FunctionType(found.__code__, found.__globals__, found.__name__, fresh(found.__defaults__), cells)
    twin.__kwdefaults__ = fresh(found.__kwdefaults__)
    twin.__dict__.update(found.__dict__)
    return twin


class _Modules(dict[int, Any]):
    """`copy.deepcopy`'s memory of what it has copied: modules stand for themselves."""

    def get(self, key: int, default: Any = None) -> Any:
        found = super().get(key, default)
        return _MODULES.get(key, found) if found is default else found


_MODULES: dict[int, types.ModuleType] = {}


def shared_modules() -> None:
    """Notes the modules that are imported now, for `fresh`."""
    _MODULES.update({id(module): module for module in list(sys.modules.values())})
