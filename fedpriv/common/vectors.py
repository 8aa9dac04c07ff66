"""Flat vectors in messages: one array [d] in one record, in the bytes that ``np.save`` writes.

Parameters and updates are float32. Every other form but uint8 is refused unread.
"""

from __future__ import annotations

import re
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from fedpriv.common.records import ARRAYS, MalformedMessage, get_record, sized

FloatVector = NDArray[np.float32]
VECTOR = "vector"  # the one array of an ArrayRecord
#: Bytes per coordinate of the model that a release in another form than float32 may have.
MOST_PER_COORDINATE = 16


def pack_vector(vector: NDArray[Any]) -> ArrayRecord:
    """One flat vector [d] as an ArrayRecord."""
    array = np.ascontiguousarray(vector)
    data = b"".join((_npy_header(array.dtype, array.shape), array.data))
    record = ArrayRecord()
    record[VECTOR] = Array(dtype=array.dtype.name, shape=array.shape, stype="numpy.ndarray", data=data)
    return record


@lru_cache(maxsize=64)
def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What ``np.save`` writes before an array's numbers; Flower calls it for every message, most of the work."""
    file = BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
    return file.getvalue()


def unpack_vector(record: RecordDict | ArrayRecord, size: int | None = None) -> FloatVector:
    """The flat vector of a message (or of its ArrayRecord); raises `MalformedMessage` unless it is float32 [size]."""
    vector = _array(record)
    if vector.dtype != np.float32:
        words = f"{ARRAYS}.{VECTOR}: expected float32 [d], got {vector.dtype} {list(vector.shape)}"
        raise MalformedMessage(words, "wrong_shape")
    if size is not None and vector.size != size:
        raise MalformedMessage(f"{ARRAYS}.{VECTOR}: expected {size} values, got {vector.size}", "wrong_shape")
    return vector.copy()


def view_array(record: RecordDict | ArrayRecord) -> NDArray[Any]:
    """The one array of a message as it lies there: float32 [n] or uint8 [n], not to be written to. Raises
    `MalformedMessage`.
    """
    return _array(record)


def unpack_array(record: RecordDict | ArrayRecord, most_bytes: int | None = None) -> NDArray[Any]:
    """The one array of a message, float32 [n] or uint8 [n], of ``most_bytes`` at most. Raises `MalformedMessage`."""
    array = _array(record)
    if most_bytes is not None and array.nbytes > most_bytes:
        raise MalformedMessage(
            f"{ARRAYS}.{VECTOR}: {array.nbytes} bytes, at most {most_bytes} are possible", "oversized"
        )
    return array.copy()


#: What ``np.save`` writes before the numbers of an array that we send. Every other form is refused unread: numpy's own
#: reader would hand the text to Python's parser.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00(..)\{'descr': '(<f4|\|u1)', 'fortran_order': False, 'shape': \((\d{1,15}),\), \} *\n",
    re.DOTALL,
)


def _array(record: RecordDict | ArrayRecord) -> NDArray[Any]:
    """As `unpack_array`, but a view of the message's own bytes: nothing is copied."""
    arrays = record if isinstance(record, ArrayRecord) else get_record(sized(record), ARRAYS, ArrayRecord)
    if len(arrays) != 1 or VECTOR not in arrays:
        raise MalformedMessage(f"{ARRAYS}: expected the one array {VECTOR!r}")
    data = arrays[VECTOR].data
    header = _HEADER.match(data)
    if header is None or int.from_bytes(header[1], "little") != header.end() - 10:
        raise MalformedMessage(f"{ARRAYS}.{VECTOR}: cannot be decoded, expected float32 or uint8 [d]")
    dtype, count = np.dtype(header[2].decode()), int(header[3])
    if len(data) - header.end() != count * dtype.itemsize:
        raise MalformedMessage(f"{ARRAYS}.{VECTOR}: cannot be decoded, {count} values of {dtype} are other bytes")
    return np.frombuffer(data, dtype, offset=header.end())
