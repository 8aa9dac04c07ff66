"""Messages between a Flower server and client, as numbers: what a client's code answers, and what leaves of it."""

from __future__ import annotations

import copy
import hashlib
import logging
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.compat.common import recorddict_compat as compat
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM
from numpy.typing import NDArray

from fedpriv.checking.findings import Finding, finding
from fedpriv.checking.generators import copied
from fedpriv.checking.reading import Numbers, array_file, beside
from fedpriv.checking.subject import Pair, Probe, Subject
from fedpriv.engines.grid import RUN_ID, empty_context, identify_server, stamp

Arrays = Mapping[str, NDArray[Any]]
Records = dict[str, NDArray[np.float64]]

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


def numbers_of(message: Message) -> Records:
    """Everything in a message that leaves, as numbers. Its texts, names, shapes and types are hashes under "form."."""
    if message.has_error():
        error = message.error
        return {"form.error": np.array([float(error.code)]), "form.reason": hashed(str(error.reason))}
    said = message.metadata  # by default a reply lives as long as what it answers, less the time since then
    found: Records = {
        "form.message": hashed(said.message_type, said.group_id, f"{said.ttl / 10:.0f}"),
        "form.records": hashed(*(f"{type(one).__name__} {name}" for name, one in message.content.items())),
    }
    for name, records in message.content.items():
        if isinstance(records, ArrayRecord):
            found |= arrays_in(records, f"arrays.{name}")
        else:
            found |= values_in(records, ("metrics." if isinstance(records, MetricRecord) else "config.") + name)
    kept = [part for part in found if not part.startswith("form.")]
    found["form.names"] = hashed(*kept)
    return found


def arrays_in(records: ArrayRecord, name: str) -> Records:
    """name.key: the array as float64, flat; form.name.key: its type and shape, and what else leaves of it."""
    found: Records = {}
    for key, array in records.items():
        values, rest = array_file(array.data)
        told = (array.dtype, array.shape, array.stype, values.dtype, values.shape, rest, beside(values))
        found[f"{name}.{key}"] = np.asarray(values, dtype=np.float64).ravel()
        found[f"form.{name}.{key}"] = hashed(*map(repr, told))
    return found


def values_in(values: Mapping[str, Any], name: str) -> Records:
    """name.key: numbers and lists of them; form.name.key: texts and bytes."""
    found: Records = {}
    for key, value in values.items():
        items = value if isinstance(value, list) else [value]
        if all(isinstance(item, int | float | bool | np.number) for item in items):
            found[f"{name}.{key}"] = np.array(items, dtype=np.float64)
            found[f"form.{name}.{key}"] = hashed(
                *(repr((type(one), beside(np.asarray(one)))) for one in [*items, value])
            )
        else:
            found[f"form.{name}.{key}"] = hashed(*map(repr, items))
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


# --- updates ----------------------------------------------------------------------------------------------------------
# Worst-case answers of one client: directions, lengths, rounds, forms of arrays.

#: L2 norms: far above every clip norm, and far below.
LARGE, SMALL = 1e4, 1e-3
LENGTHS = (1e-2, 1e-1, 1.0, 10.0, 1e2, 1e3, 1e4, 1e5)


def plain(size: int, length: float) -> dict[str, NDArray[Any]]:
    """Two arrays of float32, ``size`` equal numbers in all (at least 4), of L2 norm |length|."""
    rows, rest = divmod(size, 4)
    number = length / size**0.5
    return {
        "weight": np.full((rows, 3), number, dtype=np.float32),
        "bias": np.full(rows + rest, number, dtype=np.float32),
    }


def spike(size: int, length: float) -> dict[str, NDArray[Any]]:
    """The same arrays, where one number is ``length`` and all others are 0."""
    found = plain(size, 0.0)
    found["weight"][0, 0] = length
    return found


def update_pairs(dims: Sequence[int], adjacency: str, unit: str = "client") -> list[Pair]:
    """Neighbouring answers of one client of equal public sizes. adjacency: replace-one, or zero-out: the other client
    has next to nothing to say (no update at all has a norm of 0, which is a case of its own)."""
    found = []
    for size in dims:
        up, little, one = (Trained(update) for update in (plain(size, LARGE), plain(size, SMALL), spike(size, LARGE)))
        other, tail = (up.scaled(-1.0), f", {size} numbers")
        if adjacency == "replace-one":
            found += [
                Pair("opposite updates" + tail, up, other, adjacency, unit),
                Pair("opposite updates in one of" + tail[1:], one, one.scaled(-1.0), adjacency, unit),
            ]
        found += [Pair("a large and a small update" + tail, up, little, adjacency, unit)]
    return found


def lengths(size: int) -> Probe:
    return Probe("updates of growing length", "length", [Trained(plain(size, length)) for length in LENGTHS], LENGTHS)


# --- extremes ---------------------------------------------------------------------------------------------------------
# Answers of a client that no pair of plain updates has: further metrics, forms of arrays, values that are no numbers.
#
# Whether an app's model has such arrays, and its training such answers, is not known from its mods: what is found here
# is a doubt of them, with the case that shows it.

