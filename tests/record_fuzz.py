"""Messages as another machine could send them, from a seed: valid ones that were damaged, and inventions.

Shared by the tests (a sample) and by `make stress` (a million).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import making
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto
from flwr.proto.recorddict_pb2 import RecordDict as Wire
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from sum_talk import Talk, a_session, vectors

from fedpriv.common import messages
from fedpriv.common.replies import Reply, Report, read_blobs, read_identity, read_reply, read_report, train_content
from fedpriv.secure_sum.collector import Collector
from fedpriv.server.round import Population, Round
from strategies.cpsgd import CpSGD
from strategies.ldpfl import LDPFL
from strategies.privunit import PrivUnit

SIZE = 5
RECORDS = (
    messages.ARRAYS,
    messages.CONFIG,
    messages.METRICS,
    messages.DIAGNOSTICS,
    messages.STATISTICS,
    messages.KEYS,
    "other",
)
DTYPES = ("<f4", "<f8", "<i8", "|b1", "|O", "<U3", "|V4", ">f4", "<c8", "[('a', '<f4')]", "<M8[s]", "nonsense", "")

_POPULATION = Population(0, 4, 2, lambda client: 10, layers=(slice(0, 3), slice(3, SIZE)))


@cache
def one_bit() -> LDPFL:
    """Made when it is first asked for, as all that follow: every process of the tests imports this file."""
    bits = {"epsilon": 1.0, "encode": "update", "radius": 0.5, "radius_floor": 0.1, "clip_factor": 1.0}
    return in_round(making.server(LDPFL, _POPULATION, **bits, weighting="uniform"))


@cache
def whole_numbers() -> CpSGD:
    options = {"rounds": 3, "epsilon": 50.0, "claimed_delta": 1e-5, "clip_norm": 1.0, "levels": 8, "trials": 100}
    more = {"sensitivity": "clip", "variant": "repaired", "learning_rate": 1.0}
    return in_round(making.server(CpSGD, _POPULATION, **options, **more))


@cache
def symbols() -> PrivUnit:
    options = {"learning_rate": 1.0, "mechanism": "sqkr", "epsilon": 4.0, "bits": 4, "projections": 2}
    return in_round(making.server(PrivUnit, _POPULATION, **options))


def prepare() -> None:
    """Makes them now: where `tripwires.armed` holds, nothing can be imported and no file be read."""
    for make in (one_bit, whole_numbers, symbols, numbers_release, oversized):
        make()


def in_round(server: Any) -> Any:
    server.current = Round(1, np.zeros(SIZE, np.float32))
    return server


FLOATS = (0.0, -1.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
INTEGERS = (0, -1, 1, 7, 2**31, 2**63 - 1, -(2**63))


ONE_BIT_RELEASE = np.array([0b10110], np.uint8)


@cache
def numbers_release() -> Any:
    grid = whole_numbers().grid(0)
    return grid.pack(torch.arange(grid.padded))


def valid(rng: random.Random) -> RecordDict:
    """What the project itself would send."""
    vector = np.arange(SIZE, dtype=np.float32)
    if rng.random() < 0.1:
        vector[rng.randrange(SIZE)] = rng.choice((np.nan, np.inf, -np.inf, 3e38))
    return rng.choice(
        (
            lambda: messages.reply_content(vector, 10, {"train_loss": 0.5}, {messages.TRAIN_LOSS: 0.25}),
            lambda: messages.reply_content(vector, 10, None),
            lambda: train_content(messages.pack_vector(vector), messages.Request(3, 1, {"noise_multiplier": 0.5})),
            lambda: messages.statistics_content({messages.TRAIN_LOSS: 0.5}),
            lambda: messages.blobs_content(messages.KEYS, [b"key", b"signature"]),
            lambda: messages.blobs_content(messages.KEYS, [rng.randbytes(160)]),
            lambda: messages.blobs_content(messages.UNMASK, [rng.randbytes(33) for _ in range(3)]),
            lambda: messages.reply_content(ONE_BIT_RELEASE, 10, None),  # type: ignore[arg-type]
            lambda: messages.reply_content(numbers_release(), 10, None),
            lambda: messages.identity_content(4),
        )
    )()


def scalar(rng: random.Random, also: tuple[Any, ...] = ()) -> Any:
    return rng.choice((*FLOATS, *INTEGERS, *also))


def config_value(rng: random.Random) -> Any:
    one = scalar(rng, (True, "", "text", "${oc.env:HOME}", b"", b"\x00\xff"))
    return [one] * rng.randrange(3) if rng.random() < 0.3 else one


def metric_value(rng: random.Random) -> Any:
    one = scalar(rng)
    return [one] * rng.randrange(3) if rng.random() < 0.3 else one


def array(rng: random.Random) -> Array:
    """An array whose bytes, shape and type need not belong together."""
    shape = tuple(rng.choice((0, 1, SIZE, SIZE + 1, 2**40, -1)) for _ in range(rng.randrange(3)))
    dtype = rng.choice(DTYPES)
    text = f"{{'descr': {dtype if dtype.startswith('[') else repr(dtype)}, 'fortran_order': {rng.random() < 0.2}, "
    header = (text + f"'shape': {shape}, }}").encode("latin1") + b"\n"
    length = rng.choice((len(header), len(header), 0, 2, 65_535))
    version = bytes((rng.choice((1, 1, 1, 2, 3, 9)), 0))
    data = b"\x93NUMPY" + version + length.to_bytes(2, "little") + header + rng.randbytes(rng.choice((0, 4, 4 * SIZE)))
    return Array(dtype=dtype, shape=shape, stype=rng.choice(("numpy.ndarray", "pickle", "")), data=data)


def damaged(rng: random.Random, good: Array) -> Array:
    """A valid array with bytes changed, cut off or added."""
    data = bytearray(good.data)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(data) + 1)
        data[place : place + rng.choice((0, 1, 1, 1, 8))] = rng.randbytes(rng.choice((0, 1, 1, 1, 300)))
    return Array(dtype=good.dtype, shape=good.shape, stype=good.stype, data=bytes(data))


def record(rng: random.Random) -> ArrayRecord | ConfigRecord | MetricRecord:
    kind = rng.randrange(3)
    if rng.random() < 0.01:
        return rng.choice(oversized())
    if kind == 0:
        return ArrayRecord(
            {rng.choice((messages.VECTOR, "other", str(n))): array(rng) for n in range(rng.randrange(3))}
        )
    names = ("round", "attempt", "client", "num-examples", messages.TRAIN_LOSS, "0", "1", "train_loss")
    if kind == 1:
        return ConfigRecord({rng.choice(names): config_value(rng) for _ in range(rng.randrange(4))})
    return MetricRecord({rng.choice(names): metric_value(rng) for _ in range(rng.randrange(4))})


@cache
def oversized() -> list[ArrayRecord | ConfigRecord | MetricRecord]:
    """Just beyond one of the limits, and far beyond."""
    return [
        record
        for factor in (1, 30)
        for record in (
            MetricRecord({str(n): 0.5 for n in range(messages.MOST_KEYS * factor + 1)}),
            MetricRecord({"n" * (messages.MOST_NAME * factor + 1): 0.5}),
            ConfigRecord({"round": 1, "attempt": 0, "text": "t" * (messages.MOST_TEXT * factor + 1)}),
            ConfigRecord({"0": b"b" * (messages.MOST_BLOB * factor + 1)}),
            ConfigRecord({"round": 1, "attempt": 0, "list": [1.0] * (2**16 * factor)}),
        )
    ]


def content(rng: random.Random) -> RecordDict:
    """One case."""
    found = valid(rng)
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice(RECORDS)
        present = found.pop(name, None)
        if isinstance(present, ArrayRecord) and messages.VECTOR in present and rng.random() < 0.7:
            found[name] = ArrayRecord({messages.VECTOR: damaged(rng, present[messages.VECTOR])})
        elif rng.random() < 0.8:
            found[name] = record(rng)
    return found


def readers(case: RecordDict) -> Iterator[Callable[[], Any]]:
    """Everything that reads what came from another machine."""
    message = Message(case, dst_node_id=1, message_type="train")
    yield lambda: messages.read_request(case)
    yield lambda: messages.unpack_vector(case, SIZE)
    yield lambda: read_reply(message, 0, SIZE, 10)
    yield lambda: read_reply(message, 0, SIZE, 10, decode=one_bit().decoded)
    yield lambda: read_reply(message, 0, SIZE, 10, decode=whole_numbers().decoded)
    yield lambda: read_reply(message, 0, SIZE, 10, decode=symbols().decoded)
    yield lambda: read_reply(message, 0, SIZE, 10, (messages.TRAIN_LOSS,))
    yield lambda: read_report(message, 0, (messages.TRAIN_LOSS,))
    yield lambda: read_blobs(message, messages.KEYS)
    yield lambda: announced(read_blobs(message, messages.KEYS))
    yield lambda: opened(read_blobs(message, messages.UNMASK))
    yield lambda: read_identity(message)


SUM = Talk(a_session(3), {}, vectors(a_session(3)))
SUM.through(SUM.confirm)


def announced(blobs: tuple[bytes, ...]) -> None:
    """By a client of a secure sum."""
    Collector(SUM.session).add_announcement(0, blobs)


def opened(blobs: tuple[bytes, ...]) -> None:
    """Shares of a client of a secure sum; the next case asks it again."""
    SUM.server.add_unmasking(0, blobs)
    SUM.server._answered.clear()


def try_case(case: RecordDict) -> list[Any]:
    """What the readers made of a case: a value, or None where they refused it. Anything but the declared error, a value
    that is none and an error that repeats more than a line of the message are raised.
    """
    found = []
    for read in readers(case):
        try:
            found.append(read())
        except messages.MalformedMessage as error:
            found.append(None)
            assert len(str(error)) <= 400 and str(error).isprintable(), error
        else:
            check(found[-1])
    return found


def check(found: Any) -> None:
    """A value is what its reader promises."""
    if isinstance(found, Reply):
        assert found.release.dtype == np.float32 and found.release.shape == (SIZE,)
        assert np.isfinite(found.release).all() and found.release.flags.writeable
        assert all(isinstance(value, float) for value in found.diagnostics.values())
        assert len(found.diagnostics) <= messages.MOST_KEYS
    if isinstance(found, Reply | Report):
        assert all(np.isfinite(value) for value in found.statistics.values())
    if isinstance(found, messages.Request):
        assert 0 <= found.round < 2**31 and 0 <= found.attempt < 2**31
        assert all(
            len(value) <= messages.MOST_BLOB for value in found.options.values() if isinstance(value, str | bytes)
        )
    if isinstance(found, tuple):
        assert len(found) <= messages.MOST_KEYS and all(len(blob) <= messages.MOST_BLOB for blob in found)


# --- as bytes --------------------------------------------------------------------------------------------


def from_wire(data: bytes) -> RecordDict | None:
    """The content in the bytes of a Flower message; None where Flower itself refuses them."""
    try:
        return recorddict_from_proto(Wire.FromString(data))
    except Exception:
        return None


def from_objects(rng: random.Random) -> RecordDict | None:
    """A content after one of the objects in which Flower stores it was damaged; None where Flower refuses that."""
    whole = valid(rng)
    objects = {name: found.deflate() for name, found in get_all_nested_objects(whole).items()}
    name = rng.choice(list(objects))
    data = bytearray(objects[name])
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(data) + 1)
        data[place : place + rng.choice((0, 1, 1, 8))] = rng.randbytes(rng.choice((0, 1, 1, 8)))
    objects[name] = bytes(data)
    try:
        found = inflate_object_from_contents(whole.object_id, objects)
    except Exception:
        return None
    return found if isinstance(found, RecordDict) else None
