"""The bytes between a node and the process that runs a foreign app: a request goes in, one record of arrays comes out.

A record is a fixed layout without names, pickles or objects, and is all that leaves a sandbox:

    b"FPR1" | number of arrays (u32) | per array: type (u8), dimensions (u8), each length (u64) | the numbers, in order

All integers are little-endian; numbers are in C order. Its writer is hostile: `arrays_of` takes any bytes, reads no
length that the bytes do not hold, and says why a record is none.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # flwr takes a second to import
    from flwr.app import Context, Message

MAGIC = b"FPR1"
FAULT = b"FPE1"  # a text for the node's operator in place of a record
#: A record's byte -> the type of an array's numbers.
TYPES = {number: np.dtype(name) for number, name in enumerate(("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1"))}
NUMBER_OF = {kind: number for number, kind in TYPES.items()}
MOST_ARRAYS = 100_000
MOST_DIMENSIONS = 32
#: Bytes of a fault's text.
LONGEST_FAULT = 4000


class NotARecord(ValueError):
    """The bytes are not one record of finite numbers."""


def record_of(arrays: list[np.ndarray]) -> bytes:
    """Raises `NotARecord` for a type that no record has."""
    heads, bodies = [MAGIC, struct.pack("<I", len(arrays))], []
    for array in arrays:
        kind = array.dtype.newbyteorder("<")
        if kind not in NUMBER_OF:
            raise NotARecord(f"an array of {array.dtype}")
        heads.append(struct.pack(f"<BB{array.ndim}Q", NUMBER_OF[kind], array.ndim, *array.shape))
        bodies.append(np.ascontiguousarray(array, kind).tobytes())
    return b"".join(heads + bodies)


def fault_of(text: str) -> bytes:
    return FAULT + text.encode(errors="replace")[-LONGEST_FAULT:]


def arrays_of(record: bytes) -> tuple[np.ndarray, ...]:
    """The arrays of a record, float or whole numbers. Raises `NotARecord` for everything else, NaN and infinity too."""
    if record.startswith(FAULT):
        raise NotARecord("the app failed: " + printable(record[len(FAULT) :][-LONGEST_FAULT:]))
    if not record.startswith(MAGIC):
        raise NotARecord("no record" if record else "nothing came")
    heads: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
    place = len(MAGIC)

    def take(layout: str) -> tuple[int, ...]:
        nonlocal place
        end = place + struct.calcsize(layout)
        if end > len(record):
            raise NotARecord("the record ends in its heads")
        values = struct.unpack(layout, record[place:end])
        place = end
        return values

    (number,) = take("<I")
    if number > MOST_ARRAYS:
        raise NotARecord(f"{number} arrays")
    for _ in range(number):
        named, dimensions = take("<BB")
        if named not in TYPES or dimensions > MOST_DIMENSIONS:
            raise NotARecord(f"an array of type {named} with {dimensions} dimensions")
        heads.append((TYPES[named], take(f"<{dimensions}Q")))
    sizes = [math.prod(shape) * kind.itemsize for kind, shape in heads]
    if place + sum(sizes) != len(record):
        raise NotARecord(f"{len(record) - place} bytes of numbers, where the heads say {min(sum(sizes), 1 << 62)}")
    arrays = []
    for (kind, shape), size in zip(heads, sizes, strict=True):
        try:
            array = np.frombuffer(record, kind, math.prod(shape), place).reshape(shape).copy()
        except ValueError as error:  # lengths beside a zero that no array can have
            raise NotARecord(f"an array of shape {shape}: {error}") from None
        if kind.kind == "f" and not np.isfinite(array).all():
            raise NotARecord("a number that is not finite")
        arrays.append(array)
        place += size
    return tuple(arrays)


def printable(text: bytes) -> str:
    """Foreign bytes for a terminal or a log: no control characters but line ends."""
    shown = text.decode(errors="replace")
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in shown)


# --- requests -----------------------------------------------------------------------------------------------------


def request_bytes(message: Message, context: Context) -> bytes:
    """What `Sandbox.ask` takes: Flower's own bytes of a message and of its context."""
    from flwr.common.serde import context_to_proto, message_to_proto

    first = message_to_proto(message).SerializeToString()
    return struct.pack("<Q", len(first)) + first + context_to_proto(context).SerializeToString()


def request_of(request: bytes) -> tuple[Message, Context]:
    from flwr.common.serde import context_from_proto, message_from_proto
    from flwr.proto.message_pb2 import Context as ProtoContext
    from flwr.proto.message_pb2 import Message as ProtoMessage

    (length,) = struct.unpack("<Q", request[:8])
    message, context = ProtoMessage.FromString(request[8 : 8 + length]), ProtoContext.FromString(request[8 + length :])
    return message_from_proto(message), context_from_proto(context)


def reply_arrays(reply: Any, asked: Any) -> list[np.ndarray]:
    """What leaves an app's process of its reply. To train: the numbers of its only `ArrayRecord`, in the order of the
    names that came down where these are the same. To all others: its numbers by name, for `counts_of`.

    Raises ValueError for a reply with an error, or to train with another number of array records than one.
    """
    if reply.has_error():
        raise ValueError(f"the app replied with error {reply.error.code}: {reply.error.reason}")
    if not asked.metadata.message_type.startswith("train"):
        return _named_numbers(reply)
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"{len(records)} array records in the reply, where a guarded app sends one")
    came = list(asked.content.array_records.values()) if asked.has_content() else []
    names = list(came[0]) if len(came) == 1 and sorted(came[0]) == sorted(records[0]) else list(records[0])
    return [np.asarray(records[0][name].numpy()) for name in names]


def _named_numbers(reply: Any) -> list[np.ndarray]:
    """Of every record, a name's bytes and its numbers (float64 [n]), one after the other; texts are left out."""
    found: list[np.ndarray] = []
    for record in reply.content.values():
        for name, value in record.items():
            numbers = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
            if numbers.dtype.kind in "biuf":
                found += [np.frombuffer(name.encode(), np.uint8), numbers.astype(np.float64).ravel()]
    return found


def counts_of(arrays: Sequence[np.ndarray] | None, metrics: Mapping[str, int]) -> np.ndarray | None:
    """The declared numbers (float64 [K]) among `_named_numbers`, whose writer is hostile; None: they are not all there.

    metrics: how many numbers each name has.
    """
    named = {} if arrays is None else dict(zip((name.tobytes() for name in arrays[::2]), arrays[1::2], strict=False))
    found = [named.get(name.encode()) for name in metrics]
    parts = [part.astype(np.float64).ravel() for part in found if part is not None and part.dtype.kind in "fiu"]
    return np.concatenate(parts) if [part.size for part in parts] == [*metrics.values()] else None
