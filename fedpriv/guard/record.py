"""The bytes between a node and the process that runs a foreign app: a request goes in, one record of arrays comes out.

A record is a safetensors file whose arrays are named 0, 1, 2, ...: numbers without pickles or objects, and all that
leaves a sandbox. Its writer is hostile: `arrays_of` takes any bytes, and says why a record is none.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load, save

if TYPE_CHECKING:  # flwr takes a second to import
    from flwr.app import Context, Message

FAULT = b"FPE1"  # a text for the node's operator in place of a record
#: A foreign header is read in the node's own process, in time and memory that grow with its arrays.
MOST_ARRAYS = 100_000
#: Bytes of a fault's text.
LONGEST_FAULT = 4000


class NotARecord(ValueError):
    """The bytes are not one record of finite numbers."""


def record_of(arrays: list[np.ndarray]) -> bytes:
    """Raises `NotARecord` for a type that no record has."""
    named = {}
    for place, array in enumerate(arrays):
        if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
            raise NotARecord(f"an array of {array.dtype}")
        named[str(place)] = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    return save(named)


def fault_of(text: str) -> bytes:
    return FAULT + text.encode(errors="replace")[-LONGEST_FAULT:]


def arrays_of(record: bytes) -> tuple[np.ndarray, ...]:
    """The arrays of a record, float or whole numbers. Raises `NotARecord` for everything else, NaN and infinity too."""
    if record.startswith(FAULT):
        raise NotARecord("the app failed: " + printable(record[len(FAULT) :][-LONGEST_FAULT:]))
    # An array's entry has its shape and its place in brackets, however it is written.
    if record.count(b"[", 8, 8 + int.from_bytes(record[:8], "little")) > 2 * MOST_ARRAYS:
        raise NotARecord(f"more than {MOST_ARRAYS} arrays")
    try:
        named = load(record)
        arrays = tuple(named[str(place)] for place in range(len(named)))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the reader is no Exception
        words = printable(f"{type(error).__name__}: {error}".encode())[:LONGEST_FAULT]
        raise NotARecord(f"no record ({words})" if record else "nothing came") from None
    for array in arrays:
        if array.dtype.kind not in "fiu":
            raise NotARecord(f"an array of {array.dtype}")
        if not np.isfinite(array).all():
            raise NotARecord("a number that is not finite")
    return arrays


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
