"""Messages as another machine could send them, from a seed: valid ones that were damaged, and inventions.

Shared by the tests (a sample) and by `make stress` (a million).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedpriv.records import (
    ARRAYS,
    CONFIG,
    DIAGNOSTICS,
    KEYS,
    METRICS,
    STATISTICS,
    TRAIN_LOSS,
    VECTOR,
    Instructions,
    MalformedMessage,
    blobs_content,
    identity_content,
    pack_vector,
    read_blobs,
    read_identity,
    read_instructions,
    read_reply,
    read_report,
    reply_content,
    statistics_content,
    train_content,
    unpack_vector,
)

SIZE = 5
RECORDS = (ARRAYS, CONFIG, METRICS, DIAGNOSTICS, STATISTICS, KEYS, "other")
DTYPES = ("<f4", "<f8", "<i8", "|b1", "|O", "<U3", "|V4", ">f4", "<c8", "[('a', '<f4')]", "<M8[s]", "nonsense", "")
FLOATS = (0.0, -1.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
INTEGERS = (0, -1, 1, 7, 2**31, 2**63 - 1, -(2**63))


def valid(rng: random.Random) -> RecordDict:
    """What the project itself would send."""
    vector = np.arange(SIZE, dtype=np.float32)
    return rng.choice(
        (
            lambda: reply_content(vector, 10, {"train_loss": 0.5}, {TRAIN_LOSS: 0.25}),
            lambda: reply_content(vector, 10, None),
            lambda: train_content(pack_vector(vector), Instructions(3, 1, {"noise_multiplier": 0.5})),
            lambda: statistics_content({TRAIN_LOSS: 0.5}),
            lambda: blobs_content(KEYS, [b"key", b"signature"]),
            lambda: identity_content(4),
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
    if kind == 0:
        return ArrayRecord({rng.choice((VECTOR, "other", str(n))): array(rng) for n in range(rng.randrange(3))})
    names = ("round", "attempt", "client", "num-examples", TRAIN_LOSS, "0", "1", "train_loss")
    if kind == 1:
        return ConfigRecord({rng.choice(names): config_value(rng) for _ in range(rng.randrange(4))})
    return MetricRecord({rng.choice(names): metric_value(rng) for _ in range(rng.randrange(4))})


def content(rng: random.Random) -> RecordDict:
    """One case."""
    found = valid(rng)
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice(RECORDS)
        present = found.pop(name, None)
        if isinstance(present, ArrayRecord) and VECTOR in present and rng.random() < 0.7:
            found[name] = ArrayRecord({VECTOR: damaged(rng, present[VECTOR])})
        elif rng.random() < 0.8:
            found[name] = record(rng)
    return found


def readers(case: RecordDict) -> Iterator[Callable[[], Any]]:
    """Everything that reads what came from another machine."""
    message = Message(case, dst_node_id=1, message_type="train")
    yield lambda: read_instructions(case)
    yield lambda: unpack_vector(case, SIZE)
    yield lambda: read_reply(message, 0, SIZE, 10)
    yield lambda: read_reply(message, 0, SIZE, 10, (TRAIN_LOSS,))
    yield lambda: read_report(message, 0, (TRAIN_LOSS,))
    yield lambda: read_blobs(message, KEYS)
    yield lambda: read_identity(message)


def try_case(seed: int) -> list[Any]:
    """What the readers made of case ``seed``: a value, or None where they refused it. Anything but the declared error
    is raised.
    """
    found = []
    for read in readers(content(random.Random(seed))):
        try:
            found.append(read())
        except MalformedMessage:
            found.append(None)
    return found
