"""The bytes that come back from an app: every array survives, and nothing else is read as one."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from fedpriv.guard.record import FAULT, NotARecord, arrays_of, fault_of, record_of

TYPES = [np.dtype(name) for name in ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8")]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_arrays_come_back(kind: np.dtype) -> None:
    source = np.random.default_rng(0)
    shapes = [(), (0,), (3,), (2, 0, 4), (2, 3, 4)]
    arrays = [source.integers(0, 100, shape).astype(kind) for shape in shapes]
    arrays.append(np.asfortranarray(source.integers(0, 100, (3, 4)).astype(kind)))
    arrays.append(arrays[-1].astype(kind.newbyteorder(">")))
    back = arrays_of(record_of(arrays))
    assert all(np.array_equal(mine, theirs) and mine.dtype == kind for mine, theirs in zip(back, arrays, strict=True))


def test_arrays_come_back_in_their_order() -> None:
    """Whatever their types are, and how many: names are numbers, and 10 is after 2."""
    arrays = [np.full(1, number).astype(TYPES[number % len(TYPES)]) for number in range(25)]
    assert [float(array[0]) for array in arrays_of(record_of(arrays))] == [*range(25)]


@pytest.mark.parametrize("kind", ["c16", "O", "U3", "M8[s]", "?"])
def test_a_type_that_no_model_has_is_refused(kind: str) -> None:
    with pytest.raises(NotARecord):
        record_of([np.zeros(2, kind)])


def written(heads: object, numbers: bytes = bytes(8)) -> bytes:
    text = heads if isinstance(heads, bytes) else json.dumps(heads).encode()
    return struct.pack("<Q", len(text)) + text + numbers


def one(kind: str = "F64", shape: tuple[int, ...] = (1,), numbers: bytes = bytes(8), name: str = "0") -> bytes:
    return written({name: {"dtype": kind, "shape": shape, "data_offsets": [0, len(numbers)]}}, numbers)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"", "nothing came"),
        (b"GET / HTTP/1.1", "no record"),
        (one()[:4], "no record"),
        (b"\xff" * 16, "no record"),
        (written(b"[" * 10**5), "no record"),
        (written({"0": 1}), "no record"),
        (written({"__metadata__": {"secret": "17"}}), "no record"),
        (one() + b"\0", "no record"),
        (one() + one(), "no record"),
        (one()[:-1], "no record"),
        (one(kind="F16"), "no record"),
        (one(kind="BF16", shape=(4,)), "no record"),
        (one(kind="row 17\x1b[2J"), "no record"),
        (one(kind="BOOL", shape=(8,)), "bool"),
        (one(kind="C64"), "complex64"),
        (one(name="17\x1b[2J"), "no record"),
        (one(name="00"), "no record"),
        (one(shape=(1,) * 65), "no record"),
        (one(shape=(2**63, 2)), "no record"),
        (one(shape=(2**64 - 1,)), "no record"),
        (one(shape=(-1,)), "no record"),
        (one(shape=(2**63, 0), numbers=b""), "no record"),
        (one(numbers=struct.pack("<d", float("nan"))), "finite"),
        (one(numbers=struct.pack("<d", float("-inf"))), "finite"),
        (fault_of("row 17\x1b[2J"), "row 17?"),
    ],
)
def test_what_is_no_record_is_refused(record: bytes, why: str) -> None:
    with pytest.raises(NotARecord) as error:
        arrays_of(record)
    assert why in str(error.value) and "\x1b" not in str(error.value)
    assert len(str(error.value)) < 5000


def test_more_arrays_than_any_model_has_are_refused_before_they_are_read() -> None:
    """A million of them took the node's own process 30 s and 1.8 GB, in a record of 60 MB."""
    several = 100_001
    as_objects = ",".join(f'"{n}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for n in range(several))
    as_lists = ",".join(f'"{n}":["U8",[0],[0,0]]' for n in range(several))
    for entries in (as_objects, as_lists):
        with pytest.raises(NotARecord, match="more than 100000 arrays"):
            arrays_of(written(f"{{{entries}}}".encode(), b""))
    assert len(arrays_of(record_of([np.zeros(0)] * 1000))) == 1000


def test_damaged_records_are_arrays_or_refused() -> None:
    """Any bytes: finite arrays of exactly their length, or `NotARecord`, and never more memory than the bytes."""
    source = np.random.default_rng(1)
    good = record_of([np.arange(4.0), np.ones((2, 3), "f4"), np.zeros((), "i8")])
    refused = 0
    for _ in range(20_000):
        record = bytearray(good)
        for _ in range(source.integers(1, 4)):
            record[source.integers(len(record))] = source.integers(256)
        cut = bytes(record[: source.integers(len(record) + 1)] if source.random() < 0.3 else record)
        try:
            arrays = arrays_of(cut)
        except NotARecord:
            refused += 1
        else:
            assert sum(array.nbytes for array in arrays) < len(cut)
            assert all(np.isfinite(array).all() for array in arrays)
    assert 2_000 < refused < 20_000


def test_a_fault_is_short() -> None:
    assert len(fault_of("x" * 10**6)) < 5000 and fault_of("").startswith(FAULT)