#: One play of a target on an answer: all numbers that leave in its first round, by name.
Play = Callable[[Trained, int], Mapping[str, Numbers]]
SEED = 12345
#: Processor time for one answer that is no usual one.
SECONDS = 2.0
#: Seeds under which an update of zero has to fail to be called a fault.
FAILS = tuple(range(11, 19))
Update = dict[str, NDArray[Any]]


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises TimeoutError after so many seconds of this process, and again after as many where foreign code has caught
    it, or Python has dropped it (in a destructor). Only where it may set an alarm.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = False

    def end(*_: Any) -> None:
        if not over:
            raise TimeoutError(f"no answer in {seconds:g} seconds of processor time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def plays(subject: Subject) -> Play:
    return lambda trained, seed: subject.play(trained, seed)[0].numbers


def metrics_pass(play: Play) -> Iterator[Finding]:
    """A metric and a number of examples of the client's own, in the reply as they were."""
    update = plain(8, 1.0)
    low, high = (Trained(update, {"loss": value}) for value in (0.25, 0.75))
    more = replace(low, examples=31)
    try:
        one, other, counted = (play(trained, SEED) for trained in (low, high, more))
    except Exception:  # of foreign code: the layers say so
        return
    if _moved(one, other):
        yield finding("metrics-bare", names=", ".join(_moved(one, other)))
    if _moved(one, counted):
        yield finding("count-bare", names=", ".join(_moved(one, counted)))


def extremes(play: Play) -> Iterator[Finding]:
    """Forms and values of updates at which a clip or a noise may stop working, where plain updates leave with noise."""
    if _difference(play, plain(8, 1.0), plain(8, -1.0)):
        return
    for key, (left, right) in CASES.items():
        seen = _difference(play, left(), right())
        if seen and key == "update-of-zero" and _always_fails(play, left(), right()):
            seen += f" It did so under {len(FAILS)} of {len(FAILS)} seeds; epsilon is infinite."
            yield finding(key, "fault", seen=seen)
        elif seen:
            yield finding(key, seen=seen)


def _always_fails(play: Play, left: Update, right: Update) -> bool:
    """Whether the first update, an honest one, never has an answer and the second always has one."""

    def answers(update: Update, seed: int) -> bool:
        try:
            with np.errstate(all="ignore"), at_most(SECONDS):
                return "form.error" not in play(Trained(update), seed)
        except Exception:  # of foreign code
            return False

    return not any(answers(left, seed) for seed in FAILS) and all(answers(right, seed) for seed in FAILS)


def _difference(play: Play, left: Update, right: Update) -> str | None:
    """What tells two neighbouring answers apart with certainty, in words; None: nothing that was seen."""
    results: list[Mapping[str, Numbers] | str] = []
    for update in (left, right):
        try:
            with np.errstate(all="ignore"), at_most(SECONDS):
                results.append(play(Trained(update), SEED))
        except Exception as raised:  # of foreign code
            results.append(f"{type(raised).__name__}: {raised}")
    one, other = results
    if isinstance(one, str) or isinstance(other, str):
        if isinstance(one, str) and isinstance(other, str):
            return None  # fails for both: nothing leaves of either
        error = one if isinstance(one, str) else other
        return f"the call fails ({error}), and the answer that fails to come tells of the data."
    failed = "form.error" in one, "form.error" in other
    if failed[0] != failed[1]:
        return "the reply is an error, which tells of the data."
    if set(one) != set(other):
        return "other records leave."
    for name in one:
        told = _told(play, name, left, right, one[name], other[name])
        if told:
            return told
    return None


def _told(play: Play, name: str, left: Update, right: Update, one: Numbers, other: Numbers) -> str | None:
    if np.isfinite(one).all() != np.isfinite(other).all():
        return f"{name} leaves as no number."
    if name.startswith("form."):
        return None if np.array_equal(one, other) else f"{name} differs by the data."
    moves = float(np.max(np.abs(one - other), initial=0.0))
    if moves == 0:
        return None
    again = np.stack([one, *(play(Trained(left), SEED + number)[name] for number in range(1, 9))])
    still = np.all(again == again[0], axis=0) & (one != other)
    if still.any():
        size = float(np.max(np.abs(one - other)[still]))
        return f"{name} moves by {size:.4g} between two data sets and has no noise."
    noise = float(np.median(np.std(again, axis=0)))
    return f"{name} moves by {moves:.4g}, its noise is {noise:.3g}." if moves > 1000 * noise else None


def _moved(one: Mapping[str, Numbers], other: Mapping[str, Numbers]) -> list[str]:
    """Numbers that differ between two plays of one seed and one update."""
    return [
        name
        for name in one
        if not name.startswith("form.") and name in other and not np.array_equal(one[name], other[name])
    ]


def _with(name: str, value: Any, length: float = SMALL) -> Callable[[], Update]:
    return lambda: {**plain(8, length), name: np.asarray(value)}


_WHOLE = np.array([3, -4], dtype=np.int64)

#: Finding -> two neighbouring updates.
CASES: Mapping[str, tuple[Callable[[], Update], Callable[[], Update]]] = {
    "unusual-update:array": (_with("scale", np.float32(LARGE)), _with("scale", np.float32(-LARGE))),
    "unusual-update:whole": (_with("counter", _WHOLE), _with("counter", 0 * _WHOLE)),
    "unusual-update:clipped": (_with("counter", _WHOLE, LARGE), _with("counter", _WHOLE)),
    "update-of-zero": (lambda: plain(8, 0.0), lambda: plain(8, SMALL)),
    "unusual-update:nan": (lambda: plain(8, float("nan")), lambda: plain(8, SMALL)),
    "unusual-update:infinite": (lambda: plain(8, float("inf")), lambda: plain(8, SMALL)),
}
